//! What kernels share that compute a patch of a plain convolution's result in each block, from the patch of the input that it sees, by matrix
//! cores in 16 bits: its spatial dimensions, the shapes of patches, and the text that finds them.
//!
//! Not here: the kernels for few input channels (`few_inputs`) and few output channels (`few_outputs`).

use ir_core::{DType, SymExpr};
use kernel_ir::{Conv, Program};

use crate::Target;
use crate::conv::depthwise::{Line, round_up};
use crate::product::tile::hint;
use crate::text::body::{BodyWriter, Uses};
use crate::text::template::element;

/// Rows and columns of a fragment's product, and inner points.
pub(crate) const ROWS: i64 = 16;
pub(crate) const COLS: i64 = 8;
pub(crate) const DEPTH: i64 = 16;
/// Warps of a block, fragments of rows of each, and lanes.
pub(crate) const WARPS: i64 = 8;
pub(crate) const EACH: i64 = 2;
pub(crate) const WAVE: i64 = 32;
/// Rows of a block's patch of results, of as many fragments each as make up a block.
const HEIGHTS: [i64; 5] = [8, 4, 16, 2, 1];
/// Shapes that are tried.
const MAX_CANDIDATES: usize = 2;

/// A plain convolution of one group in 16 bits.
pub(crate) struct Patched<'a> {
    pub(crate) program: &'a Program,
    pub(crate) k: &'a Conv,
    /// Slices, rows and columns.
    pub(crate) lines: [Line; 3],
}

/// The patch of results of a block: rows, and fragments of sixteen columns in each.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Shape {
    pub(crate) rows: i64,
    pub(crate) fragments: i64,
}

