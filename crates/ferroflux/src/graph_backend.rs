//! Backends of the host that take whole fx graphs, as a custom Dynamo backend does. They stand behind the plugin table as
//! every other backend: what is here writes a plugin around a function from a graph to something that runs.
//!
//! Built in are `eager` (the interpreter: slow, obvious) and `inspect` (prints the graph, writes its drawing, then runs it
//! as `eager` does). Another crate registers its own:
//!
//! ```
//! use ferroflux::graph_backend::{GraphCompiler, GraphExecutable, PluginError, register_graph_backend};
//! # use ferroflux::fx_ir::Graph;
//! struct Counting;
//! impl GraphCompiler for Counting {
//!     fn compile(&self, graph: Graph) -> Result<Box<dyn GraphExecutable>, PluginError> {
//!         println!("{} nodes", graph.order.len());
//!         ferroflux::graph_backend::EAGER.compile(graph)
//!     }
//! }
//! register_graph_backend!("counting", "counts the nodes", Counting);
//! # assert!(ferroflux::list_backends().iter().any(|b| b.name == "counting"));
//! ```
//!
//! A graph is functional: no operator writes its operands, what the program writes is an output. Training steps and functions
//! of Rust code arrive as prims. Not here: which graph a plugin is sent ([`crate::graph_plugin`]).

use std::marker::PhantomData;
use std::path::PathBuf;

use fx_ir::{Arg, Graph, InputKind, OutputKind};
use interp::{InterpError, Value};
use plugin_sdk::{
    Backend, CompileRequest, Constants, Description, DeviceInfo, Executable, Host, IrVersion, OptionKind,
    OptionSpec, OwnedTensor, Signature, Stream, TensorView,
};
use tensor::Tensor;

use crate::lent::{LentTensors, given};

#[doc(hidden)]
pub use plugin_host;
#[doc(hidden)]
pub use plugin_sdk::entry;
pub use plugin_sdk::{ErrorKind, PluginError};

/// Compiles functional graphs.
pub trait GraphCompiler: Send + Sync {
    /// Makes `graph` executable.
    ///
    /// # Errors
    /// What it does not take; [`PluginError::unsupported`] with the name of the node, which the user is shown with its
    /// operator and source line.
    fn compile(&self, graph: Graph) -> Result<Box<dyn GraphExecutable>, PluginError>;
}

/// A graph that can run.
pub trait GraphExecutable: Send + Sync {
    /// Runs on one tensor for each placeholder of the graph, in order: weights, buffers and the caller's inputs; `None` for
    /// one that is no tensor, and for the seed. Returns all results that are tensors, in the order of the graph's outputs.
    /// `seed` is that of this call's random numbers. The tensors are lent for the call: a result may be one of them, but
    /// the process ends where a clone of one is kept for longer.
    ///
    /// # Errors
    /// Whatever the graph runs into; the message names the node.
    fn execute(&self, inputs: &[Option<Tensor>], seed: u64) -> Result<Vec<Tensor>, PluginError>;
}

/// What [`register_graph_backend!`] makes a type of.
#[doc(hidden)]
pub trait Registered: 'static {
    /// Name of the backend.
    const NAME: &'static str;
    /// One line about it.
    const SUMMARY: &'static str;
    /// The backend.
    fn compiler() -> &'static dyn GraphCompiler;
}

/// Registers a graph backend: name, one line about it, a constant expression of a type that is [`GraphCompiler`].
#[macro_export]
macro_rules! register_graph_backend {
    ($name:literal, $summary:literal, $compiler:expr) => {
        const _: () = {
            struct Registration;
            impl $crate::graph_backend::Registered for Registration {
                const NAME: &'static str = $name;
                const SUMMARY: &'static str = $summary;
                fn compiler() -> &'static dyn $crate::graph_backend::GraphCompiler {
                    static COMPILER: &dyn $crate::graph_backend::GraphCompiler = &$compiler;
                    COMPILER
                }
            }
            $crate::graph_backend::plugin_host::inventory::submit! {
                $crate::graph_backend::plugin_host::BuiltinPlugin {
                    name: $name,
                    entry: $crate::graph_backend::entry::<$crate::graph_backend::GraphPlugin<Registration>>,
                }
            }
        };
    };
}
pub use register_graph_backend;

/// The plugin of a registration.
#[doc(hidden)]
pub struct GraphPlugin<R>(PhantomData<fn() -> R>);

impl<R: Registered> Backend for GraphPlugin<R> {
    fn open(_host: Host) -> Result<Self, PluginError> {
        Ok(GraphPlugin(PhantomData))
    }

    fn describe(&self) -> Description {
        let dialects = OptionKind::Choice(vec!["functional".into(), "prim".into()]);
        let help = "operators of the graph: the model's, or prims on real numbers after the passes";
        Description::new(R::NAME, env!("CARGO_PKG_VERSION"))
            .summary(R::SUMMARY)
            .reads(IrVersion::fx_ir(1, 0))
            .option(OptionSpec::new("dialect", dialects, "functional", help))
    }

    fn devices(&self) -> Vec<DeviceInfo> {
        vec![DeviceInfo::cpu("host")]
    }

