//! Depthwise convolutions over a window that is larger than their result, as the gradient to a depthwise weight is one: over
//! batch, rows and columns. A thread keeps the sums of one row of the result for neighbouring channels and walks over its part
//! of the window; the threads of a block, then the blocks, are added up in a fixed order, and the last kernel runs the epilogue.
//!
//! Not here: results that are larger than the window (`depthwise`).

use std::fmt::Write;

use ir_core::SymExpr;
use kernel_ir::{Conv, Operand, Program};

use crate::body::{BodyWriter, Uses};
use crate::depthwise::{Along, has_dtypes, round_up, side_by_side, up};
use crate::template::{assemble, element, epilogue, volume};
use crate::tile::{hint, is_multiple};
use crate::types::memory_type;
use crate::{ENTRY, GenError, Kernel, Launch, Target, Variant};

/// Bytes of a load at most.
const WIDTH: i64 = 16;
/// Threads of a block, about.
const THREADS: i64 = 256;
/// Columns of the result of one thread at most, and points.
const MOST_COLUMNS: i64 = 9;
const MOST_SUMS: i64 = 54;
/// Multiplications between one turn of a thread and the next: all are written out.
const MOST_PRODUCTS: i64 = 1600;
/// Floats of both operands that a thread holds at most.
const MOST_HELD: i64 = 128;
/// Parts of the window that the last kernel adds up, at most, and how many threads add up those of one point.
const MOST_PARTS: i64 = 512;
const ADDING: i64 = 8;
/// Threads of the device that keep its memory busy, a multiprocessor.
const THREADS_EACH: i64 = 1024;
/// Ways that are given.
const WAYS: usize = 3;

/// A dimension along which the window moves.
struct Line {
    /// Its number; `None` for one that there is not.
    dim: Option<usize>,
    /// Points of the result.
    outs: i64,
    /// How far the input goes on from point to point of the result, and of the window.
    by_out: i64,
    by_tap: i64,
    before: i64,
}

/// Such a convolution.
pub(crate) struct Sums<'a> {
    program: &'a Program,
    k: &'a Conv,
    /// Output channels of an input channel.
    outputs: i64,
    /// Whether there is a dimension of which the window takes all, the first.
    deep: bool,
    lines: [Line; 2],
}

/// The shape of the first kernel.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Form {
    along: Along,
    /// Channels of a thread, columns of the window that it takes at once, columns of a load.
    lanes: i64,
    cols: i64,
    width: i64,
    /// Columns and rows of the result of a thread.
    outs: i64,
    high: i64,
    /// Rows of the window that it takes at once.
    taps: i64,
    /// Threads of a block along channels, rows of sums, and the window.
    team: [i64; 3],
    /// Blocks that share the window.
    parts: i64,
}

