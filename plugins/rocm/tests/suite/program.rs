//! A small program and what it computes, written by hand.

use ir_core::{DType, SymExpr, contiguous_strides};
use kernel_ir::{
    BodyBuilder, Buffer, InputSpec, LoopKernel, OutputSpec, Program, ScalarOp, Stage, Step, Storage,
    StoreMode,
};
use plugin_host::{CompileArgs, KERNEL_IR, LoadedBackend, LoadedExecutable};
use tensor::Tensor;

use crate::machine::Outcome;

type Error = Box<dyn std::error::Error>;

/// `out = exp(in) + in` over `[s0, 5]`.
fn program() -> Program {
    let mut p = Program { name: "exp_add".into(), ..Program::default() };
    let symbol =
        kernel_ir::Symbol { name: "batch".into(), min: 1, max: Some(100), hint: None, unbacked: false };
    let sizes: ir_core::Shape = [SymExpr::sym(p.symbols.push(symbol)), 5.into()].into_iter().collect();
    let strides = contiguous_strides(&sizes);
    let mut buffer = |name: &str, storage: Storage| {
        let (sizes, strides) = (sizes.clone(), strides.clone());
        let offset = SymExpr::ZERO;
        p.buffers.push(Buffer { name: name.into(), dtype: DType::F32, sizes, strides, offset, storage })
    };
    let (x, y) = (buffer("x", Storage::Input(0)), buffer("y", Storage::Output));
    let at: ir_core::Shape = [SymExpr::loop_var(0), SymExpr::loop_var(1)].into_iter().collect();
    let mut b = BodyBuilder::new();
    let v = b.load(x, DType::F32, at.clone());
    let e = b.op(ScalarOp::Exp, &[v]);
    let sum = b.op(ScalarOp::Add, &[e, v]);
    b.store(y, at, sum, StoreMode::Write);
    let stages = vec![Stage { inner: ir_core::Shape::new(), insts: b.finish() }];
    let (outer, origins) = (sizes.clone(), vec![]);
    p.steps.push(Step::Loop(LoopKernel { name: "exp_add".into(), origins, outer, accs: vec![], stages }));
    p.inputs.push(InputSpec { name: "x".into(), buf: x, written: false });
    p.outputs.push(OutputSpec { name: "y".into(), buf: y, sizes, strides, offset: SymExpr::ZERO });
    p.plan = kernel_ir::ArenaPlan::of(&p);
    p
}

/// The program, compiled in a mode for a device.
pub(crate) fn compiled(
    backend: &LoadedBackend,
    mode: &str,
    device: usize,
    options: &[(&str, &str)],
) -> Result<LoadedExecutable, Error> {
    let bytes = program().to_bytes();
    let device = backend.devices()?.get(device).ok_or("no such device")?.device;
    Ok(backend.compile(&CompileArgs::new(KERNEL_IR, &bytes).mode(mode).device(device).options(options))?)
}

/// `y = relu(a · b + c)` of `[36, 40]`, `[40, 24]` and `[24]` in a dtype; the biases go along the columns.
pub(crate) fn product(dtype: &str) -> Result<Program, Error> {
    let text = format!(
        r#"kir 1.3
program "product"
buffer b0 "a" {dtype}[36, 40]{{40, 1}}+0 input 0
buffer b1 "b" {dtype}[40, 24]{{24, 1}}+0 input 1
buffer b2 "c" {dtype}[24]{{1}}+0 input 2
buffer b3 "y" {dtype}[36, 24]{{24, 1}}+0 output
input "a" b0
input "b" b1
input "c" b2
output "y" b3[36, 24]{{24, 1}}+0
init:
steps:
matmul "m" acc f32
  a b0[36, 40]{{40, 1}}+0
  b b1[40, 24]{{24, 1}}+0
  epilogue [36, 24]
    v0: f32 = template
    v1: {dtype} = load b2[i1]
    v2: f32 = cast v1
    v3: f32 = add v0, v2
    v4: f32 = const 0.0
    v5: f32 = max v3, v4
    v6: {dtype} = cast v5
    v7: {dtype} = store b3[i0, i1], v6
plan bytes 0:
"#
    );
    // Numbers of float32 are not cast.
    let text = if dtype == "f32" {
        text.replace("    v2: f32 = cast v1\n", "")
            .replace("v0, v2", "v0, v1")
            .replace("    v6: f32 = cast v5\n", "")
            .replace("], v6", "], v5")
    } else {
        text
    };
    Ok(renumbered(&text).parse()?)
}

/// The values of the body without gaps in their numbers.
fn renumbered(text: &str) -> String {
    let names: Vec<&str> =
        text.lines().filter_map(|l| l.trim().split_once(": ")).map(|(name, _)| name).collect();
    let names = names.into_iter().filter(|name| name.starts_with('v'));
    names.enumerate().fold(text.to_owned(), |text, (n, name)| text.replace(name, &format!("v{n}")))
}

/// An input of so many rows, and the result in double precision.
pub(crate) fn case(rows: usize) -> Result<(Tensor, Tensor), Error> {
    let x = tensor::formula::fill("x", &[rows, 5], 2.0, 0.0)?;
    let expected: Vec<f64> = x.iter_f64().map(|v| v.exp() + v).collect();
    Ok((x, Tensor::from_vec(expected, &[rows, 5])?))
}

/// Whether a result is the expected one.
pub(crate) fn same(result: &Tensor, expected: &Tensor) -> Outcome {
    tensor::allclose(&result.to_dtype(DType::F64)?, expected, 1e-6, 1e-6)?;
    Ok(())
}

/// Calls of several sizes give what they should, each of them twice: a recorded call is read and replayed.
pub(crate) fn computes(executable: &LoadedExecutable) -> Outcome {
    for rows in [1, 3, 64, 3] {
        let (x, expected) = case(rows)?;
        for _ in 0..2 {
            same(&executable.execute(&[&x])?[0], &expected)?;
        }
    }
    Ok(())
}
