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
        let start = Instant::now();
        let made = self.made(weight, recipe);
        *self.spent.lock().unwrap_or_else(PoisonError::into_inner) += start.elapsed();
        made
    }

    fn made(&self, weight: &Weight, recipe: &Recipe) -> Result<Value, Error> {
        let count = tensor::checked_numel(weight.dtype, &weight.sizes)?;
        if !matches!(weight.dtype, DType::F32 | DType::F64 | DType::F16 | DType::BF16) || count == 0 {
            let device = self.backend.first_device()?;
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
        let inputs = inputs(recipe, count)?;
        let made = code.run_values(&inputs.iter().collect::<Vec<_>>(), 0)?;
        match made.into_iter().next() {
            Some(Value::Device(line)) => Ok(shaped(line, &weight.sizes).into()),
            Some(Value::Host(line)) => Ok(line.reshape(&weight.sizes)?.into()),
            None => Err(Error::Internal("a program without a result".into())),
        }
    }
}

/// The arguments of the program for this many elements.
fn inputs(recipe: &Recipe, count: usize) -> Result<[Value; 4], Error> {
    // The increment of SplitMix64 is added once for all elements.
    let base = formula::fnv1a64(&recipe.stream).wrapping_add(0x9E37_79B9_7F4A_7C15) as i64;
    Ok([
        Tensor::from_vec(vec![base], &[])?.into(),
        Tensor::scalar(DType::F32, Scalar::Float(f64::from(recipe.scale)))?.into(),
        Tensor::scalar(DType::F32, Scalar::Float(f64::from(recipe.offset)))?.into(),
        Tensor::zeros(DType::U8, &[count, 0])?.into(),
    ])
}

/// A line of elements as a row-major tensor.
fn shaped(line: DeviceTensor, sizes: &[usize]) -> DeviceTensor {
    let strides: Vec<isize> = tensor::contiguous_strides(sizes).into_iter().collect();
    let (data, dtype, device) = (line.data(), line.dtype(), line.device());
    DeviceTensor::new(data, dtype, device, sizes, &strides, move || drop(line))
}

/// The formula as a graph of prims: `base`, `scale`, `offset`, and a tensor without elements whose first size is the number
/// of elements.
fn graph(dtype: DType) -> Result<Graph, OpError> {
    let mut graph = Graph::new("weights by formula");
    let n = graph.add_symbol(Symbol {
        name: "n".into(),
        min: 1,
        max: None,
        hint: Some(1 << 20),
        unbacked: false,
    });
    let n = SymExpr::sym(n);
    let mut input = |name: &str, dtype, sizes: &[SymExpr]| {
        let ty = ValueType::Tensor(TensorMeta::contiguous(dtype, sizes.iter().cloned()));
        graph.placeholder(InputKind::User, name, name, ty)
    };
    let base = input("base", DType::I64, &[]);
    let scale = input("scale", DType::F32, &[]);
    let offset = input("offset", DType::F32, &[]);
    input("extent", DType::U8, &[n.clone(), SymExpr::ZERO]);
    let mut b = Builder::new(&mut graph, "uniform", OriginId(0));
    let line = b.call1("prims.iota", vec![n.into(), 0i64.into(), 1i64.into(), DType::I64.into()])?;
    let z = b.add(line, base)?;
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
                let given = inputs(&recipe, count).unwrap();
                let made = code.run_values(&given.iter().collect::<Vec<_>>(), 0).unwrap();
                let [Value::Host(made)] = &made[..] else { panic!("one host tensor") };
                let wanted = recipe.on_host(&weight).unwrap();
                let numbers = |t: &Tensor| t.iter_f64().map(f64::to_bits).collect::<Vec<_>>();
                assert_eq!(numbers(made), numbers(&wanted), "{dtype} {backend} {stream}");
            }
        }
    }
}
