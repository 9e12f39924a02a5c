//! When a value is off: the operator's tolerance, and how far the interpreter's own rounding carries.

use fx_ir::{Graph, NodeId};
use ir_core::DType;
use prims::Tolerance;
use tensor::Tensor;

/// What the interpreter's own error is multiplied with: another order of sums has another error of that size.
const ORDER: f64 = 4.0;
/// A value whose error in the interpreter is beyond so many tolerances tells nothing by itself: its call is then looked at alone.
const CLEAR: f64 = 2.0;

/// The distance between a value and the same in double precision.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Distance {
    /// The largest absolute difference.
    pub(super) error: f64,
    /// That of the interpreter in the graph's own dtypes.
    pub(super) eager: f64,
    /// The largest value.
    pub(super) scale: f64,
    /// The largest absolute difference that is allowed for the largest value.
    pub(super) allowed: f64,
    /// Whether every element is near enough.
    pub(super) fits: bool,
    /// Whether the interpreter itself is near enough for this to be a verdict.
    pub(super) clear: bool,
}

/// The tolerance `(atol, rtol)` for the results of a call: that of its operator, at least a few units in the last place, for
/// the narrowest float among operands and results (a fused program may round less often than the graph says).
pub(super) fn tolerance(graph: &Graph, id: NodeId) -> (f64, f64) {
    let node = &graph.nodes[id];
    let target = node.as_call().map_or("", |(target, _)| target);
    let entry = prims::lookup(target).or_else(|| prims::functional_of(target));
    let own = entry.map_or(Tolerance::ACCUMULATE, |op| op.def.tolerance);
    let own =
        Tolerance { atol: own.atol.max(Tolerance::FLOAT.atol), rtol: own.rtol.max(Tolerance::FLOAT.rtol) };
    let mut narrow = DType::F64;
    let mut see = |v| {
        if let Some(dtype) = graph.meta(v).map(|m| m.dtype).filter(|d| d.is_inexact()) {
            let real = dtype.to_real();
            let coarser = |d: DType| tensor::compare::tolerance(d).1;
            if coarser(real) > coarser(narrow) {
                narrow = real;
            }
        }
    };
    node.outputs.iter().for_each(|&v| see(v));
    node.for_each_use(&mut see);
    own.of(narrow)
}

/// Compares a value with the interpreter's and with the one in double precision.
pub(super) fn distance(got: &Tensor, eager: &Tensor, truth: &Tensor, (atol, rtol): (f64, f64)) -> Distance {
    if got.sizes() != truth.sizes() || eager.sizes() != truth.sizes() {
        return Distance { error: f64::INFINITY, clear: true, ..Distance::default() };
    }
    if !truth.dtype().is_inexact() {
        return exact(got, eager, truth);
    }
    let rows = || {
        let pairs = got.iter_complex().zip(eager.iter_complex());
        pairs.zip(truth.iter_complex()).map(|((g, e), t)| (g, e, t))
    };
    let finite = |x: f64| if x.is_finite() { x } else { 0.0 };
    let (mut own, mut scale) = (0.0f64, 0.0f64);
    for (_, e, t) in rows() {
        own = own.max(finite((e - t).norm()));
        scale = scale.max(finite(t.norm()));
    }
    let base = atol * scale.max(1.0);
    let mut found = Distance {
        eager: own,
        scale,
        allowed: base + rtol * scale + ORDER * own,
        fits: true,
        clear: own <= CLEAR * (base + rtol * scale),
        ..Distance::default()
    };
    for (g, e, t) in rows() {
        // What overflows in one precision alone says nothing.
        if !e.is_finite() || !t.is_finite() {
            found.fits &= g.is_nan() || !g.is_finite() || e != t;
            continue;
        }
        let off = (g - t).norm();
        found.error = if off.is_nan() { f64::INFINITY } else { found.error.max(off) };
        found.fits &= off <= base + rtol * t.norm() + ORDER * own;
    }
    found
}

/// Integers and truth values are equal where both precisions agree on them.
fn exact(got: &Tensor, eager: &Tensor, truth: &Tensor) -> Distance {
    let mut found = Distance { fits: true, clear: true, ..Distance::default() };
    for ((g, e), t) in got.iter_f64().zip(eager.iter_f64()).zip(truth.iter_f64()) {
        found.scale = found.scale.max(t.abs());
        found.eager = found.eager.max((e - t).abs());
        found.error = found.error.max((g - t).abs());
        found.fits &= g == t || e != t;
        found.clear &= e == t;
    }
    found
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn of(values: &[f64]) -> Tensor {
        Tensor::from_slice(values, &[values.len()]).unwrap()
    }

    #[test]
    fn the_interpreters_own_error_counts() {
        let near = distance(&of(&[1.0, 2.00003]), &of(&[1.0, 2.00001]), &of(&[1.0, 2.0]), (1e-6, 1e-6));
        assert!(near.fits && !near.clear, "{near:?}");
        let far = distance(&of(&[1.0, 2.1]), &of(&[1.0, 2.0]), &of(&[1.0, 2.0]), (1e-6, 1e-6));
        assert!(!far.fits && far.clear, "{far:?}");
        let lost = distance(&of(&[1.0, f64::NAN]), &of(&[1.0, 2.0]), &of(&[1.0, 2.0]), (1e-6, 1e-6));
        assert!(!lost.fits && lost.error.is_infinite(), "{lost:?}");
    }

    #[test]
    fn integers_are_equal_where_both_precisions_agree() {
        let int = |v: &[i64]| Tensor::from_slice(v, &[v.len()]).unwrap();
        assert!(distance(&int(&[1, 2]), &int(&[1, 3]), &int(&[1, 2]), (0.0, 0.0)).fits);
        assert!(!distance(&int(&[4, 2]), &int(&[1, 2]), &int(&[1, 2]), (0.0, 0.0)).fits);
    }
}
