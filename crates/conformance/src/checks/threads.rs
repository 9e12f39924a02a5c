//! Concurrency: execution on one executable, and compilation.

use std::sync::Barrier;

use ir_core::DType;
use tensor::Tensor;

use super::{Cx, reduce, support};
use crate::case::{Case, Fault, compare};
use crate::values::filled;

const THREADS: usize = 8;

pub(super) fn threads(cx: &mut Cx) -> Result<(), Fault> {
    let (backend, device) = cx.device()?;
    let rounds: usize = cx.by_effort(10, 100);
    for case in [support::doubled(1000)?, reduce::softmax([7, 33])?] {
        let name = format!("{THREADS} threads execute `{}`", case.name);
        cx.case(&name, || {
            let executable = case.compile(&backend, &device)?;
            together(|thread| {
                let own = with_seed(&case, thread)?;
                let expected = own.oracle()?.swap_remove(0);
                let inputs: Vec<&Tensor> = own.calls[0].iter().collect();
                (0..rounds).try_for_each(|_| compare(&executable.execute(&inputs)?, &expected, own.tolerance))
            })
        });
    }
    cx.case(&format!("{THREADS} threads compile and execute"), || {
        together(|thread| {
            // Each thread has programs of its own sizes.
            let own = support::doubled(10 + thread as i64)?;
            (0..rounds.div_ceil(5)).try_for_each(|_| own.run(&backend, &device))
        })
    });
    Ok(())
}

/// The case with other values.
fn with_seed(case: &Case, seed: usize) -> Result<Case, Fault> {
    let other = |t: &Tensor| Ok(filled(DType::F32, t.sizes(), 1000 + seed as u64)?);
    let inputs = case.calls[0].iter().map(other).collect::<Result<Vec<_>, Fault>>()?;
    let own = Case::new(case.name.clone(), case.program.clone(), inputs);
    Ok(own.tolerance(case.tolerance))
}

/// Starts all threads at one moment; the first fault is reported.
fn together(body: impl Fn(usize) -> Result<(), Fault> + Sync) -> Result<(), Fault> {
    let barrier = Barrier::new(THREADS);
    std::thread::scope(|scope| {
        let start = |thread| {
            let (barrier, body) = (&barrier, &body);
            scope.spawn(move || {
                barrier.wait();
                body(thread)
            })
        };
        let threads: Vec<_> = (0..THREADS).map(start).collect();
        let ended = |t: std::thread::ScopedJoinHandle<'_, Result<(), Fault>>| {
            t.join().unwrap_or_else(|_| Err(Fault::wrong("a thread panicked")))
        };
        // All threads are joined, whatever the first one reports.
        let results: Vec<_> = threads.into_iter().map(ended).collect();
        results.into_iter().collect()
    })
}
