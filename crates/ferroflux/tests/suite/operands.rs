//! No operator panics, whatever its operands are: each call of the golden corpus (where it is next to the project) is
//! decomposed and lowered again with operands of other ranks, sizes and dtypes, numbers at the ends of their range, and
//! lists that are too short or too long. A typed refusal is as good as an answer here: nothing runs.
//!
//! `FERROFLUX_OPERANDS=all` takes every case of the corpus instead of some of each operator.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};

use fx_ir::{Arg, Graph, InputKind, OriginId, Output, OutputKind, ValueId, ValueType};
use ir_core::{DType, EntityId, Scalar, SymExpr, TensorMeta};

/// Cases of an operator that are taken.
const CASES: usize = 2;

const NUMBERS: [i64; 8] = [-1, 0, 1, 7, -100, 1 << 31, i64::MAX, i64::MIN];
const SIZES: [&[i64]; 9] =
    [&[], &[0], &[3], &[2, 3], &[0, 4], &[2, 3, 4], &[1, 2, 3, 4], &[2, 2, 3, 4, 2], &[1, 1, 1, 1, 1, 1]];
const DTYPES: [DType; 5] = [DType::Bool, DType::I64, DType::U8, DType::F32, DType::C64];

/// A call with operands of its own, in a graph that holds nothing else.
#[derive(Clone)]
struct Case {
    target: String,
    args: Vec<Arg>,
    types: Vec<ValueType>,
}

impl Case {
    fn of(graph: &Graph, target: &str, args: &[Arg]) -> Case {
        let (mut args, mut types) = (args.to_vec(), Vec::new());
        for arg in &mut args {
            arg.for_each_value_mut(&mut |v| {
                types.push(graph.values[*v].ty.clone());
                *v = ValueId::from_index(types.len() - 1);
            });
        }
        Case { target: target.to_owned(), args, types }
    }

    /// Decomposes the call and makes kernels of it.
    fn compile(&self) {
        let mut graph = Graph::new("operands");
        for (n, ty) in self.types.iter().enumerate() {
            graph.placeholder(InputKind::User, "operand", &format!("x{n}"), ty.clone());
        }
        let mut builder = prims::Builder::new(&mut graph, "call", OriginId::from_index(0));
        let Ok(outs) = prims::decompose_call(&mut builder, &self.target, self.args.clone()) else { return };
        graph.outputs =
            outs.into_iter().map(|v| Output { kind: OutputKind::User, arg: Arg::Value(v) }).collect();
        drop(inductor::compile(&graph, &inductor::Options::default()));
    }

    /// The same call with one thing changed, in every way.
    fn changed(&self) -> Vec<Case> {
        let mut all = Vec::new();
        for (n, arg) in self.args.iter().enumerate() {
            for other in others(arg) {
                let mut case = self.clone();
                case.args[n] = other;
                all.push(case);
            }
        }
        for (n, ty) in self.types.iter().enumerate() {
            let Some(meta) = ty.as_tensor() else { continue };
            for other in metas(meta) {
                let mut case = self.clone();
                case.types[n] = ValueType::Tensor(other);
                all.push(case);
            }
        }
        all
    }
}

/// What may be in the place of an argument.
fn others(arg: &Arg) -> Vec<Arg> {
    let mut all = vec![Arg::None];
    match arg {
        Arg::Int(_) => all.extend(NUMBERS.map(Arg::int)),
        Arg::Scalar(_) => {
            all.extend([f64::NAN, f64::INFINITY, -1.0, 0.0].map(|x| Arg::Scalar(Scalar::Float(x))))
        }
        Arg::Str(_) => all.push("nonsense".into()),
        Arg::List(items) => {
            all.push(Arg::List(Vec::new()));
            all.push(Arg::List(items[..items.len().saturating_sub(1)].to_vec()));
            all.push(Arg::List(items.iter().chain(items.first()).cloned().collect()));
            for (n, item) in items.iter().enumerate() {
                all.extend(others(item).into_iter().map(|other| {
                    let mut items = items.clone();
                    items[n] = other;
                    Arg::List(items)
                }));
            }
        }
        _ => {}
    }
    all
}

/// Other tensors.
fn metas(meta: &TensorMeta) -> Vec<TensorMeta> {
    let of = |sizes: Vec<i64>| TensorMeta::contiguous(meta.dtype, sizes.into_iter().map(SymExpr::from_i64));
    let mut all: Vec<TensorMeta> = SIZES.iter().map(|sizes| of(sizes.to_vec())).collect();
    all.extend(DTYPES.iter().map(|d| TensorMeta { dtype: *d, ..meta.clone() }));
    let known: Option<Vec<i64>> = meta.sizes.iter().map(SymExpr::as_const).collect();
    let Some(known) = known else { return all };
    for d in 0..known.len() {
        for to in [0, 1, known[d] + 1, 1 << 31] {
            let mut sizes = known.clone();
            sizes[d] = to;
            all.push(of(sizes));
        }
    }
    all
}

#[test]
fn no_operator_panics_on_other_operands() {
    let Some(corpus) = testing::cases::corpus() else { return };
    let mut zip = testing::cases::Cases::open(&corpus.join("ops.zip")).unwrap();
    let all = std::env::var("FERROFLUX_OPERANDS").is_ok_and(|v| v == "all");
    let (mut calls, mut taken, mut panics) = (0, BTreeMap::<String, usize>::new(), BTreeSet::new());
    for name in zip.names() {
        let archive = pt2::Archive::from_bytes(zip.archive(&name).unwrap());
        let graph = archive.and_then(|archive| archive.program(None)).unwrap().graph;
        for (_, node) in graph.iter() {
            let Some((target, args)) = node.as_call() else { continue };
            let seen = taken.entry(target.to_owned()).or_default();
            *seen += 1;
            if *seen > CASES && !all {
                continue;
            }
            for case in Case::of(&graph, target, args).changed() {
                calls += 1;
                if let Err(panic) = catch_unwind(AssertUnwindSafe(|| case.compile())) {
                    let text = panic.downcast_ref::<String>().map(String::as_str);
                    let text = text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("?");
                    panics.insert(format!("{target} ({name}): {text}: {:?} of {:?}", case.args, case.types));
                }
            }
        }
    }
    eprintln!("{calls} calls of {} operators", taken.len());
    assert!(taken.len() > 500, "only {} operators", taken.len());
    let head: Vec<&str> = panics.iter().take(10).map(String::as_str).collect();
    assert!(panics.is_empty(), "{} of {calls} calls panic:\n{}", panics.len(), head.join("\n"));
}
