//! CUDA graphs: what is put on a stream, captured, and launched as one.

use std::ffi::c_void;
use std::ptr::{null, null_mut};

use cudarc::driver::sys;
use gpu_runtime::{Arguments, GpuError, Grid, Recorder, Recording};

use crate::driver::{Function, error};

/// The node of a launch that was recorded: a handle of the graph that it is in.
#[derive(Clone, Copy)]
pub(crate) struct Node(sys::CUgraphNode);

// SAFETY: a handle of the driver's, which any thread may use that holds the graph or is recording it.
unsafe impl Send for Node {}

/// A graph that can be launched, with its kernels' nodes in the order of their launches.
pub(crate) struct Graph {
    context: sys::CUcontext,
    stream: sys::CUstream,
    graph: sys::CUgraph,
    executable: sys::CUgraphExec,
    nodes: Vec<Node>,
}

// SAFETY: handles of the driver's; those who hold the graph use it one after another.
unsafe impl Send for Graph {}
// SAFETY: as above.
unsafe impl Sync for Graph {}

/// Begins to record what is put on a stream.
pub(crate) fn begin(stream: sys::CUstream) -> Result<(), GpuError> {
    // Other threads of the process may do as they like: what is recorded allocates nothing.
    let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
    // SAFETY: the stream is the caller's.
    unsafe { sys::cuStreamBeginCapture_v2(stream, mode) }.result().map_err(error("cuStreamBeginCapture"))
}

/// Ends recording; null where nothing could be recorded.
pub(crate) fn end(stream: sys::CUstream) -> Result<sys::CUgraph, GpuError> {
    let mut graph = null_mut();
    // SAFETY: the stream is the caller's; the handle is written to a local.
    unsafe { sys::cuStreamEndCapture(stream, &mut graph) }.result().map_err(error("cuStreamEndCapture"))?;
    Ok(graph)
}

/// The node that was recorded last.
pub(crate) fn last_node(stream: sys::CUstream) -> Result<Node, GpuError> {
    let mut status = sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
    let mut nodes: *const sys::CUgraphNode = null();
    // Asked for as well: without it launches that may overlap are an error here.
    let mut edges: *const sys::CUgraphEdgeData = null();
    let mut count = 0usize;
    // SAFETY: the stream is the caller's, results are written to locals; what is not asked for is null.
    unsafe {
        sys::cuStreamGetCaptureInfo_v3(
            stream,
            &mut status,
            null_mut(),
            null_mut(),
            &mut nodes,
            &mut edges,
            &mut count,
        )
    }
    .result()
    .map_err(error("cuStreamGetCaptureInfo"))?;
    if count != 1 || nodes.is_null() {
        return Err(GpuError::Driver {
            call: "cuStreamGetCaptureInfo",
            what: format!("a launch was recorded as {count} nodes"),
        });
    }
    // SAFETY: the driver says that there is one; it stays valid until the next call on the stream.
    Ok(Node(unsafe { *nodes }))
}

impl Graph {
    /// Makes a recorded graph ready to launch.
    pub(crate) fn new(
        context: sys::CUcontext,
        stream: sys::CUstream,
        graph: sys::CUgraph,
        nodes: Vec<Node>,
    ) -> Result<Graph, GpuError> {
        // Owned first: where it cannot be instantiated it is destroyed.
        let mut this = Graph { context, stream, graph, executable: null_mut(), nodes };
        // SAFETY: the graph was just recorded; the handle is written to a field.
        unsafe { sys::cuGraphInstantiateWithFlags(&mut this.executable, graph, 0) }
            .result()
            .map_err(error("cuGraphInstantiate"))?;
        // SAFETY: the executable was just made.
        unsafe { sys::cuGraphUpload(this.executable, stream) }.result().map_err(error("cuGraphUpload"))?;
        Ok(this)
    }

    fn enter(&self) -> Result<(), GpuError> {
        // SAFETY: the context is retained for the life of the process.
        unsafe { sys::cuCtxSetCurrent(self.context) }.result().map_err(error("cuCtxSetCurrent"))
    }
}

impl Recording<Function> for Graph {
    fn launch(&self) -> Result<(), GpuError> {
        self.enter()?;
        // SAFETY: the executable lives; its addresses are its holder's affair.
        unsafe { sys::cuGraphLaunch(self.executable, self.stream) }.result().map_err(error("cuGraphLaunch"))
    }

    unsafe fn update(
        &self,
        n: usize,
        function: &Function,
        grid: Grid,
        arguments: Arguments<'_>,
    ) -> Result<(), GpuError> {
        self.enter()?;
        let Node(node) = *Recorder::nth(&self.nodes, n)?;
        crate::driver::with_pointers(arguments, |pointers| {
            let parameters = sys::CUDA_KERNEL_NODE_PARAMS {
                func: function.handle()?,
                gridDimX: grid.blocks[0],
                gridDimY: grid.blocks[1],
                gridDimZ: grid.blocks[2],
                blockDimX: grid.threads,
                blockDimY: 1,
                blockDimZ: 1,
                sharedMemBytes: grid.shared,
                kernelParams: pointers.cast::<*mut c_void>(),
                extra: null_mut(),
                kern: null_mut(),
                ctx: null_mut(),
            };
            // SAFETY: the node is of this graph; the driver copies the arguments before it returns.
            unsafe { sys::cuGraphExecKernelNodeSetParams_v2(self.executable, node, &parameters) }
                .result()
                .map_err(error("cuGraphExecKernelNodeSetParams"))
        })?
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        if self.enter().is_err() {
            return;
        }
        // SAFETY: made by the driver, destroyed once; it waits for launches under way.
        unsafe {
            if !self.executable.is_null() {
                let _ = sys::cuGraphExecDestroy(self.executable);
            }
            let _ = sys::cuGraphDestroy(self.graph);
        }
    }
}
