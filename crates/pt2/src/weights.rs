//! The weights of a program: tensors over the archive's own bytes, checked against their payloads.
//!
//! A stored payload is borrowed from the mapping; a deflated or unaligned one is copied once. A payload that is not in
//! the archive is no error: the table says what is missing, and takes it later from a [`WeightSource`].

use std::collections::{BTreeMap, HashMap};
use std::fmt;

use fx_ir::{Graph, InputKind, ValueType};
use ir_core::DType;
use tensor::safetensors::SafetensorsFile;
use tensor::{Storage, Tensor, TensorError};
use tracing::debug;

use crate::container::{Archive, EntryBytes};
use crate::error::{Pt2Error, Result};
use crate::json_path::JsonPath;
use crate::schema;

/// A weight's description, and its tensor where it is there.
#[derive(Clone, Debug)]
pub struct Weight {
    /// Fully qualified name: `layer1.0.conv1.weight`.
    pub name: String,
    /// Parameter, buffer or constant.
    pub kind: InputKind,
    /// Element type.
    pub dtype: DType,
    /// Number of elements of each dimension.
    pub sizes: Vec<usize>,
    /// Whether the archive says that it is trained.
    pub requires_grad: bool,
    /// The data; `None` where the archive lacks the payload.
    pub tensor: Option<Tensor>,
}

/// The weights that a graph reads, in the order of its inputs.
#[derive(Clone, Debug, Default)]
pub struct WeightTable {
    weights: Vec<Weight>,
    by_name: HashMap<String, usize>,
}

/// Where missing weights come from.
pub trait WeightSource {
    /// The tensor for `weight`; `None` where this source does not have it.
    ///
    /// # Errors
    /// Why the source cannot give it, in words.
    fn tensor(&self, weight: &Weight) -> std::result::Result<Option<Tensor>, String>;
}

/// A safetensors file whose names may lack (or have) a prefix: with `bert.`, the weight `bert.a` is read from `a`.
pub struct SafetensorsSource<'f> {
    /// The file.
    pub file: &'f SafetensorsFile,
    /// Prefix of the program's names that the file's lack; may be empty.
    pub prefix: &'f str,
}

impl WeightSource for SafetensorsSource<'_> {
    fn tensor(&self, weight: &Weight) -> std::result::Result<Option<Tensor>, String> {
        let short = weight.name.strip_prefix(self.prefix);
        let found = [Some(weight.name.as_str()), short].into_iter().flatten();
        Ok(found.filter_map(|name| self.file.tensors.get(name)).next().cloned())
    }
}

impl<F: Fn(&Weight) -> std::result::Result<Option<Tensor>, String>> WeightSource for F {
    fn tensor(&self, weight: &Weight) -> std::result::Result<Option<Tensor>, String> {
        self(weight)
    }
}

/// The weights of another program, by name.
impl WeightSource for WeightTable {
    fn tensor(&self, weight: &Weight) -> std::result::Result<Option<Tensor>, String> {
        Ok(self.get(&weight.name).and_then(|w| w.tensor.clone()))
    }
}

impl WeightSource for BTreeMap<String, Tensor> {
    fn tensor(&self, weight: &Weight) -> std::result::Result<Option<Tensor>, String> {
        Ok(self.get(&weight.name).cloned())
    }
}

impl WeightTable {
    /// What a graph reads as parameters, buffers and constants, without data. All parameters require gradients.
    ///
    /// # Errors
    /// `Weight` where one is no tensor of known size, or has the name of another.
    pub fn of_graph(graph: &Graph) -> Result<WeightTable> {
        let mut table = WeightTable::default();
        for (value, kind, name) in graph.inputs() {
            if matches!(kind, InputKind::User | InputKind::Seed) {
                continue;
            }
            let error = |problem: String| Pt2Error::Weight {
                at: JsonPath::Entry("the graph").place(),
                name: name.to_owned(),
                problem,
            };
            let number = |n: &i64| usize::try_from(*n).ok();
            let of = |meta: &ir_core::TensorMeta| {
                let sizes = meta.static_sizes()?.iter().map(number).collect::<Option<Vec<usize>>>()?;
                Some((meta.dtype, sizes))
            };
            let (dtype, sizes) = graph.meta(value).and_then(of).ok_or_else(|| {
                error("a parameter, buffer or constant is a tensor whose sizes are numbers".into())
            })?;
            if table.by_name.insert(name.to_owned(), table.weights.len()).is_some() {
                return Err(error("two weights have this name".into()));
            }
            let (name, requires_grad) = (name.to_owned(), kind == InputKind::Parameter);
            table.weights.push(Weight { name, kind, dtype, sizes, requires_grad, tensor: None });
        }
        Ok(table)
    }

