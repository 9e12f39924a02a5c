//! Writes definitions into a body: a value without memory is computed where it is read, by inlining its recorded body with
//! its loop variables replaced by the reader's index.

use ir_core::{Atom, Bounds, DType, Scalar, Shape, SymExpr};
use kernel_ir::{BodyBuilder, BufId, Inst, InstKind, ScalarOp, Val};
use rustc_hash::FxHashMap;

use crate::defs::{DefKind, Defs};

/// Returns the value of a definition at a point without a load, where that is possible (forwarding, an accumulator).
pub(crate) type Forward<'a> = &'a mut dyn FnMut(&mut BodyBuilder, BufId, &[SymExpr]) -> Option<Val>;

/// A body under construction.
pub(crate) struct Inliner<'a> {
    defs: &'a Defs,
    bounds: &'a dyn Bounds,
    memo: FxHashMap<(BufId, Shape, Option<Val>), Val>,
}

impl<'a> Inliner<'a> {
    /// `bounds` knows the extents of the loop variables that will occur.
    pub(crate) fn new(defs: &'a Defs, bounds: &'a dyn Bounds) -> Inliner<'a> {
        Inliner { defs, bounds, memo: FxHashMap::default() }
    }

    /// The element of `def` at `index`, zero where `mask` is false.
    pub(crate) fn element(
        &mut self,
        b: &mut BodyBuilder,
        forward: Forward<'_>,
        def: BufId,
        index: Shape,
        mask: Option<Val>,
    ) -> Val {
        let v = self.unmasked(b, forward, def, index, mask);
        masked(b, v, mask)
    }

    /// The element of `def` at `index`, or anything where `mask` is false; but no memory is read there.
    fn unmasked(
        &mut self,
        b: &mut BodyBuilder,
        forward: Forward<'_>,
        def: BufId,
        index: Shape,
        mask: Option<Val>,
    ) -> Val {
        if let Some(v) = forward(b, def, &index) {
            return v;
        }
        let d = self.defs.get(def);
        if d.realized {
            return b.push(d.dtype, InstKind::Load { buf: def, index, mask });
        }
        let key = (def, index, mask);
        if let Some(&v) = self.memo.get(&key) {
            return v;
        }
        // Only loops lack memory: all other kinds are realized.
        let DefKind::Loop { insts, value } = &d.kind else {
            self.defs.contradict(|| {
                format!("`{}` has no memory and is no loop that could be computed where it is read", d.name)
            });
            return b.constant(Scalar::zero(d.dtype), d.dtype);
        };
        let vals = self.body(b, forward, insts, &key.1, mask);
        let v = convert(b, vals[value.0 as usize], d.dtype);
        self.memo.insert(key, v);
        v
    }

    /// Inlines a body with loop variable `d` replaced by `at[d]`; returns the new value of every instruction. Where `mask`
    /// is
    /// false they may be anything, but no memory is read there.
    pub(crate) fn body(
        &mut self,
        b: &mut BodyBuilder,
        forward: Forward<'_>,
        insts: &[Inst],
        at: &[SymExpr],
        mask: Option<Val>,
    ) -> Vec<Val> {
        let mut vals: Vec<Val> = Vec::with_capacity(insts.len());
        for inst in insts {
            let v = match &inst.kind {
                InstKind::Load { buf, index, mask: own } => {
                    let index = self.index(b, index, at, &vals);
                    let own = own.map(|m| vals[m.0 as usize]);
                    let all = both(b, own, mask);
                    let v = self.unmasked(b, forward, *buf, index, all);
                    // The code around the body discards what is outside of `mask`.
                    if own.is_some() { masked(b, v, all) } else { v }
                }
                InstKind::Index(e) => {
                    let e = self.expr(b, e, at, &vals);
                    b.index(e)
                }
                InstKind::Const(s) => b.constant(*s, inst.dtype),
                InstKind::Op { op, args } => {
                    let args: Vec<Val> = args.iter().map(|a| vals[a.0 as usize]).collect();
                    b.op(*op, &args)
                }
                InstKind::Cast(v) => convert(b, vals[v.0 as usize], inst.dtype),
                InstKind::Check { value, size, mask: own, site } => {
                    let size = self.expr(b, size, at, &vals);
                    let own = own.map(|m| vals[m.0 as usize]);
                    // Masked-out lanes read no memory either.
                    let all = both(b, own, mask);
                    b.check(vals[value.0 as usize], size, all, *site)
                }
                InstKind::Bitcast(v) => b.push(inst.dtype, InstKind::Bitcast(vals[v.0 as usize])),
                // Recorded bodies contain nothing else: stores, reductions and scans are added when kernels are built.
                other => b.push(inst.dtype, other.clone()),
            };
            vals.push(v);
        }
        vals
    }

    /// An index with loop variables and values replaced, simplified.
    pub(crate) fn index(&self, b: &BodyBuilder, index: &[SymExpr], at: &[SymExpr], vals: &[Val]) -> Shape {
        index.iter().map(|e| self.expr(b, e, at, vals)).collect()
    }

    fn expr(&self, b: &BodyBuilder, e: &SymExpr, at: &[SymExpr], vals: &[Val]) -> SymExpr {
        let replaced = e.subst(&|a| match a {
            Atom::Loop(d) => at.get(*d as usize).cloned(),
            Atom::Value(v) => Some(b.as_index(vals[*v as usize])),
            _ => None,
        });
        replaced.simplify(self.bounds)
    }
}

