//! Placements of tensors on a mesh of devices, as a pass over graphs of prims: [`propagate`] chooses a placement for every
//! value from those that the user fixed, by the operators' sharding rules and the costs of exchanges; [`localize`] builds the
//! graph that one rank runs, with collectives where placements differ.
//!
//! It knows no device, no transport and no launcher: collectives are prims over named groups, which are the mesh's axes.
//!
//! ```
//! use sharding::{Constraints, Costs, Mesh, localize, propagate};
//!
//! let graph: fx_ir::Graph = "fx 1.0\ngraph \"g\" {\n  %x: f32[4, 5] = input \"x\"\n  %w: f32[5, 6] = parameter \"w\"\n\n  \
//!     %y: f32[4, 6] = prims.matmul(%x, %w)\n  return %y\n}\n".parse()?;
//! let mesh: Mesh = "dp=2".parse()?;
//! let batch = graph.inputs().next().map(|(v, _, _)| v).unwrap();
//! let mut fixed = Constraints::default();
//! fixed.values.insert(batch, vec![Some(prims::Placement::shard(0))]);
//! let layout = propagate(&graph, &mesh, &fixed, &Costs::default())?;
//! let local = localize(&graph, &mesh, &layout, &[1])?;
//! assert_eq!(local.exchanges.len(), 1, "the result is returned whole");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod batch_norm;
mod cost;
mod error;
mod localize;
mod mesh;
mod plan;
mod propagate;
mod redistribute;
pub mod spec;
mod tables;
mod tensor_parallel;

use fx_ir::{Graph, NodeId};
use prims::OpError;

pub use batch_norm::{BatchNorm, check_batch_norms};
pub use cost::{Costs, Link};
pub use error::ShardingError;
pub use localize::{Exchange, Local, localize};
pub use mesh::{Axis, Mesh};
pub use plan::{BuiltIn, BuiltInKind, Plan};
pub use prims::Placement;
pub use propagate::{Choice, Constraints, Fixed, Layout, propagate};
pub use redistribute::Kind;
pub use spec::{Part, Spec};

fn call_error(graph: &Graph, id: NodeId, source: OpError) -> ShardingError {
    let origin = Box::new(graph.origin(id).clone());
    ShardingError::Call { node: graph.node_name(id).to_owned(), origin, source }
}
