//! Which shapes of tiles a product is tried with where copies go through registers, and how long each takes by estimate.
//!
//! A compute unit has four SIMDs (two on RDNA) whose waves take turns: as many as registers and the local data share have room for.
//! While one waits for memory the others multiply. The figures are those of AMD's instruction set manuals; what a device
//! really takes is found by timing the ways side by side.

use ir_core::DType;

use crate::Target;
use crate::product::tile::{Product, Reading, count, hint};
use crate::product::tile_text::{Form, Pipeline, Unit};

/// `(rows, columns, depth, stages, waves along rows, waves along columns)` of 16-bit tiles for waves of 64.
const MFMA: &[(i64, i64, i64, i64, i64, i64)] = &[
    (256, 128, 32, 1, 2, 2),
    (128, 128, 64, 1, 2, 2),
    (128, 128, 32, 2, 2, 2),
    (128, 64, 64, 1, 2, 2),
    (64, 128, 64, 1, 2, 2),
    (64, 64, 64, 1, 2, 2),
    (64, 32, 64, 1, 2, 1),
    (32, 64, 64, 1, 1, 2),
    (16, 64, 128, 1, 1, 4),
];
/// The same of float32.
const MFMA_F32: &[(i64, i64, i64, i64, i64, i64)] = &[
    (128, 128, 32, 1, 2, 2),
    (128, 64, 32, 1, 2, 2),
    (64, 128, 32, 1, 2, 2),
    (64, 64, 32, 1, 2, 2),
    (64, 32, 32, 1, 2, 1),
    (32, 64, 32, 1, 1, 2),
    (16, 64, 64, 1, 1, 4),
];
/// 16-bit tiles for waves of 32.
const WMMA: &[(i64, i64, i64, i64, i64, i64)] = &[
    (128, 128, 32, 1, 2, 4),
    (128, 64, 32, 1, 4, 2),
    (64, 128, 32, 1, 2, 4),
    (64, 64, 32, 2, 2, 2),
    (64, 32, 64, 1, 2, 2),
    (32, 64, 64, 1, 2, 2),
    (16, 64, 64, 1, 1, 4),
];
/// float32 by fused multiply-adds of 256 threads.
const PLAIN: &[(i64, i64, i64, i64, i64, i64)] = &[
    (128, 64, 16, 1, 8, 1),
    (64, 128, 16, 1, 8, 1),
    (64, 64, 16, 2, 8, 1),
    (64, 32, 32, 1, 8, 1),
    (32, 64, 32, 1, 8, 1),
    (32, 32, 32, 1, 8, 1),
];

/// Bytes a cycle of a compute unit's local data share: 32 banks of 4.
const SHARE_BYTES: f64 = 128.0;
/// Bytes a cycle that a compute unit gets from the second-level cache with all others reading too.
const CACHE_BYTES: f64 = 32.0;
/// The same from memory beyond all caches.
const MEMORY_BYTES: f64 = 8.0;
/// Cycles from a load's start to its end.
const LATENCY: f64 = 800.0;
/// Cycles of a launch, and of a second kernel.
const START: f64 = 6000.0;
/// Multiplications and additions of float32 a cycle and compute unit: on matrix cores (rounded, whole) and without them.
const XF32_RATE: f64 = 512.0;
const F32_RATE: f64 = 128.0;

/// The unit of a dtype; `None` where no tiles do. `is_rounded`: float32 may be.
pub(crate) fn unit(dtype: DType, is_rounded: bool, target: &Target) -> Option<Unit> {
    let features = target.features;
    match dtype {
        DType::F16 | DType::BF16 => (features.mfma || features.wmma).then_some(Unit::Tensor),
        DType::F32 if is_rounded && features.xf32 => Some(Unit::Tf32),
        DType::F32 if features.mfma => Some(Unit::Exact),
        DType::F32 => Some(Unit::Plain),
        _ => None,
    }
}

/// The forms without those that share the inner dimension.
pub(crate) fn forms(unit: Unit, target: &Target) -> Vec<Form> {
    let shapes = match unit {
        Unit::Tensor if target.features.mfma => MFMA,
        Unit::Tensor => WMMA,
        Unit::Tf32 | Unit::Exact => MFMA_F32,
        Unit::Plain => PLAIN,
    };
    let form = |&(bm, bn, depth, stages, wm, wn): &(i64, i64, i64, i64, i64, i64)| Form {
        unit,
        pipeline: Pipeline::Registers,
        tile: (bm, bn),
        depth,
        stages,
        warps: (wm, wn),
        wave: if unit == Unit::Plain { 32 } else { target.lanes() },
        parts: 1,
        cluster: false,
    };
    shapes.iter().map(form).collect()
}

