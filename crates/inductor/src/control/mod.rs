//! Control flow and data-dependent sizes while lowering: which values a call of a higher-order operator reads and defines,
//! and which definition binds which symbol. The steps are built in [`embed`], when all strides are known.

pub(crate) mod embed;
mod prepare;
pub(crate) mod steps;

use fx_ir::{Arg, Graph, NodeId, SubgraphId, ValueType};
use ir_core::{Atom, EntityId, SymExpr, SymId};
use kernel_ir::BufId;

use crate::Problem;
use crate::defs::Defs;

/// A call that becomes control flow. Its results are the definitions of kind [`Control`](crate::DefKind::Control) that
/// share it.
pub struct ControlCall {
    /// The node.
    pub(crate) node: NodeId,
    /// Its kind.
    pub(crate) kind: ControlKind,
}

/// An operand of a subgraph, or the source of a symbol's value.
#[derive(Clone, Debug)]
pub(crate) enum Operand {
    /// A definition that has memory.
    Tensor(BufId),
    /// An integer known from sizes and bound symbols.
    Int(SymExpr),
}

/// The kinds of control flow.
pub(crate) enum ControlKind {
    /// Binds a symbol from one number.
    Item {
        /// The symbol.
        symbol: SymId,
        /// The operand with the number.
        from: BufId,
    },
    /// Ends the call where the number is false.
    Assert {
        /// The operand with the truth value.
        pred: Operand,
        /// The message.
        message: String,
    },
    /// One of two subgraphs.
    Cond {
        /// The truth value.
        pred: Operand,
        /// The subgraph where it is true.
        then: SubgraphId,
        /// The subgraph where it is false.
        otherwise: SubgraphId,
        /// The operands of both.
        operands: Vec<Operand>,
    },
    /// Repeats a subgraph while another one yields true.
    While {
        /// The condition.
        test: SubgraphId,
        /// The body.
        body: SubgraphId,
        /// Initial values of the carried values.
        carried: Vec<Operand>,
        /// Operands that both read unchanged.
        fixed: Vec<Operand>,
    },
    /// A subgraph over slices along dimension 0 (`map` carries nothing).
    Scan {
        /// The body.
        body: SubgraphId,
        /// Initial values of the carried values.
        carried: Vec<Operand>,
        /// The sliced operands.
        xs: Vec<BufId>,
        /// Operands that are read unchanged.
        fixed: Vec<Operand>,
    },
    /// `out[i + 1] = body(out[i], xs[i + 1])`.
    Associative {
        /// The combining function.
        body: SubgraphId,
        /// The operands that are combined along dimension 0.
        xs: Vec<BufId>,
        /// Operands that are read unchanged.
        fixed: Vec<Operand>,
    },
}

impl ControlCall {
    /// The definitions that it reads.
    pub(crate) fn reads(&self) -> Vec<BufId> {
        let mut reads = Vec::new();
        let mut more = |operands: &[Operand]| {
            reads.extend(
                operands.iter().filter_map(|o| if let Operand::Tensor(b) = o { Some(*b) } else { None }),
            );
        };
        match &self.kind {
            ControlKind::Item { from, .. } => reads.push(*from),
            ControlKind::Assert { pred, .. } => more(std::slice::from_ref(pred)),
            ControlKind::Cond { pred, operands, .. } => {
                more(std::slice::from_ref(pred));
                more(operands);
            }
            ControlKind::While { carried, fixed, .. } => {
                more(carried);
                more(fixed);
            }
            ControlKind::Scan { carried, xs, fixed, .. } => {
                more(carried);
                more(fixed);
                reads.extend(xs);
            }
            ControlKind::Associative { xs, fixed, .. } => {
                more(fixed);
                reads.extend(xs);
            }
        }
        reads
    }

    /// The integer expressions that it reads.
    pub(crate) fn expressions(&self) -> Vec<&SymExpr> {
        let lists: Vec<&[Operand]> = match &self.kind {
            ControlKind::Item { .. } => vec![],
            ControlKind::Assert { pred, .. } => vec![std::slice::from_ref(pred)],
            ControlKind::Cond { pred, operands, .. } => vec![std::slice::from_ref(pred), operands],
            ControlKind::While { carried, fixed, .. } | ControlKind::Scan { carried, fixed, .. } => {
                vec![carried, fixed]
            }
            ControlKind::Associative { fixed, .. } => vec![fixed],
        };
        let int = |o: &'_ Operand| matches!(o, Operand::Int(_));
        let ints = lists.into_iter().flatten().filter(|o| int(o));
        ints.filter_map(|o| if let Operand::Int(e) = o { Some(e) } else { None }).collect()
    }
}

/// Whether a call is control flow, binds a symbol or asserts.
pub(crate) fn is_control(target: &str) -> bool {
    target.starts_with("higher_order.") || matches!(target, "prims.item" | "prims.assert")
}

