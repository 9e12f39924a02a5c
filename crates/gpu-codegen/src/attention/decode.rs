//! Attention of a few query rows over many keys, as in decoding. It is bound by the bandwidth of reading keys and values,
//! so the keys are split over blocks, warps and groups of lanes, each with a running softmax of its own (split-KV). The
//! last block of a key head combines the parts in a fixed order; where there are too many heads to count the blocks of
//! each, a second kernel does. Query heads that share a key head are computed at once.
//!
//! Not here: many query rows (`flash`).

use ir_core::{DType, SymExpr};
use kernel_ir::{Attention, Program};

use crate::attention::Operands;
use crate::text::body::Uses;
use crate::text::template::{assemble, blocks_of, epilogue, unravel, volume};
use crate::text::types::{memory_type, value_type};
use crate::{ENTRY, GenError, Kernel, Launch, TICKETS, Target, Variant};

/// Maximum number of rows that are computed at once: query rows times query heads per key head.
const MAX_ROWS: i64 = 8;
/// Warps per block.
const WARPS: i64 = 4;
/// Keys that a group of lanes loads before it uses the first.
const KEYS_IN_FLIGHT: i64 = 4;

/// Returns the candidates; none where there are many rows or operands cannot be read 16 bytes at once.
pub(crate) fn variants(program: &Program, k: &Attention, target: &Target) -> Result<Vec<Variant>, GenError> {
    let Some(shape) = Decode::of(program, k, target) else { return Ok(Vec::new()) };
    let heads = volume(&k.k.sizes[..2]).as_const().unwrap_or(32);
    let keys = k.k.sizes[2].as_const().unwrap_or(2048);
    // The first loads of a block cover this many keys. Where there are fewer keys one iteration takes all of them.
    let most = (keys / (KEYS_IN_FLIGHT * WARPS * target.lanes() / shape.group)).clamp(1, 64);
    let parts = (4 * i64::from(target.multiprocessors) / heads.max(1)).clamp(1, most);
    let mut all = vec![shape.variant(parts)?];
    if parts > 1 {
        all.push(shape.variant((parts / 2).max(1))?);
    }
    Ok(all)
}

struct Decode<'a> {
    program: &'a Program,
    k: &'a Attention,
    /// Elements per load.
    lanes: i64,
    /// Lanes that share a key.
    group: i64,
    /// Query heads per key head, and query rows.
    shared: i64,
    lq: i64,
    target: &'a Target,
}

