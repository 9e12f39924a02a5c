//! Weights for measuring, where nobody has said which.

use ferroflux::{Recipe, RecipeSource, Weight};

use crate::golden::recipe;

/// Small, the same every time, and such that norms neither divide by zero nor blow up.
pub(crate) struct SyntheticWeights;

impl RecipeSource for SyntheticWeights {
    /// Counters and positions are zero: an index that is valid everywhere.
    fn recipe(&self, weight: &Weight) -> Option<Recipe> {
        let last = weight.name.rsplit('.').next().unwrap_or_default();
        let around_one = weight.sizes.len() == 1 && (last == "weight" || last.ends_with("_var"));
        Some(recipe(weight, 0.05, if around_one { 1.0 } else { 0.0 }))
    }
}
