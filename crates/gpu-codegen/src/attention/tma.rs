//! Attention of 16-bit numbers by the tensor memory accelerator and `wgmma` (`dialect/common/flash.cu`): what the forward
//! and backward kernels share, and the forward kernels. `backward_tma` has the backward ones.
//!
//! The softmax is that of `flash`. Rows longer than [`MAX_WIDTH`] are computed in sections (`tma_sections`). Not here: operands
//! that TMA cannot read, which are left to `flash`.

use std::collections::BTreeMap;

use ir_core::{DType, SymExpr};
use kernel_ir::{Attention, Operand, Program};

use crate::attention::Operands;
use crate::attention::backward::{Side, is_half};
use crate::attention::masks;
use crate::attention::scores::{ScoreTransform, Scores};
use crate::attention::tma_sections::{self, HALF, Sections};
use crate::product::tma::{GRAIN, countable};
use crate::text::body::Uses;
use crate::text::lanes::{self, Lanes};
use crate::text::template::{assemble, volume};
use crate::text::types::value_type;
use crate::{ENTRY, GenError, Kernel, Launch, MAX_BLOCKS, Target, TensorMap, Variant};

/// The widest rows: 64 results of this width take half of a warpgroup's registers.
pub(crate) const MAX_WIDTH: i64 = 128;
/// Elements of a panel's line (128 bytes).
pub(crate) const LINE: u32 = 64;
/// Rows that a warpgroup computes.
const WARPGROUP_ROWS: i64 = 64;
/// Threads per warpgroup.
const WARPGROUP: i64 = 128;
/// Minimum number of query rows. With fewer, most of a tile would be empty, and the kernels by warps are better.
const MIN_ROWS: i64 = 64;

/// The tile shape of a kernel: rows of a block, rows of a streamed tile, stages of the ring buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TileShape {
    pub(crate) own: i64,
    pub(crate) far: i64,
    pub(crate) stages: i64,
}

impl TileShape {
    pub(crate) fn consumers(&self) -> i64 {
        self.own / WARPGROUP_ROWS
    }

    /// Bytes of shared memory: the block's own tiles, the ring, `numbers` floats per stage, and the barriers of the
    /// stages.
    pub(crate) fn shared(&self, own: i64, stage: i64, numbers: i64) -> i64 {
        own + self.stages * (stage + 4 * numbers) + 8 * (2 + 2 * self.stages)
    }
}

/// Elements of a row in shared memory, with padding.
pub(crate) fn padded(elements: i64) -> i64 {
    (elements + i64::from(LINE) - 1) / i64::from(LINE) * i64::from(LINE)
}

/// What the forward and backward kernels know of their operands.
pub(crate) struct TmaAttention<'a> {
    pub(crate) program: &'a Program,
    pub(crate) dtype: DType,
    /// Elements of a query or key row (`depth`) and of a value row (`width`).
    pub(crate) depth: i64,
    pub(crate) width: i64,
}

impl<'a> TmaAttention<'a> {
    /// Returns `None` where the device has no TMA, an operand does not suit it or a row is longer than `most`.
    pub(crate) fn of(
        program: &'a Program,
        a: &Attention,
        (others, most): (&[&Operand], i64),
        target: &Target,
    ) -> Option<TmaAttention<'a>> {
        let dtype = program.buffers[a.q.buf].dtype;
        let narrow = |e: &SymExpr| e.as_const().filter(|n| n % 8 == 0 && (8..=most).contains(n));
        let (depth, width) = (narrow(&a.q.sizes[3])?, narrow(&a.v.sizes[3])?);
        let rows = a.q.sizes[2].as_const().is_none_or(|n| n >= MIN_ROWS);
        let read = || [&a.q, &a.k, &a.v].into_iter().chain(others.iter().copied());
        let fits = target.wgmma()
            && rows
            && is_half(dtype)
            && a.acc.compute() == DType::F32
            && read().all(|o| program.buffers[o.buf].dtype == dtype && map(program, o, 64).is_some());
        fits.then_some(TmaAttention { program, dtype, depth, width })
    }

    pub(crate) fn ty(&self) -> Result<&'static str, GenError> {
        value_type(self.dtype)
    }

    /// Bytes of a row of queries or keys, and of a row of values.
    pub(crate) fn bytes(&self) -> [i64; 2] {
        [2 * padded(self.depth), 2 * padded(self.width)]
    }
}

