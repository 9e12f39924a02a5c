//! Operators on lists of tensors (`_foreach_add`, …): the operator on one tensor applied to each item. Optimizers use
//! them. Their in-place forms have no entries, as everywhere.

use fx_ir::Arg;
use ir_core::SymExpr;

use crate::ops::shapes::shape;
use crate::{Builder, Call, OpDef, OpError, Outs};

/// An operator on every item. Arguments that are lists give an item each, all others are the same for all.
macro_rules! each {
    ($($schema:literal => $target:literal [$($name:literal),*];)*) => {
        /// The entries whose arguments are those of the operator on one tensor.
        pub(in crate::ops) const OPS: &[OpDef] = &[$(
            composite!($schema, |b, c| each(b, c, $target, &[$($name),*]))
        ),*];
    };
}

each! {
    "aten::_foreach_add.Scalar(Tensor[] self, Scalar scalar) -> Tensor[]" => "aten.add.Scalar" ["self", "scalar"];
    "aten::_foreach_add.List(Tensor[] self, Tensor[] other, *, Scalar alpha=1) -> Tensor[]" => "aten.add.Tensor" ["self", "other", "alpha"];
    "aten::_foreach_add.ScalarList(Tensor[] self, Scalar[] scalars) -> Tensor[]" => "aten.add.Scalar" ["self", "scalars"];
    "aten::_foreach_add.Tensor(Tensor[] self, Tensor other, *, Scalar alpha=1) -> Tensor[]" => "aten.add.Tensor" ["self", "other", "alpha"];
    "aten::_foreach_sub.Scalar(Tensor[] self, Scalar scalar) -> Tensor[]" => "aten.sub.Scalar" ["self", "scalar"];
    "aten::_foreach_sub.List(Tensor[] self, Tensor[] other, *, Scalar alpha=1) -> Tensor[]" => "aten.sub.Tensor" ["self", "other", "alpha"];
    "aten::_foreach_sub.ScalarList(Tensor[] self, Scalar[] scalars) -> Tensor[]" => "aten.sub.Scalar" ["self", "scalars"];
    "aten::_foreach_mul.Scalar(Tensor[] self, Scalar scalar) -> Tensor[]" => "aten.mul.Scalar" ["self", "scalar"];
    "aten::_foreach_mul.List(Tensor[] self, Tensor[] other) -> Tensor[]" => "aten.mul.Tensor" ["self", "other"];
    "aten::_foreach_mul.ScalarList(Tensor[] self, Scalar[] scalars) -> Tensor[]" => "aten.mul.Scalar" ["self", "scalars"];
    "aten::_foreach_mul.Tensor(Tensor[] self, Tensor other) -> Tensor[]" => "aten.mul.Tensor" ["self", "other"];
    "aten::_foreach_div.Scalar(Tensor[] self, Scalar scalar) -> Tensor[]" => "aten.div.Scalar" ["self", "scalar"];
    "aten::_foreach_div.List(Tensor[] self, Tensor[] other) -> Tensor[]" => "aten.div.Tensor" ["self", "other"];
    "aten::_foreach_div.ScalarList(Tensor[] self, Scalar[] scalars) -> Tensor[]" => "aten.div.Scalar" ["self", "scalars"];
    "aten::_foreach_div.Tensor(Tensor[] self, Tensor other) -> Tensor[]" => "aten.div.Tensor" ["self", "other"];
    "aten::_foreach_clamp_max.Scalar(Tensor[] self, Scalar scalar) -> Tensor[]" => "aten.clamp_max.default" ["self", "scalar"];
    "aten::_foreach_clamp_max.List(Tensor[] self, Tensor[] other) -> Tensor[]" => "aten.clamp_max.Tensor" ["self", "other"];
    "aten::_foreach_clamp_max.ScalarList(Tensor[] self, Scalar[] scalars) -> Tensor[]" => "aten.clamp_max.default" ["self", "scalars"];
    "aten::_foreach_clamp_min.Scalar(Tensor[] self, Scalar scalar) -> Tensor[]" => "aten.clamp_min.default" ["self", "scalar"];
    "aten::_foreach_clamp_min.List(Tensor[] self, Tensor[] other) -> Tensor[]" => "aten.clamp_min.Tensor" ["self", "other"];
    "aten::_foreach_clamp_min.ScalarList(Tensor[] self, Scalar[] scalars) -> Tensor[]" => "aten.clamp_min.default" ["self", "scalars"];
    "aten::_foreach_maximum.Scalar(Tensor[] self, Scalar scalar) -> Tensor[]" => "aten.clamp_min.default" ["self", "scalar"];
    "aten::_foreach_maximum.List(Tensor[] self, Tensor[] other) -> Tensor[]" => "aten.clamp_min.Tensor" ["self", "other"];
    "aten::_foreach_maximum.ScalarList(Tensor[] self, Scalar[] scalars) -> Tensor[]" => "aten.clamp_min.default" ["self", "scalars"];
    "aten::_foreach_minimum.Scalar(Tensor[] self, Scalar scalar) -> Tensor[]" => "aten.clamp_max.default" ["self", "scalar"];
    "aten::_foreach_minimum.List(Tensor[] self, Tensor[] other) -> Tensor[]" => "aten.clamp_max.Tensor" ["self", "other"];
    "aten::_foreach_minimum.ScalarList(Tensor[] self, Scalar[] scalars) -> Tensor[]" => "aten.clamp_max.default" ["self", "scalars"];
    "aten::_foreach_pow.List(Tensor[] self, Tensor[] exponent) -> Tensor[]" => "aten.pow.Tensor_Tensor" ["self", "exponent"];
    "aten::_foreach_pow.Scalar(Tensor[] self, Scalar exponent) -> Tensor[]" => "aten.pow.Tensor_Scalar" ["self", "exponent"];
    "aten::_foreach_pow.ScalarList(Tensor[] self, Scalar[] exponent) -> Tensor[]" => "aten.pow.Tensor_Scalar" ["self", "exponent"];
    "aten::_foreach_pow.ScalarAndTensor(Scalar self, Tensor[] exponent) -> Tensor[]" => "aten.pow.Scalar" ["self", "exponent"];
    "aten::_foreach_addcdiv.Scalar(Tensor[] self, Tensor[] tensor1, Tensor[] tensor2, Scalar value=1) -> Tensor[]" => "aten.addcdiv.default" ["self", "tensor1", "tensor2", "value"];
    "aten::_foreach_addcdiv.ScalarList(Tensor[] self, Tensor[] tensor1, Tensor[] tensor2, Scalar[] scalars) -> Tensor[]" => "aten.addcdiv.default" ["self", "tensor1", "tensor2", "scalars"];
    "aten::_foreach_addcmul.Scalar(Tensor[] self, Tensor[] tensor1, Tensor[] tensor2, Scalar value=1) -> Tensor[]" => "aten.addcmul.default" ["self", "tensor1", "tensor2", "value"];
    "aten::_foreach_addcmul.ScalarList(Tensor[] self, Tensor[] tensor1, Tensor[] tensor2, Scalar[] scalars) -> Tensor[]" => "aten.addcmul.default" ["self", "tensor1", "tensor2", "scalars"];
    "aten::_foreach_lerp.List(Tensor[] self, Tensor[] tensors1, Tensor[] weights) -> Tensor[]" => "aten.lerp.Tensor" ["self", "tensors1", "weights"];
    "aten::_foreach_lerp.Scalar(Tensor[] self, Tensor[] tensors1, Scalar weight) -> Tensor[]" => "aten.lerp.Scalar" ["self", "tensors1", "weight"];
    "aten::_foreach_lerp.ScalarList(Tensor[] self, Tensor[] tensors1, Scalar[] weight) -> Tensor[]" => "aten.lerp.Scalar" ["self", "tensors1", "weight"];
    "aten::_foreach_copy(Tensor[] self, Tensor[] src, bool non_blocking=False) -> Tensor[] self_out" => "aten.copy.default" ["self", "src"];
    "aten::_foreach_zero(Tensor[] self) -> Tensor[] self_out" => "aten.zero.default" ["self"];
    "aten::_foreach_max(Tensor[] self) -> Tensor[]" => "aten.max.default" ["self"];
    "aten::_foreach_abs(Tensor[] self) -> Tensor[]" => "aten.abs.default" ["self"];
    "aten::_foreach_acos(Tensor[] self) -> Tensor[]" => "aten.acos.default" ["self"];
    "aten::_foreach_asin(Tensor[] self) -> Tensor[]" => "aten.asin.default" ["self"];
    "aten::_foreach_atan(Tensor[] self) -> Tensor[]" => "aten.atan.default" ["self"];
    "aten::_foreach_ceil(Tensor[] self) -> Tensor[]" => "aten.ceil.default" ["self"];
    "aten::_foreach_cos(Tensor[] self) -> Tensor[]" => "aten.cos.default" ["self"];
    "aten::_foreach_cosh(Tensor[] self) -> Tensor[]" => "aten.cosh.default" ["self"];
    "aten::_foreach_erf(Tensor[] self) -> Tensor[]" => "aten.erf.default" ["self"];
    "aten::_foreach_erfc(Tensor[] self) -> Tensor[]" => "aten.erfc.default" ["self"];
    "aten::_foreach_exp(Tensor[] self) -> Tensor[]" => "aten.exp.default" ["self"];
    "aten::_foreach_expm1(Tensor[] self) -> Tensor[]" => "aten.expm1.default" ["self"];
    "aten::_foreach_floor(Tensor[] self) -> Tensor[]" => "aten.floor.default" ["self"];
    "aten::_foreach_frac(Tensor[] self) -> Tensor[]" => "aten.frac.default" ["self"];
    "aten::_foreach_lgamma(Tensor[] self) -> Tensor[]" => "aten.lgamma.default" ["self"];
    "aten::_foreach_log(Tensor[] self) -> Tensor[]" => "aten.log.default" ["self"];
    "aten::_foreach_log10(Tensor[] self) -> Tensor[]" => "aten.log10.default" ["self"];
    "aten::_foreach_log1p(Tensor[] self) -> Tensor[]" => "aten.log1p.default" ["self"];
    "aten::_foreach_log2(Tensor[] self) -> Tensor[]" => "aten.log2.default" ["self"];
    "aten::_foreach_neg(Tensor[] self) -> Tensor[]" => "aten.neg.default" ["self"];
    "aten::_foreach_reciprocal(Tensor[] self) -> Tensor[]" => "aten.reciprocal.default" ["self"];
    "aten::_foreach_round(Tensor[] self) -> Tensor[]" => "aten.round.default" ["self"];
    "aten::_foreach_rsqrt(Tensor[] self) -> Tensor[]" => "aten.rsqrt.default" ["self"];
    "aten::_foreach_sigmoid(Tensor[] self) -> Tensor[]" => "aten.sigmoid.default" ["self"];
    "aten::_foreach_sign(Tensor[] self) -> Tensor[]" => "aten.sign.default" ["self"];
    "aten::_foreach_sin(Tensor[] self) -> Tensor[]" => "aten.sin.default" ["self"];
    "aten::_foreach_sinh(Tensor[] self) -> Tensor[]" => "aten.sinh.default" ["self"];
    "aten::_foreach_sqrt(Tensor[] self) -> Tensor[]" => "aten.sqrt.default" ["self"];
    "aten::_foreach_tan(Tensor[] self) -> Tensor[]" => "aten.tan.default" ["self"];
    "aten::_foreach_tanh(Tensor[] self) -> Tensor[]" => "aten.tanh.default" ["self"];
    "aten::_foreach_trunc(Tensor[] self) -> Tensor[]" => "aten.trunc.default" ["self"];
}

