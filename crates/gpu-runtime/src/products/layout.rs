//! A matrix product in numbers as libraries of products take it: column-major matrices with leading dimensions, one strided batch,
//! and what is left over as loops on the host.
//!
//! This module is pure: it calls no library and knows no symbols.

/// Loops on the host at most: products whose batch cannot be one strided batch are launched one by one.
const MAX_LOOPS: i64 = 64;

/// Strides of batch dimensions, rows and columns, in elements.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Strides {
    pub(super) batch: Vec<i64>,
    pub(super) row: i64,
    pub(super) col: i64,
}

/// `d[…, m, n] = a[…, m, k] b[…, k, n]` (`+ c[…, m, n]`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Product {
    pub(super) batch: Vec<i64>,
    pub(super) m: i64,
    pub(super) n: i64,
    pub(super) k: i64,
    pub(super) a: Strides,
    pub(super) b: Strides,
    pub(super) d: Strides,
    pub(super) c: Option<Strides>,
}

/// An operand or result of a column-major product.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Matrix {
    /// Whether memory holds the transposed matrix.
    pub transposed: bool,
    /// Elements from one column (in memory) to the next.
    pub ld: i64,
    /// Elements from one matrix of the batch to the next.
    pub step: i64,
}

/// `D = first · second (+ C)`, column-major, `rows × depth` by `depth × cols`, `batch` times. It contains no pointers, so
/// it can be the key of prepared products.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Gemm {
    /// Rows of `D`.
    pub rows: i64,
    /// Columns of `D`.
    pub cols: i64,
    /// Length of the sums.
    pub depth: i64,
    /// How many products of these sizes.
    pub batch: i64,
    /// The first factor.
    pub first: Matrix,
    /// The second factor.
    pub second: Matrix,
    /// `D`.
    pub out: Matrix,
    /// `C`, where there is one.
    pub addend: Option<Matrix>,
    /// Whether `first` is the product's `b`: the transposed problem, for results that lie row by row.
    pub swapped: bool,
}

/// A batch dimension that the host loops over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Loop {
    pub(super) count: i64,
    pub(super) a: i64,
    pub(super) b: i64,
    pub(super) d: i64,
    pub(super) c: i64,
}

/// A product as calls of the library.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Calls {
    pub(super) gemm: Gemm,
    pub(super) loops: Vec<Loop>,
}

/// The calls that compute a product; `None` where a matrix has no unit stride, or the loops are too many.
pub(super) fn calls(product: &Product) -> Option<Calls> {
    let mut p = squeezed(product);
    fold_rows(&mut p);
    fold_cols(&mut p);
    merge(&mut p);
    // The library takes the largest batch dimension; the host loops over the others.
    let inner = (0..p.batch.len()).max_by_key(|&d| p.batch[d]);
    let loops: Vec<Loop> = (0..p.batch.len())
        .filter(|d| Some(*d) != inner)
        .map(|d| Loop {
            count: p.batch[d],
            a: p.a.batch[d],
            b: p.b.batch[d],
            d: p.d.batch[d],
            c: p.c.as_ref().map_or(0, |c| c.batch[d]),
        })
        .collect();
    if loops.iter().map(|l| l.count).product::<i64>() > MAX_LOOPS {
        return None;
    }
    let at = |s: &Strides| inner.map_or(0, |d| s.batch[d]);
    let gemm = gemm(&p, inner.map_or(1, |d| p.batch[d]), at)?;
    Some(Calls { gemm, loops })
}

/// The column-major product with an untransposed result.
fn gemm(p: &Product, batch: i64, at: impl Fn(&Strides) -> i64) -> Option<Gemm> {
    // A row-major result is the column-major transpose: Dᵀ = Bᵀ Aᵀ.
    let swapped = matrix(p.n, p.m, p.d.col, p.d.row).is_some_and(|m| !m.transposed);
    let (rows, cols) = if swapped { (p.n, p.m) } else { (p.m, p.n) };
    let whole = |s: &Strides, rows: i64, cols: i64, transposed: bool| {
        let (row, col) = if transposed { (s.col, s.row) } else { (s.row, s.col) };
        matrix(rows, cols, row, col).map(|m| Matrix { step: at(s), ..m })
    };
    let (first, second) = match swapped {
        true => (whole(&p.b, p.n, p.k, true)?, whole(&p.a, p.k, p.m, true)?),
        false => (whole(&p.a, p.m, p.k, false)?, whole(&p.b, p.k, p.n, false)?),
    };
    let plain = |s: &Strides| whole(s, rows, cols, swapped).filter(|m| !m.transposed);
    let out = plain(&p.d)?;
    // The matrices of a batched result must not overlap.
    if batch > 1 && out.step == 0 {
        return None;
    }
    let addend = match &p.c {
        Some(c) => Some(plain(c)?),
        None => None,
    };
    Some(Gemm { rows, cols, depth: p.k, batch, first, second, out, addend, swapped })
}

