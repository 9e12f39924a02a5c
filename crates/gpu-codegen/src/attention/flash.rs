//! Attention of 16-bit numbers on tensor cores. A warp computes 16 query rows and keeps their scores and running softmax
//! in registers. Tiles of keys and values are copied to shared memory asynchronously.
//!
//! The running softmax is that of "Online normalizer calculation for softmax" (Milakov and Gimelshein, 2018): a new
//! maximum rescales what was accumulated so far. Not here: few query rows (`decode`), wider numbers (`attention`).

use ir_core::{DType, SymExpr};
use kernel_ir::{Attention, Program};

use crate::attention::Operands;
use crate::text::body::Uses;
use crate::text::template::{assemble, epilogue, volume};
use crate::text::types::value_type;
use crate::{ENTRY, GenError, Launch, Target, Variant};

/// Keys per tile.
const KEYS: i64 = 64;
/// Query rows per warp.
const ROWS: i64 = 16;
/// Padding elements between rows in shared memory: it puts eight consecutive rows into different banks.
const PAD: i64 = 8;

/// Returns the candidates; none where there is no `mma` or operands cannot be read 16 bytes at once.
pub(crate) fn variants(program: &Program, k: &Attention, target: &Target) -> Result<Vec<Variant>, GenError> {
    let Some(shape) = Flash::of(program, k).filter(|_| target.features.mma) else { return Ok(Vec::new()) };
    let rows = k.q.sizes[2].as_const().unwrap_or(512);
    let heads = volume(&k.q.sizes[..2]).as_const().unwrap_or(32);
    let blocks = |warps: i64| heads * ((rows + warps * ROWS - 1) / (warps * ROWS));
    let fits = |warps: &i64| shape.shared(*warps) <= i64::from(target.lds);
    // Prefers as many warps per block as still give every multiprocessor a block.
    let mut order: Vec<i64> = [4, 2, 1, 8].into_iter().filter(fits).collect();
    let full = |warps: &i64| blocks(*warps) >= i64::from(target.multiprocessors);
    if let Some(first) = order.iter().position(full).or(order.iter().position(|w| *w == 1)) {
        order[..=first].rotate_right(1);
    }
    order.into_iter().map(|warps| shape.generate(warps)).collect()
}

struct Flash<'a> {
    program: &'a Program,
    k: &'a Attention,
    dtype: DType,
    /// Elements of a query or key row (`depth`) and of a value row (`width`). In shared memory both are padded to
    /// multiples of 16.
    depth: i64,
    width: i64,
}

fn round_up_16(n: i64) -> i64 {
    (n + 15) / 16 * 16
}