impl<'a> Sums<'a> {
    pub(crate) fn of(program: &'a Program, k: &'a Conv) -> Option<Sums<'a>> {
        let (spatial, ranges) = (k.stride.len(), &k.epilogue.ranges);
        if k.groups < 2 || k.transposed || !(1..=3).contains(&spatial) || !has_dtypes(program, k) {
            return None;
        }
        let dtype = |o: &Operand| program.buffers[o.buf].dtype;
        if dtype(&k.input) != dtype(&k.weight) || ranges[0] != SymExpr::ONE {
            return None;
        }
        let groups = SymExpr::from_i64(k.groups);
        let alone = k.input.sizes[1].floor_div(&groups) == SymExpr::ONE;
        let outputs = ranges[1].floor_div(&groups).as_const().filter(|n| *n >= 1 && alone)?;
        let points = |sizes: &[SymExpr]| hint(program, &volume(&sizes[2..]));
        if points(&k.weight.sizes) <= points(ranges) {
            return None;
        }
        let whole = || {
            k.padding[0] == (0, 0)
                && (k.stride[0], k.dilation[0]) == (1, 1)
                && ranges[2] == SymExpr::ONE
                && k.input.sizes[2] == k.weight.sizes[2]
        };
        let deep = spatial == 3;
        if deep && !whole() {
            return None;
        }
        let line = |d: usize| {
            let outs = ranges[d + 2].as_const().filter(|n| *n >= 1)?;
            let (by_out, by_tap, before) = (k.stride[d], k.dilation[d], k.padding[d].0);
            Some(Line { dim: Some(d + 2), outs, by_out, by_tap, before })
        };
        let single = Line { dim: None, outs: 1, by_out: 1, by_tap: 1, before: 0 };
        let lines = match spatial {
            1 => [single, line(0)?],
            2 => [line(0)?, line(1)?],
            _ => [line(1)?, line(2)?],
        };
        Some(Sums { program, k, outputs, deep, lines })
    }

    fn element(&self) -> i64 {
        self.program.buffers[self.k.input.buf].dtype.size() as i64
    }

    fn hinted(&self, e: &SymExpr) -> i64 {
        hint(self.program, e).max(1)
    }

    /// Points of the window along the first dimension, rows and columns.
    fn window(&self) -> [SymExpr; 3] {
        let size = |dim: Option<usize>| dim.map_or(SymExpr::ONE, |d| self.k.weight.sizes[d].clone());
        [size(self.deep.then_some(2)), size(self.lines[0].dim), size(self.lines[1].dim)]
    }

    /// The ways of computing it.
    pub(crate) fn variants(&self, target: &Target) -> Result<Vec<Variant>, GenError> {
        let forms = self.forms(target);
        forms.into_iter().map(|form| Text { of: self, form, uses: Uses::default() }.variant()).collect()
    }

    /// The shapes, the best by rule first: wide loads, then many columns at once.
    fn forms(&self, target: &Target) -> Vec<Form> {
        let k = self.k;
        let one = |o: &Operand, d: usize| o.strides[d] == SymExpr::ONE;
        let last = k.stride.len() + 1;
        // The channels are the second dimension of the input, the first of the window.
        let both = one(&k.input, 1) && one(&k.weight, 0);
        let along = if both || !one(&k.input, last) { Along::Channels } else { Along::Columns };
        let lanes: &[i64] = if along == Along::Channels { &[8, 4, 2, 1] } else { &[1] };
        let mut found: Vec<(f64, Form)> = Vec::new();
        for &lanes in lanes {
            for cols in [8, 4, 2, 1] {
                for (high, taps) in
                    [(1, 1), (self.lines[0].outs, 1), (self.lines[0].outs, 2), (self.lines[0].outs, 4)]
                {
                    let Some(form) = self.form(along, lanes, [cols, high, taps], target) else { continue };
                    if !found.iter().any(|(_, f)| *f == form) {
                        found.push((self.estimate(&form, target), form));
                    }
                }
            }
        }
        found.sort_by(|a, b| a.0.total_cmp(&b.0));
        found.truncate(WAYS);
        found.into_iter().map(|(_, form)| form).collect()
    }

    /// Cycles, roughly.
    fn estimate(&self, form: &Form, target: &Target) -> f64 {
        let channels = self.hinted(&self.k.epilogue.ranges[1]);
        let [deep, high, wide] = self.window().map(|e| self.hinted(&e));
        let plan = Walk::of(self, form);
        let narrow = self.element() == 2;
        let row = plan.loads.len() as i64 * 2 + if narrow { plan.columns * form.lanes } else { 0 };
        let own = form.taps * up(form.cols, form.width) * 2
            + if narrow { form.taps * form.cols * form.lanes } else { 0 };
        let products = form.products();
        let turn = (products + plan.rows.len() as i64 * (row + 6) + own + 30) as f64;
        let turns = (deep * up(high, form.taps) * up(wide, form.cols)) as f64;
        let warps = (up(channels, form.lanes) * self.groups_of_sums(form)) as f64 * turns / 32.0;
        let blocks = up(channels, form.team[0] * form.lanes)
            * up(self.groups_of_sums(form), form.team[1])
            * form.parts;
        let all = f64::from(target.multiprocessors.max(1));
        let device = all.min(blocks as f64);
        let bytes = up(32 * form.lanes * form.width * self.element(), 128) as f64;
        let loads =
            (plan.loads.len() * plan.rows.len()) as f64 + (form.taps * up(form.cols, form.width)) as f64;
        let busy = (warps * turn / (4.0 * device * 0.7)).max(warps * loads * bytes * 1.5 / device);
        let moved = (2 * deep * high * wide * channels * self.element()) as f64 / (18.0 * device);
        let each = turns / (form.parts * form.team[2]) as f64;
        let waves = (blocks as f64 * form.threads() as f64 / (device * 512.0)).ceil().min(4.0);
        let sums = form.high * form.outs * form.lanes;
        let ends = (sums * form.team[2] * 6) as f64 + 8.0 * form.parts as f64;
        busy.max(moved) + waves * (700.0 + each.min(4.0) * (600.0 + turn)) + ends
    }

    fn form(&self, along: Along, lanes: i64, [cols, high, taps]: [i64; 3], target: &Target) -> Option<Form> {
        let channels = self.hinted(&self.k.epilogue.ranges[1]);
        let [deep, tall, wide] = self.window().map(|e| self.hinted(&e));
        if (cols > 1 && cols >= 2 * wide) || (taps > 1 && taps >= 2 * tall) || !self.channels_fit(lanes) {
            return None;
        }
        let outs = up(self.lines[1].outs, up(self.lines[1].outs, MOST_COLUMNS));
        let width = if along == Along::Columns { self.width(cols) } else { 1 };
        let mut form = Form { along, lanes, cols, width, outs, high, taps, team: [1; 3], parts: 1 };
        let walk = Walk::of(self, &form);
        let held = (walk.columns + taps * cols) * lanes;
        if walk.loads.len() > 64
            || held > MOST_HELD
            || outs * high * lanes > MOST_SUMS
            || form.products() > MOST_PRODUCTS
        {
            return None;
        }
        let groups = self.groups_of_sums(&form);
        form.team = match along {
            Along::Channels => {
                let all = up(channels, lanes);
                let across = side_by_side(all, lanes * self.element());
                let groups = groups.min(THREADS / across).max(1);
                [across, groups, (THREADS / (across * groups)).max(1)]
            }
            // A warp for the sums of a channel.
            Along::Columns => {
                let groups = groups.min(THREADS / 32);
                [(THREADS / 32 / groups).clamp(1, channels), groups, 32]
            }
        };
        let items = deep * up(tall, taps) * up(wide, cols);
        let blocks = up(channels, form.team[0] * lanes) * up(groups, form.team[1]);
        let enough = THREADS_EACH * i64::from(target.multiprocessors) / THREADS;
        form.parts = up(enough, blocks).min(up(items, form.team[2])).clamp(1, MOST_PARTS);
        Some(form)
    }

    /// Threads whose sums together are the result of a channel.
    fn groups_of_sums(&self, form: &Form) -> i64 {
        up(self.lines[0].outs, form.high) * up(self.lines[1].outs, form.outs)
    }

    fn channels_fit(&self, lanes: i64) -> bool {
        let k = self.k;
        lanes == 1
            || (self.outputs == 1
                && lanes * self.element() <= WIDTH
                && is_multiple(&k.epilogue.ranges[1], lanes)
                && steps_are_multiples(&k.input, 1, lanes)
                && steps_are_multiples(&k.weight, 0, lanes))
    }

    /// Columns of the widest load of both operands.
    fn width(&self, cols: i64) -> i64 {
        let Some(d) = self.lines[1].dim else { return 1 };
        let by_tap = self.lines[1].by_tap;
        let fits = |n: &i64| {
            let whole = |o: &Operand| is_multiple(&o.sizes[d], *n) && steps_are_multiples(o, d, *n);
            n * self.element() <= WIDTH
                && cols % n == 0
                && (cols * by_tap) % n == 0
                && (self.lines[1].outs <= MOST_COLUMNS)
                && whole(&self.k.input)
                && whole(&self.k.weight)
        };
        [8, 4, 2].into_iter().find(fits).unwrap_or(1)
    }
}

