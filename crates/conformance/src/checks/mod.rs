//! The checks, and their context. Each runs in a process of its own that the judge starts.

mod artifacts;
mod bounds;
mod constants;
mod control;
mod errors;
mod exchanges;
mod graphs;
mod handshake;
mod indices;
mod layout;
mod memory;
mod movement;
mod ownership;
mod reduce;
mod scalar;
mod support;
mod table;
mod templates;
mod threads;
mod together;
mod written;

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use plugin_host::{DeviceInfo, LoadedBackend, Registry, SearchPath};
use serde::{Deserialize, Serialize};

use crate::case::{Case, Fault};

/// How much is tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effort {
    /// Every check, with few values and shapes: for development and CI.
    Quick,
    /// Everything.
    Full,
}

/// One check.
pub struct Check {
    /// Name, as `--only` takes it.
    pub name: &'static str,
    /// What it verifies.
    pub about: &'static str,
    /// Whether all other checks depend on it.
    pub gate: bool,
    /// Whether the allocator should detect writes beyond allocations.
    pub guarded: bool,
    run: fn(&mut Cx) -> Result<(), Fault>,
}

const fn check(name: &'static str, about: &'static str, run: fn(&mut Cx) -> Result<(), Fault>) -> Check {
    Check { name, about, gate: false, guarded: false, run }
}
const fn gate(name: &'static str, about: &'static str, run: fn(&mut Cx) -> Result<(), Fault>) -> Check {
    Check { name, about, gate: true, guarded: false, run }
}

/// All checks, in the order in which they are reported.
pub const CHECKS: &[Check] = &[
    gate(
        "table",
        "the library exports its entry; the table it hands out has a size and version that make sense",
        table::table,
    ),
    gate("slots", "every required slot is there, and those that belong together", table::slots),
    gate(
        "describe",
        "name, version, program forms, modes and options make sense and stay the same",
        table::describe,
    ),
    check("entry", "entering many times from many threads yields one plugin", handshake::entry),
    check(
        "older-host",
        "a host of minor 0, with smaller structs, is served, and nothing is written beyond them",
        handshake::older,
    ),
    check("newer-host", "a host of a later minor, with larger structs, is served", handshake::newer),
    check(
        "truncated-host",
        "a host table cut anywhere, none at all, or one of another major is no crash",
        handshake::truncated,
    ),
    check("devices", "devices have names, and reasons where they cannot be used", table::devices),
    check(
        "errors",
        "wrong calls are errors with a code and a reason, and leave nothing behind",
        errors::errors,
    ),
    check("hostile", "damaged programs are errors, never the end of the process", errors::hostile),
    check(
        "support",
        "refusals name a node and a reason, agree with compile, and leave something that is taken",
        support::support,
    ),
    Check {
        guarded: true,
        ..check(
            "bounds",
            "inputs stay as they are, and nothing is written beyond what was lent or allocated",
            bounds::bounds,
        )
    },
    check("ops.bool", "every scalar operator on bool", scalar::bool),
    check("ops.u8", "every scalar operator on u8", scalar::u8),
    check("ops.i8", "every scalar operator on i8", scalar::i8),
    check("ops.i16", "every scalar operator on i16", scalar::i16),
    check("ops.i32", "every scalar operator on i32", scalar::i32),
    check("ops.i64", "every scalar operator on i64, random bits among them", scalar::i64),
    check("ops.f32", "every scalar operator on f32", scalar::f32),
    check("ops.f64", "every scalar operator on f64", scalar::f64),
    check("casts", "conversion and reinterpretation between all dtypes", scalar::casts),
    check("reductions", "every reduction over every dtype, along any dimension", reduce::reductions),
    check("scans", "running combinations over every dtype", reduce::scans),
    check("stages", "kernels of several stages: softmax, normalisation", reduce::stages),
    check("gather", "masked loads and indices that depend on data", movement::gather),
    check("scatter", "stores that add or combine, masked stores", movement::scatter),
    check(
        "indices",
        "an index from data that is out of bounds ends the call with an error and leaves memory alone",
        indices::indices,
    ),
    check(
        "temporaries",
        "several kernels with temporaries that share memory, and views",
        movement::temporaries,
    ),
    check("strides", "inputs and outputs of any layout", layout::strides),
    check("broadcast", "operands of fewer dimensions, scalars", layout::broadcast),
    check("zero-sizes", "tensors without elements", layout::zero_sizes),
    check("dynamic-sizes", "one executable at many sizes; sizes out of range are errors", layout::dynamic),
    check("matmul", "matrix products with batches, layouts and epilogues", templates::matmul),
    check("convolution", "convolutions in one to three dimensions", templates::convolution),
    check("attention", "attention with masks, causal, grouped heads", templates::attention),
    check("dropout", "attention whose weights are dropped", templates::dropout),
    check("sort", "stable sorting along any dimension", templates::sort),
    check("fourier", "Fourier transforms along any dimension", templates::fourier),
    check("control-flow", "sizes that depend on data, conditions, loops, assertions", control::control_flow),
    check(
        "together",
        "steps that may run at once: several shapes, temporaries, many members",
        together::together,
    ),
    check(
        "exchanges",
        "for plugins with collectives: engines join and exchange, programs exchange over groups",
        exchanges::exchanges,
    ),
    check("graphs", "for plugins that take fx graphs: every prim of the operator table", graphs::graphs),
    check("constants", "constants are bound by name, all or none, and again", constants::constants),
    check(
        "written-inputs",
        "inputs that a program writes have their new values, and nothing around them changes",
        written::written_inputs,
    ),
    check(
        "outputs",
        "outputs stand on their own: beyond the inputs, the next call and the executable",
        ownership::outputs,
    ),
    check("deleters", "every output is freed by its deleter, on any thread, once", ownership::deleters),
    check("threads", "many threads compile, and execute one executable", threads::threads),
    check(
        "artifacts",
        "what is saved loads again; foreign, cut and changed bytes do not",
        artifacts::artifacts,
    ),
    check("leaks", "a thousand compilations leave no memory behind", memory::leaks),
];

