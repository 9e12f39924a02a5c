//! What every intermediate representation of Ferroflux shares: [`DType`], [`Device`], symbolic sizes ([`SymExpr`]) and
//! their symbols, [`TensorMeta`], typed arenas, the origin of a node in the user's program, and the parts that both text forms share ([`text`]).
//!
//! It is not an IR itself and knows no operator, no kernel and no statement of a file format. It depends on no other crate of
//! the workspace; every other crate may depend on it.
//!
//! ```
//! use ir_core::{DType, SymExpr, SymId};
//!
//! // Sizes are polynomials in canonical form: equal sizes are equal values, however they were made.
//! let n = SymExpr::sym(SymId(0));
//! assert_eq!(&n + &n + 1, &n * 2 + 1);
//! assert_eq!(DType::BF16.size(), 2);
//! ```

mod arena;
mod atomic_file;
mod cache_folder;
mod device;
mod dtype;
mod guard;
mod memory;
mod meta;
mod origin;
mod precision;
mod scalar;
pub mod source_hash;
mod suggest;
pub mod sym;
mod symbol;
pub mod text;

pub use arena::{Arena, EntityId};
pub use atomic_file::{AtomicFile, write_whole};
pub use cache_folder::{CACHE_FOLDER_VARIABLE, cache_folder};
pub use device::{Device, DeviceKind};
pub use dtype::{Class, DType};
pub use guard::{Guard, Relation};
pub use memory::can_allocate;
pub use meta::{Layout, MemoryFormat, Shape, TensorMeta, contiguous_strides, numel};
pub use origin::Origin;
pub use precision::{AutocastDevice, Precision, Precisions};
pub use scalar::Scalar;
pub use suggest::nearest;
pub use sym::{Atom, Bounds, NoBounds, SizeCode, SymExpr, SymId};
pub use symbol::{Symbol, Symbols};
