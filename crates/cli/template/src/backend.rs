//! The interface to the host: name, devices, supported programs, compilation, execution. It computes nothing itself.

use plugin_sdk::kernel_ir::runtime::{Binder, Sizes};
use plugin_sdk::kernel_ir::{Program, Storage};
use plugin_sdk::{
    Artifact, Backend, CompileRequest, Constants, Description, DeviceId, DeviceInfo, Executable, Host,
    KERNEL_IR, OwnedTensor, PluginError, Refusal, Signature, Stream, TensorView,
};

use crate::memory::Memory;
use crate::{kernel, sizes, support};

/// The backend. One value per process; what all programs share (a device handle, a cache) belongs here.
pub(crate) struct Acme;

impl Backend for Acme {
    fn open(_host: Host) -> Result<Self, PluginError> {
        Ok(Acme)
    }

    fn describe(&self) -> Description {
        Description::new("acme", env!("CARGO_PKG_VERSION"))
            .summary("interprets fused kernels on the host processor")
            .reads(KERNEL_IR)
    }

    fn devices(&self) -> Vec<DeviceInfo> {
        // A device that is missing is listed too: `DeviceInfo::new(…).unavailable("why, and what to do")`.
        vec![DeviceInfo::cpu(std::env::consts::ARCH)]
    }

    fn query_support(&self, request: &CompileRequest<'_>) -> Result<Vec<Refusal>, PluginError> {
        Ok(support::refusals(&request.kernels()?))
    }

    fn compile(&self, request: &CompileRequest<'_>) -> Result<Box<dyn Executable>, PluginError> {
        Ok(Box::new(Compiled::new(request.kernels()?)?))
    }

    fn artifact_compat(&self, _device: DeviceId) -> Result<Option<String>, PluginError> {
        // What saved code depends on beyond name, version and platform: an instruction set, a driver. Here nothing.
        Ok(Some(String::new()))
    }

    fn load_artifact(&self, artifact: &Artifact<'_>) -> Result<Box<dyn Executable>, PluginError> {
        let program =
            Program::from_bytes(artifact.payload).map_err(|e| PluginError::damaged(e.to_string()))?;
        Ok(Box::new(Compiled::new(program)?))
    }
}

/// A compiled program. Here that is the program itself; a real backend keeps machine code.
pub(crate) struct Compiled {
    program: Program,
    /// Finds the sizes of a call.
    binder: Binder,
    /// Buffers that the init steps computed from the constants, by number.
    persistent: Vec<Option<Vec<plugin_sdk::ir_core::Scalar>>>,
}

impl Compiled {
    /// Checks a program and takes ownership of it.
    pub(crate) fn new(program: Program) -> Result<Compiled, PluginError> {
        // A verified program cannot make the interpreter use an invalid index.
        plugin_sdk::kernel_ir::verify(&program).map_err(|e| PluginError::invalid(e.to_string()))?;
        if let Some(refusal) = support::refusals(&program).into_iter().next() {
            return Err(PluginError::unsupported(refusal.reason).at(refusal.node));
        }
        let binder = Binder::of_inputs(&program);
        let mut compiled = Compiled { program, binder, persistent: Vec::new() };
        // With constants, `bind_constants` does this.
        if compiled.program.constants.is_empty() && !compiled.program.init.is_empty() {
            compiled.run_init(&Constants::NONE)?;
        }
        Ok(compiled)
    }

    fn run_init(&mut self, constants: &Constants<'_>) -> Result<(), PluginError> {
        let program = &self.program;
        // No size is known yet, and the sizes of the init steps are numbers.
        let sizes = Sizes::default();
        let mut memory = Memory::new(program, &sizes, &[])?;
        memory.take_constants(program, &sizes, constants)?;
        kernel::run(program, &program.init, &sizes, &mut memory)?;
        let made = program.buffers.iter().map(|(id, buffer)| {
            (buffer.storage == Storage::Persistent).then(|| memory.elements(id).to_vec())
        });
        self.persistent = made.collect();
        Ok(())
    }
}

impl Executable for Compiled {
    fn signature(&self) -> Signature {
        let p = &self.program;
        Signature { inputs: p.inputs.len(), outputs: p.outputs.len(), constants: p.constants.len() }
    }

    fn bind_constants(&mut self, constants: &Constants<'_>) -> Result<(), PluginError> {
        self.run_init(constants)
    }

    fn execute(
        &self,
        inputs: &[TensorView<'_>],
        constants: &Constants<'_>,
        _stream: Stream,
    ) -> Result<Vec<OwnedTensor>, PluginError> {
        let program = &self.program;
        let sizes = sizes::bind(program, &self.binder, inputs)?;
        // Memory of the call's own: many calls run at once on one executable.
        let mut memory = Memory::new(program, &sizes, &self.persistent)?;
        memory.take_constants(program, &sizes, constants)?;
        memory.take_inputs(program, &sizes, inputs)?;
        kernel::run(program, &program.steps, &sizes, &mut memory)?;
        program.outputs.iter().map(|output| memory.output(program, &sizes, output)).collect()
    }

    fn save_artifact(&self) -> Result<Vec<u8>, PluginError> {
        Ok(self.program.to_bytes())
    }
}
