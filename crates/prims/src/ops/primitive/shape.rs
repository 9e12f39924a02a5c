//! Prims that move or create elements without arithmetic: expand, permute, reshape, slice, convert, full, iota.

use fx_ir::{Arg, ValueId, ValueType};
use ir_core::{DType, Relation, Shape, SymExpr, numel};
use kernel_ir::Val;
use smallvec::SmallVec;
use tensor::Tensor;

use crate::builder::tensor;
use crate::ops::gradients::shape as grad_shape;
use crate::ops::shardings;
use crate::shard_rule::{LocalForm, Passes, ShardRule};
use crate::{
    Autocast, BatchRule, Call, ComplexRule, Grad, Kind, LoopCx, Lower, MetaCx, OpDef, OpError, RefCall,
    RefOut, Reference, Tolerance,
};

type Types = SmallVec<[ValueType; 1]>;

/// The entries.
pub(in crate::ops) const OPS: &[OpDef] = &[
    OpDef {
        schema: "prims::expand(Tensor a, SymInt[] sizes) -> Tensor",
        kind: Kind::Prim {
            doc: "Broadcasts to `sizes` (NumPy's rule: aligned at the last dimension).",
            meta: meta_expand,
            lower: Lower::Loop(lower_expand),
            complex: ComplexRule::Parts,
            batch: BatchRule::Rule(crate::ops::batches::rules::expand),
            shard: ShardRule::Ways(shardings::movement::expand, LocalForm::Sizes("sizes")),
            reference: Reference::Fn(|c| one(c, c.tensor("a")?.expand(c.out().1))),
        },
        grad: Grad::Rule(grad_shape::expand),
        tolerance: Tolerance::EXACT,
        autocast: Autocast::NONE,
        samples: |s| {
            s.add(vec![s.float("a", &[3, 1])], vec![Arg::Value(ValueId(0)), [2, 3, 4].as_slice().into()])
        },
    },
    OpDef {
        schema: "prims::permute(Tensor a, int[] dims) -> Tensor",
        kind: Kind::Prim {
            doc: "Dimension d of the result is dimension dims[d] of `a`.",
            meta: meta_permute,
            lower: Lower::Loop(lower_permute),
            complex: ComplexRule::Parts,
            batch: BatchRule::Rule(crate::ops::batches::rules::permute),
            shard: ShardRule::Ways(shardings::movement::permute, LocalForm::Same),
            reference: Reference::Fn(ref_permute),
        },
        grad: Grad::Rule(grad_shape::permute),
        tolerance: Tolerance::EXACT,
        autocast: Autocast::NONE,
        samples: |s| {
            s.add(vec![s.float("a", &[2, 3, 4])], vec![Arg::Value(ValueId(0)), [2, 0, 1].as_slice().into()])
        },
    },
    OpDef {
        schema: "prims::reshape(Tensor a, SymInt[] sizes) -> Tensor",
        kind: Kind::Prim {
            doc: "The same elements in row-major order in another shape.",
            meta: meta_reshape,
            lower: Lower::Loop(lower_reshape),
            complex: ComplexRule::Parts,
            batch: BatchRule::Rule(crate::ops::batches::rules::reshape),
            shard: ShardRule::Sectioned(
                shardings::movement::reshape,
                shardings::movement::sectioned_reshape,
                LocalForm::Sizes("sizes"),
            ),
            reference: Reference::Fn(|c| one(c, c.tensor("a")?.reshape(c.out().1))),
        },
        grad: Grad::Rule(grad_shape::reshape),
        tolerance: Tolerance::EXACT,
        autocast: Autocast::NONE,
        samples: |s| {
            s.add(vec![s.float("a", &[2, 12])], vec![Arg::Value(ValueId(0)), [4, 2, 3].as_slice().into()]);
            s.add(vec![s.float("a", &[4, 1, 6])], vec![Arg::Value(ValueId(0)), [3, 8].as_slice().into()]);
            // Heads of a batch: the second dimension is taken apart, and the outer part of it is joined to the first one.
            s.add(vec![s.float("a", &[4, 24])], vec![Arg::Value(ValueId(0)), [24, 4].as_slice().into()]);
            s.add(vec![s.float("a", &[24, 4])], vec![Arg::Value(ValueId(0)), [4, 24].as_slice().into()]);
        },
    },
    OpDef {
        schema: "prims::slice(Tensor a, int dim, SymInt start, SymInt length, int step) -> Tensor",
        kind: Kind::Prim {
            doc: "`length` elements of dimension `dim` from `start`, every `step`-th (step may be \
                  negative).",
            meta: meta_slice,
            lower: Lower::Loop(lower_slice),
            complex: ComplexRule::Parts,
            batch: BatchRule::Shift(&["dim"]),
            shard: ShardRule::Sectioned(
                shardings::movement::slice,
                shardings::movement::sectioned_slice,
                LocalForm::Args(shardings::movement::local_slice),
            ),
            reference: Reference::Fn(ref_slice),
        },
        grad: Grad::Rule(grad_shape::slice),
        tolerance: Tolerance::EXACT,
        autocast: Autocast::NONE,
        samples: |s| {
            let args = |start: i64, len: i64, step: i64| {
                vec![Arg::Value(ValueId(0)), 1i64.into(), start.into(), len.into(), step.into()]
            };
            s.add(vec![s.float("a", &[2, 9])], args(1, 3, 2));
            s.add(vec![s.float("a", &[2, 9])], args(8, 9, -1));
        },
    },
    OpDef {
        schema: "prims::convert(Tensor a, ScalarType dtype) -> Tensor",
        kind: Kind::Prim {
            doc: "Conversion of the element type, PyTorch's rules.",
            meta: |cx, call| Ok(tensor(dtype_arg(call)?, cx.meta(call, "a")?.sizes.iter().cloned())),
            lower: Lower::Loop(|cx| {
                let (index, to) = (cx.index.clone(), dtype_arg(&cx.call.call)?);
                let v = cx.load_arg("a", index)?;
                Ok(cx.b.cast(v, to))
            }),
            complex: ComplexRule::Rule(crate::ops::complex_numbers::prims::convert),
            batch: BatchRule::Leading,
            shard: ShardRule::Pointwise(Passes::No),
            reference: Reference::Fn(|c| one(c, c.tensor("a")?.to_dtype(c.out().0))),
        },
        grad: Grad::Rule(grad_shape::convert),
        tolerance: Tolerance::EXACT,
        autocast: Autocast::NONE,
        samples: |s| s.add(vec![s.float("a", &[5])], vec![Arg::Value(ValueId(0)), DType::I64.into()]),
    },
    OpDef {
        schema: "prims::bitcast(Tensor a, ScalarType dtype) -> Tensor",
        kind: Kind::Prim {
            doc: "The bits of each element as one of another dtype of the same size.",
            meta: |cx, call| {
                let (a, to) = (cx.meta(call, "a")?, dtype_arg(call)?);
                if a.dtype.size() != to.size() || a.dtype == DType::Bool || to == DType::Bool {
                    return Err(call.invalid(format!("{} has other bits than {to}", a.dtype)));
                }
                Ok(tensor(to, a.sizes.iter().cloned()))
            },
            lower: Lower::Loop(|cx| {
                let (index, to) = (cx.index.clone(), dtype_arg(&cx.call.call)?);
                let v = cx.load_arg("a", index)?;
                Ok(cx.b.push(to, kernel_ir::InstKind::Bitcast(v)))
            }),
            complex: ComplexRule::REAL_ONLY,
            batch: BatchRule::Leading,
            shard: ShardRule::Pointwise(Passes::No),
            reference: Reference::Fn(|c| one(c, c.tensor("a")?.view_bits(c.out().0))),
        },
        grad: Grad::NotDifferentiable("it works on bits"),
        tolerance: Tolerance::EXACT,
        autocast: Autocast::NONE,
        samples: |s| {
            s.add(vec![s.float("a", &[5])], vec![Arg::Value(ValueId(0)), DType::I32.into()]);
            s.add(vec![s.ints("a", &[5], 200)], vec![Arg::Value(ValueId(0)), DType::F64.into()]);
        },
    },
    OpDef {
        schema: "prims::full(SymInt[] sizes, Scalar value, ScalarType dtype) -> Tensor",
        kind: Kind::Prim {
            doc: "Every element is `value`.",
            meta: |cx, call| {
                let sizes = call.syms("sizes")?;
                cx.sizes(call, &sizes)?;
                Ok(tensor(dtype_arg(call)?, sizes))
            },
            lower: Lower::Loop(|cx| {
                let dtype = dtype_arg(&cx.call.call)?;
                let value = cx.call.call.arg("value").clone();
                let compute = cx.operand(&value, dtype.compute())?;
                Ok(cx.b.cast(compute, dtype))
            }),
            complex: ComplexRule::Parts,
            batch: BatchRule::Refused("it has no operand"),
            shard: ShardRule::Ways(shardings::movement::full, LocalForm::Sizes("sizes")),
            reference: Reference::Fn(|c| one(c, Tensor::full(c.out().0, c.out().1, c.scalar("value")?))),
        },
        grad: Grad::NotDifferentiable("it has no tensor argument"),
        tolerance: Tolerance::EXACT,
        autocast: Autocast::NONE,
        samples: |s| s.add(vec![], vec![[2, 3].as_slice().into(), 1.5.into(), DType::F32.into()]),
    },
    OpDef {
        schema: "prims::iota(SymInt length, SymInt start, SymInt step, ScalarType dtype) -> Tensor",
        kind: Kind::Prim {
            doc: "`start + i * step` for i in 0..length, in `dtype` (an integer dtype).",
            meta: |cx, call| {
                let length = call.sym("length")?;
                cx.sizes(call, std::slice::from_ref(&length))?;
                Ok(tensor(dtype_arg(call)?, [length]))
            },
            lower: Lower::Loop(|cx| {
                let call = cx.call.call;
                let e = call.sym("start")? + cx.index[0].clone() * call.sym("step")?;
                let v = cx.b.index(e);
                let dtype = dtype_arg(&call)?;
                let compute = cx.b.cast(v, dtype.compute());
                Ok(cx.b.cast(compute, dtype))
            }),
            complex: ComplexRule::REAL_ONLY,
            batch: BatchRule::Refused("it has no operand"),
            shard: ShardRule::Ways(
                shardings::movement::full,
                LocalForm::Args(shardings::movement::local_iota),
            ),
            reference: Reference::Fn(ref_iota),
        },
        grad: Grad::NotDifferentiable("it has no tensor argument"),
        tolerance: Tolerance::EXACT,
        autocast: Autocast::NONE,
        samples: |s| s.add(vec![], vec![5i64.into(), 2i64.into(), 3i64.into(), DType::I64.into()]),
    },
];

