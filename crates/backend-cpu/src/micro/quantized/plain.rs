//! Tiles of products with quantized weights in plain Rust, which the compiler turns into vectors.

use super::{Bits, NIBBLES, PANEL, Tile};

/// `sums += x * numbers`.
#[inline(always)]
fn add<T: Copy>(sums: &mut [f32; PANEL], x: f32, numbers: &[T; PANEL], number: impl Fn(T) -> f32) {
    for (sum, n) in sums.iter_mut().zip(numbers) {
        *sum += x * number(*n);
    }
}

/// One row and one panel.
///
/// # Safety
/// The tile's pointers cover its sizes.
#[inline(always)]
unsafe fn tile(t: &Tile) {
    let mut sums = [0.0f32; PANEL];
    let (mut row, mut head, mut data) = (t.rows[0], t.heads, t.numbers);
    for g in 0..t.groups {
        // SAFETY: the caller guarantees that the tile's pointers cover its sizes.
        unsafe {
            let mut part = [0.0f32; PANEL];
            let mut from = data;
            for _ in 0..t.steps {
                match t.bits {
                    Bits::Eight => add(&mut part, *row, &from.cast::<[i8; PANEL]>().read(), f32::from),
                    Bits::Four => {
                        let words = from.cast::<[u32; PANEL]>().read();
                        for j in 0..NIBBLES {
                            let number = |w: u32| ((w >> (4 * j)) & 15) as f32 + t.lowest;
                            add(&mut part, *row.wrapping_add(j), &words, number);
                        }
                    }
                }
                (row, from) = (row.wrapping_add(t.depth()), from.wrapping_add(t.step()));
            }
            let factors = head.cast::<[f32; PANEL]>().read();
            for (sum, (x, factor)) in sums.iter_mut().zip(part.iter().zip(&factors)) {
                *sum += x * factor;
            }
            if t.moved {
                let summands = head.wrapping_add(t.turn()).cast::<[f32; PANEL]>().read();
                add(&mut sums, t.sums[0].add(g).read(), &summands, |x| x);
            }
        }
        (head, data) = (head.wrapping_add(t.group()), data.wrapping_add(t.group()));
    }
    // SAFETY: the caller guarantees that the tile's pointers cover its sizes.
    unsafe { t.c.cast::<[f32; PANEL]>().write(sums) };
}

/// One row and one panel.
///
/// # Safety
/// The tile's pointers cover its sizes.
pub(super) unsafe fn portable(t: &Tile) {
    // SAFETY: the caller's promise.
    unsafe { tile(t) };
}

/// One row and one panel.
///
/// # Safety
/// AVX2 and FMA; the tile's pointers cover its sizes.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn avx2(t: &Tile) {
    // SAFETY: the caller's promise.
    unsafe { tile(t) };
}
