//! Printing as PyTorch prints: four digits, one width for all elements, three at either end of long dimensions, lines of 80
//! characters.

use std::fmt;

use ir_core::{DType, Scalar};
use tensor::Tensor as HostTensor;

use super::Tensor;

/// Digits after the point.
const DIGITS: usize = 4;
/// Tensors of more elements are summarized.
const THRESHOLD: usize = 1000;
/// Elements at either end of a summarized dimension.
const EDGE: usize = 3;
/// Characters of a line.
const LINE: usize = 80;
/// The characters before the first bracket.
const PREFIX: &str = "tensor(";

impl fmt::Display for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host_for("a tensor is printed, at a line that formatting does not tell") {
            Ok(host) => f.write_str(&printed(&host, self.value().is_ok_and(|v| v.slot().is_some()))),
            Err(error) => write!(f, "{PREFIX}<{error}>)"),
        }
    }
}

/// The same as `Display`, so that a failing assertion shows the numbers.
impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// How the elements of a tensor are written.
struct Format {
    float: bool,
    whole: bool,
    scientific: bool,
    width: usize,
}

impl Format {
    /// Of these real numbers; `float` for floating-point dtypes.
    fn of(values: &[Scalar], float: bool) -> Format {
        let mut format = Format { float, whole: true, scientific: false, width: 1 };
        if !float {
            format.width = values.iter().map(|v| plain(*v).len()).max().unwrap_or(1);
            return format;
        }
        let relevant = |v: &f64| v.is_finite() && *v != 0.0;
        let values: Vec<f64> = values.iter().map(|v| v.as_f64()).filter(relevant).collect();
        let (mut low, mut high) = (f64::INFINITY, 0.0f64);
        for v in &values {
            (low, high) = (low.min(v.abs()), high.max(v.abs()));
            format.whole &= *v == v.ceil();
        }
        if values.is_empty() {
            return format;
        }
        format.scientific = high / low > 1000.0 || high > 1e8 || (!format.whole && low < 1e-4);
        let width = values.iter().map(|v| format.number(*v).len()).max();
        format.width = width.unwrap_or(1);
        format
    }

    fn number(&self, v: f64) -> String {
        if v.is_nan() {
            return "nan".into();
        }
        if v.is_infinite() {
            return if v > 0.0 { "inf" } else { "-inf" }.into();
        }
        match (self.scientific, self.whole) {
            (true, _) => exponential(v),
            (false, true) => format!("{v:.0}."),
            (false, false) => format!("{v:.DIGITS$}"),
        }
    }

    fn element(&self, v: Scalar) -> String {
        let text = if self.float { self.number(v.as_f64()) } else { plain(v) };
        format!("{text:>width$}", width = self.width)
    }
}

/// An integer or a truth value.
fn plain(v: Scalar) -> String {
    match v {
        Scalar::Bool(b) => if b { "True" } else { "False" }.into(),
        other => other.as_i64().to_string(),
    }
}

/// `1.2346e+05`, with at least two digits in the exponent.
fn exponential(v: f64) -> String {
    let text = format!("{v:.DIGITS$e}");
    let Some((mantissa, exponent)) = text.split_once('e') else { return text };
    let (sign, digits) = exponent.strip_prefix('-').map_or(('+', exponent), |digits| ('-', digits));
    format!("{mantissa}e{sign}{digits:0>2}")
}

/// How elements of a dtype are written: complex ones as two numbers.
enum Elements {
    Real(Format),
    Complex(Format, Format),
}

impl Elements {
    fn of(dtype: DType, values: &[Scalar]) -> Elements {
        if !dtype.is_complex() {
            return Elements::Real(Format::of(values, dtype.is_float()));
        }
        let part = |imaginary: bool| {
            let one = |v: &Scalar| match *v {
                Scalar::Complex(_, im) if imaginary => Scalar::Float(im),
                other => Scalar::Float(other.as_f64()),
            };
            Format::of(&values.iter().map(one).collect::<Vec<_>>(), true)
        };
        Elements::Complex(part(false), part(true))
    }

    fn width(&self) -> usize {
        match self {
            Elements::Real(format) => format.width,
            Elements::Complex(re, im) => re.width + im.width + 1,
        }
    }

    fn element(&self, v: Scalar) -> String {
        match (self, v) {
            (Elements::Real(format), v) => format.element(v),
            (Elements::Complex(real, imaginary), v) => {
                let im = if let Scalar::Complex(_, im) = v { im } else { 0.0 };
                let sign = if im < 0.0 { "" } else { "+" };
                let text = imaginary.element(Scalar::Float(im));
                format!("{}{sign}{}j", real.element(Scalar::Float(v.as_f64())), text.trim_start())
            }
        }
    }
}

