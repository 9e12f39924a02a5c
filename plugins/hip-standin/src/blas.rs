//! hipBLASLt's functions, as far as the ROCm backend calls them: products by loops in double precision, put on a stream as other work.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicU64, Ordering};

use half::{bf16, f16};

use crate::device::SUCCESS;
use crate::state::{Opaque, with};
use crate::stream::Work;

/// `HIPBLAS_STATUS_INVALID_VALUE`.
const INVALID: c_int = 3;
/// Proposals for a product.
const PROPOSALS: c_int = 2;

/// Products that were put on streams.
static PRODUCTS: AtomicU64 = AtomicU64::new(0);

/// For tests: how many products were put on streams.
#[unsafe(no_mangle)]
extern "C" fn ferroflux_hip_standin_products() -> u64 {
    PRODUCTS.load(Ordering::Relaxed)
}

/// What is multiplied, as the attributes of `hipblasLtMatmulDescSetAttribute` say.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Product {
    /// `hipblasOperation_t` of both factors, `hipblasLtEpilogue_t`.
    pub(crate) turned: [i32; 2],
    pub(crate) epilogue: i32,
    pub(crate) bias: u64,
    pub(crate) bias_type: c_int,
    /// The type of alpha and beta.
    pub(crate) scale: c_int,
}

/// How a matrix lies.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Layout {
    pub(crate) kind: c_int,
    pub(crate) rows: u64,
    pub(crate) columns: u64,
    pub(crate) leading: i64,
    pub(crate) count: i32,
    pub(crate) step: i64,
}

/// A product with its matrices and addresses.
#[derive(Clone, Debug)]
pub(crate) struct Multiplication {
    pub(crate) product: Product,
    /// First and second factor, addend, result.
    pub(crate) layouts: [Layout; 4],
    pub(crate) addresses: [u64; 4],
    pub(crate) alpha: f64,
    pub(crate) beta: f64,
}

#[repr(C)]
struct Proposal {
    algorithm: [u64; 3],
    workspace: usize,
    state: c_int,
    waves: f32,
    reserved: [c_int; 4],
}

/// Reads a number of `hipDataType`.
///
/// # Safety
/// The address is of so many numbers at least.
pub(crate) unsafe fn read(kind: c_int, address: u64, at: i64) -> f64 {
    // SAFETY: the caller's promise.
    unsafe {
        match kind {
            0 => f64::from((address as *const f32).offset(at as isize).read()),
            1 => (address as *const f64).offset(at as isize).read(),
            2 => (address as *const f16).offset(at as isize).read().to_f64(),
            _ => (address as *const bf16).offset(at as isize).read().to_f64(),
        }
    }
}

/// Writes one.
///
/// # Safety
/// As for [`read`].
pub(crate) unsafe fn write(kind: c_int, address: u64, at: i64, value: f64) {
    // SAFETY: the caller's promise.
    unsafe {
        match kind {
            0 => (address as *mut f32).offset(at as isize).write(value as f32),
            1 => (address as *mut f64).offset(at as isize).write(value),
            2 => (address as *mut f16).offset(at as isize).write(f16::from_f64(value)),
            _ => (address as *mut bf16).offset(at as isize).write(bf16::from_f64(value)),
        }
    }
}

impl Layout {
    fn at(&self, batch: i64, row: i64, column: i64) -> i64 {
        batch * self.step + row + column * self.leading
    }
}

impl Multiplication {
    /// Computes it.
    ///
    /// # Safety
    /// The addresses are of matrices as the layouts say.
    pub(crate) unsafe fn run(&self) {
        let [first, second, addend, out] = self.layouts;
        let [a, b, c, d] = self.addresses;
        let turned = self.product.turned.map(|t| t != 111);
        let depth = if turned[0] { first.rows } else { first.columns } as i64;
        for batch in 0..i64::from(out.count.max(1)) {
            for column in 0..out.columns as i64 {
                for row in 0..out.rows as i64 {
                    let mut sum = 0.0;
                    for k in 0..depth {
                        let (r, s) = if turned[0] { (k, row) } else { (row, k) };
                        let (t, u) = if turned[1] { (column, k) } else { (k, column) };
                        // SAFETY: the caller's promise.
                        sum += unsafe {
                            read(first.kind, a, first.at(batch, r, s))
                                * read(second.kind, b, second.at(batch, t, u))
                        };
                    }
                    // SAFETY: the caller's promise.
                    unsafe {
                        let mut value = self.alpha * sum;
                        if self.beta != 0.0 {
                            value += self.beta * read(addend.kind, c, addend.at(batch, row, column));
                        }
                        if self.product.epilogue & 4 != 0 {
                            value += read(self.product.bias_type, self.product.bias, row);
                        }
                        if self.product.epilogue & 2 != 0 {
                            value = value.max(0.0);
                        }
                        write(out.kind, d, out.at(batch, row, column), value);
                    }
                }
            }
        }
    }
}

