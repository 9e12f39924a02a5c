//! Archives that are written read back as the program that was written, with every record that PyTorch asks for.

use std::io::Cursor;
use std::path::PathBuf;

use fx_ir::{Graph, NodeKind};
use pt2::{Archive, ExportedProgram, Pt2Error};
use testing::cases::{Cases, digits, shared};

use crate::common::{entries, golden};

/// The program as it is after it was written and read.
fn again(program: &ExportedProgram) -> Result<ExportedProgram, Pt2Error> {
    let mut bytes = Cursor::new(Vec::new());
    program.write_to(&mut bytes)?;
    Archive::from_bytes(bytes.into_inner())?.program(None)
}

/// The graph's text, its inputs in the order of their names. It has the name that PyTorch gives the only model of an archive.
fn text(graph: &Graph) -> String {
    let mut graph = graph.clone();
    graph.name = "model".into();
    let (nodes, values) = (&graph.nodes, &graph.values);
    let name = |id: &fx_ir::NodeId| match &nodes[*id].kind {
        NodeKind::Placeholder { .. } => Some(values[nodes[*id].outputs[0]].name.clone()),
        NodeKind::Call { .. } => None,
    };
    let calls = graph.order.iter().position(|id| name(id).is_none()).unwrap_or(graph.order.len());
    graph.order[..calls].sort_by_key(name);
    fx_ir::text::print(&graph)
}

/// What differs between a program and what is read of it.
fn difference(program: &ExportedProgram) -> Option<String> {
    let read = match again(program) {
        Ok(read) => read,
        Err(error) => return Some(error.to_string()),
    };
    let (before, after) = (text(&program.graph), text(&read.graph));
    if before != after {
        let lines = before.lines().zip(after.lines()).find(|(a, b)| a != b);
        return Some(format!("{lines:?}"));
    }
    if program.call != read.call && program.call.inputs.is_some() {
        return Some(format!("{:?} became {:?}", program.call, read.call));
    }
    for weight in program.weights.iter() {
        let other = read.weights.get(&weight.name).and_then(|w| w.tensor.as_ref());
        let values = |t: &tensor::Tensor| t.iter().map(|x| x.as_f64().to_bits()).collect::<Vec<u64>>();
        if weight.tensor.as_ref().map(values) != other.map(values) {
            return Some(format!("the weight {weight}"));
        }
    }
    None
}

/// Data for weights that an archive lacks.
fn filled(mut program: ExportedProgram) -> ExportedProgram {
    let missing: Vec<_> = program.weights.missing().cloned().collect();
    for w in missing {
        program.weights.set(&w.name, tensor::Tensor::zeros(w.dtype, &w.sizes).unwrap()).unwrap();
    }
    program
}

#[test]
fn programs_survive_being_written() {
    for name in ["weights.pt2", "nested.pt2", "loss.pt2", "two.pt2"] {
        let Ok(program) = Archive::open(golden(name)).and_then(|a| {
            let model = a.model_names().remove(0);
            a.program(Some(&model))
        }) else {
            panic!("{name} does not load");
        };
        assert_eq!(difference(&filled(program)), None, "{name}");
    }
    assert_eq!(difference(&ExportedProgram::load(digits("digits.pt2")).unwrap()), None);
}

