//! How many threads a program runs on where nobody says: one for each physical core. Not here: the pools of threads.

use std::sync::OnceLock;

/// The threads that are wanted; 0 is one for each physical core.
pub(super) fn wanted_threads(threads: usize) -> usize {
    if threads == 0 { physical_cores() } else { threads }
}

/// Physical cores, where the system reports how threads share them; else threads. The system is asked once: its answer is in
/// files, and every small program that is compiled wants it.
pub(crate) fn physical_cores() -> usize {
    static CORES: OnceLock<usize> = OnceLock::new();
    *CORES.get_or_init(count_cores)
}

fn count_cores() -> usize {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let mut cores = std::collections::HashSet::new();
    for cpu in 0..threads {
        let path = format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
        match std::fs::read_to_string(path) {
            Ok(siblings) => cores.insert(siblings),
            Err(_) => return threads,
        };
    }
    cores.len().clamp(1, threads)
}
