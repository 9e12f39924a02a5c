//! Gradients of attention on the emulated GPU against `interp`: with and without tensor cores, with masks, shared heads
//! and lengths that leave remainders. A second call gives the same bits.
#![allow(clippy::unwrap_used)] // a failing test may panic

use crate::common::{Case, emulator};
use fx_ir::{Arg, Symbol, ValueId};
use ir_core::{DType, SymExpr};

use DType::{BF16, Bool, F16, F32, F64, I32};

/// Attention with its sums, and its gradients for a cotangent; all are outputs.
pub(crate) fn gradients(
    c: &mut Case,
    dtype: DType,
    [batch, heads, shared]: [i64; 3],
    [queries, keys, depth, width]: [i64; 4],
    (mask, causal): (Option<ValueId>, bool),
) {
    with_dropout(c, dtype, [batch, heads, shared], [queries, keys, depth, width], (mask, causal, None));
}

/// The same, where the words say which weights are kept, times a factor.
fn with_dropout(
    c: &mut Case,
    dtype: DType,
    [batch, heads, shared]: [i64; 3],
    [queries, keys, depth, width]: [i64; 4],
    (mask, causal, kept): (Option<ValueId>, bool, Option<ValueId>),
) {
    let q = c.any(dtype, &[batch, heads, queries, depth]);
    let k = c.any(dtype, &[batch, shared, keys, depth]);
    let v = c.any(dtype, &[batch, shared, keys, width]);
    let g = c.any(dtype, &[batch, heads, queries, width]);
    let mask = mask.map_or(Arg::None, Arg::Value);
    let factor = if kept.is_some() { 1.25 } else { 1.0 };
    let kept = kept.map_or(Arg::None, Arg::Value);
    let options = [mask, causal.into(), (1.0 / (depth as f64).sqrt()).into(), kept, factor.into()];
    let args = [q, k, v].map(Arg::Value).into_iter().chain(options.clone()).collect();
    let outs = c.calls("prims.attention", args);
    let wide = |c: &mut Case, v: ValueId| c.call("prims.convert", vec![v.into(), dtype.compute().into()]);
    let (y, wide_g) = (wide(c, outs[0]), wide(c, g));
    let product = c.call("prims.mul", vec![y.into(), wide_g.into()]);
    let deltas = c.call("prims.sum", vec![product.into(), Arg::from(&[3i64][..])]);
    let args = [g, q, k, v, outs[1], deltas].map(Arg::Value).into_iter().chain(options).collect();
    let grads = c.calls("prims.attention_backward", args);
    outs.into_iter().chain(grads).for_each(|v| c.output(v));
}

#[test]
fn on_tensor_cores() {
    let Some(emulator) = emulator() else { return };
    // More than one group of warps, and enough rows that TMA would be preferred.
    let flash = ["flash_64", "flash_32"];
    let mut c = Case::new("tensor_cores");
    gradients(&mut c, BF16, [1, 2, 2], [35, 70, 64, 64], (None, false));
    gradients(&mut c, F16, [1, 4, 2], [70, 70, 40, 24], (None, true));
    gradients(&mut c, BF16, [2, 1, 1], [20, 67, 16, 128], (None, true));
    let seen = c.any(Bool, &[33, 64]);
    gradients(&mut c, BF16, [1, 2, 1], [33, 64, 128, 32], (Some(seen), false));
    let added = c.any(F16, &[1, 3, 80, 17]);
    gradients(&mut c, F16, [2, 3, 1], [80, 17, 8, 8], (Some(added), false));
    c.check_candidates(&emulator, &flash);
}

/// Results and gradients in sections of columns, by the kernels of warps and, of results, by TMA.
#[test]
fn long_rows() {
    let Some(emulator) = emulator() else { return };
    let mut c = Case::new("long_rows");
    gradients(&mut c, BF16, [1, 2, 1], [70, 50, 512, 320], (None, true));
    gradients(&mut c, F16, [2, 1, 1], [66, 35, 136, 264], (None, false));
    let seen = c.any(Bool, &[65, 140]);
    gradients(&mut c, BF16, [1, 2, 2], [65, 140, 320, 64], (Some(seen), false));
    let added = c.any(F16, &[1, 3, 80, 17]);
    gradients(&mut c, F16, [1, 3, 1], [80, 17, 24, 520], (Some(added), true));
    c.check_candidates(&emulator, &["wgmma_64x128_of", "flash_64", "flash_32", "flash_16", "simple"]);
}

