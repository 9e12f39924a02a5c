//! The families of operators. A new family is one file and one line in [`FAMILIES`]; a new operator is one entry in
//! one file.

use crate::OpDef;

/// A composite that the golden corpus covers and that is differentiated through its parts.
macro_rules! composite {
    ($schema:literal, $decompose:expr) => {
        $crate::OpDef {
            schema: $schema,
            kind: $crate::Kind::Composite($decompose),
            grad: $crate::Grad::ByDecomposition,
            tolerance: $crate::Tolerance::FLOAT,
            samples: $crate::samples::golden,
        }
    };
}

/// Another name of an operator with the same arguments.
macro_rules! alias {
    ($schema:literal, $target:literal) => {
        composite!($schema, |b, c| b.call($target, c.args.to_vec()))
    };
}

mod activation;
mod binary;
pub(crate) mod common;
mod compare;
mod convert;
mod creation;
mod cumulative;
mod prims_reduce;
mod prims_scalar;
mod prims_shape;
mod prims_template;
mod prims_value;
mod reduction;
mod select;
mod statistics;
mod unary;

pub use prims_shape::reshape_index;

/// Every family's entries.
pub const FAMILIES: &[&[OpDef]] = &[
    // The closed set.
    prims_scalar::OPS,
    prims_shape::OPS,
    prims_reduce::OPS,
    prims_template::OPS,
    prims_value::OPS,
    // Composites.
    activation::OPS,
    binary::OPS,
    compare::OPS,
    convert::OPS,
    creation::OPS,
    cumulative::OPS,
    reduction::OPS,
    select::OPS,
    statistics::OPS,
    unary::OPS,
];
