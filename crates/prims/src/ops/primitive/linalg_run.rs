//! Matrix routines on host tensors: conversion between tensors and arrays of `linalg`. The references of the matrix prims
//! and the interpreter of kernels share it. No entries here.

use ir_core::DType;
use kernel_ir::LinalgOp;
use linalg::{Array, Complex, LinalgError, Values};
use tensor::{Tensor, TensorError, bf16, f16};
use thiserror::Error;

/// Why a matrix routine gave no result.
#[derive(Clone, Debug, Error)]
pub enum LinalgRunError {
    /// The routine refused.
    #[error(transparent)]
    Linalg(#[from] LinalgError),
    /// A tensor could not be made.
    #[error(transparent)]
    Tensor(#[from] TensorError),
}

/// Applies a matrix routine; `outs` are the dtypes and sizes of the results. Where `pairs` complex numbers are pairs of
/// real ones along a last dimension of 2, of operands as well as of results.
///
/// # Errors
/// What the routine refuses; no memory.
pub fn run_linalg(
    op: LinalgOp,
    pairs: bool,
    inputs: &[Tensor],
    outs: &[(DType, Vec<usize>)],
) -> Result<Vec<Tensor>, LinalgRunError> {
    let paired = |flag: &bool| *flag && pairs;
    let inputs = inputs.iter().zip(op.complex_inputs()).map(|(t, c)| array(t, paired(c)));
    let inputs = inputs.collect::<Result<Vec<_>, _>>()?;
    let complex = matches!(inputs.first(), Some(Array { values: Values::Complex(_), .. }));
    let real_outs = outs.iter().all(|(dtype, _)| !dtype.is_complex());
    let kinds = op.complex_outputs(complex);
    let mut sizes: Vec<Vec<usize>> = outs.iter().map(|(_, sizes)| sizes.clone()).collect();
    for (sizes, _) in sizes.iter_mut().zip(&kinds).filter(|(_, c)| **c && real_outs) {
        if sizes.pop() != Some(2) {
            return Err(LinalgError::Malformed("complex operands end with a dimension of 2").into());
        }
    }
    let results = linalg::run(op, &inputs, &sizes)?;
    results.into_iter().zip(outs).map(|(array, (dtype, sizes))| tensor(array, *dtype, sizes)).collect()
}

fn array(t: &Tensor, pairs: bool) -> Result<Array, LinalgRunError> {
    let mut sizes = t.sizes().to_vec();
    let values = if t.dtype().is_complex() {
        Values::Complex(t.iter_complex().collect())
    } else if t.dtype().is_integral() {
        Values::Ints(t.iter_i64().collect())
    } else if pairs {
        if sizes.pop() != Some(2) {
            return Err(LinalgError::Malformed("complex operands end with a dimension of 2").into());
        }
        let list: Vec<f64> = t.iter_f64().collect();
        Values::Complex(list.chunks_exact(2).map(|z| Complex::new(z[0], z[1])).collect())
    } else {
        Values::Real(t.iter_f64().collect())
    };
    Ok(Array { sizes, values })
}

fn tensor(array: Array, dtype: DType, sizes: &[usize]) -> Result<Tensor, LinalgRunError> {
    let real = |list: Vec<f64>| match dtype {
        DType::F64 => Tensor::from_vec(list, sizes),
        DType::F16 => Tensor::from_vec(list.into_iter().map(f16::from_f64).collect(), sizes),
        DType::BF16 => Tensor::from_vec(list.into_iter().map(bf16::from_f64).collect(), sizes),
        _ => Tensor::from_vec(list.into_iter().map(|x| x as f32).collect(), sizes),
    };
    Ok(match array.values {
        Values::Real(list) => real(list)?,
        Values::Complex(list) if dtype == DType::C128 => Tensor::from_vec(list, sizes)?,
        Values::Complex(list) if dtype == DType::C64 => {
            let narrow = |z: Complex| num_complex::Complex::new(z.re as f32, z.im as f32);
            Tensor::from_vec(list.into_iter().map(narrow).collect(), sizes)?
        }
        Values::Complex(list) => real(list.into_iter().flat_map(|z| [z.re, z.im]).collect())?,
        Values::Ints(list) if dtype == DType::I64 => Tensor::from_vec(list, sizes)?,
        Values::Ints(list) => Tensor::from_vec(list.into_iter().map(|i| i as i32).collect(), sizes)?,
    })
}
