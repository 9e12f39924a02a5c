//! What a safetensors file says beside its tensors in the corpus' format: inputs and weights made by formula, and which
//! values of an output it keeps. A file without such metadata simply has none of it.

use std::collections::{BTreeMap, HashMap};

use anyhow::{Context, Result, anyhow};
use ferroflux::tensor::safetensors::SafetensorsFile;
use ferroflux::tensor::{TensorError, formula};
use ferroflux::{DType, Tensor, Weight, WeightSource};
use serde::Deserialize;
use serde::de::DeserializeOwned;

/// An input made by formula.
#[derive(Deserialize)]
struct FormulaInput {
    name: String,
    shape: Vec<usize>,
    dtype: String,
    scale: f32,
    offset: f32,
}

/// Shape of an output, and the step of the values that are kept of it, flattened.
#[derive(Deserialize)]
pub(crate) struct Sampled {
    pub(crate) shape: Vec<usize>,
    pub(crate) step: usize,
}

fn metadata<T: DeserializeOwned + Default>(file: &SafetensorsFile, key: &str) -> Result<T> {
    match file.metadata.get(key) {
        Some(text) => serde_json::from_str(text).with_context(|| format!("metadata `{key}` of the file")),
        None => Ok(T::default()),
    }
}

/// Which outputs the file holds samples of; empty where it holds whole ones.
pub(crate) fn sampled(file: &SafetensorsFile) -> Result<Vec<Sampled>> {
    metadata(file, "outs")
}

/// The inputs that are made by formula, by name (`in0`).
pub(crate) fn formula_inputs(file: &SafetensorsFile) -> Result<BTreeMap<String, Tensor>> {
    let all: BTreeMap<String, FormulaInput> = metadata(file, "inputs")?;
    let make = |f: &FormulaInput| -> Result<Tensor> {
        let dtype: DType = f.dtype.parse().map_err(|e: String| anyhow!(e))?;
        Ok(formula::fill(&f.name, &f.shape, f.scale, f.offset)?.to_dtype(dtype)?)
    };
    let named = |(name, f): (&String, &FormulaInput)| {
        Ok((name.clone(), make(f).with_context(|| format!("input `{name}` by formula"))?))
    };
    all.iter().map(named).collect()
}

/// Weights by the file's formulas.
#[derive(Default)]
pub(crate) struct FormulaWeights {
    /// Scale and offset by name.
    params: HashMap<String, (f32, f32)>,
    /// Those that are zero.
    zeros: Vec<String>,
}

impl FormulaWeights {
    /// Reads `params` and `zeros` of the metadata.
    pub(crate) fn of(file: &SafetensorsFile) -> Result<FormulaWeights> {
        Ok(FormulaWeights { params: metadata(file, "params")?, zeros: metadata(file, "zeros")? })
    }
}

impl WeightSource for FormulaWeights {
    fn tensor(&self, weight: &Weight) -> Result<Option<Tensor>, String> {
        let made = if self.zeros.contains(&weight.name) {
            Tensor::zeros(weight.dtype, &weight.sizes)
        } else {
            let Some(&(scale, offset)) = self.params.get(&weight.name) else { return Ok(None) };
            by_formula(weight, scale, offset)
        };
        made.map(Some).map_err(|e| e.to_string())
    }
}

fn by_formula(weight: &Weight, scale: f32, offset: f32) -> Result<Tensor, TensorError> {
    let stream = weight.name.strip_prefix("m.").unwrap_or(&weight.name);
    formula::fill(stream, &weight.sizes, scale, offset).and_then(|t| t.to_dtype(weight.dtype))
}

/// Some weights for measuring, where nobody has said which: small, the same every time, and such that norms neither
/// divide by zero nor blow up.
pub(crate) struct AnyWeights;

impl WeightSource for AnyWeights {
    fn tensor(&self, weight: &Weight) -> Result<Option<Tensor>, String> {
        let last = weight.name.rsplit('.').next().unwrap_or_default();
        let around_one = weight.sizes.len() == 1 && (last == "weight" || last.ends_with("_var"));
        let made = match weight.dtype.is_inexact() {
            // Counters and positions: an index that is valid everywhere.
            false => Tensor::zeros(weight.dtype, &weight.sizes),
            true => by_formula(weight, 0.05, if around_one { 1.0 } else { 0.0 }),
        };
        made.map(Some).map_err(|e| e.to_string())
    }
}
