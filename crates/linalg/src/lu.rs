//! LU factorization with row exchanges, and solving with triangular factors.

use faer::linalg::matmul::matmul;
use faer::linalg::triangular_solve as tri;
use faer::prelude::{Reborrow as _, ReborrowMut as _};
use faer::{Accum, MatMut, MatRef, Par};

use crate::{LinalgError, Mat, Number};

/// Below this width columns are eliminated one by one.
const PANEL: usize = 16;

/// Overwrites `a` `[m, n]` by `L` (unit lower, its diagonal not stored) and `U` with `P L U = a`. Gives the pivots
/// (row exchanged with row i, from 1, `min(m, n)` of them) and LAPACK's `info`: 0, or the number of the first zero on
/// the diagonal of `U`. Without `pivot` no rows are exchanged.
pub fn lu<T: Number>(a: &mut Mat<T>, pivot: bool) -> (Vec<i64>, usize) {
    let count = a.nrows().min(a.ncols());
    let mut swaps = vec![0usize; count];
    let mut info = 0;
    let wide = a.ncols() > count;
    let (mut square, mut rest) = a.as_mut().split_at_col_mut(count);
    eliminate(square.rb_mut(), &mut swaps, pivot, 0, &mut info);
    if wide {
        exchange(rest.rb_mut(), &swaps);
        tri::solve_unit_lower_triangular_in_place(square.rb(), rest, Par::Seq);
    }
    (swaps.into_iter().map(|r| r as i64 + 1).collect(), info)
}

/// `[m, n]` with `m >= n`: the left half, then the right half less what the left half explains.
fn eliminate<T: Number>(a: MatMut<'_, T>, swaps: &mut [usize], pivot: bool, first: usize, info: &mut usize) {
    let n = a.ncols();
    if n <= PANEL {
        return panel(a, swaps, pivot, first, info);
    }
    let half = n / 2;
    let (mut left, mut right) = a.split_at_col_mut(half);
    eliminate(left.rb_mut(), &mut swaps[..half], pivot, first, info);
    exchange(right.rb_mut(), &swaps[..half]);
    let (mut a12, mut a22) = right.split_at_row_mut(half);
    let (l11, mut l21) = left.split_at_row_mut(half);
    tri::solve_unit_lower_triangular_in_place(l11.rb(), a12.rb_mut(), Par::Seq);
    matmul(a22.rb_mut(), Accum::Add, l21.rb(), a12.rb(), T::of(-1.0), Par::Seq);
    eliminate(a22, &mut swaps[half..], pivot, first + half, info);
    exchange(l21.rb_mut(), &swaps[half..]);
    swaps[half..].iter_mut().for_each(|r| *r += half);
}

fn panel<T: Number>(mut a: MatMut<'_, T>, swaps: &mut [usize], pivot: bool, first: usize, info: &mut usize) {
    let (m, n) = (a.nrows(), a.ncols());
    for k in 0..n {
        let mut p = k;
        for i in if pivot { k + 1..m } else { 0..0 } {
            if a[(i, k)].abs1() > a[(p, k)].abs1() {
                p = i;
            }
        }
        swaps[k] = p;
        if p != k {
            swap_rows(a.rb_mut(), k, p);
        }
        let d = a[(k, k)];
        if d == T::ZERO {
            *info = if *info == 0 { first + k + 1 } else { *info };
            continue;
        }
        for i in k + 1..m {
            a[(i, k)] /= d;
        }
        for j in k + 1..n {
            let factor = a[(k, j)];
            for i in k + 1..m {
                let x = a[(i, k)] * factor;
                a[(i, j)] -= x;
            }
        }
    }
}

fn swap_rows<T: Number>(mut a: MatMut<'_, T>, i: usize, j: usize) {
    for c in 0..a.ncols() {
        let x = a[(i, c)];
        a[(i, c)] = a[(j, c)];
        a[(j, c)] = x;
    }
}

fn exchange<T: Number>(mut a: MatMut<'_, T>, swaps: &[usize]) {
    for (i, &p) in swaps.iter().enumerate().filter(|(i, p)| i != *p) {
        swap_rows(a.rb_mut(), i, p);
    }
}

