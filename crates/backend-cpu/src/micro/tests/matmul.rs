//! Matrix products: packed, strided, few rows, f64.

use super::super::{
    BatchDim, COut, Isa, MatRef, MatmulF64, MatmulPacked, MatmulStrided, MicroError, PackedB, matmul_f64,
    matmul_packed, matmul_strided,
};
use super::*;

/// A strided matrix in a buffer: (rows, cols) at (row_stride, col_stride).
struct Mat {
    data: Vec<f32>,
    rows: isize,
    cols: isize,
}

impl Mat {
    /// Row-major (0), column-major (1), row-major with a gap (2), every second element (3).
    fn new(layout: usize, seed: u64, r: usize, c: usize) -> Mat {
        let (rows, cols) = match layout {
            0 => (c, 1),
            1 => (1, r),
            2 => (c + 5, 1),
            _ => (2 * c + 3, 2),
        };
        let len = r.max(1) * rows + c.max(1) * cols + 1;
        Mat { data: random(seed, len), rows: rows as isize, cols: cols as isize }
    }

    fn at(&self, i: usize, j: usize) -> f32 {
        self.data[i * self.rows as usize + j * self.cols as usize]
    }

    fn view(&self) -> MatRef {
        MatRef { ptr: self.data.as_ptr(), row_stride: self.rows, col_stride: self.cols }
    }
}

fn reference(a: &Mat, b: &Mat, k: usize, i: usize, j: usize) -> Sum {
    let mut sum = Sum::default();
    (0..k).for_each(|k| sum.add(a.at(i, k), b.at(k, j)));
    sum
}

const SIZES: [(usize, usize, usize); 24] = [
    (1, 1, 1),
    (1, 7, 3),
    (2, 3, 17),
    (3, 13, 31),
    (4, 16, 33),
    (5, 65, 64),
    (7, 17, 65),
    (8, 33, 129),
    (9, 5, 2),
    (13, 31, 64),
    (14, 32, 32),
    (15, 48, 47),
    (17, 64, 33),
    (31, 7, 65),
    (33, 96, 100),
    (64, 65, 13),
    (65, 64, 1),
    (29, 33, 500),
    (30, 70, 1000),
    (33, 40, 1024),
    (100, 130, 2048),
    (400, 200, 70),
    (6, 600, 300),
    (20, 9, 0),
];

fn check_packed(isa: Isa, (m, n, k): (usize, usize, usize), kind: usize, scratch: bool) {
    let what = format!("packed {isa:?} m {m} n {n} k {k} kind {kind} scratch {scratch}");
    let (a, b) = (Mat::new(kind % 4, 1, m, k), Mat::new(kind / 2 % 4, 2, k, n));
    let epilogue = TestEpilogue::new(kind, 1, m, n);
    let ldc = n + kind % 2 * 3;
    let mut c = vec![9.0f32; m * ldc + 1];
    let counter = Counter::new(1, m, n);
    // SAFETY: the operands are as large as described.
    unsafe {
        let b = PackedB::pack(isa, b.data.as_ptr(), k, n, b.rows, b.cols).unwrap();
        assert!(b.bytes() >= k * n * 4);
        let out = c.as_mut_ptr() as usize;
        let visit = |block: &EpilogueBlock| {
            counter.visit(block);
            if scratch {
                for i in block.row0..block.row1 {
                    for j in block.col0..block.col1 {
                        let v = *block.ptr.add((i - block.row0) * block.row_stride + j - block.col0);
                        *(out as *mut f32).add(i * ldc + j) = v;
                    }
                }
            }
        };
        let c = if scratch { COut::Scratch } else { COut::Memory { ptr: c.as_mut_ptr(), row_stride: ldc } };
        let epilogue = Epilogue { hook: hook(&visit), ..epilogue.borrow() };
        matmul_packed(&MatmulPacked { m, a: a.view(), b: &b, c, epilogue }).unwrap();
    }
    counter.assert_once(&what);
    for i in 0..m {
        for j in 0..n {
            let mut sum = reference(&a, &b, k, i, j);
            epilogue.apply(&mut sum, 0, i, j);
            assert_close(c[i * ldc + j] / 2.0, &sum, &format!("{what} ({i}, {j})"));
        }
        assert!(c[i * ldc + n..(i + 1) * ldc].iter().all(|x| *x == 9.0), "{what}: wrote between rows");
    }
}

