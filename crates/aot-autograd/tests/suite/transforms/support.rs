//! Graphs of calls, values, comparison.

use fx_ir::{Arg, Graph, InputKind, OriginId, Output, OutputKind, ValueId, ValueType};
use ir_core::{DType, SymExpr, TensorMeta};
use prims::Builder;
use tensor::{Complex, Tensor};

/// The type of a tensor.
pub(crate) fn type_of(t: &Tensor) -> ValueType {
    let sizes = t.sizes().iter().map(|&s| SymExpr::from_i64(s as i64));
    ValueType::Tensor(TensorMeta::contiguous(t.dtype(), sizes))
}

/// A function of tensors like these; placeholder n is value n.
pub(crate) fn function(
    inputs: &[Tensor],
    make: impl FnOnce(&mut Builder<'_>, &[ValueId]) -> Result<Vec<ValueId>, prims::OpError>,
) -> Graph {
    let mut graph = Graph::new("function");
    let mut values = Vec::new();
    for (n, t) in inputs.iter().enumerate() {
        values.push(graph.placeholder(InputKind::User, format!("in{n}"), &format!("in{n}"), type_of(t)));
    }
    let outs = make(&mut Builder::new(&mut graph, "out", OriginId(0)), &values).unwrap();
    graph.outputs = outs.into_iter().map(|v| Output { kind: OutputKind::User, arg: Arg::Value(v) }).collect();
    graph
}

/// Runs a graph that must be well formed.
pub(crate) fn run(graph: &Graph, inputs: &[Tensor]) -> Vec<Tensor> {
    fx_ir::well_formed(graph).unwrap_or_else(|e| panic!("{e:?}\n{graph}"));
    interp::run(graph, inputs).unwrap_or_else(|e| panic!("{e}\n{graph}"))
}

/// Elements, as complex numbers.
pub(crate) fn values(t: &Tensor) -> Vec<Complex<f64>> {
    t.iter_complex().collect()
}

/// Whether tensors are equal within `atol + rtol * |b|`; `NaN` equals `NaN`, infinities themselves.
pub(crate) fn close(a: &Tensor, b: &Tensor, atol: f64, rtol: f64) -> bool {
    let near =
        |x: f64, y: f64| x == y || (x.is_nan() && y.is_nan()) || (x - y).abs() <= atol + rtol * y.abs();
    a.dtype() == b.dtype()
        && a.sizes() == b.sizes()
        && values(a).into_iter().zip(values(b)).all(|(x, y)| near(x.re, y.re) && near(x.im, y.im))
}

/// A tensor of doubles in `[offset - scale, offset + scale)`.
pub(crate) fn doubles(name: &str, sizes: &[usize], scale: f32, offset: f32) -> Tensor {
    tensor::formula::fill(name, sizes, scale, offset).unwrap().to_dtype(DType::F64).unwrap()
}

/// Doubles as a tensor.
pub(crate) fn tensor(list: Vec<f64>, sizes: &[usize]) -> Tensor {
    Tensor::from_vec(list, sizes).unwrap()
}

/// Tensors of one shape and dtype along a new first dimension.
pub(crate) fn stacked(parts: &[Tensor]) -> Tensor {
    let sizes: Vec<usize> = std::iter::once(parts.len()).chain(parts[0].sizes().iter().copied()).collect();
    let mut out = Tensor::empty(parts[0].dtype(), &sizes).unwrap();
    for (n, part) in parts.iter().enumerate() {
        let mut at = vec![0; sizes.len()];
        at[0] = n;
        for element in part.iter() {
            out.set(&at, element).unwrap();
            for d in (1..sizes.len()).rev() {
                at[d] += 1;
                if at[d] < sizes[d] {
                    break;
                }
                at[d] = 0;
            }
        }
    }
    out
}

/// Element `n` of the first dimension.
pub(crate) fn part(t: &Tensor, n: usize) -> Tensor {
    t.select(0, n).unwrap().contiguous().unwrap()
}
