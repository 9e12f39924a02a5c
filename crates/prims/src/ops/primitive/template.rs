//! Prims that a backend computes by a template: matrix product, convolution, attention.

use fx_ir::{Arg, ValueId, ValueType};
use ir_core::{DType, SymExpr, TensorMeta};
use kernel_ir::ExternOp;
use smallvec::SmallVec;
use tensor::Tensor;

use crate::builder::tensor;
use crate::ops::shardings;
use crate::shard_rule::{LocalForm, ShardRule};
use crate::{
    Autocast, BatchRule, Call, ComplexRule, Grad, Kind, Lower, LowerCall, MetaCx, OpDef, OpError, Reference,
    Samples, TemplateSpec, Tolerance,
};

mod reference;

pub(in crate::ops::primitive) use reference::with_geometry;

type Types = SmallVec<[ValueType; 1]>;

/// The entries.
pub(in crate::ops) const OPS: &[OpDef] = &[
    OpDef {
        schema: "prims::matmul(Tensor a, Tensor b) -> Tensor",
        kind: Kind::Prim {
            doc: "`a[…, m, k] · b[…, k, n]`; equal batch sizes, equal dtype, at least two dimensions.",
            meta: meta_matmul,
            lower: Lower::Template(|c| {
                let (a, b) = (c.call.value("a")?, c.call.value("b")?);
                Ok(TemplateSpec::Matmul { a, b, zero: 0, dequant: None, groups: None })
            }),
            complex: ComplexRule::Rule(crate::ops::complex_numbers::prims::matmul),
            batch: BatchRule::Rule(crate::ops::batches::rules::matmul),
            shard: ShardRule::Ways(shardings::templates::matmul, LocalForm::Same),
            reference: Reference::Fn(reference::matmul),
        },
        grad: Grad::Rule(crate::ops::gradients::index::matmul),
        tolerance: Tolerance::ACCUMULATE,
        autocast: Autocast::NONE,
        samples: |s| {
            let two = || vec![Arg::Value(ValueId(0)), Arg::Value(ValueId(1))];
            s.add(vec![s.float("a", &[5, 7]), s.float("b", &[7, 3])], two());
            s.add(vec![s.float("a", &[2, 3, 1, 9]), s.float("b", &[2, 3, 9, 4])], two());
        },
    },
    OpDef {
        schema: "prims::conv(Tensor input, Tensor weight, int[] stride, int[] padding, int[] dilation, bool transposed, int[] output_padding, int groups) -> Tensor",
        kind: Kind::Prim {
            doc: "Cross-correlation of `[n, c, spatial…]` with `[o, c / groups, window…]`; `padding` has \
                  before and after of each spatial dimension in turn. Transposed: the weight is `[c, o / \
                  groups, window…]` and `output_padding` adds to the far end of the result.",
            meta: meta_conv,
            lower: Lower::Template(lower_conv),
            complex: ComplexRule::Rule(crate::ops::complex_numbers::prims::conv),
            batch: BatchRule::Rule(crate::ops::batches::conv::conv),
            shard: ShardRule::Ways(
                shardings::templates::conv,
                LocalForm::Args(shardings::templates::local_conv),
            ),
            reference: Reference::Fn(reference::conv),
        },
        grad: Grad::Rule(crate::ops::gradients::template::conv),
        tolerance: Tolerance::ACCUMULATE,
        autocast: Autocast::NONE,
        samples: |s| {
            let args = |transposed: bool, groups: i64| {
                let list = |v: &[i64]| Arg::from(v);
                let tensors = [Arg::Value(ValueId(0)), Arg::Value(ValueId(1))];
                let rest = [
                    list(&[2, 1]),
                    list(&[1, 1, 0, 2]),
                    list(&[1, 2]),
                    transposed.into(),
                    list(&[0, 0]),
                    groups.into(),
                ];
                tensors.into_iter().chain(rest).collect::<Vec<_>>()
            };
            s.add(vec![s.float("x", &[2, 4, 7, 8]), s.float("w", &[6, 4, 3, 3])], args(false, 1));
            s.add(vec![s.float("x", &[1, 4, 7, 8]), s.float("w", &[6, 2, 3, 2])], args(false, 2));
            s.add(vec![s.float("x", &[2, 4, 5, 6]), s.float("w", &[4, 3, 3, 3])], args(true, 1));
        },
    },
    OpDef {
        schema: "prims::attention(Tensor q, Tensor k, Tensor v, Tensor? mask, bool causal, float scale, Tensor? kept=None, float factor=1.) -> (Tensor out, Tensor sums)",
        kind: Kind::Prim {
            doc: "`softmax(q kᵀ · scale + mask) v` on `[b, h, l, d]`; `h` of `q` is a multiple of that of \
                  `k` and `v`. `mask` broadcasts to `[b, h, lq, lk]`: `bool` (true takes part) or a float \
                  that is added. `sums` `[b, h, lq]` is the logarithm of the sum of the exponentials of a \
                  row's scores, in the dtype of arithmetic. Where nothing takes part `out` is zero and `sums` \
                  minus infinity. `kept`, `i32` that broadcasts to `[b, h, lq, lk / 32]` (rounded up), says which \
                  weights the sum of the values has, times `factor`: bit `j % 32` of word `j / 32` is that of key `j`.",
            meta: meta_attention,
            lower: Lower::Template(|c| {
                Ok(TemplateSpec::Attention {
                    q: c.call.value("q")?,
                    k: c.call.value("k")?,
                    v: c.call.value("v")?,
                    mask: c.call.opt_value("mask")?,
                    sums: c.outs.get(1).copied(),
                    causal: c.call.bool("causal")?,
                    scale: c.call.float("scale")?,
                    dropout: dropout(&c.call)?,
                })
            }),
            complex: ComplexRule::NO_ORDER,
            batch: BatchRule::Rule(crate::ops::batches::rules::attention),
            shard: ShardRule::Ways(shardings::templates::attention, LocalForm::Same),
            reference: Reference::Fn(reference::attention),
        },
        grad: Grad::Rule(crate::ops::gradients::attention::attention),
        tolerance: Tolerance::ACCUMULATE,
        autocast: Autocast::NONE,
        samples: |s| {
            let t = |n: u32| Arg::Value(ValueId(n));
            let qkv = || {
                vec![s.float("q", &[2, 4, 5, 8]), s.float("k", &[2, 2, 6, 8]), s.float("v", &[2, 2, 6, 3])]
            };
            let [plain, causal, mut masked, mut added, mut hidden] = [(); 5].map(|()| qkv());
            masked.push(s.bools("m", &[2, 1, 5, 6]));
            added.push(s.float("b", &[4, 1, 6]));
            // The first row sees nothing.
            let seen = Tensor::from_vec((0..30).map(|i| tensor::Bool::from(i > 6)).collect(), &[5, 6]);
            hidden.push(seen.expect("a sample fits memory"));
            s.add(plain, vec![t(0), t(1), t(2), Arg::None, false.into(), 0.5.into()]);
            s.add(causal, vec![t(0), t(1), t(2), Arg::None, true.into(), 0.25.into()]);
            s.add(masked, vec![t(0), t(1), t(2), t(3), false.into(), 0.5.into()]);
            s.add(added, vec![t(0), t(1), t(2), t(3), true.into(), 0.5.into()]);
            s.add(hidden, vec![t(0), t(1), t(2), t(3), false.into(), 0.5.into()]);
            let mut dropped = vec![
                s.float("q", &[2, 4, 5, 8]),
                s.float("k", &[2, 2, 40, 8]),
                s.float("v", &[2, 2, 40, 3]),
                s.bools("m", &[5, 40]),
            ];
            dropped.push(s.words("kept", &[2, 4, 5, 2]));
            s.add(dropped, vec![t(0), t(1), t(2), t(3), false.into(), 0.5.into(), t(4), 1.5.into()]);
        },
    },
    OpDef {
        schema: "prims::attention_backward(Tensor grad, Tensor q, Tensor k, Tensor v, Tensor sums, Tensor deltas, Tensor? mask, bool causal, float scale, Tensor? kept=None, float factor=1.) -> (Tensor dq, Tensor dk, Tensor dv)",
        kind: Kind::Prim {
            doc: "Gradients of `prims.attention` from the cotangent `grad` of its `out`. With \
                  `s = q kᵀ · scale + mask`, weights `p = exp(s - sums)` (zero where nothing takes part) and \
                  `ds = p (grad vᵀ - deltas)`: `dq = ds k · scale`, `dk = dsᵀ q · scale`, `dv = pᵀ grad`. \
                  With `kept`, `m` `factor` where a weight is kept and else 0, `ds` is `p (m (grad vᵀ) - deltas)` \
                  and `dv` is `(p m)ᵀ grad`. `sums` is that of the attention, `deltas` the sum of `grad · out` over a row less the \
                  cotangent of `sums`; both are `[b, h, lq]` in the dtype of arithmetic.",
            meta: meta_attention_backward,
            lower: Lower::Extern(|c| {
                let (causal, scale) = (c.call.bool("causal")?, c.call.float("scale")?);
                let dropout = dropout(&c.call)?.map(|(_, factor)| factor);
                Ok(ExternOp::AttentionBackward { causal, scale, dropout, visibility: None })
            }),
            complex: ComplexRule::NO_ORDER,
            batch: BatchRule::Rule(crate::ops::batches::rules::attention_backward),
            shard: ShardRule::Ways(shardings::templates::attention_backward, LocalForm::Same),
            reference: Reference::Fn(reference::attention_backward),
        },
        grad: Grad::Rule(crate::ops::gradients::attention::attention_backward),
        tolerance: Tolerance::ACCUMULATE,
        autocast: Autocast::NONE,
        samples: attention_backward_samples,
    },
];

