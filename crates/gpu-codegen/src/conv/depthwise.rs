//! Grouped convolutions with few channels per group, above all depthwise ones, of one to three spatial dimensions, plain or
//! transposed. A thread computes a tile of rows, columns and adjacent channels of the result, so that each input element
//! is read once for all of them. Of three dimensions the first is taken slice by slice, as input channels are.
//!
//! Here: which convolutions qualify, which tile shapes are tried, and in what order. The text of the kernels is in
//! `depthwise_text`. Large windows in 16 bits are also computed by matrix cores (`depthwise_matrix`). Convolutions whose
//! window is larger than their result, such as weight gradients, are in `depthwise_weight`.

use ir_core::{Atom, DType, SymExpr};
use kernel_ir::{BufId, Conv, InstKind, Operand, Program, StoreMode};

use crate::address::address;
use crate::conv::depthwise_weight::Sums;
use crate::conv::{depthwise_matrix, depthwise_text};
use crate::product::tile::{hint, is_multiple};
use crate::{GenError, Target, Variant};

/// Maximum number of input channels per group; an output channel reads them one after another.
const FEW: i64 = 8;
/// Maximum bytes of a load.
const WIDTH: i64 = 16;
/// Bytes of a first-level cache line, and of a sector, the smallest unit of a memory access.
const LINE: i64 = 128;
const SECTOR: i64 = 32;
/// Maximum number of threads per block.
const THREADS: i64 = 256;
/// Maximum number of sums of a thread, and of input floats that it holds.
const MAX_SUMS: i64 = 64;
const MAX_HELD: i64 = 128;
/// Most slices of a window of three dimensions.
const MAX_SLICES: i64 = 15;
/// Columns of the window that are taken at once, where there are more.
const CHUNK: i64 = 8;
/// Maximum bytes of shared memory for the weights of a block.
const MAX_WEIGHT_BYTES: i64 = 96 * 1024;
/// Multiplications of a tile up to which the loop over the rows is unrolled, so that all its loads are in flight at once.
/// The second limit applies where weights are kept in registers, whose indices must be constant.
const UNROLLED: i64 = 640;
const UNROLLED_KEPT: i64 = 2400;
/// Maximum number of weights that a thread keeps, and of all values that it then holds.
const MAX_KEPT: i64 = 54;
const MAX_REGISTERS: i64 = 150;
/// Maximum length of the text of an epilogue, over all sums of a thread.
const MAX_FINISH: i64 = 1536;
/// Maximum number of blocks per multiprocessor: each copies the weights of its channels.
const BLOCKS_EACH: i64 = 16;
/// Maximum number of candidates.
const MAX_CANDIDATES: usize = 4;

/// A spatial dimension.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Line {
    /// Its number among the spatial dimensions of input and result; `None` for the missing one of a one-dimensional
    /// convolution.
    pub(crate) dim: Option<usize>,
    pub(crate) window: i64,
    pub(crate) stride: i64,
    pub(crate) dilation: i64,
    /// Zeros before the first element (padding).
    pub(crate) before: i64,
}

/// A grouped convolution with few channels per group.
pub(crate) struct Grouped<'a> {
    pub(crate) program: &'a Program,
    pub(crate) k: &'a Conv,
    /// Input channels per group.
    pub(crate) inputs: i64,
    pub(crate) outputs: i64,
    /// Rows and columns.
    pub(crate) lines: [Line; 2],
    /// The dimension before rows and columns, of which a thread computes one slice.
    pub(crate) depth: Option<Line>,
}

/// The direction in which adjacent elements of the input are loaded and adjacent threads are placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Along {
    Channels,
    Columns,
}

/// The tile shape of a kernel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Form {
    pub(crate) along: Along,
    /// Rows, columns and channels per thread.
    pub(crate) rows: i64,
    pub(crate) cols: i64,
    pub(crate) lanes: i64,
    /// Columns per load.
    pub(crate) width: i64,
    /// Threads per block along channels, rows and columns.
    pub(crate) team: [i64; 3],
    /// Columns of the window that are taken at once.
    pub(crate) chunk: i64,
    /// Whether a thread keeps the weights of its channels in registers; otherwise it reads them from shared memory at
    /// every row.
    pub(crate) keeps: bool,
    /// Lanes per wave: blocks are whole waves.
    pub(crate) wave: i64,
    /// Maximum number of blocks that share a set of channels.
    pub(crate) most: i64,
}

