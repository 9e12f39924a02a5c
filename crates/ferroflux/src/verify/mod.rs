//! Where numbers go wrong: every intermediate value of a compiled program beside that of the interpreter and that in double
//! precision, and the first operator that is over its tolerance.
//!
//! ```
//! # use std::collections::BTreeMap;
//! # use ferroflux::{Options, Program, Tensor, fx_ir::Graph};
//! let graph: Graph = r#"fx 1.0
//! graph "g" {
//!   %x: f32[2] = input "x"
//!   %y: f32[2] = aten.exp.default(%x)
//!   %z: f32[2] = aten.log.default(%y)
//!   return %z
//! }"#.parse()?;
//! let program = Program::from_graph(graph, &BTreeMap::new())?;
//! let x = Tensor::from_vec(vec![1.0_f32, 2.0], &[2])?;
//! let found = program.verify(&[x.into()], &Options::new().backend("oracle"))?;
//! assert_eq!(found.values.len(), 2);
//! assert!(found.first.is_none());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The graph runs three times with all its intermediate values as outputs: on the backend, in the interpreter, and in the
//! interpreter with every float in double precision. A value that is further off than its operator's tolerance allows is not
//! the fault of its operator where its operands were off before: then the call alone is computed again, in both precisions,
//! from the operands that the backend gave, and judged by that. Outputs change what is fused; so the program as it is runs too,
//! and where it alone is wrong, the shortest beginning of it that is wrong is searched.
//!
//! Not here: making a failing program small ([`crate::minify`]).

mod double;
mod judge;
mod runs;

use fx_ir::{Graph, NodeId, Uses, ValueId};
use serde::Serialize;

use crate::{Error, Input, Options, Program};
pub(crate) use double::{in_double, widened};
use judge::Distance;
use runs::Runs;

/// What was found about one intermediate value.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ValueReport {
    /// The node that computes it.
    pub node: String,
    /// Its operator.
    pub target: String,
    /// The module that it is a part of; empty where that is not known.
    pub module: String,
    /// The line of the user's program; `None` where the archive does not have it.
    pub source: Option<String>,
    /// dtype and sizes.
    pub meta: String,
    /// The largest value.
    pub scale: f64,
    /// The largest absolute difference of the backend's value from that in double precision.
    pub error: f64,
    /// The same of the interpreter's value, in the graph's own dtypes.
    pub eager_error: f64,
    /// The largest absolute difference of the backend's value from what its operator gives in double precision for the
    /// operands that the backend computed; only where the value itself is too far off.
    pub own_error: Option<f64>,
    /// The largest absolute difference that is allowed: by the operator's tolerance, and by the interpreter's own error.
    pub allowed: f64,
    /// Whether the operator is within its tolerance.
    pub fits: bool,
}

/// The values of a program on a backend.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Verification {
    /// The backend.
    pub backend: String,
    /// Every tensor that a call of the graph computes, in order.
    pub values: Vec<ValueReport>,
    /// The first one whose operator is over its tolerance, as an index of `values`.
    pub first: Option<usize>,
    /// Whether that shows only in the program as it is, and not where all values are outputs: what is fused around the operator
    /// is wrong.
    pub only_fused: bool,
}

impl Verification {
    /// The first value whose operator is over its tolerance.
    pub fn first_wrong(&self) -> Option<&ValueReport> {
        self.values.get(self.first?)
    }
}

impl std::fmt::Display for ValueReport {
    /// `sin_3 (aten.sin.default, f32[2, 3]) of layer1.0, at net.py:12`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({}, {})", self.node, self.target, self.meta)?;
        if !self.module.is_empty() {
            write!(f, " of {}", self.module)?;
        }
        self.source.iter().try_for_each(|line| write!(f, ", at {line}"))
    }
}

impl Program {
    /// Compares every intermediate value of the program on the backend of `options` with the interpreter's and with that in
    /// double precision, for these inputs (as for [`Compiled::call_with`](crate::Compiled::call_with)).
    ///
    /// # Errors
    /// As for compiling and calling, on the backend and on `eager`: what either refuses has no values to compare.
    pub fn verify(&self, inputs: &[Input], options: &Options) -> Result<Verification, Error> {
        let runs = Runs::new(self, inputs, options)?;
        let graph = &runs.graph;
        // What nothing reads is not computed, and archives state wrong types of it.
        let uses = Uses::of(graph);
        let all: Vec<ValueId> =
            crate::surgery::computed(graph).into_iter().filter(|&v| !uses.is_dead(v)).collect();
        let mut values = Vec::with_capacity(all.len());
        for group in runs.groups(&all) {
            values.extend(judged(&runs, group)?);
        }
        let mut first = values.iter().position(|v: &ValueReport| !v.fits);
        let mut only_fused = false;
        if first.is_none()
            && let Some(at) = fused(&runs, &all)?
        {
            (first, only_fused) = (Some(at), true);
            values[at].fits = false;
        }
        Ok(Verification { backend: options.backend_name().to_owned(), values, first, only_fused })
    }
}

