//! The memory use of this process.

/// Resident bytes of this process; `None` where the system does not report it.
pub(crate) fn resident() -> Option<u64> {
    // The second field of `statm` counts resident pages (proc(5)); pages are assumed to have 4096 bytes, and a larger page
    // only makes the figure smaller than it is.
    const PAGE: u64 = 4096;
    let statm = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = statm.split_whitespace().nth(1)?.parse().ok()?;
    pages.checked_mul(PAGE)
}
