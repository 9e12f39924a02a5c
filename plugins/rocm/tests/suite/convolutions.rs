//! Convolutions by the calls of MIOpen, and by generated kernels where it is missing, broken, silent or refuses a case: the numbers
//! are the same, judged by sums in double precision. Tensors lie channels-first or channels-last; gradients are the steps that the
//! gradient rules of convolutions write.

use ir_core::DType;
use kernel_ir::Program;
use tensor::Tensor;

use crate::Case;
use crate::machine::{Outcome, counted, ensure, standin, with_broken_libraries, with_miopen};
use crate::program::{epilogue, fill, gives};

type Error = Box<dyn std::error::Error>;

/// A tensor of a step: its sizes and strides in elements. The dimension of the largest stride is the first of its buffer.
#[derive(Clone)]
struct View {
    sizes: Vec<i64>,
    strides: Vec<i64>,
}

/// A step.
#[derive(Clone)]
struct Convolution {
    dtype: DType,
    relative: f64,
    x: View,
    w: View,
    y: View,
    stride: Vec<i64>,
    padding: Vec<(i64, i64)>,
    dilation: Vec<i64>,
    groups: i64,
    transposed: bool,
    /// Whether biases are added and a ReLU follows.
    ends: bool,
    /// Whether the number of images is a symbol.
    symbolic: bool,
}

pub(crate) fn cases() -> Vec<Case> {
    let case = |name, devices, rocm, body| Case { name, devices, rocm, body };
    vec![
        case("convolutions_by_miopen", "gfx942", with_miopen, || forward(true)),
        case("convolutions_by_miopen_on_waves_of_32", "gfx1100,schedule=backward", with_miopen, || {
            forward(true)
        }),
        case("gradients_by_miopen", "gfx942", with_miopen, || gradients(true)),
        case("convolutions_that_miopen_refuses", "gfx942", with_miopen, refused),
        case("convolutions_that_miopen_does_not_propose", "gfx942,silent=miopen", with_miopen, || {
            forward(false)
        }),
        case("convolutions_with_a_broken_library", "gfx942", with_broken_libraries, || forward(false)),
        case("convolutions_without_miopen", "gfx942", standin, without),
    ]
}

impl View {
    /// Dense, channels-first or channels-last.
    fn dense(sizes: &[i64], last: bool) -> View {
        let mut order: Vec<usize> = (0..sizes.len()).collect();
        if last {
            let channels = order.remove(1);
            order.push(channels);
        }
        let mut strides = vec![1; sizes.len()];
        let mut step = 1;
        for d in order.into_iter().rev() {
            strides[d] = step;
            step *= sizes[d];
        }
        View { sizes: sizes.to_vec(), strides }
    }

    /// The same with the first two dimensions exchanged.
    fn swapped(mut self) -> View {
        self.sizes.swap(0, 1);
        self.strides.swap(0, 1);
        self
    }

    fn elements(&self) -> i64 {
        self.sizes.iter().product()
    }

    /// Sizes of its buffer: the outermost dimension, and all others.
    fn buffer(&self) -> [i64; 2] {
        let rest = self.strides.iter().copied().max().unwrap_or(1);
        [self.elements() / rest, rest]
    }

    fn at(&self, index: &[i64]) -> usize {
        index.iter().zip(&self.strides).map(|(i, stride)| i * stride).sum::<i64>() as usize
    }

    /// All indices.
    fn indices(&self) -> impl Iterator<Item = Vec<i64>> + '_ {
        (0..self.elements()).map(|number| {
            let mut rest = number;
            let mut index = vec![0; self.sizes.len()];
            for d in (0..self.sizes.len()).rev() {
                (index[d], rest) = (rest % self.sizes[d], rest / self.sizes[d]);
            }
            index
        })
    }

    /// As a program says it, with a symbol for the first size where that is wanted.
    fn text(&self, symbolic: bool) -> String {
        let list = |numbers: &[i64]| numbers.iter().map(i64::to_string).collect::<Vec<_>>().join(", ");
        let mut sizes: Vec<String> = self.sizes.iter().map(i64::to_string).collect();
        if symbolic {
            sizes[0] = "s0".into();
        }
        format!("[{}]{{{}}}+0", sizes.join(", "), list(&self.strides))
    }

    /// The element of its buffer at loop variables.
    fn place(&self, buffer: &str) -> String {
        let outer = self.strides.iter().enumerate().max_by_key(|(_, stride)| **stride).map_or(0, |(d, _)| d);
        let rest = (0..self.sizes.len()).filter(|d| *d != outer);
        let terms: Vec<String> = rest.map(|d| format!("{}*i{d}", self.strides[d])).collect();
        format!("{buffer}[i{outer}, {}]", terms.join(" + "))
    }
}

