//! The products and convolutions whose candidates are timed: those of networks, and products of random sizes, so that the
//! model has seen what lies between them.
//!
//! Each is a graph of one operator and what follows it, from which the compiler makes the step with its epilogue. A case is
//! known by its name alone, so a table of times can be fitted again without the device.

use anyhow::{Context, Result, ensure};
use ferroflux::Program;
use kernel_ir::Step;

/// One step.
#[derive(Clone, Debug)]
pub(super) struct Case {
    pub(super) name: String,
    pub(super) tf32: bool,
    text: String,
}

impl Case {
    /// The program, whose only product or convolution is the first step of that kind.
    pub(super) fn program(&self) -> Result<kernel_ir::Program> {
        let graph = self.text.parse().with_context(|| self.name.clone())?;
        let program = Program::from_graph(graph, &std::collections::BTreeMap::new())?.kernels()?;
        ensure!(step_of(&program).is_some(), "{}: there is no product or convolution", self.name);
        Ok(program)
    }
}

/// The product or convolution of a case's program.
pub(super) fn step_of(program: &kernel_ir::Program) -> Option<&Step> {
    program.steps.iter().find(|s| matches!(s, Step::Matmul(_) | Step::Conv(_)))
}

/// What follows a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Epilogue {
    Plain,
    Bias,
    BiasGelu,
    /// Few operations, which no library applies itself.
    BiasLeaky,
    BiasResidualRelu,
}

/// Which operands of a product are contiguous along the inner dimension: both (a linear layer), the left one, or none (the
/// gradient of a weight).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Layout {
    Both,
    Left,
    None,
}

/// Dtypes as graphs name them, and whether float32 is rounded to tf32.
const DTYPES: [(&str, bool); 4] = [("bf16", false), ("f16", false), ("f32", true), ("f32", false)];

use Epilogue::{Bias, BiasGelu, BiasLeaky, BiasResidualRelu, Plain};

/// Rows, columns and inner points of networks' products, with what follows: transformers for images and texts at several
/// batches, decoders' prefill and decoding in batches, classifiers.
const NETWORKS: &[([i64; 3], Layout, Epilogue)] = &[
    ([4096, 4096, 4096], Layout::Both, Plain),
    ([4096, 4096, 4096], Layout::Left, BiasResidualRelu),
    ([8192, 4096, 8192], Layout::Both, Plain),
    ([2048, 4096, 1024], Layout::Both, BiasGelu),
    ([197, 768, 768], Layout::Both, BiasResidualRelu),
    ([197, 2304, 768], Layout::Both, Bias),
    ([197, 3072, 768], Layout::Both, BiasGelu),
    ([197, 768, 3072], Layout::Both, BiasResidualRelu),
    ([1576, 768, 768], Layout::Both, Bias),
    ([512, 768, 768], Layout::Both, Bias),
    ([512, 3072, 768], Layout::Both, BiasGelu),
    ([512, 768, 3072], Layout::Both, BiasResidualRelu),
    ([6304, 768, 768], Layout::Both, BiasResidualRelu),
    ([6304, 2304, 768], Layout::Both, Bias),
    ([6304, 3072, 768], Layout::Both, BiasGelu),
    ([6304, 768, 3072], Layout::Both, BiasResidualRelu),
    ([8192, 768, 3072], Layout::Both, BiasResidualRelu),
    ([8192, 3072, 768], Layout::Both, BiasGelu),
    ([1024, 896, 896], Layout::Both, Plain),
    ([1024, 128, 896], Layout::Both, Bias),
    ([1024, 4864, 896], Layout::Both, Plain),
    ([1024, 896, 4864], Layout::Both, Plain),
    ([16, 4096, 4096], Layout::Both, Plain),
    ([32, 11008, 4096], Layout::Both, Plain),
    ([64, 4096, 11008], Layout::Both, Plain),
    ([128, 4096, 4096], Layout::Both, Plain),
    ([256, 1000, 2048], Layout::Both, Bias),
    ([512, 30522, 768], Layout::Both, Bias),
    ([2048, 50257, 768], Layout::Both, Plain),
    ([768, 768, 6304], Layout::None, Plain),
    ([3072, 768, 6304], Layout::None, Plain),
    ([768, 3072, 6304], Layout::None, Plain),
    ([2304, 768, 1576], Layout::None, Plain),
    ([4096, 4096, 2048], Layout::None, Plain),
    ([1024, 1024, 512], Layout::None, Plain),
    ([6304, 3072, 768], Layout::Left, Plain),
    ([6304, 768, 3072], Layout::Left, Plain),
    ([2048, 768, 50257], Layout::Left, Plain),
];

