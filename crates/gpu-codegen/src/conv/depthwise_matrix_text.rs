//! The text of a depthwise convolution by matrix cores. A block walks down the rows of one patch after another, a turn
//! for each row of the result. Rows of the input are copied to a ring in shared memory some turns ahead, and turned one turn
//! ahead, so that the columns of a channel are adjacent. A warp keeps the band matrices of its channels in registers; in a
//! turn it multiplies the rows of the input by those of all rows of the window, each into the sums of another row of the
//! result, of which the oldest is then complete. It goes through shared memory to threads that run the epilogue on adjacent
//! channels of a point, in the turn behind.
//!
//! Which tiles there are and how they rank is in `depthwise_matrix`.

use std::collections::BTreeMap;
use std::fmt::Write;

use ir_core::SymExpr;
use kernel_ir::BufId;

use crate::conv::depthwise::main_store;
use crate::conv::depthwise_matrix::{Banded, COLUMNS, Form, PIECES, SUMS_GAP, VECTOR, VECTOR_GAP, WAVE};
use crate::text::body::{BodyWriter, Uses};
use crate::text::lanes::{self, Lanes};
use crate::text::template::{assemble, element};
use crate::text::types::memory_type;
use crate::{ENTRY, GenError, Kernel, Launch, Variant};

/// Generates the kernel of a tile shape; `None` where results cannot be stored as vectors of channels.
pub(crate) fn variant(of: &Banded<'_>, form: Form) -> Result<Option<Variant>, GenError> {
    let Some((lanes, vectors)) = vectors(of) else { return Ok(None) };
    let mut text = Text { of, form, lanes, vectors, uses: Uses::default() };
    Ok(Some(Variant::single(form.name(), text.kernel()?)))
}

/// Whether results can be stored as vectors of channels.
pub(crate) fn has_vectors(of: &Banded<'_>) -> bool {
    vectors(of).is_some()
}

/// How many adjacent channels are stored at once, and the vectors of the epilogue.
fn vectors(of: &Banded<'_>) -> Option<(i64, BTreeMap<BufId, SymExpr>)> {
    let (program, k) = (of.of.program, of.of.k);
    let (main, index) = main_store(k)?;
    let count = (16 / program.buffers[main].dtype.size().max(1) as i64).min(VECTOR);
    let lanes = Lanes { program, epilogue: &k.epilogue, var: 1, count };
    lanes.address(main, index).filter(|_| count >= 4)?;
    Some((count, lanes.vectors()))
}

struct Text<'a> {
    of: &'a Banded<'a>,
    form: Form,
    /// Adjacent channels of the epilogue.
    lanes: i64,
    vectors: BTreeMap<BufId, SymExpr>,
    uses: Uses,
}

