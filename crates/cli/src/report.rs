//! Errors as the user sees them: the failure, its causes, and what to do.

use std::fmt::{self, Write as _};
use std::io::{IsTerminal, Write as _};
use std::process::ExitCode;

use ferroflux::Error;
use plugin_host::PluginFailure;

/// An error of the command itself, with advice.
#[derive(Debug)]
pub(crate) struct Advised {
    message: String,
    hint: String,
    /// The command line is invalid: exit code 2.
    usage: bool,
}

impl fmt::Display for Advised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Advised {}

/// An error with what to do about it; an empty `hint` is none.
pub(crate) fn advised(message: impl Into<String>, hint: impl Into<String>) -> anyhow::Error {
    Advised { message: message.into(), hint: hint.into(), usage: false }.into()
}

/// An error of the command line itself.
pub(crate) fn usage(message: impl Into<String>, hint: impl Into<String>) -> anyhow::Error {
    Advised { message: message.into(), hint: hint.into(), usage: true }.into()
}

/// 2 for an error of usage, else 1.
pub(crate) fn exit_code(error: &anyhow::Error) -> ExitCode {
    let usage = error.downcast_ref::<Advised>().is_some_and(|a| a.usage);
    ExitCode::from(if usage { 2 } else { 1 })
}

/// Prints the error on the standard error.
pub(crate) fn print(error: &anyhow::Error) {
    let stderr = std::io::stderr();
    let colour = stderr.is_terminal() && std::env::var_os("NO_COLOR").is_none();
    // If standard error is closed, the message is lost.
    let _ = stderr.lock().write_all(render(error, colour).as_bytes());
}

/// `error: …`, then `  cause: …` for what lies below, then `  hint: …`.
fn render(error: &anyhow::Error, colour: bool) -> String {
    let (red, cyan, plain) = if colour { ("\x1b[1;31m", "\x1b[1;36m", "\x1b[0m") } else { ("", "", "") };
    let mut out = String::new();
    let mut said = String::new();
    for (n, cause) in error.chain().enumerate() {
        let text = cause.to_string();
        // Many errors print their own cause; it is not said twice.
        if n > 0 && said.contains(&text) {
            continue;
        }
        let label = if n == 0 { format!("{red}error{plain}: ") } else { "  cause: ".to_owned() };
        let _ = writeln!(out, "{label}{}", text.replace('\n', "\n    "));
        said.push_str(&text);
    }
    if let Some(hint) = hint(error) {
        let _ = writeln!(out, "  {cyan}hint{plain}: {hint}");
    }
    out
}

/// Advice to the user, where more can be said than the message says.
fn hint(error: &anyhow::Error) -> Option<String> {
    error.chain().find_map(|cause| {
        if let Some(own) = cause.downcast_ref::<Advised>() {
            return (!own.hint.is_empty()).then(|| own.hint.clone());
        }
        let text = match cause.downcast_ref::<Error>()? {
            Error::Unsupported(_) | Error::Functionalize(_) | Error::Compile(_) => {
                "`ferroflux explain MODEL` lists everything in the model that is not supported; `--backend eager` may run more"
            }
            // The message says what of the call to correct.
            Error::Backend(e) if e.plugin_failure().is_some_and(PluginFailure::is_callers) => return None,
            Error::Backend(_) => {
                "`ferroflux backends` lists every backend with its modes and options, and the reason where one cannot run"
            }
            Error::Refused { .. } => "another backend may take it: see `ferroflux backends`; `eager` takes the most",
            Error::Input { .. } | Error::InputCount { .. } => {
                "`ferroflux graph MODEL --readable` shows the model's inputs with their dtypes and sizes"
            }
            _ => return None,
        };
        Some(text.into())
    })
}

/// A panic is a defect of the compiler; it is reported in one line, with its location.
pub(crate) fn install_panic_hook() {
    std::panic::set_hook(Box::new(|info| {
        let text = info.payload_as_str().unwrap_or("no message");
        let place = info.location().map(ToString::to_string).unwrap_or_default();
        let _ = writeln!(
            std::io::stderr(),
            "error: internal error at {place}: {text}\n  hint: this is a bug of ferroflux; please report it with the model"
        );
    }));
}

#[cfg(test)]
mod tests {
    use anyhow::Context;

    use super::*;

    #[test]
    fn causes_and_hint_follow() {
        let error = Err::<(), _>(advised("no tensor `x`", "give it")).context("in.safetensors").unwrap_err();
        assert_eq!(render(&error, false), "error: in.safetensors\n  cause: no tensor `x`\n  hint: give it\n");
    }

    #[test]
    fn a_cause_is_not_said_twice() {
        let error = anyhow::anyhow!("inner").context("outer: inner");
        assert_eq!(render(&error, false), "error: outer: inner\n");
    }
}
