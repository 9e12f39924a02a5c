//! The text of a tiled product: a block computes a tile of the result in a pipeline of copies and multiplications
//! (`dialect/common/tile.cu`), then runs the epilogue on it. Where several blocks split the inner dimension, their sums
//! are added in the order of the blocks: through the shared memory of a cluster, or through scratch memory by a second
//! kernel.

use std::fmt::Write;

use ir_core::{DType, SymExpr};
use kernel_ir::Groups;

use crate::product::groups;
use crate::product::tile::{Axis, Product, Reading, count, is_multiple, merged};
use crate::product::tile_finish::Finish;
use crate::product::tma_epilogue::{self, Fetched};
use crate::product::tma_text::{AT_ONCE, WARPGROUP};
use crate::text::body::{BodyWriter, Uses};
use crate::text::index::Numbers;
use crate::text::template::{assemble, blocks_of};
use crate::text::types::memory_type;
use crate::{ENTRY, GenError, Kernel, Launch, THREADS, Variant};

/// Partial sums that a thread of the second kernel loads at once.
pub(crate) const PARTS_AT_ONCE: i64 = 16;

/// The unit that multiplies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    /// Tensor cores with 16-bit floats.
    Tensor,
    /// Tensor cores with float32 rounded to tf32.
    Tf32,
    /// float32 on matrix cores.
    Exact,
    /// float32 by fused multiply-adds.
    Plain,
}

/// How operands are copied to shared memory, and who multiplies them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pipeline {
    /// Every thread copies elements and multiplies fragments.
    Threads,
    /// The same where copies go through the threads' registers, a tile ahead of what is multiplied (`registers_text`).
    Registers,
    /// TMA copies tiles and warpgroups multiply them (`tma_text`), one tile per block.
    Tma,
    /// The same with persistent blocks, which take one tile after another. `share` blocks of a cluster, in one column of
    /// tiles, share the reads of the right operand; there are at most `most` clusters.
    Persistent { share: i64, most: i64 },
}

/// The shape of a tiled kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Form {
    pub(crate) unit: Unit,
    pub(crate) pipeline: Pipeline,
    /// Rows and columns of a block's tile.
    pub(crate) tile: (i64, i64),
    /// Inner points per stage.
    pub(crate) depth: i64,
    /// Stages of the pipeline.
    pub(crate) stages: i64,
    /// Warps along rows and along columns. [`Unit::Plain`], which does not know waves, has 256 threads in an order of its own.
    pub(crate) warps: (i64, i64),
    /// Threads of a warp.
    pub(crate) wave: i64,
    /// Blocks that share the inner dimension.
    pub(crate) parts: i64,
    /// Whether those blocks are a cluster.
    pub(crate) cluster: bool,
}

/// The condition of points where every tile is whole.
const EVERYWHERE: &str = "true";
/// Number of consecutive tiles along the rows, which reuse their columns while these are in the cache.
const GROUP: i64 = 8;
/// Padding floats between the rows of a tile of sums, so that fragments are stored without bank conflicts.
pub(crate) const SUMS_GAP: i64 = 8;

