//! Products by TMA and `wgmma`: every tile shape, every layout of operands, tiles that end in all directions, batches, and
//! a split inner dimension, against sums in double precision.
#![allow(clippy::unwrap_used)] // a failing test may panic

use std::collections::{BTreeMap, BTreeSet};

use gpu_codegen::{Target, Variant, variants};
use ir_core::DType;
use kernel_ir::{Program, Step};

use crate::steps::product;
use DType::{BF16, F16, F32};

/// The TMA candidates for devices with so few multiprocessors that persistent blocks compute several tiles, and for
/// devices with many.
fn tma(program: &Program, step: &Step) -> BTreeMap<String, Variant> {
    let mut candidates = BTreeMap::new();
    for multiprocessors in [2, 132] {
        for tf32 in [false, true] {
            let target = Target { multiprocessors, tf32: tf32.into(), ..Target::HOPPER };
            let list = variants(program, step, &target).unwrap();
            let list = list.into_iter().filter(|candidate| candidate.name.starts_with("wgmma"));
            candidates.extend(
                list.map(|candidate| (format!("{} of {multiprocessors}", candidate.name), candidate)),
            );
        }
    }
    candidates
}

/// The shapes that were run, without the split of the inner dimension and the device.
fn forms(names: &[String]) -> BTreeSet<&str> {
    names.iter().map(|n| n.split(" of ").next().unwrap().split("_split").next().unwrap()).collect()
}

#[test]
fn every_layout_of_factors() {
    // Rows of A, columns of B and the inner dimension end within tiles; strides are longer than lines.
    let (m, n, k) = (200, 136, 200);
    let a = [([0, k + 8, 1], "A by rows"), ([0, 1, m + 8], "A by columns")];
    let b = [([0, 1, k], "B by columns"), ([0, n + 16, 1], "B by rows")];
    for dtype in [BF16, F16] {
        for (left, x) in &a {
            for (right, y) in &b {
                let names = product(&format!("{x}, {y}"), dtype, [1, m, n, k], *left, *right, None, tma);
                assert!(gpu_emulator::available().is_err() || !names.is_empty(), "{x}, {y}: no candidates");
            }
        }
    }
    product("tf32", F32, [1, m, n, k], a[0].0, b[0].0, None, tma);
}

#[test]
fn results_by_columns_and_odd_results() {
    product("by columns", BF16, [1, 72, 136, 64], [0, 64, 1], [0, 1, 64], Some([0, 1, 72]), tma);
    product("odd columns", BF16, [1, 65, 33, 72], [0, 72, 1], [0, 1, 72], None, tma);
    product("float results", F32, [1, 65, 36, 40], [0, 40, 1], [0, 1, 40], None, tma);
    product("one row", BF16, [1, 1, 264, 136], [0, 136, 1], [0, 1, 136], None, tma);
}

#[test]
fn batches() {
    let (m, n, k) = (72, 80, 96);
    product("both", BF16, [3, m, n, k], [m * k, k, 1], [n * k, n, 1], None, tma);
    product("the right one is shared", F16, [3, m, n, k], [m * k, k, 1], [0, 1, k], None, tma);
    // The heads of attention are interleaved: the batch stride is less than a row.
    product("heads", BF16, [3, m, n, 64], [64, 3 * 64, 1], [64, 1, 3 * 64], None, tma);
}

#[test]
fn shares_of_a_long_inner_dimension() {
    product("long", BF16, [1, 72, 64, 1096], [0, 1096, 1], [0, 64, 1], None, tma);
}

#[test]
fn every_form_of_large_products() {
    let (m, n, k) = (504, 504, 200);
    let one = product("large", BF16, [1, m, n, k], [0, k, 1], [0, n, 1], None, tma);
    let two = product("large, by columns", BF16, [1, m, n, k], [0, 1, m], [0, 1, k], None, tma);
    let small = product("small", BF16, [1, 72, 72, 256], [0, 256, 1], [0, 72, 1], None, tma);
    if gpu_emulator::available().is_err() {
        return;
    }
    let all: Vec<String> = [one, two, small].concat();
    let forms = forms(&all);
    for form in ["wgmma_persistent_128x256x64_4", "wgmma_persistent_128x256x64_4_share2", "wgmma_64x64x64_6"]
    {
        assert!(forms.contains(form), "{form} was not run: {forms:?}");
    }
    assert!(all.iter().any(|n| n.contains("_cluster")), "no shares in a cluster: {all:?}");
}

/// Operands that TMA cannot read are left to other candidates.
#[test]
fn unaligned_operands_have_no_tma_candidates() {
    let none =
        |name, dtype, sizes, a, b| assert!(product(name, dtype, sizes, a, b, None, tma).is_empty(), "{name}");
    none("odd lines", BF16, [1, 72, 72, 63], [0, 63, 1], [0, 1, 63]);
    none("no unit stride", BF16, [1, 72, 72, 64], [0, 128, 2], [0, 1, 64]);
    none("tf32 by columns", F32, [1, 72, 72, 64], [0, 1, 72], [0, 1, 64]);
}

/// A row of results whose length is even, but no multiple of four, is written in pairs.
#[test]
fn results_of_any_even_length() {
    product("pairs", BF16, [1, 136, 134, 128], [0, 128, 1], [0, 1, 128], None, tma);
    product("single", BF16, [1, 136, 135, 128], [0, 128, 1], [0, 1, 128], None, tma);
}
