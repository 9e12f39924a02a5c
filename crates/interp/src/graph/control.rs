//! Higher-order operators: subgraphs run as graphs of their own, with the symbols of the outermost one.

use fx_ir::{Arg, NodeId, SubgraphId};
use prims::OpError;
use tensor::{Tensor, TensorError};

use super::{Frame, MAX_DEPTH};
use crate::{InterpError, Value};

/// Results of a higher-order call.
pub(super) fn call(
    frame: &mut Frame<'_, '_>,
    id: NodeId,
    target: &str,
    args: &[Arg],
) -> Result<Vec<Value>, InterpError> {
    match (target, args) {
        ("higher_order.cond", [pred, Arg::Graph(yes), Arg::Graph(no), rest @ ..]) => {
            let pred = super::symbolic::number(frame, id, Some(pred))?;
            let pred =
                pred.ok_or_else(|| invalid(frame, id, target, "the condition is not one truth value"))?;
            let operands = values(frame, id, rest)?;
            body(frame, id, if pred.as_bool() { *yes } else { *no }, operands, frame.seed)
        }
        ("higher_order.while_loop", [Arg::Graph(test), Arg::Graph(step), carried, rest @ ..]) => {
            let (carried, fixed) = (list(frame, id, carried)?, values(frame, id, rest)?);
            while_loop(frame, id, *test, *step, carried, &fixed)
        }
        ("higher_order.map" | "higher_order.map_impl", [Arg::Graph(f), xs, rest @ ..]) => {
            let (xs, fixed) = (list(frame, id, xs)?, values(frame, id, rest)?);
            scan(frame, id, *f, Vec::new(), &xs, &fixed)
        }
        ("higher_order.scan", [Arg::Graph(f), init, xs, rest @ ..]) => {
            let (init, xs) = (list(frame, id, init)?, list(frame, id, xs)?);
            let fixed = values(frame, id, rest)?;
            scan(frame, id, *f, init, &xs, &fixed)
        }
        ("higher_order.associative_scan", [Arg::Graph(f), xs, rest @ ..]) => {
            let (xs, fixed) = (list(frame, id, xs)?, values(frame, id, rest)?);
            associative(frame, id, *f, &xs, &fixed)
        }
        // Modes that only autograd and autocast read: the body is run as it is.
        ("higher_order.wrap_with_set_grad_enabled", [_, Arg::Graph(f), rest @ ..]) => {
            let operands = values(frame, id, rest)?;
            body(frame, id, *f, operands, frame.seed)
        }
        _ => Err(frame.refused(id, OpError::Unknown(target.into()))),
    }
}

fn invalid(frame: &Frame<'_, '_>, id: NodeId, target: &str, what: &str) -> InterpError {
    frame.refused(id, OpError::Invalid { op: target.into(), what: what.into() })
}

/// The operands, lists flattened; numbers included.
fn values(frame: &Frame<'_, '_>, id: NodeId, args: &[Arg]) -> Result<Vec<Value>, InterpError> {
    let mut all = Vec::new();
    for arg in args {
        match arg {
            Arg::List(items) => all.extend(values(frame, id, items)?),
            Arg::Value(v) => all.push(frame.value(id, *v)?.clone()),
            Arg::Int(_) | Arg::Scalar(_) => {
                let number = super::symbolic::number(frame, id, Some(arg))?;
                all.push(number.map_or(Value::None, Value::Scalar));
            }
            _ => all.push(Value::None),
        }
    }
    Ok(all)
}

fn list(frame: &Frame<'_, '_>, id: NodeId, arg: &Arg) -> Result<Vec<Value>, InterpError> {
    values(frame, id, std::slice::from_ref(arg))
}

/// Runs a subgraph that draws with `seed`.
fn body(
    frame: &mut Frame<'_, '_>,
    id: NodeId,
    graph: SubgraphId,
    operands: Vec<Value>,
    seed: u64,
) -> Result<Vec<Value>, InterpError> {
    let graph = frame.graph.subgraphs.get(graph).ok_or_else(|| InterpError::Graph {
        at: frame.at(id),
        what: format!("there is no subgraph {graph}"),
    })?;
    if frame.depth >= MAX_DEPTH {
        return Err(InterpError::Unsupported { at: frame.at(id), what: "nesting this deep".into() });
    }
    let expected = graph.inputs().count();
    if operands.len() != expected {
        return Err(InterpError::InputCount { graph: graph.name.clone(), expected, got: operands.len() });
    }
    let mut inner = Frame::new(graph, frame.bindings, frame.depth + 1, seed);
    inner.set_inputs(operands);
    inner.run()?;
    let outcome = inner.finish()?;
    if outcome.mutated.is_empty() {
        return Ok(outcome.outputs);
    }
    Err(InterpError::Unsupported { at: frame.at(id), what: "a subgraph that writes its operands".into() })
}

fn while_loop(
    frame: &mut Frame<'_, '_>,
    id: NodeId,
    test: SubgraphId,
    step: SubgraphId,
    mut carried: Vec<Value>,
    fixed: &[Value],
) -> Result<Vec<Value>, InterpError> {
    let with_fixed = |carried: &[Value]| carried.iter().chain(fixed).cloned().collect::<Vec<_>>();
    let mut seed = frame.seed;
    loop {
        let test = body(frame, id, test, with_fixed(&carried), seed)?;
        let go = test.first().and_then(Value::as_scalar);
        let go = go.ok_or_else(|| {
            invalid(frame, id, "higher_order.while_loop", "the condition is not one truth value")
        })?;
        if !go.as_bool() {
            return Ok(carried);
        }
        let next = body(frame, id, step, with_fixed(&carried), seed)?;
        seed = prims::iteration_seed(seed, 0);
        carried = next.into_iter().take(carried.len()).collect();
    }
}