/// The entries that are more than that.
pub(in crate::ops) const OTHER_OPS: &[OpDef] = &[
    composite!(
        "aten::_foreach_norm.Scalar(Tensor[] self, Scalar ord=2, ScalarType? dtype=None) -> Tensor[]",
        |b, c| {
            items(c, "self")?
                .into_iter()
                .map(|x| {
                    let args = vec![x, c.arg("ord").clone(), Arg::None, false.into(), c.arg("dtype").clone()];
                    b.call1("aten.linalg_vector_norm.default", args)
                })
                .collect()
        }
    ),
    composite!(
        "aten::_foreach_powsum.Scalar(Tensor[] self, Scalar ord=2, ScalarType? dtype=None) -> Tensor[]",
        |b, c| {
            items(c, "self")?
                .into_iter()
                .map(|x| {
                    let args = vec![x, c.arg("ord").clone(), Arg::None, false.into(), c.arg("dtype").clone()];
                    b.call1("aten.linalg__powsum.default", args)
                })
                .collect()
        }
    ),
    composite!(
        "aten::_foreach_addcdiv.Tensor(Tensor[] self, Tensor[] tensor1, Tensor[] tensor2, Tensor scalars) -> Tensor[]",
        |b, c| with_factors(b, c, "aten.addcdiv.default")
    ),
    composite!(
        "aten::_foreach_addcmul.Tensor(Tensor[] self, Tensor[] tensor1, Tensor[] tensor2, Tensor scalars) -> Tensor[]",
        |b, c| with_factors(b, c, "aten.addcmul.default")
    ),
];

