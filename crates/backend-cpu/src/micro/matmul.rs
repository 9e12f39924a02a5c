//! Matrix products: packed weights ([`matmul_packed`]) and strided batches ([`matmul_strided`]). Selects the
//! implementation; the loops are in `driver` and `skinny`.

use super::driver::{self, Product, Rows};
use super::kernel::panel_width;
use super::pack::pack_panel;
use super::transpose::{self, Source};
use super::{COut, Cut, Epilogue, EpilogueBlock, Hook, MicroError, PackedB, scratch, skinny, team};

/// A read-only matrix: element `(i, j)` at `ptr + i * row_stride + j * col_stride`. Strides may be 0 or negative.
#[derive(Debug, Clone, Copy)]
pub struct MatRef {
    /// Element (0, 0).
    pub ptr: *const f32,
    /// Elements between rows.
    pub row_stride: isize,
    /// Elements between columns.
    pub col_stride: isize,
}

/// `C[M, N] = epilogue(A[M, K] * B[K, N])` with B packed; K and N are B's.
pub struct MatmulPacked<'a> {
    /// Rows of A and C.
    pub m: usize,
    /// `[M, K]`; `col_stride == 1` is the fast case.
    pub a: MatRef,
    /// `[K, N]`, one tap, one group.
    pub b: &'a PackedB,
    /// `[M, N]`.
    pub c: COut,
    /// Applied once to each element.
    pub epilogue: Epilogue<'a>,
}

/// One batch dimension of a strided product, outermost first. A stride of 0 broadcasts.
#[derive(Debug, Clone, Copy)]
pub struct BatchDim {
    /// Entries.
    pub size: usize,
    /// Elements between entries of A.
    pub a_stride: isize,
    /// Elements between entries of B.
    pub b_stride: isize,
    /// Elements between entries of C.
    pub c_stride: isize,
}

impl BatchDim {
    /// Offsets of A, B and C of one entry.
    pub(crate) fn offsets(dims: &[BatchDim], mut entry: usize) -> (isize, isize, isize) {
        let mut at = (0, 0, 0);
        for d in dims.iter().rev() {
            let i = (entry % d.size) as isize;
            entry /= d.size;
            at = (at.0 + i * d.a_stride, at.1 + i * d.b_stride, at.2 + i * d.c_stride);
        }
        at
    }
}

/// `C[.., M, N] = epilogue(A[.., M, K] * B[.., K, N])`, nothing packed in advance, any strides.
pub struct MatmulStrided<'a> {
    /// Instruction set; [`super::Isa::best`] but in tests.
    pub isa: super::Isa,
    /// Rows of A and C.
    pub m: usize,
    /// Columns of B and C.
    pub n: usize,
    /// Columns of A, rows of B.
    pub k: usize,
    /// `[M, K]` of batch entry 0.
    pub a: MatRef,
    /// `[K, N]` of batch entry 0 (a `[N, K]` weight has row stride 1 and column stride K).
    pub b: MatRef,
    /// Element (0, 0) of batch entry 0 of C; null where the hook takes each block in scratch memory.
    pub c: *mut f32,
    /// Elements between rows of C.
    pub c_row_stride: isize,
    /// Elements between columns of C; 1 is the fast case, any other goes through scratch.
    pub c_col_stride: isize,
    /// Batch dimensions, outermost first; empty for one product.
    pub batch: &'a [BatchDim],
    /// Applied once to each element, before C is written where `c_col_stride != 1`.
    pub epilogue: Epilogue<'a>,
}

/// Multiplies by a packed B.
///
/// # Safety
/// A's `m * K` elements must be readable and C's writable from any thread, C must not overlap A or B, and the epilogue's
/// pointers must be good for their described extent.
///
/// # Errors
/// [`MicroError`] for a bad shape.
pub unsafe fn matmul_packed(call: &MatmulPacked<'_>) -> Result<(), MicroError> {
    // SAFETY: the caller's promise.
    unsafe { matmul_packed_group(call, 0) }
}

/// Multiplies by one of several packed matrices.
///
/// # Safety
/// As [`matmul_packed`].
///
/// # Errors
/// [`MicroError`] for a bad shape.
pub unsafe fn matmul_packed_group(call: &MatmulPacked<'_>, group: usize) -> Result<(), MicroError> {
    let b = call.b;
    b.check(b.k(), b.n())?;
    call.epilogue.check(b.n())?;
    let product = Product {
        isa: b.isa(),
        m: call.m,
        n: b.n(),
        a: call.a.ptr,
        rows: Rows::Strided { row_stride: call.a.row_stride, col_stride: call.a.col_stride },
        taps: &[0],
        cuts: &[],
        kc: b.k(),
        zero: std::ptr::null(),
        b: b.panels(group),
        source: None,
        c: call.c,
        epilogue: call.epilogue,
        batch: 0,
        col0: 0,
        cut: b.cut(),
    };
    // SAFETY: the caller guarantees that every pointer is valid for the sizes and strides given.
    unsafe { driver::run(1, &product, &|_| product) }
}

