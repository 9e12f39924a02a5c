//! The text of a convolution of few input channels by matrix cores. A block goes from patch to patch of the result: it copies what the
//! patch sees of the input, multiplies, and runs the epilogue on adjacent channels of a point, which reach their threads through shared
//! memory. Points of the window beyond the last one are no elements but zeros: the input may hold infinities.
//!
//! Which shapes there are is in `few_inputs`.

use std::collections::BTreeMap;
use std::fmt::Write;

use ir_core::SymExpr;
use kernel_ir::BufId;

use crate::conv::depthwise::main_store;
use crate::conv::few_inputs::{Few, SUMS_GAP};
use crate::conv::patch::{COLS, DEPTH, ROWS, Shape, WARPS, WAVE, sum};
use crate::text::body::Uses;
use crate::text::lanes::{self, Lanes};
use crate::text::template::assemble;
use crate::text::types::memory_type;
use crate::{ENTRY, GenError, Kernel, Launch, Variant};

/// Channels of a vector at most, and at least.
const LANES: [i64; 2] = [8, 4];

/// Generates the kernel of a shape.
pub(crate) fn variant(few: &Few<'_>, shape: Shape) -> Result<Variant, GenError> {
    let (lanes, vectors) =
        vectors(few).ok_or_else(|| GenError::Malformed("results are no vectors of channels".into()))?;
    let name = format!("{}x{}", shape.name("few_mma"), few.columns);
    let mut text = Text { few, shape, lanes, vectors, uses: Uses::default() };
    Ok(Variant::single(name, text.kernel()?))
}

/// Whether results can be stored as vectors of channels.
pub(crate) fn has_vectors(few: &Few<'_>) -> bool {
    vectors(few).is_some()
}

/// How many adjacent channels are stored at once, and the vectors of the epilogue.
fn vectors(few: &Few<'_>) -> Option<(i64, BTreeMap<BufId, SymExpr>)> {
    let (program, k) = (few.of.program, few.of.k);
    let (main, index) = main_store(k)?;
    let widest = 16 / program.buffers[main].dtype.size().max(1) as i64;
    LANES.into_iter().filter(|count| *count <= widest).find_map(|count| {
        let lanes = Lanes { program, epilogue: &k.epilogue, var: 1, count };
        lanes.address(main, index)?;
        Some((count, lanes.vectors()))
    })
}

struct Text<'a> {
    few: &'a Few<'a>,
    shape: Shape,
    /// Adjacent channels of the epilogue.
    lanes: i64,
    vectors: BTreeMap<BufId, SymExpr>,
    uses: Uses,
}

