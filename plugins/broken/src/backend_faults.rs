//! Faults that a backend over the safe trait can have.

use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use kernel_ir::{InstKind, Program, ScalarOp, Step};
use plugin_sdk::{
    Artifact, Backend, CompileRequest, Constants, DType, Description, DeviceId, DeviceInfo, Executable, Host,
    IrVersion, OwnedTensor, PluginError, Refusal, Signature, Stream, TensorView, dlpack,
};

use crate::backend::{Acme, Compiled};
use crate::fault::{Fault, fault};
use crate::graphs::GraphExecutable;

/// The template's backend with a fault.
pub(crate) struct Broken(Acme);

impl Backend for Broken {
    fn open(host: Host) -> Result<Self, PluginError> {
        Acme::open(host).map(Broken)
    }
    fn describe(&self) -> Description {
        Description { name: "broken".into(), ..self.0.describe() }.reads(IrVersion::fx_ir(1, 0))
    }
    fn devices(&self) -> Vec<DeviceInfo> {
        self.0.devices()
    }
    fn query_support(&self, request: &CompileRequest<'_>) -> Result<Vec<Refusal>, PluginError> {
        if let Ok(text) = request.fx_ir_bytes() {
            return GraphExecutable::new(text).map(|_| Vec::new());
        }
        let mut refused = self.0.query_support(request)?;
        if fault() == Fault::Silent {
            refused.iter_mut().for_each(|r| r.reason.clear());
        }
        Ok(refused)
    }
    fn compile(&self, request: &CompileRequest<'_>) -> Result<Box<dyn Executable>, PluginError> {
        if fault() == Fault::LeaksCompiling {
            vec![1u8; 64 << 10].leak();
        }
        if let Ok(text) = request.fx_ir_bytes() {
            return Ok(Box::new(GraphExecutable::new(text)?));
        }
        let mut program = request.kernels()?;
        if fault() == Fault::WrongResult {
            subtract_the_wrong_way(&mut program);
        }
        if fault() == Fault::IgnoresChecks {
            kernel_ir::drop_checks(&mut program);
        }
        let loops = program.init.iter().chain(&program.steps).all(|step| matches!(step, Step::Loop(_)));
        let dynamic = loops && !program.symbols.is_empty();
        let compiled = Compiled::new(program)?;
        Ok(Box::new(BrokenExecutable { compiled, dynamic, bound: false, first: OnceLock::new() }))
    }
    fn artifact_compat(&self, device: DeviceId) -> Result<Option<String>, PluginError> {
        self.0.artifact_compat(device)
    }
    fn load_artifact(&self, artifact: &Artifact<'_>) -> Result<Box<dyn Executable>, PluginError> {
        self.0.load_artifact(artifact)
    }
}

fn subtract_the_wrong_way(program: &mut Program) {
    for step in &mut program.steps {
        let Step::Loop(kernel) = step else { continue };
        for inst in kernel.stages.iter_mut().flat_map(|s| &mut s.insts) {
            if let (InstKind::Op { op: ScalarOp::Sub, args }, DType::I16) = (&mut inst.kind, inst.dtype) {
                args.reverse();
            }
        }
    }
}

struct BrokenExecutable {
    compiled: Compiled,
    /// Whether the program has size symbols and loops alone; products of any size are the subject of another check.
    dynamic: bool,
    bound: bool,
    /// Inputs of the first call.
    first: OnceLock<Vec<Dense>>,
}

