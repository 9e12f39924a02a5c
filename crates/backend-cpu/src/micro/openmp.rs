//! The OpenMP runtime that the process has loaded already, if it has one (PyTorch brings one along): its threads then help with loops.
//!
//! Threads of an OpenMP runtime poll for milliseconds after a parallel region before they sleep. Threads of one's own would share the
//! processors with them meanwhile, and so take a multiple of the time right after an operator of PyTorch. Nothing is loaded here, and no code
//! needs OpenMP.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::OnceLock;

/// Code of a region: `f(data)` on each of its threads.
type Region = unsafe extern "C" fn(*mut c_void);

/// GCC's runtime.
pub(crate) struct OpenMp {
    start: unsafe extern "C" fn(Region, *mut c_void, c_uint),
    end: unsafe extern "C" fn(),
    number: unsafe extern "C" fn() -> c_int,
    pause: unsafe extern "C" fn(c_int) -> c_int,
}

static FOUND: OnceLock<Option<OpenMp>> = OnceLock::new();

impl OpenMp {
    /// The process's runtime, as far as it was loaded when this was called for the first time.
    pub(crate) fn loaded() -> Option<&'static OpenMp> {
        FOUND.get_or_init(find).as_ref()
    }

    /// Runs `f(data)` on `threads - 1` threads of the runtime, if it gives so many; returns at once.
    ///
    /// # Safety
    /// `f` does not unwind, and `data` is good for it on any thread until [`OpenMp::end`], which this thread calls next.
    pub(crate) unsafe fn start(&self, f: Region, data: *mut c_void, threads: usize) {
        // SAFETY: the function's signature in the runtime's ABI; the caller's promise.
        unsafe { (self.start)(f, data, c_uint::try_from(threads).unwrap_or(1)) }
    }

    /// Waits for the threads of the region that this thread started.
    ///
    /// # Safety
    /// This thread has started one and not ended it.
    pub(crate) unsafe fn end(&self) {
        // SAFETY: the function's signature in the runtime's ABI; the caller's promise.
        unsafe { (self.end)() }
    }

    /// Ends the threads that wait for the calling thread's next region, which makes new ones, where a call has used them.
    pub(crate) fn release() {
        /// Resources may be kept; all are ended either way.
        const SOFT: c_int = 1;
        if let Some(Some(openmp)) = FOUND.get() {
            // SAFETY: the function's signature in the runtime's ABI; within a region it does nothing.
            unsafe { (openmp.pause)(SOFT) };
        }
    }

    /// The number of the calling thread in its region; that which started it has 0.
    pub(crate) fn thread(&self) -> usize {
        // SAFETY: the function's signature in the runtime's ABI; any thread may call it.
        usize::try_from(unsafe { (self.number)() }).unwrap_or(0)
    }
}

#[cfg(target_os = "linux")]
fn find() -> Option<OpenMp> {
    use libloading::os::unix::{Library, RTLD_LAZY, RTLD_LOCAL};

    /// Gives a library that the process has, and loads none.
    const RTLD_NOLOAD: i32 = 4;

    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let paths = maps.lines().filter_map(|line| line.find('/').map(|at| &line[at..]));
    let is_runtime = |path: &&str| path.rsplit('/').next().is_some_and(|file| file.starts_with("libgomp"));
    let path = paths.into_iter().find(is_runtime)?;
    // SAFETY: the library is in the process already, so no code of it runs here. The signatures are those of its ABI, which it
    // keeps for programs of older compilers; the library is never unloaded.
    unsafe {
        let library = Library::open(Some(path), RTLD_NOLOAD | RTLD_LAZY | RTLD_LOCAL).ok()?;
        let start = *library.get(b"GOMP_parallel_start\0").ok()?;
        let end = *library.get(b"GOMP_parallel_end\0").ok()?;
        let number = *library.get(b"omp_get_thread_num\0").ok()?;
        let pause = *library.get(b"omp_pause_resource_all\0").ok()?;
        std::mem::forget(library);
        Some(OpenMp { start, end, number, pause })
    }
}

#[cfg(not(target_os = "linux"))]
fn find() -> Option<OpenMp> {
    None
}
