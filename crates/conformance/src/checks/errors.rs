//! Wrong calls and damaged programs: each is an error with a code and a reason.

use std::ptr::{null, null_mut};

use ir_core::DType;
use kernel_ir::{IR_MAJOR, IR_MINOR};
use plugin_abi::{FFX_OK, FfxIrVersion};
use tensor::Tensor;

use super::{Cx, control, layout, movement, reduce, support, templates};
use crate::case::{Case, Fault};
use crate::raw::{ErrorPlace, Form, Owned, Raw, Request};
use crate::values::{Rng, filled};

pub(super) fn errors(cx: &mut Cx) -> Result<(), Fault> {
    let raw = Raw::open(cx.library(), None)?;
    let device = raw.usable()?;
    let case = support::simple()?;
    let Form { ir: own, bytes } = raw.form(&case.program)?;
    let whole = || Request::new(own, &bytes, device);
    let of = |ir| Request::new(ir, &bytes, device);
    let requests: [(&str, Request<'_>); 9] = [
        ("an unknown mode", whole().mode("no-such-mode")),
        ("an unknown option", whole().option("no-such-option", "1")),
        ("a program of another major", of(FfxIrVersion::kernel_ir(IR_MAJOR + 1, 0))),
        ("a program of a later minor", of(FfxIrVersion::kernel_ir(IR_MAJOR, IR_MINOR + 100))),
        ("a program of an unknown level", of(FfxIrVersion { level: 77, ..own })),
        ("a program without bytes", Request::new(own, &[], device)),
        ("a program of zeros", Request::new(own, &[0; 100], device)),
        ("half a program", Request::new(own, &bytes[..bytes.len() / 2], device)),
        ("the head of a program", Request::new(own, &bytes[..8], device)),
    ];
    for (what, request) in &requests {
        cx.case(what, || {
            let mut error = ErrorPlace::whole();
            let (status, exe) = raw.compile(request.pointer(), error.pointer())?;
            error.expect_failure(status)?;
            if exe.is_null() { Ok(()) } else { Err(Fault::wrong("an error leaves an executable behind")) }
        });
    }
    cx.case("no request", || {
        let mut error = ErrorPlace::whole();
        let (status, _) = raw.compile(null(), error.pointer())?;
        error.expect_failure(status)
    });
    cx.case("an error without an error struct", || {
        let (status, _) = raw.compile(requests[6].1.pointer(), null_mut())?;
        if status == FFX_OK { Err(Fault::wrong("a program of zeros is taken")) } else { Ok(()) }
    });
    cx.case("destroying nothing", || {
        raw.destroy(null_mut());
        Ok(())
    });
    cx.case("an unknown extension", || match raw.extension("ferroflux.no-such-extension.v1") {
        true => Err(Fault::wrong("an extension that does not exist is there")),
        false => Ok(()),
    });
    let request = whole();
    wrong_calls(cx, &raw.compiled(&request)?, &case)
}

/// Executions that must fail, and leave the executable as it was.
fn wrong_calls(cx: &mut Cx, executable: &Owned<'_>, case: &Case) -> Result<(), Fault> {
    let good = &case.calls[0][0];
    let integers = filled(DType::I32, &[6], 1)?;
    let (longer, flat) = (filled(DType::F32, &[7], 1)?, filled(DType::F32, &[2, 3], 1)?);
    let calls: [(&str, Vec<&Tensor>, usize); 6] = [
        ("no inputs", vec![], 1),
        ("too many inputs", vec![good, good], 1),
        ("an input of another dtype", vec![&integers], 1),
        ("an input of another size", vec![&longer], 1),
        ("an input of another rank", vec![&flat], 1),
        ("no place for the output", vec![good], 0),
    ];
    for (what, inputs, places) in calls {
        cx.case(what, || {
            let mut error = ErrorPlace::whole();
            let (status, outputs) = executable.execute(&inputs, places, error.pointer())?;
            error.expect_failure(status)?;
            if outputs.is_empty() { Ok(()) } else { Err(Fault::wrong("an error leaves outputs behind")) }
        });
    }
    cx.case("a right call after wrong ones", || {
        let mut error = ErrorPlace::whole();
        let (status, outputs) = executable.execute(&[good], 1, error.pointer())?;
        if status == FFX_OK && outputs.len() == 1 {
            return Ok(());
        }
        Err(Fault::wrong(format!("execute fails with code {status}: {}", error.message())))
    });
    Ok(())
}

/// Programs with changed bytes: accepted or refused, but with a code, and without ending the process.
pub(super) fn hostile(cx: &mut Cx) -> Result<(), Fault> {
    let raw = Raw::open(cx.library(), None)?;
    let device = raw.usable()?;
    let mut cases = vec![support::simple()?];
    cases.extend(reduce::samples()?);
    cases.extend(movement::samples()?);
    cases.extend(layout::samples()?);
    cases.extend(templates::samples()?);
    cases.extend(control::samples()?);
    let rounds = cx.by_effort(20, 200);
    for (n, case) in cases.iter().enumerate() {
        let Ok(Form { ir, bytes }) = raw.form(&case.program) else { continue };
        let name = format!("changed bytes of `{}`", case.name);
        cx.case(&name, || {
            let mut rng = Rng::new(n as u64);
            for _ in 0..rounds {
                let changed = changed(&bytes, &mut rng);
                let request = Request::new(ir, &changed, device);
                let mut error = ErrorPlace::whole();
                let (status, exe) = raw.compile(request.pointer(), error.pointer())?;
                if status == FFX_OK {
                    // Bytes that are still a program may be accepted. The program is not run, because its indices are
                    // arbitrary.
                    raw.destroy(exe);
                } else {
                    error.expect_failure(status)?;
                }
            }
            Ok(())
        });
    }
    Ok(())
}

/// Changes, removes or inserts a few bytes; the header stays.
fn changed(bytes: &[u8], rng: &mut Rng) -> Vec<u8> {
    let mut changed = bytes.to_vec();
    for _ in 0..=rng.below(3) {
        let at = 8 + rng.below(changed.len().saturating_sub(9).max(1) as u64) as usize;
        let last = changed.len() - 1;
        match rng.below(4) {
            0 => changed.truncate(at.max(9)),
            1 => changed.insert(at.min(changed.len()), rng.next() as u8),
            2 => changed[at.min(last)] ^= 1 << rng.below(8),
            _ => changed[at.min(last)] = rng.next() as u8,
        }
    }
    changed
}
