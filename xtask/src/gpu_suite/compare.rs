//! `xtask gpu-suite compare`: every program of a packed folder on both sides, on one machine in one call, and the table of it.
//!
//! PyTorch's compiler first fills its cache in several processes at once, which is where its cold first calls come from. Then
//! each program runs alone: ours with an empty cache, ours again from that cache, and PyTorch from its own. A process runs one
//! program in one mode, so that each has its own peak of memory. Results go to a file line by line; a run that finds some
//! there continues behind them, so that a table may take several calls of a machine.
//!
//! Not here: the measuring, which `ferroflux bench` and PyTorch's script beside the corpus do, and the table's form (`table`).

use std::collections::BTreeSet;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use super::table;

/// Arguments of `xtask gpu-suite compare`.
#[derive(clap::Args)]
pub(super) struct Args {
    /// The packed folder.
    folder: PathBuf,
    /// Our modes; the best of them counts.
    #[arg(long, value_delimiter = ',', default_value = "reduce-overhead")]
    modes: Vec<String>,
    /// PyTorch's modes; the best of them counts.
    #[arg(long, value_delimiter = ',', default_value = "reduce-overhead")]
    peer_modes: Vec<String>,
    /// Only programs whose name contains one of these.
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// The file of results, which is continued where it exists.
    #[arg(long, default_value = "gpu-compare.jsonl")]
    results: PathBuf,
    /// Only prints the table of the results.
    #[arg(long)]
    table: bool,
    /// Total time in minutes; what no longer fits is left for the next call.
    #[arg(long, default_value_t = 9.0)]
    minutes: f64,
    /// Processes of PyTorch that compile at once.
    #[arg(long, default_value_t = 7)]
    jobs: usize,
    /// The Python with PyTorch.
    #[arg(long, default_value = "python3")]
    python: String,
    /// The backend of the machine's GPU: `cuda` or `rocm`.
    #[arg(long, default_value = "cuda")]
    backend: String,
    /// An option of the backend, as `ferroflux bench -o` takes it; float32 convolutions in tf32 are PyTorch's default.
    #[arg(short = 'o', long = "option", value_name = "NAME=VALUE", default_value = "tf32=on")]
    options: Vec<String>,
}

/// Runs what is missing and prints the table.
pub(super) fn run(args: &Args) -> Result<()> {
    let results = Results::open(&args.results)?;
    if !args.table {
        let folder = args.folder.canonicalize().with_context(|| format!("{}", args.folder.display()))?;
        let limit = Duration::try_from_secs_f64(60.0 * args.minutes).context("--minutes")?;
        Session { args, folder, results, end: Instant::now() + limit }.run()?;
    }
    print!("{}", table::markdown(&Results::open(&args.results)?.lines));
    Ok(())
}

/// The lines of the file of results.
struct Results {
    path: PathBuf,
    lines: Vec<Value>,
}

impl Results {
    fn open(path: &Path) -> Result<Results> {
        let text = match fs::read_to_string(path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            read => read.with_context(|| path.display().to_string())?,
        };
        let line = |(n, line)| {
            serde_json::from_str(line).with_context(|| format!("{} line {}", path.display(), n + 1))
        };
        let lines = text.lines().enumerate().map(line).collect::<Result<_>>()?;
        Ok(Results { path: path.to_owned(), lines })
    }

    fn has(&self, program: &str, side: &str, mode: &str) -> bool {
        self.lines.iter().any(|l| l["program"] == program && l["side"] == side && l["mode"] == mode)
    }

    fn add(&mut self, line: Value) -> Result<()> {
        let mut file = fs::OpenOptions::new().create(true).append(true).open(&self.path)?;
        writeln!(file, "{line}").with_context(|| self.path.display().to_string())?;
        self.lines.push(line);
        Ok(())
    }
}

struct Session<'a> {
    args: &'a Args,
    folder: PathBuf,
    results: Results,
    end: Instant,
}

