//! Llama 2 (Touvron et al., 2023), as Hugging Face has it: tokens `[batch, length]` of dtype `i64` to scores
//! `[batch, length, vocabulary]`.

use ferroflux::nn::{Buffer, Embedding, Linear, Module, RmsNorm};
use ferroflux::prelude::*;

/// The sizes of a model.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Number of tokens.
    pub vocabulary: i64,
    /// Elements of a token's vector.
    pub size: i64,
    /// Elements between the layers of the feed-forward part.
    pub hidden: i64,
    /// Number of blocks.
    pub layers: usize,
    /// Heads of queries.
    pub heads: i64,
    /// Heads of keys and values, each for several heads of queries.
    pub kv_heads: i64,
    /// The number under the roots of normalizations.
    pub eps: f64,
    /// The base of the wavelengths of rotary positions.
    pub theta: f64,
}

impl Config {
    /// The model of seven billion parameters.
    pub fn llama2_7b() -> Config {
        Config {
            vocabulary: 32_000,
            size: 4096,
            hidden: 11_008,
            layers: 32,
            heads: 32,
            kv_heads: 32,
            eps: 1e-5,
            theta: 10_000.0,
        }
    }

    /// Elements of a head.
    fn head(&self) -> i64 {
        self.size / self.heads.max(1)
    }
}

/// Cosines and sines of the rotary positions: `[length, head]` each.
struct Rotary {
    cos: Tensor,
    sin: Tensor,
}

impl Rotary {
    /// `x` is `[batch, heads, length, head]`: both halves of a head are turned by the position's angles.
    fn turn(&self, x: &Tensor, head: i64) -> Tensor {
        let (first, second) = (x.narrow(-1, 0, head / 2), x.narrow(-1, head / 2, head / 2));
        x * &self.cos + cat(&[&-second, &first], -1) * &self.sin
    }
}

#[derive(Module)]
struct Attention {
    q_proj: Linear,
    k_proj: Linear,
    v_proj: Linear,
    o_proj: Linear,
    heads: i64,
    kv_heads: i64,
    head: i64,
}

impl Attention {
    fn forward(&self, x: &Tensor, rotary: &Rotary) -> Tensor {
        let (batch, length) = (x.size(0), x.size(1));
        let part = |layer: &Linear, heads: i64| {
            let sizes = [batch.clone(), length.clone(), heads.into(), self.head.into()];
            layer.forward(x).reshape(&sizes).transpose(1, 2)
        };
        let repeat = self.heads / self.kv_heads.max(1);
        let repeated = |x: Tensor| {
            let wide = [batch.clone(), self.kv_heads.into(), repeat.into(), length.clone(), self.head.into()];
            let all = [batch.clone(), self.heads.into(), length.clone(), self.head.into()];
            x.unsqueeze(2).expand(&wide).reshape(&all)
        };
        let q = rotary.turn(&part(&self.q_proj, self.heads), self.head);
        let k = repeated(rotary.turn(&part(&self.k_proj, self.kv_heads), self.head));
        let v = repeated(part(&self.v_proj, self.kv_heads));
        let rest = [(&k).into(), (&v).into(), Input::NONE, 0.0.into(), true.into()];
        let heads = q.call("aten.scaled_dot_product_attention.default", rest).transpose(1, 2);
        self.o_proj.forward(&heads.reshape(&[batch.clone(), length.clone(), (self.heads * self.head).into()]))
    }
}

#[derive(Module)]
struct Mlp {
    gate_proj: Linear,
    up_proj: Linear,
    down_proj: Linear,
}

impl Layer for Mlp {
    fn forward(&self, x: &Tensor) -> Tensor {
        self.down_proj.forward(&(self.gate_proj.forward(x).silu() * self.up_proj.forward(x)))
    }
}

#[derive(Module)]
struct Block {
    self_attn: Attention,
    mlp: Mlp,
    input_layernorm: RmsNorm,
    post_attention_layernorm: RmsNorm,
}

impl Block {
    fn forward(&self, x: &Tensor, rotary: &Rotary) -> Tensor {
        let x = x + self.self_attn.forward(&self.input_layernorm.forward(x), rotary);
        &x + self.mlp.forward(&self.post_attention_layernorm.forward(&x))
    }
}

#[derive(Module)]
struct Decoder {
    embed_tokens: Embedding,
    layers: Vec<Block>,
    norm: RmsNorm,
    /// `[head / 2]`; not part of the state dict.
    inv_freq: Buffer,
}

/// The model with the scores of the next token.
#[derive(Module)]
pub struct Llama {
    model: Decoder,
    lm_head: Linear,
}

impl Llama {
    /// A model of these sizes.
    pub fn new(config: &Config) -> Llama {
        let Config { vocabulary, size, hidden, layers, heads, kv_heads, eps, theta } = *config;
        let head = config.head();
        let linear = |inputs, outputs| Linear::new(inputs, outputs).without_bias();
        let block = |_| Block {
            self_attn: Attention {
                q_proj: linear(size, heads * head),
                k_proj: linear(size, kv_heads * head),
                v_proj: linear(size, kv_heads * head),
                o_proj: linear(heads * head, size),
                heads,
                kv_heads,
                head,
            },
            mlp: Mlp {
                gate_proj: linear(size, hidden),
                up_proj: linear(size, hidden),
                down_proj: linear(hidden, size),
            },
            input_layernorm: RmsNorm::new(&[size], Some(eps)),
            post_attention_layernorm: RmsNorm::new(&[size], Some(eps)),
        };
        let inverse: Vec<f32> =
            (0..head / 2).map(|n| theta.powf(-2.0 * n as f64 / head as f64) as f32).collect();
        let model = Decoder {
            embed_tokens: Embedding::new(vocabulary, size),
            layers: (0..layers).map(block).collect(),
            norm: RmsNorm::new(&[size], Some(eps)),
            inv_freq: Buffer::transient(Tensor::from_slice(&inverse, &[inverse.len()])),
        };
        Llama { model, lm_head: linear(size, vocabulary) }
    }
}

impl Layer for Llama {
    fn forward(&self, tokens: &Tensor) -> Tensor {
        let m = &self.model;
        let positions = Tensor::arange(tokens.size(1)).to(DType::F32).unsqueeze(1);
        let half = positions * &*m.inv_freq;
        let angles = cat(&[&half, &half], -1);
        let rotary = Rotary { cos: angles.cos(), sin: angles.sin() };
        let x = m.embed_tokens.forward(tokens);
        let x = m.layers.iter().fold(x, |x, block| block.forward(&x, &rotary));
        self.lm_head.forward(&m.norm.forward(&x))
    }
}
