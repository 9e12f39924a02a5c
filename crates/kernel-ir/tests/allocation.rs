//! A few hostile bytes must not make the reader ask for memory that they do not justify: every allocation of this process
//! is watched. A file of its own, because the watch is the process's.

#![allow(clippy::unwrap_used)] // a failing test may panic

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use kernel_ir::Program;

/// The largest single request so far, in bytes.
static LARGEST: AtomicUsize = AtomicUsize::new(0);

struct Watch;

// SAFETY: every call goes to `System` with its arguments unchanged; the counter does not allocate.
unsafe impl GlobalAlloc for Watch {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LARGEST.fetch_max(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's guarantee for `alloc` is `System`'s.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: `ptr` came from `System` with this layout.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static WATCH: Watch = Watch;

/// More than any announced length may cost: serde reserves at most 1 MiB ahead of the elements.
const LIMIT: usize = 2 << 20;

#[test]
fn lengths_are_not_believed() {
    let program: Program = include_str!("files/roundtrip_everything.kir").parse().unwrap();
    let bytes = program.to_bytes();
    // Every place in turn announces the longest array, text, bytes or map that MessagePack has.
    for at in 8..bytes.len() {
        for header in [0xdd, 0xdb, 0xc6, 0xdf] {
            for length in [0xffff_ffffu32, 0x0100_0000] {
                let mut hostile = bytes[..at].to_vec();
                hostile.push(header);
                hostile.extend(length.to_be_bytes());
                hostile.extend(&bytes[at + 1..]);
                let _ = Program::from_bytes(&hostile);
            }
        }
    }
    let largest = LARGEST.load(Ordering::Relaxed);
    assert!(largest < LIMIT, "{} bytes made one request of {largest} bytes", bytes.len());
}
