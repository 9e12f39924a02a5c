//! Tensors from and to other programs: `.npy` files, and DLPack's structs in memory.

use std::path::Path;

use plugin_host::Value as AnyValue;

use super::Tensor;
use crate::foreign::dlpack::{Access, DLManagedTensorVersioned, borrowed, given};
use crate::{Error, npy};

impl Tensor {
    /// Reads an array of NumPy's.
    ///
    /// # Errors
    /// The file cannot be read or is no array of numbers.
    pub fn load_npy(path: &Path) -> Result<Tensor, Error> {
        Ok(npy::read(path)?.into())
    }

    /// Writes an array of NumPy's, whole or not at all. In a function that is captured this is a graph break.
    ///
    /// # Errors
    /// As for [`to_host`](Tensor::to_host); a dtype that NumPy does not have (`bf16`); the file cannot be written.
    #[track_caller]
    pub fn save_npy(&self, path: &Path) -> Result<(), Error> {
        Ok(npy::write(&self.to_host()?, path)?)
    }

    /// Gives the elements away as a managed tensor of DLPack, which whoever receives it frees by its deleter. Nothing is copied:
    /// the memory is that of this tensor, and must not be written. In a function that is captured this is a graph break.
    ///
    /// # Errors
    /// As for [`to_host`](Tensor::to_host).
    #[track_caller]
    pub fn to_dlpack(&self) -> Result<*mut DLManagedTensorVersioned, Error> {
        Ok(given(AnyValue::Host(self.to_host()?)))
    }

    /// Takes a managed tensor of the host's memory; nothing is copied, and its deleter is called when the last handle of it is
    /// gone.
    ///
    /// # Safety
    /// The pointer is that of a well-formed managed tensor which nobody else frees, and nobody writes its elements as long as
    /// it lives.
    ///
    /// # Errors
    /// An element type that this project does not have, and memory of a device. The tensor is freed then too.
    pub unsafe fn from_dlpack(managed: *mut DLManagedTensorVersioned) -> Result<Tensor, Error> {
        let owner = Managed(managed);
        // SAFETY: the caller vouches for the struct; `owner` keeps it until the memory is released.
        let value = unsafe {
            let lent = &(*managed).dl_tensor;
            borrowed(lent, Access::Read, move || drop(owner))
        };
        match value? {
            AnyValue::Host(tensor) => Ok(tensor.into()),
            AnyValue::Device(tensor) => Err(Error::OtherDevice(format!("{tensor:?}"))),
        }
    }
}

/// Frees a managed tensor when it is dropped.
struct Managed(*mut DLManagedTensorVersioned);

// SAFETY: DLPack asks of a deleter that any thread may call it.
unsafe impl Send for Managed {}
// SAFETY: it has no method that takes `&self`.
unsafe impl Sync for Managed {}

impl Drop for Managed {
    fn drop(&mut self) {
        // SAFETY: the struct is alive, and this is its only owner (`from_dlpack`).
        unsafe {
            if let Some(deleter) = (*self.0).deleter {
                deleter(self.0);
            }
        }
    }
}
