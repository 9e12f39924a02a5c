//! hipBLASLt: plans of matrix products and their launch. Signatures and numbers are those of its public headers (`hipblaslt.h`,
//! `hipblas-common.h`, `library_types.h`).
//!
//! Not here: which product a step is, how its matrices lie and which plans are kept (`gpu_runtime::products`).

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

use gpu_runtime::GpuError;
use gpu_runtime::products::{Addresses, Gemm, Key, Kind, MAX_ALGORITHMS, Matrix, Products, Scalars};
use ir_core::DType;

use crate::api::{Opaque, done, table};
use crate::libraries::{self, Library};
use crate::vendor::StreamContext;

/// Bytes of memory that the library may use beside operands, as PyTorch gives it.
pub(crate) const WORKSPACE: u64 = 32 << 20;

/// Attributes of a product's description.
const FIRST_TURNED: c_int = 0;
const SECOND_TURNED: c_int = 1;
const EPILOGUE: c_int = 2;
const BIAS: c_int = 3;
const BIAS_TYPE: c_int = 4;
/// Of a matrix.
const BATCH_COUNT: c_int = 0;
const BATCH_STEP: c_int = 1;
/// Of what is asked for.
const MOST_WORKSPACE: c_int = 1;
/// `hipblasOperation_t`: a matrix as it is, and transposed.
const AS_IT_IS: i32 = 111;
const TRANSPOSED: i32 = 112;
/// `hipblasComputeType_t`.
const IN_F32: c_int = 2;
const IN_TF32: c_int = 6;
const IN_F64: c_int = 7;

/// An algorithm: bytes of the library's own.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct Algorithm {
    own: [u8; 16],
    most_workspace: usize,
}

/// A proposal of the library's.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct Proposal {
    algorithm: Algorithm,
    workspace: usize,
    state: c_int,
    waves: f32,
    reserved: [c_int; 4],
}

table! {
    /// The functions of the library.
    Functions of "hipBLASLt (libhipblaslt)";
    create = "hipblasLtCreate"(*mut Opaque),
    destroy = "hipblasLtDestroy"(Opaque),
    layout_create = "hipblasLtMatrixLayoutCreate"(*mut Opaque, c_int, u64, u64, i64),
    layout_destroy = "hipblasLtMatrixLayoutDestroy"(Opaque),
    layout_set = "hipblasLtMatrixLayoutSetAttribute"(Opaque, c_int, *const c_void, usize),
    product_create = "hipblasLtMatmulDescCreate"(*mut Opaque, c_int, c_int),
    product_destroy = "hipblasLtMatmulDescDestroy"(Opaque),
    product_set = "hipblasLtMatmulDescSetAttribute"(Opaque, c_int, *const c_void, usize),
    wish_create = "hipblasLtMatmulPreferenceCreate"(*mut Opaque),
    wish_destroy = "hipblasLtMatmulPreferenceDestroy"(Opaque),
    wish_set = "hipblasLtMatmulPreferenceSetAttribute"(Opaque, c_int, *const c_void, usize),
    propose = "hipblasLtMatmulAlgoGetHeuristic"(
        Opaque, Opaque, Opaque, Opaque, Opaque, Opaque, Opaque, c_int, *mut Proposal, *mut c_int
    ),
    multiply = "hipblasLtMatmul"(
        Opaque, Opaque, *const c_void, *const c_void, Opaque, *const c_void, Opaque, *const c_void,
        *const c_void, Opaque, *mut c_void, Opaque, *const Algorithm, *mut c_void, usize, Opaque
    ),
    ;
}

/// The library on the stream of a device.
pub(crate) struct Blas {
    functions: &'static Functions,
    handle: Opaque,
    context: StreamContext,
    workspace: u64,
}

// SAFETY: the handle may be used from several threads; descriptors are written by one launch at a time.
unsafe impl Send for Blas {}
// SAFETY: hipBLASLt's handle may be used from several threads at once; a descriptor is written by one launch at a time.
unsafe impl Sync for Blas {}

/// A product that is ready for launch: descriptors and an algorithm.
pub(crate) struct Plan {
    functions: &'static Functions,
    product: Opaque,
    layouts: [Opaque; 4],
    wish: Opaque,
    algorithm: Algorithm,
    workspace: usize,
}

// SAFETY: descriptors are memory of the host; they are written by one launch at a time.
unsafe impl Send for Plan {}
// SAFETY: a plan is written by one launch at a time and only read otherwise.
unsafe impl Sync for Plan {}

