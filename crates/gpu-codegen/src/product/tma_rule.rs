//! The tile shapes that are tried for a product by TMA and `wgmma`. `tile_rule` estimates their times with those of other
//! tiles.

use ir_core::DType;

use crate::Target;
use crate::product::tile::Product;
use crate::product::tile_text::{Form, Pipeline, Unit};
use crate::product::tma;
use crate::product::tma_text::readable;

/// `(rows, columns, stages, warpgroups)` of tiles of which a block computes one, or a part of one.
const ONE_TILE: &[(i64, i64, i64, i64)] =
    &[(128, 128, 5, 2), (128, 64, 4, 2), (64, 128, 4, 1), (64, 64, 6, 1)];
/// The same and the number of blocks that share an operand, for persistent blocks.
const PERSISTENT: &[(i64, i64, i64, i64, i64)] =
    &[(128, 256, 4, 2, 1), (128, 256, 4, 2, 2), (128, 128, 6, 2, 1), (128, 128, 6, 2, 2)];

/// The shapes that a device supports for a product, without those that split the inner dimension.
pub(crate) fn forms(product: &Product<'_>, unit: Unit, target: &Target) -> Vec<Form> {
    // A stage of the tensor memory accelerator has all of its depth: it would not end with that of a group.
    if !target.wgmma() || unit == Unit::Plain || product.groups_of_depth().is_some() {
        return Vec::new();
    }
    let form = |tile, stages, warpgroups: i64, pipeline| Form {
        unit,
        pipeline,
        tile,
        depth: tma::depth(if unit == Unit::Tf32 { DType::F32 } else { DType::BF16 }),
        stages,
        warps: (4 * warpgroups, 1),
        wave: 32,
        parts: 1,
        cluster: false,
    };
    let alone =
        ONE_TILE.iter().map(|&(bm, bn, stages, groups)| form((bm, bn), stages, groups, Pipeline::Tma));
    let persistent = PERSISTENT.iter().map(|&(bm, bn, stages, groups, share)| {
        let most = i64::from(target.multiprocessors) / share;
        form((bm, bn), stages, groups, Pipeline::Persistent { share, most: most.max(1) })
    });
    alone.chain(persistent).filter(|form| readable(product, form)).collect()
}
