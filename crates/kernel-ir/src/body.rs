//! Loop bodies: flat, typed, hashable SSA. An instruction's number within its body is its value.
//!
//! Indices are logical, one expression per dimension of the buffer; the buffer's strides turn them into an address. An
//! index may use loop variables (`i0`), sizes (`s0`) and integer values of the same body (`v3`).

use ir_core::{Atom, DType, Scalar, Shape, SymExpr};
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use crate::ScalarOp;

ir_core::define_id! {
    /// A buffer of a program.
    pub struct BufId, "b"
}
ir_core::define_id! {
    /// A value of a body: the number of the instruction that makes it.
    pub struct Val, "v"
}
ir_core::define_id! {
    /// A reduction's accumulator, numbered within its kernel.
    pub struct AccId, "acc"
}

/// One instruction.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Inst {
    /// Dtype of the value (of the stored or reduced value where there is none).
    pub dtype: DType,
    /// What it does.
    pub kind: InstKind,
}

/// What an instruction does.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum InstKind {
    /// A number.
    Const(Scalar),
    /// The value of an index expression, as `i64`. Division by a size that is 0 yields an arbitrary number, which is then
    /// not used; a backend must not trap.
    Index(SymExpr),
    /// An element of a buffer. With a mask, lanes where it is false yield zero and do not touch memory.
    Load {
        /// The buffer.
        buf: BufId,
        /// One expression per dimension.
        #[serde(deserialize_with = "crate::wire::bounded")]
        index: Shape,
        /// A `bool` value.
        mask: Option<Val>,
    },
    /// Writes an element. With a mask, lanes where it is false write nothing.
    Store {
        /// The buffer.
        buf: BufId,
        /// One expression per dimension.
        #[serde(deserialize_with = "crate::wire::bounded")]
        index: Shape,
        /// What to write, of the buffer's dtype.
        value: Val,
        /// A `bool` value.
        mask: Option<Val>,
        /// How it combines with what is there.
        mode: StoreMode,
    },
    /// A value from data that becomes part of an index: `value` itself (`i64`), which must be in `0..size`. Otherwise the
    /// call ends with an error, and loads and stores whose index uses the result touch no memory. With a mask, lanes where
    /// it is false are not checked, and their result is not used by anything that touches memory. Since 1.6.
    Check {
        /// The value, `i64`.
        value: Val,
        /// One more than the largest that is allowed: the size of the dimension as the program's author sees it.
        size: SymExpr,
        /// A `bool` value.
        mask: Option<Val>,
        /// Who requires the check: the number of an entry of the program's `sites`.
        site: u32,
    },
    /// A scalar operator.
    Op {
        /// Which.
        op: ScalarOp,
        /// Its operands.
        #[serde(deserialize_with = "crate::wire::bounded")]
        args: SmallVec<[Val; 3]>,
    },
    /// Conversion to the instruction's dtype, PyTorch's rules (float to integer truncates, to `bool` is `!= 0`).
    Cast(Val),
    /// The same bits as another dtype of the same size.
    Bitcast(Val),
    /// Combines `value` into an accumulator over all inner points of the stage.
    Reduce {
        /// The accumulator; its operator and dtype are in the kernel.
        acc: AccId,
        /// What to combine.
        value: Val,
        /// For `argmax` and `argmin`: the position that belongs to the value.
        position: Option<Val>,
    },
    /// The result of a reduction of an earlier stage.
    Acc(AccId),
    /// Inclusive running combination of `value` along the last inner dimension of the stage.
    Scan {
        /// How to combine.
        op: ReduceOp,
        /// What to combine.
        value: Val,
    },
    /// In an epilogue: the template's result at the current output point.
    Template,
}

/// How values are combined by a reduction or scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ReduceOp {
    /// Sum, from 0.
    Sum,
    /// Product, from 1.
    Prod,
    /// Largest; `NaN` wins. Starts at the smallest value of the dtype.
    Max,
    /// Smallest; `NaN` wins. Starts at the largest value of the dtype.
    Min,
    /// Whether any is true.
    Any,
    /// Whether all are true.
    All,
    /// Exclusive or of integers.
    Xor,
    /// Position (`i64`) of the first largest value; `NaN` wins.
    ArgMax,
    /// Position (`i64`) of the first smallest value; `NaN` wins.
    ArgMin,
}

/// How a store combines with what is in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum StoreMode {
    /// Overwrites. Where several points write one element, any of them may win.
    Write,
    /// Adds, atomically where points run in parallel.
    Add,
    /// Combines, atomically where points run in parallel.
    Reduce(ReduceOp),
}

