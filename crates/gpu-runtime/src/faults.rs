//! Out-of-bounds indices from data: the record that the kernels of a program write, and the error that it becomes.
//!
//! A kernel that finds such an index accesses no memory there, records the first one and ends as usual. The record is in
//! memory shared by host and device, so a call without a fault costs the host one read of a word after a wait that happens
//! anyway. The layout of the record is in `gpu_codegen` ([`Fault`]).
//!
//! Whoever waits for a call reports its fault. The fault of a call that nobody waits for is reported by the next wait: for
//! the device, for a copy to the host, or for a later call of the program.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gpu_codegen::Fault;
use kernel_ir::{Program, Site};

use plugin_sdk::{OwnedTensor, TensorView};

use crate::{Compiled, Driver, GpuError, HostMemory};

/// What a fault means for the inputs that the call writes in place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inputs {
    /// There are no such inputs.
    None,
    /// Nothing was written back to them.
    AsBefore,
    /// Kernels may have written some of their elements.
    MayBeWritten,
}

impl fmt::Display for Inputs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Inputs::None => "",
            Inputs::AsBefore => "; the inputs that the call writes in place are as they were before",
            Inputs::MayBeWritten => "; the inputs that the call writes in place may be partly written",
        })
    }
}

/// Memory for a [`Fault`], which kernels write and the host reads.
pub(crate) struct Record<D: Driver> {
    driver: Arc<D>,
    memory: HostMemory,
}

// SAFETY: the memory is owned by this value. Concurrent access is limited to `claimed`, which is read atomically; the
// other fields are read only while no kernel writes them.
unsafe impl<D: Driver> Send for Record<D> {}
// SAFETY: shared references read `claimed` atomically; the other fields are read under the device's lock while no kernel
// runs.
unsafe impl<D: Driver> Sync for Record<D> {}

impl<D: Driver> Record<D> {
    pub(crate) fn new(driver: &Arc<D>) -> Result<Record<D>, GpuError> {
        let memory = driver.allocate_shared(size_of::<Fault>())?;
        Ok(Record { driver: Arc::clone(driver), memory })
    }

    /// The address of the record for kernels.
    pub(crate) fn address(&self) -> u64 {
        self.memory.device
    }

    fn fault(&self) -> *mut Fault {
        self.memory.host.as_ptr().cast::<Fault>()
    }

    fn claimed(&self) -> bool {
        // SAFETY: the memory lives as long as this value and begins with the aligned word. Kernels may write it while the
        // host reads, hence the atomic access.
        let word = unsafe { AtomicU32::from_ptr(&raw mut (*self.fault()).claimed) };
        word.load(Ordering::Acquire) != 0
    }

    /// Returns the fault and clears the record.
    fn take(&self) -> Fault {
        // SAFETY: the memory holds an initialized `Fault`, and no kernel writes it: the caller has waited and holds the
        // device's lock.
        unsafe { self.fault().replace(Fault::default()) }
    }
}

impl<D: Driver> Drop for Record<D> {
    fn drop(&mut self) {
        self.driver.free_shared(self.memory);
    }
}

/// The fault record of a program, with the sites of its checks.
pub(crate) struct Faults<D: Driver> {
    record: Record<D>,
    /// The site of each check of the program's kernels.
    sites: Vec<Site>,
    /// Whether the program writes inputs in place.
    writes: bool,
    /// Whether there are calls that nobody has waited for.
    unread: AtomicBool,
    /// Held by a call that is waited for, from before its first launch until its record is read, so that the record
    /// belongs to that call.
    calls: Mutex<()>,
}

impl<D: Driver> Faults<D> {
    /// Makes a record where the kernels of a program check indices; `checks` has the site number of each check.
    pub(crate) fn of(
        driver: &Arc<D>,
        program: &Program,
        checks: &[u32],
    ) -> Result<Option<Arc<Faults<D>>>, GpuError> {
        if checks.is_empty() {
            return Ok(None);
        }
        let site = |n: &u32| program.sites.get(*n as usize).cloned();
        let sites = checks.iter().map(site).collect::<Option<Vec<Site>>>();
        let sites = sites.ok_or_else(|| GpuError::Malformed("a check without a site".into()))?;
        Ok(Some(Arc::new(Faults {
            record: Record::new(driver)?,
            sites,
            writes: program.inputs.iter().any(|i| i.written),
            unread: AtomicBool::new(false),
            calls: Mutex::new(()),
        })))
    }

