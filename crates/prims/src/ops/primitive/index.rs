//! Prims with data-dependent indices: gather, index, scatter, index_put; and the check alone.
//!
//! Indices are `i64` and in range; none is negative (composites wrap them first). References and compiled code check that
//! against the size of the operand's dimension.

use fx_ir::{Arg, ValueId, ValueType};
use ir_core::{DType, Scalar, Shape, SymExpr, TensorMeta};
use kernel_ir::{ReduceOp, ScalarOp, Site, StoreMode, Val};
use smallvec::SmallVec;
use tensor::Tensor;

use crate::builder::tensor;
use crate::ops::primitive::movement::pick;
use crate::ops::shapes::shape::for_each_index;
use crate::ops::shardings;
use crate::shard_rule::{LocalForm, Passes, ShardRule};
use crate::{
    Autocast, BatchRule, Call, ComplexRule, Grad, Kind, LoopCx, Lower, MetaCx, OpDef, OpError, RefCall,
    RefOut, Reference, ScatterSpec, Tolerance,
};

type Types = SmallVec<[ValueType; 1]>;

/// The entries.
pub(in crate::ops) const OPS: &[OpDef] = &[
    OpDef {
        schema: "prims::gather(Tensor a, int dim, Tensor index) -> Tensor",
        kind: Kind::Prim {
            doc: "`a[i0, …, index[i0, …, in], …, in]`: the index replaces the place along `dim`; the \
                  result has the sizes of `index`, which may be smaller than those of `a` elsewhere.",
            meta: meta_gather,
            lower: Lower::Loop(lower_gather),
            complex: ComplexRule::Parts,
            batch: BatchRule::Shift(&["dim"]),
            shard: ShardRule::Ways(
                shardings::indexing::gather,
                LocalForm::Calls(shardings::indexing::local_gather),
            ),
            reference: Reference::Fn(ref_gather),
        },
        grad: Grad::Rule(crate::ops::gradients::index::gather),
        tolerance: Tolerance::EXACT,
        autocast: Autocast::NONE,
        samples: |s| {
            let args = |dim: i64| vec![Arg::Value(ValueId(0)), dim.into(), Arg::Value(ValueId(1))];
            s.add(vec![s.float("a", &[4, 5]), s.ints("i", &[3, 5], 4)], args(0));
            s.add(vec![s.float("a", &[4, 5]), s.ints("i", &[4, 7], 5)], args(-1));
        },
    },
    OpDef {
        schema: "prims::index(Tensor a, Tensor[] indices, int start) -> Tensor",
        kind: Kind::Prim {
            doc: "The dimensions `start..start + k` of `a` replaced by those of the `k` indices, which \
                  have one shape: `a[lead…, indices[0][s…], …, indices[k - 1][s…], rest…]`.",
            meta: meta_index,
            lower: Lower::Loop(lower_index),
            complex: ComplexRule::Parts,
            batch: BatchRule::Rule(crate::ops::batches::rules::index),
            shard: ShardRule::Ways(
                shardings::indexing::index,
                LocalForm::Calls(shardings::indexing::local_index),
            ),
            reference: Reference::Fn(ref_index),
        },
        grad: Grad::Rule(crate::ops::gradients::index::index),
        tolerance: Tolerance::EXACT,
        autocast: Autocast::NONE,
        samples: |s| {
            let args = |n: u32, start: i64| {
                vec![Arg::Value(ValueId(0)), Arg::values((1..=n).map(ValueId)), start.into()]
            };
            s.add(vec![s.float("a", &[4, 5]), s.ints("i", &[2, 3], 4)], args(1, 0));
            s.add(vec![s.float("a", &[2, 4, 5, 3]), s.ints("i", &[6], 4), s.ints("j", &[6], 5)], args(2, 1));
        },
    },
    OpDef {
        schema: "prims::scatter(Tensor a, int dim, Tensor index, Tensor src, str mode) -> Tensor",
        kind: Kind::Prim {
            doc: "`a` with `src` combined in at the places that `gather` reads: `mode` is `write` (any of \
                  several wins), `add`, `prod`, `amax` or `amin`. `src` may be larger than `index`; the \
                  rest is not read.",
            meta: meta_scatter,
            lower: Lower::Scatter { source: "src", rule: lower_scatter },
            complex: ComplexRule::Rule(crate::ops::complex_numbers::prims::scatter),
            batch: BatchRule::Shift(&["dim"]),
            shard: ShardRule::Ways(
                shardings::indexing::scatter,
                LocalForm::Calls(shardings::indexing::local_scatter),
            ),
            reference: Reference::Fn(ref_scatter),
        },
        grad: Grad::Rule(crate::ops::gradients::index::scatter),
        tolerance: Tolerance::ACCUMULATE,
        autocast: Autocast::NONE,
        samples: |s| {
            let t = |n: u32| Arg::Value(ValueId(n));
            for mode in ["add", "prod", "amax", "amin"] {
                let tensors = vec![s.float("a", &[4, 5]), s.ints("i", &[3, 5], 4), s.float("s", &[3, 6])];
                s.add(tensors, vec![t(0), 0i64.into(), t(1), t(2), mode.into()]);
            }
        },
    },
    OpDef {
        schema: "prims::index_put(Tensor a, Tensor[] indices, int start, Tensor values, str mode) -> Tensor",
        kind: Kind::Prim {
            doc: "`a` with `values` combined in at the places that `index` reads; `values` has the sizes \
                  of `index`'s result.",
            meta: meta_index_put,
            lower: Lower::Scatter { source: "values", rule: lower_index_put },
            complex: ComplexRule::Rule(crate::ops::complex_numbers::prims::index_put),
            batch: BatchRule::Rule(crate::ops::batches::rules::index_put),
            shard: ShardRule::Ways(
                shardings::indexing::index_put,
                LocalForm::Calls(shardings::indexing::local_index_put),
            ),
            reference: Reference::Fn(ref_index_put),
        },
        grad: Grad::Rule(crate::ops::gradients::index::index_put),
        tolerance: Tolerance::ACCUMULATE,
        autocast: Autocast::NONE,
        samples: |s| {
            let t = |n: u32| Arg::Value(ValueId(n));
            let tensors = vec![
                s.float("a", &[2, 4, 5, 3]),
                s.ints("i", &[6], 4),
                s.ints("j", &[6], 5),
                s.float("v", &[2, 6, 3]),
            ];
            s.add(
                tensors,
                vec![t(0), Arg::values([ValueId(1), ValueId(2)]), 1i64.into(), t(3), "add".into()],
            );
        },
    },
    OpDef {
        schema: "prims::check(Tensor a, SymInt size, int dim) -> Tensor",
        kind: Kind::Prim {
            doc: "The `i64` tensor itself, whose elements must lie in `0..size`; else the call ends with an error that \
                  names them indices of dimension `dim`.",
            meta: meta_check,
            lower: Lower::Loop(lower_check),
            complex: ComplexRule::REAL_ONLY,
            batch: BatchRule::Leading,
            shard: ShardRule::Pointwise(Passes::No),
            reference: Reference::Fn(ref_check),
        },
        grad: Grad::NotDifferentiable("it is about integers"),
        tolerance: Tolerance::EXACT,
        autocast: Autocast::NONE,
        samples: |s| {
            s.add(vec![s.ints("a", &[3, 2], 4)], vec![Arg::Value(ValueId(0)), 4i64.into(), 0i64.into()])
        },
    },
];

