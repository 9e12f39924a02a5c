//! Routines by name on batches of matrices in row-major arrays: what operators and backends call.

use kernel_ir::LinalgOp;

use crate::number::Complex;
use crate::{LinalgError, Mat, Number};

/// The elements of an array.
#[derive(Clone, Debug, PartialEq)]
pub enum Values {
    /// Real numbers.
    Real(Vec<f64>),
    /// Complex numbers.
    Complex(Vec<Complex>),
    /// Pivots and infos.
    Ints(Vec<i64>),
}

/// An array in row-major order.
#[derive(Clone, Debug, PartialEq)]
pub struct Array {
    /// Sizes, the batch first.
    pub sizes: Vec<usize>,
    /// As many elements as the sizes say.
    pub values: Values,
}

impl Array {
    fn len(&self) -> usize {
        match &self.values {
            Values::Real(list) => list.len(),
            Values::Complex(list) => list.len(),
            Values::Ints(list) => list.len(),
        }
    }
}

/// Applies the routine to every matrix of the batch; `outputs` are the sizes that the results must have.
///
/// # Errors
/// [`LinalgError`]: a matrix without the wanted result, or operands that do not fit.
pub fn run(routine: LinalgOp, inputs: &[Array], outputs: &[Vec<usize>]) -> Result<Vec<Array>, LinalgError> {
    if inputs.iter().any(|a| a.sizes.iter().product::<usize>() != a.len()) {
        return Err(LinalgError::Malformed("an array has another number of elements than its sizes say"));
    }
    let first = inputs.first().ok_or(LinalgError::Malformed("no operands"))?;
    let results = match first.values {
        Values::Real(_) => typed::<f64>(routine, inputs)?,
        Values::Complex(_) => typed::<Complex>(routine, inputs)?,
        Values::Ints(_) => vec![permutations(routine, first, outputs)?],
    };
    if results.len() == outputs.len() && results.iter().zip(outputs).all(|(r, o)| r.sizes == *o) {
        Ok(results)
    } else {
        Err(LinalgError::Malformed("the results have other sizes than those announced"))
    }
}

fn permutations(routine: LinalgOp, pivots: &Array, outputs: &[Vec<usize>]) -> Result<Array, LinalgError> {
    let (LinalgOp::Permutation, Values::Ints(list)) = (routine, &pivots.values) else {
        return Err(LinalgError::Malformed("matrices of integers"));
    };
    let last = |sizes: &[usize]| sizes.last().copied().ok_or(LinalgError::Malformed("no pivots"));
    let sizes = outputs.first().ok_or(LinalgError::Malformed("no results"))?.clone();
    let (count, rows) = (last(&pivots.sizes)?, last(&sizes)?);
    let mut values = Vec::new();
    for number in 0..sizes[..sizes.len() - 1].iter().product() {
        let one = list.get(number * count..(number + 1) * count);
        let one = one.ok_or(LinalgError::Malformed("batches of different sizes"))?;
        values.extend(crate::permutation(one, rows).map_err(|e| e.at(number))?);
    }
    Ok(Array { sizes, values: Values::Ints(values) })
}

/// A batch of matrices of one operand.
struct Batch<'a, T> {
    values: &'a [T],
    batch: &'a [usize],
    rows: usize,
    columns: usize,
}

