//! Hand-written compute templates: matrix product, convolution, depthwise convolution and fused attention on plain
//! pointers, sizes and strides. Knows no IR: the executor maps plan templates to the calls below.
//!
//! All sizes and strides are in *elements* (f32 unless stated), never bytes. All entry points are `unsafe` because they
//! take raw pointers into the executor's arena; each documents what it reads and writes. Shapes are checked before any
//! access; errors are [`MicroError`].
//!
//! Nothing has to be aligned, but operands that begin at a multiple of 64 bytes (and whose rows of channels are multiples of
//! 16 values) are up to a third faster where memory is the limit.
//!
//! # Matrix product with constant weights
//!
//! ```text
//! let isa = Isa::best();                                       // AVX-512, AVX2+FMA or portable, found once
//! let b = unsafe { PackedB::pack(isa, w, k, n, 1, k)? };       // w is [N, K] row-major: element (k, n) at k*1 + n*K
//! unsafe {
//!     matmul_packed(&MatmulPacked {
//!         m, a: MatRef { ptr: x, row_stride: k, col_stride: 1 },
//!         b: &b,
//!         c: COut::Memory { ptr: y, row_stride: n },
//!         epilogue: Epilogue { shift: Some(bias), activation: Activation::Relu, ..Epilogue::default() },
//!     })?;
//! }
//! ```
//!
//! # Batched matrix product without prepacking
//!
//! [`matmul_strided`] takes any strides for A, B and C and any number of batch dimensions ([`BatchDim`], stride 0
//! broadcasts). For `M <= 8` it reads B once, unpacked, in either layout; otherwise it packs block by block into
//! thread-local scratch. So a weight used only with few rows (decoding) needs no packed copy next to the original: use
//! [`matmul_strided`]; where the original can be dropped or `M` is large, [`PackedB`] is faster.
//! [`matmul_f64`] is the same for f64, through the `gemm` crate.
//!
//! # Convolution
//!
//! [`ConvPlan::new`] once for each shape and strides, [`ConvPlan::pack_weights`] once for each weight, [`ConvPlan::run`] for
//! each call; weights that change from call to call are read by [`ConvPlan::run_with`] as they lie. 1-D, 2-D and 3-D, any stride, dilation, (asymmetric) padding, groups and depthwise; channels-last input
//! and output (channel stride 1) is the fast case, every other layout goes through a scratch copy. Inside one
//! image, output rows are the flattened output pixels: `row = (od * OH + oh) * OW + ow`, columns are output channels.
//!
//! # Attention
//!
//! [`attention`] computes `softmax(scale * Q K^T + mask) V` block by block over keys, strided, with boolean or additive mask,
//! causal limit, grouped key/value heads and weights that are dropped after the softmax. [`attention_backward`] computes its gradients from the log-sum-exp.
//!
//! # Epilogues
//!
//! [`Epilogue`] is applied to each element of C exactly once: first, in registers, `v = act(v * scale[n] + shift[n] +
//! residual[m, n])`; then, when a block of C is complete and still in cache, the caller's [`Hook`] runs on it
//! ([`EpilogueBlock`]), on the thread that computed it. The blocks of a call are disjoint and cover C. With
//! [`COut::Scratch`] C has no destination: each block is in thread-local scratch and only the hook reads it (for
//! outputs of another dtype or layout).
//!
//! # Threads
//!
//! Work is split over batch, rows and columns among `rayon::current_num_threads()` threads of the caller's pool. An
//! executor that runs many small calls in a row should wrap them in [`team::with`]: it keeps the pool's threads
//! spinning between calls, as an OpenMP runtime does, so that each call starts without a futex wake-up. Nothing is
//! allocated per call but thread-local scratch, which grows to the largest need and is reused.

mod attention;
mod conv;
mod depthwise;
mod driver;
mod epilogue;
mod error;
pub mod fourier;
mod grid;
mod isa;
mod kernel;
mod matmul;
mod matmul_f64;
pub mod narrow;
mod openmp;
mod outer;
mod pack;
pub mod quantized;
mod scratch;
mod simd;
mod skinny;
pub mod team;
#[cfg(test)]
mod tests;
mod transpose;
mod turned;
mod way;

#[cfg(target_arch = "x86_64")]
pub use attention::attention_bf16;
pub use attention::{
    Attention, AttentionBackward, AttentionBackwardF64, AttentionF64, Dropout, EmptyRow, Mask, MaskF64,
    RowValues, Tensor4, attention, attention_backward, attention_backward_f64, attention_f64,
};
pub use conv::{ConvPlan, ConvShape, ConvWeights, Strides5};
pub use epilogue::{Activation, Blocks, COut, Epilogue, EpilogueBlock, Hook, Residual};
pub use error::MicroError;
pub use isa::{Isa, IsaError, processor};
pub use matmul::{
    BatchDim, MatRef, MatmulPacked, MatmulStrided, matmul_packed, matmul_packed_group, matmul_strided,
};
pub use matmul_f64::{MatmulF64, matmul_f64};
pub use pack::PackedB;
pub(crate) use scratch::AlignedBuf;
pub use turned::Lines;
pub use way::{Cut, Way};

/// All that chooses among the hand-written kernels of a program on this machine: what was compiled or packed for one choice does not fit another.
pub fn variant() -> String {
    let isa = Isa::best();
    format!("{isa:?}, tiles {}, bf16 {}", narrow::has_tiles(), narrow::bf16_pays(isa))
}
