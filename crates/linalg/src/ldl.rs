//! Factorization of symmetric and Hermitian indefinite matrices with Bunch–Kaufman pivots, and solving with it; the
//! forms are those of LAPACK's `sytrf`, `hetrf`, `sytrs`, `hetrs` with the lower triangle.
//!
//! Source of the pivot rule: J. Bunch, L. Kaufman, "Some stable methods for calculating inertia and solving symmetric
//! linear systems", 1977, algorithm A.

use crate::{LinalgError, Mat, Number};

/// The conjugate where the matrix is Hermitian.
fn cj<T: Number>(x: T, hermitian: bool) -> T {
    if hermitian { x.cj() } else { x }
}

/// The diagonal of a Hermitian matrix is real.
fn on_diagonal<T: Number>(x: T, hermitian: bool) -> T {
    if hermitian { T::of(x.re()) } else { x }
}

/// Overwrites the lower triangle of `a` `[n, n]` by the unit lower `L` and the blocks of `D` with
/// `P L D Lᵀ Pᵀ = a` (`Lᴴ` where `hermitian`), the rest by zeros; only the lower triangle is read.
///
/// Gives the pivots (from 1; a pair of equal negative ones marks a 2 by 2 block) and `info`: 0, or the number of the
/// first zero block.
pub fn ldl_factor<T: Number>(a: &mut Mat<T>, hermitian: bool) -> (Vec<i64>, usize) {
    let n = a.nrows();
    let (mut pivots, mut info) = (vec![0i64; n], 0);
    for j in 0..n {
        (0..j).for_each(|i| a[(i, j)] = T::ZERO);
        a[(j, j)] = on_diagonal(a[(j, j)], hermitian);
    }
    let mut k = 0;
    while k < n {
        let Some((row, step)) = choose(a, k) else {
            info = if info == 0 { k + 1 } else { info };
            pivots[k] = k as i64 + 1;
            k += 1;
            continue;
        };
        let moved = k + step - 1;
        if row != moved {
            exchange(a, k, moved, row, hermitian);
        }
        if step == 1 {
            eliminate_one(a, k, hermitian);
            pivots[k] = row as i64 + 1;
        } else {
            eliminate_two(a, k, hermitian);
            (pivots[k], pivots[k + 1]) = (-(row as i64) - 1, -(row as i64) - 1);
        }
        k += step;
    }
    (pivots, info)
}

/// The row to bring to the front and the size of the block; none where the column is zero.
fn choose<T: Number>(a: &Mat<T>, k: usize) -> Option<(usize, usize)> {
    let n = a.nrows();
    let alpha = (1.0 + 17f64.sqrt()) / 8.0;
    let own = a[(k, k)].abs1();
    let (mut row, mut column) = (k, 0.0);
    for i in k + 1..n {
        let x = a[(i, k)].abs1();
        if x > column {
            (row, column) = (i, x);
        }
    }
    if own.max(column) == 0.0 || own.is_nan() {
        return None;
    }
    if own >= alpha * column {
        return Some((k, 1));
    }
    let left = (k..row).map(|j| a[(row, j)].abs1());
    let below = (row + 1..n).map(|i| a[(i, row)].abs1());
    let across = left.chain(below).fold(0.0, f64::max);
    if own >= alpha * column * (column / across) {
        Some((k, 1))
    } else if a[(row, row)].abs1() >= alpha * across {
        Some((row, 1))
    } else {
        Some((row, 2))
    }
}

/// Rows and columns `kk` and `kp` (`kk < kp`) of the part not yet eliminated; in a 2 by 2 block `kk` is `k + 1`.
fn exchange<T: Number>(a: &mut Mat<T>, k: usize, kk: usize, kp: usize, hermitian: bool) {
    let n = a.nrows();
    let swap = |a: &mut Mat<T>, x: (usize, usize), y: (usize, usize)| {
        let t = a[x];
        a[x] = a[y];
        a[y] = t;
    };
    (kp + 1..n).for_each(|i| swap(a, (i, kk), (i, kp)));
    for j in kk + 1..kp {
        let t = cj(a[(j, kk)], hermitian);
        a[(j, kk)] = cj(a[(kp, j)], hermitian);
        a[(kp, j)] = t;
    }
    a[(kp, kk)] = cj(a[(kp, kk)], hermitian);
    swap(a, (kk, kk), (kp, kp));
    if kk == k + 1 {
        swap(a, (k + 1, k), (kp, k));
    }
}

fn eliminate_one<T: Number>(a: &mut Mat<T>, k: usize, hermitian: bool) {
    let n = a.nrows();
    let d = T::ONE / a[(k, k)];
    for j in k + 1..n {
        let w = cj(a[(j, k)], hermitian) * d;
        for i in j..n {
            let x = a[(i, k)] * w;
            a[(i, j)] -= x;
        }
        a[(j, j)] = on_diagonal(a[(j, j)], hermitian);
    }
    (k + 1..n).for_each(|i| a[(i, k)] *= d);
}

