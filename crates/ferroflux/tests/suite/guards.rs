//! Functions compiled once for symbolic sizes and called with sizes that fit and sizes that do not: every backend gives what the
//! same function gives compiled for just these sizes, or refuses the call with an error that says why. Never anything else.

#![allow(clippy::unwrap_used)] // a failing test may panic

use ferroflux::func::{self, CompiledFunc, Func, Types, Var};
use ferroflux::ir_core::{DType, SymExpr};
use ferroflux::{Error, Options, Program, Tensor};

const BACKENDS: [&str; 3] = ["eager", "oracle", "cpu"];

/// A size of an argument: a number, or the symbol of this number.
#[derive(Clone, Copy)]
enum Size {
    Is(usize),
    Symbol(usize),
}

use Size::{Is, Symbol as S};

/// A function, its arguments' sizes and dtypes, and how many symbols they use.
struct Case {
    name: &'static str,
    f: Func,
    arguments: Vec<(DType, Vec<Size>)>,
}

impl Case {
    fn symbols(&self) -> usize {
        let of = |s: &Size| if let S(n) = s { n + 1 } else { 0 };
        self.arguments.iter().flat_map(|(_, sizes)| sizes).map(of).max().unwrap_or(0)
    }

    fn types(&self) -> Types {
        let mut types = Types::new();
        let symbols: Vec<SymExpr> =
            (0..self.symbols()).map(|n| types.symbol(["n", "m", "k", "l"][n], 0, None)).collect();
        self.arguments.iter().fold(types, |types, (dtype, sizes)| {
            let size = |s: &Size| match s {
                Is(n) => SymExpr::from_i64(*n as i64),
                S(n) => symbols[*n].clone(),
            };
            types.tensor(*dtype, sizes.iter().map(size).collect::<Vec<_>>())
        })
    }

    fn tensors(&self, values: &[usize]) -> Vec<Tensor> {
        let mut seed = 1u64;
        let one = |(dtype, sizes): &(DType, Vec<Size>)| {
            let sizes: Vec<usize> =
                sizes.iter().map(|s| if let S(n) = s { values[*n] } else { size(s) }).collect();
            let count = sizes.iter().product();
            let mut next = || {
                seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                ((seed >> 40) as f64 / f64::from(1 << 24)) * 4.0 - 2.0
            };
            // Indices lie in every dimension that has an element.
            let list: Vec<f64> =
                (0..count).map(|_| if *dtype == DType::I64 { 0.0 } else { next() }).collect();
            Tensor::from_vec(list, &sizes).unwrap().to_dtype(*dtype).unwrap()
        };
        self.arguments.iter().map(one).collect()
    }
}

fn size(s: &Size) -> usize {
    if let Is(n) = s { *n } else { 0 }
}

/// Every choice of a value for each of `n` symbols.
fn choices(n: usize) -> Vec<Vec<usize>> {
    let values: &[usize] = match n {
        1 => &[0, 1, 2, 3, 4, 5, 7, 8, 16],
        2 => &[0, 1, 2, 3, 5, 8],
        _ => &[0, 1, 2, 3],
    };
    (0..n).fold(vec![vec![]], |list, _| {
        let with = |v: &Vec<usize>| values.iter().map(|x| [&v[..], &[*x]].concat()).collect::<Vec<_>>();
        list.iter().flat_map(with).collect()
    })
}

fn options(backend: &str) -> Options {
    Options::new().backend(backend)
}

fn same(a: &Tensor, b: &Tensor) -> bool {
    let close =
        |(x, y): (f64, f64)| x == y || (x.is_nan() && y.is_nan()) || (x - y).abs() <= 1e-4 * (1.0 + y.abs());
    a.sizes() == b.sizes() && a.dtype() == b.dtype() && a.iter_f64().zip(b.iter_f64()).all(close)
}

