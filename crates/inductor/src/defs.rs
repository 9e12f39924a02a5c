//! Definitions: for every graph value how it is computed, as a recorded loop body or a template. In a body the buffer
//! `BufId(n)` is the definition number n.

use std::cell::RefCell;
use std::rc::Rc;

use ir_core::{Arena, DType, Scalar, Shape, SymExpr, SymId};
use kernel_ir::{BufId, ExternOp, Inst, InstKind, ReduceOp, ScalarOp, Site, StoreMode, Symbols, Val};
use prims::TemplateSpec;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::control::ControlCall;
use crate::control::steps::Binds;
use crate::in_place::Write;

/// The least value that heuristics take for a symbol without a hint.
pub(crate) const LIKELY: i64 = 16;

/// All definitions of a graph, operands before users.
pub struct Defs {
    /// Indexed by `BufId`; `None` where a graph value is not a tensor.
    pub list: Arena<BufId, Option<Def>>,
    /// Definitions in execution order.
    pub order: Vec<BufId>,
    /// Size symbols.
    pub symbols: Symbols,
    /// For each output of the program the definition that holds it.
    pub outputs: Vec<BufId>,
    /// Their names.
    pub(crate) output_names: Vec<String>,
    /// New values of inputs that the call leaves in the inputs' memory.
    pub(crate) written: Vec<Write>,
    /// Definitions that run although nobody reads them: assertions.
    pub(crate) effects: Vec<BufId>,
    /// The definition that gives each unbacked symbol its value.
    pub(crate) binders: FxHashMap<SymId, BufId>,
    /// Symbols that have a value from outside.
    pub(crate) known: FxHashSet<SymId>,
    /// Who asks for the checks of indices in the bodies.
    pub(crate) sites: Vec<Site>,
    /// Whether indices from data are checked.
    pub(crate) checked: bool,
    /// The first contradiction that the writing of bodies met; no program is given out where there is one.
    pub(crate) contradiction: RefCell<Option<String>>,
}

impl Defs {
    /// Notes that something else was found than what every definition is expected to be.
    pub(crate) fn contradict(&self, found: impl FnOnce() -> String) {
        self.contradiction.borrow_mut().get_or_insert_with(found);
    }
}

/// How a value is computed, and what was decided about it.
pub struct Def {
    /// Name of the value.
    pub name: String,
    /// The graph node it comes from.
    pub origin: String,
    /// Element type.
    pub dtype: DType,
    /// Logical sizes.
    pub sizes: Shape,
    /// How it is computed.
    pub kind: DefKind,
    /// Whether it has memory. What has none is computed where it is read.
    pub realized: bool,
    /// Strides of its memory, where it has any.
    pub strides: Shape,
    /// Whether it depends on constants alone: computed once, when the constants are bound.
    pub constant: bool,
    /// Number of the graph output that it is, with its strides.
    pub output: bool,
    /// How many definitions read it, counted once each; outputs count too.
    pub users: u32,
}

/// How a value is computed. Loop variables `i0…` run over the value's sizes, further ones over an inner domain.
#[allow(private_interfaces)] // what is bound is of no use outside
pub enum DefKind {
    /// An input of the call.
    Input,
    /// A weight.
    Constant,
    /// A value for every point.
    Loop {
        /// The body.
        insts: Vec<Inst>,
        /// The value, of the definition's dtype.
        value: Val,
    },
    /// A reduction; the inner domain is what is reduced.
    Reduce {
        /// The body.
        insts: Vec<Inst>,
        /// What is combined.
        value: Val,
        /// How.
        op: ReduceOp,
        /// Sizes reduced over.
        inner: Shape,
    },
    /// A running combination along one dimension.
    Scan {
        /// The body.
        insts: Vec<Inst>,
        /// What is combined.
        value: Val,
        /// How.
        op: ReduceOp,
        /// Along which dimension.
        dim: usize,
    },
    /// A copy of `base` with values combined in.
    Scatter {
        /// What is there before.
        base: BufId,
        /// The source domain.
        ranges: Shape,
        /// The body over the source domain.
        insts: Vec<Inst>,
        /// Where the value goes.
        index: Shape,
        /// The value.
        value: Val,
        /// How it combines.
        mode: StoreMode,
    },
    /// A template; operands are definitions by value number.
    Template(TemplateSpec),
    /// A further result of a template, whose step writes it: the sums of an attention.
    SecondaryOutput {
        /// The definition of the template's own result.
        template: BufId,
    },
    /// A routine; this is result number `which` of it.
    Extern {
        /// Which routine.
        op: ExternOp,
        /// What it reads.
        inputs: Vec<BufId>,
        /// All its results, in order.
        outputs: Vec<BufId>,
    },
    /// Control flow, or a symbol that is bound; this is one result of it.
    Control {
        /// What it does.
        call: Rc<ControlCall>,
        /// All its results, in order.
        outputs: Vec<BufId>,
        /// The symbols that it binds.
        binds: Rc<Binds>,
    },
}

