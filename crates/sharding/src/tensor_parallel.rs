//! The built-in plan `tp:auto`: finds pairs of products with weights between which everything works on parts. The first
//! weight is then split by columns, the second by rows, and one sum between the ranks remains: the linear layers of an MLP,
//! the projections around attention by heads. A weight of several projections in one (queries, keys and values; gate and up) is
//! split by its sections, buffers that parts are written to (a decoder's caches) and biases of what is in parts as these.
//!
//! It knows no layer: a pair is found by following the parts of the first product's result through the operators' sharding
//! rules until a second product adds them up. Where some operator would need the whole before that, there is no pair.

use std::collections::BTreeSet;

use fx_ir::{Graph, InputKind, NodeId, Output, OutputKind, ValueId};
use ir_core::SymExpr;
use kernel_ir::Combine;
use prims::shard_rule::{self, divide, operands};
use prims::{Call, LowerCall, Placement, TemplateSpec, Way};
use rustc_hash::FxHashMap;

use crate::spec;
use crate::{Axis, Mesh, ShardingError, call_error};

/// Placements of parameters and buffers along an axis of a mesh, by name.
///
/// # Errors
/// A call that its operator refuses.
pub(crate) fn find(
    graph: &Graph,
    mesh: &Mesh,
    axis: usize,
) -> Result<Vec<(String, Placement)>, ShardingError> {
    let search = Search::new(graph, mesh, axis)?;
    let mut found: FxHashMap<ValueId, Placement> = FxHashMap::default();
    for &id in &graph.order {
        for (weight, placement, result) in search.first(id)? {
            if found.contains_key(&weight) {
                break;
            }
            let Some(mut group) = search.follow(id, result)? else { continue };
            group.push((weight, placement));
            let agrees = group.iter().all(|(v, p)| found.get(v).is_none_or(|f| f == p));
            if agrees {
                found.extend(group);
                break;
            }
        }
    }
    let named = graph.inputs().filter_map(|(v, _, name)| Some((name.to_owned(), found.get(&v)?.clone())));
    Ok(named.collect())
}

/// The ways of a graph's calls along one axis.
pub(crate) struct Search<'a> {
    pub(crate) graph: &'a Graph,
    mesh: Mesh,
    pub(crate) ranks: i64,
    /// Ranks of all axes.
    all: i64,
}

impl<'a> Search<'a> {
    pub(crate) fn new(graph: &'a Graph, mesh: &Mesh, axis: usize) -> Result<Search<'a>, ShardingError> {
        let Axis { name, size } = &mesh.axes()[axis];
        let alone = Mesh::new([(name.as_str(), *size)])?;
        Ok(Search { graph, mesh: alone, ranks: *size as i64, all: mesh.ranks() as i64 })
    }

    pub(crate) fn call(&self, id: NodeId) -> Option<LowerCall<'_>> {
        let node = &self.graph.nodes[id];
        let (target, args) = node.as_call()?;
        let op = prims::lookup(target)?;
        Some(LowerCall { call: Call { op, args }, graph: self.graph, outs: &node.outputs })
    }

    pub(crate) fn ways(&self, id: NodeId) -> Result<Vec<Way>, ShardingError> {
        let Some(call) = self.call(id) else { return Ok(Vec::new()) };
        shard_rule::ways(&call).map_err(|source| call_error(self.graph, id, source))
    }

    pub(crate) fn sizes(&self, v: ValueId) -> &[SymExpr] {
        self.graph.meta(v).map_or(&[], |m| &m.sizes)
    }

    fn normal(&self, v: ValueId, placement: &Placement) -> Placement {
        let mut spec = [placement.clone()];
        spec::normalize(&self.mesh, &mut spec, self.sizes(v));
        let [placement] = spec;
        placement
    }

    /// Whether the parts are equal on all ranks: others are not worth a plan.
    fn is_even(&self, v: ValueId, placement: &Placement) -> bool {
        self.divides(v, placement, self.ranks)
    }

    /// The same for a parameter, of which another axis may split the same sections.
    fn is_even_parameter(&self, v: ValueId, placement: &Placement) -> bool {
        self.divides(v, placement, self.all)
    }

    fn divides(&self, v: ValueId, placement: &Placement, ranks: i64) -> bool {
        let Placement::Shard { dim, unit, sections } = placement else { return true };
        let size = self.sizes(v).get(*dim);
        size.is_some_and(|size| divide(size, &(unit * self.ranks)).is_some())
            && sections.iter().all(|s| divide(s, &(unit * ranks)).is_some())
    }

    /// The product that a call is: its data and its weight.
    pub(crate) fn product(&self, id: NodeId) -> Option<(ValueId, ValueId)> {
        let call = self.call(id)?;
        let Some(prims::Lower::Template(spec)) = call.call.op.lower() else { return None };
        match spec(&call).ok()? {
            TemplateSpec::Matmul { a, b, .. } => Some((a, b)),
            TemplateSpec::Conv { input, weight, .. } => Some((input, weight)),
            TemplateSpec::Attention { .. } => None,
        }
    }