/// The column-major layout of a matrix; `None` where neither dimension has stride 1 or elements overlap.
fn matrix(rows: i64, cols: i64, row: i64, col: i64) -> Option<Matrix> {
    let fits = |unit: i64, size: i64, step: i64, count: i64| {
        let dense = size <= 1 || unit == 1;
        let apart = count <= 1 || step >= size.max(1);
        // The leading dimension of a single column is arbitrary.
        (dense && apart).then(|| if count <= 1 { size.max(1) } else { step })
    };
    if let Some(ld) = fits(row, rows, col, cols) {
        return Some(Matrix { transposed: false, ld, step: 0 });
    }
    fits(col, cols, row, rows).map(|ld| Matrix { transposed: true, ld, step: 0 })
}

/// Removes batch dimensions of size 1.
fn squeezed(p: &Product) -> Product {
    let keep: Vec<usize> = (0..p.batch.len()).filter(|&d| p.batch[d] != 1).collect();
    let pick = |s: &Strides| Strides { batch: keep.iter().map(|&d| s.batch[d]).collect(), ..*s };
    Product {
        batch: keep.iter().map(|&d| p.batch[d]).collect(),
        a: pick(&p.a),
        b: pick(&p.b),
        d: pick(&p.d),
        c: p.c.as_ref().map(pick),
        ..*p
    }
}

/// Turns batch dimensions along which `b` is constant into rows, where `a` and the results have one stride for both.
fn fold_rows(p: &mut Product) {
    while let Some(d) = p.batch.len().checked_sub(1) {
        let goes_on = |s: &Strides| p.m == 1 || s.batch[d] == p.m * s.row;
        let all = [Some(&p.a), Some(&p.d), p.c.as_ref()];
        if p.b.batch[d] != 0 || !all.into_iter().flatten().all(goes_on) {
            return;
        }
        let single = p.m == 1;
        p.m *= p.batch[d];
        p.batch.pop();
        let c = p.c.as_mut();
        for s in [Some(&mut p.a), Some(&mut p.d), c].into_iter().flatten() {
            let step = s.batch.pop().unwrap_or(0);
            if single {
                s.row = step;
            }
        }
        p.b.batch.pop();
    }
}

/// Turns batch dimensions along which `a` is constant into columns.
fn fold_cols(p: &mut Product) {
    let swap = |s: &mut Strides| std::mem::swap(&mut s.row, &mut s.col);
    let flip = |p: &mut Product| {
        std::mem::swap(&mut p.a, &mut p.b);
        std::mem::swap(&mut p.m, &mut p.n);
        let c = p.c.as_mut();
        [Some(&mut p.a), Some(&mut p.b), Some(&mut p.d), c].into_iter().flatten().for_each(swap);
    };
    flip(p);
    fold_rows(p);
    flip(p);
}

