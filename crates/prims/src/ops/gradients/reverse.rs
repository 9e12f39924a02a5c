//! Backward operators of pooling, padding, resampling and distances, which PyTorch's own differentiation calls. Each is the
//! reverse pass over what its forward operator decomposes to, or writes where the forward read.

use fx_ir::{Arg, ValueId};
use ir_core::DType;
use kernel_ir::ReduceOp;

use super::backward::vjp;
use crate::ops::common::{choose, one, widen};
use crate::ops::indexing::scatter::{planes, put};
use crate::ops::shapes::shape;
use crate::{Builder, Call, OpDef, OpError, Outs};

/// The entries.
pub(in crate::ops) const OPS: &[OpDef] = &[
    composite!(
        "aten::adaptive_max_pool2d_backward(Tensor grad_output, Tensor self, Tensor indices) -> Tensor",
        |b, c| { unpooled(b, c, 2) }
    ),
    composite!(
        "aten::adaptive_max_pool3d_backward(Tensor grad_output, Tensor self, Tensor indices) -> Tensor",
        |b, c| { unpooled(b, c, 3) }
    ),
    composite!(
        "aten::fractional_max_pool2d_backward(Tensor grad_output, Tensor self, int[2] kernel_size, int[2] output_size, Tensor indices) -> Tensor",
        |b, c| unpooled(b, c, 2)
    ),
    composite!(
        "aten::fractional_max_pool3d_backward(Tensor grad_output, Tensor self, int[3] kernel_size, int[3] output_size, Tensor indices) -> Tensor",
        |b, c| unpooled(b, c, 3)
    ),
    composite!(
        "aten::reflection_pad1d_backward(Tensor grad_output, Tensor self, SymInt[2] padding) -> Tensor",
        |b, c| { reversed(b, c, "grad_output", "self", "aten.reflection_pad1d.default", &["padding"]) }
    ),
    composite!(
        "aten::reflection_pad2d_backward(Tensor grad_output, Tensor self, SymInt[4] padding) -> Tensor",
        |b, c| { reversed(b, c, "grad_output", "self", "aten.reflection_pad2d.default", &["padding"]) }
    ),
    composite!(
        "aten::reflection_pad3d_backward(Tensor grad_output, Tensor self, SymInt[6] padding) -> Tensor",
        |b, c| { reversed(b, c, "grad_output", "self", "aten.reflection_pad3d.default", &["padding"]) }
    ),
    composite!(
        "aten::replication_pad1d_backward(Tensor grad_output, Tensor self, SymInt[2] padding) -> Tensor",
        |b, c| { reversed(b, c, "grad_output", "self", "aten.replication_pad1d.default", &["padding"]) }
    ),
    composite!(
        "aten::replication_pad2d_backward(Tensor grad_output, Tensor self, SymInt[4] padding) -> Tensor",
        |b, c| { reversed(b, c, "grad_output", "self", "aten.replication_pad2d.default", &["padding"]) }
    ),
    composite!(
        "aten::replication_pad3d_backward(Tensor grad_output, Tensor self, SymInt[6] padding) -> Tensor",
        |b, c| { reversed(b, c, "grad_output", "self", "aten.replication_pad3d.default", &["padding"]) }
    ),
    composite!(
        "aten::_upsample_bilinear2d_aa_backward(Tensor grad_output, SymInt[2] output_size, SymInt[4] input_size, bool align_corners, float? scales_h=None, float? scales_w=None) -> Tensor",
        |b, c| resampled(b, c, "aten._upsample_bilinear2d_aa.default")
    ),
    composite!(
        "aten::_upsample_bicubic2d_aa_backward(Tensor grad_output, SymInt[2] output_size, SymInt[4] input_size, bool align_corners, float? scales_h=None, float? scales_w=None) -> Tensor",
        |b, c| resampled(b, c, "aten._upsample_bicubic2d_aa.default")
    ),
    composite!(
        "aten::_cdist_backward(Tensor grad, Tensor x1, Tensor x2, float p, Tensor cdist) -> Tensor",
        |b, c| {
            let (x1, x2, g) = (c.value("x1")?, c.value("x2")?, c.value("grad")?);
            let args = vec![x1.into(), x2.into(), c.arg("p").clone(), Arg::None];
            of_one(b, x1, g, |b| b.call1("aten._cdist_forward.default", args))
        }
    ),
    composite!("aten::_pdist_backward(Tensor grad, Tensor self, float p, Tensor pdist) -> Tensor", |b, c| {
        reversed(b, c, "grad", "self", "aten._pdist_forward.default", &["p"])
    }),
    composite!(
        "aten::masked_scatter_backward(Tensor grad_output, Tensor mask, SymInt[] sizes) -> Tensor",
        |b, c| {
            let (g, mask) = (c.value("grad_output")?, c.value("mask")?);
            let dtype = b.dtype(g)?;
            let source = b.full(&c.syms("sizes")?, 0i64, dtype)?;
            of_one(b, source, g, |b| {
                b.call1("aten.masked_scatter.default", vec![g.into(), mask.into(), source.into()])
            })
        }
    ),
    composite!(
        "aten::grid_sampler_2d_backward(Tensor grad_output, Tensor input, Tensor grid, int interpolation_mode, int padding_mode, bool align_corners, bool[2] output_mask) -> (Tensor, Tensor)",
        |b, c| sampled(b, c, "aten.grid_sampler_2d.default")
    ),
    composite!(
        "aten::grid_sampler_3d_backward(Tensor grad_output, Tensor input, Tensor grid, int interpolation_mode, int padding_mode, bool align_corners, bool[2] output_mask) -> (Tensor, Tensor)",
        |b, c| sampled(b, c, "aten.grid_sampler_3d.default")
    ),
    composite!(
        "aten::_embedding_bag_dense_backward(Tensor grad, Tensor indices, Tensor offset2bag, Tensor bag_size, Tensor maximum_indices, SymInt num_weights, bool scale_grad_by_freq, int mode, Tensor? per_sample_weights, int padding_idx=-1) -> Tensor",
        bags
    ),
    composite!(
        "aten::_embedding_bag_per_sample_weights_backward(Tensor grad, Tensor weight, Tensor indices, Tensor offsets, Tensor offset2bag, int mode, int padding_idx=-1) -> Tensor",
        bag_weights
    ),
    composite!(
        "aten::_embedding_bag_backward(Tensor grad, Tensor indices, Tensor offsets, Tensor offset2bag, Tensor bag_size, Tensor maximum_indices, SymInt num_weights, bool scale_grad_by_freq, int mode, bool sparse, Tensor? per_sample_weights, int padding_idx=-1) -> Tensor",
        |b, c| match c.bool("sparse")? {
            true => Err(c.unsupported("sparse gradients")),
            false => bags(b, c),
        }
    ),
];

