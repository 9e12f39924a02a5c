//! Programs that say of their values what they are not, and programs whose sizes do not work out: the error for each, or
//! the right numbers, on every backend of this build, and never a read of foreign memory.

// A helper of tests may fail as a test does.
#![allow(clippy::unwrap_used)]

mod archive;
mod sizes;
mod texts;

use archive::{Archive, F64, Meta, f32, ints, tensor};
use ferroflux::{Error, Options, Program, Tensor};
use serde_json::json;

/// Backends to run on: the CPU's where it is linked in.
const BACKENDS: &[&str] =
    if cfg!(feature = "cpu") { &["eager", "oracle", "cpu"] } else { &["eager", "oracle"] };

fn run(program: &Program, backend: &str, inputs: &[Tensor]) -> Result<Vec<Tensor>, Error> {
    program.compile(&Options::new().backend(backend))?.call(inputs)
}

/// `0, 1, 2, …`.
fn counted(sizes: &[usize]) -> Tensor {
    let count = sizes.iter().product::<usize>();
    Tensor::from_vec((0..count).map(|n| n as f32).collect(), sizes).unwrap()
}

fn numbers(tensor: &Tensor) -> Vec<f64> {
    tensor.iter_f64().collect()
}

/// Expects an error with all `parts` from every backend, when it compiles or when it is called.
fn refused(program: impl Fn() -> Result<Program, Error>, inputs: &[Tensor], parts: &[&str]) {
    for &backend in BACKENDS {
        let done = program().and_then(|p| run(&p, backend, inputs));
        let error = match done {
            Ok(outputs) => panic!("{backend} gives {outputs:?}; expected an error with {parts:?}"),
            Err(error) => error.to_string(),
        };
        for part in parts {
            assert!(error.contains(part), "{backend}: no `{part}` in\n{error}");
        }
        assert!(!error.contains("internal error"), "{backend}: {error}");
    }
}

/// Expects these numbers from every backend.
fn gives(program: impl Fn() -> Result<Program, Error>, inputs: &[Tensor], wanted: &[f64]) {
    for &backend in BACKENDS {
        let outputs = program().and_then(|p| run(&p, backend, inputs)).unwrap();
        assert_eq!(numbers(&outputs[0]), wanted, "{backend}");
    }
}

fn strided(base: Meta<'_>, size: &[i64], stride: &[i64], offset: Option<i64>) -> Result<Program, Error> {
    let text: Vec<String> = size.iter().map(ToString::to_string).collect();
    let sizes: Vec<&str> = text.iter().map(String::as_str).collect();
    let ones = vec!["1"; sizes.len()];
    let mut args = vec![("self", tensor("x")), ("size", ints(size)), ("stride", ints(stride))];
    args.extend(offset.map(|o| ("storage_offset", json!({ "as_int": o }))));
    let archive = Archive::new().input("x", base);
    archive.call("view", "as_strided.default", &args, f32(&sizes, &ones)).program(&["view"])
}

#[test]
fn views_stay_within_their_base() {
    let base = f32(&["4", "6"], &["6", "1"]);
    let inputs = [counted(&[4, 6])];
    for (size, stride, offset, part) in [
        (&[4][..], &[1000][..], None, "do not lie within 24 elements"),
        (&[4], &[1 << 40], None, "do not lie within 24 elements"),
        (&[4], &[i64::MAX], None, "do not lie within 24 elements"),
        (&[4], &[1], Some(1_000_000), "from 1000000 on do not lie within 24 elements"),
        (&[4], &[1], Some(21), "from 21 on do not lie within 24 elements"),
        (&[4], &[1], Some(-5), "must not be negative"),
        (&[4], &[-1], Some(5), "must not be negative"),
        (&[4, 2], &[1], None, "sizes but"),
    ] {
        refused(
            || strided(base, size, stride, offset),
            &inputs,
            &["`view`", "model.py:7", "as_strided", part],
        );
    }
    gives(|| strided(base, &[3, 2], &[4, 2], Some(13)), &inputs, &[13., 15., 17., 19., 21., 23.]);
    gives(|| strided(base, &[3, 2], &[0, 1], Some(22)), &inputs, &[22., 23., 22., 23., 22., 23.]);
    gives(|| strided(base, &[0, 2], &[1000, 1], None), &inputs, &[]);
    // The base lies in another order, or is itself a part of its storage.
    let turned = f32(&["2", "3"], &["1", "2"]);
    gives(|| strided(turned, &[6], &[1], None), &[counted(&[2, 3])], &[0., 3., 1., 4., 2., 5.]);
    // What lies before a part of a storage is not the program's.
    let part = Meta { offset: 10, ..f32(&["6"], &["1"]) };
    refused(|| strided(part, &[2], &[2], Some(9)), &[counted(&[6])], &["`view`", "model.py:7"]);
}