/// Returns the candidates, best first by estimate; none where the convolution does not qualify.
pub(crate) fn variants(program: &Program, k: &Conv, target: &Target) -> Result<Vec<Variant>, GenError> {
    if let Some(sums) = Sums::of(program, k) {
        return sums.variants(target);
    }
    let Some(grouped) = Grouped::of(program, k) else { return Ok(Vec::new()) };
    let mut parts = [depthwise_matrix::variants(&grouped, target)?, Vec::new()];
    for form in grouped.forms(target) {
        parts[1].push(depthwise_text::variant(&grouped, form)?);
    }
    if !depthwise_matrix::come_first(&grouped) {
        parts.reverse();
    }
    Ok(parts.concat())
}

/// Whether these kernels support the convolution; they are then preferred to a library's.
pub(crate) fn supports(program: &Program, k: &Conv, target: &Target) -> bool {
    let any = |g: Grouped<'_>| !g.forms(target).is_empty() || depthwise_matrix::supports(&g, target);
    Sums::of(program, k).is_some() || Grouped::of(program, k).is_some_and(any)
}

/// Whether operands of these dtypes are multiplied in single precision.
pub(crate) fn has_dtypes(program: &Program, k: &Conv) -> bool {
    let small = |o: &Operand| matches!(program.buffers[o.buf].dtype, DType::F32 | DType::F16 | DType::BF16);
    k.acc == DType::F32 && small(&k.input) && small(&k.weight)
}