/// What is wrong with the result of a call on symbolic sizes, given that of the same call on numbers.
fn wrong(got: &Result<Vec<Tensor>, Error>, wanted: &Result<Vec<Tensor>, Error>) -> Option<String> {
    match (got, wanted) {
        (Ok(got), Ok(wanted)) => {
            let all = got.len() == wanted.len() && got.iter().zip(wanted).all(|(a, b)| same(a, b));
            (!all).then(|| format!("gives {got:?}, not {wanted:?}"))
        }
        (Ok(got), Err(why)) => Some(format!("gives {got:?} where sizes that are numbers are refused: {why}")),
        // The sizes are refused before the backend is asked; `eager` may find more in the operators themselves.
        (Err(Error::Guard { .. } | Error::Input { .. } | Error::Backend(_)), _) => None,
        (Err(other), _) => Some(format!("fails with {other}")),
    }
}

fn check(case: &Case) -> Vec<String> {
    let mut problems = Vec::new();
    let compiled: Vec<(&str, CompiledFunc)> = BACKENDS
        .into_iter()
        .filter_map(|backend| match case.f.compile(&case.types(), &options(backend)) {
            Ok(f) => Some((backend, f)),
            Err(error) => {
                problems.push(format!("{} on {backend} does not compile: {error}", case.name));
                None
            }
        })
        .collect();
    let mut answers = 0;
    // An index that is out of range, as every one is of no elements, is not for sizes to tell.
    let indexed = case.arguments.iter().any(|(dtype, _)| *dtype == DType::I64);
    for values in choices(case.symbols()).into_iter().filter(|v| !indexed || v[..1].iter().all(|n| *n > 0)) {
        let inputs = case.tensors(&values);
        let wanted = case.f.call(&inputs, &options("eager"));
        for (backend, f) in &compiled {
            let got = f.call(&inputs);
            answers += usize::from(got.is_ok());
            problems.extend(
                wrong(&got, &wanted).map(|w| format!("{} on {backend} with {values:?} {w}", case.name)),
            );
        }
    }
    if answers == 0 {
        problems.push(format!("{} refuses every call", case.name));
    }
    problems
}

fn one(name: &'static str, sizes: &[Size], f: fn(Var<'_>) -> Var<'_>) -> Case {
    let arguments = vec![(DType::F32, sizes.to_vec())];
    Case { name, f: func::of(move |[x]| f(x)), arguments }
}

fn two(name: &'static str, x: &[Size], y: &[Size], f: for<'t> fn(Var<'t>, Var<'t>) -> Var<'t>) -> Case {
    let arguments = vec![(DType::F32, x.to_vec()), (DType::F32, y.to_vec())];
    Case { name, f: func::of(move |[x, y]| f(x, y)), arguments }
}

/// The second argument is an index.
fn indexed(name: &'static str, x: &[Size], y: &[Size], f: for<'t> fn(Var<'t>, Var<'t>) -> Var<'t>) -> Case {
    let mut case = two(name, x, y, f);
    case.arguments[1].0 = DType::I64;
    case
}

fn judge(cases: Vec<Case>) {
    let problems: Vec<String> = cases.iter().flat_map(check).collect();
    assert!(problems.is_empty(), "{} problems:\n{}", problems.len(), problems.join("\n"));
}

fn ints(list: &[i64]) -> ferroflux::fx_ir::Arg {
    list.into()
}

