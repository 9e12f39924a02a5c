//! File tests: every `tests/files/*.fx` is a captured program, followed by its functional form or the errors as comments
//! after `# expected:`. `BLESS=1 cargo test -p aot-autograd` writes the expectations anew.

#![allow(clippy::unwrap_used)] // a failing test may panic

use std::fs;
use std::path::Path;

use aot_autograd::{functional_legality, functionalize};
use fx_ir::Graph;

const MARK: &str = "# expected:\n";

#[test]
fn every_file_gives_what_it_expects() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/files");
    let mut paths: Vec<_> = fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()).collect();
    paths.retain(|p| p.extension().is_some_and(|e| e == "fx"));
    paths.sort();
    assert!(paths.len() >= 8, "the files are gone");
    let failures: Vec<String> = paths.iter().filter_map(|p| check(p).err()).collect();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

fn check(path: &Path) -> Result<(), String> {
    let whole = fs::read_to_string(path).unwrap();
    let (input, expected) = whole.split_once(MARK).unwrap_or((&whole, ""));
    let graph: Graph = input.parse().map_err(|e| format!("{}: {e}", path.display()))?;
    fx_ir::well_formed(&graph).map_err(|e| format!("{}: {}", path.display(), e[0]))?;
    let actual = match functionalize(&graph) {
        Ok(functional) => {
            fx_ir::verify(&functional, &functional_legality())
                .map_err(|e| format!("{}: {}", path.display(), e[0]))?;
            functional.to_string()
        }
        Err(errors) => errors.iter().map(|e| format!("{e}\n")).collect(),
    };
    let actual: String = actual.lines().map(|l| format!("# {l}").trim_end().to_string() + "\n").collect();
    if actual == expected {
        return Ok(());
    }
    if std::env::var_os("BLESS").is_some() {
        fs::write(path, format!("{}\n\n{MARK}{actual}", input.trim_end())).unwrap();
        return Ok(());
    }
    Err(format!("{}: expected\n{expected}\ngot\n{actual}\n(BLESS=1 accepts it)", path.display()))
}
