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
            tolerance: $crate::Tolerance::ACCUMULATE,
            autocast: $crate::Autocast::NONE,
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
mod attention;
mod attention_core;
mod backward;
mod batch;
mod batch_conv;
mod batch_norm;
mod binary;
pub(crate) mod common;
mod compare;
mod complex;
mod complex_formula;
mod complex_prims;
mod complex_scalar;
mod conv;
mod convert;
mod core_forms;
mod creation;
mod ctc;
mod cumulative;
mod diagonal;
mod dropout;
mod dynamic;
mod einsum;
mod embedding_bag;
mod expert;
mod fft;
mod fft_fast;
mod fold;
mod foreach;
mod fractional_pool;
mod frexp;
mod gamma;
mod grad_attention;
mod grad_index;
mod grad_move;
mod grad_scalar;
mod grad_shape;
mod grad_template;
mod gradient;
mod grid;
mod histogram;
mod index;
mod iterated;
mod join;
mod linalg;
mod linalg_solve;
mod linalg_spectrum;
mod linalg_util;
mod loss;
mod loss_class;
mod matmul;
mod matrix_norm;
mod mode;
mod norm;
mod pad;
mod pool;
mod prims_cover;
mod prims_index;
mod prims_linalg;
mod prims_linalg_grad;
mod prims_linalg_run;
mod prims_move;
mod prims_reduce;
mod prims_scalar;
mod prims_shape;
mod prims_sort;
mod prims_special;
mod prims_template;
mod prims_value;
mod quantile;
mod random;
mod random_fill;
mod reduction;
mod rnn;
mod sampling;
mod scatter;
mod segment;
mod select;
mod sequence;
mod shape;
mod signal;
mod slice;
mod softmax;
mod sort;
mod special;
mod statistics;
mod unary;
mod unique;
mod unique_dim;
mod upsample;
mod view;

pub use prims_linalg_run::{LinalgRunError, run_linalg};
pub use prims_shape::reshape_index;

/// Every family's entries.
pub const FAMILIES: &[&[OpDef]] = &[
    // The closed set.
    prims_scalar::OPS,
    prims_shape::OPS,
    prims_reduce::OPS,
    prims_template::OPS,
    prims_value::OPS,
    prims_move::OPS,
    prims_cover::OPS,
    prims_index::OPS,
    prims_linalg::OPS,
    prims_sort::OPS,
    prims_special::OPS,
    // Composites.
    activation::OPS,
    attention::OPS,
    batch_norm::OPS,
    binary::OPS,
    compare::OPS,
    complex::OPS,
    conv::CONV1D_OPS,
    conv::CONV2D_OPS,
    conv::CONV3D_OPS,
    conv::OPS,
    convert::OPS,
    creation::OPS,
    cumulative::OPS,
    diagonal::OPS,
    dropout::OPS,
    einsum::OPS,
    embedding_bag::OPS,
    expert::OPS,
    fft::COMPLEX_OPS,
    fft::OPS,
    fft::REAL_OPS,
    fold::OPS,
    fractional_pool::OPS,
    grid::OPS,
    index::OPS,
    iterated::OPS,
    join::OPS,
    linalg::OPS,
    linalg_solve::OPS,
    linalg_spectrum::OPS,
    loss::OPS,
    loss_class::OPS,
    matmul::OPS,
    matrix_norm::OPS,
    norm::OPS,
    pad::OPS,
    pool::OPS,
    random::OPS,
    random_fill::OPS,
    reduction::OPS,
    rnn::OPS,
    sampling::OPS,
    scatter::OPS,
    segment::OPS,
    select::OPS,
    slice::OPS,
    softmax::OPS,
    sort::OPS,
    special::OPS,
    statistics::OPS,
    unary::OPS,
    unique::OPS,
    upsample::EXACT_OPS,
    upsample::NEAREST_OPS,
    upsample::SMOOTH_OPS,
    view::OPS,
    mode::OPS,
    sequence::OPS,
    backward::OPS,
    unique_dim::OPS,
    histogram::OPS,
    signal::OPS,
    gradient::OPS,
    dynamic::OPS,
    ctc::OPS,
    foreach::OPS,
    foreach::OTHER_OPS,
    quantile::OPS,
    core_forms::OPS,
    core_forms::CONV_OPS,
    gamma::OPS,
    frexp::OPS,
    attention_core::OPS,
];
