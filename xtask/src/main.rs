//! Automation of the project, as `cargo xtask COMMAND`. One file (or folder) of this crate per command; this one only
//! reads the command line.

mod compare;
mod corpus;
mod drift;
mod emulator;
mod fuzz;
mod gpu_suite;
mod header;
mod hip_standin;
mod kernels;
mod mpi;
mod ops;
mod python;
mod root;
mod test_all;
mod tidy;
mod tutorial;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// The system's, until the fuzzer asks for guarded blocks.
#[global_allocator]
static ALLOCATOR: fuzz::allocator::Guarded = fuzz::allocator::Guarded;

#[derive(Parser)]
#[command(name = "xtask", about = "Automation of the project")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Runs golden cases and reports which pass.
    Corpus(corpus::Args),
    /// Runs single cases for `corpus`, one a line on the standard input.
    #[command(hide = true)]
    CorpusWorker(corpus::WorkerArgs),
    /// Compares every value of training cases with double precision.
    Drift(drift::Args),
    /// Checks the conventions of the project: layers, file headers and lengths, safety comments, words.
    Tidy(tidy::Args),
    /// Runs changed archives and looks for crashes, panics and wrong answers.
    Fuzz(fuzz::Args),
    /// Runs changed archives for `fuzz`.
    #[command(hide = true)]
    FuzzWorker(fuzz::WorkerArgs),
    /// Compiles every GPU kernel of golden cases without a GPU.
    Kernels(kernels::Args),
    /// Writes what a compiler makes of kernels for AMD's GPUs to `docs/rocm-kernels.md`.
    RocmKernels(kernels::page::Args),
    /// Runs everything on a machine with a GPU.
    GpuSuite(gpu_suite::Args),
    /// Runs a command on a ROCm that is none.
    HipStandin(hip_standin::Args),
    /// Writes the C header of the plugin ABI.
    Header(header::Args),
    /// Writes the page of operators.
    Ops(ops::Args),
    /// Writes the tutorial with what every stage prints.
    Tutorial(tutorial::Args),
    /// Runs the mesh tests with processes that exchange by MPI.
    Mpi(mpi::Args),
    /// Tests the Python package with an interpreter that has torch.
    Python(python::Args),
    /// Runs everything that must pass.
    TestAll(test_all::Args),
    /// Measures this project next to PyTorch.
    Compare(compare::Args),
}

fn main() -> ExitCode {
    if let Some(answer) = hip_standin::compiler() {
        return answer;
    }
    let result = match Cli::parse().command {
        Command::Corpus(args) => corpus::run(&args),
        Command::CorpusWorker(args) => corpus::work(&args),
        Command::Drift(args) => drift::run(&args),
        Command::Tidy(args) => tidy::run(&args),
        Command::Fuzz(args) => fuzz::run(&args),
        Command::FuzzWorker(args) => fuzz::work(&args),
        Command::Kernels(args) => kernels::run(&args),
        Command::RocmKernels(args) => kernels::page::run(&args),
        Command::GpuSuite(args) => gpu_suite::run(&args),
        Command::HipStandin(args) => hip_standin::run(&args),
        Command::Header(args) => header::run(&args),
        Command::Ops(args) => ops::run(&args),
        Command::Tutorial(args) => tutorial::run(&args),
        Command::Mpi(args) => mpi::run(&args),
        Command::Python(args) => python::run(&args),
        Command::TestAll(args) => test_all::run(&args),
        Command::Compare(args) => compare::run(&args),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::from(2)
        }
    }
}
