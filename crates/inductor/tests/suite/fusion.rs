//! Small graphs through the whole middle: what they fuse to, and that the fused program, run point by point, agrees with
//! the graph run operator by operator.

// A helper of tests may fail as a test does.
#![allow(clippy::unwrap_used)]

use fx_ir::{Arg, Graph, InputKind, OriginId, Output, OutputKind, Symbol, ValueId, ValueType};
use ir_core::{DType, Shape, SymExpr, TensorMeta};
use kernel_ir::{Program, ReduceOp, ScalarOp, Step, Storage};
use prims::Builder;
use tensor::Tensor;

struct Case {
    graph: Graph,
    weights: Vec<(String, Tensor)>,
}

impl Case {
    fn new() -> Case {
        Case { graph: Graph::new("case"), weights: Vec::new() }
    }
    fn dynamic(&mut self) -> SymExpr {
        let symbol = Symbol { name: "batch".into(), min: 1, max: Some(64), hint: Some(4), unbacked: false };
        SymExpr::sym(self.graph.add_symbol(symbol))
    }
    fn input(&mut self, name: &str, sizes: &[SymExpr]) -> ValueId {
        let meta = TensorMeta::contiguous(DType::F32, sizes.iter().cloned());
        self.graph.placeholder(InputKind::User, name, name, ValueType::Tensor(meta))
    }
    fn weight(&mut self, name: &str, sizes: &[usize]) -> ValueId {
        let t = tensor::formula::fill(name, sizes, 0.5, 0.2).unwrap();
        self.weights.push((name.into(), t));
        let meta = TensorMeta::contiguous(DType::F32, sizes.iter().map(|s| SymExpr::from_i64(*s as i64)));
        self.graph.placeholder(InputKind::Parameter, name, name, ValueType::Tensor(meta))
    }
    fn b(&mut self, name: &str) -> Builder<'_> {
        Builder::new(&mut self.graph, name, OriginId(0))
    }
    fn returns(&mut self, v: ValueId) {
        self.graph.outputs.push(Output { kind: OutputKind::User, arg: Arg::Value(v) });
    }
    fn compile(&self) -> Program {
        inductor::compile(&self.graph, &inductor::Options::default()).unwrap()
    }
    /// Runs both ways and compares; gives the kernels' kinds.
    fn check(&self, inputs: &[Tensor]) -> Vec<&'static str> {
        let program = self.compile();
        let text = program.to_string();
        let mut all: Vec<Tensor> = Vec::new();
        let mut users = inputs.iter();
        for (_, kind, name) in self.graph.inputs() {
            all.push(match kind {
                InputKind::User => users.next().unwrap().clone(),
                _ => self.weights.iter().find(|(n, _)| n == name).unwrap().1.clone(),
            });
        }
        let expected = interp::run(&self.graph, &all).unwrap();
        let weight = |name: &str| self.weights.iter().find(|(n, _)| n == name).map(|(_, t)| t.clone());
        let options = interp::kernels::Options { planned_arena: true };
        let code = interp::kernels::Executable::new(program.clone(), &weight, options)
            .unwrap_or_else(|e| panic!("{e}\n{text}"));
        let got = code.call(inputs).unwrap_or_else(|e| panic!("{e}\n{text}"));
        assert_eq!(got.len(), expected.len());
        for (g, e) in got.iter().zip(&expected) {
            assert_eq!(g.sizes(), e.sizes());
            tensor::allclose(g, e, 1e-5, 1e-5).unwrap_or_else(|m| panic!("{m}\n{text}"));
        }
        // What crosses the boundary is the same program.
        assert_eq!(Program::from_bytes(&program.to_bytes()).unwrap(), program);
        kernel_ir::verify(&program).unwrap_or_else(|e| panic!("{e}\n{text}"));
        assert_eq!(text.parse::<Program>().unwrap_or_else(|e| panic!("{e}\n{text}")), program);
        program.steps.iter().map(Step::kind).collect()
    }
}

fn n(sizes: &[i64]) -> Shape {
    sizes.iter().map(|s| SymExpr::from_i64(*s)).collect()
}