/// Images, input channels, height and width, output channels, window and stride of networks' convolutions, channels last.
const WINDOWS: &[([i64; 6], Epilogue)] = &[
    ([1, 64, 56, 64, 1, 1], Bias),
    ([1, 64, 56, 256, 1, 1], BiasResidualRelu),
    ([1, 256, 56, 64, 1, 1], Bias),
    ([1, 64, 56, 64, 3, 1], Bias),
    ([1, 128, 28, 128, 3, 1], Bias),
    ([1, 256, 14, 256, 3, 1], Bias),
    ([1, 512, 7, 512, 3, 1], Bias),
    ([1, 1024, 14, 256, 1, 1], Bias),
    ([1, 256, 14, 1024, 1, 1], BiasResidualRelu),
    ([1, 2048, 7, 512, 1, 1], Bias),
    ([16, 64, 56, 64, 3, 1], Bias),
    ([16, 128, 28, 128, 3, 1], Bias),
    ([16, 256, 14, 256, 3, 1], Bias),
    ([16, 512, 7, 512, 3, 1], Bias),
    ([16, 64, 56, 128, 3, 2], Bias),
    ([16, 64, 56, 128, 1, 2], Bias),
    ([16, 512, 28, 128, 1, 1], Bias),
    ([16, 128, 28, 512, 1, 1], BiasResidualRelu),
    ([32, 64, 56, 64, 3, 1], Bias),
    ([32, 64, 56, 256, 1, 1], BiasResidualRelu),
    ([32, 256, 56, 64, 1, 1], Bias),
    ([32, 256, 56, 512, 1, 2], Bias),
    ([32, 512, 28, 128, 1, 1], Bias),
    ([32, 128, 28, 128, 3, 1], Bias),
    ([32, 1024, 14, 256, 1, 1], Bias),
    ([32, 256, 14, 256, 3, 1], Bias),
    ([32, 256, 14, 1024, 1, 1], BiasResidualRelu),
    ([32, 2048, 7, 512, 1, 1], Bias),
    ([32, 512, 7, 512, 3, 1], Bias),
    ([16, 3, 224, 64, 7, 2], Bias),
    ([64, 24, 56, 72, 1, 1], Bias),
    ([64, 160, 7, 960, 1, 1], Bias),
    ([4, 64, 128, 64, 3, 1], Bias),
    ([4, 320, 64, 320, 3, 1], Plain),
    ([4, 640, 32, 640, 3, 1], Plain),
    ([4, 1280, 16, 1280, 3, 1], BiasResidualRelu),
    // Large images: detection, segmentation, super-resolution, decoders of images.
    ([16, 32, 416, 64, 3, 2], BiasLeaky),
    ([16, 64, 208, 128, 3, 2], BiasLeaky),
    ([16, 64, 208, 64, 1, 1], BiasLeaky),
    ([16, 64, 104, 128, 3, 1], BiasLeaky),
    ([16, 256, 26, 512, 3, 2], BiasLeaky),
    ([16, 512, 13, 1024, 3, 1], BiasLeaky),
    ([16, 1024, 13, 512, 1, 1], BiasLeaky),
    ([4, 64, 192, 64, 3, 1], BiasLeaky),
    ([4, 64, 192, 64, 3, 1], BiasResidualRelu),
    ([4, 64, 192, 256, 3, 1], Plain),
    ([4, 64, 384, 256, 3, 1], Plain),
    ([1, 128, 512, 128, 3, 1], Plain),
    ([1, 256, 256, 256, 3, 1], Plain),
    ([1, 512, 128, 512, 3, 1], Bias),
    ([8, 16, 256, 16, 3, 1], BiasLeaky),
    ([8, 32, 256, 32, 3, 1], BiasResidualRelu),
    ([2, 96, 160, 96, 3, 1], BiasLeaky),
    ([4, 64, 768, 3, 3, 1], Plain),
    ([16, 3, 416, 32, 3, 1], BiasLeaky),
    ([32, 3, 224, 64, 3, 1], BiasLeaky),
    ([16, 3, 224, 32, 3, 2], Bias),
];

/// Products and convolutions of random sizes.
const RANDOM: u64 = 110;
const RANDOM_WINDOWS: u64 = 90;
/// Of convolutions on larger images.
const LARGE_WINDOWS: u64 = 40;
/// Multiply-adds of one at most: larger ones are all alike.
const MOST: i64 = 3 << 35;
/// Points of an image with its channels at most.
const MOST_POINTS: i64 = 1 << 26;

