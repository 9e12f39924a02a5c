//! Forms under which ATen dispatches operators that have another, public name: `_stack`, `nll_loss_forward`,
//! `slow_conv3d`. Graphs that were decomposed before they were saved contain them. Each is made of the public one.

use fx_ir::Arg;
use fx_ir::ValueId;
use ir_core::{DType, SymExpr};
use kernel_ir::ReduceOp;
use smallvec::smallvec;

use crate::ops::common::{choose, one, want_inexact, widen};
use crate::ops::shapes::shape;
use crate::{Autocast, Builder, Call, OpDef, OpError, Outs};

/// A cast by name.
macro_rules! cast_to {
    ($schema:literal, $dtype:ident) => {
        composite!($schema, |b, c| {
            let x = c.value("self")?;
            one(b.cast(x, DType::$dtype)?)
        })
    };
}

/// A product whose factors are taken in the dtype of the result.
macro_rules! in_dtype {
    ($schema:literal, $target:literal, [$($name:literal),*], [$($rest:literal),*]) => {
        composite!($schema, |b, c| {
            let dtype = c.opt_dtype("out_dtype")?.ok_or_else(|| c.bad_arg("out_dtype", "is missing"))?;
            let args = vec![
                $(Arg::Value(b.cast(c.value($name)?, dtype)?),)*
                $(c.arg($rest).clone(),)*
            ];
            b.call($target, args)
        })
    };
}

