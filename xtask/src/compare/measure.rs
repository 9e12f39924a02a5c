//! Runs both sides and parses their output.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use crate::root::cargo;

/// The tools of a measurement.
pub(super) struct Setup {
    /// The `ferroflux` command.
    pub(super) command: PathBuf,
    pub(super) peer: Peer,
    pub(super) seconds: f64,
    pub(super) threads: usize,
    /// Forward and backward rather than the forward alone.
    pub(super) train: bool,
    pub(super) dtype: Precision,
    /// In the order of measurement, this project first.
    pub(super) sides: Vec<Side>,
}

/// The other sides.
pub(super) struct Peer {
    pub(super) python: PathBuf,
    /// The script that measures PyTorch; beside it lies what reads cases.
    pub(super) torch: PathBuf,
    /// The script that measures ONNX Runtime and OpenVINO.
    pub(super) onnx: PathBuf,
    /// The script that measures TorchInductor's integers and writes a case's inputs to a file.
    pub(super) int8: PathBuf,
    /// Where they keep what they make: a folder for each.
    pub(super) cache: PathBuf,
}

impl Peer {
    /// The folder of what reads cases.
    fn helpers(&self) -> &Path {
        self.torch.parent().unwrap_or(Path::new("."))
    }
}

/// The side that a figure belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
#[value(rename_all = "lowercase")]
pub(super) enum Side {
    #[value(skip)]
    Ferroflux,
    /// PyTorch without a compiler.
    Eager,
    /// `torch.compile` with its default compiler.
    Inductor,
    /// On the network that `torch.onnx.export` makes.
    OnnxRuntime,
    /// On the same.
    OpenVino,
}

impl Side {
    /// As it is written in tables and on the command line.
    pub(super) fn name(self) -> &'static str {
        match self {
            Side::Ferroflux => "ferroflux",
            Side::Eager => "eager",
            Side::Inductor => "inductor",
            Side::OnnxRuntime => "onnxruntime",
            Side::OpenVino => "openvino",
        }
    }

    /// Whether it measures PyTorch itself.
    pub(super) fn is_torch(self) -> bool {
        matches!(self, Side::Eager | Side::Inductor)
    }
}

/// The dtype that is computed in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
#[value(rename_all = "lowercase")]
pub(super) enum Precision {
    /// That of the model.
    F32,
    Bf16,
    /// Weights and activations of layers, calibrated on the case's inputs.
    Int8,
}

impl Precision {
    /// As the command line has it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Precision::F32 => "f32",
            Precision::Bf16 => "bf16",
            Precision::Int8 => "int8",
        }
    }
}

/// The figures of one process, as both sides print them.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Figures {
    pub(super) median_ms: f64,
    pub(super) min_ms: f64,
    pub(super) runs: usize,
    pub(super) first_call_s: f64,
    /// Peak resident megabytes.
    pub(super) peak_mb: Option<f64>,
    /// Bytes that the forward saves for the backward; only for this project, and only of training.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) saved_bytes: Option<u64>,
}

/// All that was measured of a model.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) model: String,
    /// In the order of measurement.
    pub(super) figures: Vec<(Side, Figures)>,
    /// The reasons why sides could not be measured.
    pub(super) problems: Vec<(Side, String)>,
}

/// Builds the command in the release profile and says where it is.
pub(super) fn build(root: &Path) -> Result<PathBuf> {
    let out = Command::new(cargo())
        // Features of the whole workspace, so that nothing is rebuilt that another build of it has made.
        .args(["build", "--release", "--workspace", "--bin", "ferroflux"])
        .args(["--message-format", "json-render-diagnostics"])
        .current_dir(root)
        .stderr(Stdio::inherit())
        .output()
        .context("building the command")?;
    if !out.status.success() {
        bail!("the command does not build");
    }
    let messages = String::from_utf8_lossy(&out.stdout);
    let found = messages.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let mut found = found.filter_map(|message| Some(PathBuf::from(message.get("executable")?.as_str()?)));
    found.next().context("cargo does not say where the command is")
}

/// Measures a model on all sides, `rounds` times in turn.
pub(super) fn model(setup: &Setup, case: &Path, rounds: u32) -> Row {
    let name =
        case.file_stem().map_or_else(|| case.display().to_string(), |s| s.to_string_lossy().into_owned());
    let mut row = Row { model: name, figures: Vec::new(), problems: Vec::new() };
    for round in 1..=rounds {
        for &side in &setup.sides {
            // Another round would fail in the same way.
            if row.problems.iter().any(|(failed, _)| *failed == side) {
                continue;
            }
            eprintln!("compare: {} round {round} of {rounds}: {}", row.model, side.name());
            match figures(setup, case, side) {
                Ok(figures) => row.figures.push((side, figures)),
                Err(error) => row.problems.push((side, format!("{error:#}"))),
            }
        }
    }
    row
}