fn meta_check(cx: &MetaCx<'_>, call: &Call<'_>) -> Result<Types, OpError> {
    let a = cx.meta(call, "a")?;
    check_index(call, a)?;
    call.int("dim")?;
    Ok(tensor(a.dtype, a.sizes.iter().cloned()))
}

fn lower_check(cx: &mut LoopCx<'_>) -> Result<Val, OpError> {
    let (at, call) = (cx.index.clone(), cx.call.call);
    let value = cx.load_arg("a", at)?;
    Ok(cx.check(value, call.sym("size")?, call.int("dim")?.max(0) as usize))
}

fn ref_check(c: &RefCall<'_>) -> Result<RefOut, OpError> {
    let (a, size, dim) = (c.tensor("a")?, c.int("size")?, c.int("dim")?);
    numbers(c, a, size.max(0) as usize, dim.max(0) as usize)?;
    Ok(vec![a.clone()])
}

fn check_index(call: &Call<'_>, meta: &TensorMeta) -> Result<(), OpError> {
    if meta.dtype == DType::I64 {
        return Ok(());
    }
    Err(call.invalid(format!("an index is {}, not i64", meta.dtype)))
}

fn meta_gather(cx: &MetaCx<'_>, call: &Call<'_>) -> Result<Types, OpError> {
    let (a, index) = (cx.meta(call, "a")?, cx.meta(call, "index")?);
    check_index(call, index)?;
    let dim = call.dim(call.int("dim")?, a.rank())?;
    if a.rank() != index.rank() || a.rank() == 0 {
        return Err(call.invalid(format!("{a} and the index {index} differ in rank")));
    }
    covered(cx, call, index, a, Some(dim))?;
    Ok(tensor(a.dtype, index.sizes.iter().cloned()))
}

