//! Damaged, forged and foreign archives: the expected error for each, and never a panic, a hang or a large allocation.

#![allow(clippy::unwrap_used, reason = "a test may")]

use std::time::{Duration, Instant};

use crate::common::{entries, golden, problems_of, rezip, write_zip};
use pt2::{Archive, ExportedProgram, Foreign, Pt2Error};
use zip::CompressionMethod::{Deflated, Stored};

fn read(bytes: Vec<u8>) -> Result<ExportedProgram, Pt2Error> {
    Archive::from_bytes(bytes)?.program(None)
}

fn good() -> Vec<u8> {
    std::fs::read(golden("nested.pt2")).unwrap()
}

/// The good archive with `from` replaced by `to` in every entry whose name ends with `entry`.
fn edited(entry: &str, from: &str, to: &str) -> Vec<u8> {
    edited_archive(&good(), entry, from, to)
}

fn edited_archive(archive: &[u8], entry: &str, from: &str, to: &str) -> Vec<u8> {
    let mut changed = false;
    let bytes = rezip(archive, |name, bytes| {
        if !name.ends_with(entry) {
            return Some(bytes);
        }
        let text = String::from_utf8(bytes).unwrap();
        changed |= text.contains(from);
        Some(text.replace(from, to).into_bytes())
    });
    assert!(changed, "`{from}` is not in {entry}");
    bytes
}

fn variant(error: &Pt2Error) -> &'static str {
    match error {
        Pt2Error::Io { .. } => "Io",
        Pt2Error::Foreign { .. } => "Foreign",
        Pt2Error::Damaged { .. } => "Damaged",
        Pt2Error::Limit { .. } => "Limit",
        Pt2Error::Model { .. } => "Model",
        Pt2Error::Json { .. } => "Json",
        Pt2Error::Invalid { .. } => "Invalid",
        Pt2Error::SchemaVersion { .. } => "SchemaVersion",
        Pt2Error::Unsupported { .. } => "Unsupported",
        Pt2Error::Weight { .. } => "Weight",
        Pt2Error::Expression { .. } => "Expression",
        _ => "?",
    }
}

/// Reads and expects an error of that variant whose message has `part`.
fn check(bytes: Vec<u8>, expected: &str, part: &str) {
    match read(bytes) {
        Ok(_) => panic!("read without an error; expected {expected}: {part}"),
        Err(error) => {
            assert_eq!(variant(&error), expected, "{error}");
            assert!(error.to_string().contains(part), "{error}\nhas no `{part}`");
        }
    }
}

