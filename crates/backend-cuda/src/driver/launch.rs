//! How kernels are put on the stream: one after another, or with blocks that are placed while the kernel before still runs
//! (programmatic dependent launch). Not here: which kernels gain by that (`gpu-runtime`).

use std::ffi::c_void;
use std::sync::atomic::Ordering;

use cudarc::driver::sys;
use gpu_runtime::{Arguments, GpuError, Grid};

use super::{Device, Function, error, with_pointers};
use crate::graph;

impl Device {
    /// Whether a kernel that may begin before the one before it has ended does so from now on.
    pub(crate) fn let_launches_overlap(&self, overlap: bool) {
        // What only newer cards have the others are never asked for.
        self.overlap.store(overlap && self.properties.target.features.early_launch, Ordering::Relaxed);
    }

    /// What was said last.
    pub(super) fn overlaps(&self) -> bool {
        self.overlap.load(Ordering::Relaxed)
    }

    /// A launch whose blocks may be placed early.
    ///
    /// # Safety
    /// As for [`gpu_runtime::Driver::launch`]; `pointers` are to the arguments.
    unsafe fn launch_early(
        &self,
        handle: sys::CUfunction,
        grid: Grid,
        pointers: *mut *mut c_void,
    ) -> sys::CUresult {
        let mut attribute = sys::CUlaunchAttribute {
            id: sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
            pad: [0; 4],
            value: sys::CUlaunchAttributeValue { programmaticStreamSerializationAllowed: 1 },
        };
        let configuration = sys::CUlaunchConfig {
            gridDimX: grid.blocks[0],
            gridDimY: grid.blocks[1],
            gridDimZ: grid.blocks[2],
            blockDimX: grid.threads,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: grid.shared,
            hStream: self.stream,
            attrs: &mut attribute,
            numAttrs: 1,
        };
        // SAFETY: the caller's promise; configuration and attribute live through the call.
        unsafe { sys::cuLaunchKernelEx(&configuration, handle, pointers, std::ptr::null_mut()) }
    }

    /// Puts a kernel on the stream; `early`: its blocks may be placed while the kernel before still runs.
    ///
    /// # Safety
    /// As for [`gpu_runtime::Driver::launch`].
    pub(super) unsafe fn enqueue(
        &self,
        function: &Function,
        grid: Grid,
        arguments: Arguments<'_>,
        early: bool,
    ) -> Result<(), GpuError> {
        self.enter()?;
        let handle = function.handle()?;
        let [x, y, z] = grid.blocks;
        // SAFETY: the caller's promise; the driver copies the arguments before it returns.
        let done = with_pointers(arguments, |pointers| unsafe {
            if early {
                return self.launch_early(handle, grid, pointers);
            }
            let none = std::ptr::null_mut();
            sys::cuLaunchKernel(handle, x, y, z, grid.threads, 1, 1, grid.shared, self.stream, pointers, none)
        })?;
        self.note(done.result().map_err(error("cuLaunchKernel")))?;
        if self.recorder.is_on() {
            self.recorder.note(graph::last_node(self.stream)?);
        }
        Ok(())
    }
}
