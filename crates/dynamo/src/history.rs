//! Reverse mode over recorded calls. The calls between a value and the variables that it depends on become a graph, its joint
//! graph is built by `aot_autograd`, and the backward half is recorded as one call. What it needs of the forward is computed
//! within it; where both run in one piece, equal calls are merged, and what was computed before is read instead.

use std::panic::Location;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use aot_autograd::passes::{self, PassCx};
use aot_autograd::{JointError, JointOptions, Tangents, Wrt, joint};
use fx_ir::{Arg, Graph, InputKind, Output, OutputKind, ValueId, ValueType};
use prims::OpError;

use crate::body::{self, Body};
use crate::key::Key;
use crate::node::{Call, Kind, Meta, Operand, Value};
use crate::walk::{Made, Walk};
use crate::{CaptureError, Lru, frame};

/// The gradient with respect to a variable.
pub struct Gradient {
    /// The variable.
    pub variable: Value,
    /// Its gradient, of its type.
    pub value: Value,
}

/// Why there is no gradient.
pub(crate) enum Failed {
    Op(OpError),
    Joint(JointError),
}

/// A backward pass that is remembered.
struct Backward {
    body: Arc<Body>,
    /// For each operand of the body what it is.
    operands: Vec<Input>,
    /// The leaves that have a gradient, in the order of the body's results.
    variables: Vec<usize>,
    metas: Arc<[Meta]>,
}

/// An operand of a backward pass.
#[derive(Clone, Copy, PartialEq)]
enum Input {
    Leaf(usize),
    /// A result of a call that was computed before.
    Computed(usize, u32),
    Tangent,
}

/// Backward passes that are remembered.
const REMEMBERED: usize = 256;

/// The gradients of a value with respect to all variables that it depends on. Without a `tangent` the value has one element;
/// else the tangent is of its type, and is the gradient of the result with respect to it.
///
/// # Errors
/// It depends on no variable, has several elements and no tangent, or a call between them has no gradient; in a capture with
/// `fullgraph` also if a variable was made within the captured function.
#[track_caller]
pub fn gradients(of: &Value, tangent: Option<&Value>) -> Result<Vec<Gradient>, CaptureError> {
    let at = Location::caller();
    if !of.is_tracked() {
        return Err(CaptureError::NoVariable { at });
    }
    let of = of.with_history().clone();
    let walk = Walk::new(std::slice::from_ref(&of), ends, Value::with_history);
    let backward = remembered(&walk, &of, tangent.is_some()).map_err(|failed| match failed {
        Failed::Op(source) => CaptureError::Call { at, source },
        Failed::Joint(source) => CaptureError::Gradient { at, source },
    })?;
    let operand = |input: &Input| match *input {
        Input::Leaf(n) => Some(walk.leaves[n].clone()),
        Input::Computed(n, out) => Some(Value { call: Arc::clone(&walk.calls[n]), out }),
        Input::Tangent => tangent.cloned(),
    };
    let operands = backward.operands.iter().filter_map(operand).map(Operand::Value).collect();
    let variables: Vec<Value> = backward.variables.iter().map(|n| walk.leaves[*n].clone()).collect();
    let inputs = frame::with(|frame| frame.are_inputs(&variables));
    if inputs == Some(false) {
        let why =
            || "a gradient is wanted with respect to a tensor that the function itself makes".to_owned();
        frame::interrupt(why)?;
    }
    let call =
        Call::new(Kind::Graph(Arc::clone(&backward.body)), operands, Arc::clone(&backward.metas), false);
    let results = Call::results(&call);
    let done = frame::with(|frame| frame.differentiate((&of, tangent), &variables, &results));
    if let Some(Err(failed)) = done {
        return Err(match failed {
            Failed::Op(source) => CaptureError::Call { at, source },
            Failed::Joint(source) => CaptureError::Gradient { at, source },
        });
    }
    Ok(variables.into_iter().zip(results).map(|(variable, value)| Gradient { variable, value }).collect())
}

/// A history ends at variables and at what no gradient flows through.
fn ends(value: &Value) -> bool {
    value.slot().is_some() || !value.call.tracked
}

fn remembered(walk: &Walk, of: &Value, with_tangent: bool) -> Result<Arc<Backward>, Failed> {
    static MEMO: OnceLock<Mutex<Lru<Key, Arc<Backward>>>> = OnceLock::new();
    let memo = MEMO.get_or_init(|| Mutex::new(Lru::new(REMEMBERED)));
    let mut key = walk.key();
    key.number(u64::from(with_tangent));
    key.number(of.out.into());
    walk.leaves.iter().for_each(|leaf| key.number(u64::from(leaf.slot().is_some())));
    walk.calls.iter().for_each(|call| key.number(u64::from(call.is_computed())));
    if let Some(found) = memo.lock().unwrap_or_else(PoisonError::into_inner).get(&key) {
        return Ok(found);
    }
    let made = Arc::new(backward(walk, of, with_tangent)?);
    memo.lock().unwrap_or_else(PoisonError::into_inner).insert(key, Arc::clone(&made));
    Ok(made)
}

