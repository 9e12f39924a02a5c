//! In-place operators and what they mean for views: a new value of a view becomes a new value of the tensor that it is a view
//! of, and views follow from the new value of their base when they are read. The rules of views are functionalization's.

use std::panic::Location;
use std::sync::atomic::Ordering;

use aot_autograd::{ViewInverse, ViewRule};
use dynamo::{CaptureError, Operand, Recorded, Value, frame, record};
use prims::OpError;

use super::Tensor;

/// How a view follows from its base, and how it is written back: functionalization's rule, with operands that stay symbolic
/// where a function is captured with dynamic sizes.
pub(super) struct Rule {
    target: String,
    rest: Vec<Operand>,
    inverse: Inverse,
}

enum Inverse {
    Identity,
    Reshape,
    Call(String, Vec<Operand>),
    Scatter(String, Vec<Operand>),
    Refused(&'static str),
}

impl Rule {
    pub(super) fn new(rule: ViewRule) -> Rule {
        let inverse = match rule.inverse {
            ViewInverse::Identity => Inverse::Identity,
            ViewInverse::Reshape => Inverse::Reshape,
            ViewInverse::Call(target, args) => Inverse::Call(target, frame::operands(&args)),
            ViewInverse::Scatter(target, args) => Inverse::Scatter(target, frame::operands(&args)),
            ViewInverse::Refused(why) => Inverse::Refused(why),
        };
        Rule { target: rule.target, rest: frame::operands(&rule.args), inverse }
    }
}

/// The value of a view of `base` as it is now.
#[track_caller]
pub(super) fn replayed(rule: &Rule, base: &Tensor) -> Result<Value, CaptureError> {
    one(&rule.target, Operand::Value(base.value()?), &[], &rule.rest)
}

/// Records a call and gives its first result.
#[track_caller]
fn one(target: &str, first: Operand, more: &[Operand], rest: &[Operand]) -> Result<Value, CaptureError> {
    let at = Location::caller();
    let unknown = || CaptureError::Call { at, source: OpError::Unknown(target.into()) };
    let op = prims::lookup(target).ok_or_else(unknown)?;
    let mut operands = vec![first];
    operands.extend(more.iter().chain(rest).cloned());
    operands.truncate(op.schema.args.len());
    match record(op, operands)? {
        Recorded::Values(values) => values.into_iter().next().ok_or(CaptureError::NotComputed),
        Recorded::RunNow(_) => Err(unknown()),
    }
}

/// Gives a tensor a new value of the same sizes, converted to its dtype.
///
/// # Errors
/// Other sizes; a variable that requires a gradient, where gradients are recorded; a view that cannot be written through.
#[track_caller]
pub(crate) fn assign(tensor: &Tensor, new: Value) -> Result<(), CaptureError> {
    let at = Location::caller();
    let invalid =
        |what: String| CaptureError::Call { at, source: OpError::Invalid { op: "in-place".into(), what } };
    let (given, tensor) = (tensor, tensor.real());
    let old = tensor.value()?;
    if new.meta().sizes != old.meta().sizes {
        let (is, was) = (&new.meta().sizes, &old.meta().sizes);
        return Err(invalid(format!("the result has sizes {is:?}, the tensor that is written has {was:?}")));
    }
    let new = match new.meta().dtype == old.meta().dtype {
        true => new,
        false => one("aten.to.dtype", Operand::Value(new), &[], &[Operand::Arg(old.meta().dtype.into())])?,
    };
    if let Some(view) = &tensor.0.view {
        let back = written_back(&view.rule, &view.base, &new).map_err(|e| e.unwrap_or_else(invalid))?;
        assign(&view.base, back)?;
        let value = replayed(&view.rule, &view.base)?;
        if !frame::is_outside(tensor.cell()?) {
            tensor.cell()?.set(Some(value));
            view.seen.store(view.base.version(), Ordering::Release);
        }
        return Ok(());
    }
    let new = match old.slot() {
        Some(_) if dynamo::grad_enabled() => {
            let what = "a tensor that requires a gradient is written: do it within `no_grad`";
            return Err(invalid(what.into()));
        }
        Some(slot) => Value::variable(new, slot.clone()),
        None => new,
    };
    match tensor.cell()?.try_set(Some(new)) {
        // The capture has ended, and the tensor is the caller's now, which may be a view.
        Some(Some(new)) if new.slot().is_some() => assign(given, new.detached()),
        Some(Some(new)) => assign(given, new),
        _ => Ok(()),
    }
}

/// Why a view is not written back.
enum NotWritten {
    Refused(&'static str),
    Call(CaptureError),
}

impl NotWritten {
    fn unwrap_or_else(self, invalid: impl Fn(String) -> CaptureError) -> CaptureError {
        match self {
            NotWritten::Call(error) => error,
            NotWritten::Refused(why) => {
                invalid(format!("a view is written that {why}: copy it first (`clone`)"))
            }
        }
    }
}

/// The new value of the base of a view.
#[track_caller]
fn written_back(rule: &Rule, base: &Tensor, new: &Value) -> Result<Value, NotWritten> {
    let call = |target: &str, first: &Value, more: &[Operand], rest: &[Operand]| {
        one(target, Operand::Value(first.clone()), more, rest).map_err(NotWritten::Call)
    };
    match &rule.inverse {
        Inverse::Identity => Ok(new.clone()),
        Inverse::Reshape => {
            let sizes = base.value().map_err(NotWritten::Call)?.sizes();
            let sizes = Operand::List(sizes.into_iter().map(Operand::Size).collect());
            call("aten.view.default", new, &[sizes], &[])
        }
        Inverse::Call(target, args) => call(target, new, &[], args),
        Inverse::Scatter(target, args) => {
            let old = base.value().map_err(NotWritten::Call)?;
            call(target, &old, &[Operand::Value(new.clone())], args)
        }
        Inverse::Refused(why) => Err(NotWritten::Refused(why)),
    }
}

impl Tensor {
    /// Gives it the elements of another tensor, broadcast and converted, as `copy_`. Parameters keep being variables.
    ///
    /// # Errors
    /// Sizes that do not broadcast to its own; a tensor that requires a gradient, outside of [`no_grad`](crate::eager::no_grad).
    #[track_caller]
    pub fn copy_(&self, from: &Tensor) -> Result<&Tensor, crate::Error> {
        let new = self.call("aten.copy.default", [from.into()]).value()?;
        assign(self, new)?;
        Ok(self)
    }

