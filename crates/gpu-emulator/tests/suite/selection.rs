//! The first elements of rows: selected, and sorted with the rest where that is less work, against `interp`, which sorts. Equal
//! elements show by their positions that their order is kept.
#![allow(clippy::unwrap_used)] // a failing test may panic

use crate::common::{Case, emulator, fixed};
use fx_ir::{Arg, ValueId};
use gpu_codegen::{Target, variants};
use ir_core::{DType, SymExpr, Symbol};
use kernel_ir::{Program, Step, Storage};

use DType::{BF16, Bool, F16, F32, F64, I8, I16, I32, I64, U8};

/// Values and positions of the first `k` along `dim` are outputs.
fn topk(c: &mut Case, x: ValueId, k: impl Into<Arg>, dim: i64, largest: bool) {
    for v in c.calls("aten.topk.default", vec![x.into(), k.into(), dim.into(), largest.into()]) {
        c.output(v);
    }
}

/// Numbers of which many are equal, in no order; some are NaN or infinite, and both zeros occur.
fn wild(i: usize) -> f64 {
    match i * 7919 % 1009 {
        0..=5 => f64::NAN,
        6 => f64::INFINITY,
        7 => f64::NEG_INFINITY,
        8..=300 => -0.0,
        301..=500 => 0.0,
        n => (n % 23) as f64 - 11.0,
    }
}

/// The first candidate of the first step, and the narrowed program.
fn chosen(c: &mut Case, target: &Target) -> (String, Program) {
    let mut program = c.program();
    gpu_codegen::narrow_sorts(&mut program);
    let name = variants(&program, &program.steps[0], target).unwrap()[0].name.clone();
    (name, program)
}

#[test]
fn the_first_of_rows_of_every_dtype() {
    let Some(emulator) = emulator() else { return };
    for (name, dtypes) in
        [("floats", &[F32, F64, F16, BF16][..]), ("integers", &[I64, I32, I16, I8, U8, Bool])]
    {
        let mut c = Case::new(name);
        for &dtype in dtypes {
            let x = if dtype.is_float() { c.input(dtype, &[9, 333], wild) } else { c.any(dtype, &[9, 333]) };
            topk(&mut c, x, 20i64, 1, true);
            topk(&mut c, x, 20i64, 1, false);
        }
        c.check_candidates(&emulator, &["select", "block"]);
    }
}

/// One element, a wave of them, more than a wave, as many as are selected at most; rows shorter than a wave, and of one element less
/// and more than whole waves.
#[test]
fn counts_and_lengths_that_leave_remainders() {
    let Some(emulator) = emulator() else { return };
    let mut c = Case::new("remainders");
    for (length, counts) in
        [(5, &[1i64, 4][..]), (31, &[1, 30]), (65, &[1, 32, 33, 64]), (300, &[1, 32, 65, 128])]
    {
        let x = c.input(F32, &[11, length], wild);
        for (n, &k) in counts.iter().enumerate() {
            topk(&mut c, x, k, 1, n % 2 == 0);
        }
    }
    c.check_candidates(&emulator, &["select"]);
}

/// Rows in order make every element precede those before it, or none.
#[test]
fn rows_in_order() {
    let Some(emulator) = emulator() else { return };
    let mut c = Case::new("order");
    for (dtype, sizes) in [(F32, [3, 1000]), (I64, [2, 700])] {
        let x = c.input(dtype, &sizes, |i| i as f64);
        for (k, largest) in [(32i64, true), (32, false), (100, true)] {
            topk(&mut c, x, k, 1, largest);
        }
    }
    let equal = c.input(F32, &[2, 500], |_| 1.0);
    topk(&mut c, equal, 7i64, 1, true);
    c.check_candidates(&emulator, &["select"]);
}

/// Waves share rows that are few and long; rows that are neither whole steps of them nor multiples of a block; many short rows.
#[test]
fn few_and_many_rows() {
    let Some(emulator) = emulator() else { return };
    let mut c = Case::new("few_rows");
    for (dtype, sizes, k) in [
        (F32, [1, 50_257], 32i64),
        (F32, [3, 9001], 128),
        (F64, [2, 5003], 50),
        (BF16, [1, 7000], 1),
        (F32, [2500, 140], 3),
    ] {
        let x = if dtype == F64 { c.any(dtype, &sizes) } else { c.input(dtype, &sizes, wild) };
        topk(&mut c, x, k, 1, true);
    }
    c.check_candidates(&emulator, &["select", "merge"]);
}

/// Rows that are columns of the memory, rows of a transposed tensor, and narrow slices of sorts.
#[test]
fn strides_and_slices() {
    let Some(emulator) = emulator() else { return };
    let mut c = Case::new("strides");
    let x = c.input(F32, &[3, 150, 7], wild);
    topk(&mut c, x, 5i64, 1, true);
    let across = c.call("aten.permute.default", vec![x.into(), Arg::from(&[2i64, 1, 0][..])]);
    topk(&mut c, across, 2i64, 2, false);
    topk(&mut c, across, 9i64, 1, false);
    for v in c.calls("aten.kthvalue.default", vec![x.into(), 17i64.into(), 1i64.into()]) {
        c.output(v);
    }
    // Only the positions are read, and only the values.
    let order = c.call("aten.argsort.default", vec![x.into(), 1i64.into()]);
    c.shows("aten.slice.Tensor", vec![order.into(), 1i64.into(), 3i64.into(), 6i64.into()]);
    let sorted = c.calls("aten.sort.default", vec![x.into(), 1i64.into()])[0];
    let head = c.call("aten.slice.Tensor", vec![sorted.into(), 1i64.into(), 0i64.into(), 40i64.into()]);
    c.shows("aten.softmax.int", vec![head.into(), 1i64.into()]);
    c.check_candidates(&emulator, &["select", "block"]);
}

