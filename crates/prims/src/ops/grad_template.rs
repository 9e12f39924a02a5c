//! The gradient of convolution: convolutions again.

use fx_ir::ValueId;
use ir_core::SymExpr;

use super::grad_scalar::{Grads, conj};
use super::shape;
use crate::{Builder, GradCall, OpError};

/// Spatial dimensions of a convolution whose gradient to a depthwise weight may have one more: backends have kernels of three.
const MAX_SPATIAL_DIMS: usize = 2;

/// The lists of a convolution call.
struct Window {
    stride: Vec<i64>,
    padding: Vec<i64>,
    dilation: Vec<i64>,
    groups: i64,
}

impl Window {
    /// With stride and dilation exchanged, and so much less padding behind as no window reaches.
    fn exchanged(&self, missing: &[Option<i64>]) -> Window {
        let mut padding = self.padding.clone();
        for (d, left) in missing.iter().enumerate() {
            padding[2 * d + 1] -= left.unwrap_or(0);
        }
        Window { stride: self.dilation.clone(), padding, dilation: self.stride.clone(), groups: self.groups }
    }

    fn call(
        &self,
        b: &mut Builder<'_>,
        x: ValueId,
        w: ValueId,
        transposed: bool,
        extra: &[i64],
    ) -> Result<ValueId, OpError> {
        b.call1(
            "prims.conv",
            vec![
                x.into(),
                w.into(),
                self.stride[..].into(),
                self.padding[..].into(),
                self.dilation[..].into(),
                transposed.into(),
                extra.into(),
                self.groups.into(),
            ],
        )
    }
}

/// To the input by the opposite convolution; to the weight by a convolution over the batch with stride and dilation
/// exchanged.
pub(super) fn conv(b: &mut Builder<'_>, call: &GradCall<'_>) -> Grads {
    let mut grads = vec![None; call.call.args.len()];
    let Some(Some(g)) = call.cotangents.first().copied() else { return Ok(grads) };
    let c = call.call;
    let (x, w) = (c.value("input")?, c.value("weight")?);
    let window = Window {
        stride: c.ints("stride")?,
        padding: c.ints("padding")?,
        dilation: c.ints("dilation")?,
        groups: c.int("groups")?,
    };
    let transposed = c.bool("transposed")?;
    // The tensor that windows lie in, and that with an element a window.
    let (big, small) = if transposed { (g, x) } else { (x, g) };
    let left = missing(b, &window, small, big, w)?;
    let extra = if transposed { vec![0; left.len()] } else { given(&left, &window) };
    // Of complex operands the conjugates.
    let (x, w) = (conj(b, x)?, conj(b, w)?);
    let direct = if transposed || by_phases(b, &window, w)? {
        None
    } else {
        direct_input_gradient(b, &window, g, w, &extra)?
    };
    let to_x = match direct {
        Some(to_x) => to_x,
        None => window.call(b, g, w, !transposed, &extra)?,
    };
    let sizes = b.sizes(x)?;
    grads[0] = Some(first_of(b, to_x, &sizes)?);
    let (big, small) = if transposed { (g, x) } else { (x, g) };
    let sizes = b.sizes(w)?;
    let to_w = weight_gradient(b, &window, big, small, &left)?;
    grads[1] = Some(first_of(b, to_w, &sizes)?);
    Ok(grads)
}

/// Whether the transposed convolution is better left one: with a stride a plain one would mostly multiply zeros. Libraries
/// compute it as it is, other backends take it apart into plain ones a remainder of the stride, which cannot be done with the
/// weight of groups that have several channels on both sides.
fn by_phases(b: &Builder<'_>, window: &Window, w: ValueId) -> Result<bool, OpError> {
    let sizes = b.sizes(w)?;
    let alone = window.groups == 1 || sizes[1] == SymExpr::ONE;
    Ok(alone && window.stride.iter().any(|s| *s > 1) && sizes[2..].iter().all(|n| n.as_const().is_some()))
}

/// The transposed convolution as a plain one, which backends have fast kernels for: the gradient spread out by the
/// stride, the weights turned round with their channels exchanged. `None` where the window is symbolic or smaller than
/// the padding.
fn direct_input_gradient(
    b: &mut Builder<'_>,
    window: &Window,
    g: ValueId,
    w: ValueId,
    extra: &[i64],
) -> Result<Option<ValueId>, OpError> {
    let sizes = b.sizes(w)?;
    let spatial = window.stride.len();
    let mut padding = Vec::with_capacity(2 * spatial);
    for d in 0..spatial {
        let Some(taps) = sizes[d + 2].as_const() else { return Ok(None) };
        let reach = (taps - 1) * window.dilation[d];
        padding.extend([reach - window.padding[2 * d], reach - window.padding[2 * d + 1] + extra[d]]);
    }
    if window.groups < 1 || padding.iter().any(|p| *p < 0) {
        return Ok(None);
    }
    let groups = SymExpr::from_i64(window.groups);
    let (out, per_in) = (sizes[0].floor_div(&groups), sizes[1].clone());
    let taps = &sizes[2..];
    // [g o, c, …] -> [g c, o, …]
    let split: Vec<SymExpr> =
        [groups.clone(), out.clone(), per_in.clone()].into_iter().chain(taps.iter().cloned()).collect();
    let split = b.reshape(w, &split)?;
    let mut order: Vec<usize> = (0..spatial + 3).collect();
    order.swap(1, 2);
    let exchanged = b.permute(split, &order)?;
    let joined: Vec<SymExpr> = [groups * per_in, out].into_iter().chain(taps.iter().cloned()).collect();
    let joined = b.reshape(exchanged, &joined)?;
    let dims: Vec<i64> = (2..spatial as i64 + 2).collect();
    let flipped = b.call1("aten.flip.default", vec![joined.into(), dims[..].into()])?;
    let spread = if window.stride.iter().all(|s| *s == 1) { g } else { spread(b, g, &window.stride)? };
    let plain = Window {
        stride: vec![1; spatial],
        padding,
        dilation: window.dilation.clone(),
        groups: window.groups,
    };
    plain.call(b, spread, flipped, false, &vec![0; spatial]).map(Some)
}

