//! An exported program: the graph, its signature and its weights, built from the schema types.

mod args;
mod asserts;
mod build;
mod complete;
mod guards;
mod inline;
mod origin;
mod out;
mod scope;
mod signature;
mod symbols;
mod treespec;
mod unique;

use std::path::Path;

use fx_ir::{Graph, InputKind};
use tracing::debug;

pub(crate) use self::args::{STRIDED, dtype};
use self::build::Builder;
pub(crate) use self::build::is_symbolic;
pub(crate) use self::complete::default;
use self::inline::Mode;
use self::scope::Scope;
pub use self::signature::{CallSpec, UserInput};
use self::symbols::{Asserted, Symbols};
pub use self::treespec::TreeSpec;
use crate::container::Archive;
use crate::error::{Place, Pt2Error, Result};
use crate::json_path::JsonPath;
use crate::schema;
use crate::sym::Bounds;
use crate::weights::{self, WeightSource, WeightTable};
use crate::{SCHEMA_MAJOR, SCHEMA_MINOR, json};

/// The dialect of a program, in terms of `torch.export`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// As captured: composites such as `aten.linear`, mutation allowed.
    Training,
    /// Decomposed by `run_decompositions`: functional, core ATen.
    Aten,
    /// Another one, or none.
    Other(String),
}

/// A program read from an archive.
#[derive(Clone, Debug)]
pub struct ExportedProgram {
    /// Name of the model in its archive.
    pub name: String,
    /// The captured graph. Parameters, buffers, constants and user inputs are its placeholders.
    pub graph: Graph,
    /// The tensors of parameters, buffers and constants, mapped from the archive; some may be missing.
    pub weights: WeightTable,
    /// The arguments of `forward` in calling order, constants included.
    pub inputs: Vec<UserInput>,
    /// Structure and names of `forward`'s arguments and results.
    pub call: CallSpec,
    /// The dialect of its operators.
    pub dialect: Dialect,
    /// Version of the export schema, major and minor.
    pub schema_version: (i64, i64),
    /// The PyTorch version that exported it.
    pub torch_version: Option<String>,
    /// Python expressions that the inputs must satisfy, as PyTorch wrote them; those about sizes are guards of the graph.
    pub guards: Vec<String>,
}

impl ExportedProgram {
    /// Maps the archive at `path` and reads its model (`model`, or the only one).
    ///
    /// # Errors
    /// Every kind of [`Pt2Error`]; none for missing weight payloads, see [`WeightTable::missing`].
    pub fn load(path: impl AsRef<Path>) -> Result<ExportedProgram> {
        Archive::open(path)?.program(None)
    }

    /// A program without an archive: its user inputs are the arguments in their order, and `weights` is queried for every
    /// parameter, buffer and constant. Those that it does not have are missing, as payloads of archives may be.
    ///
    /// # Errors
    /// A graph that is not well formed, weights without known sizes or with the name of another, a source that fails, and a
    /// tensor of another dtype or other sizes than the graph says.
    pub fn from_graph(graph: Graph, weights: &dyn WeightSource) -> Result<ExportedProgram> {
        if let Some(first) = fx_ir::well_formed(&graph).err().and_then(|errors| errors.into_iter().next()) {
            return Err(JsonPath::Entry("the graph").invalid(first.to_string()));
        }
        let mut table = WeightTable::of_graph(&graph)?;
        table.fill(weights)?;
        let users = graph.inputs().filter(|(_, kind, _)| *kind == InputKind::User);
        let user = |(value, _, name): (fx_ir::ValueId, InputKind, &str)| UserInput {
            path: name.into(),
            name: name.into(),
            value: Some(value),
            constant: None,
        };
        let inputs = users.map(user).collect();
        Ok(ExportedProgram {
            name: graph.name.clone(),
            graph,
            weights: table,
            inputs,
            call: CallSpec::default(),
            dialect: Dialect::Other("graph".into()),
            schema_version: (SCHEMA_MAJOR, SCHEMA_MINOR),
            torch_version: None,
            guards: Vec::new(),
        })
    }
}

