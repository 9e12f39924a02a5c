//! Quantization of a captured graph: which layers have weights that can be quantized ([`layers`]), what of their inputs is observed
//! ([`Observer`]), how weights become integers ([`QuantizedWeight`]), and the graph with PyTorch's operators of quantized networks
//! ([`rewrite`]). Such a graph is what PT2E quantization writes, so everything that reads those reads it.
//!
//! Not here: running a graph for calibration and choosing layers by their errors (the facade), and what makes products of integers
//! of the result (`passes`).

mod layers;
mod observer;
mod rewrite;
mod weight;

pub use layers::{Layer, layers};
pub use observer::{Affine, Observation, Observer};
pub use rewrite::{Choice, Rewritten, rewrite};
pub use weight::{QuantizedWeight, WeightForm};
