//! Errors of tensor operations. They are values, not panics: sizes often come from untrusted files and graphs.

use ir_core::DType;

/// A refused construction, view or access.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TensorError {
    /// The product of the sizes, or the bytes it needs, does not fit the address space.
    #[error("a tensor of {dtype} with sizes {sizes:?} does not fit the address space")]
    TooLarge {
        /// Element type.
        dtype: DType,
        /// Requested sizes.
        sizes: Vec<usize>,
    },
    /// The allocator refused, or the system does not have that much memory.
    #[error("out of memory: {bytes} bytes cannot be had")]
    OutOfMemory {
        /// Requested bytes.
        bytes: usize,
    },
    /// Some element would lie before the start or past the end of the storage.
    #[error(
        "sizes {sizes:?} with strides {strides:?} and offset {offset} reach outside a storage of {bytes} bytes of {dtype}"
    )]
    OutOfStorage {
        /// Element type.
        dtype: DType,
        /// Requested sizes.
        sizes: Vec<usize>,
        /// Requested strides, in elements.
        strides: Vec<isize>,
        /// Requested offset, in elements.
        offset: isize,
        /// What the storage has.
        bytes: usize,
    },
    /// The storage does not start at a multiple of the element's alignment.
    #[error("a storage at address {address:#x} is not aligned for {dtype}: copy it first")]
    Misaligned {
        /// Element type.
        dtype: DType,
        /// Start of the storage.
        address: usize,
    },
    /// Sizes and strides differ in length, a dimension does not exist, or a count of values does not match.
    #[error("{0}")]
    Shape(String),
    /// The tensor has another element type than was asked for.
    #[error("the tensor is {got}, not {expected}")]
    DType {
        /// What the tensor has.
        got: DType,
        /// What was asked for.
        expected: DType,
    },
    /// A range of bytes lies outside its storage or file.
    #[error("bytes {start}..{end} lie outside {len} bytes")]
    Range {
        /// First byte.
        start: usize,
        /// One past the last byte.
        end: usize,
        /// What there is.
        len: usize,
    },
    /// A null pointer for a tensor that has elements.
    #[error("a null pointer was given for a tensor with elements")]
    Null,
}