    /// Gives it a new value, computed by the caller from the old one: the form of all in-place operators.
    ///
    /// # Errors
    /// Other sizes; a tensor that requires a gradient, outside of [`no_grad`](crate::eager::no_grad).
    #[track_caller]
    pub fn set_(&self, new: &Tensor) -> Result<&Tensor, crate::Error> {
        assign(self, new.value()?)?;
        Ok(self)
    }
}

macro_rules! in_place {
    ($($name:ident $target:literal $doc:literal;)*) => {
        impl Tensor {$(
            #[doc = $doc]
            ///
            /// # Errors
            /// A refused call, and as for [`Tensor::set_`].
            #[track_caller]
            pub fn $name(&self, other: impl Into<super::Input>) -> Result<&Tensor, crate::Error> {
                self.set_(&self.call($target, [other.into()]))
            }
        )*}
    };
}

in_place! {
    add_ "aten.add.Tensor" "Adds a tensor or a number in place.";
    sub_ "aten.sub.Tensor" "Subtracts a tensor or a number in place.";
    mul_ "aten.mul.Tensor" "Multiplies by a tensor or a number in place.";
    div_ "aten.div.Tensor" "Divides by a tensor or a number in place.";
    fill_ "aten.fill.Scalar" "Sets all elements to a number.";
}

impl Tensor {
    /// Sets all elements to zero.
    ///
    /// # Errors
    /// As for [`Tensor::set_`].
    #[track_caller]
    pub fn zero_(&self) -> Result<&Tensor, crate::Error> {
        self.fill_(0.0)
    }
}