impl Text<'_> {
    fn kernel(&mut self) -> Result<Kernel, GenError> {
        let (few, of, threads) = (self.few, &self.few.of, WARPS * WAVE);
        let chunks = of.k.epilogue.ranges[1].ceil_div(&SymExpr::from_i64(few.columns));
        let patches = of.count(&self.shape);
        let mut body = self.head()?;
        body.push_str(&self.weights());
        let _ = write!(
            body,
            "for (idx tile = (idx)blockIdx.x / chunks; tile < tiles; tile += (idx)gridDim.x / chunks) {{\n{}{}{}{}}}\n",
            of.origin(),
            self.fetch(),
            self.products(),
            self.finish()?
        );
        let launch = Launch {
            blocks: [chunks * patches.sym_min(&SymExpr::from_i64(few.most)), SymExpr::ONE, SymExpr::ONE],
            threads: threads as u32,
            shared: sum(&few.parts(&self.shape)) as u32,
        };
        let mut kernel = assemble(of.program, ENTRY, &self.uses, launch, &body)?;
        let bounds = |more: &str| format!("__launch_bounds__({threads}{more})");
        kernel.source = kernel.source.replacen(&bounds(""), &bounds(&format!(", {}", few.beside())), 1);
        Ok(kernel)
    }

    fn head(&mut self) -> Result<String, GenError> {
        let (few, of) = (self.few, &self.few.of);
        let [weights, patch, sums, _] = few.parts(&self.shape);
        let ty = memory_type(of.program.buffers[of.k.input.buf].dtype)?;
        let channels = of.expr(&of.k.epilogue.ranges[1], &mut self.uses);
        Ok(format!(
            "typedef {ty} E;
{constants}constexpr int INPUTS = {inputs}, POINT = {point}, STEP_TAPS = {DEPTH} / POINT, STEPS = {steps};
constexpr int COLUMNS = {columns}, TILES = COLUMNS / {COLS}, PITCH = COLUMNS + {SUMS_GAP}, LANES = {lanes};
DYNAMIC_SHARED(memory);
u32 *weights = (u32 *)memory;
u16 *patch = (u16 *)(memory + {weights});
float *sums = (float *)(memory + {at_sums});
int *places = (int *)(memory + {at_places});
{extents}const idx channels = {channels}, chunks = (channels + COLUMNS - 1) / COLUMNS, channel0 = (idx)blockIdx.x % chunks * COLUMNS;
const int thread = threadIdx.x, lane = thread % {WAVE}, warp = thread / {WAVE}, group = lane / 4, pair = lane % 4;
",
            constants = of.constants(&self.shape),
            extents = of.extents(&self.shape, &mut self.uses),
            inputs = few.inputs,
            point = few.channels(),
            steps = few.steps(),
            columns = few.columns,
            lanes = self.lanes,
            at_sums = weights + patch,
            at_places = weights + patch + sums,
        ))
    }

    /// Returns statements that lay out the weights as fragments of the right operand, and note where the window's points lie in a patch.
    fn weights(&mut self) -> String {
        let from = self.few.of.weight(&mut self.uses);
        format!(
            "#pragma unroll 4
for (int e = thread; e < STEPS * TILES * 64; e += THREADS) {{
const idx channel = channel0 + e / 64 % TILES * {COLS} + e / 8 % 8;
u16 both[2] = {{0, 0}};
#pragma unroll
for (int u = 0; u < 2; ++u) {{
const int k = e / (64 * TILES) * {DEPTH} + e % 2 * 8 + e / 2 % 4 * 2 + u, tap = k / POINT, c = k % POINT;
const int kx = tap % KW, ky = tap / KW % KH, kz = tap / (KW * KH);
(void)kx; (void)ky; (void)kz;
if (tap < TAPS && c < INPUTS && channel < channels) both[u] = bits_as<u16>({from});
}}
weights[e] = (u32)both[0] | (u32)both[1] << 16;
}}
for (int tap = thread; tap < STEPS * STEP_TAPS; tap += THREADS) {{
const int kx = tap % KW, ky = tap / KW % KH, kz = tap / (KW * KH);
places[tap] = tap < TAPS ? ((kz * DZ * PH + ky * DY) * PW + kx * DX) * POINT : -1;
}}
"
        )
    }

    /// Returns statements that copy what a patch sees of the input.
    fn fetch(&mut self) -> String {
        let of = &self.few.of;
        let from = of.input("c", &mut self.uses);
        format!(
            "block_sync();
#pragma unroll 4
for (int e = thread; e < PD * PH * PW; e += THREADS) {{
{}Vec<u16, POINT> point = {{}};
if (inside) {{
#pragma unroll
for (int c = 0; c < INPUTS; ++c) point.v[c] = bits_as<u16>({from});
}}
*(Vec<u16, POINT> *)(patch + e * POINT) = point;
}}
block_sync();
",
            of.point("e", &mut self.uses),
        )
    }

    /// Returns statements that multiply. Fragments are numbered along columns first; a warp's are consecutive.
    fn products(&self) -> String {
        format!(
            "float acc[EACH][TILES][4];
const u16 *own[EACH];
#pragma unroll
for (int m = 0; m < EACH; ++m) {{
const int fragment = warp * EACH + m;
own[m] = patch + (fragment / FRAGMENTS * SY * PW + (fragment % FRAGMENTS * {ROWS} + group) * SX) * POINT + pair * 2 % POINT;
#pragma unroll
for (int n = 0; n < TILES; ++n)
#pragma unroll
for (int r = 0; r < 4; ++r) acc[m][n][r] = 0.0f;
}}
#pragma unroll 4
for (int step = 0; step < STEPS; ++step) {{
u32 a[EACH][4];
#pragma unroll
for (int half = 0; half < 2; ++half) {{
const int place = places[step * STEP_TAPS + (half * 8 + pair * 2) / POINT];
#pragma unroll
for (int m = 0; m < EACH; ++m)
#pragma unroll
for (int r = 0; r < 2; ++r)
a[m][half * 2 + r] = place >= 0 ? *(const u32 *)(own[m] + r * 8 * SX * POINT + place) : 0u;
}}
#pragma unroll
for (int n = 0; n < TILES; ++n) {{
const Vec<u32, 2> both = *(const Vec<u32, 2> *)(weights + ((step * TILES + n) * {WAVE} + lane) * 2);
const u32 b[2] = {{both.v[0], both.v[1]}};
#pragma unroll
for (int m = 0; m < EACH; ++m) MmaOf<E>::run(acc[m][n], a[m], b);
}}
}}
"
        )
    }

    /// Returns statements that run the epilogue on the sums.
    fn finish(&mut self) -> Result<String, GenError> {
        let of = &self.few.of;
        let text = lanes::text(
            of.program,
            &of.k.epilogue,
            (Some(1), self.lanes),
            (&self.vectors, &BTreeMap::new()),
            &mut self.uses,
        )?;
        let places = of.places(["z0", "y", "x"]);
        Ok(format!(
            "float *mine = sums + warp * {ROWS} * PITCH;
#pragma unroll
for (int m = 0; m < EACH; ++m) {{
wave_sync();
#pragma unroll
for (int n = 0; n < TILES; ++n)
#pragma unroll
for (int r = 0; r < 2; ++r)
*(Vec<float, 2> *)(mine + (group + r * 8) * PITCH + n * {COLS} + pair * 2) = {{{{acc[m][n][r * 2], acc[m][n][r * 2 + 1]}}}};
wave_sync();
const int fragment = warp * EACH + m;
for (int e = lane; e < {ROWS} * (COLUMNS / LANES); e += {WAVE}) {{
const int at = e / (COLUMNS / LANES), vector = e % (COLUMNS / LANES);
const idx y = y0 + fragment / FRAGMENTS, x = x0 + fragment % FRAGMENTS * {ROWS} + at, lane0_1 = channel0 + vector * LANES;
{places}if (y < high && x < wide && lane0_1 < channels) {{
float sum[LANES];
#pragma unroll
for (int u = 0; u < LANES; u += 4) {{
const Vec<float, 4> some = *(const Vec<float, 4> *)(mine + at * PITCH + vector * LANES + u);
#pragma unroll
for (int n = 0; n < 4; ++n) sum[u + n] = some.v[n];
}}
{text}}}
}}
}}
"
        ))
    }
}
