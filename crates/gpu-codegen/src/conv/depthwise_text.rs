//! The text of a grouped convolution with few channels per group. A block keeps the weights of its channels in shared
//! memory as floats and loops over patches of the result. A thread keeps a tile of sums in registers and passes once over
//! the input rows that they need; it loads and converts each row once for all rows of the tile. Adjacent threads read
//! overlapping columns, which the first-level cache serves.
//!
//! Which tiles there are and how they rank is in `depthwise`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use ir_core::SymExpr;
use kernel_ir::BufId;

use crate::conv::depthwise::{Along, Form, Grouped, main_store, stores_along};
use crate::product::tile::is_multiple;
use crate::text::body::{BodyWriter, Uses};
use crate::text::lanes::{self, Lanes};
use crate::text::template::{assemble, element};
use crate::text::types::memory_type;
use crate::{ENTRY, GenError, Kernel, Launch, Variant};

/// The columns of the input that a thread needs for one row of the window, relative to its first load.
pub(crate) struct ReceptiveField {
    /// For each column of the window: the first column of the tile that it contributes to and the step of those, the first
    /// column of the input and the step of those, and their number.
    taps: Vec<[i64; 5]>,
    /// The columns that are needed.
    used: BTreeSet<i64>,
    width: i64,
    /// The column of the first load for column 0 of the result.
    first: i64,
}

impl ReceptiveField {
    pub(crate) fn of(of: &Grouped<'_>, form: &Form) -> ReceptiveField {
        let line = of.lines[1];
        let mut taps: Vec<[i64; 5]> = if of.k.transposed {
            let tap = |k: i64| {
                let from = (k * line.dilation - line.before).rem_euclid(line.stride);
                let at = (from + line.before - k * line.dilation).div_euclid(line.stride);
                [from, line.stride, at, 1, form.cols / line.stride]
            };
            (0..form.chunk).map(tap).collect()
        } else {
            let tap = |k: i64| [0, 1, k * line.dilation - line.before, line.stride, form.cols];
            (0..form.chunk).map(tap).collect()
        };
        let least = taps.iter().map(|t| t[2]).min().unwrap_or(0);
        let first = least.div_euclid(form.width) * form.width;
        taps.iter_mut().for_each(|t| t[2] -= first);
        let used = taps.iter().flat_map(|t| (0..t[4]).map(|n| t[2] + n * t[3])).collect();
        ReceptiveField { taps, used, width: form.width, first }
    }

    /// The columns at which loads begin.
    pub(crate) fn loads(&self) -> Vec<i64> {
        let starts: BTreeSet<i64> = self.used.iter().map(|c| c / self.width * self.width).collect();
        starts.into_iter().collect()
    }

    /// Number of columns that are held.
    pub(crate) fn columns(&self) -> i64 {
        self.loads().last().map_or(0, |c| c + self.width)
    }
}

/// The rows of the input that a thread passes over, and the window row that each is for a row of the tile.
pub(crate) struct Rows {
    pub(crate) count: i64,
    /// The input row of the first iteration for row 0 of the result, and the step per iteration.
    first: i64,
    step: i64,
    /// The window row of the first iteration for the first row of the tile, its step per row, and its step per iteration.
    tap: [i64; 3],
}

impl Rows {
    pub(crate) fn of(of: &Grouped<'_>, form: &Form) -> Rows {
        let line = of.lines[0];
        let (window, stride, before) = (line.window, line.stride, line.before);
        match (of.k.transposed, form.rows) {
            (false, 1) => Rows { count: window, first: -before, step: line.dilation, tap: [0, 0, 1] },
            (true, 1) => Rows { count: window, first: before, step: -line.dilation, tap: [0, 0, 1] },
            (false, rows) => {
                Rows { count: (rows - 1) * stride + window, first: -before, step: 1, tap: [0, -stride, 1] }
            }
            (true, rows) => {
                // The rows range from the first that the last tap reaches to the last that the first tap reaches.
                let first = -((window - 1 - before).div_euclid(stride));
                let last = (rows - 1 + before).div_euclid(stride);
                let tap = [before - first * stride, 1, -stride];
                Rows { count: last - first + 1, first, step: 1, tap }
            }
        }
    }
}

