//! The times of ranges of the same name together: `key_averages().table()` of `torch.profiler`.

use std::collections::BTreeMap;
use std::fmt;

use super::{Category, Event};

/// The ranges of one name.
#[derive(Clone, Debug, PartialEq)]
pub struct Average {
    /// The name.
    pub name: String,
    /// What they are a part of.
    pub category: Category,
    /// How many there are.
    pub calls: u64,
    /// Nanoseconds of all of them.
    pub total: u64,
    /// Nanoseconds of all of them without the ranges within them.
    pub own: u64,
    /// Bytes of all of them: those of exchanges.
    pub bytes: u64,
}

/// The times of a trace by name, the longest own time first.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Averages {
    /// By own time.
    pub rows: Vec<Average>,
}

impl Averages {
    pub(super) fn of(events: &[Event]) -> Averages {
        let mut rows: BTreeMap<(&str, &str), Average> = BTreeMap::new();
        let ranges: Vec<&Event> = events.iter().filter(|e| e.category != Category::Memory).collect();
        for (event, own) in ranges.iter().zip(own_times(&ranges)) {
            let row = rows.entry((event.category.name(), &event.name)).or_insert_with(|| Average {
                name: event.name.clone(),
                category: event.category,
                calls: 0,
                total: 0,
                own: 0,
                bytes: 0,
            });
            row.calls += 1;
            row.total += event.duration;
            row.own += own;
            row.bytes += event.bytes.unwrap_or(0);
        }
        let mut rows: Vec<Average> = rows.into_values().collect();
        rows.sort_by_key(|row| std::cmp::Reverse(row.own));
        Averages { rows }
    }

    /// The ranges of this name.
    pub fn get(&self, name: &str) -> Option<&Average> {
        self.rows.iter().find(|row| row.name == name)
    }

    /// A table of the first rows, as `torch.profiler` prints it; with megabytes where there are exchanges.
    pub fn table(&self, rows: usize) -> String {
        let all: u64 = self.rows.iter().map(|r| r.own).sum();
        let share = |n: u64| if all > 0 { 100.0 * n as f64 / all as f64 } else { 0.0 };
        let shown = &self.rows[..rows.min(self.rows.len())];
        let width = shown.iter().map(|r| r.name.chars().count()).max().unwrap_or(0).max(4);
        let exchanges = shown.iter().any(|r| r.category == Category::Collective);
        let last = |text: String| if exchanges { format!("  {text:>10}\n") } else { "\n".to_owned() };
        let mut text = format!(
            "{:<width$}  {:>10}  {:>12}  {:>12}  {:>12}  {:>8}",
            "name", "own %", "own ms", "total ms", "average ms", "calls"
        );
        text.push_str(&last("MB".to_owned()));
        for row in shown {
            let ms = |n: u64| n as f64 / 1e6;
            text.push_str(&format!(
                "{:<width$}  {:>9.2}%  {:>12.3}  {:>12.3}  {:>12.3}  {:>8}",
                row.name,
                share(row.own),
                ms(row.own),
                ms(row.total),
                ms(row.total) / row.calls.max(1) as f64,
                row.calls
            ));
            let megabytes = match row.category {
                Category::Collective => format!("{:.3}", row.bytes as f64 / 1e6),
                _ => String::new(),
            };
            text.push_str(&last(megabytes));
        }
        text
    }
}

impl fmt::Display for Averages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.table(self.rows.len()))
    }
}

/// For each range its time without the ranges directly within it, on the same thread.
fn own_times(ranges: &[&Event]) -> Vec<u64> {
    let mut order: Vec<usize> = (0..ranges.len()).collect();
    order.sort_by_key(|&i| (ranges[i].thread, ranges[i].start, std::cmp::Reverse(ranges[i].duration)));
    let mut own: Vec<u64> = ranges.iter().map(|e| e.duration).collect();
    let mut open: Vec<usize> = Vec::new();
    for &i in &order {
        let ends = |n: &usize| ranges[*n].start + ranges[*n].duration;
        let within = |n: &usize| ranges[*n].thread == ranges[i].thread && ends(n) >= ends(&i);
        while open.last().is_some_and(|outer| !within(outer)) {
            open.pop();
        }
        if let Some(&outer) = open.last() {
            own[outer] = own[outer].saturating_sub(ranges[i].duration);
        }
        open.push(i);
    }
    own
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(name: &str, thread: usize, start: u64, duration: u64) -> Event {
        let (name, category) = (name.into(), Category::User);
        Event { name, category, thread, start, duration, bytes: None, rank: None, exchange: None }
    }

    #[test]
    fn own_time_is_without_what_is_within() {
        let events = [
            event("inner", 1, 20, 10),
            event("middle", 1, 10, 50),
            event("inner", 1, 70, 10),
            event("outer", 1, 0, 100),
            event("inner", 2, 15, 10),
        ];
        let averages = Averages::of(&events);
        let of = |name: &str| averages.get(name).map(|r| (r.calls, r.total, r.own));
        assert_eq!(of("outer"), Some((1, 100, 40)));
        assert_eq!(of("middle"), Some((1, 50, 40)));
        assert_eq!(of("inner"), Some((3, 30, 30)));
        let table = averages.table(2);
        assert_eq!(table.lines().count(), 3);
        assert!(table.contains("36.36%") && !table.contains("MB"), "{table}");
    }

    #[test]
    fn exchanges_have_their_bytes() {
        let exchange = |start: u64| Event {
            category: Category::Collective,
            bytes: Some(1_500_000),
            ..event("all_reduce over dp", 1, start, 10)
        };
        let amount = Event { category: Category::Memory, bytes: Some(7), ..event("arena", 1, 0, 0) };
        let averages = Averages::of(&[exchange(0), exchange(20), event("loop", 1, 40, 5), amount]);
        let found = averages.get("all_reduce over dp").map(|r| (r.calls, r.total, r.bytes));
        assert_eq!(found, Some((2, 20, 3_000_000)));
        assert_eq!(averages.get("arena"), None);
        let table = averages.table(2);
        let lines: Vec<&str> = table.lines().collect();
        assert!(lines[0].ends_with("MB") && lines[1].ends_with("3.000"), "{table}");
    }
}
