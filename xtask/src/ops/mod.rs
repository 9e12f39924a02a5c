//! `xtask ops`: writes `docs/operators.md`, the page of all operators and the contract of the closed prim set.
//!
//! The operators come from the table (`prims`); the golden cases that call them, and how many pass, come from
//! `tests/data/operator-cases.tsv` (`cases`), which `--corpus` regenerates. `page` combines both. The page is generated:
//! `--check`, which the tests run, fails if it is out of date.

mod cases;
mod page;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::root::root;

/// The generated page.
const PAGE: &str = "docs/operators.md";
/// Golden cases per operator.
const CASES: &str = "tests/data/operator-cases.tsv";

/// Arguments of `xtask ops`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Runs the operator cases of these files first and records how many pass.
    #[arg(long, value_name = "ZIP", num_args = 1..)]
    corpus: Vec<PathBuf>,
    /// Writes nothing; fails where the page is not fresh.
    #[arg(long, conflicts_with = "corpus")]
    check: bool,
}

/// Writes the page; `false` where `--check` finds it stale.
pub(crate) fn run(args: &Args) -> Result<bool> {
    let root = root()?;
    let path = root.join(CASES);
    if !args.corpus.is_empty() {
        write(&path, &cases::to_text(&cases::measure(&args.corpus)?))?;
    }
    let page = fresh_page(&root)?;
    let path = root.join(PAGE);
    if args.check {
        let fresh = std::fs::read_to_string(&path).is_ok_and(|old| old == page);
        if !fresh {
            println!("{PAGE} is not what the operator table gives: run `cargo xtask ops` and commit it");
        }
        return Ok(fresh);
    }
    write(&path, &page)?;
    println!("{PAGE}: {} operators", prims::all().len());
    Ok(true)
}

/// The expected page.
fn fresh_page(root: &Path) -> Result<String> {
    let path = root.join(CASES);
    let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    Ok(page::page(&cases::from_text(&text)?))
}

fn write(path: &Path, text: &str) -> Result<()> {
    std::fs::write(path, text).with_context(|| path.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_fresh() {
        let root = root().unwrap();
        let page = std::fs::read_to_string(root.join(PAGE)).unwrap();
        assert!(page == fresh_page(&root).unwrap(), "{PAGE} is stale: run `cargo xtask ops` and commit it");
    }
}