/// The index is nowhere larger than the tensor, but for dimension `but`, along which its numbers say where.
fn covered(
    cx: &MetaCx<'_>,
    call: &Call<'_>,
    index: &TensorMeta,
    of: &TensorMeta,
    but: Option<usize>,
) -> Result<(), OpError> {
    let what =
        || format!("the index of sizes {} is larger than {}", cx.text(&index.sizes), cx.text(&of.sizes));
    let pairs = index.sizes.iter().zip(&of.sizes).enumerate().filter(|(d, (i, s))| Some(*d) != but && i != s);
    pairs.map(|(_, pair)| pair).try_for_each(|(i, s)| cx.non_negative(call, &(s - i), what))
}

fn lower_gather(cx: &mut LoopCx<'_>) -> Result<Val, OpError> {
    let dim = cx.call.call.dim(cx.call.call.int("dim")?, cx.index.len())?;
    let mut index = cx.index.clone();
    let (a, at) = (cx.call.call.value("a")?, cx.call.call.value("index")?);
    index[dim] = cx.index_from(at, index.clone(), a, dim)?;
    cx.load_arg("a", index)
}

fn wrapped(c: &RefCall<'_>, rank: usize) -> Result<usize, OpError> {
    let dim = c.int("dim")?;
    Ok(if dim < 0 { dim + rank as i64 } else { dim } as usize)
}

/// An index tensor's numbers, each inside `0..size`, the size of dimension `dim` of the operand.
fn numbers(c: &RefCall<'_>, index: &Tensor, size: usize, dim: usize) -> Result<Vec<usize>, OpError> {
    let outside = |index: i64| {
        // Whoever runs the call knows the user's operator and line.
        let site = Site { operator: c.op.target.clone(), dim: dim as u32, ..Site::default() };
        OpError::Index { site: Box::new(site), index, size: size as i64 }
    };
    let inside = |i: i64| usize::try_from(i).ok().filter(|&i| i < size).ok_or_else(|| outside(i));
    index.iter_i64().map(inside).collect()
}

fn flat(at: &[usize], sizes: &[usize]) -> usize {
    at.iter().zip(sizes).fold(0, |n, (i, s)| n * s + i)
}

fn ref_gather(c: &RefCall<'_>) -> Result<RefOut, OpError> {
    let (a, index) = (c.tensor("a")?, c.tensor("index")?);
    let dim = wrapped(c, a.rank())?;
    let places = numbers(c, index, a.sizes()[dim], dim)?;
    let mut next = places.iter();
    pick(c, a, Scalar::Bool(false), |at| {
        let place = *next.next()?;
        let n = at.iter().zip(a.sizes()).enumerate();
        Some(n.fold(0, |n, (d, (&i, &size))| n * size + if d == dim { place } else { i }))
    })
}

