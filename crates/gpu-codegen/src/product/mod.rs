//! Matrix products: of a few rows (`gemv`), by tiles that threads or the tensor memory accelerator copy to shared memory
//! (`tile_*`, `tma_*`), and the simple fallback kernel (`matmul`); by groups of rows or of the depth in each of these (`groups`). Convolutions use the same tiles.
//!
//! Not here: which steps share a launch (`fused_launch`), and kernels around a library's product (`library`).

pub(crate) mod gemv;
pub(crate) mod gemv_rows;
pub(crate) mod groups;
pub(crate) mod matmul;
pub(crate) mod prologue;
pub(crate) mod registers_rule;
pub(crate) mod registers_text;
pub(crate) mod tile;
pub(crate) mod tile_finish;
pub(crate) mod tile_rule;
pub(crate) mod tile_text;
pub(crate) mod tile_work;
pub(crate) mod tma;
pub(crate) mod tma_epilogue;
pub(crate) mod tma_rule;
pub(crate) mod tma_text;
