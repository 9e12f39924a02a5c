//! Checked indices from data in generated kernels, with every candidate of a step: indices in bounds give the result of
//! `interp`; others are reported, access no memory (the emulator checks guard zones, and far addresses are unmapped), and
//! do not affect the next call.
#![allow(clippy::unwrap_used)] // a failing test may panic

use crate::checked::{self, BAD, agrees, floats, ints, numbers};
use ir_core::DType;
use tensor::Tensor;

/// Rows of a table, `rows` of them.
fn rows(table: usize) -> String {
    format!(
        r#"kir 1.6
program "rows"
site "aten.embedding.default" "model.py:12" dim 0
buffer b0 "table" f32[{table}, 8]{{8, 1}}+0 input 0
buffer b1 "index" i64[6]{{1}}+0 input 1
buffer b2 "y" f32[6, 8]{{8, 1}}+0 output
input "table" b0
input "index" b1
output "y" b2[6, 8]{{8, 1}}+0
init:
steps:
loop "rows" outer [6, 8]
  stage []
    v0: i64 = load b1[i0]
    v1: i64 = check v0, [{table}] at 0
    v2: f32 = load b0[v1, i1]
    v3: f32 = store b2[i0, i1], v2
plan bytes 0:
"#
    )
}

/// A list of good indices, then lists with one bad index in the middle, including the size itself.
fn lists(good: &[i64], size: i64) -> Vec<Tensor> {
    let with = |bad: i64| {
        let mut list = good.to_vec();
        list[good.len() / 2] = bad;
        ints(&list)
    };
    std::iter::once(ints(good)).chain(BAD.into_iter().chain([size]).map(with)).collect()
}

#[test]
fn rows_of_a_table() {
    let calls: Vec<Vec<Tensor>> =
        lists(&[4, 0, 2, 2, 3, 1], 5).into_iter().map(|i| vec![floats(&[5, 8]), i]).collect();
    agrees(&rows(5), &["loop"], &calls);
}

/// No index is in bounds of a dimension of size 0: the read is disabled, not redirected to 0.
#[test]
fn a_table_without_rows() {
    let text = r#"kir 1.6
program "nothing"
symbol s0 "n" 0..=8
site "aten.index_select.default" "" dim 0
buffer b0 "table" f32[s0, 1000]{1000, 1}+0 input 0
buffer b1 "index" i64[6]{1}+0 input 1
buffer b2 "y" f32[6, 1000]{1000, 1}+0 output
input "table" b0
input "index" b1
output "y" b2[6, 1000]{1000, 1}+0
init:
steps:
loop "rows" outer [6, 1000]
  stage []
    v0: i64 = load b1[i0]
    v1: i64 = check v0, [s0] at 0
    v2: f32 = load b0[v1, i1]
    v3: f32 = store b2[i0, i1], v2
plan bytes 0:
"#;
    let calls = vec![
        vec![floats(&[3, 1000]), ints(&[0, 1, 2, 2, 1, 0])],
        vec![floats(&[0, 1000]), ints(&[0; 6])],
        vec![floats(&[0, 1000]), ints(&[1 << 40; 6])],
        vec![floats(&[1, 1000]), ints(&[0, 0, 0, 1, 0, 0])],
    ];
    agrees(text, &["loop"], &calls);
}

/// Indices are not checked where the mask is false.
#[test]
fn masked_indices() {
    let text = r#"kir 1.6
program "masked"
site "aten.index.Tensor" "model.py:3" dim 0
buffer b0 "table" f32[5, 8]{8, 1}+0 input 0
buffer b1 "index" i64[6]{1}+0 input 1
buffer b2 "mask" bool[6]{1}+0 input 2
buffer b3 "y" f32[6, 8]{8, 1}+0 output
input "table" b0
input "index" b1
input "mask" b2
output "y" b3[6, 8]{8, 1}+0
init:
steps:
loop "rows" outer [6, 8]
  stage []
    v0: i64 = load b1[i0]
    v1: bool = load b2[i0]
    v2: i64 = check v0, [5] if v1 at 0
    v3: f32 = load b0[v2, i1] if v1
    v4: f32 = store b3[i0, i1], v3
plan bytes 0:
"#;
    let mask = |list: [bool; 6]| {
        Tensor::from_vec(list.iter().map(|b| tensor::Bool::from(*b)).collect(), &[6]).unwrap()
    };
    let (all, some) = (mask([true; 6]), mask([true, true, false, true, false, true]));
    let mut calls = vec![vec![floats(&[5, 8]), ints(&[1, 2, -7, 4, 1 << 50, 0]), some.clone()]];
    calls.push(vec![floats(&[5, 8]), ints(&[1, 2, -7, 4, 3, 0]), all]);
    calls.push(vec![floats(&[5, 8]), ints(&[1, 2, -7, 5, 3, 0]), some]);
    agrees(text, &["loop"], &calls);
}

