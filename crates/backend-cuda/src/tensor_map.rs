//! Tensor maps, the descriptors of the tensor memory accelerator, encoded by the driver. Encoding only touches host
//! memory.

use std::ffi::c_void;

use cudarc::driver::sys;
use gpu_runtime::{GpuError, Map};
use ir_core::DType;

use crate::error::error;

/// The first driver version that encodes tensor maps: 12.0.
const FIRST_VERSION: i32 = 12_000;

/// Whether the driver encodes tensor maps. This is checked first: an older driver lacks the function.
pub(crate) fn are_there() -> bool {
    let mut version = 0;
    // SAFETY: the number is written to a local; it stays 0 where the call fails.
    let _ = unsafe { sys::cuDriverGetVersion(&mut version) };
    version >= FIRST_VERSION
}

/// Encodes a map whose tensor begins at `address`.
///
/// # Errors
/// A dtype, sizes or strides that TMA does not support.
pub(crate) fn encode(map: &Map, address: u64) -> Result<sys::CUtensorMap, GpuError> {
    use sys::CUtensorMapDataType::{
        CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, CU_TENSOR_MAP_DATA_TYPE_FLOAT16, CU_TENSOR_MAP_DATA_TYPE_FLOAT32,
    };
    let dtype = match map.dtype {
        DType::F16 => CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
        DType::BF16 => CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
        DType::F32 => CU_TENSOR_MAP_DATA_TYPE_FLOAT32,
        other => return Err(GpuError::Malformed(format!("a tensor map of {other}"))),
    };
    let steps = [1u32; 5];
    let mut encoded = sys::CUtensorMap { opaque: [0; 16] };
    // SAFETY: every list has at least `rank` numbers, at most five; the map is written to a local. The address is not
    // dereferenced.
    let done = unsafe {
        sys::cuTensorMapEncodeTiled(
            &mut encoded,
            dtype,
            map.rank as u32,
            address as *mut c_void,
            map.sizes.as_ptr(),
            // The innermost dimension has no stride.
            map.strides[1..].as_ptr(),
            map.window.as_ptr(),
            steps.as_ptr(),
            sys::CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
            sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_128B,
            sys::CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
            sys::CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )
    };
    done.result().map_err(error("cuTensorMapEncodeTiled"))?;
    Ok(encoded)
}
