//! Identities with a meaning for passes (the gradient stop `detach`, `barrier`), and the parts of complex numbers.

use fx_ir::{Arg, ValueId, ValueType};
use ir_core::{DType, Scalar};
use smallvec::SmallVec;
use tensor::{Complex, Tensor};

use crate::builder::tensor;
use crate::ops::primitive::shape::one;
use crate::shard_rule::{Passes, ShardRule};
use crate::{
    Autocast, BatchRule, Call, ComplexRule, Grad, Kind, Lower, MetaCx, OpDef, OpError, RefCall, RefOut,
    Reference, Tolerance,
};

type Types = SmallVec<[ValueType; 1]>;

const NO_COMPLEX: &str = "kernels have no complex numbers";

/// The entries.
pub(in crate::ops) const OPS: &[OpDef] = &[
    OpDef {
        schema: "prims::detach(Tensor a) -> Tensor",
        kind: Kind::Prim {
            doc: "The tensor itself, through which nothing is differentiated.",
            meta: |cx, call| {
                let a = cx.meta(call, "a")?;
                Ok(tensor(a.dtype, a.sizes.iter().cloned()))
            },
            lower: Lower::Loop(|cx| {
                let index = cx.index.clone();
                cx.load_arg("a", index)
            }),
            complex: ComplexRule::Parts,
            batch: BatchRule::Leading,
            shard: ShardRule::Pointwise(Passes::Moves),
            reference: Reference::Fn(|c| Ok(vec![c.tensor("a")?.clone()])),
        },
        grad: Grad::NotDifferentiable("it stops the gradient"),
        tolerance: Tolerance::EXACT,
        autocast: Autocast::NONE,
        samples: |s| s.add(vec![s.float("a", &[2, 3])], vec![Arg::Value(ValueId(0))]),
    },
    OpDef {
        schema: "prims::barrier(Tensor a) -> Tensor",
        kind: Kind::Prim {
            doc: "The tensor itself, which no pass may take for `a`: what is recomputed from it stays separate from what \
                  was computed from `a`.",
            meta: |cx, call| {
                let a = cx.meta(call, "a")?;
                Ok(tensor(a.dtype, a.sizes.iter().cloned()))
            },
            lower: Lower::Loop(|cx| {
                let index = cx.index.clone();
                cx.load_arg("a", index)
            }),
            complex: ComplexRule::Parts,
            batch: BatchRule::Leading,
            shard: ShardRule::Pointwise(Passes::Moves),
            reference: Reference::Fn(|c| Ok(vec![c.tensor("a")?.clone()])),
        },
        grad: Grad::Rule(|_, call| Ok(vec![call.cotangents.first().copied().flatten()])),
        tolerance: Tolerance::EXACT,
        autocast: Autocast::NONE,
        samples: |s| s.add(vec![s.float("a", &[2, 3])], vec![Arg::Value(ValueId(0))]),
    },
    OpDef {
        schema: "prims::with_gradient_of(Tensor value, Tensor other) -> Tensor",
        kind: Kind::Prim {
            doc: "The elements of `value`, through which nothing is differentiated: the whole cotangent goes to \
                  `other`, a tensor of the same dtype and shape whose elements are not read.",
            meta: |cx, call| {
                let (value, other) = (cx.meta(call, "value")?, cx.meta(call, "other")?);
                let what = || format!("{value} and {other} differ in dtype or shape");
                if value.dtype != other.dtype {
                    return Err(call.invalid(what()));
                }
                cx.equal_sizes(call, &value.sizes, &other.sizes, what)?;
                Ok(tensor(value.dtype, value.sizes.iter().cloned()))
            },
            lower: Lower::Loop(|cx| {
                let index = cx.index.clone();
                cx.load_arg("value", index)
            }),
            complex: ComplexRule::Parts,
            batch: BatchRule::Leading,
            shard: ShardRule::Pointwise(Passes::No),
            reference: Reference::Fn(|c| Ok(vec![c.tensor("value")?.clone()])),
        },
        grad: Grad::Rule(|_, call| Ok(vec![None, call.cotangents.first().copied().flatten()])),
        tolerance: Tolerance::EXACT,
        autocast: Autocast::NONE,
        // One tensor in both positions: only then is the gradient the derivative.
        samples: |s| {
            s.add(vec![s.float("a", &[2, 3])], vec![Arg::Value(ValueId(0)), Arg::Value(ValueId(0))]);
        },
    },
    OpDef {
        schema: "prims::real(Tensor a) -> Tensor",
        kind: Kind::Prim {
            doc: "The real part of a complex tensor.",
            meta: meta_part,
            lower: Lower::Unsupported(NO_COMPLEX),
            complex: ComplexRule::Rule(crate::ops::complex_numbers::prims::real),
            batch: BatchRule::Leading,
            shard: ShardRule::Pointwise(Passes::No),
            reference: Reference::Fn(|c| part(c, |z| z.re)),
        },
        grad: Grad::Rule(crate::ops::gradients::index::real),
        tolerance: Tolerance::EXACT,
        autocast: Autocast::NONE,
        samples: |s| s.add(vec![complex_sample()], vec![Arg::Value(ValueId(0))]),
    },
    OpDef {
        schema: "prims::imag(Tensor a) -> Tensor",
        kind: Kind::Prim {
            doc: "The imaginary part of a complex tensor.",
            meta: meta_part,
            lower: Lower::Unsupported(NO_COMPLEX),
            complex: ComplexRule::Rule(crate::ops::complex_numbers::prims::imag),
            batch: BatchRule::Leading,
            shard: ShardRule::Pointwise(Passes::No),
            reference: Reference::Fn(|c| part(c, |z| z.im)),
        },
        grad: Grad::Rule(crate::ops::gradients::index::imag),
        tolerance: Tolerance::EXACT,
        autocast: Autocast::NONE,
        samples: |s| s.add(vec![complex_sample()], vec![Arg::Value(ValueId(0))]),
    },
    OpDef {
        schema: "prims::complex(Tensor re, Tensor im) -> Tensor",
        kind: Kind::Prim {
            doc: "The complex tensor of a real and an imaginary part of one dtype (`f32` or `f64`) and \
                  shape.",
            meta: meta_complex,
            lower: Lower::Unsupported(NO_COMPLEX),
            complex: ComplexRule::Rule(crate::ops::complex_numbers::prims::complex),
            batch: BatchRule::Leading,
            shard: ShardRule::Pointwise(Passes::No),
            reference: Reference::Fn(ref_complex),
        },
        grad: Grad::Rule(crate::ops::gradients::index::complex),
        tolerance: Tolerance::EXACT,
        autocast: Autocast::NONE,
        samples: |s| {
            s.add(
                vec![s.float("re", &[2, 3]), s.float("im", &[2, 3])],
                vec![Arg::Value(ValueId(0)), Arg::Value(ValueId(1))],
            )
        },
    },
];

