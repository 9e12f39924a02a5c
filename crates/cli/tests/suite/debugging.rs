//! `verify` and `minify`: what they find, what they write, and that what they write runs.

use std::process::Command;

use serde_json::Value;

fn digits(file: &str) -> String {
    testing::cases::digits(file).display().to_string()
}

/// Exit code, standard output, standard error.
fn ferroflux(args: &[&str]) -> (Option<i32>, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ferroflux"));
    let output = command.args(args).env_remove("FERROFLUX_LOG").output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

#[test]
fn every_value_of_the_digits_model_is_right() {
    let (model, inputs) = (digits("digits.pt2"), digits("digits.safetensors"));
    for backend in if cfg!(feature = "cpu") { &["cpu", "oracle"][..] } else { &["oracle"] } {
        let (code, out, err) = ferroflux(&["verify", &model, "--inputs", &inputs, "--backend", backend]);
        assert_eq!(code, Some(0), "{err}");
        assert!(out.contains(" 0 over their operators' tolerance"), "{out}");
        let (code, out, err) =
            ferroflux(&["verify", &model, "--inputs", &inputs, "--backend", backend, "--json"]);
        assert_eq!(code, Some(0), "{err}");
        let found: Value = serde_json::from_str(&out).unwrap();
        assert!(found["first"].is_null());
        let values = found["values"].as_array().unwrap();
        assert!(values.iter().any(|v| v["target"] == "aten.relu.default"), "{out}");
        assert!(values.iter().all(|v| v["fits"] == true && v["error"].as_f64().is_some()), "{out}");
    }
}

#[test]
fn training_steps_are_looked_into_too() {
    let model = digits("digits_train.pt2");
    let backend = if cfg!(feature = "cpu") { "cpu" } else { "eager" };
    let args = ["verify", &model, "--train", "--momentum", "0.9", "--backend", backend, "--json"];
    let (code, out, err) = ferroflux(&args);
    assert_eq!(code, Some(0), "{err}");
    let found: Value = serde_json::from_str(&out).unwrap();
    let values = found["values"].as_array().unwrap();
    let (code, forward, err) = ferroflux(&["verify", &model, "--backend", backend, "--json"]);
    assert_eq!(code, Some(0), "{err}");
    let forward: Value = serde_json::from_str(&forward).unwrap();
    assert!(found["first"].is_null() && values.len() > 2 * forward["values"].as_array().unwrap().len());
    assert!(values.iter().any(|v| v["node"].as_str().is_some_and(|n| n.contains("_grad"))), "{out}");

    let folder = tempfile::tempdir().unwrap();
    let small = folder.path().join("small.fx").display().to_string();
    let slow = ["--fails", "slow", "--limit", "1e-9", "--backend", "eager", "--out", &small];
    let (code, out, err) = ferroflux(&[&["minify", &model, "--train"][..], &slow].concat());
    assert_eq!(code, Some(0), "{err}");
    assert!(out.contains("1 call of "), "{out}");
    assert_eq!(ferroflux(&["run", &small, "--backend", "oracle"]).0, Some(0));
}

#[test]
fn a_slow_model_becomes_one_call_that_runs() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("small.fx");
    let small = path.display().to_string();
    // Everything is slower than a nanosecond.
    let (code, out, err) = ferroflux(&[
        "minify",
        &digits("digits.pt2"),
        "--backend",
        "eager",
        "--fails",
        "slow",
        "--limit",
        "1e-9",
        "--out",
        &small,
    ]);
    assert_eq!(code, Some(0), "{err}");
    assert!(out.starts_with("slow: ") && out.contains("1 call of "), "{out}");
    let (code, out, err) = ferroflux(&["run", &small, "--backend", "oracle"]);
    assert_eq!(code, Some(0), "{err}");
    assert!(out.starts_with("out0 ("), "{out}");
}

#[test]
fn what_does_not_fail_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let small = folder.path().join("small.fx").display().to_string();
    let (code, _, err) =
        ferroflux(&["minify", &digits("digits.pt2"), "--backend", "oracle", "--out", &small]);
    assert_eq!(code, Some(1));
    assert!(err.contains("the model gives what the interpreter gives"), "{err}");
    let (code, _, err) = ferroflux(&["minify", &digits("digits.pt2"), "--out", "small.txt"]);
    assert_eq!(code, Some(2), "{err}");
}

#[test]
fn every_command_writes_pages_where_it_is_told_to() {
    let folder = tempfile::tempdir().unwrap();
    let (pages, model, inputs) =
        (folder.path().join("pages"), digits("digits.pt2"), digits("digits.safetensors"));
    let common = ["run", &model, "--inputs", &inputs, "--backend", "oracle", "--cache", "off"];
    let by_option: Vec<&str> = common.iter().copied().chain(["--trace", pages.to_str().unwrap()]).collect();
    let (code, _, err) = ferroflux(&by_option);
    assert_eq!(code, Some(0), "{err}");
    let html = std::fs::read_to_string(pages.join("digits.html")).unwrap();
    assert!(html.starts_with("<!DOCTYPE html>") && html.contains("aten.conv2d.default"));
    let trace: Value =
        serde_json::from_str(&std::fs::read_to_string(pages.join("trace.json")).unwrap()).unwrap();
    assert!(trace["traceEvents"].as_array().unwrap().iter().any(|e| e["name"] == "call of digits"));
    std::fs::remove_dir_all(&pages).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_ferroflux"));
    let status = command.args(common).env("FERROFLUX_TRACE", &pages).output().unwrap().status;
    assert!(status.success() && pages.join("digits.html").exists());
}
