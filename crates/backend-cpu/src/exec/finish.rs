//! The epilogue of a template: by the hand-written kernels' own epilogue where the body is a bias, scale, residual and
//! clamp stored row by row, otherwise by a generated function.

use ir_core::{Atom, DType, SymExpr};
use kernel_ir::{BufId, Epilogue, InstKind, Program, ScalarOp, StoreMode, Val};

use super::{Buffers, ExecError};
use crate::clif::Walk;
use crate::micro;
use crate::vir::Dim;
use kernel_ir::runtime::Sizes;

/// Memory addressed by rows and columns: `offset + batch * … + row * row_stride + column`.
#[derive(Clone, Debug)]
pub(super) struct Rows {
    root: BufId,
    offset: SymExpr,
    /// Stride of each batch dimension.
    pub(super) batch: Vec<SymExpr>,
    pub(super) row: SymExpr,
}

impl Rows {
    pub(super) fn ptr(&self, buffers: &Buffers, sizes: &Sizes) -> Result<*mut f32, ExecError> {
        let offset = sizes.eval(&self.offset)? as isize;
        Ok(buffers.0[self.root.0 as usize].cast::<f32>().wrapping_offset(offset))
    }
}

/// One value per column.
#[derive(Clone, Debug)]
pub(super) struct Columns {
    root: BufId,
    offset: SymExpr,
}

impl Columns {
    fn ptr(&self, buffers: &Buffers, sizes: &Sizes) -> Result<*const f32, ExecError> {
        let offset = sizes.eval(&self.offset)? as isize;
        Ok(buffers.0[self.root.0 as usize].cast::<f32>().wrapping_offset(offset).cast_const())
    }
}

/// `act(v * scale + shift + residual)` stored to `out`.
#[derive(Clone, Debug)]
pub(super) struct Direct {
    pub(super) out: Rows,
    scale: Option<Columns>,
    shift: Option<Columns>,
    pub(super) residual: Option<Rows>,
    activation: micro::Activation,
}

impl Direct {
    /// The hand-written kernels' form; `n` columns, residual rows `batch_stride` apart from entry to entry.
    ///
    /// # Safety
    /// The buffers must hold `n` values from the columns' offsets on for the life of the call.
    pub(super) unsafe fn epilogue<'a>(
        &self,
        buffers: &'a Buffers,
        sizes: &Sizes,
        n: usize,
    ) -> Result<micro::Epilogue<'a>, ExecError> {
        let columns = |c: &Option<Columns>| -> Result<Option<&'a [f32]>, ExecError> {
            let Some(c) = c else { return Ok(None) };
            let ptr = c.ptr(buffers, sizes)?;
            // SAFETY: the caller guarantees that every pointer is valid for the sizes and strides given.
            Ok(Some(unsafe { std::slice::from_raw_parts(ptr, n) }))
        };
        let residual = match &self.residual {
            None => None,
            Some(r) => {
                let batch_stride = match r.batch.last() {
                    Some(s) => sizes.eval(s)? as usize,
                    None => 0,
                };
                Some(micro::Residual {
                    ptr: r.ptr(buffers, sizes)?,
                    row_stride: sizes.eval(&r.row)? as usize,
                    batch_stride,
                })
            }
        };
        Ok(micro::Epilogue {
            scale: columns(&self.scale)?,
            shift: columns(&self.shift)?,
            residual,
            activation: self.activation,
            ..micro::Epilogue::default()
        })
    }
}

/// The terms of a recognised body, as they are found.
struct EpilogueTerms<'a> {
    program: &'a Program,
    body: &'a Epilogue,
    walk: &'a Walk,
    scale: Option<Columns>,
    shift: Option<Columns>,
    residual: Option<Rows>,
    templates: u32,
}

/// Recognises an epilogue that the hand-written kernels implement.
pub(super) fn recognise(program: &Program, body: &Epilogue, walk: &Walk) -> Option<Direct> {
    let mut stores = body.insts.iter().filter(|i| matches!(i.kind, InstKind::Store { .. }));
    let (store, None) = (stores.next()?, stores.next()) else { return None };
    let InstKind::Store { buf, index, value, mask: None, mode: StoreMode::Write } = &store.kind else {
        return None;
    };
    if program.buffers[*buf].dtype != DType::F32 || body.insts.iter().any(|i| i.dtype != DType::F32) {
        return None;
    }
    let mut found =
        EpilogueTerms { program, body, walk, scale: None, shift: None, residual: None, templates: 0 };
    let out = found.rows(*buf, index)?;
    let (value, activation) = found.activation(*value);
    found.sum(value)?;
    // Sums of a first pass over k are stored in the output: factors and shifts must not lie there, which a value of one row may.
    let shares = |root: BufId| root == out.root || program.plan.may_share(program, root, out.root);
    if [&found.scale, &found.shift].into_iter().flatten().any(|c| shares(c.root)) {
        return None;
    }
    // A residual of several batch dimensions has no single distance between entries.
    let batches = found.residual.as_ref().map_or(0, |r| r.batch.len());
    (found.templates == 1 && batches <= 1).then_some(())?;
    Some(Direct { out, scale: found.scale, shift: found.shift, residual: found.residual, activation })
}

