//! What is known of every value of a body, by one walk over its instructions, and whether an index stays inside of a
//! dimension. Not a prover: what it cannot show stays unknown, and is checked when the program runs.

use ir_core::{Atom, Bounds, DType, Scalar, SymExpr};

use super::known::Known;
use super::masks::{self, Fact};
use crate::{Inst, InstKind, Program, ReduceOp, ScalarOp, Storage, Val};

/// How far a condition is followed into what a `select` chooses.
const MAX_DEPTH: u32 = 4;

/// A body and what is known of its values.
pub(super) struct Analysis<'a> {
    program: &'a Program,
    extents: &'a [SymExpr],
    pub(super) insts: &'a [Inst],
    /// By instruction.
    pub(super) known: Vec<Known>,
}

/// Which upper end of a value counts where it has both.
#[derive(Clone, Copy)]
enum UpperBound {
    Symbolic,
    Numbers,
}

impl UpperBound {
    fn of(self, known: &Known) -> Option<SymExpr> {
        let number = || known.high.and_then(|high| high.checked_add(1)).map(SymExpr::from_i64);
        match self {
            UpperBound::Symbolic => known.upper(),
            UpperBound::Numbers => number().or_else(|| known.upper()),
        }
    }
}

/// Ranges of size symbols and loop variables; loop variables beyond the body's stand for values, less their smallest.
struct Ranges<'a> {
    sizes: &'a dyn Bounds,
    extents: &'a [SymExpr],
    values: &'a [SymExpr],
}

impl Bounds for Ranges<'_> {
    fn range(&self, leaf: &Atom) -> (Option<i64>, Option<i64>) {
        self.sizes.range(leaf)
    }
    fn extent(&self, loop_var: u32) -> Option<SymExpr> {
        let n = loop_var as usize;
        self.extents.get(n).or_else(|| self.values.get(n - self.extents.len())).cloned()
    }
}

