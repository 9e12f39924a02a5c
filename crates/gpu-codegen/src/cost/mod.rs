//! A cost model of products and convolutions: how long a candidate takes, predicted from what it does and from coefficients
//! that were fitted to times measured on one architecture.
//!
//! A candidate's [`Work`] is a list of amounts (points that a multiprocessor computes one after another, bytes, waits,
//! elements of the epilogue). What a kernel does at the same time is combined by a smooth maximum, since the slowest of it
//! decides; what happens before and behind is added. Coefficients are not negative, so more work never takes less time. Each
//! kind of kernel has its own, and a factor for each shape of tile.
//!
//! An architecture without a file of coefficients has no model; its candidates are ordered by the rule (`tile_rule`). Not
//! here: the amounts of a candidate (`product::tile_work`), the measuring (`xtask gpu-suite fit`), and what the runtime does
//! with a prediction (`gpu-runtime`'s `choice`).

mod fit;
mod step;
mod text;

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use thiserror::Error;

pub use fit::{Measured, fit};
pub use step::StepWork;

/// Amounts of work of which every kind of kernel has a coefficient, in seconds for each. The first is 1; the next
/// [`AT_ONCE`] happen at the same time.
pub const TERMS: [&str; 11] = [
    // 1 of every candidate.
    "launch",
    // Multiply-adds that the busiest multiprocessor does, divided by the rate of the tile's shape by rule.
    "compute",  // Bytes that a multiprocessor gets from the second-level cache.
    "cache",    // Bytes from memory, each once.
    "memory",   // Latencies that a block waits for.
    "latency",  // Elements that threads copy one by one, or that no vector holds.
    "copies",   // Elements of tiles that the busiest multiprocessor stores.
    "end",      // Operations of the epilogue on them.
    "epilogue", // Elements that the blocks of a cluster exchange.
    "exchange", // Kernels behind the first one.
    "second",   // Bytes of sums that these read.
    "sums",
];
/// How many terms behind the first one happen at the same time.
const AT_ONCE: usize = 5;
/// The exponent of the smooth maximum: two equal amounts count 1.19 times.
const NORM: i32 = 4;

/// The amounts of work of one candidate, in the order of [`TERMS`].
#[derive(Clone, Debug, PartialEq)]
pub struct Work {
    /// The kind of kernel, of which the coefficients are.
    pub kind: &'static str,
    /// The shape of its tiles; empty where it is not known.
    pub tile: String,
    /// The amounts.
    pub terms: [f64; TERMS.len()],
}

/// What a kind's times depend on beside the number of multiprocessors, which is in the amounts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Speeds {
    /// The highest clock of the multiprocessors in MHz; 0 where it is not known.
    pub clock: u32,
    /// The highest bandwidth of the memory in 10⁹ bytes a second; 0 where it is not known.
    pub bandwidth: u32,
}

/// The coefficients of one kind.
#[derive(Clone, Debug, PartialEq)]
struct Kind {
    name: String,
    /// The natural logarithm of the factor by which 19 of 20 predictions are off at most.
    error: f64,
    /// Seconds for each unit of a term.
    seconds: [f64; TERMS.len()],
    /// Factors of the time by the shape of tiles; 1 for those that are missing.
    tiles: Vec<(String, f64)>,
}

/// The coefficients of an architecture.
#[derive(Clone, Debug, PartialEq)]
pub struct Model {
    architecture: String,
    /// Those of the device that was measured.
    speeds: Speeds,
    kinds: Vec<Kind>,
}

/// A predicted time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prediction {
    /// Seconds.
    pub seconds: f64,
    /// The natural logarithm of the factor by which 19 of 20 predictions of the kind are off at most.
    pub error: f64,
}

/// Which of several times may be the least: those that are not predicted to be longer than the least by more than both
/// predictions are off. What is not predicted may be, and the first of the predicted always is.
pub fn may_win(times: &[Option<Prediction>]) -> Vec<bool> {
    let known = times.iter().flatten();
    let Some(first) = known.min_by(|a, b| a.seconds.total_cmp(&b.seconds)) else {
        return vec![true; times.len()];
    };
    // Independent errors add as squares.
    let most = |p: &Prediction| first.seconds * p.error.hypot(first.error).exp();
    times.iter().map(|time| time.is_none_or(|p| p.seconds <= most(&p))).collect()
}

