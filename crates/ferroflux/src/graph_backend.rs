//! Backends of the host that take whole fx graphs, as a custom Dynamo backend does.
//!
//! Built in are `eager` (the interpreter: slow, obvious), `inspect` (prints the graph, writes its drawing, then runs it
//! as `eager` does) and `oracle` (the fused program, run point by point). Another crate registers its own:
//!
//! ```
//! use ferroflux::graph_backend::{GraphCompiler, GraphExecutable, register_graph_backend};
//! # use ferroflux::{Error, Tensor, fx_ir::Graph};
//! struct Counting;
//! impl GraphCompiler for Counting {
//!     fn compile(&self, graph: &Graph, weight: &dyn Fn(&str) -> Option<Tensor>) -> Result<Box<dyn GraphExecutable>, Error> {
//!         println!("{} nodes", graph.order.len());
//!         ferroflux::graph_backend::EAGER.compile(graph, weight)
//!     }
//! }
//! register_graph_backend!("counting", "counts the nodes", Counting);
//! # assert!(ferroflux::list_backends().iter().any(|b| b.name == "counting"));
//! ```

use std::any::Any;
use std::path::PathBuf;

use fx_ir::{Arg, Graph, InputKind, OutputKind};
use interp::Value;
use ir_core::Guard;
use plugin_host::{BackendInfo, BackendKind, DeviceInfo, Source};
use tensor::Tensor;

use crate::Error;
use crate::complex_boundary::ComplexBoundary;
use crate::pipeline::{self, At, Cx, KernelOptions};
use crate::seeds::{seed_place, seed_tensor};

#[doc(hidden)]
pub use plugin_host;

/// Compiles captured graphs.
pub trait GraphCompiler: Send + Sync {
    /// Makes `graph` executable; `weight` gives the tensors of parameters, buffers and constants by name.
    fn compile(
        &self,
        graph: &Graph,
        weight: &dyn Fn(&str) -> Option<Tensor>,
    ) -> Result<Box<dyn GraphExecutable>, Error>;
}

/// A graph that can run.
pub trait GraphExecutable: Send + Sync {
    /// Runs on the user inputs and written buffers, in the order of the graph's placeholders; returns all results that
    /// are tensors, in the order of the functional graph's outputs.
    fn execute(&self, inputs: &[&Tensor]) -> Result<Vec<Tensor>, Error>;
    /// As [`execute`](GraphExecutable::execute), with the seed of this call's random numbers. What draws none, or has
    /// a generator of its own, need not look at it.
    fn execute_seeded(&self, inputs: &[&Tensor], seed: u64) -> Result<Vec<Tensor>, Error> {
        let _ = seed;
        self.execute(inputs)
    }
    /// What compiling took for granted of the sizes beyond the graph's own guards; calls that break it are refused before
    /// they are executed.
    fn guards(&self) -> &[Guard] {
        &[]
    }
}

/// What a registration's factory returns.
pub struct Registered(pub &'static dyn GraphCompiler);

/// Registers a graph backend: name, one line about it, a constant expression of a type that is [`GraphCompiler`].
#[macro_export]
macro_rules! register_graph_backend {
    ($name:literal, $summary:literal, $compiler:expr) => {
        $crate::graph_backend::plugin_host::inventory::submit! {
            $crate::graph_backend::plugin_host::GraphBackend {
                name: $name,
                info: || $crate::graph_backend::info($name, $summary),
                factory: || {
                    static COMPILER: $crate::graph_backend::Registered = $crate::graph_backend::Registered(&$compiler);
                    &COMPILER
                },
            }
        }
    };
}
pub use register_graph_backend;

/// The listing of a graph backend that runs on the host.
pub fn info(name: &str, summary: &str) -> BackendInfo {
    let mut info = BackendInfo::new(name, Source::BuiltIn, BackendKind::Graph);
    info.version = env!("CARGO_PKG_VERSION").into();
    info.summary = summary.into();
    info.devices = Vec::<DeviceInfo>::new();
    info.modes = vec![crate::Mode::Default.name().into()];
    info
}

pub(crate) fn of_entry(entry: &plugin_host::GraphBackend) -> Result<&'static dyn GraphCompiler, Error> {
    let factory: &'static (dyn Any + Send + Sync) = (entry.factory)();
    let registered = factory.downcast_ref::<Registered>().ok_or_else(|| Error::GraphBackend {
        backend: entry.name.into(),
        message: "was not registered with `register_graph_backend!`".into(),
    })?;
    Ok(registered.0)
}

/// A mode that the backend does not have is an error here as it is with plugins.
pub(crate) fn check_mode(
    entry: &plugin_host::GraphBackend,
    options: &crate::Options,
) -> Result<(), plugin_host::HostError> {
    let (available, mode) = ((entry.info)().modes, options.mode.name());
    if available.iter().any(|m| m == mode) {
        return Ok(());
    }
    let near = plugin_host::nearest(mode, available.iter().map(String::as_str));
    let backend = entry.name.to_owned();
    Err(plugin_host::HostError::UnknownMode { backend, mode: mode.to_owned(), near, available })
}

/// The interpreter.
pub static EAGER: Eager = Eager;
/// See [`EAGER`].
pub struct Eager;

register_graph_backend!("eager", "the interpreter: one operator at a time, slow and obvious", Eager);
register_graph_backend!(
    "inspect",
    "prints the graph, writes its drawing as SVG, then runs it as eager does",
    Inspect
);
register_graph_backend!(
    "oracle",
    "the fused program, evaluated point by point: what every device must agree with",
    Oracle
);

