//! Makes the emulated GPU a backend of this command, so that golden cases run through the GPU code generator on any
//! machine: `xtask corpus --backend gpu-emulator`, with waves of 64 lanes `--backend gpu-emulator:wave=64`.

plugin_host::inventory::submit! {
    plugin_host::BuiltinPlugin { name: "gpu-emulator", entry: plugin_sdk::entry::<gpu_emulator::EmulatorBackend> }
}
