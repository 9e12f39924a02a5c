//! A walk over a graph that writes it into another, its batched calls by the batching rules of the operator table: the
//! core of `vmap`, and, where nothing is batched, a plain copy. Control flow: a `cond` on a condition that is the same
//! for the whole batch batches its branches; one that differs computes both and selects. Loops with batched operands are
//! refused.

use fx_ir::{
    Arg, Graph, InputKind, Node, NodeId, NodeKind, OriginId, Output, OutputKind, SubgraphId, ValueId,
    ValueType,
};
use ir_core::{Arena, DType, Shape, SymExpr, TensorMeta};
use kernel_ir::ReduceOp;
use prims::{BatchCall, Builder, Call, OpError, Outs, Randomness, batch_call, draws, lookup};
use rustc_hash::FxHashSet;

use super::{BatchError, TransformError};

/// What the values of the source are in the result; `None` where a call was refused.
type Map = Arena<ValueId, Option<ValueId>>;

/// The walk's state.
pub(super) struct Walk<'a> {
    /// The graph written.
    pub(super) out: &'a mut Graph,
    /// Values of it with the batch dimension in front.
    pub(super) batched: FxHashSet<ValueId>,
    /// Size of the batch.
    size: SymExpr,
    randomness: Randomness,
    errors: Vec<BatchError>,
}