/// The rows in the order that pivots (from 1) bring them into: row `i` of `Pᵀ a` is row `permutation[i]` of `a`.
///
/// # Errors
/// A pivot that names no row.
pub fn permutation(pivots: &[i64], rows: usize) -> Result<Vec<i64>, LinalgError> {
    let mut order: Vec<i64> = (0..rows as i64).collect();
    for (i, &p) in pivots.iter().enumerate() {
        let p = usize::try_from(p - 1).ok().filter(|&p| p < rows && i < rows);
        order.swap(i, p.ok_or(LinalgError::Pivots { batch: 0 })?);
    }
    Ok(order)
}

/// Solves `a x = b` for the factors and pivots that [`lu`] gave of `a` `[n, n]`; `b` `[n, k]` becomes `x`.
pub fn solve_factored<T: Number>(lu: &Mat<T>, pivots: &[i64], b: &mut Mat<T>) {
    // Pivots of `lu` are in range.
    let swaps: Vec<usize> = pivots.iter().map(|&p| p as usize - 1).collect();
    exchange(b.as_mut(), &swaps);
    tri::solve_unit_lower_triangular_in_place(lu.as_ref(), b.as_mut(), Par::Seq);
    tri::solve_upper_triangular_in_place(lu.as_ref(), b.as_mut(), Par::Seq);
}

/// Solves `a x = b` for triangular `a` `[n, n]`, of which only the named triangle is read (and not the diagonal, where
/// `unit` takes it to be ones); `b` `[n, k]` becomes `x`. A zero on the diagonal gives infinities and `NaN`.
pub fn solve_triangular<T: Number>(a: MatRef<'_, T>, b: MatMut<'_, T>, upper: bool, unit: bool) {
    match (upper, unit) {
        (false, false) => tri::solve_lower_triangular_in_place(a, b, Par::Seq),
        (false, true) => tri::solve_unit_lower_triangular_in_place(a, b, Par::Seq),
        (true, false) => tri::solve_upper_triangular_in_place(a, b, Par::Seq),
        (true, true) => tri::solve_unit_upper_triangular_in_place(a, b, Par::Seq),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(m: usize, n: usize) -> Mat<f64> {
        Mat::from_fn(m, n, |i, j| ((i * 31 + j * 17 + i * j) % 23) as f64 / 23.0 - 0.4)
    }

    #[test]
    fn the_factors_multiply_to_the_matrix_with_its_rows_exchanged() {
        for (m, n) in [(3, 3), (40, 40), (50, 20), (20, 50), (1, 4), (0, 3)] {
            let a = sample(m, n);
            let mut f = a.clone();
            let (pivots, info) = lu(&mut f, true);
            assert_eq!(info, 0);
            let order = permutation(&pivots, m).unwrap();
            let k = m.min(n);
            for i in 0..m {
                for j in 0..n {
                    let l = |r: usize| if r == i { 1.0 } else { f[(i, r)] };
                    let sum: f64 = (0..k.min(i + 1).min(j + 1)).map(|r| l(r) * f[(r, j)]).sum();
                    assert!((sum - a[(order[i] as usize, j)]).abs() < 1e-10, "{m}x{n} at {i}, {j}");
                }
            }
        }
    }

    #[test]
    fn a_zero_pivot_is_counted_and_elimination_goes_on() {
        let mut a = Mat::from_fn(40, 40, |i, j| if i == j && i != 25 { 2.0 } else { 0.0 });
        let (pivots, info) = lu(&mut a, true);
        assert_eq!(info, 26);
        assert_eq!(pivots, (1..=40).collect::<Vec<_>>());
    }

    #[test]
    fn pivots_out_of_range_are_refused() {
        assert_eq!(permutation(&[3], 2), Err(LinalgError::Pivots { batch: 0 }));
        assert_eq!(permutation(&[0], 2), Err(LinalgError::Pivots { batch: 0 }));
        assert_eq!(permutation(&[2, 2], 3), Ok(vec![1, 0, 2]));
    }
}
