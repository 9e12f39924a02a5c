//! The tile shapes that are tried for a product, sorted by an estimate of their times.
//!
//! The estimate models three limits of a multiprocessor (multiply-adds, bytes from the second-level cache, the latency of
//! a block that waits for its own copies) and how evenly blocks fill the device. Its constants are rounded figures of
//! Hopper; only their ratios matter. The search measures the actual times.

use ir_core::DType;

use crate::product::registers_rule;
use crate::product::tile::{Product, Reading, count, hint};
use crate::product::tile_text::{Form, PARTS_AT_ONCE, Pipeline, Unit, variant};
use crate::product::tile_work::{Filling, filling, of_form};
use crate::product::tma_rule;
use crate::{GenError, Target, Variant};

/// Maximum number of candidates, of kernels whose threads copy and of TMA kernels.
const MAX_CANDIDATES: usize = 6;
const MAX_TMA_CANDIDATES: usize = 4;
/// Bytes per cycle that a multiprocessor reads from the second-level cache while all others read too.
const CACHE_BYTES: f64 = 28.0;
/// The same for TMA, which requests whole lines and takes no thread's time.
const TMA_BYTES: f64 = 44.0;
/// Like [`CACHE_BYTES`] while few others read, and bytes per cycle of shared memory.
const PEAK_CACHE_BYTES: f64 = 60.0;
const SHARED_BYTES: f64 = 100.0;
/// Latency of a copy in cycles.
const LATENCY: f64 = 700.0;
/// The same for TMA and a tile's parts of both operands.
const TMA_LATENCY: f64 = 1500.0;
/// Cycles per launch.
const LAUNCH_CYCLES: f64 = 2000.0;
/// Factor by which kernels whose threads copy are slower than this estimate says, compared with TMA kernels: on an H200
/// both take the same time for 1×1 convolutions of ResNet-152 whose estimates are 1.8 to one; for products of ViT-B/16
/// whose estimates are 0.8 to one the former take a third longer.
const THREAD_COPY_FACTOR: f64 = 1.8;
/// Cycles to exchange sums within a cluster, and of a second kernel.
const CLUSTER_CYCLES: f64 = 500.0;
const SECOND_KERNEL_CYCLES: f64 = 4000.0;
/// Multiply-adds of 16-bit floats per cycle by `wgmma`, of 2048 at most.
const WGMMA: f64 = 1700.0;
/// Multiply-adds of a product that takes a few microseconds on a Hopper, a large part of which is the launch.
const SMALL_PRODUCT: i64 = 1 << 29;

/// `(rows, columns, depth, stages, warps along rows, warps along columns)` of 16-bit tiles.
const TENSOR: &[(i64, i64, i64, i64, i64, i64)] = &[
    (128, 256, 32, 4, 2, 4),
    (128, 128, 32, 4, 2, 4),
    (128, 128, 64, 3, 2, 4),
    (128, 64, 64, 3, 4, 2),
    (64, 128, 64, 3, 2, 4),
    (64, 64, 64, 4, 2, 2),
    (64, 32, 64, 4, 2, 2),
    (32, 64, 64, 4, 2, 2),
    (16, 64, 128, 4, 1, 4),
];
const TF32: &[(i64, i64, i64, i64, i64, i64)] = &[
    (128, 128, 32, 3, 2, 4),
    (128, 64, 32, 3, 4, 2),
    (64, 128, 32, 3, 2, 4),
    (64, 64, 32, 4, 2, 2),
    (64, 32, 32, 4, 2, 2),
    (32, 64, 32, 4, 2, 2),
];
const PLAIN: &[(i64, i64, i64, i64, i64, i64)] = &[
    (128, 128, 16, 3, 8, 1),
    (128, 64, 16, 3, 8, 1),
    (64, 128, 16, 3, 8, 1),
    (64, 64, 16, 4, 8, 1),
    (64, 32, 32, 3, 8, 1),
    (32, 64, 32, 3, 8, 1),
    (32, 32, 32, 3, 8, 1),
];

/// Returns the candidates of a product, best first by estimate; none where tiles do not support its dtype.
pub(crate) fn candidates(product: &Product<'_>, target: &Target) -> Result<Vec<Variant>, GenError> {
    forms(product, target).into_iter().map(|form| variant(product, form)).collect()
}

/// Whether the generated kernel of a product is by rule at least about as fast as a library's, so that no library need be
/// asked; asking takes longer than a thousand such products. This holds on a Hopper for small 16-bit products: of 29
/// convolutions of ResNet-152 (batch 1) the generated kernel with its epilogue was faster for 28, and the four products of
/// a layer of ViT-B/16 took 38.3 µs in total, those of cuBLASLt 39.6.
pub(crate) fn prefers_generated(product: &Product<'_>, target: &Target) -> bool {
    let at = |axes| hint(product.program, &count(axes));
    let sizes = [&product.batch, &product.rows, &product.cols, &product.inner];
    let few = sizes.iter().fold(1, |n: i64, axes| n.saturating_mul(at(axes))) <= SMALL_PRODUCT;
    let narrow = unit(product, target) == Some(Unit::Tensor);
    narrow && few && target.wgmma()
}

