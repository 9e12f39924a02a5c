//! Fused attention, `softmax(scale * Q K^T + mask) V`, block by block over keys with a running maximum and sum (Milakov
//! and Gimelshein 2018; Dao et al. 2022), so that never more than a block of scores exists. Weights may be
//! dropped after the softmax; which are is an operand.

mod backward;
mod backward_double;
mod block;
mod double;
mod kept;
mod softmax;
#[cfg(target_arch = "x86_64")]
mod tiles;
mod weights;

use super::kernel::{panel_width, tile_rows};
use super::pack::pack_panel;
use super::skinny;
use super::transpose::Source;
use super::{Isa, MicroError, scratch, team};

pub use backward::{AttentionBackward, RowValues, Tensor4, attention_backward};
pub use backward_double::{AttentionBackwardF64, attention_backward_f64};
pub use double::{AttentionF64, MaskF64, attention_f64};
pub use kept::Dropout;
use softmax::RowMask;
#[cfg(target_arch = "x86_64")]
pub use tiles::attention_bf16;

/// Keys in a block, whole words of kept weights: the scores of 70 rows are then 140 KiB, next to the block's K and V in the second-level cache.
const KEYS: usize = 512;
/// Register tiles of rows in a block of rows.
const TILES: usize = 5;
/// Most values of K and V packed at once (unless one head has more).
const PACKED: usize = 2 << 20;

/// The result of rows in which every key is masked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum EmptyRow {
    /// 0, as `scaled_dot_product_attention` of PyTorch 2.5 and later, for both kinds of mask.
    #[default]
    Zero,
    /// NaN, as a decomposed softmax over a row of -inf.
    Nan,
}

/// The mask. Strides are of `[B, H, Lq, Lk]` in elements; 0 broadcasts.
#[derive(Debug, Clone, Copy)]
pub enum Mask {
    /// All.
    None,
    /// Added to the scaled scores; -inf hides a key.
    Additive {
        /// Element (0, 0, 0, 0).
        ptr: *const f32,
        /// `[B, H, Lq, Lk]`
        strides: [isize; 4],
    },
    /// True means that the query attends to the key.
    Boolean {
        /// Element (0, 0, 0, 0).
        ptr: *const bool,
        /// `[B, H, Lq, Lk]`
        strides: [isize; 4],
    },
}

/// `O[b, h, i, :] = softmax_j(scale * Q[b, h, i, :] . K[b, g, j, :] + mask[b, h, i, j]) V[b, g, j, :]` with
/// `g = h / (q_heads / kv_heads)`. All strides are of `[B, H, L, D]` in elements, any sign.
#[derive(Debug, Clone, Copy)]
pub struct Attention<T = f32> {
    /// Instruction set; [`Isa::best`] but in tests.
    pub isa: Isa,
    /// B
    pub batch: usize,
    /// H of Q and O.
    pub q_heads: usize,
    /// H of K and V; divides `q_heads`.
    pub kv_heads: usize,
    /// Queries.
    pub q_len: usize,
    /// Keys.
    pub kv_len: usize,
    /// D of Q and K.
    pub head_dim: usize,
    /// D of V and O.
    pub v_dim: usize,
    /// `[B, Hq, Lq, D]`
    pub q: *const T,
    /// Strides of Q.
    pub q_strides: [isize; 4],
    /// `[B, Hkv, Lk, D]`
    pub k: *const T,
    /// Strides of K.
    pub k_strides: [isize; 4],
    /// `[B, Hkv, Lk, Dv]`
    pub v: *const T,
    /// Strides of V.
    pub v_strides: [isize; 4],
    /// `[B, Hq, Lq, Dv]`
    pub o: *mut f32,
    /// Strides of O.
    pub o_strides: [isize; 4],
    /// `[B, Hq, Lq]` and strides: the destination of each row's log-sum-exp, -inf where every key is masked.
    pub sums: Option<(*mut f32, [isize; 3])>,
    /// Usually `1 / sqrt(D)`; T5 has 1.
    pub scale: f32,
    /// Mask or bias.
    pub mask: Mask,
    /// Weights that are dropped.
    pub dropout: Option<Dropout>,
    /// `Some(d)`: query `i` attends to keys `j <= i + d`. PyTorch's `is_causal` is `Some(0)`.
    pub causal: Option<isize>,
    /// Rows in which every key is masked.
    pub empty_row: EmptyRow,
}

// SAFETY: the pointers are used only under the promises of `attention`: good from any thread.
unsafe impl<T> Send for Attention<T> {}
// SAFETY: the pointers are used only under the promises of `attention`: good from any thread.
unsafe impl<T> Sync for Attention<T> {}

/// Computes fused attention.
///
/// # Safety
/// Q, K, V, the mask and the words of kept weights must be readable and O writable at their sizes and strides, from any thread; O must not overlap the
/// others.
///
/// # Errors
/// [`MicroError`] if `kv_heads` does not divide `q_heads`, or the processor lacks `isa`.
pub unsafe fn attention(call: &Attention) -> Result<(), MicroError> {
    call.isa.require()?;
    check_heads(call.q_heads, call.kv_heads)?;
    let rows = call.batch * call.q_heads * call.q_len;
    if rows == 0 || (call.v_dim == 0 && call.sums.is_none()) {
        return Ok(());
    }
    let rows = call.group() * call.q_len;
    let as_it_lies = rows <= skinny::MAX_ROWS && call.k_strides[3] == 1 && call.v_strides[3] == 1;
    // SAFETY: the caller guarantees that every pointer is valid for the sizes and strides given.
    unsafe { if as_it_lies { in_place(call) } else { packed(call) } }
    Ok(())
}

