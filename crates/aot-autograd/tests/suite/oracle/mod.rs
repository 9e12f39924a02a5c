//! A slow executor for both dialects, with storages and strides: captured programs really share memory, functional
//! ones never do. Only the operators that the tests use; independent of the operator table.

use std::cell::RefCell;
use std::rc::Rc;

use fx_ir::{Arg, Graph, NodeKind, OutputKind, ValueId};
use ir_core::{EntityId, SymExpr, TensorMeta};

/// A strided tensor of float64 on a shared storage.
#[derive(Clone, Debug)]
pub(crate) struct T {
    pub(crate) storage: Rc<RefCell<Vec<f64>>>,
    pub(crate) sizes: Vec<usize>,
    pub(crate) strides: Vec<usize>,
    pub(crate) offset: usize,
}

impl T {
    pub(crate) fn new(sizes: &[usize], data: Vec<f64>) -> T {
        T { storage: Rc::new(RefCell::new(data)), sizes: sizes.into(), strides: row_major(sizes), offset: 0 }
    }
    fn places(&self) -> Vec<usize> {
        let mut places = vec![self.offset];
        for (size, stride) in self.sizes.iter().zip(&self.strides) {
            places = places.iter().flat_map(|p| (0..*size).map(move |i| p + i * stride)).collect();
        }
        places
    }
    pub(crate) fn data(&self) -> Vec<f64> {
        let storage = self.storage.borrow();
        self.places().into_iter().map(|p| storage[p]).collect()
    }
    fn write(&self, data: &[f64]) {
        let mut storage = self.storage.borrow_mut();
        self.places().into_iter().zip(data).for_each(|(p, x)| storage[p] = *x);
    }
    fn copy(&self) -> T {
        T::new(&self.sizes, self.data())
    }
    fn expand(&self, sizes: &[usize]) -> T {
        let skip = sizes.len() - self.sizes.len();
        let stride = |d: usize| match d.checked_sub(skip) {
            Some(d) if self.sizes[d] != 1 => self.strides[d],
            _ => 0,
        };
        T { sizes: sizes.into(), strides: (0..sizes.len()).map(stride).collect(), ..self.clone() }
    }
    /// A view where the elements are at equal distances, else a copy. (PyTorch also finds views that only split.)
    fn reshape(&self, sizes: &[usize]) -> T {
        let places = self.places();
        let step = if places.len() > 1 { places[1].wrapping_sub(places[0]) } else { 1 };
        let even = places.windows(2).all(|p| p[1].wrapping_sub(p[0]) == step);
        if !even {
            let copy = self.copy();
            return T { sizes: sizes.into(), strides: row_major(sizes), ..copy };
        }
        T {
            sizes: sizes.into(),
            strides: row_major(sizes).iter().map(|s| s * step).collect(),
            ..self.clone()
        }
    }
    pub(crate) fn meta(&self) -> TensorMeta {
        let exprs = |x: &[usize]| x.iter().map(|&i| SymExpr::from_i64(i as i64)).collect();
        TensorMeta {
            sizes: exprs(&self.sizes),
            strides: exprs(&self.strides),
            offset: SymExpr::from_i64(self.offset as i64),
            ..TensorMeta::contiguous(ir_core::DType::F64, [])
        }
    }
}

fn row_major(sizes: &[usize]) -> Vec<usize> {
    (0..sizes.len()).map(|d| sizes[d + 1..].iter().product::<usize>().max(1)).collect()
}

