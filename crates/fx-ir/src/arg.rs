//! Arguments of a call: values, numbers, lists and the enumerations of PyTorch's schemas.

use ir_core::{DType, Device, Layout, MemoryFormat, Scalar, SymExpr};
use serde::{Deserialize, Serialize};

use crate::{SubgraphId, ValueId};

/// One positional argument of a call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Arg {
    /// Absent (`None`).
    None,
    /// A value of the graph.
    Value(ValueId),
    /// An integer or a symbolic size.
    Int(SymExpr),
    /// A `bool`, `float` or `complex` (an `int` is [`Arg::Int`]).
    Scalar(Scalar),
    /// Text, such as a rounding mode.
    Str(Box<str>),
    /// An element type.
    DType(DType),
    /// A device.
    Device(Device),
    /// A storage layout.
    Layout(Layout),
    /// A memory format.
    MemoryFormat(MemoryFormat),
    /// A list; its items may be of any kind, `None` included.
    List(Vec<Arg>),
    /// A subgraph of the same graph, for higher-order operators.
    Graph(SubgraphId),
}

impl Arg {
    /// An integer constant.
    pub fn int(value: i64) -> Arg {
        Arg::Int(SymExpr::from_i64(value))
    }
    /// A list of integer expressions.
    pub fn ints<'a>(values: impl IntoIterator<Item = &'a SymExpr>) -> Arg {
        Arg::List(values.into_iter().map(|v| Arg::Int(v.clone())).collect())
    }
    /// A list of values.
    pub fn values(values: impl IntoIterator<Item = ValueId>) -> Arg {
        Arg::List(values.into_iter().map(Arg::Value).collect())
    }
    /// Calls `visit` for every value in the argument, lists included.
    pub fn for_each_value(&self, visit: &mut dyn FnMut(ValueId)) {
        match self {
            Arg::Value(v) => visit(*v),
            Arg::List(items) => items.iter().for_each(|a| a.for_each_value(visit)),
            _ => {}
        }
    }
    /// Calls `visit` for every value in the argument, mutable.
    pub fn for_each_value_mut(&mut self, visit: &mut dyn FnMut(&mut ValueId)) {
        match self {
            Arg::Value(v) => visit(v),
            Arg::List(items) => items.iter_mut().for_each(|a| a.for_each_value_mut(visit)),
            _ => {}
        }
    }
    /// The number, where the argument is one.
    pub fn as_scalar(&self) -> Option<Scalar> {
        match self {
            Arg::Int(e) => e.as_const().map(Scalar::Int),
            Arg::Scalar(s) => Some(*s),
            _ => None,
        }
    }
}

impl From<ValueId> for Arg {
    fn from(value: ValueId) -> Arg {
        Arg::Value(value)
    }
}
impl From<Option<ValueId>> for Arg {
    fn from(value: Option<ValueId>) -> Arg {
        value.map_or(Arg::None, Arg::Value)
    }
}
impl From<i64> for Arg {
    fn from(value: i64) -> Arg {
        Arg::int(value)
    }
}
impl From<SymExpr> for Arg {
    fn from(value: SymExpr) -> Arg {
        Arg::Int(value)
    }
}
impl From<f64> for Arg {
    fn from(value: f64) -> Arg {
        Arg::Scalar(Scalar::Float(value))
    }
}
impl From<bool> for Arg {
    fn from(value: bool) -> Arg {
        Arg::Scalar(Scalar::Bool(value))
    }
}
impl From<Scalar> for Arg {
    fn from(value: Scalar) -> Arg {
        match value {
            Scalar::Int(i) => Arg::int(i),
            other => Arg::Scalar(other),
        }
    }
}
impl From<DType> for Arg {
    fn from(value: DType) -> Arg {
        Arg::DType(value)
    }
}
impl From<&str> for Arg {
    fn from(value: &str) -> Arg {
        Arg::Str(value.into())
    }
}
impl From<&[SymExpr]> for Arg {
    fn from(values: &[SymExpr]) -> Arg {
        Arg::ints(values)
    }
}
impl From<&[i64]> for Arg {
    fn from(values: &[i64]) -> Arg {
        Arg::List(values.iter().map(|&v| Arg::int(v)).collect())
    }
}
