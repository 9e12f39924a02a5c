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

mod batches;
pub(crate) mod common;
mod complex_numbers;
mod distributed;
mod gradients;
mod indexing;
mod matrices;
mod networks;
mod pointwise;
mod primitive;
mod quantized;
mod random;
mod reductions;
mod shapes;
mod shardings;
mod signals;

pub use networks::attention::{LONGEST_ATTENTION, has_long_rows};
pub use primitive::fourier::run_fourier;
pub use primitive::linalg_run::{LinalgRunError, run_linalg};
pub(crate) use primitive::reduce::reduced_dims;
pub use primitive::shape::reshape_index;

/// Every family's entries.
pub const FAMILIES: &[&[OpDef]] = &[
    // The closed set.
    primitive::scalar::OPS,
    primitive::shape::OPS,
    primitive::reduce::OPS,
    primitive::template::OPS,
    primitive::integer::OPS,
    primitive::weights::OPS,
    primitive::grouped::OPS,
    primitive::value::OPS,
    primitive::movement::OPS,
    primitive::cover::OPS,
    primitive::index::OPS,
    primitive::linalg::OPS,
    primitive::sort::OPS,
    primitive::fourier::OPS,
    primitive::special::OPS,
    primitive::collective::OPS,
    // Composites.
    pointwise::activation::OPS,
    networks::attention::OPS,
    networks::batch_norm::OPS,
    pointwise::binary::OPS,
    pointwise::compare::OPS,
    complex_numbers::numbers::OPS,
    networks::conv::CONV1D_OPS,
    networks::conv::CONV2D_OPS,
    networks::conv::CONV3D_OPS,
    networks::conv::OPS,
    pointwise::convert::OPS,
    shapes::creation::OPS,
    reductions::cumulative::OPS,
    shapes::diagonal::OPS,
    networks::dropout::OPS,
    networks::kept::OPS,
    matrices::einsum::OPS,
    indexing::embedding_bag::OPS,
    networks::expert::OPS,
    signals::fft::COMPLEX_OPS,
    signals::fft::OPS,
    signals::fft::REAL_OPS,
    networks::fold::OPS,
    networks::fractional_pool::OPS,
    networks::grid::OPS,
    indexing::index::OPS,
    networks::iterated::OPS,
    shapes::join::OPS,
    matrices::linalg::OPS,
    matrices::linalg_solve::OPS,
    matrices::linalg_spectrum::OPS,
    networks::loss::OPS,
    networks::loss_class::OPS,
    matrices::matmul::OPS,
    matrices::matrix_norm::OPS,
    matrices::scaled::OPS,
    networks::norm::OPS,
    shapes::pad::OPS,
    networks::pool::OPS,
    random::distributions::OPS,
    random::fill::OPS,
    reductions::reduction::OPS,
    networks::rnn::OPS,
    networks::cudnn_rnn::OPS,
    indexing::sampling::OPS,
    indexing::scatter::OPS,
    reductions::segment::OPS,
    indexing::select::OPS,
    indexing::slice::OPS,
    reductions::softmax::OPS,
    indexing::sort::OPS,
    pointwise::special::OPS,
    reductions::statistics::OPS,
    pointwise::unary::OPS,
    indexing::unique::OPS,
    networks::upsample::EXACT_OPS,
    networks::upsample::NEAREST_OPS,
    networks::upsample::SMOOTH_OPS,
    shapes::view::OPS,
    reductions::mode::OPS,
    shapes::sequence::OPS,
    gradients::backward::OPS,
    gradients::reverse::OPS,
    indexing::unique_dim::OPS,
    reductions::histogram::OPS,
    signals::signal::OPS,
    shapes::gradient::OPS,
    indexing::dynamic::OPS,
    networks::ctc::OPS,
    pointwise::foreach::OPS,
    pointwise::foreach::OTHER_OPS,
    reductions::quantile::OPS,
    shapes::core_forms::OPS,
    shapes::core_forms::CONV_OPS,
    pointwise::gamma::OPS,
    pointwise::frexp::OPS,
    networks::attention_core::OPS,
    distributed::functional::OPS,
    quantized::affine::OPS,
    quantized::choose::OPS,
    quantized::decomposed::OPS,
    quantized::packed::OPS,
];
