//! Attention and transformer layers.

use dynamo::Setting;

use super::{Dropout, Init, Layer, LayerNorm, Linear, Parameter};
use crate::eager::{Input, Tensor};

/// Attention of several heads: queries, keys and values `[batch, length, size]` (batch first) to `[batch, length, size]`.
#[derive(Clone, Debug, derive::Module)]
pub struct MultiheadAttention {
    /// `[3 * size, size]`: of queries, keys and values.
    pub in_proj_weight: Parameter,
    /// `[3 * size]`.
    pub in_proj_bias: Parameter,
    /// `[size, size]` with a bias.
    pub out_proj: Linear,
    size: i64,
    heads: i64,
    dropout: f64,
    training: Setting<bool>,
}

impl MultiheadAttention {
    /// `heads` heads of `size / heads` elements.
    pub fn new(size: i64, heads: i64) -> MultiheadAttention {
        // Xavier's bound of the whole matrix, as PyTorch initializes it.
        let bound = (6.0 / (4 * size.max(1)) as f64).sqrt();
        let out_proj =
            Linear { bias: Some(Parameter::filled(Init::Zeros, &[size])), ..Linear::new(size, size) };
        MultiheadAttention {
            in_proj_weight: Parameter::uniform(&[3 * size, size], bound),
            in_proj_bias: Parameter::filled(Init::Zeros, &[3 * size]),
            out_proj,
            size,
            heads,
            dropout: 0.0,
            training: Setting::new("training", true),
        }
    }
    /// The same with dropout of weights while training.
    pub fn dropout(self, p: f64) -> MultiheadAttention {
        MultiheadAttention { dropout: p, ..self }
    }

    /// Attention; `mask` (of truth values, true where attended, or added to the scores) broadcasts to
    /// `[batch, heads, queries, keys]`.
    #[track_caller]
    pub fn attend(
        &self,
        query: &Tensor,
        key: &Tensor,
        value: &Tensor,
        mask: Option<&Tensor>,
        causal: bool,
    ) -> Tensor {
        let part = |x: &Tensor, n: i64| {
            let weight = self.in_proj_weight.narrow(0, n * self.size, self.size);
            let bias = self.in_proj_bias.narrow(0, n * self.size, self.size);
            let projected = x.call("aten.linear.default", [(&weight).into(), (&bias).into()]);
            let sizes = [x.size(0), x.size(1), self.heads.into(), (self.size / self.heads.max(1)).into()];
            projected.reshape(&sizes).transpose(1, 2)
        };
        let p = if self.dropout > 0.0 && self.training.get() { self.dropout } else { 0.0 };
        let (q, k, v) = (part(query, 0), part(key, 1), part(value, 2));
        let rest: [Input; 5] = [(&k).into(), (&v).into(), mask.into(), p.into(), causal.into()];
        let heads = q.call("aten.scaled_dot_product_attention.default", rest).transpose(1, 2);
        self.out_proj.forward(&heads.reshape(&[query.size(0), query.size(1), self.size.into()]))
    }
}

/// A layer of a transformer's encoder, batch first, with ReLU.
#[derive(Clone, Debug, derive::Module)]
pub struct TransformerEncoderLayer {
    /// Attention.
    pub self_attn: MultiheadAttention,
    /// The first layer of the feed-forward part.
    pub linear1: Linear,
    /// The second one.
    pub linear2: Linear,
    /// After attention, or before it.
    pub norm1: LayerNorm,
    /// After the feed-forward part, or before it.
    pub norm2: LayerNorm,
    dropout: Dropout,
    norm_first: bool,
}

impl TransformerEncoderLayer {
    /// `heads` heads, a feed-forward part of `hidden` elements, dropout with probability `p`.
    pub fn new(size: i64, heads: i64, hidden: i64, p: f64) -> TransformerEncoderLayer {
        TransformerEncoderLayer {
            self_attn: MultiheadAttention::new(size, heads).dropout(p),
            linear1: Linear::new(size, hidden),
            linear2: Linear::new(hidden, size),
            norm1: LayerNorm::new(&[size]),
            norm2: LayerNorm::new(&[size]),
            dropout: Dropout::new(p),
            norm_first: false,
        }
    }
    /// The same with normalization before the parts.
    pub fn norm_first(self, norm_first: bool) -> TransformerEncoderLayer {
        TransformerEncoderLayer { norm_first, ..self }
    }

