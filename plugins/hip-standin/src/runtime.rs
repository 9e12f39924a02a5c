//! Devices, their properties and memory, and what numbers of errors mean.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::Mutex;

use crate::device::{
    Device, INVALID_DEVICE, INVALID_VALUE, LAUNCH_FAILURE, NO_DEVICE, NOT_SUPPORTED, OUT_OF_MEMORY, target,
    wave,
};
use crate::state::{CURRENT, Opaque, State, give, with};
use crate::stream::Work;

/// The struct of HIP 6 and where its fields are: bytes of all, memory, shared memory, lanes, compute units, cache, architecture.
const HIP_6: [usize; 7] = [1472, 288, 296, 308, 388, 616, 1160];
/// The struct of HIP 5.
const HIP_5: [usize; 7] = [792, 256, 264, 276, 336, 340, 396];
/// The first version with the second struct.
const FIRST_OF_6: c_int = 60_000_000;

#[unsafe(no_mangle)]
extern "C" fn hipInit(_flags: c_uint) -> c_int {
    with(|state| state.device().map(|_| ()))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipRuntimeGetVersion(version: *mut c_int) -> c_int {
    // SAFETY: the caller's pointer.
    with(|state| unsafe { give(version, state.settings.version) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipGetDeviceCount(count: *mut c_int) -> c_int {
    with(|state| {
        // SAFETY: the caller's pointer.
        unsafe { give(count, state.devices.len() as c_int)? };
        if state.devices.is_empty() { Err(NO_DEVICE) } else { Ok(()) }
    })
}

#[unsafe(no_mangle)]
extern "C" fn hipSetDevice(device: c_int) -> c_int {
    with(|state| {
        let ordinal = usize::try_from(device).map_err(|_| INVALID_DEVICE)?;
        state.devices.get(ordinal).ok_or(INVALID_DEVICE)?;
        CURRENT.set(ordinal);
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipGetDevice(device: *mut c_int) -> c_int {
    // SAFETY: the caller's pointer.
    with(|_| unsafe { give(device, CURRENT.get() as c_int) })
}

/// Everything on the device is gone; it may be used anew.
#[unsafe(no_mangle)]
extern "C" fn hipDeviceReset() -> c_int {
    with(|state| {
        let ordinal = CURRENT.get();
        let settings = crate::settings::Settings { lost: None, ..state.settings.clone() };
        let device = state.device()?;
        *device = Device::new(&device.architecture.clone(), &settings);
        state.streams.retain(|_, stream| stream.device != ordinal);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn hipGetErrorString(error: c_int) -> *const c_char {
    /// The text of the last device that was lost: never freed, as callers keep it.
    static LOST: Mutex<Option<&'static CStr>> = Mutex::new(None);
    let text = match error {
        0 => c"no error",
        OUT_OF_MEMORY => c"out of memory",
        NO_DEVICE => c"no ROCm-capable device is detected",
        INVALID_DEVICE => c"invalid device ordinal",
        LAUNCH_FAILURE => {
            let mut text = None;
            with(|state| {
                text = state.devices.iter().find_map(|d| d.failure.clone());
                Ok(())
            });
            let mut lost = LOST.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            if let Some(text) = text.filter(|text| *lost != Some(text.as_c_str())) {
                *lost = Some(Box::leak(text.into_boxed_c_str()));
            }
            lost.unwrap_or(c"unspecified launch failure")
        }
        _ => c"an error of the stand-in",
    };
    text.as_ptr()
}

/// Writes what a device is into one of the structs.
///
/// # Safety
/// The pointer is to a struct of as many bytes.
unsafe fn describe(state: &State, to: *mut c_void, device: c_int, at: [usize; 7]) -> Result<(), c_int> {
    let device = usize::try_from(device).ok().and_then(|n| state.devices.get(n)).ok_or(INVALID_DEVICE)?;
    let [bytes, memory, shared, lanes, units, cache, architecture] = at;
    let mut all = vec![0u8; bytes];
    let mut put = |from: usize, what: &[u8]| all[from..from + what.len()].copy_from_slice(what);
    put(0, format!("HIP stand-in {}", device.architecture).as_bytes());
    put(memory, &device.memory.to_ne_bytes());
    put(shared, &u64::from(target(&device.architecture).lds).to_ne_bytes());
    put(lanes, &wave(&device.architecture).to_ne_bytes());
    // Few, so that kernels which fill a device stay small.
    put(units, &8u32.to_ne_bytes());
    put(cache, &(4u32 << 20).to_ne_bytes());
    put(architecture, device.architecture.as_bytes());
    // SAFETY: the caller's promise.
    unsafe { std::ptr::copy_nonoverlapping(all.as_ptr(), to.cast::<u8>(), bytes) };
    Ok(())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipGetDeviceProperties(to: *mut c_void, device: c_int) -> c_int {
    // SAFETY: the caller's pointer.
    with(|state| unsafe { describe(state, to, device, HIP_5) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipGetDevicePropertiesR0600(to: *mut c_void, device: c_int) -> c_int {
    with(|state| match state.settings.version < FIRST_OF_6 {
        true => Err(NOT_SUPPORTED),
        // SAFETY: the caller's pointer.
        false => unsafe { describe(state, to, device, HIP_6) },
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipMemGetInfo(free: *mut usize, total: *mut usize) -> c_int {
    with(|state| {
        let device = state.device()?;
        // SAFETY: the caller's pointers.
        unsafe {
            give(free, (device.memory - device.used) as usize)?;
            give(total, device.memory as usize)
        }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipMalloc(address: *mut Opaque, bytes: usize) -> c_int {
    // SAFETY: the caller's pointer.
    with(|state| unsafe { give(address, state.device()?.allocate(bytes as u64)? as Opaque) })
}

#[unsafe(no_mangle)]
extern "C" fn hipFree(address: Opaque) -> c_int {
    with(|state| {
        state.run_all()?;
        state.device()?.free(address as u64)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipMallocAsync(address: *mut Opaque, bytes: usize, stream: Opaque) -> c_int {
    with(|state| {
        if state.stream(stream)?.recording.is_some() {
            return Err(crate::device::CAPTURE_UNSUPPORTED);
        }
        if state.device()?.used + bytes as u64 > state.device()?.memory {
            // What waits to be given back is.
            state.run(stream as usize, None)?;
        }
        // SAFETY: the caller's pointer.
        unsafe { give(address, state.device()?.allocate(bytes as u64)? as Opaque) }
    })
}

#[unsafe(no_mangle)]
extern "C" fn hipFreeAsync(address: Opaque, stream: Opaque) -> c_int {
    with(|state| state.put(stream, Work::Free { address: address as u64 }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipDeviceGetDefaultMemPool(pool: *mut Opaque, device: c_int) -> c_int {
    with(|state| match state.settings.version < FIRST_OF_6 {
        true => Err(NOT_SUPPORTED),
        // SAFETY: the caller's pointer.
        false => unsafe { give(pool, (device as usize + 1) as Opaque) },
    })
}

#[unsafe(no_mangle)]
extern "C" fn hipMemPoolSetAttribute(_pool: Opaque, _attribute: c_int, value: *mut c_void) -> c_int {
    if value.is_null() { INVALID_VALUE } else { 0 }
}

#[unsafe(no_mangle)]
extern "C" fn hipMemPoolTrimTo(_pool: Opaque, _bytes: usize) -> c_int {
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipHostMalloc(address: *mut Opaque, bytes: usize, _flags: c_uint) -> c_int {
    with(|state| {
        state.device()?.answers()?;
        // Anything but zeros.
        let mut memory = vec![u128::MAX; bytes.div_ceil(16).max(1)].into_boxed_slice();
        let begin = memory.as_mut_ptr();
        state.pinned.insert(begin as usize, memory);
        // SAFETY: the caller's pointer.
        unsafe { give(address, begin.cast::<c_void>()) }
    })
}

#[unsafe(no_mangle)]
extern "C" fn hipHostFree(address: Opaque) -> c_int {
    with(|state| {
        let done = state.run_all();
        state.pinned.remove(&(address as usize)).ok_or(INVALID_VALUE)?;
        done
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipHostGetDevicePointer(device: *mut Opaque, host: Opaque, _flags: c_uint) -> c_int {
    with(|state| {
        state.pinned.get(&(host as usize)).ok_or(INVALID_VALUE)?;
        // SAFETY: the caller's pointer.
        unsafe { give(device, host) }
    })
}

#[unsafe(no_mangle)]
extern "C" fn hipMemcpyAsync(
    to: Opaque,
    from: *const c_void,
    bytes: usize,
    kind: c_int,
    stream: Opaque,
) -> c_int {
    if !(1..=3).contains(&kind) {
        return INVALID_VALUE;
    }
    with(|state| state.put(stream, Work::Copy { to: to as u64, from: from as u64, bytes, kind }))
}

#[unsafe(no_mangle)]
extern "C" fn hipMemsetD32Async(to: Opaque, word: c_int, words: usize, stream: Opaque) -> c_int {
    with(|state| state.put(stream, Work::Fill { to: to as u64, word: word as u32, words: words as u64 }))
}
