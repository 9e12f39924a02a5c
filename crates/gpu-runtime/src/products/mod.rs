//! Matrix products by a vendor's library: which steps of a program it may compute, with what epilogues, and the plans that are
//! kept for sets of sizes. A vendor's library is a [`Products`]: it makes a plan of a column-major product and launches it.
//!
//! Not here: the calls of any library.

mod call;
mod layout;

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ir_core::DType;

pub use self::call::{candidates, wants};
pub use self::layout::{Gemm, Matrix};
use crate::GpuError;

/// Prepared products at most; more begin anew.
const MAX_PLANS: usize = 4096;
/// Algorithms that a library is asked for.
pub const MAX_ALGORITHMS: usize = 5;
/// What addresses are taken to be multiples of at most, in bytes: what the widest access of a kernel needs.
const ALIGNMENT: u64 = 16;

/// A library of matrix products on one stream of a device.
pub trait Products: Send + Sync + 'static {
    /// What the tables of the search call its ways.
    const NAME: &'static str;
    /// How many of its algorithms the search may time.
    const ALGORITHMS: usize = MAX_ALGORITHMS;
    /// What is made for one set of sizes: descriptors and an algorithm.
    type Plan: Send + Sync;

    /// Makes the device current in this thread.
    ///
    /// # Errors
    /// A lost device.
    fn enter(&self) -> Result<(), GpuError>;
    /// Makes a plan; the addresses are those of the first launch.
    ///
    /// # Errors
    /// The library has no algorithm for the product.
    fn make(&self, key: &Key, at: &Addresses) -> Result<Self::Plan, GpuError>;
    /// Puts `out = alpha * first · second + addend + bias` on the stream, rectified where the plan is. One launch at a time.
    ///
    /// # Errors
    /// What the library says.
    ///
    /// # Safety
    /// The addresses are device memory in which the matrices of the key lie; the plan was made for the key.
    unsafe fn launch(&self, plan: &Self::Plan, key: &Key, alpha: f64, at: &Addresses)
    -> Result<(), GpuError>;
}

/// Dtypes and what happens to the product: with the numbers of a [`Gemm`], what a plan is made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Kind {
    /// Of both operands.
    pub operands: DType,
    /// Of the result, the addend and the biases.
    pub out: DType,
    /// Whether float32 operands may be rounded to tf32.
    pub tf32: bool,
    /// Whether a vector is added, one number a row of the column-major result.
    pub bias: bool,
    /// Whether negative values become 0.
    pub relu: bool,
}

/// On what a plan depends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    /// Sizes and layouts.
    pub gemm: Gemm,
    /// Dtypes and epilogue.
    pub kind: Kind,
    /// What the addresses of the operands, the addend and the result are multiples of, in bytes.
    pub alignments: [u64; 4],
    /// Which of the library's proposals, from 0; where there are fewer, the last.
    pub algorithm: usize,
}

/// Addresses of one product.
#[derive(Clone, Copy, Debug, Default)]
pub struct Addresses {
    /// Of the first factor.
    pub first: u64,
    /// Of the second factor.
    pub second: u64,
    /// Of the addend; 0 where there is none.
    pub addend: u64,
    /// Of the result.
    pub out: u64,
    /// Of the biases; 0 where there are none.
    pub bias: u64,
}

/// The factors of a product and of its addend, as libraries read them: in the precision of the sums.
pub struct Scalars {
    single: [f32; 2],
    double: [f64; 2],
    is_double: bool,
}

impl Scalars {
    /// The factor of a product; an addend counts once where there is one.
    pub fn new(key: &Key, alpha: f64) -> Scalars {
        let beta = if key.gemm.addend.is_some() { 1.0 } else { 0.0 };
        let is_double = key.kind.operands == DType::F64;
        Scalars { single: [alpha as f32, beta as f32], double: [alpha, beta], is_double }
    }

