//! The matrix routines: operands are gathered into row-major arrays in double precision, `linalg` computes, and the
//! results are scattered. No mathematics here.

use ir_core::{DType, SymExpr};
use kernel_ir::{ExternCall, LinalgOp, Operand, Program};
use linalg::{Array, Complex, Routine, Values};

use super::{Buffers, Call, ExecError};

/// An operand with its dtype; complex numbers are pairs of real ones along a last dimension.
struct Place {
    root: usize,
    dtype: DType,
    pairs: bool,
    offset: SymExpr,
    sizes: Vec<SymExpr>,
    strides: Vec<SymExpr>,
}

/// A matrix routine.
pub(super) struct LinalgStep {
    name: String,
    routine: Routine,
    inputs: Vec<Place>,
    outputs: Vec<Place>,
}

/// The routine that a program's operator names.
fn routine(op: LinalgOp) -> Routine {
    match op {
        LinalgOp::Cholesky { upper, check } => Routine::Cholesky { upper, check },
        LinalgOp::Lu { pivot, check } => Routine::Lu { pivot, check },
        LinalgOp::Solve { check } => Routine::Solve { check },
        LinalgOp::SolveTriangular { upper, unitriangular } => {
            Routine::SolveTriangular { upper, unitriangular }
        }
        LinalgOp::CholeskySolve { upper } => Routine::CholeskySolve { upper },
        LinalgOp::Geqrf => Routine::Geqrf,
        LinalgOp::Qr { complete } => Routine::Qr { complete },
        LinalgOp::Eigh { upper } => Routine::Eigh { upper },
        LinalgOp::Eig => Routine::Eig,
        LinalgOp::Svd { full } => Routine::Svd { full },
        LinalgOp::LdlFactor { hermitian, check } => Routine::LdlFactor { hermitian, check },
        LinalgOp::LdlSolve { hermitian } => Routine::LdlSolve { hermitian },
        LinalgOp::Pinv { hermitian } => Routine::Pinv { hermitian },
        LinalgOp::MatrixExp => Routine::MatrixExp,
        LinalgOp::Permutation => Routine::Permutation,
    }
}

impl LinalgStep {
    pub(super) fn new(
        program: &Program,
        call: &ExternCall,
        op: LinalgOp,
        complex: bool,
    ) -> Result<LinalgStep, ExecError> {
        let place = |(o, pairs): (&Operand, bool)| Place {
            root: program.root(o.buf).0 as usize,
            dtype: program.buffers[o.buf].dtype,
            pairs,
            offset: o.offset.clone(),
            sizes: o.sizes.to_vec(),
            strides: o.strides.to_vec(),
        };
        let into = op.complex_inputs().iter().map(|&c| c && complex);
        let step = LinalgStep {
            name: call.name.clone(),
            routine: routine(op),
            inputs: call.inputs.iter().zip(into).map(place).collect(),
            outputs: call.outputs.iter().zip(op.complex_outputs(complex)).map(place).collect(),
        };
        let taken = |p: &Place| {
            matches!(p.dtype, DType::F32 | DType::F64)
                || (!p.pairs && matches!(p.dtype, DType::I32 | DType::I64))
        };
        let whole = (step.inputs.len(), step.outputs.len()) == op.arity()
            && (call.inputs.len(), call.outputs.len()) == op.arity();
        if !whole || !step.inputs.iter().chain(&step.outputs).all(taken) {
            return Err(ExecError::Malformed(format!(
                "the matrix routine `{}` has operands of the wrong number or dtype",
                call.name
            )));
        }
        Ok(step)
    }

    pub(super) fn run(&self, call: &Call<'_>) -> Result<(), ExecError> {
        let inputs = self.inputs.iter().map(|p| p.gather(call)).collect::<Result<Vec<_>, _>>()?;
        let sizes = self.outputs.iter().map(|p| p.logical(call)).collect::<Result<Vec<_>, _>>()?;
        let results = linalg::run(self.routine, &inputs, &sizes)
            .map_err(|source| ExecError::Linalg { kernel: self.name.clone(), source })?;
        self.outputs.iter().zip(&results).try_for_each(|(place, array)| place.scatter(call, array))
    }
}

