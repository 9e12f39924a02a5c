//! Runs the graphs of all ranks of a mesh in step: every call by the oracle, and every exchange by looking at the operands of
//! all ranks. No threads and no engine, so that nothing but the graphs is tested.

use std::collections::HashMap;

use fx_ir::{Arg, Graph, InputKind, NodeId, NodeKind, Output, OutputKind, ValueId, ValueType};
use ir_core::{Atom, Scalar, SymExpr, SymId, TensorMeta};
use sharding::{Layout, Local, Mesh, localize};
use tensor::Tensor;

/// Values of size symbols.
pub(crate) type Symbols = HashMap<SymId, i64>;

fn number(e: &SymExpr, symbols: &Symbols) -> i64 {
    let leaf = |a: &Atom| match a {
        Atom::Sym(id) => symbols.get(id).copied(),
        _ => None,
    };
    e.eval(&leaf).unwrap_or_else(|| panic!("{e} has no value"))
}

fn numbers(sizes: &[SymExpr], symbols: &Symbols) -> Vec<usize> {
    sizes.iter().map(|e| usize::try_from(number(e, symbols)).unwrap()).collect()
}

/// A part of a tensor.
pub(crate) fn cut(whole: &Tensor, part: &sharding::Part, symbols: &Symbols) -> Tensor {
    let (sizes, offsets) = (numbers(&part.sizes, symbols), numbers(&part.offsets, symbols));
    let mut t = whole.clone();
    for d in 0..sizes.len() {
        t = match part.pieces.iter().find(|(dim, _)| *dim == d) {
            None => t.narrow(d, offsets[d], sizes[d]).unwrap(),
            Some((_, pieces)) => {
                let piece = |(first, length): &(SymExpr, SymExpr)| {
                    let (first, length) = (number(first, symbols) as usize, number(length, symbols) as usize);
                    t.narrow(d, first, length).unwrap()
                };
                joined(&pieces.iter().map(piece).collect::<Vec<_>>(), d)
            }
        };
    }
    t.copied().unwrap()
}

/// Tensors one behind the other along a dimension, by the oracle.
fn joined(parts: &[Tensor], dim: usize) -> Tensor {
    let mut graph = Graph::new("joined");
    let placed: Vec<ValueId> = parts
        .iter()
        .enumerate()
        .map(|(n, t)| {
            let sizes = t.sizes().iter().map(|s| SymExpr::from_i64(*s as i64));
            let ty = ValueType::Tensor(TensorMeta::contiguous(t.dtype(), sizes));
            graph.placeholder(InputKind::User, format!("in{n}"), &format!("in{n}"), ty)
        })
        .collect();
    let origin = graph.add_origin(Default::default());
    let args = vec![Arg::values(placed), (dim as i64).into()];
    let out = prims::Builder::new(&mut graph, "out", origin).call1("prims.cat", args).unwrap();
    graph.outputs = vec![Output { kind: OutputKind::User, arg: out.into() }];
    let parts: Vec<Tensor> = parts.iter().map(|t| t.copied().unwrap()).collect();
    interp::run(&graph, &parts).unwrap().remove(0)
}

/// The outputs of every rank, for tensors of the whole graph's placeholders by name.
pub(crate) fn run(
    graph: &Graph,
    mesh: &Mesh,
    layout: &Layout,
    inputs: &dyn Fn(&str) -> Tensor,
    symbols: &Symbols,
) -> Vec<Vec<Tensor>> {
    let locals: Vec<Local> = (0..mesh.ranks())
        .map(|rank| {
            localize(graph, mesh, layout, &mesh.coordinates(rank)).unwrap_or_else(|e| panic!("{e}\n{graph}"))
        })
        .collect();
    for local in &locals {
        fx_ir::well_formed(&local.graph).unwrap_or_else(|e| panic!("{}\n{}", e[0], local.graph));
        let shape =
            |l: &Local| l.exchanges.iter().map(|e| (e.value.clone(), e.axis, e.kind)).collect::<Vec<_>>();
        assert_eq!(shape(local), shape(&locals[0]), "ranks exchange in one order");
    }
    let mut ranks: Vec<Rank<'_>> = locals.iter().map(|l| Rank::new(l, inputs, symbols)).collect();
    while ranks.iter().any(|r| !r.is_done()) {
        ranks.iter_mut().for_each(Rank::add_exchange);
        exchange(mesh, &mut ranks);
    }
    ranks.iter().map(Rank::outputs).collect()
}

