//! Calls of operators by name: the one way from tensors to recorded calls. Views remember what they are a view of, and the
//! names of in-place operators write their first operand.

use dynamo::{CaptureError, Operand, Recorded, Size, Value, frame, record};
use fx_ir::Arg;
use ir_core::{DType, Scalar, TensorMeta};
use prims::OpError;

use super::{AutocastMode, Tensor, autocast, force, mutate, run};
use crate::Error;

/// An argument of an operator.
#[derive(Clone)]
pub enum Input {
    /// A tensor.
    Tensor(Tensor),
    /// A list of tensors, of which some may be absent.
    Tensors(Vec<Option<Tensor>>),
    /// Anything else.
    Operand(Operand),
}

impl Input {
    /// Absent.
    pub const NONE: Input = Input::Operand(Operand::Arg(Arg::None));

    /// Whether it is absent.
    pub(super) fn is_none(&self) -> bool {
        matches!(self, Input::Operand(Operand::Arg(Arg::None)))
    }

    // Without closures, which would hide the line of the caller from a graph break.
    #[track_caller]
    fn operand(&self) -> Result<Operand, CaptureError> {
        match self {
            Input::Tensor(t) => t.value().map(Operand::Value),
            Input::Tensors(list) => {
                let mut items = Vec::with_capacity(list.len());
                for item in list {
                    items.push(match item {
                        Some(t) => Operand::Value(t.value()?),
                        None => Operand::Arg(Arg::None),
                    });
                }
                Ok(Operand::List(items))
            }
            Input::Operand(operand) => Ok(operand.clone()),
        }
    }
}

macro_rules! inputs {
    ($($ty:ty => |$x:ident| $make:expr;)*) => {$(
        impl From<$ty> for Input {
            fn from($x: $ty) -> Input {
                $make
            }
        }
    )*};
}

fn arg(arg: impl Into<Arg>) -> Input {
    Input::Operand(Operand::Arg(arg.into()))
}

inputs! {
    Tensor => |t| Input::Tensor(t);
    &Tensor => |t| Input::Tensor(t.clone());
    Option<&Tensor> => |t| t.map_or(Input::NONE, Input::from);
    &[&Tensor] => |list| Input::Tensors(list.iter().map(|t| Some((*t).clone())).collect());
    &[Tensor] => |list| Input::Tensors(list.iter().map(|t| Some(t.clone())).collect());
    &Vec<Tensor> => |list| list.as_slice().into();
    Vec<Option<Tensor>> => |list| Input::Tensors(list);
    Size => |s| Input::Operand(Operand::Size(s));
    &Size => |s| Input::Operand(Operand::Size(s.clone()));
    &[Size] => |list| Input::Operand(Operand::List(list.iter().cloned().map(Operand::Size).collect()));
    &Vec<Size> => |list| list.as_slice().into();
    f64 => |x| arg(x);
    f32 => |x| arg(f64::from(x));
    i64 => |n| arg(n);
    i32 => |n| arg(i64::from(n));
    usize => |n| arg(n as i64);
    bool => |b| arg(b);
    Scalar => |s| arg(s);
    DType => |d| arg(d);
    Option<DType> => |d| d.map_or(Input::NONE, arg);
    Option<f64> => |x| x.map_or(Input::NONE, arg);
    Option<i64> => |n| n.map_or(Input::NONE, arg);
    &str => |text| arg(text);
    &[i64] => |list| arg(list);
    &Vec<i64> => |list| arg(list.as_slice());
    Arg => |a| arg(a);
}

impl<const N: usize> From<&[i64; N]> for Input {
    fn from(list: &[i64; N]) -> Input {
        arg(list.as_slice())
    }
}

/// Calls any operator of the table by its full name (`aten.linear.default`), with positional arguments; missing trailing
/// ones have the schema's defaults. Gives the first result. The name of an in-place operator (`aten.relu_.default`) writes
/// the first argument, and gives it.
#[track_caller]
pub fn call(target: &str, inputs: impl IntoIterator<Item = Input>) -> Tensor {
    let inputs: Vec<Input> = inputs.into_iter().collect();
    match all(target, &inputs) {
        Ok(results) => {
            results.into_iter().next().unwrap_or_else(|| Tensor::failed(CaptureError::NotComputed))
        }
        Err(error) => Tensor::failed(error),
    }
}