/// The entries.
pub(in crate::ops) const OPS: &[OpDef] = &[
    cast_to!("aten::_cast_Byte(Tensor self, bool non_blocking=False) -> Tensor", U8),
    cast_to!("aten::_cast_Char(Tensor self, bool non_blocking=False) -> Tensor", I8),
    cast_to!("aten::_cast_Short(Tensor self, bool non_blocking=False) -> Tensor", I16),
    cast_to!("aten::_cast_Int(Tensor self, bool non_blocking=False) -> Tensor", I32),
    cast_to!("aten::_cast_Long(Tensor self, bool non_blocking=False) -> Tensor", I64),
    cast_to!("aten::_cast_Half(Tensor self, bool non_blocking=False) -> Tensor", F16),
    cast_to!("aten::_cast_Float(Tensor self, bool non_blocking=False) -> Tensor", F32),
    cast_to!("aten::_cast_Double(Tensor self, bool non_blocking=False) -> Tensor", F64),
    in_dtype!(
        "aten::mm.dtype(Tensor self, Tensor mat2, ScalarType out_dtype) -> Tensor",
        "aten.mm.default",
        ["self", "mat2"],
        []
    ).autocast(Autocast::LOWER),
    in_dtype!(
        "aten::bmm.dtype(Tensor self, Tensor mat2, ScalarType out_dtype) -> Tensor",
        "aten.bmm.default",
        ["self", "mat2"],
        []
    ).autocast(Autocast::LOWER),
    in_dtype!(
        "aten::addmm.dtype(Tensor self, Tensor mat1, Tensor mat2, ScalarType out_dtype, *, Scalar beta=1, Scalar alpha=1) -> Tensor",
        "aten.addmm.default",
        ["self", "mat1", "mat2"],
        ["beta", "alpha"]
    ).autocast(Autocast::LOWER),
    in_dtype!(
        "aten::baddbmm.dtype(Tensor self, Tensor batch1, Tensor batch2, ScalarType out_dtype, *, Scalar beta=1, Scalar alpha=1) -> Tensor",
        "aten.baddbmm.default",
        ["self", "batch1", "batch2"],
        ["beta", "alpha"]
    ).autocast(Autocast::LOWER),
    composite!("aten::_int_mm(Tensor self, Tensor mat2) -> Tensor", |b, c| {
        let (x, y) = (b.cast(c.value("self")?, DType::I32)?, b.cast(c.value("mat2")?, DType::I32)?);
        b.call("aten.mm.default", vec![x.into(), y.into()])
    }),
    // The functional form of in-place variants whose counterpart has another overload name.
    alias!("aten::pow.Tensor(Tensor self, Tensor exponent) -> Tensor", "aten.pow.Tensor_Tensor").autocast(Autocast::FLOAT32_ON_GPU),
    alias!(
        "aten::float_power.Tensor(Tensor self, Tensor exponent) -> Tensor",
        "aten.float_power.Tensor_Tensor"
    ),
    alias!("aten::floor_divide.Tensor(Tensor self, Tensor other) -> Tensor", "aten.floor_divide.default"),
    alias!("aten::ldexp(Tensor self, Tensor other) -> Tensor", "aten.ldexp.Tensor"),
    alias!("aten::transpose(Tensor(a) self, int dim0, int dim1) -> Tensor(a)", "aten.transpose.int"),
    // Other names.
    alias!("aten::_stack(Tensor[] tensors, int dim=0) -> Tensor", "aten.stack.default"),
    alias!("aten::row_stack(Tensor[] tensors) -> Tensor", "aten.vstack.default"),
    alias!(
        "aten::special_xlogy.other_scalar(Tensor self, Scalar other) -> Tensor",
        "aten.xlogy.Scalar_Other"
    ),
    alias!("aten::special_xlogy.self_scalar(Scalar self, Tensor other) -> Tensor", "aten.xlogy.Scalar_Self"),
    alias!("aten::_logcumsumexp(Tensor self, int dim) -> Tensor", "aten.logcumsumexp.default"),
    alias!("aten::_aminmax(Tensor self) -> (Tensor, Tensor)", "aten.aminmax.default"),
    composite!("aten::_aminmax.dim(Tensor self, int dim, bool keepdim=False) -> (Tensor, Tensor)", |b, c| {
        b.call("aten.aminmax.default", c.args.to_vec())
    }),
    alias!("aten::view_as_complex_copy(Tensor self) -> Tensor", "aten.view_as_complex.default"),
    alias!("aten::view_as_real_copy(Tensor self) -> Tensor", "aten.view_as_real.default"),
    alias!("aten::_neg_view(Tensor(a) self) -> Tensor(a)", "aten.neg.default"),
    alias!("aten::_neg_view_copy(Tensor self) -> Tensor", "aten.neg.default"),
    alias!(
        "aten::_reshape_alias_copy(Tensor self, SymInt[] size, SymInt[] stride) -> Tensor",
        "aten._reshape_alias.default"
    ),
    alias!("aten::native_norm(Tensor self, Scalar p=2) -> Tensor", "aten.norm.Scalar"),
    composite!(
        "aten::native_norm.ScalarOpt_dim_dtype(Tensor self, Scalar? p, int[1] dim, bool keepdim, ScalarType? dtype) -> Tensor",
        |b, c| {
            let x = c.value("self")?;
            let dtype = c.opt_dtype("dtype")?.unwrap_or(b.dtype(x)?);
            let args = vec![
                x.into(),
                c.arg("p").clone(),
                c.arg("dim").clone(),
                c.arg("keepdim").clone(),
                dtype.into(),
            ];
            b.call("aten.norm.ScalarOpt_dim_dtype", args)
        }
    ),
    composite!("aten::norm_except_dim(Tensor v, int pow=2, int dim=0) -> Tensor", norm_except_dim),
    composite!(
        "aten::linalg__powsum(Tensor self, Scalar ord=2, int[1]? dim=None, bool keepdim=False, *, ScalarType? dtype=None) -> Tensor",
        power_sum
    ),
    composite!("aten::_dim_arange(Tensor like, int dim) -> Tensor", |b, c| {
        let sizes = b.sizes(c.value("like")?)?;
        let d = c.dim(c.int("dim")?, sizes.len())?;
        one(shape::iota(b, sizes.get(d).unwrap_or(&SymExpr::ONE), 0.into(), 1.into())?)
    }),
    composite!("aten::_shape_as_tensor(Tensor self) -> Tensor", |b, c| {
        let sizes = b.sizes(c.value("self")?)?;
        let mut parts = vec![b.full(&[SymExpr::ZERO], 0i64, DType::I64)?];
        for size in sizes {
            let args = vec![Arg::List(vec![1i64.into()]), size.into(), DType::I64.into()];
            parts.push(b.call1("prims.full", args)?);
        }
        one(shape::cat(b, &parts, 0)?)
    }),
    composite!("aten::_is_any_true(Tensor self) -> Tensor", |b, c| b
        .call("aten.any.default", c.args.to_vec())),
    composite!("aten::_is_all_true(Tensor self) -> Tensor", |b, c| b
        .call("aten.all.default", c.args.to_vec())),
    composite!("aten::_add_relu.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor", |b, c| {
        let sum = b.call1("aten.add.Tensor", c.args.to_vec())?;
        b.call("aten.relu.default", vec![sum.into()])
    }),
    composite!("aten::_add_relu.Scalar(Tensor self, Scalar other, Scalar alpha=1) -> Tensor", |b, c| {
        let sum = b.call1("aten.add.Scalar", c.args.to_vec())?;
        b.call("aten.relu.default", vec![sum.into()])
    }),
    composite!(
        "aten::_addmm_activation(Tensor self, Tensor mat1, Tensor mat2, *, Scalar beta=1, Scalar alpha=1, bool use_gelu=False) -> Tensor",
        |b, c| {
            let (_, args) = c.args.split_last().ok_or_else(|| c.invalid("has no arguments"))?;
            let y = b.call1("aten.addmm.default", args.to_vec())?;
            let f = if c.bool("use_gelu")? { "aten.gelu.default" } else { "aten.relu.default" };
            b.call(f, vec![y.into()])
        }
    ).autocast(Autocast::LOWER_ON_CPU),
    composite!("aten::_masked_scale(Tensor self, Tensor mask, float scale) -> Tensor", |b, c| {
        let scaled = b.call1("aten.mul.Tensor", vec![c.arg("self").clone(), c.arg("mask").clone()])?;
        b.call("aten.mul.Scalar", vec![scaled.into(), c.arg("scale").clone()])
    }),
    composite!(
        "aten::narrow.Tensor(Tensor(a) self, int dim, Tensor start, SymInt length) -> Tensor(a)",
        narrow
    ),
    composite!(
        "aten::_trilinear(Tensor i1, Tensor i2, Tensor i3, int[] expand1, int[] expand2, int[] expand3, int[] sumdim, int unroll_dim=1) -> Tensor",
        trilinear
    ),
    composite!("aten::_compute_linear_combination(Tensor input, Tensor coefficients) -> Tensor", |b, c| {
        let args = vec![
            c.arg("coefficients").clone(),
            c.arg("input").clone(),
            [1i64].as_slice().into(),
            [0i64].as_slice().into(),
        ];
        b.call("aten.tensordot.default", args)
    }),
    composite!("aten::conv_tbc(Tensor self, Tensor weight, Tensor bias, int pad=0) -> Tensor", conv_tbc).autocast(Autocast::LOWER),
    composite!("aten::log_sigmoid_forward(Tensor self) -> (Tensor output, Tensor buffer)", |b, c| {
        let x = c.value("self")?;
        let dtype = b.dtype(x)?;
        want_inexact(c, dtype)?;
        let y = b.call1("aten.log_sigmoid.default", vec![x.into()])?;
        // exp(-|x|)
        let wide = widen(b, x)?;
        let size = b.abs(wide)?;
        let minus = b.neg(size)?;
        let kept = b.exp(minus)?;
        Ok(smallvec![y, b.cast(kept, dtype)?])
    }),
    composite!(
        "aten::nll_loss_forward(Tensor self, Tensor target, Tensor? weight, int reduction, SymInt ignore_index) -> (Tensor output, Tensor total_weight)",
        nll_with_weight
    ),
    composite!(
        "aten::nll_loss2d_forward(Tensor self, Tensor target, Tensor? weight, int reduction, SymInt ignore_index) -> (Tensor output, Tensor total_weight)",
        nll_with_weight
    ),
    composite!(
        "aten::embedding_renorm(Tensor self, Tensor indices, float max_norm, float norm_type) -> Tensor",
        embedding_renorm
    ),
];

