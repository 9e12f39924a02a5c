//! Weights and inputs for commands that run a model without being told its inputs: from files, by the case's formulas, or
//! synthetic. `bench`, `verify` and `minify` take them.

use std::path::PathBuf;

use anyhow::Result;
use ferroflux::Input;
use ferroflux::tensor::safetensors::SafetensorsFile;

use crate::golden::FormulaWeights;
use crate::inputs::{self, SetArgs};
use crate::model::{self, Model};
use crate::options::WeightArgs;
use crate::synthetic_weights::SyntheticWeights;

/// Where inputs and weights come from.
#[derive(clap::Args)]
pub(crate) struct GivenArgs {
    /// Safetensors file with the inputs; made up where not given.
    #[arg(long, value_name = "FILE")]
    pub(crate) inputs: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) set: SetArgs,
    #[command(flatten)]
    pub(crate) weights: WeightArgs,
}

impl GivenArgs {
    /// The formulas of all weights that no file has. They are computed later, on the backend's device where it keeps tensors
    /// there.
    pub(crate) fn weights(&self, model: &mut Model) -> Result<Option<SafetensorsFile>> {
        let given = self.inputs.as_deref().map(model::tensors).transpose()?;
        model.fill_from_files(&self.weights)?;
        for file in given.iter().chain(&model.golden) {
            model.program.make_weights(&FormulaWeights::of(file)?);
        }
        model.program.make_weights(&SyntheticWeights);
        Ok(given)
    }

    /// The inputs of a call; `given` is what [`GivenArgs::weights`] has read.
    pub(crate) fn inputs(&self, model: &Model, given: Option<SafetensorsFile>) -> Result<Vec<Input>> {
        let infos = model.program.inputs();
        let set = self.set.of(&infos)?;
        let Some(file) = given.as_ref().or(model.golden.as_ref()) else {
            return inputs::any(&infos, &model.program.graph().symbols, &set);
        };
        // A case with symbolic sizes has several samples; the first is taken.
        let prefix = if file.tensors.contains_key("s0.in0") { "s0." } else { "" };
        inputs::from_file(&infos, file, prefix, &set)
    }

    /// Weights on the host, and inputs.
    pub(crate) fn all(&self, model: &mut Model) -> Result<Vec<Input>> {
        let given = self.weights(model)?;
        model.program.make_weights_now()?;
        self.inputs(model, given)
    }
}