/// With the block `[p, cj(q); q, r]`: `[w₁, w₂] = [x, y] D⁻¹`, `a -= w₁ cj(x) + w₂ cj(y)`, scaled by `|q|` throughout.
fn eliminate_two<T: Number>(a: &mut Mat<T>, k: usize, hermitian: bool) {
    let n = a.nrows();
    let q = a[(k + 1, k)];
    let scale = if hermitian { T::of(q.size()) } else { q };
    let (d11, d22) = (a[(k + 1, k + 1)] / scale, a[(k, k)] / scale);
    let d21 = q / scale;
    let factor = T::ONE / (d11 * d22 - T::ONE) / scale;
    for j in k + 2..n {
        let (x, y) = (a[(j, k)], a[(j, k + 1)]);
        let first = factor * (d11 * x - d21 * y);
        let second = factor * (d22 * y - cj(d21, hermitian) * x);
        let (fw, sw) = (cj(first, hermitian), cj(second, hermitian));
        for i in j..n {
            let x = a[(i, k)] * fw + a[(i, k + 1)] * sw;
            a[(i, j)] -= x;
        }
        (a[(j, k)], a[(j, k + 1)]) = (first, second);
        a[(j, j)] = on_diagonal(a[(j, j)], hermitian);
    }
}

fn swap_rows<T: Number>(b: &mut Mat<T>, i: usize, j: usize) {
    for c in 0..if i == j { 0 } else { b.ncols() } {
        let t = b[(i, c)];
        b[(i, c)] = b[(j, c)];
        b[(j, c)] = t;
    }
}

/// Solves `a x = b` for the factors `ld` `[n, n]` and pivots of `a`; `b` `[n, k]` becomes `x`.
///
/// # Errors
/// A pivot that names no row, or half of a block.
pub fn ldl_solve<T: Number>(
    ld: &Mat<T>,
    pivots: &[i64],
    b: &mut Mat<T>,
    hermitian: bool,
) -> Result<(), LinalgError> {
    let n = ld.nrows();
    let blocks = blocks(pivots, n)?;
    for &(k, row, pair) in &blocks {
        let last = k + usize::from(pair);
        swap_rows(b, last, row);
        for c in 0..b.ncols() {
            let (x, y) = (b[(k, c)], b[(last, c)]);
            for i in last + 1..n {
                let t = if pair { ld[(i, k)] * x + ld[(i, last)] * y } else { ld[(i, k)] * x };
                b[(i, c)] -= t;
            }
            if pair {
                (b[(k, c)], b[(last, c)]) = solve_block(ld, k, (x, y), hermitian);
            } else {
                b[(k, c)] = x / on_diagonal(ld[(k, k)], hermitian);
            }
        }
    }
    for &(k, row, pair) in blocks.iter().rev() {
        let last = k + usize::from(pair);
        for c in 0..b.ncols() {
            for r in k..=last {
                let mut sum = T::ZERO;
                (last + 1..n).for_each(|i| sum += cj(ld[(i, r)], hermitian) * b[(i, c)]);
                b[(r, c)] -= sum;
            }
        }
        swap_rows(b, last, row);
    }
    Ok(())
}

/// The pivots as (first row, row exchanged with the block's last, whether 2 by 2).
fn blocks(pivots: &[i64], n: usize) -> Result<Vec<(usize, usize, bool)>, LinalgError> {
    let (mut blocks, mut k) = (Vec::new(), 0);
    while k < n {
        let pivot = pivots.get(k).copied().unwrap_or(0);
        let pair = pivot < 0;
        let row = usize::try_from(pivot.unsigned_abs()).ok().and_then(|p| p.checked_sub(1));
        let row = row.filter(|&r| r < n && (!pair || pivots.get(k + 1) == Some(&pivot)));
        blocks.push((k, row.ok_or(LinalgError::Pivots { batch: 0 })?, pair));
        k += 1 + usize::from(pair);
    }
    Ok(blocks)
}

fn solve_block<T: Number>(ld: &Mat<T>, k: usize, (x, y): (T, T), hermitian: bool) -> (T, T) {
    let q = ld[(k + 1, k)];
    let (p, r) = (ld[(k, k)] / cj(q, hermitian), ld[(k + 1, k + 1)] / q);
    let denominator = p * r - T::ONE;
    let (x, y) = (x / cj(q, hermitian), y / q);
    ((r * x - y) / denominator, (p * y - x) / denominator)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Complex;

    #[test]
    fn solutions_solve_indefinite_systems() {
        let part = |i: usize, j: usize| ((i * 31 + j * 17 + i * j) % 23) as f64 / 23.0 - 0.4;
        for hermitian in [false, true] {
            for n in [1, 2, 5, 12] {
                let m = Mat::from_fn(n, n, |i, j| Complex::new(part(i, j), part(j + 1, i)));
                let mut a = Mat::from_fn(n, n, |i, j| m[(i, j)] + cj(m[(j, i)], hermitian));
                // A zero diagonal asks for 2 by 2 blocks.
                (0..if n > 1 { n } else { 0 }).for_each(|i| a[(i, i)] = Complex::ZERO);
                let b = Mat::from_fn(n, 2, |i, j| Complex::new(part(j, i), 1.0));
                let (mut f, mut x) = (a.clone(), b.clone());
                let (pivots, info) = ldl_factor(&mut f, hermitian);
                assert_eq!((info, pivots.iter().any(|p| *p < 0)), (0, n > 1));
                ldl_solve(&f, &pivots, &mut x, hermitian).unwrap();
                let back = &a * &x;
                for i in 0..n {
                    (0..2).for_each(|j| assert!((back[(i, j)] - b[(i, j)]).size() < 1e-9));
                }
            }
        }
    }

    #[test]
    fn half_a_block_is_refused() {
        let ld = Mat::<f64>::identity(2, 2);
        let mut b = Mat::<f64>::zeros(2, 1);
        assert_eq!(ldl_solve(&ld, &[1, -2], &mut b, false), Err(LinalgError::Pivots { batch: 0 }));
        assert_eq!(ldl_solve(&ld, &[3, 2], &mut b, false), Err(LinalgError::Pivots { batch: 0 }));
    }
}