struct Rank<'a> {
    graph: &'a Graph,
    symbols: &'a Symbols,
    values: HashMap<ValueId, Tensor>,
    next: usize,
}

impl<'a> Rank<'a> {
    fn new(local: &'a Local, inputs: &dyn Fn(&str) -> Tensor, symbols: &'a Symbols) -> Rank<'a> {
        let mut values = HashMap::new();
        for (v, kind, name) in local.graph.inputs() {
            let whole = inputs(name);
            let own = match local.parts.get(name).filter(|_| kind != InputKind::User) {
                Some(part) => cut(&whole, part, symbols),
                None => whole,
            };
            values.insert(v, own);
        }
        Rank { graph: &local.graph, symbols, values, next: 0 }
    }

    fn is_done(&self) -> bool {
        self.next == self.graph.order.len()
    }

    fn node(&self) -> Option<(NodeId, &'a str, &'a [Arg])> {
        let id = *self.graph.order.get(self.next)?;
        match &self.graph.nodes[id].kind {
            NodeKind::Call { target, args } => Some((id, target, args)),
            NodeKind::Placeholder { .. } => Some((id, "", &[])),
        }
    }

    /// Runs calls up to the next exchange.
    fn add_exchange(&mut self) {
        while let Some((id, target, args)) = self.node() {
            if group_of(target, args).is_some() {
                return;
            }
            if !target.is_empty() {
                let outs = one_call(self.graph, id, &self.values, self.symbols);
                self.values.extend(self.graph.nodes[id].outputs.iter().copied().zip(outs));
            }
            self.next += 1;
        }
    }

    fn outputs(&self) -> Vec<Tensor> {
        let value = |o: &Output| if let Arg::Value(v) = &o.arg { Some(self.values[v].clone()) } else { None };
        self.graph.outputs.iter().filter_map(value).collect()
    }
}

/// The group of an exchange.
fn group_of<'a>(target: &str, args: &'a [Arg]) -> Option<&'a str> {
    let exchanges = ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "shift"];
    let name = target.strip_prefix("prims.")?;
    match args.last() {
        Some(Arg::Str(group)) if exchanges.contains(&name) => Some(group),
        _ => None,
    }
}

/// One call by the oracle, in a graph of its own, with numbers for sizes.
fn one_call(graph: &Graph, id: NodeId, values: &HashMap<ValueId, Tensor>, symbols: &Symbols) -> Vec<Tensor> {
    let node = &graph.nodes[id];
    let (target, args) = node.as_call().unwrap();
    let (mut small, mut inputs) = (Graph::new("call"), Vec::new());
    let args: Vec<Arg> = args.iter().map(|a| concrete(a, &mut small, &mut inputs, values, symbols)).collect();
    let types = node.outputs.iter().map(|v| {
        let meta = graph.meta(*v).unwrap();
        let sizes = meta.sizes.iter().map(|s| SymExpr::from_i64(number(s, symbols)));
        ("out", ValueType::Tensor(TensorMeta::contiguous(meta.dtype, sizes)))
    });
    let types: Vec<_> = types.collect();
    let outs = small.call(target, args, types, fx_ir::OriginId(0));
    small.outputs = outs.iter().map(|v| Output { kind: OutputKind::User, arg: (*v).into() }).collect();
    interp::run(&small, &inputs).unwrap_or_else(|e| panic!("{e}\n{small}"))
}

fn concrete(
    arg: &Arg,
    small: &mut Graph,
    inputs: &mut Vec<Tensor>,
    values: &HashMap<ValueId, Tensor>,
    symbols: &Symbols,
) -> Arg {
    match arg {
        Arg::Value(v) => {
            let t = &values[v];
            inputs.push(t.clone());
            let sizes = t.sizes().iter().map(|s| SymExpr::from_i64(*s as i64));
            let meta = ValueType::Tensor(TensorMeta::contiguous(t.dtype(), sizes));
            let name = format!("in{}", inputs.len());
            small.placeholder(InputKind::User, name.as_str(), &name, meta).into()
        }
        Arg::Int(e) => number(e, symbols).into(),
        Arg::List(items) => {
            Arg::List(items.iter().map(|a| concrete(a, small, inputs, values, symbols)).collect())
        }
        other => other.clone(),
    }
}

