//! `ferroflux-conformance`: tests a plugin library; also the process that runs a single check. Everything is in the
//! library.

fn main() -> std::process::ExitCode {
    conformance::command::run(std::env::args_os().skip(1)).into()
}
