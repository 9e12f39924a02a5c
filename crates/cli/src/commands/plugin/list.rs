//! `ferroflux plugin list`: one row per candidate, in order of precedence; those that lost their name come last.

use std::io::Write;
use std::path::Path;

use anyhow::Result;
use plugin_abi::{ABI_MAJOR, ABI_MINOR};
use plugin_host::{BackendInfo, HostError, Manifest, Registry, Source};
use serde::Serialize;

/// Arguments of `plugin list`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Prints a JSON array instead of a table.
    #[arg(long)]
    json: bool,
}

/// One candidate for a name.
#[derive(Serialize)]
struct Row {
    name: String,
    version: String,
    source: String,
    /// The hosts that it works with, `1.0`; empty where that is not known.
    abi: String,
    /// `ok`, `wrong`, `unread` where it was not come to; empty where there is none.
    checksum: &'static str,
    /// `ready`, `unavailable` or `shadowed`.
    state: &'static str,
    /// Why it is not ready.
    reason: Option<String>,
}

/// Runs the subcommand.
pub(crate) fn run(args: &Args, out: &mut dyn Write) -> Result<()> {
    let registry = Registry::from_env();
    let backends = registry.list_backends();
    let mut rows: Vec<Row> = backends.iter().map(found).collect();
    rows.extend(registry.shadowed().iter().map(|(name, source)| shadowed(name, source, &backends)));
    if args.json {
        writeln!(out, "{}", serde_json::to_string(&rows)?)?;
        return Ok(());
    }
    let head = ["name", "version", "abi", "checksum", "state", "from"].map(str::to_owned).to_vec();
    let cells =
        |r: &Row| [&r.name, &r.version, &r.abi, r.checksum, r.state, &r.source].map(str::to_owned).to_vec();
    let table: Vec<_> = [head].into_iter().chain(rows.iter().map(cells)).collect();
    super::columns(&table, out)?;
    for (name, why) in rows.iter().filter_map(|r| r.reason.as_ref().map(|why| (&r.name, why))) {
        writeln!(out, "\n{name}: {why}")?;
    }
    Ok(())
}

/// A candidate that has its name.
fn found(backend: &BackendInfo) -> Row {
    let reason = backend.unavailable_because.clone();
    let manifest = manifest_of(&backend.source);
    Row {
        name: backend.name.clone(),
        version: match &manifest {
            Some((_, manifest)) if backend.version.is_empty() => manifest.version.clone(),
            _ => backend.version.clone(),
        },
        source: backend.source.to_string(),
        abi: abi(&backend.source, manifest.as_ref().map(|(_, m)| m)),
        checksum: manifest.as_ref().map_or("", |(path, m)| checksum(path, m)),
        state: if reason.is_some() { "unavailable" } else { "ready" },
        reason,
    }
}

/// A candidate that lost its name.
fn shadowed(name: &str, source: &Source, backends: &[BackendInfo]) -> Row {
    let winner = backends.iter().find(|b| b.name == name);
    let manifest = manifest_of(source);
    Row {
        name: name.to_owned(),
        version: manifest.as_ref().map(|(_, m)| m.version.clone()).unwrap_or_default(),
        source: source.to_string(),
        abi: abi(source, manifest.as_ref().map(|(_, m)| m)),
        checksum: manifest.as_ref().map_or("", |(path, m)| checksum(path, m)),
        state: "shadowed",
        reason: winner.map(|w| format!("the one of {} comes first", w.source)),
    }
}

fn manifest_of(source: &Source) -> Option<(&Path, Manifest)> {
    let Source::Manifest(path) = source else { return None };
    Manifest::read(path).ok().map(|manifest| (path.as_path(), manifest))
}

fn abi(source: &Source, manifest: Option<&Manifest>) -> String {
    match (source, manifest) {
        (Source::BuiltIn, _) => format!("{ABI_MAJOR}.{ABI_MINOR}"),
        (_, Some(m)) => format!("{}.{}", m.abi.major, m.abi.min_minor),
        _ => String::new(),
    }
}

fn checksum(path: &Path, manifest: &Manifest) -> &'static str {
    match manifest.verify(path) {
        Ok(_) => "ok",
        Err(HostError::Checksum { .. }) => "wrong",
        Err(_) => "unread",
    }
}
