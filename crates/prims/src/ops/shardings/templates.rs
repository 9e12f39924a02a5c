//! Sharding rules of products, convolutions, attention and matrix routines.

use fx_ir::Arg;
use ir_core::{SymExpr, TensorMeta};
use kernel_ir::Combine;

use super::way;
use crate::shard_rule::{Passes, Placement, Way, all, divide, operands, passing};
use crate::{LocalCall, LowerCall, OpError};

type Ways = Result<Vec<Way>, OpError>;

const WHOLE: Placement = Placement::Replicate;
const SUM: Placement = Placement::Partial(Combine::Sum);

/// Batches, rows of the left operand, columns of the right one; sums over parts of what both have in common.
pub(in crate::ops) fn matmul(call: &LowerCall<'_>) -> Ways {
    let rank = call.meta("a")?.rank();
    let (m, n) = (rank - 2, rank - 1);
    let mut ways: Vec<Way> =
        (0..m).map(|d| way(all(2, &Placement::shard(d)), vec![Placement::shard(d)])).collect();
    ways.push(way(vec![Placement::shard(m), WHOLE], vec![Placement::shard(m)]));
    ways.push(way(vec![WHOLE, Placement::shard(n)], vec![Placement::shard(n)]));
    ways.push(way(vec![Placement::shard(n), Placement::shard(m)], vec![SUM]));
    ways.extend(passing(call, Passes::SumsIn(&[0, 1]), 1));
    Ok(ways)
}

/// Columns of the matrices; sums over parts of what rows and matrices have in common. Which rows a rank had would depend on data.
pub(in crate::ops) fn grouped_matmul(call: &LowerCall<'_>) -> Ways {
    let mut ways = vec![way(vec![WHOLE, Placement::shard(2), WHOLE], vec![Placement::shard(1)])];
    ways.push(way(vec![Placement::shard(1), Placement::shard(1), WHOLE], vec![SUM]));
    ways.extend(passing(call, Passes::SumsIn(&[0, 1]), 1));
    Ok(ways)
}

/// Rows of the left operand, columns of the right one.
pub(in crate::ops) fn grouped_sums(call: &LowerCall<'_>) -> Ways {
    let mut ways = vec![way(vec![Placement::shard(0), WHOLE, WHOLE], vec![Placement::shard(1)])];
    ways.push(way(vec![WHOLE, Placement::shard(1), WHOLE], vec![Placement::shard(2)]));
    ways.extend(passing(call, Passes::SumsIn(&[0, 1]), 1));
    Ok(ways)
}

/// Images, channels of the output, sums over parts of the input's channels; groups, each with its channels.
pub(in crate::ops) fn conv(call: &LowerCall<'_>) -> Ways {
    let (input, weight) = (call.meta("input")?, call.meta("weight")?);
    let (groups, transposed) = (call.call.int("groups")?, call.call.bool("transposed")?);
    let mut ways = vec![way(vec![Placement::shard(0), WHOLE], vec![Placement::shard(0)])];
    let (out_dim, in_dim) = if transposed { (1, 0) } else { (0, 1) };
    if groups == 1 {
        ways.push(way(vec![WHOLE, Placement::shard(out_dim)], vec![Placement::shard(1)]));
        ways.push(way(vec![Placement::shard(1), Placement::shard(in_dim)], vec![SUM]));
    } else {
        let of = |size: &SymExpr| size.floor_div(&SymExpr::from_i64(groups));
        let out = call.out(0)?;
        let operands =
            vec![Placement::blocks(1, of(&input.sizes[1])), Placement::blocks(0, of(&weight.sizes[0]))];
        // A convolution has at least one group.
        ways.push(Way { even: true, ..way(operands, vec![Placement::blocks(1, of(&out.sizes[1]))]) });
    }
    ways.extend(passing(call, Passes::SumsIn(&[0, 1]), 1));
    Ok(ways)
}

/// The groups of a rank's channels.
pub(in crate::ops) fn local_conv(call: &LocalCall<'_>) -> Result<Vec<Arg>, OpError> {
    let groups = call.call.int("groups")?;
    let Some(part) = call.operands.first().filter(|_| groups > 1) else {
        return Ok(call.args.clone());
    };
    let (Some(whole), Some(part)) = (part.whole[1].as_const(), part.sizes[1].as_const()) else {
        return Err(call.call.unsupported("groups of a symbolic number of channels in parts"));
    };
    Ok(call.with("groups", (groups * part / whole.max(1)).max(1)))
}

