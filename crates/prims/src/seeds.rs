//! Seeds of the bodies of control flow. A branch draws with the seed of the call around it. Every turn of a loop has a
//! seed of its own, so that no two draw the same numbers: the `i`-th slice of `map` and `scan` draws with
//! [`iteration_seed`]`(seed, i)`, each turn of `while_loop` with `iteration_seed(s, 0)` of the seed `s` of the turn before.
//! Subgraphs of `associative_scan`, which combine in an order that is no part of the program, all draw alike.

use fx_ir::{Arg, Graph, NodeKind, OriginId, Output, OutputKind, SubgraphId, ValueId, ValueType};
use ir_core::{DType, Scalar, SymExpr, TensorMeta};
use kernel_ir::ScalarOp;

use crate::{Builder, OpError};

/// Stream of the numbers that seeds are; those of tensors are hashes with another low half.
const TURNS: i64 = 0x7475_726e_ffff;

/// The seed of turn `turn` of a loop whose call draws with `seed`.
pub fn iteration_seed(seed: u64, turn: i64) -> u64 {
    let operands = [Scalar::Int(seed as i64), Scalar::Int(TURNS), Scalar::Int(turn)];
    ScalarOp::Philox.eval(DType::I64, &operands).as_i64() as u64
}

/// The arguments of a call of control flow with the seed where its subgraphs draw, and those subgraphs with a
/// placeholder for it. `types` grow by what the call gives in addition.
pub(crate) fn with_seed(
    out: &mut Graph,
    target: &str,
    mut args: Vec<Arg>,
    types: &mut Vec<(String, ValueType)>,
    name: &str,
    origin: OriginId,
) -> Result<Vec<Arg>, OpError> {
    let graphs: Vec<SubgraphId> =
        args.iter().filter_map(|a| if let Arg::Graph(g) = a { Some(*g) } else { None }).collect();
    let draws = |g: &SubgraphId| out.subgraphs.get(*g).is_some_and(|g| g.seed().is_some());
    if !graphs.iter().any(draws) {
        return Ok(args);
    }
    let seed = out.require_seed();
    let count = |arg: Option<&Arg>| if let Some(Arg::List(items)) = arg { items.len() } else { 0 };
    match target {
        "higher_order.while_loop" => {
            let carried = count(args.get(2));
            for &g in &graphs {
                place_seed(&mut out.subgraphs[g], carried);
            }
            if let [_, Arg::Graph(body), Arg::List(items), ..] = &mut args[..] {
                items.push(seed.into());
                carry_seed(&mut out.subgraphs[*body], carried, origin)?;
                types.insert(carried.min(types.len()), ("seed".into(), seed_type()));
            }
        }
        "higher_order.map" | "higher_order.map_impl" | "higher_order.scan" => {
            let at = if target == "higher_order.scan" { 2 } else { 1 };
            let before = if at == 2 { count(args.get(1)) } else { 0 } + count(args.get(at));
            for &g in &graphs {
                place_seed(&mut out.subgraphs[g], before);
            }
            let seeds = seeds_of_slices(out, seed, args.get(at), target, name, origin)?;
            if let Some(Arg::List(items)) = args.get_mut(at) {
                items.push(seeds.into());
            }
        }
        _ => {
            for &g in &graphs {
                out.subgraphs[g].require_seed();
            }
            args.push(seed.into());
        }
    }
    Ok(args)
}

fn seed_type() -> ValueType {
    ValueType::Tensor(TensorMeta::contiguous(DType::I64, []))
}

/// The graph's placeholder of the seed as its `at`-th.
fn place_seed(graph: &mut Graph, at: usize) {
    let seed = graph.require_seed();
    let node = graph.values[seed].def;
    graph.order.retain(|id| *id != node);
    let is_placeholder = |id| matches!(graph.nodes[id].kind, NodeKind::Placeholder { .. });
    let end = graph.order.iter().position(|id| !is_placeholder(*id)).unwrap_or(graph.order.len());
    graph.order.insert(at.min(end), node);
}

/// Makes the seed of the next turn the body's `carried`-th result, where it is not yet.
fn carry_seed(body: &mut Graph, carried: usize, origin: OriginId) -> Result<(), OpError> {
    if body.outputs.len() > carried {
        return Ok(());
    }
    let seed = body.require_seed();
    let mut b = Builder::new(body, "seed", origin);
    let next = b.scalar_op(ScalarOp::Philox, &[seed.into(), TURNS.into(), 0i64.into()])?;
    body.outputs.push(Output { kind: OutputKind::User, arg: Arg::Value(next) });
    Ok(())
}

/// A seed for each slice of what a loop runs over, `[n]`.
fn seeds_of_slices(
    out: &mut Graph,
    seed: ValueId,
    over: Option<&Arg>,
    target: &str,
    name: &str,
    origin: OriginId,
) -> Result<ValueId, OpError> {
    let first = match over {
        Some(Arg::List(items)) => {
            items.iter().find_map(|a| if let Arg::Value(v) = a { Some(*v) } else { None })
        }
        _ => None,
    };
    let length: Option<SymExpr> = first.and_then(|v| out.meta(v)?.sizes.first().cloned());
    let length = length
        .ok_or_else(|| OpError::Invalid { op: target.into(), what: "has nothing to run over".into() })?;
    let mut b = Builder::new(out, name, origin);
    let iota = vec![length.into(), 0i64.into(), 1i64.into(), DType::I64.into()];
    let turns = b.call1("prims.iota", iota)?;
    b.scalar_op(ScalarOp::Philox, &[seed.into(), TURNS.into(), turns.into()])
}
