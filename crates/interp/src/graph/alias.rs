//! In-place operators, run by value.
//!
//! Tensors of the oracle are never written. Instead every value of a graph that has in-place operators belongs to a
//! *root* (a fresh tensor) and, where it is a view, knows for each of its elements which element of the root it is.
//! A write makes a new root and gives every value of that root its new elements. To learn a view's elements the view
//! operator itself is run on a tensor of element numbers, so no operator needs a rule of its own here.
//!
//! What is a view stands in the operators' schemas. Where a schema leaves it open (`reshape`, `contiguous`, `to`), the
//! strides that the graph states decide, as they decide in PyTorch.

use fx_ir::{Arg, Graph, NodeId, ValueId};
use ir_core::{DType, EntityId, TensorMeta};
use prims::{OpError, Schema, functional_of, lookup};
use rustc_hash::FxHashMap;
use tensor::{Tensor, TensorError, with_element};

use super::Frame;
use crate::{InterpError, Value};

/// Which values share memory.
pub(super) struct Aliases {
    of: FxHashMap<ValueId, Member>,
    roots: Vec<Root>,
    /// The values that share memory with one that is written somewhere; the others need no bookkeeping.
    tracked: Vec<bool>,
}

#[derive(Clone)]
struct Member {
    root: usize,
    /// For every element its number in the root; `None` for the root as a whole.
    index: Option<Tensor>,
}

struct Root {
    /// `None` when no value of the root is read any more.
    data: Option<Tensor>,
    members: Vec<ValueId>,
    /// Number of the placeholder that it came from.
    input: Option<usize>,
    written: bool,
}

impl Aliases {
    /// The bookkeeping for `graph`; `None` where it has no in-place operator.
    pub(super) fn of(graph: &Graph) -> Option<Aliases> {
        let calls = || graph.iter().filter_map(|(_, node)| node.as_call().map(|(t, args)| (node, t, args)));
        if calls().all(|(_, target, _)| written_args(target).is_empty()) {
            return None;
        }
        // Sets of values that may share memory, each named by its first member.
        let mut set: Vec<usize> = (0..graph.values.len()).collect();
        let mut written = vec![false; graph.values.len()];
        for (node, target, args) in calls() {
            let bases: Vec<ValueId> = written_args(target)
                .into_iter()
                .filter_map(|position| args.get(position).and_then(as_value))
                .collect();
            bases.iter().for_each(|base| written[set[base.index()]] = true);
            for (n, v) in node.outputs.iter().enumerate() {
                let base = bases.get(n).copied().or_else(|| viewed(target, args, n));
                if let Some(base) = base {
                    set[v.index()] = set[base.index()];
                }
            }
        }
        let tracked = set.iter().map(|&first| written[first]).collect();
        Some(Aliases { of: FxHashMap::default(), roots: Vec::new(), tracked })
    }
    fn is_tracked(&self, v: ValueId) -> bool {
        self.tracked.get(v.index()).copied().unwrap_or(false)
    }
    /// Makes `v` a root of its own.
    pub(super) fn fresh(&mut self, v: ValueId, data: &Tensor, input: Option<usize>) {
        if self.is_tracked(v) {
            self.of.insert(v, Member { root: self.roots.len(), index: None });
            self.roots.push(Root { data: Some(data.clone()), members: vec![v], input, written: false });
        }
    }
    fn join(&mut self, v: ValueId, member: Member) {
        self.roots[member.root].members.push(v);
        self.of.insert(v, member);
    }
    /// `v` is not read any more.
    pub(super) fn release(&mut self, v: ValueId) {
        if let Some(member) = self.of.remove(&v) {
            let root = &mut self.roots[member.root];
            root.members.retain(|m| *m != v);
            if root.members.is_empty() && root.input.is_none() {
                root.data = None;
            }
        }
    }
    /// The inputs that were written, with their new values.
    pub(super) fn mutated_inputs(self) -> Vec<(usize, Tensor)> {
        let written = self.roots.into_iter().filter(|r| r.written);
        written.filter_map(|r| r.input.zip(r.data)).collect()
    }
}

/// Positions of the arguments that an operator writes.
fn written_args(target: &str) -> Vec<usize> {
    match lookup(target) {
        Some(op) => {
            let written = |a: &prims::SchemaArg| a.alias.as_ref().is_some_and(|(_, write)| *write);
            op.schema.args.iter().enumerate().filter(|(_, a)| written(a)).map(|(i, _)| i).collect()
        }
        // By PyTorch's naming rule the variant with an underscore writes its first argument.
        None if functional_of(target).is_some() => vec![0],
        None => Vec::new(),
    }
}

/// For each argument that an operator writes its position and the result that is its new value. By the tables'
/// convention what is written but not returned stands behind the results of the schema (batch norm's statistics).
fn written_results(target: &str) -> Vec<(usize, usize)> {
    let Some(op) = lookup(target) else {
        return written_args(target).into_iter().map(|position| (position, 0)).collect();
    };
    let mut behind = op.schema.returns.len();
    let mut result_of = |position: usize| {
        let set = op.schema.args[position].alias.as_ref().map(|(set, _)| set);
        let returned = |r: &prims::SchemaReturn| r.alias.as_ref().map(|(s, _)| s) == set;
        op.schema.returns.iter().position(returned).unwrap_or_else(|| {
            behind += 1;
            behind - 1
        })
    };
    written_args(target).into_iter().map(|position| (position, result_of(position))).collect()
}