impl Archive {
    /// Reads the model of that name; `None` takes `model`, or the only one.
    ///
    /// # Errors
    /// As [`ExportedProgram::load`].
    pub fn program(&self, name: Option<&str>) -> Result<ExportedProgram> {
        let name = self.choose_model(name)?;
        let entry = format!("models/{name}.json");
        let text = self.text(&entry)?.ok_or_else(|| Pt2Error::Model {
            at: Place::entry("models/"),
            wanted: Some(name.clone()),
            available: self.model_names(),
        })?;
        let (program, version) = parse(&entry, &text)?;
        let at = JsonPath::Entry(&entry);
        let module_at = at.field("graph_module");
        let bounds = Bounds { bytes: self.limits().expression_bytes, depth: self.limits().expression_depth };
        let mut builder = Builder {
            symbols: Symbols::new(&program.range_constraints, bounds),
            limits: *self.limits(),
            mode: Mode::default(),
            moved_from_meta: false,
        };
        let (mut graph, mut inputs) = build(&mut builder, &program.graph_module, &name, &module_at)?;
        let call = signature::call_spec(&program.graph_module.module_call_graph, &module_at)?;
        signature::name_inputs(&mut inputs, &call);
        guards::read(&mut graph, &inputs, &program.guards_code, &bounds);
        if let Some(first) = fx_ir::well_formed(&graph).err().and_then(|errors| errors.into_iter().next()) {
            return Err(module_at.invalid(first.to_string()));
        }
        let weights = weights::read(self, &name, &graph)?;
        debug!(model = %name, nodes = graph.order.len(), weights = weights.len(), "program read");
        Ok(ExportedProgram {
            name,
            graph,
            weights,
            inputs,
            call,
            dialect: dialect(&program.verifiers),
            schema_version: (version.major, version.minor),
            torch_version: program.torch_version,
            guards: program.guards_code,
        })
    }
}

/// Parses the JSON. The version decides first: another major version has other types.
fn parse<'a>(entry: &str, text: &'a [u8]) -> Result<(schema::Program<'a>, schema::SchemaVersion)> {
    let parsed = json::parse::<schema::Program<'a>>(entry, text);
    let version = match &parsed {
        Ok(program) => program.schema_version,
        Err(_) => match json::parse::<schema::VersionOnly>(entry, text) {
            Ok(v) => v.schema_version,
            // Not even the version can be read: the first error has the position of the syntax error.
            Err(_) => return parsed.map(|p| (p, schema::SchemaVersion { major: 0, minor: 0 })),
        },
    };
    if version.major != SCHEMA_MAJOR {
        let (major, minor) = (version.major, version.minor);
        return Err(Pt2Error::SchemaVersion { at: Place::json(entry, "schema_version"), major, minor });
    }
    let newer = |error: Pt2Error| match error {
        Pt2Error::Json { at, line, column, problem } if version.minor > SCHEMA_MINOR => {
            let problem = format!(
                "{problem} (the archive has schema {SCHEMA_MAJOR}.{}, this reader knows up to \
                 {SCHEMA_MAJOR}.{SCHEMA_MINOR})",
                version.minor
            );
            Pt2Error::Json { at, line, column, problem }
        }
        other => other,
    };
    parsed.map(|program| (program, version)).map_err(newer)
}

fn build<'a>(
    builder: &mut Builder<'a>,
    module: &'a schema::GraphModule<'a>,
    name: &str,
    at: &JsonPath<'_>,
) -> Result<(Graph, Vec<UserInput>)> {
    let graph_at = at.field("graph");
    let mut graph = Graph::new(name);
    let mut scope = Scope::new(&module.graph, &graph_at)?;
    let inputs = builder.inputs(&mut graph, &mut scope, module, at)?;
    builder.nodes(&mut graph, &mut scope, &module.graph, 0, &graph_at)?;
    builder.outputs(&mut graph, &scope, module, at)?;
    build::drop_unused_symbolics(&mut graph);
    let asserted = builder.symbols.take_asserted();
    graph.symbols = builder.symbols.take_arena();
    for asserted in asserted {
        let Asserted { expression, relation, origin, text } = asserted;
        let message = format!("the program asserts `{text}`");
        guards::add(&mut graph, expression, relation, &origin, &message);
    }
    Ok((graph, inputs))
}

fn dialect(verifiers: &[String]) -> Dialect {
    match verifiers {
        [one] if one == "TRAINING" => Dialect::Training,
        [one] if one == "ATEN" => Dialect::Aten,
        other => Dialect::Other(other.join(", ")),
    }
}
