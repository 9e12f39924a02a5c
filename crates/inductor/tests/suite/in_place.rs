//! Buffers that a call gives new values in place: the program that each graph of `in_place/` becomes is after it (with
//! `BLESS=1` the present one is written there), and, run point by point, it leaves in the buffers and returns what the
//! graph does operator by operator. Other crates run the same graphs on their backends.

#![allow(clippy::unwrap_used)] // a failing test may panic

use std::path::Path;

use fx_ir::{Graph, OutputKind};
use ir_core::{Bounds, DType, SymExpr};
use kernel_ir::Program;
use tensor::Tensor;
use testing::files::{self, File};

#[test]
fn every_graph_becomes_the_program_behind_it_and_does_what_the_graph_does() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/in_place");
    files::check(&folder, "fx", 12, program);
}

fn program(file: &File) -> Result<String, String> {
    let graph: Graph = file.input.parse().map_err(|e| format!("{e}"))?;
    let prims = prims::decompose(&graph).map_err(|e| format!("{e:?}"))?;
    let written = inductor::buffer_writes(&prims);
    let options = inductor::Options { written, ..inductor::Options::default() };
    let program = inductor::compile(&prims, &options).map_err(|e| e.to_string())?;
    kernel_ir::verify(&program).map_err(|e| format!("{e}\n{program}"))?;
    assert_eq!(Program::from_bytes(&program.to_bytes()).unwrap(), program);
    for n in [4, 1] {
        run(&prims, &program, n).map_err(|e| format!("{e}\n{program}"))?;
    }
    Ok(program.to_string())
}

/// Every size symbol is `n`.
fn run(graph: &Graph, program: &Program, n: i64) -> Result<(), String> {
    let all: Vec<Tensor> = graph.inputs().map(|(v, _, name)| data(name, graph.meta(v).unwrap(), n)).collect();
    let expected = interp::run(graph, &all).map_err(|e| e.to_string())?;
    let options = interp::kernels::Options { planned_arena: true };
    let code = interp::kernels::Executable::new(program.clone(), &|_| None, options);
    let mut inputs = all.clone();
    let outputs = code.and_then(|c| c.call_written(&mut inputs)).map_err(|e| e.to_string())?;
    let mut outputs = outputs.into_iter();
    for (output, expected) in graph.outputs.iter().zip(&expected) {
        let got = match &output.kind {
            OutputKind::BufferMutation(name) => {
                inputs[graph.inputs().position(|(_, _, n)| n == name).unwrap()].clone()
            }
            _ => outputs.next().unwrap(),
        };
        tensor::allclose(&got, expected, 1e-5, 1e-5).map_err(|e| format!("{:?}: {e}", output.kind))?;
    }
    assert!(outputs.next().is_none());
    Ok(())
}

struct All(i64);

impl Bounds for All {
    fn range(&self, _: &ir_core::Atom) -> (Option<i64>, Option<i64>) {
        (Some(self.0), Some(self.0))
    }
    fn extent(&self, _: u32) -> Option<SymExpr> {
        None
    }
}

/// Floats by formula; integers count from the number in their name.
fn data(name: &str, meta: &ir_core::TensorMeta, n: i64) -> Tensor {
    let sizes: Vec<usize> =
        meta.sizes.iter().map(|s| usize::try_from(s.range(&All(n)).0.unwrap()).unwrap()).collect();
    if meta.dtype.is_float() {
        return tensor::formula::fill(name, &sizes, 1.0, 0.0).unwrap().to_dtype(meta.dtype).unwrap();
    }
    assert_eq!(meta.dtype, DType::I64);
    let first: i64 = name.chars().filter(char::is_ascii_digit).collect::<String>().parse().unwrap_or(0);
    Tensor::from_vec((first..first + sizes.iter().product::<usize>() as i64).collect(), &sizes).unwrap()
}

/// Updates by large gradients that are computed one after another: each runs before the next gradient is computed, though the graph has
/// them at its end, and so all gradients have one memory.
#[test]
fn memory_of_large_gradients_is_free_for_the_next() {
    let text = r#"fx 1.0

graph "tables" {
  %first: f32[40000, 64] = buffer "first"
  %second: f32[40000, 64] = buffer "second"
  %third: f32[40000, 64] = buffer "third"
  %g: f32[6, 64] = input "g"
  %at: i64[6] = input "at"

  %a: f32[40000, 64] = aten.embedding_dense_backward.default(%g, %at, 40000, -1, false)
  %h: f32[6, 64] = aten.sin.default(%g)
  %b: f32[40000, 64] = aten.embedding_dense_backward.default(%h, %at, 40000, -1, false)
  %i: f32[6, 64] = aten.cos.default(%g)
  %c: f32[40000, 64] = aten.embedding_dense_backward.default(%i, %at, 40000, -1, false)
  %new_first: f32[40000, 64] = aten.sub.Tensor(%first, %a, 0.1)
  %new_second: f32[40000, 64] = aten.sub.Tensor(%second, %b, 0.1)
  %new_third: f32[40000, 64] = aten.sub.Tensor(%third, %c, 0.1)
  return buffer "first" = %new_first
  return buffer "second" = %new_second
  return buffer "third" = %new_third
}
"#;
    let graph: Graph = text.parse().unwrap();
    let prims = prims::decompose(&graph).unwrap();
    let written = inductor::buffer_writes(&prims);
    let options = inductor::Options { written, ..inductor::Options::default() };
    let program = inductor::compile(&prims, &options).unwrap();
    let (bytes, one) = (program.plan.bytes.unwrap(), 40_000 * 64 * 4);
    assert!(bytes < 2 * one, "{bytes} bytes:\n{program}");
}