/// The positions of a dimension that are shown; `None` for the dots.
fn shown(size: usize, summarized: bool) -> Vec<Option<usize>> {
    if !summarized || size <= 2 * EDGE {
        return (0..size).map(Some).collect();
    }
    let (front, back) = ((0..EDGE).map(Some), (size - EDGE..size).map(Some));
    front.chain([None]).chain(back).collect()
}

struct Printer<'a> {
    tensor: &'a HostTensor,
    elements: Elements,
    summarized: bool,
}

impl Printer<'_> {
    fn slice(&self, index: &mut Vec<usize>, indent: usize) -> String {
        let sizes = self.tensor.sizes();
        let dim = index.len();
        if dim == sizes.len() {
            return self.tensor.get(index).map_or_else(String::new, |v| self.elements.element(v));
        }
        if dim + 1 == sizes.len() {
            return self.row(index, indent);
        }
        let mut parts = Vec::new();
        for place in shown(sizes[dim], self.summarized) {
            let Some(place) = place else {
                parts.push("...".to_owned());
                continue;
            };
            index.push(place);
            parts.push(self.slice(index, indent + 1));
            index.pop();
        }
        let left = sizes.len() - dim;
        let between = format!(",{}{}", "\n".repeat(left - 1), " ".repeat(indent + 1));
        format!("[{}]", parts.join(&between))
    }

    fn row(&self, index: &mut Vec<usize>, indent: usize) -> String {
        let per_line = (LINE.saturating_sub(indent) / (self.elements.width() + 2)).max(1);
        let size = self.tensor.sizes().last().copied().unwrap_or(0);
        let mut parts = Vec::new();
        for place in shown(size, self.summarized) {
            let Some(place) = place else {
                parts.push(" ...".to_owned());
                continue;
            };
            index.push(place);
            parts.push(self.tensor.get(index).map_or_else(String::new, |v| self.elements.element(v)));
            index.pop();
        }
        let lines: Vec<String> = parts.chunks(per_line).map(|line| line.join(", ")).collect();
        format!("[{}]", lines.join(&format!(",\n{}", " ".repeat(indent + 1))))
    }

    /// The elements that are shown, which determine the format.
    fn visible(tensor: &HostTensor, summarized: bool) -> Vec<Scalar> {
        if !summarized {
            return tensor.iter().collect();
        }
        let mut all = vec![Vec::new()];
        for &size in tensor.sizes() {
            let places = shown(size, true);
            let longer = |index: &Vec<usize>| {
                let more = |p: &usize| index.iter().copied().chain([*p]).collect::<Vec<usize>>();
                places.iter().flatten().map(more).collect::<Vec<_>>()
            };
            all = all.iter().flat_map(longer).collect();
        }
        all.iter().filter_map(|index| tensor.get(index)).collect()
    }
}

fn printed(tensor: &HostTensor, variable: bool) -> String {
    let dtype = tensor.dtype();
    let mut suffixes = Vec::new();
    let usual = matches!(dtype, DType::F32 | DType::I64 | DType::Bool | DType::C64);
    let text = if tensor.numel() == 0 {
        if tensor.rank() != 1 {
            let sizes: Vec<String> = tensor.sizes().iter().map(ToString::to_string).collect();
            suffixes.push(format!("size=({})", sizes.join(", ")));
        }
        if dtype != DType::F32 {
            suffixes.push(format!("dtype=torch.{}", dtype.torch_name()));
        }
        "[]".to_owned()
    } else {
        if !usual {
            suffixes.push(format!("dtype=torch.{}", dtype.torch_name()));
        }
        let summarized = tensor.numel() > THRESHOLD;
        let elements = Elements::of(dtype, &Printer::visible(tensor, summarized));
        Printer { tensor, elements, summarized }.slice(&mut Vec::new(), PREFIX.len())
    };
    if variable {
        suffixes.push("requires_grad=True".to_owned());
    }
    with_suffixes(format!("{PREFIX}{text}"), &suffixes)
}

fn with_suffixes(mut text: String, suffixes: &[String]) -> String {
    let mut last = text.len() - text.rfind('\n').map_or(0, |at| at + 1) + 1;
    for suffix in suffixes {
        if last + suffix.len() + 2 > LINE {
            text.push_str(&format!(",\n{}{suffix}", " ".repeat(PREFIX.len())));
            last = PREFIX.len() + suffix.len();
        } else {
            text.push_str(&format!(", {suffix}"));
            last += suffix.len() + 2;
        }
    }
    text.push(')');
    text
}
