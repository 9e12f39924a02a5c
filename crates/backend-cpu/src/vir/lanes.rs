//! Selects the values of a body that are computed lane by lane in scalar code, although they vary along the axis: checked
//! indices that only addresses use. An address is scalar code anyway, so a lane is read, compared and used without ever
//! being in a vector.

use ir_core::{Atom, DType};

use super::{Along, VInst, VKind};

/// For each instruction whether its lanes are computed one by one, each when an address first needs it. None is where
/// nothing is checked.
pub(crate) fn by_lane(insts: &[VInst]) -> Vec<bool> {
    let mut found: Vec<bool> = insts.iter().map(can_be_lanes).collect();
    let (mut used, mut elsewhere) = (vec![false; insts.len()], vec![false; insts.len()]);
    let mut checks = false;
    for (n, inst) in insts.iter().enumerate().rev() {
        found[n] &= used[n] && !elsewhere[n];
        checks |= found[n] && matches!(inst.kind, VKind::Check { .. });
        let mut addressed = Vec::new();
        if let VKind::Load { at, .. } | VKind::Store { at, .. } = &inst.kind
            && at.along == Along::Lanes
        {
            at.address.for_each_leaf(&mut |a| {
                if let Atom::Value(v) = a {
                    addressed.push(*v);
                }
            });
        }
        inst.kind.for_each_val(&mut |v| {
            let at = v.0 as usize;
            used[at] = true;
            elsewhere[at] |= !found[n] && !addressed.contains(&v.0);
        });
        // A value that is also stored or used as a mask is needed as a vector.
        if let VKind::Store { value, .. } = &inst.kind {
            elsewhere[value.0 as usize] = true;
        }
        if let VKind::Load { mask: Some(mask), .. } | VKind::Store { mask: Some(mask), .. } = &inst.kind {
            elsewhere[mask.0 as usize] = true;
        }
    }
    if checks { found } else { vec![false; insts.len()] }
}

/// Integers whose lanes do not depend on when they are computed.
fn can_be_lanes(inst: &VInst) -> bool {
    let whole = inst.dtype == DType::Bool || inst.dtype.is_int();
    let simple = match &inst.kind {
        VKind::Load { at, mask } => at.read_only && mask.is_none() && at.along != Along::Uniform,
        VKind::Check { size, mask, .. } => mask.is_none() && !size.any_leaf(|a| matches!(a, Atom::Value(_))),
        VKind::Op { .. } | VKind::Cast(_) => true,
        _ => false,
    };
    inst.varies && whole && simple
}

#[cfg(test)]
mod tests {
    use ir_core::{Scalar, SymExpr};
    use kernel_ir::{BufId, StoreMode, Val};

    use super::super::{Access, Sixteen};
    use super::*;

    fn inst(dtype: DType, kind: VKind) -> VInst {
        VInst { dtype, varies: true, sixteen: Sixteen::default(), kind }
    }

    fn at(dtype: DType, address: SymExpr, along: Along) -> Access {
        Access { root: BufId(0), dtype, address, along, read_only: true, checked: false }
    }

    /// `x[check(ids[i])]` stored to `y[i]`, and perhaps the index too.
    fn body(check: bool, stored: u32) -> Vec<VInst> {
        let (i, index) = (SymExpr::loop_var(0), SymExpr::value(1));
        let (value, size) = (Val(0), SymExpr::from_i64(9));
        let second = match check {
            true => VKind::Check { value, size, mask: None, site: 0 },
            false => VKind::Cast(value),
        };
        let store = |value| VKind::Store {
            at: at(DType::F32, i.clone(), Along::Unit),
            value: Val(value),
            mask: None,
            mode: StoreMode::Write,
        };
        vec![
            inst(DType::I64, VKind::Load { at: at(DType::I64, i.clone(), Along::Unit), mask: None }),
            inst(DType::I64, second),
            inst(DType::F32, VKind::Load { at: at(DType::F32, index, Along::Lanes), mask: None }),
            inst(DType::F32, store(stored)),
            VInst { varies: false, ..inst(DType::F32, VKind::Const(Scalar::Float(0.0))) },
        ]
    }

    #[test]
    fn checked_indices_that_only_addresses_use_are_lanes() {
        assert_eq!(by_lane(&body(true, 2)), [true, true, false, false, false]);
        // The index itself is stored: it and its operands are needed as vectors.
        assert_eq!(by_lane(&body(true, 1)), [false; 5]);
        assert_eq!(by_lane(&body(false, 2)), [false; 5]);
    }
}
