//! Products of dequantized values become products of integers: `Σ (a - z) s · b t = s t Σ (a - z) b`, where `b` are weights with
//! a zero point of 0 and neither factor varies along the sum. What follows (bias, rectifier, quantization) stays as it is, and is
//! fused as the epilogue of the product like any other arithmetic.
//!
//! Zero points that are numbers belong to the product; those that the data decides (dynamic quantization) are subtracted from its
//! result, times the sums of the weights' columns.

use fx_ir::{Arg, Graph, ValueId};
use ir_core::{DType, Scalar, Shape, SymExpr};
use kernel_ir::{ReduceOp, ScalarOp};
use prims::{Builder, Call, OpError};

use super::matching::{def, def_of, permutation, sizes, swaps_last_two, through};
use super::rewrite::{Rule, Site, apply};
use super::{PassCx, Stats};

const RULES: &[Rule] = &[product, convolution];

/// Most terms of a sum: more may exceed 32 bits.
const LONGEST: i64 = 1 << 16;

/// Applies every rule.
pub(super) fn run(graph: &mut Graph, cx: &PassCx) -> Stats {
    apply(graph, cx, RULES)
}

type Given = Result<Option<ValueId>, OpError>;

/// The value `(integers - zero) * factor`.
struct Dequantized {
    /// 8-bit integers.
    integers: ValueId,
    /// None is 0.
    zero: Option<Arg>,
    /// A number, or a value of the integers' sizes.
    factor: Arg,
}

/// The dequantized value that `v` is.
fn dequantized(graph: &Graph, v: ValueId) -> Option<Dequantized> {
    let call = def(graph, v).filter(|c| c.op.scalar_op() == Some(ScalarOp::Mul))?;
    let [x, y] = call.args else { return None };
    [(x, y), (y, x)].into_iter().find_map(|(moved, factor)| {
        let Arg::Value(moved) = moved else { return None };
        let (plain, zero) = match def(graph, *moved).filter(|c| c.op.scalar_op() == Some(ScalarOp::Sub)) {
            Some(Call { args: [Arg::Value(plain), zero], .. }) => (*plain, Some(zero.clone())),
            _ => (*moved, None),
        };
        let integers = through(graph, plain, "prims.convert")?;
        let meta = graph.meta(integers)?;
        let short = matches!(meta.dtype, DType::I8 | DType::U8) && graph.meta(plain)?.dtype == DType::F32;
        short.then(|| Dequantized { integers, zero, factor: factor.clone() })
    })
}

/// What all elements of an argument may have in common.
pub(super) enum Shared {
    /// They are this number.
    Number(f64),
    /// They are the only element of a value.
    Single(ValueId),
    /// They are those of a value that is broadcast to the argument.
    Broadcast(ValueId),
}

/// What all elements of an argument have in common.
pub(super) fn shared(graph: &Graph, arg: &Arg) -> Option<Shared> {
    let Arg::Value(v) = arg else { return arg.as_scalar().map(|s| Shared::Number(s.as_f64())) };
    let kept = through(graph, *v, "prims.expand")?;
    let single = sizes(graph, kept)?.iter().all(|s| *s == SymExpr::ONE);
    Some(if single { Shared::Single(kept) } else { Shared::Broadcast(kept) })
}

/// The zero point as a number of a dtype, where it is one.
fn number(zero: Option<&Arg>, dtype: DType) -> Option<i64> {
    let zero = zero.map_or(Some(0.0), |z| z.as_scalar().map(Scalar::as_f64))?;
    let range = if dtype == DType::U8 { 0.0..=255.0 } else { -128.0..=127.0 };
    (zero.fract() == 0.0 && range.contains(&zero)).then_some(zero as i64)
}

/// Weights: constant integers without a zero point.
fn weights(b: &Builder<'_>, site: &Site<'_>, v: ValueId) -> Option<Dequantized> {
    let found = dequantized(b.graph(), v)?;
    let symmetric = number(found.zero.as_ref(), DType::I8) == Some(0);
    let signed = b.graph().meta(found.integers)?.dtype == DType::I8;
    (symmetric && signed && site.is_constant(found.integers)).then_some(found)
}

/// Whether sums of this many terms are exact.
fn is_short(terms: &SymExpr) -> bool {
    terms.as_const().is_some_and(|n| n <= LONGEST)
}

