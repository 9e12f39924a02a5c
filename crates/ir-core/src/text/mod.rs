//! What the text forms of graphs (`.fx`) and of programs (`.kir`) have in common: a cursor that knows its place, errors that
//! name line and column, and how names, numbers and symbols are written. Knows no statement of either form.

mod cursor;
mod words;

pub use cursor::Cursor;
pub use words::{float, float_of, list, name, quote, scalar, symbol, value_of, word_of};

use thiserror::Error;

/// A syntax error in a text form: position and problem.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{line}:{column}: {problem}")]
pub struct TextError {
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// What is wrong.
    pub problem: TextProblem,
}

/// What is wrong with a text.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum TextProblem {
    /// Something else was expected here.
    #[error("expected {what}, found {found}")]
    Expected {
        /// What the grammar takes here.
        what: String,
        /// The text that is here.
        found: String,
    },
    /// The header's version is not one that this reader takes.
    #[error("this reader takes `{form} {0}.x` up to `{form} {0}.{1}`, not `{form} {found}`: {advice}", newest.0, newest.1)]
    Version {
        /// The word of the header: `fx`, `kir`.
        form: &'static str,
        /// The newest version that this reader takes.
        newest: (u32, u32),
        /// The version in the header.
        found: String,
        /// What to do.
        advice: &'static str,
    },
    /// Something is nested too deeply.
    #[error("{what} nested more than {limit} deep")]
    TooDeep {
        /// The nested construct, with its verb: `control flow is`.
        what: &'static str,
        /// The limit.
        limit: usize,
    },
    /// The text is too long.
    #[error("the text is longer than {limit} bytes")]
    TooLong {
        /// The limit.
        limit: usize,
    },
    /// A value is read before a node gives it.
    #[error("value `%{0}` is not defined above: define it first, or correct the name")]
    UnknownValue(String),
    /// Two nodes give a value of the same name.
    #[error("value `%{0}` is defined twice: rename one")]
    DuplicateValue(String),
    /// The entries of a table are not numbered in order.
    #[error("expected number {expected} next, found {found}: number from 0 without gaps")]
    OutOfOrder {
        /// The next number.
        expected: usize,
        /// The number that is here.
        found: u32,
    },
    /// A size expression, a dtype or a device does not parse.
    #[error("{0}")]
    Malformed(String),
}
