//! Values of the size symbols of a call.

use ir_core::{Atom, EntityId, SymExpr, SymId};
use smallvec::SmallVec;

use super::RunError;
use crate::Program;

/// Sizes or strides of a tensor, in place up to six dimensions.
pub type Extents = SmallVec<[i64; 6]>;

/// One value per symbol, by the symbol's number. A symbol that is not bound yet has its hint or the start of its range.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Sizes(Vec<i64>);

impl Sizes {
    /// Values at capture, or the smallest ones: for work before the first call.
    pub fn hints(program: &Program) -> Sizes {
        Sizes(program.symbols.values().map(|s| s.likely(s.min)).collect())
    }
    /// Values by the symbols' numbers.
    pub(super) fn of(values: Vec<i64>) -> Sizes {
        Sizes(values)
    }
    /// The values that it is made of.
    pub(super) fn into_values(self) -> Vec<i64> {
        self.0
    }
    /// The values by the symbols' numbers, as kernels are given them.
    pub fn values(&self) -> &[i64] {
        &self.0
    }
    /// The value of a symbol; `None` where the program has no such symbol.
    pub fn get(&self, id: SymId) -> Option<i64> {
        self.0.get(id.index()).copied()
    }
    /// Gives a symbol of the program its value.
    pub fn set(&mut self, id: SymId, value: i64) {
        if let Some(slot) = self.0.get_mut(id.index()) {
            *slot = value;
        }
    }
    /// The value of an expression over sizes.
    ///
    /// # Errors
    /// It mentions something else, divides by zero or does not fit 64 bits.
    pub fn eval(&self, e: &SymExpr) -> Result<i64, RunError> {
        if let Some(n) = e.as_const() {
            return Ok(n);
        }
        let leaf = |a: &Atom| match a {
            Atom::Sym(id) => self.get(*id),
            _ => None,
        };
        e.eval(&leaf).ok_or_else(|| RunError::Unbound(e.to_string()))
    }
    /// The values of several.
    ///
    /// # Errors
    /// As for [`eval`](Sizes::eval).
    pub fn all(&self, es: &[SymExpr]) -> Result<Vec<i64>, RunError> {
        es.iter().map(|e| self.eval(e)).collect()
    }
    /// The same without memory of its own for as many as tensors have dimensions: for executors, which need them at each step.
    ///
    /// # Errors
    /// As for [`eval`](Sizes::eval).
    pub fn extents(&self, es: &[SymExpr]) -> Result<Extents, RunError> {
        let mut all = Extents::with_capacity(es.len());
        for e in es {
            all.push(self.eval(e)?);
        }
        Ok(all)
    }
}
