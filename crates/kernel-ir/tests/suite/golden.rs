//! The byte form is guarded: programs that an earlier version wrote must keep reading, and the names and kinds of the
//! serialized fields are in a committed list. Removing or re-typing a field demands a new major, adding one a new minor
//! (and then new goldens next to the old ones: `BLESS=1 cargo test -p ferroflux-kernel-ir` writes those that are missing, never over
//! one that is there).

#![allow(clippy::unwrap_used)] // a failing test may panic

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;

use kernel_ir::{IR_MAJOR, IR_MINOR, Program, verify};
use serde::de::{self, Deserialize, Deserializer, MapAccess, SeqAccess};

/// A program with every statement, in words.
const EVERYTHING: &str = include_str!("../files/roundtrip_everything.kir");

fn golden(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

/// The program as it was written, without the checks that a reader adds.
fn as_written(bytes: &[u8]) -> Program {
    rmp_serde::from_slice(&bytes[8..]).unwrap()
}

/// The file of this version; with `BLESS` it is written where it is missing.
fn current(stem: &str, extension: &str, content: &[u8]) -> Vec<u8> {
    let path = golden(&format!("{stem}_{IR_MAJOR}_{IR_MINOR}.{extension}"));
    if !path.exists() && std::env::var_os("BLESS").is_some() {
        fs::write(&path, content).unwrap();
    }
    fs::read(&path)
        .unwrap_or_else(|e| panic!("{}: {e} (BLESS=1 writes it for a new version)", path.display()))
}

#[test]
fn every_version_of_this_major_still_reads() {
    for minor in 0..=IR_MINOR {
        let bytes = fs::read(golden(&format!("program_{IR_MAJOR}_{minor}.ffxk"))).unwrap();
        let text = fs::read_to_string(golden(&format!("program_{IR_MAJOR}_{minor}.kir"))).unwrap();
        let (read, mut parsed) = (Program::from_bytes(&bytes).unwrap(), text.parse::<Program>().unwrap());
        verify(&read).unwrap();
        // Bytes of a minor without checks of indices get them when they are read.
        kernel_ir::guard_indices(&mut parsed);
        assert_eq!(
            read.to_bytes(),
            parsed.to_bytes(),
            "minor {minor}: bytes and text are not the same program"
        );
    }
}

#[test]
fn this_version_writes_the_same_bytes() {
    let program: Program = EVERYTHING.parse().unwrap();
    let bytes = program.to_bytes();
    let (golden, text) =
        (current("program", "ffxk", &bytes), current("program", "kir", program.to_string().as_bytes()));
    // The golden of a version is what that version writes for its own text, not for what the file test becomes later.
    let golden_program: Program = std::str::from_utf8(&text).unwrap().parse().unwrap();
    assert!(golden_program.to_bytes() == golden, "the bytes changed: see the head of this file");
}

#[test]
fn fields_keep_their_names_and_kinds() {
    let everything: Program = EVERYTHING.parse().unwrap();
    let text = String::from_utf8(current("program", "kir", everything.to_string().as_bytes())).unwrap();
    let program: Program = text.parse().unwrap();
    let mut schema = Schema::default();
    let value: Value = rmp_serde::from_slice(&program.to_bytes()[8..]).unwrap();
    schema.visit("Program", &value);
    let printed = schema.print();
    let committed = String::from_utf8(current("schema", "txt", printed.as_bytes())).unwrap();
    assert_eq!(printed, committed, "fields changed: a new minor where some were added, else a new major");
    // This version's own list is among them, which is the same text.
    for minor in 0..=IR_MINOR {
        let old = fs::read_to_string(golden(&format!("schema_{IR_MAJOR}_{minor}.txt"))).unwrap();
        for (path, kinds) in old.lines().filter_map(|l| l.split_once(": ")) {
            let now = schema.0.get(path);
            let kept = kinds.split('|').all(|kind| now.is_some_and(|now| now.contains(kind)));
            assert!(kept, "`{path}` of minor {minor} is gone or re-typed: that is a new major");
        }
    }
}

#[test]
fn unknown_keys_are_skipped_and_newer_versions_refused() {
    let program: Program = EVERYTHING.parse().unwrap();
    let mut bytes = program.to_bytes();
    assert_eq!(bytes[8], 0x8b, "a map of eleven fields");
    bytes[8] = 0x8c;
    bytes.extend([0xa3, b'n', b'e', b'w', 0x92, 0x01, 0xc0]);
    assert_eq!(Program::from_bytes(&bytes).unwrap().to_bytes(), program.to_bytes());
    // What this reader would skip may change what a newer program means.
    for (at, newer) in [(6, format!("1.{}", IR_MINOR + 1)), (4, format!("2.{}", IR_MINOR + 1))] {
        bytes[at] += 1;
        let error = Program::from_bytes(&bytes).unwrap_err().to_string();
        assert!(error.contains(&newer), "{error}");
    }
}

#[test]
fn a_program_goes_back_to_the_oldest_minor_that_has_all_of_it() {
    for minor in 0..=IR_MINOR {
        let bytes = fs::read(golden(&format!("program_{IR_MAJOR}_{minor}.ffxk"))).unwrap();
        let program = as_written(&bytes);
        assert_eq!(program.needs_minor(), minor, "each version's golden uses what it added");
        // What may run at once has an older form, one after another, and so have products of integers, as products of floats, quantized
        // weights, which are dequantized, and products by groups, as one for each.
        let single_groups = program.with_products_for_each_group().unwrap_or_else(|| program.clone());
        let plain = single_groups.with_dequantized_weights().unwrap_or_else(|| single_groups.clone());
        let floats = plain.with_float_products().unwrap_or_else(|| plain.clone());
        let single = floats.one_by_one();
        for older in 0..single.needs_minor() {
            let error = program.to_bytes_at(older).unwrap_err();
            assert!(error.since > older && error.wanted == older, "{error}");
        }
        for older in single.needs_minor()..minor {
            let written = program.to_bytes_at(older).unwrap();
            assert_eq!(written[6], older as u8);
            let written_at = as_written(&written);
            assert!(
                [&single, &floats, &plain, &single_groups].contains(&&written_at),
                "minor {minor} at {older}"
            );
            verify(&Program::from_bytes(&written).unwrap()).unwrap();
        }
        for newer in minor..=IR_MINOR + 1 {
            let written = program.to_bytes_at(newer).unwrap();
            assert_eq!(written[6], newer.min(IR_MINOR) as u8);
            assert_eq!(as_written(&written), program);
        }
    }
}

#[test]
fn what_has_no_older_form_is_named() {
    let bytes = fs::read(golden("program_1_2.ffxk")).unwrap();
    let error = as_written(&bytes).to_bytes_at(1).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("`{}`: {} came with kernel-ir 1.2 and has no form in 1.1", error.place, error.feature)
    );
    let bytes = fs::read(golden("program_1_3.ffxk")).unwrap();
    let error = as_written(&bytes).to_bytes_at(2).unwrap_err();
    assert_eq!((error.feature.as_str(), error.since), ("the step `extern`", 3));
    let bytes = fs::read(golden("program_1_5.ffxk")).unwrap();
    let error = as_written(&bytes).to_bytes_at(4).unwrap_err();
    assert_eq!((error.place.as_str(), error.since), ("sdpa", 5));
    let bytes = fs::read(golden("program_1_6.ffxk")).unwrap();
    let error = as_written(&bytes).to_bytes_at(5).unwrap_err();
    assert_eq!((error.feature.as_str(), error.since), ("the check of an index from data", 6));
}

