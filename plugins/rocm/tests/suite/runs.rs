//! What runs: programs in every mode, on waves of 64 and of 32 lanes and in both schedules, copies, streams, code from the disk, and
//! the conformance suite.

use std::path::PathBuf;
use std::process::Command;

use conformance::{Effort, Judge, Options};
use ir_core::DType;
use plugin_host::Value;
use tensor::Tensor;

use crate::machine::{Outcome, backend, counted, ensure, library, standin};
use crate::program::{case, compiled, computes, same};
use crate::{CASE, Case};

/// What devices differ in.
pub(crate) const MODES: [&str; 4] =
    ["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"];

pub(crate) fn cases() -> Vec<Case> {
    let case = |name, devices, body| Case { name, devices, rocm: standin, body };
    vec![
        case("waves_of_64", "gfx942", modes),
        case("waves_of_64_backward", "gfx90a,schedule=backward", modes),
        case("waves_of_32", "gfx1100", modes),
        case("waves_of_32_backward", "gfx1201,schedule=backward", modes),
        case("memory_without_pools", "gfx942,hip=5", modes),
        case("two_devices", "gfx942,gfx1100", devices),
        case("copies", "gfx942", copies),
        case("streams", "gfx942", streams),
        case("more_shared_memory", "gfx950", more_shared_memory),
        case("no_more_shared_memory", "gfx942", no_more_shared_memory),
        case("code_is_kept", "gfx942", kept),
        case("code_that_was_kept", "gfx942", found),
        case("conformance", "gfx942", conformance),
    ]
}

fn modes() -> Outcome {
    let backend = backend()?;
    MODES.iter().try_for_each(|mode| computes(&compiled(&backend, mode, 0, &[])?))
}

fn devices() -> Outcome {
    let backend = backend()?;
    computes(&compiled(&backend, "default", 1, &[])?)?;
    computes(&compiled(&backend, "default", 0, &[])?)
}

/// Through several pieces of page-locked memory, and less than one.
fn copies() -> Outcome {
    let backend = backend()?;
    let device = backend.device()?;
    for elements in [1usize, 1000, (8 << 20) / 4 + 3, (40 << 20) / 4 + 1] {
        let values: Vec<f32> = (0..elements).map(|i| (i % 8191) as f32).collect();
        let there = backend.to_device(&Tensor::from_vec(values.clone(), &[elements])?, device)?;
        let back = backend.to_host(&there)?;
        let wrong = back.iter_f64().zip(&values).position(|(a, b)| a != f64::from(*b));
        ensure(back.dtype() == DType::F32 && wrong.is_none(), (elements, wrong))?;
    }
    Ok(())
}

/// A call that is not waited for, its result read on the host behind it.
fn streams() -> Outcome {
    let backend = backend()?;
    let device = backend.device()?;
    let executable = compiled(&backend, "default", 0, &[])?;
    let (x, expected) = case(7)?;
    let given = Value::Device(backend.to_device(&x, device)?);
    let stream = backend.create_stream(device)?;
    let mut results = executable.execute_on(&[&given], &stream)?;
    stream.synchronize()?;
    let result = results.pop().ok_or("no result")?;
    same(&executable.to_host(result)?, &expected)
}

/// Where the device has more than 64 KiB of shared memory for a block, kernels are allowed to use it.
fn more_shared_memory() -> Outcome {
    computes(&compiled(&backend()?, "default", 0, &[])?)?;
    let granted = counted("granted", 0)?;
    ensure(granted > 0, granted)
}

/// Elsewhere the runtime is not asked.
fn no_more_shared_memory() -> Outcome {
    computes(&compiled(&backend()?, "default", 0, &[])?)?;
    let granted = counted("granted", 0)?;
    ensure(granted == 0, granted)
}

fn folder() -> Result<PathBuf, Box<dyn std::error::Error>> {
    Ok(PathBuf::from(std::env::var_os("FERROFLUX_TEST_FOLDER").ok_or("not called as a case")?).join("code"))
}

/// Compiled code is left in the folder of the option `cache`; a later process takes it from there and compiles nothing.
fn kept() -> Outcome {
    let folder = folder()?;
    let options = [("cache", folder.to_str().ok_or("a folder of another name")?)];
    computes(&compiled(&backend()?, "default", 0, &options)?)?;
    let files = std::fs::read_dir(&folder)?.count();
    ensure(files > 0, files)?;
    let mut again = Command::new(std::env::current_exe()?);
    // A program that compiles nothing.
    let program = std::env::current_exe()?;
    let output = again.env(CASE, "code_that_was_kept").env("FERROFLUX_HIPRTC", program).output()?;
    ensure(output.status.success(), String::from_utf8_lossy(&output.stderr))
}

fn found() -> Outcome {
    let folder = folder()?;
    if !folder.is_dir() {
        // Called by itself: nothing was kept.
        return Ok(());
    }
    let options = [("cache", folder.to_str().ok_or("a folder of another name")?)];
    computes(&compiled(&backend()?, "default", 0, &options)?)
}

fn conformance() -> Outcome {
    let judge = Judge { program: std::env::current_exe()?, args: vec![] };
    // The checks' processes have the environment of this one, but are no cases.
    let full = std::env::var_os("FERROFLUX_CONFORMANCE").is_some_and(|v| v == "full");
    let effort = if full { Effort::Full } else { Effort::Quick };
    let report = conformance::check(&library()?, &Options { effort, ..Options::new(judge) })?;
    ensure(report.is_ok(), report.table())
}
