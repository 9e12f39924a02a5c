//! Prims that move elements by bounded index arithmetic: concatenation, padding, windows, strided reads.

use fx_ir::{Arg, ValueId, ValueType};
use ir_core::{Class, DType, Scalar, Shape, SymExpr};
use kernel_ir::{ScalarOp, Val};
use smallvec::SmallVec;
use tensor::{Tensor, with_element};

use crate::builder::tensor;
use crate::ops::shapes::shape::for_each_index;
use crate::ops::shardings;
use crate::shard_rule::{LocalForm, ShardRule};
use crate::{
    Autocast, BatchRule, Call, ComplexRule, Grad, Kind, LoopCx, Lower, MetaCx, OpDef, OpError, RefCall,
    RefOut, Reference, Tolerance,
};

type Types = SmallVec<[ValueType; 1]>;

/// The entries.
pub(in crate::ops) const OPS: &[OpDef] = &[
    OpDef {
        schema: "prims::cat(Tensor[] tensors, int dim) -> Tensor",
        kind: Kind::Prim {
            doc: "One tensor after another along `dim`; all have one dtype and, but for `dim`, one shape.",
            meta: meta_cat,
            lower: Lower::Loop(lower_cat),
            complex: ComplexRule::Parts,
            batch: BatchRule::Shift(&["dim"]),
            shard: ShardRule::Ways(shardings::movement::cat, LocalForm::Same),
            reference: Reference::Fn(ref_cat),
        },
        grad: Grad::Rule(crate::ops::gradients::index::cat),
        tolerance: Tolerance::EXACT,
        autocast: Autocast::NONE,
        samples: |s| {
            let args = |dim: i64| vec![Arg::values([ValueId(0), ValueId(1), ValueId(2)]), dim.into()];
            s.add(vec![s.float("a", &[2, 3]), s.float("b", &[1, 3]), s.float("c", &[4, 3])], args(0));
            s.add(vec![s.float("a", &[2, 3]), s.float("b", &[2, 0]), s.float("c", &[2, 1])], args(-1));
        },
    },
    OpDef {
        schema: "prims::pad(Tensor a, SymInt[] low, SymInt[] high, int[] interior, Scalar value) -> Tensor",
        kind: Kind::Prim {
            doc: "`low[d]` elements before, `high[d]` after and `interior[d]` between the elements of \
                  dimension `d`, all `value`. Negative `low` and `high` cut instead.",
            meta: meta_pad,
            lower: Lower::Loop(lower_pad),
            complex: ComplexRule::Parts,
            batch: BatchRule::Rule(crate::ops::batches::rules::pad),
            shard: ShardRule::Ways(shardings::movement::pad, LocalForm::Args(shardings::movement::local_pad)),
            reference: Reference::Fn(ref_pad),
        },
        grad: Grad::Rule(crate::ops::gradients::index::pad),
        tolerance: Tolerance::EXACT,
        autocast: Autocast::NONE,
        samples: |s| {
            let args = |low: &[i64], high: &[i64], interior: &[i64], value: f64| {
                vec![Arg::Value(ValueId(0)), low.into(), high.into(), interior.into(), value.into()]
            };
            s.add(vec![s.float("a", &[3, 4])], args(&[1, 0], &[2, 1], &[0, 0], 0.5));
            s.add(vec![s.float("a", &[3, 4])], args(&[1, -1], &[-1, 3], &[0, 2], 0.0));
        },
    },
    OpDef {
        schema: "prims::window(Tensor a, SymInt[] sizes, int[] window, int[] stride, int[] dilation, int[] low, Scalar value) -> Tensor",
        kind: Kind::Prim {
            doc: "Windows over the last dimensions: `[lead…, space…]` gives `[lead…, sizes…, window…]` \
                  with the element at `o * stride + w * dilation - low` of each of these dimensions, or \
                  `value` where that lies outside.",
            meta: meta_window,
            lower: Lower::Loop(lower_window),
            complex: ComplexRule::Parts,
            batch: BatchRule::Leading,
            shard: ShardRule::Ways(shardings::movement::window, LocalForm::Same),
            reference: Reference::Fn(ref_window),
        },
        grad: Grad::Rule(crate::ops::gradients::index::window),
        tolerance: Tolerance::EXACT,
        autocast: Autocast::NONE,
        samples: |s| {
            let args = |sizes: &[i64], window: &[i64], stride: &[i64], dilation: &[i64], low: &[i64]| {
                let lists = [sizes, window, stride, dilation, low].map(Arg::from);
                [Arg::Value(ValueId(0))].into_iter().chain(lists).chain([Arg::from(-1.0)]).collect::<Vec<_>>()
            };
            s.add(vec![s.float("a", &[2, 7])], args(&[3], &[3], &[2], &[1], &[0]));
            s.add(vec![s.float("a", &[2, 5, 6])], args(&[3, 3], &[3, 2], &[2, 3], &[1, 2], &[1, 1]));
        },
    },
    OpDef {
        schema: "prims::strided(Tensor a, SymInt[] sizes, SymInt[] strides, SymInt offset) -> Tensor",
        kind: Kind::Prim {
            doc: "Element `offset + Σ i[d] * strides[d]` of `a`, which has one dimension.",
            meta: meta_strided,
            lower: Lower::Loop(lower_strided),
            complex: ComplexRule::Parts,
            batch: BatchRule::Rule(crate::ops::batches::rules::strided),
            shard: ShardRule::Whole("it reads at any distance"),
            reference: Reference::Fn(ref_strided),
        },
        grad: Grad::Rule(crate::ops::gradients::movement::strided),
        tolerance: Tolerance::EXACT,
        autocast: Autocast::NONE,
        samples: |s| {
            let args =
                vec![Arg::Value(ValueId(0)), [2, 3].as_slice().into(), [1, 2].as_slice().into(), 1i64.into()];
            s.add(vec![s.float("a", &[9])], args)
        },
    },
];