/// Convolutions whose names state an implementation.
pub(in crate::ops) const CONV_OPS: &[OpDef] = &[
    composite!(
        "aten::thnn_conv2d(Tensor self, Tensor weight, SymInt[2] kernel_size, Tensor? bias=None, SymInt[2] stride=[1, 1], SymInt[2] padding=[0, 0]) -> Tensor",
        |b, c| conv(b, c, "self", 2, false)
    ),
    composite!(
        "aten::_slow_conv2d_forward(Tensor self, Tensor weight, SymInt[2] kernel_size, Tensor? bias, SymInt[2] stride, SymInt[2] padding) -> Tensor",
        |b, c| conv(b, c, "self", 2, false)
    ),
    composite!(
        "aten::slow_conv3d(Tensor self, Tensor weight, SymInt[3] kernel_size, Tensor? bias=None, SymInt[3] stride=[1, 1, 1], SymInt[3] padding=[0, 0, 0]) -> Tensor",
        |b, c| conv(b, c, "self", 3, false)
    ),
    composite!(
        "aten::slow_conv3d_forward(Tensor self, Tensor weight, SymInt[3] kernel_size, Tensor? bias, SymInt[3] stride, SymInt[3] padding) -> Tensor",
        |b, c| conv(b, c, "self", 3, false)
    ),
    composite!(
        "aten::slow_conv_dilated2d(Tensor self, Tensor weight, SymInt[2] kernel_size, Tensor? bias=None, SymInt[2] stride=[1, 1], SymInt[2] padding=[0, 0], SymInt[2] dilation=[1, 1]) -> Tensor",
        |b, c| conv(b, c, "self", 2, false)
    ),
    composite!(
        "aten::slow_conv_dilated3d(Tensor self, Tensor weight, SymInt[3] kernel_size, Tensor? bias=None, SymInt[3] stride=[1, 1, 1], SymInt[3] padding=[0, 0, 0], SymInt[3] dilation=[1, 1, 1]) -> Tensor",
        |b, c| conv(b, c, "self", 3, false)
    ),
    composite!(
        "aten::_conv_depthwise2d(Tensor self, Tensor weight, SymInt[2] kernel_size, Tensor? bias, SymInt[2] stride, SymInt[2] padding, SymInt[2] dilation) -> Tensor",
        |b, c| conv(b, c, "self", 2, false)
    ),
    composite!(
        "aten::conv_depthwise3d(Tensor self, Tensor weight, SymInt[3] kernel_size, Tensor? bias, SymInt[3] stride, SymInt[3] padding, SymInt[3] dilation) -> Tensor",
        |b, c| conv(b, c, "self", 3, false)
    ),
    composite!(
        "aten::slow_conv_transpose2d(Tensor self, Tensor weight, SymInt[2] kernel_size, Tensor? bias=None, SymInt[2] stride=[1, 1], SymInt[2] padding=[0, 0], SymInt[2] output_padding=[0, 0], SymInt[2] dilation=[1, 1]) -> Tensor",
        |b, c| conv(b, c, "self", 2, true)
    ),
    composite!(
        "aten::slow_conv_transpose3d(Tensor self, Tensor weight, SymInt[3] kernel_size, Tensor? bias=None, SymInt[3] stride=[1, 1, 1], SymInt[3] padding=[0, 0, 0], SymInt[3] output_padding=[0, 0, 0], SymInt[3] dilation=[1, 1, 1]) -> Tensor",
        |b, c| conv(b, c, "self", 3, true)
    ),
    composite!(
        "aten::_nnpack_spatial_convolution(Tensor input, Tensor weight, Tensor? bias, SymInt[2] padding, SymInt[2] stride=[1, 1]) -> Tensor",
        |b, c| conv(b, c, "input", 2, false)
    ),
];

