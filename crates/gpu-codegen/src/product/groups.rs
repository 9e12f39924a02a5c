//! Products by groups in kernels: where a block, or a row, finds its group ([`kernel_ir::Groups`]). A tile has rows of one group
//! alone, and how many tiles there are is known but for one for each group, so that blocks of a launch that is planned without the data
//! look their tiles up; those that find none store nothing.
//!
//! Not here: the kernels (`tile_text`, `tma_text`, `gemv`, `matmul`).

use ir_core::{Shape, SymExpr};
use kernel_ir::{Along, Epilogue, Groups, InstKind, Matmul, Operand};

use crate::text::body::{BodyWriter, Uses};
use crate::text::template::element;

/// The number of tiles of `high` rows that rows of groups take at most; those without a group are one more.
pub(crate) fn tiles(groups: &Groups, rows: &SymExpr, high: i64) -> SymExpr {
    let whole = rows.floor_div(&SymExpr::from_i64(high));
    (whole + (groups.count().unwrap_or(0) + 1)).sym_min(rows)
}

/// The groups' ends as arguments of the helpers: address, distance and number.
pub(crate) fn arguments(writer: &BodyWriter<'_>, groups: &Groups, uses: &mut Uses) -> String {
    let first = element(writer, &groups.ends, &["0"], uses);
    let step = groups.ends.strides.first().map_or_else(|| "1".into(), |step| writer.expr(step, uses));
    format!("&{first}, (idx)({step}), (idx){}", groups.count().unwrap_or(0))
}

/// Statements that find tile `tile` of `high` rows: its group `own.group`, its first row `own.first`, the end of the group's rows
/// `own.end`, and whether it has any to multiply, `owned`. `chosen` is a matrix that exists.
pub(crate) fn find_tile(arguments: &str, groups: &Groups, rows: &str, high: &str, tile: &str) -> String {
    let count = groups.count().unwrap_or(0);
    format!(
        "const GroupPlaces<idx> own = group_tile<idx>({arguments}, (idx)({rows}), (idx){high}, (idx)({tile}));
const bool owned = own.group < {count} && own.first < own.end;
const idx chosen = imin<idx>(own.group, {last});
",
        last = (count - 1).max(0),
    )
}

/// Statements that find the part of the depth of group `group`, from `own.first` to `own.end`.
pub(crate) fn find_depth(arguments: &str, depth: &str, group: &str) -> String {
    format!("const GroupPlaces<idx> own = group_places<idx>({arguments}, (idx)({depth}), {group});\n")
}

/// A product of few rows by groups as one of a batch of single rows: `[m, 1, k] × [m, k, n]`, where the kernel finds the matrix of
/// each row by its group. `None` where groups do not divide rows.
pub(crate) fn single_rows(k: &Matmul) -> Option<Matmul> {
    let groups = k.groups.as_ref().filter(|g| g.along == Along::Rows)?;
    let ([m, depth], [_, _, n]) = (&k.a.sizes[..], &k.b.sizes[..]) else { return None };
    let a = Operand {
        sizes: Shape::from_iter([m.clone(), SymExpr::ONE, depth.clone()]),
        strides: Shape::from_iter([k.a.strides[0].clone(), SymExpr::ZERO, k.a.strides[1].clone()]),
        ..k.a.clone()
    };
    let b = Operand { sizes: Shape::from_iter([m.clone(), depth.clone(), n.clone()]), ..k.b.clone() };
    let ranges = Shape::from_iter([m.clone(), SymExpr::ONE, n.clone()]);
    let moved = |e: &SymExpr| e.subst(&|a| matches!(a, ir_core::Atom::Loop(1)).then(|| SymExpr::loop_var(2)));
    let mut insts = k.epilogue.insts.clone();
    for inst in &mut insts {
        match &mut inst.kind {
            InstKind::Index(e) | InstKind::Check { size: e, .. } => *e = moved(e),
            InstKind::Load { index, .. } | InstKind::Store { index, .. } => {
                index.iter_mut().for_each(|e| *e = moved(e));
            }
            _ => {}
        }
    }
    let epilogue = Epilogue { ranges, insts };
    Some(Matmul { a, b, epilogue, groups: Some(groups.clone()), ..k.clone() })
}