fn meta_cat(cx: &MetaCx<'_>, call: &Call<'_>) -> Result<Types, OpError> {
    let metas: Vec<_> = call
        .values("tensors")?
        .into_iter()
        .map(|v| cx.graph.meta(v).ok_or_else(|| call.bad_arg("tensors", "has an item that is no tensor")))
        .collect::<Result<_, _>>()?;
    let first = metas.first().ok_or_else(|| call.bad_arg("tensors", "is empty"))?;
    let dim = call.dim(call.int("dim")?, first.rank())?;
    if first.rank() == 0 {
        return Err(call.invalid("0-dim tensors cannot be concatenated"));
    }
    let mut sizes = first.sizes.clone();
    for other in &metas[1..] {
        let what = || {
            let (first, other) = (cx.text(&first.sizes), cx.text(&other.sizes));
            format!("sizes {first} and {other} do not concatenate along dimension {dim}")
        };
        if other.dtype != first.dtype || other.rank() != first.rank() {
            return Err(call.invalid(format!("{first} and {other} do not concatenate along {dim}")));
        }
        for d in (0..first.rank()).filter(|&d| d != dim) {
            cx.equal(call, &first.sizes[d], &other.sizes[d], what)?;
        }
        sizes[dim] = &sizes[dim] + &other.sizes[dim];
    }
    Ok(tensor(first.dtype, sizes))
}

fn lower_cat(cx: &mut LoopCx<'_>) -> Result<Val, OpError> {
    let call = cx.call.call;
    let dim = call.dim(call.int("dim")?, cx.index.len())?;
    let dtype = cx.call.out(0)?.dtype;
    let mut parts = Vec::new();
    let mut start = SymExpr::ZERO;
    for v in call.values("tensors")? {
        let size = cx.call.meta_of(v)?.sizes[dim].clone();
        if size != SymExpr::ZERO {
            parts.push((v, start.clone()));
        }
        start = start + size;
    }
    let at = cx.index[dim].clone();
    let place = cx.b.index(at.clone());
    let mut result = None;
    // From the last part to the first: `i < end ? part : what follows`.
    for (n, (v, start)) in parts.iter().enumerate().rev() {
        let mut index = cx.index.clone();
        index[dim] = &at - start;
        let from = cx.b.index(start.clone());
        let after = (n > 0).then(|| cx.b.op(ScalarOp::Ge, &[place, from]));
        let before = parts.get(n + 1).map(|(_, end)| {
            let end = cx.b.index(end.clone());
            cx.b.op(ScalarOp::Lt, &[place, end])
        });
        let value = match (after, before) {
            (Some(a), Some(b)) => {
                let mask = cx.b.op(ScalarOp::And, &[a, b]);
                cx.load_masked(*v, index, mask)?
            }
            (Some(m), None) | (None, Some(m)) => cx.load_masked(*v, index, m)?,
            (None, None) => cx.load(*v, index)?,
        };
        let value = cx.to_compute(value);
        result = Some(match (before, result) {
            (Some(mask), Some(rest)) => cx.b.select(mask, value, rest),
            _ => value,
        });
    }
    let value = match result {
        Some(v) => v,
        None => cx.b.constant(0, dtype.compute()),
    };
    Ok(cx.b.cast(value, dtype))
}

