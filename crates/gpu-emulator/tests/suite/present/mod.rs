//! Whether there is an emulator here, and the backend as a built-in of the test. Shared by all helpers of these tests.
#![allow(dead_code, unreachable_pub, missing_docs)]

plugin_host::inventory::submit! {
    plugin_host::BuiltinPlugin { name: "gpu-emulator", entry: plugin_sdk::entry::<gpu_emulator::EmulatorBackend> }
}

/// Whether kernels can be compiled; a test where they cannot says so and has shown nothing.
pub fn available() -> bool {
    gpu_emulator::available().inspect_err(|why| eprintln!("skipped: {why}")).is_ok()
}
