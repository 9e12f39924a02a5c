//! Reader of torch.export archives.

mod bytes;
mod container;
mod error;
mod json;
mod limits;
mod schema;
mod sym;

pub use bytes::SharedBytes;
pub use container::Archive;
pub use error::{Foreign, Place, Pt2Error, Result};
pub use limits::Limits;

/// Major version of the export schema that this reader knows.
pub const SCHEMA_MAJOR: i64 = 8;
