//! The code of a captured graph: compiled by a backend, or a closure that the user's own backend has made.

use fx_ir::{Graph, InputKind};
use tensor::Tensor as HostTensor;

use crate::check::Signature;
use crate::func::CompiledFunc;
use crate::{Error, Options, inputs};

/// What a backend in Rust makes of a graph: a function of its user inputs that gives its outputs.
pub type Callable = Box<dyn Fn(&[HostTensor]) -> Result<Vec<HostTensor>, Error> + Send + Sync>;

/// A backend as a closure: takes the graph of prims and the tensors of the first call.
pub type BackendFn = dyn Fn(&Graph, &[HostTensor]) -> Result<Callable, Error> + Send + Sync;

pub(super) enum EntryCode {
    /// `constants` tells which inputs of the function are constants of the code.
    Compiled { code: Box<CompiledFunc>, constants: Vec<bool> },
    /// A user's backend.
    Callable { call: Callable, signature: Box<Signature> },
}

impl EntryCode {
    pub(super) fn compiled(
        graph: Graph,
        constants: &[Option<HostTensor>],
        options: &Options,
    ) -> Result<EntryCode, Error> {
        let weight = |name: &str| name.strip_prefix('x')?.parse::<usize>().ok();
        let weights = |name: &str| {
            Ok(weight(name).and_then(|n| constants.get(n)).cloned().flatten().map(plugin_host::Value::Host))
        };
        let code = Box::new(CompiledFunc::with_constants(graph, &weights, options)?);
        Ok(EntryCode::Compiled { code, constants: constants.iter().map(Option::is_some).collect() })
    }

    pub(super) fn callable(
        graph: &Graph,
        examples: &[HostTensor],
        backend: &BackendFn,
    ) -> Result<EntryCode, Error> {
        if graph.inputs().any(|(_, kind, _)| kind == InputKind::Seed) {
            let what = "the function draws random numbers, for which a backend in Rust gets no seed: pass them as a tensor";
            return Err(Error::Function(what.into()));
        }
        let signature = Signature::of(&inputs::of_graph(graph), &graph.symbols, &graph.guards)?;
        Ok(EntryCode::Callable { call: backend(graph, examples)?, signature: Box::new(signature) })
    }

    /// Whether an input of the function is a constant of the code.
    pub(super) fn is_constant(&self, input: usize) -> bool {
        match self {
            EntryCode::Compiled { constants, .. } => constants.get(input).is_some_and(|c| *c),
            EntryCode::Callable { .. } => false,
        }
    }

    /// Whether tensors fit.
    ///
    /// # Errors
    /// Why they do not.
    pub(super) fn fits(&self, inputs: &[&HostTensor]) -> Result<(), Error> {
        match self {
            EntryCode::Compiled { code, .. } => code.fits(inputs),
            EntryCode::Callable { signature, .. } => signature.check(inputs),
        }
    }

    /// Runs on tensors that fit; also gives the seed of its random numbers.
    pub(super) fn run(&self, inputs: &[HostTensor]) -> Result<(Vec<HostTensor>, u64), Error> {
        match self {
            EntryCode::Compiled { code, .. } => code.call_fitting(inputs),
            EntryCode::Callable { call, .. } => Ok((call(inputs)?, 0)),
        }
    }
}
