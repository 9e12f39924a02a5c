//! The prim that gathers, for each position, the elements of the windows that cover it: the reverse of `window`, and,
//! summed over the windows, its gradient. It does not accumulate in memory, so that it fuses with the producer of the
//! windows' elements and with the reader of the sum.

use fx_ir::{Arg, ValueId, ValueType};
use ir_core::{DType, Scalar, Shape, SymExpr};
use kernel_ir::{ScalarOp, Val};
use smallvec::SmallVec;

use crate::builder::tensor;
use crate::ops::primitive::movement::{check_lengths, pick};
use crate::ops::shardings;
use crate::shard_rule::{LocalForm, ShardRule};
use crate::{
    Autocast, BatchRule, Call, ComplexRule, Grad, Kind, LoopCx, Lower, MetaCx, OpDef, OpError, RefCall,
    RefOut, Reference, Tolerance,
};

type Types = SmallVec<[ValueType; 1]>;

/// The entries.
pub(in crate::ops) const OPS: &[OpDef] = &[OpDef {
    schema: "prims::cover(Tensor a, SymInt[] space, int[] stride, int[] dilation, int[] low) -> Tensor",
    kind: Kind::Prim {
        doc: "What windows hold of each place, the reverse of `window`: `[lead…, sizes…, window…]` gives \
                  `[lead…, space…, covers…]`. Window `o` has place `o * stride + w * dilation - low` at `w`. \
                  Cover `m` of place `p` is, of dilation 1 (with as many covers as windows may overlap), the \
                  element of window `(p + low) / stride - m`, else that at `w = m`; zero where there is none.",
        meta: meta_cover,
        lower: Lower::Loop(lower_cover),
        complex: ComplexRule::Parts,
        batch: BatchRule::Leading,
        shard: ShardRule::Ways(shardings::movement::cover, LocalForm::Same),
        reference: Reference::Fn(ref_cover),
    },
    grad: Grad::Rule(crate::ops::gradients::movement::cover),
    tolerance: Tolerance::EXACT,
    autocast: Autocast::NONE,
    samples: |s| {
        let args = |space: &[i64], stride: &[i64], dilation: &[i64], low: &[i64]| {
            let lists = [space, stride, dilation, low].map(Arg::from);
            [Arg::Value(ValueId(0))].into_iter().chain(lists).collect::<Vec<_>>()
        };
        s.add(vec![s.float("a", &[2, 3, 3])], args(&[7], &[2], &[1], &[0]));
        s.add(vec![s.float("a", &[2, 3, 3, 3, 2])], args(&[5, 6], &[2, 3], &[1, 2], &[1, 1]));
        s.add(vec![s.float("a", &[4, 2])], args(&[9], &[2], &[1], &[-1]));
    },
}];

/// The lists of `cover`, and the sizes of its operand: `[lead…]`, windows, positions of a window.
struct Cover {
    lead: Shape,
    sizes: Shape,
    window: Vec<i64>,
    space: Vec<SymExpr>,
    stride: Vec<i64>,
    dilation: Vec<i64>,
    low: Vec<i64>,
}

impl Cover {
    fn of(call: &Call<'_>, a: &ir_core::TensorMeta) -> Result<Cover, OpError> {
        let space = call.syms("space")?;
        let n = space.len();
        check_lengths(call, &["stride", "dilation", "low"], n)?;
        let (stride, dilation, low) = (call.ints("stride")?, call.ints("dilation")?, call.ints("low")?);
        let lead = a.rank().checked_sub(2 * n);
        let window: Option<Vec<i64>> =
            a.sizes[a.rank() - n.min(a.rank())..].iter().map(SymExpr::as_const).collect();
        let positive = |list: &[i64]| list.iter().all(|&x| x > 0);
        let (Some(lead), Some(window)) = (lead, window) else {
            return Err(call.invalid(format!("{a} holds no windows of {n} dimensions")));
        };
        if !positive(&stride) || !positive(&dilation) {
            return Err(call.invalid("stride and dilation must be positive"));
        }
        let part = |from: usize, to: usize| -> Shape { a.sizes[from..to].iter().cloned().collect() };
        Ok(Cover { lead: part(0, lead), sizes: part(lead, lead + n), window, space, stride, dilation, low })
    }

