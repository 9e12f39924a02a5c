//! The ROCm backend as a plugin library. It holds no code of its own: the backend is `backend-rocm`, the table is
//! `plugin-sdk`'s, and `ferroflux-rocm.json` beside this crate is the template of its manifest.

plugin_sdk::export_plugin!(backend_rocm::RocmBackend);