/// One result of the tensor crate as a reference's results.
pub(crate) fn one(c: &RefCall<'_>, result: Result<Tensor, tensor::TensorError>) -> Result<RefOut, OpError> {
    result.map(|t| vec![t]).map_err(|e| c.tensor_error(e))
}

/// The argument `dtype`, which must be there.
pub(crate) fn dtype_arg(call: &Call<'_>) -> Result<DType, OpError> {
    call.opt_dtype("dtype")?.ok_or_else(|| call.bad_arg("dtype", "is missing"))
}

fn lower_expand(cx: &mut LoopCx<'_>) -> Result<Val, OpError> {
    let sizes = &cx.call.meta("a")?.sizes;
    let skip = cx.index.len() - sizes.len();
    let out = &cx.call.out(0)?.sizes;
    let at = |d: usize| {
        if sizes[d] == SymExpr::ONE && out[skip + d] != SymExpr::ONE {
            SymExpr::ZERO
        } else {
            cx.index[skip + d].clone()
        }
    };
    let index = (0..sizes.len()).map(at).collect();
    cx.load_arg("a", index)
}

fn meta_expand(cx: &MetaCx<'_>, call: &Call<'_>) -> Result<Types, OpError> {
    let (a, sizes) = (cx.meta(call, "a")?, call.syms("sizes")?);
    let what = || format!("sizes {} do not expand to {}", cx.text(&a.sizes), cx.text(&sizes));
    let Some(new) = sizes.len().checked_sub(a.rank()) else { return Err(call.invalid(what())) };
    cx.sizes(call, &sizes[..new])?;
    for (have, want) in a.sizes.iter().zip(&sizes[new..]) {
        match have {
            &SymExpr::ONE => cx.non_negative(call, want, what)?,
            have => cx.equal(call, have, want, what)?,
        }
    }
    Ok(tensor(a.dtype, sizes))
}

