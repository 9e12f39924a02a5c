//! The contents of an entry for a program: everything from which an executable is created without running a pass, and its
//! relation to the caller.

use fx_ir::Symbols;
use ir_core::DType;
use plugin_host::{CompileArgs, KERNEL_IR, LoadedBackend, LoadedExecutable};
use serde::{Deserialize, Serialize};

use crate::Options;
use crate::compiled::{Sink, Source};
use crate::pipeline::Kernels;
use crate::train::plan::StepPlan;

/// A compiled program before its constants are bound.
pub(crate) struct Form {
    /// The fused program.
    pub(crate) kernels: Kernels,
    /// For each result of the graph that is a value its dtype for the caller, where kernels have another.
    pub(crate) shown: Vec<Option<DType>>,
    /// The relation of its inputs and outputs to its caller.
    pub(crate) caller: Caller,
}

/// The relation of a program to its caller, as the passes would determine it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Caller {
    /// Code of prims, whose caller has the graph.
    Graph,
    /// A whole model.
    Model(Wiring),
    /// A training step.
    Step(StepPlan),
}

/// The relation of a functional graph's placeholders and outputs to its caller.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Wiring {
    /// The size symbols.
    pub(crate) symbols: Symbols,
    /// Names of the buffers that calls write.
    pub(crate) state: Vec<String>,
    /// What each input of the code is.
    pub(crate) sources: Vec<Source>,
    /// What each output of the code is.
    pub(crate) sinks: Vec<Sink>,
}

/// The part of a form that is neither the program nor machine code.
#[derive(Serialize, Deserialize)]
struct Facts {
    in_place: Vec<bool>,
    shown: Vec<Option<DType>>,
    caller: Caller,
}

/// The sections of an entry.
pub(super) struct Sections {
    program: Vec<u8>,
    facts: Vec<u8>,
    /// Empty where the backend makes no artifact.
    artifact: Vec<u8>,
}

impl Sections {
    /// Of a compiled program.
    pub(super) fn of(form: &Form, executable: &LoadedExecutable) -> Result<Sections, String> {
        let Kernels { program, in_place } = &form.kernels;
        let facts =
            Facts { in_place: in_place.clone(), shown: form.shown.clone(), caller: form.caller.clone() };
        let facts = serde_json::to_vec(&facts).map_err(|e| e.to_string())?;
        let artifact = executable.save_artifact().map_err(|e| e.to_string())?;
        Ok(Sections { program: program.to_bytes(), facts, artifact: artifact.unwrap_or_default() })
    }

    pub(super) fn list(&self) -> [&[u8]; 3] {
        [&self.program, &self.facts, &self.artifact]
    }
}

/// Restores the form and its executable from an entry's sections.
///
/// # Errors
/// The reason why the entry cannot be used.
pub(super) fn restore(
    sections: &[&[u8]],
    backend: &LoadedBackend,
    options: &Options,
) -> Result<(Form, LoadedExecutable), String> {
    let [bytes, facts, artifact] = sections else { return Err("it has other sections".into()) };
    let Facts { in_place, shown, caller } = serde_json::from_slice(facts).map_err(|e| e.to_string())?;
    let program = kernel_ir::Program::from_bytes(bytes).map_err(|e| e.to_string())?;
    let executable = if artifact.is_empty() {
        let list = options.backend_option_list();
        let args = CompileArgs::new(KERNEL_IR, bytes).mode(options.mode.name()).options(&list);
        backend.compile(&args)
    } else {
        backend.load_artifact(artifact, None)
    };
    let executable = executable.map_err(|e| e.to_string())?;
    if executable.num_constants() != program.constants.len()
        || executable.num_inputs() != program.inputs.len()
        || executable.num_outputs() != program.outputs.len()
    {
        return Err("its machine code is that of another program".into());
    }
    Ok((Form { kernels: Kernels { program, in_place }, shown, caller }, executable))
}
