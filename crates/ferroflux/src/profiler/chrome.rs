//! Events as the JSON of Chrome's trace viewer, which Perfetto reads too.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::{Category, DEVICE, Event, STREAM, Trace};

/// The number of the process that has what is of no rank, where others are of one. Those of ranks are smaller.
const NO_RANK: usize = 1 << 20;

/// A whole file of entries that processes have listed; `accuracy` is by how many nanoseconds their clocks differ at most.
pub(super) fn file(lists: &[String], accuracy: Option<u64>) -> String {
    let filled: Vec<&str> = lists.iter().map(String::as_str).filter(|l| !l.is_empty()).collect();
    let other = accuracy.map_or(String::new(), |nanos| {
        let micros = nanos as f64 / 1e3;
        format!(",\"otherData\":{}", json!({"clocks of ranks differ by at most, in µs": micros}))
    });
    format!("{{\"displayTimeUnit\":\"ms\",\"traceEvents\":[{}]{other}}}", filled.join(","))
}

/// The entries of a trace, separated by commas: a process for each rank, in it a row per thread and stream of a device; times are
/// in microseconds.
pub(super) fn list(trace: &Trace) -> String {
    // Those of several processes may stand in one file.
    let first = trace.ranks.keys().next().copied();
    let process = |e: &Event| match (e.rank, first) {
        (Some(rank), _) => rank + 1,
        (None, Some(first)) => NO_RANK + first,
        (None, None) => 1,
    };
    let mut list: Vec<Value> = Vec::new();
    let processes: BTreeSet<usize> = trace.events.iter().map(process).collect();
    for pid in processes {
        let name = match pid.checked_sub(1).and_then(|rank| trace.ranks.get(&rank)) {
            Some(name) if pid < NO_RANK => name,
            _ => "ferroflux",
        };
        list.push(json!({"name": "process_name", "ph": "M", "pid": pid, "args": {"name": name}}));
        list.push(json!({"name": "process_sort_index", "ph": "M", "pid": pid, "args": {"sort_index": pid}}));
    }
    let rows: BTreeSet<(usize, usize)> = trace.events.iter().map(|e| (process(e), e.thread)).collect();
    list.extend(rows.into_iter().map(|(pid, tid)| {
        json!({"name": "thread_name", "ph": "M", "pid": pid, "tid": tid, "args": {"name": row(tid)}})
    }));
    list.extend(trace.events.iter().map(|e| entry(e, process(e))));
    list.iter().map(Value::to_string).collect::<Vec<_>>().join(",")
}

/// The name of a row.
fn row(thread: usize) -> String {
    match thread.checked_sub(DEVICE).map(|n| (n % STREAM, n / STREAM)) {
        None => format!("thread {thread}"),
        Some((device, 0)) => format!("device {device}"),
        Some((device, stream)) => format!("device {device}, stream {stream}"),
    }
}

fn entry(e: &Event, pid: usize) -> Value {
    let micros = |nanos: u64| nanos as f64 / 1e3;
    let amount = e.category == Category::Memory;
    let mut entry = json!({
        "name": e.name, "cat": e.category.name(), "ph": if amount { "C" } else { "X" }, "pid": pid,
        "tid": e.thread, "ts": micros(e.start),
    });
    if !amount {
        entry["dur"] = json!(micros(e.duration));
    }
    if let Some(bytes) = e.bytes {
        entry["args"] = json!({"bytes": bytes});
    }
    if let Some(exchange) = &e.exchange {
        entry["args"]["axis"] = json!(exchange.axis);
        entry["args"]["step"] = json!(exchange.step);
        entry["args"]["exchanges"] = json!(exchange.exchanges);
    }
    entry
}