struct EagerCode {
    graph: Graph,
    /// Per placeholder its weight; `None` is taken from the call.
    weights: Vec<Option<Tensor>>,
    /// The placeholder of the seed, which comes apart.
    seed_at: Option<usize>,
}

impl GraphCompiler for Eager {
    fn compile(
        &self,
        graph: &Graph,
        weight: &dyn Fn(&str) -> Option<Tensor>,
    ) -> Result<Box<dyn GraphExecutable>, Error> {
        // Functional, so that results come in one order on every backend.
        let graph = pipeline::run(graph.clone(), At::Functional..=At::Functional, &Cx::inference()?)?;
        let mutated = |name: &str| {
            graph.outputs.iter().any(|o| matches!(&o.kind, OutputKind::BufferMutation(n) if n == name))
        };
        let fixed = |kind: InputKind, name: &str| kind != InputKind::User && !mutated(name);
        let weights = graph
            .inputs()
            .map(|(_, kind, name)| if fixed(kind, name) { weight(name) } else { None })
            .collect();
        let seed_at = graph.inputs().position(|(_, kind, _)| kind == InputKind::Seed);
        Ok(Box::new(EagerCode { graph, weights, seed_at }))
    }
}

impl GraphExecutable for EagerCode {
    fn execute(&self, inputs: &[&Tensor]) -> Result<Vec<Tensor>, Error> {
        self.execute_seeded(inputs, 0)
    }

    fn execute_seeded(&self, inputs: &[&Tensor], seed: u64) -> Result<Vec<Tensor>, Error> {
        let mut given = inputs.iter();
        let mut all = Vec::with_capacity(self.weights.len());
        for (n, weight) in self.weights.iter().enumerate() {
            if self.seed_at == Some(n) {
                all.push(Value::None);
                continue;
            }
            let tensor = weight.as_ref().or_else(|| given.next().copied());
            all.push(tensor.map_or(Value::None, |t| Value::Tensor(t.clone())));
        }
        let outcome = interp::execute_seeded(&self.graph, all, seed)?;
        let wanted = outcome
            .outputs
            .into_iter()
            .zip(&self.graph.outputs)
            .filter(|(_, o)| matches!(o.arg, Arg::Value(_)));
        Ok(wanted.map(|(v, _)| v.into_tensor()).filter_map(Result::transpose).collect::<Result<_, _>>()?)
    }
}

/// Prints, draws, runs.
struct Inspect;

impl GraphCompiler for Inspect {
    fn compile(
        &self,
        graph: &Graph,
        weight: &dyn Fn(&str) -> Option<Tensor>,
    ) -> Result<Box<dyn GraphExecutable>, Error> {
        eprintln!("{}", graph.print_readable());
        let name: String = graph.name.chars().map(|c| if c.is_alphanumeric() { c } else { '_' }).collect();
        let path = PathBuf::from(format!("{name}.svg"));
        let svg = fx_ir::draw::graph_diagram(graph).to_svg();
        std::fs::write(&path, svg).map_err(|source| Error::Io { path: path.clone(), source })?;
        eprintln!("drawing written to {}", path.display());
        EAGER.compile(graph, weight)
    }
}

/// The fused program through the interpreter of kernels.
struct Oracle;

struct OracleCode {
    code: interp::kernels::Executable,
    boundary: ComplexBoundary,
    seed_at: Option<usize>,
    guards: Vec<Guard>,
}

impl GraphCompiler for Oracle {
    fn compile(
        &self,
        graph: &Graph,
        weight: &dyn Fn(&str) -> Option<Tensor>,
    ) -> Result<Box<dyn GraphExecutable>, Error> {
        let cx = Cx::inference()?;
        let functional = pipeline::run(graph.clone(), At::Functional..=At::Functional, &cx)?;
        let (boundary, options) = (ComplexBoundary::of(&functional), KernelOptions::of_model(&functional));
        let optimized = pipeline::run(functional, At::Autocast..=At::Optimized, &cx)?;
        let program = pipeline::lower(&optimized, &options, &cx)?.program;
        let weight = |name: &str| weight(name).map(|t| t.view_as_real().unwrap_or(t));
        let failed = |e: interp::kernels::KernelError| Error::GraphBackend {
            backend: "oracle".into(),
            message: e.to_string(),
        };
        let (seed_at, guards) = (seed_place(&program), program.guards.clone());
        let code = interp::kernels::Executable::new(
            program,
            &weight,
            interp::kernels::Options { planned_arena: true },
        );
        Ok(Box::new(OracleCode { code: code.map_err(failed)?, boundary, seed_at, guards }))
    }
}

impl GraphExecutable for OracleCode {
    fn execute(&self, inputs: &[&Tensor]) -> Result<Vec<Tensor>, Error> {
        self.execute_seeded(inputs, 0)
    }

    fn execute_seeded(&self, inputs: &[&Tensor], seed: u64) -> Result<Vec<Tensor>, Error> {
        let mut inputs = ComplexBoundary::inputs(inputs)?;
        if let Some(place) = self.seed_at {
            inputs.insert(place.min(inputs.len()), seed_tensor(seed)?);
        }
        let failed = |e: interp::kernels::KernelError| Error::GraphBackend {
            backend: "oracle".into(),
            message: e.to_string(),
        };
        self.boundary.outputs(self.code.call(&inputs).map_err(failed)?)
    }

    fn guards(&self) -> &[Guard] {
        &self.guards
    }
}
