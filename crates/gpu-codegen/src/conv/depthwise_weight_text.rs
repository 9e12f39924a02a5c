//! The text of a depthwise convolution whose window is larger than its result: one kernel whose threads accumulate over
//! their parts of the window, and one that reduces the parts of the blocks and runs the epilogue.
//!
//! Which shapes there are and how they rank is in `depthwise_weight`.

use std::fmt::Write;

use ir_core::SymExpr;
use kernel_ir::Operand;

use crate::conv::depthwise::{Along, div_ceil};
use crate::conv::depthwise_weight::{Form, Line, Sums, Walk};
use crate::text::body::{BodyWriter, Uses};
use crate::text::template::{assemble, element, epilogue, volume};
use crate::text::types::memory_type;
use crate::{ENTRY, GenError, Kernel, Launch, Variant};

/// Number of threads that reduce the parts of one point.
const REDUCING_THREADS: i64 = 8;

/// The writer of one tile shape.
struct Text<'a> {
    of: &'a Sums<'a>,
    form: Form,
    uses: Uses,
}

/// Generates the two kernels of a tile shape.
pub(crate) fn variant(of: &Sums<'_>, form: Form) -> Result<Variant, GenError> {
    Text { of, form, uses: Uses::default() }.variant()
}

impl<'a> Text<'a> {
    fn writer(&self) -> BodyWriter<'a> {
        let extents = &self.of.k.epilogue.ranges;
        BodyWriter { program: self.of.program, extents, prefix: "", guard: None, store_guard: None }
    }

    fn expr(&mut self, e: &SymExpr) -> String {
        self.writer().expr(e, &mut self.uses)
    }

    fn variant(mut self) -> Result<Variant, GenError> {
        let (of, form) = (self.of, self.form);
        let first = self.sums()?;
        let last = Text { of, form, uses: Uses::default() }.finish()?;
        let channels = &of.k.epilogue.ranges[1];
        let floats = form.parts * of.groups_of_sums(&form) * form.outs * form.high;
        let scratch = vec![channels * SymExpr::from_i64(4 * floats)];
        Ok(Variant { name: form.name(), kernels: vec![first, last], scratch })
    }

    /// The kernel that stores the sums of its part in scratch memory, `[part][row of sums][column][channel]`.
    fn sums(&mut self) -> Result<Kernel, GenError> {
        let (of, form) = (self.of, self.form);
        self.uses.scratch.push("float");
        let mut body = self.head()?;
        body.push_str(&self.walk());
        body.push_str(match form.along {
            Along::Channels => REDUCED_IN_SHARED_MEMORY,
            Along::Columns => REDUCED_BY_WARPS,
        });
        let [lanes, rows, _] = form.team;
        let channels = of.k.epilogue.ranges[1].ceil_div(&SymExpr::from_i64(lanes * form.lanes));
        let blocks = channels * SymExpr::from_i64(div_ceil(of.groups_of_sums(&form), rows) * form.parts);
        let room = if form.along == Along::Channels {
            rows * form.outs * form.high * lanes * form.lanes * 4
        } else {
            0
        };
        let launch = Launch {
            blocks: [blocks, SymExpr::ONE, SymExpr::ONE],
            threads: form.threads() as u32,
            shared: room as u32,
        };
        assemble(of.program, ENTRY, &self.uses, launch, &body)
    }

    fn head(&mut self) -> Result<String, GenError> {
        let (of, form) = (self.of, self.form);
        let [lanes, rows, slices] = form.team;
        let channels = self.expr(&of.k.epilogue.ranges[1]);
        let [deep, high, wide] = of.window().map(|e| self.expr(&e));
        let ty = memory_type(of.program.buffers[of.k.input.buf].dtype)?;
        let place = match form.along {
            Along::Channels => format!(
                "lane = threadIdx.x % {lanes}, own = threadIdx.x / {lanes} % ROWS, slice = threadIdx.x / {}",
                lanes * rows
            ),
            Along::Columns => "lane = threadIdx.x / (ROWS * SLICES), own = threadIdx.x / SLICES % ROWS, slice = threadIdx.x % SLICES".into(),
        };
        Ok(format!(
            "typedef {ty} E;
constexpr int V = {v}, COLS = {cols}, OUTS = {outs}, HIGH = {high_}, SUMS = OUTS * HIGH, LANES = {lanes}, ROWS = {rows}, SLICES = {slices}, PARTS = {parts}, THREADS = {threads};
constexpr int ALL_ROWS = {all}, ACROSS = {across};
const idx channels = {channels}, groups = (channels + LANES * V - 1) / (LANES * V);
const idx channel0 = (idx)blockIdx.x % groups * (LANES * V);
const int row0 = (int)((idx)blockIdx.x / groups % ((ALL_ROWS + ROWS - 1) / ROWS)) * ROWS;
const idx part = (idx)blockIdx.x / (groups * ((ALL_ROWS + ROWS - 1) / ROWS));
const int {place};
const int row = row0 + own;
const idx channel = channel0 + lane * V;
const bool here = lane < LANES && channel < channels && row < ALL_ROWS && slice < SLICES;
const idx out_row = row / ACROSS * HIGH, out_col = row % ACROSS * OUTS;
const idx deep = {deep}, high = {high}, wide = {wide}, across = (wide + COLS - 1) / COLS, down = (high + {taps} - 1) / {taps};
",
            v = form.lanes,
            cols = form.cols,
            outs = form.outs,
            high_ = form.high,
            parts = form.parts,
            threads = form.threads(),
            all = of.groups_of_sums(&form),
            across = div_ceil(of.lines[1].outs, form.outs),
            taps = form.taps,
        ))
    }

    /// Returns the loop of a thread over its part of the window.
    fn walk(&mut self) -> String {
        let (of, form) = (self.of, self.form);
        let [down, along] = &of.lines;
        let size = |line: &Line| line.dim.map_or(SymExpr::ONE, |d| of.k.input.sizes[d].clone());
        let (tall, broad) = (self.expr(&size(down)), self.expr(&size(along)));
        let plan = Walk::of(of, &form);
        let mut out = format!(
            "float acc[SUMS][V];
#pragma unroll
for (int o = 0; o < SUMS; ++o)
#pragma unroll
for (int v = 0; v < V; ++v) acc[o][v] = 0.0f;
const idx items = deep * down * across, share = (items + PARTS - 1) / PARTS;
const idx end = imin<idx>(part * share + share, items);
#pragma unroll 1
for (idx item = part * share + slice; here && item < end; item += SLICES) {{
const idx col = item % across * COLS, tap = item / across % down * {taps}, z = item / (across * down);
const idx y = out_row * {by_out} + tap * {by_tap} - {before}, x = col * {x_tap} + out_col * {x_out} + ({first});
",
            taps = form.taps,
            by_out = down.by_out,
            by_tap = down.by_tap,
            before = down.before,
            x_tap = along.by_tap,
            x_out = along.by_out,
            first = plan.first,
        );
        let inside = listed(&plan.loads, |n, column| {
            format!("inside |= (u64)within(x + {column}, (idx){broad}) << {n};\n")
        });
        let inside = format!("u64 inside = 0;\n{inside}");
        out.push_str(&self.window());
        out.push_str(&inside);
        out.push_str(&self.rows(&plan, &tall));
        out.push_str("}\n");
        out
    }

    /// Returns statements that load and convert the window's elements of an iteration.
    fn window(&mut self) -> String {
        let (of, form) = (self.of, self.form);
        let small = self.element(&of.k.weight, ["channel", "z", "tap", "col"]);
        let [row, column] = self.steps(&of.k.weight);
        let each = form.lanes * form.width;
        format!(
            "const E *small = &{small};
float taps[{taps}][COLS * V];
#pragma unroll
for (int s = 0; s < {taps}; ++s)
#pragma unroll
for (int at = 0; at < COLS; at += {width}) {{
Packed<E, {each}> raw = {{}};
if (tap + s < high && col + at < wide) raw = *(const Packed<E, {each}> *)(small + (idx)s * {row} + (idx)at * {column});
widened(taps[s] + at * V, raw);
}}
",
            taps = form.taps,
            width = form.width,
        )
    }

    /// Returns statements that load the input rows one after another and multiply each by the window rows that it meets.
    fn rows(&mut self, plan: &Walk, tall: &str) -> String {
        let (of, form) = (self.of, self.form);
        let along = &of.lines[1];
        let source = if of.outputs > 1 { format!("channel / {}", of.outputs) } else { "channel".into() };
        let big = self.element(&of.k.input, [&source, "z", "y", "x"]);
        let [by_row, by_column] = self.steps(&of.k.input);
        let each = form.lanes * form.width;
        let mut out = format!("const E *big = &{big};\n");
        for (row, pairs) in &plan.rows {
            let _ = writeln!(
                out,
                "{{\nconst u64 here = within(y + {row}, (idx){tall}) ? inside : 0;\nfloat held[{} * V];",
                plan.columns
            );
            let _ = writeln!(out, "Packed<E, {each}> raw[{}];", plan.loads.len());
            out.push_str(&listed(&plan.loads, |n, column| {
                format!(
                    "raw[{n}] = {{}};\nif (here >> {n} & 1) raw[{n}] = *(const Packed<E, {each}> *)(big + (idx){row} * {by_row} + (idx){column} * {by_column});\n"
                )
            }));
            out.push_str(&listed(&plan.loads, |n, column| {
                format!("widened(held + {column} * V, raw[{n}]);\n")
            }));
            for (s, o) in pairs {
                let _ = writeln!(
                    out,
                    "#pragma unroll
for (int t = 0; t < COLS; ++t)
#pragma unroll
for (int o = 0; o < OUTS; ++o)
#pragma unroll
for (int v = 0; v < V; ++v) acc[{o} * OUTS + o][v] = fmaf(taps[{s}][t * V + v], held[({} + t * {} + o * {}) * V + v], acc[{o} * OUTS + o][v]);",
                    plan.lead, along.by_tap, along.by_out
                );
            }
            out.push_str("}\n");
        }
        out
    }

    /// The strides of an operand along rows and columns.
    fn steps(&mut self, operand: &Operand) -> [String; 2] {
        let of = self.of;
        [0, 1].map(|n| {
            let step = of.lines[n].dim.map_or(SymExpr::ZERO, |d| operand.strides[d].clone());
            self.expr(&step)
        })
    }

    /// An element at `[channel, leading dimension, row, column]`, without the dimensions that are missing.
    fn element(&mut self, operand: &Operand, [channel, deep, row, col]: [&str; 4]) -> String {
        let [down, along] = &self.of.lines;
        let there = [(self.of.deep, deep), (down.dim.is_some(), row), (along.dim.is_some(), col)];
        let index: Vec<&str> =
            ["0", channel].into_iter().chain(there.into_iter().filter(|t| t.0).map(|t| t.1)).collect();
        // In the window the output channel comes first.
        let index: Vec<&str> = match std::ptr::eq(operand, &self.of.k.weight) {
            true => [channel, "0"].into_iter().chain(index.into_iter().skip(2)).collect(),
            false => index,
        };
        element(&self.writer(), operand, &index, &mut self.uses)
    }

    /// The kernel that reduces the parts and runs the epilogue.
    fn finish(&mut self) -> Result<Kernel, GenError> {
        let (of, form) = (self.of, self.form);
        self.uses.scratch.push("float");
        let ranges = &of.k.epilogue.ranges;
        let channels = self.expr(&ranges[1]);
        let [down, along] = &of.lines;
        let mut index = String::from("const idx i0 = 0, i1 = p % channels;\n");
        if of.deep {
            index.push_str("const idx i2 = 0;\n");
        }
        for (line, value) in [(down, "point / WIDE"), (along, "point % WIDE")] {
            if let Some(d) = line.dim {
                let _ = writeln!(index, "const idx i{d} = {value};");
            }
        }
        let tail = epilogue(of.program, &of.k.epilogue, "result", &mut self.uses)?;
        let points = volume(ranges);
        let all = self.expr(&points);
        let body = format!(
            "constexpr int OUTS = {outs}, HIGH = {high}, PARTS = {parts}, ALL_ROWS = {rows}, ACROSS = {across}, WIDE = {wide}, ADDING = {REDUCING_THREADS};
__shared__ float sums[ADDING][32];
const int lane = threadIdx.x % 32, slice = threadIdx.x / 32;
const idx channels = {channels}, p = (idx)blockIdx.x * 32 + lane, point = p / channels;
float sum = 0.0f;
if (p < {all}) {{
const idx row = point / WIDE / HIGH * ACROSS + point % WIDE / OUTS;
const idx column = point / WIDE % HIGH * OUTS + point % WIDE % OUTS;
const float *from = scratch0 + (row * (OUTS * HIGH) + column) * (i64)channels + p % channels;
#pragma unroll 4
for (int part = slice; part < PARTS; part += ADDING) sum += from[(i64)part * (ALL_ROWS * OUTS * HIGH) * channels];
}}
sums[slice][lane] = sum;
block_sync();
if (slice == 0 && p < {all}) {{
float result = 0.0f;
#pragma unroll
for (int s = 0; s < ADDING; ++s) result += sums[s][lane];
{index}{tail}}}
",
            outs = form.outs,
            high = form.high,
            parts = form.parts,
            rows = of.groups_of_sums(&form),
            across = div_ceil(along.outs, form.outs),
            wide = along.outs,
        );
        let launch = Launch::flat(points.ceil_div(&SymExpr::from_i64(32)), 32 * REDUCING_THREADS as u32);
        assemble(of.program, ENTRY, &self.uses, launch, &body)
    }
}

/// Returns the statements of each load, given the text of its number and of its column: a loop where columns are equally far
/// apart, which NVRTC compiles in less time than what is written out.
fn listed(columns: &[i64], text: impl Fn(&str, &str) -> String) -> String {
    let step = columns.windows(2).map(|c| c[1] - c[0]).reduce(|a, b| if a == b { a } else { 0 });
    match (step, columns) {
        (Some(step @ 1..), [first, ..]) => {
            let each = text("n", &format!("({first} + n * {step})"));
            format!("#pragma unroll\nfor (int n = 0; n < {}; ++n) {{\n{each}}}\n", columns.len())
        }
        _ => columns.iter().enumerate().map(|(n, c)| text(&n.to_string(), &c.to_string())).collect(),
    }
}

/// Reduces the sums of a block's threads through shared memory, one thread after another.
const REDUCED_IN_SHARED_MEMORY: &str = "\
DYNAMIC_SHARED(memory);
float *sums = (float *)memory;
for (int turn = 0; turn < SLICES; ++turn) {
if (slice == turn && here)
#pragma unroll
for (int o = 0; o < SUMS; ++o)
#pragma unroll
for (int v = 0; v < V; ++v) {
float &sum = sums[(own * SUMS + o) * (LANES * V) + lane * V + v];
sum = turn == 0 ? acc[o][v] : sum + acc[o][v];
}
block_sync();
}
for (int e = threadIdx.x; e < ROWS * SUMS * LANES * V; e += THREADS) {
const int c = e % (LANES * V), place = e / (LANES * V);
if (channel0 + c < channels && row0 + place / SUMS < ALL_ROWS)
scratch0[((i64)part * (ALL_ROWS * SUMS) + row0 * SUMS + place) * channels + channel0 + c] = sums[e];
}
";

/// Reduces the sums of a warp's lanes as a tree.
const REDUCED_BY_WARPS: &str = "\
#pragma unroll
for (int o = 0; o < SUMS; ++o) {
float sum = acc[o][0];
#pragma unroll
for (int n = 16; n; n >>= 1) sum += shuffle_down(sum, n);
if (slice == 0 && here) scratch0[((i64)part * (ALL_ROWS * SUMS) + row * SUMS + o) * channels + channel] = sum;
}
";