#[test]
fn operands_of_two_sizes() {
    judge(vec![
        two("add", &[S(0)], &[S(1)], |x, y| x + y),
        two("add of matrices", &[S(0), S(1)], &[S(2), S(3)], |x, y| x * y + y),
        two("add to a number", &[S(0)], &[Is(3)], |x, y| x + y),
        two("add of other ranks", &[S(0), S(1)], &[S(2)], |x, y| x - y),
        two("maximum", &[S(0)], &[S(1)], |x, y| x.call("aten.maximum.default", [y.into()])),
        two("where", &[S(0)], &[S(1)], |x, y| {
            let mask = x.call("aten.gt.Scalar", [0.0.into()]);
            mask.call("aten.where.self", [x.into(), y.into()])
        }),
        two("expand_as", &[S(0), Is(1)], &[S(1), S(2)], |x, y| x.call("aten.expand_as.default", [y.into()])),
        two("matmul", &[Is(2), S(0)], &[S(1), Is(2)], |x, y| x.matmul(y)),
        two("matmul of matrices", &[S(0), S(1)], &[S(2), S(3)], |x, y| x.matmul(y)),
        two("bmm", &[S(0), Is(2), S(1)], &[S(2), S(3), Is(3)], |x, y| x.call("aten.bmm.default", [y.into()])),
        two("matrix times vector", &[S(0), S(1)], &[S(2)], |x, y| x.matmul(y)),
        two("dot", &[S(0)], &[S(1)], |x, y| x.call("aten.dot.default", [y.into()])),
        two("linear", &[S(0), S(1)], &[Is(3), S(2)], |x, w| x.call("aten.linear.default", [w.into()])),
        two("mse_loss", &[S(0), S(1)], &[S(2), S(3)], |x, y| x.call("aten.mse_loss.default", [y.into()])),
        two("cosine similarity", &[S(0), S(1)], &[S(2), S(3)], |x, y| {
            x.call("aten.cosine_similarity.default", [y.into()])
        }),
        two("attention", &[Is(1), Is(2), S(0), S(1)], &[Is(1), Is(2), S(2), S(3)], |x, y| {
            x.call("aten.scaled_dot_product_attention.default", [y.into(), y.into()])
        }),
        two("kron", &[S(0)], &[S(1)], |x, y| x.call("aten.outer.default", [y.into()])),
        two("layer norm", &[Is(2), S(0)], &[S(1)], |x, w| {
            let shape = ferroflux::fx_ir::Arg::List(vec![w.sizes()[0].clone().into()]);
            x.call("aten.layer_norm.default", [shape.into(), w.into()])
        }),
        two("slice and add", &[S(0)], &[S(1)], |x, y| {
            let end = ferroflux::fx_ir::Arg::from(y.sizes()[0].clone());
            x.call("aten.slice.Tensor", [0i64.into(), 0i64.into(), end.into()]) + y
        }),
        two("narrow and add", &[S(0)], &[S(1)], |x, y| {
            let length = ferroflux::fx_ir::Arg::from(y.sizes()[0].clone());
            x.call("aten.narrow.default", [0i64.into(), 0i64.into(), length.into()]) + y
        }),
        two("view of rows", &[S(0)], &[S(1)], |x, y| {
            let rows = ferroflux::fx_ir::Arg::from(y.sizes()[0].clone());
            x.call("aten.view.default", [ferroflux::fx_ir::Arg::List(vec![rows, (-1i64).into()]).into()])
        }),
        two("slice_scatter", &[S(0)], &[S(1)], |x, y| {
            x.call("aten.slice_scatter.default", [y.into(), 0i64.into(), 1i64.into(), 3i64.into()])
        }),
        two("cross", &[S(0), Is(3)], &[S(1), Is(3)], |x, y| x.call("aten.linalg_cross.default", [y.into()])),
        two("conv1d", &[Is(1), S(0), S(1)], &[Is(2), S(2), S(3)], |x, w| {
            x.call("aten.conv1d.default", [w.into()])
        }),
    ]);
}

