//! A matrix product in numbers as cuBLASLt takes it: column-major matrices with leading dimensions, one strided batch,
//! and what is left over as loops on the host.
//!
//! Pure: no library call, no symbols.

/// Loops on the host at most: products whose batch cannot be one strided batch are launched one by one.
pub(crate) const MAX_LOOPS: i64 = 64;

/// Elements from one index of each dimension to the next, batch dimensions first, then rows and columns.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Strides {
    pub(crate) batch: Vec<i64>,
    pub(crate) row: i64,
    pub(crate) col: i64,
}

/// `d[…, m, n] = a[…, m, k] b[…, k, n]` (`+ c[…, m, n]`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Product {
    pub(crate) batch: Vec<i64>,
    pub(crate) m: i64,
    pub(crate) n: i64,
    pub(crate) k: i64,
    pub(crate) a: Strides,
    pub(crate) b: Strides,
    pub(crate) d: Strides,
    pub(crate) c: Option<Strides>,
}

/// A factor or a result of a column-major product.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Matrix {
    /// Whether memory holds the transposed matrix.
    pub(crate) transposed: bool,
    /// Elements from one column (in memory) to the next.
    pub(crate) ld: i64,
    /// Elements from one matrix of the batch to the next.
    pub(crate) step: i64,
}

/// `D = first · second (+ C)`, column-major, `rows × depth` by `depth × cols`, `batch` times. It has no pointers, so that it
/// is the key of what was prepared for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Gemm {
    pub(crate) rows: i64,
    pub(crate) cols: i64,
    pub(crate) depth: i64,
    pub(crate) batch: i64,
    pub(crate) first: Matrix,
    pub(crate) second: Matrix,
    pub(crate) out: Matrix,
    pub(crate) addend: Option<Matrix>,
    /// Whether `first` is the product's `b`: the transposed problem, for results that lie row by row.
    pub(crate) swapped: bool,
}

/// A batch dimension that the host loops over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Loop {
    pub(crate) count: i64,
    pub(crate) a: i64,
    pub(crate) b: i64,
    pub(crate) d: i64,
    pub(crate) c: i64,
}

/// A product as calls of the library.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Calls {
    pub(crate) gemm: Gemm,
    pub(crate) loops: Vec<Loop>,
}

/// The calls that compute a product; `None` where a matrix has no unit stride, or the loops are too many.
pub(crate) fn calls(product: &Product) -> Option<Calls> {
    let mut p = squeezed(product);
    fold_rows(&mut p);
    fold_cols(&mut p);
    merge(&mut p);
    // The largest batch dimension goes to the library, the others are loops.
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

/// Column-major, the result untransposed.
fn gemm(p: &Product, batch: i64, at: impl Fn(&Strides) -> i64) -> Option<Gemm> {
    // A result that lies row by row is, column-major, the transposed one: Dᵀ = Bᵀ Aᵀ.
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
    // Matrices of a result must not lie over each other.
    if batch > 1 && out.step == 0 {
        return None;
    }
    let addend = match &p.c {
        Some(c) => Some(plain(c)?),
        None => None,
    };
    Some(Gemm { rows, cols, depth: p.k, batch, first, second, out, addend, swapped })
}

/// How a matrix lies in memory, column-major; `None` where neither dimension has stride 1 or one overlaps.
fn matrix(rows: i64, cols: i64, row: i64, col: i64) -> Option<Matrix> {
    let fits = |unit: i64, size: i64, step: i64, count: i64| {
        let dense = size <= 1 || unit == 1;
        let apart = count <= 1 || step >= size.max(1);
        // The leading dimension of a single column says nothing.
        (dense && apart).then(|| if count <= 1 { size.max(1) } else { step })
    };
    if let Some(ld) = fits(row, rows, col, cols) {
        return Some(Matrix { transposed: false, ld, step: 0 });
    }
    fits(col, cols, row, rows).map(|ld| Matrix { transposed: true, ld, step: 0 })
}

/// Without batch dimensions of size 1.
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

/// Batch dimensions over which `b` is the same become rows where `a` and the results have them in one step.
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

/// The same for columns, where `a` is the same.
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

/// Neighbouring batch dimensions that all operands have in one step become one.
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

    /// What the calls read and write, in double precision.
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

    /// Heads inside of the positions: the batch of two dimensions is no single step for all operands.
    #[test]
    fn what_is_no_single_batch_is_looped_over() {
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
    fn what_the_library_cannot_read_is_refused() {
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
        // Rows that lie over each other: a broadcast.
        assert!(calls(&Product { a: strides(&[], 0, 1), ..dense.clone() }).is_none());
        assert!(calls(&Product { d: strides(&[], 0, 1), ..dense }).is_none());
    }
}
