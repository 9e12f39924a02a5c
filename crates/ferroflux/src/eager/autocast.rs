//! Mixed precision while operators are recorded, as `torch.autocast`: operands are cast by the list of the device that will
//! compute them. Which operator wants what is [`aot_autograd::operand_dtype`], as for compiled archives.

use std::cell::Cell;

use aot_autograd::{CastOperands, Mixed, is_cast, operand_dtype};
use ir_core::{AutocastDevice, DType};
use prims::Op;

use super::{Input, Tensor, run};

/// The region that operators of a thread are recorded in.
#[derive(Clone, Copy)]
struct Region {
    /// The kind of device that computes them; `None` is that of the default backend.
    device: Option<AutocastDevice>,
    lower: Option<DType>,
}

thread_local! {
    static REGION: Cell<Region> = const { Cell::new(Region { device: None, lower: None }) };
}

/// Restores the earlier setting when it is dropped.
#[must_use = "mixed precision ends when this is dropped"]
pub struct AutocastMode {
    before: Region,
}

impl AutocastMode {
    /// Sets the 16-bit type of operators on this thread, or none, until the result is dropped.
    pub fn set(lower: Option<DType>) -> AutocastMode {
        AutocastMode { before: REGION.replace(Region { lower, ..REGION.get() }) }
    }

    /// Operators are recorded for a kind of device from now on, in a region of its own where it has one, until the result is
    /// dropped.
    pub(crate) fn of(mixed: Mixed) -> AutocastMode {
        let lower = mixed.whole.or(REGION.get().lower);
        AutocastMode { before: REGION.replace(Region { device: Some(mixed.device), lower }) }
    }
}

impl Drop for AutocastMode {
    fn drop(&mut self) {
        REGION.set(self.before);
    }
}

/// Runs `f` in mixed precision: operators on PyTorch's list for `torch.autocast` compute in `lower` (`bf16` or `f16`; another
/// type changes nothing), and those that need it in `f32`. The list is that of the device of the compiled function around it,
/// and else of the default backend's ([`set_default_device`](super::set_default_device)).
///
/// ```
/// use ferroflux::eager::autocast;
/// use ferroflux::prelude::*;
///
/// let (x, w) = (Tensor::ones(&[2, 4]), Tensor::ones(&[4, 3]));
/// let y = autocast(DType::BF16, || x.matmul(&w));
/// assert_eq!((y.dtype(), y.sum().item()?), (DType::BF16, 24.0));
/// assert_eq!(autocast(DType::BF16, || y.mse_loss(&y)).dtype(), DType::F32);
/// # Ok::<(), ferroflux::Error>(())
/// ```
pub fn autocast<R>(lower: DType, f: impl FnOnce() -> R) -> R {
    let _mode = AutocastMode::set(Some(lower));
    f()
}

/// The 16-bit type of operators on this thread, if they run in mixed precision.
pub fn autocast_dtype() -> Option<DType> {
    REGION.get().lower.filter(|d| d.is_float() && d.size() == 2)
}

/// The operands of a call as mixed precision wants them; `None` where they stay as they are.
#[track_caller]
pub(super) fn cast(op: &Op, inputs: &[Input]) -> Option<Vec<Input>> {
    let lower = autocast_dtype()?;
    let device = REGION.get().device.unwrap_or_else(run::default_autocast_device);
    let tensors = inputs.iter().flat_map(|input| match input {
        Input::Tensor(t) => vec![t],
        Input::Tensors(list) => list.iter().flatten().collect(),
        Input::Operand(_) => Vec::new(),
    });
    let dtypes: Vec<DType> = tensors.map(Tensor::dtype).collect();
    let first = match inputs.first() {
        Some(Input::Tensor(t)) => Some(t.dtype()),
        _ => None,
    };
    let named = op.schema.arg_index("dtype").and_then(|n| inputs.get(n));
    let names_dtype = named.is_some_and(|input| !input.is_none());
    let wanted = operand_dtype(op, device, lower, &CastOperands { dtypes: &dtypes, first, names_dtype })?;
    let one = |t: &Tensor| match t.dtype() {
        dtype if is_cast(dtype) && dtype != wanted => t.to(wanted),
        _ => t.clone(),
    };
    let all = inputs.iter().map(|input| match input {
        Input::Tensor(t) => Input::Tensor(one(t)),
        Input::Tensors(list) => Input::Tensors(list.iter().map(|t| t.as_ref().map(one)).collect()),
        other => other.clone(),
    });
    Some(all.collect())
}