/// An operator takes sizes that are read from inputs: one that an input has, one of which an input has a multiple, and both in arithmetic.
#[test]
fn sizes_survive_being_written() {
    let text = r#"fx 1.0
graph "sizes" {
  symbol s0 "m" 4..=100 hint 6
  symbol s1 "n" 0..=50 hint 5
  %x: f32[s0, 3] = input "x"
  %y: f32[2*s1, 4] = input "y"

  %a: f32[s1, 2, 4] = aten.reshape.default(%y, [s1, 2, 4])
  %b: f32[s0] = aten.full.default([s0], 1.0, none, none, @cpu, false)
  %c: i64[s0 + 3*s1] = aten.arange.default(s0 + 3*s1, none, none, @cpu, false)
  %d: f32[(s0 + 1) // 2, 3] = aten.slice.Tensor(%x, 0, none, (s0 + 1) // 2, 1)
  return %a
  return %b
  return %c
  return %d
}
"#;
    let none = |_: &pt2::Weight| Ok(None);
    let program = ExportedProgram::from_graph(text.parse().unwrap(), &none).unwrap();
    assert_eq!(difference(&program), None);
}

#[test]
fn networks_survive_being_written() {
    let Some(root) = shared() else { return };
    let mut cases: Vec<PathBuf> = Vec::new();
    for folder in ["tv", "hf", "dynamic"] {
        cases.extend(testing::cases::zips(&root.join("corpus").join(folder)));
    }
    let (mut same, mut refused) = (0, Vec::new());
    for case in cases {
        let mut zip = Cases::open(&case).unwrap();
        let name = zip.names().remove(0);
        let program = Archive::from_bytes(zip.archive(&name).unwrap()).unwrap().program(None).unwrap();
        // Payloads are not what this looks at: they take as long to write as networks are large.
        let small =
            program.weights.iter().map(|w| w.sizes.iter().product::<usize>()).sum::<usize>() < 30_000_000;
        if !small {
            continue;
        }
        match difference(&filled(program)) {
            None => same += 1,
            Some(why) => refused.push(format!("{name}: {why}")),
        }
    }
    // Data-dependent sizes and control flow have no form here; the errors say so.
    let unsupported = |why: &String| why.contains("What to do");
    assert!(refused.iter().all(unsupported), "{refused:#?}");
    assert!(same >= 20 && refused.len() <= 5, "{same} {refused:#?}");
}

#[test]
fn pytorch_finds_what_it_reads() {
    let program = ExportedProgram::load(digits("digits.pt2")).unwrap();
    let mut bytes = Cursor::new(Vec::new());
    program.write_to(&mut bytes).unwrap();
    let held = entries(bytes.get_ref());
    let names: Vec<&str> = held.iter().map(|(name, _)| name.as_str()).collect();
    for record in [
        "archive_format",
        "archive_version",
        "byteorder",
        ".data/version",
        "data/sample_inputs/model.pt",
        "data/weights/model_weights_config.json",
        "data/constants/model_constants_config.json",
        "models/model.json",
    ] {
        assert!(names.contains(&format!("archive/{record}").as_str()), "{record} {names:?}");
    }
}

#[test]
fn what_archives_cannot_have_is_refused() {
    let refused = |body: &str| {
        let graph: Graph = format!("fx 1.0\ngraph \"g\" {{\n{body}\n}}\n").parse().unwrap();
        let none = |_: &pt2::Weight| Ok(None);
        let program = ExportedProgram::from_graph(graph, &none).unwrap();
        program.write_to(Cursor::new(Vec::new())).unwrap_err().to_string()
    };
    let error = refused("%x: f32[2] = input \"x\"\n\n%y: f32[2] = prims.exp(%x)\nreturn %y");
    assert!(error.contains("prims.exp") && error.contains("nodes[1]"), "{error}");
    let program = filled(Archive::open(golden("number.pt2")).unwrap().program(None).unwrap());
    let error = program.write_to(Cursor::new(Vec::new())).unwrap_err().to_string();
    assert!(error.contains("torch.sym_float") && error.contains("What to do"), "{error}");
    let error = refused("%w: f32[2] = parameter \"w\"\n\n%y: f32[2] = aten.exp.default(%w)\nreturn %y");
    assert!(error.contains("`w`") && error.contains("no data"), "{error}");
}

#[test]
fn a_failed_write_leaves_what_was_there() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.pt2");
    std::fs::write(&path, b"before").unwrap();
    let graph: Graph =
        "fx 1.0\ngraph \"g\" {\n%x: f32[2] = input \"x\"\n\n%y: f32[2] = prims.exp(%x)\nreturn %y\n}\n"
            .parse()
            .unwrap();
    let none = |_: &pt2::Weight| Ok(None);
    ExportedProgram::from_graph(graph, &none).unwrap().save(&path).unwrap_err();
    assert_eq!(std::fs::read(&path).unwrap(), b"before");
    assert_eq!(folder.path().read_dir().unwrap().count(), 1);
    ExportedProgram::load(digits("digits.pt2")).unwrap().save(&path).unwrap();
    assert!(ExportedProgram::load(&path).is_ok());
}
