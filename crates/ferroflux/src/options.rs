//! The options of a compilation.

use std::collections::BTreeMap;

use aot_autograd::Mixed;
use ir_core::{AutocastDevice, DType};
use plugin_host::LoadedBackend;
pub use plugin_host::Mode;
use plugin_sdk::dlpack::{DL_CUDA, DL_ROCM};

use crate::Error;
use crate::cache::Cache;
use crate::mesh::{BatchGroups, BatchNorm, Link, Member, MeshOptions, Plan};

/// How to compile. `Options::new()` is the built-in `cpu` backend in default mode.
#[derive(Clone, Debug)]
pub struct Options {
    pub(crate) backend: String,
    pub(crate) mode: Mode,
    pub(crate) backend_options: Vec<(String, String)>,
    pub(crate) seed: Option<u64>,
    pub(crate) cache: Cache,
    pub(crate) unchecked_indices: bool,
    pub(crate) mesh: Option<MeshOptions>,
    pub(crate) autocast: Option<DType>,
    pub(crate) batch_norm: Option<BatchNorm>,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            backend: "cpu".into(),
            mode: Mode::Default,
            backend_options: Vec::new(),
            seed: None,
            cache: Cache::Usual,
            unchecked_indices: false,
            mesh: None,
            autocast: None,
            batch_norm: None,
        }
    }
}