/// `matmul(dequantized a, dequantized b)`.
fn product(b: &mut Builder<'_>, site: &Site<'_>) -> Given {
    let c = &site.call;
    if c.op.target != "prims.matmul" || site.meta.dtype != DType::F32 || site.meta.rank() != 2 {
        return Ok(None);
    }
    let (a, w) = (c.value("a")?, c.value("b")?);
    let Some((left, w)) = rows(b.graph(), a).zip(columns(b, site, w)) else { return Ok(None) };
    let a_sizes = b.sizes(a)?;
    if !is_short(&a_sizes[1]) {
        return Ok(None);
    }
    let dtype = b.dtype(left.integers)?;
    let (row, column) = ([a_sizes[0].clone(), SymExpr::ONE], [SymExpr::ONE, site.meta.sizes[1].clone()]);
    let (Some(row_factor), Some(column_factor)) =
        (factor_of(b, &left.factor, &row)?, factor_of(b, &w.factor, &column)?)
    else {
        return Ok(None);
    };
    let zero = number(left.zero.as_ref(), dtype);
    let moved = match &left.zero {
        Some(moved) if zero.is_none() => match factor_of(b, moved, &row)? {
            Some(Factor::Values(z)) => Some(z),
            _ => return Ok(None),
        },
        _ => None,
    };
    let left_integers = b.reshape(left.integers, &a_sizes)?;
    let right = if w.swapped { b.permute(w.integers, &[1, 0])? } else { w.integers };
    let args = vec![left_integers.into(), right.into(), zero.unwrap_or(0).into()];
    let mut sums = b.call1("prims.integer_matmul", args)?;
    if let Some(moved) = moved {
        sums = corrected(b, sums, moved, right, &[0])?;
    }
    scaled(b, sums, [column_factor, row_factor]).map(Some)
}

/// A factor on a product's result.
enum Factor {
    Number(f64),
    /// A value that broadcasts to the result.
    Values(ValueId),
}

/// A factor that is the same along one dimension of an operand as a value of these sizes, which has no such dimension; `None`
/// where it varies.
fn factor_of(b: &mut Builder<'_>, factor: &Arg, sizes: &[SymExpr]) -> Result<Option<Factor>, OpError> {
    Ok(Some(match shared(b.graph(), factor) {
        Some(Shared::Number(n)) => Factor::Number(n),
        Some(Shared::Single(v)) => {
            let ones: Shape = sizes.iter().map(|_| SymExpr::ONE).collect();
            Factor::Values(b.reshape(v, &ones)?)
        }
        Some(Shared::Broadcast(v)) if ir_core::numel(&b.sizes(v)?) == ir_core::numel(sizes) => {
            Factor::Values(b.reshape(v, sizes)?)
        }
        _ => return Ok(None),
    }))
}

/// The left operand of a product: dequantized rows, perhaps reshaped from more dimensions. A factor varies along rows alone.
fn rows(graph: &Graph, v: ValueId) -> Option<Dequantized> {
    let last = |v: ValueId| sizes(graph, v)?.last().cloned();
    let base = through(graph, v, "prims.reshape").filter(|base| last(*base) == last(v)).unwrap_or(v);
    let found = dequantized(graph, base)?;
    let constant_along_rows = |arg: &Arg| match shared(graph, arg) {
        Some(Shared::Broadcast(kept)) => last(kept) == Some(SymExpr::ONE),
        Some(_) => true,
        None => false,
    };
    let fits = constant_along_rows(&found.factor) && found.zero.as_ref().is_none_or(constant_along_rows);
    fits.then_some(found)
}

/// The right operand of a product.
struct Columns {
    integers: ValueId,
    factor: Arg,
    /// The integers are `[n, k]`.
    swapped: bool,
}

