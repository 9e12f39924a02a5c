//! The wrappers `wrap_with_set_grad_enabled` and `wrap_with_autocast`: their bodies are inlined into the graph around them,
//! and the modes that they set are made explicit.
//!
//! Without gradient: the tensors that leave the region are detached. Under autocast: operators of the matrix family get
//! casts to the low precision where the archive recorded a result of that precision, and operators with a recorded
//! `float32` result get casts up of their low-precision operands. A region for another kind of device than the one of the
//! capture left no trace in the results: it is recorded at the nodes ([`Precisions`]), and a later stage gives it its meaning
//! on the device that the program is compiled for.

use fx_ir::{Arg, Graph, OriginId, ValueId, ValueType};
use ir_core::{AutocastDevice, DType, Precision, Precisions, SymExpr, TensorMeta, contiguous_strides};

use super::args;
use super::build::Builder;
use super::scope::Scope;
use crate::error::Result;
use crate::json_path::JsonPath;
use crate::schema::{self, Argument};

const SET_GRAD: &str = "higher_order.wrap_with_set_grad_enabled";
const AUTOCAST: &str = "higher_order.wrap_with_autocast";

/// The modes that the wrappers around a node set.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Mode {
    /// Gradients are off.
    pub(super) no_grad: bool,
    /// The low precision of an enabled autocast.
    pub(super) autocast: Option<DType>,
    /// The regions of autocast, a kind of device each.
    pub(super) precisions: Precisions,
}

/// Operators whose result has another dtype because a dtype argument requests it.
const CONVERSIONS: &[&str] = &["to", "_to_copy", "type_as", "view", "copy", "clone", "full_like"];

pub(super) fn is_wrapper(target: &str) -> bool {
    matches!(target, SET_GRAD | AUTOCAST)
}

impl<'a> Builder<'a> {
    /// Reads the body of a wrapper into `out`.
    #[expect(clippy::too_many_arguments, reason = "the state of a recursive descent, passed on as it is")]
    pub(super) fn inline(
        &mut self,
        out: &mut Graph,
        scope: &mut Scope<'a>,
        target: &str,
        node: &'a schema::Node<'a>,
        origin: OriginId,
        depth: usize,
        at: &JsonPath<'_>,
    ) -> Result<()> {
        let inputs = at.field("inputs");
        let body_at = node.inputs.iter().position(|i| matches!(i.arg, Argument::AsGraph(_)));
        let Some(index) = body_at else { return Err(inputs.invalid("a wrapper without a body")) };
        let Argument::AsGraph(body) = &node.inputs[index].arg else {
            return Err(inputs.invalid("a wrapper without a body"));
        };
        if depth >= self.limits.graph_depth {
            return Err(
                at.invalid(format!("subgraphs are nested more than {} deep", self.limits.graph_depth))
            );
        }
        let outer = self.mode;
        let inner = mode(target, &node.inputs[..index], outer, &inputs)?;
        let item = inputs.item(index);
        let body_at = item.field("as_graph");
        let body_at = body_at.field("graph");
        let mut inner_scope = Scope::new(&body.graph, &body_at)?;
        let operands = &node.inputs[index + 1..];
        if operands.len() != body.graph.inputs.len() {
            let (given, wanted) = (operands.len(), body.graph.inputs.len());
            return Err(inputs.invalid(format!("{given} operands for a body with {wanted} inputs")));
        }
        let mut entered = Vec::new();
        for (operand, input) in operands.iter().zip(&body.graph.inputs) {
            let bound = self.arg(out, scope, &operand.arg, depth, &inputs)?;
            bound.for_each_value(&mut |v| entered.push(v));
            if let Some((name, _)) = self.input_type(&inner_scope, input, &body_at)? {
                inner_scope.bind(name, bound, &body_at)?;
            }
        }
        self.mode = inner;
        self.nodes(out, &mut inner_scope, &body.graph, depth + 1, &body_at)?;
        self.mode = outer;
        let detach = inner.no_grad && !outer.no_grad;
        self.leave(out, scope, &inner_scope, node, &body.graph, detach.then_some(&entered[..]), origin, at)
    }

