//! `ferroflux cache` as its users meet it: a run keeps its program, the next one finds it, `explain` names what differs.

#![cfg(feature = "cpu")]
#![allow(clippy::unwrap_used)] // a failing test may panic

use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

fn digits(file: &str) -> String {
    testing::cases::digits(file).display().to_string()
}

/// Exit code, standard output, standard error.
fn ferroflux(folder: &Path, args: &[&str]) -> (Option<i32>, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ferroflux"));
    command.env_remove("FERROFLUX_LOG").env_remove("FERROFLUX_CACHE").env("FERROFLUX_CACHE_DIR", folder);
    let output = command.args(args).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

fn succeeds(folder: &Path, args: &[&str]) -> String {
    let (code, out, err) = ferroflux(folder, args);
    assert_eq!(code, Some(0), "{args:?}\n{err}");
    out
}

#[test]
fn a_second_run_finds_what_the_first_one_kept() {
    let folder = TempDir::new().unwrap();
    let (model, inputs) = (digits("digits.pt2"), digits("digits.safetensors"));
    let run = |more: &[&str]| {
        let args = [&["run", &model, "--inputs", &inputs, "--json", "--log", "cache"][..], more].concat();
        let (code, out, err) = ferroflux(folder.path(), &args);
        assert_eq!(code, Some(0), "{err}");
        let outputs = serde_json::from_str::<serde_json::Value>(&out).unwrap()["outputs"].clone();
        (outputs, err)
    };
    let (first, log) = run(&[]);
    assert!(log.contains("not there") && log.contains("kept"), "{log}");
    let (second, log) = run(&[]);
    assert!(log.contains("found") && !log.contains("not there"), "{log}");
    assert_eq!(first, second);
    let (third, log) = run(&["--cache", "off"]);
    assert!(log.contains("not cached: it is turned off"), "{log}");
    assert_eq!(first, third);

    let list = succeeds(folder.path(), &["cache", "list"]);
    assert!(list.contains("digits") && list.contains("cpu") && list.contains("1 program in"), "{list}");
    let list: serde_json::Value =
        serde_json::from_str(&succeeds(folder.path(), &["cache", "list", "--json"])).unwrap();
    assert_eq!(list["entries"][0]["program"], "digits");
    assert_eq!(list["entries"].as_array().unwrap().len(), 1);

    let spared = succeeds(folder.path(), &["cache", "clear", "--older-than", "1h"]);
    assert!(spared.starts_with("0 files removed"), "{spared}");
    let removed = succeeds(folder.path(), &["cache", "clear", "--all"]);
    assert!(removed.starts_with("1 file removed"), "{removed}");
    assert!(succeeds(folder.path(), &["cache", "list"]).starts_with("0 programs in"));
}

#[test]
fn explain_names_the_part_that_differs() {
    let folder = TempDir::new().unwrap();
    let (model, inputs) = (digits("digits.pt2"), digits("digits.safetensors"));
    let explain = |args: &[&str]| succeeds(folder.path(), &[&["cache", "explain"][..], args].concat());
    assert!(explain(&[&model]).starts_with("digits: miss: the cache has no entries\n"));
    succeeds(folder.path(), &["run", &model, "--inputs", &inputs]);
    assert!(explain(&[&model]).starts_with("digits: hit\n"));
    let options = explain(&[&model, "--threads", "1"]);
    assert!(options.starts_with("digits: miss: options\n"), "{options}");
    assert!(options.contains("threads=\"1\""), "{options}");
    let graph = explain(&[&digits("digits_train.pt2")]);
    assert!(graph.starts_with("digits_train: miss: graph\n"), "{graph}");
    assert!(graph.contains("nearest entry: digits for cpu"), "{graph}");
    let training = digits("digits_train.pt2");
    let step = |more: &[&str]| explain(&[&[&*training, "--train"][..], more].concat());
    assert!(step(&[]).starts_with("digits_train: miss: "));
    succeeds(folder.path(), &["bench", &training, "--seconds", "0"]);
    assert!(step(&[]).starts_with("digits_train: hit\n"), "{}", step(&[]));
    let adam = step(&["--optimizer", "adam", "--clip-norm", "1"]);
    assert!(adam.starts_with("digits_train: miss: training\n") && adam.contains("Adam {"), "{adam}");
    let inference = explain(&[&training]);
    assert!(inference.starts_with("digits_train: miss: training\n"), "{inference}");
    let (code, _, err) = ferroflux(folder.path(), &["cache", "explain", &model, "--optimizer", "adam"]);
    assert_eq!(code, Some(2), "{err}");
    assert!(err.contains("`--train`"), "{err}");
    let eager = explain(&[&model, "--backend", "eager"]);
    assert!(eager.contains("nothing is cached"), "{eager}");
}

#[test]
fn a_command_line_that_makes_no_sense_is_refused() {
    let folder = TempDir::new().unwrap();
    for args in [&["cache", "clear"][..], &["cache", "clear", "--older-than", "soon"], &["cache"]] {
        assert_eq!(ferroflux(folder.path(), args).0, Some(2), "{args:?}");
    }
    let (code, _, err) = ferroflux(folder.path(), &["--cache", "off", "cache", "list"]);
    assert_eq!(code, Some(1));
    assert!(err.contains("there is no cache: it is turned off"), "{err}");
}
