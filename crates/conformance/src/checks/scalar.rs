//! Every scalar operator of the table in every dtype that it takes, and the conversions between dtypes.

use ir_core::{DType, Scalar};
use kernel_ir::{BodyBuilder, ScalarOp, StoreMode, takes};

use super::Cx;
use crate::build::{Build, loops, shape};
use crate::case::{Case, Fault, Tolerance};
use crate::values::{self, ordinary, rounded, special, tensor};

macro_rules! each {
    ($($name:ident $dtype:ident;)*) => {
        $(pub(super) fn $name(cx: &mut Cx) -> Result<(), Fault> { operators(cx, DType::$dtype) })*
    };
}
each! { bool Bool; u8 U8; i8 I8; i16 I16; i32 I32; i64 I64; f32 F32; f64 F64; }

fn operators(cx: &mut Cx, dtype: DType) -> Result<(), Fault> {
    let (first, second) = cx.by_effort((24, 5), (usize::MAX, 40));
    let ops = ScalarOp::ALL.iter().filter(|op| takes(**op, dtype));
    cx.cases(ops.map(|op| operator(*op, dtype, first, second)))
}

/// One operator over all pairs of the first `first` and `second` values of its dtype.
fn operator(op: ScalarOp, dtype: DType, first: usize, second: usize) -> Result<Case, Fault> {
    let operands = operands(op, dtype, first, second);
    let n = operands[0].1.len();
    let mut b = Build::new(op.name());
    let inputs: Vec<_> = operands.iter().map(|(d, _)| b.input(*d, shape(&[n as i64]))).collect();
    let mut body = BodyBuilder::new();
    let args: Vec<_> =
        inputs.iter().zip(&operands).map(|(buf, (d, _))| body.load(*buf, *d, loops(1))).collect();
    let value = body.op(op, &args);
    let y = b.output(body.dtype(value), shape(&[n as i64]));
    body.store(y, loops(1), value, StoreMode::Write);
    b.point(shape(&[n as i64]), body);
    let tensors = operands.iter().map(|(d, v)| tensor(*d, &[n], v)).collect::<Result<_, _>>()?;
    Ok(Case::new(format!("{} {dtype}", op.name()), b.finish(), tensors).tolerance(tolerance(op)))
}

/// Dtype and values of each operand; all of one length, which is not a multiple of any vector's.
fn operands(op: ScalarOp, dtype: DType, first: usize, second: usize) -> Vec<(DType, Vec<Scalar>)> {
    let mut values: Vec<Scalar> = special(dtype).into_iter().take(first).collect();
    values.extend(ordinary(dtype, 37.min(first), 5));
    if op.arity() == 1 {
        return vec![(dtype, values)];
    }
    let few: Vec<Scalar> = values.iter().copied().take(second).collect();
    let pairs = values.iter().flat_map(|a| few.iter().map(move |b| (*a, *b)));
    let (mut a, mut b): (Vec<Scalar>, Vec<Scalar>) = pairs.unzip();
    if a.len().is_multiple_of(2) {
        a.push(values[0]);
        b.push(values[0]);
    }
    match op {
        ScalarOp::Select => {
            let mask = (0..a.len()).map(|k| Scalar::Bool(k % 3 != 1)).collect();
            vec![(DType::Bool, mask), (dtype, a), (dtype, b)]
        }
        ScalarOp::Philox => {
            let index = (0..a.len() as i64).map(Scalar::Int).collect();
            vec![(dtype, a), (dtype, b), (dtype, index)]
        }
        _ => vec![(dtype, a), (dtype, b)],
    }
}

/// Arithmetic is rounded correctly; transcendental functions need not be.
fn tolerance(op: ScalarOp) -> Tolerance {
    use ScalarOp as O;
    match op {
        O::Add
        | O::Sub
        | O::Mul
        | O::Div
        | O::Min
        | O::Max
        | O::CopySign
        | O::NextAfter
        | O::Neg
        | O::Abs => Tolerance::EXACT,
        O::Floor | O::Ceil | O::Trunc | O::Round | O::Sqrt | O::Select | O::Rem => Tolerance::EXACT,
        _ => Tolerance { units: 64.0, absolute: 0.0 },
    }
}

