//! Sharding rules of prims: the field `shard` of an entry. A rule lists the ways in which a call may be spread over the
//! ranks of one axis of a mesh; the crate `sharding` chooses among them, moves data between placements and builds the local
//! calls. Several axes are independent of each other, so a rule is about one.
//!
//! Not here: meshes, costs, collectives, and which way is chosen.

use fx_ir::{Arg, ValueId};
use ir_core::{DType, Shape, SymExpr};
use kernel_ir::Combine;

use crate::{Builder, Call, Kind, LowerCall, OpError, Outs};

/// The placement of a tensor on one axis of a mesh, as DTensor has them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Placement {
    /// Every rank has the whole tensor.
    Replicate,
    /// Rank `i` has part `i` of a dimension, which counts as blocks of `unit` elements: all parts but the last ones have
    /// `⌈blocks / ranks⌉` of them. A unit other than 1 keeps what a reshape splits from the dimension on one rank.
    Shard {
        /// The dimension.
        dim: usize,
        /// Elements of a block.
        unit: SymExpr,
        /// Sizes of the sections that are in parts each by itself, in order: a rank has its part of every one, one behind the
        /// other, as for the queries, keys and values of one weight. Empty where the dimension is one section.
        sections: Vec<SymExpr>,
    },
    /// The tensor is the combination of what the ranks have, element by element.
    Partial(Combine),
}

impl Placement {
    /// Parts of a dimension, by elements.
    pub fn shard(dim: usize) -> Placement {
        Placement::blocks(dim, SymExpr::ONE)
    }
    /// Parts of a dimension, by blocks of `unit` elements.
    pub fn blocks(dim: usize, unit: SymExpr) -> Placement {
        Placement::Shard { dim, unit, sections: Vec::new() }
    }
    /// Parts of every section of a dimension, by elements.
    pub fn sectioned(dim: usize, sections: Vec<SymExpr>) -> Placement {
        Placement::Shard { dim, unit: SymExpr::ONE, sections }
    }
    /// Sizes of the sections that are in parts each by itself; empty where there is one.
    pub fn sections(&self) -> &[SymExpr] {
        match self {
            Placement::Shard { sections, .. } => sections,
            _ => &[],
        }
    }
    /// The dimension that is in parts.
    pub fn dim(&self) -> Option<usize> {
        match self {
            Placement::Shard { dim, .. } => Some(*dim),
            _ => None,
        }
    }
}

/// One way to spread a call over the ranks of an axis: what each rank must have of every tensor operand (in the order in
/// which the arguments name them), and what it then has of every result. Where tensors are in parts, blocks of the way are in
/// one order in all of them, so units may be larger by a common factor, and dimensions may be in sections of whole blocks
/// ([`Way::refined`]).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Way {
    /// Of the operands.
    pub operands: Vec<Placement>,
    /// Of the results.
    pub results: Vec<Placement>,
    /// Whether it takes equal parts on all ranks: the call is not defined on empty ones.
    pub even: bool,
    /// Whether parts of it are ranges: the local form counts from where a part begins, so no dimension is in sections.
    pub ranges: bool,
    /// The elements of a tensor with the sizes of the result that ranks combine within the local form.
    pub combined: Option<DType>,
}

impl Way {
    /// A way whose parts may be uneven.
    pub fn new(operands: Vec<Placement>, results: Vec<Placement>) -> Way {
        Way { operands, results, even: false, ranges: false, combined: None }
    }

    /// Whether every rank makes all elements of the results, most of which another rank has: reads at indices of a dimension in
    /// parts.
    pub fn reads_all(&self) -> bool {
        self.ranges && self.combined.is_none() && self.results.iter().all(|p| p.dim().is_none())
    }

