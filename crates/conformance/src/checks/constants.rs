//! Constants: bound by name in any order, all or none, and again; results of the init steps are kept.

use ir_core::{DType, Scalar};
use kernel_ir::{BodyBuilder, ScalarOp, Stage, Storage, StoreMode};
use plugin_abi::FFX_OK;
use plugin_host::LoadedExecutable;
use tensor::Tensor;

use super::Cx;
use crate::build::{Build, loops, shape};
use crate::case::{Case, Fault, Tolerance, compare};
use crate::raw::{ErrorPlace, Owned, Raw, Request};
use crate::values::{filled, tensor};

/// `y = x * scale + shift²`; the square is computed once, by the init steps.
pub(super) fn affine() -> Result<Case, Fault> {
    let mut b = Build::new("affine");
    let x = b.input(DType::F32, shape(&[4]));
    let scale = b.constant("layer.scale", DType::F32, shape(&[4]));
    let shift = b.constant("layer.shift", DType::F32, shape(&[4]));
    let packed = b.buffer(DType::F32, shape(&[4]), shape(&[1]), Storage::Persistent);
    let y = b.output(DType::F32, shape(&[4]));
    let mut body = BodyBuilder::new();
    let v = body.load(shift, DType::F32, loops(1));
    let v = body.op(ScalarOp::Mul, &[v, v]);
    body.store(packed, loops(1), v, StoreMode::Write);
    let init = b.kernel(shape(&[4]), vec![], vec![Stage { inner: shape(&[]), insts: body.finish() }]);
    b.program.init.push(init);
    let mut body = BodyBuilder::new();
    let v = body.load(x, DType::F32, loops(1));
    let w = body.load(scale, DType::F32, loops(1));
    let v = body.op(ScalarOp::Mul, &[v, w]);
    let w = body.load(packed, DType::F32, loops(1));
    let v = body.op(ScalarOp::Add, &[v, w]);
    body.store(y, loops(1), v, StoreMode::Write);
    b.point(shape(&[4]), body);
    let mut case = Case::new("affine", b.finish(), vec![filled(DType::F32, &[4], 1)?]);
    case.constants = weights(2)?;
    Ok(case.tolerance(Tolerance::CLOSE))
}

fn weights(seed: u64) -> Result<Vec<(String, Tensor)>, Fault> {
    let one = |name: &str, seed| -> Result<(String, Tensor), Fault> {
        Ok((name.to_owned(), filled(DType::F32, &[4], seed)?))
    };
    Ok(vec![one("layer.scale", seed)?, one("layer.shift", seed + 50)?])
}

fn named(list: &[(String, Tensor)]) -> Vec<(&str, &Tensor)> {
    list.iter().map(|(name, t)| (name.as_str(), t)).collect()
}

/// Whether an executable computes with the given constants.
fn agrees(executable: &LoadedExecutable, case: &mut Case, bound: Vec<(String, Tensor)>) -> Result<(), Fault> {
    case.constants = bound;
    let inputs: Vec<&Tensor> = case.calls[0].iter().collect();
    compare(&executable.execute(&inputs)?, &case.oracle()?[0], case.tolerance)
}

pub(super) fn constants(cx: &mut Cx) -> Result<(), Fault> {
    let (backend, device) = cx.device()?;
    let mut case = affine()?;
    cx.case("bound", || case.run(&backend, &device));
    let Ok(mut executable) = case.compile(&backend, &device) else { return Ok(()) };
    cx.case("in another order", || {
        let bound = weights(3)?;
        let mut turned = named(&bound);
        turned.reverse();
        executable.bind_constants(&turned)?;
        agrees(&executable, &mut case, bound)
    });
    cx.case("bound again", || {
        let bound = weights(4)?;
        executable.bind_constants(&named(&bound))?;
        agrees(&executable, &mut case, bound)
    });
    cx.case("two executables", || {
        let mut other = case.compile(&backend, &device)?;
        let (first, second) = (weights(5)?, weights(6)?);
        executable.bind_constants(&named(&first))?;
        other.bind_constants(&named(&second))?;
        agrees(&executable, &mut case, first)?;
        agrees(&other, &mut case, second)
    });
    let raw = Raw::open(cx.library(), None)?;
    let form = raw.form(&case.program)?;
    let request = form.request(device.device);
    let unbound = raw.compiled(&request)?;
    cx.case("executed before", || fails(&unbound, &case));
    refused_bindings(cx, &raw, &request, &case)
}

/// An execution without constants must fail.
fn fails(executable: &Owned<'_>, case: &Case) -> Result<(), Fault> {
    let inputs: Vec<&Tensor> = case.calls[0].iter().collect();
    let mut error = ErrorPlace::whole();
    let (status, outputs) = executable.execute(&inputs, 1, error.pointer())?;
    if status == FFX_OK || !outputs.is_empty() {
        return Err(Fault::wrong("execute succeeds without constants"));
    }
    error.expect_failure(status)
}

/// After an error nothing is bound, whatever was bound before.
fn refused_bindings(cx: &mut Cx, raw: &Raw, request: &Request<'_>, case: &Case) -> Result<(), Fault> {
    let good = weights(7)?;
    let integers = tensor(DType::I32, &[4], &[Scalar::Int(1); 4])?;
    let longer = filled(DType::F32, &[5], 8)?;
    let [(scale, first), (shift, second)] = &good[..] else { return Ok(()) };
    let wrong: [(&str, Vec<(&str, &Tensor)>); 5] = [
        ("one is missing", vec![(scale, first)]),
        ("none at all", vec![]),
        ("another name", vec![(scale, first), ("layer.shifted", second)]),
        ("another dtype", vec![(scale, &integers), (shift, second)]),
        ("another size", vec![(scale, first), (shift, &longer)]),
    ];
    for (what, bindings) in wrong {
        cx.case(what, || {
            let executable = raw.compiled(request)?;
            let mut error = ErrorPlace::whole();
            let status = executable.bind(&named(&good), &mut error)?;
            if status != FFX_OK {
                return Err(Fault::wrong(format!("bind_constants fails: {}", error.message())));
            }
            let mut error = ErrorPlace::whole();
            let status = executable.bind(&bindings, &mut error)?;
            error.expect_failure(status)?;
            fails(&executable, case)
        });
    }
    Ok(())
}
