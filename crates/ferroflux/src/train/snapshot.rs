//! Snapshots: everything that is needed to go on with training, whole or in the parts that ranks of a mesh have, read back on
//! any mesh or on none. Not here: files (`ferroflux train` writes safetensors).

use std::collections::BTreeMap;

use tensor::Tensor;

use super::step::TrainStep;
use super::wiring::replace;
use crate::Error;
pub use crate::mesh::PartPlace;

/// Everything that is needed to continue training: a copy of the state, or of a rank's part of it.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// Parameters, written buffers and the optimizer's tensors (`optimizer/SLOT/PARAMETER`).
    pub tensors: BTreeMap<String, Tensor>,
    /// The places of tensors that are parts; others are whole.
    pub places: BTreeMap<String, PartPlace>,
    /// Counters and settings by name, as text.
    pub numbers: BTreeMap<String, String>,
}

impl TrainStep {
    /// A snapshot to continue training from, on any mesh or on none. Later steps do not change it. On a mesh every rank calls it,
    /// as [`weights`](Self::weights) and [`get`](Self::get): the parts of all are gathered.
    ///
    /// # Errors
    /// An error of the device.
    pub fn snapshot(&self) -> Result<Snapshot, Error> {
        let tensors = self.state.iter().map(|(name, value)| Ok((name.clone(), self.fetch(name, value)?)));
        let tensors = tensors.collect::<Result<_, Error>>()?;
        Ok(Snapshot { tensors, places: BTreeMap::new(), numbers: self.numbers() })
    }

    /// This rank's part of a snapshot, without an exchange: of what several ranks have the first of them keeps it, so that the
    /// parts of all ranks are one snapshot ([`restore_parts`](Self::restore_parts)). Without a mesh it is the snapshot.
    ///
    /// # Errors
    /// An error of the device.
    pub fn snapshot_part(&self) -> Result<Snapshot, Error> {
        let mut snapshot = Snapshot { numbers: self.numbers(), ..Snapshot::default() };
        for (name, value) in self.state.iter().filter(|(name, _)| self.parts.keeps(name)) {
            snapshot.tensors.insert(name.clone(), self.fetch_own(name, value)?);
            snapshot.places.extend(self.parts.placed(name)?.map(|(place, _)| (name.clone(), place)));
        }
        Ok(snapshot)
    }

    /// Continues from a snapshot of the same program and optimizer.
    ///
    /// # Errors
    /// State that is missing, superfluous or of another type; nothing has changed then.
    pub fn restore(&mut self, snapshot: &Snapshot) -> Result<(), Error> {
        self.restore_parts(std::slice::from_ref(snapshot))
    }

    /// Continues from the parts of a snapshot that the ranks of a mesh made, whatever that mesh was. A rank reads what it needs of
    /// each.
    ///
    /// # Errors
    /// As for [`restore`](Self::restore), and parts that are missing.
    pub fn restore_parts(&mut self, snapshots: &[Snapshot]) -> Result<(), Error> {
        let of = |what: String| Err(Error::Snapshot(what));
        let Some(first) = snapshots.first() else { return of("it has no parts".into()) };
        let mut pieces: BTreeMap<&str, Vec<(&Tensor, Option<&PartPlace>)>> = BTreeMap::new();
        for s in snapshots {
            for (name, tensor) in &s.tensors {
                pieces.entry(name).or_default().push((tensor, s.places.get(name)));
            }
        }
        let mut state = self.state.clone();
        if let Some(name) = state.keys().find(|k| !pieces.contains_key(k.as_str())) {
            return of(format!(
                "it has no `{name}`: it is of another model or optimizer, or a part of it is missing"
            ));
        }
        for (name, pieces) in pieces {
            replace(&mut state, name, &self.parts.assembled(name, &pieces)?, &self.code)?;
        }
        let mut progress = self.progress.clone();
        progress.updates = number(first, "updates")?;
        progress.calls = number(first, "calls")?;
        progress.seed = number(first, "seed")?;
        if let Some(s) = &mut progress.scaler {
            s.scale = number(first, "scale")?;
            s.good = number(first, "scale_good")?;
        }
        (self.state, self.progress) = (state, progress);
        Ok(())
    }

    fn numbers(&self) -> BTreeMap<String, String> {
        let p = &self.progress;
        let mut numbers = BTreeMap::from([
            ("updates".to_owned(), p.updates.to_string()),
            ("calls".to_owned(), p.calls.to_string()),
            ("seed".to_owned(), p.seed.to_string()),
        ]);
        if let Some(s) = &p.scaler {
            // Rust prints floats so that they parse to the same value.
            numbers.insert("scale".into(), s.scale.to_string());
            numbers.insert("scale_good".into(), s.good.to_string());
        }
        numbers
    }
}

fn number<T: std::str::FromStr>(snapshot: &Snapshot, name: &str) -> Result<T, Error> {
    let text = snapshot.numbers.get(name).and_then(|text| text.parse().ok());
    text.ok_or_else(|| Error::Snapshot(format!("its `{name}` is missing or no number")))
}
