//! Innermost loops as AVX-512 code: a leaf is a function of its own that runs the vector axis of some stages sixteen points at a
//! time, installed in the same module as the function around it, which Cranelift compiles (`clif::leaf` writes the call).
//!
//! `lower` turns the bodies of vector IR into instructions over registers (`ir`, built by `build`; `loops` those of stages with
//! loops of their own, `reduce` reductions, `indirect` accesses with an address for each lane), `copies` widens a step, `regalloc`
//! assigns registers by linear scan, `emit`, `turns`, `calls` and `checks` write the code, and `encode` and `codes` know the bytes. A loop with
//! anything that has no lowering here stays with Cranelift: [`leaf`] then returns `None`. Knows no Cranelift value and no executor.

mod accumulators;
mod build;
mod calls;
mod checks;
mod codes;
mod convert;
mod copies;
mod emit;
mod encode;
mod indirect;
mod ir;
mod loops;
mod lower;
mod ops;
mod reduce;
mod regalloc;
#[cfg(test)]
mod tests;
mod turns;

pub(crate) use calls::Each;
pub(crate) use emit::{STEP, accumulators_at};
pub(crate) use lower::{Input, Leaf, Turn, leaf, turns, variables};

/// Whether this processor has the instructions of `codes`.
pub(crate) fn available() -> bool {
    #[cfg(target_arch = "x86_64")]
    return is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("bmi2");
    #[cfg(not(target_arch = "x86_64"))]
    false
}
