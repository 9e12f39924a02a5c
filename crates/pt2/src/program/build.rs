//! Builds the graph: nodes in order, their outputs as values, symbolic integers as expressions.
//!
//! A node that only computes with sizes (`aten.sym_size.int`, `_operator.mul`) defines no value where its result is known
//! as an expression: its users get the expression. Higher-order wrappers are handled in `inline`, assertions in
//! `asserts`.

use fx_ir::{Arg, Graph, InputKind, OriginId, Output, OutputKind, ValueId, ValueType};
use ir_core::SymExpr;

use super::complete;
use super::inline::Mode;
use super::origin;
use super::scope::Scope;
use super::symbols::Symbols;
use crate::error::{Result, shorten};
use crate::json_path::JsonPath;
use crate::limits::Limits;
use crate::schema::{self, Argument};
use crate::sym::Value;

/// State over all graphs of one program.
pub(super) struct Builder<'a> {
    pub(super) symbols: Symbols<'a>,
    pub(super) limits: Limits,
    /// The modes that the wrappers around the current nodes request.
    pub(super) mode: Mode,
    /// Whether a tensor of the `meta` device was seen.
    pub(super) moved_from_meta: bool,
}

/// A value that a node defines: its name in the archive and its type.
type Made<'a> = (&'a str, ValueType);

impl<'a> Builder<'a> {
    /// A body of a higher-order operator. Its inputs are ordinary inputs.
    pub(super) fn subgraph(
        &mut self,
        source: &'a schema::Graph<'a>,
        name: &str,
        depth: usize,
        at: &JsonPath<'_>,
    ) -> Result<Graph> {
        if depth > self.limits.graph_depth {
            return Err(
                at.invalid(format!("subgraphs are nested more than {} deep", self.limits.graph_depth))
            );
        }
        let at = at.field("graph");
        let mut out = Graph::new(name);
        let mut scope = Scope::new(source, &at)?;
        for (i, input) in source.inputs.iter().enumerate() {
            let at = at.field("inputs");
            self.input(&mut out, &mut scope, input, &at.item(i))?;
        }
        self.nodes(&mut out, &mut scope, source, depth, &at)?;
        let outputs = at.field("outputs");
        for (i, output) in source.outputs.iter().enumerate() {
            let arg = self.arg(&mut out, &scope, output, depth, &outputs.item(i))?;
            out.outputs.push(Output { kind: OutputKind::User, arg });
        }
        drop_unused_symbolics(&mut out);
        Ok(out)
    }

    /// An input of a subgraph.
    fn input(
        &mut self,
        out: &mut Graph,
        scope: &mut Scope<'a>,
        input: &'a Argument<'a>,
        at: &JsonPath<'_>,
    ) -> Result<()> {
        match self.input_type(scope, input, at)? {
            Some((name, ty)) => {
                self.placeholder(out, scope, (InputKind::User, name), name, ty, at)?;
                Ok(())
            }
            // A constant operand has no name and so no user, but keeps its position.
            None => {
                let name = format!("constant_{}", out.nodes.len());
                out.placeholder(InputKind::User, &name, &name, ValueType::None);
                Ok(())
            }
        }
    }