/// An index computed from a checked one, and one that is read at a checked index and checked again.
#[test]
fn indices_behind_indices() {
    let text = r#"kir 1.6
program "behind"
site "aten.index.Tensor" "model.py:1" dim 0
site "aten.index.Tensor" "model.py:2" dim 1
buffer b0 "table" f32[3, 9]{9, 1}+0 input 0
buffer b1 "index" i64[6]{1}+0 input 1
buffer b2 "other" i64[4]{1}+0 input 2
buffer b3 "y" f32[6, 4]{4, 1}+0 output
input "table" b0
input "index" b1
input "other" b2
output "y" b3[6, 4]{4, 1}+0
init:
steps:
loop "rows" outer [6, 4]
  stage []
    v0: i64 = load b1[i0]
    v1: i64 = check v0, [4] at 0
    v2: i64 = load b2[v1]
    v3: i64 = check v2, [3] at 1
    v4: i64 = const 2
    v5: i64 = mul v1, v4
    v6: i64 = index (v5 + 1)
    v7: f32 = load b0[v3, (v6 + 1)]
    v8: f32 = store b3[i0, (i1)], v7
plan bytes 0:
"#;
    let good = ints(&[2, 0, 1, 2]);
    let mut calls = vec![vec![floats(&[3, 9]), ints(&[3, 0, 1, 2, 3, 0]), good.clone()]];
    for bad in lists(&[3, 0, 1, 2, 3, 0], 4).into_iter().skip(1) {
        calls.push(vec![floats(&[3, 9]), bad, good.clone()]);
    }
    calls.push(vec![floats(&[3, 9]), ints(&[3, 0, 1, 2, 3, 0]), ints(&[2, 0, -9, 2])]);
    agrees(text, &["loop"], &calls);
}

/// A checked value that is not used as an index: nothing is read, and the call still fails.
#[test]
fn checks_that_no_memory_stands_behind() {
    let text = r#"kir 1.6
program "classes"
site "aten.one_hot.default" "model.py:7" dim 0
buffer b0 "class" i64[4099]{1}+0 input 0
buffer b1 "y" i64[4099]{1}+0 output
input "class" b0
output "y" b1[4099]{1}+0
init:
steps:
loop "classes" outer [4099]
  stage []
    v0: i64 = load b0[i0]
    v1: i64 = check v0, [7] at 0
    v2: i64 = const 3
    v3: i64 = add v1, v2
    v4: i64 = store b1[i0], v3
plan bytes 0:
"#;
    let good: Vec<i64> = (0..4099).map(|i| i * 3 % 7).collect();
    let mut calls: Vec<Vec<Tensor>> = lists(&good, 7).into_iter().map(|l| vec![l]).collect();
    let mut last = good;
    last[4098] = -4;
    calls.push(vec![ints(&last)]);
    agrees(text, &["flat"], &calls);
}

