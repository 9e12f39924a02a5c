//! Sizes as archives have them: sympy's `srepr` with hints, ranges of symbols, and the nodes that compute a size where an operator
//! takes one as an argument.

use fx_ir::{Graph, InputKind, ValueId, ValueType};
use ir_core::{Atom, SymExpr, SymId};
use serde_json::{Map, Value, json};

use super::graph::Writer;
use crate::error::Result;
use crate::json_path::JsonPath;

/// The smallest value that a hint is taken to be where the graph has none: capture treats 0 and 1 as special.
const LEAST_HINT: i64 = 2;

/// A size: a number, or an expression with its hint.
pub(super) fn size(graph: &Graph, e: &SymExpr) -> Value {
    if let Some(n) = e.as_const() {
        return json!({ "as_int": n });
    }
    let mut expr = json!({ "expr_str": srepr(graph, e), "hint": null });
    if let Some(hint) = e.eval(&|a| hint(graph, a)) {
        expr["hint"] = json!({ "as_int": hint });
    }
    json!({ "as_expr": expr })
}

/// The value of a symbol at capture; none for one that only the running program knows.
fn hint(graph: &Graph, atom: &Atom) -> Option<i64> {
    let Atom::Sym(id) = atom else { return None };
    let symbol = graph.symbols.get(*id).filter(|s| !s.unbacked)?;
    Some(symbol.likely(LEAST_HINT))
}

/// `min_val` and `max_val` of every symbol.
pub(super) fn ranges(graph: &Graph) -> Value {
    let bound = |n: i64| if n == i64::MIN || n == i64::MAX { Value::Null } else { json!(n) };
    let of = |s: &ir_core::Symbol| {
        let range = json!({ "min_val": bound(s.min), "max_val": s.max.map_or(Value::Null, bound) });
        (s.name.clone(), range)
    };
    graph.symbols.values().map(of).collect::<Map<_, _>>().into()
}

/// An expression in the form of sympy's `srepr`.
fn srepr(graph: &Graph, e: &SymExpr) -> String {
    if let Some(n) = e.as_const() {
        return format!("Integer({n})");
    }
    let (terms, constant) = e.terms();
    let mut sum: Vec<String> = terms.iter().map(|(factor, atoms)| product(graph, *factor, atoms)).collect();
    if constant != 0 {
        sum.push(format!("Integer({constant})"));
    }
    if sum.len() == 1 { sum.remove(0) } else { format!("Add({})", sum.join(", ")) }
}

fn product(graph: &Graph, factor: i64, atoms: &[Atom]) -> String {
    let mut all: Vec<String> = atoms.iter().map(|a| srepr_atom(graph, a)).collect();
    if factor != 1 {
        all.insert(0, format!("Integer({factor})"));
    }
    if all.len() == 1 { all.remove(0) } else { format!("Mul({})", all.join(", ")) }
}

fn srepr_atom(graph: &Graph, atom: &Atom) -> String {
    let two = |name: &str, pair: &(SymExpr, SymExpr)| {
        format!("{name}({}, {})", srepr(graph, &pair.0), srepr(graph, &pair.1))
    };
    match atom {
        Atom::Sym(id) => symbol(graph, *id),
        Atom::FloorDiv(pair) => two("FloorDiv", pair),
        Atom::Mod(pair) => two("Mod", pair),
        Atom::Min(pair) => two("Min", pair),
        Atom::Max(pair) => two("Max", pair),
        // Sizes of a graph have no loop variables and no values of kernels.
        Atom::Loop(n) | Atom::Value(n) => format!("Symbol('v{n}', integer=True)"),
    }
}

fn symbol(graph: &Graph, id: SymId) -> String {
    match graph.symbols.get(id) {
        Some(s) if s.unbacked => format!("Symbol('{}', integer=True)", s.name),
        Some(s) => format!("Symbol('{}', positive=True, integer=True)", s.name),
        None => format!("Symbol('s{}', positive=True, integer=True)", id.0),
    }
}

/// What each operation on sizes is called in an archive.
const ADD: &str = "_operator.add";
const MUL: &str = "_operator.mul";