    /// Name and type of a graph input; `None` for a constant.
    pub(super) fn input_type(
        &mut self,
        scope: &Scope<'a>,
        input: &'a Argument<'a>,
        at: &JsonPath<'_>,
    ) -> Result<Option<Made<'a>>> {
        Ok(Some(match input {
            Argument::AsTensor(t) => (&*t.name, self.tensor_type(scope, &t.name, at)?),
            Argument::AsSymInt(schema::SymIntArgument::AsName(name)) => {
                (&**name, self.int_type(scope, name, at)?)
            }
            Argument::AsSymFloat(schema::SymFloatArgument::AsName(name)) => (&**name, ValueType::Float),
            Argument::AsSymBool(schema::SymBoolArgument::AsName(name)) => (&**name, ValueType::Bool),
            Argument::AsCustomObj(object) => return Err(super::args::custom_object(object, at)),
            _ => return Ok(None),
        }))
    }

    /// Adds an input and binds its name; an integer is bound to its expression.
    pub(super) fn placeholder(
        &mut self,
        out: &mut Graph,
        scope: &mut Scope<'a>,
        (kind, outside): (InputKind, &str),
        name: &'a str,
        ty: ValueType,
        at: &JsonPath<'_>,
    ) -> Result<ValueId> {
        let expr = match &ty {
            ValueType::Int(expr) => Some(expr.clone()),
            _ => None,
        };
        let value = out.placeholder(kind, outside, name, ty);
        scope.bind(name, expr.map_or(Arg::Value(value), Arg::Int), at)?;
        Ok(value)
    }

    /// All nodes of an archive graph, appended to `out`.
    pub(super) fn nodes(
        &mut self,
        out: &mut Graph,
        scope: &mut Scope<'a>,
        source: &'a schema::Graph<'a>,
        depth: usize,
        at: &JsonPath<'_>,
    ) -> Result<()> {
        let nodes = at.field("nodes");
        for (i, node) in source.nodes.iter().enumerate() {
            self.node(out, scope, node, depth, &nodes.item(i))?;
        }
        Ok(())
    }

    fn node(
        &mut self,
        out: &mut Graph,
        scope: &mut Scope<'a>,
        node: &'a schema::Node<'a>,
        depth: usize,
        at: &JsonPath<'_>,
    ) -> Result<()> {
        let target = node.target.strip_prefix("torch.ops.").unwrap_or(&node.target);
        if target.is_empty() || target.len() > 1024 {
            return Err(at.field("target").invalid("an operator without a proper name"));
        }
        if self.assertion(scope, target, node, at)? {
            return Ok(());
        }
        let origin = out.add_origin(origin::read(&node.metadata, self.mode.precisions));
        if super::inline::is_wrapper(target) {
            return self.inline(out, scope, target, node, origin, depth, at);
        }
        if is_symbolic(target) && self.bind_known(scope, node, at)? {
            return Ok(());
        }
        self.call(out, scope, target, node, origin, depth, at)
    }

    /// Binds the outputs of a node that computes with sizes to the expressions that the archive has for them. `false` where
    /// it
    /// has no integer expression.
    fn bind_known(
        &mut self,
        scope: &mut Scope<'a>,
        node: &'a schema::Node<'a>,
        at: &JsonPath<'_>,
    ) -> Result<bool> {
        let [output] = &node.outputs[..] else { return Ok(false) };
        let at = at.field("outputs");
        let (name, known) = match output {
            Argument::AsSymInt(schema::SymIntArgument::AsName(name)) => {
                (name, Arg::Int(self.symbols.int(scope.int(name, &at)?, &at)?))
            }
            Argument::AsSymBool(schema::SymBoolArgument::AsName(name)) => match scope.truth(name) {
                Some(schema::SymBool::AsBool(b)) => (name, (*b).into()),
                Some(schema::SymBool::AsExpr(e)) => match self.symbols.value(&e.expr_str) {
                    Some(Value::Truth(e)) if e.as_const().is_some() => (name, (e == SymExpr::ONE).into()),
                    _ => return Ok(false),
                },
                None => return Ok(false),
            },
            Argument::AsSymFloat(schema::SymFloatArgument::AsName(name)) => match scope.float(name) {
                Some(schema::SymFloat::AsFloat(x)) => (name, x.0.into()),
                Some(schema::SymFloat::AsExpr(e)) => match self.symbols.value(&e.expr_str).and_then(constant)
                {
                    Some(x) => (name, x.into()),
                    None => return Ok(false),
                },
                None => return Ok(false),
            },
            _ => return Ok(false),
        };
        scope.bind(name, known, &at)?;
        Ok(true)
    }

    /// An operator call with its arguments in schema order.
    #[expect(clippy::too_many_arguments, reason = "the state of a recursive descent, passed on as it is")]
    fn call(
        &mut self,
        out: &mut Graph,
        scope: &mut Scope<'a>,
        target: &str,
        node: &'a schema::Node<'a>,
        origin: OriginId,
        depth: usize,
        at: &JsonPath<'_>,
    ) -> Result<()> {
        let mut given = Vec::with_capacity(node.inputs.len());
        let inputs = at.field("inputs");
        for (i, input) in node.inputs.iter().enumerate() {
            let arg = self.arg(out, scope, &input.arg, depth, &inputs.item(i))?;
            given.push((&*input.name, arg));
        }
        let mut made = Vec::new();
        let outputs = at.field("outputs");
        for (i, output) in node.outputs.iter().enumerate() {
            self.made(scope, node, output, &mut made, &outputs.item(i))?;
        }
        let types = made.iter().map(|(_, ty)| int_of(ty)).collect::<Vec<_>>();
        let names = made.iter().map(|(name, _)| *name).collect::<Vec<_>>();
        let values = match super::out::form(out, target, &given, &made) {
            Some(form) => super::out::call(out, &form, given, made, origin, at)?,
            None => {
                let mut args = complete::positional(target, given, at)?;
                self.autocast(out, target, &mut args, &made, origin);
                super::unique::correct(out, target, &args, &mut made);
                out.call(target, args, made, origin).into_iter().collect()
            }
        };
        for ((name, ty), value) in names.into_iter().zip(types).zip(values) {
            scope.bind(name, ty.map_or(Arg::Value(value), Arg::Int), &outputs)?;
        }
        Ok(())
    }

    /// The values of one output; lists are flattened.
    fn made(
        &mut self,
        scope: &Scope<'a>,
        node: &'a schema::Node<'a>,
        output: &'a Argument<'a>,
        made: &mut Vec<Made<'a>>,
        at: &JsonPath<'_>,
    ) -> Result<()> {
        let mut tensor = |made: &mut Vec<Made<'a>>, t: &'a schema::Name<'a>| -> Result<()> {
            made.push((&*t.name, self.tensor_type(scope, &t.name, at)?));
            Ok(())
        };
        let nothing = || (node.name.as_deref().unwrap_or("none"), ValueType::None);
        match output {
            Argument::AsTensor(t) => tensor(made, t)?,
            Argument::AsTensors(ts) => ts.iter().try_for_each(|t| tensor(made, t))?,
            Argument::AsNestedTensors(lists) => lists.iter().flatten().try_for_each(|t| tensor(made, t))?,
            Argument::AsOptionalTensor(schema::OptionalTensor::AsTensor(t)) => tensor(made, t)?,
            Argument::AsOptionalTensors(ts) => {
                for t in ts {
                    match t {
                        schema::OptionalTensor::AsTensor(t) => tensor(made, t)?,
                        schema::OptionalTensor::AsNone(_) => return Err(absent_in_list(at)),
                    }
                }
            }
            Argument::AsSymInt(schema::SymIntArgument::AsName(name)) => {
                made.push((name, self.int_type(scope, name, at)?));
            }
            Argument::AsSymInts(names) => {
                for name in names {
                    let schema::SymIntArgument::AsName(name) = name else { return Err(absent_in_list(at)) };
                    made.push((name, self.int_type(scope, name, at)?));
                }
            }
            Argument::AsSymFloat(schema::SymFloatArgument::AsName(name)) => {
                made.push((name, ValueType::Float))
            }
            Argument::AsSymBool(schema::SymBoolArgument::AsName(name)) => made.push((name, ValueType::Bool)),
            // Constants that a higher-order operator returns have no name and no user.
            _ => made.push(nothing()),
        }
        Ok(())
    }

    fn tensor_type(&mut self, scope: &Scope<'a>, name: &str, at: &JsonPath<'_>) -> Result<ValueType> {
        let meta = scope.tensor(name, at)?;
        let meta = self.meta(meta, &at.key(name))?;
        meta.sizes.iter().for_each(|size| self.symbols.is_bound(size));
        Ok(ValueType::Tensor(meta))
    }

    fn int_type(&mut self, scope: &Scope<'a>, name: &str, at: &JsonPath<'_>) -> Result<ValueType> {
        let value = self.symbols.int(scope.int(name, at)?, at)?;
        self.symbols.is_bound(&value);
        Ok(ValueType::Int(value))
    }
}

