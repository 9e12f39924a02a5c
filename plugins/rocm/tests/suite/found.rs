//! What is found of ROCm: devices by what HIP says of them, and without a runtime, or with a wrong one, the reason.

use std::io;

use crate::Case;
use crate::machine::{Machine, Outcome, backend, ensure, library, standin};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case {
            name: "devices_of_hip_6",
            devices: "gfx942:sramecc+:xnack-,gfx1100,memory=123456789",
            rocm: standin,
            body: devices,
        },
        Case {
            name: "devices_of_hip_5",
            devices: "gfx942:sramecc+:xnack-,gfx1100,memory=123456789,hip=5",
            rocm: standin,
            body: devices,
        },
        Case { name: "no_runtime", devices: "", rocm: |_| Ok(()), body: no_runtime },
        Case { name: "no_device", devices: "gfx942,speed=9", rocm: standin, body: no_device },
        Case {
            name: "a_file_that_is_no_library",
            devices: "",
            rocm: |machine| std::fs::write(machine.file("libamdhip64.so.7"), "no library"),
            body: || reason(&["libamdhip64.so.7 (", "too short"]),
        },
        Case {
            name: "a_library_that_is_not_hip",
            devices: "",
            rocm: wrong,
            body: || reason(&["`hipInit` in ", "libamdhip64.so.6"]),
        },
        Case { name: "clang_makes_machine_code", devices: "", rocm: |_| Ok(()), body: clang },
    ]
}

/// Both structs of properties say the same.
fn devices() -> Outcome {
    let devices = backend()?.devices()?;
    ensure(devices.len() == 2, &devices)?;
    for (device, (architecture, wave)) in
        devices.iter().zip([("gfx942:sramecc+:xnack-", "64"), ("gfx1100", "32")])
    {
        ensure(device.name == format!("HIP stand-in {architecture}"), device)?;
        ensure(device.unavailable_because.is_none() && device.memory_bytes == 123_456_789, device)?;
        ensure(device.attribute("architecture") == Some(architecture), device)?;
        ensure(device.attribute("wave") == Some(wave), device)?;
        ensure(device.attribute("multiprocessors") == Some("8"), device)?;
        let compiler = device.attribute("compiler").unwrap_or_default();
        ensure(compiler.contains("ferroflux-hiprtc"), device)?;
        // What is not there is reported with where it was looked for.
        for (name, library) in [("hipblaslt", "hipBLASLt"), ("rocblas", "rocBLAS"), ("miopen", "MIOpen")] {
            let found = device.attribute(name).unwrap_or_default();
            let missing = found.contains(library) && found.contains(" is not there: looked for ");
            ensure(missing || found.starts_with('/'), found)?;
        }
    }
    Ok(())
}

/// The one device, unavailable for these reasons; nothing crashes, and a compilation says the same.
fn reason(texts: &[&str]) -> Outcome {
    let backend = backend()?;
    let devices = backend.devices()?;
    let why = devices.first().and_then(|d| d.unavailable_because.clone()).unwrap_or_default();
    ensure(devices.len() == 1 && texts.iter().all(|text| why.contains(text)), &devices)?;
    let error = crate::program::compiled(&backend, "default", 0, &[]).err().map(|e| e.to_string());
    ensure(error.as_ref().is_some_and(|e| texts.iter().all(|text| e.contains(text))), error)
}

fn no_runtime() -> Outcome {
    // A machine that has ROCm has a runtime.
    if backend_rocm::find(backend_rocm::Library::Runtime).is_ok() {
        return Ok(());
    }
    reason(&["the HIP runtime (libamdhip64) is not there", "libamdhip64.so.7", "/opt/rocm/lib/", "ROCM_PATH"])
}

fn no_device() -> Outcome {
    reason(&["no ROCm-capable device"])
}

/// The plugin itself under the name of the runtime.
fn wrong(machine: &Machine) -> io::Result<()> {
    std::os::unix::fs::symlink(library()?, machine.file("libamdhip64.so.6"))
}

/// An ELF file for AMD's GPUs (machine 224), where there is such a clang; a text that is wrong gives what it says.
fn clang() -> Outcome {
    let Ok(clang) = backend_rocm::Clang::find() else { return Ok(()) };
    let module = |text: &str| gpu_runtime::Module {
        prelude: "#define GLOBAL __attribute__((global))\n".into(),
        kernels: text.into(),
        entries: vec!["k".into()],
    };
    let good =
        module("extern \"C\" GLOBAL void k(float *p) { p[__builtin_amdgcn_workitem_id_x()] += 1.0f; }\n");
    for architecture in ["gfx90a", "gfx942", "gfx1100", "gfx1201"] {
        let code = clang.compile(&good, architecture)?;
        ensure(code.starts_with(b"\x7fELF") && code[18..20] == [224, 0], &code[..20])?;
    }
    let error = clang.compile(&module("what is this"), "gfx942").err().map(|e| e.to_string());
    ensure(error.as_ref().is_some_and(|e| e.contains("`k`") && e.contains("error:")), error)
}
