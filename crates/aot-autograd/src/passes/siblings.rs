//! Linear layers that read one value (the queries, keys and values of attention) become one layer with their weights side by side,
//! of whose result each is a slice: a device is given one product that fills it instead of several that do not.
//!
//! Only where weights are frozen, so that they are put together once, and where nothing is lost: a layer whose result a single
//! elementwise call reads would compute that call before it stores anything, which is worth more as soon as there are many rows.

use fx_ir::{Arg, Graph, NodeId, NodeKind, Uses, ValueId};
use ir_core::{Shape, SymExpr};
use prims::{Builder, OpError};

use super::matching::{def, def_of, permutation, sizes, swaps_last_two};
use super::rewrite::constants;
use super::{PassCx, Stats};

/// Products of so few rows are computed together as they are, by kernels that read each weight once.
const FEW_ROWS: i64 = 8;
/// Up to so many rows reading the weights takes longer than anything that could be done before a result is stored.
const BOUND_BY_WEIGHTS: i64 = 64;

/// Merges every group of layers.
pub(super) fn run(graph: &mut Graph, cx: &PassCx) -> Stats {
    if !cx.frozen || !cx.side_by_side {
        return Stats::default();
    }
    let groups = groups(graph, cx);
    let mut replaced: Vec<(ValueId, ValueId)> = Vec::new();
    let mut open = groups.into_iter().peekable();
    for id in std::mem::take(&mut graph.order) {
        // Groups are in the order of their first members.
        if let Some(group) = open.next_if(|g| g.first().is_some_and(|layer| layer.product == id)) {
            let before = graph.order.len();
            match merged(graph, &group) {
                Ok(slices) => replaced.extend(group.iter().map(|layer| layer.result).zip(slices)),
                // Nodes that were built before it gave up must not stay.
                Err(_) => graph.order.truncate(before),
            }
        }
        graph.order.push(id);
    }
    let changed = replaced.len();
    if changed > 0 {
        let new = |v: ValueId| replaced.iter().find(|(old, _)| *old == v).map_or(v, |(_, new)| *new);
        graph.map_uses(&new);
        prims::scalars::eliminate_dead(graph);
    }
    Stats { changed }
}

/// A linear layer with frozen weights.
struct Layer {
    /// Its product.
    product: NodeId,
    /// What it multiplies, a matrix.
    input: ValueId,
    /// The weight `[n, k]`, and `n`.
    weight: ValueId,
    columns: SymExpr,
    /// The bias `[n]`, and the sizes of the sum.
    bias: Option<(ValueId, Shape)>,
    /// The result: the sum with the bias, else the product.
    result: ValueId,
}

impl Layer {
    fn of(graph: &Graph, uses: &Uses, constant: &[bool], product: NodeId) -> Option<Layer> {
        let &[out] = &graph.nodes[product].outputs[..] else { return None };
        let call = def_of(graph, out, "prims.matmul")?;
        let (input, turned) = (call.value("a").ok()?, call.value("b").ok()?);
        let turn = def_of(graph, turned, "prims.permute")?;
        let weight = turn.value("a").ok()?;
        let swaps = permutation(&turn).is_some_and(|dims| dims.len() == 2 && swaps_last_two(&dims));
        let types = [out, input, weight].map(|v| graph.meta(v).map(|m| m.dtype));
        let one_type = types.iter().all(|t| *t == types[0]) && types[0]?.is_float();
        if !swaps || !one_type || !is_given(graph, constant, weight) {
            return None;
        }
        let columns = sizes(graph, weight)?.first()?.clone();
        let (bias, result) = match biased(graph, uses, constant, out) {
            Some((bias, sum)) => (Some((bias, sizes(graph, sum)?.into())), sum),
            None => (None, out),
        };
        Some(Layer { product, input, weight, columns, bias, result })
    }

    /// Whether layers are of one kind: they read one value, and all have a bias or none.
    fn is_like(&self, other: &Layer) -> bool {
        let lead = |l: &Layer| l.bias.as_ref().map(|(_, sizes)| Shape::from(&sizes[..sizes.len() - 1]));
        self.input == other.input && lead(self) == lead(other)
    }

