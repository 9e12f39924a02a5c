//! A graph with everything that it needs to run, in memory and as files.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use fx_ir::{Arg, Graph, InputKind, OutputKind, ValueId, ValueType};
use plugin_host::Value;
use tensor::Tensor;
use tensor::safetensors::SafetensorsFile;

use crate::inputs::varying;
use crate::surgery::{cut_name, returning};
use crate::{Error, Input, Options, Program};

/// A graph and tensors for its inputs and weights by their names outside of the graph; numbers are tensors without dimensions.
#[derive(Clone, Debug)]
pub struct Case {
    /// The graph; all its outputs are returned.
    pub graph: Graph,
    /// A tensor for every placeholder.
    pub tensors: BTreeMap<String, Tensor>,
}

impl Program {
    /// The functional graph with its weights and these inputs (as for [`Compiled::call_with`](crate::Compiled::call_with)). What
    /// the program writes is an output like the others.
    ///
    /// # Errors
    /// Weights are missing; the graph cannot be made functional; another number of inputs.
    pub fn case(&self, inputs: &[Input]) -> Result<Case, Error> {
        self.require_weights()?;
        let mut graph = self.functional()?;
        let infos = self.inputs();
        let mut given = varying(&infos, inputs).into_iter();
        let mut tensors = BTreeMap::new();
        for (v, kind, name) in graph.inputs() {
            let is_input = !matches!(graph.values[v].ty, ValueType::None);
            let tensor = match kind {
                InputKind::Seed => continue,
                InputKind::User if is_input => {
                    given.next().map(Input::host).transpose()?.flatten().ok_or_else(|| {
                        let names = infos.iter().map(|i| i.name.as_str()).collect::<Vec<_>>().join(", ");
                        Error::InputCount { expected: infos.len(), given: inputs.len(), names }
                    })?
                }
                InputKind::User => continue,
                _ => match self.weight_value(name, None)? {
                    Some(Value::Host(tensor)) => tensor,
                    _ => continue,
                },
            };
            tensors.insert(name.to_owned(), tensor);
        }
        graph.outputs.retain(|o| matches!(o.arg, Arg::Value(_)));
        graph.outputs.iter_mut().for_each(|o| o.kind = OutputKind::User);
        Ok(Case { graph, tensors })
    }
}

impl Case {
    /// Number of calls.
    pub fn calls(&self) -> usize {
        self.graph.iter().filter(|(_, node)| node.as_call().is_some()).count()
    }

    /// As a program with its weights.
    ///
    /// # Errors
    /// A graph that is not well formed, or tensors that do not fit it.
    pub fn program(&self) -> Result<Program, Error> {
        Program::from_graph(self.graph.clone(), &self.tensors)
    }

    /// The inputs of a call of [`program`](Case::program).
    ///
    /// # Errors
    /// An input has no tensor.
    pub fn inputs(&self) -> Result<Vec<Input>, Error> {
        let users = self.graph.inputs().filter(|(v, kind, _)| {
            *kind == InputKind::User && !matches!(self.graph.values[*v].ty, ValueType::None)
        });
        let one = |(_, _, name): (ValueId, InputKind, &str)| {
            let missing = || Error::Snapshot(format!("there is no tensor `{name}`"));
            self.tensors.get(name).map(Input::from).ok_or_else(missing)
        };
        users.map(one).collect()
    }

    /// Compiles and runs it.
    ///
    /// # Errors
    /// As for compiling and calling.
    pub fn run(&self, options: &Options) -> Result<Vec<Tensor>, Error> {
        self.program()?.compile(options)?.call_with(&self.inputs()?)
    }

    /// The values of inner tensors in the interpreter; `None` where it refuses the graph.
    pub(super) fn in_eager(&self, values: &[ValueId]) -> Option<Vec<Tensor>> {
        if values.is_empty() {
            return Some(Vec::new());
        }
        let case = self.with(returning(&self.graph, values));
        let tensors = case.run(&Options::new().backend("eager").seed(0)).ok()?;
        tensors.into_iter().map(|t| t.copied().ok()).collect()
    }

    /// The same tensors with another graph.
    pub(super) fn with(&self, graph: Graph) -> Case {
        Case { graph, tensors: self.tensors.clone() }
    }

    /// Gives the inputs that stand for inner values their tensors.
    pub(super) fn give(&mut self, values: &[ValueId], tensors: Vec<Tensor>) {
        self.tensors.extend(values.iter().map(|&v| cut_name(v)).zip(tensors));
    }

    /// Without tensors that the graph does not name.
    pub(super) fn tidied(mut self) -> Case {
        let graph = &self.graph;
        self.tensors.retain(|name, _| graph.inputs().any(|(_, _, own)| own == name));
        self
    }

    /// With a graph that has no erased nodes.
    pub(super) fn canonical(self) -> Case {
        Case { graph: fx_ir::text::canonical(&self.graph), tensors: self.tensors }.tidied()
    }

    /// The file of the tensors that belong to a graph's file.
    pub fn tensors_path(path: &Path) -> PathBuf {
        path.with_extension("safetensors")
    }

    /// Writes the graph as text to `path`, and the tensors to the safetensors file of the same name beside it.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn write(&self, path: &Path) -> Result<(), Error> {
        let beside = Case::tensors_path(path);
        let mut tensors = BTreeMap::new();
        for (name, tensor) in &self.tensors {
            tensors.insert(name.clone(), tensor.copied()?);
        }
        let file = SafetensorsFile { tensors, ..SafetensorsFile::default() };
        file.write(&beside).map_err(|e| Error::Snapshot(e.to_string()))?;
        let text = fx_ir::text::print(&self.graph);
        ir_core::write_whole(path, text.as_bytes())
            .map_err(|source| Error::Io { path: path.to_owned(), source })
    }

    /// Reads what [`write`](Case::write) has written; a graph without a file of tensors has none.
    ///
    /// # Errors
    /// A file cannot be read, or its text is no graph.
    pub fn read(path: &Path) -> Result<Case, Error> {
        let text =
            std::fs::read_to_string(path).map_err(|source| Error::Io { path: path.to_owned(), source })?;
        let invalid = |e: fx_ir::TextError| Error::Snapshot(format!("{}: {e}", path.display()));
        let graph: Graph = text.parse().map_err(invalid)?;
        let beside = Case::tensors_path(path);
        let tensors = match beside.exists() {
            true => SafetensorsFile::open(&beside).map_err(|e| Error::Snapshot(e.to_string()))?.tensors,
            false => BTreeMap::new(),
        };
        Ok(Case { graph, tensors })
    }
}
