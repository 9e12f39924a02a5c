//! Artifacts: a saved executable loads again and computes the same; damaged or foreign bytes are refused and never run.

use plugin_abi::{DLDevice, FFX_ERR_DAMAGED, FFX_ERR_INCOMPATIBLE, FFX_OK};
use tensor::Tensor;

use super::{Cx, constants, support};
use crate::case::{Case, Fault};
use crate::raw::{ErrorPlace, Owned, Raw};

pub(super) fn artifacts(cx: &mut Cx) -> Result<(), Fault> {
    let raw = Raw::open(cx.library(), None)?;
    let device = raw.usable()?;
    let Some(compat) = raw.compat(device)? else {
        return Err(Fault::Declined("the plugin makes no artifacts".into()));
    };
    cx.case("compatibility string", || {
        let text = String::from_utf8(compat.clone());
        let text = text.map_err(|_| Fault::wrong("the compatibility string is not UTF-8"))?;
        if text.is_empty() || text.len() > 4096 || raw.compat(device)?.as_deref() != Some(&compat) {
            return Err(Fault::wrong(format!(
                "the compatibility string changes, or its length is {}",
                text.len()
            )));
        }
        Ok(())
    });
    for case in [support::doubled(100)?, constants::affine()?] {
        let name = format!("round trip of `{}`", case.name);
        cx.case(&name, || round_trip(&raw, device, &case));
    }
    let case = support::simple()?;
    let form = raw.form(&case.program)?;
    let artifact = raw.compiled(&form.request(device))?.save()?;
    let refused = |what: &str, bytes: &[u8]| refuses(&raw, device, what, bytes);
    cx.case("foreign bytes", || {
        refused("no bytes", &[])?;
        refused("a program", &form.bytes)?;
        refused("zeros", &[0; 4096])?;
        refused("text", b"this is no artifact")
    });
    cx.case("made for something else", || {
        let at = artifact.windows(compat.len().max(1)).position(|w| w == compat);
        let at =
            at.ok_or_else(|| Fault::Declined("the artifact does not hold its compatibility string".into()))?;
        let mut other = artifact.clone();
        other[at + compat.len() - 1] ^= 1;
        refused("an artifact with another compatibility string", &other)
    });
    let steps = cx.by_effort(16, 128);
    cx.case("cut", || {
        let ends = (0..steps).map(|k| artifact.len() * k / steps).chain([artifact.len() - 1]);
        ends.into_iter().try_for_each(|end| refused(&format!("the first {end} bytes"), &artifact[..end]))
    });
    cx.case("changed", || {
        let places = (0..steps).map(|k| artifact.len() * k / steps).chain([artifact.len() - 1]);
        places.into_iter().try_for_each(|at| {
            let mut changed = artifact.clone();
            changed[at] ^= 1 << (at % 8);
            refused(&format!("a changed bit in byte {at}"), &changed)
        })
    });
    cx.case("longer", || {
        let mut longer = artifact.clone();
        longer.push(0);
        refused("a byte too many", &longer)
    });
    Ok(())
}

/// Loading must fail, as damaged or incompatible.
fn refuses(raw: &Raw, device: DLDevice, what: &str, bytes: &[u8]) -> Result<(), Fault> {
    let mut error = ErrorPlace::whole();
    let (status, exe) = raw.load(bytes, device, &mut error)?;
    if status == FFX_OK {
        raw.destroy(exe);
        return Err(Fault::wrong(format!("{what} is loaded as an artifact")));
    }
    error.expect_failure(status)?;
    if status == FFX_ERR_DAMAGED || status == FFX_ERR_INCOMPATIBLE {
        return Ok(());
    }
    Err(Fault::wrong(format!("{what} is refused with code {status}, neither as damaged nor as incompatible")))
}

/// Saved, destroyed, loaded, saved again: always the same results.
fn round_trip(raw: &Raw, device: DLDevice, case: &Case) -> Result<(), Fault> {
    let form = raw.form(&case.program)?;
    let compiled = raw.compiled(&form.request(device))?;
    let expected = results(&compiled, case)?;
    let artifact = compiled.save()?;
    if results(&compiled, case)? != expected {
        return Err(Fault::wrong("the executable gives other results after it was saved"));
    }
    drop(compiled);
    let loaded = raw.loaded(&artifact, device)?;
    if results(&loaded, case)? != expected {
        return Err(Fault::wrong("the loaded artifact gives other results"));
    }
    let again = raw.loaded(&loaded.save()?, device)?;
    if results(&again, case)? != expected {
        return Err(Fault::wrong("an artifact of the loaded artifact gives other results"));
    }
    Ok(())
}

/// The first output of the first call, as bytes.
fn results(executable: &Owned<'_>, case: &Case) -> Result<Vec<u8>, Fault> {
    let mut error = ErrorPlace::whole();
    if !case.constants.is_empty() {
        let constants: Vec<(&str, &Tensor)> = case.constants.iter().map(|(n, t)| (n.as_str(), t)).collect();
        let status = executable.bind(&constants, &mut error)?;
        if status != FFX_OK {
            return Err(Fault::wrong(format!("bind_constants fails: {}", error.message())));
        }
    }
    let inputs: Vec<&Tensor> = case.calls[0].iter().collect();
    let (status, outputs) = executable.execute(&inputs, 1, error.pointer())?;
    let output = outputs.first().filter(|_| status == FFX_OK);
    let output = output.ok_or_else(|| Fault::wrong(format!("execute fails: {}", error.message())))?;
    if !output.addresses().2 {
        return Err(Fault::Declined("outputs lie on a device; `threads` and `ops` judge those".into()));
    }
    Ok(output.bytes(case.calls[0][0].nbytes()))
}
