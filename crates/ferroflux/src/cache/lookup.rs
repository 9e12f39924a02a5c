//! One compilation with the cache: its key, the lookup, and storing the result.

use std::time::Instant;

use fx_ir::Graph;
use plugin_host::{KERNEL_IR, LoadedBackend, LoadedExecutable, OptionInfo};
use tracing::{debug, info_span};

use super::form::{self, Sections};
use super::{Form, Key, Part, Store};
use crate::code::CACHE_OPTION;
use crate::mesh::BatchNorm;
use crate::pipeline::{Kernels, skipped};
use crate::{Error, Options};

/// The share of the bound that the weights of one program may use.
const LARGEST: u64 = 4;

/// The stage of the graph in a key: the same graph is compiled differently at another stage.
#[derive(Clone, Copy)]
pub(crate) enum Stage<'a> {
    /// A captured graph, for inference.
    Captured,
    /// A captured graph whose caller lends every tensor, those for writing too; whether also memory for results.
    Lent { results: bool },
    /// Prims of a function or of half of a training step, before the passes; whether state may be written in place.
    Prims { in_place: bool },
    /// A captured graph, for training: all settings that determine the step, and their description.
    Training { what: &'a str, shown: &'a str },
}

/// One compilation.
pub(crate) struct Lookup<'a> {
    store: Store,
    key: Key,
    program: String,
    backend: &'a LoadedBackend,
    options: &'a Options,
}

impl<'a> Lookup<'a> {
    /// For a graph; `None`, with the reason in the log, where nothing is cached. `program` is the user's name of it.
    pub(crate) fn new(
        stage: Stage<'_>,
        graph: &Graph,
        program: &str,
        backend: &'a LoadedBackend,
        options: &'a Options,
    ) -> Option<Lookup<'a>> {
        let program = if program.is_empty() { &graph.name } else { program }.to_owned();
        let made =
            Store::open(&options.cache).and_then(|store| Ok((store, key(stage, graph, backend, options)?)));
        match made {
            Ok((store, key)) => Some(Lookup { store, key, program, backend, options }),
            Err(why) => {
                debug!(target: "cache", program, backend = backend.name(), "not cached: {why}");
                None
            }
        }
    }

    /// The folder in which the backend may store the results of binding the program's constants, if it supports that and
    /// there would be room for them.
    pub(crate) fn weights_folder(&self, kernels: &Kernels) -> Option<String> {
        let keeps = |o: &OptionInfo| o.name == CACHE_OPTION && o.default == "off";
        let is_given = self.options.backend_options.iter().any(|(name, _)| name == CACHE_OPTION);
        if is_given || !self.backend.options().iter().any(keeps) {
            return None;
        }
        let total = constant_bytes(kernels)?;
        if total > self.store.limit() / LARGEST {
            debug!(target: "cache", program = self.program, bytes = total, "packed weights are not kept: too large for the bound");
            return None;
        }
        self.store.folder().to_str().map(str::to_owned)
    }

    /// Enforces the bound, after the backend may have stored results of binding.
    pub(crate) fn tidy(&self, kernels: &Kernels) {
        self.store.enforce_bound(constant_bytes(kernels).unwrap_or(u64::MAX));
    }

    pub(super) fn parts(self) -> (Store, Key) {
        (self.store, self.key)
    }

    /// The result of an earlier process.
    fn find(&self) -> Option<(Form, LoadedExecutable)> {
        let _span = info_span!("cache", program = self.program).entered();
        let start = Instant::now();
        let found = self.store.get(&self.key, |sections| form::restore(sections, self.backend, self.options));
        let (program, entry) = (&self.program, self.key.id());
        match &found {
            Some(_) => debug!(target: "cache", program, entry, time = ?start.elapsed(), "found"),
            None => debug!(target: "cache", program, entry, "not there"),
        }
        found
    }

    /// Stores a compiled program. A failure to do so is not an error for the caller.
    fn keep(&self, form: &Form, executable: &LoadedExecutable) {
        let start = Instant::now();
        let names = (&*self.program, self.backend.name(), self.options.mode.name());
        let kept =
            Sections::of(form, executable).and_then(|s| self.store.insert(&self.key, names, &s.list()));
        let (program, entry) = (&self.program, self.key.id());
        match kept {
            Ok(bytes) => debug!(target: "cache", program, entry, bytes, time = ?start.elapsed(), "kept"),
            Err(why) => debug!(target: "cache", program, "not kept: {why}"),
        }
    }
}

