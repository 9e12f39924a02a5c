//! Sizes of a call: binds the size symbols from the inputs, checks what the program promises, and evaluates expressions.

use ir_core::{Atom, EntityId, SymExpr, SymId};
use kernel_ir::Program;

use super::ExecError;

/// Which dimension of which input gives each symbol, and which dimensions only have to agree.
pub(crate) struct Binder {
    binds: Vec<Bind>,
    /// `(input, dimension, expression)`.
    checks: Vec<(usize, usize, SymExpr)>,
}

/// A symbol that a dimension gives: the size is `factor * symbol + offset`.
struct Bind {
    input: usize,
    dim: usize,
    symbol: SymId,
    factor: i64,
    offset: i64,
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
        let mut bound = vec![false; program.symbols.len()];
        let sizes = program.inputs.iter().enumerate().flat_map(|(i, input)| {
            let sizes = program.buffers[input.buf].sizes.iter().enumerate();
            sizes.map(move |(d, e)| (i, d, e.clone()))
        });
        let (mut binds, mut checks) = (Vec::new(), Vec::new());
        for (input, dim, e) in sizes {
            match affine(&e) {
                Some((symbol, factor, offset)) if !bound[symbol.index()] => {
                    bound[symbol.index()] = true;
                    // What does not divide shows when the dimension is checked.
                    if (factor, offset) != (1, 0) {
                        checks.push((input, dim, e));
                    }
                    binds.push(Bind { input, dim, symbol, factor, offset });
                }
                _ => checks.push((input, dim, e)),
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
        for &Bind { input: i, dim: d, symbol: id, factor, offset } in &self.binds {
            let (size, symbol) = (size(i, d), &program.symbols[id]);
            let got = size.saturating_sub(offset).div_euclid(factor);
            if got < symbol.min || symbol.max.is_some_and(|max| got > max) {
                let expr = &program.buffers[program.inputs[i].buf].sizes[d];
                let problem = expr.misfit(d, size, None, &program.bounds());
                return Err(ExecError::Range { name: program.inputs[i].name.clone(), problem });
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

/// The one symbol of an expression `factor * symbol + offset` with a positive factor.
fn affine(e: &SymExpr) -> Option<(SymId, i64, i64)> {
    let (terms, offset) = e.terms();
    match terms[..] {
        [(factor, [Atom::Sym(symbol)])] if factor > 0 => Some((*symbol, factor, offset)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn affine_sizes_give_their_symbol() {
        let (s, t) = (SymId(0), SymId(1));
        let (x, y) = (SymExpr::sym(s), SymExpr::sym(t));
        assert_eq!(affine(&x), Some((s, 1, 0)));
        assert_eq!(affine(&(&y * 32 + 1)), Some((t, 32, 1)));
        assert_eq!(affine(&(&x + &y)), None);
        assert_eq!(affine(&(&x * &x)), None);
        assert_eq!(affine(&(&x * -1)), None);
        assert_eq!(affine(&x.floor_div(&2.into())), None);
        assert_eq!(affine(&SymExpr::from_i64(7)), None);
    }
}
