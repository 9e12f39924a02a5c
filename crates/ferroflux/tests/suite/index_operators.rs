//! What indices mean, operator by operator, as PyTorch has it: negative ones count from the end or are refused, those just out
//! of range and those far out of it are refused with operator, index and size, on every backend of the host. An operator sees
//! the size of its operand, not that of the buffer after it.

#![allow(clippy::unwrap_used)] // a failing test may panic

use ferroflux::func::{self, Func, Types};
use ferroflux::{Options, Tensor};

fn floats(name: &str, sizes: &[usize]) -> Tensor {
    ferroflux::tensor::formula::fill(name, sizes, 1.0, 0.0).unwrap()
}

fn ints(values: &[i64], sizes: &[usize]) -> Tensor {
    Tensor::from_vec(values.to_vec(), sizes).unwrap()
}

/// An operator on indices, the first of which is tried with other numbers.
struct Case {
    what: &'static str,
    f: Func,
    inputs: Vec<Tensor>,
    /// Which input holds the indices.
    indices: usize,
    /// The smallest index that is taken.
    low: i64,
    /// One more than the largest.
    size: i64,
}

fn case(what: &'static str, f: Func, inputs: Vec<Tensor>, indices: usize, range: (i64, i64)) -> Case {
    Case { what, f, inputs, indices, low: range.0, size: range.1 }
}

fn cases() -> Vec<Case> {
    let (x, ids) = (floats("x", &[4, 3]), ints(&[1, 0, 2], &[3]));
    let (rows, values) = (floats("rows", &[3, 3]), floats("values", &[3]));
    let scores = floats("scores", &[3, 4]);
    let mut all = vec![
        case(
            "take",
            func::of(|[x, i]| x.call("aten.take.default", [i.into()])),
            vec![x.clone(), ids.clone()],
            1,
            (-12, 12),
        ),
        case(
            "put",
            func::of(|[x, i, v]| x.call("aten.put.default", [i.into(), v.into()])),
            vec![x.clone(), ids.clone(), values],
            1,
            (-12, 12),
        ),
        case(
            "index_copy",
            func::of(|[x, i, v]| x.call("aten.index_copy.default", [0i64.into(), i.into(), v.into()])),
            vec![x.clone(), ids.clone(), rows],
            1,
            (0, 4),
        ),
        case(
            "index_fill",
            func::of(|[x, i]| x.call("aten.index_fill.int_Scalar", [0i64.into(), i.into(), 1.5f64.into()])),
            vec![x.clone(), ids.clone()],
            1,
            (-4, 4),
        ),
        case(
            "one_hot",
            func::of(|[i]| i.call("aten.one_hot.default", [4i64.into()])),
            vec![ids.clone()],
            0,
            (0, 4),
        ),
        case(
            "nll_loss",
            func::of(|[x, i]| x.call("aten.nll_loss.default", [i.into()])),
            vec![scores.clone(), ids.clone()],
            1,
            (0, 4),
        ),
        case(
            "cross_entropy_loss",
            func::of(|[x, i]| x.call("aten.cross_entropy_loss.default", [i.into()])),
            vec![scores.clone(), ids.clone()],
            1,
            (0, 4),
        ),
        case(
            "multi_margin_loss",
            func::of(|[x, i]| x.call("aten.multi_margin_loss.default", [i.into()])),
            vec![scores, ids.clone()],
            1,
            (0, 4),
        ),
        case(
            "index_select",
            func::of(|[x, i]| {
                let part = x.call("aten.slice.Tensor", [0i64.into(), 2i64.into(), 6i64.into()]);
                part.call("aten.index_select.default", [0i64.into(), i.into()])
            }),
            vec![floats("large", &[10, 3]), ids],
            1,
            (0, 4),
        ),
    ];
    // -1 ends the list of a row's targets.
    all.push(case(
        "multilabel_margin_loss",
        func::of(|[x, i]| x.call("aten.multilabel_margin_loss.default", [i.into()])),
        vec![floats("scores", &[1, 3]), ints(&[1, 0, -1], &[1, 3])],
        1,
        (-1, 3),
    ));
    all
}

#[test]
fn every_operator_takes_what_pytorch_takes_and_refuses_the_rest() {
    for case in cases() {
        let types = Types::of(&case.inputs);
        for backend in ["eager", "oracle", "cpu"] {
            let options = Options::new().backend(backend);
            let f = case.f.compile(&types, &options).unwrap_or_else(|e| panic!("{}: {e}", case.what));
            for index in [0, case.size - 1, case.low, case.low - 1, case.size, 1_000_000_000, i64::MIN] {
                let mut inputs = case.inputs.clone();
                let old = &inputs[case.indices];
                let mut values: Vec<i64> = old.iter_i64().collect();
                values[0] = index;
                inputs[case.indices] = ints(&values, old.sizes());
                let (result, at) = (f.call(&inputs), format!("{} {index} on {backend}", case.what));
                match result {
                    Ok(_) => assert!((case.low..case.size).contains(&index), "{at} is taken"),
                    Err(e) => {
                        let said = e.to_string();
                        assert!(!(case.low..case.size).contains(&index), "{at}: {said}");
                        let number = format!("index {index} is out of bounds");
                        assert!(said.contains(case.what) && said.contains(&number), "{at}: {said}");
                        assert!(said.contains(&format!("with size {}", case.size)), "{at}: {said}");
                    }
                }
            }
        }
    }
}

#[test]
fn indices_beside_a_slice_of_them_are_not_looked_at() {
    let f = func::of(|[x, i]| {
        let part = i.call("aten.slice.Tensor", [0i64.into(), 3i64.into(), 6i64.into()]);
        x.call("aten.index_select.default", [0i64.into(), part.into()])
    });
    let x = floats("x", &[4, 3]);
    let good = [x.clone(), ints(&[99, -7, 4, 1, 3, 0, 4, 1 << 40], &[8])];
    let bad = [x, ints(&[0, 0, 0, 1, 4, 0, 0, 0], &[8])];
    for backend in ["eager", "oracle", "cpu"] {
        let f = f.compile(&Types::of(&good), &Options::new().backend(backend)).unwrap();
        assert_eq!(f.call(&good).unwrap()[0].sizes(), [3, 3]);
        let said = f.call(&bad).unwrap_err().to_string();
        assert!(said.contains("index 4 is out of bounds for dimension 0 with size 4"), "{backend}: {said}");
    }
}

#[test]
fn take_along_dim_goes_around_the_dimension() {
    let f = func::of(|[x, i]| x.call("aten.take_along_dim.default", [i.into(), 0i64.into()]));
    let x = floats("x", &[4, 3]);
    let (wild, tame) = (ints(&[-5, 4, 11], &[1, 3]), ints(&[3, 0, 3], &[1, 3]));
    for backend in ["eager", "oracle", "cpu"] {
        let f = f.compile(&Types::of(&[x.clone(), wild.clone()]), &Options::new().backend(backend)).unwrap();
        let (a, b) =
            (f.call(&[x.clone(), wild.clone()]).unwrap(), f.call(&[x.clone(), tame.clone()]).unwrap());
        tensor::allclose(&a[0], &b[0], 0.0, 0.0).unwrap();
    }
}
