//! What every intermediate representation of Ferroflux shares: [`DType`], [`Device`], symbolic sizes ([`SymExpr`]) and
//! their symbols, [`TensorMeta`], typed arenas, the origin of a node in the user's program, and what text forms share ([`text`]).
//!
//! It is not an IR itself and knows no operator, no kernel and no statement of a file format. It depends on no other crate of
//! the workspace; every other crate may depend on it.

mod arena;
mod cache_folder;
mod device;
mod dtype;
mod guard;
mod memory;
mod meta;
mod origin;
mod scalar;
mod suggest;
pub mod sym;
mod symbol;
pub mod text;
mod whole_file;

pub use arena::{Arena, EntityId};
pub use cache_folder::{CACHE_FOLDER_VARIABLE, cache_folder};
pub use device::{Device, DeviceKind};
pub use dtype::{Class, DType};
pub use guard::{Guard, Relation};
pub use memory::has_room;
pub use meta::{Layout, MemoryFormat, Shape, TensorMeta, contiguous_strides, numel};
pub use origin::Origin;
pub use scalar::Scalar;
pub use suggest::nearest;
pub use sym::{Atom, Bounds, NoBounds, SizeCode, SymExpr, SymId};
pub use symbol::{Symbol, Symbols};
pub use whole_file::{WholeFile, write_whole};
