//! Backend `oracle`: the fused program, evaluated point by point by the interpreter of kernels. What every device must agree
//! with, behind the table that every device is behind.

use kernel_ir::{IR_MAJOR, IR_MINOR, Program};
use plugin_sdk::{
    Backend, CompileRequest, Constants, Description, DeviceInfo, ErrorKind, Executable, Host, IrVersion,
    OwnedTensor, PluginError, Signature, Stream, TensorView,
};
use tensor::Tensor;

use crate::lent::{LentTensors, constant, given};

plugin_host::inventory::submit! {
    plugin_host::BuiltinPlugin { name: "oracle", entry: plugin_sdk::entry::<Oracle> }
}

/// The backend.
struct Oracle;

impl Backend for Oracle {
    fn open(_host: Host) -> Result<Self, PluginError> {
        Ok(Oracle)
    }

    fn describe(&self) -> Description {
        Description::new("oracle", env!("CARGO_PKG_VERSION"))
            .summary("the fused program, evaluated point by point: what every device must agree with")
            .reads(IrVersion::kernel_ir(IR_MAJOR, IR_MINOR))
    }

    fn devices(&self) -> Vec<DeviceInfo> {
        vec![DeviceInfo::cpu("host")]
    }

    fn compile(&self, request: &CompileRequest<'_>) -> Result<Box<dyn Executable>, PluginError> {
        let program = Program::from_bytes(request.kernel_ir_bytes()?)
            .map_err(|e| PluginError::new(ErrorKind::Incompatible, e.to_string()))?;
        if let Some(input) = program.inputs.iter().find(|input| input.written) {
            let why = "the oracle returns new values: it writes no input in place";
            return Err(PluginError::unsupported(why).at(input.name.clone()));
        }
        // What has no constants may be run without binding any.
        let bound = program.constants.is_empty().then(|| bind(&program, &|_| None)).transpose()?;
        Ok(Box::new(Code { program, bound }))
    }
}

struct Code {
    program: Program,
    /// With the constants; `None` before they are bound.
    bound: Option<interp::kernels::Executable>,
}

impl Executable for Code {
    fn signature(&self) -> Signature {
        let Program { inputs, outputs, constants, .. } = &self.program;
        Signature { inputs: inputs.len(), outputs: outputs.len(), constants: constants.len() }
    }

    fn bind_constants(&mut self, constants: &Constants<'_>) -> Result<(), PluginError> {
        self.bound = None;
        let mut all: Vec<(&str, Tensor)> = Vec::with_capacity(constants.len());
        for (name, view) in constants.iter() {
            // SAFETY: `bound`, which has the tensors, is dropped with the executable and where constants are bound again;
            // results are copies (`execute`).
            all.push((name, unsafe { constant(&view) }?));
        }
        let weight = |name: &str| all.iter().find(|(other, _)| *other == name).map(|(_, t)| t.clone());
        self.bound = Some(bind(&self.program, &weight)?);
        Ok(())
    }

    fn execute(
        &self,
        inputs: &[TensorView<'_>],
        _constants: &Constants<'_>,
        _stream: Stream,
    ) -> Result<Vec<OwnedTensor>, PluginError> {
        let code = self.bound.as_ref().ok_or_else(|| PluginError::invalid("no constants are bound"))?;
        let mut loan = LentTensors::new();
        let all = inputs.iter().map(|view| loan.take(view)).collect::<Result<Vec<_>, _>>()?;
        let copied = |t: Tensor| given(t.copied().map_err(|e| PluginError::internal(e.to_string()))?, &[]);
        let results = code.call(&all).map_err(|e| failed(&e));
        let results = results.and_then(|results| results.into_iter().map(copied).collect());
        drop(all);
        loan.end();
        results
    }
}

/// Binds the constants and runs what depends on them alone. The plan of memory is kept to, so that it is tested too.
fn bind(
    program: &Program,
    weight: &dyn Fn(&str) -> Option<Tensor>,
) -> Result<interp::kernels::Executable, PluginError> {
    let options = interp::kernels::Options { planned_arena: true };
    interp::kernels::Executable::new(program.clone(), weight, options).map_err(|e| failed(&e))
}

fn failed(error: &interp::kernels::KernelError) -> PluginError {
    PluginError::invalid(error.to_string())
}
