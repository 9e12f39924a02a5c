//! The batching rule of convolutions: the batch becomes samples, channels or groups, or, where its size is a symbol, the
//! batch of a matrix product over windows. No entries.

use fx_ir::{Arg, ValueId};
use ir_core::{Scalar, Shape, SymExpr, numel};

use super::batch::folded;
use super::shape::{self, Made, out};
use crate::{BatchCall, Builder, OpError};

/// Inputs of a batch are more inputs; weights of a batch are more channels of the result; where both differ, each element
/// is a group of its own.
pub(super) fn conv(b: &mut Builder<'_>, call: &BatchCall<'_>) -> Made {
    let (x, w) = (call.value("input")?, call.value("weight")?);
    match (call.is_batched(x), call.is_batched(w)) {
        (true, false) => {
            let n = call.sizes(b, x)?[0].clone();
            let x = folded(b, call, x)?;
            let v = b.call1(&call.call.op.target, call.args_with("input", x))?;
            out(shape::split_dim(b, v, 0, &[call.size.clone(), n])?)
        }
        (false, _) => conv_weights(b, call, w),
        (true, true) => conv_groups(b, call, x, w),
    }
}

/// Channels of the result are `[groups, channels / groups]`: the batch goes between, so that groups stay together.
fn conv_weights(b: &mut Builder<'_>, call: &BatchCall<'_>, w: ValueId) -> Made {
    let groups = SymExpr::from_i64(call.call.int("groups")?);
    let sizes = call.sizes(b, w)?;
    let (w, channels) = if call.call.bool("transposed")? {
        // [batch, c, o, …] -> [c, batch o, …]
        let w = shape::move_dim(b, w, 0, 1)?;
        (shape::merge_dims(b, w, 1, 2)?, sizes[1].clone())
    } else {
        // [batch, g o, c, …] -> [g batch o, c, …]
        let channels = sizes[0].floor_div(&groups);
        let w = shape::split_dim(b, w, 1, &[groups.clone(), channels.clone()])?;
        let w = shape::move_dim(b, w, 0, 1)?;
        (shape::merge_dims(b, w, 0, 3)?, channels)
    };
    let v = b.call1(&call.call.op.target, call.args_with("weight", w))?;
    // [n, g batch o, …] -> [batch, n, g o, …]
    let v = shape::split_dim(b, v, 1, &[groups, call.size.clone(), channels])?;
    let v = shape::move_dim(b, v, 2, 0)?;
    out(shape::merge_dims(b, v, 2, 2)?)
}

fn conv_groups(b: &mut Builder<'_>, call: &BatchCall<'_>, x: ValueId, w: ValueId) -> Made {
    let Some(size) = call.size.as_const() else { return conv_windows(b, call, x, w) };
    if size == 0 {
        return conv_of_nothing(b, call, x, w);
    }
    let x = shape::move_dim(b, x, 0, 1)?;
    let x = shape::merge_dims(b, x, 1, 2)?;
    let w = shape::merge_dims(b, w, 0, 2)?;
    let mut args = call.args_with("groups", call.call.int("groups")? * size);
    (args[0], args[1]) = (x.into(), w.into());
    let v = b.call1(&call.call.op.target, args)?;
    let channels = b.sizes(v)?[1].floor_div(call.size);
    let v = shape::split_dim(b, v, 1, &[call.size.clone(), channels])?;
    out(shape::move_dim(b, v, 1, 0)?)
}

/// A batch of no elements: the sizes of one element's result, and nothing in it.
fn conv_of_nothing(b: &mut Builder<'_>, call: &BatchCall<'_>, x: ValueId, w: ValueId) -> Made {
    let mut args = call.call.args.to_vec();
    for (i, v) in [(0, x), (1, w)] {
        let (sizes, dtype) = (call.sizes(b, v)?, b.dtype(v)?);
        args[i] = b.full(&sizes, 0i64, dtype)?.into();
    }
    let v = b.call1(&call.call.op.target, args)?;
    let (sizes, dtype) = (b.sizes(v)?, b.dtype(v)?);
    out(b.full(&call.with_batch(&sizes), 0i64, dtype)?)
}

/// A plain convolution of a batch with weights of its own.
struct Plain {
    x: ValueId,
    w: ValueId,
    stride: Vec<i64>,
    /// Before and after each spatial dimension; negative amounts cut.
    padding: Vec<[i64; 2]>,
    dilation: Vec<i64>,
    groups: SymExpr,
    /// Sizes of the window.
    taps: Vec<i64>,
}

