//! Tests of the emitter: its bytes against another decoder, and its loops against Cranelift's.
// A helper of tests may fail as a test does.
#![allow(clippy::unwrap_used)]

mod differential;
mod encoding;
