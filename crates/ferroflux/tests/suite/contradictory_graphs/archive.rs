//! Archives written by hand: one graph whose metas say whatever a test wants, without weights.

use std::io::Write;

use ferroflux::Program;
use serde_json::{Map, Value, json};

/// A graph that is being written.
pub(crate) struct Archive {
    values: Map<String, Value>,
    nodes: Vec<Value>,
    inputs: Vec<String>,
    ranges: Map<String, Value>,
}

/// What an archive says of a tensor. Sizes are numbers or expressions.
#[derive(Clone, Copy)]
pub(crate) struct Meta<'a> {
    /// The code of the dtype in the export schema.
    pub(crate) dtype: u32,
    pub(crate) sizes: &'a [&'a str],
    pub(crate) strides: &'a [&'a str],
    pub(crate) offset: i64,
}

/// The code of `f32`.
const F32: u32 = 7;
/// The code of `f64`.
pub(crate) const F64: u32 = 8;

/// A `f32` tensor at the start of its storage.
pub(crate) fn f32<'a>(sizes: &'a [&'a str], strides: &'a [&'a str]) -> Meta<'a> {
    Meta { dtype: F32, sizes, strides, offset: 0 }
}

fn int(text: &str) -> Value {
    match text.parse::<i64>() {
        Ok(n) => json!({ "as_int": n }),
        Err(_) => json!({ "as_expr": { "expr_str": text, "hint": null } }),
    }
}

/// A list of integers as an argument.
pub(crate) fn ints(list: &[i64]) -> Value {
    json!({ "as_ints": list })
}

/// A value as an argument.
pub(crate) fn tensor(name: &str) -> Value {
    json!({ "as_tensor": { "name": name } })
}

impl Archive {
    pub(crate) fn new() -> Archive {
        Archive { values: Map::new(), nodes: Vec::new(), inputs: Vec::new(), ranges: Map::new() }
    }

    fn value(&mut self, name: &str, meta: Meta<'_>) {
        let list = |items: &[&str]| items.iter().map(|t| int(t)).collect::<Vec<_>>();
        let value = json!({
            "dtype": meta.dtype, "sizes": list(meta.sizes), "requires_grad": false,
            "device": { "type": "cpu", "index": null }, "strides": list(meta.strides),
            "storage_offset": { "as_int": meta.offset }, "layout": 7,
        });
        self.values.insert(name.into(), value);
    }

    /// The range of a symbol.
    pub(crate) fn range(mut self, symbol: &str, min: i64, max: i64) -> Archive {
        self.ranges.insert(symbol.into(), json!({ "min_val": min, "max_val": max }));
        self
    }

    pub(crate) fn input(mut self, name: &str, meta: Meta<'_>) -> Archive {
        self.value(name, meta);
        self.inputs.push(name.into());
        self
    }

    /// A call with one result, written in line 7 of `model.py`.
    pub(crate) fn call(
        mut self,
        name: &str,
        target: &str,
        args: &[(&str, Value)],
        meta: Meta<'_>,
    ) -> Archive {
        self.value(name, meta);
        let args: Vec<Value> =
            args.iter().map(|(name, arg)| json!({ "name": name, "arg": arg, "kind": 1 })).collect();
        let trace = format!("  File \"model.py\", line 7, in forward\n    {name} = …");
        self.nodes.push(json!({
            "target": format!("torch.ops.aten.{target}"), "inputs": args, "outputs": [tensor(name)],
            "metadata": { "stack_trace": trace }, "is_hop_single_tensor_return": null, "name": name,
        }));
        self
    }

    /// The program that returns these values.
    pub(crate) fn program(self, outputs: &[&str]) -> Result<Program, ferroflux::Error> {
        Program::from_bytes(self.bytes(outputs))
    }

    fn bytes(self, outputs: &[&str]) -> Vec<u8> {
        let user = |kind: &str, name: &str| json!({ kind: { "arg": tensor(name) } });
        let outs: Vec<Value> = outputs.iter().map(|n| tensor(n)).collect();
        let model = json!({
            "graph_module": {
                "graph": {
                    "inputs": self.inputs.iter().map(|n| tensor(n)).collect::<Vec<_>>(), "outputs": outs,
                    "nodes": self.nodes, "tensor_values": self.values, "sym_int_values": {},
                    "sym_bool_values": {}, "is_single_tensor_return": false, "custom_obj_values": {},
                    "sym_float_values": {},
                },
                "signature": {
                    "input_specs": self.inputs.iter().map(|n| user("user_input", n)).collect::<Vec<_>>(),
                    "output_specs": outputs.iter().map(|n| user("user_output", n)).collect::<Vec<_>>(),
                },
                "module_call_graph": [], "metadata": {}, "treespec_namedtuple_fields": {},
            },
            "opset_version": { "aten": 10 }, "range_constraints": self.ranges,
            "schema_version": { "major": 8, "minor": 17 }, "verifiers": ["TRAINING"],
            "torch_version": "2.11.0", "guards_code": [],
        });
        let entries = [
            ("archive_format", "pt2".to_owned()),
            ("archive_version", "0".to_owned()),
            ("byteorder", "little".to_owned()),
            ("models/model.json", model.to_string()),
        ];
        let mut zip = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
        for (name, text) in entries {
            let stored =
                zip::write::SimpleFileOptions::default().compression_method(zip::CompressionMethod::Stored);
            zip.start_file(format!("model/{name}"), stored).unwrap();
            zip.write_all(text.as_bytes()).unwrap();
        }
        zip.finish().unwrap().into_inner()
    }
}