const ALL: &[DType] = &[
    DType::Bool,
    DType::U8,
    DType::I8,
    DType::I16,
    DType::I32,
    DType::I64,
    DType::F16,
    DType::BF16,
    DType::F32,
    DType::F64,
];

pub(super) fn casts(cx: &mut Cx) -> Result<(), Fault> {
    let pairs = ALL.iter().flat_map(|from| ALL.iter().map(move |to| (*from, *to)));
    let casts = pairs.clone().filter(|(from, to)| from != to).map(|(from, to)| cast(from, to, false));
    let same_size = |(from, to): &(DType, DType)| from.size() == to.size() && from != to;
    // Bytes other than 0 and 1 are not truth values.
    let bits = pairs.filter(same_size).filter(|(_, to)| *to != DType::Bool).map(|(a, b)| cast(a, b, true));
    cx.cases(casts.chain(bits))
}

fn cast(from: DType, to: DType, bits: bool) -> Result<Case, Fault> {
    let kind = if bits { "bits of" } else { "from" };
    let fits = |v: &Scalar| {
        // Conversions of values that the target cannot represent are not the same on all devices.
        !(from.is_float() && to.is_int())
            || (v.as_f64().abs() < 120.0 && (to != DType::U8 || v.as_f64() >= 0.0))
    };
    // The payload of a `NaN` may change on its way through a register; its bits are not compared.
    let whole = |v: &Scalar| !(bits && v.as_f64().is_nan());
    let mut numbers: Vec<Scalar> = special(from).into_iter().chain(ordinary(from, 21, 3)).collect();
    numbers.retain(|v| (bits || fits(v)) && whole(v));
    if bits && to.is_float() {
        // Integers whose bits are a signalling `NaN` may come back quiet.
        numbers =
            ordinary(from, 33, 4).into_iter().map(|v| rounded(from, Scalar::Int(v.as_i64().abs()))).collect();
    }
    let n = numbers.len();
    let mut b = Build::new("cast");
    let (x, y) = (b.input(from, shape(&[n as i64])), b.output(to, shape(&[n as i64])));
    let mut body = BodyBuilder::new();
    let v = body.load(x, from, loops(1));
    let v = if bits { body.push(to, kernel_ir::InstKind::Bitcast(v)) } else { body.cast(v, to) };
    body.store(y, loops(1), v, StoreMode::Write);
    b.point(shape(&[n as i64]), body);
    Ok(Case::new(format!("{to} {kind} {from}"), b.finish(), vec![tensor(from, &[n], &numbers)?]))
}

/// A program for each class of dtype.
pub(super) fn samples() -> Result<Vec<Case>, Fault> {
    let picks = [
        (ScalarOp::Tanh, DType::F32),
        (ScalarOp::Div, DType::F64),
        (ScalarOp::Shl, DType::I16),
        (ScalarOp::And, DType::Bool),
        (ScalarOp::Igamma, DType::F32),
        (ScalarOp::Philox, DType::I64),
    ];
    let mut all = picks.into_iter().map(|(op, d)| operator(op, d, 6, 3)).collect::<Result<Vec<_>, _>>()?;
    all.push(cast(DType::BF16, DType::F32, false)?);
    all.push(half()?);
    Ok(all)
}

/// `f16` in and out with arithmetic between, as in mixed precision.
fn half() -> Result<Case, Fault> {
    let mut b = Build::new("half");
    let (x, y) = (b.input(DType::F16, shape(&[9])), b.output(DType::F16, shape(&[9])));
    let mut body = BodyBuilder::new();
    let v = body.load(x, DType::F16, loops(1));
    let v = body.cast(v, DType::F32);
    let v = body.op(ScalarOp::Exp, &[v]);
    let v = body.cast(v, DType::F16);
    body.store(y, loops(1), v, StoreMode::Write);
    b.point(shape(&[9]), body);
    Ok(Case::new("half", b.finish(), vec![values::filled(DType::F16, &[9], 2)?]))
}
