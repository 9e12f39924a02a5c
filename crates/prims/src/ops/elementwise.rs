//! Elementwise composites of ATen: promotion and broadcasting, then prims.

use fx_ir::Arg;
use ir_core::Scalar;
use kernel_ir::ScalarOp;
use smallvec::smallvec;

use crate::promotion::Promote;
use crate::{Builder, Call, OpDef, OpError, Outs};

/// The usual elementwise entry: operands promoted, one scalar operator.
macro_rules! elementwise {
    ($schema:literal, $promote:ident, $op:ident, [$($arg:literal),+]) => {
        composite!($schema, |b, call| plain(b, call, Promote::$promote, ScalarOp::$op, &[$($arg),+]))
    };
}

/// The entries.
pub(super) const OPS: &[OpDef] = &[
    // self + alpha * other
    composite!("aten::add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor", |b, c| add_sub(
        b,
        c,
        ScalarOp::Add
    )),
    composite!("aten::sub.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor", |b, c| add_sub(
        b,
        c,
        ScalarOp::Sub
    )),
    elementwise!("aten::mul.Tensor(Tensor self, Tensor other) -> Tensor", Default, Mul, ["self", "other"]),
    elementwise!("aten::div.Tensor(Tensor self, Tensor other) -> Tensor", IntToFloat, Div, ["self", "other"]),
    elementwise!("aten::exp(Tensor self) -> Tensor", IntToFloat, Exp, ["self"]),
    elementwise!("aten::ge.Scalar(Tensor self, Scalar other) -> Tensor", AlwaysBool, Ge, ["self", "other"]),
    // max(self, 0)
    composite!("aten::relu(Tensor self) -> Tensor", |b, call| {
        let x = call.value("self")?;
        let zero = Scalar::Int(0).to_class_of(b.dtype(x)?);
        Ok(smallvec![b.maximum(x, zero)?])
    }),
];

fn plain(
    b: &mut Builder<'_>,
    call: &Call<'_>,
    rule: Promote,
    op: ScalarOp,
    names: &[&str],
) -> Result<Outs, OpError> {
    let operands: Vec<Arg> = names.iter().map(|n| call.arg(n).clone()).collect();
    let (operands, result) = b.promote(&operands, rule)?;
    let out = b.scalar_op(op, &operands)?;
    Ok(smallvec![b.cast(out, result)?])
}

fn add_sub(b: &mut Builder<'_>, call: &Call<'_>, op: ScalarOp) -> Result<Outs, OpError> {
    let (operands, _) =
        b.promote(&[call.arg("self").clone(), call.arg("other").clone()], Promote::Default)?;
    let [x, y] = [operands[0].clone(), operands[1].clone()];
    let y = match call.arg("alpha").as_scalar() {
        Some(Scalar::Int(1)) => y,
        _ => {
            let dtype = b.result_type(&operands)?;
            let alpha = b.as_dtype(call.arg("alpha"), dtype)?;
            Arg::Value(b.mul(y, alpha)?)
        }
    };
    Ok(smallvec![b.scalar_op(op, &[x, y])?])
}
