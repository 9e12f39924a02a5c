//! rocBLAS: matrix products where hipBLASLt is missing or proposes nothing. It chooses its algorithm itself and has no epilogue but
//! an addend. Signatures and numbers are those of its public headers (`rocblas-functions.h`, `rocblas-auxiliary.h`,
//! `rocblas-types.h`).
//!
//! Not here: which product a step is, how its matrices lie and which plans are kept (`gpu_runtime::products`).

use std::ffi::{c_int, c_void};
use std::path::{Path, PathBuf};
use std::ptr::null_mut;
use std::sync::OnceLock;

use gpu_runtime::GpuError;
use gpu_runtime::products::{Addresses, Key, Matrix, Products, Scalars};
use ir_core::DType;

use crate::api::{Opaque, done, narrow, table};
use crate::blas::WORKSPACE;
use crate::libraries::{self, Library};
use crate::vendor::StreamContext;

/// `rocblas_operation`: a matrix as it is, and transposed.
const AS_IT_IS: c_int = 111;
const TRANSPOSED: c_int = 112;
/// `rocblas_atomics_not_allowed`: sums are added in a fixed order.
const NO_ATOMICS: c_int = 0;
/// `rocblas_math_mode`: float32 as it is, and rounded to xf32.
const PRECISE: c_int = 0;
const ROUNDED: c_int = 1;
/// `rocblas_gemm_algo_standard`.
const STANDARD: c_int = 0;

table! {
    /// The functions of the library.
    Functions of "rocBLAS (librocblas)";
    create = "rocblas_create_handle"(*mut Opaque),
    destroy = "rocblas_destroy_handle"(Opaque),
    set_stream = "rocblas_set_stream"(Opaque, Opaque),
    set_atomics = "rocblas_set_atomics_mode"(Opaque, c_int),
    multiply = "rocblas_gemm_strided_batched_ex"(
        Opaque, c_int, c_int, c_int, c_int, c_int, *const c_void,
        *const c_void, c_int, c_int, i64,
        *const c_void, c_int, c_int, i64, *const c_void,
        *const c_void, c_int, c_int, i64,
        *mut c_void, c_int, c_int, i64,
        c_int, c_int, c_int, i32, u32
    ),
    ;
    set_math = "rocblas_set_math_mode"(Opaque, c_int),
    set_workspace = "rocblas_set_workspace"(Opaque, *mut c_void, usize),
}

/// The library on the stream of a device.
pub(crate) struct RocBlas {
    functions: &'static Functions,
    handle: Opaque,
    context: StreamContext,
}

// SAFETY: the handle is made and destroyed by one owner and used by one launch at a time.
unsafe impl Send for RocBlas {}
// SAFETY: `ProductLibrary` launches one product at a time; making a plan does not use the handle.
unsafe impl Sync for RocBlas {}

/// The numbers of a product as the library takes them.
pub(crate) struct Plan {
    rows: c_int,
    cols: c_int,
    depth: c_int,
    batch: c_int,
    /// Leading dimensions of the factors, the addend and the result.
    leading: [c_int; 4],
    /// Types of the operands, of the result and of the sums.
    types: [c_int; 3],
}

