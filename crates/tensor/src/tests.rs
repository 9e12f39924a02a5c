//! Unit tests of the crate, one file per theme.

mod compare;
mod construct;
mod convert;
mod files;
mod foreign;
mod formula;
mod linalg;
mod view;