fn permutation(call: &Call<'_>, rank: usize) -> Result<Vec<usize>, OpError> {
    let dims: Vec<usize> =
        call.ints("dims")?.into_iter().map(|d| call.dim(d, rank)).collect::<Result<_, _>>()?;
    let mut sorted = dims.clone();
    sorted.sort_unstable();
    if sorted.iter().copied().eq(0..rank) {
        Ok(dims)
    } else {
        Err(call.bad_arg("dims", "must name every dimension once"))
    }
}

fn meta_permute(cx: &MetaCx<'_>, call: &Call<'_>) -> Result<Types, OpError> {
    let a = cx.meta(call, "a")?;
    Ok(tensor(a.dtype, permutation(call, a.rank())?.into_iter().map(|d| a.sizes[d].clone())))
}

fn lower_permute(cx: &mut LoopCx<'_>) -> Result<Val, OpError> {
    let dims = permutation(&cx.call.call, cx.index.len())?;
    let mut index: Shape = cx.index.clone();
    for (d, &from) in dims.iter().enumerate() {
        index[from] = cx.index[d].clone();
    }
    cx.load_arg("a", index)
}

fn ref_permute(c: &RefCall<'_>) -> Result<RefOut, OpError> {
    let a = c.tensor("a")?;
    let wrap = |d: i64| if d < 0 { d + a.rank() as i64 } else { d } as usize;
    one(c, a.permute(&c.ints("dims")?.into_iter().map(wrap).collect::<Vec<_>>()))
}

