//! The command as its users meet it: exit codes, what is on the standard output, what on the standard error.

// A helper of tests may fail as a test does.
#![allow(clippy::unwrap_used)]

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use ferroflux::tensor::safetensors::SafetensorsFile;
use ferroflux::{DType, Tensor};

/// Backends to run everything with: the CPU's where it is linked in.
const BACKENDS: &[&str] = if cfg!(feature = "cpu") { &["eager", "cpu"] } else { &["eager"] };

fn digits(file: &str) -> String {
    testing::cases::digits(file).display().to_string()
}

struct Ran {
    code: Option<i32>,
    out: String,
    err: String,
}

fn text(output: Output) -> Ran {
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Ran { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
}

fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ferroflux"));
    command.args(args).env_remove("FERROFLUX_LOG");
    command
}

fn ferroflux(args: &[&str]) -> Ran {
    text(command(args).output().unwrap())
}

/// Fails with exit code `code`, says `message` on the standard error in our form, and does not panic.
fn fails(args: &[&str], code: i32, message: &str) -> Ran {
    let ran = ferroflux(args);
    assert_eq!(ran.code, Some(code), "{args:?}\n{}", ran.err);
    assert!(ran.err.contains("error: "), "{args:?}\n{}", ran.err);
    assert!(ran.err.contains(message), "{args:?}: no `{message}` in\n{}", ran.err);
    assert!(!ran.err.contains("internal error"), "{args:?}\n{}", ran.err);
    ran
}

fn run_digits<'a>(inputs: &'a str, backend: &'a str, more: &[&'a str]) -> Vec<String> {
    let model = digits("digits.pt2");
    let mut args = vec!["run".to_owned(), model];
    args.extend(["--inputs", inputs, "--backend", backend].map(str::to_owned));
    args.extend(more.iter().map(|s| (*s).to_owned()));
    args
}

fn refs(args: &[String]) -> Vec<&str> {
    args.iter().map(String::as_str).collect()
}

fn write(folder: &Path, name: &str, tensors: &[(&str, Tensor)]) -> String {
    let tensors = tensors.iter().map(|(n, t)| ((*n).to_owned(), t.clone())).collect();
    let path = folder.join(name);
    SafetensorsFile { tensors, ..SafetensorsFile::default() }.write(&path).unwrap();
    path.display().to_string()
}

#[test]
fn digits_are_recognised() {
    let inputs = digits("digits.safetensors");
    for backend in BACKENDS {
        let more = ["--accuracy", "label", "--expect", &inputs, "--expect-names", "logits", "--atol", "1e-3"];
        let ran = ferroflux(&refs(&run_digits(&inputs, backend, &more)));
        assert_eq!(ran.code, Some(0), "{}", ran.err);
        assert!(ran.out.contains("accuracy 0.9944 (358 of 360)\n"), "{}", ran.out);
        assert!(ran.out.contains("f32[360, 10] = ["), "{}", ran.out);
        assert!(ran.out.contains("out0 is as expected (`logits`)"), "{}", ran.out);
        assert_eq!(ran.err, "");
    }
}

#[test]
fn json_is_one_object() {
    let inputs = digits("digits.safetensors");
    let ran = ferroflux(&refs(&run_digits(&inputs, "eager", &["--json", "--accuracy", "label"])));
    let object: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(object["backend"], "eager");
    assert_eq!(object["outputs"][0]["sizes"], serde_json::json!([360, 10]));
    assert_eq!(object["accuracy"]["correct"], 358);
    assert!(object["compile_ms"].is_number());
}

#[test]
fn outputs_are_written_and_compare_equal() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out.safetensors").display().to_string();
    let inputs = digits("digits.safetensors");
    let ran = ferroflux(&refs(&run_digits(&inputs, "eager", &["--outputs", &path])));
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    let file = SafetensorsFile::open(&path).unwrap();
    assert_eq!(file.tensors["out0"].sizes(), [360, 10]);
    assert_eq!(folder.path().read_dir().unwrap().count(), 1, "a temporary file was left behind");
    let again = ferroflux(&refs(&run_digits(&inputs, "eager", &["--expect", &path])));
    assert!(again.out.contains("largest difference 0"), "{}", again.out);
}