fn ref_cat(c: &RefCall<'_>) -> Result<RefOut, OpError> {
    let (dtype, sizes) = c.out();
    let dim = c.int("dim")?;
    let dim = if dim < 0 { dim + sizes.len() as i64 } else { dim } as usize;
    let inner: usize = sizes[dim + 1..].iter().product();
    let outer: usize = sizes[..dim].iter().product();
    let tensors = c.tensors("tensors")?;
    with_element!(dtype, T => {
        let parts = tensors
            .iter()
            .map(|t| t.to_vec::<T>().map(|v| (v, t.sizes()[dim] * inner)))
            .collect::<Result<Vec<_>, _>>()
            .map_err(|e| c.tensor_error(e))?;
        let mut all = Tensor::empty(dtype, sizes).map_err(|e| c.tensor_error(e))?;
        let mut rest = all.as_mut_slice::<T>().unwrap_or(&mut []);
        for o in 0..outer {
            for (v, row) in &parts {
                let (part, behind) = rest.split_at_mut_checked(*row).ok_or_else(|| c.invalid("sizes differ"))?;
                part.copy_from_slice(&v[o * row..(o + 1) * row]);
                rest = behind;
            }
        }
        Ok(vec![all])
    })
}

/// Elements of `a` (in row-major order) that `source` names for every index of the result, `fill` where it names none.
pub(in crate::ops) fn pick(
    c: &RefCall<'_>,
    a: &Tensor,
    fill: Scalar,
    mut source: impl FnMut(&[usize]) -> Option<usize>,
) -> Result<RefOut, OpError> {
    let (dtype, sizes) = c.out();
    with_element!(dtype, T => {
        let own;
        let from = match a.as_slice::<T>() {
            Some(slice) => slice,
            None => {
                own = a.to_vec::<T>().map_err(|e| c.tensor_error(e))?;
                &own[..]
            }
        };
        let fill = <T as tensor::Element>::from_scalar(fill);
        let mut all = Tensor::empty(dtype, sizes).map_err(|e| c.tensor_error(e))?;
        let (mut places, mut bad) = (all.as_mut_slice::<T>().unwrap_or(&mut []).iter_mut(), false);
        for_each_index(sizes, |at| {
            let value = match source(at) {
                Some(n) => from.get(n).copied().unwrap_or_else(|| { bad = true; fill }),
                None => fill,
            };
            if let Some(place) = places.next() {
                *place = value;
            }
        });
        if bad {
            return Err(c.invalid("reads outside its operand"));
        }
        Ok(vec![all])
    })
}

/// Lists of one length, an item for each dimension.
pub(in crate::ops) fn check_lengths(call: &Call<'_>, names: &[&str], n: usize) -> Result<(), OpError> {
    match names.iter().find(|name| !matches!(call.arg(name), Arg::List(items) if items.len() == n)) {
        Some(name) => Err(call.bad_arg(name, format!("must have {n} items"))),
        None => Ok(()),
    }
}

/// The size with `interior` elements between neighbours.
fn spread(n: &SymExpr, interior: i64) -> SymExpr {
    if interior == 0 || *n == SymExpr::ZERO { n.clone() } else { (n - 1) * (interior + 1) + 1 }
}

fn meta_pad(cx: &MetaCx<'_>, call: &Call<'_>) -> Result<Types, OpError> {
    let a = cx.meta(call, "a")?;
    check_lengths(call, &["low", "high", "interior"], a.rank())?;
    let (low, high, interior) = (call.syms("low")?, call.syms("high")?, call.ints("interior")?);
    if interior.iter().any(|&i| i < 0) {
        return Err(call.bad_arg("interior", "must not be negative"));
    }
    let sizes: Shape = (0..a.rank()).map(|d| spread(&a.sizes[d], interior[d]) + &low[d] + &high[d]).collect();
    for size in &sizes {
        cx.non_negative(call, size, || format!("cuts more than {} elements", cx.text(&a.sizes)))?;
    }
    Ok(tensor(a.dtype, sizes))
}