fn meta_reshape(cx: &MetaCx<'_>, call: &Call<'_>) -> Result<Types, OpError> {
    let (a, sizes) = (cx.meta(call, "a")?, call.syms("sizes")?);
    let (have, want) = (a.numel(), numel(&sizes));
    cx.equal(call, &have, &want, || {
        format!("{} elements do not fill the shape {}", cx.graph.size_text(&have), cx.text(&sizes))
    })?;
    // Equal products leave room for two negative sizes.
    cx.sizes(call, &sizes)?;
    Ok(tensor(a.dtype, sizes))
}

fn lower_reshape(cx: &mut LoopCx<'_>) -> Result<Val, OpError> {
    let (from, to) = (cx.call.meta("a")?.sizes.clone(), cx.call.out(0)?.sizes.clone());
    let index = reshape_index(&to, &cx.index, &from);
    cx.load_arg("a", index)
}

/// The index into shape `from` of the element that index `at` names in shape `to`, row-major order being the same.
///
/// Dimensions are taken in groups with equal products, so that divisions never reach across a group and symbolic
/// sizes stay apart.
pub fn reshape_index(to: &[SymExpr], at: &[SymExpr], from: &[SymExpr]) -> Shape {
    let mut index: Shape = std::iter::repeat_n(SymExpr::ZERO, from.len()).collect();
    // No element has an index, and none may be divided by a size of 0.
    if to.contains(&SymExpr::ZERO) || from.contains(&SymExpr::ZERO) {
        return index;
    }
    let (mut i, mut j) = (0, 0);
    while i < to.len() || j < from.len() {
        let (i0, j0) = (i, j);
        let (mut have, mut want) = (SymExpr::ONE, SymExpr::ONE);
        loop {
            let take_to = i < to.len() && (j >= from.len() || smaller(&have, &want) || (i == i0 && j > j0));
            if take_to {
                have = have * &to[i];
                i += 1;
            } else if j < from.len() {
                want = want * &from[j];
                j += 1;
            } else {
                break;
            }
            if have == want && i > i0 && j > j0 {
                break;
            }
        }
        split_group(&to[i0..i], &at[i0..i], &from[j0..j], &mut index[j0..j]);
    }
    index
}

/// Whether the product so far on the left should grow first.
fn smaller(a: &SymExpr, b: &SymExpr) -> bool {
    match (a.as_const(), b.as_const()) {
        (Some(a), Some(b)) => a < b,
        // Symbolic: let the one with fewer factors grow.
        _ => a.terms().0.first().map_or(0, |t| t.1.len()) < b.terms().0.first().map_or(0, |t| t.1.len()),
    }
}

fn split_group(to: &[SymExpr], at: &[SymExpr], from: &[SymExpr], index: &mut [SymExpr]) {
    // Along a dimension of size 1 the index can only be 0.
    let wide = to.iter().zip(at).filter(|(size, _)| **size != SymExpr::ONE);
    let linear = wide.fold(SymExpr::ZERO, |sum, (size, i)| sum * size + i);
    let mut below = SymExpr::ONE;
    let first = from.iter().position(|s| *s != SymExpr::ONE).unwrap_or(0);
    for d in (0..from.len()).rev() {
        if from[d] == SymExpr::ONE {
            continue;
        }
        let part = linear.floor_div(&below);
        // The outermost digit needs no remainder: it is in range.
        index[d] = if d == first { part } else { part.modulo(&from[d]) };
        below = below * &from[d];
    }
}

fn meta_slice(cx: &MetaCx<'_>, call: &Call<'_>) -> Result<Types, OpError> {
    let a = cx.meta(call, "a")?;
    let dim = call.dim(call.int("dim")?, a.rank())?;
    let mut sizes = a.sizes.clone();
    if dim >= sizes.len() {
        return Err(call.invalid("a 0-dim tensor cannot be sliced"));
    }
    let n = std::mem::replace(&mut sizes[dim], call.sym("length")?);
    in_bounds(cx, call, &n)?;
    Ok(tensor(a.dtype, sizes))
}

