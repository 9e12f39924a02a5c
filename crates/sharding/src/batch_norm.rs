//! Whose statistics batch norms of training have on a mesh: what a user says about it, the axes that split the batch, and the
//! check that every rank has its groups of samples whole. What it means for a program is the same on any mesh, and is written
//! into its graph before differentiation (`aot_autograd::batch_groups`), not here.

use std::fmt;
use std::num::NonZeroU32;
use std::str::FromStr;

use fx_ir::{Arg, Graph, NodeId};
use serde::{Deserialize, Deserializer};

use crate::{Layout, Mesh, ShardingError};

/// Whose mean and variance batch norms in training mode normalise by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BatchNorm {
    /// Those of the whole batch, as on one device.
    #[default]
    Whole,
    /// Those of each rank's own part of the batch, as PyTorch's `DistributedDataParallel` has them: groups, as many as there are
    /// ranks over the axes that split the batch.
    Rank,
    /// Those of each of this many equal groups of consecutive samples, whatever the mesh.
    Groups(NonZeroU32),
}

impl fmt::Display for BatchNorm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BatchNorm::Whole => f.write_str("whole"),
            BatchNorm::Rank => f.write_str("rank"),
            BatchNorm::Groups(n) => write!(f, "groups={n}"),
        }
    }
}

impl FromStr for BatchNorm {
    type Err = ShardingError;
    fn from_str(text: &str) -> Result<BatchNorm, ShardingError> {
        let groups = |text: &str| Some(BatchNorm::Groups(text.strip_prefix("groups=")?.parse().ok()?));
        match text {
            "whole" => Ok(BatchNorm::Whole),
            "rank" => Ok(BatchNorm::Rank),
            other => groups(other).ok_or_else(|| {
                ShardingError::Plan(format!(
                    "`{other}` is no choice of a batch norm's statistics: there are `whole`, `rank` and `groups=N`"
                ))
            }),
        }
    }
}

impl<'de> Deserialize<'de> for BatchNorm {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<BatchNorm, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// Refuses a layout of a graph of prims in which a batch norm of this many groups has its groups elsewhere than split over these
/// axes, so that ranks would exchange samples or statistics.
///
/// # Errors
/// The first such batch norm.
pub fn check_batch_norms(
    graph: &Graph,
    mesh: &Mesh,
    layout: &Layout,
    (groups, axes): (u32, &[usize]),
) -> Result<(), ShardingError> {
    for (id, node) in graph.iter() {
        let Some(choice) = layout.calls.get(&id).filter(|_| is_statistic(graph, id, groups)) else {
            continue;
        };
        let split = |axis: &&usize| choice.operands.first().is_some_and(|s| s[**axis].dim() == Some(0));
        if let Some(&axis) = axes.iter().find(|a| !split(a)) {
            return Err(ShardingError::BatchNorm {
                node: graph.node_name(id).to_owned(),
                origin: Box::new(graph.origins[node.origin].clone()),
                axis: mesh.axes()[axis].name.clone(),
            });
        }
    }
    Ok(())
}

/// Whether a call sums over the samples `[groups, N / groups, C, …]` of a batch norm. The operator of the user's program is kept
/// for batch norms in groups alone.
fn is_statistic(graph: &Graph, id: NodeId, groups: u32) -> bool {
    let Some((target, args)) = graph.nodes[id].as_call() else { return false };
    let operator = &graph.origin(id).operator;
    let operand = match args.first() {
        Some(Arg::Value(v)) => graph.meta(*v),
        _ => None,
    };
    let is_grouped = |sizes: &[ir_core::SymExpr]| {
        sizes.len() > 2
            && sizes[0].as_const() == Some(groups.into())
            && sizes[1..].iter().any(|s| s.as_const() != Some(1))
    };
    target == "prims.sum" && operator.contains("batch_norm") && operand.is_some_and(|m| is_grouped(&m.sizes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_read_and_written() {
        for text in ["whole", "rank", "groups=4"] {
            assert_eq!(text.parse::<BatchNorm>().map(|b| b.to_string()).ok().as_deref(), Some(text));
        }
        for wrong in ["", "groups", "groups=0", "groups=-1", "ranks", "groups=x"] {
            assert!(wrong.parse::<BatchNorm>().is_err(), "{wrong}");
        }
    }
}
