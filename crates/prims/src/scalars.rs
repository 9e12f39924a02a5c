//! Calls that compute single numbers: `item`, Python's operators on numbers from tensors, assertions.
//!
//! An integer is a size symbol that `prims.item` binds at run time; from then on it is an expression. Floats and truth
//! values, which no size can depend on, are tensors without dimensions (`f64`, `bool`). `prims.item(Tensor) -> SymInt` and
//! `prims.assert(bool Tensor or SymInt, str)` are not entries of the table: they have no values to differentiate or to
//! lower, and stay in a graph although nothing reads them ([`is_effect`]).

use fx_ir::{Arg, Graph, Symbol, ValueId, ValueType};
use ir_core::{DType, EntityId, Scalar, SymExpr};

use crate::{Builder, OpError};

/// Binds a symbol from one number.
pub const ITEM: &str = "prims.item";
/// Ends the call where a truth value is false.
pub const ASSERT: &str = "prims.assert";

/// Whether a call is an assertion; its first operand is the condition.
pub fn is_assertion(target: &str) -> bool {
    matches!(
        target,
        ASSERT | "aten._assert_scalar.default" | "aten._assert_async.default" | "aten._assert_async.msg"
    )
}

/// Whether a call stays although nothing reads its values.
pub fn is_effect(target: &str) -> bool {
    target == ITEM || is_assertion(target) || crate::lookup(target).is_some_and(|op| op.exchanges())
}

/// Erases calls whose results nothing reads, except those that bind a size or assert, in subgraphs too: the way to erase
/// dead calls of any graph whose operators are in the table. Returns the number of erased calls.
pub fn eliminate_dead(graph: &mut Graph) -> usize {
    let asserts: Vec<bool> = graph.subgraphs.values().map(asserts).collect();
    let of = |a: &Arg| matches!(a, Arg::Graph(g) if asserts.get(g.index()).is_some_and(|a| *a));
    graph.eliminate_dead(&|target, args| is_effect(target) || args.iter().any(of))
}

fn asserts(graph: &Graph) -> bool {
    graph.iter().any(|(_, node)| node.as_call().is_some_and(|(target, _)| is_assertion(target)))
        || graph.subgraphs.values().any(asserts)
}

/// Whether a call computes with single numbers and is decomposed here.
pub fn is_scalar(target: &str) -> bool {
    matches!(target, "aten.item.default" | "aten._local_scalar_dense.default" | ITEM)
        || is_assertion(target)
        || python(target).is_some()
}

fn python(target: &str) -> Option<&str> {
    let prefixes = ["_operator.", "torch.sym_", "torch._sym_", "math."];
    prefixes.iter().find_map(|p| target.strip_prefix(p))
}

/// The call in prims; one argument (a tensor, an integer) per result. `types` are the results' types in the program.
pub(crate) fn decompose(
    b: &mut Builder<'_>,
    target: &str,
    args: &[Arg],
    types: &[ValueType],
) -> Result<Vec<Arg>, OpError> {
    let invalid = |what: &str| OpError::Invalid { op: target.into(), what: what.into() };
    let first = args.first().ok_or_else(|| invalid("has no operand"))?;
    if is_assertion(target) {
        let message = match args.get(1) {
            Some(Arg::Str(message)) => message.to_string(),
            _ => "assertion failed".into(),
        };
        let pred = match first {
            Arg::Value(v) => Arg::Value(b.reshape(*v, &[])?),
            number => number.clone(),
        };
        b.assert(pred, &message);
        return Ok(Vec::new());
    }
    let ty = types.first().ok_or_else(|| invalid("gives nothing"))?;
    let tensor = match python(target) {
        None => number(b, first)?,
        Some(name) => operator(b, target, name, args)?,
    };
    Ok(vec![match ty {
        ValueType::Int(e) => {
            match b.binds(e) {
                true => b.bind_item(tensor, e.clone())?,
                // The program states the number, so it is used.
                false => b.assert_number(tensor, e.clone())?,
            }
            Arg::Int(e.clone())
        }
        ValueType::Bool => Arg::Value(b.cast(tensor, DType::Bool)?),
        _ => Arg::Value(b.cast(tensor, DType::F64)?),
    }])
}

/// A number as a tensor without dimensions.
fn number(b: &mut Builder<'_>, arg: &Arg) -> Result<ValueId, OpError> {
    match arg {
        Arg::Value(v) => b.reshape(*v, &[]),
        Arg::Int(_) => b.call1("prims.full", vec![Arg::List(vec![]), arg.clone(), DType::I64.into()]),
        Arg::Scalar(s @ Scalar::Bool(_)) => b.full(&[], *s, DType::Bool),
        Arg::Scalar(s) => b.full(&[], *s, DType::F64),
        _ => Err(OpError::Invalid { op: "item".into(), what: "the operand is no number".into() }),
    }
}

