//! Sequences and what is made of them: `range`, sample frequencies, Vandermonde matrices, filled diagonals, padded
//! batches of sequences.

use fx_ir::{Arg, ValueId};
use ir_core::{DType, Shape, SymExpr};
use kernel_ir::ScalarOp;

use super::common::{choose, one};
use super::shape;
use crate::promotion::DEFAULT_FLOAT;
use crate::{Builder, Call, OpDef, OpError, Outs};

/// The entries. `fill_diagonal` is no operator of ATen: it is what `fill_diagonal_` writes.
pub(super) const OPS: &[OpDef] = &[
    composite!(
        "aten::range(Scalar start, Scalar end, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor",
        |b, c| range(b, c, 1.0)
    ),
    composite!(
        "aten::range.step(Scalar start, Scalar end, Scalar step=1, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor",
        |b, c| range(b, c, c.float("step")?)
    ),
    composite!(
        "aten::fft_fftfreq(int n, float d=1., *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor",
        |b, c| {
            let n = c.int("n")?;
            let half = (n + 1) / 2;
            frequencies(b, c, n, |b, k| {
                let late = b.ge(k, half)?;
                let negated = b.sub(k, n)?;
                b.select(late, negated, k)
            })
        }
    ),
    composite!(
        "aten::fft_rfftfreq(int n, float d=1., *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor",
        |b, c| frequencies(b, c, c.int("n")? / 2 + 1, |_, k| Ok(k))
    ),
    composite!("aten::vander(Tensor x, int? N=None, bool increasing=False) -> Tensor", vander),
    composite!(
        "aten::fill_diagonal(Tensor self, Scalar fill_value, bool wrap=False) -> Tensor",
        fill_diagonal
    ),
    composite!(
        "aten::pad_sequence(Tensor[] sequences, bool batch_first=False, float padding_value=0., str padding_side=\"right\") -> Tensor",
        pad_sequence
    ),
];

/// `start + i * step` up to `end`, which is included.
fn range(b: &mut Builder<'_>, c: &Call<'_>, step: f64) -> Result<Outs, OpError> {
    let (start, end) = (c.float("start")?, c.float("end")?);
    let dtype = c.opt_dtype("dtype")?.unwrap_or(DEFAULT_FLOAT);
    let steps = ((end - start) / step).floor();
    if step == 0.0 || !steps.is_finite() || steps < 0.0 {
        return Err(c.invalid("`step` must lead from `start` to `end`"));
    }
    let places = shape::iota(b, &(steps as i64 + 1).into(), 0.into(), 1.into())?;
    let wide = b.cast(places, DType::F64)?;
    let scaled = b.mul(wide, step)?;
    let moved = b.add(scaled, start)?;
    one(b.cast(moved, dtype)?)
}

/// `count` numbers over `n * d`.
fn frequencies(
    b: &mut Builder<'_>,
    c: &Call<'_>,
    count: i64,
    number: impl FnOnce(&mut Builder<'_>, ValueId) -> Result<ValueId, OpError>,
) -> Result<Outs, OpError> {
    let n = c.int("n")?;
    if n <= 0 {
        return Err(c.bad_arg("n", "must be positive"));
    }
    let dtype = c.opt_dtype("dtype")?.unwrap_or(DEFAULT_FLOAT);
    let places = shape::iota(b, &count.into(), 0.into(), 1.into())?;
    let places = number(b, places)?;
    let wide = b.cast(places, DType::F64)?;
    let scaled = b.mul(wide, 1.0 / (n as f64 * c.float("d")?))?;
    one(b.cast(scaled, dtype)?)
}

/// Powers of the last dimension's elements, `[…, n, N]`, falling unless `increasing`.
fn vander(b: &mut Builder<'_>, c: &Call<'_>) -> Result<Outs, OpError> {
    let x = c.value("x")?;
    let sizes = b.sizes(x)?;
    let rank = sizes.len();
    let Some(last) = sizes.last() else { return Err(c.bad_arg("x", "must have a dimension")) };
    let count: SymExpr = c.opt_sym("N")?.unwrap_or_else(|| last.clone());
    let column = b.unsqueeze(x, rank)?;
    let powers = shape::iota_at(b, &count, rank, rank + 1)?;
    let powers = if c.bool("increasing")? { powers } else { shape::flip(b, powers, rank)? };
    one(b.call1("aten.pow.Tensor_Tensor", vec![column.into(), powers.into()])?)
}

/// The diagonal of a matrix, repeated below it with `wrap` where the matrix is tall; of more dimensions, which then have
/// one size, the elements with equal indices.
fn fill_diagonal(b: &mut Builder<'_>, c: &Call<'_>) -> Result<Outs, OpError> {
    let x = c.value("self")?;
    let (sizes, dtype) = (b.sizes(x)?, b.dtype(x)?);
    let rank = sizes.len();
    if rank < 2 || (rank > 2 && sizes.iter().any(|s| *s != sizes[0])) {
        return Err(c.bad_arg("self", "must have two dimensions, or more of one size"));
    }
    let mut row = shape::iota_at(b, &sizes[0], 0, rank)?;
    if rank == 2 && c.bool("wrap")? {
        // A row is left free between the repetitions.
        row = b.scalar_op(ScalarOp::Rem, &[row.into(), (&sizes[1] + 1).into()])?;
    }
    let mut hit: Option<ValueId> = None;
    for (d, size) in sizes.iter().enumerate().skip(1) {
        let place = shape::iota_at(b, size, d, rank)?;
        let same = b.eq(row, place)?;
        hit = Some(match hit {
            Some(hit) => b.and(hit, same)?,
            None => same,
        });
    }
    // There are two dimensions or more.
    let Some(hit) = hit else { return one(x) };
    one(choose(b, hit, c.scalar("fill_value")?, x, dtype)?)
}

/// Sequences `[length, …]` side by side, each filled up to the longest: `[longest, N, …]` or `[N, longest, …]`.
fn pad_sequence(b: &mut Builder<'_>, c: &Call<'_>) -> Result<Outs, OpError> {
    let list = c.values("sequences")?;
    let left = match c.opt_str("padding_side")? {
        Some("left") => true,
        Some("right") | None => false,
        Some(_) => return Err(c.bad_arg("padding_side", "must be `left` or `right`")),
    };
    let mut longest = SymExpr::ZERO;
    for &v in &list {
        let n =
            b.sizes(v)?.first().cloned().ok_or_else(|| c.bad_arg("sequences", "must have a dimension"))?;
        longest = shape::simplify(b, longest.sym_max(&n));
    }
    let mut parts = Vec::with_capacity(list.len());
    for v in list {
        let sizes = b.sizes(v)?;
        let missing = &longest - &sizes[0];
        let none: Shape = std::iter::repeat_n(SymExpr::ZERO, sizes.len()).collect();
        let mut more = none.clone();
        more[0] = missing;
        let (low, high) = if left { (more, none) } else { (none, more) };
        let interior = vec![0; sizes.len()];
        parts.push(shape::pad(b, v, &low, &high, &interior, c.float("padding_value")?)?);
    }
    let dim = i64::from(!c.bool("batch_first")?);
    one(b.call1("aten.stack.default", vec![Arg::values(parts), dim.into()])?)
}
