//! Gradients of attention of 16-bit numbers by matrix cores of waves (`dialect/hip/cores.cu`). Scores and cotangents of weights are
//! computed turned, far rows by own ones, so that a lane has those of one own row and they are, rounded, factors of the next
//! products. Own rows stay in registers; tiles of the far side lie in shared memory as they are for the first products and turned
//! for the second ones, and the next ones are on their way while one is multiplied.

use crate::attention::Operands;
use crate::attention::backward::{Backward, Side};
use crate::attention::backward_flash::{Dropped, Flash, PAD, round_up_16};
use crate::attention::flash_waves::{TURNED_PAD, at, lines, two_waves};
use crate::text::body::Uses;
use crate::text::template::{assemble, volume};
use crate::{ENTRY, GenError, Kernel, Launch, MAX_BLOCKS};
use ir_core::SymExpr;

/// Elements of a query and a value together for which waves of 32 have registers: beyond it clang spills.
const MAX_SHORT: i64 = 64;

/// Whether registers hold a wave's own rows beside the gradients of keys and values.
pub(crate) fn held(flash: &Flash<'_>) -> bool {
    flash.fragments.wave == 64 || flash.depth + flash.width <= MAX_SHORT
}

/// Bytes of shared memory of the larger kernel: tiles of the far side, both turned too, and two numbers for each of two tiles' rows.
pub(crate) fn shared(flash: &Flash<'_>) -> i64 {
    let (tile, far) = (flash.tile(), flash.fragments.far);
    let plain = tile * (round_up_16(flash.depth) + round_up_16(flash.width) + 2 * PAD);
    let turned = (lines(flash.depth, far) + lines(flash.width, far)) * (tile + TURNED_PAD);
    2 * (plain + turned) + 2 * 2 * tile * 4
}

/// What one side's kernel is written from.
struct Writer<'a> {
    flash: &'a Flash<'a>,
    side: Side,
    warps: i64,
}

