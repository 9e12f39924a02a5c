//! Layers one after another.

use super::{Layer, Module, Visitor, join};
use crate::eager::Tensor;

/// Layers one after another, named by their numbers.
#[derive(Default)]
pub struct Sequential(Vec<Box<dyn Layer + Send + Sync>>);

impl Sequential {
    /// No layer yet.
    pub fn new() -> Sequential {
        Sequential::default()
    }
    /// One more layer.
    pub fn then(mut self, layer: impl Layer + Send + Sync + 'static) -> Sequential {
        self.0.push(Box::new(layer));
        self
    }
    /// Number of layers.
    pub fn len(&self) -> usize {
        self.0.len()
    }
    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Module for Sequential {
    fn visit(&self, path: &str, visitor: &mut dyn Visitor) {
        self.0.iter().enumerate().for_each(|(n, layer)| layer.visit(&join(path, &n.to_string()), visitor));
    }
}

impl Layer for Sequential {
    fn forward(&self, x: &Tensor) -> Tensor {
        self.0.iter().fold(x.clone(), |x, layer| layer.forward(&x))
    }
}
