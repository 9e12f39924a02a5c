//! cuDNN: convolutions prepared for sets of sizes, and their launch.
//!
//! Not here: which convolution a step is (`dnn_call`, `dnn_layout`) and the operations themselves (`dnn_graph`).

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};

use cudarc::cudnn::sys::{
    self, cudnnBackendAttributeName_t as A, cudnnBackendAttributeType_t as T, cudnnBackendBehaviorNote_t,
    cudnnBackendHeurMode_t, cudnnBackendNumericalNote_t,
};
use gpu_runtime::GpuError;
use ir_core::DType;

use crate::answer_cache::AnswerCache;
use crate::dnn_desc::{Desc, Kind, failed};
use crate::dnn_graph::{Fused, Operations, Uid};
use crate::vendor::{StreamContext, Workspace};

/// Prepared convolutions at most; more begin anew.
const MAX_PLANS: usize = 1024;
/// Engines that are offered to the search.
pub(crate) const MAX_ENGINES: usize = 5;
/// Configurations that the library is asked for, most of which are never built. In single precision without tf32 the first
/// thirty are for tensor cores (seen with 9.14 for a Hopper).
const MAX_CONFIGURATIONS: usize = 64;
/// Convolutions of at most so many channels are of few.
const FEW_CHANNELS: i64 = 16;
/// Bytes of memory that a convolution may use beside its tensors.
const MAX_WORKSPACE: u64 = 256 << 20;
/// Bytes that are taken at once, so that the memory grows seldom.
const MIN_WORKSPACE: u64 = 32 << 20;

/// What the text of a kept plan begins with: whether the kernel is the library's own or compiled at run time, or that there is
/// no plan.
const READY: u8 = b'r';
const COMPILED: u8 = b'c';
const NO_PLAN: u8 = b'-';
/// What is kept of this library: plans by convolution, and for the start of a later process what it says of the device and
/// one of the plans.
const PLAN: &[u8] = b"cudnn plan";
const DEVICE: &[u8] = b"cudnn device";
const ANY_PLAN: &[u8] = b"cudnn any plan";

/// The library on one stream.
pub(crate) struct Dnn {
    handle: Handle,
    stream_context: StreamContext,
    /// Plans of earlier processes.
    answer_cache: AnswerCache,
    /// Grows; earlier blocks stay, since recorded work has their addresses.
    workspace: Mutex<Workspace>,
    plans: Mutex<HashMap<(Fused, usize), Arc<Plan>>>,
    engines: Mutex<HashMap<Fused, Arc<Engines>>>,
    exclusive: Mutex<()>,
    /// Whether what a later process begins with is kept.
    warm_up_saved: Once,
}

/// The library's, destroyed when dropped.
struct Handle(sys::cudnnHandle_t);

// SAFETY: whoever uses a handle has it exclusively.
unsafe impl Send for Handle {}

impl Handle {
    /// The context is current.
    fn new() -> Result<Handle, GpuError> {
        let mut handle = std::ptr::null_mut();
        // SAFETY: the library writes one pointer.
        unsafe { sys::cudnnCreate(&mut handle).result() }.map_err(failed("cudnnCreate"))?;
        Ok(Handle(handle))
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: made in `new`, destroyed once.
        let _ = unsafe { sys::cudnnDestroy(self.0) };
    }
}

// SAFETY: the handle is used under `exclusive` alone.
unsafe impl Send for Dnn {}
// SAFETY: as above.
unsafe impl Sync for Dnn {}

/// What the library proposes for a convolution, the best first by its own rule.
struct Engines {
    _operations: Operations,
    _graph: Desc,
    configs: Vec<Config>,
}

struct Config {
    desc: Desc,
    /// Whether it says that it uses tensor cores.
    tensor_cores: bool,
    /// Whether the library compiles its kernel at run time, which takes long.
    compiled: bool,
}

/// A convolution that is ready for launch.
pub(crate) struct Plan {
    desc: Desc,
    workspace: u64,
    /// Whether the library compiled its kernel at run time.
    compiled: bool,
    /// What it was made of; nothing where an earlier process made it.
    _engines: Option<Arc<Engines>>,
}

/// What an earlier process found out about a convolution.
enum KnownPlan {
    Plan(Arc<Plan>),
    /// The library proposes no engine but such as are compiled at run time, none of which was.
    Slow,
    /// The library proposes no engine.
    Nothing,
}

/// Addresses of one convolution: those of its tensors by number.
pub(crate) type Tensors<'a> = &'a [(Uid, u64)];