impl Writer<'_> {
    fn backward(&self) -> &Backward {
        self.flash.backward
    }

    /// The lambda over both matrices of one side: queries with cotangents, or keys with values.
    fn rows(&self, o: &Operands<'_>, far: bool, uses: &mut Uses) -> [String; 2] {
        let (b, a, f) = (self.backward(), &self.backward().attention, &self.flash.fragments);
        let queries = (self.side == Side::Queries) != far;
        let (operands, head, row, limit) = match queries {
            true => ([&a.q, &b.g], "i1", "i2", &o.rows),
            false => ([&a.k, &a.v], "kv", "j", &o.keys),
        };
        let (parameters, place) = match far {
            true => ("int line, int part", format!("const idx {row} = from + line; ")),
            false => ("int part", format!("const idx {row} = row0 + warp * {} + line4; ", f.own)),
        };
        let within = format!("{row} < {limit}");
        [(operands[0], self.flash.depth), (operands[1], self.flash.width)].map(|(operand, elements)| {
            let source = o.element(operand, ["i0", head, row, "d"], uses);
            at(self.flash.ty(), (parameters, &place), [&within, &source], elements)
        })
    }

    /// What starts to bring the tiles of turn `next`, and with queries the numbers of their rows.
    fn prefetch(&self, o: &Operands<'_>, uses: &mut Uses) -> String {
        let tile = self.flash.tile();
        let [first, second] = self.rows(o, true, uses);
        let take = format!("fill1.take({first});\nfill2.take({second});\n");
        if self.side == Side::Queries {
            return format!("const idx from = next * {tile};\n{take}");
        }
        let sum = self.backward().of_row(o, &self.backward().sums, uses);
        let delta = self.backward().of_row(o, &self.backward().deltas, uses);
        format!(
            "const idx i1 = kv * {group} + next / tiles_far, from = (first_tile + next % tiles_far) * {tile};
{take}for (int t = threadIdx.x; t < {tile}; t += {threads}) {{
const idx i2 = from + t;
far_sums[next % 2 * {tile} + t] = flash_exponent(i2 < {rows} ? {sum} : -INF32);
far_deltas[next % 2 * {tile} + t] = i2 < {rows} ? {delta} : 0.0f;
}}
",
            group = o.group,
            rows = o.rows,
            threads = self.warps * self.flash.fragments.wave,
        )
    }

    /// What ends the copies of a turn's tiles.
    fn land(&self) -> String {
        let plain = |n: i64, pitch: i64| format!("fill{n}.template plain<{pitch}>(far{n});\n");
        let mut out =
            plain(1, round_up_16(self.flash.depth) + PAD) + &plain(2, round_up_16(self.flash.width) + PAD);
        out.push_str("fill1.turned(turned1);\n");
        if self.side == Side::Keys {
            out.push_str("fill2.turned(turned2);\n");
        }
        out
    }

    /// `out += tile · ownᵀ`.
    fn scores(&self, n: i64, out: &str, elements: i64) -> String {
        let (f, tile) = (&self.flash.fragments, self.flash.tile());
        format!(
            "#pragma unroll
for (int s = 0; s < {steps}; ++s) {{
#pragma unroll
for (int n = 0; n < {nt}; ++n) C::run({out}[n], C::row_at(far{n} + (n * C::M + line4) * {pitch} + s * C::K, lane), own{n}[s]);
step_end();
}}
",
            steps = round_up_16(elements) / f.inner,
            nt = tile / f.far,
            pitch = round_up_16(elements) + PAD,
        )
    }

    /// `out += tileᵀ · factors`, of the turned tile.
    fn product(&self, factors: &str, n: i64, out: &str, elements: i64) -> String {
        let (f, tile) = (&self.flash.fragments, self.flash.tile());
        format!(
            "#pragma unroll
for (int s = 0; s < {tile} / C::K; ++s) {{
const C::Held x = C::made({factors}, s, lane);
#pragma unroll
for (int t = 0; t < {et}; ++t) C::run({out}[t], C::template turned<{tile}>(turned{n}, t * C::M + line4, s * C::K, lane), x);
step_end();
}}
",
            et = lines(elements, f.far) / f.far,
        )
    }

    /// Statements that turn every `score` and `grad` into the weight and the cotangent of the score. Tiles that every row of the
    /// block sees whole need no look at each.
    fn weigh(&self, o: &Operands<'_>, uses: &mut Uses) -> Result<String, GenError> {
        let (a, f, tile) = (&self.backward().attention, &self.flash.fragments, self.flash.tile());
        let block_rows = self.warps * f.own;
        let (places, before, inside, causal_inside) = match self.side {
            Side::Queries => (
                format!("const idx i2 = first, j = turn * {tile} + column;\n"),
                "const float exponent = flash_exponent(own_sums[0]);\n".to_owned(),
                format!("row0 + {block_rows} <= {} && turn * {tile} + {tile} <= {}", o.rows, o.keys),
                format!(" && turn * {tile} + {} <= row0", tile - 1),
            ),
            Side::Keys => (
                format!(
                    "const idx j = first, i1 = kv * {group} + turn / tiles_far, i2 = (first_tile + turn % tiles_far) * {tile} + column;\n",
                    group = o.group
                ),
                format!("const idx far0 = (first_tile + turn % tiles_far) * {tile};\n"),
                format!("row0 + {block_rows} <= {} && far0 + {tile} <= {}", o.keys, o.rows),
                format!(" && row0 + {} <= far0", block_rows - 1),
            ),
        };
        let numbers = match self.side {
            Side::Queries => "const float delta = own_deltas[0];\n".to_owned(),
            Side::Keys => format!(
                "const float exponent = far_sums[turn % 2 * {tile} + column], delta = far_deltas[turn % 2 * {tile} + column];\n"
            ),
        };
        let over = |text: &str, grad: &str, weight: &str| {
            format!(
                "#pragma unroll
for (int n = 0; n < {nt}; ++n)
#pragma unroll
for (int e = 0; e < {parts}; ++e) {{
const int column = n * {far} + {far_row};
(void)column;
{numbers}{text}grad[n][e] = {grad};
score[n][e] = {weight};
}}
",
                nt = tile / f.far,
                parts = f.parts,
                far = f.far,
                far_row = f.far_row,
            )
        };
        let causal = if a.causal { " && j <= i2" } else { "" };
        let Dropped { kept, weight, cotangent } = Dropped::of(o, uses)?;
        let cotangent = format!("w * ({cotangent} - delta)");
        let text = format!(
            "{places}bool seen = i2 < {rows} && j < {keys}{causal};
float sc = score[n][e] * {scale};
if (seen) {{
{mask}}}
const float w = seen ? exp2_flushed(fmaf(sc, 1.4426950408889634f, -exponent)) : 0.0f;
{kept}",
            rows = o.rows,
            keys = o.keys,
            scale = o.scale,
            mask = o.mask_of("sc", uses)?,
        );
        let general = over(&text, &format!("seen ? {cotangent} : 0.0f"), &weight);
        if a.is_masked() || a.dropout.is_some() {
            return Ok(format!("{before}{general}"));
        }
        let text = format!(
            "const float w = exp2_flushed(fmaf(score[n][e], {} * 1.4426950408889634f, -exponent));\n",
            o.scale
        );
        let whole = over(&text, &cotangent, &weight);
        let causal = if a.causal { causal_inside } else { String::new() };
        Ok(format!("{before}if ({inside}{causal}) {{\n{whole}}} else {{\n{general}}}\n"))
    }
}