fn complex_sample() -> Tensor {
    let one = Scalar::Complex(1.5, -2.0);
    Tensor::full(DType::C64, &[2, 3], one).expect("a sample fits memory")
}

fn meta_part(cx: &MetaCx<'_>, call: &Call<'_>) -> Result<Types, OpError> {
    let a = cx.meta(call, "a")?;
    if !a.dtype.is_complex() {
        return Err(OpError::DType { op: call.name().into(), dtype: a.dtype });
    }
    Ok(tensor(a.dtype.to_real(), a.sizes.iter().cloned()))
}

fn meta_complex(cx: &MetaCx<'_>, call: &Call<'_>) -> Result<Types, OpError> {
    let (re, im) = (cx.meta(call, "re")?, cx.meta(call, "im")?);
    let dtype = match re.dtype {
        DType::F32 => DType::C64,
        DType::F64 => DType::C128,
        other => return Err(OpError::DType { op: call.name().into(), dtype: other }),
    };
    let what = || format!("{re} and {im} are not parts of one tensor");
    if im.dtype != re.dtype {
        return Err(call.invalid(what()));
    }
    cx.equal_sizes(call, &re.sizes, &im.sizes, what)?;
    Ok(tensor(dtype, re.sizes.iter().cloned()))
}

fn part(c: &RefCall<'_>, of: fn(Complex<f64>) -> f64) -> Result<RefOut, OpError> {
    let a = c.tensor("a")?;
    let values: Vec<f64> = a.iter_complex().map(of).collect();
    one(c, Tensor::from_vec(values, a.sizes()).and_then(|t| t.to_dtype(c.out().0)))
}

fn ref_complex(c: &RefCall<'_>) -> Result<RefOut, OpError> {
    let (re, im) = (c.tensor("re")?, c.tensor("im")?);
    let values: Vec<Complex<f64>> =
        re.iter_f64().zip(im.iter_f64()).map(|(re, im)| Complex::new(re, im)).collect();
    one(c, Tensor::from_vec(values, re.sizes()).and_then(|t| t.to_dtype(c.out().0)))
}