fn data(name: &str, sizes: &[usize]) -> Tensor {
    tensor::formula::fill(name, sizes, 1.0, 0.0).unwrap()
}

fn softmax(b: &mut Builder<'_>, x: ValueId, dim: usize) -> ValueId {
    let top = b.reduce(ReduceOp::Max, x, &[dim], true).unwrap();
    let shifted = b.sub(x, top).unwrap();
    let e = b.exp(shifted).unwrap();
    let sum = b.reduce(ReduceOp::Sum, e, &[dim], true).unwrap();
    b.div(e, sum).unwrap()
}

fn layer_norm(b: &mut Builder<'_>, x: ValueId, w: ValueId, bias: ValueId, count: f64) -> ValueId {
    let last = b.rank(x).unwrap() - 1;
    let sum = b.reduce(ReduceOp::Sum, x, &[last], true).unwrap();
    let mean = b.div(sum, count).unwrap();
    let centred = b.sub(x, mean).unwrap();
    let square = b.mul(centred, centred).unwrap();
    let sum = b.reduce(ReduceOp::Sum, square, &[last], true).unwrap();
    let var = b.div(sum, count).unwrap();
    let eps = b.add(var, 1e-5).unwrap();
    let r = b.rsqrt(eps).unwrap();
    let y = b.mul(centred, r).unwrap();
    let y = b.mul(y, w).unwrap();
    b.add(y, bias).unwrap()
}

#[test]
fn softmax_is_one_kernel() {
    for (sizes, dim) in [(vec![16, 33], 1), (vec![16, 33], 0), (vec![12, 5, 7], 1), (vec![64], 0)] {
        let mut case = Case::new();
        let x = case.input("x", &n(&sizes));
        let y = softmax(&mut case.b("softmax"), x, dim);
        case.returns(y);
        let sizes: Vec<usize> = sizes.iter().map(|s| *s as usize).collect();
        assert_eq!(case.check(&[data("x", &sizes)]), ["loop"]);
    }
}

#[test]
fn residual_and_layer_norm_are_one_kernel() {
    let mut case = Case::new();
    let s = case.dynamic();
    let x = case.input("x", &[s.clone(), 9.into(), 32.into()]);
    let r = case.input("r", &[s, 9.into(), 32.into()]);
    let (w, bias) = (case.weight("w", &[32]), case.weight("b", &[32]));
    let mut b = case.b("norm");
    let sum = b.add(x, r).unwrap();
    let y = layer_norm(&mut b, sum, w, bias, 32.0);
    let z = b.add(y, sum).unwrap();
    case.returns(y);
    case.returns(z);
    for batch in [1, 4, 7] {
        let kinds = case.check(&[data("x", &[batch, 9, 32]), data("r", &[batch, 9, 32])]);
        assert_eq!(kinds, ["loop"]);
    }
}

#[test]
fn a_linear_layer_takes_what_follows_in_its_epilogue() {
    let mut case = Case::new();
    let s = case.dynamic();
    let x = case.input("x", &[s.clone(), 6.into(), 8.into()]);
    let r = case.input("r", &[s.clone(), 6.into(), 5.into()]);
    let (w, bias) = (case.weight("w", &[5, 8]), case.weight("b", &[5]));
    let mut b = case.b("linear");
    let flat = b.reshape(x, &[&s * 6, 8.into()]).unwrap();
    let wt = b.permute(w, &[1, 0]).unwrap();
    let y = b.call1("prims.matmul", vec![flat.into(), wt.into()]).unwrap();
    let y = b.add(y, bias).unwrap();
    let y = b.reshape(y, &[s, 6.into(), 5.into()]).unwrap();
    let y = b.scalar_op(ScalarOp::Tanh, &[y.into()]).unwrap();
    let y = b.add(y, r).unwrap();
    case.returns(y);
    for batch in [1, 3] {
        assert_eq!(case.check(&[data("x", &[batch, 6, 8]), data("r", &[batch, 6, 5])]), ["matmul"]);
    }
}

