//! Products and convolutions by TMA and `wgmma` whose epilogue reads tensors of the result's size, which TMA copies for it:
//! every form and dtype, several tensors, tiles that end in all directions, and tensors that it cannot copy, against sums in
//! double precision.
#![allow(clippy::unwrap_used)] // a failing test may panic

use std::collections::BTreeMap;

use gpu_codegen::{Target, Variant, variants};
use ir_core::DType;
use kernel_ir::{Conv, Matmul, Program, Step};

use crate::steps::{Case, at, channels, row_major};
use DType::{BF16, F16, F32};

/// The candidates by TMA that do not compute parts of the inner dimension in one kernel and add them in another, for devices
/// with few multiprocessors, whose persistent blocks compute several tiles, and with many; with the number of tensors that each
/// copies for its epilogue.
fn copying(program: &Program, step: &Step) -> BTreeMap<String, Variant> {
    let mut candidates = BTreeMap::new();
    for multiprocessors in [2, 132] {
        let target = Target { multiprocessors, tf32: true.into(), ..Target::HOPPER };
        for candidate in variants(program, step, &target).unwrap() {
            if candidate.name.starts_with("wgmma") && candidate.scratch.is_empty() {
                let copied = candidate.kernels[0].maps.len() - 2;
                let name = format!("{copied} {} {multiprocessors}", candidate.name);
                candidates.insert(name, candidate);
            }
        }
    }
    candidates
}

/// Sizes of a product, with rows of the left operand and columns of the right one contiguous along the inner dimension.
struct Product {
    dtype: DType,
    out: DType,
    sizes: [i64; 4],
}

/// Runs `((a @ b + t0) * t1 + …)` for tensors of these dtypes and strides; the names of the candidates.
fn product(name: &str, of: &Product, tensors: &[(DType, [i64; 3])]) -> Vec<String> {
    let [batch, m, n, k] = of.sizes;
    let mut case = Case::new(name, of.dtype);
    let (a, b) = ([m * k, k, 1], [n * k, 1, k]);
    let operands = (case.operand(of.dtype, &[batch, m, k], &a), case.operand(of.dtype, &[batch, k, n], &b));
    let ranges = [batch, m, n];
    let epilogue = case.finish_with(of.out, &ranges, &row_major(&ranges), tensors, |i, data| {
        (0..k).map(|q| data[0][at(&[i[0], i[1], q], &a)] * data[1][at(&[i[0], q, i[2]], &b)]).sum()
    });
    let step = Matmul {
        name: name.into(),
        origins: vec![],
        a: operands.0,
        b: operands.1,
        acc: F32,
        zero: 0,
        dequant: None,
        groups: None,
        epilogue,
    };
    case.run(Step::Matmul(step), copying)
}

/// Whether each kind of form was run, and copied as many tensors; nothing where there is no compiler.
fn copied(names: &[String], count: usize, kinds: &[&str]) {
    for kind in kinds {
        let of_kind: Vec<&String> = names.iter().filter(|n| n.contains(kind)).collect();
        let right = of_kind.iter().any(|n| n.starts_with(&format!("{count} ")));
        assert!(names.is_empty() || right, "{kind} copies {count}: {names:?}");
    }
}

const FORMS: [&str; 4] = ["_persistent_128x128", "_persistent_128x256", "_share2", "_64x64"];

#[test]
fn a_tensor_of_each_dtype() {
    // Rows, columns and inner points end within tiles.
    for (dtype, inner) in [(BF16, 200), (F16, 72), (F32, 100)] {
        let of = Product { dtype, out: dtype, sizes: [1, 392, 328, inner] };
        let names = product("one", &of, &[(dtype, [0, 328, 1])]);
        copied(&names, 1, &FORMS[..3]);
        // Few tiles, which one block each computes.
        let few = Product { sizes: [1, 72, 136, 4 * inner], ..of };
        copied(&product("few", &few, &[(dtype, [0, 136, 1])]), 1, &["64x64"]);
    }
}

