//! Sets `FFX_BUILD`: a hash of all sources that determine what a graph is compiled to, those of the backends that can be
//! linked in included. (`backend-cpu` has a hash of its own, because it is also built without this crate.)

fn main() {
    ir_core::source_hash::emit("FFX_BUILD");
}
