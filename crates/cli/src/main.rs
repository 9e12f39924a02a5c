//! Entry of the `ferroflux` command; everything is in the library next to it.

fn main() -> std::process::ExitCode {
    cli::main()
}
