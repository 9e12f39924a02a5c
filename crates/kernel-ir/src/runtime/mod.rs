//! What every executor of programs needs next to its kernels: [`Binder`] finds the values of the size symbols from the
//! arguments of a call, [`Sizes`] holds them, [`Dynamic`] states which buffers are allocated after a step binds a size, and
//! [`Machine`] walks over control flow. [`ExchangeStep`] runs collectives by an engine ([`Collectives`]). Not here: kernels, memory and devices, which implement the trait [`Exec`].
//!
//! The oracle (`interp`) has a walk of its own, so that a mistake in this one shows.

mod binder;
mod dynamic;
mod exchange;
mod machine;
mod planned;
mod sizes;

pub use binder::{Binder, Equation, Mismatch, SizeSource};
pub use dynamic::Dynamic;
pub use exchange::{
    Collectives, Exchange, ExchangeError, ExchangeStep, Exchanged, Exchanges, Ticket, combine_into, divide,
};
pub use machine::{Exec, Machine};
pub use planned::{Node, Number, Plan, PlannedStep, control};
pub use sizes::{Extents, Sizes};

use ir_core::DType;

/// Why a call ends before its last step, apart from errors of kernels and memory.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RunError {
    /// A size expression without a value.
    #[error("the size `{0}` has no value: no input determines it")]
    Unbound(String),
    /// A number that the program computes is outside of its symbol's range.
    #[error("step `{step}` gives {value}, which `{symbol}` must not be: it is {min} or more{}", up_to(*.max))]
    Range {
        /// The step.
        step: String,
        /// What it computed.
        value: i64,
        /// Name of the symbol.
        symbol: String,
        /// Its smallest value.
        min: i64,
        /// Its largest one, where it has one.
        max: Option<i64>,
    },
    /// A condition that the program states does not hold.
    #[error("assertion `{step}` failed: {message}")]
    Assertion {
        /// The step.
        step: String,
        /// What the program says.
        message: String,
    },
    /// A symbol or a condition is read from memory that holds neither integers nor truth values.
    #[error("a symbol is bound from {0}")]
    NumberType(DType),
}

fn up_to(max: Option<i64>) -> String {
    max.map_or(String::new(), |max| format!(", and at most {max}"))
}
