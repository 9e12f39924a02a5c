//! The candidates of a product or convolution as the cost model sees them: the work of every form of tile that is tried, and
//! of a library's kernels.
//!
//! Not here: steps whose first candidates are no tiles (products of a few rows, groups of few channels), which have no work
//! and stay with the rule.

use kernel_ir::{Program, Step};

use super::Work;
use crate::product::tile::Product;
use crate::product::tile_rule::{forms, unit};
use crate::product::tile_work::{of_form, of_library};
use crate::{Target, conv, product};

/// Kernels of a library's candidate at most that are told apart: a call, what comes before and what comes behind.
const MOST_KERNELS: usize = 4;

/// The work of a step's candidates.
#[derive(Clone, Debug, PartialEq)]
pub struct StepWork {
    generated: Vec<(String, Work)>,
    /// By the number of kernels, from 1.
    library: Vec<Work>,
}

impl StepWork {
    /// That of a step; `None` for other steps than products and convolutions by tiles, and where a form has no work.
    pub fn of(program: &Program, step: &Step, target: &Target) -> Option<StepWork> {
        match step {
            Step::Matmul(k) => StepWork::of_product(&product::matmul::tiled(program, k)?, false, target),
            Step::Conv(k) => {
                let window = k.weight.sizes[2..].iter().any(|n| *n != ir_core::SymExpr::ONE);
                StepWork::of_product(&conv::tiled(program, k, target)?, window, target)
            }
            _ => None,
        }
    }

    fn of_product(product: &Product<'_>, window: bool, target: &Target) -> Option<StepWork> {
        let unit = unit(product.dtype, target)?;
        let forms = forms(product, target);
        let one = |form| Some((crate::product::tile_text::Form::name(form), of_form(product, form, target)?));
        let generated = forms.iter().map(one).collect::<Option<Vec<_>>>()?;
        let library = (1..=MOST_KERNELS).map(|kernels| of_library(product, unit, kernels, window, target));
        Some(StepWork { generated, library: library.collect() })
    }

    /// The work of generated candidates with their names in tables.
    pub fn generated(&self) -> &[(String, Work)] {
        &self.generated
    }

    /// The work of a library's candidate of so many kernels, those around its call included.
    pub fn library(&self, kernels: usize) -> &Work {
        &self.library[kernels.clamp(1, MOST_KERNELS) - 1]
    }
}