/// Metas of `a` and of the indices, and the first indexed dimension.
struct Indexed<'a> {
    a: &'a TensorMeta,
    shape: &'a [SymExpr],
    start: usize,
    count: usize,
}

fn indexed<'a>(graph: &'a fx_ir::Graph, call: &Call<'_>) -> Result<Indexed<'a>, OpError> {
    let missing = || call.invalid("an operand is not a tensor");
    let a = graph.meta(call.value("a")?).ok_or_else(missing)?;
    let indices = call.values("indices")?;
    let start = usize::try_from(call.int("start")?).map_err(|_| call.bad_arg("start", "is negative"))?;
    let first = *indices.first().ok_or_else(|| call.bad_arg("indices", "is empty"))?;
    let shape = &graph.meta(first).ok_or_else(missing)?.sizes;
    for &v in &indices {
        let meta = graph.meta(v).ok_or_else(missing)?;
        check_index(call, meta)?;
        if meta.rank() != shape.len() {
            return Err(call.invalid("indices differ in rank"));
        }
    }
    if start + indices.len() > a.rank() {
        return Err(
            call.invalid(format!("{} indices from dimension {start} on are too many for {a}", indices.len()))
        );
    }
    Ok(Indexed { a, shape, start, count: indices.len() })
}

impl Indexed<'_> {
    /// Sizes of the values that the indices name.
    fn sizes(&self) -> Shape {
        let (lead, rest) = (&self.a.sizes[..self.start], &self.a.sizes[self.start + self.count..]);
        lead.iter().chain(self.shape).chain(rest).cloned().collect()
    }
}

/// The operands of an indexing whose indices have one shape.
fn checked<'a>(cx: &MetaCx<'a>, call: &Call<'_>) -> Result<Indexed<'a>, OpError> {
    let x = indexed(cx.graph, call)?;
    for v in call.values("indices")? {
        let Some(meta) = cx.graph.meta(v) else { continue };
        cx.equal_sizes(call, x.shape, &meta.sizes, || {
            format!("indices have sizes {} and {}", cx.text(x.shape), cx.text(&meta.sizes))
        })?;
    }
    Ok(x)
}

fn meta_index(cx: &MetaCx<'_>, call: &Call<'_>) -> Result<Types, OpError> {
    let x = checked(cx, call)?;
    Ok(tensor(x.a.dtype, x.sizes()))
}

/// The position in `a` that point `at` of the indexed values names.
fn place(cx: &mut LoopCx<'_>, at: &Shape) -> Result<Shape, OpError> {
    let call = cx.call.call;
    let x = indexed(cx.call.graph, &call)?;
    let (start, inner) = (x.start, x.shape.len());
    let mut index: Shape = at[..start].iter().cloned().collect();
    for (k, v) in call.values("indices")?.into_iter().enumerate() {
        let point = at[start..start + inner].iter().cloned().collect();
        index.push(cx.index_from(v, point, call.value("a")?, start + k)?);
    }
    index.extend(at[start + inner..].iter().cloned());
    Ok(index)
}

fn lower_index(cx: &mut LoopCx<'_>) -> Result<Val, OpError> {
    let at = cx.index.clone();
    let index = place(cx, &at)?;
    cx.load_arg("a", index)
}

/// Row-major position in `a` (of the given sizes) for each point of the indexed values.
struct Places {
    numbers: Vec<Vec<usize>>,
    shape: Vec<usize>,
    start: usize,
    sizes: Vec<usize>,
}

fn places(c: &RefCall<'_>, a: &Tensor) -> Result<Places, OpError> {
    let start = c.int("start")?.max(0) as usize;
    let indices = c.tensors("indices")?;
    let shape = indices.first().map_or(Vec::new(), |t| t.sizes().to_vec());
    let mut places = Places { numbers: Vec::new(), shape, start, sizes: a.sizes().to_vec() };
    // Indices of nothing read and write nothing, whatever they are.
    let nothing = places.value_sizes(indices.len()).contains(&0);
    let list = indices.iter().enumerate().map(|(k, t)| match nothing {
        true => Ok(Vec::new()),
        false => numbers(c, t, a.sizes()[start + k], start + k),
    });
    places.numbers = list.collect::<Result<_, _>>()?;
    Ok(places)
}