impl Form {
    /// Threads per block: those that multiply, and the producer warpgroup of TMA.
    pub(crate) fn threads(&self) -> i64 {
        let producers = if self.by_threads() { 0 } else { WARPGROUP };
        self.warps.0 * self.warps.1 * self.wave + producers
    }
    /// Whether the threads that multiply copy too.
    pub(crate) fn by_threads(&self) -> bool {
        matches!(self.pipeline, Pipeline::Threads | Pipeline::Registers)
    }
    /// The kind of kernel.
    pub(crate) fn kind(&self) -> &'static str {
        match (self.unit, self.pipeline) {
            (Unit::Tensor, Pipeline::Threads) => "mma",
            (Unit::Tensor, Pipeline::Registers) if self.wave == 32 => "wmma",
            (Unit::Tensor, Pipeline::Registers) => "mfma",
            (Unit::Tf32, Pipeline::Threads) => "tf32",
            (Unit::Tf32, Pipeline::Registers) => "mfma_xf32",
            (Unit::Exact, _) => "mfma_f32",
            (Unit::Plain, _) => "fma",
            (Unit::Tensor, Pipeline::Tma) => "wgmma",
            (Unit::Tf32, Pipeline::Tma) => "wgmma_tf32",
            (Unit::Tensor, Pipeline::Persistent { .. }) => "wgmma_persistent",
            (Unit::Tf32, Pipeline::Persistent { .. }) => "wgmma_tf32_persistent",
        }
    }
    /// The name in tables.
    pub(crate) fn name(&self) -> String {
        let (m, n) = self.tile;
        let parts = match (self.parts, self.cluster) {
            (1, _) if self.share() > 1 => format!("_share{}", self.share()),
            (1, _) => String::new(),
            (parts, true) => format!("_cluster{parts}"),
            (parts, false) => format!("_split{parts}"),
        };
        format!("{}_{m}x{n}x{}_{}{parts}", self.kind(), self.depth, self.stages)
    }
    /// Bytes of one stage of an operand.
    fn stage_bytes(&self, reading: Reading, rows: i64, bytes: i64) -> i64 {
        let turned = matches!(reading, Reading::AlongRows(_)) && self.pipeline == Pipeline::Threads;
        let (line, lines) = if turned { (rows, self.depth) } else { (self.depth, rows) };
        lines * (line * bytes + 16)
    }
    /// Bytes of shared memory.
    pub(crate) fn shared(&self, product: &Product<'_>) -> i64 {
        let bytes = product.dtype.size() as i64;
        let sums = self.tile.0 * (self.tile.1 + SUMS_GAP) * 4;
        if !self.by_threads() {
            return self.tma_shared(sums);
        }
        let sums = self.slab().map_or(sums, |(high, broad)| high * (broad + SUMS_GAP) * 4);
        let stage = self.stage_bytes(product.reading(0), self.tile.0, bytes)
            + self.stage_bytes(product.reading(1), self.tile.1, bytes);
        (stage * self.stages).max(sums)
    }
}

/// How a block goes over the sums of its tile.
pub(crate) struct Walk {
    /// What is done before.
    pub(crate) meet: &'static str,
    /// Where point `e` is in the tile: `r` and `c`.
    pub(crate) place: &'static str,
    pub(crate) points: &'static str,
    /// Its place among the sums.
    pub(crate) at: &'static str,
    /// What is done behind.
    pub(crate) end: &'static str,
}

/// One kernel's writing.
pub(crate) struct Writer<'a> {
    pub(crate) product: &'a Product<'a>,
    pub(crate) form: Form,
    pub(crate) uses: Uses,
    /// What TMA copies for the epilogue.
    pub(crate) fetched: Vec<Fetched>,
}

