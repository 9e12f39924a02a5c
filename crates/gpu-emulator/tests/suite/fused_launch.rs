//! Steps that may run at once as launches of the emulated GPU: the same bits as one launch each, at several sizes, and what
//! `interp` says of the graph.
#![allow(clippy::unwrap_used)] // a failing test may panic

use std::path::Path;

use crate::common::emulator;
use fx_ir::{Graph, OutputKind};
use gpu_codegen::Target;
use ir_core::{Atom, Bounds, SymExpr, TensorMeta};
use kernel_ir::{Program, Step};
use plugin_host::{Arg, CompileArgs, KERNEL_IR, LoadedBackend, Value};
use tensor::Tensor;

struct All(i64);

impl Bounds for All {
    fn range(&self, _: &Atom) -> (Option<i64>, Option<i64>) {
        (Some(self.0), Some(self.0))
    }
    fn extent(&self, _: u32) -> Option<SymExpr> {
        None
    }
}

fn data(name: &str, meta: &TensorMeta, n: i64) -> Tensor {
    let size = |s: &SymExpr| usize::try_from(s.range(&All(n)).0.unwrap()).unwrap();
    let sizes: Vec<usize> = meta.sizes.iter().map(size).collect();
    tensor::formula::fill(name, &sizes, 1.0, 0.0).unwrap().to_dtype(meta.dtype).unwrap()
}

/// What a program leaves of its inputs, and its outputs.
fn run(backend: &LoadedBackend, program: &Program, inputs: &[Tensor]) -> Vec<Tensor> {
    let bytes = program.to_bytes();
    let mut code = backend.compile(&CompileArgs::new(KERNEL_IR, &bytes).mode("default")).unwrap();
    code.bind_constants(&[]).unwrap();
    let mut values: Vec<Value> = inputs.iter().map(|t| Value::Host(t.copied().unwrap())).collect();
    let mut args: Vec<Arg<'_>> = values.iter_mut().map(Arg::Write).collect();
    let outputs = code.execute_args(&mut args).unwrap_or_else(|e| panic!("{e}\n{program}"));
    drop(args);
    values.into_iter().chain(outputs).map(|v| code.to_host(v).unwrap()).collect()
}

fn bits(all: &[Tensor]) -> Vec<Vec<u64>> {
    all.iter().map(|t| t.iter_f64().map(f64::to_bits).collect()).collect()
}

fn kernels(program: &Program) -> usize {
    gpu_runtime::modules(program, &Target::HOPPER).unwrap().iter().map(|m| m.entries.len()).sum()
}

#[test]
fn members_share_a_launch_and_leave_the_same_bits() {
    let Some(emulator) = emulator() else { return };
    for name in ["together_updates", "together_order"] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../inductor/tests/in_place");
        let text = std::fs::read_to_string(path.join(format!("{name}.fx"))).unwrap();
        let graph: Graph = text.parse().unwrap();
        let prims = prims::decompose(&graph).unwrap();
        let written = inductor::buffer_writes(&prims);
        let options = inductor::Options { written, ..inductor::Options::default() };
        let program = inductor::compile(&prims, &options).unwrap();
        assert!(program.steps.iter().any(|s| matches!(s, Step::Together(_))), "{program}");
        for n in [4, 1, 16] {
            let inputs: Vec<Tensor> =
                prims.inputs().map(|(v, _, name)| data(name, prims.meta(v).unwrap(), n)).collect();
            let got = run(&emulator, &program, &inputs);
            assert_eq!(bits(&got), bits(&run(&emulator, &program.one_by_one(), &inputs)), "{name}, {n}");
            let expected = interp::run(&prims, &inputs).unwrap();
            let mut results = got[inputs.len()..].iter();
            for (output, expected) in prims.outputs.iter().zip(&expected) {
                let got = match &output.kind {
                    OutputKind::BufferMutation(name) => {
                        &got[prims.inputs().position(|(_, _, n)| n == name).unwrap()]
                    }
                    _ => results.next().unwrap(),
                };
                tensor::allclose(got, expected, 1e-5, 1e-6)
                    .unwrap_or_else(|e| panic!("{name}: {e}\n{program}"));
            }
        }
    }
}

#[test]
fn one_kernel_holds_the_updates_of_all_shapes() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../inductor/tests/in_place/together_updates.fx");
    let graph: Graph = std::fs::read_to_string(path).unwrap().parse().unwrap();
    let prims = prims::decompose(&graph).unwrap();
    let written = inductor::buffer_writes(&prims);
    let options = inductor::Options { written, ..inductor::Options::default() };
    let program = inductor::compile(&prims, &options).unwrap();
    let single = program.one_by_one();
    assert!(single.steps.len() > program.steps.len(), "{program}");
    // The search may also launch each of them.
    assert_eq!(kernels(&program), kernels(&single) + 1, "{program}");
}
