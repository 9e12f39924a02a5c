//! A small program and what it computes, written by hand.

use ir_core::{DType, SymExpr, contiguous_strides};
use kernel_ir::{
    BodyBuilder, Buffer, InputSpec, LoopKernel, OutputSpec, Program, ScalarOp, Stage, Step, Storage,
    StoreMode,
};
use plugin_host::{CompileArgs, KERNEL_IR, LoadedBackend, LoadedExecutable};
use tensor::Tensor;

use crate::machine::{Outcome, backend};

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

/// Numbers of an input in a dtype, and the same in double precision.
pub(crate) fn fill(name: &str, dtype: DType, sizes: &[usize]) -> Result<(Tensor, Vec<f64>), Error> {
    let tensor = tensor::formula::fill(name, sizes, 1.0, 0.0)?.to_dtype(dtype)?;
    let values = tensor.iter_f64().collect();
    Ok((tensor, values))
}

/// The lines of an epilogue in a dtype behind the dtype of its sums: the template's result, perhaps with an addend, perhaps
/// rectified, is stored. Operands are places as `b2[i1]`.
pub(crate) fn epilogue(dtype: &str, addend: Option<&str>, relu: bool, store: &str) -> (&'static str, String) {
    let acc = if dtype == "f64" { "f64" } else { "f32" };
    let mut lines = vec![format!("{acc} = template")];
    let mut push = |line: String| {
        lines.push(line);
        lines.len() - 1
    };
    let mut value = 0;
    if let Some(place) = addend {
        let mut loaded = push(format!("{dtype} = load {place}"));
        if dtype != acc {
            loaded = push(format!("{acc} = cast v{loaded}"));
        }
        value = push(format!("{acc} = add v{value}, v{loaded}"));
    }
    if relu {
        let zero = push(format!("{acc} = const 0.0"));
        value = push(format!("{acc} = max v{value}, v{zero}"));
    }
    if dtype != acc {
        value = push(format!("{dtype} = cast v{value}"));
    }
    push(format!("{dtype} = store {store}, v{value}"));
    (acc, lines.iter().enumerate().map(|(n, line)| format!("    v{n}: {line}\n")).collect())
}

/// A program gives the expected numbers in each of the modes, twice each.
pub(crate) fn gives(
    program: &Program,
    modes: &[&str],
    inputs: &[&Tensor],
    wanted: &Tensor,
    relative: f64,
) -> Outcome {
    let backend = backend()?;
    let device = backend.device()?;
    let bytes = program.to_bytes();
    for mode in modes {
        let executable = backend.compile(&CompileArgs::new(KERNEL_IR, &bytes).mode(mode).device(device))?;
        for _ in 0..2 {
            let result = executable.execute(inputs)?.remove(0).to_dtype(DType::F64)?;
            tensor::allclose(&result, wanted, relative, 4.0 * relative)?;
        }
    }
    Ok(())
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