/// Whole tiles, of which the blocks of a cluster have an odd number.
#[test]
fn whole_tiles() {
    let of = Product { dtype: BF16, out: BF16, sizes: [1, 384, 256, 64] };
    copied(&product("whole", &of, &[(BF16, [0, 256, 1])]), 1, &FORMS[..3]);
}

#[test]
fn several_tensors_of_two_dtypes() {
    let of = Product { dtype: BF16, out: BF16, sizes: [1, 392, 328, 136] };
    let names = product("two", &of, &[(BF16, [0, 328, 1]), (F32, [0, 336, 1])]);
    copied(&names, 2, &FORMS[..2]);
    // More than a ring has stages for: the others are read as before.
    let of = Product { sizes: [1, 200, 264, 136], ..of };
    let all = [BF16, F16, BF16, F32].map(|dtype| (dtype, [0, 264, 1]));
    copied(&product("four", &of, &all), 3, &["_persistent_128x128"]);
    // Rows that are longer than the result's, and wider results than operands.
    let wide = Product { dtype: F16, out: F32, sizes: [1, 136, 72, 64] };
    copied(&product("wide", &wide, &[(F16, [0, 80, 1]), (F32, [0, 72, 1])]), 2, &FORMS[..1]);
    copied(&product("wide", &wide, &[(F32, [0, 72, 1]), (F16, [0, 72, 1])]), 1, &["64x64"]);
}

#[test]
fn batches_and_clusters() {
    let of = Product { dtype: BF16, out: BF16, sizes: [3, 136, 72, 72] };
    let all = 136 * 72;
    copied(&product("batches", &of, &[(BF16, [all, 72, 1]), (BF16, [0, 72, 1])]), 2, &["64x64"]);
    let long = Product { dtype: BF16, out: BF16, sizes: [1, 72, 72, 1096] };
    copied(&product("long", &long, &[(BF16, [0, 72, 1])]), 1, &["_cluster"]);
    let long = Product { dtype: F32, out: F32, sizes: [1, 136, 72, 1096] };
    copied(&product("long", &long, &[(F32, [0, 72, 1])]), 1, &["_cluster"]);
}

/// What is the same in every row or column, rows that begin at other places than multiples of 16 bytes, and columns with gaps are
/// read as they are.
#[test]
fn tensors_that_are_not_copied() {
    let of = Product { dtype: BF16, out: BF16, sizes: [1, 136, 136, 64] };
    for (name, strides) in
        [("a row", [0, 0, 1]), ("a column", [0, 1, 0]), ("uneven rows", [0, 140, 1]), ("gaps", [0, 272, 2])]
    {
        copied(&product(name, &of, &[(BF16, strides)]), 0, &["64x64"]);
    }
}

/// Convolutions of one point, whose rows are all points of a batch of images.
#[test]
fn convolutions_of_one_point() {
    for dtype in [BF16, F32] {
        let (input, weight, ranges) = ([2, 64, 9, 16], [136, 64, 1, 1], [2, 136, 9, 16]);
        let (xs, ws, os) = (channels(&input, true), channels(&weight, true), channels(&ranges, true));
        let mut case = Case::new("a point", dtype);
        let (x, w) = (case.operand(dtype, &input, &xs), case.operand(dtype, &weight, &ws));
        let strides = [os[0], os[1], os[2], os[3]];
        let epilogue = case.finish_with(dtype, &ranges, &os, &[(dtype, strides)], |i, data| {
            let terms = 0..input[1];
            terms.map(|c| data[0][at(&[i[0], c, i[2], i[3]], &xs)] * data[1][at(&[i[1], c], &ws[..2])]).sum()
        });
        let step = Conv {
            name: "a point".into(),
            origins: vec![],
            input: x,
            weight: w,
            stride: vec![1, 1],
            padding: vec![(0, 0); 2],
            dilation: vec![1, 1],
            groups: 1,
            transposed: false,
            acc: F32,
            zero: 0,
            epilogue,
        };
        copied(&case.run(Step::Conv(step), copying), 1, &FORMS[..1]);
    }
}
