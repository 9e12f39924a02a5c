//! Code of one graph, by whichever backend: what [`crate::Compiled`] and the training programs run. Knows neither state nor
//! the caller's inputs; those who own one say what its inputs are.

use fx_ir::{Arg, Graph, OutputKind};
use kernel_ir::Program as Kernels;
use plugin_host::{CompileArgs, KERNEL_IR, LoadedBackend, LoadedExecutable, Resolved, Value};
use tensor::Tensor;
use tracing::info_span;

use crate::complex_boundary::ComplexBoundary;
use crate::graph_backend::{self, GraphCompiler, GraphExecutable};
use crate::seeds::{seed_place, seed_tensor};
use crate::{Error, Options, stages};

/// Gives the tensors of constants by name.
pub(crate) type Weights<'a> = &'a dyn Fn(&str) -> Option<Tensor>;

/// Something that runs on tensors.
pub(crate) enum Code {
    /// A plugin's executable, the place of the seed among its inputs, and which results are complex.
    Plugin(LoadedExecutable, Option<usize>, ComplexBoundary),
    /// A graph backend's.
    Graph(Box<dyn GraphExecutable>),
}

impl Code {
    /// Compiles a fused program and binds its constants; `boundary` is that of the graph it was made of.
    pub(crate) fn plugin(
        kernels: &Kernels,
        boundary: ComplexBoundary,
        backend: &LoadedBackend,
        weight: Weights<'_>,
        options: &Options,
    ) -> Result<Code, Error> {
        let bytes = kernels.to_bytes();
        let list: Vec<(&str, &str)> =
            options.backend_options.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        let args = CompileArgs::new(KERNEL_IR, &bytes).mode(options.mode.name()).options(&list);
        let refused = backend.query_support(&args)?;
        if !refused.is_empty() {
            let refused = refused.iter().map(|r| format!("{r:?}")).collect();
            return Err(Error::Refused { backend: backend.name().into(), refused });
        }
        let mut code = {
            let _span = info_span!("backend compile", backend = backend.name()).entered();
            backend.compile(&args)?
        };
        let constants: Vec<(&str, Tensor)> =
            kernels.constants.iter().filter_map(|c| Some((c.name.as_str(), weight(&c.name)?))).collect();
        let bound = ComplexBoundary::inputs(&constants.iter().map(|(_, t)| t).collect::<Vec<_>>())?;
        let constants: Vec<(&str, &Tensor)> =
            constants.iter().zip(&bound).map(|((name, _), t)| (*name, t)).collect();
        {
            let _span = info_span!("bind constants", count = constants.len()).entered();
            code.bind_constants(&constants)?;
        }
        Ok(Code::Plugin(code, seed_place(kernels), boundary))
    }

    /// Compiles for a graph backend.
    pub(crate) fn graph(
        graph: &Graph,
        backend: &dyn GraphCompiler,
        weight: Weights<'_>,
    ) -> Result<Code, Error> {
        Ok(Code::Graph(backend.compile(graph, weight)?))
    }

    /// Compiles a graph of prims for the backend of `options`; also the fused program, where the backend takes one.
    /// Parameters and buffers that no output of the graph gives a new value are constants.
    pub(crate) fn of_prims(
        prims: &Graph,
        weight: Weights<'_>,
        options: &Options,
    ) -> Result<(Code, Option<Kernels>), Error> {
        match crate::registry().resolve(&options.backend)? {
            Resolved::Plugin(backend) => {
                let kernels = {
                    let _span = info_span!("inductor").entered();
                    let output_strides = prims.outputs.iter().map(|o| strides(prims, o)).collect();
                    inductor::compile(&stages::real(prims)?, &inductor::Options { output_strides })?
                };
                let boundary = ComplexBoundary::of(prims);
                Ok((Code::plugin(&kernels, boundary, &backend, weight, options)?, Some(kernels)))
            }
            Resolved::Graph(entry) => {
                graph_backend::check_mode(entry, options)?;
                Ok((Code::graph(prims, graph_backend::of_entry(entry)?, weight)?, None))
            }
        }
    }

    /// Runs on all inputs that are no constants, in the order of the graph's placeholders, the seed left out.
    pub(crate) fn run(&self, inputs: &[&Tensor], seed: u64) -> Result<Vec<Tensor>, Error> {
        match self {
            Code::Plugin(code, seed_place, boundary) => {
                let mut all = ComplexBoundary::inputs(inputs)?;
                if let Some(place) = seed_place {
                    all.insert((*place).min(all.len()), seed_tensor(seed)?);
                }
                boundary.outputs(code.execute(&all.iter().collect::<Vec<_>>())?)
            }
            Code::Graph(code) => code.execute_seeded(inputs, seed),
        }
    }
}

impl Code {
    /// As [`Code::run`], but tensors may stay on the backend's device: what is given may lie there, what comes out stays
    /// where the backend left it. [`Code::to_host`] reads an output.
    pub(crate) fn run_values(&self, inputs: &[&Value], seed: u64) -> Result<Vec<Value>, Error> {
        match self {
            Code::Plugin(code, seed_place, _) => {
                let mut all = ComplexBoundary::input_values(inputs)?;
                if let Some(place) = seed_place {
                    all.insert((*place).min(all.len()), seed_tensor(seed)?.into());
                }
                Ok(code.execute_values(&all.iter().collect::<Vec<_>>())?)
            }
            Code::Graph(code) => {
                let host = |v: &&Value| match v {
                    Value::Host(t) => Ok(t.clone()),
                    Value::Device(t) => Err(Error::OtherDevice(format!("{t:?}"))),
                };
                let inputs: Vec<Tensor> = inputs.iter().map(host).collect::<Result<_, _>>()?;
                let outputs = code.execute_seeded(&inputs.iter().collect::<Vec<_>>(), seed)?;
                Ok(outputs.into_iter().map(Value::Host).collect())
            }
        }
    }

    /// Output `n` of [`Code::run_values`] as the program's caller knows it.
    pub(crate) fn to_host(&self, n: usize, value: Value) -> Result<Tensor, Error> {
        match (self, value) {
            (Code::Plugin(code, _, boundary), value) => {
                let tensor = code.to_host(value)?;
                Ok(if boundary.is_complex(n) { tensor.view_as_complex()? } else { tensor })
            }
            (Code::Graph(_), Value::Host(tensor)) => Ok(tensor),
            (Code::Graph(_), Value::Device(t)) => Err(Error::OtherDevice(format!("{t:?}"))),
        }
    }
}

/// The strides of a returned tensor: those of the state that it replaces, or the value's own.
fn strides(prims: &Graph, output: &fx_ir::Output) -> Option<ir_core::Shape> {
    let Arg::Value(v) = output.arg else { return None };
    let replaced = match &output.kind {
        OutputKind::BufferMutation(name) => {
            prims.inputs().find(|(_, _, other)| other == name).map(|(v, _, _)| v)
        }
        _ => None,
    };
    prims.meta(replaced.unwrap_or(v)).map(|m| ::prims::split_complex::boundary_meta(m).strides)
}
