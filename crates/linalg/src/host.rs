//! Matrix routines of a program on host memory: operands are gathered into row-major arrays in double precision, a routine
//! computes, and the results are scattered. There is no mathematics here, and the module owns no memory: the backend gives
//! the addresses of its buffers. A backend whose memory is on a device copies first.

use ir_core::{DType, SymExpr};
use kernel_ir::{ExternCall, LinalgOp, Operand, Program};
use thiserror::Error;

use crate::{Array, Complex, LinalgError, Values};

/// Access to the memory of a call's buffers.
pub trait Memory {
    /// The memory of a buffer, by the number of its root.
    fn address(&self, root: usize) -> *mut u8;
    /// The value of an expression over the size symbols.
    fn size(&self, e: &SymExpr) -> Option<i64>;
}

/// A routine that cannot run.
#[derive(Clone, Debug, Error)]
pub enum RoutineError {
    /// A program that breaks the rules of kernel-ir.
    #[error("{0}")]
    Malformed(String),
    /// What the routine refuses.
    #[error("kernel `{kernel}`: {source}")]
    Linalg {
        /// The step.
        kernel: String,
        /// The reason.
        source: LinalgError,
    },
}

fn evaluate(memory: &dyn Memory, e: &SymExpr) -> Result<i64, RoutineError> {
    memory.size(e).ok_or_else(|| RoutineError::Malformed(format!("the size {e} has no value")))
}

fn all(memory: &dyn Memory, es: &[SymExpr]) -> Result<Vec<i64>, RoutineError> {
    es.iter().map(|e| evaluate(memory, e)).collect()
}

/// An operand with its dtype; complex numbers are pairs of real ones along a last dimension.
struct Place {
    root: usize,
    dtype: DType,
    pairs: bool,
    offset: SymExpr,
    sizes: Vec<SymExpr>,
    strides: Vec<SymExpr>,
}

/// A matrix routine of a program.
pub struct MatrixRoutine {
    name: String,
    op: LinalgOp,
    inputs: Vec<Place>,
    outputs: Vec<Place>,
}

impl MatrixRoutine {
    /// The routine of a call.
    ///
    /// # Errors
    /// Operands of a number or dtype that the routine does not take.
    pub fn new(
        program: &Program,
        call: &ExternCall,
        op: LinalgOp,
        complex: bool,
    ) -> Result<MatrixRoutine, RoutineError> {
        let place = |(o, pairs): (&Operand, bool)| Place {
            root: program.root(o.buf).0 as usize,
            dtype: program.buffers[o.buf].dtype,
            pairs,
            offset: o.offset.clone(),
            sizes: o.sizes.to_vec(),
            strides: o.strides.to_vec(),
        };
        let into = op.complex_inputs().iter().map(|&c| c && complex);
        let step = MatrixRoutine {
            name: call.name.clone(),
            op,
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
            return Err(RoutineError::Malformed(format!(
                "the matrix routine `{}` has operands of the wrong number or dtype",
                call.name
            )));
        }
        Ok(step)
    }

    /// The roots of the buffers that it reads, and of those that it writes.
    pub fn roots(&self) -> (Vec<usize>, Vec<usize>) {
        let of = |places: &[Place]| places.iter().map(|p| p.root).collect();
        (of(&self.inputs), of(&self.outputs))
    }

    /// Runs the routine.
    ///
    /// # Safety
    /// `memory` gives every operand's root as host memory that its elements lie in, at the sizes that it evaluates.
    ///
    /// # Errors
    /// A size without a value, and what the routine refuses (a singular matrix).
    pub unsafe fn run(&self, memory: &dyn Memory) -> Result<(), RoutineError> {
        let inputs = self.inputs.iter().map(|p| p.gather(memory)).collect::<Result<Vec<_>, _>>()?;
        let sizes = self.outputs.iter().map(|p| p.logical(memory)).collect::<Result<Vec<_>, _>>()?;
        let results = crate::run(self.op, &inputs, &sizes)
            .map_err(|source| RoutineError::Linalg { kernel: self.name.clone(), source })?;
        self.outputs.iter().zip(&results).try_for_each(|(place, array)| place.scatter(memory, array))
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
    fn offsets(&self, memory: &dyn Memory) -> Result<Vec<isize>, RoutineError> {
        Ok(offsets(evaluate(memory, &self.offset)?, &all(memory, &self.sizes)?, &all(memory, &self.strides)?))
    }

    /// Sizes without the dimension of the pairs.
    fn logical(&self, memory: &dyn Memory) -> Result<Vec<usize>, RoutineError> {
        let mut sizes: Vec<usize> = all(memory, &self.sizes)?.iter().map(|&n| n.max(0) as usize).collect();
        if self.pairs && sizes.pop() != Some(2) {
            return Err(RoutineError::Malformed("complex operands end with a dimension of 2".into()));
        }
        Ok(sizes)
    }

    fn gather(&self, memory: &dyn Memory) -> Result<Array, RoutineError> {
        let (offsets, sizes) = (self.offsets(memory)?, self.logical(memory)?);
        let at = |i: isize| element(memory, self, i);
        let values = match self.dtype {
            DType::I32 => {
                // SAFETY: the offset is that of an element of the operand, which is within its buffer because the program
                // was verified.
                let read = |&i: &isize| i64::from(unsafe { at(i).cast::<i32>().read_unaligned() });
                Values::Ints(offsets.iter().map(read).collect())
            }
            // SAFETY: the offset is that of an element of the operand, which is within its buffer because the program was
            // verified.
            DType::I64 => Values::Ints(
                offsets.iter().map(|&i| unsafe { at(i).cast::<i64>().read_unaligned() }).collect(),
            ),
            dtype => {
                let read = |&i: &isize| match dtype {
                    // SAFETY: the offset is that of an element of the operand, which is within its buffer because the
                    // program was verified.
                    DType::F32 => f64::from(unsafe { at(i).cast::<f32>().read_unaligned() }),
                    // SAFETY: the element is within its buffer (the program was verified), and its dtype is one of those
                    // that `new` accepts.
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

    fn scatter(&self, memory: &dyn Memory, array: &Array) -> Result<(), RoutineError> {
        let offsets = self.offsets(memory)?;
        let flat: Vec<f64>;
        let list = match &array.values {
            Values::Real(list) => list,
            Values::Complex(list) => {
                flat = list.iter().flat_map(|z| [z.re, z.im]).collect();
                &flat
            }
            Values::Ints(list) => {
                for (&i, &x) in offsets.iter().zip(list) {
                    let p = element(memory, self, i);
                    // SAFETY: the offset is that of an element of an output, which is within its buffer because the program
                    // was verified.
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
            let p = element(memory, self, i);
            // SAFETY: the offset is that of an element of an output, which is within its buffer because the program was
            // verified.
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

fn wrong_kind() -> RoutineError {
    RoutineError::Malformed("a result of a matrix routine has another kind than its buffer".into())
}

/// Address of the element at an offset.
fn element(memory: &dyn Memory, place: &Place, offset: isize) -> *mut u8 {
    memory.address(place.root).wrapping_offset(offset * place.dtype.size() as isize)
}
