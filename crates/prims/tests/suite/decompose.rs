//! File tests of the decomposition: every `tests/decompose/*.fx` is a functional graph, followed by the prims that it becomes,
//! or by every call that is refused. `# test decompose device` is for a program in memory of a device,
//! `# test decompose whole scores` for a reader that knows no dropout in attention, `# test decompose matrix transforms` for one
//! that knows no Fourier transforms. `BLESS=1` rewrites the expectations.

use std::path::Path;

use fx_ir::Graph;
use testing::files::{self, File};

#[test]
fn every_file_becomes_what_it_expects() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/decompose");
    files::check(&folder, "fx", 21, decomposed);
}

fn decomposed(file: &File) -> Result<String, String> {
    let plain = prims::DecomposeCx::default();
    let cx = match file.directive()? {
        "decompose" => plain,
        "decompose device" => prims::DecomposeCx { device_memory: true, ..plain },
        "decompose whole scores" => prims::DecomposeCx { whole_scores: true, ..plain },
        "decompose matrix transforms" => prims::DecomposeCx { matrix_transforms: true, ..plain },
        _ => {
            return Err(
                "begin with `# test decompose`, `… device`, `… whole scores` or `… matrix transforms`".into(),
            );
        }
    };
    let graph: Graph = file.input.parse().map_err(|e| format!("{e}"))?;
    fx_ir::well_formed(&graph).map_err(|e| e[0].to_string())?;
    match prims::decompose_in(&graph, cx) {
        Ok(prims) => {
            fx_ir::verify(&prims, &prims::prim_legality()).map_err(|e| e[0].to_string())?;
            Ok(prims.to_string())
        }
        Err(errors) => Ok(errors.iter().map(|e| format!("{e}\n")).collect()),
    }
}