impl ReduceOp {
    /// Every reduction.
    pub const ALL: &'static [ReduceOp] = &[
        ReduceOp::Sum,
        ReduceOp::Prod,
        ReduceOp::Max,
        ReduceOp::Min,
        ReduceOp::Any,
        ReduceOp::All,
        ReduceOp::Xor,
        ReduceOp::ArgMax,
        ReduceOp::ArgMin,
    ];
    /// Name in the text form.
    pub const fn name(self) -> &'static str {
        match self {
            ReduceOp::Sum => "sum",
            ReduceOp::Prod => "prod",
            ReduceOp::Max => "max",
            ReduceOp::Min => "min",
            ReduceOp::Any => "any",
            ReduceOp::All => "all",
            ReduceOp::Xor => "xor",
            ReduceOp::ArgMax => "argmax",
            ReduceOp::ArgMin => "argmin",
        }
    }
    /// The value that combining starts from, for operands of `dtype`.
    pub fn identity(self, dtype: DType) -> Scalar {
        let (lowest, highest) = dtype.ends();
        match self {
            ReduceOp::Sum | ReduceOp::Any | ReduceOp::Xor => Scalar::zero(dtype),
            ReduceOp::Prod | ReduceOp::All => Scalar::Int(1).to_class_of(dtype),
            ReduceOp::Max | ReduceOp::ArgMax => lowest,
            ReduceOp::Min | ReduceOp::ArgMin => highest,
        }
    }
    /// The scalar operator that combines two values, where the reduction keeps no position.
    pub const fn combine(self) -> Option<ScalarOp> {
        match self {
            ReduceOp::Sum => Some(ScalarOp::Add),
            ReduceOp::Prod => Some(ScalarOp::Mul),
            ReduceOp::Max => Some(ScalarOp::Max),
            ReduceOp::Min => Some(ScalarOp::Min),
            ReduceOp::Any => Some(ScalarOp::Or),
            ReduceOp::All => Some(ScalarOp::And),
            ReduceOp::Xor => Some(ScalarOp::Xor),
            ReduceOp::ArgMax | ReduceOp::ArgMin => None,
        }
    }
}

/// The body without the instructions that nothing uses. Checks stay: an index along a dimension that fusion removed (one of
/// size 1, a broadcast one) no longer occurs in an address and must be in bounds nevertheless.
pub fn pruned(insts: Vec<Inst>) -> Vec<Inst> {
    let mut live = vec![false; insts.len()];
    for n in (0..insts.len()).rev() {
        let kind = &insts[n].kind;
        if kind.has_effect() || matches!(kind, InstKind::Check { .. }) || live[n] {
            live[n] = true;
            insts[n].kind.for_each_val(&mut |v| live[v.0 as usize] = true);
        }
    }
    let mut number: Vec<Val> = Vec::with_capacity(insts.len());
    let mut kept: Vec<Inst> = Vec::new();
    for (n, mut inst) in insts.into_iter().enumerate() {
        number.push(Val(kept.len() as u32));
        if live[n] {
            inst.kind.map_vals(&|v| number[v.0 as usize]);
            kept.push(inst);
        }
    }
    kept
}

impl InstKind {
    /// Calls `visit` for every value that the instruction reads, those inside indices included.
    pub fn for_each_val(&self, visit: &mut dyn FnMut(Val)) {
        let index_vals = |index: &[SymExpr], visit: &mut dyn FnMut(Val)| {
            for e in index {
                e.for_each_leaf(&mut |a| {
                    if let Atom::Value(n) = a {
                        visit(Val(*n));
                    }
                });
            }
        };
        match self {
            InstKind::Const(_) | InstKind::Acc(_) | InstKind::Template => {}
            InstKind::Index(e) => index_vals(std::slice::from_ref(e), visit),
            InstKind::Load { index, mask, .. } => {
                index_vals(index, visit);
                mask.iter().for_each(|m| visit(*m));
            }
            InstKind::Store { index, value, mask, .. } => {
                index_vals(index, visit);
                visit(*value);
                mask.iter().for_each(|m| visit(*m));
            }
            InstKind::Check { value, size, mask, .. } => {
                index_vals(std::slice::from_ref(size), visit);
                visit(*value);
                mask.iter().for_each(|m| visit(*m));
            }
            InstKind::Op { args, .. } => args.iter().for_each(|v| visit(*v)),
            InstKind::Cast(v) | InstKind::Bitcast(v) | InstKind::Scan { value: v, .. } => visit(*v),
            InstKind::Reduce { value, position, .. } => {
                visit(*value);
                position.iter().for_each(|p| visit(*p));
            }
        }
    }
    /// Replaces every value that the instruction reads, those inside indices included.
    pub fn map_vals(&mut self, new: &dyn Fn(Val) -> Val) {
        let expr = |e: &mut SymExpr| {
            if e.any_leaf(|a| matches!(a, Atom::Value(_))) {
                *e = e.subst(&|a| match a {
                    Atom::Value(v) => Some(SymExpr::value(new(Val(*v)).0)),
                    _ => None,
                });
            }
        };
        let replace = |v: &mut Val| *v = new(*v);
        match self {
            InstKind::Const(_) | InstKind::Acc(_) | InstKind::Template => {}
            InstKind::Index(e) => expr(e),
            InstKind::Load { index, mask, .. } => {
                index.iter_mut().for_each(expr);
                mask.iter_mut().for_each(replace);
            }
            InstKind::Store { index, value, mask, .. } => {
                index.iter_mut().for_each(expr);
                replace(value);
                mask.iter_mut().for_each(replace);
            }
            InstKind::Check { value, size, mask, .. } => {
                expr(size);
                replace(value);
                mask.iter_mut().for_each(replace);
            }
            InstKind::Op { args, .. } => args.iter_mut().for_each(replace),
            InstKind::Cast(v) | InstKind::Bitcast(v) | InstKind::Scan { value: v, .. } => replace(v),
            InstKind::Reduce { value, position, .. } => {
                replace(value);
                position.iter_mut().for_each(replace);
            }
        }
    }
    /// Whether the instruction has an effect besides its value.
    pub fn has_effect(&self) -> bool {
        matches!(self, InstKind::Store { .. } | InstKind::Reduce { .. })
    }
}
