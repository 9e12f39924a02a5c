//! Checkpoints: one safetensors file each, written atomically. The newest ones are kept.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use ferroflux::Tensor;
use ferroflux::tensor::safetensors::SafetensorsFile;
use ferroflux::train::Snapshot;

use crate::report::advised;

/// Prefix of the file's own tensors.
const LOSSES: &str = "ferroflux/losses";
/// Prefix of the step's metadata.
const STEP: &str = "step.";

/// The contents of a checkpoint.
pub(crate) struct Checkpoint {
    /// The step's state.
    pub(crate) snapshot: Snapshot,
    /// The losses of all steps so far.
    pub(crate) losses: Vec<f64>,
    /// Settings of the training run, and other state, by name.
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

    /// The newest readable checkpoint of a folder; `warn` is called for newer ones that cannot be read.
    ///
    /// # Errors
    /// There is none, or none that can be read: the defect of the newest.
    pub(crate) fn newest(folder: &Path, warn: &dyn Fn(String)) -> Result<Checkpoint> {
        let mut list = if folder.is_dir() { all(folder)? } else { Vec::new() };
        let mut first = None;
        while let Some((step, path)) = list.pop() {
            let failed = || format!("cannot read the checkpoint {}", path.display());
            match Checkpoint::read(&path, step).with_context(failed) {
                Ok(found) => return Ok(found),
                Err(error) => {
                    let older =
                        if list.is_empty() { "there is no older one" } else { "an older one is tried" };
                    warn(format!("{error:#}; {older}"));
                    first.get_or_insert(error);
                }
            }
        }
        Err(first.unwrap_or_else(|| {
            let why = format!("there is no checkpoint in {}", folder.display());
            advised(why, "leave `--resume` out to start again, or name the right folder with `--checkpoint`")
        }))
    }

    /// The checkpoint of this many steps.
    fn read(path: &Path, steps: usize) -> Result<Checkpoint> {
        let file = SafetensorsFile::open(path)?;
        let mut tensors = file.tensors;
        let losses = tensors.remove(LOSSES).and_then(|t| t.to_vec::<f64>().ok());
        let losses = losses
            .ok_or_else(|| advised("it holds no losses", "it is no checkpoint of `ferroflux train`"))?;
        if losses.len() != steps {
            let why = format!("it holds the losses of {} steps, its name says {steps}", losses.len());
            return Err(advised(why, "the file was renamed or is another's"));
        }
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
