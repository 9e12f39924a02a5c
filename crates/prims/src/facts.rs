//! Facts about a prim that passes use, derived from its table entry: its class of work, whether its operands commute, the
//! number of operations of a call. There is no list of names: a fact follows from how the prim is lowered.

use fx_ir::{Arg, Graph, ValueId, ValueType};
use ir_core::SymExpr;
use kernel_ir::{ExternOp, ScalarOp};

use crate::{Call, Kind, Lower, LowerCall, Op, TemplateSpec};

/// The class of work of a prim, in ascending order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Work {
    /// A value for every output point, from a fixed number of elements: views and arithmetic.
    Pointwise,
    /// Combines elements along dimensions.
    Reduction,
    /// Combines elements in order, or at data-dependent indices.
    Ordered,
    /// A matrix product, convolution, attention or a routine of its own.
    Compute,
    /// Unknown: no backend computes it.
    Unknown,
}

impl Op {
    /// How a prim is lowered; `None` for a composite.
    pub fn lower(&self) -> Option<&'static Lower> {
        match &self.def.kind {
            Kind::Prim { lower, .. } => Some(lower),
            Kind::Composite(_) => None,
        }
    }

    /// The scalar operator that a prim applies to every element.
    pub fn scalar_op(&self) -> Option<ScalarOp> {
        match self.lower() {
            Some(Lower::Scalar(op)) => Some(*op),
            _ => None,
        }
    }

    /// The class of work of a prim. A prim is a pure function of its operands, random numbers included (a draw is a
    /// function of seed, stream and index), so that computing it twice gives the same.
    pub fn work(&self) -> Work {
        match self.lower() {
            Some(Lower::Scalar(_) | Lower::Loop(_)) => Work::Pointwise,
            Some(Lower::Reduce(_)) => Work::Reduction,
            Some(Lower::Scan(_) | Lower::Scatter { .. }) => Work::Ordered,
            Some(Lower::Template(_) | Lower::Extern(_)) => Work::Compute,
            _ => Work::Unknown,
        }
    }

    /// Whether what is computed from its result stays separate from what is computed from its operand.
    pub fn is_barrier(&self) -> bool {
        self.target == "prims.barrier"
    }

    /// Whether ranks exchange data by it. Every rank makes the same exchanges in the same order, although what it computes in
    /// between may differ: no pass may leave one out or let one stand for two.
    pub fn exchanges(&self) -> bool {
        matches!(self.def.kind, Kind::Prim { shard: crate::ShardRule::Local, .. })
    }

    /// Whether the first two operands may be exchanged, bit for bit.
    pub fn commutes(&self) -> bool {
        self.scalar_op().is_some_and(commutes)
    }
}

/// Whether `op(a, b)` is `op(b, a)` bit for bit. (IEEE and the backends leave it open which of two `NaN`s is returned.)
fn commutes(op: ScalarOp) -> bool {
    use ScalarOp::*;
    matches!(op, Add | Mul | Min | Max | And | Or | Xor | Eq | Ne)
}

/// Operators that take tens of cycles per vector: everything beyond arithmetic, comparison and rounding.
pub fn is_heavy(op: ScalarOp) -> bool {
    use ScalarOp::*;
    !matches!(
        op,
        Add | Sub
            | Mul
            | Min
            | Max
            | CopySign
            | And
            | Or
            | Xor
            | Shl
            | Shr
            | Not
            | Neg
            | Abs
            | Floor
            | Ceil
            | Trunc
            | Round
            | Eq
            | Ne
            | Lt
            | Le
            | Gt
            | Ge
            | Select
    )
}

/// Number of elements, symbolic sizes by their hints (or their smallest value).
pub fn numel_hint(graph: &Graph, v: ValueId) -> i64 {
    graph.meta(v).map_or(1, |meta| size_hint(graph, &meta.numel()).max(0))
}

/// Bytes of a value, symbolic sizes by their hints (or their smallest value); 8 for a number.
pub fn bytes_hint(graph: &Graph, v: ValueId) -> i64 {
    match &graph.values[v].ty {
        ValueType::Tensor(meta) => numel_hint(graph, v).saturating_mul(meta.dtype.size() as i64),
        ValueType::None => 0,
        _ => 8,
    }
}

fn size_hint(graph: &Graph, e: &SymExpr) -> i64 {
    if let Some(c) = e.as_const() {
        return c;
    }
    let settled = e.subst(&|atom| match atom {
        ir_core::Atom::Sym(id) => {
            let s = graph.symbols.get(*id)?;
            // What capture saw, or a size that is likelier than the smallest one.
            Some(SymExpr::from_i64(s.hint.unwrap_or_else(|| s.max.unwrap_or(64).clamp(s.min.max(1), 64))))
        }
        _ => None,
    });
    settled.as_const().unwrap_or(1)
}

