//! The acme backend for Ferroflux: interprets loop kernels on the host processor.
//!
//! - [`backend`]: what the host sees. Start here.
//! - [`support`]: which programs are taken, and why others are not.
//! - [`sizes`]: size symbols, bound from the inputs of a call.
//! - [`memory`]: the buffers of a call, and the way of tensors into and out of them.
//! - [`kernel`]: loop kernels, point by point. The part to replace by a compiler for your device.
//!
//! Not here: matrix products, convolutions, attention, sorting, control flow. The backend declines them by name.

mod backend;
mod kernel;
mod memory;
mod number;
mod sizes;
mod support;
#[cfg(test)]
mod tests;

plugin_sdk::export_plugin!(backend::Acme);