impl Drop for Plan {
    fn drop(&mut self) {
        // SAFETY: made by the library, destroyed once.
        unsafe {
            for layout in self.layouts.iter().filter(|l| !l.is_null()) {
                let _ = (self.functions.layout_destroy)(*layout);
            }
            if !self.wish.is_null() {
                let _ = (self.functions.wish_destroy)(self.wish);
            }
            let _ = (self.functions.product_destroy)(self.product);
        }
    }
}

fn functions() -> Result<&'static Functions, GpuError> {
    static FUNCTIONS: std::sync::OnceLock<Result<Functions, GpuError>> = std::sync::OnceLock::new();
    let load = || libraries::load(Library::Blas).and_then(|(library, path)| Functions::of(library, path));
    FUNCTIONS.get_or_init(load).as_ref().map_err(Clone::clone)
}

/// `hipDataType`.
fn number_type(dtype: DType) -> Result<c_int, GpuError> {
    match dtype {
        DType::F32 => Ok(0),
        DType::F64 => Ok(1),
        DType::F16 => Ok(2),
        DType::BF16 => Ok(14),
        other => Err(GpuError::Malformed(format!("hipBLASLt has no products of {other}"))),
    }
}

/// What is computed in, and the type of the operands of both sides.
fn compute(kind: &Kind) -> (c_int, c_int) {
    match kind.operands {
        DType::F64 => (IN_F64, 1),
        DType::F32 if kind.tf32 => (IN_TF32, 0),
        _ => (IN_F32, 0),
    }
}

/// `hipblasLtEpilogue_t`.
fn epilogue(kind: &Kind) -> c_int {
    match (kind.bias, kind.relu) {
        (false, false) => 1,
        (false, true) => 2,
        (true, false) => 4,
        (true, true) => 6,
    }
}

impl Blas {
    /// Starts the library on a device's stream.
    ///
    /// # Errors
    /// The library is missing, what it says, no memory for its workspace.
    pub(crate) fn new(context: StreamContext) -> Result<Blas, GpuError> {
        let functions = functions()?;
        context.enter()?;
        let mut handle = null_mut();
        // SAFETY: the handle is written to a local.
        done("hipblasLtCreate", unsafe { (functions.create)(&mut handle) })?;
        Ok(Blas {
            functions,
            handle,
            context,
            // Kept for the life of the process: recorded work has its address.
            workspace: context.allocate(WORKSPACE)?,
        })
    }

    fn set<T>(&self, plan: &Plan, name: c_int, value: T) -> Result<(), GpuError> {
        let value = (&raw const value).cast::<c_void>();
        // SAFETY: the descriptor lives; the library copies as many bytes as it is told.
        let status = unsafe { (self.functions.product_set)(plan.product, name, value, size_of::<T>()) };
        done("hipblasLtMatmulDescSetAttribute", status)
    }

    /// Describes the matrices of a product.
    fn describe(&self, plan: &mut Plan, gemm: &Gemm, operands: c_int, out: c_int) -> Result<(), GpuError> {
        let sides = [
            (operands, gemm.rows, gemm.depth, gemm.first),
            (operands, gemm.depth, gemm.cols, gemm.second),
            (out, gemm.rows, gemm.cols, gemm.addend.unwrap_or(gemm.out)),
            (out, gemm.rows, gemm.cols, gemm.out),
        ];
        for (slot, (ty, rows, cols, Matrix { transposed, ld, step })) in plan.layouts.iter_mut().zip(sides) {
            let (rows, cols) = if transposed { (cols, rows) } else { (rows, cols) };
            let (count, step) = (gemm.batch as i32, step);
            // SAFETY: the handle is written to a field; the library copies as many bytes of an attribute as it is told.
            unsafe {
                let made = (self.functions.layout_create)(slot, ty, rows as u64, cols as u64, ld);
                done("hipblasLtMatrixLayoutCreate", made)?;
                let set = self.functions.layout_set;
                let counted = set(*slot, BATCH_COUNT, (&raw const count).cast(), size_of::<i32>());
                done("hipblasLtMatrixLayoutSetAttribute", counted)?;
                let stepped = set(*slot, BATCH_STEP, (&raw const step).cast(), size_of::<i64>());
                done("hipblasLtMatrixLayoutSetAttribute", stepped)?;
            }
        }
        Ok(())
    }