/// What a graph gives: user results, then the last contents of what it wrote, by name.
pub(crate) fn run(graph: &Graph, inputs: &[T], pure: bool) -> (Vec<T>, Vec<(String, Vec<f64>)>) {
    let mut values: Vec<Option<T>> = vec![None; graph.values.len()];
    let mut rest = inputs.iter();
    for (_, node) in graph.iter() {
        match &node.kind {
            NodeKind::Placeholder { .. } => values[node.outputs[0].index()] = rest.next().cloned(),
            NodeKind::Call { target, args } => {
                let outs = match args.iter().any(|a| matches!(a, Arg::Graph(_))) {
                    true => cond(graph, args, &values, pure),
                    false => call(target, args, &values, pure),
                };
                assert!(outs.len() >= node.outputs.len(), "{target} gives {} values", outs.len());
                for (&v, out) in node.outputs.iter().zip(outs) {
                    let meta = graph.meta(v).expect("a tensor");
                    assert_eq!(meta.static_sizes(), out.meta().static_sizes(), "meta of {target}");
                    values[v.index()] = Some(out);
                }
            }
        }
    }
    let (mut results, mut written) = (Vec::new(), Vec::new());
    for output in &graph.outputs {
        let Arg::Value(v) = &output.arg else { panic!("results are values") };
        let value = values[v.index()].clone().expect("defined");
        match &output.kind {
            OutputKind::BufferMutation(name) | OutputKind::InputMutation(name) => {
                written.push((name.clone(), value.data()));
            }
            _ => results.push(value),
        }
    }
    (results, written)
}

/// Runs one operator on tensors; the n-th value among the arguments is the n-th tensor. Writes really happen.
#[allow(dead_code)] // not every test builds programs
pub(crate) fn probe(target: &str, args: &[Arg], tensors: &[T]) -> Vec<T> {
    let values: Vec<Option<T>> = tensors.iter().cloned().map(Some).collect();
    call(target, args, &values, false)
}

/// The first branch where the predicate is not zero.
fn cond(graph: &Graph, args: &[Arg], values: &[Option<T>], pure: bool) -> Vec<T> {
    let [Arg::Value(p), Arg::Graph(yes), Arg::Graph(no), Arg::List(operands)] = args else { panic!("cond") };
    let taken = value(values, *p).data()[0] != 0.0;
    let operands: Vec<T> = operands.iter().map(|a| tensor(a, values)).collect();
    run(&graph.subgraphs[if taken { *yes } else { *no }], &operands, pure).0.iter().map(T::copy).collect()
}

fn value(values: &[Option<T>], v: ValueId) -> T {
    values[v.index()].clone().expect("defined")
}

fn tensor(arg: &Arg, values: &[Option<T>]) -> T {
    match arg {
        Arg::Value(v) => value(values, *v),
        other => panic!("{other:?} is no tensor"),
    }
}

fn ints(arg: &Arg) -> Vec<i64> {
    match arg {
        Arg::List(items) => items.iter().flat_map(ints).collect(),
        Arg::Int(e) => vec![e.as_const().expect("a number")],
        Arg::None => vec![],
        other => panic!("{other:?} is no integer"),
    }
}

fn call(target: &str, args: &[Arg], values: &[Option<T>], pure: bool) -> Vec<T> {
    let name = target.split('.').nth(1).expect("a name");
    let int = |n: usize| ints(&args[n])[0];
    // A pure operand is a value: nothing of its memory shows.
    let operand = |n: usize| {
        let t = tensor(&args[n], values);
        if pure { t.copy() } else { t }
    };
    let x = operand(0);
    let second = |n: usize| match &args[n] {
        Arg::Value(_) => operand(n).expand(&x.sizes).data(),
        number => vec![number.as_scalar().expect("a number").as_f64(); x.data().len()],
    };
    let zip =
        |f: &dyn Fn(f64, f64) -> f64| x.data().into_iter().zip(second(1)).map(|(a, b)| f(a, b)).collect();
    let computed: Option<Vec<f64>> = match name.strip_suffix('_').unwrap_or(name) {
        "add" => Some(zip(&|a, b| a + b)),
        "mul" => Some(zip(&|a, b| a * b)),
        "relu" => Some(x.data().into_iter().map(|a| a.max(0.0)).collect()),
        "copy" | "fill" => Some(zip(&|_, b| b)),
        _ => None,
    };
    if let Some(data) = computed {
        if !name.ends_with('_') {
            return vec![T::new(&x.sizes, data)];
        }
        assert!(!pure, "{target} in a functional graph");
        x.write(&data);
        return vec![x];
    }
    if let Some(base) = name.strip_suffix("_scatter") {
        let (whole, part) = (x.copy(), operand(1));
        let mut rest = vec![args[0].clone()];
        rest.extend_from_slice(&args[2..]);
        let target = view(base, &whole, &rest, &int_of(&rest)).remove(0);
        assert_eq!(target.sizes, part.sizes, "{name}");
        target.write(&part.data());
        return vec![whole];
    }
    view(name.strip_suffix('_').unwrap_or(name), &x, args, &int)
}

