//! Matrix products: of a few rows (`gemv`), by tiles that threads or the tensor memory accelerator bring into shared memory
//! (`tile_*`, `bulk_*`), and the simple kernel that is always there (`matmul`). Convolutions are products of the same tiles.
//!
//! Not here: which steps share a launch (`together`), what is done around a library's product (`library`).

pub(crate) mod gemv;
pub(crate) mod gemv_rows;
pub(crate) mod matmul;
pub(crate) mod prologue;
pub(crate) mod registers_rule;
pub(crate) mod registers_text;
pub(crate) mod tile;
pub(crate) mod tile_finish;
pub(crate) mod tile_rule;
pub(crate) mod tile_text;
pub(crate) mod tma;
pub(crate) mod tma_rule;
pub(crate) mod tma_text;
