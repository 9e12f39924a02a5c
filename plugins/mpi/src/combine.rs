//! Combinations as MPI's operations: one function for each combination and element type, over `kernel_ir`'s reference.

use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::sync::{Mutex, PoisonError};

use kernel_ir::Combine;
use kernel_ir::runtime::combine_into;
use mpi::ffi;
use plugin_sdk::{DType, PluginError};

type Function = unsafe extern "C" fn(*mut c_void, *mut c_void, *mut c_int, *mut ffi::MPI_Datatype);

/// A combination as a number, because functions are chosen at compile time.
const HOWS: [Combine; 4] = [Combine::Sum, Combine::Prod, Combine::Max, Combine::Min];
const DTYPES: [DType; 10] = [
    DType::Bool,
    DType::U8,
    DType::I8,
    DType::I16,
    DType::I32,
    DType::I64,
    DType::F16,
    DType::BF16,
    DType::F32,
    DType::F64,
];

/// `inout = combine(in, inout)`, for MPI to call.
unsafe extern "C" fn function<const HOW: usize, const TYPE: usize>(
    input: *mut c_void,
    inout: *mut c_void,
    count: *mut c_int,
    _of: *mut ffi::MPI_Datatype,
) {
    // SAFETY: MPI passes arrays of `*count` elements of the type that the operation is used with, which do not overlap. The
    // types of the table have combinations, so there is no error.
    unsafe {
        let _ = combine_into(HOWS[HOW], DTYPES[TYPE], inout.cast(), input.cast_const().cast(), *count as usize);
    }
}

macro_rules! row {
    ($how:literal) => {
        [
            function::<$how, 0>,
            function::<$how, 1>,
            function::<$how, 2>,
            function::<$how, 3>,
            function::<$how, 4>,
            function::<$how, 5>,
            function::<$how, 6>,
            function::<$how, 7>,
            function::<$how, 8>,
            function::<$how, 9>,
        ]
    };
}

const FUNCTIONS: [[Function; 10]; 4] = [row!(0), row!(1), row!(2), row!(3)];

struct Operation(ffi::MPI_Op);

// SAFETY: a handle, which any thread may use while calls are serialized.
unsafe impl Send for Operation {}

static OPERATIONS: Mutex<Option<HashMap<(usize, usize), Operation>>> = Mutex::new(None);

/// MPI's operation for a combination of elements. A mean is a sum: the engine divides.
///
/// # Safety
/// MPI is initialized, and its calls are serialized.
///
/// # Errors
/// A type without combinations.
pub unsafe fn operation(how: Combine, dtype: DType) -> Result<ffi::MPI_Op, PluginError> {
    let how = if how == Combine::Mean { Combine::Sum } else { how };
    let places = HOWS.iter().position(|h| *h == how).zip(DTYPES.iter().position(|d| *d == dtype));
    let (h, d) = places.ok_or_else(|| {
        PluginError::unsupported(format!("values of {dtype} are not combined between ranks"))
    })?;
    let mut all = OPERATIONS.lock().unwrap_or_else(PoisonError::into_inner);
    let all = all.get_or_insert_default();
    if let Some(found) = all.get(&(h, d)) {
        return Ok(found.0);
    }
    // SAFETY: the function has the signature that MPI asks for; the combinations commute.
    let made = unsafe {
        // A handle of MPI is a pointer or a number, for which zeros are a value; the call replaces it.
        let mut made: ffi::MPI_Op = std::mem::zeroed();
        ffi::MPI_Op_create(Some(FUNCTIONS[h][d]), 1, &mut made);
        made
    };
    all.insert((h, d), Operation(made));
    Ok(made)
}

/// The type of a block's elements: combinations may be applied to parts of a block, so an element is never split.
///
/// # Safety
/// MPI is initialized.
pub unsafe fn datatype(dtype: DType) -> Result<(ffi::MPI_Datatype, usize), PluginError> {
    // SAFETY: constants of MPI, read after it was initialized.
    unsafe {
        Ok(match dtype.size() {
            1 => (ffi::RSMPI_UINT8_T, 1),
            2 => (ffi::RSMPI_UINT16_T, 1),
            4 => (ffi::RSMPI_UINT32_T, 1),
            8 => (ffi::RSMPI_UINT64_T, 1),
            // Complex numbers are only moved.
            16 => (ffi::RSMPI_UINT64_T, 2),
            width => return Err(PluginError::unsupported(format!("elements of {width} bytes"))),
        })
    }
}