/// `f(carry…, slice of each xs…, fixed…) -> (carry…, y…)` over dimension 0; returns the last carry and the stacked ys.
fn scan(
    frame: &mut Frame<'_, '_>,
    id: NodeId,
    f: SubgraphId,
    mut carry: Vec<Value>,
    xs: &[Value],
    fixed: &[Value],
) -> Result<Vec<Value>, InterpError> {
    let length = xs.iter().find_map(Value::as_tensor).and_then(|t| t.sizes().first().copied());
    let length = length.ok_or_else(|| invalid(frame, id, "higher_order.scan", "nothing to scan over"))?;
    let mut stacks: Vec<Vec<Tensor>> = Vec::new();
    for i in 0..length {
        let slice = |x: &Value| match x {
            Value::Tensor(t) => t.select(0, i).map(Value::Tensor),
            other => Ok(other.clone()),
        };
        let mut operands = carry.clone();
        for x in xs {
            operands.push(slice(x).map_err(|e| frame.tensor_error(id, e))?);
        }
        operands.extend_from_slice(fixed);
        let seed = prims::iteration_seed(frame.seed, i as i64);
        let mut results = body(frame, id, f, operands, seed)?;
        let ys = results.split_off(carry.len().min(results.len()));
        carry = results;
        stacks.resize(ys.len(), Vec::new());
        for (stack, y) in stacks.iter_mut().zip(ys) {
            let y = y.into_tensor().map_err(|e| frame.tensor_error(id, e))?;
            stack.extend(y);
        }
    }
    if length == 0 {
        return without_turns(frame, id, carry);
    }
    for stack in stacks {
        carry.push(Value::Tensor(stacked(&stack).map_err(|e| frame.tensor_error(id, e))?));
    }
    Ok(carry)
}

/// The results of a scan over nothing: what was carried, and empty stacks of the shapes that the graph states.
fn without_turns(
    frame: &Frame<'_, '_>,
    id: NodeId,
    mut carry: Vec<Value>,
) -> Result<Vec<Value>, InterpError> {
    for &v in frame.graph.nodes[id].outputs.iter().skip(carry.len()) {
        let Some(meta) = frame.graph.meta(v) else {
            carry.push(Value::None);
            continue;
        };
        let mut sizes = vec![0usize];
        for e in meta.sizes.iter().skip(1) {
            sizes.push(usize::try_from(frame.size(id, e)?).unwrap_or(0));
        }
        carry.push(Value::Tensor(Tensor::zeros(meta.dtype, &sizes).map_err(|e| frame.tensor_error(id, e))?));
    }
    Ok(carry)
}

/// Running combinations along dimension 0: `y[0] = x[0]`, `y[i] = f(y[i - 1]…, x[i]…, fixed…)`.
fn associative(
    frame: &mut Frame<'_, '_>,
    id: NodeId,
    f: SubgraphId,
    xs: &[Value],
    fixed: &[Value],
) -> Result<Vec<Value>, InterpError> {
    let length = xs.iter().find_map(Value::as_tensor).and_then(|t| t.sizes().first().copied());
    let length =
        length.ok_or_else(|| invalid(frame, id, "higher_order.associative_scan", "nothing to scan over"))?;
    let slice = |frame: &Frame<'_, '_>, x: &Value, i: usize| match x {
        Value::Tensor(t) => t.select(0, i).map(Value::Tensor).map_err(|e| frame.tensor_error(id, e)),
        other => Ok(other.clone()),
    };
    if length == 0 {
        return Ok(xs.to_vec());
    }
    let mut last = xs.iter().map(|x| slice(frame, x, 0)).collect::<Result<Vec<_>, _>>()?;
    let mut stacks: Vec<Vec<Value>> = last.iter().map(|v| vec![v.clone()]).collect();
    for i in 1..length {
        let mut operands = last;
        for x in xs {
            operands.push(slice(frame, x, i)?);
        }
        operands.extend_from_slice(fixed);
        last = body(frame, id, f, operands, frame.seed)?;
        stacks.iter_mut().zip(&last).for_each(|(stack, v)| stack.push(v.clone()));
    }
    let stack = |values: Vec<Value>| -> Result<Value, InterpError> {
        let parts = values.into_iter().map(Value::into_tensor).collect::<Result<Vec<_>, _>>();
        let parts: Vec<Tensor> =
            parts.map_err(|e| frame.tensor_error(id, e))?.into_iter().flatten().collect();
        Ok(Value::Tensor(stacked(&parts).map_err(|e| frame.tensor_error(id, e))?))
    };
    stacks.into_iter().map(stack).collect()
}

/// Tensors of one shape side by side along a new dimension 0.
fn stacked(parts: &[Tensor]) -> Result<Tensor, TensorError> {
    let first = parts.first().ok_or_else(|| TensorError::Shape("nothing to stack".into()))?;
    let mut sizes = vec![parts.len()];
    sizes.extend(first.sizes());
    tensor::with_element!(first.dtype(), T => {
        let mut all: Vec<T> = Vec::new();
        for part in parts {
            all.extend(part.to_vec::<T>()?);
        }
        Tensor::from_vec(all, &sizes)
    })
}
