//! Which steps libraries are asked for in each mode: small steps with good generated kernels are not, unless candidates
//! are timed.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use gpu_codegen::{Costs, Features, Model, TERMS, Target};
use gpu_runtime::{Mode, asks_libraries};
use ir_core::{DType, Shape, SymExpr};
use kernel_ir::{
    BodyBuilder, BufId, Buffer, Conv, Epilogue, InstKind, Matmul, Operand, Program, Step, Storage, StoreMode,
};

const HOPPER: Target = Target::HOPPER;
const MODES: [Mode; 4] =
    [Mode::Default, Mode::ReduceOverhead, Mode::MaxAutotune, Mode::MaxAutotuneNoCudagraphs];

fn shape(sizes: &[i64]) -> Shape {
    sizes.iter().map(|&n| SymExpr::from_i64(n)).collect()
}

fn operand(program: &mut Program, dtype: DType, sizes: &[i64]) -> Operand {
    let (sizes, strides) = (shape(sizes), ir_core::contiguous_strides(&shape(sizes)));
    let buf = buffer(program, dtype, &sizes);
    Operand { buf, sizes, strides, offset: SymExpr::ZERO }
}

fn buffer(program: &mut Program, dtype: DType, sizes: &Shape) -> BufId {
    program.buffers.push(Buffer {
        name: "b".into(),
        dtype,
        sizes: sizes.clone(),
        strides: ir_core::contiguous_strides(sizes),
        offset: SymExpr::ZERO,
        storage: Storage::Arena,
    })
}

/// Stores the result as it is.
fn stored(program: &mut Program, dtype: DType, sizes: &[i64]) -> Epilogue {
    let ranges = shape(sizes);
    let buf = buffer(program, dtype, &ranges);
    let mut b = BodyBuilder::new();
    let value = b.push(DType::F32, InstKind::Template);
    let value = b.push(dtype, InstKind::Cast(value));
    let index = (0..sizes.len() as u32).map(SymExpr::loop_var).collect();
    b.push(dtype, InstKind::Store { buf, index, value, mask: None, mode: StoreMode::Write });
    Epilogue { ranges, insts: b.finish() }
}

fn product(dtype: DType, [m, n, k]: [i64; 3]) -> (Program, Step) {
    let mut p = Program::default();
    let (a, b) = (operand(&mut p, dtype, &[m, k]), operand(&mut p, dtype, &[k, n]));
    let epilogue = stored(&mut p, dtype, &[m, n]);
    let step = Matmul {
        name: "product".into(),
        origins: Vec::new(),
        a,
        b,
        acc: DType::F32,
        zero: 0,
        dequant: None,
        groups: None,
        epilogue,
    };
    (p, Step::Matmul(step))
}

/// A convolution with a window of 3×3 over 14×14 points.
fn convolution(dtype: DType, groups: i64, channels: i64, images: i64) -> (Program, Step) {
    let mut p = Program::default();
    let input = operand(&mut p, dtype, &[images, channels, 14, 14]);
    let weight = operand(&mut p, dtype, &[channels, channels / groups, 3, 3]);
    let epilogue = stored(&mut p, dtype, &[images, channels, 14, 14]);
    let step = Conv {
        name: "convolution".into(),
        origins: Vec::new(),
        input,
        weight,
        stride: vec![1, 1],
        padding: vec![(1, 1), (1, 1)],
        dilation: vec![1, 1],
        groups,
        transposed: false,
        acc: DType::F32,
        zero: 0,
        epilogue,
    };
    (p, Step::Conv(step))
}

fn asked((program, step): &(Program, Step), target: &Target) -> [bool; 4] {
    MODES.map(|mode| asks_libraries(program, step, target, mode))
}

#[test]
fn small_products_ask_where_calls_are_recorded_or_candidates_are_timed() {
    for dtype in [DType::BF16, DType::F16] {
        let small = product(dtype, [192, 768, 768]);
        assert_eq!(asked(&small, &HOPPER), [false, true, true, true], "{dtype}");
    }
}

#[test]
fn small_convolutions_ask_where_candidates_are_timed() {
    let small = convolution(DType::BF16, 1, 256, 1);
    assert_eq!(asked(&small, &HOPPER), [false, false, true, true]);
}

#[test]
fn large_or_wide_or_grouped_or_other_architectures_ask() {
    let older = Target { features: Features::AMPERE, ..HOPPER };
    for (what, target) in [
        (product(DType::BF16, [2048, 4096, 1024]), &HOPPER),
        (product(DType::F32, [192, 768, 768]), &HOPPER),
        // Row pitches that are not multiples of TMA's alignment.
        (product(DType::BF16, [192, 767, 767]), &HOPPER),
        (product(DType::BF16, [192, 768, 768]), &older),
        (convolution(DType::BF16, 1, 256, 64), &HOPPER),
        (convolution(DType::F32, 1, 256, 1), &HOPPER),
        (convolution(DType::BF16, 8, 256, 1), &HOPPER),
        (convolution(DType::BF16, 1, 256, 1), &older),
    ] {
        assert_eq!(asked(&what, target), [true; 4], "{}", what.1.name());
    }
}

/// A made-up cost model in which every kernel of a kind takes as many microseconds, whatever it does.
fn costs(kinds: &[(&str, f64)]) -> Option<Costs> {
    let mut text = "ferroflux costs 1\narchitecture sm_90\n".to_owned();
    for (kind, us) in kinds {
        text.push_str(&format!("kind {kind}\nerror 0.2\nlaunch {us}e-6\n"));
        TERMS[1..].iter().for_each(|term| text.push_str(&format!("{term} 0\n")));
    }
    Some(Costs(Arc::new(Model::parse(&text).unwrap())))
}

#[test]
fn a_cost_model_says_whether_a_library_is_asked_without_a_search() {
    let small = product(DType::BF16, [192, 768, 768]);
    let large = product(DType::BF16, [2048, 4096, 1024]);
    for (library, expected) in [
        (19.0, [true; 4]),
        // Close enough to be timed.
        (29.0, [false, true, true, true]),
        // A search neither trusts the model with libraries nor saves much by leaving one out.
        (31.0, [false, false, true, true]),
    ] {
        let generated = [("mma", 40.0), ("wgmma", 20.0), ("wgmma_persistent", 20.0)];
        let costs = costs(&[&generated[..], &[("library", library)]].concat());
        let target = Target { costs, ..HOPPER };
        for what in [&small, &large] {
            assert_eq!(asked(what, &target), expected, "{library}");
        }
    }
}

#[test]
fn a_kind_that_was_not_measured_leaves_the_choice_to_the_rule() {
    let what = product(DType::BF16, [192, 768, 768]);
    let (generated, library) =
        ([("mma", 1.0), ("wgmma", 1.0), ("wgmma_persistent", 1.0)], [("library", 9.0)]);
    for kinds in [&generated[..], &[&generated[..2], &library[..]].concat(), &library, &[]] {
        let target = Target { costs: costs(kinds), ..HOPPER };
        assert_eq!(asked(&what, &target), asked(&what, &HOPPER), "{kinds:?}");
    }
    // Groups of few channels have kernels of their own.
    let target = Target { costs: costs(&[&generated[..], &library].concat()), ..HOPPER };
    let groups = convolution(DType::BF16, 256, 256, 1);
    assert_eq!(asked(&groups, &target), asked(&groups, &HOPPER));
}
