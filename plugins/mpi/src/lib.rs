//! The engine of collectives between processes by MPI: the plugin `mpi`. It compiles no programs; backends for host memory
//! (`cpu`) exchange by it, under `mpirun` or `srun`.
//!
//! Every exchange is one of MPI's nonblocking calls, so that programs compute meanwhile. Combinations are functions of this
//! library, by which `NaN` wins and 16-bit floats are added in single precision on every MPI.

mod combine;
mod engine;

use plugin_sdk::{
    Backend, CollectiveEngine, CompileRequest, Description, DeviceInfo, Executable, Host, PluginError,
};

/// The plugin.
pub struct Mpi;

impl Backend for Mpi {
    fn open(_host: Host) -> Result<Self, PluginError> {
        Ok(Mpi)
    }
    fn describe(&self) -> Description {
        Description::new("mpi", env!("CARGO_PKG_VERSION")).summary("exchanges between processes by MPI; compiles no programs")
    }
    fn devices(&self) -> Vec<DeviceInfo> {
        vec![DeviceInfo::cpu("MPI").unavailable("it exchanges for other backends (`--engine mpi`) and runs no programs")]
    }
    fn collectives(&self) -> Option<Box<dyn CollectiveEngine>> {
        Some(Box::new(engine::Engine))
    }
    fn compile(&self, _request: &CompileRequest<'_>) -> Result<Box<dyn Executable>, PluginError> {
        Err(PluginError::unsupported("`mpi` exchanges for other backends: compile for `cpu`, and join by `--engine mpi`"))
    }
}

plugin_sdk::export_plugin!(Mpi);
