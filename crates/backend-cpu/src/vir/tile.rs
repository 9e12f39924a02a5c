//! Kernels whose neighbouring lanes are apart in memory: how many points of the axis are a tile, so that the cache lines of one
//! outer point are still cached for the next.

use ir_core::{Atom, SymExpr};

use super::{Access, Along, VKind, VStage};

/// Cache lines that the points of a tile reach in a buffer. More at one power-of-two distance would not fit the ways of a
/// cache set.
const LINES: i64 = 16;
/// Bytes of a cache line.
const LINE: i64 = 64;
/// Points of a tile where the distance of lanes depends on data.
const UNKNOWN: i64 = 64;
/// Most points of a tile.
const MOST: i64 = 1024;

/// Points of a tile; `None` where neighbouring lanes are neighbours in memory.
pub(super) fn tile(axis: u32, stages: &[VStage]) -> Option<i64> {
    let insts = stages.iter().flat_map(|s| &s.insts);
    let tiles = insts.filter_map(|i| match &i.kind {
        VKind::Load { at, .. } | VKind::Store { at, .. } if at.along == Along::Lanes => {
            Some(points(axis, at))
        }
        _ => None,
    });
    tiles.min()
}

fn points(axis: u32, at: &Access) -> i64 {
    if at.address.any_leaf(|a| matches!(a, Atom::Value(_))) {
        return UNKNOWN;
    }
    let step = first_step(axis, &at.address).map_or(LINE, |s| s.saturating_mul(at.dtype.size() as i64).abs());
    let points = (LINES * LINE / step.clamp(1, LINE)) as u64;
    (points.next_power_of_two() as i64).min(MOST)
}

/// Elements between the first two points of the axis, where all else is at its first.
fn first_step(axis: u32, address: &SymExpr) -> Option<i64> {
    let at = |x: i64| {
        address.eval(&|a| match a {
            Atom::Loop(v) => Some(if *v == axis { x } else { 0 }),
            _ => None,
        })
    };
    at(1)?.checked_sub(at(0)?)
}

/// Whether lanes of some access are a cache line and more apart.
pub(crate) fn far_apart(tile: Option<i64>) -> bool {
    tile.is_some_and(|points| points <= LINES)
}

#[cfg(test)]
mod tests {
    use ir_core::DType;
    use kernel_ir::BufId;

    use super::*;

    #[test]
    fn a_tile_reaches_sixteen_lines() {
        let at = |address: SymExpr| Access {
            root: BufId(0),
            dtype: DType::F32,
            address,
            along: Along::Lanes,
            read_only: true,
            checked: false,
        };
        let (i, four) = (SymExpr::loop_var(0), SymExpr::from_i64(4));
        assert_eq!(points(0, &at(&i * 4)), 64);
        assert_eq!(points(0, &at(&i * 768)), 16);
        assert_eq!(points(0, &at(i.floor_div(&four) * 100 + i.modulo(&four))), 256);
        assert_eq!(points(0, &at(SymExpr::value(1))), UNKNOWN);
        assert!(far_apart(Some(points(0, &at(&i * 16)))) && !far_apart(Some(32)) && !far_apart(None));
    }
}
