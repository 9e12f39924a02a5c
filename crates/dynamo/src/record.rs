//! Recording a call: the one place where an operator's call becomes a node, both where values are computed when they are
//! wanted and where a function is captured.

use std::panic::Location;

use prims::{Grad, Kind as OpKind, Op, OpError};
use tensor::Tensor;

use crate::infer::infer;
use crate::node::{Call, Kind, Operand, Value};
use crate::{CaptureError, frame, mode, random};

/// The results of a recorded call.
pub enum Recorded {
    /// Values that are computed when they are wanted.
    Values(Vec<Value>),
    /// Only the running program determines the sizes of the results: the call must run now. Its tensors are the values.
    RunNow(Value),
}

/// Records the call of an operator; missing trailing arguments have the schema's defaults.
///
/// # Errors
/// The operator refuses the call or does not return tensors; where a function is captured with `fullgraph`, sizes that only
/// the running program determines.
#[track_caller]
pub fn record(op: &'static Op, operands: Vec<Operand>) -> Result<Recorded, CaptureError> {
    let at = Location::caller();
    let refused = |source: OpError| CaptureError::Call { at, source };
    // The operands with their symbolic sizes are for a capture alone.
    let symbolic = frame::is_active().then(|| operands.clone());
    let numbers: Vec<Operand> = operands.into_iter().map(Operand::concrete).collect();
    let types = infer(op, &numbers).map_err(refused)?;
    let metas = types.metas.clone().ok_or_else(|| CaptureError::NotTensors { op: op.target.clone(), at })?;
    if !types.known {
        let why =
            || format!("only the running program determines the sizes of the results of `{}`", op.target);
        frame::interrupt(why)?;
    }
    let mut tracked = false;
    numbers.iter().for_each(|o| o.for_each_value(&mut |v| tracked |= v.is_tracked()));
    let flows = tracked
        && !matches!(op.def.kind, OpKind::Prim { .. } if matches!(op.def.grad, Grad::NotDifferentiable(_)));
    let key = types
        .random
        .then(|| key_value(random::next_key()))
        .transpose()
        .map_err(|e| refused(OpError::Invalid { op: op.target.clone(), what: e.to_string() }))?;
    let kind = Kind::Operator { op, key };
    let call = Call::new(kind, numbers, metas, flows && mode::grad_enabled());
    frame::note(op);
    if let Some(operands) = symbolic {
        // A result whose size only the run determines has ended the capture.
        frame::with(|frame| frame.record(op, &operands, &call, tracked && !mode::grad_enabled()))
            .transpose()
            .map_err(refused)?;
    }
    if !types.known {
        return Ok(Recorded::RunNow(Value { call, out: 0 }));
    }
    Ok(Recorded::Values(Call::results(&call)))
}

/// A key of random numbers as a tensor.
fn key_value(key: u64) -> Result<Value, tensor::TensorError> {
    Ok(Value::of(Tensor::from_vec(vec![key as i64], &[])?))
}

impl Value {
    /// The results of the call that computes this value, as tensors with data; none as long as it did not run.
    pub fn computed_results(&self) -> Vec<Value> {
        if !self.call.is_computed() {
            return Vec::new();
        }
        let all = Call::results(&self.call);
        all.iter().filter_map(|v| v.data().cloned()).map(Value::of).collect()
    }
}
