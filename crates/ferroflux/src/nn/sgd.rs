//! Stochastic gradient descent on tensors with gradients, as a program writes it by hand. In a captured function it is a part of
//! the graph. The optimizers of compiled training steps are [`crate::optim`].

use dynamo::no_grad;
use ir_core::DType;

use super::Init;
use crate::Error;
use crate::eager::Tensor;

/// Stochastic gradient descent with momentum.
pub struct Sgd {
    parameters: Vec<(Tensor, Option<Tensor>)>,
    /// The learning rate, a tensor so that another rate compiles nothing again.
    lr: Tensor,
    momentum: f64,
    weight_decay: f64,
}

impl Sgd {
    /// Without momentum and weight decay.
    pub fn new(parameters: Vec<Tensor>, lr: f64) -> Sgd {
        let parameters = parameters.into_iter().map(|p| (p, None)).collect();
        Sgd { parameters, lr: Tensor::number(lr, DType::F64), momentum: 0.0, weight_decay: 0.0 }
    }
    /// The same with momentum.
    pub fn momentum(mut self, momentum: f64) -> Sgd {
        self.momentum = momentum;
        for (p, velocity) in &mut self.parameters {
            *velocity = (momentum != 0.0).then(|| no_grad(|| p.like(Init::Zeros)));
        }
        self
    }
    /// The same with weight decay.
    pub fn weight_decay(mut self, weight_decay: f64) -> Sgd {
        self.weight_decay = weight_decay;
        self
    }

    /// Sets the learning rate.
    ///
    /// # Errors
    /// None at present: a number always fits.
    pub fn set_lr(&self, lr: f64) -> Result<(), Error> {
        self.lr.set_(&Tensor::number(lr, DType::F64)).map(|_| ())
    }

    /// One step by the gradients of the parameters; those without one stay.
    ///
    /// # Errors
    /// A tensor of another type than its gradient, which cannot be.
    #[track_caller]
    pub fn step(&self) -> Result<(), Error> {
        no_grad(|| {
            for (p, velocity) in &self.parameters {
                let Some(mut gradient) = p.grad() else { continue };
                if self.weight_decay != 0.0 {
                    gradient = gradient + p * self.weight_decay;
                }
                if let Some(velocity) = velocity {
                    velocity.set_(&(velocity * self.momentum + &gradient))?;
                    gradient = velocity.clone();
                }
                p.sub_(gradient * &self.lr)?;
            }
            Ok(())
        })
    }

    /// Forgets the gradients.
    pub fn zero_grad(&self) {
        self.parameters.iter().for_each(|(p, _)| p.clear_grad());
    }
}
