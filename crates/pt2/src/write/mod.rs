//! Writer of `torch.export` archives: a captured or functional graph with its weights, in the schema version that the reader knows.
//! What is written is what `torch.export.load` of PyTorch 2.9 and later reads.
//!
//! Not written: graphs of prims and of control flow, sizes that only the running program knows as arguments of operators, and
//! sample inputs. Structures of arguments that are neither tuple nor dictionary come back as tuples.

mod archive;
mod args;
mod graph;
mod sizes;
mod spec;

use std::io::{Seek, Write};
use std::path::Path;

use ir_core::AtomicFile;
use serde_json::{Value, json};

use self::graph::Writer;
use crate::error::{Place, Pt2Error, Result};
use crate::json_path::JsonPath;
use crate::program::{Dialect, ExportedProgram};
use crate::{SCHEMA_MAJOR, SCHEMA_MINOR};

/// Name of the only model in a written archive.
const MODEL: &str = "model";

/// The entry that a written program's errors name.
const ENTRY: &str = "models/model.json";

/// The version of ATen's operators that PyTorch 2.11 writes.
const ATEN_OPSET: i64 = 10;

impl ExportedProgram {
    /// Writes the program as an archive. The file is complete or, after an error, what it was before.
    ///
    /// # Errors
    /// `Unsupported` for what archives written here cannot have, `Weight` for a weight without data, `Io` of the file system.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        let failed = |source| Pt2Error::Io { at: Place::entry(path.display().to_string()), source };
        let mut file = AtomicFile::begin(path).map_err(failed)?;
        self.write_to(file.file())?;
        file.finish().map_err(failed)
    }

    /// As [`save`](ExportedProgram::save), to any seekable destination.
    ///
    /// # Errors
    /// As [`save`](ExportedProgram::save).
    pub fn write_to(&self, out: impl Write + Seek) -> Result<()> {
        let model = self.document()?;
        archive::write(out, &model, &self.weights)
    }

    /// The JSON of the model.
    fn document(&self) -> Result<Value> {
        let at = JsonPath::Entry(ENTRY);
        let mut graph = self.graph.clone();
        graph.make_names_unique();
        let at_module = at.field("graph_module");
        let mut writer = Writer::new(&graph)?;
        let specs = writer.inputs(&self.inputs, &at_module)?;
        writer.calls(&at_module)?;
        let (outputs, output_specs) = writer.outputs(&at_module)?;
        let calls = spec::module_calls(self);
        let verifier = match &self.dialect {
            Dialect::Aten => "ATEN",
            Dialect::Training | Dialect::Other(_) => "TRAINING",
        };
        Ok(json!({
            "graph_module": {
                "graph": writer.finish(outputs),
                "signature": { "input_specs": specs, "output_specs": output_specs },
                "module_call_graph": calls,
                "metadata": {},
                "treespec_namedtuple_fields": {},
            },
            "opset_version": { "aten": ATEN_OPSET },
            "range_constraints": sizes::ranges(&graph),
            "schema_version": { "major": SCHEMA_MAJOR, "minor": SCHEMA_MINOR },
            "verifiers": [verifier],
            "torch_version": self.torch_version.as_deref().unwrap_or("2.11.0"),
            "guards_code": self.guards,
        }))
    }
}