/// Whether an operand's address is a multiple of `n` elements wherever the dimension `along`, whose elements are neighbours,
/// is at such a one.
fn steps_are_multiples(o: &Operand, along: usize, n: i64) -> bool {
    let mut others = (0..o.sizes.len()).filter(|&d| d != along && o.sizes[d] != SymExpr::ONE);
    o.strides[along] == SymExpr::ONE
        && is_multiple(&o.offset, n)
        && others.all(|d| is_multiple(&o.strides[d], n))
}

impl Form {
    fn threads(&self) -> i64 {
        round_up(self.team.iter().product(), 32)
    }

    fn products(&self) -> i64 {
        self.taps * self.cols * self.lanes * self.outs * self.high
    }

    fn name(&self) -> String {
        let along = if self.along == Along::Channels { "" } else { "_columns" };
        let rows = format!("{}x{}", self.high, self.taps);
        format!("depthwise_sums{along}_{rows}x{}x{}_{}", self.cols, self.lanes, self.parts)
    }
}

/// What a thread needs of the input for one turn.
struct Walk {
    /// The column of the first load where those of the window and of the result are 0, and that of the first element.
    first: i64,
    lead: i64,
    /// Where loads begin, and columns that are held.
    loads: Vec<i64>,
    columns: i64,
    /// The rows of the input, counted from the first, each with the rows of the window and of the result that meet there.
    rows: Vec<(i64, Vec<(i64, i64)>)>,
}

