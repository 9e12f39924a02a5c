//! Helpers of the tests next to the rules: a program before and after a pass, run by the interpreter both times.

#![allow(clippy::unwrap_used)] // a failing test may panic

use fx_ir::Graph;
use tensor::Tensor;

use super::{PassCx, Stats};

type Run = fn(&mut Graph, &PassCx) -> Stats;

/// A graph of these lines.
pub(crate) fn graph(body: &str) -> Graph {
    let graph: Graph = format!("fx 1.0\n\ngraph \"g\" {{\n{body}\n}}\n").parse().unwrap();
    fx_ir::well_formed(&graph).unwrap();
    graph
}

/// The pass gives these calls in this order, and the same values (to rounding where it folds weights).
pub(crate) fn changes(run: Run, cx: &PassCx, body: &str, expected: &str) {
    let before = graph(body);
    let mut after = before.clone();
    let stats = run(&mut after, cx);
    super::dead::run(&mut after, cx);
    fx_ir::well_formed(&after).unwrap_or_else(|e| panic!("{}\n{after}", e[0]));
    let calls: Vec<&str> = after.iter().filter_map(|(_, n)| Some(n.as_call()?.0)).collect();
    assert_eq!(calls.join(" "), expected, "{after}");
    assert!(stats.changed > 0, "{after}");
    for (a, b) in evaluate(&before).iter().zip(&evaluate(&after)) {
        assert_eq!(a.sizes(), b.sizes(), "{after}");
        // Results of 16 bits are rounded at each operator before, and may be rounded once after.
        let most = if a.dtype().compute() == a.dtype() { 1e-5 } else { 1e-2 };
        for (x, y) in a.iter_f64().zip(b.iter_f64()) {
            let close = (x - y).abs() <= most * x.abs().max(1.0) || (x.is_nan() && y.is_nan()) || x == y;
            assert!(close, "{x} {y}\n{before}\n{after}");
        }
    }
}

/// The pass leaves the graph as it is.
pub(crate) fn assert_unchanged(run: Run, cx: &PassCx, body: &str) {
    let before = graph(body);
    let mut after = before.clone();
    run(&mut after, cx);
    assert_eq!(before.to_string(), after.to_string());
}

/// The outputs for inputs that a formula gives.
pub(crate) fn evaluate(graph: &Graph) -> Vec<Tensor> {
    let given = graph.inputs().map(|(v, _, name)| {
        let meta = graph.meta(v).unwrap();
        let sizes: Vec<usize> = meta.static_sizes().unwrap().iter().map(|&s| s as usize).collect();
        let salt = name.bytes().map(u64::from).sum::<u64>();
        let at = |i: usize| ((i as u64 * 37 + salt * 11) % 23) as f64 / 7.0 - 1.5;
        let data: Vec<f64> = (0..sizes.iter().product()).map(at).collect();
        Tensor::from_vec(data, &sizes).unwrap().to_dtype(meta.dtype).unwrap()
    });
    interp::run(graph, &given.collect::<Vec<_>>()).unwrap()
}
