//! Events as the JSON of Chrome's trace viewer, which Perfetto reads too.

use serde_json::{Value, json};

use super::{DEVICE, Event};

/// One process, a row per thread and device; times are in microseconds.
pub(super) fn json(events: &[Event]) -> String {
    let micros = |nanos: u64| nanos as f64 / 1e3;
    let one = |e: &Event| -> Value {
        match e.bytes {
            Some(bytes) => json!({
                "name": e.name, "cat": e.category.name(), "ph": "C", "pid": 1, "tid": e.thread,
                "ts": micros(e.start), "args": {"bytes": bytes},
            }),
            None => json!({
                "name": e.name, "cat": e.category.name(), "ph": "X", "pid": 1, "tid": e.thread,
                "ts": micros(e.start), "dur": micros(e.duration),
            }),
        }
    };
    let mut list: Vec<Value> = vec![json!({
        "name": "process_name", "ph": "M", "pid": 1, "args": {"name": "ferroflux"},
    })];
    let mut threads: Vec<usize> = events.iter().map(|e| e.thread).collect();
    threads.sort_unstable();
    threads.dedup();
    list.extend(threads.iter().map(|n| {
        let name = if *n < DEVICE { format!("thread {n}") } else { format!("device {}", n - DEVICE) };
        json!({"name": "thread_name", "ph": "M", "pid": 1, "tid": n, "args": {"name": name}})
    }));
    list.extend(events.iter().map(one));
    json!({"displayTimeUnit": "ms", "traceEvents": list}).to_string()
}
