//! `ferroflux plugin`: what is installed, why something is not available, the conformance suite, a new plugin from the
//! template, its installation.

mod check;
mod install;
mod list;
mod new;
mod why;

use std::io::Write;

use anyhow::Result;

use crate::show::columns;

/// Arguments of `plugin`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Lists every plugin that is linked in or found, also those that cannot be used or are shadowed by another.
    List(list::Args),
    /// Explains, rule by rule, why a plugin is available or why it is not.
    Why(why::Args),
    /// Judges a plugin library with the conformance suite. Exit codes: 0 nothing failed, 1 something failed.
    Check(check::Args),
    /// Writes a new plugin from the template: a cargo project of its own that builds and passes the suite.
    New(new::Args),
    /// Installs a plugin library: copies it and writes its manifest into a folder that is searched.
    Install(install::Args),
}

/// Runs the subcommand.
pub(crate) fn run(args: &Args, out: &mut dyn Write) -> Result<()> {
    match &args.command {
        Command::List(args) => list::run(args, out),
        Command::Why(args) => why::run(args, out),
        Command::Check(args) => check::run(args, out),
        Command::New(args) => new::run(args, out),
        Command::Install(args) => install::run(args, out),
    }
}
