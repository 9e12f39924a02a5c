//! File tests: every `tests/files/*.kir` says in its first line what is tested (`# test verify`), holds a program, and ends
//! with what is expected (`# expected:` and comment lines). `BLESS=1 cargo test -p kernel-ir` writes the expectations anew.
//!
//! - `roundtrip`: the program is well-formed, prints as the file has it, and reads back equal from text and from bytes.
//! - `verify`: the first violation is expected, or `well-formed`.
//! - `prove`: the expectation is the program without the checks of indices that ranges prove.
//! - `guard`: it is the program with a check of every index from data that nothing proves.
//! - `error`: the text does not parse; the error is expected.
//!
//! Running programs stands above this crate, in `interp`.

#![allow(clippy::unwrap_used)] // a failing test may panic

use std::fs;
use std::path::Path;

use kernel_ir::{Program, verify};

const MARK: &str = "# expected:\n";

#[test]
fn every_file_gives_what_it_expects() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/files");
    let mut paths: Vec<_> = fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()).collect();
    paths.retain(|p| p.extension().is_some_and(|e| e == "kir"));
    paths.sort();
    assert!(paths.len() >= 12, "the files are gone");
    let failures: Vec<String> = paths.iter().filter_map(|p| check(p).err()).collect();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

fn check(path: &Path) -> Result<(), String> {
    let whole = fs::read_to_string(path).unwrap();
    let (input, expected) = whole.split_once(MARK).unwrap_or((&whole, ""));
    let directives: Vec<&str> = input.lines().map_while(|l| l.strip_prefix("# test ")).collect();
    let [test] = directives[..] else {
        return Err(format!("{}: begin with one `# test verify|roundtrip|error`", path.display()));
    };
    let actual = run(test, input).map_err(|e| format!("{}: {e}", path.display()))?;
    let actual: String = actual.lines().map(|l| format!("# {l}").trim_end().to_string() + "\n").collect();
    if actual == expected {
        return Ok(());
    }
    if std::env::var_os("BLESS").is_some() {
        let mark = if actual.is_empty() { "" } else { MARK };
        fs::write(path, format!("{}\n\n{mark}{actual}", input.trim_end())).unwrap();
        return Ok(());
    }
    Err(format!("{}: expected\n{expected}\ngot\n{actual}\n(BLESS=1 accepts it)", path.display()))
}

fn run(test: &str, input: &str) -> Result<String, String> {
    if test == "error" {
        return match input.parse::<Program>() {
            Ok(_) => Err("parses, although an error is expected".into()),
            Err(error) => Ok(error.to_string()),
        };
    }
    let mut program: Program = input.parse().map_err(|e| format!("{e}"))?;
    match test {
        "prove" | "guard" => {
            if test == "prove" {
                kernel_ir::prove_indices(&mut program);
            } else {
                kernel_ir::guard_indices(&mut program);
            }
            verify(&program).map_err(|e| e.to_string())?;
            let text = program.to_string();
            let (_, steps) = text.split_once("steps:\n").unwrap();
            Ok(program.sites.iter().map(|s| format!("{s:?}\n")).chain([steps.into()]).collect())
        }
        "roundtrip" => roundtrip(&program, input),
        "verify" => Ok(verify(&program).map_or_else(|e| e.to_string(), |()| "well-formed".into())),
        other => Err(format!("`{other}` is no test")),
    }
}

/// The file's text itself is the expectation, so that the format of a file in the tree cannot change unseen.
fn roundtrip(program: &Program, input: &str) -> Result<String, String> {
    verify(program).map_err(|e| e.to_string())?;
    let body: String = input.lines().filter(|l| !l.starts_with('#')).map(|l| format!("{l}\n")).collect();
    let printed = program.to_string();
    if printed.trim() != body.trim() {
        return Err(format!("prints as\n{printed}"));
    }
    let bytes = program.to_bytes();
    let again: Program = printed.parse().map_err(|e| format!("{e}"))?;
    let read = Program::from_bytes(&bytes).map_err(|e| e.to_string())?;
    let equal = again.to_bytes() == bytes && read.to_bytes() == bytes;
    if equal { Ok(String::new()) } else { Err("reads back as another program".into()) }
}
