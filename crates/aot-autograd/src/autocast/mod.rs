//! Automatic mixed precision: a functional graph in which operators compute in 16-bit floats where PyTorch's autocast
//! allows it (the column `autocast` of an operator's entry): within regions of `torch.autocast` that the capture recorded at
//! the nodes for the device that the program runs on, and within one around the whole program.
//!
//! Casts are inserted before operators of the lists, one per value and type, so that a weight that is read often is cast
//! once. The result types of other operators follow from their own promotion. Values that are written back (buffers,
//! inputs) are cast to their original type; results for the caller keep the type in which they are computed, as in PyTorch.
//! Gradients of weights have the type of the weights: the gradient of a cast casts back. Not here: scaling of the loss for
//! `float16` (the training step does it), operators that are recorded one by one, which the facade casts by the same rule
//! ([`operand_dtype`]), branches and loop bodies (they run in the types they were captured with).

use fx_ir::{Arg, Graph, NodeId, NodeKind, Output, OutputKind, ValueId, ValueType};
use ir_core::{AutocastDevice, DType, EntityId, Origin, Precision, Precisions};
use prims::{Builder, CastPolicy, Op, OpError, decompose_call, lookup};
use rustc_hash::FxHashMap;
use thiserror::Error;

/// The mixed precision of a program: its device, and the region around all of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mixed {
    /// The device that it runs on. Its lists of operators apply, and the regions that were captured for it.
    pub device: AutocastDevice,
    /// The dtype of a region around the whole program (`bf16` or `f16`; another one changes nothing), if there is one. Regions
    /// that were captured lie within it.
    pub whole: Option<DType>,
}

impl Mixed {
    /// The dtype in which operators on the lists compute at a node.
    fn lower(&self, origin: &Origin) -> Option<DType> {
        let lower = match origin.precisions.on(self.device) {
            Some(Precision::Full) => None,
            Some(Precision::Lower(dtype)) => Some(dtype),
            None => self.whole,
        };
        lower.filter(|dtype| dtype.compute() != *dtype)
    }
}

/// The policy of an operator, where it is on the list of a kind of device.
fn policy(device: AutocastDevice, op: &Op) -> Option<CastPolicy> {
    match device {
        AutocastDevice::Cpu => op.def.autocast.cpu,
        AutocastDevice::Cuda => op.def.autocast.gpu,
    }
}

/// Whether autocast casts operands of a dtype: floats, but not of double precision.
pub fn is_cast(dtype: DType) -> bool {
    dtype.is_float() && dtype != DType::F64
}

/// What the operands of a call must tell so that autocast can choose their dtype.
pub struct CastOperands<'a> {
    /// The dtypes of the tensors among them, in order.
    pub dtypes: &'a [DType],
    /// The dtype of the first operand; none where it is no tensor.
    pub first: Option<DType>,
    /// Whether the call names the dtype of its result.
    pub names_dtype: bool,
}

/// The dtype that the operands of a call get within a region of `lower` for a kind of device; `None` where they stay as they are.
pub fn operand_dtype(
    op: &Op,
    device: AutocastDevice,
    lower: DType,
    operands: &CastOperands<'_>,
) -> Option<DType> {
    let mut cast = operands.dtypes.iter().copied().filter(|d| is_cast(*d));
    match policy(device, op)? {
        CastPolicy::Lower => Some(lower),
        CastPolicy::Float32 => Some(DType::F32),
        CastPolicy::Float32Result => {
            (operands.first.is_some_and(is_cast) && !operands.names_dtype).then_some(DType::F32)
        }
        CastPolicy::Widest => {
            let first = cast.next();
            if cast.any(|d| d == DType::F32) { Some(DType::F32) } else { first }
        }
    }
}

/// A call that does not accept the types that autocast assigns.
#[derive(Clone, Debug, Error)]
#[error("node `{node}` ({target}) under autocast: {error}")]
pub struct AutocastError {
    /// Name of the node.
    pub node: String,
    /// Its operator.
    pub target: String,
    /// Where it comes from.
    pub origin: Origin,
    /// Why.
    #[source]
    pub error: OpError,
}

