//! A compiled module and the launch of its kernels: the host's side of `emulation/launch.h`.

use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use gpu_runtime::{Arguments, Grid, Map};

use crate::EmulatorError;

/// Threads that a block has at most, as on the devices.
const MAX_THREADS: u32 = 1024;
/// Bytes of a fiber's stack; pages that are not touched cost nothing.
const STACK: usize = 256 << 10;

/// Laid out as `FfxLaunch`.
#[repr(C)]
struct Request {
    grid: [u32; 3],
    threads: u32,
    shared: u32,
    entry: u32,
    arguments: *const u64,
    stacks: *mut u8,
    stack_bytes: u64,
    dynamic: *mut u8,
    error: u32,
    block: [u32; 3],
    thread: u32,
    message: [u8; 236],
}

type Entry = unsafe extern "C" fn(*mut Request);

/// A loaded module.
pub(crate) struct Library {
    entry: Entry,
    // Kept for `entry`; never moved out.
    _library: libloading::Library,
}

impl Library {
    pub(crate) fn open(path: &Path) -> Result<Arc<Library>, EmulatorError> {
        let failed =
            |e: libloading::Error| EmulatorError::System { what: format!("{}: {e}", path.display()) };
        // SAFETY: a library that this crate built; loading it runs no code.
        let library = unsafe { libloading::Library::new(path) }.map_err(failed)?;
        // SAFETY: `ffx_launch` has this type, by the text that `compiler` writes.
        let entry = unsafe { *library.get::<Entry>(b"ffx_launch\0").map_err(failed)? };
        Ok(Arc::new(Library { entry, _library: library }))
    }
}

/// A kernel that can be launched.
#[derive(Clone)]
pub struct Function {
    library: Arc<Library>,
    entry: u32,
    name: String,
}

impl Function {
    pub(crate) fn new(library: &Arc<Library>, entry: u32, name: String) -> Function {
        Function { library: Arc::clone(library), entry, name }
    }
    /// The entry point.
    pub fn name(&self) -> &str {
        &self.name
    }
}

/// A tensor map, laid out as `FfxTensor`.
#[repr(C)]
struct Tensor {
    address: u64,
    sizes: [u64; 5],
    strides: [u64; 5],
    window: [u32; 5],
    rank: u32,
    width: u32,
}

impl Tensor {
    /// What the driver of a device refuses is refused.
    fn new(map: &Map, address: u64) -> Result<Tensor, String> {
        let all = |list: &[u64]| list[..map.rank].iter().all(|n| *n > 0 && *n <= 1 << 32);
        let strides = &map.strides[1..map.rank];
        if !address.is_multiple_of(16) || strides.iter().any(|s| s % 16 != 0 || *s >= 1 << 40) {
            return Err(format!(
                "a tensor map at {address:#x} with strides of {strides:?} bytes: not aligned to 16"
            ));
        }
        if !all(&map.sizes) || map.window[..map.rank].iter().any(|n| *n == 0 || *n > 256) {
            return Err(format!("a tensor map of sizes {:?}, window {:?}", map.sizes, map.window));
        }
        Ok(Tensor {
            address,
            sizes: map.sizes,
            strides: map.strides,
            window: map.window,
            rank: map.rank as u32,
            width: map.dtype.size() as u32,
        })
    }
}

/// Stacks of fibers. One launch runs at a time: shared memory is static in the libraries.
struct Stacks(Vec<u64>);

fn stacks() -> &'static Mutex<Stacks> {
    static STACKS: OnceLock<Mutex<Stacks>> = OnceLock::new();
    // Zeroed memory of this size comes from the system page by page as it is touched.
    STACKS.get_or_init(|| Mutex::new(Stacks(vec![0; MAX_THREADS as usize * STACK / 8])))
}

/// Runs a launch to its end.
///
/// # Safety
/// The arguments are what the kernel takes, and its addresses are memory that it may use.
pub(crate) unsafe fn run(
    function: &Function,
    grid: Grid,
    arguments: Arguments<'_>,
) -> Result<(), EmulatorError> {
    let refuse = |what: String| Err(EmulatorError::Launch { kernel: function.name.clone(), what });
    if grid.threads == 0 || grid.threads > MAX_THREADS {
        return refuse(format!("{} threads a block: 1 to {MAX_THREADS} are possible", grid.threads));
    }
    if grid.blocks.contains(&0) || grid.blocks[1..].iter().any(|n| *n > 65_535) {
        return refuse(format!("a grid of {:?} blocks", grid.blocks));
    }
    // A kernel gets its tensor maps by their address.
    let tensors = arguments.maps.iter().map(|map| Tensor::new(map, arguments.start(map)));
    let tensors = match tensors.collect::<Result<Vec<Tensor>, String>>() {
        Ok(tensors) => tensors,
        Err(what) => return refuse(what),
    };
    let mut words = arguments.words.to_vec();
    for (map, tensor) in arguments.maps.iter().zip(&tensors) {
        words[map.param] = std::ptr::from_ref(tensor) as u64;
    }
    let mut stacks = stacks().lock().unwrap_or_else(PoisonError::into_inner);
    // Aligned to 1024 bytes, as the dialect promises.
    let mut dynamic = vec![[0u64; 128]; grid.shared as usize / 1024 + 2];
    let aligned = dynamic.as_mut_ptr().cast::<u8>();
    // SAFETY: the block has 1024 bytes more than are asked for.
    let aligned = unsafe { aligned.add(aligned.align_offset(1024)) };
    let mut request = Request {
        grid: grid.blocks,
        threads: grid.threads,
        shared: grid.shared,
        entry: function.entry,
        arguments: words.as_ptr(),
        stacks: stacks.0.as_mut_ptr().cast(),
        stack_bytes: STACK as u64,
        dynamic: aligned,
        error: 0,
        block: [0; 3],
        thread: 0,
        message: [0; 236],
    };
    // SAFETY: the request is laid out as the library reads it; stacks and shared memory are as large as it says and used
    // by this launch alone while the lock is held; the rest is the caller's promise.
    unsafe { (function.library.entry)(&mut request) };
    answer(function, &request)
}

/// The error that a launch ended with. The numbers are those of `emulation/scheduler.h`.
fn answer(function: &Function, request: &Request) -> Result<(), EmulatorError> {
    let end = request.message.iter().position(|b| *b == 0).unwrap_or(request.message.len());
    let what = String::from_utf8_lossy(&request.message[..end]).into_owned();
    let (kernel, block, thread) = (function.name.clone(), request.block, request.thread);
    Err(match request.error {
        0 => return Ok(()),
        1 => EmulatorError::Diverged { kernel, block, thread, what },
        2 => EmulatorError::Deadlock { kernel, block, what },
        _ => EmulatorError::Illegal { kernel, block, thread, what },
    })
}
