//! Layers, attention, losses. What each file has is said at its head; this one only lists them.

pub(in crate::ops) mod attention;
pub(in crate::ops) mod attention_core;
pub(in crate::ops) mod batch_norm;
pub(in crate::ops) mod conv;
pub(in crate::ops) mod ctc;
pub(in crate::ops) mod cudnn_rnn;
pub(in crate::ops) mod dropout;
pub(in crate::ops) mod expert;
pub(in crate::ops) mod fold;
pub(in crate::ops) mod fractional_pool;
pub(in crate::ops) mod grid;
pub(in crate::ops) mod iterated;
pub(in crate::ops) mod kept;
pub(in crate::ops) mod loss;
pub(in crate::ops) mod loss_class;
pub(in crate::ops) mod norm;
pub(in crate::ops) mod pool;
pub(in crate::ops) mod rnn;
pub(in crate::ops) mod upsample;
