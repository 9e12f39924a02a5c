//! Every archive of the golden corpus loads, where the corpus stands beside the project; else a line says so.

#![allow(clippy::unwrap_used, reason = "a test may")]

use std::path::Path;
use std::time::Instant;

use pt2::{Archive, ExportedProgram};
use testing::cases::{Cases, shared};

use crate::common::problems_of;

/// The archives inside a case file: name and bytes.
fn archives(path: &Path, mut each: impl FnMut(&str, Vec<u8>)) {
    if path.extension().is_some_and(|e| e == "pt2") {
        return each(&path.display().to_string(), std::fs::read(path).unwrap());
    }
    let mut zip = Cases::open(path).unwrap();
    for name in zip.names() {
        each(&format!("{}: {name}", path.display()), zip.archive(&name).unwrap());
    }
}

#[test]
fn every_archive_of_the_corpus_loads() {
    let Some(root) = shared() else { return };
    let (mut failures, mut nodes, mut unknown) =
        (Vec::new(), 0, std::collections::BTreeMap::<String, usize>::new());
    for (folder, at_least) in [
        ("corpus", 4000),
        ("corpus/tv", 15),
        ("corpus/hf", 30),
        ("corpus/timm", 40),
        ("corpus/train", 11),
        ("corpus/dynamic", 5),
        ("corpus/gpu", 5),
        ("models", 3),
    ] {
        let mut count = 0;
        let mut paths: Vec<_> =
            std::fs::read_dir(root.join(folder)).unwrap().map(|e| e.unwrap().path()).collect();
        paths.retain(|p| p.extension().is_some_and(|e| e == "zip" || e == "pt2"));
        paths.sort();
        for path in paths {
            archives(&path, |name, bytes| {
                count += 1;
                match Archive::from_bytes(bytes).and_then(|a| a.program(None)) {
                    Ok(program) => {
                        nodes += program.graph.order.len();
                        if let Some(problem) = text_differs(&program.graph) {
                            failures.push(format!("{name}: {problem}"));
                        }
                        failures.extend(problems_of(&program).into_iter().map(|p| format!("{name}: {p}")));
                        let wrong_metas = prims::check_values(&program.graph).err().unwrap_or_default();
                        failures.extend(wrong_metas.into_iter().map(|e| format!("{name}: {e}")));
                        targets_without_schema(&program, &mut unknown);
                    }
                    Err(error) => failures.push(format!("{name}: {error}")),
                }
            });
        }
        println!("{folder}: {count} archives");
        assert!(count >= at_least, "{folder} has only {count} archives");
    }
    println!("{nodes} nodes; operators without a schema: {unknown:?}");
    assert!(
        failures.is_empty(),
        "{} failures:\n{}",
        failures.len(),
        failures[..failures.len().min(30)].join("\n")
    );
}

/// The graph's text form must read back as the same graph.
fn text_differs(graph: &fx_ir::Graph) -> Option<String> {
    let text = fx_ir::text::print(graph);
    match fx_ir::text::parse(&text) {
        Ok(read) => (read != fx_ir::text::canonical(graph)).then(|| "its text reads back differently".into()),
        Err(error) => Some(format!("its text does not read back: {error}")),
    }
}

fn targets_without_schema(
    program: &ExportedProgram,
    unknown: &mut std::collections::BTreeMap<String, usize>,
) {
    for (_, node) in program.graph.iter() {
        if let Some((target, _)) = node.as_call().filter(|(target, _)| prims::schema_of(target).is_none()) {
            *unknown.entry(target.to_owned()).or_default() += 1;
        }
    }
}

/// The largest graphs read from a file as they do from memory; the time is printed, not judged.
#[test]
fn large_archives_read_from_files() {
    let Some(root) = shared() else { return };
    for case in ["gpu/resnet152_bf16", "timm/hrnet_w18", "gpu/llama2_7b_decode"] {
        archives(&root.join(format!("corpus/{case}.zip")), |name, bytes| {
            let size = bytes.len();
            let file = tempfile::NamedTempFile::new().unwrap();
            std::fs::write(file.path(), bytes).unwrap();
            let best = (0..5)
                .map(|_| {
                    let started = Instant::now();
                    let program = ExportedProgram::load(file.path()).unwrap();
                    std::hint::black_box(&program);
                    started.elapsed()
                })
                .min()
                .unwrap();
            println!("{name}: {size} bytes in {best:?}");
            let program = ExportedProgram::load(file.path()).unwrap();
            let started = Instant::now();
            assert!(prims::check_values(&program.graph).is_ok(), "{name}");
            println!("{name}: values checked in {:?}", started.elapsed());
            let (mapped, held) = (
                ExportedProgram::load(file.path()).unwrap(),
                pt2::Archive::from_bytes(std::fs::read(file.path()).unwrap()),
            );
            assert_eq!(mapped.graph, held.unwrap().program(None).unwrap().graph, "{name}");
        });
    }
}