/// The functional graph in which operators on a device's lists compute in 16 bits, within the regions that were captured for
/// this device and the one around the whole program. The result has no regions left: its dtypes say all.
///
/// # Errors
/// Every call that refuses the types that it receives.
pub fn autocast(graph: &Graph, mixed: Mixed) -> Result<Graph, Vec<AutocastError>> {
    let mut pass = Autocast { graph: without_regions(graph.clone()), mixed, casts: FxHashMap::default() };
    if !graph.iter().any(|(id, _)| mixed.lower(graph.origin(id)).is_some()) {
        return Ok(pass.graph);
    }
    let mut errors = Vec::new();
    for id in std::mem::take(&mut pass.graph.order) {
        if let Err(error) = pass.node(graph, id) {
            let target = graph.nodes[id].as_call().map_or("placeholder", |(t, _)| t).to_owned();
            let (node, origin) = (graph.node_name(id).to_owned(), graph.origin(id).clone());
            errors.push(AutocastError { node, target, origin, error });
        }
    }
    for n in 0..graph.outputs.len() {
        pass.output(graph, n);
    }
    if errors.is_empty() { Ok(pass.graph) } else { Err(errors) }
}

/// The graph without the regions that it was captured in, its subgraphs included.
fn without_regions(mut graph: Graph) -> Graph {
    graph.origins.iter_mut().for_each(|(_, origin)| origin.precisions = Precisions::default());
    for (_, subgraph) in graph.subgraphs.iter_mut() {
        *subgraph = without_regions(std::mem::take(subgraph));
    }
    graph
}

struct Autocast {
    graph: Graph,
    mixed: Mixed,
    /// A value in another type.
    casts: FxHashMap<(ValueId, DType), ValueId>,
}

impl Autocast {
    /// Inserts a node after the casts that it needs, with its new result types.
    fn node(&mut self, old: &Graph, id: NodeId) -> Result<(), OpError> {
        let NodeKind::Call { target, args } = &old.nodes[id].kind else {
            self.graph.order.push(id);
            return Ok(());
        };
        let mut args = args.clone();
        let lower = self.mixed.lower(old.origin(id));
        let wanted = lower.and_then(|lower| self.wanted(lower, target, &args));
        let keeps_types = target.starts_with("higher_order.");
        for arg in &mut args {
            let mut failed = None;
            arg.for_each_value_mut(&mut |v| {
                let dtype = match wanted {
                    Some(dtype) if self.eligible(*v) => Some(dtype),
                    _ if keeps_types => dtype_in(old, *v),
                    _ => None,
                };
                let Some(dtype) = dtype else { return };
                match self.cast(*v, dtype) {
                    Ok(new) => *v = new,
                    Err(e) => failed = Some(e),
                }
            });
            failed.map_or(Ok(()), Err)?;
        }
        let mut changed = false;
        args.iter().for_each(|a| a.for_each_value(&mut |v| changed |= self.dtype_of(v) != dtype_in(old, v)));
        self.graph.order.push(id);
        self.graph.nodes[id].kind = NodeKind::Call { target: target.clone(), args: args.clone() };
        if changed && !keeps_types {
            self.retype(id, target, args)?;
        }
        Ok(())
    }

    fn dtype_of(&self, v: ValueId) -> Option<DType> {
        dtype_in(&self.graph, v)
    }

    /// Whether autocast casts a value.
    fn eligible(&self, v: ValueId) -> bool {
        self.dtype_of(v).is_some_and(is_cast)
    }

    /// The type that the operands of a call get.
    fn wanted(&self, lower: DType, target: &str, args: &[Arg]) -> Option<DType> {
        let op = lookup(target)?;
        let mut dtypes = Vec::new();
        args.iter().for_each(|a| a.for_each_value(&mut |v| dtypes.extend(self.dtype_of(v))));
        let first = match args.first() {
            Some(Arg::Value(v)) => self.dtype_of(*v),
            _ => None,
        };
        let named = op.schema.arg_index("dtype").and_then(|i| args.get(i));
        let names_dtype = named.is_some_and(|a| !matches!(a, Arg::None));
        operand_dtype(op, self.mixed.device, lower, &CastOperands { dtypes: &dtypes, first, names_dtype })
    }

    /// A value in a type, cast once however often it is read.
    fn cast(&mut self, v: ValueId, dtype: DType) -> Result<ValueId, OpError> {
        if self.dtype_of(v) == Some(dtype) || self.dtype_of(v).is_none() {
            return Ok(v);
        }
        if let Some(&cast) = self.casts.get(&(v, dtype)) {
            return Ok(cast);
        }
        let (name, origin) =
            (self.graph.values[v].name.clone(), self.graph.nodes[self.graph.values[v].def].origin);
        let cast = Builder::new(&mut self.graph, format!("{name}_{dtype}"), origin).cast(v, dtype)?;
        self.casts.insert((v, dtype), cast);
        Ok(cast)
    }

