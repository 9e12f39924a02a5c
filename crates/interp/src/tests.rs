//! Unit tests of the crate.
