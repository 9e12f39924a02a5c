//! A library that is not a plugin: it exports something, but not the entry. The host must refuse it.

/// A symbol that is not the entry of a plugin.
#[unsafe(no_mangle)]
pub extern "C" fn some_other_symbol() -> i32 {
    7
}
