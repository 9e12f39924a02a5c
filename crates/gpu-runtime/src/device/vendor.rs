//! What a vendor adds to its driver's [`Calls`] to be a backend: how devices are found, its compiler, its libraries, its options.

use gpu_codegen::Target;
use kernel_ir::{Program, Step};
use plugin_sdk::{CollectiveEngine, DeviceInfo, OptionSpec, PluginError};

use super::{Calls, Device};
use crate::{Candidate, CompilationRequest, GpuError, Module, SharedCache};

/// A vendor's GPUs.
pub trait Vendor: Calls {
    /// The name by which a user picks the backend.
    const NAME: &'static str;
    /// The version of the backend.
    const VERSION: &'static str;
    /// One line for listings.
    const SUMMARY: &'static str;
    /// The DLPack type of its devices.
    const DEVICE_TYPE: i32;
    /// What was begun before the device was open.
    type Background;
    /// Makes the device that was current in a thread current again when it is dropped.
    type Caller;

    /// What is current in this thread.
    fn caller() -> Self::Caller;
    /// The options of a compilation that other vendors do not have.
    fn options() -> Vec<OptionSpec> {
        Vec::new()
    }
    /// All devices in the order of their ordinals, also those that cannot be used, with the reason.
    fn devices() -> Vec<DeviceInfo>;
    /// Opens a device with a stream of its own; `cache` is where its libraries keep what they found.
    ///
    /// # Errors
    /// No such device, a library that is missing.
    fn open(ordinal: i32, cache: &SharedCache) -> Result<Self, GpuError>;
    /// Takes back a device that was lost: everything on it is gone, and so it may be opened anew.
    ///
    /// # Errors
    /// The device stays lost.
    fn reset(ordinal: i32) -> Result<(), GpuError>;
    /// The engine that exchanges data between ranks, where there is one.
    fn collectives() -> Option<Box<dyn CollectiveEngine>> {
        None
    }
    /// Begins what takes long and does not need the open device.
    ///
    /// # Errors
    /// No such device.
    fn begin(request: &CompilationRequest<'_>, cache: &SharedCache) -> Result<Self::Background, PluginError>;
    /// The device as this compilation wants it; what was begun goes on.
    ///
    /// # Errors
    /// An option that means nothing.
    fn prepare(
        device: &Device<Self>,
        background: Self::Background,
        request: &CompilationRequest<'_>,
    ) -> Result<(), PluginError>;

    /// What code is made for, by the compiler's name.
    fn architecture(&self) -> &str;
    /// What kernels are made for, without options.
    fn target(&self) -> Target;
    /// What timings depend on beside kernels and sizes: the device's model, versions of driver and libraries.
    fn identity(&self) -> String;
    /// On what machine code depends beside text and architecture: the compiler and what it is told.
    ///
    /// # Errors
    /// There is no compiler.
    fn compiler() -> Result<String, GpuError>;
    /// Machine code of a module.
    ///
    /// # Errors
    /// There is no compiler, or it refuses the text.
    fn compile(&self, module: &Module) -> Result<Vec<u8>, GpuError>;
    /// The ways in which the vendor's libraries compute a step, the best by rule first.
    fn candidates(&self, _program: &Program, _step: &Step, _target: &Target) -> Vec<Candidate> {
        Vec::new()
    }
}
