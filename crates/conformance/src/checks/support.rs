//! Refusals: what a plugin does not take it says, by node and with a reason, and `compile` says the same.

use ir_core::DType;
use kernel_ir::{BodyBuilder, ScalarOp, StoreMode};
use plugin_abi::FFX_ERR_UNSUPPORTED;
use plugin_host::{CompileArgs, HostError, KERNEL_IR};

use super::{Cx, control, layout, movement, reduce, scalar, templates};
use crate::build::{Build, loops, shape};
use crate::case::{Case, Fault};
use crate::raw::Raw;
use crate::values;

/// `y = x + x` over six numbers.
pub(super) fn simple() -> Result<Case, Fault> {
    doubled(6)
}

/// `y = x + x` over `n` numbers of `f32`.
pub(super) fn doubled(n: i64) -> Result<Case, Fault> {
    doubled_of(DType::F32, n)
}

/// `y = x + x` over `n` numbers.
pub(super) fn doubled_of(dtype: DType, n: i64) -> Result<Case, Fault> {
    let mut b = Build::new("double");
    let (x, y) = (b.input(dtype, shape(&[n])), b.output(dtype, shape(&[n])));
    let mut body = BodyBuilder::new();
    let v = body.load(x, dtype, loops(1));
    let sum = body.op(ScalarOp::Add, &[v, v]);
    body.store(y, loops(1), sum, StoreMode::Write);
    b.point(shape(&[n]), body);
    let input = values::filled(dtype, &[n as usize], 1)?;
    Ok(Case::new(format!("double {dtype}[{n}]"), b.finish(), vec![input]))
}

/// One or a few programs of each kind.
fn catalogue() -> Result<Vec<Case>, Fault> {
    let mut all = vec![simple()?];
    all.extend(scalar::samples()?);
    all.extend(reduce::samples()?);
    all.extend(movement::samples()?);
    all.extend(layout::samples()?);
    all.extend(templates::samples()?);
    all.extend(control::samples()?);
    Ok(all)
}

pub(super) fn support(cx: &mut Cx) -> Result<(), Fault> {
    let (backend, device) = cx.device()?;
    // A plugin without `query_support` leaves all judgement to `compile`.
    let requested = Raw::open(cx.library(), None)?.table.query_support.is_some();
    let mut taken = 0;
    for case in catalogue()? {
        cx.case(&case.name, || {
            let bytes = case.program.to_bytes();
            let args = CompileArgs::new(KERNEL_IR, &bytes).device(device.device);
            let refused = backend.query_support(&args)?;
            if let Some(silent) = refused.iter().find(|r| r.reason.trim().is_empty() || r.node.is_empty()) {
                return Err(Fault::wrong(format!(
                    "it refuses `{}` because of `{}`",
                    silent.node, silent.reason
                )));
            }
            match (backend.compile(&args), refused.is_empty()) {
                (Ok(_), true) => {
                    taken += 1;
                    Ok(())
                }
                (Ok(_), false) => Err(Fault::wrong(format!(
                    "query_support refuses `{}` ({}), but compile takes it",
                    refused[0].node, refused[0].reason
                ))),
                (Err(HostError::Plugin { failure, .. }), all) if failure.code == FFX_ERR_UNSUPPORTED => {
                    if failure.message == "the plugin gave no reason" {
                        return Err(Fault::wrong("compile declines without a reason"));
                    }
                    if all && requested {
                        return Err(Fault::wrong(format!(
                            "query_support refuses nothing, but compile: {failure}"
                        )));
                    }
                    Err(Fault::Declined(failure.to_string()))
                }
                (Err(error), _) => Err(Fault::Wrong(error.to_string())),
            }
        });
    }
    cx.case("something is taken", || {
        if taken > 0 { Ok(()) } else { Err(Fault::wrong("every program is declined")) }
    });
    Ok(())
}
