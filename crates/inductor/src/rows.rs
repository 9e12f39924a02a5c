//! Operands that get memory of their own because of the lines in which their readers' kernels take them: rows without gaps for exchanges, rows
//! whose elements are neighbours for attention and products. What the caller has a part in (inputs, constants, outputs) keeps its strides.
//!
//! Not here: which values get memory for other reasons, and its layout then (`realize`).

use ir_core::SymExpr;
use kernel_ir::BufId;
use prims::TemplateSpec;

use crate::affine;
use crate::defs::{DefKind, Defs};
use crate::realize::dense;

/// Fewest rows and columns of a matrix that is copied so that lines of it are neighbours.
const FEWEST_LINES: i64 = 16;

/// Lays out an operand.
pub(crate) type LayOut = fn(&mut Defs, BufId);

/// The operands of a template that are laid out for its kernels, and how.
pub(crate) fn of_template(spec: &TemplateSpec, on_device: bool) -> Vec<(BufId, LayOut)> {
    let all =
        |operands: &[&fx_ir::ValueId], how: LayOut| operands.iter().map(|v| (BufId(v.0), how)).collect();
    match spec {
        TemplateSpec::Attention { q, k, v, .. } => all(&[q, k, v], with_rows_inside),
        TemplateSpec::Matmul { a, b, dequant: None, groups: None, .. } if on_device => {
            all(&[a, b], with_lines_inside)
        }
        _ => Vec::new(),
    }
}

/// Lays operands of exchanges out in rows without gaps, as engines take them: a view gets memory of its own.
pub(crate) fn in_rows(defs: &mut Defs, operands: &[BufId]) {
    for &v in operands {
        let sizes = &defs.get(v).sizes;
        let rows = dense(sizes, &(0..sizes.len()).collect::<Vec<_>>());
        if affine::operand(defs, v).is_none_or(|o| o.strides != rows) {
            give_rows(defs, v);
        }
    }
}

/// Lays out an operand of attention so that the elements of a row are neighbours, as its kernels load them: attention over channels has
/// its tokens there, which lie apart. It is read several times, so that one copy costs less.
fn with_rows_inside(defs: &mut Defs, v: BufId) {
    let Some(operand) = affine::operand(defs, v) else { return };
    if operand.strides.last() != Some(&SymExpr::ONE) && operand.sizes.last() != Some(&SymExpr::ONE) {
        give_rows(defs, v);
    }
}

/// Lays out an operand of a product whose matrices lie within one another, as a product for each channel has them, matrix by matrix: its
/// kernels copy lines, and each tile would gather them element by element. Matrices that several products share are not copied for each.
fn with_lines_inside(defs: &mut Defs, v: BufId) {
    let Some(operand) = affine::operand(defs, v) else { return };
    let Some(batch) = operand.sizes.len().checked_sub(2) else { return };
    let is = |d: usize, stride: &SymExpr| operand.strides[d] == *stride && operand.sizes[d] != SymExpr::ONE;
    let large = |d: usize| defs.hint(&operand.sizes[d]) >= FEWEST_LINES;
    let inside = (0..batch).any(|d| is(d, &SymExpr::ONE)) && !(0..batch).any(|d| is(d, &SymExpr::ZERO));
    if inside && (batch..batch + 2).all(|d| operand.strides[d] != SymExpr::ONE && large(d)) {
        give_rows(defs, v);
    }
}

/// Gives an operand memory in row-major order, unless the caller has a part in it.
fn give_rows(defs: &mut Defs, v: BufId) {
    let def = defs.get_mut(v);
    if !matches!(def.kind, DefKind::Input | DefKind::Constant) && !def.output {
        let order: Vec<usize> = (0..def.sizes.len()).collect();
        (def.strides, def.realized) = (dense(&def.sizes, &order), true);
    }
}
