//! Integers that a program is given and only computes with: read as tensors, so that no symbol is bound, shapes stay what
//! they are, and no backend waits for a number before it goes on.
//!
//! `prims.item` of an input binds a symbol; where that stands in no size, and elsewhere only as an operand of scalar
//! operators and as the value of `prims.full`, these read the tensor instead. The range of the symbol is then checked by
//! whoever has the inputs of a call. Not here: numbers that a program computes, whose range only `prims.item` can check.

use fx_ir::{Arg, Graph, InputKind, Node, NodeId, NodeKind, ValueId, ValueType};
use ir_core::{Atom, DType, SymExpr, SymId};
use kernel_ir::{DTypeRule, ScalarOp};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::scalars::ITEM;
use crate::{Builder, Kind, Lower, OpError, lookup};

/// Reads given integers as tensors wherever that is possible.
pub(crate) fn read_as_tensors(graph: &mut Graph) {
    let mut sources = given(graph);
    if !sources.is_empty() {
        let in_sizes = symbols_in_sizes(graph);
        sources.retain(|id, _| !in_sizes.contains(id));
    }
    if sources.is_empty() {
        return;
    }
    let before = graph.clone();
    let mut pass = Pass { sources, numbers: FxHashMap::default(), renamed: FxHashMap::default() };
    // What a rule refuses keeps its symbol.
    if pass.run(graph).is_err() {
        *graph = before;
        return;
    }
    // No call binds it any more, so that readers that know no such calls take the program.
    pass.sources.keys().for_each(|id| graph.symbols[*id].unbacked = false);
}

/// The symbols that `prims.item` binds from an input of a call, and the inputs.
fn given(graph: &Graph) -> FxHashMap<SymId, ValueId> {
    let users: FxHashSet<ValueId> =
        graph.inputs().filter(|(_, kind, _)| *kind == InputKind::User).map(|(v, _, _)| v).collect();
    let item = |(_, node): (NodeId, &Node)| match node.as_call()? {
        (ITEM, [Arg::Value(v)]) if users.contains(v) && graph.meta(*v)?.dtype == DType::I64 => {
            Some((bound_by(graph, node)?, *v))
        }
        _ => None,
    };
    graph.iter().filter_map(item).collect()
}

fn bound_by(graph: &Graph, node: &Node) -> Option<SymId> {
    match &graph.values[*node.outputs.first()?].ty {
        ValueType::Int(e) => e.as_sym(),
        _ => None,
    }
}

/// The symbols that stand where only an integer can.
fn symbols_in_sizes(graph: &Graph) -> FxHashSet<SymId> {
    let mut found = FxHashSet::default();
    for (_, node) in graph.iter() {
        let Some((target, args)) = node.as_call() else {
            node.outputs.iter().for_each(|&v| of_type(&graph.values[v].ty, &mut found));
            continue;
        };
        // What an item binds is its own.
        if target != ITEM {
            node.outputs.iter().for_each(|&v| of_type(&graph.values[v].ty, &mut found));
        }
        for (n, arg) in args.iter().enumerate() {
            if !(matches!(arg, Arg::Int(_)) && takes_tensor(target, n)) {
                of_arg(arg, &mut found);
            }
        }
    }
    graph.outputs.iter().for_each(|o| of_arg(&o.arg, &mut found));
    for subgraph in graph.subgraphs.values() {
        found.extend(symbols_in_sizes(subgraph));
        let calls = subgraph.iter().filter_map(|(_, node)| node.as_call());
        calls.for_each(|(_, args)| args.iter().for_each(|a| of_arg(a, &mut found)));
    }
    found
}

/// Whether argument `n` of a prim may be a tensor as well as an integer.
fn takes_tensor(target: &str, n: usize) -> bool {
    scalar_op(target).is_some() || (target == "prims.full" && n == 1)
}

/// The scalar operator that a prim applies to every element.
fn scalar_op(target: &str) -> Option<ScalarOp> {
    match &lookup(target)?.def.kind {
        Kind::Prim { lower: Lower::Scalar(op), .. } => Some(*op),
        _ => None,
    }
}

fn of_type(ty: &ValueType, found: &mut FxHashSet<SymId>) {
    match ty {
        ValueType::Tensor(m) => {
            m.sizes.iter().chain(&m.strides).chain([&m.offset]).for_each(|e| symbols_of(e, found));
        }
        ValueType::Int(e) => symbols_of(e, found),
        _ => {}
    }
}

fn of_arg(arg: &Arg, found: &mut FxHashSet<SymId>) {
    match arg {
        Arg::Int(e) => symbols_of(e, found),
        Arg::List(items) => items.iter().for_each(|a| of_arg(a, found)),
        _ => {}
    }
}

fn symbols_of(e: &SymExpr, found: &mut FxHashSet<SymId>) {
    e.for_each_leaf(&mut |atom| {
        if let Atom::Sym(id) = atom {
            found.insert(*id);
        }
    });
}

struct Pass {
    /// The inputs to read instead of symbols.
    sources: FxHashMap<SymId, ValueId>,
    /// Expressions of these symbols that are tensors already.
    numbers: FxHashMap<SymExpr, ValueId>,
    /// New values of calls that were replaced.
    renamed: FxHashMap<ValueId, ValueId>,
}