    /// The way by which a tensor that has the placement `of` in this one has `now`: with larger blocks, or in sections. `None`
    /// where `now` is not made of whole blocks of `of`, and where the way has sections of its own.
    pub fn refined(&self, of: &Placement, now: &Placement) -> Option<Way> {
        let (
            Placement::Shard { dim, unit, sections: none },
            Placement::Shard { dim: d, unit: larger, sections },
        ) = (of, now)
        else {
            return None;
        };
        let plain = self.operands.iter().chain(&self.results).all(|p| p.sections().is_empty());
        let plain = plain && (sections.is_empty() || !self.ranges);
        if dim != d || !none.is_empty() || !plain {
            return None;
        }
        // Sections are counted in elements: that they are whole blocks on every rank is for the caller to see.
        let factor = match divide(larger, unit) {
            None if !sections.is_empty() => SymExpr::ONE,
            factor => factor?,
        };
        let blocks = sections.iter().map(|s| divide(s, unit)).collect::<Option<Vec<_>>>()?;
        let scaled = |p: &Placement| match p {
            Placement::Shard { dim, unit, .. } => Placement::Shard {
                dim: *dim,
                unit: unit * &factor,
                sections: blocks.iter().map(|b| b * unit).collect(),
            },
            other => other.clone(),
        };
        let (operands, results) = (self.operands.iter(), self.results.iter());
        Some(Way {
            operands: operands.map(scaled).collect(),
            results: results.map(scaled).collect(),
            ..*self
        })
    }
}

/// `a / b` where that is a whole number in every call, as far as their forms show.
pub fn divide(a: &SymExpr, b: &SymExpr) -> Option<SymExpr> {
    if *b == SymExpr::ONE {
        return Some(a.clone());
    }
    match (a.as_const(), b.as_const()) {
        (Some(a), Some(b)) => (b > 0 && a % b == 0).then(|| SymExpr::from_i64(a / b)),
        _ if a == b => Some(SymExpr::ONE),
        _ => {
            let quotient = a.floor_div(b);
            (&quotient * b == *a).then_some(quotient)
        }
    }
}

/// Which combinations pass through a prim: with operands that are partial its result is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Passes {
    /// None.
    No,
    /// Any: the prim only moves elements. All operands are partial in the same way.
    Moves,
    /// Sums, where all operands are tensors, and all of them are partial.
    Sums,
    /// Sums, in any one of the operands with these numbers; the others are whole.
    SumsIn(&'static [usize]),
    /// This combination, where all operands are tensors that are partial in this way.
    Only(Combine),
}