fn lower_pad(cx: &mut LoopCx<'_>) -> Result<Val, OpError> {
    let call = cx.call.call;
    let (low, high, interior) = (call.syms("low")?, call.syms("high")?, call.ints("interior")?);
    let sizes = cx.call.meta("a")?.sizes.clone();
    let mut masks = Vec::new();
    let mut index = Shape::new();
    for d in 0..sizes.len() {
        let at = &cx.index[d] - &low[d];
        let place = cx.b.index(at.clone());
        if low[d].as_const().is_none_or(|c| c > 0) {
            let zero = cx.b.constant(0, DType::I64);
            masks.push(cx.b.op(ScalarOp::Ge, &[place, zero]));
        }
        if high[d].as_const().is_none_or(|c| c > 0) {
            let end = cx.b.index(spread(&sizes[d], interior[d]));
            masks.push(cx.b.op(ScalarOp::Lt, &[place, end]));
        }
        if interior[d] == 0 {
            index.push(at);
            continue;
        }
        let step = SymExpr::from_i64(interior[d] + 1);
        let (rest, zero) = (cx.b.index(at.modulo(&step)), cx.b.constant(0, DType::I64));
        masks.push(cx.b.op(ScalarOp::Eq, &[rest, zero]));
        index.push(at.floor_div(&step));
    }
    bounded_load(cx, index, &masks)
}

/// An element of `a` where all masks hold, else the argument `value`.
fn bounded_load(cx: &mut LoopCx<'_>, index: Shape, masks: &[Val]) -> Result<Val, OpError> {
    let call = cx.call.call;
    let (a, dtype) = (call.value("a")?, cx.call.meta("a")?.dtype);
    let Some(mask) = masks.iter().copied().reduce(|x, y| cx.b.op(ScalarOp::And, &[x, y])) else {
        return cx.load(a, index);
    };
    let value = cx.load_masked(a, index, mask)?;
    let fill = call.scalar("value")?;
    // A masked load gives zero by itself; minus zero is another number.
    if fill.to_class_of(dtype) == Scalar::zero(dtype) {
        return Ok(value);
    }
    let value = cx.to_compute(value);
    let fill = cx.b.constant(fill, dtype.compute());
    let value = cx.b.select(mask, value, fill);
    Ok(cx.b.cast(value, dtype))
}

fn ref_pad(c: &RefCall<'_>) -> Result<RefOut, OpError> {
    let (a, low, interior) = (c.tensor("a")?, c.ints("low")?, c.ints("interior")?);
    pick(c, a, c.scalar("value")?, |at| {
        let mut n = 0;
        for (d, &i) in at.iter().enumerate() {
            let (place, step) = (i as i64 - low[d], interior[d] + 1);
            if place < 0 || place % step != 0 || place / step >= a.sizes()[d] as i64 {
                return None;
            }
            n = n * a.sizes()[d] + (place / step) as usize;
        }
        Some(n)
    })
}

fn meta_window(cx: &MetaCx<'_>, call: &Call<'_>) -> Result<Types, OpError> {
    let (a, window) = (cx.meta(call, "a")?, call.ints("window")?);
    check_lengths(call, &["sizes", "stride", "dilation", "low"], window.len())?;
    let positive = |list: &[i64]| list.iter().all(|&x| x > 0);
    let stride = call.ints("stride")?;
    let forwards = positive(&call.ints("dilation")?) && stride.iter().all(|&s| s >= 0);
    if window.len() > a.rank() || !positive(&window) || !forwards {
        return Err(call.invalid(format!("a window of {window:?} in steps of {stride:?} does not fit {a}")));
    }
    let lead = a.sizes[..a.rank() - window.len()].iter().cloned();
    let sizes = call.syms("sizes")?;
    cx.sizes(call, &sizes)?;
    Ok(tensor(a.dtype, lead.chain(sizes).chain(window.iter().map(|&w| w.into()))))
}

fn lower_window(cx: &mut LoopCx<'_>) -> Result<Val, OpError> {
    let call = cx.call.call;
    let (sizes, window) = (call.syms("sizes")?, call.ints("window")?);
    let (stride, dilation, low) = (call.ints("stride")?, call.ints("dilation")?, call.ints("low")?);
    let from = cx.call.meta("a")?.sizes.clone();
    let lead = from.len() - window.len();
    let mut index: Shape = cx.index[..lead].iter().cloned().collect();
    let mut masks = Vec::new();
    for d in 0..window.len() {
        let (o, w) = (&cx.index[lead + d], &cx.index[lead + window.len() + d]);
        let at = o * stride[d] + w * dilation[d] - SymExpr::from_i64(low[d]);
        let place = cx.b.index(at.clone());
        if low[d] > 0 {
            let zero = cx.b.constant(0, DType::I64);
            masks.push(cx.b.op(ScalarOp::Ge, &[place, zero]));
        }
        let last = (&sizes[d] - 1) * stride[d] + SymExpr::from_i64((window[d] - 1) * dilation[d] - low[d]);
        if (&from[lead + d] - last).as_const().is_none_or(|left| left <= 0) {
            let end = cx.b.index(from[lead + d].clone());
            masks.push(cx.b.op(ScalarOp::Lt, &[place, end]));
        }
        index.push(at);
    }
    bounded_load(cx, index, &masks)
}

