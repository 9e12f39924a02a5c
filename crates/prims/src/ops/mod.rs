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

mod elementwise;
mod prims_reduce;
mod prims_scalar;
mod prims_shape;
mod prims_template;

pub use prims_shape::reshape_index;

/// Every family's entries.
pub const FAMILIES: &[&[OpDef]] = &[
    // The closed set.
    prims_scalar::OPS,
    prims_shape::OPS,
    prims_reduce::OPS,
    prims_template::OPS,
    // Composites.
    elementwise::OPS,
];