/// `y = x + x`, which says this of `x` and `y`.
fn doubled(x: Meta<'_>, y: Meta<'_>) -> Result<Program, Error> {
    let args = [("self", tensor("x")), ("other", tensor("x"))];
    Archive::new().input("x", x).call("y", "add.Tensor", &args, y).program(&["y"])
}

#[test]
fn strides_that_repeat_or_skip_elements_change_no_number() {
    let row = f32(&["4", "3"], &["3", "1"]);
    let wanted: Vec<f64> = (0..12).map(|n| f64::from(2 * n)).collect();
    for strides in
        [["0", "1"], ["0", "0"], ["1", "1"], ["1099511627776", "1"], ["1", "4"], ["8", "2"], ["s9", "1"]]
    {
        let strange = f32(&["4", "3"], &strides);
        for inputs in [[counted(&[4, 3])], [counted(&[3, 4]).permute(&[1, 0]).unwrap()]] {
            let wanted: Vec<f64> = inputs[0].iter_f64().map(|x| 2.0 * x).collect();
            gives(|| doubled(strange, row), &inputs, &wanted);
            gives(|| doubled(strange, strange), &inputs, &wanted);
        }
        gives(|| doubled(row, strange), &[counted(&[4, 3])], &wanted);
    }
}

#[test]
fn values_are_what_operators_give() {
    let x = f32(&["4", "3"], &["3", "1"]);
    for y in [
        f32(&["400", "3"], &["3", "1"]),
        f32(&["2", "3"], &["3", "1"]),
        f32(&["12"], &["1"]),
        f32(&["4", "3", "1"], &["3", "1", "1"]),
        Meta { dtype: F64, ..x },
    ] {
        let part = "the program expects f";
        refused(|| doubled(x, y), &[counted(&[4, 3])], &["`y`", "aten.add.Tensor", "model.py:7", part]);
    }
    // A view whose result is said to be longer than its arguments make it.
    let narrow = |length: &'static str| {
        let number = |n: i64| json!({ "as_int": n });
        let args = [("self", tensor("x")), ("dim", number(0)), ("start", number(1)), ("length", number(2))];
        let archive = Archive::new().input("x", f32(&["8"], &["1"]));
        let archive = archive.call("part", "narrow.default", &args, f32(&[length], &["1"]));
        archive.call("y", "neg.default", &[("self", tensor("part"))], f32(&[length], &["1"])).program(&["y"])
    };
    gives(|| narrow("2"), &[counted(&[8])], &[-1., -2.]);
    for length in ["5", "1", "4096"] {
        refused(|| narrow(length), &[counted(&[8])], &["`part`", "aten.narrow.default", "model.py:7"]);
    }
}

#[test]
fn too_much_memory_is_refused_with_its_size() {
    // 2^51 elements: no machine has them.
    let huge = ["1099511627776", "2048"];
    let size = [1 << 40, 1 << 11];
    let strided = || strided(f32(&["4"], &["1"]), &size, &[0, 0], None);
    refused(strided, &[counted(&[4])], &["9007199254740992"]);
    let full = || {
        let number = json!({ "as_float": 1.0 });
        let args = [("size", ints(&size)), ("fill_value", number)];
        let archive = Archive::new().input("x", f32(&["4"], &["1"]));
        archive.call("y", "full.default", &args, f32(&huge, &["2048", "1"])).program(&["y"])
    };
    refused(full, &[counted(&[4])], &[]);
    // More than any address.
    let size = [1 << 40, 1 << 40];
    let full = || {
        let args = [("size", ints(&size)), ("fill_value", json!({ "as_float": 1.0 }))];
        let sizes = ["1099511627776", "1099511627776"];
        let archive = Archive::new().input("x", f32(&["4"], &["1"]));
        archive.call("y", "full.default", &args, f32(&sizes, &["1", "1"])).program(&["y"])
    };
    refused(full, &[counted(&[4])], &[]);
}

#[test]
fn every_backend_counts_its_inputs() {
    let x = f32(&["2"], &["1"]);
    let program = doubled(x, x).unwrap();
    for &backend in BACKENDS {
        let compiled = program.compile(&Options::new().backend(backend)).unwrap();
        let given = |n: usize| (0..n).map(|_| counted(&[2]).into()).collect::<Vec<_>>();
        assert!(compiled.call_values(&given(1)).is_ok());
        for n in [0, 2] {
            let error = compiled.call_values(&given(n)).unwrap_err().to_string();
            assert!(error.contains(&format!("takes 1 inputs (x), {n} were given")), "{backend}: {error}");
            assert!(compiled.call_values_mut(&mut given(n)).is_err(), "{backend}");
        }
    }
}