impl<'a> Text<'a> {
    fn writer(&self) -> BodyWriter<'a> {
        let of = self.of.of;
        let extents = &of.k.epilogue.ranges;
        BodyWriter { program: of.program, extents, prefix: "", guard: None, store_guard: None }
    }

    fn expr(&mut self, e: &SymExpr) -> String {
        self.writer().expr(e, &mut self.uses)
    }

    /// Patches along images, rows and columns.
    fn patches(&self) -> [SymExpr; 3] {
        let (of, form) = (self.of.of, self.form);
        let along = |all: &SymExpr, own: i64| all.ceil_div(&SymExpr::from_i64(own));
        [
            along(&of.k.epilogue.ranges[0], form.images),
            along(&of.sizes(0)[1], form.bands * form.high),
            along(&of.sizes(1)[1], form.tiles * COLUMNS),
        ]
    }

    fn kernel(&mut self) -> Result<Kernel, GenError> {
        let form = self.form;
        let mut body = self.head()?;
        body.push_str(&self.window());
        body.push_str(&self.fetch());
        body.push_str(&self.turns()?);
        let channels = self.of.of.k.epilogue.ranges[1].ceil_div(&SymExpr::from_i64(form.channels()));
        let patches = self.patches().iter().fold(SymExpr::ONE, |all, n| &all * n);
        let launch = Launch {
            blocks: [channels * patches.sym_min(&SymExpr::from_i64(form.most)), SymExpr::ONE, SymExpr::ONE],
            threads: form.threads() as u32,
            shared: form.shared(self.of) as u32,
        };
        let mut kernel = assemble(self.of.of.program, ENTRY, &self.uses, launch, &body)?;
        let bounds = |more: &str| format!("__launch_bounds__({}{more})", form.threads());
        kernel.source = kernel.source.replacen(&bounds(""), &bounds(&format!(", {}", form.beside())), 1);
        Ok(kernel)
    }

    fn head(&mut self) -> Result<String, GenError> {
        let (of, form) = (self.of, self.form);
        let [down, across] = of.lines;
        let [rows, turned, window, _] = form.parts(of);
        let ty = memory_type(of.of.program.buffers[of.of.k.input.buf].dtype)?;
        let ranges = of.of.k.epilogue.ranges.clone();
        let [images, channels] = [0, 1].map(|d| self.expr(&ranges[d]));
        let [high, wide] = [0, 1].map(|line| self.expr(&of.of.sizes(line)[1]));
        let [along_images, along_rows, along_cols] = self.patches().map(|n| self.expr(&n));
        Ok(format!(
            "typedef {ty} E;
constexpr int KH = {kh}, KW = {kw}, DX = {dx}, STEPS = {steps}, BAND = {band};
constexpr int IMAGES = {image_count}, BANDS = {bands}, TILES = {tiles}, HIGH = {band_rows}, EACH = {each}, CHANNELS = {all}, THREADS = {threads};
constexpr int SEGMENTS = IMAGES * BANDS, PAIRS = {pairs}, PITCH = {pitch}, VECTORS = CHANNELS / {VECTOR}, DEPTH = {depth};
constexpr int ITEMS = SEGMENTS * PAIRS * VECTORS, PLANE = SEGMENTS * PITCH, TURNED = {turned};
constexpr int POINT = CHANNELS + {SUMS_GAP}, LINE = {COLUMNS} * POINT + {gap}, WIDTH = {gap}, LANES = {lanes}, TURNS = HIGH + KH - 1;
DYNAMIC_SHARED(memory);
Quad *ring = (Quad *)memory;
u16 *turned = (u16 *)(memory + {at_turned}), *bands = (u16 *)(memory + {at_window});
float *all_sums = (float *)(memory + {at_sums});
const idx channels = {channels}, images = {images}, high = {high}, wide = {wide}, groups = (channels + CHANNELS - 1) / CHANNELS;
const idx channel0 = (idx)blockIdx.x % groups * CHANNELS;
const idx down = {along_rows}, across = {along_cols}, patches = {along_images} * down * across;
const idx first = (idx)blockIdx.x / groups, apart = (idx)gridDim.x / groups;
int thread = threadIdx.x;
KEPT(thread);
const int lane = thread % {WAVE}, warp = thread / {WAVE}, group = lane / 4, pair = lane % 4;
",
            kh = down.window,
            kw = across.window,
            dx = across.dilation,
            steps = of.steps(),
            band = form.band(of),
            image_count = form.images,
            bands = form.bands,
            tiles = form.tiles,
            band_rows = form.high,
            each = form.each,
            all = form.channels(),
            threads = form.threads(),
            pairs = form.columns(of) / 2,
            depth = form.depth,
            pitch = form.pitch(of),
            turned = form.turned(of),
            gap = form.width(),
            lanes = self.lanes,
            at_turned = rows,
            at_window = rows + turned,
            at_sums = rows + turned + window,
        ))
    }

    /// Returns statements that lay out the window's rows between zeros, and read the band matrices from there. A second copy
    /// of a row lies one element further on, so that two adjacent elements are one word of either.
    fn window(&mut self) -> String {
        let of = self.of.of;
        let turned = |name: &str, size: &str| match of.k.transposed {
            true => format!("{size} - 1 - {name}"),
            false => name.to_owned(),
        };
        let (y, x) = (turned("ky", "KH"), turned("kx", "KW"));
        let places = [(0, y.as_str()), (1, x.as_str())];
        let window = places.into_iter().filter(|(line, _)| of.lines[*line].dim.is_some()).map(|(_, e)| e);
        let index: Vec<&str> = ["channel", "0"].into_iter().chain(window).collect();
        let from = element(&self.writer(), &of.k.weight, &index, &mut self.uses);
        format!(
            "for (int e = thread; e < CHANNELS * KH * BAND; e += THREADS) ((u32 *)bands)[e] = 0;
block_sync();
#pragma unroll 8
for (int e = thread; e < CHANNELS * KH * KW; e += THREADS) {{
const int kx = e % KW, ky = e / KW % KH, c = e / (KW * KH);
const idx channel = channel0 + c;
if (channel < channels) {{
const u16 bits = bits_as<u16>({from});
u16 *band = bands + (c * KH + ky) * (2 * BAND) + {ahead} + kx * DX;
band[0] = bits;
band[BAND - 1] = bits;
}}
}}
block_sync();
u32 band[EACH][KH][STEPS][2];
#pragma unroll
for (int c = 0; c < EACH; ++c)
#pragma unroll
for (int ky = 0; ky < KH; ++ky)
#pragma unroll
for (int n = 0; n < 2 * STEPS; ++n) {{
const int at = {ahead} - group + 2 * pair + n * {COLUMNS}, odd = at & 1;
const u16 *from = bands + ((warp * EACH + c) * KH + ky) * (2 * BAND) + odd * (BAND - 1) + at;
band[c][ky][n / 2][n % 2] = *(const u32 *)from;
}}
",
            ahead = COLUMNS - 1,
        )
    }

    /// Returns a function that begins to copy the rows of the next turn, and its state, and one that turns what has arrived. A
    /// thread copies and turns the same columns. Columns and rows outside of the input are filled with zeros.
    fn fetch(&mut self) -> String {
        let of = self.of.of;
        let [down, across] = self.of.lines;
        let places: Vec<&str> =
            (0..2).filter(|&line| of.lines[line].dim.is_some()).map(|line| ["y", "x"][line]).collect();
        let index: Vec<&str> = ["i0", "channel"].into_iter().chain(places).collect();
        let from = element(&self.writer(), &of.k.input, &index, &mut self.uses);
        let (memory, at) = from.split_once('[').unwrap_or((&from, "0]"));
        let at = at.trim_end_matches(']');
        let [down_step, step] = [0, 1].map(|line| self.expr(&of.step(line)));
        let [tall, broad] = [0, 1].map(|line| self.expr(&of.sizes(line)[0]));
        format!(
            "auto place = [=](idx patch, idx &image, idx &row, idx &tile) {{
image = patch / (down * across) * IMAGES;
row = patch / across % down * (BANDS * HIGH);
tile = patch % across * TILES;
}};
constexpr int OWN = (ITEMS + THREADS - 1) / THREADS;
idx next = first;
int next_turn = 0, there[OWN];
idx next_y[OWN];
const E *from[OWN];
u32 *turn_to[OWN];
#pragma unroll
for (int n = 0; n < OWN; ++n) {{
const int e = n * THREADS + thread;
turn_to[n] = (u32 *)(turned + e % VECTORS * ({VECTOR} * PLANE + {VECTOR_GAP}) + e / VECTORS / PAIRS * PITCH) + e / VECTORS % PAIRS;
}}
auto aim = [&]() {{
idx image, row, tile;
place(next, image, row, tile);
#pragma unroll
for (int n = 0; n < OWN; ++n) {{
const int e = n * THREADS + thread;
const int segment = e / VECTORS / PAIRS;
const idx channel = channel0 + e % VECTORS * {VECTOR}, i0 = image + segment / BANDS;
const idx y = row + segment % BANDS * HIGH - ({before_y}), x = tile * {COLUMNS} - ({before_x}) + e / VECTORS % PAIRS * 2;
const bool inside = e < ITEMS && channel < channels && i0 < images;
there[n] = (int)(inside && within(x, (idx){broad})) | (int)(inside && within(x + 1, (idx){broad})) << 1;
next_y[n] = y;
from[n] = {memory} + ({at});
}}
}};
aim();
auto fetch = [&](int slot) {{
if (next < patches) {{
#pragma unroll
for (int n = 0; n < OWN; ++n) {{
const int e = n * THREADS + thread, both = within(next_y[n], (idx){tall}) ? there[n] : 0;
if (ITEMS % THREADS == 0 || e < ITEMS) {{
cp_async_16(ring + slot * 2 * ITEMS + e, both & 1 ? from[n] : {memory}, both & 1 ? 16 : 0);
cp_async_16(ring + (slot * 2 + 1) * ITEMS + e, both & 2 ? from[n] + {step} : {memory}, both & 2 ? 16 : 0);
}}
++next_y[n];
from[n] += {down_step};
}}
if (++next_turn == TURNS) {{
next_turn = 0;
next += apart;
aim();
}}
}}
cp_async_commit();
}};
Quad raw[OWN][2];
auto arrived = [&](int slot) {{
#pragma unroll
for (int n = 0; n < OWN; ++n) {{
const int e = n * THREADS + thread;
if (ITEMS % THREADS == 0 || e < ITEMS) {{
raw[n][0] = ring[slot * 2 * ITEMS + e];
raw[n][1] = ring[(slot * 2 + 1) * ITEMS + e];
}}
}}
}};
auto turn_round = [&](int side) {{
#pragma unroll
for (int n = 0; n < OWN; ++n) {{
const u32 left[4] = {{raw[n][0].x, raw[n][0].y, raw[n][0].z, raw[n][0].w}}, right[4] = {{raw[n][1].x, raw[n][1].y, raw[n][1].z, raw[n][1].w}};
if (ITEMS % THREADS == 0 || n * THREADS + thread < ITEMS) {{
#pragma unroll
for (int c = 0; c < 4; ++c) {{
turn_to[n][side * (TURNED / 2) + 2 * c * (PLANE / 2)] = low_halves(left[c], right[c]);
turn_to[n][side * (TURNED / 2) + (2 * c + 1) * (PLANE / 2)] = high_halves(left[c], right[c]);
}}
}}
}}
}};
",
            before_y = down.before,
            before_x = across.before,
        )
    }

    /// Returns the loop over the turns of all patches of the block.
    fn turns(&mut self) -> Result<String, GenError> {
        let finish = self.finish()?;
        Ok(format!(
            "const int piece = imin(lane % {PIECES}, SEGMENTS * TILES - 1);
const u16 *own = turned + warp * EACH * PLANE + warp * EACH / {VECTOR} * {VECTOR_GAP} + piece / TILES * PITCH + (piece % TILES + lane / {PIECES}) * {COLUMNS};
#pragma unroll
for (int n = 0; n < DEPTH; ++n) fetch(n);
cp_async_wait<DEPTH - 1>();
arrived(0);
turn_round(0);
idx patch = first, image0 = 0, row0 = 0, tile0 = 0, was_image = 0, was_row = 0, was_tile = 0;
int turn = 0, was_turn = -1;
place(patch, image0, row0, tile0);
float acc[EACH][KH][4];
#pragma unroll 1
for (int now = 0; ; ++now) {{
block_sync();
const bool more = patch < patches;
float done[EACH][4];
if (more) {{
cp_async_wait<DEPTH - 2>();
arrived((now + 1) % DEPTH);
if (turn == 0) {{
#pragma unroll
for (int c = 0; c < EACH; ++c)
#pragma unroll
for (int age = 0; age < KH; ++age)
#pragma unroll
for (int n = 0; n < 4; ++n) acc[c][age][n] = 0.0f;
}}
{products}turn_round((now + 1) % 2);
}}
{finish}if (!more) break;
fetch(now % DEPTH);
float *sums = all_sums + now % 2 * ({PIECES} * LINE);
#pragma unroll
for (int n = 0; n < 4; ++n)
#pragma unroll
for (int c = 0; c < EACH; c += WIDTH) {{
Vec<float, WIDTH> some;
#pragma unroll
for (int u = 0; u < WIDTH; ++u) some.v[u] = done[c + u][n];
*(Vec<float, WIDTH> *)(sums + (group + n / 2 * 8) * LINE + (2 * pair + n % 2) * POINT + warp * EACH + c) = some;
}}
was_image = image0; was_row = row0; was_tile = tile0; was_turn = turn;
if (++turn == TURNS) {{
turn = 0;
patch += apart;
place(patch, image0, row0, tile0);
}}
}}
",
            products = self.products(),
        ))
    }

    /// Returns statements that multiply the rows of a turn. The sums of the oldest row of the result are `done` with it, all
    /// others are one turn older.
    fn products(&self) -> String {
        "u32 a[EACH][STEPS][4];
#pragma unroll
for (int c = 0; c < EACH; ++c)
#pragma unroll
for (int n = 0; n < STEPS; ++n) ldmatrix_x4(a[c][n], own + now % 2 * TURNED + c * PLANE + n * 16);
#pragma unroll
for (int c = 0; c < EACH; ++c)
#pragma unroll
for (int age = KH - 1; age >= 0; --age) {
float sum[4] = {acc[c][age][0], acc[c][age][1], acc[c][age][2], acc[c][age][3]};
#pragma unroll
for (int n = 0; n < STEPS; ++n) MmaOf<E>::run(sum, a[c][n], band[c][age][n]);
#pragma unroll
for (int n = 0; n < 4; ++n) {
if (age == KH - 1) done[c][n] = sum[n];
else acc[c][age + 1][n] = sum[n];
if (age == 0) acc[c][0][n] = 0.0f;
}
}
"
        .to_owned()
    }

    /// Returns statements that run the epilogue on the sums of the turn before.
    fn finish(&mut self) -> Result<String, GenError> {
        let (of, lanes) = (self.of.of, self.lanes);
        let text = lanes::text(
            of.program,
            &of.k.epilogue,
            (Some(1), lanes),
            (&self.vectors, &BTreeMap::new()),
            &mut self.uses,
        )?;
        // A whole number of vectors for each thread.
        let results = PIECES * COLUMNS * self.form.channels() / lanes;
        let mut places = String::new();
        for (line, value) in [(0, "y"), (1, "x")] {
            if let Some(d) = of.lines[line].dim {
                let _ = writeln!(places, "const idx i{d} = {value};");
            }
        }
        Ok(format!(
            "if (was_turn >= KH - 1) {{
constexpr int VECTORS_OUT = CHANNELS / LANES;
const float *sums = all_sums + (now + 1) % 2 * ({PIECES} * LINE);
#pragma unroll {unroll}
for (int n = 0; n < {results} / THREADS; ++n) {{
const int e = n * THREADS + thread, col = e % {COLUMNS}, vector = e / (2 * {COLUMNS}) % VECTORS_OUT;
const int piece = e / (2 * {COLUMNS} * VECTORS_OUT) * 2 + e / {COLUMNS} % 2, segment = piece / TILES;
const int row = segment % BANDS * HIGH + was_turn - (KH - 1);
const idx i0 = was_image + segment / BANDS, lane0_1 = channel0 + vector * LANES;
const idx y = was_row + row, x = (was_tile + piece % TILES) * {COLUMNS} + col;
{places}if (segment < SEGMENTS && i0 < images && y < high && x < wide && lane0_1 < channels) {{
float sum[LANES];
#pragma unroll
for (int u = 0; u < LANES; u += WIDTH) {{
const Vec<float, WIDTH> some = *(const Vec<float, WIDTH> *)(sums + piece * LINE + col * POINT + vector * LANES + u);
#pragma unroll
for (int n = 0; n < WIDTH; ++n) sum[u + n] = some.v[n];
}}
{text}}}
}}
}}
",
            unroll = if results / self.form.threads() > 2 { 1 } else { 2 },
        ))
    }
}