/// How adjacent results are written as vectors.
struct Finish {
    /// Adjacent columns and adjacent channels; one of them is 1.
    cols: i64,
    lanes: i64,
    vectors: BTreeMap<BufId, SymExpr>,
}

impl Finish {
    fn of(of: &Grouped<'_>, form: &Form) -> Finish {
        let (program, k) = (of.program, of.k);
        let plain = Finish { cols: 1, lanes: 1, vectors: BTreeMap::new() };
        let Some((main, index)) = main_store(k) else { return plain };
        let most = (16 / program.buffers[main].dtype.size().max(1) as i64).min(8);
        let last = k.epilogue.ranges.len() - 1;
        for (var, all) in [(1, form.lanes), (last, form.cols)] {
            if !stores_along(program, k, var) {
                continue;
            }
            for count in [8, 4, 2].into_iter().filter(|n| *n <= most && all % n == 0) {
                let lanes = Lanes { program, epilogue: &k.epilogue, var, count };
                let whole = is_multiple(&k.epilogue.ranges[var], count);
                if whole && lanes.address(main, index).is_some() {
                    let (cols, lane) = if var == 1 { (1, count) } else { (count, 1) };
                    return Finish { cols, lanes: lane, vectors: lanes.vectors() };
                }
            }
        }
        plain
    }

    /// The dimension of the result along which a vector extends.
    fn moving(&self, rank: usize) -> Option<usize> {
        match (self.cols, self.lanes) {
            (1, 1) => None,
            (1, _) => Some(1),
            _ => Some(rank - 1),
        }
    }
}

/// Generates the kernel of a tile shape.
pub(crate) fn variant(of: &Grouped<'_>, form: Form) -> Result<Variant, GenError> {
    let mut text = Text { of, form, uses: Uses::default() };
    Ok(Variant::single(form.name(), text.kernel()?))
}

struct Text<'a> {
    of: &'a Grouped<'a>,
    form: Form,
    uses: Uses,
}

