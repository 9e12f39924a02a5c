//! Sets `FFX_CPU_BUILD`: a hash of all sources that determine the machine code of a program.

fn main() {
    ir_core::source_hash::emit("FFX_CPU_BUILD");
}