/// Gives what an in-place operator computed the dtype of the memory that it writes.
pub(super) fn settle(
    frame: &Frame<'_, '_>,
    id: NodeId,
    target: &str,
    args: &[Arg],
    results: &mut [Value],
) -> Result<(), InterpError> {
    for (position, result) in written_results(target) {
        let Some(result) = results.get_mut(result) else { continue };
        let base = args.get(position).and_then(as_value).map(|v| frame.value(id, v)).transpose()?;
        if let (Some(Value::Tensor(base)), Value::Tensor(new)) = (base, &*result) {
            let converted = new.to_dtype(base.dtype()).map_err(|e| frame.tensor_error(id, e))?;
            *result = Value::Tensor(converted);
        }
    }
    Ok(())
}

/// Stores the results of a call, with what they share or write.
pub(super) fn record(
    frame: &mut Frame<'_, '_>,
    id: NodeId,
    target: &str,
    args: &[Arg],
    results: Vec<Value>,
) -> Result<(), InterpError> {
    let outputs = frame.graph.nodes[id].outputs.clone();
    let mut bases = vec![None; results.len()];
    for (position, n) in written_results(target) {
        let base = args.get(position).and_then(as_value);
        if let (Some(base), Some(Value::Tensor(new))) = (base, results.get(n)) {
            write(frame, id, base, new)?;
            bases[n] = Some(base);
        }
    }
    for (n, (&v, result)) in outputs.iter().zip(results).enumerate() {
        let Value::Tensor(tensor) = &result else {
            frame.env[v.index()] = Some(result);
            continue;
        };
        let member = match bases[n] {
            // The result of an in-place operator is what it wrote.
            Some(base) => frame.aliases.as_ref().and_then(|a| a.of.get(&base)).cloned(),
            None if frame.aliases.as_ref().is_some_and(|a| a.is_tracked(v)) => {
                view_member(frame, id, target, args, n, tensor)?
            }
            None => None,
        };
        let value = match bases[n] {
            Some(base) => frame.value(id, base)?.clone(),
            None => result.clone(),
        };
        if let Some(aliases) = &mut frame.aliases {
            match member {
                Some(member) => aliases.join(v, member),
                None => aliases.fresh(v, tensor, None),
            }
        }
        frame.env[v.index()] = Some(value);
    }
    Ok(())
}

/// Gives the memory of `v` new elements, and with it every value that shares it.
fn write(frame: &mut Frame<'_, '_>, id: NodeId, v: ValueId, new: &Tensor) -> Result<(), InterpError> {
    let old = frame.value(id, v)?.as_tensor().cloned();
    let Some((old, mut aliases)) = old.zip(frame.aliases.take()) else { return Ok(()) };
    let updated = update(&mut aliases, v, &old, new);
    frame.aliases = Some(aliases);
    for (member, tensor) in updated.map_err(|e| frame.tensor_error(id, e))? {
        frame.env[member.index()] = Some(Value::Tensor(tensor));
    }
    Ok(())
}

/// The new values of all members of the root that `v` belongs to.
fn update(
    aliases: &mut Aliases,
    v: ValueId,
    old: &Tensor,
    new: &Tensor,
) -> Result<Vec<(ValueId, Tensor)>, TensorError> {
    let Some(Member { root, index }) = aliases.of.get(&v).cloned() else { return Ok(Vec::new()) };
    let data = match &index {
        // As a whole it may even change its sizes (`resize_`).
        None => new.clone(),
        Some(index) => {
            scattered(aliases.roots[root].data.as_ref().unwrap_or(new), index, &new.expand(old.sizes())?)?
        }
    };
    let entry = &mut aliases.roots[root];
    entry.data = Some(data.clone());
    entry.written = true;
    let mut values = Vec::new();
    for &member in &entry.members {
        let index = aliases.of.get(&member).and_then(|m| m.index.as_ref());
        values.push((member, index.map_or_else(|| Ok(data.clone()), |i| gathered(&data, i))?));
    }
    Ok(values)
}

/// `data` with element `index[i]` replaced by `values[i]`.
fn scattered(data: &Tensor, index: &Tensor, values: &Tensor) -> Result<Tensor, TensorError> {
    let mut copy = data.copied()?;
    let index = index.to_vec::<i64>()?;
    with_element!(data.dtype(), T => {
        let values = values.to_vec::<T>()?;
        if let Some(all) = copy.as_mut_slice::<T>() {
            for (&i, value) in index.iter().zip(values) {
                if let Some(to) = usize::try_from(i).ok().and_then(|i| all.get_mut(i)) {
                    *to = value;
                }
            }
        }
    });
    Ok(copy)
}

