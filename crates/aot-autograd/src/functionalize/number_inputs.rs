//! Numbers that the caller passes (`f(x, k)` with an integer `k`) become tensors without dimensions, so that backends
//! receive only tensors: integers as `i64`, floats as `f64`, truth values as `bool`. `aten.item` reads the number again,
//! and binds the symbol of an integer that the sizes of the tensors do not determine.
//!
//! Not here: numbers that a program returns ([`super::numbers`]), and integers that are only computed with, which need no
//! symbol (`prims::decompose`). The consistency of a number with the sizes, and guards on such integers, are checked before
//! a call, by the code that has the call's inputs.

use fx_ir::{Arg, Graph, InputKind, NodeKind, OriginId, Symbol, ValueId, ValueType};
use ir_core::{Atom, DType, Shape, SymExpr, SymId, TensorMeta, contiguous_strides};
use rustc_hash::FxHashSet;

use super::{FunctionalizeError, FunctionalizeProblem};

/// The same program with tensors for numbers; `None` if no input is a number.
pub(super) fn to_tensors(graph: &Graph) -> Result<Option<Graph>, FunctionalizeError> {
    let is_number = |ty: &ValueType| matches!(ty, ValueType::Int(_) | ValueType::Float | ValueType::Bool);
    let users = graph.inputs().filter(|(v, kind, _)| {
        *kind == InputKind::User && graph.values.get(*v).is_some_and(|value| is_number(&value.ty))
    });
    let numbers: Vec<ValueId> = users.map(|(v, _, _)| v).collect();
    if numbers.is_empty() {
        return Ok(None);
    }
    let mut pass = Pass::new(graph);
    let mut integers = Vec::new();
    for v in numbers {
        match pass.out.values[v].ty.clone() {
            ValueType::Int(e) => {
                pass.replace(v, &Arg::Int(e.clone()));
                integers.push((v, e));
            }
            ty => pass.read(v, ty),
        }
    }
    pass.integers(integers)?;
    pass.sizes_of_bound_symbols()?;
    Ok(Some(pass.finish()))
}

struct Pass {
    out: Graph,
    /// The number of nodes in the order before nodes are added here.
    before: usize,
    /// Symbols that the sizes of tensors determine.
    sized: FxHashSet<SymId>,
    /// Symbols that numbers bind.
    bound: FxHashSet<SymId>,
}

impl Pass {
    fn new(graph: &Graph) -> Pass {
        let metas = graph.inputs().filter_map(|(v, _, _)| graph.meta(v));
        let sized = metas.flat_map(|m| &m.sizes).filter_map(symbol_determined_by).collect();
        Pass { out: graph.clone(), before: graph.order.len(), sized, bound: FxHashSet::default() }
    }

    fn is_known(&self, id: SymId) -> bool {
        self.sized.contains(&id) || self.bound.contains(&id)
    }

    /// Makes every reader of a value read `by` instead.
    fn replace(&mut self, v: ValueId, by: &Arg) {
        for &id in &self.out.order[..self.before] {
            if let NodeKind::Call { args, .. } = &mut self.out.nodes[id].kind {
                args.iter_mut().for_each(|a| replace_in(a, v, by));
            }
        }
        self.out.outputs.iter_mut().for_each(|o| replace_in(&mut o.arg, v, by));
    }

    /// Turns a placeholder into a tensor; returns its former name.
    fn as_tensor(&mut self, v: ValueId, dtype: DType) -> String {
        let value = &mut self.out.values[v];
        value.ty = ValueType::Tensor(TensorMeta::contiguous(dtype, Shape::new()));
        value.name.clone()
    }

    /// A float or a truth value: its readers read the one number of the tensor.
    fn read(&mut self, v: ValueId, ty: ValueType) {
        let dtype = if ty == ValueType::Bool { DType::Bool } else { DType::F64 };
        let name = self.as_tensor(v, dtype);
        let number = self.call("aten.item.default", vec![v.into()], &name, ty);
        self.replace(v, &number.into());
    }

    fn call(&mut self, target: &str, args: Vec<Arg>, name: &str, ty: ValueType) -> ValueId {
        self.out.call(target, args, [(name, ty)], OriginId(0))[0]
    }

    /// Binds the symbols of the integers: first those that are one symbol each, then those that one unknown symbol
    /// determines.
    fn integers(&mut self, integers: Vec<(ValueId, SymExpr)>) -> Result<(), FunctionalizeError> {
        let mut open = Vec::with_capacity(integers.len());
        for (v, e) in integers {
            let name = self.as_tensor(v, DType::I64);
            match e.as_sym().filter(|id| !self.is_known(*id)) {
                Some(id) => self.bind(v, id, &name),
                None => open.push((v, e)),
            }
        }
        loop {
            open.retain(|(_, e)| self.unknown(e).next().is_some());
            let Some(first) = open.first() else { return Ok(()) };
            let solved = open.iter().find_map(|(v, e)| Some((*v, self.solved(e)?)));
            let Some((v, (id, coef, rest))) = solved else {
                return Err(self.undetermined(first.0, &first.1));
            };
            self.bind_through(v, id, coef, &rest);
        }
    }

