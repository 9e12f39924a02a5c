//! From a graph of prims with 8-bit floats and unsigned integers above 8 bits to one without: such a value becomes the tensor of
//! its bits in the dtype that carries it ([`DType::carrier`]), so that no kernel and no backend knows these dtypes.
//!
//! A prim that only moves elements moves the bits. One that wraps (sums, products, bitwise operators) gives the same bits on signed
//! integers. All others compute in a wider dtype that has all values: `i32` for `u16`, `i64` for `u32`, `f32` for 8-bit
//! floats; their results are rounded or wrapped back. No wider integer has the values of `u64`: comparisons flip the highest bit, and
//! what neither wraps nor compares is refused. Not here: the formulas of single elements (`formulas`), and the tensors at the
//! program's boundary, which share memory with the caller's.

mod formulas;

use fx_ir::{Arg, Graph, Node, NodeId, NodeKind, Output, ValueId, ValueType};
use ir_core::{Arena, DType, Scalar, TensorMeta};
use tensor::Tensor;

use crate::decompose::DecomposeError;
use crate::{Builder, Op, OpError, Outs, lookup};

/// Prims that move elements, or numbers that stand for elements, without looking at them.
const MOVES: &[&str] = &[
    "all_gather",
    "all_to_all",
    "barrier",
    "broadcast",
    "cat",
    "detach",
    "expand",
    "full",
    "gather",
    "index",
    "pad",
    "permute",
    "reshape",
    "select",
    "shift",
    "slice",
    "strided",
    "window",
    "with_gradient_of",
];
/// Prims that give the same bits on integers of both kinds.
const WRAPS: &[&str] = &[
    "add", "and", "cumprod", "cumsum", "eq", "iota", "mul", "ne", "neg", "not", "or", "prod", "shl", "sub",
    "sum", "xor", "xor_sum",
];
/// Prims that depend on the order of their operands alone.
const ORDERS: &[&str] =
    &["amax", "amin", "argmax", "argmin", "cummax", "cummin", "ge", "gt", "le", "lt", "max", "min", "sort"];

/// Whether a value of the graph or of one of its subgraphs has a dtype that kernels do not have.
pub fn has_carried(graph: &Graph) -> bool {
    let carried = |v: &ValueId| graph.meta(*v).is_some_and(|m| m.dtype.is_carried());
    graph.iter().any(|(_, node)| node.outputs.iter().any(&carried))
        || graph.subgraphs.values().any(has_carried)
}

/// The program in dtypes that kernels have.
///
/// # Errors
/// Every call that has no form in them, in one report.
pub fn carry(graph: &Graph) -> Result<Graph, Vec<DecomposeError>> {
    let mut errors = Vec::new();
    let out = carry_graph(graph, None, &mut errors);
    if errors.is_empty() { Ok(out) } else { Err(errors) }
}

/// What the values of the old graph are in the new one; `None` where a call was refused.
type Map = Arena<ValueId, Option<ValueId>>;

/// `outer` is the graph around a subgraph, which shares its symbols.
fn carry_graph(graph: &Graph, mut outer: Option<&mut Graph>, errors: &mut Vec<DecomposeError>) -> Graph {
    let mut out = Graph::new(graph.name.clone());
    match &mut outer {
        Some(outer) => outer.move_symbols(&mut out),
        None => out.share_symbols(graph),
    }
    out.origins = graph.origins.clone();
    for subgraph in graph.subgraphs.values() {
        let subgraph = carry_graph(subgraph, Some(&mut out), errors);
        out.subgraphs.push(subgraph);
    }
    let mut map: Map = graph.values.ids().map(|_| None).collect();
    for (id, node) in graph.iter() {
        let done = match &node.kind {
            NodeKind::Placeholder { kind, name } => {
                for &v in &node.outputs {
                    let value = &graph.values[v];
                    map[v] =
                        Some(out.placeholder(*kind, name.as_str(), &value.name, carried_type(&value.ty)));
                }
                Ok(())
            }
            NodeKind::Call { target, args } => call(graph, id, (target, args), &mut out, &mut map),
        };
        if let Err(error) = done {
            errors.push(DecomposeError::of(graph, id, error));
        }
    }
    for output in &graph.outputs {
        let arg = match &output.arg {
            // Refused and reported already where it is not there.
            Arg::Value(v) => map[*v].map_or(Arg::None, Arg::Value),
            other => other.clone(),
        };
        out.outputs.push(Output { kind: output.kind.clone(), arg });
    }
    if let Some(outer) = outer {
        out.move_symbols(outer);
    }
    crate::scalars::eliminate_dead(&mut out);
    out
}