impl Session<'_> {
    fn run(mut self) -> Result<()> {
        let programs = self.programs()?;
        self.fill_peers_cache(&programs)?;
        for program in &programs {
            for mode in self.args.modes.clone() {
                self.ours(program, &mode)?;
            }
            for mode in self.args.peer_modes.clone() {
                if !self.results.has(program, "pytorch", &mode) && self.is_time() {
                    let line = self.finished(self.peer(program, &mode)?, program, "pytorch", &mode)?;
                    self.results.add(line)?;
                }
            }
        }
        Ok(())
    }

    fn is_time(&self) -> bool {
        Instant::now() < self.end
    }

    /// The names of the programs that are asked for.
    fn programs(&self) -> Result<Vec<String>> {
        let folder = self.folder.join("corpus/gpu");
        let mut names = BTreeSet::new();
        for entry in fs::read_dir(&folder).with_context(|| folder.display().to_string())? {
            let path = entry?.path();
            if let Some(name) = path.file_name().and_then(|n| n.to_str()).and_then(|n| n.strip_suffix(".zip"))
            {
                names.insert(name.to_owned());
            }
        }
        names.retain(|n| self.args.only.is_empty() || self.args.only.iter().any(|o| n.contains(o.as_str())));
        if names.is_empty() {
            bail!("{} has no program of these names", folder.display());
        }
        Ok(names.into_iter().collect())
    }

    /// Where both sides keep what they compile.
    fn cache(&self, of: &str) -> PathBuf {
        self.folder.join("compare-cache").join(of)
    }

    /// PyTorch's cold first calls, several processes at once.
    fn fill_peers_cache(&mut self, programs: &[String]) -> Result<()> {
        let mut waiting: Vec<(&String, &String)> = Vec::new();
        for mode in &self.args.peer_modes {
            waiting.extend(programs.iter().map(|p| (p, mode)));
        }
        waiting.retain(|(program, mode)| !self.results.has(program, "pytorch cold", mode));
        waiting.reverse();
        let mut running: Vec<(Child, &String, &String)> = Vec::new();
        while !(running.is_empty() && waiting.is_empty()) {
            while running.len() < self.args.jobs.max(1) && self.is_time() {
                let Some((program, mode)) = waiting.pop() else { break };
                running.push((self.peer(program, mode)?, program, mode));
            }
            if running.is_empty() {
                break;
            }
            let ended =
                running.iter_mut().position(|(child, ..)| matches!(child.try_wait(), Ok(Some(_)) | Err(_)));
            let Some(ended) = ended else {
                std::thread::sleep(Duration::from_millis(50));
                continue;
            };
            let (child, program, mode) = running.swap_remove(ended);
            let line = self.finished(child, program, "pytorch cold", mode)?;
            self.results.add(line)?;
        }
        Ok(())
    }

    /// A program on our side: with an empty cache, from it, and what was predicted.
    fn ours(&mut self, program: &str, mode: &str) -> Result<()> {
        if self.results.has(program, "ferroflux", mode) || !self.is_time() {
            return Ok(());
        }
        let cache = self.cache(&format!("ferroflux-{program}-{mode}"));
        let _ = fs::remove_dir_all(&cache);
        for side in ["ferroflux", "ferroflux from cache"] {
            let mut command = Command::new(self.folder.join("bin/ferroflux"));
            command.args(["bench", &self.case(program), "--seconds", "0.5", "--json", "--mode", mode]);
            command.args(["--backend", &self.args.backend]).arg("--cache").arg(&cache);
            for option in &self.args.options {
                command.args(["-o", option]);
            }
            let line = self.finished(self.spawned(command)?, program, side, mode)?;
            self.results.add(line)?;
        }
        Ok(())
    }

    fn case(&self, program: &str) -> String {
        self.folder.join("corpus/gpu").join(format!("{program}.zip")).display().to_string()
    }

    /// PyTorch on a program, not waited for.
    fn peer(&self, program: &str, mode: &str) -> Result<Child> {
        let mut command = Command::new(&self.args.python);
        command.arg(self.folder.join("peers/torch_gpu.py")).args(["--modes", mode, &self.case(program)]);
        command.env("TORCHINDUCTOR_CACHE_DIR", self.cache("inductor"));
        self.spawned(command)
    }

    fn spawned(&self, mut command: Command) -> Result<Child> {
        command.current_dir(&self.folder).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let program = command.get_program().to_string_lossy().into_owned();
        command.spawn().with_context(|| program)
    }

    /// The last line that a process printed, as a line of the results.
    fn finished(&self, child: Child, program: &str, side: &str, mode: &str) -> Result<Value> {
        let output = child.wait_with_output()?;
        let text = String::from_utf8_lossy(&output.stdout);
        let last = text.lines().rev().find_map(|line| serde_json::from_str::<Value>(line).ok());
        let figures = last.unwrap_or_else(|| json!({ "error": format!("no figures, {}", output.status) }));
        Ok(json!({ "program": program, "side": side, "mode": mode, "figures": figures }))
    }
}
