//! Prims that reduce or scan: one row per reduction. They keep the dtype (`argmax`, `argmin` give `i64`); the dimensions
//! reduced are removed from the result.

use fx_ir::{Arg, ValueId, ValueType};
use ir_core::{DType, Scalar};
use kernel_ir::{Combine, ReduceOp};
use smallvec::SmallVec;
use tensor::Tensor;

use crate::builder::tensor;
use crate::ops::gradients::shape as grad_shape;
use crate::ops::shardings;
use crate::shard_rule::{LocalForm, ShardRule};
use crate::{
    Autocast, BatchRule, Call, ComplexRule, Grad, Kind, Lower, MetaCx, OpDef, OpError, RefCall, RefOut,
    Reference, Samples, Tolerance,
};

macro_rules! reductions {
    ($($op:ident $schema:literal $doc:literal $grad:expr, $complex:expr;)*) => {
        &[$(OpDef {
            schema: $schema,
            kind: Kind::Prim {
                doc: $doc,
                meta: |cx, call| meta_reduce(ReduceOp::$op, cx, call),
                lower: Lower::Reduce(ReduceOp::$op),
                complex: $complex,
                batch: BatchRule::Shift(&["dims"]),
                shard: rule_of(ReduceOp::$op),
                reference: Reference::Fn(|c| reduce(ReduceOp::$op, c)),
            },
            grad: $grad,
            tolerance: Tolerance::ACCUMULATE,
            autocast: Autocast::NONE,
            samples: |s| samples_reduce(ReduceOp::$op, s),
        },)*
        OpDef {
            schema: "prims::amax_at(Tensor a, Tensor at, int[] dims) -> Tensor",
            kind: Kind::Prim {
                doc: "As `amax`, of a largest element whose number over `dims` (in row-major order) is known: the derivative \
                      is that element's alone. The number itself, an integer, is not read.",
                meta: meta_at,
                lower: Lower::Reduce(ReduceOp::Max),
                complex: ComplexRule::NO_ORDER,
                batch: BatchRule::Shift(&["dims"]),
                shard: ShardRule::Reduce(None),
                reference: Reference::Fn(|c| reduce(ReduceOp::Max, c)),
            },
            grad: Grad::Rule(grad_shape::extreme_at),
            tolerance: Tolerance::ACCUMULATE,
            autocast: Autocast::NONE,
            samples: samples_at,
        },
        OpDef {
            schema: "prims::cumsum(Tensor a, int dim) -> Tensor",
            kind: Kind::Prim {
                doc: "Inclusive running sum along `dim`.",
                meta: meta_same,
                lower: Lower::Scan(ReduceOp::Sum),
                complex: ComplexRule::Parts,
                batch: BatchRule::Shift(&["dim"]),
                shard: ShardRule::Along,
                reference: Reference::Fn(|c| scan(ReduceOp::Sum, c)),
            },
            grad: Grad::Rule(grad_shape::cumsum),
            tolerance: Tolerance::ACCUMULATE,
            autocast: Autocast::NONE,
            samples: samples_scan,
        },
        OpDef {
            schema: "prims::cumprod(Tensor a, int dim) -> Tensor",
            kind: Kind::Prim {
                doc: "Inclusive running product along `dim`.",
                meta: meta_same,
                lower: Lower::Scan(ReduceOp::Prod),
                complex: ComplexRule::Rule(crate::ops::complex_numbers::prims::cumprod),
                batch: BatchRule::Shift(&["dim"]),
                shard: ShardRule::Along,
                reference: Reference::Fn(|c| scan(ReduceOp::Prod, c)),
            },
            grad: Grad::Rule(grad_shape::cumprod),
            tolerance: Tolerance::ACCUMULATE,
            autocast: Autocast::NONE,
            samples: samples_scan,
        },
        OpDef {
            schema: "prims::cummax(Tensor a, int dim) -> Tensor",
            kind: Kind::Prim {
                doc: "Inclusive running maximum along `dim`.",
                meta: meta_same,
                lower: Lower::Scan(ReduceOp::Max),
                complex: ComplexRule::NO_ORDER,
                batch: BatchRule::Shift(&["dim"]),
                shard: ShardRule::Along,
                reference: Reference::Fn(|c| scan(ReduceOp::Max, c)),
            },
            grad: Grad::Rule(grad_shape::cumulative_extreme),
            tolerance: Tolerance::EXACT,
            autocast: Autocast::NONE,
            samples: samples_scan,
        },
        OpDef {
            schema: "prims::cummin(Tensor a, int dim) -> Tensor",
            kind: Kind::Prim {
                doc: "Inclusive running minimum along `dim`.",
                meta: meta_same,
                lower: Lower::Scan(ReduceOp::Min),
                complex: ComplexRule::NO_ORDER,
                batch: BatchRule::Shift(&["dim"]),
                shard: ShardRule::Along,
                reference: Reference::Fn(|c| scan(ReduceOp::Min, c)),
            },
            grad: Grad::Rule(grad_shape::cumulative_extreme),
            tolerance: Tolerance::EXACT,
            autocast: Autocast::NONE,
            samples: samples_scan,
        }]
    };
}

