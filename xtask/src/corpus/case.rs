//! Loads one case: the program with its weights complete, and the goldens. Weights that the archive lacks are made by
//! formula, in memory.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Instant;

use anyhow::{Result, anyhow};
use cli::golden::{FormulaWeights, formula_inputs};
use pt2::{Archive, ExportedProgram};
use tensor::Tensor;
use tensor::safetensors::SafetensorsFile;
use testing::cases::Cases;

use super::Case;
use super::check::milliseconds;

/// A program and its goldens.
pub(crate) struct Loaded {
    pub(crate) program: ExportedProgram,
    pub(crate) golden: SafetensorsFile,
    /// Milliseconds from the archive's bytes to its graph; computing weights by formula is not counted.
    pub(crate) load_ms: f64,
}

/// Opens zip files once for all their cases.
#[derive(Default)]
pub(crate) struct Loader {
    open: Option<Cases>,
}

impl Loader {
    /// Loads a case.
    pub(crate) fn load(&mut self, case: &Case) -> Result<Loaded> {
        let golden = match &case.stem {
            None => SafetensorsFile::open(case.file.with_extension("safetensors"))?,
            Some(stem) => self.zip(&case.file)?.golden(stem)?,
        };
        let bytes = self.bytes(case)?;
        let start = Instant::now();
        let mut program = open(case, bytes)?.program(None)?;
        let load_ms = milliseconds(start);
        complete(&mut program, &golden)?;
        Ok(Loaded { program, golden, load_ms })
    }

    /// The archive of a case as bytes, and its goldens.
    pub(crate) fn raw(&mut self, case: &Case) -> Result<(Vec<u8>, SafetensorsFile)> {
        let bytes = match self.bytes(case)? {
            Some(bytes) => bytes,
            None => std::fs::read(&case.file)?,
        };
        let golden = match &case.stem {
            None => SafetensorsFile::open(case.file.with_extension("safetensors"))?,
            Some(stem) => self.zip(&case.file)?.golden(stem)?,
        };
        Ok((bytes, golden))
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
        Ok(Some(self.zip(&case.file)?.archive(stem)?))
    }

    fn zip(&mut self, path: &Path) -> Result<&mut Cases> {
        if self.open.as_ref().is_none_or(|open| open.path() != path) {
            self.open = Some(Cases::open(path)?);
        }
        self.open.as_mut().ok_or_else(|| anyhow!("no file is open"))
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
    program.weights.fill(&FormulaWeights::of(golden)?)?;
    if let Some(weight) = program.weights.missing().next() {
        return Err(anyhow!("weight `{}` is neither in the archive nor given by a formula", weight.name));
    }
    Ok(())
}

/// The inputs named `{prefix}in0`, `{prefix}in1`… until one is missing, from the file or by formula.
pub(crate) fn inputs(golden: &SafetensorsFile, prefix: &str) -> Result<Vec<Tensor>> {
    let formulas = formula_inputs(golden)?;
    let named = |n: usize| {
        let name = format!("{prefix}in{n}");
        golden.tensors.get(&name).or_else(|| formulas.get(&name)).cloned()
    };
    Ok((0..).map_while(named).collect())
}
