//! Prims of 8-bit integers with exact sums: the products and convolutions that quantized networks are made of. A pass builds
//! them (`aot_autograd::passes`); scales, and zero points that data decides, are ordinary arithmetic around them.

use fx_ir::{Arg, ValueId, ValueType};
use ir_core::DType;
use smallvec::SmallVec;
use tensor::{Tensor, linalg};

use crate::builder::tensor;
use crate::ops::primitive::shape::one;
use crate::shard_rule::ShardRule;
use crate::{
    Autocast, BatchRule, Call, ComplexRule, Grad, Kind, Lower, LowerCall, MetaCx, OpDef, OpError, RefCall,
    RefOut, Reference, Samples, TemplateSpec, Tolerance,
};

type Types = SmallVec<[ValueType; 1]>;

const NO_GRADIENT: Grad = Grad::NotDifferentiable("it is a function of integers");
const NO_BATCH: BatchRule =
    BatchRule::Refused("products of integers are made of dequantized ones, after all transforms");
const WHOLE: ShardRule = ShardRule::Whole("products of integers are made after graphs are cut");

/// The entries.
pub(in crate::ops) const OPS: &[OpDef] = &[
    OpDef {
        schema: "prims::integer_matmul(Tensor a, Tensor b, int zero) -> Tensor",
        kind: Kind::Prim {
            doc: "`(a[…, m, k] - zero) · b[…, k, n]` of `i8` or `u8` (which may differ), exact in `i32` (sums \
                  beyond it wrap); equal batch sizes. `zero` is a number of `a`'s dtype.",
            meta: meta_matmul,
            lower: Lower::Template(|c| {
                let (a, b) = (c.call.value("a")?, c.call.value("b")?);
                Ok(TemplateSpec::Matmul { a, b, zero: c.call.int("zero")?, dequant: None, groups: None })
            }),
            complex: ComplexRule::REAL_ONLY,
            batch: NO_BATCH,
            shard: WHOLE,
            reference: Reference::Fn(ref_matmul),
        },
        grad: NO_GRADIENT,
        tolerance: Tolerance::EXACT,
        autocast: Autocast::NONE,
        samples: |s| {
            let args = |zero: i64| vec![Arg::Value(ValueId(0)), Arg::Value(ValueId(1)), zero.into()];
            s.add(vec![bytes(s, "a", &[5, 7]), signed(s, "b", &[7, 3])], args(0));
            s.add(vec![bytes(s, "a", &[19, 40]), signed(s, "b", &[40, 37])], args(131));
            s.add(vec![signed(s, "a", &[2, 3, 9]), signed(s, "b", &[2, 9, 4])], args(-5));
        },
    },
    OpDef {
        schema: "prims::integer_conv(Tensor input, Tensor weight, int[] stride, int[] padding, int[] dilation, int groups, int zero) -> Tensor",
        kind: Kind::Prim {
            doc: "As `prims.conv`, of `i8` or `u8` operands (which may differ), exact in `i32` (sums beyond it \
                  wrap). `zero`, a number of the input's dtype, is subtracted from each element of the input; \
                  padding is zero afterwards.",
            meta: meta_conv,
            lower: Lower::Template(lower_conv),
            complex: ComplexRule::REAL_ONLY,
            batch: NO_BATCH,
            shard: WHOLE,
            reference: Reference::Fn(ref_conv),
        },
        grad: NO_GRADIENT,
        tolerance: Tolerance::EXACT,
        autocast: Autocast::NONE,
        samples: conv_samples,
    },
];

fn conv_samples(s: &mut Samples) {
    let args = |groups: i64, zero: i64| {
        let list = |v: &[i64]| Arg::from(v);
        let tensors = [Arg::Value(ValueId(0)), Arg::Value(ValueId(1))];
        let rest = [list(&[2, 1]), list(&[1, 1, 0, 2]), list(&[1, 2]), groups.into(), zero.into()];
        tensors.into_iter().chain(rest).collect::<Vec<_>>()
    };
    s.add(vec![bytes(s, "x", &[2, 4, 7, 8]), signed(s, "w", &[6, 4, 3, 3])], args(1, 117));
    s.add(vec![signed(s, "x", &[1, 4, 7, 8]), signed(s, "w", &[6, 2, 3, 2])], args(2, -3));
    s.add(vec![bytes(s, "x", &[1, 5, 7, 8]), signed(s, "w", &[5, 1, 3, 3])], args(5, 3));
}

