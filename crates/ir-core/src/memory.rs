//! Whether so much memory can be had at all. Systems lend more than they have and end the process when it is used, so a
//! large request is held against what is free before it is made. Not an allocator: who allocates still asks for memory in
//! a way that can fail.

/// Smaller requests are not looked at: asking the system takes longer than they are worth.
const LARGE: usize = 256 << 20;

/// Whether a request of so many bytes can be met, as far as the system tells; `true` where it tells nothing.
pub fn can_allocate(bytes: usize) -> bool {
    bytes < LARGE || limit().is_none_or(|free| bytes as u64 <= free)
}

/// Bytes that are free, or that this process' group may have, whichever is less.
#[cfg(target_os = "linux")]
fn limit() -> Option<u64> {
    let free = std::fs::read_to_string("/proc/meminfo").ok().and_then(|text| available(&text));
    let group = std::fs::read_to_string("/sys/fs/cgroup/memory.max").ok();
    let group = group.and_then(|text| text.trim().parse().ok());
    free.into_iter().chain(group).min()
}

#[cfg(not(target_os = "linux"))]
fn limit() -> Option<u64> {
    None
}

/// `MemAvailable` and `SwapFree` of Linux' table, in bytes.
#[cfg(any(target_os = "linux", test))]
fn available(table: &str) -> Option<u64> {
    let row = |name: &str| {
        let row = table.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        row.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
    };
    Some(row("MemAvailable")?.saturating_add(row("SwapFree").unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_systems_table_is_read() {
        let table = "MemTotal:       100 kB\nMemAvailable:    64 kB\nSwapFree:         8 kB\n";
        assert_eq!(available(table), Some(72 * 1024));
        assert_eq!(available("MemAvailable: 64 kB\n"), Some(64 * 1024));
        assert_eq!(available("MemFree: 64 kB\n"), None);
        assert!(can_allocate(1 << 20));
        assert!(!cfg!(target_os = "linux") || !can_allocate(isize::MAX as usize));
    }
}