/// The unit that multiplies a product's operands; `None` where no tiles support their dtype.
pub(crate) fn unit(product: &Product<'_>, target: &Target) -> Option<Unit> {
    let is_rounded = match product.is_convolution {
        true => target.tf32.of_convolutions(),
        false => target.tf32.of_products(),
    };
    if target.dialect.through_registers {
        return registers_rule::unit(product.dtype, is_rounded, target);
    }
    match product.dtype {
        DType::F16 | DType::BF16 => target.features.mma.then_some(Unit::Tensor),
        DType::F32 if is_rounded && target.features.mma => Some(Unit::Tf32),
        DType::F32 => Some(Unit::Plain),
        _ => None,
    }
}

/// All tile shapes that are possible and not wasteful, in any order.
fn possible(product: &Product<'_>, target: &Target) -> Vec<Form> {
    let Some(unit) = unit(product, target) else { return Vec::new() };
    let shapes = match unit {
        Unit::Tensor => TENSOR,
        Unit::Tf32 => TF32,
        Unit::Plain | Unit::Exact => PLAIN,
    };
    let cluster = target.features.clusters;
    let whole = |&(bm, bn, depth, stages, wm, wn): &(i64, i64, i64, i64, i64, i64)| Form {
        unit,
        pipeline: Pipeline::Threads,
        tile: (bm, bn),
        depth,
        stages,
        warps: (wm, wn),
        wave: 32,
        parts: 1,
        cluster: false,
    };
    let mut found: Vec<Form> = Vec::new();
    let all: Vec<Form> = match target.dialect.through_registers {
        true => registers_rule::forms(unit, target),
        false => shapes.iter().map(whole).chain(tma_rule::forms(product, unit, target)).collect(),
    };
    for form in all {
        for parts in [1, 2, 4, 8, 16, 32, 64, 128, 256] {
            // A cluster has at most 8 blocks.
            let form = Form { parts, cluster: cluster && (2..=8).contains(&parts), ..form };
            if fits(product, &form, target) {
                found.push(form);
            }
        }
    }
    found
}

/// The tile shapes that are tried, best first: chosen by the estimate, and in the order of the cost model where the device has
/// one. That a model is fitted to shapes which the estimate chose is why it does not choose among all.
pub(crate) fn forms(product: &Product<'_>, target: &Target) -> Vec<Form> {
    let time = |form: &Form| estimate(product, form, target);
    let mut found: Vec<(f64, Form)> =
        possible(product, target).into_iter().map(|form| (time(&form), form)).collect();
    found.sort_by(|a, b| a.0.total_cmp(&b.0));
    // Some of each kind: the estimate compares one kind's forms better than those of two.
    let (threads, tma) = found.into_iter().partition(|(_, form)| form.by_threads());
    let mut kept = [best(threads, MAX_CANDIDATES), best(tma, MAX_TMA_CANDIDATES)].concat();
    if let Some(times) = predicted(product, &kept, target) {
        kept.iter_mut().zip(times).for_each(|(kept, time)| kept.0 = time);
    }
    kept.sort_by(|a, b| a.0.total_cmp(&b.0));
    kept.into_iter().map(|(_, form)| form).collect()
}

/// The times of forms by the cost model; `None` where the device has none, or one that does not know all of them: an estimate
/// and a prediction cannot be compared.
fn predicted(product: &Product<'_>, forms: &[(f64, Form)], target: &Target) -> Option<Vec<f64>> {
    let model = &target.costs.as_ref()?.0;
    forms.iter().map(|(_, form)| Some(model.predict(&of_form(product, form, target)?)?.seconds)).collect()
}

/// The first `most` of one kind, sorted by their estimates.
fn best(found: Vec<(f64, Form)>, most: usize) -> Vec<(f64, Form)> {
    // Two ways of splitting the inner dimension per tile shape are enough to try.
    let mut kept: Vec<(f64, Form)> = Vec::new();
    for (time, form) in found {
        let same = |(_, k): &&(f64, Form)| (k.tile, k.depth) == (form.tile, form.depth);
        if kept.iter().filter(same).count() < 2 {
            kept.push((time, form));
        }
    }
    // One that does not split the inner dimension is always included.
    let alone = kept.iter().position(|(_, form)| form.parts == 1).filter(|&place| place >= most);
    if let Some(place) = alone {
        kept.swap(most - 1, place);
    }
    kept.truncate(most);
    kept
}