/// Builds the backward pass of a walk.
fn backward(walk: &Walk, of: &Value, with_tangent: bool) -> Result<Backward, Failed> {
    let Made { mut graph, leaves, results, .. } =
        walk.graph("backward", &|_, _| false, &|_| false).map_err(Failed::Op)?;
    let missing =
        || Failed::Op(OpError::Invalid { op: "backward".into(), what: "the value is not a result".into() });
    let loss = match walk.place_of(of) {
        Some(place) => results[place].get(of.out as usize).copied(),
        None => leaves.first().copied(),
    };
    let kind = if with_tangent { OutputKind::User } else { OutputKind::Loss };
    graph.outputs.push(Output { kind, arg: Arg::Value(loss.ok_or_else(missing)?) });
    // What was computed before is returned by the forward graph, so that its values are known after the passes.
    let mut computed = Vec::new();
    for (n, call) in walk.calls.iter().enumerate().filter(|(_, call)| call.is_computed()) {
        for (out, v) in results[n].iter().take(call.metas.len()).enumerate() {
            computed.push(Input::Computed(n, out as u32));
            graph.outputs.push(Output { kind: OutputKind::Saved, arg: Arg::Value(*v) });
        }
    }
    passes::optimize(&mut graph, &PassCx::before_joint());
    let wrt: Vec<ValueId> =
        walk.leaves.iter().zip(&leaves).filter(|(leaf, _)| leaf.slot().is_some()).map(|(_, v)| *v).collect();
    let tangents = if with_tangent { Tangents::Placeholders } else { Tangents::Loss };
    let joint = joint(&graph, &JointOptions { wrt: Wrt::Values(wrt), tangents }).map_err(Failed::Joint)?;
    let mut inputs: Vec<(Input, ValueId)> =
        leaves.iter().enumerate().map(|(n, v)| (Input::Leaf(n), *v)).collect();
    inputs.extend(joint.tangents.iter().flatten().map(|v| (Input::Tangent, *v)));
    let mut graph = joint.graph;
    let values: Vec<Option<ValueId>> =
        graph.outputs[1..joint.forward_outputs].iter().map(|o| value_of(&o.arg)).collect();
    let gradients: Vec<(usize, ValueId)> = joint
        .gradients
        .iter()
        .filter_map(|(v, g)| Some((leaves.iter().position(|l| l == v)?, (*g)?)))
        .collect();
    graph.outputs =
        gradients.iter().map(|(_, g)| Output { kind: OutputKind::User, arg: Arg::Value(*g) }).collect();
    read_computed(&mut graph, &computed, &values, &mut inputs);
    prims::scalars::eliminate_dead(&mut graph);
    Ok(assembled(graph, inputs, &gradients, walk))
}

fn value_of(arg: &Arg) -> Option<ValueId> {
    match arg {
        Arg::Value(v) => Some(*v),
        _ => None,
    }
}

/// Makes what was computed before an input instead of computing it again.
fn read_computed(
    graph: &mut Graph,
    computed: &[Input],
    values: &[Option<ValueId>],
    inputs: &mut Vec<(Input, ValueId)>,
) {
    for (input, v) in computed.iter().zip(values) {
        let Some(v) = *v else { continue };
        let is_input = graph.inputs().any(|(other, _, _)| other == v);
        let Some(meta) = graph.meta(v).cloned().filter(|_| !is_input) else { continue };
        let name = format!("saved{}", inputs.len());
        let p = graph.placeholder(InputKind::User, name.clone(), &name, ValueType::Tensor(meta));
        body::placed_first(graph, p);
        graph.map_uses(&|used| if used == v { p } else { used });
        inputs.push((*input, p));
    }
}

/// Keeps the inputs that are read.
fn assembled(
    graph: Graph,
    inputs: Vec<(Input, ValueId)>,
    gradients: &[(usize, ValueId)],
    walk: &Walk,
) -> Backward {
    let (operands, places): (Vec<Input>, Vec<ValueId>) =
        inputs.into_iter().filter(|(_, v)| graph.is_read(*v)).unzip();
    Backward {
        body: Arc::new(Body::new(graph, places)),
        operands,
        variables: gradients.iter().map(|(leaf, _)| *leaf).collect(),
        metas: gradients.iter().map(|(leaf, _)| walk.leaves[*leaf].meta().clone()).collect(),
    }
}

/// Appends to a graph of prims the gradients of one of its values with respect to placeholders. Values keep their numbers.
pub(crate) fn appended(
    graph: &mut Graph,
    loss: ValueId,
    tangent: Option<ValueId>,
    wrt: &[ValueId],
) -> Result<Vec<ValueId>, Failed> {
    let kind = if tangent.is_some() { OutputKind::User } else { OutputKind::Loss };
    graph.outputs = vec![Output { kind, arg: Arg::Value(loss) }];
    let tangents = if tangent.is_some() { Tangents::Placeholders } else { Tangents::Loss };
    let made = joint(graph, &JointOptions { wrt: Wrt::Values(wrt.to_vec()), tangents });
    graph.outputs.clear();
    let mut joint = made.map_err(Failed::Joint)?;
    if let (Some(given), Some(placeholder)) = (tangent, joint.tangents.iter().flatten().next().copied()) {
        joint.graph.map_uses(&|v| if v == placeholder { given } else { v });
        let def = joint.graph.values[placeholder].def;
        joint.graph.order.retain(|n| *n != def);
    }
    let own = graph.order.iter().copied();
    let order = own.chain(joint.graph.order.iter().copied().filter(|n| joint.is_backward(*n))).collect();
    let missing =
        || Failed::Op(OpError::Invalid { op: "backward".into(), what: "a variable has no gradient".into() });
    let gradient = |v: &ValueId| joint.gradients.iter().find(|(of, _)| of == v).and_then(|(_, g)| *g);
    let gradients = wrt.iter().map(|v| gradient(v).ok_or_else(missing)).collect::<Result<_, _>>()?;
    *graph = joint.graph;
    graph.order = order;
    graph.outputs.clear();
    Ok(gradients)
}