#[test]
fn batch_norm_relu_and_residual_join_the_convolution() {
    let mut case = Case::new();
    let x = case.input("x", &n(&[2, 3, 8, 8]));
    let w = case.weight("w", &[4, 3, 3, 3]);
    let (scale, var) = (case.weight("scale", &[4]), case.weight("var", &[4]));
    let down = case.weight("down", &[4, 3, 1, 1]);
    let mut b = case.b("conv");
    let conv = |b: &mut Builder<'_>, w: ValueId, pad: i64| {
        let (one, pads) = ([1i64, 1], [pad; 4]);
        let args = vec![
            x.into(),
            w.into(),
            one[..].into(),
            pads[..].into(),
            one[..].into(),
            false.into(),
            [0i64, 0][..].into(),
            1i64.into(),
        ];
        b.call1("prims.conv", args).unwrap()
    };
    let y = conv(&mut b, w, 1);
    let eps = b.add(var, 1e-5).unwrap();
    let r = b.rsqrt(eps).unwrap();
    let factor = b.mul(scale, r).unwrap();
    let factor = b.reshape(factor, &n(&[1, 4, 1, 1])).unwrap();
    let y = b.mul(y, factor).unwrap();
    let d = conv(&mut b, down, 0);
    let y = b.add(y, d).unwrap();
    let y = b.maximum(y, 0.0).unwrap();
    case.returns(y);
    assert_eq!(case.check(&[data("x", &[2, 3, 8, 8])]), ["conv", "conv"]);
    let program = case.compile();
    // The factor depends on weights alone: it is made once.
    assert_eq!(program.init.len(), 1);
    assert!(program.buffers.values().any(|b| b.storage == Storage::Persistent));
}

#[test]
fn heads_are_views_of_one_product() {
    let mut case = Case::new();
    let x = case.input("x", &n(&[2, 5, 12]));
    let mut b = case.b("attention");
    let heads = b.reshape(x, &n(&[2, 5, 3, 4])).unwrap();
    let q = b.permute(heads, &[0, 2, 1, 3]).unwrap();
    let args = vec![q.into(), q.into(), q.into(), Arg::None, true.into(), 0.5.into()];
    let y = b.call1("prims.attention", args).unwrap();
    let y = b.permute(y, &[0, 2, 1, 3]).unwrap();
    let y = b.reshape(y, &n(&[10, 12])).unwrap();
    let w = case.weight("w", &[12, 12]);
    let mut b = case.b("out");
    let y = b.call1("prims.matmul", vec![y.into(), w.into()]).unwrap();
    case.returns(y);
    assert_eq!(case.check(&[data("x", &[2, 5, 12])]), ["attention", "matmul"]);
}

#[test]
fn windows_and_reductions_fuse() {
    let mut case = Case::new();
    let x = case.input("x", &n(&[16, 4, 6]));
    let mut b = case.b("mean");
    let e = b.exp(x).unwrap();
    let s = b.reduce(ReduceOp::Sum, e, &[1, 2], false).unwrap();
    let m = b.div(s, 24.0).unwrap();
    let a = b.reduce(ReduceOp::ArgMax, x, &[2], false).unwrap();
    let c = b.call1("prims.cumsum", vec![x.into(), 1i64.into()]).unwrap();
    case.returns(m);
    case.returns(a);
    case.returns(c);
    case.check(&[data("x", &[16, 4, 6])]);
}

#[test]
fn outputs_that_are_inputs_weights_or_each_other_are_copied() {
    let mut case = Case::new();
    let x = case.input("x", &n(&[3, 4]));
    let w = case.weight("w", &[4]);
    let mut b = case.b("add");
    let y = b.add(x, w).unwrap();
    let t = b.permute(y, &[1, 0]).unwrap();
    for v in [x, w, y, y, t] {
        case.returns(v);
    }
    case.check(&[data("x", &[3, 4])]);
}

#[test]
fn zero_sizes_and_scalars_pass() {
    let mut case = Case::new();
    let x = case.input("x", &n(&[0, 4]));
    let k = case.input("k", &n(&[]));
    let mut b = case.b("f");
    let s = b.reduce(ReduceOp::Sum, x, &[0], false).unwrap();
    let y = b.add(s, k).unwrap();
    case.returns(y);
    case.check(&[data("x", &[0, 4]), data("k", &[])]);
}

