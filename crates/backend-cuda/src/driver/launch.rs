//! Launching kernels: one after another, or overlapping with the kernel before (programmatic dependent launch). Not here:
//! which kernels gain by that (`gpu-runtime`).

use std::ffi::c_void;
use std::sync::atomic::Ordering;

use cudarc::driver::sys;
use gpu_runtime::{Arguments, GpuError, Grid};

use super::{Device, Function, error, with_pointers};
use crate::graph;

impl Device {
    /// Sets whether kernels that may be launched early are.
    pub(crate) fn let_launches_overlap(&self, overlap: bool) {
        // Only devices with the feature use it.
        self.overlap.store(overlap && self.properties.target.features.early_launch, Ordering::Relaxed);
    }

    /// The present setting.
    pub(super) fn overlaps(&self) -> bool {
        self.overlap.load(Ordering::Relaxed)
    }

    /// Launches a kernel whose blocks may be scheduled before the kernel before it has ended.
    ///
    /// # Safety
    /// The conditions of [`gpu_runtime::Driver::launch`]; `pointers` point to the arguments.
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
        // SAFETY: the caller guarantees the arguments; configuration and attribute outlive the call.
        unsafe { sys::cuLaunchKernelEx(&configuration, handle, pointers, std::ptr::null_mut()) }
    }

    /// Enqueues a kernel; with `early` its blocks may be scheduled while the kernel before still runs.
    ///
    /// # Safety
    /// The conditions of [`gpu_runtime::Driver::launch`].
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
        // SAFETY: the caller guarantees the arguments, which the driver copies before it returns.
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
