//! Inputs that a program declares written: parameters, caches and statistics are updated in place.

use interp::kernels;
use ir_core::{DType, SymExpr};
use kernel_ir::{BodyBuilder, ScalarOp, Storage, StoreMode};
use plugin_host::{Arg, DeviceInfo, LoadedBackend, Value};
use tensor::Tensor;

use super::Cx;
use crate::build::{Build, loops, shape};
use crate::case::{Case, Fault, compare};
use crate::values::{filled, ordinary, tensor_strided};

pub(super) fn written_inputs(cx: &mut Cx) -> Result<(), Fault> {
    let (backend, device) = cx.device()?;
    for case in [
        added("whole", &[5, 7], &[7, 1], 0, &[5, 7])?,
        added("transposed", &[5, 7], &[1, 5], 0, &[5, 7])?,
        added("padded rows", &[4, 6], &[9, 1], 0, &[4, 6])?,
        added("one row of a cache", &[6, 3], &[3, 1], 12, &[1, 3])?,
    ] {
        let name = case.name.clone();
        cx.case(&name, || run(&case, &backend, &device));
    }
    Ok(())
}

/// `x[…] += y` on a part of `x` that begins `offset` elements into it, and the old sum of both as an output.
fn added(what: &str, sizes: &[i64], strides: &[i64], offset: i64, part: &[i64]) -> Result<Case, Fault> {
    let mut b = Build::new("update");
    let x = b.input_strided(DType::F32, shape(sizes), shape(strides));
    let y = b.input(DType::F32, shape(part));
    b.program.inputs[0].written = true;
    let [old, new] = [(); 2].map(|()| b.buffer(DType::F32, shape(part), shape(strides), Storage::View(x)));
    for view in [old, new] {
        b.program.buffers[view].offset = SymExpr::from_i64(offset);
    }
    let z = b.output(DType::F32, shape(part));
    let mut body = BodyBuilder::new();
    // The old value, at the same address: the stored value has another name.
    let v = body.load(old, DType::F32, loops(2));
    let w = body.load(y, DType::F32, loops(2));
    let sum = body.op(ScalarOp::Add, &[v, w]);
    body.store(new, loops(2), sum, StoreMode::Write);
    let mut before = BodyBuilder::new();
    let v = before.load(old, DType::F32, loops(2));
    before.store(z, loops(2), v, StoreMode::Write);
    b.point(shape(part), before);
    b.point(shape(part), body);
    let [dims, steps] = [sizes, strides].map(|l| l.iter().map(|n| *n as usize).collect::<Vec<_>>());
    let steps: Vec<isize> = steps.iter().map(|n| *n as isize).collect();
    let x = tensor_strided(DType::F32, &dims, &steps, &ordinary(DType::F32, dims.iter().product(), 1))?;
    let own: Vec<usize> = part.iter().map(|n| *n as usize).collect();
    Ok(Case::new(what, b.finish(), vec![x, filled(DType::F32, &own, 2)?]))
}

fn run(case: &Case, backend: &LoadedBackend, device: &DeviceInfo) -> Result<(), Fault> {
    let executable = case.compile(backend, device)?;
    let oracle = kernels::Executable::new(case.program.clone(), &|_| None, kernels::Options::default())?;
    let mut expected = case.calls[0].clone();
    let outputs = oracle.call_written(&mut expected)?;
    // Memory of its own: what is written is nobody else's.
    let own = |t: &Tensor| t.with_storage(tensor::Storage::from_bytes(t.storage().bytes())?);
    let mut x = Value::Host(own(&case.calls[0][0])?);
    let y = Value::Host(case.calls[0][1].clone());
    let results = executable.execute_args(&mut [Arg::Write(&mut x), Arg::Read(&y)])?;
    let results = results.into_iter().map(|v| executable.to_host(v)).collect::<Result<Vec<_>, _>>()?;
    compare(&results, &outputs, case.tolerance)?;
    let Value::Host(x) = x else { return Err(Fault::wrong("the input has left the host")) };
    compare(&[x.copied()?], &[expected[0].copied()?], case.tolerance)?;
    let whole = case.calls[0][0].storage_with(&x)?;
    if whole.bytes() == x.storage().bytes() {
        return Ok(());
    }
    Err(Fault::wrong("execute changes memory around the elements of the input"))
}
