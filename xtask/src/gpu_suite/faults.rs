//! `xtask gpu-suite faults`: tests on a real device that running out of memory and losing the device are reported as typed
//! errors. After the first the same process compiles and runs on the device again; after the second it continues without
//! the device, which CUDA gives only to a new process.
//!
//! The device is lost as a user's own kernel would lose it: by a trapping kernel in the context that the whole process
//! shares. Not here: faults that only a mock can cause at will (`gpu-runtime`'s tests).

use std::ffi::c_void;

use anyhow::{Context, Result, anyhow, bail, ensure};
use cudarc::driver::result;
use ferroflux::func::{self, Func};
use ferroflux::{Error, Options, Tensor};

/// A kernel that traps.
const TRAP: &std::ffi::CStr =
    c".version 7.0\n.target sm_50\n.address_size 64\n.visible .entry lose() { trap; }\n";

/// Tests the faults; an error names the first one that was not handled as expected.
pub(super) fn run() -> Result<()> {
    let options = Options::new().backend("cuda");
    let twice = func::of(|[x]| x + x);
    works(&twice, &options).context("before any fault")?;

    let failure = memory(&options)?;
    println!("too little memory: {failure}");
    works(&twice, &options).context("after too little memory")?;

    let held = twice.compile(&func::Types::of(&[sample()?]), &options)?;
    held.call(&[sample()?]).context("a compiled function before the device is lost")?;
    lose()?;
    let error = held.call(&[sample()?]).err().ok_or_else(|| anyhow!("a lost device gave a result"))?;
    println!("lost device: {error}");
    ensure!(error.to_string().contains("lost"), "the error does not say that the device is lost");
    // CUDA allows a process no further work on a device after a kernel fault: every attempt must say so.
    match works(&twice, &options) {
        Ok(()) => println!("the driver opened the lost device again"),
        Err(error) => ensure!(format!("{error:#}").contains("lost"), "after the loss: {error:#}"),
    }
    ensure!(held.call(&[sample()?]).is_err(), "code of a lost device ran");
    drop(held);
    works(&twice, &Options::new().backend("cpu")).context("on the CPU after the device was lost")?;
    println!("all faults were reported and survived");
    Ok(())
}

fn sample() -> Result<Tensor> {
    Ok(Tensor::from_vec(vec![1.0_f32, -2.0, 3.5], &[3])?)
}

/// Compiles a small function and checks its result.
fn works(twice: &Func, options: &Options) -> Result<()> {
    let given = twice.call(&[sample()?], options)?;
    let values: Vec<f64> = given[0].iter_f64().collect();
    ensure!(values == [2.0, -4.0, 7.0], "twice [1, -2, 3.5] is said to be {values:?}");
    Ok(())
}

/// Requests a result of 2⁴¹ bytes, and returns the error.
fn memory(options: &Options) -> Result<Error> {
    let side = 1 << 20;
    let outer = func::of(|[x]| x.reshape(&[1 << 20, 1]) + x.reshape(&[1, 1 << 20]));
    let x = Tensor::from_vec(vec![0.5_f32; side], &[side])?;
    let Err(error) = outer.call(&[x], options) else { bail!("a device held 4 TiB") };
    let Error::Backend(failed) = &error else { bail!("an error of another kind: {error}") };
    let kind = failed.plugin_failure().map(|f| f.kind());
    ensure!(kind == Some("out of memory"), "an error of kind {kind:?}: {error}");
    Ok(error)
}

/// Runs the trapping kernel in the primary context of the first device and waits for it to fail.
fn lose() -> Result<()> {
    let device = result::device::get(0)?;
    // SAFETY: the driver returned this device, and its primary context is never released here.
    let context = unsafe { result::primary_ctx::retain(device) }?;
    // SAFETY: the context is alive. The image is PTX with a closing zero, and the entry takes no parameters.
    unsafe {
        result::ctx::set_current(context)?;
        let module = result::module::load_data(TRAP.as_ptr().cast::<c_void>())?;
        let function = result::module::get_function(module, c"lose".into())?;
        result::launch_kernel(function, (1, 1, 1), (1, 1, 1), 0, std::ptr::null_mut(), &mut [])?;
    }
    match result::ctx::synchronize() {
        Ok(()) => bail!("the device went on after a trap"),
        Err(_) => Ok(()),
    }
}
