//! Ownership: outputs belong to the caller until it calls their deleter.

use std::collections::HashSet;

use ir_core::DType;
use plugin_abi::FFX_OK;
use tensor::Tensor;

use super::{Cx, support};
use crate::case::{Case, Fault, Tolerance, compare};
use crate::memory::resident;
use crate::raw::{ErrorPlace, Output, Owned, Raw};
use crate::values::filled;

pub(super) fn outputs(cx: &mut Cx) -> Result<(), Fault> {
    let (backend, device) = cx.device()?;
    let case = support::doubled(500)?;
    let expected = case.oracle()?.swap_remove(0);
    let executable = case.compile(&backend, &device)?;
    cx.case("beyond the next call", || {
        let first = executable.execute(&[&case.calls[0][0]])?;
        let other = filled(DType::F32, &[500], 99)?;
        let second = executable.execute(&[&other])?;
        compare(&first, &expected, Tolerance::EXACT)?;
        let doubled = Case { calls: vec![vec![other]], ..support::doubled(500)? };
        compare(&second, &doubled.oracle()?[0], Tolerance::EXACT)
    });
    cx.case("beyond the inputs", || {
        let own = case.calls[0][0].copied()?;
        let result = executable.execute(&[&own])?;
        // The allocator fills freed memory, so an output in the input's memory is detected.
        drop(own);
        compare(&result, &expected, Tolerance::EXACT)
    });
    cx.case("counts", || {
        let counts = (executable.num_inputs(), executable.num_outputs(), executable.num_constants());
        if counts == (1, 1, 0) {
            return Ok(());
        }
        Err(Fault::wrong(format!("inputs, outputs and constants are {counts:?}, expected (1, 1, 0)")))
    });
    Ok(())
}

/// One execution through the raw table.
fn execute(executable: &Owned<'_>, input: &Tensor) -> Result<Output, Fault> {
    let mut error = ErrorPlace::whole();
    let (status, mut outputs) = executable.execute(&[input], 1, error.pointer())?;
    match outputs.pop() {
        Some(output) if status == FFX_OK => Ok(output),
        _ => Err(Fault::wrong(format!("execute gives code {status} and no output: {}", error.message()))),
    }
}

pub(super) fn deleters(cx: &mut Cx) -> Result<(), Fault> {
    let raw = Raw::open(cx.library(), None)?;
    let device = raw.usable()?;
    // 32 KiB per output: small enough to come from the heap, large enough to notice a leak.
    const N: i64 = 1 << 13;
    const BYTES: usize = 4 * N as usize;
    let case = support::doubled(N)?;
    let form = raw.form(&case.program)?;
    let request = form.request(device);
    let input = &case.calls[0][0];
    cx.case("each output is one of its own", || {
        let executable = raw.compiled(&request)?;
        let outputs = (0..8).map(|_| execute(&executable, input)).collect::<Result<Vec<_>, _>>()?;
        let different: HashSet<_> = outputs.iter().map(Output::addresses).collect();
        let data: HashSet<_> = outputs.iter().map(|o| o.addresses().1).collect();
        if different.len() < 8 || data.len() < 8 {
            return Err(Fault::wrong("two outputs of different calls share their struct or memory"));
        }
        if outputs.iter().all(Output::has_deleter) {
            Ok(())
        } else {
            Err(Fault::wrong("an output has no deleter"))
        }
    });
    cx.case("on another thread", || {
        let executable = raw.compiled(&request)?;
        let outputs = (0..4).map(|_| execute(&executable, input)).collect::<Result<Vec<_>, _>>()?;
        let freed = std::thread::spawn(move || drop(outputs)).join();
        freed.map_err(|_| Fault::wrong("the thread that freed outputs panicked"))
    });
    cx.case("after the executable", || {
        let executable = raw.compiled(&request)?;
        let output = execute(&executable, input)?;
        let (_, _, on_host) = output.addresses();
        let before = if on_host { output.bytes(BYTES) } else { Vec::new() };
        drop(executable);
        // Memory allocated now would be the output's, if it were freed with the executable.
        let others: Vec<Vec<u8>> = (0..16).map(|k| vec![k; BYTES]).collect();
        let after = if on_host { output.bytes(BYTES) } else { Vec::new() };
        drop(others);
        if before == after {
            Ok(())
        } else {
            Err(Fault::wrong("an output changes when the executable is destroyed"))
        }
    });
    let runs = cx.by_effort(160, 500);
    cx.case("nothing is left behind", || {
        let executable = raw.compiled(&request)?;
        let run = |n: usize| (0..n).try_for_each(|_| execute(&executable, input).map(drop));
        grows_less_than(4 << 20, || run(runs / 4), || run(runs))
    });
    Ok(())
}

/// Runs `warm`, then `work`, and measures how much the process has grown by the latter.
pub(super) fn grows_less_than(
    bytes: u64,
    warm: impl Fn() -> Result<(), Fault>,
    work: impl Fn() -> Result<(), Fault>,
) -> Result<(), Fault> {
    let unknown = || Fault::Declined("this system does not say how much memory a process holds".into());
    // The first rounds fill caches and pools, which is not a leak.
    warm()?;
    let before = resident().ok_or_else(unknown)?;
    work()?;
    let grown = resident().ok_or_else(unknown)?.saturating_sub(before);
    if grown < bytes {
        return Ok(());
    }
    Err(Fault::wrong(format!("the process has grown by {grown} bytes; less than {bytes} are allowed")))
}
