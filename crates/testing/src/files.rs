//! File tests: a folder of text files, each of which ends with its expected result.
//!
//! ```text
//! # test verify                 a directive: which test, with arguments after a space; any number of them
//! fx 1.0                        the input: everything before the mark
//! graph "g" { … }
//!
//! # expected:                   the mark
//! # well-formed                 what the test gives, line by line, as comments
//! ```
//!
//! `BLESS=1` writes the result of a test after the mark instead of failing. The suite defines what a file's directives
//! mean; this module finds the files, runs them and compares.

use std::path::{Path, PathBuf};

/// The line after which a file states its expected result.
const MARK: &str = "# expected:\n";

/// The environment variable that accepts what the tests give.
pub const BLESS: &str = "BLESS";

/// A file of a file test.
#[derive(Clone, Debug)]
pub struct File {
    /// The path.
    pub path: PathBuf,
    /// Its text before the mark.
    pub input: String,
    /// Its text after the mark, with the comment signs; empty where there is no mark.
    pub expected: String,
}

impl File {
    /// Reads a file.
    ///
    /// # Panics
    /// It cannot be read.
    pub fn read(path: &Path) -> File {
        let whole = std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let (input, expected) = whole.split_once(MARK).unwrap_or((&whole, ""));
        File { path: path.to_owned(), input: input.to_owned(), expected: expected.to_owned() }
    }

    /// The directives in the file's first lines, without `# test `.
    pub fn directives(&self) -> impl Iterator<Item = &str> {
        self.input.lines().map_while(|line| line.strip_prefix("# test "))
    }

    /// The one directive of a file.
    ///
    /// # Errors
    /// It has none, or several.
    pub fn directive(&self) -> Result<&str, String> {
        let mut all = self.directives();
        match (all.next(), all.next()) {
            (Some(one), None) => Ok(one),
            _ => Err("begin the file with one line `# test NAME`".to_owned()),
        }
    }

    /// The input without comment lines.
    pub fn body(&self) -> String {
        self.input.lines().filter(|line| !line.starts_with('#')).map(|line| format!("{line}\n")).collect()
    }

    /// Compares what the test gave with what the file expects; with `bless` the file is rewritten instead.
    fn judge(&self, actual: &str, bless: bool) -> Result<(), String> {
        let actual: String =
            actual.lines().map(|line| format!("# {line}").trim_end().to_owned() + "\n").collect();
        if actual == self.expected {
            return Ok(());
        }
        if bless {
            let input = self.input.trim_end();
            let text =
                if actual.is_empty() { format!("{input}\n") } else { format!("{input}\n\n{MARK}{actual}") };
            return std::fs::write(&self.path, text).map_err(|e| e.to_string());
        }
        Err(format!("expected\n{}\ngot\n{actual}\n({BLESS}=1 accepts it)", self.expected))
    }
}

/// The files of a folder with that extension, sorted by name.
///
/// # Panics
/// The folder cannot be read, or holds fewer than `at_least` such files: a suite whose files are gone tests nothing.
pub fn list(folder: &Path, extension: &str, at_least: usize) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    let mut paths: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    paths.retain(|path| path.extension().is_some_and(|e| e == extension));
    paths.sort();
    let found = paths.len();
    assert!(found >= at_least, "{}: {found} files `*.{extension}`, not {at_least}", folder.display());
    paths
}

/// Runs `test` on every file of a folder and compares what it gives with what the file expects.
///
/// # Panics
/// Some file fails: the test is an error, or gives something else and `BLESS` is not set. All of them are reported.
pub fn check(
    folder: &Path,
    extension: &str,
    at_least: usize,
    test: impl Fn(&File) -> Result<String, String>,
) {
    let bless = std::env::var_os(BLESS).is_some();
    let failures: Vec<String> = list(folder, extension, at_least)
        .iter()
        .map(|path| File::read(path))
        .filter_map(|file| {
            let outcome = test(&file).and_then(|actual| file.judge(&actual, bless));
            outcome.err().map(|why| format!("{}: {why}", file.path.display()))
        })
        .collect();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a failing test may panic

    use super::*;

    fn file(text: &str) -> (tempfile::TempDir, File) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("one.fx");
        std::fs::write(&path, text).unwrap();
        (folder, File::read(&path))
    }

    #[test]
    fn a_file_is_directives_input_and_expectation() {
        let (_folder, file) = file("# test pass cse\n# a remark\nbody\n\n# expected:\n# one\n#\n# two\n");
        assert_eq!(file.directive(), Ok("pass cse"));
        assert_eq!(file.body(), "body\n\n");
        assert!(file.judge("one\n\ntwo\n", false).is_ok());
        assert!(file.judge("one\n\nthree\n", false).unwrap_err().contains("# three"));
    }

    #[test]
    fn bless_writes_what_is_given_and_takes_away_what_is_not() {
        let (_folder, first) = file("body\n");
        first.judge("new", true).unwrap();
        let blessed = File::read(&first.path);
        assert_eq!(std::fs::read_to_string(&first.path).unwrap(), "body\n\n# expected:\n# new\n");
        assert!(blessed.judge("new", false).is_ok());
        blessed.judge("", true).unwrap();
        assert_eq!(std::fs::read_to_string(&first.path).unwrap(), "body\n");
    }
}