/// Sums and deltas that are those of no attention: the gradients are what they are for any.
fn attention_backward_samples(s: &mut Samples) {
    let t = |n: u32| Arg::Value(ValueId(n));
    let mut add = |mask: Option<Tensor>, causal: bool, scale: f64| {
        let mut tensors = vec![
            s.float("g", &[2, 4, 5, 3]),
            s.float("q", &[2, 4, 5, 8]),
            s.float("k", &[2, 2, 6, 8]),
            s.float("v", &[2, 2, 6, 3]),
            s.float("sums", &[2, 4, 5]),
            s.float("deltas", &[2, 4, 5]),
        ];
        let masked = if mask.is_some() { t(6) } else { Arg::None };
        tensors.extend(mask);
        let mut args: Vec<Arg> = (0..6).map(t).collect();
        args.extend([masked, causal.into(), scale.into()]);
        s.add(tensors, args);
    };
    add(None, false, 0.1);
    add(None, true, 0.2);
    let mask = Samples::default().bools("m", &[2, 1, 5, 6]);
    add(Some(mask), false, 0.1);
    let dropped = vec![
        s.float("g", &[2, 4, 5, 3]),
        s.float("q", &[2, 4, 5, 8]),
        s.float("k", &[2, 2, 40, 8]),
        s.float("v", &[2, 2, 40, 3]),
        s.float("sums", &[2, 4, 5]),
        s.float("deltas", &[2, 4, 5]),
        s.words("kept", &[2, 4, 5, 2]),
    ];
    let mut args: Vec<Arg> = (0..6).map(t).collect();
    args.extend([Arg::None, false.into(), 0.1.into(), t(6), 1.25.into()]);
    s.add(dropped, args);
}

