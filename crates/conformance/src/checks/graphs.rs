//! For plugins that accept whole fx graphs: every prim of the operator table, on the samples of its entry, as a graph of
//! one call. The graph crosses in its text form.

use fx_ir::{Arg, Graph, InputKind, Output, OutputKind, ValueId, ValueType};
use ir_core::Origin;
use plugin_host::{CompileArgs, DeviceInfo, IrVersion, LoadedBackend};
use prims::{Builder, Op, Sample, Samples};
use tensor::Tensor;

use super::Cx;
use crate::case::{Fault, Tolerance, compare};

/// The version of fx-ir that graphs are written in.
const FX_IR: IrVersion = IrVersion::fx_ir(1, 0);

pub(super) fn graphs(cx: &mut Cx) -> Result<(), Fault> {
    let (backend, device) = cx.device()?;
    if !backend.reads().iter().any(|own| own.reads(FX_IR)) {
        return Err(Fault::Declined("the plugin takes no fx graphs".into()));
    }
    let most = cx.by_effort(1, usize::MAX);
    for op in prims::all().iter().filter(|op| op.is_prim()) {
        let mut samples = Samples::default();
        (op.def.samples)(&mut samples);
        for (n, sample) in samples.list.iter().filter(|s| is_real(s)).take(most).enumerate() {
            cx.case(&format!("{} {n}", op.target), || one(op, sample, &backend, &device));
        }
    }
    Ok(())
}

/// Backends receive only real numbers; complex ones are split before.
fn is_real(sample: &Sample) -> bool {
    sample.tensors.iter().all(|t| !t.dtype().is_complex())
}

fn one(op: &'static Op, sample: &Sample, backend: &LoadedBackend, device: &DeviceInfo) -> Result<(), Fault> {
    let graph = graph_of(op, sample).map_err(|e| Fault::wrong(format!("the judge's own graph: {e}")))?;
    let text = graph.to_string();
    let args = CompileArgs::new(FX_IR, text.as_bytes()).device(device.device);
    let refused = backend.query_support(&args)?;
    if let Some(first) = refused.first() {
        return Err(Fault::Declined(format!("`{}`: {}", first.node, first.reason)));
    }
    let executable = backend.compile(&args)?;
    let expected = interp::run(&graph, &sample.tensors);
    let expected =
        expected.map_err(|e| Fault::wrong(format!("the oracle refuses the judge's own graph: {e}")))?;
    if expected.iter().any(|t| t.dtype().is_complex()) {
        return Err(Fault::Declined("complex results are not judged".into()));
    }
    let inputs: Vec<&Tensor> = sample.tensors.iter().collect();
    let got = executable.execute(&inputs)?;
    // A graph does not guarantee strides; only kernels do.
    let [got, expected] =
        [got, expected].map(|all| all.iter().map(Tensor::copied).collect::<Result<Vec<_>, _>>());
    let (got, expected) = (got?, expected?);
    compare(&got, &expected, Tolerance { units: 1024.0, absolute: 1e-5 })?;
    for (got, expected) in got.iter().zip(&expected) {
        let (atol, rtol) = op.def.tolerance.of(expected.dtype());
        let beyond = |m| Fault::wrong(format!("beyond the tolerance of the operator's entry: {m}"));
        tensor::allclose(got, expected, atol, rtol).map_err(beyond)?;
    }
    Ok(())
}

/// A graph of one call.
fn graph_of(op: &'static Op, sample: &Sample) -> Result<Graph, prims::OpError> {
    let mut graph = Graph::new(op.target.as_str());
    let origin = graph.add_origin(Origin::default());
    let place = |graph: &mut Graph, n: usize, t: &Tensor| {
        let name = format!("x{n}");
        graph.placeholder(InputKind::User, name.as_str(), &name, ValueType::Tensor(t.meta()))
    };
    let values: Vec<ValueId> =
        sample.tensors.iter().enumerate().map(|(n, t)| place(&mut graph, n, t)).collect();
    let bound = |arg: &Arg| {
        let mut arg = arg.clone();
        arg.for_each_value_mut(&mut |v| *v = values.get(v.0 as usize).copied().unwrap_or(*v));
        arg
    };
    let args = sample.args.iter().map(bound).collect();
    let results = Builder::new(&mut graph, "call", origin).call_op(op, args)?;
    graph.outputs = results.iter().map(|&v| Output { kind: OutputKind::User, arg: v.into() }).collect();
    Ok(graph)
}