impl<'a> Decode<'a> {
    fn of(program: &'a Program, k: &'a Attention, target: &'a Target) -> Option<Decode<'a>> {
        let dtype = |o: &kernel_ir::Operand| program.buffers[o.buf].dtype;
        let known = matches!(dtype(&k.k), DType::BF16 | DType::F16 | DType::F32);
        if !known
            || dtype(&k.v) != dtype(&k.k)
            || k.acc.compute() != DType::F32
            || k.epilogue.ranges.len() != 4
        {
            return None;
        }
        let lanes = 16 / dtype(&k.k).size() as i64;
        let depth = k.q.sizes[3].as_const().filter(|n| n % lanes == 0 && *n > 0)?;
        let width = k.v.sizes[3].as_const().filter(|n| n % lanes == 0 && *n > 0)?;
        let group = ((depth.max(width) + lanes - 1) / lanes).max(1) as u64;
        let group = group.next_power_of_two() as i64;
        let shared = k.q.sizes[1].as_const()?.checked_div(k.k.sizes[1].as_const()?)?;
        let lq = k.q.sizes[2].as_const()?;
        let few = (1..=MAX_ROWS).contains(&(lq * shared)) && group <= target.lanes();
        let vectors = [&k.k, &k.v].iter().all(|o| crate::product::gemv::aligned(o, 3, lanes));
        (few && vectors).then_some(Decode { program, k, lanes, group, shared, lq, target })
    }

    fn variant(&self, parts: i64) -> Result<Variant, GenError> {
        // Each row of a part stores its maximum, its sum and its values.
        let rows = volume(&self.k.epilogue.ranges[..3]);
        let record = &self.k.epilogue.ranges[3] + SymExpr::from_i64(2);
        let scratch = vec![rows * record * SymExpr::from_i64(4 * parts)];
        let counted = volume(&self.k.k.sizes[..2]).as_const().is_some_and(|n| n <= i64::from(TICKETS));
        let mut kernels = vec![self.parts(parts, counted)?];
        if !counted {
            kernels.push(self.combine_kernel(parts)?);
        }
        Ok(Variant { name: format!("decode_{parts}"), kernels, scratch })
    }

    /// The kernel that computes the parts of all rows. Where blocks are `counted`, the last block of a key head combines
    /// the parts.
    fn parts(&self, parts: i64, counted: bool) -> Result<Kernel, GenError> {
        let (program, k, lanes) = (self.program, self.k, self.lanes);
        let wave = self.target.lanes();
        let mut uses = Uses::default();
        uses.scratch.push("float");
        let o = Operands::of(program, k, &mut uses);
        let ty = memory_type(program.buffers[k.k.buf].dtype)?;
        let rows = self.lq * self.shared;
        let kv_heads = o.text(&k.k.sizes[1], &mut uses);
        let count = volume(&k.k.sizes[..2]);
        let blocks = o.text(&count, &mut uses);
        let q = o.element(&k.q, ["i0", "i1", "i2", "(c + e)"], &mut uses);
        let key = o.element(&k.k, ["i0", "kv", "at", "cd"], &mut uses);
        let value = o.element(&k.v, ["i0", "kv", "at", "cw"], &mut uses);
        let mask = o.mask_of("sc", &mut uses)?;
        let causal = if k.causal { "seen = seen && j <= i2;\n" } else { "" };
        let (depth, width) = (o.text(&k.q.sizes[3], &mut uses), o.text(&k.v.sizes[3], &mut uses));
        let combine_in_last_block = if counted {
            self.combine_in_last_block(&o, parts, &mut uses)?
        } else {
            "block_sync();\n".into()
        };
        let body = format!(
            "__shared__ u32 seen;
__shared__ float shared_most[{WARPS}][{rows}], shared_total[{WARPS}][{rows}], shared_out[{WARPS}][{rows}][{wide}];
const int lane = {lane}, warp = {warp}, member = lane % {group}, team = lane / {group};
const int c = member * {lanes};
const idx cd = c < {depth} ? c : 0, cw = c < {width} ? c : 0;
const idx share = ({keys} + {parts} - 1) / {parts}, from = blockIdx.y * share, until = imin<idx>({keys}, from + share);
for (idx block = blockIdx.x; block < {blocks}; block += gridDim.x) {{
const idx kv = block % {kv_heads}, i0 = block / {kv_heads};
float q[{rows}][{lanes}], out[{rows}][{lanes}] = {{}}, most[{rows}], total[{rows}];
#pragma unroll
for (int r = 0; r < {rows}; ++r) {{
const idx i1 = kv * {shared} + r / {lq}, i2 = r % {lq};
most[r] = -INF32; total[r] = 0;
#pragma unroll
for (int e = 0; e < {lanes}; ++e) q[r][e] = c < {depth} ? to<float>({q}) * {scale} : 0.0f;
}}
// All lanes of a warp take the same number of turns: they exchange values in it.
for (idx base = from + warp * {teams}; base < until; base += {turn}) {{
const idx j0 = base + team;
Vec<{ty}, {lanes}> ks[{KEYS_IN_FLIGHT}], vs[{KEYS_IN_FLIGHT}];
#pragma unroll
for (int u = 0; u < {KEYS_IN_FLIGHT}; ++u) {{
const idx j = j0 + u * {step}, at = j < until ? j : base;
ks[u] = *(const Vec<{ty}, {lanes}> *)&{key};
vs[u] = *(const Vec<{ty}, {lanes}> *)&{value};
}}
#pragma unroll
for (int r = 0; r < {rows}; ++r) {{
const idx i1 = kv * {shared} + r / {lq}, i2 = r % {lq};
float score[{KEYS_IN_FLIGHT}], top = most[r];
#pragma unroll
for (int u = 0; u < {KEYS_IN_FLIGHT}; ++u) {{
const idx j = j0 + u * {step};
float sc = 0;
#pragma unroll
for (int e = 0; e < {lanes}; ++e) sc = fmaf(q[r][e], to<float>(ks[u].v[e]), sc);
#pragma unroll
for (int n = {half}; n; n >>= 1) sc += shuffle_xor(sc, n);
bool seen = j < until;
{causal}if (seen) {{
{mask}}}
score[u] = seen ? sc * 1.4426950408889634f : -INF32;
top = fmaxf(top, score[u]);
}}
const float shift = top == -INF32 ? 0.0f : top, shrink = exp2f(most[r] - shift);
total[r] *= shrink;
#pragma unroll
for (int e = 0; e < {lanes}; ++e) out[r][e] *= shrink;
#pragma unroll
for (int u = 0; u < {KEYS_IN_FLIGHT}; ++u) {{
const float w = exp2f(score[u] - shift);
total[r] += w;
#pragma unroll
for (int e = 0; e < {lanes}; ++e) if (w != 0) out[r][e] = fmaf(w, to<float>(vs[u].v[e]), out[r][e]);
}}
most[r] = top;
}}
}}
#pragma unroll
for (int r = 0; r < {rows}; ++r) {{
#pragma unroll
for (int n = {group}; n < {wave}; n <<= 1) {{
const float m = shuffle_xor(most[r], n), t = shuffle_xor(total[r], n);
const float top = fmaxf(most[r], m), shift = top == -INF32 ? 0.0f : top;
const float mine = exp2f(most[r] - shift), other = exp2f(m - shift);
total[r] = total[r] * mine + t * other;
#pragma unroll
for (int e = 0; e < {lanes}; ++e) out[r][e] = out[r][e] * mine + shuffle_xor(out[r][e], n) * other;
most[r] = top;
}}
if (team == 0) {{
if (member == 0) {{ shared_most[warp][r] = most[r]; shared_total[warp][r] = total[r]; }}
#pragma unroll
for (int e = 0; e < {lanes}; ++e) shared_out[warp][r][c + e] = out[r][e];
}}
}}
block_sync();
for (int t = threadIdx.x; t < {rows} * {wide}; t += {threads}) {{
const int r = t / {wide}, e = t % {wide};
float top = shared_most[0][r];
for (int w = 1; w < {WARPS}; ++w) top = fmaxf(top, shared_most[w][r]);
const float shift = top == -INF32 ? 0.0f : top;
float sum = 0, weight = 0;
for (int w = 0; w < {WARPS}; ++w) {{
const float f = exp2f(shared_most[w][r] - shift);
sum += f * shared_out[w][r][e];
weight += f * shared_total[w][r];
}}
const idx i1 = kv * {shared} + r / {lq}, i2 = r % {lq};
const i64 row = ((i64)i0 * {heads} + i1) * {lq} + i2;
float *record = scratch0 + (row * {parts} + blockIdx.y) * (i64)({width} + 2);
if (e == 0) {{ record[0] = top; record[1] = weight; }}
if (e < {width}) record[2 + e] = sum;
}}
{combine_in_last_block}}}
",
            keys = o.keys,
            heads = o.heads,
            scale = o.scale,
            shared = self.shared,
            lq = self.lq,
            group = self.group,
            lane = self.target.lane(),
            warp = self.target.wave_of_thread(),
            teams = wave / self.group,
            half = self.group / 2,
            step = WARPS * wave / self.group,
            turn = KEYS_IN_FLIGHT * WARPS * wave / self.group,
            wide = self.group * lanes,
            threads = self.target.lanes() * WARPS,
        );
        let most = SymExpr::from_i64(crate::MAX_BLOCKS);
        let mut launch = Launch::flat(count.sym_min(&most), self.target.wave * WARPS as u32);
        launch.blocks[1] = SymExpr::from_i64(parts);
        assemble(program, ENTRY, &uses, launch, &body)
    }

    /// Returns statements by which the last block of a key head combines the parts of its rows.
    fn combine_in_last_block(
        &self,
        o: &Operands<'_>,
        parts: i64,
        uses: &mut Uses,
    ) -> Result<String, GenError> {
        uses.tickets = true;
        let width = o.text(&self.k.v.sizes[3], uses);
        let combine = self.combine(o, parts, uses)?;
        Ok(format!(
            "if (!comes_last(tickets + block, {parts}, &seen)) continue;
for (int t = threadIdx.x; t < {rows} * {width}; t += {threads}) {{
const int r = t / {width};
const idx i1 = kv * {shared} + r / {lq}, i2 = r % {lq}, i3 = t % {width};
const float *record = scratch0 + (((i64)i0 * {heads} + i1) * {lq} + i2) * {parts} * ({width} + 2);
{combine}}}
block_sync();
",
            rows = self.lq * self.shared,
            shared = self.shared,
            lq = self.lq,
            heads = o.heads,
            threads = self.target.lanes() * WARPS,
        ))
    }

    /// Returns statements that combine the parts of element `i3` of a row, which begin at `record`, and run the epilogue.
    fn combine(&self, o: &Operands<'_>, parts: i64, uses: &mut Uses) -> Result<String, GenError> {
        let (program, k) = (self.program, self.k);
        let width = o.text(&k.v.sizes[3], uses);
        let sums = match o.sums("most * 0.6931471805599453f", "total", uses) {
            none if none.is_empty() => none,
            sums => format!("if (i3 == 0) {{\n{sums}}}\n"),
        };
        let tail = epilogue(program, &k.epilogue, "result", uses)?;
        Ok(format!(
            "float most = -INF32;
#pragma unroll 8
for (int part = 0; part < {parts}; ++part) most = fmaxf(most, fresh(record + part * (i64)({width} + 2)));
const float shift = most == -INF32 ? 0.0f : most;
float total = 0, sum = 0;
#pragma unroll 8
for (int part = 0; part < {parts}; ++part) {{
const float *of = record + part * (i64)({width} + 2);
const float f = exp2f(fresh(of) - shift);
total += f * fresh(of + 1);
sum += f * fresh(of + 2 + i3);
}}
const {result} result = to<{result}>(total == 0 ? 0.0f : sum / total);
{sums}{tail}",
            result = value_type(k.acc)?,
        ))
    }

    /// The kernel that combines the parts of all rows.
    fn combine_kernel(&self, parts: i64) -> Result<Kernel, GenError> {
        let (program, k) = (self.program, self.k);
        let ranges = &k.epilogue.ranges;
        let mut uses = Uses::default();
        uses.scratch.push("float");
        let o = Operands::of(program, k, &mut uses);
        let points = volume(ranges);
        let (count, width) = (o.text(&points, &mut uses), o.text(&ranges[3], &mut uses));
        let index = unravel(&o.writer, ranges, 0, "p", &mut uses);
        let combine = self.combine(&o, parts, &mut uses)?;
        let body = format!(
            "for (idx p = blockIdx.x * (idx)blockDim.x + threadIdx.x; p < {count}; p += (idx)gridDim.x * blockDim.x) {{
const float *record = scratch0 + (i64)(p / {width}) * {parts} * ({width} + 2);
{index}{combine}}}
"
        );
        assemble(program, ENTRY, &uses, Launch::flat(blocks_of(&points, 128), 128), &body)
    }
}