#[test]
fn packed_products_match_f64() {
    for isa in isas() {
        for (i, size) in SIZES.into_iter().enumerate() {
            check_packed(isa, size, i % 8, false);
            check_packed(isa, size, (i * 5 + 3) % 8, i % 2 == 0);
        }
    }
}

#[test]
fn products_are_the_same_to_the_last_bit_however_they_are_cut() {
    for isa in isas() {
        for (m, n, k) in [(5, 65, 64), (33, 40, 1024), (400, 200, 70), (100, 130, 600)] {
            let (a, b) = (Mat::new(0, 1, m, k), Mat::new(1, 2, k, n));
            // SAFETY: B is as large as described.
            let mut packed = unsafe { PackedB::pack(isa, b.data.as_ptr(), k, n, b.rows, b.cols) }.unwrap();
            let mut results = Vec::new();
            for way in packed.ways() {
                packed.set_way(way);
                let mut c = vec![9.0f32; m * n];
                let to = COut::Memory { ptr: c.as_mut_ptr(), row_stride: n };
                let epilogue = Epilogue::default();
                let call = MatmulPacked { m, a: a.view(), b: &packed, c: to, epilogue };
                // SAFETY: the operands are as large as described.
                unsafe { matmul_packed(&call) }.unwrap();
                results.push((way, c));
            }
            let (_, rule) = &results[0];
            for (way, c) in &results[1..] {
                assert!(c == rule, "{isa:?} {m} {n} {k}: {way}");
            }
        }
    }
}

#[test]
fn products_match_in_a_team_of_many() {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(5).build().unwrap();
    pool.install(|| {
        super::super::team::with(|| {
            for (i, size) in SIZES.into_iter().enumerate() {
                check_packed(Isa::best(), size, i % 8, i % 3 == 0);
                if size.0 * size.1 * size.2 < 1 << 17 {
                    check_strided(Isa::best(), size, [0, i % 2, 0], i % 2 == 0);
                }
            }
        });
    });
}

#[test]
fn residual_may_be_c_itself() {
    for isa in isas() {
        // One pass over k and several; tiles and few rows.
        for (m, n, k) in [(20, 40, 30), (20, 40, 1100), (50, 70, 2048), (3, 40, 1100), (1, 33, 64)] {
            let (a, b) = (Mat::new(0, 1, m, k), Mat::new(1, 2, k, n));
            let before = random(7, m * n);
            let check = |c: &[f32], what: &str| {
                for i in 0..m {
                    for j in 0..n {
                        let mut sum = reference(&a, &b, k, i, j);
                        sum.add(before[i * n + j], 1.0);
                        assert_close(c[i * n + j], &sum, &format!("{what} {isa:?} {m} {n} {k} ({i}, {j})"));
                    }
                }
            };
            let with = |ptr: *const f32| Epilogue {
                residual: Some(Residual { ptr, row_stride: n, batch_stride: 0 }),
                ..Epilogue::default()
            };
            let mut c = before.clone();
            // SAFETY: the operands are as large as described.
            unsafe {
                let b = PackedB::pack(isa, b.data.as_ptr(), k, n, b.rows, b.cols).unwrap();
                let ptr = c.as_mut_ptr();
                let out = COut::Memory { ptr, row_stride: n };
                matmul_packed(&MatmulPacked { m, a: a.view(), b: &b, c: out, epilogue: with(ptr) }).unwrap();
            }
            check(&c, "packed");
            let mut c = before.clone();
            let ptr = c.as_mut_ptr();
            let call = MatmulStrided {
                isa,
                m,
                n,
                k,
                a: a.view(),
                b: b.view(),
                c: ptr,
                c_row_stride: n as isize,
                c_col_stride: 1,
                batch: &[],
                epilogue: with(ptr),
            };
            // SAFETY: the operands are as large as described.
            unsafe { matmul_strided(&call).unwrap() };
            check(&c, "strided");
        }
    }
}