/// A line of a check's journal.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub(crate) enum Event {
    /// A case begins.
    Start { case: String },
    /// It passed.
    Passed { case: String },
    /// It failed.
    Failed { case: String, message: String },
    /// The plugin declined it.
    Declined { case: String, message: String },
    /// The check ran to its end.
    End,
}

/// The context of a check.
pub struct Cx {
    library: PathBuf,
    journal: File,
    effort: Effort,
}

impl Cx {
    /// The library.
    pub(crate) fn library(&self) -> &Path {
        &self.library
    }

    /// Selects by effort.
    pub(crate) fn by_effort<T>(&self, quick: T, full: T) -> T {
        if self.effort == Effort::Quick { quick } else { full }
    }

    /// The plugin as the host loads it.
    pub(crate) fn backend(&self) -> Result<LoadedBackend, Fault> {
        let registry = Registry::new(&SearchPath { folders: Vec::new() });
        Ok(registry.load(&self.library.to_string_lossy())?)
    }

    /// The plugin and its first device that can be used.
    pub(crate) fn device(&self) -> Result<(LoadedBackend, DeviceInfo), Fault> {
        let backend = self.backend()?;
        let devices = backend.devices()?;
        if let Some(usable) = devices.iter().find(|d| d.unavailable_because.is_none()) {
            return Ok((backend, usable.clone()));
        }
        let reason =
            |d: &DeviceInfo| format!("{}: {}", d.name, d.unavailable_because.as_deref().unwrap_or(""));
        let reasons: Vec<_> = devices.iter().map(reason).collect();
        Err(Fault::Declined(format!("no device can be used ({})", reasons.join("; "))))
    }

    /// Runs one case under its name.
    pub(crate) fn case(&mut self, name: &str, body: impl FnOnce() -> Result<(), Fault>) {
        self.note(&Event::Start { case: name.to_owned() });
        let case = name.to_owned();
        self.note(&match body() {
            Ok(()) => Event::Passed { case },
            Err(Fault::Wrong(message)) => Event::Failed { case, message },
            Err(Fault::Declined(message)) => Event::Declined { case, message },
        });
    }

    /// Runs programs and compares them with the oracle.
    pub(crate) fn cases(
        &mut self,
        cases: impl IntoIterator<Item = Result<Case, Fault>>,
    ) -> Result<(), Fault> {
        let (backend, device) = self.device()?;
        for case in cases {
            let case = case?;
            self.case(&case.name, || case.run(&backend, &device));
        }
        Ok(())
    }

    fn note(&mut self, event: &Event) {
        // The judge reads whole lines; a line that cannot be written appears there as a check without an end.
        if let Ok(mut line) = serde_json::to_vec(event) {
            line.push(b'\n');
            let _ = self.journal.write_all(&line);
        }
    }
}

/// Runs one check in this process, and writes its journal.
///
/// # Errors
/// An unknown check, or a journal that cannot be written.
pub fn run_one(library: &Path, name: &str, journal: &Path, effort: Effort) -> Result<(), String> {
    let check =
        CHECKS.iter().find(|c| c.name == name).ok_or_else(|| format!("no check is named `{name}`"))?;
    let file = File::create(journal).map_err(|e| format!("{}: {e}", journal.display()))?;
    let mut cx = Cx { library: library.to_owned(), journal: file, effort };
    if let Err(fault) = (check.run)(&mut cx) {
        // An error before the first case is reported as a case of its own.
        cx.case("setup", || Err(fault));
    }
    cx.note(&Event::End);
    Ok(())
}

/// The programs of `stress`: small ones of several kinds.
pub(crate) fn stress_cases() -> Result<Vec<Case>, Fault> {
    let mut all =
        vec![support::doubled(1000)?, support::doubled(7)?, reduce::softmax([7, 33])?, constants::affine()?];
    all.extend(movement::samples()?);
    all.extend(templates::samples()?);
    Ok(all)
}
