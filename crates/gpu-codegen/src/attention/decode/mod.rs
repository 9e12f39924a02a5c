//! Attention of a few query rows over many keys, as in decoding. It is bound by the bandwidth of reading keys and values,
//! so the keys are split over blocks, warps and groups of lanes, each with a running softmax of its own (split-KV). The
//! last block of a key head combines the parts in a fixed order; where there are too many heads to count the blocks of
//! each, a second kernel does. Query heads that share a key head are computed at once: of 16-bit numbers by matrix cores
//! (`cores`), of others by lanes (`lanes`). Keys that a mask hides from all rows are not read, where that is known early enough.
//!
//! Not here: many query rows (`flash`).

mod cores;
mod lanes;

use ir_core::{Atom, DType, SymExpr};
use kernel_ir::{Attention, Inst, InstKind, Operand, Program};

use self::cores::Cores;
use self::lanes::Lanes;
use crate::attention::Operands;
use crate::text::body::Uses;
use crate::text::template::{assemble, blocks_of, epilogue, unravel, volume};
use crate::text::types::value_type;
use crate::{ENTRY, GenError, Kernel, Launch, TICKETS, Target, Variant};

/// Query rows of a head from which on the kernels of many rows come first, where keys are fewer than these.
const MANY_ROWS: i64 = 9;
const FEWEST_KEYS: i64 = 256;
/// Query rows of a head from which on the kernels of many rows come first, where their blocks are as many as the device's
/// multiprocessors: rows of these blocks.
const FULL_ROWS: i64 = 32;
const ROWS_OF_BLOCK: i64 = 64;
/// Warps per block.
const WARPS: i64 = 4;
/// Most parts of a row, the fewest keys of one, and the most parts that are read at once: to combine parts takes longer than reading
/// fewer keys in each saves.
const MAX_PARTS: i64 = 32;
const KEYS_OF_PART: i64 = 128;
const MAX_GROUP: i64 = 16;
/// Numbers of a part of a row before its values: its maximum and its sum.
const HEAD: i64 = 4;
/// Values that a thread reads at once.
const PIECE: i64 = 4;

/// Returns the candidates; none where there are many rows or operands cannot be read 16 bytes at once.
pub(crate) fn variants(program: &Program, k: &Attention, target: &Target) -> Result<Vec<Variant>, GenError> {
    let Some(shape) = Decode::of(program, k, target) else { return Ok(Vec::new()) };
    let mut all = Vec::new();
    // By lanes each row costs instructions of its own; with a single row too they take a little longer.
    let forms = [Cores::of(&shape).map(Form::Cores), Lanes::of(&shape).map(Form::Lanes)];
    for form in forms.iter().flatten() {
        let parts = shape.most_parts(form);
        all.push(shape.variant(form, parts)?);
        if parts > 1 {
            all.push(shape.variant(form, parts / 2)?);
        }
    }
    Ok(all)
}

/// Whether the kernels of many rows come first: there are so many queries, and so few keys, that the keys would not occupy a block here,
/// or so many queries that those kernels occupy the device.
pub(crate) fn is_short(k: &Attention, target: &Target) -> bool {
    let known = |o: &Operand| o.sizes[2].as_const();
    let Some(rows) = known(&k.q) else { return false };
    let heads = volume(&k.q.sizes[..2]).as_const().unwrap_or(i64::from(target.multiprocessors));
    let blocks = heads * ((rows + ROWS_OF_BLOCK - 1) / ROWS_OF_BLOCK);
    let occupies = rows >= FULL_ROWS && blocks >= i64::from(target.multiprocessors);
    occupies || rows >= MANY_ROWS && known(&k.k).is_some_and(|n| n < FEWEST_KEYS)
}

/// The rows of a key head in groups: a block computes those of one.
#[derive(Clone, Copy)]
struct RowGroups {
    /// Rows of all groups, and of one, of which the last may have fewer.
    all: i64,
    each: i64,
}

impl RowGroups {
    fn count(self) -> i64 {
        (self.all + self.each - 1) / self.each
    }

    /// Statements that find the block's head and group.
    fn of_block(self, kv_heads: &str) -> String {
        match self.count() {
            1 => format!("const idx kv = block % {kv_heads}, i0 = block / {kv_heads};\n"),
            n => format!(
                "const idx kv = block / {n} % {kv_heads}, i0 = block / {n} / {kv_heads};
const int first_row = (int)(block % {n}) * {};\n",
                self.each
            ),
        }
    }