/// `y[i0] = Σ table[index[i0, i2], i1]`, with loops of every length.
fn bag(outer: &str, inner: usize, table: usize, width: usize) -> String {
    let rows = outer.split(',').next().unwrap();
    format!(
        r#"kir 1.6
program "bag"
site "aten.embedding_bag.default" "model.py:4" dim 0
buffer b0 "table" f32[{table}, {width}]{{{width}, 1}}+0 input 0
buffer b1 "index" i64[{rows}, {inner}]{{{inner}, 1}}+0 input 1
buffer b2 "y" f32[{rows}, {width}]{{{width}, 1}}+0 output
input "table" b0
input "index" b1
output "y" b2[{rows}, {width}]{{{width}, 1}}+0
init:
steps:
loop "bag" outer [{rows}, {width}]
  acc0: f32 sum
  stage [{inner}]
    v0: i64 = load b1[i0, i2]
    v1: i64 = check v0, [{table}] at 0
    v2: f32 = load b0[v1, i1]
    v3: f32 = reduce acc0, v2
  stage []
    v0: f32 = acc0
    v1: f32 = store b2[i0, i1], v0
plan bytes 0:
"#
    )
}

#[test]
fn rows_that_are_summed() {
    for (rows, inner, width, candidate) in [
        (3, 4, 8, "loop"),
        (16, 5, 8192, "wide"),
        (70, 100, 2, "loop"),
        (2, 3000, 2, "loop"),
        (1, 40_000, 2, "rows"),
    ] {
        let good: Vec<i64> = (0..(rows * inner) as i64).map(|i| i * 5 % 11).collect();
        let shaped = |t: Tensor| t.reshape(&[rows, inner]).unwrap();
        let calls: Vec<Vec<Tensor>> =
            lists(&good, 11).into_iter().map(|i| vec![floats(&[11, width]), shaped(i)]).collect();
        // Larger programs run with one bad index, since each of their calls takes seconds.
        let some = if rows * inner * width > 10_000 { 3 } else { calls.len() };
        agrees(&bag(&rows.to_string(), inner, 11, width), &[candidate], &calls[..some]);
    }
}

/// Sums over rows of memory, weighted by a lookup.
#[test]
fn columns_that_are_weighted() {
    let text = r#"kir 1.6
program "weighted"
site "aten.index.Tensor" "model.py:4" dim 0
buffer b0 "x" f32[3000, 64]{64, 1}+0 input 0
buffer b1 "index" i64[3000, 2]{2, 1}+0 input 1
buffer b2 "weight" f32[9]{1}+0 input 2
buffer b3 "y" f32[64]{1}+0 output
input "x" b0
input "index" b1
input "weight" b2
output "y" b3[64]{1}+0
init:
steps:
loop "columns" outer [64]
  acc0: f32 sum
  stage [3000]
    v0: i64 = load b1[i1, 0]
    v1: i64 = check v0, [9] at 0
    v2: f32 = load b2[v1]
    v3: f32 = load b0[i1, i0]
    v4: f32 = mul v2, v3
    v5: f32 = reduce acc0, v4
  stage []
    v0: f32 = acc0
    v1: f32 = store b3[i0], v0
plan bytes 0:
"#;
    // Every second index is masked.
    let good: Vec<i64> = (0..6001).map(|i| i * 5 % 9).collect();
    let pairs = |t: Tensor| t.narrow(0, 0, 6000).unwrap().contiguous().unwrap().reshape(&[3000, 2]).unwrap();
    let calls: Vec<Vec<Tensor>> =
        lists(&good, 9).into_iter().map(|i| vec![floats(&[3000, 64]), pairs(i), floats(&[9])]).collect();
    agrees(text, &["columns"], &calls[..3]);
}

/// Running sums, whole and in parts: idle threads of a team have no index.
#[test]
fn running_sums() {
    for (length, candidate) in [(200, "loop"), (9000, "parts")] {
        let text = format!(
            r#"kir 1.6
program "running"
site "aten.index.Tensor" "model.py:4" dim 0
buffer b0 "x" f32[9]{{1}}+0 input 0
buffer b1 "index" i64[2, {length}]{{{length}, 1}}+0 input 1
buffer b2 "y" f32[2, {length}]{{{length}, 1}}+0 output
input "x" b0
input "index" b1
output "y" b2[2, {length}]{{{length}, 1}}+0
init:
steps:
loop "running" outer [2]
  stage [{length}]
    v0: i64 = load b1[i0, i1]
    v1: i64 = check v0, [9] at 0
    v2: f32 = load b0[v1]
    v3: f32 = scan_sum v2
    v4: f32 = store b2[i0, i1], v3
plan bytes 0:
"#
        );
        let good: Vec<i64> = (0..2 * length as i64).map(|i| i * 5 % 9).collect();
        let shaped = |t: Tensor| t.reshape(&[2, length]).unwrap();
        let calls: Vec<Vec<Tensor>> =
            lists(&good, 9).into_iter().map(|i| vec![floats(&[9]), shaped(i)]).collect();
        agrees(&text, &[candidate], &calls[..3]);
    }
}

