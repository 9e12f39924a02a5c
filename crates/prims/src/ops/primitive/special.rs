//! The greatest common divisor, a prim because it iterates.

use fx_ir::{Arg, ValueId, ValueType};
use ir_core::DType;
use kernel_ir::{ScalarOp, Val};
use smallvec::SmallVec;
use tensor::Tensor;

use crate::builder::tensor;
use crate::ops::primitive::shape::one;
use crate::shard_rule::{Passes, ShardRule};
use crate::{
    Autocast, BatchRule, Call, ComplexRule, Grad, Kind, LoopCx, Lower, MetaCx, OpDef, OpError, RefCall,
    RefOut, Reference, Tolerance,
};

type Types = SmallVec<[ValueType; 1]>;

/// The entries.
pub(in crate::ops) const OPS: &[OpDef] = &[OpDef {
    schema: "prims::gcd(Tensor a, Tensor b) -> Tensor",
    kind: Kind::Prim {
        doc: "The greatest common divisor of integers of one dtype; not negative, 0 for two zeros.",
        meta: |cx, call| meta_pair(cx, call, "a", "b", DType::is_int),
        lower: Lower::Loop(lower_gcd),
        complex: ComplexRule::REAL_ONLY,
        batch: BatchRule::Leading,
        shard: ShardRule::Pointwise(Passes::No),
        reference: Reference::Fn(ref_gcd),
    },
    grad: Grad::NotDifferentiable("it works on integers"),
    tolerance: Tolerance::EXACT,
    autocast: Autocast::NONE,
    samples: |s| {
        s.add(
            vec![s.ints("a", &[20], 100), s.ints("b", &[20], 30)],
            vec![Arg::Value(ValueId(0)), Arg::Value(ValueId(1))],
        )
    },
}];

fn meta_pair(
    cx: &MetaCx<'_>,
    call: &Call<'_>,
    a: &str,
    b: &str,
    takes: fn(DType) -> bool,
) -> Result<Types, OpError> {
    let (a, b) = (cx.meta(call, a)?, cx.meta(call, b)?);
    if !takes(a.dtype) {
        return Err(OpError::DType { op: call.name().into(), dtype: a.dtype });
    }
    let what = || format!("{a} and {b} differ in dtype or sizes");
    if a.dtype != b.dtype {
        return Err(call.invalid(what()));
    }
    cx.equal_sizes(call, &a.sizes, &b.sizes, what)?;
    Ok(tensor(a.dtype, a.sizes.iter().cloned()))
}

/// Euclid's steps for a dtype: Fibonacci numbers take the most.
fn gcd_steps(dtype: DType) -> usize {
    dtype.size() * 8 * 3 / 2
}

fn lower_gcd(cx: &mut LoopCx<'_>) -> Result<Val, OpError> {
    let index = cx.index.clone();
    let mut a = cx.load_arg("a", index.clone())?;
    let mut b = cx.load_arg("b", index)?;
    let dtype = cx.b.dtype(a);
    let zero = cx.b.constant(0i64, dtype);
    for _ in 0..gcd_steps(dtype) {
        // The remainder by zero is zero: a finished pair stays.
        let done = cx.b.op(ScalarOp::Eq, &[b, zero]);
        let rest = cx.b.op(ScalarOp::Rem, &[a, b]);
        (a, b) = (cx.b.select(done, a, b), rest);
    }
    Ok(if dtype == DType::U8 { a } else { cx.b.op(ScalarOp::Abs, &[a]) })
}

fn ref_gcd(c: &RefCall<'_>) -> Result<RefOut, OpError> {
    let (a, b) = (c.tensor("a")?, c.tensor("b")?);
    let gcd = |(mut a, mut b): (i64, i64)| {
        while b != 0 {
            (a, b) = (b, a.wrapping_rem(b));
        }
        a.wrapping_abs()
    };
    let values: Vec<i64> = a.iter_i64().zip(b.iter_i64()).map(gcd).collect();
    one(c, Tensor::from_vec(values, a.sizes()).and_then(|t| t.to_dtype(c.out().0)))
}