/// An estimate of the floating-point operations of a call of a prim, by which recomputation is chosen. Templates count by
/// their dimensions, everything else counts one per element read or written.
pub fn operations_hint(graph: &Graph, op: &'static Op, args: &[Arg], outs: &[ValueId]) -> i64 {
    let made: i64 = outs.iter().map(|&v| numel_hint(graph, v)).sum();
    let call = LowerCall { call: Call { op, args }, graph, outs };
    let size = |v: ValueId, d: usize| {
        let meta = graph.meta(v)?;
        Some(size_hint(graph, meta.sizes.get(d)?))
    };
    let last = |v: ValueId| size(v, graph.meta(v)?.rank().checked_sub(1)?);
    let spec = match op.lower() {
        Some(Lower::Template(spec)) => spec(&call).ok(),
        Some(Lower::Extern(op)) if matches!(op(&call), Ok(ExternOp::AttentionBackward { .. })) => {
            // The scores and the cotangents of weights, keys, values and queries: five products.
            let keys = call.call.value("k").ok().and_then(|k| size(k, 2));
            let queries = call.call.value("q").map_or(0, |q| numel_hint(graph, q));
            return keys.map_or(made, |keys| queries.saturating_mul(10).saturating_mul(keys));
        }
        Some(Lower::Extern(op)) if matches!(op(&call), Ok(ExternOp::Fourier { .. })) => {
            // Each halving of a line takes about five operations a complex number.
            let read = call.call.value("re").ok().map_or(made, |re| numel_hint(graph, re));
            let line = outs.first().and_then(|v| {
                let rank = graph.meta(*v)?.rank();
                size(*v, call.call.dim(call.call.int("dim").ok()?, rank).ok()?)
            });
            let halvings = 64 - i64::from(line.unwrap_or(1).max(1).leading_zeros());
            return read.max(made).saturating_mul(5 * halvings) / 2;
        }
        Some(Lower::Scalar(_)) => return made,
        _ => None,
    };
    let each = match spec {
        Some(TemplateSpec::Matmul { a, .. }) => last(a).map(|k| k.saturating_mul(2)),
        Some(TemplateSpec::Conv { weight, .. }) => {
            size(weight, 0).map(|o| 2 * numel_hint(graph, weight) / o.max(1))
        }
        // Scores and their sum with the values: both as many products as keys and depth.
        Some(TemplateSpec::Attention { k, .. }) => size(k, 2).map(|l| l.saturating_mul(4)),
        None => None,
    };
    let mut read = 0i64;
    args.iter().for_each(|a| a.for_each_value(&mut |v| read = read.saturating_add(numel_hint(graph, v))));
    each.map_or(read.saturating_add(made), |each| made.saturating_mul(each))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{all, lookup};

    #[test]
    fn facts_follow_from_lowering() {
        let work = |name: &str| lookup(name).expect("a prim").work();
        assert_eq!(work("prims.exp"), Work::Pointwise);
        assert_eq!(work("prims.permute"), Work::Pointwise);
        assert_eq!(work("prims.sum"), Work::Reduction);
        assert_eq!(work("prims.cumsum"), Work::Ordered);
        assert_eq!(work("prims.conv"), Work::Compute);
        assert!(lookup("prims.philox").is_some_and(|op| op.work() == Work::Pointwise));
    }

    #[test]
    fn operands_commute_where_the_reference_agrees() {
        use ir_core::{DType, Scalar};
        let numbers = [-2.0, -0.0, 0.0, 0.5, 3.0, f64::INFINITY];
        for op in all().iter().filter(|op| op.commutes()) {
            let scalar = op.scalar_op().expect("only scalar prims commute");
            let (dtype, of): (DType, fn(f64) -> Scalar) = match scalar {
                ScalarOp::And | ScalarOp::Or | ScalarOp::Xor => {
                    (DType::I64, |x| Scalar::Int(x as i32 as i64))
                }
                _ => (DType::F64, Scalar::Float),
            };
            for a in numbers {
                for b in numbers {
                    let (x, y) = (scalar.eval(dtype, &[of(a), of(b)]), scalar.eval(dtype, &[of(b), of(a)]));
                    // The smaller and the larger of zeros of either sign may be either.
                    assert!(x == y || x.as_f64() == y.as_f64(), "{} {a} {b}: {x} {y}", op.target);
                }
            }
        }
    }

    #[test]
    fn operations_of_a_product() {
        let graph: Graph = "fx 1.0\ngraph \"g\" {\n  %a: f32[4, 5] = input \"a\"\n  %b: f32[5, 6] = input \"b\"\n\n  %c: f32[4, 6] = prims.matmul(%a, %b)\n  return %c\n}\n".parse().expect("a graph");
        let node = graph.iter().last().expect("a node").1;
        let (target, args) = node.as_call().expect("a call");
        let op = lookup(target).expect("a prim");
        assert_eq!(operations_hint(&graph, op, args, &node.outputs), 4 * 6 * 2 * 5);
    }
}
