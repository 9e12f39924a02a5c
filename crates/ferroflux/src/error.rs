//! All errors between an archive and a result. One variant per stage; each names the place and says what to do.

use thiserror::Error;

/// An error of any stage.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// The archive.
    #[error(transparent)]
    Archive(#[from] pt2::Pt2Error),
    /// Weights that are neither in the archive nor supplied.
    #[error(
        "{count} of the model's weights have no data, the first is {first}; give them with a safetensors file (`Program::fill_weights`, `--weights FILE --weights-prefix P`)"
    )]
    MissingWeights {
        /// How many.
        count: usize,
        /// Name, dtype and sizes of the first.
        first: String,
    },
    /// A graph that is not well formed: every violation.
    #[error("the graph is not well formed:\n{}", lines(.0))]
    Graph(Vec<fx_ir::VerifyError>),
    /// Values whose types contradict the operators' rules: all of them.
    #[error("the program says of {} of its values what they are not:\n{}", .0.len(), lines(.0))]
    Misstated(Vec<prims::DecomposeError>),
    /// Mutation that has no functional form.
    #[error("the model mutates in ways that cannot be compiled:\n{}", lines(.0))]
    Functionalize(Vec<aot_autograd::FunctionalizeError>),
    /// Batch norms whose batch cannot be split into groups: all of them.
    #[error("{} of the model's batch norms have no statistics of groups:\n{}", .0.len(), lines(.0))]
    BatchGroups(Vec<aot_autograd::BatchGroupsError>),
    /// Operators that are not supported: all of them.
    #[error("{} of the model's calls are not supported:\n{}", .0.len(), lines(.0))]
    Unsupported(Vec<prims::DecomposeError>),
    /// A model that cannot be quantized.
    #[error("the model cannot be quantized: {0}")]
    Quantize(String),
    /// A layout on a mesh.
    #[error(transparent)]
    Sharding(#[from] sharding::ShardingError),
    /// Ranks that do not fit together.
    #[error("the mesh: {0}")]
    Mesh(String),
    /// The compiler.
    #[error(transparent)]
    Compile(inductor::InductorError),
    /// A backend, or finding one.
    #[error(transparent)]
    Backend(#[from] plugin_host::HostError),
    /// A backend refuses parts of the program: all of them.
    #[error("the backend `{backend}` refuses parts of the model:\n{}", lines(.refused))]
    Refused {
        /// The backend.
        backend: String,
        /// The refused parts and the reasons.
        refused: Vec<String>,
    },
    /// An error of a graph backend.
    #[error("backend `{backend}`: {message}")]
    GraphBackend {
        /// The backend.
        backend: String,
        /// Its message.
        message: String,
    },
    /// A wrong number of inputs.
    #[error("the model takes {expected} inputs ({names}), {given} were given")]
    InputCount {
        /// How many it takes.
        expected: usize,
        /// How many were given.
        given: usize,
        /// Their names.
        names: String,
    },
    /// An input of another kind.
    #[error("input {index} (`{name}`) is {given}, the model wants {wanted}")]
    InputKind {
        /// Its position.
        index: usize,
        /// Its name.
        name: String,
        /// The kind that the model takes there.
        wanted: String,
        /// The kind that was given.
        given: String,
    },
    /// Another value than the one that the model was exported for.
    #[error(
        "expected input {index} (`{name}`) to be equal to {expected}, but got {given}: the model was exported for that value alone; export it again with the value that is wanted{}",
        dynamic(name, expected)
    )]
    ConstantInput {
        /// Its position.
        index: usize,
        /// Its name.
        name: String,
        /// The value that it was exported for.
        expected: String,
        /// What was given.
        given: String,
    },
    /// An input that does not fit.
    #[error("input {index} (`{name}`): {problem}")]
    Input {
        /// Its position.
        index: usize,
        /// Its name.
        name: String,
        /// What is wrong.
        problem: String,
    },
    /// Sizes that violate a guard of the program.
    #[error("guard failed: {message}{}: {sizes}", at(.origin))]
    Guard {
        /// The message of the guard.
        message: String,
        /// The node that needs it and its source line; empty where that is not known.
        origin: String,
        /// The sizes given.
        sizes: String,
    },
    /// A mode that does not exist.
    #[error(transparent)]
    Mode(#[from] plugin_host::UnknownMode),
    /// Gradients that do not exist: all calls without one on the path, or a missing loss.
    #[error(transparent)]
    Joint(aot_autograd::JointError),
    /// A function that cannot be transformed.
    #[error(transparent)]
    Transform(#[from] aot_autograd::transform::TransformError),
    /// A call that cannot be recorded, or a function that cannot be captured.
    #[error(transparent)]
    Capture(#[from] dynamo::CaptureError),
    /// A function called with unsupported arguments.
    #[error("function: {0}")]
    Function(String),
    /// Calls that refuse the types of mixed precision: all of them.
    #[error("{} of the model's calls refuse mixed precision:\n{}", .0.len(), lines(.0))]
    Autocast(Vec<aot_autograd::AutocastError>),
    /// The output named as the loss does not exist.
    #[error(
        "the program returns {count} tensors, there is no number {output} to be the loss (they count from 0)"
    )]
    NoSuchLoss {
        /// The number given.
        output: usize,
        /// How many it returns.
        count: usize,
    },
    /// Settings of an optimizer, or parameters that it does not support.
    #[error("optimizer: {0}")]
    Optimizer(String),
    /// The norm of the gradients is not a finite number.
    #[error(
        "the norm of all gradients is {norm}: nothing was updated; lower the learning rate, or look for the operator that gives it"
    )]
    NonFiniteGradient {
        /// The norm.
        norm: f64,
    },
    /// An unknown name of state.
    #[error("there is no parameter or buffer `{name}` that is trained{}", did_you_mean(near))]
    UnknownState {
        /// The name given.
        name: String,
        /// Similar names.
        near: Vec<String>,
    },
    /// State that does not fit the model.
    #[error("the state does not fit the model: {0}")]
    Snapshot(String),
    /// A stage or pass that does not exist, in an option or the environment.
    #[error("{what}: there is no `{name}`; there are {known}")]
    UnknownStage {
        /// The option or variable with the name.
        what: String,
        /// The name given.
        name: String,
        /// The existing names.
        known: String,
    },
    /// A pass whose graph is requested, but that does not run.
    #[error("`{0}` does not run: FERROFLUX_SKIP_PASSES leaves it out")]
    PassSkipped(String),
    /// A defect of the compiler.
    #[error("internal error: {0}; please report the model")]
    Internal(String),
    /// A device tensor where a host tensor is required.
    #[error("the tensor {0} lies on a device that this backend does not have: copy it to the host first")]
    OtherDevice(String),
    /// A file of NumPy's.
    #[error(transparent)]
    Npy(#[from] crate::npy::NpyError),
    /// A tensor operation of the host.
    #[error(transparent)]
    Tensor(#[from] tensor::TensorError),
    /// A file that could not be written.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: std::path::PathBuf,
        /// Why.
        source: std::io::Error,
    },
}