fn items(c: &Call<'_>, name: &str) -> Result<Vec<Arg>, OpError> {
    match c.arg(name) {
        Arg::List(items) => Ok(items.clone()),
        _ => Err(c.bad_arg(name, "must be a list")),
    }
}

fn each(b: &mut Builder<'_>, c: &Call<'_>, target: &str, names: &[&str]) -> Result<Outs, OpError> {
    let is_list = |name: &&str| c.op.schema.arg_index(name).is_some_and(|i| c.op.schema.args[i].ty.list);
    let lists = names.iter().filter(|n| is_list(n)).map(|n| items(c, n)).collect::<Result<Vec<_>, _>>()?;
    let count = lists.first().map_or(0, Vec::len);
    if lists.iter().any(|list| list.len() != count) {
        return Err(c.invalid("its lists differ in length"));
    }
    let mut outs = Outs::new();
    for i in 0..count {
        let mut lists = lists.iter();
        let arg = |n: &&str| match is_list(n) {
            true => lists.next().map_or(Arg::None, |list| list[i].clone()),
            false => c.arg(n).clone(),
        };
        let args = names.iter().map(arg).collect();
        outs.push(b.call1(target, args)?);
    }
    Ok(outs)
}

/// `addcdiv` or `addcmul` with a vector of factors, one an item.
fn with_factors(b: &mut Builder<'_>, c: &Call<'_>, target: &str) -> Result<Outs, OpError> {
    let (x, first, second) = (items(c, "self")?, items(c, "tensor1")?, items(c, "tensor2")?);
    let factors = c.value("scalars")?;
    let sizes = b.sizes(factors)?;
    let count = SymExpr::from_i64(x.len() as i64);
    if first.len() != x.len() || second.len() != x.len() || sizes[..] != [count] {
        return Err(c.invalid("its lists differ in length"));
    }
    let mut outs = Outs::new();
    for (i, ((x, first), second)) in x.into_iter().zip(first).zip(second).enumerate() {
        let factor = shape::select(b, factors, 0, SymExpr::from_i64(i as i64))?;
        let scaled = b.call1("aten.mul.Tensor", vec![first, factor.into()])?;
        outs.push(b.call1(target, vec![x, scaled.into(), second])?);
    }
    Ok(outs)
}
