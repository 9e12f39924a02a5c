//! The tensors of a call: from a file by name, by formula, or made up for measuring.

use anyhow::Result;
use ferroflux::fx_ir::Symbol;
use ferroflux::ir_core::{Arena, Atom, Scalar, SymExpr, SymId};
use ferroflux::tensor::formula;
use ferroflux::tensor::safetensors::SafetensorsFile;
use ferroflux::{DType, InputInfo, Tensor, nearest};

use crate::report::advised;
use ferroflux::golden;

/// A size that the archive gives no hint for.
const ANY_SIZE: i64 = 8;

/// The inputs in order: each by the name of the argument, or as `{prefix}in{n}`, or by the file's formula.
pub(crate) fn from_file(infos: &[InputInfo], file: &SafetensorsFile, prefix: &str) -> Result<Vec<Tensor>> {
    let made = golden::formula_inputs(file)?;
    let find = |(n, info): (usize, &InputInfo)| {
        let number = format!("{prefix}in{n}");
        let found = file.tensors.get(&format!("{prefix}{}", info.name)).or_else(|| file.tensors.get(&number));
        found.or_else(|| made.get(&number)).cloned().ok_or_else(|| missing(n, info, file, prefix))
    };
    infos.iter().enumerate().map(find).collect()
}

fn missing(n: usize, info: &InputInfo, file: &SafetensorsFile, prefix: &str) -> anyhow::Error {
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
        format!(
            "input {n} (`{}`: {}) is not in the inputs file; it holds {held}{near}",
            info.name, info.meta
        ),
        format!("name the tensor `{prefix}{}` or `{prefix}in{n}`", info.name),
    )
}

/// The value of a size expression, symbols at what they were when the model was captured.
pub(crate) fn at_hints(size: &SymExpr, symbols: &Arena<SymId, Symbol>) -> Option<i64> {
    size.eval(&|leaf| match leaf {
        Atom::Sym(id) => symbols.get(*id).map(hint),
        _ => None,
    })
}

/// The symbol's value at capture, or one in its range.
fn hint(symbol: &Symbol) -> i64 {
    symbol.hint.unwrap_or(ANY_SIZE).max(symbol.min).min(symbol.max.unwrap_or(i64::MAX))
}

/// Some inputs for measuring: floats by formula, masks all true, other integers zero (valid as an index).
pub(crate) fn any(infos: &[InputInfo], symbols: &Arena<SymId, Symbol>) -> Result<Vec<Tensor>> {
    infos.iter().map(|info| one(info, symbols)).collect()
}

fn one(info: &InputInfo, symbols: &Arena<SymId, Symbol>) -> Result<Tensor> {
    let size = |s: &SymExpr| at_hints(s, symbols).and_then(|n| usize::try_from(n).ok());
    let Some(sizes) = info.meta.sizes.iter().map(size).collect::<Option<Vec<usize>>>() else {
        return Err(advised(
            format!("the sizes of input `{}` ({}) cannot be chosen", info.name, info.meta),
            "give inputs with `--inputs FILE`",
        ));
    };
    let dtype = info.meta.dtype;
    Ok(if dtype.is_inexact() {
        formula::fill(&info.name, &sizes, 1.0, 0.0)?.to_dtype(dtype)?
    } else {
        let ones = dtype == DType::Bool || info.name.contains("mask");
        Tensor::full(dtype, &sizes, Scalar::Int(i64::from(ones)))?
    })
}
