//! PyTorch's functional collectives (`_c10d_functional`), which captured programs of DTensor, DDP and `fully_shard` contain,
//! as the prims of this crate. A process group is known by its name. Waiting is the scheduler's work here: `wait_tensor`
//! is its operand.

use fx_ir::{Arg, ValueId};
use ir_core::SymExpr;
use kernel_ir::SELF_GROUP;
use smallvec::smallvec;

use crate::{Autocast, Builder, Call, Grad, Kind, OpDef, OpError, Outs, Samples, Tolerance};

macro_rules! functional {
    ($schema:literal, $decompose:expr, $args:expr) => {
        OpDef {
            schema: $schema,
            kind: Kind::Composite($decompose),
            grad: Grad::ByDecomposition,
            tolerance: Tolerance::ACCUMULATE,
            autocast: Autocast::NONE,
            samples: |s| sample(s, $args),
        }
    };
}

/// The entries.
pub(in crate::ops) const OPS: &[OpDef] = &[
    functional!(
        "_c10d_functional::all_reduce(Tensor input, str reduce_op, str group_name) -> Tensor",
        |b, c| {
            let args = vec![c.value("input")?.into(), combination(c)?.into(), c.arg("group_name").clone()];
            b.call("prims.all_reduce", args)
        },
        &["sum".into()]
    ),
    functional!(
        "_c10d_functional::all_gather_into_tensor(Tensor input, int group_size, str group_name) -> Tensor",
        all_gather,
        &[1i64.into()]
    ),
    functional!(
        "_c10d_functional::reduce_scatter_tensor(Tensor input, str reduce_op, int group_size, str group_name) -> Tensor",
        reduce_scatter,
        &["avg".into(), 1i64.into()]
    ),
    functional!(
        "_c10d_functional::all_to_all_single(Tensor input, SymInt[] output_split_sizes, SymInt[] input_split_sizes, str group_name) -> Tensor",
        all_to_all,
        &[[2].as_slice().into(), [2].as_slice().into()]
    ),
    functional!(
        "_c10d_functional::broadcast(Tensor input, int src, str group_name) -> Tensor",
        |b, c| {
            let args = vec![c.value("input")?.into(), c.int("src")?.into(), c.arg("group_name").clone()];
            b.call("prims.broadcast", args)
        },
        &[0i64.into()]
    ),
    OpDef {
        schema: "_c10d_functional::wait_tensor(Tensor tensor) -> Tensor",
        kind: Kind::Composite(|_, c| Ok(smallvec![c.value("tensor")?])),
        grad: Grad::ByDecomposition,
        tolerance: Tolerance::EXACT,
        autocast: Autocast::NONE,
        samples: |s| s.add(vec![s.float("a", &[2, 3])], vec![Arg::Value(ValueId(0))]),
    },
];

fn sample(s: &mut Samples, args: &[Arg]) {
    let group = Arg::from(SELF_GROUP);
    let all = [Arg::Value(ValueId(0))].into_iter().chain(args.iter().cloned()).chain([group]);
    s.add(vec![s.float("a", &[2, 3])], all.collect());
}

/// PyTorch's name of a combination as that of the prims.
fn combination(c: &Call<'_>) -> Result<&'static str, OpError> {
    Ok(match c.opt_str("reduce_op")?.unwrap_or_default().to_lowercase().as_str() {
        "sum" => "sum",
        "avg" => "mean",
        "product" => "prod",
        "max" => "max",
        "min" => "min",
        other => return Err(c.unsupported(format!("the combination `{other}` of ranks"))),
    })
}

/// The first dimension has the parts of all ranks one after another.
fn all_gather(b: &mut Builder<'_>, c: &Call<'_>) -> Result<Outs, OpError> {
    let (a, size) = (c.value("input")?, c.int("group_size")?);
    let mut sizes = b.sizes(a)?;
    let gathered = b.call1("prims.all_gather", vec![a.into(), size.into(), c.arg("group_name").clone()])?;
    match sizes.first_mut() {
        Some(first) => *first = &*first * size,
        None => sizes.push(SymExpr::from_i64(size)),
    }
    Ok(smallvec![b.reshape(gathered, &sizes)?])
}

/// `a` with a new first dimension that has a part of the old one for each rank.
fn parts(b: &mut Builder<'_>, a: ValueId, ranks: i64) -> Result<ValueId, OpError> {
    let mut sizes = b.sizes_of_rank(a, 1..)?;
    let ranks = SymExpr::from_i64(ranks.max(1));
    b.require_equal(&sizes[0].modulo(&ranks), &SymExpr::ZERO, |g| {
        format!("{} elements are not {ranks} equal parts", g.size_text(&sizes[0]))
    })?;
    sizes[0] = sizes[0].floor_div(&ranks);
    sizes.insert(0, ranks);
    b.reshape(a, &sizes)
}

fn reduce_scatter(b: &mut Builder<'_>, c: &Call<'_>) -> Result<Outs, OpError> {
    let a = parts(b, c.value("input")?, c.int("group_size")?)?;
    b.call("prims.reduce_scatter", vec![a.into(), combination(c)?.into(), c.arg("group_name").clone()])
}

fn all_to_all(b: &mut Builder<'_>, c: &Call<'_>) -> Result<Outs, OpError> {
    let (from, to) = (c.syms("input_split_sizes")?, c.syms("output_split_sizes")?);
    let first = from.first().cloned().unwrap_or(SymExpr::ZERO);
    if from.is_empty() || from.iter().chain(&to).any(|n| *n != first) {
        return Err(c.unsupported("parts of different sizes (only equal parts are exchanged)"));
    }
    let input = c.value("input")?;
    let sizes = b.sizes(input)?;
    let a = parts(b, input, from.len() as i64)?;
    let out = b.call1("prims.all_to_all", vec![a.into(), c.arg("group_name").clone()])?;
    Ok(smallvec![b.reshape(out, &sizes)?])
}
