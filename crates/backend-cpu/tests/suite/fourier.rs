//! Fourier transforms: every form against the reference in double precision, for lines that lie in every way.

use ir_core::{DType, Scalar};
use kernel_ir::{ExternCall, ExternOp, FourierForm, Operand, Program, Step};

use crate::common::{Build, Data, Rng, n, row_major, run, shape};

/// A transform of `sizes` along `dim`, of the whole length `length`, with these strides of the operands and of the results.
struct Case {
    form: FourierForm,
    dtype: DType,
    sizes: Vec<i64>,
    dim: usize,
    length: i64,
    forward: bool,
    strides: [Vec<i64>; 2],
}

/// Row-major strides with the dimensions in `order`, outermost first.
fn laid(sizes: &[i64], order: &[usize]) -> Vec<i64> {
    let permuted: Vec<i64> = order.iter().map(|d| sizes[*d]).collect();
    let mut strides = vec![0; sizes.len()];
    for (d, stride) in order.iter().zip(row_major(&permuted)) {
        strides[*d] = stride;
    }
    strides
}

impl Case {
    fn new(form: FourierForm, dtype: DType, others: &[i64], dim: usize, length: i64) -> Case {
        let (read, made) = form.counts(length);
        let with = |n: i64| {
            let mut sizes = others.to_vec();
            sizes.insert(dim, n);
            sizes
        };
        let strides = [row_major(&with(read)), row_major(&with(made))];
        Case { form, dtype, sizes: with(read), dim, length, forward: true, strides }
    }

    fn results(&self) -> Vec<i64> {
        let mut sizes = self.sizes.clone();
        sizes[self.dim] = self.form.counts(self.length).1;
        sizes
    }

    fn program(&self) -> Program {
        let mut b = Build::default();
        let (sizes, results) = (self.sizes.clone(), self.results());
        let ins = if self.form == FourierForm::RealToHalf { 1 } else { 2 };
        let outs = if self.form == FourierForm::HalfToReal { 1 } else { 2 };
        let operand = |buf, sizes: &[i64], strides: &[i64]| Operand {
            buf,
            sizes: shape(sizes),
            strides: shape(strides),
            offset: n(0),
        };
        let mut inputs = Vec::new();
        for _ in 0..ins {
            let buf = b.input_strided(self.dtype, shape(&sizes), shape(&self.strides[0]));
            inputs.push(operand(buf, &sizes, &self.strides[0]));
        }
        let mut outputs = Vec::new();
        for _ in 0..outs {
            let buf = b.output_strided(self.dtype, shape(&results), shape(&self.strides[1]));
            outputs.push(operand(buf, &results, &self.strides[1]));
        }
        let op = ExternOp::Fourier { dim: self.dim as u32, forward: self.forward, scale: 0.5 };
        let name = "fourier".into();
        b.program.steps.push(Step::Extern(ExternCall { name, origins: vec![], op, inputs, outputs }));
        b.finish()
    }

    fn check(&self) {
        let mut rng = Rng(self.length as u64 * 7 + self.dim as u64 + 1);
        let count = self.sizes.iter().product::<i64>() as usize;
        let program = self.program();
        let inputs: Vec<Data> = (0..program.inputs.len())
            .map(|_| {
                let values: Vec<f64> = (0..count).map(|_| rng.unit() * 2.0 - 1.0).collect();
                Data::floats(self.dtype, &self.sizes, |i| values[i])
            })
            .collect();
        let got = run(program, &inputs);
        let (inner, length) = (self.sizes[self.dim + 1..].iter().product::<i64>() as usize, self.length);
        let (read, made) = self.form.counts(length);
        let (read, made) = (read as usize, made as usize);
        let epsilon = if self.dtype == DType::F32 { f64::from(f32::EPSILON) } else { f64::EPSILON };
        let bound = 4.0 * epsilon * (length as f64).sqrt() * (1.0 + (length as f64).log2());
        for line in 0..count / read {
            let (outer, inside) = (line / inner, line % inner);
            let at = |k: usize, count: usize| (outer * count + k) * inner + inside;
            let given = |k: usize| {
                let part = |n: usize| inputs.get(n).map_or(0.0, |x| x.values[at(k, read)].as_f64());
                [part(0), part(1)]
            };
            let wanted = self.form.line(length as usize, self.forward, 0.5, given);
            for (k, wanted) in wanted.iter().enumerate() {
                for (part, wanted) in got.iter().zip(wanted) {
                    let got = part.values[at(k, made)].as_f64();
                    assert!(
                        (got - wanted).abs() <= bound,
                        "{:?} {} of {:?} along {}, line {line}, element {k}: {got}, not {wanted}",
                        self.form,
                        self.length,
                        self.sizes,
                        self.dim
                    );
                }
            }
        }
    }
}

