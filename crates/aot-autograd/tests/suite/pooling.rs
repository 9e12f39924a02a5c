//! Max pooling and its gradient against a loop over windows in double precision: ties, `NaN`, infinities, overlapping and
//! dilated windows, windows that reach outside, strides beyond the window, one to three dimensions.

#![allow(clippy::unwrap_used)] // a failing test may panic

use aot_autograd::transform::jvp;
use aot_autograd::{JointOptions, Tangents, Wrt, joint};
use fx_ir::{Arg, Graph, InputKind, OriginId, Output, OutputKind, ValueId, ValueType};
use ir_core::{DType, SymExpr, TensorMeta};
use prims::{Builder, DecomposeCx};
use tensor::Tensor;

#[derive(Clone, Debug)]
struct Pool {
    space: Vec<usize>,
    kernel: Vec<i64>,
    stride: Vec<i64>,
    padding: Vec<i64>,
    dilation: Vec<i64>,
    ceil: bool,
}

/// Channels, each a plane of its own.
const CHANNELS: usize = 3;

impl Pool {
    fn n(&self) -> usize {
        self.space.len()
    }
    fn input(&self) -> Vec<usize> {
        [2, CHANNELS].into_iter().chain(self.space.iter().copied()).collect()
    }
    fn graph(&self, indices: bool) -> Graph {
        let mut graph = Graph::new("pool");
        let sizes = self.input().into_iter().map(|s| SymExpr::from_i64(s as i64));
        let ty = ValueType::Tensor(TensorMeta::contiguous(DType::F64, sizes));
        graph.placeholder(InputKind::User, "x", "x", ty);
        let suffix = if indices { "_with_indices" } else { "" };
        let target = format!("aten.max_pool{}d{suffix}.default", self.n());
        let lists = [&self.kernel, &self.stride, &self.padding, &self.dilation].map(|l| Arg::from(&l[..]));
        let args = [Arg::Value(ValueId(0))].into_iter().chain(lists).chain([self.ceil.into()]).collect();
        let outs = Builder::new(&mut graph, "y", OriginId(0)).call(&target, args).unwrap();
        for v in outs {
            graph.outputs.push(Output { kind: OutputKind::User, arg: Arg::Value(v) });
        }
        graph
    }
    /// The gradient from positions that were kept: what `torch.compile` captures. It has a form for memory of a device.
    fn backward(&self, device_memory: bool) -> Graph {
        let mut graph = Graph::new("pool_backward");
        let result: Vec<usize> =
            [2, CHANNELS].into_iter().chain((0..self.n()).map(|d| self.windows(d))).collect();
        let operands =
            [("g", DType::F64, result.clone()), ("x", DType::F64, self.input()), ("at", DType::I64, result)];
        let [g, x, at] = operands.map(|(name, dtype, sizes)| {
            let sizes = sizes.into_iter().map(|s| SymExpr::from_i64(s as i64));
            let ty = ValueType::Tensor(TensorMeta::contiguous(dtype, sizes));
            Arg::Value(graph.placeholder(InputKind::User, name, name, ty))
        });
        let lists = [&self.kernel, &self.stride, &self.padding, &self.dilation].map(|l| Arg::from(&l[..]));
        let args = [g, x].into_iter().chain(lists).chain([self.ceil.into(), at]).collect();
        let target = format!("aten.max_pool{}d_with_indices_backward.default", self.n());
        let mut b = Builder::new(&mut graph, "dx", OriginId(0))
            .within(DecomposeCx { device_memory, ..DecomposeCx::default() });
        let made = b.call(&target, args).unwrap();
        graph.outputs.push(Output { kind: OutputKind::User, arg: Arg::Value(made[0]) });
        graph
    }
    /// Number of windows along a dimension, by PyTorch's rule.
    fn windows(&self, d: usize) -> usize {
        let (s, p) = (self.stride[d], self.padding[d]);
        let room = self.space[d] as i64 + 2 * p - self.dilation[d] * (self.kernel[d] - 1) - 1;
        let mut count = if self.ceil { (room + s - 1).div_euclid(s) } else { room.div_euclid(s) } + 1;
        if self.ceil && (count - 1) * s >= self.space[d] as i64 + p {
            count -= 1;
        }
        count as usize
    }
    /// For each window of a plane the place of its winner: the first `NaN`, else the first of the largest.
    fn winners(&self, plane: &[f64]) -> Vec<usize> {
        let counts: Vec<usize> = (0..self.n()).map(|d| self.windows(d)).collect();
        let kernel: Vec<usize> = self.kernel.iter().map(|k| *k as usize).collect();
        let windows = points(&counts);
        let best = |o: &Vec<usize>| {
            let mut best: Option<usize> = None;
            for w in points(&kernel) {
                let at = |d: usize| {
                    o[d] as i64 * self.stride[d] + w[d] as i64 * self.dilation[d] - self.padding[d]
                };
                let place: Option<usize> = (0..self.n()).try_fold(0, |sum, d| {
                    usize::try_from(at(d))
                        .ok()
                        .filter(|p| *p < self.space[d])
                        .map(|p| sum * self.space[d] + p)
                });
                let Some(place) = place else { continue };
                let better =
                    |b: usize| plane[place] > plane[b] || (plane[place].is_nan() && !plane[b].is_nan());
                best = Some(best.filter(|b| !better(*b)).unwrap_or(place));
            }
            best.unwrap()
        };
        windows.iter().map(best).collect()
    }
}

