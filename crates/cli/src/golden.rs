//! The metadata of a safetensors file in the golden corpus' format: inputs and weights by formula, and which values of an
//! output it keeps. A file without such metadata simply has none of it.

use std::collections::{BTreeMap, HashMap};

use ferroflux::tensor::formula;
use ferroflux::tensor::safetensors::SafetensorsFile;
use ferroflux::{DType, Recipe, RecipeSource, Tensor, Weight, WeightSource};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use thiserror::Error;

/// Errors of a file's metadata.
#[derive(Debug, Error)]
pub enum GoldenError {
    /// The value of a key is invalid.
    #[error("metadata `{key}` of the file: {problem}")]
    Metadata {
        /// The key.
        key: String,
        /// Why.
        problem: String,
    },
    /// An input that cannot be made.
    #[error("input `{name}` by formula: {problem}")]
    Input {
        /// Its name.
        name: String,
        /// Why.
        problem: String,
    },
}

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
pub struct Sampled {
    /// Sizes of the whole output.
    pub shape: Vec<usize>,
    /// Every `step`-th value in row-major order is kept.
    pub step: usize,
}

/// A JSON value of the metadata; the type's default where it has none.
///
/// # Errors
/// It is there and is of another form.
pub fn metadata<T: DeserializeOwned + Default>(file: &SafetensorsFile, key: &str) -> Result<T, GoldenError> {
    let Some(text) = file.metadata.get(key) else { return Ok(T::default()) };
    serde_json::from_str(text)
        .map_err(|e| GoldenError::Metadata { key: key.to_owned(), problem: e.to_string() })
}

/// Which outputs the file holds samples of; empty where it holds whole ones.
///
/// # Errors
/// The metadata is malformed.
pub fn sampled(file: &SafetensorsFile) -> Result<Vec<Sampled>, GoldenError> {
    metadata(file, "outs")
}

/// The inputs that are made by formula, by name (`in0`).
///
/// # Errors
/// The metadata is malformed, or names a dtype that does not exist.
pub fn formula_inputs(file: &SafetensorsFile) -> Result<BTreeMap<String, Tensor>, GoldenError> {
    let all: BTreeMap<String, FormulaInput> = metadata(file, "inputs")?;
    let make = |f: &FormulaInput| -> Result<Tensor, String> {
        let dtype: DType = f.dtype.parse()?;
        let filled = formula::fill(&f.name, &f.shape, f.scale, f.offset).and_then(|t| t.to_dtype(dtype));
        filled.map_err(|e| e.to_string())
    };
    let named = |(name, f): (&String, &FormulaInput)| match make(f) {
        Ok(tensor) => Ok((name.clone(), tensor)),
        Err(problem) => Err(GoldenError::Input { name: name.clone(), problem }),
    };
    all.iter().map(named).collect()
}

/// Weights by the file's formulas.
#[derive(Default)]
pub struct FormulaWeights {
    /// Scale and offset by name.
    params: HashMap<String, (f32, f32)>,
    /// Those that are zero.
    zeros: Vec<String>,
}

impl FormulaWeights {
    /// Reads `params` and `zeros` of the metadata.
    ///
    /// # Errors
    /// The metadata is malformed.
    pub fn of(file: &SafetensorsFile) -> Result<FormulaWeights, GoldenError> {
        Ok(FormulaWeights { params: metadata(file, "params")?, zeros: metadata(file, "zeros")? })
    }
}

impl WeightSource for FormulaWeights {
    fn tensor(&self, weight: &Weight) -> Result<Option<Tensor>, String> {
        let recipe = self.recipe(weight);
        recipe.map(|recipe| recipe.on_host(weight)).transpose().map_err(|e| e.to_string())
    }
}

impl RecipeSource for FormulaWeights {
    fn recipe(&self, weight: &Weight) -> Option<Recipe> {
        let zero = self.zeros.contains(&weight.name);
        let (scale, offset) = if zero { (0.0, 0.0) } else { *self.params.get(&weight.name)? };
        Some(recipe(weight, scale, offset))
    }
}

/// The recipe of a weight; its stream is its name, without the leading `m.` that some exports have.
pub fn recipe(weight: &Weight, scale: f32, offset: f32) -> Recipe {
    let stream = weight.name.strip_prefix("m.").unwrap_or(&weight.name).to_owned();
    Recipe { stream, scale, offset }
}