/// Additions to rows of a tensor: atomic, and in a fixed order. A bad index adds nothing anywhere.
#[test]
fn rows_that_are_added_to() {
    let text = r#"kir 1.6
program "scatter"
site "aten.index_add.default" "model.py:9" dim 0
buffer b0 "x" f32[40, 3]{3, 1}+0 input 0
buffer b1 "index" i64[40]{1}+0 input 1
buffer b2 "y" f32[7, 3]{3, 1}+0 output
input "x" b0
input "index" b1
output "y" b2[7, 3]{3, 1}+0
init:
steps:
loop "zero" outer [7, 3]
  stage []
    v0: f32 = const 0.0
    v1: f32 = store b2[i0, i1], v0
loop "add" outer [40, 3]
  stage []
    v0: f32 = load b0[i0, i1]
    v1: i64 = load b1[i0]
    v2: i64 = check v1, [7] at 0
    v3: f32 = store_add b2[v2, i1], v0
plan bytes 0:
"#;
    let good: Vec<i64> = (0..40).map(|i| i * 5 % 7).collect();
    let calls: Vec<Vec<Tensor>> = lists(&good, 7).into_iter().map(|i| vec![floats(&[40, 3]), i]).collect();
    agrees(text, &["loop"], &calls);
}

/// Many rows added to few, of every float: in tables of shared memory. Most rows go to one place, as positions that are far from
/// one another do.
#[test]
fn many_rows_that_are_added_to_few() {
    for dtype in ["f32", "bf16", "f16", "f64"] {
        let text = format!(
            r#"kir 1.6
program "scatter"
site "aten.index_add.default" "model.py:9" dim 0
buffer b0 "x" f32[700, 6]{{6, 1}}+0 input 0
buffer b1 "index" i64[700]{{1}}+0 input 1
buffer b2 "y" {dtype}[9, 6]{{6, 1}}+0 output
input "x" b0
input "index" b1
output "y" b2[9, 6]{{6, 1}}+0
init:
steps:
loop "zero" outer [9, 6]
  stage []
    v0: {dtype} = const 1.0
    v1: {dtype} = store b2[i0, i1], v0
loop "add" outer [700, 6]
  stage []
    v0: f32 = load b0[i0, i1]
    v1: {dtype} = cast v0
    v2: i64 = load b1[i0]
    v3: i64 = check v2, [9] at 0
    v4: {dtype} = store_add b2[v3, i1], v1
plan bytes 0:
"#
        );
        let good: Vec<i64> = (0..700).map(|i| if i % 3 == 0 { i * 5 % 9 } else { 8 }).collect();
        // Sums that 8 bits hold: those of 16 bits are rounded once here, and at each addition by the reference.
        let ones: Vec<f32> = (0..700 * 6).map(|i| f32::from(u8::from(i % 4 == 0))).collect();
        let x = Tensor::from_vec(ones, &[700, 6]).unwrap();
        let calls: Vec<Vec<Tensor>> =
            lists(&good, 9).into_iter().take(3).map(|i| vec![x.clone(), i]).collect();
        agrees(&text, &["tables"], &calls);
    }
}

