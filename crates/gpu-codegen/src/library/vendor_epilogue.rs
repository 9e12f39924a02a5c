//! Epilogues that vendors' libraries compute themselves: a scale, a bias vector, an addend, a ReLU.
//!
//! Not here: kernels (`epilogue` serves all other epilogues) and the rules of any one library.

use ir_core::{Atom, DType, Shape, SymExpr};
use kernel_ir::{BufId, Epilogue, Inst, InstKind, Program, ScalarOp, StoreMode, Val};

use crate::address::address;
use crate::text::checks;

/// An epilogue of the form `out = activation(alpha * result + residual + bias)`.
///
/// Sums are in the library's order. Roundings to a narrower float between the operations are omitted: the value is rounded
/// once, to the dtype of the output.
#[derive(Clone, Debug, PartialEq)]
pub struct VendorEpilogue {
    /// Where the value is stored.
    pub out: StridedView,
    /// The scale of the template's result.
    pub alpha: f64,
    /// A vector that is added along one dimension of the result.
    pub bias: Option<Bias>,
    /// A tensor that is added element by element.
    pub residual: Option<StridedView>,
    /// Whether a ReLU follows.
    pub relu: bool,
}

/// A strided view of a buffer with one stride per dimension of the result. Strides and offset are relative to the buffer's
/// memory.
#[derive(Clone, Debug, PartialEq)]
pub struct StridedView {
    /// The buffer.
    pub buf: BufId,
    /// Strides in elements.
    pub strides: Shape,
    /// The offset of the first element.
    pub offset: SymExpr,
}

/// A dense vector along one dimension.
#[derive(Clone, Debug, PartialEq)]
pub struct Bias {
    /// The buffer.
    pub buf: BufId,
    /// The dimension of the result.
    pub dim: usize,
    /// The offset of the first element.
    pub offset: SymExpr,
}

impl StridedView {
    fn of(program: &Program, buf: BufId, index: &[SymExpr], ranges: &[SymExpr]) -> Option<StridedView> {
        let mut rest = address(program, buf, index, ranges);
        let mut strides = Shape::new();
        for (d, extent) in ranges.iter().enumerate() {
            let (step, left) = rest.affine_in(&Atom::Loop(d as u32))?;
            if step.any_leaf(|a| !matches!(a, Atom::Sym(_))) {
                return None;
            }
            strides.push(if *extent == SymExpr::ONE { SymExpr::ZERO } else { step });
            rest = left;
        }
        let fixed = !rest.any_leaf(|a| !matches!(a, Atom::Sym(_)));
        fixed.then_some(StridedView { buf, strides, offset: rest })
    }
}

/// Returns the epilogue in this form; `None` where it has another one.
pub fn vendor_epilogue(program: &Program, epilogue: &Epilogue) -> Option<VendorEpilogue> {
    let insts = &epilogue.insts;
    // No library checks an index.
    if checks::any(insts) {
        return None;
    }
    let mut stores = insts.iter().filter(|i| matches!(i.kind, InstKind::Store { .. }));
    let InstKind::Store { buf, index, value, mask: None, mode: StoreMode::Write } = &stores.next()?.kind
    else {
        return None;
    };
    if stores.next().is_some() {
        return None;
    }
    let out = StridedView::of(program, *buf, index, &epilogue.ranges)?;
    let reader = Reader { program, insts, ranges: &epilogue.ranges };
    let Sum { alpha, bias, residual, relu } = reader.sum(*value)?;
    Some(VendorEpilogue { out, alpha, bias, residual, relu })
}

struct Sum {
    alpha: f64,
    bias: Option<Bias>,
    residual: Option<StridedView>,
    relu: bool,
}

struct Reader<'a> {
    program: &'a Program,
    insts: &'a [Inst],
    ranges: &'a [SymExpr],
}

impl Reader<'_> {
    /// The instruction that computes a value, skipping casts between floats.
    fn behind(&self, v: Val) -> &Inst {
        let mut inst = &self.insts[v.0 as usize];
        while let InstKind::Cast(from) = inst.kind {
            let source = &self.insts[from.0 as usize];
            if !is_float(inst.dtype) || !is_float(source.dtype) {
                break;
            }
            inst = source;
        }
        inst
    }

    fn constant(&self, v: Val) -> Option<f64> {
        match self.behind(v).kind {
            InstKind::Const(s) => Some(s.as_f64()),
            _ => None,
        }
    }

    /// The value as a sum in which the template's result occurs exactly once.
    fn sum(&self, v: Val) -> Option<Sum> {
        match &self.behind(v).kind {
            InstKind::Template => Some(Sum { alpha: 1.0, bias: None, residual: None, relu: false }),
            InstKind::Op { op: ScalarOp::Mul, args } => {
                let (inner, factor) = either(args, |v| self.constant(v))?;
                let sum = self.sum(inner)?;
                let bare = sum.bias.is_none() && sum.residual.is_none() && !sum.relu;
                bare.then_some(Sum { alpha: sum.alpha * factor, ..sum })
            }
            InstKind::Op { op: ScalarOp::Max, args } => {
                let (inner, least) = either(args, |v| self.constant(v))?;
                (least == 0.0).then_some(Sum { relu: true, ..self.sum(inner)? })
            }
            InstKind::Op { op: ScalarOp::Add, args } => {
                let (inner, addend) = either(args, |v| self.load(v))?;
                let sum = self.sum(inner)?;
                if sum.relu {
                    return None;
                }
                self.with(sum, addend)
            }
            _ => None,
        }
    }

    fn load(&self, v: Val) -> Option<StridedView> {
        match &self.behind(v).kind {
            InstKind::Load { buf, index, mask: None } if is_float(self.program.buffers[*buf].dtype) => {
                StridedView::of(self.program, *buf, index, self.ranges)
            }
            _ => None,
        }
    }

    fn with(&self, sum: Sum, addend: StridedView) -> Option<Sum> {
        let moving: Vec<usize> =
            (0..self.ranges.len()).filter(|&d| addend.strides[d] != SymExpr::ZERO).collect();
        match moving[..] {
            [dim]
                if addend.strides[dim] == SymExpr::ONE
                    && sum.bias.is_none()
                    && (self.wide() > 1 || sum.residual.is_some()) =>
            {
                Some(Sum { bias: Some(Bias { buf: addend.buf, dim, offset: addend.offset }), ..sum })
            }
            _ if moving.len() == self.wide() && sum.residual.is_none() => {
                Some(Sum { residual: Some(addend), ..sum })
            }
            _ => None,
        }
    }

    /// Number of dimensions that are not provably of size 1.
    fn wide(&self) -> usize {
        self.ranges.iter().filter(|e| **e != SymExpr::ONE).count()
    }
}

/// Returns the result of `what` for one of two operands, and the other operand.
fn either<T>(args: &[Val], what: impl Fn(Val) -> Option<T>) -> Option<(Val, T)> {
    let [a, b] = args else { return None };
    what(*b).map(|t| (*a, t)).or_else(|| what(*a).map(|t| (*b, t)))
}

fn is_float(dtype: DType) -> bool {
    dtype.class() == ir_core::Class::Float
}
