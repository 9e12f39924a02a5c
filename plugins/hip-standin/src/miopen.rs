//! MIOpen's functions, as far as the ROCm backend calls them: its immediate mode, with two solutions for every convolution. A
//! solution runs only where it was compiled and has the workspace that it asked for.
//!
//! Not here: what a convolution computes (`convolution`).

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::blas::made;
use crate::convolution::{Convolution, Direction, Tensor, Window};
use crate::device::SUCCESS;
use crate::state::{Opaque, with};
use crate::stream::Work;

/// `miopenStatusInvalidValue` and `miopenStatusBadParm`.
const INVALID_VALUE: c_int = 2;
const BAD_PARAMETER: c_int = 3;
/// The solutions of every convolution and the bytes of workspace that they want.
const SOLUTIONS: [(u64, usize); 2] = [(85, 4096), (86, 0)];

/// Convolutions that were put on streams, by direction.
static CONVOLUTIONS: [AtomicU64; 3] = [const { AtomicU64::new(0) }; 3];

/// For tests: how many convolutions of a direction were put on streams: 0 the convolution itself, 1 the gradient to its input,
/// 2 that to its weight.
#[unsafe(no_mangle)]
extern "C" fn ferroflux_hip_standin_convolutions(direction: c_int) -> u64 {
    CONVOLUTIONS.get(direction as usize).map_or(0, |count| count.load(Ordering::Relaxed))
}

/// A handle: the stream of its work and the solutions that were compiled.
struct Handle {
    stream: Opaque,
    compiled: Vec<(Direction, u64)>,
}

/// `miopenConvSolution_t`.
#[repr(C)]
struct Solution {
    time: f32,
    workspace: usize,
    id: u64,
    algorithm: c_int,
}

/// `hipDataType` of `miopenDataType_t`.
fn kind(datatype: c_int) -> Option<c_int> {
    match datatype {
        0 => Some(2),
        1 => Some(0),
        5 => Some(14),
        6 => Some(1),
        _ => None,
    }
}

