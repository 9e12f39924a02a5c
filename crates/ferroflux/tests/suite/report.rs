//! The page about a compiled program and the trace beside it: their data fits their drawings, and where a browser is installed
//! the page runs in it.

use std::path::Path;
use std::process::Command;
use std::sync::Mutex;

use ferroflux::optim::{Optimizer, Sgd};
use ferroflux::prelude::*;
use ferroflux::profiler::{Action, Category, Profiler, Schedule, record_function};
use ferroflux::train::TrainOptions;
use ferroflux::{Options, Program, report};
use serde_json::Value;

/// The variable by which a process knows that it runs one test alone.
const ALONE: &str = "FERROFLUX_TEST_ALONE";

/// Runs a test in a process of its own, where it gives true: the recorder and the folder are the process's.
fn alone(test: &str) -> bool {
    if std::env::var_os(ALONE).is_some() {
        return true;
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    let output = command
        .args(["--exact", &format!("report::{test}"), "--nocapture"])
        .env(ALONE, "1")
        .output()
        .unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    println!("{}", text(&output.stdout));
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("1 passed"), "no such test");
    false
}

fn data(html: &str) -> Value {
    let (_, rest) = html.split_once("<script type=\"application/json\" id=\"data\">").unwrap();
    serde_json::from_str(rest.split_once("</script>").unwrap().0).unwrap()
}

/// The boxes of each drawing: groups directly within the outer group.
fn boxes(html: &str) -> Vec<usize> {
    let drawings = html.split("<svg ").skip(1).map(|s| s.split_once("</svg>").unwrap().0);
    drawings.map(|s| s.matches("<g><title>").count()).collect()
}

/// The file is one tree of elements, and asks nothing of other places.
fn is_self_contained(html: &str) {
    for tag in ["svg", "script", "section", "div", "g", "style"] {
        let (open, close) = (format!("<{tag}"), format!("</{tag}>"));
        let opened = html.matches(&open).filter(|_| true).count();
        let longer = html
            .match_indices(&open)
            .filter(|(at, _)| html[at + open.len()..].starts_with(|c: char| c.is_ascii_alphanumeric()));
        assert_eq!(opened - longer.count(), html.matches(&close).count(), "{tag}");
    }
    for from in ["src=\"http", "href=\"http", "url(http", "@import"] {
        assert!(!html.contains(from), "{from}");
    }
}

/// In a browser, where one is installed: the script has run and connected the boxes.
fn runs_in_a_browser(page: &Path, linked: usize) {
    let names = ["chromium", "chromium-browser", "google-chrome"];
    let found = names.iter().find(|name| Command::new(name).arg("--version").output().is_ok());
    let Some(browser) = found else {
        println!("no browser is installed: the page was not run");
        return;
    };
    let output = Command::new(browser)
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=5000", "--dump-dom"])
        .arg(format!("file://{}", page.display()))
        .output()
        .unwrap();
    let dom = String::from_utf8_lossy(&output.stdout);
    assert!(dom.contains(&format!("data-linked=\"{linked}\"")), "{}", &dom[..dom.len().min(400)]);
}

/// A page whose boxes are connected with nodes and kernels.
fn check(page: &Path) -> Value {
    let html = std::fs::read_to_string(page).unwrap();
    is_self_contained(&html);
    let data = data(&html);
    let (captured, kernels) = (data["boxes"][0].as_array().unwrap(), data["boxes"][1].as_array().unwrap());
    let drawn = boxes(&html);
    assert!(captured.len() <= drawn[0], "{} of {drawn:?}", captured.len());
    assert_eq!(kernels.len(), drawn[1]);
    let named: Vec<&str> = captured.iter().filter_map(Value::as_str).filter(|n| !n.is_empty()).collect();
    assert_eq!(named.len(), data["nodes"].as_object().unwrap().len());
    // Every kernel has a box and names nodes of the graph that is shown.
    let numbers: Vec<i64> = kernels.iter().filter_map(Value::as_i64).filter(|n| *n >= 0).collect();
    let count = data["kernels"].as_array().unwrap().len();
    assert_eq!(numbers, (0..count as i64).collect::<Vec<_>>());
    let known = |n: &Value| data["nodes"].get(n.as_str().unwrap()).is_some();
    let linked =
        data["kernels"].as_array().unwrap().iter().filter(|k| k[2].as_array().unwrap().iter().any(known));
    assert!(linked.count() > 0);
    runs_in_a_browser(page, named.len() + numbers.len());
    data
}

