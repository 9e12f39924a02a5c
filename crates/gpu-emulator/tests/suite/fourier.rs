//! Fourier transforms on an emulated GPU against `interp`: every radix, lines that lie in every way, numbers of lines that no
//! block divides.
#![allow(clippy::unwrap_used)] // a failing test may panic

use crate::common::{Case, emulator};
use fx_ir::{Arg, ValueId};
use ir_core::DType::{self, F32, F64};

/// The forms of one length, along `dim` of a tensor whose other sizes are these.
fn forms(c: &mut Case, dtype: DType, others: &[i64], dim: usize, n: i64) {
    let sizes = |n: i64| {
        let mut sizes = others.to_vec();
        sizes.insert(dim, n);
        sizes
    };
    let scale = 1.0 / (n as f64).sqrt();
    let rest = |args: &[Arg]| -> Vec<Arg> {
        args.iter().cloned().chain([(n % 2 == 0).into(), scale.into()]).collect()
    };
    let dim = Arg::from(dim as i64);
    let (x, y) = (c.any(dtype, &sizes(n)), c.any(dtype, &sizes(n)));
    let (a, b) = (c.any(dtype, &sizes(n / 2 + 1)), c.any(dtype, &sizes(n / 2 + 1)));
    let value = |v: ValueId| Arg::from(v);
    let shows = |c: &mut Case, target: &str, args: Vec<Arg>| {
        c.calls(target, args).into_iter().for_each(|v| c.output(v));
    };
    shows(c, "prims.dft", rest(&[value(x), value(y), dim.clone(), false.into()]));
    shows(c, "prims.dft", rest(&[value(x), Arg::None, dim.clone(), true.into()]));
    shows(c, "prims.dft_real", rest(&[value(a), value(b), dim, n.into()]));
}

#[test]
fn transforms_of_contiguous_lines() {
    let Some(emulator) = emulator() else { return };
    let mut c = Case::new("fourier");
    for n in [1, 2, 3, 4, 5, 7, 8, 10, 11, 13, 16, 30, 49, 64, 121, 128, 243, 338, 1001, 1024] {
        forms(&mut c, F32, &[3], 1, n);
    }
    c.check(&emulator);
}

#[test]
fn transforms_of_long_lines() {
    let Some(emulator) = emulator() else { return };
    let mut c = Case::new("fourier_long");
    forms(&mut c, F32, &[2], 1, 4096);
    forms(&mut c, F64, &[2], 1, 4096);
    forms(&mut c, F64, &[3], 1, 360);
    forms(&mut c, F64, &[3], 1, 15);
    c.check(&emulator);
}

#[test]
fn transforms_of_lines_whose_elements_lie_apart() {
    let Some(emulator) = emulator() else { return };
    let mut c = Case::new("fourier_apart");
    for n in [1, 6, 15, 64, 128] {
        forms(&mut c, F32, &[37], 0, n);
        forms(&mut c, F32, &[2, 5], 1, n);
    }
    forms(&mut c, F32, &[3], 0, 2048);
    forms(&mut c, F64, &[18], 0, 1155);
    c.check(&emulator);
}

#[test]
fn complex_numbers_in_memory() {
    let Some(emulator) = emulator() else { return };
    let mut c = Case::new("fourier_pairs");
    // Real and imaginary parts side by side, in a tensor whose dimensions are in another order.
    let x = c.any(F32, &[6, 20, 32, 2]);
    let turned = c.call("prims.permute", vec![x.into(), Arg::from(&[1i64, 0, 2, 3][..])]);
    let mut part = |n: i64| {
        let one = c.call("aten.select.int", vec![turned.into(), 3i64.into(), n.into()]);
        Arg::from(one)
    };
    let (re, im) = (part(0), part(1));
    for dim in 0..3i64 {
        let args = vec![re.clone(), im.clone(), dim.into(), false.into(), true.into(), 1.0.into()];
        let parts = c.calls("prims.dft", args);
        let whole = c.call("aten.stack.default", vec![Arg::values(parts), (-1i64).into()]);
        c.output(whole);
    }
    c.check(&emulator);
}