/// The number of groups follows from the sizes of input and weight: it is above one only in depthwise convolutions.
fn conv(b: &mut Builder<'_>, c: &Call<'_>, input: &str, n: usize, transposed: bool) -> Result<Outs, OpError> {
    let (x, w) = (c.value(input)?, c.value("weight")?);
    let has = |name: &str| c.op.schema.arg_index(name).is_some();
    let list = |name: &str, default: i64| -> Result<Arg, OpError> {
        let list = if has(name) { c.ints_n(name, n, default)? } else { vec![default; n] };
        Ok(list.as_slice().into())
    };
    let (sizes, window) = (b.sizes(x)?, b.sizes(w)?);
    let channels = sizes.len().checked_sub(n + 1).and_then(|d| sizes[d].as_const());
    let each = window.get(1).and_then(SymExpr::as_const);
    let groups = match (channels, each) {
        (Some(all), Some(each)) if !transposed && each > 0 => all / each,
        _ => 1,
    };
    let args = vec![
        x.into(),
        w.into(),
        c.arg("bias").clone(),
        list("stride", 1)?,
        list("padding", 0)?,
        list("dilation", 1)?,
        transposed.into(),
        list("output_padding", 0)?,
        groups.into(),
    ];
    b.call("aten.convolution.default", args)
}