/// The entries.
pub(in crate::ops) const OPS: &[OpDef] = reductions! {
    Sum "prims::sum(Tensor a, int[] dims) -> Tensor"
        "Sum over `dims`, in at least `float32`; the result lacks them, as in all reductions. Without elements 0."
        Grad::Rule(grad_shape::sum), ComplexRule::Parts;
    Prod "prims::prod(Tensor a, int[] dims) -> Tensor"
        "Product over `dims`. Without elements 1."
        Grad::Rule(grad_shape::prod), ComplexRule::Rule(crate::ops::complex_numbers::prims::prod);
    Max "prims::amax(Tensor a, int[] dims) -> Tensor"
        "Largest element over `dims`; `NaN` where any element is. Without elements the lowest value of the dtype."
        Grad::Rule(grad_shape::extreme), ComplexRule::NO_ORDER;
    Min "prims::amin(Tensor a, int[] dims) -> Tensor"
        "Smallest element over `dims`; `NaN` where any element is. Without elements the highest value of the dtype."
        Grad::Rule(grad_shape::extreme), ComplexRule::NO_ORDER;
    Any "prims::any(Tensor a, int[] dims) -> Tensor"
        "Whether any element of a `bool` tensor over `dims` is true."
        Grad::NotDifferentiable("it gives bool"), ComplexRule::REAL_ONLY;
    All "prims::all(Tensor a, int[] dims) -> Tensor"
        "Whether every element of a `bool` tensor over `dims` is true."
        Grad::NotDifferentiable("it gives bool"), ComplexRule::REAL_ONLY;
    Xor "prims::xor_sum(Tensor a, int[] dims) -> Tensor"
        "Exclusive or of the bits over `dims`."
        Grad::NotDifferentiable("it works on bits"), ComplexRule::REAL_ONLY;
    ArgMax "prims::argmax(Tensor a, int[] dims) -> Tensor"
        "Number (`int64`) of the largest element over `dims`, in row-major order; the first of equal ones, `NaN` counts as largest."
        Grad::NotDifferentiable("it gives a position"), ComplexRule::NO_ORDER;
    ArgMin "prims::argmin(Tensor a, int[] dims) -> Tensor"
        "Number (`int64`) of the smallest element over `dims`, in row-major order; the first of equal ones, `NaN` counts as smallest."
        Grad::NotDifferentiable("it gives a position"), ComplexRule::NO_ORDER;
};

type Types = SmallVec<[ValueType; 1]>;

/// How a reduction is spread over ranks.
const fn rule_of(op: ReduceOp) -> ShardRule {
    match op {
        ReduceOp::ArgMax | ReduceOp::ArgMin => ShardRule::Ways(
            shardings::positions::position,
            LocalForm::Calls(shardings::positions::local_position),
        ),
        _ => ShardRule::Reduce(combination(op)),
    }
}

/// How results over parts of what is reduced are combined.
const fn combination(op: ReduceOp) -> Option<Combine> {
    match op {
        ReduceOp::Sum => Some(Combine::Sum),
        ReduceOp::Prod => Some(Combine::Prod),
        ReduceOp::Max | ReduceOp::Any => Some(Combine::Max),
        ReduceOp::Min | ReduceOp::All => Some(Combine::Min),
        // Positions need their values (they have a rule of their own), and no engine combines bits.
        ReduceOp::Xor | ReduceOp::ArgMax | ReduceOp::ArgMin => None,
    }
}

/// The dimensions reduced, wrapped and sorted.
pub(crate) fn reduced_dims(call: &Call<'_>, rank: usize) -> Result<Vec<usize>, OpError> {
    let mut dims: Vec<usize> =
        call.ints("dims")?.into_iter().map(|d| call.dim(d, rank)).collect::<Result<_, _>>()?;
    dims.sort_unstable();
    dims.dedup();
    dims.retain(|&d| d < rank);
    Ok(dims)
}

