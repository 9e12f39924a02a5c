//! The form of a table entry.

use fx_ir::{ValueId, ValueType};
use kernel_ir::ScalarOp;
use smallvec::SmallVec;

use crate::{BatchRule, Builder, Call, ComplexRule, Lower, MetaCx, OpError, RefCall, RefOut, Samples};

/// All that is known of one operator.
pub struct OpDef {
    /// ATen's own schema text; prims have the namespace `prims`.
    pub schema: &'static str,
    /// Composite or prim.
    pub kind: Kind,
    /// Derivative.
    pub grad: Grad,
    /// How far a float result may be from float64.
    pub tolerance: Tolerance,
    /// Calls to test with; empty only where the golden corpus covers a composite.
    pub samples: fn(&mut Samples),
}

/// What an operator is made of.
pub enum Kind {
    /// Made of other operators.
    Composite(DecomposeFn),
    /// A member of the closed set.
    Prim {
        /// What it means, exactly: the contract of a backend author, printed in `docs/operators.md`.
        doc: &'static str,
        /// Types of the results.
        meta: MetaFn,
        /// How a backend computes it.
        lower: Lower,
        /// What becomes of it where operands or results are complex: backends see real numbers alone.
        complex: ComplexRule,
        /// What becomes of it where operands have one more dimension in front, for `vmap`.
        batch: BatchRule,
        /// What it means.
        reference: Reference,
    },
}

/// Values of a call.
pub type Outs = SmallVec<[ValueId; 1]>;
/// Builds the call out of other operators and returns its results, one for each (flattened) return of the schema.
pub type DecomposeFn = fn(&mut Builder<'_>, &Call<'_>) -> Result<Outs, OpError>;
/// Types of a prim's results; strides are row-major. What it takes for granted of sizes it demands of the context.
pub type MetaFn = fn(&MetaCx<'_>, &Call<'_>) -> Result<SmallVec<[ValueType; 1]>, OpError>;

/// What a prim means, computed slowly on host tensors.
pub enum Reference {
    /// A scalar operator on every element.
    Scalar(ScalarOp),
    /// A function of the arguments.
    Fn(fn(&RefCall<'_>) -> Result<RefOut, OpError>),
}

/// Derivative of an operator.
pub enum Grad {
    /// Has none, and why.
    NotDifferentiable(&'static str),
    /// That of its decomposition.
    ByDecomposition,
    /// Builds the gradients of the tensor arguments: one entry an argument (one an item where the argument is a list of
    /// tensors), `None` where there is none.
    Rule(fn(&mut Builder<'_>, &GradCall<'_>) -> Result<Vec<Option<ValueId>>, OpError>),
    /// Differentiable, but the rule is not written yet: autograd reports it as unsupported.
    Unwritten,
}

/// A call seen from its gradient.
pub struct GradCall<'a> {
    /// The call.
    pub call: &'a Call<'a>,
    /// Its results.
    pub outs: &'a [ValueId],
    /// Cotangents of the results.
    pub cotangents: &'a [Option<ValueId>],
    /// For every argument whether its gradient (of a list: that of any item) is wanted.
    pub wanted: &'a [bool],
}

/// Allowed distance from float64, `|a - b| <= atol + rtol * |b|`, for `f32` (other dtypes scale with their precision).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tolerance {
    /// Absolute part.
    pub atol: f64,
    /// Relative part.
    pub rtol: f64,
}

impl Tolerance {
    /// No rounding at all: views, integers, selections.
    pub const EXACT: Tolerance = Tolerance { atol: 0.0, rtol: 0.0 };
    /// A few units in the last place.
    pub const FLOAT: Tolerance = Tolerance { atol: 1e-6, rtol: 2e-6 };
    /// Sums of many terms.
    pub const ACCUMULATE: Tolerance = Tolerance { atol: 1e-5, rtol: 1.3e-4 };
}
