//! Sizes that do not work out, known when the program is compiled or only when it is called.

use ferroflux::{Error, Program};
use serde_json::{Value, json};

use super::archive::{Archive, f32, ints, tensor};
use super::{counted, gives, refused};

/// One call on `x: [1, 1, s0, 4]`, said to give these sizes.
fn of_image(target: &str, args: &[(&str, Value)], sizes: &[&str]) -> Result<Program, Error> {
    let ones = vec!["1"; sizes.len()];
    let all: Vec<(&str, Value)> =
        [("self", tensor("x"))].into_iter().chain(args.iter().map(|(n, a)| (*n, a.clone()))).collect();
    let archive =
        Archive::new().range("s0", 0, 64).input("x", f32(&["1", "1", "s0", "4"], &["4", "4", "4", "1"]));
    archive.call("y", target, &all, f32(sizes, &ones)).program(&["y"])
}

fn number(n: i64) -> Value {
    json!({ "as_int": n })
}

#[test]
fn windows_that_do_not_fit_the_call_are_errors() {
    let unfold = || {
        let args = [("dimension", number(2)), ("size", number(5)), ("step", number(2))];
        of_image("unfold.default", &args, &["1", "1", "((s0 - 5)//2) + 1", "4", "5"])
    };
    for rows in [0, 1, 2, 4] {
        refused(unfold, &[counted(&[1, 1, rows, 4])], &["y"]);
    }
    let wanted: Vec<f64> = (0..4).flat_map(|c| (0..5).map(move |r| f64::from(4 * r + c))).collect();
    gives(unfold, &[counted(&[1, 1, 6, 4])], &wanted);
    let pool = || {
        let args = [("kernel_size", ints(&[5, 1])), ("stride", ints(&[1, 1]))];
        of_image("max_pool2d.default", &args, &["1", "1", "s0 - 4", "4"])
    };
    for rows in [1, 3] {
        refused(pool, &[counted(&[1, 1, rows, 4])], &["y"]);
    }
    gives(pool, &[counted(&[1, 1, 5, 4])], &[16., 17., 18., 19.]);
}

#[test]
fn sizes_are_told_as_the_caller_gave_them() {
    let program = || {
        let x = f32(&["2*s0", "4"], &["4", "1"]);
        let archive = Archive::new().range("s0", 3, 64).input("x", x);
        archive.call("y", "neg.default", &[("self", tensor("x"))], x).program(&["y"])
    };
    for (rows, part) in [
        (130, "dimension 0 is 130; it must be a multiple of 2 from 6 to 128"),
        (7, "dimension 0 is 7; it must be a multiple of 2 from 6 to 128"),
        (4, "dimension 0 is 4; it must be a multiple of 2 from 6 to 128"),
    ] {
        refused(program, &[counted(&[rows, 4])], &[part]);
    }
    gives(program, &[counted(&[6, 4])], &(0..24).map(|n| -f64::from(n)).collect::<Vec<_>>());
}

#[test]
fn windows_that_never_fit_name_node_and_line() {
    for (target, args, sizes) in [
        (
            "unfold.default",
            vec![("dimension", number(3)), ("size", number(5)), ("step", number(1))],
            &["1", "1", "s0", "0", "5"][..],
        ),
        ("max_pool2d.default", vec![("kernel_size", ints(&[1, 7]))], &["1", "1", "s0", "0"]),
        ("avg_pool2d.default", vec![("kernel_size", ints(&[1, 7]))], &["1", "1", "s0", "0"]),
        (
            "narrow.default",
            vec![("dim", number(3)), ("start", number(2)), ("length", number(3))],
            &["1", "1", "s0", "3"],
        ),
        (
            "im2col.default",
            vec![
                ("kernel_size", ints(&[1, 9])),
                ("dilation", ints(&[1, 1])),
                ("padding", ints(&[0, 0])),
                ("stride", ints(&[1, 1])),
            ],
            &["1", "9", "0"],
        ),
    ] {
        let program = || of_image(target, &args, sizes);
        refused(
            program,
            &[counted(&[1, 1, 3, 4])],
            &["`y`", "model.py:7", target.split('.').next().unwrap()],
        );
    }
}
