//! Values as strided views of memory, which a template can read without a copy.

use ir_core::{Atom, Shape, SymExpr};
use kernel_ir::{BodyBuilder, BufId, InstKind, LoopBounds, Operand};

use crate::defs::{Def, Defs};
use crate::inline::{Inliner, no_forward};

/// Ranges of the size symbols.
pub(crate) struct SymBounds<'a>(pub(crate) &'a Defs);

impl ir_core::Bounds for SymBounds<'_> {
    fn range(&self, leaf: &Atom) -> (Option<i64>, Option<i64>) {
        match leaf {
            Atom::Sym(id) => self.0.symbols.get(*id).map_or((Some(0), None), |s| (Some(s.min), s.max)),
            Atom::Loop(_) => (Some(0), None),
            _ => (None, None),
        }
    }
    fn extent(&self, _: u32) -> Option<SymExpr> {
        None
    }
}

/// Address of a logical index in elements.
pub(crate) fn address(index: &[SymExpr], strides: &[SymExpr]) -> SymExpr {
    index.iter().zip(strides).fold(SymExpr::ZERO, |sum, (i, s)| sum + i * s)
}

/// The value as a strided view of a realized definition; `None` where it must be computed first.
pub(crate) fn operand(defs: &Defs, v: BufId) -> Option<Operand> {
    let def = defs.get(v);
    if def.realized {
        return Some(Operand {
            buf: v,
            sizes: def.sizes.clone(),
            strides: def.strides.clone(),
            offset: first(def),
        });
    }
    let symbols = SymBounds(defs);
    let bounds = LoopBounds { extents: &def.sizes, symbols: &symbols };
    let mut b = BodyBuilder::new();
    let at = (0..def.sizes.len() as u32).map(SymExpr::loop_var).collect();
    let value = Inliner::new(defs, &bounds).element(&mut b, &mut no_forward, v, at, None);
    let InstKind::Load { buf, index, mask: None } = &b.insts()[value.0 as usize].kind else { return None };
    let root = defs.get(*buf);
    let whole = address(index, &root.strides).simplify(&bounds);
    let (strides, offset) = affine(&whole, def.sizes.len())?;
    let offset = offset + first(root);
    (root.dtype == def.dtype).then_some(Operand { buf: *buf, sizes: def.sizes.clone(), strides, offset })
}

/// The first element of a definition within the memory that it lies in.
fn first(def: &Def) -> SymExpr {
    def.place.as_ref().map_or(SymExpr::ZERO, |place| place.offset.clone())
}

/// Splits an address into one stride per loop variable and an offset, where it is affine in them.
pub(crate) fn affine(address: &SymExpr, rank: usize) -> Option<(Shape, SymExpr)> {
    let mut rest = address.clone();
    let mut strides = Shape::new();
    for d in 0..rank as u32 {
        let (coef, left) = rest.affine_in(&Atom::Loop(d))?;
        if coef.any_leaf(|a| matches!(a, Atom::Loop(_) | Atom::Value(_))) {
            return None;
        }
        strides.push(coef);
        rest = left;
    }
    (!rest.any_leaf(|a| matches!(a, Atom::Loop(_) | Atom::Value(_)))).then_some((strides, rest))
}
