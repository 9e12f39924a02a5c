//! Indices from data that fail their checks: the record that the kernels of a program leave, and the error that it becomes.
//!
//! A kernel that finds such an index touches no memory there, notes the first one in the record and ends as usual. The
//! record lies in memory that host and device share, so a call without such an index costs the host one read of a word
//! after it has waited anyway. What kernels write stands in `gpu_codegen` ([`Fault`]).
//!
//! Whoever waits for a call reports what the call found. A call that nobody waits for is reported by whoever waits next: for
//! the device, for a copy to the host, or for a later call of the program.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gpu_codegen::Fault;
use kernel_ir::{Program, Site};

use plugin_sdk::{OwnedTensor, TensorView};

use crate::{Compiled, Driver, GpuError, HostMemory};

/// What an index that failed its check means for the inputs that the call writes in place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inputs {
    /// There are none.
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

/// Memory for a [`Fault`] that kernels write and the host reads.
pub(crate) struct Record<D: Driver> {
    driver: Arc<D>,
    memory: HostMemory,
}

// SAFETY: the memory belongs to this value alone; all that is shared of it is a word that is read atomically, and the rest
// is read where no kernel writes it.
unsafe impl<D: Driver> Send for Record<D> {}
// SAFETY: as above; who reads the rest holds the device's turn.
unsafe impl<D: Driver> Sync for Record<D> {}

impl<D: Driver> Record<D> {
    pub(crate) fn new(driver: &Arc<D>) -> Result<Record<D>, GpuError> {
        let memory = driver.allocate_shared(size_of::<Fault>())?;
        Ok(Record { driver: Arc::clone(driver), memory })
    }

    /// Where kernels find it.
    pub(crate) fn address(&self) -> u64 {
        self.memory.device
    }

    fn fault(&self) -> *mut Fault {
        self.memory.host.as_ptr().cast::<Fault>()
    }

    fn claimed(&self) -> bool {
        // SAFETY: the memory lives as long as this value and begins with the word, aligned; kernels write it while the host
        // reads, which is what atomics are for.
        let word = unsafe { AtomicU32::from_ptr(&raw mut (*self.fault()).claimed) };
        word.load(Ordering::Acquire) != 0
    }

    /// What was found, of which nothing is left.
    fn take(&self) -> Fault {
        // SAFETY: the memory holds one, and no kernel runs that could write it: the caller has waited and holds the turn.
        unsafe { self.fault().replace(Fault::default()) }
    }
}

impl<D: Driver> Drop for Record<D> {
    fn drop(&mut self) {
        self.driver.free_shared(self.memory);
    }
}

/// The record of a program, and what its numbers mean.
pub(crate) struct Faults<D: Driver> {
    record: Record<D>,
    /// The site of each check of the program's kernels.
    sites: Vec<Site>,
    /// Whether the program writes inputs in place.
    writes: bool,
    /// Whether there are calls that nobody has waited for.
    unread: AtomicBool,
    /// Held by a call that is waited for, from before its first launch until its record was read: the record is its own.
    calls: Mutex<()>,
}

impl<D: Driver> Faults<D> {
    /// A record where the kernels of a program make checks; `checks` has the number of each one's site.
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

    /// Where kernels find the record.
    pub(crate) fn address(&self) -> u64 {
        self.record.address()
    }

    /// Whether a kernel that has ended found an index that fails its check.
    pub(crate) fn found(&self) -> bool {
        self.record.claimed()
    }

    /// One call at a time.
    pub(crate) fn call(&self) -> MutexGuard<'_, ()> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether there are calls that nobody has waited for.
    pub(crate) fn unread(&self) -> bool {
        self.unread.load(Ordering::Relaxed)
    }

    /// The error of what was found, which the record forgets; called where work of the device was waited for, with the
    /// device's turn held. `as_before`: nothing was written in place yet; `earlier`: a call before this one may have found it.
    ///
    /// # Errors
    /// [`GpuError::Index`]; a device that is lost.
    pub(crate) fn report(&self, as_before: bool, earlier: bool) -> Result<(), GpuError> {
        if !self.found() {
            return Ok(());
        }
        // Work that others put on the stream since then may still write.
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
        // Nothing in here panics half way.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that a call of the program is not waited for.
    pub(crate) fn note(&self, faults: &Arc<Faults<D>>) {
        if !faults.unread.swap(true, Ordering::Relaxed) {
            self.all().push(Arc::clone(faults));
        }
    }

    /// The records whose work whoever now waits for the device waits for: to be looked at afterwards, by [`report_all`].
    pub(crate) fn before_waiting(&self) -> Vec<Arc<Faults<D>>> {
        let waited = std::mem::take(&mut *self.all());
        waited.iter().for_each(|f| f.unread.store(false, Ordering::Relaxed));
        waited
    }
}

/// The first error among records whose work was waited for; the device's turn is held.
///
/// # Errors
/// [`GpuError::Index`]; a device that is lost.
pub(crate) fn report_all<D: Driver>(waited: &[Arc<Faults<D>>]) -> Result<(), GpuError> {
    let reports: Vec<_> = waited.iter().map(|f| f.report(false, true)).collect();
    reports.into_iter().collect()
}

impl<D: Driver> Compiled<D> {
    /// Runs the program and waits for its outputs. Calls of a program that checks indices run one after another.
    ///
    /// # Errors
    /// As for [`Compiled::execute`], and [`GpuError::Index`] where an index from data is out of bounds: of this call, or of
    /// an earlier one that nobody waited for.
    pub fn call(&self, inputs: &[TensorView<'_>]) -> Result<Vec<OwnedTensor>, GpuError> {
        let Some(faults) = self.faults() else {
            let outputs = self.execute(inputs)?;
            self.memory().driver().synchronize()?;
            return Ok(outputs);
        };
        let _own = faults.call();
        let earlier = faults.unread();
        let outputs = self.run(inputs);
        let waited = self.memory().driver().synchronize();
        if faults.found() {
            let _guard = self.memory().exclusive();
            faults.report(false, earlier)?;
        }
        waited.and(outputs)
    }
}
