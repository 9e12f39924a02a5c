//! Operators with indices from data, lowered as programs: indices in bounds give the result of `interp`; others end the
//! call with an error that names the operator, in every mode.
#![allow(clippy::unwrap_used)] // a failing test may panic

use crate::common::{Case, emulator};
use fx_ir::{Arg, ValueId};
use ir_core::DType::{F32, I64};

/// Indices that are out of bounds of every dimension.
const BAD: [i64; 3] = [1_000_000_000, i64::MIN / 2, -1000];

/// Six indices, the fourth of which is `at`.
fn index(c: &mut Case, at: i64) -> ValueId {
    c.input(I64, &[6], |i| if i == 3 { at as f64 } else { (i * 3 % 5) as f64 })
}

/// An operator with an index: its name, its builder, the size of the dimension, and whether negative indices count from
/// the end.
type Operator = (&'static str, fn(&mut Case, i64), i64, bool);

const OPERATORS: [Operator; 9] = [
    ("aten.embedding.default", embedding, 7, false),
    ("aten.index_select.default", index_select, 7, false),
    ("aten.gather.default", gather, 7, false),
    ("aten.index.Tensor", index_tensor, 7, true),
    ("aten.index_put.default", index_put, 7, true),
    ("aten.index_add.default", index_add, 7, false),
    ("aten.scatter_add.default", scatter_add, 7, false),
    ("aten.scatter.src", scatter, 7, false),
    ("aten.one_hot.default", one_hot, 7, false),
];

fn embedding(c: &mut Case, at: i64) {
    let (table, at) = (c.any(F32, &[7, 8]), index(c, at));
    let rows = c.call("aten.embedding.default", vec![table.into(), at.into()]);
    c.shows("aten.mul.Tensor", vec![rows.into(), rows.into()]);
}

fn index_select(c: &mut Case, at: i64) {
    let (x, at) = (c.any(F32, &[4, 7, 3]), index(c, at));
    c.shows("aten.index_select.default", vec![x.into(), 1i64.into(), at.into()]);
}

fn gather(c: &mut Case, at: i64) {
    let x = c.any(F32, &[7, 6]);
    let at = c.input(I64, &[2, 6], |i| if i == 9 { at as f64 } else { (i % 7) as f64 });
    let rows = c.call("aten.gather.default", vec![x.into(), 0i64.into(), at.into()]);
    c.shows("aten.sum.dim_IntList", vec![rows.into(), Arg::from(&[1i64][..])]);
}

fn index_tensor(c: &mut Case, at: i64) {
    let (x, at) = (c.any(F32, &[7, 4]), index(c, at));
    c.shows("aten.index.Tensor", vec![x.into(), Arg::List(vec![at.into()])]);
}

fn index_put(c: &mut Case, at: i64) {
    let (x, at, new) = (c.any(F32, &[7, 4]), index(c, at), c.any(F32, &[6, 4]));
    let list = Arg::List(vec![at.into()]);
    c.shows("aten.index_put.default", vec![x.into(), list, new.into(), true.into()]);
}

fn index_add(c: &mut Case, at: i64) {
    let (x, at, more) = (c.any(F32, &[7, 4]), index(c, at), c.any(F32, &[6, 4]));
    c.shows("aten.index_add.default", vec![x.into(), 0i64.into(), at.into(), more.into()]);
}

fn scatter_add(c: &mut Case, at: i64) {
    let (x, more) = (c.any(F32, &[7, 4]), c.any(F32, &[2, 4]));
    let at = c.input(I64, &[2, 4], |i| if i == 5 { at as f64 } else { (i % 7) as f64 });
    c.shows("aten.scatter_add.default", vec![x.into(), 0i64.into(), at.into(), more.into()]);
}

fn scatter(c: &mut Case, at: i64) {
    let (x, new) = (c.any(F32, &[7, 4]), c.any(F32, &[2, 4]));
    let at = c.input(I64, &[2, 4], |i| if i == 5 { at as f64 } else { (i % 7) as f64 });
    c.shows("aten.scatter.src", vec![x.into(), 0i64.into(), at.into(), new.into()]);
}

fn one_hot(c: &mut Case, at: i64) {
    let at = index(c, at);
    c.shows("aten.one_hot.default", vec![at.into(), 7i64.into()]);
}

fn case(operator: &Operator, at: i64) -> Case {
    let mut c = Case::new(&format!("{} at {at}", operator.0));
    operator.1(&mut c, at);
    c
}

#[test]
fn indices_in_bounds_give_the_result() {
    let Some(emulator) = emulator() else { return };
    for operator in &OPERATORS {
        let least = if operator.3 { -operator.2 } else { 0 };
        for at in [least, operator.2 - 1] {
            case(operator, at).check(&emulator);
        }
    }
}

#[test]
fn indices_out_of_bounds_are_reported() {
    let Some(emulator) = emulator() else { return };
    for operator in &OPERATORS {
        let (size, beyond) = (operator.2, if operator.3 { -operator.2 - 1 } else { -1 });
        for at in BAD.into_iter().chain([size, beyond]) {
            let why = format!("index {at} is out of bounds");
            case(operator, at).refused(&emulator, &why);
        }
    }
}
