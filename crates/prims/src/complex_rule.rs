//! Rewriting of prims on complex tensors as prims on real ones: the field `complex` of an entry, and the context of its
//! rules.
//!
//! A complex value is a pair of real tensors. The pass that applies the rules is [`crate::split_complex`]; the formulas are
//! in `ops/complex_*.rs`.

use fx_ir::{Arg, ValueId, ValueType};
use ir_core::{DType, Scalar, TensorMeta};
use smallvec::SmallVec;

use crate::{Builder, Op, OpError};

/// The rewriting of a prim that has a complex operand or result.
pub enum ComplexRule {
    /// The prim is applied to the real and to the imaginary parts: for prims that move elements or are linear with real
    /// coefficients.
    Parts,
    /// Real prims made by a function.
    Rule(ComplexFn),
    /// The prim is not defined on complex numbers, for this reason.
    Refused(&'static str),
}

impl ComplexRule {
    /// The rule of prims that compare or round.
    pub const NO_ORDER: ComplexRule = ComplexRule::Refused("they have no order");
    /// The rule of prims that are defined on real numbers, integers or bits.
    pub const REAL_ONLY: ComplexRule = ComplexRule::Refused("it is an operator on real numbers");
}

/// Builds the results of a call, one for each result of the prim.
pub type ComplexFn = fn(&mut Builder<'_>, &ComplexCall<'_>) -> Result<Splits, OpError>;
/// Results of a rule.
pub type Splits = SmallVec<[Split; 1]>;

/// Real and imaginary part of a complex tensor: two tensors of one shape and dtype (`f32` or `f64`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parts {
    /// Real part.
    pub re: ValueId,
    /// Imaginary part.
    pub im: ValueId,
}

/// A value of a complex program in terms of real tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Split {
    /// It was real already.
    Real(ValueId),
    /// It was complex.
    Complex(Parts),
}

impl From<ValueId> for Split {
    fn from(v: ValueId) -> Split {
        Split::Real(v)
    }
}
impl From<Parts> for Split {
    fn from(z: Parts) -> Split {
        Split::Complex(z)
    }
}

/// An argument in terms of real tensors.
#[derive(Clone, Debug, PartialEq)]
pub enum SplitArg {
    /// Anything that is not complex.
    Real(Arg),
    /// A complex tensor.
    Complex(Parts),
    /// A list with a complex tensor in it.
    List(Vec<SplitArg>),
}

/// A call with complex operands or results, for its rule.
pub struct ComplexCall<'a> {
    /// The prim.
    pub op: &'static Op,
    /// One argument per schema argument.
    pub args: &'a [SplitArg],
    /// Types of the results before the split.
    pub outs: &'a [ValueType],
}

impl<'a> ComplexCall<'a> {
    /// The call breaks the prim's rules.
    pub fn invalid(&self, what: impl Into<String>) -> OpError {
        OpError::Invalid { op: self.op.target.clone(), what: what.into() }
    }
    /// The call has a form that is not supported.
    pub fn unsupported(&self, what: impl Into<String>) -> OpError {
        OpError::Unsupported { op: self.op.target.clone(), what: what.into() }
    }
    /// The argument with this name.
    pub fn arg(&self, name: &str) -> &'a SplitArg {
        const NONE: &SplitArg = &SplitArg::Real(Arg::None);
        self.op.schema.arg_index(name).and_then(|i| self.args.get(i)).unwrap_or(NONE)
    }
    /// An argument that is not complex.
    pub fn real(&self, name: &str) -> Result<&'a Arg, OpError> {
        match self.arg(name) {
            SplitArg::Real(arg) => Ok(arg),
            _ => Err(self.bad_arg(name, "is complex")),
        }
    }
    /// A real tensor.
    pub fn real_value(&self, name: &str) -> Result<ValueId, OpError> {
        match self.real(name)? {
            Arg::Value(v) => Ok(*v),
            _ => Err(self.bad_arg(name, "must be a tensor")),
        }
    }
    /// A complex tensor.
    pub fn parts(&self, name: &str) -> Result<Parts, OpError> {
        match self.arg(name) {
            SplitArg::Complex(z) => Ok(*z),
            _ => Err(self.bad_arg(name, "must be a complex tensor")),
        }
    }
    /// A list of integers.
    pub fn ints(&self, name: &str) -> Result<Vec<i64>, OpError> {
        let bad = || self.bad_arg(name, "must be a list of integers");
        match self.real(name)? {
            Arg::List(items) => {
                items.iter().map(|a| a.as_scalar().map(Scalar::as_i64).ok_or_else(bad)).collect()
            }
            one => Ok(vec![one.as_scalar().map(Scalar::as_i64).ok_or_else(bad)?]),
        }
    }
    /// The meta of result `n` before the split.
    pub fn out(&self, n: usize) -> Result<&'a TensorMeta, OpError> {
        self.outs.get(n).and_then(ValueType::as_tensor).ok_or_else(|| self.invalid("has no such result"))
    }
    /// The dtype of the parts: that of the first complex operand's or result's.
    pub fn part_dtype(&self, b: &Builder<'_>) -> Result<DType, OpError> {
        for arg in self.args {
            if let SplitArg::Complex(z) = arg {
                return b.dtype(z.re);
            }
        }
        Ok(self.out(0)?.dtype.to_real())
    }
    /// An operand as parts: a number becomes two tensors without dimensions, which broadcast.
    pub fn operand(&self, b: &mut Builder<'_>, name: &str) -> Result<Parts, OpError> {
        let dtype = self.part_dtype(b)?;
        match self.arg(name) {
            SplitArg::Complex(z) => Ok(*z),
            SplitArg::Real(Arg::Value(_)) | SplitArg::List(_) => {
                Err(self.bad_arg(name, "must be a complex tensor or a number"))
            }
            SplitArg::Real(number) => {
                let (re, im) = halves(number);
                Ok(Parts { re: b.as_tensor(&re, dtype)?, im: b.as_tensor(&im, dtype)? })
            }
        }
    }
    /// The same prim on real arguments, with types of results that the caller knows.
    pub fn reissue(&self, b: &mut Builder<'_>, args: Vec<Arg>, outs: &[ValueType]) -> SmallVec<[ValueId; 1]> {
        b.append(&self.op.target, args, outs)
    }
    /// An error about an argument.
    pub fn bad_arg(&self, arg: &str, what: &str) -> OpError {
        OpError::Argument { op: self.op.target.clone(), arg: arg.into(), what: what.into() }
    }
}

/// Real and imaginary part of a number; those of a real one are itself and zero.
pub(crate) fn halves(number: &Arg) -> (Arg, Arg) {
    match number {
        Arg::Scalar(Scalar::Complex(re, im)) => (Arg::from(*re), Arg::from(*im)),
        Arg::Scalar(s) => (Arg::from(s.as_f64()), Arg::from(0.0)),
        other => (other.clone(), Arg::from(0.0)),
    }
}
