//! Depthwise convolutions over a window that is larger than their result, as the gradient to a depthwise weight is one: over
//! batch, rows and columns. A thread keeps the sums of one row of the result for neighbouring channels and walks over its part
//! of the window; the threads of a block, then the blocks, are added up in a fixed order, and the last kernel runs the epilogue.
//!
//! Here: which convolutions these are, which shapes are tried. The text is `depthwise_weight_text`. Not here: results that are larger than
//! the window (`depthwise`).

use ir_core::SymExpr;
use kernel_ir::{Conv, Operand, Program};

use crate::conv::depthwise::{Along, div_ceil, has_dtypes, round_up, threads_across};
use crate::conv::depthwise_weight_text;
use crate::product::tile::{hint, is_multiple};
use crate::text::template::volume;
use crate::{GenError, Target, Variant};

/// Bytes of a load at most.
const WIDTH: i64 = 16;
/// Threads of a block, about.
const THREADS: i64 = 256;
/// Columns of the result of one thread at most, and points.
const MAX_COLUMNS: i64 = 9;
const MAX_SUMS: i64 = 54;
/// Multiplications between one turn of a thread and the next: all are written out.
const MAX_PRODUCTS: i64 = 1600;
/// Floats of both operands that a thread holds at most.
const MAX_HELD: i64 = 128;
/// Parts of the window that the last kernel adds up, at most.
const MAX_PARTS: i64 = 512;
/// Threads of the device that keep its memory busy, a multiprocessor.
const THREADS_EACH: i64 = 1024;
/// Ways that are given.
const MAX_CANDIDATES: usize = 3;

/// A dimension along which the window moves.
pub(crate) struct Line {
    /// Its number; `None` for one that there is not.
    pub(crate) dim: Option<usize>,
    /// Points of the result.
    pub(crate) outs: i64,
    /// How far the input goes on from point to point of the result, and of the window.
    pub(crate) by_out: i64,
    pub(crate) by_tap: i64,
    pub(crate) before: i64,
}

/// Such a convolution.
pub(crate) struct Sums<'a> {
    pub(crate) program: &'a Program,
    pub(crate) k: &'a Conv,
    /// Output channels of an input channel.
    pub(crate) outputs: i64,
    /// Whether there is a dimension of which the window takes all, the first.
    pub(crate) deep: bool,
    pub(crate) lines: [Line; 2],
}