impl EpilogueTerms<'_> {
    fn kind(&self, v: Val) -> &InstKind {
        &self.body.insts[v.0 as usize].kind
    }

    fn constant(&self, v: Val) -> Option<f32> {
        match self.kind(v) {
            InstKind::Const(c) => Some(c.as_f64() as f32),
            _ => None,
        }
    }

    /// `op(x, constant)` in either order.
    fn with_const(&self, v: Val, wanted: ScalarOp) -> Option<(Val, f32)> {
        let InstKind::Op { op, args } = self.kind(v) else { return None };
        if *op != wanted {
            return None;
        }
        self.constant(args[1]).map(|c| (args[0], c)).or_else(|| self.constant(args[0]).map(|c| (args[1], c)))
    }

    /// Strips a rectifier or clamp.
    fn activation(&self, v: Val) -> (Val, micro::Activation) {
        if let Some((inner, hi)) = self.with_const(v, ScalarOp::Min)
            && let Some((x, lo)) = self.with_const(inner, ScalarOp::Max)
            && lo <= hi
        {
            return (x, micro::Activation::Clamp(lo, hi));
        }
        match self.with_const(v, ScalarOp::Max) {
            Some((x, 0.0)) => (x, micro::Activation::Relu),
            Some((x, lo)) if !lo.is_nan() => (x, micro::Activation::Clamp(lo, f32::INFINITY)),
            _ => (v, micro::Activation::None),
        }
    }

    /// Sorts the terms of a sum into template, shift and residual.
    fn sum(&mut self, v: Val) -> Option<()> {
        match self.kind(v).clone() {
            InstKind::Op { op: ScalarOp::Add, args } => {
                self.sum(args[0])?;
                self.sum(args[1])
            }
            InstKind::Template => {
                self.templates += 1;
                Some(())
            }
            InstKind::Op { op: ScalarOp::Mul, args } => {
                let (t, s) = match (self.kind(args[0]), self.kind(args[1])) {
                    (InstKind::Template, _) => (args[0], args[1]),
                    (_, InstKind::Template) => (args[1], args[0]),
                    _ => return None,
                };
                let InstKind::Load { buf, index, mask: None } = self.kind(s).clone() else { return None };
                self.scale = Some(self.columns(buf, &index)?);
                self.sum(t)
            }
            InstKind::Load { buf, index, mask: None } => {
                if self.shift.is_none()
                    && let Some(c) = self.columns(buf, &index)
                {
                    self.shift = Some(c);
                    return Some(());
                }
                if self.residual.is_some() {
                    return None;
                }
                self.residual = Some(self.rows(buf, &index)?);
                Some(())
            }
            _ => None,
        }
    }

    fn steps(&self, e: &SymExpr, dims: &[Dim]) -> Option<(Vec<SymExpr>, SymExpr)> {
        let mut rest = e.clone();
        let mut steps = Vec::new();
        for d in dims {
            let (step, left) = rest.affine_in(&Atom::Loop(d.var))?;
            if step.any_leaf(|a| matches!(a, Atom::Loop(_) | Atom::Value(_))) {
                return None;
            }
            steps.push(step);
            rest = left;
        }
        Some((steps, rest))
    }

    /// One step for all row dimensions together.
    fn row_step(&self, steps: &[SymExpr]) -> Option<SymExpr> {
        let dims = &self.walk.rows;
        let mut total: Option<(SymExpr, SymExpr)> = None;
        for (d, step) in dims.iter().zip(steps).rev() {
            if d.extent == SymExpr::ONE {
                continue;
            }
            total = Some(match total {
                None => (step.clone(), d.extent.clone()),
                Some((s, n)) if *step == &s * &n => (s, n * &d.extent),
                Some(_) => return None,
            });
        }
        Some(total.map_or(SymExpr::ZERO, |(s, _)| s))
    }

    /// Splits an address into batch, row and column steps; the column step must be as wanted.
    fn split(&self, buf: BufId, index: &[SymExpr], column: i64) -> Option<Rows> {
        let buffer = &self.program.buffers[buf];
        if buffer.dtype != DType::F32 {
            return None;
        }
        let address = buffer.address(index);
        let (batch, rest) = self.steps(&address, &self.walk.batch)?;
        let (rows, rest) = self.steps(&rest, &self.walk.rows)?;
        let (step, offset) = rest.affine_in(&Atom::Loop(self.walk.column))?;
        let moves = offset.any_leaf(|a| matches!(a, Atom::Loop(_) | Atom::Value(_)));
        if moves || step.as_const() != Some(column) {
            return None;
        }
        Some(Rows { root: self.program.root(buf), offset, batch, row: self.row_step(&rows)? })
    }

    fn rows(&self, buf: BufId, index: &[SymExpr]) -> Option<Rows> {
        self.split(buf, index, 1)
    }

    fn columns(&self, buf: BufId, index: &[SymExpr]) -> Option<Columns> {
        let r = self.split(buf, index, 1)?;
        let still = r.row == SymExpr::ZERO && r.batch.iter().all(|s| *s == SymExpr::ZERO);
        still.then_some(Columns { root: r.root, offset: r.offset })
    }
}

impl Direct {
    /// Whether the result is only stored.
    pub(super) fn is_plain(&self) -> bool {
        self.scale.is_none()
            && self.shift.is_none()
            && self.residual.is_none()
            && self.activation == micro::Activation::None
    }
}
