//! Rows that teams of threads share: sums, peaks and elements of rows that are not whole vectors, that begin anywhere, whose length
//! is a symbol, in every dtype; and values that are computed again instead of stored. Results are compared with double
//! precision.
#![allow(clippy::unwrap_used)] // a failing test may panic

use crate::common::{Case, emulator};
use fx_ir::{Arg, ValueId};
use gpu_codegen::Target;
use ir_core::DType::{BF16, F16, F32, F64, I64};
use ir_core::{SymExpr, Symbol};

fn ints(list: &[i64]) -> Arg {
    Arg::from(list)
}

/// The texts of the kernels of all steps.
fn texts(c: &mut Case) -> String {
    let program = c.program();
    let modules = gpu_runtime::modules(&program, &Target::HOPPER).unwrap();
    modules.into_iter().map(|m| m.kernels).collect()
}

fn size(c: &mut Case, name: &str, hint: i64) -> SymExpr {
    let symbol = Symbol { name: name.into(), min: 2, max: None, hint: Some(hint), unbacked: false };
    SymExpr::sym(c.graph.add_symbol(symbol))
}

/// Softmax, its logarithm, the logarithm of the sum, and a plain sum and maximum.
fn reduced(c: &mut Case, x: ValueId) {
    for op in ["softmax", "log_softmax"] {
        c.shows(&format!("aten.{op}.int"), vec![x.into(), 1i64.into()]);
    }
    c.shows("aten.logsumexp.default", vec![x.into(), ints(&[1])]);
    c.shows("aten.sum.dim_IntList", vec![x.into(), ints(&[1])]);
    c.shows("aten.amax.default", vec![x.into(), ints(&[1])]);
}

/// Rows for a wave, for a block, and for several blocks.
#[test]
fn rows_of_every_length_and_dtype() {
    let Some(emulator) = emulator() else { return };
    for (dtype, sizes) in [
        (BF16, [66, 1003]),
        (BF16, [5, 20_001]),
        (BF16, [66, 8201]),
        (BF16, [270, 4099]),
        (F16, [65, 517]),
        (F32, [64, 389]),
        (F32, [3, 9001]),
        (F64, [64, 301]),
        (F64, [2, 9002]),
    ] {
        let mut c = Case::new("reduced");
        let x = c.any(dtype, &sizes);
        reduced(&mut c, x);
        c.check_twice(&emulator);
    }
}

/// Both passes of a softmax are one.
#[test]
fn a_peak_is_found_in_one_pass() {
    for (op, finite) in [("aten.softmax.int", false), ("aten.logsumexp.default", true)] {
        for sizes in [[300, 1003], [66, 8200]] {
            let mut c = Case::new("peak");
            let x = c.any(BF16, &sizes);
            let dim = if finite { ints(&[1]) } else { 1i64.into() };
            c.shows(op, vec![x.into(), dim]);
            let text = texts(&mut c);
            assert!(text.contains("peak0.add(all0)"), "{op}: {text}");
            assert!(!text.contains("combine<MAX>"), "{op}: {text}");
            assert_eq!(text.contains("peak0.defined_sum()"), !finite, "{op}: {text}");
        }
    }
}

/// Infinities and NaN in some rows, as PyTorch has them; numbers near the limits of the range; a largest number that comes last.
#[test]
fn rows_without_finite_numbers() {
    let Some(emulator) = emulator() else { return };
    for (dtype, sizes) in [(F32, [70i64, 389]), (BF16, [70, 1003]), (F64, [70, 301]), (F32, [66, 8201])] {
        let mut c = Case::new("infinite");
        let columns = sizes[1] as usize;
        let x = c.input(dtype, &sizes, |i| {
            let (row, column) = (i / columns, i % columns);
            let own = f64::from(tensor::formula::uniform("infinite", i as u64));
            match row % 10 {
                0 => f64::NEG_INFINITY,
                1 if column == 7 => f64::INFINITY,
                2 if column == columns - 1 => f64::NAN,
                3 if column < columns - 1 => f64::NEG_INFINITY,
                4 if column < 600 => f64::NEG_INFINITY,
                5 => own * 3e38,
                6 => column as f64,
                7 if column == 3 => f64::INFINITY,
                7 if column == 4 => f64::NAN,
                8 => own * 80.0,
                _ => own,
            }
        });
        for op in ["softmax", "log_softmax"] {
            c.shows(&format!("aten.{op}.int"), vec![x.into(), 1i64.into()]);
        }
        c.shows("aten.logsumexp.default", vec![x.into(), ints(&[1])]);
        c.check_twice(&emulator);
    }
}

