//! A call for a rule: the operator and its arguments, read by name.

use fx_ir::{Arg, ValueId};
use ir_core::{DType, Device, MemoryFormat, Scalar, SymExpr};

/// Larger than any window, stride, padding or dilation, and so small that the product of two fits 64 bits.
const LARGEST: u64 = 1 << 31;

use crate::{Op, OpError};

/// An operator with complete positional arguments.
#[derive(Clone, Copy)]
pub struct Call<'a> {
    /// The operator.
    pub op: &'static Op,
    /// One argument per schema argument.
    pub args: &'a [Arg],
}

impl<'a> Call<'a> {
    /// The operator's name, for messages.
    pub fn name(&self) -> &'static str {
        &self.op.target
    }
    /// An error about an argument.
    pub fn bad_arg(&self, arg: &str, what: impl Into<String>) -> OpError {
        OpError::Argument { op: self.name().into(), arg: arg.into(), what: what.into() }
    }
    /// The call breaks the operator's rules.
    pub fn invalid(&self, what: impl Into<String>) -> OpError {
        OpError::Invalid { op: self.name().into(), what: what.into() }
    }
    /// The call has a form that is not supported.
    pub fn unsupported(&self, what: impl Into<String>) -> OpError {
        OpError::Unsupported { op: self.name().into(), what: what.into() }
    }
    /// The argument with this name; absent ones are `Arg::None`.
    pub fn arg(&self, name: &str) -> &'a Arg {
        const NONE: &Arg = &Arg::None;
        let index = self.op.schema.arg_index(name);
        debug_assert!(index.is_some(), "`{}` has no argument `{name}`", self.name());
        index.and_then(|i| self.args.get(i)).unwrap_or(NONE)
    }
    /// Whether the argument is absent.
    pub fn is_none(&self, name: &str) -> bool {
        matches!(self.arg(name), Arg::None)
    }
    /// A value.
    pub fn value(&self, name: &str) -> Result<ValueId, OpError> {
        self.opt_value(name)?.ok_or_else(|| self.bad_arg(name, "is missing"))
    }
    /// A value, or absent.
    pub fn opt_value(&self, name: &str) -> Result<Option<ValueId>, OpError> {
        match self.arg(name) {
            Arg::Value(v) => Ok(Some(*v)),
            Arg::None => Ok(None),
            _ => Err(self.bad_arg(name, "must be a tensor")),
        }
    }
    /// A list of values.
    pub fn values(&self, name: &str) -> Result<Vec<ValueId>, OpError> {
        let present = |v: Option<ValueId>| v.ok_or_else(|| self.bad_arg(name, "has a missing item"));
        self.opt_values(name)?.into_iter().map(present).collect()
    }
    /// A list of values, some of which may be absent.
    pub fn opt_values(&self, name: &str) -> Result<Vec<Option<ValueId>>, OpError> {
        let item = |a: &Arg| match a {
            Arg::Value(v) => Ok(Some(*v)),
            Arg::None => Ok(None),
            _ => Err(self.bad_arg(name, "must be a list of tensors")),
        };
        match self.arg(name) {
            Arg::List(items) => items.iter().map(item).collect(),
            Arg::None => Ok(Vec::new()),
            _ => Err(self.bad_arg(name, "must be a list of tensors")),
        }
    }
    /// An integer or size expression.
    pub fn sym(&self, name: &str) -> Result<SymExpr, OpError> {
        self.opt_sym(name)?.ok_or_else(|| self.bad_arg(name, "is missing"))
    }
    /// An integer or size expression, or absent.
    pub fn opt_sym(&self, name: &str) -> Result<Option<SymExpr>, OpError> {
        match self.arg(name) {
            Arg::None => Ok(None),
            arg => as_sym(arg).map(Some).ok_or_else(|| self.bad_arg(name, "must be an integer")),
        }
    }
    /// An integer that must be a number.
    pub fn int(&self, name: &str) -> Result<i64, OpError> {
        self.opt_int(name)?.ok_or_else(|| self.bad_arg(name, "is missing"))
    }
    /// An integer that must be a number, or absent.
    pub fn opt_int(&self, name: &str) -> Result<Option<i64>, OpError> {
        let constant = |e: SymExpr| e.as_const().ok_or_else(|| self.bad_arg(name, "must not be symbolic"));
        self.opt_sym(name)?.map(constant).transpose()
    }
    /// A list of integers or size expressions; one number counts as a list of one.
    pub fn syms(&self, name: &str) -> Result<Vec<SymExpr>, OpError> {
        self.opt_syms(name)?.ok_or_else(|| self.bad_arg(name, "is missing"))
    }
    /// A list of integers or size expressions, or absent.
    pub fn opt_syms(&self, name: &str) -> Result<Option<Vec<SymExpr>>, OpError> {
        let item = |a: &Arg| as_sym(a).ok_or_else(|| self.bad_arg(name, "must be a list of integers"));
        match self.arg(name) {
            Arg::None => Ok(None),
            Arg::List(items) => items.iter().map(item).collect::<Result<_, _>>().map(Some),
            one => item(one).map(|e| Some(vec![e])),
        }
    }
    /// A list of integers that must be numbers.
    pub fn ints(&self, name: &str) -> Result<Vec<i64>, OpError> {
        self.opt_ints(name)?.ok_or_else(|| self.bad_arg(name, "is missing"))
    }
    /// A list of integers that must be numbers, or absent.
    pub fn opt_ints(&self, name: &str) -> Result<Option<Vec<i64>>, OpError> {
        let Some(list) = self.opt_syms(name)? else { return Ok(None) };
        let constant = |e: &SymExpr| e.as_const().ok_or_else(|| self.bad_arg(name, "must not be symbolic"));
        list.iter().map(constant).collect::<Result<_, _>>().map(Some)
    }
    /// A list of `n` integers that describe windows (sizes, strides); one number stands for all
    /// (`stride=2`), an empty list for `n` times `default`. None is larger than [`LARGEST`].
    pub fn ints_n(&self, name: &str, n: usize, default: i64) -> Result<Vec<i64>, OpError> {
        let list = self.opt_ints(name)?.unwrap_or_default();
        self.of_windows(name, &list)?;
        match list.len() {
            0 => Ok(vec![default; n]),
            1 => Ok(vec![list[0]; n]),
            len if len == n => Ok(list),
            len => Err(self.bad_arg(name, format!("has {len} items, not {n}"))),
        }
    }
    /// Checks that no number is larger than a window parameter may be.
    pub(crate) fn of_windows(&self, name: &str, list: &[i64]) -> Result<(), OpError> {
        match list.iter().find(|n| n.unsigned_abs() > LARGEST) {
            Some(n) => Err(self.bad_arg(name, format!("has {n}, which is more than {LARGEST}"))),
            None => Ok(()),
        }
    }
    /// A number of any kind; a symbolic integer is refused.
    pub fn scalar(&self, name: &str) -> Result<Scalar, OpError> {
        self.opt_scalar(name)?.ok_or_else(|| self.bad_arg(name, "is missing"))
    }
    /// A number of any kind, or absent.
    pub fn opt_scalar(&self, name: &str) -> Result<Option<Scalar>, OpError> {
        match self.arg(name) {
            Arg::None => Ok(None),
            arg => arg.as_scalar().map(Some).ok_or_else(|| self.bad_arg(name, "must be a number")),
        }
    }
    /// A number as `f64`.
    pub fn float(&self, name: &str) -> Result<f64, OpError> {
        self.scalar(name).map(Scalar::as_f64)
    }
    /// A number as `f64`, or absent.
    pub fn opt_float(&self, name: &str) -> Result<Option<f64>, OpError> {
        Ok(self.opt_scalar(name)?.map(Scalar::as_f64))
    }
    /// A truth value; absent is false.
    pub fn bool(&self, name: &str) -> Result<bool, OpError> {
        Ok(self.opt_scalar(name)?.is_some_and(Scalar::as_bool))
    }
    /// Text, or absent.
    pub fn opt_str(&self, name: &str) -> Result<Option<&'a str>, OpError> {
        match self.arg(name) {
            Arg::None => Ok(None),
            Arg::Str(s) => Ok(Some(s)),
            _ => Err(self.bad_arg(name, "must be text")),
        }
    }
    /// An element type, or absent.
    pub fn opt_dtype(&self, name: &str) -> Result<Option<DType>, OpError> {
        match self.arg(name) {
            Arg::None => Ok(None),
            Arg::DType(d) => Ok(Some(*d)),
            _ => Err(self.bad_arg(name, "must be a dtype")),
        }
    }
    /// A device, or absent.
    pub fn opt_device(&self, name: &str) -> Result<Option<&'a Device>, OpError> {
        match self.arg(name) {
            Arg::None => Ok(None),
            Arg::Device(d) => Ok(Some(d)),
            _ => Err(self.bad_arg(name, "must be a device")),
        }
    }
    /// A memory format, or absent.
    pub fn opt_memory_format(&self, name: &str) -> Result<Option<MemoryFormat>, OpError> {
        match self.arg(name) {
            Arg::None => Ok(None),
            Arg::MemoryFormat(m) => Ok(Some(*m)),
            _ => Err(self.bad_arg(name, "must be a memory format")),
        }
    }
    /// Wraps a negative dimension number: `-1` of rank 4 is 3. A 0-dim tensor counts as rank 1.
    pub fn dim(&self, dim: i64, rank: usize) -> Result<usize, OpError> {
        let rank = rank.max(1) as i64;
        match dim {
            d if (0..rank).contains(&d) => Ok(d as usize),
            d if (-rank..0).contains(&d) => Ok((d + rank) as usize),
            d => Err(self.invalid(format!("dimension {d} is out of range for {rank} dimensions"))),
        }
    }
}

fn as_sym(arg: &Arg) -> Option<SymExpr> {
    match arg {
        Arg::Int(e) => Some(e.clone()),
        // Schemas write whole floats and truth values where they mean integers (`Scalar` arguments).
        Arg::Scalar(Scalar::Bool(b)) => Some(SymExpr::from_i64(i64::from(*b))),
        Arg::Scalar(Scalar::Float(f)) if f.fract() == 0.0 => Some(SymExpr::from_i64(*f as i64)),
        _ => None,
    }
}
