//! The text of a convolution to few output channels by matrix cores. A block goes from patch to patch of the result with all weights in
//! shared memory; a thread runs the epilogue on all channels of one point, for which neighbouring threads have neighbouring columns.
//!
//! Which shapes there are is in `few_outputs`.

use std::fmt::Write;

use ir_core::SymExpr;

use crate::conv::few_inputs::{DEPTH, EACH, ROWS, WAVE};
use crate::conv::few_outputs::{Few, Form, VECTOR};
use crate::text::body::{BodyWriter, Uses};
use crate::text::template::{assemble, element, epilogue};
use crate::text::types::memory_type;
use crate::{ENTRY, GenError, Kernel, Launch, Variant};

/// Generates the kernel of a shape.
pub(crate) fn variant(of: &Few<'_>, form: Form) -> Result<Variant, GenError> {
    let mut text = Text { of, form, uses: Uses::default() };
    Ok(Variant::single(form.name(), text.kernel()?))
}

struct Text<'a> {
    of: &'a Few<'a>,
    form: Form,
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
        let patches = self.patches().iter().fold(of.k.epilogue.ranges[0].clone(), |all, n| &all * n);
        let mut body = self.head()?;
        body.push_str(&self.weights());
        let _ = write!(
            body,
            "for (idx tile = blockIdx.x; tile < tiles; tile += gridDim.x) {{\n\
             const idx i0 = tile / (across * down * deep), z0 = tile / (across * down) % deep, y0 = tile / across % down * HIGH, x0 = tile % across * WIDE;\n\
             float acc[EACH][4] = {{}};\n\
             #pragma unroll 1\nfor (int chunk = 0; chunk < CHUNKS; ++chunk) {{\n{}{}}}\n{}}}\n",
            self.fetch(),
            self.products(),
            self.finish()?
        );
        let launch = Launch {
            blocks: [patches.sym_min(&SymExpr::from_i64(form.most)), SymExpr::ONE, SymExpr::ONE],
            threads: form.threads() as u32,
            shared: form.shared(of) as u32,
        };
        assemble(of.program, ENTRY, &self.uses, launch, &body)
    }

    fn head(&mut self) -> Result<String, GenError> {
        let (of, form) = (self.of, self.form);
        let [l0, l1, l2] = of.lines;
        let [weights, patch, _] = form.parts(of);
        let [pd, ph, pw] = form.patch(of);
        let ty = memory_type(of.program.buffers[of.k.input.buf].dtype)?;
        let images = self.expr(&of.k.epilogue.ranges[0].clone());
        let [deep, down, across] = self.patches().map(|n| self.expr(&n));
        let [high, wide] = [1, 2].map(|line| self.expr(&of.sizes(line)[1]));
        Ok(format!(
            "typedef {ty} E;
constexpr int KD = {}, KH = {}, KW = {}, DZ = {}, DY = {}, DX = {}, SY = {}, SX = {};
constexpr int CHANNELS = {}, CHUNKS = {}, STEPS = CHANNELS / {DEPTH}, PITCH = {}, TAPS = KD * KH * KW, OUTPUTS = {};
constexpr int PD = {pd}, PH = {ph}, PW = {pw}, HIGH = {}, WIDE = {}, FRAGMENTS = {}, EACH = {EACH}, THREADS = {}, LINE = THREADS + {DEPTH};
DYNAMIC_SHARED(memory);
u32 *weights = (u32 *)memory;
E *patch = (E *)(memory + {weights});
float *sums = (float *)(memory + {at_sums});
const idx deep = {deep}, down = {down}, across = {across}, high = {high}, wide = {wide}, tiles = {images} * deep * down * across;
const int thread = threadIdx.x, lane = thread % {WAVE}, warp = thread / {WAVE};
",
            l0.window,
            l1.window,
            l2.window,
            l0.dilation,
            l1.dilation,
            l2.dilation,
            l1.stride,
            l2.stride,
            of.chunk,
            of.inputs / of.chunk,
            of.pitch(),
            of.outputs,
            form.rows,
            form.fragments * ROWS,
            form.fragments,
            form.threads(),
            at_sums = weights + patch,
        ))
    }

    /// Returns statements that lay out the weights as fragments of the right operand, chunk by chunk and point by point of the window.
    fn weights(&mut self) -> String {
        let index: Vec<&str> =
            ["channel", "c"].into_iter().chain(self.coordinates(["kz", "ky", "kx"])).collect();
        let from = element(&self.writer(), &self.of.k.weight, &index, &mut self.uses);
        format!(
            "#pragma unroll 4
for (int e = thread; e < CHUNKS * TAPS * STEPS * 64; e += THREADS) {{
const int channel = e / 8 % 8, tap = e / (64 * STEPS) % TAPS, kx = tap % KW, ky = tap / KW % KH, kz = tap / (KW * KH);
(void)kx; (void)ky; (void)kz;
u16 both[2] = {{0, 0}};
#pragma unroll
for (int u = 0; u < 2; ++u) {{
const int c = e / (64 * STEPS * TAPS) * CHANNELS + e / 64 % STEPS * {DEPTH} + e % 2 * 8 + e / 2 % 4 * 2 + u;
if (channel < OUTPUTS) both[u] = bits_as<u16>({from});
}}
weights[e] = (u32)both[0] | (u32)both[1] << 16;
}}
"
        )
    }

    /// Returns statements that copy some channels of what a patch sees of the input.
    fn fetch(&mut self) -> String {
        let of = self.of;
        let index: Vec<&str> =
            ["i0", "channel"].into_iter().chain(self.coordinates(["z", "y", "x"])).collect();
        let from = element(&self.writer(), &of.k.input, &index, &mut self.uses);
        let memory = from.split_once('[').map_or(from.clone(), |(memory, _)| memory.to_owned());
        let [deep, tall, broad] = [0, 1, 2].map(|line| self.expr(&of.sizes(line)[0]));
        let [z, y, x] = of.lines;
        format!(
            "block_sync();
#pragma unroll 4
for (int e = thread; e < PD * PH * PW * (CHANNELS / {VECTOR}); e += THREADS) {{
const int point = e / (CHANNELS / {VECTOR}), vector = e % (CHANNELS / {VECTOR});
const idx x = x0 * SX - ({}) + point % PW, y = y0 * SY - ({}) + point / PW % PH, z = z0 * {} - ({}) + point / (PW * PH);
const idx channel = chunk * CHANNELS + vector * {VECTOR};
const bool inside = within(x, (idx){broad}) && within(y, (idx){tall}) && within(z, (idx){deep});
cp_async_16(patch + point * PITCH + vector * {VECTOR}, inside ? &{from} : {memory}, inside ? 16 : 0);
}}
cp_async_commit();
cp_async_wait<0>();
block_sync();
",
            x.before, y.before, z.stride, z.before,
        )
    }

    /// Returns statements that multiply. Fragments are numbered along columns first; a warp's are consecutive.
    fn products(&self) -> String {
        format!(
            "const E *own[EACH];
#pragma unroll
for (int m = 0; m < EACH; ++m) {{
const int fragment = warp * EACH + m;
own[m] = patch + (fragment / FRAGMENTS * SY * PW + (fragment % FRAGMENTS * {ROWS} + lane % {ROWS}) * SX) * PITCH + lane / {ROWS} * 8;
}}
#pragma unroll 1
for (int kz = 0; kz < KD; ++kz)
#pragma unroll 1
for (int ky = 0; ky < KH; ++ky)
#pragma unroll
for (int kx = 0; kx < KW; ++kx) {{
const int tap = (kz * KH + ky) * KW + kx, place = ((kz * DZ * PH + ky * DY) * PW + kx * DX) * PITCH;
#pragma unroll
for (int step = 0; step < STEPS; ++step) {{
const Vec<u32, 2> both = *(const Vec<u32, 2> *)(weights + (((chunk * TAPS + tap) * STEPS + step) * {WAVE} + lane) * 2);
const u32 b[2] = {{both.v[0], both.v[1]}};
#pragma unroll
for (int m = 0; m < EACH; ++m) {{
u32 a[4];
ldmatrix_x4(a, own[m] + place + step * {DEPTH});
MmaOf<E>::run(acc[m], a, b);
}}
}}
}}
"
        )
    }

    /// Returns statements that run the epilogue on the sums.
    fn finish(&mut self) -> Result<String, GenError> {
        let of = self.of;
        let text = epilogue(of.program, &of.k.epilogue, "result", &mut self.uses)?;
        let mut places = String::new();
        for (line, value) in ["z0", "y", "x"].into_iter().enumerate() {
            if let Some(d) = of.lines[line].dim {
                let _ = writeln!(places, "const idx i{d} = {value};");
            }
        }
        Ok(format!(
            "#pragma unroll
for (int m = 0; m < EACH; ++m)
#pragma unroll
for (int r = 0; r < 4; ++r) sums[(lane % 4 * 2 + r % 2) * LINE + (warp * EACH + m) * {ROWS} + lane / 4 + r / 2 * 8] = acc[m][r];
block_sync();
const idx y = y0 + thread / {ROWS} / FRAGMENTS, x = x0 + thread / {ROWS} % FRAGMENTS * {ROWS} + thread % {ROWS};
{places}if (y < high && x < wide) {{
#pragma unroll
for (int n = 0; n < OUTPUTS; ++n) {{
const idx i1 = n;
const float result = sums[n * LINE + thread];
{text}}}
}}
"
        ))
    }
}
