//! Archives of `torch.export` as Python callables on arrays of any framework that speaks DLPack: NumPy, torch, JAX, CuPy.

use ferroflux::foreign::dlpack::{Access, DLManagedTensorVersioned, DLTensor, borrowed};
use ferroflux::tensor::safetensors::SafetensorsFile;
use ferroflux::{Compiled, Input, Mode, Options, Program, SafetensorsSource, Value};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyFloat, PyInt, PyString, PyTuple};
use pyo3::{ffi, intern};
use smallvec::SmallVec;

use crate::callable::explained;
use crate::error::{Error, guarded, raised};
use crate::exchange;
use crate::process::without_lock;

/// A compiled archive.
#[pyclass(frozen, module = "ferroflux")]
pub(crate) struct Archive {
    program: Program,
    compiled: Compiled,
}

/// The classic managed tensor of DLPack, without a version.
#[repr(C)]
struct Managed {
    tensor: DLTensor,
    context: *mut std::ffi::c_void,
    deleter: Option<unsafe extern "C" fn(*mut Managed)>,
}

/// A managed tensor that was taken out of a capsule: deleted once, when dropped.
enum Taken {
    Classic(*mut Managed),
    Versioned(*mut DLManagedTensorVersioned),
}

// SAFETY: DLPack's deleters may be called on any thread.
unsafe impl Send for Taken {}
// SAFETY: shared references do nothing.
unsafe impl Sync for Taken {}

impl Drop for Taken {
    fn drop(&mut self) {
        // SAFETY: the tensor was taken out of its capsule, so this is its only owner.
        unsafe {
            match *self {
                Taken::Classic(t) => (*t).deleter.map(|delete| delete(t)),
                Taken::Versioned(t) => (*t).deleter.map(|delete| delete(t)),
            };
        }
    }
}

/// An array of any framework as a value over its memory.
fn array(object: &Bound<'_, PyAny>) -> PyResult<Value> {
    let py = object.py();
    let options = PyDict::new(py);
    options.set_item("max_version", (1, 0))?;
    let capsule = match object.call_method("__dlpack__", (), Some(&options)) {
        Ok(capsule) => capsule,
        // Older producers do not know the argument.
        Err(_) => object.call_method0(intern!(py, "__dlpack__"))?,
    };
    let (classic, versioned) = (c"dltensor", c"dltensor_versioned");
    // SAFETY: names and the capsule live; a pointer is only taken by the name that the capsule has, and the capsule is
    // renamed, as the protocol wants it, so that its destructor leaves the tensor alone.
    let (tensor, taken) = unsafe {
        if ffi::PyCapsule_IsValid(capsule.as_ptr(), versioned.as_ptr()) == 1 {
            let at = ffi::PyCapsule_GetPointer(capsule.as_ptr(), versioned.as_ptr())
                .cast::<DLManagedTensorVersioned>();
            ffi::PyCapsule_SetName(capsule.as_ptr(), c"used_dltensor_versioned".as_ptr());
            ((*at).dl_tensor, Taken::Versioned(at))
        } else if ffi::PyCapsule_IsValid(capsule.as_ptr(), classic.as_ptr()) == 1 {
            let at = ffi::PyCapsule_GetPointer(capsule.as_ptr(), classic.as_ptr()).cast::<Managed>();
            ffi::PyCapsule_SetName(capsule.as_ptr(), c"used_dltensor".as_ptr());
            ((*at).tensor, Taken::Classic(at))
        } else {
            return Err(PyTypeError::new_err("`__dlpack__` returned no capsule of DLPack"));
        }
    };
    // SAFETY: the producer keeps the memory until the deleter runs.
    unsafe { borrowed(&tensor, Access::Read, move || drop(taken)) }.map_err(raised)
}

/// An argument of a call.
fn input(object: &Bound<'_, PyAny>) -> PyResult<Input> {
    if object.is_none() {
        return Ok(Input::None);
    }
    if let Ok(b) = object.cast::<PyBool>() {
        return Ok(Input::Bool(b.is_true()));
    }
    if object.is_instance_of::<PyInt>() {
        return Ok(Input::Int(object.extract()?));
    }
    if object.is_instance_of::<PyFloat>() {
        return Ok(Input::Float(object.extract()?));
    }
    if object.is_instance_of::<PyString>() {
        return Ok(Input::Str(object.extract::<String>()?.into()));
    }
    if object.hasattr(intern!(object.py(), "__dlpack__"))? {
        return Ok(Input::Tensor(array(object)?));
    }
    let kind = object.get_type().name()?.to_string();
    Err(PyTypeError::new_err(format!(
        "an argument is a `{kind}`; archives take arrays with `__dlpack__`, numbers, text and None"
    )))
}

