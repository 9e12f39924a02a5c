//! Function transforms through the facade: traced in Rust, compiled, run by several backends.

#![allow(clippy::unwrap_used)] // a failing test may panic

use ferroflux::func::{self, Func, Operand, Randomness, Types};
use ferroflux::{DType, Options, Tensor};

fn input(name: &str, sizes: &[usize]) -> Tensor {
    ferroflux::tensor::formula::fill(name, sizes, 1.0, 0.0).unwrap()
}

/// The backends that every build has, and the device's where it is linked in.
fn backends() -> Vec<&'static str> {
    let mut names = vec!["eager", "oracle"];
    if cfg!(feature = "cpu") {
        names.push("cpu");
    }
    names
}

/// Runs on every backend, which must agree; gives the results of the first.
fn run(f: &Func, inputs: &[Tensor]) -> Vec<Tensor> {
    let mut all = backends().into_iter().map(|name| {
        let outs = f.call(inputs, &Options::new().backend(name)).unwrap_or_else(|e| panic!("{name}: {e}"));
        (name, outs)
    });
    let (_, first) = all.next().unwrap();
    for (name, outs) in all {
        for (n, (x, y)) in first.iter().zip(&outs).enumerate() {
            assert_eq!((x.dtype(), x.sizes()), (y.dtype(), y.sizes()), "{name}: result {n}");
            for (x, y) in x.iter_f64().zip(y.iter_f64()) {
                assert!((x - y).abs() <= 2e-5 * (1.0 + x.abs()), "{name}: result {n}: {y}, not {x}");
            }
        }
    }
    first
}

fn layers() -> Func {
    func::of(|[w, x]| {
        let norm = x.call("aten.layer_norm.default", [(&[4i64][..]).into()]);
        let list = |l: &'static [i64]| Operand::from(l);
        let plane = norm.reshape(&[1, 1, 3, 4]);
        let conv = plane.call(
            "aten.convolution.default",
            [
                w.into(),
                fx_none(),
                list(&[1, 1]),
                list(&[1, 1]),
                list(&[1, 1]),
                false.into(),
                list(&[0, 0]),
                1i64.into(),
            ],
        );
        (conv.gelu().softmax(-1) * conv).sum()
    })
}

fn fx_none() -> Operand<'static> {
    ferroflux::fx_ir::Arg::None.into()
}

#[test]
fn gradients_of_each_sample_on_every_backend() {
    let each = func::vmap(&func::grad_of(&layers(), &[0, 1]), &[None, Some(0)], &[]);
    let (w, x) = (input("w", &[2, 1, 3, 3]), input("x", &[5, 3, 4]));
    let got = run(&each, &[w.clone(), x.clone()]);
    assert_eq!(got[0].sizes(), [5, 2, 1, 3, 3]);
    for n in 0..5 {
        let row = x.select(0, n).unwrap().contiguous().unwrap();
        let expected = run(&func::grad_of(&layers(), &[0, 1]), &[w.clone(), row]);
        for (got, expected) in got.iter().zip(&expected) {
            let got = got.select(0, n).unwrap();
            for (x, y) in got.iter_f64().zip(expected.iter_f64()) {
                assert!((x - y).abs() <= 2e-5 * (1.0 + y.abs()), "{x} {y}");
            }
        }
    }
}

#[test]
fn transforms_compose_in_any_order() {
    let f = func::of(|[x]| (x.sin() * x.exp()).sum());
    let x = Tensor::from_vec(vec![0.3_f64, -0.8, 1.1], &[3]).unwrap();
    let exact = |x: f64| 2.0 * x.exp() * x.cos();
    let diagonal = |h: &Tensor| (0..3).map(|i| h.iter_f64().nth(4 * i).unwrap()).collect::<Vec<_>>();
    let ones = Tensor::from_vec(vec![1.0_f64; 3], &[3]).unwrap();
    let grad = func::grad(&f);
    let by_row = func::vmap(&func::grad(&func::grad(&func::of(|[x]| x.sin() * x.exp()))), &[], &[]);
    let results = [
        diagonal(&run(&func::hessian(&f, 0), std::slice::from_ref(&x))[0]),
        diagonal(&run(&func::jacrev(&grad, 0), std::slice::from_ref(&x))[0]),
        run(&func::jvp(&grad), &[x.clone(), ones.clone()])[1].iter_f64().collect(),
        run(&func::vjp(&grad), &[x.clone(), ones.clone()])[1].iter_f64().collect(),
        run(&by_row, std::slice::from_ref(&x))[0].iter_f64().collect(),
    ];
    for result in results {
        for (x, got) in x.iter_f64().zip(result) {
            assert!((got - exact(x)).abs() < 1e-13, "{got} {}", exact(x));
        }
    }
    // jvp(vjp) gives the change of the results, of the gradient, and the second derivative.
    let inputs = [
        x.clone(),
        Tensor::from_vec(vec![1.0_f64], &[]).unwrap(),
        ones,
        Tensor::zeros(DType::F64, &[]).unwrap(),
    ];
    let all = run(&func::jvp(&func::vjp(&f)), &inputs);
    for (x, got) in x.iter_f64().zip(all[3].iter_f64()) {
        assert!((got - exact(x)).abs() < 1e-13);
    }
}

