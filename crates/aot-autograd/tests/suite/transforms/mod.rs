//! Function transforms, judged by the interpreter: batching rules against a loop, derivatives against finite differences
//! in double precision.

#![allow(clippy::unwrap_used)] // a failing test may panic

mod batching;
mod corpus;
mod derivatives;
mod support;