/// Performs the exchange at which all ranks stand.
fn exchange(mesh: &Mesh, ranks: &mut [Rank<'_>]) {
    let Some((_, target, args)) = ranks[0].node() else {
        return assert!(ranks.iter().all(Rank::is_done), "all ranks exchange as often");
    };
    let axis = mesh.axis(group_of(target, args).unwrap()).unwrap();
    let how = args.iter().find_map(|a| if let Arg::Str(how) = a { Some(&**how) } else { None }).unwrap();
    let operand = |rank: &Rank<'_>| {
        let (_, t, args) = rank.node().unwrap();
        assert_eq!(t, target, "all ranks are at one exchange");
        let Arg::Value(v) = &args[0] else { panic!("no operand") };
        rank.values[v].clone()
    };
    let all: Vec<Tensor> = ranks.iter().map(operand).collect();
    for (number, rank) in ranks.iter_mut().enumerate() {
        let group = mesh.group(axis, number);
        let own = group.iter().position(|r| *r == number).unwrap();
        let of_group: Vec<&Tensor> = group.iter().map(|r| &all[*r]).collect();
        assert!(of_group.iter().all(|t| t.sizes() == of_group[0].sizes()), "equal blocks");
        let result = match target {
            "prims.all_reduce" => combine(&of_group, how),
            "prims.all_gather" => stack(&of_group),
            "prims.reduce_scatter" => combine(&of_group, how).select(0, own).unwrap().copied().unwrap(),
            "prims.all_to_all" => {
                let parts: Vec<Tensor> = of_group.iter().map(|t| t.select(0, own).unwrap()).collect();
                stack(&parts.iter().collect::<Vec<_>>())
            }
            other => panic!("{other} is not inserted"),
        };
        let (id, ..) = rank.node().unwrap();
        rank.values.insert(rank.graph.nodes[id].outputs[0], result);
        rank.next += 1;
    }
}

fn combine(all: &[&Tensor], how: &str) -> Tensor {
    let dtype = all[0].dtype();
    let elements: Vec<Vec<Scalar>> = all.iter().map(|t| t.iter().collect()).collect();
    let of = |i: usize| -> Scalar {
        let values = elements.iter().map(|of_rank| of_rank[i]);
        let pick = |a: Scalar, b: Scalar| -> Scalar {
            if dtype.is_integral() || dtype == ir_core::DType::Bool {
                let (a, b) = (a.as_i64(), b.as_i64());
                return Scalar::Int(match how {
                    "sum" => a.wrapping_add(b),
                    "prod" => a.wrapping_mul(b),
                    "max" => a.max(b),
                    _ => a.min(b),
                });
            }
            let (a, b) = (a.as_f64(), b.as_f64());
            Scalar::Float(match how {
                "sum" => a + b,
                "prod" => a * b,
                _ if a.is_nan() || b.is_nan() => f64::NAN,
                "max" => a.max(b),
                _ => a.min(b),
            })
        };
        values.reduce(pick).unwrap()
    };
    let flat: Vec<Scalar> = (0..all[0].numel()).map(of).collect();
    let sizes = all[0].sizes();
    if dtype.is_integral() {
        return Tensor::from_vec(flat.iter().map(|s| s.as_i64()).collect(), sizes)
            .unwrap()
            .to_dtype(dtype)
            .unwrap();
    }
    Tensor::from_vec(flat.iter().map(|s| s.as_f64()).collect(), sizes).unwrap().to_dtype(dtype).unwrap()
}

/// Tensors along a new first dimension.
fn stack(all: &[&Tensor]) -> Tensor {
    let sizes: Vec<usize> = [all.len()].into_iter().chain(all[0].sizes().iter().copied()).collect();
    tensor::with_element!(all[0].dtype(), T => {
        let values = all.iter().flat_map(|t| t.to_vec::<T>().unwrap()).collect();
        Tensor::from_vec::<T>(values, &sizes).unwrap()
    })
}

/// The largest finite magnitude.
pub(crate) fn largest(t: &Tensor) -> f64 {
    t.iter_f64().filter(|x| x.is_finite()).fold(0.0, |a: f64, b| a.max(b.abs()))
}

/// Differences relative to the largest magnitude of the expected tensor, or to `scale` where that is larger; `NaN` and
/// infinities must agree.
pub(crate) fn assert_close(what: &str, got: &Tensor, expected: &Tensor, tolerance: f64, scale: f64) {
    assert_eq!((got.dtype(), got.sizes()), (expected.dtype(), expected.sizes()), "{what}");
    let largest = largest(expected).max(scale);
    for (i, (g, e)) in got.iter_f64().zip(expected.iter_f64()).enumerate() {
        let same = g == e || (g.is_nan() && e.is_nan()) || (g - e).abs() <= tolerance * largest;
        assert!(same, "{what}: element {i} is {g}, not {e} (largest {largest})");
    }
}
