//! Options that several subcommands share, and their meaning for the facade.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::str::FromStr;

use ferroflux::cache::Cache;
use ferroflux::{DType, Mode, Options};

/// Options of the command itself.
#[derive(clap::Args)]
pub(crate) struct Global {
    /// What is logged on the standard error: a level (`info`), or stages and crates with levels
    /// (`fusion,kernel`, `pt2=debug`). The variable FERROFLUX_LOG says the same.
    #[arg(long, global = true, value_name = "FILTER")]
    pub(crate) log: Option<String>,
    /// Threads of one call; what the backend finds best where not given.
    #[arg(long, global = true, value_name = "N")]
    pub(crate) threads: Option<NonZeroUsize>,
    /// Writes a page about each compiled program to this folder, and a trace for Chrome's and Perfetto's viewers. The variable
    /// FERROFLUX_TRACE says the same.
    #[arg(long, global = true, value_name = "DIR")]
    pub(crate) trace: Option<PathBuf>,
    /// Folder of compiled programs, `off` for none; the user's cache folder where not given (docs/cache.md).
    #[arg(long, global = true, value_name = "DIR")]
    pub(crate) cache: Option<PathBuf>,
}

impl Global {
    /// Where compiled programs are kept.
    pub(crate) fn cache(&self) -> Cache {
        match &self.cache {
            None => Cache::Usual,
            Some(path) if path.as_os_str() == "off" => Cache::Off,
            Some(path) => Cache::at(path),
        }
    }
}

/// Where weights come from that the archive lacks.
#[derive(clap::Args, Default)]
pub(crate) struct WeightArgs {
    /// Safetensors file with the weights that the archive lacks.
    #[arg(long, value_name = "FILE")]
    pub(crate) weights: Option<PathBuf>,
    /// What the model's names begin with and the file's do not, for example `bert.`.
    #[arg(long, value_name = "PREFIX", requires = "weights", default_value = "", hide_default_value = true)]
    pub(crate) weights_prefix: String,
}

/// The dtypes of mixed precision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Half {
    Bf16,
    F16,
}

impl Half {
    /// The dtype of this name.
    pub(crate) fn dtype(self) -> DType {
        match self {
            Half::Bf16 => DType::BF16,
            Half::F16 => DType::F16,
        }
    }
}

/// Mixed precision of a whole model.
#[derive(clap::Args)]
pub(crate) struct AutocastArgs {
    /// Computes in this dtype what PyTorch does within `torch.autocast` on the backend's kind of device. Regions that the
    /// archive was captured in apply without it.
    #[arg(long, value_enum, value_name = "DTYPE")]
    autocast: Option<Half>,
}

impl AutocastArgs {
    /// The options with it.
    pub(crate) fn on(&self, options: Options) -> Options {
        match self.autocast {
            Some(half) => options.autocast(half.dtype()),
            None => options,
        }
    }
}

/// Which backend, and how.
#[derive(clap::Args)]
pub(crate) struct BackendArgs {
    /// Backend, by name (see `ferroflux backends`) or by the path of its library; `cuda:1` is its device of this number.
    #[arg(long, default_value = "cpu")]
    pub(crate) backend: String,
    /// default, reduce-overhead, max-autotune or max-autotune-no-cudagraphs.
    #[arg(long, default_value = "default", value_parser = Mode::from_str)]
    pub(crate) mode: Mode,
    /// An option of the backend itself; may be given several times.
    #[arg(short = 'o', long = "option", value_name = "NAME=VALUE", value_parser = pair)]
    pub(crate) options: Vec<(String, String)>,
    /// Do not check indices from data (of embeddings, gathers, scatters, class numbers of losses). DANGER: one that is out of
    /// bounds then reads or writes memory of something else.
    #[arg(long)]
    pub(crate) unchecked_indices: bool,
}

impl BackendArgs {
    /// The facade's options.
    pub(crate) fn options(&self, global: &Global) -> Options {
        let mut options = Options::new().backend(&self.backend).mode(self.mode).cache(global.cache());
        options = options.unchecked_indices(self.unchecked_indices);
        if let Some(threads) = global.threads {
            options = options.threads(threads.get());
        }
        self.options.iter().fold(options, |options, (name, value)| options.backend_option(name, value))
    }
}

fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.into(), value.into())),
        _ => Err("must be NAME=VALUE".into()),
    }
}
