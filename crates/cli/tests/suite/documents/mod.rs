//! What the pages show a user type, and what they show as the answer: every `console` block of the project's pages is run
//! with the command of this build, in a scratch copy of the project's root, and compared with what the page prints.
//!
//! A block is a shell's: lines that begin with `$ ` are typed, what follows each is what it printed, standard output before
//! standard error. A page is one session, from its first block to its last: folders and files that a block makes are there for
//! the next one. In the answers
//!
//! - `…` stands for any text, and on a line of its own for any number of lines;
//! - `~13.4` stands for any number: one that differs from run to run or from machine to machine.
//!
//! A block that cannot run here has `<!-- not run: WHY -->` on the line above it. `cargo` and `ferroflux` are stand-ins (see
//! `session`): nothing is built in the release profile, and nothing is fetched.
#![cfg(unix)]

mod page;
mod session;

use std::path::{Path, PathBuf};

use testing::cases::root;

use session::Session;

/// Pages whose commands are run; of `docs` all.
fn pages() -> Vec<PathBuf> {
    let mut pages: Vec<PathBuf> = ["README.md", "CONTRIBUTING.md", "fuzz/README.md", "tests/data/README.md"]
        .map(PathBuf::from)
        .to_vec();
    for (folder, depth) in [("docs", 0), ("examples", 1)] {
        collect(Path::new(folder), depth, &mut pages);
    }
    pages.sort();
    pages
}

fn collect(folder: &Path, depth: usize, pages: &mut Vec<PathBuf>) {
    for entry in root().join(folder).read_dir().unwrap() {
        let path = folder.join(entry.unwrap().file_name());
        if path.extension().is_some_and(|e| e == "md") {
            pages.push(path);
        } else if depth > 0 && root().join(&path).is_dir() {
            collect(&path, depth - 1, pages);
        }
    }
}

#[test]
fn the_pages_print_what_the_command_prints() {
    let (mut failures, mut commands) = (Vec::new(), 0);
    for path in pages() {
        let text = std::fs::read_to_string(root().join(&path)).unwrap();
        let blocks = match page::blocks(&text) {
            Ok(blocks) => blocks,
            Err(problem) => {
                failures.push(format!("{}: {problem}", path.display()));
                continue;
            }
        };
        if blocks.is_empty() {
            continue;
        }
        let mut session = Session::new();
        for command in blocks.iter().flat_map(|block| &block.commands) {
            commands += 1;
            let answer = session.run(&command.typed);
            if let Err(problem) = command.judge(&answer) {
                failures.push(format!("{}:{}: $ {}\n{problem}", path.display(), command.line, command.typed));
            }
        }
    }
    assert!(commands >= 20, "only {commands} commands are on the pages");
    assert!(failures.is_empty(), "{} of {commands} commands:\n{}", failures.len(), failures.join("\n\n"));
}