fn check_heads(q_heads: usize, kv_heads: usize) -> Result<(), MicroError> {
    if kv_heads > 0 && q_heads.is_multiple_of(kv_heads) {
        return Ok(());
    }
    let (what, why) = ("attention key/value heads", "they must divide the query heads");
    Err(MicroError::Invalid { what, value: kv_heads as i64, why })
}

impl Mask {
    /// The mask of one row, whose first entry has the offset that `at` computes from the strides.
    fn of_row(&self, at: impl Fn(&[isize; 4]) -> isize) -> RowMask {
        match self {
            Mask::None => RowMask::All,
            Mask::Additive { ptr, strides } => {
                RowMask::Additive(ptr.wrapping_offset(at(strides)), strides[3])
            }
            Mask::Boolean { ptr, strides } => RowMask::Boolean(ptr.wrapping_offset(at(strides)), strides[3]),
        }
    }
}

impl<T> Attention<T> {
    /// Query heads for each key/value head.
    fn group(&self) -> usize {
        self.q_heads / self.kv_heads
    }

    /// Multiply-adds in all; an exponential counts as sixteen.
    fn work(&self) -> usize {
        self.batch * self.q_heads * self.q_len * self.kv_len * (self.head_dim + self.v_dim + 16)
    }

    fn key_blocks(&self) -> usize {
        self.kv_len.div_ceil(KEYS)
    }

    /// Values of a packed block of K, and of a packed block of V.
    fn block_len(&self) -> (usize, usize) {
        let nr = panel_width(self.isa);
        let keys = self.kv_len.min(KEYS);
        (keys.next_multiple_of(nr) * self.head_dim, keys * self.v_dim.next_multiple_of(nr))
    }
}

/// Few rows per head (decoding): K and V are read unpacked, one task per key/value head.
unsafe fn in_place(call: &Attention) {
    team::par_for_work(call.batch * call.kv_heads, call.work(), &|head| {
        // SAFETY: the caller guarantees that every pointer is valid for the sizes and strides given; heads are disjoint in O.
        unsafe { block::run(call, head, 0..call.group() * call.q_len, None) };
    });
}

/// Packs K and V of as many heads as fit in the cache, with all threads, then runs blocks of rows.
unsafe fn packed(call: &Attention) {
    let heads = call.batch * call.kv_heads;
    let (k_len, v_len) = call.block_len();
    let (blocks, block_len) = (call.key_blocks(), k_len + v_len);
    let chunk = (PACKED / (blocks * block_len).max(1)).clamp(1, heads);
    let rows = call.group() * call.q_len;
    let tiles = rows.div_ceil(tile_rows(call.isa));
    let row_blocks = tiles.div_ceil(TILES);
    scratch::with(chunk * blocks * block_len, |buf| {
        let buf = Buf(buf);
        for head0 in (0..heads).step_by(chunk) {
            let heads = (heads - head0).min(chunk);
            team::par_for_work(heads * blocks, heads * blocks * block_len, &|i| {
                // SAFETY: the caller guarantees that every pointer is valid for the sizes and strides given; every task has its
                // own block of the scratch.
                unsafe { pack(call, head0 + i / blocks, i % blocks, buf.at(i * block_len)) };
            });
            team::par_for_work(heads * row_blocks, call.work(), &|i| {
                let (head, block) = (i / row_blocks, i % row_blocks);
                let mr = tile_rows(call.isa);
                let part = super::driver::part(tiles, row_blocks, block);
                let span = part.start * mr..(part.end * mr).min(rows);
                // SAFETY: the caller guarantees that every pointer is valid for the sizes and strides given; row blocks are
                // disjoint in O.
                unsafe { block::run(call, head0 + head, span, Some(buf.at(head * blocks * block_len))) };
            });
        }
    });
}

#[derive(Clone, Copy)]
struct Buf(*mut f32);

// SAFETY: tasks write disjoint parts, or only read.
unsafe impl Sync for Buf {}

impl Buf {
    fn at(&self, offset: usize) -> *mut f32 {
        self.0.wrapping_add(offset)
    }
}

/// Packs one block of keys: K transposed to `[D, keys]` panels, then V as `[keys, Dv]` panels.
unsafe fn pack(call: &Attention, head: usize, block: usize, buf: *mut f32) {
    let nr = panel_width(call.isa);
    let (b, h) = ((head / call.kv_heads) as isize, (head % call.kv_heads) as isize);
    let keys = block * KEYS..((block + 1) * KEYS).min(call.kv_len);
    let from = |ptr: *const f32, s: &[isize; 4]| {
        ptr.wrapping_offset(b * s[0] + h * s[1] + keys.start as isize * s[2])
    };
    let (k_len, _) = call.block_len();
    // SAFETY: the caller guarantees that every pointer is valid for the sizes and strides given; the block's panels lie inside
    // `buf`.
    unsafe {
        let k = Source { ptr: from(call.k, &call.k_strides), row: call.k_strides[3], col: call.k_strides[2] };
        for (p, j) in (0..keys.len()).step_by(nr).enumerate() {
            let to = buf.add(p * call.head_dim * nr);
            pack_panel(k.at(0, j), call.head_dim, (keys.len() - j).min(nr), to, nr);
        }
        let v = Source { ptr: from(call.v, &call.v_strides), row: call.v_strides[2], col: call.v_strides[3] };
        for (p, j) in (0..call.v_dim).step_by(nr).enumerate() {
            let to = buf.add(k_len + p * keys.len() * nr);
            pack_panel(v.at(0, j), keys.len(), (call.v_dim - j).min(nr), to, nr);
        }
    }
}
