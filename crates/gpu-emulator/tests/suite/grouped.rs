//! Products by groups of rows and of the depth, as mixtures of experts have them: every kind of kernel, with empty groups, places in no
//! group and numbers that are no ends, against sums in double precision.
#![allow(clippy::unwrap_used)] // a failing test may panic

use std::collections::BTreeMap;

use gpu_codegen::{Target, Variant, variants};
use gpu_emulator::Emulator;
use ir_core::DType;
use kernel_ir::{Along, Epilogue, Groups, Matmul, Operand, Program, Step};

use crate::steps::{Case, Choose, at, row_major};
use DType::{BF16, F16, F32};

/// All candidates of a device.
fn all_of(program: &Program, step: &Step, target: &Target) -> BTreeMap<String, Variant> {
    let list = variants(program, step, target).unwrap();
    list.into_iter().map(|candidate| (candidate.name.clone(), candidate)).collect()
}

/// Those of Hoppers with few multiprocessors, where persistent blocks compute several tiles, and with many, and of Ampere.
fn nvidia(program: &Program, step: &Step) -> BTreeMap<String, Variant> {
    let mut all = BTreeMap::new();
    for multiprocessors in [2, 132] {
        for tf32 in [false, true] {
            let target = Target { multiprocessors, tf32: tf32.into(), ..Target::HOPPER };
            let list = all_of(program, step, &target).into_iter();
            all.extend(list.map(|(name, candidate)| (format!("{name} of {multiprocessors}"), candidate)));
        }
    }
    all.extend(all_of(program, step, &Target::AMPERE));
    all
}

fn cdna(program: &Program, step: &Step) -> BTreeMap<String, Variant> {
    all_of(program, step, &Target::CDNA)
}

fn rdna(program: &Program, step: &Step) -> BTreeMap<String, Variant> {
    all_of(program, step, &Target::RDNA)
}

/// Ends of four groups of `places`.
fn ends_of(places: i64) -> [[i64; 4]; 4] {
    let third = places / 3;
    [
        [third, third, places - 1, places],
        [0, 1, third, third + 2],
        [0, 0, places, places],
        [third, -5, i64::from(i32::MAX), 1],
    ]
}

fn owner(ends: &[i64], place: i64) -> Option<usize> {
    ends.iter().position(|end| *end > place)
}

fn product(name: &str, [a, b]: [Operand; 2], groups: Groups, epilogue: Epilogue) -> Step {
    Step::Matmul(Matmul {
        name: name.into(),
        origins: vec![],
        a,
        b,
        acc: F32,
        zero: 0,
        dequant: None,
        groups: Some(groups),
        epilogue,
    })
}

/// Rows `[m, k]` by matrices `[4, k, n]` whose columns are contiguous, or whose inner points are.
fn rows(target: &Target, dtype: DType, sizes: [i64; 3], by_columns: bool, choose: Choose) -> Vec<String> {
    rows_at(target, dtype, (sizes, [sizes[2], 1]), by_columns, choose)
}

/// The same with the strides of the left operand.
fn rows_at(
    target: &Target,
    dtype: DType,
    ([m, n, k], a): ([i64; 3], [i64; 2]),
    by_columns: bool,
    choose: Choose,
) -> Vec<String> {
    let mut names = Vec::new();
    let b = if by_columns { [k * n, n, 1] } else { [k * n, 1, k] };
    for ends in ends_of(m) {
        let mut case = Case::new(&format!("{m}x{n}x{k} rows of {ends:?}"), dtype);
        let (left, right) = (case.operand(dtype, &[m, k], &a), case.operand(dtype, &[4, k, n], &b));
        let groups = Groups { ends: case.integers(&ends), along: Along::Rows };
        let epilogue = case.finish(dtype, &[m, n], &row_major(&[m, n]), 1, |i, data| {
            let sum = |g: usize| -> f64 {
                (0..k).map(|q| data[0][at(&[i[0], q], &a)] * data[1][at(&[g as i64, q, i[1]], &b)]).sum()
            };
            owner(&ends, i[0]).map_or(0.0, sum)
        });
        let step = product("rows", [left, right], groups, epilogue);
        names = case.run_on(Emulator::new(target.clone()), step, choose);
    }
    names
}

