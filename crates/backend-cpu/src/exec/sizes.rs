//! Sizes of a call: binds the size symbols from the inputs, checks what the program promises, and evaluates expressions.

use ir_core::{Atom, EntityId, SymExpr, SymId};
use kernel_ir::Program;

use super::ExecError;

/// Which dimension of which input gives each symbol, and which dimensions only have to agree.
pub(crate) struct Binder {
    /// `(input, dimension, symbol)`.
    binds: Vec<(usize, usize, SymId)>,
    /// `(input, dimension, expression)`.
    checks: Vec<(usize, usize, SymExpr)>,
}

/// Values of the size symbols.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Sizes(pub(crate) Vec<i64>);

impl Sizes {
    /// The value of an expression over sizes.
    pub(crate) fn eval(&self, e: &SymExpr) -> Result<i64, ExecError> {
        if let Some(n) = e.as_const() {
            return Ok(n);
        }
        let leaf = |a: &Atom| match a {
            Atom::Sym(id) => self.0.get(id.index()).copied(),
            _ => None,
        };
        e.eval(&leaf).ok_or_else(|| ExecError::Unbound(e.to_string()))
    }
    /// The values of several.
    pub(crate) fn all(&self, es: &[SymExpr]) -> Result<Vec<i64>, ExecError> {
        es.iter().map(|e| self.eval(e)).collect()
    }
}

impl Binder {
    pub(crate) fn new(program: &Program) -> Binder {
        let (mut binds, mut checks) = (Vec::new(), Vec::new());
        let mut bound = vec![false; program.symbols.len()];
        for (i, input) in program.inputs.iter().enumerate() {
            for (d, e) in program.buffers[input.buf].sizes.iter().enumerate() {
                match e.as_sym() {
                    Some(id) if !bound[id.index()] => {
                        bound[id.index()] = true;
                        binds.push((i, d, id));
                    }
                    _ => checks.push((i, d, e.clone())),
                }
            }
        }
        Binder { binds, checks }
    }

    /// Binds and checks; `size(input, dimension)` gives the tensors' sizes, whose ranks were checked.
    pub(crate) fn bind(
        &self,
        program: &Program,
        size: &dyn Fn(usize, usize) -> i64,
    ) -> Result<Sizes, ExecError> {
        // A symbol that no input gives keeps its hint or its lower bound; nothing can depend on it but itself.
        let start = program.symbols.values().map(|s| s.hint.unwrap_or(s.min));
        let mut sizes = Sizes(start.collect());
        for &(i, d, id) in &self.binds {
            let (got, symbol) = (size(i, d), &program.symbols[id]);
            if got < symbol.min || symbol.max.is_some_and(|max| got > max) {
                let max = symbol.max.map_or(String::new(), |m| format!("={m}"));
                return Err(ExecError::Range {
                    name: program.inputs[i].name.clone(),
                    dim: d,
                    got,
                    range: format!("{}..{max}", symbol.min),
                    symbol: symbol.name.clone(),
                });
            }
            sizes.0[id.index()] = got;
        }
        for (i, d, e) in &self.checks {
            let (got, expected) = (size(*i, *d), sizes.eval(e)?);
            if got != expected {
                let name = program.inputs[*i].name.clone();
                return Err(ExecError::Size { name, dim: *d, got, expected, expr: e.to_string() });
            }
        }
        Ok(sizes)
    }
}