/// Elements `index` of `data`, in the sizes of `index`.
fn gathered(data: &Tensor, index: &Tensor) -> Result<Tensor, TensorError> {
    let places = index.to_vec::<i64>()?;
    with_element!(data.dtype(), T => {
        let all = data.to_vec::<T>()?;
        let at = |i: i64| usize::try_from(i).ok().and_then(|i| all.get(i)).copied().unwrap_or_default();
        Tensor::from_vec(places.into_iter().map(at).collect(), index.sizes())
    })
}

/// Where result `n` is a view of an argument: the argument's root and the elements that the view has of it.
fn view_member(
    frame: &mut Frame<'_, '_>,
    id: NodeId,
    target: &str,
    args: &[Arg],
    n: usize,
    result: &Tensor,
) -> Result<Option<Member>, InterpError> {
    let Some(base) = viewed(target, args, n) else { return Ok(None) };
    let Some(base_tensor) = frame.value(id, base)?.as_tensor().cloned() else { return Ok(None) };
    let output = frame.graph.nodes[id].outputs[n];
    let shares = match (frame.graph.meta(base), frame.graph.meta(output)) {
        (Some(from), Some(to)) => shares_memory(frame, target, from, to),
        _ => true,
    };
    if !shares || base_tensor.dtype() != result.dtype() {
        return Ok(None);
    }
    let Some(member) = frame.aliases.as_ref().and_then(|a| a.of.get(&base)).cloned() else { return Ok(None) };
    if is_conversion(target) {
        // It returned its operand itself.
        return Ok(Some(member));
    }
    let index = match member.index {
        Some(index) => index,
        None => element_numbers(base_tensor.sizes()).map_err(|e| frame.tensor_error(id, e))?,
    };
    // The view operator on element numbers says which element is where.
    let kept = frame.env[base.index()].replace(Value::Tensor(index));
    let numbers = frame.call(id, target, args);
    frame.env[base.index()] = kept;
    match numbers?.into_iter().nth(n) {
        Some(Value::Tensor(index)) if index.dtype() == DType::I64 && index.sizes() == result.sizes() => {
            Ok(Some(Member { root: member.root, index: Some(index) }))
        }
        _ => {
            let what = "does not give element numbers when it is run on them".to_owned();
            Err(frame.refused(id, OpError::Invalid { op: target.into(), what }))
        }
    }
}

/// Whether an operator returns its operand where that already is what is asked for.
fn is_conversion(target: &str) -> bool {
    matches!(target.split('.').nth(1), Some("contiguous" | "to" | "type_as"))
}

fn element_numbers(sizes: &[usize]) -> Result<Tensor, TensorError> {
    // A view may repeat elements: it has more of them than memory holds.
    let numel = tensor::checked_numel(DType::I64, sizes)?;
    tensor::require_room(2 * numel * DType::I64.size())?;
    Tensor::from_vec((0..numel as i64).collect(), sizes)
}

/// The argument that result `n` may be a view of.
fn viewed(target: &str, args: &[Arg], n: usize) -> Option<ValueId> {
    let value = |i: usize| args.get(i).and_then(as_value);
    // In evaluation dropout returns its operand itself, which its schema does not say.
    if matches!(
        target,
        "aten.dropout.default" | "aten.feature_dropout.default" | "aten.alpha_dropout.default"
    ) {
        let train = matches!(args.get(2), Some(Arg::Scalar(s)) if s.as_bool());
        return if train { None } else { value(0) };
    }
    let schema: &Schema = &lookup(target)?.schema;
    // A list of results (`split`) has one entry in the schema.
    let returned = if schema.returns.len() == 1 { schema.returns.first() } else { schema.returns.get(n) }?;
    let (set, _) = returned.alias.as_ref()?;
    let same = |a: &prims::SchemaArg| a.alias.as_ref().is_some_and(|(s, _)| s == set);
    value(schema.args.iter().position(same)?)
}

fn as_value(arg: &Arg) -> Option<ValueId> {
    match arg {
        Arg::Value(v) => Some(*v),
        _ => None,
    }
}

/// Whether an operator that may or may not copy gave a view, by the strides that the graph states.
fn shares_memory(frame: &Frame<'_, '_>, target: &str, from: &TensorMeta, to: &TensorMeta) -> bool {
    let name = target.split('.').nth(1).unwrap_or_default();
    match name {
        "reshape" | "flatten" | "ravel" | "reshape_as" | "unflatten" => {
            let numbers = |list: &[ir_core::SymExpr]| -> Option<Vec<i64>> {
                list.iter().map(|e| frame.bindings.eval(e)).collect()
            };
            let (Some(sizes), Some(strides), Some(new)) =
                (numbers(&from.sizes), numbers(&from.strides), numbers(&to.sizes))
            else {
                return true;
            };
            let sizes: Vec<usize> = sizes.into_iter().map(|s| s as usize).collect();
            let strides: Vec<isize> = strides.into_iter().map(|s| s as isize).collect();
            let new: Vec<usize> = new.into_iter().map(|s| s as usize).collect();
            tensor::view_strides(&sizes, &strides, &new).is_some()
        }
        _ => true,
    }
}
