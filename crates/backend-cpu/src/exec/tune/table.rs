//! The choices of the search: in memory for the process, and in a file of the cache's folder for later ones. The file is text, a line
//! for each class of steps; a line that is no class of this build and processor is nobody's and is never looked up.
//!
//! That a file cannot be read or written is no error: what is missing is timed again.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use crate::exec::bind_cache::{one, unfinished};
use crate::micro;

/// Between a class and the name of what was chosen.
const BETWEEN: &str = " => ";

/// Choices of this process, by class.
static KNOWN: Mutex<BTreeMap<String, String>> = Mutex::new(BTreeMap::new());

/// The table, with the file that it is kept in.
pub(in crate::exec) struct Table {
    file: Option<PathBuf>,
}

impl Table {
    /// The choices that are known in this process and, with a folder, in its file.
    pub(in crate::exec) fn open(folder: Option<&str>) -> Table {
        let machine = format!("{} {} {}", env!("FFX_CPU_BUILD"), micro::variant(), micro::processor());
        // The end of the name is that of the folder's other files that are no compiled programs.
        let name = format!("autotune-{:016x}.weights", one(machine.as_bytes()));
        let table = Table { file: folder.map(|folder| PathBuf::from(folder).join(name)) };
        let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        for (class, name) in table.read() {
            known.entry(class).or_insert(name);
        }
        drop(known);
        table
    }

    /// What was chosen for a class of steps.
    pub(super) fn get(&self, class: &str) -> Option<String> {
        KNOWN.lock().unwrap_or_else(PoisonError::into_inner).get(class).cloned()
    }

    /// Remembers a choice.
    pub(super) fn put(&self, class: &str, name: &str) {
        KNOWN.lock().unwrap_or_else(PoisonError::into_inner).insert(class.to_owned(), name.to_owned());
    }

    /// The choices of the file.
    fn read(&self) -> BTreeMap<String, String> {
        let text = self.file.as_ref().and_then(|file| fs::read_to_string(file).ok()).unwrap_or_default();
        let pair = |line: &str| line.split_once(BETWEEN).map(|(a, b)| (a.to_owned(), b.to_owned()));
        text.lines().filter_map(pair).collect()
    }

    /// Writes what is known to the file, beside what other processes have written meanwhile.
    pub(super) fn keep(&self) {
        let Some(file) = &self.file else { return };
        let before = self.read();
        let mut all = before.clone();
        all.extend(KNOWN.lock().unwrap_or_else(PoisonError::into_inner).clone());
        if all == before {
            return;
        }
        let written = unfinished(file, 0o600, |to| {
            all.iter().try_for_each(|(class, name)| writeln!(to, "{class}{BETWEEN}{name}"))
        });
        if let Err(e) = written {
            tracing::debug!(target: "cache", file = %file.display(), "choices are not kept: {e}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_later_process_reads_what_was_kept_and_adds_to_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().to_str();
        let file = Table::open(path).file.unwrap();
        fs::write(&file, "of another process => row blocks x2\nno choice\n").unwrap();
        let table = Table::open(path);
        assert_eq!(table.get("of another process").as_deref(), Some("row blocks x2"));
        assert_eq!(table.get("no choice"), None);
        table.put("of this one", "blocks by rule");
        table.keep();
        let text = fs::read_to_string(&file).unwrap();
        for line in ["of another process => row blocks x2", "of this one => blocks by rule"] {
            assert!(text.lines().any(|l| l == line), "{text}");
        }
    }
}
