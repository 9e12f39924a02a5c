//! File tests of fusion: every `tests/fusion/*.fx` is a graph of prims, followed by the program that it becomes; with
//! `# test fuse in-place` new values of buffers are written where the old ones are, with `# test fuse on-device` weights of
//! convolutions that are inputs are read from copies. The program, run point by point,
//! gives what the graph gives operator by operator. `BLESS=1` rewrites the expectations.

use std::path::Path;

use fx_ir::{Graph, OutputKind};
use ir_core::{Atom, DType, SymExpr};
use tensor::Tensor;
use testing::files::{self, File};

#[test]
fn every_file_becomes_what_it_expects() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fusion");
    files::check(&folder, "fx", 20, fused);
}

fn fused(file: &File) -> Result<String, String> {
    let graph: Graph = file.input.parse().map_err(|e| format!("{e}"))?;
    fx_ir::verify(&graph, &prims::prim_legality()).map_err(|e| e[0].to_string())?;
    let plain = inductor::Options::default();
    let options = match file.directive()? {
        "fuse" => plain,
        "fuse in-place" => inductor::Options { written: inductor::buffer_writes(&graph), ..plain },
        "fuse on-device" => inductor::Options { on_device: true, ..plain },
        "fuse gaps" => inductor::Options { gaps: true, ..plain },
        _ => {
            return Err("begin with `# test fuse`, alone or with `in-place`, `on-device` or `gaps`".into());
        }
    };
    let program = inductor::compile(&graph, &options).map_err(|e| e.to_string())?;
    kernel_ir::verify(&program).map_err(|e| format!("{e}\n{program}"))?;
    same_values(&graph, &program).map_err(|e| format!("{e}\n{program}"))?;
    Ok(program.to_string())
}

/// Whether the program gives what the graph gives.
fn same_values(graph: &Graph, program: &kernel_ir::Program) -> Result<(), String> {
    let given =
        graph.inputs().map(|(v, _, name)| Ok((name, data(graph, name, graph.meta(v).ok_or("no tensor")?)?)));
    let given = given.collect::<Result<Vec<(&str, Tensor)>, String>>()?;
    let all: Vec<Tensor> = given.iter().map(|(_, t)| t.clone()).collect();
    let wanted = interp::run(graph, &all).map_err(|e| e.to_string())?;
    let weight = |name: &str| given.iter().find(|(n, _)| *n == name).map(|(_, t)| t.clone());
    let options = interp::kernels::Options { planned_arena: true };
    let code =
        interp::kernels::Executable::new(program.clone(), &weight, options).map_err(|e| e.to_string())?;
    let by_name = |name: &String| weight(name).ok_or_else(|| format!("there is no `{name}`"));
    let mut inputs =
        program.inputs.iter().map(|input| by_name(&input.name)).collect::<Result<Vec<_>, String>>()?;
    let outputs = code.call_written(&mut inputs).map_err(|e| e.to_string())?;
    let mut outputs = outputs.into_iter();
    for (output, wanted) in graph.outputs.iter().zip(&wanted) {
        let place = match &output.kind {
            OutputKind::BufferMutation(name) => {
                program.inputs.iter().position(|input| input.written && input.name == *name)
            }
            _ => None,
        };
        let got = match place {
            Some(n) => inputs[n].clone(),
            None => outputs.next().ok_or("a result is missing")?,
        };
        tensor::allclose(&got, wanted, 1e-5, 1e-5).map_err(|e| format!("{:?}: {e}", output.kind))?;
    }
    if outputs.next().is_some() { Err("there are more results than the graph has".into()) } else { Ok(()) }
}

/// Floats by formula at the hints of the symbols; integers count from 0, so that they are indices of every table here.
fn data(graph: &Graph, name: &str, meta: &ir_core::TensorMeta) -> Result<Tensor, String> {
    let hint = |atom: &Atom| match atom {
        Atom::Sym(id) => graph.symbols[*id].hint.map(SymExpr::from_i64),
        _ => None,
    };
    let sizes = meta.sizes.iter().map(|e| usize::try_from(e.subst(&hint).as_const()?).ok());
    let sizes: Vec<usize> = sizes.collect::<Option<_>>().ok_or("a symbol has no hint")?;
    let made = match meta.dtype {
        DType::I64 => Tensor::from_vec((0..sizes.iter().product::<usize>() as i64).collect(), &sizes),
        dtype => tensor::formula::fill(name, &sizes, 1.0, 0.2).and_then(|t| t.to_dtype(dtype)),
    };
    made.map_err(|e| e.to_string())
}
