//! A model: its captured graph and its weights.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use fx_ir::{Arg, Graph, InputKind, OutputKind};
use plugin_host::Value;
use pt2::{ExportedProgram, Weight, WeightSource};
use rayon::prelude::*;
use tensor::{Tensor, TensorError};

use crate::inputs::{self, InputInfo};
use crate::mesh::PartPlace;
use crate::pipeline::{self, Cx, KERNELS, KernelOptions, StageId};
use crate::recipe::{Maker, Recipe, RecipeSource};
use crate::{Compiled, Error, Options, zero_points};

/// A model read from a `torch.export` archive. Cheap to clone; weights are mapped from the file.
#[derive(Clone, Debug)]
pub struct Program {
    exported: Arc<ExportedProgram>,
    /// The formulas of weights that are in no file, by name.
    recipes: Arc<BTreeMap<String, Recipe>>,
    /// The user's name of it.
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
    /// A program of a graph that was built in Rust or parsed from text. Its user inputs are the arguments of a call, in
    /// their order; `weights` (a map, the weights of another program, a closure) is queried for every parameter, buffer and
    /// constant by name, with its dtype and sizes. Missing weights may be supplied later
    /// ([`fill_weights`](Program::fill_weights), [`set_weight`](Program::set_weight)).
    ///
    /// ```
    /// # use std::collections::BTreeMap;
    /// # use ferroflux::{Options, Program, Tensor, fx_ir::Graph};
    /// let graph: Graph = r#"fx 1.0
    /// graph "scale" {
    ///   %x: f32[2] = input "x"
    ///   %w: f32[2] = parameter "w"
    ///
    ///   %y: f32[2] = aten.mul.Tensor(%x, %w)
    ///   return %y
    /// }"#.parse()?;
    /// let weights = BTreeMap::from([("w".to_owned(), Tensor::from_vec(vec![2.0_f32, 3.0], &[2])?)]);
    /// let program = Program::from_graph(graph, &weights)?;
    /// let y = program.compile(&Options::new())?.call(&[Tensor::from_vec(vec![1.0_f32, 1.0], &[2])?])?;
    /// assert_eq!(y[0].to_vec::<f32>()?, [2.0, 3.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// A graph that is not well formed; a weight without numeric sizes, or with the name of another; a tensor of another
    /// dtype or other sizes than the graph states.
    pub fn from_graph(graph: Graph, weights: &dyn WeightSource) -> Result<Program, Error> {
        fx_ir::well_formed(&graph).map_err(Error::Graph)?;
        Ok(ExportedProgram::from_graph(graph, weights)?.into())
    }
    /// The contents of the archive.
    pub fn exported(&self) -> &ExportedProgram {
        &self.exported
    }
    /// The graph as captured: composites and mutation allowed.
    pub fn graph(&self) -> &Graph {
        &self.exported.graph
    }
    /// The inputs of a call, in order: tensors, numbers, and values that the model was exported for.
    pub fn inputs(&self) -> Vec<InputInfo> {
        inputs::of_model(self.graph(), &self.exported.inputs)
    }
    /// Weights whose data the archive lacks and that have no formula.
    pub fn missing_weights(&self) -> impl Iterator<Item = &Weight> {
        self.exported.weights.missing().filter(|w| !self.recipes.contains_key(&w.name))
    }
    /// Missing weights are computed by formula when the program is compiled, on the backend's device if it keeps tensors
    /// there; returns how many are still missing.
    pub fn make_weights(&mut self, source: &dyn RecipeSource) -> usize {
        let recipes = self.missing_weights().filter_map(|w| Some((w.name.clone(), source.recipe(w)?)));
        let recipes: Vec<(String, Recipe)> = recipes.collect();
        Arc::make_mut(&mut self.recipes).extend(recipes);
        self.missing_weights().count()
    }
    /// Queries `source` for every missing weight; returns how many are still missing.
    pub fn fill_weights(&mut self, source: &dyn WeightSource) -> Result<usize, Error> {
        Ok(Arc::make_mut(&mut self.exported).weights.fill(source)?)
    }
    /// The data of a weight, by name.
    pub fn weight(&self, name: &str) -> Option<&Tensor> {
        self.exported.weights.get(name)?.tensor.as_ref()
    }
    /// Computes the weights of [`make_weights`](Program::make_weights) now, on the host.
    ///
    /// # Errors
    /// They do not fit memory.
    pub fn make_weights_now(&mut self) -> Result<(), Error> {
        if let Some(whole) = self.made_on_host()? {
            *self = whole;
        }
        Ok(())
    }
    /// Whether a call returns a loss for training: the archive marks one, or the only returned tensor is a
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
    /// A weight on any device: that of the archive, or one by formula, computed by `maker` on its device or else on the
    /// host. `None` where there is neither.
    pub(crate) fn weight_value(&self, name: &str, maker: Option<&Maker>) -> Result<Option<Value>, Error> {
        let Some(weight) = self.exported.weights.get(name) else { return Ok(None) };
        match (&weight.tensor, self.recipes.get(name), maker) {
            (Some(tensor), _, _) => Ok(Some(tensor.clone().into())),
            (None, Some(recipe), Some(maker)) => maker.make(weight, recipe).map(Some),
            (None, Some(recipe), None) => Ok(Some(recipe.on_host(weight)?.into())),
            (None, None, _) => Ok(None),
        }
    }
    /// A part of a weight by formula, made on the maker's device; `None` of other weights, and where the device makes it whole alone.
    pub(crate) fn weight_part(
        &self,
        name: &str,
        maker: &Maker,
        part: &(PartPlace, Vec<usize>),
    ) -> Result<Option<Value>, Error> {
        match (self.exported.weights.get(name), self.recipes.get(name)) {
            (Some(weight), Some(recipe)) if weight.tensor.is_none() => maker.make_part(weight, recipe, part),
            _ => Ok(None),
        }
    }
    /// The program with its weights by formula computed on the host; `None` where there are none.
    pub(crate) fn made_on_host(&self) -> Result<Option<Program>, Error> {
        if self.recipes.is_empty() {
            return Ok(None);
        }
        let mut exported = Arc::clone(&self.exported);
        let weights = &mut Arc::make_mut(&mut exported).weights;
        let known =
            self.recipes.par_iter().filter_map(|(name, recipe)| Some((name, recipe, weights.get(name)?)));
        let made = known.map(|(name, recipe, weight)| Ok((name, recipe.on_host(weight)?)));
        let made: Vec<(&String, Tensor)> = made.collect::<Result<_, TensorError>>()?;
        for (name, tensor) in made {
            weights.set(name, tensor)?;
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
    ///
    /// # Errors
    /// A graph that is not well formed, and mutation that has no functional form.
    pub fn functional(&self) -> Result<Graph, Error> {
        self.through(StageId::Functional, &Cx::inference()?)
    }
    /// The graph of prims.
    ///
    /// # Errors
    /// As for [`functional`](Program::functional); all operators that are not supported.
    pub fn prims(&self) -> Result<Graph, Error> {
        self.through(StageId::Prim, &Cx::inference()?)
    }
    /// The graph that is lowered: prims on real numbers, after the passes.
    ///
    /// # Errors
    /// As for [`prims`](Program::prims).
    pub fn optimized(&self) -> Result<Graph, Error> {
        self.through(StageId::Optimized, &Cx::inference()?)
    }
    /// The graph after one stage or pass of [`pipeline::names`], in the inference pipeline.
    ///
    /// # Errors
    /// No stage or pass has this name, or the pass is skipped; as for [`optimized`](Program::optimized).
    pub fn after(&self, name: &str) -> Result<Graph, Error> {
        const WHAT: &str = "stages and passes";
        let name = pipeline::known(WHAT, name)?;
        if name == KERNELS {
            return Err(pipeline::not_a_graph(WHAT, name));
        }
        let found = std::cell::RefCell::new(None);
        let see = |at: &str, graph: &Graph| {
            if at == name {
                found.replace(Some(graph.clone()));
            }
        };
        let stage = pipeline::stage_of(name);
        self.through(stage, &Cx::inference()?.watched(&see))?;
        found.into_inner().ok_or_else(|| Error::PassSkipped(name.into()))
    }
    /// The fused program for device backends.
    ///
    /// # Errors
    /// As for [`optimized`](Program::optimized); errors of the lowering.
    pub fn kernels(&self) -> Result<kernel_ir::Program, Error> {
        let cx = Cx::inference()?;
        let functional = self.through(StageId::Functional, &cx)?;
        let options = KernelOptions { in_place: true, ..KernelOptions::of_model(&functional) };
        let optimized = pipeline::run(functional, StageId::Autocast..=StageId::Optimized, &cx)?;
        Ok(pipeline::lower(&optimized, &options, &cx)?.program)
    }
    /// The loop bodies as recorded, before fusion, as text.
    ///
    /// # Errors
    /// As for [`kernels`](Program::kernels).
    pub fn loops_text(&self) -> Result<String, Error> {
        Ok(inductor::lowered_text(&self.optimized()?)?)
    }
    /// The captured graph after the stages up to `last`.
    pub(crate) fn through(&self, last: StageId, cx: &Cx<'_>) -> Result<Graph, Error> {
        pipeline::run(self.known_graph().into_owned(), StageId::Captured..=last, cx)
    }
    /// The captured graph with what is known of the values of its constants; what is compiled depends on it alone.
    pub(crate) fn known_graph(&self) -> Cow<'_, Graph> {
        zero_points::without(self.graph(), &self.exported.weights)
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
        Compiled::with_plugin(self, &crate::registry().load(&options.backend)?, options)
    }
}

impl From<ExportedProgram> for Program {
    fn from(exported: ExportedProgram) -> Program {
        let name = exported.name.as_str().into();
        Program { exported: Arc::new(exported), recipes: Arc::default(), name }
    }
}
