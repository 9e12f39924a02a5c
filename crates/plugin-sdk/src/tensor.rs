//! Borrowed tensors for a backend: inputs of `execute` and bound constants. This is not a tensor library: no arithmetic, no
//! copies; only checked access to host memory.

use std::marker::PhantomData;

use ir_core::DType;
use plugin_abi::dlpack::{DL_CPU, DL_CUDA_HOST};
use plugin_abi::{DLDataType, DLDevice, DLTensor};

use crate::PluginError;

/// Most dimensions that a tensor may have across the boundary.
pub(crate) const MAX_DIMS: i32 = 64;

/// A Rust type for elements of some dtypes.
///
/// # Safety
/// Every bit pattern of `size_of::<Self>()` bytes is a valid value, and the type has no padding.
pub unsafe trait Element: Copy + Send + Sync + 'static {
    /// Dtypes whose elements may be read as this type.
    const DTYPES: &'static [DType];
}

macro_rules! elements {
    ($($ty:ty: $($dtype:ident),*;)*) => {
        // SAFETY: plain integers and floats (and pairs of floats): no padding, every bit pattern is a value.
        $(unsafe impl Element for $ty { const DTYPES: &'static [DType] = &[$(DType::$dtype),*]; })*
    };
}

elements! {
    u8: U8, Bool;
    i8: I8;
    i16: I16;
    i32: I32;
    i64: I64;
    u16: U16;
    u32: U32;
    u64: U64;
    f32: F32;
    f64: F64;
    half::f16: F16;
    half::bf16: BF16;
    [f32; 2]: C64;
    [f64; 2]: C128;
}

/// A borrowed strided tensor. Sizes and strides count elements; strides are not negative.
#[derive(Clone, Copy)]
pub struct TensorView<'a> {
    data: *const u8,
    dtype: DType,
    device: DLDevice,
    sizes: &'a [i64],
    strides: &'a [i64],
    memory: PhantomData<&'a [u8]>,
}

// SAFETY: a view only reads memory that nothing writes while it is borrowed.
unsafe impl Send for TensorView<'_> {}
// SAFETY: a view only reads memory that nothing writes while it is borrowed, from any thread.
unsafe impl Sync for TensorView<'_> {}

impl<'a> TensorView<'a> {
    /// Checks a tensor of the host, whose dtype is [`dtype_of`] it.
    ///
    /// # Safety
    /// `tensor` keeps the contract of `DLTensor` for `'a`: `ndim` readable sizes and strides, and memory for every
    /// element that only the backend writes meanwhile.
    #[inline]
    pub(crate) unsafe fn from_dl(tensor: &DLTensor, dtype: DType) -> Result<Self, LayoutError> {
        if !(0..=MAX_DIMS).contains(&tensor.ndim) {
            return Err(LayoutError::Rank);
        }
        let rank = tensor.ndim as usize;
        if rank > 0 && (tensor.shape.is_null() || tensor.strides.is_null()) {
            return Err(LayoutError::NoSizes);
        }
        let (sizes, strides): (&[i64], &[i64]) = if rank == 0 {
            (&[], &[])
        } else {
            // SAFETY: both pointers are not null, and the caller promises `ndim` values for `'a`.
            unsafe {
                (
                    std::slice::from_raw_parts(tensor.shape, rank),
                    std::slice::from_raw_parts(tensor.strides, rank),
                )
            }
        };
        let span = span_elements(sizes, strides)?;
        if span > 0 && tensor.data.is_null() {
            return Err(LayoutError::NoMemory);
        }
        span.checked_mul(dtype.size()).filter(|&b| b <= isize::MAX as usize).ok_or(LayoutError::TooLarge)?;
        let data = (tensor.data as *const u8).wrapping_add(tensor.byte_offset as usize);
        Ok(Self { data, dtype, device: tensor.device, sizes, strides, memory: PhantomData })
    }

    /// A row-major view of a slice, for an author's own unit tests. `sizes` and `strides` stay borrowed.
    pub fn from_slice<T: Element>(
        values: &'a [T],
        dtype: DType,
        sizes: &'a [i64],
        strides: &'a [i64],
    ) -> Result<Self, PluginError> {
        check_element::<T>(dtype)?;
        if sizes.len() != strides.len() {
            return Err(PluginError::invalid("a tensor has as many strides as sizes"));
        }
        if span_of(sizes, strides)? > values.len() {
            return Err(PluginError::invalid("sizes and strides reach beyond the slice"));
        }
        let device = DLDevice { device_type: DL_CPU, device_id: 0 };
        Ok(Self { data: values.as_ptr().cast(), dtype, device, sizes, strides, memory: PhantomData })
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }
    /// The device of the memory.
    pub fn device(&self) -> DLDevice {
        self.device
    }
    /// Sizes, in elements.
    pub fn sizes(&self) -> &'a [i64] {
        self.sizes
    }
    /// Strides, in elements.
    pub fn strides(&self) -> &'a [i64] {
        self.strides
    }
    /// Number of elements.
    pub fn numel(&self) -> usize {
        numel(self.sizes)
    }
    /// Address of the first element: on other devices a handle of its driver. Dangling or null where
    /// there are no elements.
    pub fn as_ptr(&self) -> *const u8 {
        self.data
    }
    /// Address of the first element of an input that the program declares written (kernel-ir 1.4): the memory is writable
    /// during the call and not shared, and has the new value when `execute` returns. Other inputs must not be written.
    pub fn as_mut_ptr(&self) -> *mut u8 {
        self.data.cast_mut()
    }
    /// Whether the elements are row-major without gaps.
    pub fn is_contiguous(&self) -> bool {
        is_contiguous(self.sizes, self.strides)
    }

    /// The elements of a contiguous host tensor. `Bool` reads as `u8`, complex as `[re, im]`.
    pub fn as_slice<T: Element>(&self) -> Result<&'a [T], PluginError> {
        if !self.is_contiguous() {
            return Err(PluginError::invalid(format!(
                "a tensor with sizes {:?} and strides {:?} is not contiguous",
                self.sizes, self.strides
            )));
        }
        self.check_host::<T>()?;
        let numel = self.numel();
        if numel == 0 {
            return Ok(&[]);
        }
        // SAFETY: host memory, aligned for `T` (checked above), with `numel` contiguous elements of a type of the same
        // dtype, which are not written for `'a`.
        Ok(unsafe { std::slice::from_raw_parts(self.data.cast::<T>(), numel) })
    }

    /// The element at an index of a host tensor with any strides.
    pub fn get<T: Element>(&self, index: &[i64]) -> Result<T, PluginError> {
        self.check_host::<T>()?;
        let inside = index.len() == self.sizes.len()
            && index.iter().zip(self.sizes).all(|(&i, &size)| (0..size).contains(&i));
        if !inside {
            return Err(PluginError::invalid(format!(
                "index {index:?} is outside of sizes {:?}",
                self.sizes
            )));
        }
        let offset: i64 = index.iter().zip(self.strides).map(|(&i, &stride)| i * stride).sum();
        // SAFETY: the index is in range, so the offset is within the span that was checked at construction; the memory is
        // aligned.
        Ok(unsafe { *self.data.cast::<T>().add(offset as usize) })
    }

    fn check_host<T: Element>(&self) -> Result<(), PluginError> {
        check_element::<T>(self.dtype)?;
        if !matches!(self.device.device_type, DL_CPU | DL_CUDA_HOST) {
            return Err(PluginError::invalid("a device tensor's elements cannot be read on the host"));
        }
        if !self.data.cast::<T>().is_aligned() && self.numel() > 0 {
            return Err(PluginError::invalid(format!("a tensor's memory is not aligned for {}", self.dtype)));
        }
        Ok(())
    }
}