    fn compile(&self, request: &CompileRequest<'_>) -> Result<Box<dyn Executable>, PluginError> {
        let text =
            std::str::from_utf8(request.fx_ir_bytes()?).map_err(|e| PluginError::invalid(e.to_string()))?;
        let graph: Graph =
            text.parse().map_err(|e: fx_ir::text::TextError| PluginError::invalid(e.to_string()))?;
        let (places, signature) = places(&graph);
        Ok(Box::new(Code { code: R::compiler().compile(graph)?, places, signature }))
    }
}

/// Where a placeholder's value comes from.
enum Place {
    /// The call's input of this number.
    Input(usize),
    /// The call's input of this number, which is the seed of its random numbers.
    Seed(usize),
    /// The constant of this name.
    Constant(String),
    /// It is no tensor: what reads it has its value in its type.
    Nothing,
}

/// The places of a graph's placeholders, and how many tensors that makes.
fn places(graph: &Graph) -> (Vec<Place>, Signature) {
    let mut signature = Signature::default();
    let mut places = Vec::new();
    for (v, kind, name) in graph.inputs() {
        let written = |o: &fx_ir::Output| matches!(&o.kind, OutputKind::BufferMutation(n) if n == name);
        let weight = !matches!(kind, InputKind::User | InputKind::Seed);
        if graph.meta(v).is_none() {
            places.push(Place::Nothing);
        } else if weight && !graph.outputs.iter().any(written) {
            signature.constants += 1;
            places.push(Place::Constant(name.to_owned()));
        } else {
            let n = signature.inputs;
            signature.inputs += 1;
            places.push(if kind == InputKind::Seed { Place::Seed(n) } else { Place::Input(n) });
        }
    }
    signature.outputs = graph.outputs.iter().filter(|o| matches!(o.arg, Arg::Value(_))).count();
    (places, signature)
}

/// A graph's executable behind the table.
struct Code {
    code: Box<dyn GraphExecutable>,
    places: Vec<Place>,
    signature: Signature,
}

impl Executable for Code {
    fn signature(&self) -> Signature {
        self.signature
    }

    fn execute(
        &self,
        inputs: &[TensorView<'_>],
        constants: &Constants<'_>,
        _stream: Stream,
    ) -> Result<Vec<OwnedTensor>, PluginError> {
        let (mut loan, mut seed) = (LentTensors::new(), 0);
        let mut all: Vec<Option<Tensor>> = Vec::with_capacity(self.places.len());
        for place in &self.places {
            all.push(match place {
                Place::Input(n) => Some(loan.take(&inputs[*n])?),
                Place::Constant(name) => Some(loan.take(&constants.by_name(name)?)?),
                Place::Seed(n) => {
                    seed = inputs[*n].get::<i64>(&[])? as u64;
                    None
                }
                Place::Nothing => None,
            });
        }
        let results = self.code.execute(&all, seed);
        let lent: Vec<&Tensor> = all.iter().flatten().collect();
        let results = results.and_then(|results| results.into_iter().map(|t| given(t, &lent)).collect());
        drop(all);
        loan.end();
        results
    }
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

impl GraphCompiler for Eager {
    fn compile(&self, graph: Graph) -> Result<Box<dyn GraphExecutable>, PluginError> {
        Ok(Box::new(EagerCode(graph)))
    }
}

struct EagerCode(Graph);

impl GraphExecutable for EagerCode {
    fn execute(&self, inputs: &[Option<Tensor>], seed: u64) -> Result<Vec<Tensor>, PluginError> {
        let values = inputs.iter().map(|t| t.clone().map_or(Value::None, Value::Tensor)).collect();
        let outcome = interp::execute_seeded(&self.0, values, seed).map_err(|e| refused(&e))?;
        let tensor = |value: Value| {
            let tensor = value.into_tensor().map_err(|e| PluginError::internal(e.to_string()))?;
            tensor.ok_or_else(|| PluginError::internal("a result of the graph is no tensor"))
        };
        let results = outcome.outputs.into_iter().zip(&self.0.outputs);
        results.filter(|(_, o)| matches!(o.arg, Arg::Value(_))).map(|(value, _)| tensor(value)).collect()
    }
}

/// The interpreter's error; its message names the node and its source line.
fn refused(error: &InterpError) -> PluginError {
    use prims::OpError;
    let unsupported = match error {
        InterpError::Unsupported { .. } => true,
        InterpError::Node { error, .. } => {
            matches!(error, OpError::Unknown(_) | OpError::Unsupported { .. } | OpError::DType { .. })
        }
        _ => false,
    };
    let kind = if unsupported { ErrorKind::Unsupported } else { ErrorKind::InvalidArgument };
    PluginError::new(kind, error.to_string())
}

/// Prints, draws, runs.
struct Inspect;

impl GraphCompiler for Inspect {
    fn compile(&self, graph: Graph) -> Result<Box<dyn GraphExecutable>, PluginError> {
        eprintln!("{}", graph.print_readable());
        let name: String = graph.name.chars().map(|c| if c.is_alphanumeric() { c } else { '_' }).collect();
        let path = PathBuf::from(format!("{name}.svg"));
        let svg = fx_ir::draw::graph_diagram(&graph).to_svg();
        let failed = |e: std::io::Error| PluginError::invalid(format!("{}: {e}", path.display()));
        std::fs::write(&path, svg).map_err(failed)?;
        eprintln!("drawing written to {}", path.display());
        EAGER.compile(graph)
    }
}