    /// Infers the result types of a call from its decomposition for the present operands.
    fn retype(&mut self, id: NodeId, target: &str, mut args: Vec<Arg>) -> Result<(), OpError> {
        let mut scratch = Graph::new("types");
        scratch.share_symbols(&self.graph);
        let graph = &self.graph;
        for arg in &mut args {
            arg.for_each_value_mut(&mut |v| {
                let ty = graph.values[*v].ty.clone();
                *v = scratch.placeholder(fx_ir::InputKind::User, "x", "x", ty);
            });
        }
        let origin = fx_ir::OriginId(0);
        let outs = decompose_call(&mut Builder::new(&mut scratch, "types", origin), target, args)?;
        for (&v, &new) in self.graph.nodes[id].outputs.clone().iter().zip(&outs) {
            let Some(dtype) = dtype_in(&scratch, new) else { continue };
            if let ValueType::Tensor(meta) = &mut self.graph.values[v].ty {
                meta.dtype = dtype;
            }
        }
        Ok(())
    }

    /// Values that are written back keep their type.
    fn output(&mut self, old: &Graph, n: usize) {
        let Output { kind, arg: Arg::Value(v) } = &old.outputs[n] else { return };
        let written = matches!(kind, OutputKind::BufferMutation(_) | OutputKind::InputMutation(_));
        let Some(dtype) = dtype_in(old, *v).filter(|_| written) else { return };
        if let Ok(cast) = self.cast(*v, dtype) {
            self.graph.outputs[n].arg = Arg::Value(cast);
        }
    }
}

