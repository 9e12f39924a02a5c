//! Weights by formula: a tensor that an archive lacks and that is a function of its name. If the backend keeps tensors on a
//! device they are computed there, by a program that this compiler builds: a host would take minutes for billions of
//! elements.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use fx_ir::{Arg, Graph, InputKind, OriginId, Output, OutputKind, Symbol, ValueId, ValueType};
use ir_core::{DType, Scalar, SymExpr, TensorMeta};
use kernel_ir::ScalarOp;
use plugin_host::{LoadedBackend, Value};
use prims::{Builder, OpError};
use pt2::Weight;
use tensor::{DeviceTensor, Tensor, TensorError, formula};

use crate::code::Code;
use crate::mesh::PartPlace;
use crate::{Error, Options};

/// `offset + scale * u`, `u` uniform in `[-1, 1)` by the stream of that name (`tensor::formula`); integers are zero.
#[derive(Clone, Debug, PartialEq)]
pub struct Recipe {
    /// Name of the stream.
    pub stream: String,
    /// Factor.
    pub scale: f32,
    /// Summand.
    pub offset: f32,
}

/// A source of recipes.
pub trait RecipeSource {
    /// The recipe of a weight; `None` where this source does not know it.
    fn recipe(&self, weight: &Weight) -> Option<Recipe>;
}

impl<F: Fn(&Weight) -> Option<Recipe>> RecipeSource for F {
    fn recipe(&self, weight: &Weight) -> Option<Recipe> {
        self(weight)
    }
}

impl Recipe {
    /// The weight on the host.
    ///
    /// # Errors
    /// It does not fit memory.
    pub fn on_host(&self, weight: &Weight) -> Result<Tensor, TensorError> {
        if !weight.dtype.is_inexact() {
            return Tensor::zeros(weight.dtype, &weight.sizes);
        }
        formula::fill(&self.stream, &weight.sizes, self.scale, self.offset)?.to_dtype(weight.dtype)
    }
}

/// Computes weights on a backend's device, by one compiled program for each dtype.
pub(crate) struct Maker {
    backend: LoadedBackend,
    options: Options,
    programs: Mutex<BTreeMap<DType, Code>>,
    spent: Mutex<Duration>,
}

impl Maker {
    /// For a backend that keeps tensors on its device; `None` for others. (A backend that takes whole graphs only receives
    /// the model: its weights are computed on the host.)
    pub(crate) fn of(backend: &LoadedBackend, options: &Options) -> Option<Maker> {
        let options = Options { mode: crate::Mode::Default, mesh: None, ..options.clone() };
        let programs = Mutex::default();
        let maker = || Maker { backend: backend.clone(), options, programs, spent: Mutex::default() };
        backend.has_device_memory().then(maker)
    }

    /// The time spent so far.
    pub(crate) fn spent(&self) -> Duration {
        *self.spent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The weight on the device.
    pub(crate) fn make(&self, weight: &Weight, recipe: &Recipe) -> Result<Value, Error> {
        let count = tensor::checked_numel(weight.dtype, &weight.sizes)?;
        self.timed(|| self.made(weight, recipe, &Lines::all(count), &weight.sizes))
    }

    /// A part of the weight on the device; `None` where its elements do not lie in lines at equal distances.
    pub(crate) fn make_part(
        &self,
        weight: &Weight,
        recipe: &Recipe,
        (place, sizes): &(PartPlace, Vec<usize>),
    ) -> Result<Option<Value>, Error> {
        match Lines::of(place, sizes).filter(|_| on_device(weight.dtype)) {
            Some(lines) => self.timed(|| self.made(weight, recipe, &lines, sizes)).map(Some),
            None => Ok(None),
        }
    }

    fn timed(&self, make: impl FnOnce() -> Result<Value, Error>) -> Result<Value, Error> {
        let start = Instant::now();
        let made = make();
        *self.spent.lock().unwrap_or_else(PoisonError::into_inner) += start.elapsed();
        made
    }

    fn made(&self, weight: &Weight, recipe: &Recipe, lines: &Lines, sizes: &[usize]) -> Result<Value, Error> {
        if !on_device(weight.dtype) || lines.extent.contains(&0) {
            let device = self.backend.device()?;
            return Ok(self.backend.to_device(&recipe.on_host(weight)?, device)?.into());
        }
        let mut programs = self.programs.lock().unwrap_or_else(PoisonError::into_inner);
        let code = match programs.entry(weight.dtype) {
            std::collections::btree_map::Entry::Occupied(known) => known.into_mut(),
            std::collections::btree_map::Entry::Vacant(place) => {
                let graph = graph(weight.dtype).map_err(|e| Error::Internal(e.to_string()))?;
                place.insert(Code::of_prims(graph, &|_| Ok(None), &self.options)?.code)
            }
        };
        let inputs = inputs(recipe, lines)?;
        let made = code.run_values(&inputs.iter().collect::<Vec<_>>(), 0)?;
        match made.into_iter().next() {
            Some(Value::Device(line)) => Ok(shaped(line, sizes).into()),
            Some(Value::Host(line)) => Ok(line.reshape(sizes)?.into()),
            None => Err(Error::Internal("a program without a result".into())),
        }
    }
}

/// Whether the program makes elements of a type.
fn on_device(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::F64 | DType::F16 | DType::BF16)
}