    /// The ways to split a product with a parameter by columns, as a whole or by sections that are used apart: the parameter, its
    /// placement, and that of the result.
    fn first(&self, id: NodeId) -> Result<Vec<(ValueId, Placement, Placement)>, ShardingError> {
        let Some((data, weight)) = self.product(id) else { return Ok(Vec::new()) };
        let Some(&out) = self.graph.nodes[id].outputs.first() else { return Ok(Vec::new()) };
        let mut found = Vec::new();
        for way in self.ways(id)? {
            let [of_data, of_weight] = &way.operands[..] else { continue };
            // Columns: the weight is in parts, the data is not.
            let Some(dim) = way.results[0].dim().filter(|_| of_weight.dim().is_some() && data != weight)
            else {
                continue;
            };
            if *of_data != Placement::Replicate {
                continue;
            }
            let fused = self.fused(id, out, dim)?.map(|sections| Placement::sectioned(dim, sections));
            let fused = fused.and_then(|p| way.refined(&way.results[0], &p));
            for way in std::iter::once(&way).chain(&fused) {
                let Some((parameter, placement)) = self.back(weight, &way.operands[1])? else { continue };
                let result = self.normal(out, &way.results[0]);
                if self.is_even(out, &result) && self.is_even_parameter(parameter, &placement) {
                    found.push((parameter, placement, result));
                }
            }
        }
        Ok(found)
    }

    /// The sections of a dimension that what follows takes apart: by slices, or by a reshape that makes a short dimension of them.
    /// `None` where the dimension is used as a whole.
    fn fused(
        &self,
        first: NodeId,
        result: ValueId,
        dim: usize,
    ) -> Result<Option<Vec<SymExpr>>, ShardingError> {
        let Some(size) = self.sizes(result).get(dim).and_then(SymExpr::as_const) else { return Ok(None) };
        let mut bounds = BTreeSet::from([0, size]);
        let mut within: FxHashMap<ValueId, usize> = FxHashMap::default();
        within.insert(result, dim);
        for id in self.behind(first) {
            let Some(call) = self.call(id) else { continue };
            let values = operands(call.call.args);
            let Some((n, &dim)) = values.iter().enumerate().find_map(|(n, v)| Some((n, within.get(v)?)))
            else {
                continue;
            };
            if let Some((start, end)) = slice_of(&call, dim) {
                bounds.extend([start, end]);
                continue;
            }
            for way in self.ways(id)? {
                let (operand, result) = (&way.operands[n], way.results.first());
                let mut at = 0;
                for section in operand.sections().iter().filter(|_| operand.dim() == Some(dim)) {
                    at += section.as_const().unwrap_or(0);
                    bounds.insert(at);
                }
                let to = result.filter(|_| *operand == Placement::shard(dim)).and_then(Placement::dim);
                if let (Some(to), Some(&out)) = (to, call.outs.first())
                    && result == Some(&Placement::shard(to))
                {
                    within.insert(out, to);
                }
            }
        }
        let sizes: Vec<SymExpr> =
            bounds.iter().zip(bounds.iter().skip(1)).map(|(from, to)| SymExpr::from_i64(to - from)).collect();
        Ok((sizes.len() > 1).then_some(sizes))
    }

