//! Types of the arguments of a function.

use fx_ir::{Symbol, Symbols};
use ir_core::{DType, SymExpr, TensorMeta};
use tensor::Tensor;

/// dtypes and sizes of a function's arguments, and the symbols that are in the sizes.
#[derive(Clone, Debug, Default)]
pub struct Types {
    pub(super) metas: Vec<TensorMeta>,
    pub(super) symbols: Symbols,
}

impl Types {
    /// No arguments yet.
    pub fn new() -> Types {
        Types::default()
    }
    /// The types of these tensors, with fixed sizes.
    pub fn of(tensors: &[Tensor]) -> Types {
        let sizes = |t: &Tensor| t.sizes().iter().map(|&s| SymExpr::from_i64(s as i64)).collect::<Vec<_>>();
        tensors.iter().fold(Types::new(), |types, t| types.tensor(t.dtype(), sizes(t)))
    }
    /// One more argument.
    pub fn tensor(mut self, dtype: DType, sizes: impl IntoIterator<Item = impl Into<SymExpr>>) -> Types {
        self.metas.push(TensorMeta::contiguous(dtype, sizes.into_iter().map(Into::into)));
        self
    }
    /// A size known only at the call, `min` or more, at most `max` where there is one.
    pub fn symbol(&mut self, name: &str, min: i64, max: Option<i64>) -> SymExpr {
        let symbol = Symbol { name: name.into(), min, max, hint: None, unbacked: false };
        SymExpr::sym(self.symbols.push(symbol))
    }
    /// The same symbols with other arguments.
    pub(super) fn with(&self, metas: Vec<TensorMeta>) -> Types {
        Types { metas, symbols: self.symbols.clone() }
    }
}
