//! `xtask corpus` as a process: what it prints, writes and exits with.

#![allow(clippy::unwrap_used, reason = "a test may")]

use std::path::Path;
use std::process::{Command, Output};

use tensor::Tensor;
use tensor::safetensors::SafetensorsFile;

fn corpus(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_xtask")).arg("corpus").args(args).output().unwrap()
}

fn last_line(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).lines().last().unwrap_or_default().to_owned()
}

/// A damaged archive with goldens next to it.
fn damaged(folder: &Path, name: &str) {
    std::fs::write(folder.join(format!("{name}.pt2")), b"PK\x03\x04 and nothing else").unwrap();
    let mut golden = SafetensorsFile::default();
    golden.tensors.insert("out0".into(), Tensor::from_vec(vec![1f32], &[1]).unwrap());
    golden.write(folder.join(format!("{name}.safetensors"))).unwrap();
}

#[test]
fn a_corpus_that_is_not_there_is_no_failure() {
    let output = corpus(&["/nonexistent/corpus"]);
    assert!(output.status.success());
    assert_eq!(last_line(&output), "corpus: 0 passed, 0 failed");
}

#[test]
fn a_damaged_case_is_reported_and_the_next_one_is_run() {
    let folder = tempfile::tempdir().unwrap();
    damaged(folder.path(), "one");
    damaged(folder.path(), "two");
    let json = folder.path().join("out.jsonl");
    let path = folder.path().to_str().unwrap();
    let output = corpus(&[path, "--json", json.to_str().unwrap(), "--jobs", "1"]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(last_line(&output), "corpus: 0 passed, 2 failed");
    let lines = std::fs::read_to_string(json).unwrap();
    assert_eq!(lines.lines().count(), 2);
    for line in lines.lines() {
        let case: serde_json::Value = serde_json::from_str(line).unwrap();
        let mut keys: Vec<&String> = case.as_object().unwrap().keys().collect();
        keys.sort();
        assert_eq!(keys, ["case", "compile_ms", "kind", "reason", "run_ms", "status"]);
        assert_eq!((case["kind"].as_str(), case["status"].as_str()), (Some("forward"), Some("error")));
        assert!(!case["reason"].as_str().unwrap().is_empty());
    }
}

#[test]
fn cases_are_chosen_by_name_and_kind() {
    let folder = tempfile::tempdir().unwrap();
    damaged(folder.path(), "one");
    damaged(folder.path(), "two");
    let path = folder.path().to_str().unwrap();
    assert_eq!(last_line(&corpus(&[path, "--only", "/one$"])), "corpus: 0 passed, 1 failed");
    assert_eq!(last_line(&corpus(&[path, "--kind", "model,train"])), "corpus: 0 passed, 0 failed");
    assert_eq!(corpus(&[path, "--only", "("]).status.code(), Some(2), "no regular expression");
}
