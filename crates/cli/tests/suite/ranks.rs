//! The command as processes that a launcher starts: what ranks compute together, checkpoints in parts, ranks that die.

use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// A limit for what should take a second, so that a hang is a failure.
const PATIENCE: Duration = Duration::from_secs(60);

/// The processes of a command, started as `torchrun` does.
fn launch(ranks: usize, args: &[String]) -> Vec<Child> {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let start = |rank: usize| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ferroflux"));
        command.args(args).env("RANK", rank.to_string()).env("LOCAL_RANK", rank.to_string());
        command.env("WORLD_SIZE", ranks.to_string()).env("MASTER_ADDR", "127.0.0.1");
        command.env("MASTER_PORT", port.to_string()).env_remove("FERROFLUX_LOG");
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    (0..ranks).map(start).collect()
}

/// Waits for the end of a process.
fn ended(child: &mut Child, what: &str) -> bool {
    let begin = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status.success();
        }
        if begin.elapsed() > PATIENCE {
            child.kill().unwrap();
            panic!("{what} has not ended");
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn output(child: Child) -> (bool, String, String) {
    let out = child.wait_with_output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (out.status.success(), text(&out.stdout), text(&out.stderr))
}

fn training(folder: &str, mesh: &str, steps: usize) -> Vec<String> {
    let (model, data) =
        (testing::cases::digits("digits_train.pt2"), testing::cases::digits("digits.safetensors"));
    let (model, data) = (model.display().to_string(), data.display().to_string());
    let mut args =
        vec!["train", &model, "--data", &data, "--prefix", "train_", "--optimizer", "sgd", "--lr", "0.02"];
    let steps = steps.to_string();
    args.extend(["--steps", &steps, "--json"]);
    if !folder.is_empty() {
        args.extend(["--checkpoint", folder, "--checkpoint-every", "7", "--resume=if-any", "--keep", "2"]);
    }
    if !mesh.is_empty() {
        args.extend(["--mesh", mesh, "--rank-timeout", "30"]);
    }
    args.into_iter().map(str::to_owned).collect()
}

fn losses(text: &str) -> Vec<f64> {
    let found: Value = serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"));
    found["losses"].as_array().unwrap().iter().map(|l| l.as_f64().unwrap()).collect()
}

fn alone(args: &[String]) -> (bool, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ferroflux"));
    output(command.args(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
}

fn assert_losses(found: &[f64], wanted: &[f64]) {
    assert_eq!(found.len(), wanted.len());
    for (n, (a, b)) in found.iter().zip(wanted).enumerate() {
        assert!((a - b).abs() <= 1e-4 * b.abs().max(0.1), "loss {n} is {a}, on one device {b}");
    }
}

/// Numbers that look drawn: the moments and ranks differ from kill to kill, and are the same in every run of the test.
fn drawn(seed: u64) -> u64 {
    (seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407)) >> 33
}

#[test]
fn training_goes_on_after_ten_deaths_with_more_or_fewer_ranks() {
    // Few enough that a rounding error does not yet choose another element of a pool.
    const STEPS: usize = 150;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("checkpoints").display().to_string();
    let wanted = losses(&alone(&training("", "", STEPS)).1);
    let meshes = [("dp=3", 3), ("fsdp=2", 2), ("dp=2", 2)];
    let (mut deaths, mut attempt) = (0, 0);
    while deaths < 10 {
        attempt += 1;
        assert!(attempt < 40, "{deaths} deaths in {attempt} attempts: training ends before a rank can die");
        let (mesh, count) = meshes[attempt % meshes.len()];
        let mut ranks = launch(count, &training(&path, mesh, STEPS));
        let victim = drawn(attempt as u64) as usize % count;
        std::thread::sleep(Duration::from_millis(30 + drawn(77 + attempt as u64) % 200));
        // One that has ended already did not die.
        let died = ranks[victim].try_wait().unwrap().is_none();
        ranks[victim].kill().unwrap();
        for (rank, child) in ranks.iter_mut().enumerate() {
            let fine = ended(child, &format!("rank {rank} of {mesh}"));
            assert!(!(fine && died && rank == victim));
        }
        let all: Vec<_> = ranks.into_iter().map(output).collect();
        if all.iter().enumerate().all(|(rank, (fine, ..))| *fine || rank == victim) {
            // It had done its work, and the others theirs: begin again.
            std::fs::remove_dir_all(&path).unwrap();
            continue;
        }
        deaths += usize::from(died);
        for (rank, (fine, _, error)) in all.iter().enumerate().filter(|(rank, _)| *rank != victim) {
            // One that dies before all have met is missed at the end of the time limit.
            let told = ["has left", "the ranks meet", "is not at", "did not come", "did not connect"]
                .iter()
                .any(|what| error.contains(what));
            assert!(*fine || told, "rank {rank} of {mesh} after the death of {victim}:\n{error}");
            assert!(!error.contains("internal error"), "{error}");
        }
    }
    let (fine, text, error) = alone(&training(&path, "", STEPS));
    assert!(fine, "{error}");
    assert_losses(&losses(&text), &wanted);
}

#[test]
fn checkpoints_in_parts_are_read_on_other_meshes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("checkpoints").display().to_string();
    let wanted = losses(&alone(&training("", "", 21)).1);
    let all: Vec<_> = launch(3, &training(&path, "fsdp=3", 9)).into_iter().map(output).collect();
    assert!(all.iter().all(|(fine, ..)| *fine), "{all:?}");
    let mut names: Vec<String> = std::fs::read_dir(&path)
        .unwrap()
        .map(|f| f.unwrap().file_name().to_string_lossy().into_owned())
        .filter(|n| n.contains("00009"))
        .collect();
    names.sort();
    let wanted_names = ["rank-1.safetensors", "rank-2.safetensors", "safetensors"];
    assert_eq!(names, wanted_names.map(|n| format!("step-0000000009.{n}")));
    // No rank writes more than its share of what is divided, but for the losses and what is too small to divide.
    let size = |name: &String| std::fs::metadata(std::path::Path::new(&path).join(name)).unwrap().len();
    let sizes: Vec<u64> = names.iter().map(size).collect();
    assert!(sizes[0].abs_diff(sizes[1]) * 5 < sizes[0], "{sizes:?}");
    let all: Vec<_> = launch(2, &training(&path, "dp=2", 14)).into_iter().map(output).collect();
    assert!(all.iter().all(|(fine, ..)| *fine), "{all:?}");
    // The parts of the removed checkpoint are gone with it.
    let (fine, text, error) = alone(&training(&path, "", 21));
    assert!(fine, "{error}");
    assert_losses(&losses(&text), &wanted);
    let left =
        std::fs::read_dir(&path).unwrap().map(|f| f.unwrap().file_name().to_string_lossy().into_owned());
    let left: Vec<String> = left.filter(|n| n.contains("00009")).collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn a_missing_part_is_named_and_the_older_checkpoint_taken() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("checkpoints");
    let text = path.display().to_string();
    let all: Vec<_> = launch(2, &training(&text, "fsdp=2", 10)).into_iter().map(output).collect();
    assert!(all.iter().all(|(fine, ..)| *fine), "{all:?}");
    std::fs::remove_file(path.join("step-0000000010.rank-1.safetensors")).unwrap();
    let (fine, found, error) = alone(&training(&text, "", 10));
    assert!(
        fine && error.contains("step-0000000010.rank-1.safetensors") && error.contains("an older one"),
        "{error}"
    );
    assert_losses(&losses(&found), &losses(&alone(&training("", "", 10)).1));
}

#[test]
fn results_of_processes_are_those_of_one() {
    let model = testing::cases::digits("digits.pt2").display().to_string();
    let data = testing::cases::digits("digits.safetensors").display().to_string();
    let folder = tempfile::tempdir().unwrap();
    let out = |name: &str| folder.path().join(name).display().to_string();
    let args = |more: &[&str]| -> Vec<String> {
        let all = ["run", &model, "--inputs", &data].into_iter().chain(more.iter().copied());
        all.map(str::to_owned).collect()
    };
    let (fine, _, error) = alone(&args(&["--outputs", &out("one.safetensors")]));
    assert!(fine, "{error}");
    let all = launch(4, &args(&["--mesh", "dp=2,tp=2", "--outputs", &out("four.safetensors")]));
    for (fine, _, error) in all.into_iter().map(output) {
        assert!(fine, "{error}");
    }
    let read = |name: &str| ferroflux::tensor::safetensors::SafetensorsFile::open(out(name)).unwrap().tensors;
    let (one, four) = (read("one.safetensors"), read("four.safetensors"));
    assert_eq!(one.keys().collect::<Vec<_>>(), four.keys().collect::<Vec<_>>());
    for (name, a) in &one {
        let largest = a.iter_f64().fold(0.0, |m: f64, v| m.max(v.abs()));
        let far = a.iter_f64().zip(four[name].iter_f64()).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        assert!(far <= 1e-5 * largest, "{name}: {far} of {largest}");
    }
}

/// The file of a trace.
fn trace(path: &std::path::Path) -> Value {
    let text = std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"))
}

/// The events in it.
fn events_of(trace: &Value) -> &[Value] {
    trace["traceEvents"].as_array().expect("a trace has a list of events")
}

/// The number of the process that a rank is in a trace.
fn pid(events: &[Value], name: &str) -> Option<u64> {
    let named = |e: &&Value| e["name"] == "process_name" && e["args"]["name"] == name;
    events.iter().find(named).and_then(|e| e["pid"].as_u64())
}

/// An exchange or a wait, with its beginning and end in microseconds.
struct Exchange {
    step: String,
    waits: bool,
    begin: f64,
    end: f64,
}

/// Those of a rank in their order.
fn exchanges(events: &[Value], pid: u64) -> Vec<Exchange> {
    let own = events.iter().filter(|e| e["cat"] == "collective" && e["pid"] == pid);
    let one = |e: &Value| {
        let (begin, took) = (e["ts"].as_f64().unwrap(), e["dur"].as_f64().unwrap());
        assert!(e["args"]["bytes"].as_u64().unwrap() > 0 && e["args"]["axis"] == "dp", "{e}");
        let step = e["args"]["step"].as_str().unwrap().to_owned();
        Exchange { step, waits: e["name"] == "wait over dp", begin, end: begin + took }
    };
    own.map(one).collect()
}

#[test]
fn the_trace_of_all_processes_is_one_file_on_one_time_axis() {
    const STEPS: usize = 4;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace");
    let mut args = training("", "dp=2", STEPS);
    args.extend(["--trace".to_owned(), path.display().to_string()]);
    for (fine, _, error) in launch(2, &args).into_iter().map(output) {
        assert!(fine, "{error}");
    }
    let mut names: Vec<String> = std::fs::read_dir(&path)
        .unwrap()
        .map(|f| f.unwrap().file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    assert_eq!(names, ["digits_train.html", "trace.json"]);
    let all = trace(&path.join("trace.json"));
    let events = events_of(&all);
    let of = |rank: usize| {
        let pid =
            pid(events, &format!("rank {rank} (dp={rank})")).unwrap_or_else(|| panic!("no rank {rank}"));
        assert!(events.iter().any(|e| e["cat"] == "kernel" && e["pid"] == pid));
        exchanges(events, pid)
    };
    let (first, second) = (of(0), of(1));
    assert!(first.len() >= 2 * STEPS && first.len() % STEPS == 0, "{}", first.len());
    assert_eq!(first.len(), second.len());
    let accuracy = all["otherData"].as_object().unwrap().values().next().unwrap().as_f64().unwrap();
    assert!(accuracy > 0.0 && accuracy < 1e5, "{accuracy}");
    // What a step has exchanged is waited for within the step, and that ends on no rank before all of them have begun.
    let (a, b) = (first.chunks(first.len() / STEPS), second.chunks(first.len() / STEPS));
    for (n, (a, b)) in a.zip(b).enumerate() {
        let steps = |one: &[Exchange]| one.iter().map(|e| e.step.clone()).collect::<Vec<_>>();
        assert_eq!(steps(a), steps(b));
        let begun = |one: &[Exchange]| one.iter().filter(|e| !e.waits).map(|e| e.begin).fold(0.0, f64::max);
        let ended = |one: &[Exchange]| one.iter().map(|e| e.end).fold(0.0, f64::max);
        let (early, late) = (ended(a).min(ended(b)), begun(a).max(begun(b)));
        assert!(early + accuracy >= late, "step {n}: an end at {early}, a beginning at {late} ± {accuracy}");
    }
}

#[test]
fn a_rank_that_is_left_writes_its_own_trace() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace");
    let mut args = training("", "dp=2", 1_000_000);
    args.extend(["--trace".to_owned(), path.display().to_string()]);
    let mut ranks = launch(2, &args);
    // The first rank's page says that both have compiled.
    let begin = Instant::now();
    while !path.join("digits_train.html").exists() {
        assert!(begin.elapsed() < PATIENCE, "the first rank has not compiled");
        std::thread::sleep(Duration::from_millis(5));
    }
    std::thread::sleep(Duration::from_millis(200));
    ranks[1].kill().unwrap();
    assert!(!ended(&mut ranks[0], "the rank that is left"));
    ended(&mut ranks[1], "the rank that was killed");
    let all = trace(&path.join("trace-rank0.json"));
    let events = events_of(&all);
    let own = pid(events, "rank 0 (dp=0)").unwrap();
    assert!(!exchanges(events, own).is_empty());
    assert_eq!(pid(events, "rank 1 (dp=1)"), None);
    assert!(!path.join("trace.json").exists());
}

/// Runs a command that succeeds; the JSON object that it prints.
fn told(args: &[&str]) -> Value {
    let args: Vec<String> = args.iter().map(|a| (*a).to_owned()).collect();
    let (fine, out, err) = alone(&args);
    assert!(fine, "{args:?}: {err}");
    serde_json::from_str(&out).unwrap_or_else(|e| panic!("{e}: {out}"))
}

/// Batch norms by each rank's own statistics: by the option, by a plan, and on one device by groups.
#[test]
fn batch_norms_have_statistics_of_ranks_or_groups() {
    let Some(corpus) = testing::cases::corpus() else { return };
    let model = corpus.join("train/resnet18_narrow.zip").display().to_string();
    let folder = tempfile::tempdir().unwrap();
    let plan = folder.path().join("own.toml");
    std::fs::write(&plan, "use = [\"ddp\"]\nbatch_norm = \"rank\"\n").unwrap();
    let plan = plan.display().to_string();
    let exchanges = |more: &[&str]| {
        let found = told(&[&["explain", &model, "--train", "--mesh", "dp=2", "--json"], more].concat());
        let names =
            found["exchanges"].as_array().unwrap().iter().map(|e| e["name"].as_str().unwrap().to_owned());
        names.filter(|name| name.starts_with("batch_norm")).count()
    };
    // Fifteen batch norms have two running statistics each.
    assert_eq!(exchanges(&["--batch-norm", "rank"]), 30);
    assert_eq!(exchanges(&["--plan", &plan]), 30);
    assert!(exchanges(&["--plan", &plan, "--batch-norm", "whole"]) > 30);
    let loss = |more: &[&str]| {
        let usual = ["bench", &model, "--inference", "--seconds", "0.01", "--json", "--cache", "off"];
        told(&[&usual[..], more].concat())["check"][0].as_f64().unwrap()
    };
    let of_groups = loss(&["--batch-norm", "groups=2"]);
    let of_ranks = loss(&["--batch-norm", "rank", "--mesh", "dp=2"]);
    assert!((of_groups - of_ranks).abs() <= 2e-4, "{of_groups} {of_ranks}");
    assert!((of_groups - loss(&[])).abs() > 2e-4, "the whole batch has other statistics than its halves");
    for (args, wanted) in [
        (&["explain", &model, "--batch-norm", "rank"][..], "--mesh"),
        (&["bench", &model, "--batch-norm", "ranks"], "`whole`, `rank` and `groups=N`"),
        (&["bench", &model, "--inference", "--batch-norm", "groups=7"], "not divisible into 7 groups"),
    ] {
        let (fine, _, err) = alone(&args.iter().map(|a| (*a).to_owned()).collect::<Vec<_>>());
        assert!(!fine && err.contains(wanted), "{args:?}: {err}");
    }
}
