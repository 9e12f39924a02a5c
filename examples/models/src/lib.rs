//! Networks written in Rust with `ferroflux::nn`: the layers, the names of parameters and the outputs are those of
//! torchvision's and Hugging Face's models. Not here: weights, which safetensors files have.

pub mod gpt2;
pub mod llama;
pub mod resnet;
pub mod vit;