    /// Covers of a position along dimension `d`.
    fn count(&self, d: usize) -> i64 {
        if self.dilation[d] == 1 {
            (self.window[d] + self.stride[d] - 1) / self.stride[d]
        } else {
            self.window[d]
        }
    }
}

fn meta_cover(cx: &MetaCx<'_>, call: &Call<'_>) -> Result<Types, OpError> {
    let a = cx.meta(call, "a")?;
    let c = Cover::of(call, a)?;
    cx.sizes(call, &c.space)?;
    let covers = (0..c.space.len()).map(|d| c.count(d).into());
    Ok(tensor(a.dtype, c.lead.iter().cloned().chain(c.space.iter().cloned()).chain(covers)))
}

fn lower_cover(cx: &mut LoopCx<'_>) -> Result<Val, OpError> {
    let c = Cover::of(&cx.call.call, cx.call.meta("a")?)?;
    let (lead, n) = (c.lead.len(), c.space.len());
    let mut index: Shape = cx.index[..lead].iter().cloned().collect();
    let (mut places, mut masks) = (Shape::new(), Vec::new());
    let mut at_least = |cx: &mut LoopCx<'_>, e: &SymExpr| {
        let (e, zero) = (cx.b.index(e.clone()), cx.b.constant(0, DType::I64));
        masks.push(cx.b.op(ScalarOp::Ge, &[e, zero]));
    };
    for d in 0..n {
        let (p, m) = (&cx.index[lead + d].clone() + c.low[d], cx.index[lead + n + d].clone());
        let stride = SymExpr::from_i64(c.stride[d]);
        let (o, w) = if c.dilation[d] == 1 {
            (p.floor_div(&stride) - &m, p.modulo(&stride) + m * &stride)
        } else {
            let reach = p - &m * c.dilation[d];
            // The remainder is not negative: none is left where it is at most 0.
            if c.stride[d] > 1 {
                at_least(cx, &-reach.modulo(&stride));
            }
            (reach.floor_div(&stride), m)
        };
        if c.dilation[d] > 1 || c.count(d) > 1 || c.low[d] < 0 {
            at_least(cx, &o);
        }
        if c.dilation[d] == 1 && c.window[d] % c.stride[d] != 0 {
            at_least(cx, &(SymExpr::from_i64(c.window[d] - 1) - &w));
        }
        // The last position lies in the last window or before it.
        let last = (&c.space[d] - 1 + c.low[d]).floor_div(&stride);
        if (&c.sizes[d] - 1 - last).as_const().is_none_or(|left| left < 0) {
            at_least(cx, &(&c.sizes[d] - 1 - &o));
        }
        index.push(o);
        places.push(w);
    }
    index.extend(places);
    let a = cx.call.call.value("a")?;
    match masks.into_iter().reduce(|x, y| cx.b.op(ScalarOp::And, &[x, y])) {
        Some(mask) => cx.load_masked(a, index, mask),
        None => cx.load(a, index),
    }
}

fn ref_cover(c: &RefCall<'_>) -> Result<RefOut, OpError> {
    let (a, space) = (c.tensor("a")?, c.ints("space")?);
    let (stride, dilation, low) = (c.ints("stride")?, c.ints("dilation")?, c.ints("low")?);
    let (n, sizes) = (space.len(), a.sizes());
    let lead = a.rank() - 2 * n;
    pick(c, a, Scalar::zero(a.dtype()), |at| {
        let mut place: Vec<i64> = at[..lead].iter().map(|i| *i as i64).chain(vec![0; 2 * n]).collect();
        for d in 0..n {
            let (p, m) = (at[lead + d] as i64 + low[d], at[lead + n + d] as i64);
            let (o, w) = if dilation[d] == 1 {
                (p.div_euclid(stride[d]) - m, p.rem_euclid(stride[d]) + m * stride[d])
            } else {
                let reach = p - m * dilation[d];
                if reach.rem_euclid(stride[d]) != 0 {
                    return None;
                }
                (reach.div_euclid(stride[d]), m)
            };
            (place[lead + d], place[lead + n + d]) = (o, w);
        }
        let inside = |(p, s): (&i64, &usize)| usize::try_from(*p).ok().filter(|p| p < s);
        place.iter().zip(sizes).try_fold(0, |sum, (p, s)| Some(sum * s + inside((p, s))?))
    })
}
