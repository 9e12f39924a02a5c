//! The ROCm backend as a user gets it, a plugin library, on a HIP runtime that is none (`plugins/hip-standin`). Each case is a
//! process of its own, since what a machine has is looked up once a process: this program runs itself with the name of a case and
//! its environment. It is also the judge of the conformance suite and the process of its checks.
//!
//! `suite [TEXT]` runs the cases whose name contains the text.

mod convolutions;
mod faults;
mod found;
mod machine;
mod products;
mod program;
mod runs;

use std::process::{Command, ExitCode};

use machine::{Machine, Outcome};

/// One case: what there is, and what must hold there.
pub(crate) struct Case {
    /// Its name.
    pub(crate) name: &'static str,
    /// What FERROFLUX_HIP_STANDIN says.
    pub(crate) devices: &'static str,
    /// Makes the folder of ROCm.
    pub(crate) rocm: fn(&Machine) -> std::io::Result<()>,
    /// Runs there.
    pub(crate) body: fn() -> Outcome,
}

/// Told to a process of one case.
const CASE: &str = "FERROFLUX_ROCM_CASE";

fn main() -> ExitCode {
    let args: Vec<_> = std::env::args_os().skip(1).collect();
    if args.iter().any(|a| a == "--journal") {
        return conformance::command::run(args).into();
    }
    let cases = [found::cases(), runs::cases(), products::cases(), convolutions::cases(), faults::cases()];
    let cases: Vec<Case> = cases.into_iter().flatten().collect();
    if args.iter().any(|a| a == "--list") {
        cases.iter().for_each(|case| println!("{}: test", case.name));
        return ExitCode::SUCCESS;
    }
    if let Some(name) = std::env::var_os(CASE) {
        let Some(case) = cases.iter().find(|case| name == case.name) else { return ExitCode::FAILURE };
        return match (case.body)() {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("{error}");
                ExitCode::FAILURE
            }
        };
    }
    let only = args.iter().filter_map(|a| a.to_str()).find(|a| !a.starts_with('-')).unwrap_or("");
    if let Err(why) = gpu_emulator::available() {
        println!("nothing is run: {why}");
        println!("test result: ok. 0 passed; 0 failed; {} ignored", cases.len());
        return ExitCode::SUCCESS;
    }
    let (mut passed, mut failed) = (0, 0);
    for case in cases.iter().filter(|case| case.name.contains(only)) {
        let outcome = run(case);
        println!("test {} ... {}", case.name, if outcome.is_ok() { "ok" } else { "FAILED" });
        match outcome {
            Ok(()) => passed += 1,
            Err(what) => {
                failed += 1;
                println!("{what}");
            }
        }
    }
    let verdict = if failed == 0 { "ok" } else { "FAILED" };
    println!("test result: {verdict}. {passed} passed; {failed} failed; 0 ignored");
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Runs a case in its process; what that said where it did not pass.
fn run(case: &Case) -> Outcome {
    let machine = Machine::new()?;
    (case.rocm)(&machine)?;
    let mut command = Command::new(std::env::current_exe()?);
    command.env(CASE, case.name).envs(machine.environment(case.devices));
    let output = command.output()?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    Err(format!("{}\n{}{text}", output.status, String::from_utf8_lossy(&output.stdout)).into())
}
