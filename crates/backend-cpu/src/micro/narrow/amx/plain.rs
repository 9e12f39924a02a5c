//! What the instructions of `amx` do, in plain Rust, for tests on processors that do not have them: everything around the instructions
//! (tiles, pieces, parts of k) is compared with plain sums everywhere. Not a way to run programs.

use std::cell::RefCell;

use half::bf16;

use super::{Narrow, PANEL, Square};

/// The four registers of sums, of which the first rows are used.
struct Registers {
    rows: usize,
    /// Groups of k of a tile.
    groups: usize,
    sums: [[[u32; PANEL]; 16]; 4],
}

thread_local! {
    static REGISTERS: RefCell<Registers> = const { RefCell::new(Registers { rows: 0, groups: 0, sums: [[[0; PANEL]; 16]; 4] }) };
}

pub(super) fn configure(rows: usize, piece: usize) {
    REGISTERS.with_borrow_mut(|registers| (registers.rows, registers.groups) = (rows, piece / 4));
}

/// The registers in use by their row of tiles and their panel.
fn used([rows, columns]: [bool; 2]) -> impl Iterator<Item = (usize, usize)> {
    (0..4).map(|i| (i / 2, i % 2)).filter(move |(r, c)| (rows || *r == 0) && (columns || *c == 0))
}

/// # Safety
/// As for the instructions: pointers cover the tiles.
pub(super) unsafe fn load(square: &Square, two: [bool; 2]) {
    REGISTERS.with_borrow_mut(|registers| {
        for (r, c) in used(two) {
            for row in 0..registers.rows {
                let from =
                    square.first[r].wrapping_add(c * PANEL).wrapping_byte_add(row * square.first_stride);
                // SAFETY: the caller's promise.
                registers.sums[2 * r + c][row] = unsafe { from.cast::<[u32; PANEL]>().read_unaligned() };
            }
        }
    });
}

/// # Safety
/// As [`load`].
pub(super) unsafe fn store(square: &Square, two: [bool; 2]) {
    REGISTERS.with_borrow(|registers| {
        for (r, c) in used(two) {
            for row in 0..registers.rows {
                let to = square.c[r].wrapping_add(c * PANEL).wrapping_byte_add(row * square.c_stride);
                // SAFETY: the caller's promise.
                unsafe { to.cast::<[u32; PANEL]>().write_unaligned(registers.sums[2 * r + c][row]) };
            }
        }
    });
}

/// # Safety
/// As [`load`].
pub(super) unsafe fn add(square: &Square, numbers: Narrow, two: [bool; 2]) {
    REGISTERS.with_borrow_mut(|registers| {
        for (r, c) in used(two) {
            for (row, group) in
                (0..registers.rows).flat_map(|row| (0..registers.groups).map(move |g| (row, g)))
            {
                let a = square.a[r].wrapping_offset(row as isize * square.stride).wrapping_add(4 * group);
                let b = square.b.wrapping_add(group * square.step + 4 * PANEL * c);
                // SAFETY: the caller's promise.
                let (a, b) = unsafe {
                    (a.cast::<[u8; 4]>().read_unaligned(), b.cast::<[[u8; 4]; PANEL]>().read_unaligned())
                };
                for (sum, b) in registers.sums[2 * r + c][row].iter_mut().zip(b) {
                    *sum = dot(numbers, *sum, a, b);
                }
            }
        }
    });
}

/// A sum and the products of four bytes.
fn dot(numbers: Narrow, sum: u32, a: [u8; 4], b: [u8; 4]) -> u32 {
    if numbers == Narrow::Bf16 {
        let number = |v: [u8; 4], i: usize| bf16::from_le_bytes([v[2 * i], v[2 * i + 1]]).to_f32();
        let sum = f32::from_bits(sum) + number(a, 0) * number(b, 0);
        return (sum + number(a, 1) * number(b, 1)).to_bits();
    }
    let product = |i: usize| i32::from(a[i]) * i32::from(b[i].cast_signed());
    sum.wrapping_add((0..4).map(product).sum::<i32>().cast_unsigned())
}
