//! The options of a training step on the command line: the update and the mixed precision. `train` runs such steps,
//! `cache explain` looks them up, `verify` and `minify` look into them.

use anyhow::Result;

use ferroflux::optim::{Adam, Optimizer, Sgd};
use ferroflux::train::{Clip, Scaler, TrainOptions};
use ferroflux::{Input, Options, Program};

use crate::options::Half;
use crate::report::usage;

/// The settings that determine the program of a step.
#[derive(clap::Args)]
pub(crate) struct StepArgs {
    /// Which of the returned tensors is the loss, from 0; not needed where the model returns one alone.
    #[arg(long, value_name = "N")]
    loss: Option<usize>,
    /// The optimizer.
    #[arg(long, value_enum, default_value_t = Kind::Sgd)]
    optimizer: Kind,
    /// Momentum of sgd.
    #[arg(long, default_value_t = 0.0)]
    momentum: f64,
    /// Dampening of sgd's momentum.
    #[arg(long, default_value_t = 0.0)]
    dampening: f64,
    /// Nesterov's momentum.
    #[arg(long)]
    nesterov: bool,
    /// Weight decay; 0.01 for adamw and 0 for the others where not given.
    #[arg(long)]
    weight_decay: Option<f64>,
    /// Decays of adam's running means.
    #[arg(long, value_name = "B1,B2", value_delimiter = ',', num_args = 1, default_values_t = [0.9, 0.999])]
    betas: Vec<f64>,
    /// Added to adam's denominator.
    #[arg(long, default_value_t = 1e-8)]
    eps: f64,
    /// Adam divides by the largest running mean so far.
    #[arg(long)]
    amsgrad: bool,
    /// Scales all gradients down so that their norm is at most this.
    #[arg(long, value_name = "NORM", conflicts_with = "clip_value")]
    clip_norm: Option<f64>,
    /// Limits every element of a gradient.
    #[arg(long, value_name = "LIMIT")]
    clip_value: Option<f64>,
    /// Computes in this dtype what PyTorch's autocast does; f16 scales the loss and leaves out steps that overflow.
    #[arg(long, value_enum, value_name = "DTYPE")]
    pub(crate) autocast: Option<Half>,
}

/// Whether a command that looks into programs looks into a training step of the model, and into which.
#[derive(clap::Args)]
pub(crate) struct TrainedArgs {
    /// Takes a training step of the model (forward, backward, update) instead of inference; the model returns a loss. The
    /// options of the step are those of `ferroflux train`.
    #[arg(long)]
    train: bool,
    /// The learning rate of that step.
    #[arg(long, value_name = "LR", default_value_t = 0.01)]
    lr: f64,
    #[command(flatten)]
    step: StepArgs,
}

impl TrainedArgs {
    /// The program that is meant, and the inputs of its call.
    pub(crate) fn program(
        &self,
        program: &Program,
        inputs: Vec<Input>,
        options: &Options,
    ) -> Result<(Program, Vec<Input>)> {
        if !self.train {
            return Ok((program.clone(), inputs));
        }
        let step = program.step_program(&self.step.options()?, self.lr, options)?;
        let inputs = step.inputs(&inputs)?;
        Ok((step.program().clone(), inputs))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Kind {
    Sgd,
    Adam,
    Adamw,
}

impl StepArgs {
    /// The facade's options.
    pub(crate) fn options(&self) -> Result<TrainOptions> {
        let mut train = TrainOptions::new(self.optimizer()?);
        if let Some(clip) = self.clip()? {
            train = train.clip(clip);
        }
        if let Some(loss) = self.loss {
            train = train.loss(loss);
        }
        Ok(match self.autocast {
            Some(half @ Half::F16) => train.autocast(half.dtype()).scaler(Scaler::default()),
            Some(half) => train.autocast(half.dtype()),
            None => train,
        })
    }

    /// The optimizer, with validated settings.
    pub(crate) fn optimizer(&self) -> Result<Optimizer> {
        let decay = self.weight_decay;
        let optimizer = match self.optimizer {
            Kind::Sgd => Optimizer::Sgd(Sgd {
                momentum: self.momentum,
                dampening: self.dampening,
                weight_decay: decay.unwrap_or(0.0),
                nesterov: self.nesterov,
                maximize: false,
            }),
            kind => {
                let [beta1, beta2] = self.betas[..] else {
                    return Err(usage("`--betas` takes two numbers", "for example `--betas 0.9,0.999`"));
                };
                let base = if kind == Kind::Adamw { Adam::adamw() } else { Adam::default() };
                let weight_decay = decay.unwrap_or(base.weight_decay);
                let (eps, amsgrad) = (self.eps, self.amsgrad);
                Optimizer::Adam(Adam { beta1, beta2, eps, amsgrad, weight_decay, ..base })
            }
        };
        optimizer.check().map_err(|why| usage(why, "see `ferroflux train --help`"))?;
        Ok(optimizer)
    }

    /// The clipping of gradients.
    pub(crate) fn clip(&self) -> Result<Option<Clip>> {
        let clip = match (self.clip_norm, self.clip_value) {
            (Some(max), _) => Some(Clip::Norm { max, error_if_nonfinite: true }),
            (None, value) => value.map(Clip::Value),
        };
        let limit = self.clip_norm.or(self.clip_value).unwrap_or(1.0);
        if limit > 0.0 {
            Ok(clip)
        } else {
            Err(usage(format!("gradients clipped at {limit}"), "give a limit above 0"))
        }
    }
}
