//! A case: a program, its constants, and calls with inputs. The plugin runs it, `interp` runs it, the results are compared.
//!
//! The oracle evaluates each operator in double precision and rounds to its dtype; float sums stay in double precision.

use std::fmt;

use interp::kernels;
use ir_core::{DType, Scalar};
use kernel_ir::Program;
use plugin_abi::FFX_ERR_UNSUPPORTED;
use plugin_host::{CompileArgs, DeviceInfo, HostError, KERNEL_IR, LoadedBackend, LoadedExecutable};
use tensor::Tensor;

/// Why a case did not pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The plugin is wrong.
    Wrong(String),
    /// The plugin does not support this, and gives the reason.
    Declined(String),
}

impl Fault {
    /// The plugin is wrong.
    pub fn wrong(what: impl Into<String>) -> Fault {
        Fault::Wrong(what.into())
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Wrong(what) => f.write_str(what),
            Fault::Declined(why) => write!(f, "declined: {why}"),
        }
    }
}

impl From<HostError> for Fault {
    /// An error with the code `unsupported` is a refusal, every other one is a failure.
    fn from(error: HostError) -> Fault {
        match &error {
            HostError::Plugin { failure, .. } if failure.code == FFX_ERR_UNSUPPORTED => {
                Fault::Declined(failure.to_string())
            }
            HostError::ProgramVersion { .. } | HostError::NoOlderForm { .. } => {
                Fault::Declined(error.to_string())
            }
            _ => Fault::Wrong(error.to_string()),
        }
    }
}

impl From<tensor::TensorError> for Fault {
    fn from(error: tensor::TensorError) -> Fault {
        Fault::Wrong(format!("the judge could not make a tensor: {error}"))
    }
}

impl From<kernels::KernelError> for Fault {
    fn from(error: kernels::KernelError) -> Fault {
        Fault::Wrong(format!("the oracle refused the judge's own program: {error}"))
    }
}

/// Allowed distance of a float from the oracle: `units` in the last place of its dtype, or `absolute`.
#[derive(Clone, Copy, Debug)]
pub struct Tolerance {
    /// Units in the last place.
    pub units: f64,
    /// Absolute difference that is always allowed.
    pub absolute: f64,
}

impl Tolerance {
    /// Correct rounding, with a tolerance of one unit.
    pub const EXACT: Tolerance = Tolerance { units: 1.0, absolute: 0.0 };
    /// A few operations in sequence, or a library's transcendental function.
    pub const CLOSE: Tolerance = Tolerance { units: 64.0, absolute: 1e-6 };

    /// Whether two numbers agree. `NaN` equals `NaN`, infinities and integers must be equal.
    pub fn holds(self, dtype: DType, got: Scalar, expected: Scalar) -> bool {
        if !dtype.is_float() {
            return got == expected;
        }
        let (g, e) = (got.as_f64(), expected.as_f64());
        if !(g.is_finite() && e.is_finite()) {
            return g == e || (g.is_nan() && e.is_nan());
        }
        let (unit, tiny) = match dtype {
            DType::F16 => (2f64.powi(-10), 2f64.powi(-14)),
            DType::BF16 => (2f64.powi(-7), f64::from(f32::MIN_POSITIVE)),
            DType::F32 => (f64::from(f32::EPSILON), f64::from(f32::MIN_POSITIVE)),
            _ => (f64::EPSILON, f64::MIN_POSITIVE),
        };
        // Below the smallest normal number devices may flush to zero.
        (g - e).abs() <= (self.units * unit * e.abs()).max(self.absolute).max(tiny)
    }
}

/// A program and the inputs to run it on.
pub struct Case {
    /// Name within its check.
    pub name: String,
    /// The program.
    pub program: Program,
    /// Constants by name.
    pub constants: Vec<(String, Tensor)>,
    /// Inputs of each call; one executable serves all calls.
    pub calls: Vec<Vec<Tensor>>,
    /// The tolerance of the results.
    pub tolerance: Tolerance,
}

