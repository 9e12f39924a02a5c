//! What crosses: tensors lent to the plugin, outputs of it, compile requests, laid out for C.

use std::ptr::null;

use plugin_abi::{
    DLDevice, DLManagedTensorVersioned, DLTensor, FfxCompileRequest, FfxIrVersion, FfxNameValue, FfxProgram,
    FfxStr, Head,
};
use tensor::Tensor;

use super::place::Guarded;

/// A tensor lent to the plugin: struct, sizes and strides.
pub(super) struct LentTensor {
    pub(super) tensor: Box<DLTensor>,
    _dims: Box<[i64]>,
}

impl LentTensor {
    pub(super) fn new(tensor: &Tensor) -> LentTensor {
        let parts = tensor.raw_parts();
        let (code, bits) = parts.dtype.dlpack();
        let sizes = parts.sizes.iter().map(|s| *s as i64);
        let mut dims: Box<[i64]> = sizes.chain(parts.strides.iter().map(|s| *s as i64)).collect();
        let rank = parts.sizes.len();
        let shape = dims.as_mut_ptr();
        let tensor = Box::new(DLTensor {
            data: parts.data.cast_mut().cast(),
            device: DLDevice { device_type: plugin_abi::dlpack::DL_CPU, device_id: 0 },
            ndim: rank as i32,
            dtype: plugin_abi::DLDataType { code, bits, lanes: 1 },
            shape,
            strides: shape.wrapping_add(rank),
            byte_offset: 0,
        });
        LentTensor { tensor, _dims: dims }
    }
}

/// An output that its deleter frees when dropped.
pub struct Output(pub(super) *mut DLManagedTensorVersioned);

// SAFETY: the ABI demands that the deleter may be called on any thread.
unsafe impl Send for Output {}

impl Output {
    /// Address of the struct and of its first element, and whether it lies in host memory.
    pub fn addresses(&self) -> (usize, usize, bool) {
        // SAFETY: an output of a successful call, not deleted yet.
        let managed = unsafe { &*self.0 };
        let t = &managed.dl_tensor;
        let on_host = t.device.device_type == plugin_abi::dlpack::DL_CPU;
        (self.0 as usize, t.data as usize + t.byte_offset as usize, on_host)
    }
    /// Whether it has a deleter.
    pub fn has_deleter(&self) -> bool {
        // SAFETY: as above.
        unsafe { (*self.0).deleter.is_some() }
    }
    /// A copy of the first `n` bytes, for a row-major output in host memory.
    pub fn bytes(&self, n: usize) -> Vec<u8> {
        let (_, data, _) = self.addresses();
        // SAFETY: the caller knows the program, so how large its outputs are.
        unsafe { std::slice::from_raw_parts(data as *const u8, n) }.to_vec()
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        // SAFETY: owned, and not deleted before.
        unsafe {
            if let Some(delete) = (*self.0).deleter {
                delete(self.0);
            }
        }
    }
}

/// A program as bytes.
pub struct Form {
    /// In which form.
    pub ir: FfxIrVersion,
    /// The bytes.
    pub bytes: Vec<u8>,
}

impl Form {
    /// A request to compile it.
    pub fn request(&self, device: DLDevice) -> Request<'_> {
        Request::new(self.ir, &self.bytes, device)
    }
}

/// A compile request, laid out for C.
pub struct Request<'a> {
    request: Box<Guarded<FfxCompileRequest>>,
    program: Box<Guarded<FfxProgram>>,
    options: Box<[FfxNameValue]>,
    _bytes: std::marker::PhantomData<&'a [u8]>,
}

impl<'a> Request<'a> {
    /// A program for a device, in default mode, without options.
    pub fn new(ir: FfxIrVersion, bytes: &'a [u8], device: DLDevice) -> Request<'a> {
        let head = Head::of::<FfxProgram>();
        let program = Guarded::new(FfxProgram { head, ir, bytes: bytes.as_ptr(), n_bytes: bytes.len() });
        let request = Guarded::new(FfxCompileRequest {
            head: Head::of::<FfxCompileRequest>(),
            program: &raw const program.value,
            device,
            mode: FfxStr::EMPTY,
            options: null(),
            n_options: 0,
        });
        Request { request, program, options: Box::default(), _bytes: std::marker::PhantomData }
    }
    /// Sets the mode.
    #[must_use]
    pub fn mode(mut self, mode: &'a str) -> Request<'a> {
        self.request.value.mode = FfxStr::new(mode);
        self
    }
    /// Sets one option.
    #[must_use]
    pub fn option(mut self, name: &'a str, value: &'a str) -> Request<'a> {
        self.options = [FfxNameValue { name: FfxStr::new(name), value: FfxStr::new(value) }].into();
        (self.request.value.options, self.request.value.n_options) = (self.options.as_ptr(), 1);
        self
    }
    /// Claims that both structs are `more` bytes larger, and of a later minor.
    #[must_use]
    pub fn newer(mut self, more: u32) -> Request<'a> {
        for head in [&mut self.request.value.head, &mut self.program.value.head] {
            head.struct_size += more;
            head.minor += 9;
        }
        self
    }
    /// For a call.
    pub fn pointer(&self) -> *const FfxCompileRequest {
        &raw const self.request.value
    }
}
