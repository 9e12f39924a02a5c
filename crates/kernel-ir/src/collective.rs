//! Collectives: exchanges of data between the ranks of a group. This is their list, with the sizes of what each takes and
//! gives; engines perform them ([`runtime::Collectives`](crate::runtime::Collectives)), and no transport is known here.
//!
//! Every rank of a group passes blocks of one size and dtype, in row-major order. Where a collective gives or takes one
//! block a rank, these stand in the order of ranks along a first dimension.

use serde::{Deserialize, Serialize};

use crate::{ExternCall, ExternOp, Step};

/// The group of the rank alone, which every program has: a collective over it is the identity (on one block).
pub const SELF_GROUP: &str = "self";

/// How values of several ranks become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Combine {
    /// Sum.
    Sum,
    /// Sum, divided by the number of ranks.
    Mean,
    /// Product.
    Prod,
    /// Largest; of truth values whether any is true.
    Max,
    /// Smallest; of truth values whether all are true.
    Min,
}

impl Combine {
    /// All of them.
    pub const ALL: [Combine; 5] = [Combine::Sum, Combine::Mean, Combine::Prod, Combine::Max, Combine::Min];

    /// The name in text forms.
    pub fn name(self) -> &'static str {
        match self {
            Combine::Sum => "sum",
            Combine::Mean => "mean",
            Combine::Prod => "prod",
            Combine::Max => "max",
            Combine::Min => "min",
        }
    }
    /// The one with this name.
    pub fn from_name(name: &str) -> Option<Combine> {
        Combine::ALL.into_iter().find(|c| c.name() == name)
    }
}

/// The kinds of exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum CollectiveOp {
    /// One block to one block: every rank gets the combination of all.
    AllReduce(Combine),
    /// One block to one for each rank: every rank gets the blocks of all.
    AllGather,
    /// One block for each rank to one block: rank `i` gets the combination of the blocks with number `i`.
    ReduceScatter(Combine),
    /// One block for each rank to as many: rank `i` gets the blocks with number `i`, in the order of the ranks that had them.
    AllToAll,
    /// One block to one block: every rank gets that of the rank `root`.
    Broadcast {
        /// The number within the group.
        root: u32,
    },
    /// One block to one block: rank `i` gets that of rank `i - by`; zeros where there is no such rank, unless numbers wrap
    /// around.
    Shift {
        /// The distance.
        by: i32,
        /// Whether numbers are taken modulo the number of ranks.
        wraps: bool,
    },
}

impl CollectiveOp {
    /// The name in text forms, without parameters.
    pub fn name(self) -> &'static str {
        match self {
            CollectiveOp::AllReduce(_) => "all_reduce",
            CollectiveOp::AllGather => "all_gather",
            CollectiveOp::ReduceScatter(_) => "reduce_scatter",
            CollectiveOp::AllToAll => "all_to_all",
            CollectiveOp::Broadcast { .. } => "broadcast",
            CollectiveOp::Shift { .. } => "shift",
        }
    }
    /// Whether it takes a block for each rank, and whether it gives one for each.
    pub fn blocks(self) -> (bool, bool) {
        match self {
            CollectiveOp::AllReduce(_) | CollectiveOp::Broadcast { .. } | CollectiveOp::Shift { .. } => {
                (false, false)
            }
            CollectiveOp::AllGather => (false, true),
            CollectiveOp::ReduceScatter(_) => (true, false),
            CollectiveOp::AllToAll => (true, true),
        }
    }
    /// How values are combined, where they are.
    pub fn combine(self) -> Option<Combine> {
        match self {
            CollectiveOp::AllReduce(c) | CollectiveOp::ReduceScatter(c) => Some(c),
            _ => None,
        }
    }
}

/// An exchange of a program.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Collective {
    /// Its kind.
    pub op: CollectiveOp,
    /// The name of the group: an axis of the mesh, or a process group of the captured program; [`SELF_GROUP`].
    pub group: String,
    /// Whether the step only starts it: a later [`ExternOp::Wait`](crate::ExternOp::Wait) completes it, and until then
    /// nothing reads the result or writes the operand.
    pub asynchronous: bool,
}

/// How many steps at the beginning of a list an engine may be asked to start as one: exchanges of one group that are only
/// started. 1 where the first one is anything else; 0 of an empty list. All ranks must see the same.
pub fn side_by_side<'a>(steps: impl IntoIterator<Item = &'a Step>) -> usize {
    let started = |step: &'a Step| match step {
        Step::Extern(ExternCall { op: ExternOp::Collective(c), .. }) => {
            let alone = !c.asynchronous || c.group == SELF_GROUP;
            (!alone).then_some(&c.group)
        }
        _ => None,
    };
    let mut steps = steps.into_iter();
    let Some(first) = steps.next() else { return 0 };
    let Some(first) = started(first) else { return 1 };
    1 + steps.take_while(|s| started(s) == Some(first)).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_combinations_are_read_back() {
        for combine in Combine::ALL {
            assert_eq!(Combine::from_name(combine.name()), Some(combine));
        }
    }
}
