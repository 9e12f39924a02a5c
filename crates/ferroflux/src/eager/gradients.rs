//! Gradients: `backward` accumulates them in the variables, `gradients` returns them. Both record the backward pass; it runs
//! when a gradient is wanted, fused with what of the forward has not run yet.

use dynamo::{CaptureError, Gradient, Value, gradients};

use super::{Tensor, call};
use crate::Error;

impl Tensor {
    /// Computes the gradients of this number with respect to all variables that it depends on, and adds each to that of the
    /// variable ([`Tensor::grad`]).
    ///
    /// # Errors
    /// A tensor of several elements, one that depends on no variable, and calls without a gradient.
    #[track_caller]
    pub fn backward(&self) -> Result<(), Error> {
        accumulate(gradients(&self.value()?, None)?)
    }

    /// As [`backward`](Tensor::backward), for a tensor of any sizes: `tangent` is of its type.
    ///
    /// # Errors
    /// A tangent of another type; as for [`backward`](Tensor::backward).
    #[track_caller]
    pub fn backward_with(&self, tangent: &Tensor) -> Result<(), Error> {
        let (value, tangent) = (self.value()?, tangent.value()?);
        if value.meta() != tangent.meta() {
            let what = format!("the tangent is {:?}, the tensor {:?}", tangent.meta(), value.meta());
            return Err(Error::Function(what));
        }
        accumulate(gradients(&value, Some(&tangent))?)
    }

    /// The gradient that was accumulated for this variable.
    pub fn grad(&self) -> Option<Tensor> {
        self.grad_cell().get().map(Tensor::new)
    }

    /// Forgets the accumulated gradient, as `zero_grad`.
    pub fn clear_grad(&self) {
        if self.grad_cell().get().is_some() {
            self.grad_cell().set(None);
        }
    }

    /// The gradients of this number with respect to these variables, without accumulating them: `torch.autograd.grad`. Zeros
    /// where it does not depend on one.
    ///
    /// # Errors
    /// As for [`backward`](Tensor::backward).
    #[track_caller]
    pub fn gradients(&self, of: &[&Tensor]) -> Result<Vec<Tensor>, Error> {
        let found = gradients(&self.value()?, None)?;
        let one = |t: &&Tensor| {
            let slot = t.value()?.slot().cloned();
            let is = |g: &&Gradient| match (&slot, g.variable.slot()) {
                (Some(a), Some(b)) => std::sync::Arc::ptr_eq(a, b),
                _ => false,
            };
            Ok(match found.iter().find(is) {
                Some(g) => Tensor::new(g.value.clone()),
                None => t.like(super::Init::Zeros),
            })
        };
        of.iter().map(one).collect()
    }
}

fn accumulate(list: Vec<Gradient>) -> Result<(), Error> {
    for Gradient { variable, value } in list {
        let Some(slot) = variable.slot() else { continue };
        let new: Result<Value, CaptureError> = match slot.get() {
            None => Ok(value),
            Some(old) => {
                let (old, new) = (Tensor::new(old), Tensor::new(value));
                dynamo::no_grad(|| call("aten.add.Tensor", [old.into(), new.into()])).value()
            }
        };
        slot.set(Some(new?));
    }
    Ok(())
}