impl Case {
    /// A case of one call without constants.
    pub fn new(name: impl Into<String>, program: Program, inputs: Vec<Tensor>) -> Case {
        let tolerance = Tolerance::EXACT;
        Case { name: name.into(), program, constants: vec![], calls: vec![inputs], tolerance }
    }
    /// Sets the tolerance.
    #[must_use]
    pub fn tolerance(mut self, tolerance: Tolerance) -> Case {
        self.tolerance = tolerance;
        self
    }

    /// Compiles and runs the case on a device, and compares with the oracle.
    ///
    /// # Errors
    /// The failure, or the reason why the plugin declines.
    pub fn run(&self, backend: &LoadedBackend, device: &DeviceInfo) -> Result<(), Fault> {
        let executable = self.compile(backend, device)?;
        let expected = self.oracle()?;
        for (inputs, expected) in self.calls.iter().zip(&expected) {
            let inputs: Vec<&Tensor> = inputs.iter().collect();
            compare(&executable.execute(&inputs)?, expected, self.tolerance)?;
        }
        Ok(())
    }

    /// Compiles the program, where the plugin does not refuse it, and binds the constants.
    ///
    /// # Errors
    /// As for [`Case::run`].
    pub fn compile(&self, backend: &LoadedBackend, device: &DeviceInfo) -> Result<LoadedExecutable, Fault> {
        let mut program = self.program.clone();
        if !backend.reads().iter().any(|own| own.reads(KERNEL_IR)) {
            // The indices of cases are in range, so plugins that predate index checks receive programs without them.
            kernel_ir::drop_checks(&mut program);
        }
        let bytes = program.to_bytes();
        let args = CompileArgs::new(KERNEL_IR, &bytes).device(device.device);
        let refused = backend.query_support(&args)?;
        if !refused.is_empty() {
            let reasons: Vec<_> = refused.iter().map(|r| format!("`{}`: {}", r.node, r.reason)).collect();
            return Err(Fault::Declined(reasons.join("; ")));
        }
        let mut executable = backend.compile(&args)?;
        let constants: Vec<(&str, &Tensor)> = self.constants.iter().map(|(n, t)| (n.as_str(), t)).collect();
        executable.bind_constants(&constants)?;
        Ok(executable)
    }

    /// The expected results of every call.
    ///
    /// # Errors
    /// A defect in the suite's own program.
    pub fn oracle(&self) -> Result<Vec<Vec<Tensor>>, Fault> {
        let constant = |name: &str| {
            let found = self.constants.iter().find(|(n, _)| n == name);
            found.map(|(_, tensor)| tensor.clone())
        };
        let oracle = kernels::Executable::new(self.program.clone(), &constant, kernels::Options::default())?;
        self.calls.iter().map(|inputs| Ok(oracle.call(inputs)?)).collect()
    }
}

/// Compares results with the expected ones: number, dtypes, sizes, strides (where they matter), elements.
///
/// # Errors
/// The first difference.
pub fn compare(got: &[Tensor], expected: &[Tensor], tolerance: Tolerance) -> Result<(), Fault> {
    if got.len() != expected.len() {
        return Err(Fault::wrong(format!("{} outputs, expected {}", got.len(), expected.len())));
    }
    for (n, (g, e)) in got.iter().zip(expected).enumerate() {
        if g.dtype() != e.dtype() || g.sizes() != e.sizes() {
            return Err(Fault::wrong(format!(
                "output {n} is {}{:?}, expected {}{:?}",
                g.dtype(),
                g.sizes(),
                e.dtype(),
                e.sizes()
            )));
        }
        let matters = |d: &usize| e.sizes()[*d] > 1;
        if !e.sizes().contains(&0) && !(0..e.rank()).filter(matters).all(|d| g.strides()[d] == e.strides()[d])
        {
            let (g, e) = (g.strides(), e.strides());
            return Err(Fault::wrong(format!("output {n} has strides {g:?}, the program states {e:?}")));
        }
        for (at, (got, expected)) in g.iter().zip(e.iter()).enumerate() {
            if !tolerance.holds(e.dtype(), got, expected) {
                let text =
                    format!("output {n}, element {at} in row-major order is {got}, expected {expected}");
                return Err(Fault::wrong(text));
            }
        }
    }
    Ok(())
}