/// As [`call`], for operators with several results.
///
/// # Errors
/// The operator refuses the call.
#[track_caller]
pub fn call_all(target: &str, inputs: impl IntoIterator<Item = Input>) -> Result<Vec<Tensor>, Error> {
    let inputs: Vec<Input> = inputs.into_iter().collect();
    Ok(all(target, &inputs)?)
}

#[track_caller]
fn all(target: &str, inputs: &[Input]) -> Result<Vec<Tensor>, CaptureError> {
    let at = std::panic::Location::caller();
    let unknown = || CaptureError::Call { at, source: OpError::Unknown(target.into()) };
    let Some(op) = prims::lookup(target) else {
        let op = prims::functional_of(target).ok_or_else(unknown)?;
        let Some(Input::Tensor(first)) = inputs.first() else { return Err(unknown()) };
        // As in PyTorch, mixed precision leaves in-place operators alone: their results have the type of their operand.
        let _mode = AutocastMode::set(None);
        let new = all(&op.target, inputs)?.into_iter().next().ok_or_else(unknown)?;
        mutate::assign(first, new.value()?)?;
        return Ok(vec![first.clone()]);
    };
    let cast = autocast::cast(op, inputs);
    let inputs = cast.as_deref().unwrap_or(inputs);
    let mut operands = Vec::with_capacity(inputs.len());
    for input in inputs {
        operands.push(input.operand()?);
    }
    let arguments: Option<Vec<Arg>> = op.schema.is_view().then(|| plain(&operands)).flatten();
    let values = values(record(op, operands)?)?;
    let base = match (inputs.first(), arguments) {
        (Some(Input::Tensor(base)), Some(arguments)) => Some((base, arguments)),
        _ => None,
    };
    let Some((base, arguments)) = base else { return Ok(values.into_iter().map(Tensor::new).collect()) };
    let input = frame::meta_of(&base.value()?);
    let metas: Vec<TensorMeta> = values.iter().map(frame::meta_of).collect();
    let metas: Vec<&TensorMeta> = metas.iter().collect();
    let one =
        |(n, value): (usize, Value)| match aot_autograd::view_rule(&op.target, &arguments, &input, &metas, n)
        {
            Some(rule) if !rule.of_storage => Tensor::view_of(base, value, mutate::Rule::new(rule)),
            _ => Tensor::new(value),
        };
    Ok(values.into_iter().enumerate().map(one).collect())
}

/// The results of a call, which runs at once where only running it gives their sizes.
fn values(recorded: Recorded) -> Result<Vec<Value>, CaptureError> {
    let values = match recorded {
        Recorded::Values(values) => values,
        Recorded::RunNow(call) => {
            force(std::slice::from_ref(&call)).map_err(|e| CaptureError::Run(e.to_string()))?;
            call.computed_results()
        }
    };
    let long = values.iter().any(|v| v.pending() > run::LONGEST);
    if long && !frame::is_active() {
        force(&values[..1]).map_err(|e| CaptureError::Run(e.to_string()))?;
    }
    Ok(values)
}

/// Arguments as a graph has them, for the rules of views: none where another tensor than the first is among them.
fn plain(operands: &[Operand]) -> Option<Vec<Arg>> {
    let rest = frame::plain(operands.get(1..)?);
    std::iter::once(Some(Arg::None)).chain(rest).collect()
}

impl Tensor {
    /// Calls any operator of the table with this tensor as its first argument; see [`call`].
    #[track_caller]
    pub fn call(&self, target: &str, rest: impl IntoIterator<Item = Input>) -> Tensor {
        call(target, std::iter::once(Input::from(self)).chain(rest))
    }
    /// As [`Tensor::call`], for operators with several results.
    ///
    /// # Errors
    /// The operator refuses the call.
    #[track_caller]
    pub fn call_all(
        &self,
        target: &str,
        rest: impl IntoIterator<Item = Input>,
    ) -> Result<Vec<Tensor>, Error> {
        call_all(target, std::iter::once(Input::from(self)).chain(rest))
    }
}
