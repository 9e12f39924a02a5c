//! A training step as a program like any other, so that [`crate::verify`] and [`crate::minify`] look into steps too. Not here:
//! steps that train ([`super::TrainStep`]).

use std::collections::BTreeMap;

use fx_ir::InputKind;
use plugin_host::Value;
use tensor::Tensor;

use super::graphs::mixed;
use super::plan::{StepPlan, numbers};
use super::step::TrainOptions;
use crate::inputs::varying;
use crate::{Error, Input, InputInfo, Options, Program};

/// Forward, backward and update as a program: a call computes the loss, the other results, and the new values of parameters,
/// buffers and the optimizer's tensors for the first step, and changes none of them.
#[derive(Clone, Debug)]
pub struct StepProgram {
    program: Program,
    /// The inputs of the model.
    model: Vec<InputInfo>,
    /// The numbers of the first step, which come after them.
    numbers: Vec<Tensor>,
}

impl Program {
    /// The first training step with this learning rate as a program. Its graph is the one that a step compiles: the backward
    /// reads what is worth saving and computes the rest again, and every node has the origin of the forward's node that it
    /// belongs to.
    ///
    /// # Errors
    /// As for [`train_step`](Program::train_step).
    pub fn step_program(
        &self,
        train: &TrainOptions,
        lr: f64,
        options: &Options,
    ) -> Result<StepProgram, Error> {
        self.require_weights()?;
        train.optimizer.check().map_err(Error::Optimizer)?;
        let backend = crate::registry().load(&options.backend)?;
        let planned = StepPlan::make(self, train, &mixed(Some((&backend, options)), train.autocast)?)?;
        let (plan, graph) = (planned.plan, planned.graph);
        let mut weights = BTreeMap::new();
        for (_, kind, name) in graph.inputs() {
            if matches!(kind, InputKind::User | InputKind::Seed) {
                continue;
            }
            let tensor = match plan.slots.iter().find(|slot| slot.name == name) {
                Some(slot) => Some(Tensor::zeros(slot.dtype, &slot.sizes)?),
                None => match self.weight_value(name, None)? {
                    Some(Value::Host(tensor)) => Some(tensor),
                    _ => None,
                },
            };
            weights.extend(tensor.map(|t| (name.to_owned(), t)));
        }
        let scale = train.scaler.as_ref().map_or(1.0, |s| s.scale);
        let numbers = numbers(&plan.numbers, &train.optimizer.numbers(lr, 1), scale)?;
        let program = Program::from_graph(graph, &weights)?.named(self.name());
        Ok(StepProgram { program, model: self.inputs(), numbers })
    }
}

impl StepProgram {
    /// The program.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// The inputs of a call: those of the model, then the numbers of the step.
    ///
    /// # Errors
    /// An input is on a device.
    pub fn inputs(&self, of_model: &[Input]) -> Result<Vec<Input>, Error> {
        let mut all = Vec::with_capacity(of_model.len() + self.numbers.len());
        for input in varying(&self.model, of_model) {
            all.push(input.host()?.map_or_else(|| input.clone(), Input::from));
        }
        all.extend(self.numbers.iter().map(Input::from));
        Ok(all)
    }
}
