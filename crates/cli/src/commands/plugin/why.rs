//! `ferroflux plugin why NAME`: the rules that a plugin must pass, in order, up to the one that it does not.

use std::io::Write;
use std::path::Path;

use anyhow::Result;
use plugin_host::{BackendInfo, HostError, Manifest, PATH_VARIABLE, Registry, SearchPath, Source};

use crate::report::advised;

/// Arguments of `plugin why`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Name of the plugin.
    name: String,
}

/// The requirements on a manifest before its library is loaded, in the order in which the host checks them.
const RULES: [&str; 6] = [
    "the manifest is readable, and not writable by everybody",
    "the manifest has the form of this version",
    "the library was built for this machine's target",
    "the library works with this host's ABI",
    "the library is there, and not writable by everybody",
    "the library's checksum is the manifest's",
];

/// Runs the subcommand. An unavailable plugin is a failure, so that scripts can test for it.
pub(crate) fn run(args: &Args, out: &mut dyn Write) -> Result<()> {
    let search = SearchPath::from_env();
    let registry = Registry::new(&search);
    let backends = registry.list_backends();
    let named = |b: &&BackendInfo| b.name == args.name;
    // A manifest that cannot be read is listed under the name of its file; a sound one of the same name comes first.
    let found = backends.iter().filter(named).find(|b| b.unavailable_because.is_none());
    let Some(backend) = found.or_else(|| backends.iter().find(named)) else {
        return Err(unknown(&registry, &args.name, &search));
    };
    writeln!(out, "{}", backend.name)?;
    let loads = match &backend.source {
        Source::BuiltIn => {
            writeln!(out, "  ok     it is linked into this program, which comes before all manifests")?;
            true
        }
        Source::Manifest(path) => manifest_rules(path, out)?,
        Source::Library(path) => {
            writeln!(out, "  ok     it is the library {}", path.display())?;
            true
        }
    };
    if loads {
        loaded(backend, out)?;
    }
    for (name, source) in registry.shadowed().iter().filter(|(name, _)| *name == args.name) {
        writeln!(out, "  note   `{name}` of {source} is shadowed by this one")?;
    }
    match &backend.unavailable_because {
        None => writeln!(out, "available")?,
        Some(why) => return Err(advised(format!("`{}` is not available: {why}", backend.name), "")),
    }
    Ok(())
}

/// Prints the rules on a manifest; whether all hold.
fn manifest_rules(path: &Path, out: &mut dyn Write) -> Result<bool> {
    writeln!(out, "  ok     its manifest is {}", path.display())?;
    let failed = match Manifest::read(path) {
        Err(error) => Some((if matches!(error, HostError::Manifest { .. }) { 1 } else { 0 }, error)),
        Ok(manifest) => manifest.verify(path).err().map(|error| (rule_of(&error), error)),
    };
    let held = failed.as_ref().map_or(RULES.len(), |(rule, _)| *rule);
    for rule in &RULES[..held] {
        writeln!(out, "  ok     {rule}")?;
    }
    if let Some((rule, error)) = failed {
        writeln!(out, "  FAILS  {}: {error}", RULES[rule])?;
        return Ok(false);
    }
    Ok(true)
}

/// The rule that an error of `Manifest::verify` belongs to.
fn rule_of(error: &HostError) -> usize {
    match error {
        HostError::Target { .. } => 2,
        HostError::Abi { .. } => 3,
        HostError::Checksum { .. } => 5,
        _ => 4,
    }
}

/// Prints the result of loading it.
fn loaded(backend: &BackendInfo, out: &mut dyn Write) -> Result<()> {
    if let (true, Some(why)) = (backend.devices.is_empty(), &backend.unavailable_because) {
        writeln!(out, "  FAILS  it loads, hands out a sound table and lists its devices: {why}")?;
        return Ok(());
    }
    if !backend.version.is_empty() {
        writeln!(out, "  ok     it loads as version {}", backend.version)?;
    }
    for device in &backend.devices {
        match &device.unavailable_because {
            None => writeln!(out, "  ok     device {}", device.name)?,
            Some(why) => writeln!(out, "  FAILS  device {}: {why}", device.name)?,
        }
    }
    Ok(())
}

/// No such plugin: similar and available names, and the folders that were searched.
fn unknown(registry: &Registry, name: &str, search: &SearchPath) -> anyhow::Error {
    let folders: Vec<String> = search.folders.iter().map(|f| f.path.display().to_string()).collect();
    let hint = format!(
        "manifests (`*.json`) are looked for in {}; {PATH_VARIABLE} adds folders in front",
        folders.join(", ")
    );
    match registry.load(name) {
        Err(error) => advised(error.to_string(), hint),
        Ok(_) => advised(format!("`{name}` is not listed"), hint),
    }
}