impl<'a> Grouped<'a> {
    pub(crate) fn of(program: &'a Program, k: &'a Conv) -> Option<Grouped<'a>> {
        let spatial = k.stride.len();
        if k.groups < 2 || !(1..=3).contains(&spatial) || !has_dtypes(program, k) {
            return None;
        }
        let groups = SymExpr::from_i64(k.groups);
        let inputs = k.input.sizes[1].floor_div(&groups).as_const().filter(|n| (1..=FEW).contains(n))?;
        let outputs = k.epilogue.ranges[1].floor_div(&groups).as_const().filter(|n| *n >= 1)?;
        let line = |d: usize| {
            let window = k.weight.sizes[d + 2].as_const().filter(|n| *n >= 1)?;
            let (stride, dilation, before) = (k.stride[d], k.dilation[d], k.padding[d].0);
            Some(Line { dim: Some(d + 2), window, stride, dilation, before })
        };
        let single = Line { dim: None, window: 1, stride: 1, dilation: 1, before: 0 };
        let (depth, lines) = match spatial {
            1 => (None, [single, line(0)?]),
            2 => (None, [line(0)?, line(1)?]),
            _ => (Some(line(0)?), [line(1)?, line(2)?]),
        };
        // With a stride, slices of a transposed convolution meet only some of the window's. A long window is one over a batch, as
        // gradients to weights have it.
        let regular = depth.is_none_or(|d: Line| (!k.transposed || d.stride == 1) && d.window <= MAX_SLICES);
        regular.then_some(Grouped { program, k, inputs, outputs, lines, depth })
    }

    /// Slices of the window.
    pub(crate) fn slices(&self) -> i64 {
        self.depth.map_or(1, |d| d.window)
    }

    /// How often a thread passes over the rows and columns of the window.
    fn passes(&self) -> i64 {
        self.inputs * self.slices()
    }

    /// The sizes of the input and of the result along a spatial dimension.
    pub(crate) fn sizes(&self, line: usize) -> [SymExpr; 2] {
        match self.lines[line].dim {
            Some(d) => [self.k.input.sizes[d].clone(), self.k.epilogue.ranges[d].clone()],
            None => [SymExpr::ONE, SymExpr::ONE],
        }
    }

    /// The stride of the input along a spatial dimension, in elements.
    pub(crate) fn step(&self, line: usize) -> SymExpr {
        self.lines[line].dim.map_or(SymExpr::ZERO, |d| self.k.input.strides[d].clone())
    }

    /// Number of weights of one output channel.
    pub(crate) fn taps(&self) -> i64 {
        self.passes() * self.lines[0].window * self.lines[1].window
    }

    /// The number of rows or columns per thread is a multiple of this.
    pub(crate) fn unit(&self, line: usize) -> i64 {
        if self.k.transposed { self.lines[line].stride } else { 1 }
    }

    fn element(&self) -> i64 {
        self.program.buffers[self.k.input.buf].dtype.size() as i64
    }

    /// The tile shapes, best first by estimate.
    fn forms(&self, target: &Target) -> Vec<Form> {
        let k = self.k;
        let along = if k.input.strides[1] == SymExpr::ONE { Along::Channels } else { Along::Columns };
        let mut found: Vec<(f64, Form)> = Vec::new();
        for (rows, cols, lanes) in shapes(along) {
            let (rows, cols) = (rows * self.unit(0), round_up(cols, self.unit(1)));
            let Some(form) = self.form(along, [rows, cols, lanes], target) else { continue };
            let kept = Form { keeps: true, ..form };
            for form in [form, kept].into_iter().filter(|f| !f.keeps || self.may_keep(f)) {
                if !found.iter().any(|(_, f)| *f == form) {
                    found.push((self.estimate(&form, target), form));
                }
            }
        }
        found.sort_by(|a, b| a.0.total_cmp(&b.0));
        found.truncate(MAX_CANDIDATES);
        found.into_iter().map(|(_, form)| form).collect()
    }

    /// Whether the weights of a thread's channels fit into its registers with everything else.
    fn may_keep(&self, form: &Form) -> bool {
        let weights = self.taps() * form.lanes;
        let held = depthwise_text::ReceptiveField::of(self, form).columns() * form.lanes;
        self.passes() == 1
            && form.chunk == self.lines[1].window
            && weights <= MAX_KEPT
            && weights + held + form.rows * form.cols * form.lanes <= MAX_REGISTERS
            && form.products(self) <= UNROLLED_KEPT
    }

    fn form(&self, along: Along, [rows, cols, lanes]: [i64; 3], target: &Target) -> Option<Form> {
        let [down, across] = self.lines;
        let transposed = self.k.transposed;
        // With both a stride and a dilation, rows of a transposed convolution meet the input in no regular order.
        let plain_rows = rows == 1 || down.dilation == 1;
        let spread = |l: &Line| transposed && l.stride > 1;
        let chunk = if across.window > CHUNK + 1 { CHUNK } else { across.window };
        let chunked = chunk < across.window;
        if !plain_rows || (spread(&down) && down.dilation > 1) || (spread(&across) && chunked) {
            return None;
        }
        if down.dim.is_none() && rows > 1 {
            return None;
        }
        if down.window.max(across.window) > 127 || (self.inputs > 1 && lanes > 1) {
            return None;
        }
        if along == Along::Channels && !self.channels_fit(lanes) {
            return None;
        }
        let width = if along == Along::Columns { self.width(cols, chunked) } else { 1 };
        let mut form = Form {
            along,
            rows,
            cols,
            lanes,
            width,
            team: [1; 3],
            chunk,
            keeps: false,
            most: 1,
            wave: target.lanes(),
        };
        form.team = self.team(&form);
        let groups = self.hinted(&self.k.epilogue.ranges[1]).div_euclid(form.channels()) + 1;
        form.most = (BLOCKS_EACH * i64::from(target.multiprocessors) / groups).max(1);
        let reach = depthwise_text::ReceptiveField::of(self, &form);
        let fits = rows * cols * lanes <= MAX_SUMS.max(self.unit(0) * self.unit(1))
            && reach.columns() * lanes <= MAX_HELD
            && reach.loads().len() <= 64
            && form.taps_bytes(self) <= MAX_WEIGHT_BYTES
            && form.shared(self) <= i64::from(target.lds);
        fits.then_some(form)
    }

    /// Whether `lanes` adjacent channels are contiguous in the result and read contiguous or identical input elements.
    fn channels_fit(&self, lanes: i64) -> bool {
        if lanes == 1 {
            return true;
        }
        let bytes = lanes * self.element();
        let whole = is_multiple(&self.k.epilogue.ranges[1], lanes);
        let shared = self.outputs > 1 && self.outputs % lanes == 0;
        whole && (shared || (self.outputs == 1 && bytes <= WIDTH && self.steps_are_multiples(1, lanes)))
    }

    /// Whether the input's address is a multiple of `n` elements wherever the index along `along` is.
    pub(crate) fn steps_are_multiples(&self, along: usize, n: i64) -> bool {
        let input = &self.k.input;
        let moving = (0..input.sizes.len()).filter(|&d| d != along && input.sizes[d] != SymExpr::ONE);
        input.strides[along] == SymExpr::ONE
            && is_multiple(&input.offset, n)
            && moving.into_iter().all(|d| is_multiple(&input.strides[d], n))
    }

    /// Columns of the widest load: it lies wholly inside or wholly outside of the input.
    fn width(&self, cols: i64, chunked: bool) -> i64 {
        let line = self.lines[1];
        let Some(d) = line.dim else { return 1 };
        let apart = if self.k.transposed { cols / line.stride } else { cols * line.stride };
        let fits = |n: &i64| {
            n * self.element() <= WIDTH
                && apart % n == 0
                && (!chunked || CHUNK * line.dilation % n == 0)
                && is_multiple(&self.k.input.sizes[d], *n)
                && self.steps_are_multiples(d, *n)
        };
        [8, 4, 2].into_iter().find(fits).unwrap_or(1)
    }

    pub(crate) fn hinted(&self, e: &SymExpr) -> i64 {
        hint(self.program, e).max(1)
    }

    /// Number of tiles of the result in each direction.
    fn tiles(&self, form: &Form) -> [i64; 2] {
        let high = self.hinted(&self.sizes(0)[1]);
        let wide = self.hinted(&self.sizes(1)[1]);
        [div_ceil(high, form.rows), div_ceil(wide, form.cols)]
    }

    /// Threads per block along channels, rows and columns, chosen so that little of the input around the block's patch is
    /// read twice.
    fn team(&self, form: &Form) -> [i64; 3] {
        let channels = div_ceil(self.hinted(&self.k.epilogue.ranges[1]), form.lanes);
        let [high, wide] = self.tiles(form);
        match form.along {
            Along::Channels => {
                let across = threads_across(channels, form.lanes * self.element());
                let [down, along] = self.patch(form, THREADS / across, [high, wide]);
                [across, down, along]
            }
            Along::Columns => {
                let [down, along] = self.patch(form, THREADS, [high, wide]);
                let taps = (MAX_WEIGHT_BYTES / 4 / (self.taps() + 1)).max(1);
                [(THREADS / (down * along)).clamp(1, channels.min(taps)), down, along]
            }
        }
    }

    /// Tiles of a block in each direction.
    fn patch(&self, form: &Form, threads: i64, [high, wide]: [i64; 2]) -> [i64; 2] {
        let covered = |n: i64, of: i64| (div_ceil(of, n) * n) as f64 / of as f64;
        let halo = |line: usize, tiles: i64, size: i64| {
            let l = self.lines[line];
            let own = tiles * size * if self.k.transposed { 1 } else { l.stride };
            1.0 + ((l.window - 1) * l.dilation) as f64 / own as f64
        };
        let cost = |[down, along]: [i64; 2]| {
            let waste = covered(down, high) * covered(along, wide);
            let idle = threads as f64 / (down * along) as f64;
            let around = halo(0, down, form.rows) * halo(1, along, form.cols);
            // Vertically adjacent tiles reuse each other's rows while they are in the cache.
            waste * (1.0 + 0.25 * around + 0.1 * idle) * (1.0 + 0.05 * (along - 1) as f64)
        };
        let downs = move |along: i64| (1..=(threads / along).clamp(1, high)).map(move |down| [down, along]);
        let shapes = (1..=threads.min(wide)).flat_map(downs);
        shapes.min_by(|a, b| cost(*a).total_cmp(&cost(*b))).unwrap_or([1, 1])
    }

    /// Estimated cycles: instructions, bytes from memory, and the latency of a single thread.
    fn estimate(&self, form: &Form, target: &Target) -> f64 {
        let reach = depthwise_text::ReceptiveField::of(self, form);
        let [down, across] = self.lines;
        let chunks = div_ceil(across.window, form.chunk) * self.passes();
        let turns = depthwise_text::Rows::of(self, form).count * chunks;
        let products = form.products(self);
        let narrow = self.element() == 2;
        let held = reach.columns() * form.lanes;
        let row = 2 * reach.loads().len() as i64 + if narrow { held } else { 0 } + 8;
        let per_tap = if form.along == Along::Channels { div_ceil(form.lanes, 4) } else { 1 };
        let weights = form.rows * down.window / self.unit(0) * chunks * form.chunk * per_tap;
        let weights = if form.keeps { 0 } else { weights };
        let finish = form.rows * form.cols * form.lanes * (2 + self.k.epilogue.insts.len() as i64 * 3 / 4);
        let instructions = (products + turns * row + weights + finish + 60) as f64;
        let [high, wide] = self.tiles(form);
        let images =
            self.depth.and_then(|d| d.dim).map_or(SymExpr::ONE, |d| self.k.epilogue.ranges[d].clone());
        let batch = self.hinted(&self.k.epilogue.ranges[0]) * self.hinted(&images);
        let channels = self.hinted(&self.k.epilogue.ranges[1]);
        let [_, td, ta] = form.team;
        let threads =
            batch * div_ceil(high, td) * td * div_ceil(wide, ta) * ta * div_ceil(channels, form.lanes);
        let wave = target.lanes();
        let warps = (threads as f64 / wave as f64).max(1.0);
        let [tc, ..] = form.team;
        let blocks = batch * div_ceil(high, td) * div_ceil(wide, ta) * div_ceil(channels, tc * form.lanes);
        let device = f64::from(target.multiprocessors.max(1)).min(blocks as f64);
        let kept = if form.keeps { self.taps() * form.lanes } else { form.lanes * 4 };
        let registers = (form.rows * form.cols * form.lanes + held * 3 / 2 + kept + 32) as f64;
        let resident = (f64::from(target.registers / target.wave) / registers).floor().clamp(4.0, 64.0);
        let outputs = batch * channels * self.hinted(&self.sizes(0)[1]) * self.hinted(&self.sizes(1)[1]);
        let bytes = (outputs * self.element() * 2) as f64;
        // Accesses of the first-level cache and of shared memory, 128 bytes each.
        let load = div_ceil(wave * form.lanes * form.width * self.element(), 128)
            * reach.loads().len() as i64
            * turns;
        let read =
            if form.along == Along::Channels { div_ceil(wave * form.lanes * 4, 128).min(4) } else { 1 };
        // Rows whose length is not divisible by a vector are written element by element, in separate sectors.
        let at_once = [8, 4, 2].into_iter().find(|n| {
            form.cols % n == 0 && n * self.element() <= WIDTH && is_multiple(&self.sizes(1)[1], *n)
        });
        let write = match form.along {
            Along::Channels => 0,
            Along::Columns => {
                let line = div_ceil(wave * form.cols * self.element(), LINE);
                form.rows * form.cols / at_once.unwrap_or(1) * line
            }
        };
        let cache_cycles = (load + weights * read + write) as f64 * 1.5;
        let busy = (warps * instructions / (4.0 * device * 0.7))
            .max(warps * cache_cycles / device)
            .max(bytes / (18.0 * device));
        let loading = if form.unrolled(self) { 1500.0 } else { 900.0 + 350.0 * turns as f64 };
        let alone = loading + instructions;
        let waves = (warps / (device * resident)).ceil();
        // Measured on an H200: tiles of an odd number of columns and one channel take longer than they should.
        let busy = if form.lanes == 1 && form.cols % 2 == 1 && form.cols > 1 { 1.25 * busy } else { busy };
        3000.0 + busy + waves.min(4.0) * alone
    }
}

