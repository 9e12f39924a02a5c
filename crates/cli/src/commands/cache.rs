//! `ferroflux cache`: lists and removes compiled programs on disk, and explains why a model would be compiled again.

use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use ferroflux::cache::{Difference, EntryInfo, Key, Report, Store};
use ferroflux::optim::{Optimizer, Sgd};
use ferroflux::train::TrainOptions;
use serde_json::json;

use crate::model::Model;
use crate::options::{BackendArgs, Global};
use crate::report::{advised, usage};
use crate::show;
use crate::training::step::StepArgs;

/// Arguments of `cache`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Lists the programs that are kept, the last used first.
    List {
        /// Prints one JSON object instead of a table.
        #[arg(long)]
        json: bool,
    },
    /// Removes programs: those that were not used for a while, or all.
    Clear {
        /// Those that were not used for so long: `12h`, `30d`.
        #[arg(long, value_name = "AGE", value_parser = age, required_unless_present = "all", conflicts_with = "all")]
        older_than: Option<Duration>,
        /// All of them.
        #[arg(long)]
        all: bool,
    },
    /// Reports whether a model would be found, or which parts of its key differ from the entry that is most like it. It is asked
    /// for as `run` asks for it.
    Explain {
        /// The model: a `.pt2` archive, or a `.zip` with one.
        model: PathBuf,
        /// Asks for a training step, as `train` does with the same options (and `bench` with none of them).
        #[arg(long)]
        train: bool,
        #[command(flatten)]
        step: StepArgs,
        #[command(flatten)]
        backend: BackendArgs,
        /// Prints one JSON object instead of text.
        #[arg(long)]
        json: bool,
    },
}

/// Runs the subcommand.
pub(crate) fn run(args: &Args, global: &Global, out: &mut dyn Write) -> Result<()> {
    match &args.command {
        Command::List { json } => list(&store(global)?, *json, out),
        Command::Clear { older_than, .. } => {
            let removed = store(global)?.clear(*older_than).context("cannot clear the cache")?;
            let files = show::count(removed.files, "file");
            writeln!(out, "{files} removed, {}", show::bytes(removed.bytes))?;
            Ok(())
        }
        Command::Explain { model, train, step, backend, json } => {
            let model = Model::open(model)?;
            let options = backend.options(global);
            let step = step.options()?;
            if !train && step != TrainOptions::new(Optimizer::Sgd(Sgd::default())) {
                return Err(usage("options of a training step, but none is asked for", "add `--train`"));
            }
            let report = match train {
                true => model.program.cached_step(&step, &options)?,
                false => model.program.cached(&options)?,
            };
            match json {
                true => writeln!(out, "{}", serde_json::to_string(&report)?)?,
                false => explain(&model.name, &report, out)?,
            }
            Ok(())
        }
    }
}

fn store(global: &Global) -> Result<Store> {
    Store::open(&global.cache()).map_err(|why| {
        advised(
            format!("there is no cache: {why}"),
            "`--cache DIR` or FERROFLUX_CACHE_DIR names another folder",
        )
    })
}

fn list(store: &Store, as_json: bool, out: &mut dyn Write) -> Result<()> {
    let entries = store.entries();
    let total = store.bytes();
    if as_json {
        let one = |e: &EntryInfo| {
            json!({
                "entry": e.key.id(), "program": e.program, "backend": e.backend, "mode": e.mode, "bytes": e.bytes,
                "made_s_ago": e.age.as_secs(), "used_s_ago": e.unused.as_secs(), "key": e.key,
            })
        };
        let list: Vec<_> = entries.iter().map(one).collect();
        let object =
            json!({ "folder": store.folder(), "bytes": total, "limit": store.limit(), "entries": list });
        writeln!(out, "{object}")?;
        return Ok(());
    }
    if !entries.is_empty() {
        let titles = ["program", "backend", "mode", "size", "made", "used", "what"].map(str::to_owned);
        let row = |e: &EntryInfo| {
            let graph = e.key.part("graph").map_or(String::new(), |p| p.shown.clone());
            let texts = [e.program.clone(), e.backend.clone(), e.mode.clone(), show::bytes(e.bytes)];
            texts.into_iter().chain([ago(e.age), ago(e.unused), graph]).collect()
        };
        let rows: Vec<Vec<String>> = [titles.to_vec()].into_iter().chain(entries.iter().map(row)).collect();
        show::columns(&rows, out)?;
    }
    let programs = show::count(entries.len(), "program");
    let (total, limit) = (show::bytes(total), show::bytes(store.limit()));
    writeln!(
        out,
        "{programs} in {}, {total} with packed weights, of at most {limit}",
        store.folder().display()
    )?;
    Ok(())
}

