//! The data of a graph's inputs and weights, a function of name, dtype and sizes alone, so that a graph's text is the
//! whole case: `…_lt5` holds integers in `0..5`, `…_wild5` some that are outside, `nan…` a NaN here and there.

use fx_ir::Graph;
use ir_core::{Atom, DType, EntityId, Scalar, SymExpr, TensorMeta};
use tensor::Tensor;

/// A size at the symbols' values.
pub fn at(e: &SymExpr, symbols: &[i64]) -> i64 {
    let leaf = |a: &Atom| match a {
        Atom::Sym(id) => symbols.get(id.index()).copied(),
        _ => None,
    };
    e.eval(&leaf).expect("sizes of placeholders are made of symbols")
}

/// A tensor for every placeholder, in order.
pub fn inputs(graph: &Graph, symbols: &[i64]) -> Vec<Tensor> {
    graph.inputs().map(|(v, _, name)| tensor_of(name, graph.meta(v).expect("a tensor"), symbols)).collect()
}

fn tensor_of(name: &str, meta: &TensorMeta, symbols: &[i64]) -> Tensor {
    let sizes: Vec<usize> = meta.sizes.iter().map(|s| at(s, symbols) as usize).collect();
    let n: usize = sizes.iter().product();
    let value = |i: usize| element(name, meta.dtype, i);
    let mut t = Tensor::zeros(DType::F64, &[n]).unwrap();
    for i in 0..n {
        t.set(&[i], Scalar::Float(value(i))).unwrap();
    }
    let t = t.to_dtype(meta.dtype).unwrap().reshape(&sizes).unwrap();
    strided(&t, meta, symbols)
}

fn element(name: &str, dtype: DType, i: usize) -> f64 {
    let u = f64::from(tensor::formula::uniform(name, i as u64));
    match dtype {
        DType::Bool => f64::from(u > 0.0),
        d if d.is_int() => match (bound_of(name, "_lt"), bound_of(name, "_wild")) {
            (Some(bound), _) => (((u + 1.0) / 2.0 * bound as f64) as i64).min(bound - 1) as f64,
            (_, Some(bound)) => wild(u, bound),
            _ => (u * 5.0).floor(),
        },
        _ if name.starts_with("nan") && i % 7 == 3 => f64::NAN,
        _ => u * 1.5,
    }
}

/// The number after a mark in a name.
fn bound_of(name: &str, mark: &str) -> Option<i64> {
    name.rsplit_once(mark).and_then(|(_, bound)| bound.parse().ok())
}

/// Mostly an index in `0..bound`; one in fifty is outside.
fn wild(u: f64, bound: i64) -> f64 {
    let outside = [-1, bound, 1_000_000_000, -bound - 1, i64::from(i32::MIN)];
    if u > 0.98 {
        return outside[((u * 1e6) as usize) % outside.len()] as f64;
    }
    ((u + 1.0) / 2.0 * bound as f64).floor().clamp(0.0, (bound - 1) as f64)
}

/// The same elements with the dimensions in the order of the meta's strides.
fn strided(t: &Tensor, meta: &TensorMeta, symbols: &[i64]) -> Tensor {
    if meta.is_contiguous() {
        return t.clone();
    }
    let mut order: Vec<usize> = (0..t.rank()).collect();
    order.sort_by_key(|&d| -at(&meta.strides[d], symbols));
    let mut back = vec![0; t.rank()];
    order.iter().enumerate().for_each(|(k, &d)| back[d] = k);
    t.permute(&order).unwrap().contiguous().unwrap().permute(&back).unwrap()
}