impl<'a> Walk<'a> {
    /// A walk that batches.
    pub(super) fn new(out: &'a mut Graph, size: SymExpr, randomness: Randomness) -> Walk<'a> {
        Walk { out, batched: FxHashSet::default(), size, randomness, errors: Vec::new() }
    }

    /// Writes `source` with its arguments (the seed left out) being values of the result; gives its outputs.
    ///
    /// # Errors
    /// All calls that cannot be batched.
    pub(super) fn run(&mut self, source: &Graph, arguments: &[ValueId]) -> Result<Vec<Arg>, TransformError> {
        let mut given = arguments.iter().copied();
        let mut inputs = Vec::new();
        for (_, kind, _) in source.inputs() {
            match kind {
                InputKind::Seed => inputs.push(self.out.require_seed()),
                _ => inputs.extend(given.next()),
            }
        }
        let outputs = self.graph(source, &inputs);
        if !self.errors.is_empty() {
            return Err(TransformError::Batch(std::mem::take(&mut self.errors)));
        }
        Ok(outputs.into_iter().flatten().collect())
    }

    /// As [`run`](Walk::run) for results that are tensors, each with the batch dimension in front.
    pub(super) fn run_batched(
        &mut self,
        source: &Graph,
        arguments: &[ValueId],
    ) -> Result<Vec<ValueId>, TransformError> {
        let outputs = self.run(source, arguments)?;
        let mut values = Vec::with_capacity(outputs.len());
        for output in outputs {
            let Arg::Value(v) = output else {
                return Err(super::form("vmap", "an output is not a tensor: return tensors alone"));
            };
            values.push(self.front(v)?);
        }
        Ok(values)
    }

    /// A value with the batch dimension in front, broadcast where it has none.
    pub(super) fn front(&mut self, v: ValueId) -> Result<ValueId, OpError> {
        if self.batched.contains(&v) {
            return Ok(v);
        }
        let name = self.out.values[v].name.clone();
        let mut b = Builder::new(self.out, name, OriginId(0));
        let own = b.sizes(v)?;
        let sizes: Shape = std::iter::once(self.size.clone()).chain(own).collect();
        let v = b.unsqueeze(v, 0)?;
        let v = b.expand(v, &sizes)?;
        self.batched.insert(v);
        Ok(v)
    }

    /// `inputs` are for every placeholder, the seed's too.
    fn graph(&mut self, source: &Graph, inputs: &[ValueId]) -> Vec<Option<Arg>> {
        let mut map: Map = source.values.ids().map(|_| None).collect();
        for ((v, _, _), &new) in source.inputs().zip(inputs) {
            map[v] = Some(new);
        }
        for (id, node) in source.iter() {
            let NodeKind::Call { target, args } = &node.kind else { continue };
            let Some(args) = args.iter().map(|a| mapped(a, &map)).collect::<Option<Vec<Arg>>>() else {
                continue;
            };
            match self.call(source, id, node, target, args) {
                Ok(outs) => node.outputs.iter().zip(outs).for_each(|(&old, new)| map[old] = Some(new)),
                Err(error) => self.errors.push(BatchError {
                    node: source.node_name(id).into(),
                    target: target.clone(),
                    origin: source.origin(id).clone(),
                    error,
                }),
            }
        }
        source.outputs.iter().map(|o| mapped(&o.arg, &map)).collect()
    }

    fn call(
        &mut self,
        source: &Graph,
        id: NodeId,
        node: &Node,
        target: &str,
        args: Vec<Arg>,
    ) -> Result<Outs, OpError> {
        let mut any = false;
        args.iter().for_each(|a| a.for_each_value(&mut |v| any |= self.batched.contains(&v)));
        let origin = self.out.add_origin(source.origin(id).clone());
        let name = source.node_name(id);
        if target.starts_with("higher_order.") {
            let random = self.randomness != Randomness::Same && body_draws(source, &args);
            return match any || random {
                true => self.control(source, node, target, &args, (name, origin)),
                false => Ok(self.copy(source, node, target, args, origin)),
            };
        }
        match target {
            prims::scalars::ITEM if any => {
                let what = "a number that differs within the batch (`item`, `nonzero`, a size that depends on the data): \
                            vmap cannot make one size of many; compute with masks instead";
                return Err(OpError::Unsupported { op: target.into(), what: what.into() });
            }
            prims::scalars::ASSERT if any => return self.assert(&args, name, origin),
            prims::scalars::ITEM | prims::scalars::ASSERT => {
                return Ok(self.copy(source, node, target, args, origin));
            }
            _ => {}
        }
        let op = lookup(target).ok_or_else(|| OpError::Unknown(target.into()))?;
        let call = Call { op, args: &args };
        let asked = any || (draws(&call) && self.randomness != Randomness::Same);
        if !asked {
            return Ok(self.copy(source, node, target, args, origin));
        }
        let mut b = Builder::new(self.out, name, origin);
        let batched = &self.batched;
        let batch = BatchCall {
            call: &call,
            batched: &|v| batched.contains(&v),
            size: &self.size,
            randomness: self.randomness,
        };
        let outs = batch_call(&mut b, &batch)?;
        self.batched.extend(outs.iter().copied());
        Ok(outs)
    }

    /// The call as it is.
    fn copy(
        &mut self,
        source: &Graph,
        node: &Node,
        target: &str,
        mut args: Vec<Arg>,
        origin: OriginId,
    ) -> Outs {
        for arg in &mut args {
            if let Arg::Graph(g) = arg
                && let Some(body) = source.subgraphs.get(*g)
            {
                *g = self.out.subgraphs.push(body.clone());
            }
        }
        let types =
            node.outputs.iter().map(|&v| (source.values[v].name.as_str(), source.values[v].ty.clone()));
        self.out.call(target, args, types, origin)
    }

    /// Holds where it holds for every element.
    fn assert(&mut self, args: &[Arg], name: &str, origin: OriginId) -> Result<Outs, OpError> {
        let (Some(Arg::Value(pred)), message) = (args.first(), args.get(1)) else { return Ok(Outs::new()) };
        let message = if let Some(Arg::Str(m)) = message { m.to_string() } else { String::new() };
        let mut b = Builder::new(self.out, name, origin);
        let pred = b.cast(*pred, DType::Bool)?;
        let dims: Vec<usize> = (0..b.rank(pred)?).collect();
        let all = b.reduce(ReduceOp::All, pred, &dims, false)?;
        b.assert(all.into(), &message);
        Ok(Outs::new())
    }

    fn control(
        &mut self,
        source: &Graph,
        node: &Node,
        target: &str,
        args: &[Arg],
        (name, origin): (&str, OriginId),
    ) -> Result<Outs, OpError> {
        let unsupported = |what: &str| OpError::Unsupported { op: target.into(), what: what.into() };
        let ("higher_order.cond", [pred, Arg::Graph(yes), Arg::Graph(no), rest @ ..]) = (target, args) else {
            return Err(unsupported(
                "loops over batched operands: vmap knows `cond` alone; write the loop over the whole batch",
            ));
        };
        let mut operands = Vec::new();
        rest.iter().for_each(|a| a.for_each_value(&mut |v| operands.push(v)));
        let bodies = [*yes, *no].map(|g| source.subgraphs.get(g));
        let [Some(yes), Some(no)] = bodies else { return Err(unsupported("its branches are missing")) };
        match pred {
            Arg::Value(p) if self.batched.contains(p) => self.both(yes, no, *p, &operands, (name, origin)),
            _ => {
                let graphs = [self.body(yes, &operands)?, self.body(no, &operands)?];
                let [yes, no] = graphs.map(|g| self.out.subgraphs.push(g));
                self.branch(source, node, pred, [yes, no], rest, origin)
            }
        }
    }

    /// A `cond` whose branches are batched.
    fn branch(
        &mut self,
        source: &Graph,
        node: &Node,
        pred: &Arg,
        [yes, no]: [SubgraphId; 2],
        rest: &[Arg],
        origin: OriginId,
    ) -> Result<Outs, OpError> {
        let mut types = Vec::new();
        for &v in &node.outputs {
            let value = &source.values[v];
            let ty = match value.ty.as_tensor() {
                Some(m) => ValueType::Tensor(self.batched_meta(m)),
                None => value.ty.clone(),
            };
            types.push((value.name.as_str(), ty));
        }
        let args = [pred.clone(), Arg::Graph(yes), Arg::Graph(no)].into_iter().chain(rest.iter().cloned());
        let outs = self.out.call("higher_order.cond", args.collect(), types, origin);
        self.batched.extend(outs.iter().copied());
        Ok(outs)
    }

    fn batched_meta(&self, meta: &TensorMeta) -> TensorMeta {
        let sizes = std::iter::once(self.size.clone()).chain(meta.sizes.iter().cloned());
        TensorMeta { device: meta.device.clone(), ..TensorMeta::contiguous(meta.dtype, sizes) }
    }

    /// A branch with batched operands as a graph of its own; all its results are batched.
    fn body(&mut self, source: &Graph, operands: &[ValueId]) -> Result<Graph, OpError> {
        let mut out = super::empty_with_symbols(self.out);
        out.name = source.name.clone();
        let mut batched = FxHashSet::default();
        let mut inputs = Vec::new();
        for ((v, kind, name), operand) in source.inputs().zip(operands) {
            let value = &source.values[v];
            let ty = match value.ty.as_tensor().filter(|_| self.batched.contains(operand)) {
                Some(m) => ValueType::Tensor(self.batched_meta(m)),
                None => value.ty.clone(),
            };
            let new = out.placeholder(kind, name, &value.name, ty);
            if self.batched.contains(operand) {
                batched.insert(new);
            }
            inputs.push(new);
        }
        let mut inner = Walk {
            out: &mut out,
            batched,
            size: self.size.clone(),
            randomness: self.randomness,
            errors: Vec::new(),
        };
        let results = inner.graph(source, &inputs);
        let mut outputs = Vec::new();
        for arg in results.into_iter().flatten() {
            let arg = if let Arg::Value(v) = arg { inner.front(v)?.into() } else { arg };
            outputs.push(Output { kind: OutputKind::User, arg });
        }
        self.errors.append(&mut inner.errors);
        out.outputs = outputs;
        out.move_symbols(self.out);
        Ok(out)
    }

    /// Both branches, and for each element of the batch the one that its condition names.
    fn both(
        &mut self,
        yes: &Graph,
        no: &Graph,
        pred: ValueId,
        operands: &[ValueId],
        (name, origin): (&str, OriginId),
    ) -> Result<Outs, OpError> {
        let effects = |g: &Graph| {
            g.iter().any(|(_, n)| n.as_call().is_some_and(|(target, _)| prims::scalars::is_effect(target)))
        };
        let unsupported =
            |what: &str| OpError::Unsupported { op: "higher_order.cond".into(), what: what.into() };
        if effects(yes) || effects(no) {
            return Err(unsupported(
                "a condition that differs within the batch, with a branch that stops the program or binds a size: both \
                 branches would be computed",
            ));
        }
        let (yes, no) = (self.graph(yes, operands), self.graph(no, operands));
        let mut outs = Outs::new();
        for pair in yes.into_iter().zip(no) {
            let (Some(Arg::Value(x)), Some(Arg::Value(y))) = pair else {
                return Err(unsupported(
                    "branches that cannot be batched, or that return something but tensors",
                ));
            };
            let (x, y) = (self.front(x)?, self.front(y)?);
            let mut b = Builder::new(self.out, name, origin);
            let sizes = b.sizes(x)?;
            let mask = b.cast(pred, DType::Bool)?;
            let column: Shape = sizes
                .iter()
                .enumerate()
                .map(|(d, _)| if d == 0 { self.size.clone() } else { SymExpr::ONE })
                .collect();
            let mask = b.reshape(mask, &column)?;
            outs.push(b.select(mask, x, y)?);
        }
        self.batched.extend(outs.iter().copied());
        Ok(outs)
    }
}

/// Whether a body of the call draws random numbers.
fn body_draws(source: &Graph, args: &[Arg]) -> bool {
    let draws = |g: &SubgraphId| source.subgraphs.get(*g).is_some_and(|g| g.seed().is_some());
    args.iter().any(|a| matches!(a, Arg::Graph(g) if draws(g)))
}

/// The argument in terms of the result; `None` where a value was refused.
fn mapped(arg: &Arg, map: &Map) -> Option<Arg> {
    match arg {
        Arg::Value(v) => map[*v].map(Arg::Value),
        Arg::List(items) => items.iter().map(|a| mapped(a, map)).collect::<Option<_>>().map(Arg::List),
        other => Some(other.clone()),
    }
}
