//! Checkpoints: safetensors files, written atomically. The newest ones are kept.
//!
//! A checkpoint is one file; on a mesh each rank writes what it has into a file of its own, and the first rank writes the one
//! that names how many there are when all others stand. Any mesh reads them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use ferroflux::Tensor;
use ferroflux::tensor::safetensors::SafetensorsFile;
use ferroflux::train::{PartPlace, Snapshot};

use crate::mesh::{Rank, is_first};
use crate::report::advised;

/// Prefix of the file's own tensors.
const LOSSES: &str = "ferroflux/losses";
/// Prefix of the step's metadata.
const STEP: &str = "step.";
/// Prefix of the places of parts: `FIRST of WHOLE`, each numbers with commas.
const PLACE: &str = "place.";
/// The number of files of a checkpoint.
const PARTS: &str = "parts";

/// The contents of a checkpoint.
pub(crate) struct Checkpoint {
    /// The step's state: what this rank has of it where it is written, all parts where it is read.
    pub(crate) parts: Vec<Snapshot>,
    /// The losses of all steps so far.
    pub(crate) losses: Vec<f64>,
    /// Settings of the training run, and other state, by name.
    pub(crate) settings: BTreeMap<String, String>,
}

fn path_of(folder: &Path, step: usize) -> PathBuf {
    folder.join(format!("step-{step:010}.safetensors"))
}

/// The file of what a rank other than the first one has.
fn part_path(first: &Path, rank: usize) -> PathBuf {
    first.with_extension(format!("rank-{rank}.safetensors"))
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

/// Whether a folder has no checkpoints.
pub(crate) fn is_none(folder: &Path) -> bool {
    !folder.is_dir() || all(folder).is_ok_and(|found| found.is_empty())
}

impl Checkpoint {
    /// Writes it into `folder`, every rank its part, and removes all but the newest `keep`; the path on the first rank.
    pub(crate) fn write(&self, folder: &Path, keep: usize, rank: Rank<'_>) -> Result<Option<PathBuf>> {
        std::fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
        let path = path_of(folder, self.losses.len());
        let own = match rank {
            Some(member) if member.rank() > 0 => part_path(&path, member.rank()),
            _ => path.clone(),
        };
        let written = || {
            let file = self.file(rank)?;
            file.write(&own).with_context(|| format!("cannot write the checkpoint {}", own.display()))
        };
        if let Some(member) = rank.filter(|m| m.rank() > 0) {
            written()?;
            member.barrier()?;
            return Ok(None);
        }
        if let Some(member) = rank {
            member.barrier()?;
        }
        written()?;
        let all = all(folder)?;
        for (_, old) in &all[..all.len().saturating_sub(keep.max(1))] {
            remove(old)?;
        }
        Ok(Some(path))
    }

    /// The contents of this rank's file.
    fn file(&self, rank: Rank<'_>) -> Result<SafetensorsFile> {
        let (mut tensors, mut metadata) = (BTreeMap::new(), BTreeMap::new());
        for snapshot in &self.parts {
            tensors.extend(snapshot.tensors.clone());
            metadata.extend(snapshot.numbers.iter().map(|(k, v)| (format!("{STEP}{k}"), v.clone())));
            metadata.extend(snapshot.places.iter().map(|(k, p)| (format!("{PLACE}{k}"), place_text(p))));
        }
        if is_first(rank) {
            tensors.insert(LOSSES.into(), Tensor::from_vec(self.losses.clone(), &[self.losses.len()])?);
            metadata.extend(self.settings.clone());
            metadata.insert(PARTS.into(), rank.map_or(1, |m| m.mesh().ranks()).to_string());
        }
        Ok(SafetensorsFile { tensors, metadata })
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
        let mut settings = BTreeMap::new();
        let mut parts = vec![part(tensors, file.metadata, &mut settings)?];
        // Checkpoints of earlier versions are whole.
        let count = settings.remove(PARTS).map_or(Ok(1), |n| n.parse::<usize>());
        let count = count.map_err(|_| advised("it does not say how many parts it has", "it is damaged"))?;
        for rank in 1..count {
            let path = part_path(path, rank);
            let file =
                SafetensorsFile::open(&path).with_context(|| format!("in its part {}", path.display()))?;
            parts.push(part(file.tensors, file.metadata, &mut BTreeMap::new())?);
        }
        Ok(Checkpoint { parts, losses, settings })
    }
}

/// What a file has of the state; other metadata goes to `settings`.
fn part(
    tensors: BTreeMap<String, Tensor>,
    metadata: BTreeMap<String, String>,
    settings: &mut BTreeMap<String, String>,
) -> Result<Snapshot> {
    let mut snapshot = Snapshot { tensors, ..Snapshot::default() };
    for (name, value) in metadata {
        if let Some(own) = name.strip_prefix(STEP) {
            snapshot.numbers.insert(own.to_owned(), value);
        } else if let Some(own) = name.strip_prefix(PLACE) {
            let place = place_of(&value, snapshot.tensors.get(own));
            let wrong = || advised(format!("it has no place for its part of `{own}`"), "it is damaged");
            snapshot.places.insert(own.to_owned(), place.ok_or_else(wrong)?);
        } else {
            settings.insert(name, value);
        }
    }
    Ok(snapshot)
}

fn place_text(place: &PartPlace) -> String {
    let list = |numbers: &[usize]| numbers.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
    let mut text = format!("{} of {}", list(&place.first), list(&place.whole));
    for (dim, pieces) in &place.pieces {
        let ranges: Vec<String> = pieces.iter().map(|(first, length)| format!("{first}+{length}")).collect();
        text += &format!("; {dim} in {}", ranges.join(","));
    }
    text
}

/// The place that a text names, if a part of these sizes fits there.
fn place_of(text: &str, part: Option<&Tensor>) -> Option<PartPlace> {
    let list = |text: &str| text.split(',').map(|n| n.parse::<usize>().ok()).collect::<Option<Vec<_>>>();
    let range = |text: &str| {
        let (first, length) = text.split_once('+')?;
        Some((first.parse::<usize>().ok()?, length.parse::<usize>().ok()?))
    };
    let pieces_of = |text: &str| {
        let (dim, ranges) = text.split_once(" in ")?;
        Some((dim.parse::<usize>().ok()?, ranges.split(',').map(range).collect::<Option<Vec<_>>>()?))
    };
    let mut parts = text.split("; ");
    let (first, whole) = parts.next()?.split_once(" of ")?;
    let pieces = parts.map(pieces_of).collect::<Option<_>>()?;
    let place = PartPlace { whole: list(whole)?, first: list(first)?, pieces };
    place.fits(part?.sizes()).then_some(place)
}

/// Removes a checkpoint: first what makes it one, then its parts.
fn remove(path: &Path) -> Result<()> {
    let parts = SafetensorsFile::open(path).ok().and_then(|f| f.metadata.get(PARTS)?.parse::<usize>().ok());
    std::fs::remove_file(path).with_context(|| format!("cannot remove {}", path.display()))?;
    for rank in 1..parts.unwrap_or(1) {
        let path = part_path(path, rank);
        match std::fs::remove_file(&path) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                return Err(e).with_context(|| format!("cannot remove {}", path.display()));
            }
            _ => {}
        }
    }
    Ok(())
}
