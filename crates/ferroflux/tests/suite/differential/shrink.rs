//! Makes a failing graph small: fewer outputs, then operands in place of results, then inputs in place of what is
//! computed, as long as it fails at the same stage.

use fx_ir::{Arg, Graph, InputKind, NodeKind, ValueId, ValueType};
use ir_core::TensorMeta;

use super::judge::{Failure, Judge};

/// A smaller graph that fails at the same stage, with what it says.
pub fn shrink(judge: &Judge, graph: &Graph, symbols: &[Vec<i64>], failure: Failure) -> (Graph, Failure) {
    let (mut best, mut said) = (graph.clone(), failure);
    for _ in 0..400 {
        let smaller = candidates(&best).into_iter().find_map(|g| match judge.check(&g, symbols) {
            Err(f) if f.stage == said.stage => Some((g, f)),
            _ => None,
        });
        match smaller {
            Some((g, f)) => (best, said) = (g, f),
            None => break,
        }
    }
    (fx_ir::text::canonical(&best), said)
}

/// Graphs that are smaller than `graph`, the most daring first.
fn candidates(graph: &Graph) -> Vec<Graph> {
    let mut list = vec![with(graph, |_| ())];
    if graph.outputs.len() > 1 {
        for keep in 0..graph.outputs.len() {
            list.push(with(graph, |g| g.outputs = vec![g.outputs[keep].clone()]));
        }
        for drop in 0..graph.outputs.len() {
            list.push(with(graph, |g| drop_output(g, drop)));
        }
    }
    let calls: Vec<_> =
        graph.order.iter().filter(|id| graph.nodes[**id].as_call().is_some()).copied().collect();
    for &id in &calls {
        for &v in &graph.nodes[id].outputs {
            list.extend(as_input(graph, v));
        }
    }
    for &id in calls.iter().rev() {
        let Some(&v) = graph.nodes[id].outputs.first() else { continue };
        graph.nodes[id].for_each_use(&mut |operand| {
            if same_type(graph, v, operand) {
                list.push(with(graph, |g| g.map_uses(&|u| if u == v { operand } else { u })));
            }
        });
    }
    for n in 0..graph.outputs.len() {
        let Arg::Value(v) = graph.outputs[n].arg else { continue };
        graph.nodes[graph.values[v].def].for_each_use(&mut |operand| {
            list.push(with(graph, |g| g.outputs[n].arg = Arg::Value(operand)));
        });
    }
    let size = |g: &Graph| (g.order.len(), g.outputs.len());
    list.retain(|g| size(g) < size(graph) && !g.outputs.is_empty());
    list
}

fn drop_output(g: &mut Graph, n: usize) {
    g.outputs.remove(n);
}

fn with(graph: &Graph, change: impl FnOnce(&mut Graph)) -> Graph {
    let mut g = graph.clone();
    change(&mut g);
    prims::scalars::eliminate_dead(&mut g);
    drop_unused_inputs(&mut g);
    g
}

fn drop_unused_inputs(g: &mut Graph) {
    let uses = fx_ir::Uses::of(g);
    let nodes = &g.nodes;
    g.order.retain(|id| {
        let node = &nodes[*id];
        node.as_call().is_some()
            || node.outputs.iter().any(|v| !uses.is_dead(*v) || binds_symbol(&g.values[*v].ty))
    });
}

fn binds_symbol(ty: &ValueType) -> bool {
    let symbolic = |m: &TensorMeta| m.sizes.iter().any(|s| s.as_const().is_none());
    ty.as_tensor().is_some_and(symbolic)
}

fn same_type(graph: &Graph, a: ValueId, b: ValueId) -> bool {
    let of = |v| graph.meta(v).map(|m| (m.dtype, m.sizes.clone()));
    of(a) == of(b)
}

/// `v` as an input of its own; `None` for integers, whose range would be lost.
fn as_input(graph: &Graph, v: ValueId) -> Option<Graph> {
    let meta = graph.meta(v)?;
    if meta.dtype.is_int() {
        return None;
    }
    let ty = ValueType::Tensor(TensorMeta::contiguous(meta.dtype, meta.sizes.iter().cloned()));
    let name = format!("cut{}", v.0);
    Some(with(graph, |g| {
        let new = g.placeholder(InputKind::User, name.clone(), &name, ty);
        g.map_uses(&|u| if u == v { new } else { u });
        let nodes = &g.nodes;
        g.order.sort_by_key(|id| !matches!(nodes[*id].kind, NodeKind::Placeholder { .. }));
    }))
}