impl<'a> Analysis<'a> {
    /// Looks at a body over loops of these extents; `accs` says what is known of accumulators of earlier stages.
    pub(super) fn of(
        program: &'a Program,
        extents: &'a [SymExpr],
        insts: &'a [Inst],
        accs: &[Known],
    ) -> Analysis<'a> {
        let mut analysis = Analysis { program, extents, insts, known: Vec::with_capacity(insts.len()) };
        for inst in insts {
            let known = if inst.dtype.is_integral() { analysis.inst(inst, accs) } else { Known::default() };
            analysis.known.push(known);
        }
        analysis
    }

    pub(super) fn program(&self) -> &'a Program {
        self.program
    }
    pub(super) fn extents(&self) -> &'a [SymExpr] {
        self.extents
    }
    fn at(&self, v: Val) -> &Known {
        &self.known[v.0 as usize]
    }
    fn kind(&self, v: Val) -> &'a InstKind {
        &self.insts[v.0 as usize].kind
    }

    fn inst(&self, inst: &Inst, accs: &[Known]) -> Known {
        let ends = dtype_known(inst.dtype);
        let known = match &inst.kind {
            InstKind::Const(c) => Known::number(c.to_class_of(DType::I64).as_i64()),
            InstKind::Index(e) => self.expr(e),
            InstKind::Load { buf, mask, .. } => {
                let from = match self.program.buffers.get(*buf).map(|b| &b.storage) {
                    Some(Storage::Constant(n)) => {
                        self.program.constants.get(*n as usize).and_then(|c| c.range)
                    }
                    _ => None,
                };
                let known = from.map_or_else(|| ends.clone(), |(low, high)| Known::between(low, high));
                // Lanes without the mask give zero.
                if mask.is_some() { known.join(&Known::number(0), &self.program.bounds()) } else { known }
            }
            InstKind::Check { value, size, mask, .. } => self.checked(*value, size, *mask),
            InstKind::Op { op, args } => {
                let args: Vec<&Known> = args.iter().map(|v| self.at(*v)).collect();
                self.op(*op, inst, &args, 0)
            }
            InstKind::Cast(v) => self.cast(*v, inst.dtype, self.at(*v)),
            InstKind::Scan { op: ReduceOp::Max | ReduceOp::Min | ReduceOp::Any | ReduceOp::All, value } => {
                self.at(*value).clone()
            }
            InstKind::Acc(acc) => accs.get(acc.0 as usize).cloned().unwrap_or_default(),
            InstKind::Store { value, .. } | InstKind::Reduce { value, .. } => self.at(*value).clone(),
            InstKind::Bitcast(_) | InstKind::Scan { .. } | InstKind::Template => ends.clone(),
        };
        fitted(known, &ends)
    }

    /// The value of a check: inside of its size where the mask holds.
    fn checked(&self, value: Val, size: &SymExpr, mask: Option<Val>) -> Known {
        let own = self.at(value);
        let below = Some(size.clone()).filter(|e| e.as_const().is_none());
        let high = size.range(&self.program.bounds()).1.and_then(|n| n.checked_sub(1));
        let mut inside = Known { low: Some(0), high, below, ..Known::default() };
        if own.needs.is_empty() {
            inside = Known { below: inside.below.clone(), ..own.meet(&inside) };
        }
        inside.needing(mask.as_slice())
    }

    fn cast(&self, v: Val, to: DType, from: &Known) -> Known {
        let dtype = self.insts[v.0 as usize].dtype;
        match (dtype.is_integral(), to) {
            (true, DType::Bool) => match from.as_number() {
                Some(n) => Known::number(i64::from(n != 0)),
                None if from.low.is_some_and(|low| low > 0) || from.high.is_some_and(|high| high < 0) => {
                    Known::number(1)
                }
                None => Known::truth(),
            },
            (true, _) => from.clone(),
            (false, _) => Known::default(),
        }
    }

    fn op(&self, op: ScalarOp, inst: &Inst, args: &[&Known], depth: u32) -> Known {
        use ScalarOp as O;
        let InstKind::Op { args: vals, .. } = &inst.kind else { return Known::default() };
        let sizes = self.program.bounds();
        if let (O::Select, [mask, a, b]) = (op, args) {
            return match mask.as_number() {
                Some(0) => (*b).clone(),
                Some(_) => (*a).clone(),
                None => self.select(vals, depth),
            };
        }
        let mut known = match (op, args) {
            (O::And | O::Mul | O::Min, [a, b]) if inst.dtype == DType::Bool => a.min(b),
            (O::Or | O::Add | O::Max, [a, b]) if inst.dtype == DType::Bool => a.max(b, &sizes),
            (O::Not, [a]) if inst.dtype == DType::Bool => Known::number(1).sub(a),
            (_, _) if inst.dtype == DType::Bool => Known::decided(self.compare(op, vals, args)),
            (O::Add, [a, b]) => a.add(b),
            (O::Sub, [a, b]) => a.sub(b),
            (O::Mul, [a, b]) => a.mul(b),
            (O::Div, [a, b]) => a.div(b),
            (O::Rem, [a, b]) => a.rem(b),
            (O::Min, [a, b]) => a.min(b),
            (O::Max, [a, b]) => a.max(b, &sizes),
            (O::And, [a, b]) if a.non_negative() && b.non_negative() => Known { low: Some(0), ..a.min(b) },
            (O::Shr, [a, b]) if a.non_negative() && b.non_negative() => {
                Known { low: Some(0), ..(*a).clone() }
            }
            (O::Neg, [a]) => Known::number(0).sub(a),
            (O::Abs, [a]) if a.non_negative() => (*a).clone(),
            (O::Abs, [a]) => match (a.low, a.high) {
                (Some(low), Some(high)) if low > i64::MIN => Known::between(0, high.max(-low)),
                _ => Known::default(),
            },
            (O::Floor | O::Ceil | O::Trunc | O::Round, [a]) => (*a).clone(),
            _ => Known::default(),
        };
        known.needs.clear();
        args.iter().fold(known, |known, a| known.needing(&a.needs))
    }

    /// A comparison that the operands' ranges decide.
    fn compare(&self, op: ScalarOp, vals: &[Val], args: &[&Known]) -> Option<bool> {
        let ([x, y], [a, b]) = (vals, args) else { return None };
        if !self.insts[x.0 as usize].dtype.is_integral() {
            return None;
        }
        let less = |(x, a): (Val, &Known), (y, b): (Val, &Known)| {
            let by_numbers = a.high.zip(b.low).is_some_and(|(high, low)| high < low);
            by_numbers || self.is_below(x, a, y, 0)
        };
        let at_most = |(x, a): (Val, &Known), (y, b): (Val, &Known)| {
            let by_numbers = a.high.zip(b.low).is_some_and(|(high, low)| high <= low);
            by_numbers || x == y || self.is_below(x, a, y, 1)
        };
        let (x, y) = ((*x, *a), (*y, *b));
        let decide = |yes: bool, no: bool| if yes { Some(true) } else { no.then_some(false) };
        match op {
            ScalarOp::Lt => decide(less(x, y), at_most(y, x)),
            ScalarOp::Le => decide(at_most(x, y), less(y, x)),
            ScalarOp::Gt => decide(less(y, x), at_most(x, y)),
            ScalarOp::Ge => decide(at_most(y, x), less(x, y)),
            ScalarOp::Eq => decide(x.0 == y.0, less(x, y) || less(y, x)),
            ScalarOp::Ne => decide(less(x, y) || less(y, x), x.0 == y.0),
            _ => None,
        }
    }

    /// Whether `x - slack` is less than the index expression that `y` is.
    fn is_below(&self, x: Val, a: &Known, y: Val, slack: i64) -> bool {
        let InstKind::Index(bound) = self.kind(y) else { return false };
        let symbolic = a.below.is_some() || matches!(self.kind(x), InstKind::Index(_));
        symbolic && self.is_less(&masks::expr_of(self.insts, x), &(bound + slack))
    }

    /// Either branch, each under what the condition says there.
    fn select(&self, vals: &[Val], depth: u32) -> Known {
        let [mask, a, b] = vals else { return Known::default() };
        let of = |v: Val, holds: bool| {
            let conditions =
                if depth < MAX_DEPTH { masks::conditions(self.insts, *mask, holds) } else { vec![] };
            conditions.iter().fold(self.at(v).clone(), |known, c| {
                let refined = c.refine(self.insts, &self.known);
                refined.map_or(known.clone(), |(x, to)| known.meet(&self.under(v, x, &to, depth + 1)))
            })
        };
        of(*a, true).join(&of(*b, false), &self.program.bounds()).needing(&self.at(*mask).needs)
    }

    /// What is known of `v` where `x` is `to`.
    fn under(&self, v: Val, x: Val, to: &Known, depth: u32) -> Known {
        if v == x {
            return to.clone();
        }
        let inst = &self.insts[v.0 as usize];
        let own = self.at(v).clone();
        if depth >= MAX_DEPTH || v < x || !inst.dtype.is_integral() {
            return own;
        }
        let known = match &inst.kind {
            InstKind::Cast(of) => self.cast(*of, inst.dtype, &self.under(*of, x, to, depth + 1)),
            InstKind::Op { op, args } if *op != ScalarOp::Select && args.len() <= 2 => {
                let args: Vec<Known> = args.iter().map(|a| self.under(*a, x, to, depth + 1)).collect();
                self.op(*op, inst, &args.iter().collect::<Vec<_>>(), depth + 1)
            }
            _ => return own,
        };
        fitted(known, &dtype_known(inst.dtype))
    }

    /// The range of an index expression.
    fn expr(&self, e: &SymExpr) -> Known {
        let sizes = self.program.bounds();
        let Some((moved, values, needs)) = self.spread(e, &[], UpperBound::Symbolic) else {
            return Known::default();
        };
        let ranges = Ranges { sizes: &sizes, extents: self.extents, values: &values };
        let (mut low, high) = moved.range(&ranges);
        low = low.or_else(|| moved.least(&ranges)?.range(&ranges).0);
        let negative = SymExpr::ZERO - &moved;
        let below = negative.least(&ranges).map(|least| SymExpr::ONE - least);
        let below = below.filter(|e| e.as_const().is_none() && !e.any_leaf(|a| matches!(a, Atom::Loop(_))));
        Known { low, high, below, ..Known::default() }.needing(&needs)
    }

    /// The expression with every value replaced by its smallest number and a loop variable beyond the body's, whose
    /// extents come along, and the masks that this takes; `None` where a value has no ends.
    fn spread(
        &self,
        e: &SymExpr,
        facts: &[Fact],
        ends: UpperBound,
    ) -> Option<(SymExpr, Vec<SymExpr>, Vec<Val>)> {
        let (mut order, mut extents, mut needs): (Vec<u32>, Vec<SymExpr>, Vec<Val>) = Default::default();
        let mut all = true;
        e.for_each_leaf(&mut |a| {
            if let Atom::Value(v) = a
                && !order.contains(v)
            {
                let mut known = self.known.get(*v as usize).cloned().unwrap_or_default();
                let alone = SymExpr::value(*v);
                for fact in facts.iter().filter(|f| f.expr == alone) {
                    known = known.meet(&fact.known);
                }
                match (known.low, ends.of(&known)) {
                    (Some(low), Some(upper)) => {
                        order.push(*v);
                        extents.push(upper - low);
                        needs.extend(known.needs);
                    }
                    _ => all = false,
                }
            }
        });
        if !all {
            return None;
        }
        let lows: Vec<i64> = order.iter().map(|v| self.low_of(*v, facts)).collect();
        let base = self.extents.len() as u32;
        let moved = e.subst(&|a| match a {
            Atom::Value(v) => {
                let n = order.iter().position(|o| o == v)?;
                Some(SymExpr::loop_var(base + n as u32) + lows[n])
            }
            _ => None,
        });
        Some((moved, extents, needs))
    }

    fn low_of(&self, v: u32, facts: &[Fact]) -> i64 {
        let alone = SymExpr::value(v);
        let own = self.known.get(v as usize).and_then(|k| k.low);
        let known_low = facts.iter().filter(|f| f.expr == alone).filter_map(|f| f.known.low).max();
        own.into_iter().chain(known_low).max().unwrap_or(0)
    }

    /// Whether `e` is less than `bound` at all points.
    fn is_less(&self, e: &SymExpr, bound: &SymExpr) -> bool {
        let sizes = self.program.bounds();
        let Some((moved, values, _)) = self.spread(&(bound - e - 1), &[], UpperBound::Symbolic) else {
            return false;
        };
        let ranges = Ranges { sizes: &sizes, extents: self.extents, values: &values };
        moved.simplify(&ranges).is_non_negative(&ranges)
    }

    /// Whether an index lies in `0..size` at every point where all of these masks hold.
    pub(super) fn is_in_bounds(&self, e: &SymExpr, size: &SymExpr, masks: &[Val]) -> bool {
        let holding: Vec<Val> = masks.iter().flat_map(|m| masks::conjuncts(self.insts, *m)).collect();
        let facts: Vec<Fact> =
            holding.iter().flat_map(|m| masks::facts(self.insts, &self.known, *m)).collect();
        // What holds under a mask alone counts where that mask holds.
        let granted = |needs: &[Val]| {
            needs.iter().all(|n| masks::conjuncts(self.insts, *n).iter().all(|c| holding.contains(c)))
        };
        if let Some(Atom::Value(v)) = e.as_atom()
            && let InstKind::Check { size: checked, mask, .. } = &self.insts[*v as usize].kind
            && checked == size
            && granted(mask.as_slice())
        {
            return true;
        }
        let sizes = self.program.bounds();
        let (mut above, mut below) = (false, false);
        for ends in [UpperBound::Symbolic, UpperBound::Numbers] {
            if let Some((moved, values, needs)) = self.spread(e, &facts, ends)
                && !(above && below)
                && granted(&needs)
            {
                let ranges = Ranges { sizes: &sizes, extents: self.extents, values: &values };
                let moved = moved.simplify(&ranges);
                above |= moved.is_non_negative(&ranges);
                below |= moved.is_less_than(size, &ranges);
            }
        }
        for fact in &facts {
            let Some(offset) = (e - &fact.expr).as_const() else { continue };
            if !granted(&fact.known.needs) {
                continue;
            }
            let ranges = Ranges { sizes: &sizes, extents: self.extents, values: &[] };
            above |= fact.known.low.is_some_and(|low| low.saturating_add(offset) >= 0);
            below |= fact.known.upper().is_some_and(|u| (size - u - offset).is_non_negative(&ranges));
        }
        above && below
    }

    /// Whether the check that instruction `n` is always holds.
    pub(super) fn proves(&self, n: usize) -> bool {
        let InstKind::Check { value, size, mask, .. } = &self.insts[n].kind else { return false };
        self.is_in_bounds(&masks::expr_of(self.insts, *value), size, mask.as_slice())
    }

    /// What a reduction of this stage gives to later ones.
    pub(super) fn accumulated(&self, op: ReduceOp, value: Val, position: Option<Val>) -> Known {
        if !self.at(position.unwrap_or(value)).needs.is_empty() {
            return Known::default();
        }
        let sizes = self.program.bounds();
        let ranges = Ranges { sizes: &sizes, extents: self.extents, values: &[] };
        let some = self.extents.iter().all(|e| e.range(&ranges).0.is_some_and(|n| n > 0));
        match (op, position) {
            // Over nothing a position is whatever the backend begins with.
            (ReduceOp::ArgMax | ReduceOp::ArgMin, Some(position)) if some => self.at(position).clone(),
            (ReduceOp::Any | ReduceOp::All, _) => Known::truth(),
            (ReduceOp::Max | ReduceOp::Min, _) => {
                let dtype = self.insts[value.0 as usize].dtype;
                let start = match op.identity(dtype) {
                    Scalar::Float(_) => Known::default(),
                    start => Known::number(start.as_i64()),
                };
                if some { self.at(value).clone() } else { self.at(value).join(&start, &sizes) }
            }
            _ => Known::default(),
        }
    }
}

/// All that an integer dtype can hold; nothing is known of 64 bits.
fn dtype_known(dtype: DType) -> Known {
    match dtype.ends() {
        _ if dtype == DType::I64 => Known::default(),
        (Scalar::Float(_) | Scalar::Complex(..), _) => Known::default(),
        (low, high) => Known::between(low.as_i64(), high.as_i64()),
    }
}

/// What is known once the value is of a dtype: where it might not fit, it wraps to anything.
fn fitted(known: Known, ends: &Known) -> Known {
    match (ends.low, ends.high) {
        (Some(low), Some(high)) if !known.within(low, high) => Known { needs: known.needs, ..ends.clone() },
        _ => known,
    }
}