    /// The address of the product's factor (0) or of the addend's (1), which stays valid as long as this value.
    pub fn pointer(&self, n: usize) -> *const c_void {
        match self.is_double {
            true => (&raw const self.double[n]).cast(),
            false => (&raw const self.single[n]).cast(),
        }
    }
}

/// Whether libraries multiply operands of a dtype to a result of another.
pub fn takes(operands: DType, out: DType) -> bool {
    match operands {
        DType::F16 | DType::BF16 => out == operands || out == DType::F32,
        DType::F32 | DType::F64 => out == operands,
        _ => false,
    }
}

/// The largest power of two, at most [`ALIGNMENT`], that divides all of them.
fn alignment(of: &[u64]) -> u64 {
    let bits = of.iter().fold(ALIGNMENT, |all, n| all | n);
    1 << bits.trailing_zeros()
}

/// A library with its plans.
pub struct ProductLibrary<P: Products> {
    library: P,
    plans: Mutex<HashMap<Key, Arc<P::Plan>>>,
    exclusive: Mutex<()>,
}

impl<P: Products> ProductLibrary<P> {
    /// A library without plans.
    pub fn new(library: P) -> Self {
        ProductLibrary { library, plans: Mutex::default(), exclusive: Mutex::default() }
    }

    /// The library.
    pub fn library(&self) -> &P {
        &self.library
    }

    /// Prepares a product, so that its launch allocates nothing.
    ///
    /// # Errors
    /// The library has no algorithm for it.
    pub fn prepare(
        &self,
        gemm: &Gemm,
        kind: &Kind,
        at: &Addresses,
        algorithm: usize,
    ) -> Result<(), GpuError> {
        self.library.enter()?;
        self.plan(key(gemm, kind, at, algorithm), at).map(|_| ())
    }

    fn plan(&self, key: Key, at: &Addresses) -> Result<Arc<P::Plan>, GpuError> {
        if let Some(plan) = lock(&self.plans).get(&key) {
            return Ok(Arc::clone(plan));
        }
        let _span = tracing::debug_span!(target: "kernel", "plan", library = P::NAME).entered();
        let plan = Arc::new(self.library.make(&key, at)?);
        let mut plans = lock(&self.plans);
        if plans.len() >= MAX_PLANS {
            plans.clear();
        }
        plans.insert(key, Arc::clone(&plan));
        Ok(plan)
    }

    /// Puts a product on the stream: `out = alpha * first · second + addend + bias`, rectified where asked for.
    ///
    /// # Errors
    /// What the library says.
    ///
    /// # Safety
    /// The addresses are device memory in which the matrices of `gemm` lie.
    pub unsafe fn launch(
        &self,
        gemm: &Gemm,
        kind: &Kind,
        alpha: f64,
        at: &Addresses,
        algorithm: usize,
    ) -> Result<(), GpuError> {
        let key = key(gemm, kind, at, algorithm);
        let plan = self.plan(key, at)?;
        let _turn = lock(&self.exclusive);
        // SAFETY: the caller's promise; the plan was made for this key.
        unsafe { self.library.launch(&plan, &key, alpha, at) }
    }
}

fn key(gemm: &Gemm, kind: &Kind, at: &Addresses, algorithm: usize) -> Key {
    let alignments = [at.first, at.second, at.addend, at.out].map(|a| alignment(&[a]));
    Key { gemm: *gemm, kind: *kind, alignments, algorithm }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alignments_are_powers_of_two() {
        assert_eq!(alignment(&[0]), 16);
        assert_eq!(alignment(&[4096, 256]), 16);
        assert_eq!(alignment(&[4096, 6]), 2);
        assert_eq!(alignment(&[8]), 8);
    }

    #[test]
    fn what_libraries_multiply() {
        assert!(takes(DType::BF16, DType::F32) && takes(DType::F16, DType::F16));
        assert!(
            !takes(DType::BF16, DType::F16)
                && !takes(DType::F32, DType::BF16)
                && !takes(DType::I8, DType::I32)
        );
    }
}
