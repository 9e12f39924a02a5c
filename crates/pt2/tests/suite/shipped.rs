//! The archives that the project ships hold every record that `torch.export.load` of PyTorch 2.11 asks for, so that they load
//! there too. A record may be empty: that of the captured inputs stands for none, that of a weight for a missing one.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use testing::cases::root;
use testing::files::list;

use crate::common::entries;

fn archives() -> Vec<PathBuf> {
    let examples = root().join("examples").read_dir().unwrap().map(|entry| entry.unwrap().path());
    let folders = examples.filter(|path| path.is_dir()).chain([root().join("tests/data/pt2")]);
    folders.flat_map(|folder| list(&folder, "pt2", 0)).collect()
}

/// What an archive lacks of what PyTorch reads.
fn lacks(path: &Path) -> Vec<String> {
    let held: BTreeMap<String, Vec<u8>> = entries(&std::fs::read(path).unwrap()).into_iter().collect();
    let top = held.keys().next().unwrap().split('/').next().unwrap().to_owned();
    let mut wanted: Vec<String> =
        ["archive_format", "archive_version", "byteorder", ".data/version"].map(str::to_owned).to_vec();
    let models: Vec<&str> = held
        .keys()
        .filter_map(|name| name.strip_prefix(&format!("{top}/models/"))?.strip_suffix(".json"))
        .collect();
    assert!(!models.is_empty(), "{}", path.display());
    for model in models {
        wanted.push(format!("data/sample_inputs/{model}.pt"));
        for folder in ["weights", "constants"] {
            let config = format!("data/{folder}/{model}_{folder}_config.json");
            if let Some(text) = held.get(&format!("{top}/{config}")) {
                let json: serde_json::Value = serde_json::from_slice(text).unwrap();
                let payloads = json["config"].as_object().unwrap().values();
                let name = |payload: &serde_json::Value| payload["path_name"].as_str().unwrap().to_owned();
                wanted.extend(payloads.map(|payload| format!("data/{folder}/{}", name(payload))));
            }
            wanted.push(config);
        }
    }
    wanted.retain(|name| !held.contains_key(&format!("{top}/{name}")));
    wanted
}

#[test]
fn pytorch_finds_every_record() {
    let archives = archives();
    assert!(archives.len() >= 15, "only {} archives", archives.len());
    let lacking: Vec<_> =
        archives.iter().map(|path| (path, lacks(path))).filter(|(_, lack)| !lack.is_empty()).collect();
    assert!(lacking.is_empty(), "{lacking:#?}");
}
