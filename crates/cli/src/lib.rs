//! The `ferroflux` command: reads the command line, calls the facade, prints. One file per subcommand in `commands`.
//!
//! Not here: any compiler work. Beyond the facade the command knows files (`model`, `golden`, `inputs`, `files`) and text
//! (`show`, `report`, `progress`). Results go to the standard output, everything else to
//! the standard error. Exit codes: 0 success, 1 failure, 2 an invalid command line.
//!
//! ```no_run
//! // The whole command, over the arguments of this process.
//! let _exit = cli::main();
//! ```

mod commands;
mod compare;
mod files;
pub mod golden;
mod inputs;
mod log;
mod mesh;
mod model;
mod options;
mod prepared;
mod progress;
mod report;
mod show;
mod synthetic_weights;
mod training;

use std::io::{BufWriter, ErrorKind, Write};
use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

use options::Global;

#[derive(Parser)]
#[command(
    name = "ferroflux",
    version,
    about = "Compiles and runs PyTorch 2 models (`torch.export` archives) without Python",
    after_help = "Results are printed on the standard output, everything else on the standard error.\nExit codes: 0 success, 1 failure, 2 wrong usage."
)]
struct Cli {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Runs a model on inputs from a safetensors file.
    Run(commands::run::Args),
    /// Trains a model that returns its loss.
    Train(Box<commands::train::Args>),
    /// Prints or draws the model at a stage of the compiler.
    Graph(commands::graph::Args),
    /// Measures how fast models run, and how fast they compile.
    Bench(commands::bench::Args),
    /// Explains a compiled model: operators, fused kernels, memory, and what is not supported.
    Explain(commands::explain::Args),
    /// Compares every intermediate value of a compiled model with float64, and names the first operator that is wrong.
    Verify(commands::verify::Args),
    /// Quantizes a model: weights and activations, or weights alone, to integers; prints the error of each layer.
    Quantize(commands::quantize::Args),
    /// Makes a model that fails on a backend small: a graph of a few nodes with its inputs.
    Minify(commands::minify::Args),
    /// Lists the backends, their devices, and why one cannot run here.
    Backends(commands::backends::Args),
    /// Lists and removes compiled programs that are kept on disk, and explains why a model would be compiled again.
    Cache(commands::cache::Args),
    /// Lists, explains, tests, creates and installs plugins.
    Plugin(Box<commands::plugin::Args>),
}

/// Runs the command line of this process.
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    report::install_panic_hook();
    let usual = match &cli.command {
        Command::Bench(args) => args.tables(),
        _ => None,
    };
    if let Err(error) = log::start(cli.global.log.as_deref(), usual) {
        report::print(&error);
        return ExitCode::from(2);
    }
    if let Command::Minify(args) = &cli.command
        && args.probe
    {
        return commands::minify::probe(args, &cli.global);
    }
    match run(&cli) {
        Ok(()) => ExitCode::SUCCESS,
        // The reader of the output has closed it (`ferroflux graph … | head`).
        Err(error) if is_closed_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            report::print(&error);
            report::exit_code(&error)
        }
    }
}

fn run(cli: &Cli) -> Result<()> {
    if let Some(folder) = &cli.global.trace {
        ferroflux::report::write_to(folder);
    }
    if matches!(cli.command, Command::Bench(_)) {
        ferroflux::report::time_kernels();
    }
    // Not line-buffered: a listing of a large model is megabytes.
    let mut out = BufWriter::new(std::io::stdout().lock());
    let result = match &cli.command {
        Command::Run(args) => commands::run::run(args, &cli.global, &mut out),
        Command::Train(args) => commands::train::run(args, &cli.global, &mut out),
        Command::Graph(args) => commands::graph::run(args, &mut out),
        Command::Bench(args) => commands::bench::run(args, &cli.global, &mut out),
        Command::Explain(args) => commands::explain::run(args, &mut out),
        Command::Verify(args) => commands::verify::run(args, &cli.global, &mut out),
        Command::Quantize(args) => commands::quantize::run(args, &cli.global, &mut out),
        Command::Minify(args) => commands::minify::run(args, &cli.global, &mut out),
        Command::Backends(args) => commands::backends::run(args, &mut out),
        Command::Cache(args) => commands::cache::run(args, &cli.global, &mut out),
        Command::Plugin(args) => commands::plugin::run(args, &mut out),
    };
    // Results before a failure are shown.
    let flushed = out.flush().map_err(anyhow::Error::from);
    result.and(flushed).and(ferroflux::report::flush().map_err(anyhow::Error::from))
}

/// Only an error of the output itself is bare; those of other files carry their path.
fn is_closed_pipe(error: &anyhow::Error) -> bool {
    let io = error.downcast_ref::<std::io::Error>();
    io.is_some_and(|e| e.kind() == ErrorKind::BrokenPipe)
}
