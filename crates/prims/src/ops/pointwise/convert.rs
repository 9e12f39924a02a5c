//! Conversions, copies and identities: values have no memory, so copies of them are the values themselves. Devices are
//! ignored, because a program is placed as a whole.

use crate::ops::common::one;
use crate::{Builder, Call, OpDef, OpError, Outs};

/// The tensor itself.
macro_rules! same {
    ($schema:literal, $arg:literal) => {
        composite!($schema, |_, c| one(c.value($arg)?))
    };
}

/// The tensor in the dtype given, if one is.
macro_rules! cast {
    ($schema:literal) => {
        composite!($schema, |b, c| {
            let x = c.value("self")?;
            match c.opt_dtype("dtype")? {
                Some(dtype) => one(b.cast(x, dtype)?),
                None => one(x),
            }
        })
    };
}

/// The entries.
pub(in crate::ops) const OPS: &[OpDef] = &[
    cast!(
        "aten::to.dtype(Tensor(a) self, ScalarType dtype, bool non_blocking=False, bool copy=False, MemoryFormat? memory_format=None) -> Tensor(a)"
    ),
    cast!(
        "aten::to.device(Tensor(a) self, Device device, ScalarType dtype, bool non_blocking=False, bool copy=False, MemoryFormat? memory_format=None) -> Tensor(a)"
    ),
    cast!(
        "aten::to.dtype_layout(Tensor(a) self, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None, bool non_blocking=False, bool copy=False, MemoryFormat? memory_format=None) -> Tensor(a)"
    ),
    cast!(
        "aten::_to_copy(Tensor self, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None, bool non_blocking=False, MemoryFormat? memory_format=None) -> Tensor"
    ),
    composite!(
        "aten::to.other(Tensor(a) self, Tensor other, bool non_blocking=False, bool copy=False, MemoryFormat? memory_format=None) -> Tensor(a)",
        cast_as
    ),
    composite!("aten::type_as(Tensor self, Tensor other) -> Tensor", cast_as),
    same!(
        "aten::contiguous(Tensor(a) self, *, MemoryFormat memory_format=contiguous_format) -> Tensor(a)",
        "self"
    ),
    same!("aten::clone(Tensor self, *, MemoryFormat? memory_format=None) -> Tensor", "self"),
    same!("aten::alias(Tensor(a) self) -> Tensor(a)", "self"),
    same!("aten::alias_copy(Tensor self) -> Tensor", "self"),
    same!("aten::lift(Tensor self) -> Tensor", "self"),
    same!("aten::lift_fresh(Tensor(a) self) -> Tensor(a)", "self"),
    same!("aten::lift_fresh_copy(Tensor self) -> Tensor", "self"),
    same!("aten::resolve_conj(Tensor(a) self) -> Tensor(a)", "self"),
    same!("aten::resolve_neg(Tensor(a) self) -> Tensor(a)", "self"),
    composite!("aten::detach(Tensor(a) self) -> Tensor(a)", detach),
    composite!("aten::detach_copy(Tensor self) -> Tensor", detach),
    composite!(
        "aten::_assert_tensor_metadata(Tensor a, SymInt[]? size=None, SymInt[]? stride=None, ScalarType? dtype=None, *, Device? device=None, Layout? layout=None) -> ()",
        assert_metadata
    ),
    // Guards on sizes were checked where they were made (`ir_core::Bounds`).
    composite!("aten::_assert_scalar(Scalar self, str assert_msg) -> ()", |_, _| Ok(Outs::new())),
    composite!("aten::sym_constrain_range(Scalar size, *, int? min=None, int? max=None) -> ()", |_, _| Ok(
        Outs::new()
    )),
    composite!(
        "aten::sym_constrain_range_for_size(Scalar size, *, int? min=None, int? max=None) -> ()",
        |_, _| Ok(Outs::new())
    ),
    // `src` in the shape and dtype of `self`
    composite!("aten::copy(Tensor self, Tensor src, bool non_blocking=False) -> Tensor", |b, c| {
        let (x, src) = (c.value("self")?, c.value("src")?);
        let (sizes, dtype) = (b.sizes(x)?, b.dtype(x)?);
        let src = b.cast(src, dtype)?;
        one(b.expand(src, &sizes)?)
    }),
    composite!("aten::fill.Scalar(Tensor self, Scalar value) -> Tensor", |b, c| {
        b.call("aten.full_like.default", vec![c.arg("self").clone(), c.arg("value").clone()])
    }),
    composite!("aten::fill.Tensor(Tensor self, Tensor value) -> Tensor", |b, c| {
        b.call("aten.copy.default", vec![c.arg("self").clone(), c.arg("value").clone()])
    }),
    composite!("aten::zero(Tensor self) -> Tensor", |b, c| {
        b.call("aten.full_like.default", vec![c.arg("self").clone(), 0i64.into()])
    }),
];

fn cast_as(b: &mut Builder<'_>, c: &Call<'_>) -> Result<Outs, OpError> {
    let dtype = b.dtype(c.value("other")?)?;
    one(b.cast(c.value("self")?, dtype)?)
}

/// Stays a prim: what follows must not be differentiated through it.
fn detach(b: &mut Builder<'_>, c: &Call<'_>) -> Result<Outs, OpError> {
    let x = c.value("self")?;
    if b.dtype(x)?.is_integral() { one(x) } else { b.call("prims.detach", vec![x.into()]) }
}

/// What the program was captured with must hold; sizes, strides and devices are the capture's own.
fn assert_metadata(b: &mut Builder<'_>, c: &Call<'_>) -> Result<Outs, OpError> {
    let meta = b.meta(c.value("a")?)?.clone();
    if let Some(dtype) = c.opt_dtype("dtype")?
        && dtype != meta.dtype
    {
        return Err(c.invalid(format!("the tensor is {}, the program expects {dtype}", meta.dtype)));
    }
    if let Some(sizes) = c.opt_syms("size")? {
        let what = || format!("the tensor is {meta}, the program expects sizes {sizes:?}");
        if sizes.len() != meta.rank() {
            return Err(c.invalid(what()));
        }
        for (have, want) in meta.sizes.iter().zip(&sizes) {
            b.require_equal(have, want, |_| what())?;
        }
    }
    Ok(Outs::new())
}
