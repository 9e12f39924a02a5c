//! The CPU backend as a plugin library. It holds no code of its own: the backend is `backend-cpu`, the table is
//! `plugin-sdk`'s, and `ferroflux-cpu.json` next to this crate is the template of its manifest.

plugin_sdk::export_plugin!(backend_cpu::CpuBackend);