impl Pass {
    fn run(&mut self, graph: &mut Graph) -> Result<(), OpError> {
        let order = std::mem::take(&mut graph.order);
        for id in order {
            let node = graph.nodes[id].clone();
            let NodeKind::Call { target, mut args } = node.kind.clone() else {
                graph.order.push(id);
                continue;
            };
            if target == ITEM && bound_by(graph, &node).is_some_and(|s| self.sources.contains_key(&s)) {
                continue;
            }
            args.iter_mut().for_each(|a| a.for_each_value_mut(&mut |v| *v = self.now(*v)));
            if args.iter().any(|a| matches!(a, Arg::Int(e) if self.is_given(e))) {
                self.call(graph, &node, &target, args)?;
                continue;
            }
            graph.nodes[id].kind = NodeKind::Call { target, args };
            graph.order.push(id);
        }
        for output in &mut graph.outputs {
            output.arg.for_each_value_mut(&mut |v| *v = self.now(*v));
        }
        Ok(())
    }

    fn now(&self, v: ValueId) -> ValueId {
        self.renamed.get(&v).copied().unwrap_or(v)
    }

    fn is_given(&self, e: &SymExpr) -> bool {
        e.any_leaf(|a| matches!(a, Atom::Sym(id) if self.sources.contains_key(id)))
    }

    /// The call with tensors for the integers that it reads.
    fn call(&mut self, graph: &mut Graph, node: &Node, target: &str, args: Vec<Arg>) -> Result<(), OpError> {
        let Some(&old) = node.outputs.first() else { return Ok(()) };
        let meta = graph.meta(old).cloned();
        let name = graph.values[old].name.clone();
        let b = &mut Builder::new(graph, name.as_str(), node.origin);
        let meta = meta.map_or_else(|| b.meta(old).cloned(), Ok)?;
        let made = match (scalar_op(target), &args[..]) {
            (Some(op), args) => self.operator(b, op, args, &meta.sizes)?,
            (None, [_, Arg::Int(e), ..]) => self.number(b, e)?,
            _ => return Err(OpError::Unknown(target.into())),
        };
        let made = b.cast(made, meta.dtype)?;
        let made = b.expand(made, &meta.sizes)?;
        self.renamed.insert(old, made);
        Ok(())
    }

    /// A scalar operator. Arithmetic sees the integer in the dtype in which it is done, never rounded to 16 bits.
    fn operator(
        &mut self,
        b: &mut Builder<'_>,
        op: ScalarOp,
        args: &[Arg],
        sizes: &[SymExpr],
    ) -> Result<ValueId, OpError> {
        let mask = usize::from(op.dtype_rule() == DTypeRule::Select);
        let tensor = args.iter().skip(mask).find_map(|a| if let Arg::Value(v) = a { Some(*v) } else { None });
        // Operands that are numbers alone are of the kind that the result has.
        let dtype = tensor.map_or(Ok(DType::I64), |v| b.dtype(v))?.compute();
        let mut operands = Vec::with_capacity(args.len());
        for (n, arg) in args.iter().enumerate() {
            operands.push(match arg {
                Arg::Int(e) if self.is_given(e) => {
                    let number = self.number(b, e)?;
                    let number = b.cast(number, dtype)?;
                    Arg::Value(b.expand(number, sizes)?)
                }
                Arg::Value(v) if n >= mask => Arg::Value(b.cast(*v, dtype)?),
                other => other.clone(),
            });
        }
        b.scalar_op(op, &operands)
    }

    /// An integer expression as a tensor without dimensions.
    fn number(&mut self, b: &mut Builder<'_>, e: &SymExpr) -> Result<ValueId, OpError> {
        if let Some(&known) = self.numbers.get(e) {
            return Ok(known);
        }
        let made = if self.is_given(e) { self.computed(b, e)? } else { full(b, e)? };
        self.numbers.insert(e.clone(), made);
        Ok(made)
    }

    fn computed(&mut self, b: &mut Builder<'_>, e: &SymExpr) -> Result<ValueId, OpError> {
        let (terms, constant) = e.terms();
        let mut sum: Option<ValueId> = None;
        for (coef, factors) in terms {
            let mut product: Option<ValueId> = None;
            for factor in factors {
                let factor = self.factor(b, factor)?;
                product = Some(match product {
                    Some(p) => b.scalar_op(ScalarOp::Mul, &[p.into(), factor.into()])?,
                    None => factor,
                });
            }
            let Some(mut term) = product else { continue };
            if coef != 1 {
                term = b.scalar_op(ScalarOp::Mul, &[term.into(), Arg::int(coef)])?;
            }
            sum = Some(match sum {
                Some(s) => b.scalar_op(ScalarOp::Add, &[s.into(), term.into()])?,
                None => term,
            });
        }
        match sum {
            Some(s) if constant == 0 => Ok(s),
            Some(s) => b.scalar_op(ScalarOp::Add, &[s.into(), Arg::int(constant)]),
            None => full(b, e),
        }
    }

    fn factor(&mut self, b: &mut Builder<'_>, atom: &Atom) -> Result<ValueId, OpError> {
        let (target, pair) = match atom {
            Atom::Sym(id) => {
                return match self.sources.get(id) {
                    Some(source) => Ok(*source),
                    None => self.number(b, &SymExpr::sym(*id)),
                };
            }
            Atom::FloorDiv(pair) => ("aten.floor_divide.default", pair),
            Atom::Mod(pair) => ("aten.remainder.Tensor", pair),
            Atom::Min(pair) => ("aten.minimum.default", pair),
            Atom::Max(pair) => ("aten.maximum.default", pair),
            Atom::Loop(_) | Atom::Value(_) => return Err(OpError::Unknown(format!("{atom:?}"))),
        };
        let operands = [self.number(b, &pair.0)?, self.number(b, &pair.1)?];
        b.call1(target, operands.into_iter().map(Arg::Value).collect())
    }
}

fn full(b: &mut Builder<'_>, e: &SymExpr) -> Result<ValueId, OpError> {
    b.call1("prims.full", vec![Arg::List(Vec::new()), Arg::Int(e.clone()), DType::I64.into()])
}