    /// Binds the results of a wrapper to those of its body. `entered` is given where they are to be detached.
    #[expect(clippy::too_many_arguments, reason = "the state of a recursive descent, passed on as it is")]
    fn leave(
        &mut self,
        out: &mut Graph,
        scope: &mut Scope<'a>,
        inner: &Scope<'a>,
        node: &'a schema::Node<'a>,
        body: &'a schema::Graph<'a>,
        entered: Option<&[ValueId]>,
        origin: OriginId,
        at: &JsonPath<'_>,
    ) -> Result<()> {
        let outputs = at.field("outputs");
        let mut names = Vec::new();
        for output in &node.outputs {
            match output {
                Argument::AsTensors(ts) => names.extend(ts.iter().map(|t| Some(&*t.name))),
                Argument::AsTensor(t) => names.push(Some(&*t.name)),
                Argument::AsSymInt(schema::SymIntArgument::AsName(name))
                | Argument::AsSymBool(schema::SymBoolArgument::AsName(name))
                | Argument::AsSymFloat(schema::SymFloatArgument::AsName(name)) => names.push(Some(&**name)),
                _ => names.push(None),
            }
        }
        if names.len() != body.outputs.len() {
            let (given, wanted) = (body.outputs.len(), names.len());
            return Err(outputs.invalid(format!("the body gives {given} results where {wanted} are named")));
        }
        for (name, output) in names.into_iter().zip(&body.outputs) {
            let mut result = self.arg(out, inner, output, 0, &outputs)?;
            if let (Arg::Value(value), Some(entered)) = (&result, entered) {
                let differentiable = out.meta(*value).is_some_and(|m| m.dtype.is_inexact());
                // An operand that is returned unchanged keeps its gradient.
                if differentiable && !entered.contains(value) {
                    result = Arg::Value(like(out, "aten.detach.default", *value, vec![], None, origin));
                }
            }
            if let Some(name) = name {
                scope.bind(name, result, &outputs)?;
            }
        }
        Ok(())
    }

    /// Adds the casts that autocast would insert for this call.
    pub(super) fn autocast(
        &self,
        out: &mut Graph,
        target: &str,
        args: &mut [Arg],
        made: &[(&str, ValueType)],
        origin: OriginId,
    ) {
        let Some(low) = self.mode.autocast else { return };
        let floats =
            || made.iter().filter_map(|(_, ty)| ty.as_tensor()).map(|m| m.dtype).filter(|d| d.is_float());
        // Results of several dtypes come from operators that keep each operand's own.
        let Some(result) = floats().next().filter(|&first| floats().all(|d| d == first)) else { return };
        let base = target.strip_prefix("aten.").and_then(|t| t.split('.').next()).unwrap_or_default();
        let requested = dtype_is_requested(base, args);
        // A low-precision result of operands none of which is low-precision comes from autocast in any operator (`einsum`).
        let lists = prims::lookup(target).is_some_and(|op| op.def.autocast.lowers());
        let lowered = lists || (!requested && no_operand_is(out, args, low));
        let wanted = if result == low && lowered {
            low
        } else if result == DType::F32 && !requested {
            // Casting up is exact, so it does no harm where the operator would promote by itself.
            DType::F32
        } else {
            return;
        };
        for arg in args.iter_mut() {
            arg.for_each_value_mut(&mut |value| {
                // Autocast does not change float64 and values that are not floats.
                let dtype = out.meta(*value).map(|m| m.dtype);
                if dtype.is_some_and(|d| d != wanted && matches!(d, DType::F16 | DType::BF16 | DType::F32)) {
                    let rest = vec![Arg::DType(wanted), false.into(), false.into(), Arg::None];
                    *value = like(out, "aten.to.dtype", *value, rest, Some(wanted), origin);
                }
            });
        }
    }
}