    /// Number of weights.
    pub fn len(&self) -> usize {
        self.weights.len()
    }
    /// Whether the program has no weights.
    pub fn is_empty(&self) -> bool {
        self.weights.is_empty()
    }
    /// All weights, in the order of the graph's inputs.
    pub fn iter(&self) -> impl Iterator<Item = &Weight> {
        self.weights.iter()
    }
    /// The weight of that name.
    pub fn get(&self, name: &str) -> Option<&Weight> {
        self.by_name.get(name).map(|&i| &self.weights[i])
    }
    /// The weights whose payload is not in the archive.
    pub fn missing(&self) -> impl Iterator<Item = &Weight> {
        self.weights.iter().filter(|w| w.tensor.is_none())
    }

    /// The weight of that name, for changing.
    fn known(&mut self, name: &str) -> Result<&mut Weight> {
        let at = JsonPath::Entry("the weights");
        let problem = "the program has no such weight".to_owned();
        match self.by_name.get(name) {
            Some(&index) => Ok(&mut self.weights[index]),
            None => Err(Pt2Error::Weight { at: at.place(), name: name.to_owned(), problem }),
        }
    }

    /// Says whether a weight is trained, whatever the archive says.
    ///
    /// # Errors
    /// `Weight` where there is none of that name.
    pub fn set_requires_grad(&mut self, name: &str, wanted: bool) -> Result<()> {
        self.known(name)?.requires_grad = wanted;
        Ok(())
    }

    /// Sets a weight.
    ///
    /// # Errors
    /// `Weight` where there is none of that name, or dtype or sizes differ.
    pub fn set(&mut self, name: &str, tensor: Tensor) -> Result<()> {
        let at = JsonPath::Entry("the weights");
        let error = |problem: String| Pt2Error::Weight { at: at.place(), name: name.to_owned(), problem };
        let weight = self.known(name)?;
        if tensor.dtype() != weight.dtype || tensor.sizes() != &weight.sizes[..] {
            return Err(error(format!(
                "given as {}{:?}, but the program wants {}{:?}",
                tensor.dtype(),
                tensor.sizes(),
                weight.dtype,
                weight.sizes
            )));
        }
        weight.tensor = Some(tensor);
        Ok(())
    }

    /// Asks `source` for every missing weight; returns how many are missing still.
    ///
    /// # Errors
    /// `Weight` where the source fails or gives a tensor that does not fit.
    pub fn fill(&mut self, source: &dyn WeightSource) -> Result<usize> {
        let mut left = 0;
        for i in 0..self.weights.len() {
            let weight = &self.weights[i];
            if weight.tensor.is_some() {
                continue;
            }
            let name = weight.name.clone();
            let given = source.tensor(weight).map_err(|problem| Pt2Error::Weight {
                at: JsonPath::Entry("the weights' source").place(),
                name: name.clone(),
                problem,
            })?;
            match given {
                Some(tensor) => self.set(&name, tensor)?,
                None => left += 1,
            }
        }
        Ok(left)
    }
}

impl fmt::Display for Weight {
    /// `layer1.weight: f32[64, 3]`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}{:?}", self.name, self.dtype, self.sizes)
    }
}