#[test]
fn edits_of_the_program_are_found() {
    const MODEL: &str = "models/model.json";
    for (from, to, expected, part) in [
        (r#""major": 8"#, r#""major": 9"#, "SchemaVersion", "schema 9.17"),
        (r#""major": 8"#, r#""major": 7, "graph": 1"#, "SchemaVersion", "schema 7.17"),
        (r#""graph_module""#, r#""graph_modul""#, "Json", "missing field `graph_module`"),
        (r#""as_int": 2"#, r#""as_int": "2""#, "Json", "graph_module.graph.nodes[0].inputs[1].arg"),
        (r#""as_int": 2"#, r#""as_quark": 2"#, "Json", "unknown variant `as_quark`"),
        (r#""as_int": 2"#, r#""as_int": 99999999999999999999"#, "Json", "nodes[0].inputs[1].arg"),
        (r#""dtype": 7"#, r#""dtype": 31"#, "Unsupported", "float8_e4m3fnuz"),
        (r#""dtype": 7"#, r#""dtype": 4000000000"#, "Unsupported", "code 4000000000"),
        (r#""layout": 7"#, r#""layout": 1"#, "Unsupported", "to_dense"),
        (r#""strides": ["#, r#""strides": [{"as_int": 1}, "#, "Invalid", "sizes but"),
        (r#""sizes": [{"as_int": 3}]"#, r#""sizes": [{"as_int": -3}]"#, "Invalid", "negative size"),
        (
            r#"{"name": "mul_"}}, "kind""#,
            r#"{"name": "later"}}, "kind""#,
            "Invalid",
            "`later` is used but no node",
        ),
        (
            r#"[{"as_tensor": {"name": "add"}}], "metadata""#,
            r#"[{"as_tensor": {"name": "x"}}], "metadata""#,
            "Invalid",
            "defined twice",
        ),
        (
            r#"[{"as_tensor": {"name": "add"}}], "metadata""#,
            r#"[{"as_tensor": {"name": "new"}}], "metadata""#,
            "Invalid",
            "`new` is not described",
        ),
        (
            r#""input_specs": [{"#,
            r#""input_specs": [{"user_input": {"arg": {"as_none": true}}}, {"#,
            "Invalid",
            "specs for",
        ),
        (
            r#""user_output": {"arg": {"as_tensor""#,
            r#""buffer_mutation": {"buffer_name": "b", "arg": {"name": "add"}, "x": {"as_tensor""#,
            "Invalid",
            "is no input of that kind",
        ),
        (r#"{"type": "cpu", "index": null}"#, r#"{"type": "cpu", "index": -1}"#, "Invalid", "device number"),
        (
            r#"{"type": "cpu", "index": null}"#,
            r#"{"type": "c:p:u", "index": null}"#,
            "Invalid",
            "not a device",
        ),
        (
            r#""arg": {"as_int": 2}"#,
            r#""arg": {"as_custom_obj": {"name": "o", "class_fqn": "a.B"}}"#,
            "Unsupported",
            "custom object",
        ),
        (
            r#""sizes": [{"as_int": 3}]"#,
            r#""sizes": [{"as_expr": {"expr_str": "sqrt(s0)"}}]"#,
            "Expression",
            "`sqrt` is not known",
        ),
        (
            r#""sizes": [{"as_int": 3}]"#,
            r#""sizes": [{"as_expr": {"expr_str": "IntTrueDiv(s0, 2)"}}]"#,
            "Expression",
            "is not an integer",
        ),
        (r#""in_spec": "[1,"#, r#""in_spec": "[4,"#, "Invalid", "tree spec version 4"),
    ] {
        check(edited(MODEL, from, to), expected, part);
    }
}

#[test]
fn edits_of_the_weights_are_found() {
    let weights = std::fs::read(golden("weights.pt2")).unwrap();
    const CONFIG: &str = "model_weights_config.json";
    for (from, to, expected, part) in [
        (r#""sizes": [{"as_int": 24}]"#, r#""sizes": [{"as_int": 25}]"#, "Weight", "reach outside"),
        (r#""sizes": [{"as_int": 24}]"#, r#""sizes": [{"as_int": 23}]"#, "Weight", "the graph reads f32[24]"),
        (
            r#""sizes": [{"as_int": 24}]"#,
            r#""sizes": [{"as_int": 9223372036854775807}]"#,
            "Weight",
            "address space",
        ),
        (r#""sizes": [{"as_int": 24}]"#, r#""sizes": [{"as_int": -1}]"#, "Weight", "sizes are not numbers"),
        (
            r#""storage_offset": {"as_int": 1}"#,
            r#""storage_offset": {"as_int": 8}"#,
            "Weight",
            "reach outside",
        ),
        (
            r#""storage_offset": {"as_int": 1}"#,
            r#""storage_offset": {"as_int": 9223372036854775807}"#,
            "Weight",
            "reach outside",
        ),
        (r#""use_pickle": false"#, r#""use_pickle": true"#, "Unsupported", "never executed"),
        (r#""path_name": "weight_0""#, r#""path_name": "../weight_0""#, "Weight", "no proper name"),
        (r#""low": {"#, r#""big": {"#, "Invalid", "described twice"),
        (r#""dtype": 13"#, r#""dtype": 6"#, "Weight", "it is f16[3]"),
        (r#"{"config""#, r#"{"conf""#, "Json", "missing field `config`"),
    ] {
        check(edited_archive(&weights, CONFIG, from, to), expected, part);
    }
}

#[test]
fn the_graph_cannot_say_of_weights_what_they_are_not() {
    let weights = std::fs::read(golden("weights.pt2")).unwrap();
    const MODEL: &str = "models/model.json";
    let s0 = r#"{"as_expr": {"expr_str": "s0", "hint": {"as_int": 1}}}"#;
    let count = |sizes: &str, strides: &str| {
        let device = r#""requires_grad": false, "device": {"type": "cpu", "index": null}"#;
        format!(r#""b_count": {{"dtype": 5, "sizes": [{sizes}], {device}, "strides": [{strides}]"#)
    };
    let view = r#""strides": [{"as_int": 1}, {"as_int": 12}]"#;
    for (from, to, part) in [
        (count("", ""), count(s0, r#"{"as_int": 1}"#), "must be numbers"),
        (count("", ""), count(r#"{"as_int": 1}"#, r#"{"as_int": 1}"#), "but the graph reads i64[1]"),
        (view.to_owned(), format!(r#""strides": [{{"as_int": 1}}, {s0}]"#), "must be numbers"),
        (
            r#""storage_offset": {"as_int": 1}"#.to_owned(),
            format!(r#""storage_offset": {s0}"#),
            "must be numbers",
        ),
        (
            r#""sizes": [{"as_int": 24}]"#.to_owned(),
            r#""sizes": [{"as_int": 25}]"#.to_owned(),
            "but the graph reads f32[25]",
        ),
    ] {
        check(edited_archive(&weights, MODEL, &from, &to), "Weight", part);
    }
}

#[test]
fn records_of_the_archive_are_checked() {
    check(edited("archive_format", "pt2", "pt3"), "Unsupported", "format `pt3`");
    check(edited("archive_version", "0", "1"), "Unsupported", "archive version `1`");
    check(edited("byteorder", "little", "big"), "Unsupported", "big-endian");
    let renamed = |to: &str| {
        let all = entries(&good()).into_iter();
        write_zip(all.map(|(n, b)| (n.replace("nested/", to), b)), Stored)
    };
    assert!(read(renamed("")).is_ok(), "no root folder");
    assert!(read(renamed("any name/")).is_ok());
    check(renamed("a/b/"), "Foreign", "without the `archive_format`");
    check(renamed("../"), "Damaged", "leaves its folder");
    check(renamed("/"), "Damaged", "absolute path");
    check(renamed("c:\\"), "Damaged", "character");
    let without = |part: &str| rezip(&good(), |name, bytes| (!name.contains(part)).then_some(bytes));
    check(without("models/"), "Model", "holds no model");
    check(without("archive_format"), "Foreign", "archive_format");
    assert!(read(without("archive_version")).is_ok(), "older archives have no version");
    assert!(read(without("sample_inputs")).is_ok());
}

#[test]
fn foreign_files_are_explained() {
    let zip = |names: &[&str]| write_zip(names.iter().map(|n| (n.to_string(), b"x".to_vec())), Stored);
    let safetensors = [&16u64.to_le_bytes()[..], b"{\"__metadata__\":1}"].concat();
    for (bytes, kind) in [
        (Vec::new(), Foreign::Empty),
        (b"hello".to_vec(), Foreign::Unknown),
        (b"\x80\x02}q\x00.".to_vec(), Foreign::BarePickle),
        (b"\x1f\x8b\x08\x00".to_vec(), Foreign::Compressed),
        (b"GGUF\x03\0\0\0".to_vec(), Foreign::Gguf),
        (b"version https://git-lfs.github.com/spec/v1\n".to_vec(), Foreign::LfsPointer),
        (b"\n<!DOCTYPE html><html>".to_vec(), Foreign::WebPage),
        (b"\x1c\0\0\0ET12\x04\0\0\0".to_vec(), Foreign::ExecuTorch),
        (b"\x08\x08\x12\x07pytorch".to_vec(), Foreign::Onnx),
        (safetensors, Foreign::Safetensors),
        (zip(&["m/data.pkl", "m/version", "m/data/0"]), Foreign::Checkpoint),
        (zip(&["m/data.pkl", "m/code/a.py", "m/constants.pkl"]), Foreign::TorchScript),
        (zip(&["serialized_exported_program.json", "version"]), Foreign::OldExport),
        (zip(&["m/data/aotinductor/model/a.so", "m/version"]), Foreign::AotInductor),
        (zip(&["a.txt"]), Foreign::OtherZip),
    ] {
        match read(bytes) {
            Err(Pt2Error::Foreign { kind: found, .. }) => assert_eq!(found, kind),
            other => panic!("{kind:?}: {other:?}"),
        }
    }
    let aoti = rezip(&good(), |name, bytes| (!name.contains("models/")).then_some(bytes));
    let mut aoti = entries(&aoti);
    aoti.push(("nested/data/aotinductor/model/a.so".into(), vec![0; 8]));
    check(write_zip(aoti, Stored), "Foreign", "AOTInductor");
    let mut legacy = entries(&good());
    legacy.push(("nested/data/weights/model.pt".into(), vec![0; 8]));
    check(write_zip(legacy, Stored), "Unsupported", "PyTorch 2.7 and 2.8");
}

/// Offsets of the central directory's records.
fn central(bytes: &[u8]) -> Vec<usize> {
    let end = bytes.windows(4).rposition(|w| w == b"PK\x05\x06").unwrap();
    let start = u32::from_le_bytes(bytes[end + 16..end + 20].try_into().unwrap()) as usize;
    let mut at = start;
    let mut records = Vec::new();
    while bytes[at..].starts_with(b"PK\x01\x02") {
        records.push(at);
        let len = |o: usize| u16::from_le_bytes([bytes[at + o], bytes[at + o + 1]]) as usize;
        at += 46 + len(28) + len(30) + len(32);
    }
    records
}

#[test]
fn forged_directories_are_found() {
    let clean = rezip(&good(), |_, bytes| Some(bytes));
    let records = central(&clean);
    let patched = |record: usize, offset: usize, value: &[u8]| {
        let mut bytes = clean.clone();
        bytes[records[record] + offset..][..value.len()].copy_from_slice(value);
        bytes
    };
    // Offsets within a record: 8 flags, 10 method, 20 packed size, 24 size, 42 local header.
    check(patched(0, 8, &[1, 0]), "Unsupported", "encrypted");
    check(patched(0, 10, &[14, 0]), "Unsupported", "compressed with");
    check(patched(0, 20, &u32::to_le_bytes(0x7fff_ffff)), "Damaged", "past the end");
    check(patched(0, 24, &u32::to_le_bytes(7)), "Damaged", "two different sizes");
    check(patched(0, 42, &u32::to_le_bytes(0x7fff_ffff)), "Damaged", "");
    let second = clean[records[1] + 42..][..4].to_vec();
    check(patched(0, 42, &second), "Damaged", "overlaps");
    // Zip64 markers without the extra field that they promise.
    check(patched(0, 20, &[0xff; 8]), "Damaged", "");
    let mut doubled = clean.clone();
    let name = |r: usize| records[r] + 46;
    let (a, b) = (b"nested/byteorder", b"nested/byteordex");
    let at = doubled.windows(a.len()).rposition(|w| w == a).unwrap();
    assert!(at > name(0));
    doubled[at..at + b.len()].copy_from_slice(b);
    assert!(read(doubled).is_ok(), "the byte order is optional");
    check(
        write_zip(
            vec![("m/archive_format".into(), b"pt2".to_vec()), ("n/archive_format".into(), b"pt2".to_vec())],
            Stored,
        ),
        "Damaged",
        "second root",
    );
}

#[test]
fn bombs_do_not_go_off() {
    let started = Instant::now();
    let mut bomb = entries(&good());
    let model = bomb.iter_mut().find(|(n, _)| n.ends_with("model.json")).unwrap();
    model.1.extend(vec![b' '; 200 << 20]);
    let packed = write_zip(bomb, Deflated);
    assert!(packed.len() < 1 << 20);
    check(packed, "Limit", "inflated size");
    // A declared size beyond what deflate can give.
    let mut forged = write_zip(entries(&good()), Deflated);
    let record = *central(&forged).iter().find(|&&r| forged[r + 46..].starts_with(b"nested/models")).unwrap();
    forged[record + 24..record + 28].copy_from_slice(&0x7000_0000u32.to_le_bytes());
    check(forged, "Damaged", "than deflate can pack");
    // A declared size that is a little too small or too large.
    for size in [10u32, 100_000] {
        let mut forged = write_zip(entries(&good()), Deflated);
        forged[record + 24..record + 28].copy_from_slice(&size.to_le_bytes());
        check(forged, "Damaged", "");
    }
    assert!(
        read(write_zip(entries(&good()), Deflated)).is_ok(),
        "a deflated archive reads like a stored one"
    );
    assert!(started.elapsed() < Duration::from_secs(20));
}

#[test]
fn deep_and_long_json_is_refused() {
    let deep = format!(r#"{{"as_int": {}1{}}}"#, "[".repeat(50_000), "]".repeat(50_000));
    check(edited("model.json", r#""arg": {"as_int": 2}"#, &format!(r#""arg": {deep}"#)), "Json", "");
    let graph = r#"{"as_graph": {"name": "g", "graph": {"inputs": [], "outputs": [], "tensor_values": {}, "nodes": [{"target": "t", "outputs": [], "inputs": [{"name": "", "arg": "#;
    let nested = format!("\"arg\": {}{{\"as_int\": 1}}{}", graph.repeat(12), "}]}]}}}".repeat(12));
    assert!(
        read(edited("model.json", r#""arg": {"as_int": 2}"#, &nested)).is_ok(),
        "twelve levels are no more than deep"
    );
    let nested = format!("\"arg\": {}{{\"as_int\": 1}}{}", graph.repeat(3000), "}]}]}}}".repeat(3000));
    check(edited("model.json", r#""arg": {"as_int": 2}"#, &nested), "Json", "recursion limit");
}

#[test]
fn every_truncation_is_an_error() {
    for name in ["nested.pt2", "weights.pt2", "two.pt2"] {
        let bytes = std::fs::read(golden(name)).unwrap();
        for length in (0..bytes.len()).step_by(97) {
            let error = read(bytes[..length].to_vec()).expect_err("a truncated archive was read");
            assert!(matches!(variant(&error), "Damaged" | "Foreign"), "{name} at {length}: {error}");
        }
    }
}

/// Random flips of bits with a fixed seed: whatever is still read is a well-formed program.
#[test]
fn random_damage_never_panics() {
    let mut seed = 0x9E37_79B9_7F4A_7C15u64;
    let mut random = move |n: usize| {
        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (seed >> 33) as usize % n
    };
    let (mut read_anyway, mut slowest) = (0, Duration::ZERO);
    for name in ["nested.pt2", "weights.pt2", "sizes.pt2", "loops.pt2", "items.pt2", "modes.pt2"] {
        let original = std::fs::read(golden(name)).unwrap();
        let parts = entries(&original);
        for round in 0..400 {
            let started = Instant::now();
            // Half the rounds damage the container, half the entries below their check sums.
            let bytes = if round % 2 == 0 {
                let mut bytes = original.clone();
                for _ in 0..=random(8) {
                    let at = random(bytes.len());
                    bytes[at] ^= 1 << random(8);
                }
                bytes
            } else {
                let mut parts = parts.clone();
                for _ in 0..=random(4) {
                    let number = random(parts.len());
                    let part = &mut parts[number].1;
                    if !part.is_empty() {
                        let at = random(part.len());
                        part[at] = if random(2) == 0 {
                            part[at] ^ (1 << random(8))
                        } else {
                            b'0' + random(10) as u8
                        };
                    }
                }
                write_zip(parts, Stored)
            };
            if let Ok(program) = read(bytes) {
                read_anyway += 1;
                assert_eq!(problems_of(&program), Vec::<String>::new(), "{name} round {round}");
            }
            slowest = slowest.max(started.elapsed());
        }
    }
    println!("2400 damaged archives, {read_anyway} of them read, slowest {slowest:?}");
    assert!(slowest < Duration::from_secs(2), "{slowest:?}");
}

/// Damage that keeps the JSON's form: numbers, words and expressions exchanged for awkward ones.
#[test]
fn awkward_values_never_panic() {
    const NUMBERS: &[&str] = &[
        "0",
        "-1",
        "1",
        "9223372036854775807",
        "-9223372036854775808",
        "4611686018427387904",
        "1e300",
        "65537",
    ];
    const TEXTS: &[&str] = &[
        "",
        "x",
        "add",
        "s77",
        "u0",
        "zuf0",
        "é\\n",
        "Max(s77, u0)//0",
        "Pow(s77, 64)*s27",
        "s77 % -1",
        "Mul(Integer(-4611686018427387903), s77)",
        "FloorDiv(s77, Integer(-1))",
        "9223372036854775807",
        "-9223372036854775807*s77",
        "Eq(u0, s77)",
        "u0 >= 9223372036854775807",
        "s77*s27*u0 // (s77 + 1)",
        "torch.ops.higher_order.wrap_with_set_grad_enabled",
        "torch.ops.higher_order.wrap_with_autocast",
        "torch.ops.aten._assert_scalar.default",
        "_operator.mul",
        "torch.ops.aten.add.Tensor",
        "as_int",
        "as_tensor",
    ];
    let mut seed = 0x1234_5678_9ABC_DEF1u64;
    let mut random = move |n: usize| {
        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (seed >> 33) as usize % n
    };
    let (mut read_anyway, mut slowest) = (0, Duration::ZERO);
    for name in ["nested.pt2", "weights.pt2", "sizes.pt2", "loops.pt2", "items.pt2", "modes.pt2", "loss.pt2"]
    {
        let parts = entries(&std::fs::read(golden(name)).unwrap());
        let jsons: Vec<usize> = (0..parts.len()).filter(|&i| parts[i].0.ends_with(".json")).collect();
        for round in 0..300 {
            let mut parts = parts.clone();
            for _ in 0..=random(3) {
                // The program is the first choice in two of three cases.
                let model = parts.iter().position(|(n, _)| n.contains("models/")).unwrap();
                let number = if random(3) > 0 { model } else { jsons[random(jsons.len())] };
                let text = String::from_utf8(parts[number].1.clone()).unwrap();
                parts[number].1 = exchange(
                    &text,
                    random(text.len().max(1)),
                    NUMBERS[random(NUMBERS.len())],
                    TEXTS[random(TEXTS.len())],
                )
                .into_bytes();
            }
            let started = Instant::now();
            if let Ok(program) = read(write_zip(parts, Stored)) {
                read_anyway += 1;
                assert_eq!(problems_of(&program), Vec::<String>::new(), "{name} round {round}");
            }
            slowest = slowest.max(started.elapsed());
        }
    }
    println!("2100 archives with awkward values, {read_anyway} of them read, slowest {slowest:?}");
    assert!(read_anyway > 50 && slowest < Duration::from_secs(2), "{read_anyway} {slowest:?}");
}

/// Replaces the first number or quoted text after `at`.
fn exchange(json: &str, at: usize, number: &str, text: &str) -> String {
    let at = (at..json.len()).find(|&i| json.is_char_boundary(i)).unwrap_or(0);
    let Some(start) = json[at..].find(|c: char| c == '"' || c.is_ascii_digit()).map(|i| i + at) else {
        return json.into();
    };
    let rest = &json[start..];
    if let Some(body) = rest.strip_prefix('"') {
        let end = body.find('"').map_or(rest.len(), |e| e + 2);
        return format!("{}\"{text}\"{}", &json[..start], &rest[end..]);
    }
    let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    format!("{}{number}{}", &json[..start], &rest[end..])
}
