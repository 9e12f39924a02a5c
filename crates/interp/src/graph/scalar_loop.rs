//! The reference of a prim that is one scalar operator: applied to every element, in parallel over chunks.

use ir_core::{DType, Scalar};
use kernel_ir::{DTypeRule, ScalarOp};
use prims::{OpError, RefArg, RefCall, RefOut};
use rayon::prelude::*;
use tensor::{Element, Tensor, with_element};

/// Elements that one task converts, evaluates and stores at a time.
const CHUNK: usize = 4096;

enum Operand {
    Constant(Scalar),
    Tensor(Tensor),
}

/// Applies `op` to operands of one shape (numbers count everywhere). 16-bit floats are computed in `f32`.
pub(super) fn run(op: ScalarOp, call: &RefCall<'_>) -> Result<RefOut, OpError> {
    let (dtype, sizes) = call.out();
    let dtype_of_numbers = operand_dtype(op, call, dtype);
    let used = call.args.iter().take(op.arity());
    let operands =
        used.map(|arg| operand(arg, sizes, dtype_of_numbers, call)).collect::<Result<Vec<_>, _>>()?;
    if operands.len() != op.arity() {
        return Err(call.invalid(format!("takes {} operands", op.arity())));
    }
    let compute = dtype_of_numbers.compute();
    let mut out = Tensor::empty(dtype, sizes).map_err(|e| call.tensor_error(e))?;
    with_element!(dtype, T => if let Some(all) = out.as_mut_slice::<T>() {
        all.par_chunks_mut(CHUNK).enumerate().for_each(|(n, chunk)| {
            evaluate(op, compute, &operands, n * CHUNK, chunk);
        });
    });
    Ok(vec![out])
}

/// A tensor of the result's shape, or a number as tensors of `dtype` meet it.
fn operand(arg: &RefArg, sizes: &[usize], dtype: DType, call: &RefCall<'_>) -> Result<Operand, OpError> {
    match arg {
        RefArg::Scalar(s) => Ok(Operand::Constant(s.as_operand_of(dtype))),
        RefArg::Tensor(t) => {
            let expanded = t.expand(sizes).and_then(|t| t.contiguous());
            expanded.map(Operand::Tensor).map_err(|e| call.tensor_error(e))
        }
        _ => Err(call.invalid("an operand is neither a tensor nor a number")),
    }
}

/// The dtype of the operands: of the first tensor (of the branches of `select`), else of the result.
fn operand_dtype(op: ScalarOp, call: &RefCall<'_>, out: DType) -> DType {
    let skip = usize::from(op.dtype_rule() == DTypeRule::Select);
    let tensors = call.args.iter().take(op.arity()).skip(skip).find_map(|arg| match arg {
        RefArg::Tensor(t) => Some(t.dtype()),
        _ => None,
    });
    tensors.unwrap_or(out)
}

/// Results for the elements from `start` on.
fn evaluate<T: Element>(op: ScalarOp, compute: DType, operands: &[Operand], start: usize, out: &mut [T]) {
    let columns: Vec<Vec<Scalar>> = operands.iter().map(|o| column(o, start, out.len())).collect();
    match &columns[..] {
        [a] => out.iter_mut().zip(a).for_each(|(to, &a)| *to = T::from_scalar(op.eval(compute, &[a]))),
        [a, b] => {
            let pairs = a.iter().zip(b);
            out.iter_mut()
                .zip(pairs)
                .for_each(|(to, (&a, &b))| *to = T::from_scalar(op.eval(compute, &[a, b])));
        }
        many => {
            for (i, to) in out.iter_mut().enumerate() {
                let args: Vec<Scalar> = many.iter().map(|c| c[i]).collect();
                *to = T::from_scalar(op.eval(compute, &args));
            }
        }
    }
}

fn column(operand: &Operand, start: usize, len: usize) -> Vec<Scalar> {
    match operand {
        Operand::Constant(s) => vec![*s; len],
        Operand::Tensor(t) => with_element!(t.dtype(), S => {
            // Contiguous by construction, with as many elements as the result.
            let all = t.as_slice::<S>().unwrap_or(&[]);
            all[start..start + len].iter().map(|x| x.to_scalar()).collect()
        }),
    }
}
