//! Every program of the golden corpus becomes functional, where the corpus is next to the project; else a line says
//! so. Nothing runs here.

#![allow(clippy::unwrap_used)] // a failing test may panic

use std::collections::BTreeMap;

use aot_autograd::{functional_legality, functionalize};
use fx_ir::{Graph, OutputKind};
use testing::cases::{Cases, corpus, zips};

/// What is wrong with the functional form of a program, or how many buffers and inputs it writes.
fn check(captured: &Graph) -> Result<usize, String> {
    let functional = functionalize(captured).map_err(|errors| format!("{}", errors[0]))?;
    fx_ir::verify(&functional, &functional_legality()).map_err(|errors| format!("{}", errors[0]))?;
    let users = |g: &Graph| {
        g.outputs.iter().filter(|o| matches!(o.kind, OutputKind::User | OutputKind::Loss)).count()
    };
    if users(captured) != users(&functional) {
        return Err("another number of results".into());
    }
    let again = functionalize(&functional).map_err(|errors| format!("again: {}", errors[0]))?;
    if fx_ir::text::print(&again) != fx_ir::text::print(&functional) {
        return Err("a functional graph is not left as it is".into());
    }
    let written = functional
        .outputs
        .iter()
        .filter(|o| matches!(o.kind, OutputKind::BufferMutation(_) | OutputKind::InputMutation(_)));
    Ok(written.count())
}

#[test]
fn every_program_of_the_corpus_becomes_functional() {
    let Some(root) = corpus() else { return };
    let (mut failures, mut programs, mut written) = (Vec::new(), 0, BTreeMap::new());
    for (folder, at_least) in
        [("", 4000), ("tv", 15), ("hf", 30), ("timm", 40), ("train", 11), ("dynamic", 5), ("gpu", 5)]
    {
        let before = programs;
        for path in zips(&root.join(folder)) {
            let mut zip = Cases::open(&path).unwrap();
            for name in zip.names() {
                programs += 1;
                let program = pt2::Archive::from_bytes(zip.archive(&name).unwrap())
                    .and_then(|a| a.program(None))
                    .unwrap();
                match check(&program.graph) {
                    Ok(0) => {}
                    Ok(n) => drop(written.insert(name, n)),
                    Err(problem) => failures.push(format!("{name}: {problem}")),
                }
            }
        }
        assert!(programs - before >= at_least, "{folder}: only {} programs", programs - before);
    }
    eprintln!("{programs} programs; written buffers and inputs: {written:?}");
    let (count, head) =
        (failures.len(), failures.iter().take(20).map(|f| format!("\n{f}")).collect::<String>());
    assert!(failures.is_empty(), "{count} of {programs} programs:{head}");
    // ResNet-18 has 20 batch normalisations, each with a mean, a variance and a counter.
    assert_eq!(written.get("resnet18_train"), Some(&60));
}
