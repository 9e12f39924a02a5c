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

/// The boxes of each drawing: groups directly within the outer group. The first `svg` holds what all share.
fn boxes(html: &str) -> Vec<usize> {
    let drawings = html.split("<svg ").skip(2).map(|s| s.split_once("</svg>").unwrap().0);
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

/// The browser of this machine.
fn browser() -> Option<&'static str> {
    let found = testing::browser();
    if found.is_none() {
        println!("left out: no Chromium is installed, so the page was not run in a browser");
    }
    found
}

/// The document in a browser, after a script that is appended to the page.
fn document(browser: &str, page: &Path, script: &str) -> String {
    let changed = page.with_extension("test.html");
    let html = std::fs::read_to_string(page).unwrap();
    std::fs::write(&changed, html.replace("</body>", &format!("<script>{script}</script></body>"))).unwrap();
    let output = Command::new(browser)
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--window-size=1600,1000", "--dump-dom"])
        .arg(format!("file://{}", changed.display()))
        .output()
        .unwrap();
    std::fs::remove_file(&changed).unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// What a script has left in an attribute of the document.
fn attribute(document: &str, name: &str) -> String {
    let found = document.split_once(&format!("data-{name}=\"")).map(|(_, rest)| rest);
    let head = &document[..document.len().min(300)];
    found.unwrap_or_else(|| panic!("no {name}: {head}")).split_once('"').unwrap().0.to_owned()
}

/// Clicks on the first line of the source, then on the first kernel, and notes for each what is marked in each stage and the
/// texts below.
const CLICKS: &str = r#"
const root = document.documentElement.dataset;
const note = name => {
  root[name] = [...document.querySelectorAll('.stage')].map(s => s.id + ' ' + s.querySelectorAll('g.hit').length).join(', ');
  root[name + 'Texts'] = document.querySelectorAll('#detail pre').length;
  root[name + 'Shown'] = document.querySelector('#detail').textContent.slice(0, 200).replaceAll('"', ' ');
};
document.querySelector('#list a').click();
note('line');
document.querySelector('#kernels g.box').dispatchEvent(new MouseEvent('click', {bubbles: true}));
note('kernel');
document.querySelector('#tabs button:nth-child(2)').click();
root.tab = document.querySelector('section.on').id;
root.rows = document.querySelectorAll('#times tr').length;
root.scale = [...document.querySelectorAll('#memory svg text')].map(t => t.textContent).join(', ');
"#;

/// In a browser, where one is installed: the script has run and connected the boxes, and a click from a line of the source leads
/// to its kernel.
fn runs_in_a_browser(page: &Path, data: &Value) {
    let Some(browser) = browser() else { return };
    let stages = data["stages"].as_array().unwrap();
    let boxes = |s: &Value| s["boxes"].as_array().unwrap().iter().filter(|b| !b.is_null()).count();
    let linked: usize = stages.iter().map(boxes).sum();
    let dom = document(browser, page, CLICKS);
    assert_eq!(attribute(&dom, "linked"), linked.to_string());
    // The first place of the list has the first call, and all others of its place.
    let nodes = data["nodes"].as_array().unwrap();
    let place = |n: &Value| {
        let parts = [&n[2][2], &n[2][0], &n[2][1]].map(|p| p.as_str().unwrap_or_default().to_owned());
        parts.into_iter().find(|p| !p.is_empty())
    };
    let own: Vec<&str> =
        nodes.iter().filter(|n| place(n) == place(&nodes[0])).map(|n| n[0].as_str().unwrap()).collect();
    let marked = attribute(&dom, "line");
    assert!(marked.contains(&format!("captured {}", own.len())), "{marked}");
    let kernels = data["kernels"].as_array().unwrap();
    let of_call = |k: &&Value| {
        let names = k[2].as_array().unwrap();
        k[4] == false && names.iter().any(|n| own.contains(&n.as_str().unwrap().trim_end_matches("_grad")))
    };
    let wanted = kernels.iter().filter(of_call).count();
    // A call that became a part of what reads it is in the kernels of that.
    let fits = if wanted > 0 {
        marked.ends_with(&format!("kernels {wanted}"))
    } else {
        !marked.ends_with("kernels 0")
    };
    assert!(fits, "{wanted} in {marked}");
    assert!(attribute(&dom, "line-shown").starts_with(own[0]), "{}", attribute(&dom, "line-shown"));
    // A kernel has the text of its loops, and that of its machine code where there is one.
    let first = kernels.iter().find(|k| k[4] == false).unwrap();
    let codes = data["code"]["steps"].get(first[0].as_str().unwrap()).and_then(Value::as_array);
    let texts = 1 + codes.map_or(0, Vec::len);
    assert_eq!(attribute(&dom, "kernel-texts"), texts.to_string());
    assert!(attribute(&dom, "kernel").contains("kernels 1"), "{}", attribute(&dom, "kernel"));
    assert_eq!(attribute(&dom, "tab"), "times");
    assert!(attribute(&dom, "rows").parse::<usize>().unwrap() > 1);
    // The chart of memory has a scale of bytes and of steps, from nothing to the most and the last.
    let scale = attribute(&dom, "scale");
    let shown: Vec<&str> = scale.split(", ").collect();
    assert!(shown.len() == 10 && shown[0] == "0 B" && shown[1] == "step 0", "{scale}");
    let steps = data["memory"].as_array().unwrap().len();
    assert_eq!(shown[9], (steps - 1).to_string(), "{scale}");
}

/// A page whose boxes are connected with nodes and kernels.
fn check(page: &Path) -> Value {
    let html = std::fs::read_to_string(page).unwrap();
    is_self_contained(&html);
    let data = data(&html);
    let stages = data["stages"].as_array().unwrap();
    let drawn = boxes(&html);
    let count = |s: &Value| s["boxes"].as_array().unwrap().len();
    assert_eq!(stages.iter().map(count).collect::<Vec<_>>(), drawn);
    let calls: Vec<&str> = data["nodes"].as_array().unwrap().iter().map(|n| n[0].as_str().unwrap()).collect();
    let named = |s: &Value| s["boxes"].as_array().unwrap().iter().filter(|b| b.is_string()).count();
    assert_eq!((stages[0]["name"].as_str(), named(&stages[0])), (Some("captured"), calls.len()));
    // Every kernel of a call has a box, and kernels name calls of the graph that is shown.
    let kernels = data["kernels"].as_array().unwrap();
    let of_call = (0..kernels.len() as i64).filter(|&n| kernels[n as usize][4] == false);
    let last = stages.last().unwrap();
    let numbers = last["boxes"].as_array().unwrap().iter().filter_map(Value::as_i64);
    assert_eq!(numbers.collect::<Vec<_>>(), of_call.collect::<Vec<_>>());
    let known = |n: &Value| calls.contains(&n.as_str().unwrap().trim_end_matches("_grad"));
    let linked = kernels.iter().filter(|k| k[2].as_array().unwrap().iter().any(known));
    assert!(linked.count() > 0);
    runs_in_a_browser(page, &data);
    data
}

/// Whether the page has machine code of a step.
fn has_code(data: &Value, step: &str) -> bool {
    let Some(own) = data["code"]["steps"].get(step).and_then(Value::as_array) else { return false };
    own.iter().all(|c| {
        let text = data["code"]["texts"][c[1].as_u64().unwrap() as usize].as_str().unwrap();
        c[0].as_str().unwrap().starts_with("machine code") && text.lines().count() > 10
    })
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
    assert_eq!(data["nodes"][0][0], "conv2d");
    assert_eq!(data["nodes"][0][1], "aten.conv2d.default");
    let stages: Vec<&str> =
        data["stages"].as_array().unwrap().iter().map(|s| s["name"].as_str().unwrap()).collect();
    assert_eq!(stages, ["captured", "functional", "prims", "kernels"]);
    // A pooling is a loop, so its code is generated.
    assert!(has_code(&data, "max_pool2d"), "{}", data["code"]["steps"]);
    // The sizes of this model are symbols; a kernel alone has none.
    assert!(data["kernels"].as_array().unwrap().iter().all(|k| k[5].is_null()));
    let memory: Vec<u64> = serde_json::from_value(data["memory"].clone()).unwrap();
    assert!(memory.iter().any(|n| *n > 0), "{memory:?}");
    let times = data["times"].as_array().unwrap();
    let calls = times.iter().find(|t| t[0] == "call of digits").unwrap();
    assert_eq!(calls[2], 3);
    // Each step of a call is an event of its own.
    let pool = times.iter().find(|t| t[0] == "max_pool2d").unwrap();
    assert_eq!((pool[1].as_str(), pool[2].as_u64()), (Some("kernel"), Some(3)));
    let trace: Value =
        serde_json::from_str(&std::fs::read_to_string(folder.join("trace.json")).unwrap()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let of = |ph: &str| events.iter().filter(|e| e["ph"] == ph).count();
    assert!(of("X") > 10 && of("C") >= 6 && of("M") >= 2, "{events:?}");
    let functional = events.iter().filter(|e| e["name"] == "functional").collect::<Vec<_>>();
    // What the page itself needs is not among the events.
    assert!(functional.len() == 1 && functional[0]["dur"].as_f64().unwrap() > 0.0, "{functional:?}");
    let within = |e: &Value, outer: &Value| {
        let of = |e: &Value| (e["ts"].as_f64().unwrap(), e["dur"].as_f64().unwrap());
        let ((start, took), (begin, whole)) = (of(e), of(outer));
        start + 1.0 >= begin && start + took <= begin + whole + 1.0
    };
    let runs: Vec<&Value> = events.iter().filter(|e| e["name"] == "run on cpu").collect();
    for kernel in events.iter().filter(|e| e["name"] == "max_pool2d") {
        assert!(kernel["cat"] == "kernel" && runs.iter().any(|run| within(kernel, run)), "{kernel} {runs:?}");
    }
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

/// A GPU shows the texts of its kernels, and each launch has an event on a row of its own.
#[test]
fn kernels_of_a_device_are_on_the_page_and_in_the_trace() {
    if !alone("kernels_of_a_device_are_on_the_page_and_in_the_trace") {
        return;
    }
    if let Err(why) = gpu_emulator::available() {
        println!("left out: {why}");
        return;
    }
    let folder = std::env::temp_dir().join(format!("ferroflux-device-{}", std::process::id()));
    let weight = |w: &ferroflux::Weight| {
        ferroflux::Tensor::zeros(w.dtype, &w.sizes).map(Some).map_err(|e| e.to_string())
    };
    let program = Program::from_graph(FIXED.parse().unwrap(), &weight).unwrap();
    report::write_to(&folder);
    let code = program.compile(&Options::new().backend("gpu-emulator")).unwrap();
    let x = ferroflux::Tensor::zeros(DType::F32, &[64, 64]).unwrap();
    for _ in 0..4 {
        code.call(std::slice::from_ref(&x)).unwrap();
    }
    report::flush().unwrap();
    let data = check(&folder.join("fixed.html"));
    let kernels = data["kernels"].as_array().unwrap();
    for kernel in kernels.iter().filter(|k| k[1] == "loop") {
        let own = data["code"]["steps"][kernel[0].as_str().unwrap()].as_array().unwrap();
        assert!(own[0][0].as_str().unwrap().starts_with("cuda"), "{own:?}");
    }
    let trace = std::fs::read_to_string(folder.join("trace.json")).unwrap();
    let trace: Value = serde_json::from_str(&trace).unwrap();
    let events: Vec<&Value> = trace["traceEvents"].as_array().unwrap().iter().collect();
    let launches: Vec<&&Value> = events.iter().filter(|e| e["cat"] == "kernel").collect();
    assert!(launches.len() >= kernels.len(), "{launches:?}");
    let names = events.iter().filter(|e| e["ph"] == "M" && e["name"] == "thread_name");
    let rows: Vec<&Value> = names.filter(|e| e["args"]["name"] == "device 0").map(|e| &e["tid"]).collect();
    assert!(rows.len() == 1 && launches.iter().all(|e| e["tid"] == *rows[0]), "{rows:?}");
    std::fs::remove_dir_all(&folder).unwrap();
}

/// The page of a large network is small enough to open at once.
#[test]
fn the_page_of_resnet152_opens_at_once() {
    if !alone("the_page_of_resnet152_opens_at_once") {
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
    let zero = |w: &ferroflux::Weight| {
        ferroflux::Tensor::zeros(w.dtype, &w.sizes).map(Some).map_err(|e| e.to_string())
    };
    program.fill_weights(&zero).unwrap();
    program.compile(&Options::new()).unwrap();
    report::flush().unwrap();
    let page = folder.join("resnet152.html");
    let size = std::fs::metadata(&page).unwrap().len();
    println!("resnet152: {size} bytes");
    assert!(size < 5_000_000, "{size}");
    let data = check(&page);
    assert_eq!(data["code"]["leftOut"], 0);
    if let Some(browser) = browser() {
        // From the beginning of the navigation until everything has its place; of several tries, for the machine may do other
        // work.
        const LAID_OUT: &str = "document.querySelector('#kernels svg').getBoundingClientRect(); \
                                document.documentElement.dataset.opened = performance.now();";
        let milliseconds =
            |_| attribute(&document(browser, &page, LAID_OUT), "opened").parse::<f64>().unwrap();
        let took = (0..4).map(milliseconds).fold(f64::INFINITY, f64::min) / 1e3;
        println!("resnet152 opens in {took:.2} s");
        assert!(took < 1.0, "{took} s");
    }
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