/// Bytes of a program's constants; `None` where they depend on sizes that a call determines.
fn constant_bytes(kernels: &Kernels) -> Option<u64> {
    let program = &kernels.program;
    let buffers = program.constants.iter().map(|c| &program.buffers[c.buf]);
    let bytes = |b: &kernel_ir::Buffer| {
        Some(u64::try_from(b.span().as_const()?).ok()?.saturating_mul(b.dtype.size() as u64))
    };
    buffers.map(bytes).try_fold(0u64, |sum, bytes| Some(sum.saturating_add(bytes?)))
}

/// The cached result of a compilation, else the result of `make`, which is stored; and whether it was cached.
pub(crate) fn get_or_compile(
    lookup: Option<&Lookup<'_>>,
    make: impl FnOnce() -> Result<(Form, LoadedExecutable), Error>,
) -> Result<(Form, LoadedExecutable, bool), Error> {
    if let Some((form, executable)) = lookup.and_then(Lookup::find) {
        return Ok((form, executable, true));
    }
    let (form, executable) = make()?;
    if let Some(lookup) = lookup {
        lookup.keep(&form, &executable);
    }
    Ok((form, executable, false))
}

/// The key: everything that determines what a graph is compiled to. The graph is taken at its stage: no pass runs for the
/// key.
///
/// # Errors
/// The reason why there is no key.
fn key(stage: Stage<'_>, graph: &Graph, backend: &LoadedBackend, options: &Options) -> Result<Key, String> {
    let (kind, in_place) = match stage {
        Stage::Captured | Stage::Training { .. } => ("captured", true),
        Stage::Lent { results: false } => ("captured, on lent tensors,", true),
        Stage::Lent { results: true } => ("captured, on lent tensors with results,", true),
        Stage::Prims { in_place } => ("prims", in_place),
    };
    let text = fx_ir::text::print(graph);
    let shown = format!("{kind} graph of {} nodes", graph.order.len());
    let graph = Part::new("graph", &[kind.as_bytes(), text.as_bytes()], shown);
    let version = format!("ferroflux {} build {}, {KERNEL_IR}", env!("CARGO_PKG_VERSION"), env!("FFX_BUILD"));
    let reads: Vec<String> = backend.reads().iter().map(ToString::to_string).collect();
    let about = format!(
        "{} {}, ABI {}, reads {}",
        backend.name(),
        backend.version(),
        backend.abi(),
        reads.join(", ")
    );
    let checksum = backend.library_checksum().map_err(|e| e.to_string())?;
    let plugin = checksum.map_or_else(|| "linked in".to_owned(), |sum| format!("library {sum}"));
    let mut parts = vec![
        graph,
        Part::visible("options", options_text(options, in_place)?),
        Part::visible("version", version),
        Part::visible("backend", about),
        Part::visible("plugin", plugin),
        Part::visible("device", device(backend)?),
    ];
    if let Stage::Training { what, shown } = stage {
        parts.push(Part::new("training", &[what.as_bytes()], shown));
    }
    Ok(Key(parts))
}

fn options_text(options: &Options, in_place: bool) -> Result<String, String> {
    let mut text = format!("mode {}", options.mode.name());
    for (name, value) in &options.backend_options {
        text.push_str(&format!(", {name}={value:?}"));
    }
    if !in_place {
        text.push_str(", new state is returned");
    }
    if let Some(dtype) = options.autocast {
        text.push_str(&format!(", autocast {dtype}"));
    }
    if let Some(groups) = options.batch_norm.filter(|n| *n != BatchNorm::Whole) {
        text.push_str(&format!(", batch norm {groups}"));
    }
    if options.unchecked_indices {
        text.push_str(", indices unchecked");
    }
    let skipped = skipped().map_err(|e| e.to_string())?;
    if !skipped.is_empty() {
        text.push_str(&format!(", without {}", skipped.join(", ")));
    }
    Ok(text)
}

/// The device for which artifacts load; the first usable device where the backend makes none.
fn device(backend: &LoadedBackend) -> Result<String, String> {
    if let Some(text) = backend.artifact_compat(None).map_err(|e| e.to_string())? {
        return Ok(text);
    }
    let devices = backend.devices().map_err(|e| e.to_string())?;
    let first = devices.into_iter().find(|d| d.unavailable_because.is_none());
    let first = first.ok_or("the backend has no usable device")?;
    Ok(format!("{} ({}:{})", first.name, first.device.device_type, first.device.device_id))
}
