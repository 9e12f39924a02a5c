//! MIOpen in its immediate mode: plans of convolutions and their launch. Signatures and numbers are those of its public header
//! (`miopen.h`).
//!
//! Not here: which convolution a step is, the layouts of its tensors and its epilogue (`gpu_runtime::convolutions`).

use std::ffi::{c_int, c_void};
use std::path::Path;
use std::ptr::null_mut;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use gpu_runtime::GpuError;
use gpu_runtime::convolutions::{
    Convolutions, Fused, GrowingWorkspace, Kept, MAX_WORKSPACE, Problem, Role, Tensors, Uid,
};
use ir_core::DType;

use crate::api::{Opaque, done, lacks, narrow, table};
use crate::libraries::{self, Library};
use crate::vendor::StreamContext;

/// `miopenConvolution`: a cross-correlation.
const CORRELATION: c_int = 0;
/// `miopenConvolutionAttrib_t`: on gfx90a, float16 through bfloat16, and whether equal runs give equal bits.
const THROUGH_BF16: c_int = 0;
const DETERMINISTIC: c_int = 1;
/// Solutions that the library is asked for at most.
const MAX_SOLUTIONS: usize = 64;

/// `miopenConvSolution_t`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct Solution {
    time: f32,
    workspace: usize,
    id: u64,
    algorithm: c_int,
}

table! {
    /// The functions of the library that are the same for all directions.
    Common of "MIOpen (libMIOpen)";
    create = "miopenCreateWithStream"(*mut Opaque, Opaque),
    destroy = "miopenDestroy"(Opaque),
    tensor_create = "miopenCreateTensorDescriptor"(*mut Opaque),
    tensor_set = "miopenSetTensorDescriptor"(Opaque, c_int, c_int, *const c_int, *const c_int),
    tensor_destroy = "miopenDestroyTensorDescriptor"(Opaque),
    convolution_create = "miopenCreateConvolutionDescriptor"(*mut Opaque),
    convolution_set = "miopenInitConvolutionNdDescriptor"(
        Opaque, c_int, *const c_int, *const c_int, *const c_int, c_int
    ),
    convolution_groups = "miopenSetConvolutionGroupCount"(Opaque, c_int),
    convolution_attribute = "miopenSetConvolutionAttribute"(Opaque, c_int, c_int),
    convolution_destroy = "miopenDestroyConvolutionDescriptor"(Opaque),
    ;
}

/// The functions of one direction of a convolution: each takes the descriptors of two given tensors, of the convolution and of the
/// unknown tensor.
struct Direction {
    count: unsafe extern "C" fn(Opaque, Opaque, Opaque, Opaque, Opaque, *mut usize) -> c_int,
    propose: Propose,
    compile: unsafe extern "C" fn(Opaque, Opaque, Opaque, Opaque, Opaque, u64) -> c_int,
    run: Run,
    /// The given tensors in the order of its functions, and the unknown one.
    order: [Uid; 3],
}

/// Handle, descriptors, room for solutions, how many there are, and the solutions.
type Propose =
    unsafe extern "C" fn(Opaque, Opaque, Opaque, Opaque, Opaque, usize, *mut usize, *mut Solution) -> c_int;
/// Handle, both given tensors, convolution, the unknown tensor, workspace with its bytes, and the solution.
#[rustfmt::skip]
type Run = unsafe extern "C" fn(
    Opaque, Opaque, *const c_void, Opaque, *const c_void, Opaque, Opaque, *mut c_void, *mut c_void, usize, u64,
) -> c_int;

/// The functions of the library.
struct Functions {
    common: Common,
    /// Of the convolution itself and of its gradients to the input and to the weight.
    directions: [Direction; 3],
}

