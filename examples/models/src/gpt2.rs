//! GPT-2 (Radford et al., 2019), as Hugging Face has it: tokens `[batch, length]` of dtype `i64` to scores
//! `[batch, length, vocabulary]`.

use ferroflux::nn::{Dropout, Embedding, LayerNorm, Module, Parameter};
use ferroflux::prelude::*;

/// The sizes of a model.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Number of tokens.
    pub vocabulary: i64,
    /// Longest sequence.
    pub positions: i64,
    /// Elements of a token's vector.
    pub size: i64,
    /// Heads of attention.
    pub heads: i64,
    /// Number of blocks.
    pub layers: usize,
}

/// `x · weight + bias`: a fully connected layer whose weight is `[in, out]`.
#[derive(Module)]
struct Conv1D {
    weight: Parameter,
    bias: Parameter,
}

impl Conv1D {
    fn new(inputs: i64, outputs: i64) -> Conv1D {
        let weight = Parameter::new(Tensor::randn(&[inputs, outputs]) * 0.02);
        Conv1D { weight, bias: Parameter::filled(Init::Zeros, &[outputs]) }
    }
}

impl Layer for Conv1D {
    fn forward(&self, x: &Tensor) -> Tensor {
        x.matmul(&self.weight) + &*self.bias
    }
}

#[derive(Module)]
struct Attention {
    c_attn: Conv1D,
    c_proj: Conv1D,
    heads: i64,
    size: i64,
}

impl Layer for Attention {
    fn forward(&self, x: &Tensor) -> Tensor {
        let all = self.c_attn.forward(x);
        let part = |n: i64| {
            let sizes = [x.size(0), x.size(1), self.heads.into(), (self.size / self.heads).into()];
            all.narrow(-1, n * self.size, self.size).reshape(&sizes).transpose(1, 2)
        };
        let rest = [(&part(1)).into(), (&part(2)).into(), Input::NONE, 0.0.into(), true.into()];
        let heads = part(0).call("aten.scaled_dot_product_attention.default", rest).transpose(1, 2);
        self.c_proj.forward(&heads.reshape(&[x.size(0), x.size(1), self.size.into()]))
    }
}

#[derive(Module)]
struct Mlp {
    c_fc: Conv1D,
    c_proj: Conv1D,
}

impl Layer for Mlp {
    fn forward(&self, x: &Tensor) -> Tensor {
        let hidden = self.c_fc.forward(x).call("aten.gelu.default", ["tanh".into()]);
        self.c_proj.forward(&hidden)
    }
}

#[derive(Module)]
struct Block {
    ln_1: LayerNorm,
    attn: Attention,
    ln_2: LayerNorm,
    mlp: Mlp,
}

impl Layer for Block {
    fn forward(&self, x: &Tensor) -> Tensor {
        let x = x + self.attn.forward(&self.ln_1.forward(x));
        &x + self.mlp.forward(&self.ln_2.forward(&x))
    }
}

#[derive(Module)]
struct Transformer {
    wte: Embedding,
    wpe: Embedding,
    drop: Dropout,
    h: Vec<Block>,
    ln_f: LayerNorm,
}

/// The model with the scores of the next token, whose weights are those of the tokens' vectors.
#[derive(Module)]
pub struct Gpt2 {
    transformer: Transformer,
}

impl Gpt2 {
    /// A model of these sizes.
    pub fn new(config: &Config) -> Gpt2 {
        let Config { vocabulary, positions, size, heads, layers } = *config;
        let block = |_| Block {
            ln_1: LayerNorm::new(&[size]),
            attn: Attention {
                c_attn: Conv1D::new(size, 3 * size),
                c_proj: Conv1D::new(size, size),
                heads,
                size,
            },
            ln_2: LayerNorm::new(&[size]),
            mlp: Mlp { c_fc: Conv1D::new(size, 4 * size), c_proj: Conv1D::new(4 * size, size) },
        };
        let transformer = Transformer {
            wte: Embedding::new(vocabulary, size),
            wpe: Embedding::new(positions, size),
            drop: Dropout::new(0.1),
            h: (0..layers).map(block).collect(),
            ln_f: LayerNorm::new(&[size]),
        };
        Gpt2 { transformer }
    }
}

impl Layer for Gpt2 {
    fn forward(&self, tokens: &Tensor) -> Tensor {
        let t = &self.transformer;
        let positions = t.wpe.forward(&Tensor::arange(tokens.size(1)));
        let x = t.drop.forward(&(t.wte.forward(tokens) + positions));
        let x = t.h.iter().fold(x, |x, block| block.forward(&x));
        t.ln_f.forward(&x).call("aten.linear.default", [(&*t.wte.weight).into()])
    }
}
