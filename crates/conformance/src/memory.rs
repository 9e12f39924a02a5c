//! How much memory this process holds.

/// Resident bytes of this process; `None` where the system does not say.
pub(crate) fn resident() -> Option<u64> {
    // The second field of `statm` counts resident pages (proc(5)); a page of the systems that run this has 4096 bytes,
    // and a larger one only makes the figure smaller than it is.
    const PAGE: u64 = 4096;
    let statm = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = statm.split_whitespace().nth(1)?.parse().ok()?;
    pages.checked_mul(PAGE)
}
