//! Background work, one thread each: libraries are loaded while the driver initializes, and their first answers, which
//! take a tenth of a second each, are requested while a program is planned.
//!
//! Not here: the libraries themselves (`libraries`, `vendor`). Failures here are reported where the result is needed.

use std::sync::Arc;

use gpu_codegen::Target;
use gpu_runtime::{Mode, SharedCache, asks_libraries, convolutions, products};
use ir_core::DType;
use kernel_ir::{Program, Step};

use crate::blas::begin;
use crate::dnn::Dnn;
use crate::libraries::{Library, find, load_engines};
use crate::vendor::{Libraries, plan_cache};

/// The libraries that a program uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RequiredLibraries {
    /// For cuBLASLt: the dtype of the operands of one of the products, and whether they may be rounded to tf32.
    blas: Option<(DType, bool)>,
    dnn: bool,
}

impl RequiredLibraries {
    /// The libraries of a program.
    pub(crate) fn of(program: &Program, target: &Target, mode: Mode) -> RequiredLibraries {
        let mut required = RequiredLibraries::default();
        let mut pending = vec![&program.init[..], &program.steps[..]];
        while let Some(steps) = pending.pop() {
            for step in steps {
                match step {
                    Step::Matmul(_) | Step::Conv(_) if !asks_libraries(program, step, target, mode) => {}
                    Step::Matmul(k) if products::wants(program, k) => {
                        required.blas = Some((program.buffers[k.a.buf].dtype, target.tf32.of_products()));
                    }
                    Step::Conv(k) => required.dnn |= convolutions::wants(program, k),
                    _ => pending.extend(step.nested()),
                }
            }
        }
        required
    }

    /// Loads the libraries. `device_name` is the name and architecture of the device, which need not be open.
    pub(crate) fn load(self, device_name: String, cache: SharedCache) {
        // Some kernels of cuDNN are those of cuBLASLt.
        if self.blas.is_some() || self.dnn {
            in_background(|| drop(find(Library::Blas)));
        }
        if self.dnn {
            in_background(move || {
                load_engines();
                if find(Library::Dnn).is_ok() {
                    Dnn::begin(&plan_cache(&device_name, cache));
                }
            });
        }
    }

    /// Starts them on an open device.
    pub(crate) fn start(self, libraries: &Arc<Libraries>) {
        if let Some((operands, tf32)) = self.blas {
            let libraries = Arc::clone(libraries);
            in_background(move || libraries.blas().into_iter().for_each(|blas| begin(blas, operands, tf32)));
        }
    }
}

/// Runs `work` in a thread. If none can be started, the work is done later, when it is needed.
fn in_background(work: impl FnOnce() + Send + 'static) {
    let _ = std::thread::Builder::new().spawn(work);
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use gpu_codegen::Tf32;

    /// A program with a product within a branch.
    fn nested(dtype: &str) -> Program {
        let text = format!(
            r#"kir 1.3
program "nested"
buffer b0 "a" {dtype}[192, 256]{{256, 1}}+0 input 0
buffer b1 "b" {dtype}[256, 192]{{192, 1}}+0 input 1
buffer b2 "y" {dtype}[192, 192]{{192, 1}}+0 output
buffer b3 "p" bool[]{{}}+0 input 2
input "a" b0
input "b" b1
input "p" b3
output "y" b2[192, 192]{{192, 1}}+0
init:
steps:
cond "branch" b3[]{{}}+0
then:
matmul "m" acc f32
  a b0[192, 256]{{256, 1}}+0
  b b1[256, 192]{{192, 1}}+0
  epilogue [192, 192]
    v0: f32 = template
    v1: {dtype} = cast v0
    v2: {dtype} = store b2[i0, i1], v1
else:
end
plan bytes 0:
"#
        );
        text.parse().unwrap()
    }

    #[test]
    fn libraries_are_required_by_steps_that_ask_them() {
        let hopper = Target::HOPPER;
        let of = |dtype, target: &Target, mode| RequiredLibraries::of(&nested(dtype), target, mode);
        let single = RequiredLibraries { blas: Some((DType::F32, false)), dnn: false };
        assert_eq!(of("f32", &hopper, Mode::Default), single);
        let rounded = Target { tf32: Tf32::Products, ..hopper.clone() };
        assert_eq!(of("f32", &rounded, Mode::Default).blas, Some((DType::F32, true)));
        let convolutions = Target { tf32: Tf32::Convolutions, ..hopper.clone() };
        assert_eq!(of("f32", &convolutions, Mode::Default), single);
        assert_eq!(of("bf16", &hopper, Mode::Default), RequiredLibraries::default());
        assert_eq!(of("bf16", &hopper, Mode::ReduceOverhead).blas, Some((DType::BF16, false)));
    }
}
