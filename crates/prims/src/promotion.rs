//! PyTorch's type promotion: the dtype in which an operator computes and the one it returns.
//!
//! Operands form three groups of priority: tensors with dimensions, 0-dim tensors, Python numbers. A group has an effect
//! only if its category (bool < int < float < complex) is higher than that of the groups before it.

use fx_ir::{Arg, ValueId};
use ir_core::{Class, DType, Scalar};

use crate::{Builder, OpError};

/// How an operator's result dtype is derived from its operands'.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Promote {
    /// The common dtype.
    Default,
    /// Integers and `bool` become the default float.
    IntToFloat,
    /// Computes in the common dtype, returns `bool`.
    AlwaysBool,
    /// Complex gives its real dtype.
    ComplexToFloat,
    /// `bool` becomes `i64`.
    BoolToLong,
}

/// The default float dtype: what integers become in `sqrt` and Python floats are among integer tensors.
pub const DEFAULT_FLOAT: DType = DType::F32;

/// Smallest dtype that holds both (PyTorch's `promote_types`).
///
/// # Errors
/// As in PyTorch nothing but a longer float joins an 8-bit float, and nothing but a float an unsigned integer above 8 bits.
pub fn promote_types(a: DType, b: DType) -> Result<DType, OpError> {
    let apart = |d: DType| d.is_carried() && (d.is_float() || !(a.is_inexact() || b.is_inexact()));
    if a != b && (apart(a) || apart(b)) {
        let what =
            format!("operands of {} and {}: convert one of them first", a.torch_name(), b.torch_name());
        return Err(OpError::Unsupported { op: "promotion of types".into(), what });
    }
    Ok(common(a, b))
}

fn common(a: DType, b: DType) -> DType {
    use DType::*;
    if a == b {
        return a;
    }
    match (a.class().max(b.class()), a, b) {
        (Class::Complex, ..) => {
            let wide = |d: DType| matches!(d, F64 | C128);
            if wide(a) || wide(b) { C128 } else { C64 }
        }
        (Class::Float, ..) => match (a.is_float(), b.is_float()) {
            (true, true) if a == F64 || b == F64 => F64,
            // f32 with anything narrower, and f16 with bf16.
            (true, true) => F32,
            (true, false) => a,
            _ => b,
        },
        (_, Bool, other) | (_, other, Bool) => other,
        // u8 with a signed type needs a wider signed one.
        (_, U8, I8) | (_, I8, U8) => I16,
        (_, U8, other) | (_, other, U8) => other,
        _ => {
            if a.size() >= b.size() {
                a
            } else {
                b
            }
        }
    }
}

fn default_of(class: Class) -> DType {
    match class {
        Class::Bool => DType::Bool,
        Class::Int => DType::I64,
        Class::Float => DEFAULT_FLOAT,
        Class::Complex => DType::C64,
    }
}

/// The dtype of one operand group joined with the next, lower-priority group.
fn join(high: Option<DType>, low: Option<DType>) -> Option<DType> {
    match (high, low) {
        (Some(h), Some(l)) if l.class() > h.class() => Some(match h {
            // A complex operand gets the precision of the float tensor with dimensions that it is combined with.
            DType::F64 if l.is_complex() => DType::C128,
            h if h.is_float() && l.is_complex() => DType::C64,
            _ => l,
        }),
        (Some(h), _) => Some(h),
        (None, low) => low,
    }
}

