//! File tests of partitions: every `tests/partition/*.fx` is a forward graph of prims with a loss. Its joint graph is split as
//! the first line says (`# test partition default`, or `min-cut` and the share that may be saved); what each half computes
//! and what passes between them is after it. `BLESS=1` rewrites the expectations. That the halves compute what the
//! joint graph does is judged in `partition`.

use std::path::Path;

use aot_autograd::{JointOptions, MinCut, Tangents, Wrt, joint, partition, partition_min_cut};
use fx_ir::Graph;
use testing::files::{self, File};

#[test]
fn every_file_becomes_what_it_expects() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/partition");
    files::check(&folder, "fx", 6, halves);
}

fn halves(file: &File) -> Result<String, String> {
    let graph: Graph = file.input.parse().map_err(|e| format!("{e}"))?;
    let legal = |graph: &Graph| {
        fx_ir::verify(graph, &prims::prim_legality()).map_err(|e| format!("{}\n{graph}", e[0]))
    };
    legal(&graph)?;
    let options = JointOptions { wrt: Wrt::Parameters, tangents: Tangents::Loss };
    let joint = joint(&graph, &options).map_err(|e| e.to_string())?;
    let words: Vec<&str> = file.directive()?.split(' ').collect();
    let halves = match words[..] {
        ["partition", "default"] => partition(&joint),
        ["partition", "min-cut", budget] => {
            let memory_budget = budget.parse().map_err(|_| format!("`{budget}` is no number"))?;
            partition_min_cut(&joint, &MinCut { memory_budget, ..MinCut::default() })
        }
        _ => return Err("begin with `# test partition default` or `# test partition min-cut BUDGET`".into()),
    };
    let halves = halves.map_err(|e| e.to_string())?;
    legal(&halves.forward)?;
    legal(&halves.backward)?;
    Ok(format!("{}\n{}", halves.forward, halves.backward))
}