/// Windows of three with stride two over both spatial dimensions of `[2, 3, 9, 8]`: the view, and the number of the largest.
fn pooled(b: &mut Builder<'_>, x: ValueId) -> (ValueId, ValueId) {
    let lists = [[5i64, 4], [3, 3], [2, 2], [1, 1], [1, 1]].map(|l| Arg::from(&l[..]));
    let args = [Arg::Value(x)].into_iter().chain(lists).chain([Arg::from(f64::NEG_INFINITY)]).collect();
    let view = b.call1("prims.window", args).unwrap();
    let best = b.reduce(ReduceOp::ArgMax, view, &[4, 5], false).unwrap();
    (view, b.cast(best, DType::U8).unwrap())
}

#[test]
fn a_largest_element_and_its_number_are_one_walk() {
    let mut case = Case::new();
    let x = case.input("x", &n(&[2, 3, 9, 8]));
    let mut b = case.b("pool");
    let (view, best) = pooled(&mut b, x);
    let y = b.call1("prims.amax_at", vec![view.into(), best.into(), [4i64, 5][..].into()]).unwrap();
    case.returns(y);
    case.returns(best);
    assert_eq!(case.check(&[data("x", &[2, 3, 9, 8])]), ["loop"]);
    let program = case.compile();
    let [Step::Loop(kernel)] = &program.steps[..] else { panic!("{program}") };
    assert_eq!((kernel.accs.len(), kernel.stages.len()), (2, 2), "{program}");
}

#[test]
fn numbers_of_the_largest_are_kept_in_a_byte_and_read_by_a_gather() {
    let mut case = Case::new();
    let x = case.input("x", &n(&[2, 3, 9, 8]));
    let g = case.input("g", &n(&[2, 3, 5, 4]));
    let mut b = case.b("pool");
    let (_, best) = pooled(&mut b, x);
    let best = b.cast(best, DType::I64).unwrap();
    let apart = |b: &mut Builder<'_>, v: ValueId| {
        let v = b.reshape(v, &n(&[2, 3, 5, 4, 1, 1])).unwrap();
        b.expand(v, &n(&[2, 3, 5, 4, 3, 3])).unwrap()
    };
    let (best, g) = (apart(&mut b, best), apart(&mut b, g));
    let args = vec![9i64.into(), 0i64.into(), 1i64.into(), DType::I64.into()];
    let number = b.call1("prims.iota", args).unwrap();
    let number = b.reshape(number, &n(&[1, 1, 1, 1, 3, 3])).unwrap();
    let own = b.eq(best, number).unwrap();
    let own = b.select(own, g, 0.0).unwrap();
    let lists = [[9i64, 8], [2, 2], [1, 1], [1, 1]].map(|l| Arg::from(&l[..]));
    let covers = b.call1("prims.cover", [Arg::Value(own)].into_iter().chain(lists).collect()).unwrap();
    let grad = b.reduce(ReduceOp::Sum, covers, &[4, 5], false).unwrap();
    // Two sums read the gradient: it is computed once.
    let sum = b.reduce(ReduceOp::Sum, grad, &[0, 2, 3], false).unwrap();
    let product = b.mul(grad, x).unwrap();
    let other = b.reduce(ReduceOp::Sum, product, &[0, 2, 3], false).unwrap();
    case.returns(sum);
    case.returns(other);
    assert_eq!(case.check(&[data("x", &[2, 3, 9, 8]), data("g", &[2, 3, 5, 4])]), ["loop", "loop", "loop"]);
    let program = case.compile();
    let bytes = program.buffers.values().filter(|b| b.dtype == DType::U8).count();
    let wide = program.buffers.values().filter(|b| b.dtype == DType::I64).count();
    assert_eq!((bytes, wide), (1, 0), "{program}");
}