fn carried_type(ty: &ValueType) -> ValueType {
    match ty.as_tensor() {
        Some(meta) if meta.dtype.is_carried() => {
            ValueType::Tensor(TensorMeta { dtype: meta.dtype.carrier(), ..meta.clone() })
        }
        _ => ty.clone(),
    }
}

/// The argument in the new graph; `None` where a value was refused.
fn mapped(arg: &Arg, map: &Map) -> Option<Arg> {
    Some(match arg {
        Arg::Value(v) => Arg::Value(map[*v]?),
        Arg::List(items) => Arg::List(items.iter().map(|a| mapped(a, map)).collect::<Option<_>>()?),
        other => other.clone(),
    })
}

fn call(
    graph: &Graph,
    id: NodeId,
    (target, old): (&str, &[Arg]),
    out: &mut Graph,
    map: &mut Map,
) -> Result<(), OpError> {
    let node = &graph.nodes[id];
    // An operand was refused and reported.
    let Some(args) = old.iter().map(|a| mapped(a, map)).collect::<Option<Vec<Arg>>>() else { return Ok(()) };
    let given = dtypes_of(graph, node, old);
    let dtype = given.iter().copied().find(|d| d.is_carried());
    let results = match (dtype, lookup(target)) {
        (Some(dtype), Some(op)) => {
            let shown: Vec<Option<DType>> =
                node.outputs.iter().map(|&v| graph.meta(v).map(|m| m.dtype)).collect();
            let mut b = Builder::new(out, graph.node_name(id), node.origin);
            let operands = operands_of(graph, old, dtype, map);
            Carried { op, dtype, given: operand_dtype(graph, old), operands, shown: &shown }
                .call(&mut b, args)?
        }
        _ => {
            let types = node
                .outputs
                .iter()
                .map(|&v| (graph.values[v].name.as_str(), carried_type(&graph.values[v].ty)));
            out.call(target, args, types, node.origin)
        }
    };
    for (&old, new) in node.outputs.iter().zip(results) {
        map[old] = Some(new);
    }
    Ok(())
}

/// The dtypes of all tensors that a call takes and gives, its operands first.
fn dtypes_of(graph: &Graph, node: &Node, args: &[Arg]) -> Vec<DType> {
    let mut all = Vec::new();
    args.iter().for_each(|a| a.for_each_value(&mut |v| all.extend(graph.meta(v).map(|m| m.dtype))));
    all.extend(node.outputs.iter().filter_map(|&v| graph.meta(v).map(|m| m.dtype)));
    all
}

/// What the operands of a dtype are in the new graph, where others may have the dtype that carries theirs.
fn operands_of(graph: &Graph, args: &[Arg], dtype: DType, map: &Map) -> Outs {
    let mut all = Outs::new();
    let of = |v: ValueId| map[v].filter(|_| graph.meta(v).is_some_and(|m| m.dtype == dtype));
    args.iter().for_each(|a| a.for_each_value(&mut |v| all.extend(of(v))));
    all
}

/// The dtype of the first operand.
fn operand_dtype(graph: &Graph, args: &[Arg]) -> Option<DType> {
    match args.first() {
        Some(Arg::Value(v)) => graph.meta(*v).map(|m| m.dtype),
        _ => None,
    }
}

/// A call with values whose dtype is carried.
struct Carried<'a> {
    op: &'static Op,
    /// The carried dtype.
    dtype: DType,
    /// The dtype of the first operand before.
    given: Option<DType>,
    /// The operands that had the carried dtype.
    operands: Outs,
    /// The dtypes of the results before.
    shown: &'a [Option<DType>],
}