/// A plain convolution of `[2, 16, 9, 8]` with `[8, 16 / groups, 3, 3]`.
fn plain(dtype: DType, relative: f64, last: bool, groups: i64, [stride, dilation]: [i64; 2]) -> Convolution {
    let points = |size: i64| (size + 2 - 2 * dilation - 1) / stride + 1;
    Convolution {
        dtype,
        relative,
        x: View::dense(&[2, 16, 9, 8], last),
        w: View::dense(&[8, 16 / groups, 3, 3], last),
        y: View::dense(&[2, 8, points(9), points(8)], last),
        stride: vec![stride; 2],
        padding: vec![(1, 1); 2],
        dilation: vec![dilation; 2],
        groups,
        transposed: false,
        ends: false,
        symbolic: false,
    }
}

/// The gradient to the input of `plain` with a stride of 2: a transposed convolution, here from 5×4 to 9×8 points.
fn to_the_input(dtype: DType, relative: f64, last: bool) -> Convolution {
    let of = plain(dtype, relative, last, 1, [2, 1]);
    // The second dimension has one more point at its end.
    Convolution { x: of.y, y: of.x, padding: vec![(1, 1), (1, 0)], transposed: true, ..of }
}

/// The gradient to the weight of `plain`, as a convolution over the batch whose stride and dilation are exchanged.
fn to_the_weight(dtype: DType, relative: f64, last: bool, stride: i64) -> Convolution {
    let of = plain(dtype, relative, last, 1, [stride, 1]);
    // Padding at the end ends the windows where the weight ends.
    let end = |d: usize| 2 - of.x.sizes[d] - 1 + (of.y.sizes[d] - 1) * stride + 1;
    let padding = vec![(1, end(2)), (1, end(3))];
    let (x, w, y) = (of.x.clone().swapped(), of.y.clone().swapped(), of.w.clone().swapped());
    Convolution { x, w, y, padding, stride: vec![1; 2], dilation: vec![stride; 2], ..of }
}

impl Convolution {
    /// The step as a program.
    fn program(&self) -> Result<Program, Error> {
        let dtype = self.dtype.to_string();
        let bias = self.ends.then_some("b2[i1]");
        let (acc, epilogue) = epilogue(&dtype, bias, self.ends, &self.y.place("b3"));
        let buffer = |view: &View, symbolic: bool| {
            let [first, rest] = view.buffer();
            let first = if symbolic { "s0".to_owned() } else { first.to_string() };
            format!("[{first}, {rest}]{{{rest}, 1}}+0")
        };
        let (x, w, y) =
            (buffer(&self.x, self.symbolic), buffer(&self.w, false), buffer(&self.y, self.symbolic));
        let list = |numbers: &[i64]| numbers.iter().map(i64::to_string).collect::<Vec<_>>().join(", ");
        let padding: Vec<String> = self.padding.iter().map(|(b, a)| format!("({b}, {a})")).collect();
        let mut ranges: Vec<String> = self.y.sizes.iter().map(i64::to_string).collect();
        if self.symbolic {
            ranges[0] = "s0".into();
        }
        let text = format!(
            r#"kir 1.3
program "convolution"
{symbol}buffer b0 "x" {dtype}{x} input 0
buffer b1 "w" {dtype}{w} input 1
buffer b2 "c" {dtype}[{channels}]{{1}}+0 input 2
buffer b3 "y" {dtype}{y} output
input "x" b0
input "w" b1
input "c" b2
output "y" b3{y}
init:
steps:
conv "c" acc {acc}{transposed}
  input b0{input}
  weight b1{weight}
  window stride [{stride}] padding [{padding}] dilation [{dilation}] groups {groups}
  epilogue [{ranges}]
{epilogue}plan bytes 0:
"#,
            symbol = if self.symbolic { "symbol s0 \"images\" 1..=100\n" } else { "" },
            channels = self.y.sizes[1],
            transposed = if self.transposed { " transposed" } else { "" },
            input = self.x.text(self.symbolic),
            weight = self.w.text(false),
            stride = list(&self.stride),
            padding = padding.join(", "),
            dilation = list(&self.dilation),
            groups = self.groups,
            ranges = ranges.join(", "),
        );
        text.parse().map_err(|e| format!("{e}\n{text}").into())
    }

    /// The point of the input that a window's point reads for an output; none where it is padding.
    fn source(&self, d: usize, y: i64, w: i64) -> Option<i64> {
        let (stride, dilation, before) = (self.stride[d], self.dilation[d], self.padding[d].0);
        let at = match self.transposed {
            false => y * stride + w * dilation - before,
            true => {
                let at = y + before - w * dilation;
                (at % stride == 0).then_some(at / stride)?
            }
        };
        (0..self.x.sizes[d + 2]).contains(&at).then_some(at)
    }

