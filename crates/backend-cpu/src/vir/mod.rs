//! Vector IR: one loop kernel with its loops collapsed and ordered, a vector axis chosen, and every memory access
//! classified along that axis. Typed SSA over *lanes*: a value that varies along the axis has as many lanes as
//! the loop is wide, any other is one scalar.
//!
//! This is the boundary between the meaning of a kernel and its execution: `lower` creates it from kernel-ir, `clif` turns
//! it into 128-bit Cranelift code, and `leaf` takes innermost loops to code of 512 or 256 bits. This is not a general IR: it has no control flow but the loops.

mod axis;
mod class;
mod exact;
mod hoist;
mod lanes;
mod lower;
mod range;
mod share;
mod split;
mod spread;
mod tile;

use ir_core::{Atom, DType, Scalar, SymExpr};
use kernel_ir::{AccDecl, AccId, BufId, ReduceOp, ScalarOp, StoreMode, Val};
use smallvec::SmallVec;

pub(crate) use class::{Class, round_16};
pub use exact::Sixteen;
pub(crate) use hoist::before_loop;
pub use kernel_ir::collapse::Dim;
pub(crate) use lanes::by_lane;
pub use lower::{LowerError, lower_epilogue, lower_kernel};
pub(crate) use lower::{sum_blocks, wants_blocks};
pub(crate) use range::Range;
pub use share::{Base, Form, form, relocate};
pub use split::split;
pub(crate) use tile::far_apart;

/// A kernel ready for machine code.
#[derive(Clone, Debug)]
pub struct VKernel {
    /// Name of the kernel-ir step.
    pub name: String,
    /// Outer loops, outermost first, without the vector axis. Their points are distributed over threads.
    pub points: Vec<Dim>,
    /// The vector axis, where it is an outer loop: then every stage runs for several outer points at once. `None`:
    /// each stage has its own axis, the last of its loops.
    pub outer_axis: Option<Dim>,
    /// Accumulators.
    pub accs: Vec<AccDecl>,
    /// Stages in order.
    pub stages: Vec<VStage>,
    /// Lanes of some access are not adjacent (a transpose): blocks of so many points of the outer axis are the slowest loop, so
    /// that the cache lines of one point are still cached for the next.
    pub tile: Option<i64>,
    /// Points must run in order on one thread (stores that combine with memory).
    pub serial: bool,
    /// Estimated cost of one outer point in nanoseconds per unit of the inner extents; see [`VKernel::point_cost`].
    pub costs: Vec<(SymExpr, f64)>,
    /// 128-bit registers that one `f32` value of the widest loop takes: the unroll factor.
    pub unroll: u32,
    /// Entries of the function's table of base pointers, once [`relocate`] has numbered them. Two more follow where the
    /// kernel checks indices: the record of the call's failed check, and the numbers of the kernel's sites.
    pub bases: u32,
    /// The program's sites that the kernel's checks name by their place in this list, once [`relocate`] has numbered them.
    pub sites: Vec<u32>,
}

/// The loops and body of a stage.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct VStage {
    /// Inner loops, outermost first. Where the kernel has no outer axis and `vector` holds, the last is the vector axis.
    pub loops: Vec<Dim>,
    /// Whether the last loop may run several lanes at once.
    pub vector: bool,
    /// The body; the position of an instruction is its value.
    pub insts: Vec<VInst>,
}

/// One instruction.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct VInst {
    /// Dtype of the value (of the stored or reduced value where there is none).
    pub dtype: DType,
    /// Whether the value differs between lanes.
    pub varies: bool,
    /// The 16-bit floats that it surely is a number of.
    pub sixteen: Sixteen,
    /// The operation.
    pub kind: VKind,
}

/// The class of an access along the vector axis.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Along {
    /// All lanes at one element.
    Uniform,
    /// Neighbouring lanes at neighbouring elements.
    Unit,
    /// Each lane at an address of its own.
    Lanes,
}

