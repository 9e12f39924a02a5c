//! Fusions for decoding on the emulated GPU against `interp`: products of a few rows with the normalisation that computes
//! their left operand, and two such products with fused epilogues, each as one launch.
#![allow(clippy::unwrap_used)] // a failing test may panic

use crate::common::{Case, emulator};
use fx_ir::{Arg, ValueId};
use gpu_codegen::Target;
use ir_core::DType;

use DType::{BF16, F16, F32};

/// Rows, inner dimension and columns that leave remainders; the inner dimension is a multiple of 16-byte loads.
const SIZES: [(DType, [i64; 3]); 5] = [
    (BF16, [1, 264, 37]),
    (F32, [3, 260, 21]),
    (F16, [1, 1032, 600]),
    (BF16, [5, 64, 130]),
    (F32, [1, 2052, 9]),
];

/// The texts of all kernels of a case.
fn texts(c: &mut Case) -> String {
    let modules = gpu_runtime::modules(&c.program(), &Target::HOPPER).unwrap();
    modules.iter().map(|m| m.kernels.as_str()).collect()
}

/// `x / sqrt(mean(x²) + ε) * weight` as written for bf16: in float32, rounded twice.
fn rms_norm(c: &mut Case, x: ValueId, weight: ValueId, dtype: DType) -> ValueId {
    let wide = c.call("aten._to_copy.default", vec![x.into(), F32.into()]);
    let square = c.call("aten.mul.Tensor", vec![wide.into(), wide.into()]);
    let mean = c.call("aten.mean.dim", vec![square.into(), Arg::from(&[-1i64][..]), true.into()]);
    let sum = c.call("aten.add.Scalar", vec![mean.into(), 1e-5.into()]);
    let scale = c.call("aten.rsqrt.default", vec![sum.into()]);
    let scaled = c.call("aten.mul.Tensor", vec![wide.into(), scale.into()]);
    let rounded = c.call("aten._to_copy.default", vec![scaled.into(), dtype.into()]);
    c.call("aten.mul.Tensor", vec![rounded.into(), weight.into()])
}

fn linear(c: &mut Case, x: ValueId, dtype: DType, columns: i64, inner: i64) -> ValueId {
    let w = c.any(dtype, &[columns, inner]);
    c.call("aten.linear.default", vec![x.into(), w.into()])
}

#[test]
fn normalisations_fuse_into_products() {
    let Some(emulator) = emulator() else { return };
    for (dtype, [rows, inner, columns]) in SIZES {
        let mut c = Case::new(&format!("norm {dtype} {rows}x{inner}x{columns}"));
        let (x, weight) = (c.any(dtype, &[rows, inner]), c.any(dtype, &[inner]));
        let normed = rms_norm(&mut c, x, weight, dtype);
        let y = linear(&mut c, normed, dtype, columns, inner);
        c.shows("aten.neg.default", vec![y.into()]);
        let text = texts(&mut c);
        assert!(text.contains("staged["), "{text}");
        c.check_twice(&emulator);
    }
}

#[test]
fn several_products_read_one_normalisation() {
    let Some(emulator) = emulator() else { return };
    for (dtype, [rows, inner, columns]) in SIZES {
        let mut c = Case::new(&format!("q, k and v {dtype} {rows}x{inner}x{columns}"));
        let (x, weight) = (c.any(dtype, &[rows, inner]), c.any(dtype, &[inner]));
        let normed = rms_norm(&mut c, x, weight, dtype);
        for more in [0, 3, 8] {
            let y = linear(&mut c, normed, dtype, columns + more, inner);
            c.output(y);
        }
        // The normalised value is an output too.
        c.output(normed);
        let text = texts(&mut c);
        assert!(text.contains("staged["), "{text}");
        c.check_twice(&emulator);
    }
}

#[test]
fn layer_normalisation_has_two_sums() {
    let Some(emulator) = emulator() else { return };
    for (dtype, [rows, inner, columns]) in SIZES {
        let mut c = Case::new(&format!("layer norm {dtype} {rows}x{inner}x{columns}"));
        let (x, w, b) = (c.any(dtype, &[rows, inner]), c.any(dtype, &[inner]), c.any(dtype, &[inner]));
        let shape = Arg::from(&[inner][..]);
        let normed = c.call("aten.layer_norm.default", vec![x.into(), shape, w.into(), b.into()]);
        let y = linear(&mut c, normed, dtype, columns, inner);
        c.shows("aten.gelu.default", vec![y.into()]);
        let text = texts(&mut c);
        assert!(text.contains("staged["), "{text}");
        c.check_twice(&emulator);
    }
}

/// `silu(x Wᵍ) * (x Wᵘ)`, with and without the normalisation before it, then projected back and added to the input.
#[test]
fn gate_and_up_are_one_launch() {
    let Some(emulator) = emulator() else { return };
    for (dtype, [rows, inner, columns]) in SIZES {
        for normalised in [false, true] {
            let mut c = Case::new(&format!("gate {dtype} {rows}x{inner}x{columns} {normalised}"));
            let (x, weight) = (c.any(dtype, &[rows, inner]), c.any(dtype, &[inner]));
            let left = if normalised { rms_norm(&mut c, x, weight, dtype) } else { x };
            // Whole vectors for the product behind, and few enough for the emulator.
            let columns = (columns * 8).min(1104);
            let gate = linear(&mut c, left, dtype, columns, inner);
            let gate = c.call("aten.silu.default", vec![gate.into()]);
            let up = linear(&mut c, left, dtype, columns, inner);
            let both = c.call("aten.mul.Tensor", vec![gate.into(), up.into()]);
            let down = linear(&mut c, both, dtype, inner, columns);
            c.shows("aten.add.Tensor", vec![x.into(), down.into()]);
            let text = texts(&mut c);
            assert!(text.contains("result1"), "{text}");
            assert_eq!(text.contains("staged["), normalised, "{text}");
            c.check_twice(&emulator);
        }
    }
}

/// A second epilogue that reads the first result at another point cannot be fused.
#[test]
fn products_that_read_each_other_at_other_points_are_not_fused() {
    let Some(emulator) = emulator() else { return };
    let mut c = Case::new("flipped");
    let x = c.any(F32, &[1, 64]);
    let first = linear(&mut c, x, F32, 40, 64);
    let first = c.call("aten.sin.default", vec![first.into()]);
    let flipped = c.call("aten.flip.default", vec![first.into(), Arg::from(&[1i64][..])]);
    let second = linear(&mut c, x, F32, 40, 64);
    c.shows("aten.mul.Tensor", vec![flipped.into(), second.into()]);
    let text = texts(&mut c);
    assert!(!text.contains("result1"), "{text}");
    c.check_twice(&emulator);
}

/// The input of the normalisation is dead after it, but the product's output must not reuse its memory, since other blocks
/// still read it.
#[test]
fn memory_that_other_blocks_read_is_not_reused() {
    let Some(emulator) = emulator() else { return };
    for (dtype, rows, inner) in [(F32, 1, 256), (BF16, 3, 520)] {
        let mut c = Case::new(&format!("row of norms {dtype} {rows}x{inner}"));
        let mut x = c.any(dtype, &[rows, inner]);
        for _ in 0..3 {
            let y = linear(&mut c, x, dtype, inner, inner);
            let weight = c.any(dtype, &[inner]);
            x = rms_norm(&mut c, y, weight, dtype);
        }
        c.shows("aten.neg.default", vec![x.into()]);
        let text = texts(&mut c);
        assert!(text.contains("staged["), "{text}");
        c.check_twice(&emulator);
    }
}
