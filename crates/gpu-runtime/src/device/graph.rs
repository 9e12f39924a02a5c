//! Device graphs: what is put on the stream, captured, and launched as one.

use std::sync::Arc;

use super::{Function, Handle, Vendor, with_pointers};
use crate::{Arguments, GpuError, Grid, Recorder, Recording};

/// A graph that can be launched, with its kernels' nodes in the order of their launches. Those who hold it use it one after
/// another.
pub(super) struct Graph<V: Vendor> {
    vendor: Arc<V>,
    graph: Handle,
    executable: Handle,
    nodes: Vec<Handle>,
}

impl<V: Vendor> Graph<V> {
    /// Makes a recorded graph ready to launch.
    pub(super) fn new(vendor: &Arc<V>, graph: Handle, nodes: Vec<Handle>) -> Result<Graph<V>, GpuError> {
        // Owned first: where it cannot be instantiated it is destroyed.
        let mut this = Graph { vendor: Arc::clone(vendor), graph, executable: Handle::NULL, nodes };
        this.executable = vendor.instantiate(graph)?;
        Ok(this)
    }
}

impl<V: Vendor> Recording<Function> for Graph<V> {
    fn launch(&self) -> Result<(), GpuError> {
        self.vendor.enter()?;
        self.vendor.launch_graph(self.executable)
    }

    unsafe fn update(
        &self,
        n: usize,
        function: &Function,
        grid: Grid,
        arguments: Arguments<'_>,
    ) -> Result<(), GpuError> {
        self.vendor.enter()?;
        let node = *Recorder::nth(&self.nodes, n)?;
        let function = function.handle(&*self.vendor)?;
        // SAFETY: the caller's promise; the node is of this graph.
        with_pointers(&*self.vendor, arguments, |pointers| unsafe {
            self.vendor.set_arguments(self.executable, node, function, grid, pointers)
        })?
    }
}

impl<V: Vendor> Drop for Graph<V> {
    fn drop(&mut self) {
        if self.vendor.enter().is_ok() {
            self.vendor.destroy_graph(self.graph, self.executable);
        }
    }
}