    /// Asks the library for algorithms and keeps the one of the key's number, or the last there is.
    fn choose(&self, plan: &mut Plan, algorithm: usize) -> Result<(), GpuError> {
        let (mut found, mut count) = ([Proposal::default(); MAX_ALGORITHMS], 0);
        let wanted = (algorithm + 1).min(MAX_ALGORITHMS) as c_int;
        let [a, b, c, d] = plan.layouts;
        // SAFETY: every descriptor was made above; the array has room for as many results as are asked for.
        unsafe {
            done("hipblasLtMatmulPreferenceCreate", (self.functions.wish_create)(&mut plan.wish))?;
            let most = WORKSPACE;
            let most = (&raw const most).cast::<c_void>();
            let set = (self.functions.wish_set)(plan.wish, MOST_WORKSPACE, most, size_of::<u64>());
            done("hipblasLtMatmulPreferenceSetAttribute", set)?;
            let propose = self.functions.propose;
            let (into, told) = (found.as_mut_ptr(), &mut count);
            let asked = propose(self.handle, plan.product, a, b, c, d, plan.wish, wanted, into, told);
            done("hipblasLtMatmulAlgoGetHeuristic", asked)?;
        }
        let mut good = found[..count.clamp(0, wanted) as usize].iter().filter(|p| p.state == 0);
        let Some(chosen) = good.next_back() else {
            let what = "no algorithm for the product".into();
            return Err(GpuError::Driver { call: "hipblasLtMatmulAlgoGetHeuristic", what });
        };
        (plan.algorithm, plan.workspace) = (chosen.algorithm, chosen.workspace);
        Ok(())
    }
}

impl Products for Blas {
    const NAME: &'static str = "hipblaslt";
    type Plan = Plan;

    fn enter(&self) -> Result<(), GpuError> {
        self.context.enter()
    }

    fn make(&self, key: &Key, at: &Addresses) -> Result<Plan, GpuError> {
        let Key { gemm, kind, algorithm, .. } = key;
        let (operands, out) = (number_type(kind.operands)?, number_type(kind.out)?);
        let ((compute, scale), mut product) = (compute(kind), null_mut());
        // SAFETY: the handle is written to a local.
        let made = unsafe { (self.functions.product_create)(&mut product, compute, scale) };
        done("hipblasLtMatmulDescCreate", made)?;
        // From here on `plan` owns what is made.
        let mut plan = Plan {
            functions: self.functions,
            product,
            layouts: [null_mut(); 4],
            wish: null_mut(),
            algorithm: Algorithm::default(),
            workspace: 0,
        };
        let turn = |m: Matrix| if m.transposed { TRANSPOSED } else { AS_IT_IS };
        self.set(&plan, FIRST_TURNED, turn(gemm.first))?;
        self.set(&plan, SECOND_TURNED, turn(gemm.second))?;
        self.set(&plan, EPILOGUE, epilogue(kind))?;
        if kind.bias {
            self.set(&plan, BIAS_TYPE, out)?;
            self.set(&plan, BIAS, at.bias)?;
        }
        self.describe(&mut plan, gemm, operands, out)?;
        self.choose(&mut plan, *algorithm)?;
        Ok(plan)
    }

    unsafe fn launch(&self, plan: &Plan, key: &Key, alpha: f64, at: &Addresses) -> Result<(), GpuError> {
        let Key { gemm, kind, .. } = key;
        if kind.bias {
            self.set(plan, BIAS, at.bias)?;
        }
        let scalars = Scalars::new(key, alpha);
        let addend = if gemm.addend.is_some() { at.addend } else { at.out };
        let pointer = |address: u64| address as *const c_void;
        let [a, b, c, d] = plan.layouts;
        // SAFETY: the caller's promise; descriptors live through the call, and the scalars are read before it returns.
        #[rustfmt::skip]
        let status = unsafe {
            (self.functions.multiply)(
                self.handle, plan.product, scalars.pointer(0), pointer(at.first), a, pointer(at.second), b,
                scalars.pointer(1), pointer(addend), c, at.out as *mut c_void, d,
                &plan.algorithm, self.workspace as *mut c_void, plan.workspace, self.context.stream.0,
            )
        };
        done("hipblasLtMatmul", status)
    }
}

impl Drop for Blas {
    fn drop(&mut self) {
        // SAFETY: made in `new`, destroyed once.
        let _ = unsafe { (self.functions.destroy)(self.handle) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The sizes that C gives them.
    #[test]
    fn proposals_are_laid_out_as_in_the_header() {
        assert_eq!((size_of::<Algorithm>(), size_of::<Proposal>()), (24, 56));
        assert_eq!(std::mem::offset_of!(Proposal, state), 32);
    }
}
