//! Tensors as PyTorch has them: [`Tensor`] with operators, views, in-place operators and gradients. Operators are recorded and
//! run when a value is wanted: the recorded piece is compiled once for its structure and types, and kept.
//!
//! ```
//! use ferroflux::prelude::*;
//!
//! let x = Tensor::from_slice(&[1.0_f32, 2.0, 3.0, 4.0], &[2, 2]);
//! let y = (&x * 2.0 + 1.0).relu().sum();
//! assert_eq!(y.item()?, 24.0);
//! # Ok::<(), ferroflux::Error>(())
//! ```
//!
//! A call that an operator refuses gives a tensor that holds the error; reading it, or what is computed from it, returns that
//! error with the line of the call. Nothing panics.
//!
//! This is another type than [`crate::Tensor`], which is memory with a shape and what compiled programs take and return.
//! [`Tensor::to_host`] and `From` convert. Not here: recording ([`dynamo`]), and the compilation of whole functions
//! ([`crate::capture`]).

mod arithmetic;
mod autocast;
mod call;
mod create;
mod exchange;
mod gradients;
mod index;
mod methods;
pub(crate) mod mutate;
mod print;
mod run;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use dynamo::{CaptureError, Cell, DimRange, Size, Value, frame};
use ir_core::{DType, Device};
use tensor::{Element, Tensor as HostTensor};

use crate::Error;

pub use autocast::{AutocastMode, autocast, autocast_dtype};
pub use call::{Input, call, call_all};
pub use create::{Init, cat, stack};
pub use dynamo::{GradMode, grad_enabled, manual_seed, no_grad};
pub use index::Index;
pub(crate) use run::force;
pub use run::{compiled_pieces, default_device, set_default_device};

/// A tensor. Cheap to clone: clones are the same tensor, so that an in-place operator on one is seen by all.
#[derive(Clone)]
pub struct Tensor(Arc<Var>);

struct Var {
    /// Its value, or why it has none.
    cell: Result<Arc<Cell>, CaptureError>,
    grad: Arc<Cell>,
    view: Option<View>,
    /// The caller's tensor, where this one stands for an argument of a captured function.
    forward: Option<Tensor>,
    marks: Mutex<Vec<(usize, DimRange)>>,
}

/// How a tensor follows from the one whose memory it shares.
struct View {
    base: Tensor,
    rule: mutate::Rule,
    /// The writes of the base that it has seen.
    seen: AtomicU64,
}

impl Tensor {
    fn with(cell: Result<Arc<Cell>, CaptureError>, view: Option<View>, forward: Option<Tensor>) -> Tensor {
        let (grad, marks) = (Cell::new(None), Mutex::default());
        Tensor(Arc::new(Var { cell, grad, view, forward, marks }))
    }

    /// A new tensor with a recorded value.
    pub(crate) fn new(value: Value) -> Tensor {
        Tensor::with(Ok(Cell::new(Some(value))), None, None)
    }

    pub(crate) fn failed(error: CaptureError) -> Tensor {
        Tensor::with(Err(error), None, None)
    }

    /// A tensor that holds the error of something else.
    pub(crate) fn refused(error: &Error) -> Tensor {
        Tensor::failed(CaptureError::Run(error.to_string()))
    }

    pub(crate) fn from_result(value: Result<Value, CaptureError>) -> Tensor {
        value.map_or_else(Tensor::failed, Tensor::new)
    }

    fn view_of(base: &Tensor, value: Value, rule: mutate::Rule) -> Tensor {
        let seen = AtomicU64::new(base.version());
        let view = View { base: base.clone(), rule, seen };
        Tensor::with(Ok(Cell::new(Some(value))), Some(view), None)
    }

    /// A tensor that stands for this one in a function that is captured.
    pub(crate) fn stand_in(&self) -> Result<Tensor, CaptureError> {
        let value = self.value()?;
        Ok(Tensor::with(Ok(Cell::new(Some(value))), None, Some(self.clone())))
    }

    /// Itself, or the caller's tensor that it stands for once the capture is over.
    fn real(&self) -> &Tensor {
        match (&self.0.forward, &self.0.cell) {
            (Some(caller), Ok(cell)) if !frame::is_argument(cell) => caller.real(),
            _ => self,
        }
    }

    /// The variable that holds its value.
    pub(crate) fn cell(&self) -> Result<&Arc<Cell>, CaptureError> {
        self.real().0.cell.as_ref().map_err(Clone::clone)
    }

    /// The variable itself, without looking for the caller's.
    pub(crate) fn own_cell(&self) -> Result<&Arc<Cell>, CaptureError> {
        self.0.cell.as_ref().map_err(Clone::clone)
    }

    pub(crate) fn own_grad_cell(&self) -> &Arc<Cell> {
        &self.0.grad
    }

    pub(crate) fn grad_cell(&self) -> &Arc<Cell> {
        &self.real().0.grad
    }

    /// The variable whose memory it shares: its own, or that of the tensor that it is a view of.
    pub(crate) fn root_cell(&self) -> Result<&Arc<Cell>, CaptureError> {
        match &self.real().0.view {
            Some(view) => view.base.root_cell(),
            None => self.cell(),
        }
    }

    /// Whether it is a view of another tensor.
    pub(crate) fn is_view(&self) -> bool {
        self.real().0.view.is_some()
    }

    /// Whether both are the same tensor.
    pub fn is(&self, other: &Tensor) -> bool {
        Arc::ptr_eq(&self.real().0, &other.real().0)
    }

    /// Counts the writes to it.
    fn version(&self) -> u64 {
        let own = self.cell().map_or(0, |cell| cell.version());
        own + self.real().0.view.as_ref().map_or(0, |view| view.base.version())
    }