/// Enough queries for TMA; every tile shape of the kernels is named.
#[test]
fn by_tma() {
    let Some(emulator) = emulator() else { return };
    let short = ["wgmma_64x128_64x64", "wgmma_128x128_128x64"];
    let mut c = Case::new("plain");
    gradients(&mut c, BF16, [2, 2, 2], [130, 70, 64, 64], (None, false));
    c.check_candidates(&emulator, &short);
    let mut c = Case::new("causal, shared heads, rows of other lengths");
    gradients(&mut c, F16, [1, 4, 2], [150, 201, 40, 24], (None, true));
    gradients(&mut c, BF16, [1, 2, 1], [201, 77, 64, 64], (None, true));
    c.check_candidates(&emulator, &short);
    let mut c = Case::new("long rows");
    gradients(&mut c, BF16, [1, 2, 1], [133, 70, 128, 128], (None, true));
    gradients(&mut c, F16, [1, 1, 1], [65, 150, 96, 32], (None, false));
    c.check_candidates(&emulator, &["wgmma_64x64_128x64", "wgmma_128x64_128x64"]);
    let mut c = Case::new("masks");
    let seen = c.any(Bool, &[70, 64]);
    gradients(&mut c, BF16, [1, 2, 1], [70, 64, 64, 64], (Some(seen), false));
    let added = c.any(F16, &[1, 3, 80, 17]);
    gradients(&mut c, F16, [2, 3, 1], [80, 17, 16, 128], (Some(added), true));
    c.check_candidates(&emulator, &["wgmma_64x", "wgmma_128x"]);
}

/// Blocks of 64 queries and keys that a mask hides are skipped, and those that it shows whole do not read it: a window that
/// leaves rows without keys, documents, padding, heads with masks of their own.
#[test]
fn masks_that_hide_blocks() {
    let Some(emulator) = emulator() else { return };
    let names = ["wgmma_64x", "wgmma_128x"];
    let (rows, keys) = (200, 530);
    let at = |i: usize| (i / 530 % 200, i % 530);
    let mut c = Case::new("a window, heads of keys shared");
    let window = c.input(Bool, &[rows, keys], |i| {
        let (row, key) = at(i);
        f64::from(row < 140 && key <= row && key + 70 > row)
    });
    gradients(&mut c, BF16, [1, 2, 1], [rows, keys, 64, 64], (Some(window), false));
    gradients(&mut c, F16, [1, 1, 1], [rows, keys, 128, 128], (Some(window), false));
    c.check_candidates(&emulator, &names);
    let mut c = Case::new("documents, padding, causal as well");
    let documents = c.input(Bool, &[rows, keys], |i| f64::from(at(i).0 / 67 == at(i).1 / 67));
    gradients(&mut c, BF16, [1, 1, 1], [rows, keys, 64, 64], (Some(documents), true));
    let padding = c.input(Bool, &[2, 1, 1, keys], |i| f64::from(i % 530 < [256, 500][i / 530]));
    gradients(&mut c, BF16, [2, 1, 1], [rows, keys, 64, 32], (Some(padding), false));
    c.check_candidates(&emulator, &names);
    let mut c = Case::new("numbers");
    let added = c.input(F16, &[2, 1, rows, keys], |i| {
        let ((row, key), batch) = (at(i), i / 106_000);
        match key / (100 * (batch + 1)) {
            0 => 0.0,
            1 => f64::NEG_INFINITY,
            _ => (row % 7) as f64 / 4.0,
        }
    });
    gradients(&mut c, F16, [2, 1, 1], [rows, keys, 40, 64], (Some(added), false));
    c.check_candidates(&emulator, &names);
}

/// Bits that say which weights are kept, for scores of these sizes.
fn words(c: &mut Case, sizes: [i64; 3], keys: i64) -> Option<ValueId> {
    let [batch, heads, rows] = sizes;
    let bits = |i: usize| f64::from((i as u32).wrapping_mul(2_654_435_761).rotate_left(9) as i32);
    Some(c.input(I32, &[batch, heads, rows, (keys + 31) / 32], bits))
}