/// Python's operator of this name.
fn operator(b: &mut Builder<'_>, target: &str, name: &str, args: &[Arg]) -> Result<ValueId, OpError> {
    let mut operands = args.iter().map(|a| number(b, a)).collect::<Result<Vec<_>, _>>()?;
    let float = operands.iter().any(|v| b.dtype(*v).is_ok_and(|d| d.is_float()));
    let always = matches!(name, "truediv" | "sqrt" | "float" | "exp" | "log" | "sin" | "cos" | "int_truediv");
    let logical = matches!(name, "and_" | "or_" | "not_" | "not" | "xor");
    if !logical {
        let dtype = if float || always { DType::F64 } else { DType::I64 };
        for v in &mut operands {
            *v = b.cast(*v, dtype)?;
        }
    }
    let op = match name {
        "add" => "aten.add.Tensor",
        "sub" => "aten.sub.Tensor",
        "mul" => "aten.mul.Tensor",
        "truediv" | "int_truediv" => "aten.div.Tensor",
        "floordiv" => "aten.floor_divide.default",
        "mod" => "aten.remainder.Tensor",
        "pow" => "aten.pow.Tensor_Tensor",
        "max" => "aten.maximum.default",
        "min" => "aten.minimum.default",
        "neg" => "aten.neg.default",
        "abs" | "fabs" => "aten.abs.default",
        "eq" => "aten.eq.Tensor",
        "ne" => "aten.ne.Tensor",
        "lt" => "aten.lt.Tensor",
        "le" => "aten.le.Tensor",
        "gt" => "aten.gt.Tensor",
        "ge" => "aten.ge.Tensor",
        "and_" => "aten.bitwise_and.Tensor",
        "or_" => "aten.bitwise_or.Tensor",
        "xor" => "aten.bitwise_xor.Tensor",
        "not_" | "not" => "aten.logical_not.default",
        "floor" if float => "aten.floor.default",
        "ceil" if float => "aten.ceil.default",
        "trunc" | "int" if float => "aten.trunc.default",
        "sqrt" => "aten.sqrt.default",
        "exp" => "aten.exp.default",
        "log" => "aten.log.default",
        "sin" => "aten.sin.default",
        "cos" => "aten.cos.default",
        // Conversions of what has the kind already.
        "float" | "int" | "floor" | "ceil" | "trunc" => return Ok(operands[0]),
        _ => return Err(OpError::Unknown(target.into())),
    };
    b.call1(op, operands.into_iter().map(Arg::Value).collect())
}

impl Builder<'_> {
    /// The one number of an integer tensor as an expression: a new unbacked symbol of range `min..=max`, bound when
    /// the program runs.
    pub fn item(&mut self, v: ValueId, min: i64, max: Option<i64>) -> Result<SymExpr, OpError> {
        let name = format!("n{}", self.graph().symbols.len());
        let symbol = Symbol { name, min, max, hint: None, unbacked: true };
        let e = SymExpr::sym(self.add_symbol(symbol));
        self.bind_item(v, e.clone())?;
        Ok(e)
    }

    /// The integers `0, 1, …` below the number in `n`, `[n]` as `i64`; a negative number ends the call.
    pub fn counted(&mut self, n: ValueId) -> Result<ValueId, OpError> {
        let n = self.item(n, 0, None)?;
        self.call1("prims.iota", vec![n.into(), 0i64.into(), 1i64.into(), DType::I64.into()])
    }

    /// Binds the symbol `e` from the one number of a tensor.
    pub(crate) fn bind_item(&mut self, v: ValueId, e: SymExpr) -> Result<(), OpError> {
        let v = self.reshape(v, &[])?;
        let v = if self.dtype(v)?.is_integral() { v } else { self.cast(v, DType::I64)? };
        self.effect(ITEM, vec![v.into()], Some(ValueType::Int(e)));
        Ok(())
    }

    /// Whether a computed number is the first to determine the symbol `e`: neither inputs nor an earlier call do. Binding a
    /// symbol twice would change the sizes of existing tensors.
    fn binds(&self, e: &SymExpr) -> bool {
        let unbacked = e.as_sym().is_some_and(|s| self.graph().symbols.get(s).is_some_and(|s| s.unbacked));
        unbacked && !self.graph().values.values().any(|v| v.ty == ValueType::Int(e.clone()))
    }

    /// Ends the call where two integers differ.
    pub(crate) fn assert_same(&mut self, a: SymExpr, b: SymExpr) -> Result<(), OpError> {
        let message = format!("two sizes that the program takes for one differ: `{a}` and `{b}`");
        let a = number(self, &Arg::Int(a))?;
        self.assert_equal(a, b, &message)
    }

    /// Ends the call where the one number of a tensor is not `e`.
    fn assert_number(&mut self, v: ValueId, e: SymExpr) -> Result<(), OpError> {
        let message = format!("a number that the program computes is not `{e}`, as which it is read");
        self.assert_equal(v, e, &message)
    }

    fn assert_equal(&mut self, v: ValueId, e: SymExpr, message: &str) -> Result<(), OpError> {
        let e = number(self, &Arg::Int(e))?;
        let same = self.call1("aten.eq.Tensor", vec![v.into(), e.into()])?;
        self.assert(same.into(), message);
        Ok(())
    }

    /// Ends the call with `message` where `pred` (a `bool` tensor of one element, or an integer) is false.
    pub fn assert(&mut self, pred: Arg, message: &str) {
        self.effect(ASSERT, vec![pred, message.into()], None);
    }
}
