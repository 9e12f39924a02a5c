//! A plugin that takes whole graphs, as a custom Dynamo backend does: it parses the text of the graph and runs it operator
//! by operator. An author replaces the interpreter by a compiler; everything else is what a backend of this kind needs.
//!
//! `cargo build -p ferroflux --examples`, then `ferroflux run MODEL.pt2 --backend target/debug/examples/libgraph_plugin.so`.
//! Not here: a device, artifacts, speed.

use fx_ir::{Arg, Graph, InputKind, OutputKind};
use interp::Value;
use plugin_sdk::{
    Backend, CompileRequest, Constants, Description, DeviceInfo, Executable, Host, IrVersion, OptionKind,
    OptionSpec, OwnedTensor, PluginError, Refusal, Signature, Stream, TensorView,
};
use tensor::Tensor;

plugin_sdk::export_plugin!(Graphs);

/// The backend.
struct Graphs;

impl Backend for Graphs {
    fn open(_host: Host) -> Result<Self, PluginError> {
        Ok(Graphs)
    }

    fn describe(&self) -> Description {
        let dialects = OptionKind::Choice(vec!["prim".into(), "functional".into()]);
        Description::new("graphs", env!("CARGO_PKG_VERSION"))
            .summary("runs whole graphs, one operator at a time")
            .reads(IrVersion::fx_ir(1, 0))
            .option(OptionSpec::new(
                "dialect",
                dialects,
                "prim",
                "operators of the graph: prims alone, or the model's",
            ))
            .option(OptionSpec::new("refuse", OptionKind::Text, "", "an operator that is not taken"))
    }

    fn devices(&self) -> Vec<DeviceInfo> {
        vec![DeviceInfo::cpu("host")]
    }

    fn query_support(&self, request: &CompileRequest<'_>) -> Result<Vec<Refusal>, PluginError> {
        refusals(&read(request)?, request.options.text("refuse")?)
    }

    fn compile(&self, request: &CompileRequest<'_>) -> Result<Box<dyn Executable>, PluginError> {
        let graph = read(request)?;
        if let Some(first) = refusals(&graph, request.options.text("refuse")?)?.into_iter().next() {
            return Err(PluginError::unsupported(first.reason).at(first.node));
        }
        Ok(Box::new(Code::new(graph)))
    }
}

/// The graph of a request.
fn read(request: &CompileRequest<'_>) -> Result<Graph, PluginError> {
    let text =
        std::str::from_utf8(request.fx_ir_bytes()?).map_err(|e| PluginError::invalid(e.to_string()))?;
    text.parse().map_err(|e: fx_ir::text::TextError| PluginError::invalid(e.to_string()))
}

/// The nodes that call the operator `target`.
fn refusals(graph: &Graph, target: &str) -> Result<Vec<Refusal>, PluginError> {
    let called = graph.iter().filter(|(_, node)| node.as_call().is_some_and(|(t, _)| t == target));
    let refusal = |(id, _)| Refusal {
        node: graph.node_name(id).to_owned(),
        reason: format!("this backend does not take {target}; leave out the option `refuse`"),
    };
    Ok(called.map(refusal).collect())
}

/// The source of a placeholder's value.
enum Place {
    /// The call's input of this number.
    Input(usize),
    /// The call's input of this number, which is the seed of its random numbers.
    Seed(usize),
    /// The constant of this name.
    Constant(String),
    /// No source: it is not a tensor, and its readers have the value in its type.
    Nothing,
}

/// An executable graph.
struct Code {
    graph: Graph,
    places: Vec<Place>,
    signature: Signature,
}

impl Code {
    fn new(graph: Graph) -> Code {
        let mut signature = Signature::default();
        let mut places = Vec::new();
        for (v, kind, name) in graph.inputs() {
            let returned = |o: &fx_ir::Output| matches!(&o.kind, OutputKind::BufferMutation(n) if n == name);
            let weight = !matches!(kind, InputKind::User | InputKind::Seed);
            if graph.meta(v).is_none() {
                places.push(Place::Nothing);
            } else if weight && !graph.outputs.iter().any(returned) {
                signature.constants += 1;
                places.push(Place::Constant(name.to_owned()));
            } else {
                let n = signature.inputs;
                signature.inputs += 1;
                places.push(if kind == InputKind::Seed { Place::Seed(n) } else { Place::Input(n) });
            }
        }
        signature.outputs = graph.outputs.iter().filter(|o| matches!(o.arg, Arg::Value(_))).count();
        Code { graph, places, signature }
    }
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
        let (mut values, mut seed) = (Vec::with_capacity(self.places.len()), 0);
        for place in &self.places {
            values.push(match place {
                Place::Input(n) => Value::Tensor(taken(&inputs[*n])?),
                Place::Constant(name) => Value::Tensor(taken(&constants.by_name(name)?)?),
                Place::Seed(n) => {
                    seed = inputs[*n].get::<i64>(&[])? as u64;
                    Value::None
                }
                Place::Nothing => Value::None,
            });
        }
        let failed = |e: interp::InterpError| PluginError::invalid(e.to_string());
        let results = interp::execute_seeded(&self.graph, values, seed).map_err(failed)?.outputs;
        let tensors =
            results.into_iter().zip(&self.graph.outputs).filter(|(_, o)| matches!(o.arg, Arg::Value(_)));
        tensors.map(|(value, _)| given(value)).collect()
    }
}

/// A tensor of the host, lent for a call, with its strides.
fn taken(view: &TensorView<'_>) -> Result<Tensor, PluginError> {
    let sizes: Vec<usize> = view.sizes().iter().map(|n| *n as usize).collect();
    let strides: Vec<isize> = view.strides().iter().map(|n| *n as isize).collect();
    // SAFETY: the host lends the elements for the call. No tensor over them outlives it: results are copied.
    let tensor = unsafe { Tensor::from_foreign(view.as_ptr(), view.dtype(), &sizes, &strides, || ()) };
    tensor.map_err(|e| PluginError::invalid(e.to_string()))
}

/// A row-major copy of a result, for the host.
fn given(value: Value) -> Result<OwnedTensor, PluginError> {
    let internal = |e: tensor::TensorError| PluginError::internal(e.to_string());
    let tensor = value.into_tensor().map_err(internal)?;
    let tensor =
        tensor.ok_or_else(|| PluginError::internal("a result is no tensor"))?.copied().map_err(internal)?;
    let sizes: Vec<i64> = tensor.sizes().iter().map(|n| *n as i64).collect();
    let mut out = OwnedTensor::zeroed(tensor.dtype(), &sizes)?;
    let bytes = &tensor.storage().bytes()[..tensor.nbytes()];
    // SAFETY: a row-major tensor of the same dtype and sizes has room for as many bytes.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), out.as_mut_ptr(), bytes.len()) };
    Ok(out)
}
