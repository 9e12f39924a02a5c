//! Choice of the vector axis, by a rough count of what each access costs for four neighbouring points.

use ir_core::{Atom, SymExpr};
use kernel_ir::{Inst, InstKind, StoreMode};

use super::Dim;
use super::lower::{Body, PlacedInst};

/// Cost of four lanes of an access that is contiguous, broadcast, or one address a lane.
const UNIT: f64 = 1.0;
const UNIFORM: f64 = 0.4;
const LANES: f64 = 6.0;
/// Four points of scalar code.
const SCALAR: f64 = 4.0;

/// The step of an expression along a loop variable.
pub(super) fn step(e: &SymExpr, var: u32) -> Option<SymExpr> {
    let (step, _) = e.affine_in(&Atom::Loop(var))?;
    Some(step)
}

fn access_cost(e: &SymExpr, var: u32, varying_values: bool) -> f64 {
    match step(e, var).and_then(|s| s.as_const()) {
        _ if varying_values => LANES,
        Some(0) => UNIFORM,
        Some(1) => UNIT,
        _ => LANES,
    }
}

/// Cost of four points of a body along `var`.
pub(super) fn body_cost(body: &Body, var: u32, extent: &SymExpr) -> f64 {
    let short = extent.as_const().is_some_and(|n| n < 4);
    let mut cost = 0.0;
    for p in &body.insts {
        cost += match p {
            PlacedInst { inst: Inst { kind: InstKind::Check { .. }, .. }, .. } if !short => 1.0,
            PlacedInst { inst, address: Some(e) } => {
                let combining =
                    matches!(&inst.kind, InstKind::Store { mode, .. } if *mode != StoreMode::Write);
                let indirect = e.any_leaf(|a| matches!(a, Atom::Value(_)));
                let c = access_cost(e, var, indirect || combining);
                if short { SCALAR } else { c }
            }
            _ if short => SCALAR,
            PlacedInst { inst, .. } => match inst.kind {
                InstKind::Scan { .. } => SCALAR,
                _ => 1.0,
            },
        };
    }
    cost
}

/// The best loop of `dims` for a body and its cost.
pub(super) fn best(dims: &[Dim], bodies: &[&Body]) -> Option<(usize, f64)> {
    let cost = |d: &Dim| bodies.iter().map(|b| b.weight * body_cost(b, d.var, &d.extent)).sum::<f64>();
    let costs: Vec<f64> = dims.iter().map(cost).collect();
    // The last of equals: the innermost loop.
    let best = (0..dims.len()).rev().min_by(|a, b| costs[*a].total_cmp(&costs[*b]))?;
    Some((best, costs[best]))
}