impl<'a> Flash<'a> {
    fn of(program: &'a Program, k: &'a Attention) -> Option<Flash<'a>> {
        let dtype = program.buffers[k.q.buf].dtype;
        let same = [&k.k, &k.v].iter().all(|o| program.buffers[o.buf].dtype == dtype);
        if !same || !matches!(dtype, DType::BF16 | DType::F16) || k.acc.compute() != DType::F32 {
            return None;
        }
        let vectors = [&k.q, &k.k, &k.v].iter().all(|o| crate::product::gemv::aligned(o, 3, 8));
        let narrow = |e: &SymExpr| e.as_const().filter(|n| n % 8 == 0 && (8..=256).contains(n));
        let (depth, width) = (narrow(&k.q.sizes[3])?, narrow(&k.v.sizes[3])?);
        (vectors && k.epilogue.ranges.len() == 4).then_some(Flash { program, k, dtype, depth, width })
    }

    /// Bytes of shared memory: the queries, and two tiles each of keys and values.
    fn shared(&self, warps: i64) -> i64 {
        let (d, w) = (round_up_16(self.depth) + PAD, round_up_16(self.width) + PAD);
        2 * (warps * ROWS * d + 2 * KEYS * (d + w))
    }

    fn generate(&self, warps: i64) -> Result<Variant, GenError> {
        let (program, k) = (self.program, self.k);
        let mut uses = Uses::default();
        let o = Operands::of(program, k, &mut uses);
        let ty = value_type(self.dtype)?;
        let block_rows = warps * ROWS;
        let tiles = k.q.sizes[2].ceil_div(&SymExpr::from_i64(block_rows));
        let count = volume(&k.q.sizes[..2]) * &tiles;
        let (tiles, all) = (o.text(&tiles, &mut uses), o.text(&count, &mut uses));
        let tail = epilogue(program, &k.epilogue, "result", &mut uses)?;
        let mask = o.mask_of("sc", &mut uses);
        let sums = match o.sums("most[r] * 0.6931471805599453f", "total[r]", &mut uses) {
            none if none.is_empty() => none,
            sums => format!(
                "if (pair == 0 && first + r * 8 < {}) {{\nconst idx i2 = first + r * 8;\n{sums}}}\n",
                o.rows
            ),
        };
        let (depth, width) = (round_up_16(self.depth), round_up_16(self.width));
        let rows_of_tile = |name: &str,
                            source: &str,
                            row: &str,
                            limit: &str,
                            from: &str,
                            elements: i64,
                            pitch: i64,
                            count: i64| {
            format!(
                "for (int t = threadIdx.x; t < {count} * {chunks}; t += {threads}) {{
const int line = t / {chunks}, part = t % {chunks} * 8;
const idx {row} = {from} + line;
const bool there = {row} < {limit} && part < {elements};
const idx at_{row} = there ? {row} : 0;
const idx d = there ? part : 0;
cp_async_16({name} + line * {pitch} + part, &{source}, there ? 16 : 0);
}}
",
                chunks = round_up_16(elements) / 8,
                threads = 32 * warps,
            )
        };
        let load_q = rows_of_tile(
            "sq",
            &o.element(&k.q, ["i0", "i1", "at_i2", "d"], &mut uses),
            "i2",
            &o.rows,
            "row0",
            self.depth,
            depth + PAD,
            block_rows,
        );
        let key = o.element(&k.k, ["i0", "kv", "at_j", "d"], &mut uses);
        let value = o.element(&k.v, ["i0", "kv", "at_j", "d"], &mut uses);
        let load_k = rows_of_tile("tk", &key, "j", "limit", "from", self.depth, depth + PAD, KEYS);
        let load_v = rows_of_tile("tv", &value, "j", "limit", "from", self.width, width + PAD, KEYS);
        let limit =
            if k.causal { format!("imin<idx>({}, row0 + {block_rows})", o.keys) } else { o.keys.clone() };
        let causal = if k.causal { "seen = seen && j <= i2;\n" } else { "" };
        let body = format!(
            "DYNAMIC_SHARED(memory);
{ty} *sq = ({ty} *)memory, *sk = sq + {block_rows} * {dp}, *sv = sk + 2 * {KEYS} * {dp};
const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, line4 = lane >> 2, pair = lane & 3;
for (idx block = blockIdx.x; block < {all}; block += gridDim.x) {{
const idx row0 = block % {tiles} * {block_rows}, i1 = block / {tiles} % {heads}, i0 = block / {tiles} / {heads};
const idx kv = i1 / {group};
const idx limit = {limit};
{load_q}cp_async_commit();
{{ const idx from = 0; {ty} *tk = sk, *tv = sv;
{load_k}{load_v}cp_async_commit(); }}
cp_async_wait<1>();
block_sync();
u32 q[{dk}][4];
#pragma unroll
for (int s = 0; s < {dk}; ++s) ldmatrix_x4(q[s], sq + (warp * 16 + (lane & 15)) * {dp} + s * 16 + (lane >> 4) * 8);
float out[{wt}][4] = {{}}, most[2] = {{-INF32, -INF32}}, total[2] = {{0, 0}};
const idx first = row0 + warp * 16 + line4;
int turn = 0;
for (idx j0 = 0; j0 < limit; j0 += {KEYS}, ++turn) {{
if (j0 + {KEYS} < limit) {{
const idx from = j0 + {KEYS}; {ty} *tk = sk + (turn + 1) % 2 * {KEYS} * {dp}, *tv = sv + (turn + 1) % 2 * {KEYS} * {wp};
{load_k}{load_v}}}
cp_async_commit();
cp_async_wait<1>();
block_sync();
const {ty} *tk = sk + turn % 2 * {KEYS} * {dp}, *tv = sv + turn % 2 * {KEYS} * {wp};
float score[{nt}][4] = {{}};
#pragma unroll
for (int n = 0; n < {nt}; n += 2)
#pragma unroll
for (int s = 0; s < {dk}; ++s) {{
u32 b[4];
ldmatrix_x4(b, tk + (n * 8 + (lane & 7) + (lane >> 4) * 8) * {dp} + s * 16 + (lane >> 3 & 1) * 8);
const u32 b0[2] = {{b[0], b[1]}}, b1[2] = {{b[2], b[3]}};
{mma}(score[n], q[s], b0);
{mma}(score[n + 1], q[s], b1);
}}
float top[2] = {{-INF32, -INF32}};
#pragma unroll
for (int n = 0; n < {nt}; ++n)
#pragma unroll
for (int e = 0; e < 4; ++e) {{
const idx i2 = first + (e >> 1) * 8, j = j0 + n * 8 + pair * 2 + (e & 1);
bool seen = j < limit;
{causal}float sc = score[n][e] * {scale};
if (seen && i2 < {rows}) {{
{mask}}}
sc = seen ? sc * 1.4426950408889634f : -INF32;
score[n][e] = sc;
top[e >> 1] = fmaxf(top[e >> 1], sc);
}}
float shift[2];
#pragma unroll
for (int r = 0; r < 2; ++r) {{
top[r] = fmaxf(top[r], shuffle_xor(top[r], 1));
top[r] = fmaxf(top[r], shuffle_xor(top[r], 2));
top[r] = fmaxf(top[r], most[r]);
shift[r] = top[r] == -INF32 ? 0.0f : top[r];
const float shrink = exp2f(most[r] - shift[r]);
total[r] *= shrink;
#pragma unroll
for (int t = 0; t < {wt}; ++t) {{ out[t][2 * r] *= shrink; out[t][2 * r + 1] *= shrink; }}
most[r] = top[r];
}}
#pragma unroll
for (int n = 0; n < {nt}; ++n)
#pragma unroll
for (int e = 0; e < 4; ++e) {{
const float w = exp2f(score[n][e] - shift[e >> 1]);
total[e >> 1] += w;
score[n][e] = w;
}}
#pragma unroll
for (int n = 0; n < {nt}; n += 2) {{
const u32 a[4] = {{ {pack}(score[n][0], score[n][1]), {pack}(score[n][2], score[n][3]),
{pack}(score[n + 1][0], score[n + 1][1]), {pack}(score[n + 1][2], score[n + 1][3]) }};
#pragma unroll
for (int t = 0; t < {wt}; t += 2) {{
u32 b[4];
ldmatrix_x4_trans(b, tv + (n * 8 + (lane & 15)) * {wp} + t * 8 + (lane >> 4) * 8);
const u32 b0[2] = {{b[0], b[1]}}, b1[2] = {{b[2], b[3]}};
{mma}(out[t], a, b0);
{mma}(out[t + 1], a, b1);
}}
}}
block_sync();
}}
#pragma unroll
for (int r = 0; r < 2; ++r) {{
total[r] += shuffle_xor(total[r], 1);
total[r] += shuffle_xor(total[r], 2);
{sums}}}
#pragma unroll
for (int t = 0; t < {wt}; ++t)
#pragma unroll
for (int e = 0; e < 4; ++e) {{
const idx i2 = first + (e >> 1) * 8, i3 = t * 8 + pair * 2 + (e & 1);
if (i2 < {rows} && i3 < {width_}) {{
const {result} result = to<{result}>(total[e >> 1] == 0 ? 0.0f : out[t][e] / total[e >> 1]);
{tail}}}
}}
cp_async_wait<0>();
block_sync();
}}
",
            heads = o.heads,
            group = o.group,
            rows = o.rows,
            scale = o.scale,
            dp = depth + PAD,
            wp = width + PAD,
            dk = depth / 16,
            nt = KEYS / 8,
            wt = width / 8,
            width_ = self.width,
            mma = if self.dtype == DType::BF16 { "mma_bf16" } else { "mma_f16" },
            pack = if self.dtype == DType::BF16 { "pack_bf16" } else { "pack_f16" },
            result = value_type(k.acc)?,
        );
        let most = SymExpr::from_i64(crate::MAX_BLOCKS);
        let mut launch = Launch::flat(count.sym_min(&most), 32 * warps as u32);
        launch.shared = self.shared(warps) as u32;
        Ok(Variant::single(
            format!("flash_{block_rows}x{KEYS}"),
            assemble(program, ENTRY, &uses, launch, &body)?,
        ))
    }
}
