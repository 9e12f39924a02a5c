//! Matrices of 16-bit numbers whose rows are not whole vectors: values in the arena and weights get a gap behind each row, which
//! nothing reads. And sums along a few rows, behind which each element is looked at.
#![allow(clippy::unwrap_used)] // a failing test may panic

use crate::checked::{agrees, floats, ints, numbers};
use crate::common::{Case, emulator};
use fx_ir::Arg;
use gpu_codegen::Target;
use ir_core::DType;

use DType::{BF16, F16, F32};

/// The texts of all candidates.
fn texts(c: &mut Case) -> String {
    let program = c.program();
    let modules = gpu_runtime::modules(&program, &Target::HOPPER).unwrap();
    modules.into_iter().map(|m| m.kernels).collect()
}

/// Scores over a vocabulary, their softmax, and products with it from both sides, as in the step of a language model.
#[test]
fn scores_over_an_uneven_vocabulary() {
    let Some(emulator) = emulator() else { return };
    let mut c = Case::new("vocabulary");
    for dtype in [BF16, F16] {
        let (x, w) = (c.any(dtype, &[66, 64]), c.any(dtype, &[64, 521]));
        let scores = c.call("aten.mm.default", vec![x.into(), w.into()]);
        let wide = c.call("prims.convert", vec![scores.into(), F32.into()]);
        let weights = c.call("aten._softmax.default", vec![wide.into(), 1i64.into(), false.into()]);
        let weights = c.call("prims.convert", vec![weights.into(), dtype.into()]);
        // A row of zeros before them, as behind a slice.
        let pad = Arg::from(&[0i64, 0, 1, 0][..]);
        let padded = c.call("aten.constant_pad_nd.default", vec![weights.into(), pad, 0.0.into()]);
        let v = c.any(dtype, &[521, 72]);
        c.shows("aten.mm.default", vec![padded.into(), v.into()]);
        let turned = c.call("aten.t.default", vec![padded.into()]);
        let g = c.any(dtype, &[67, 40]);
        c.shows("aten.mm.default", vec![turned.into(), g.into()]);
    }
    assert!(texts(&mut c).contains("576 * "), "rows of 521 have a gap up to 576");
    c.check_twice(&emulator);
}

/// A value that leaves the program, or is read as one row, stays as it is.
#[test]
fn rows_that_others_see_have_no_gap() {
    let Some(emulator) = emulator() else { return };
    let mut c = Case::new("seen");
    let (x, w) = (c.any(BF16, &[66, 64]), c.any(BF16, &[64, 521]));
    let scores = c.shows("aten.mm.default", vec![x.into(), w.into()]);
    let flat = c.call("aten.view.default", vec![scores.into(), Arg::from(&[66i64 * 521][..])]);
    c.shows("aten.cumsum.default", vec![flat.into(), 0i64.into()]);
    assert!(!texts(&mut c).contains("576 * "));
    c.check(&emulator);
}

/// The gradient to scores, which the caller gives: both products with it read one copy in rows that begin at whole vectors. One
/// with few columns does not pay for a copy.
#[test]
fn given_rows_are_copied_once() {
    let Some(emulator) = emulator() else { return };
    let mut c = Case::new("given");
    let (grad, w, x) = (c.any(BF16, &[2, 136, 521]), c.any(BF16, &[521, 264]), c.any(BF16, &[272, 264]));
    let grad = c.call("aten.view.default", vec![grad.into(), Arg::from(&[272i64, 521][..])]);
    c.shows("aten.mm.default", vec![grad.into(), w.into()]);
    let turned = c.call("aten.t.default", vec![grad.into()]);
    c.shows("aten.mm.default", vec![turned.into(), x.into()]);
    assert!(texts(&mut c).contains("576 * "), "the copy has rows of 576");
    c.check_twice(&emulator);
    // A product before the one that gains reads the input itself.
    let mut early = Case::new("early");
    let (grad, narrow, w) =
        (early.any(BF16, &[272, 521]), early.any(BF16, &[521, 64]), early.any(BF16, &[521, 264]));
    let first = early.shows("aten.mm.default", vec![grad.into(), narrow.into()]);
    let turned = early.call("aten.t.default", vec![first.into()]);
    let second = early.call("aten.mm.default", vec![grad.into(), w.into()]);
    early.shows("aten.mm.default", vec![turned.into(), second.into()]);
    assert!(texts(&mut early).contains("576 * "));
    early.check_twice(&emulator);
    let mut few = Case::new("few columns");
    let (grad, w) = (few.any(BF16, &[72, 521]), few.any(BF16, &[521, 64]));
    few.shows("aten.mm.default", vec![grad.into(), w.into()]);
    assert!(!texts(&mut few).contains("576 * "));
    few.check(&emulator);
}