/// Whether an argument requests the dtype of the result, or memory is written in place.
fn dtype_is_requested(base: &str, args: &[Arg]) -> bool {
    CONVERSIONS.contains(&base) || base.ends_with('_') || args.iter().any(|a| matches!(a, Arg::DType(_)))
}

/// Whether there are float operands and none has this dtype.
fn no_operand_is(graph: &Graph, args: &[Arg], dtype: DType) -> bool {
    let (mut any, mut none) = (false, true);
    for arg in args {
        arg.for_each_value(&mut |value| {
            let float = graph.meta(value).map(|m| m.dtype).filter(|d| d.is_float());
            any |= float.is_some();
            none &= float != Some(dtype);
        });
    }
    any && none
}

/// A call with one tensor operand whose result has the operand's sizes.
fn like(
    out: &mut Graph,
    target: &str,
    value: ValueId,
    rest: Vec<Arg>,
    dtype: Option<DType>,
    origin: OriginId,
) -> ValueId {
    let name = out.values[value].name.clone();
    let mut ty = out.values[value].ty.clone();
    if let (ValueType::Tensor(meta), Some(dtype)) = (&mut ty, dtype) {
        // A new tensor: dense strides are kept (`preserve_format`), others become row-major.
        meta.dtype = dtype;
        meta.offset = SymExpr::ZERO;
        if !is_dense(meta) {
            meta.strides = contiguous_strides(&meta.sizes);
        }
    }
    let args = std::iter::once(Arg::Value(value)).chain(rest).collect();
    out.call(target, args, [(name.as_str(), ty)], origin)[0]
}

/// Whether the strides are those of a row-major tensor with its dimensions in some order.
fn is_dense(meta: &TensorMeta) -> bool {
    let mut left: Vec<usize> = (0..meta.rank()).filter(|&d| meta.sizes[d] != SymExpr::ONE).collect();
    let mut expected = SymExpr::ONE;
    // The search is quadratic; no real tensor has this many dimensions.
    while !left.is_empty() && left.len() <= 64 {
        let Some(at) = left.iter().position(|&d| meta.strides[d] == expected) else { return false };
        expected = expected * &meta.sizes[left.swap_remove(at)];
    }
    left.is_empty()
}

/// The mode inside a wrapper: `(enabled)` or `(device, dtype, enabled, cache)` before the body.
fn mode(target: &str, given: &[schema::NamedArgument<'_>], outer: Mode, at: &JsonPath<'_>) -> Result<Mode> {
    if target == SET_GRAD {
        return match given.first().map(|g| &g.arg) {
            Some(Argument::AsBool(enabled)) => Ok(Mode { no_grad: !enabled, ..outer }),
            _ => Err(at.invalid("`wrap_with_set_grad_enabled` without a truth value")),
        };
    }
    let flag = given.get(2).map(|g| &g.arg);
    let enabled = match flag {
        Some(Argument::AsBool(enabled)) => *enabled,
        _ => return Err(at.invalid("`wrap_with_autocast` without a truth value at its third place")),
    };
    let device = match given.first().map(|g| &g.arg) {
        Some(Argument::AsString(name)) => AutocastDevice::of_name(name),
        _ => None,
    };
    let dtype = match given.get(1).map(|g| &g.arg) {
        Some(Argument::AsScalarType(code)) => args::dtype(*code, at)?,
        // PyTorch's defaults.
        _ if device == Some(AutocastDevice::Cuda) => DType::F16,
        _ => DType::BF16,
    };
    let region = if enabled { Precision::Lower(dtype) } else { Precision::Full };
    let precisions = device.map_or(outer.precisions, |device| outer.precisions.within(device, region));
    Ok(Mode { autocast: enabled.then_some(dtype), precisions, ..outer })
}