    /// The address of the record for kernels.
    pub(crate) fn address(&self) -> u64 {
        self.record.address()
    }

    /// Whether a finished kernel has found a fault.
    pub(crate) fn found(&self) -> bool {
        self.record.claimed()
    }

    /// Locks out other calls that are waited for.
    pub(crate) fn call(&self) -> MutexGuard<'_, ()> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether there are calls that nobody has waited for.
    pub(crate) fn unread(&self) -> bool {
        self.unread.load(Ordering::Relaxed)
    }

    /// Returns the recorded fault as an error and clears the record. The caller has waited for the device's work and holds
    /// the device's lock. `as_before`: nothing was written in place yet; `earlier`: an earlier call may have found it.
    ///
    /// # Errors
    /// [`GpuError::Index`] for a fault, or a lost device.
    pub(crate) fn report(&self, as_before: bool, earlier: bool) -> Result<(), GpuError> {
        if !self.found() {
            return Ok(());
        }
        // Work that others have enqueued since may still write the record.
        self.record.driver.synchronize()?;
        let Fault { check, index, size, .. } = self.record.take();
        let Some(site) = self.sites.get(check as usize) else {
            return Err(GpuError::Malformed(format!("check {check} of {} failed", self.sites.len())));
        };
        let inputs = match (self.writes, as_before) {
            (false, _) => Inputs::None,
            (true, true) => Inputs::AsBefore,
            (true, false) => Inputs::MayBeWritten,
        };
        Err(GpuError::Index { site: Box::new(site.clone()), index, size, inputs, earlier })
    }
}

/// The records of programs with calls that nobody has waited for.
pub(crate) struct Unread<D: Driver>(Mutex<Vec<Arc<Faults<D>>>>);

impl<D: Driver> Default for Unread<D> {
    fn default() -> Self {
        Unread(Mutex::default())
    }
}

impl<D: Driver> Unread<D> {
    fn all(&self) -> MutexGuard<'_, Vec<Arc<Faults<D>>>> {
        // No code that holds this lock can panic between two writes.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that a call of the program is not waited for.
    pub(crate) fn note(&self, faults: &Arc<Faults<D>>) {
        if !faults.unread.swap(true, Ordering::Relaxed) {
            self.all().push(Arc::clone(faults));
        }
    }

    /// The records of the calls that a wait for the device covers; [`report_all`] reads them after the wait.
    pub(crate) fn before_waiting(&self) -> Vec<Arc<Faults<D>>> {
        let waited = std::mem::take(&mut *self.all());
        waited.iter().for_each(|f| f.unread.store(false, Ordering::Relaxed));
        waited
    }
}

/// Returns the first fault among records whose work was waited for. The device's lock is held.
///
/// # Errors
/// [`GpuError::Index`] for a fault, or a lost device.
pub(crate) fn report_all<D: Driver>(waited: &[Arc<Faults<D>>]) -> Result<(), GpuError> {
    let reports: Vec<_> = waited.iter().map(|f| f.report(false, true)).collect();
    reports.into_iter().collect()
}

impl<D: Driver> Compiled<D> {
    /// Runs the program and waits for its outputs. Calls of a program that checks indices run one after another.
    ///
    /// # Errors
    /// The errors of [`Compiled::execute`], and [`GpuError::Index`] where an index from data of this call, or of an
    /// earlier one that nobody waited for, is out of bounds.
    pub fn call(&self, inputs: &[TensorView<'_>]) -> Result<Vec<OwnedTensor>, GpuError> {
        let Some(faults) = self.faults() else {
            let outputs = self.execute(inputs)?;
            self.memory().driver().synchronize()?;
            self.check_ranks()?;
            return Ok(outputs);
        };
        let _own = faults.call();
        let earlier = faults.unread();
        let outputs = self.run(self.memory().driver().stream(), inputs);
        let waited = self.memory().driver().synchronize();
        if faults.found() {
            let _guard = self.memory().exclusive();
            faults.report(false, earlier)?;
        }
        waited.and_then(|()| self.check_ranks()).and(outputs)
    }
}