/// The archive that this project quantizes a case to, and the case's inputs; both are made where they are older than the case.
fn quantized(setup: &Setup, case: &Path) -> Result<[PathBuf; 2]> {
    let folder = setup.peer.cache.join("int8");
    std::fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    let name = case.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let [archive, inputs] = ["pt2", "safetensors"].map(|end| folder.join(format!("{name}.{end}")));
    let time = |path: &Path| path.metadata().and_then(|about| about.modified()).ok();
    if [&archive, &inputs].iter().all(|made| time(made) > time(case)) {
        return Ok([archive, inputs]);
    }
    let mut write = Command::new(&setup.peer.python);
    write.arg(&setup.peer.int8).arg("--helpers").arg(setup.peer.helpers());
    write.arg("--inputs").arg(&inputs).arg(case);
    let mut quantize = Command::new(&setup.command);
    quantize.arg("quantize").arg(case).arg("--calibrate").arg(&inputs).arg("-o").arg(&archive);
    for command in [&mut write, &mut quantize] {
        printed(command)?;
    }
    Ok([archive, inputs])
}

fn figures(setup: &Setup, case: &Path, side: Side) -> Result<Figures> {
    let peer = &setup.peer;
    let mut file = case.to_owned();
    let mut command = if side == Side::Ferroflux {
        let mut command = Command::new(&setup.command);
        // The first call is to compile.
        command.args(["bench", "--backend", "cpu", "--json"]).env("FERROFLUX_CACHE", "off");
        match setup.dtype {
            Precision::F32 => {}
            Precision::Bf16 => drop(command.args(["--autocast", "bf16"])),
            Precision::Int8 => {
                let [archive, inputs] = quantized(setup, case)?;
                command.arg("--inputs").arg(inputs);
                file = archive;
            }
        }
        command
    } else if side == Side::Inductor && setup.dtype == Precision::Int8 {
        let mut command = Command::new(&peer.python);
        command.arg(&peer.int8).env("TORCHINDUCTOR_CACHE_DIR", peer.cache.join("inductor"));
        command.arg("--helpers").arg(peer.helpers());
        command
    } else if side.is_torch() {
        let mut command = Command::new(&peer.python);
        command.arg(&peer.torch).env("TORCHINDUCTOR_CACHE_DIR", peer.cache.join("inductor"));
        command.args(["--modes", if side == Side::Eager { "eager" } else { "default" }]);
        command
    } else {
        let mut command = Command::new(&peer.python);
        command.arg(&peer.onnx).args(["--modes", side.name()]);
        command.args(["--dtype", setup.dtype.name()]);
        command.arg("--models").arg(peer.cache.join("onnx"));
        command.arg("--helpers").arg(peer.helpers());
        command
    };
    if setup.train {
        command.arg("--train");
    }
    command.args(["--seconds", &setup.seconds.to_string(), "--threads", &setup.threads.to_string()]);
    parse(&printed(command.arg(file))?)
}

/// What a command printed.
fn printed(command: &mut Command) -> Result<String> {
    let out = command.stdin(Stdio::null()).output().context("starting it")?;
    let printed = String::from_utf8_lossy(&out.stdout);
    if !out.status.success() {
        let errors = String::from_utf8_lossy(&out.stderr);
        let last: Vec<&str> = errors.lines().rev().take(4).collect();
        bail!("{}: {}", out.status, last.into_iter().rev().collect::<Vec<_>>().join(" / "));
    }
    Ok(printed.into_owned())
}

/// The figures in what a side printed: its one line that is a JSON object.
fn parse(printed: &str) -> Result<Figures> {
    let line = printed.lines().rfind(|line| line.starts_with('{'));
    let line = line.with_context(|| format!("it printed no JSON object: `{}`", printed.trim()))?;
    serde_json::from_str(line).with_context(|| format!("`{line}`"))
}

#[cfg(test)]
mod tests {
    #[test]
    fn both_sides_are_read() {
        let peer = r#"{"model": "a.zip", "mode": "eager", "median_ms": 2.5, "min_ms": 2.0, "runs": 9,
            "first_call_s": 0.5, "peak_mb": 300, "relative_error": 1e-7}"#;
        let figures = super::parse(&format!("a warning\n{}", peer.replace('\n', " "))).unwrap();
        assert_eq!((figures.median_ms, figures.peak_mb), (2.5, Some(300.0)));
        assert!(super::parse("nothing").is_err());
    }
}
