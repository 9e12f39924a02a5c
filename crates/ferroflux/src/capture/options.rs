//! How a function is compiled: the builder that [`compile`] gives.

use std::marker::PhantomData;
use std::ops::RangeInclusive;
use std::sync::Arc;

use dynamo::DimRange;
use fx_ir::Graph;
use ir_core::{AutocastDevice, DType};
use tensor::Tensor as HostTensor;

use super::{Arguments, BackendFn, Callable, CompiledFn, Function, Results};
use crate::eager::default_device;
use crate::options::autocast_device;
use crate::{Error, Mode, Options};

/// Compiled forms that a function keeps, as PyTorch's recompile limit.
const LIMIT: usize = 8;

/// The option of backends whose sums would depend on the order in which threads end.
const DETERMINISTIC: &str = "deterministic";

/// The settings of a compiled function.
#[derive(Clone)]
pub(super) struct Settings {
    pub(super) options: Options,
    pub(super) backend: Option<Arc<BackendFn>>,
    /// The kind of device that the backend runs on.
    pub(super) device: AutocastDevice,
    pub(super) dynamic: Option<bool>,
    pub(super) fullgraph: bool,
    pub(super) freeze: bool,
    pub(super) inference: bool,
    pub(super) limit: usize,
    pub(super) ranges: Vec<(usize, usize, DimRange)>,
}

impl Settings {
    /// The declared range of a dimension of an argument.
    pub(super) fn range(&self, argument: usize, dim: usize) -> Option<DimRange> {
        self.ranges.iter().find(|(a, d, _)| (*a, *d) == (argument, dim)).map(|(_, _, range)| *range)
    }
}

/// A function that is to be compiled.
pub struct Compile<A, R> {
    function: Box<Function<A, R>>,
    settings: Settings,
    deterministic: Option<bool>,
    types: PhantomData<fn(A) -> R>,
}

/// Compiles a function of tensors; see [`crate::capture`].
pub fn compile<A, R, F>(function: F) -> Compile<A, R>
where
    A: Arguments,
    R: Results,
    F: Fn(A) -> R + Send + Sync + 'static,
{
    let settings = Settings {
        options: Options::new().backend(default_device()),
        backend: None,
        device: AutocastDevice::Cpu,
        dynamic: None,
        fullgraph: false,
        freeze: false,
        inference: false,
        limit: LIMIT,
        ranges: Vec::new(),
    };
    Compile { function: Box::new(function), settings, deterministic: None, types: PhantomData }
}