impl std::fmt::Debug for TensorView<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}{:?} strides {:?}", self.dtype, self.sizes, self.strides)
    }
}

/// Number of elements; a size of 0 counts before any overflow of the others.
pub(crate) fn numel(sizes: &[i64]) -> usize {
    if sizes.contains(&0) { 0 } else { sizes.iter().map(|&s| s as usize).product() }
}

/// Whether elements are row-major without gaps; dimensions of size 1 may have any stride.
pub(crate) fn is_contiguous(sizes: &[i64], strides: &[i64]) -> bool {
    if sizes.contains(&0) {
        return true;
    }
    let mut expected = 1i64;
    sizes.iter().zip(strides).rev().all(|(&size, &stride)| {
        let fits = size == 1 || stride == expected;
        expected = expected.saturating_mul(size);
        fits
    })
}

/// Why sizes, strides and memory do not form a tensor: a code instead of a text, which would slow down every tensor of
/// every call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LayoutError {
    Rank,
    NoSizes,
    Negative,
    Overflow,
    NoMemory,
    TooLarge,
}

impl LayoutError {
    /// The error for a tensor of the host.
    ///
    /// # Safety
    /// As for [`TensorView::from_dl`].
    #[cold]
    pub(crate) unsafe fn of_dl(self, tensor: &DLTensor) -> PluginError {
        let (mut sizes, mut strides): (&[i64], &[i64]) = (&[], &[]);
        if matches!(self, LayoutError::Negative | LayoutError::Overflow) {
            // SAFETY: both pointers come from sizes and strides, which hold `ndim` values then.
            unsafe {
                sizes = std::slice::from_raw_parts(tensor.shape, tensor.ndim as usize);
                strides = std::slice::from_raw_parts(tensor.strides, tensor.ndim as usize);
            }
        }
        match self {
            LayoutError::Rank => PluginError::invalid(format!("a tensor has {} dimensions", tensor.ndim)),
            _ => self.error(sizes, strides),
        }
    }

