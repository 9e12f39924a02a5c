//! What goes wrong on a device: it is lost, it has too little memory, its compiler ends the process that calls it. Each is an error
//! that says so, and what comes behind it works.

use ir_core::DType;
use plugin_host::HostError;
use tensor::Tensor;

use crate::Case;
use crate::machine::{Outcome, backend, ensure, standin};
use crate::program::{case, compiled, computes};

pub(crate) fn cases() -> Vec<Case> {
    let case = |name, devices, body| Case { name, devices, rocm: standin, body };
    vec![
        case("lost", "gfx942,lost=3", lost),
        case("lost_in_a_graph", "gfx1100,lost=3", lost_in_a_graph),
        case("too_little_memory", "gfx942,memory=3000000", memory),
        case("too_little_memory_without_pools", "gfx942,memory=3000000,hip=5", memory),
        case("an_architecture_that_the_compiler_does_not_know", "gfx906", unknown),
    ]
}

/// The call that loses the device says so, and so does all that is left of it; what is compiled anew runs.
fn loses(mode: &str) -> Outcome {
    let backend = backend()?;
    let executable = compiled(&backend, mode, 0, &[])?;
    let (x, _) = case(3)?;
    let calls: Vec<Result<_, HostError>> = (0..4).map(|_| executable.execute(&[&x])).collect();
    let texts: Vec<String> =
        calls.iter().map(|c| c.as_ref().err().map_or("fine".into(), ToString::to_string)).collect();
    ensure(texts[0] == "fine" && texts[1] == "fine", &texts)?;
    let lost = |text: &String| text.contains("the device is lost to this process");
    ensure(texts[2].contains("as it was asked for") && texts[2..].iter().all(lost), &texts)?;
    drop(executable);
    computes(&compiled(&backend, mode, 0, &[])?)
}

fn lost() -> Outcome {
    loses("default")
}

fn lost_in_a_graph() -> Outcome {
    loses("reduce-overhead")
}

fn memory() -> Outcome {
    let backend = backend()?;
    let device = backend.device()?;
    let large = Tensor::zeros(DType::F32, &[2 << 20])?;
    let error = backend.to_device(&large, device).err();
    let kind = error.as_ref().and_then(HostError::plugin_failure).map(|f| f.kind());
    let text = error.as_ref().map(ToString::to_string).unwrap_or_default();
    ensure(kind == Some("out of memory") && text.contains("of 3000000 are free"), &text)?;
    // Many small ones, one after another, are had from what was given back.
    for _ in 0..20 {
        let small = backend.to_device(&Tensor::zeros(DType::F32, &[200_000])?, device)?;
        ensure(backend.to_host(&small)?.numel() == 200_000, ())?;
    }
    computes(&compiled(&backend, "default", 0, &[])?)
}

/// hiprtc aborts; this process lives on.
fn unknown() -> Outcome {
    let backend = backend()?;
    for _ in 0..2 {
        let error = compiled(&backend, "default", 0, &[]).err().map(|e| e.to_string()).unwrap_or_default();
        ensure(error.contains("hiprtc ended its process") && error.contains("knows no `gfx906`"), &error)?;
    }
    ensure(backend.devices()?[0].unavailable_because.is_none(), ())
}