/// What is wrong with a file of coefficients.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum CostError {
    /// The first line is another one.
    #[error("not a file of coefficients: the first line must be `{}`", text::TITLE)]
    Title,
    /// A line cannot be read.
    #[error("line {line}: {what}; write the file again with `xtask gpu-suite fit`")]
    Line {
        /// Its number, from 1.
        line: usize,
        /// What is wrong.
        what: String,
    },
}

/// The files of coefficients that are built in, by architecture.
const BUILT_IN: &[(&str, &str)] = &[("sm_90", include_str!("sm_90.txt"))];

impl Model {
    /// Reads coefficients from the text that [`Model`] is displayed as.
    ///
    /// # Errors
    /// [`CostError`] with the line that is wrong.
    pub fn parse(text: &str) -> Result<Model, CostError> {
        text::parse(text)
    }

    /// The architecture that was measured.
    pub fn architecture(&self) -> &str {
        &self.architecture
    }

    /// Whether there are coefficients for a kind of kernel.
    pub fn knows(&self, kind: &str) -> bool {
        self.kinds.iter().any(|k| k.name == kind)
    }

    /// The predicted time; `None` where the kind was not measured.
    pub fn predict(&self, work: &Work) -> Option<Prediction> {
        let kind = self.kinds.iter().find(|k| k.name == work.kind)?;
        let factor = kind.tiles.iter().find(|(name, _)| *name == work.tile).map_or(1.0, |(_, f)| *f);
        Some(Prediction { seconds: factor * time(&kind.seconds, &work.terms), error: kind.error })
    }

    /// The model of a device of the same architecture: what memory bounds is as fast as its memory, what multiprocessors do as
    /// fast as their clock. Speeds that are not known change nothing.
    #[must_use]
    pub fn scaled(mut self, device: Speeds) -> Model {
        let factor = |measured: u32, device: u32| match (measured, device) {
            (0, _) | (_, 0) => 1.0,
            _ => f64::from(measured) / f64::from(device),
        };
        let clock = factor(self.speeds.clock, device.clock);
        let memory = factor(self.speeds.bandwidth, device.bandwidth);
        for seconds in self.kinds.iter_mut().flat_map(|kind| kind.seconds.iter_mut().zip(TERMS)) {
            match seconds {
                (seconds, "memory" | "sums") => *seconds *= memory,
                // Launches are work of the host and of units with clocks of their own.
                (_, "launch" | "second") => {}
                (seconds, _) => *seconds *= clock,
            }
        }
        self.speeds = device;
        self
    }
}

/// The time of amounts of work with these coefficients.
fn time(seconds: &[f64; TERMS.len()], terms: &[f64; TERMS.len()]) -> f64 {
    let one = |n: usize| seconds[n] * terms[n];
    let at_once: f64 = (1..=AT_ONCE).map(|n| one(n).powi(NORM)).sum();
    let apart: f64 = (AT_ONCE + 1..TERMS.len()).map(one).sum();
    one(0) + at_once.powf(1.0 / f64::from(NORM)) + apart
}

/// A model as a part of a target: equal where the coefficients are.
#[derive(Clone, Debug)]
pub struct Costs(pub Arc<Model>);

impl Costs {
    /// The built-in coefficients of an architecture as compilers name it (`sm_90a`) for a device of these speeds; `None`
    /// where the architecture was not measured.
    pub fn built_in(architecture: &str, device: Speeds) -> Option<Costs> {
        let base = architecture.split(':').next()?.trim_end_matches(['a', 'f']);
        let (_, text) = BUILT_IN.iter().find(|(name, _)| *name == base)?;
        // A test reads every file; one that is damaged is as good as none.
        Model::parse(text).ok().map(|model| Costs(Arc::new(model.scaled(device))))
    }
}

impl PartialEq for Costs {
    fn eq(&self, other: &Costs) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.0 == other.0
    }
}

/// Coefficients are finite, so that each equals itself.
impl Eq for Costs {}

impl Hash for Costs {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.architecture.hash(state);
        self.0.speeds.hash(state);
        let numbers = self.0.kinds.iter().flat_map(|k| k.seconds.into_iter().chain([k.error]));
        numbers.for_each(|number| number.to_bits().hash(state));
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn model() -> Model {
        let kind = |name: &str, launch| Kind {
            name: name.into(),
            error: 0.1,
            seconds: std::array::from_fn(|n| if n == 0 { launch } else { 1e-9 * (n + 1) as f64 }),
            tiles: vec![("128x128".into(), 0.5)],
        };
        let speeds = Speeds { clock: 2000, bandwidth: 4000 };
        Model { architecture: "sm_90".into(), speeds, kinds: vec![kind("mma", 2e-6), kind("library", 4e-6)] }
    }

