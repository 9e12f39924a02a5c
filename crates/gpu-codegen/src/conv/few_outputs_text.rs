//! The text of a convolution to few output channels by matrix cores. A block goes from patch to patch of the result with all weights in
//! shared memory; a thread runs the epilogue on all channels of one point, for which neighbouring threads have neighbouring columns.
//!
//! Which shapes there are is in `few_outputs`.

use std::fmt::Write;

use ir_core::SymExpr;

use crate::conv::few_outputs::{Few, VECTOR};
use crate::conv::patch::{DEPTH, ROWS, Shape, WARPS, WAVE, sum};
use crate::text::body::Uses;
use crate::text::template::{assemble, epilogue};
use crate::text::types::memory_type;
use crate::{ENTRY, GenError, Kernel, Launch, Variant};

/// Generates the kernel of a shape.
pub(crate) fn variant(few: &Few<'_>, shape: Shape) -> Result<Variant, GenError> {
    let mut text = Text { few, shape, uses: Uses::default() };
    Ok(Variant::single(shape.name("few_outputs"), text.kernel()?))
}

struct Text<'a> {
    few: &'a Few<'a>,
    shape: Shape,
    uses: Uses,
}

impl Text<'_> {
    fn kernel(&mut self) -> Result<Kernel, GenError> {
        let (few, of) = (self.few, &self.few.of);
        let patches = of.count(&self.shape);
        let mut body = self.head()?;
        body.push_str(&self.weights());
        let _ = write!(
            body,
            "for (idx tile = blockIdx.x; tile < tiles; tile += gridDim.x) {{\n{}\
             float acc[EACH][4] = {{}};\n\
             #pragma unroll 1\nfor (int chunk = 0; chunk < CHUNKS; ++chunk) {{\n{}{}}}\n{}}}\n",
            of.origin(),
            self.fetch(),
            self.products(),
            self.finish()?
        );
        let launch = Launch {
            blocks: [patches.sym_min(&SymExpr::from_i64(few.most)), SymExpr::ONE, SymExpr::ONE],
            threads: (WARPS * WAVE) as u32,
            shared: sum(&few.parts(&self.shape)) as u32,
        };
        assemble(of.program, ENTRY, &self.uses, launch, &body)
    }

    fn head(&mut self) -> Result<String, GenError> {
        let (few, of) = (self.few, &self.few.of);
        let [weights, patch, _] = few.parts(&self.shape);
        let ty = memory_type(of.program.buffers[of.k.input.buf].dtype)?;
        Ok(format!(
            "typedef {ty} E;
{constants}constexpr int CHANNELS = {chunk}, CHUNKS = {chunks}, STEPS = CHANNELS / {DEPTH}, PITCH = {pitch}, OUTPUTS = {outputs}, LINE = THREADS + {DEPTH};
DYNAMIC_SHARED(memory);
u32 *weights = (u32 *)memory;
E *patch = (E *)(memory + {weights});
float *sums = (float *)(memory + {at_sums});
{extents}const int thread = threadIdx.x, lane = thread % {WAVE}, warp = thread / {WAVE};
",
            constants = of.constants(&self.shape),
            extents = of.extents(&self.shape, &mut self.uses),
            chunk = few.chunk,
            chunks = few.inputs / few.chunk,
            pitch = few.pitch(),
            outputs = few.outputs,
            at_sums = weights + patch,
        ))
    }

    /// Returns statements that lay out the weights as fragments of the right operand, chunk by chunk and point by point of the window.
    fn weights(&mut self) -> String {
        let from = self.few.of.weight(&mut self.uses);
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
        let of = &self.few.of;
        let from = of.input("channel", &mut self.uses);
        let memory = from.split_once('[').map_or(from.clone(), |(memory, _)| memory.to_owned());
        format!(
            "block_sync();
#pragma unroll 4
for (int e = thread; e < PD * PH * PW * (CHANNELS / {VECTOR}); e += THREADS) {{
const int point = e / (CHANNELS / {VECTOR}), vector = e % (CHANNELS / {VECTOR});
const idx channel = chunk * CHANNELS + vector * {VECTOR};
{}cp_async_16(patch + point * PITCH + vector * {VECTOR}, inside ? &{from} : {memory}, inside ? 16 : 0);
}}
cp_async_commit();
cp_async_wait<0>();
block_sync();
",
            of.point("point", &mut self.uses),
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
        let of = &self.few.of;
        let text = epilogue(of.program, &of.k.epilogue, "result", &mut self.uses)?;
        let places = of.places(["z0", "y", "x"]);
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
