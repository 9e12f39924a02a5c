//! Rewrites bodies to have fewer or more index checks.

use ir_core::{Atom, DType, Scalar, SymExpr};
use rustc_hash::FxHashMap;

use super::analysis::Analysis;
use super::{access, masks, unproved};
use crate::body::pruned;
use crate::{Inst, InstKind, LoopBounds, Program, ScalarOp, Val};

/// A body that is rebuilt from another one.
struct Rewriter<'a> {
    analysis: &'a Analysis<'a>,
    insts: Vec<Inst>,
    /// The new value of every old one so far.
    map: Vec<Val>,
}

impl<'a> Rewriter<'a> {
    fn new(analysis: &'a Analysis<'a>) -> Rewriter<'a> {
        Rewriter { analysis, insts: Vec::new(), map: Vec::new() }
    }
    fn push(&mut self, dtype: DType, kind: InstKind) -> Val {
        self.insts.push(Inst { dtype, kind });
        Val(self.insts.len() as u32 - 1)
    }
    fn new_val(&self, old: Val) -> Val {
        self.map[old.0 as usize]
    }
    /// The instruction in terms of the new values.
    fn moved(&self, inst: &Inst) -> Inst {
        let mut inst = inst.clone();
        inst.kind.map_vals(&|v| self.new_val(v));
        inst
    }
    /// An index in terms of the new values, which may be index expressions now.
    fn expr(&self, e: &SymExpr) -> SymExpr {
        let plain = |v: &u32| !matches!(masks::expr_of(&self.insts, Val(*v)).as_atom(), Some(Atom::Value(_)));
        if !e.any_leaf(|a| matches!(a, Atom::Value(v) if plain(v))) {
            return e.clone();
        }
        let replaced = e.subst(&|a| match a {
            Atom::Value(v) => Some(masks::expr_of(&self.insts, Val(*v))),
            _ => None,
        });
        let symbols = self.analysis.program().bounds();
        replaced.simplify(&LoopBounds { extents: self.analysis.extents(), symbols: &symbols })
    }
}

/// The values that the checked ones are computed from.
fn cone(insts: &[Inst]) -> Vec<bool> {
    let mut inside = vec![false; insts.len()];
    for n in (0..insts.len()).rev() {
        if inside[n] || matches!(insts[n].kind, InstKind::Check { .. }) {
            insts[n].kind.for_each_val(&mut |v| inside[v.0 as usize] = true);
        }
    }
    inside
}

/// The body without checks that are proved or duplicate, and without choices that are decided.
pub(super) fn proved(analysis: &Analysis<'_>) -> Vec<Inst> {
    let mut r = Rewriter::new(analysis);
    let cone = cone(analysis.insts);
    let mut checked: FxHashMap<(Val, SymExpr, Option<Val>), Val> = FxHashMap::default();
    for (n, inst) in analysis.insts.iter().enumerate() {
        let known = &analysis.known[n];
        let decided = known.as_number().filter(|_| known.needs.is_empty() && cone[n]);
        let new = match (&inst.kind, decided) {
            (InstKind::Op { .. }, Some(number)) if inst.dtype == DType::Bool => {
                r.push(DType::Bool, InstKind::Const(Scalar::Bool(number != 0)))
            }
            (InstKind::Op { op: ScalarOp::Select, args }, _) if cone[n] => {
                match r.insts[r.new_val(args[0]).0 as usize].kind {
                    InstKind::Const(mask) => r.new_val(args[if mask.as_bool() { 1 } else { 2 }]),
                    _ => moved(&mut r, inst),
                }
            }
            (InstKind::Check { value, size, mask, .. }, _) => {
                let new = r.new_val(*value);
                let mask_new = mask.map(|m| r.new_val(m));
                let key = |mask: Option<Val>| (new, size.clone(), mask);
                let twin = checked.get(&key(None)).or_else(|| checked.get(&key(mask_new))).copied();
                match twin {
                    _ if analysis.proves(n) => new,
                    Some(twin) => twin,
                    None => {
                        let v = moved(&mut r, inst);
                        checked.insert(key(mask_new), v);
                        v
                    }
                }
            }
            _ => moved(&mut r, inst),
        };
        r.map.push(new);
    }
    pruned(r.insts)
}

fn moved(r: &mut Rewriter<'_>, inst: &Inst) -> Val {
    let mut new = r.moved(inst);
    match &mut new.kind {
        InstKind::Load { index, .. } | InstKind::Store { index, .. } => {
            index.iter_mut().for_each(|e| *e = r.expr(e));
        }
        InstKind::Index(e) => *e = r.expr(e),
        _ => {}
    }
    r.push(new.dtype, new.kind)
}

/// The body with a check, against the buffer's dimension and under the access's mask, for every index from data that
/// nothing proves; `None` where there is none.
pub(super) fn guarded(
    program: &Program,
    analysis: &Analysis<'_>,
    site: &mut dyn FnMut(usize) -> u32,
) -> Option<Vec<Inst>> {
    let open: Vec<(usize, usize)> = unproved(program, analysis).collect();
    if open.is_empty() {
        return None;
    }
    let mut r = Rewriter::new(analysis);
    let mut checked: FxHashMap<(SymExpr, SymExpr, Option<Val>), Val> = FxHashMap::default();
    for (n, inst) in analysis.insts.iter().enumerate() {
        let mut new = r.moved(inst);
        for &(_, d) in open.iter().filter(|(at, _)| *at == n) {
            let Some((buf, index, mask)) = access(&new) else { continue };
            let (e, size) = (index[d].clone(), program.buffers[buf].sizes[d].clone());
            let key = (e.clone(), size.clone(), mask);
            let v = checked.get(&key).copied().unwrap_or_else(|| {
                let value = as_value(&mut r, &e);
                r.push(DType::I64, InstKind::Check { value, size, mask, site: site(d) })
            });
            checked.insert(key, v);
            if let InstKind::Load { index, .. } | InstKind::Store { index, .. } = &mut new.kind {
                index[d] = SymExpr::value(v.0);
            }
        }
        let v = r.push(new.dtype, new.kind);
        r.map.push(v);
    }
    Some(r.insts)
}

/// An index expression as an `i64` value.
fn as_value(r: &mut Rewriter<'_>, e: &SymExpr) -> Val {
    match e.as_atom() {
        Some(Atom::Value(v)) if r.insts[*v as usize].dtype == DType::I64 => Val(*v),
        Some(Atom::Value(v)) => r.push(DType::I64, InstKind::Cast(Val(*v))),
        _ => r.push(DType::I64, InstKind::Index(e.clone())),
    }
}

/// The body with the checked values in place of their checks.
pub(super) fn unchecked(insts: Vec<Inst>) -> Vec<Inst> {
    let mut values: Vec<Val> = Vec::with_capacity(insts.len());
    let mut kept = Vec::with_capacity(insts.len());
    for mut inst in insts {
        inst.kind.map_vals(&|v| values.get(v.0 as usize).copied().unwrap_or(v));
        values.push(match inst.kind {
            InstKind::Check { value, .. } => value,
            _ => {
                kept.push(inst);
                Val(kept.len() as u32 - 1)
            }
        });
    }
    pruned(kept)
}
