//! The text of tiled products by `wgmma` (`dialect/common/warpgroup.cu`). A producer warpgroup copies tiles of both
//! operands to a ring buffer by TMA; one or two consumer warpgroups multiply them as they arrive. Barriers in shared
//! memory say which stages are full and which are empty.
//!
//! There are two forms. In the first a block computes one tile and leaves its sums in shared memory, as other tiled products
//! do (`tile_text`). In the second persistent blocks take one tile after another, and the next tile's operands are in flight
//! while a warp runs the epilogue on its part of the sums.

use std::fmt::Write;

use ir_core::SymExpr;

use crate::GenError;
use crate::product::tile::{Product, count};
use crate::product::tile_finish::Finish;
use crate::product::tile_text::{Form, Pipeline, SUMS_GAP, Writer};
use crate::product::tma::{self, Major};
use crate::product::tma_epilogue::{self, PART_COLUMN};
use crate::text::template::assemble;
use crate::text::types::memory_type;
use crate::{ENTRY, Kernel};

/// Threads per warpgroup.
pub(crate) const WARPGROUP: i64 = 128;
/// Columns that a warp passes through shared memory to the epilogue at once.
pub(crate) const SLAB: i64 = 64;
/// Iterations over points of a tile whose loads are in flight at once.
pub(crate) const AT_ONCE: i64 = 4;
/// The same where each is a single point: of rows that are no multiples of vectors, whose addresses take most of the instructions.
const AT_ONCE_ALONE: i64 = 8;
/// Rows per warp in a product of a warpgroup.
const WARP_ROWS: i64 = 16;
/// Bytes of the two barriers of a stage, and of the one for what a block copies for its epilogue.
const BARRIERS: i64 = 16;
const EPILOGUE_BARRIER: i64 = 8;
/// Loops over stages wait for a barrier in each turn, so that unrolled they are no faster; by itself NVRTC unrolls them four
/// times or, where the number of stages is small, wholly, and takes twice the time.
const ROLLED: &str = "#pragma unroll 1\n";

impl Form {
    /// Number of warpgroups that multiply.
    pub(crate) fn consumers(&self) -> i64 {
        self.warps.0 * self.warps.1 * 32 / WARPGROUP
    }

    /// Whether TMA brings the operands.
    pub(crate) fn is_by_tma(&self) -> bool {
        matches!(self.pipeline, Pipeline::Tma | Pipeline::Persistent { .. })
    }

    /// Bytes of a stage of the ring.
    pub(crate) fn stage(&self) -> i64 {
        (self.tile.0 + self.tile.1) * 128
    }

    /// Bytes of shared memory of a TMA product, whose sums take `sums` bytes where they pass through it as a whole.
    pub(crate) fn tma_shared(&self, sums: i64) -> i64 {
        let ring = self.stages * self.stage();
        let body = match self.pipeline {
            Pipeline::Persistent { .. } => ring + self.warps.0 * self.warps.1 * WARP_ROWS * SLAB * 4,
            _ => ring.max(sums),
        };
        body + self.stages * BARRIERS + EPILOGUE_BARRIER
    }

    /// Number of blocks in a cluster that share the reads of the right operand.
    pub(crate) fn share(&self) -> i64 {
        if let Pipeline::Persistent { share, .. } = self.pipeline { share } else { 1 }
    }
}

/// Whether TMA can read both operands of a product in this shape.
pub(crate) fn readable(product: &Product<'_>, form: &Form) -> bool {
    let whole = |major: Major, rows: i64, share: i64| match major {
        Major::Inner => rows % (8 * share) == 0,
        Major::Rows => rows % (64 * share) == 0,
    };
    let majors = (tma::major(product, 0), tma::major(product, 1));
    let (Some(a), Some(b)) = majors else { return false };
    whole(a, form.tile.0, 1) && whole(b, form.tile.1, form.share())
}