/// Whether a block's threads divide into the pieces of a factor's tile: as `Tile` in `dialect/hip/staging.cu`.
pub(crate) fn divides(reading: Reading, form: &Form, rows: i64, bytes: i64) -> bool {
    let wide = match reading {
        Reading::AlongInner(w) => form.depth / w,
        Reading::AlongRows(_) if bytes == 2 => form.depth / 2,
        Reading::AlongRows(_) | Reading::SingleInner => form.depth,
        Reading::SingleRows => rows,
    };
    let whole = match reading {
        Reading::AlongInner(w) => form.depth % w == 0,
        Reading::AlongRows(w) => rows % w == 0,
        _ => true,
    };
    whole && wide > 0 && form.threads() % wide == 0
}

/// Blocks of a form that a compute unit has at once.
pub(crate) fn occupancy(product: &Product<'_>, form: &Form, target: &Target) -> i64 {
    let (pm, pn) = (form.tile.0 / form.warps.0, form.tile.1 / form.warps.1);
    let bytes = product.dtype.size() as i64;
    // Sums, what is on its way, factors of two steps, addresses.
    let sums = if form.unit == Unit::Plain { form.tile.0 * form.tile.1 / 256 } else { pm * pn / form.wave };
    let held = (form.tile.0 + form.tile.1) * form.depth * bytes / 4 / form.threads();
    let registers = sums + held + (pm + pn) / 16 * 8 + 40;
    let waves = i64::from(target.registers) / target.lanes() / registers.max(1);
    let by_share = i64::from(target.lds) / form.shared(product).max(1);
    by_share.min(waves * target.lanes() / form.threads()).max(1)
}

/// Cycles.
pub(crate) fn estimate(product: &Product<'_>, form: &Form, target: &Target) -> f64 {
    let at = |axes| hint(product.program, &count(axes));
    let (m, n, k, batch) = (at(&product.rows), at(&product.cols), at(&product.inner), at(&product.batch));
    let ((bm, bn), depth) = (form.tile, form.depth);
    let up = |a: i64, b: i64| (a + b - 1) / b;
    let blocks = batch * up(m, bm) * up(n, bn) * form.parts;
    let steps = up(up(k, depth), form.parts) as f64;
    let units = i64::from(target.multiprocessors.max(1));
    let at_once = occupancy(product, form, target);
    let each = up(blocks, units);
    let size = product.dtype.size() as f64;
    let rate = match form.unit {
        Unit::Tensor => f64::from(target.matrix_rate),
        Unit::Tf32 => XF32_RATE,
        Unit::Exact => F32_RATE,
        Unit::Plain => F32_RATE * 0.6,
    };
    let (pm, pn) = (bm / form.warps.0, bn / form.warps.1);
    let parts = (form.warps.0 * form.warps.1) as f64;
    let read = (pm + pn) as f64 * depth as f64 * size * parts;
    let brought = (bm + bn) as f64 * depth as f64 * size;
    let compute = (bm * bn * depth) as f64 / rate;
    // Elements that come one by one take an instruction each.
    let single = |side: usize, rows: i64| match product.reading(side) {
        Reading::SingleInner | Reading::SingleRows => (rows * depth) as f64 / 8.0,
        Reading::AlongInner(w) | Reading::AlongRows(w) => (rows * depth / w) as f64 / 16.0,
    };
    let step = compute
        .max((read + brought) / SHARE_BYTES)
        .max(single(0, bm) + single(1, bn))
        .max(brought / CACHE_BYTES);
    let sums = 3.0 * (bm * bn * 4) as f64 / SHARE_BYTES;
    let busy = each as f64 * (steps * step + sums);
    let waves = up(each, at_once) as f64;
    // A wave alone waits for what it asked for a tile ago, less what it does meanwhile.
    let alone = waves * (LATENCY + steps * step.max(LATENCY / 2.0) + sums);
    // Parts of the sums are written, and read by a second kernel.
    let moved = (2 * m * n * batch * form.parts * 4) as f64 / (MEMORY_BYTES * units as f64);
    let second = if form.parts > 1 { START + moved } else { 0.0 };
    START + busy.max(alone) + second
}