/// Windows of the inputs as rows, weights as columns: one product a group and element of the batch.
fn conv_windows(b: &mut Builder<'_>, call: &BatchCall<'_>, x: ValueId, w: ValueId) -> Made {
    let plain = Plain::of(b, call, x, w)?;
    let one = |sizes: Shape| -> Shape { sizes[1..].iter().cloned().collect() };
    let (xs, ws) = (one(b.sizes(plain.x)?), one(b.sizes(plain.w)?));
    let spatial = plain.taps.len();
    let mut space = Shape::new();
    for d in 0..spatial {
        let [before, after] = plain.padding[d];
        let reach = (plain.taps[d] - 1) * plain.dilation[d];
        let room = &xs[d + 2] + (before + after - reach - 1);
        space.push(room.floor_div(&SymExpr::from_i64(plain.stride[d])) + 1);
    }
    let low: Vec<i64> = plain.padding.iter().map(|p| p[0]).collect();
    let zero = Scalar::zero(b.dtype(plain.x)?);
    let lists = [plain.taps[..].into(), plain.stride[..].into(), plain.dilation[..].into(), low[..].into()];
    let args = [plain.x.into(), Arg::from(&space[..])].into_iter().chain(lists).chain([zero.into()]);
    let windows = b.call1("prims.window", args.collect())?;
    let (groups, per_in, per_out) = (plain.groups.clone(), ws[1].clone(), ws[0].floor_div(&plain.groups));
    // [batch, n, g c, space…, window…] -> [batch, g, n space…, c window…]
    let rows = shape::split_dim(b, windows, 2, &[groups.clone(), per_in.clone()])?;
    let order: Vec<usize> =
        [0, 2, 1].into_iter().chain(4..4 + spatial).chain([3]).chain(4 + spatial..4 + 2 * spatial).collect();
    let rows = b.permute(rows, &order)?;
    let points = &xs[0] * &numel(&space);
    let depth = &per_in * &SymExpr::from_i64(plain.taps.iter().product());
    let rows = b.reshape(rows, &call.with_batch(&[groups.clone(), points, depth.clone()]))?;
    let columns = b.reshape(plain.w, &call.with_batch(&[groups.clone(), per_out.clone(), depth]))?;
    let columns = b.permute(columns, &[0, 1, 3, 2])?;
    let v = b.call1("prims.matmul", vec![rows.into(), columns.into()])?;
    // [batch, g, n space…, o] -> [batch, n, g o, space…]
    let parts: Shape = std::iter::once(&xs[0]).chain(&space).cloned().collect();
    let v = shape::split_dim(b, v, 2, &parts)?;
    let order: Vec<usize> = [0, 2, 1, 3 + spatial].into_iter().chain(3..3 + spatial).collect();
    let v = b.permute(v, &order)?;
    out(shape::merge_dims(b, v, 2, 2)?)
}

impl Plain {
    /// The call, a transposed convolution turned into a plain one: inputs spread out by the stride, weights turned round
    /// with their channels exchanged.
    fn of(b: &mut Builder<'_>, call: &BatchCall<'_>, x: ValueId, w: ValueId) -> Result<Plain, OpError> {
        let c = call.call;
        let sizes = call.sizes(b, w)?;
        let mut taps = Vec::new();
        for size in &sizes[2..] {
            taps.push(shape::known(
                c,
                size,
                "window of a convolution with weights in a batch of unknown size",
            )?);
        }
        let pairs = c.ints("padding")?;
        let padding = pairs.chunks(2).map(|p| [p[0], p[p.len() - 1]]).collect();
        let (stride, dilation) = (c.ints("stride")?, c.ints("dilation")?);
        let groups = SymExpr::from_i64(c.int("groups")?);
        let mut plain = Plain { x, w, stride, padding, dilation, groups, taps };
        if c.bool("transposed")? {
            plain.add_term(b, call, &c.ints("output_padding")?)?;
        }
        Ok(plain)
    }

    fn add_term(&mut self, b: &mut Builder<'_>, call: &BatchCall<'_>, extra: &[i64]) -> Result<(), OpError> {
        let spatial = self.taps.len();
        let none = vec![SymExpr::ZERO; spatial + 3];
        let between: Vec<i64> = [0, 0, 0].into_iter().chain(self.stride.iter().map(|s| s - 1)).collect();
        let zero = Scalar::zero(b.dtype(self.x)?);
        self.x = shape::pad(b, self.x, &none, &none, &between, zero)?;
        let per_in = call.sizes(b, self.w)?[0].floor_div(&self.groups);
        let w = shape::split_dim(b, self.w, 1, &[self.groups.clone(), per_in])?;
        let w = shape::swap(b, w, 2, 3)?;
        let mut w = shape::merge_dims(b, w, 1, 2)?;
        for (d, extra) in extra.iter().enumerate() {
            w = shape::flip(b, w, d + 3)?;
            let reach = (self.taps[d] - 1) * self.dilation[d];
            let [before, after] = self.padding[d];
            self.padding[d] = [reach - before, reach - after + extra];
        }
        (self.w, self.stride) = (w, vec![1; spatial]);
        Ok(())
    }
}