fn functions() -> Result<(&'static Functions, &'static Path), GpuError> {
    static FUNCTIONS: OnceLock<Result<(Functions, &'static Path), GpuError>> = OnceLock::new();
    let load = || {
        let (library, path) = libraries::load(Library::RocBlas)?;
        Ok((Functions::of(library, path)?, path.as_path()))
    };
    FUNCTIONS.get_or_init(load).as_ref().map(|(functions, path)| (functions, *path)).map_err(Clone::clone)
}

/// Whether there are kernels for an architecture. The library ends the process that multiplies on a device for which it finds none,
/// so it is not asked then: they are files that name the architecture, in a folder beside the library.
fn has_kernels(path: &Path, architecture: &str) -> Result<(), GpuError> {
    let named = std::env::var_os("ROCBLAS_TENSILE_LIBPATH").filter(|p| !p.is_empty()).map(PathBuf::from);
    let located = libraries::locate(Library::RocBlas).ok();
    let beside = [Some(path), located.as_deref()].into_iter().flatten().filter_map(Path::parent);
    let folders: Vec<PathBuf> = match named {
        Some(folder) => vec![folder],
        None => beside.map(|folder| folder.join("rocblas/library")).collect(),
    };
    let names = |folder: &PathBuf| {
        let files = std::fs::read_dir(folder).into_iter().flatten().flatten();
        files.map(|file| file.file_name()).any(|name| name.to_string_lossy().contains(architecture))
    };
    if folders.iter().any(names) {
        return Ok(());
    }
    let looked: Vec<String> = folders.iter().map(|folder| folder.display().to_string()).collect();
    Err(GpuError::Missing {
        library: "a kernel of rocBLAS for this device",
        looked: format!("files with `{architecture}` in their names in {}", looked.join(", ")),
        advice: "install a rocBLAS that was built for it, or set ROCBLAS_TENSILE_LIBPATH to its kernels",
    })
}

/// `rocblas_datatype`.
fn number_type(dtype: DType) -> Result<c_int, GpuError> {
    match dtype {
        DType::F16 => Ok(150),
        DType::F32 => Ok(151),
        DType::F64 => Ok(152),
        DType::BF16 => Ok(168),
        other => Err(GpuError::Malformed(format!("rocBLAS has no products of {other}"))),
    }
}

impl RocBlas {
    /// Starts the library on a device's stream.
    ///
    /// # Errors
    /// The library is missing, or its kernels for the architecture; what it says; no memory for its workspace.
    pub(crate) fn new(context: StreamContext, architecture: &str) -> Result<RocBlas, GpuError> {
        let (functions, path) = functions()?;
        has_kernels(path, architecture)?;
        context.enter()?;
        let mut handle = null_mut();
        // SAFETY: the handle is written to a local.
        done("rocblas_create_handle", unsafe { (functions.create)(&mut handle) })?;
        let blas = RocBlas { functions, handle, context };
        // SAFETY: the handle was just made; the stream lives as long as the process.
        unsafe {
            done("rocblas_set_stream", (functions.set_stream)(handle, context.stream.0))?;
            done("rocblas_set_atomics_mode", (functions.set_atomics)(handle, NO_ATOMICS))?;
        }
        if let Some(set) = functions.set_workspace {
            // Kept for the life of the process, since recorded work has its address: the library allocates nothing itself.
            let workspace = context.allocate(WORKSPACE)? as *mut c_void;
            // SAFETY: the handle lives, and the memory has as many bytes.
            done("rocblas_set_workspace", unsafe { set(handle, workspace, WORKSPACE as usize) })?;
        }
        Ok(blas)
    }
}

impl Products for RocBlas {
    const NAME: &'static str = "rocblas";
    /// The library chooses by itself.
    const ALGORITHMS: usize = 1;
    type Plan = Plan;

    fn enter(&self) -> Result<(), GpuError> {
        self.context.enter()
    }

    fn make(&self, key: &Key, _at: &Addresses) -> Result<Plan, GpuError> {
        let Key { gemm, kind, .. } = key;
        if kind.bias || kind.relu {
            let what = "no product with a bias or a ReLU".into();
            return Err(GpuError::Driver { call: "rocblas_gemm_strided_batched_ex", what });
        }
        let sums = if kind.operands == DType::F64 { DType::F64 } else { DType::F32 };
        let narrow = |size: i64| narrow("rocblas_gemm_strided_batched_ex", size);
        let ld = |matrix: Matrix| narrow(matrix.ld);
        let addend = gemm.addend.unwrap_or(gemm.out);
        Ok(Plan {
            rows: narrow(gemm.rows)?,
            cols: narrow(gemm.cols)?,
            depth: narrow(gemm.depth)?,
            batch: narrow(gemm.batch)?,
            leading: [ld(gemm.first)?, ld(gemm.second)?, ld(addend)?, ld(gemm.out)?],
            types: [number_type(kind.operands)?, number_type(kind.out)?, number_type(sums)?],
        })
    }

    unsafe fn launch(&self, plan: &Plan, key: &Key, alpha: f64, at: &Addresses) -> Result<(), GpuError> {
        let Key { gemm, kind, .. } = key;
        let scalars = Scalars::new(key, alpha);
        let turn = |m: Matrix| if m.transposed { TRANSPOSED } else { AS_IT_IS };
        let (addend, c) = gemm.addend.map_or((at.out, gemm.out), |addend| (at.addend, addend));
        let pointer = |address: u64| address as *const c_void;
        let ([lda, ldb, ldc, ldd], [operands, out, sums]) = (plan.leading, plan.types);
        let multiply = self.functions.multiply;
        // SAFETY: the caller's promise; the scalars are read before the call returns, since the handle reads them on the host.
        unsafe {
            if let Some(set) = self.functions.set_math {
                let mode = if kind.tf32 { ROUNDED } else { PRECISE };
                done("rocblas_set_math_mode", set(self.handle, mode))?;
            }
            // A line for each matrix.
            #[rustfmt::skip]
            let status = multiply(
                self.handle, turn(gemm.first), turn(gemm.second), plan.rows, plan.cols, plan.depth, scalars.pointer(0),
                pointer(at.first), operands, lda, gemm.first.step,
                pointer(at.second), operands, ldb, gemm.second.step, scalars.pointer(1),
                pointer(addend), out, ldc, c.step,
                at.out as *mut c_void, out, ldd, gemm.out.step,
                plan.batch, sums, STANDARD, 0, 0,
            );
            done("rocblas_gemm_strided_batched_ex", status)
        }
    }
}

impl Drop for RocBlas {
    fn drop(&mut self) {
        // SAFETY: made in `new`, destroyed once.
        let _ = unsafe { (self.functions.destroy)(self.handle) };
    }
}
