//! Gradients and training, compiled: the joint graph of a program, its two halves on any backend ([`Differentiated`]), and
//! forward, backward and optimizer update as one program ([`TrainStep`]).
//!
//! ```no_run
//! use ferroflux::optim::{Adam, Optimizer};
//! use ferroflux::train::{DiffOptions, TrainOptions};
//! use ferroflux::{Options, Program, Tensor};
//!
//! let program = Program::load("model_with_loss.pt2")?;
//! # let (image, label) = (Tensor::zeros(ferroflux::DType::F32, &[1])?, Tensor::zeros(ferroflux::DType::I64, &[1])?);
//! // The two halves, as `loss = model(x); loss.backward()` runs them.
//! let model = program.differentiate(&DiffOptions::new(), &Options::new())?;
//! let (outputs, saved) = model.forward(&[image.clone(), label.clone()])?;
//! let gradients = saved.backward(&[])?;
//! println!("{:?}", gradients.parameter("fc.weight"));
//! // Or whole steps, each one compiled program.
//! let mut step = program.train_step(&TrainOptions::new(Optimizer::Adam(Adam::adamw())), &Options::new())?;
//! println!("loss {}", step.step(&[image, label], 1e-3)?.loss);
//! # Ok::<(), ferroflux::Error>(())
//! ```
//!
//! Not here: the rules (`prims`), the passes over graphs (`aot_autograd`), the optimizers' arithmetic ([`crate::optim`]).

mod differentiated;
mod graphs;
mod layout;
pub(crate) mod plan;
mod snapshot;
mod step;
mod update;
mod wiring;

pub use aot_autograd::{GradError, JointError, JointGraph, Partition, Tangents, Wrt};
pub use differentiated::{Differentiated, Gradient, Gradients, Saved, TangentInfo};
pub use graphs::DiffOptions;
pub use snapshot::{PartPlace, Snapshot};
pub use step::{Clip, Scaler, StepOutcome, TrainOptions, TrainStep};