impl Form {
    /// Channels per block.
    pub(crate) fn channels(&self) -> i64 {
        self.team[0] * self.lanes
    }

    /// Multiplications of a thread's tile.
    fn products(&self, of: &Grouped<'_>) -> i64 {
        self.rows * self.cols * self.lanes * of.taps() / (of.unit(0) * of.unit(1))
    }

    /// Whether the loop over the rows of the window is unrolled.
    pub(crate) fn unrolled(&self, of: &Grouped<'_>) -> bool {
        self.keeps || self.products(of) <= UNROLLED
    }

    pub(crate) fn threads(&self) -> i64 {
        round_up(self.team.iter().product(), self.wave)
    }

    /// Floats between two lines of weights in shared memory. A line holds all channels of a tap, or all taps of a channel.
    pub(crate) fn pitch(&self, of: &Grouped<'_>) -> i64 {
        match self.along {
            Along::Channels => round_up(self.channels(), 4) + 4,
            Along::Columns => of.taps() | 1,
        }
    }

    pub(crate) fn taps_bytes(&self, of: &Grouped<'_>) -> i64 {
        let lines = if self.along == Along::Channels { of.taps() } else { self.channels() };
        round_up(lines * self.pitch(of) * 4, 16)
    }

    /// Bytes of shared memory.
    pub(crate) fn shared(&self, of: &Grouped<'_>) -> i64 {
        let sums =
            if self.stages_sums(of) { self.threads() * self.rows * self.cols * self.lanes * 4 } else { 0 };
        self.taps_bytes(of) + sums
    }