impl<'a> Text<'a> {
    fn writer(&self) -> BodyWriter<'a> {
        let extents = &self.of.k.epilogue.ranges;
        BodyWriter { program: self.of.program, extents, prefix: "", guard: None, store_guard: None }
    }

    fn expr(&mut self, e: &SymExpr) -> String {
        self.writer().expr(e, &mut self.uses)
    }

    fn kernel(&mut self) -> Result<Kernel, GenError> {
        let form = self.form;
        let finish = Finish::of(self.of, &form);
        let mut body = self.head(&finish)?;
        body.push_str(&self.weights());
        body.push_str(&self.patches());
        body.push_str(&self.sums()?);
        body.push_str(&self.finish(&finish)?);
        body.push_str("}\n");
        let k = self.of.k;
        let channels = k.epilogue.ranges[1].ceil_div(&SymExpr::from_i64(form.channels()));
        let [rows, cols] = [0, 1].map(|line| self.patches_along(line));
        let images = &k.epilogue.ranges[0] * self.slices_of_result();
        let patches = images * rows * cols;
        let launch = Launch {
            blocks: [channels * patches.sym_min(&SymExpr::from_i64(form.most)), SymExpr::ONE, SymExpr::ONE],
            threads: form.threads() as u32,
            shared: form.shared(self.of) as u32,
        };
        assemble(self.of.program, ENTRY, &self.uses, launch, &body)
    }

    /// Number of patches along rows or columns of the result.
    fn patches_along(&self, line: usize) -> SymExpr {
        let form = self.form;
        let own = if line == 0 { form.rows * form.team[1] } else { form.cols * form.team[2] };
        self.of.sizes(line)[1].ceil_div(&SymExpr::from_i64(own))
    }

    /// Slices of the result, which are computed one by one.
    fn slices_of_result(&self) -> SymExpr {
        let dim = self.of.depth.and_then(|d| d.dim);
        dim.map_or(SymExpr::ONE, |d| self.of.k.epilogue.ranges[d].clone())
    }

    fn head(&mut self, finish: &Finish) -> Result<String, GenError> {
        let (of, form) = (self.of, self.form);
        let [lanes, down, across] = form.team;
        let channels = self.expr(&of.k.epilogue.ranges[1]);
        let ty = memory_type(of.program.buffers[of.k.input.buf].dtype)?;
        // Adjacent threads read adjacent elements.
        let place = match form.along {
            Along::Channels => format!("lane = threadIdx.x % {lanes}, spot = threadIdx.x / {lanes}"),
            Along::Columns => {
                let spots = down * across;
                format!("spot = threadIdx.x % {spots}, lane = threadIdx.x / {spots}")
            }
        };
        Ok(format!(
            "typedef {ty} E;
constexpr int V = {v}, COLS = {cols}, ROWS = {rows}, LANES = {each}, CHANNELS = {all}, PITCH = {pitch}, THREADS = {threads};
constexpr int KD = {kd}, KH = {kh}, KW = {kw}, TAPS = {taps};
DYNAMIC_SHARED(memory);
float *taps = (float *)memory;
const idx channels = {channels}, groups = (channels + CHANNELS - 1) / CHANNELS;
const idx channel0 = (idx)blockIdx.x % groups * CHANNELS;
const int {place};
const int down = spot / {across}, across = spot % {across};
",
            v = form.lanes,
            cols = form.cols,
            rows = form.rows,
            each = finish.cols * finish.lanes,
            all = form.channels(),
            pitch = form.pitch(of),
            threads = form.threads(),
            kd = of.slices(),
            kh = of.lines[0].window,
            kw = of.lines[1].window,
            taps = of.taps(),
        ))
    }

    /// Returns statements that copy the weights of the block's channels.
    fn weights(&mut self) -> String {
        let (k, outputs, inputs) = (self.of.k, self.of.outputs, self.of.inputs);
        let (c, tap, place) = match self.form.along {
            Along::Channels => ("e / TAPS", "e % TAPS", "tap * PITCH + c"),
            Along::Columns => ("e / TAPS", "e % TAPS", "c * PITCH + tap"),
        };
        let lead = match k.transposed {
            false => ["channel".to_owned(), "in".to_owned()],
            true => [format!("channel / {outputs} * {inputs} + in"), format!("channel % {outputs}")],
        };
        let at = ["tap / KW % KH", "tap % KW"];
        let window = (0..2).filter(|&line| self.of.lines[line].dim.is_some()).map(|line| at[line]);
        let window = self.of.depth.map(|_| "tap / (KH * KW) % KD").into_iter().chain(window);
        let index: Vec<&str> = lead.iter().map(String::as_str).chain(window).collect();
        let from = element(&self.writer(), &k.weight, &index, &mut self.uses);
        let own = match self.form.along {
            Along::Channels => "[n * PITCH + lane * V + v]".to_owned(),
            Along::Columns => format!("[imin(lane, {}) * PITCH + n]", self.form.team[0] - 1),
        };
        let kept = match self.form.keeps {
            false => String::new(),
            true => format!(
                "float kept[TAPS][V];
#pragma unroll
for (int n = 0; n < TAPS; ++n)
#pragma unroll
for (int v = 0; v < V; ++v) kept[n][v] = taps{own};
"
            ),
        };
        format!(
            "for (int e = threadIdx.x; e < CHANNELS * TAPS; e += THREADS) {{
const int c = {c}, tap = {tap}, in = tap / (KD * KH * KW);
const idx channel = channel0 + c;
taps[{place}] = channel < channels ? to<float>({from}) : 0.0f;
}}
block_sync();
{kept}"
        )
    }

    /// Returns the loop over the block's patches, up to the position of the thread's tile.
    fn patches(&mut self) -> String {
        let form = self.form;
        let [_, down, across] = form.team;
        let [high, wide] = [0, 1].map(|line| {
            let patches = self.patches_along(line);
            self.expr(&patches)
        });
        let ranges = self.of.k.epilogue.ranges.clone();
        let slices = self.slices_of_result();
        let (images, slices) = (self.expr(&(&ranges[0] * &slices)), self.expr(&slices));
        let image = match self.of.depth {
            None => "const idx i0 = patch / (high * wide);".to_owned(),
            Some(_) => format!(
                "const idx image = patch / (high * wide), i0 = image / {slices}, i2 = image % {slices};"
            ),
        };
        let [rows, cols] = [0, 1].map(|line| {
            let size = self.of.sizes(line)[1].clone();
            self.expr(&size)
        });
        format!(
            "const idx channel = channel0 + lane * V, high = {high}, wide = {wide};
for (idx patch = (idx)blockIdx.x / groups; patch < {images} * high * wide; patch += (idx)gridDim.x / groups) {{
{image}
const idx row0 = (patch / wide % high * {down} + down) * ROWS, col0 = (patch % wide * {across} + across) * COLS;
if (channel >= channels || lane >= {lanes} || down >= {down} || row0 >= {rows} || col0 >= {cols}) continue;
float acc[ROWS][COLS][V];
#pragma unroll
for (int r = 0; r < ROWS; ++r)
#pragma unroll
for (int t = 0; t < COLS; ++t)
#pragma unroll
for (int v = 0; v < V; ++v) acc[r][t][v] = 0.0f;
",
            lanes = form.team[0],
        )
    }

    /// Returns statements that accumulate the tile's products.
    fn sums(&mut self) -> Result<String, GenError> {
        let (of, form) = (self.of, self.form);
        let (reach, rows) = (ReceptiveField::of(of, &form), Rows::of(of, &form));
        let chunked = form.chunk < of.lines[1].window;
        let mut out = String::new();
        let mut open = 0;
        if of.inputs > 1 {
            let _ = writeln!(out, "#pragma unroll 1\nfor (int in = 0; in < {}; ++in) {{", of.inputs);
            open += 1;
        }
        if let (Some(line), Some(d)) = (of.depth, of.depth.and_then(|d| d.dim)) {
            let size = self.expr(&of.k.input.sizes[d]);
            let place = match of.k.transposed {
                true => format!("i2 + {} - kz * {}", line.before, line.dilation),
                false => format!("i2 * {} - {} + kz * {}", line.stride, line.before, line.dilation),
            };
            let _ = writeln!(
                out,
                "#pragma unroll 1\nfor (int kz = 0; kz < KD; ++kz) {{\nconst idx z = {place};\nif (!within(z, (idx){size})) continue;"
            );
            open += 1;
        }
        let source = match (of.inputs, of.outputs) {
            (1, 1) => "channel".to_owned(),
            (1, n) => format!("channel / {n}"),
            (m, n) => format!("(channel / {n} * {m} + in)"),
        };
        if chunked {
            let _ = writeln!(out, "#pragma unroll 1\nfor (int k0 = 0; k0 < KW; k0 += {}) {{", form.chunk);
            open += 1;
        }
        out.push_str(&self.columns(&reach, chunked));
        let turns = if form.unrolled(of) { "#pragma unroll" } else { "#pragma unroll 1" };
        let high = self.expr(&of.sizes(0)[0].clone());
        let row = match of.k.transposed {
            true => format!("row0 / {} + {}", of.lines[0].stride, rows.first),
            false => format!("row0 * {} + {}", of.lines[0].stride, rows.first),
        };
        let _ = writeln!(
            out,
            "{turns}\nfor (int turn = 0; turn < {}; ++turn) {{\nconst idx y = {row} + turn * ({});",
            rows.count, rows.step
        );
        let word = if reach.loads().len() > 32 { "u64" } else { "u32" };
        // No branch separates the rows where loads of several rows are to be in flight at once.
        match form.unrolled(of) {
            true => {
                let _ = writeln!(out, "const {word} here = within(y, (idx){high}) ? inside : 0;");
            }
            false => {
                let _ = writeln!(out, "if (!within(y, (idx){high})) continue;\nconst {word} here = inside;");
            }
        }
        out.push_str(&self.loads(&reach, &source)?);
        out.push_str(&self.products(&reach, &rows, chunked));
        out.push_str("}\n");
        out.push_str(&"}\n".repeat(open));
        Ok(out)
    }

    /// Returns the first column of the input and which loads lie within it.
    fn columns(&mut self, reach: &ReceptiveField, chunked: bool) -> String {
        let line = self.of.lines[1];
        let [size, _] = self.of.sizes(1);
        let wide = self.expr(&size);
        let (own, sign) = match self.of.k.transposed {
            true => (format!("col0 / {}", line.stride), "-"),
            false => (format!("col0 * {}", line.stride), "+"),
        };
        let chunk = if chunked { format!(" {sign} k0 * {}", line.dilation) } else { String::new() };
        let word = if reach.loads().len() > 32 { "u64" } else { "u32" };
        let mut out = format!("const idx x = {own} + ({}){chunk};\n{word} inside = 0;\n", reach.first);
        for (n, column) in reach.loads().into_iter().enumerate() {
            let _ = writeln!(out, "inside |= ({word})within(x + {column}, (idx){wide}) << {n};");
        }
        out
    }

    /// Returns statements that load and convert the columns of a row.
    fn loads(&mut self, reach: &ReceptiveField, source: &str) -> Result<String, GenError> {
        let (of, form) = (self.of, self.form);
        let input = &of.k.input;
        let step = self.expr(&of.step(1));
        let places: Vec<&str> =
            (0..2).filter(|&l| of.lines[l].dim.is_some()).map(|l| ["y", "x"][l]).collect();
        let slice = of.depth.map(|_| "z");
        let index: Vec<&str> = ["i0", source].into_iter().chain(slice).chain(places).collect();
        let at = element(&self.writer(), input, &index, &mut self.uses);
        let (memory, place) = at.split_once('[').unwrap_or((&at, "0]"));
        let place = place.trim_end_matches(']');
        // Several output channels of one input channel share an element.
        let lanes = if of.outputs > 1 { 1 } else { form.lanes };
        let each = lanes * form.width;
        let mut out = format!("const E *from = {memory} + ({place});\n");
        for (n, column) in reach.loads().into_iter().enumerate() {
            let _ = writeln!(
                out,
                "Packed<E, {each}> raw{n} = {{}};\nif (here >> {n} & 1) raw{n} = *(const Packed<E, {each}> *)(from + (idx){column} * {step});"
            );
        }
        let _ = writeln!(out, "float held[{}];", reach.columns() * lanes);
        for (n, column) in reach.loads().into_iter().enumerate() {
            let _ = writeln!(out, "widened(held + {}, raw{n});", column * lanes);
        }
        Ok(out)
    }

    /// Returns statements that multiply a row by the window rows that it meets.
    fn products(&self, reach: &ReceptiveField, rows: &Rows, chunked: bool) -> String {
        let (of, form) = (self.of, self.form);
        let [first, by_row, by_turn] = rows.tap;
        let channel = match (of.inputs > 1, of.depth.is_some()) {
            (true, true) => " + (in * KD + kz) * (KH * KW)",
            (true, false) => " + in * (KH * KW)",
            (false, true) => " + kz * (KH * KW)",
            (false, false) => "",
        };
        let chunk = if chunked { " + k0" } else { "" };
        let tap = format!("(ky * KW{chunk}{channel})");
        let weights = match form.along {
            _ if form.keeps => String::new(),
            Along::Channels => format!("const float *w = taps + {tap} * PITCH + lane * V;"),
            Along::Columns => format!("const float *w = taps + lane * PITCH + {tap};"),
        };
        let held = |column: &str| match (of.outputs > 1, form.lanes) {
            (true, _) | (_, 1) => format!("held[{column}]"),
            _ => format!("held[({column}) * V + v]"),
        };
        let mut out = format!(
            "#pragma unroll\nfor (int r = 0; r < ROWS; ++r) {{\nconst int ky = {first} + r * ({by_row}) + turn * ({by_turn});\n\
             if (ROWS == 1 || within(ky, KH)) {{\n{weights}\n"
        );
        for (k, [from, apart, at, step, count]) in reach.taps.iter().enumerate() {
            let guard = if chunked && k > 0 { format!("if (k0 + {k} < KW) ") } else { String::new() };
            let weight = match form.along {
                _ if form.keeps => format!(
                    "Vec<float, V> tap;\n#pragma unroll\nfor (int v = 0; v < V; ++v) tap.v[v] = kept[ky * KW + {k}][v];"
                ),
                Along::Channels => {
                    format!("const Vec<float, V> tap = *(const Vec<float, V> *)(w + {k} * PITCH);")
                }
                Along::Columns => format!("Vec<float, V> tap; tap.v[0] = w[{k}];"),
            };
            let value = held(&format!("{at} + n * {step}"));
            let _ = writeln!(
                out,
                "{guard}{{\n{weight}\n#pragma unroll\nfor (int n = 0; n < {count}; ++n)\n#pragma unroll\n\
                 for (int v = 0; v < V; ++v) acc[r][{from} + n * {apart}][v] = fmaf({value}, tap.v[v], acc[r][{from} + n * {apart}][v]);\n}}"
            );
        }
        out.push_str("}\n}\n");
        out
    }

    /// How often the loops of a staged epilogue over rows, columns and channels are unrolled: one of them, and that in part.
    fn staged(&self, cols: i64, lanes: i64) -> [&'static str; 3] {
        let (of, form) = (self.of, self.form);
        let times = match form.repeats(of, cols * lanes) {
            4 => "4",
            2 => "2",
            _ => "1",
        };
        match (form.cols / cols > 1, form.lanes / lanes > 1) {
            (true, _) => ["1", times, "1"],
            (false, true) => ["1", "1", times],
            (false, false) => [times, "1", "1"],
        }
    }

    /// Returns statements that run the epilogue on the tile.
    fn finish(&mut self, finish: &Finish) -> Result<String, GenError> {
        let (of, form) = (self.of, self.form);
        let (program, k) = (of.program, of.k);
        let rank = k.epilogue.ranges.len();
        let stages_sums = form.stages_sums(of);
        let moving = finish.moving(rank);
        let name = |d: usize| if moving == Some(d) { format!("lane0_{d}") } else { format!("i{d}") };
        let mut places = format!("const idx {} = channel + v;\n", name(1));
        let mut inside = Vec::new();
        for (line, value) in [(0, "row0 + r"), (1, "col0 + t")] {
            if let Some(d) = of.lines[line].dim {
                let size = self.expr(&of.sizes(line)[1].clone());
                let _ = writeln!(places, "const idx {} = {value};", name(d));
                // Tiles that begin inside end inside where they divide the result.
                let own = if line == 0 { form.rows } else { form.cols };
                if !is_multiple(&of.sizes(line)[1], own) {
                    inside.push(format!("{} < {size}", name(d)));
                }
            }
        }
        let text = lanes::text(
            program,
            &k.epilogue,
            (moving, finish.cols * finish.lanes),
            (&finish.vectors, &BTreeMap::new()),
            &mut self.uses,
        )?;
        let element = match (finish.cols, finish.lanes) {
            (1, _) => "[r][t][v + u]",
            _ => "[r][t + u][v]",
        };
        let (cols, lanes, shared) = (finish.cols, finish.lanes, form.taps_bytes(of));
        let walk = |unroll: [&str; 3], inner: &str| {
            let [rows, columns, channels] = unroll.map(|times| format!("#pragma unroll {times}\n"));
            format!(
                "{rows}for (int r = 0; r < ROWS; ++r)\n{columns}for (int t = 0; t < COLS; t += {cols})\n{channels}for (int v = 0; v < V; v += {lanes}) {{\n{inner}}}\n"
            )
        };
        let lane = "#pragma unroll\nfor (int u = 0; u < LANES; ++u)";
        let result = |take: &str| {
            let guard = if inside.is_empty() { "true".into() } else { inside.join(" && ") };
            format!("{places}if ({guard}) {{\nfloat sum[LANES];\n{lane} {take}\n{text}}}\n")
        };
        if !stages_sums {
            return Ok(walk([""; 3], &result(&format!("sum[u] = acc{element};"))));
        }
        // Every thread reads back only what it wrote.
        let own = "own[piece * (LANES * THREADS) + (int)threadIdx.x * LANES + u]";
        Ok(format!(
            "float *own = (float *)(memory + {shared});\nint piece = 0;\n{}piece = 0;\n{}",
            walk([""; 3], &format!("{lane} {own} = acc{element};\n++piece;\n")),
            walk(self.staged(cols, lanes), &format!("{}++piece;\n", result(&format!("sum[u] = {own};")))),
        ))
    }
}
