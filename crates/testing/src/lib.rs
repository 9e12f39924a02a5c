//! What the tests of many crates share: the runner of file tests ([`files`]), the golden cases next to the project and
//! inside it ([`cases`]), and how values are compared with goldens ([`compare`]).
//!
//! A dependency of tests and of `xtask` alone; nothing that is shipped uses it. It knows tensors and files, no graph, no
//! kernel and no operator, so that the tests of every crate above `tensor`, and of `fx-ir` and `kernel-ir` next to it, can use
//! it. Its functions panic where a test would: on a folder that is gone, or a file that does not give what it expects.

pub mod cases;
pub mod compare;
pub mod files;