/// Makes something that the caller destroys.
///
/// # Safety
/// The pointer may be written.
pub(crate) unsafe fn made<T>(to: *mut *mut T, value: T) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { to.write(Box::into_raw(Box::new(value))) };
    SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipblasLtCreate(handle: *mut *mut u64) -> c_int {
    // SAFETY: the caller's pointer.
    unsafe { made(handle, 0) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipblasLtDestroy(handle: *mut u64) -> c_int {
    // SAFETY: made by `hipblasLtCreate`, destroyed once.
    drop(unsafe { Box::from_raw(handle) });
    SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipblasLtMatrixLayoutCreate(
    layout: *mut *mut Layout,
    kind: c_int,
    rows: u64,
    columns: u64,
    leading: i64,
) -> c_int {
    // SAFETY: the caller's pointer.
    unsafe { made(layout, Layout { kind, rows, columns, leading, count: 1, step: 0 }) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipblasLtMatrixLayoutDestroy(layout: *mut Layout) -> c_int {
    // SAFETY: made by `hipblasLtMatrixLayoutCreate`, destroyed once.
    drop(unsafe { Box::from_raw(layout) });
    SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipblasLtMatrixLayoutSetAttribute(
    layout: *mut Layout,
    name: c_int,
    value: *const c_void,
    bytes: usize,
) -> c_int {
    // SAFETY: a layout of the caller's, and a value of as many bytes.
    unsafe {
        match (name, bytes) {
            (0, 4) => (*layout).count = value.cast::<i32>().read(),
            (1, 8) => (*layout).step = value.cast::<i64>().read(),
            _ => return INVALID,
        }
    }
    SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipblasLtMatmulDescCreate(
    product: *mut *mut Product,
    _compute: c_int,
    scale: c_int,
) -> c_int {
    // SAFETY: the caller's pointer.
    unsafe { made(product, Product { scale, turned: [111; 2], epilogue: 1, ..Product::default() }) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipblasLtMatmulDescDestroy(product: *mut Product) -> c_int {
    // SAFETY: made by `hipblasLtMatmulDescCreate`, destroyed once.
    drop(unsafe { Box::from_raw(product) });
    SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipblasLtMatmulDescSetAttribute(
    product: *mut Product,
    name: c_int,
    value: *const c_void,
    bytes: usize,
) -> c_int {
    // SAFETY: a description of the caller's, and a value of as many bytes.
    unsafe {
        match (name, bytes) {
            (0 | 1, 4) => (*product).turned[name as usize] = value.cast::<i32>().read(),
            (2, 4) => (*product).epilogue = value.cast::<i32>().read(),
            (3, 8) => (*product).bias = value.cast::<u64>().read(),
            (4, 4) => (*product).bias_type = value.cast::<i32>().read(),
            _ => return INVALID,
        }
    }
    SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipblasLtMatmulPreferenceCreate(wish: *mut *mut u64) -> c_int {
    // SAFETY: the caller's pointer.
    unsafe { made(wish, 0) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipblasLtMatmulPreferenceDestroy(wish: *mut u64) -> c_int {
    // SAFETY: made by `hipblasLtMatmulPreferenceCreate`, destroyed once.
    drop(unsafe { Box::from_raw(wish) });
    SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn hipblasLtMatmulPreferenceSetAttribute(
    _wish: *mut u64,
    name: c_int,
    _value: *const c_void,
    bytes: usize,
) -> c_int {
    if (name, bytes) == (1, 8) { SUCCESS } else { INVALID }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipblasLtMatmulAlgoGetHeuristic(
    _handle: *mut u64,
    _product: *const Product,
    _first: *const Layout,
    _second: *const Layout,
    _addend: *const Layout,
    _out: *const Layout,
    _wish: *mut u64,
    most: c_int,
    to: *mut Proposal,
    count: *mut c_int,
) -> c_int {
    let mut silent = false;
    with(|state| {
        silent = state.settings.silent.iter().any(|library| library == "hipblaslt");
        Ok(())
    });
    let there = if silent { 0 } else { most.min(PROPOSALS) };
    for n in 0..there {
        let algorithm = [n as u64 + 1, 0, 0];
        let proposal = Proposal { algorithm, workspace: 0, state: 0, waves: 1.0, reserved: [0; 4] };
        // SAFETY: the caller has room for as many as it asks for.
        unsafe { to.add(n as usize).write(proposal) };
    }
    // SAFETY: the caller's pointer.
    unsafe { count.write(there) };
    SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipblasLtMatmul(
    _handle: *mut u64,
    product: *const Product,
    alpha: *const c_void,
    a: u64,
    first: *const Layout,
    b: u64,
    second: *const Layout,
    beta: *const c_void,
    c: u64,
    addend: *const Layout,
    d: u64,
    out: *const Layout,
    algorithm: *const u64,
    _workspace: *mut c_void,
    _bytes: usize,
    stream: Opaque,
) -> c_int {
    // SAFETY: descriptions of the caller's; scalars have the type that was said.
    let multiplication = unsafe {
        let product = *product;
        // Nothing but what was proposed.
        if !(1..=PROPOSALS as u64).contains(&algorithm.read()) {
            return INVALID;
        }
        Multiplication {
            product,
            layouts: [*first, *second, *addend, *out],
            addresses: [a, b, c, d],
            alpha: read(product.scale, alpha as u64, 0),
            beta: read(product.scale, beta as u64, 0),
        }
    };
    PRODUCTS.fetch_add(1, Ordering::Relaxed);
    with(|state| state.put(stream, Work::Multiply(multiplication)))
}
