//! File tests of the decomposition: every `tests/decompose/*.fx` is a functional graph, followed by the prims that it becomes,
//! or by every call that is refused. `# test decompose device` is for a program in memory of a device,
//! `# test decompose whole scores` for a reader that knows no dropout in attention. `BLESS=1` rewrites the expectations.

use std::path::Path;

use fx_ir::Graph;
use testing::files::{self, File};

#[test]
fn every_file_becomes_what_it_expects() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/decompose");
    files::check(&folder, "fx", 21, decomposed);
}

fn decomposed(file: &File) -> Result<String, String> {
    let (device_memory, whole_scores) = match file.directive()? {
        "decompose" => (false, false),
        "decompose device" => (true, false),
        "decompose whole scores" => (false, true),
        _ => return Err("begin with `# test decompose`, `… device` or `… whole scores`".into()),
    };
    let graph: Graph = file.input.parse().map_err(|e| format!("{e}"))?;
    fx_ir::well_formed(&graph).map_err(|e| e[0].to_string())?;
    match prims::decompose_in(&graph, prims::DecomposeCx { device_memory, whole_scores }) {
        Ok(prims) => {
            fx_ir::verify(&prims, &prims::prim_legality()).map_err(|e| e[0].to_string())?;
            Ok(prims.to_string())
        }
        Err(errors) => Ok(errors.iter().map(|e| format!("{e}\n")).collect()),
    }
}