impl Walk {
    fn of(of: &Sums<'_>, form: &Form) -> Walk {
        let [down, along] = &of.lines;
        // Loads begin at multiples of their width.
        let first = (-along.before).div_euclid(form.width) * form.width;
        let lead = -along.before - first;
        let used = (0..form.cols).flat_map(|t| (0..form.outs).map(move |o| (t, o)));
        let mut loads: Vec<i64> = used
            .map(|(t, o)| (lead + t * along.by_tap + o * along.by_out) / form.width * form.width)
            .collect();
        loads.sort_unstable();
        loads.dedup();
        let columns = loads.last().map_or(0, |c| c + form.width);
        let mut rows: Vec<(i64, Vec<(i64, i64)>)> = Vec::new();
        for (s, o) in (0..form.taps).flat_map(|s| (0..form.high).map(move |o| (s, o))) {
            let at = s * down.by_tap + o * down.by_out;
            match rows.iter_mut().find(|(row, _)| *row == at) {
                Some((_, pairs)) => pairs.push((s, o)),
                None => rows.push((at, vec![(s, o)])),
            }
        }
        rows.sort_unstable();
        Walk { first, lead, loads, columns, rows }
    }
}

/// What is written for one form.
struct Text<'a> {
    of: &'a Sums<'a>,
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

    fn variant(mut self) -> Result<Variant, GenError> {
        let (of, form) = (self.of, self.form);
        let first = self.sums()?;
        let last = Text { of, form, uses: Uses::default() }.finish()?;
        let channels = &of.k.epilogue.ranges[1];
        let floats = form.parts * of.groups_of_sums(&form) * form.outs * form.high;
        let scratch = vec![channels * SymExpr::from_i64(4 * floats)];
        Ok(Variant { name: form.name(), kernels: vec![first, last], scratch })
    }

    /// The kernel that leaves the sums of its part in scratch memory, `[part][row of sums][column][channel]`.
    fn sums(&mut self) -> Result<Kernel, GenError> {
        let (of, form) = (self.of, self.form);
        self.uses.scratch.push("float");
        let mut body = self.head()?;
        body.push_str(&self.walk()?);
        body.push_str(match form.along {
            Along::Channels => ADDED_IN_MEMORY,
            Along::Columns => ADDED_BY_WARPS,
        });
        let [lanes, rows, _] = form.team;
        let channels = of.k.epilogue.ranges[1].ceil_div(&SymExpr::from_i64(lanes * form.lanes));
        let blocks = channels * SymExpr::from_i64(up(of.groups_of_sums(&form), rows) * form.parts);
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
            across = up(of.lines[1].outs, form.outs),
            taps = form.taps,
        ))
    }

    /// The walk of a thread over its part of the window.
    fn walk(&mut self) -> Result<String, GenError> {
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
        let source = if of.outputs > 1 { format!("channel / {}", of.outputs) } else { "channel".into() };
        let big = self.element(&of.k.input, [&source, "z", "y", "x"]);
        let small = self.element(&of.k.weight, ["channel", "z", "tap", "col"]);
        let step = |line: &Line, o: &Operand| line.dim.map_or(SymExpr::ZERO, |d| o.strides[d].clone());
        let [by_big, by_small] = [&of.k.input, &of.k.weight].map(|o| self.expr(&step(along, o)));
        let [row_big, row_small] = [&of.k.input, &of.k.weight].map(|o| self.expr(&step(down, o)));
        let each = form.lanes * form.width;
        let starts: Vec<i64> = (0..form.cols).step_by(form.width as usize).collect();
        let _ =
            writeln!(out, "const E *big = &{big}, *small = &{small};\nfloat taps[{}][COLS * V];", form.taps);
        for s in 0..form.taps {
            for (n, column) in starts.iter().enumerate() {
                let _ = writeln!(
                    out,
                    "Packed<E, {each}> tap{s}_{n} = {{}};\nif (tap + {s} < high && col + {column} < wide) tap{s}_{n} = *(const Packed<E, {each}> *)(small + (idx){s} * {row_small} + (idx){column} * {by_small});"
                );
            }
        }
        let mut inside = String::from("u64 inside = 0;\n");
        for (n, column) in plan.loads.iter().enumerate() {
            let _ = writeln!(inside, "inside |= (u64)within(x + {column}, (idx){broad}) << {n};");
        }
        out.push_str(&inside);
        for s in 0..form.taps {
            for (n, column) in starts.iter().enumerate() {
                let _ = writeln!(out, "widened(taps[{s}] + {column} * V, tap{s}_{n});");
            }
        }
        for (row, pairs) in &plan.rows {
            let _ = writeln!(
                out,
                "{{\nconst u64 here = within(y + {row}, (idx){tall}) ? inside : 0;\nfloat held[{} * V];",
                plan.columns
            );
            for (n, column) in plan.loads.iter().enumerate() {
                let _ = writeln!(
                    out,
                    "Packed<E, {each}> raw{n} = {{}};\nif (here >> {n} & 1) raw{n} = *(const Packed<E, {each}> *)(big + (idx){row} * {row_big} + (idx){column} * {by_big});"
                );
            }
            for (n, column) in plan.loads.iter().enumerate() {
                let _ = writeln!(out, "widened(held + {column} * V, raw{n});");
            }
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
        out.push_str("}\n");
        Ok(out)
    }

    /// An element at `[channel, first dimension, row, column]`, of those dimensions that there are.
    fn element(&mut self, operand: &Operand, [channel, deep, row, col]: [&str; 4]) -> String {
        let [down, along] = &self.of.lines;
        let there = [(self.of.deep, deep), (down.dim.is_some(), row), (along.dim.is_some(), col)];
        let index: Vec<&str> =
            ["0", channel].into_iter().chain(there.into_iter().filter(|t| t.0).map(|t| t.1)).collect();
        // Of the window the output channel comes first.
        let index: Vec<&str> = match std::ptr::eq(operand, &self.of.k.weight) {
            true => [channel, "0"].into_iter().chain(index.into_iter().skip(2)).collect(),
            false => index,
        };
        element(&self.writer(), operand, &index, &mut self.uses)
    }

    /// The kernel that adds up the parts and runs the epilogue.
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
            "constexpr int OUTS = {outs}, HIGH = {high}, PARTS = {parts}, ALL_ROWS = {rows}, ACROSS = {across}, WIDE = {wide}, ADDING = {ADDING};
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
__syncthreads();
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
            across = up(along.outs, form.outs),
            wide = along.outs,
        );
        let launch = Launch::flat(points.ceil_div(&SymExpr::from_i64(32)), 32 * ADDING as u32);
        assemble(of.program, ENTRY, &self.uses, launch, &body)
    }
}

/// The threads of a block that took parts of the same sums add theirs one after another.
const ADDED_IN_MEMORY: &str = "\
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
__syncthreads();
}
for (int e = threadIdx.x; e < ROWS * SUMS * LANES * V; e += THREADS) {
const int c = e % (LANES * V), place = e / (LANES * V);
if (channel0 + c < channels && row0 + place / SUMS < ALL_ROWS)
scratch0[((i64)part * (ALL_ROWS * SUMS) + row0 * SUMS + place) * channels + channel0 + c] = sums[e];
}
";

/// The lanes of a warp add theirs up by halves.
const ADDED_BY_WARPS: &str = "\
#pragma unroll
for (int o = 0; o < SUMS; ++o) {
float sum = acc[o][0];
#pragma unroll
for (int n = 16; n; n >>= 1) sum += shuffle_down(sum, n);
if (slice == 0 && here) scratch0[((i64)part * (ALL_ROWS * SUMS) + row * SUMS + o) * channels + channel] = sum;
}
";
