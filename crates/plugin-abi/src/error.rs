//! The error struct: owned by the caller, filled by the callee, with fixed buffers so that nothing is allocated across the
//! boundary.
//! It is not an error type for Rust code; `plugin-host` and `plugin-sdk` each turn it into one.

use crate::table::{Head, Table, covers, tables};

/// Success.
pub const FFX_OK: i32 = 0;
/// The caller passed something that this call does not accept.
pub const FFX_ERR_INVALID_ARGUMENT: i32 = 1;
/// The program, dtype, mode or option is valid but this backend does not support it.
pub const FFX_ERR_UNSUPPORTED: i32 = 2;
/// Program bytes or a table of an incompatible version.
pub const FFX_ERR_INCOMPATIBLE: i32 = 3;
/// The device or its driver is not usable here.
pub const FFX_ERR_UNAVAILABLE: i32 = 4;
/// An allocation on host or device failed.
pub const FFX_ERR_OUT_OF_MEMORY: i32 = 5;
/// The plugin panicked; the call had no other effect.
pub const FFX_ERR_PANIC: i32 = 6;
/// A bug of the plugin or of a library below it.
pub const FFX_ERR_INTERNAL: i32 = 7;
/// Bytes that are cut short, changed, or not an artifact at all. Since minor 1.
pub const FFX_ERR_DAMAGED: i32 = 8;

/// Bytes of [`FfxError::message`], the closing NUL included.
pub const FFX_MESSAGE_BYTES: usize = 2048;
/// Bytes of [`FfxError::node`], the closing NUL included.
pub const FFX_NODE_BYTES: usize = 256;

/// The error of one call. The caller fills `head` with its own size; the callee writes only fields that this size
/// covers. Texts are UTF-8, end with NUL and are cut to fit at a character.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct FfxError {
    /// Size and version, written by the caller.
    pub head: Head,
    /// One of the `FFX_*` codes.
    pub code: i32,
    /// Zero; aligns the following fields to a multiple of eight.
    pub reserved: u32,
    /// Name of the graph node, kernel or constant concerned; empty where there is none.
    pub node: [u8; FFX_NODE_BYTES],
    /// What happened and what to do.
    pub message: [u8; FFX_MESSAGE_BYTES],
}

impl FfxError {
    /// An empty error for passing to a call.
    pub const fn new() -> Self {
        Self {
            head: Head::of::<Self>(),
            code: FFX_OK,
            reserved: 0,
            node: [0; FFX_NODE_BYTES],
            message: [0; FFX_MESSAGE_BYTES],
        }
    }
}

impl Default for FfxError {
    fn default() -> Self {
        Self::new()
    }
}

tables! { FfxError { code, reserved, node, message } }

/// Copies `text` into a fixed buffer, cut at a character so that a NUL fits, and fills the rest with NUL.
/// A NUL inside the text ends it.
pub fn write_text(buffer: &mut [u8], text: &str) {
    let Some(room) = buffer.len().checked_sub(1) else { return };
    let mut end = text.find('\0').unwrap_or(text.len()).min(room);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    buffer[..end].copy_from_slice(&text.as_bytes()[..end]);
    buffer[end..].fill(0);
}

/// Bytes of a fixed buffer before its first NUL (all of it where a faulty callee left none).
pub fn text_bytes(buffer: &[u8]) -> &[u8] {
    let end = buffer.iter().position(|&b| b == 0).unwrap_or(buffer.len());
    &buffer[..end]
}

/// Writes a failure to the fields that an error struct covers.
///
/// # Safety
/// `error` is null or points to an error struct whose `struct_size` bytes are writable.
pub unsafe fn write_error(error: *mut FfxError, code: i32, node: &str, message: &str) {
    if error.is_null() {
        return;
    }
    // SAFETY: every error struct begins with its head.
    let size = unsafe { (*error.cast::<Head>()).struct_size };
    let covered = |name: &str| FfxError::FIELDS.iter().any(|f| f.name == name && covers(size, f));
    // SAFETY: each field is written only where `struct_size` covers it whole.
    unsafe {
        if covered("code") {
            (&raw mut (*error).code).write(code);
        }
        if covered("node") {
            write_text(&mut (*error).node, node);
        }
        if covered("message") {
            write_text(&mut (*error).message, message);
        }
    }
}
