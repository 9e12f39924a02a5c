//! Points whose operands lie in other orders, are broadcast, gathered or parts of a concatenation, by vectors where that is
//! possible: against `interp`, for every candidate.
#![allow(clippy::unwrap_used)] // a failing test may panic

use crate::common::{Case, emulator};
use fx_ir::{Arg, ValueId};
use ir_core::DType::{self, BF16, Bool, F16, F32, F64, I64};

fn ints(list: &[i64]) -> Arg {
    Arg::from(list)
}

/// `x` with its dimensions in another order, as rows.
fn turned(c: &mut Case, x: ValueId, order: &[i64], rows: &[i64]) -> ValueId {
    let y = c.call("prims.permute", vec![x.into(), ints(order)]);
    c.call("prims.reshape", vec![y.into(), ints(rows)])
}

fn expanded(c: &mut Case, x: ValueId, sizes: &[i64]) -> ValueId {
    c.call("prims.expand", vec![x.into(), ints(sizes)])
}

/// Heads inside and outside of rows, with something added that is the same in every row or in every column.
#[test]
fn heads_and_broadcasts() {
    let Some(emulator) = emulator() else { return };
    // Independent steps would share a launch, so each is a program of its own.
    for (dtype, width, way) in [
        (BF16, 64, "wide_8"),
        (F32, 64, "wide_4"),
        (F16, 24, "loop"),
        (F64, 64, "wide_2"),
        (BF16, 63, "loop"),
    ] {
        let mut c = Case::new("heads");
        let x = c.any(dtype, &[34, 130, width]);
        let rows = [130, 34 * width];
        let y = turned(&mut c, x, &[1, 0, 2], &rows);
        let bias = c.any(dtype, &[1, 34 * width]);
        let bias = expanded(&mut c, bias, &rows);
        let y = c.call("prims.add", vec![y.into(), bias.into()]);
        let scale = c.any(dtype, &[130, 1]);
        let scale = expanded(&mut c, scale, &rows);
        c.shows("prims.mul", vec![y.into(), scale.into()]);
        c.check_candidates(&emulator, &[way]);
    }
}

/// Parts that begin at multiples of a vector and ones that do not.
#[test]
fn parts_of_a_concatenation() {
    let Some(emulator) = emulator() else { return };
    let mut c = Case::new("parts");
    for (dtype, widths) in [(BF16, [512, 504]), (F32, [64, 512]), (F16, [100, 412]), (BF16, [33, 1023])] {
        let parts: Vec<Arg> = widths.iter().map(|w| c.any(dtype, &[520, *w]).into()).collect();
        let all = c.call("prims.cat", vec![Arg::List(parts), 1i64.into()]);
        c.shows("prims.neg", vec![all.into()]);
    }
    c.check(&emulator);
}

/// The second half of each row, negated, before the first one, as rotary embeddings have it.
#[test]
fn rotated_halves() {
    let Some(emulator) = emulator() else { return };
    let mut c = Case::new("rotated");
    for dtype in [BF16, F32] {
        let sizes = [2, 16, 130, 64];
        let x = c.any(dtype, &[2, 130, 16, 64]);
        let x = c.call("prims.permute", vec![x.into(), ints(&[0, 2, 1, 3])]);
        let half = |c: &mut Case, from: i64| {
            let args = [3, from, 32, 1].map(Arg::from);
            c.call("prims.slice", [x.into()].into_iter().chain(args).collect())
        };
        let (low, high) = (half(&mut c, 0), half(&mut c, 32));
        let high = c.call("prims.neg", vec![high.into()]);
        let turned = c.call("prims.cat", vec![Arg::List(vec![high.into(), low.into()]), 3i64.into()]);
        let angle = c.any(dtype, &[1, 1, 130, 64]);
        let angle = expanded(&mut c, angle, &sizes);
        let product = c.call("prims.mul", vec![turned.into(), angle.into()]);
        c.shows("prims.add", vec![product.into(), x.into()]);
    }
    c.check(&emulator);
}

/// Rows of a table by number, and truth values.
#[test]
fn gathered_rows() {
    let Some(emulator) = emulator() else { return };
    let mut c = Case::new("gathered");
    for dtype in [BF16, F32] {
        let table = c.any(dtype, &[100, 64]);
        let rows = c.input(I64, &[4200], |i| (i * 37 % 100) as f64);
        c.shows("aten.embedding.default", vec![table.into(), rows.into()]);
    }
    let x = c.any(Bool, &[520, 16, 64]);
    let y = turned(&mut c, x, &[1, 0, 2], &[16 * 520, 64]);
    c.shows("aten.logical_not.default", vec![y.into()]);
    c.check(&emulator);
}

/// Sums over the rows of what was turned: the columns are parts of a longer dimension.
#[test]
fn sums_of_turned_columns() {
    let Some(emulator) = emulator() else { return };
    let mut c = Case::new("sums");
    for (dtype, width) in [(BF16, 256), (F32, 72), (F32, 33)] {
        let x = c.any(dtype, &[3, 500, width]);
        let y = turned(&mut c, x, &[1, 0, 2], &[500, 3 * width]);
        let wide = c.call("prims.convert", vec![y.into(), DType::F32.into()]);
        c.shows("prims.sum", vec![wide.into(), ints(&[0])]);
    }
    c.check_twice(&emulator);
}

/// Functions whose results have 16 bits are computed to some 17 bits, those in `f32` to all: over the whole range, beyond it,
/// and of no number.
#[test]
fn logistic_functions_and_gelus() {
    let Some(emulator) = emulator() else { return };
    let mut c = Case::new("functions");
    for dtype in [BF16, F16, F32] {
        let x = c.input(dtype, &[2, 2048], |i| match i {
            0 => f64::NAN,
            1 => f64::INFINITY,
            2 => f64::NEG_INFINITY,
            _ => (-1f64).powi(i as i32 % 2) * 2f64.powf(i as f64 / 4096.0 * 24.0 - 17.0),
        });
        for target in ["aten.sigmoid.default", "aten.silu.default", "aten.gelu.default"] {
            c.shows(target, vec![x.into()]);
        }
    }
    c.check(&emulator);
}

/// Rows that are added at indices from data, several of them at one place: the adjacent numbers of a row at once, where rows are whole
/// vectors. The numbers are whole, so that sums are exact in any order.
#[test]
fn rows_added_at_indices() {
    let Some(emulator) = emulator() else { return };
    for (dtype, width, way) in [
        (F32, 64, "wide_4"),
        (F32, 26, "wide_2"),
        (BF16, 64, "wide_8"),
        (F16, 36, "wide_4"),
        (F64, 8, "loop"),
    ] {
        let rows = 40_000 * 8 / width;
        let mut c = Case::new("rows_added");
        let table = c.input(dtype, &[50, width], |i| (i % 7) as f64);
        let at = c.input(I64, &[rows], |i| (i * i % 41) as f64);
        let given = c.input(dtype, &[rows, width], |i| (i % 4 % 3) as f64 - 1.0);
        c.shows("aten.index_add.default", vec![table.into(), 0i64.into(), at.into(), given.into()]);
        c.check_candidates(&emulator, &[way]);
    }
}