/// A memory access: `memory[address]` of a buffer that is not a view.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Access {
    /// The buffer whose base pointer is used.
    pub root: BufId,
    /// Dtype of the elements.
    pub dtype: DType,
    /// Element number, over loop variables, sizes and values of this body.
    pub address: SymExpr,
    /// Its class along the axis.
    pub along: Along,
    /// The kernel does not write this memory.
    pub read_only: bool,
    /// The address depends on a checked index: it must not be read before the check.
    pub checked: bool,
}

/// What an instruction does; see [`kernel_ir::InstKind`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum VKind {
    /// A number.
    Const(Scalar),
    /// An index expression as `i64`.
    Index(SymExpr),
    /// An element; zero where the mask is false.
    Load {
        /// Where.
        at: Access,
        /// `bool`.
        mask: Option<Val>,
    },
    /// Writes an element.
    Store {
        /// Where.
        at: Access,
        /// What.
        value: Val,
        /// `bool`.
        mask: Option<Val>,
        /// How it combines.
        mode: StoreMode,
    },
    /// `value`, which must be in `0..size` where the mask is true; else the function ends.
    Check {
        /// The value, `i64`.
        value: Val,
        /// One more than the largest that is allowed.
        size: SymExpr,
        /// `bool`.
        mask: Option<Val>,
        /// The program's site; after [`relocate`] its number among the kernel's.
        site: u32,
    },
    /// A scalar operator.
    Op {
        /// Which.
        op: ScalarOp,
        /// Operands.
        args: SmallVec<[Val; 3]>,
    },
    /// Conversion to the instruction's dtype.
    Cast(Val),
    /// The same bits.
    Bitcast(Val),
    /// Combines into an accumulator.
    Reduce {
        /// Which.
        acc: AccId,
        /// What.
        value: Val,
        /// Position for `argmax` and `argmin`.
        position: Option<Val>,
    },
    /// Result of a reduction.
    Acc(AccId),
    /// Running combination along the last loop.
    Scan {
        /// How.
        op: ReduceOp,
        /// What.
        value: Val,
    },
    /// The template's result at this point.
    Template,
}

impl VKind {
    /// The expression of an instruction that has one.
    pub fn expr(&self) -> Option<&SymExpr> {
        match self {
            VKind::Index(e) | VKind::Check { size: e, .. } => Some(e),
            VKind::Load { at, .. } | VKind::Store { at, .. } => Some(&at.address),
            _ => None,
        }
    }
    /// Calls `visit` for every value that the instruction reads, those inside expressions included.
    pub fn for_each_val(&self, visit: &mut dyn FnMut(Val)) {
        if let Some(e) = self.expr() {
            e.for_each_leaf(&mut |a| {
                if let Atom::Value(n) = a {
                    visit(Val(*n));
                }
            });
        }
        match self {
            VKind::Const(_) | VKind::Index(_) | VKind::Acc(_) | VKind::Template => {}
            VKind::Load { mask, .. } => mask.iter().for_each(|m| visit(*m)),
            VKind::Store { value, mask, .. } | VKind::Check { value, mask, .. } => {
                visit(*value);
                mask.iter().for_each(|m| visit(*m));
            }
            VKind::Op { args, .. } => args.iter().for_each(|v| visit(*v)),
            VKind::Cast(v) | VKind::Bitcast(v) | VKind::Scan { value: v, .. } => visit(*v),
            VKind::Reduce { value, position, .. } => {
                visit(*value);
                position.iter().for_each(|p| visit(*p));
            }
        }
    }
}

impl VKernel {
    /// Estimated nanoseconds of one outer point (of one lane of it, where the axis is outer) at the given sizes.
    pub fn point_cost(&self, eval: &dyn Fn(&SymExpr) -> i64) -> f64 {
        self.costs.iter().map(|(points, ns)| eval(points).max(1) as f64 * ns).sum()
    }
}