/// The tensor map of an operand `[b, h, l, d]` in boxes of `rows` rows; `None` where TMA cannot read it.
fn map(program: &Program, operand: &Operand, rows: i64) -> Option<TensorMap> {
    let dtype = program.buffers[operand.buf].dtype;
    let grain = GRAIN / dtype.size().max(1) as i64;
    let positive = |e: &SymExpr| e.range(&program.bounds()).0.is_some_and(|n| n >= 1);
    let lies = crate::product::gemv::aligned(operand, 3, grain)
        && operand.sizes.iter().all(|e| countable(program, e))
        && (operand.sizes[2] == SymExpr::ONE || positive(&operand.strides[2]));
    if !lies {
        return None;
    }
    // The stride of a single row is arbitrary; this one is valid for the driver.
    let row_step = match operand.sizes[2] == SymExpr::ONE {
        true => operand.sizes[3].ceil_div(&SymExpr::from_i64(grain)) * SymExpr::from_i64(grain),
        false => operand.strides[2].clone(),
    };
    let mut map = TensorMap {
        buf: program.root(operand.buf),
        dtype,
        offset: operand.offset.clone(),
        sizes: vec![operand.sizes[3].clone(), operand.sizes[2].clone()],
        strides: vec![row_step],
        window: vec![LINE, rows as u32],
    };
    for d in moving(operand) {
        if !positive(&operand.strides[d]) {
            return None;
        }
        map.sizes.push(operand.sizes[d].clone());
        map.strides.push(operand.strides[d].clone());
        map.window.push(1);
    }
    Some(map)
}

/// The head and batch dimensions along which an operand's address changes, the inner one first.
fn moving(operand: &Operand) -> impl Iterator<Item = usize> {
    [1, 0].into_iter().filter(|d| operand.sizes[*d] != SymExpr::ONE && operand.strides[*d] != SymExpr::ZERO)
}

/// Returns a function that copies a box by TMA. `given` are its parameters after the element, `row` and `head` are texts.
pub(crate) fn load(
    program: &Program,
    (operand, rows): (&Operand, i64),
    (given, row, head): (&str, &str, &str),
    uses: &mut Uses,
) -> Result<String, GenError> {
    let map = map(program, operand, rows)
        .ok_or_else(|| GenError::Malformed("TMA cannot read an operand".into()))?;
    let number = uses.maps.len();
    uses.maps.push(map);
    let mut at = format!("element, (int)({row})");
    for d in moving(operand) {
        at += if d == 1 { ", (int)" } else { ", (int)i0" };
        at += if d == 1 { head } else { "" };
    }
    Ok(format!(
        "[&](u8 *to, u64 *bar, int element{given}) {{ tma_load<1>(to, map{number}, bar, {{{at}}}); }}"
    ))
}

/// The order of tiles over the blocks. Heads whose streamed side fits half of the cache are computed concurrently; with a
/// causal mask their longest tiles come first.
pub(crate) struct BlockOrder {
    /// Numbers of tiles and of heads on the block's own side, as text.
    pub(crate) tiles: String,
    pub(crate) heads: String,
    /// Number of heads in the whole batch.
    pub(crate) all_heads: String,
    /// Heads that are computed concurrently.
    pub(crate) concurrent_heads: i64,
    pub(crate) last_first: bool,
    pub(crate) own: i64,
    /// Blocks that share the rows of a tile, with a `section` each of the columns of the result.
    pub(crate) sections: i64,
}

impl BlockOrder {
    /// Number of heads to compute concurrently, each of `bytes` bytes.
    pub(crate) fn concurrent_heads(target: &Target, bytes: i64) -> i64 {
        ((target.cache / 2) as i64 / bytes.max(1)).max(1)
    }

    pub(crate) fn text(&self) -> String {
        let (tiles, number, section) = match self.sections {
            1 => (self.tiles.clone(), "rest / these".to_owned(), String::new()),
            n => (
                format!("({}) * {n}", self.tiles),
                format!("rest / these / {n}"),
                format!("const int section = (int)(rest / these % {n});\n"),
            ),
        };
        let tile = if self.last_first { format!("{} - 1 - {number}", self.tiles) } else { number };
        format!(
            "for (idx block = blockIdx.x; block < ({tiles}) * ({all}); block += gridDim.x) {{
const idx run = block / (({tiles}) * {concurrent_heads}) * {concurrent_heads}, these = imin<idx>({concurrent_heads}, {all} - run), rest = block - run * ({tiles});
const idx head = run + rest % these, i0 = head / {heads}, row0 = ({tile}) * {own};
{section}",
            all = self.all_heads,
            concurrent_heads = self.concurrent_heads,
            heads = self.heads,
            own = self.own,
        )
    }
}

