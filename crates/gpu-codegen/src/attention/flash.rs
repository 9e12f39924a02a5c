//! Attention of 16-bit numbers on matrix cores: a warp computes 16 or 32 query rows, its scores and their running softmax stay in
//! registers; tiles of keys and values come into shared memory beside the computation. How its fragments lie is data of the dialect;
//! how they are loaded and multiplied is written here for warps (`Words::for_warps`) and in `flash_waves` for waves of AMD's.
//!
//! The running softmax is that of "Online normalizer calculation for softmax" (Milakov and Gimelshein, 2018): a new
//! maximum rescales what was accumulated so far. Of rows longer than [`MAX_COLUMNS`] a block computes a section of the result's
//! columns, and all scores. Not here: few query rows (`decode`), wider numbers (`attention`).

use ir_core::{DType, SymExpr};
use kernel_ir::{Attention, Operand, Program};

use crate::attention::{Operands, flash_waves};
use crate::dialect::fragments::Fragments;
use crate::text::body::Uses;
use crate::text::template::{assemble, epilogue, volume};
use crate::text::types::value_type;
use crate::{ENTRY, GenError, Launch, Target, Variant};

/// Keys of a tile, and of one of waves that have no registers for the scores of more.
const KEYS: i64 = 64;
const FEW_KEYS: i64 = 32;
/// Keys of a tile where tiles of more leave no room for two warps in shared memory.
const FEWEST_KEYS: i64 = 16;
/// Columns of a result for which a warp has registers beside its queries, and the longest rows.
pub(crate) const MAX_COLUMNS: i64 = 256;
const MAX_WIDTH: i64 = 1024;
/// The longest rows for which waves of 32 have registers.
const MAX_SHORT: i64 = 128;
/// Bytes between the ends of two rows in shared memory: eight rows then lie in different banks.
pub(crate) const PAD: i64 = 8;

/// The ways of computing it; none where there are no matrix cores, or operands cannot be read 16 bytes at once.
pub(crate) fn variants(program: &Program, k: &Attention, target: &Target) -> Result<Vec<Variant>, GenError> {
    let Some(fragments) = Fragments::of(target) else { return Ok(Vec::new()) };
    let Some(shape) = Flash::of(program, k, fragments, target) else { return Ok(Vec::new()) };
    let rows = k.q.sizes[2].as_const().unwrap_or(512);
    let heads = volume(&k.q.sizes[..2]).as_const().unwrap_or(32);
    let tiles = heads * shape.sections();
    let blocks = |warps: i64| tiles * ((rows + warps * fragments.own - 1) / (warps * fragments.own));
    let fits = |warps: &i64| shape.shared(*warps) <= i64::from(target.lds);
    // As many warps to a block as still give every multiprocessor one. Of waves more share a tile, which each brings a part of.
    let mut order = if fragments.turned() { flash_waves::warps(&shape) } else { vec![4, 2, 1, 8] };
    order.retain(fits);
    let full = |warps: &i64| blocks(*warps) >= i64::from(target.multiprocessors);
    if let Some(first) = order.iter().position(full).or(order.iter().position(|w| *w == 1)) {
        order[..=first].rotate_right(1);
    }
    order.into_iter().map(|warps| shape.generate(warps)).collect()
}

pub(crate) struct Flash<'a> {
    pub(crate) program: &'a Program,
    pub(crate) k: &'a Attention,
    pub(crate) fragments: Fragments,
    pub(crate) dtype: DType,
    /// Elements of a query and of a key, of a value; in shared memory both are filled up to multiples of 16.
    pub(crate) depth: i64,
    pub(crate) width: i64,
    /// Elements that a thread copies at once.
    grain: i64,
    /// Bytes of shared memory that a block may have.
    lds: i64,
}

/// Elements of a row that a thread copies at once: 16 bytes where rows are whole vectors of these, else, by warps, 8 or 4 (heads of 36
/// elements, say). `None` where a row is longer than `most`, or not copied so.
pub(crate) fn grain(operands: &[&Operand], rows: [i64; 2], most: i64, fragments: &Fragments) -> Option<i64> {
    let all: &[i64] = if fragments.turned() { &[8] } else { &[8, 4, 2] };
    let fits = |grain: &i64| {
        rows.iter().all(|n| n % grain == 0 && (8..=most).contains(n))
            && operands.iter().all(|o| crate::product::gemv::aligned(o, 3, *grain))
    };
    all.iter().copied().find(fits)
}