impl Places {
    fn of(&self, at: &[usize]) -> usize {
        let (inner, count) = (self.shape.len(), self.numbers.len());
        let n = flat(&at[self.start..self.start + inner], &self.shape);
        let mut place = 0;
        for (d, &size) in self.sizes.iter().enumerate() {
            let i = match d {
                d if d < self.start => at[d],
                d if d < self.start + count => self.numbers[d - self.start][n],
                d => at[d - count + inner],
            };
            place = place * size + i;
        }
        place
    }
    /// Sizes of the values that this many indices name.
    fn value_sizes(&self, count: usize) -> Vec<usize> {
        let rest = &self.sizes[self.start + count..];
        self.sizes[..self.start].iter().chain(&self.shape).chain(rest).copied().collect()
    }
}

fn ref_index(c: &RefCall<'_>) -> Result<RefOut, OpError> {
    let a = c.tensor("a")?;
    let places = places(c, a)?;
    pick(c, a, Scalar::Bool(false), |at| Some(places.of(at)))
}

/// The reduction of a mode; `None` within where it writes.
pub(in crate::ops) fn reduce_of(mode: &str) -> Option<Option<ReduceOp>> {
    Some(match mode {
        "write" => None,
        "add" => Some(ReduceOp::Sum),
        "prod" => Some(ReduceOp::Prod),
        "amax" => Some(ReduceOp::Max),
        "amin" => Some(ReduceOp::Min),
        _ => return None,
    })
}

fn mode(call: &Call<'_>) -> Result<StoreMode, OpError> {
    let name = call.opt_str("mode")?.unwrap_or("write");
    let unknown = || call.bad_arg("mode", "must be write, add, prod, amax or amin");
    Ok(match reduce_of(name).ok_or_else(unknown)? {
        None => StoreMode::Write,
        Some(ReduceOp::Sum) => StoreMode::Add,
        Some(op) => StoreMode::Reduce(op),
    })
}

fn meta_scatter(cx: &MetaCx<'_>, call: &Call<'_>) -> Result<Types, OpError> {
    let (a, index, src) = (cx.meta(call, "a")?, cx.meta(call, "index")?, cx.meta(call, "src")?);
    check_index(call, index)?;
    let dim = call.dim(call.int("dim")?, a.rank())?;
    mode(call)?;
    if a.rank() == 0 || a.rank() != index.rank() || a.rank() != src.rank() || a.dtype != src.dtype {
        return Err(call.invalid(format!("{src} does not scatter into {a} by {index}")));
    }
    covered(cx, call, index, a, Some(dim))?;
    covered(cx, call, index, src, None)?;
    Ok(tensor(a.dtype, a.sizes.iter().cloned()))
}

/// The source point of a scatter, which may have more variables than the source has dimensions.
fn source_point(cx: &LoopCx<'_>, rank: usize) -> Shape {
    cx.index.iter().take(rank).cloned().collect()
}

fn lower_scatter(cx: &mut LoopCx<'_>) -> Result<ScatterSpec, OpError> {
    let call = cx.call.call;
    let dim = call.dim(call.int("dim")?, cx.call.meta("a")?.rank())?;
    let ranges = cx.call.meta("index")?.sizes.clone();
    let mut index = source_point(cx, ranges.len());
    let value = cx.load_arg("src", index.clone())?;
    index[dim] = cx.index_from(call.value("index")?, index.clone(), call.value("a")?, dim)?;
    Ok(ScatterSpec { base: call.value("a")?, ranges, index, value, mode: mode(&call)? })
}