    /// Whether the sums go through shared memory so that the text of the epilogue occurs once; repeated for every sum it
    /// would be too long.
    pub(crate) fn stages_sums(&self, of: &Grouped<'_>) -> bool {
        self.finish_weight(of) * self.rows * self.cols * self.lanes > MAX_FINISH
    }

    /// How many times the text of a staged epilogue of `at_once` sums is repeated, so that the loads of all are in flight together.
    pub(crate) fn repeats(&self, of: &Grouped<'_>, at_once: i64) -> i64 {
        let most = (MAX_FINISH / (self.finish_weight(of) * at_once).max(1)).clamp(1, 4);
        [4, 2].into_iter().find(|n| *n <= most).unwrap_or(1)
    }

    /// The length of the epilogue's text for one sum.
    fn finish_weight(&self, of: &Grouped<'_>) -> i64 {
        let simple = |i: &kernel_ir::Inst| {
            use kernel_ir::ScalarOp as O;
            !matches!(
                &i.kind,
                InstKind::Op { op, .. } if !matches!(op, O::Add | O::Sub | O::Mul | O::Max | O::Min | O::Neg)
            )
        };
        of.k.epilogue.insts.iter().map(|i| if simple(i) { 1 } else { 20 }).sum()
    }

    /// The name in tables.
    pub(crate) fn name(&self) -> String {
        let along = if self.along == Along::Channels { "" } else { "_columns" };
        let kept = if self.keeps { "_kept" } else { "" };
        format!("depthwise{along}_{}x{}x{}{kept}", self.rows, self.cols, self.lanes)
    }
}