impl<'a> Writer<'a> {
    fn new(product: &'a Product<'a>, form: Form) -> Writer<'a> {
        // Where TMA computes addresses of operands, and the sizes are in its maps, a network's products of one form differ in
        // numbers that a tile needs once. Elsewhere threads compute addresses with them all the time.
        let numbers = form.is_by_tma().then(Numbers::default);
        Writer { product, form, uses: Uses { numbers, ..Uses::default() }, fetched: Vec::new() }
    }

    /// A size as text.
    pub(crate) fn text(&mut self, e: &SymExpr) -> String {
        let extents = &self.product.epilogue.ranges;
        BodyWriter { program: self.product.program, extents, prefix: "", guard: None, store_guard: None }
            .expr(e, &mut self.uses)
    }

    /// Returns statements that compute the indices `{name}{axis}` from the flat variable `flat`, innermost fastest. Axes
    /// of one point have index 0.
    pub(crate) fn unravel(&mut self, axes: &[Axis], name: &str, flat: &str) -> String {
        let mut out = String::new();
        let mut rest = flat.to_owned();
        // Constants, since they divide.
        let numbers = self.uses.numbers.take();
        let real: Vec<usize> = (0..axes.len()).filter(|&d| axes[d].extent != SymExpr::ONE).collect();
        for d in (0..axes.len()).filter(|d| !real.contains(d)) {
            let _ = writeln!(out, "const idx {name}{d} = 0;");
        }
        for (place, &d) in real.iter().enumerate().rev() {
            if place == 0 {
                let _ = writeln!(out, "const idx {name}{d} = {rest};");
                continue;
            }
            let extent = self.text(&axes[d].extent);
            let _ = writeln!(
                out,
                "const idx {name}{d} = {rest} % {extent}; const idx {name}rest{d} = {rest} / {extent};"
            );
            rest = format!("{name}rest{d}");
        }
        self.uses.numbers = numbers;
        out
    }

    /// `start + Σ index * step` over axes whose indices are `{name}0…`.
    fn sum(&mut self, start: String, axes: &[Axis], name: &str, step: impl Fn(&Axis) -> SymExpr) -> String {
        let mut out = start;
        for (d, axis) in axes.iter().enumerate() {
            let step = step(axis);
            if step != SymExpr::ZERO && axis.extent != SymExpr::ONE {
                let _ = write!(out, " + {name}{d} * {}", self.text(&step));
            }
        }
        out
    }

    /// The lambdas that say where a factor's elements are: `{f}_row`, `{f}_inner`, `{f}_inside`, and its first element.
    pub(crate) fn address(&mut self, side: usize, f: &str) -> String {
        let product = self.product;
        let (rows, inner) = (product.rows_of(side), &product.inner);
        let (tile, depth) = (if side == 0 { self.form.tile.0 } else { self.form.tile.1 }, self.form.depth);
        // A coordinate's start is added once, with the rows.
        let row = self.spot(side, &merged(rows, side), &count(rows), tile, true);
        let k = self.spot(side, &merged(inner, side), &count(inner), depth, false);
        let mut inside = String::from("r.in & k.in");
        if side == 0 {
            for (d, space) in product.spaces.iter().enumerate() {
                let size = self.text(&space.size);
                let _ = write!(inside, " & ((u32)(r.x[{d}] + k.x[{d}]) < (u32){size})");
            }
        }
        let operand = &product.operands[side];
        let (memory, offset) = self
            .uses
            .placed(product.program.root(operand.buf), operand.offset.simplify(&product.program.bounds()));
        let offset = self.text(&offset);
        let start = self.sum(offset, &product.batch, "g", |a| a.steps[side].clone());
        format!(
            "const T *base_{f} = {memory} + ({start});\n\
             auto {f}_row = [=](idx p) {{ {row}return s; }};\n\
             auto {f}_inner = [=](idx p) {{ {k}return s; }};\n\
             auto {f}_inside = [=](const S &r, const S &k) {{ return {inside}; }};\n"
        )
    }

    /// Returns what point `p` of the axes adds to an address and to coordinates. `block` is the number of points per
    /// block: a multiple of it needs no mask.
    fn spot(&mut self, side: usize, axes: &[Axis], points: &SymExpr, block: i64, starts: bool) -> String {
        let mut out = String::from("S s;\n");
        out.push_str(&self.unravel(axes, "p", "p"));
        let at = self.sum("0".into(), axes, "p", |a| a.steps[side].clone());
        let inside = match is_multiple(points, block) {
            // Behind the depth of a group is that of the next.
            _ if !starts && self.product.groups_of_depth().is_some() => "p < own.end".to_owned(),
            // The tiles of a group begin at its first row.
            _ if starts && side == 0 && self.product.groups_of_rows().is_some() => "p < own.end".to_owned(),
            true => "true".to_owned(),
            false => format!("p < {}", self.text(points)),
        };
        let _ = writeln!(out, "s.at = {at}; s.in = {inside};");
        if side == 0 {
            for (d, space) in self.product.spaces.iter().enumerate() {
                let moves = |a: &Axis| a.space.filter(|s| s.0 == d).map_or(0, |s| s.1);
                let start = if starts { format!("({})", space.start) } else { "0".into() };
                let x = self.sum(start, axes, "p", |a| SymExpr::from_i64(moves(a)));
                let _ = writeln!(out, "s.x[{d}] = (i32)({x});");
            }
        }
        out
    }

    /// The constants and types of the kernel.
    pub(crate) fn head(&mut self) -> Result<String, GenError> {
        let (product, form) = (self.product, self.form);
        let (bm, bn) = form.tile;
        let ty = memory_type(product.dtype)?;
        let (a, b) = (product.reading(0), product.reading(1));
        let (wm, wn) = form.warps;
        let (pm, pn) = (bm / wm, bn / wn);
        let core = match form.unit {
            _ if form.slab().is_some() => self.core((pm, pn)),
            Unit::Tensor => format!("TensorProduct<T, A, B, {pm}, {pn}, {wn}, DEPTH>"),
            Unit::Tf32 => format!("Tf32Product<A, B, {pm}, {pn}, {wn}, DEPTH>"),
            Unit::Plain | Unit::Exact => format!("PlainProduct<A, B, {bm}, {bn}, DEPTH>"),
        };
        let broad = if form.slab().is_some() { "Core::BROAD" } else { "BN" };
        Ok(format!(
            "constexpr int BM = {bm}, BN = {bn}, DEPTH = {depth}, STAGES = {stages}, THREADS = {threads}, PARTS = {parts};
typedef {ty} T;
typedef Spot<idx, {spaces}> S;
typedef Tile<T, BM, DEPTH, {wa}, {ma}, THREADS> A;
typedef Tile<T, BN, DEPTH, {wb}, {mb}, THREADS> B;
typedef {core} Core;
constexpr int STAGE = A::BYTES + B::BYTES, PITCH = {broad} + {SUMS_GAP};
DYNAMIC_SHARED(memory);
",
            depth = form.depth,
            stages = form.stages,
            threads = form.threads(),
            parts = form.parts,
            spaces = product.spaces.len(),
            wa = a.width(),
            ma = a.mode(),
            wb = b.width(),
            mb = b.mode(),
        ))
    }

    /// Returns the tile and batch that a block computes, from its number: `row0`, `col0`, `batch` and the batch indices
    /// `g0…`. Blocks that share an operand have vertically adjacent tiles.
    pub(crate) fn place(&mut self, block: &str) -> String {
        if let Some(groups) = self.product.groups_of_rows() {
            return self.place_in_groups(groups, block);
        }
        let product = self.product;
        let (tiles_m, tiles_n) = self.tiles();
        let (tm, tn) = (self.text(&tiles_m), self.text(&tiles_n));
        let batches = self.unravel(&product.batch, "g", "batch");
        let share = self.form.share();
        let (high, own) = match share {
            1 => ("BM".to_owned(), String::new()),
            _ => (format!("(BM * {share})"), format!(" + (idx)blockIdx.x % {share} * BM")),
        };
        let group = (GROUP / share).max(1);
        let found = self.found_depth();
        format!(
            "const idx tiles_m = {tm}, tiles_n = {tn};
const idx batch = {block} / (tiles_m * tiles_n), tile = {block} % (tiles_m * tiles_n);
const idx first_m = tile / ({group} * tiles_n) * {group}, tall = imin<idx>(tiles_m - first_m, {group});
const idx row0 = (first_m + tile % ({group} * tiles_n) % tall) * {high}{own}, col0 = tile % ({group} * tiles_n) / tall * BN;
{batches}{found}"
        )
    }

    /// The same where rows are those of groups: `own` is the tile's group and its rows, `chosen` a matrix that exists, and `owned` says
    /// whether there is anything to multiply.
    fn place_in_groups(&mut self, groups: &Groups, block: &str) -> String {
        let (tiles_m, tiles_n) = self.tiles();
        let (tm, tn, rows) =
            (self.text(&tiles_m), self.text(&tiles_n), self.text(&count(&self.product.rows)));
        let share = self.form.share();
        let (high, own) = match share {
            1 => ("BM".to_owned(), String::new()),
            _ => (format!("(BM * {share})"), format!(" + (idx)blockIdx.x % {share} * BM")),
        };
        let group = (GROUP / share).max(1);
        let found = groups::find_tile(&self.ends(groups), groups, &rows, &high, "tile_m");
        format!(
            "const idx tiles_m = {tm}, tiles_n = {tn};
const idx batch = 0, tile = {block};
const idx first_m = tile / ({group} * tiles_n) * {group}, tall = imin<idx>(tiles_m - first_m, {group});
const idx tile_m = first_m + tile % ({group} * tiles_n) % tall, col0 = tile % ({group} * tiles_n) / tall * BN;
{found}const idx row0 = own.first{own}, g0 = chosen;
"
        )
    }

    /// The statement that finds a group's part of the depth, where groups are those of the depth.
    fn found_depth(&mut self) -> String {
        let Some(groups) = self.product.groups_of_depth() else { return String::new() };
        let depth = self.text(&count(&self.product.inner));
        groups::find_depth(&self.ends(groups), &depth, "g0")
    }

    /// The ends of groups as arguments.
    fn ends(&mut self, groups: &Groups) -> String {
        let extents = &self.product.epilogue.ranges;
        let program = self.product.program;
        let writer = BodyWriter { program, extents, prefix: "", guard: None, store_guard: None };
        groups::arguments(&writer, groups, &mut self.uses)
    }

    /// The number of stages of the depth of a block's tile.
    pub(crate) fn deep(&mut self) -> String {
        if self.product.groups_of_depth().is_some() {
            return "(int)((own.end - own.first + DEPTH - 1) / DEPTH)".to_owned();
        }
        let depth = self.text(&count(&self.product.inner).ceil_div(&SymExpr::from_i64(self.form.depth)));
        match self.product.groups {
            Some(_) => format!("owned ? (int)({depth}) : 0"),
            None => format!("(int)({depth})"),
        }
    }

    /// The first inner point of stage `now`.
    pub(crate) fn stage_at(&self, now: &str) -> String {
        let from = if self.product.groups_of_depth().is_some() { "own.first + " } else { "" };
        format!("{from}(idx){now} * DEPTH")
    }

    /// Numbers of tiles along rows and columns; tiles of blocks that share an operand count once.
    pub(crate) fn tiles(&self) -> (SymExpr, SymExpr) {
        let (bm, bn) = (self.form.tile.0 * self.form.share(), self.form.tile.1);
        let p = self.product;
        let high = match p.groups_of_rows() {
            Some(groups) => groups::tiles(groups, &count(&p.rows), bm),
            None => count(&p.rows).ceil_div(&SymExpr::from_i64(bm)),
        };
        (high, count(&p.cols).ceil_div(&SymExpr::from_i64(bn)))
    }

    /// Returns the text up to the tile of sums in shared memory.
    fn sums(&mut self) -> Result<String, GenError> {
        match self.form.pipeline {
            Pipeline::Tma => return self.tma_sums(),
            Pipeline::Registers => return self.register_sums(),
            _ => {}
        }
        let mut out = self.head()?;
        out.push_str(&self.place("(idx)blockIdx.x"));
        out.push_str(&self.address(0, "a"));
        out.push_str(&self.address(1, "b"));
        let depth = self.deep();
        let _ = write!(
            out,
            "Filler<A, T, S, BM, DEPTH, {wa}, {ma}, THREADS> fill_a;
Filler<B, T, S, BN, DEPTH, {wb}, {mb}, THREADS> fill_b;
fill_a.begin(row0, a_row);
fill_b.begin(col0, b_row);
const int depth = {depth}, share = (depth + PARTS - 1) / PARTS;
const int first = (int)blockIdx.y * share, last = imin<int>(first + share, depth);
Core core;
core.clear();
{stages}cp_async_wait<0>();
block_sync();
float *sums = (float *)memory;
core.template store<PITCH>(sums);
",
            wa = self.product.reading(0).width(),
            ma = self.product.reading(0).mode(),
            wb = self.product.reading(1).width(),
            mb = self.product.reading(1).mode(),
            stages = self.stages(),
        );
        Ok(out)
    }

    /// The loops over the stages of the pipeline. They stay loops: NVRTC takes as long once more for every copy of a turn, and the
    /// turns before the first product, which only start copies, have a loop of their own, since conditions for them would stand in
    /// every turn.
    fn stages(&self) -> String {
        let at = self.stage_at("next");
        let fill = |next: &str, stage: &str| {
            format!(
                "const int next = {next};
if (next < last) {{
u8 *to = memory + {stage} * STAGE;
fill_a.fill((T *)to, base_a, row0, {at}, a_row, a_inner, a_inside);
fill_b.fill((T *)(to + A::BYTES), base_b, col0, {at}, b_row, b_inner, b_inside);
}}
cp_async_commit();
"
            )
        };
        let fill_first = fill("first + stage", "stage");
        let fill_next = fill("now + STAGES - 1", "(stage == 0 ? STAGES - 1 : stage - 1)");
        let step = "const u8 *from = memory + stage * STAGE;
core.step((const T *)from, (const T *)(from + A::BYTES));
";
        // Copies of single elements are most of the text: what starts the first ones has no place of its own then.
        let single = [0, 1].iter().any(|side| self.product.reading(*side).mode().starts_with("SINGLE"));
        if single {
            return format!(
                "int stage = 1;
#pragma unroll 1
for (int now = first - STAGES + 1; now < last; ++now) {{
if (now >= first) {{
cp_async_wait<STAGES - 2>();
block_sync();
}}
{fill_next}if (now >= first) {{
{step}}}
stage = stage + 1 == STAGES ? 0 : stage + 1;
}}
"
            );
        }
        // Tensor cores compute while the threads start copies; plain multiplications keep the threads busy themselves, and copies
        // that start before them have that time.
        let turn = match self.form.unit {
            Unit::Plain => format!("{fill_next}{step}"),
            _ => format!("{step}{fill_next}"),
        };
        format!(
            "#pragma unroll 1
for (int stage = 0; stage < STAGES - 1; ++stage) {{
{fill_first}}}
int stage = 0;
#pragma unroll 1
for (int now = first; now < last; ++now) {{
cp_async_wait<STAGES - 2>();
block_sync();
{turn}stage = stage + 1 == STAGES ? 0 : stage + 1;
}}
"
        )
    }

    /// The condition that `row` and `col` are those of a point of the result; where tiles divide it, loads of several points are
    /// in flight at once only without one. Kernels whose copies go through registers keep theirs, of which nothing was measured.
    pub(crate) fn inside(&mut self) -> String {
        // Of blocks that share an operand the last ones may have no row at all.
        let lines = [
            ("row", count(&self.product.rows), self.form.tile.0 * self.form.share()),
            ("col", count(&self.product.cols), self.form.tile.1),
        ];
        let mut conditions = Vec::new();
        if self.product.groups_of_rows().is_some() {
            conditions.push("row < own.end".to_owned());
        }
        for (name, points, tile) in lines {
            if self.form.pipeline == Pipeline::Registers || !is_multiple(&points, tile) {
                conditions.push(format!("{name} < {}", self.text(&points)));
            }
        }
        if conditions.is_empty() { EVERYWHERE.to_owned() } else { conditions.join(" && ") }
    }

    /// The launch over all tiles.
    pub(crate) fn launch(&self) -> Launch {
        let (tiles_m, tiles_n) = self.tiles();
        let tiles = self.product.entries() * tiles_m * tiles_n;
        let blocks = match self.form.pipeline {
            Pipeline::Persistent { share, most } => {
                tiles.sym_min(&SymExpr::from_i64(most)) * SymExpr::from_i64(share)
            }
            _ => tiles,
        };
        // Persistent blocks have them in their ring.
        let own = match self.form.pipeline {
            Pipeline::Tma => tma_epilogue::bytes(&self.form, &self.fetched),
            _ => 0,
        };
        Launch {
            blocks: [blocks, SymExpr::from_i64(self.form.parts), SymExpr::ONE],
            threads: self.form.threads() as u32,
            shared: (self.form.shared(self.product) + own) as u32,
        }
    }

    /// The kernel that runs the epilogue on its tile, alone or with its cluster.
    fn whole(mut self) -> Result<Kernel, GenError> {
        let mut finish = Finish::of(self.product, self.form.tile);
        self.fetch(&mut finish, "r", "c")?;
        let mut body = self.sums()?;
        let (lanes, rows_first) = (finish.lanes, finish.rows_first);
        let clustered = self.form.parts > 1;
        let meet = if clustered {
            "if (!cluster_share<PARTS, BM * PITCH>(sums)) return;\nconst int from_row = cluster_row(BM / PARTS), high = cluster_rows(BM / PARTS, BM);"
        } else {
            "block_sync();\nconstexpr int from_row = 0, high = BM;"
        };
        let inside = self.inside();
        let place = if rows_first {
            "const int r = from_row + e % high, c = e / high;"
        } else {
            "const int r = from_row + e / (BN / LANES), c = e % (BN / LANES) * LANES;"
        };
        let text = finish.text(&mut self)?;
        let own = Walk { meet, place, points: "high * BN", at: "r * PITCH + c", end: "" };
        let Walk { meet, place, points, at, end } = self.form.slabs(rows_first).unwrap_or(own);
        let form = &self.form;
        // The compiler moves no load over a condition of an earlier point, be it that of the loop.
        let exact = form.parts == 1 && (form.tile.0 * form.tile.1) % (lanes * form.threads()) == 0;
        let moves = exact && inside == EVERYWHERE && form.slab().is_none();
        let turns = match moves && finish.waits(self.product) {
            true => format!(
                "#pragma unroll {AT_ONCE}\nfor (int turn = 0; turn < BM * BN / LANES / THREADS; ++turn) {{\nconst int e = turn * THREADS + threadIdx.x;"
            ),
            false => format!("for (int e = threadIdx.x; e < {points} / LANES; e += THREADS) {{"),
        };
        let _ = write!(
            body,
            "{meet}
constexpr int LANES = {lanes};
{turns}
{place}
const idx row = row0 + r, col = col0 + c;
if ({inside}) {{
float sum[LANES];
tile_result<LANES, PARTS, BM * PITCH>(sum, sums, sums + {at});
{text}}}
}}
{end}"
        );
        if clustered {
            body.push_str("cluster_end();\n");
        }
        let launch = self.launch();
        let mut kernel = assemble(self.product.program, ENTRY, &self.uses, launch, &body)?;
        if clustered {
            let attribute = format!("CLUSTER(1, {}, 1) __launch_bounds__(", self.form.parts);
            kernel.source = kernel.source.replacen("__launch_bounds__(", &attribute, 1);
        }
        Ok(kernel)
    }

    /// The kernel that stores its partial sums in scratch memory, `[part][batch][row][column]`.
    fn part(mut self) -> Result<Kernel, GenError> {
        self.uses.scratch.push("float");
        let mut body = self.sums()?;
        let (m, n) = (count(&self.product.rows), count(&self.product.cols));
        let batch = count(&self.product.batch);
        let lanes = if is_multiple(&n, 4) { 4 } else { 1 };
        let (m, n, batch) = (self.text(&m), self.text(&n), self.text(&batch));
        let own = Walk {
            meet: "block_sync();",
            place: "const int r = e / (BN / LANES), c = e % (BN / LANES) * LANES;",
            points: "BM * BN",
            at: "r * PITCH + c",
            end: "",
        };
        let Walk { meet, place, points, at, end } = self.form.slabs(false).unwrap_or(own);
        let _ = write!(
            body,
            "{meet}
constexpr int LANES = {lanes};
float *mine = scratch0 + ((i64)blockIdx.y * {batch} + batch) * {m} * {n};
for (int e = threadIdx.x; e < {points} / LANES; e += THREADS) {{
{place}
const idx row = row0 + r, col = col0 + c;
if (row < {m} && col < {n}) *(Vec<float, LANES> *)(mine + (i64)row * {n} + col) = *(const Vec<float, LANES> *)(sums + {at});
}}
{end}"
        );
        let launch = self.launch();
        assemble(self.product.program, ENTRY, &self.uses, launch, &body)
    }

    /// The kernel that adds the partial sums and runs the epilogue.
    fn finish(mut self) -> Result<Kernel, GenError> {
        self.uses.scratch.push("float");
        let product = self.product;
        let finish = Finish::of(product, self.form.tile);
        let lanes = finish.lanes;
        let (rows, cols, batch) = (count(&product.rows), count(&product.cols), count(&product.batch));
        let points = &batch * &rows * &cols;
        let (m, n, all) = (self.text(&rows), self.text(&cols), self.text(&points));
        let batches = self.unravel(&product.batch, "g", "batch");
        let text = finish.text(&mut self)?;
        let (row, col) = match finish.rows_first {
            true => (format!("p % {m}"), format!("p / {m} % {n}")),
            false => (format!("p * LANES / {n} % {m}"), format!("p * LANES % {n}")),
        };
        let width = if lanes % 4 == 0 { 4 } else { 1 };
        let body = format!(
            "constexpr int LANES = {lanes}, PARTS = {parts};
for (i64 p = blockIdx.x * (i64)blockDim.x + threadIdx.x; p < (i64){all} / LANES; p += (i64)gridDim.x * blockDim.x) {{
const idx batch = (idx)(p * LANES / ((i64){m} * {n})), row = (idx)({row}), col = (idx)({col});
{batches}const float *from = scratch0 + ((i64)batch * {m} + row) * {n} + col;
float sum[LANES] = {{}};
#pragma unroll {at_once}
for (int part = 0; part < PARTS; ++part)
#pragma unroll
for (int u = 0; u < LANES; u += {width}) {{
const Vec<float, {width}> v = *(const Vec<float, {width}> *)(from + (i64){all} * part + u);
#pragma unroll
for (int w = 0; w < {width}; ++w) sum[u + w] += v.v[w];
}}
{text}}}
",
            parts = self.form.parts,
            at_once = PARTS_AT_ONCE,
        );
        let launch = Launch::flat(blocks_of(&points, i64::from(THREADS) * lanes), THREADS);
        assemble(product.program, ENTRY, &self.uses, launch, &body)
    }
}

/// Generates a tiled product of a given shape.
pub(crate) fn variant(product: &Product<'_>, form: Form) -> Result<Variant, GenError> {
    let name = form.name();
    if let Pipeline::Persistent { .. } = form.pipeline {
        return Ok(Variant::single(name, Writer::new(product, form).persistent()?));
    }
    if form.parts == 1 || form.cluster {
        return Ok(Variant::single(name, Writer::new(product, form).whole()?));
    }
    let sums = count(&product.batch) * count(&product.rows) * count(&product.cols);
    let scratch = vec![sums * SymExpr::from_i64(form.parts * DType::F32.size() as i64)];
    let kernels = vec![Writer::new(product, form).part()?, Writer::new(product, form).finish()?];
    Ok(Variant { name, kernels, scratch })
}