#[test]
fn one_compilation_serves_every_size_of_the_batch() {
    let f = func::vmap(&func::grad(&func::of(|[x]| x.logsumexp(&[0]))), &[Some(0)], &[]);
    let mut types = Types::new();
    let n = types.symbol("batch", 1, Some(64));
    let types = types.tensor(DType::F32, [n, 3.into()]);
    for name in backends() {
        let code = f.compile(&types, &Options::new().backend(name)).unwrap();
        for n in [1, 7] {
            let x = input("x", &[n, 3]);
            let out = code.call(&[x]).unwrap().remove(0);
            let sums = out.iter_f64().collect::<Vec<_>>();
            // The gradient is a softmax.
            assert!(sums.chunks(3).all(|row| (row.iter().sum::<f64>() - 1.0).abs() < 1e-5), "{name}");
        }
        assert!(code.call(&[input("x", &[2, 4])]).is_err());
    }
}

#[test]
fn random_numbers_in_a_batch_are_asked_for() {
    let f = func::of(|[x]| x.call("aten.dropout.default", [0.5.into(), true.into()]));
    let x = Tensor::from_vec(vec![1.0_f32; 400], &[2, 200]).unwrap();
    let options = || Options::new().backend("eager").seed(3);
    let refused = func::vmap(&f, &[], &[]).call(std::slice::from_ref(&x), &options());
    assert!(refused.unwrap_err().to_string().contains("randomness"));
    let rows = |randomness| {
        let out = func::vmap_with(&f, &[], &[], randomness)
            .call(std::slice::from_ref(&x), &options())
            .unwrap()
            .remove(0);
        let all: Vec<f64> = out.iter_f64().collect();
        (all[..200].to_vec(), all[200..].to_vec())
    };
    let (first, second) = rows(Randomness::Same);
    assert_eq!(first, second);
    let (first, second) = rows(Randomness::Different);
    assert_ne!(first, second);
    // The gradient drops the same elements as the function.
    let sum = func::of(|[x]| (x.call("aten.dropout.default", [0.5.into(), true.into()]) * x).sum());
    let both = func::value_and_grad(&sum);
    let out = both.call(&[input("x", &[50])], &options()).unwrap();
    assert!(out[1].iter_f64().any(|g| g == 0.0) && out[1].iter_f64().any(|g| g != 0.0));
}

#[test]
fn what_does_not_fit_is_an_error_that_says_so() {
    let f = func::of(|[x, y]| x.matmul(y));
    let options = Options::new().backend("eager");
    let error = |f: &Func, inputs: &[Tensor]| f.call(inputs, &options).unwrap_err().to_string();
    let (x, y) = (input("x", &[2, 3]), input("y", &[2, 3]));
    assert!(error(&f, &[x.clone(), y.clone()]).contains("matmul"));
    assert!(error(&f, std::slice::from_ref(&x)).contains("takes 2 tensors"));
    let batched = func::vmap(&f, &[Some(0), Some(2)], &[]);
    assert!(error(&batched, &[x.clone(), y.clone()]).contains("no dimension 2"));
    assert!(error(&func::vmap(&f, &[None, None], &[]), &[x.clone(), y]).contains("no argument"));
    let unknown = func::of(|[x]| x.call("aten.no_such.default", []));
    assert!(error(&unknown, std::slice::from_ref(&x)).contains("no_such"));
    assert!(error(&func::grad(&func::of(|[x]| x.sin())), &[x]).contains("one element"));
}

#[test]
fn graphs_are_functions_too() {
    let text = r#"fx 1.0

graph "squares" {
  %w: f64[2] = parameter "w"
  %x: f64[2] = input "x"

  %a: f64[2] = prims.mul(%w, %x)
  %b: f64[2] = prims.mul(%a, %a)
  return %b
}
"#;
    let f = Func::from_graph(text.parse().unwrap());
    let double = |list: [f64; 2]| Tensor::from_vec(list.to_vec(), &[2]).unwrap();
    let out = run(&func::jacfwd(&f, 0), &[double([1.0, 2.0]), double([3.0, -1.0])]);
    assert_eq!(out[0].iter_f64().collect::<Vec<_>>(), [18.0, 0.0, 0.0, 4.0]);
    assert!(f.graph(&Types::of(&[input("w", &[2]), input("x", &[2])])).is_err(), "f32 is not f64");
}