#[test]
fn raw_hook_gets_its_context() {
    unsafe extern "C" fn add(block: *const EpilogueBlock, ctx: *const std::ffi::c_void) {
        // SAFETY: called with a live block of one element and the f32 below.
        unsafe { *(*block).ptr += *ctx.cast::<f32>() };
    }
    let (a, b, ten) = ([2.0f32], [3.0f32], 10.0f32);
    let mut c = [0.0f32];
    // SAFETY: one element each.
    unsafe {
        let b = PackedB::pack(Isa::best(), b.as_ptr(), 1, 1, 1, 1).unwrap();
        let hook = Some(Hook::Raw { f: add, ctx: (&raw const ten).cast() });
        let a = MatRef { ptr: a.as_ptr(), row_stride: 1, col_stride: 1 };
        let c = COut::Memory { ptr: c.as_mut_ptr(), row_stride: 1 };
        let epilogue = Epilogue { hook, ..Epilogue::default() };
        matmul_packed(&MatmulPacked { m: 1, a, b: &b, c, epilogue }).unwrap();
    }
    assert_eq!(c, [16.0]);
}

#[test]
fn every_tile_shape_matches_f64() {
    for isa in isas() {
        for m in 1..=29 {
            for n in [1, 4, 8, 9, 15, 16, 17, 31, 32, 33, 50] {
                check_packed(isa, (m, n, 11), (m + n) % 8, false);
            }
        }
    }
}

fn check_strided(isa: Isa, (m, n, k): (usize, usize, usize), layouts: [usize; 3], broadcast: bool) {
    let what = format!("strided {isa:?} m {m} n {n} k {k} {layouts:?} {broadcast}");
    let dims = [2usize, 3];
    let a: Vec<_> = (0..6).map(|e| Mat::new(layouts[0], e, m, k)).collect();
    let b: Vec<_> = (0..6).map(|e| Mat::new(layouts[1], 10 + e, k, n)).collect();
    let (a_len, b_len) = (a[0].data.len(), b[0].data.len());
    let a_all: Vec<f32> = a.iter().flat_map(|m| m.data.clone()).collect();
    let b_all: Vec<f32> = b.iter().flat_map(|m| m.data.clone()).collect();
    let c_mat = Mat::new(layouts[2], 5, m, n);
    let c_len = c_mat.data.len();
    let mut c = vec![9.0f32; 6 * c_len];
    let b_inner = if broadcast { 0 } else { b_len };
    let batch = [
        BatchDim {
            size: dims[0],
            a_stride: 3 * a_len as isize,
            b_stride: 3 * b_inner as isize,
            c_stride: 3 * c_len as isize,
        },
        BatchDim {
            size: dims[1],
            a_stride: a_len as isize,
            b_stride: b_inner as isize,
            c_stride: c_len as isize,
        },
    ];
    let epilogue = TestEpilogue::new((m + n + k) % 8, 6, m, n);
    let counter = Counter::new(6, m, n);
    let visit = |block: &EpilogueBlock| counter.visit(block);
    // SAFETY: the operands are as large as described.
    unsafe {
        matmul_strided(&MatmulStrided {
            isa,
            m,
            n,
            k,
            a: MatRef { ptr: a_all.as_ptr(), ..a[0].view() },
            b: MatRef { ptr: b_all.as_ptr(), ..b[0].view() },
            c: c.as_mut_ptr(),
            c_row_stride: c_mat.rows,
            c_col_stride: c_mat.cols,
            batch: &batch,
            epilogue: Epilogue { hook: hook(&visit), ..epilogue.borrow() },
        })
        .unwrap();
    }
    counter.assert_once(&what);
    for e in 0..6 {
        for i in 0..m {
            for j in 0..n {
                let mut sum = reference(&a[e], &b[if broadcast { 0 } else { e }], k, i, j);
                epilogue.apply(&mut sum, e, i, j);
                let got = c[e * c_len + i * c_mat.rows as usize + j * c_mat.cols as usize];
                assert_close(got / 2.0, &sum, &format!("{what} entry {e} ({i}, {j})"));
            }
        }
    }
}

