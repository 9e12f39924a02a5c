//! File tests of the passes: every `tests/passes/*.fx` names a pass of `passes::PASSES` (`# test pass cse`), and what the pass
//! may assume after it: `inference`, `device`, `before-joint`, `fast-math`; nothing is a training step. The graph that the pass
//! leaves, and what is dead in it erased, is after the input. The interpreter judges that both compute the same.
//! `BLESS=1` rewrites the expectations.

use std::path::Path;

use aot_autograd::passes::{PASSES, PassCx, run_pass};
use fx_ir::Graph;
use ir_core::{Atom, DType, SymExpr};
use tensor::Tensor;
use testing::files::{self, File};

const FILES: usize = 40;

fn folder() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/passes")
}

#[test]
fn every_file_becomes_what_it_expects() {
    files::check(&folder(), "fx", FILES, after);
}

#[test]
fn every_pass_has_a_file() {
    let tested: Vec<String> = files::list(&folder(), "fx", FILES)
        .iter()
        .filter_map(|path| Some(File::read(path).directive().ok()?.split(' ').nth(1)?.to_owned()))
        .collect();
    for pass in PASSES {
        assert!(tested.iter().any(|name| name == pass.name), "no file tests `{}`", pass.name);
    }
}

fn after(file: &File) -> Result<String, String> {
    let words: Vec<&str> = file.directive()?.split(' ').collect();
    let (name, cx) = match words[..] {
        ["pass", name] => (name, PassCx::training()),
        ["pass", name, "inference"] => (name, PassCx::inference()),
        ["pass", name, "device"] => (name, PassCx { side_by_side: true, ..PassCx::inference() }),
        ["pass", name, "before-joint"] => (name, PassCx::before_joint()),
        ["pass", name, "fast-math"] => (name, PassCx::training().fast_math(true)),
        _ => return Err("begin with `# test pass NAME [inference|device|before-joint|fast-math]`".into()),
    };
    let pass = PASSES.iter().find(|p| p.name == name).ok_or_else(|| format!("there is no pass `{name}`"))?;
    let before: Graph = file.input.parse().map_err(|e| format!("{e}"))?;
    let legal = |graph: &Graph| {
        fx_ir::verify(graph, &prims::prim_legality()).map_err(|e| format!("{}\n{graph}", e[0]))
    };
    legal(&before)?;
    let mut graph = before.clone();
    run_pass(pass, &mut graph, &cx);
    legal(&graph)?;
    prims::scalars::eliminate_dead(&mut graph);
    let (wanted, got) = (evaluated(&before)?, evaluated(&graph)?);
    for (wanted, got) in wanted.iter().zip(&got) {
        tensor::allclose(got, wanted, 1e-6, 1e-5).map_err(|e| format!("another value: {e}\n{graph}"))?;
    }
    Ok(graph.to_string())
}

/// The results on inputs that a formula gives, at the hints of the symbols.
fn evaluated(graph: &Graph) -> Result<Vec<Tensor>, String> {
    let hint = |atom: &Atom| match atom {
        Atom::Sym(id) => graph.symbols[*id].hint.map(SymExpr::from_i64),
        _ => None,
    };
    let data = |name: &str, meta: &ir_core::TensorMeta| {
        let sizes = meta.sizes.iter().map(|e| usize::try_from(e.subst(&hint).as_const()?).ok());
        let sizes: Vec<usize> = sizes.collect::<Option<_>>().ok_or("a symbol has no hint")?;
        let whole = |n: usize| Tensor::from_vec(vec![1_i64; n], &sizes);
        // What is asserted holds.
        if meta.dtype == DType::Bool {
            let made = whole(sizes.iter().product()).and_then(|t| t.to_dtype(DType::Bool));
            return made.map_err(|e| e.to_string());
        }
        let made = tensor::formula::fill(name, &sizes, 1.0, 0.2).and_then(|t| t.to_dtype(meta.dtype));
        made.map_err(|e| e.to_string())
    };
    let given = graph.inputs().map(|(v, _, name)| data(name, graph.meta(v).ok_or("an input is no tensor")?));
    let given = given.collect::<Result<Vec<_>, String>>()?;
    interp::run(graph, &given).map_err(|e| format!("{e}\n{graph}"))
}
