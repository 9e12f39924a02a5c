//! Definitions: how every graph value is computed, as a recorded loop body or a template. In a body the buffer `BufId(n)`
//! is definition number n.

use std::cell::RefCell;
use std::rc::Rc;

use ir_core::{Arena, DType, Scalar, Shape, SymExpr, SymId};
use kernel_ir::{BufId, ExternOp, Inst, InstKind, ReduceOp, Site, StoreMode, Symbols, Val};
use prims::TemplateSpec;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::control::ControlCall;
use crate::control::steps::Binds;
use crate::in_place::Write;

/// The smallest value that heuristics assume for a symbol without a hint.
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
    /// New values of inputs that the call stores in the inputs' memory.
    pub(crate) written: Vec<Write>,
    /// Definitions that run although nothing reads them: assertions.
    pub(crate) effects: Vec<BufId>,
    /// Exchanges between ranks, which all ranks make, also where nothing reads the result on one of them.
    pub(crate) exchanges: Vec<BufId>,
    /// The definition that binds each unbacked symbol.
    pub(crate) binders: FxHashMap<SymId, BufId>,
    /// Symbols that are bound outside.
    pub(crate) known: FxHashSet<SymId>,
    /// The origins of the index checks in the bodies.
    pub(crate) sites: Vec<Site>,
    /// Whether indices from data are checked.
    pub(crate) checked: bool,
    /// The first contradiction found while bodies were written; no program is returned where there is one.
    pub(crate) contradiction: RefCell<Option<String>>,
}

impl Defs {
    /// Records that something else was found than what every definition must be.
    pub(crate) fn contradict(&self, found: impl FnOnce() -> String) {
        self.contradiction.borrow_mut().get_or_insert_with(found);
    }
}

/// How a value is computed, and the decisions made about it.
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
    /// Whether it is realized, that is, has memory. Otherwise it is computed where it is read.
    pub realized: bool,
    /// Strides of its memory, where it has any.
    pub strides: Shape,
    /// Whether it depends on constants alone: computed once, when the constants are bound.
    pub constant: bool,
    /// Number of the graph output that it is, with its strides.
    pub output: bool,
    /// How many definitions read it, counted once each; outputs count too.
    pub users: u32,
    /// Whether it is a barrier: what is computed from it is computed again, later than what was computed from its operand.
    pub barrier: bool,
    /// Where it lies in the memory of a concatenation; its strides are then those that it has there.
    pub place: Option<Place>,
}

/// A place in the memory of another definition, which has none itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// That definition.
    pub of: BufId,
    /// The first element within it.
    pub offset: SymExpr,
}

/// How a value is computed. Loop variables `i0…` run over the value's sizes, further ones over an inner domain.
#[allow(private_interfaces)] // what is bound is of no use outside
pub enum DefKind {
    /// An input of the call.
    Input,
    /// A weight.
    Constant,
    /// A pointwise value.
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
        /// The combined value.
        value: Val,
        /// The reduction.
        op: ReduceOp,
        /// Sizes reduced over.
        inner: Shape,
    },
    /// A running combination along one dimension.
    Scan {
        /// The body.
        insts: Vec<Inst>,
        /// The combined value.
        value: Val,
        /// The reduction.
        op: ReduceOp,
        /// The dimension.
        dim: usize,
    },
    /// A copy of `base` with values combined in.
    Scatter {
        /// The value before the scatter.
        base: BufId,
        /// The source domain.
        ranges: Shape,
        /// The body over the source domain.
        insts: Vec<Inst>,
        /// The index of the stored element.
        index: Shape,
        /// The value.
        value: Val,
        /// How it is combined.
        mode: StoreMode,
    },
    /// A concatenation in whose memory its parts are computed: complete when these are.
    Joined {
        /// What is stored in it; a part may be such a value itself.
        parts: Vec<BufId>,
    },
    /// A template; operands are definitions by value number.
    Template(TemplateSpec),
    /// A secondary output of a template, which its step writes: the log-sum-exp of an attention.
    SecondaryOutput {
        /// The definition of the template's own result.
        template: BufId,
    },
    /// A routine; this is result number `which` of it.
    Extern {
        /// Which routine.
        op: ExternOp,
        /// Its operands.
        inputs: Vec<BufId>,
        /// All its results, in order.
        outputs: Vec<BufId>,
    },
    /// Control flow, or a symbol that is bound; this is one result of it.
    Control {
        /// Its kind.
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
    /// The definitions that are computed into the memory of a concatenation; none where `id` is something else.
    pub(crate) fn stored_parts(&self, id: BufId) -> Vec<BufId> {
        let (mut open, mut found) = (vec![id], Vec::new());
        while let Some(at) = open.pop() {
            match &self.get(at).kind {
                DefKind::Joined { parts } => open.extend(parts),
                _ if at != id => found.push(at),
                _ => {}
            }
        }
        found
    }
    pub(crate) fn numel_hint(&self, sizes: &[SymExpr]) -> i64 {
        sizes.iter().fold(1i64, |n, s| n.saturating_mul(self.hint(s)))
    }
}

impl Def {
    /// Extents of all loops of the body: the value's sizes, then the inner domain.
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
    /// The definitions that it reads.
    pub fn reads(&self) -> Vec<BufId> {
        let mut reads: Vec<BufId> = match &self.kind {
            DefKind::Template(spec) => template_operands(spec),
            DefKind::SecondaryOutput { template } => vec![*template],
            DefKind::Extern { inputs, .. } => inputs.clone(),
            DefKind::Control { call, .. } => call.reads(),
            DefKind::Scatter { base, .. } => vec![*base],
            DefKind::Joined { parts } => parts.clone(),
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
    /// Whether the value only rearranges elements of one other value.
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
        self.insts().iter().any(|i| matches!(i.kind, InstKind::Op { op, .. } if prims::facts::is_heavy(op)))
    }
}

/// The values that a template reads.
pub(crate) fn template_operands(spec: &TemplateSpec) -> Vec<BufId> {
    let ids = match spec {
        TemplateSpec::Matmul { a, b, dequant, groups, .. } => {
            let quantized = dequant.iter().flat_map(|(factor, zero)| [*factor].into_iter().chain(*zero));
            [*a, *b].into_iter().chain(quantized).chain(groups.iter().map(|(ends, _)| *ends)).collect()
        }
        TemplateSpec::Conv { input, weight, .. } => vec![*input, *weight],
        TemplateSpec::Attention { q, k, v, mask, dropout, .. } => {
            [*q, *k, *v].into_iter().chain(*mask).chain(dropout.map(|(kept, _)| kept)).collect()
        }
    };
    ids.into_iter().map(|v| BufId(v.0)).collect()
}