/// Weights that are dropped, by every kernel: rows whose last word is not whole, words that heads share, masks.
#[test]
fn dropout() {
    let Some(emulator) = emulator() else { return };
    let mut c = Case::new("by TMA");
    let kept = words(&mut c, [2, 2, 130], 70);
    with_dropout(&mut c, BF16, [2, 2, 2], [130, 70, 64, 64], (None, false, kept));
    let kept = words(&mut c, [1, 4, 150], 201);
    with_dropout(&mut c, F16, [1, 4, 2], [150, 201, 40, 24], (None, true, kept));
    c.check_candidates(&emulator, &["wgmma_64x128_64x64", "wgmma_128x128_128x64", "simple"]);
    let mut c = Case::new("long rows, by TMA");
    let kept = words(&mut c, [1, 1, 133], 70);
    with_dropout(&mut c, BF16, [1, 2, 1], [133, 70, 128, 128], (None, true, kept));
    let seen = c.any(Bool, &[65, 150]);
    let kept = words(&mut c, [1, 1, 65], 150);
    with_dropout(&mut c, F16, [1, 1, 1], [65, 150, 96, 32], (Some(seen), false, kept));
    c.check_candidates(&emulator, &["wgmma_64x64_128x64", "wgmma_128x64_128x64", "flash_64", "flash_32"]);
    let mut c = Case::new("with a table of what a mask hides");
    let (rows, keys) = (130, 530);
    let window = c.input(Bool, &[rows, keys], |i| {
        let (row, key) = (i / 530, i % 530);
        f64::from(row < 100 && key <= row + 300 && key + 70 > row)
    });
    let kept = words(&mut c, [1, 2, 130], 530);
    with_dropout(&mut c, BF16, [1, 2, 1], [rows, keys, 64, 64], (Some(window), false, kept));
    with_dropout(&mut c, F16, [1, 2, 2], [rows, keys, 128, 128], (Some(window), true, kept));
    c.check_candidates(&emulator, &["wgmma_64x", "wgmma_128x", "flash_64"]);
    let mut c = Case::new("by warps");
    let added = c.any(F16, &[1, 3, 80, 17]);
    let kept = words(&mut c, [2, 3, 80], 17);
    with_dropout(&mut c, F16, [2, 3, 1], [80, 17, 8, 8], (Some(added), false, kept));
    let kept = words(&mut c, [1, 2, 20], 67);
    with_dropout(&mut c, BF16, [1, 2, 1], [20, 67, 264, 136], (None, true, kept));
    c.check_candidates(&emulator, &["flash_64", "flash_32", "flash_16"]);
    let mut c = Case::new("simple");
    let kept = words(&mut c, [1, 2, 33], 40);
    with_dropout(&mut c, F32, [1, 2, 1], [33, 40, 24, 40], (None, true, kept));
    let kept = words(&mut c, [2, 1, 3], 37);
    with_dropout(&mut c, F64, [2, 1, 1], [3, 37, 5, 9], (None, false, kept));
    c.check_candidates(&emulator, &["simple"]);
}

#[test]
fn lengths_that_a_call_tells() {
    let Some(emulator) = emulator() else { return };
    let mut c = Case::new("symbols");
    let symbol =
        |name: &str| Symbol { name: name.into(), min: 1, max: None, hint: Some(64), unbacked: false };
    let [rows, keys] = ["rows", "keys"].map(|name| SymExpr::sym(c.graph.add_symbol(symbol(name))));
    let mut operand = |length: i64, known: &SymExpr, seed: usize| {
        let [batch, heads, depth] = [1, 2, 64].map(SymExpr::from_i64);
        let known = vec![batch, heads, known.clone(), depth];
        let value = |i: usize| ((i * 7919 + seed * 104_729) % 1009) as f64 / 504.5 - 1.0;
        Arg::Value(c.sized(BF16, &[1, 2, length, 64], known, value))
    };
    let mut args = vec![operand(150, &rows, 1), operand(77, &keys, 2), operand(77, &keys, 3)];
    args.extend([Arg::None, true.into(), 0.125.into()]);
    let outs = c.calls("prims.attention", args);
    outs.into_iter().for_each(|v| c.output(v));
    c.check_candidates(&emulator, &["wgmma_64x128", "wgmma_128x128"]);
}

#[test]
fn without_tensor_cores() {
    let Some(emulator) = emulator() else { return };
    let mut c = Case::new("simple");
    gradients(&mut c, F32, [1, 2, 1], [33, 40, 24, 40], (None, true));
    gradients(&mut c, F32, [2, 2, 2], [5, 37, 130, 9], (None, false));
    gradients(&mut c, F64, [1, 2, 2], [9, 35, 12, 16], (None, true));
    gradients(&mut c, BF16, [1, 2, 1], [34, 33, 13, 150], (None, false));
    let added = c.any(F32, &[1, 1, 1, 33]);
    gradients(&mut c, F32, [2, 4, 2], [3, 33, 16, 16], (Some(added), false));
    c.check_twice(&emulator);
}

#[test]
fn fully_masked_rows_are_zero() {
    let Some(emulator) = emulator() else { return };
    for dtype in [BF16, F32] {
        let mut c = Case::new("nothing_seen");
        for rows in [20, 70] {
            let seen = c.input(Bool, &[rows, 24], |i| f64::from(i >= 48));
            gradients(&mut c, dtype, [1, 2, 1], [rows, 24, 16, 16], (Some(seen), false));
            let added = c.input(dtype, &[rows, 24], |i| if i < 48 { f64::NEG_INFINITY } else { 0.5 });
            gradients(&mut c, dtype, [1, 2, 1], [rows, 24, 16, 16], (Some(added), false));
        }
        c.check(&emulator);
    }
}
