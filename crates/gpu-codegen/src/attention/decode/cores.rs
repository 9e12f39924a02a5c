//! The few rows' attention by matrix cores (`mma.m16n8k16`), for 16-bit numbers: the rows of the query heads that share a key head, 16 for
//! each block, are the rows of the products, so that each key costs the same for one row as for all.
//!
//! A warp takes 16 keys at once. It loads keys and values from memory to where the fragments have them, 16 bytes a lane: which elements
//! are adjacent along a product's inner dimension is free, as long as both factors agree, and so is the order of the columns of values,
//! of which registers get pairs of keys by moving halves. Nothing is shared with other warps but, where rows are long, scores: two warps
//! then have half of the elements each. The loads of the next keys that the mask shows are in flight during the computation.
//!
//! Not here: how parts are combined (`decode`), many rows (`flash`).

use ir_core::DType;
use kernel_ir::Operand;

use super::{Decode, RowGroups, WARPS};
use crate::attention::Operands;
use crate::dialect::fragments::Fragments;
use crate::text::body::Uses;
use crate::text::template::{assemble, volume};
use crate::{ENTRY, GenError, Kernel};

/// Keys that a warp takes at once: the inner dimension of a product.
const KEYS: i64 = 16;
/// Elements of a key that four lanes load, and of a value that eight lanes load.
const KEY_PIECE: i64 = 32;
const VALUE_PIECE: i64 = 64;
/// Elements of a row of which one warp has registers.
const MAX_SHORT: i64 = 128;
/// Most groups of rows, each of which reads all keys.
const MAX_GROUPS: i64 = 8;
/// Elements of a load.
const VECTOR: i64 = 8;
/// Numbers between the rows of results in shared memory beside these: their vectors then lie in different banks.
const PAD: i64 = 4;

pub(super) struct Cores<'a, 'd> {
    of: &'d Decode<'a>,
    fragments: Fragments,
    /// Warps that share keys.
    split: i64,
    groups: RowGroups,
    /// Eights of a group's rows.
    slots: i64,
}

impl<'a, 'd> Cores<'a, 'd> {
    /// `None` where there are no matrix cores with such fragments, or operands are not whole vectors.
    pub(super) fn of(of: &'d Decode<'a>) -> Option<Cores<'a, 'd>> {
        let fragments = Fragments::of(of.target).filter(|f| !f.turned())?;
        let same = of.program.buffers[of.k.q.buf].dtype == of.dtype;
        let narrow = matches!(of.dtype, DType::BF16 | DType::F16);
        let vectors = of.is_whole(VECTOR) && crate::product::gemv::aligned(&of.k.q, 3, VECTOR);
        let longest = of.depth.max(of.width);
        let fits = of.rows() <= MAX_GROUPS * fragments.own && longest <= 2 * MAX_SHORT;
        let groups = RowGroups { all: of.rows(), each: of.rows().min(fragments.own) };
        let (split, slots) = (if longest > MAX_SHORT { 2 } else { 1 }, (groups.each + 7) / 8);
        (same && narrow && vectors && fits).then_some(Cores { of, fragments, split, groups, slots })
    }

    /// The rows of a block.
    pub(super) fn groups(&self) -> RowGroups {
        self.groups
    }

    /// The keys that a block loads at once.
    pub(super) fn turn(&self) -> i64 {
        KEYS * WARPS / self.split
    }

    /// Blocks that a multiprocessor has registers for.
    pub(super) fn blocks(&self) -> i64 {
        if self.of.depth.max(self.of.width) <= 64 { 4 } else { 2 }
    }

    /// Pieces of keys and of values that a warp has.
    fn pieces(&self) -> [i64; 2] {
        let of = |elements: i64, piece: i64| (elements + self.split * piece - 1) / (self.split * piece);
        [of(self.of.depth, KEY_PIECE), of(self.of.width, VALUE_PIECE)]
    }

