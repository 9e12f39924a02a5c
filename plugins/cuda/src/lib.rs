//! The CUDA backend as a plugin library. It holds no code of its own: the backend is `backend-cuda`, the table is
//! `plugin-sdk`'s, and `ferroflux-cuda.json` beside this crate is the template of its manifest.

plugin_sdk::export_plugin!(backend_cuda::CudaBackend);
