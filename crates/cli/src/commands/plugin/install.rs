//! `ferroflux plugin install LIB`: the library and its manifest, with the checksum, in a folder that is searched.

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use ferroflux::ir_core::AtomicFile;
use plugin_host::{Registry, SearchPath, manifest};

use crate::report::advised;

/// Arguments of `plugin install`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The library.
    #[arg(value_name = "LIB")]
    library: PathBuf,
    /// Folder for library and manifest; the user's own (`$XDG_DATA_HOME/ferroflux/plugins.d`) where not given.
    #[arg(long, value_name = "DIR")]
    into: Option<PathBuf>,
}

/// Runs the subcommand.
pub(crate) fn run(args: &Args, out: &mut dyn Write) -> Result<()> {
    let folder = match &args.into {
        Some(folder) => folder.clone(),
        None => own_folder()?,
    };
    let source = args.library.canonicalize().with_context(|| args.library.display().to_string())?;
    // Loading it tells its name and version, and that it loads.
    let backend = Registry::new(&SearchPath { folders: Vec::new() }).load(&source.to_string_lossy())?;
    let at = || folder.display().to_string();
    std::fs::create_dir_all(&folder).with_context(at)?;
    let Some(file) = source.file_name() else {
        return Err(advised(format!("{} has no file name", source.display()), ""));
    };
    let library = folder.join(file);
    copy_whole(&source, &library).with_context(at)?;
    let path = folder.join(format!("{}.json", backend.name()));
    manifest::write_for(&library, backend.name(), backend.version(), &path)?;
    writeln!(out, "{}", path.display())?;
    let searched = SearchPath::from_env().manifests();
    let found = |m: &PathBuf| m.canonicalize().ok() == path.canonicalize().ok();
    if !searched.iter().any(found) {
        let variable = plugin_host::PATH_VARIABLE;
        writeln!(out, "note: {} is not searched; set {variable} to it", folder.display())?;
    }
    Ok(())
}

/// Copies a file whole or not at all: a program may be loading the old one.
fn copy_whole(from: &Path, to: &Path) -> std::io::Result<()> {
    let mut whole = AtomicFile::begin(to)?;
    std::io::copy(&mut std::fs::File::open(from)?, whole.file())?;
    let mode = std::fs::metadata(from)?.permissions();
    whole.file().set_permissions(mode)?;
    whole.finish()
}

/// The user's own folder of plugins.
fn own_folder() -> Result<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    let data = set("XDG_DATA_HOME").filter(|p| p.is_absolute());
    let data = data.or_else(|| set("HOME").map(|home| home.join(".local/share")));
    data.map(|d| d.join("ferroflux/plugins.d"))
        .ok_or_else(|| advised("neither XDG_DATA_HOME nor HOME is set", "give a folder with `--into`"))
}