    /// The instruction's name of the dtype.
    fn half(&self) -> &'static str {
        if self.of.dtype == DType::BF16 { "bf16" } else { "f16" }
    }

    /// Statements that load the vector at `index` of an operand to `to`, or zeros where `there` is false.
    fn load(
        &self,
        o: &Operands<'_>,
        from: (&Operand, [&str; 4]),
        to: &str,
        there: &str,
        uses: &mut Uses,
    ) -> String {
        let element = o.element(from.0, from.1, uses);
        format!("{to} = {{}};\nif ({there}) {to} = *(const Vec<u32, 4> *)&{element};\n")
    }

    /// Functions that load the 16 keys, and their values, from `first` on. What is behind the last key is loaded from there.
    fn loads(&self, o: &Operands<'_>, uses: &mut Uses) -> String {
        let (k, [keys, values]) = (self.of.k, self.pieces());
        let there = Cores::inside(self.of.depth, keys * KEY_PIECE * self.split);
        let key = self.load(o, (&k.k, ["i0", "kv", "at", "d"]), "ks[n][c]", &there, uses);
        let there = Cores::inside(self.of.width, values * VALUE_PIECE * self.split);
        let value = self.load(o, (&k.v, ["i0", "kv", "at", "d"]), "vs[c][n]", &there, uses);
        format!(
            "auto load_keys = [&](idx first) {{
#pragma unroll
for (int n = 0; n < 2; ++n) {{
const idx at = imin<idx>(first + n * 8 + line4, until - 1);
#pragma unroll
for (int c = 0; c < {keys}; ++c) {{
const idx d = (part * {keys} + c) * {KEY_PIECE} + pair * {VECTOR};
{key}}}
}}
}};
auto load_values = [&](idx first) {{
#pragma unroll
for (int n = 0; n < 4; ++n) {{
const idx at = imin<idx>(first + n / 2 * 8 + pair * 2 + n % 2, until - 1);
#pragma unroll
for (int c = 0; c < {values}; ++c) {{
const idx d = (part * {values} + c) * {VALUE_PIECE} + line4 * {VECTOR};
{value}}}
}}
}};
"
        )
    }

    /// Whether there are elements at `d`, where warps have `all` of which `elements` are there.
    fn inside(elements: i64, all: i64) -> String {
        if elements == all { "true".into() } else { format!("d < {elements}") }
    }

    /// A function that says which of a lane's scores of the 16 keys from `first` on are visible, a bit each, and leaves what the mask adds
    /// to them in `more`, where it adds something.
    fn look(&self, o: &Operands<'_>, adds: bool, uses: &mut Uses) -> Result<String, GenError> {
        let f = &self.fragments;
        let mask = o.mask_of("sc", uses)?;
        let (parameter, keep) = match adds {
            true => (", float (&more)[2][4]", "more[n][e] = sc;\nseen = seen && sc != -INF32;\n"),
            false => ("", ""),
        };
        Ok(format!(
            "auto look = [&](idx first{parameter}) {{
u32 bits = 0;
#pragma unroll
for (int n = 0; n < 2; ++n)
#pragma unroll
for (int e = 0; e < {numbers}; ++e) {{
const int r = line4 + {own_row};
const idx i1 = kv * {shared} + {row} / {lq}, i2 = {row} % {lq}, j = first + n * {far} + {far_row};
(void)i1;
(void)i2;
bool seen = {row} < {rows} && j < until;
{causal}float sc = 0;
(void)sc;
if (seen) {{
{mask}}}
{keep}bits |= (u32)seen << (n * 4 + e);
}}
return bits;
}};
",
            numbers = 2 * self.slots,
            own_row = f.own_row,
            far = f.far,
            far_row = f.far_row,
            shared = self.of.shared,
            lq = self.of.lq,
            row = self.groups.row(),
            rows = self.of.rows(),
            causal = if self.of.k.causal { "seen = seen && j <= i2;\n" } else { "" },
        ))
    }

    /// Statements that add up the scores of two warps, each of half of the elements. A place that is read is written two turns later,
    /// behind the barrier of the next one.
    fn exchange(&self) -> String {
        if self.split == 1 {
            return String::new();
        }
        let each = |what: &str| {
            format!(
                "#pragma unroll
for (int n = 0; n < 2; ++n)
#pragma unroll
for (int e = 0; e < {}; ++e) {what}
",
                2 * self.slots
            )
        };
        format!(
            "{}barrier_sync(1 + team, {});
{}turn ^= 1;
",
            each("shared_scores[turn][warp][n * 4 + e][lane] = score[n][e];"),
            32 * self.split,
            each("score[n][e] += shared_scores[turn][warp ^ 1][n * 4 + e][lane];"),
        )
    }

    /// Statements that compute the scores of the keys in registers.
    fn scores(&self) -> String {
        let [keys, _] = self.pieces();
        let own = |word: &str| match self.slots {
            1 => format!("q[c][0].v[{word}], 0u"),
            _ => format!("q[c][0].v[{word}], q[c][1].v[{word}]"),
        };
        format!(
            "float score[2][4] = {{}};
#pragma unroll
for (int n = 0; n < 2; ++n)
#pragma unroll
for (int c = 0; c < {keys}; ++c)
#pragma unroll
for (int s = 0; s < 4; s += 2) {{
const u32 a[4] = {{{}, {}}}, b[2] = {{ks[n][c].v[s], ks[n][c].v[s + 1]}};
mma_{half}(score[n], a, b);
}}
",
            own("s"),
            own("s + 1"),
            half = self.half(),
        )
    }

    /// Statements that add the weighted values to the result. A column of a product is an element of each lane's vector.
    fn products(&self) -> String {
        let [_, values] = self.pieces();
        let half = self.half();
        let upper = |n: i64| match self.slots {
            1 => "0u".to_owned(),
            _ => format!("pack_{half}(score[{n}][2], score[{n}][3])"),
        };
        format!(
            "const u32 weights[4] = {{pack_{half}(score[0][0], score[0][1]), {}, pack_{half}(score[1][0], score[1][1]), {}}};
#pragma unroll
for (int c = 0; c < {values}; ++c)
#pragma unroll
for (int w = 0; w < 4; ++w) {{
const u32 k0 = vs[c][0].v[w], k1 = vs[c][1].v[w], k8 = vs[c][2].v[w], k9 = vs[c][3].v[w];
const u32 low[2] = {{(k0 & 0xffffu) | k1 << 16, (k8 & 0xffffu) | k9 << 16}};
const u32 high[2] = {{k0 >> 16 | (k1 & 0xffff0000u), k8 >> 16 | (k9 & 0xffff0000u)}};
mma_{half}(out[c * {VECTOR} + 2 * w], weights, low);
mma_{half}(out[c * {VECTOR} + 2 * w + 1], weights, high);
}}
",
            upper(0),
            upper(1),
        )
    }

    /// Statements of the running softmax between the two products: scores become weights.
    fn softmax(&self, adds: bool) -> String {
        let f = &self.fragments;
        let [_, values] = self.pieces();
        format!(
            "float top[{slots}];
#pragma unroll
for (int r = 0; r < {slots}; ++r) top[r] = most[r];
#pragma unroll
for (int n = 0; n < 2; ++n)
#pragma unroll
for (int e = 0; e < {numbers}; ++e) {{
const float sc = {sum};
score[n][e] = (shown >> (n * 4 + e) & 1u) != 0 ? sc * 1.4426950408889634f : -INF32;
top[{slot}] = fmaxf(top[{slot}], score[n][e]);
}}
float shift[{slots}];
#pragma unroll
for (int r = 0; r < {slots}; ++r) {{
{tops}shift[r] = top[r] == -INF32 ? 0.0f : top[r];
const float shrink = exp2_flushed(most[r] - shift[r]);
total[r] *= shrink;
#pragma unroll
for (int t = 0; t < {columns}; ++t) {{ out[t][2 * r] *= shrink; out[t][2 * r + 1] *= shrink; }}
most[r] = top[r];
}}
#pragma unroll
for (int n = 0; n < 2; ++n)
#pragma unroll
for (int e = 0; e < {numbers}; ++e) {{
score[n][e] = exp2_flushed(score[n][e] - shift[{slot}]);
total[{slot}] += score[n][e];
}}
",
            slots = self.slots,
            numbers = 2 * self.slots,
            slot = f.slot,
            sum = if adds { "score[n][e] * scale + added[n][e]" } else { "score[n][e] * scale" },
            tops = f.combine(|by| format!("top[r] = fmaxf(top[r], shuffle_xor(top[r], {by}));\n")),
            columns = values * VECTOR,
        )
    }

    /// Statements that leave the warp's rows in shared memory.
    fn leave(&self) -> String {
        let [_, values] = self.pieces();
        format!(
            "#pragma unroll
for (int s = 0; s < {slots}; ++s) {{
{totals}const int r = line4 + s * 8;
if (r < {rows}) {{
if (pair == 0 && part == 0) {{ shared_most[team][r] = most[s]; shared_total[team][r] = total[s]; }}
#pragma unroll
for (int c = 0; c < {values}; ++c)
#pragma unroll
for (int e = 0; e < 2; ++e)
#pragma unroll
for (int t = 0; t < {VECTOR}; t += 4) {{
Vec<float, 4> x;
#pragma unroll
for (int u = 0; u < 4; ++u) x.v[u] = out[c * {VECTOR} + t + u][2 * s + e];
*(Vec<float, 4> *)&shared_out[team][r][(part * {values} + c) * {VALUE_PIECE} + (pair * 2 + e) * {VECTOR} + t] = x;
}}
}}
}}
",
            slots = self.slots,
            rows = self.groups.each,
            totals = self.fragments.combine(|by| format!("total[s] += shuffle_xor(total[s], {by});\n")),
        )
    }

    /// The kernel that computes the parts of all rows; `counted` as in `Decode::end`.
    pub(super) fn kernel(&self, parts: i64, counted: bool) -> Result<Kernel, GenError> {
        let Cores { of, ref fragments, split, groups, slots } = *self;
        let (program, k, rows, [keys, values]) = (of.program, of.k, groups.each, self.pieces());
        let (teams, wide) = (WARPS / split, split * values * VALUE_PIECE);
        let mut uses = Uses::default();
        of.begin(parts, &mut uses);
        let o = Operands::of(program, k, &mut uses);
        let adds = match o.function_dtype() {
            Some(dtype) => dtype != DType::Bool,
            None => k.mask.as_ref().is_some_and(|m| program.buffers[m.buf].dtype.is_float()),
        };
        let query = (&k.q, ["i0", "i1", "i2", "d"]);
        let there = format!("{} < {} && d < {}", groups.row(), of.rows(), of.depth);
        let load_q = self.load(&o, query, "q[c][s]", &there, &mut uses);
        let (added, ahead) = if adds { (", added", ", ahead") } else { ("", "") };
        let body = format!(
            "__shared__ u32 seen;
__shared__ float shared_most[{teams}][{rows}], shared_total[{teams}][{rows}];
alignas(16) __shared__ float shared_out[{teams}][{rows}][{pitch}];
{shared_scores}{lanes}
const int team = warp / {split}, part = warp % {split};
const float scale = {scale};
const idx until = {limit};
for (idx block = blockIdx.x; block < {blocks}; block += gridDim.x) {{
{of_block}Vec<u32, 4> q[{keys}][{slots}], ks[2][{keys}], vs[{values}][4];
{added_text}{loads}{look}// Parts take turns along the keys, so that they share what a mask shows of them.
idx first = (blockIdx.y * {teams} + team) * {KEYS};
u32 shown = 0;
if (first < until) {{ load_keys(first); load_values(first); }}
#pragma unroll
for (int s = 0; s < {slots}; ++s)
#pragma unroll
for (int c = 0; c < {keys}; ++c) {{
const int r = line4 + s * 8;
const idx i1 = kv * {shared} + {row} / {lq}, i2 = {row} % {lq}, d = (part * {keys} + c) * {KEY_PIECE} + pair * {VECTOR};
{load_q}}}
float out[{columns}][4] = {{}}, most[{slots}], total[{slots}];
#pragma unroll
for (int r = 0; r < {slots}; ++r) {{ most[r] = -INF32; total[r] = 0; }}
if (first < until) shown = look(first{added});
while (first < until) {{
// The next keys of which a row sees some.
idx next = first;
u32 next_shown;
do {{
next += {stride};
next_shown = next < until ? look(next{ahead}) : 0u;
}} while (next < until && wave_ballot(next_shown != 0) == 0);
{scores}if (next < until) load_keys(next);
{exchange}{softmax}{products}if (next < until) load_values(next);
first = next;
shown = next_shown;
{follow}}}
{leave}{end}}}
",
            pitch = wide + PAD,
            shared_scores = match split {
                1 => String::new(),
                _ => format!("__shared__ float shared_scores[2][{WARPS}][8][32];\nint turn = 0;\n"),
            },
            lanes = fragments.lanes,
            scale = o.scale,
            limit = of.limit(&o),
            blocks = o.text(&(volume(&k.k.sizes[..2]) * groups.count()), &mut uses),
            of_block = groups.of_block(&o.text(&k.k.sizes[1], &mut uses)),
            row = groups.row(),
            added_text = if adds { "float added[2][4], ahead[2][4];\n" } else { "" },
            loads = self.loads(&o, &mut uses),
            look = self.look(&o, adds, &mut uses)?,
            shared = of.shared,
            lq = of.lq,
            columns = values * VECTOR,
            stride = parts * self.turn(),
            scores = self.scores(),
            exchange = self.exchange(),
            softmax = self.softmax(adds),
            products = self.products(),
            follow = match adds {
                true => format!(
                    "#pragma unroll
for (int n = 0; n < 2; ++n)
#pragma unroll
for (int e = 0; e < {}; ++e) added[n][e] = ahead[n][e];
",
                    2 * slots
                ),
                false => String::new(),
            },
            leave = self.leave(),
            end = of.end(&o, groups, [parts, teams, wide], counted, &mut uses)?,
        );
        assemble(program, ENTRY, &uses, of.launch(groups, parts), &body)
    }
}