impl Executable for BrokenExecutable {
    fn signature(&self) -> Signature {
        self.compiled.signature()
    }
    fn bind_constants(&mut self, constants: &Constants<'_>) -> Result<(), PluginError> {
        if fault() == Fault::FirstBinding && self.bound && constants.len() == self.signature().constants {
            return Ok(());
        }
        self.compiled.bind_constants(constants)?;
        self.bound = true;
        Ok(())
    }
    fn save_artifact(&self) -> Result<Vec<u8>, PluginError> {
        self.compiled.save_artifact()
    }
    fn execute(
        &self,
        inputs: &[TensorView<'_>],
        constants: &Constants<'_>,
        stream: Stream,
    ) -> Result<Vec<OwnedTensor>, PluginError> {
        let run = |dense: &[Dense]| {
            let views = dense.iter().map(Dense::view).collect::<Result<Vec<_>, _>>()?;
            self.compiled.execute(&views, constants, stream)
        };
        match fault() {
            Fault::IgnoresStrides if inputs.iter().all(|t| t.dtype() == DType::F32) => {
                run(&inputs.iter().map(Dense::in_order_of_memory).collect::<Result<Vec<_>, _>>()?)
            }
            Fault::FirstSizes if self.dynamic => {
                let own = inputs.iter().map(Dense::of).collect::<Result<Vec<_>, _>>()?;
                run(self.first.get_or_init(|| own))
            }
            Fault::Races if inputs.len() == 1 && inputs[0].dtype() == DType::F32 => {
                run(&[Dense { values: through_scratch(&inputs[0])?, ..Dense::of(&inputs[0])? }])
            }
            Fault::Overrun => {
                self.compiled.execute(inputs, constants, stream)?.into_iter().map(overrun).collect()
            }
            Fault::Hangs => {
                let outputs = self.compiled.execute(inputs, constants, stream)?;
                while outputs.iter().any(|t| t.numel() == 0) {
                    std::thread::sleep(Duration::from_secs(1));
                }
                Ok(outputs)
            }
            _ => self.compiled.execute(inputs, constants, stream),
        }
    }
}

/// A row-major copy of an `f32` tensor.
struct Dense {
    values: Vec<f32>,
    sizes: Vec<i64>,
    strides: Vec<i64>,
}

impl Dense {
    /// Values in row-major order, each with its place in memory.
    fn placed(tensor: &TensorView<'_>) -> Result<Vec<(i64, f32)>, PluginError> {
        let mut all = Vec::new();
        crate::memory::for_each_index(tensor.sizes(), &mut |index| {
            let place = index.iter().zip(tensor.strides()).map(|(i, s)| i * s).sum();
            all.push((place, tensor.get::<f32>(index)?));
            Ok(())
        })?;
        Ok(all)
    }
    fn with(tensor: &TensorView<'_>, values: Vec<f32>) -> Dense {
        let sizes = tensor.sizes().to_vec();
        let mut strides = vec![1; sizes.len()];
        for d in (1..sizes.len()).rev() {
            strides[d - 1] = strides[d] * sizes[d].max(1);
        }
        Dense { values, sizes, strides }
    }
    fn of(tensor: &TensorView<'_>) -> Result<Dense, PluginError> {
        let values = Dense::placed(tensor)?.into_iter().map(|(_, v)| v).collect();
        Ok(Dense::with(tensor, values))
    }
    /// The values that a reader finds which treats the memory as row-major.
    fn in_order_of_memory(tensor: &TensorView<'_>) -> Result<Dense, PluginError> {
        let mut all = Dense::placed(tensor)?;
        all.sort_by_key(|(place, _)| *place);
        Ok(Dense::with(tensor, all.into_iter().map(|(_, v)| v).collect()))
    }
    fn view(&self) -> Result<TensorView<'_>, PluginError> {
        TensorView::from_slice(&self.values, DType::F32, &self.sizes, &self.strides)
    }
}

/// Reads the tensor's values through memory that all calls share.
fn through_scratch(tensor: &TensorView<'_>) -> Result<Vec<f32>, PluginError> {
    static SCRATCH: Mutex<Vec<f32>> = Mutex::new(Vec::new());
    let values = Dense::of(tensor)?.values;
    let n = values.len();
    *SCRATCH.lock().unwrap_or_else(PoisonError::into_inner) = values;
    std::thread::sleep(Duration::from_micros(200));
    let mut read = SCRATCH.lock().unwrap_or_else(PoisonError::into_inner).clone();
    read.resize(n, 0.0);
    Ok(read)
}

/// The output in memory of its own, with four bytes written after it.
fn overrun(mut tensor: OwnedTensor) -> Result<OwnedTensor, PluginError> {
    let (sizes, strides) = (tensor.sizes().to_vec(), tensor.strides().to_vec());
    if tensor.numel() == 0 {
        return Ok(tensor);
    }
    let last: i64 = sizes.iter().zip(&strides).map(|(n, s)| (n - 1) * s).sum();
    let bytes = (last as usize + 1) * tensor.dtype().size();
    // glibc keeps at least eight bytes after an allocation of this size, so that the fault harms nothing by itself.
    let mut memory = vec![0u8; bytes.next_multiple_of(16)];
    let data = std::ptr::NonNull::from(&mut memory[0]);
    // SAFETY: the copy stays inside of both; the last write does not, which is the demonstrated fault.
    unsafe {
        std::ptr::copy_nonoverlapping(tensor.as_mut_ptr(), data.as_ptr(), bytes);
        data.as_ptr().add(memory.len()).write_bytes(0x11, 4);
    }
    let device = DeviceId { device_type: dlpack::DL_CPU, device_id: 0 };
    // SAFETY: the memory lives in the owner, and its address does not change as the vector moves.
    unsafe { OwnedTensor::from_raw_parts(data, tensor.dtype(), device, &sizes, &strides, Box::new(memory)) }
}