impl Defs {
    /// The definition.
    pub fn get(&self, id: BufId) -> &Def {
        // Bodies and order name only tensors, which `lower` gives a definition each.
        self.list[id].as_ref().expect("a tensor value has a definition")
    }
    pub(crate) fn get_mut(&mut self, id: BufId) -> &mut Def {
        self.list[id].as_mut().expect("a tensor value has a definition")
    }
    /// The number of elements at the symbols' hints, for heuristics.
    pub(crate) fn hint(&self, e: &SymExpr) -> i64 {
        let leaf = |a: &ir_core::Atom| match a {
            ir_core::Atom::Sym(_) => self.symbols.likely(a, LIKELY),
            _ => Some(1),
        };
        e.eval(&leaf).unwrap_or(1)
    }
    pub(crate) fn numel_hint(&self, sizes: &[SymExpr]) -> i64 {
        sizes.iter().fold(1i64, |n, s| n.saturating_mul(self.hint(s)))
    }
}

impl Def {
    /// Sizes of all loops of the body: the value's, then the inner domain.
    pub fn domain(&self) -> Shape {
        match &self.kind {
            DefKind::Reduce { inner, .. } => self.sizes.iter().chain(inner).cloned().collect(),
            DefKind::Scatter { ranges, .. } => ranges.clone(),
            _ => self.sizes.clone(),
        }
    }
    /// The recorded body.
    pub fn insts(&self) -> &[Inst] {
        match &self.kind {
            DefKind::Loop { insts, .. }
            | DefKind::Reduce { insts, .. }
            | DefKind::Scan { insts, .. }
            | DefKind::Scatter { insts, .. } => insts,
            _ => &[],
        }
    }
    /// The definitions it reads.
    pub fn reads(&self) -> Vec<BufId> {
        let mut reads: Vec<BufId> = match &self.kind {
            DefKind::Template(spec) => template_operands(spec),
            DefKind::SecondaryOutput { template } => vec![*template],
            DefKind::Extern { inputs, .. } => inputs.clone(),
            DefKind::Control { call, .. } => call.reads(),
            DefKind::Scatter { base, .. } => vec![*base],
            _ => Vec::new(),
        };
        reads.extend(
            self.insts()
                .iter()
                .filter_map(|i| if let InstKind::Load { buf, .. } = i.kind { Some(buf) } else { None }),
        );
        reads.sort();
        reads.dedup();
        reads
    }
    /// Whether the value is elements of one other value, rearranged, with nothing computed.
    pub fn is_view(&self) -> bool {
        let DefKind::Loop { insts, value } = &self.kind else { return false };
        let mut loads = insts.iter().filter(|i| matches!(i.kind, InstKind::Load { .. }));
        matches!((loads.next(), loads.next()), (Some(_), None))
            && matches!(insts[value.0 as usize].kind, InstKind::Load { mask: None, .. })
    }
    /// Whether every element is the same number.
    pub fn as_fill(&self) -> Option<Scalar> {
        match &self.kind {
            DefKind::Loop { insts, value } => match insts[value.0 as usize].kind {
                InstKind::Const(s) => Some(s),
                _ => None,
            },
            _ => None,
        }
    }
    /// Whether computing an element costs more than a handful of cycles.
    pub fn is_heavy(&self) -> bool {
        self.insts().iter().any(|i| matches!(i.kind, InstKind::Op { op, .. } if is_heavy_op(op)))
    }
}

/// The values that a template reads.
pub(crate) fn template_operands(spec: &TemplateSpec) -> Vec<BufId> {
    let ids = match spec {
        TemplateSpec::Matmul { a, b } => vec![*a, *b],
        TemplateSpec::Conv { input, weight, .. } => vec![*input, *weight],
        TemplateSpec::Attention { q, k, v, mask, .. } => [*q, *k, *v].into_iter().chain(*mask).collect(),
    };
    ids.into_iter().map(|v| BufId(v.0)).collect()
}

/// Operators that take tens of cycles a vector: everything beyond arithmetic, comparison and rounding.
fn is_heavy_op(op: ScalarOp) -> bool {
    use ScalarOp::*;
    !matches!(
        op,
        Add | Sub
            | Mul
            | Min
            | Max
            | CopySign
            | And
            | Or
            | Xor
            | Shl
            | Shr
            | Not
            | Neg
            | Abs
            | Floor
            | Ceil
            | Trunc
            | Round
            | Eq
            | Ne
            | Lt
            | Le
            | Gt
            | Ge
            | Select
    )
}