#[test]
fn steps_that_may_run_at_once_become_steps_of_their_own() {
    let text = r#"kir 1.5
program "p"
buffer b0 "x" f32[8]{1}+0 input 0
buffer b1 "t" f32[8]{1}+0 arena
buffer b2 "u" f32[8]{1}+0 arena
buffer b3 "y" f32[8]{1}+0 output
input "x" b0
output "y" b3[8]{1}+0
init:
steps:
together "both"
do:
loop "one" outer [8]
  stage []
    v0: f32 = load b0[i0]
    v1: f32 = store b1[i0], v0
loop "two" outer [8]
  stage []
    v0: f32 = load b0[i0]
    v1: f32 = store b2[i0], v0
end
loop "sum" outer [8]
  stage []
    v0: f32 = load b1[i0]
    v1: f32 = load b2[i0]
    v2: f32 = add v0, v1
    v3: f32 = store b3[i0], v2
plan bytes 128:
  b1 live 0..1 at 0
  b2 live 0..1 at 64
"#;
    let program: Program = text.parse().unwrap();
    verify(&program).unwrap();
    assert_eq!(program.needs_minor(), 5);
    let older = Program::from_bytes(&program.to_bytes_at(0).unwrap()).unwrap();
    verify(&older).unwrap();
    assert_eq!(older.needs_minor(), 0);
    let names: Vec<&str> = older.steps.iter().map(kernel_ir::Step::name).collect();
    assert_eq!(names, ["one", "two", "sum"]);
    let lives: Vec<_> = older.plan.lives.iter().map(|l| (l.first, l.last)).collect();
    assert_eq!(lives, [(0, 2), (0, 2)], "both live from the first member on");
    assert_eq!(older.plan.offsets, program.plan.offsets);
}

