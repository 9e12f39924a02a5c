//! The acme backend for Ferroflux: interprets fused kernels on the host processor.
//!
//! - [`backend`]: the interface to the host. Start here.
//! - [`support`]: the supported programs, and the reasons for refusing others.
//! - [`sizes`]: size symbols, bound from the inputs of a call.
//! - [`memory`]: the buffers of a call, and copying tensors into and out of them.
//! - [`kernel`]: loop kernels, point by point. The part to replace by a compiler for your device.
//! - [`products`]: matrix products and convolutions with their epilogues. The part to replace by your device's library.
//!
//! Not here: attention, sorting, Fourier transforms, matrix routines, control flow. The backend declines them by name.

mod backend;
mod kernel;
mod memory;
mod number;
mod products;
mod sizes;
mod support;
#[cfg(test)]
mod tests;

plugin_sdk::export_plugin!(backend::Acme);