    #[test]
    fn more_work_takes_longer() {
        let model = model();
        let terms: [f64; TERMS.len()] = std::array::from_fn(|n| if n == 0 { 1.0 } else { 100.0 * n as f64 });
        let predict =
            |terms| model.predict(&Work { kind: "mma", tile: String::new(), terms }).unwrap().seconds;
        let base = predict(terms);
        for n in 0..TERMS.len() {
            let mut more = terms;
            more[n] *= 3.0;
            assert!(predict(more) > base, "{}", TERMS[n]);
        }
    }

    #[test]
    fn the_slowest_of_what_happens_at_once_decides() {
        let model = model();
        let alone = |compute: f64, memory: f64| {
            let mut terms = [0.0; TERMS.len()];
            (terms[1], terms[3]) = (compute, memory);
            model.predict(&Work { kind: "mma", tile: String::new(), terms }).unwrap().seconds
        };
        // Their coefficients are 2 and 4.
        let (both, least) = (alone(2000.0, 1000.0), alone(2000.0, 0.0));
        assert!((both / least - 2f64.powf(0.25)).abs() < 1e-9);
        assert!(alone(2000.0, 100.0) < 1.01 * least);
    }

    #[test]
    fn kinds_and_tiles_have_their_own_coefficients() {
        let model = model();
        let mut terms = [0.0; TERMS.len()];
        terms[0] = 1.0;
        let work = |kind, tile: &str| Work { kind, tile: tile.into(), terms };
        let seconds = |seconds| Some(Prediction { seconds, error: 0.1 });
        assert_eq!(model.predict(&work("mma", "")), seconds(2e-6));
        assert_eq!(model.predict(&work("mma", "128x128")), seconds(1e-6));
        assert_eq!(model.predict(&work("library", "")), seconds(4e-6));
        assert_eq!(model.predict(&work("wgmma", "")), None);
        assert!(model.knows("mma") && !model.knows("wgmma"));
    }

    #[test]
    fn what_cannot_win_by_the_errors_of_both_predictions_is_told() {
        let p = |seconds, error| Some(Prediction { seconds, error });
        assert_eq!(may_win(&[]), []);
        assert_eq!(may_win(&[None, None]), [true, true]);
        assert_eq!(may_win(&[p(1.0, 0.0), p(1.1, 0.0), p(1.0, 0.0)]), [true, false, true]);
        // The hypotenuse of 0.3 and 0.4 is 0.5, a factor of 1.65.
        assert_eq!(may_win(&[p(1.7, 0.4), p(1.6, 0.4), p(1.0, 0.3), None]), [false, true, true, true]);
    }

    #[test]
    fn every_built_in_file_can_be_read() {
        for (name, text) in BUILT_IN {
            let model = Model::parse(text).unwrap();
            assert_eq!(model.architecture(), *name);
            let speeds = model.speeds;
            assert_eq!(Costs::built_in(&format!("{name}a"), speeds), Some(Costs(Arc::new(model))));
        }
        assert_eq!(Costs::built_in("sm_1", Speeds::default()), None);
    }

    #[test]
    fn other_devices_of_the_architecture_have_their_own_speeds() {
        let measured = model();
        let at = |term: &str| TERMS.iter().position(|t| *t == term).unwrap();
        let ratio =
            |model: &Model, term| model.kinds[0].seconds[at(term)] / measured.kinds[0].seconds[at(term)];
        let other = model().scaled(Speeds { clock: 1000, bandwidth: 5000 });
        for (term, expected) in
            [("launch", 1.0), ("compute", 2.0), ("end", 2.0), ("memory", 0.8), ("sums", 0.8)]
        {
            assert!((ratio(&other, term) - expected).abs() < 1e-12, "{term}");
        }
        // Where a speed is not known the measured one stands.
        let unknown = model().scaled(Speeds::default());
        assert!(TERMS.iter().all(|term| ratio(&unknown, term) == 1.0));
    }

    #[test]
    fn a_text_is_read_as_it_was_written() {
        let model = model();
        assert_eq!(Model::parse(&model.to_string()), Ok(model));
    }
}