impl Writer<'_> {
    /// Returns the constants, types and barriers.
    fn tma_head(&mut self, majors: [Major; 2], ring: &str) -> Result<String, GenError> {
        let form = self.form;
        let (bm, bn) = form.tile;
        let fetched = self.fetched_head()?;
        let prefetch = self.fetched_maps();
        Ok(format!(
            "constexpr int BM = {bm}, BN = {bn}, STAGES = {stages}, THREADS = {threads}, PARTS = {parts}, CONSUMERS = {consumers}, SHARE = {share};
typedef {ty} T;
typedef BulkTile<T, BM, {a}> A;
typedef BulkTile<T, BN, {b}> B;
{fetched}typedef WgmmaProduct<T, A, B, BM / CONSUMERS, BN> Core;
constexpr int DEPTH = A::DEPTH, STAGE = A::BYTES + B::BYTES;
{ring}DYNAMIC_TILES(memory);
u64 *full = (u64 *)(memory + RING), *empty = full + STAGES;
{prefetch}bulk_begin<STAGES, CONSUMERS, SHARE>(full, empty, map0, map1);
const int depth = (int)({depth});
",
            stages = form.stages,
            threads = form.threads(),
            parts = form.parts,
            consumers = form.consumers(),
            share = form.share(),
            ty = memory_type(self.product.dtype)?,
            a = majors[0].text(),
            b = majors[1].text(),
            depth = self.text(&count(&self.product.inner).ceil_div(&SymExpr::from_i64(form.depth))),
        ))
    }

    /// The number of stages of a tile, and the statement that finds it, behind that of the tile's place: a tile without a group has none.
    fn deep_of_tile(&self) -> (&'static str, &'static str) {
        match self.product.groups {
            Some(_) => ("deep", "const int deep = owned ? depth : 0;\n"),
            None => ("depth", ""),
        }
    }

    /// Adds the tensor maps and returns the major dimension of each operand.
    fn tma_maps(&mut self) -> Result<[Major; 2], GenError> {
        let (bm, bn) = self.form.tile;
        let mut majors = [Major::Inner; 2];
        for (side, rows) in [(0, bm), (1, bn / self.form.share())] {
            let (map, major) = tma::map(self.product, side, rows)
                .ok_or_else(|| GenError::Malformed("TMA cannot read an operand".into()))?;
            self.uses.maps.push(map);
            majors[side] = major;
        }
        Ok(majors)
    }

    /// The producer's loop for a tile: copies the inner points from `first` to `last`, one stage per iteration.
    fn produce(&self, majors: [Major; 2], first: &str, last: &str) -> String {
        let load = |side: usize, name: &str, share: &str| {
            let mut at = match majors[side] {
                Major::Inner => "(int)k, (int)row".to_owned(),
                Major::Rows => "(int)row, (int)k".to_owned(),
            };
            for d in tma::moving(self.product, side) {
                let _ = write!(at, ", (int)g{d}");
            }
            format!(
                "auto load_{name} = [&](u8 *to, u64 *bar, i64 row, i64 k) {{ tma_load<{share}>(to, map{side}, bar, {{{at}}}); }};\n"
            )
        };
        format!(
            "{}{}{ROLLED}for (int now = {first}; now < {last}; ++now) {{
mbarrier_wait(empty + at.stage, at.phase ^ 1);
mbarrier_expect(full + at.stage, STAGE);
u8 *to = memory + at.stage * STAGE;
A::template fill<1>(to, full + at.stage, row0, (i64)now * DEPTH, load_a);
B::template fill<SHARE>(to + A::BYTES, full + at.stage, col0, (i64)now * DEPTH, load_b);
at.next();
}}
",
            load(0, "a", "1"),
            load(1, "b", "SHARE"),
        )
    }

    /// The consumers' loop for a tile: multiplies the stages and releases each one when the products of the next have
    /// started.
    fn consume(&self, first: &str, last: &str) -> String {
        format!(
            "int before = 0;
{ROLLED}for (int now = {first}; now < {last}; ++now) {{
mbarrier_wait(full + at.stage, at.phase);
const u8 *from = memory + at.stage * STAGE;
core.step(from, from + A::BYTES, now > {first});
wgmma_wait<1>();
if (now > {first}) mbarrier_arrive<SHARE>(empty + before);
before = at.stage;
at.next();
}}
wgmma_wait<0>();
"
        )
    }

    /// Returns the text up to the tile of sums in shared memory, like [`Writer::sums`] of other pipelines.
    pub(crate) fn tma_sums(&mut self) -> Result<String, GenError> {
        let majors = self.tma_maps()?;
        let fetched = tma_epilogue::bytes(&self.form, &self.fetched);
        let ring = format!(
            "constexpr int PITCH = BN + {SUMS_GAP}, SUMS = BM * PITCH * 4, FETCHED = {fetched};
constexpr int RING = (STAGES * STAGE > SUMS ? STAGES * STAGE : SUMS) + FETCHED;
"
        );
        let mut out = self.tma_head(majors, &ring)?;
        out.push_str(&self.tiles_of_block());
        out.push_str(&self.place("(idx)blockIdx.x"));
        let (deep, found) = self.deep_of_tile();
        let wait = if self.fetched.is_empty() { "" } else { "mbarrier_wait(empty + STAGES, 0);\n" };
        let _ = write!(
            out,
            "{found}const int share = ({deep} + PARTS - 1) / PARTS, first = (int)blockIdx.y * share, last = imin<int>(first + share, {deep});
float *sums = (float *)memory;
Ring<STAGES> at;
if (threadIdx.x >= CONSUMERS * 128) {{
if (threadIdx.x == CONSUMERS * 128) {{
{}{}}}
}} else {{
Core core;
{}if (first >= last) core.clear();
barrier_sync(1, CONSUMERS * 128);
core.template store<PITCH>(sums);
}}
{wait}",
            self.produce(majors, "first", "last"),
            self.produce_tiles(),
            self.consume("first", "last"),
        );
        Ok(out)
    }

    /// The kernel with persistent blocks: each takes one tile after another and runs the epilogue warp by warp.
    pub(crate) fn persistent(mut self) -> Result<Kernel, GenError> {
        let mut finish = Finish::of(self.product, self.form.tile);
        self.fetch(&mut finish, "Core::row(part_m) + r", &format!("{PART_COLUMN} + c"))?;
        let majors = self.tma_maps()?;
        let ring = format!(
            "constexpr int SLAB = {WARP_ROWS} * {SLAB}, RING = STAGES * STAGE + CONSUMERS * 4 * SLAB * 4;\n"
        );
        let mut body = self.tma_head(majors, &ring)?;
        let place = self.place("block");
        let (tiles_m, tiles_n) = self.tiles();
        let tiles = self.text(&(self.product.entries() * tiles_m * tiles_n));
        let (deep, found) = self.deep_of_tile();
        let turns = format!(
            "for (idx block = (idx)blockIdx.x / SHARE; block < (idx)({tiles}); block += (idx)gridDim.x / SHARE) {{\n{place}{found}"
        );
        // A tile without a group has sums of nothing, and no stage to release.
        let release = match self.product.groups {
            Some(_) => "if (deep > 0) mbarrier_arrive<SHARE>(empty + before);\nelse core.clear();\n",
            None => "mbarrier_arrive<SHARE>(empty + before);\n",
        };
        let registers = self.form.consumers() > 1;
        let (down, up) = match registers {
            true => ("registers_down<40>();\n", "registers_up<232>();\n"),
            false => ("", ""),
        };
        let finish = self.finish_slab(&finish)?;
        let _ = write!(
            body,
            "Ring<STAGES> at;
if (warpgroup() == CONSUMERS) {{
{down}if (threadIdx.x == CONSUMERS * 128) {{
{turns}{}{}}}
}}
}} else {{
{up}Core core;
float *slab = (float *)(memory + STAGES * STAGE) + (threadIdx.x >> 5) * SLAB;
{turns}{}{release}{finish}}}
}}
bulk_end<SHARE>();
",
            self.produce(majors, "0", deep),
            self.produce_fetched(),
            self.consume("0", deep),
        );
        let launch = self.launch();
        let threads = launch.threads;
        let mut kernel = assemble(self.product.program, ENTRY, &self.uses, launch, &body)?;
        let cluster = match self.form.share() {
            1 => String::new(),
            share => format!("CLUSTER({share}, 1, 1) "),
        };
        kernel.source = kernel.source.replacen(
            &format!("__launch_bounds__({threads})"),
            &format!("{cluster}__launch_bounds__({threads}, 1)"),
            1,
        );
        Ok(kernel)
    }

    /// The epilogue on the sums of a warp, through shared memory of its own, so that lanes have adjacent columns and the
    /// epilogue's text occurs once.
    fn finish_slab(&mut self, finish: &Finish) -> Result<String, GenError> {
        let lanes = finish.lanes;
        // Lanes per row; all iterations of a thread have the same column where a row takes at most a warp.
        let line = SLAB / lanes;
        let turns = WARP_ROWS * line / 32;
        let place = match finish.rows_first {
            true => format!(
                "const int r = lane % {WARP_ROWS}, c = turn * {} + lane / {WARP_ROWS};",
                32 / WARP_ROWS
            ),
            false if line <= 32 => {
                format!("const int r = turn * {} + lane / {line}, c = lane % {line} * {lanes};", 32 / line)
            }
            false => format!("const int r = turn / {0}, c = turn % {0} * 32 + lane;", line / 32),
        };
        let at_once = if lanes > 1 { AT_ONCE } else { AT_ONCE_ALONE };
        let inside = self.inside();
        let text = finish.text(self)?;
        let [names, wait, release] = self.around_part();
        Ok(format!(
            "constexpr int LANES = {lanes}, PARTS_N = BN / {SLAB};
const int lane = threadIdx.x & 31;
{names}#pragma unroll 1
for (int part = 0; part < Core::MI * PARTS_N; ++part) {{
const int part_m = part % Core::MI, part_n = part / Core::MI;
core.store_slab(slab, part_m, part_n);
{wait}wave_sync();
#pragma unroll {at_once}
for (int turn = 0; turn < {turns}; ++turn) {{
{place}
const idx row = row0 + Core::row(part_m) + r, col = col0 + part_n * {SLAB} + c;
if ({inside}) {{
float sum[LANES];
tile_result<LANES, 1, 1>(sum, slab, slab + Core::slab(r, c));
{text}}}
}}
wave_sync();
{release}}}
"
        ))
    }
}