/// Any MessagePack value, its scalars by kind alone.
enum Value {
    Kind(&'static str),
    Text(String),
    List(Vec<Value>),
    Map(Vec<(String, Value)>),
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Value, D::Error> {
        struct Visitor;
        impl<'de> de::Visitor<'de> for Visitor {
            type Value = Value;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("any value")
            }
            fn visit_bool<E>(self, _: bool) -> Result<Value, E> {
                Ok(Value::Kind("bool"))
            }
            fn visit_i64<E>(self, _: i64) -> Result<Value, E> {
                Ok(Value::Kind("int"))
            }
            fn visit_u64<E>(self, _: u64) -> Result<Value, E> {
                Ok(Value::Kind("int"))
            }
            fn visit_f64<E>(self, _: f64) -> Result<Value, E> {
                Ok(Value::Kind("float"))
            }
            fn visit_unit<E>(self) -> Result<Value, E> {
                Ok(Value::Kind("nil"))
            }
            fn visit_str<E>(self, text: &str) -> Result<Value, E> {
                Ok(Value::Text(text.to_string()))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
                let mut items = Vec::new();
                while let Some(item) = seq.next_element()? {
                    items.push(item);
                }
                Ok(Value::List(items))
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
                let mut fields = Vec::new();
                while let Some(field) = map.next_entry()? {
                    fields.push(field);
                }
                Ok(Value::Map(fields))
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

/// The kinds that each path of the serialized form has.
#[derive(Default)]
struct Schema(BTreeMap<String, BTreeSet<&'static str>>);

impl Schema {
    fn visit(&mut self, path: &str, value: &Value) {
        let kind = match value {
            Value::Kind(kind) => kind,
            Value::Text(text) => {
                // Unit variants of enums are texts; their names are part of the format.
                if text.starts_with(|c: char| c.is_ascii_uppercase())
                    && text.chars().all(char::is_alphanumeric)
                {
                    self.0.entry(format!("{path}={text}")).or_default().insert("variant");
                }
                "text"
            }
            Value::List(items) => {
                items.iter().for_each(|item| self.visit(&format!("{path}[]"), item));
                "list"
            }
            Value::Map(fields) => {
                fields.iter().for_each(|(name, field)| self.visit(&format!("{path}.{name}"), field));
                "map"
            }
        };
        self.0.entry(path.to_string()).or_default().insert(kind);
    }
    fn print(&self) -> String {
        let line = |(path, kinds): (&String, &BTreeSet<&str>)| {
            format!("{path}: {}\n", kinds.iter().copied().collect::<Vec<_>>().join("|"))
        };
        self.0.iter().map(line).collect()
    }
}
