//! Words that must not return to comments, names and documents, each with the term of the field that replaces it. Only words
//! that are wrong everywhere are listed: ordinary English that is right elsewhere is not. Not here: spelling and grammar.

use super::Finding;

/// A word (or several, with single spaces) in lower case, and what to write instead.
const WORDS: [(&str, &str); 12] = [
    ("copy engine", "tensor memory accelerator (TMA)"),
    ("crooked", "unaligned"),
    ("dealt out", "distributed"),
    ("dearer", "more expensive"),
    ("dnn turned", "transposed"),
    ("fickle", "staged"),
    ("misfit", "mismatch"),
    ("of the house", "of the project"),
    ("only running tells", "known only at run time"),
    ("safety as above", "a comment that names the invariant"),
    ("so manieth", "n-th"),
    ("whereabouts", "path, location"),
];

/// Files in which a word is the field's own or part of a quoted name.
const ALLOWED: [(&str, &str); 0] = [];

/// The file with the list itself.
const THIS: &str = "xtask/src/tidy/words.rs";

/// The listed words in the file at `path` (relative to the project, with slashes), which is source or a document. Names count
/// as the words that they consist of: `copy_engine` and `CopyEngine` are `copy engine`.
pub(crate) fn check(path: &str, text: &str) -> Vec<Finding> {
    if path == THIS {
        return Vec::new();
    }
    let line = |(n, line): (usize, &str)| {
        let words = words_of(line);
        let found = WORDS.iter().filter(|(word, _)| words.contains(&format!(" {word} ")));
        let found = found.filter(|(word, _)| !ALLOWED.contains(&(path, *word)));
        let finding = |(word, instead): &(&str, &str)| {
            Finding::error(format!("{path}:{}", n + 1), format!("\"{word}\": write \"{instead}\" instead"))
        };
        found.map(finding).collect::<Vec<_>>()
    };
    text.lines().enumerate().flat_map(line).collect()
}

/// The words of a line in lower case, each between single spaces.
fn words_of(line: &str) -> String {
    let mut out = String::from(" ");
    let mut lower = false;
    for c in line.chars() {
        if !c.is_alphanumeric() && c != '\'' {
            if !out.ends_with(' ') {
                out.push(' ');
            }
            lower = false;
            continue;
        }
        if c.is_uppercase() && lower {
            out.push(' ');
        }
        lower = c.is_lowercase();
        out.extend(c.to_lowercase());
    }
    if !out.ends_with(' ') {
        out.push(' ');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::{WORDS, check};

    #[test]
    fn names_comments_and_documents_are_read_word_by_word() {
        for bad in [
            "// by the copy engine",
            "fn copy_engine_rows() {}",
            "struct CopyEngine;",
            "A *Crooked* tensor.",
            "// SAFETY: as above.",
        ] {
            let found = check("crates/x/src/lib.rs", &format!("//! A file.\n{bad}\n"));
            assert_eq!(found.len(), 1, "{bad}");
            assert!(found[0].fails && found[0].place.ends_with(":2"), "{bad}");
        }
    }

    #[test]
    fn parts_of_other_words_are_none() {
        for good in ["// copies an engine", "// a renewed search", "let misfits = 1;", "// SAFETY: as stated"]
        {
            assert_eq!(check("docs/page.md", good), [], "{good}");
        }
    }

    #[test]
    fn the_list_is_sorted_and_in_lower_case() {
        assert!(WORDS.is_sorted());
        assert!(WORDS.iter().all(|(word, _)| super::words_of(word).trim() == *word));
    }
}