#[test]
fn shapes_of_one_operand() {
    judge(vec![
        one("as_strided", &[S(0)], |x| {
            x.call("aten.as_strided.default", [ints(&[4, 4]).into(), ints(&[4, 1]).into()])
        }),
        one("narrow", &[S(0)], |x| x.call("aten.narrow.default", [0i64.into(), 1i64.into(), 3i64.into()])),
        one("select", &[S(0), S(1)], |x| x.call("aten.select.int", [0i64.into(), 2i64.into()])),
        one("select from the end", &[S(0), S(1)], |x| {
            x.call("aten.select.int", [1i64.into(), (-2i64).into()])
        }),
        one("slice", &[S(0)], |x| {
            x.call("aten.slice.Tensor", [0i64.into(), 1i64.into(), 6i64.into(), 2i64.into()])
        }),
        one("slice from the end", &[S(0)], |x| x.call("aten.slice.Tensor", [0i64.into(), (-3i64).into()])),
        one("reshape", &[S(0)], |x| x.reshape(&[2, -1])),
        one("reshape to numbers", &[S(0), S(1)], |x| x.reshape(&[4, 4])),
        one("unflatten", &[S(0)], |x| x.call("aten.unflatten.int", [0i64.into(), ints(&[-1, 4]).into()])),
        one("flatten", &[S(0), S(1)], |x| x.reshape(&[-1])),
        one("expand", &[S(0)], |x| x.call("aten.expand.default", [ints(&[2, 5]).into()])),
        one("squeeze", &[S(0), S(1)], |x| x.call("aten.squeeze.dim", [0i64.into()])),
        one("unfold", &[S(0)], |x| x.call("aten.unfold.default", [0i64.into(), 3i64.into(), 2i64.into()])),
        one("diagonal", &[S(0), S(1)], |x| x.call("aten.diagonal.default", [1i64.into()])),
        one("glu", &[S(0)], |x| x.call("aten.glu.default", [0i64.into()])),
        one("view_as_complex", &[S(0), S(1)], |x| {
            x.call("aten.view_as_complex.default", []).call("aten.view_as_real.default", [])
        }),
        one("pixel shuffle", &[Is(1), S(0), Is(2), S(1)], |x| {
            x.call("aten.pixel_shuffle.default", [2i64.into()])
        }),
        one("chunk", &[S(0)], |x| {
            let parts = x.call_all("aten.chunk.default", [3i64.into()]);
            parts.into_iter().map(Var::sum).reduce(|a, b| a + 2.0 * b).unwrap_or(x)
        }),
        one("tensor_split", &[S(0)], |x| {
            let parts = x.call_all("aten.tensor_split.sections", [3i64.into()]);
            parts.into_iter().map(Var::sum).reduce(|a, b| a + 2.0 * b).unwrap_or(x)
        }),
        one("split by sizes", &[S(0)], |x| {
            let parts = x.call_all("aten.split_with_sizes.default", [ints(&[2, 3]).into()]);
            parts.into_iter().map(Var::sum).reduce(|a, b| a + 2.0 * b).unwrap_or(x)
        }),
        one("roll", &[S(0)], |x| x.call("aten.roll.default", [ints(&[3]).into(), ints(&[0]).into()])),
        one("flip", &[S(0)], |x| x.call("aten.flip.default", [ints(&[0]).into()])),
        one("diff", &[S(0)], |x| x.call("aten.diff.default", [])),
        one("reflection pad", &[Is(1), S(0)], |x| {
            x.call("aten.reflection_pad1d.default", [ints(&[2, 1]).into()])
        }),
        one("replication pad", &[Is(1), S(0)], |x| {
            x.call("aten.replication_pad1d.default", [ints(&[2, 1]).into()])
        }),
        one("cut", &[S(0)], |x| x.call("aten.constant_pad_nd.default", [ints(&[-2, -1]).into()])),
        one("max pool", &[Is(1), S(0), S(1)], |x| x.call("aten.max_pool1d.default", [ints(&[3]).into()])),
        one("avg pool", &[Is(1), S(0), S(1)], |x| x.call("aten.avg_pool1d.default", [ints(&[2]).into()])),
        one("adaptive pool", &[Is(1), S(0), S(1)], |x| {
            x.call("aten.adaptive_avg_pool1d.default", [ints(&[2]).into()])
        }),
        one("inverse", &[S(0), S(1)], |x| x.call("aten.tril.default", [])),
        one("trace of squares", &[S(0), S(1)], |x| x.matmul(x)),
    ]);
}