impl<A: Arguments, R: Results> Compile<A, R> {
    /// Which backend, by name or by the path of a plugin library.
    pub fn backend(mut self, name: impl Into<String>) -> Self {
        self.settings.options = self.settings.options.backend(name);
        self
    }
    /// A backend in Rust: a closure that takes the graph of prims and the tensors of the first call, and gives a function of
    /// the graph's inputs. It may print the graph or draw it.
    pub fn backend_fn<F>(mut self, backend: F) -> Self
    where
        F: Fn(&Graph, &[HostTensor]) -> Result<Callable, Error> + Send + Sync + 'static,
    {
        self.settings.backend = Some(Arc::new(backend));
        self
    }
    /// The mode.
    pub fn mode(mut self, mode: Mode) -> Self {
        self.settings.options = self.settings.options.mode(mode);
        self
    }
    /// All options of the compilation at once, backend and mode included.
    pub fn options(mut self, options: Options) -> Self {
        let autocast = options.autocast.or(self.settings.options.autocast);
        self.settings.options = Options { autocast, ..options };
        self
    }
    /// Whether sizes are symbolic: `true` from the first call on, `false` never. Without it a dimension becomes symbolic at
    /// its second size.
    pub fn dynamic(mut self, dynamic: bool) -> Self {
        self.settings.dynamic = Some(dynamic);
        self
    }
    /// Declares the sizes that a dimension of the tensor argument of this number may have: all are compiled at once, and
    /// another size is an error.
    pub fn range(mut self, argument: usize, dim: usize, sizes: RangeInclusive<i64>) -> Self {
        let range = DimRange { min: *sizes.start(), max: Some(*sizes.end()) };
        self.settings.ranges.push((argument, dim, range));
        self
    }
    /// Whether the whole function must be one graph: a graph break is an error that names the line.
    pub fn fullgraph(mut self, fullgraph: bool) -> Self {
        self.settings.fullgraph = fullgraph;
        self
    }
    /// Whether captured tensors that the function does not write are constants of the compiled code, which may change their
    /// layout once. Writing one later compiles the function again. Only calls within `no_grad` do so.
    pub fn freeze(mut self, freeze: bool) -> Self {
        self.settings.freeze = freeze;
        self
    }
    /// Whether the function runs without recording anything for gradients, and with frozen tensors (see
    /// [`freeze`](Compile::freeze)).
    pub fn inference(mut self, inference: bool) -> Self {
        self.settings.inference = inference;
        self.settings.freeze |= inference;
        self
    }
    /// Runs the function in mixed precision (see [`autocast`](crate::eager::autocast)), by the list of the backend's kind of
    /// device; as [`Options::autocast`].
    pub fn autocast(mut self, lower: DType) -> Self {
        self.settings.options = self.settings.options.autocast(lower);
        self
    }
    /// Whether the same inputs give the same bits in every call: sums that a backend would add in any order are added in one. It
    /// sets the option `deterministic` of backends that have it; the others always do so.
    pub fn deterministic(mut self, deterministic: bool) -> Self {
        self.deterministic = Some(deterministic);
        self
    }
    /// How many compiled forms are kept; the one that was not used for longest goes first.
    pub fn limit(mut self, entries: usize) -> Self {
        self.settings.limit = entries.max(1);
        self
    }
    /// The function, which is captured when it is first called.
    ///
    /// # Errors
    /// There is no such backend, or it cannot be loaded; it lacks the mode or an option, or the value of an option is of another
    /// kind; a mode or options for a backend in Rust, which has none; a range that holds no size.
    pub fn build(mut self) -> Result<CompiledFn<A, R>, Error> {
        let empty =
            |(_, _, range): &&(usize, usize, DimRange)| range.max.is_some_and(|max| max < range.min.max(0));
        if let Some((argument, dim, range)) = self.settings.ranges.iter().find(empty) {
            let (min, max) = (range.min, range.max.unwrap_or_default());
            return Err(Error::Function(format!(
                "dimension {dim} of argument {argument} is declared to be from {min} to {max}, which is no size"
            )));
        }
        let options = &self.settings.options;
        if self.settings.backend.is_some()
            && (options.mode != Mode::Default || !options.backend_options.is_empty())
        {
            let what = "a backend in Rust (`backend_fn`) has no modes and no options: the closure decides how it compiles";
            return Err(Error::Function(what.into()));
        }
        if self.settings.backend.is_none() {
            let backend = crate::registry().load(&self.settings.options.backend)?;
            self.settings.device = autocast_device(&backend);
            let has = backend.options().iter().any(|o| o.name == DETERMINISTIC);
            if let Some(on) = self.deterministic.filter(|_| has) {
                let value = if on { "on" } else { "off" };
                self.settings.options = self.settings.options.backend_option(DETERMINISTIC, value);
            }
            let options = &self.settings.options;
            backend.check_settings(options.mode.name(), &options.backend_option_list())?;
        }
        Ok(CompiledFn::new(self.function, self.settings))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::eager::{Tensor, autocast};

    /// The dtype of a softmax over a product, in a function that is compiled for a kind of device.
    fn softmax(device: AutocastDevice, own: bool) -> DType {
        let mut f = compile(|x: Tensor| x.matmul(&x).softmax(1)).fullgraph(true);
        f.settings.device = device;
        if own {
            f = f.autocast(DType::BF16);
        }
        let f = CompiledFn::new(f.function, f.settings);
        let call = || f.call(Tensor::ones(&[2, 2])).unwrap().dtype();
        let dtype = if own { call() } else { autocast(DType::BF16, call) };
        assert!(f.is_compiled_for(&Tensor::ones(&[2, 2])).unwrap() == own, "the region is a condition");
        dtype
    }

    /// PyTorch's list for GPUs has softmax compute in `f32`, that for CPUs leaves it alone.
    #[test]
    fn mixed_precision_follows_the_list_of_the_backends_device() {
        for own in [true, false] {
            assert_eq!(softmax(AutocastDevice::Cuda, own), DType::F32);
            assert_eq!(softmax(AutocastDevice::Cpu, own), DType::BF16);
        }
    }

    #[test]
    fn the_options_of_a_compilation_say_so_too() {
        let f = compile(|x: Tensor| x.matmul(&x)).options(Options::new().autocast(DType::BF16));
        let f = f.build().unwrap();
        assert_eq!(f.call(Tensor::ones(&[2, 2])).unwrap().dtype(), DType::BF16);
        let explained = f.explain(Tensor::ones(&[2, 2])).unwrap();
        assert!(explained.prims.contains_key("prims.convert"), "{explained}");
    }
}
