//! Memory for weights of convolutions that are inputs of the call: a copy with the channels innermost, which all convolutions
//! of the graph read. On a device one copy a call costs less than kernels that gather each channel from another line of
//! memory. Not here: weights that are bound to the code, which backends lay out once, and those of a training step's own
//! state, which has them in this order to begin with.

use ir_core::SymExpr;
use kernel_ir::BufId;
use prims::TemplateSpec;
use rustc_hash::FxHashMap;

use crate::affine;
use crate::defs::{DefKind, Defs};
use crate::lower::copy_before;
use crate::realize::dense;

/// Gives every convolution whose weight is a row-major input, or a view of one, the copy.
pub(crate) fn run(defs: &mut Defs) {
    let mut copies: FxHashMap<BufId, BufId> = FxHashMap::default();
    for conv in defs.order.clone() {
        let Some(weight) = weight_of(defs, conv).filter(|w| gathers(defs, conv, *w)) else { continue };
        let copy = match copies.get(&weight) {
            Some(copy) => *copy,
            None => copy_before(defs, weight, conv),
        };
        copies.insert(weight, copy);
        let rank = defs.get(copy).sizes.len();
        let order: Vec<usize> = [0].into_iter().chain(2..rank).chain([1]).collect();
        let strides = dense(&defs.get(copy).sizes, &order);
        let copied = defs.get_mut(copy);
        (copied.strides, copied.users) = (strides, copied.users + 1);
        if let DefKind::Template(TemplateSpec::Conv { weight, .. }) = &mut defs.get_mut(conv).kind {
            *weight = fx_ir::ValueId(copy.0);
        }
    }
}

fn weight_of(defs: &Defs, id: BufId) -> Option<BufId> {
    match &defs.get(id).kind {
        DefKind::Template(TemplateSpec::Conv { weight, .. }) => Some(BufId(weight.0)),
        _ => None,
    }
}

/// Whether a kernel would read neighbouring channels of the weight from places apart, and each of them many times. The gradient
/// of a weight is a convolution too, whose window is as large as an image: it reads that once.
fn gathers(defs: &Defs, conv: BufId, weight: BufId) -> bool {
    let Some(operand) = affine::operand(defs, weight) else { return false };
    let (sizes, strides) = (&operand.sizes, &operand.strides);
    let rank = sizes.len();
    if rank < 3 || !matches!(defs.get(operand.buf).kind, DefKind::Input) {
        return false;
    }
    let window: i64 =
        sizes[2..].iter().map(|s| s.as_const().unwrap_or(i64::MAX)).fold(1, i64::saturating_mul);
    let results = defs.numel_hint(&defs.get(conv).sizes[2..]);
    let apart = strides[1] != SymExpr::ONE && sizes[1] != SymExpr::ONE;
    let in_window =
        sizes[2..].iter().zip(&strides[2..]).any(|(n, s)| *n != SymExpr::ONE && *s == SymExpr::ONE);
    window > 1 && window < results && apart && in_window
}
