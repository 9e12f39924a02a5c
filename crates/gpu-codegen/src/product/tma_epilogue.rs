//! Tensors of the result's size that the epilogue of a product by `wgmma` reads (a residual, a gate, an activation of the
//! forward pass). TMA copies their part of a tile to shared memory while the tile's sums are computed, so that as many bytes
//! are in flight as there is memory for; a thread that loads them itself has one vector in flight, and none before its sums
//! are there.
//!
//! Persistent blocks take stages of their ring for this, behind those of the tile's operands, so that the next tile's copies
//! follow without a gap. Blocks of one tile take memory of its own where no block less fits a multiprocessor. Not here: the
//! rest of such kernels (`tma_text`), and which accesses of an epilogue are vectors (`tile_finish`).

use std::fmt::Write;

use ir_core::{Atom, DType, SymExpr};
use kernel_ir::{BufId, Inst, InstKind};

use crate::address::address;
use crate::product::tile::{Axis, Product, count, is_multiple, merged};
use crate::product::tile_finish::Finish;
use crate::product::tile_text::{Form, Pipeline, Writer};
use crate::product::tma::{GRAIN, LINE, MAX_DIMENSIONS, countable};
use crate::product::tma_text::SLAB;
use crate::text::types::memory_type;
use crate::{GenError, TensorMap};

/// Columns of a stage's tensor at which those of a part begin, in the text of persistent kernels.
pub(crate) const PART_COLUMN: &str = "part_n % PIECES * 64";
/// Bytes of shared memory of a multiprocessor, and what each block takes besides its own.
const SHARED: i64 = 228 * 1024;
const RESERVED: i64 = 1024;
/// The most bytes of a block.
const MOST: i64 = 227 * 1024;

/// A tensor whose tiles are copied for the epilogue, in strips of 128 bytes of the tile's rows.
#[derive(Clone, Debug)]
pub(crate) struct Fetched {
    buf: BufId,
    dtype: DType,
    map: TensorMap,
    /// The batch axes that advance it.
    moving: Vec<usize>,
}

impl Fetched {
    /// Columns of a strip.
    fn line(&self) -> i64 {
        LINE / self.dtype.size().max(1) as i64
    }

    /// Bytes of this many columns of a tile.
    fn bytes(&self, rows: i64, columns: i64) -> i64 {
        rows * columns * self.dtype.size() as i64
    }
}

impl Form {
    /// Rows of a box: those that a block finishes.
    fn box_rows(&self) -> i64 {
        if self.cluster { self.tile.0 / self.parts } else { self.tile.0 }
    }

    /// Pieces of [`SLAB`] columns that one stage of the ring holds of each tensor.
    fn pieces(&self, fetched: &[Fetched]) -> i64 {
        let (stage, all) = (self.stage(), self.tile.1 / SLAB);
        let fits = |pieces: i64| {
            all % pieces == 0 && fetched.iter().all(|f| f.bytes(self.tile.0, pieces * SLAB) <= stage)
        };
        [4, 2].into_iter().find(|pieces| fits(*pieces)).unwrap_or(1)
    }
}

/// What a kernel of this form copies for its epilogue.
pub(crate) fn fetched(product: &Product<'_>, form: &Form, finish: &Finish) -> Vec<Fetched> {
    let alone = form.parts == 1 || form.cluster;
    if form.by_threads() || !alone {
        return Vec::new();
    }
    let mut found: Vec<Fetched> = Vec::new();
    for inst in &product.epilogue.insts {
        let InstKind::Load { buf, index, mask: None } = &inst.kind else { continue };
        let known = found.iter().any(|f| f.buf == *buf);
        if known || !finish.is_vector(*buf) || is_written(product, *buf) {
            continue;
        }
        if let Some((map, moving)) = map(product, *buf, index, form.box_rows()) {
            found.push(Fetched { buf: *buf, dtype: map.dtype, map, moving });
        }
    }
    match form.pipeline {
        // Half of the stages are left to operands while one tensor each takes a stage.
        Pipeline::Persistent { .. } => {
            found.retain(|f| f.bytes(form.tile.0, SLAB) <= form.stage());
            found.truncate((form.stages / 2) as usize);
        }
        _ => {
            let own = form.shared(product);
            let blocks = |bytes: i64| SHARED / (bytes + RESERVED);
            let fits = |list: &[Fetched]| {
                let all = own + bytes(form, list);
                all <= MOST && blocks(all) == blocks(own)
            };
            while !fits(&found) {
                found.pop();
            }
        }
    }
    found
}

/// Bytes of whole tiles.
pub(crate) fn bytes(form: &Form, fetched: &[Fetched]) -> i64 {
    fetched.iter().map(|f| f.bytes(form.tile.0, form.tile.1)).sum()
}

