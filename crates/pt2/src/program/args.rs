//! Converts arguments of the archive into arguments of the graph IR, and tensor descriptions into [`TensorMeta`].

use fx_ir::{Arg, Graph};
use ir_core::{DType, Device, DeviceKind, Layout, MemoryFormat, Scalar, Shape, TensorMeta};
use tracing::debug;

use super::build::Builder;
use super::scope::Scope;
use crate::error::{Result, shorten};
use crate::json_path::JsonPath;
use crate::schema::{self, Argument};

/// The code of `torch.strided` in the export schema.
pub(crate) const STRIDED: u32 = 7;

impl<'a> Builder<'a> {
    /// One argument. Subgraphs in it are built into `out`.
    pub(super) fn arg(
        &mut self,
        out: &mut Graph,
        scope: &Scope<'a>,
        arg: &'a Argument<'a>,
        depth: usize,
        at: &JsonPath<'_>,
    ) -> Result<Arg> {
        let tensor = |t: &schema::Name<'a>| scope.get(&t.name, at);
        let optional = |t: &schema::OptionalTensor<'a>| match t {
            schema::OptionalTensor::AsTensor(t) => scope.get(&t.name, at),
            schema::OptionalTensor::AsNone(_) => Ok(Arg::None),
        };
        Ok(match arg {
            Argument::AsNone(_) => Arg::None,
            Argument::AsTensor(t) => tensor(t)?,
            Argument::AsTensors(ts) => list(ts, tensor)?,
            Argument::AsNestedTensors(lists) => list(lists, |ts| list(ts, tensor))?,
            Argument::AsOptionalTensor(t) => optional(t)?,
            Argument::AsOptionalTensors(ts) => list(ts, optional)?,
            Argument::AsInt(n) => Arg::int(*n),
            Argument::AsInts(ns) => Arg::from(&ns[..]),
            Argument::AsIntLists(lists) => Arg::List(lists.iter().map(|ns| Arg::from(&ns[..])).collect()),
            Argument::AsFloat(x) => x.0.into(),
            Argument::AsFloats(xs) => Arg::List(xs.iter().map(|x| x.0.into()).collect()),
            Argument::AsString(text) => Arg::Str((**text).into()),
            Argument::AsStrings(texts) => Arg::List(texts.iter().map(|t| Arg::Str((**t).into())).collect()),
            Argument::AsBool(b) => (*b).into(),
            Argument::AsBools(bs) => Arg::List(bs.iter().map(|&b| b.into()).collect()),
            Argument::AsComplex(c) => Arg::Scalar(Scalar::Complex(c.real.0, c.imag.0)),
            Argument::AsSymInt(s) => sym_int(scope, s, at)?,
            Argument::AsSymInts(ss) => list(ss, |s| sym_int(scope, s, at))?,
            Argument::AsSymFloat(s) => sym_float(scope, s, at)?,
            Argument::AsSymFloats(ss) => list(ss, |s| sym_float(scope, s, at))?,
            Argument::AsSymBool(s) => sym_bool(scope, s, at)?,
            Argument::AsSymBools(ss) => list(ss, |s| sym_bool(scope, s, at))?,
            Argument::AsScalarType(code) => Arg::DType(dtype(*code, at)?),
            Argument::AsMemoryFormat(code) => Arg::MemoryFormat(memory_format(*code, at)?),
            Argument::AsLayout(code) => Arg::Layout(layout(*code)),
            Argument::AsDevice(device) => Arg::Device(self.device(device, at)?),
            Argument::AsGraph(graph) => {
                let body = self.subgraph(&graph.graph, &graph.name, depth + 1, &at.field("as_graph"))?;
                Arg::Graph(out.subgraphs.push(body))
            }
            Argument::AsOperator(name) => Arg::Str((**name).into()),
            Argument::AsStringToArgument(entries) => {
                let mut pairs = Vec::with_capacity(entries.0.len());
                for (key, value) in &entries.0 {
                    let value = self.arg(out, scope, value, depth, &at.key(key))?;
                    pairs.push(Arg::List(vec![Arg::Str((**key).into()), value]));
                }
                Arg::List(pairs)
            }
            Argument::AsCustomObj(object) => return Err(custom_object(object, at)),
        })
    }

    /// dtype, device, sizes and strides of a tensor.
    pub(super) fn meta(&mut self, meta: &'a schema::TensorMeta<'a>, at: &JsonPath<'_>) -> Result<TensorMeta> {
        if meta.layout != STRIDED {
            let what = format!("a sparse tensor (layout {})", meta.layout);
            return Err(at.unsupported(
                what,
                "convert the model's sparse tensors with `.to_dense()` before exporting",
            ));
        }
        if meta.sizes.len() != meta.strides.len() {
            return Err(at.invalid(format!("{} sizes but {} strides", meta.sizes.len(), meta.strides.len())));
        }
        let sizes = self.shape(&meta.sizes, &at.field("sizes"))?;
        let strides = self.shape(&meta.strides, &at.field("strides"))?;
        let offset = self.symbols.int(&meta.storage_offset, &at.field("storage_offset"))?;
        for number in sizes.iter().chain(&strides).chain([&offset]) {
            if number.as_const().is_some_and(|n| n < 0) {
                return Err(at.invalid(format!("a negative size, stride or offset, {number}")));
            }
        }
        sizes.iter().for_each(|size| self.symbols.is_size(size));
        Ok(TensorMeta {
            dtype: dtype(meta.dtype, &at.field("dtype"))?,
            device: self.device(&meta.device, &at.field("device"))?,
            sizes,
            strides,
            offset,
        })
    }

    fn shape(&mut self, sizes: &'a [schema::SymInt<'a>], at: &JsonPath<'_>) -> Result<Shape> {
        sizes.iter().enumerate().map(|(i, size)| self.symbols.int(size, &at.item(i))).collect()
    }

    /// A program that was exported on the `meta` device has no data there: it is read as one for the host.
    pub(super) fn device(&mut self, device: &schema::Device<'a>, at: &JsonPath<'_>) -> Result<Device> {
        let mut read: Device =
            device.kind.parse().map_err(|problem: String| at.invalid(shorten(&problem)))?;
        if let Some(index) = device.index {
            let number = u32::try_from(index).map_err(|_| at.invalid(format!("device number {index}")))?;
            read.index = Some(number);
        }
        if read.kind == DeviceKind::Meta {
            if !std::mem::replace(&mut self.moved_from_meta, true) {
                debug!("the program was exported on the `meta` device and is read as one for the host");
            }
            return Ok(Device::CPU);
        }
        Ok(read)
    }
}