fn absent_in_list(at: &JsonPath<'_>) -> crate::Pt2Error {
    at.unsupported("an operator that returns a list with constants in it", "return tensors only")
}

fn int_of(ty: &ValueType) -> Option<SymExpr> {
    match ty {
        ValueType::Int(expr) => Some(expr.clone()),
        _ => None,
    }
}

/// The number, where the value is one.
fn constant(value: Value) -> Option<f64> {
    match value {
        Value::Int(e) | Value::Truth(e) => Some(e.as_const()? as f64),
        Value::Ratio(n, d) => Some(n.as_const()? as f64 / d.as_const()? as f64),
    }
}

/// Whether an operator computes with sizes only.
pub(crate) fn is_symbolic(target: &str) -> bool {
    target.starts_with("_operator.")
        || target.starts_with("aten.sym_")
        || target.starts_with("torch.sym_")
        || target.starts_with("math.")
        || target.starts_with("torch._sym_")
}

/// Erases computations with sizes that nothing reads: those that only fed assertions.
pub(super) fn drop_unused_symbolics(graph: &mut Graph) {
    graph.eliminate_dead(&|target, _| !is_symbolic(target));
}

/// A name for a message about a node.
pub(super) fn named(node: &schema::Node<'_>) -> String {
    shorten(node.name.as_deref().unwrap_or(&node.target))
}