/// The shape of the first kernel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Form {
    pub(crate) along: Along,
    /// Channels of a thread, columns of the window that it takes at once, columns of a load.
    pub(crate) lanes: i64,
    pub(crate) cols: i64,
    pub(crate) width: i64,
    /// Columns and rows of the result of a thread.
    pub(crate) outs: i64,
    pub(crate) high: i64,
    /// Rows of the window that it takes at once.
    pub(crate) taps: i64,
    /// Threads of a block along channels, rows of sums, and the window.
    pub(crate) team: [i64; 3],
    /// Blocks that share the window.
    pub(crate) parts: i64,
    /// Lanes of a wave: blocks are whole waves.
    pub(crate) wave: i64,
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
    pub(crate) fn window(&self) -> [SymExpr; 3] {
        let size = |dim: Option<usize>| dim.map_or(SymExpr::ONE, |d| self.k.weight.sizes[d].clone());
        [size(self.deep.then_some(2)), size(self.lines[0].dim), size(self.lines[1].dim)]
    }

    /// The ways of computing it.
    pub(crate) fn variants(&self, target: &Target) -> Result<Vec<Variant>, GenError> {
        let forms = self.forms(target);
        forms.into_iter().map(|form| depthwise_weight_text::variant(self, form)).collect()
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
        found.truncate(MAX_CANDIDATES);
        found.into_iter().map(|(_, form)| form).collect()
    }

    /// Cycles, roughly.
    fn estimate(&self, form: &Form, target: &Target) -> f64 {
        let channels = self.hinted(&self.k.epilogue.ranges[1]);
        let [deep, high, wide] = self.window().map(|e| self.hinted(&e));
        let plan = Walk::of(self, form);
        let narrow = self.element() == 2;
        let row = plan.loads.len() as i64 * 2 + if narrow { plan.columns * form.lanes } else { 0 };
        let own = form.taps * div_ceil(form.cols, form.width) * 2
            + if narrow { form.taps * form.cols * form.lanes } else { 0 };
        let products = form.products();
        let turn = (products + plan.rows.len() as i64 * (row + 6) + own + 30) as f64;
        let turns = (deep * div_ceil(high, form.taps) * div_ceil(wide, form.cols)) as f64;
        let warps = (div_ceil(channels, form.lanes) * self.groups_of_sums(form)) as f64 * turns
            / f64::from(target.wave);
        let blocks = div_ceil(channels, form.team[0] * form.lanes)
            * div_ceil(self.groups_of_sums(form), form.team[1])
            * form.parts;
        let all = f64::from(target.multiprocessors.max(1));
        let device = all.min(blocks as f64);
        let bytes = div_ceil(target.lanes() * form.lanes * form.width * self.element(), 128) as f64;
        let loads = (plan.loads.len() * plan.rows.len()) as f64
            + (form.taps * div_ceil(form.cols, form.width)) as f64;
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
        let outs = div_ceil(self.lines[1].outs, div_ceil(self.lines[1].outs, MAX_COLUMNS));
        let width = if along == Along::Columns { self.width(cols) } else { 1 };
        let mut form = Form {
            along,
            lanes,
            cols,
            width,
            outs,
            high,
            taps,
            team: [1; 3],
            parts: 1,
            wave: target.lanes(),
        };
        let walk = Walk::of(self, &form);
        let held = (walk.columns + taps * cols) * lanes;
        if walk.loads.len() > 64
            || held > MAX_HELD
            || outs * high * lanes > MAX_SUMS
            || form.products() > MAX_PRODUCTS
        {
            return None;
        }
        let groups = self.groups_of_sums(&form);
        form.team = match along {
            Along::Channels => {
                let all = div_ceil(channels, lanes);
                let across = threads_across(all, lanes * self.element());
                let groups = groups.min(THREADS / across).max(1);
                [across, groups, (THREADS / (across * groups)).max(1)]
            }
            // A warp for the sums of a channel.
            Along::Columns => {
                let groups = groups.min(THREADS / form.wave);
                [(THREADS / form.wave / groups).clamp(1, channels), groups, form.wave]
            }
        };
        let items = deep * div_ceil(tall, taps) * div_ceil(wide, cols);
        let blocks = div_ceil(channels, form.team[0] * lanes) * div_ceil(groups, form.team[1]);
        let enough = THREADS_EACH * i64::from(target.multiprocessors) / THREADS;
        form.parts = div_ceil(enough, blocks).min(div_ceil(items, form.team[2])).clamp(1, MAX_PARTS);
        Some(form)
    }

    /// Threads whose sums together are the result of a channel.
    pub(crate) fn groups_of_sums(&self, form: &Form) -> i64 {
        div_ceil(self.lines[0].outs, form.high) * div_ceil(self.lines[1].outs, form.outs)
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
                && (self.lines[1].outs <= MAX_COLUMNS)
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
    pub(crate) fn threads(&self) -> i64 {
        round_up(self.team.iter().product(), self.wave)
    }

    fn products(&self) -> i64 {
        self.taps * self.cols * self.lanes * self.outs * self.high
    }

    pub(crate) fn name(&self) -> String {
        let along = if self.along == Along::Channels { "" } else { "_columns" };
        let rows = format!("{}x{}", self.high, self.taps);
        format!("depthwise_sums{along}_{rows}x{}x{}_{}", self.cols, self.lanes, self.parts)
    }
}

/// What a thread needs of the input for one turn.
pub(crate) struct Walk {
    /// The column of the first load where those of the window and of the result are 0, and that of the first element.
    pub(crate) first: i64,
    pub(crate) lead: i64,
    /// Where loads begin, and columns that are held.
    pub(crate) loads: Vec<i64>,
    pub(crate) columns: i64,
    /// The rows of the input, counted from the first, each with the rows of the window and of the result that meet there.
    pub(crate) rows: Vec<(i64, Vec<(i64, i64)>)>,
}

impl Walk {
    pub(crate) fn of(of: &Sums<'_>, form: &Form) -> Walk {
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
