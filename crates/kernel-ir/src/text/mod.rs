//! The text form of a program, `.kir`: printer and parser. What [`verify`](crate::verify()) accepts prints and reads back
//! equal, bit for bit. Not the byte form (`wire`), which is what crosses to a backend.
//!
//! ```text
//! kir 1.0
//! program "mlp"
//! symbol s0 "batch" 2..=64 hint 8
//! buffer b0 "x" f32[s0, 4]{4, 1}+0 input 0
//! buffer b1 "y" f32[s0, 4]{4, 1}+0 output
//! input "x" b0
//! output "y" b1[s0, 4]{4, 1}+0
//! init:
//! steps:
//! loop "relu" outer [s0, 4] from "relu", "add"
//!   stage []
//!     v0: f32 = load b0[i0, i1]
//!     v1: f32 = const 0.0
//!     v2: f32 = max v0, v1
//!     v3: f32 = store b1[i0, i1], v2
//! plan bytes 0:
//! ```
//!
//! The symbols may be followed by `guard [s0 - s1], zero "message"` (relations: `zero`, `nonzero`, `nonnegative`), `site
//! "operator" "origin" dim 0 wraps constant 1` and `unchecked_indices`; after a constant `range -4..=3`.
//!
//! Line ends are white space but for index expressions, which end with their line; `#` starts a comment. Statements stand
//! in the order of the example, `constant "name" b2` between inputs and outputs. Symbols, buffers, accumulators and values
//! are numbered from 0 without gaps. An offset that is not a number or one symbol is in parentheses: `+(s0 + 1)`.
//!
//! - Inputs that the call writes in place: `input "cache" b0 written`.
//! - Storage: `input n`, `constant n`, `persistent`, `arena`, `output`, `view b0`.
//! - Kernels: `loop` with `acc0: f32 sum` and `stage [inner]`; `matmul` with `a`, `b`; `conv` with `input`, `weight`,
//!   `window`; `attention` with `q`, `k`, `v`, `mask`; `extern "name" sort dim 0 descending` or a matrix
//!   routine with its options (`lu pivot check complex`) with `in`, `out`. Templates end
//!   with `epilogue [ranges]`.
//! - Control flow: `bind "n" s1 b2[]{}+0`, `assert "name" "message" b2[]{}+0`, `cond "c" b2[]{}+0` with `then:` and `else:`,
//!   `for "f" s1 [s0]` with `do:`, `while "w" b2[]{}+0` with `test:` and `do:`; lists of steps, closed by `end`. Steps that
//!   may run concurrently are written in the same way: `together "t"` with `do:`. Symbols
//!   that steps bind are declared `unbacked`: `symbol s1 "u0" 0.. unbacked`.
//! - Instructions: `const`, `index`, `load b0[…] if v1`, `check v0, [s0] if v1 at 0`, `store b0[…], v2 if v1` (`store_add`, `store_max`, …), `cast`,
//!   `bitcast`, `reduce acc0, v1, v2`, `acc0`, `scan_sum v0`, `template` and the names of [`ScalarOp`](crate::ScalarOp).
//! - Numbers: `true`, `3`, `0.5`, `inf`, `NaN`, `nan(0xfff8000000000000)` where the bits are others, `complex(1.0, -0.0)`.
//! - The plan: `plan bytes n:` and `b2 live 0..3 at 64`, or `plan:` and `b2 live 0..3` where sizes are symbolic;
//!   `b3 dynamic 1..2` where a step computes the size.

mod control;
mod parse;
mod print;
mod steps;
mod words;

use std::str::FromStr;

pub use ir_core::text::{TextError, TextProblem};

use crate::Program;

/// Longest text that the parser takes, in bytes.
pub const MAX_TEXT_BYTES: usize = 1 << 28;

impl FromStr for Program {
    type Err = TextError;

    /// Reads a program from its text form. Checks the grammar only; run [`verify`](crate::verify()) for the rest.
    ///
    /// # Errors
    /// Reports the first place that violates the grammar, with line and column.
    fn from_str(text: &str) -> Result<Program, TextError> {
        parse::document(text)
    }
}
