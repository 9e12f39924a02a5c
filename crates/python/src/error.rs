//! Errors of the compiler as Python's exceptions: `Error` for all, `Unsupported` for what torch has to run instead.

use ferroflux::Error as Cause;
use pyo3::create_exception;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

use crate::process::with_threads;

create_exception!(ferroflux, Error, PyRuntimeError, "An error of the compiler or of a backend.");
create_exception!(
    ferroflux,
    Unsupported,
    Error,
    "Parts of a graph that are not supported: `args` are the message and a list of (node, operator, reason)."
);
create_exception!(ferroflux, Mismatch, Error, "Inputs of a call that do not fit what was compiled.");

/// Adds the exceptions to the module.
pub(crate) fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add("Error", m.py().get_type::<Error>())?;
    m.add("Unsupported", m.py().get_type::<Unsupported>())?;
    m.add("Mismatch", m.py().get_type::<Mismatch>())
}

type Refused = (String, String, String);

/// The exception for an error.
pub(crate) fn raised(error: Cause) -> PyErr {
    let message = error.to_string();
    match refused(&error) {
        Some(nodes) => Unsupported::new_err((message, nodes)),
        None if is_mismatch(&error) => Mismatch::new_err(message),
        None => Error::new_err(message),
    }
}

fn is_mismatch(error: &Cause) -> bool {
    matches!(
        error,
        Cause::Input { .. } | Cause::InputKind { .. } | Cause::InputCount { .. } | Cause::Guard { .. }
    )
}

/// The nodes that an error is about; `None` where it is not about the support of a graph.
fn refused(error: &Cause) -> Option<Vec<Refused>> {
    Some(match error {
        Cause::Unsupported(list) | Cause::Misstated(list) => {
            list.iter().map(|e| (e.node.clone(), e.target.clone(), e.error.to_string())).collect()
        }
        Cause::Functionalize(list) => {
            list.iter().map(|e| (e.node.clone(), e.target.clone(), e.problem.to_string())).collect()
        }
        Cause::Graph(list) => {
            let node = |e: &ferroflux::fx_ir::VerifyError| e.node.clone().unwrap_or_default();
            list.iter().map(|e| (node(e), String::new(), e.problem.to_string())).collect()
        }
        Cause::Compile(error) => {
            let one = |p: &ferroflux::Problem| (p.node.clone(), p.target.clone(), p.what.clone());
            error.problems().iter().map(one).collect()
        }
        Cause::Refused { refused, .. } => {
            refused.iter().map(|line| (quoted(line), String::new(), line.clone())).collect()
        }
        _ => return None,
    })
}

/// The first name in backticks.
fn quoted(line: &str) -> String {
    line.split('`').nth(1).unwrap_or_default().to_owned()
}

/// Runs `body`; a panic in it is an error, since the process belongs to somebody else.
pub(crate) fn guarded<T: Send>(body: impl FnOnce() -> Result<T, Cause> + Send) -> Result<T, Cause> {
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| with_threads(body)));
    caught.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic");
        Err(Cause::Internal(text.to_owned()))
    })
}