    /// Whether merging it loses nothing: see above.
    fn may_be_a_slice(&self, graph: &Graph, uses: &Uses) -> bool {
        let rows = sizes(graph, self.input).and_then(|s| s.first()?.as_const());
        let (mut readers, mut elementwise, mut returned) = (0, false, false);
        let mut open = vec![self.result];
        while let Some(v) = open.pop() {
            returned |= uses.is_returned(v);
            for &user in uses.users(v) {
                let call = graph.nodes[user].outputs.first().and_then(|out| def(graph, *out));
                match call {
                    Some(c) if is_view(&c.op.target) => open.extend(&graph.nodes[user].outputs),
                    Some(c) => {
                        readers += 1;
                        elementwise |= c.op.scalar_op().is_some() || c.op.target == "prims.convert";
                    }
                    None => readers += 1,
                }
            }
        }
        match rows {
            _ if returned => false,
            Some(rows) if rows <= FEW_ROWS => false,
            Some(rows) if rows <= BOUND_BY_WEIGHTS => true,
            _ => readers > 1 || !elementwise,
        }
    }
}

fn is_view(target: &str) -> bool {
    matches!(target, "prims.reshape" | "prims.permute" | "prims.slice" | "prims.expand")
}

/// Whether a value is a weight that stays as it is: one that the caller gives, so that it is there before every call.
fn is_given(graph: &Graph, constant: &[bool], v: ValueId) -> bool {
    use ir_core::EntityId;
    let placeholder = matches!(graph.nodes[graph.values[v].def].kind, NodeKind::Placeholder { .. });
    placeholder && constant.get(v.index()).copied().unwrap_or(false)
}

/// The bias and the sum of a product, perhaps reshaped, with a bias along its last dimension, where nothing else reads the product.
fn biased(graph: &Graph, uses: &Uses, constant: &[bool], product: ValueId) -> Option<(ValueId, ValueId)> {
    let only = |v: ValueId| {
        let &[user] = uses.users(v) else { return None };
        let &[out] = &graph.nodes[user].outputs[..] else { return None };
        (!uses.is_returned(v)).then_some(out)
    };
    let next = only(product)?;
    let (product, sum) = match def_of(graph, next, "prims.reshape") {
        Some(_) if sizes(graph, next)?.last() == sizes(graph, product)?.last() => (next, only(next)?),
        Some(_) => return None,
        None => (product, next),
    };
    let call = def_of(graph, sum, "prims.add")?;
    let (a, b) = (call.value("a").ok()?, call.value("b").ok()?);
    let other = if a == product { b } else { a };
    let bias = def_of(graph, other, "prims.expand")?.value("a").ok()?;
    let one = sizes(graph, bias)?.len() == 1 && graph.meta(bias)?.dtype == graph.meta(sum)?.dtype;
    (one && is_given(graph, constant, bias)).then_some((bias, sum))
}

/// Groups of two and more layers of one kind, in the order of their first members.
fn groups(graph: &Graph, cx: &PassCx) -> Vec<Vec<Layer>> {
    let (uses, constant) = (Uses::of(graph), constants(graph, cx));
    let mut groups: Vec<Vec<Layer>> = Vec::new();
    let mut at: rustc_hash::FxHashMap<ValueId, Vec<usize>> = rustc_hash::FxHashMap::default();
    for (id, _) in graph.iter() {
        let Some(layer) = Layer::of(graph, &uses, &constant, id) else { continue };
        if cx.opaque.contains(&layer.result) || !layer.may_be_a_slice(graph, &uses) {
            continue;
        }
        let known = at.entry(layer.input).or_default();
        match known.iter().find(|n| groups[**n][0].is_like(&layer)) {
            Some(&n) => groups[n].push(layer),
            None => {
                known.push(groups.len());
                groups.push(vec![layer]);
            }
        }
    }
    groups.retain(|group| group.len() > 1);
    groups
}

/// Builds the merged layer; the results of its members, as slices.
fn merged(graph: &mut Graph, group: &[Layer]) -> Result<Vec<ValueId>, OpError> {
    let (name, origin) = (graph.node_name(group[0].product).to_owned(), graph.nodes[group[0].product].origin);
    let mut b = Builder::new(graph, name, origin);
    let side_by_side = |b: &mut Builder<'_>, parts: Vec<ValueId>| {
        b.call1("prims.cat", vec![Arg::values(parts), 0i64.into()])
    };
    let weight = side_by_side(&mut b, group.iter().map(|l| l.weight).collect())?;
    let turned = b.permute(weight, &[1, 0])?;
    let mut result = b.call1("prims.matmul", vec![group[0].input.into(), turned.into()])?;
    if let Some((_, of_first)) = &group[0].bias {
        let total = group.iter().fold(SymExpr::ZERO, |sum, layer| sum + &layer.columns);
        let mut wide = of_first.clone();
        if let Some(last) = wide.last_mut() {
            *last = total;
        }
        let biases = group.iter().filter_map(|l| l.bias.as_ref().map(|(bias, _)| *bias)).collect();
        let bias = side_by_side(&mut b, biases)?;
        let bias = b.expand(bias, &wide)?;
        result = b.reshape(result, &wide)?;
        result = b.call1("prims.add", vec![result.into(), bias.into()])?;
    }
    let dim = b.rank(result)? - 1;
    let mut start = SymExpr::ZERO;
    let mut slices = Vec::with_capacity(group.len());
    for layer in group {
        slices.push(b.slice(result, dim, start.clone(), layer.columns.clone(), 1)?);
        start = start + &layer.columns;
    }
    Ok(slices)
}