    /// The number of row `r` of the block's group.
    fn row(self) -> &'static str {
        if self.count() == 1 { "r" } else { "(first_row + r)" }
    }

    /// Whether row `r` of the block's group is there, where `r` is below [`each`](Self::each).
    fn has_row(self) -> String {
        if self.all % self.each == 0 { "true".into() } else { format!("{} < {}", self.row(), self.all) }
    }
}

/// Ways of computing a part.
enum Form<'a, 'd> {
    Cores(Cores<'a, 'd>),
    Lanes(Lanes<'a, 'd>),
}

impl Form<'_, '_> {
    /// Keys of which a block has the loads in flight.
    fn turn(&self) -> i64 {
        match self {
            Form::Cores(cores) => cores.turn(),
            Form::Lanes(lanes) => lanes.turn(),
        }
    }

    /// The rows of a block.
    fn groups(&self) -> RowGroups {
        match self {
            Form::Cores(cores) => cores.groups(),
            Form::Lanes(lanes) => lanes.groups(),
        }
    }

    /// Blocks for a multiprocessor: by matrix cores as many as its registers hold, so that all start at once.
    fn blocks(&self) -> i64 {
        match self {
            Form::Cores(cores) => cores.blocks(),
            Form::Lanes(_) => 4,
        }
    }
}

struct Decode<'a> {
    program: &'a Program,
    k: &'a Attention,
    target: &'a Target,
    /// The dtype of keys and values.
    dtype: DType,
    /// Elements of a key, and of a value.
    depth: i64,
    width: i64,
    /// Query heads per key head, and query rows.
    shared: i64,
    lq: i64,
}

