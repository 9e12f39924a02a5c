//! A page about each compiled program: its stages side by side, from a line of the source to the kernels it became with their
//! loops and machine code, times, memory, guards and recompilations. One HTML file without anything from elsewhere, and the trace of the process
//! beside it.
//!
//! `FERROFLUX_TRACE=DIR`, or [`write_to`], makes every compilation write `DIR/NAME.html`; [`flush`] writes the pages again with
//! the times of the calls since, and `DIR/trace.json` for Chrome's and Perfetto's viewers. On a mesh the first rank has pages, and
//! [`gather`] writes one trace of all ranks. Files are written under another name and renamed. Not here: recording ([`crate::profiler`]).

pub mod diagram;
mod kernel_times;
mod memory;
mod page;
mod stages;
mod together;

use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use fx_ir::Graph;
use kernel_ir::Program as Kernels;
use plugin_host::{LoadedBackend, LoadedExecutable};
pub use together::gather;

use crate::code::Code;
use crate::mesh::Member;
use crate::profiler::{Averages, Trace, of_process, paused};
use crate::{Error, Options, Program};

/// The variable that names the folder.
pub const VARIABLE: &str = "FERROFLUX_TRACE";

/// Programs of which pages are kept in memory.
const MOST: usize = 64;

/// What is written, and where.
struct Reports {
    folder: PathBuf,
    /// Whether kernels are timed.
    kernels: bool,
    recording: crate::profiler::Recording,
    programs: Vec<About>,
    /// How often ranks had joined when the traces of all were written together.
    gathered: Option<u64>,
}

/// A compiled program.
struct About {
    name: String,
    page: page::Page,
    /// The rank of a mesh that it is compiled for.
    rank: Option<usize>,
}

/// What is known of a captured function.
pub(crate) struct Function {
    pub(crate) guards: Vec<String>,
    /// The guards that failed before.
    pub(crate) recompiles: Vec<String>,
    pub(crate) captures: usize,
}

fn reports() -> MutexGuard<'static, Option<Reports>> {
    static REPORTS: OnceLock<Mutex<Option<Reports>>> = OnceLock::new();
    let of_environment = || {
        let folder = std::env::var_os(VARIABLE).filter(|f| !f.is_empty());
        Mutex::new(folder.map(|folder| Reports::new(PathBuf::from(folder))))
    };
    REPORTS.get_or_init(of_environment).lock().unwrap_or_else(PoisonError::into_inner)
}

impl Reports {
    fn new(folder: PathBuf) -> Reports {
        Reports {
            folder,
            kernels: false,
            recording: crate::profiler::Recording::begin(),
            programs: Vec::new(),
            gathered: None,
        }
    }

    fn add(&mut self, mut about: About) -> Result<(), Error> {
        if self.programs.len() >= MOST {
            return Ok(());
        }
        let taken = |name: &str, all: &[About]| all.iter().any(|other| other.name == name);
        let (mut base, mut n) = (file_name(&about.name), 1);
        // A process of a launcher that compiles for no mesh has a program of its own.
        if let (None, Some(rank @ 1..)) = (about.rank, of_process()) {
            base += &format!("-rank{rank}");
        }
        about.name = base.clone();
        while taken(&about.name, &self.programs) {
            n += 1;
            about.name = format!("{base}-{n}");
        }
        self.programs.push(about);
        let trace = self.recording.so_far();
        self.programs.last().map_or(Ok(()), |about| self.write(about, &trace))
    }

    fn write(&self, about: &About, trace: &Trace) -> Result<(), Error> {
        let averages = |rank: usize| trace.clone().of_rank(rank).key_averages();
        let times: Averages = about.rank.map_or_else(|| trace.key_averages(), averages);
        let html = about.page.html(&times);
        self.file(&format!("{}.html", about.name), html.as_bytes())
    }

    fn file(&self, name: &str, bytes: &[u8]) -> Result<(), Error> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source| Error::Io { path, source }
        };
        std::fs::create_dir_all(&self.folder).map_err(failed(&self.folder))?;
        let path = self.folder.join(name);
        ir_core::write_whole(&path, bytes).map_err(failed(&path))
    }

    fn flush(&self) -> Result<(), Error> {
        let trace = self.recording.so_far();
        self.programs.iter().try_for_each(|about| self.write(about, &trace))?;
        self.write_trace(&trace)
    }
}

/// A name that every file system takes.
fn file_name(name: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '_' };
    let name: String = name.chars().map(plain).take(80).collect();
    let name = name.trim_matches('.').to_owned();
    if name.is_empty() { "program".into() } else { name }
}

