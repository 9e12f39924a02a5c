//! Reader of `torch.export` archives (`.pt2`): the zip container, the JSON of the export schema, size expressions, and
//! from them an [`fx_ir::Graph`] with its signature and its weights mapped from the file.
//!
//! Nothing here runs or decomposes an operator, and nothing is ever unpickled. An archive is untrusted input: what
//! is damaged, forged or not supported is a [`Pt2Error`] that names the entry, the JSON path and what to do.
//!
//! ```no_run
//! let program = pt2::ExportedProgram::load("model.pt2")?;
//! println!("{} nodes, {} weights", program.graph.order.len(), program.weights.len());
//! # Ok::<(), pt2::Pt2Error>(())
//! ```

mod bytes;
mod container;
mod error;
mod json;
mod json_path;
mod limits;
mod program;
mod schema;
mod sym;
mod weights;
mod write;

pub use bytes::SharedBytes;
pub use container::Archive;
pub use error::{Foreign, Place, Pt2Error, Result};
pub use limits::Limits;
pub use program::{CallSpec, Dialect, ExportedProgram, TreeSpec, UserInput};
pub use weights::{SafetensorsSource, Weight, WeightSource, WeightTable};

/// Major version of the export schema that this reader knows.
pub const SCHEMA_MAJOR: i64 = 8;

/// Newest minor version that this reader was written for (PyTorch 2.11); newer ones are tried.
pub const SCHEMA_MINOR: i64 = 17;
