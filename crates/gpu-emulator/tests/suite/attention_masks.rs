//! Attention and its gradients with masks that graphs compute, on the emulated GPU against `interp`: the kernels compute the mask
//! of a score themselves, no step writes it, and what it hides whole is not visited. Tables of blocks are compared with the
//! masks, pair by pair.
#![allow(clippy::unwrap_used)] // a failing test may panic

use crate::attention_gradient::gradients;
use crate::common::{Case, emulator};
use fx_ir::{Arg, ValueId};
use gpu_codegen::{ENTRY, Param, Prelude, Target, prepare_masks, variants};
use gpu_emulator::Emulator;
use gpu_runtime::{Arguments, Driver, Grid, Module};
use ir_core::{DType, SymExpr};
use kernel_ir::{ExternOp, Program, Step, Storage};

use DType::{BF16, Bool, F16, F32, I64};

/// A graph's values that masks are computed from.
pub(crate) struct Mask<'c> {
    pub(crate) c: &'c mut Case,
    pub(crate) sizes: [i64; 4],
}

impl Mask<'_> {
    fn op(&mut self, name: &str, args: &[Arg]) -> ValueId {
        self.c.call(&format!("prims.{name}"), args.to_vec())
    }

    /// A vector `[batch or 1, length]` along a dimension of the scores.
    fn along(&mut self, v: ValueId, d: usize, batch: bool) -> ValueId {
        let mut shape = [1i64; 4];
        shape[d] = self.sizes[d];
        shape[0] = if batch { self.sizes[0] } else { 1 };
        let v = self.op("reshape", &[v.into(), Arg::from(&shape[..])]);
        let all = [self.sizes[0], 1, self.sizes[2], self.sizes[3]];
        self.op("expand", &[v.into(), Arg::from(&all[..])])
    }

    fn positions(&mut self, d: usize) -> ValueId {
        let n = self.sizes[d];
        let v = self.op("iota", &[n.into(), 0i64.into(), 1i64.into(), I64.into()]);
        self.along(v, d, false)
    }

    /// `key <= query`, and `key > query - before`.
    fn window(&mut self, before: Option<i64>) -> ValueId {
        let (query, key) = (self.positions(2), self.positions(3));
        let causal = self.op("le", &[key.into(), query.into()]);
        let Some(before) = before else { return causal };
        let first = self.op("sub", &[query.into(), before.into()]);
        let near = self.op("gt", &[key.into(), first.into()]);
        self.op("and", &[causal.into(), near.into()])
    }

    /// `key <= position`, where a call gives the position: a cache that is filled up to there.
    pub(crate) fn up_to(&mut self, position: i64) -> ValueId {
        let [_, _, rows, keys] = self.sizes;
        self.sizes = [1, 1, rows, keys];
        let position = self.c.input(I64, &[1, 1, 1, 1], |_| position as f64);
        let position = self.op("expand", &[position.into(), Arg::from(&[1, 1, rows, keys][..])]);
        let key = self.positions(3);
        self.op("le", &[key.into(), position.into()])
    }

    /// `key <= query + position`, and no more than `before` keys before: the last queries of a longer sequence.
    pub(crate) fn behind(&mut self, position: i64, before: i64) -> ValueId {
        self.sizes = [1, 1, self.sizes[2], self.sizes[3]];
        let (query, key) = (self.positions(2), self.positions(3));
        let last = self.op("add", &[query.into(), position.into()]);
        let first = self.op("sub", &[last.into(), before.into()]);
        let (shown, near) =
            (self.op("le", &[key.into(), last.into()]), self.op("gt", &[key.into(), first.into()]));
        self.op("and", &[shown.into(), near.into()])
    }

    /// Numbers of documents of each batch, gathered by positions as models do.
    fn documents(&mut self) -> ValueId {
        let [batch, _, rows, keys] = self.sizes;
        let length = rows.max(keys);
        let given = self.c.input(I64, &[batch, length], |i| {
            let at = i as i64 % length;
            (if i as i64 >= length { at / 90 } else { at / 170 }) as f64
        });
        let side = |m: &mut Self, d: usize| {
            let n = m.sizes[d];
            let b = m.op("iota", &[batch.into(), 0i64.into(), 1i64.into(), I64.into()]);
            let b = m.op("reshape", &[b.into(), Arg::from(&[batch, 1][..])]);
            let b = m.op("expand", &[b.into(), Arg::from(&[batch, n][..])]);
            let i = m.op("iota", &[n.into(), 0i64.into(), 1i64.into(), I64.into()]);
            let i = m.op("reshape", &[i.into(), Arg::from(&[1, n][..])]);
            let i = m.op("expand", &[i.into(), Arg::from(&[batch, n][..])]);
            let of = m.op("index", &[given.into(), Arg::List(vec![b.into(), i.into()]), 0i64.into()]);
            m.along(of, d, true)
        };
        let (query, key) = (side(self, 2), side(self, 3));
        self.op("eq", &[query.into(), key.into()])
    }

    /// Which keys are not padding.
    fn real(&mut self) -> ValueId {
        let [batch, _, _, keys] = self.sizes;
        let given = self.c.input(Bool, &[batch, keys], |i| {
            f64::from(i as i64 % keys < [keys / 3, keys - 9][i / keys as usize])
        });
        self.along(given, 3, true)
    }

    /// Numbers to be added: a slope for each head times the distance.
    pub(crate) fn slopes(&mut self, dtype: DType) -> ValueId {
        let [_, heads, rows, keys] = self.sizes;
        let all = [1, heads, rows, keys];
        let slopes = self.c.any(F32, &[heads]);
        let slopes = self.op("reshape", &[slopes.into(), Arg::from(&[1, heads, 1, 1][..])]);
        let slopes = self.op("expand", &[slopes.into(), Arg::from(&all[..])]);
        let sizes = std::mem::replace(&mut self.sizes, all);
        let (query, key) = (self.positions(2), self.positions(3));
        self.sizes = sizes;
        let distance = self.op("sub", &[key.into(), query.into()]);
        let one = [1, 1, rows, keys];
        let distance =
            self.op("slice", &[distance.into(), 1i64.into(), 0i64.into(), 1i64.into(), 1i64.into()]);
        let distance = self.op("reshape", &[distance.into(), Arg::from(&one[..])]);
        let distance = self.op("convert", &[distance.into(), F32.into()]);
        let distance = self.op("expand", &[distance.into(), Arg::from(&all[..])]);
        let distance = self.op("mul", &[distance.into(), 0.01.into()]);
        let added = self.op("mul", &[slopes.into(), distance.into()]);
        self.op("convert", &[added.into(), dtype.into()])
    }

    /// Biases of relative positions of an image's `[high, wide]` points: a number for each query and row of keys, and one for each query and
    /// column, as models of windows have them.
    fn rows_and_columns(&mut self, dtype: DType, [high, wide]: [i64; 2]) -> ValueId {
        let all = self.sizes[0] * self.sizes[1];
        let whole = [all, high, wide, high, wide];
        let of = |m: &mut Self, sizes: [i64; 5]| {
            let given = m.c.any(dtype, &sizes);
            m.op("expand", &[given.into(), Arg::from(&whole[..])])
        };
        let (rows, columns) = (of(self, [all, high, wide, high, 1]), of(self, [all, high, wide, 1, wide]));
        let sum = self.op("add", &[rows.into(), columns.into()]);
        let sizes = self.sizes;
        self.op("reshape", &[sum.into(), Arg::from(&sizes[..])])
    }

    /// The mask as numbers: minus infinity where it hides.
    fn numbers(&mut self, shown: ValueId, dtype: DType) -> ValueId {
        let sizes = [self.sizes[0], 1, self.sizes[2], self.sizes[3]];
        let number = |m: &mut Self, x: f64| m.op("full", &[Arg::from(&sizes[..]), x.into(), dtype.into()]);
        let (zero, hidden) = (number(self, 0.0), number(self, f64::NEG_INFINITY));
        self.op("select", &[shown.into(), zero.into(), hidden.into()])
    }
}