impl Dnn {
    /// Starts the library on a stream.
    ///
    /// # Errors
    /// What the library says. The library itself was found before.
    pub(crate) fn new(stream_context: StreamContext, answer_cache: AnswerCache) -> Result<Dnn, GpuError> {
        let _span = tracing::debug_span!(target: "kernel", "start cuDNN").entered();
        stream_context.enter()?;
        let handle = Handle::new()?;
        // SAFETY: the handle was just made; the stream lives as long as the process.
        unsafe { sys::cudnnSetStream(handle.0, stream_context.stream().cast()).result() }
            .map_err(failed("cudnnSetStream"))?;
        tracing::debug!(target: "kernel", version = Dnn::version(), "cuDNN");
        Ok(Dnn {
            handle,
            stream_context,
            answer_cache,
            workspace: Mutex::default(),
            plans: Mutex::default(),
            engines: Mutex::default(),
            exclusive: Mutex::default(),
            warm_up_saved: Once::new(),
        })
    }

    /// Has the library make its tables, which its first plan does else, before there is a context: reads a kept plan for the kept
    /// properties of the device. Nothing where there is none of both, or a library that cannot do so (before 9.8).
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

    /// Keeps what [`begin`](Dnn::begin) reads.
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

    /// The library's version, `91400` for 9.14.
    pub(crate) fn version() -> usize {
        // SAFETY: no arguments; the library was found before.
        unsafe { sys::cudnnGetVersion() }
    }

    /// A convolution that is ready for launch. `number` counts the library's engines, those without a compilation at run
    /// time first; where there are not so many it is the last one.
    ///
    /// # Errors
    /// The library has no engine for it.
    pub(crate) fn plan(&self, fused: &Fused, number: usize) -> Result<Arc<Plan>, GpuError> {
        match self.known(fused, number)? {
            Some(KnownPlan::Plan(plan)) => Ok(plan),
            Some(KnownPlan::Nothing) => Err(none()),
            Some(KnownPlan::Slow) | None => self.made(fused, number),
        }
    }

    /// Whether the library has a ready kernel for it, without a compilation at run time.
    pub(crate) fn is_ready(&self, fused: &Fused) -> bool {
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

    /// What this process or an earlier one knows about a convolution.
    fn known(&self, fused: &Fused, number: usize) -> Result<Option<KnownPlan>, GpuError> {
        let key = (fused.clone(), number);
        if let Some(plan) = lock(&self.plans).get(&key) {
            return Ok(Some(KnownPlan::Plan(Arc::clone(plan))));
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
                Ok(Some(KnownPlan::Plan(self.keep(key, plan))))
            }
            Err(e) => {
                tracing::debug!(target: "kernel", "a kept plan of cuDNN is made anew: {e}");
                Ok(None)
            }
        }
    }

    /// Asks the library, and keeps for later processes what it says.
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
        Ok(self.keep((fused.clone(), number), plan))
    }

    fn keep(&self, key: (Fused, usize), plan: Plan) -> Arc<Plan> {
        let plan = Arc::new(plan);
        let mut plans = lock(&self.plans);
        if plans.len() >= MAX_PLANS {
            plans.clear();
        }
        plans.insert(key, Arc::clone(&plan));
        plan
    }

    /// A plan from its description, and the bytes of workspace that it wants.
    fn restored(&self, json: &[u8]) -> Result<(Desc, u64), GpuError> {
        let _span = tracing::debug_span!(target: "kernel", "kept plan of cuDNN").entered();
        // A plan takes a fifth of a millisecond; a handle for each thread that reads some takes two, one after another.
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
            // Where the device has no memory left for an engine's workspace, the next one may want less.
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

    /// A plan of a configuration, and the bytes of workspace that it wants.
    fn prepared(&self, config: &Desc) -> Result<(Desc, u64), GpuError> {
        let _guard = lock(&self.exclusive);
        let mut desc = Desc::new(Kind::CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR)?;
        desc.set(A::CUDNN_ATTR_EXECUTION_PLAN_HANDLE, T::CUDNN_TYPE_HANDLE, &[self.handle.0])?;
        desc.refer(A::CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, &[config])?;
        let desc = desc.finish()?;
        let bytes = workspace_of(&desc)?;
        Ok((desc, bytes))
    }

    /// Sees that the workspace has as many bytes.
    fn reserve(&self, bytes: u64) -> Result<(), GpuError> {
        let mut workspace = lock(&self.workspace);
        if workspace.bytes() < bytes {
            let made = Workspace::new(self.stream_context, bytes.next_power_of_two().max(MIN_WORKSPACE))?;
            if made.bytes() < bytes {
                let what = format!("no {bytes} bytes of workspace are left on the device");
                return Err(GpuError::Driver { call: "cuMemAlloc", what });
            }
            *workspace = made;
        }
        Ok(())
    }

    fn engines(&self, fused: &Fused) -> Result<Arc<Engines>, GpuError> {
        if let Some(engines) = lock(&self.engines).get(fused) {
            return Ok(Arc::clone(engines));
        }
        let _span = tracing::debug_span!(target: "kernel", "engines of cuDNN").entered();
        self.stream_context.enter()?;
        let exclusive = lock(&self.exclusive);
        let operations = fused.operations()?;
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
        // Of few channels the library prefers engines that lay all tensors out anew, and it has others.
        if fused.problem.x[1] <= FEW_CHANNELS && (fused.dtype != DType::F32 || fused.tf32) {
            let most = fused.bytes() / 2;
            let moves = |c: &Config| !self.prepared(&c.desc).is_ok_and(|(_, bytes)| bytes <= most);
            configs.sort_by_cached_key(|c| (c.compiled, c.compiled || !c.tensor_cores || moves(c)));
        }
        let engines = Arc::new(Engines { _operations: operations, _graph: graph, configs });
        let mut known = lock(&self.engines);
        if known.len() >= MAX_PLANS {
            known.clear();
        }
        known.insert(fused.clone(), Arc::clone(&engines));
        Ok(engines)
    }

    /// Puts a convolution on the stream.
    ///
    /// # Errors
    /// What the library says.
    ///
    /// # Safety
    /// The addresses are device memory in which the plan's tensors lie.
    pub(crate) unsafe fn launch(&self, plan: &Plan, tensors: Tensors<'_>) -> Result<(), GpuError> {
        self.stream_context.enter()?;
        let _guard = lock(&self.exclusive);
        let uids: Vec<i64> = tensors.iter().map(|(uid, _)| *uid as i64).collect();
        let pointers: Vec<*mut c_void> = tensors.iter().map(|(_, at)| *at as *mut c_void).collect();
        let workspace = lock(&self.workspace).address() as *mut c_void;
        let mut pack = Desc::new(Kind::CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR)?;
        pack.integers(A::CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, &uids)?;
        pack.set(A::CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, T::CUDNN_TYPE_VOID_PTR, &pointers)?;
        pack.set(A::CUDNN_ATTR_VARIANT_PACK_WORKSPACE, T::CUDNN_TYPE_VOID_PTR, &[workspace])?;
        let pack = pack.finish()?;
        // SAFETY: the caller's promise; plan and pack are finished and live through the call.
        unsafe { sys::cudnnBackendExecute(self.handle.0, plan.desc.raw(), pack.raw()).result() }
            .map_err(failed("cudnnBackendExecute"))
    }
}