impl Functions {
    fn load() -> Result<Functions, GpuError> {
        let (library, path) = libraries::load(Library::Dnn)?;
        let direction = |way: &str, order: [Uid; 3]| -> Result<Direction, GpuError> {
            let name = |what: &str| format!("miopenConvolution{way}{what}");
            // SAFETY: the functions with these names have these types.
            unsafe {
                let count = symbol(library, path, &name("GetSolutionCount"))?;
                let propose = symbol(library, path, &name("GetSolution"))?;
                let compile = symbol(library, path, &name("CompileSolution"))?;
                let run = symbol(library, path, &name("Immediate"))?;
                Ok(Direction { count, propose, compile, run, order })
            }
        };
        let forward = direction("Forward", [Uid::W, Uid::X, Uid::Y])?;
        let data = direction("BackwardData", [Uid::Y, Uid::W, Uid::X])?;
        let filter = direction("BackwardWeights", [Uid::Y, Uid::X, Uid::W])?;
        Ok(Functions { common: Common::of(library, path)?, directions: [forward, data, filter] })
    }

    fn direction(&self, role: Role) -> &Direction {
        match role {
            Role::Forward => &self.directions[0],
            Role::Data => &self.directions[1],
            Role::Filter => &self.directions[2],
        }
    }
}

/// A function of the library by its name.
///
/// # Safety
/// It has the type.
unsafe fn symbol<T: Copy>(library: &libloading::Library, path: &Path, name: &str) -> Result<T, GpuError> {
    // SAFETY: the caller's promise.
    let found = unsafe { library.get::<T>(name.as_bytes()) };
    found.map(|f| *f).map_err(|_| lacks("MIOpen (libMIOpen)", path, name))
}

fn functions() -> Result<&'static Functions, GpuError> {
    static FUNCTIONS: OnceLock<Result<Functions, GpuError>> = OnceLock::new();
    FUNCTIONS.get_or_init(Functions::load).as_ref().map_err(Clone::clone)
}

/// The library on the stream of a device.
pub(crate) struct Dnn {
    functions: &'static Functions,
    handle: Opaque,
    context: StreamContext,
    workspace: GrowingWorkspace,
    plans: Kept<(Fused, usize), Plan>,
    exclusive: Mutex<()>,
}

// SAFETY: the handle is used only while `exclusive` is held.
unsafe impl Send for Dnn {}
// SAFETY: shared references use the handle only while `exclusive` is held.
unsafe impl Sync for Dnn {}

/// Descriptors of a convolution, destroyed when dropped.
struct Descriptors {
    functions: &'static Common,
    /// The input, the weight and the output of the plain convolution.
    tensors: [Opaque; 3],
    convolution: Opaque,
}

/// A convolution that is ready for launch.
pub(crate) struct Plan {
    descriptors: Descriptors,
    role: Role,
    solution: Solution,
}

// SAFETY: descriptors are memory of the host, and they are only read once the plan is made.
unsafe impl Send for Plan {}
// SAFETY: shared references only read the descriptors.
unsafe impl Sync for Plan {}

impl Drop for Descriptors {
    fn drop(&mut self) {
        // SAFETY: made by the library, destroyed once.
        unsafe {
            for tensor in self.tensors.iter().filter(|t| !t.is_null()) {
                let _ = (self.functions.tensor_destroy)(*tensor);
            }
            if !self.convolution.is_null() {
                let _ = (self.functions.convolution_destroy)(self.convolution);
            }
        }
    }
}

/// `miopenDataType_t`.
fn number_type(dtype: DType) -> Result<c_int, GpuError> {
    match dtype {
        DType::F16 => Ok(0),
        DType::F32 => Ok(1),
        DType::BF16 => Ok(5),
        other => Err(GpuError::Malformed(format!("MIOpen has no convolutions of {other}"))),
    }
}

fn refused(what: &str) -> GpuError {
    GpuError::Driver { call: "miopenConvolution", what: what.into() }
}

/// Numbers in the library's 32 bits.
fn numbers(all: &[i64]) -> Result<Vec<c_int>, GpuError> {
    all.iter().map(|n| narrow("miopenConvolution", *n)).collect()
}