fn int_of(args: &[Arg]) -> impl Fn(usize) -> i64 + '_ {
    |n| ints(&args[n])[0]
}

fn slice(x: &T, d: usize, start: usize, length: usize, step: usize) -> T {
    let mut y = x.clone();
    y.offset += start * x.strides[d];
    (y.sizes[d], y.strides[d]) = (length, x.strides[d] * step);
    y
}

fn view(name: &str, x: &T, args: &[Arg], int: &dyn Fn(usize) -> i64) -> Vec<T> {
    let rank = x.sizes.len() as i64;
    let dim = |n: usize, rank: i64| (if int(n) < 0 { int(n) + rank } else { int(n) }) as usize;
    let order = |dims: &[usize]| T {
        sizes: dims.iter().map(|&d| x.sizes[d]).collect(),
        strides: dims.iter().map(|&d| x.strides[d]).collect(),
        ..x.clone()
    };
    vec![match name {
        "detach" | "alias" | "contiguous" => x.clone(),
        "view" | "reshape" => x.reshape(&ints(&args[1]).iter().map(|&i| i as usize).collect::<Vec<_>>()),
        "t" => order(&[1, 0]),
        "transpose" => {
            let mut dims: Vec<usize> = (0..x.sizes.len()).collect();
            dims.swap(dim(1, rank), dim(2, rank));
            order(&dims)
        }
        "permute" => order(&ints(&args[1]).iter().map(|&d| d as usize).collect::<Vec<_>>()),
        "unsqueeze" => {
            let mut y = x.clone();
            let d = dim(1, rank + 1);
            y.sizes.insert(d, 1);
            y.strides.insert(d, 1);
            y
        }
        "squeeze" => {
            let mut y = x.clone();
            let d = dim(1, rank);
            assert_eq!(y.sizes.remove(d), 1);
            y.strides.remove(d);
            y
        }
        "select" => {
            let d = dim(1, rank);
            let i = if int(2) < 0 { int(2) + x.sizes[d] as i64 } else { int(2) };
            let mut y = slice(x, d, i as usize, 1, 1);
            y.sizes.remove(d);
            y.strides.remove(d);
            y
        }
        "slice" => {
            let d = dim(1, rank);
            let (start, end, step) = (int(2) as usize, (int(3) as usize).min(x.sizes[d]), int(4) as usize);
            slice(x, d, start, (end - start).div_ceil(step), step)
        }
        "narrow" => slice(x, dim(1, rank), int(2) as usize, int(3) as usize, 1),
        "diagonal" => {
            let (a, b) = (dim(2, rank), dim(3, rank));
            let (down, right) = (-int(1).min(0) as usize, int(1).max(0) as usize);
            let mut y = x.clone();
            y.offset += down * x.strides[a] + right * x.strides[b];
            let length = (x.sizes[a] - down).min(x.sizes[b] - right);
            for d in [a.max(b), a.min(b)] {
                y.sizes.remove(d);
                y.strides.remove(d);
            }
            y.sizes.push(length);
            y.strides.push(x.strides[a] + x.strides[b]);
            y
        }
        "as_strided" => {
            let list = |n: usize| ints(&args[n]).iter().map(|&i| i as usize).collect();
            let offset = ints(&args[3]).first().map_or(x.offset, |&o| o as usize);
            T { sizes: list(1), strides: list(2), offset, ..x.clone() }
        }
        "split" => {
            let (d, step) = (dim(2, rank), int(1) as usize);
            return (0..x.sizes[d])
                .step_by(step)
                .map(|s| slice(x, d, s, step.min(x.sizes[d] - s), 1))
                .collect();
        }
        "unbind" => {
            let d = dim(1, rank);
            let item = |i: usize| {
                view("select", x, &[args[0].clone(), Arg::int(d as i64), Arg::int(i as i64)], &|n| {
                    [0, d as i64, i as i64][n]
                })
            };
            return (0..x.sizes[d]).flat_map(item).collect();
        }
        other => panic!("the oracle has no `{other}`"),
    }]
}