/// Parts of longer rows: each begins at another place of a vector, and the distance of rows is not their length.
#[test]
fn parts_of_rows() {
    let Some(emulator) = emulator() else { return };
    for (dtype, from, width, row) in [(BF16, 1i64, 1003i64, 1010i64), (F32, 3, 517, 524), (F16, 5, 600, 1200)]
    {
        let mut c = Case::new("parts");
        let x = c.any(dtype, &[300, row]);
        let part = c.call("prims.slice", vec![x.into(), 1i64.into(), from.into(), width.into(), 1i64.into()]);
        reduced(&mut c, part);
        let scale = c.any(dtype, &[300, 1]);
        c.shows("aten.mul.Tensor", vec![part.into(), scale.into()]);
        c.check_twice(&emulator);
    }
}

/// Elements with a number of their row and one of their column: rows of waves and of blocks, shared ones too.
#[test]
fn elements_by_rows() {
    let Some(emulator) = emulator() else { return };
    for (dtype, sizes) in
        [(BF16, [300, 1003]), (F32, [300, 1001]), (F16, [130, 2051]), (F64, [300, 999]), (BF16, [13, 20_483])]
    {
        let mut c = Case::new("elements");
        let x = c.any(dtype, &sizes);
        let of_row = c.any(dtype, &[sizes[0], 1]);
        let of_column = c.any(dtype, &[sizes[1]]);
        let y = c.call("aten.mul.Tensor", vec![x.into(), of_row.into()]);
        c.shows("aten.add.Tensor", vec![y.into(), of_column.into()]);
        c.check_candidates(&emulator, &["rows"]);
    }
}

/// Norms of rows that are not whole vectors.
#[test]
fn norms_of_rows() {
    let Some(emulator) = emulator() else { return };
    for (dtype, sizes) in
        [(BF16, [66i64, 1003i64]), (BF16, [270, 4099]), (F32, [1100, 1029]), (F16, [13, 20_483])]
    {
        let mut c = Case::new("norms");
        let (x, w) = (c.any(dtype, &sizes), c.any(dtype, &sizes[1..]));
        let args = vec![x.into(), ints(&sizes[1..]), w.into(), w.into(), 1e-5.into(), true.into()];
        let mut with_moments = Case::new("moments");
        let (x, w) = (with_moments.any(dtype, &sizes), with_moments.any(dtype, &sizes[1..]));
        let of_native = vec![x.into(), ints(&sizes[1..]), w.into(), w.into(), 1e-5.into()];
        for v in with_moments.calls("aten.native_layer_norm.default", of_native) {
            with_moments.output(v);
        }
        with_moments.check_twice(&emulator);
        c.shows("aten.layer_norm.default", args);
        // The mean and its like stay in registers where a row is not shared by several blocks.
        assert!(sizes[0] < 66 || !texts(&mut c).contains("if (rank == 0) b"));
        c.check_twice(&emulator);
    }
}

/// Quotients by a number of the row, in all parts of the range: each has a scale of its own. The divisor is prepared once.
#[test]
fn quotients_by_rows() {
    let Some(emulator) = emulator() else { return };
    for (name, size, by) in [
        ("ordinary", 10.0, &[3.0, -0.7, 1e-3, 7e5][..]),
        ("subnormal", 3e-40, &[1e-39, -3e-41, 4e-45]),
        ("overflowing", 3e38, &[0.1, -1e-3, 1e-38]),
        ("underflowing", 1e-30, &[3e37, -1e20]),
        ("large", 3e38, &[3e38, -2e38, 1.1e38]),
        ("special", 1.0, &[0.0, -0.0, f64::INFINITY, f64::NEG_INFINITY, f64::NAN]),
    ] {
        let mut c = Case::new(name);
        let uniform = |i: usize| f64::from(tensor::formula::uniform(name, i as u64));
        let x = c.input(F32, &[300, 1001], |i| match i % 97 {
            5 => 0.0,
            6 => -0.0,
            7 => f64::INFINITY,
            8 => f64::NAN,
            _ => size * uniform(i),
        });
        let of_row = c.input(F32, &[300, 1], |i| by[i % by.len()]);
        let of_column = c.any(F32, &[1001]);
        let y = c.shows("aten.div.Tensor", vec![x.into(), of_row.into()]);
        c.shows("aten.maximum.default", vec![y.into(), of_column.into()]);
        c.shows("aten.div.Tensor", vec![x.into(), 0.3.into()]);
        assert!(texts(&mut c).contains("const Divisor by"), "{name}");
        c.check_twice(&emulator);
    }
}

