//! The built-in plan `tp:auto`: finds pairs of products with weights between which everything works on parts. The first
//! weight is then split by columns, the second by rows, and one sum between the ranks remains: the linear layers of an MLP,
//! the projections around attention by heads.
//!
//! It knows no layer: a pair is found by following the parts of the first product's result through the operators' sharding
//! rules until a second product adds them up. Where some operator would need the whole before that, there is no pair.

use fx_ir::{Graph, InputKind, NodeId, ValueId};
use kernel_ir::Combine;
use prims::shard_rule::{self, operands};
use prims::{Call, LowerCall, Placement, TemplateSpec, Way};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::spec::{self, divide};
use crate::{Axis, Mesh, ShardingError, call_error};

/// Placements of parameters, by name.
///
/// # Errors
/// A call that its operator refuses.
pub(crate) fn find(graph: &Graph, axis: &Axis) -> Result<Vec<(String, Placement)>, ShardingError> {
    let mesh = Mesh::new([(axis.name.as_str(), axis.size)])?;
    let search = Search { graph, mesh, ranks: axis.size as i64 };
    let mut found: FxHashMap<ValueId, Placement> = FxHashMap::default();
    for &id in &graph.order {
        let Some((weight, placement, result)) = search.first(id)? else { continue };
        if found.contains_key(&weight) {
            continue;
        }
        let Some(mut pair) = search.follow(id, result)? else { continue };
        pair.push((weight, placement));
        let agrees = pair.iter().all(|(v, p)| found.get(v).is_none_or(|f| f == p));
        if agrees {
            found.extend(pair);
        }
    }
    let named = graph.inputs().filter_map(|(v, _, name)| Some((name.to_owned(), found.get(&v)?.clone())));
    Ok(named.collect())
}

struct Search<'a> {
    graph: &'a Graph,
    mesh: Mesh,
    ranks: i64,
}

impl Search<'_> {
    fn ways(&self, id: NodeId) -> Result<Vec<Way>, ShardingError> {
        let node = &self.graph.nodes[id];
        let Some((target, args)) = node.as_call() else { return Ok(Vec::new()) };
        let Some(op) = prims::lookup(target) else { return Ok(Vec::new()) };
        let call = LowerCall { call: Call { op, args }, graph: self.graph, outs: &node.outputs };
        shard_rule::ways(&call).map_err(|source| call_error(self.graph, id, source))
    }

    fn normal(&self, v: ValueId, placement: &Placement) -> Placement {
        let mut spec = [placement.clone()];
        spec::normalize(&self.mesh, &mut spec, self.graph.meta(v).map_or(&[], |m| &m.sizes));
        let [placement] = spec;
        placement
    }

    /// Whether the parts are equal on all ranks: others are not worth a plan.
    fn is_even(&self, v: ValueId, placement: &Placement) -> bool {
        let Placement::Shard { dim, unit } = placement else { return true };
        let size = self.graph.meta(v).and_then(|m| m.sizes.get(*dim));
        size.is_some_and(|size| divide(size, &(unit * self.ranks)).is_some())
    }

    /// The product that a call is: its data and its weight.
    fn product(&self, id: NodeId) -> Option<(ValueId, ValueId)> {
        let node = &self.graph.nodes[id];
        let (target, args) = node.as_call()?;
        let op = prims::lookup(target)?;
        let Some(prims::Lower::Template(spec)) = op.lower() else { return None };
        match spec(&LowerCall { call: Call { op, args }, graph: self.graph, outs: &node.outputs }).ok()? {
            TemplateSpec::Matmul { a, b, .. } => Some((a, b)),
            TemplateSpec::Conv { input, weight, .. } => Some((input, weight)),
            TemplateSpec::Attention { .. } => None,
        }
    }

    /// A product with a parameter that can be split by columns: the parameter, its placement, and that of the result.
    fn first(&self, id: NodeId) -> Result<Option<(ValueId, Placement, Placement)>, ShardingError> {
        let Some((data, weight)) = self.product(id) else { return Ok(None) };
        let Some(&out) = self.graph.nodes[id].outputs.first() else { return Ok(None) };
        for way in self.ways(id)? {
            let [of_data, of_weight] = &way.operands[..] else { continue };
            // Columns: the weight is in parts, the data is not.
            if *of_data != Placement::Replicate || of_weight.dim().is_none() || data == weight {
                continue;
            }
            if let Some((parameter, placement)) = self.back(weight, of_weight)? {
                let result = self.normal(out, &way.results[0]);
                if result.dim().is_some() && self.is_even(out, &result) && self.is_even(parameter, &placement)
                {
                    return Ok(Some((parameter, placement, result)));
                }
            }
        }
        Ok(None)
    }

    /// The parameter that a value is a view of, with the placement by which the value has its own.
    fn back(&self, v: ValueId, placement: &Placement) -> Result<Option<(ValueId, Placement)>, ShardingError> {
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
            let ways = self.ways(def)?;
            let fits = |w: &&Way| w.results.first().is_some_and(|r| self.normal(v, r) == placement);
            let Some(way) = ways.iter().find(fits) else { return Ok(None) };
            placement = self.normal(from, &way.operands[0]);
            v = from;
        }
    }

    /// Follows the parts of a product's result to the products that add them up: their weights with placements. `None`
    /// where some operator needs the whole, or nothing adds them up.
    fn follow(
        &self,
        first: NodeId,
        placement: Placement,
    ) -> Result<Option<Vec<(ValueId, Placement)>>, ShardingError> {
        let Some(&result) = self.graph.nodes[first].outputs.first() else { return Ok(None) };
        let mut parts: FxHashMap<ValueId, Placement> = FxHashMap::default();
        parts.insert(result, placement);
        let mut seconds = Vec::new();
        let returned: FxHashSet<ValueId> = {
            let mut all = FxHashSet::default();
            let mut add = |v| {
                all.insert(v);
            };
            self.graph.outputs.iter().for_each(|o| o.arg.for_each_value(&mut add));
            all
        };
        let start = self.graph.order.iter().position(|id| *id == first).unwrap_or(0);
        for &id in &self.graph.order[start + 1..] {
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
            for (&out, placement) in self.graph.nodes[id].outputs.iter().zip(&way.results) {
                let placement = self.normal(out, placement);
                if placement.dim().is_none() || !self.is_even(out, &placement) {
                    return Ok(None);
                }
                parts.insert(out, placement);
            }
        }
        let lost = parts.keys().any(|v| returned.contains(v));
        Ok((!lost && !seconds.is_empty()).then_some(seconds))
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
        Ok(self.ways(id)?.into_iter().find(fits))
    }
}
