//! The plugin: the interface of this backend to the host. Reads the program's bytes and passes everything on to `exec`.

use kernel_ir::runtime::ExchangeError;
use kernel_ir::{IR_MAJOR, IR_MINOR, Program, Storage};
use plugin_sdk::{
    Artifact, Backend, CollectiveEngine, CompileRequest, Constants, Description, DeviceId, DeviceInfo,
    ErrorKind, Executable, Groups, Host, IrVersion, Listing, MemoryEstimate, Mode, OptionKind, OptionSpec,
    OwnedTensor, PluginError, Refusal, Signature, Stream, TensorView, UnknownMode,
};

use crate::clif::{self, Bytes, JitError, Saved};
use crate::exec::{Compiled, ExecError, ExecOptions, physical_cores};
use crate::micro::{self, Isa};

/// The `cpu` backend.
pub struct CpuBackend;

impl Backend for CpuBackend {
    fn open(_host: Host) -> Result<Self, PluginError> {
        Ok(CpuBackend)
    }

    fn describe(&self) -> Description {
        let description = Description::new("cpu", env!("CARGO_PKG_VERSION"))
            .summary("host processor: Cranelift vector code, hand-written matrix and convolution kernels")
            .reads(IrVersion::kernel_ir(IR_MAJOR, IR_MINOR))
            .option(OptionSpec::new(
                "threads",
                OptionKind::Int,
                0,
                "worker threads; 0 is one a physical core",
            ))
            .option(OptionSpec::new(
                "cache",
                OptionKind::Text,
                "off",
                "folder for packed weights of 8 MiB and more, which later processes map instead of packing them again, and for what a search has found",
            ));
        // Calls have their memory in advance in every mode: modes differ by the search alone.
        Mode::OTHERS.iter().fold(description, |d, mode| d.mode(mode.name()))
    }

    fn devices(&self) -> Vec<DeviceInfo> {
        let bits = match Isa::best() {
            Isa::Portable => 128,
            Isa::Avx2 => 256,
            Isa::Avx512 => 512,
        };
        let device = DeviceInfo::cpu(std::env::consts::ARCH)
            .attribute("cores", physical_cores())
            .attribute("vector_bits", bits);
        vec![device]
    }

    /// Kernels of dtypes without arithmetic here: all of them, not only the first.
    fn query_support(&self, request: &CompileRequest<'_>) -> Result<Vec<Refusal>, PluginError> {
        let mut program = read(request)?;
        let mut steps = std::mem::take(&mut program.init);
        steps.append(&mut program.steps);
        let mut refused = Vec::new();
        for step in &steps {
            if let Err(e) = crate::exec::supports(&mut program, step) {
                refused.push(Refusal { node: step.name().to_owned(), reason: e.to_string() });
            }
        }
        Ok(refused)
    }

    fn memory_estimate(&self, request: &CompileRequest<'_>) -> Result<Option<MemoryEstimate>, PluginError> {
        let program = read(request)?;
        let bytes = |kept: fn(&Storage) -> bool| -> Option<u64> {
            let buffers = program.buffers.values().filter(|b| kept(&b.storage));
            buffers.map(|b| Some(b.span().as_const()?.max(0) as u64 * b.dtype.size() as u64)).sum()
        };
        let persistent = bytes(|s| *s == Storage::Persistent);
        let outputs = bytes(|s| *s == Storage::Output);
        let arena = program.plan.place_over_operands(&program, &|_| None).ok().map(|(_, bytes)| bytes);
        let (Some(constant_bytes), Some(outputs), Some(arena)) = (persistent, outputs, arena) else {
            return Ok(None);
        };
        Ok(Some(MemoryEstimate { constant_bytes, peak_bytes: arena + outputs, code_bytes: 0 }))
    }

    fn collectives(&self) -> Option<Box<dyn CollectiveEngine>> {
        Some(Box::new(crate::ranks::Engine))
    }

    fn runs_collectives(&self) -> bool {
        true
    }

    fn has_inspection(&self) -> bool {
        true
    }

    fn compile(&self, request: &CompileRequest<'_>) -> Result<Box<dyn Executable>, PluginError> {
        let threads = usize::try_from(request.options.int("threads")?)
            .ok()
            .filter(|n| *n <= 4096)
            .ok_or_else(|| PluginError::invalid("option `threads` must be 0 to 4096"))?;
        let mode: Mode =
            request.mode.parse().map_err(|e: UnknownMode| PluginError::invalid(e.to_string()))?;
        let options = ExecOptions { threads, searches: mode.searches() };
        let compiled = Compiled::new(read(request)?, options)?;
        let folder = match request.options.text("cache")? {
            "off" | "" => None,
            folder => Some(folder.to_owned()),
        };
        Ok(Box::new(CpuExecutable::new(compiled, request.kernel_ir_bytes()?, options, folder)))
    }

    /// This build, the instruction set that Cranelift found, and what the hand-written kernels use.
    fn artifact_compat(&self, _device: DeviceId) -> Result<Option<String>, PluginError> {
        let set = clif::instruction_set().map_err(ExecError::from)?;
        Ok(Some(format!("build {} {} {set}", env!("FFX_CPU_BUILD"), micro::variant())))
    }

