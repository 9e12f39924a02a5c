//! Prims that exchange data between the ranks of a group: an axis of a mesh, or a process group of the captured program.
//! All ranks of the group run the call, on tensors of one shape and dtype.
//!
//! A reference has one rank alone, so it computes calls over [`SELF_GROUP`], the group of that rank; other groups are for
//! engines. The crate `sharding` inserts these calls behind the joint graph, so they need no gradients.

use fx_ir::{Arg, ValueId, ValueType};
use ir_core::SymExpr;
use kernel_ir::{Collective, CollectiveOp, Combine, ExternOp, SELF_GROUP};
use smallvec::SmallVec;
use tensor::Tensor;

use crate::builder::tensor;
use crate::ops::primitive::shape::one;
use crate::shard_rule::ShardRule;
use crate::{
    Autocast, BatchRule, Call, ComplexRule, Grad, Kind, Lower, LowerCall, MetaCx, OpDef, OpError, RefCall,
    RefOut, Reference, Samples, Tolerance,
};

type Types = SmallVec<[ValueType; 1]>;

macro_rules! collectives {
    ($($schema:literal $doc:literal $op:expr, $complex:expr, $args:expr, $sizes:expr;)*) => {
        /// The entries.
        pub(in crate::ops) const OPS: &[OpDef] = &[$(OpDef {
            schema: $schema,
            kind: Kind::Prim {
                doc: $doc,
                meta,
                lower: Lower::Extern(|c| lower(c, $op)),
                complex: $complex,
                batch: BatchRule::Refused("ranks exchange whole tensors"),
                shard: ShardRule::Local,
                reference: Reference::Fn(reference),
            },
            grad: Grad::NotDifferentiable("ranks exchange results, whose gradients are each rank's own"),
            tolerance: Tolerance::ACCUMULATE,
            autocast: Autocast::NONE,
            samples: |s| sample(s, $sizes, $args),
        },)*];
    };
}

collectives! {
    "prims::all_reduce(Tensor a, str how, str group) -> Tensor"
        "The combination of the tensors of all ranks, the same on each: `how` is `sum`, `mean`, `prod`, `max` or `min`."
        |c| Ok(CollectiveOp::AllReduce(combination(c)?)), ComplexRule::REAL_ONLY, &["sum".into()], &[2, 3];
    "prims::all_gather(Tensor a, int size, str group) -> Tensor"
        "The tensors of all `size` ranks, along a new first dimension."
        |_| Ok(CollectiveOp::AllGather), ComplexRule::Parts, &[1i64.into()], &[2, 3];
    "prims::reduce_scatter(Tensor a, str how, str group) -> Tensor"
        "Of `a [ranks, …]` on every rank: rank `i` gets the combination of all that have the number `i` in the first dimension."
        |c| Ok(CollectiveOp::ReduceScatter(combination(c)?)), ComplexRule::REAL_ONLY, &["sum".into()], &[1, 2, 3];
    "prims::all_to_all(Tensor a, str group) -> Tensor"
        "Of `a [ranks, …]` on every rank: rank `i` gets those with the number `i`, in the order of the ranks that had them."
        |_| Ok(CollectiveOp::AllToAll), ComplexRule::Parts, &[], &[1, 2, 3];
    "prims::broadcast(Tensor a, int root, str group) -> Tensor"
        "The tensor of the rank `root`, on every rank."
        |c| {
            let root = u32::try_from(c.int("root")?).map_err(|_| c.bad_arg("root", "must not be negative"))?;
            Ok(CollectiveOp::Broadcast { root })
        },
        ComplexRule::Parts, &[0i64.into()], &[2, 3];
    "prims::shift(Tensor a, int by, bool wraps, str group) -> Tensor"
        "Rank `i` gets the tensor of rank `i - by`: zeros where there is no such rank, unless `wraps` takes numbers modulo the \
         number of ranks."
        |c| {
            let by = i32::try_from(c.int("by")?).map_err(|_| c.bad_arg("by", "is too far"))?;
            Ok(CollectiveOp::Shift { by, wraps: c.bool("wraps")? })
        },
        ComplexRule::Parts, &[1i64.into(), true.into()], &[2, 3];
}

/// How a call combines.
fn combination(call: &Call<'_>) -> Result<Combine, OpError> {
    let name = call.opt_str("how")?.unwrap_or_default();
    Combine::from_name(name).ok_or_else(|| call.bad_arg("how", "must be sum, mean, prod, max or min"))
}

/// The group, and this prim's exchange by its name.
fn group<'a>(call: &Call<'a>) -> Result<&'a str, OpError> {
    call.opt_str("group")?.ok_or_else(|| call.bad_arg("group", "is missing"))
}

fn meta(cx: &MetaCx<'_>, call: &Call<'_>) -> Result<Types, OpError> {
    let a = cx.meta(call, "a")?;
    group(call)?;
    let behind = || a.sizes.iter().skip(1).cloned();
    Ok(match call.op.schema.name.as_str() {
        "all_gather" => {
            let size = call.int("size")?;
            if size < 1 {
                return Err(call.bad_arg("size", "must be at least 1"));
            }
            tensor(a.dtype, std::iter::once(SymExpr::from_i64(size)).chain(a.sizes.iter().cloned()))
        }
        name @ ("reduce_scatter" | "all_to_all") => {
            if a.sizes.first().and_then(SymExpr::as_const).is_none_or(|ranks| ranks < 1) {
                return Err(call.bad_arg("a", "must have a first dimension with a part for each rank"));
            }
            if name == "reduce_scatter" {
                combination(call)?;
                tensor(a.dtype, behind())
            } else {
                tensor(a.dtype, a.sizes.iter().cloned())
            }
        }
        _ => tensor(a.dtype, a.sizes.iter().cloned()),
    })
}

fn lower(c: &LowerCall<'_>, op: fn(&Call<'_>) -> Result<CollectiveOp, OpError>) -> Result<ExternOp, OpError> {
    let group = group(&c.call)?.to_owned();
    Ok(ExternOp::Collective(Collective { op: op(&c.call)?, group, asynchronous: false }))
}

/// One rank alone: its tensor, in the shape of the result.
fn reference(c: &RefCall<'_>) -> Result<RefOut, OpError> {
    let a = c.tensor("a")?;
    let text = |name: &str| match c.arg(name) {
        crate::RefArg::Str(text) => &**text,
        _ => "",
    };
    if text("group") != SELF_GROUP {
        let what = format!(
            "exchanges data with the ranks of group `{}`, and this backend runs one rank alone",
            text("group")
        );
        return Err(OpError::Unsupported { op: c.op.target.clone(), what });
    }
    one(c, a.reshape(c.out().1).and_then(|t| t.copied()))
}

fn sample(s: &mut Samples, sizes: &[usize], args: &[Arg]) {
    let group = Arg::from(SELF_GROUP);
    let all = [Arg::Value(ValueId(0))].into_iter().chain(args.iter().cloned()).chain([group]);
    let a: Tensor = s.float("a", sizes);
    s.add(vec![a], all.collect());
}