/// All points of a box in row-major order.
fn points(sizes: &[usize]) -> Vec<Vec<usize>> {
    let mut all = vec![vec![]];
    for size in sizes {
        all =
            all.iter().flat_map(|p: &Vec<usize>| (0..*size).map(move |i| [&p[..], &[i]].concat())).collect();
    }
    all
}

fn uniform(name: &str, i: usize) -> f64 {
    f64::from(tensor::formula::uniform(name, i as u64))
}

/// Values of `kind`: few different ones, `NaN` and infinities among them, or all as low as padding.
fn input(pool: &Pool, kind: usize) -> Vec<f64> {
    let count = pool.input().iter().product();
    let value = |i: usize| match kind {
        0 => (uniform("ties", i) * 2.0).round(),
        1 if i % 11 == 3 => f64::NAN,
        1 if i % 7 == 2 => f64::NEG_INFINITY,
        1 => (uniform("ties", i) * 3.0).round(),
        2 => f64::NEG_INFINITY,
        _ => uniform("smooth", i),
    };
    (0..count).map(value).collect()
}

fn same(got: &[f64], expected: &[f64], what: &str) {
    assert_eq!(got.len(), expected.len(), "{what}");
    for (i, (g, e)) in got.iter().zip(expected).enumerate() {
        assert!(
            g == e || (g.is_nan() && e.is_nan()) || (g - e).abs() < 1e-12,
            "{what}, element {i}: {g}, not {e}"
        );
    }
}

fn floats(t: &Tensor) -> Vec<f64> {
    t.iter().map(|x| x.as_f64()).collect()
}

fn check(pool: &Pool, kind: usize) {
    let values = input(pool, kind);
    let x = Tensor::from_vec(values.clone(), &pool.input()).unwrap();
    let plane: usize = pool.space.iter().product();
    let winners: Vec<usize> = values
        .chunks(plane)
        .enumerate()
        .flat_map(|(n, p)| pool.winners(p).into_iter().map(move |w| n * plane + w))
        .collect();
    let what = format!("{pool:?}, input {kind}");
    let graph = pool.graph(true);
    let outs = interp::run(&graph, std::slice::from_ref(&x)).unwrap();
    let largest: Vec<f64> = winners.iter().map(|w| values[*w]).collect();
    same(&floats(&outs[0]), &largest, &what);
    let places: Vec<f64> = winners.iter().map(|w| (w % plane) as f64).collect();
    same(&floats(&outs[1]), &places, &format!("{what}: indices"));
    let cotangent: Vec<f64> = (0..winners.len()).map(|i| uniform("cotangent", i) + 1.5).collect();
    let mut expected = vec![0.0; values.len()];
    winners.iter().zip(&cotangent).for_each(|(w, g)| expected[*w] += g);
    let cotangent = Tensor::from_vec(cotangent, outs[0].sizes()).unwrap();
    for indices in [false, true] {
        let graph = pool.graph(indices);
        let options = JointOptions { wrt: Wrt::Inputs, tangents: Tangents::Placeholders };
        let joint = joint(&graph, &options).unwrap();
        fx_ir::well_formed(&joint.graph).unwrap();
        let given = [x.clone(), cotangent.clone()];
        let results = interp::run(&joint.graph, &given).unwrap();
        same(&floats(&results[joint.forward_outputs]), &expected, &format!("{what}: gradient"));
    }
    if pool.n() > 1 {
        let given = [cotangent, x.clone(), outs[1].clone()];
        for device_memory in [false, true] {
            let found = interp::run(&pool.backward(device_memory), &given).unwrap();
            same(&floats(&found[0]), &expected, &format!("{what}: gradient from positions, {device_memory}"));
        }
    }
    // The tangent of a window is that of its winner: the transpose of the gradient.
    let pushed = jvp(&pool.graph(false)).unwrap();
    let direction: Vec<f64> = (0..values.len()).map(|i| uniform("direction", i)).collect();
    let given = [x, Tensor::from_vec(direction.clone(), &pool.input()).unwrap()];
    let tangents: Vec<f64> = winners.iter().map(|w| direction[*w]).collect();
    same(&floats(&interp::run(&pushed, &given).unwrap()[1]), &tangents, &format!("{what}: tangent"));
}

fn pool(
    space: &[usize],
    kernel: &[i64],
    stride: &[i64],
    padding: &[i64],
    dilation: &[i64],
    ceil: bool,
) -> Pool {
    Pool {
        space: space.into(),
        kernel: kernel.into(),
        stride: stride.into(),
        padding: padding.into(),
        dilation: dilation.into(),
        ceil,
    }
}

