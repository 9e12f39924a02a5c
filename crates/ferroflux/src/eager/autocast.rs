//! Mixed precision while operators are recorded, as `torch.autocast("cpu")`: operands are cast by the column `autocast` of the
//! operator's entry. Compiled archives have a pass of their own for it (`aot_autograd::autocast`).

use std::cell::Cell;

use ir_core::DType;
use prims::{CastPolicy, Op};

use super::{Input, Tensor};

thread_local! {
    static LOWER: Cell<Option<DType>> = const { Cell::new(None) };
}

/// Restores the earlier setting when it is dropped.
#[must_use = "mixed precision ends when this is dropped"]
pub struct AutocastMode {
    before: Option<DType>,
}

impl AutocastMode {
    /// Sets the 16-bit type of operators on this thread, or none, until the result is dropped.
    pub fn set(lower: Option<DType>) -> AutocastMode {
        AutocastMode { before: LOWER.replace(lower) }
    }
}

impl Drop for AutocastMode {
    fn drop(&mut self) {
        LOWER.set(self.before);
    }
}

/// Runs `f` in mixed precision: operators on PyTorch's list for `torch.autocast` compute in `lower` (`bf16` or `f16`; another
/// type changes nothing), and those that need it in `f32`.
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
    LOWER.get().filter(|d| d.is_float() && d.size() == 2)
}

/// The operands of a call as mixed precision wants them; `None` where they stay as they are.
#[track_caller]
pub(super) fn cast(op: &Op, inputs: &[Input]) -> Option<Vec<Input>> {
    let lower = autocast_dtype()?;
    let wanted = match op.def.autocast.cpu? {
        CastPolicy::Lower => lower,
        CastPolicy::Float32 => DType::F32,
        CastPolicy::Float32Result => {
            let named = op.schema.arg_index("dtype").and_then(|n| inputs.get(n));
            let open = named.is_none_or(Input::is_none);
            let first = matches!(inputs.first(), Some(Input::Tensor(t)) if eligible(t));
            (first && open).then_some(DType::F32)?
        }
        CastPolicy::Widest => widest(inputs)?,
    };
    let one = |t: &Tensor| if eligible(t) && t.dtype() != wanted { t.to(wanted) } else { t.clone() };
    let all = inputs.iter().map(|input| match input {
        Input::Tensor(t) => Input::Tensor(one(t)),
        Input::Tensors(list) => Input::Tensors(list.iter().map(|t| t.as_ref().map(one)).collect()),
        other => other.clone(),
    });
    Some(all.collect())
}

/// Floats, but not of double precision.
fn eligible(t: &Tensor) -> bool {
    let dtype = t.dtype();
    dtype.is_float() && dtype != DType::F64
}

fn widest(inputs: &[Input]) -> Option<DType> {
    let tensors = inputs.iter().flat_map(|input| match input {
        Input::Tensor(t) => vec![t],
        Input::Tensors(list) => list.iter().flatten().collect(),
        Input::Operand(_) => Vec::new(),
    });
    let dtypes: Vec<DType> = tensors.filter(|t| eligible(t)).map(Tensor::dtype).collect();
    dtypes.iter().copied().find(|d| *d == DType::F32).or(dtypes.first().copied())
}