/// The gradient of `x` alone; zeros where the result does not depend on it.
fn of_one(
    b: &mut Builder<'_>,
    x: ValueId,
    g: ValueId,
    forward: impl FnOnce(&mut Builder<'_>) -> Result<ValueId, OpError>,
) -> Result<Outs, OpError> {
    let grads = vjp(b, &[x], g, forward)?;
    match grads[0] {
        Some(grad) => one(grad),
        None => {
            let (sizes, dtype) = (b.sizes(x)?, b.dtype(x)?);
            one(b.full(&sizes, 0i64, dtype)?)
        }
    }
}

/// The gradient of argument `x` of a forward operator with these other arguments.
fn reversed(
    b: &mut Builder<'_>,
    c: &Call<'_>,
    g: &str,
    x: &str,
    target: &str,
    rest: &[&str],
) -> Result<Outs, OpError> {
    let x = c.value(x)?;
    let args = [x.into()].into_iter().chain(rest.iter().map(|name| c.arg(name).clone())).collect();
    of_one(b, x, c.value(g)?, |b| b.call1(target, args))
}

/// The gradient of a maximum goes where it was found.
fn unpooled(b: &mut Builder<'_>, c: &Call<'_>, spatial: usize) -> Result<Outs, OpError> {
    let sizes = b.sizes(c.value("self")?)?;
    one(planes(b, c.value("grad_output")?, c.value("indices")?, &sizes, spatial, "add")?)
}

/// Of a resampling, which is linear: its argument's values do not matter.
fn resampled(b: &mut Builder<'_>, c: &Call<'_>, target: &str) -> Result<Outs, OpError> {
    let g = c.value("grad_output")?;
    let dtype = b.dtype(g)?;
    let x = b.full(&c.syms("input_size")?, 0i64, dtype)?;
    let names = ["output_size", "align_corners", "scales_h", "scales_w"];
    let args = [x.into()].into_iter().chain(names.iter().map(|name| c.arg(name).clone())).collect();
    of_one(b, x, g, |b| b.call1(target, args))
}

/// Of samples at a grid's places: the gradients of the image and of the grid.
fn sampled(b: &mut Builder<'_>, c: &Call<'_>, target: &str) -> Result<Outs, OpError> {
    let (x, grid) = (c.value("input")?, c.value("grid")?);
    let names = ["interpolation_mode", "padding_mode", "align_corners"];
    let args =
        [x.into(), grid.into()].into_iter().chain(names.iter().map(|name| c.arg(name).clone())).collect();
    let grads = vjp(b, &[x, grid], c.value("grad_output")?, |b| b.call1(target, args))?;
    let mut outs = Outs::new();
    for (grad, v) in grads.into_iter().zip([x, grid]) {
        let (sizes, dtype) = (b.sizes(v)?, b.dtype(v)?);
        outs.push(match grad {
            Some(grad) => grad,
            None => b.full(&sizes, 0i64, dtype)?,
        });
    }
    Ok(outs)
}

/// The bag of each row. Where the forward did not compute it, the offsets at which bags begin decide.
fn bag_of(b: &mut Builder<'_>, c: &Call<'_>, indices: ValueId) -> Result<ValueId, OpError> {
    let known = c.value("offset2bag")?;
    let n = b.sizes(indices)?[0].clone();
    let offsets = c.op.schema.args.iter().any(|a| a.name == "offsets");
    if !offsets || b.sizes(known)?[0] == n {
        return b.cast(known, DType::I64);
    }
    let offsets = b.cast(c.value("offsets")?, DType::I64)?;
    let places = b.call1("aten.arange.default", vec![n.into(), DType::I64.into()])?;
    let args = vec![offsets.into(), places.into(), false.into(), true.into()];
    let after = b.call1("aten.searchsorted.Tensor", args)?;
    b.call1("aten.sub.Scalar", vec![after.into(), 1i64.into()])
}

/// The gradient of each row's own factor: the product of its row with the gradient of its bag.
fn bag_weights(b: &mut Builder<'_>, c: &Call<'_>) -> Result<Outs, OpError> {
    let (g, w) = (c.value("grad")?, c.value("weight")?);
    let dtype = b.dtype(g)?;
    let (g, w) = (widen(b, g)?, widen(b, w)?);
    let compute = b.dtype(g)?;
    let indices = b.cast(c.value("indices")?, DType::I64)?;
    let bag = bag_of(b, c, indices)?;
    let (of_bag, row) = (shape::index(b, g, &[bag], 0)?, shape::index(b, w, &[indices], 0)?);
    let product = b.mul(of_bag, row)?;
    let sum = b.reduce(ReduceOp::Sum, product, &[1], false)?;
    let read = b.ne(indices, c.sym("padding_idx")?)?;
    let sum = choose(b, read, sum, 0.0, compute)?;
    one(b.cast(sum, dtype)?)
}

/// The gradient of an embedding's table from that of sums (mode 0), means (1) or maxima (2) over bags of rows.
fn bags(b: &mut Builder<'_>, c: &Call<'_>) -> Result<Outs, OpError> {
    let (g, mode) = (c.value("grad")?, c.int("mode")?);
    let dtype = b.dtype(g)?;
    let g = widen(b, g)?;
    let compute = b.dtype(g)?;
    let (count, width) = (c.sym("num_weights")?, b.sizes(g)?[1].clone());
    let zeros = b.full(&[count, width], 0.0, compute)?;
    if mode == 2 {
        let places = b.cast(c.value("maximum_indices")?, DType::I64)?;
        // A bag without rows has no maximum.
        let none = b.call1("aten.le.Scalar", vec![c.arg("bag_size").clone(), 0i64.into()])?;
        let none = b.unsqueeze(none, 1)?;
        let g = choose(b, none, 0.0, g, compute)?;
        let unread = b.call1("aten.lt.Scalar", vec![places.into(), 0i64.into()])?;
        let g = choose(b, unread, 0.0, g, compute)?;
        let places = choose(b, unread, 0.0, places, DType::I64)?;
        let sums =
            b.call1("aten.scatter_add.default", vec![zeros.into(), 0i64.into(), places.into(), g.into()])?;
        return one(b.cast(sums, dtype)?);
    }
    let indices = b.cast(c.value("indices")?, DType::I64)?;
    let bag = bag_of(b, c, indices)?;
    let mut rows = shape::index(b, g, &[bag], 0)?;
    let mut weight = b.ne(indices, c.sym("padding_idx")?)?;
    weight = choose(b, weight, 1.0, 0.0, compute)?;
    if mode == 1 {
        let sizes = b.cast(c.value("bag_size")?, compute)?;
        let sizes = shape::index(b, sizes, &[bag], 0)?;
        weight = b.div(weight, sizes)?;
    }
    if let Some(own) = c.opt_value("per_sample_weights")? {
        let own = b.cast(own, compute)?;
        weight = b.mul(weight, own)?;
    }
    if c.bool("scale_grad_by_freq")? {
        let n = b.sizes(indices)?[0].clone();
        let (ones, none) = (b.full(&[n], 1.0, compute)?, b.full(&[c.sym("num_weights")?], 0.0, compute)?);
        let often = put(b, none, &[indices], 0, ones, "add")?;
        let often = shape::index(b, often, &[indices], 0)?;
        weight = b.div(weight, often)?;
    }
    let weight = b.unsqueeze(weight, 1)?;
    rows = b.mul(rows, weight)?;
    let sums = put(b, zeros, &[indices], 0, rows, "add")?;
    one(b.cast(sums, dtype)?)
}