/// Indices from data in a product's epilogue, by every kernel that computes products.
#[test]
fn epilogues_of_products() {
    for (dtype, [m, n, k]) in [
        (DType::F32, [3, 40, 32]),
        (DType::BF16, [4, 64, 64]),
        (DType::BF16, [96, 72, 64]),
        (DType::F32, [70, 33, 20]),
    ] {
        let text = format!(
            r#"kir 1.6
program "product"
site "aten.index.Tensor" "model.py:4" dim 0
site "aten.index_put.default" "model.py:5" dim 0
buffer b0 "a" {dtype}[{m}, {k}]{{{k}, 1}}+0 input 0
buffer b1 "b" {dtype}[{n}, {k}]{{{k}, 1}}+0 input 1
buffer b2 "index" i64[{m}]{{1}}+0 input 2
buffer b3 "bias" f32[5, {n}]{{{n}, 1}}+0 input 3
buffer b4 "y" f32[{m}, {n}]{{{n}, 1}}+0 output
buffer b5 "to" i64[{m}]{{1}}+0 input 4
input "a" b0
input "b" b1
input "index" b2
input "bias" b3
input "to" b5
output "y" b4[{m}, {n}]{{{n}, 1}}+0
init:
steps:
matmul "m" acc f32
  a b0[{m}, {k}]{{{k}, 1}}+0
  b b1[{k}, {n}]{{1, {k}}}+0
  epilogue [{m}, {n}]
    v0: f32 = template
    v1: i64 = load b2[i0]
    v2: i64 = check v1, [5] at 0
    v3: f32 = load b3[v2, i1]
    v4: f32 = add v0, v3
    v5: i64 = load b5[i0]
    v6: i64 = check v5, [{m}] at 1
    v7: f32 = store b4[v6, i1], v4
plan bytes 0:
"#
        );
        let [m, n, k] = [m as usize, n as usize, k as usize];
        let good: Vec<i64> = (0..m as i64).map(|i| i * 3 % 5).collect();
        // Every row is written once.
        let to: Vec<i64> = (0..m as i64).rev().collect();
        let with = |index: Tensor, to: Tensor| {
            vec![numbers(dtype, &[m, k]), numbers(dtype, &[n, k]), index, floats(&[5, n]), to]
        };
        let mut calls: Vec<Vec<Tensor>> = lists(&good, 5).into_iter().map(|i| with(i, ints(&to))).collect();
        calls.extend(lists(&to, m as i64).into_iter().skip(1).map(|t| with(ints(&good), t)));
        agrees(&text, &[], &calls);
    }
}

/// A table row that every block of the product computes itself.
#[test]
fn rows_in_front_of_a_product() {
    let text = r#"kir 1.6
program "staged"
site "aten.embedding.default" "model.py:4" dim 0
buffer b0 "table" f32[9, 256]{256, 1}+0 input 0
buffer b1 "index" i64[1]{1}+0 input 1
buffer b2 "w" f32[37, 256]{256, 1}+0 input 2
buffer b3 "row" f32[1, 256]{256, 1}+0 arena
buffer b4 "y" f32[1, 37]{37, 1}+0 output
input "table" b0
input "index" b1
input "w" b2
output "y" b4[1, 37]{37, 1}+0
init:
steps:
loop "row" outer [1]
  acc0: f32 sum
  stage [256]
    v0: i64 = load b1[i0]
    v1: i64 = check v0, [9] at 0
    v2: f32 = load b0[v1, i1]
    v3: f32 = reduce acc0, v2
  stage [256]
    v0: i64 = load b1[i0]
    v1: i64 = check v0, [9] at 0
    v2: f32 = load b0[v1, i1]
    v3: f32 = acc0
    v4: f32 = sub v2, v3
    v5: f32 = store b3[0, i1], v4
matmul "m" acc f32
  a b3[1, 256]{256, 1}+0
  b b2[256, 37]{1, 256}+0
  epilogue [1, 37]
    v0: f32 = template
    v1: f32 = store b4[i0, i1], v0
plan:
  b3 live 0..1
"#;
    let modules = gpu_runtime::modules(&checked::program(text), &gpu_codegen::Target::HOPPER).unwrap();
    assert!(modules.iter().any(|m| m.kernels.contains("staged[")), "one launch");
    let calls: Vec<Vec<Tensor>> =
        lists(&[4], 9).into_iter().map(|i| vec![floats(&[9, 256]), i, floats(&[37, 256])]).collect();
    agrees(text, &[], &calls);
}