fn dtype_in(graph: &Graph, v: ValueId) -> Option<DType> {
    if v.index() >= graph.values.len() {
        return None;
    }
    graph.meta(v).map(|m| m.dtype)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a failing test may panic

    use super::*;

    #[test]
    fn devices_differ() {
        use AutocastDevice::*;
        let policy = |device, target| policy(device, lookup(target).unwrap());
        assert_eq!(policy(Cuda, "aten.softmax.int"), Some(CastPolicy::Float32Result));
        assert_eq!(policy(Cpu, "aten.softmax.int"), None);
        assert_eq!(policy(Cuda, "aten.pow.Tensor_Scalar"), Some(CastPolicy::Float32));
        assert_eq!(policy(Cpu, "aten.linear.default"), Some(CastPolicy::Lower));
        assert_eq!(policy(Cpu, "aten.relu.default"), None);
        assert_eq!(policy(Cpu, "prims.matmul"), None);
    }

    fn graph(body: &str) -> Graph {
        format!("fx 1.2\n\ngraph \"g\" {{\n{body}\n}}\n").parse().unwrap()
    }

    /// The types of the calls and of the results after autocast.
    fn types(body: &str, device: AutocastDevice) -> String {
        mixed_types(body, Mixed { device, whole: Some(DType::BF16) })
    }

    fn mixed_types(body: &str, mixed: Mixed) -> String {
        let cast = autocast(&graph(body), mixed).unwrap();
        fx_ir::well_formed(&cast).unwrap();
        // The graph must still decompose with these types.
        prims::decompose(&cast).unwrap_or_else(|e| panic!("{}\n{cast}", e[0]));
        let line = |(_, node): (NodeId, &fx_ir::Node)| {
            let (target, _) = node.as_call()?;
            Some(format!("{target} {}", cast.meta(node.outputs[0])?.dtype))
        };
        cast.iter().filter_map(line).collect::<Vec<_>>().join("\n")
    }

    const LAYER: &str = "%x: f32[2, 3] = input \"x\"
%w: f32[4, 3] = parameter \"w\"
%h: f32[2, 4] = aten.linear.default(%x, %w, none)
%r: f32[2, 4] = aten.relu.default(%h)
%s: f32[2, 4] = aten.softmax.int(%r, -1, none)
%g: f32[2, 4] = aten.linear.default(%x, %w, none)
%y: f32[2, 4] = aten.add.Tensor(%s, %g, 1)
return %y";

    #[test]
    fn products_are_narrow_and_softmax_is_wide_on_cuda() {
        let expected = "prims.convert bf16\nprims.convert bf16\naten.linear.default bf16\naten.relu.default bf16\nprims.convert f32\naten.softmax.int f32\naten.linear.default bf16\naten.add.Tensor f32";
        assert_eq!(types(LAYER, AutocastDevice::Cuda), expected);
    }

    #[test]
    fn softmax_takes_what_comes_on_the_cpu() {
        let expected = "prims.convert bf16\nprims.convert bf16\naten.linear.default bf16\naten.relu.default bf16\naten.softmax.int bf16\naten.linear.default bf16\naten.add.Tensor bf16";
        assert_eq!(types(LAYER, AutocastDevice::Cpu), expected);
    }

    #[test]
    fn losses_are_wide_and_buffers_stay() {
        let body = "%x: f32[2, 3] = input \"x\"
%w: f32[3, 3] = parameter \"w\"
%b: f32[2, 3] = buffer \"b\"
%h: f32[2, 3] = aten.mm.default(%x, %w)
%loss: f32[] = aten.mse_loss.default(%h, %b, 1)
return %loss";
        let mut g = graph(body);
        let h = g.values.iter().find(|(_, v)| v.name == "h").unwrap().0;
        g.outputs.push(Output { kind: OutputKind::BufferMutation("b".into()), arg: Arg::Value(h) });
        let cast = autocast(&g, Mixed { device: AutocastDevice::Cpu, whole: Some(DType::BF16) }).unwrap();
        let dtype = |n: usize| match cast.outputs[n].arg {
            Arg::Value(v) => cast.meta(v).map(|m| m.dtype),
            _ => None,
        };
        assert_eq!((dtype(0), dtype(1)), (Some(DType::F32), Some(DType::F32)));
        assert_eq!(cast.meta(h).map(|m| m.dtype), Some(DType::BF16));
    }

    /// Two products in a region for GPUs, of which the second is in a region that turns it off again, and one outside.
    const REGIONS: &str = "%x: f32[2, 3] = input \"x\"
%w: f32[3, 3] = parameter \"w\"
%a: f32[2, 3] = aten.mm.default(%x, %w) from net:mm::\"\":\"cuda bf16\"
%b: f32[2, 3] = aten.mm.default(%x, %w) from net:mm::\"\":\"cuda full\"
%c: f32[2, 3] = aten.mm.default(%x, %w)
return %a
return %b
return %c";

    #[test]
    fn a_region_has_its_meaning_on_its_device_alone() {
        let on = |device, whole| mixed_types(REGIONS, Mixed { device, whole });
        let (wide, narrow) = ("aten.mm.default f32", "aten.mm.default bf16");
        let casts = "prims.convert bf16\nprims.convert bf16";
        assert_eq!(on(AutocastDevice::Cpu, None), [wide; 3].join("\n"));
        assert_eq!(on(AutocastDevice::Cuda, None), [casts, narrow, wide, wide].join("\n"));
        let all = on(AutocastDevice::Cuda, Some(DType::BF16));
        assert_eq!(all, [casts, narrow, wide, narrow].join("\n"), "regions lie within the one of the option");
        let cpu = on(AutocastDevice::Cpu, Some(DType::BF16));
        assert_eq!(
            cpu,
            [casts, narrow, narrow, narrow].join("\n"),
            "a region for GPUs turns nothing off here"
        );
    }

    #[test]
    fn no_region_is_left() {
        let cast = autocast(&graph(REGIONS), Mixed { device: AutocastDevice::Cuda, whole: None }).unwrap();
        assert!(cast.origins.values().all(|origin| origin.precisions.is_empty()));
    }

    #[test]
    fn doubles_and_integers_are_left_alone() {
        let body = "%x: f64[2, 3] = input \"x\"
%w: f64[3, 3] = parameter \"w\"
%h: f64[2, 3] = aten.mm.default(%x, %w)
return %h";
        assert_eq!(types(body, AutocastDevice::Cpu), "aten.mm.default f64");
    }

    #[test]
    fn concatenations_take_the_widest() {
        let body = "%x: f32[2, 3] = input \"x\"
%w: f32[3, 3] = parameter \"w\"
%h: f32[2, 3] = aten.mm.default(%x, %w)
%c: f32[4, 3] = aten.cat.default([%h, %x], 0)
return %c";
        let expected = "prims.convert bf16\nprims.convert bf16\naten.mm.default bf16\nprims.convert f32\naten.cat.default f32";
        assert_eq!(types(body, AutocastDevice::Cpu), expected);
    }
}
