//! Innermost loops as wide code: a leaf is a function of its own that runs the vector axis of some stages sixteen points at a time
//! (AVX-512) or eight (AVX2 and FMA), installed in the same module as the function around it, which Cranelift compiles (`clif::leaf` writes the call).
//!
//! `lower` turns the bodies of vector IR into instructions over registers (`ir`, built by `build`; `loops` those of stages with
//! loops of their own, `reduce` reductions, `indirect` accesses with an address for each lane), `copies` widens a step, `regalloc`
//! assigns registers by linear scan, `emit`, `turns`, `calls` and `checks` write the code, and `encode` and `codes` know the bytes.
//! All of this is the same for both targets but for their numbers (`target`), the instructions of a step that only one of them has
//! (`masks`, `wide`), and the code of what is masked (`zmm`, `ymm`). A loop with
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
#[cfg(target_arch = "x86_64")]
mod gathers;
mod indirect;
mod ir;
mod loops;
mod lower;
mod masks;
mod ops;
mod reduce;
mod regalloc;
mod target;
#[cfg(test)]
mod tests;
mod turns;
mod wide;
mod ymm;
mod zmm;

pub(crate) use calls::Each;
pub(crate) use emit::accumulators_at;
pub(crate) use lower::{Input, Leaf, Turn, leaf, turns, variables};
pub(crate) use target::Target;
