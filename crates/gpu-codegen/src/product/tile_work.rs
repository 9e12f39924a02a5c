//! The amounts of work of a product's candidates, for the cost model: of a tiled kernel by its form, of a library's kernel by
//! the tiles that such a library has.
//!
//! Not here: what they cost (`cost`), and the rule for architectures that were not measured (`tile_rule`).

use ir_core::Atom;
use kernel_ir::{Epilogue, InstKind, Program, ScalarOp};

use crate::Target;
use crate::cost::{TERMS, Work};
use crate::product::tile::{Product, Reading, count, hint};
use crate::product::tile_finish::Finish;
use crate::product::tile_rule::rate;
use crate::product::tile_text::{Form, Pipeline, Unit};
use crate::product::tma_epilogue::fetched;

/// Warps and bytes of shared memory per multiprocessor.
const WARPS: i64 = 48;
const SHARED: i64 = 227 * 1024;
/// Latencies that a block waits for before its first and behind its last multiplication.
const START_LATENCIES: f64 = 1.5;
/// Operations that take as long as one that is several instructions, or as a load of every point.
const LONG_OPERATION: f64 = 8.0;
/// Copies of vectors that take as long as one of an element in a loop of its own.
const SINGLE_COPY: f64 = 2.4;

/// Tiles of a library's kernels, and in how many parts it splits the inner dimension: it takes what suits a product.
const LIBRARY_TILES: [(i64, i64); 6] = [(128, 256), (256, 128), (128, 128), (64, 128), (128, 64), (64, 64)];
const LIBRARY_PARTS: [i64; 5] = [1, 2, 4, 8, 16];
/// Inner points of a step, fewest steps of a part, and stages of a library's kernels.
const LIBRARY_DEPTH: i64 = 32;
const LIBRARY_STEPS: i64 = 4;
const LIBRARY_STAGES: f64 = 4.0;
/// Multiply-adds and bytes a cycle of a multiprocessor, whose ratio weighs tiles against one another: those of 16-bit floats on a
/// Hopper, rounded.
const LIBRARY_RATE: f64 = 1000.0;
const LIBRARY_CACHE_BYTES: f64 = 44.0;
/// Cycles that a split must save before a library takes it: those kernels whose operands a unit of the device copies are
/// split less readily than those whose threads copy.
const LIBRARY_SPLIT_CYCLES: f64 = 10_000.0;
/// Bytes of the widest copy of a thread; rows that do not begin at multiples of it are copied in parts, and the units of a
/// device that copy whole tiles do not take them.
const WHOLE_COPY: i64 = 16;

/// How a kernel's blocks fill a device.
pub(crate) struct Filling {
    /// Points of the result along rows, columns and batch.
    pub(crate) points: f64,
    /// Blocks; those that share an operand are counted as one, since they compute their tiles at the same time.
    pub(crate) blocks: i64,
    /// Steps of a block along the inner dimension.
    pub(crate) steps: f64,
    /// Blocks of the busiest multiprocessor, and how many of them run one after another.
    pub(crate) each: i64,
    pub(crate) waves: f64,
    /// How many blocks wait for their first copies one after another.
    pub(crate) starts: f64,
    /// Bytes that a step copies.
    pub(crate) bytes: f64,
    /// Elements that are read one by one, which cost instructions, and vectors of them: for each operand and step.
    pub(crate) singles: f64,
    pub(crate) vectors: f64,
}

/// How a form fills a device.
pub(crate) fn filling(product: &Product<'_>, form: &Form, target: &Target) -> Filling {
    let at = |axes| hint(product.program, &count(axes));
    let (mut m, n, mut k) = (at(&product.rows), at(&product.cols), at(&product.inner));
    let mut batch = at(&product.batch);
    // Groups of one size, as long as there are so many places.
    if product.groups_of_rows().is_some() {
        batch = batch.min(m).max(1);
        m = up(m, batch);
    } else if product.groups.is_some() {
        k = up(k, batch.max(1));
    }
    let ((bm, bn), depth) = (form.tile, form.depth);
    let share = form.share();
    let blocks = [up(m, bm * share), up(n, bn), form.parts].into_iter().fold(batch, i64::saturating_mul);
    let device = i64::from(target.multiprocessors.max(1));
    let at_once = (SHARED / (form.shared(product) + 1024)).min(WARPS * 32 / form.threads()).max(1);
    let each = up(blocks, (device / share).max(1));
    let waves = up(each, at_once) as f64;
    let (mut singles, mut vectors) = (0.0, 0.0);
    for (side, rows) in [(0, bm), (1, bn)] {
        match product.reading(side) {
            _ if form.pipeline != Pipeline::Threads => {}
            Reading::SingleInner | Reading::SingleRows => singles += (rows * depth) as f64,
            Reading::AlongInner(w) | Reading::AlongRows(w) => vectors += (rows * depth / w) as f64,
        }
    }
    Filling {
        points: points([m, n, batch]),
        blocks,
        steps: up(up(k, depth), form.parts) as f64,
        each,
        waves,
        // In persistent kernels the next tile's copies overlap the end of the tile before.
        starts: if matches!(form.pipeline, Pipeline::Persistent { .. }) { 1.0 } else { waves },
        bytes: ((bm + bn / share) * depth) as f64 * product.dtype.size() as f64,
        singles,
        vectors,
    }
}

