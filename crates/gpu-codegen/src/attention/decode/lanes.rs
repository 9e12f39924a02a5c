//! The few rows' attention by lanes: a group of lanes holds the elements of a query and of a key, 16 bytes each, multiplies
//! them and adds up what its lanes have. It takes every dtype and one row as well as eight.
//!
//! Not here: how parts are combined (`decode`), 16-bit numbers on matrix cores (`cores`).

use super::{Decode, RowGroups, WARPS};
use crate::attention::Operands;
use crate::text::body::Uses;
use crate::text::template::{assemble, volume};
use crate::text::types::memory_type;
use crate::{ENTRY, GenError, Kernel};

/// Most rows: each has accumulators of its own.
const MAX_ROWS: i64 = 8;
/// Keys that a group of lanes loads before it uses the first.
const KEYS_IN_FLIGHT: i64 = 4;

/// How lanes share a key.
pub(super) struct Lanes<'a, 'd> {
    of: &'d Decode<'a>,
    /// Elements per load.
    lanes: i64,
    /// Lanes that share a key.
    group: i64,
}

impl<'a, 'd> Lanes<'a, 'd> {
    pub(super) fn of(of: &'d Decode<'a>) -> Option<Lanes<'a, 'd>> {
        let lanes = 16 / of.dtype.size() as i64;
        let longest = of.depth.max(of.width);
        let group = (longest as u64).div_ceil(lanes as u64).next_power_of_two() as i64;
        let fits = of.rows() <= MAX_ROWS && group <= of.target.lanes();
        (fits && of.is_whole(lanes)).then_some(Lanes { of, lanes, group })
    }

    /// The rows of a block: all.
    pub(super) fn groups(&self) -> RowGroups {
        RowGroups { all: self.of.rows(), each: self.of.rows() }
    }

    /// The keys that a block loads before it uses the first.
    pub(super) fn turn(&self) -> i64 {
        KEYS_IN_FLIGHT * WARPS * self.of.target.lanes() / self.group
    }

    /// Statements by which a warp goes on where the mask hides all keys of its turn. Only of masks that are decided without loading
    /// something for each key, and not in the first turn, whose loads would wait for what the mask loads.
    fn skip(&self, o: &Operands<'_>, uses: &mut Uses) -> Result<String, GenError> {
        let Some(hidden) = self.of.hides(o, uses)? else { return Ok(String::new()) };
        Ok(format!(
            "if (base > begin) {{
bool some = false;
#pragma unroll
for (int u = 0; u < {KEYS_IN_FLIGHT}; ++u)
#pragma unroll
for (int r = 0; r < {rows}; ++r) {{
const idx i1 = kv * {shared} + r / {lq}, i2 = r % {lq}, j = j0 + u * {step};
(void)i1;
(void)i2;
bool seen = j < {keys};
if (seen) {{
{hidden}}}
some |= seen;
}}
if (wave_ballot(some) == 0) continue;
}}
",
            rows = self.of.rows(),
            shared = self.of.shared,
            lq = self.of.lq,
            step = self.turn() / KEYS_IN_FLIGHT,
            keys = o.keys,
        ))
    }

    /// The kernel that computes the parts of all rows; `counted` as in `Decode::end`.
    pub(super) fn kernel(&self, parts: i64, counted: bool) -> Result<Kernel, GenError> {
        let Lanes { of, lanes, group } = *self;
        let (program, k) = (of.program, of.k);
        let wave = of.target.lanes();
        let mut uses = Uses::default();
        of.begin(parts, &mut uses);
        let o = Operands::of(program, k, &mut uses);
        let ty = memory_type(of.dtype)?;
        let rows = of.rows();
        let kv_heads = o.text(&k.k.sizes[1], &mut uses);
        let count = volume(&k.k.sizes[..2]);
        let blocks = o.text(&count, &mut uses);
        let q = o.element(&k.q, ["i0", "i1", "i2", "(c + e)"], &mut uses);
        let key = o.element(&k.k, ["i0", "kv", "at", "cd"], &mut uses);
        let value = o.element(&k.v, ["i0", "kv", "at", "cw"], &mut uses);
        let mask = o.mask_of("sc", &mut uses)?;
        let causal = if k.causal { "seen = seen && j <= i2;\n" } else { "" };
        let (depth, width) = (of.depth, of.width);
        let skip = self.skip(&o, &mut uses)?;
        let end = of.end(&o, self.groups(), [parts, WARPS, group * lanes], counted, &mut uses)?;
        let body = format!(
            "__shared__ u32 seen;
__shared__ float shared_most[{WARPS}][{rows}], shared_total[{WARPS}][{rows}], shared_out[{WARPS}][{rows}][{wide}];
const int lane = {lane}, warp = {warp}, member = lane % {group}, team = lane / {group};
const int c = member * {lanes};
const idx cd = c < {depth} ? c : 0, cw = c < {width} ? c : 0;
// Parts take turns along the keys, so that they share what a mask shows of them.
const idx begin = blockIdx.y * {turn} + warp * {teams}, until = {keys};
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
for (idx base = begin; base < until; base += {turn} * {parts}) {{
const idx j0 = base + team;
{skip}Vec<{ty}, {lanes}> ks[{KEYS_IN_FLIGHT}], vs[{KEYS_IN_FLIGHT}];
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
{end}}}
",
            keys = of.limit(&o),
            scale = o.scale,
            shared = of.shared,
            lq = of.lq,
            lane = of.target.lane(),
            warp = of.target.wave_of_thread(),
            teams = wave / group,
            half = group / 2,
            step = WARPS * wave / group,
            turn = self.turn(),
            wide = group * lanes,
        );
        assemble(program, ENTRY, &uses, of.launch(self.groups(), parts), &body)
    }
}