/// All cases.
pub(super) fn cases() -> Vec<Case> {
    let mut all: Vec<Case> = NETWORKS
        .iter()
        .map(|&(sizes, layout, epilogue)| product(DTYPES[0], sizes, layout, epilogue))
        .collect();
    all.extend(WINDOWS.iter().map(|&(sizes, epilogue)| convolution(DTYPES[0], sizes, epilogue)));
    // float32 of some, rounded and not.
    for dtype in &DTYPES[2..] {
        all.extend(NETWORKS.iter().step_by(5).map(|&(sizes, layout, e)| product(*dtype, sizes, layout, e)));
        // Windows of one point are timed in tf32, which most run in, and seldom without it.
        let windows = WINDOWS.iter().filter(|([.., window, _], _)| *window > 1 || dtype.1);
        let windows = windows.step_by(if dtype.1 { 1 } else { 3 });
        all.extend(windows.map(|&(sizes, e)| convolution(*dtype, sizes, e)));
    }
    all.extend((0..RANDOM).map(random));
    let mut names: std::collections::BTreeSet<String> = all.iter().map(|c| c.name.clone()).collect();
    let windows = (0..RANDOM_WINDOWS + LARGE_WINDOWS).map(random_window);
    all.extend(windows.filter(|c| names.insert(c.name.clone())));
    all
}

