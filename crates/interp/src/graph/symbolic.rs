//! Calls that compute numbers instead of tensors: sizes of values, Python's operators on them, assertions.

use fx_ir::{Arg, NodeId};
use ir_core::Scalar;
use prims::OpError;

use super::Frame;
use crate::{InterpError, Value};

/// The results, if `target` is such a call.
pub(super) fn call(
    frame: &mut Frame<'_, '_>,
    id: NodeId,
    target: &str,
    args: &[Arg],
) -> Result<Option<Vec<Value>>, InterpError> {
    let invalid = |what: &str| OpError::Invalid { op: target.into(), what: what.into() };
    if let Some(rest) = target.strip_prefix("aten.sym_") {
        if rest.starts_with("constrain_range") {
            return Ok(Some(Vec::new()));
        }
        return extent(frame, id, rest, args).map(|v| v.map(|s| vec![Value::Scalar(s)]));
    }
    if prims::scalars::is_assertion(target) {
        return match number(frame, id, args.first())? {
            Some(s) if s.as_bool() => Ok(Some(Vec::new())),
            _ => Err(frame.refused(id, invalid(&assertion(args)))),
        };
    }
    match target {
        "aten.item.default" | "aten._local_scalar_dense.default" | prims::scalars::ITEM => {
            let item = number(frame, id, args.first())?;
            let item =
                item.ok_or_else(|| frame.refused(id, invalid("the tensor has not exactly one element")))?;
            return Ok(Some(vec![Value::Scalar(item)]));
        }
        _ => {}
    }
    let names = ["_operator.", "torch.sym_", "torch._sym_", "math."];
    let Some(name) = names.iter().find_map(|prefix| target.strip_prefix(prefix)) else { return Ok(None) };
    let operands = args.iter().map(|a| number(frame, id, Some(a))).collect::<Result<Option<Vec<_>>, _>>()?;
    let operands = operands.ok_or_else(|| frame.refused(id, invalid("an operand is not a number")))?;
    match python(name, &operands) {
        Some(result) => Ok(Some(vec![Value::Scalar(result)])),
        None => Err(frame.refused(id, OpError::Unknown(target.into()))),
    }
}

fn assertion(args: &[Arg]) -> String {
    match args.get(1) {
        Some(Arg::Str(message)) => format!("assertion failed: {message}"),
        _ => "assertion failed".into(),
    }
}

/// `size.int(x, dim)`, `stride.int(x, dim)`, `numel.default(x)`, `storage_offset.default(x)`.
fn extent(
    frame: &Frame<'_, '_>,
    id: NodeId,
    name: &str,
    args: &[Arg],
) -> Result<Option<Scalar>, InterpError> {
    let Some(Arg::Value(v)) = args.first() else { return Ok(None) };
    let Value::Tensor(t) = frame.value(id, *v)? else { return Ok(None) };
    let dim = match args.get(1) {
        Some(arg) => number(frame, id, Some(arg))?.map(|s| s.as_i64()),
        None => None,
    };
    let dim = dim.map(|d| if d < 0 { d + t.rank() as i64 } else { d }).and_then(|d| usize::try_from(d).ok());
    let stated = |list: Option<&ir_core::SymExpr>| list.and_then(|e| frame.bindings.eval(e));
    let meta = frame.graph.meta(*v);
    Ok(match name {
        "size.int" => dim.and_then(|d| t.sizes().get(d)).map(|&n| Scalar::Int(n as i64)),
        "numel.default" => Some(Scalar::Int(t.numel() as i64)),
        // Strides are what the graph states of PyTorch's tensor.
        "stride.int" => dim.and_then(|d| stated(meta?.strides.get(d))).map(Scalar::Int),
        "storage_offset.default" => meta.and_then(|m| stated(Some(&m.offset))).map(Scalar::Int),
        _ => None,
    })
}

