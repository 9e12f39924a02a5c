//! The log of programs that use the crate: `FERROFLUX_LOG=recompiles,breaks,fusion` prints the events of these stages on standard
//! error, if the program has no subscriber of `tracing` of its own. Not here: the log of the command, which has times too.

use std::fmt::{self, Write as _};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// The names of stages and the targets of their events.
pub const STAGES: &[(&str, &[&str])] = &[
    ("archive", &["pt2"]),
    ("aot", &["aot_autograd"]),
    ("graph", &["graph", "fx_ir", "prims", "ferroflux"]),
    ("fusion", &["fusion", "inductor"]),
    ("kernel", &["kernel", "backend_cpu", "kernel_ir"]),
    ("autotune", &["autotune"]),
    ("guards", &["guards"]),
    ("recompiles", &["recompiles"]),
    ("breaks", &["breaks"]),
    ("cache", &["cache"]),
    ("profile", &["profile"]),
    ("plugin", &["plugin_host", "plugin_sdk", "ferroflux::plugin"]),
];

/// The level of a target, the longest that fits counting: `(target, level)`, with an empty target for all others.
type Directive<'a> = (&'a str, Level);

/// Stages (`fusion`), targets with a level (`inductor=trace`) and a level for all (`info`), separated by commas, as levels of
/// targets.
///
/// # Errors
/// The part that is none of these.
pub fn directives(text: &str) -> Result<Vec<Directive<'_>>, &str> {
    let mut list = Vec::new();
    for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        let (name, level) = match part.split_once('=') {
            Some((name, level)) => (name, Some(level.parse::<Level>().map_err(|_| part)?)),
            None => (part, None),
        };
        match (STAGES.iter().find(|(stage, _)| *stage == name), level, name.parse::<Level>()) {
            (Some((_, targets)), level, _) => {
                list.extend(targets.iter().map(|t| (*t, level.unwrap_or(Level::DEBUG))));
            }
            (None, Some(level), _) => list.push((name, level)),
            (None, None, Ok(level)) => list.push(("", level)),
            (None, None, Err(_)) => return Err(part),
        }
    }
    Ok(list)
}

/// Sets the log up where the environment asks for it. A program's own subscriber stays.
pub(crate) fn from_environment() {
    let Ok(text) = std::env::var("FERROFLUX_LOG") else { return };
    if tracing::dispatcher::has_been_set() {
        return;
    }
    let list = match directives(&text) {
        Ok(list) => list.into_iter().map(|(target, level)| (target.to_owned(), level)).collect(),
        Err(part) => {
            let stages: Vec<&str> = STAGES.iter().map(|(stage, _)| *stage).collect();
            eprintln!(
                "FERROFLUX_LOG: `{part}` is no stage ({}), no level and no `target=level`",
                stages.join(", ")
            );
            return;
        }
    };
    // Another thread may have set one meanwhile: then that one counts.
    let _ = tracing::subscriber::set_global_default(Lines(list));
}

/// Prints a line for each event of these targets.
struct Lines(Vec<(String, Level)>);

impl Lines {
    fn level(&self, target: &str) -> Option<Level> {
        let fits = |of: &str| {
            of.is_empty()
                || target.strip_prefix(of).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
        };
        self.0.iter().filter(|(of, _)| fits(of)).max_by_key(|(of, _)| of.len()).map(|(_, level)| *level)
    }
}

impl Subscriber for Lines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        !metadata.is_span() && self.level(metadata.target()).is_some_and(|level| *metadata.level() <= level)
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, event: &Event<'_>) {
        let mut line = Line::default();
        event.record(&mut line);
        let Line { message, fields } = line;
        eprintln!("{:5} {}: {message}{fields}", event.metadata().level(), event.metadata().target());
    }
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

#[derive(Default)]
struct Line {
    message: String,
    fields: String,
}

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // Writing to text does not fail.
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.fields, " {name}={value:?}"),
        };
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn stages_are_their_targets() {
        assert_eq!(directives("guards").unwrap(), [("guards", Level::DEBUG)]);
        let found = directives("info, archive=trace,inductor=warn").unwrap();
        assert_eq!(found, [("", Level::INFO), ("pt2", Level::TRACE), ("inductor", Level::WARN)]);
        assert_eq!(directives("fusoin"), Err("fusoin"));
        assert_eq!(directives("fusion=loud"), Err("fusion=loud"));
    }

    #[test]
    fn the_longest_target_counts() {
        let lines = Lines(vec![(String::new(), Level::INFO), ("graph".into(), Level::TRACE)]);
        let levels = ["graph", "graph::inner", "graphs"].map(|target| lines.level(target).unwrap());
        assert_eq!(levels, [Level::TRACE, Level::TRACE, Level::INFO]);
        assert_eq!(Lines(vec![("graph".into(), Level::INFO)]).level("kernel"), None);
    }
}
