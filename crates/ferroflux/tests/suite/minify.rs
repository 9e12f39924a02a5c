//! The minifier: faults planted in a network of 150 layers come out in a few nodes, and the files of a case run again.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::process::Command;

use ferroflux::fx_ir::{Graph, NodeKind};
use ferroflux::graph_backend::{EAGER, GraphCompiler, GraphExecutable, PluginError, register_graph_backend};
use ferroflux::minify::{Case, Failure, Minified, Observed, Probe, minify};
use ferroflux::tensor::formula;
use ferroflux::{Options, Program, Tensor};

/// A backend that does not get one combination of operators right: `cumsum` of what `sigmoid` gave.
struct Broken(Failure);

fn has_fault(graph: &Graph) -> bool {
    graph.iter().any(|(_, node)| {
        let Some(("aten.cumsum.default", args)) = node.as_call() else { return false };
        let mut found = false;
        args.iter().for_each(|a| {
            a.for_each_value(&mut |v| {
                let by = graph.nodes[graph.values[v].def].as_call();
                found |= by.is_some_and(|(target, _)| target == "aten.sigmoid.default");
            });
        });
        found
    })
}

impl GraphCompiler for Broken {
    fn compile(&self, mut graph: Graph) -> Result<Box<dyn GraphExecutable>, PluginError> {
        if !has_fault(&graph) {
            return EAGER.compile(graph);
        }
        match self.0 {
            Failure::Refused => {
                return Err(PluginError::unsupported("sums of a sigmoid").at("cumsum".to_owned()));
            }
            Failure::Crash if std::env::var_os(CHILD).is_some() => std::process::abort(),
            Failure::Crash => panic!("a crash within the backend"),
            Failure::Slow => std::thread::sleep(std::time::Duration::from_millis(300)),
            Failure::Wrong => {
                for (_, node) in graph.nodes.iter_mut() {
                    if let NodeKind::Call { target, .. } = &mut node.kind
                        && target == "aten.sigmoid.default"
                    {
                        *target = "aten.tanh.default".into();
                    }
                }
            }
        }
        EAGER.compile(graph)
    }
}

register_graph_backend!("broken-wrong", "wrong numbers", Broken(Failure::Wrong));
register_graph_backend!("broken-refused", "a refusal", Broken(Failure::Refused));
register_graph_backend!("broken-crash", "a crash", Broken(Failure::Crash));
register_graph_backend!("broken-slow", "slow", Broken(Failure::Slow));

/// Fifty blocks of three layers over `[6, 16]`, with the fault in the middle, and two results.
fn network() -> Case {
    let (rows, width, blocks) = (6, 16, 50);
    let mut text = format!("fx 1.0\ngraph \"deep\" {{\n  %x: f32[{rows}, {width}] = input \"x\"\n");
    let mut weights = BTreeMap::new();
    for n in 0..blocks {
        writeln!(text, "  %w{n}: f32[{width}, {width}] = parameter \"w{n}\"").unwrap();
        let weight = formula::fill(&format!("w{n}"), &[width, width], 0.4, 0.0).unwrap();
        weights.insert(format!("w{n}"), weight);
    }
    let ty = format!("f32[{rows}, {width}]");
    let mut x = "x".to_owned();
    for n in 0..blocks {
        let last = if n == 27 { "cumsum.default(%a27, 1, none)" } else { "silu.default(%a27)" };
        writeln!(text, "  %l{n}: {ty} = aten.linear.default(%{x}, %w{n}, none)").unwrap();
        let activation = if n % 9 == 0 { "sigmoid" } else { "tanh" };
        writeln!(text, "  %a{n}: {ty} = aten.{activation}.default(%l{n})").unwrap();
        writeln!(text, "  %y{n}: {ty} = aten.{}", last.replace("a27", &format!("a{n}"))).unwrap();
        x = format!("y{n}");
    }
    writeln!(text, "  %z: {ty} = aten.relu.default(%y3)\n  return %{x}\n  return %z\n}}").unwrap();
    let program = Program::from_graph(text.parse().unwrap(), &weights).unwrap();
    let input = formula::fill("x", &[rows, width], 1.0, 0.0).unwrap();
    program.case(&[input.into()]).unwrap()
}

fn probe(failure: Failure) -> Probe {
    let limit = std::time::Duration::from_millis(if failure == Failure::Slow { 250 } else { 60_000 });
    Probe::new(&Options::new().backend(format!("broken-{}", failure.name()))).limit(limit)
}

fn minified(failure: Failure) -> Minified {
    let (case, probe) = (network(), probe(failure));
    assert_eq!(case.calls(), 151);
    let found = minify(&case, &mut |case| probe.observe(case).is(failure)).expect("it fails");
    println!("{}: {} calls after {} runs\n{}", failure.name(), found.after, found.tests, found.case.graph);
    found
}

