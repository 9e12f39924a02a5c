//! Sets `FFX_GPU_BUILD`: a hash of all sources that determine the text of a kernel.

fn main() {
    ir_core::source_hash::emit("FFX_GPU_BUILD");
}