impl From<inductor::InductorError> for Error {
    fn from(error: inductor::InductorError) -> Error {
        match error {
            inductor::InductorError::Internal(found) => Error::Internal(found),
            refused => Error::Compile(refused),
        }
    }
}

impl From<aot_autograd::Contradiction> for Error {
    fn from(found: aot_autograd::Contradiction) -> Error {
        Error::Internal(found.to_string())
    }
}

/// The origin, as the end of a clause.
fn at(origin: &str) -> String {
    if origin.is_empty() { String::new() } else { format!(" (at {origin})") }
}

fn lines<T: std::fmt::Display>(items: &[T]) -> String {
    items.iter().map(|i| format!("  {i}")).collect::<Vec<_>>().join("\n")
}

/// Advice about an integer.
fn dynamic(name: &str, value: &str) -> String {
    match value.parse::<i64>() {
        Ok(_) => format!(", or with `dynamic_shapes={{\"{name}\": Dim.DYNAMIC}}` for any integer"),
        Err(_) => String::new(),
    }
}

fn did_you_mean(near: &[String]) -> String {
    if near.is_empty() { String::new() } else { format!("; did you mean `{}`?", near.join("` or `")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contradictions_of_the_compiler_are_internal_errors() {
        let error = Error::from(inductor::InductorError::Internal("`s` has no memory".into()));
        assert_eq!(error.to_string(), "internal error: `s` has no memory; please report the model");
    }
}