#[test]
fn reductions_of_nothing_and_of_one() {
    judge(vec![
        one("sum", &[S(0), S(1)], |x| x.sum_dims(&[1], false)),
        one("mean", &[S(0), S(1)], |x| x.call("aten.mean.dim", [ints(&[1]).into()])),
        one("mean of all", &[S(0), S(1)], |x| x.mean()),
        one("prod", &[S(0), S(1)], |x| x.call("aten.prod.dim_int", [1i64.into()])),
        one("var", &[S(0), S(1)], |x| x.call("aten.var.correction", [ints(&[1]).into()])),
        one("std of all", &[S(0)], |x| x.call("aten.std.default", [])),
        one("amax", &[S(0), S(1)], |x| x.call("aten.amax.default", [ints(&[1]).into()])),
        one("amin of all", &[S(0)], |x| x.call("aten.amin.default", [])),
        one("max", &[S(0), S(1)], |x| x.call("aten.max.dim", [0i64.into()])),
        one("argmax", &[S(0), S(1)], |x| x.call("aten.argmax.default", [1i64.into()])),
        one("argmin of all", &[S(0)], |x| x.call("aten.argmin.default", [])),
        one("median", &[S(0)], |x| x.call("aten.median.default", [])),
        one("mode", &[S(0), S(1)], |x| x.call("aten.mode.default", [])),
        one("topk", &[S(0)], |x| x.call("aten.topk.default", [3i64.into()])),
        one("kthvalue", &[S(0)], |x| x.call("aten.kthvalue.default", [2i64.into()])),
        one("sort", &[S(0), S(1)], |x| x.call("aten.sort.default", [1i64.into()])),
        one("softmax", &[S(0), S(1)], |x| x.softmax(1)),
        one("log_softmax", &[S(0), S(1)], |x| x.call("aten.log_softmax.int", [0i64.into()])),
        one("logsumexp", &[S(0), S(1)], |x| x.logsumexp(&[1])),
        one("norm", &[S(0), S(1)], |x| x.call("aten.linalg_vector_norm.default", [])),
        one("cumsum", &[S(0), S(1)], |x| x.call("aten.cumsum.default", [1i64.into()])),
        one("logcumsumexp", &[S(0), S(1)], |x| x.call("aten.logcumsumexp.default", [0i64.into()])),
        one("all", &[S(0)], |x| x.call("aten.gt.Scalar", [0.0.into()]).call("aten.all.default", [])),
        one("instance norm", &[S(0), Is(2), S(1)], |x| {
            let none = || ferroflux::fx_ir::Arg::None.into();
            let flag = |b: bool| ferroflux::func::Operand::from(b);
            x.call(
                "aten.instance_norm.default",
                [none(), none(), none(), none(), flag(true), 0.1.into(), 1e-5.into(), flag(false)],
            )
        }),
        one("group norm", &[S(0), Is(4), S(1)], |x| x.call("aten.group_norm.default", [2i64.into()])),
        one("quantile", &[S(0)], |x| {
            let q = x.call("aten.new_full.default", [ints(&[2]).into(), 0.25.into()]);
            x.call("aten.quantile.default", [q.into()])
        }),
        one("trapezoid", &[S(0)], |x| x.call("aten.trapezoid.dx", [])),
    ]);
}

#[test]
fn indices_of_other_sizes() {
    judge(vec![
        indexed("index_select", &[S(0), S(1)], &[S(2)], |x, i| {
            x.call("aten.index_select.default", [0i64.into(), i.into()])
        }),
        indexed("gather", &[S(0), S(1)], &[S(2), S(3)], |x, i| {
            x.call("aten.gather.default", [0i64.into(), i.into()])
        }),
        indexed("embedding", &[S(0), S(1)], &[S(2)], |x, i| x.call("aten.embedding.default", [i.into()])),
        indexed("scatter_add", &[S(0), S(1)], &[S(2), S(3)], |x, i| {
            x.call("aten.scatter_add.default", [0i64.into(), i.into(), x.into()])
        }),
        indexed("nll_loss", &[S(0), Is(3)], &[S(1)], |x, t| x.call("aten.nll_loss_nd.default", [t.into()])),
        indexed("cross entropy", &[S(0), Is(3)], &[S(1)], |x, t| {
            x.call("aten.cross_entropy_loss.default", [t.into()])
        }),
    ]);
}

/// The call that once wrote through memory: no backend may read past the shorter operand.
#[test]
fn lengths_far_apart_are_refused() {
    let case = two("add", &[S(0)], &[S(1)], |x, y| x + y);
    for backend in BACKENDS {
        let f = case.f.compile(&case.types(), &options(backend)).unwrap();
        for values in [[50_000_000, 3], [5, 3], [1, 3], [3, 1]] {
            let error = f.call(&case.tensors(&values)).expect_err("the sizes do not fit");
            assert!(matches!(error, Error::Guard { .. }), "{backend}: {error}");
            let text = error.to_string();
            assert!(text.contains("sizes n and m do not broadcast") && text.contains("`n` is"), "{text}");
        }
        assert!(f.call(&case.tensors(&[4, 4])).is_ok());
    }
}

