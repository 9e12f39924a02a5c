//! Whether the emulator is available, and the backend as a built-in of the test binary. All helpers share this.
#![allow(dead_code, unreachable_pub, missing_docs)]

plugin_host::inventory::submit! {
    plugin_host::BuiltinPlugin { name: "gpu-emulator", entry: plugin_sdk::entry::<gpu_emulator::EmulatorBackend> }
}

/// Whether kernels can be compiled. A test without a compiler says so and has shown nothing.
pub fn available() -> bool {
    gpu_emulator::available().inspect_err(|why| eprintln!("skipped: {why}")).is_ok()
}