impl Options {
    /// The `cpu` backend in default mode.
    pub fn new() -> Options {
        Options::default()
    }
    /// Which backend, by name or by the path of a plugin library; `NAME:N` is its device of this number (`cuda:1`), else it is the first one, or the
    /// one of this process's rank.
    pub fn backend(mut self, name: impl Into<String>) -> Options {
        self.backend = name.into();
        self
    }
    /// The mode.
    pub fn mode(mut self, mode: Mode) -> Options {
        self.mode = mode;
        self
    }
    /// An option of the backend itself, such as `threads`; `list_backends` lists them.
    pub fn backend_option(mut self, name: impl Into<String>, value: impl Into<String>) -> Options {
        self.backend_options.push((name.into(), value.into()));
        self
    }
    /// Fixes the random numbers of the compiled model, as `torch.manual_seed` does: the n-th call after compilation
    /// draws the same numbers in every run and on every backend. Without it they differ from run to run.
    pub fn seed(mut self, seed: u64) -> Options {
        self.seed = Some(seed);
        self
    }
    /// Threads for one call; a backend option of `cpu`.
    pub fn threads(self, threads: usize) -> Options {
        self.backend_option("threads", threads.to_string())
    }
    /// Whether compiled programs are kept on disk for later processes, and where; the default is the user's cache folder.
    /// See [`cache`](crate::cache).
    pub fn cache(mut self, cache: Cache) -> Options {
        self.cache = cache;
        self
    }
    /// Whether indices from data (of an embedding, a gather, a scatter, class numbers of a loss) go unchecked. They are
    /// checked by default, and a call with one that is out of bounds ends with an error.
    ///
    /// **Danger:** with `true` an index that is out of bounds reads or writes unrelated memory: results are silently wrong,
    /// or the process crashes. It is for models whose checks were measured to matter and whose inputs are checked
    /// elsewhere. Backends that run operator by operator (`eager`, `oracle`) check regardless.
    pub fn unchecked_indices(mut self, unchecked: bool) -> Options {
        self.unchecked_indices = unchecked;
        self
    }
    /// Lays the program out on the mesh of this rank, by the plan that the names of the axes suggest (`dp`: data parallel,
    /// `fsdp`: fully sharded, `tp`: tensor parallel). Every rank compiles the same program with the same options and makes the
    /// same calls on the same inputs. Compiled programs of a mesh are not cached.
    pub fn mesh(mut self, member: &Member) -> Options {
        let (plan, placements, links) = (None, Vec::new(), BTreeMap::new());
        self.mesh = Some(MeshOptions { member: member.clone(), plan, placements, links });
        self
    }
    /// Lays the program out by this plan instead; after [`mesh`](Options::mesh).
    pub fn plan(mut self, plan: Plan) -> Options {
        self.mesh.iter_mut().for_each(|m| m.plan = Some(plan.clone()));
        self
    }
    /// Places what a pattern matches: `placement("*.q_proj.weight", "tp=S(0)")`. Comes before the plan, and replaces the one
    /// that names suggest; after [`mesh`](Options::mesh).
    pub fn placement(mut self, pattern: impl Into<String>, placements: impl Into<String>) -> Options {
        let (pattern, placements) = (pattern.into(), placements.into());
        self.mesh.iter_mut().for_each(|m| m.placements.push((pattern.clone(), placements.clone())));
        self
    }
    /// Says what exchanges along an axis cost, by which placements are chosen: `link("dp", Link { latency: 5e-5, bandwidth: 2.5e10 })`.
    /// Comes before what the plan says; after [`mesh`](Options::mesh).
    pub fn link(mut self, axis: impl Into<String>, link: Link) -> Options {
        let axis = axis.into();
        self.mesh.iter_mut().for_each(|m| _ = m.links.insert(axis.clone(), link));
        self
    }
    /// Computes in mixed precision, as PyTorch does within `torch.autocast(device, dtype)`: operators on the lists of the device
    /// compute in `bf16` or `f16`, others in the types that they receive, and results keep the type in which they are computed.
    /// Regions of `torch.autocast` that the archive recorded for the backend's kind of device apply without this option, and
    /// lie within it.
    pub fn autocast(mut self, dtype: DType) -> Options {
        self.autocast = Some(dtype);
        self
    }
    /// Whose statistics batch norms in training mode normalise `[N, C, …]` by: those of the whole batch ([`BatchNorm::Whole`], as
    /// without this option), of each rank's part of it, as PyTorch's `DistributedDataParallel` has them ([`BatchNorm::Rank`]; one
    /// device is one rank), or of each of several equal groups of consecutive samples, on any mesh ([`BatchNorm::Groups`]). Running
    /// statistics are those of the first group. Comes before what a plan says. A batch that is not divisible is an error of the
    /// compilation.
    pub fn batch_norm(mut self, statistics: BatchNorm) -> Options {
        self.batch_norm = Some(statistics);
        self
    }
    /// The groups that batch norms have.
    pub(crate) fn batch_groups(&self) -> BatchGroups {
        BatchGroups::of(self.batch_norm, self.mesh.as_ref())
    }
    /// The mixed precision of a program on a backend: regions for GPUs apply on its first usable device being one.
    pub(crate) fn mixed(&self, backend: &LoadedBackend) -> Mixed {
        Mixed { device: autocast_device(backend), whole: self.autocast }
    }
    /// Refuses a mesh where what is compiled cannot be laid out on one.
    pub(crate) fn refuse_mesh(&self, what: &str) -> Result<(), Error> {
        match self.mesh {
            None => Ok(()),
            Some(_) => Err(Error::Mesh(format!(
                "{what} is not laid out on a mesh: models and training steps are, on backends that run collectives (`cpu`)"
            ))),
        }
    }
    /// The backend's options in their text form.
    pub(crate) fn backend_option_list(&self) -> Vec<(&str, &str)> {
        self.backend_options.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect()
    }
    /// The backend's name.
    pub fn backend_name(&self) -> &str {
        &self.backend
    }
}

/// The kind of device whose lists of mixed precision a backend's programs follow: that of its first usable device.
pub(crate) fn autocast_device(backend: &LoadedBackend) -> AutocastDevice {
    match backend.device() {
        Ok(device) if matches!(device.device_type, DL_CUDA | DL_ROCM) => AutocastDevice::Cuda,
        _ => AutocastDevice::Cpu,
    }
}