#[test]
fn strided_batches_match_f64() {
    for isa in isas() {
        for (i, size) in SIZES.into_iter().enumerate() {
            if size.0 * size.1 * size.2 < 1 << 20 {
                check_strided(isa, size, [i % 4, i / 2 % 4, 0], i % 3 == 0);
                check_strided(isa, size, [0, (i + 1) % 4, i % 4], i % 2 == 0);
            }
        }
    }
}

#[test]
fn few_rows_match_f64_in_both_layouts() {
    for isa in isas() {
        for m in 1..=9 {
            for (n, k) in [(1, 1), (5, 64), (33, 17), (64, 100), (257, 31), (1000, 70)] {
                for layout in [0, 1, 2] {
                    check_strided(isa, (m, n, k), [m % 4, layout, 0], m % 2 == 0);
                }
            }
        }
    }
}

#[test]
fn long_sums_match_f64_in_all_layouts() {
    // Sums of several passes over k, A and B as they are or turned.
    for isa in isas() {
        for layout in 0..16 {
            check_strided(isa, (31, 70, 1000), [layout / 4, layout % 4, 0], layout % 3 == 0);
        }
    }
}

#[test]
fn large_weight_is_packed_in_chunks() {
    // 4 Mi values of B: more than one chunk of columns where two products share it.
    check_large(9, 8200, 520, 1);
    check_large(9, 8200, 520, 2);
}

fn check_large(m: usize, n: usize, k: usize, entries: usize) {
    let a: Vec<Mat> = (0..entries as u64).map(|e| Mat::new(0, 1 + e, m, k)).collect();
    let b = Mat::new(1, 5, k, n);
    let all: Vec<f32> = a.iter().flat_map(|a| a.data.clone()).collect();
    let mut c = vec![0.0f32; entries * m * n];
    let batch = [BatchDim {
        size: entries,
        a_stride: a[0].data.len() as isize,
        b_stride: 0,
        c_stride: (m * n) as isize,
    }];
    // SAFETY: the operands are as large as described.
    unsafe {
        matmul_strided(&MatmulStrided {
            isa: Isa::best(),
            m,
            n,
            k,
            a: MatRef { ptr: all.as_ptr(), ..a[0].view() },
            b: b.view(),
            c: c.as_mut_ptr(),
            c_row_stride: n as isize,
            c_col_stride: 1,
            batch: &batch,
            epilogue: Epilogue::default(),
        })
        .unwrap();
    }
    for (e, a) in a.iter().enumerate() {
        for (i, j) in [(0, 0), (m - 1, n - 1), (3, n / 2), (5, 4096), (m - 1, 4031)] {
            let got = c[e * m * n + i * n + j];
            assert_close(got, &reference(a, &b, k, i, j), &format!("entry {e} ({i}, {j})"));
        }
    }
}

/// Two products whose hook is given blocks in scratch memory and stores them.
fn check_scratch(isa: Isa, (m, n, k): (usize, usize, usize), layouts: [usize; 2]) {
    let (a, b) = (Mat::new(layouts[0], 1, m, k), Mat::new(layouts[1], 2, k, n));
    let mut c = vec![0.0f32; 2 * m * n];
    let place = c.as_mut_ptr() as usize;
    let store = |block: &EpilogueBlock| {
        for i in block.row0..block.row1 {
            for j in block.col0..block.col1 {
                let at = (block.batch * m + i) * n + j;
                // SAFETY: blocks are parts of C that do not overlap, and are readable.
                unsafe {
                    let from = block.ptr.add((i - block.row0) * block.row_stride + j - block.col0);
                    *(place as *mut f32).add(at) += *from;
                }
            }
        }
    };
    // SAFETY: both products read the same operands, and C is the hook's.
    unsafe {
        matmul_strided(&MatmulStrided {
            isa,
            m,
            n,
            k,
            a: a.view(),
            b: b.view(),
            c: std::ptr::null_mut(),
            c_row_stride: n as isize,
            c_col_stride: 1,
            batch: &[BatchDim { size: 2, a_stride: 0, b_stride: 0, c_stride: (m * n) as isize }],
            epilogue: Epilogue { hook: hook(&store), ..Epilogue::default() },
        })
        .unwrap();
    }
    for (at, got) in c.iter().enumerate() {
        let (i, j) = (at / n % m, at % n);
        let what = format!("scratch {isa:?} m {m} n {n} k {k} {layouts:?} ({i}, {j})");
        assert_close(*got, &reference(&a, &b, k, i, j), &what);
    }
}