fn explain(name: &str, report: &Report, out: &mut dyn Write) -> Result<()> {
    match report {
        Report::Hit(key) => {
            writeln!(out, "{name}: hit")?;
            print_key(key, out)?;
        }
        Report::Off(why) => writeln!(out, "{name}: nothing is cached: {why}")?,
        Report::Miss { key, damaged, nearest } => {
            match (damaged, nearest) {
                (Some(why), _) => writeln!(out, "{name}: miss: the entry's file cannot be used: {why}")?,
                (None, None) => writeln!(out, "{name}: miss: the cache has no entries")?,
                (None, Some((_, differences))) => {
                    let parts: Vec<&str> = differences.iter().map(|d| d.part.as_str()).collect();
                    writeln!(out, "{name}: miss: {}", parts.join(", "))?;
                }
            }
            if let Some((entry, differences)) = nearest {
                writeln!(
                    out,
                    "nearest entry: {} for {}, made {}",
                    entry.program,
                    entry.backend,
                    ago(entry.age)
                )?;
                differences.iter().try_for_each(|d| print_difference(d, out))?;
            }
            print_key(key, out)?;
        }
    }
    Ok(())
}

fn print_difference(d: &Difference, out: &mut dyn Write) -> Result<()> {
    writeln!(out, "  {}: the entry has {}", d.part, d.entry)?;
    writeln!(out, "  {}  wanted is     {}", " ".repeat(d.part.len()), d.wanted)?;
    Ok(())
}

fn print_key(key: &Key, out: &mut dyn Write) -> Result<()> {
    writeln!(out, "key:")?;
    let row = |p: &ferroflux::cache::Part| {
        vec![format!("  {}", p.name), p.sum.chars().take(12).collect(), p.shown.clone()]
    };
    show::columns(&key.0.iter().map(row).collect::<Vec<_>>(), out)
}

/// `12 s ago`, `3 min ago`, `5 h ago`, `9 days ago`.
fn ago(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds {
        0..120 => format!("{seconds} s ago"),
        120..7200 => format!("{} min ago", seconds / 60),
        7200..172_800 => format!("{} h ago", seconds / 3600),
        _ => format!("{} days ago", seconds / 86_400),
    }
}

/// A time with its unit: `90s`, `5m`, `12h`, `30d`.
fn age(text: &str) -> Result<Duration, String> {
    let wrong = || format!("`{text}` is no time such as `12h` or `30d`");
    let (at, unit) = text.char_indices().last().ok_or_else(wrong)?;
    let seconds: u64 = match unit {
        's' => 1,
        'm' => 60,
        'h' => 3600,
        'd' => 86_400,
        _ => return Err(wrong()),
    };
    let number: u64 = text[..at].parse().map_err(|_| wrong())?;
    number.checked_mul(seconds).map(Duration::from_secs).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units() {
        assert_eq!(age("12h"), Ok(Duration::from_secs(43_200)));
        assert_eq!(age("30d"), Ok(Duration::from_secs(2_592_000)));
        for wrong in ["", "12", "h", "1.5h", "-1d", "99999999999999999999d"] {
            assert!(age(wrong).is_err(), "{wrong}");
        }
        assert_eq!(ago(Duration::from_secs(7200)), "2 h ago");
    }
}
