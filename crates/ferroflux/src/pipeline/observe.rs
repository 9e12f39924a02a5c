//! Observers of the graph between stages and passes: the verifier, the printer, and callbacks. Also the names by which the
//! environment and the command line select stages and passes.

use aot_autograd::passes::PASSES;
use fx_ir::Graph;

use super::{Error, KERNELS, STAGES, Stage};

/// The pass of the lowering that writes new values of state in place; `FERROFLUX_SKIP_PASSES` may skip it too.
pub(super) const IN_PLACE: &str = "in_place";

/// Names of the stages, of the passes of stage `optimized`, and of the kernels.
pub fn names() -> impl Iterator<Item = &'static str> {
    STAGES.iter().map(|s| s.name).chain(PASSES.iter().map(|p| p.name)).chain([KERNELS])
}

/// Which graphs are printed.
#[derive(Clone, Debug, PartialEq)]
enum Print {
    Nothing,
    All,
    After(Vec<String>),
}

impl Print {
    /// Reads `FERROFLUX_PRINT`.
    fn parse(text: &str) -> Result<Print, Error> {
        let mut after = Vec::new();
        for item in text.split(',').map(str::trim).filter(|item| !item.is_empty()) {
            if item == "after-all" {
                return Ok(Print::All);
            }
            let unknown = || unknown("FERROFLUX_PRINT", item, ["after-all", "after:NAME"].into_iter());
            let name = item.strip_prefix("after:").ok_or_else(unknown)?;
            after.push(known("FERROFLUX_PRINT", name)?.to_owned());
        }
        Ok(if after.is_empty() { Print::Nothing } else { Print::After(after) })
    }

    fn wants(&self, name: &str) -> bool {
        match self {
            Print::Nothing => false,
            Print::All => true,
            Print::After(names) => names.iter().any(|n| n == name),
        }
    }
}

fn unknown<'n>(what: &str, name: &str, known: impl Iterator<Item = &'n str>) -> Error {
    Error::UnknownStage { what: what.into(), name: name.into(), known: known.collect::<Vec<_>>().join(", ") }
}

/// The error for a name whose result is not a graph.
pub(crate) fn not_a_graph(what: &str, name: &str) -> Error {
    unknown(what, name, names().filter(|n| *n != name))
}

/// Checks that a stage or pass has this name; `what` is the option that contains it.
///
/// # Errors
/// No stage or pass has it; the error lists the existing names.
pub(crate) fn known(what: &str, name: &str) -> Result<&'static str, Error> {
    names().find(|n| *n == name).ok_or_else(|| unknown(what, name, names()))
}

/// Names of passes that do not run.
pub(super) fn skipped() -> Result<Vec<String>, Error> {
    skipped_in(&std::env::var("FERROFLUX_SKIP_PASSES").unwrap_or_default())
}

fn skipped_in(text: &str) -> Result<Vec<String>, Error> {
    let passes = || PASSES.iter().map(|p| p.name).chain([IN_PLACE]);
    let wanted = text.split(',').map(str::trim).filter(|name| !name.is_empty());
    let known = |name: &str| match passes().any(|n| n == name) {
        true => Ok(name.to_owned()),
        false => Err(unknown("FERROFLUX_SKIP_PASSES", name, passes())),
    };
    wanted.map(known).collect()
}

/// The actions after every stage and pass.
pub(super) struct Observer<'a> {
    print: Print,
    /// Called with each graph and the name of the stage or pass.
    pub(super) see: Option<&'a dyn Fn(&str, &Graph)>,
}

impl Observer<'_> {
    /// Configured by the environment.
    pub(super) fn of_environment() -> Result<Self, Error> {
        let print = Print::parse(&std::env::var("FERROFLUX_PRINT").unwrap_or_default())?;
        Ok(Observer { print, see: None })
    }

    /// Called after a stage, or after a pass within it.
    pub(super) fn behind(&self, stage: &Stage, pass: Option<&str>, graph: &Graph) -> Result<(), Error> {
        let name = pass.unwrap_or(stage.name);
        if self.print.wants(name) {
            eprintln!("# ----- after {}: graph {:?}\n{graph}", place(stage, pass), graph.name);
        }
        if let Some(see) = self.see {
            see(name, graph);
        }
        if cfg!(debug_assertions) { verified(stage, pass, graph) } else { Ok(()) }
    }

    /// Called after the lowering.
    pub(super) fn kernels(&self, program: &kernel_ir::Program) -> Result<(), Error> {
        if self.print.wants(KERNELS) {
            eprintln!("# ----- after stage {KERNELS}: program {:?}\n{program}", program.name);
        }
        if cfg!(debug_assertions) {
            let wrong = |e| Error::Internal(format!("the lowered program is not well formed: {e}"));
            kernel_ir::verify(program).map_err(wrong)?;
        }
        Ok(())
    }
}

fn place(stage: &Stage, pass: Option<&str>) -> String {
    match pass {
        None => format!("stage {}", stage.name),
        Some(pass) => format!("pass {pass} of stage {}", stage.name),
    }
}

/// An internal error where a graph violates the dialect of its stage.
pub(super) fn verified(stage: &Stage, pass: Option<&str>, graph: &Graph) -> Result<(), Error> {
    (stage.legality)(graph).map_err(|violations| {
        let lines: Vec<String> = violations.iter().map(ToString::to_string).collect();
        Error::Internal(format!(
            "after {} the graph should be well formed in the {} dialect: {}",
            place(stage, pass),
            stage.dialect,
            lines.join("; ")
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_names_stages_and_passes() {
        assert_eq!(Print::parse("").ok(), Some(Print::Nothing));
        assert_eq!(Print::parse("after-all").ok(), Some(Print::All));
        let two = Print::parse("after:prim, after:cse").ok();
        assert_eq!(two, Some(Print::After(vec!["prim".into(), "cse".into()])));
        for (text, message) in [("after:csf", "cse-again, dead, kernels"), ("prim", "after-all, after:NAME")]
        {
            let error = Print::parse(text).map_err(|e| e.to_string());
            assert!(error.as_ref().is_err_and(|e| e.contains(message)), "{text}: {error:?}");
        }
        assert_eq!(skipped_in("cse,in_place").ok(), Some(vec!["cse".into(), "in_place".into()]));
        let error = skipped_in("csf").map_err(|e| e.to_string());
        assert!(error.as_ref().is_err_and(|e| e.contains("fold, views")), "{error:?}");
    }

    #[test]
    fn a_composite_behind_the_prims_is_an_internal_error() {
        let text = "fx 1.0\ngraph \"g\" {\n%x: f32[2] = input \"x\"\n%y: f32[2] = aten.relu.default(%x)\nreturn %y\n}";
        let graph: Result<Graph, _> = text.parse();
        let graph = graph.expect("it parses");
        let error =
            verified(super::super::StageId::Prim.stage(), Some("cse"), &graph).map_err(|e| e.to_string());
        let wanted = "after pass cse of stage prim the graph should be well formed in the prim dialect";
        assert!(error.as_ref().is_err_and(|e| e.contains(wanted) && e.contains("`y`")), "{error:?}");
    }
}
