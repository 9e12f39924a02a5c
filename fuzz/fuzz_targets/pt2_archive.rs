//! Untrusted archives: every graph read from any bytes is well-formed, and nothing panics.
//!
//! The first byte selects what the rest is: a whole archive, or the program (or the table of weights) of an archive that is
//! packed around it here, because random bytes seldom pass a zip file's check sums.

#![no_main]

use std::io::{Cursor, Write};

use libfuzzer_sys::fuzz_target;
use zip::write::SimpleFileOptions;

/// A minimal good table of weights and program, used for the part that is not fuzzed.
const NO_WEIGHTS: &[u8] = br#"{"config": {}}"#;
const ONE_WEIGHT: &[u8] = br#"{"graph_module": {"graph": {"inputs": [{"as_tensor": {"name": "p"}}], "outputs": [],
    "nodes": [], "tensor_values": {"p": {"dtype": 7, "sizes": [{"as_int": 4}], "strides": [{"as_int": 1}],
    "storage_offset": {"as_int": 0}, "device": {"type": "cpu"}, "layout": 7}}}, "signature": {"input_specs":
    [{"parameter": {"arg": {"name": "p"}, "parameter_name": "w"}}], "output_specs": []}},
    "schema_version": {"major": 8, "minor": 17}}"#;

fn pack(program: &[u8], weights: &[u8]) -> Option<Vec<u8>> {
    let mut zip = zip::ZipWriter::new(Cursor::new(Vec::new()));
    let stored = SimpleFileOptions::default().compression_method(zip::CompressionMethod::Stored);
    let entries = [
        ("m/archive_format", &b"pt2"[..]),
        ("m/models/model.json", program),
        ("m/data/weights/model_weights_config.json", weights),
        ("m/data/weights/weight_0", &[7; 64]),
    ];
    for (name, bytes) in entries {
        zip.start_file(name, stored).ok()?;
        zip.write_all(bytes).ok()?;
    }
    Some(zip.finish().ok()?.into_inner())
}

fuzz_target!(|data: &[u8]| {
    let Some((&kind, rest)) = data.split_first() else { return };
    let bytes = match kind % 3 {
        0 => Some(rest.to_vec()),
        1 => pack(rest, NO_WEIGHTS),
        _ => pack(ONE_WEIGHT, rest),
    };
    let Some(Ok(archive)) = bytes.map(pt2::Archive::from_bytes) else { return };
    for name in archive.model_names() {
        if let Ok(program) = archive.program(Some(&name)) {
            if let Err(problems) = fx_ir::well_formed(&program.graph) {
                panic!("read, but not well-formed: {problems:?}");
            }
        }
    }
});