fn meta_reduce(op: ReduceOp, cx: &MetaCx<'_>, call: &Call<'_>) -> Result<Types, OpError> {
    let a = cx.meta(call, "a")?;
    let dims = reduced_dims(call, a.rank())?;
    let positional = matches!(op, ReduceOp::ArgMax | ReduceOp::ArgMin);
    let bools = matches!(op, ReduceOp::Any | ReduceOp::All);
    if bools && a.dtype != DType::Bool {
        return Err(OpError::DType { op: call.name().into(), dtype: a.dtype });
    }
    let dtype = if positional { DType::I64 } else { a.dtype };
    let kept = a.sizes.iter().enumerate().filter(|(d, _)| !dims.contains(d)).map(|(_, s)| s.clone());
    Ok(tensor(dtype, kept))
}

fn meta_at(cx: &MetaCx<'_>, call: &Call<'_>) -> Result<Types, OpError> {
    let types = meta_reduce(ReduceOp::Max, cx, call)?;
    let at = cx.meta(call, "at")?;
    let wrong = || format!("`at` is {at}, not an integer for each result");
    match types.first() {
        Some(ValueType::Tensor(m)) if at.dtype.is_integral() => {
            cx.equal_sizes(call, &m.sizes, &at.sizes, wrong)?;
            Ok(types)
        }
        _ => Err(call.invalid(wrong())),
    }
}

fn meta_same(cx: &MetaCx<'_>, call: &Call<'_>) -> Result<Types, OpError> {
    let a = cx.meta(call, "a")?;
    call.dim(call.int("dim")?, a.rank())?;
    Ok(tensor(a.dtype, a.sizes.iter().cloned()))
}

/// A running combination in double (or `i64`, complex) precision.
struct Fold {
    op: ReduceOp,
    dtype: DType,
    best: Scalar,
    position: i64,
    empty: bool,
}

impl Fold {
    fn new(op: ReduceOp, dtype: DType) -> Fold {
        Fold { op, dtype, best: op.identity(dtype), position: 0, empty: true }
    }
    fn push(&mut self, x: Scalar, position: i64) {
        match self.op {
            ReduceOp::ArgMax | ReduceOp::ArgMin => {
                let (a, b) = (x.as_f64(), self.best.as_f64());
                let exact = |x: Scalar| x.as_i64();
                let integral = self.dtype.is_integral();
                let greater =
                    if integral { exact(x) > exact(self.best) } else { a > b || (a.is_nan() && !b.is_nan()) };
                let less =
                    if integral { exact(x) < exact(self.best) } else { a < b || (a.is_nan() && !b.is_nan()) };
                if self.empty || if self.op == ReduceOp::ArgMax { greater } else { less } {
                    (self.best, self.position) = (x, position);
                }
            }
            op => {
                self.best = match (op, self.best, x) {
                    (ReduceOp::Sum, Scalar::Complex(a, b), Scalar::Complex(c, d)) => {
                        Scalar::Complex(a + c, b + d)
                    }
                    (ReduceOp::Prod, Scalar::Complex(a, b), Scalar::Complex(c, d)) => {
                        Scalar::Complex(a * c - b * d, a * d + b * c)
                    }
                    // In double precision: the reference is the yardstick, not a rounding model.
                    (op, best, x) => {
                        let wide = if self.dtype.is_float() { DType::F64 } else { self.dtype };
                        op.combine().map_or(best, |scalar| scalar.eval(wide, &[best, x]))
                    }
                }
            }
        }
        self.empty = false;
    }
    fn result(&self) -> Scalar {
        match self.op {
            ReduceOp::ArgMax | ReduceOp::ArgMin => Scalar::Int(self.position),
            _ => self.best,
        }
    }
}

/// `a` with the given dimensions moved to the end, in order, as rows of `row` elements.
fn rows(c: &RefCall<'_>, a: &Tensor, dims: &[usize]) -> Result<(Vec<Scalar>, usize), OpError> {
    let kept = (0..a.rank()).filter(|d| !dims.contains(d));
    let order: Vec<usize> = kept.chain(dims.iter().copied()).collect();
    let moved = a.permute(&order).map_err(|e| c.tensor_error(e))?;
    Ok((moved.iter().collect(), dims.iter().map(|&d| a.sizes()[d]).product()))
}

fn wrap(d: i64, rank: usize) -> usize {
    (if d < 0 { d + rank.max(1) as i64 } else { d }) as usize
}

