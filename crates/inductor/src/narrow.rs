//! Products of 16-bit floats that the program widens to `float32` first, as it does where scores are wanted in `float32`: a device's tensor
//! cores multiply the 16-bit floats as they are, exactly, and sum in `float32`. The product keeps its dtype; what it reads takes half the
//! memory, and is multiplied at many times the rate.
//!
//! Not here: products of which one operand is `float32` itself, and hosts, whose 16-bit instructions do not know subnormal numbers.

use fx_ir::ValueId;
use ir_core::{DType, Shape, SymExpr};
use kernel_ir::{BodyBuilder, BufId, InstKind};
use prims::TemplateSpec;

use crate::defs::{Def, DefKind, Defs};
use crate::lower::copy_before;

/// Has every such product read the 16-bit floats.
pub(crate) fn run(defs: &mut Defs) {
    for product in defs.order.clone() {
        let Some(operands) = widened_operands(defs, product) else { continue };
        let [x, y] = operands.map(|v| ValueId(narrowed(defs, v, product).0));
        if let DefKind::Template(TemplateSpec::Matmul { a, b, .. }) = &mut defs.get_mut(product).kind {
            (*a, *b) = (x, y);
        }
    }
}

/// The operands of a product, where both are widened floats of one dtype.
fn widened_operands(defs: &Defs, product: BufId) -> Option<[BufId; 2]> {
    let def = defs.get(product);
    let DefKind::Template(TemplateSpec::Matmul { a, b, zero: 0, dequant: None, groups: None }) = &def.kind
    else {
        return None;
    };
    let operands = [BufId(a.0), BufId(b.0)];
    let [x, y] = operands.map(|v| narrow_dtype(defs, v));
    (def.dtype == DType::F32 && x.is_some() && x == y).then_some(operands)
}

/// The dtype of the 16-bit floats that a value widens, behind views.
fn narrow_dtype(defs: &Defs, v: BufId) -> Option<DType> {
    let mut at = v;
    loop {
        let def = defs.get(at);
        if def.barrier {
            return None;
        }
        match def.is_view() {
            true => at = *def.reads().first()?,
            false => return widening(def).map(|(dtype, ..)| dtype),
        }
    }
}

/// What a conversion of 16-bit floats to `float32` reads, and where.
fn widening(def: &Def) -> Option<(DType, BufId, &Shape)> {
    let DefKind::Loop { insts, value } = &def.kind else { return None };
    let InstKind::Cast(from) = insts[value.0 as usize].kind else { return None };
    let load = &insts[from.0 as usize];
    let InstKind::Load { buf, index, mask: None } = &load.kind else { return None };
    let narrow = matches!(load.dtype, DType::F16 | DType::BF16) && def.dtype == DType::F32;
    narrow.then_some((load.dtype, *buf, index))
}

/// The value without its conversion, defined before `reader`.
fn narrowed(defs: &mut Defs, v: BufId, reader: BufId) -> BufId {
    let def = defs.get(v);
    if let Some((dtype, source, index)) = widening(def) {
        let index = index.clone();
        let same = def.sizes == defs.get(source).sizes
            && index.iter().enumerate().all(|(d, i)| *i == SymExpr::loop_var(d as u32));
        return if same { source } else { view(defs, v, reader, (dtype, source, index)) };
    }
    let DefKind::Loop { insts, value } = &def.kind else { return v };
    let InstKind::Load { buf, index, .. } = &insts[value.0 as usize].kind else { return v };
    let (buf, index) = (*buf, index.clone());
    let source = narrowed(defs, buf, reader);
    let dtype = defs.get(source).dtype;
    view(defs, v, reader, (dtype, source, index))
}

/// A definition of the sizes of `like`, whose elements are those of a source at an index.
fn view(defs: &mut Defs, like: BufId, reader: BufId, (dtype, source, index): (DType, BufId, Shape)) -> BufId {
    // What depends on weights alone is computed once, and so is what it reads.
    let constant = defs.get(like).constant;
    let id = copy_before(defs, like, reader);
    let mut b = BodyBuilder::new();
    let value = b.load(source, dtype, index);
    let def = defs.get_mut(id);
    def.kind = DefKind::Loop { insts: b.finish(), value };
    (def.dtype, def.realized, def.constant) = (dtype, false, constant);
    id
}
