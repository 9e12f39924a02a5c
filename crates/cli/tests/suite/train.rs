//! `ferroflux train` as its users meet it: losses of PyTorch, accuracy, checkpoints, what bad input gets.

// A helper of tests may fail as a test does.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::{Command, Output};

use ferroflux::tensor::safetensors::SafetensorsFile;
use serde_json::Value;

/// Backends to train with: the CPU's where it is linked in.
const BACKENDS: &[&str] = if cfg!(feature = "cpu") { &["eager", "cpu"] } else { &["eager"] };

fn digits(file: &str) -> String {
    testing::cases::digits(file).display().to_string()
}

fn train(more: &[&str]) -> Output {
    let (model, data) = (digits("digits_train.pt2"), digits("digits.safetensors"));
    let mut command = Command::new(env!("CARGO_BIN_EXE_ferroflux"));
    command.args(["train", &model, "--data", &data, "--prefix", "train_"]).args(more);
    command.env_remove("FERROFLUX_LOG").output().unwrap()
}

fn json(more: &[&str]) -> Value {
    let all: Vec<&str> = more.iter().copied().chain(["--json"]).collect();
    let output = train(&all);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn losses(found: &Value) -> Vec<f64> {
    found["losses"].as_array().unwrap().iter().map(|l| l.as_f64().unwrap()).collect()
}

fn fails(more: &[&str], message: &str) {
    let output = train(more);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && error.contains(message), "{more:?}: no `{message}` in\n{error}");
    assert!(!error.contains("internal error"), "{error}");
}

/// What the metadata of the data file calls the recipe.
const RECIPE: &[&str] = &["--optimizer", "sgd", "--lr", "0.05", "--momentum", "0.9"];

fn recipe<'a>(more: &[&'a str]) -> Vec<&'a str> {
    RECIPE.iter().copied().chain(more.iter().copied()).collect()
}

#[test]
fn the_first_losses_are_pytorchs() {
    let data = SafetensorsFile::open(digits("digits.safetensors")).unwrap();
    let wanted: Vec<f64> = serde_json::from_str(&data.metadata["train_losses_first20"]).unwrap();
    for backend in BACKENDS {
        let found = losses(&json(&recipe(&["--steps", "20", "--backend", backend])));
        assert_eq!(found.len(), wanted.len());
        for (n, (a, b)) in found.iter().zip(&wanted).enumerate() {
            assert!((a - b).abs() <= 1e-5 * b, "{backend}: loss {n} is {a}, PyTorch has {b}");
        }
    }
}

#[test]
#[cfg(feature = "cpu")]
fn digits_are_learnt() {
    let model = digits("digits.pt2");
    let found = json(&recipe(&["--epochs", "12", "--eval", &model, "--accuracy", "label"]));
    let accuracy = found["accuracy"]["accuracy"].as_f64().unwrap();
    assert!(accuracy >= 0.99, "{}", found["accuracy"]);
}

#[test]
fn resumed_training_gives_the_same_losses() {
    let backend = BACKENDS[BACKENDS.len() - 1];
    for optimizer in
        [&["--optimizer", "sgd", "--momentum", "0.9"][..], &["--optimizer", "adamw", "--amsgrad"]]
    {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("checkpoints");
        let path = path.to_str().unwrap();
        let shared = ["--lr", "0.01", "--shuffle", "--seed", "7", "--clip-norm", "1", "--backend", backend];
        let with = |more: &[&'static str]| -> Vec<String> {
            optimizer.iter().chain(&shared).chain(more).map(|s| (*s).to_owned()).collect()
        };
        let run = |args: Vec<String>, folder: &[&str]| {
            let args: Vec<&str> = args.iter().map(String::as_str).chain(folder.iter().copied()).collect();
            losses(&json(&args))
        };
        let whole = run(with(&["--steps", "30"]), &[]);
        let first =
            run(with(&["--steps", "13", "--keep", "2", "--checkpoint-every", "5"]), &["--checkpoint", path]);
        assert_eq!(first, whole[..13]);
        assert_eq!(checkpoints(path), ["step-0000000010.safetensors", "step-0000000013.safetensors"]);
        let resumed = run(with(&["--steps", "30"]), &["--checkpoint", path, "--resume"]);
        // Bitwise: JSON keeps every digit of a double.
        assert_eq!(resumed, whole);
        let svg = std::fs::read_to_string(Path::new(path).join("loss.svg")).unwrap();
        assert!(svg.starts_with("<svg") && svg.contains("polyline"), "{svg}");
    }
}

#[test]
fn a_damaged_checkpoint_is_named_and_the_older_one_taken() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    let shared = ["--lr", "0.01", "--backend", "eager", "--checkpoint", path];
    let with =
        |more: &[&'static str]| -> Vec<&str> { shared.iter().copied().chain(more.iter().copied()).collect() };
    let whole = losses(&json(&with(&["--steps", "6", "--checkpoint-every", "2"])));
    let newest = folder.path().join("step-0000000006.safetensors");
    let bytes = std::fs::read(&newest).unwrap();
    for damaged in [&bytes[..bytes.len() / 2], &[], &vec![0; bytes.len()]] {
        std::fs::write(&newest, damaged).unwrap();
        let output = train(&with(&["--steps", "6", "--resume", "--json"]));
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{error}");
        assert!(error.contains("warning") && error.contains("step-0000000006.safetensors"), "{error}");
        let found: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(losses(&found), whole);
        assert_eq!(std::fs::read(&newest).unwrap().len(), bytes.len(), "it is written anew");
    }
    for name in checkpoints(path) {
        std::fs::write(folder.path().join(name), "nothing").unwrap();
    }
    fails(&with(&["--steps", "6", "--resume"]), "cannot read the checkpoint");
}

fn checkpoints(folder: &str) -> Vec<String> {
    let names = std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.filter(|n| n.ends_with(".safetensors")).collect();
    names.sort();
    names
}

#[test]
fn mixed_precision_learns() {
    for dtype in ["bf16", "f16"] {
        let found = losses(&json(&recipe(&["--steps", "25", "--autocast", dtype])));
        assert!(found[24] < 0.75 * found[0], "{dtype}: {found:?}");
    }
}

#[test]
fn bad_input_is_told() {
    fails(&["--lr", "nan"], "a learning rate of NaN makes no sense");
    fails(&["--lr", "0.1", "--batch-size", "32"], "exported with batches of 64 samples, not 32");
    fails(&["--lr", "0.1", "--prefix", "test_"], "cannot be used multiple times");
    fails(&["--lr", "0.1", "--loss", "3"], "there is no number 3 to be the loss");
    fails(&["--lr", "0.1", "--nesterov"], "nesterov needs a momentum above 0");
    fails(&["--lr", "0.1", "--schedule", "cosin"], "there is no schedule `cosin`");
    fails(&["--lr", "0.1", "--schedule", "step:size=x"], "`size=x` is no such number");
    fails(&["--lr", "0.1", "--optimizer", "adam", "--betas", "1.5,0.9"], "beta1 is 1.5");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    fails(&["--lr", "0.1", "--checkpoint", path, "--resume"], "there is no checkpoint in");
    let first = train(&["--lr", "0.1", "--steps", "1", "--checkpoint", path]);
    assert!(first.status.success(), "{}", String::from_utf8_lossy(&first.stderr));
    fails(&["--lr", "0.2", "--steps", "2", "--checkpoint", path, "--resume"], "made with another lr");
    let groups =
        ["--lr", "0.1", "--steps", "2", "--batch-norm", "groups=2", "--checkpoint", path, "--resume"];
    fails(&groups, "made with another batch norm: whole; now it is groups=2");
}