const FORMS: [FourierForm; 3] = [FourierForm::Complex, FourierForm::RealToHalf, FourierForm::HalfToReal];

#[test]
fn every_length_up_to_64_and_some_beyond() {
    let more = [72, 77, 91, 98, 100, 120, 121, 128, 169, 243, 256, 360, 1000, 1001, 1024, 1155, 2187, 4096];
    for length in (1..=64).chain(more).filter(|n| kernel_ir::is_length(*n)) {
        for form in FORMS {
            for dtype in [DType::F32, DType::F64] {
                for forward in [true, false] {
                    let case = Case::new(form, dtype, &[3], 1, length);
                    Case { forward, ..case }.check();
                }
            }
        }
    }
}

#[test]
fn lines_along_every_dimension() {
    for length in [1, 2, 6, 15, 32, 77, 256] {
        for form in FORMS {
            for dtype in [DType::F32, DType::F64] {
                for dim in 0..3 {
                    Case::new(form, dtype, &[3, 21], dim, length).check();
                    Case::new(form, dtype, &[2, 1], dim, length).check();
                }
            }
        }
    }
}

#[test]
fn operands_and_results_in_any_order() {
    for form in FORMS {
        for length in [8, 9] {
            let case = Case::new(form, DType::F32, &[5, 19], 1, length);
            for from in [[0, 1, 2], [2, 1, 0], [0, 2, 1], [1, 0, 2]] {
                for to in [[0, 1, 2], [2, 0, 1], [0, 2, 1]] {
                    let strides = [laid(&case.sizes, &from), laid(&case.results(), &to)];
                    Case { strides, sizes: case.sizes.clone(), ..case }.check();
                }
            }
        }
    }
}

#[test]
fn pairs_in_memory_are_read_and_written_as_they_are() {
    for form in FORMS {
        for length in [1, 2, 9, 40] {
            pairs(form, length);
        }
    }
}

/// A transform of lines whose complex numbers are pairs in memory, beside numbers that stay as they were.
fn pairs(form: FourierForm, length: i64) {
    let (lines, (read, made)) = (37i64, form.counts(length));
    let mut b = Build::default();
    let width = |count: i64, complex: bool| if complex { 2 * count } else { count };
    let (takes, gives) = (form != FourierForm::RealToHalf, form != FourierForm::HalfToReal);
    let (from, to) = (width(read, takes), width(made, gives));
    let (x, y) = (b.input(DType::F32, shape(&[lines, from])), b.output(DType::F32, shape(&[lines, to])));
    let part = |buf, count: i64, row: i64, complex: bool, offset: i64| Operand {
        buf,
        sizes: shape(&[lines, count]),
        strides: shape(&[row, if complex { 2 } else { 1 }]),
        offset: n(offset),
    };
    let parts = |complex: bool| if complex { 0..2 } else { 0..1 };
    let inputs = parts(takes).map(|p| part(x, read, from, takes, p)).collect();
    let outputs = parts(gives).map(|p| part(y, made, to, gives, p)).collect();
    let op = ExternOp::Fourier { dim: 1, forward: false, scale: 1.0 };
    let name = "fourier".into();
    b.program.steps.push(Step::Extern(ExternCall { name, origins: vec![], op, inputs, outputs }));
    let mut rng = Rng(5);
    let values: Vec<f64> = (0..lines * from).map(|_| f64::from(rng.unit() as f32)).collect();
    let x = Data::floats(DType::F32, &[lines, from], |i| values[i]);
    let got = run(b.finish(), &[x]);
    for line in 0..lines as usize {
        let row = line * from as usize;
        let given = |k: usize| match takes {
            true => [values[row + 2 * k], values[row + 2 * k + 1]],
            false => [values[row + k], 0.0],
        };
        let wanted = form.line(length as usize, false, 1.0, given);
        for (k, parts) in wanted.into_iter().enumerate() {
            for (p, wanted) in parts.into_iter().take(if gives { 2 } else { 1 }).enumerate() {
                let at = line * to as usize + if gives { 2 * k + p } else { k };
                let got = got[0].values[at].as_f64();
                assert!(
                    (got - wanted).abs() < 1e-5,
                    "{form:?} {length}, line {line}, {k}: {got}, not {wanted}"
                );
            }
        }
    }
}

#[test]
fn what_is_not_finite_stays_in_its_line() {
    let mut case = Case::new(FourierForm::RealToHalf, DType::F32, &[4], 0, 12);
    case.forward = true;
    let values = |i: usize| if i % 4 == 1 { f64::NAN } else { i as f64 };
    let x = Data::floats(DType::F32, &case.sizes, values);
    let got = run(case.program(), &[x]);
    for (i, value) in got[0].values.iter().enumerate() {
        assert_eq!(matches!(value, Scalar::Float(x) if x.is_nan()), i % 4 == 1, "element {i}");
    }
}