/// The words of the weights that an attention keeps, and the factor on these.
fn dropout(call: &Call<'_>) -> Result<Option<(ValueId, f64)>, OpError> {
    let Some(kept) = call.opt_value("kept")? else { return Ok(None) };
    Ok(Some((kept, call.float("factor")?)))
}

fn meta_matmul(cx: &MetaCx<'_>, call: &Call<'_>) -> Result<Types, OpError> {
    let (a, b) = (cx.meta(call, "a")?, cx.meta(call, "b")?);
    if a.dtype != b.dtype {
        return Err(call.invalid(format!("{a} and {b} do not multiply")));
    }
    Ok(tensor(a.dtype, product_sizes(cx, call, a, b)?))
}

/// The sizes of a product.
pub(super) fn product_sizes(
    cx: &MetaCx<'_>,
    call: &Call<'_>,
    a: &TensorMeta,
    b: &TensorMeta,
) -> Result<Vec<SymExpr>, OpError> {
    let rank = a.rank();
    if rank < 2 || b.rank() != rank {
        return Err(call.invalid(format!("{a} and {b} do not multiply")));
    }
    let what = || format!("sizes {} and {} do not multiply", cx.text(&a.sizes), cx.text(&b.sizes));
    cx.equal_sizes(call, &a.sizes[..rank - 2], &b.sizes[..rank - 2], what)?;
    cx.equal(call, &a.sizes[rank - 1], &b.sizes[rank - 2], what)?;
    Ok(a.sizes[..rank - 1].iter().chain([&b.sizes[rank - 1]]).cloned().collect())
}