/// Sizes are symbols: the rows, the length of a row, which may be as short as what is wanted of it, and how many are wanted.
#[test]
fn symbolic_sizes() {
    let Some(emulator) = emulator() else { return };
    for length in [20i64, 45, 1000] {
        let mut c = Case::new("symbols");
        let size = |c: &mut Case, name: &str, min, max| {
            let symbol = Symbol { name: name.into(), min, max, hint: None, unbacked: false };
            SymExpr::sym(c.graph.symbols.push(symbol))
        };
        let known = vec![size(&mut c, "rows", 1, None), size(&mut c, "length", 20, Some(3000))];
        let x = c.sized(F32, &[13, length], known, wild);
        topk(&mut c, x, 20i64, 1, true);
        let count = size(&mut c, "count", 1, Some(20));
        let y = c.sized(F32, &[7], vec![count.clone()], wild);
        c.output(y);
        topk(&mut c, x, count, 1, false);
        c.check_candidates(&emulator, &["select", "block"]);
    }
}

/// Which kernel is first by rule, by shape and by count.
#[test]
fn the_rule_selects_few_of_long_rows() {
    for (sizes, k, expected) in [
        ([16_384, 1024], 20, "select"),
        ([1, 50_257], 50, "select"),
        ([8, 32_000], 128, "select"),
        ([16_384, 1024], 129, "block"),
        ([4096, 64], 20, "select"),
        ([4096, 64], 40, "block"),
        ([1, 2000], 500, "count"),
        ([8, 32_000], 500, "merge"),
    ] {
        let mut c = Case::new("rule");
        let x = c.any(F32, &sizes);
        topk(&mut c, x, k, 1, true);
        for target in [Target::HOPPER, Target::CDNA] {
            let (name, program) = chosen(&mut c, &target);
            assert_eq!(name, expected, "{sizes:?}, {k} of a row, waves of {}", target.wave);
            // The sort is the only step and writes what the caller gets.
            assert_eq!(program.steps.len(), 1, "{program}");
            for operand in program.steps[0].results() {
                assert_eq!(operand.sizes[..], fixed(&[sizes[0], k]), "{program}");
                assert_eq!(program.buffers[operand.buf].storage, Storage::Output, "{program}");
            }
            assert_eq!(program.plan.bytes, Some(0));
        }
    }
}

/// Results that more than a copy reads are kept, in as much memory as is read.
#[test]
fn results_that_are_copied_and_read() {
    let Some(emulator) = emulator() else { return };
    let mut c = Case::new("copied");
    let x = c.any(F32, &[6, 200]);
    let found = c.calls("aten.topk.default", vec![x.into(), 4i64.into(), 1i64.into()]);
    c.output(found[0]);
    // Over columns, so that it is no part of the loop that copies.
    c.shows("aten.cumsum.default", vec![found[0].into(), 0i64.into()]);
    c.shows("aten.gather.default", vec![x.into(), 1i64.into(), found[1].into()]);
    let (_, program) = chosen(&mut c, &Target::HOPPER);
    for operand in program.steps[0].results() {
        assert_eq!(program.buffers[operand.buf].storage, Storage::Arena, "{program}");
        assert_eq!(operand.sizes[..], fixed(&[6, 4]), "{program}");
    }
    c.check_twice(&emulator);
}

/// Whole rows are sorted: those that are an output, and those of which some position may be read.
#[test]
fn rows_that_are_read_whole_stay_whole() {
    let mut c = Case::new("whole");
    let x = c.any(F32, &[8, 300]);
    let sorted = c.calls("aten.sort.default", vec![x.into(), 1i64.into()]);
    c.output(sorted[0]);
    c.output(sorted[1]);
    let y = c.any(F32, &[8, 300]);
    let at = c.input(I64, &[8, 1], |i| i as f64);
    let sorted = c.calls("aten.sort.default", vec![y.into(), 1i64.into()]);
    c.shows("aten.gather.default", vec![sorted[0].into(), 1i64.into(), at.into()]);
    let (_, program) = chosen(&mut c, &Target::HOPPER);
    let sorts: Vec<_> = program.steps.iter().filter(|s| matches!(s, Step::Extern(_))).collect();
    let lengths = sorts.iter().map(|s| s.results().iter().map(|o| o.sizes[1].as_const()).collect::<Vec<_>>());
    assert_eq!(lengths.collect::<Vec<_>>(), [[Some(300); 2], [Some(300), Some(0)]], "{program}");
    for step in sorts {
        let all = variants(&program, step, &Target::HOPPER).unwrap();
        assert!(all.iter().all(|v| v.name != "select"), "{program}");
    }
}
