//! Seeds of random numbers: one for each call of a compiled model, derived from the user's seed or one of the system. How a
//! graph uses it is defined in `prims` (`Builder::random_bits`).

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, Ordering};

use tensor::{Tensor, formula};

use crate::Error;

/// The seeds of a model's calls: the n-th is SplitMix64's n-th number from the base.
pub(crate) struct Seeds {
    base: u64,
    calls: AtomicU64,
}

impl Seeds {
    /// From the user's seed, or from one of the system.
    pub(crate) fn new(fixed: Option<u64>) -> Seeds {
        Seeds { base: fixed.unwrap_or_else(fresh_base), calls: AtomicU64::new(0) }
    }
    /// The seed of the next call.
    pub(crate) fn next(&self) -> u64 {
        seed_of(self.base, self.calls.fetch_add(1, Ordering::Relaxed))
    }
}

/// A base seed of the system.
pub(crate) fn fresh_base() -> u64 {
    // The keys of a `RandomState` are the standard library's only source of randomness.
    RandomState::new().hash_one(0u8)
}

/// A number that no other process has.
pub(crate) fn of_process() -> u64 {
    static OWN: std::sync::OnceLock<u64> = std::sync::OnceLock::new();
    *OWN.get_or_init(|| formula::splitmix64(fresh_base() ^ u64::from(std::process::id())))
}

/// The seed of call number `call`.
pub(crate) fn seed_of(base: u64, call: u64) -> u64 {
    formula::splitmix64(base ^ formula::splitmix64(call))
}

/// The position of the seed among a program's inputs, if it draws random numbers.
pub(crate) fn seed_place(program: &kernel_ir::Program) -> Option<usize> {
    program.inputs.iter().position(|input| input.name == fx_ir::SEED)
}

/// The seed as an input of a program.
pub(crate) fn seed_tensor(seed: u64) -> Result<Tensor, Error> {
    Ok(Tensor::from_vec(vec![seed as i64], &[])?)
}
