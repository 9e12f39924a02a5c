//! The error of a backend: a kind that the host understands, a message, and the node concerned.
//! It is not the ABI's struct; `thunk` copies it there.

use plugin_abi::{
    FFX_ERR_DAMAGED, FFX_ERR_INCOMPATIBLE, FFX_ERR_INTERNAL, FFX_ERR_INVALID_ARGUMENT, FFX_ERR_OUT_OF_MEMORY,
    FFX_ERR_PANIC, FFX_ERR_UNAVAILABLE, FFX_ERR_UNSUPPORTED,
};

/// The kind of failure, for callers that branch on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// The caller passed something that this call does not accept.
    InvalidArgument,
    /// Valid, but not supported by this backend.
    Unsupported,
    /// A program or table of another version.
    Incompatible,
    /// The device or its driver is not usable here.
    Unavailable,
    /// An allocation failed.
    OutOfMemory,
    /// The backend panicked.
    Panic,
    /// A bug of the backend or of a library below it.
    Internal,
    /// Bytes that are damaged or not of the expected kind.
    Damaged,
}

impl ErrorKind {
    /// The ABI's code.
    pub const fn code(self) -> i32 {
        match self {
            Self::InvalidArgument => FFX_ERR_INVALID_ARGUMENT,
            Self::Unsupported => FFX_ERR_UNSUPPORTED,
            Self::Incompatible => FFX_ERR_INCOMPATIBLE,
            Self::Unavailable => FFX_ERR_UNAVAILABLE,
            Self::OutOfMemory => FFX_ERR_OUT_OF_MEMORY,
            Self::Panic => FFX_ERR_PANIC,
            Self::Internal => FFX_ERR_INTERNAL,
            Self::Damaged => FFX_ERR_DAMAGED,
        }
    }
}

/// An error of a backend.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}{message}", .node.as_deref().map(|n| format!("`{n}`: ")).unwrap_or_default())]
pub struct PluginError {
    /// Kind of failure.
    pub kind: ErrorKind,
    /// What happened and what to do.
    pub message: String,
    /// Name of the graph node, kernel or constant concerned.
    pub node: Option<String>,
}

impl From<kernel_ir::runtime::RunError> for PluginError {
    fn from(e: kernel_ir::runtime::RunError) -> PluginError {
        PluginError::invalid(e.to_string())
    }
}

impl PluginError {
    /// An error of any kind.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), node: None }
    }
    /// The caller passed something that is not accepted.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::InvalidArgument, message)
    }
    /// Valid, but not supported by this backend.
    pub fn unsupported(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Unsupported, message)
    }
    /// Bytes that are damaged or not of the expected kind.
    pub fn damaged(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Damaged, message)
    }
    /// A bug of the backend.
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Internal, message)
    }
    /// An allocation of `bytes` bytes failed.
    pub fn out_of_memory(bytes: impl std::fmt::Display) -> Self {
        Self::new(ErrorKind::OutOfMemory, format!("cannot allocate {bytes} bytes"))
    }
    /// Names the node concerned.
    pub fn at(mut self, node: impl Into<String>) -> Self {
        self.node = Some(node.into());
        self
    }
}