/// Lengths that are symbols.
#[test]
fn rows_of_symbolic_length() {
    let Some(emulator) = emulator() else { return };
    for (dtype, sizes) in [(BF16, [300i64, 1003i64]), (F32, [3, 40_001]), (BF16, [300, 1008])] {
        let mut c = Case::new("symbolic");
        let known = vec![size(&mut c, "rows", sizes[0]), size(&mut c, "columns", sizes[1])];
        let value = |i: usize| f64::from(tensor::formula::uniform("symbolic", i as u64));
        let x = c.sized(dtype, &sizes, known.clone(), value);
        reduced(&mut c, x);
        let of_row = c.sized(dtype, &[sizes[0], 1], vec![known[0].clone(), SymExpr::ONE], value);
        c.shows("aten.mul.Tensor", vec![x.into(), of_row.into()]);
        c.check_twice(&emulator);
    }
}

/// A loss over classes and its gradient to the scores, which needs the exponentials of the sum: they are not stored.
#[test]
fn exponentials_are_computed_again() {
    let Some(emulator) = emulator() else { return };
    for (dtype, sizes) in [(BF16, [130i64, 1003i64]), (F32, [130, 1003]), (F16, [66, 8201])] {
        let mut c = Case::new("again");
        let (x, g) = (c.any(dtype, &sizes), c.any(F32, &[sizes[0], 1]));
        let wide = c.call("prims.convert", vec![x.into(), F32.into()]);
        let most = c.call("aten.amax.default", vec![wide.into(), ints(&[1]), true.into()]);
        let less = c.call("aten.sub.Tensor", vec![wide.into(), most.into()]);
        let e = c.call("aten.exp.default", vec![less.into()]);
        let sum = c.call("aten.sum.dim_IntList", vec![e.into(), ints(&[1]), true.into()]);
        let log = c.call("aten.log.default", vec![sum.into()]);
        let all = c.shows("aten.sum.default", vec![log.into()]);
        // The gradient needs all rows, so it is a kernel of its own.
        let share = c.call("aten.div.Tensor", vec![g.into(), sum.into()]);
        let scaled = c.call("aten.mul.Tensor", vec![share.into(), all.into()]);
        let gradient = c.call("aten.mul.Tensor", vec![e.into(), scaled.into()]);
        c.shows("prims.convert", vec![gradient.into(), dtype.into()]);
        let mut program = c.program();
        let stored = |program: &kernel_ir::Program| {
            let full = [sizes[0], sizes[1]].map(SymExpr::from_i64);
            let of = |s: &kernel_ir::Step| {
                s.accesses().1.into_iter().filter(|b| program.buffers[*b].sizes[..] == full)
            };
            program.steps.iter().flat_map(of).count()
        };
        assert_eq!(stored(&program), 2, "{program}");
        gpu_codegen::recompute(&mut program);
        assert_eq!(stored(&program), 1, "{program}");
        c.check_twice(&emulator);
    }
}

/// What is stored stays stored where its operands change before the reader, or where computing it again moves more bytes.
#[test]
fn values_that_stay_stored() {
    let Some(emulator) = emulator() else { return };
    let mut c = Case::new("stays");
    let sizes = [130i64, 1003];
    // Two whole operands of the width of the value, and two readers behind a sum over everything.
    let (x, y) = (c.any(F64, &sizes), c.any(F64, &sizes));
    let sum = c.call("aten.add.Tensor", vec![x.into(), y.into()]);
    let e = c.call("aten.exp.default", vec![sum.into()]);
    let all = c.shows("aten.sum.default", vec![e.into()]);
    c.shows("aten.mul.Tensor", vec![e.into(), all.into()]);
    let before = c.program();
    let mut after = before.clone();
    gpu_codegen::recompute(&mut after);
    assert_eq!(before, after, "exponentials in double precision are stored");
    c.check(&emulator);
}

/// Cross entropy by its operator, with rows that are left out.
#[test]
fn losses_over_classes() {
    let Some(emulator) = emulator() else { return };
    for (dtype, sizes) in [(BF16, [80i64, 1003i64]), (F32, [66, 2051])] {
        let mut c = Case::new("loss");
        let x = c.any(dtype, &sizes);
        let t = c.input(I64, &[sizes[0]], |i| if i % 9 == 4 { -100.0 } else { (i * 37 % 1000) as f64 });
        let args = vec![x.into(), t.into(), Arg::None, 1i64.into(), (-100i64).into(), 0.0.into()];
        c.shows("aten.cross_entropy_loss.default", args);
        c.check_twice(&emulator);
    }
}
