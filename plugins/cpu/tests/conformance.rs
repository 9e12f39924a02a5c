//! The conformance suite on the built-in backend as a library. This program is the judge and, called again by itself, the
//! process of a single check. `FERROFLUX_CONFORMANCE=full` tries more numbers and shapes.

use std::path::PathBuf;
use std::process::ExitCode;

use conformance::{Effort, Judge, Options};

fn main() -> ExitCode {
    let args: Vec<_> = std::env::args_os().skip(1).collect();
    if args.iter().any(|a| a == "--journal") {
        return conformance::command::run(args).into();
    }
    // What cargo's own tools ask of a test program.
    if args.iter().any(|a| a == "--list") {
        println!("conformance: test");
        return ExitCode::SUCCESS;
    }
    match judged() {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn judged() -> Result<ExitCode, Box<dyn std::error::Error>> {
    let program = std::env::current_exe()?;
    let full = std::env::var_os("FERROFLUX_CONFORMANCE").is_some_and(|v| v == "full");
    let effort = if full { Effort::Full } else { Effort::Quick };
    let name = format!("{}ferroflux_cpu{}", std::env::consts::DLL_PREFIX, std::env::consts::DLL_SUFFIX);
    let found = program.ancestors().map(|dir| dir.join(&name)).find(|p| p.is_file());
    let library: PathBuf = found.ok_or("cargo builds the library before this test")?;
    let options = Options { effort, ..Options::new(Judge { program, args: vec![] }) };
    let report = conformance::check(&library, &options)?;
    print!("{}", report.table());
    Ok(if report.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