/// Fused launches: each step has checks of its own.
#[test]
fn fused_launches() {
    let text = r#"kir 1.6
program "together"
site "aten.embedding.default" "model.py:1" dim 0
site "aten.embedding.default" "model.py:2" dim 0
site "aten.embedding.default" "model.py:3" dim 0
buffer b0 "table" f32[9, 16]{16, 1}+0 input 0
buffer b1 "one" i64[8]{1}+0 input 1
buffer b2 "two" i64[8]{1}+0 input 2
buffer b3 "y" f32[8, 16]{16, 1}+0 output
buffer b4 "z" f32[8, 16]{16, 1}+0 output
buffer b5 "w" f32[8, 16]{16, 1}+0 output
input "table" b0
input "one" b1
input "two" b2
output "y" b3[8, 16]{16, 1}+0
output "z" b4[8, 16]{16, 1}+0
output "w" b5[8, 16]{16, 1}+0
init:
steps:
together "t"
do:
loop "one" outer [8, 16]
  stage []
    v0: i64 = load b1[i0]
    v1: i64 = check v0, [9] at 0
    v2: f32 = load b0[v1, i1]
    v3: f32 = store b3[i0, i1], v2
loop "two" outer [8, 16]
  stage []
    v0: i64 = load b2[i0]
    v1: i64 = check v0, [9] at 1
    v2: f32 = load b0[v1, i1]
    v3: f32 = store b4[i0, i1], v2
loop "both" outer [8, 16]
  stage []
    v0: i64 = load b2[i0]
    v1: i64 = load b1[i0]
    v2: i64 = add v0, v1
    v3: i64 = check v2, [9] at 2
    v4: f32 = load b0[v3, i1]
    v5: f32 = store b5[i0, i1], v4
end
plan bytes 0:
"#;
    let modules = gpu_runtime::modules(&checked::program(text), &gpu_codegen::Target::HOPPER).unwrap();
    let group = |m: &gpu_runtime::Module| m.kernels.contains("check = first_check + 2;");
    assert!(modules.iter().any(group), "one launch, whose last member has the third check");
    let good = [0, 1, 2, 3, 4, 3, 2, 1];
    let with = |a: Tensor, b: Tensor| vec![floats(&[9, 16]), a, b];
    let mut calls = vec![with(ints(&good), ints(&good))];
    // The sum of both indices is in bounds where one is not.
    calls.push(with(ints(&[0, 1, 2, 3, -1, 3, 2, 1]), ints(&[0, 1, 2, 3, 4, 3, 2, 1])));
    calls.push(with(ints(&[0, 1, 2, 3, 4, 3, 2, 1]), ints(&[0, 1, 2, 3, -2, 3, 2, 1])));
    calls.push(with(ints(&[0, 1, 2, 3, 8, 3, 2, 1]), ints(&[0, 1, 2, 3, 1, 3, 2, 1])));
    agrees(text, &[], &calls);
}

/// Reads along one dimension and writes along another: loads at indices from data do not go through tiles.
#[test]
fn transposed_rows() {
    let text = r#"kir 1.6
program "transposed"
site "aten.index_select.default" "model.py:8" dim 0
buffer b0 "x" f32[6, 40, 48]{1920, 48, 1}+0 input 0
buffer b1 "index" i64[5]{1}+0 input 1
buffer b2 "y" f32[5, 48, 40]{1920, 40, 1}+0 output
input "x" b0
input "index" b1
output "y" b2[5, 48, 40]{1920, 40, 1}+0
init:
steps:
loop "transposed" outer [5, 48, 40]
  stage []
    v0: i64 = load b1[i0]
    v1: i64 = check v0, [6] at 0
    v2: f32 = load b0[v1, i2, i1]
    v3: f32 = store b2[i0, i1, i2], v2
plan bytes 0:
"#;
    let calls: Vec<Vec<Tensor>> =
        lists(&[5, 0, 2, 2, 3], 6).into_iter().map(|i| vec![floats(&[6, 40, 48]), i]).collect();
    agrees(text, &["loop"], &calls);
}