/// The library proposes nothing for a convolution.
fn none() -> GpuError {
    GpuError::Driver { call: "cudnnBackendGetAttribute", what: "no engine".into() }
}

/// A convolution and an engine's number as a part of a key.
fn name(fused: &Fused, number: usize) -> Vec<u8> {
    format!("{number} {fused:?}").into_bytes()
}

/// Bytes of workspace that a plan wants.
fn workspace_of(plan: &Desc) -> Result<u64, GpuError> {
    let mut bytes = [0i64];
    plan.get(A::CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, T::CUDNN_TYPE_INT64, &mut bytes)?;
    Ok(bytes[0].max(0) as u64)
}

/// Configurations that the library proposes for a graph.
fn proposed(graph: &Desc, mode: cudnnBackendHeurMode_t) -> Result<Vec<Desc>, GpuError> {
    let mut heuristic = Desc::new(Kind::CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR)?;
    heuristic.refer(A::CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, &[graph])?;
    heuristic.set(A::CUDNN_ATTR_ENGINEHEUR_MODE, T::CUDNN_TYPE_HEUR_MODE, &[mode])?;
    let heuristic = heuristic.finish()?;
    let made: Result<Vec<Desc>, GpuError> =
        (0..MAX_CONFIGURATIONS).map(|_| Desc::new(Kind::CUDNN_BACKEND_ENGINECFG_DESCRIPTOR)).collect();
    let mut made = made?;
    // The library fills the descriptors whose addresses it is given.
    let mut raw: Vec<sys::cudnnBackendDescriptor_t> = made.iter().map(Desc::raw).collect();
    let count =
        heuristic.get(A::CUDNN_ATTR_ENGINEHEUR_RESULTS, T::CUDNN_TYPE_BACKEND_DESCRIPTOR, &mut raw)?;
    made.truncate(count);
    Ok(made)
}

/// What an engine says of itself.
struct EngineNotes {
    numerical: Vec<u32>,
    behaviour: Vec<u32>,
}

impl EngineNotes {
    fn of(config: &Desc) -> Result<EngineNotes, GpuError> {
        let engine = Desc::new(Kind::CUDNN_BACKEND_ENGINE_DESCRIPTOR)?;
        let mut raw = [engine.raw()];
        config.get(A::CUDNN_ATTR_ENGINECFG_ENGINE, T::CUDNN_TYPE_BACKEND_DESCRIPTOR, &mut raw)?;
        // As numbers: a newer library may know notes that these bindings do not.
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

    /// Whether the engine's arithmetic is what was asked for.
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
