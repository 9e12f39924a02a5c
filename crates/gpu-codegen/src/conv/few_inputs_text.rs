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
use crate::conv::few_inputs::{COLS, DEPTH, EACH, Few, Form, ROWS, SUMS_GAP, WAVE};
use crate::text::body::{BodyWriter, Uses};
use crate::text::lanes::{self, Lanes};
use crate::text::template::{assemble, element};
use crate::text::types::memory_type;
use crate::{ENTRY, GenError, Kernel, Launch, Variant};

/// Channels of a vector at most, and at least.
const LANES: [i64; 2] = [8, 4];

/// Generates the kernel of a shape.
pub(crate) fn variant(of: &Few<'_>, form: Form) -> Result<Variant, GenError> {
    let (lanes, vectors) =
        vectors(of).ok_or_else(|| GenError::Malformed("results are no vectors of channels".into()))?;
    let mut text = Text { of, form, lanes, vectors, uses: Uses::default() };
    Ok(Variant::single(form.name(), text.kernel()?))
}

/// Whether results can be stored as vectors of channels.
pub(crate) fn has_vectors(of: &Few<'_>) -> bool {
    vectors(of).is_some()
}

/// How many adjacent channels are stored at once, and the vectors of the epilogue.
fn vectors(of: &Few<'_>) -> Option<(i64, BTreeMap<BufId, SymExpr>)> {
    let (program, k) = (of.program, of.k);
    let (main, index) = main_store(k)?;
    let widest = 16 / program.buffers[main].dtype.size().max(1) as i64;
    LANES.into_iter().filter(|count| *count <= widest).find_map(|count| {
        let lanes = Lanes { program, epilogue: &k.epilogue, var: 1, count };
        lanes.address(main, index)?;
        Some((count, lanes.vectors()))
    })
}

struct Text<'a> {
    of: &'a Few<'a>,
    form: Form,
    /// Adjacent channels of the epilogue.
    lanes: i64,
    vectors: BTreeMap<BufId, SymExpr>,
    uses: Uses,
}

