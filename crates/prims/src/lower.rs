//! Lowering of prims to loops. A lowering rule is a function from an output point to a value; it runs once, while lowering,
//! and the instructions that it builds are recorded as a loop body. `inductor` sees the recorded bodies, never the
//! functions.
//!
//! In a recorded body a graph value represents its buffer: `BufId` has the number of the `ValueId`.

use fx_ir::{Arg, Graph, ValueId};
use ir_core::{DType, Shape, SymExpr, TensorMeta};
use kernel_ir::{Along, BodyBuilder, BufId, ExternOp, ReduceOp, ScalarOp, Site, StoreMode, Val};

use crate::{Call, OpError};

/// How a backend computes a prim.
pub enum Lower {
    /// One scalar operator over operands of one shape (16-bit floats through `f32`).
    Scalar(ScalarOp),
    /// A value for every output point.
    Loop(fn(&mut LoopCx<'_>) -> Result<Val, OpError>),
    /// Reduces argument `a` over the dimensions of argument `dims`; the result lacks these dimensions.
    Reduce(ReduceOp),
    /// Running combination of argument `a` along argument `dim`.
    Scan(ReduceOp),
    /// Copies a base, then combines values into it at computed points.
    Scatter {
        /// The argument over whose points the rule runs.
        source: &'static str,
        /// The index of each point in the result.
        rule: fn(&mut LoopCx<'_>) -> Result<ScatterSpec, OpError>,
    },
    /// A template.
    Template(fn(&LowerCall<'_>) -> Result<TemplateSpec, OpError>),
    /// A routine that is not a loop nest.
    Extern(fn(&LowerCall<'_>) -> Result<ExternOp, OpError>),
    /// No backend computes it yet, for this reason; `eager` does.
    Unsupported(&'static str),
}

/// A call with the graph it is in.
#[derive(Clone, Copy)]
pub struct LowerCall<'a> {
    /// The call.
    pub call: Call<'a>,
    /// Its graph.
    pub graph: &'a Graph,
    /// Its results.
    pub outs: &'a [ValueId],
}

impl<'a> LowerCall<'a> {
    /// The meta of a value.
    pub fn meta_of(&self, v: ValueId) -> Result<&'a TensorMeta, OpError> {
        self.graph.meta(v).ok_or_else(|| self.call.invalid("an operand is not a tensor"))
    }
    /// The meta of a tensor argument.
    pub fn meta(&self, arg: &str) -> Result<&'a TensorMeta, OpError> {
        self.meta_of(self.call.value(arg)?)
    }
    /// The meta of result `n`.
    pub fn out(&self, n: usize) -> Result<&'a TensorMeta, OpError> {
        let v = self.outs.get(n).copied().ok_or_else(|| self.call.invalid("has no such result"))?;
        self.meta_of(v)
    }
}

/// The context of a loop rule: the body under construction and the output point.
pub struct LoopCx<'a> {
    /// The body.
    pub b: BodyBuilder,
    /// The call.
    pub call: LowerCall<'a>,
    /// The output point, one expression per dimension (the source point in a scatter).
    pub index: Shape,
    /// The number of the result.
    pub which: usize,
    /// The origins of the index checks in the body, by number.
    pub sites: Vec<Site>,
    /// Whether indices from data are checked at all.
    pub checked: bool,
}

impl<'a> LoopCx<'a> {
    /// A context at the point `i0, i1, …` of a domain with `rank` dimensions.
    pub fn new(call: LowerCall<'a>, rank: usize, which: usize) -> LoopCx<'a> {
        let index = (0..rank as u32).map(SymExpr::loop_var).collect();
        LoopCx { b: BodyBuilder::new(), call, index, which, sites: Vec::new(), checked: true }
    }
    /// A value from data as an index along dimension `dim`, of this size, of the call's operand: checked at run time.
    pub fn check(&mut self, at: Val, size: SymExpr, dim: usize) -> Val {
        let node = self.call.outs.first().map(|v| self.call.graph.values[*v].def);
        let Some(node) = node.filter(|_| self.checked) else { return self.b.cast(at, DType::I64) };
        let site = crate::site(self.call.graph, node, dim);
        let number = self.sites.iter().position(|s| *s == site).unwrap_or(self.sites.len());
        if number == self.sites.len() {
            self.sites.push(site);
        }
        self.b.check(at, size, None, number as u32)
    }
    /// The element of `index` at the point `at` as an index along dimension `dim` of the tensor `of`.
    pub fn index_from(
        &mut self,
        index: ValueId,
        at: Shape,
        of: ValueId,
        dim: usize,
    ) -> Result<SymExpr, OpError> {
        let missing =
            || self.call.call.invalid("has an index for a dimension that its operand does not have");
        let size = self.call.meta_of(of)?.sizes.get(dim).cloned().ok_or_else(missing)?;
        let number = self.load(index, at)?;
        let checked = self.check(number, size, dim);
        Ok(self.b.as_index(checked))
    }
    /// An element of a value, in its own dtype.
    pub fn load(&mut self, v: ValueId, index: Shape) -> Result<Val, OpError> {
        let meta = self.call.meta_of(v)?;
        debug_assert_eq!(meta.rank(), index.len(), "{}", self.call.call.name());
        Ok(self.b.load(BufId(v.0), meta.dtype, index))
    }
    /// An element of a value where `mask` holds, else zero; memory is not touched where it does not.
    pub fn load_masked(&mut self, v: ValueId, index: Shape, mask: Val) -> Result<Val, OpError> {
        let meta = self.call.meta_of(v)?;
        Ok(self.b.load_masked(BufId(v.0), meta.dtype, index, mask))
    }
    /// An element of a tensor argument.
    pub fn load_arg(&mut self, arg: &str, index: Shape) -> Result<Val, OpError> {
        let v = self.call.call.value(arg)?;
        self.load(v, index)
    }
    /// An operand at the output point: an element of a tensor, or a number as `dtype`.
    pub fn operand(&mut self, arg: &Arg, dtype: DType) -> Result<Val, OpError> {
        match arg {
            Arg::Value(v) => {
                let index = self.index.clone();
                self.load(*v, index)
            }
            Arg::Int(e) if e.as_const().is_none() => {
                let value = self.b.index(e.clone());
                Ok(self.b.cast(value, dtype))
            }
            other => match other.as_scalar() {
                Some(s) => Ok(self.b.constant(s, dtype)),
                None => Err(self.call.call.invalid("an operand is neither a tensor nor a number")),
            },
        }
    }
    /// The value in the dtype that arithmetic on it is done in (`f32` for 16-bit floats).
    pub fn to_compute(&mut self, v: Val) -> Val {
        let dtype = self.b.dtype(v).compute();
        self.b.cast(v, dtype)
    }
    /// `0 <= e < bound` as a `bool` value.
    pub fn in_range(&mut self, e: &SymExpr, bound: &SymExpr) -> Val {
        let (zero, e, bound) =
            (self.b.constant(0, DType::I64), self.b.index(e.clone()), self.b.index(bound.clone()));
        let low = self.b.op(ScalarOp::Ge, &[e, zero]);
        let high = self.b.op(ScalarOp::Lt, &[e, bound]);
        self.b.op(ScalarOp::And, &[low, high])
    }
}

/// A scatter: the result is `base` with `value` combined in at `index` for every point of `ranges`.
pub struct ScatterSpec {
    /// The value before the scatter, of the result's shape.
    pub base: ValueId,
    /// The source domain; the rule's `index` runs over it.
    pub ranges: Shape,
    /// The index in the result, one expression per dimension.
    pub index: Shape,
    /// The value, of the result's dtype.
    pub value: Val,
    /// How it is combined.
    pub mode: StoreMode,
}

/// A template with values for operands.
pub enum TemplateSpec {
    /// `a[…, m, k] · b[…, k, n]` with equal batch sizes.
    Matmul {
        /// Left operand.
        a: ValueId,
        /// Right operand.
        b: ValueId,
        /// Subtracted from the left operand; 0 but for integer products.
        zero: i64,
        /// Factors of a quantized `b`, and its zero points where they are not 0: `[groups, n]`.
        dequant: Option<(ValueId, Option<ValueId>)>,
        /// The ends of groups, and of what: `b` is `[g, k, n]` where these are rows, and the result `[g, m, n]` where it is the depth.
        groups: Option<(ValueId, Along)>,
    },
    /// Convolution.
    Conv {
        /// `[n, c, spatial…]`.
        input: ValueId,
        /// `[o, c / groups, window…]`, transposed `[c, o / groups, window…]`.
        weight: ValueId,
        /// Step of the window.
        stride: Vec<i64>,
        /// Zeros before and after.
        padding: Vec<(i64, i64)>,
        /// Distance of the window's points.
        dilation: Vec<i64>,
        /// Groups of channels.
        groups: i64,
        /// Whether transposed.
        transposed: bool,
        /// Subtracted from the input; 0 but for integer convolutions.
        zero: i64,
    },
    /// Attention on `[b, h, l, d]` operands.
    Attention {
        /// Queries.
        q: ValueId,
        /// Keys.
        k: ValueId,
        /// Values.
        v: ValueId,
        /// `[b, h, lq, lk]`.
        mask: Option<ValueId>,
        /// `[b, h, lq]`, the second result.
        sums: Option<ValueId>,
        /// Whether causal.
        causal: bool,
        /// Factor on the scores.
        scale: f64,
        /// Words of the weights that are kept, `[b, h, lq, lk / 32]`, and the factor on these.
        dropout: Option<(ValueId, f64)>,
    },
}
