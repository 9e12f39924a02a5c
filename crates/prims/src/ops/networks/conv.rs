//! Convolutions: `prims.conv` and a broadcast bias.

use fx_ir::{Arg, ValueId};
use ir_core::{Shape, SymExpr};

use crate::ops::shapes::shape::{self, Made, out};
use crate::{Autocast, Builder, Call, OpDef, OpError};

macro_rules! conv {
    ($n:literal, $plain:literal, $padding:literal, $transposed:literal) => {
        [
            composite!($plain, |b, c| conv(b, c, $n, false)).autocast(Autocast::LOWER),
            composite!($padding, |b, c| conv(b, c, $n, false)).autocast(Autocast::LOWER),
            composite!($transposed, |b, c| conv(b, c, $n, true)).autocast(Autocast::LOWER),
        ]
    };
}

const CONV1D: [OpDef; 3] = conv!(
    1,
    "aten::conv1d(Tensor input, Tensor weight, Tensor? bias=None, SymInt[1] stride=[1], SymInt[1] padding=[0], SymInt[1] dilation=[1], SymInt groups=1) -> Tensor",
    "aten::conv1d.padding(Tensor input, Tensor weight, Tensor? bias=None, SymInt[1] stride=[1], str padding=\"valid\", SymInt[1] dilation=[1], SymInt groups=1) -> Tensor",
    "aten::conv_transpose1d(Tensor input, Tensor weight, Tensor? bias=None, SymInt[1] stride=[1], SymInt[1] padding=[0], SymInt[1] output_padding=[0], SymInt groups=1, SymInt[1] dilation=[1]) -> Tensor"
);
const CONV2D: [OpDef; 3] = conv!(
    2,
    "aten::conv2d(Tensor input, Tensor weight, Tensor? bias=None, SymInt[2] stride=[1, 1], SymInt[2] padding=[0, 0], SymInt[2] dilation=[1, 1], SymInt groups=1) -> Tensor",
    "aten::conv2d.padding(Tensor input, Tensor weight, Tensor? bias=None, SymInt[2] stride=[1, 1], str padding=\"valid\", SymInt[2] dilation=[1, 1], SymInt groups=1) -> Tensor",
    "aten::conv_transpose2d.input(Tensor input, Tensor weight, Tensor? bias=None, SymInt[2] stride=[1, 1], SymInt[2] padding=[0, 0], SymInt[2] output_padding=[0, 0], SymInt groups=1, SymInt[2] dilation=[1, 1]) -> Tensor"
);
const CONV3D: [OpDef; 3] = conv!(
    3,
    "aten::conv3d(Tensor input, Tensor weight, Tensor? bias=None, SymInt[3] stride=[1, 1, 1], SymInt[3] padding=[0, 0, 0], SymInt[3] dilation=[1, 1, 1], SymInt groups=1) -> Tensor",
    "aten::conv3d.padding(Tensor input, Tensor weight, Tensor? bias=None, SymInt[3] stride=[1, 1, 1], str padding=\"valid\", SymInt[3] dilation=[1, 1, 1], SymInt groups=1) -> Tensor",
    "aten::conv_transpose3d.input(Tensor input, Tensor weight, Tensor? bias=None, SymInt[3] stride=[1, 1, 1], SymInt[3] padding=[0, 0, 0], SymInt[3] output_padding=[0, 0, 0], SymInt groups=1, SymInt[3] dilation=[1, 1, 1]) -> Tensor"
);

/// The entries with a fixed number of dimensions, one list per number.
pub(in crate::ops) const CONV1D_OPS: &[OpDef] = &CONV1D;
/// See [`CONV1D_OPS`].
pub(in crate::ops) const CONV2D_OPS: &[OpDef] = &CONV2D;
/// See [`CONV1D_OPS`].
pub(in crate::ops) const CONV3D_OPS: &[OpDef] = &CONV3D;