/// Windows that do not reach into one another.
fn apart(ceil: bool) -> [Pool; 3] {
    [
        pool(&[8, 7], &[2, 3], &[2, 3], &[1, 1], &[1, 1], ceil),
        pool(&[9, 10], &[2, 2], &[3, 4], &[1, 0], &[2, 3], ceil),
        pool(&[5, 6, 7], &[2, 2, 3], &[2, 3, 3], &[1, 0, 1], &[1, 2, 1], ceil),
    ]
}

fn pools() -> Vec<Pool> {
    let mut all = Vec::new();
    for (kernel, stride, padding, dilation) in [
        (3, 2, 1, 1),
        (3, 1, 1, 1),
        (2, 2, 0, 1),
        (2, 3, 1, 1),
        (3, 2, 1, 2),
        (2, 3, 1, 2),
        (4, 3, 2, 3),
        (5, 2, 2, 1),
    ] {
        for ceil in [false, true] {
            all.push(pool(&[13], &[kernel], &[stride], &[padding], &[dilation], ceil));
        }
    }
    for ceil in [false, true] {
        all.push(pool(&[8, 7], &[3, 3], &[2, 2], &[1, 1], &[1, 1], ceil));
        all.push(pool(&[7, 9], &[2, 3], &[1, 2], &[1, 0], &[2, 1], ceil));
        all.push(pool(&[4, 5, 6], &[2, 3, 2], &[2, 2, 1], &[0, 1, 1], &[1, 1, 2], ceil));
        all.push(pool(&[9, 8], &[5, 5], &[1, 1], &[2, 2], &[1, 1], ceil));
        all.push(pool(&[9, 8], &[2, 2], &[2, 2], &[0, 0], &[2, 1], ceil));
        all.extend(apart(ceil));
    }
    all
}

#[test]
fn the_first_of_the_largest_wins() {
    for pool in pools() {
        for kind in 0..4 {
            check(&pool, kind);
        }
    }
}

fn scattered(graph: &Graph) -> usize {
    let targets = graph.iter().filter_map(|(_, n)| n.as_call().map(|(target, _)| target.to_owned()));
    targets.filter(|t| t.contains("scatter") || t.contains("index_put")).count()
}

#[test]
fn the_gradient_adds_nothing_to_memory() {
    for pool in pools() {
        let options = JointOptions { wrt: Wrt::Inputs, tangents: Tangents::Placeholders };
        let joint = joint(&pool.graph(false), &options).unwrap();
        assert_eq!(scattered(&joint.graph), 0, "{pool:?}");
    }
    for pool in [false, true].into_iter().flat_map(apart) {
        assert_eq!(scattered(&pool.backward(false)), 0, "{pool:?}, from positions");
    }
}

/// Adding to memory is quicker on a processor, and slower where many threads would add to one place.
#[test]
fn windows_that_overlap_add_to_the_memory_of_a_host_alone() {
    for ceil in [false, true] {
        let pool = pool(&[8, 7], &[3, 3], &[2, 2], &[1, 1], &[1, 1], ceil);
        let counts = [false, true].map(|device_memory| scattered(&pool.backward(device_memory)));
        assert_eq!(counts, [1, 0], "{pool:?}");
    }
}

/// Adaptive windows of one size and of different sizes, and those whose elements are equal.
#[test]
fn adaptive_windows_too() {
    for (size, outs) in [(6usize, 3usize), (7, 3), (5, 5), (8, 1)] {
        let mut graph = Graph::new("pool");
        let sizes = [1, 2, size as i64].map(SymExpr::from_i64);
        let ty = ValueType::Tensor(TensorMeta::contiguous(DType::F64, sizes));
        let x = graph.placeholder(InputKind::User, "x", "x", ty);
        let args = vec![x.into(), Arg::from(&[outs as i64][..])];
        let made = Builder::new(&mut graph, "y", OriginId(0)).call("aten.adaptive_max_pool1d.default", args);
        graph.outputs.push(Output { kind: OutputKind::User, arg: Arg::Value(made.unwrap()[0]) });
        let values: Vec<f64> = (0..2 * size).map(|i| (uniform("ties", i) * 2.0).round()).collect();
        let mut expected = vec![0.0; values.len()];
        let cotangent: Vec<f64> = (0..2 * outs).map(|i| uniform("cotangent", i) + 1.5).collect();
        for (n, g) in cotangent.iter().enumerate() {
            let (plane, o) = (n / outs, n % outs);
            let window = o * size / outs..((o + 1) * size).div_ceil(outs);
            let line = &values[plane * size..(plane + 1) * size];
            let best = window.clone().fold(window.start, |b, i| if line[i] > line[b] { i } else { b });
            expected[plane * size + best] += g;
        }
        let options = JointOptions { wrt: Wrt::Inputs, tangents: Tangents::Placeholders };
        let joint = joint(&graph, &options).unwrap();
        let given = [
            Tensor::from_vec(values, &[1, 2, size]).unwrap(),
            Tensor::from_vec(cotangent, &[1, 2, outs]).unwrap(),
        ];
        let results = interp::run(&joint.graph, &given).unwrap();
        same(&floats(&results[joint.forward_outputs]), &expected, &format!("{size} to {outs}"));
    }
}