/// The same mask forward and backward.
fn masked(
    c: &mut Case,
    dtype: DType,
    heads: [i64; 3],
    lengths: [i64; 4],
    mask: impl Fn(&mut Mask<'_>) -> ValueId,
) {
    let sizes = [heads[0], heads[1], lengths[0], lengths[1]];
    let mask = mask(&mut Mask { c, sizes });
    gradients(c, dtype, heads, lengths, (Some(mask), false));
}

/// No step writes as many elements as there are pairs of a query and a key.
fn assert_not_written(c: &mut Case, [rows, keys]: [i64; 2]) {
    let mut program = c.program();
    prepare_masks(&mut program, &Target::HOPPER);
    let written = program.init.iter().chain(&program.steps).flat_map(|step| step.accesses().1);
    for buf in written {
        let sizes = &program.buffers[buf].sizes;
        let pairs = |n: &[SymExpr]| n == [rows, keys].map(SymExpr::from_i64);
        assert!(!sizes.windows(2).any(pairs), "{} is written", program.buffers[buf].name);
    }
}

const WGMMA: [&str; 2] = ["wgmma_64x", "wgmma_128x"];

#[test]
fn windows_are_computed() {
    let Some(emulator) = emulator() else { return };
    let mut c = Case::new("a window, heads of keys shared");
    masked(&mut c, BF16, [1, 2, 1], [200, 340, 64, 64], |m| m.window(Some(70)));
    masked(&mut c, F16, [1, 1, 1], [200, 340, 128, 128], |m| m.window(Some(70)));
    assert_not_written(&mut c, [200, 340]);
    c.check_candidates(&emulator, &WGMMA);
    let mut c = Case::new("short");
    masked(&mut c, BF16, [1, 2, 1], [40, 70, 64, 64], |m| m.window(Some(20)));
    masked(&mut c, F32, [1, 2, 2], [33, 40, 24, 40], |m| m.window(None));
    assert_not_written(&mut c, [40, 70]);
    c.check_candidates(&emulator, &["flash", "simple"]);
}

/// Long rows: blocks of both halves of a tile are hidden, shown or cut by the mask's border.
#[test]
fn masks_of_long_rows() {
    let Some(emulator) = emulator() else { return };
    let long = ["wgmma_64x128_of", "flash"];
    let mut c = Case::new("a window of long rows");
    masked(&mut c, BF16, [1, 2, 1], [130, 270, 264, 72], |m| m.window(Some(70)));
    masked(&mut c, F16, [1, 1, 1], [140, 340, 24, 512], |m| m.documents());
    c.check_candidates(&emulator, &long);
    let mut c = Case::new("masks that are given");
    let padding = c.input(Bool, &[1, 1, 1, 340], |i| f64::from(i < 200));
    gradients(&mut c, BF16, [1, 1, 1], [130, 340, 264, 136], (Some(padding), true));
    let added =
        c.input(
            BF16,
            &[1, 2, 130, 150],
            |i| if i % 150 < 64 { f64::NEG_INFINITY } else { (i % 7) as f64 / 4.0 },
        );
    gradients(&mut c, BF16, [1, 2, 1], [130, 150, 320, 264], (Some(added), false));
    c.check_candidates(&emulator, &long);
}

#[test]
fn documents_and_padding_are_computed() {
    let Some(emulator) = emulator() else { return };
    let both = |m: &mut Mask<'_>| {
        let (same, causal) = (m.documents(), m.window(None));
        m.op("and", &[same.into(), causal.into()])
    };
    let mut c = Case::new("documents");
    masked(&mut c, BF16, [2, 1, 1], [340, 340, 64, 64], |m| m.documents());
    masked(&mut c, BF16, [2, 2, 1], [140, 340, 64, 32], both);
    assert_not_written(&mut c, [340, 340]);
    assert_not_written(&mut c, [140, 340]);
    c.check_candidates(&emulator, &WGMMA);
    let mut c = Case::new("padding");
    masked(&mut c, BF16, [2, 1, 1], [200, 340, 64, 64], |m| m.real());
    masked(&mut c, F16, [2, 1, 1], [200, 340, 32, 96], |m| {
        let (real, causal) = (m.real(), m.window(None));
        m.op("and", &[real.into(), causal.into()])
    });
    assert_not_written(&mut c, [200, 340]);
    c.check_candidates(&emulator, &WGMMA);
    let mut c = Case::new("one query");
    masked(&mut c, BF16, [2, 4, 2], [1, 130, 64, 64], |m| m.real());
    c.check_candidates(&emulator, &["decode"]);
}

