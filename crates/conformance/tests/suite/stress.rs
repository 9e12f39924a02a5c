//! Two plugins at once from many threads: the broken one in its sound form, under two names. `ferroflux-conformance stress
//! LIB LIB --seconds 60` does the same for longer.

// A helper of tests may fail as a test does.
#![allow(clippy::unwrap_used)]

use std::path::PathBuf;
use std::time::Duration;

use conformance::stress;

#[test]
fn two_plugins_at_once_from_eight_threads() {
    // Keeps the library among those that cargo builds for this test.
    assert!(!ferroflux_broken::FAULTS.is_empty());
    let test = std::env::current_exe().unwrap();
    let name = format!("{}ferroflux_broken{}", std::env::consts::DLL_PREFIX, std::env::consts::DLL_SUFFIX);
    let library: PathBuf = test.ancestors().map(|dir| dir.join(&name)).find(|p| p.is_file()).unwrap();
    // A copy is another library to the loader, with its own statics.
    let folder = tempfile::tempdir().unwrap();
    let copy = folder.path().join(&name);
    std::fs::copy(&library, &copy).unwrap();
    let result = stress::run(&[library, copy], stress::THREADS, Duration::from_millis(1500)).unwrap();
    println!("{result}");
    assert_eq!(result.plugins.len(), 2);
    assert!(result.calls > 100 && result.compilations > 0, "{result}");
}
