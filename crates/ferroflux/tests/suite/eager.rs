//! Tensors whose operators are recorded: values, views, in-place operators, gradients, errors and printing.

use ferroflux::prelude::*;

fn vector(values: &[f32]) -> Tensor {
    Tensor::from_slice(values, &[values.len()])
}

fn values(t: &Tensor) -> Vec<f32> {
    t.to_vec::<f32>().unwrap_or_else(|e| panic!("{e}"))
}

#[test]
fn chains_of_operators_are_computed_when_wanted() {
    let x = vector(&[1.0, -2.0, 3.0]);
    let y = ((&x * 2.0 + 1.0).relu() - &x) / 2.0;
    assert_eq!(values(&y), [1.0, 1.0, 2.0]);
    assert_eq!(values(&(1.0 - &x)), [0.0, 3.0, -2.0]);
    assert_eq!(values(&(2.0 / &vector(&[4.0]))), [0.5]);
    assert_eq!(x.max().item().unwrap(), 3.0);
    assert_eq!(x.gt(0.0).to(DType::I64).sum().item().unwrap(), 2.0);
}

#[test]
fn any_operator_is_called_by_name() {
    let x = Tensor::from_slice(&[3.0_f32, 1.0, 2.0, 6.0, 5.0, 4.0], &[2, 3]);
    let sorted = x.call_all("aten.sort.default", [1.into(), false.into()]).unwrap();
    assert_eq!(values(&sorted[0]), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    assert_eq!(sorted[1].to_vec::<i64>().unwrap(), [1, 2, 0, 2, 1, 0]);
    let gone = x.call("aten.no_such.default", []);
    assert!(gone.to_host().unwrap_err().to_string().contains("no_such"));
}

#[test]
fn a_refused_call_is_an_error_with_its_line_where_it_is_read() {
    let x = vector(&[1.0, 2.0]);
    let line = line!() + 1;
    let bad = &x + &vector(&[1.0, 2.0, 3.0]);
    let later = bad.exp().sum();
    let error = later.item().unwrap_err().to_string();
    assert!(error.contains("do not broadcast") && error.contains(&format!("eager.rs:{line}:")), "{error}");
    assert_eq!(later.rank(), 0);
}

#[test]
fn sizes_that_only_data_determines_run_at_once() {
    let x = vector(&[0.0, 5.0, 0.0, 7.0]);
    let at = x.nonzero();
    assert_eq!(at.shape(), [2, 1]);
    assert_eq!(at.to_vec::<i64>().unwrap(), [1, 3]);
    assert_eq!(values(&x.at(s![&x.gt(1.0)])), [5.0, 7.0]);
}

#[test]
fn indices_select_slice_and_write() {
    let x = Tensor::arange(24).to(DType::F32).reshape(&[2, 3, 4]);
    assert_eq!(values(&x.at(s![1, .., 0])), [12.0, 16.0, 20.0]);
    assert_eq!(values(&x.at(s![Index::Rest, 1..3, 3])), [7.0, 11.0, 19.0, 23.0]);
    assert_eq!(x.at(s![0, Index::New, ..2]).shape(), [1, 2, 4]);
    assert_eq!(values(&x.at(s![.., Tensor::from_slice(&[2_i64, 0], &[2]), 0])), [8.0, 0.0, 20.0, 12.0]);
    let y = x.copied();
    y.set_at(s![0, 1], &vector(&[-1.0, -2.0, -3.0, -4.0])).unwrap();
    y.set_at(s![1, .., Tensor::from_slice(&[0_i64, 3], &[2])], &Tensor::scalar(9.0_f32)).unwrap();
    assert_eq!(values(&y)[4..8], [-1.0, -2.0, -3.0, -4.0]);
    assert_eq!(values(&y)[12..16], [9.0, 13.0, 14.0, 9.0]);
    assert_eq!(values(&x)[4], 4.0, "the copy has memory of its own");
}

#[test]
fn in_place_operators_are_seen_through_views_both_ways() {
    let x = Tensor::zeros(&[2, 3]);
    let row = x.select(0, 1);
    let turned = x.t();
    row.add_(5.0).unwrap();
    assert_eq!(values(&x), [0.0, 0.0, 0.0, 5.0, 5.0, 5.0]);
    assert_eq!(values(&turned), [0.0, 5.0, 0.0, 5.0, 0.0, 5.0]);
    x.fill_(2.0).unwrap();
    assert_eq!(values(&row), [2.0, 2.0, 2.0]);
    turned.at(s![0]).mul_(10.0).unwrap();
    assert_eq!(values(&x), [20.0, 2.0, 2.0, 20.0, 2.0, 2.0]);
    let parts = x.chunk(3, 1).unwrap();
    parts[2].zero_().unwrap();
    assert_eq!(values(&x), [20.0, 2.0, 0.0, 20.0, 2.0, 0.0]);
    let repeated = Tensor::zeros(&[1]).expand(&[3]);
    assert!(repeated.add_(1.0).unwrap_err().to_string().contains("expand"));
}

#[test]
fn long_chains_neither_grow_nor_overflow_the_stack() {
    let mut x = Tensor::zeros(&[4]);
    for _ in 0..20_000 {
        x = &x + 1.0;
    }
    assert_eq!(values(&x), [20_000.0; 4]);
}

#[test]
fn random_numbers_are_the_same_however_often_they_are_computed() {
    let r = Tensor::rand(&[64]);
    let (a, b) = (&r + 1.0, &r + 2.0);
    let copy = r.copied();
    drop(r);
    let (a, b, copy) = (values(&a), values(&b), values(&copy));
    for n in 0..64 {
        assert!((b[n] - a[n] - 1.0).abs() < 1e-6 && (a[n] - copy[n] - 1.0).abs() < 1e-6);
    }
    assert!(copy.iter().any(|x| *x != copy[0]));
}

#[test]
fn gradients_accumulate_in_variables() {
    let w = vector(&[1.0, 2.0, 3.0]).with_grad();
    let loss = (&w * &w).sum();
    loss.backward().unwrap();
    assert_eq!(values(&w.grad().unwrap()), [2.0, 4.0, 6.0]);
    (&w * 10.0).sum().backward().unwrap();
    assert_eq!(values(&w.grad().unwrap()), [12.0, 14.0, 16.0]);
    w.clear_grad();
    assert!(w.grad().is_none());
    let error = vector(&[1.0]).sum().backward().unwrap_err().to_string();
    assert!(error.contains("requires a gradient"), "{error}");
}

#[test]
fn gradients_after_the_forward_ran_read_what_it_computed() {
    let w = vector(&[0.5, -1.0]).with_grad();
    let dropped = w.call("aten.dropout.default", [0.5.into(), true.into()]);
    let loss = (dropped.exp() * 3.0).sum();
    let value = loss.item().unwrap();
    assert!(value.is_finite());
    loss.backward().unwrap();
    // The mask of the forward: a dropped element has no gradient, any other twice that of its exponential.
    let (out, gradient) = (values(&dropped), values(&w.grad().unwrap()));
    for n in 0..2 {
        let expected = if out[n] == 0.0 { 0.0 } else { 2.0 * 3.0 * out[n].exp() };
        assert!((gradient[n] - expected).abs() < 1e-5, "{gradient:?} {out:?}");
    }
}

#[test]
fn detached_values_and_no_grad_stop_gradients() {
    let w = vector(&[2.0]).with_grad();
    let fixed = (&w * 3.0).detach();
    assert!(!fixed.requires_grad() && w.requires_grad());
    (&fixed * &w).sum().backward().unwrap();
    assert_eq!(values(&w.grad().unwrap()), [6.0]);
    let inside = no_grad(|| &w * 3.0);
    assert!(!inside.requires_grad());
    assert!(w.add_(1.0).unwrap_err().to_string().contains("no_grad"));
    no_grad(|| w.add_(1.0).map(|_| ())).unwrap();
    assert_eq!(values(&w), [3.0]);
    assert!(w.requires_grad(), "a variable stays one");
    w.clear_grad();
    (&w * &w).sum().backward().unwrap();
    assert_eq!(values(&w.grad().unwrap()), [6.0]);
}

#[test]
fn a_training_loop_runs() {
    let x = Tensor::from_slice(&[1.0_f32, 2.0, 3.0, 4.0], &[4, 1]);
    let y = &x * 3.0 + 1.0;
    let (w, b) = (Tensor::zeros(&[1, 1]).with_grad(), Tensor::zeros(&[1]).with_grad());
    for _ in 0..400 {
        let loss = (x.matmul(&w) + &b).mse_loss(&y);
        loss.backward().unwrap();
        no_grad(|| {
            for p in [&w, &b] {
                p.sub_(p.grad().unwrap() * 0.05).unwrap();
                p.clear_grad();
            }
        });
    }
    assert!((w.item().unwrap() - 3.0).abs() < 1e-2 && (b.item().unwrap() - 1.0).abs() < 3e-2, "{w} {b}");
}

#[test]
fn it_prints_as_pytorch_does() {
    let printed = |t: &Tensor| t.to_string();
    assert_eq!(printed(&vector(&[1.0, 2.0])), "tensor([1., 2.])");
    assert_eq!(printed(&vector(&[1.5, -2.0])), "tensor([ 1.5000, -2.0000])");
    assert_eq!(printed(&Tensor::scalar(3.25_f64)), "tensor(3.2500, dtype=torch.float64)");
    assert_eq!(
        printed(&Tensor::from_slice(&[1_i64, 10, 100, 0], &[2, 2])),
        "tensor([[  1,  10],\n        [100,   0]])"
    );
    assert_eq!(printed(&vector(&[1e-5, 1.0])), "tensor([1.0000e-05, 1.0000e+00])");
    assert_eq!(printed(&vector(&[f32::NAN, 1.0])), "tensor([nan, 1.])");
    assert_eq!(printed(&vector(&[1.0, 2.0]).gt(1.0)), "tensor([False,  True])");
    assert_eq!(printed(&Tensor::zeros(&[0, 3])), "tensor([], size=(0, 3))");
    assert_eq!(printed(&Tensor::arange(2000)), "tensor([   0,    1,    2,  ..., 1997, 1998, 1999])");
    assert_eq!(printed(&vector(&[1.0]).with_grad()), "tensor([1.], requires_grad=True)");
    let cube = printed(&Tensor::arange(8).reshape(&[2, 2, 2]));
    assert_eq!(cube, "tensor([[[0, 1],\n         [2, 3]],\n\n        [[4, 5],\n         [6, 7]]])");
}

#[test]
fn further_sizes_of_recorded_calls_compile_nothing() {
    // A structure that no other test of this process has.
    let of = |n: usize| {
        (Tensor::from(ferroflux::Tensor::zeros(DType::F64, &[n, 3]).unwrap()).cosh() * 4.0)
            .sum_dims(&[1], true)
    };
    for n in [2usize, 3, 4, 5, 90, 7, 1, 0] {
        let y = of(n);
        assert_eq!(y.to_host().unwrap().sizes(), [n, 1]);
        assert!(y.to_vec::<f64>().unwrap().iter().all(|x| *x == 12.0));
    }
}

/// A float that changes is an input from its fourth value on. Where the operator wants a number, or would compute another dtype
/// with a tensor, it stays a constant.
#[test]
fn floats_that_change_have_the_values_of_constants() {
    let x = vector(&[0.5, -1.5, 3.0]);
    let whole = Tensor::from_slice(&[1_i64, -2, 3], &[3]);
    let narrow = x.to(DType::BF16);
    for step in 0..12 {
        let rate = 0.3 + 0.7 * f64::from(step);
        let scaled: Vec<f32> = [0.5, -1.5, 3.0].iter().map(|v| v * rate as f32 + rate as f32).collect();
        assert_eq!(values(&(&x * rate + rate)), scaled);
        let sum = x.call("aten.add.Tensor", [(&x).into(), rate.into()]);
        let sums: Vec<f32> = [0.5_f32, -1.5, 3.0].iter().map(|v| v + v * rate as f32).collect();
        assert_eq!(values(&sum), sums);
        let of_integers = &whole * rate;
        assert_eq!(of_integers.dtype(), DType::F32);
        assert_eq!(values(&of_integers), [rate as f32, -2.0 * rate as f32, 3.0 * rate as f32]);
        let of_narrow = &narrow * rate;
        assert_eq!(of_narrow.dtype(), DType::BF16);
        let exact = rate as f32 * 3.0;
        assert!((of_narrow.to(DType::F32).at(s![2]).item().unwrap() as f32 - exact).abs() <= exact / 256.0);
        let sloped = x.call("aten.leaky_relu.default", [rate.into()]);
        assert_eq!(values(&sloped), [0.5, -1.5 * rate as f32, 3.0]);
        let filled = Tensor::full(&[2], rate);
        assert_eq!(values(&filled), [rate as f32; 2]);
    }
}
