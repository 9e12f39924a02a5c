//! Indices from data that are out of bounds, through the facade: every backend of the host refuses the call and says which
//! operator and index, gives what the others give for good ones, and goes on working.

#![allow(clippy::unwrap_used)] // a failing test may panic

use ferroflux::func::{self, CompiledFunc, Func, Operand, Types};
use ferroflux::{Options, Tensor};

fn floats(name: &str, sizes: &[usize]) -> Tensor {
    ferroflux::tensor::formula::fill(name, sizes, 1.0, 0.0).unwrap()
}

fn ints(values: &[i64]) -> Tensor {
    Tensor::from_vec(values.to_vec(), &[values.len()]).unwrap()
}

/// One operator: its function, its tensors with good indices, which of them holds indices, and whether negative ones count
/// from the end.
struct Case {
    what: &'static str,
    f: Func,
    inputs: Vec<Tensor>,
    indices: usize,
    wraps: bool,
}

const SIZE: i64 = 7;

fn cases() -> Vec<Case> {
    let ids: Vec<i64> = (0..40).map(|k| k * 3 % SIZE).collect();
    let (x, flat) = (floats("x", &[SIZE as usize, 5]), floats("flat", &[SIZE as usize]));
    let (rows, values) = (floats("rows", &[40, 5]), floats("values", &[40]));
    let index = ints(&ids);
    let case = |what, f, inputs, wraps| Case { what, f, inputs, indices: 1, wraps };
    let three = || vec![flat.clone(), index.clone(), values.clone()];
    vec![
        case(
            "embedding",
            func::of(|[w, ids]| w.call("aten.embedding.default", [ids.into()])),
            vec![x.clone(), index.clone()],
            false,
        ),
        case(
            "gather",
            func::of(|[x, ids]| x.call("aten.gather.default", [0i64.into(), ids.into()])),
            vec![flat.clone(), index.clone()],
            false,
        ),
        case(
            "index_select",
            func::of(|[x, ids]| x.call("aten.index_select.default", [0i64.into(), ids.into()])),
            vec![x.clone(), index.clone()],
            false,
        ),
        case(
            "index",
            func::of(|[x, ids]| x.call("aten.index.Tensor", [Operand::Vars(vec![ids])])),
            vec![x.clone(), index.clone()],
            true,
        ),
        case(
            "index_put",
            func::of(|[x, ids, v]| x.call("aten.index_put.default", [Operand::Vars(vec![ids]), v.into()])),
            vec![x.clone(), index.clone(), rows.clone()],
            true,
        ),
        case(
            "scatter_add",
            func::of(|[x, ids, v]| x.call("aten.scatter_add.default", [0i64.into(), ids.into(), v.into()])),
            three(),
            false,
        ),
        case(
            "index_add",
            func::of(|[x, ids, v]| x.call("aten.index_add.default", [0i64.into(), ids.into(), v.into()])),
            vec![x, index, rows],
            false,
        ),
    ]
}

fn compiled(case: &Case, backend: &str) -> CompiledFunc {
    let options = Options::new().backend(backend);
    case.f
        .compile(&Types::of(&case.inputs), &options)
        .unwrap_or_else(|e| panic!("{}, {backend}: {e}", case.what))
}

#[test]
fn an_index_out_of_bounds_is_an_error_on_every_backend_and_good_ones_agree() {
    for case in cases() {
        let wanted = compiled(&case, "eager").call(&case.inputs).unwrap();
        for backend in ["eager", "oracle", "cpu"] {
            let f = compiled(&case, backend);
            let good = |inputs: &[Tensor]| {
                f.call(inputs).unwrap_or_else(|e| panic!("{}, {backend}: {e}", case.what))
            };
            let agree = |got: &[Tensor]| {
                // Points that meet at one place add up in any order.
                if case.what != "index_put" {
                    tensor::allclose(&got[0], &wanted[0], 1e-5, 1e-5)
                        .unwrap_or_else(|e| panic!("{}, {backend}: {e}", case.what));
                }
            };
            agree(&good(&case.inputs));
            for bad in [SIZE, -SIZE - 1, -1, 1_000_000_000, -1_000_000_000, i64::MAX, i64::MIN] {
                for at in [0, 5, 39] {
                    let mut ids: Vec<i64> = case.inputs[case.indices].iter_i64().collect();
                    ids[at] = bad;
                    let mut inputs = case.inputs.clone();
                    inputs[case.indices] = ints(&ids);
                    let result = f.call(&inputs);
                    if case.wraps && bad == -1 {
                        result.unwrap_or_else(|e| panic!("{}, {backend}: {e}", case.what));
                        continue;
                    }
                    let error = match result {
                        Ok(_) => panic!("{}, {backend}: {bad} was taken", case.what),
                        Err(e) => e.to_string(),
                    };
                    let named = error.contains(case.what)
                        && error.contains("is out of bounds for dimension 0 with size 7");
                    assert!(named, "{}, {backend}: {error}", case.what);
                }
            }
            agree(&good(&case.inputs));
        }
    }
}