/// Whether a kernel of this shape is possible and not wasteful.
fn fits(product: &Product<'_>, form: &Form, target: &Target) -> bool {
    let depth = hint(product.program, &count(&product.inner));
    let steps = (depth + form.depth - 1) / form.depth;
    let threads = form.threads();
    // The block's threads divide evenly into the lines of each operand's tile (`Tile` in `dialect/common/tile.cu`).
    let divides = |side: usize, rows: i64| match product.reading(side) {
        _ if !form.by_threads() => true,
        reading if form.pipeline == Pipeline::Registers => {
            registers_rule::divides(reading, form, rows, product.dtype.size() as i64)
        }
        Reading::AlongInner(w) => form.depth % w == 0 && threads % (form.depth / w) == 0,
        Reading::AlongRows(w) => rows % w == 0 && threads % (rows / w) == 0,
        Reading::SingleInner | Reading::SingleRows => threads % form.depth == 0 && threads % rows == 0,
    };
    // Sums of parts are stored by tiles, of which those of groups overlap.
    let parted = form.parts == 1 || form.cluster || product.groups_of_rows().is_none();
    parted
        && form.shared(product) <= i64::from(target.lds)
        && divides(0, form.tile.0)
        && divides(1, form.tile.1)
        && (form.parts == 1 || steps >= 2 * form.parts)
        && (form.parts == 1 || !matches!(form.pipeline, Pipeline::Persistent { .. }))
        // Blocks of a cluster share the work of its end.
        && (!form.cluster
            || (form.tile.0 % form.parts == 0 && form.tile.1 * form.tile.0 / form.parts >= 32))
}

/// Multiply-adds per cycle of a multiprocessor.
pub(crate) fn rate(form: &Form) -> f64 {
    if form.pipeline != Pipeline::Threads {
        // A narrow product of a warpgroup is bound by the bandwidth of shared memory.
        let narrow = if form.tile.1 < 128 { 0.8 } else { 1.0 };
        return narrow * if form.unit == Unit::Tf32 { WGMMA / 2.0 } else { WGMMA };
    }
    let (pm, pn) = (form.tile.0 / form.warps.0, form.tile.1 / form.warps.1);
    // Small tiles of a warp read more shared memory per product.
    let reuse = (pm * pn) as f64 / (pm + pn) as f64;
    match form.unit {
        Unit::Tensor => 1200.0 * (reuse / 21.0).min(1.0),
        Unit::Tf32 => 550.0 * (reuse / 21.0).min(1.0),
        Unit::Plain | Unit::Exact => {
            let (tm, tn) = ((form.tile.0 / 16) as f64, (form.tile.1 / 16) as f64);
            110.0 * (tm * tn / (tm + tn) / 2.7).min(1.0)
        }
    }
}

/// Estimated cycles.
fn estimate(product: &Product<'_>, form: &Form, target: &Target) -> f64 {
    if form.pipeline == Pipeline::Registers {
        return registers_rule::estimate(product, form, target);
    }
    let Filling { points, blocks, steps, each, waves, starts, bytes, singles, vectors } =
        filling(product, form, target);
    let ((bm, bn), depth) = (form.tile, form.depth);
    let (share, device) = (form.share(), f64::from(target.multiprocessors.max(1)));
    let compute = (bm * bn * depth) as f64 / rate(form);
    // Elements that are read one by one cost instructions, not bytes.
    let copies = singles / 5.0 + vectors / 12.0;
    let step = compute.max(bytes / PEAK_CACHE_BYTES).max(copies);
    // The sums pass through shared memory once; those of a cluster are also exchanged between its blocks.
    let sums = (bm * bn * 4) as f64;
    let exchange = if form.parts > 1 { CLUSTER_CYCLES + sums / CACHE_BYTES } else { 0.0 };
    let end = 2.0 * sums / SHARED_BYTES + exchange;
    let (cache, latency) = match form.pipeline {
        Pipeline::Threads => (CACHE_BYTES, LATENCY),
        _ => (TMA_BYTES, TMA_LATENCY),
    };
    let shared = blocks as f64 * share as f64 * steps * bytes / (cache * device);
    let busy = (each as f64 * steps * step).max(shared) + each as f64 * end;
    let pause = latency / (form.stages - 1) as f64;
    let alone = starts * 1.5 * latency + waves * (steps * step.max(pause) + end);
    let second = match form.parts {
        parts if parts > 1 && !form.cluster => {
            let bytes = points * (parts * 4) as f64;
            SECOND_KERNEL_CYCLES
                + bytes / (CACHE_BYTES * device)
                + (parts as f64 / PARTS_AT_ONCE as f64) * LATENCY
        }
        _ => 0.0,
    };
    let copying = if form.pipeline == Pipeline::Threads { THREAD_COPY_FACTOR } else { 1.0 };
    LAUNCH_CYCLES + copying * busy.max(alone) + second
}