/// Window geometry of a convolution call.
pub(super) struct Geometry {
    pub(super) stride: Vec<i64>,
    pub(super) padding: Vec<(i64, i64)>,
    pub(super) dilation: Vec<i64>,
    output_padding: Vec<i64>,
    pub(super) groups: i64,
    transposed: bool,
}

fn geometry(call: &Call<'_>) -> Result<Geometry, OpError> {
    geometry_of(call, call.bool("transposed")?, call.ints("output_padding")?)
}

/// The geometry of a call whose schema may lack these two arguments.
pub(super) fn geometry_of(
    call: &Call<'_>,
    transposed: bool,
    output_padding: Vec<i64>,
) -> Result<Geometry, OpError> {
    let pads = call.ints("padding")?;
    let g = Geometry {
        stride: call.ints("stride")?,
        padding: pads.chunks(2).map(|p| (p[0], *p.last().unwrap_or(&0))).collect(),
        dilation: call.ints("dilation")?,
        output_padding,
        groups: call.int("groups")?,
        transposed,
    };
    if g.stride.iter().chain(&g.dilation).any(|&x| x < 1) || g.groups < 1 {
        return Err(call.invalid("stride, dilation and groups must be positive"));
    }
    call.of_windows("padding", &pads)?;
    call.of_windows("groups", &[g.groups])?;
    call.of_windows("output_padding", &g.output_padding)?;
    call.of_windows("stride", &g.stride)?;
    call.of_windows("dilation", &g.dilation)?;
    Ok(g)
}

fn meta_conv(cx: &MetaCx<'_>, call: &Call<'_>) -> Result<Types, OpError> {
    let (x, w, g) = (cx.meta(call, "input")?, cx.meta(call, "weight")?, geometry(call)?);
    if x.dtype != w.dtype {
        return Err(call.invalid(format!("{x} and {w} do not convolve")));
    }
    Ok(tensor(x.dtype, window_sizes(cx, call, (x, w), &g)?))
}

/// The sizes of a convolution's result.
pub(super) fn window_sizes(
    cx: &MetaCx<'_>,
    call: &Call<'_>,
    (x, w): (&TensorMeta, &TensorMeta),
    g: &Geometry,
) -> Result<Vec<SymExpr>, OpError> {
    let spatial = g.stride.len();
    let fits = x.rank() == spatial + 2 && w.rank() == spatial + 2;
    if !fits || g.padding.len() != spatial || g.dilation.len() != spatial || g.output_padding.len() != spatial
    {
        return Err(call.invalid(format!("{x} and {w} do not convolve in {spatial} dimensions")));
    }
    let channels = if g.transposed { w.sizes[0].clone() } else { &w.sizes[1] * g.groups };
    let text = |e: &SymExpr| cx.graph.size_text(e);
    cx.equal(call, &x.sizes[1], &channels, || {
        format!("the input has {} channels, the weight wants {}", text(&x.sizes[1]), text(&channels))
    })?;
    cx.equal(call, &w.sizes[0].modulo(&g.groups.into()), &SymExpr::ZERO, || {
        format!("{} channels of the weight are not {} equal groups", text(&w.sizes[0]), g.groups)
    })?;
    let out_channels = if g.transposed { &w.sizes[1] * g.groups } else { w.sizes[0].clone() };
    let mut sizes = vec![x.sizes[0].clone(), out_channels];
    for d in 0..spatial {
        let (size, pad) = (&x.sizes[d + 2], g.padding[d].0 + g.padding[d].1);
        let reach = (&w.sizes[d + 2] - 1) * g.dilation[d];
        let what = || {
            let (window, size) = (text(&w.sizes[d + 2]), text(size));
            format!(
                "a window of {window} (dilation {}) is larger than {size} and padding of {pad}",
                g.dilation[d]
            )
        };
        let out = if g.transposed {
            (size - 1) * g.stride[d] - SymExpr::from_i64(pad) + reach + g.output_padding[d] + 1
        } else {
            let room = size + SymExpr::from_i64(pad) - reach - 1;
            cx.non_negative(call, &room, what)?;
            room.floor_div(&SymExpr::from_i64(g.stride[d])) + 1
        };
        if g.transposed {
            cx.non_negative(call, &out, what)?;
        }
        sizes.push(out);
    }
    Ok(sizes)
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
        transposed: g.transposed,
        zero: 0,
    })
}

