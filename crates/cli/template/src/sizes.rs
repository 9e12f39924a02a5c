//! Size symbols: one compiled program serves every size in range, so sizes are known at a call only.

use plugin_sdk::ir_core::{Atom, SymExpr};
use plugin_sdk::kernel_ir::Program;
use plugin_sdk::{PluginError, TensorView};

/// The value of each size symbol; `None` where nothing has told it yet.
pub(crate) struct Sizes(Vec<Option<i64>>);

impl Sizes {
    /// Nothing is known: the time of the init steps, whose sizes are numbers.
    pub(crate) fn unbound(program: &Program) -> Sizes {
        Sizes(vec![None; program.symbols.len()])
    }

    /// Reads the symbols off the inputs' sizes, and checks what the program states of its inputs.
    pub(crate) fn bind(program: &Program, inputs: &[TensorView<'_>]) -> Result<Sizes, PluginError> {
        let mut sizes = Sizes::unbound(program);
        for (spec, input) in program.inputs.iter().zip(inputs) {
            let buffer = &program.buffers[spec.buf];
            if input.dtype() != buffer.dtype || input.sizes().len() != buffer.sizes.len() {
                let (got, rank) = (input.dtype(), input.sizes().len());
                return Err(PluginError::invalid(format!(
                    "is {got} with {rank} dimensions, but must be {} with {}",
                    buffer.dtype,
                    buffer.sizes.len()
                ))
                .at(&spec.name));
            }
            for (expr, &size) in buffer.sizes.iter().zip(input.sizes()) {
                sizes.solve(expr, size);
            }
        }
        sizes.check_ranges(program)?;
        for (spec, input) in program.inputs.iter().zip(inputs) {
            for (d, (expr, &size)) in program.buffers[spec.buf].sizes.iter().zip(input.sizes()).enumerate() {
                let expected = sizes.eval(expr)?;
                if expected != size {
                    let text = format!("dimension {d} is {size}, but must be {expected} (`{expr}`)");
                    return Err(PluginError::invalid(text).at(&spec.name));
                }
            }
        }
        Ok(sizes)
    }

    /// Binds the symbol of `factor * symbol + offset`; what does not divide shows when the size is checked.
    fn solve(&mut self, expr: &SymExpr, size: i64) {
        let (terms, offset) = expr.terms();
        if let [(factor, [Atom::Sym(symbol)])] = terms[..]
            && factor > 0
        {
            self.0[symbol.0 as usize].get_or_insert(size.saturating_sub(offset).div_euclid(factor));
        }
    }

    fn check_ranges(&self, program: &Program) -> Result<(), PluginError> {
        for (symbol, value) in program.symbols.values().zip(&self.0) {
            let Some(value) = *value else { continue };
            if value < symbol.min || symbol.max.is_some_and(|max| value > max) {
                let max = symbol.max.map_or("any".to_owned(), |m| m.to_string());
                return Err(PluginError::invalid(format!(
                    "the size `{}` is {value}, but the program was compiled for {} to {max}",
                    symbol.name, symbol.min
                )));
            }
        }
        Ok(())
    }

    /// The value of a size expression.
    pub(crate) fn eval(&self, expr: &SymExpr) -> Result<i64, PluginError> {
        let leaf = |atom: &Atom| match atom {
            Atom::Sym(id) => self.0.get(id.0 as usize).copied().flatten(),
            _ => None,
        };
        expr.eval(&leaf).ok_or_else(|| PluginError::invalid(format!("no input tells the size `{expr}`")))
    }

    /// The values of several.
    pub(crate) fn all(&self, exprs: &[SymExpr]) -> Result<Vec<i64>, PluginError> {
        exprs.iter().map(|e| self.eval(e)).collect()
    }

    /// The value of a symbol inside of an index expression.
    pub(crate) fn symbol(&self, id: plugin_sdk::ir_core::SymId) -> Option<i64> {
        self.0.get(id.0 as usize).copied().flatten()
    }
}
