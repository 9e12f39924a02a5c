//! Checkpoints: one safetensors file each, written whole or not at all. The newest few are kept.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use ferroflux::Tensor;
use ferroflux::tensor::safetensors::SafetensorsFile;
use ferroflux::train::Snapshot;

use crate::report::advised;

/// Names of the file's own tensors begin so.
const LOSSES: &str = "ferroflux/losses";
/// Names of metadata that is the step's begin so.
const STEP: &str = "step.";

/// What a checkpoint holds.
pub(crate) struct Checkpoint {
    /// The step's state.
    pub(crate) snapshot: Snapshot,
    /// The losses of all steps so far.
    pub(crate) losses: Vec<f64>,
    /// What training was asked to do, and other memory, by name.
    pub(crate) settings: BTreeMap<String, String>,
}

fn path_of(folder: &Path, step: usize) -> PathBuf {
    folder.join(format!("step-{step:010}.safetensors"))
}

/// Checkpoints of a folder with their steps, oldest first.
fn all(folder: &Path) -> Result<Vec<(usize, PathBuf)>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))? {
        let path = entry?.path();
        let name = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        let number = name.strip_prefix("step-").and_then(|n| n.strip_suffix(".safetensors"));
        found.extend(number.and_then(|n| n.parse().ok()).map(|n| (n, path)));
    }
    found.sort_unstable();
    Ok(found)
}

impl Checkpoint {
    /// Writes it into `folder` and removes all but the newest `keep`.
    pub(crate) fn write(&self, folder: &Path, keep: usize) -> Result<PathBuf> {
        std::fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
        let path = path_of(folder, self.losses.len());
        let mut tensors = self.snapshot.tensors.clone();
        tensors.insert(LOSSES.into(), Tensor::from_vec(self.losses.clone(), &[self.losses.len()])?);
        let numbers = self.snapshot.numbers.iter().map(|(k, v)| (format!("{STEP}{k}"), v.clone()));
        let metadata = numbers.chain(self.settings.clone()).collect();
        let file = SafetensorsFile { tensors, metadata };
        file.write(&path).with_context(|| format!("cannot write the checkpoint {}", path.display()))?;
        let all = all(folder)?;
        for (_, old) in &all[..all.len().saturating_sub(keep.max(1))] {
            std::fs::remove_file(old).with_context(|| format!("cannot remove {}", old.display()))?;
        }
        Ok(path)
    }

    /// The newest of a folder.
    pub(crate) fn newest(folder: &Path) -> Result<Checkpoint> {
        let newest = if folder.is_dir() { all(folder)?.pop() } else { None };
        let Some((_, path)) = newest else {
            let why = format!("there is no checkpoint in {}", folder.display());
            return Err(advised(
                why,
                "leave `--resume` out to begin anew, or name the right folder with `--checkpoint`",
            ));
        };
        let failed = || format!("cannot read the checkpoint {}", path.display());
        let file = SafetensorsFile::open(&path).with_context(failed)?;
        let mut tensors = file.tensors;
        let losses = tensors.remove(LOSSES).and_then(|t| t.to_vec::<f64>().ok());
        let losses =
            losses.ok_or_else(|| advised("it holds no losses", "it is no checkpoint of `ferroflux train`"));
        let losses = losses.with_context(failed)?;
        let (mut numbers, mut settings) = (BTreeMap::new(), BTreeMap::new());
        for (name, value) in file.metadata {
            match name.strip_prefix(STEP) {
                Some(own) => numbers.insert(own.to_owned(), value),
                None => settings.insert(name, value),
            };
        }
        Ok(Checkpoint { snapshot: Snapshot { tensors, numbers }, losses, settings })
    }
}