/// Positions counted along four rows, and a table read at them: two kernels, the second with a thread for each element.
#[test]
fn counted_positions_and_their_embedding() {
    let text = r#"kir 1.6
program "counted"
site "aten.embedding.default" "model.py:3" dim 0
buffer b0 "tokens" i64[4, 130]{130, 1}+0 input 0
buffer b1 "positions" i64[4, 130]{130, 1}+0 output
buffer b2 "table" f32[140, 160]{160, 1}+0 input 1
buffer b3 "y" f32[4, 130, 160]{20800, 160, 1}+0 output
input "tokens" b0
input "table" b2
output "positions" b1[4, 130]{130, 1}+0
output "y" b3[4, 130, 160]{20800, 160, 1}+0
init:
steps:
loop "counted" outer [4]
  stage [130]
    v0: i64 = load b0[i0, i1]
    v1: i64 = scan_sum v0
    v2: i64 = store b1[i0, i1], v1
  stage [130, 160]
    v0: i64 = load b1[i0, i1]
    v1: i64 = check v0, [140] at 0
    v2: f32 = load b2[v1, i2]
    v3: f32 = mul v2, v2
    v4: f32 = store b3[i0, i1, i2], v3
plan bytes 0:
"#;
    let tokens = |step: i64| {
        let list: Vec<i64> = (0..4 * 130).map(|i| i64::from(i % 7 != 0) * step).collect();
        ints(&list).reshape(&[4, 130]).unwrap()
    };
    // Twice as far the positions leave the table.
    agrees(text, &["apart_"], &[vec![tokens(1), floats(&[140, 160])], vec![tokens(2), floats(&[140, 160])]]);
}

/// A factor of each of twelve images, and every element multiplied by its image's: two kernels, the second with vectors of elements.
#[test]
fn a_factor_of_each_image() {
    let text = r#"kir 1.6
program "factors"
buffer b0 "f" f32[12]{1}+0 input 0
buffer b1 "factors" f32[12, 1, 1]{1, 1, 1}+0 arena
buffer b2 "x" bf16[12, 96, 64]{6144, 64, 1}+0 input 1
buffer b3 "y" bf16[12, 96, 64]{6144, 64, 1}+0 output
input "f" b0
input "x" b2
output "y" b3[12, 96, 64]{6144, 64, 1}+0
init:
steps:
loop "factors" outer [12]
  stage []
    v0: f32 = load b0[i0]
    v1: f32 = exp v0
    v2: f32 = store b1[i0, 0, 0], v1
  stage [96, 64]
    v0: bf16 = load b2[i0, i1, i2]
    v1: f32 = cast v0
    v2: f32 = load b1[i0, 0, 0]
    v3: f32 = mul v1, v2
    v4: bf16 = cast v3
    v5: bf16 = store b3[i0, i1, i2], v4
plan bytes 64:
  b1 live 0..0 at 0
"#;
    let images = floats(&[12, 96, 64]).to_dtype(BF16).unwrap();
    agrees(text, &["apart_flat_wide_2"], &[vec![floats(&[12]), images]]);
}

/// Elements of rows with a gap: vectors for the most part, and a second kernel for what is left of each row. A value that tells
/// the column shows that both parts know where they are; the row of zeros is what a slice leaves of a gradient.
#[test]
fn elements_of_uneven_rows_in_two_kernels() {
    let text = r#"kir 1.6
program "uneven"
buffer b0 "x" bf16[512, 521]{521, 1}+0 input 0
buffer b1 "wide" bf16[512, 521]{576, 1}+0 arena
buffer b2 "padded" bf16[513, 521]{576, 1}+0 arena
buffer b3 "y" bf16[513, 521]{521, 1}+0 output
input "x" b0
output "y" b3[513, 521]{521, 1}+0
init:
steps:
loop "gap" outer [512, 521]
  stage []
    v0: bf16 = load b0[i0, i1]
    v1: f32 = cast v0
    v2: i64 = index i1
    v3: f32 = cast v2
    v4: f32 = add v1, v3
    v5: bf16 = cast v4
    v6: bf16 = store b1[i0, i1], v5
loop "pad" outer [513, 521]
  stage []
    v0: i64 = index i0
    v1: i64 = const 512
    v2: bool = lt v0, v1
    v3: bf16 = load b1[i0, i1] if v2
    v4: f32 = cast v3
    v5: f32 = mul v4, v4
    v6: bf16 = cast v5
    v7: bf16 = store b2[i0, i1], v6
loop "dense" outer [513, 521]
  stage []
    v0: bf16 = load b2[i0, i1]
    v1: bf16 = store b3[i0, i1], v0
plan bytes 1180928:
  b1 live 0..1 at 0
  b2 live 1..2 at 589824
"#;
    agrees(text, &["rows_wide_8_loop"], &[vec![numbers(BF16, &[512, 521])]]);
}

/// Ids that are shifted by one: what is read at the first place alone.
#[test]
fn ids_that_are_shifted() {
    let text = r#"kir 1.6
program "shifted"
buffer b0 "first" i64[]{}+0 input 0
buffer b1 "starts" i64[16, 1]{1, 1}+0 arena
buffer b2 "y" i64[16, 128]{128, 1}+0 output
input "first" b0
output "y" b2[16, 128]{128, 1}+0
init:
steps:
loop "shifted" outer [16]
  stage []
    v0: i64 = load b0[]
    v1: i64 = store b1[i0, 0], v0
  stage [128]
    v0: i64 = index i1
    v1: i64 = const 1
    v2: bool = lt v0, v1
    v3: i64 = load b1[i0, i1] if v2
    v4: i64 = store b2[i0, i1], v3
plan bytes 128:
  b1 live 0..0 at 0
"#;
    agrees(text, &["loop"], &[vec![ints(&[7]).reshape(&[]).unwrap()]]);
}