#[test]
fn numbers_are_computed() {
    let Some(emulator) = emulator() else { return };
    let mut c = Case::new("slopes");
    masked(&mut c, BF16, [1, 2, 1], [130, 150, 64, 64], |m| m.slopes(BF16));
    assert_not_written(&mut c, [130, 150]);
    c.check_candidates(&emulator, &["wgmma_64x", "flash", "simple"]);
    let mut c = Case::new("minus infinity");
    masked(&mut c, F16, [1, 2, 1], [200, 340, 64, 64], |m| {
        let shown = m.window(Some(90));
        m.numbers(shown, F16)
    });
    assert_not_written(&mut c, [200, 340]);
    c.check_candidates(&emulator, &WGMMA);
}

/// Whole tiles of keys, and tiles whose last keys are none.
#[test]
fn biases_of_rows_and_columns_are_computed() {
    let Some(emulator) = emulator() else { return };
    for (name, image, heads) in [("whole", [16, 16], [1, 2, 2]), ("uneven", [10, 14], [2, 2, 1])] {
        let mut c = Case::new(name);
        let points = image[0] * image[1];
        masked(&mut c, BF16, heads, [points, points, 64, 64], |m| m.rows_and_columns(BF16, image));
        let mut program = c.program();
        prepare_masks(&mut program, &Target::HOPPER);
        let elements = |sizes: &[SymExpr]| sizes.iter().filter_map(SymExpr::as_const).product::<i64>();
        let all = heads[0] * heads[1] * points * points;
        for buf in program.steps.iter().flat_map(|step| step.accesses().1) {
            assert!(elements(&program.buffers[buf].sizes) < all, "{} is written", program.buffers[buf].name);
        }
        c.check_candidates(&emulator, &["wgmma_64x", "flash"]);
    }
    // Long rows, whose tiles two warpgroups share: the last one has half as many keys.
    let mut c = Case::new("long rows");
    masked(&mut c, BF16, [1, 1, 1], [192, 192, 264, 72], |m| m.rows_and_columns(BF16, [12, 16]));
    c.check_candidates(&emulator, &["wgmma_64x128_of", "flash"]);
}

