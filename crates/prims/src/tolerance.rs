//! Allowed error of float results. The number is in each operator's entry; golden cases, random programs, the conformance
//! suite and the documents read it there. Not here: the comparison (`tensor::compare`), and the accuracy of kernels for
//! single scalar operators (`conformance`).

use fx_ir::Graph;
use ir_core::DType;
use tensor::compare::tolerance;

use crate::lookup;

/// Allowed distance from a reference, `|a - b| <= atol + rtol * |b|`, for `f32`; [`Tolerance::of`] has it for other dtypes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tolerance {
    /// Absolute part.
    pub atol: f64,
    /// Relative part.
    pub rtol: f64,
}

impl Tolerance {
    /// No rounding at all: views, integers, selections.
    pub const EXACT: Tolerance = Tolerance { atol: 0.0, rtol: 0.0 };
    /// A few units in the last place.
    pub const FLOAT: Tolerance = Tolerance { atol: 1e-6, rtol: 2e-6 };
    /// Sums of many terms, and operators of several steps: what golden cases allow of a result.
    pub const ACCUMULATE: Tolerance = {
        let (atol, rtol) = tolerance(DType::F32);
        Tolerance { atol, rtol }
    };

    /// `(atol, rtol)` for results of a dtype: the same fraction of the tolerance that golden cases allow for that dtype.
    /// Results of 16 bits are rounded, so only exact ones have a tighter tolerance.
    pub fn of(self, dtype: DType) -> (f64, f64) {
        let (atol, rtol) = tolerance(dtype);
        if self == Tolerance::EXACT || dtype.size() == 2 && dtype.is_float() {
            return if self == Tolerance::EXACT { (0.0, 0.0) } else { (atol, rtol) };
        }
        (atol * self.atol / Tolerance::ACCUMULATE.atol, rtol * self.rtol / Tolerance::ACCUMULATE.rtol)
    }

    /// The tolerance of a program: the sum over its calls, at most [`Tolerance::ACCUMULATE`]. Calls of operators that are
    /// not in the table count as the maximum.
    pub fn of_graph(graph: &Graph) -> Tolerance {
        let mut sum = Tolerance::EXACT;
        for (target, _) in graph.iter().filter_map(|(_, node)| node.as_call()) {
            let own = lookup(target).or_else(|| crate::functional_of(target));
            sum = sum.and(own.map_or(Tolerance::ACCUMULATE, |op| op.def.tolerance));
        }
        graph.subgraphs.values().fold(sum, |sum, inner| sum.and(Tolerance::of_graph(inner)))
    }

    fn and(self, other: Tolerance) -> Tolerance {
        Tolerance {
            atol: (self.atol + other.atol).min(Tolerance::ACCUMULATE.atol),
            rtol: (self.rtol + other.rtol).min(Tolerance::ACCUMULATE.rtol),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_held_to_what_golden_cases_allow() {
        for dtype in [DType::F32, DType::F64, DType::BF16, DType::F16, DType::C64, DType::I64] {
            assert_eq!(Tolerance::ACCUMULATE.of(dtype), tolerance(dtype), "{dtype}");
            assert_eq!(Tolerance::EXACT.of(dtype), (0.0, 0.0), "{dtype}");
            let ((atol, rtol), (most, widest)) = (Tolerance::FLOAT.of(dtype), tolerance(dtype));
            assert!(atol <= most && rtol <= widest, "{dtype}");
        }
    }

    #[test]
    fn calls_add_up() {
        let graph = |calls: &str| -> Graph {
            let text = format!("fx 1.0\ngraph \"g\" {{\n%x: f32[2] = input \"x\"\n\n{calls}return %x\n}}");
            text.parse().expect("it parses")
        };
        let negated = "%a: f32[2] = prims.exp(%x)\n";
        assert_eq!(Tolerance::of_graph(&graph("")), Tolerance::EXACT);
        assert_eq!(Tolerance::of_graph(&graph(negated)), Tolerance::FLOAT);
        let sum = "%a: f32[] = prims.sum(%x, [0])\n%b: f32[] = prims.sum(%x, [0])\n";
        assert_eq!(Tolerance::of_graph(&graph(sum)), Tolerance::ACCUMULATE);
    }

    /// No entry allows more than golden cases do.
    #[test]
    fn no_entry_is_looser_than_a_sum() {
        for op in crate::all() {
            let own = op.def.tolerance;
            let fits = own.atol <= Tolerance::ACCUMULATE.atol && own.rtol <= Tolerance::ACCUMULATE.rtol;
            assert!(fits, "{}", op.target);
        }
    }
}
