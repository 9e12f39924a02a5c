//! Opens a model: a `.pt2` archive, a corpus case (a `.zip` of one archive and its goldens), or a graph as text (`.fx`) with
//! the safetensors file of its inputs and weights beside it.

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use ferroflux::minify::Case;
use ferroflux::tensor::safetensors::SafetensorsFile;
use ferroflux::{Program, SafetensorsSource};
use zip::ZipArchive;

use crate::golden::FormulaWeights;
use crate::options::WeightArgs;
use crate::report::advised;

/// A model and the goldens of its case.
pub(crate) struct Model {
    /// File name without its suffix.
    pub(crate) name: String,
    /// The program; weights may be missing.
    pub(crate) program: Program,
    /// The goldens of a corpus case, or the tensors beside a graph's text.
    pub(crate) golden: Option<SafetensorsFile>,
    /// Time that reading the archive took.
    pub(crate) read: Duration,
}

impl Model {
    /// Opens the model at `path`.
    pub(crate) fn open(path: &Path) -> Result<Model> {
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let failed = || format!("cannot read the model {}", path.display());
        if is_case(path) {
            let (archive, golden) = read_case(path).with_context(failed)?;
            let start = Instant::now();
            let program = Program::from_bytes(archive).with_context(failed)?.named(&name);
            return Ok(Model { name, program, golden: Some(golden), read: start.elapsed() });
        }
        let start = Instant::now();
        if is_text(path) {
            let case = Case::read(path).with_context(failed)?;
            let program = case.program().with_context(failed)?.named(&name);
            let golden = SafetensorsFile { tensors: case.tensors, ..SafetensorsFile::default() };
            return Ok(Model { name, program, golden: Some(golden), read: start.elapsed() });
        }
        let program = Program::load(path).with_context(failed)?;
        Ok(Model { name, program, golden: None, read: start.elapsed() })
    }

    /// Fills missing weights from `--weights`, and by the formulas of `golden` or of the case. Weights that neither has
    /// stay missing; compiling reports them.
    pub(crate) fn fill(&mut self, args: &WeightArgs, golden: Option<&SafetensorsFile>) -> Result<()> {
        self.fill_from_files(args)?;
        for file in golden.into_iter().chain(&self.golden) {
            self.program.fill_weights(&FormulaWeights::of(file)?)?;
        }
        Ok(())
    }

    /// Fills missing weights from `--weights` alone.
    pub(crate) fn fill_from_files(&mut self, args: &WeightArgs) -> Result<()> {
        if let Some(path) = &args.weights {
            let file = tensors(path)?;
            let source = SafetensorsSource { file: &file, prefix: &args.weights_prefix };
            let before = self.program.missing_weights().count();
            let after = self.program.fill_weights(&source)?;
            if before > 0 && after == before {
                return Err(no_weight_found(self, path, &file, &args.weights_prefix));
            }
        }
        Ok(())
    }
}

fn no_weight_found(model: &Model, path: &Path, file: &SafetensorsFile, prefix: &str) -> anyhow::Error {
    let wanted = model.program.missing_weights().next().map_or(String::new(), |w| w.name.clone());
    let held = file.tensors.keys().next().map_or("nothing".to_owned(), |n| format!("`{n}`"));
    let used = if prefix.is_empty() { String::new() } else { format!(" (prefix `{prefix}`)") };
    advised(
        format!(
            "{} has none of the weights that the model lacks{used}: the model wants `{wanted}`, the file holds {held}",
            path.display()
        ),
        "give what the model's names begin with and the file's do not as `--weights-prefix`",
    )
}

fn is_text(path: &Path) -> bool {
    path.extension().is_some_and(|e| e == "fx")
}

fn is_case(path: &Path) -> bool {
    path.extension().is_some_and(|e| e == "zip")
}

/// A safetensors file, or the goldens of a corpus case.
pub(crate) fn tensors(path: &Path) -> Result<SafetensorsFile> {
    let failed = || format!("cannot read {}", path.display());
    if is_case(path) {
        return Ok(read_case(path).with_context(failed)?.1);
    }
    // The error of a missing file names it already; that of a damaged one does not.
    SafetensorsFile::open(path).with_context(failed)
}

/// The archive and the goldens of a case.
fn read_case(path: &Path) -> Result<(Vec<u8>, SafetensorsFile)> {
    let file = File::open(path)?;
    // Real cases deflate at most 20-fold; a bomb would do 1000-fold.
    let limit = file.metadata()?.len().saturating_mul(100).saturating_add(64 << 20);
    let mut zip = ZipArchive::new(file)?;
    // A name that cannot be read is not a model's.
    let names = zip.file_names().filter_map(|name| name.ok().map(std::borrow::Cow::into_owned));
    let models: Vec<String> = names.filter(|n| n.ends_with(".pt2")).collect();
    let stem = match &models[..] {
        [one] => one.trim_end_matches(".pt2").to_owned(),
        [] => return Err(advised("it holds no `.pt2` archive", "name the `.pt2` archive itself")),
        many => {
            return Err(advised(
                format!("it holds {} models", many.len()),
                "unpack it and name one of its `.pt2` archives",
            ));
        }
    };
    let archive = entry(&mut zip, &format!("{stem}.pt2"), limit)?;
    let golden = entry(&mut zip, &format!("{stem}.safetensors"), limit)?;
    Ok((archive, SafetensorsFile::from_bytes(&golden)?))
}

fn entry(zip: &mut ZipArchive<File>, name: &str, limit: u64) -> Result<Vec<u8>> {
    let entry = zip.by_name(name).with_context(|| format!("entry `{name}`"))?;
    let mut bytes = Vec::new();
    entry.take(limit + 1).read_to_end(&mut bytes).with_context(|| format!("entry `{name}`"))?;
    if bytes.len() as u64 > limit {
        return Err(advised(
            format!("entry `{name}` inflates to more than {limit} bytes"),
            "unpack it yourself if you trust it",
        ));
    }
    Ok(bytes)
}