#[test]
fn a_hook_takes_blocks_in_scratch() {
    for isa in isas() {
        for layout in 0..4 {
            check_scratch(isa, (4, 33, 20), [layout, 1 - layout % 2]);
            check_scratch(isa, (33, 70, 500), [layout, layout % 2]);
            check_scratch(isa, (150, 40, 60), [layout, 1 - layout % 2]);
        }
    }
}

/// The columns of the blocks that a hook of such products is given.
fn columns_of(isa: Isa, (m, n, k): (usize, usize, usize), entries: usize) -> Vec<(usize, usize)> {
    let (a, b) = (Mat::new(1, 1, m, k), Mat::new(0, 2, k, n));
    let blocks = std::sync::Mutex::new(Vec::new());
    let keep = |block: &EpilogueBlock| blocks.lock().unwrap().push((block.col0, block.col1));
    // SAFETY: all products read the same operands, and the hook does not use the block's memory.
    unsafe {
        matmul_strided(&MatmulStrided {
            isa,
            m,
            n,
            k,
            a: a.view(),
            b: b.view(),
            c: std::ptr::null_mut(),
            c_row_stride: n as isize,
            c_col_stride: 1,
            batch: &[BatchDim { size: entries, a_stride: 0, b_stride: 0, c_stride: (m * n) as isize }],
            epilogue: Epilogue { hook: hook(&keep), ..Epilogue::default() },
        })
        .unwrap();
    }
    blocks.into_inner().unwrap()
}

#[test]
fn a_hook_is_given_whole_rows_of_shallow_products() {
    // With many threads rows are cut so that each has a task.
    let pool = rayon::ThreadPoolBuilder::new().num_threads(2).build().unwrap();
    for isa in isas() {
        for (size, entries) in [((512, 256, 4), 16), ((2000, 300, 16), 1), ((700, 768, 64), 2)] {
            let blocks = pool.install(|| columns_of(isa, size, entries));
            assert!(blocks.len() > entries, "{isa:?} {size:?}: the product is one block");
            let whole = blocks.iter().all(|b| *b == (0, size.1));
            assert!(whole, "{isa:?} {size:?}: rows are cut");
        }
    }
}

/// Products whose result is only stored, three of them.
fn check_stored(isa: Isa, (m, n, k): (usize, usize, usize), layouts: [usize; 2]) {
    let a: Vec<_> = (0..3).map(|e| Mat::new(layouts[0], e, m, k)).collect();
    let b: Vec<_> = (0..3).map(|e| Mat::new(layouts[1], 10 + e, k, n)).collect();
    let (a_len, b_len, row) = (a[0].data.len(), b[0].data.len(), n + 2);
    let a_all: Vec<f32> = a.iter().flat_map(|m| m.data.clone()).collect();
    let b_all: Vec<f32> = b.iter().flat_map(|m| m.data.clone()).collect();
    let mut c = vec![9.0f32; 3 * m * row];
    let strides = [a_len, b_len, m * row].map(|x| x as isize);
    // SAFETY: the operands are as large as described.
    unsafe {
        matmul_strided(&MatmulStrided {
            isa,
            m,
            n,
            k,
            a: MatRef { ptr: a_all.as_ptr(), ..a[0].view() },
            b: MatRef { ptr: b_all.as_ptr(), ..b[0].view() },
            c: c.as_mut_ptr(),
            c_row_stride: row as isize,
            c_col_stride: 1,
            batch: &[BatchDim { size: 3, a_stride: strides[0], b_stride: strides[1], c_stride: strides[2] }],
            epilogue: Epilogue::default(),
        })
        .unwrap();
    }
    for (at, got) in c.iter().enumerate() {
        let (e, i, j) = (at / row / m, at / row % m, at % row);
        let what = format!("stored {isa:?} m {m} n {n} k {k} {layouts:?} entry {e} ({i}, {j})");
        match j < n {
            true => assert_close(*got, &reference(&a[e], &b[e], k, i, j), &what),
            false => assert!(*got == 9.0, "{what} is not of the result"),
        }
    }
}

