//! Batching rules of prims, for operands with a batch dimension in front: the field `batch` of an entry, and the context of
//! its rules. `vmap` (in `aot-autograd`) is a walk over a graph that applies them.
//!
//! Operands without a batch dimension stay unbatched where a rule can use them so; a call without batched operands needs no
//! rule, except for prims that draw random numbers. Not here: the rules that are functions (`ops/batch.rs`), control flow.

use fx_ir::{Arg, ValueId};
use ir_core::{Shape, SymExpr};

use crate::{Builder, Call, Kind, OpError, Outs};

/// The batching rule of a prim.
pub enum BatchRule {
    /// The prim treats leading dimensions independently, or works element by element: operands without the batch
    /// dimension are broadcast to it, nothing else changes.
    Leading,
    /// As `Leading`, and dimension numbers in these arguments are incremented. Tensors without dimensions, which count as
    /// having one, get that one for the call.
    Shift(&'static [&'static str]),
    /// Prims made by a function; each result has the batch dimension in front.
    Rule(BatchFn),
    /// The prim draws random numbers: the rule also applies where no operand has a batch dimension ([`Randomness`]).
    Random(BatchFn),
    /// The prim is not defined on batches, for this reason.
    Refused(&'static str),
}

/// Builds the results of a call on batches, each with the batch dimension in front.
pub type BatchFn = fn(&mut Builder<'_>, &BatchCall<'_>) -> Result<Outs, OpError>;

/// The treatment of random numbers in a batch, as in `torch.func.vmap`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Randomness {
    /// A function that draws is refused.
    #[default]
    Error,
    /// Every element of the batch draws its own.
    Different,
    /// All elements of the batch share one draw.
    Same,
}

/// A call with batched operands, for its rule.
pub struct BatchCall<'a> {
    /// The call; its values are the new ones, with the batch dimension in front where [`BatchCall::is_batched`].
    pub call: &'a Call<'a>,
    /// Whether a value has the batch dimension.
    pub batched: &'a dyn Fn(ValueId) -> bool,
    /// Size of the batch.
    pub size: &'a SymExpr,
    /// The treatment of random numbers.
    pub randomness: Randomness,
}

impl BatchCall<'_> {
    /// Whether a value has the batch dimension.
    pub fn is_batched(&self, v: ValueId) -> bool {
        (self.batched)(v)
    }
    /// The tensor argument.
    pub fn value(&self, name: &str) -> Result<ValueId, OpError> {
        self.call.value(name)
    }
    /// Sizes of a value as one element of the batch sees it.
    pub fn sizes(&self, b: &Builder<'_>, v: ValueId) -> Result<Shape, OpError> {
        let mut sizes = b.sizes(v)?;
        if self.is_batched(v) && !sizes.is_empty() {
            sizes.remove(0);
        }
        Ok(sizes)
    }
    /// Number of dimensions of a value as one element of the batch sees it.
    pub fn rank(&self, b: &Builder<'_>, v: ValueId) -> Result<usize, OpError> {
        self.sizes(b, v).map(|s| s.len())
    }
    /// These sizes after that of the batch.
    pub fn with_batch(&self, sizes: &[SymExpr]) -> Shape {
        std::iter::once(self.size).chain(sizes).cloned().collect()
    }
    /// The value with the batch dimension in front, broadcast where it has none.
    pub fn front(&self, b: &mut Builder<'_>, v: ValueId) -> Result<ValueId, OpError> {
        if self.is_batched(v) {
            return Ok(v);
        }
        let sizes = self.with_batch(&b.sizes(v)?);
        let v = b.unsqueeze(v, 0)?;
        b.expand(v, &sizes)
    }
    /// A tensor argument with the batch dimension in front.
    pub fn front_arg(&self, b: &mut Builder<'_>, name: &str) -> Result<ValueId, OpError> {
        self.front(b, self.call.value(name)?)
    }
    /// The arguments with one of them replaced.
    pub fn args_with(&self, name: &str, arg: impl Into<Arg>) -> Vec<Arg> {
        let mut args = self.call.args.to_vec();
        if let Some(i) = self.call.op.schema.arg_index(name) {
            args[i] = arg.into();
        }
        args
    }
    /// All arguments, tensors (those in lists too) with the batch dimension in front.
    fn leading(&self, b: &mut Builder<'_>) -> Result<Vec<Arg>, OpError> {
        self.call.args.iter().map(|arg| self.leading_arg(b, arg)).collect()
    }
    fn leading_arg(&self, b: &mut Builder<'_>, arg: &Arg) -> Result<Arg, OpError> {
        Ok(match arg {
            Arg::Value(v) => self.front(b, *v)?.into(),
            Arg::List(items) => {
                Arg::List(items.iter().map(|a| self.leading_arg(b, a)).collect::<Result<_, _>>()?)
            }
            other => other.clone(),
        })
    }
    /// Rank of the first tensor, as one element of the batch sees it.
    fn first_rank(&self, b: &Builder<'_>) -> Result<usize, OpError> {
        let mut first = None;
        for arg in self.call.args {
            arg.for_each_value(&mut |v| first = first.or(Some(v)));
        }
        first.map_or(Ok(0), |v| self.rank(b, v))
    }
}

/// Whether a prim draws random numbers, so that its rule applies without batched operands too.
pub fn draws(call: &Call<'_>) -> bool {
    matches!(&call.op.def.kind, Kind::Prim { batch: BatchRule::Random(_), .. })
}

/// The results of a prim on batches: each has the batch dimension in front.
///
/// # Errors
/// Prims that are not defined on batches, composites, and errors of the prim.
pub fn batch_call(b: &mut Builder<'_>, call: &BatchCall<'_>) -> Result<Outs, OpError> {
    let Kind::Prim { batch, .. } = &call.call.op.def.kind else {
        return Err(call.call.invalid("is not a prim: decompose the graph first"));
    };
    match batch {
        BatchRule::Leading => {
            let args = call.leading(b)?;
            b.call_op(call.call.op, args)
        }
        BatchRule::Shift(names) => shifted(b, call, names),
        BatchRule::Rule(rule) | BatchRule::Random(rule) => rule(b, call),
        BatchRule::Refused(why) => Err(call.call.unsupported(format!("batches: {why}"))),
    }
}

/// The call with dimension numbers that count the batch.
fn shifted(b: &mut Builder<'_>, call: &BatchCall<'_>, names: &[&str]) -> Result<Outs, OpError> {
    let rank = call.first_rank(b)?;
    let mut args = call.leading(b)?;
    let mut lone = false;
    for name in names {
        let Some(i) = call.call.op.schema.arg_index(name) else { continue };
        let wrap = |d: i64| call.call.dim(d, rank).map(|d| d as i64 + 1);
        match call.call.arg(name) {
            Arg::List(_) => {
                // A tensor without dimensions has none to reduce.
                let dims = if rank == 0 { Vec::new() } else { call.call.ints(name)? };
                let dims = dims.into_iter().map(wrap).collect::<Result<Vec<i64>, _>>()?;
                args[i] = dims[..].into();
            }
            _ => {
                args[i] = wrap(call.call.int(name)?)?.into();
                lone |= rank == 0;
            }
        }
    }
    if !lone {
        return b.call_op(call.call.op, args);
    }
    for arg in &mut args {
        if let Arg::Value(v) = arg {
            *v = b.unsqueeze(*v, 1)?;
        }
    }
    let outs = b.call_op(call.call.op, args)?;
    outs.into_iter().map(|v| b.reshape(v, std::slice::from_ref(call.size))).collect()
}
