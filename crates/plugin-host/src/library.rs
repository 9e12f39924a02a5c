//! Opens a plugin library and finds its entry. This is the only module that runs code of a file.

use std::path::Path;

use libloading::Library;
use plugin_abi::{ENTRY_SYMBOL, FfxEntry};

use crate::{HostError, elf};

/// Loads a library for the life of the process and returns its entry.
///
/// The caller has checked what can be checked from outside (permissions, and the manifest). A library without
/// the symbol is closed again; any other stays, because a plugin is never unloaded.
///
/// # Errors
/// The reason of the system loader; a library without the entry.
pub fn entry_of(path: &Path) -> Result<FfxEntry, HostError> {
    let failed = |reason: String| HostError::Library { path: path.to_owned(), reason };
    // An absolute path keeps the loader from searching its own folders for a bare file name.
    let path = path.canonicalize().map_err(|e| HostError::io(path, e))?;
    elf::check_whole(&path)?;
    // SAFETY: running the initializers of a library that the user installed is inherent in loading a plugin.
    let library = unsafe { Library::new(&path) }.map_err(|e| failed(chain(&e)))?;
    // SAFETY: the symbol's name contains the ABI's major; a library that exports it promises its type.
    let entry = unsafe { library.get::<FfxEntry>(ENTRY_SYMBOL) }.map(|symbol| *symbol);
    let entry = entry.map_err(|_| {
        failed(format!("it exports no `{ENTRY_SYMBOL}`, so it is no plugin for this version of Ferroflux"))
    })?;
    std::mem::forget(library);
    Ok(entry)
}

/// The loader's error with its causes.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text
}
