//! Loads one case: the program with its weights complete, and the goldens. Weights that the archive lacks are made by
//! formula, in memory.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::File;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, Result, anyhow};
use ir_core::DType;
use pt2::{Archive, ExportedProgram, Weight};
use serde::Deserialize;
use tensor::safetensors::SafetensorsFile;
use tensor::{Tensor, formula};
use zip::ZipArchive;

use super::check::milliseconds;
use super::{Case, discover};

/// A program and its goldens.
pub(crate) struct Loaded {
    pub(crate) program: ExportedProgram,
    pub(crate) golden: SafetensorsFile,
    /// Milliseconds from the archive's bytes to its graph; making weights by formula is the corpus' own doing.
    pub(crate) load_ms: f64,
}

/// Opens zip files once for all their cases.
#[derive(Default)]
pub(crate) struct Loader {
    open: Option<(PathBuf, ZipArchive<File>)>,
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

/// Shape of an output, and which of its values the goldens keep.
#[derive(Deserialize)]
pub(crate) struct SampledOutput {
    pub(crate) shape: Vec<usize>,
    pub(crate) step: usize,
}

impl Loader {
    /// Loads a case.
    pub(crate) fn load(&mut self, case: &Case) -> Result<Loaded> {
        let golden = match &case.stem {
            None => SafetensorsFile::open(case.file.with_extension("safetensors"))?,
            Some(stem) => discover::golden(self.zip(&case.file)?, stem)?,
        };
        let bytes = self.bytes(case)?;
        let start = Instant::now();
        let mut program = open(case, bytes)?.program(None)?;
        let load_ms = milliseconds(start);
        complete(&mut program, &golden)?;
        Ok(Loaded { program, golden, load_ms })
    }

    /// The program of a case, without what the goldens add.
    pub(crate) fn program(&mut self, case: &Case) -> Result<ExportedProgram> {
        let bytes = self.bytes(case)?;
        Ok(open(case, bytes)?.program(None)?)
    }

    /// The operators that a case calls, as captured.
    pub(crate) fn targets(&mut self, case: &Case) -> Result<BTreeSet<String>> {
        let program = self.program(case)?;
        let calls = program.graph.iter().filter_map(|(_, node)| node.as_call());
        Ok(calls.map(|(target, _)| target.to_string()).collect())
    }

    /// The archive of a case in a zip file.
    fn bytes(&mut self, case: &Case) -> Result<Option<Vec<u8>>> {
        let Some(stem) = &case.stem else { return Ok(None) };
        Ok(Some(discover::read(self.zip(&case.file)?, &format!("{stem}.pt2"))?))
    }

    fn zip(&mut self, path: &PathBuf) -> Result<&mut ZipArchive<File>> {
        if self.open.as_ref().is_none_or(|(open, _)| open != path) {
            let file = File::open(path).with_context(|| path.display().to_string())?;
            self.open = Some((path.clone(), ZipArchive::new(file)?));
        }
        self.open.as_mut().map(|(_, zip)| zip).ok_or_else(|| anyhow!("no file is open"))
    }
}

fn open(case: &Case, bytes: Option<Vec<u8>>) -> Result<Archive> {
    Ok(match bytes {
        None => Archive::open(&case.file)?,
        Some(bytes) => Archive::from_bytes(bytes)?,
    })
}

/// Makes the missing weights by formula.
fn complete(program: &mut ExportedProgram, golden: &SafetensorsFile) -> Result<()> {
    let params: HashMap<String, (f32, f32)> = metadata(golden, "params")?.unwrap_or_default();
    let zeros: Vec<String> = metadata(golden, "zeros")?.unwrap_or_default();
    let source = |weight: &Weight| -> Result<Option<Tensor>, String> {
        let made = if zeros.contains(&weight.name) {
            Tensor::zeros(weight.dtype, &weight.sizes)
        } else {
            let Some(&(scale, offset)) = params.get(&weight.name) else { return Ok(None) };
            let stream = weight.name.strip_prefix("m.").unwrap_or(&weight.name);
            formula::fill(stream, &weight.sizes, scale, offset).and_then(|t| t.to_dtype(weight.dtype))
        };
        made.map(Some).map_err(|e| e.to_string())
    };
    program.weights.fill(&source)?;
    if let Some(weight) = program.weights.missing().next() {
        return Err(anyhow!("weight `{}` is neither in the archive nor given by a formula", weight.name));
    }
    Ok(())
}

/// A JSON value of the goldens' metadata.
pub(crate) fn metadata<T: for<'de> Deserialize<'de>>(
    golden: &SafetensorsFile,
    key: &str,
) -> Result<Option<T>> {
    let parse = |text: &String| serde_json::from_str(text).with_context(|| format!("metadata `{key}`"));
    golden.metadata.get(key).map(parse).transpose()
}

/// The inputs named `{prefix}in0`, `{prefix}in1`… until one is missing, from the file or by formula.
pub(crate) fn inputs(golden: &SafetensorsFile, prefix: &str) -> Result<Vec<Tensor>> {
    let formulas: BTreeMap<String, FormulaInput> = metadata(golden, "inputs")?.unwrap_or_default();
    let mut inputs = Vec::new();
    loop {
        let name = format!("{prefix}in{}", inputs.len());
        inputs.push(match (golden.tensors.get(&name), formulas.get(&name)) {
            (Some(tensor), _) => tensor.clone(),
            (None, Some(f)) => {
                let dtype: Option<DType> = DType::ALL.iter().copied().find(|d| d.torch_name() == f.dtype);
                let dtype = dtype.with_context(|| format!("dtype `{}` of input `{name}`", f.dtype))?;
                formula::fill(&f.name, &f.shape, f.scale, f.offset)?.to_dtype(dtype)?
            }
            (None, None) => return Ok(inputs),
        });
    }
}