#[test]
fn three_faults_come_out_of_150_layers() {
    for failure in [Failure::Wrong, Failure::Refused, Failure::Crash] {
        let found = minified(failure);
        assert!(found.after <= 2 && found.case.graph.order.len() <= 10, "{}", found.case.graph);
        assert!(has_fault(&found.case.graph));
        assert!(probe(failure).observe(&found.case).is(failure));
        assert_eq!(probe(failure).observe(&without_fault()), Observed::Right);
        // Nothing that is not read is left, and sizes shrink too.
        assert!(found.case.graph.inputs().all(|(v, _, _)| found.case.graph.is_read(v)));
        let largest = found.case.tensors.values().map(Tensor::numel).max().unwrap();
        assert!(largest <= 4, "{largest} elements");
        let folder = std::env::temp_dir().join(format!("ferroflux-minify-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join(format!("{}.fx", failure.name()));
        found.case.write(&path).unwrap();
        let again = Case::read(&path).unwrap();
        assert_eq!(again.graph.to_string(), found.case.graph.to_string());
        assert!(probe(failure).observe(&again).is(failure));
        std::fs::remove_dir_all(&folder).unwrap();
    }
}

#[test]
fn what_is_slow_comes_out_too() {
    let found = minified(Failure::Slow);
    assert!(found.after <= 2 && has_fault(&found.case.graph), "{}", found.case.graph);
}

fn without_fault() -> Case {
    let graph = "fx 1.0\ngraph \"g\" {\n  %x: f32[2] = input \"x\"\n  %y: f32[2] = aten.cumsum.default(%x, 0, none)\n  return %y\n}";
    let x = Tensor::from_vec(vec![1.0_f32, 2.0], &[2]).unwrap();
    Program::from_graph(graph.parse().unwrap(), &BTreeMap::new()).unwrap().case(&[x.into()]).unwrap()
}

#[test]
fn what_does_not_fail_is_not_minified() {
    assert!(minify(&network(), &mut |_| false).is_none());
}

/// The variable by which a process knows that it is a child of [`processes_that_end_are_seen`].
const CHILD: &str = "FERROFLUX_TEST_CASE_PROBE";

/// Run by [`processes_that_end_are_seen`] alone, in a process of its own; the last argument is the case.
#[test]
#[ignore = "a part of another test"]
fn child() {
    let Some(folder) = std::env::var_os(CHILD) else { return };
    let case = Case::read(&std::path::Path::new(&folder).join("case.fx")).unwrap();
    std::process::exit(i32::from(Probe::report(&probe(Failure::Crash).observe(&case))));
}

#[test]
fn processes_that_end_are_seen() {
    let folder = std::env::temp_dir().join(format!("ferroflux-children-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let run = |case: &Case| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--ignored", "--exact", "minify::child", "--skip"]).env(CHILD, &folder);
        probe(Failure::Crash).in_child(case, &folder.join("case.fx"), command).unwrap()
    };
    let aborted = run(&minified(Failure::Crash).case);
    assert!(aborted.is(Failure::Crash), "{aborted:?}");
    assert_eq!(run(&without_fault()), Observed::Right);
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn symbolic_sizes_stay_only_where_they_matter() {
    let text = r#"fx 1.0
graph "g" {
  symbol s0 "batch" 1..=8 hint 2
  %x: f32[s0, 4] = input "x"
  %a: f32[s0, 4] = aten.exp.default(%x)
  %b: f32[s0, 4] = aten.sigmoid.default(%a)
  %c: f32[s0, 4] = aten.cumsum.default(%b, 1, none)
  %d: f32[s0, 4] = aten.neg.default(%c)
  return %d
}
"#;
    let program = Program::from_graph(text.parse().unwrap(), &BTreeMap::new()).unwrap();
    let x = formula::fill("x", &[3, 4], 1.0, 0.0).unwrap();
    let case = program.case(&[x.into()]).unwrap();
    let probe = probe(Failure::Wrong);
    let found = minify(&case, &mut |case| probe.observe(case).is(Failure::Wrong)).unwrap();
    let symbols = found.case.graph.symbols.iter().count();
    let largest = found.case.tensors.values().map(Tensor::numel).max().unwrap();
    assert_eq!((found.after, symbols), (2, 0), "{}", found.case.graph);
    assert!(largest <= 2, "{largest} elements");
    let dynamic = |case: &Case| case.graph.symbols.iter().count() > 0;
    let found = minify(&case, &mut |case| dynamic(case) && probe.observe(case).is(Failure::Wrong)).unwrap();
    assert_eq!((found.after, dynamic(&found.case)), (2, true), "{}", found.case.graph);
}