/// Reads the tables of payloads and joins them with the graph's inputs.
pub(crate) fn read(archive: &Archive, model: &str, graph: &Graph) -> Result<WeightTable> {
    let mut payloads = Payloads { archive, spent: 0, storages: HashMap::new() };
    let mut described = HashMap::new();
    for (folder, config) in [("weights", "weights_config"), ("constants", "constants_config")] {
        let legacy = format!("data/{folder}/{model}.pt");
        if archive.has(&legacy) {
            let what = "weights as one pickled checkpoint, as PyTorch 2.7 and 2.8 wrote them";
            let advice = "load it with `torch.export.load` and save it again with PyTorch 2.9 or later";
            return Err(JsonPath::Entry(&legacy).unsupported(what, advice));
        }
        payloads.config(folder, &format!("data/{folder}/{model}_{config}.json"), &mut described)?;
    }
    let mut table = WeightTable::default();
    for (value, kind, name) in graph.inputs() {
        let ValueType::Tensor(meta) = &graph.values[value].ty else { continue };
        if kind == InputKind::User {
            continue;
        }
        let weight = match described.get(name) {
            Some(weight) => Weight { kind, ..Weight::clone(weight) },
            None => missing(name, kind, meta)?,
        };
        agree(&weight, meta)?;
        if table.by_name.insert(weight.name.clone(), table.weights.len()).is_some() {
            return Err(
                JsonPath::Entry("the graph's inputs").invalid(format!("two inputs read the weight `{name}`"))
            );
        }
        table.weights.push(weight);
    }
    Ok(table)
}

/// A weight that no table describes, by the graph's description of it.
fn missing(name: &str, kind: InputKind, meta: &ir_core::TensorMeta) -> Result<Weight> {
    let at = JsonPath::Entry("the graph's inputs");
    let problem = "its size is symbolic: sizes of a weight must be numbers";
    let error = || Pt2Error::Weight { at: at.place(), name: name.to_owned(), problem: problem.into() };
    let sizes = meta.static_sizes().ok_or_else(error)?;
    let sizes = sizes.into_iter().map(|n| usize::try_from(n).map_err(|_| error())).collect::<Result<_>>()?;
    Ok(Weight { name: name.to_owned(), kind, dtype: meta.dtype, sizes, requires_grad: false, tensor: None })
}

/// Table and graph must describe the same tensor.
fn agree(weight: &Weight, meta: &ir_core::TensorMeta) -> Result<()> {
    let refused = |problem: String| {
        let at = JsonPath::Entry("the graph's inputs").place();
        Err(Pt2Error::Weight { at, name: weight.name.clone(), problem })
    };
    let fixed = |e: &ir_core::SymExpr| e.as_const().is_some();
    if !meta.sizes.iter().chain(&meta.strides).chain([&meta.offset]).all(fixed) {
        return refused(format!(
            "the graph reads {meta}: sizes, strides and offset of a weight must be numbers"
        ));
    }
    let wanted = meta.static_sizes().unwrap_or_default();
    let same = wanted.len() == weight.sizes.len()
        && wanted.iter().zip(&weight.sizes).all(|(&a, &b)| usize::try_from(a) == Ok(b));
    if same && meta.dtype == weight.dtype {
        return Ok(());
    }
    let problem = format!("it is {}{:?}, but the graph reads {meta}", weight.dtype, weight.sizes);
    refused(problem)
}

/// Payloads of one archive: each is made into storage once, however many weights share it.
struct Payloads<'a> {
    archive: &'a Archive,
    /// Inflated bytes so far.
    spent: u64,
    storages: HashMap<String, Option<Storage>>,
}