#[test]
fn few_columns_match_f64_in_all_layouts() {
    for isa in isas() {
        for n in 1..=5 {
            for (m, k) in [(9, 1), (16, 70), (37, 300), (300, 33)] {
                (0..16).for_each(|layout| check_stored(isa, (m, n, k), [layout / 4, layout % 4]));
            }
        }
    }
}

#[test]
fn nan_and_infinity_pass_through_the_epilogue() {
    let b = [1.0f32, 0.0, 0.0, 1.0];
    let a = [f32::NAN, f32::INFINITY];
    for isa in isas() {
        let mut c = [0.0f32; 2];
        // SAFETY: [1, 1] times [1, 2], twice.
        unsafe {
            let packed = PackedB::pack(isa, b.as_ptr(), 1, 1, 1, 1).unwrap();
            let epilogue = Epilogue { activation: Activation::Clamp(0.0, 6.0), ..Epilogue::default() };
            let a = MatRef { ptr: a.as_ptr(), row_stride: 1, col_stride: 1 };
            let c = COut::Memory { ptr: c.as_mut_ptr(), row_stride: 1 };
            matmul_packed(&MatmulPacked { m: 2, a, b: &packed, c, epilogue }).unwrap();
        }
        assert!(c[0].is_nan() && c[1] == 6.0, "{isa:?}: {c:?}");
    }
}

#[test]
fn bad_calls_are_refused() {
    let data = [0.0f32; 4];
    // SAFETY: 2 x 2 elements.
    let b = unsafe { PackedB::pack(Isa::Portable, data.as_ptr(), 2, 2, 2, 1).unwrap() };
    let a = MatRef { ptr: data.as_ptr(), row_stride: 2, col_stride: 1 };
    let short = [1.0f32];
    let epilogue = Epilogue { shift: Some(&short), ..Epilogue::default() };
    let mut c = [0.0f32; 4];
    let out = COut::Memory { ptr: c.as_mut_ptr(), row_stride: 2 };
    // SAFETY: refused before anything is read.
    let got = unsafe { matmul_packed(&MatmulPacked { m: 2, a, b: &b, c: out, epilogue }) };
    assert_eq!(got, Err(MicroError::Mismatch { what: "epilogue shift, columns", expected: 2, got: 1 }));
    let epilogue = Epilogue::default();
    // SAFETY: refused before anything is read.
    let got = unsafe { matmul_packed(&MatmulPacked { m: 2, a, b: &b, c: COut::Scratch, epilogue }) };
    assert!(matches!(got, Err(MicroError::Unsupported(_))));
}

#[test]
fn f64_products_match() {
    let (m, n, k) = (13, 17, 33);
    let wide = |v: Vec<f32>| v.into_iter().map(f64::from).collect::<Vec<_>>();
    let (a, b) = (wide(random(1, 3 * m * k)), wide(random(2, k * n)));
    let mut c = vec![0.0f64; 3 * m * n];
    let batch = [BatchDim { size: 3, a_stride: (m * k) as isize, b_stride: 0, c_stride: (m * n) as isize }];
    // SAFETY: the operands are as large as described; b is [N, K].
    unsafe {
        matmul_f64(&MatmulF64 {
            m,
            n,
            k,
            a: a.as_ptr(),
            a_strides: [k as isize, 1],
            b: b.as_ptr(),
            b_strides: [1, k as isize],
            c: c.as_mut_ptr(),
            c_strides: [n as isize, 1],
            batch: &batch,
        });
    }
    for e in 0..3 {
        for i in 0..m {
            for j in 0..n {
                let want: f64 = (0..k).map(|k_| a[e * m * k + i * k + k_] * b[j * k + k_]).sum();
                assert!((c[e * m * n + i * n + j] - want).abs() < 1e-13);
            }
        }
    }
}
