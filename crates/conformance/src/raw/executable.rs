//! An executable of the plugin's, called through the raw table.

use std::ptr::null_mut;

use plugin_abi::{
    DLManagedTensorVersioned, DLTensor, FFX_OK, FfxError, FfxExecutable, FfxExecutableInfo, FfxStr, Head,
};
use tensor::Tensor;

use super::lent::{LentTensor, Output};
use super::place::{ErrorPlace, Guarded};
use super::{Raw, bytes_sink, missing};
use crate::case::Fault;

/// An executable that is destroyed when dropped.
pub struct Owned<'a> {
    pub(super) raw: &'a Raw,
    pub(super) exe: *mut FfxExecutable,
}

impl Drop for Owned<'_> {
    fn drop(&mut self) {
        self.raw.destroy(self.exe);
    }
}

impl Owned<'_> {
    /// Its counts: inputs, outputs, constants. `size` is what the caller claims its struct to be.
    ///
    /// # Errors
    /// A failure, or a write beyond the struct.
    pub fn info(&self, size: usize) -> Result<[usize; 3], Fault> {
        let info = self.raw.table.executable_info.ok_or_else(|| missing("executable_info"))?;
        let head = Head { struct_size: size as u32, ..Head::of::<FfxExecutableInfo>() };
        let mut place = Guarded::new(FfxExecutableInfo { head, n_inputs: 0, n_outputs: 0, n_constants: 0 });
        let mut error = ErrorPlace::whole();
        // SAFETY: the executable lives, and so do the places.
        let status = unsafe { info(self.raw.table.ctx, self.exe, &mut place.value, error.pointer()) };
        let i = place.value;
        let covered = |end: usize, value: usize| if size >= end { value } else { 0 };
        let whole = size_of::<FfxExecutableInfo>();
        if !place.is_intact() || (size < whole && i.n_constants != 0) {
            return Err(Fault::wrong(format!("executable_info writes beyond a struct of {size} bytes")));
        }
        if status != FFX_OK {
            return Err(Fault::wrong(format!(
                "executable_info fails with code {status}: {}",
                error.message()
            )));
        }
        Ok([i.n_inputs, i.n_outputs, covered(whole, i.n_constants)])
    }

    /// Runs the executable. `outputs` are places for tensors; `extra` more of them stand behind, which must stay null.
    ///
    /// # Errors
    /// A null slot, or a write beyond the places.
    pub fn execute(
        &self,
        inputs: &[&Tensor],
        outputs: usize,
        error: *mut FfxError,
    ) -> Result<(i32, Vec<Output>), Fault> {
        let execute = self.raw.table.execute.ok_or_else(|| missing("execute"))?;
        let lent: Vec<LentTensor> = inputs.iter().map(|t| LentTensor::new(t)).collect();
        let pointers: Vec<*const DLTensor> = lent.iter().map(|l| &raw const *l.tensor).collect();
        /// Places behind those that the plugin is told of.
        const EXTRA: usize = 8;
        let mut places: Vec<*mut DLManagedTensorVersioned> = vec![null_mut(); outputs + EXTRA];
        // SAFETY: the executable lives; inputs, places and the error struct live through the call.
        let status = unsafe {
            let (given, out) = (pointers.as_ptr(), places.as_mut_ptr());
            execute(self.raw.table.ctx, self.exe, given, pointers.len(), out, outputs, null_mut(), error)
        };
        if places[outputs..].iter().any(|p| !p.is_null()) {
            return Err(Fault::wrong(format!("execute writes more than the {outputs} places for outputs")));
        }
        places.truncate(outputs);
        let owned = places.into_iter().filter(|p| !p.is_null()).map(Output).collect();
        Ok((status, owned))
    }

    /// Binds tensors as constants; the caller keeps them alive.
    ///
    /// # Errors
    /// A null slot: the plugin takes no programs with constants.
    pub fn bind(&self, constants: &[(&str, &Tensor)], error: &mut ErrorPlace) -> Result<i32, Fault> {
        let bind = self.raw.table.bind_constants;
        let bind = bind.ok_or_else(|| Fault::Declined("the plugin takes no constants".into()))?;
        let names: Vec<FfxStr> = constants.iter().map(|(name, _)| FfxStr::new(name)).collect();
        let lent: Vec<LentTensor> = constants.iter().map(|(_, t)| LentTensor::new(t)).collect();
        let pointers: Vec<*const DLTensor> = lent.iter().map(|l| &raw const *l.tensor).collect();
        // SAFETY: names and tensor structs live through the call, the memory behind them as long as the caller keeps it.
        Ok(unsafe {
            let ctx = self.raw.table.ctx;
            bind(ctx, self.exe, names.as_ptr(), pointers.as_ptr(), pointers.len(), error.pointer())
        })
    }

    /// Saves the executable as an artifact.
    ///
    /// # Errors
    /// A failure.
    pub fn save(&self) -> Result<Vec<u8>, Fault> {
        let save = self.raw.table.artifact_save.ok_or_else(|| missing("artifact_save"))?;
        let (mut bytes, mut error) = (Vec::new(), ErrorPlace::whole());
        // SAFETY: the executable lives; the sink and its vector live through the call.
        let status = unsafe {
            let user = std::ptr::from_mut(&mut bytes).cast();
            save(self.raw.table.ctx, self.exe, bytes_sink, user, error.pointer())
        };
        match status {
            FFX_OK => Ok(bytes),
            plugin_abi::FFX_ERR_UNSUPPORTED => Err(Fault::Declined(error.message())),
            _ => Err(Fault::wrong(format!("artifact_save fails with code {status}: {}", error.message()))),
        }
    }
}