/// `a / b`, rounded up.
pub(crate) fn up(a: i64, b: i64) -> i64 {
    a / b + i64::from(a % b > 0)
}

/// The points of a result of these extents.
fn points(extents: [i64; 3]) -> f64 {
    extents.map(|n| n as f64).iter().product()
}

/// The work of a tiled kernel; `None` for forms that no model is made for.
pub(crate) fn of_form(product: &Product<'_>, form: &Form, target: &Target) -> Option<Work> {
    if form.pipeline == Pipeline::Registers {
        return None;
    }
    let f = filling(product, form, target);
    let ((bm, bn), device) = (form.tile, f64::from(target.multiprocessors.max(1)));
    let (each, tile) = (f.each as f64, (bm * bn) as f64);
    let own = of_product(product);
    // What is copied for the epilogue waits for no memory there.
    let copied = fetched(product, form, &Finish::of(product, form.tile)).len() as f64;
    let operations = own.operations - LONG_OPERATION * copied;
    let second = form.parts > 1 && !form.cluster;
    let terms = terms(&[
        ("launch", 1.0),
        ("compute", each * f.steps * tile * form.depth as f64 / rate(form)),
        ("cache", f.blocks as f64 * form.share() as f64 * f.steps * f.bytes / device),
        ("memory", own.bytes),
        ("latency", f.starts * START_LATENCIES + f.waves * f.steps / (form.stages - 1).max(1) as f64),
        ("copies", each * f.steps * (SINGLE_COPY * f.singles + f.vectors)),
        ("end", each * tile),
        ("epilogue", if second { operations * f.points / device } else { operations * each * tile }),
        ("exchange", if form.cluster { each * tile } else { 0.0 }),
        ("second", f64::from(u8::from(second))),
        ("sums", if second { 4.0 * f.points * form.parts as f64 } else { 0.0 }),
    ]);
    Some(Work { kind: form.kind(), tile: format!("{bm}x{bn}"), terms })
}

/// The work of a library's kernel, or of a call and `kernels - 1` kernels behind it; `None` for convolutions of few or uneven
/// channels, which libraries compute in several ways that no one model describes.
pub(crate) fn of_library(
    product: &Product<'_>,
    unit: Unit,
    kernels: usize,
    is_convolution: bool,
    target: &Target,
) -> Option<Work> {
    let at = |axes| hint(product.program, &count(axes));
    let (m, n, k, batch) = (at(&product.rows), at(&product.cols), at(&product.inner), at(&product.batch));
    let device = f64::from(target.multiprocessors.max(1));
    let own = of_product(product);
    let copied = [0, 1].map(|side| operand_alignment(product, side)).into_iter().min()?;
    let stored = copied.min(epilogue_alignment(product));
    let kind = library_kind(unit, is_convolution, stored >= WHOLE_COPY)?;
    let split = match (is_convolution, kind) {
        (true, _) => f64::INFINITY,
        (false, "library_narrow") => 0.0,
        (false, _) => LIBRARY_SPLIT_CYCLES,
    };
    let LibraryTiling { computed, cache, latency, sums } =
        library_tiling([m, n, k, batch], product.dtype.size(), split, device);
    let points = points([m, n, batch]);
    let behind = kernels.saturating_sub(1) as f64;
    // A kernel behind is bound by what it reads and writes.
    let epilogue = if behind > 0.0 { 0.0 } else { own.operations * points / device };
    let terms = terms(&[
        ("launch", 1.0),
        ("compute", computed / LIBRARY_RATE),
        ("cache", cache),
        ("memory", own.bytes),
        ("latency", latency + START_LATENCIES),
        ("copies", cache / copied as f64),
        ("end", points / device * product.dtype.size() as f64 / stored as f64),
        ("epilogue", epilogue),
        ("exchange", 0.0),
        ("second", behind),
        ("sums", sums + if behind > 0.0 { 4.0 * points } else { 0.0 }),
    ]);
    Some(Work { kind, tile: String::new(), terms })
}

