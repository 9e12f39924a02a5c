//! CUDA graphs: work of a stream, captured and launched as one.

use std::ffi::c_void;
use std::ptr::{null, null_mut};

use cudarc::driver::sys;
use gpu_runtime::{Arguments, GpuError, Grid, Recorder, Recording};

use crate::driver::{Function, error};

/// The node of a recorded launch: a handle into its graph.
#[derive(Clone, Copy)]
pub(crate) struct Node(sys::CUgraphNode);

// SAFETY: node handles may be used by any thread that holds the graph or is recording it.
unsafe impl Send for Node {}

/// An executable graph, with its kernel nodes in the order of their launches.
pub(crate) struct Graph {
    context: sys::CUcontext,
    stream: sys::CUstream,
    graph: sys::CUgraph,
    executable: sys::CUgraphExec,
    nodes: Vec<Node>,
}

// SAFETY: graph handles are valid in every thread; holders of the graph use it one after another.
unsafe impl Send for Graph {}
// SAFETY: holders of the graph launch and update it one after another.
unsafe impl Sync for Graph {}

/// Begins to capture the work of a stream.
pub(crate) fn begin(stream: sys::CUstream) -> Result<(), GpuError> {
    // Other threads are not restricted: what is captured allocates nothing.
    let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
    // SAFETY: the caller's stream is valid.
    unsafe { sys::cuStreamBeginCapture_v2(stream, mode) }.result().map_err(error("cuStreamBeginCapture"))
}

/// Ends the capture; null where nothing could be captured.
pub(crate) fn end(stream: sys::CUstream) -> Result<sys::CUgraph, GpuError> {
    let mut graph = null_mut();
    // SAFETY: the caller's stream is valid, and the handle is written to a local.
    unsafe { sys::cuStreamEndCapture(stream, &mut graph) }.result().map_err(error("cuStreamEndCapture"))?;
    Ok(graph)
}

/// The node that was captured last.
pub(crate) fn last_node(stream: sys::CUstream) -> Result<Node, GpuError> {
    let mut status = sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
    let mut nodes: *const sys::CUgraphNode = null();
    // The edge data is requested too: without it the call fails for overlapping launches.
    let mut edges: *const sys::CUgraphEdgeData = null();
    let mut count = 0usize;
    // SAFETY: the caller's stream is valid, and results are written to locals; unneeded ones are null.
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
    // SAFETY: the driver reports at least one node; the pointer is valid until the next call on the stream.
    Ok(Node(unsafe { *nodes }))
}

impl Graph {
    /// Instantiates a captured graph.
    pub(crate) fn new(
        context: sys::CUcontext,
        stream: sys::CUstream,
        graph: sys::CUgraph,
        nodes: Vec<Node>,
    ) -> Result<Graph, GpuError> {
        // The graph is owned first, so that it is destroyed where it cannot be instantiated.
        let mut this = Graph { context, stream, graph, executable: null_mut(), nodes };
        // SAFETY: the graph was just captured, and the handle is written to a field.
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
        // SAFETY: the executable is alive; its holder guarantees the recorded addresses.
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
            // SAFETY: the node belongs to this graph, and the driver copies the arguments before it returns.
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
        // SAFETY: the driver made both handles, which are destroyed once; it waits for pending launches.
        unsafe {
            if !self.executable.is_null() {
                let _ = sys::cuGraphExecDestroy(self.executable);
            }
            let _ = sys::cuGraphDestroy(self.graph);
        }
    }
}
