//! Errors of reading an archive: one enum, each variant with the location (archive entry and JSON path).
//!
//! Not here: errors of later stages (an operator without an entry, a backend that cannot run). An archive with unknown
//! operators loads; the next stage names all of them in one report.

use std::fmt;

/// A location in an archive. Both parts may be empty: the whole file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// Name of the zip entry below the archive's root folder: `models/model.json`.
    pub entry: String,
    /// Path inside that entry's JSON: `graph_module.graph.nodes[3].inputs[0].arg`.
    pub json: String,
}

impl Place {
    /// A whole entry.
    pub fn entry(entry: impl Into<String>) -> Box<Place> {
        Box::new(Place { entry: entry.into(), json: String::new() })
    }
    /// A place inside the JSON of an entry.
    pub fn json(entry: impl Into<String>, json: impl Into<String>) -> Box<Place> {
        Box::new(Place { entry: entry.into(), json: json.into() })
    }
    /// The file as a whole.
    pub fn file() -> Box<Place> {
        Box::default()
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.entry.is_empty(), self.json.is_empty()) {
            (true, true) => f.write_str("the file"),
            (true, false) => f.write_str(&self.json),
            (false, true) => write!(f, "`{}`", self.entry),
            (false, false) => write!(f, "`{}` at {}", self.entry, self.json),
        }
    }
}

/// A file format that is not a `torch.export` archive, recognised by what is in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Foreign {
    /// An empty file.
    Empty,
    /// An unknown format.
    Unknown,
    /// A zip archive without an `archive_format` record.
    OtherZip,
    /// A package compiled by AOTInductor (`data/aotinductor/…`, no `models/*.json`).
    AotInductor,
    /// A TorchScript archive (`code/`, `constants.pkl`).
    TorchScript,
    /// A checkpoint of `torch.save` in its zip form (`data.pkl`).
    Checkpoint,
    /// A checkpoint of `torch.save` before PyTorch 1.6, or any other bare pickle.
    BarePickle,
    /// `torch.export.save` before PyTorch 2.9 (`serialized_exported_program.json` at the root).
    OldExport,
    /// An ExecuTorch program (`.pte`), alone or inside a package.
    ExecuTorch,
    /// A file of weights only.
    Safetensors,
    /// llama.cpp's weights.
    Gguf,
    /// An ONNX model.
    Onnx,
    /// The pointer file that Git LFS leaves where the real one was not downloaded.
    LfsPointer,
    /// A web page, as a failed download leaves it.
    WebPage,
    /// A gzip, xz, bzip2, zstd or 7z file.
    Compressed,
}

impl Foreign {
    /// What the file is.
    pub const fn what(self) -> &'static str {
        match self {
            Foreign::Empty => "the file is empty",
            Foreign::Unknown => "the file is not a zip archive, and so no `.pt2`",
            Foreign::OtherZip => "a zip archive, but without the `archive_format` record of a `.pt2`",
            Foreign::AotInductor => {
                "an AOTInductor package: compiled code for one machine, without the graph"
            }
            Foreign::TorchScript => "a TorchScript archive (`torch.jit.save`)",
            Foreign::Checkpoint => "a pickled checkpoint (`torch.save`): weights without a graph",
            Foreign::BarePickle => "a pickle file (`torch.save` of an old PyTorch, or Python's `pickle`)",
            Foreign::OldExport => {
                "an archive of `torch.export.save` from before PyTorch 2.9 (weights as pickle)"
            }
            Foreign::ExecuTorch => "an ExecuTorch program, lowered for its own runtime",
            Foreign::Safetensors => "a safetensors file: weights without a graph",
            Foreign::Gguf => "a GGUF file: weights without a graph",
            Foreign::Onnx => "an ONNX model",
            Foreign::LfsPointer => "a Git LFS pointer, not the file itself",
            Foreign::WebPage => "a web page (a download that failed?)",
            Foreign::Compressed => "a compressed file",
        }
    }

    /// What the user can do.
    pub const fn advice(self) -> &'static str {
        match self {
            Foreign::Empty => "copy or download it again",
            Foreign::Unknown | Foreign::OtherZip | Foreign::Onnx => {
                "write one with `torch.export.save(torch.export.export(model, args), \"model.pt2\")`"
            }
            Foreign::AotInductor => {
                "save the exported program itself (`torch.export.save`) instead of `aoti_compile_and_package`"
            }
            Foreign::TorchScript => {
                "load it in Python with `torch.jit.load`, or better build the eager model, then `torch.export.export` and \
                 `torch.export.save`"
            }
            Foreign::Checkpoint | Foreign::BarePickle => {
                "pickles are never executed here: load the weights into the model in Python, then `torch.export.export` \
                 and `torch.export.save`"
            }
            Foreign::OldExport => {
                "load it with `torch.export.load` and save it again with `torch.export.save` of PyTorch 2.9 or later"
            }
            Foreign::ExecuTorch => "save the exported program before `to_edge`, with `torch.export.save`",
            Foreign::Safetensors | Foreign::Gguf => {
                "give the `.pt2` of the model, and this file as the source of its weights"
            }
            Foreign::LfsPointer => "run `git lfs pull`",
            Foreign::WebPage => "download it again; the page says why it failed",
            Foreign::Compressed => "unpack it first",
        }
    }
}