#[test]
fn a_difference_is_a_failure_that_names_the_worst_element() {
    let folder = tempfile::tempdir().unwrap();
    let inputs = digits("digits.safetensors");
    let logits = &SafetensorsFile::open(&inputs).unwrap().tensors["logits"];
    let mut values = logits.to_vec::<f32>().unwrap();
    values[123] += 1.0;
    let wrong =
        write(folder.path(), "wrong.safetensors", &[("out0", Tensor::from_vec(values, &[360, 10]).unwrap())]);
    for backend in BACKENDS {
        let args = run_digits(&inputs, backend, &["--expect", &wrong]);
        let ran = fails(&refs(&args), 1, "1 of 3600 elements differ; the worst at [12, 3]");
        assert!(ran.out.contains("out0"), "results are shown all the same");
    }
}

#[test]
fn inputs_that_do_not_fit() {
    let folder = tempfile::tempdir().unwrap();
    let tensor = |dtype, sizes: &[usize]| Tensor::zeros(dtype, sizes).unwrap();
    let cases = [
        ("rank", "image", tensor(DType::F32, &[1, 8, 8]), "wants f32[s0, 1, 8, 8]"),
        ("size", "image", tensor(DType::F32, &[2, 1, 9, 8]), "wants f32[s0, 1, 8, 8]"),
        ("dtype", "in0", tensor(DType::F64, &[2, 1, 8, 8]), "is f64[2, 1, 8, 8]"),
        (
            "many",
            "image",
            tensor(DType::F32, &[4097, 1, 8, 8]),
            "dimension 0 is 4097; it must be from 0 to 4096",
        ),
        ("name", "imagr", tensor(DType::F32, &[2, 1, 8, 8]), "did you mean `imagr`?"),
    ];
    for (name, tensor_name, tensor, message) in cases {
        let inputs = write(folder.path(), name, &[(tensor_name, tensor)]);
        for backend in BACKENDS {
            fails(&refs(&run_digits(&inputs, backend, &[])), 1, message);
        }
    }
    let none = folder.path().join("none.safetensors").display().to_string();
    fails(&refs(&run_digits(&none, "eager", &[])), 1, "No such file");
    std::fs::write(&none, b"not a safetensors file").unwrap();
    fails(&refs(&run_digits(&none, "eager", &[])), 1, "not a valid safetensors file");
}

#[test]
fn unknown_names_are_answered_with_the_known_ones() {
    let inputs = digits("digits.safetensors");
    fails(&refs(&run_digits(&inputs, "eagre", &[])), 1, "did you mean eager?");
    fails(&refs(&run_digits(&inputs, "tpu", &[])), 1, "hint: `ferroflux backends`");
    fails(&refs(&run_digits(&inputs, "eager", &["--mode", "max-autotune"])), 1, "no mode `max-autotune`");
    fails(&refs(&run_digits(&inputs, "eager", &["--mode", "fastest"])), 2, "there is no mode `fastest`");
    fails(&refs(&run_digits(&inputs, "eager", &["--accuracy", "labels"])), 2, "no labels `labels`");
    fails(&["run", &digits("digits.pt2")], 2, "image: f32[s0, 1, 8, 8]");
    fails(&["--log", "foo=bar=x", "backends"], 2, "stages (archive");
}

#[test]
fn outputs_that_cannot_be_written_are_noticed_first() {
    let folder = tempfile::tempdir().unwrap();
    let inputs = digits("digits.safetensors");
    let absent = folder.path().join("absent/out.safetensors").display().to_string();
    for (path, message) in
        [(absent.as_str(), "there is no folder"), (folder.path().to_str().unwrap(), "it is a folder")]
    {
        let ran = fails(&refs(&run_digits(&inputs, "eager", &["--outputs", path])), 1, message);
        assert_eq!(ran.out, "", "nothing may be computed");
        let model = digits("digits.pt2");
        fails(&["graph", &model, "--svg", path], 1, message);
    }
}

#[test]
fn archives_cut_anywhere_are_errors() {
    let folder = tempfile::tempdir().unwrap();
    let whole = std::fs::read(digits("digits.pt2")).unwrap();
    let path = folder.path().join("cut.pt2");
    for cut in [0, 3, 1000, whole.len() / 2, whole.len() - 1] {
        std::fs::write(&path, &whole[..cut]).unwrap();
        fails(&["explain", path.to_str().unwrap()], 1, "cannot read the model");
    }
    std::fs::write(&path, b"<!DOCTYPE html>").unwrap();
    fails(&["graph", path.to_str().unwrap()], 1, "web page");
    fails(&["graph", folder.path().to_str().unwrap()], 1, "a folder");
    fails(&["bench", "no/such/model.pt2"], 1, "No such file");
}