/// The kind of a library's kernel. `is_whole` says that every row of every tensor begins at a multiple of the widest copy.
fn library_kind(unit: Unit, is_convolution: bool, is_whole: bool) -> Option<&'static str> {
    match (unit, is_convolution) {
        (_, true) if !is_whole => None,
        (Unit::Tensor, true) => Some("library_conv"),
        (Unit::Tf32, true) => Some("library_conv_tf32"),
        (_, true) => Some("library_conv_f32"),
        (Unit::Tensor, false) if !is_whole => Some("library_narrow"),
        (Unit::Tensor, false) => Some("library"),
        (Unit::Tf32, false) => Some("library_tf32"),
        (_, false) => Some("library_f32"),
    }
}

/// The bytes of the widest copies of an operand's rows, at the sizes of capture.
fn operand_alignment(product: &Product<'_>, side: usize) -> i64 {
    let axes = product.rows_of(side).iter().chain(&product.inner).chain(&product.batch);
    let strides = axes.filter(|a| hint(product.program, &a.extent) > 1).map(|a| &a.steps[side]);
    alignment(product, strides.chain([&product.operands[side].offset]), product.dtype.size())
}

/// The same of what an epilogue reads and writes.
pub(crate) fn epilogue_alignment(product: &Product<'_>) -> i64 {
    let Product { program, epilogue, .. } = product;
    let buffers = epilogue.insts.iter().filter_map(|inst| match &inst.kind {
        InstKind::Load { buf, .. } | InstKind::Store { buf, .. } => Some(&program.buffers[*buf]),
        _ => None,
    });
    let of = |b: &kernel_ir::Buffer| {
        let dims = b.sizes.iter().zip(&b.strides).filter(|(size, _)| hint(program, size) > 1);
        alignment(product, dims.map(|(_, stride)| stride), b.dtype.size())
    };
    buffers.map(of).min().unwrap_or(WHOLE_COPY)
}

/// The bytes, of [`WHOLE_COPY`] at most, that divide every stride but 1.
fn alignment<'a>(
    product: &Product<'_>,
    strides: impl Iterator<Item = &'a ir_core::SymExpr>,
    size: usize,
) -> i64 {
    let bytes = strides.map(|s| hint(product.program, s)).filter(|s| *s > 1).map(|s| s * size as i64);
    bytes.fold(WHOLE_COPY, |least, bytes| least.min(1 << bytes.trailing_zeros().min(4)))
}

/// What a library's kernel does in the tiles that it takes by this rule.
#[derive(Default)]
struct LibraryTiling {
    /// Multiply-adds of the busiest multiprocessor.
    computed: f64,
    /// Bytes that a multiprocessor gets from the second-level cache.
    cache: f64,
    /// Latencies of copies that a block waits for.
    latency: f64,
    /// Bytes of sums of parts.
    sums: f64,
}

/// The tiles that leave the fewest multiprocessors idle, and copy the fewest bytes; with parts where these save more than
/// `split` cycles.
fn library_tiling([m, n, k, batch]: [i64; 4], size: usize, split: f64, device: f64) -> LibraryTiling {
    let mut best: Option<(f64, LibraryTiling)> = None;
    for (bm, bn) in LIBRARY_TILES {
        for parts in LIBRARY_PARTS {
            let steps = up(up(k, LIBRARY_DEPTH), parts);
            if parts > 1 && (steps < LIBRARY_STEPS || split.is_infinite()) {
                continue;
            }
            // In floats, because hints may be any sizes and their products exceed integers.
            let blocks = batch as f64 * up(m, bm) as f64 * up(n, bn) as f64 * parts as f64;
            let each_steps = (blocks / device).ceil() * steps as f64;
            let computed = each_steps * (bm * bn * LIBRARY_DEPTH) as f64;
            let cache = blocks * steps as f64 * ((bm + bn) * LIBRARY_DEPTH) as f64 * size as f64 / device;
            // Sums of parts pass through memory.
            let sums = if parts > 1 { points([m, n, batch]) * (4 * parts) as f64 } else { 0.0 };
            let order = computed / LIBRARY_RATE
                + (cache + 4.0 * sums / device) / LIBRARY_CACHE_BYTES
                + if parts > 1 { split } else { 0.0 };
            let latency = each_steps / LIBRARY_STAGES;
            if best.as_ref().is_none_or(|(least, _)| order < *least) {
                best = Some((order, LibraryTiling { computed, cache, latency, sums }));
            }
        }
    }
    // There is a tiling without parts, so this is never the other.
    best.map(|(_, tiling)| tiling).unwrap_or_default()
}