/// All errors of reading an archive.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Pt2Error {
    /// The operating system refused.
    #[error("{at}: {source}")]
    Io {
        /// The file.
        at: Box<Place>,
        /// The system's error.
        source: std::io::Error,
    },
    /// The file is of another kind.
    #[error("{at}: {}. What to do: {}", kind.what(), kind.advice())]
    Foreign {
        /// The file or the entry that identifies the format.
        at: Box<Place>,
        /// What it is.
        kind: Foreign,
    },
    /// The zip container is damaged, truncated or forged.
    #[error("{at}: damaged archive: {problem}. Copy, download or export it again")]
    Damaged {
        /// The entry, or the file.
        at: Box<Place>,
        /// What is wrong.
        problem: String,
    },
    /// More than the file's size justifies, or more than this reader accepts.
    #[error("{at}: {what} is {found}, more than the {limit} that are accepted here")]
    Limit {
        /// The entry, or the file.
        at: Box<Place>,
        /// What is measured, with its unit.
        what: &'static str,
        /// The measure of this archive.
        found: u64,
        /// The most that is accepted.
        limit: u64,
    },
    /// The archive has no model of the wanted name, or several and none was named.
    #[error("{at}: {}", choice(wanted.as_deref(), available))]
    Model {
        /// The folder of models.
        at: Box<Place>,
        /// The name that was asked for.
        wanted: Option<String>,
        /// The names that are there.
        available: Vec<String>,
    },
    /// An entry is not JSON, or not of the schema's types.
    #[error("{at} (line {line}, column {column}): {problem}")]
    Json {
        /// Entry and path.
        at: Box<Place>,
        /// Line, from 1.
        line: usize,
        /// Column, from 1.
        column: usize,
        /// The message of the parser.
        problem: String,
    },
    /// The entry follows the schema but is inconsistent.
    #[error("{at}: {problem}")]
    Invalid {
        /// Entry and path.
        at: Box<Place>,
        /// The inconsistency.
        problem: String,
    },
    /// The program was written by another major version of the export schema.
    #[error(
        "{at}: export schema {major}.{minor}; this reader knows major {}. Load it with the PyTorch that wrote it and save \
         it again with PyTorch 2.9 to 2.11 (`torch.export.load`, `torch.export.save`)",
        crate::SCHEMA_MAJOR
    )]
    SchemaVersion {
        /// Entry and path.
        at: Box<Place>,
        /// Major version of the file.
        major: i64,
        /// Minor version of the file.
        minor: i64,
    },
    /// The archive is valid, but contains something that is not supported.
    #[error("{at}: {what}. What to do: {advice}")]
    Unsupported {
        /// Entry and path.
        at: Box<Place>,
        /// What it is.
        what: String,
        /// What the user can do.
        advice: &'static str,
    },
    /// A weight's payload and its description are inconsistent.
    #[error("{at}: weight `{name}`: {problem}")]
    Weight {
        /// Entry and path.
        at: Box<Place>,
        /// Fully qualified name of the weight.
        name: String,
        /// The inconsistency.
        problem: String,
    },
    /// A size expression cannot be read.
    #[error("{at}: cannot read the size expression `{text}`: {problem}")]
    Expression {
        /// Entry and path.
        at: Box<Place>,
        /// The expression, shortened.
        text: String,
        /// What is wrong with it.
        problem: String,
    },
}

impl Pt2Error {
    /// Where it happened.
    pub fn place(&self) -> &Place {
        match self {
            Pt2Error::Io { at, .. }
            | Pt2Error::Foreign { at, .. }
            | Pt2Error::Damaged { at, .. }
            | Pt2Error::Limit { at, .. }
            | Pt2Error::Model { at, .. }
            | Pt2Error::Json { at, .. }
            | Pt2Error::Invalid { at, .. }
            | Pt2Error::SchemaVersion { at, .. }
            | Pt2Error::Unsupported { at, .. }
            | Pt2Error::Weight { at, .. }
            | Pt2Error::Expression { at, .. } => at,
        }
    }
}

fn choice(wanted: Option<&str>, available: &[String]) -> String {
    let names = available.join(", ");
    match (wanted, available.is_empty()) {
        (_, true) => "the archive holds no model".into(),
        (Some(name), _) => format!("no model `{name}`; there is {names}"),
        (None, _) => format!("several models and none is called `model`; name one of {names}"),
    }
}

/// At most the first 120 characters of `text`, for messages.
pub(crate) fn shorten(text: &str) -> String {
    match text.char_indices().nth(120) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// `Result` of this crate.
pub type Result<T, E = Pt2Error> = std::result::Result<T, E>;
