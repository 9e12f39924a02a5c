//! Values of the size symbols of a call.

use ir_core::{Atom, EntityId, SymExpr, SymId};
use kernel_ir::Program;

use crate::GpuError;

/// One value a symbol.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Sizes(pub(crate) Vec<i64>);

impl Sizes {
    /// Values at capture, or the smallest ones.
    pub(crate) fn hints(program: &Program) -> Sizes {
        Sizes(program.symbols.values().map(|s| s.hint.unwrap_or(s.min)).collect())
    }

    /// The value of an expression.
    pub(crate) fn eval(&self, e: &SymExpr) -> Result<i64, GpuError> {
        let leaf = |a: &Atom| match a {
            Atom::Sym(id) => self.0.get(id.index()).copied(),
            _ => None,
        };
        e.eval(&leaf).ok_or_else(|| GpuError::Malformed(format!("the size {e} has no value")))
    }
    /// The values of several.
    pub(crate) fn all(&self, es: &[SymExpr]) -> Result<Vec<i64>, GpuError> {
        es.iter().map(|e| self.eval(e)).collect()
    }

    /// Binds the symbols from the sizes of a call's inputs and checks all others.
    pub(crate) fn bind(program: &Program, sizes_of: &[&[i64]]) -> Result<Sizes, GpuError> {
        if program.inputs.len() != sizes_of.len() {
            let (wants, got) = (program.inputs.len(), sizes_of.len());
            return Err(GpuError::Argument(format!("the program takes {wants} inputs, {got} were given")));
        }
        let mut sizes = Sizes::hints(program);
        let mut bound = vec![false; program.symbols.len()];
        let declared = || program.inputs.iter().zip(sizes_of);
        for (input, got) in declared() {
            let wanted = &program.buffers[input.buf].sizes;
            if wanted.len() != got.len() {
                let what =
                    format!("input `{}` has {} dimensions, not {}", input.name, wanted.len(), got.len());
                return Err(GpuError::Argument(what));
            }
            for (d, (e, &n)) in wanted.iter().zip(*got).enumerate() {
                if let Some(id) = e.as_sym().filter(|id| !bound[id.index()]) {
                    bound[id.index()] = true;
                    sizes.set(program, id, n).map_err(|_| {
                        let problem = e.misfit(d, n, None, &program.bounds());
                        GpuError::Argument(format!("input `{}`: {problem}", input.name))
                    })?;
                }
            }
        }
        for (input, got) in declared() {
            for (d, (e, &n)) in program.buffers[input.buf].sizes.iter().zip(*got).enumerate() {
                if sizes.eval(e)? != n {
                    let what = format!("dimension {d} of input `{}` is {n}, it must be {e}", input.name);
                    return Err(GpuError::Argument(what));
                }
            }
        }
        Ok(sizes)
    }

    /// Gives a symbol its value, which must be in its range.
    pub(crate) fn set(&mut self, program: &Program, id: SymId, value: i64) -> Result<(), String> {
        let symbol = &program.symbols[id];
        if value < symbol.min || symbol.max.is_some_and(|max| value > max) {
            let max = symbol.max.map_or("unbounded".to_owned(), |m| m.to_string());
            return Err(format!("`{}` is {value}, outside of {} to {max}", symbol.name, symbol.min));
        }
        self.0[id.index()] = value;
        Ok(())
    }
}