#[test]
fn an_archive_has_a_page_and_a_trace() {
    if !alone("an_archive_has_a_page_and_a_trace") {
        return;
    }
    let folder = std::env::temp_dir().join(format!("ferroflux-report-{}", std::process::id()));
    report::write_to(&folder);
    report::time_kernels();
    let model = Program::load(testing::cases::digits("digits.pt2")).unwrap();
    let model = model.compile(&Options::new()).unwrap();
    let image = ferroflux::Tensor::zeros(DType::F32, &[4, 1, 8, 8]).unwrap();
    for _ in 0..3 {
        model.call(std::slice::from_ref(&image)).unwrap();
    }
    report::flush().unwrap();
    let data = check(&folder.join("digits.html"));
    assert_eq!(data["nodes"]["conv2d"][0], "aten.conv2d.default");
    // The sizes of this model are symbols; a kernel alone has none.
    assert!(data["kernels"].as_array().unwrap().iter().all(|k| k[5].is_null()));
    let memory: Vec<u64> = serde_json::from_value(data["memory"].clone()).unwrap();
    assert!(memory.iter().any(|n| *n > 0), "{memory:?}");
    let times = data["times"].as_array().unwrap();
    let calls = times.iter().find(|t| t[0] == "call of digits").unwrap();
    assert_eq!(calls[2], 3);
    let trace: Value =
        serde_json::from_str(&std::fs::read_to_string(folder.join("trace.json")).unwrap()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let of = |ph: &str| events.iter().filter(|e| e["ph"] == ph).count();
    assert!(of("X") > 10 && of("C") >= 6 && of("M") >= 2, "{events:?}");
    assert!(events.iter().any(|e| e["name"] == "functional" && e["dur"].as_f64().unwrap() > 0.0));
    // Nothing half-written is left.
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 2);
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_training_step_has_a_page() {
    if !alone("a_training_step_has_a_page") {
        return;
    }
    let folder = std::env::temp_dir().join(format!("ferroflux-steps-{}", std::process::id()));
    report::write_to(&folder);
    let program = Program::load(testing::cases::digits("digits_train.pt2")).unwrap();
    let train = TrainOptions::new(Optimizer::Sgd(Sgd::default()));
    program.train_step(&train, &Options::new()).unwrap();
    let data = check(&folder.join("digits_train.html"));
    let kernels = data["kernels"].as_array().unwrap();
    let of =
        |node: &str| kernels.iter().filter(|k| k[2].as_array().unwrap().iter().any(|n| n == node)).count();
    // Gradients are named after the nodes that the page shows.
    assert!(of("conv2d") == 1 && of("conv2d_grad") >= 1, "{kernels:?}");
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_captured_function_has_its_guards_on_its_page() {
    if !alone("a_captured_function_has_its_guards_on_its_page") {
        return;
    }
    let folder = std::env::temp_dir().join(format!("ferroflux-functions-{}", std::process::id()));
    report::write_to(&folder);
    let f = compile(|x: Tensor| (x.exp() + 1.0).sum()).build().unwrap();
    for dtype in [DType::F32, DType::F64] {
        f.call(Tensor::ones(&[4]).to(dtype)).unwrap();
    }
    report::flush().unwrap();
    let data = check(&folder.join("function-2.html"));
    let recompiles = data["function"]["recompiles"].as_array().unwrap();
    assert!(recompiles[0].as_str().unwrap().contains("f64"), "{recompiles:?}");
    assert!(data["function"]["guards"][1].as_str().unwrap().contains("x0: f64[4]"));
    std::fs::remove_dir_all(&folder).unwrap();
}

const FIXED: &str = r#"fx 1.0
graph "fixed" {
  %x: f32[64, 64] = input "x"
  %w: f32[64, 64] = parameter "w"
  %h: f32[64, 64] = aten.mm.default(%x, %w)
  %s: f32[64, 64] = aten.softmax.int(%h, 1, none)
  %y: f32[64, 64] = aten.mm.default(%s, %w)
  return %y
}
"#;

#[test]
fn kernels_are_timed_alone_where_someone_asks() {
    if !alone("kernels_are_timed_alone_where_someone_asks") {
        return;
    }
    let folder = std::env::temp_dir().join(format!("ferroflux-kernels-{}", std::process::id()));
    let weight = |w: &ferroflux::Weight| {
        ferroflux::Tensor::zeros(w.dtype, &w.sizes).map(Some).map_err(|e| e.to_string())
    };
    let program = Program::from_graph(FIXED.parse().unwrap(), &weight).unwrap();
    for timed in [false, true] {
        report::write_to(&folder);
        if timed {
            report::time_kernels();
        }
        program.compile(&Options::new()).unwrap();
        let data = check(&folder.join("fixed.html"));
        let kernels = data["kernels"].as_array().unwrap();
        assert!(kernels.len() >= 2);
        let has = kernels.iter().all(|k| k[4] == true || k[5].as_f64().is_some_and(|s| s > 0.0 && s < 1.0));
        assert_eq!(has, timed, "{kernels:?}");
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

/// The page of a large network is small enough to open at once.
#[test]
fn the_page_of_resnet152_is_under_five_megabytes() {
    if !alone("the_page_of_resnet152_is_under_five_megabytes") {
        return;
    }
    let Some(corpus) = testing::cases::corpus() else { return };
    let path = corpus.join("tv/resnet152.zip");
    if !path.exists() {
        return;
    }
    let folder = std::env::temp_dir().join(format!("ferroflux-large-{}", std::process::id()));
    report::write_to(&folder);
    let archive = testing::cases::Cases::open(&path).unwrap().archive("resnet152").unwrap();
    let mut program = Program::from_bytes(archive).unwrap().named("resnet152");
    // The interpreter needs no packed weights; the page is that of the program for devices all the same.
    let zero = |w: &ferroflux::Weight| {
        ferroflux::Tensor::zeros(w.dtype, &w.sizes).map(Some).map_err(|e| e.to_string())
    };
    program.fill_weights(&zero).unwrap();
    program.compile(&Options::new().backend("oracle")).unwrap();
    report::flush().unwrap();
    let page = folder.join("resnet152.html");
    let size = std::fs::metadata(&page).unwrap().len();
    println!("resnet152: {size} bytes");
    assert!(size < 5_000_000, "{size}");
    check(&page);
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_schedule_records_its_active_steps_alone() {
    if !alone("a_schedule_records_its_active_steps_alone") {
        return;
    }
    let schedule = Schedule { wait: 1, warmup: 1, active: 2, repeat: 2, ..Schedule::default() };
    let ready = std::sync::Arc::new(Mutex::new(Vec::new()));
    let own = ready.clone();
    let mut profiler = Profiler::new()
        .schedule(schedule)
        .on_trace_ready(move |trace| {
            own.lock().unwrap().push(trace.events.iter().map(|e| e.name.clone()).collect::<Vec<_>>());
        })
        .start();
    for n in 0..10 {
        record_function(&format!("report step {n}"), || ());
        assert_eq!(profiler.action() == Action::None, [0, 4, 8, 9].contains(&n), "{n}");
        profiler.step();
    }
    let last = profiler.stop();
    let mine = |names: &[String]| -> Vec<String> {
        names.iter().filter(|n| n.starts_with("report step")).cloned().collect()
    };
    let seen: Vec<Vec<String>> = ready.lock().unwrap().iter().map(|names| mine(names)).collect();
    assert_eq!(seen, [["report step 2", "report step 3"], ["report step 6", "report step 7"]]);
    assert!(last.events.iter().any(|e| e.name == "report step 7" && e.category == Category::User));
    assert!(last.key_averages().table(5).starts_with("name"));
}