/// The digits archive with text of its model replaced.
fn edited(folder: &Path, from: &str, to: &str) -> PathBuf {
    let mut old = zip::ZipArchive::new(std::fs::File::open(digits("digits.pt2")).unwrap()).unwrap();
    let path = folder.join("edited.pt2");
    let mut new = zip::ZipWriter::new(std::fs::File::create(&path).unwrap());
    let stored = zip::write::SimpleFileOptions::default().compression_method(zip::CompressionMethod::Stored);
    for n in 0..old.len() {
        let mut entry = old.by_index(n).unwrap();
        let name = String::from_utf8_lossy(entry.name_raw()).into_owned();
        let mut bytes = Vec::new();
        entry.read_to_end(&mut bytes).unwrap();
        if name.ends_with("models/model.json") {
            let text = String::from_utf8(bytes).unwrap();
            assert!(text.contains(from), "the model has no `{from}`");
            bytes = text.replace(from, to).into_bytes();
        }
        new.start_file(name, stored).unwrap();
        new.write_all(&bytes).unwrap();
    }
    new.finish().unwrap();
    path
}

#[test]
fn unknown_operators_are_all_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = edited(folder.path(), "torch.ops.aten.relu.default", "torch.ops.mylib.wobble.default");
    let path = path.to_str().unwrap();
    let explained = fails(&["explain", path], 1, "2 calls of `edited` are not supported");
    for node in ["node `relu` (mylib.wobble.default", "node `relu_1` (mylib.wobble.default"] {
        assert!(explained.out.contains(node), "{}", explained.out);
    }
    let json = fails(&["explain", path, "--json"], 1, "not supported").out;
    let object: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(object["unsupported"].as_array().unwrap().len(), 2);
    let inputs = digits("digits.safetensors");
    for backend in BACKENDS {
        fails(&["run", path, "--inputs", &inputs, "--backend", backend], 1, "mylib.wobble");
    }
}

#[test]
fn an_unknown_operator_is_told_with_the_nearest_form() {
    let folder = tempfile::tempdir().unwrap();
    let path = edited(folder.path(), "torch.ops.aten.relu.default", "torch.ops.aten.relv.default");
    let explained = fails(&["explain", path.to_str().unwrap()], 1, "not supported");
    assert!(explained.out.contains("`aten.relu.default`"), "{}", explained.out);
}

#[test]
fn every_stage_is_printed_and_drawn() {
    let folder = tempfile::tempdir().unwrap();
    let model = digits("digits.pt2");
    for (stage, wanted) in [
        ("captured", "aten.batch_norm.default"),
        ("functional", "aten.batch_norm.default"),
        ("prim", "prims.conv"),
        ("optimized", "prims.conv"),
        ("loops", "rsqrt"),
        ("kernels", "conv \"conv2d_batch_norm_relu\""),
    ] {
        let printed = ferroflux(&["graph", &model, "--stage", stage]);
        assert!(printed.code == Some(0) && printed.out.contains(wanted), "{stage}: {}", printed.err);
        let svg = folder.path().join(format!("{stage}.svg"));
        let drawn = ferroflux(&["graph", &model, "--stage", stage, "--svg", svg.to_str().unwrap()]);
        assert!(drawn.code == Some(0) && drawn.out.contains("boxes"), "{stage}: {}", drawn.err);
        let svg = std::fs::read_to_string(svg).unwrap();
        assert!(svg.starts_with("<svg") || svg.starts_with("<?xml"), "{stage}");
        assert!(svg.trim_end().ends_with("</svg>"), "{stage}");
    }
    let printed = ferroflux(&["graph", &model, "--readable"]);
    assert!(printed.out.contains("image: f32[s0, 1, 8, 8]"), "{}", printed.out);
    fails(&["graph", &model, "--readable", "--stage", "kernels"], 2, "--readable");
}

#[test]
fn the_graph_after_a_pass_is_printed() {
    let model = archive("loss.pt2");
    let optimized = ferroflux(&["graph", &model, "--stage", "optimized"]);
    let last = ferroflux(&["graph", &model, "--after", "dead"]);
    assert!(last.code == Some(0) && last.out == optimized.out, "{}", last.err);
    let first = ferroflux(&["graph", &model, "--after", "fold"]);
    assert!(first.code == Some(0) && first.out != optimized.out, "{}", first.err);
    assert!(first.out.parse::<ferroflux::fx_ir::Graph>().is_ok(), "{}", first.out);
    fails(&["graph", &model, "--after", "cleanup"], 2, "fold, views, arithmetic");
    fails(&["graph", &model, "--after", "cse", "--stage", "prim"], 2, "cannot be used with");
}

