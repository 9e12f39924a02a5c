//! The C tables between a host and a backend plugin: layouts, version handshake, error struct.
//!
//! What this is: `#[repr(C)]` data and the few `const` helpers by which both sides read each other's tables ([`table`]),
//! and the names of the compile modes ([`Mode`]). What this is not: a registry (`plugin-host`), a safe interface
//! (`plugin-sdk`), or a place for behaviour. It has no dependency and no `std`, so it can be read next to a C header line
//! by line.
//!
//! # Rules of the boundary
//!
//! 1. **Entry.** A library exports [`FfxEntry`] under the name [`ENTRY_SYMBOL`]. A new major has a new symbol.
//! 2. **Tables** begin with `{u32 struct_size, u16 major, u16 minor}` and grow only at the end. A field is used only
//!    where `struct_size` covers it whole and it is not null; sizes are never compared for equality. Structs that are
//!    elements of arrays are passed as arrays of pointers, so that they may grow too. The exceptions are *frozen* pairs
//!    ([`FfxStr`], [`FfxNameValue`], [`FfxIrVersion`]), which never change within a major.
//!    The *effective minor* of a pair is the lower of the two minors: neither side uses later additions.
//! 3. **Ownership.** Who allocates frees, through its own function. Strings and arrays passed to a call are borrowed for
//!    that call. What `describe` returns lives as long as the process. Errors are a struct of the caller. Outputs of
//!    `execute` belong to the caller, who calls the DLPack deleter exactly once, on any thread. Constants given to
//!    `bind_constants` stay valid until the executable is destroyed or the next `bind_constants` on it returns.
//!    The memory of inputs and constants is only read, but for inputs that the program declares written (kernel-ir 1.4).
//! 4. **Status.** Every call returns [`FFX_OK`] or one of the `FFX_ERR_*` codes and fills the error struct (which may be
//!    null) with the same code. No call unwinds or aborts. After an error no out-parameter holds anything to free.
//! 5. **Threads.** All slots may be called from many threads at once, also on one executable. The one exception:
//!    the host does not call `executable_destroy` or `bind_constants` while another call on that executable runs.
//! 6. **Streams.** On the default stream (null) `execute` and `copy` return when the results can be read. On any other they
//!    may return earlier: the host keeps the inputs until it has synchronized the stream; outputs may be deleted earlier,
//!    which the plugin orders after the work that uses them.
//! 7. **Life.** A plugin is never unloaded; the [`FfxHost`] table outlives every plugin.
//!
//! # How to extend
//!
//! Append a nullable slot at the end of a table, add one to [`ABI_MINOR`], and add its row to the golden test. A larger,
//! optional group of functions is returned by [`FfxPlugin::get_extension`] as a separate table with its own name.
//!
//! ```
//! use plugin_abi::{ABI_MAJOR, FfxPlugin, Head};
//!
//! // Every table begins with its size and version, and is read as far as that size covers it.
//! assert_eq!(std::mem::offset_of!(FfxPlugin, head), 0);
//! let head = Head { struct_size: size_of::<FfxPlugin>() as u32, major: ABI_MAJOR, minor: 0 };
//! assert_eq!(head.major, 1);
//! ```
#![no_std]
#![warn(missing_docs)]

pub mod collectives;
pub mod dlpack;
pub mod error;
pub mod host;
pub mod inspection;
pub mod memory;
pub mod mode;
pub mod plugin;
pub mod streams;
pub mod table;

pub use collectives::*;
pub use dlpack::{DLDataType, DLDevice, DLManagedTensorVersioned, DLPackVersion, DLTensor};
pub use error::*;
pub use host::*;
pub use inspection::*;
pub use memory::*;
pub use mode::{Mode, UnknownMode};
pub use plugin::*;
pub use streams::*;
pub use table::{Field, Head, Table, TableError};

/// Major version of this ABI. Tables with another major are not read beyond their head.
pub const ABI_MAJOR: u16 = 1;
/// Minor version of this ABI: counts the appended fields of all tables together.
pub const ABI_MINOR: u16 = 3;
/// Name of the symbol that a plugin library exports, with the type [`FfxEntry`].
pub const ENTRY_SYMBOL: &str = "ffx_plugin_entry_v1";
