//! The usual operators as methods. Any other operator of the table is called by its name ([`Tensor::call`]).

use dynamo::Size;
use ir_core::DType;

use super::{Input, Tensor, call};
use crate::Error;

macro_rules! unary {
    ($($name:ident $doc:literal;)*) => {
        impl Tensor {$(
            #[doc = $doc]
            #[track_caller]
            pub fn $name(&self) -> Tensor {
                self.call(concat!("aten.", stringify!($name), ".default"), [])
            }
        )*}
    };
}

unary! {
    abs "Magnitude of every element.";
    acos "Inverse cosine of every element.";
    asin "Inverse sine of every element.";
    atan "Inverse tangent of every element.";
    ceil "Every element rounded up.";
    cos "Cosine of every element.";
    cosh "Hyperbolic cosine of every element.";
    erf "Error function of every element.";
    exp "e to the power of every element.";
    expm1 "e to the power of every element, minus one.";
    floor "Every element rounded down.";
    gelu "Gaussian error linear unit of every element.";
    hardswish "`x * relu6(x + 3) / 6` of every element.";
    isfinite "Whether every element is finite.";
    isnan "Whether every element is `NaN`.";
    log "Natural logarithm of every element.";
    log10 "Logarithm to base 10 of every element.";
    log1p "Natural logarithm of every element plus one.";
    log2 "Logarithm to base 2 of every element.";
    logical_not "Whether every element is zero.";
    mean "The mean of all elements.";
    mish "`x * tanh(softplus(x))` of every element.";
    neg "Minus every element.";
    prod "The product of all elements.";
    reciprocal "One over every element.";
    relu "Every element, zero where it is negative.";
    relu6 "Every element, between 0 and 6.";
    round "Every element rounded, halves to even.";
    rsqrt "One over the square root of every element.";
    sigmoid "Logistic function of every element.";
    sign "The sign of every element.";
    silu "`x * sigmoid(x)` of every element.";
    sin "Sine of every element.";
    sinh "Hyperbolic sine of every element.";
    sqrt "Square root of every element.";
    square "Every element times itself.";
    sum "The sum of all elements.";
    tan "Tangent of every element.";
    tanh "Hyperbolic tangent of every element.";
    trunc "Every element rounded towards zero.";
    any "Whether any element is not zero.";
    all "Whether no element is zero.";
    max "The largest element.";
    min "The smallest element.";
    nonzero "The positions of elements that are not zero, `[n, rank]` as `i64`.";
    contiguous "The same elements in row-major order.";
}

macro_rules! comparisons {
    ($($name:ident $doc:literal;)*) => {
        impl Tensor {$(
            #[doc = $doc]
            #[track_caller]
            pub fn $name(&self, other: impl Into<Input>) -> Tensor {
                let other = other.into();
                let overload = if matches!(other, Input::Tensor(_)) { "Tensor" } else { "Scalar" };
                self.call(&format!(concat!("aten.", stringify!($name), ".{}"), overload), [other])
            }
        )*}
    };
}

comparisons! {
    eq "Whether elements are equal to those of a tensor, or to a number.";
    ne "Whether elements differ from those of a tensor, or from a number.";
    lt "Whether elements are less than those of a tensor, or than a number.";
    le "Whether elements are at most those of a tensor, or a number.";
    gt "Whether elements are greater than those of a tensor, or than a number.";
    ge "Whether elements are at least those of a tensor, or a number.";
}