/// What a call gives decides the mask where it is a tensor of pairs: it becomes bits, also where positions hide more.
#[test]
fn given_masks_become_bits() {
    let Some(emulator) = emulator() else { return };
    let mut c = Case::new("given");
    masked(&mut c, BF16, [1, 2, 1], [200, 530, 64, 64], |m| {
        let given = m.c.any(Bool, &[1, 1, 200, 530]);
        let causal = m.window(None);
        m.op("and", &[given.into(), causal.into()])
    });
    let mut program = c.program();
    prepare_masks(&mut program, &Target::HOPPER);
    let loops = program.steps.iter().any(|s| matches!(s, Step::Loop(k) if k.name.contains("and")));
    assert!(!loops, "the bits are not computed from what is given");
    c.check_candidates(&emulator, &["wgmma_64x", "flash"]);
}

/// Runs the kernel of a table, which loads nothing or one input, and gives the words.
fn words_of(program: &Program, step: &Step, given: &[i64]) -> Vec<u32> {
    let variant = &variants(program, step, &Target::HOPPER).unwrap()[0];
    let emulator = Emulator::new(Target::HOPPER);
    let size = |e: &SymExpr| e.as_const().unwrap() as u64;
    let kernel = &variant.kernels[0];
    let Step::Extern(call) = step else { unreachable!() };
    let to = program.root(call.outputs[0].buf);
    let count = |buf| program.buffers[buf].sizes.iter().map(size).product::<u64>();
    let out = emulator.allocate(4 * count(to)).unwrap();
    let argument = |param: &Param| match param {
        Param::Buffer(b) if *b == to => out,
        Param::Buffer(b) => {
            assert!(matches!(program.buffers[*b].storage, Storage::Input(_)));
            let bytes: Vec<u8> = given.iter().flat_map(|x| x.to_le_bytes()).collect();
            let address = emulator.allocate(bytes.len() as u64).unwrap();
            // SAFETY: the memory was allocated with this many bytes.
            unsafe { emulator.upload(address, bytes.as_ptr(), bytes.len()) }.unwrap();
            address
        }
        _ => unreachable!("the masks have fixed sizes"),
    };
    let words: Vec<u64> = kernel.params.iter().map(argument).collect();
    let module =
        Module::new(&Prelude::new(&emulator.target()), kernel.source.clone(), vec![ENTRY.to_owned()]);
    let function = &emulator.compile(&[module]).unwrap()[0][0];
    let blocks = [0, 1, 2].map(|d| size(&kernel.launch.blocks[d]) as u32);
    let grid = Grid { blocks, threads: kernel.launch.threads, shared: kernel.launch.shared };
    // SAFETY: the arguments are in the kernel's order, and the memory has the size of its buffers.
    unsafe { emulator.launch(function, grid, Arguments { words: &words, maps: &[] }) }.unwrap();
    let mut bytes = vec![0u8; 4 * count(to) as usize];
    // SAFETY: the memory was allocated with this many bytes.
    unsafe { emulator.download(bytes.as_mut_ptr(), out, bytes.len()) }.unwrap();
    bytes.chunks(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}

/// A block that a table hides has no pair that is shown, one that it shows whole none that is hidden, and each other both.
fn assert_table(program: &Program, given: &[i64], [rows, keys]: [i64; 2], shows: &dyn Fn(i64, i64) -> bool) {
    let all = program.init.iter().chain(&program.steps);
    let mut sides = 0;
    for step in all {
        let Step::Extern(call) = step else { continue };
        let ExternOp::MaskTable(table) = &call.op else { continue };
        sides += 1;
        let words = words_of(program, step, given);
        let (own, far) = if table.by_keys { (keys, rows) } else { (rows, keys) };
        let half = (far + 2047) / 2048;
        for (o, f) in (0..(own + 63) / 64).flat_map(|o| (0..(far + 63) / 64).map(move |f| (o, f))) {
            let pair = |a: i64, b: i64| if table.by_keys { shows(b, a) } else { shows(a, b) };
            let pairs = || {
                (o * 64..own.min(o * 64 + 64))
                    .flat_map(|a| (f * 64..far.min(f * 64 + 64)).map(move |b| (a, b)))
            };
            let (some, whole) = (pairs().any(|(a, b)| pair(a, b)), pairs().all(|(a, b)| pair(a, b)));
            let bit =
                |second: i64| words[(o * 2 * half + second * half + f / 32) as usize] >> (f % 32) & 1 != 0;
            assert_eq!((bit(0), bit(1)), (some, whole), "{}: block {o}, {f}", call.name);
        }
    }
    assert_eq!(sides, 2, "a table by queries and one by keys");
}

#[test]
fn tables_agree_with_masks() {
    if let Err(error) = gpu_emulator::available() {
        println!("skipped: {error}");
        return;
    }
    for (rows, keys, before) in [(200, 530, 70), (130, 4200, 64), (2100, 512, 1000), (128, 640, 1)] {
        let mut c = Case::new("window");
        masked(&mut c, BF16, [1, 2, 1], [rows, keys, 64, 64], |m| m.window(Some(before)));
        let mut program = c.program();
        prepare_masks(&mut program, &Target::HOPPER);
        assert_table(&program, &[], [rows, keys], &|i, j| j <= i && j > i - before);
    }
    for seed in 1..4i64 {
        // Runs of documents of lengths that vary, in no order.
        let document = |i: i64| (i / (40 * seed) * 7919) % 5;
        let given: Vec<i64> = (0..700).map(document).collect();
        let mut c = Case::new("documents");
        masked(&mut c, BF16, [1, 2, 1], [700, 700, 64, 64], |m| m.documents());
        let mut program = c.program();
        prepare_masks(&mut program, &Target::HOPPER);
        assert_table(&program, &given, [700, 700], &|i, j| document(i) == document(j));
    }
}
