//! The inputs of a call: tensors from a file by name, by formula, or synthetic for measuring; numbers from `--set`.

use anyhow::Result;
use ferroflux::fx_ir::{Arg, Symbol, Symbols};
use ferroflux::ir_core::{Atom, Class, Scalar, SymExpr, TensorMeta};
use ferroflux::tensor::formula;
use ferroflux::tensor::safetensors::SafetensorsFile;
use ferroflux::{DType, Input, InputInfo, InputKind, Tensor, nearest};

use crate::golden;
use crate::report::{advised, usage};

/// A size that the archive gives no hint for.
const ANY_SIZE: i64 = 8;

/// Inputs that are not tensors.
#[derive(clap::Args)]
pub(crate) struct SetArgs {
    /// The value of an input that is a number, a truth value or text; repeatable.
    #[arg(long = "set", value_name = "NAME=VALUE")]
    set: Vec<String>,
}

impl SetArgs {
    /// The values by the name of the input, which must be one of `infos`.
    pub(crate) fn of(&self, infos: &[InputInfo]) -> Result<Set<'_>> {
        self.of_several(&[infos])
    }

    /// As [`SetArgs::of`] for several models: each value is one's input at least.
    pub(crate) fn of_several(&self, models: &[&[InputInfo]]) -> Result<Set<'_>> {
        let names = || models.iter().copied().flatten().map(|i| i.name.as_str());
        let mut values: Vec<(&str, &str)> = Vec::with_capacity(self.set.len());
        for text in &self.set {
            let Some((name, value)) = text.split_once('=') else {
                return Err(usage(format!("`--set {text}` has no value"), "write `--set NAME=VALUE`"));
            };
            if !names().any(|known| known == name) {
                return Err(unknown(name, &names().collect::<Vec<_>>()));
            }
            if values.iter().any(|(other, _)| *other == name) {
                return Err(usage(format!("`{name}` is set twice"), "give each input one value"));
            }
            values.push((name, value));
        }
        Ok(Set(values))
    }
}

fn unknown(name: &str, known: &[&str]) -> anyhow::Error {
    let near = match &nearest(name, known.iter().copied())[..] {
        [] => String::new(),
        near => format!("; did you mean `{}`?", near.join("` or `")),
    };
    usage(
        format!("the model has no input `{name}`{near}"),
        format!("its inputs are `{}`", known.join("`, `")),
    )
}

/// What `--set` gives, by name.
#[derive(Default)]
pub(crate) struct Set<'a>(Vec<(&'a str, &'a str)>);

impl Set<'_> {
    /// The input of this name in the form that the model takes.
    fn get(&self, info: &InputInfo) -> Result<Option<Input>> {
        let Some((_, text)) = self.0.iter().find(|(name, _)| *name == info.name) else { return Ok(None) };
        let mismatch = || {
            let (name, kind) = (&info.name, &info.kind);
            usage(format!("`{name}` cannot be `{text}`"), format!("`{name}` is {kind}: write such a value"))
        };
        let number = |class| number(text, class).ok_or_else(mismatch);
        let input = match &info.kind {
            InputKind::Int { .. } => number(Class::Int)?,
            InputKind::Float => number(Class::Float)?,
            InputKind::Bool => number(Class::Bool)?,
            InputKind::Constant(constant) => like(constant, text),
            InputKind::Tensor(meta) => {
                let scalar = match number(meta.dtype.class()) {
                    Ok(Input::Int(n)) => Scalar::Int(n),
                    Ok(Input::Float(x)) => Scalar::Float(x),
                    Ok(Input::Bool(b)) => Scalar::Bool(b),
                    _ => return Err(mismatch()),
                };
                if meta.rank() != 0 {
                    return Err(usage(
                        format!("`{}` is a tensor ({meta}), no number", info.name),
                        "give it in the safetensors file of the inputs",
                    ));
                }
                Tensor::scalar(meta.dtype, scalar)?.into()
            }
        };
        Ok(Some(input))
    }
}