    fn load_artifact(&self, artifact: &Artifact<'_>) -> Result<Box<dyn Executable>, PluginError> {
        let damaged = || PluginError::damaged("the artifact is not what this backend saves");
        let mut saved = Bytes(artifact.payload);
        let threads = saved.u64().and_then(|n| usize::try_from(n).ok()).ok_or_else(damaged)?;
        let searches = saved.u64().ok_or_else(damaged)? != 0;
        let options = ExecOptions { threads, searches };
        let folder = saved.bytes().and_then(|b| std::str::from_utf8(b).ok()).ok_or_else(damaged)?;
        let program = saved.bytes().ok_or_else(damaged)?;
        let functions = saved.functions().filter(|_| saved.0.is_empty()).ok_or_else(damaged)?;
        let read = Program::from_bytes(program).map_err(|e| PluginError::damaged(e.to_string()))?;
        let compiled = Compiled::load(read, options, functions).map_err(|e| match e {
            ExecError::Jit(e) => PluginError::damaged(e.to_string()),
            other => other.into(),
        })?;
        let folder = Some(folder.to_owned()).filter(|f| !f.is_empty());
        Ok(Box::new(CpuExecutable::new(compiled, program, options, folder)))
    }
}

fn read(request: &CompileRequest<'_>) -> Result<Program, PluginError> {
    Program::from_bytes(request.kernel_ir_bytes()?)
        .map_err(|e| PluginError::new(ErrorKind::Incompatible, e.to_string()))
}

/// A compiled program behind the plugin's trait, with the program that it was compiled from: compiling extends the program.
struct CpuExecutable {
    compiled: Compiled,
    program: Box<[u8]>,
    options: ExecOptions,
    /// Of packed weights.
    folder: Option<String>,
}

impl CpuExecutable {
    fn new(
        mut compiled: Compiled,
        program: &[u8],
        options: ExecOptions,
        folder: Option<String>,
    ) -> CpuExecutable {
        if let Some(folder) = &folder {
            compiled.keep_weights_in(folder, program);
        }
        CpuExecutable { compiled, program: program.into(), options, folder }
    }
}

impl Executable for CpuExecutable {
    fn signature(&self) -> Signature {
        let p = self.compiled.program();
        Signature { inputs: p.inputs.len(), outputs: p.outputs.len(), constants: p.constants.len() }
    }

    fn bind_constants(&mut self, constants: &Constants<'_>) -> Result<(), PluginError> {
        let all: Vec<_> = constants.iter().collect();
        // SAFETY: bound constants stay valid and unwritten until the next binding, by the contract of the trait.
        Ok(unsafe { self.compiled.bind(&all) }?)
    }

    fn attach_groups(&mut self, groups: Groups) -> Result<(), PluginError> {
        self.compiled.attach(groups);
        Ok(())
    }

    fn execute(
        &self,
        inputs: &[TensorView<'_>],
        _constants: &Constants<'_>,
        _stream: Stream,
    ) -> Result<Vec<OwnedTensor>, PluginError> {
        Ok(self.compiled.execute(inputs)?)
    }

    fn save_artifact(&self) -> Result<Vec<u8>, PluginError> {
        let mut saved = Saved::default();
        saved.u64(self.options.threads as u64);
        saved.u64(u64::from(self.options.searches));
        saved.bytes(self.folder.as_deref().unwrap_or_default().as_bytes());
        saved.bytes(&self.program);
        saved
            .functions(self.compiled.functions())
            .ok_or_else(|| PluginError::unsupported("the machine code refers to what cannot be saved"))?;
        Ok(saved.0)
    }

    fn listings(&self) -> Result<Vec<Listing>, PluginError> {
        Ok(self.compiled.listings()?)
    }
}

impl From<ExecError> for PluginError {
    fn from(e: ExecError) -> PluginError {
        let kind = match &e {
            ExecError::Lower(_) => ErrorKind::Unsupported,
            ExecError::OutOfMemory(_) => ErrorKind::OutOfMemory,
            ExecError::WeightsCut => ErrorKind::Damaged,
            ExecError::Jit(JitError::Isa(_)) => ErrorKind::InvalidArgument,
            ExecError::Jit(_) | ExecError::Host(_) => ErrorKind::Internal,
            ExecError::Exchange(ExchangeError::Engine { .. }) => ErrorKind::Unavailable,
            ExecError::Malformed(_)
            | ExecError::Template { .. }
            | ExecError::Linalg(_)
            | ExecError::Exchange(_)
            | ExecError::Plan(_)
            | ExecError::Count { .. }
            | ExecError::MissingConstant(_)
            | ExecError::NotBound
            | ExecError::DType { .. }
            | ExecError::Rank { .. }
            | ExecError::Size { .. }
            | ExecError::Range { .. }
            | ExecError::Bound { .. }
            | ExecError::Assertion { .. }
            | ExecError::Index { .. }
            | ExecError::Unbound(_)
            | ExecError::Device(_) => ErrorKind::InvalidArgument,
        };
        let error = PluginError::new(kind, e.to_string());
        match e {
            ExecError::Index { step, .. } => error.at(step),
            _ => error,
        }
    }
}