    /// The calls behind one, in order.
    pub(crate) fn behind(&self, first: NodeId) -> impl Iterator<Item = NodeId> + '_ {
        let start = self.graph.order.iter().position(|id| *id == first).unwrap_or(0);
        self.graph.order[start + 1..].iter().copied()
    }

    /// The parameter that a value is a view of, with the placement by which the value has its own.
    pub(crate) fn back(
        &self,
        v: ValueId,
        placement: &Placement,
    ) -> Result<Option<(ValueId, Placement)>, ShardingError> {
        let (mut v, mut placement) = (v, self.normal(v, placement));
        loop {
            let def = self.graph.values[v].def;
            let node = &self.graph.nodes[def];
            let Some((_, args)) = node.as_call() else {
                let parameter =
                    self.graph.inputs().any(|(p, kind, _)| p == v && kind == InputKind::Parameter);
                return Ok(parameter.then_some((v, placement)));
            };
            let [from] = operands(args)[..] else { return Ok(None) };
            let fits = |w: &Way| w.results.first().is_some_and(|r| self.normal(v, r) == placement);
            let refined = |w: Way| {
                let larger = w.results.first().and_then(|r| w.refined(r, &placement));
                std::iter::once(w).chain(larger).find(fits)
            };
            let Some(way) = self.ways(def)?.into_iter().find_map(refined) else { return Ok(None) };
            placement = self.normal(from, &way.operands[0]);
            v = from;
        }
    }

    /// Follows the parts of a product's result to the products that add them up: their weights with placements, those of
    /// the buffers that parts are written to, and those of parameters that meet the parts on the way, as a first product's bias
    /// does. `None` where some operator needs the whole, or nothing adds them up.
    fn follow(
        &self,
        first: NodeId,
        placement: Placement,
    ) -> Result<Option<Vec<(ValueId, Placement)>>, ShardingError> {
        let Some(&result) = self.graph.nodes[first].outputs.first() else { return Ok(None) };
        let mut parts: FxHashMap<ValueId, Placement> = FxHashMap::default();
        parts.insert(result, placement);
        let (mut seconds, mut others, mut met) = (Vec::new(), Vec::new(), Vec::new());
        for id in self.behind(first) {
            let Some((_, args)) = self.graph.nodes[id].as_call() else { continue };
            let values = operands(args);
            if !values.iter().any(|v| parts.contains_key(v)) {
                continue;
            }
            let Some(way) = self.next(id, &values, &parts)? else { return Ok(None) };
            if let Some((_, weight)) = self.product(id)
                && way.results[0] == Placement::Partial(Combine::Sum)
            {
                let at = values.iter().position(|v| *v == weight).unwrap_or(0);
                match self.back(weight, &way.operands[at])? {
                    Some(second) if !parts.contains_key(&weight) => seconds.push(second),
                    _ => return Ok(None),
                }
                continue;
            }
            for (v, placement) in values.iter().zip(&way.operands) {
                if placement.dim().is_none() || parts.contains_key(v) {
                    continue;
                }
                if self.is_buffer(*v) {
                    let placement = self.normal(*v, placement);
                    parts.insert(*v, placement.clone());
                    others.push((*v, placement));
                } else if let Some((parameter, placement)) = self.back(*v, placement)?
                    && self.is_even_parameter(parameter, &placement)
                {
                    met.push((parameter, placement));
                }
            }
            for (&out, placement) in self.graph.nodes[id].outputs.iter().zip(&way.results) {
                let placement = self.normal(out, placement);
                if placement.dim().is_none() || !self.is_even(out, &placement) {
                    return Ok(None);
                }
                parts.insert(out, placement);
            }
        }
        if seconds.is_empty() || self.graph.outputs.iter().any(|o| self.is_lost(o, &parts)) {
            return Ok(None);
        }
        // One that meets parts of several kinds stays whole.
        let agreed = |(v, p): &&(ValueId, Placement)| met.iter().all(|(other, q)| other != v || q == p);
        seconds.extend(others);
        seconds.extend(met.iter().filter(agreed).cloned());
        Ok(Some(seconds))
    }

    fn is_buffer(&self, v: ValueId) -> bool {
        self.graph.inputs().any(|(input, kind, _)| input == v && matches!(kind, InputKind::Buffer { .. }))
    }

    /// Whether an output would have to be made whole of parts: others are written to a buffer that has the same ones.
    fn is_lost(&self, output: &Output, parts: &FxHashMap<ValueId, Placement>) -> bool {
        let buffer = match &output.kind {
            OutputKind::BufferMutation(name) => self.graph.inputs().find(|(_, _, n)| n == name),
            _ => None,
        };
        let kept = buffer.and_then(|(v, _, _)| parts.get(&v));
        let mut lost = false;
        output.arg.for_each_value(&mut |v| lost |= parts.get(&v).is_some_and(|p| kept != Some(p)));
        lost
    }

    /// The way of a call that takes the parts as they are.
    fn next(
        &self,
        id: NodeId,
        values: &[ValueId],
        parts: &FxHashMap<ValueId, Placement>,
    ) -> Result<Option<Way>, ShardingError> {
        let fits = |way: &Way| {
            values.iter().zip(&way.operands).all(|(v, p)| match parts.get(v) {
                Some(has) => self.normal(*v, p) == *has,
                // What is whole may be cut, but is not made a summand.
                None => !matches!(p, Placement::Partial(_)),
            })
        };
        let now: Vec<Placement> =
            values.iter().map(|v| parts.get(v).cloned().unwrap_or(Placement::Replicate)).collect();
        let mut ways = self.ways(id)?;
        let refine = |way: &Way| {
            let pairs = way.operands.iter().zip(&now);
            pairs.filter_map(|(of, now)| way.refined(of, now)).collect::<Vec<_>>()
        };
        let refined: Vec<Way> = ways.iter().flat_map(refine).collect();
        ways.extend(refined);
        if let Some(call) = self.call(id) {
            let further = shard_rule::sectioned_ways(&call, &now);
            ways.extend(further.map_err(|source| call_error(self.graph, id, source))?);
        }
        Ok(ways.into_iter().find(fits))
    }
}

/// Where a call takes a range of a dimension, by ones.
fn slice_of(call: &LowerCall<'_>, dim: usize) -> Option<(i64, i64)> {
    let args = &call.call;
    if args.op.target != "prims.slice" {
        return None;
    }
    let cut = args.dim(args.int("dim").ok()?, call.meta("a").ok()?.rank()).ok()?;
    if cut != dim || args.int("step").ok()? != 1 {
        return None;
    }
    let start = args.sym("start").ok()?.as_const()?;
    Some((start, start + args.sym("length").ok()?.as_const()?))
}
