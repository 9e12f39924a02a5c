//! The DLPack structs, as its public specification lays them out, at major version 1.
//!
//! The *versioned* managed tensor is used for every transfer of ownership: unlike the classic one it states its version
//! and carries flags, and every framework that exchanges DLPack today reads it. Plain [`DLTensor`] is a borrow.

use core::ffi::c_void;

/// Major version of DLPack that this crate lays out.
pub const DLPACK_MAJOR: u32 = 1;
/// Minor version that this crate writes.
pub const DLPACK_MINOR: u32 = 1;

/// Device type: host memory.
pub const DL_CPU: i32 = 1;
/// Device type: CUDA device memory.
pub const DL_CUDA: i32 = 2;
/// Device type: page-locked host memory of CUDA.
pub const DL_CUDA_HOST: i32 = 3;
/// Device type: ROCm device memory.
pub const DL_ROCM: i32 = 10;
/// Device type: an extension device of a third party's plugin.
pub const DL_EXT_DEV: i32 = 12;

/// Flag of a managed tensor: its memory must not be written.
pub const DL_FLAG_READ_ONLY: u64 = 1;
/// Flag of a managed tensor: its memory was copied for this exchange.
pub const DL_FLAG_IS_COPIED: u64 = 2;

/// Type code: signed integer.
pub const DL_INT: u8 = 0;
/// Type code: unsigned integer.
pub const DL_UINT: u8 = 1;
/// Type code: IEEE floating point.
pub const DL_FLOAT: u8 = 2;
/// Type code: bfloat16.
pub const DL_BFLOAT: u8 = 4;
/// Type code: complex number of two floats; `bits` counts both.
pub const DL_COMPLEX: u8 = 5;
/// Type code: boolean, one byte.
pub const DL_BOOL: u8 = 6;

/// A device.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DLDevice {
    /// One of the `DL_*` device types.
    pub device_type: i32,
    /// Ordinal of the device among those of its type.
    pub device_id: i32,
}

/// Element type.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DLDataType {
    /// Type code (`DL_INT` and so on).
    pub code: u8,
    /// Bits of one lane.
    pub bits: u8,
    /// Vector lanes; always 1 across this boundary.
    pub lanes: u16,
}

/// A borrowed strided tensor. Sizes and strides count elements.
///
/// Across this boundary the host always passes `strides`; a plugin may leave them null for a row-major output.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct DLTensor {
    /// Start of the allocation; an opaque handle on devices whose memory the host cannot address.
    pub data: *mut c_void,
    /// The device of `data`.
    pub device: DLDevice,
    /// Number of dimensions; 0 for a scalar.
    pub ndim: i32,
    /// Element type.
    pub dtype: DLDataType,
    /// `ndim` sizes.
    pub shape: *mut i64,
    /// `ndim` strides, or null for row-major.
    pub strides: *mut i64,
    /// Bytes from `data` to the first element.
    pub byte_offset: u64,
}

/// Version stamp of a managed tensor.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DLPackVersion {
    /// A reader refuses another major, but may still call the deleter.
    pub major: u32,
    /// Informative.
    pub minor: u32,
}

/// A tensor with an owner: the receiver calls `deleter` exactly once.
#[repr(C)]
#[derive(Debug)]
pub struct DLManagedTensorVersioned {
    /// Version of the layout that follows.
    pub version: DLPackVersion,
    /// Private data of the producer.
    pub manager_ctx: *mut c_void,
    /// Frees the tensor and this struct; null where nothing is to be freed.
    pub deleter: Option<unsafe extern "C" fn(*mut DLManagedTensorVersioned)>,
    /// `DL_FLAG_*` bits.
    pub flags: u64,
    /// The tensor.
    pub dl_tensor: DLTensor,
}