impl Descriptors {
    /// Describes a convolution.
    fn new(functions: &'static Common, fused: &Fused) -> Result<Descriptors, GpuError> {
        let p = &fused.problem;
        if p.padding[0] != p.padding[1] {
            return Err(refused("no convolution with different padding at both ends"));
        }
        let mut made = Descriptors { functions, tensors: [null_mut(); 3], convolution: null_mut() };
        let number = number_type(fused.dtype)?;
        for (slot, sizes) in made.tensors.iter_mut().zip([&p.x, &p.w, &p.y]) {
            let (strides, sizes) = (numbers(&p.format.strides(sizes))?, numbers(sizes)?);
            let rank = sizes.len() as c_int;
            // SAFETY: the handle is written to a field; the library copies as many numbers as it is told.
            unsafe {
                done("miopenCreateTensorDescriptor", (functions.tensor_create)(slot))?;
                let set = (functions.tensor_set)(*slot, number, rank, sizes.as_ptr(), strides.as_ptr());
                done("miopenSetTensorDescriptor", set)?;
            }
        }
        made.convolve(p, fused.deterministic)?;
        Ok(made)
    }

    fn convolve(&mut self, p: &Problem, deterministic: bool) -> Result<(), GpuError> {
        let functions = self.functions;
        let [padding, stride, dilation] =
            [numbers(&p.padding[0])?, numbers(&p.stride)?, numbers(&p.dilation)?];
        let (spatial, groups) = (stride.len() as c_int, narrow("miopenConvolution", p.x[1] / p.w[1].max(1))?);
        // SAFETY: the handle is written to a field; the library copies as many numbers as it is told.
        unsafe {
            let made = (functions.convolution_create)(&mut self.convolution);
            done("miopenCreateConvolutionDescriptor", made)?;
            let (padding, stride, dilation) = (padding.as_ptr(), stride.as_ptr(), dilation.as_ptr());
            let set = functions.convolution_set;
            let set = set(self.convolution, spatial, padding, stride, dilation, CORRELATION);
            done("miopenInitConvolutionNdDescriptor", set)?;
            let set = (functions.convolution_groups)(self.convolution, groups);
            done("miopenSetConvolutionGroupCount", set)?;
            for (name, value) in [(THROUGH_BF16, 0), (DETERMINISTIC, c_int::from(deterministic))] {
                let set = (functions.convolution_attribute)(self.convolution, name, value);
                done("miopenSetConvolutionAttribute", set)?;
            }
        }
        Ok(())
    }

    /// The descriptors of a direction's tensors.
    fn of(&self, direction: &Direction) -> [Opaque; 3] {
        // There are no others than the input, the weight and the output.
        direction.order.map(|uid| self.tensors.get(uid as usize - 1).copied().unwrap_or(null_mut()))
    }
}

impl Dnn {
    /// Starts the library on a device's stream.
    ///
    /// # Errors
    /// The library is missing, what it says.
    pub(crate) fn new(context: StreamContext) -> Result<Dnn, GpuError> {
        let _span = tracing::debug_span!(target: "kernel", "start MIOpen").entered();
        let functions = functions()?;
        context.enter()?;
        let mut handle = null_mut();
        // SAFETY: the handle is written to a local; the stream lives as long as the process.
        let made = unsafe { (functions.common.create)(&mut handle, context.stream.0) };
        done("miopenCreateWithStream", made)?;
        Ok(Dnn {
            functions,
            handle,
            context,
            workspace: GrowingWorkspace::default(),
            plans: Kept::default(),
            exclusive: Mutex::default(),
        })
    }

    /// Asks the library, and compiles its solution of this number, or the last that compiles.
    fn make(&self, fused: &Fused, number: usize) -> Result<Plan, GpuError> {
        let _span = tracing::debug_span!(target: "kernel", "plan of MIOpen").entered();
        self.context.enter()?;
        let _guard = self.lock();
        let descriptors = Descriptors::new(&self.functions.common, fused)?;
        let role = fused.problem.role;
        let direction = self.functions.direction(role);
        let compiled = |solution: &Solution| {
            let ([first, second, unknown], convolution) =
                (descriptors.of(direction), descriptors.convolution);
            // SAFETY: the descriptors live, and the library proposed the solution for them.
            let told =
                unsafe { (direction.compile)(self.handle, first, second, convolution, unknown, solution.id) };
            let reserve =
                |()| self.workspace.reserve(solution.workspace as u64, |bytes| self.context.allocate(bytes));
            let ready = done("miopenConvolutionCompileSolution", told).and_then(reserve);
            ready.inspect_err(|e| tracing::debug!(target: "kernel", "a solution of MIOpen: {e}")).is_ok()
        };
        let mut ready = self.proposed(direction, &descriptors)?.into_iter().filter(compiled);
        let solution = ready.by_ref().take(number + 1).last().ok_or_else(|| refused("no solution"))?;
        drop(ready);
        Ok(Plan { descriptors, role, solution })
    }

