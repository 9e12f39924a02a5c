//! Arguments of operators and descriptions of tensors, as the schema has them.

use fx_ir::{Arg, Graph, ValueId, ValueType};
use ir_core::{Device, Layout, MemoryFormat, Scalar, TensorMeta};
use prims::ArgType;
use serde_json::{Value, json};

use super::graph::Writer;
use super::sizes;
use crate::error::Result;
use crate::json_path::JsonPath;
use crate::program::STRIDED;

/// A tensor's description.
pub(super) fn meta(graph: &Graph, meta: &TensorMeta, requires_grad: bool) -> Value {
    let all =
        |list: &[ir_core::SymExpr]| -> Vec<Value> { list.iter().map(|e| sizes::size(graph, e)).collect() };
    json!({
        "dtype": meta.dtype.pt2_code(),
        "sizes": all(&meta.sizes),
        "requires_grad": requires_grad,
        "device": device(&meta.device),
        "strides": all(&meta.strides),
        "storage_offset": sizes::size(graph, &meta.offset),
        "layout": STRIDED,
    })
}

fn device(device: &Device) -> Value {
    let kind = Device { index: None, ..device.clone() };
    json!({ "type": kind.to_string(), "index": device.index })
}

/// A float; JSON has no infinity.
fn float(x: f64) -> Value {
    match x {
        x if x.is_nan() => json!("NaN"),
        f64::INFINITY => json!("Infinity"),
        f64::NEG_INFINITY => json!("-Infinity"),
        x => json!(x),
    }
}

impl Writer<'_> {
    /// A value as an argument.
    pub(super) fn value(&self, v: ValueId) -> Value {
        let name = &self.names[&v];
        match &self.graph.values[v].ty {
            ValueType::Tensor(_) => json!({ "as_tensor": { "name": name } }),
            ValueType::Int(_) => json!({ "as_sym_int": { "as_name": name } }),
            ValueType::Float => json!({ "as_sym_float": { "as_name": name } }),
            ValueType::Bool => json!({ "as_sym_bool": { "as_name": name } }),
            ValueType::None => json!({ "as_none": true }),
        }
    }

    /// An argument of an operator, whose schema says this type.
    pub(super) fn arg(&mut self, arg: &Arg, ty: Option<&ArgType>, at: &JsonPath<'_>) -> Result<Value> {
        let is_float = ty.is_some_and(|ty| ty.base == "float");
        Ok(match arg {
            Arg::None => json!({ "as_none": true }),
            Arg::Value(v) => self.value(*v),
            Arg::Int(e) => match e.as_const() {
                Some(n) if is_float => json!({ "as_float": n as f64 }),
                Some(n) => json!({ "as_int": n }),
                None => json!({ "as_sym_int": { "as_name": self.sized(e, at)? } }),
            },
            Arg::Scalar(Scalar::Int(n)) => json!({ "as_int": n }),
            Arg::Scalar(Scalar::Bool(b)) => json!({ "as_bool": b }),
            Arg::Scalar(Scalar::Float(x)) => json!({ "as_float": float(*x) }),
            Arg::Scalar(Scalar::Complex(re, im)) => {
                json!({ "as_complex": { "real": float(*re), "imag": float(*im) } })
            }
            Arg::Str(text) => json!({ "as_string": text }),
            Arg::DType(dtype) => json!({ "as_scalar_type": dtype.pt2_code() }),
            Arg::Device(d) => json!({ "as_device": device(d) }),
            Arg::Layout(Layout::Strided) => json!({ "as_layout": STRIDED }),
            Arg::Layout(_) => {
                return Err(
                    at.unsupported("an operator takes a layout that is not strided", "use dense tensors")
                );
            }
            Arg::MemoryFormat(format) => json!({ "as_memory_format": memory_format(*format) }),
            Arg::List(items) => self.list(items, ty, at)?,
            Arg::Graph(_) => {
                let what = "control flow (an operator with a graph of its own)";
                return Err(at.unsupported(what, "write the model without it"));
            }
        })
    }

    fn list(&mut self, items: &[Arg], ty: Option<&ArgType>, at: &JsonPath<'_>) -> Result<Value> {
        let base = ty.map_or("", |ty| ty.base.as_str());
        let tensor = |v: &ValueId| json!({ "name": self.names[v] });
        let values: Option<Vec<Value>> =
            items.iter().map(|a| if let Arg::Value(v) = a { Some(tensor(v)) } else { None }).collect();
        if base == "Tensor" {
            if let (Some(values), false) = (values, ty.is_some_and(|ty| ty.optional_items)) {
                return Ok(json!({ "as_tensors": values }));
            }
            let optional = |a: &Arg| match a {
                Arg::Value(v) => json!({ "as_tensor": tensor(v) }),
                _ => json!({ "as_none": true }),
            };
            return Ok(json!({ "as_optional_tensors": items.iter().map(optional).collect::<Vec<_>>() }));
        }
        if let Some(numbers) = items.iter().map(Arg::as_scalar).collect::<Option<Vec<Scalar>>>() {
            if items.is_empty() || numbers.iter().all(|n| matches!(n, Scalar::Int(_))) && base != "float" {
                return Ok(match base {
                    "float" => json!({ "as_floats": [] }),
                    "bool" => json!({ "as_bools": [] }),
                    _ => json!({ "as_ints": numbers.iter().map(|n| n.as_i64()).collect::<Vec<_>>() }),
                });
            }
            if numbers.iter().all(|n| matches!(n, Scalar::Bool(_))) {
                return Ok(json!({ "as_bools": numbers.iter().map(|n| n.as_bool()).collect::<Vec<_>>() }));
            }
            return Ok(json!({ "as_floats": numbers.iter().map(|n| float(n.as_f64())).collect::<Vec<_>>() }));
        }
        let mut sizes = Vec::with_capacity(items.len());
        for item in items {
            sizes.push(match (item, self.arg(item, None, at)?) {
                (Arg::Int(e), _) if e.as_const().is_some() => json!({ "as_int": e.as_const() }),
                (_, mut other) if other.get("as_sym_int").is_some() => other["as_sym_int"].take(),
                _ => {
                    let what = format!("a list of {} items of mixed kinds", items.len());
                    return Err(at.unsupported(what, "pass lists of numbers, of sizes or of tensors"));
                }
            });
        }
        Ok(json!({ "as_sym_ints": sizes }))
    }
}

const fn memory_format(format: MemoryFormat) -> u32 {
    match format {
        MemoryFormat::Contiguous => 1,
        MemoryFormat::ChannelsLast => 2,
        MemoryFormat::ChannelsLast3d => 3,
        MemoryFormat::Preserve => 4,
    }
}
