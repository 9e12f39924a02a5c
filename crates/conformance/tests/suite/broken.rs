//! The judge judged: each deliberately broken plugin must fail exactly its check, and the sound one none. Run with
//! `--nocapture` for the table.

// A helper of tests may fail as a test does.
#![allow(clippy::unwrap_used)]

use std::path::PathBuf;
use std::time::{Duration, Instant};

use conformance::{CHECKS, Effort, Error, Judge, Options, Report, Status, check};
use ferroflux_broken::{FAULTS, VARIABLE};

/// The library that cargo built next to this test.
fn library() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let name = format!("{}ferroflux_broken{}", std::env::consts::DLL_PREFIX, std::env::consts::DLL_SUFFIX);
    let found = test.ancestors().map(|dir| dir.join(&name)).find(|p| p.is_file());
    found.unwrap_or_else(|| panic!("{name} is not above {}", test.display()))
}

fn options(fault: &str) -> Options {
    let program = PathBuf::from(env!("CARGO_BIN_EXE_ferroflux-conformance"));
    Options {
        effort: Effort::Quick,
        environment: vec![(VARIABLE.into(), fault.into())],
        ..Options::new(Judge { program, args: vec![] })
    }
}

fn judged(options: &Options) -> Report {
    check(&library(), options).unwrap()
}

#[test]
fn the_sound_plugin_fails_nothing() {
    let report = judged(&options("none"));
    println!("{}", report.table());
    assert!(report.is_ok(), "{}", report.table());
    assert_eq!(report.outcomes.len(), CHECKS.len());
    assert!(
        report.count(Status::Passed) > CHECKS.len() - 8,
        "the template declines attention, also with dropout, sorting, Fourier transforms and control flow"
    );
}

#[test]
fn every_broken_plugin_fails_exactly_its_check() {
    let mut wrong = Vec::new();
    println!("{:<18} {:<16} {:>6}  how", "plugin", "fails", "time");
    for (name, expected, about) in FAULTS {
        let mut options = options(name);
        if *name == "hangs" {
            // Nothing else is bounded by time: a plugin that is slow on a busy machine is not broken.
            options.only = vec!["zero-sizes".into()];
            options.timeout = Duration::from_secs(3);
        }
        let started = Instant::now();
        let report = judged(&options);
        let failed: Vec<&str> = report.failed().collect();
        let seconds = started.elapsed().as_secs_f64();
        let detail = report.outcomes.iter().find(|o| o.status == Status::Failed).map(|o| o.detail());
        let detail = detail.unwrap_or_default();
        println!("{name:<18} {:<16} {seconds:>4.1} s  {detail}", failed.join(", "));
        if failed != [*expected] {
            wrong.push(format!("{name} ({about}) fails {failed:?}, expected {expected}\n{}", report.table()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_gate_that_fails_skips_the_rest() {
    let report = judged(&options("missing-slot"));
    let outcome = |name: &str| report.outcomes.iter().find(|o| o.name == name).unwrap();
    assert_eq!(outcome("table").status, Status::Passed);
    assert_eq!(outcome("slots").failures.len(), 1);
    assert!(outcome("slots").failures[0].message.contains("`execute`"), "{}", report.table());
    assert_eq!(outcome("threads").status, Status::Skipped);
    assert_eq!(report.count(Status::Skipped), CHECKS.len() - 2);
}

#[test]
fn unknown_checks_and_missing_libraries_are_named() {
    let mut wrong = options("none");
    wrong.only = vec!["ops.f23".into()];
    let error = check(&library(), &wrong).unwrap_err();
    assert!(matches!(error, Error::UnknownCheck { .. }), "{error}");
    assert!(error.to_string().contains("ops.f32"), "{error}");
    let error = check("no/such/library.so".as_ref(), &options("none")).unwrap_err();
    assert!(error.to_string().contains("no/such/library.so"), "{error}");
}

#[test]
fn a_file_that_is_no_plugin_fails_at_the_first_gate() {
    let text = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"));
    let report = check(text, &options("none")).unwrap();
    assert_eq!(report.failed().collect::<Vec<_>>(), ["table"]);
    assert!(report.outcomes[0].detail().contains("does not load"), "{}", report.table());
    let xml = report.junit();
    assert!(xml.contains("failures=\"1\""), "{xml}");
}