/// The number of iterations of the forward kernel and the first rows of the tiles of keys and of values of each, given the
/// number of `tiles`: all of them, or by the mask's table those in which it shows some score, and one at least.
/// Keys and values are loaded by one thread at different times, so each has a position of its own. A warpgroup looks at the scores of
/// keys from `from` of a tile.
fn turns_text(shown: Option<&str>, TileShape { far, .. }: TileShape, from: &str) -> String {
    match shown {
        None => format!(
            "const int turns = tiles;
auto far_row = [&](int turn) {{ return (idx)turn * {far}{from}; }};
auto value_row = far_row;
"
        ),
        Some(text) => format!(
            "{text}const int shown = key_tiles.count(), turns = shown > 0 ? shown : 1;
auto far_row = [&](int turn) {{ return (idx)key_tiles.at(turn) * {far}{from}; }};
auto value_row = [&](int turn) {{ return (idx)value_tiles.at(turn) * {far}; }};
"
        ),
    }
}

/// A kernel with one producer warpgroup, which loads tiles, and consumer warpgroups, which multiply. `head` declares the
/// barriers; `bring` and `multiply` are the producer's and the consumers' code for a block.
pub(crate) fn kernel(
    program: &Program,
    (consumers, shared): (i64, i64),
    (count, uses): (&SymExpr, &Uses),
    [head, bring, multiply]: [&str; 3],
) -> Result<Kernel, GenError> {
    // Registers per thread of producer and consumers, and blocks per multiprocessor: together they use all 65,536
    // registers.
    let (down, up, blocks) = match consumers {
        1 => (24, 232, 2),
        _ => (24, 240, 1),
    };
    let body = format!(
        "DYNAMIC_TILES(memory);
{head}if (warpgroup() == {consumers}) {{
registers_down<{down}>();
{bring}}} else {{
registers_up<{up}>();
const int warp = threadIdx.x >> 5, line4 = (threadIdx.x & 31) >> 2, pair = threadIdx.x & 3;
{multiply}}}
"
    );
    let threads = (consumers + 1) * WARPGROUP;
    let mut launch = Launch::flat(count.sym_min(&SymExpr::from_i64(MAX_BLOCKS)), threads as u32);
    launch.shared = shared as u32;
    let mut kernel = assemble(program, ENTRY, uses, launch, &body)?;
    kernel.source = kernel.source.replacen(
        &format!("__launch_bounds__({threads})"),
        &format!("__launch_bounds__({threads}, {blocks})"),
        1,
    );
    Ok(kernel)
}

/// Returns the candidates, best first by rule; none where the device has no TMA, an operand does not suit it or rows are long.
pub(crate) fn variants(program: &Program, k: &Attention, target: &Target) -> Result<Vec<Variant>, GenError> {
    let Some(forward) = Forward::of(program, k, MAX_WIDTH, target) else { return Ok(Vec::new()) };
    let cuts = if forward.tma.depth.max(forward.tma.width) > 64 { LONG } else { SHORT };
    let fits = |shape: &&TileShape| forward.shared(**shape) <= i64::from(target.lds);
    // A mask's border is narrower in tiles of one block of keys.
    let narrow: &[TileShape] = match k.visibility.as_ref().is_some_and(|v| v.rows.is_some()) {
        true if cuts == SHORT => &[TileShape { own: 64, far: 64, stages: 4 }],
        _ => &[],
    };
    cuts.iter().chain(narrow).filter(fits).map(|shape| forward.variant(*shape, None)).collect()
}

/// The same for rows longer than [`MAX_WIDTH`].
pub(crate) fn of_sections(
    program: &Program,
    k: &Attention,
    target: &Target,
) -> Result<Vec<Variant>, GenError> {
    let forward = Forward::of(program, k, tma_sections::MAX_WIDTH, target);
    let Some(forward) = forward.filter(|f| f.tma.depth.max(f.tma.width) > MAX_WIDTH) else {
        return Ok(Vec::new());
    };
    let all = Sections::choices(&forward.tma, k, target).into_iter();
    all.map(|sections| forward.variant(sections.shape(), Some(sections))).collect()
}

/// Tile shapes for rows of at most 64 elements, in the order of the times measured on an H200.
const SHORT: &[TileShape] =
    &[TileShape { own: 64, far: 128, stages: 4 }, TileShape { own: 128, far: 128, stages: 4 }];