/// Rows, columns and channels per thread that are tried.
fn shapes(along: Along) -> Vec<(i64, i64, i64)> {
    let lanes: &[i64] = if along == Along::Channels { &[8, 4, 2, 1] } else { &[1] };
    let columns: &[i64] = if along == Along::Channels { &[8, 7, 4, 2, 1] } else { &[16, 8, 4, 1] };
    let mut out = Vec::new();
    for &v in lanes {
        for &cols in columns {
            out.extend([8, 4, 2, 1].map(|rows| (rows, cols, v)));
        }
    }
    out
}

/// The first plain store of the epilogue, which determines the order of the points.
pub(crate) fn main_store(k: &Conv) -> Option<(BufId, &[SymExpr])> {
    k.epilogue.insts.iter().find_map(|inst| match &inst.kind {
        InstKind::Store { buf, index, mask: None, mode: StoreMode::Write, .. } => Some((*buf, &index[..])),
        _ => None,
    })
}

/// Whether the main store is contiguous along a dimension of the result.
pub(crate) fn stores_along(program: &Program, k: &Conv, dim: usize) -> bool {
    let Some((buf, index)) = main_store(k) else { return false };
    let address = address(program, buf, index, &k.epilogue.ranges);
    address.affine_in(&Atom::Loop(dim as u32)).is_some_and(|(step, _)| step == SymExpr::ONE)
}

/// Adjacent threads for `all` pieces of `bytes` each: about one cache line and whole sectors, where `all` or a divisor of
/// it allows that.
pub(crate) fn threads_across(all: i64, bytes: i64) -> i64 {
    let whole = |n: &i64| all % n == 0 && (*n == all || (n * bytes % SECTOR == 0 && n * bytes >= LINE / 2));
    let most = (LINE / bytes).clamp(1, 32).min(all);
    (1..=most).rev().find(whole).or_else(|| (most..=all.min(32)).find(whole)).unwrap_or(most)
}

pub(crate) fn div_ceil(a: i64, b: i64) -> i64 {
    (a + b - 1) / b.max(1)
}

pub(crate) fn round_up(a: i64, b: i64) -> i64 {
    div_ceil(a, b) * b
}
