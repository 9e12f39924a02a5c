//! The matrix prims: factorizations, solutions, eigenvalues, each a library routine in every backend (`linalg` on the host). Conventions are
//! LAPACK's; the gradient rules are in `linalg_grad`.
//!
//! The last argument, `interleaved`, is for compiled programs: complex matrices are then real tensors with a last dimension
//! of 2. The pass `split_complex` sets it; meta rules and gradients never see it set.

use fx_ir::{Arg, ValueId, ValueType};
use ir_core::{DType, Shape, SymExpr};
use kernel_ir::{ExternOp, LinalgOp};
use num_complex::Complex;
use smallvec::SmallVec;
use tensor::Tensor;

use crate::builder::tensor;
use crate::ops::primitive::linalg_grad as grad;
use crate::ops::primitive::linalg_run::run_linalg;
use crate::ops::shardings;
use crate::shard_rule::{LocalForm, ShardRule};
use crate::split_complex::by_buffers;
use crate::{
    Autocast, BatchRule, Builder, Call, ComplexCall, ComplexRule, Grad, Kind, Lower, LowerCall, MetaCx,
    OpDef, OpError, RefArg, RefCall, RefOut, Reference, Samples, SplitArg, Splits, Tolerance,
};

/// A matrix prim: its options are read alike from a call and from a reference call.
macro_rules! routine {
    ($schema:literal, $doc:literal, $meta:expr, $op:expr, $grad:expr, $samples:expr) => {
        OpDef {
            schema: $schema,
            kind: Kind::Prim {
                doc: $doc,
                meta: $meta,
                lower: Lower::Extern(|c| {
                    let op: fn(&Call<'_>) -> Result<LinalgOp, OpError> = $op;
                    lower(c, op(&c.call)?)
                }),
                complex: ComplexRule::Rule(interleaved),
                batch: BatchRule::Leading,
                shard: ShardRule::Ways(shardings::templates::matrices, LocalForm::Same),
                reference: Reference::Fn(|c| {
                    let op: fn(&RefCall<'_>) -> Result<LinalgOp, OpError> = $op;
                    reference(c, op(c)?)
                }),
            },
            grad: $grad,
            tolerance: Tolerance::ACCUMULATE,
            autocast: Autocast::NONE,
            samples: $samples,
        }
    };
}

/// The entries.
pub(in crate::ops) const OPS: &[OpDef] = &[
    routine!(
        "prims::linalg_cholesky(Tensor a, bool upper, bool check, bool interleaved=False) -> (Tensor l, Tensor info)",
        "Factor `l` (`l lᴴ = a`; where `upper`, `lᴴ l = a`) of Hermitian `a [*, n, n]`, of which only that triangle is \
         read; zeros in the other. `info [*]` (`i32`): 0, or the order of the first leading minor that is not positive; \
         such a matrix is an error where `check`.",
        |cx, c| square(cx, c, |a| [a.like(&[]), a.ints(&[])]),
        |c| Ok(LinalgOp::Cholesky { upper: c.bool("upper")?, check: c.bool("check")? }),
        Grad::Rule(grad::cholesky),
        |s| {
            for upper in [false, true] {
                for a in [positive(s, &[2], 3), hermitian(&positive(s, &[2], 3))] {
                    s.add(vec![a], vec![first(), upper.into(), true.into(), false.into()]);
                }
            }
        }
    ),
    routine!(
        "prims::linalg_lu(Tensor a, bool pivot, bool check, bool interleaved=False) -> (Tensor lu, Tensor pivots, Tensor info)",
        "`P L U = a [*, m, n]`: `U` in the upper triangle of `lu`, unit lower `L` below it; `pivots [*, min(m, n)]` \
         (`i32`, from 1: row i was exchanged with this row), none exchanged without `pivot`; `info [*]` (`i32`): 0, or \
         the number of the first zero on the diagonal of `U`, an error where `check`.",
        |cx, c| matrix(cx, c, |a| Ok([a.like(&[]), a.ints(std::slice::from_ref(&a.least())), a.ints(&[])])),
        |c| Ok(LinalgOp::Lu { pivot: c.bool("pivot")?, check: c.bool("check")? }),
        Grad::Rule(grad::lu),
        |s| {
            for sizes in [&[2, 3, 3][..], &[4, 2], &[2, 4]] {
                for a in [dominant(s, "a", sizes), complex(s, &dominant(s, "a", sizes))] {
                    s.add(vec![a], vec![first(), true.into(), false.into(), false.into()]);
                }
            }
        }
    ),
    routine!(
        "prims::linalg_solve(Tensor a, Tensor b, bool check, bool interleaved=False) -> (Tensor x, Tensor lu, Tensor pivots, Tensor info)",
        "`x = a⁻¹ b` for `a [*, n, n]` and `b [*, n, r]`, with factors, pivots and `info` of `a` as `linalg_lu` gives \
         them; a singular matrix is an error where `check`, else gives infinities and `NaN`.",
        meta_solve,
        |c| Ok(LinalgOp::Solve { check: c.bool("check")? }),
        Grad::Rule(grad::solve),
        |s| {
            let (a, rhs) = (dominant(s, "a", &[2, 3, 3]), s.float("b", &[2, 3, 2]));
            s.add(vec![complex(s, &a), complex(s, &rhs)], vec![first(), second(), true.into(), false.into()]);
            s.add(vec![a, rhs], vec![first(), second(), true.into(), false.into()]);
        }
    ),
    routine!(
        "prims::linalg_solve_triangular(Tensor a, Tensor b, bool upper, bool unitriangular, bool interleaved=False) -> Tensor",
        "`a⁻¹ b` for `a [*, n, n]`, of which one triangle is read (not its diagonal where `unitriangular`, which counts \
         as ones), and `b [*, n, r]`.",
        |cx, c| {
            let a = Matrix::square(cx, c, "a")?;
            Ok(types([a.partner(cx, c, "b")?.like(&[])]))
        },
        |c| Ok(LinalgOp::SolveTriangular {
            upper: c.bool("upper")?,
            unitriangular: c.bool("unitriangular")?
        }),
        Grad::Rule(grad::triangular),
        |s| {
            for (upper, unit) in [(false, false), (true, false), (true, true), (false, true)] {
                s.add(
                    vec![dominant(s, "a", &[2, 3, 3]), s.float("b", &[2, 3, 2])],
                    vec![first(), second(), upper.into(), unit.into(), false.into()],
                );
            }
        }
    ),
    routine!(
        "prims::linalg_cholesky_solve(Tensor a, Tensor b, bool upper, bool interleaved=False) -> Tensor",
        "`x` with `a aᴴ x = b [*, n, r]` (`aᴴ a x = b` where `upper`) for triangular `a [*, n, n]`, of which that \
         triangle is read.",
        |cx, c| {
            let a = Matrix::square(cx, c, "a")?;
            Ok(types([a.partner(cx, c, "b")?.like(&[])]))
        },
        |c| Ok(LinalgOp::CholeskySolve { upper: c.bool("upper")? }),
        Grad::Rule(grad::cholesky_solve),
        |s| {
            // Diagonal ones: the rule takes the other triangle to be there and zero, as PyTorch does.
            for upper in [false, true] {
                s.add(
                    vec![dominant(s, "a", &[3, 1, 1]), s.float("b", &[3, 1, 2])],
                    vec![first(), second(), upper.into(), false.into()],
                );
            }
        }
    ),
    routine!(
        "prims::linalg_geqrf(Tensor a, bool interleaved=False) -> (Tensor qr, Tensor tau)",
        "Householder form of `a [*, m, n]`: `R` in the upper triangle, below it the vectors `v` (their first element, 1, \
         left out) of the reflections `I - tau v vᴴ` whose product times `R` is `a`; `tau [*, min(m, n)]`.",
        |cx, c| matrix(cx, c, |a| Ok([a.like(&[]), a.tail(a.dtype, &[a.least()])])),
        |_| Ok(LinalgOp::Geqrf),
        Grad::NotDifferentiable("PyTorch defines no derivative; the factors of `linalg_qr` have one"),
        |s| s.add(vec![s.float("a", &[2, 4, 3])], vec![first(), false.into()])
    ),
    routine!(
        "prims::linalg_qr(Tensor a, bool complete, bool interleaved=False) -> (Tensor q, Tensor r)",
        "`q r = a [*, m, n]` with orthonormal columns `q [*, m, k]` and upper triangular `r [*, k, n]`, signs as \
         Householder reflections give them; `k = min(m, n)`, or `m` where `complete`.",
        meta_qr,
        |c| Ok(LinalgOp::Qr { complete: c.bool("complete")? }),
        Grad::Rule(grad::qr),
        |s| {
            for (sizes, complete) in [(&[2, 4, 3][..], false), (&[3, 4], false), (&[3, 3], true)] {
                for a in [dominant(s, "a", sizes), complex(s, &dominant(s, "a", sizes))] {
                    s.add(vec![a], vec![first(), complete.into(), false.into()]);
                }
            }
        }
    ),
    routine!(
        "prims::linalg_eigh(Tensor a, bool upper, bool interleaved=False) -> (Tensor values, Tensor vectors)",
        "Ascending eigenvalues (real) `[*, n]` and orthonormal eigenvectors, as columns, of Hermitian `a [*, n, n]`, of \
         which only one triangle is read.",
        |cx, c| square(cx, c, |a| [a.tail(a.dtype.to_real(), std::slice::from_ref(&a.rows)), a.like(&[])]),
        |c| Ok(LinalgOp::Eigh { upper: c.bool("upper")? }),
        Grad::Rule(grad::eigh),
        |s| {
            for upper in [false, true] {
                s.add(vec![positive(s, &[2], 3)], vec![first(), upper.into(), false.into()]);
            }
        }
    ),
    routine!(
        "prims::linalg_eig(Tensor a, bool interleaved=False) -> (Tensor values, Tensor vectors)",
        "Eigenvalues `[*, n]` and eigenvectors, as columns, of `a [*, n, n]`, both complex; vectors have length 1 and a \
         positive real largest element.",
        |cx, c| square(cx, c, |a| [
            a.tail(complex_of(a.dtype), std::slice::from_ref(&a.rows)),
            a.as_dtype(complex_of(a.dtype))
        ]),
        |_| Ok(LinalgOp::Eig),
        Grad::Rule(grad::eig),
        // Real eigenvalues: the phase that the normalisation chooses does not move with the matrix.
        |s| s.add(vec![positive(s, &[2], 3)], vec![first(), false.into()])
    ),
    routine!(
        "prims::linalg_svd(Tensor a, bool full, bool interleaved=False) -> (Tensor u, Tensor s, Tensor vh)",
        "`u diag(s) vh = a [*, m, n]` with orthonormal columns of `u [*, m, k]`, rows of `vh [*, k, n]` and descending \
         real `s [*, k]`; `k = min(m, n)`. Where `full`, `u` and `vh` are square.",
        meta_svd,
        |c| Ok(LinalgOp::Svd { full: c.bool("full")? }),
        Grad::Rule(grad::svd),
        |s| {
            for (sizes, full) in [(&[2, 4, 3][..], false), (&[3, 4], false), (&[3, 3], true)] {
                s.add(vec![dominant(s, "a", sizes)], vec![first(), full.into(), false.into()]);
            }
        }
    ),
    routine!(
        "prims::linalg_ldl_factor(Tensor a, bool hermitian, bool check, bool interleaved=False) -> (Tensor ld, Tensor pivots, Tensor info)",
        "Bunch–Kaufman factors of symmetric (Hermitian where `hermitian`) `a [*, n, n]` out of its lower triangle, as \
         LAPACK's `sytrf` gives them: `L` and the blocks of `D` in the lower triangle, zeros above; `pivots [*, n]` \
         (`i32`, from 1, a negative pair for a 2 by 2 block); `info [*]`: the first zero block, an error where `check`.",
        |cx, c| square(cx, c, |a| [a.like(&[]), a.ints(std::slice::from_ref(&a.rows)), a.ints(&[])]),
        |c| Ok(LinalgOp::LdlFactor { hermitian: c.bool("hermitian")?, check: c.bool("check")? }),
        Grad::NotDifferentiable("PyTorch defines no derivative"),
        |s| s.add(vec![positive(s, &[2], 3)], vec![first(), false.into(), false.into(), false.into()],)
    ),
    routine!(
        "prims::linalg_ldl_solve(Tensor a, Tensor pivots, Tensor b, bool hermitian, bool interleaved=False) -> Tensor",
        "`x` with `A x = b [*, n, r]` for the matrix `A` whose factors `a [*, n, n]` and pivots `[*, n]` \
         `linalg_ldl_factor` gave. Pivots out of range are an error.",
        |cx, c| {
            let a = Matrix::square(cx, c, "a")?;
            a.require_trailing_sizes(cx, c, "pivots", std::slice::from_ref(&a.rows))?;
            Ok(types([a.partner(cx, c, "b")?.like(&[])]))
        },
        |c| Ok(LinalgOp::LdlSolve { hermitian: c.bool("hermitian")? }),
        Grad::NotDifferentiable("PyTorch defines no derivative"),
        |s| {
            let pivots = |list: Vec<i32>| Tensor::from_vec(list, &[3]).expect("a sample fits memory");
            for list in [vec![1, 3, 3], vec![-3, -3, 3]] {
                s.add(
                    vec![dominant(s, "a", &[3, 3]), pivots(list), s.float("b", &[3, 2])],
                    vec![first(), second(), Arg::Value(ValueId(2)), false.into(), false.into()],
                );
            }
        }
    ),
    routine!(
        "prims::linalg_pinv(Tensor a, Tensor atol, Tensor rtol, bool hermitian, bool interleaved=False) -> Tensor",
        "Moore–Penrose inverse `[*, n, m]` of `a [*, m, n]`; singular values up to `max(atol, rtol · largest)` count as \
         zero, `atol` and `rtol` being real `[*]`. Where `hermitian`, the lower triangle is read.",
        |cx, c| matrix(cx, c, |a| {
            a.require_trailing_sizes(cx, c, "atol", &[])?;
            a.require_trailing_sizes(cx, c, "rtol", &[])?;
            Ok([a.tail(a.dtype, &[a.columns.clone(), a.rows.clone()])])
        }),
        |c| Ok(LinalgOp::Pinv { hermitian: c.bool("hermitian")? }),
        Grad::Rule(grad::pinv),
        |s| {
            for sizes in [&[2, 4, 3][..], &[2, 3, 4]] {
                let zero = || Tensor::zeros(DType::F32, &[2]).expect("a sample fits memory");
                for a in [dominant(s, "a", sizes), complex(s, &dominant(s, "a", sizes))] {
                    s.add(
                        vec![a, zero(), zero()],
                        vec![first(), second(), Arg::Value(ValueId(2)), false.into(), false.into()],
                    );
                }
            }
        }
    ),
    routine!(
        "prims::linalg_matrix_exp(Tensor a, bool interleaved=False) -> Tensor",
        "The exponential of the matrices `a [*, n, n]`; elements that are not finite give `NaN` everywhere.",
        |cx, c| square(cx, c, |a| [a.like(&[])]),
        |_| Ok(LinalgOp::MatrixExp),
        Grad::Rule(grad::matrix_exp),
        |s| {
            for a in [s.float("a", &[2, 3, 3]), complex(s, &s.float("a", &[2, 3, 3]))] {
                s.add(vec![a], vec![first(), false.into()]);
            }
        }
    ),
    routine!(
        "prims::linalg_permutation(Tensor pivots, SymInt rows) -> Tensor",
        "The order `[*, rows]` (`i64`, from 0) into which the row exchanges `pivots [*, k]` (`i32`, from 1) bring rows: \
         row i of the exchanged matrix is this row of the given one. Pivots out of range are an error.",
        meta_permutation,
        |_| Ok(LinalgOp::Permutation),
        Grad::NotDifferentiable("integers"),
        |s| {
            let pivots = Tensor::from_vec(vec![2, 2, 3, 4, 4, 3], &[2, 3]).expect("a sample fits memory");
            s.add(vec![pivots], vec![first(), 4i64.into()]);
        }
    ),
];

fn first() -> Arg {
    Arg::Value(ValueId(0))
}

fn second() -> Arg {
    Arg::Value(ValueId(1))
}

/// Well-conditioned matrices with distinct singular values: a small random part and a large diagonal.
fn dominant(s: &Samples, name: &str, sizes: &[usize]) -> Tensor {
    let [.., rows, columns] = sizes else { return s.float(name, sizes) };
    let spread = |(i, x): (usize, f64)| {
        let (row, column) = (i / columns % rows, i % columns);
        (x / 4.0 + if row == column { 3.0 - row as f64 } else { 0.0 }) as f32
    };
    let list = s.float(name, sizes).iter_f64().enumerate().map(spread).collect();
    Tensor::from_vec::<f32>(list, sizes).expect("a sample fits memory")
}

/// Symmetric positive definite matrices `[batch, n, n]` with distinct eigenvalues.
fn positive(s: &Samples, batch: &[usize], n: usize) -> Tensor {
    let sizes: Vec<usize> = batch.iter().copied().chain([n, n]).collect();
    let list: Vec<f64> = s.float("positive", &sizes).iter_f64().collect();
    let at = |i: usize| {
        let (matrix, row, column) = (i / (n * n) * n * n, i / n % n, i % n);
        let mirrored = list[matrix + row * n + column] + list[matrix + column * n + row];
        (mirrored / 8.0 + if row == column { 2.0 + row as f64 } else { 0.0 }) as f32
    };
    Tensor::from_vec::<f32>((0..list.len()).map(at).collect(), &sizes).expect("a sample fits memory")
}

/// The tensor with small imaginary parts.
fn complex(s: &Samples, re: &Tensor) -> Tensor {
    let im = s.float("imaginary", re.sizes());
    let list = re.iter_f64().zip(im.iter_f64()).map(|(re, im)| Complex::new(re as f32, im as f32 / 4.0));
    Tensor::from_vec::<Complex<f32>>(list.collect(), re.sizes()).expect("a sample fits memory")
}

/// Symmetric matrices `[*, n, n]` with an antisymmetric imaginary part.
fn hermitian(re: &Tensor) -> Tensor {
    let n = re.sizes()[re.rank() - 1];
    let at = |(i, re): (usize, f64)| Complex::new(re as f32, (i % n) as f32 / 4.0 - (i / n % n) as f32 / 4.0);
    let list = re.iter_f64().enumerate().map(at).collect();
    Tensor::from_vec::<Complex<f32>>(list, re.sizes()).expect("a sample fits memory")
}

fn complex_of(dtype: DType) -> DType {
    match dtype {
        DType::F64 | DType::C128 => DType::C128,
        _ => DType::C64,
    }
}

fn lower(c: &LowerCall<'_>, op: LinalgOp) -> Result<ExternOp, OpError> {
    // Pivots alone have no argument `interleaved`.
    let complex = op != LinalgOp::Permutation && c.call.bool("interleaved")?;
    Ok(ExternOp::Linalg { op, complex })
}

/// The routine on interleaved operands: the last argument says so where the matrices themselves are complex.
fn interleaved(b: &mut Builder<'_>, call: &ComplexCall<'_>) -> Result<Splits, OpError> {
    let mut args = call.args.to_vec();
    let complex = matches!(args.first(), Some(SplitArg::Complex(_)));
    if let Some(last) = args.last_mut() {
        *last = SplitArg::Real(complex.into());
    }
    by_buffers(b, &ComplexCall { op: call.op, args: &args, outs: call.outs })
}

fn reference(c: &RefCall<'_>, op: LinalgOp) -> Result<RefOut, OpError> {
    let tensors =
        c.args.iter().filter_map(|a| if let RefArg::Tensor(t) = a { Some(t.clone()) } else { None });
    let pairs = op != LinalgOp::Permutation && c.bool("interleaved")?;
    run_linalg(op, pairs, &tensors.collect::<Vec<_>>(), c.outs).map_err(|e| c.invalid(e.to_string()))
}

type Types = SmallVec<[ValueType; 1]>;

fn types<const N: usize>(list: [Types; N]) -> Types {
    list.into_iter().flatten().collect()
}

/// The matrices of an operand.
struct Matrix {
    dtype: DType,
    batch: Shape,
    rows: SymExpr,
    columns: SymExpr,
}

impl Matrix {
    fn of(cx: &MetaCx<'_>, call: &Call<'_>, arg: &str) -> Result<Matrix, OpError> {
        let a = cx.meta(call, arg)?;
        if !matches!(a.dtype, DType::F32 | DType::F64 | DType::C64 | DType::C128) {
            return Err(OpError::DType { op: call.name().into(), dtype: a.dtype });
        }
        let [batch @ .., rows, columns] = &a.sizes[..] else {
            return Err(call.bad_arg(arg, format!("must be matrices, not {a}")));
        };
        let (rows, columns) = (rows.clone(), columns.clone());
        Ok(Matrix { dtype: a.dtype, batch: batch.iter().cloned().collect(), rows, columns })
    }

    fn square(cx: &MetaCx<'_>, call: &Call<'_>, arg: &str) -> Result<Matrix, OpError> {
        let a = Matrix::of(cx, call, arg)?;
        cx.equal(call, &a.rows, &a.columns, || {
            let (m, n) = (cx.graph.size_text(&a.rows), cx.graph.size_text(&a.columns));
            format!("`{arg}` must be square matrices, not {m} by {n}")
        })?;
        Ok(a)
    }

    /// Right-hand sides for these matrices.
    fn partner(&self, cx: &MetaCx<'_>, call: &Call<'_>, arg: &str) -> Result<Matrix, OpError> {
        let b = Matrix::of(cx, call, arg)?;
        let what = || format!("`{arg}` has another batch, number of rows or dtype than the matrices");
        if b.dtype != self.dtype {
            return Err(call.invalid(what()));
        }
        cx.equal_sizes(call, &b.batch, &self.batch, what)?;
        cx.equal(call, &b.rows, &self.rows, what)?;
        Ok(b)
    }

    /// An operand has these sizes after those of the batch.
    fn require_trailing_sizes(
        &self,
        cx: &MetaCx<'_>,
        call: &Call<'_>,
        arg: &str,
        last: &[SymExpr],
    ) -> Result<(), OpError> {
        let sizes: Shape = self.batch.iter().chain(last).cloned().collect();
        let meta = cx.meta(call, arg)?;
        cx.equal_sizes(call, &meta.sizes, &sizes, || {
            format!("`{arg}` has sizes {}, the matrices want {}", cx.text(&meta.sizes), cx.text(&sizes))
        })
    }

    fn least(&self) -> SymExpr {
        self.rows.sym_min(&self.columns)
    }

    /// The batch with other last sizes.
    fn tail(&self, dtype: DType, last: &[SymExpr]) -> Types {
        tensor(dtype, self.batch.iter().chain(last).cloned())
    }

    /// The same sizes and dtype; `more` dimensions behind.
    fn like(&self, more: &[SymExpr]) -> Types {
        let own = [self.rows.clone(), self.columns.clone()];
        tensor(self.dtype, self.batch.iter().chain(&own).chain(more).cloned())
    }

    fn as_dtype(&self, dtype: DType) -> Types {
        self.tail(dtype, &[self.rows.clone(), self.columns.clone()])
    }

    fn ints(&self, last: &[SymExpr]) -> Types {
        self.tail(DType::I32, last)
    }
}

fn square<const N: usize>(
    cx: &MetaCx<'_>,
    call: &Call<'_>,
    f: impl FnOnce(&Matrix) -> [Types; N],
) -> Result<Types, OpError> {
    Ok(types(f(&Matrix::square(cx, call, "a")?)))
}

fn matrix<const N: usize>(
    cx: &MetaCx<'_>,
    call: &Call<'_>,
    f: impl FnOnce(&Matrix) -> Result<[Types; N], OpError>,
) -> Result<Types, OpError> {
    f(&Matrix::of(cx, call, "a")?).map(types)
}

fn meta_solve(cx: &MetaCx<'_>, call: &Call<'_>) -> Result<Types, OpError> {
    let a = Matrix::square(cx, call, "a")?;
    let b = a.partner(cx, call, "b")?;
    Ok(types([b.like(&[]), a.like(&[]), a.ints(std::slice::from_ref(&a.rows)), a.ints(&[])]))
}

fn meta_qr(cx: &MetaCx<'_>, call: &Call<'_>) -> Result<Types, OpError> {
    let a = Matrix::of(cx, call, "a")?;
    let k = if call.bool("complete")? { a.rows.clone() } else { a.least() };
    Ok(types([a.tail(a.dtype, &[a.rows.clone(), k.clone()]), a.tail(a.dtype, &[k, a.columns.clone()])]))
}

fn meta_svd(cx: &MetaCx<'_>, call: &Call<'_>) -> Result<Types, OpError> {
    let a = Matrix::of(cx, call, "a")?;
    let k = a.least();
    let (left, right) =
        if call.bool("full")? { (a.rows.clone(), a.columns.clone()) } else { (k.clone(), k.clone()) };
    Ok(types([
        a.tail(a.dtype, &[a.rows.clone(), left]),
        a.tail(a.dtype.to_real(), &[k]),
        a.tail(a.dtype, &[right, a.columns.clone()]),
    ]))
}

fn meta_permutation(cx: &MetaCx<'_>, call: &Call<'_>) -> Result<Types, OpError> {
    let pivots = cx.meta(call, "pivots")?;
    let [batch @ .., swaps] = &pivots.sizes[..] else {
        return Err(call.bad_arg("pivots", "must have a dimension"));
    };
    if pivots.dtype != DType::I32 {
        return Err(OpError::DType { op: call.name().into(), dtype: pivots.dtype });
    }
    let rows = call.sym("rows")?;
    cx.non_negative(call, &(&rows - swaps), || {
        format!("{} exchanges of {} rows", cx.graph.size_text(swaps), cx.graph.size_text(&rows))
    })?;
    Ok(tensor(DType::I64, batch.iter().cloned().chain([rows])))
}
