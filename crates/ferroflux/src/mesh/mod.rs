//! One program on many devices: ranks that have joined ([`Member`]), where a launcher says which of them a process is
//! ([`Place`]), and programs laid out on a mesh ([`Options::mesh`](crate::Options::mesh), [`layout`]).
//!
//! Each rank compiles the graph of its own part. Inputs of a call are whole tensors, the same on every rank, which takes its
//! part of them; results are whole too, unless a plan places them otherwise. Of weights a rank reads and keeps its part alone.
//!
//! Not here: placements and the graphs of ranks (the crate `sharding`), exchanges (engines, which are plugins).

mod batch_norm;
mod clock;
mod member;
mod place;
mod regions;
mod report;
mod shard;

pub use member::Member;
pub use place::Place;
pub use regions::PartPlace;
pub use report::{LaidOut, MovedValue, PlacedValue, layout, step_layout};
pub use sharding::{Axis, BatchNorm, Costs, Link, Mesh, Part, Placement, Plan, ShardingError};

pub(crate) use batch_norm::BatchGroups;
pub(crate) use shard::{MeshOptions, Parts, Sharded};
