//! Chooses a placement for every value of a graph: what the user fixed stays, and the rest follows in the order of the graph,
//! for each call and each axis the cheapest way of the operator's sharding rule. Costs are those of moving operands to where
//! the way needs them, of the work, which parts share, and of what the result will cost later: sums that are open, and parts
//! that nothing asked for.
//!
//! It builds nothing (`localize` does); its result is the same on every rank.

use fx_ir::{Arg, Graph, NodeId, NodeKind, OutputKind, ValueId};
use prims::facts::bytes_hint;
use prims::shard_rule::{self, rule};
use prims::{Call, LowerCall, Placement, ShardRule, Way};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::redistribute::Kind;
use crate::spec::{self, Spec, is_even, is_valid, normalize};
use crate::{Costs, Mesh, ShardingError};

/// Placements that the user fixed, by axis; `None` leaves an axis open.
pub type Fixed = Vec<Option<Placement>>;

/// What the user fixed of a graph.
#[derive(Clone, Debug, Default)]
pub struct Constraints {
    /// Of values: placeholders, and results of calls.
    pub values: FxHashMap<ValueId, Fixed>,
    /// Of outputs that are returned to the caller, by number.
    pub outputs: FxHashMap<usize, Fixed>,
    /// Placeholders that are in parts along an axis only to be kept and updated: what else computes with them has them whole.
    pub stored: FxHashSet<(ValueId, usize)>,
}

/// The placements of a call.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    /// What its tensor operands are moved to, in the order of the arguments.
    pub operands: Vec<Spec>,
    /// What it gives.
    pub results: Vec<Spec>,
}

/// The layout of a graph on a mesh.
#[derive(Clone, Debug, Default)]
pub struct Layout {
    /// Of every value that is a tensor.
    pub values: FxHashMap<ValueId, Spec>,
    /// Of every call.
    pub calls: FxHashMap<NodeId, Choice>,
    /// Of every output.
    pub outputs: Vec<Spec>,
    /// Calls that run on whole tensors although an operand is in parts: name of the node, target, reason.
    pub gathered: Vec<(String, String, &'static str)>,
}

/// Lays out a graph of prims.
///
/// # Errors
/// A placement that its tensor cannot have; a call that its operator refuses.
pub fn propagate(
    graph: &Graph,
    mesh: &Mesh,
    constraints: &Constraints,
    costs: &Costs,
) -> Result<Layout, ShardingError> {
    let mut pass = Pass {
        graph,
        mesh,
        constraints,
        costs,
        layout: Layout::default(),
        wanted: FxHashMap::default(),
        moved: FxHashMap::default(),
        readers: FxHashMap::default(),
        stored: constraints.stored.clone(),
    };
    for (_, args) in graph.iter().filter_map(|(_, node)| node.as_call()) {
        shard_rule::operands(args).into_iter().for_each(|v| *pass.readers.entry(v).or_insert(0) += 1);
    }
    pass.placeholders()?;
    pass.want();
    for (id, node) in graph.iter() {
        if matches!(node.kind, NodeKind::Call { .. }) {
            pass.call(id)?;
        }
    }
    pass.outputs()?;
    Ok(pass.layout)
}

struct Pass<'a> {
    graph: &'a Graph,
    mesh: &'a Mesh,
    constraints: &'a Constraints,
    costs: &'a Costs,
    layout: Layout,
    /// Placements that later calls will ask for: a new parameter has that of the old one.
    wanted: FxHashMap<ValueId, Spec>,
    /// Placements that values have been moved to for earlier calls.
    moved: FxHashMap<ValueId, Vec<Spec>>,
    /// How many operands a value is.
    readers: FxHashMap<ValueId, usize>,
    /// Values in parts that calls have whole: what the constraints name, and the same in narrower numbers.
    stored: FxHashSet<(ValueId, usize)>,
}

/// An alternative for one axis.
struct Candidate {
    cost: f64,
    operands: Vec<Placement>,
    results: Vec<Placement>,
}