/// Numbers of the caller's.
///
/// # Safety
/// There are as many.
unsafe fn numbers(from: *const c_int, count: c_int) -> Vec<i64> {
    // SAFETY: the caller's promise.
    (0..count.max(0) as usize).map(|n| i64::from(unsafe { *from.add(n) })).collect()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn miopenCreateWithStream(handle: *mut *mut c_void, stream: Opaque) -> c_int {
    // SAFETY: the caller's pointer.
    unsafe { made(handle.cast::<*mut Handle>(), Handle { stream, compiled: Vec::new() }) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn miopenDestroy(handle: *mut c_void) -> c_int {
    // SAFETY: made by `miopenCreateWithStream`, destroyed once.
    drop(unsafe { Box::from_raw(handle.cast::<Handle>()) });
    SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn miopenCreateTensorDescriptor(tensor: *mut *mut c_void) -> c_int {
    // SAFETY: the caller's pointer.
    unsafe { made(tensor.cast::<*mut Tensor>(), Tensor::default()) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn miopenSetTensorDescriptor(
    tensor: *mut c_void,
    datatype: c_int,
    rank: c_int,
    sizes: *const c_int,
    strides: *const c_int,
) -> c_int {
    let Some(kind) = kind(datatype) else { return BAD_PARAMETER };
    // SAFETY: a tensor of the caller's, and as many numbers as it says.
    unsafe {
        let (sizes, strides) = (numbers(sizes, rank), numbers(strides, rank));
        *tensor.cast::<Tensor>() = Tensor { kind, sizes, strides };
    }
    SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn miopenDestroyTensorDescriptor(tensor: *mut c_void) -> c_int {
    // SAFETY: made by `miopenCreateTensorDescriptor`, destroyed once.
    drop(unsafe { Box::from_raw(tensor.cast::<Tensor>()) });
    SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn miopenCreateConvolutionDescriptor(window: *mut *mut c_void) -> c_int {
    // SAFETY: the caller's pointer.
    unsafe { made(window.cast::<*mut Window>(), Window { groups: 1, ..Window::default() }) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn miopenInitConvolutionNdDescriptor(
    window: *mut c_void,
    rank: c_int,
    padding: *const c_int,
    stride: *const c_int,
    dilation: *const c_int,
    mode: c_int,
) -> c_int {
    if mode != 0 {
        return BAD_PARAMETER;
    }
    // SAFETY: a description of the caller's, and as many numbers as it says.
    unsafe {
        let (padding, stride) = (numbers(padding, rank), numbers(stride, rank));
        *window.cast::<Window>() = Window { padding, stride, dilation: numbers(dilation, rank), groups: 1 };
    }
    SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn miopenSetConvolutionGroupCount(window: *mut c_void, groups: c_int) -> c_int {
    // SAFETY: a description of the caller's.
    unsafe { (*window.cast::<Window>()).groups = i64::from(groups) };
    if groups > 0 { SUCCESS } else { BAD_PARAMETER }
}

#[unsafe(no_mangle)]
extern "C" fn miopenSetConvolutionAttribute(_window: *mut c_void, name: c_int, value: c_int) -> c_int {
    if [0, 1].contains(&name) && (-1..=1).contains(&value) { SUCCESS } else { INVALID_VALUE }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn miopenDestroyConvolutionDescriptor(window: *mut c_void) -> c_int {
    // SAFETY: made by `miopenCreateConvolutionDescriptor`, destroyed once.
    drop(unsafe { Box::from_raw(window.cast::<Window>()) });
    SUCCESS
}

/// A convolution by its descriptors in the order of a direction's functions: both given tensors, then the unknown one.
///
/// # Safety
/// They are descriptors of the caller's.
unsafe fn described(
    direction: Direction,
    given: [*mut c_void; 2],
    window: *mut c_void,
    unknown: *mut c_void,
    addresses: [u64; 3],
) -> Option<Convolution> {
    // SAFETY: the caller's promise.
    let of = |tensor: *mut c_void| unsafe { (*tensor.cast::<Tensor>()).clone() };
    let ([first, second], unknown) = (given.map(of), of(unknown));
    let [a, b, c] = addresses;
    let (tensors, addresses) = match direction {
        Direction::Forward => ([second, first, unknown], [b, a, c]),
        Direction::Data => ([unknown, second, first], [c, b, a]),
        Direction::Weights => ([second, unknown, first], [b, c, a]),
    };
    // SAFETY: the caller's promise.
    let window = unsafe { (*window.cast::<Window>()).clone() };
    Some(Convolution { direction, window, tensors, addresses }).filter(Convolution::fits)
}

/// How many solutions there are.
fn count() -> usize {
    let mut silent = false;
    with(|state| {
        silent = state.settings.silent.iter().any(|library| library == "miopen");
        Ok(())
    });
    if silent { 0 } else { SOLUTIONS.len() }
}

/// Writes as many solutions as there is room for.
///
/// # Safety
/// The pointers are the caller's.
unsafe fn propose(most: usize, told: *mut usize, to: *mut Solution) -> c_int {
    let there = count().min(most);
    for (n, (id, workspace)) in SOLUTIONS.into_iter().take(there).enumerate() {
        let solution = Solution { time: 0.1, workspace, id, algorithm: 1 };
        // SAFETY: the caller has room for as many as it asks for.
        unsafe { to.add(n).write(solution) };
    }
    // SAFETY: the caller's pointer.
    unsafe { told.write(there) };
    SUCCESS
}

/// Puts a convolution on the handle's stream.
///
/// # Safety
/// The handle is the caller's.
unsafe fn run(
    handle: *mut c_void,
    convolution: Option<Convolution>,
    workspace: *mut c_void,
    bytes: usize,
    id: u64,
) -> c_int {
    let Some(convolution) = convolution else { return BAD_PARAMETER };
    // SAFETY: the caller's promise.
    let Handle { stream, compiled } = unsafe { &*handle.cast::<Handle>() };
    let enough = |wanted: usize| wanted <= bytes && (wanted == 0 || !workspace.is_null());
    let known = SOLUTIONS.iter().any(|(other, wanted)| *other == id && enough(*wanted));
    if !known || !compiled.contains(&(convolution.direction, id)) {
        return INVALID_VALUE;
    }
    CONVOLUTIONS[convolution.direction as usize].fetch_add(1, Ordering::Relaxed);
    with(|state| state.put(*stream, Work::Convolve(convolution)))
}

/// The functions of a direction.
macro_rules! direction {
    ($direction:expr, $count:ident, $propose:ident, $compile:ident, $run:ident) => {
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $count(
            _handle: *mut c_void,
            first: *mut c_void,
            second: *mut c_void,
            window: *mut c_void,
            unknown: *mut c_void,
            told: *mut usize,
        ) -> c_int {
            // SAFETY: descriptors and a pointer of the caller's.
            unsafe {
                if described($direction, [first, second], window, unknown, [0; 3]).is_none() {
                    return BAD_PARAMETER;
                }
                told.write(count());
            }
            SUCCESS
        }

        #[unsafe(no_mangle)]
        unsafe extern "C" fn $propose(
            _handle: *mut c_void,
            first: *mut c_void,
            second: *mut c_void,
            window: *mut c_void,
            unknown: *mut c_void,
            most: usize,
            told: *mut usize,
            to: *mut Solution,
        ) -> c_int {
            // SAFETY: descriptors and pointers of the caller's.
            unsafe {
                match described($direction, [first, second], window, unknown, [0; 3]) {
                    Some(_) => propose(most, told, to),
                    None => BAD_PARAMETER,
                }
            }
        }

        #[unsafe(no_mangle)]
        unsafe extern "C" fn $compile(
            handle: *mut c_void,
            _first: *mut c_void,
            _second: *mut c_void,
            _window: *mut c_void,
            _unknown: *mut c_void,
            id: u64,
        ) -> c_int {
            // SAFETY: a handle of the caller's.
            unsafe { (*handle.cast::<Handle>()).compiled.push(($direction, id)) };
            SUCCESS
        }

        #[unsafe(no_mangle)]
        unsafe extern "C" fn $run(
            handle: *mut c_void,
            first: *mut c_void,
            a: u64,
            second: *mut c_void,
            b: u64,
            window: *mut c_void,
            unknown: *mut c_void,
            c: u64,
            workspace: *mut c_void,
            bytes: usize,
            id: u64,
        ) -> c_int {
            // SAFETY: a handle and descriptors of the caller's.
            unsafe {
                let convolution = described($direction, [first, second], window, unknown, [a, b, c]);
                run(handle, convolution, workspace, bytes, id)
            }
        }
    };
}

direction!(
    Direction::Forward,
    miopenConvolutionForwardGetSolutionCount,
    miopenConvolutionForwardGetSolution,
    miopenConvolutionForwardCompileSolution,
    miopenConvolutionForwardImmediate
);
direction!(
    Direction::Data,
    miopenConvolutionBackwardDataGetSolutionCount,
    miopenConvolutionBackwardDataGetSolution,
    miopenConvolutionBackwardDataCompileSolution,
    miopenConvolutionBackwardDataImmediate
);
direction!(
    Direction::Weights,
    miopenConvolutionBackwardWeightsGetSolutionCount,
    miopenConvolutionBackwardWeightsGetSolution,
    miopenConvolutionBackwardWeightsCompileSolution,
    miopenConvolutionBackwardWeightsImmediate
);