#[test]
fn the_environment_asks_for_graphs_between_passes() {
    let model = digits("digits.pt2");
    let printed = |wanted: &str| {
        let mut command = command(&["graph", &model, "--stage", "kernels"]);
        let ran = command.env("FERROFLUX_PRINT", wanted).output().unwrap();
        (ran.status.code(), String::from_utf8(ran.stderr).unwrap())
    };
    let (code, all) = printed("after-all");
    assert_eq!(code, Some(0), "{all}");
    for place in ["stage functional", "stage prim", "pass cse of stage optimized", "stage kernels"] {
        assert!(all.contains(&format!("# ----- after {place}: ")), "{place} is missing");
    }
    let (_, one) = printed("after:cse");
    assert!(one.contains("pass cse of stage optimized") && one.matches("# -----").count() == 1, "{one}");
    let (code, unknown) = printed("after:cleanup");
    assert_eq!(code, Some(1), "{unknown}");
    assert!(unknown.contains("FERROFLUX_PRINT: there is no `cleanup`; there are captured"), "{unknown}");
}

#[test]
fn explain_tells_what_a_training_step_keeps() {
    let model = digits("digits_train.pt2");
    let step = ferroflux(&["explain", &model, "--train", "--memory"]).out;
    let peak = step.lines().skip_while(|l| !l.starts_with("most temporaries are alive at step "));
    let listed: Vec<&str> = peak.skip(1).collect();
    assert!(!listed.is_empty() && listed.iter().all(|l| l.contains(" steps ")), "{step}");
    assert!(step.contains("sgd"), "{step}");
    let bytes = |more: &[&str]| {
        let ran = ferroflux(&[&["explain", &model, "--json"], more].concat());
        serde_json::from_str::<serde_json::Value>(&ran.out).unwrap()["peak_bytes"].as_u64().unwrap()
    };
    assert!(bytes(&["--train"]) > 0 && bytes(&[]) > 0);
}

#[test]
fn explain_tells_kernels_and_memory() {
    let ran = ferroflux(&["explain", &digits("digits.pt2"), "--json"]);
    let object: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(object["operators"]["aten.conv2d.default"], 2);
    let kernels = object["kernels"].as_array().unwrap();
    let kinds = |kind: &str| kernels.iter().filter(|k| k["kind"] == kind).count();
    assert_eq!((kinds("conv"), kinds("matmul")), (2, 2));
    let bytes = |key: &str| object[key].as_u64().unwrap();
    assert_eq!(
        bytes("peak_bytes"),
        bytes("weight_bytes") + bytes("arena_bytes") + bytes("input_bytes") + bytes("output_bytes"),
        "{object}"
    );
    assert_eq!(bytes("input_bytes"), 4 * 4 * 64, "four images of 8×8");
    assert_eq!(bytes("output_bytes"), 4 * 10 * 4, "at the batch of capture, 4");
}

#[test]
fn bench_prints_a_line_a_model() {
    let model = digits("digits.pt2");
    for backend in BACKENDS {
        let args = ["bench", &model, "no.pt2", &model, "--seconds", "0.01", "--json", "--backend", backend];
        let ran = fails(&args, 1, "1 of 3 models could not be measured: no.pt2");
        let lines: Vec<serde_json::Value> =
            ran.out.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
        assert_eq!(lines.len(), 2);
        for line in lines {
            assert_eq!((&line["model"], &line["backend"]), (&"digits".into(), &(*backend).into()));
            assert!(line["runs"].as_u64().unwrap() >= 5);
            assert!(line["median_ms"].as_f64().unwrap() >= line["min_ms"].as_f64().unwrap());
            assert!(line["first_call_s"].as_f64().unwrap() >= line["compile_s"].as_f64().unwrap());
        }
    }
}

#[test]
fn backends_are_listed() {
    let ran = ferroflux(&["backends", "--json"]);
    let list: Vec<serde_json::Value> = serde_json::from_str(&ran.out).unwrap();
    let names: Vec<&str> = list.iter().map(|b| b["name"].as_str().unwrap()).collect();
    for name in BACKENDS.iter().chain(&["inspect", "oracle"]) {
        assert!(names.contains(name), "{names:?}");
    }
    assert!(ferroflux(&["backends"]).out.contains("eager: ready"));
}

