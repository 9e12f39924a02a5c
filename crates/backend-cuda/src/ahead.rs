//! What is begun before it is needed, each in a thread of its own: libraries are loaded beside the driver's own start, and
//! their first answers, which take a tenth of a second each, are asked for beside the planning of a program.
//!
//! Not here: the libraries themselves (`libraries`, `vendor`). What fails here is said where it is needed.

use std::sync::Arc;

use gpu_codegen::Target;
use gpu_runtime::{Mode, asks_libraries};
use ir_core::DType;
use kernel_ir::{Program, Step};

use crate::dnn::Dnn;
use crate::kept::Shared;
use crate::libraries::{Library, find, load_engines};
use crate::vendor::{Vendor, kept_plans};
use crate::{blas_call, dnn_call};

/// The libraries that a program has a use for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Wanted {
    /// Of cuBLASLt: the factors' dtype in one of the products, and whether they may be rounded to tf32.
    blas: Option<(DType, bool)>,
    dnn: bool,
}

impl Wanted {
    /// Those of a program.
    pub(crate) fn of(program: &Program, target: &Target, mode: Mode) -> Wanted {
        let mut wanted = Wanted::default();
        let mut look = vec![&program.init[..], &program.steps[..]];
        while let Some(steps) = look.pop() {
            for step in steps {
                match step {
                    Step::Matmul(_) | Step::Conv(_) if !asks_libraries(program, step, target, mode) => {}
                    Step::Matmul(k) if blas_call::wants(program, k) => {
                        wanted.blas = Some((program.buffers[k.a.buf].dtype, target.tf32));
                    }
                    Step::Conv(k) => wanted.dnn |= dnn_call::wants(program, k),
                    _ => look.extend(step.nested()),
                }
            }
        }
        wanted
    }

    /// Loads them. `card` is the name and architecture of the device, which need not be open.
    pub(crate) fn load(self, card: String, cache: Shared) {
        // Some kernels of cuDNN are those of the other one.
        if self.blas.is_some() || self.dnn {
            beside(|| drop(find(Library::Blas)));
        }
        if self.dnn {
            beside(move || {
                load_engines();
                if find(Library::Dnn).is_ok() {
                    Dnn::begin(&kept_plans(&card, cache));
                }
            });
        }
    }

    /// Starts them on an open device.
    pub(crate) fn start(self, vendor: &Arc<Vendor>) {
        if let Some((factors, tf32)) = self.blas {
            let vendor = Arc::clone(vendor);
            beside(move || vendor.blas().into_iter().for_each(|blas| blas.begin(factors, tf32)));
        }
    }
}

/// Without a thread it is done when it is needed.
fn beside(work: impl FnOnce() + Send + 'static) {
    let _ = std::thread::Builder::new().spawn(work);
}