    #[cold]
    fn error(self, sizes: &[i64], strides: &[i64]) -> PluginError {
        PluginError::invalid(match self {
            LayoutError::Rank => "a tensor has too many dimensions".to_owned(),
            LayoutError::NoSizes => {
                "a tensor comes without sizes or strides; the host must pass both".to_owned()
            }
            LayoutError::Negative => format!("negative sizes {sizes:?} or strides {strides:?}"),
            LayoutError::Overflow => format!("sizes {sizes:?} with strides {strides:?} overflow"),
            LayoutError::NoMemory => "a tensor with elements has no memory".to_owned(),
            LayoutError::TooLarge => "a tensor's sizes overflow the address space".to_owned(),
        })
    }
}

/// [`span_elements`] with a text as its error.
pub(crate) fn span_of(sizes: &[i64], strides: &[i64]) -> Result<usize, PluginError> {
    span_elements(sizes, strides).map_err(|mismatch| mismatch.error(sizes, strides))
}

/// Elements from the first to the last one addressed, both included; 0 where a size is 0. One pass: this runs for every
/// tensor of every call.
#[inline]
fn span_elements(sizes: &[i64], strides: &[i64]) -> Result<usize, LayoutError> {
    let (mut last, mut numel) = (0i64, 1i64);
    let (mut signs, mut empty, mut overflow) = (0i64, false, false);
    for (&size, &stride) in sizes.iter().zip(strides) {
        // The sign bit is set where one is negative.
        signs |= size | stride;
        empty |= size == 0;
        let (reach, reach_over) = size.wrapping_sub(1).overflowing_mul(stride);
        let (sum, sum_over) = last.overflowing_add(reach);
        // `numel` must not overflow either: zero strides make it larger than the span.
        let (product, product_over) = numel.overflowing_mul(size);
        (last, numel) = (sum, product);
        overflow |= reach_over | sum_over | product_over;
    }
    if signs < 0 {
        return Err(LayoutError::Negative);
    }
    if empty {
        return Ok(0);
    }
    if overflow || last == i64::MAX {
        return Err(LayoutError::Overflow);
    }
    Ok(last as usize + 1)
}

pub(crate) fn check_element<T: Element>(dtype: DType) -> Result<(), PluginError> {
    if T::DTYPES.contains(&dtype) {
        return Ok(());
    }
    Err(PluginError::invalid(format!("a tensor of {dtype} is read as `{}`", std::any::type_name::<T>())))
}

/// The type in DLPack's terms.
pub(crate) fn dl_type(dtype: DType) -> DLDataType {
    let (code, bits) = dtype.dlpack();
    DLDataType { code, bits, lanes: 1 }
}

pub(crate) fn dtype_of(t: DLDataType) -> Result<DType, PluginError> {
    DType::from_dlpack(t.code, t.bits).filter(|_| t.lanes == 1).ok_or_else(|| {
        PluginError::unsupported(format!(
            "a tensor has DLPack type code {} with {} bits and {} lanes, which is no dtype here",
            t.code, t.bits, t.lanes
        ))
    })
}

/// A bound constant: borrowed through the ABI until the next binding.
pub(crate) struct Bound {
    name: String,
    data: *const u8,
    dtype: DType,
    device: DLDevice,
    sizes: Box<[i64]>,
    strides: Box<[i64]>,
}