    /// The library's solutions with workspaces that are not too large, the best by its own rule first.
    fn proposed(&self, direction: &Direction, of: &Descriptors) -> Result<Vec<Solution>, GpuError> {
        let [first, second, unknown] = of.of(direction);
        let mut count = 0;
        // SAFETY: every descriptor was made above; the number is written to a local.
        let told =
            unsafe { (direction.count)(self.handle, first, second, of.convolution, unknown, &mut count) };
        done("miopenConvolutionGetSolutionCount", told)?;
        let mut found = vec![Solution::default(); count.min(MAX_SOLUTIONS)];
        let (most, propose) = (found.len(), direction.propose);
        if most == 0 {
            return Ok(found);
        }
        let to = found.as_mut_ptr();
        // SAFETY: every descriptor was made above; there is room for as many solutions as are asked for.
        let told =
            unsafe { propose(self.handle, first, second, of.convolution, unknown, most, &mut count, to) };
        done("miopenConvolutionGetSolution", told)?;
        found.truncate(count);
        found.retain(|solution| solution.workspace as u64 <= MAX_WORKSPACE);
        Ok(found)
    }

    fn lock(&self) -> MutexGuard<'_, ()> {
        self.exclusive.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Convolutions for Dnn {
    const NAME: &'static str = "miopen";
    const ALGORITHMS: usize = 3;
    const EPILOGUES: bool = false;
    const FOLDS: bool = false;
    type Plan = Plan;

    fn is_ready(&self, fused: &Fused) -> bool {
        let plan = self.plan(fused, 0);
        plan.inspect_err(|e| tracing::debug!(target: "kernel", "MIOpen: {e}")).is_ok()
    }

    fn plan(&self, fused: &Fused, number: usize) -> Result<Arc<Plan>, GpuError> {
        let key = (fused.clone(), number);
        match self.plans.get(&key) {
            Some(plan) => Ok(plan),
            None => self.make(fused, number).map(|plan| self.plans.put(key, plan)),
        }
    }

    unsafe fn launch(&self, plan: &Plan, tensors: Tensors<'_>) -> Result<(), GpuError> {
        self.context.enter()?;
        let _guard = self.lock();
        let direction = self.functions.direction(plan.role);
        let address = |uid: Uid| {
            let found = tensors.iter().find(|(other, _)| *other == uid);
            found
                .map(|(_, at)| *at)
                .ok_or_else(|| GpuError::Malformed(format!("a convolution without {uid:?}")))
        };
        let [first, second, unknown] = plan.descriptors.of(direction);
        let [a, b, result] = direction.order.map(address);
        let (a, b, result) = (a? as *const c_void, b? as *const c_void, result? as *mut c_void);
        let workspace = self.workspace.address() as *mut c_void;
        let Solution { workspace: bytes, id, .. } = plan.solution;
        let convolution = plan.descriptors.convolution;
        // SAFETY: the caller guarantees the addresses; the workspace was reserved with the plan, and the descriptors outlive the
        // call.
        let status = unsafe {
            (direction.run)(
                self.handle,
                first,
                a,
                second,
                b,
                convolution,
                unknown,
                result,
                workspace,
                bytes,
                id,
            )
        };
        done("miopenConvolutionImmediate", status)
    }
}

impl Drop for Dnn {
    fn drop(&mut self) {
        // SAFETY: made in `new`, destroyed once.
        let _ = unsafe { (self.functions.common.destroy)(self.handle) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The sizes that C gives them.
    #[test]
    fn solutions_are_laid_out_as_in_the_header() {
        assert_eq!(size_of::<Solution>(), 32);
        assert_eq!(std::mem::offset_of!(Solution, workspace), 8);
        assert_eq!(std::mem::offset_of!(Solution, id), 16);
        assert_eq!(std::mem::offset_of!(Solution, algorithm), 24);
    }
}