    fn unknown<'e>(&self, e: &'e SymExpr) -> impl Iterator<Item = SymId> + use<'e> {
        let mut found = Vec::new();
        e.for_each_leaf(&mut |atom| match atom {
            Atom::Sym(id) if !self.is_known(*id) && !found.contains(id) => found.push(*id),
            _ => {}
        });
        found.into_iter()
    }

    /// The only unknown symbol of `coef * symbol + rest`.
    fn solved(&self, e: &SymExpr) -> Option<(SymId, i64, SymExpr)> {
        let mut unknown = self.unknown(e);
        let (Some(id), None) = (unknown.next(), unknown.next()) else { return None };
        let (coef, rest) = e.affine_in(&Atom::Sym(id))?;
        coef.as_const().filter(|c| *c != 0).map(|coef| (id, coef, rest))
    }

    fn bind(&mut self, from: ValueId, id: SymId, name: &str) {
        self.bound.insert(id);
        self.out.symbols[id].unbacked = true;
        let ty = ValueType::Int(SymExpr::sym(id));
        self.call("aten.item.default", vec![from.into()], name, ty);
    }

    /// Binds a symbol from an integer that is `coef * symbol + rest`.
    fn bind_through(&mut self, from: ValueId, id: SymId, coef: i64, rest: &SymExpr) {
        let name = self.out.values[from].name.clone();
        let whole = Symbol { name: name.clone(), min: i64::MIN, max: None, hint: None, unbacked: true };
        let whole = self.out.add_symbol(whole);
        self.bind(from, whole, &name);
        let part = (SymExpr::sym(whole) - rest).floor_div(&coef.into());
        let args = vec![Arg::Int(part), DType::I64.into(), Arg::None, Arg::None, Arg::None];
        let ty = ValueType::Tensor(TensorMeta::contiguous(DType::I64, Shape::new()));
        let part = self.call("aten.scalar_tensor.default", args, &name, ty);
        self.bind(part, id, &name);
    }

    /// A tensor whose size depends on such integers (`[k * j]`) becomes an input of a size known only at the call, from
    /// which as many elements are sliced: the sizes of inputs are known before any number is read.
    fn sizes_of_bound_symbols(&mut self) -> Result<(), FunctionalizeError> {
        let bound = self.bound.clone();
        let depends = |e: &SymExpr| e.any_leaf(|a| matches!(a, Atom::Sym(id) if bound.contains(id)));
        let inputs: Vec<ValueId> = self.out.inputs().map(|(v, _, _)| v).collect();
        for v in inputs {
            let Some(meta) = self.out.meta(v).cloned() else { continue };
            let expressions = || meta.sizes.iter().chain(&meta.strides).chain([&meta.offset]);
            if !expressions().any(depends) {
                continue;
            }
            let strided = meta.strides.iter().chain([&meta.offset]).any(depends);
            if strided && !meta.is_contiguous() {
                return Err(self.undetermined(v, &meta.strides.iter().fold(SymExpr::ZERO, |sum, s| sum + s)));
            }
            let name = self.out.values[v].name.clone();
            let mut outer = meta.clone();
            for (d, size) in outer.sizes.iter_mut().enumerate().filter(|(_, e)| depends(e)) {
                let name = format!("{name}_{d}");
                let symbol = Symbol { name, min: 0, max: None, hint: None, unbacked: false };
                *size = SymExpr::sym(self.out.add_symbol(symbol));
            }
            if strided {
                (outer.strides, outer.offset) = (contiguous_strides(&outer.sizes), SymExpr::ZERO);
            }
            self.take(v, &name, &meta, outer);
        }
        Ok(())
    }

    /// Makes an input the part of `outer` that has the sizes of `meta`.
    fn take(&mut self, v: ValueId, name: &str, meta: &TensorMeta, outer: TensorMeta) {
        let mut part = outer.clone();
        self.out.values[v].ty = ValueType::Tensor(outer.clone());
        let mut now = v;
        for (d, (size, given)) in meta.sizes.iter().zip(&outer.sizes).enumerate() {
            if size != given {
                part.sizes[d] = size.clone();
                let args = vec![now.into(), Arg::int(d as i64), Arg::int(0), Arg::Int(size.clone())];
                now = self.call("aten.narrow.default", args, name, ValueType::Tensor(part.clone()));
            }
        }
        self.replace(v, &now.into());
    }

    fn undetermined(&self, v: ValueId, e: &SymExpr) -> FunctionalizeError {
        FunctionalizeError {
            node: self.out.values[v].name.clone(),
            target: "placeholder".into(),
            origin: Box::default(),
            problem: FunctionalizeProblem::Undetermined { expr: e.to_string() },
        }
    }

    /// The graph with the added nodes moved after the placeholders.
    fn finish(mut self) -> Graph {
        let added = self.out.order.split_off(self.before);
        let is_call = |id: &fx_ir::NodeId| matches!(self.out.nodes[*id].kind, NodeKind::Call { .. });
        let at = self.out.order.iter().position(is_call).unwrap_or(self.before);
        self.out.order.splice(at..at, added);
        // Only the caller has the inputs, so it checks guards on integer arguments, with those of the captured graph.
        let bound = |a: &Atom| matches!(a, Atom::Sym(id) if self.bound.contains(id));
        self.out.guards.retain(|guard| !guard.expression.any_leaf(bound));
        self.out
    }
}

/// The symbol that a size determines: the one of `factor * symbol + offset` with a positive factor. Backends bind symbols so.
fn symbol_determined_by(size: &SymExpr) -> Option<SymId> {
    let (terms, _) = size.terms();
    match terms[..] {
        [(factor, [Atom::Sym(id)])] if factor > 0 => Some(*id),
        _ => None,
    }
}

fn replace_in(arg: &mut Arg, v: ValueId, by: &Arg) {
    match arg {
        Arg::Value(other) if *other == v => *arg = by.clone(),
        Arg::List(items) => items.iter_mut().for_each(|a| replace_in(a, v, by)),
        _ => {}
    }
}
