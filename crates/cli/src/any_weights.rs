//! Weights for measuring, where nobody has said which.

use ferroflux::golden::by_formula;
use ferroflux::{Tensor, Weight, WeightSource};

/// Small, the same every time, and such that norms neither divide by zero nor blow up.
pub(crate) struct AnyWeights;

impl WeightSource for AnyWeights {
    fn tensor(&self, weight: &Weight) -> Result<Option<Tensor>, String> {
        let last = weight.name.rsplit('.').next().unwrap_or_default();
        let around_one = weight.sizes.len() == 1 && (last == "weight" || last.ends_with("_var"));
        let made = match weight.dtype.is_inexact() {
            // Counters and positions: an index that is valid everywhere.
            false => Tensor::zeros(weight.dtype, &weight.sizes),
            true => by_formula(weight, 0.05, if around_one { 1.0 } else { 0.0 }),
        };
        made.map(Some).map_err(|e| e.to_string())
    }
}
