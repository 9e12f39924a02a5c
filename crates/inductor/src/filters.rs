//! Memory for weights of convolutions that are inputs of the call: a copy with the channels innermost, which all convolutions
//! of the graph read. On a device one copy a call costs less than kernels that gather each channel from another line of
//! memory. Not here: weights that are bound to the code, which backends lay out once, and those of a training step's own
//! state, which has them in this order to begin with.

use ir_core::{Shape, SymExpr};
use kernel_ir::{BufId, InstKind};
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
        let Some((weight, input)) = gathered(defs, conv) else { continue };
        let copy = *copies.entry(input).or_insert_with(|| channels_last(defs, input, conv));
        let read = view_of_copy(defs, weight, (input, copy), conv);
        defs.get_mut(copy).users += 1;
        if let DefKind::Template(TemplateSpec::Conv { weight, .. }) = &mut defs.get_mut(conv).kind {
            *weight = fx_ir::ValueId(read.0);
        }
    }
}

/// The weight of a convolution and the input that it is a view of, where a kernel would read neighbouring channels from places
/// apart, and each of them many times. The gradient of a weight is a convolution too, whose window is as large as an image: it
/// reads that once.
fn gathered(defs: &mut Defs, conv: BufId) -> Option<(BufId, BufId)> {
    let DefKind::Template(TemplateSpec::Conv { weight, .. }) = &defs.get(conv).kind else { return None };
    let weight = BufId(weight.0);
    let operand = affine::operand(defs, weight)?;
    let input = defs.get(operand.buf);
    let rank = input.sizes.len();
    if rank < 3 || operand.sizes.len() != rank || !matches!(input.kind, DefKind::Input) {
        return None;
    }
    let window = operand.sizes[2..].iter().map(|s| s.as_const().unwrap_or(i64::MAX));
    let window = window.fold(1, i64::saturating_mul);
    let results = defs.numel_hint(&defs.get(conv).sizes[2..]);
    let mut spatial = input.sizes.iter().zip(&input.strides).skip(2);
    let inside = spatial.any(|(size, stride)| *size != SymExpr::ONE && *stride == SymExpr::ONE);
    let many = input.sizes[..2].iter().all(|size| *size != SymExpr::ONE);
    let gains = window > 1 && window < results && inside && many;
    (gains && is_view_of_copy(defs, weight, operand.buf)).then_some((weight, operand.buf))
}

/// Whether a strided view of an input is one of the copy as well: what joins two dimensions of the input, as the gradient of a
/// grouped convolution does with groups and channels, may have no strides there.
fn is_view_of_copy(defs: &mut Defs, view: BufId, input: BufId) -> bool {
    let strides = innermost(&defs.get(input).sizes);
    let own = std::mem::replace(&mut defs.get_mut(input).strides, strides);
    let strided = affine::operand(defs, view).is_some();
    defs.get_mut(input).strides = own;
    strided
}

/// The strides of a tensor with dimension 1 innermost.
fn innermost(sizes: &[SymExpr]) -> Shape {
    let order: Vec<usize> = [0].into_iter().chain(2..sizes.len()).chain([1]).collect();
    dense(sizes, &order)
}

/// A copy of an input with dimension 1 innermost, made before `reader` is computed.
fn channels_last(defs: &mut Defs, input: BufId, reader: BufId) -> BufId {
    let copy = copy_before(defs, input, reader);
    let strides = innermost(&defs.get(copy).sizes);
    defs.get_mut(copy).strides = strides;
    copy
}

/// The same view of a copy.
fn view_of_copy(defs: &mut Defs, view: BufId, (input, copy): (BufId, BufId), reader: BufId) -> BufId {
    if view == input {
        return copy;
    }
    let Some(source) = defs.get(view).reads().first().copied() else { return view };
    let source = view_of_copy(defs, source, (input, copy), reader);
    let same = copy_before(defs, view, reader);
    let DefKind::Loop { insts, value } = &defs.get(view).kind else { return same };
    let (mut insts, value) = (insts.clone(), *value);
    for inst in &mut insts {
        if let InstKind::Load { buf, .. } = &mut inst.kind {
            *buf = source;
        }
    }
    let def = defs.get_mut(same);
    def.kind = DefKind::Loop { insts, value };
    (def.realized, def.users) = (false, 1);
    same
}