#[cfg(test)]
mod tests {
    use super::super::testing::{assert_unchanged, changes};
    use super::*;

    fn cx() -> PassCx {
        PassCx { side_by_side: true, ..PassCx::inference() }
    }

    /// Queries, keys and values with biases, of `rows` rows.
    fn projections(rows: usize) -> String {
        let layer = |x: &str| {
            format!(
                "%{x}1: f32[6, 4] = prims.permute(%w{x}, [1, 0])
%{x}2: f32[{rows}, 4] = prims.matmul(%x, %{x}1)
%{x}3: f32[1, {rows}, 4] = prims.reshape(%{x}2, [1, {rows}, 4])
%{x}4: f32[1, {rows}, 4] = prims.expand(%b{x}, [1, {rows}, 4])
%{x}5: f32[1, {rows}, 4] = prims.add(%{x}3, %{x}4)
%{x}6: f32[1, {rows}, 2, 2] = prims.reshape(%{x}5, [1, {rows}, 2, 2])
%{x}7: f32[1, 2, {rows}, 2] = prims.permute(%{x}6, [0, 2, 1, 3])"
            )
        };
        let given =
            |x: &str| format!("%w{x}: f32[4, 6] = parameter \"w{x}\"\n%b{x}: f32[4] = parameter \"b{x}\"\n");
        format!(
            "{}{}{}%x: f32[{rows}, 6] = input \"x\"
{}
{}
{}
%y: f32[1, 2, {rows}, 2], %s: f32[1, 2, {rows}] = prims.attention(%q7, %k7, %v7, none, false, 0.5, none, 1.0)
return %y",
            given("q"),
            given("k"),
            given("v"),
            layer("q"),
            layer("k"),
            layer("v"),
        )
    }

    #[test]
    fn projections_of_attention_are_one_product() {
        let expected = "prims.cat prims.permute prims.matmul prims.cat prims.expand prims.reshape prims.add \
            prims.slice prims.slice prims.slice prims.reshape prims.permute prims.reshape prims.permute prims.reshape \
            prims.permute prims.attention";
        for rows in [12, 100] {
            changes(run, &cx(), &projections(rows), expected);
        }
    }

    #[test]
    fn not_where_weights_change_or_rows_are_few_or_devices_do_not_ask_for_it() {
        assert_unchanged(run, &PassCx::inference(), &projections(12));
        assert_unchanged(run, &PassCx { frozen: false, ..cx() }, &projections(12));
        assert_unchanged(run, &cx(), &projections(8));
    }

    /// A gate and what it is multiplied by: with many rows each has its own elementwise call before it is stored.
    #[test]
    fn gates_are_merged_where_reading_weights_is_what_takes_time() {
        let body = |rows: usize| {
            format!(
                "%wg: f32[4, 6] = parameter \"wg\"
%wu: f32[4, 6] = parameter \"wu\"
%x: f32[{rows}, 6] = input \"x\"
%g1: f32[6, 4] = prims.permute(%wg, [1, 0])
%g2: f32[{rows}, 4] = prims.matmul(%x, %g1)
%g3: f32[{rows}, 4] = prims.tanh(%g2)
%u1: f32[6, 4] = prims.permute(%wu, [1, 0])
%u2: f32[{rows}, 4] = prims.matmul(%x, %u1)
%y: f32[{rows}, 4] = prims.mul(%g3, %u2)
return %y"
            )
        };
        let expected = "prims.cat prims.permute prims.matmul prims.slice prims.slice prims.tanh prims.mul";
        changes(run, &cx(), &body(64), expected);
        assert_unchanged(run, &cx(), &body(65));
        // A result that is returned is not a slice of something larger.
        assert_unchanged(run, &cx(), &body(64).replace("return %y", "return %y\nreturn %u2"));
    }
}