impl Pass<'_> {
    fn sizes(&self, v: ValueId) -> &[ir_core::SymExpr] {
        self.graph.meta(v).map_or(&[], |m| &m.sizes)
    }

    /// A spec from what was fixed; other axes are those of `open`.
    fn fixed(&self, v: ValueId, fixed: &Fixed, open: &Spec) -> Result<Spec, ShardingError> {
        let with = |open: &Spec| {
            let mut spec = open.clone();
            for (axis, placement) in fixed.iter().enumerate() {
                if let (Some(placement), true) = (placement, self.mesh.axes()[axis].size > 1) {
                    spec[axis] = placement.clone();
                }
            }
            spec
        };
        let (sizes, mut spec) = (self.sizes(v), with(open));
        if !is_valid(self.mesh, &spec, sizes) {
            // Another axis splits the same dimension in other blocks: what was fixed wins.
            spec = with(&spec::whole(self.mesh));
        }
        if !is_valid(self.mesh, &spec, sizes) {
            let text = spec::text(self.mesh, &spec, self.graph);
            let what = format!(
                "{text} is not possible for a tensor of sizes {}: name one of its dimensions, in blocks that divide it, or sections of which all ranks have equal parts",
                self.graph.sizes_text(sizes)
            );
            return Err(ShardingError::Placement { name: self.graph.values[v].name.clone(), what });
        }
        normalize(self.mesh, &mut spec, sizes);
        Ok(spec)
    }

    fn placeholders(&mut self) -> Result<(), ShardingError> {
        let whole = spec::whole(self.mesh);
        for (v, _, _) in self.graph.inputs() {
            let spec = match self.constraints.values.get(&v) {
                Some(fixed) => self.fixed(v, fixed, &whole)?,
                None => whole.clone(),
            };
            self.layout.values.insert(v, spec);
        }
        Ok(())
    }

    /// What is computed for a parameter in parts is wanted in the same parts, back to where its shape is another one.
    fn want(&mut self) {
        let named: FxHashMap<&str, ValueId> = self.graph.inputs().map(|(v, _, name)| (name, v)).collect();
        for output in &self.graph.outputs {
            let (Some(target), Arg::Value(v)) = (target_of(&output.kind), &output.arg) else { continue };
            if let Some(spec) = named.get(target).and_then(|of| self.layout.values.get(of)) {
                self.wanted.insert(*v, spec.clone());
            }
        }
        let order: Vec<NodeId> = self.graph.order.iter().rev().copied().collect();
        for id in order {
            let node = &self.graph.nodes[id];
            let Some((target, args)) = node.as_call() else { continue };
            let Some(op) = prims::lookup(target) else { continue };
            let Some(ShardRule::Pointwise(_)) = rule(&Call { op, args }) else { continue };
            let Some(&out) = node.outputs.first() else { continue };
            let operands = shard_rule::operands(args);
            let known = self.wanted.get(&out).or_else(|| {
                let placed = operands.iter().filter_map(|v| self.layout.values.get(v));
                placed.into_iter().find(|s| !spec::is_whole(s))
            });
            let Some(spec) = known.cloned() else { continue };
            let alike: Vec<ValueId> =
                operands.into_iter().filter(|v| self.sizes(*v) == self.sizes(out)).collect();
            for v in alike {
                self.wanted.entry(v).or_insert_with(|| spec.clone());
            }
        }
    }

    fn call(&mut self, id: NodeId) -> Result<(), ShardingError> {
        let node = &self.graph.nodes[id];
        let Some((target, args)) = node.as_call() else { return Ok(()) };
        let operands = shard_rule::operands(args);
        let specs: Vec<Spec> = operands.iter().map(|v| self.spec(*v)).collect();
        let outs: Vec<ValueId> = node.outputs.to_vec();
        let (ways, why) = self.ways(id, target, args, &outs)?;
        let mut choice = Choice {
            operands: vec![spec::whole(self.mesh); operands.len()],
            results: vec![spec::whole(self.mesh); outs.len()],
        };
        for axis in (0..self.mesh.axes().len()).filter(|a| self.mesh.axes()[*a].size > 1) {
            let now: Vec<Placement> = specs.iter().map(|s| s[axis].clone()).collect();
            let further = self.sectioned_ways(id, target, args, &outs, &now)?;
            let all: Vec<&Way> = ways.iter().chain(&further).collect();
            self.keep(target, (&operands, &outs), axis);
            let best = self.best(id, axis, &all, (&operands, &specs), &outs, &choice);
            for (spec, placement) in choice.operands.iter_mut().zip(&best.operands) {
                spec[axis] = placement.clone();
            }
            for (spec, placement) in choice.results.iter_mut().zip(&best.results) {
                spec[axis] = placement.clone();
            }
        }
        for (spec, v) in choice.operands.iter_mut().zip(&operands).chain(choice.results.iter_mut().zip(&outs))
        {
            normalize(self.mesh, spec, self.graph.meta(*v).map_or(&[], |m| &m.sizes));
        }
        let split = |s: &Spec| s.iter().any(|p| p.dim().is_some());
        if let Some(why) = why.filter(|_| ways.is_empty() && specs.iter().any(split)) {
            self.layout.gathered.push((self.graph.node_name(id).to_owned(), target.to_owned(), why));
        }
        for (v, spec) in outs.iter().zip(&choice.results) {
            let spec = match self.constraints.values.get(v) {
                Some(fixed) => self.fixed(*v, fixed, spec)?,
                None => spec.clone(),
            };
            self.layout.values.insert(*v, spec);
        }
        for (v, spec) in operands.iter().zip(&choice.operands) {
            let all = self.moved.entry(*v).or_default();
            if !all.contains(spec) {
                all.push(spec.clone());
            }
        }
        self.layout.calls.insert(id, choice);
        Ok(())
    }

    /// The ways of a call, and why there are none.
    fn ways(
        &self,
        id: NodeId,
        target: &str,
        args: &[Arg],
        outs: &[ValueId],
    ) -> Result<(Vec<Way>, Option<&'static str>), ShardingError> {
        let Some(op) = prims::lookup(target) else {
            return Ok((Vec::new(), Some("it is no operator of the table")));
        };
        let call = Call { op, args };
        let why = match rule(&call) {
            Some(ShardRule::Whole(why)) => *why,
            Some(ShardRule::Local) => "it exchanges data itself",
            _ => "none of its ways fits",
        };
        let ways = shard_rule::ways(&LowerCall { call, graph: self.graph, outs });
        let ways = ways.map_err(|source| crate::call_error(self.graph, id, source))?;
        Ok((ways, Some(why)))
    }

    /// Ways that the sections of operands allow.
    fn sectioned_ways(
        &self,
        id: NodeId,
        target: &str,
        args: &[Arg],
        outs: &[ValueId],
        operands: &[Placement],
    ) -> Result<Vec<Way>, ShardingError> {
        let Some(op) = prims::lookup(target) else { return Ok(Vec::new()) };
        let call = LowerCall { call: Call { op, args }, graph: self.graph, outs };
        shard_rule::sectioned_ways(&call, operands)
            .map_err(|source| crate::call_error(self.graph, id, source))
    }

    /// A stored value in narrower numbers is stored as well: fewer bytes are gathered. So is one in other numbers that the update
    /// wants in parts.
    fn keep(&mut self, target: &str, (operands, outs): (&[ValueId], &[ValueId]), axis: usize) {
        let ("prims.convert", [of], [to]) = (target, operands, outs) else { return };
        let wanted = self.wanted.get(to).is_some_and(|wanted| wanted[axis].dim().is_some());
        let narrower = bytes_hint(self.graph, *to) <= bytes_hint(self.graph, *of);
        if self.stored.contains(&(*of, axis)) && (narrower || wanted) {
            self.stored.insert((*to, axis));
        }
    }

    /// Whether a way has a stored value in parts, or as one of many summands, although its result is neither stored nor wanted in
    /// parts.
    fn opens_storage(&self, axis: usize, way: &Way, operands: &[ValueId], outs: &[ValueId]) -> bool {
        let open =
            |(v, p): (&ValueId, &Placement)| *p != Placement::Replicate && self.stored.contains(&(*v, axis));
        let kept = |(v, p): (&ValueId, &Placement)| {
            self.stored.contains(&(*v, axis)) || self.wanted.get(v).is_some_and(|wanted| wanted[axis] == *p)
        };
        operands.iter().zip(&way.operands).any(open) && !outs.iter().zip(&way.results).any(kept)
    }

    fn spec(&self, v: ValueId) -> Spec {
        self.layout.values.get(&v).cloned().unwrap_or_else(|| spec::whole(self.mesh))
    }

    /// How many calls read a value; at least one.
    fn readers(&self, v: ValueId) -> f64 {
        self.readers.get(&v).copied().unwrap_or(1) as f64
    }

    /// Bytes of an element; one where the value is no tensor.
    fn width(&self, v: ValueId) -> f64 {
        self.graph.meta(v).map_or(1.0, |m| m.dtype.size() as f64)
    }

    /// Bytes of a value as one rank would have it without this axis.
    fn bytes(&self, v: ValueId, spec: &[Placement], axis: usize) -> f64 {
        let others = spec
            .iter()
            .zip(self.mesh.axes())
            .enumerate()
            .filter(|(n, (p, _))| *n != axis && p.dim().is_some());
        let shared: usize = others.map(|(_, (_, a))| a.size).product();
        bytes_hint(self.graph, v) as f64 / shared as f64
    }

    /// The cheapest alternative along an axis; the call on whole tensors is always one.
    fn best(
        &self,
        id: NodeId,
        axis: usize,
        ways: &[&Way],
        (operands, specs): (&[ValueId], &[Spec]),
        outs: &[ValueId],
        chosen: &Choice,
    ) -> Candidate {
        let work = self.costs.work(self.graph, id);
        let replicated = |n: usize| vec![Placement::Replicate; n];
        let whole = Way::new(replicated(operands.len()), replicated(outs.len()));
        let mut best: Option<Candidate> = None;
        for way in std::iter::once(&whole).chain(ways.iter().copied()) {
            for scaled in scales(way, specs, axis) {
                if let Some(found) = self.candidate(axis, scaled, (operands, specs), outs, chosen, work)
                    && best.as_ref().is_none_or(|b| found.cost < b.cost)
                {
                    best = Some(found);
                }
            }
        }
        // The whole way is always possible: no operand becomes partial by it.
        best.unwrap_or(Candidate { cost: 0.0, operands: whole.operands, results: whole.results })
    }

    /// A way with its cost; `None` where a tensor cannot have its placement next to those of the axes before.
    fn candidate(
        &self,
        axis: usize,
        way: Way,
        (operands, specs): (&[ValueId], &[Spec]),
        outs: &[ValueId],
        chosen: &Choice,
        work: f64,
    ) -> Option<Candidate> {
        if self.opens_storage(axis, &way, operands, outs) {
            return None;
        }
        let ranks = self.mesh.axes()[axis].size as f64;
        let mut cost = 0.0;
        let mut follows = false;
        for (n, (&v, placement)) in operands.iter().zip(&way.operands).enumerate() {
            let (mut next, from) = (chosen.operands[n].clone(), &specs[n]);
            next[axis] = placement.clone();
            if !is_valid(self.mesh, &next, self.sizes(v))
                || (way.even && !is_even(self.mesh, &next, self.sizes(v)))
            {
                return None;
            }
            normalize(self.mesh, &mut next, self.sizes(v));
            follows |= next[axis].dim().is_some() && next[axis] == from[axis];
            // A value that is several operands is moved once.
            if (0..n).any(|m| operands[m] == v && way.operands[m] == *placement) {
                continue;
            }
            let whole = self.bytes(v, from, axis);
            let moved = self.moved.get(&v).into_iter().flatten().chain([from]);
            let ways = moved.map(|from| self.costs.change(self.mesh, axis, &from[axis], &next[axis], whole));
            let least = ways.fold(f64::INFINITY, f64::min);
            // A sum is made once for all that read it; passed on, each of them leaves one behind.
            cost += match (&from[axis], &next[axis]) {
                (Placement::Partial(_), Placement::Replicate) => least / self.readers(v),
                _ => least,
            };
            // What is whole is better not made one of many summands.
            if matches!((&from[axis], &next[axis]), (Placement::Replicate, Placement::Partial(_))) {
                cost += whole / self.costs.memory;
            }
        }
        let mut shared = false;
        for (n, (&v, placement)) in outs.iter().zip(&way.results).enumerate() {
            let mut next = chosen.results[n].clone();
            next[axis] = placement.clone();
            if !is_valid(self.mesh, &next, self.sizes(v)) {
                return None;
            }
            normalize(self.mesh, &mut next, self.sizes(v));
            let whole = self.bytes(v, &next, axis);
            let wanted = self.wanted.get(&v).map(|w| &w[axis]);
            let later = match &next[axis] {
                to if Some(to) == wanted => 0.0,
                Placement::Partial(_) => {
                    let to = wanted.unwrap_or(&Placement::Replicate);
                    // What one rank reads and others lack is no sum that spared work.
                    let open = if way.ranges { 1.0 } else { 0.999 };
                    open * self.costs.change(self.mesh, axis, &next[axis], to, whole)
                }
                // Parts that no operand had will have to be gathered by somebody.
                Placement::Shard { .. } if !follows => {
                    self.costs.change(self.mesh, axis, &next[axis], &Placement::Replicate, whole)
                }
                _ => 0.0,
            };
            cost += later;
            shared |= next[axis].dim().is_some();
        }
        shared |= way.operands.iter().any(|p| p.dim().is_some()) && !way.reads_all();
        if let (Some(dtype), Some(&v)) = (way.combined, outs.first()) {
            let elements = self.bytes(v, &chosen.results[0], axis) / self.width(v);
            let whole = elements * dtype.size() as f64;
            cost += self.costs.exchange(self.mesh, axis, Kind::AllReduce, whole);
        }
        cost += if shared { work / ranks } else { work };
        cost.is_finite().then_some(Candidate { cost, operands: way.operands, results: way.results })
    }

    fn outputs(&mut self) -> Result<(), ShardingError> {
        let named: FxHashMap<&str, ValueId> = self.graph.inputs().map(|(v, _, name)| (name, v)).collect();
        let whole = spec::whole(self.mesh);
        for (n, output) in self.graph.outputs.iter().enumerate() {
            let kept = target_of(&output.kind).and_then(|name| self.layout.values.get(named.get(name)?));
            let spec = match (&output.arg, kept, self.constraints.outputs.get(&n)) {
                (Arg::Value(_), Some(spec), _) => spec.clone(),
                (Arg::Value(v), None, Some(fixed)) => self.fixed(*v, fixed, &whole)?,
                _ => whole.clone(),
            };
            self.layout.outputs.push(spec);
        }
        Ok(())
    }
}

/// The name of the parameter or buffer whose placement an output has.
fn target_of(kind: &OutputKind) -> Option<&str> {
    match kind {
        OutputKind::BufferMutation(name) | OutputKind::ParameterGradient(name) => Some(name),
        _ => None,
    }
}

/// The way, and the same with the larger blocks or the sections that an operand has already.
fn scales(way: &Way, specs: &[Spec], axis: usize) -> Vec<Way> {
    let mut all = vec![way.clone()];
    for (placement, spec) in way.operands.iter().zip(specs) {
        if let Some(refined) = way.refined(placement, &spec[axis])
            && !all.contains(&refined)
        {
            all.push(refined);
        }
    }
    all
}