/// The number that an argument is; `None` where it is none.
pub(super) fn number(
    frame: &Frame<'_, '_>,
    id: NodeId,
    arg: Option<&Arg>,
) -> Result<Option<Scalar>, InterpError> {
    Ok(match arg {
        Some(Arg::Value(v)) => frame.value(id, *v)?.as_scalar(),
        Some(Arg::Int(expr)) => Some(Scalar::Int(frame.size(id, expr)?)),
        Some(Arg::Scalar(s)) => Some(*s),
        _ => None,
    })
}

/// Python's operators on numbers; `None` where the operator or its operands are not known.
fn python(name: &str, args: &[Scalar]) -> Option<Scalar> {
    let (a, b) = (*args.first()?, args.get(1).copied());
    let integers = args.iter().all(|s| matches!(s, Scalar::Int(_) | Scalar::Bool(_)));
    if let Some(b) = b {
        if let Some(result) = compare(name, a, b, integers) {
            return Some(result);
        }
        return if integers {
            integer(name, a.as_i64(), b.as_i64())
        } else {
            float(name, a.as_f64(), b.as_f64())
        };
    }
    Some(match name {
        "neg" if integers => Scalar::Int(a.as_i64().checked_neg()?),
        "neg" => Scalar::Float(-a.as_f64()),
        "abs" if integers => Scalar::Int(a.as_i64().checked_abs()?),
        "abs" => Scalar::Float(a.as_f64().abs()),
        "not_" | "sym_not" | "not" => Scalar::Bool(!a.as_bool()),
        "float" | "sym_float" => Scalar::Float(a.as_f64()),
        "int" | "sym_int" | "trunc" => Scalar::Int(a.as_i64()),
        "floor" => Scalar::Int(a.as_f64().floor() as i64),
        "ceil" => Scalar::Int(a.as_f64().ceil() as i64),
        "sqrt" => Scalar::Float(a.as_f64().sqrt()),
        _ => return None,
    })
}

fn compare(name: &str, a: Scalar, b: Scalar, integers: bool) -> Option<Scalar> {
    let order =
        if integers { Some(a.as_i64().cmp(&b.as_i64())) } else { a.as_f64().partial_cmp(&b.as_f64()) };
    Some(Scalar::Bool(match name {
        "eq" => order.is_some_and(|o| o.is_eq()),
        "ne" => order.is_none_or(|o| o.is_ne()),
        "lt" => order.is_some_and(|o| o.is_lt()),
        "le" => order.is_some_and(|o| o.is_le()),
        "gt" => order.is_some_and(|o| o.is_gt()),
        "ge" => order.is_some_and(|o| o.is_ge()),
        _ => return None,
    }))
}

fn integer(name: &str, a: i64, b: i64) -> Option<Scalar> {
    let floor_div = |a: i64, b: i64| Some(a.checked_div(b)? - i64::from(a % b != 0 && (a < 0) != (b < 0)));
    Some(match name {
        "add" => Scalar::Int(a.checked_add(b)?),
        "sub" => Scalar::Int(a.checked_sub(b)?),
        "mul" => Scalar::Int(a.checked_mul(b)?),
        "floordiv" => Scalar::Int(floor_div(a, b)?),
        "mod" => Scalar::Int(a.checked_sub(floor_div(a, b)?.checked_mul(b)?)?),
        "truediv" => Scalar::Float(a as f64 / b as f64),
        "pow" => Scalar::Int(a.checked_pow(u32::try_from(b).ok()?)?),
        "and_" => Scalar::Int(a & b),
        "or_" => Scalar::Int(a | b),
        "xor" => Scalar::Int(a ^ b),
        "max" | "sym_max" => Scalar::Int(a.max(b)),
        "min" | "sym_min" => Scalar::Int(a.min(b)),
        _ => return None,
    })
}

fn float(name: &str, a: f64, b: f64) -> Option<Scalar> {
    Some(Scalar::Float(match name {
        "add" => a + b,
        "sub" => a - b,
        "mul" => a * b,
        "truediv" => a / b,
        "floordiv" => (a / b).floor(),
        "mod" => a - (a / b).floor() * b,
        "pow" => a.powf(b),
        "max" | "sym_max" => a.max(b),
        "min" | "sym_min" => a.min(b),
        _ => return None,
    }))
}