/// Multiplies strided batches.
///
/// # Safety
/// As [`matmul_packed`], for every batch entry; entries of C must not overlap.
///
/// # Errors
/// [`MicroError`] for a bad shape.
pub unsafe fn matmul_strided(call: &MatmulStrided<'_>) -> Result<(), MicroError> {
    call.isa.require()?;
    call.epilogue.check(call.n)?;
    if call.entries() == 0 || call.m == 0 || call.n == 0 {
        return Ok(());
    }
    let skinny =
        call.m <= skinny::MAX_ROWS && !call.c.is_null() && (call.b.row_stride == 1 || call.b.col_stride == 1);
    // SAFETY: the caller guarantees that every pointer is valid for the sizes and strides given.
    unsafe {
        if call.c_col_stride == 1 && (call.c_row_stride >= 0 || call.m == 1) {
            if !skinny && call.is_thin() {
                return turned(call);
            }
            return if skinny { skinny::run(call) } else { packing(call, None) };
        }
        // The hook writes finished blocks to the destination of C.
        let user = call.epilogue.hook;
        let target = SharedCall(call);
        let scatter = |block: &EpilogueBlock| target.scatter(block, user);
        packing(call, Some(&scatter))
    }
}

/// A product of few columns as one of few rows: `Cᵀ = Bᵀ Aᵀ`, which reads A once, where it lies.
///
/// # Safety
/// As [`matmul_strided`]; the call is thin and C is not turned.
unsafe fn turned(call: &MatmulStrided<'_>) -> Result<(), MicroError> {
    let ld = call.m.next_multiple_of(16);
    let entry = call.n * ld;
    scratch::with(call.entries() * entry, |buf| {
        let mut distance = entry as isize;
        let mut batch: Vec<BatchDim> = call.batch.to_vec();
        for d in batch.iter_mut().rev() {
            *d = BatchDim { size: d.size, a_stride: d.b_stride, b_stride: d.a_stride, c_stride: distance };
            distance *= d.size as isize;
        }
        let turn = |m: MatRef| MatRef { ptr: m.ptr, row_stride: m.col_stride, col_stride: m.row_stride };
        let product = MatmulStrided {
            m: call.n,
            n: call.m,
            a: turn(call.b),
            b: turn(call.a),
            c: buf,
            c_row_stride: ld as isize,
            batch: &batch,
            epilogue: Epilogue::default(),
            ..*call
        };
        // SAFETY: the operands are those of the caller; the scratch holds the products of all entries, and their places in C are the
        // caller's promise.
        unsafe {
            skinny::run(&product)?;
            for i in 0..call.entries() {
                let from = Source { ptr: buf.add(i * entry), row: 1, col: ld as isize };
                let to = call.c.wrapping_offset(call.offsets(i).2);
                transpose::copy(from, call.m, call.n, to, call.c_row_stride as usize);
            }
        }
        Ok(())
    })
}

struct SharedCall<'a, 'b>(&'a MatmulStrided<'b>);

// SAFETY: its pointers are used under the promises of the unsafe entry points: good from any thread.
unsafe impl Sync for SharedCall<'_, '_> {}

impl SharedCall<'_, '_> {
    /// Runs the caller's hook on a block in scratch, then stores the block at C's strides.
    fn scatter(&self, block: &EpilogueBlock, user: Option<Hook<'_>>) {
        let call = self.0;
        // SAFETY: the block is this thread's own scratch; its place in C is the caller's promise, and blocks are disjoint.
        unsafe {
            if let Some(hook) = user {
                hook.call(block);
            }
            let c = call.c.wrapping_offset(call.offsets(block.batch).2);
            for i in 0..block.row1 - block.row0 {
                let row = c.wrapping_offset((block.row0 + i) as isize * call.c_row_stride);
                for j in 0..block.col1 - block.col0 {
                    let to = row.wrapping_offset((block.col0 + j) as isize * call.c_col_stride);
                    *to = *block.ptr.add(i * block.row_stride + j);
                }
            }
        }
    }
}

impl MatmulStrided<'_> {
    /// Number of products.
    pub(crate) fn entries(&self) -> usize {
        self.batch.iter().map(|d| d.size).product()
    }

    /// Offsets of A, B and C of one product.
    pub(crate) fn offsets(&self, entry: usize) -> (isize, isize, isize) {
        BatchDim::offsets(self.batch, entry)
    }

    /// Whether the result has few columns that are only stored, and A has its rows side by side, as in the gradient to a weight of few inputs.
    fn is_thin(&self) -> bool {
        let stored = !self.c.is_null() && self.epilogue.hook.is_none() && !self.epilogue.in_registers();
        let side = self.a.row_stride == 1 && self.a.col_stride != 1;
        self.n <= skinny::ROWS_PER_SWEEP && self.n < self.m && stored && side
    }

    /// B of one product.
    fn source(&self, entry: usize) -> Source {
        let ptr = self.b.ptr.wrapping_offset(self.offsets(entry).1);
        Source { ptr, row: self.b.row_stride, col: self.b.col_stride }
    }

    /// Whether all products share one B.
    fn one_b(&self) -> bool {
        self.batch.iter().all(|d| d.b_stride == 0 || d.size == 1)
    }
}