fn meta_attention(cx: &MetaCx<'_>, call: &Call<'_>) -> Result<Types, OpError> {
    let (q, k, v) = (cx.meta(call, "q")?, cx.meta(call, "k")?, cx.meta(call, "v")?);
    if q.rank() != 4 || k.rank() != 4 || v.rank() != 4 || q.dtype != k.dtype || q.dtype != v.dtype {
        return Err(call.invalid(format!("{q}, {k} and {v} are not [b, h, l, d] operands of one dtype")));
    }
    attend(cx, call, q, k, v)?;
    let sizes = q.sizes[..3].iter().chain([&v.sizes[3]]).cloned();
    let mut types = tensor(q.dtype, sizes);
    types.extend(tensor(q.dtype.compute(), q.sizes[..3].iter().cloned()));
    Ok(types)
}

/// Sizes of operands that belong together.
fn attend(
    cx: &MetaCx<'_>,
    call: &Call<'_>,
    q: &TensorMeta,
    k: &TensorMeta,
    v: &TensorMeta,
) -> Result<(), OpError> {
    let what = || {
        let [q, k, v] = [q, k, v].map(|m| cx.text(&m.sizes));
        format!("sizes {q}, {k} and {v} are not those of queries, keys and values")
    };
    cx.equal_sizes(call, &k.sizes[..3], &v.sizes[..3], what)?;
    cx.equal(call, &q.sizes[0], &k.sizes[0], what)?;
    cx.equal(call, &q.sizes[3], &k.sizes[3], what)?;
    if q.sizes[1] != k.sizes[1] {
        cx.equal(call, &q.sizes[1].modulo(&k.sizes[1]), &SymExpr::ZERO, what)?;
    }
    let words = k.sizes[2].ceil_div(&SymExpr::from_i64(kernel_ir::Dropout::KEYS));
    for (name, last) in [("mask", &k.sizes[2]), ("kept", &words)] {
        let Some(operand) = call.opt_value(name)?.and_then(|v| cx.graph.meta(v)) else { continue };
        if name == "kept" && operand.dtype != DType::I32 {
            return Err(call.bad_arg(name, format!("is {operand}, no words of `i32`")));
        }
        let scores = [&q.sizes[0], &q.sizes[1], &q.sizes[2], last];
        let Some(lead) = 4usize.checked_sub(operand.rank()) else {
            return Err(call.bad_arg(name, format!("is {operand}, with more than 4 dimensions")));
        };
        let pairs = operand.sizes.iter().zip(&scores[lead..]);
        for (have, want) in pairs.filter(|(have, _)| **have != SymExpr::ONE) {
            cx.equal(call, have, want, || {
                let scores: Vec<String> = scores.iter().map(|s| cx.graph.size_text(s)).collect();
                let sizes = cx.text(&operand.sizes);
                format!("`{name}` of sizes {sizes} does not fit scores [{}]", scores.join(", "))
            })?;
        }
    }
    Ok(())
}

fn meta_attention_backward(cx: &MetaCx<'_>, call: &Call<'_>) -> Result<Types, OpError> {
    // The operands of the attention obey its rule.
    meta_attention(cx, call)?;
    let (g, q, sums, deltas) =
        (cx.meta(call, "grad")?, cx.meta(call, "q")?, cx.meta(call, "sums")?, cx.meta(call, "deltas")?);
    let of_rows = |m: &TensorMeta| m.rank() == 3 && m.dtype == q.dtype.compute();
    if g.rank() != 4 || g.dtype != q.dtype || !of_rows(sums) || !of_rows(deltas) {
        return Err(call.invalid(format!("{g}, {sums} and {deltas} are no cotangent and numbers of rows")));
    }
    let what = || format!("{g}, {sums} and {deltas} do not fit the queries {q}");
    cx.equal_sizes(call, &g.sizes[..3], &q.sizes[..3], what)?;
    cx.equal(call, &g.sizes[3], &cx.meta(call, "v")?.sizes[3], what)?;
    cx.equal_sizes(call, &sums.sizes, &q.sizes[..3], what)?;
    cx.equal_sizes(call, &deltas.sizes, &q.sizes[..3], what)?;
    let mut types = Types::new();
    for operand in ["q", "k", "v"] {
        let meta = cx.meta(call, operand)?;
        types.extend(tensor(meta.dtype, meta.sizes.iter().cloned()));
    }
    Ok(types)
}