/// The entries for any number of dimensions.
pub(in crate::ops) const OPS: &[OpDef] = &[
    composite!(
        "aten::convolution(Tensor input, Tensor weight, Tensor? bias, SymInt[] stride, SymInt[] padding, SymInt[] dilation, bool transposed, SymInt[] output_padding, SymInt groups) -> Tensor",
        any_conv
    ).autocast(Autocast::LOWER_ON_GPU),
    composite!(
        "aten::convolution_overrideable(Tensor input, Tensor weight, Tensor? bias, SymInt[] stride, SymInt[] padding, SymInt[] dilation, bool transposed, SymInt[] output_padding, SymInt groups) -> Tensor",
        any_conv
    ),
    composite!(
        "aten::_convolution(Tensor input, Tensor weight, Tensor? bias, SymInt[] stride, SymInt[] padding, SymInt[] dilation, bool transposed, SymInt[] output_padding, SymInt groups, bool benchmark, bool deterministic, bool cudnn_enabled, bool allow_tf32) -> Tensor",
        any_conv
    ).autocast(Autocast::LOWER),
    composite!(
        "aten::_convolution.deprecated(Tensor input, Tensor weight, Tensor? bias, SymInt[] stride, SymInt[] padding, SymInt[] dilation, bool transposed, int[] output_padding, SymInt groups, bool benchmark, bool deterministic, bool cudnn_enabled) -> Tensor",
        any_conv
    ).autocast(Autocast::LOWER),
    composite!(
        "aten::_convolution_mode(Tensor input, Tensor weight, Tensor? bias, SymInt[] stride, str padding, SymInt[] dilation, SymInt groups) -> Tensor",
        |b, c| {
            let n = spatial(b, c)?;
            conv(b, c, n, false)
        }
    ).autocast(Autocast::LOWER),
];

fn spatial(b: &Builder<'_>, c: &Call<'_>) -> Result<usize, OpError> {
    let rank = b.rank(c.value("weight")?)?;
    rank.checked_sub(2).filter(|n| *n > 0).ok_or_else(|| c.bad_arg("weight", "has too few dimensions"))
}

fn any_conv(b: &mut Builder<'_>, c: &Call<'_>) -> Made {
    let n = spatial(b, c)?;
    conv(b, c, n, c.bool("transposed")?)
}

/// Zeros before and after each dimension, in turn.
fn padding(b: &Builder<'_>, c: &Call<'_>, n: usize, dilation: &[i64]) -> Result<Vec<i64>, OpError> {
    let Arg::Str(mode) = c.arg("padding") else {
        return Ok(c.ints_n("padding", n, 0)?.into_iter().flat_map(|p| [p, p]).collect());
    };
    let window = b.sizes_of_rank(c.value("weight")?, n + 2..=n + 2)?;
    let mut pads = Vec::new();
    for d in 0..n {
        let reach = dilation[d] * (shape::known(c, &window[d + 2], "convolution window")? - 1);
        match &**mode {
            "valid" => pads.extend([0, 0]),
            // The odd one comes last.
            "same" => pads.extend([reach / 2, reach - reach / 2]),
            other => return Err(c.bad_arg("padding", format!("is `{other}`, neither `same` nor `valid`"))),
        }
    }
    Ok(pads)
}

fn conv(b: &mut Builder<'_>, c: &Call<'_>, n: usize, transposed: bool) -> Made {
    let (x, w) = (c.value("input")?, c.value("weight")?);
    let (stride, dilation) = (c.ints_n("stride", n, 1)?, c.ints_n("dilation", n, 1)?);
    let pads = padding(b, c, n, &dilation)?;
    if matches!(c.arg("padding"), Arg::Str(s) if &**s == "same") && stride.iter().any(|s| *s != 1) {
        return Err(c.invalid("`same` padding needs a stride of 1"));
    }
    let extra = if transposed { c.ints_n("output_padding", n, 0)? } else { vec![0; n] };
    let rank = b.rank(x)?;
    if rank != n + 1 && rank != n + 2 {
        return Err(c.invalid(format!("takes {} or {} dimensions, not {rank}", n + 1, n + 2)));
    }
    let batched = if rank == n + 1 { b.unsqueeze(x, 0)? } else { x };
    let list = |v: &[i64]| Arg::from(v);
    let args = vec![
        batched.into(),
        w.into(),
        list(&stride),
        list(&pads),
        list(&dilation),
        transposed.into(),
        list(&extra),
        c.int("groups")?.into(),
    ];
    let y = b.call1("prims.conv", args)?;
    let y = with_bias(b, c, y, n)?;
    out(if rank == n + 1 { shape::drop_dim(b, y, 0)? } else { y })
}

fn with_bias(b: &mut Builder<'_>, c: &Call<'_>, y: ValueId, n: usize) -> Result<ValueId, OpError> {
    let Some(bias) = c.opt_value("bias")? else { return Ok(y) };
    let mut sizes: Shape = std::iter::repeat_n(SymExpr::ONE, n + 1).collect();
    sizes[0] = b.sizes(y)?[1].clone();
    let bias = b.reshape(bias, &sizes)?;
    b.add(y, bias)
}