impl Builder<'_> {
    /// The common dtype of operands (PyTorch's `result_type`); numbers have the lowest priority, then 0-dim tensors.
    pub fn result_type(&self, operands: &[Arg]) -> Result<DType, OpError> {
        let (mut dims, mut zero_dim, mut numbers) = (None, None, None);
        let merge = |slot: &mut Option<DType>, d: DType| {
            *slot = Some(slot.map_or(Ok(d), |s| promote_types(s, d))?);
            Ok::<(), OpError>(())
        };
        for operand in operands {
            match operand {
                Arg::Value(v) if self.is_number(*v) => {
                    merge(&mut numbers, default_of(self.dtype(*v)?.class()))?;
                }
                Arg::Value(v) => {
                    let meta = self.meta(*v)?;
                    merge(if meta.rank() == 0 { &mut zero_dim } else { &mut dims }, meta.dtype)?;
                }
                Arg::Int(_) => merge(&mut numbers, DType::I64)?,
                Arg::Scalar(s) => merge(&mut numbers, default_of(s.class()))?,
                _ => {}
            }
        }
        Ok(join(join(dims, zero_dim), numbers).unwrap_or(DEFAULT_FLOAT))
    }

    /// Casts operands to the dtype they compute in. Returns them with the dtype of the result.
    pub fn promote(&mut self, operands: &[Arg], rule: Promote) -> Result<(Vec<Arg>, DType), OpError> {
        let common = self.result_type(operands)?;
        let compute = match rule {
            Promote::IntToFloat if common.is_integral() => DEFAULT_FLOAT,
            Promote::BoolToLong if common == DType::Bool => DType::I64,
            _ => common,
        };
        let result = match rule {
            Promote::AlwaysBool => DType::Bool,
            Promote::ComplexToFloat => compute.to_real(),
            _ => compute,
        };
        let mut cast = Vec::with_capacity(operands.len());
        for operand in operands {
            cast.push(self.as_dtype(operand, compute)?);
        }
        Ok((cast, result))
    }

    /// A tensor or number as an operand of the given dtype.
    pub fn as_dtype(&mut self, operand: &Arg, dtype: DType) -> Result<Arg, OpError> {
        Ok(match operand {
            Arg::Value(v) => Arg::Value(self.cast(*v, dtype)?),
            Arg::Int(e) => match e.as_const() {
                Some(c) => Arg::from(Scalar::Int(c).as_operand_of(dtype)),
                None => operand.clone(),
            },
            Arg::Scalar(s) => Arg::from(s.as_operand_of(dtype)),
            other => other.clone(),
        })
    }

    /// The operand as a tensor of the given dtype: a number becomes a 0-dim tensor.
    pub fn as_tensor(&mut self, operand: &Arg, dtype: DType) -> Result<ValueId, OpError> {
        match self.as_dtype(operand, dtype)? {
            Arg::Value(v) => Ok(v),
            number => self.call1("prims.full", vec![Arg::List(Vec::new()), number, dtype.into()]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_of_lower_priority_raise_the_category_alone() {
        use DType::*;
        for (dims, other, expected) in [
            (F32, C128, C64),
            (F64, C64, C128),
            (I64, C128, C128),
            (C64, C128, C64),
            (F32, F64, F32),
            (I32, F64, F64),
        ] {
            assert_eq!(join(Some(dims), Some(other)), Some(expected), "{dims} {other}");
        }
    }

    #[test]
    fn promotes_as_pytorch_does() {
        use DType::*;
        for (a, b, expected) in [
            (U8, I8, I16),
            (I8, I32, I32),
            (Bool, U8, U8),
            (I64, F16, F16),
            (F16, BF16, F32),
            (F64, F32, F64),
            (F64, C64, C128),
            (I32, C64, C64),
            (BF16, F64, F64),
            (U32, BF16, BF16),
            (U64, U64, U64),
        ] {
            assert_eq!(promote_types(a, b), Ok(expected), "{a} {b}");
            assert_eq!(promote_types(b, a), Ok(expected), "{b} {a}");
        }
        for (a, b) in [(U16, I32), (U8, U64), (U32, Bool), (F8E4M3, F32), (F8E5M2, I64), (F8E4M3, F8E5M2)] {
            assert!(promote_types(a, b).is_err() && promote_types(b, a).is_err(), "{a} {b}");
        }
    }
}