// SAFETY: memory that nothing writes while it is bound, by the contract of `bind_constants`.
unsafe impl Send for Bound {}
// SAFETY: nothing writes the memory while it is bound, so threads may share it.
unsafe impl Sync for Bound {}

impl Bound {
    /// Extends a view beyond its call.
    ///
    /// # Safety
    /// The memory of `view` stays valid and unwritten until this value is dropped.
    pub(crate) unsafe fn new(name: &str, view: TensorView<'_>) -> Self {
        Self {
            name: name.to_owned(),
            data: view.data,
            dtype: view.dtype,
            device: view.device,
            sizes: view.sizes.into(),
            strides: view.strides.into(),
        }
    }
}

/// The constants bound to an executable, in the order of the host's call.
#[derive(Clone, Copy)]
pub struct Constants<'a> {
    bound: &'a [Bound],
}

impl<'a> Constants<'a> {
    /// No constants.
    pub const NONE: Constants<'static> = Constants { bound: &[] };

    pub(crate) fn new(bound: &'a [Bound]) -> Self {
        Self { bound }
    }
    /// How many there are.
    pub fn len(&self) -> usize {
        self.bound.len()
    }
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.bound.is_empty()
    }
    /// Name and tensor at a position.
    pub fn get(&self, index: usize) -> Option<(&'a str, TensorView<'a>)> {
        self.bound.get(index).map(|b| {
            let Bound { name, data, dtype, device, sizes, strides } = b;
            let view = TensorView {
                data: *data,
                dtype: *dtype,
                device: *device,
                sizes,
                strides,
                memory: PhantomData,
            };
            (name.as_str(), view)
        })
    }
    /// Position of a name. Look it up in `bind_constants` and keep it, rather than in every `execute`.
    pub fn position(&self, name: &str) -> Option<usize> {
        self.bound.iter().position(|b| b.name == name)
    }
    /// The tensor with a name.
    pub fn by_name(&self, name: &str) -> Result<TensorView<'a>, PluginError> {
        let found = self.position(name).and_then(|i| self.get(i));
        found
            .map(|(_, view)| view)
            .ok_or_else(|| PluginError::invalid("this constant was not bound").at(name))
    }
    /// All names and tensors.
    pub fn iter(&self) -> impl Iterator<Item = (&'a str, TensorView<'a>)> + use<'a> {
        let this = *self;
        (0..this.len()).filter_map(move |i| this.get(i))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn typed_reads_are_checked() {
        let values = [0f32, 1., 2., 3., 4., 5.];
        let rows = TensorView::from_slice(&values, DType::F32, &[2, 3], &[3, 1]).unwrap();
        assert_eq!(rows.as_slice::<f32>().unwrap(), values);
        assert!(rows.as_slice::<i32>().unwrap_err().message.contains("read as `i32`"));
        let columns = TensorView::from_slice(&values, DType::F32, &[3, 2], &[1, 3]).unwrap();
        assert!(columns.as_slice::<f32>().is_err());
        assert_eq!(columns.get::<f32>(&[2, 1]).unwrap(), 5.);
        assert!(columns.get::<f32>(&[0, 2]).is_err());
        assert!(TensorView::from_slice(&values, DType::F32, &[3, 3], &[3, 1]).is_err(), "too small");
        assert!(TensorView::from_slice(&values, DType::F32, &[i64::MAX, 2], &[0, 0]).is_err(), "overflow");
        assert!(TensorView::from_slice(&values, DType::F32, &[2], &[-1]).is_err(), "negative stride");
        assert!(
            TensorView::from_slice(&values, DType::F32, &[i64::MIN, 2], &[1, 1]).is_err(),
            "negative size"
        );
        assert!(TensorView::from_slice(&values, DType::F32, &[i64::MAX], &[1]).is_err(), "one too many");
        assert!(TensorView::from_slice(&values, DType::F32, &[i64::MAX, 2, 0], &[1, 1, 1]).is_ok(), "empty");
        let empty = TensorView::from_slice(&values, DType::F32, &[i64::MAX, 4, 0], &[1, 1, 1]).unwrap();
        assert_eq!((empty.numel(), empty.as_slice::<f32>().unwrap().len()), (0, 0));
        let empty = TensorView::from_slice(&values[..0], DType::F32, &[0, 7], &[7, 1]).unwrap();
        assert_eq!(empty.as_slice::<f32>().unwrap(), &[] as &[f32]);
    }
}
