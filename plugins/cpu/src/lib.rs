//! The CPU backend as a plugin library. It holds no code of its own: the backend is `backend-cpu`, the table is
//! `plugin-sdk`'s, and `ferroflux-cpu.json` beside this crate is the template of its manifest.
//!
//! Unfinished: `backend_cpu` has no `CpuBackend` yet, so this library exports no entry and a host refuses it. The one
//! line that is missing is `plugin_sdk::export_plugin!(backend_cpu::CpuBackend);`.
