//! Attention of few query rows over many keys on the emulated GPU, against `interp` in double precision: by matrix cores and by lanes,
//! query heads that share key heads, several query rows, numbers of keys that leave remainders, and masks of every kind, of which some
//! hide the keys of whole turns or all keys of a row. Not here: the parts of a row alone (`variants`).
#![allow(clippy::unwrap_used)] // a failing test may panic

use crate::attention_masks::Mask;
use crate::common::{Case, emulator};
use fx_ir::{Arg, ValueId};
use gpu_codegen::{Target, prepare_masks, variants};
use ir_core::DType;
use kernel_ir::Step;

use DType::{BF16, Bool, F16, F32};

/// Attention of `[batch, heads, rows, depth]` over `[batch, shared, keys, depth or width]`, and the sums of its rows.
fn attend(
    c: &mut Case,
    dtype: DType,
    [batch, heads, shared]: [i64; 3],
    [rows, keys, depth, width]: [i64; 4],
    (mask, causal): (Option<ValueId>, bool),
) {
    let q = c.any(dtype, &[batch, heads, rows, depth]);
    let k = c.any(dtype, &[batch, shared, keys, depth]);
    let v = c.any(dtype, &[batch, shared, keys, width]);
    let mask = mask.map_or(Arg::None, Arg::Value);
    let options = [mask, causal.into(), (1.0 / (depth as f64).sqrt()).into()];
    let outs = c.calls("prims.attention", [q, k, v].map(Arg::Value).into_iter().chain(options).collect());
    outs.into_iter().for_each(|v| c.output(v));
}

const PLAIN: (Option<ValueId>, bool) = (None, false);

#[test]
fn groups_of_heads() {
    let Some(emulator) = emulator() else { return };
    let mut c = Case::new("groups");
    attend(&mut c, BF16, [2, 8, 2], [1, 333, 64, 64], PLAIN);
    attend(&mut c, F16, [1, 16, 1], [1, 130, 64, 64], PLAIN);
    attend(&mut c, BF16, [1, 18, 2], [1, 77, 128, 128], PLAIN);
    attend(&mut c, F16, [1, 4, 2], [1, 200, 80, 80], PLAIN);
    attend(&mut c, BF16, [1, 2, 1], [1, 15, 8, 40], PLAIN);
    c.check_candidates(&emulator, &["decode_cores"]);
}

#[test]
fn several_rows() {
    let Some(emulator) = emulator() else { return };
    let mut c = Case::new("rows");
    attend(&mut c, BF16, [1, 2, 1], [3, 150, 64, 64], PLAIN);
    attend(&mut c, F16, [1, 3, 3], [13, 97, 72, 128], PLAIN);
    attend(&mut c, BF16, [1, 4, 2], [5, 90, 64, 32], (None, true));
    attend(&mut c, BF16, [1, 1, 1], [16, 9, 64, 64], (None, true));
    c.check_candidates(&emulator, &["decode_cores"]);
}

/// More rows than a block has, in groups, of which the last may be smaller.
#[test]
fn groups_of_rows() {
    let Some(emulator) = emulator() else { return };
    let mut c = Case::new("groups of rows");
    attend(&mut c, BF16, [1, 4, 1], [8, 300, 64, 64], PLAIN);
    attend(&mut c, F16, [2, 6, 2], [7, 270, 64, 128], (None, true));
    attend(&mut c, BF16, [1, 2, 2], [33, 150, 136, 64], (None, true));
    let shown = Mask { c: &mut c, sizes: [1, 6, 9, 500] }.behind(390, 130);
    attend(&mut c, BF16, [1, 6, 2], [9, 500, 64, 64], (Some(shown), false));
    let added = c.any(F16, &[1, 4, 20, 111]);
    attend(&mut c, F16, [1, 4, 2], [20, 111, 64, 64], (Some(added), false));
    c.check_candidates(&emulator, &["decode_cores"]);
}

/// Two warps have the halves of a row's elements.
#[test]
fn long_rows() {
    let Some(emulator) = emulator() else { return };
    let mut c = Case::new("long");
    attend(&mut c, BF16, [1, 8, 2], [1, 210, 256, 256], PLAIN);
    attend(&mut c, F16, [1, 16, 1], [1, 70, 136, 64], PLAIN);
    attend(&mut c, BF16, [1, 2, 1], [6, 300, 64, 200], (None, true));
    let added = c.any(BF16, &[1, 2, 6, 111]);
    attend(&mut c, BF16, [1, 2, 1], [6, 111, 192, 192], (Some(added), false));
    c.check_candidates(&emulator, &["decode_cores"]);
}

/// Keys behind a position that a call gives, as in a cache: turns of keys that no row sees.
#[test]
fn caches() {
    let Some(emulator) = emulator() else { return };
    for position in [0, 200, 700] {
        let mut c = Case::new(&format!("keys up to {position}"));
        for (dtype, heads, depth) in [(BF16, [2, 8, 2], 64), (F16, [1, 16, 1], 128), (F32, [1, 4, 2], 32)] {
            let mut mask = Mask { c: &mut c, sizes: [heads[0], heads[1], 1, 1001] };
            let shown = mask.up_to(position);
            attend(&mut c, dtype, heads, [1, 1001, depth, depth], (Some(shown), false));
        }
        let mut program = c.program();
        prepare_masks(&mut program, &Target::HOPPER);
        let loops = program.steps.iter().filter(|s| matches!(s, Step::Loop(_))).count();
        assert_eq!(loops, 0, "a mask is written");
        c.check_candidates(&emulator, &["decode_cores", "decode_"]);
    }
}

