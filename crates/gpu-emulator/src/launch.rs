//! Compiled modules and the launch of their kernels: the host's side of `emulation/launch.h`.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, Weak};

use gpu_runtime::{Arguments, Grid, Map};

use crate::EmulatorError;
use crate::driver::locked;

/// Maximum number of threads per block, as on devices.
const MAX_THREADS: u32 = 1024;
/// Bytes of a fiber's stack; untouched pages cost nothing.
const STACK: usize = 256 << 10;

/// A launch, with the layout of `FfxLaunch`.
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
    backward: u32,
    message: [u8; 236],
}

type Entry = unsafe extern "C" fn(*mut Request);

/// A loaded module. Its shared memory and its scheduler are static, so that one launch of it runs at a time.
pub(crate) struct Library {
    entry: Entry,
    running: Mutex<()>,
    // Keeps the code behind `entry` loaded.
    _library: libloading::Library,
}

impl Library {
    /// Loads a module; one that is loaded already is the same, since the system would load it into the same memory.
    pub(crate) fn open(path: &Path) -> Result<Arc<Library>, EmulatorError> {
        static OPEN: Mutex<Option<HashMap<PathBuf, Weak<Library>>>> = Mutex::new(None);
        let mut open = locked(&OPEN);
        let open = open.get_or_insert_default();
        if let Some(library) = open.get(path).and_then(Weak::upgrade) {
            return Ok(library);
        }
        let library = Library::load(path)?;
        open.retain(|_, library| library.strong_count() > 0);
        open.insert(path.to_owned(), Arc::downgrade(&library));
        Ok(library)
    }

    fn load(path: &Path) -> Result<Arc<Library>, EmulatorError> {
        let failed =
            |e: libloading::Error| EmulatorError::System { what: format!("{}: {e}", path.display()) };
        // SAFETY: this crate built the library, and loading it runs no code.
        let library = unsafe { libloading::Library::new(path) }.map_err(failed)?;
        // SAFETY: `ffx_launch` has this type in the text that `compiler` writes.
        let entry = unsafe { *library.get::<Entry>(b"ffx_launch\0").map_err(failed)? };
        Ok(Arc::new(Library { entry, running: Mutex::new(()), _library: library }))
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
    /// The name of the entry point.
    pub fn name(&self) -> &str {
        &self.name
    }
}

/// A tensor map, with the layout of `FfxTensor`.
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
    /// Rejects what a device's driver rejects.
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

/// The stacks of the fibers of one launch at a time.
struct Stacks(Vec<u64>);

/// The stacks that no launch uses: as many as have ever run at once.
static STACKS: Mutex<Vec<Stacks>> = Mutex::new(Vec::new());

impl Stacks {
    fn take() -> Stacks {
        // The system maps zeroed memory of this size page by page, as it is touched.
        locked(&STACKS).pop().unwrap_or_else(|| Stacks(vec![0; MAX_THREADS as usize * STACK / 8]))
    }

    fn give_back(self) {
        locked(&STACKS).push(self);
    }
}

/// Runs a launch to its end; `backward`: from the last block and thread to the first.
///
/// # Safety
/// The arguments match the kernel's parameters, and its addresses are memory that it may access.
pub(crate) unsafe fn run(
    function: &Function,
    grid: Grid,
    arguments: Arguments<'_>,
    backward: bool,
) -> Result<(), EmulatorError> {
    let refuse = |what: String| Err(EmulatorError::Launch { kernel: function.name.clone(), what });
    if grid.threads == 0 || grid.threads > MAX_THREADS {
        return refuse(format!("{} threads a block: 1 to {MAX_THREADS} are possible", grid.threads));
    }
    if grid.blocks.contains(&0) || grid.blocks[1..].iter().any(|n| *n > 65_535) {
        return refuse(format!("a grid of {:?} blocks", grid.blocks));
    }
    // A kernel receives the addresses of its tensor maps.
    let tensors = arguments.maps.iter().map(|map| Tensor::new(map, arguments.start(map)));
    let tensors = match tensors.collect::<Result<Vec<Tensor>, String>>() {
        Ok(tensors) => tensors,
        Err(what) => return refuse(what),
    };
    let mut words = arguments.words.to_vec();
    for (map, tensor) in arguments.maps.iter().zip(&tensors) {
        words[map.param] = std::ptr::from_ref(tensor) as u64;
    }
    let running = locked(&function.library.running);
    let mut stacks = Stacks::take();
    // The dialect requires an alignment of 1024 bytes.
    let mut dynamic = vec![[0u64; 128]; grid.shared as usize / 1024 + 2];
    let aligned = dynamic.as_mut_ptr().cast::<u8>();
    // SAFETY: the block has at least 1024 bytes more than are requested.
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
        backward: u32::from(backward),
        message: [0; 236],
    };
    // SAFETY: the request has the layout that the library reads. Stacks and dynamic shared memory have the stated sizes and are
    // this launch's alone; what is static is its own while the lock is held. The caller guarantees the arguments and their memory.
    unsafe { (function.library.entry)(&mut request) };
    drop(running);
    stacks.give_back();
    answer(function, &request)
}

/// Converts the result of a launch to an error. The numbers are those of `emulation/scheduler.h`.
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