/// The elements of a slice lie within a dimension of size `n`.
fn in_bounds(cx: &MetaCx<'_>, call: &Call<'_>, n: &SymExpr) -> Result<(), OpError> {
    let (start, length, step) = (call.sym("start")?, call.sym("length")?, call.int("step")?);
    let text = |e: &SymExpr| cx.graph.size_text(e);
    let what = || {
        let by = if step == 1 { String::new() } else { format!(", every {step}-th,") };
        let (length, start) = (text(&length), text(&start));
        format!("{length} elements{by} from {start} on do not lie within a dimension of size {}", text(n))
    };
    cx.non_negative(call, &length, what)?;
    let last = &start + (&length - 1) * step;
    let (lowest, highest) = if step < 0 { (last, start.clone()) } else { (start.clone(), last) };
    for left in [lowest, n - 1 - highest] {
        // Where nothing is wanted nothing is read.
        match cx.decided(Relation::NonNegative, &left) {
            Some(true) => {}
            _ => cx.non_negative(call, &left.sym_max(&(SymExpr::ZERO - &length)), what)?,
        }
    }
    Ok(())
}

fn lower_slice(cx: &mut LoopCx<'_>) -> Result<Val, OpError> {
    let call = cx.call.call;
    let dim = call.dim(call.int("dim")?, cx.index.len())?;
    let mut index = cx.index.clone();
    index[dim] = call.sym("start")? + index[dim].clone() * call.sym("step")?;
    cx.load_arg("a", index)
}

fn ref_slice(c: &RefCall<'_>) -> Result<RefOut, OpError> {
    let a = c.tensor("a")?;
    let (dim, start, step) = (c.int("dim")?, c.int("start")?, c.int("step")?);
    let dim = if dim < 0 { dim + a.rank() as i64 } else { dim } as usize;
    let mut strides: Vec<isize> = a.strides().to_vec();
    if dim >= strides.len() {
        return Err(c.invalid("the dimension is out of range"));
    }
    let outside = || c.invalid(format!("begins at {start} in steps of {step}, outside of {:?}", a.sizes()));
    let moved = (start as isize).checked_mul(strides[dim]).and_then(|by| a.offset().checked_add(by));
    // Where no element is taken it does not matter where the first one would be.
    let offset = if c.out().1.contains(&0) { 0 } else { moved.ok_or_else(outside)? };
    strides[dim] = strides[dim].checked_mul(step as isize).ok_or_else(outside)?;
    one(c, a.as_strided(c.out().1, &strides, offset))
}

fn ref_iota(c: &RefCall<'_>) -> Result<RefOut, OpError> {
    let (start, step, length) = (c.int("start")?, c.int("step")?, c.int("length")?);
    let mut values = c.room::<i64>(length.max(0) as usize)?;
    values.extend((0..length).map(|i| start.wrapping_add(i.wrapping_mul(step))));
    let t = Tensor::from_vec(values, &[length.max(0) as usize]).and_then(|t| t.to_dtype(c.out().0));
    one(c, t)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(text: &str) -> Shape {
        text.split(',').filter(|t| !t.trim().is_empty()).map(|t| t.parse().unwrap()).collect()
    }

    fn check(to: &str, from: &str, expected: &str) {
        let to = shape(to);
        let at: Shape = (0..to.len() as u32).map(SymExpr::loop_var).collect();
        let got = reshape_index(&to, &at, &shape(from));
        let text: Vec<String> = got.iter().map(ToString::to_string).collect();
        assert_eq!(text.join(", "), expected, "{to:?} <- {from}");
    }

    #[test]
    fn reshape_indices_stay_in_their_group() {
        check("6", "2, 3", "i0 // 3, i0 % 3");
        check("2, 3", "6", "3*i0 + i1");
        check("2, 3, 4", "2, 12", "i0, 4*i1 + i2");
        check("s0, 12, 64", "s0, 768", "i0, 64*i1 + i2");
        check("s0, s1, 768", "s0, s1, 12, 64", "i0, i1, i2 // 64, i2 % 64");
        check("s0*s1, 768", "s0, s1, 768", "i0 // s1, i0 % s1, i1");
        check("s0, s1, 768", "s0*s1, 768", "s1*i0 + i1, i2");
        check("1, 5", "5, 1", "i1, 0");
        check("", "1, 1", "0, 0");
        check("4, 6", "6, 4", "(6*i0 + i1) // 4, (6*i0 + i1) % 4");
    }
}