fn both(b: &mut BodyBuilder, x: Option<Val>, y: Option<Val>) -> Option<Val> {
    match (x, y) {
        (Some(x), Some(y)) if x == y => Some(x),
        (Some(x), Some(y)) => Some(b.op(ScalarOp::And, &[x, y])),
        (one, None) | (None, one) => one,
    }
}

fn masked(b: &mut BodyBuilder, v: Val, mask: Option<Val>) -> Val {
    let Some(mask) = mask else { return v };
    if is_zero_without(b, v, mask) {
        return v;
    }
    let dtype = b.dtype(v);
    // Operators do not take 16-bit floats: select in f32.
    let wide = convert(b, v, dtype.compute());
    let zero = b.constant(Scalar::zero(dtype), dtype.compute());
    let v = b.select(mask, wide, zero);
    convert(b, v, dtype)
}

/// Whether a value is zero already where `mask` is false.
fn is_zero_without(b: &BodyBuilder, v: Val, mask: Val) -> bool {
    match &b.insts()[v.0 as usize].kind {
        InstKind::Load { mask: Some(own), .. } => *own == mask,
        InstKind::Const(c) => *c == Scalar::zero(b.dtype(v)),
        InstKind::Cast(v) => is_zero_without(b, *v, mask),
        InstKind::Op { op: ScalarOp::Select, args } => {
            let zero = |v: Val| b.as_const(v).is_some_and(|c| c == Scalar::zero(b.dtype(v)));
            args[0] == mask && zero(args[2])
        }
        _ => false,
    }
}

/// A conversion. One to a 16-bit float is kept even where the next step goes back to `f32`: PyTorch rounds there too,
/// and composites that compute in `f32` throughout express that in their decomposition.
pub(crate) fn convert(b: &mut BodyBuilder, v: Val, to: DType) -> Val {
    b.cast(v, to)
}

/// Never forwards.
pub(crate) fn no_forward(_: &mut BodyBuilder, _: BufId, _: &[SymExpr]) -> Option<Val> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A reduction without memory has no value at a point: the program is discarded.
    #[test]
    fn what_has_no_value_at_a_point_is_a_contradiction() {
        let text = "fx 1.0\ngraph \"g\" {\n%x: f32[2, 3] = input \"x\"\n\n%s: f32[2] = prims.sum(%x, [1])\nreturn %s\n}";
        let graph: fx_ir::Graph = text.parse().expect("it parses");
        let symbols = graph.symbols.clone();
        let known = rustc_hash::FxHashSet::default();
        let options = crate::Options::default();
        let mut defs = crate::lower::lower(&graph, symbols, &known, &options).expect("it is lowered");
        let sum = BufId(1);
        defs.list[sum].as_mut().expect("the sum").realized = false;
        let bounds = crate::affine::SymBounds(&defs);
        let index: Shape = [SymExpr::ZERO].into_iter().collect();
        Inliner::new(&defs, &bounds).element(&mut BodyBuilder::new(), &mut no_forward, sum, index, None);
        let found = defs.contradiction.borrow().clone();
        assert_eq!(
            found.as_deref(),
            Some("`s` has no memory and is no loop that could be computed where it is read")
        );
    }
}
