//! Parallel loops: every task once, with and without a team, nested, panicking. Results that do not depend on the number of threads.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::super::{
    COut, ConvPlan, ConvShape, Epilogue, Isa, MatRef, MatmulPacked, MatmulStrided, PackedB, Strides5,
    matmul_packed, matmul_strided, team,
};
use super::{isas, random};

fn pool(threads: usize) -> rayon::ThreadPool {
    rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap()
}

fn check_loops() {
    for round in 0..200 {
        let tasks = round % 37;
        let counts: Vec<AtomicUsize> = (0..tasks).map(|_| AtomicUsize::new(0)).collect();
        team::par_for(tasks, &|i| {
            team::par_for(2, &|_| ());
            counts[i].fetch_add(1, Ordering::Relaxed);
        });
        assert!(counts.iter().all(|c| c.load(Ordering::Relaxed) == 1), "round {round}");
    }
}

#[test]
fn every_task_runs_once() {
    for threads in [1, 2, 5] {
        pool(threads).install(|| {
            check_loops();
            team::with(check_loops);
            team::with(|| team::with(check_loops));
            check_loops();
        });
    }
    team::with(check_loops);
}

#[test]
fn a_panic_reaches_the_caller_and_the_team_survives() {
    pool(3).install(|| {
        team::with(|| {
            let caught = std::panic::catch_unwind(|| {
                team::par_for(8, &|i| assert!(i != 5, "task five"));
            });
            assert!(caught.is_err());
            check_loops();
        });
        let caught = std::panic::catch_unwind(|| team::with(|| panic!("body")));
        assert!(caught.is_err());
        check_loops();
    });
}

/// A product on some threads.
fn product(isa: Isa, [m, n, k]: [usize; 3], threads: usize) -> Vec<f32> {
    let (a, b) = (random(1, m * k), random(2, k * n));
    let mut c = vec![0.0; m * n];
    let run = |c: &mut [f32]| {
        // SAFETY: the operands are as large as the sizes say.
        unsafe {
            let b = PackedB::pack(isa, b.as_ptr(), k, n, n as isize, 1).unwrap();
            let a = MatRef { ptr: a.as_ptr(), row_stride: k as isize, col_stride: 1 };
            let c = COut::Memory { ptr: c.as_mut_ptr(), row_stride: n };
            matmul_packed(&MatmulPacked { m, a, b: &b, c, epilogue: Epilogue::default() }).unwrap();
        }
    };
    pool(threads).install(|| team::with(|| run(&mut c)));
    c
}

/// The same with operands that are packed in the call, both turned.
fn turned_product(isa: Isa, [m, n, k]: [usize; 3], threads: usize) -> Vec<f32> {
    let (a, b) = (random(1, m * k), random(2, k * n));
    let mut c = vec![0.0; m * n];
    let run = |c: &mut [f32]| {
        let call = MatmulStrided {
            isa,
            m,
            n,
            k,
            a: MatRef { ptr: a.as_ptr(), row_stride: 1, col_stride: m as isize },
            b: MatRef { ptr: b.as_ptr(), row_stride: 1, col_stride: k as isize },
            c: c.as_mut_ptr(),
            c_row_stride: n as isize,
            c_col_stride: 1,
            batch: &[],
            epilogue: Epilogue::default(),
        };
        // SAFETY: the operands are as large as the sizes say.
        unsafe { matmul_strided(&call) }.unwrap();
    };
    pool(threads).install(|| team::with(|| run(&mut c)));
    c
}

#[test]
fn products_do_not_depend_on_threads() {
    for isa in isas() {
        // Few rows beyond whole tiles, cut by rows and by columns.
        for sizes in
            [[43, 64, 2000], [57, 33, 1500], [29, 640, 300], [15, 700, 300], [7, 300, 400], [300, 3, 900]]
        {
            let (alone, turned) = (product(isa, sizes, 1), turned_product(isa, sizes, 1));
            for threads in [2, 3, 5, 8] {
                assert!(alone == product(isa, sizes, threads), "{isa:?} {sizes:?} on {threads} threads");
                let found = turned_product(isa, sizes, threads);
                assert!(turned == found, "turned {isa:?} {sizes:?} on {threads} threads");
            }
        }
    }
}

/// A convolution of 3×3 by transformed tiles on some threads.
fn convolution(isa: Isa, (batch, channels, [h, w]): (usize, usize, [usize; 2]), threads: usize) -> Vec<f32> {
    let pad = [0, 1, 1];
    let shape = ConvShape::conv2d(batch, channels, [h, w], channels, [3, 3]);
    let shape = ConvShape { pad_lo: pad, pad_hi: pad, ..shape };
    let places = Strides5::channels_last(channels, [1, h, w]);
    let (x, weight) = (random(3, batch * h * w * channels), random(4, channels * channels * 9));
    let mut y = vec![0.0; batch * h * w * channels];
    let run = |y: &mut [f32]| {
        let plan = ConvPlan::new(isa, shape, places, places).unwrap();
        // SAFETY: the buffers are as large as the strides say.
        unsafe {
            let strides = [channels as isize * 9, 9, 9, 3, 1];
            let weights = plan.pack_transformed(weight.as_ptr(), strides).expect("a window of 3×3");
            plan.run(x.as_ptr(), &weights, y.as_mut_ptr(), &Epilogue::default()).unwrap();
        }
    };
    pool(threads).install(|| team::with(|| run(&mut y)));
    y
}

#[test]
fn convolutions_by_transformed_tiles_do_not_depend_on_threads() {
    for isa in isas() {
        for sizes in [(1, 64, [16, 16]), (1, 64, [8, 8]), (1, 48, [4, 4]), (3, 32, [7, 9]), (2, 64, [30, 13])]
        {
            let alone = convolution(isa, sizes, 1);
            for threads in [2, 3, 5, 8] {
                assert!(alone == convolution(isa, sizes, threads), "{isa:?} {sizes:?} on {threads} threads");
            }
        }
    }
}