/// The first candidate of each attention of a case.
fn first_candidates(c: &mut Case, target: &Target) -> Vec<String> {
    let program = c.program();
    let attention = program.steps.iter().filter(|s| matches!(s, Step::Attention(_)));
    attention.map(|step| variants(&program, step, target).unwrap()[0].name.clone()).collect()
}

#[test]
fn the_form_follows_rows_and_dtypes() {
    let mut c = Case::new("forms");
    attend(&mut c, BF16, [2, 8, 2], [1, 512, 64, 64], PLAIN);
    attend(&mut c, BF16, [2, 8, 8], [1, 512, 64, 64], PLAIN);
    attend(&mut c, F32, [2, 8, 2], [1, 512, 64, 64], PLAIN);
    attend(&mut c, F16, [1, 8, 2], [4, 512, 256, 256], PLAIN);
    attend(&mut c, BF16, [1, 2, 2], [12, 40, 64, 64], PLAIN);
    attend(&mut c, BF16, [4, 32, 8], [8, 2048, 64, 64], PLAIN);
    attend(&mut c, BF16, [8, 32, 32], [64, 512, 64, 64], PLAIN);
    let firsts = first_candidates(&mut c, &Target::HOPPER);
    let names = ["decode_cores_", "decode_cores_", "decode_4", "decode_cores_"];
    assert!(firsts.iter().zip(names).all(|(first, name)| first.starts_with(name)), "{firsts:?}");
    // Many rows over few keys; words that are verified; rows that occupy the device.
    assert!(firsts.len() == 7 && !firsts[4].starts_with("decode"), "{firsts:?}");
    assert!(firsts[5].starts_with("decode_cores") && !firsts[6].starts_with("decode"), "{firsts:?}");
    let cdna = first_candidates(&mut c, &Target::CDNA);
    assert!(!cdna.iter().any(|name| name.contains("cores")), "{cdna:?}");
}

#[test]
fn windows() {
    let Some(emulator) = emulator() else { return };
    let mut c = Case::new("windows");
    for (dtype, heads, rows, depth) in
        [(BF16, [1, 4, 2], 8, 64), (F16, [1, 2, 2], 12, 96), (F32, [1, 2, 1], 3, 64)]
    {
        let mut mask = Mask { c: &mut c, sizes: [1, heads[1], rows, 700] };
        let shown = mask.behind(390, 130);
        attend(&mut c, dtype, heads, [rows, 700, depth, depth], (Some(shown), false));
    }
    c.check_candidates(&emulator, &["decode_cores", "decode_"]);
}

/// Masks in memory, of truth values and of numbers, also such that hide all keys of a row or of a head.
#[test]
fn given_masks() {
    let Some(emulator) = emulator() else { return };
    let mut c = Case::new("given");
    let some = c.any(Bool, &[2, 1, 1, 300]);
    attend(&mut c, BF16, [2, 8, 2], [1, 300, 64, 64], (Some(some), false));
    let rows = c.input(Bool, &[1, 4, 4, 190], |i| f64::from(i / 190 % 3 != 0 && i % 190 > 64 && i % 7 < 4));
    attend(&mut c, F16, [1, 4, 1], [4, 190, 128, 64], (Some(rows), false));
    let added = c.any(F16, &[1, 16, 1, 260]);
    attend(&mut c, F16, [1, 16, 1], [1, 260, 64, 64], (Some(added), false));
    let hidden = c.input(BF16, &[1, 4, 2, 290], |i| match (i / 290, i % 290) {
        (3, _) | (_, 70..200) => f64::NEG_INFINITY,
        (row, key) => ((row + key) % 9) as f64 / 4.0,
    });
    attend(&mut c, BF16, [1, 4, 2], [2, 290, 40, 64], (Some(hidden), false));
    let numbers = Mask { c: &mut c, sizes: [1, 2, 4, 333] }.slopes(BF16);
    attend(&mut c, BF16, [1, 2, 1], [4, 333, 64, 64], (Some(numbers), false));
    c.check_candidates(&emulator, &["decode_cores", "decode_"]);
}

/// What is stored at keys that are never seen does not matter: the rest of a cache may hold anything.
#[test]
fn unread_keys() {
    let Some(emulator) = emulator() else { return };
    let mut c = Case::new("the rest of a cache");
    let nan = |i: usize| if i / 64 % 1024 > 700 { f64::NAN } else { (i % 13) as f64 / 13.0 - 0.4 };
    let q = c.any(BF16, &[1, 4, 1, 64]);
    let (k, v) = (c.input(BF16, &[1, 1, 1024, 64], nan), c.any(BF16, &[1, 1, 1024, 64]));
    let mask = Mask { c: &mut c, sizes: [1, 4, 1, 1024] }.up_to(700);
    let args = [q, k, v, mask].map(Arg::Value).into_iter().chain([false.into(), 0.125.into()]).collect();
    let outs = c.calls("prims.attention", args);
    outs.into_iter().for_each(|v| c.output(v));
    c.check_candidates(&emulator, &["decode_cores", "decode_"]);
}
