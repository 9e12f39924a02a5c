//! What can go wrong between an archive and a result. One variant per stage; each says where and what to do.

use thiserror::Error;

/// An error of any stage.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// The archive.
    #[error(transparent)]
    Archive(#[from] pt2::Pt2Error),
    /// Weights that the archive lacks and nothing else gave.
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
    /// Values that are not what the program says of them: all of them.
    #[error("the program says of {} of its values what they are not:\n{}", .0.len(), lines(.0))]
    Misstated(Vec<prims::DecomposeError>),
    /// Mutation that has no functional form.
    #[error("the model mutates in ways that cannot be compiled:\n{}", lines(.0))]
    Functionalize(Vec<aot_autograd::FunctionalizeError>),
    /// Operators that are not supported: all of them.
    #[error("{} of the model's calls are not supported:\n{}", .0.len(), lines(.0))]
    Unsupported(Vec<prims::DecomposeError>),
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
        /// What and why.
        refused: Vec<String>,
    },
    /// A graph backend's own error.
    #[error("backend `{backend}`: {message}")]
    GraphBackend {
        /// The backend.
        backend: String,
        /// What it says.
        message: String,
    },
    /// A number of inputs that the model does not take.
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
        /// Its place.
        index: usize,
        /// Its name.
        name: String,
        /// What the model takes there.
        wanted: String,
        /// What was given.
        given: String,
    },
    /// Another value than the one that the model was exported for.
    #[error(
        "expected input {index} (`{name}`) to be equal to {expected}, but got {given}: the model was exported for that value alone; export it again with the value that is wanted{}",
        dynamic(name, expected)
    )]
    ConstantInput {
        /// Its place.
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
        /// Its place.
        index: usize,
        /// Its name.
        name: String,
        /// What is wrong.
        problem: String,
    },
    /// Sizes that break what the program takes for granted of them.
    #[error("guard failed: {message}{}: {sizes}", at(.origin))]
    Guard {
        /// What the guard says.
        message: String,
        /// The node that needs it and its source line; empty where that is not known.
        origin: String,
        /// The sizes given.
        sizes: String,
    },
    /// A mode that does not exist.
    #[error(transparent)]
    Mode(#[from] plugin_host::UnknownMode),
    /// Gradients that cannot be had: all calls that are in the way, or a missing loss.
    #[error(transparent)]
    Joint(aot_autograd::JointError),
    /// A function that cannot be transformed.
    #[error(transparent)]
    Transform(#[from] aot_autograd::transform::TransformError),
    /// A function that is called with what it does not take.
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
    /// Settings of an optimizer, or parameters that it cannot take.
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
    /// State of another name.
    #[error("there is no parameter or buffer `{name}` that is trained{}", did_you_mean(near))]
    UnknownState {
        /// The name given.
        name: String,
        /// Names like it.
        near: Vec<String>,
    },
    /// State that does not fit the model.
    #[error("the state does not fit the model: {0}")]
    Snapshot(String),
    /// A stage or pass that does not exist, in an option or the environment.
    #[error("{what}: there is no `{name}`; there are {known}")]
    UnknownStage {
        /// Who asks for it.
        what: String,
        /// The name given.
        name: String,
        /// Those that there are.
        known: String,
    },
    /// A pass whose graph is wanted, but that does not run.
    #[error("`{0}` does not run: FERROFLUX_SKIP_PASSES leaves it out")]
    PassSkipped(String),
    /// A defect of ours.
    #[error("internal error: {0}; please report the model")]
    Internal(String),
    /// A device tensor where a host tensor is wanted.
    #[error("the tensor {0} lies on a device that this backend does not have: copy it to the host first")]
    OtherDevice(String),
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

/// Where something comes from, as the end of a clause.
fn at(origin: &str) -> String {
    if origin.is_empty() { String::new() } else { format!(" (at {origin})") }
}

fn lines<T: std::fmt::Display>(items: &[T]) -> String {
    items.iter().map(|i| format!("  {i}")).collect::<Vec<_>>().join("\n")
}

/// What else can be done about an integer.
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