/// Amounts by their names, in the order of the terms.
fn terms(amounts: &[(&str, f64); TERMS.len()]) -> [f64; TERMS.len()] {
    TERMS.map(|term| amounts.iter().find(|(name, _)| *name == term).map_or(0.0, |(_, amount)| *amount))
}

/// What every kernel of a product does.
struct Own {
    /// Bytes that it must read and write.
    bytes: f64,
    /// Operations of the epilogue at each point.
    operations: f64,
}

fn of_product(product: &Product<'_>) -> Own {
    let Product { program, epilogue, .. } = product;
    let at = |axes| hint(program, &count(axes));
    let sides = [at(&product.rows), at(&product.cols)].into_iter().zip(&product.operands);
    let read = sides.map(|(rows, operand)| {
        let product = at(&product.batch).saturating_mul(rows).saturating_mul(at(&product.inner));
        // Windows overlap, and matrices may be the same in all of a batch.
        product.min(elements(program, &program.buffers[operand.buf].sizes))
    });
    let bytes: f64 = read.map(|n| n as f64 * product.dtype.size() as f64).sum();
    let (moved, operations) = of_epilogue(program, epilogue);
    Own { bytes: bytes + moved, operations }
}

fn elements(program: &Program, sizes: &[ir_core::SymExpr]) -> i64 {
    sizes.iter().fold(1, |n: i64, e| n.saturating_mul(hint(program, e)))
}

/// The bytes that an epilogue reads and writes, and its operations at each point.
pub(crate) fn of_epilogue(program: &Program, epilogue: &Epilogue) -> (f64, f64) {
    let (mut bytes, mut operations) = (0.0, 0.0);
    let all =
        (0..epilogue.ranges.len()).fold(1, |n: i64, d| n.saturating_mul(hint(program, &epilogue.ranges[d])));
    for inst in &epilogue.insts {
        match &inst.kind {
            InstKind::Load { buf, index, .. } | InstKind::Store { buf, index, .. } => {
                let own = |a: &Atom, d: usize| matches!(a, Atom::Loop(n) if *n as usize == d);
                let moves = |d: &usize| index.iter().any(|e| e.any_leaf(|a| own(a, *d)));
                let points: i64 = (0..epilogue.ranges.len())
                    .filter(moves)
                    .fold(1, |n: i64, d| n.saturating_mul(hint(program, &epilogue.ranges[d])));
                bytes += points as f64 * program.buffers[*buf].dtype.size() as f64;
                // A load of every point waits for memory.
                if points == all && matches!(inst.kind, InstKind::Load { .. }) {
                    operations += LONG_OPERATION;
                }
            }
            InstKind::Op { op, .. } => operations += if is_short(*op) { 1.0 } else { LONG_OPERATION },
            _ => {}
        }
    }
    (bytes, operations)
}