#[test]
fn a_closed_pipe_is_no_failure() {
    let model = digits("digits.pt2");
    let mut child = command(&["graph", &model, "--stage", "kernels"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let ran = text(child.wait_with_output().unwrap());
    assert_eq!((ran.code, ran.err.as_str()), (Some(0), ""));
}

fn archive(file: &str) -> String {
    format!("{}/../../tests/data/pt2/{file}", env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn numbers_are_set_by_name() {
    let (model, file) = (archive("constants.pt2"), archive("constants.safetensors"));
    for backend in BACKENDS {
        let args = ["run", &model, "--inputs", &file, "--prefix", "s0.", "--backend", backend];
        let run = |more: &[&str]| ferroflux(&[&args[..], more].concat());
        // 5 is in the file.
        for more in [&["--expect", &*file][..], &["--set", "k=5", "--set", "mode=sine", "--expect", &*file]] {
            let ran = run(more);
            assert!(ran.out.contains("out0 is as expected"), "{}{}", ran.out, ran.err);
        }
        let ran = run(&["--set", "k=6", "--expect", &file]);
        assert!(ran.err.contains("elements differ"), "{}", ran.err);
        for (set, code, message) in [
            ("kk=5", 2, "the model has no input `kk`; did you mean `k`?"),
            ("kk=5", 2, "its inputs are `x`, `n`, `k`, `scale`, `flag`, `mode`, `mask`"),
            ("k=2.5", 2, "`k` cannot be `2.5`"),
            ("k=2.5", 2, "`k` is an integer: write such a value"),
            ("k", 2, "`--set k` has no value"),
            ("x=1", 2, "`x` is a tensor (f32[s0, 4]), no number"),
            (
                "mode=cosine",
                1,
                "expected input 5 (`mode`) to be equal to \"sine\", but got the text \"cosine\"",
            ),
            ("n=4", 1, "expected input 1 (`n`) to be equal to 3, but got the integer 4"),
            ("flag=false", 1, "expected input 4 (`flag`) to be equal to true, but got the bool false"),
            ("mask=none", 0, ""),
            ("scale=2.5", 0, ""),
        ] {
            let given = [&args[..], &["--set", set]].concat();
            match code {
                0 => assert_eq!(ferroflux(&given).code, Some(0), "{set}"),
                code => drop(fails(&given, code, message)),
            }
        }
        fails(&[&args[..], &["--set", "k=1", "--set", "k=2"]].concat(), 2, "`k` is set twice");
    }
    let (model, file) = (archive("number_sizes.pt2"), archive("number_sizes.safetensors"));
    let args = ["run", &model, "--inputs", &file, "--prefix", "s0.", "--backend", "eager"];
    fails(&[&args[..], &["--set", "k=9"]].concat(), 1, "is 9, the model wants an integer from 0 to 8");
    let folder = tempfile::tempdir().unwrap();
    let x = write(folder.path(), "x.safetensors", &[("x", Tensor::zeros(DType::F32, &[8, 4]).unwrap())]);
    let args = ["run", &model, "--inputs", &x, "--set", "j=2"];
    fails(&args, 2, "input `k` is an integer from 0 to 8, and nothing gives it");
}

#[test]
fn numbers_are_shown_measured_and_trained_with() {
    let explained = ferroflux(&["explain", &archive("constants.pt2")]).out;
    for line in ["7 inputs:", "  k: an integer", "  mode = \"sine\", as the model was exported"] {
        assert!(explained.lines().any(|l| l == line), "{explained}");
    }
    let json = ferroflux(&["explain", &archive("constants.pt2"), "--json"]).out;
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["inputs"][2], serde_json::json!({"name": "k", "kind": "an integer", "constant": false}));
    let graph = ferroflux(&["graph", &archive("constants.pt2")]).out;
    assert!(graph.contains("%k: int(s1) = input \"k\""), "{graph}");
    assert!(graph.ends_with("# input mask = none, as the model was exported\n"), "{graph}");
    assert!(graph.parse::<ferroflux::fx_ir::Graph>().is_ok(), "{graph}");

    let model = archive("number_sizes.pt2");
    let ran = ferroflux(&["bench", &model, "--seconds", "0", "--set", "k=4", "--backend", "eager"]);
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    fails(&["bench", &model, "--set", "k=9", "--backend", "eager"], 1, "is 9, the model wants");

    let (model, data) = (archive("number_loss.pt2"), archive("number_loss.safetensors"));
    let train = |set: &[&str]| {
        let args = ["train", &model, "--data", &data, "--prefix", "s0.", "--lr", "0", "--steps", "1"];
        let ran = ferroflux(&[&args[..], &["--backend", "eager", "--json"], set].concat());
        assert_eq!(ran.code, Some(0), "{}", ran.err);
        let object: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
        object["loss"].as_f64().unwrap()
    };
    let golden = SafetensorsFile::open(&data).unwrap().tensors["s0.out0"].iter_f64().next().unwrap();
    let (two, four) = (train(&[]), train(&["--set", "s=4"]));
    assert!((two - golden).abs() < 1e-5 && (four - 2.0 * golden).abs() < 1e-5, "{two} {four} {golden}");
}