/// What a rank computes for a call.
#[derive(Clone, Copy)]
pub enum LocalForm {
    /// The same call.
    Same,
    /// The same call, in which this argument has the sizes of the result.
    Sizes(&'static str),
    /// The same call with other arguments: a function of the call and of what the rank has.
    Args(fn(&LocalCall<'_>) -> Result<Vec<Arg>, OpError>),
    /// Several calls, for the only result.
    Calls(fn(&mut Builder<'_>, &LocalCall<'_>) -> Result<ValueId, OpError>),
}

/// The sharding rule of a prim.
#[derive(Clone, Copy)]
pub enum ShardRule {
    /// Element by element: operands and result have one shape, of which any dimension may be in parts.
    Pointwise(Passes),
    /// Argument `a` is reduced over argument `dims`: other dimensions may be in parts; those of `dims` too, where partial
    /// results are combined in this way.
    Reduce(Option<Combine>),
    /// Operands and results have the leading dimensions in common, all but this many last ones of the first operand.
    Leading(usize),
    /// The first operand and the results have one shape; any dimension but that of argument `dim` may be in parts.
    Along,
    /// The function lists the ways.
    Ways(fn(&LowerCall<'_>) -> Result<Vec<Way>, OpError>, LocalForm),
    /// The same, and the second function lists further ways for operands that have these placements: where it depends on
    /// their sections which ones the result has.
    Sectioned(
        fn(&LowerCall<'_>) -> Result<Vec<Way>, OpError>,
        fn(&LowerCall<'_>, &[Placement]) -> Result<Vec<Way>, OpError>,
        LocalForm,
    ),
    /// The call is one between ranks already.
    Local,
    /// It runs on whole tensors alone, for this reason.
    Whole(&'static str),
}

/// A call with what one rank has, for [`LocalForm`].
pub struct LocalCall<'a> {
    /// The whole call.
    pub call: Call<'a>,
    /// Its arguments, with local values.
    pub args: Vec<Arg>,
    /// What the rank has of the operands.
    pub operands: &'a [LocalPart],
    /// What it makes of the results.
    pub results: &'a [LocalPart],
}

/// What one rank has of a tensor.
#[derive(Clone, Debug)]
pub struct LocalPart {
    /// Sizes of the whole tensor.
    pub whole: Shape,
    /// Sizes of the part.
    pub sizes: Shape,
    /// The place of its first element in the whole.
    pub offsets: Shape,
    /// The dimensions that are in parts, each with the group of ranks among which it is.
    pub split: Vec<(usize, String)>,
}

impl LocalPart {
    /// The groups among which a dimension is in parts.
    pub fn groups(&self, dim: usize) -> impl Iterator<Item = &str> {
        self.split.iter().filter(move |(d, _)| *d == dim).map(|(_, group)| &**group)
    }
    /// Whether a dimension is in parts.
    pub fn is_split(&self, dim: usize) -> bool {
        self.groups(dim).next().is_some()
    }
}

impl LocalCall<'_> {
    /// The call with local values.
    pub fn local(&self) -> Call<'_> {
        Call { op: self.call.op, args: &self.args }
    }
    /// The arguments with one of them replaced.
    pub fn with(&self, name: &str, arg: impl Into<Arg>) -> Vec<Arg> {
        let mut args = self.args.clone();
        if let Some(slot) = self.call.op.schema.arg_index(name).and_then(|i| args.get_mut(i)) {
            *slot = arg.into();
        }
        args
    }
}

/// The tensor operands of a call, in the order of its arguments.
pub fn operands(args: &[Arg]) -> Vec<ValueId> {
    let mut all = Vec::new();
    args.iter().for_each(|a| a.for_each_value(&mut |v| all.push(v)));
    all
}

/// The ways of a call; none where it runs on whole tensors alone.
///
/// # Errors
/// An invalid call.
pub fn ways(call: &LowerCall<'_>) -> Result<Vec<Way>, OpError> {
    let Kind::Prim { shard, .. } = &call.call.op.def.kind else { return Ok(Vec::new()) };
    match shard {
        ShardRule::Pointwise(passes) => pointwise(call, *passes),
        ShardRule::Reduce(how) => reduce(call, *how),
        ShardRule::Leading(last) => leading(call, *last),
        ShardRule::Along => along(call),
        ShardRule::Ways(list, _) | ShardRule::Sectioned(list, _, _) => list(call),
        ShardRule::Local | ShardRule::Whole(_) => Ok(Vec::new()),
    }
}

/// Further ways of a call whose operands have these placements.
///
/// # Errors
/// An invalid call.
pub fn sectioned_ways(call: &LowerCall<'_>, operands: &[Placement]) -> Result<Vec<Way>, OpError> {
    match rule(&call.call) {
        Some(ShardRule::Sectioned(_, list, _)) if operands.iter().any(|p| !p.sections().is_empty()) => {
            list(call, operands)
        }
        _ => Ok(Vec::new()),
    }
}

/// The rule of a prim.
pub fn rule(call: &Call<'_>) -> Option<&'static ShardRule> {
    match &call.op.def.kind {
        Kind::Prim { shard, .. } => Some(shard),
        Kind::Composite(_) => None,
    }
}

/// Builds the local form of a call.
///
/// # Errors
/// Those of a rule, and what a prim refuses on parts.
pub fn local_outs(b: &mut Builder<'_>, call: &LocalCall<'_>) -> Result<Outs, OpError> {
    let form = match rule(&call.call) {
        Some(ShardRule::Ways(_, form) | ShardRule::Sectioned(_, _, form)) => *form,
        _ => LocalForm::Same,
    };
    let args = match form {
        LocalForm::Same => call.args.clone(),
        LocalForm::Sizes(name) => {
            call.with(name, call.results.first().map(|r| Arg::ints(&r.sizes)).unwrap_or(Arg::None))
        }
        LocalForm::Args(rule) => rule(call)?,
        LocalForm::Calls(build) => return Ok(std::iter::once(build(b, call)?).collect()),
    };
    b.call_op(call.call.op, args)
}

/// The same placement of `n` tensors.
pub(crate) fn all(n: usize, placement: &Placement) -> Vec<Placement> {
    vec![placement.clone(); n]
}

/// The ways in which partial operands give partial results, `results` of them.
pub(crate) fn passing(call: &LowerCall<'_>, passes: Passes, results: usize) -> Vec<Way> {
    let n = operands(call.call.args).len();
    let tensors = call.call.op.schema.args.len();
    let together = |how: Combine| {
        let placement = Placement::Partial(how);
        Way::new(all(n, &placement), all(results, &placement))
    };
    match passes {
        _ if n == 0 => Vec::new(),
        Passes::No => Vec::new(),
        Passes::Moves => {
            [Combine::Sum, Combine::Prod, Combine::Max, Combine::Min].into_iter().map(together).collect()
        }
        // A number among the operands would be added once a rank.
        Passes::Sums | Passes::Only(_) if n < tensors => Vec::new(),
        Passes::Sums => vec![together(Combine::Sum)],
        Passes::Only(how) => vec![together(how)],
        Passes::SumsIn(which) => {
            // Operands that are numbers are not counted: the argument must be a tensor itself.
            let of = |arg: usize| -> Option<usize> {
                let Arg::Value(_) = call.call.args.get(arg)? else { return None };
                Some(operands(&call.call.args[..arg]).len())
            };
            let one = |place: usize| {
                let mut way = Way::new(all(n, &Placement::Replicate), Vec::new());
                way.operands[place] = Placement::Partial(Combine::Sum);
                way.results = all(results, &Placement::Partial(Combine::Sum));
                way
            };
            which.iter().filter_map(|arg| of(*arg)).map(one).collect()
        }
    }
}

fn pointwise(call: &LowerCall<'_>, passes: Passes) -> Result<Vec<Way>, OpError> {
    let values = operands(call.call.args);
    let out = call.out(0)?;
    let mut ways = Vec::new();
    for dim in 0..out.rank() {
        if values.iter().any(|v| call.graph.meta(*v).is_none_or(|m| m.sizes.get(dim) != out.sizes.get(dim))) {
            continue;
        }
        let placement = Placement::shard(dim);
        ways.push(Way::new(all(values.len(), &placement), vec![placement]));
    }
    ways.extend(passing(call, passes, 1));
    Ok(ways)
}

pub(crate) fn reduce(call: &LowerCall<'_>, how: Option<Combine>) -> Result<Vec<Way>, OpError> {
    let rank = call.meta("a")?.rank();
    let dims = crate::ops::reduced_dims(&call.call, rank)?;
    // Further operands have the shape of the result (`amax_at`).
    let further = operands(call.call.args).len().saturating_sub(1);
    let mut ways = Vec::new();
    let mut kept = 0;
    for dim in 0..rank {
        let (rest, result) = match (dims.contains(&dim), how) {
            (false, _) => {
                kept += 1;
                (Placement::shard(kept - 1), Placement::shard(kept - 1))
            }
            (true, Some(how)) if further == 0 => (Placement::Replicate, Placement::Partial(how)),
            (true, _) => continue,
        };
        let operands = std::iter::once(Placement::shard(dim)).chain(all(further, &rest)).collect();
        ways.push(Way::new(operands, vec![result]));
    }
    if let Some(how) = how.filter(|_| further == 0) {
        let partial = Placement::Partial(how);
        ways.push(Way::new(vec![partial.clone()], vec![partial]));
    }
    Ok(ways)
}

fn leading(call: &LowerCall<'_>, last: usize) -> Result<Vec<Way>, OpError> {
    let values = operands(call.call.args);
    let metas = values.iter().map(|v| call.meta_of(*v)).collect::<Result<Vec<_>, _>>()?;
    let Some(first) = metas.first() else { return Ok(Vec::new()) };
    let outs = (0..call.outs.len()).map(|n| call.out(n)).collect::<Result<Vec<_>, _>>()?;
    let count = first.rank().saturating_sub(last);
    let shared = |d: &usize| {
        let size = first.sizes.get(*d);
        metas.iter().chain(&outs).all(|m| m.sizes.get(*d) == size)
    };
    let way = |d: usize| {
        let placement = Placement::shard(d);
        Way::new(all(values.len(), &placement), all(outs.len(), &placement))
    };
    Ok((0..count).filter(shared).map(way).collect())
}

fn along(call: &LowerCall<'_>) -> Result<Vec<Way>, OpError> {
    let values = operands(call.call.args);
    let first = values.first().copied().ok_or_else(|| call.call.invalid("has no operand"))?;
    let rank = call.meta_of(first)?.rank();
    let dim = call.call.dim(call.call.int("dim")?, rank)?;
    let way = |d: usize| {
        let placement = Placement::shard(d);
        Way::new(all(values.len(), &placement), all(call.outs.len(), &placement))
    };
    Ok((0..rank).filter(|d| *d != dim).map(way).collect())
}