#[pymethods]
impl Archive {
    /// Reads and compiles the archive at `path`.
    #[new]
    #[pyo3(signature = (path, backend, mode, options, weights=None))]
    fn new(
        py: Python<'_>,
        path: String,
        backend: &str,
        mode: &str,
        options: Vec<(String, String)>,
        weights: Option<String>,
    ) -> PyResult<Archive> {
        let mode: Mode =
            mode.parse().map_err(|e: ferroflux::UnknownMode| PyValueError::new_err(e.to_string()))?;
        let mut chosen = Options::new().backend(backend).mode(mode);
        for (name, value) in options {
            chosen = chosen.backend_option(name, value);
        }
        let open = |path| SafetensorsFile::open(path).map_err(|e| Error::new_err(e.to_string()));
        let weights = weights.map(open).transpose()?;
        let made = without_lock(py, || {
            guarded(|| {
                let mut program = Program::load(&path)?;
                if let Some(file) = &weights {
                    program.fill_weights(&SafetensorsSource { file, prefix: "" })?;
                }
                let compiled = program.compile(&chosen)?;
                Ok((program, compiled))
            })
        });
        let (program, compiled) = made.map_err(raised)?;
        Ok(Archive { program, compiled })
    }

    /// Runs the model; returns a list of [`Array`].
    #[pyo3(signature = (*args))]
    fn __call__(&self, args: &Bound<'_, PyTuple>) -> PyResult<Vec<Array>> {
        let py = args.py();
        let inputs = args.iter().map(|a| input(&a)).collect::<PyResult<Vec<_>>>()?;
        let done = without_lock(py, || guarded(|| self.compiled.call_with(&inputs))).map_err(raised)?;
        Ok(done.into_iter().map(|t| Array(Value::Host(t))).collect())
    }

    /// The inputs of a call in order, as (name, description).
    #[getter]
    fn inputs(&self) -> Vec<(String, String)> {
        self.compiled.inputs().iter().map(|i| (i.name.clone(), i.kind.to_string())).collect()
    }

    /// The backend that runs it.
    #[getter]
    fn backend(&self) -> &str {
        self.compiled.backend()
    }

    /// Whether the code came from the cache of an earlier process.
    #[getter(from_cache)]
    fn is_from_cache(&self) -> bool {
        self.compiled.is_from_cache()
    }

    /// Operators with counts, kernels as (name, kind, nodes), and bytes of memory.
    fn explain<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        explained(py, self.compiled.explain())
    }

    /// The graph as code, as `print_readable` of PyTorch.
    fn code(&self) -> String {
        self.program.graph().print_readable()
    }

    /// The graph as a drawing in SVG.
    fn svg(&self) -> String {
        ferroflux::fx_ir::draw::graph_diagram(self.program.graph()).to_svg()
    }
}

/// A result in memory of this package; any framework takes it by `from_dlpack`.
#[pyclass(frozen, module = "ferroflux")]
pub(crate) struct Array(Value);

#[pymethods]
impl Array {
    /// Number of elements of each dimension.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.0.sizes())
    }

    /// Element type, such as `f32`.
    #[getter]
    fn dtype(&self) -> String {
        self.0.dtype().to_string()
    }

    /// The device in DLPack's numbering.
    fn __dlpack_device__(&self) -> (i32, i32) {
        match &self.0 {
            Value::Host(_) => (ferroflux::foreign::dlpack::DL_CPU, 0),
            Value::Device(t) => (t.device().kind, t.device().ordinal),
        }
    }

    /// A capsule over the memory, which is shared.
    #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<Bound<'py, PyAny>>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let _ = stream;
        if dl_device.is_some_and(|wanted| wanted != self.__dlpack_device__()) {
            return Err(Error::new_err("results are not copied to other devices by DLPack"));
        }
        if max_version.is_none_or(|(major, _)| major < 1) {
            return Err(Error::new_err("results are given by DLPack 1 or later"));
        }
        let value = match (&self.0, copy) {
            (Value::Host(t), Some(true)) => {
                Value::Host(t.copied().map_err(|e| Error::new_err(e.to_string()))?)
            }
            (value, _) => value.clone(),
        };
        exchange::capsule(py, value)
    }

    fn __repr__(&self) -> String {
        let sizes: SmallVec<[usize; 6]> = self.0.sizes().into();
        format!("ferroflux.Array({}{:?})", self.0.dtype(), &sizes[..])
    }
}