impl<'a> Text<'a> {
    fn writer(&self) -> BodyWriter<'a> {
        let of = self.of;
        let extents = &of.k.epilogue.ranges;
        BodyWriter { program: of.program, extents, prefix: "", guard: None, store_guard: None }
    }

    fn expr(&mut self, e: &SymExpr) -> String {
        self.writer().expr(e, &mut self.uses)
    }

    /// Patches along slices, rows and columns of an image.
    fn patches(&self) -> [SymExpr; 3] {
        let own = [1, self.form.rows, self.form.fragments * ROWS];
        [0, 1, 2].map(|line| self.of.sizes(line)[1].ceil_div(&SymExpr::from_i64(own[line])))
    }

    /// The names of the spatial coordinates that there are.
    fn coordinates(&self, names: [&'static str; 3]) -> Vec<&'static str> {
        (0..3).filter(|&line| self.of.lines[line].dim.is_some()).map(|line| names[line]).collect()
    }

    fn kernel(&mut self) -> Result<Kernel, GenError> {
        let (of, form) = (self.of, self.form);
        let ranges = &of.k.epilogue.ranges;
        let chunks = ranges[1].ceil_div(&SymExpr::from_i64(form.columns));
        let patches = self.patches().iter().fold(ranges[0].clone(), |all, n| &all * n);
        let mut body = self.head()?;
        body.push_str(&self.weights());
        let _ = write!(
            body,
            "for (idx tile = (idx)blockIdx.x / chunks; tile < tiles; tile += (idx)gridDim.x / chunks) {{\n\
             const idx i0 = tile / (across * down * deep), z0 = tile / (across * down) % deep, y0 = tile / across % down * HIGH, x0 = tile % across * WIDE;\n{}{}{}}}\n",
            self.fetch(),
            self.products(),
            self.finish()?
        );
        let launch = Launch {
            blocks: [chunks * patches.sym_min(&SymExpr::from_i64(form.most)), SymExpr::ONE, SymExpr::ONE],
            threads: form.threads() as u32,
            shared: form.shared(of) as u32,
        };
        let mut kernel = assemble(of.program, ENTRY, &self.uses, launch, &body)?;
        let bounds = |more: &str| format!("__launch_bounds__({}{more})", form.threads());
        kernel.source = kernel.source.replacen(&bounds(""), &bounds(&format!(", {}", form.beside())), 1);
        Ok(kernel)
    }

    fn head(&mut self) -> Result<String, GenError> {
        let (of, form) = (self.of, self.form);
        let [l0, l1, l2] = of.lines;
        let [weights, patch, sums, _] = form.parts(of);
        let [pd, ph, pw] = form.patch(of);
        let ty = memory_type(of.program.buffers[of.k.input.buf].dtype)?;
        let ranges = &of.k.epilogue.ranges;
        let [images, channels] = [0, 1].map(|d| self.expr(&ranges[d]));
        let [deep, down, across] = self.patches().map(|n| self.expr(&n));
        let [high, wide] = [1, 2].map(|line| self.expr(&of.sizes(line)[1]));
        Ok(format!(
            "typedef {ty} E;
constexpr int KD = {}, KH = {}, KW = {}, DZ = {}, DY = {}, DX = {}, SY = {}, SX = {};
constexpr int INPUTS = {}, POINT = {}, TAPS = KD * KH * KW, STEP_TAPS = {DEPTH} / POINT, STEPS = {};
constexpr int PD = {pd}, PH = {ph}, PW = {pw}, HIGH = {}, WIDE = {}, FRAGMENTS = {}, EACH = {EACH}, THREADS = {};
constexpr int COLUMNS = {}, TILES = COLUMNS / {COLS}, PITCH = COLUMNS + {SUMS_GAP}, LANES = {};
DYNAMIC_SHARED(memory);
u32 *weights = (u32 *)memory;
u16 *patch = (u16 *)(memory + {weights});
float *sums = (float *)(memory + {at_sums});
int *places = (int *)(memory + {at_places});
const idx images = {images}, channels = {channels}, deep = {deep}, down = {down}, across = {across}, high = {high}, wide = {wide};
const idx chunks = (channels + COLUMNS - 1) / COLUMNS, channel0 = (idx)blockIdx.x % chunks * COLUMNS, tiles = images * deep * down * across;
const int thread = threadIdx.x, lane = thread % {WAVE}, warp = thread / {WAVE}, group = lane / 4, pair = lane % 4;
",
            l0.window,
            l1.window,
            l2.window,
            l0.dilation,
            l1.dilation,
            l2.dilation,
            l1.stride,
            l2.stride,
            of.inputs,
            of.channels(),
            of.steps(),
            form.rows,
            form.fragments * ROWS,
            form.fragments,
            form.threads(),
            form.columns,
            self.lanes,
            at_sums = weights + patch,
            at_places = weights + patch + sums,
        ))
    }

    /// Returns statements that lay out the weights as fragments of the right operand, and note where the window's points lie in a patch.
    fn weights(&mut self) -> String {
        let index: Vec<&str> =
            ["channel", "c"].into_iter().chain(self.coordinates(["kz", "ky", "kx"])).collect();
        let from = element(&self.writer(), &self.of.k.weight, &index, &mut self.uses);
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
        let of = self.of;
        let index: Vec<&str> = ["i0", "c"].into_iter().chain(self.coordinates(["z", "y", "x"])).collect();
        let from = element(&self.writer(), &of.k.input, &index, &mut self.uses);
        let [deep, tall, broad] = [0, 1, 2].map(|line| self.expr(&of.sizes(line)[0]));
        let [z, y, x] = of.lines;
        format!(
            "block_sync();
#pragma unroll 4
for (int e = thread; e < PD * PH * PW; e += THREADS) {{
const idx x = x0 * SX - ({}) + e % PW, y = y0 * SY - ({}) + e / PW % PH, z = z0 * {} - ({}) + e / (PW * PH);
Vec<u16, POINT> point = {{}};
if (within(x, (idx){broad}) && within(y, (idx){tall}) && within(z, (idx){deep})) {{
#pragma unroll
for (int c = 0; c < INPUTS; ++c) point.v[c] = bits_as<u16>({from});
}}
*(Vec<u16, POINT> *)(patch + e * POINT) = point;
}}
block_sync();
",
            x.before, y.before, z.stride, z.before,
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
        let of = self.of;
        let text = lanes::text(
            of.program,
            &of.k.epilogue,
            (Some(1), self.lanes),
            (&self.vectors, &BTreeMap::new()),
            &mut self.uses,
        )?;
        let mut places = String::new();
        for (line, value) in ["z0", "y", "x"].into_iter().enumerate() {
            if let Some(d) = of.lines[line].dim {
                let _ = writeln!(places, "const idx i{d} = {value};");
            }
        }
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