/// The kernel of one side.
pub(crate) fn kernel(flash: &Flash<'_>, warps: i64, side: Side) -> Result<Kernel, GenError> {
    let (b, a, f) = (flash.backward, &flash.backward.attention, &flash.fragments);
    let w = Writer { flash, side, warps };
    let mut uses = Uses::default();
    let o = Operands::of(flash.program, a, &mut uses);
    let own = if side == Side::Queries { &a.q } else { &a.k };
    let tiles = own.sizes[2].ceil_div(&SymExpr::from_i64(warps * f.own));
    let count = volume(&own.sizes[..2]) * &tiles;
    let (tiles, all) = (o.text(&tiles, &mut uses), o.text(&count, &mut uses));
    let heads = o.text(&own.sizes[1], &mut uses);
    let [own1, own2] = w.rows(&o, false, &mut uses);
    let bounds = flash.bounds(&o, side, warps, &mut uses);
    let prefetch = w.prefetch(&o, &mut uses);
    let weigh = w.weigh(&o, &mut uses)?;
    let scale = format!(" * {}", o.scale);
    let (depth, width) = (flash.depth, flash.width);
    let fragments = |elements: i64| lines(elements, f.far) / f.far;
    let (sums, products, stores) = match side {
        Side::Queries => (
            format!("C::Sums of_query[{}] = {{}};\n", fragments(depth)),
            w.product("grad", 1, "of_query", depth),
            flash.store(&o, (&b.dq, "i1", &o.rows), ("of_query", &scale, depth), (side, &mut uses))?,
        ),
        Side::Keys => (
            format!("C::Sums of_key[{}] = {{}}, of_value[{}] = {{}};\n", fragments(depth), fragments(width)),
            w.product("score", 2, "of_value", width) + &w.product("grad", 1, "of_key", depth),
            flash.store(&o, (&b.dk, "kv", &o.keys), ("of_key", &scale, depth), (side, &mut uses))?
                + &flash.store(&o, (&b.dv, "kv", &o.keys), ("of_value", "", width), (side, &mut uses))?,
        ),
    };
    let tile = flash.tile();
    let body = format!(
        "DYNAMIC_SHARED(memory);
typedef Core<{ty}, {far}> C;
{ty} *far1 = ({ty} *)memory, *far2 = far1 + {tile} * {dp}, *turned1 = far2 + {tile} * {wp}, *turned2 = turned1 + {turned};
float *far_sums = (float *)(turned2 + {turned_width}), *far_deltas = far_sums + 2 * {tile};
(void)far_deltas;
{lanes}
for (idx block = blockIdx.x; block < {all}; block += gridDim.x) {{
const idx row0 = block % {tiles} * {block_rows}, head = block / {tiles} % {heads}, i0 = block / {tiles} / {heads};
const idx first = row0 + warp * {own} + line4;
{bounds}C::Held own1[{steps1}], own2[{steps2}];
#pragma unroll
for (int s = 0; s < {steps1}; ++s) own1[s] = C::gather({own1}, s * C::K, lane);
#pragma unroll
for (int s = 0; s < {steps2}; ++s) own2[s] = C::gather({own2}, s * C::K, lane);
RowFiller<{ty}, {tile}, {depth}, {threads}> fill1;
RowFiller<{ty}, {tile}, {width}, {threads}> fill2;
if (turns > 0) {{ const idx next = 0;
{prefetch}{land}}}
{sums}for (idx turn = 0; turn < turns; ++turn) {{
if (turn + 1 < turns) {{ const idx next = turn + 1;
{prefetch}}}
block_sync();
C::Sums score[{nt}] = {{}}, grad[{nt}] = {{}};
{scores}{grads}{weigh}{products}block_sync();
if (turn + 1 < turns) {{
{land}}}
}}
{stores}}}
",
        ty = flash.ty(),
        far = f.far,
        own = f.own,
        lanes = f.lanes,
        block_rows = warps * f.own,
        dp = round_up_16(depth) + PAD,
        wp = round_up_16(width) + PAD,
        turned = lines(depth, f.far) * (tile + TURNED_PAD),
        turned_width = lines(width, f.far) * (tile + TURNED_PAD),
        steps1 = round_up_16(depth) / f.inner,
        steps2 = round_up_16(width) / f.inner,
        depth = round_up_16(depth),
        width = round_up_16(width),
        threads = warps * f.wave,
        land = w.land(),
        nt = tile / f.far,
        scores = w.scores(1, "score", depth),
        grads = w.scores(2, "grad", width),
    );
    let mut launch = Launch::flat(count.sym_min(&SymExpr::from_i64(MAX_BLOCKS)), (warps * f.wave) as u32);
    launch.shared = shared(flash) as u32;
    let mut kernel = assemble(flash.program, ENTRY, &uses, launch, &body)?;
    two_waves(&mut kernel, f.wave, warps >= 4 && depth + width <= 128);
    Ok(kernel)
}
