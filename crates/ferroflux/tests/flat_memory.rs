//! A compiled function that is called with ever new sizes keeps nothing of a call: the bytes that this process holds are
//! counted. A file of its own, because the count is the process's.

#![allow(clippy::unwrap_used)] // a failing test may panic

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicIsize, Ordering};

use ferroflux::prelude::*;

/// The bytes that are allocated now.
static HELD: AtomicIsize = AtomicIsize::new(0);

struct Count;

// SAFETY: every call goes to `System` with its arguments unchanged; the counter does not allocate.
unsafe impl GlobalAlloc for Count {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        HELD.fetch_add(layout.size() as isize, Ordering::Relaxed);
        // SAFETY: the caller's guarantee for `alloc` is `System`'s.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size() as isize, Ordering::Relaxed);
        // SAFETY: `ptr` came from `System` with this layout.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static COUNT: Count = Count;

#[test]
fn ten_thousand_sizes_hold_no_memory() {
    let f = compile(|(x, y): (Tensor, Tensor)| ((x * 2.0 + y).softmax(1)).sum_dims(&[1], false));
    let f = f.dynamic(true).build().unwrap();
    let mut state = 1u64;
    let mut calls = |count: usize| {
        for _ in 0..count {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let (n, m) = (2 + (state >> 33) as usize % 40, 2 + (state >> 45) as usize % 60);
            let data = vec![1.0_f32; n * m];
            let x = Tensor::from_slice(&data, &[n, m]);
            let sums = f.call((x.clone(), x)).unwrap().to_vec::<f32>().unwrap();
            assert!(sums.len() == n && sums.iter().all(|s| (s - 1.0).abs() < 1e-5));
        }
        HELD.load(Ordering::Relaxed)
    };
    let before = calls(1_000);
    let after = calls(10_000);
    println!("{before} bytes are held after 1,000 calls, {after} after 11,000");
    // Not 7 bytes a call.
    assert!(after - before < 64 << 10, "10,000 calls hold {} bytes", after - before);
    assert_eq!((f.captures(), f.entries()), (1, 1), "{:?}", f.recompile_reasons());
}
