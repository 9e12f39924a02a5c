//! Conditions on sizes: what a rule takes for granted is proved from the symbols' ranges and the guards known so far, or
//! refused, or recorded. What inputs decide becomes a guard of the graph; what only running tells (sizes of unbacked
//! symbols) becomes an assertion in front of the call that needs it. Nothing here knows an operator.

use std::cell::RefCell;

use fx_ir::{Arg, Graph, NodeKind};
use ir_core::{Atom, Guard, Origin, Relation, SymExpr, TensorMeta};

use crate::{Builder, Call, OpError, scalars};

/// A condition on sizes that ranges and guards do not decide.
#[derive(Clone, Debug, PartialEq)]
pub struct Requirement {
    /// An expression in size symbols.
    pub expression: SymExpr,
    /// How it must compare with zero.
    pub relation: Relation,
    /// What to say where it does not: `n elements do not fill the shape [2, m]`.
    pub what: String,
}

/// What a meta rule sees, and what it finds that must hold.
pub struct MetaCx<'a> {
    /// The graph that holds the operands.
    pub graph: &'a Graph,
    needs: RefCell<Vec<Requirement>>,
}

/// Whether the condition holds in every call, or in none, as far as the graph knows.
fn decided(graph: &Graph, relation: Relation, expression: &SymExpr) -> Option<bool> {
    if let Some(value) = expression.as_const() {
        return Some(relation.holds(value));
    }
    if !expression.any_leaf(|_| true) {
        // A division by zero, the only number that has no value.
        return Some(false);
    }
    relation.decided_given(expression, &graph.symbols, &graph.guards)
}

