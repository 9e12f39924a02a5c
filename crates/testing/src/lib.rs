//! Code that the tests of many crates share: the runner of file tests ([`files`]), the golden cases next to the project and
//! inside it ([`cases`]), how values are compared with goldens ([`compare`]), and the browser for pages.
//!
//! Only tests and `xtask` depend on it; nothing that is shipped uses it. It knows tensors and files, no graph, no kernel
//! and no operator, so that the tests of every crate above `tensor`, and those of `fx-ir` and `kernel-ir`, can use it. Its
//! functions panic where a test would: on a folder that is missing, or a file whose result is not the expected one.

mod browser;
pub mod cases;
pub mod compare;
pub mod files;

pub use browser::browser;