/// What of a kernel's text depends on how matrix cores are fed.
pub(crate) struct Words {
    /// Places in shared memory.
    pub(crate) places: String,
    /// Brings the block's queries and its first tiles.
    pub(crate) begin: String,
    /// Types of a fragment's numbers, of several: of scores, of results.
    pub(crate) score: String,
    pub(crate) out: String,
    /// At the beginning of a turn: brings the next tiles, waits for its own, says where they are.
    pub(crate) prefetch: String,
    pub(crate) scores: String,
    /// Before and behind what looks at every score alone.
    pub(crate) before_look: String,
    pub(crate) behind_look: String,
    /// What a result's row shrinks by `shrink`.
    pub(crate) shrink: String,
    /// The weight of a score.
    pub(crate) weight: String,
    pub(crate) products: String,
    /// Behind a turn, and behind all of a block's.
    pub(crate) turn_end: String,
    pub(crate) end: String,
    /// Far rows of a fragment of results.
    pub(crate) wide: i64,
}

pub(crate) fn round_up_16(n: i64) -> i64 {
    (n + 15) / 16 * 16
}

impl<'a> Flash<'a> {
    fn of(
        program: &'a Program,
        k: &'a Attention,
        fragments: Fragments,
        target: &Target,
    ) -> Option<Flash<'a>> {
        let dtype = program.buffers[k.q.buf].dtype;
        let same = [&k.k, &k.v].iter().all(|o| program.buffers[o.buf].dtype == dtype);
        if !same || !matches!(dtype, DType::BF16 | DType::F16) || k.acc.compute() != DType::F32 {
            return None;
        }
        let (depth, width) = (k.q.sizes[3].as_const()?, k.v.sizes[3].as_const()?);
        let most = if fragments.turned() { MAX_COLUMNS } else { MAX_WIDTH };
        let grain = grain(&[&k.q, &k.k, &k.v], [depth, width], most, &fragments)?;
        if fragments.turned() && fragments.wave == 32 && depth.max(width) > MAX_SHORT {
            return None;
        }
        let lds = i64::from(target.lds);
        (k.epilogue.ranges.len() == 4).then_some(Flash {
            program,
            k,
            fragments,
            dtype,
            depth,
            width,
            grain,
            lds,
        })
    }

    /// Whether queries are read from shared memory for every tile, as registers have no room for them.
    fn is_long(&self) -> bool {
        self.depth.max(self.width) > MAX_COLUMNS
    }

    /// In how many sections the columns of the result are computed, and how many a section has.
    fn sections(&self) -> i64 {
        (self.width + MAX_COLUMNS - 1) / MAX_COLUMNS
    }

    pub(crate) fn columns(&self) -> i64 {
        let sections = self.sections();
        round_up_16((self.width + sections - 1) / sections)
    }

    /// Keys of a tile.
    pub(crate) fn tile(&self) -> i64 {
        if !self.fragments.turned() {
            let most = if self.is_long() { FEW_KEYS } else { KEYS };
            let sizes = [KEYS, FEW_KEYS].into_iter().filter(|tile| *tile <= most);
            return sizes
                .into_iter()
                .find(|tile| self.shared_with(2, *tile) <= self.lds)
                .unwrap_or(FEWEST_KEYS);
        }
        let short = self.fragments.wave == 32 || self.depth.max(self.width) > 128;
        if short { FEW_KEYS } else { KEYS }
    }

    /// Bytes of shared memory: queries, and two tiles each of keys and values; of waves a tile each, as queries stay in registers.
    fn shared(&self, warps: i64) -> i64 {
        if self.fragments.turned() {
            return flash_waves::shared(self);
        }
        self.shared_with(warps, self.tile())
    }

    fn shared_with(&self, warps: i64, tile: i64) -> i64 {
        let (d, w) = (round_up_16(self.depth) + PAD, self.columns() + PAD);
        2 * (warps * self.fragments.own * d + 2 * tile * (d + w))
    }

    /// Copies of rows, up to 16 bytes by each thread; what is not there is zeros. `rows`: where they go, what they are called, the end of
    /// all, the first, and their first element; `shape`: elements of a whole row, those that are copied, how many rows.
    fn copies(
        &self,
        source: &str,
        [name, row, limit, from, column]: [&str; 5],
        [elements, copied, count]: [i64; 3],
        warps: i64,
    ) -> String {
        let part = if column == "0" { "part".to_owned() } else { format!("{column} + part") };
        format!(
            "for (int t = threadIdx.x; t < {count} * {chunks}; t += {threads}) {{
const int line = t / {chunks}, part = t % {chunks} * {grain};
const idx {row} = {from} + line;
const bool there = {row} < {limit} && {part} < {elements};
const idx at_{row} = there ? {row} : 0;
const idx d = there ? {part} : 0;
cp_async_{bytes}({name} + line * {pitch} + part, &{source}, there ? {bytes} : 0);
}}
",
            grain = self.grain,
            bytes = 2 * self.grain,
            pitch = copied + PAD,
            chunks = copied / self.grain,
            threads = self.fragments.wave * warps,
        )
    }

    /// The words of warps: operands by `ldmatrix`, copies that run beside the computation.
    fn for_warps(&self, o: &Operands<'_>, warps: i64, uses: &mut Uses) -> Result<Words, GenError> {
        let (k, tile) = (self.k, self.tile());
        let (ty, block_rows) = (value_type(self.dtype)?, warps * self.fragments.own);
        let (depth, width) = (round_up_16(self.depth), self.columns());
        let (dp, wp, dk, nt, wt) = (depth + PAD, width + PAD, depth / 16, tile / 8, width / 8);
        let half = if self.dtype == DType::BF16 { "bf16" } else { "f16" };
        let query = o.element(&k.q, ["i0", "i1", "at_i2", "d"], uses);
        let load_q =
            self.copies(&query, ["sq", "i2", &o.rows, "row0", "0"], [self.depth, depth, block_rows], warps);
        let key = o.element(&k.k, ["i0", "kv", "at_j", "d"], uses);
        let value = o.element(&k.v, ["i0", "kv", "at_j", "d"], uses);
        let load_k = self.copies(&key, ["tk", "j", "limit", "from", "0"], [self.depth, depth, tile], warps);
        let column = self.first_column();
        let load_v =
            self.copies(&value, ["tv", "j", "limit", "from", column], [self.width, width, tile], warps);
        // A warp's queries: in registers, or read for each tile.
        let read = format!("sq + (warp * 16 + (lane & 15)) * {dp} + s * 16 + (lane >> 4) * 8");
        let (hold, each, q) = match self.is_long() {
            true => (String::new(), format!("u32 q[4];\nldmatrix_x4(q, {read});\n"), "q"),
            false => (
                format!(
                    "u32 q[{dk}][4];
#pragma unroll
for (int s = 0; s < {dk}; ++s) ldmatrix_x4(q[s], {read});
"
                ),
                String::new(),
                "q[s]",
            ),
        };
        Ok(Words {
            places: format!(
                "{ty} *sq = ({ty} *)memory, *sk = sq + {block_rows} * {dp}, *sv = sk + 2 * {tile} * {dp};\n"
            ),
            begin: format!(
                "{load_q}cp_async_commit();
{{ const idx from = 0; {ty} *tk = sk, *tv = sv;
{load_k}{load_v}cp_async_commit(); }}
cp_async_wait<1>();
block_sync();
{hold}"
            ),
            score: format!("float score[{nt}][4]"),
            out: format!("float out[{wt}][4] = {{}},"),
            prefetch: format!(
                "if (j0 + {tile} < limit) {{
const idx from = j0 + {tile}; {ty} *tk = sk + (turn + 1) % 2 * {tile} * {dp}, *tv = sv + (turn + 1) % 2 * {tile} * {wp};
{load_k}{load_v}}}
cp_async_commit();
cp_async_wait<1>();
block_sync();
const {ty} *tk = sk + turn % 2 * {tile} * {dp}, *tv = sv + turn % 2 * {tile} * {wp};
"
            ),
            scores: self.scores_text(&each, q),
            before_look: String::new(),
            behind_look: String::new(),
            shrink: format!(
                "#pragma unroll
for (int t = 0; t < {wt}; ++t) {{ out[t][2 * r] *= shrink; out[t][2 * r + 1] *= shrink; }}
"
            ),
            weight: "exp2f(score[n][e] - shift[e >> 1])".into(),
            products: format!(
                "#pragma unroll
for (int n = 0; n < {nt}; n += 2) {{
const u32 a[4] = {{ pack_{half}(score[n][0], score[n][1]), pack_{half}(score[n][2], score[n][3]),
pack_{half}(score[n + 1][0], score[n + 1][1]), pack_{half}(score[n + 1][2], score[n + 1][3]) }};
#pragma unroll
for (int t = 0; t < {wt}; t += 2) {{
u32 b[4];
ldmatrix_x4_trans(b, tv + (n * 8 + (lane & 15)) * {wp} + t * 8 + (lane >> 4) * 8);
const u32 b0[2] = {{b[0], b[1]}}, b1[2] = {{b[2], b[3]}};
mma_{half}(out[t], a, b0);
mma_{half}(out[t + 1], a, b1);
}}
}}
"
            ),
            turn_end: "block_sync();\n".into(),
            end: "cp_async_wait<0>();\nblock_sync();\n".into(),
            wide: 8,
        })
    }

    /// The scores of a warp's queries; `each` reads those of a step.
    fn scores_text(&self, each: &str, q: &str) -> String {
        let depth = round_up_16(self.depth);
        let (nt, dk) = (self.tile() / 8, depth / 16);
        let by_keys = format!("#pragma unroll\nfor (int n = 0; n < {nt}; n += 2)");
        let by_steps = format!("#pragma unroll\nfor (int s = 0; s < {dk}; ++s)");
        // What was read for a step is multiplied by all keys.
        let (outer, inner) = if each.is_empty() { (by_keys, by_steps) } else { (by_steps, by_keys) };
        format!(
            "{outer} {{
{each}{inner} {{
u32 b[4];
ldmatrix_x4(b, tk + (n * 8 + (lane & 7) + (lane >> 4) * 8) * {dp} + s * 16 + (lane >> 3 & 1) * 8);
const u32 b0[2] = {{b[0], b[1]}}, b1[2] = {{b[2], b[3]}};
mma_{half}(score[n], {q}, b0);
mma_{half}(score[n + 1], {q}, b1);
}}
}}
",
            dp = depth + PAD,
            half = if self.dtype == DType::BF16 { "bf16" } else { "f16" },
        )
    }

    /// The first column of the block's section, as text.
    fn first_column(&self) -> &'static str {
        if self.sections() == 1 { "0" } else { "column0" }
    }

    fn generate(&self, warps: i64) -> Result<Variant, GenError> {
        let (program, k, f, tile) = (self.program, self.k, &self.fragments, self.tile());
        let mut uses = Uses::default();
        let o = Operands::of(program, k, &mut uses);
        let block_rows = warps * f.own;
        let tiles = k.q.sizes[2].ceil_div(&SymExpr::from_i64(block_rows));
        let sections = self.sections();
        let count = volume(&k.q.sizes[..2]) * &tiles * SymExpr::from_i64(sections);
        let (tiles, all) = (o.text(&tiles, &mut uses), o.text(&count, &mut uses));
        let tail = epilogue(program, &k.epilogue, "result", &mut uses)?;
        let mask = o.mask_of("sc", &mut uses)?;
        let sums = match o.sums("most[r] * 0.6931471805599453f", "total[r]", &mut uses) {
            none if none.is_empty() => none,
            sums => format!(
                "if ({first_of_row}{first_section} && first + r * 8 < {}) {{\nconst idx i2 = first + r * 8;\n{sums}}}\n",
                o.rows,
                first_section = if sections == 1 { "" } else { " && column0 == 0" },
                first_of_row = if f.turned() { "lane == line4" } else { "pair == 0" },
            ),
        };
        let words = match f.turned() {
            true => flash_waves::words(self, &o, warps, &mut uses)?,
            false => self.for_warps(&o, warps, &mut uses)?,
        };
        let kept = match o.is_kept(&mut uses) {
            Some(kept) => format!(
                "const idx i2 = first + {}, j = j0 + n * {} + {};
score[n][e] = i2 < {} && j < limit && {kept} ? w : 0.0f;
",
                f.own_row, f.far, f.far_row, o.rows
            ),
            None => "score[n][e] = w;\n".into(),
        };
        let kept_factor = o.by_kept_factor()?;
        let limit =
            if k.causal { format!("imin<idx>({}, row0 + {block_rows})", o.keys) } else { o.keys.clone() };
        let causal = if k.causal { "seen = seen && j <= i2;\n" } else { "" };
        let (of, section) = match sections {
            1 => ("block".to_owned(), String::new()),
            n => {
                (format!("(block / {n})"), format!("const idx column0 = block % {n} * {};\n", self.columns()))
            }
        };
        let from_column = if sections == 1 { "" } else { "column0 + " };
        let body = format!(
            "DYNAMIC_SHARED(memory);
{places}{lanes}
for (idx block = blockIdx.x; block < {all}; block += gridDim.x) {{
const idx row0 = {of} % {tiles} * {block_rows}, i1 = {of} / {tiles} % {heads}, i0 = {of} / {tiles} / {heads};
{section}const idx kv = i1 / {group};
const idx limit = {limit};
{begin}{out} most[{slots}] = {{{lowest}}}, total[{slots}] = {{{nothing}}};
const idx first = row0 + warp * {own} + line4;
int turn = 0;
for (idx j0 = 0; j0 < limit; j0 += {tile}, ++turn) {{
{prefetch}{score} = {{}};
{scores}float top[{slots}] = {{{lowest}}};
{before_look}#pragma unroll
for (int n = 0; n < {nt}; ++n)
#pragma unroll
for (int e = 0; e < {parts}; ++e) {{
const idx i2 = first + {own_row}, j = j0 + n * {far} + {far_row};
bool seen = j < limit;
{causal}float sc = score[n][e] * {scale};
if (seen && i2 < {rows}) {{
{mask}}}
sc = seen ? sc * 1.4426950408889634f : -INF32;
score[n][e] = sc;
top[{slot}] = fmaxf(top[{slot}], sc);
}}
{behind_look}float shift[{slots}];
#pragma unroll
for (int r = 0; r < {slots}; ++r) {{
{tops}top[r] = fmaxf(top[r], most[r]);
shift[r] = top[r] == -INF32 ? 0.0f : top[r];
const float shrink = exp2f(most[r] - shift[r]);
total[r] *= shrink;
{shrink}most[r] = top[r];
}}
#pragma unroll
for (int n = 0; n < {nt}; ++n)
#pragma unroll
for (int e = 0; e < {parts}; ++e) {{
const float w = {weight};
total[{slot}] += w;
{kept}}}
{products}{turn_end}}}
#pragma unroll
for (int r = 0; r < {slots}; ++r) {{
{totals}{sums}}}
#pragma unroll
for (int t = 0; t < {wt}; ++t)
#pragma unroll
for (int e = 0; e < {parts}; ++e) {{
const idx i2 = first + {own_row}, i3 = {from_column}t * {wide} + {far_row};
if (i2 < {rows} && i3 < {width_}) {{
const {result} result = to<{result}>(total[{slot}] == 0 ? 0.0f : out[t][e] / total[{slot}]{kept_factor});
{tail}}}
}}
{end}}}
",
            heads = o.heads,
            group = o.group,
            rows = o.rows,
            scale = o.scale,
            lanes = f.lanes,
            places = words.places,
            begin = words.begin,
            out = words.out,
            slots = f.slots,
            lowest = f.each("-INF32"),
            nothing = f.each("0"),
            own = f.own,
            prefetch = words.prefetch,
            score = words.score,
            scores = words.scores,
            before_look = words.before_look,
            behind_look = words.behind_look,
            nt = tile / f.far,
            parts = f.parts,
            own_row = f.own_row,
            far = f.far,
            far_row = f.far_row,
            slot = f.slot,
            tops = f.combine(|by| format!("top[r] = fmaxf(top[r], shuffle_xor(top[r], {by}));\n")),
            totals = f.combine(|by| format!("total[r] += shuffle_xor(total[r], {by});\n")),
            shrink = words.shrink,
            weight = words.weight,
            products = words.products,
            turn_end = words.turn_end,
            end = words.end,
            wide = words.wide,
            wt = (self.columns() + words.wide - 1) / words.wide,
            width_ = self.width,
            result = value_type(k.acc)?,
        );
        let most = SymExpr::from_i64(crate::MAX_BLOCKS);
        let threads = f.wave * warps;
        let mut launch = Launch::flat(count.sym_min(&most), threads as u32);
        launch.shared = self.shared(warps) as u32;
        let name = format!("flash_{block_rows}x{tile}");
        let mut kernel = assemble(program, ENTRY, &uses, launch, &body)?;
        if f.turned() {
            flash_waves::two_waves(&mut kernel, f.wave, warps >= 4 && self.depth.max(self.width) <= 64);
        }
        Ok(Variant::single(name, kernel))
    }
}