/// `[m, k] × [k, n]`, both with contiguous inner points or with contiguous rows and columns, by four groups of the depth.
fn depth(target: &Target, dtype: DType, [m, n, k]: [i64; 3], inner: bool, choose: Choose) -> Vec<String> {
    let mut names = Vec::new();
    let (a, b) = if inner { ([k, 1], [1, k]) } else { ([1, m], [n, 1]) };
    for ends in ends_of(k) {
        let mut case = Case::new(&format!("{m}x{n}x{k} depth of {ends:?}"), dtype);
        let (left, right) = (case.operand(dtype, &[m, k], &a), case.operand(dtype, &[k, n], &b));
        let groups = Groups { ends: case.integers(&ends), along: Along::Depth };
        let ranges = [4, m, n];
        let epilogue = case.finish(dtype, &ranges, &row_major(&ranges), 2, |i, data| {
            let own = |q: &i64| owner(&ends, *q) == Some(i[0] as usize);
            (0..k).filter(own).map(|q| data[0][at(&[i[1], q], &a)] * data[1][at(&[q, i[2]], &b)]).sum()
        });
        let step = product("depth", [left, right], groups, epilogue);
        names = case.run_on(Emulator::new(target.clone()), step, choose);
    }
    names
}

/// Whether one of the candidates that ran is of a kind; where nothing can be emulated none ran.
#[track_caller]
fn ran(names: &[String], kind: &str) {
    let found = names.iter().any(|name| name.starts_with(kind));
    assert!(gpu_emulator::available().is_err() || found, "no candidate of `{kind}` in {names:?}");
}

#[test]
fn rows_by_tiles() {
    for by_columns in [false, true] {
        let names = rows(&Target::HOPPER, BF16, [150, 136, 72], by_columns, nvidia);
        ["mma", "wgmma_64", "wgmma_persistent"].iter().for_each(|kind| ran(&names, kind));
        ran(&rows(&Target::HOPPER, F32, [70, 40, 72], by_columns, nvidia), "fma");
    }
    ran(&rows(&Target::HOPPER, F16, [37, 51, 77], true, nvidia), "mma");
}

/// As many rows as whole tiles have, whose groups' tiles end elsewhere; and rows that are contiguous along the columns.
#[test]
fn rows_of_whole_tiles_and_of_columns() {
    for dtype in [BF16, F32] {
        rows(&Target::HOPPER, dtype, [128, 72, 64], true, nvidia);
        rows_at(&Target::HOPPER, dtype, ([64, 72, 40], [1, 64]), true, nvidia);
        rows_at(&Target::HOPPER, dtype, ([128, 40, 64], [1, 128]), false, nvidia);
    }
    rows_at(&Target::CDNA, BF16, ([64, 64, 64], [1, 64]), false, cdna);
}

#[test]
fn few_rows_read_the_matrices_of_their_groups() {
    for dtype in [BF16, F32] {
        ran(&rows(&Target::HOPPER, dtype, [5, 40, 264], false, nvidia), "gemv_rows");
        ran(&rows(&Target::HOPPER, dtype, [16, 72, 136], true, nvidia), "gemv_columns");
    }
}

#[test]
fn parts_of_the_depth_by_tiles() {
    for inner in [false, true] {
        ran(&depth(&Target::HOPPER, BF16, [72, 40, 150], inner, nvidia), "mma");
        ran(&depth(&Target::HOPPER, F32, [40, 33, 77], inner, nvidia), "fma");
    }
}

#[test]
fn matrix_cores_of_the_other_vendor() {
    for (target, choose) in [(Target::CDNA, cdna as Choose), (Target::RDNA, rdna as Choose)] {
        for dtype in [BF16, F32] {
            rows(&target, dtype, [70, 72, 64], false, choose);
            rows(&target, dtype, [6, 64, 128], false, choose);
            depth(&target, dtype, [40, 72, 90], false, choose);
        }
    }
}
