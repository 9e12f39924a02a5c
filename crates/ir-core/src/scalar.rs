//! One number of any dtype, as it stands in a graph or a kernel. Not a tensor and without a shape.

use std::fmt;
use std::hash::{Hash, Hasher};

use serde::{Deserialize, Serialize};

use crate::{Class, DType};

/// A constant. Floats compare and hash by their bits, so that `NaN` equals itself and `-0.0` differs from `0.0`.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub enum Scalar {
    /// A truth value.
    Bool(bool),
    /// Any integer dtype.
    Int(i64),
    /// Any real floating dtype.
    Float(f64),
    /// Any complex dtype: real, imaginary.
    Complex(f64, f64),
}

impl Scalar {
    /// The category of the number itself (Python's `bool`, `int`, `float`, `complex`).
    pub const fn class(self) -> Class {
        match self {
            Scalar::Bool(_) => Class::Bool,
            Scalar::Int(_) => Class::Int,
            Scalar::Float(_) => Class::Float,
            Scalar::Complex(..) => Class::Complex,
        }
    }
    /// The value as a real number; a complex one gives its real part.
    pub const fn as_f64(self) -> f64 {
        match self {
            Scalar::Bool(b) => b as u8 as f64,
            Scalar::Int(i) => i as f64,
            Scalar::Float(f) => f,
            Scalar::Complex(re, _) => re,
        }
    }
    /// The value as an integer, truncated towards zero.
    pub const fn as_i64(self) -> i64 {
        match self {
            Scalar::Bool(b) => b as i64,
            Scalar::Int(i) => i,
            Scalar::Float(f) => f as i64,
            Scalar::Complex(re, _) => re as i64,
        }
    }
    /// Whether the value is not zero (`NaN` is not zero).
    pub fn as_bool(self) -> bool {
        match self {
            Scalar::Bool(b) => b,
            Scalar::Int(i) => i != 0,
            Scalar::Float(f) => f != 0.0,
            Scalar::Complex(re, im) => re != 0.0 || im != 0.0,
        }
    }
    /// The number in the class of `dtype`: `Int(1)` becomes `Float(1.0)` for `f32`.
    pub fn to_class_of(self, dtype: DType) -> Scalar {
        match dtype.class() {
            Class::Bool => Scalar::Bool(self.as_bool()),
            Class::Int => Scalar::Int(self.as_i64()),
            Class::Float => Scalar::Float(self.as_f64()),
            Class::Complex => match self {
                Scalar::Complex(..) => self,
                other => Scalar::Complex(other.as_f64(), 0.0),
            },
        }
    }
    /// The number as arithmetic on tensors of `dtype` sees it: in the dtype's class, floats rounded to `f32` where `dtype`
    /// computes in that, integers wrapped to the dtype's bits. A complex number keeps the precision that it has.
    pub fn as_operand_of(self, dtype: DType) -> Scalar {
        match self.to_class_of(dtype) {
            Scalar::Float(x) if dtype.compute() == DType::F32 => Scalar::Float(f64::from(x as f32)),
            Scalar::Int(x) => Scalar::Int(dtype.wrap(x)),
            other => other,
        }
    }
    /// Zero in the class of `dtype`.
    pub fn zero(dtype: DType) -> Scalar {
        Scalar::Int(0).to_class_of(dtype)
    }

    fn key(self) -> (u8, u64, u64) {
        match self {
            Scalar::Bool(b) => (0, b as u64, 0),
            Scalar::Int(i) => (1, i as u64, 0),
            Scalar::Float(f) => (2, f.to_bits(), 0),
            Scalar::Complex(re, im) => (3, re.to_bits(), im.to_bits()),
        }
    }
}

impl PartialEq for Scalar {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}
impl Eq for Scalar {}
impl Hash for Scalar {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.key().hash(state);
    }
}

impl fmt::Display for Scalar {
    /// `true`, `3`, `0.5` (always with a point, an exponent or a name), `(1.0+2.0j)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Scalar::Bool(b) => write!(f, "{b}"),
            Scalar::Int(i) => write!(f, "{i}"),
            Scalar::Float(x) => write!(f, "{x:?}"),
            Scalar::Complex(re, im) => {
                write!(f, "({re:?}{}{:?}j)", if im.is_sign_negative() { "-" } else { "+" }, im.abs())
            }
        }
    }
}

impl From<f64> for Scalar {
    fn from(x: f64) -> Self {
        Scalar::Float(x)
    }
}
impl From<i64> for Scalar {
    fn from(x: i64) -> Self {
        Scalar::Int(x)
    }
}
impl From<bool> for Scalar {
    fn from(x: bool) -> Self {
        Scalar::Bool(x)
    }
}
