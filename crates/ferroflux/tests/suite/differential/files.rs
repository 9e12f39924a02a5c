//! Cases that once failed: `tests/files/*.fx`, graphs of prims whose inputs' data follows from their names. Each runs at
//! its symbols' hints and at the ends of their ranges.

use std::path::Path;

use fx_ir::Graph;

use super::judge::Judge;

pub fn run(judge: &Judge) -> Vec<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/files");
    testing::files::list(&folder, "fx", 1)
        .iter()
        .filter_map(|path| one(judge, path).err().map(|e| format!("{}: {e}", path.display())))
        .collect()
}

fn one(judge: &Judge, path: &Path) -> Result<(), String> {
    let text = std::fs::read_to_string(path).unwrap();
    let graph: Graph = text.parse().map_err(|e| format!("{e}"))?;
    fx_ir::well_formed(&graph).map_err(|e| e[0].to_string())?;
    let pick = |f: &dyn Fn(&fx_ir::Symbol) -> i64| -> Vec<i64> { graph.symbols.values().map(f).collect() };
    let hint = |s: &fx_ir::Symbol| s.hint.unwrap_or(s.min.max(2));
    let symbols = [pick(&hint), pick(&|s| s.min), pick(&|s| hint(s) + 1)];
    judge.check(&graph, &symbols).map_err(|f| format!("{}: {}", f.stage, f.what))
}