/// Elements of a row-major tensor in lines at equal distances: `extent` is that of blocks, lines in a block, and elements.
#[derive(Debug, PartialEq)]
struct Lines {
    extent: [usize; 3],
    strides: [usize; 2],
    first: usize,
}

impl Lines {
    /// This many elements from the first one.
    fn all(count: usize) -> Lines {
        Lines { extent: [1, 1, count], strides: [0, 0], first: 0 }
    }

    /// Those of a part that one dimension is split for; `None` of others.
    fn of(place: &PartPlace, sizes: &[usize]) -> Option<Lines> {
        let whole = &place.whole;
        let split = |d: &usize| sizes[*d] != whole[*d] || place.pieces.contains_key(d);
        let mut dims = (0..sizes.len()).filter(split);
        let Some(dim) = dims.next() else { return Some(Lines::all(sizes.iter().product())) };
        let inner: usize = whole[dim + 1..].iter().product();
        let one = [(place.first[dim], sizes[dim])];
        let pieces = place.pieces.get(&dim).map_or(&one[..], |list| &list[..]);
        let &(first, length) = pieces.first()?;
        let step = pieces.get(1).map_or(0, |(second, _)| second - first);
        let regular =
            |(n, (at, n_length)): (usize, &(usize, usize))| *at == first + n * step && *n_length == length;
        let lines = Lines {
            extent: [whole[..dim].iter().product(), pieces.len(), length * inner],
            strides: [whole[dim] * inner, step * inner],
            first: first * inner,
        };
        (dims.next().is_none() && pieces.iter().enumerate().all(regular)).then_some(lines)
    }
}

/// The arguments of the program for these elements.
fn inputs(recipe: &Recipe, lines: &Lines) -> Result<[Value; 6], Error> {
    // The increment of SplitMix64 is added once for all elements.
    let base = formula::fnv1a64(&recipe.stream).wrapping_add(0x9E37_79B9_7F4A_7C15) as i64;
    let whole = |n: usize| Tensor::from_vec(vec![n as i64], &[]);
    let [blocks, rows, elements] = lines.extent;
    Ok([
        Tensor::from_vec(vec![base.wrapping_add(lines.first as i64)], &[])?.into(),
        whole(lines.strides[0])?.into(),
        whole(lines.strides[1])?.into(),
        Tensor::scalar(DType::F32, Scalar::Float(f64::from(recipe.scale)))?.into(),
        Tensor::scalar(DType::F32, Scalar::Float(f64::from(recipe.offset)))?.into(),
        Tensor::zeros(DType::U8, &[blocks, rows, elements, 0])?.into(),
    ])
}

/// A line of elements as a row-major tensor.
fn shaped(line: DeviceTensor, sizes: &[usize]) -> DeviceTensor {
    let strides: Vec<isize> = tensor::contiguous_strides(sizes).into_iter().collect();
    let (data, dtype, device) = (line.data(), line.dtype(), line.device());
    DeviceTensor::new(data, dtype, device, sizes, &strides, move || drop(line))
}

/// The formula as a graph of prims: `base`, the distances of blocks and of lines, `scale`, `offset`, and a tensor without
/// elements whose first sizes are the [`Lines::extent`].
fn graph(dtype: DType) -> Result<Graph, OpError> {
    let mut graph = Graph::new("weights by formula");
    let mut size = |name: &str, hint| {
        let symbol = Symbol { name: name.into(), min: 1, max: None, hint: Some(hint), unbacked: false };
        SymExpr::sym(graph.add_symbol(symbol))
    };
    let extent = [size("blocks", 1), size("lines", 1), size("n", 1 << 20)];
    let mut input = |name: &str, dtype, sizes: &[SymExpr]| {
        let ty = ValueType::Tensor(TensorMeta::contiguous(dtype, sizes.iter().cloned()));
        graph.placeholder(InputKind::User, name, name, ty)
    };
    let base = input("base", DType::I64, &[]);
    let strides = [input("block", DType::I64, &[]), input("line", DType::I64, &[])];
    let scale = input("scale", DType::F32, &[]);
    let offset = input("offset", DType::F32, &[]);
    let [blocks, lines, n] = &extent;
    input("extent", DType::U8, &[blocks.clone(), lines.clone(), n.clone(), SymExpr::ZERO]);
    let mut b = Builder::new(&mut graph, "uniform", OriginId(0));
    let mut z = base;
    for (dim, size) in extent.iter().enumerate() {
        let line = vec![size.clone().into(), 0i64.into(), 1i64.into(), DType::I64.into()];
        let mut at = b.call1("prims.iota", line)?;
        for _ in dim..2 {
            let rank = b.rank(at)?;
            at = b.unsqueeze(at, rank)?;
        }
        if let Some(stride) = strides.get(dim) {
            at = b.mul(at, *stride)?;
        }
        z = b.add(z, at)?;
    }
    let z = mixed(&mut b, z, 30)?;
    let z = b.mul(z, 0xBF58_476D_1CE4_E5B9_u64 as i64)?;
    let z = mixed(&mut b, z, 27)?;
    let z = b.mul(z, 0x94D0_49BB_1331_11EB_u64 as i64)?;
    let z = mixed(&mut b, z, 31)?;
    let top = shifted(&mut b, z, 40)?;
    let u = b.cast(top, DType::F32)?;
    let u = b.mul(u, 1.0 / 8_388_608.0)?;
    let u = b.sub(u, 1.0)?;
    let scaled = b.mul(u, scale)?;
    let value = b.add(offset, scaled)?;
    let value = b.cast(value, dtype)?;
    graph.outputs.push(Output { kind: OutputKind::User, arg: Arg::Value(value) });
    Ok(graph)
}