/// Weights `[k, n]`, perhaps transposed from `[n, k]`, whose factor varies along `n` alone.
fn columns(b: &Builder<'_>, site: &Site<'_>, v: ValueId) -> Option<Columns> {
    let graph = b.graph();
    let swap =
        def_of(graph, v, "prims.permute").filter(|c| permutation(c).is_some_and(|p| swaps_last_two(&p)));
    let (base, swapped) = match swap {
        Some(call) => (call.value("a").ok()?, true),
        None => (v, false),
    };
    let found = weights(b, site, base)?;
    let terms = usize::from(swapped);
    let fits = match shared(graph, &found.factor)? {
        Shared::Broadcast(kept) => sizes(graph, kept)?.get(terms) == Some(&SymExpr::ONE),
        _ => true,
    };
    let rank = sizes(graph, base)?.len();
    (fits && rank == 2).then_some(Columns { integers: found.integers, factor: found.factor, swapped })
}

/// `conv(dequantized input, dequantized weight)`.
fn convolution(b: &mut Builder<'_>, site: &Site<'_>) -> Given {
    let c = &site.call;
    if c.op.target != "prims.conv" || site.meta.dtype != DType::F32 || c.bool("transposed")? {
        return Ok(None);
    }
    let (x, w) = (c.value("input")?, c.value("weight")?);
    let Some((input, weight)) = dequantized(b.graph(), x).zip(weights(b, site, w)) else { return Ok(None) };
    let w_sizes = b.sizes(w)?;
    let rank = w_sizes.len();
    let mut channels: Shape = std::iter::repeat_n(SymExpr::ONE, rank).collect();
    channels[1] = w_sizes[0].clone();
    // One factor for all of the input, one for each channel of the result.
    let along_channels = match shared(b.graph(), &weight.factor) {
        Some(Shared::Broadcast(kept)) => sizes(b.graph(), kept).is_some_and(|s| s[0] == w_sizes[0]),
        found => found.is_some(),
    };
    if !along_channels || !is_short(&ir_core::numel(&w_sizes[1..])) {
        return Ok(None);
    }
    let ones: Shape = std::iter::repeat_n(SymExpr::ONE, rank).collect();
    let (Some(all), Some(each)) =
        (factor_of(b, &input.factor, &ones)?, factor_of(b, &weight.factor, &channels)?)
    else {
        return Ok(None);
    };
    let zero = number(input.zero.as_ref(), b.dtype(input.integers)?);
    let padded = c.ints("padding")?.iter().any(|p| *p != 0);
    let moved = match &input.zero {
        // Padding is the zero point, which has to be known.
        Some(moved) if zero.is_none() && !padded => match factor_of(b, moved, &ones)? {
            Some(Factor::Values(z)) => Some(z),
            _ => return Ok(None),
        },
        Some(_) if zero.is_none() => return Ok(None),
        _ => None,
    };
    let mut args = vec![input.integers.into(), weight.integers.into()];
    args.extend(["stride", "padding", "dilation", "groups"].map(|name| c.arg(name).clone()));
    args.push(zero.unwrap_or(0).into());
    let mut sums = b.call1("prims.integer_conv", args)?;
    if let Some(moved) = moved {
        let taps: Vec<usize> = (1..rank).collect();
        sums = corrected(b, sums, moved, weight.integers, &taps)?;
    }
    scaled(b, sums, [each, all]).map(Some)
}

/// `sums - zero * (sums of the weights over dims)`, in `i32`.
fn corrected(
    b: &mut Builder<'_>,
    sums: ValueId,
    zero: ValueId,
    weights: ValueId,
    dims: &[usize],
) -> Result<ValueId, OpError> {
    let out = b.sizes(sums)?;
    let weights = b.cast(weights, DType::I32)?;
    let total = b.reduce(ReduceOp::Sum, weights, dims, false)?;
    let channel = usize::from(out.len() > 1);
    let mut shape: Shape = out.iter().map(|_| SymExpr::ONE).collect();
    shape[channel] = out[channel].clone();
    let total = b.reshape(total, &shape)?;
    let (total, zero) = (b.expand(total, &out)?, b.cast(zero, DType::I32)?);
    let zero = b.expand(zero, &out)?;
    let moved = b.mul(zero, total)?;
    b.sub(sums, moved)
}

