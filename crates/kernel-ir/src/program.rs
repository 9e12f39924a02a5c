//! A program: buffers, inputs, constants, outputs and the steps that make the outputs from the inputs.

use ir_core::{Arena, DType, Guard, Shape, SymExpr, Symbols};
use serde::{Deserialize, Serialize};

use crate::{ArenaPlan, BufId, Step};

/// A program: the data that crosses the boundary to a backend.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Program {
    /// Name of the model.
    pub name: String,
    /// Size symbols.
    pub symbols: Symbols,
    /// Conditions on the sizes that hold in every call. The caller checks it before the backend is asked, so a backend need not
    /// read it. Since 1.6, left out where there is none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub guards: Vec<Guard>,
    /// The origins of index checks ([`InstKind::Check`](crate::InstKind::Check)), for their messages. Since 1.6.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sites: Vec<Site>,
    /// Whether the compiler's user answers for indices from data: none of them is checked. Since 1.6.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unchecked_indices: bool,
    /// Buffers.
    pub buffers: Arena<BufId, Buffer>,
    /// Inputs of a call, in order.
    pub inputs: Vec<InputSpec>,
    /// Constants (weights), bound once by name.
    pub constants: Vec<Const>,
    /// Outputs of a call, in order.
    pub outputs: Vec<OutputSpec>,
    /// Runs once when the constants are bound: computes the `Persistent` buffers. Reads constants only.
    pub init: Vec<Step>,
    /// Runs at every call, in order.
    pub steps: Vec<Step>,
    /// The memory plan of the `Arena` buffers.
    pub plan: ArenaPlan,
}

/// The origin of an index check.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Site {
    /// The operator: `aten.embedding.default`.
    pub operator: String,
    /// Its place in the user's program, as far as that is known.
    pub origin: String,
    /// The dimension that the index is of, as the operator's author counts them.
    pub dim: u32,
    /// Whether negative indices count from the end, so that the checked value has the size added where it was negative.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub wraps: bool,
    /// The constant whose declared range replaces checks of this site ([`Const::range`]).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub constant: Option<u32>,
}

/// A piece of typed, strided memory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Buffer {
    /// Name, from the value it holds.
    pub name: String,
    /// Element type.
    pub dtype: DType,
    /// Logical sizes.
    #[serde(deserialize_with = "crate::wire::bounded")]
    pub sizes: Shape,
    /// Strides in elements.
    #[serde(deserialize_with = "crate::wire::bounded")]
    pub strides: Shape,
    /// Elements before the first one within the storage (views only).
    pub offset: SymExpr,
    /// Where the memory is.
    pub storage: Storage,
}

/// The storage class of a buffer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Storage {
    /// The caller's tensor number n as before the call; never stored to. Where the input is declared written
    /// ([`InputSpec::written`]), stores go to views of it.
    Input(u32),
    /// Constant number n; never written.
    Constant(u32),
    /// Computed by the init steps, kept while the executable lives.
    Persistent,
    /// In the arena, at the plan's offset; contents last from the first write to the last read of a call. Where the
    /// size mentions an unbacked symbol: memory of its own, from the first write after the symbol is bound to the
    /// plan's last use.
    Arena,
    /// A fresh allocation of each call that the caller receives (made at the first write where the size is unbacked).
    Output,
    /// Part of another buffer's memory (which is not itself a view): strides and offset are within it.
    View(BufId),
}

/// An input of a call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct InputSpec {
    /// Name of the argument.
    pub name: String,
    /// Its buffer; the tensor given must have the buffer's dtype, sizes (which bind the symbols) and strides.
    pub buf: BufId,
    /// Whether the call gives the caller's tensor a new value in place. Steps store it to views of the buffer (elements
    /// that no step stores to keep theirs); the buffer itself names the old value, which nothing reads once a view is
    /// stored to. The tensor must be writable, and nothing else may use it during the call. Since 1.4.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub written: bool,
}

/// A constant.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Const {
    /// Name of the parameter or buffer: `layer1.0.conv1.weight`.
    pub name: String,
    /// Its buffer.
    pub buf: BufId,
    /// Smallest and largest value that steps rely on where elements are indices; checked when the constant is bound.
    /// Since 1.6.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub range: Option<(i64, i64)>,
}

/// An output of a call: a strided view of a buffer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OutputSpec {
    /// Name of the value.
    pub name: String,
    /// The buffer; its storage is `Output`, `Input`, `Constant` or `Persistent` (the latter three are copied).
    pub buf: BufId,
    /// Sizes of the tensor returned.
    #[serde(deserialize_with = "crate::wire::bounded")]
    pub sizes: Shape,
    /// Its strides in elements.
    #[serde(deserialize_with = "crate::wire::bounded")]
    pub strides: Shape,
    /// Its first element within the buffer.
    pub offset: SymExpr,
}

impl Site {
    /// The operator and its place: `` `aten.embedding.default` (model.py:12) ``.
    pub fn name(&self) -> String {
        let at = if self.origin.is_empty() { String::new() } else { format!(" ({})", self.origin) };
        format!("`{}`{at}", self.operator)
    }
    /// The message for an index that fails the check of this site.
    pub fn message(&self, index: i64, size: i64) -> String {
        let (name, dim) = (self.name(), self.dim);
        // A negative value is still negative after the size was added, or it would have been in bounds.
        let index = if self.wraps && index < 0 { index.wrapping_sub(size) } else { index };
        format!("{name}: index {index} is out of bounds for dimension {dim} with size {size}")
    }
}

impl Buffer {
    /// Elements of memory that the buffer spans, `1 + Σ (size - 1) * stride`; 0 where a size is 0.
    pub fn span(&self) -> SymExpr {
        if self.sizes.contains(&SymExpr::ZERO) {
            return SymExpr::ZERO;
        }
        self.sizes.iter().zip(&self.strides).fold(SymExpr::ONE, |n, (size, stride)| n + (size - 1) * stride)
    }
    /// Address in elements of a logical index.
    pub fn address(&self, index: &[SymExpr]) -> SymExpr {
        index.iter().zip(&self.strides).fold(self.offset.clone(), |sum, (i, stride)| sum + i * stride)
    }
}

impl Program {
    /// The size symbols' ranges, for simplification.
    pub fn bounds(&self) -> &Symbols {
        &self.symbols
    }
    /// Whether the memory of `buf` (not a view) can be laid out only at run time: its size mentions a symbol
    /// that a step binds.
    pub fn is_dynamic(&self, buf: BufId) -> bool {
        let b = &self.buffers[buf];
        b.sizes.iter().chain(&b.strides).any(|e| e.any_leaf(|a| self.symbols.is_unbacked(a)))
    }
    /// The number of the input declared written whose memory `buf` is.
    pub fn written_input(&self, buf: BufId) -> Option<u32> {
        match self.buffers[self.root(buf)].storage {
            Storage::Input(n) if self.inputs.get(n as usize).is_some_and(|i| i.written) => Some(n),
            _ => None,
        }
    }
    /// The ranges that constants declare, checked when the constants are bound.
    pub fn constant_ranges(&self) -> Vec<crate::ConstantRange> {
        crate::indices::ranges(&self.constants, &self.sites)
    }
    /// The buffer whose memory `buf` uses: itself, or what it is a view of.
    pub fn root(&self, buf: BufId) -> BufId {
        match self.buffers[buf].storage {
            Storage::View(of) => of,
            _ => buf,
        }
    }
}
