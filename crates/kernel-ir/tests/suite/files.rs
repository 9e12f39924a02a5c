//! File tests: every `tests/files/*.kir` says in its first line what is tested (`# test verify`), holds a program, and ends
//! with what is expected (`# expected:` and comment lines). `BLESS=1` rewrites the expectations.
//!
//! - `roundtrip`: the program is well-formed, prints as the file has it, and reads back equal from text and from bytes.
//! - `verify`: the first violation is expected, or `well-formed`.
//! - `prove`: the expectation is the program without the checks of indices that ranges prove.
//! - `guard`: it is the program with a check of every index from data that nothing proves.
//! - `error`: the text does not parse; the error is expected.
//!
//! Running programs stands above this crate, in `interp`.

#![allow(clippy::unwrap_used)] // a failing test may panic

use std::path::Path;

use kernel_ir::{Program, verify};
use testing::files::{self, File};

#[test]
fn every_file_gives_what_it_expects() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/files");
    files::check(&folder, "kir", 12, |file| run(file.directive()?, file));
}

fn run(test: &str, file: &File) -> Result<String, String> {
    if test == "error" {
        return match file.input.parse::<Program>() {
            Ok(_) => Err("parses, although an error is expected".into()),
            Err(error) => Ok(error.to_string()),
        };
    }
    let mut program: Program = file.input.parse().map_err(|e| format!("{e}"))?;
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
        "roundtrip" => roundtrip(&program, file),
        "verify" => Ok(verify(&program).map_or_else(|e| e.to_string(), |()| "well-formed".into())),
        other => Err(format!("`{other}` is no test")),
    }
}

/// The file's text itself is the expectation, so that the format of a file in the tree cannot change unseen.
fn roundtrip(program: &Program, file: &File) -> Result<String, String> {
    verify(program).map_err(|e| e.to_string())?;
    let printed = program.to_string();
    if printed.trim() != file.body().trim() {
        return Err(format!("prints as\n{printed}"));
    }
    let bytes = program.to_bytes();
    let again: Program = printed.parse().map_err(|e| format!("{e}"))?;
    let read = Program::from_bytes(&bytes).map_err(|e| e.to_string())?;
    let equal = again.to_bytes() == bytes && read.to_bytes() == bytes;
    if equal { Ok(String::new()) } else { Err("reads back as another program".into()) }
}