/// Where the mask has a dimension of the scores `[b, h, lq, lk]`.
fn of_mask(mask: &TensorMeta, dim: usize, unit: &SymExpr) -> Placement {
    match (dim + mask.rank()).checked_sub(4) {
        Some(d) if mask.sizes[d] != SymExpr::ONE => Placement::blocks(d, unit.clone()),
        _ => WHOLE,
    }
}

/// A dimension of the queries as it is in `operands` of the kinds `q` (with the queries' heads and positions) and `k`.
struct Spread {
    /// Attention has at least one head.
    even: bool,
    of_queries: Placement,
    of_keys: Placement,
    /// Of the mask and of the words of kept weights, of those that there are.
    optional: Vec<Placement>,
}

/// Batches, heads (those of the queries in blocks that share a head of the keys), and rows where they are not causal.
fn spreads(call: &LowerCall<'_>) -> Result<Vec<Spread>, OpError> {
    let (q, k) = (call.meta("q")?, call.meta("k")?);
    let given = [call.call.opt_value("mask")?, call.call.opt_value("kept")?];
    let given: Vec<&TensorMeta> =
        given.into_iter().flatten().map(|v| call.meta_of(v)).collect::<Result<_, _>>()?;
    let optional_at = |d: usize, unit: &SymExpr| given.iter().map(|m| of_mask(m, d, unit)).collect();
    let shard = Placement::shard;
    let optional = optional_at(0, &SymExpr::ONE);
    let mut all = vec![Spread { even: false, of_queries: shard(0), of_keys: shard(0), optional }];
    if let Some(shared) = divide(&q.sizes[1], &k.sizes[1]) {
        let (of_queries, optional) = (Placement::blocks(1, shared.clone()), optional_at(1, &shared));
        all.push(Spread { even: true, of_queries, of_keys: shard(1), optional });
    }
    if !call.call.bool("causal")? {
        let optional = optional_at(2, &SymExpr::ONE);
        all.push(Spread { even: false, of_queries: shard(2), of_keys: WHOLE, optional });
    }
    Ok(all)
}

pub(in crate::ops) fn attention(call: &LowerCall<'_>) -> Ways {
    let of = |s: Spread| {
        let mut operands = vec![s.of_queries.clone(), s.of_keys.clone(), s.of_keys];
        operands.extend(s.optional);
        Way { even: s.even, ..way(operands, all(call.outs.len(), &s.of_queries)) }
    };
    Ok(spreads(call)?.into_iter().map(of).collect())
}

/// As `attention`; what parts of the queries give to keys and values is a sum.
pub(in crate::ops) fn attention_backward(call: &LowerCall<'_>) -> Ways {
    let of = |s: Spread| {
        let (even, q, k) = (s.even, s.of_queries, s.of_keys);
        let mut operands = vec![q.clone(), q.clone(), k.clone(), k.clone(), q.clone(), q.clone()];
        operands.extend(s.optional);
        let of_keys = if k == WHOLE { SUM } else { k };
        Way { even, ..way(operands, vec![q, of_keys.clone(), of_keys]) }
    };
    Ok(spreads(call)?.into_iter().map(of).collect())
}

/// Batches of matrices: every operand and result that has matrices of its own has the same batches.
pub(in crate::ops) fn matrices(call: &LowerCall<'_>) -> Ways {
    // Routines without complex matrices lack the argument.
    let paired = call.call.op.schema.arg_index("interleaved").is_some();
    let pairs = paired && call.call.bool("interleaved")?;
    let values = operands(call.call.args);
    let Some(first) = values.first() else { return Ok(Vec::new()) };
    let sizes = &call.meta_of(*first)?.sizes;
    let batches = sizes.len().saturating_sub(if pairs { 3 } else { 2 });
    let mut metas = values.iter().map(|v| call.meta_of(*v)).collect::<Result<Vec<_>, _>>()?;
    metas.extend((0..call.outs.len()).filter_map(|n| call.out(n).ok()));
    let shared = |d: &usize| metas.iter().all(|m| m.sizes.get(*d) == sizes.get(*d));
    let of = |d| way(all(values.len(), &Placement::shard(d)), all(call.outs.len(), &Placement::shard(d)));
    Ok((0..batches).filter(shared).map(of).collect())
}