/// A number of this class as text; `None` where it is none.
fn number(text: &str, class: Class) -> Option<Input> {
    match class {
        Class::Int => text.parse().ok().map(Input::Int),
        Class::Float => text.parse().ok().map(Input::Float),
        Class::Bool => match text {
            "true" | "True" | "1" => Some(Input::Bool(true)),
            "false" | "False" | "0" => Some(Input::Bool(false)),
            _ => None,
        },
        Class::Complex => None,
    }
}

/// Text as a value of the kind that the model was exported for; text where it is no such, which then differs.
fn like(constant: &Arg, text: &str) -> Input {
    let scalar = |class| number(text, class);
    let read = match constant {
        Arg::None => matches!(text, "none" | "None" | "").then_some(Input::None),
        Arg::Scalar(Scalar::Bool(_)) => scalar(Class::Bool),
        Arg::Int(_) | Arg::Scalar(_) => scalar(Class::Int).or_else(|| scalar(Class::Float)),
        _ => None,
    };
    read.unwrap_or_else(|| Input::Str(text.into()))
}

/// The inputs in order. A tensor is taken by the name of the argument, or as `{prefix}in{n}` by its number among the tensors,
/// or by the file's formula; a number by `set`, or by its name as a tensor without dimensions.
pub(crate) fn from_file(
    infos: &[InputInfo],
    file: &SafetensorsFile,
    prefix: &str,
    set: &Set<'_>,
) -> Result<Vec<Input>> {
    let made = golden::formula_inputs(file)?;
    let mut tensors = 0;
    let mut inputs = Vec::with_capacity(infos.len());
    for info in infos {
        let number = format!("{prefix}in{tensors}");
        let named = file.tensors.get(&format!("{prefix}{}", info.name));
        let meta = info.meta();
        tensors += usize::from(meta.is_some());
        if let Some(given) = set.get(info)? {
            inputs.push(given);
            continue;
        }
        inputs.push(match (&info.kind, named, meta) {
            (InputKind::Constant(constant), ..) => recorded(constant),
            (_, Some(tensor), None) => scalar(tensor),
            (_, None, None) => return Err(unset(info)),
            (_, named, Some(meta)) => {
                let found = named.or_else(|| file.tensors.get(&number)).or_else(|| made.get(&number));
                found.ok_or_else(|| missing(tensors - 1, info, meta, file, prefix))?.into()
            }
        });
    }
    Ok(inputs)
}

/// The value that the model was exported for, as an input.
fn recorded(constant: &Arg) -> Input {
    match (constant, constant.as_scalar()) {
        (Arg::Str(text), _) => Input::Str(text.clone()),
        (_, Some(Scalar::Int(n))) => Input::Int(n),
        (_, Some(Scalar::Bool(b))) => Input::Bool(b),
        (_, Some(Scalar::Float(x))) => Input::Float(x),
        (Arg::None, _) => Input::None,
        (other, _) => Input::Str(InputKind::Constant(other.clone()).to_string().into()),
    }
}

/// Converts a tensor of one number to the number, on any device.
fn scalar(tensor: &Tensor) -> Input {
    match tensor.item().filter(|_| tensor.rank() == 0) {
        Some(Scalar::Int(n)) => Input::Int(n),
        Some(Scalar::Bool(b)) => Input::Bool(b),
        Some(Scalar::Float(x)) => Input::Float(x),
        _ => tensor.into(),
    }
}

fn unset(info: &InputInfo) -> anyhow::Error {
    let (name, kind) = (&info.name, &info.kind);
    usage(
        format!("input `{name}` is {kind}, and nothing gives it"),
        format!("give it with `--set {name}=VALUE`"),
    )
}