/// Most values of B packed at once: a share of the last-level cache, so that packing costs no memory traffic.
const CHUNK: usize = 2 << 20;
/// Rows from which on a product packs B for itself, though others have the same one: packing takes a small part of its time then.
const OWN_ROWS: usize = 128;

/// Products that share B, which is packed chunk by chunk into this thread's scratch, with all threads; others, whose tasks pack what
/// they multiply.
unsafe fn packing(
    call: &MatmulStrided<'_>,
    scatter: Option<&(dyn Fn(&EpilogueBlock) + Sync)>,
) -> Result<(), MicroError> {
    let nr = panel_width(call.isa);
    let panels = call.n.div_ceil(nr);
    let whole = Chunk { call: SharedCall(call), scatter, packed: None, panels: 0..panels };
    // SAFETY: the caller guarantees that every pointer is valid for the sizes and strides given; the scratch holds a chunk.
    unsafe {
        if call.entries() == 1 || !call.one_b() || call.m >= OWN_ROWS {
            return whole.multiply();
        }
        let most = (CHUNK / (call.k * nr).max(1)).clamp(1, panels);
        scratch::with(most * call.k * nr, |buf| {
            for first in (0..panels).step_by(most) {
                let panels = first..(first + most).min(panels);
                let chunk = Chunk { call: SharedCall(call), scatter, packed: Some(buf), panels };
                chunk.pack();
                chunk.multiply()?;
            }
            Ok(())
        })
    }
}

/// Some columns of all products.
struct Chunk<'a, 'b> {
    call: SharedCall<'a, 'b>,
    scatter: Option<&'a (dyn Fn(&EpilogueBlock) + Sync)>,
    /// Their panels, where all products have the same; else tasks pack them.
    packed: Option<*mut f32>,
    panels: std::ops::Range<usize>,
}

// SAFETY: its pointers are used under the promises of the unsafe entry points: good from any thread.
unsafe impl Sync for Chunk<'_, '_> {}

impl Chunk<'_, '_> {
    unsafe fn multiply(&self) -> Result<(), MicroError> {
        // SAFETY: the caller guarantees that every pointer is valid for the sizes and strides given.
        unsafe { driver::run(self.call.0.entries(), &self.product(0), &|i| self.product(i)) }
    }

    /// Packs the panels.
    unsafe fn pack(&self) {
        let Some(packed) = self.packed else { return };
        let shared = (self, Panels(packed));
        let (tasks, panel) = (self.panels.len(), self.panel());
        // Packing is a copy: a task should be worth scheduling.
        let step = (8192 / panel.max(1)).max(1);
        team::par_for_work(tasks.div_ceil(step), tasks * panel, &|task| {
            let (chunk, panels) = &shared;
            let (call, nr) = (chunk.call.0, panel_width(chunk.call.0.isa));
            for i in task * step..((task + 1) * step).min(tasks) {
                let col = (chunk.panels.start + i) * nr;
                let src = call.source(0).at(0, col);
                // SAFETY: the caller guarantees that every pointer is valid for the sizes and strides given; panel `i` of the
                // scratch is this task's own.
                unsafe { pack_panel(src, call.k, (call.n - col).min(nr), panels.0.add(i * panel), nr) };
            }
        });
    }

    /// Values of a panel.
    fn panel(&self) -> usize {
        self.call.0.k * panel_width(self.call.0.isa)
    }

    fn product(&self, i: usize) -> Product<'_> {
        let call = self.call.0;
        let nr = panel_width(call.isa);
        let (a, _, c) = call.offsets(i);
        let col0 = self.panels.start * nr;
        let mut epilogue = call.epilogue;
        let mut out = COut::Memory {
            ptr: call.c.wrapping_offset(c).wrapping_add(col0),
            row_stride: call.c_row_stride.unsigned_abs(),
        };
        if call.c.is_null() {
            out = COut::Scratch;
        }
        if let Some(scatter) = self.scatter {
            epilogue.hook = Some(Hook::Closure(scatter));
            out = COut::Scratch;
        }
        Product {
            isa: call.isa,
            m: call.m,
            n: call.n.min(self.panels.end * nr) - col0,
            a: call.a.ptr.wrapping_offset(a),
            rows: Rows::Strided { row_stride: call.a.row_stride, col_stride: call.a.col_stride },
            taps: &[0],
            cuts: &[],
            kc: call.k,
            zero: std::ptr::null(),
            b: self.packed.map_or(std::ptr::null(), <*mut f32>::cast_const),
            source: self.packed.is_none().then(|| call.source(i)),
            c: out,
            epilogue,
            batch: i,
            col0,
            cut: Cut::default(),
        }
    }
}

/// Panels that tasks write.
struct Panels(*mut f32);

// SAFETY: tasks write panels of their own.
unsafe impl Sync for Panels {}