/// Gradients keep the guards of what they differentiate, and their own sizes agree.
#[test]
fn transforms_keep_guards() {
    let f = func::of(|[x, y]| (x.matmul(y) + 1.0).sum());
    let case = Case {
        name: "gradient of a product",
        f: func::grad_of(&f, &[0, 1]),
        arguments: vec![(DType::F32, vec![Is(2), S(0)]), (DType::F32, vec![S(1), Is(2)])],
    };
    let added = func::of(|[x, y]| (x + y).sum());
    let sum = Case {
        name: "gradient of a sum",
        f: func::grad_of(&added, &[0, 1]),
        arguments: vec![(DType::F32, vec![S(0)]), (DType::F32, vec![S(1)])],
    };
    judge(vec![case, sum]);
}

/// A program of the archive of guarded ones, and what PyTorch answers.
struct Guarded {
    name: String,
    program: Program,
    /// Inputs of each call, and the outputs; none where PyTorch raises.
    calls: Vec<(Vec<Tensor>, Vec<Tensor>)>,
}

fn guarded_programs() -> Vec<Guarded> {
    let mut zip = testing::cases::Cases::open(&testing::cases::data("guards/guards.zip")).unwrap();
    let names = zip.names();
    let folder = tempfile::tempdir().unwrap();
    let mut one = |name: String| {
        let file = folder.path().join(format!("{name}.pt2"));
        std::fs::write(&file, zip.archive(&name).unwrap()).unwrap();
        let answers = zip.golden(&name).unwrap();
        let list = |k: usize, what: &str| -> Vec<Tensor> {
            (0..).map_while(|i| answers.tensors.get(&format!("s{k}.{what}{i}")).cloned()).collect()
        };
        let calls =
            (0..).map(|k| (list(k, "in"), list(k, "out"))).take_while(|(inputs, _)| !inputs.is_empty());
        Guarded { program: Program::load(&file).unwrap(), calls: calls.collect(), name }
    };
    names.into_iter().map(&mut one).collect()
}

/// Calls that PyTorch answers and a program of fixed ranks does not: they are refused.
const REFUSED: &[(&str, usize)] = &[("squeeze", 1)];

#[test]
fn archives_answer_as_pytorch_or_refuse() {
    let mut problems = Vec::new();
    for case in guarded_programs() {
        for backend in BACKENDS {
            let compiled = case.program.compile(&options(backend)).unwrap();
            for (k, (inputs, wanted)) in case.calls.iter().enumerate() {
                let got = compiled.call(inputs);
                let refused = wanted.is_empty() || REFUSED.contains(&(case.name.as_str(), k));
                let fits = match &got {
                    Ok(got) => {
                        !refused
                            && got.len() == wanted.len()
                            && got.iter().zip(wanted).all(|(a, b)| same(a, b))
                    }
                    Err(Error::Guard { .. } | Error::Input { .. } | Error::Backend(_)) => refused,
                    Err(_) => false,
                };
                if !fits {
                    let sizes: Vec<&[usize]> = inputs.iter().map(Tensor::sizes).collect();
                    let got = got.map_err(|e| e.to_string());
                    problems.push(format!("{} on {backend}, {sizes:?}: {got:?}, not {wanted:?}", case.name));
                }
            }
        }
    }
    assert!(problems.is_empty(), "{} problems:\n{}", problems.len(), problems.join("\n"));
}