impl Tensor {
    /// The sum over dimensions.
    #[track_caller]
    pub fn sum_dims(&self, dims: &[i64], keepdim: bool) -> Tensor {
        self.call("aten.sum.dim_IntList", [dims.into(), keepdim.into()])
    }
    /// The mean over dimensions.
    #[track_caller]
    pub fn mean_dims(&self, dims: &[i64], keepdim: bool) -> Tensor {
        self.call("aten.mean.dim", [dims.into(), keepdim.into()])
    }
    /// The variance over dimensions, with Bessel's correction as a number (PyTorch's default is 1).
    #[track_caller]
    pub fn var_dims(&self, dims: &[i64], correction: i64, keepdim: bool) -> Tensor {
        self.call("aten.var.correction", [dims.into(), correction.into(), keepdim.into()])
    }
    /// The largest elements along a dimension, and their positions.
    ///
    /// # Errors
    /// There is no such dimension.
    #[track_caller]
    pub fn max_dim(&self, dim: i64, keepdim: bool) -> Result<(Tensor, Tensor), Error> {
        pair(self.call_all("aten.max.dim", [dim.into(), keepdim.into()])?)
    }
    /// The position of the largest element along a dimension.
    #[track_caller]
    pub fn argmax(&self, dim: i64, keepdim: bool) -> Tensor {
        self.call("aten.argmax.default", [dim.into(), keepdim.into()])
    }
    /// The `k` largest elements along a dimension, and their positions.
    ///
    /// # Errors
    /// There is no such dimension, or it is smaller than `k`.
    #[track_caller]
    pub fn topk(&self, k: i64, dim: i64) -> Result<(Tensor, Tensor), Error> {
        pair(self.call_all("aten.topk.default", [k.into(), dim.into()])?)
    }
    /// The sum of exponentials' logarithm over dimensions.
    #[track_caller]
    pub fn logsumexp(&self, dims: &[i64], keepdim: bool) -> Tensor {
        self.call("aten.logsumexp.default", [dims.into(), keepdim.into()])
    }
    /// Softmax along a dimension.
    #[track_caller]
    pub fn softmax(&self, dim: i64) -> Tensor {
        self.call("aten.softmax.int", [dim.into()])
    }
    /// The logarithm of softmax along a dimension.
    #[track_caller]
    pub fn log_softmax(&self, dim: i64) -> Tensor {
        self.call("aten.log_softmax.int", [dim.into()])
    }
    /// Running sums along a dimension.
    #[track_caller]
    pub fn cumsum(&self, dim: i64) -> Tensor {
        self.call("aten.cumsum.default", [dim.into()])
    }
    /// The matrix product, as `torch.matmul`.
    #[track_caller]
    pub fn matmul(&self, other: &Tensor) -> Tensor {
        self.call("aten.matmul.default", [other.into()])
    }
    /// To the power of a number or of another tensor's elements.
    #[track_caller]
    pub fn pow(&self, exponent: impl Into<Input>) -> Tensor {
        let exponent = exponent.into();
        let tensor = matches!(exponent, Input::Tensor(_));
        let target = if tensor { "aten.pow.Tensor_Tensor" } else { "aten.pow.Tensor_Scalar" };
        self.call(target, [exponent])
    }
    /// The larger of both elements.
    #[track_caller]
    pub fn maximum(&self, other: &Tensor) -> Tensor {
        self.call("aten.maximum.default", [other.into()])
    }
    /// The smaller of both elements.
    #[track_caller]
    pub fn minimum(&self, other: &Tensor) -> Tensor {
        self.call("aten.minimum.default", [other.into()])
    }
    /// Elements between `min` and `max`, of which either may be absent.
    #[track_caller]
    pub fn clamp(&self, min: Option<f64>, max: Option<f64>) -> Tensor {
        self.call("aten.clamp.default", [min.into(), max.into()])
    }
    /// Its element where the mask holds, else that of `other`.
    #[track_caller]
    pub fn where_(&self, mask: &Tensor, other: impl Into<Input>) -> Tensor {
        let other = other.into();
        let tensor = matches!(other, Input::Tensor(_));
        let target = if tensor { "aten.where.self" } else { "aten.where.ScalarOther" };
        call(target, [mask.into(), self.into(), other])
    }
    /// The number where the mask holds, else its own element.
    #[track_caller]
    pub fn masked_fill(&self, mask: &Tensor, value: f64) -> Tensor {
        self.call("aten.masked_fill.Scalar", [mask.into(), value.into()])
    }
    /// Converted to a dtype.
    #[track_caller]
    pub fn to(&self, dtype: DType) -> Tensor {
        self.call("aten.to.dtype", [dtype.into()])
    }
    /// A copy in memory of its own: `torch.clone`. (`Clone` gives the same tensor once more.)
    #[track_caller]
    pub fn copied(&self) -> Tensor {
        self.call("aten.clone.default", [])
    }
    /// In another shape; one size may be -1.
    #[track_caller]
    pub fn reshape(&self, sizes: &[impl Into<Size> + Clone]) -> Tensor {
        let sizes: Vec<Size> = sizes.iter().cloned().map(Into::into).collect();
        self.call("aten.reshape.default", [sizes.as_slice().into()])
    }
    /// Repeated along dimensions of size 1; -1 keeps a size.
    #[track_caller]
    pub fn expand(&self, sizes: &[impl Into<Size> + Clone]) -> Tensor {
        let sizes: Vec<Size> = sizes.iter().cloned().map(Into::into).collect();
        self.call("aten.expand.default", [sizes.as_slice().into()])
    }
    /// Dimensions from `start` to `end` as one.
    #[track_caller]
    pub fn flatten(&self, start: i64, end: i64) -> Tensor {
        self.call("aten.flatten.using_ints", [start.into(), end.into()])
    }
    /// Exchanges two dimensions.
    #[track_caller]
    pub fn transpose(&self, x: i64, y: i64) -> Tensor {
        self.call("aten.transpose.int", [x.into(), y.into()])
    }
    /// The transposed matrix.
    #[track_caller]
    pub fn t(&self) -> Tensor {
        self.call("aten.t.default", [])
    }
    /// Reorders dimensions.
    #[track_caller]
    pub fn permute(&self, dims: &[i64]) -> Tensor {
        self.call("aten.permute.default", [dims.into()])
    }
    /// Inserts a dimension of size 1.
    #[track_caller]
    pub fn unsqueeze(&self, dim: i64) -> Tensor {
        self.call("aten.unsqueeze.default", [dim.into()])
    }
    /// Removes a dimension of size 1.
    #[track_caller]
    pub fn squeeze(&self, dim: i64) -> Tensor {
        self.call("aten.squeeze.dim", [dim.into()])
    }
    /// One position of a dimension, which is removed.
    #[track_caller]
    pub fn select(&self, dim: i64, index: impl Into<Size>) -> Tensor {
        self.call("aten.select.int", [dim.into(), index.into().into()])
    }
    /// `length` positions of a dimension from `start`.
    #[track_caller]
    pub fn narrow(&self, dim: i64, start: impl Into<Size>, length: impl Into<Size>) -> Tensor {
        self.call("aten.narrow.default", [dim.into(), start.into().into(), length.into().into()])
    }
    /// Parts of a size along a dimension; the last may be smaller.
    ///
    /// # Errors
    /// There is no such dimension.
    #[track_caller]
    pub fn split(&self, size: impl Into<Size>, dim: i64) -> Result<Vec<Tensor>, Error> {
        self.call_all("aten.split.Tensor", [size.into().into(), dim.into()])
    }
    /// This many parts along a dimension.
    ///
    /// # Errors
    /// There is no such dimension.
    #[track_caller]
    pub fn chunk(&self, chunks: i64, dim: i64) -> Result<Vec<Tensor>, Error> {
        self.call_all("aten.chunk.default", [chunks.into(), dim.into()])
    }
    /// Elements at positions along a dimension, one for each element of `index`.
    #[track_caller]
    pub fn gather(&self, dim: i64, index: &Tensor) -> Tensor {
        self.call("aten.gather.default", [dim.into(), index.into()])
    }
    /// Rows at positions along a dimension.
    #[track_caller]
    pub fn index_select(&self, dim: i64, index: &Tensor) -> Tensor {
        self.call("aten.index_select.default", [dim.into(), index.into()])
    }
    /// The mean over all classes' negative log likelihood, of scores `[N, C, …]` and class numbers `[N, …]`.
    #[track_caller]
    pub fn cross_entropy(&self, target: &Tensor) -> Tensor {
        self.call("aten.cross_entropy_loss.default", [target.into()])
    }
    /// The mean of squared differences.
    #[track_caller]
    pub fn mse_loss(&self, target: &Tensor) -> Tensor {
        self.call("aten.mse_loss.default", [target.into()])
    }
}

fn pair(list: Vec<Tensor>) -> Result<(Tensor, Tensor), Error> {
    let mut list = list.into_iter();
    match (list.next(), list.next()) {
        (Some(a), Some(b)) => Ok((a, b)),
        _ => Err(Error::Internal("an operator with two results gave one".into())),
    }
}