#[test]
fn the_statistics_of_a_convolution_keep_no_second_copy() {
    let mut case = Case::new();
    let x = case.input("x", &n(&[4, 3, 6, 6]));
    let w = case.weight("w", &[8, 3, 1, 1]);
    let mut b = case.b("norm");
    let (one, pads) = ([1i64, 1], [0i64; 4]);
    let args = vec![
        x.into(),
        w.into(),
        one[..].into(),
        pads[..].into(),
        one[..].into(),
        false.into(),
        [0i64, 0][..].into(),
        1i64.into(),
    ];
    let y = b.call1("prims.conv", args).unwrap();
    let sum = b.reduce(ReduceOp::Sum, y, &[0, 2, 3], true).unwrap();
    let mean = b.div(sum, 144.0).unwrap();
    let centred = b.sub(y, mean).unwrap();
    let square = b.mul(centred, centred).unwrap();
    let sum = b.reduce(ReduceOp::Sum, square, &[0, 2, 3], true).unwrap();
    let var = b.div(sum, 144.0).unwrap();
    let r = b.rsqrt(var).unwrap();
    let z = b.mul(centred, r).unwrap();
    case.returns(z);
    assert_eq!(case.check(&[data("x", &[4, 3, 6, 6])]), ["conv", "loop"]);
    let program = case.compile();
    let full = |b: &&kernel_ir::Buffer| b.span().as_const() == Some(4 * 8 * 36);
    // The convolution's result and that of the norm.
    assert_eq!(program.buffers.values().filter(full).count(), 2, "{program}");
}

/// What a backward computes again from a kept product belongs to the kernels that read it, not to the product's.
#[test]
fn what_is_computed_again_is_not_stored_early() {
    let mut case = Case::new();
    let x = case.input("x", &n(&[32, 48]));
    let [w, u, v] = ["w", "u", "v"].map(|name| case.weight(name, &[48, 48]));
    let mut b = case.b("forward");
    let product = |b: &mut Builder<'_>, x: ValueId, w: ValueId| {
        b.call1("prims.matmul", vec![x.into(), w.into()]).unwrap()
    };
    let kept = product(&mut b, x, w);
    let e = b.exp(kept).unwrap();
    let y = product(&mut b, e, u);
    let z = product(&mut b, y, v);
    let mut b = case.b("again");
    let again = b.call1("prims.barrier", vec![kept.into()]).unwrap();
    let e = b.exp(again).unwrap();
    let twice = b.mul(e, e).unwrap();
    let both = b.mul(z, twice).unwrap();
    case.returns(both);
    case.check(&[data("x", &[32, 48])]);
    let program = case.compile();
    let names: Vec<&str> = program.steps.iter().map(Step::name).collect();
    let first = names.iter().position(|name| name.contains("forward")).unwrap();
    assert!(!names[first].contains("again"), "{names:?}");
    // The product is kept, and nothing that was computed again from it has memory.
    let again = program.buffers.values().filter(|b| b.storage == Storage::Arena && b.name.contains("again"));
    assert_eq!(again.count(), 0, "{program}");
}

/// What lies between the two passes of an interpolation has its channels next to each other where the image has, although the
/// positions that are read come from data.
#[test]
fn an_interpolated_image_keeps_its_order_in_memory() {
    let mut c = Case::new();
    let x = c.input("x", &n(&[2, 8, 6, 16]));
    let mut b = c.b("upsample");
    let image = b.permute(x, &[0, 3, 1, 2]).unwrap();
    let args = vec![image.into(), n(&[24, 18])[..].into(), false.into(), Arg::None, Arg::None];
    let large = b.call1("aten.upsample_bilinear2d.default", args).unwrap();
    let y = b.permute(large, &[0, 2, 3, 1]).unwrap();
    c.returns(y);
    c.check(&[data("x", &[2, 8, 6, 16])]);
    let program = c.compile();
    let between = program.buffers.iter().find(|(_, b)| b.storage == Storage::Arena && b.sizes.len() == 4);
    let (_, between) = between.expect("the first pass is stored");
    assert_eq!(between.strides[1], SymExpr::ONE, "{program}");
}
