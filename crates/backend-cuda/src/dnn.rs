//! cuDNN: preparing convolutions for sets of sizes, and launching them.
//!
//! Not here: the mapping of steps to convolutions (`gpu_runtime::convolutions`) and the operation graph (`dnn_graph`).

use std::ffi::c_void;
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};

use cudarc::cudnn::sys::{
    self, cudnnBackendAttributeName_t as A, cudnnBackendAttributeType_t as T, cudnnBackendBehaviorNote_t,
    cudnnBackendHeurMode_t, cudnnBackendNumericalNote_t,
};
use gpu_runtime::convolutions::{Convolutions, Fused, GrowingWorkspace, Kept, MAX_WORKSPACE, Tensors};
use gpu_runtime::{AnswerCache, GpuError};
use ir_core::DType;

use crate::dnn_api::Api;
use crate::dnn_desc::{Desc, Kind, failed};
use crate::dnn_graph::{Operations, operations};
use crate::vendor::{StreamContext, Workspace};

/// Number of configurations that the library is asked for, most of which are never built. In single precision without tf32
/// the first thirty use tensor cores (seen with 9.14 on a Hopper).
const MAX_CONFIGURATIONS: usize = 64;
/// Maximum number of channels for which engines are ranked as for few channels.
const FEW_CHANNELS: i64 = 16;

/// The first byte of a cached plan: the kernel is precompiled, the kernel is compiled at run time, or there is no plan.
const READY: u8 = b'r';
const COMPILED: u8 = b'c';
const NO_PLAN: u8 = b'-';
/// The keys of cached answers: plans by convolution and, to warm up later processes, the device's properties and an
/// arbitrary plan.
const PLAN: &[u8] = b"cudnn plan";
const DEVICE: &[u8] = b"cudnn device";
const ANY_PLAN: &[u8] = b"cudnn any plan";

/// The library on one stream.
pub(crate) struct Dnn {
    handle: Handle,
    stream_context: StreamContext,
    /// Plans of earlier processes.
    answer_cache: AnswerCache,
    workspace: GrowingWorkspace,
    plans: Kept<(Fused, usize), Plan>,
    engines: Kept<Fused, Engines>,
    exclusive: Mutex<()>,
    /// Whether the warm-up data for later processes was stored.
    warm_up_saved: Once,
}