/// The reports of values that fit memory together.
fn judged(runs: &Runs, group: &[ValueId]) -> Result<Vec<ValueReport>, Error> {
    let (got, eager) = (runs.on_backend(group)?, runs.in_eager(group)?);
    let truth = runs.in_double(group)?;
    let mut reports = Vec::with_capacity(group.len());
    for (n, &v) in group.iter().enumerate() {
        let id = runs.graph.values[v].def;
        let tolerance = judge::tolerance(&runs.graph, id);
        let whole = judge::distance(&got[n], &eager[n], &truth[n], tolerance);
        let mut own = None;
        if !(whole.fits && whole.clear) {
            let known = |v: ValueId| Some(got[group.iter().position(|other| *other == v)?].clone());
            own = runs.alone(v, &known)?.map(|(e, t)| judge::distance(&got[n], &e, &t, tolerance));
        }
        reports.push(report(&runs.graph, (v, id), whole, own));
    }
    Ok(reports)
}

fn report(graph: &Graph, (v, id): (ValueId, NodeId), whole: Distance, own: Option<Distance>) -> ValueReport {
    let origin = graph.origin(id);
    let meta = graph.meta(v).map(ToString::to_string).unwrap_or_default();
    ValueReport {
        node: graph.values[v].name.clone(),
        target: graph.nodes[id].as_call().map(|(target, _)| target.to_owned()).unwrap_or_default(),
        module: origin.module.clone(),
        source: origin.source.clone(),
        meta,
        scale: whole.scale,
        error: whole.error,
        eager_error: whole.eager,
        own_error: own.map(|d| d.error),
        allowed: own.map_or(whole.allowed, |d| d.allowed),
        // A value that is right from the beginning of the program is right, whatever became of the operands' rounding.
        fits: (whole.fits && whole.clear) || own.map_or(whole.fits, |d| d.fits),
    }
}

/// The last value of the shortest beginning of the program that is wrong when it runs as it is; `None` where the whole program
/// is right. A beginning that contains a wrong one is taken to be wrong too.
fn fused(runs: &Runs, all: &[ValueId]) -> Result<Option<usize>, Error> {
    let returned: Vec<ValueId> = all.iter().copied().filter(|v| runs.returned.contains(v)).collect();
    if returned.is_empty() || wrong_together(runs, &returned)?.is_none() {
        return Ok(None);
    }
    let is_wrong = |at: usize| Ok::<_, Error>(wrong_together(runs, &all[at..=at])?.is_some());
    let Some(last) = returned.iter().rev().find(|v| wrong_together(runs, &[**v]).is_ok_and(|w| w.is_some()))
    else {
        // No result is wrong alone; the first wrong one of all together is named.
        let at = wrong_together(runs, &returned)?.unwrap_or(0);
        return Ok(all.iter().position(|v| *v == returned[at]));
    };
    let (mut right, mut wrong) = (0, all.iter().position(|v| v == last).unwrap_or(0));
    while right < wrong {
        let middle = (right + wrong) / 2;
        if is_wrong(middle)? {
            wrong = middle;
        } else {
            right = middle + 1;
        }
    }
    Ok(Some(wrong))
}

/// The first of the values that is wrong where they alone are returned, by the tolerance of the whole program.
fn wrong_together(runs: &Runs, values: &[ValueId]) -> Result<Option<usize>, Error> {
    let (got, eager, truth) = (runs.on_backend(values)?, runs.in_eager(values)?, runs.in_double(values)?);
    Ok((0..values.len()).find(|&n| {
        let dtype = runs.graph.meta(values[n]).map_or(ir_core::DType::F32, |m| m.dtype);
        let tolerance = prims::Tolerance::ACCUMULATE.of(dtype);
        !judge::distance(&got[n], &eager[n], &truth[n], tolerance).fits
    }))
}