impl Payloads<'_> {
    /// Reads one table; an archive without it has no such weights.
    fn config(&mut self, folder: &str, entry: &str, into: &mut HashMap<String, Weight>) -> Result<()> {
        let archive = self.archive;
        let Some(text) = archive.text(entry)? else { return Ok(()) };
        let config: schema::PayloadConfig<'_> = crate::json::parse(entry, &text)?;
        let at = JsonPath::Entry(entry);
        let at = at.field("config");
        for (name, payload) in &config.config.0 {
            let at = at.key(name);
            // What holds no tensor is a custom object; the signature reports it where the graph uses it.
            let Some(meta) = &payload.tensor_meta else { continue };
            let weight = self.weight(folder, name, payload, meta, &at)?;
            if into.insert(weight.name.clone(), weight).is_some() {
                return Err(at.invalid("a weight that is described twice"));
            }
        }
        Ok(())
    }

    fn weight(
        &mut self,
        folder: &str,
        name: &str,
        payload: &schema::Payload<'_>,
        meta: &schema::TensorMeta<'_>,
        at: &JsonPath<'_>,
    ) -> Result<Weight> {
        if payload.use_pickle {
            let what = "a pickled weight (a tensor subclass, `use_pickle`)";
            return Err(at.unsupported(
                what,
                "convert the weight to a plain tensor before exporting; pickles are never executed",
            ));
        }
        let error = |problem: String| Pt2Error::Weight { at: at.place(), name: name.to_owned(), problem };
        let dtype = crate::program::dtype(meta.dtype, &at.field("tensor_meta"))?;
        let sizes = numbers(&meta.sizes).ok_or_else(|| error("its sizes are not numbers from 0".into()))?;
        let strides =
            numbers(&meta.strides).ok_or_else(|| error("its strides are not numbers from 0".into()))?;
        let offset = numbers(std::slice::from_ref(&meta.storage_offset));
        let offset: Vec<isize> = offset.ok_or_else(|| error("its offset is not a number from 0".into()))?;
        let path = payload_path(folder, &payload.path_name)
            .ok_or_else(|| error("its payload has no proper name".into()))?;
        let storage = match self.storage(&path)? {
            // A weight without elements needs no payload.
            None if sizes.contains(&0) => Some(Storage::zeroed(0).map_err(|e| error(e.to_string()))?),
            // A program exported with fake tensors has payloads of no bytes: the weight is missing, not zero.
            Some(storage) if storage.is_empty() && !sizes.contains(&0) => None,
            other => other,
        };
        let tensor = storage.map(|storage| self.view(&path, storage, dtype, (&sizes, &strides, offset[0])));
        let tensor = tensor.transpose().map_err(|e| error(e.to_string()))?;
        let kind =
            if payload.is_param { InputKind::Parameter } else { InputKind::Buffer { persistent: true } };
        Ok(Weight { name: name.to_owned(), kind, dtype, sizes, requires_grad: meta.requires_grad, tensor })
    }

    fn storage(&mut self, path: &str) -> Result<Option<Storage>> {
        if let Some(known) = self.storages.get(path) {
            return Ok(known.clone());
        }
        let refused = |e: TensorError| JsonPath::Entry(path).invalid(e.to_string());
        let storage = match self.archive.payload(path, &mut self.spent)? {
            None => None,
            Some(EntryBytes::Mapped(range)) => Some(self.archive.bytes().storage(range).map_err(refused)?),
            Some(EntryBytes::Inflated(bytes)) => Some(Storage::from_bytes(&bytes).map_err(refused)?),
        };
        self.storages.insert(path.to_owned(), storage.clone());
        Ok(storage)
    }

    /// A tensor over a payload; one that is not aligned in the file is copied.
    fn view(
        &mut self,
        path: &str,
        storage: Storage,
        dtype: DType,
        (sizes, strides, offset): (&[usize], &[isize], isize),
    ) -> std::result::Result<Tensor, TensorError> {
        match Tensor::new(storage.clone(), dtype, sizes, strides, offset) {
            Err(TensorError::Misaligned { .. }) => {
                debug!(
                    payload = path,
                    bytes = storage.len(),
                    "a payload that is not aligned for {dtype} is copied"
                );
                let copy = Storage::from_bytes(storage.bytes())?;
                self.storages.insert(path.to_owned(), Some(copy.clone()));
                Tensor::new(copy, dtype, sizes, strides, offset)
            }
            other => other,
        }
    }
}

fn numbers<T: TryFrom<i64>>(sizes: &[schema::SymInt<'_>]) -> Option<Vec<T>> {
    let number = |size: &schema::SymInt<'_>| match size {
        schema::SymInt::AsInt(n) if *n >= 0 => T::try_from(*n).ok(),
        _ => None,
    };
    sizes.iter().map(number).collect()
}

fn payload_path(folder: &str, name: &str) -> Option<String> {
    let plain = !name.is_empty() && name.len() < 1024 && !name.contains(['/', '\\', '\0']);
    plain.then(|| format!("data/{folder}/{name}"))
}
