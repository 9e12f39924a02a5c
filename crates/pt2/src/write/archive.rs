//! The zip file: records, payloads of weights at multiples of a cache line, and their tables.

use std::io::{self, Seek, Write};

use fx_ir::InputKind;
use serde_json::{Map, Value, json};
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

use super::MODEL;
use crate::error::{Place, Pt2Error, Result};
use crate::json_path::JsonPath;
use crate::program::STRIDED;
use crate::weights::{Weight, WeightTable};

/// The folder that everything is in.
const ROOT: &str = "archive";
/// Multiples at which payloads begin, so that mapped tensors are aligned.
const ALIGN: u16 = 64;

/// Writes the whole archive.
pub(super) fn write(out: impl Write + Seek, model: &Value, weights: &WeightTable) -> Result<()> {
    let mut zip = Entries { zip: ZipWriter::new(out) };
    let mut tables = [Map::new(), Map::new()];
    for weight in weights.iter() {
        // State that is not part of a checkpoint lies among the constants.
        let state = matches!(weight.kind, InputKind::Parameter | InputKind::Buffer { persistent: true });
        let table = &mut tables[usize::from(!state)];
        let (folder, prefix) = if state { ("weights", "weight_") } else { ("constants", "tensor_") };
        let file = format!("{prefix}{}", table.len());
        let payload = payload(weight)?;
        zip.entry(&format!("data/{folder}/{file}"), &payload)?;
        table.insert(weight.name.clone(), described(weight, &file));
    }
    let [state, constants] = tables;
    zip.json(&format!("data/weights/{MODEL}_weights_config.json"), &json!({ "config": state }))?;
    zip.json(&format!("data/constants/{MODEL}_constants_config.json"), &json!({ "config": constants }))?;
    // PyTorch reads this entry in any case; without bytes there are no sample inputs.
    zip.entry(&format!("data/sample_inputs/{MODEL}.pt"), b"")?;
    zip.json(&format!("models/{MODEL}.json"), model)?;
    let records: [(&str, &[u8]); 4] = [
        ("archive_format", b"pt2"),
        ("archive_version", b"0"),
        ("byteorder", b"little"),
        (".data/version", b"6\n"),
    ];
    records.into_iter().try_for_each(|(name, bytes)| zip.entry(name, bytes))?;
    zip.zip.finish().map_err(|e| failed("the end of the archive", e.into()))?;
    Ok(())
}

fn failed(name: &str, source: io::Error) -> Pt2Error {
    Pt2Error::Io { at: Place::entry(name), source }
}

/// The archive's entries, stored without compression.
struct Entries<W: Write + Seek> {
    zip: ZipWriter<W>,
}

impl<W: Write + Seek> Entries<W> {
    fn entry(&mut self, name: &str, bytes: &[u8]) -> Result<()> {
        let large = bytes.len() > u32::MAX as usize;
        let options = SimpleFileOptions::default()
            .compression_method(CompressionMethod::Stored)
            .large_file(large)
            .with_alignment(ALIGN);
        let full = format!("{ROOT}/{name}");
        self.zip.start_file(full, options).map_err(|e| failed(name, e.into()))?;
        self.zip.write_all(bytes).map_err(|e| failed(name, e))
    }

    fn json(&mut self, name: &str, value: &Value) -> Result<()> {
        self.entry(name, value.to_string().as_bytes())
    }
}

/// The bytes of a weight in row-major order.
fn payload(weight: &Weight) -> Result<Vec<u8>> {
    let at = JsonPath::Entry("the weights");
    let error = |problem: String| Pt2Error::Weight { at: at.place(), name: weight.name.clone(), problem };
    let missing = "it has no data; give the file of its weights, or write the archive where it is known";
    let tensor = weight.tensor.as_ref().ok_or_else(|| error(missing.into()))?;
    let dense = tensor.contiguous().map_err(|e| error(e.to_string()))?;
    let size = dense.dtype().size();
    let first = usize::try_from(dense.offset()).unwrap_or_default() * size;
    let bytes = dense.storage().bytes().get(first..first + dense.numel() * size);
    Ok(bytes.ok_or_else(|| error("its data lies outside of its memory".into()))?.to_vec())
}

/// A weight's entry in its table.
fn described(weight: &Weight, file: &str) -> Value {
    let numbers =
        |list: &mut dyn Iterator<Item = i64>| list.map(|n| json!({ "as_int": n })).collect::<Vec<Value>>();
    let strides = tensor::contiguous_strides(&weight.sizes);
    json!({
        "path_name": file,
        "is_param": weight.kind == InputKind::Parameter,
        "use_pickle": false,
        "tensor_meta": {
            "dtype": weight.dtype.pt2_code(),
            "sizes": numbers(&mut weight.sizes.iter().map(|n| *n as i64)),
            "requires_grad": weight.kind == InputKind::Parameter && weight.requires_grad,
            "device": { "type": "cpu", "index": null },
            "strides": numbers(&mut strides.iter().map(|n| *n as i64)),
            "storage_offset": { "as_int": 0 },
            "layout": STRIDED,
        },
    })
}