impl Carried<'_> {
    fn call(&self, b: &mut Builder<'_>, args: Vec<Arg>) -> Result<Outs, OpError> {
        let name = self.op.target.strip_prefix("prims.").unwrap_or_default();
        let integer = self.dtype.is_int();
        match name {
            "convert" | "bitcast" => {
                let (Some(Arg::Value(v)), Some(from), Some(&Some(to))) =
                    (args.first(), self.given, self.shown.first())
                else {
                    return Err(self.refused());
                };
                let to = if name == "convert" {
                    formulas::convert(b, *v, from, to)?
                } else {
                    bitcast(b, *v, to.carrier())?
                };
                Ok([to].into_iter().collect())
            }
            _ if self.op.target.starts_with("higher_order.") => Err(self.refused()),
            _ if MOVES.contains(&name) || integer && WRAPS.contains(&name) => {
                b.call_op(self.op, self.as_bits(args)?)
            }
            _ if self.dtype == DType::U64 && ORDERS.contains(&name) => self.in_order(b, args),
            _ if self.dtype == DType::U64 => Err(self.refused()),
            _ => self.widened(b, args),
        }
    }

    fn refused(&self) -> OpError {
        OpError::DType { op: self.op.target.clone(), dtype: self.dtype }
    }

    /// The same call on bits: numbers that stand for elements become theirs.
    fn as_bits(&self, args: Vec<Arg>) -> Result<Vec<Arg>, OpError> {
        self.each(args, &mut |arg| bits_of(&arg, self.dtype).map_err(|e| self.tensor_error(e)))
    }

    fn tensor_error(&self, source: tensor::TensorError) -> OpError {
        OpError::Tensor { op: self.op.target.clone(), source }
    }

    /// Arguments with numbers that stand for elements changed, and dtypes carried.
    fn each(
        &self,
        args: Vec<Arg>,
        number: &mut dyn FnMut(Arg) -> Result<Arg, OpError>,
    ) -> Result<Vec<Arg>, OpError> {
        let types = &self.op.schema.args;
        let one = |(n, arg): (usize, Arg)| {
            let element = types.get(n).is_some_and(|a| matches!(a.ty.base.as_str(), "Tensor" | "Scalar"));
            match arg {
                Arg::DType(d) => Ok(Arg::DType(d.carrier())),
                Arg::Int(_) | Arg::Scalar(_) if element => number(arg),
                other => Ok(other),
            }
        };
        args.into_iter().enumerate().map(one).collect()
    }

    /// On signed integers of the same order: those with the highest bit flipped.
    fn in_order(&self, b: &mut Builder<'_>, args: Vec<Arg>) -> Result<Outs, OpError> {
        let flipped = |s: Scalar| Arg::from(Scalar::Int(s.as_i64() ^ i64::MIN));
        let mut turned = Vec::with_capacity(args.len());
        for arg in self.as_bits(args)? {
            turned.push(match arg {
                Arg::Value(v) if self.operands.contains(&v) => b.xor(v, i64::MIN)?.into(),
                Arg::Scalar(s) => flipped(s),
                other => other,
            });
        }
        let outs = b.call_op(self.op, turned)?;
        let back = |(v, shown): (ValueId, &Option<DType>)| match shown {
            Some(DType::U64) => b.xor(v, i64::MIN),
            _ => Ok(v),
        };
        outs.into_iter().zip(self.shown).map(back).collect()
    }

    /// In a dtype that has all values.
    fn widened(&self, b: &mut Builder<'_>, args: Vec<Arg>) -> Result<Outs, OpError> {
        let wide = formulas::wide(self.dtype);
        let mut all = Vec::with_capacity(args.len());
        for arg in args {
            all.push(self.widened_arg(b, arg, wide)?);
        }
        let outs = b.call_op(self.op, all)?;
        let mut back = Outs::new();
        for (v, shown) in outs.into_iter().zip(self.shown) {
            back.push(match shown {
                Some(d) if *d == self.dtype => formulas::encode(b, v, *d)?,
                _ => v,
            });
        }
        Ok(back)
    }

    fn widened_arg(&self, b: &mut Builder<'_>, arg: Arg, wide: DType) -> Result<Arg, OpError> {
        Ok(match arg {
            Arg::Value(v) if self.operands.contains(&v) => formulas::decode(b, v, self.dtype)?.into(),
            Arg::List(items) => {
                let items = items.into_iter().map(|a| self.widened_arg(b, a, wide));
                Arg::List(items.collect::<Result<_, OpError>>()?)
            }
            Arg::DType(d) if d == self.dtype => Arg::DType(wide),
            Arg::Scalar(Scalar::Int(i)) => Arg::from(Scalar::Int(self.dtype.wrap(i))),
            other => other,
        })
    }
}

/// A number that stands for an element of a dtype as the bits that carry it; what is no number stays.
fn bits_of(arg: &Arg, dtype: DType) -> Result<Arg, tensor::TensorError> {
    let Some(number) = arg.as_scalar() else { return Ok(arg.clone()) };
    let bits = Tensor::full(dtype, &[], number)?.view_bits(dtype.carrier())?;
    Ok(bits.item().map_or_else(|| arg.clone(), Arg::from))
}

/// The same bits as another dtype.
pub(crate) fn bitcast(b: &mut Builder<'_>, v: ValueId, to: DType) -> Result<ValueId, OpError> {
    if b.dtype(v)? == to {
        return Ok(v);
    }
    b.call1("prims.bitcast", vec![v.into(), to.into()])
}
