//! rocBLAS's functions, as far as the ROCm backend calls them: the products of `blas` by other names and numbers.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::blas::{Layout, Multiplication, Product, made, read};
use crate::device::SUCCESS;
use crate::state::{Opaque, with};
use crate::stream::Work;

/// `rocblas_status_invalid_size` and `rocblas_status_invalid_value`.
const INVALID_SIZE: c_int = 4;
const INVALID_VALUE: c_int = 11;

/// Products that were put on streams.
static PRODUCTS: AtomicU64 = AtomicU64::new(0);

/// For tests: how many products were put on streams.
#[unsafe(no_mangle)]
extern "C" fn ferroflux_hip_standin_rocblas_products() -> u64 {
    PRODUCTS.load(Ordering::Relaxed)
}

/// A handle: the stream of its work.
struct Handle {
    stream: Opaque,
}

/// `hipDataType` of `rocblas_datatype`.
fn kind(datatype: c_int) -> Option<c_int> {
    match datatype {
        150 => Some(2),
        151 => Some(0),
        152 => Some(1),
        168 => Some(14),
        _ => None,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rocblas_create_handle(handle: *mut *mut c_void) -> c_int {
    // SAFETY: the caller's pointer.
    unsafe { made(handle.cast::<*mut Handle>(), Handle { stream: std::ptr::null_mut() }) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rocblas_destroy_handle(handle: *mut c_void) -> c_int {
    // SAFETY: made by `rocblas_create_handle`, destroyed once.
    drop(unsafe { Box::from_raw(handle.cast::<Handle>()) });
    SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rocblas_set_stream(handle: *mut c_void, stream: Opaque) -> c_int {
    // SAFETY: a handle of the caller's.
    unsafe { (*handle.cast::<Handle>()).stream = stream };
    SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn rocblas_set_atomics_mode(_handle: *mut c_void, mode: c_int) -> c_int {
    if [0, 1].contains(&mode) { SUCCESS } else { INVALID_VALUE }
}

#[unsafe(no_mangle)]
extern "C" fn rocblas_set_math_mode(_handle: *mut c_void, mode: c_int) -> c_int {
    if [0, 1].contains(&mode) { SUCCESS } else { INVALID_VALUE }
}

#[unsafe(no_mangle)]
extern "C" fn rocblas_set_workspace(_handle: *mut c_void, address: *mut c_void, _bytes: usize) -> c_int {
    if address.is_null() { INVALID_VALUE } else { SUCCESS }
}

/// A matrix of `rows × columns` (of the other way round where it is turned); none where its columns overlap.
fn layout(
    datatype: c_int,
    [rows, columns]: [c_int; 2],
    turned: bool,
    leading: c_int,
    step: i64,
    count: c_int,
) -> Option<Layout> {
    let (rows, columns) = if turned { (columns, rows) } else { (rows, columns) };
    let layout = Layout {
        kind: kind(datatype)?,
        rows: u64::try_from(rows).ok()?,
        columns: u64::try_from(columns).ok()?,
        leading: i64::from(leading),
        count,
        step,
    };
    (leading >= rows.max(1)).then_some(layout)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rocblas_gemm_strided_batched_ex(
    handle: *mut c_void,
    turn_a: c_int,
    turn_b: c_int,
    m: c_int,
    n: c_int,
    k: c_int,
    alpha: *const c_void,
    a: u64,
    type_a: c_int,
    lda: c_int,
    step_a: i64,
    b: u64,
    type_b: c_int,
    ldb: c_int,
    step_b: i64,
    beta: *const c_void,
    c: u64,
    type_c: c_int,
    ldc: c_int,
    step_c: i64,
    d: u64,
    type_d: c_int,
    ldd: c_int,
    step_d: i64,
    count: c_int,
    compute: c_int,
    algorithm: c_int,
    solution: i32,
    flags: u32,
) -> c_int {
    let turned = [turn_a, turn_b];
    let plain = (algorithm, solution, flags) == (0, 0, 0) && turned.iter().all(|t| [111, 112].contains(t));
    let sums = if type_a == 152 { 152 } else { 151 };
    if !plain || type_a != type_b || type_c != type_d || compute != sums {
        return INVALID_VALUE;
    }
    let layouts = [
        layout(type_a, [m, k], turn_a == 112, lda, step_a, count),
        layout(type_b, [k, n], turn_b == 112, ldb, step_b, count),
        layout(type_c, [m, n], false, ldc, step_c, count),
        layout(type_d, [m, n], false, ldd, step_d, count),
    ];
    let ([Some(first), Some(second), Some(addend), Some(out)], Some(scale)) = (layouts, kind(compute)) else {
        return INVALID_SIZE;
    };
    let product = Product { turned, epilogue: 1, bias: 0, bias_type: 0, scale };
    // SAFETY: scalars of the caller's, in the type of the sums.
    let (alpha, beta) = unsafe { (read(scale, alpha as u64, 0), read(scale, beta as u64, 0)) };
    let (layouts, addresses) = ([first, second, addend, out], [a, b, c, d]);
    let multiplication = Multiplication { product, layouts, addresses, alpha, beta };
    PRODUCTS.fetch_add(1, Ordering::Relaxed);
    // SAFETY: a handle of the caller's.
    let stream = unsafe { (*handle.cast::<Handle>()).stream };
    with(|state| state.put(stream, Work::Multiply(multiplication)))
}