/// The offsets of a strided operand's elements in row-major order.
fn offsets(offset: i64, sizes: &[i64], strides: &[i64]) -> Vec<isize> {
    let mut list = vec![offset as isize];
    for (&n, &stride) in sizes.iter().zip(strides) {
        let along = |at: isize| (0..n as isize).map(move |i| at + i * stride as isize);
        list = list.into_iter().flat_map(along).collect();
    }
    list
}

impl Place {
    fn offsets(&self, call: &Call<'_>) -> Result<Vec<isize>, ExecError> {
        let s = call.sizes;
        Ok(offsets(s.eval(&self.offset)?, &s.all(&self.sizes)?, &s.all(&self.strides)?))
    }

    /// Sizes without the dimension of the pairs.
    fn logical(&self, call: &Call<'_>) -> Result<Vec<usize>, ExecError> {
        let mut sizes: Vec<usize> = call.sizes.all(&self.sizes)?.iter().map(|&n| n.max(0) as usize).collect();
        if self.pairs && sizes.pop() != Some(2) {
            return Err(ExecError::Malformed("complex operands end with a dimension of 2".into()));
        }
        Ok(sizes)
    }

    fn gather(&self, call: &Call<'_>) -> Result<Array, ExecError> {
        let (offsets, sizes) = (self.offsets(call)?, self.logical(call)?);
        let at = |i: isize| element(call.buffers, self, i);
        let values = match self.dtype {
            DType::I32 => {
                // SAFETY: an element of the operand, inside of its buffer by the program's promise.
                let read = |&i: &isize| i64::from(unsafe { at(i).cast::<i32>().read_unaligned() });
                Values::Ints(offsets.iter().map(read).collect())
            }
            // SAFETY: as above.
            DType::I64 => Values::Ints(
                offsets.iter().map(|&i| unsafe { at(i).cast::<i64>().read_unaligned() }).collect(),
            ),
            dtype => {
                let read = |&i: &isize| match dtype {
                    // SAFETY: as above.
                    DType::F32 => f64::from(unsafe { at(i).cast::<f32>().read_unaligned() }),
                    // SAFETY: as above; `new` takes no other dtype.
                    _ => unsafe { at(i).cast::<f64>().read_unaligned() },
                };
                let list: Vec<f64> = offsets.iter().map(read).collect();
                if self.pairs {
                    Values::Complex(list.chunks_exact(2).map(|z| Complex::new(z[0], z[1])).collect())
                } else {
                    Values::Real(list)
                }
            }
        };
        Ok(Array { sizes, values })
    }

    fn scatter(&self, call: &Call<'_>, array: &Array) -> Result<(), ExecError> {
        let offsets = self.offsets(call)?;
        let flat: Vec<f64>;
        let list = match &array.values {
            Values::Real(list) => list,
            Values::Complex(list) => {
                flat = list.iter().flat_map(|z| [z.re, z.im]).collect();
                &flat
            }
            Values::Ints(list) => {
                for (&i, &x) in offsets.iter().zip(list) {
                    let p = element(call.buffers, self, i);
                    // SAFETY: an element of an output, inside of its buffer by the program's promise.
                    unsafe {
                        match self.dtype {
                            DType::I64 => p.cast::<i64>().write_unaligned(x),
                            DType::I32 => p.cast::<i32>().write_unaligned(x as i32),
                            _ => return Err(wrong_kind()),
                        }
                    }
                }
                return Ok(());
            }
        };
        if list.len() != offsets.len() {
            return Err(wrong_kind());
        }
        for (&i, &x) in offsets.iter().zip(list) {
            let p = element(call.buffers, self, i);
            // SAFETY: as above.
            unsafe {
                match self.dtype {
                    DType::F64 => p.cast::<f64>().write_unaligned(x),
                    DType::F32 => p.cast::<f32>().write_unaligned(x as f32),
                    _ => return Err(wrong_kind()),
                }
            }
        }
        Ok(())
    }
}

fn wrong_kind() -> ExecError {
    ExecError::Malformed("a result of a matrix routine has another kind than its buffer".into())
}

/// Address of the element at an offset.
fn element(buffers: &Buffers, place: &Place, offset: isize) -> *mut u8 {
    buffers.0[place.root].wrapping_offset(offset * place.dtype.size() as isize)
}