/// Convolution over time of `[T, B, C]` with a weight `[window, C, O]`.
fn conv_tbc(b: &mut Builder<'_>, c: &Call<'_>) -> Result<Outs, OpError> {
    let (x, w) = (c.value("self")?, c.value("weight")?);
    if b.rank(x)? != 3 || b.rank(w)? != 3 {
        return Err(c.invalid("takes [time, batch, channels] and a weight of three dimensions"));
    }
    let (x, w) = (b.permute(x, &[1, 2, 0])?, b.permute(w, &[2, 1, 0])?);
    let pad = vec![x.into(), w.into(), c.arg("bias").clone(), 1i64.into(), c.arg("pad").clone()];
    let y = b.call1("aten.conv1d.default", pad)?;
    one(b.permute(y, &[2, 0, 1])?)
}

/// Norms of the slices along `dim`, or one of all for -1; other dimensions have size 1.
fn norm_except_dim(b: &mut Builder<'_>, c: &Call<'_>) -> Result<Outs, OpError> {
    let v = c.value("v")?;
    let (rank, dim) = (b.rank(v)?, c.int("dim")?);
    if dim == -1 {
        return b.call("aten.norm.Scalar", vec![v.into(), c.arg("pow").clone()]);
    }
    let d = c.dim(dim, rank)?;
    let others: Vec<i64> = (0..rank).filter(|o| *o != d).map(|o| o as i64).collect();
    if others.is_empty() {
        return b.call("aten.abs.default", vec![v.into()]);
    }
    let args = vec![v.into(), c.arg("pow").clone(), others.as_slice().into(), true.into()];
    b.call("aten.norm.ScalarOpt_dim", args)
}

/// `sum |x|^ord`.
fn power_sum(b: &mut Builder<'_>, c: &Call<'_>) -> Result<Outs, OpError> {
    let x = c.value("self")?;
    let dtype = c.opt_dtype("dtype")?.unwrap_or(b.dtype(x)?);
    want_inexact(c, dtype)?;
    let x = b.cast(x, dtype)?;
    let wide = widen(b, x)?;
    let size = b.call1("aten.abs.default", vec![wide.into()])?;
    let power = b.call1("aten.pow.Tensor_Scalar", vec![size.into(), c.arg("ord").clone()])?;
    let rank = b.rank(power)?;
    let dims = crate::ops::common::dims_or_all(c, "dim", rank)?;
    let sum = b.reduce(ReduceOp::Sum, power, &dims, c.bool("keepdim")?)?;
    one(b.cast(sum, dtype.to_real())?)
}