/// Batches, rows and channels of 0 and 1: layers of networks.
#[test]
fn layers_of_no_batch_and_of_one() {
    let image = [S(0), Is(4), Is(6), Is(6)];
    let weight = [Is(4), Is(4), Is(3), Is(3)];
    let rows = [S(0), S(1)];
    judge(vec![
        two("conv2d", &image, &weight, |x, w| x.call("aten.conv2d.default", [w.into()])),
        two("strided conv2d", &image, &weight, |x, w| {
            x.call(
                "aten.conv2d.default",
                [w.into(), ferroflux::fx_ir::Arg::None.into(), ints(&[2, 2]).into(), ints(&[1, 1]).into()],
            )
        }),
        two("conv_transpose2d", &image, &weight, |x, w| x.call("aten.conv_transpose2d.input", [w.into()])),
        two("conv1d of symbolic length", &[S(0), Is(2), S(1)], &[Is(3), Is(2), Is(3)], |x, w| {
            x.call("aten.conv1d.default", [w.into()])
        }),
        two("linear of rows", &rows, &[Is(3), S(1)], |x, w| x.call("aten.linear.default", [w.into()])),
        two("addmm of none", &[S(0), S(1)], &[S(1), Is(2)], |x, y| x.matmul(y).relu()),
        two("bmm of batches", &[S(0), Is(2), S(1)], &[S(0), S(1), Is(3)], |x, y| x.matmul(y)),
        one("max_pool2d", &image, |x| x.call("aten.max_pool2d.default", [ints(&[2, 2]).into()])),
        one("avg_pool2d", &image, |x| x.call("aten.avg_pool2d.default", [ints(&[2, 2]).into()])),
        one("adaptive_avg_pool2d", &image, |x| {
            x.call("aten.adaptive_avg_pool2d.default", [ints(&[1, 1]).into()])
        }),
        one("upsample nearest", &image, |x| {
            x.call("aten.upsample_nearest2d.default", [ints(&[12, 12]).into()])
        }),
        one("group norm", &image, |x| x.call("aten.group_norm.default", [2i64.into()])),
        one("layer norm of rows", &[S(0), Is(5)], |x| x.call("aten.layer_norm.default", [ints(&[5]).into()])),
        one("softmax of rows", &rows, |x| x.softmax(-1)),
        one("attention of nothing", &[S(0), Is(2), S(1), Is(4)], |x| {
            x.call("aten.scaled_dot_product_attention.default", [x.into(), x.into()])
        }),
        one("gelu", &rows, |x| x.gelu()),
        one("transpose", &rows, |x| x.transpose(0, 1) + 1.0),
        one("pixel unshuffle", &[S(0), Is(1), Is(4), Is(4)], |x| {
            x.call("aten.pixel_unshuffle.default", [2i64.into()])
        }),
        one("pad", &rows, |x| {
            x.call("aten.constant_pad_nd.default", [ints(&[1, 2, 0, 1]).into(), 0.5.into()])
        }),
        one("repeat", &rows, |x| x.call("aten.repeat.default", [ints(&[2, 3]).into()])),
        one("triu", &rows, |x| x.call("aten.triu.default", [1i64.into()])),
        one("stack of rows", &rows, |x| {
            x.call("aten.unsqueeze.default", [0i64.into()]).sum_dims(&[0, 1], true)
        }),
        one("cumprod", &rows, |x| x.call("aten.cumprod.default", [1i64.into()])),
        one("count_nonzero", &rows, |x| x.call("aten.count_nonzero.default", [])),
        one("any", &rows, |x| x.call("aten.gt.Scalar", [0.0.into()]).call("aten.any.dim", [1i64.into()])),
        one("mean of a channel", &image, |x| x.call("aten.mean.dim", [ints(&[0, 2, 3]).into(), true.into()])),
        one("var_mean", &rows, |x| x.call("aten.var_mean.correction", [ints(&[0]).into()])),
        one("normalize", &rows, |x| {
            x.call("aten.linalg_vector_norm.default", [2.0.into(), ints(&[1]).into(), true.into()])
        }),
        // Without rows there is nothing to take from, and the mask is false everywhere.
        one("masked_scatter", &rows, |x| {
            let sums = x.sum_dims(&[0], false);
            let mask = sums.call("aten.gt.Scalar", [0.0.into()]);
            sums.call("aten.masked_scatter.default", [mask.into(), x.into()])
        }),
        one("argsort", &rows, |x| x.call("aten.argsort.default", [1i64.into()])),
        one("bucket of quarters", &rows, |x| {
            x.call("aten.floor.default", []).call("aten.clamp.default", [(-1.0).into(), 1.0.into()])
        }),
        one("logsoftmax of columns", &rows, |x| x.call("aten.log_softmax.int", [0i64.into()])),
        one("sum of squares of images", &image, |x| {
            x.call("aten.sum.dim_IntList", [ints(&[2, 3]).into()]).square()
        }),
    ]);
}