pub(in crate::ops) fn build(
    c: &RefCall<'_>,
    dtype: DType,
    sizes: &[usize],
    values: Vec<Scalar>,
) -> Result<RefOut, OpError> {
    let filled = match dtype {
        DType::C64 | DType::C128 => {
            let parts = |s: &Scalar| {
                if let Scalar::Complex(a, b) = s {
                    tensor::Complex::new(*a, *b)
                } else {
                    tensor::Complex::new(s.as_f64(), 0.0)
                }
            };
            Tensor::from_vec(values.iter().map(parts).collect::<Vec<_>>(), sizes)
        }
        d if d.is_float() => Tensor::from_vec(values.iter().map(|s| s.as_f64()).collect::<Vec<f64>>(), sizes),
        _ => Tensor::from_vec(values.iter().map(|s| s.as_i64()).collect::<Vec<i64>>(), sizes),
    };
    let t = filled.and_then(|t| t.to_dtype(dtype)).map_err(|e| c.tensor_error(e))?;
    Ok(vec![t])
}

fn reduce(op: ReduceOp, c: &RefCall<'_>) -> Result<RefOut, OpError> {
    let a = c.tensor("a")?;
    let mut dims: Vec<usize> =
        c.ints("dims")?.into_iter().map(|d| wrap(d, a.rank())).filter(|&d| d < a.rank()).collect();
    dims.sort_unstable();
    let (elements, row) = rows(c, a, &dims)?;
    let (dtype, sizes) = c.out();
    let count: usize = sizes.iter().product();
    let fold = |n: usize| {
        let mut fold = Fold::new(op, a.dtype());
        elements[n * row..(n + 1) * row].iter().enumerate().for_each(|(i, x)| fold.push(*x, i as i64));
        fold.result()
    };
    build(c, dtype, sizes, (0..count).map(fold).collect())
}

fn scan(op: ReduceOp, c: &RefCall<'_>) -> Result<RefOut, OpError> {
    let a = c.tensor("a")?;
    if a.rank() == 0 {
        return Ok(vec![a.clone()]);
    }
    let dim = wrap(c.int("dim")?, a.rank());
    let (elements, row) = rows(c, a, &[dim])?;
    let mut values = Vec::with_capacity(elements.len());
    for line in elements.chunks(row.max(1)) {
        let mut fold = Fold::new(op, a.dtype());
        for (i, x) in line.iter().enumerate() {
            fold.push(*x, i as i64);
            values.push(fold.result());
        }
    }
    let mut moved: Vec<usize> = a.sizes().to_vec();
    moved.remove(dim);
    moved.push(row);
    // Back from the last position to `dim`.
    let mut order: Vec<usize> = (0..a.rank() - 1).collect();
    order.insert(dim, a.rank() - 1);
    let t = build(c, a.dtype(), &moved, values)?.remove(0);
    t.permute(&order).and_then(|t| t.contiguous()).map(|t| vec![t]).map_err(|e| c.tensor_error(e))
}

fn samples_reduce(op: ReduceOp, s: &mut Samples) {
    let a: Tensor = match op {
        ReduceOp::Any | ReduceOp::All => s.bools("a", &[3, 4, 5]),
        ReduceOp::Xor => s.ints("a", &[3, 4, 5], 100),
        _ => s.float("a", &[3, 4, 5]),
    };
    for dims in [&[0i64][..], &[1], &[2], &[0, 2], &[0, 1, 2]] {
        s.add(vec![a.clone()], vec![Arg::Value(ValueId(0)), dims.into()]);
    }
}

/// The numbers are right: gradients are held against differences.
fn samples_at(s: &mut Samples) {
    let a = s.float("a", &[3, 4, 5]);
    let values: Vec<f64> = a.iter().map(|x| x.as_f64()).collect();
    for (dims, row) in [(&[2i64][..], 5), (&[1, 2], 20), (&[0, 1, 2], 60)] {
        let best = |line: &[f64]| {
            let larger = |b: usize, i: usize| if line[i] > line[b] { i } else { b };
            (0..line.len()).fold(0, larger) as i64
        };
        let at: Vec<i64> = values.chunks(row).map(best).collect();
        let kept = &[3, 4, 5][..3 - dims.len()];
        let args = vec![Arg::Value(ValueId(0)), Arg::Value(ValueId(1)), dims.into()];
        // As many numbers as there are lines.
        s.add(vec![a.clone(), Tensor::from_vec(at, kept).expect("a sample fits memory")], args);
    }
}

fn samples_scan(s: &mut Samples) {
    for dim in [0i64, 1, -1] {
        s.add(vec![s.float("a", &[3, 4, 5])], vec![Arg::Value(ValueId(0)), dim.into()]);
    }
}