/// Makes every compilation of this process write a page to a folder, as the variable does.
pub fn write_to(folder: impl Into<PathBuf>) {
    *reports() = Some(Reports::new(folder.into()));
}

/// Times each kernel of programs that are compiled from now on alone, for their pages. A kernel runs on zeros, with its memory in
/// the cache as far as it fits, so the sum differs from the time of a call. Kernels with symbolic sizes are not timed.
pub fn time_kernels() {
    if let Some(reports) = reports().as_mut() {
        reports.kernels = true;
    }
}

/// The times of kernels, where they are wanted. The lock is not held meanwhile: a backend may compile.
fn seconds(kernels: &Kernels, backend: &LoadedBackend, options: &Options) -> Vec<Option<f64>> {
    let wanted = reports().as_ref().is_some_and(|r| r.kernels);
    // The other ranks of a mesh would wait meanwhile.
    let wanted = wanted && options.mesh.is_none();
    if wanted { kernel_times::alone(kernels, backend, options) } else { Vec::new() }
}

/// Writes all pages again, with the times until now, and the trace: `DIR/trace.json`, or `DIR/trace-rankN.json` where the process is
/// rank `N` of several and the traces were not written together ([`gather`]).
///
/// # Errors
/// A file cannot be written.
pub fn flush() -> Result<(), Error> {
    reports().as_ref().map_or(Ok(()), Reports::flush)
}

/// A compiled model, and how its page comes by what compiling has not kept.
pub(crate) struct Made<'a> {
    pub(crate) program: &'a Program,
    pub(crate) kernels: &'a Kernels,
    pub(crate) backend: &'a LoadedBackend,
    pub(crate) options: &'a Options,
    pub(crate) code: &'a Code,
    /// The graph that was lowered.
    pub(crate) prims: &'a dyn Fn() -> Result<Graph, Error>,
}

/// A model was compiled.
pub(crate) fn compiled(made: Made<'_>) {
    let Made { program, kernels, backend, options, code, prims } = made;
    let member = options.mesh.as_ref().map(|mesh| &mesh.member);
    note(program.name(), member, || {
        Ok(page::Page::of(&page::Facts {
            name: program.name(),
            backend: &options.backend,
            mode: options.mode.name(),
            rank: member,
            captured: program.graph(),
            functional: Some(&program.functional()?),
            prims: &prims()?,
            kernels,
            listings: &listings(code.executable())?,
            seconds: &seconds(kernels, backend, options),
            guards: kernels.guards.iter().map(|g| g.message.clone()).collect(),
            function: None,
        }))
    });
}

/// A captured function was compiled. Its code has forgotten the kernels; they are made once more.
pub(crate) fn captured(graph: &Graph, options: &Options, function: &Function) {
    note(&graph.name, None, || {
        let cx = crate::pipeline::Cx::training()?;
        let optimized = crate::code::Optimized::of_prims(graph.clone(), &cx)?.graph;
        let wanted = crate::pipeline::KernelOptions::of_optimized(&optimized);
        let kernels = crate::pipeline::lower(&optimized, &wanted, &cx)?;
        let backend = crate::registry().load(&options.backend)?;
        let listings = match crate::graph_plugin::takes_graphs(&backend) {
            true => Vec::new(),
            false => listings(&crate::code::executable(&kernels, &backend, options, None)?)?,
        };
        let kernels = kernels.program;
        Ok(page::Page::of(&page::Facts {
            name: &graph.name,
            backend: &options.backend,
            mode: options.mode.name(),
            rank: None,
            captured: graph,
            functional: None,
            prims: &optimized,
            kernels: &kernels,
            listings: &listings,
            seconds: &seconds(&kernels, &backend, options),
            guards: graph.guards.iter().map(|g| g.message.clone()).collect(),
            function: Some(function),
        }))
    });
}

fn listings(code: &LoadedExecutable) -> Result<Vec<plugin_host::Listing>, Error> {
    Ok(code.listings()?.unwrap_or_default())
}

/// Makes a page and writes it; of the ranks of a mesh for the first one alone. What that takes is not recorded, and a page that cannot
/// be made or written is no reason for a compilation to fail: it is logged.
fn note(name: &str, member: Option<&Member>, page: impl FnOnce() -> Result<page::Page, Error>) {
    let rank = member.map(Member::rank);
    if rank.is_some_and(|rank| rank > 0) || reports().is_none() {
        return;
    }
    let written = paused(|| {
        let page = page()?;
        let about = About { name: name.to_owned(), page, rank };
        reports().as_mut().map_or(Ok(()), |reports| reports.add(about))
    });
    if let Err(error) = written {
        tracing::warn!(target: "graph", "no page about `{name}`: {error}");
    }
}