/// `length` elements from a position that a tensor holds, counted from the end where it is negative.
fn narrow(b: &mut Builder<'_>, c: &Call<'_>) -> Result<Outs, OpError> {
    let (x, start) = (c.value("self")?, c.value("start")?);
    let sizes = b.sizes(x)?;
    let d = c.dim(c.int("dim")?, sizes.len())?;
    let Some(n) = sizes.get(d) else { return Err(c.invalid("a 0-dim tensor has no dimension to narrow")) };
    let start = b.reshape(start, &[])?;
    let start = b.cast(start, DType::I64)?;
    let behind = b.add(start, n.clone())?;
    let negative = b.lt(start, 0i64)?;
    let start = b.select(negative, behind, start)?;
    let places = shape::iota(b, &c.sym("length")?, 0.into(), 1.into())?;
    let places = b.add(places, start)?;
    b.call("aten.index_select.default", vec![x.into(), (d as i64).into(), places.into()])
}

/// The product of three tensors with dimensions of size 1 inserted, summed over dimensions.
fn trilinear(b: &mut Builder<'_>, c: &Call<'_>) -> Result<Outs, OpError> {
    let mut product: Option<ValueId> = None;
    for (tensor, places) in [("i1", "expand1"), ("i2", "expand2"), ("i3", "expand3")] {
        let mut v = c.value(tensor)?;
        let added = c.ints(places)?;
        let rank = b.rank(v)? + added.len();
        let mut added: Vec<usize> = added.iter().map(|d| c.dim(*d, rank)).collect::<Result<_, _>>()?;
        added.sort_unstable();
        for d in added {
            v = b.unsqueeze(v, d)?;
        }
        product = Some(match product {
            Some(p) => b.call1("aten.mul.Tensor", vec![p.into(), v.into()])?,
            None => v,
        });
    }
    let product = product.ok_or_else(|| c.invalid("has no operand"))?;
    if c.ints("sumdim")?.is_empty() {
        return one(product);
    }
    b.call("aten.sum.dim_IntList", vec![product.into(), c.arg("sumdim").clone()])
}

/// The loss and the sum of the weights of the targets that count; 0 where nothing is summed.
fn nll_with_weight(b: &mut Builder<'_>, c: &Call<'_>) -> Result<Outs, OpError> {
    let x = c.value("self")?;
    let dtype = b.dtype(x)?;
    let loss = b.call1("aten.nll_loss_nd.default", c.args.to_vec())?;
    if c.int("reduction")? == 0 {
        return Ok(smallvec![loss, b.full(&[], 0i64, dtype)?]);
    }
    let target = b.cast(c.value("target")?, DType::I64)?;
    let counts = b.ne(target, c.arg("ignore_index").clone())?;
    let compute = dtype.compute();
    let weight = match c.opt_value("weight")? {
        Some(w) => {
            let class = b.select(counts, target, 0i64)?;
            let w = b.cast(w, compute)?;
            let taken = shape::index(b, w, &[class], 0)?;
            choose(b, counts, taken, 0.0, compute)?
        }
        None => b.cast(counts, compute)?,
    };
    let dims: Vec<usize> = (0..b.rank(weight)?).collect();
    let total = b.reduce(ReduceOp::Sum, weight, &dims, false)?;
    Ok(smallvec![loss, b.cast(total, dtype)?])
}

/// Rows that `indices` name scaled down to the norm `max_norm` where theirs is larger.
fn embedding_renorm(b: &mut Builder<'_>, c: &Call<'_>) -> Result<Outs, OpError> {
    let (x, indices) = (c.value("self")?, c.value("indices")?);
    let (dtype, sizes) = (b.dtype(x)?, b.sizes(x)?);
    let [rows, _] = &sizes[..] else { return Err(c.bad_arg("self", "must be a matrix")) };
    let flat = crate::ops::indexing::index::flat(b, indices)?;
    let flat = b.cast(flat, DType::I64)?;
    let none = b.full(std::slice::from_ref(rows), false, DType::Bool)?;
    let hit =
        b.call1("aten.index_fill.int_Scalar", vec![none.into(), 0i64.into(), flat.into(), true.into()])?;
    let hit = b.unsqueeze(hit, 1)?;
    let args = vec![x.into(), c.arg("norm_type").clone(), 0i64.into(), c.arg("max_norm").clone()];
    let scaled = b.call1("aten.renorm.default", args)?;
    one(choose(b, hit, scaled, x, dtype)?)
}