/// Sums as floats, times both factors; numbers join the factors of channels, which are constant.
fn scaled(b: &mut Builder<'_>, sums: ValueId, [each, all]: [Factor; 2]) -> Result<ValueId, OpError> {
    let y = b.cast(sums, DType::F32)?;
    let out = b.sizes(y)?;
    match (each, all) {
        (Factor::Number(t), Factor::Number(s)) => b.mul(y, s * t),
        (Factor::Values(t), Factor::Number(s)) | (Factor::Number(s), Factor::Values(t)) => {
            let t = b.mul(t, s)?;
            let t = b.expand(t, &out)?;
            b.mul(y, t)
        }
        (Factor::Values(t), Factor::Values(s)) => {
            let (t, s) = (b.expand(t, &out)?, b.expand(s, &out)?);
            let y = b.mul(y, t)?;
            b.mul(y, s)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{assert_unchanged, changes};
    use super::*;

    const OPERANDS: &str = "%x: u8[4, 6] = input \"x\"
%w: i8[3, 6] = parameter \"w\"
%t: f32[3, 1] = parameter \"t\"

%xf: f32[4, 6] = prims.convert(%x, f32)
%xz: f32[4, 6] = prims.sub(%xf, 7.0)
%xd: f32[4, 6] = prims.mul(%xz, 0.5)
%wf: f32[3, 6] = prims.convert(%w, f32)
%te: f32[3, 6] = prims.expand(%t, [3, 6])
%wd: f32[3, 6] = prims.mul(%wf, %te)
%wt: f32[6, 3] = prims.permute(%wd, [1, 0])";

    #[test]
    fn dequantized_operands_multiply_as_integers() {
        let body = format!("{OPERANDS}\n%y: f32[4, 3] = prims.matmul(%xd, %wt)\nreturn %y");
        let expected =
            "prims.reshape prims.permute prims.integer_matmul prims.convert prims.mul prims.expand prims.mul";
        changes(run, &PassCx::inference(), &body, expected);
        // Weights that change from call to call would be packed in each.
        assert_unchanged(run, &PassCx::training(), &body);
        // A zero point that is no number of the input's type, and a factor that varies along the sum.
        assert_unchanged(run, &PassCx::inference(), &body.replace("7.0", "300.0"));
        assert_unchanged(
            run,
            &PassCx::inference(),
            &body.replace("f32[3, 1] = parameter", "f32[1, 6] = parameter"),
        );
    }

    #[test]
    fn zero_points_of_the_data_are_subtracted_afterwards() {
        let body = format!("{OPERANDS}\n%y: f32[4, 3] = prims.matmul(%xd, %wt)\nreturn %y")
            .replace("\n\n%xf", "\n%z: i64[4, 1] = input \"z\"\n\n%zf: f32[4, 1] = prims.convert(%z, f32)\n%ze: f32[4, 6] = prims.expand(%zf, [4, 6])\n%xf")
            .replace("(%xf, 7.0)", "(%xf, %ze)");
        let mut after = super::super::testing::graph(&body);
        run(&mut after, &PassCx::inference());
        assert!(after.to_string().contains("prims.integer_matmul"), "{after}");
        let before = super::super::testing::graph(&body);
        let pairs = super::super::testing::evaluate(&before);
        for (x, y) in pairs[0].iter_f64().zip(super::super::testing::evaluate(&after)[0].iter_f64()) {
            assert!((x - y).abs() < 1e-4, "{x} {y}");
        }
    }

    #[test]
    fn convolutions_take_their_zero_point_for_padding() {
        let body = "%x: u8[1, 2, 5, 5] = input \"x\"
%w: i8[3, 2, 3, 3] = parameter \"w\"
%t: f32[3, 1, 1, 1] = parameter \"t\"

%xf: f32[1, 2, 5, 5] = prims.convert(%x, f32)
%xz: f32[1, 2, 5, 5] = prims.sub(%xf, 3.0)
%xd: f32[1, 2, 5, 5] = prims.mul(%xz, 0.25)
%wf: f32[3, 2, 3, 3] = prims.convert(%w, f32)
%te: f32[3, 2, 3, 3] = prims.expand(%t, [3, 2, 3, 3])
%wd: f32[3, 2, 3, 3] = prims.mul(%wf, %te)
%y: f32[1, 3, 5, 5] = prims.conv(%xd, %wd, [1, 1], [1, 1, 1, 1], [1, 1], false, [0, 0], 1)
return %y";
        let expected = "prims.reshape prims.integer_conv prims.convert prims.mul prims.expand prims.mul";
        changes(run, &PassCx::inference(), body, expected);
    }
}
