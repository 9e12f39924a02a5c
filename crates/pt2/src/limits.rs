//! Resource limits for reading an archive. Every number bounds an allocation or a loop by the size of the file itself.

/// Bounds on what is read. [`Limits::default`] takes every archive that PyTorch writes.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Inflated bytes for each compressed byte of a JSON entry, beyond [`Limits::free_bytes`]. JSON of exported
    /// programs deflates 25 to 45 times (measured on 110 models).
    pub json_ratio: u64,
    /// Inflated bytes for each byte of the file, for all deflated payloads together, beyond [`Limits::free_bytes`].
    pub payload_ratio: u64,
    /// Bytes that may be inflated whatever the file's size.
    pub free_bytes: u64,
    /// Longest name of an entry, in bytes.
    pub name_bytes: usize,
    /// Longest size expression, in bytes.
    pub expression_bytes: usize,
    /// Deepest size expression, in nested calls or parentheses.
    pub expression_depth: usize,
    /// Deepest nesting of subgraphs.
    pub graph_depth: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            json_ratio: 128,
            payload_ratio: 64,
            free_bytes: 16 << 20,
            name_bytes: 4096,
            expression_bytes: 64 << 10,
            expression_depth: 100,
            graph_depth: 16,
        }
    }
}

impl Limits {
    pub(crate) fn json_bytes(&self, compressed: u64) -> u64 {
        compressed.saturating_mul(self.json_ratio).saturating_add(self.free_bytes)
    }
    pub(crate) fn payload_bytes(&self, file: u64) -> u64 {
        file.saturating_mul(self.payload_ratio).saturating_add(self.free_bytes)
    }
}