/// Zeros between the elements of the spatial dimensions, so that they are `stride` apart.
fn spread(b: &mut Builder<'_>, v: ValueId, stride: &[i64]) -> Result<ValueId, OpError> {
    let none = vec![0i64; stride.len() + 2];
    let between: Vec<i64> = [0, 0].into_iter().chain(stride.iter().map(|s| s - 1)).collect();
    let zero = ir_core::Scalar::Float(0.0);
    b.call1("prims.pad", vec![v.into(), none[..].into(), none[..].into(), between[..].into(), zero.into()])
}

/// Elements of each spatial dimension of `x` that no window of the convolution to `g` reaches, fewer than the stride; `None`
/// where sizes are symbolic and do not say.
fn missing(
    b: &Builder<'_>,
    window: &Window,
    g: ValueId,
    x: ValueId,
    w: ValueId,
) -> Result<Vec<Option<i64>>, OpError> {
    let (g, x, w) = (b.meta(g)?, b.meta(x)?, b.meta(w)?);
    let at = |d: usize| {
        let reach = (&w.sizes[d + 2] - 1) * window.dilation[d];
        let pad = window.padding[2 * d] + window.padding[2 * d + 1];
        let reached = (&g.sizes[d + 2] - 1) * window.stride[d] + reach + 1 - SymExpr::from_i64(pad);
        (&x.sizes[d + 2] - reached).as_const()
    };
    Ok((0..window.stride.len()).map(at).collect())
}

/// What the opposite convolution has to add to its result: what it would fall short of. Of symbolic sizes as much as there
/// may be, for what is too much is cut off.
fn given(missing: &[Option<i64>], window: &Window) -> Vec<i64> {
    missing.iter().zip(&window.stride).map(|(left, stride)| left.unwrap_or(stride - 1)).collect()
}

/// The first elements of every dimension.
fn first_of(b: &mut Builder<'_>, v: ValueId, sizes: &[SymExpr]) -> Result<ValueId, OpError> {
    let mut out = v;
    for (d, size) in sizes.iter().enumerate() {
        out = b.slice(out, d, SymExpr::ZERO, size.clone(), 1)?;
    }
    Ok(out)
}

/// `[small channels, big channels / groups, window…]`. What no window reaches is left out by so much less padding behind
/// (perhaps less than none); where sizes are symbolic the result may have more window than there is.
fn weight_gradient(
    b: &mut Builder<'_>,
    window: &Window,
    big: ValueId,
    small: ValueId,
    missing: &[Option<i64>],
) -> Result<ValueId, OpError> {
    let sizes = b.sizes(big)?;
    let groups = SymExpr::from_i64(window.groups);
    if window.groups > 1 && sizes[1] == groups && window.stride.len() <= MAX_SPATIAL_DIMS {
        return depthwise_weight_gradient(b, window, big, small, missing);
    }
    let (n, per_group) = (sizes[0].clone(), sizes[1].floor_div(&groups));
    // [n, g, c, …] -> [c, g, n, …]: the batch takes the place of the channels.
    let mut split = vec![n.clone(), groups.clone(), per_group.clone()];
    split.extend(sizes[2..].iter().cloned());
    let split = b.reshape(big, &split)?;
    let mut order: Vec<usize> = (0..sizes.len() + 1).collect();
    order.swap(0, 2);
    let transposed = b.permute(split, &order)?;
    let mut joined = vec![per_group, groups * n];
    joined.extend(sizes[2..].iter().cloned());
    let input = b.reshape(transposed, &joined)?;
    let weight = swap(b, small)?;
    let exchanged = window.exchanged(missing);
    let out = exchanged.call(b, input, weight, false, &vec![0; window.stride.len()])?;
    swap(b, out)
}

/// The same where a group has one channel of `big`: the batch is one more dimension of the window, so both operands are read
/// as they lie; among the channels it would have to be copied there.
fn depthwise_weight_gradient(
    b: &mut Builder<'_>,
    window: &Window,
    big: ValueId,
    small: ValueId,
    missing: &[Option<i64>],
) -> Result<ValueId, OpError> {
    // [n, c, …] -> [1, c, n, …], and [n, o, …] -> [o, 1, n, …].
    let input = swap(b, big)?;
    let input = b.unsqueeze(input, 0)?;
    let weight = swap(b, small)?;
    let weight = b.unsqueeze(weight, 1)?;
    let mut exchanged = window.exchanged(missing);
    exchanged.stride.insert(0, 1);
    exchanged.dilation.insert(0, 1);
    exchanged.padding.splice(0..0, [0, 0]);
    let out = exchanged.call(b, input, weight, false, &vec![0; window.stride.len() + 1])?;
    // [1, o, 1, …] -> [o, 1, …].
    shape::drop_dim(b, out, 0)
}

/// The first two dimensions exchanged.
fn swap(b: &mut Builder<'_>, v: ValueId) -> Result<ValueId, OpError> {
    let mut order: Vec<usize> = (0..b.rank(v)?).collect();
    order.swap(0, 1);
    b.permute(v, &order)
}
