//! The vision transformer (Dosovitskiy et al., 2020), as torchvision has it: images `[batch, 3, size, size]` to scores
//! `[batch, classes]`.

use ferroflux::nn::{
    Conv2d, Dropout, Gelu, LayerNorm, Linear, Module, MultiheadAttention, Parameter, Sequential, Visitor,
    join,
};
use ferroflux::prelude::*;

/// The sizes of a model.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Height and width of images.
    pub image: i64,
    /// Height and width of the squares that are tokens.
    pub patch: i64,
    /// Number of blocks.
    pub layers: usize,
    /// Heads of attention.
    pub heads: i64,
    /// Elements of a token's vector.
    pub size: i64,
    /// Elements between the two layers of a block's feed-forward part.
    pub hidden: i64,
    /// Number of scores.
    pub classes: i64,
}

#[derive(Module)]
struct Block {
    ln_1: LayerNorm,
    self_attention: MultiheadAttention,
    ln_2: LayerNorm,
    mlp: Sequential,
}

impl Layer for Block {
    fn forward(&self, x: &Tensor) -> Tensor {
        let y = self.ln_1.forward(x);
        let x = self.self_attention.attend(&y, &y, &y, None, false) + x;
        &x + self.mlp.forward(&self.ln_2.forward(&x))
    }
}

/// The blocks, which torchvision names `encoder_layer_0`, `encoder_layer_1`, ….
struct Blocks(Vec<Block>);

impl Module for Blocks {
    fn visit(&self, path: &str, visitor: &mut dyn Visitor) {
        for (n, block) in self.0.iter().enumerate() {
            block.visit(&join(path, &format!("encoder_layer_{n}")), visitor);
        }
    }
}

#[derive(Module)]
struct Encoder {
    pos_embedding: Parameter,
    layers: Blocks,
    ln: LayerNorm,
}

#[derive(Module)]
struct Heads {
    head: Linear,
}

/// The network.
#[derive(Module)]
pub struct VisionTransformer {
    class_token: Parameter,
    conv_proj: Conv2d,
    encoder: Encoder,
    heads: Heads,
    size: i64,
}

/// torchvision's number under the roots of normalizations.
const EPS: f64 = 1e-6;

impl VisionTransformer {
    /// A model of these sizes.
    pub fn new(config: &Config) -> VisionTransformer {
        let Config { image, patch, layers, heads, size, hidden, classes } = *config;
        let block = |_| Block {
            ln_1: LayerNorm::new(&[size]).eps(EPS),
            self_attention: MultiheadAttention::new(size, heads),
            ln_2: LayerNorm::new(&[size]).eps(EPS),
            mlp: Sequential::new()
                .then(Linear::new(size, hidden))
                .then(Gelu)
                .then(Dropout::new(0.0))
                .then(Linear::new(hidden, size))
                .then(Dropout::new(0.0)),
        };
        let tokens = (image / patch.max(1)).pow(2) + 1;
        VisionTransformer {
            class_token: Parameter::filled(Init::Zeros, &[1, 1, size]),
            conv_proj: Conv2d::new(3, size, patch).stride(patch),
            encoder: Encoder {
                pos_embedding: Parameter::new(Tensor::randn(&[1, tokens, size]) * 0.02),
                layers: Blocks((0..layers).map(block).collect()),
                ln: LayerNorm::new(&[size]).eps(EPS),
            },
            heads: Heads { head: Linear::new(size, classes) },
            size,
        }
    }

    /// ViT-B/16 for images of 224×224.
    pub fn vit_b_16(classes: i64) -> VisionTransformer {
        let (image, patch, layers, heads, size, hidden) = (224, 16, 12, 12, 768, 3072);
        VisionTransformer::new(&Config { image, patch, layers, heads, size, hidden, classes })
    }
}

impl Layer for VisionTransformer {
    fn forward(&self, x: &Tensor) -> Tensor {
        let batch = x.size(0);
        let patches = self.conv_proj.forward(x).flatten(2, -1).permute(&[0, 2, 1]);
        let class = self.class_token.expand(&[batch, 1.into(), self.size.into()]);
        let x = cat(&[&class, &patches], 1) + &*self.encoder.pos_embedding;
        let x = self.encoder.layers.0.iter().fold(x, |x, block| block.forward(&x));
        self.heads.head.forward(&self.encoder.ln.forward(&x).select(1, 0))
    }
}