fn list<T>(items: &[T], read: impl Fn(&T) -> Result<Arg>) -> Result<Arg> {
    items.iter().map(read).collect::<Result<_>>().map(Arg::List)
}

fn sym_int<'a>(scope: &Scope<'a>, arg: &schema::SymIntArgument<'a>, at: &JsonPath<'_>) -> Result<Arg> {
    match arg {
        schema::SymIntArgument::AsName(name) => scope.get(name, at),
        schema::SymIntArgument::AsInt(n) => Ok(Arg::int(*n)),
    }
}

fn sym_float<'a>(scope: &Scope<'a>, arg: &schema::SymFloatArgument<'a>, at: &JsonPath<'_>) -> Result<Arg> {
    match arg {
        schema::SymFloatArgument::AsName(name) => scope.get(name, at),
        schema::SymFloatArgument::AsFloat(x) => Ok(x.0.into()),
    }
}

fn sym_bool<'a>(scope: &Scope<'a>, arg: &schema::SymBoolArgument<'a>, at: &JsonPath<'_>) -> Result<Arg> {
    match arg {
        schema::SymBoolArgument::AsName(name) => scope.get(name, at),
        schema::SymBoolArgument::AsBool(b) => Ok((*b).into()),
    }
}

pub(super) fn custom_object(object: &schema::CustomObj<'_>, at: &JsonPath<'_>) -> crate::Pt2Error {
    let what = format!(
        "the model holds a custom object, `{}` of the class `{}`, which only PyTorch can run",
        shorten(&object.name),
        shorten(&object.class_fqn)
    );
    at.unsupported(what, "replace the object by tensors and operators before exporting")
}

pub(crate) fn dtype(code: u32, at: &JsonPath<'_>) -> Result<DType> {
    DType::from_pt2_code(code).ok_or_else(|| {
        let name = match code {
            0 => "unknown",
            9 => "complex32",
            31 => "float8_e4m3fnuz",
            32 => "float8_e5m2fnuz",
            _ => "of no known name",
        };
        at.unsupported(format!("a tensor of dtype {name} (code {code})"), "convert it before exporting")
    })
}

fn memory_format(code: u32, at: &JsonPath<'_>) -> Result<MemoryFormat> {
    Ok(match code {
        1 => MemoryFormat::Contiguous,
        2 => MemoryFormat::ChannelsLast,
        3 => MemoryFormat::ChannelsLast3d,
        4 => MemoryFormat::Preserve,
        _ => return Err(at.invalid(format!("memory format {code} is not one of 1 to 4"))),
    })
}

fn layout(code: u32) -> Layout {
    match code {
        STRIDED => Layout::Strided,
        1 => Layout::Sparse,
        _ => Layout::Other,
    }
}