impl Writer<'_> {
    /// The name of a node that has this value, made where there is none yet.
    ///
    /// # Errors
    /// `Unsupported` for a size that no input has.
    pub(super) fn sized(&mut self, e: &SymExpr, at: &JsonPath<'_>) -> Result<String> {
        if let Some(name) = self.made.get(e) {
            return Ok(name.clone());
        }
        let (terms, constant) = e.terms();
        let terms: Vec<(i64, Vec<Atom>)> = terms.into_iter().map(|(n, atoms)| (n, atoms.to_vec())).collect();
        let mut total: Option<(Value, SymExpr)> = None;
        for (factor, atoms) in terms {
            let mut term: Option<(Value, SymExpr)> = (factor != 1).then(|| number(factor));
            for atom in atoms {
                let one = self.atom(&atom, at)?;
                term = Some(match term {
                    Some(term) => self.operation(MUL, term, one, |a, b| a * b, at)?,
                    None => one,
                });
            }
            let Some(term) = term else { continue };
            total = Some(match total {
                Some(total) => self.operation(ADD, total, term, |a, b| a + b, at)?,
                None => term,
            });
        }
        let mut total = total.unwrap_or_else(|| number(0));
        if constant != 0 {
            total = self.operation(ADD, total, number(constant), |a, b| a + b, at)?;
        }
        self.made.get(&total.1).cloned().ok_or_else(|| self.unknown_size(e, at))
    }

    fn unknown_size(&self, e: &SymExpr, at: &JsonPath<'_>) -> crate::Pt2Error {
        let what = format!("an operator takes the size `{}`, which no input has", self.graph.size_text(e));
        at.unsupported(what, "export the model with sizes that inputs have")
    }

    /// An operand of a computation with sizes.
    fn atom(&mut self, atom: &Atom, at: &JsonPath<'_>) -> Result<(Value, SymExpr)> {
        let e = SymExpr::atom(atom.clone());
        if let Some(name) = self.made.get(&e) {
            return Ok((named(name), e));
        }
        type Two = fn(&SymExpr, &SymExpr) -> SymExpr;
        let (target, pair, apply): (&str, _, Two) = match atom {
            Atom::FloorDiv(pair) => ("_operator.floordiv", pair, SymExpr::floor_div),
            Atom::Mod(pair) => ("_operator.mod", pair, SymExpr::modulo),
            Atom::Min(pair) => ("torch.sym_min", pair, SymExpr::sym_min),
            Atom::Max(pair) => ("torch.sym_max", pair, SymExpr::sym_max),
            Atom::Sym(_) | Atom::Loop(_) | Atom::Value(_) => {
                let name = self.read_size(&e, at)?;
                return Ok((named(&name), e));
            }
        };
        let (a, b) = (self.operand(&pair.0, at)?, self.operand(&pair.1, at)?);
        self.operation(target, a, b, apply, at)
    }

    fn operand(&mut self, e: &SymExpr, at: &JsonPath<'_>) -> Result<(Value, SymExpr)> {
        match e.as_const() {
            Some(n) => Ok(number(n)),
            None => Ok((named(&self.sized(e, at)?), e.clone())),
        }
    }

    /// A node of Python's arithmetic.
    fn operation(
        &mut self,
        target: &str,
        a: (Value, SymExpr),
        b: (Value, SymExpr),
        apply: impl Fn(&SymExpr, &SymExpr) -> SymExpr,
        _: &JsonPath<'_>,
    ) -> Result<(Value, SymExpr)> {
        let e = apply(&a.1, &b.1);
        if let Some(n) = e.as_const() {
            return Ok(number(n));
        }
        if let Some(name) = self.made.get(&e) {
            return Ok((named(name), e));
        }
        let inputs = [a.0, b.0].map(|arg| json!({ "name": "", "arg": { "as_sym_int": arg }, "kind": 1 }));
        let name = self.fresh("size");
        self.size_node(target, inputs.to_vec(), &name, &e);
        Ok((named(&name), e))
    }

    /// The nodes that read a symbol from an input whose size it is, or a multiple of it.
    fn read_size(&mut self, e: &SymExpr, at: &JsonPath<'_>) -> Result<String> {
        let (v, dim, size, multiple) = self.dimension_of(e).ok_or_else(|| self.unknown_size(e, at))?;
        if let Some(name) = self.made.get(&size) {
            return self.part(name.clone(), (size, multiple), e, at);
        }
        let name = self.fresh("sym_size_int");
        let inputs = vec![
            json!({ "name": "self", "arg": { "as_tensor": { "name": self.names[&v] } }, "kind": 1 }),
            json!({ "name": "dim", "arg": { "as_int": dim }, "kind": 1 }),
        ];
        self.size_node("torch.ops.aten.sym_size.int", inputs, &name, &size);
        self.part(name, (size, multiple), e, at)
    }

    /// The node that divides a multiple of a size.
    fn part(
        &mut self,
        name: String,
        (size, multiple): (SymExpr, i64),
        e: &SymExpr,
        at: &JsonPath<'_>,
    ) -> Result<String> {
        if multiple == 1 {
            return Ok(name);
        }
        self.operation("_operator.floordiv", (named(&name), size), number(multiple), SymExpr::floor_div, at)?;
        self.made.get(e).cloned().ok_or_else(|| self.unknown_size(e, at))
    }

    /// An input and its dimension whose size is a symbol times a positive number, the smallest first.
    fn dimension_of(&self, e: &SymExpr) -> Option<(ValueId, usize, SymExpr, i64)> {
        let multiple = |size: &SymExpr| {
            let (terms, constant) = size.terms();
            let [(factor, _)] = terms[..] else { return None };
            (constant == 0 && factor > 0 && *size == e * factor).then_some(factor)
        };
        let of_input = |v: ValueId| {
            let sizes = self.graph.meta(v).map(|m| m.sizes.iter().enumerate()).into_iter().flatten();
            sizes.filter_map(move |(dim, s)| multiple(s).map(|n| (v, dim, s.clone(), n)))
        };
        let users = self.graph.inputs().filter(|(_, kind, _)| *kind == InputKind::User);
        users.flat_map(|(v, ..)| of_input(v)).min_by_key(|(.., n)| *n)
    }

    fn size_node(&mut self, target: &str, inputs: Vec<Value>, name: &str, e: &SymExpr) {
        self.nodes.push(json!({
            "target": target,
            "inputs": inputs,
            "outputs": [{ "as_sym_int": { "as_name": name } }],
            "metadata": {},
            "is_hop_single_tensor_return": null,
            "name": name,
        }));
        self.sym_ints.insert(name.to_owned(), size(self.graph, e));
        self.made.insert(e.clone(), name.to_owned());
    }

    /// Remembers that a value is this integer.
    pub(super) fn integer(&mut self, v: ValueId) {
        if let ValueType::Int(e) = &self.graph.values[v].ty {
            let name = self.names[&v].clone();
            self.sym_ints.insert(name.clone(), size(self.graph, e));
            self.made.insert(e.clone(), name);
        }
    }
}

fn named(name: &str) -> Value {
    json!({ "as_name": name })
}

fn number(n: i64) -> (Value, SymExpr) {
    (json!({ "as_int": n }), SymExpr::from_i64(n))
}
