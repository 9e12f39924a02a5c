//! Builds the graph that one rank runs: parts for tensors, local calls, and exchanges where an operand is needed in another
//! placement than it has. The graphs of all ranks have the same exchanges in the same order.
//!
//! Parameters and buffers become inputs of the rank's part. Inputs of the caller stay whole, and the rank takes its part of
//! them in the graph: so sizes that are symbols keep their meaning, and a rank reads nothing but its part.

use fx_ir::{Arg, Graph, InputKind, NodeId, NodeKind, Output, ValueId, ValueType};
use ir_core::{Shape, SymExpr, TensorMeta};
use prims::shard_rule::{local_outs, operands};
use prims::{Builder, Call, LocalCall, LocalPart, Placement};
use rustc_hash::FxHashMap;

use crate::propagate::{Choice, Layout};
use crate::redistribute::{Builds, Kind, changes, kind};
use crate::spec::{self, Part, Spec};
use crate::{Mesh, ShardingError, call_error};

/// An exchange of the local graph.
#[derive(Clone, Debug, PartialEq)]
pub struct Exchange {
    /// Name of the value that moves.
    pub value: String,
    /// The axis.
    pub axis: usize,
    /// Its kind.
    pub kind: Kind,
    /// Bytes that a rank sends, symbolic sizes by their hints.
    pub bytes: f64,
    /// Bytes of the tensor without this axis.
    pub whole: f64,
}

/// The graph of a rank.
#[derive(Clone, Debug)]
pub struct Local {
    /// The graph.
    pub graph: Graph,
    /// The parts of parameters, buffers and constants that the rank has, by name.
    pub parts: FxHashMap<String, Part>,
    /// The exchanges, in order.
    pub exchanges: Vec<Exchange>,
}

/// The graph of the rank at some coordinates.
///
/// # Errors
/// A call that its operator refuses on parts, and mistakes of rules.
pub fn localize(
    graph: &Graph,
    mesh: &Mesh,
    layout: &Layout,
    coordinates: &[usize],
) -> Result<Local, ShardingError> {
    let mut new = Graph::new(graph.name.clone());
    new.share_symbols(graph);
    new.origins = graph.origins.clone();
    new.subgraphs = graph.subgraphs.clone();
    let local = Local { graph: new, parts: FxHashMap::default(), exchanges: Vec::new() };
    let builds = Builds { mesh, coordinates };
    let mut pass = Pass {
        graph,
        mesh,
        layout,
        builds,
        local,
        made: FxHashMap::default(),
        numbers: FxHashMap::default(),
    };
    for (id, node) in graph.iter() {
        match &node.kind {
            NodeKind::Placeholder { kind, name } => pass.placeholder(id, *kind, name),
            NodeKind::Call { target, args } => pass.call(id, target, args)?,
        }
    }
    pass.outputs()?;
    Ok(pass.local)
}

struct Pass<'a> {
    graph: &'a Graph,
    mesh: &'a Mesh,
    layout: &'a Layout,
    builds: Builds<'a>,
    local: Local,
    /// Placements that a value has been brought to.
    made: FxHashMap<ValueId, Vec<(Spec, ValueId)>>,
    /// Values that are no tensors.
    numbers: FxHashMap<ValueId, ValueId>,
}