    /// Its recorded value, with what was written to the tensor that it is a view of.
    #[track_caller]
    pub(crate) fn value(&self) -> Result<Value, CaptureError> {
        let this = self.real();
        let cell = this.0.cell.as_ref().map_err(Clone::clone)?;
        let Some(view) = &this.0.view else { return cell.get().ok_or(CaptureError::NotComputed) };
        let version = view.base.version();
        let outside = frame::is_outside(cell);
        if outside || view.seen.load(Ordering::Acquire) != version {
            let value = mutate::replayed(&view.rule, &view.base)?;
            if outside {
                return Ok(value);
            }
            cell.set(Some(value));
            view.seen.store(version, Ordering::Release);
        }
        cell.get().ok_or(CaptureError::NotComputed)
    }

    /// As [`value`](Tensor::value) where no function is captured on this thread, which saves asking for each tensor.
    pub(crate) fn value_outside(&self) -> Result<Value, CaptureError> {
        match (&self.0.view, &self.0.forward, &self.0.cell) {
            (None, None, Ok(cell)) => cell.actual().ok_or(CaptureError::NotComputed),
            _ => self.value(),
        }
    }

    /// Element type; that of a failed tensor is `f32`.
    pub fn dtype(&self) -> DType {
        self.value().map_or(DType::F32, |v| v.meta().dtype)
    }
    /// Where it is: this build computes recorded operators on the host.
    pub fn device(&self) -> Device {
        Device::CPU
    }
    /// Number of dimensions; none after an error.
    pub fn rank(&self) -> usize {
        self.value().map_or(0, |v| v.meta().sizes.len())
    }
    /// The sizes, which are symbolic in a function that is captured with dynamic sizes; none after an error.
    pub fn sizes(&self) -> Vec<Size> {
        self.value().map_or_else(|_| Vec::new(), |v| v.sizes())
    }
    /// The size of a dimension, counted from the end where negative; 0 where there is none.
    pub fn size(&self, dim: i64) -> Size {
        let sizes = self.sizes();
        let at = if dim < 0 { dim + sizes.len() as i64 } else { dim };
        usize::try_from(at).ok().and_then(|at| sizes.get(at).cloned()).unwrap_or_else(|| 0.into())
    }
    /// The sizes as numbers. A function that is captured is then valid for these sizes alone: see [`Tensor::sizes`].
    pub fn shape(&self) -> Vec<usize> {
        self.sizes().iter().map(|s| usize::try_from(s.get()).unwrap_or(0)).collect()
    }
    /// Number of elements.
    pub fn numel(&self) -> Size {
        self.sizes().iter().fold(Size::from(1), |n, s| n * s)
    }

    /// Why it has no value, if a call was refused.
    pub fn error(&self) -> Option<Error> {
        self.value().err().map(Error::Capture)
    }

    /// The elements in memory: what is recorded for it runs now. In a function that is captured this is a graph break.
    ///
    /// # Errors
    /// A refused call on the way to this tensor, errors of the backend, and a graph break that is not allowed.
    #[track_caller]
    pub fn to_host(&self) -> Result<HostTensor, Error> {
        self.host_for("the values of a tensor are read")
    }

    /// The elements in memory; `why` they are wanted is the reason of the graph break.
    #[track_caller]
    fn host_for(&self, why: &str) -> Result<HostTensor, Error> {
        self.value()?;
        frame::interrupt(|| why.to_owned())?;
        let value = self.value()?;
        force(std::slice::from_ref(&value))?;
        Ok(value.data().cloned().ok_or(CaptureError::NotComputed)?)
    }

    /// The elements in row-major order. In a function that is captured this is a graph break.
    ///
    /// # Errors
    /// As for [`to_host`](Tensor::to_host), and another element type.
    #[track_caller]
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>, Error> {
        Ok(self.to_host()?.to_vec::<T>()?)
    }

    /// The only element as a number. In a function that is captured this is a graph break.
    ///
    /// # Errors
    /// As for [`to_host`](Tensor::to_host); another number of elements.
    #[track_caller]
    pub fn item(&self) -> Result<f64, Error> {
        let host = self.to_host()?;
        let several = || {
            Error::Function(format!(
                "`item` of a tensor of sizes {:?}: it must have one element",
                host.sizes()
            ))
        };
        Ok(host.item().ok_or_else(several)?.as_f64())
    }

    /// Computes what is recorded for it, without reading it.
    ///
    /// # Errors
    /// As for [`to_host`](Tensor::to_host).
    #[track_caller]
    pub fn compute(&self) -> Result<&Tensor, Error> {
        self.to_host()?;
        Ok(self)
    }

    /// Declares that a dimension differs from call to call: a compiled function that takes this tensor is compiled for all
    /// sizes from `min` to `max` at once, and it is an error if it is valid for one size alone.
    pub fn mark_dynamic(&self, dim: usize, min: i64, max: Option<i64>) {
        let mut marks = self.0.marks.lock().unwrap_or_else(PoisonError::into_inner);
        marks.retain(|(other, _)| *other != dim);
        marks.push((dim, DimRange { min, max }));
    }

    pub(crate) fn marks(&self) -> Vec<(usize, DimRange)> {
        self.0.marks.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl From<HostTensor> for Tensor {
    fn from(tensor: HostTensor) -> Tensor {
        let value = Value::of(tensor);
        frame::adopt(&value);
        Tensor::new(value)
    }
}
impl From<&HostTensor> for Tensor {
    fn from(tensor: &HostTensor) -> Tensor {
        tensor.clone().into()
    }
}