    /// The result as its buffer holds it.
    fn expected(&self, x: &[f64], w: &[f64], bias: &[f64]) -> Vec<f64> {
        let mut out = vec![0.0; self.y.elements() as usize];
        let (outputs, inputs) = (self.y.sizes[1] / self.groups, self.x.sizes[1] / self.groups);
        for y in self.y.indices() {
            let group = y[1] / outputs;
            let mut sum = 0.0;
            for point in self.w.indices() {
                // Which channels the weight connects.
                let (output, input) = match self.transposed {
                    false => (point[0], group * inputs + point[1]),
                    true => (point[0] / inputs * outputs + point[1], point[0]),
                };
                if output != y[1] || input / inputs != group {
                    continue;
                }
                let spatial: Option<Vec<i64>> =
                    (0..self.stride.len()).map(|d| self.source(d, y[d + 2], point[d + 2])).collect();
                let Some(spatial) = spatial else { continue };
                let from: Vec<i64> = [y[0], input].into_iter().chain(spatial).collect();
                sum += x[self.x.at(&from)] * w[self.w.at(&point)];
            }
            let ended = if self.ends { (sum + bias[y[1] as usize]).max(0.0) } else { sum };
            out[self.y.at(&y)] = ended;
        }
        out
    }

    /// The step gives its numbers in some modes.
    fn check(&self, modes: &[&str]) -> Outcome {
        let sizes = |view: &View| view.buffer().map(|n| n as usize);
        let (x, a) = fill("x", self.dtype, &sizes(&self.x))?;
        let (w, b) = fill("w", self.dtype, &sizes(&self.w))?;
        let (c, bias) = fill("c", self.dtype, &[self.y.sizes[1] as usize])?;
        let wanted = Tensor::from_vec(self.expected(&a, &b, &bias), &sizes(&self.y))?;
        let done = gives(&self.program()?, modes, &[&x, &w, &c], &wanted, self.relative);
        done.map_err(|e| format!("{e}\n{}", self.program().map_or(String::new(), |p| p.to_string())).into())
    }
}

/// How many convolutions of each direction MIOpen's calls have computed: plain ones, gradients to the input and to the weight.
fn computed() -> Result<[u64; 3], Error> {
    Ok([counted("convolutions", 0)?, counted("convolutions", 1)?, counted("convolutions", 2)?])
}

/// Plain convolutions; whether MIOpen has computed every one of them at least once.
fn forward(by_miopen: bool) -> Outcome {
    let (single, half, brain) = ((DType::F32, 2e-6), (DType::F16, 2e-3), (DType::BF16, 2e-2));
    let with =
        |(dtype, relative): (DType, f64), last, groups, window| plain(dtype, relative, last, groups, window);
    let line = Convolution {
        x: View::dense(&[2, 16, 20], false),
        w: View::dense(&[8, 16, 5], false),
        y: View::dense(&[2, 8, 20], false),
        stride: vec![1],
        padding: vec![(2, 2)],
        dilation: vec![1],
        ..with(single, false, 1, [1, 1])
    };
    let all = [
        Convolution { ends: true, ..with(single, false, 1, [2, 1]) },
        Convolution { ends: true, symbolic: true, ..with(single, true, 1, [1, 1]) },
        with(single, false, 2, [1, 2]),
        with(half, true, 1, [1, 2]),
        Convolution { ends: true, ..with(brain, true, 2, [2, 1]) },
        with(brain, false, 1, [1, 1]),
        line,
    ];
    for (n, convolution) in all.iter().enumerate() {
        let before = computed()?[0];
        let modes: &[&str] = if n == 0 {
            &["default", "reduce-overhead", "max-autotune"]
        } else {
            &["default", "max-autotune"]
        };
        convolution.check(modes)?;
        let after = computed()?[0];
        ensure((after > before) == by_miopen, (n, before, after))?;
    }
    Ok(())
}

/// Gradients to the input and to the weight.
fn gradients(by_miopen: bool) -> Outcome {
    let all = [
        (1, to_the_input(DType::F32, 2e-6, false)),
        (1, to_the_input(DType::BF16, 2e-2, true)),
        (2, to_the_weight(DType::F32, 2e-6, false, 1)),
        (2, to_the_weight(DType::F32, 2e-6, true, 2)),
        (2, to_the_weight(DType::F16, 2e-3, true, 1)),
    ];
    for (n, (direction, convolution)) in all.iter().enumerate() {
        let before = computed()?[*direction];
        convolution.check(&["default", "max-autotune"])?;
        let after = computed()?[*direction];
        ensure((after > before) == by_miopen, (n, before, after))?;
    }
    Ok(())
}

/// Two more points of padding at one end than at the other: MIOpen has no such convolution.
fn refused() -> Outcome {
    let plain = plain(DType::F32, 2e-6, false, 1, [1, 1]);
    let y = View::dense(&[2, 8, 11, 8], false);
    Convolution { padding: vec![(1, 3), (1, 1)], y, ..plain }.check(&["default", "max-autotune"])?;
    let computed = computed()?;
    ensure(computed == [0; 3], computed)
}

/// Without the library; with that of a machine that has ROCm nothing is counted.
fn without() -> Outcome {
    forward(false)?;
    gradients(false)
}