fn missing(
    n: usize,
    info: &InputInfo,
    meta: &TensorMeta,
    file: &SafetensorsFile,
    prefix: &str,
) -> anyhow::Error {
    let names: Vec<&str> = file.tensors.keys().map(String::as_str).collect();
    let held = match names.len() {
        0 => "nothing".to_owned(),
        1..=12 => names.join(", "),
        many => format!("{}, … ({many} tensors)", names[..12].join(", ")),
    };
    let near = match &nearest(&info.name, names.iter().copied())[..] {
        [] => String::new(),
        near => format!("; did you mean `{}`?", near.join("` or `")),
    };
    advised(
        format!("input {n} (`{}`: {meta}) is not in the inputs file; it holds {held}{near}", info.name),
        format!("name the tensor `{prefix}{}` or `{prefix}in{n}`", info.name),
    )
}

/// The value of a size expression, with symbols at their values at capture.
pub(crate) fn at_hints(size: &SymExpr, symbols: &Symbols) -> Option<i64> {
    size.eval(&|leaf| match leaf {
        Atom::Sym(id) => symbols.get(*id).map(hint),
        _ => None,
    })
}

/// The symbol's value at capture, or one in its range.
fn hint(symbol: &Symbol) -> i64 {
    symbol.hint.unwrap_or(ANY_SIZE).max(symbol.min).min(symbol.max.unwrap_or(i64::MAX))
}

/// Inputs for measuring: floats by formula, masks all true, other integer tensors zero (valid as an index), numbers at
/// their values at capture.
pub(crate) fn any(infos: &[InputInfo], symbols: &Symbols, set: &Set<'_>) -> Result<Vec<Input>> {
    let one = |info: &InputInfo| match set.get(info)? {
        Some(given) => Ok(given),
        None => one(info, symbols),
    };
    infos.iter().map(one).collect()
}

fn one(info: &InputInfo, symbols: &Symbols) -> Result<Input> {
    let meta = match &info.kind {
        InputKind::Tensor(meta) => meta,
        InputKind::Int { value, .. } => {
            return at_hints(value, symbols).map(Input::Int).ok_or_else(|| unset(info));
        }
        InputKind::Float => return Ok(1.0.into()),
        InputKind::Bool => return Ok(true.into()),
        InputKind::Constant(constant) => return Ok(recorded(constant)),
    };
    let size = |s: &SymExpr| at_hints(s, symbols).and_then(|n| usize::try_from(n).ok());
    let Some(sizes) = meta.sizes.iter().map(size).collect::<Option<Vec<usize>>>() else {
        return Err(advised(
            format!("the sizes of input `{}` ({meta}) cannot be chosen", info.name),
            "give inputs with `--inputs FILE`",
        ));
    };
    let dtype = meta.dtype;
    let tensor = if dtype.is_inexact() {
        formula::fill(&info.name, &sizes, 1.0, 0.0)?.to_dtype(dtype)?
    } else {
        let ones = dtype == DType::Bool || info.name.contains("mask");
        Tensor::full(dtype, &sizes, Scalar::Int(i64::from(ones)))?
    };
    Ok(in_order_of(&tensor, meta, symbols)?.into())
}

/// The tensor with its dimensions in memory in the order of the strides that the model was exported with (channels last, say): a
/// tensor that stays on a device is given as it lies there.
fn in_order_of(tensor: &Tensor, meta: &TensorMeta, symbols: &Symbols) -> Result<Tensor> {
    let strides: Option<Vec<i64>> = meta.strides.iter().map(|s| at_hints(s, symbols)).collect();
    let Some(strides) = strides.filter(|_| !meta.is_contiguous()) else { return Ok(tensor.clone()) };
    let mut order: Vec<usize> = (0..strides.len()).collect();
    order.sort_by_key(|&d| (std::cmp::Reverse(strides[d]), d));
    let mut back = vec![0; order.len()];
    order.iter().enumerate().for_each(|(n, &d)| back[d] = n);
    Ok(tensor.permute(&order)?.contiguous()?.permute(&back)?)
}
