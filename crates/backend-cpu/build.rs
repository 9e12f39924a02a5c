//! Gives the crate `FFX_CPU_BUILD`: a hash of all sources that decide what machine code a program becomes.

fn main() {
    ir_core::source_hash::emit("FFX_CPU_BUILD");
}