/// The control flow of a call.
pub(crate) fn read(graph: &Graph, id: NodeId, target: &str, args: &[Arg]) -> Result<ControlCall, Problem> {
    let refuse = |what: &str| Problem::of(graph, id, what);
    let one = |arg: &Arg| {
        operand(graph, arg).ok_or_else(|| refuse("has an operand that is neither a tensor nor an integer"))
    };
    let list = |args: &[Arg]| -> Result<Vec<Operand>, Problem> { flat(args).into_iter().map(one).collect() };
    let tensors = |arg: &Arg| -> Result<Vec<BufId>, Problem> {
        let tensor = |o| match o {
            Operand::Tensor(b) => Ok(b),
            Operand::Int(_) => Err(refuse("goes over something that is no tensor")),
        };
        list(std::slice::from_ref(arg))?.into_iter().map(tensor).collect()
    };
    let kind = match (target.trim_start_matches("higher_order."), args) {
        ("prims.item", [Arg::Value(v)]) => {
            let out = graph.nodes[id].outputs.first().map(|v| &graph.values[*v].ty);
            let Some(ValueType::Int(e)) = out else { return Err(refuse("gives no integer")) };
            let symbol = e.as_sym().ok_or_else(|| refuse("gives an integer that is no symbol"))?;
            ControlKind::Item { symbol, from: BufId(v.0) }
        }
        ("prims.assert", [pred, Arg::Str(message)]) => {
            ControlKind::Assert { pred: one(pred)?, message: message.to_string() }
        }
        ("cond", [pred, Arg::Graph(then), Arg::Graph(otherwise), rest @ ..]) => {
            ControlKind::Cond { pred: one(pred)?, then: *then, otherwise: *otherwise, operands: list(rest)? }
        }
        ("while_loop", [Arg::Graph(test), Arg::Graph(body), carried, rest @ ..]) => ControlKind::While {
            test: *test,
            body: *body,
            carried: list(std::slice::from_ref(carried))?,
            fixed: list(rest)?,
        },
        ("scan", [Arg::Graph(body), carried, xs, rest @ ..]) => ControlKind::Scan {
            body: *body,
            carried: list(std::slice::from_ref(carried))?,
            xs: tensors(xs)?,
            fixed: list(rest)?,
        },
        ("map" | "map_impl", [Arg::Graph(body), xs, rest @ ..]) => {
            ControlKind::Scan { body: *body, carried: Vec::new(), xs: tensors(xs)?, fixed: list(rest)? }
        }
        ("associative_scan", [Arg::Graph(body), xs, rest @ ..]) => {
            ControlKind::Associative { body: *body, xs: tensors(xs)?, fixed: list(rest)? }
        }
        _ => return Err(refuse("is no control flow that compiles; run this model with the backend `eager`")),
    };
    if matches!(&kind, ControlKind::Scan { xs, .. } | ControlKind::Associative { xs, .. } if xs.is_empty()) {
        return Err(refuse("goes over nothing"));
    }
    Ok(ControlCall { node: id, kind })
}

/// All items of nested lists.
fn flat(args: &[Arg]) -> Vec<&Arg> {
    let mut all = Vec::new();
    for arg in args {
        match arg {
            Arg::List(items) => all.extend(flat(items)),
            other => all.push(other),
        }
    }
    all
}

fn operand(graph: &Graph, arg: &Arg) -> Option<Operand> {
    match arg {
        Arg::Value(v) => match &graph.values.get(*v)?.ty {
            ValueType::Tensor(_) => Some(Operand::Tensor(BufId(v.0))),
            ValueType::Int(e) => Some(Operand::Int(e.clone())),
            _ => None,
        },
        Arg::Int(e) => Some(Operand::Int(e.clone())),
        Arg::Scalar(s @ (ir_core::Scalar::Bool(_) | ir_core::Scalar::Int(_))) => {
            Some(Operand::Int(SymExpr::from_i64(s.as_i64())))
        }
        _ => None,
    }
}

/// Calls `visit` for every symbol of an expression.
pub(crate) fn symbols_of(e: &SymExpr, visit: &mut dyn FnMut(SymId)) {
    e.for_each_leaf(&mut |a| {
        if let Atom::Sym(id) = a {
            visit(*id);
        }
    });
}

impl Defs {
    /// The definitions that bind the unbacked symbols of these expressions.
    pub(crate) fn binders_of<'a>(&self, exprs: impl IntoIterator<Item = &'a SymExpr>) -> Vec<BufId> {
        let mut found = Vec::new();
        for e in exprs {
            symbols_of(e, &mut |id| found.extend(self.binders.get(&id).copied()));
        }
        found.sort_unstable();
        found.dedup();
        found
    }

    /// A definition for a node without results.
    pub(crate) fn anonymous(&self) -> BufId {
        BufId::from_index(self.list.len())
    }
}