/// A `u8` tensor.
fn bytes(s: &Samples, name: &str, sizes: &[usize]) -> Tensor {
    s.ints(name, sizes, 256).to_dtype(DType::U8).expect("a sample fits memory")
}

/// An `i8` tensor.
fn signed(s: &Samples, name: &str, sizes: &[usize]) -> Tensor {
    bytes(s, name, sizes).to_dtype(DType::I8).expect("a sample fits memory")
}

/// Checks the dtypes of both operands and the zero point.
fn operands(cx: &MetaCx<'_>, call: &Call<'_>, a: &str, b: &str) -> Result<(), OpError> {
    let (x, y) = (cx.meta(call, a)?, cx.meta(call, b)?);
    let short = |d: DType| matches!(d, DType::I8 | DType::U8);
    if !short(x.dtype) || !short(y.dtype) {
        return Err(call.invalid(format!("{x} and {y} are not tensors of 8-bit integers")));
    }
    let range = if x.dtype == DType::U8 { 0..=255 } else { -128..=127 };
    let zero = call.int("zero")?;
    if range.contains(&zero) {
        return Ok(());
    }
    Err(call.bad_arg("zero", format!("is {zero}, which {} cannot hold", x.dtype)))
}

fn meta_matmul(cx: &MetaCx<'_>, call: &Call<'_>) -> Result<Types, OpError> {
    operands(cx, call, "a", "b")?;
    let (a, b) = (cx.meta(call, "a")?, cx.meta(call, "b")?);
    Ok(tensor(DType::I32, super::template::product_sizes(cx, call, a, b)?))
}

fn meta_conv(cx: &MetaCx<'_>, call: &Call<'_>) -> Result<Types, OpError> {
    operands(cx, call, "input", "weight")?;
    let (x, w) = (cx.meta(call, "input")?, cx.meta(call, "weight")?);
    let g = geometry(call)?;
    Ok(tensor(DType::I32, super::template::window_sizes(cx, call, (x, w), &g)?))
}

/// The geometry of a convolution that is not transposed.
fn geometry(call: &Call<'_>) -> Result<super::template::Geometry, OpError> {
    super::template::geometry_of(call, false, vec![0; call.ints("stride")?.len()])
}

fn lower_conv(c: &LowerCall<'_>) -> Result<TemplateSpec, OpError> {
    let g = geometry(&c.call)?;
    Ok(TemplateSpec::Conv {
        input: c.call.value("input")?,
        weight: c.call.value("weight")?,
        stride: g.stride,
        padding: g.padding,
        dilation: g.dilation,
        groups: g.groups,
        transposed: false,
        zero: c.call.int("zero")?,
    })
}

/// The operand less the zero point.
fn shifted(c: &RefCall<'_>, name: &str) -> Result<Tensor, OpError> {
    let (x, zero) = (c.tensor(name)?, c.int("zero")?);
    let moved: Vec<i64> = x.iter().map(|x| x.as_i64() - zero).collect();
    Tensor::from_vec(moved, x.sizes()).map_err(|e| c.tensor_error(e))
}

fn ref_matmul(c: &RefCall<'_>) -> Result<RefOut, OpError> {
    one(c, linalg::matmul(&shifted(c, "a")?, c.tensor("b")?, c.out().0))
}

fn ref_conv(c: &RefCall<'_>) -> Result<RefOut, OpError> {
    super::template::with_geometry(c, false, |geometry| {
        one(c, linalg::conv(&shifted(c, "input")?, c.tensor("weight")?, geometry, c.out().0))
    })
}
