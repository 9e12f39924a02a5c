//! Machine code of a device: kept on disk, compiled where it is not there, loaded when a kernel is first used.

use std::ffi::CString;
use std::sync::{Arc, OnceLock};

use super::{Handle, Vendor};
use crate::{Cache, GpuError, Module};

/// A kernel of a module that is never unloaded, loaded when it is first used.
pub struct Function {
    code: Arc<Code>,
    entry: CString,
    handle: OnceLock<Handle>,
}

/// Machine code.
struct Code {
    bytes: Vec<u8>,
    module: OnceLock<Handle>,
}

impl Code {
    /// Loads the code where that has not happened; the device is current.
    fn module<V: Vendor>(&self, vendor: &V) -> Result<Handle, GpuError> {
        if let Some(module) = self.module.get() {
            return Ok(*module);
        }
        let _span = tracing::debug_span!(target: "kernel", "load machine code").entered();
        // SAFETY: the code is whole, made for this device. Two threads may both load it: one module is kept, and neither is
        // unloaded.
        let module = unsafe { vendor.load(&self.bytes)? };
        Ok(*self.module.get_or_init(|| module))
    }
}

impl Function {
    /// The driver's handle; the device is current.
    pub(super) fn handle<V: Vendor>(&self, vendor: &V) -> Result<Handle, GpuError> {
        if let Some(handle) = self.handle.get() {
            return Ok(*handle);
        }
        let module = self.code.module(vendor)?;
        // SAFETY: the module is loaded and never unloaded.
        let function = unsafe { vendor.function(module, &self.entry)? };
        Ok(*self.handle.get_or_init(|| function))
    }
}

/// Machine code of a module, from the cache or compiled, and whether it was compiled.
fn code<V: Vendor>(
    vendor: &V,
    module: &Module,
    compiler: &str,
    cache: &Cache,
) -> Result<(Vec<u8>, bool), GpuError> {
    let text = [module.prelude.as_bytes(), module.kernels.as_bytes()];
    let key = [text[0], text[1], vendor.architecture().as_bytes(), compiler.as_bytes()];
    if let Some(code) = cache.get(&key) {
        return Ok((code, false));
    }
    let started = std::time::Instant::now();
    let code = vendor.compile(module)?;
    let characters = module.prelude.len() + module.kernels.len();
    tracing::debug!(target: "kernel", time = ?started.elapsed(), characters, entries = ?module.entries, "compiled");
    cache.put(&key, &code);
    Ok((code, true))
}

/// Compiles modules at once, started in their order; the functions of each in the order of its entries.
pub(super) fn compile<V: Vendor>(
    vendor: &V,
    modules: &[Module],
    cache: &Cache,
) -> Result<Vec<Vec<Function>>, GpuError> {
    let started = std::time::Instant::now();
    let compiler = V::compiler()?;
    let codes = in_order(modules, |m| code(vendor, m, &compiler, cache));
    let codes = codes.into_iter().collect::<Result<Vec<(Vec<u8>, bool)>, GpuError>>()?;
    let fresh = codes.iter().filter(|c| c.1).count();
    tracing::debug!(target: "kernel", modules = modules.len(), compiled = fresh, time = ?started.elapsed(), "machine code");
    if fresh > 0 {
        cache.tidy();
    }
    let functions = |((bytes, _), module): ((Vec<u8>, bool), &Module)| {
        let code = Arc::new(Code { bytes, module: OnceLock::new() });
        let function = |entry: &String| {
            let entry = CString::new(entry.as_str()).map_err(|e| GpuError::Malformed(e.to_string()))?;
            Ok(Function { code: Arc::clone(&code), entry, handle: OnceLock::new() })
        };
        module.entries.iter().map(function).collect()
    };
    codes.into_iter().zip(modules).map(functions).collect()
}

/// Applies `work` to every item at once, started in their order: a parallel iterator starts in the middle of the list too.
fn in_order<T: Sync, R: Send>(items: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let mut results: Vec<Option<R>> = items.iter().map(|_| None).collect();
    let work = &work;
    rayon::scope_fifo(|scope| {
        for (item, result) in items.iter().zip(&mut results) {
            scope.spawn_fifo(move |_| *result = Some(work(item)));
        }
    });
    results.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::sync::Mutex;

    use super::in_order;

    #[test]
    fn work_starts_and_is_returned_in_the_order_of_the_items() {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
        let started = Mutex::new(Vec::new());
        let items: Vec<usize> = (0..20).collect();
        let work = |n: &usize| {
            started.lock().unwrap().push(*n);
            n * n
        };
        let squares = pool.install(|| in_order(&items, work));
        assert_eq!(*started.lock().unwrap(), items);
        assert_eq!(squares, items.iter().map(|n| n * n).collect::<Vec<_>>());
    }
}
