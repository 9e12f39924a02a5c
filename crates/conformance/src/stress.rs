//! Several plugins in one process, used by many threads for a while: no wrong result, and no memory growth. It runs in the
//! calling process, so a plugin that crashes ends that process.

use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use plugin_host::{DeviceInfo, LoadedBackend, LoadedExecutable, Registry, SearchPath};
use tensor::Tensor;

use crate::case::{Case, Fault, compare};
use crate::checks::stress_cases;
use crate::memory::resident;

/// Threads of a default run.
pub const THREADS: usize = 8;
/// Growth of the process that is allowed after the first quarter of the time, in bytes.
const ALLOWED: u64 = 64 << 20;

/// The result of a run.
#[derive(Clone, Debug)]
pub struct Stress {
    /// Names of the plugins.
    pub plugins: Vec<String>,
    /// Calls that were compared, all of them right.
    pub calls: u64,
    /// Compilations.
    pub compilations: u64,
    /// Growth of the process after the first quarter, where the system reports it.
    pub grown: Option<u64>,
}

impl std::fmt::Display for Stress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let grown = self.grown.map_or("unknown".to_owned(), |n| format!("{n} bytes"));
        let plugins = self.plugins.join(", ");
        write!(
            f,
            "{plugins}: {} calls and {} compilations, all right; growth {grown}",
            self.calls, self.compilations
        )
    }
}

/// One plugin with an executable of each case that it supports.
struct Loaded {
    backend: LoadedBackend,
    device: DeviceInfo,
    cases: Vec<(Case, Vec<Tensor>, LoadedExecutable)>,
}

impl Loaded {
    fn open(library: &Path) -> Result<Loaded, Fault> {
        let library =
            library.canonicalize().map_err(|e| Fault::wrong(format!("{}: {e}", library.display())))?;
        let backend = Registry::new(&SearchPath { folders: vec![] }).load(&library.to_string_lossy())?;
        let usable = backend.devices()?.into_iter().find(|d| d.unavailable_because.is_none());
        let device =
            usable.ok_or_else(|| Fault::Declined(format!("`{}` has no usable device", backend.name())))?;
        let mut cases = Vec::new();
        for case in stress_cases()? {
            match case.compile(&backend, &device) {
                Ok(executable) => {
                    let expected = case.oracle()?.swap_remove(0);
                    cases.push((case, expected, executable));
                }
                Err(Fault::Declined(_)) => {}
                Err(fault) => return Err(fault),
            }
        }
        if cases.is_empty() {
            return Err(Fault::Declined(format!("`{}` takes none of the programs", backend.name())));
        }
        Ok(Loaded { backend, device, cases })
    }

    /// One call in `n` recompiles.
    fn turn(&self, n: u64, counts: &Counts) -> Result<(), Fault> {
        let (case, expected, shared) = &self.cases[n as usize % self.cases.len()];
        let inputs: Vec<&Tensor> = case.calls[0].iter().collect();
        let results = if n.is_multiple_of(64) {
            counts.compilations.fetch_add(1, Ordering::Relaxed);
            case.compile(&self.backend, &self.device)?.execute(&inputs)?
        } else {
            shared.execute(&inputs)?
        };
        counts.calls.fetch_add(1, Ordering::Relaxed);
        let named = |fault: Fault| Fault::wrong(format!("`{}`, {}: {fault}", self.backend.name(), case.name));
        compare(&results, expected, case.tolerance).map_err(named)
    }
}

#[derive(Default)]
struct Counts {
    calls: AtomicU64,
    compilations: AtomicU64,
}

/// Runs all plugins on `threads` threads for `time`.
///
/// # Errors
/// The first wrong result or error; growth of more than 64 MiB; a plugin that supports none of the programs.
pub fn run(libraries: &[PathBuf], threads: usize, time: Duration) -> Result<Stress, String> {
    let loaded = libraries.iter().map(|l| Loaded::open(l)).collect::<Result<Vec<_>, _>>();
    let loaded = loaded.map_err(|fault| fault.to_string())?;
    if loaded.is_empty() {
        return Err("no library is given".to_owned());
    }
    let (counts, stop, fault) = (Counts::default(), AtomicBool::new(false), Mutex::new(None));
    let mut warm = None;
    std::thread::scope(|scope| {
        for thread in 0..threads as u64 {
            let (loaded, counts, stop, fault) = (&loaded, &counts, &stop, &fault);
            scope.spawn(move || {
                let mut n = thread * 7;
                while !stop.load(Ordering::Relaxed) {
                    let plugin = &loaded[(n % loaded.len() as u64) as usize];
                    if let Err(found) = plugin.turn(n / loaded.len() as u64, counts) {
                        // It is only ever set, so a panic elsewhere leaves it valid.
                        fault.lock().unwrap_or_else(|e| e.into_inner()).get_or_insert(found.to_string());
                        stop.store(true, Ordering::Relaxed);
                    }
                    n += 1;
                }
            });
        }
        let started = Instant::now();
        while started.elapsed() < time && !stop.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(10).min(time));
            if warm.is_none() && started.elapsed() >= time / 4 {
                warm = resident();
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    if let Some(fault) = fault.into_inner().unwrap_or_else(|e| e.into_inner()) {
        return Err(fault);
    }
    let grown = warm.zip(resident()).map(|(before, after)| after.saturating_sub(before));
    if grown.is_some_and(|bytes| bytes > ALLOWED) {
        return Err(format!("the process has grown by {} bytes", grown.unwrap_or(0)));
    }
    Ok(Stress {
        plugins: loaded.iter().map(|l| l.backend.name().to_owned()).collect(),
        calls: counts.calls.into_inner(),
        compilations: counts.compilations.into_inner(),
        grown,
    })
}
