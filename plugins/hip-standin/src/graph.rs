//! Graphs: work that a stream recorded, made ready and put on a stream as often as wanted, with arguments that may change.

use std::ffi::{c_char, c_int, c_uint, c_void};

use gpu_runtime::Grid;

use crate::device::{CAPTURE_UNSUPPORTED, INVALID_HANDLE, INVALID_VALUE};
use crate::module::launch;
use crate::state::{Opaque, give, opaque, with};
use crate::stream::Work;

/// Recorded work.
pub(crate) struct Graph(Vec<Work>);

/// The same, ready to launch.
pub(crate) struct Executable(Vec<Work>);

/// `hipKernelNodeParams`.
#[repr(C)]
struct KernelNode {
    block: [c_uint; 3],
    extra: *mut Opaque,
    function: Opaque,
    grid: [c_uint; 3],
    arguments: *mut Opaque,
    shared: c_uint,
}

#[unsafe(no_mangle)]
extern "C" fn hipStreamBeginCapture(stream: Opaque, _mode: c_int) -> c_int {
    with(|state| {
        let stream = state.stream(stream)?;
        if stream.recording.is_some() {
            return Err(CAPTURE_UNSUPPORTED);
        }
        stream.recording = Some(Vec::new());
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipStreamEndCapture(stream: Opaque, graph: *mut Opaque) -> c_int {
    with(|state| {
        let work = state.stream(stream)?.recording.take().ok_or(INVALID_VALUE)?;
        let handle = state.handle();
        state.graphs.insert(handle, Graph(work));
        // SAFETY: the caller's pointer.
        unsafe { give(graph, opaque(handle)) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipStreamGetCaptureInfo_v2(
    stream: Opaque,
    status: *mut c_int,
    _id: *mut u64,
    _graph: *mut Opaque,
    nodes: *mut *const Opaque,
    count: *mut usize,
) -> c_int {
    with(|state| {
        let stream = state.stream(stream)?;
        let there = stream.recording.as_ref().map_or(0, |work| work.len().min(1));
        // SAFETY: the caller's pointers; the node stays where it is as long as the stream is there.
        unsafe {
            give(status, c_int::from(stream.recording.is_some()))?;
            give(count, there)?;
            give(nodes, (&raw const *stream.last).cast::<Opaque>())
        }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipGraphInstantiate(
    executable: *mut Opaque,
    graph: Opaque,
    _node: *mut Opaque,
    _log: *mut c_char,
    _bytes: usize,
) -> c_int {
    with(|state| {
        let work = state.graphs.get(&(graph as usize)).ok_or(INVALID_HANDLE)?.0.clone();
        let handle = state.handle();
        state.executables.insert(handle, Executable(work));
        // SAFETY: the caller's pointer.
        unsafe { give(executable, opaque(handle)) }
    })
}

#[unsafe(no_mangle)]
extern "C" fn hipGraphLaunch(executable: Opaque, stream: Opaque) -> c_int {
    with(|state| {
        // As it is now: what is told later holds from the next launch on.
        let work = state.executables.get(&(executable as usize)).ok_or(INVALID_HANDLE)?.0.clone();
        work.into_iter().try_for_each(|work| state.put(stream, work))
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipGraphExecKernelNodeSetParams(
    executable: Opaque,
    node: Opaque,
    parameters: *const c_void,
) -> c_int {
    // SAFETY: the caller's struct, laid out as in HIP.
    let told = unsafe { &*parameters.cast::<KernelNode>() };
    with(|state| {
        let kernel = state.kernels.get(&(told.function as usize)).ok_or(INVALID_HANDLE)?;
        let grid = Grid { blocks: told.grid, threads: told.block[0], shared: told.shared };
        // SAFETY: the caller's promise.
        let work = unsafe { launch(kernel, grid, told.arguments)? };
        let executable = state.executables.get_mut(&(executable as usize)).ok_or(INVALID_HANDLE)?;
        let there = (node as usize).checked_sub(1).and_then(|n| executable.0.get_mut(n));
        match there {
            Some(there @ Work::Launch { .. }) => *there = work,
            _ => return Err(INVALID_VALUE),
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn hipGraphExecDestroy(executable: Opaque) -> c_int {
    with(|state| state.executables.remove(&(executable as usize)).map(|_| ()).ok_or(INVALID_HANDLE))
}

#[unsafe(no_mangle)]
extern "C" fn hipGraphDestroy(graph: Opaque) -> c_int {
    with(|state| state.graphs.remove(&(graph as usize)).map(|_| ()).ok_or(INVALID_HANDLE))
}