/// `z ^ (z >> bits)`.
fn mixed(b: &mut Builder<'_>, z: ValueId, bits: u32) -> Result<ValueId, OpError> {
    let low = shifted(b, z, bits)?;
    b.scalar_op(ScalarOp::Xor, &[z.into(), low.into()])
}

/// The logical shift `z >> bits`: the arithmetic one without the copies of the sign bit.
fn shifted(b: &mut Builder<'_>, z: ValueId, bits: u32) -> Result<ValueId, OpError> {
    let down = b.scalar_op(ScalarOp::Shr, &[z.into(), i64::from(bits).into()])?;
    b.and(down, (u64::MAX >> bits) as i64)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use fx_ir::InputKind;

    use super::*;

    #[test]
    fn the_program_makes_what_the_host_makes() {
        for (dtype, backend) in
            [(DType::F32, "oracle"), (DType::BF16, "eager"), (DType::F16, "oracle"), (DType::F64, "eager")]
        {
            let options = Options::new().backend(backend);
            let code = Code::of_prims(graph(dtype).unwrap(), &|_| Ok(None), &options).unwrap().code;
            for (stream, count, scale, offset) in [("layer.0.weight", 1000, 0.3, 0.0), ("b", 1, 0.05, 1.0)] {
                let recipe = Recipe { stream: stream.into(), scale, offset };
                let weight = Weight {
                    name: stream.into(),
                    kind: InputKind::Parameter,
                    dtype,
                    sizes: vec![count],
                    requires_grad: false,
                    tensor: None,
                };
                let made = |lines: &Lines| {
                    let given = inputs(&recipe, lines).unwrap();
                    let made = code.run_values(&given.iter().collect::<Vec<_>>(), 0).unwrap();
                    let [Value::Host(made)] = &made[..] else { panic!("one host tensor") };
                    numbers(made)
                };
                let wanted = recipe.on_host(&weight).unwrap();
                assert_eq!(made(&Lines::all(count)), numbers(&wanted), "{dtype} {backend} {stream}");
                if count < 1000 {
                    continue;
                }
                // The second halves of two sections of the middle one of the sizes 5, 20, 10.
                let place = PartPlace {
                    whole: vec![5, 20, 10],
                    first: vec![0, 5, 0],
                    pieces: [(1, vec![(5, 5), (15, 5)])].into(),
                };
                let lines = Lines::of(&place, &[5, 10, 10]).unwrap();
                let wanted = wanted.reshape(&[5, 2, 2, 50]).unwrap().narrow(2, 1, 1).unwrap();
                assert_eq!(made(&lines), numbers(&wanted), "{dtype} {backend} {stream}, a part");
            }
        }
    }

    fn numbers(t: &Tensor) -> Vec<u64> {
        t.iter_f64().map(f64::to_bits).collect()
    }

    #[test]
    fn parts_are_lines() {
        let place = |first: [usize; 2], pieces: &[(usize, usize)]| PartPlace {
            whole: vec![8, 6],
            first: first.to_vec(),
            pieces: (!pieces.is_empty()).then(|| (0, pieces.to_vec())).into_iter().collect(),
        };
        let rows = Lines::of(&place([4, 0], &[]), &[4, 6]);
        assert_eq!(rows, Some(Lines { extent: [1, 1, 24], strides: [48, 0], first: 24 }));
        let columns = Lines::of(&place([0, 3], &[]), &[8, 3]);
        assert_eq!(columns, Some(Lines { extent: [8, 1, 3], strides: [6, 0], first: 3 }));
        let sections = Lines::of(&place([1, 0], &[(1, 1), (5, 1)]), &[2, 6]);
        assert_eq!(sections, Some(Lines { extent: [1, 2, 6], strides: [48, 24], first: 6 }));
        assert_eq!(Lines::of(&place([2, 0], &[(2, 2), (6, 1)]), &[3, 6]), None, "of different lengths");
        assert_eq!(Lines::of(&place([4, 3], &[]), &[4, 3]), None, "of two dimensions");
    }
}