impl<'a> Decode<'a> {
    fn of(program: &'a Program, k: &'a Attention, target: &'a Target) -> Option<Decode<'a>> {
        let dtype = program.buffers[k.k.buf].dtype;
        let known = matches!(dtype, DType::BF16 | DType::F16 | DType::F32);
        let same = program.buffers[k.v.buf].dtype == dtype;
        if !known || !same || k.acc.compute() != DType::F32 || k.epilogue.ranges.len() != 4 {
            return None;
        }
        let (depth, width) = (k.q.sizes[3].as_const()?, k.v.sizes[3].as_const()?);
        let shared = k.q.sizes[1].as_const()?.checked_div(k.k.sizes[1].as_const()?)?;
        let lq = k.q.sizes[2].as_const()?;
        let some = [depth, width, shared, lq].iter().all(|n| *n > 0);
        some.then_some(Decode { program, k, target, dtype, depth, width, shared, lq })
    }

    /// Threads of a block.
    fn threads(&self) -> i64 {
        self.target.lanes() * WARPS
    }

    /// Rows of a key head.
    fn rows(&self) -> i64 {
        self.lq * self.shared
    }

    /// Whether keys and values are whole vectors of `lanes` elements.
    fn is_whole(&self, lanes: i64) -> bool {
        let vectors = [&self.k.k, &self.k.v].iter().all(|o| crate::product::gemv::aligned(o, 3, lanes));
        vectors && self.depth % lanes == 0 && self.width % lanes == 0
    }

    /// As many parts as fill the GPU, where each still has keys for a turn.
    fn most_parts(&self, form: &Form<'_, '_>) -> i64 {
        let heads = volume(&self.k.k.sizes[..2]).as_const().unwrap_or(32) * form.groups().count();
        let keys = self.k.k.sizes[2].as_const().unwrap_or(2048);
        let most = (keys / form.turn().max(KEYS_OF_PART)).clamp(1, MAX_PARTS);
        (form.blocks() * i64::from(self.target.multiprocessors) / heads.max(1)).clamp(1, most)
    }

    fn variant(&self, form: &Form<'_, '_>, parts: i64) -> Result<Variant, GenError> {
        let rows = volume(&self.k.epilogue.ranges[..3]);
        let record = SymExpr::from_i64(4 * parts * (self.width + HEAD));
        let scratch = if parts > 1 { vec![rows * record] } else { Vec::new() };
        let groups = form.groups().count();
        let blocks = volume(&self.k.k.sizes[..2]).as_const().map(|n| n * groups);
        let counted = blocks.is_some_and(|n| n <= i64::from(TICKETS));
        let (name, kernel) = match form {
            Form::Cores(cores) => (format!("decode_cores_{parts}"), cores.kernel(parts, counted)?),
            Form::Lanes(lanes) => (format!("decode_{parts}"), lanes.kernel(parts, counted)?),
        };
        let mut kernels = vec![kernel];
        if parts > 1 && !counted {
            kernels.push(self.combine_kernel(parts)?);
        }
        Ok(Variant { name, kernels, scratch })
    }

    /// Declares the memory of parts.
    fn begin(&self, parts: i64, uses: &mut Uses) {
        if parts > 1 {
            uses.scratch.push("float");
        }
    }

    /// The launch of the kernel that computes the parts.
    fn launch(&self, groups: RowGroups, parts: i64) -> Launch {
        let most = SymExpr::from_i64(crate::MAX_BLOCKS);
        let count = volume(&self.k.k.sizes[..2]) * groups.count();
        let mut launch = Launch::flat(count.sym_min(&most), self.target.wave * WARPS as u32);
        launch.blocks[1] = SymExpr::from_i64(parts);
        launch
    }

    /// Statements that clear `seen` where the mask hides the key `j` from row `i2` of head `i1`; `None` where the mask hides nothing, or
    /// loads something for each key.
    fn hides(&self, o: &Operands<'_>, uses: &mut Uses) -> Result<Option<String>, GenError> {
        let Some(visibility) = &self.k.visibility else { return Ok(None) };
        let by_key = |inst: &Inst| match &inst.kind {
            InstKind::Load { buf, index, .. } => {
                let moves = |leaf: &Atom| matches!(leaf, Atom::Loop(3) | Atom::Value(_));
                self.program.buffers[*buf].address(index).any_leaf(moves)
            }
            _ => false,
        };
        if o.function_dtype() != Some(DType::Bool) || visibility.function.iter().any(by_key) {
            return Ok(None);
        }
        o.mask_of("sc", uses).map(Some)
    }

    /// The end of the keys that some row sees but for the mask.
    fn limit(&self, o: &Operands<'_>) -> String {
        if self.k.causal { format!("imin<idx>({}, {})", o.keys, self.lq) } else { o.keys.clone() }
    }

    /// Statements behind the keys of a block's part, of which each team of warps has left the maxima, sums and values of its rows in shared
    /// memory, `wide` values a row. Where blocks are `counted`, the last block of a key head combines the parts.
    fn end(
        &self,
        o: &Operands<'_>,
        groups: RowGroups,
        [parts, teams, wide]: [i64; 3],
        counted: bool,
        uses: &mut Uses,
    ) -> Result<String, GenError> {
        let Decode { shared, lq, width, .. } = *self;
        let last = match counted {
            true if parts > 1 => self.combine_in_last_block(o, groups, parts, uses)?,
            _ => "block_sync();\n".into(),
        };
        let one = match parts {
            1 => format!(
                "const float most = top, total = weight;\nif (e < {width}) {{\nconst idx i3 = e;\n{}}}\n",
                self.finish(o, uses)?
            ),
            _ => format!(
                "const i64 row = ((i64)i0 * {heads} + i1) * {lq} + i2;
float *record = scratch0 + (row * {parts} + blockIdx.y) * {record};
if (e == 0) {{ record[0] = top; record[1] = weight; }}
if (e < {width}) record[{HEAD} + e] = sum;
",
                heads = o.heads,
                record = width + HEAD,
            ),
        };
        Ok(format!(
            "block_sync();
for (int t = threadIdx.x; t < {rows} * {wide}; t += {threads}) {{
const int r = t / {wide}, e = t % {wide};
if (!({there})) continue;
float top = shared_most[0][r];
for (int w = 1; w < {teams}; ++w) top = fmaxf(top, shared_most[w][r]);
const float shift = top == -INF32 ? 0.0f : top;
float sum = 0, weight = 0;
for (int w = 0; w < {teams}; ++w) {{
const float f = exp2f(shared_most[w][r] - shift);
sum += f * shared_out[w][r][e];
weight += f * shared_total[w][r];
}}
const idx i1 = kv * {shared} + {row} / {lq}, i2 = {row} % {lq};
{one}}}
{last}",
            rows = groups.each,
            there = groups.has_row(),
            row = groups.row(),
            threads = self.threads(),
        ))
    }

    /// Returns statements by which the last block of a group of rows combines their parts.
    fn combine_in_last_block(
        &self,
        o: &Operands<'_>,
        groups: RowGroups,
        parts: i64,
        uses: &mut Uses,
    ) -> Result<String, GenError> {
        uses.tickets = true;
        let combine = self.combine(o, parts, uses)?;
        Ok(format!(
            "if (!comes_last(tickets + block, {parts}, &seen)) continue;
for (int t = threadIdx.x; t < {rows} * {pieces}; t += {threads}) {{
const int r = t / {pieces};
if (!({there})) continue;
const idx i1 = kv * {shared} + {row} / {lq}, i2 = {row} % {lq}, piece = t % {pieces};
const i64 row = ((i64)i0 * {heads} + i1) * {lq} + i2;
{combine}}}
block_sync();
",
            rows = groups.each,
            there = groups.has_row(),
            row = groups.row(),
            pieces = self.width / PIECE,
            shared = self.shared,
            lq = self.lq,
            heads = o.heads,
            threads = self.threads(),
        ))
    }

    /// Returns statements that combine the parts of a piece of a row, and run the epilogue on its elements. Parts are read in groups, all of
    /// a group at once.
    fn combine(&self, o: &Operands<'_>, parts: i64, uses: &mut Uses) -> Result<String, GenError> {
        let finish = self.finish(o, uses)?;
        Ok(format!(
            "const float *record = scratch0 + row * {parts} * {record} + {HEAD};
float most = -INF32, total = 0;
Vec<float, {PIECE}> sums = {{}};
for (int from = 0; from < {parts}; from += {group}) {{
Vec<float, 2> of[{group}];
Vec<float, {PIECE}> values[{group}];
#pragma unroll
for (int u = 0; u < {group}; ++u) {{
const float *at = record + imin(from + u, {parts} - 1) * (i64){record};
of[u] = fresh((const Vec<float, 2> *)(at - {HEAD}));
values[u] = fresh((const Vec<float, {PIECE}> *)at + piece);
if (from + u >= {parts}) of[u].v[0] = -INF32;
}}
float top = most;
#pragma unroll
for (int u = 0; u < {group}; ++u) top = fmaxf(top, of[u].v[0]);
const float shift = top == -INF32 ? 0.0f : top, shrink = exp2f(most - shift);
total *= shrink;
#pragma unroll
for (int e = 0; e < {PIECE}; ++e) sums.v[e] *= shrink;
#pragma unroll
for (int u = 0; u < {group}; ++u) {{
const float f = exp2f(of[u].v[0] - shift);
total += f * of[u].v[1];
#pragma unroll
for (int e = 0; e < {PIECE}; ++e) sums.v[e] += f * values[u].v[e];
}}
most = top;
}}
#pragma unroll
for (int e = 0; e < {PIECE}; ++e) {{
const idx i3 = piece * {PIECE} + e;
const float sum = sums.v[e];
{finish}}}
",
            group = parts.min(MAX_GROUP),
            record = self.width + HEAD,
        ))
    }

    /// Returns statements that run the epilogue on element `i3` of a row, given its sum and the row's maximum and total.
    fn finish(&self, o: &Operands<'_>, uses: &mut Uses) -> Result<String, GenError> {
        let sums = match o.sums("most * 0.6931471805599453f", "total", uses) {
            none if none.is_empty() => none,
            sums => format!("if (i3 == 0) {{\n{sums}}}\n"),
        };
        let tail = epilogue(self.program, &self.k.epilogue, "result", uses)?;
        let result = value_type(self.k.acc)?;
        Ok(format!("const {result} result = to<{result}>(total == 0 ? 0.0f : sum / total);\n{sums}{tail}"))
    }

    /// The kernel that combines the parts of all rows.
    fn combine_kernel(&self, parts: i64) -> Result<Kernel, GenError> {
        let (program, k) = (self.program, self.k);
        let mut uses = Uses::default();
        uses.scratch.push("float");
        let o = Operands::of(program, k, &mut uses);
        let rows = &k.epilogue.ranges[..3];
        let points = volume(rows) * SymExpr::from_i64(self.width / PIECE);
        let count = o.text(&points, &mut uses);
        let index = unravel(&o.writer, rows, 0, "row", &mut uses);
        let combine = self.combine(&o, parts, &mut uses)?;
        let body = format!(
            "for (idx p = blockIdx.x * (idx)blockDim.x + threadIdx.x; p < {count}; p += (idx)gridDim.x * blockDim.x) {{
const i64 row = p / {pieces};
const idx piece = p % {pieces};
{index}{combine}}}
",
            pieces = self.width / PIECE,
        );
        assemble(program, ENTRY, &uses, Launch::flat(blocks_of(&points, 128), 128), &body)
    }
}