/// Whether an operator is about one instruction of floats.
fn is_short(op: ScalarOp) -> bool {
    use ScalarOp as S;
    matches!(
        op,
        S::Add
            | S::Sub
            | S::Mul
            | S::Min
            | S::Max
            | S::And
            | S::Or
            | S::Xor
            | S::Not
            | S::Neg
            | S::Abs
            | S::Select
            | S::Eq
            | S::Ne
            | S::Lt
            | S::Le
            | S::Gt
            | S::Ge
            | S::Floor
            | S::Ceil
            | S::Trunc
            | S::Round
    )
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use kernel_ir::Program;

    use super::*;
    use crate::StepWork;

    /// A product with a bias; `function` is an operator on top of it.
    fn program([m, n, k]: [i64; 3], function: &str) -> Program {
        format!(
            r#"kir 1.3
program "product"
buffer b0 "a" bf16[{m}, {k}]{{{k}, 1}}+0 input 0
buffer b1 "b" bf16[{n}, {k}]{{{k}, 1}}+0 input 1
buffer b2 "c" f32[{n}]{{1}}+0 input 2
buffer b3 "y" bf16[{m}, {n}]{{{n}, 1}}+0 output
input "a" b0
input "b" b1
input "c" b2
output "y" b3[{m}, {n}]{{{n}, 1}}+0
init:
steps:
matmul "m" acc f32
  a b0[{m}, {k}]{{{k}, 1}}+0
  b b1[{k}, {n}]{{1, {k}}}+0
  epilogue [{m}, {n}]
    v0: f32 = template
    v1: f32 = load b2[i1]
    v2: f32 = add v0, v1
    v3: f32 = {function} v2
    v4: bf16 = cast v3
    v5: bf16 = store b3[i0, i1], v4
plan bytes 0:
"#
        )
        .parse()
        .unwrap()
    }

    fn work(sizes: [i64; 3], function: &str) -> StepWork {
        let program = program(sizes, function);
        StepWork::of(&program, &program.steps[0], &Target::HOPPER).unwrap()
    }

    fn amount(work: &Work, term: &str) -> f64 {
        work.terms[TERMS.iter().position(|t| *t == term).unwrap()]
    }

    #[test]
    fn larger_products_are_no_less_work() {
        let base = [1024, 1024, 1024];
        let less = work(base, "neg");
        for d in 0..3 {
            let mut sizes = base;
            sizes[d] *= 2;
            let more = work(sizes, "neg");
            let pairs = less.generated().iter().filter_map(|(name, l)| {
                more.generated().iter().find(|(other, _)| other == name).map(|(_, m)| (l, m))
            });
            let all: Vec<_> = pairs.chain([(less.library(1).unwrap(), more.library(1).unwrap())]).collect();
            assert!(all.len() > 4);
            for (l, m) in all {
                assert!(l.terms.iter().zip(m.terms).all(|(l, m)| *l <= m), "{d}: {l:?} {m:?}");
                assert!(amount(m, "memory") > amount(l, "memory"));
            }
        }
    }

    #[test]
    fn a_wave_that_is_begun_takes_as_long_as_a_whole_one() {
        let compute = |m: i64| {
            let program = program([m, 1280, 512], "neg");
            let kernel_ir::Step::Matmul(k) = &program.steps[0] else { panic!("a product") };
            let product = crate::product::matmul::tiled(&program, k).unwrap();
            let forms = crate::product::tma_rule::forms(&product, Unit::Tensor, &Target::HOPPER);
            let form = forms.iter().find(|f| f.tile == (128, 128) && f.pipeline == Pipeline::Tma).unwrap();
            amount(&of_form(&product, form, &Target::HOPPER).unwrap(), "compute")
        };
        // Ten columns of tiles: 132 multiprocessors have one tile each up to 13 rows of tiles, and two behind that.
        assert_eq!(compute(128 * 13), compute(128 * 5));
        assert_eq!(compute(128 * 14), 2.0 * compute(128 * 13));
    }

    #[test]
    fn bytes_are_counted_once_and_long_operations_more_than_short_ones() {
        let (short, long) = (work([512, 256, 128], "neg"), work([512, 256, 128], "erf"));
        let bytes = 2 * (512 * 128 + 256 * 128 + 512 * 256) + 4 * 256;
        for (_, work) in short.generated() {
            assert_eq!(amount(work, "memory"), f64::from(bytes), "{work:?}");
        }
        for ((name, s), (_, l)) in short.generated().iter().zip(long.generated()) {
            assert!(amount(l, "epilogue") > 4.0 * amount(s, "epilogue"), "{name}");
        }
        // A kernel behind a library's is bound by bytes.
        let library = |kernels| long.library(kernels).unwrap();
        assert!(amount(library(1), "epilogue") > 0.0 && amount(library(1), "second") == 0.0);
        assert!(amount(library(2), "epilogue") == 0.0 && amount(library(2), "second") == 1.0);
        assert!(amount(library(2), "sums") > amount(library(1), "sums"));
    }

    #[test]
    fn libraries_copy_uneven_rows_in_parts() {
        let library = |sizes| work(sizes, "neg").library(1).unwrap().clone();
        let (whole, narrow, odd) =
            (library([512, 256, 256]), library([512, 256, 252]), library([512, 256, 255]));
        assert_eq!([whole.kind, narrow.kind, odd.kind], ["library", "library_narrow", "library_narrow"]);
        assert_eq!(amount(&odd, "copies"), 4.0 * amount(&narrow, "copies"));
        // The number of rows is no stride of a row-major operand; that of columns is one of the result.
        assert_eq!(library([511, 256, 256]).kind, "library");
        assert_eq!(library([512, 255, 256]).kind, "library_narrow");
    }

    #[test]
    fn steps_without_tiles_have_no_work() {
        let few = program([4, 4096, 4096], "neg");
        assert_eq!(StepWork::of(&few, &few.steps[0], &Target::HOPPER), None);
        let other = Target { dialect: crate::Dialect::HIP, ..Target::CDNA };
        let program = program([512, 256, 128], "neg");
        assert_eq!(StepWork::of(&program, &program.steps[0], &other), None);
    }
}