    fn feed_forward(&self, x: &Tensor) -> Tensor {
        let hidden = self.dropout.forward(&self.linear1.forward(x).relu());
        self.dropout.forward(&self.linear2.forward(&hidden))
    }

    fn attention(&self, x: &Tensor) -> Tensor {
        self.dropout.forward(&self.self_attn.attend(x, x, x, None, false))
    }
}

impl Layer for TransformerEncoderLayer {
    fn forward(&self, x: &Tensor) -> Tensor {
        if self.norm_first {
            let x = x + self.attention(&self.norm1.forward(x));
            return &x + self.feed_forward(&self.norm2.forward(&x));
        }
        let x = self.norm1.forward(&(x + self.attention(x)));
        self.norm2.forward(&(&x + self.feed_forward(&x)))
    }
}

/// A layer of a transformer's decoder, batch first, with ReLU: attention to what came before, then to the encoder's result.
#[derive(Clone, Debug, derive::Module)]
pub struct TransformerDecoderLayer {
    /// Attention to the target sequence.
    pub self_attn: MultiheadAttention,
    /// Attention to the encoder's result.
    pub multihead_attn: MultiheadAttention,
    /// The first layer of the feed-forward part.
    pub linear1: Linear,
    /// The second one.
    pub linear2: Linear,
    /// After attention to the target sequence, or before it.
    pub norm1: LayerNorm,
    /// After attention to the encoder's result, or before it.
    pub norm2: LayerNorm,
    /// After the feed-forward part, or before it.
    pub norm3: LayerNorm,
    dropout: Dropout,
    norm_first: bool,
}

impl TransformerDecoderLayer {
    /// `heads` heads, a feed-forward part of `hidden` elements, dropout with probability `p`.
    pub fn new(size: i64, heads: i64, hidden: i64, p: f64) -> TransformerDecoderLayer {
        TransformerDecoderLayer {
            self_attn: MultiheadAttention::new(size, heads).dropout(p),
            multihead_attn: MultiheadAttention::new(size, heads).dropout(p),
            linear1: Linear::new(size, hidden),
            linear2: Linear::new(hidden, size),
            norm1: LayerNorm::new(&[size]),
            norm2: LayerNorm::new(&[size]),
            norm3: LayerNorm::new(&[size]),
            dropout: Dropout::new(p),
            norm_first: false,
        }
    }
    /// The same with normalization before the parts.
    pub fn norm_first(self, norm_first: bool) -> TransformerDecoderLayer {
        TransformerDecoderLayer { norm_first, ..self }
    }

    /// `x` is the target `[batch, length, size]`, `memory` the encoder's result `[batch, other, size]`. With `causal` a position
    /// attends to itself and to those before it alone.
    #[track_caller]
    pub fn decode(&self, x: &Tensor, memory: &Tensor, causal: bool) -> Tensor {
        let own = |x: &Tensor| self.dropout.forward(&self.self_attn.attend(x, x, x, None, causal));
        let other =
            |x: &Tensor| self.dropout.forward(&self.multihead_attn.attend(x, memory, memory, None, false));
        let feed = |x: &Tensor| {
            let hidden = self.dropout.forward(&self.linear1.forward(x).relu());
            self.dropout.forward(&self.linear2.forward(&hidden))
        };
        if self.norm_first {
            let x = x + own(&self.norm1.forward(x));
            let x = &x + other(&self.norm2.forward(&x));
            return &x + feed(&self.norm3.forward(&x));
        }
        let x = self.norm1.forward(&(x + own(x)));
        let x = self.norm2.forward(&(&x + other(&x)));
        self.norm3.forward(&(&x + feed(&x)))
    }
}
