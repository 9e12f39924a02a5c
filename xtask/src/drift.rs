//! `xtask drift`: where the values of a case's joint graph deviate from those of the same graph in double precision.
//!
//! The graph of prims, forward and backward, is run by the interpreter with every `f32` made `f64`, and by a backend as it
//! is; every chosen value is a result of both runs. Values that are asked for are written to memory, so what is fused
//! differs from the case's usual kernels unless few are chosen (`--values`).

use std::path::PathBuf;

use anyhow::Result;
use ferroflux::{Options, Program};
use fx_ir::{Graph, NodeKind, ValueId};
use ir_core::DType;
use regex::Regex;
use tensor::Tensor;

use crate::corpus::{self, Kind, Loaded};

/// Arguments of `xtask drift`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Zip files, archives or folders with training cases.
    #[arg(required = true)]
    paths: Vec<PathBuf>,
    /// Only cases whose name this regular expression finds.
    #[arg(long, value_name = "REGEX")]
    only: Option<String>,
    /// The backend that is judged.
    #[arg(long, default_value = "cpu")]
    backend: String,
    /// Only values whose `name target` this regular expression finds.
    #[arg(long, value_name = "REGEX", default_value = "")]
    values: String,
    /// Prints this element of each value, too.
    #[arg(long)]
    element: Option<usize>,
}

/// Prints, for each value, the largest and the root mean square difference relative to the value's own.
pub(crate) fn run(args: &Args) -> Result<bool> {
    let only = args.only.as_deref().map(Regex::new).transpose()?;
    let values = Regex::new(&args.values)?;
    let mut cases = corpus::find(&args.paths, &[Kind::Train])?;
    cases.retain(|case| only.as_ref().is_none_or(|only| only.is_match(&case.case)));
    let mut loader = corpus::Loader::default();
    for case in &cases {
        println!("{}", case.case);
        one(&loader.load(case)?, args, &values)?;
    }
    Ok(true)
}

fn one(loaded: &Loaded, args: &Args, wanted: &Regex) -> Result<()> {
    let joint = corpus::Wide::of(loaded)?;
    let chosen = chosen(&joint.narrow, wanted);
    let values: Vec<ValueId> = chosen.iter().map(|(v, _)| *v).collect();
    let reference = joint.values(loaded, &values)?;
    let graph = corpus::returning(&joint.narrow, &values);
    let program = Program::from_graph(graph, &loaded.program.weights)?;
    let compiled = program.compile(&Options::new().backend(&args.backend))?;
    let found = compiled.call(&corpus::inputs(&loaded.golden, "")?)?;
    for (((v, name), found), wanted) in chosen.iter().zip(&found).zip(&reference) {
        let sizes = joint.narrow.meta(*v).map(|m| format!("{:?}", m.sizes)).unwrap_or_default();
        let (most, mean) = difference(found, wanted);
        let crossed = crossed(found, wanted);
        print!("{most:9.2e} {mean:9.2e}  {name} {sizes}");
        if let Some(n) = args.element {
            let at = |t: &Tensor| t.iter_f64().nth(n).unwrap_or(f64::NAN);
            print!("  {:e} for {:e}", at(found), at(wanted));
        }
        match &crossed[..] {
            [] => println!(),
            [(n, a, b), ..] => println!("  {} of another sign, [{n}] {a:e} for {b:e}", crossed.len()),
        }
    }
    Ok(())
}

/// Float tensors that calls give, with what they are called.
fn chosen(graph: &Graph, wanted: &Regex) -> Vec<(ValueId, String)> {
    let mut list = Vec::new();
    for (_, node) in graph.iter() {
        let NodeKind::Call { target, .. } = &node.kind else { continue };
        for &v in &node.outputs {
            let name = format!("{} {target}", graph.values[v].name);
            if graph.meta(v).is_some_and(|m| m.dtype == DType::F32) && wanted.is_match(&name) {
                list.push((v, name));
            }
        }
    }
    list
}

/// Elements of another sign, which choose another branch of a kink at zero: number, value, reference.
fn crossed(found: &Tensor, wanted: &Tensor) -> Vec<(usize, f64, f64)> {
    let pairs = found.iter_f64().zip(wanted.iter_f64()).enumerate();
    pairs.filter(|(_, (a, b))| a * b < 0.0).map(|(n, (a, b))| (n, a, b)).collect()
}

/// The largest difference relative to the largest value, and the root mean square of both relative to each other.
fn difference(found: &Tensor, wanted: &Tensor) -> (f64, f64) {
    let (mut most, mut largest, mut squares, mut scale) = (0.0f64, 0.0f64, 0.0, 0.0);
    for (a, b) in found.iter_f64().zip(wanted.iter_f64()) {
        most = most.max((a - b).abs());
        largest = largest.max(b.abs());
        squares += (a - b) * (a - b);
        scale += b * b;
    }
    (most / largest, (squares / scale).sqrt())
}
