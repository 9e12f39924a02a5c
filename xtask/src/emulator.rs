//! Makes the emulated GPU a backend of this command, so that golden cases run through the GPU code generator on any
//! machine: `xtask corpus --backend gpu-emulator`.

plugin_host::inventory::submit! {
    plugin_host::BuiltinPlugin { name: "gpu-emulator", entry: plugin_sdk::entry::<gpu_emulator::EmulatorBackend> }
}
