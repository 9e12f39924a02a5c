//! Gives the crate `FFX_BUILD`: a hash of all sources that decide what a graph is compiled to, those of the backends that can be
//! linked in included. (`backend-cpu` has one of its own, for it is also built without this crate.)

fn main() {
    ir_core::source_hash::emit("FFX_BUILD");
}