impl<'a> Patched<'a> {
    pub(crate) fn of(program: &'a Program, k: &'a Conv, target: &Target) -> Option<Patched<'a>> {
        let dtype = |buf| program.buffers[buf].dtype;
        let input = dtype(k.input.buf);
        let narrow = matches!(input, DType::F16 | DType::BF16) && dtype(k.weight.buf) == input;
        let cores = target.features.mma && !target.dialect.through_registers;
        let spatial = k.stride.len();
        let plain = k.groups == 1 && !k.transposed && k.acc == DType::F32;
        if !cores || !narrow || !plain || !(1..=3).contains(&spatial) {
            return None;
        }
        let mut lines = [Line { dim: None, window: 1, stride: 1, dilation: 1, before: 0 }; 3];
        for d in 0..spatial {
            let window = k.weight.sizes[d + 2].as_const().filter(|n| *n >= 1)?;
            let (stride, dilation, before) = (k.stride[d], k.dilation[d], k.padding[d].0);
            lines[3 - spatial + d] = Line { dim: Some(d + 2), window, stride, dilation, before };
        }
        Some(Patched { program, k, lines })
    }

    /// Points of the window.
    pub(crate) fn taps(&self) -> i64 {
        self.lines.iter().fold(1, |all: i64, line| all.saturating_mul(line.window))
    }

    /// The sizes of the input and of the result along a spatial dimension.
    pub(crate) fn sizes(&self, line: usize) -> [SymExpr; 2] {
        match self.lines[line].dim {
            Some(d) => [self.k.input.sizes[d].clone(), self.k.epilogue.ranges[d].clone()],
            None => [SymExpr::ONE, SymExpr::ONE],
        }
    }

    /// The shapes for which there is memory, best first: those that compute the fewest results that are none, and of these the ones of the
    /// smallest patch of the input.
    pub(crate) fn shapes(&self, fits: impl Fn(&Shape) -> bool) -> Vec<Shape> {
        let [high, wide] = [1, 2].map(|line| hint(self.program, &self.sizes(line)[1]));
        let all = HEIGHTS.map(|rows| Shape { rows, fragments: WARPS * EACH / rows });
        let mut found: Vec<Shape> = all.into_iter().filter(fits).collect();
        let computed = |s: &Shape| round_up(high, s.rows).saturating_mul(round_up(wide, s.fragments * ROWS));
        found.sort_by_key(|s| (computed(s), s.points(self)));
        found.truncate(MAX_CANDIDATES);
        found
    }

    fn writer(&self) -> BodyWriter<'a> {
        let extents = &self.k.epilogue.ranges;
        BodyWriter { program: self.program, extents, prefix: "", guard: None, store_guard: None }
    }

    pub(crate) fn expr(&self, e: &SymExpr, uses: &mut Uses) -> String {
        self.writer().expr(e, uses)
    }

    /// The names of the spatial coordinates that there are, of slices, rows and columns.
    fn coordinates(&self, names: [&'static str; 3]) -> impl Iterator<Item = &'static str> {
        let there = self.lines.map(|line| line.dim.is_some());
        names.into_iter().zip(there).filter(|(_, there)| *there).map(|(name, _)| name)
    }

    /// Declares the loop variables of the spatial dimensions that there are.
    pub(crate) fn places(&self, values: [&str; 3]) -> String {
        let dims = self.lines.iter().zip(values).filter_map(|(line, value)| Some((line.dim?, value)));
        dims.map(|(d, value)| format!("const idx i{d} = {value};\n")).collect()
    }

    /// The element of the weight at `channel`, `c` and the window's point `kz`, `ky`, `kx`.
    pub(crate) fn weight(&self, uses: &mut Uses) -> String {
        let index: Vec<&str> =
            ["channel", "c"].into_iter().chain(self.coordinates(["kz", "ky", "kx"])).collect();
        element(&self.writer(), &self.k.weight, &index, uses)
    }

    /// The element of the input at `i0`, this channel and the place `z`, `y`, `x`.
    pub(crate) fn input(&self, channel: &'static str, uses: &mut Uses) -> String {
        let index: Vec<&str> = ["i0", channel].into_iter().chain(self.coordinates(["z", "y", "x"])).collect();
        element(&self.writer(), &self.k.input, &index, uses)
    }

    /// Constants of the kernels' text.
    pub(crate) fn constants(&self, shape: &Shape) -> String {
        let [l0, l1, l2] = self.lines;
        let [pd, ph, pw] = shape.patch(self);
        format!(
            "constexpr int KD = {}, KH = {}, KW = {}, DZ = {}, DY = {}, DX = {}, SY = {}, SX = {}, TAPS = KD * KH * KW;
constexpr int PD = {pd}, PH = {ph}, PW = {pw}, HIGH = {}, WIDE = {}, FRAGMENTS = {}, EACH = {EACH}, THREADS = {};
",
            l0.window,
            l1.window,
            l2.window,
            l0.dilation,
            l1.dilation,
            l2.dilation,
            l1.stride,
            l2.stride,
            shape.rows,
            shape.fragments * ROWS,
            shape.fragments,
            WARPS * WAVE,
        )
    }

    /// Declares numbers of patches and sizes of the result.
    pub(crate) fn extents(&self, shape: &Shape, uses: &mut Uses) -> String {
        let images = self.expr(&self.k.epilogue.ranges[0], uses);
        let [deep, down, across] = self.patches(shape).map(|n| self.expr(&n, uses));
        let [high, wide] = [1, 2].map(|line| self.expr(&self.sizes(line)[1], uses));
        format!(
            "const idx deep = {deep}, down = {down}, across = {across}, high = {high}, wide = {wide}, tiles = {images} * deep * down * across;
"
        )
    }

    /// Declares the image and the first slice, row and column of patch `tile`.
    pub(crate) fn origin(&self) -> &'static str {
        "const idx i0 = tile / (across * down * deep), z0 = tile / (across * down) % deep, y0 = tile / across % down * HIGH, x0 = tile % across * WIDE;
"
    }

    /// Declares the coordinates in the input of the point of a patch with this number, and whether it is inside.
    pub(crate) fn point(&self, number: &str, uses: &mut Uses) -> String {
        let [z, y, x] = self.lines;
        let [deep, tall, broad] = [0, 1, 2].map(|line| self.expr(&self.sizes(line)[0], uses));
        format!(
            "const idx x = x0 * SX - ({}) + {number} % PW, y = y0 * SY - ({}) + {number} / PW % PH, z = z0 * {} - ({}) + {number} / (PW * PH);
const bool inside = within(x, (idx){broad}) && within(y, (idx){tall}) && within(z, (idx){deep});
",
            x.before, y.before, z.stride, z.before,
        )
    }

    /// Patches along slices, rows and columns of an image.
    fn patches(&self, shape: &Shape) -> [SymExpr; 3] {
        let own = [1, shape.rows, shape.fragments * ROWS];
        [0, 1, 2].map(|line| self.sizes(line)[1].ceil_div(&SymExpr::from_i64(own[line])))
    }

    /// All patches of the result.
    pub(crate) fn count(&self, shape: &Shape) -> SymExpr {
        self.patches(shape).iter().fold(self.k.epilogue.ranges[0].clone(), |all, n| &all * n)
    }
}

impl Shape {
    /// Slices, rows and columns of the input that a block's results see.
    pub(crate) fn patch(&self, of: &Patched<'_>) -> [i64; 3] {
        let reach = |line: usize, results: i64| {
            let Line { window, stride, dilation, .. } = of.lines[line];
            let steps = (results - 1).saturating_mul(stride);
            steps.saturating_add((window - 1).saturating_mul(dilation)).saturating_add(1)
        };
        [reach(0, 1), reach(1, self.rows), reach(2, self.fragments * ROWS)]
    }

    /// The points of that.
    pub(crate) fn points(&self, of: &Patched<'_>) -> i64 {
        self.patch(of).into_iter().fold(1, i64::saturating_mul)
    }

    /// The name of a kind of kernel in this shape.
    pub(crate) fn name(&self, kind: &str) -> String {
        format!("{kind}_{}x{}", self.rows, self.fragments * ROWS)
    }
}

/// The bytes of parts of a block's shared memory, each rounded up to where the next may begin.
pub(crate) fn rounded<const N: usize>(parts: [i64; N]) -> [i64; N] {
    // Sizes that no memory has stay such.
    parts.map(|bytes| if bytes > i64::MAX / 2 { bytes } else { round_up(bytes, 128) })
}

/// The bytes of all parts.
pub(crate) fn sum(parts: &[i64]) -> i64 {
    parts.iter().fold(0, |all: i64, bytes| all.saturating_add(*bytes))
}
