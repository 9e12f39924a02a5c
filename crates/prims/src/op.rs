//! The structure of a table entry.

use fx_ir::{ValueId, ValueType};
use kernel_ir::ScalarOp;
use smallvec::SmallVec;

use crate::{
    BatchRule, Builder, Call, ComplexRule, Lower, MetaCx, OpError, RefCall, RefOut, Samples, ShardRule,
    Tolerance,
};

/// The entry of an operator: everything that is known of it.
pub struct OpDef {
    /// ATen's own schema text; prims have the namespace `prims`.
    pub schema: &'static str,
    /// Composite or prim.
    pub kind: Kind,
    /// Derivative.
    pub grad: Grad,
    /// Allowed error of a float result: every judge of the operator uses this number.
    pub tolerance: Tolerance,
    /// The precision in which autocast runs it.
    pub autocast: Autocast,
    /// Calls to test with; empty only where the golden corpus covers a composite.
    pub samples: fn(&mut Samples),
}

impl OpDef {
    /// The entry of an operator that is on autocast's lists.
    pub const fn autocast(self, autocast: Autocast) -> OpDef {
        OpDef { autocast, ..self }
    }
}

/// What autocast does with the floating-point operands of an operator (those of double precision are not changed).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CastPolicy {
    /// Cast to the 16-bit type.
    Lower,
    /// Cast to `float32`.
    Float32,
    /// Cast to `float32` if the first operand is a float and the call names no dtype.
    Float32Result,
    /// Cast to the widest type among them.
    Widest,
}

/// PyTorch's autocast lists (2.11) as far as they name an operator: the registrations of the dispatch keys `AutocastCPU` and
/// `AutocastCUDA` (`aten/src/ATen/autocast_mode.h`), all overloads alike. Composites that PyTorch runs as operators of the
/// lists have their policies. Operators on no list keep the types of their operands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Autocast {
    /// Under `torch.autocast("cpu")`.
    pub cpu: Option<CastPolicy>,
    /// Under `torch.autocast("cuda")`, also for ROCm.
    pub gpu: Option<CastPolicy>,
}

impl Autocast {
    /// On no list.
    pub const NONE: Autocast = Autocast { cpu: None, gpu: None };
    /// In the 16-bit type.
    pub const LOWER: Autocast = Autocast::both(CastPolicy::Lower);
    /// In the 16-bit type on the CPU alone.
    pub const LOWER_ON_CPU: Autocast = Autocast::on_cpu(CastPolicy::Lower);
    /// In the 16-bit type on GPUs alone.
    pub const LOWER_ON_GPU: Autocast = Autocast::on_gpu(CastPolicy::Lower);
    /// In `float32`.
    pub const FLOAT32: Autocast = Autocast::both(CastPolicy::Float32);
    /// In `float32` on the CPU alone.
    pub const FLOAT32_ON_CPU: Autocast = Autocast::on_cpu(CastPolicy::Float32);
    /// In `float32` on GPUs alone.
    pub const FLOAT32_ON_GPU: Autocast = Autocast::on_gpu(CastPolicy::Float32);
    /// With a `float32` result on GPUs alone.
    pub const FLOAT32_RESULT_ON_GPU: Autocast = Autocast::on_gpu(CastPolicy::Float32Result);
    /// In `float32` on the CPU, with a `float32` result on GPUs.
    pub const FLOAT32_ON_CPU_RESULT_ON_GPU: Autocast =
        Autocast { cpu: Some(CastPolicy::Float32), gpu: Some(CastPolicy::Float32Result) };
    /// In `float32` on the CPU, in the widest type of its operands on GPUs.
    pub const FLOAT32_ON_CPU_WIDEST_ON_GPU: Autocast =
        Autocast { cpu: Some(CastPolicy::Float32), gpu: Some(CastPolicy::Widest) };
    /// In the widest type of its operands.
    pub const WIDEST: Autocast = Autocast::both(CastPolicy::Widest);
    /// In the widest type of its operands on the CPU alone.
    pub const WIDEST_ON_CPU: Autocast = Autocast::on_cpu(CastPolicy::Widest);
    /// In the widest type of its operands on GPUs alone.
    pub const WIDEST_ON_GPU: Autocast = Autocast::on_gpu(CastPolicy::Widest);

    const fn both(policy: CastPolicy) -> Autocast {
        Autocast { cpu: Some(policy), gpu: Some(policy) }
    }
    const fn on_cpu(policy: CastPolicy) -> Autocast {
        Autocast { cpu: Some(policy), gpu: None }
    }
    const fn on_gpu(policy: CastPolicy) -> Autocast {
        Autocast { cpu: None, gpu: Some(policy) }
    }

    /// Whether some device runs the operator in the 16-bit type.
    pub const fn lowers(self) -> bool {
        matches!(self.cpu, Some(CastPolicy::Lower)) || matches!(self.gpu, Some(CastPolicy::Lower))
    }
}

/// The definition of an operator.
pub enum Kind {
    /// Made of other operators.
    Composite(DecomposeFn),
    /// A member of the closed set.
    Prim {
        /// Its exact meaning: the contract for backend authors, printed in `docs/operators.md`.
        doc: &'static str,
        /// Types of the results.
        meta: MetaFn,
        /// How a backend computes it.
        lower: Lower,
        /// Its rewriting for complex operands or results, because backends see only real numbers.
        complex: ComplexRule,
        /// Its batching rule, for operands with one more dimension in front, for `vmap`.
        batch: BatchRule,
        /// Its sharding rule: how a mesh of devices shares it.
        shard: ShardRule,
        /// Its reference implementation.
        reference: Reference,
    },
}

/// Values of a call.
pub type Outs = SmallVec<[ValueId; 1]>;
/// Builds the call out of other operators and returns its results, one for each (flattened) return of the schema.
pub type DecomposeFn = fn(&mut Builder<'_>, &Call<'_>) -> Result<Outs, OpError>;
/// Types of a prim's results; strides are row-major. Its assumptions about sizes are required through the context.
pub type MetaFn = fn(&MetaCx<'_>, &Call<'_>) -> Result<SmallVec<[ValueType; 1]>, OpError>;

/// The reference implementation of a prim, computed slowly on host tensors.
pub enum Reference {
    /// A scalar operator on every element.
    Scalar(ScalarOp),
    /// A function of the arguments.
    Fn(fn(&RefCall<'_>) -> Result<RefOut, OpError>),
}

/// Derivative of an operator.
pub enum Grad {
    /// Not differentiable, for this reason.
    NotDifferentiable(&'static str),
    /// The gradient of its decomposition.
    ByDecomposition,
    /// Builds the gradients of the tensor arguments: one entry per argument (one per item where the argument is a list of
    /// tensors), `None` where there is none.
    Rule(fn(&mut Builder<'_>, &GradCall<'_>) -> Result<Vec<Option<ValueId>>, OpError>),
    /// Differentiable, but the rule is not implemented yet: autograd reports it as unsupported.
    Unwritten,
}

/// A call for its gradient rule.
pub struct GradCall<'a> {
    /// The call.
    pub call: &'a Call<'a>,
    /// Its results.
    pub outs: &'a [ValueId],
    /// Cotangents of the results.
    pub cotangents: &'a [Option<ValueId>],
    /// For every argument whether its gradient (for a list: that of any item) is wanted.
    pub wanted: &'a [bool],
}