/// Whether an epilogue stores to the memory of a buffer.
fn is_written(product: &Product<'_>, buf: BufId) -> bool {
    let program = product.program;
    let stores = |inst: &Inst| matches!(&inst.kind, InstKind::Store { buf: to, .. } if program.root(*to) == program.root(buf));
    product.epilogue.insts.iter().any(stores)
}

/// The tensor map of a buffer that is read at every point of the result, with boxes of `rows` rows, and the batch axes that
/// advance it; `None` where TMA cannot read it or where it is smaller than the result.
fn map(product: &Product<'_>, buf: BufId, index: &[SymExpr], rows: i64) -> Option<(TensorMap, Vec<usize>)> {
    let Product { program, epilogue, .. } = product;
    let dtype = program.buffers[buf].dtype;
    if !matches!(dtype, DType::F16 | DType::BF16 | DType::F32) {
        return None;
    }
    let mut offset = address(program, buf, index, &epilogue.ranges);
    let mut steps = Vec::new();
    for v in 0..epilogue.ranges.len() {
        let (step, rest) = offset.affine_in(&Atom::Loop(v as u32))?;
        let constant = !step.any_leaf(|a: &Atom| matches!(a, Atom::Loop(_)));
        steps.push(constant.then_some(step)?);
        offset = rest;
    }
    // The axes as those of an operand without spatial coordinates.
    let moved = |axes: &[Axis]| -> Option<Vec<Axis>> {
        let own = |axis: &Axis| {
            let (v, times) = axis.result.as_ref()?;
            let step = steps.get(*v)? * times;
            Some(Axis { steps: [step.clone(), step], space: None, ..axis.clone() })
        };
        axes.iter().map(own).collect()
    };
    let (row, col) = (moved(&product.rows)?, moved(&product.cols)?);
    let batch = moved(&product.batch)?;
    let (row, col) = (merged(&row, 1), merged(&col, 1));
    let [col] = &col[..] else { return None };
    let moving: Vec<usize> = (0..batch.len())
        .filter(|d| batch[*d].extent != SymExpr::ONE && batch[*d].steps[0] != SymExpr::ZERO)
        .collect();
    let grain = GRAIN / dtype.size().max(1) as i64;
    let grains = SymExpr::from_i64(grain);
    let (row_count, row_step) = match &row[..] {
        // The stride of a single row is arbitrary; this one is valid for the driver.
        [] => (SymExpr::ONE, &col.extent.ceil_div(&grains) * &grains),
        [row] => (row.extent.clone(), row.steps[0].clone()),
        _ => return None,
    };
    let mut sizes = vec![col.extent.clone(), row_count];
    let mut strides = vec![row_step];
    for d in &moving {
        sizes.push(batch[*d].extent.clone());
        strides.push(batch[*d].steps[0].clone());
    }
    let aligned = strides.iter().chain([&offset]).all(|e| is_multiple(e, grain));
    let whole = col.steps[0] == SymExpr::ONE && strides[0] != SymExpr::ZERO;
    let counts = [count(&product.rows), col.extent.clone()];
    if !aligned || !whole || sizes.len() > MAX_DIMENSIONS || !counts.iter().all(|e| countable(program, e)) {
        return None;
    }
    let window = [(LINE / dtype.size().max(1) as i64) as u32, rows as u32];
    let window = window.into_iter().chain(moving.iter().map(|_| 1)).collect();
    let map = TensorMap { buf: program.root(buf), dtype, offset, sizes, strides, window };
    Some((map, moving))
}

