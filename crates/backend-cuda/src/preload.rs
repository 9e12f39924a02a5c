//! What is begun before it is needed, each in a thread of its own: libraries are loaded beside the driver's own start, and
//! their first answers, which take a tenth of a second each, are asked for beside the planning of a program.
//!
//! Not here: the libraries themselves (`libraries`, `vendor`). What fails here is said where it is needed.

use std::sync::Arc;

use gpu_codegen::Target;
use gpu_runtime::{Mode, asks_libraries};
use ir_core::DType;
use kernel_ir::{Program, Step};

use crate::answer_cache::SharedCache;
use crate::dnn::Dnn;
use crate::libraries::{Library, find, load_engines};
use crate::vendor::{Vendor, plan_cache};
use crate::{blas_call, dnn_call};

/// The libraries that a program has a use for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RequiredLibraries {
    /// Of cuBLASLt: the factors' dtype in one of the products, and whether they may be rounded to tf32.
    blas: Option<(DType, bool)>,
    dnn: bool,
}

impl RequiredLibraries {
    /// Those of a program.
    pub(crate) fn of(program: &Program, target: &Target, mode: Mode) -> RequiredLibraries {
        let mut required = RequiredLibraries::default();
        let mut pending = vec![&program.init[..], &program.steps[..]];
        while let Some(steps) = pending.pop() {
            for step in steps {
                match step {
                    Step::Matmul(_) | Step::Conv(_) if !asks_libraries(program, step, target, mode) => {}
                    Step::Matmul(k) if blas_call::wants(program, k) => {
                        required.blas = Some((program.buffers[k.a.buf].dtype, target.tf32));
                    }
                    Step::Conv(k) => required.dnn |= dnn_call::wants(program, k),
                    _ => pending.extend(step.nested()),
                }
            }
        }
        required
    }

    /// Loads them. `device_name` is the name and architecture of the device, which need not be open.
    pub(crate) fn load(self, device_name: String, cache: SharedCache) {
        // Some kernels of cuDNN are those of the other one.
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
    pub(crate) fn start(self, vendor: &Arc<Vendor>) {
        if let Some((factors, tf32)) = self.blas {
            let vendor = Arc::clone(vendor);
            in_background(move || vendor.blas().into_iter().for_each(|blas| blas.begin(factors, tf32)));
        }
    }
}

/// Without a thread it is done when it is needed.
fn in_background(work: impl FnOnce() + Send + 'static) {
    let _ = std::thread::Builder::new().spawn(work);
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    /// A product within a branch.
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
    fn libraries_are_wanted_by_what_asks_them() {
        let hopper = Target::HOPPER;
        let of = |dtype, target: &Target, mode| RequiredLibraries::of(&nested(dtype), target, mode);
        let single = RequiredLibraries { blas: Some((DType::F32, false)), dnn: false };
        assert_eq!(of("f32", &hopper, Mode::Default), single);
        let rounded = Target { tf32: true, ..hopper.clone() };
        assert_eq!(of("f32", &rounded, Mode::Default).blas, Some((DType::F32, true)));
        assert_eq!(of("bf16", &hopper, Mode::Default), RequiredLibraries::default());
        assert_eq!(of("bf16", &hopper, Mode::ReduceOverhead).blas, Some((DType::BF16, false)));
    }
}