/// Tile shapes for longer rows.
const LONG: &[TileShape] =
    &[TileShape { own: 128, far: 128, stages: 4 }, TileShape { own: 64, far: 64, stages: 4 }];

struct Forward<'a> {
    tma: TmaAttention<'a>,
    k: &'a Attention,
    target: &'a Target,
}

impl<'a> Forward<'a> {
    fn of(program: &'a Program, k: &'a Attention, most: i64, target: &'a Target) -> Option<Forward<'a>> {
        let tma = TmaAttention::of(program, k, (&[], most), target)?;
        (k.epilogue.ranges.len() == 4).then_some(Forward { tma, k, target })
    }

    fn shared(&self, shape: TileShape) -> i64 {
        let [query, value] = self.tma.bytes();
        shape.shared(shape.own * query, shape.far * query.max(value), 0)
    }

    fn variant(&self, shape: TileShape, sections: Option<Sections>) -> Result<Variant, GenError> {
        let name = match sections {
            None => format!("wgmma_{}x{}_{}", shape.own, shape.far, shape.stages),
            Some(sections) => sections.name(),
        };
        Ok(Variant::single(name, self.generate(shape, sections)?))
    }

    /// Returns the number of blocks, and the loop over them: its own rows and head, the number of iterations, and the first rows of the
    /// tiles of each; the consumers look at keys from a position of a tile, given as text.
    fn place(
        &self,
        o: &Operands<'_>,
        shape: TileShape,
        sections: Option<Sections>,
        uses: &mut Uses,
    ) -> (SymExpr, impl Fn(&str) -> String + use<>) {
        let (k, TileShape { own, far, .. }) = (self.k, shape);
        let tiles = k.q.sizes[2].ceil_div(&SymExpr::from_i64(own));
        let all_heads = volume(&k.q.sizes[..2]);
        let blocks_of_tile = sections.map_or(1, |s| s.count);
        let count = &all_heads * &tiles * SymExpr::from_i64(blocks_of_tile);
        let far_bytes = k.k.sizes[2].as_const().unwrap_or(4096) * self.tma.bytes().iter().sum::<i64>();
        let rows = k.visibility.as_ref().and_then(|v| v.rows.as_ref());
        let order = BlockOrder {
            tiles: o.text(&tiles, uses),
            heads: o.heads.clone(),
            all_heads: o.text(&all_heads, uses),
            concurrent_heads: BlockOrder::concurrent_heads(self.target, far_bytes),
            last_first: k.causal || rows.is_some(),
            own,
            sections: blocks_of_tile,
        };
        let limit = if k.causal { format!("imin<idx>({}, row0 + {own})", o.keys) } else { o.keys.clone() };
        let shown = rows.map(|table| {
            let head = format!("head % {}", o.heads);
            let shown = masks::Shown { table, own, far, lines: "1", head: &head, first: "0", end: "limit" };
            shown.text(o, &["key_tiles", "value_tiles"], uses)
        });
        let heads = o.heads.clone();
        let place = move |from: &str| {
            format!(
                "{}const idx i1 = head % {heads}, limit = {limit};\nconst int tiles = (int)((limit + {far} - 1) / {far});\n{}",
                order.text(),
                turns_text(shown.as_deref(), shape, from),
            )
        };
        (count, place)
    }

    fn generate(&self, shape: TileShape, sections: Option<Sections>) -> Result<Kernel, GenError> {
        let (program, k, TileShape { own, far, stages }) = (self.tma.program, self.k, shape);
        let mut uses = Uses::default();
        let o = Operands::of(program, k, &mut uses);
        let (count, place) = self.place(&o, shape, sections, &mut uses);
        let keys = format!("i1 / {}", o.group);
        let load_q = load(program, (&k.q, own), ("", "row0", "i1"), &mut uses)?;
        let load_k = load(program, (&k.k, far), (", int turn", "far_row(turn)", &keys), &mut uses)?;
        let load_v = load(program, (&k.v, far), (", int turn", "value_row(turn)", &keys), &mut uses)?;
        let (ty, depth, width) = (self.tma.ty()?, self.tma.depth, self.tma.width);
        let (form, consumers, shared) = match sections {
            None => (
                format!("FlashForward<{ty}, {own}, {far}, {depth}, {width}, {stages}>"),
                shape.consumers(),
                self.shared(shape),
            ),
            Some(s) => (
                format!("FlashSections<{ty}, {depth}, {}, {stages}>", s.panels),
                tma_sections::CONSUMERS,
                s.shared(depth),
            ),
        };
        let head = format!("typedef {form} Flash;\nFlash flash(memory);\n");
        let column = sections.map_or(String::new(), |s| format!("{}, ", s.first_column()));
        let bring = format!(
            "if (threadIdx.x == {threads}) {{\nconst int warp = 0;\n(void)warp;\n{}flash.bring(turns, {column}{load_q},\n{load_k},\n{load_v});\n}}\n}}\n",
            place(""),
            threads = consumers * WARPGROUP
        );
        let tile = match sections {
            None => [far, far],
            Some(_) => [HALF, HALF * tma_sections::CONSUMERS],
        };
        let score_transform = self.score_transform(&o, tile, &mut uses)?;
        let finish = self.finish(&o, sections, &mut uses)?;
        // The kernels of sections know no dropout.
        let (drop, dropping) = match sections {
            None => (o.kept_of_tile(Side::Queries, far, &mut uses), ", kept_words, kept"),
            Some(_) => (String::new(), ""),
        };
        let turns = format!(
            "const idx first = row0 + warp * 16 + line4;
{drop}flash.turns(turns, {factor}, {score_transform}{dropping});
{finish}}}
",
            factor = score_transform.factor,
            score_transform = score_transform.text,
        );
        let multiply = match sections {
            None => place("") + &turns,
            // Both warpgroups have the same rows.
            Some(_) => format!(
                "const int half = warp / 4;\n{{\nconst int warp = threadIdx.x >> 5 & 3;\n{}{turns}}}\n",
                place(&format!(" + half * {HALF}"))
            ),
        };
        kernel(program, (consumers, shared), (&count, &uses), [&head, &bring, &multiply])
    }

    fn score_transform(
        &self,
        o: &Operands<'_>,
        [far, tile]: [i64; 2],
        uses: &mut Uses,
    ) -> Result<ScoreTransform, GenError> {
        let keys = &o.keys;
        let (mut whole, mut seen) = (format!("from + {far} <= {keys}"), format!("j < {keys}"));
        if self.k.causal {
            whole += &format!(" && from + {far} <= row0 + warp / 4 * {WARPGROUP_ROWS} + 1");
            seen += " && j <= i2";
        }
        let noted = self.k.visibility.as_ref().and_then(|v| v.rows.as_ref());
        let unchanged = noted.map(|_| "key_tiles.is_whole()".to_owned());
        let scores = Scores { side: Side::Queries, far, tile, whole, seen, unchanged };
        scores.transform(o, uses)
    }

    /// Returns statements that store the sums and run the epilogue on the results.
    fn finish(
        &self,
        o: &Operands<'_>,
        sections: Option<Sections>,
        uses: &mut Uses,
    ) -> Result<String, GenError> {
        let (program, epilogue) = (self.tma.program, &self.k.epilogue);
        // A thread holds pairs of adjacent columns.
        let vectors = Lanes { program, epilogue, var: 3, count: 2 }.vectors();
        let tail = lanes::text(program, epilogue, (Some(3), 2), (&vectors, &BTreeMap::new()), uses)?;
        let (groups, from, inside, noted) = match sections {
            None => (self.tma.width / 8, String::new(), String::new(), String::new()),
            Some(s) => (
                s.panels * 8,
                format!("{} + half * {} + ", s.first_column(), s.panels * i64::from(LINE)),
                format!(" && lane0_3 < {}", self.tma.width),
                s.is_first_text().to_owned(),
            ),
        };
        let sums = match o.sums("flash.most[r] * 0.6931471805599453f", "flash.total[r]", uses) {
            none if none.is_empty() => none,
            sums => format!(
                "if (pair == 0{noted} && first + r * 8 < {}) {{\nconst idx i2 = first + r * 8;\n{sums}}}\n",
                o.rows
            ),
        };
        Ok(format!(
            "constexpr int LANES = 2;
float share[2];
#pragma unroll
for (int r = 0; r < 2; ++r) {{
share[r] = flash.total[r] == 0 ? 0.0f : 1.0f / flash.total[r]{factor};
{sums}}}
#pragma unroll
for (int n = 0; n < {groups}; ++n)
#pragma unroll
for (int r = 0; r < 2; ++r) {{
const idx i2 = first + r * 8, lane0_3 = {from}n * 8 + pair * 2;
if (i2 < {rows}{inside}) {{
const float sum[LANES] = {{flash.result(4 * n + 2 * r) * share[r], flash.result(4 * n + 2 * r + 1) * share[r]}};
{tail}}}
}}
",
            rows = o.rows,
            factor = o.by_kept_factor()?,
        ))
    }
}
