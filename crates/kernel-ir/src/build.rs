//! Builds a loop body instruction by instruction: equal instructions are created once, constants are folded.

use ir_core::{DType, Scalar, Shape, SymExpr};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use crate::{AccId, BufId, Inst, InstKind, ReduceOp, ScalarOp, StoreMode, Val};

/// A body under construction. Values are numbered in the order they are first made.
#[derive(Default)]
pub struct BodyBuilder {
    insts: Vec<Inst>,
    known: FxHashMap<Inst, Val>,
}

impl BodyBuilder {
    /// An empty body.
    pub fn new() -> BodyBuilder {
        BodyBuilder::default()
    }
    /// The finished body.
    pub fn finish(self) -> Vec<Inst> {
        self.insts
    }
    /// The instructions so far.
    pub fn insts(&self) -> &[Inst] {
        &self.insts
    }
    /// Dtype of a value.
    pub fn dtype(&self, v: Val) -> DType {
        self.insts[v.0 as usize].dtype
    }
    /// The number, where the value is a constant.
    pub fn as_const(&self, v: Val) -> Option<Scalar> {
        match self.insts[v.0 as usize].kind {
            InstKind::Const(s) => Some(s),
            _ => None,
        }
    }
    /// Appends an instruction, or returns the equal one that exists (effects are never merged).
    pub fn push(&mut self, dtype: DType, kind: InstKind) -> Val {
        let inst = Inst { dtype, kind };
        let next = Val(self.insts.len() as u32);
        if inst.kind.has_effect() {
            self.insts.push(inst);
            return next;
        }
        if let Some(&v) = self.known.get(&inst) {
            return v;
        }
        self.known.insert(inst.clone(), next);
        self.insts.push(inst);
        next
    }
    /// A number of the given dtype.
    pub fn constant(&mut self, value: impl Into<Scalar>, dtype: DType) -> Val {
        self.push(dtype, InstKind::Const(value.into().to_class_of(dtype)))
    }
    /// An index expression as an `i64` value.
    pub fn index(&mut self, e: SymExpr) -> Val {
        match e.as_const() {
            Some(c) => self.constant(c, DType::I64),
            None => self.push(DType::I64, InstKind::Index(e)),
        }
    }
    /// An integer value as part of an index expression.
    pub fn as_index(&self, v: Val) -> SymExpr {
        match &self.insts[v.0 as usize].kind {
            InstKind::Index(e) => e.clone(),
            InstKind::Const(s) => SymExpr::from_i64(s.as_i64()),
            _ => SymExpr::value(v.0),
        }
    }
    /// An element of a buffer of this dtype.
    pub fn load(&mut self, buf: BufId, dtype: DType, index: Shape) -> Val {
        self.push(dtype, InstKind::Load { buf, index, mask: None })
    }
    /// An element where `mask` is true, else zero.
    pub fn load_masked(&mut self, buf: BufId, dtype: DType, index: Shape, mask: Val) -> Val {
        self.push(dtype, InstKind::Load { buf, index, mask: Some(mask) })
    }
    /// `value` (an integer, converted to `i64`) as an index that must lie in `0..size`; none where it is a constant that does.
    pub fn check(&mut self, value: Val, size: SymExpr, mask: Option<Val>, site: u32) -> Val {
        let value = self.cast(value, DType::I64);
        let inside = |c: i64| size.as_const().is_some_and(|size| (0..size).contains(&c));
        if self.as_const(value).is_some_and(|c| inside(c.as_i64())) {
            return value;
        }
        self.push(DType::I64, InstKind::Check { value, size, mask, site })
    }
    /// Writes a value.
    pub fn store(&mut self, buf: BufId, index: Shape, value: Val, mode: StoreMode) {
        self.push(self.dtype(value), InstKind::Store { buf, index, value, mask: None, mode });
    }
    /// Applies a scalar operator; the operands' dtypes must fit its rule (checked in debug builds and by the verifier).
    pub fn op(&mut self, op: ScalarOp, args: &[Val]) -> Val {
        let dtypes: SmallVec<[DType; 3]> = args.iter().map(|v| self.dtype(*v)).collect();
        debug_assert!(op.result_dtype(&dtypes).is_some(), "{} does not take {dtypes:?}", op.name());
        let dtype = op.result_dtype(&dtypes).unwrap_or(dtypes[0]);
        let operand = *dtypes.last().unwrap_or(&dtype);
        let consts: Option<SmallVec<[Scalar; 3]>> = args.iter().map(|v| self.as_const(*v)).collect();
        if let Some(consts) = consts {
            return self.constant(op.eval(operand, &consts), dtype);
        }
        self.push(dtype, InstKind::Op { op, args: args.into() })
    }
    /// Conversion to another dtype; none where it has it already.
    pub fn cast(&mut self, v: Val, to: DType) -> Val {
        if self.dtype(v) == to {
            return v;
        }
        match self.as_const(v) {
            Some(c) if c.class() <= to.class() && to != DType::F16 && to != DType::BF16 => {
                self.constant(c, to)
            }
            _ => self.push(to, InstKind::Cast(v)),
        }
    }
    /// `mask ? a : b`.
    pub fn select(&mut self, mask: Val, a: Val, b: Val) -> Val {
        match self.as_const(mask) {
            Some(m) => {
                if m.as_bool() {
                    a
                } else {
                    b
                }
            }
            None if a == b => a,
            None => self.op(ScalarOp::Select, &[mask, a, b]),
        }
    }
    /// Combines into an accumulator.
    pub fn reduce(&mut self, acc: AccId, value: Val, position: Option<Val>) {
        self.push(self.dtype(value), InstKind::Reduce { acc, value, position });
    }
    /// Reads an accumulator of an earlier stage.
    pub fn acc(&mut self, acc: AccId, dtype: DType) -> Val {
        self.push(dtype, InstKind::Acc(acc))
    }
    /// Running combination along the last inner dimension.
    pub fn scan(&mut self, op: ReduceOp, value: Val) -> Val {
        self.push(self.dtype(value), InstKind::Scan { op, value })
    }
}