/// A random number below `end`, by a multiplicative hash.
fn hashed(n: u64, salt: u64, end: u64) -> u64 {
    let h = (n * 16 + salt + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    ((h ^ (h >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 33) % end
}

/// A product whose sizes are spread evenly by their logarithms: between 32 and 8192, whole in 64, 8 or (few) 1.
fn random(n: u64) -> Case {
    let mut sizes = [0, 1, 2].map(|d| {
        let size = 32.0 * 2f64.powf(8.0 * hashed(n, d, 4096) as f64 / 4096.0);
        let whole = [64, 64, 8, 8, 8, 1][hashed(n, 3 + d, 6) as usize].min(size as i64);
        size as i64 / whole * whole
    });
    while sizes.iter().product::<i64>() > MOST {
        sizes.iter_mut().for_each(|s| *s = (*s / 2).max(32));
    }
    let layout = [Layout::Both, Layout::Both, Layout::Left, Layout::None][hashed(n, 6, 4) as usize];
    let epilogue = [Plain, Bias, BiasGelu, BiasResidualRelu][hashed(n, 7, 4) as usize];
    let dtype = [0, 0, 0, 0, 0, 0, 1, 2, 2, 3][hashed(n, 8, 10) as usize];
    product(DTYPES[dtype], sizes, layout, epilogue)
}

/// A convolution of random size: from 1 to 80 images of 7 to 120 points a side, 16 to 1024 channels that are whole in 8; the last
/// ones of few images of 100 to 600 points and up to 256 channels.
fn random_window(n: u64) -> Case {
    let large = n >= RANDOM_WINDOWS;
    let spread = |salt: u64, least: f64, most: f64| {
        (least * (most / least).powf(hashed(RANDOM + n, salt, 4096) as f64 / 4096.0)) as i64
    };
    let channels = |salt: u64| {
        let whole = [64, 64, 8][hashed(RANDOM + n, salt + 1, 3) as usize];
        (spread(salt, 16.0, if large { 256.0 } else { 1024.0 }) / whole * whole).max(16)
    };
    let (batch, size) = match large {
        true => (spread(0, 1.0, 20.0), spread(1, 100.0, 600.0)),
        false => (spread(0, 1.0, 80.0), spread(1, 7.0, 120.0)),
    };
    let mut sizes = [batch, channels(2), size, channels(4), 1, 1];
    (sizes[4], sizes[5]) =
        [(1, 1), (1, 1), (1, 1), (1, 2), (3, 1), (3, 1), (3, 2), (5, 1)][hashed(RANDOM + n, 6, 8) as usize];
    let work = |s: &[i64; 6]| s[0] * s[1] * s[2] * s[2] * s[3] * s[4] * s[4] / (s[5] * s[5]);
    let points = |s: &[i64; 6]| s[0] * s[2] * s[2] * s[1].max(s[3]);
    while work(&sizes) > MOST || points(&sizes) > MOST_POINTS {
        (sizes[0], sizes[2]) = ((sizes[0] / 2).max(1), if sizes[0] == 1 { sizes[2] / 2 } else { sizes[2] });
    }
    let epilogue = [Plain, Bias, BiasLeaky, BiasGelu, BiasResidualRelu, BiasResidualRelu]
        [hashed(RANDOM + n, 7, 6) as usize];
    let dtype = [0, 0, 0, 0, 1, 2, 2, 2, 2, 3][hashed(RANDOM + n, 8, 10) as usize];
    convolution(DTYPES[dtype], sizes, epilogue)
}

/// The lines of an epilogue over `%y`, whose dtype and sizes are `meta`; the last value is `%z`. `bias` is the shape of a
/// bias that the operator has not added itself.
fn epilogue_lines(epilogue: Epilogue, meta: &str) -> String {
    match epilogue {
        Plain | Bias => String::new(),
        BiasGelu => format!("  %z: {meta} = aten.gelu.default(%y, \"none\")\n"),
        BiasLeaky => format!("  %z: {meta} = aten.leaky_relu.default(%y, 0.1)\n"),
        BiasResidualRelu => {
            format!("  %s: {meta} = aten.add.Tensor(%y, %r, 1)\n  %z: {meta} = aten.relu.default(%s)\n")
        }
    }
}

fn last_value(epilogue: Epilogue) -> &'static str {
    if matches!(epilogue, Plain | Bias) { "%y" } else { "%z" }
}

/// The inputs that an epilogue needs.
fn epilogue_inputs(epilogue: Epilogue, dtype: &str, channels: i64, meta: &str) -> String {
    let bias = match epilogue {
        Plain => String::new(),
        _ => format!("  %b: {dtype}[{channels}] = input \"bias\"\n"),
    };
    match epilogue {
        BiasResidualRelu => format!("{bias}  %r: {meta} = input \"residual\"\n"),
        _ => bias,
    }
}

fn name(dtype: &str, tf32: bool, what: &str, epilogue: Epilogue) -> String {
    format!("{} {what} {epilogue:?}", if tf32 { "tf32" } else { dtype })
}

fn product((dtype, tf32): (&str, bool), [m, n, k]: [i64; 3], layout: Layout, epilogue: Epilogue) -> Case {
    let meta = format!("{dtype}[{m}, {n}]");
    let (x, w) = match layout {
        Layout::Both => (format!("[{m}, {k}]"), format!("[{n}, {k}]")),
        Layout::Left => (format!("[{m}, {k}]"), format!("[{k}, {n}]")),
        Layout::None => (format!("[{k}, {m}]"), format!("[{k}, {n}]")),
    };
    let right = match layout {
        Layout::Both => format!("  %wt: {dtype}[{k}, {n}]{{1, {k}}} = aten.t.default(%w)\n"),
        _ => String::new(),
    };
    let left = match layout {
        Layout::None => format!("  %xt: {dtype}[{m}, {k}]{{1, {m}}} = aten.t.default(%x)\n"),
        _ => String::new(),
    };
    let a = if layout == Layout::None { "%xt" } else { "%x" };
    let b = if layout == Layout::Both { "%wt" } else { "%w" };
    let multiplied = match epilogue {
        Plain => format!("  %y: {meta} = aten.mm.default({a}, {b})\n"),
        _ => format!("  %y: {meta} = aten.addmm.default(%b, {a}, {b}, 1, 1)\n"),
    };
    let text = format!(
        "fx 1.0\ngraph \"product\" {{\n  %x: {dtype}{x} = input \"x\"\n  %w: {dtype}{w} = input \"w\"\n{}\n{left}{right}{multiplied}{}  return {}\n}}\n",
        epilogue_inputs(epilogue, dtype, n, &meta),
        epilogue_lines(epilogue, &meta),
        last_value(epilogue),
    );
    Case { name: name(dtype, tf32, &format!("{m}x{n}x{k} {layout:?}"), epilogue), tf32, text }
}

fn convolution((dtype, tf32): (&str, bool), sizes: [i64; 6], epilogue: Epilogue) -> Case {
    let [batch, from, size, to, window, stride] = sizes;
    let padding = window / 2;
    let out = (size + 2 * padding - window) / stride + 1;
    let image = |channels: i64, size: i64| {
        let strides = format!("{{{}, 1, {}, {channels}}}", channels * size * size, channels * size);
        format!("{dtype}[{batch}, {channels}, {size}, {size}]{strides}")
    };
    let (x, meta) = (image(from, size), image(to, out));
    let weight = format!(
        "{dtype}[{to}, {from}, {window}, {window}]{{{}, 1, {}, {from}}}",
        from * window * window,
        from * window
    );
    let bias = if epilogue == Plain { "none" } else { "%b" };
    let text = format!(
        "fx 1.0\ngraph \"convolution\" {{\n  %x: {x} = input \"x\"\n  %w: {weight} = input \"w\"\n{}\n  \
         %y: {meta} = aten.conv2d.default(%x, %w, {bias}, [{stride}, {stride}], [{padding}, {padding}], [1, 1], 1)\n{}  return {}\n}}\n",
        epilogue_inputs(epilogue, dtype, to, &meta),
        epilogue_lines(epilogue, &meta),
        last_value(epilogue),
    );
    let what = format!("{batch}x{from}x{size} to {to}, {window}, {stride}");
    Case { name: name(dtype, tf32, &what, epilogue), tf32, text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_case_is_a_step_of_a_program_with_a_name_of_its_own() {
        let all = cases();
        let mut names: Vec<&str> = all.iter().map(|c| c.name.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all.len());
        for case in &all {
            case.program().unwrap_or_else(|e| panic!("{}: {e:#}\n{}", case.name, case.text));
        }
    }
}