/// Merges adjacent batch dimensions that have one stride for both in all operands.
fn merge(p: &mut Product) {
    for d in (1..p.batch.len()).rev() {
        let size = p.batch[d];
        let one = |s: &Strides| s.batch[d - 1] == size * s.batch[d];
        let all = [Some(&p.a), Some(&p.b), Some(&p.d), p.c.as_ref()];
        if !all.into_iter().flatten().all(one) {
            continue;
        }
        p.batch[d - 1] *= size;
        p.batch.remove(d);
        let c = p.c.as_mut();
        for s in [Some(&mut p.a), Some(&mut p.b), Some(&mut p.d), c].into_iter().flatten() {
            s.batch.remove(d - 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn strides(batch: &[i64], row: i64, col: i64) -> Strides {
        Strides { batch: batch.to_vec(), row, col }
    }

    /// Runs the calls in double precision.
    fn run(p: &Product, a: &[f64], b: &[f64], d: &mut [f64]) {
        let c = calls(p).unwrap();
        let g = c.gemm;
        let mut at = vec![[0i64; 3]];
        for l in &c.loops {
            at = at
                .iter()
                .flat_map(|o| (0..l.count).map(move |i| [o[0] + i * l.a, o[1] + i * l.b, o[2] + i * l.d]))
                .collect();
        }
        for o in at {
            let (first, second) = if g.swapped { ((b, o[1]), (a, o[0])) } else { ((a, o[0]), (b, o[1])) };
            let read = |(memory, base): (&[f64], i64), m: Matrix, batch: i64, r: i64, c: i64| {
                let (r, c) = if m.transposed { (c, r) } else { (r, c) };
                memory[(base + batch * m.step + r + c * m.ld) as usize]
            };
            for n in 0..g.batch {
                for r in 0..g.rows {
                    for c in 0..g.cols {
                        let sum: f64 = (0..g.depth)
                            .map(|q| read(first, g.first, n, r, q) * read(second, g.second, n, q, c))
                            .sum();
                        d[(o[2] + n * g.out.step + r + c * g.out.ld) as usize] = sum;
                    }
                }
            }
        }
    }

    fn direct(p: &Product, a: &[f64], b: &[f64], d: &mut [f64]) {
        let count: i64 = p.batch.iter().product();
        for flat in 0..count {
            let mut rest = flat;
            let mut at = [0i64; 3];
            for dim in (0..p.batch.len()).rev() {
                let i = rest % p.batch[dim];
                rest /= p.batch[dim];
                for (o, s) in at.iter_mut().zip([&p.a, &p.b, &p.d]) {
                    *o += i * s.batch[dim];
                }
            }
            for m in 0..p.m {
                for n in 0..p.n {
                    let sum: f64 = (0..p.k)
                        .map(|k| {
                            a[(at[0] + m * p.a.row + k * p.a.col) as usize]
                                * b[(at[1] + k * p.b.row + n * p.b.col) as usize]
                        })
                        .sum();
                    d[(at[2] + m * p.d.row + n * p.d.col) as usize] = sum;
                }
            }
        }
    }

    fn check(p: &Product) {
        let numbers = |seed: usize| -> Vec<f64> {
            (0..4096).map(|i| ((i * 37 + seed * 11) % 23) as f64 - 11.0).collect()
        };
        let (a, b) = (numbers(1), numbers(2));
        let (mut got, mut wanted) = (vec![0.0; 4096], vec![0.0; 4096]);
        run(p, &a, &b, &mut got);
        direct(p, &a, &b, &mut wanted);
        assert_eq!(got, wanted, "{p:?}");
        assert!(wanted.iter().any(|x| *x != 0.0));
    }

    #[test]
    fn every_order_of_rows_and_columns() {
        let (m, n, k) = (3, 5, 7);
        for a in [strides(&[], k, 1), strides(&[], 1, m), strides(&[], k + 2, 1)] {
            for b in [strides(&[], n, 1), strides(&[], 1, k), strides(&[], 1, k + 1)] {
                for d in [strides(&[], n, 1), strides(&[], 1, m), strides(&[], n + 3, 1)] {
                    check(&Product { m, n, k, a: a.clone(), b: b.clone(), d, ..Product::default() });
                }
            }
        }
    }

    /// Results of a batch with one weight are one product of more rows.
    #[test]
    fn a_shared_weight_folds_the_batch_into_rows() {
        let p = Product {
            batch: vec![2, 4],
            m: 3,
            n: 5,
            k: 6,
            a: strides(&[72, 18], 6, 1),
            b: strides(&[0, 0], 1, 6),
            d: strides(&[60, 15], 5, 1),
            c: None,
        };
        let c = calls(&p).unwrap();
        assert_eq!((c.gemm.cols, c.gemm.rows, c.gemm.batch, c.loops.len()), (24, 5, 1, 0));
        check(&p);
    }

    /// The heads are interleaved within the positions: the two batch dimensions have no common stride in all operands.
    #[test]
    fn other_batches_become_loops() {
        let (b, h, l, d) = (2, 3, 4, 5);
        let p = Product {
            batch: vec![b, h],
            m: l,
            n: l,
            k: d,
            a: strides(&[l * h * d, d], h * d, 1),
            b: strides(&[l * h * d, d], 1, h * d),
            d: strides(&[h * l * l, l * l], l, 1),
            c: None,
        };
        let c = calls(&p).unwrap();
        assert_eq!((c.gemm.batch, c.loops.iter().map(|l| l.count).product::<i64>()), (3, 2));
        check(&p);
    }

    #[test]
    fn sizes_of_one_have_any_stride() {
        for (m, n, k) in [(1, 5, 7), (5, 1, 7), (5, 7, 1), (1, 1, 7), (1, 1, 1)] {
            check(&Product {
                batch: vec![2],
                m,
                n,
                k,
                a: strides(&[m * k], if m == 1 { 99 } else { k }, if k == 1 { 77 } else { 1 }),
                b: strides(&[n * k], if k == 1 { 55 } else { n }, if n == 1 { 33 } else { 1 }),
                d: strides(&[m * n], n, 1),
                c: None,
            });
        }
    }

    #[test]
    fn unsupported_matrices_are_rejected() {
        let dense = Product {
            m: 4,
            n: 4,
            k: 4,
            a: strides(&[], 4, 1),
            b: strides(&[], 4, 1),
            d: strides(&[], 4, 1),
            ..Product::default()
        };
        assert!(calls(&dense).is_some());
        assert!(calls(&Product { a: strides(&[], 8, 2), ..dense.clone() }).is_none());
        // The rows overlap: a broadcast.
        assert!(calls(&Product { a: strides(&[], 0, 1), ..dense.clone() }).is_none());
        assert!(calls(&Product { d: strides(&[], 0, 1), ..dense }).is_none());
    }
}
