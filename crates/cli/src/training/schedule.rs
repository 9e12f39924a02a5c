//! Learning-rate schedules by name: `cosine:period=100,factor=2`. Omitted settings are derived from the number of steps.

use anyhow::Result;
use ferroflux::optim::{Plateau, Schedule};

use crate::report::usage;

/// The syntax of the names, for messages.
const FORMS: &str = "constant; step:size=N,gamma=G; multi-step:at=N/N/…,gamma=G; exponential:gamma=G; \
    cosine:period=N,factor=N,min=LR,restarts=true|false; one-cycle:rise=PART,div=D,final-div=D; polynomial:power=P; \
    plateau:factor=F,patience=EPOCHS,threshold=T,cooldown=EPOCHS,min=LR";

/// The rate of every step.
pub(crate) enum Rates {
    /// A function of the step.
    Fixed(Schedule),
    /// Follows the mean loss of each epoch.
    Plateau(Plateau),
}

impl Rates {
    /// The rate of a step.
    pub(crate) fn rate(&self, base: f64, step: u64) -> f64 {
        match self {
            Rates::Fixed(schedule) => schedule.rate(base, step),
            Rates::Plateau(plateau) => plateau.rate(base),
        }
    }
}

/// Options of one schedule.
struct Settings<'a>(Vec<(&'a str, &'a str)>, &'a str);

impl<'a> Settings<'a> {
    fn take(&mut self, name: &str) -> Option<&'a str> {
        let at = self.0.iter().position(|(n, _)| *n == name)?;
        Some(self.0.remove(at).1)
    }
    fn number<T: std::str::FromStr>(&mut self, name: &str, default: Option<T>) -> Result<T> {
        let whole = self.1;
        let wrong = |why: String| usage(format!("`{whole}`: {why}"), FORMS);
        match (self.take(name), default) {
            (Some(text), _) => text.parse().map_err(|_| wrong(format!("`{name}={text}` is no such number"))),
            (None, Some(default)) => Ok(default),
            (None, None) => Err(wrong(format!("`{name}` is missing"))),
        }
    }
}

/// Reads a schedule for `total` steps, the first `warmup` of which climb.
pub(crate) fn parse(text: &str, total: u64, warmup: u64) -> Result<Rates> {
    let (name, rest) = text.split_once(':').unwrap_or((text, ""));
    let mut pairs = Vec::new();
    for part in rest.split(',').filter(|p| !p.is_empty()) {
        let pair = part.split_once('=');
        pairs.push(pair.ok_or_else(|| usage(format!("`{text}`: `{part}` is not NAME=VALUE"), FORMS))?);
    }
    let mut s = Settings(pairs, text);
    let left = total.saturating_sub(warmup).max(1);
    let schedule = match name {
        "constant" => Schedule::Constant,
        "step" => Schedule::Step { size: s.number("size", None)?, gamma: s.number("gamma", Some(0.1))? },
        "multi-step" => {
            Schedule::MultiStep { milestones: list(&mut s)?, gamma: s.number("gamma", Some(0.1))? }
        }
        "exponential" => Schedule::Exponential { gamma: s.number("gamma", None)? },
        "cosine" => {
            let restarts = s.0.iter().any(|(n, _)| matches!(*n, "period" | "factor"));
            Schedule::Cosine {
                period: s.number("period", Some(left))?,
                factor: s.number("factor", Some(1))?,
                min: s.number("min", Some(0.0))?,
                restarts: s.number("restarts", Some(restarts))?,
            }
        }
        "one-cycle" => Schedule::OneCycle {
            total: left,
            rise: s.number("rise", Some(0.3))?,
            div: s.number("div", Some(25.0))?,
            final_div: s.number("final-div", Some(1e4))?,
        },
        "polynomial" => Schedule::Polynomial { total: left, power: s.number("power", Some(1.0))? },
        "plateau" => return plateau(s),
        _ => return Err(usage(format!("there is no schedule `{name}`"), FORMS)),
    };
    finished(&s)?;
    Ok(Rates::Fixed(match warmup {
        0 => schedule,
        // From almost zero, as `LinearLR` with 1 / steps.
        steps => Schedule::Warmup { steps, start: 1.0 / steps as f64, then: Box::new(schedule) },
    }))
}

fn plateau(mut s: Settings<'_>) -> Result<Rates> {
    let mut plateau = Plateau::new(s.number("factor", Some(0.1))?, s.number("patience", Some(10))?);
    plateau.threshold = s.number("threshold", Some(plateau.threshold))?;
    plateau.cooldown = s.number("cooldown", Some(0))?;
    plateau.min = s.number("min", Some(0.0))?;
    finished(&s)?;
    Ok(Rates::Plateau(plateau))
}

fn list(s: &mut Settings<'_>) -> Result<Vec<u64>> {
    let text = s.take("at").unwrap_or_default();
    let numbers = text.split('/').map(|n| n.parse().map_err(|_| n));
    let numbers: Result<Vec<u64>, &str> = numbers.collect();
    numbers.map_err(|n| usage(format!("`{}`: `{n}` in `at` is no step number", s.1), FORMS))
}

fn finished(s: &Settings<'_>) -> Result<()> {
    match s.0.first() {
        None => Ok(()),
        Some((name, _)) => Err(usage(format!("`{}`: there is no setting `{name}`", s.1), FORMS)),
    }
}