fn ref_window(c: &RefCall<'_>) -> Result<RefOut, OpError> {
    let (a, window) = (c.tensor("a")?, c.ints("window")?);
    let (stride, dilation, low) = (c.ints("stride")?, c.ints("dilation")?, c.ints("low")?);
    let lead = a.rank() - window.len();
    pick(c, a, c.scalar("value")?, |at| {
        let mut n = 0;
        for (d, &size) in a.sizes().iter().enumerate() {
            let place = match d.checked_sub(lead) {
                None => at[d] as i64,
                Some(w) => at[d] as i64 * stride[w] + at[d + window.len()] as i64 * dilation[w] - low[w],
            };
            n = n * size + usize::try_from(place).ok().filter(|&p| p < size)?;
        }
        Some(n)
    })
}

fn meta_strided(cx: &MetaCx<'_>, call: &Call<'_>) -> Result<Types, OpError> {
    let (a, sizes) = (cx.meta(call, "a")?, call.syms("sizes")?);
    check_lengths(call, &["strides"], sizes.len())?;
    if a.rank() != 1 {
        return Err(call.invalid(format!("{a} has not one dimension; reshape first")));
    }
    within(cx, call, &a.sizes[0], &sizes)?;
    Ok(tensor(a.dtype, sizes))
}

/// The elements of a strided view lie among `n`.
fn within(cx: &MetaCx<'_>, call: &Call<'_>, n: &SymExpr, sizes: &[SymExpr]) -> Result<(), OpError> {
    cx.sizes(call, sizes)?;
    if sizes.contains(&SymExpr::ZERO) {
        return Ok(());
    }
    let (strides, offset) = (call.syms("strides")?, call.sym("offset")?);
    let what = || {
        let (sizes, strides) = (cx.text(sizes), cx.text(&strides));
        let (offset, n) = (cx.graph.size_text(&offset), cx.graph.size_text(n));
        format!("sizes {sizes} with strides {strides} from {offset} on do not lie within {n} elements")
    };
    let (mut lowest, mut highest) = (offset.clone(), offset.clone());
    for (size, stride) in sizes.iter().zip(&strides) {
        let reach = (size - 1) * stride;
        match stride.as_const() {
            Some(stride) if stride < 0 => lowest = lowest + reach,
            Some(_) => highest = highest + reach,
            None => {
                cx.non_negative(call, stride, what)?;
                highest = highest + reach;
            }
        }
    }
    cx.non_negative(call, &lowest, what)?;
    cx.non_negative(call, &(n - 1 - highest), what)
}

fn lower_strided(cx: &mut LoopCx<'_>) -> Result<Val, OpError> {
    let call = cx.call.call;
    let strides = call.syms("strides")?;
    let at = cx.index.iter().zip(&strides).fold(call.sym("offset")?, |sum, (i, s)| sum + i * s);
    cx.load_arg("a", Shape::from_iter([at]))
}

fn ref_strided(c: &RefCall<'_>) -> Result<RefOut, OpError> {
    let (a, strides, offset) = (c.tensor("a")?, c.ints("strides")?, c.int("offset")?);
    pick(c, a, Scalar::Bool(false), |at| {
        let step = |n: i64, (&i, &s): (&usize, &i64)| n.checked_add((i as i64).checked_mul(s)?);
        let n = at.iter().zip(&strides).try_fold(offset, step);
        // Outside either way: `pick` refuses it.
        Some(n.and_then(|n| usize::try_from(n).ok()).unwrap_or(usize::MAX))
    })
}

/// The smallest value of a dtype (minus infinity for floats): what padding is for a maximum.
pub(in crate::ops) fn lowest(dtype: DType) -> Scalar {
    match dtype.class() {
        Class::Complex => Scalar::zero(dtype),
        _ => kernel_ir::ReduceOp::Max.identity(dtype),
    }
}
