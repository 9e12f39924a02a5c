//! A HIP runtime that is none, with hiprtc, hipBLASLt, rocBLAS and MIOpen: devices over the GPU emulator, by the functions that the ROCm backend
//! calls. Tests give the library those names in a folder of their own, so that the plugin runs unchanged through HIP's own calls on
//! machines without an AMD GPU. Never installed, never part of anything shipped.
//!
//! Work is not done when it is put on a stream but when something waits for it, so that what is read, reused or freed too early
//! shows. `FERROFLUX_HIP_STANDIN` says what there is ([`settings`](crate)): `gfx942,gfx1100,schedule=backward,memory=1000000,lost=7`.
//!
//! Not here: kernels' meaning (`gpu-emulator`), anything that only real hardware shows.
#![allow(non_snake_case)]

mod blas;
mod convolution;
mod device;
mod graph;
mod hiprtc;
mod miopen;
mod module;
mod rocblas;
mod runtime;
mod settings;
mod state;
mod stream;