impl Writer<'_> {
    /// Decides what is copied for the epilogue, whose vectors of it `finish` then takes from shared memory: of a tile or of a
    /// stage that begins at `tile0…`, at `row` and `col` of it.
    pub(crate) fn fetch(&mut self, finish: &mut Finish, row: &str, col: &str) -> Result<(), GenError> {
        self.fetched = fetched(self.product, &self.form, finish);
        for (n, f) in self.fetched.iter().enumerate() {
            let ty = memory_type(f.dtype)?;
            finish.hold(f.buf, format!("fetched<{ty}, BM, LANES>(tile{n}, {row}, {col})"));
        }
        Ok(())
    }

    /// Adds the tensor maps, behind those of the operands, and returns the types of tiles.
    pub(crate) fn fetched_head(&mut self) -> Result<String, GenError> {
        let mut out = String::new();
        for (n, f) in self.fetched.iter().enumerate() {
            let ty = memory_type(f.dtype)?;
            let _ = writeln!(out, "typedef BulkTile<{ty}, BM, K_MAJOR> E{n};");
            self.uses.maps.push(f.map.clone());
        }
        if !self.fetched.is_empty() && matches!(self.form.pipeline, Pipeline::Persistent { .. }) {
            let _ = writeln!(out, "constexpr int PIECES = {};", self.form.pieces(&self.fetched));
        }
        Ok(out)
    }

    /// Brings the tensor maps nearer, like those of the operands but by another warp.
    pub(crate) fn fetched_maps(&self) -> String {
        let one = |n: usize| format!("if (threadIdx.x == 32) tma_prefetch(map{});\n", n + 2);
        (0..self.fetched.len()).map(one).collect()
    }

    /// The functions that copy a box of each tensor.
    fn fetched_loads(&self) -> String {
        let mut out = String::new();
        for (n, f) in self.fetched.iter().enumerate() {
            let batch: String = f.moving.iter().map(|d| format!(", (int)g{d}")).collect();
            let _ = writeln!(
                out,
                "auto load_e{n} = [&](u8 *to, u64 *bar, i64 row, i64 col) {{ tma_load<1>(to, map{}, bar, {{(int)col, (int)row{batch}}}); }};",
                n + 2
            );
        }
        out
    }

    /// The producer's copies to stages of the ring, behind those of the tile's operands: pieces of columns in turn, of each
    /// tensor a stage.
    pub(crate) fn produce_fetched(&self) -> String {
        if self.fetched.is_empty() {
            return String::new();
        }
        let pieces = self.form.pieces(&self.fetched);
        let mut out = self.fetched_loads();
        let _ =
            write!(out, "#pragma unroll 1\nfor (int piece = 0; piece < BN; piece += {}) {{\n", pieces * SLAB);
        for (n, f) in self.fetched.iter().enumerate() {
            let strips = pieces * SLAB / f.line();
            let _ = write!(
                out,
                "mbarrier_wait(empty + at.stage, at.phase ^ 1);
mbarrier_expect(full + at.stage, {strips} * E{n}::BYTES);
for (int strip = 0; strip < {strips}; ++strip)
E{n}::template fill<1>(memory + at.stage * STAGE + strip * E{n}::BYTES, full + at.stage, row0, col0 + piece + strip * E{n}::DEPTH, load_e{n});
at.next();
"
            );
        }
        out.push_str("}\n");
        out
    }

    /// Around the epilogue of `part`, a piece of columns of a warp's rows: what waits for the stages before the first part that reads
    /// them, and what releases them behind the last one.
    pub(crate) fn around_part(&self) -> [String; 3] {
        let (mut names, mut wait, mut release) = (String::new(), String::new(), String::new());
        if self.fetched.is_empty() {
            return [names, wait, release];
        }
        wait.push_str("if (part % (Core::MI * PIECES) == 0) {\n");
        release.push_str("if ((part + 1) % (Core::MI * PIECES) == 0) {\n");
        for n in 0..self.fetched.len() {
            let _ = writeln!(names, "int held{n} = 0;");
            let _ =
                writeln!(wait, "held{n} = at.stage;\nmbarrier_wait(full + held{n}, at.phase);\nat.next();");
            let _ = writeln!(release, "mbarrier_arrive<SHARE>(empty + held{n});");
        }
        wait.push_str("}\n");
        release.push_str("}\n");
        for n in 0..self.fetched.len() {
            let _ = writeln!(wait, "const u8 *tile{n} = memory + held{n} * STAGE;");
        }
        [names, wait, release]
    }

    /// The producer's copies of a block's only tile to memory of their own, which the barrier behind those of the ring counts.
    /// In a cluster a block has the rows that it finishes.
    pub(crate) fn produce_tiles(&self) -> String {
        if self.fetched.is_empty() {
            return String::new();
        }
        let (form, high) = (&self.form, self.form.box_rows());
        let rows = match form.cluster {
            true => format!("const int from_row = cluster_row({high}), high = cluster_rows({high}, BM);\n"),
            false => "constexpr int from_row = 0, high = BM;\n".to_owned(),
        };
        let mut out = format!(
            "{}{rows}mbarrier_expect(empty + STAGES, high * {});\n",
            self.fetched_loads(),
            bytes(form, &self.fetched) / form.tile.0,
        );
        for n in 0..self.fetched.len() {
            let _ = write!(
                out,
                "for (int strip = 0; strip < BN / E{n}::DEPTH; ++strip)
for (int r = from_row; r < from_row + high; r += {high})
load_e{n}(tile{n} + strip * E{n}::BYTES + r * 128, empty + STAGES, row0 + r, col0 + strip * E{n}::DEPTH);
"
            );
        }
        out
    }

    /// Where the tiles of a block begin, behind its ring.
    pub(crate) fn tiles_of_block(&self) -> String {
        let mut out = String::new();
        let mut at = 0;
        for (n, f) in self.fetched.iter().enumerate() {
            let _ = writeln!(out, "u8 *tile{n} = memory + RING - FETCHED + {at};");
            at += f.bytes(self.form.tile.0, self.form.tile.1);
        }
        out
    }
}