fn meta_index_put(cx: &MetaCx<'_>, call: &Call<'_>) -> Result<Types, OpError> {
    let (x, values) = (checked(cx, call)?, cx.meta(call, "values")?);
    mode(call)?;
    let sizes = x.sizes();
    let what = || {
        let (of, places) = (cx.text(&x.a.sizes), cx.text(&sizes));
        format!("values of sizes {} do not fit {places} places of sizes {of}", cx.text(&values.sizes))
    };
    if x.a.dtype != values.dtype {
        return Err(call.invalid(format!("the values are {}, the tensor {}", values.dtype, x.a.dtype)));
    }
    cx.equal_sizes(call, &sizes, &values.sizes, what)?;
    Ok(tensor(x.a.dtype, x.a.sizes.iter().cloned()))
}

fn lower_index_put(cx: &mut LoopCx<'_>) -> Result<ScatterSpec, OpError> {
    let call = cx.call.call;
    let ranges = cx.call.meta("values")?.sizes.clone();
    let at = source_point(cx, ranges.len());
    let value = cx.load_arg("values", at.clone())?;
    let index = place(cx, &at)?;
    Ok(ScatterSpec { base: call.value("a")?, ranges, index, value, mode: mode(&call)? })
}

/// Combines two numbers in double (`i64`, complex) precision.
fn combine(op: Option<ReduceOp>, dtype: DType, old: Scalar, new: Scalar) -> Scalar {
    match (op.and_then(ReduceOp::combine), old, new) {
        (None, _, new) => new,
        (Some(ScalarOp::Add), Scalar::Complex(a, b), Scalar::Complex(c, d)) => Scalar::Complex(a + c, b + d),
        (Some(ScalarOp::Mul), Scalar::Complex(a, b), Scalar::Complex(c, d)) => {
            Scalar::Complex(a * c - b * d, a * d + b * c)
        }
        (Some(op), old, new) => op.eval(if dtype.is_float() { DType::F64 } else { dtype }, &[old, new]),
    }
}

/// `a` with `(place, value)` pairs combined in one after another.
fn combined(
    c: &RefCall<'_>,
    a: &Tensor,
    pairs: impl Iterator<Item = (usize, Scalar)>,
) -> Result<RefOut, OpError> {
    let name = match c.arg("mode") {
        crate::RefArg::Str(s) => s,
        _ => "write",
    };
    let op = reduce_of(name).ok_or_else(|| c.bad_arg("mode", "is unknown"))?;
    let mut all: Vec<Scalar> = a.iter().collect();
    for (place, value) in pairs {
        let slot = all.get_mut(place).ok_or_else(|| c.invalid("writes outside its operand"))?;
        *slot = combine(op, a.dtype(), *slot, value);
    }
    crate::ops::primitive::reduce::build(c, a.dtype(), a.sizes(), all)
}

fn ref_scatter(c: &RefCall<'_>) -> Result<RefOut, OpError> {
    let (a, index, src) = (c.tensor("a")?, c.tensor("index")?, c.tensor("src")?);
    let dim = wrapped(c, a.rank())?;
    let numbers = numbers(c, index, a.sizes()[dim], dim)?;
    let mut pairs = Vec::with_capacity(numbers.len());
    let mut bad = false;
    for_each_index(index.sizes(), |at| {
        let mut to = at.to_vec();
        to[dim] = numbers[pairs.len()];
        bad |= to.iter().zip(a.sizes()).any(|(i, s)| i >= s);
        pairs.push((flat(&to, a.sizes()), src.get(at).unwrap_or(Scalar::Bool(false))));
    });
    if bad {
        return Err(c.invalid("the index is larger than the operand"));
    }
    combined(c, a, pairs.into_iter())
}

fn ref_index_put(c: &RefCall<'_>) -> Result<RefOut, OpError> {
    let (a, values) = (c.tensor("a")?, c.tensor("values")?);
    let places = places(c, a)?;
    let mut list = Vec::with_capacity(values.numel());
    for_each_index(&places.value_sizes(places.numbers.len()), |at| list.push(places.of(at)));
    combined(c, a, list.into_iter().zip(values.iter()))
}
