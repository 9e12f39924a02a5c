//! The prim of products with quantized weights, for networks whose weights alone are quantized. A pass builds it
//! (`aot_autograd::passes`), so that weights stay small in memory and are dequantized where they are multiplied.

use fx_ir::{Arg, ValueId, ValueType};
use ir_core::{DType, SymExpr};
use smallvec::SmallVec;
use tensor::{Tensor, linalg};

use crate::builder::tensor;
use crate::ops::primitive::shape::one;
use crate::shard_rule::ShardRule;
use crate::{
    Autocast, BatchRule, Call, ComplexRule, Grad, Kind, Lower, MetaCx, OpDef, OpError, RefCall, RefOut,
    Reference, Samples, TemplateSpec, Tolerance,
};

type Types = SmallVec<[ValueType; 1]>;

/// The entries.
pub(in crate::ops) const OPS: &[OpDef] = &[OpDef {
    schema: "prims::dequantized_matmul(Tensor a, Tensor b, Tensor factor, Tensor? zero) -> Tensor",
    kind: Kind::Prim {
        doc: "`a[m, k] · ((b[k, n] - zero[k / l, n]) * factor[k / l, n])` of floats and an `i8` or `u8` matrix `b`. `factor` and `zero` \
              (none is 0) are `f32` of sizes `[groups, n]`, and `l` is `k` in total divided by `groups`. Weights are rounded at most to \
              the dtype of `a`, which is that of the result.",
        meta,
        lower: Lower::Template(|c| {
            let c = &c.call;
            let dequant = Some((c.value("factor")?, c.opt_value("zero")?));
            Ok(TemplateSpec::Matmul { a: c.value("a")?, b: c.value("b")?, zero: 0, dequant, groups: None })
        }),
        complex: ComplexRule::REAL_ONLY,
        batch: BatchRule::Refused("products with quantized weights are made after all transforms"),
        shard: ShardRule::Whole("products with quantized weights are made after graphs are cut"),
        reference: Reference::Fn(reference),
    },
    grad: Grad::NotDifferentiable("its weights are integers"),
    tolerance: Tolerance::ACCUMULATE,
    autocast: Autocast::NONE,
    samples,
}];

fn samples(s: &mut Samples) {
    let value = |n: u32| Arg::Value(ValueId(n));
    let integers = |s: &Samples, name: &str, sizes: &[usize], dtype: DType| {
        s.ints(name, sizes, 200).to_dtype(dtype).expect("a sample fits memory")
    };
    let all = vec![value(0), value(1), value(2), value(3)];
    let symmetric = vec![value(0), value(1), value(2), Arg::None];
    s.add(
        vec![
            s.float("a", &[5, 8]),
            integers(s, "b", &[8, 3], DType::U8),
            s.float("f", &[2, 3]),
            s.float("z", &[2, 3]),
        ],
        all,
    );
    s.add(
        vec![s.float("a", &[1, 40]), integers(s, "b", &[40, 37], DType::I8), s.float("f", &[1, 37])],
        symmetric,
    );
}

fn meta(cx: &MetaCx<'_>, call: &Call<'_>) -> Result<Types, OpError> {
    let (a, b, factor) = (cx.meta(call, "a")?, cx.meta(call, "b")?, cx.meta(call, "factor")?);
    if !a.dtype.is_float()
        || a.dtype.compute() != DType::F32
        || !matches!(b.dtype, DType::I8 | DType::U8)
        || a.rank() != 2
        || b.rank() != 2
    {
        return Err(call.invalid(format!("{a} and {b} are not a matrix of floats and one of 8-bit integers")));
    }
    let sizes = super::template::product_sizes(cx, call, a, b)?;
    let groups = factor.sizes.first().and_then(SymExpr::as_const).filter(|g| *g > 0);
    let whole = groups.zip(b.sizes[0].as_const()).is_some_and(|(g, k)| k % g == 0);
    let zero = match call.opt_value("zero")? {
        Some(_) => Some(cx.meta(call, "zero")?),
        None => None,
    };
    let fits = factor.rank() == 2 && factor.sizes[1] == b.sizes[1] && factor.dtype == DType::F32;
    let same = zero.is_none_or(|z| z.dtype == DType::F32 && z.sizes == factor.sizes);
    if !whole || !fits || !same {
        return Err(call.bad_arg(
            "factor",
            format!("is {factor}, not one `f32` for each group of rows and each column"),
        ));
    }
    Ok(tensor(a.dtype, sizes))
}

fn reference(c: &RefCall<'_>) -> Result<RefOut, OpError> {
    let (b, factor) = (c.tensor("b")?, c.tensor("factor")?);
    let zero = c.opt_tensor("zero")?;
    let (n, rows) = (b.sizes()[1].max(1), b.sizes()[0] / factor.sizes()[0].max(1));
    let factor: Vec<f64> = factor.iter_f64().collect();
    let zero: Option<Vec<f64>> = zero.map(|z| z.iter_f64().collect());
    let value = |(i, x): (usize, f64)| {
        let at = i / n / rows.max(1) * n + i % n;
        (x - zero.as_ref().map_or(0.0, |z| z[at])) * factor[at]
    };
    let weights: Vec<f64> = b.iter_f64().enumerate().map(value).collect();
    let weights = Tensor::from_vec(weights, b.sizes()).map_err(|e| c.tensor_error(e))?;
    one(c, linalg::matmul(c.tensor("a")?, &weights, c.out().0))
}