impl Pass<'_> {
    fn sizes(&self, v: ValueId) -> &[SymExpr] {
        self.graph.meta(v).map_or(&[], |m| &m.sizes)
    }

    fn placeholder(&mut self, id: NodeId, kind: InputKind, name: &str) {
        let Some(&v) = self.graph.nodes[id].outputs.first() else { return };
        let value = &self.graph.values[v];
        let spec = self.layout.values.get(&v).cloned().unwrap_or_else(|| spec::whole(self.mesh));
        let (mut ty, mut has) = (value.ty.clone(), spec::whole(self.mesh));
        if let (ValueType::Tensor(meta), false) =
            (&value.ty, matches!(kind, InputKind::User | InputKind::Seed))
        {
            let part = self.builds.part(&spec, &meta.sizes);
            if !spec::is_whole(&spec) {
                let local = TensorMeta::contiguous(meta.dtype, part.sizes.iter().cloned());
                ty = ValueType::Tensor(TensorMeta { device: meta.device.clone(), ..local });
            }
            self.local.parts.insert(name.to_owned(), part);
            has = spec;
        }
        let new = self.local.graph.placeholder(kind, name, &value.name, ty);
        self.keep(v, has, new);
    }

    fn keep(&mut self, old: ValueId, spec: Spec, new: ValueId) {
        match self.graph.meta(old) {
            Some(_) => self.made.entry(old).or_default().push((spec, new)),
            None => drop(self.numbers.insert(old, new)),
        }
    }

    /// The value in a placement: as it is, or moved from the one that is there.
    fn value(&mut self, id: NodeId, old: ValueId, spec: &Spec) -> Result<ValueId, ShardingError> {
        if let Some(new) = self.numbers.get(&old) {
            return Ok(*new);
        }
        let found = self.made.get(&old).and_then(|all| all.iter().find(|(s, _)| s == spec));
        if let Some((_, new)) = found {
            return Ok(*new);
        }
        if let Some(new) = self.broadcast_anew(old, spec)? {
            self.made.entry(old).or_default().push((spec.clone(), new));
            return Ok(new);
        }
        let missing = || ShardingError::Graph(self.graph.node_name(id).to_owned());
        let (mut now, mut new) = self.nearest(old, spec).ok_or_else(missing)?;
        let sizes: Shape = self.sizes(old).iter().cloned().collect();
        let (name, origin) =
            (self.graph.values[old].name.clone(), self.graph.nodes[self.graph.values[old].def].origin);
        for change in changes(&now, spec) {
            self.record(old, &now, &change);
            let mut b = Builder::new(&mut self.local.graph, name.clone(), origin);
            let built = self.builds.change(&mut b, new, &sizes, &now, &change);
            new = built.map_err(|source| call_error(self.graph, id, source))?;
            now[change.axis] = change.to;
        }
        self.made.entry(old).or_default().push((spec.clone(), new));
        Ok(new)
    }

    /// A value in parts along dimensions that it was broadcast to: the operand is there, and broadcast to the sizes of the part
    /// it needs no memory, where a part of what all ranks have would be copied, section by section.
    fn broadcast_anew(&mut self, old: ValueId, spec: &Spec) -> Result<Option<ValueId>, ShardingError> {
        let def = self.graph.values[old].def;
        let Some((target @ "prims.expand", args)) = self.graph.nodes[def].as_call() else { return Ok(None) };
        let (Some(op), &[operand]) = (prims::lookup(target), operands(args).as_slice()) else {
            return Ok(None);
        };
        let (from, to) = (self.sizes(operand), self.sizes(old));
        let added = to.len().saturating_sub(from.len());
        let is_new =
            |dim: usize| dim.checked_sub(added).is_none_or(|d| from[d] == SymExpr::ONE && to[dim] != from[d]);
        if !spec.iter().all(|p| matches!(p, Placement::Replicate) || p.dim().is_some_and(is_new)) {
            return Ok(None);
        }
        let whole = spec::whole(self.mesh);
        let there = self.made.get(&operand).and_then(|all| all.iter().find(|(s, _)| *s == whole));
        let Some(&(_, there)) = there else { return Ok(None) };
        let mut args_here = args.to_vec();
        args_here.iter_mut().for_each(|a| a.for_each_value_mut(&mut |v| *v = there));
        let choice = Choice { operands: vec![whole], results: vec![spec.clone()] };
        let new = self.local_call(def, Call { op, args }, args_here, &choice)?;
        Ok(new.first().copied())
    }

    /// The placement of a value from which another one is reached with the fewest bytes.
    fn nearest(&self, old: ValueId, to: &Spec) -> Option<(Spec, ValueId)> {
        let sent = |from: &Spec| -> f64 {
            let of = |c: &crate::redistribute::Change| {
                kind(&c.from, &c.to).bytes(1.0, self.mesh.axes()[c.axis].size)
            };
            changes(from, to).iter().map(of).sum()
        };
        let all = self.made.get(&old)?.iter();
        all.min_by(|a, b| sent(&a.0).total_cmp(&sent(&b.0))).cloned()
    }

    fn record(&mut self, old: ValueId, now: &[Placement], change: &crate::redistribute::Change) {
        let kind = kind(&change.from, &change.to);
        if kind == Kind::Local {
            return;
        }
        let others = now
            .iter()
            .zip(self.mesh.axes())
            .enumerate()
            .filter(|(n, (p, _))| *n != change.axis && p.dim().is_some());
        let shared: usize = others.map(|(_, (_, a))| a.size).product();
        let whole = prims::facts::bytes_hint(self.graph, old) as f64 / shared as f64;
        let bytes = kind.bytes(whole, self.mesh.axes()[change.axis].size);
        let value = self.graph.values[old].name.clone();
        self.local.exchanges.push(Exchange { value, axis: change.axis, kind, bytes, whole });
    }

    /// Arguments with the values that the call reads, each in the placement that it is needed in.
    fn args(&mut self, id: NodeId, args: &[Arg], specs: &[Spec]) -> Result<Vec<Arg>, ShardingError> {
        let mut new = Vec::new();
        for (v, spec) in operands(args).into_iter().zip(specs) {
            new.push(self.value(id, v, spec)?);
        }
        let (mut args, mut next) = (args.to_vec(), new.into_iter());
        args.iter_mut().for_each(|a| {
            a.for_each_value_mut(&mut |v| {
                if let Some(new) = next.next() {
                    *v = new;
                }
            });
        });
        Ok(args)
    }

    fn call(&mut self, id: NodeId, target: &str, args: &[Arg]) -> Result<(), ShardingError> {
        let missing = || ShardingError::Graph(self.graph.node_name(id).to_owned());
        let choice = self.layout.calls.get(&id).ok_or_else(missing)?;
        let new_args = self.args(id, args, &choice.operands)?;
        let outs = self.graph.nodes[id].outputs.clone();
        let plain = choice.operands.iter().chain(&choice.results).all(|s| spec::is_whole(s));
        let new: Vec<ValueId> = match prims::lookup(target).filter(|_| !plain) {
            Some(op) => self.local_call(id, Call { op, args }, new_args, choice)?,
            None => {
                let types = outs
                    .iter()
                    .map(|v| (self.graph.values[*v].name.as_str(), self.graph.values[*v].ty.clone()));
                let types: Vec<(&str, ValueType)> = types.collect();
                self.local.graph.call(target, new_args, types, self.graph.nodes[id].origin).to_vec()
            }
        };
        for ((&old, spec), new) in outs.iter().zip(&choice.results).zip(new) {
            self.keep(old, spec.clone(), new);
            // What the user fixed otherwise is moved once, here.
            if let Some(fixed) = self.layout.values.get(&old).filter(|fixed| *fixed != spec) {
                let moved = self.value(id, old, fixed)?;
                self.made.entry(old).or_default().insert(0, (fixed.clone(), moved));
            }
        }
        Ok(())
    }

    /// The exchanges that the local form of a call makes itself, among the calls from this one on.
    fn record_within(&mut self, name: &str, from: usize) {
        let Local { graph, exchanges, .. } = &mut self.local;
        for id in &graph.order[from..] {
            let node = &graph.nodes[*id];
            let Some((target, args)) = node.as_call() else { continue };
            let (Some(op), Some(Arg::Str(group))) = (prims::lookup(target), args.last()) else { continue };
            let Some(axis) = self.mesh.axis(group).filter(|_| op.exchanges()) else { continue };
            let whole = node.outputs.first().map_or(0.0, |v| prims::facts::bytes_hint(graph, *v) as f64);
            let bytes = Kind::AllReduce.bytes(whole, self.mesh.axes()[axis].size);
            exchanges.push(Exchange { value: name.to_owned(), axis, kind: Kind::AllReduce, bytes, whole });
        }
    }

    fn local_part(&self, v: ValueId, spec: &Spec) -> LocalPart {
        let whole: Shape = self.sizes(v).iter().cloned().collect();
        let Part { sizes, offsets, .. } = self.builds.part(spec, &whole);
        let axes = spec.iter().zip(self.mesh.axes()).filter(|(_, axis)| axis.size > 1);
        let split = axes.filter_map(|(p, axis)| Some((p.dim()?, axis.name.clone()))).collect();
        LocalPart { whole, sizes, offsets, split }
    }

    /// The call on parts.
    fn local_call(
        &mut self,
        id: NodeId,
        call: Call<'_>,
        args: Vec<Arg>,
        choice: &Choice,
    ) -> Result<Vec<ValueId>, ShardingError> {
        let of_operands: Vec<LocalPart> = operands(call.args)
            .into_iter()
            .zip(&choice.operands)
            .map(|(v, s)| self.local_part(v, s))
            .collect();
        let outs = self.graph.nodes[id].outputs.clone();
        let parts: Vec<LocalPart> =
            outs.iter().zip(&choice.results).map(|(v, spec)| self.local_part(*v, spec)).collect();
        let local = LocalCall { call, args, operands: &of_operands, results: &parts };
        let name = outs.first().map_or("call", |v| &self.graph.values[*v].name).to_owned();
        let origin = self.graph.nodes[id].origin;
        let before = self.local.graph.order.len();
        let mut b = Builder::new(&mut self.local.graph, name.clone(), origin);
        let new = local_outs(&mut b, &local).map_err(|source| call_error(self.graph, id, source))?;
        self.record_within(&name, before);
        for (new, part) in new.iter().zip(&parts) {
            let found = self.local.graph.meta(*new).map(|m| &m.sizes);
            if found.is_none_or(|sizes| *sizes != part.sizes) {
                return Err(ShardingError::Sizes {
                    node: self.graph.node_name(id).to_owned(),
                    found: found.map_or(String::new(), |s| self.graph.sizes_text(s)),
                    expected: self.graph.sizes_text(&part.sizes),
                });
            }
        }
        Ok(new.to_vec())
    }

    fn outputs(&mut self) -> Result<(), ShardingError> {
        for (n, output) in self.graph.outputs.iter().enumerate() {
            let arg = match &output.arg {
                Arg::Value(v) => {
                    let whole = spec::whole(self.mesh);
                    let spec = self.layout.outputs.get(n).cloned().unwrap_or(whole);
                    Arg::Value(self.value(self.graph.values[*v].def, *v, &spec)?)
                }
                other => other.clone(),
            };
            self.local.graph.outputs.push(Output { kind: output.kind.clone(), arg });
        }
        Ok(())
    }
}
