//! A model: its captured graph and its weights.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use fx_ir::{Arg, Graph, InputKind, OutputKind};
use plugin_host::Value;
use pt2::{ExportedProgram, Weight, WeightSource};
use tensor::Tensor;

use crate::inputs::{self, InputInfo};
use crate::recipe::{Maker, Recipe, RecipeSource};
use crate::{Compiled, Error, Options, graph_backend, stages};

/// A model read from a `torch.export` archive. Cheap to clone; weights are mapped from the file.
#[derive(Clone, Debug)]
pub struct Program {
    exported: Arc<ExportedProgram>,
    /// How weights are made that are in no file, by name.
    recipes: Arc<BTreeMap<String, Recipe>>,
    /// What the user calls it.
    name: Arc<str>,
}

impl Program {
    /// Reads the archive at `path`.
    pub fn load(path: impl AsRef<Path>) -> Result<Program, Error> {
        let path = path.as_ref();
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        Ok(Program::from(ExportedProgram::load(path)?).named(&name))
    }
    /// The same program under another name, which listings of the cache show.
    pub fn named(self, name: &str) -> Program {
        Program { name: name.into(), ..self }
    }
    /// Its name: that of the file it was read from, or of the model in its archive.
    pub fn name(&self) -> &str {
        &self.name
    }
    /// Reads an archive in memory.
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Program, Error> {
        Ok(pt2::Archive::from_bytes(bytes)?.program(None)?.into())
    }
    /// What the archive holds.
    pub fn exported(&self) -> &ExportedProgram {
        &self.exported
    }
    /// The graph as captured: composites and mutation allowed.
    pub fn graph(&self) -> &Graph {
        &self.exported.graph
    }
    /// What a call takes, in order: tensors, numbers, and values that the model was exported for.
    pub fn inputs(&self) -> Vec<InputInfo> {
        inputs::of_model(self.graph(), &self.exported.inputs)
    }
    /// Weights whose data the archive lacks and that are not made by formula.
    pub fn missing_weights(&self) -> impl Iterator<Item = &Weight> {
        self.exported.weights.missing().filter(|w| !self.recipes.contains_key(&w.name))
    }
    /// Has missing weights made by formula when the program is compiled, on the backend's device where it keeps tensors
    /// there; returns how many are missing still.
    pub fn make_weights(&mut self, source: &dyn RecipeSource) -> usize {
        let recipes = self.missing_weights().filter_map(|w| Some((w.name.clone(), source.recipe(w)?)));
        let recipes: Vec<(String, Recipe)> = recipes.collect();
        Arc::make_mut(&mut self.recipes).extend(recipes);
        self.missing_weights().count()
    }
    /// Asks `source` for every missing weight; returns how many are missing still.
    pub fn fill_weights(&mut self, source: &dyn WeightSource) -> Result<usize, Error> {
        Ok(Arc::make_mut(&mut self.exported).weights.fill(source)?)
    }
    /// The data of a weight, by name.
    pub fn weight(&self, name: &str) -> Option<&Tensor> {
        self.exported.weights.get(name)?.tensor.as_ref()
    }
    /// Makes the weights of [`make_weights`](Program::make_weights) now, on the host.
    ///
    /// # Errors
    /// They do not fit memory.
    pub fn make_weights_now(&mut self) -> Result<(), Error> {
        if let Some(whole) = self.made_on_host()? {
            *self = whole;
        }
        Ok(())
    }
    /// Whether a call returns a loss that parameters can be trained by: the archive marks one, or the one tensor returned is a
    /// single number and there are parameters that require gradients.
    pub fn trains(&self) -> bool {
        let outputs = &self.graph().outputs;
        let trained = self.exported.weights.iter().any(|w| w.kind == InputKind::Parameter && w.requires_grad);
        let lone = match &outputs.iter().filter(|o| o.kind == OutputKind::User).collect::<Vec<_>>()[..] {
            [one] => match one.arg {
                Arg::Value(v) => self.graph().meta(v).is_some_and(|m| m.rank() == 0 && m.dtype.is_inexact()),
                _ => false,
            },
            _ => false,
        };
        trained && (lone || outputs.iter().any(|o| o.kind == OutputKind::Loss))
    }
    /// A weight wherever it lies: that of the archive, or one that is made by formula, by `maker` on its device or else on
    /// the host. `None` where there is neither.
    pub(crate) fn weight_value(&self, name: &str, maker: Option<&Maker>) -> Result<Option<Value>, Error> {
        let Some(weight) = self.exported.weights.get(name) else { return Ok(None) };
        match (&weight.tensor, self.recipes.get(name), maker) {
            (Some(tensor), _, _) => Ok(Some(tensor.clone().into())),
            (None, Some(recipe), Some(maker)) => maker.make(weight, recipe).map(Some),
            (None, Some(recipe), None) => Ok(Some(recipe.on_host(weight)?.into())),
            (None, None, _) => Ok(None),
        }
    }
    /// The program with the weights that are made by formula made on the host; `None` where there are no such.
    pub(crate) fn made_on_host(&self) -> Result<Option<Program>, Error> {
        if self.recipes.is_empty() {
            return Ok(None);
        }
        let mut exported = Arc::clone(&self.exported);
        let weights = &mut Arc::make_mut(&mut exported).weights;
        for (name, recipe) in &*self.recipes {
            let made = weights.get(name).map(|w| recipe.on_host(w)).transpose()?;
            if let Some(tensor) = made {
                weights.set(name, tensor)?;
            }
        }
        Ok(Some(Program { exported, recipes: Arc::default(), name: self.name.clone() }))
    }
    /// Replaces the data of a weight.
    ///
    /// # Errors
    /// A weight that the program does not have, and a tensor of another dtype or size.
    pub fn set_weight(&mut self, name: &str, tensor: Tensor) -> Result<(), Error> {
        Ok(Arc::make_mut(&mut self.exported).weights.set(name, tensor)?)
    }
    /// The graph without mutation: written buffers and inputs are extra outputs.
    pub fn functional(&self) -> Result<Graph, Error> {
        stages::verify(self.graph())?;
        stages::functional(self.graph())
    }
    /// The graph in prims alone.
    pub fn prims(&self) -> Result<Graph, Error> {
        stages::prims(&self.functional()?)
    }
    /// The fused program that a device backend gets.
    pub fn kernels(&self) -> Result<kernel_ir::Program, Error> {
        stages::kernels(self.graph())
    }
    /// The loop bodies as recorded, before fusion, as text.
    pub fn loops_text(&self) -> Result<String, Error> {
        Ok(inductor::lowered_text(&stages::real(&self.prims()?)?)?)
    }
    pub(crate) fn require_weights(&self) -> Result<(), Error> {
        let missing: Vec<&Weight> = self.missing_weights().collect();
        match missing.first() {
            None => Ok(()),
            Some(first) => Err(Error::MissingWeights { count: missing.len(), first: first.to_string() }),
        }
    }
    /// Compiles for the backend of `options`.
    pub fn compile(&self, options: &Options) -> Result<Compiled, Error> {
        self.require_weights()?;
        match crate::registry().resolve(&options.backend)? {
            plugin_host::Resolved::Plugin(backend) => Compiled::with_plugin(self, &backend, options),
            plugin_host::Resolved::Graph(entry) => {
                graph_backend::check_mode(entry, options)?;
                let backend = graph_backend::of_entry(entry)?;
                Compiled::with_graph_backend(self, entry.name, backend, options)
            }
        }
    }
}

impl From<ExportedProgram> for Program {
    fn from(exported: ExportedProgram) -> Program {
        let name = exported.name.as_str().into();
        Program { exported: Arc::new(exported), recipes: Arc::default(), name }
    }
}
