//! File tests: every `tests/files/*.fx` is a captured program, followed by its functional form or the errors as comments
//! after `# expected:`. `BLESS=1` rewrites the expectations.

#![allow(clippy::unwrap_used)] // a failing test may panic

use std::path::Path;

use aot_autograd::{functional_legality, functionalize};
use fx_ir::Graph;
use testing::files::{self, File};

#[test]
fn every_file_gives_what_it_expects() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/files");
    files::check(&folder, "fx", 8, functional);
}

fn functional(file: &File) -> Result<String, String> {
    let graph: Graph = file.input.parse().map_err(|e| format!("{e}"))?;
    fx_ir::well_formed(&graph).map_err(|e| e[0].to_string())?;
    match functionalize(&graph) {
        Ok(functional) => {
            fx_ir::verify(&functional, &functional_legality()).map_err(|e| e[0].to_string())?;
            Ok(functional.to_string())
        }
        Err(errors) => Ok(errors.iter().map(|e| format!("{e}\n")).collect()),
    }
}