impl<'a> MetaCx<'a> {
    /// For operands in this graph.
    pub fn new(graph: &'a Graph) -> MetaCx<'a> {
        MetaCx { graph, needs: RefCell::new(Vec::new()) }
    }
    /// What the rule found that must hold in a call and is not decided.
    pub fn needs(self) -> Vec<Requirement> {
        self.needs.into_inner()
    }
    /// The meta of a tensor operand.
    pub fn meta(&self, call: &Call<'_>, arg: &str) -> Result<&'a TensorMeta, OpError> {
        let value = call.value(arg)?;
        self.graph.meta(value).ok_or_else(|| call.bad_arg(arg, "is not a tensor"))
    }
    /// Whether the condition holds in every call, or in none, as far as is known.
    pub(crate) fn decided(&self, relation: Relation, expression: &SymExpr) -> Option<bool> {
        decided(self.graph, relation, expression)
    }
    /// The expression must compare so with zero; `what` is said where it does not.
    pub(crate) fn require(
        &self,
        call: &Call<'_>,
        relation: Relation,
        expression: SymExpr,
        what: impl FnOnce() -> String,
    ) -> Result<(), OpError> {
        match decided(self.graph, relation, &expression) {
            Some(true) => Ok(()),
            Some(false) => Err(call.invalid(what())),
            None => {
                self.needs.borrow_mut().push(Requirement { expression, relation, what: what() });
                Ok(())
            }
        }
    }
    /// Two sizes must be equal.
    pub(crate) fn equal(
        &self,
        call: &Call<'_>,
        a: &SymExpr,
        b: &SymExpr,
        what: impl FnOnce() -> String,
    ) -> Result<(), OpError> {
        if a == b { Ok(()) } else { self.require(call, Relation::Zero, a - b, what) }
    }
    /// Two shapes must be equal.
    pub(crate) fn equal_sizes(
        &self,
        call: &Call<'_>,
        a: &[SymExpr],
        b: &[SymExpr],
        what: impl Fn() -> String,
    ) -> Result<(), OpError> {
        if a.len() != b.len() {
            return Err(call.invalid(what()));
        }
        a.iter().zip(b).try_for_each(|(a, b)| self.equal(call, a, b, &what))
    }
    /// A number of elements, a distance or a size must not be negative.
    pub(crate) fn non_negative(
        &self,
        call: &Call<'_>,
        e: &SymExpr,
        what: impl FnOnce() -> String,
    ) -> Result<(), OpError> {
        self.require(call, Relation::NonNegative, e.clone(), what)
    }
    /// Sizes of a result must not be negative.
    pub(crate) fn sizes(&self, call: &Call<'_>, sizes: &[SymExpr]) -> Result<(), OpError> {
        let what = || format!("the sizes {} must not be negative", self.graph.sizes_text(sizes));
        sizes.iter().try_for_each(|s| self.non_negative(call, s, what))
    }
    /// Sizes as text, by the names of their symbols.
    pub(crate) fn text(&self, sizes: &[SymExpr]) -> String {
        self.graph.sizes_text(sizes)
    }
}

impl Builder<'_> {
    /// The expression must compare so with zero in every call of the graph: proved, or refused, or recorded as a guard (as an
    /// assertion, where only running tells). `what` says what is wrong where it does not hold.
    ///
    /// # Errors
    /// It never holds.
    pub fn require(
        &mut self,
        relation: Relation,
        expression: SymExpr,
        what: impl FnOnce(&Graph) -> String,
    ) -> Result<(), OpError> {
        match decided(self.graph(), relation, &expression) {
            Some(true) => Ok(()),
            Some(false) => Err(OpError::Invalid { op: self.name().into(), what: what(self.graph()) }),
            None => {
                let what = what(self.graph());
                self.record(Requirement { expression, relation, what });
                Ok(())
            }
        }
    }

    /// Two sizes must be equal in every call of the graph, as in [`require`](Builder::require).
    ///
    /// # Errors
    /// They never are.
    pub fn require_equal(
        &mut self,
        a: &SymExpr,
        b: &SymExpr,
        what: impl FnOnce(&Graph) -> String,
    ) -> Result<(), OpError> {
        if a == b { Ok(()) } else { self.require(Relation::Zero, a - b, what) }
    }

    /// A choice between two ways of computing, made for all calls: whether the expression compares so with zero. Where that is
    /// not decided the sizes at capture say, or `otherwise`, and calls of which it is not true are refused with `what`.
    ///
    /// # Errors
    /// None at present: either way is a valid graph.
    pub(crate) fn choose(
        &mut self,
        relation: Relation,
        expression: &SymExpr,
        otherwise: bool,
        what: impl FnOnce(&Graph) -> String,
    ) -> Result<bool, OpError> {
        if let Some(known) = decided(self.graph(), relation, expression) {
            return Ok(known);
        }
        let hint = |a: &Atom| match a {
            Atom::Sym(id) => self.graph().symbols.get(*id)?.hint,
            _ => None,
        };
        let chosen = expression.eval(&hint).map_or(otherwise, |value| relation.holds(value));
        let (relation, expression) = match (chosen, relation) {
            (true, relation) => (relation, expression.clone()),
            (false, Relation::Zero) => (Relation::NonZero, expression.clone()),
            (false, Relation::NonZero) => (Relation::Zero, expression.clone()),
            (false, Relation::NonNegative) => (relation, SymExpr::from_i64(-1) - expression),
        };
        self.require(relation, expression, what)?;
        Ok(chosen)
    }

    /// A size must be at least so many.
    pub(crate) fn require_at_least(
        &mut self,
        size: &SymExpr,
        least: impl Into<SymExpr>,
        what: impl FnOnce(&Graph) -> String,
    ) -> Result<(), OpError> {
        self.require(Relation::NonNegative, size - least.into(), what)
    }

    /// Keeps what a call must hold to.
    pub(crate) fn record(&mut self, need: Requirement) {
        let unbacked = |a: &Atom| self.graph().symbols.is_unbacked(a);
        if need.expression.any_leaf(unbacked) {
            let pred = Arg::Int(truth(need.relation, &need.expression));
            if !asserts(self.graph(), &pred) {
                self.assert(pred, &need.what);
            }
            return;
        }
        let Requirement { expression, relation, what: message } = need;
        let mut origin = self.origin();
        if origin == Origin::default() {
            origin.function = self.name().into();
        }
        self.add_guard(Guard { expression, relation, origin, message });
    }
}

/// Whether the graph asserts this already.
fn asserts(graph: &Graph, pred: &Arg) -> bool {
    graph.iter().any(|(_, node)| match &node.kind {
        NodeKind::Call { target, args } => target == scalars::ASSERT && args.first() == Some(pred),
        NodeKind::Placeholder { .. } => false,
    })
}

/// 1 where the expression compares so with zero, else 0.
fn truth(relation: Relation, e: &SymExpr) -> SymExpr {
    let one = SymExpr::ONE;
    let differs = || e.sym_max(&(SymExpr::ZERO - e)).sym_min(&one);
    match relation {
        Relation::Zero => &one - differs(),
        Relation::NonZero => differs(),
        Relation::NonNegative => e.sym_max(&SymExpr::from_i64(-1)).sym_min(&SymExpr::ZERO) + 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn truth_is_one_where_the_relation_holds() {
        for relation in Relation::ALL {
            let e = truth(relation, &SymExpr::sym(ir_core::SymId(0)));
            for value in [-7, -1, 0, 1, 9] {
                assert_eq!(
                    e.eval(&|_| Some(value)),
                    Some(i64::from(relation.holds(value))),
                    "{relation:?} {value}"
                );
            }
        }
    }
}
