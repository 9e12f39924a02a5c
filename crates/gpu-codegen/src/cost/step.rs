//! The candidates of a product or convolution as the cost model sees them: the work of every form of tile that is tried, and
//! of a library's kernels where such were measured.
//!
//! Not here: steps whose first candidates are no tiles (products of a few rows, groups of few channels), which have no work
//! and stay with the rule.

use std::fmt::Write as _;

use ir_core::SymExpr;
use kernel_ir::{Conv, Program, Step};

use super::Work;
use crate::product::tile::{Axis, Product, hint};
use crate::product::tile_rule::{forms, unit};
use crate::product::tile_text::{Form, Unit};
use crate::product::tile_work::{epilogue_alignment, of_epilogue, of_form, of_library};
use crate::{Target, conv, product};

/// Kernels of a library's candidate at most that are told apart: a call, what comes before and what comes behind.
const MOST_KERNELS: usize = 4;

/// The work of a step's candidates.
#[derive(Clone, Debug, PartialEq)]
pub struct StepWork {
    class: String,
    generated: Vec<(String, Work)>,
    /// By the number of kernels, from 1; empty where a library's kernels are not known.
    library: Vec<Work>,
}

impl StepWork {
    /// That of a step; `None` for other steps than products and convolutions by tiles, and where a form has no work.
    pub fn of(program: &Program, step: &Step, target: &Target) -> Option<StepWork> {
        match step {
            Step::Matmul(k) => {
                let product = product::matmul::tiled(program, k)?;
                StepWork::of_product(
                    &product,
                    &|kernels, unit| of_library(&product, unit, kernels, false, target),
                    target,
                )
            }
            Step::Conv(k) => {
                let product = conv::tiled(program, k, target)?;
                let library = |kernels, unit| match is_forward(k) {
                    true => of_library(&product, unit, kernels, true, target),
                    false => None,
                };
                StepWork::of_product(&product, &library, target)
            }
            _ => None,
        }
    }

    fn of_product(
        product: &Product<'_>,
        library: &dyn Fn(usize, Unit) -> Option<Work>,
        target: &Target,
    ) -> Option<StepWork> {
        let unit = unit(product, target)?;
        let forms = forms(product, target);
        let one = |form: &Form| Some((form.name(), of_form(product, form, target)?));
        let generated = forms.iter().map(one).collect::<Option<Vec<_>>>()?;
        let library = (1..=MOST_KERNELS).map_while(|kernels| library(kernels, unit)).collect();
        Some(StepWork { class: class(product), generated, library })
    }

    /// A text that is the same for steps whose candidates do the same: dtype, sizes, strides and what the epilogue does. Sizes
    /// that are symbols count as the next power of two of what they were at capture.
    pub fn class(&self) -> &str {
        &self.class
    }

    /// The work of generated candidates with their names in tables.
    pub fn generated(&self) -> &[(String, Work)] {
        &self.generated
    }

    /// The work of a library's candidate of so many kernels, those around its call included; `None` where such were not
    /// measured.
    pub fn library(&self, kernels: usize) -> Option<&Work> {
        self.library.get(kernels.clamp(1, MOST_KERNELS) - 1)
    }
}

/// See [`StepWork::class`].
fn class(product: &Product<'_>) -> String {
    let size = |e: &SymExpr| match e.as_const() {
        Some(n) => n,
        None => (hint(product.program, e).max(1) as u64).next_power_of_two() as i64,
    };
    let mut text = product.dtype.to_string();
    for axes in [&product.batch, &product.rows, &product.cols, &product.inner] {
        text.push_str(" |");
        for Axis { extent, steps: [left, right], space, .. } in axes {
            // Writing to a string cannot fail.
            let _ = write!(text, " {} {} {}", size(extent), size(left), size(right));
            if let Some((dimension, step)) = space {
                let _ = write!(text, " space {dimension} {step}");
            }
        }
    }
    if let Some(groups) = product.groups {
        let _ = write!(text, " | groups {}", groups.along.name());
    }
    let (bytes, operations) = of_epilogue(product.program, product.epilogue);
    let _ = write!(text, " | aligned {} | epilogue {bytes} {operations}", epilogue_alignment(product));
    text
}

/// Whether a convolution is a network's own with channels last, for which libraries were measured: they compute gradients,
/// groups and other layouts by other kernels.
fn is_forward(k: &Conv) -> bool {
    let last = |strides: &[SymExpr]| strides.get(1) == Some(&SymExpr::ONE);
    !k.transposed && k.groups == 1 && last(&k.input.strides) && last(&k.weight.strides)
}