impl<'a, T: Number> Batch<'a, T> {
    fn new(array: &'a Array) -> Result<Batch<'a, T>, LinalgError> {
        let values = T::values(&array.values).ok_or(LinalgError::Malformed("operands of different kinds"))?;
        let [batch @ .., rows, columns] = &array.sizes[..] else {
            return Err(LinalgError::Malformed("an operand is no matrix"));
        };
        Ok(Batch { values, batch, rows: *rows, columns: *columns })
    }
    fn count(&self) -> usize {
        self.batch.iter().product()
    }
    fn get(&self, number: usize) -> Mat<T> {
        let from = number * self.rows * self.columns;
        Mat::from_fn(self.rows, self.columns, |i, j| self.values[from + i * self.columns + j])
    }
    /// Another operand of the same batch.
    fn like(&self, array: &'a Array, rows: usize) -> Result<Batch<'a, T>, LinalgError> {
        let other = Batch::new(array)?;
        if other.batch == self.batch && other.rows == rows {
            Ok(other)
        } else {
            Err(LinalgError::Malformed("operands of different sizes"))
        }
    }
    fn square(self) -> Result<Self, LinalgError> {
        if self.rows == self.columns {
            Ok(self)
        } else {
            Err(LinalgError::Malformed("a matrix is not square"))
        }
    }
    fn array(&self, item: &[usize], values: Values) -> Array {
        Array { sizes: self.batch.iter().chain(item).copied().collect(), values }
    }
    fn matrices<U: Number>(&self, list: &[Mat<U>], rows: usize, columns: usize) -> Array {
        let mut values = Vec::with_capacity(list.len() * rows * columns);
        for m in list {
            for i in 0..rows {
                values.extend((0..columns).map(|j| m[(i, j)]));
            }
        }
        self.array(&[rows, columns], U::wrap(values))
    }
    /// `f` on every matrix.
    fn each<R>(
        &self,
        mut f: impl FnMut(usize, Mat<T>) -> Result<R, LinalgError>,
    ) -> Result<Vec<R>, LinalgError> {
        (0..self.count()).map(|n| f(n, self.get(n)).map_err(|e| e.at(n))).collect()
    }
}

/// Matrices and lists of every batch element, side by side.
fn pairs<A, B>(list: Vec<(A, Vec<B>)>) -> (Vec<A>, Vec<B>) {
    let (mut first, mut second) = (Vec::with_capacity(list.len()), Vec::new());
    for (a, b) in list {
        first.push(a);
        second.extend(b);
    }
    (first, second)
}

fn integers(list: impl IntoIterator<Item = usize>) -> Values {
    Values::Ints(list.into_iter().map(|i| i as i64).collect())
}

fn typed<T: Number>(routine: LinalgOp, inputs: &[Array]) -> Result<Vec<Array>, LinalgError> {
    let a = Batch::<T>::new(&inputs[0])?;
    let second = || inputs.get(1).ok_or(LinalgError::Malformed("an operand is missing"));
    match routine {
        LinalgOp::Cholesky { upper, check } => cholesky(&a.square()?, upper, check),
        LinalgOp::Lu { pivot, check } => lu(&a, pivot, check),
        LinalgOp::Solve { check } => solve(&a.square()?, second()?, check),
        LinalgOp::SolveTriangular { upper, unitriangular } => {
            let a = a.square()?;
            let b = a.like(second()?, a.rows)?;
            let list = a.each(|n, m| {
                let mut x = b.get(n);
                crate::solve_triangular(m.as_ref(), x.as_mut(), upper, unitriangular);
                Ok(x)
            })?;
            Ok(vec![b.matrices(&list, b.rows, b.columns)])
        }
        LinalgOp::CholeskySolve { upper } => {
            let a = a.square()?;
            let b = a.like(second()?, a.rows)?;
            let list = a.each(|n, m| {
                let (mut x, h) = (b.get(n), m.adjoint().to_owned());
                let (first, last) = if upper { (&h, &m) } else { (&m, &h) };
                crate::solve_triangular(first.as_ref(), x.as_mut(), false, false);
                crate::solve_triangular(last.as_ref(), x.as_mut(), true, false);
                Ok(x)
            })?;
            Ok(vec![b.matrices(&list, b.rows, b.columns)])
        }
        LinalgOp::Geqrf => {
            let list = a.each(|_, mut m| {
                let taus = crate::geqrf(&mut m);
                Ok((m, taus))
            })?;
            let (list, taus) = pairs(list);
            let k = a.rows.min(a.columns);
            Ok(vec![a.matrices(&list, a.rows, a.columns), a.array(&[k], T::wrap(taus))])
        }
        LinalgOp::Qr { complete } => {
            let k = if complete { a.rows } else { a.rows.min(a.columns) };
            let (q, r): (Vec<_>, Vec<_>) = a.each(|_, m| Ok(crate::qr(&m, complete)))?.into_iter().unzip();
            Ok(vec![a.matrices(&q, a.rows, k), a.matrices(&r, k, a.columns)])
        }
        LinalgOp::Eigh { upper } => {
            let a = a.square()?;
            let list = a.each(|_, m| crate::eigh(&m, upper).map(|(l, v)| (v, l)))?;
            let (vectors, values) = pairs(list);
            Ok(vec![a.array(&[a.rows], f64::wrap(values)), a.matrices(&vectors, a.rows, a.rows)])
        }
        LinalgOp::Eig => {
            let a = a.square()?;
            let (vectors, values) = pairs(a.each(|_, m| crate::eig(&m).map(|(l, v)| (v, l)))?);
            Ok(vec![a.array(&[a.rows], Complex::wrap(values)), a.matrices(&vectors, a.rows, a.rows)])
        }
        LinalgOp::Svd { full } => svd(&a, full),
        LinalgOp::LdlFactor { hermitian, check } => ldl_factor(&a.square()?, hermitian, check),
        LinalgOp::LdlSolve { hermitian } => ldl_solve(&a.square()?, inputs, hermitian),
        LinalgOp::Pinv { hermitian } => pinv(&a, inputs, hermitian),
        LinalgOp::MatrixExp => {
            let a = a.square()?;
            let list = a.each(|_, m| Ok(crate::matrix_exp(&m)))?;
            Ok(vec![a.matrices(&list, a.rows, a.rows)])
        }
        LinalgOp::Permutation => Err(LinalgError::Malformed("pivots that are no integers")),
    }
}

fn cholesky<T: Number>(a: &Batch<'_, T>, upper: bool, check: bool) -> Result<Vec<Array>, LinalgError> {
    let list = a.each(|_, m| {
        let mut l = if upper { m.adjoint().to_owned() } else { m };
        match crate::cholesky(&mut l) {
            order if check && order != 0 => Err(LinalgError::NotPositiveDefinite { batch: 0, order }),
            info => Ok((if upper { l.adjoint().to_owned() } else { l }, info)),
        }
    })?;
    let (list, infos): (Vec<_>, Vec<_>) = list.into_iter().unzip();
    Ok(vec![a.matrices(&list, a.rows, a.rows), a.array(&[], integers(infos))])
}

fn lu<T: Number>(a: &Batch<'_, T>, pivot: bool, check: bool) -> Result<Vec<Array>, LinalgError> {
    let list = a.each(|_, mut m| match crate::lu(&mut m, pivot) {
        (_, pivot) if check && pivot != 0 => Err(LinalgError::Singular { batch: 0, pivot }),
        (pivots, info) => Ok(((m, info), pivots)),
    })?;
    let (list, pivots) = pairs(list);
    let (list, infos): (Vec<_>, Vec<_>) = list.into_iter().unzip();
    let k = a.rows.min(a.columns);
    Ok(vec![
        a.matrices(&list, a.rows, a.columns),
        a.array(&[k], Values::Ints(pivots)),
        a.array(&[], integers(infos)),
    ])
}

fn solve<T: Number>(a: &Batch<'_, T>, b: &Array, check: bool) -> Result<Vec<Array>, LinalgError> {
    let b = a.like(b, a.rows)?;
    let list = a.each(|n, mut m| {
        let (pivots, info) = crate::lu(&mut m, true);
        if check && info != 0 {
            return Err(LinalgError::Singular { batch: 0, pivot: info });
        }
        let mut x = b.get(n);
        crate::solve_factored(&m, &pivots, &mut x);
        Ok(((x, (m, info)), pivots))
    })?;
    let (list, pivots) = pairs(list);
    let (x, list): (Vec<_>, Vec<_>) = list.into_iter().unzip();
    let (factors, infos): (Vec<_>, Vec<_>) = list.into_iter().unzip();
    Ok(vec![
        b.matrices(&x, b.rows, b.columns),
        a.matrices(&factors, a.rows, a.rows),
        a.array(&[a.rows], Values::Ints(pivots)),
        a.array(&[], integers(infos)),
    ])
}

fn svd<T: Number>(a: &Batch<'_, T>, full: bool) -> Result<Vec<Array>, LinalgError> {
    let k = a.rows.min(a.columns);
    let (left, right) = if full { (a.rows, a.columns) } else { (k, k) };
    let (list, s) = pairs(a.each(|_, m| crate::svd(&m, full).map(|f| ((f.u, f.vh), f.s)))?);
    let (u, vh): (Vec<_>, Vec<_>) = list.into_iter().unzip();
    Ok(vec![a.matrices(&u, a.rows, left), a.array(&[k], f64::wrap(s)), a.matrices(&vh, right, a.columns)])
}

fn ldl_factor<T: Number>(a: &Batch<'_, T>, hermitian: bool, check: bool) -> Result<Vec<Array>, LinalgError> {
    let list = a.each(|_, mut m| match crate::ldl_factor(&mut m, hermitian) {
        (_, pivot) if check && pivot != 0 => Err(LinalgError::Singular { batch: 0, pivot }),
        (pivots, info) => Ok(((m, info), pivots)),
    })?;
    let (list, pivots) = pairs(list);
    let (list, infos): (Vec<_>, Vec<_>) = list.into_iter().unzip();
    Ok(vec![
        a.matrices(&list, a.rows, a.rows),
        a.array(&[a.rows], Values::Ints(pivots)),
        a.array(&[], integers(infos)),
    ])
}

fn ldl_solve<T: Number>(
    a: &Batch<'_, T>,
    inputs: &[Array],
    hermitian: bool,
) -> Result<Vec<Array>, LinalgError> {
    let [_, Array { values: Values::Ints(pivots), .. }, b] = inputs else {
        return Err(LinalgError::Malformed("takes factors, pivots and right-hand sides"));
    };
    let b = a.like(b, a.rows)?;
    let list = a.each(|n, m| {
        let pivots = pivots.get(n * a.rows..(n + 1) * a.rows);
        let pivots = pivots.ok_or(LinalgError::Malformed("operands of different sizes"))?;
        let mut x = b.get(n);
        crate::ldl_solve(&m, pivots, &mut x, hermitian)?;
        Ok(x)
    })?;
    Ok(vec![b.matrices(&list, b.rows, b.columns)])
}

fn pinv<T: Number>(a: &Batch<'_, T>, inputs: &[Array], hermitian: bool) -> Result<Vec<Array>, LinalgError> {
    let [_, Array { values: Values::Real(atol), .. }, Array { values: Values::Real(rtol), .. }] = inputs
    else {
        return Err(LinalgError::Malformed("takes matrices and two real tolerances"));
    };
    if atol.len() != a.count() || rtol.len() != a.count() || (hermitian && a.rows != a.columns) {
        return Err(LinalgError::Malformed("operands of different sizes"));
    }
    let list = a.each(|n, m| crate::pinv(&m, atol[n], rtol[n], hermitian))?;
    Ok(vec![a.matrices(&list, a.columns, a.rows)])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn real(sizes: &[usize], values: &[f64]) -> Array {
        Array { sizes: sizes.to_vec(), values: Values::Real(values.to_vec()) }
    }

    #[test]
    fn errors_name_the_batch_element() {
        let a = real(&[2, 1, 1], &[4.0, 0.0]);
        let outs = [vec![2, 1, 1], vec![2, 1], vec![2]];
        let refused = run(LinalgOp::Lu { pivot: true, check: true }, std::slice::from_ref(&a), &outs);
        assert_eq!(refused, Err(LinalgError::Singular { batch: 1, pivot: 1 }));
        let given = run(LinalgOp::Lu { pivot: true, check: false }, &[a], &outs).unwrap();
        assert_eq!(given[2].values, Values::Ints(vec![0, 1]));
    }

    #[test]
    fn operands_that_do_not_fit_are_refused() {
        let (a, b) = (real(&[2, 2], &[1.0; 4]), real(&[3, 1], &[1.0; 3]));
        let refused = run(LinalgOp::Solve { check: false }, &[a.clone(), b], &[]);
        assert!(matches!(refused, Err(LinalgError::Malformed(_))));
        assert!(matches!(run(LinalgOp::MatrixExp, &[a], &[vec![3]]), Err(LinalgError::Malformed(_))));
        assert!(matches!(run(LinalgOp::Eig, &[real(&[2, 2], &[1.0])], &[]), Err(LinalgError::Malformed(_))));
        assert!(matches!(run(LinalgOp::Geqrf, &[], &[]), Err(LinalgError::Malformed(_))));
    }

    #[test]
    fn the_upper_factor_is_the_adjoint_of_the_lower() {
        let a = real(&[2, 2], &[4.0, 2.0, f64::NAN, 5.0]);
        let outs = [vec![2, 2], vec![]];
        let given = run(LinalgOp::Cholesky { upper: true, check: true }, &[a], &outs).unwrap();
        assert_eq!(given[0], real(&[2, 2], &[2.0, 1.0, 0.0, 2.0]));
    }
}
