//! Recognises files that are not `torch.export` archives, so that the error can say what they are.
//!
//! By magic numbers and entry names only; nothing is unpickled or executed.

use crate::error::Foreign;

/// The kind of a file without a zip directory, by its first bytes. `None` where it begins like a zip archive.
pub(super) fn by_magic(bytes: &[u8]) -> Option<Foreign> {
    const MAGICS: &[(&[u8], Foreign)] = &[
        (b"\x1f\x8b", Foreign::Compressed),
        (b"BZh", Foreign::Compressed),
        (b"\xfd7zXZ\0", Foreign::Compressed),
        (b"\x28\xb5\x2f\xfd", Foreign::Compressed),
        (b"7z\xbc\xaf\x27\x1c", Foreign::Compressed),
        (b"GGUF", Foreign::Gguf),
        (b"version https://git-lfs", Foreign::LfsPointer),
    ];
    if bytes.is_empty() {
        return Some(Foreign::Empty);
    }
    if bytes.starts_with(b"PK") {
        return None;
    }
    if let Some(&(_, kind)) = MAGICS.iter().find(|(magic, _)| bytes.starts_with(magic)) {
        return Some(kind);
    }
    Some(by_shape(bytes))
}

fn by_shape(bytes: &[u8]) -> Foreign {
    let head = &bytes[..bytes.len().min(512)];
    let text = head.trim_ascii_start();
    if text.get(..5).is_some_and(|t| t.eq_ignore_ascii_case(b"<html") || t.eq_ignore_ascii_case(b"<!doc")) {
        return Foreign::WebPage;
    }
    // A pickle begins with PROTO and a version from 2 to 5.
    if head.len() > 2 && head[0] == 0x80 && (2..=5).contains(&head[1]) {
        return Foreign::BarePickle;
    }
    // A flatbuffer's file identifier is at byte 4; ExecuTorch's is ET and two digits.
    if head.len() >= 8 && &head[4..6] == b"ET" && head[6..8].iter().all(u8::is_ascii_digit) {
        return Foreign::ExecuTorch;
    }
    // Safetensors: the length of a JSON header, then the header.
    if head.len() > 9 && head[8] == b'{' {
        let length =
            u64::from_le_bytes([head[0], head[1], head[2], head[3], head[4], head[5], head[6], head[7]]);
        if length <= (bytes.len() as u64).saturating_sub(8) {
            return Foreign::Safetensors;
        }
    }
    // ONNX: protobuf field 1 (ir_version, a small varint), then field 2 (producer_name, a string).
    if head.len() > 4 && head[0] == 0x08 && head[1] < 0x20 && head[2] == 0x12 {
        return Foreign::Onnx;
    }
    Foreign::Unknown
}

/// The kind of a zip archive without an `archive_format` record, by its entry names.
pub(super) fn by_names<'a>(names: impl Iterator<Item = &'a str> + Clone) -> Foreign {
    let any = |test: &dyn Fn(&str) -> bool| names.clone().any(test);
    let below_root = |name: &str| name.split_once('/').map_or(String::new(), |(_, rest)| rest.to_owned());
    if any(&|n| {
        n == "serialized_exported_program.json" || below_root(n) == "serialized_exported_program.json"
    }) {
        return Foreign::OldExport;
    }
    if any(&|n| n.contains("data/aotinductor/")) {
        return Foreign::AotInductor;
    }
    if any(&|n| n.ends_with("data.pkl")) {
        let script = any(&|n| below_root(n).starts_with("code/") || below_root(n) == "constants.pkl");
        return if script { Foreign::TorchScript } else { Foreign::Checkpoint };
    }
    if any(&|n| n.ends_with(".pte")) {
        return Foreign::ExecuTorch;
    }
    Foreign::OtherZip
}

/// The kind of an archive with an `archive_format` record but no model, by its entry names below the root.
pub(super) fn without_models<'a>(mut names: impl Iterator<Item = &'a str> + Clone) -> Option<Foreign> {
    if names.clone().any(|n| n.starts_with("data/aotinductor/")) {
        return Some(Foreign::AotInductor);
    }
    names.any(|n| n.starts_with("executorch/")).then_some(Foreign::ExecuTorch)
}