/// A library handle, destroyed when dropped.
struct Handle(sys::cudnnHandle_t, &'static Api);

// SAFETY: a handle is only used exclusively.
unsafe impl Send for Handle {}

impl Handle {
    /// Makes a handle; the context is current.
    fn new() -> Result<Handle, GpuError> {
        let api = Api::load()?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: the library writes one pointer.
        unsafe { (api.create)(&mut handle).result() }.map_err(failed("cudnnCreate"))?;
        Ok(Handle(handle, api))
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: the handle was made in `new` and is destroyed once.
        let _ = unsafe { (self.1.destroy)(self.0) };
    }
}

// SAFETY: the handle is used only while `exclusive` is held.
unsafe impl Send for Dnn {}
// SAFETY: shared references use the handle only while `exclusive` is held.
unsafe impl Sync for Dnn {}

/// The library's proposals for a convolution, best first by its own rule.
struct Engines {
    _operations: Operations,
    _graph: Desc,
    configs: Vec<Config>,
}

struct Config {
    desc: Desc,
    /// Whether the engine reports that it uses tensor cores.
    tensor_cores: bool,
    /// Whether the library compiles its kernel at run time, which is slow.
    compiled: bool,
}

/// A convolution that is ready for launch.
pub(crate) struct Plan {
    desc: Desc,
    workspace: u64,
    /// Whether the library compiled its kernel at run time.
    compiled: bool,
    /// The objects that the plan refers to; `None` for a restored plan.
    _engines: Option<Arc<Engines>>,
}

/// What an earlier process stored about a convolution.
enum KnownPlan {
    Plan(Arc<Plan>),
    /// The library only proposes engines that are compiled at run time, and none was compiled.
    Slow,
    /// The library proposes no engine.
    Nothing,
}

impl Dnn {
    /// Starts the library on a stream.
    ///
    /// # Errors
    /// An error of the library, which was found before.
    pub(crate) fn new(stream_context: StreamContext, answer_cache: AnswerCache) -> Result<Dnn, GpuError> {
        let _span = tracing::debug_span!(target: "kernel", "start cuDNN").entered();
        stream_context.enter()?;
        let handle = Handle::new()?;
        // SAFETY: the handle was just made, and the stream lives as long as the process.
        unsafe { (handle.1.set_stream)(handle.0, stream_context.stream().cast()).result() }
            .map_err(failed("cudnnSetStream"))?;
        tracing::debug!(target: "kernel", version = Dnn::version(), "cuDNN");
        Ok(Dnn {
            handle,
            stream_context,
            answer_cache,
            workspace: GrowingWorkspace::default(),
            plans: Kept::default(),
            engines: Kept::default(),
            exclusive: Mutex::default(),
            warm_up_saved: Once::new(),
        })
    }

    /// Makes the library build its tables, which its first plan would do otherwise, before there is a context: it reads a
    /// cached plan for the cached device properties. Does nothing where either is missing or the library is older than
    /// 9.8.
    pub(crate) fn begin(answer_cache: &AnswerCache) {
        let _span = tracing::debug_span!(target: "kernel", "begin with cuDNN").entered();
        let (Some(device), Some(plan)) = (answer_cache.get(&[DEVICE]), answer_cache.get(&[ANY_PLAN])) else {
            return;
        };
        let read = || {
            let mut properties = Desc::new(Kind::CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR)?;
            properties.set(A::CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, T::CUDNN_TYPE_CHAR, &device)?;
            let properties = properties.finish()?;
            let mut desc = Desc::new(Kind::CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR)?;
            desc.refer(A::CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, &[&properties])?;
            desc.set(A::CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION, T::CUDNN_TYPE_CHAR, &plan)?;
            desc.finish().map(drop)
        };
        if let Err(e) = read() {
            tracing::debug!(target: "kernel", "cuDNN is not begun with before it is needed: {e}");
        }
    }

    /// Stores what [`begin`](Dnn::begin) reads.
    fn save_warm_up(&self, plan: &[u8]) {
        let about = || {
            let mut properties = Desc::new(Kind::CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR)?;
            properties.set(A::CUDNN_ATTR_DEVICEPROP_HANDLE, T::CUDNN_TYPE_HANDLE, &[self.handle.0])?;
            properties.finish()?.text(A::CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION)
        };
        match about() {
            Ok(device) => {
                self.answer_cache.put(&[DEVICE], &device);
                self.answer_cache.put(&[ANY_PLAN], plan);
            }
            Err(e) => tracing::debug!(target: "kernel", "cuDNN says nothing of the device: {e}"),
        }
    }

    /// The library's version, `91400` for 9.14; 0 where there is none.
    pub(crate) fn version() -> usize {
        // SAFETY: the function has no arguments.
        Api::load().map_or(0, |api| unsafe { (api.version)() })
    }

    /// What this process or an earlier one knows about a convolution.
    fn known(&self, fused: &Fused, number: usize) -> Result<Option<KnownPlan>, GpuError> {
        let key = (fused.clone(), number);
        if let Some(plan) = self.plans.get(&key) {
            return Ok(Some(KnownPlan::Plan(plan)));
        }
        let Some(text) = self.answer_cache.get(&[PLAN, &name(fused, number)]) else { return Ok(None) };
        let Some((&first, json)) = text.split_first() else { return Ok(None) };
        match first {
            NO_PLAN => return Ok(Some(KnownPlan::Nothing)),
            COMPILED if json.is_empty() => return Ok(Some(KnownPlan::Slow)),
            _ => {}
        }
        self.stream_context.enter()?;
        match self.restored(json).and_then(|found| self.reserve(found.1).map(|()| found)) {
            Ok((desc, workspace)) => {
                let plan = Plan { desc, workspace, compiled: first == COMPILED, _engines: None };
                Ok(Some(KnownPlan::Plan(self.plans.put(key, plan))))
            }
            Err(e) => {
                tracing::debug!(target: "kernel", "a cached plan of cuDNN is made again: {e}");
                Ok(None)
            }
        }
    }

    /// Asks the library, and stores its answer for later processes.
    fn made(&self, fused: &Fused, number: usize) -> Result<Arc<Plan>, GpuError> {
        let _span = tracing::debug_span!(target: "kernel", "plan of cuDNN").entered();
        self.stream_context.enter()?;
        let engines = self.engines(fused)?;
        let key = [PLAN, &name(fused, number)[..]];
        if engines.configs.is_empty() {
            self.answer_cache.put(&key, &[NO_PLAN]);
            return Err(none());
        }
        let plan = self.build(&engines, number)?;
        match plan.desc.text(A::CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION) {
            Ok(json) => {
                let first = if plan.compiled { COMPILED } else { READY };
                self.answer_cache.put(&key, &[&[first], &json[..]].concat());
                self.warm_up_saved.call_once(|| self.save_warm_up(&json));
            }
            Err(e) => tracing::debug!(target: "kernel", "a plan of cuDNN is not kept: {e}"),
        }
        Ok(self.plans.put((fused.clone(), number), plan))
    }

    /// Restores a plan from its description, and returns it with the bytes of its workspace.
    fn restored(&self, json: &[u8]) -> Result<(Desc, u64), GpuError> {
        let _span = tracing::debug_span!(target: "kernel", "kept plan of cuDNN").entered();
        // Restoring takes a fifth of a millisecond; a handle per thread would take two, and handles are made one at a
        // time.
        let _guard = lock(&self.exclusive);
        let mut desc = Desc::new(Kind::CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR)?;
        desc.set(A::CUDNN_ATTR_EXECUTION_PLAN_HANDLE, T::CUDNN_TYPE_HANDLE, &[self.handle.0])?;
        desc.set(A::CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION, T::CUDNN_TYPE_CHAR, json)?;
        let desc = desc.finish()?;
        let bytes = workspace_of(&desc)?;
        Ok((desc, bytes))
    }

    fn build(&self, engines: &Arc<Engines>, number: usize) -> Result<Plan, GpuError> {
        let mut good = None;
        let mut reason = none();
        let mut built = 0;
        for config in &engines.configs {
            // Where the device has no memory for an engine's workspace, the next engine may need less.
            let ready = self.one(config, engines).and_then(|p| self.reserve(p.workspace).map(|()| p));
            match ready {
                Ok(plan) => {
                    good = Some(plan);
                    built += 1;
                    if built > number {
                        break;
                    }
                }
                Err(e) => reason = e,
            }
        }
        good.ok_or(reason)
    }

    fn one(&self, config: &Config, engines: &Arc<Engines>) -> Result<Plan, GpuError> {
        let (desc, workspace) = self.prepared(&config.desc)?;
        if workspace > MAX_WORKSPACE {
            let what = format!("an engine wants {workspace} bytes of workspace");
            return Err(GpuError::Driver { call: "cudnnBackendFinalize", what });
        }
        let _engines = Some(Arc::clone(engines));
        Ok(Plan { desc, workspace, compiled: config.compiled, _engines })
    }

    /// Prepares a plan from a configuration, and returns it with the bytes of its workspace.
    fn prepared(&self, config: &Desc) -> Result<(Desc, u64), GpuError> {
        let _guard = lock(&self.exclusive);
        let mut desc = Desc::new(Kind::CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR)?;
        desc.set(A::CUDNN_ATTR_EXECUTION_PLAN_HANDLE, T::CUDNN_TYPE_HANDLE, &[self.handle.0])?;
        desc.refer(A::CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, &[config])?;
        let desc = desc.finish()?;
        let bytes = workspace_of(&desc)?;
        Ok((desc, bytes))
    }

    /// Makes sure that the workspace has at least this many bytes.
    fn reserve(&self, bytes: u64) -> Result<(), GpuError> {
        self.workspace.reserve(bytes, |most| {
            let made = Workspace::new(self.stream_context, most)?;
            if made.bytes() < most {
                let what = format!("no {most} bytes of workspace are left on the device");
                return Err(GpuError::Driver { call: "cuMemAlloc", what });
            }
            Ok(made.address())
        })
    }

    fn engines(&self, fused: &Fused) -> Result<Arc<Engines>, GpuError> {
        if let Some(engines) = self.engines.get(fused) {
            return Ok(engines);
        }
        let _span = tracing::debug_span!(target: "kernel", "engines of cuDNN").entered();
        self.stream_context.enter()?;
        let exclusive = lock(&self.exclusive);
        let operations = operations(fused)?;
        let mut graph = Desc::new(Kind::CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR)?;
        graph.set(A::CUDNN_ATTR_OPERATIONGRAPH_HANDLE, T::CUDNN_TYPE_HANDLE, &[self.handle.0])?;
        graph.refer(A::CUDNN_ATTR_OPERATIONGRAPH_OPS, &operations.ops.iter().collect::<Vec<_>>())?;
        let graph = graph.finish()?;
        let mut descriptors = Vec::new();
        for mode in
            [cudnnBackendHeurMode_t::CUDNN_HEUR_MODE_A, cudnnBackendHeurMode_t::CUDNN_HEUR_MODE_FALLBACK]
        {
            match proposed(&graph, mode) {
                Ok(found) => descriptors.extend(found),
                Err(e) => tracing::debug!(target: "kernel", ?mode, "cuDNN: {e}"),
            }
        }
        let mut configs = Vec::new();
        for desc in descriptors {
            let notes = EngineNotes::of(&desc)?;
            if notes.allowed(fused) {
                configs.push(Config { desc, tensor_cores: notes.tensor_cores(), compiled: notes.compiled() });
            }
        }
        drop(exclusive);
        configs.sort_by_key(|c| c.compiled);
        // For few channels the library prefers engines that convert all tensors to another layout; others are ranked
        // first.
        if fused.problem.x[1] <= FEW_CHANNELS && (fused.dtype != DType::F32 || fused.tf32) {
            let most = fused.bytes() / 2;
            let moves = |c: &Config| !self.prepared(&c.desc).is_ok_and(|(_, bytes)| bytes <= most);
            configs.sort_by_cached_key(|c| (c.compiled, c.compiled || !c.tensor_cores || moves(c)));
        }
        Ok(self.engines.put(fused.clone(), Engines { _operations: operations, _graph: graph, configs }))
    }
}

impl Convolutions for Dnn {
    const NAME: &'static str = "cudnn";
    const ALGORITHMS: usize = 5;
    const EPILOGUES: bool = true;
    const FOLDS: bool = true;
    type Plan = Plan;

    /// Whether the library has a precompiled kernel for the convolution.
    fn is_ready(&self, fused: &Fused) -> bool {
        let ready = match self.known(fused, 0) {
            Ok(Some(KnownPlan::Plan(plan))) => Ok(!plan.compiled),
            Ok(Some(KnownPlan::Slow | KnownPlan::Nothing)) => Ok(false),
            Ok(None) => self.engines(fused).and_then(|engines| match engines.configs.first() {
                Some(first) if first.compiled => {
                    self.answer_cache.put(&[PLAN, &name(fused, 0)], &[COMPILED]);
                    Ok(false)
                }
                _ => self.made(fused, 0).map(|plan| !plan.compiled),
            }),
            Err(e) => Err(e),
        };
        ready.unwrap_or_else(|e| {
            tracing::debug!(target: "kernel", "cuDNN: {e}");
            false
        })
    }

    /// `number` counts the library's engines, precompiled ones first.
    fn plan(&self, fused: &Fused, number: usize) -> Result<Arc<Plan>, GpuError> {
        match self.known(fused, number)? {
            Some(KnownPlan::Plan(plan)) => Ok(plan),
            Some(KnownPlan::Nothing) => Err(none()),
            Some(KnownPlan::Slow) | None => self.made(fused, number),
        }
    }

    unsafe fn launch(&self, plan: &Plan, tensors: Tensors<'_>) -> Result<(), GpuError> {
        self.stream_context.enter()?;
        let _guard = lock(&self.exclusive);
        let uids: Vec<i64> = tensors.iter().map(|(uid, _)| *uid as i64).collect();
        let pointers: Vec<*mut c_void> = tensors.iter().map(|(_, at)| *at as *mut c_void).collect();
        let workspace = self.workspace.address() as *mut c_void;
        let mut pack = Desc::new(Kind::CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR)?;
        pack.integers(A::CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, &uids)?;
        pack.set(A::CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, T::CUDNN_TYPE_VOID_PTR, &pointers)?;
        pack.set(A::CUDNN_ATTR_VARIANT_PACK_WORKSPACE, T::CUDNN_TYPE_VOID_PTR, &[workspace])?;
        let pack = pack.finish()?;
        // SAFETY: the caller guarantees the addresses; plan and variant pack are finalized and outlive the call.
        unsafe { (self.handle.1.execute)(self.handle.0, plan.desc.raw(), pack.raw()).result() }
            .map_err(failed("cudnnBackendExecute"))
    }
}

/// The error where the library proposes nothing for a convolution.
fn none() -> GpuError {
    GpuError::Driver { call: "cudnnBackendGetAttribute", what: "no engine".into() }
}

/// A convolution and the number of an engine, as part of a key.
fn name(fused: &Fused, number: usize) -> Vec<u8> {
    format!("{number} {fused:?}").into_bytes()
}

/// Bytes of a plan's workspace.
fn workspace_of(plan: &Desc) -> Result<u64, GpuError> {
    let mut bytes = [0i64];
    plan.get(A::CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, T::CUDNN_TYPE_INT64, &mut bytes)?;
    Ok(bytes[0].max(0) as u64)
}

/// The configurations that the library proposes for an operation graph.
fn proposed(graph: &Desc, mode: cudnnBackendHeurMode_t) -> Result<Vec<Desc>, GpuError> {
    let mut heuristic = Desc::new(Kind::CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR)?;
    heuristic.refer(A::CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, &[graph])?;
    heuristic.set(A::CUDNN_ATTR_ENGINEHEUR_MODE, T::CUDNN_TYPE_HEUR_MODE, &[mode])?;
    let heuristic = heuristic.finish()?;
    let made: Result<Vec<Desc>, GpuError> =
        (0..MAX_CONFIGURATIONS).map(|_| Desc::new(Kind::CUDNN_BACKEND_ENGINECFG_DESCRIPTOR)).collect();
    let mut made = made?;
    // The library fills in the descriptors whose handles it is given.
    let mut raw: Vec<sys::cudnnBackendDescriptor_t> = made.iter().map(Desc::raw).collect();
    let count =
        heuristic.get(A::CUDNN_ATTR_ENGINEHEUR_RESULTS, T::CUDNN_TYPE_BACKEND_DESCRIPTOR, &mut raw)?;
    made.truncate(count);
    Ok(made)
}

/// The notes of an engine.
struct EngineNotes {
    numerical: Vec<u32>,
    behaviour: Vec<u32>,
}

impl EngineNotes {
    fn of(config: &Desc) -> Result<EngineNotes, GpuError> {
        let engine = Desc::new(Kind::CUDNN_BACKEND_ENGINE_DESCRIPTOR)?;
        let mut raw = [engine.raw()];
        config.get(A::CUDNN_ATTR_ENGINECFG_ENGINE, T::CUDNN_TYPE_BACKEND_DESCRIPTOR, &mut raw)?;
        // Notes are read as numbers: a newer library may have notes that these bindings do not know.
        let list = |name, ty| -> Result<Vec<u32>, GpuError> {
            let mut notes = [0u32; 64];
            let count = engine.get(name, ty, &mut notes)?;
            Ok(notes[..count].to_vec())
        };
        Ok(EngineNotes {
            numerical: list(A::CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, T::CUDNN_TYPE_NUMERICAL_NOTE)?,
            behaviour: list(A::CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE, T::CUDNN_TYPE_BEHAVIOR_NOTE)?,
        })
    }

    /// Whether the engine computes with the requested precision.
    fn allowed(&self, fused: &Fused) -> bool {
        use cudnnBackendNumericalNote_t as N;
        let says = |note: N| self.numerical.contains(&(note as u32));
        let single = fused.dtype == DType::F32;
        let rounds = single && says(N::CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS);
        let narrow = single && !fused.tf32 && says(N::CUDNN_NUMERICAL_NOTE_TENSOR_CORE);
        let varies = fused.deterministic && says(N::CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC);
        !(rounds || narrow || varies || says(N::CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION))
    }

    fn tensor_cores(&self) -> bool {
        self.numerical.contains(&(cudnnBackendNumericalNote_t::CUDNN_NUMERICAL_NOTE_TENSOR_CORE as u32))
    }

    fn compiled(&self) -> bool {
        let note = cudnnBackendBehaviorNote_t::CUDNN_BEHAVIOR_NOTE_RUNTIME_COMPILATION as u32;
        self.behaviour.contains(&note)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
