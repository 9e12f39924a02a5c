//! `ferroflux verify`: every intermediate value of a compiled model beside the interpreter's and float64.

use std::io::Write;
use std::path::PathBuf;

use anyhow::{Context, Result};
use ferroflux::verify::{ValueReport, Verification};

use crate::model::Model;
use crate::options::{BackendArgs, Global};
use crate::prepared::GivenArgs;
use crate::progress::Progress;
use crate::report::advised;
use crate::show;
use crate::training::step::TrainedArgs;

/// How many of the values that are furthest off are listed.
const LISTED: usize = 10;

/// Arguments of `verify`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The model: a `.pt2` archive, a `.zip` of one with its inputs, or a graph as text.
    model: PathBuf,
    #[command(flatten)]
    given: GivenArgs,
    #[command(flatten)]
    backend: BackendArgs,
    #[command(flatten)]
    trained: TrainedArgs,
    /// Lists all values in the order of the graph, not only those that are furthest off.
    #[arg(long)]
    all: bool,
    /// Prints one JSON object instead of text.
    #[arg(long)]
    json: bool,
}

/// Runs the subcommand; an operator over its tolerance is a failure.
pub(crate) fn run(args: &Args, global: &Global, out: &mut dyn Write) -> Result<()> {
    let mut model = Model::open(&args.model)?;
    let inputs = args.given.all(&mut model)?;
    let found = {
        let _progress = Progress::start(format!("{}: comparing", model.name));
        let failed = || format!("cannot compare `{}` on the backend `{}`", model.name, args.backend.backend);
        let options = args.backend.options(global);
        let (program, inputs) =
            args.trained.program(&model.program, inputs, &options).with_context(failed)?;
        program.verify(&inputs, &options).with_context(failed)?
    };
    match args.json {
        true => writeln!(out, "{}", serde_json::to_string(&found)?)?,
        false => print(&found, args.all, out)?,
    }
    match found.first_wrong() {
        None => Ok(()),
        Some(value) => Err(wrong(value, &found)),
    }
}

fn wrong(value: &ValueReport, found: &Verification) -> anyhow::Error {
    let error = show::number(value.own_error.unwrap_or(value.error));
    let fused = match found.only_fused {
        true => "; only in the program as it is fused: with all values as outputs it is right",
        false => "",
    };
    advised(
        format!(
            "the first operator over its tolerance is {value}: off by {error}, allowed {}{fused}",
            show::number(value.allowed)
        ),
        "`ferroflux minify MODEL --fails wrong --out SMALL.fx` makes a small program of it",
    )
}

fn print(found: &Verification, all: bool, out: &mut dyn Write) -> Result<()> {
    let mut listed: Vec<&ValueReport> = found.values.iter().collect();
    if !all {
        let off = |v: &ValueReport| v.own_error.unwrap_or(v.error) / v.allowed.max(f64::MIN_POSITIVE);
        listed.sort_by(|a, b| off(b).total_cmp(&off(a)));
        listed.truncate(LISTED);
    }
    let backend = found.backend.as_str();
    let mut rows = vec![
        ["", "value", "operator", "largest", backend, "eager", "alone", "allowed"]
            .map(str::to_owned)
            .to_vec(),
    ];
    for v in listed {
        let number = |x: f64| show::number(x);
        rows.push(vec![
            if v.fits { String::new() } else { "!".into() },
            v.node.clone(),
            v.target.clone(),
            number(v.scale),
            number(v.error),
            number(v.eager_error),
            v.own_error.map_or("-".into(), number),
            number(v.allowed),
        ]);
    }
    show::columns(&rows, out)?;
    let wrong = found.values.iter().filter(|v| !v.fits).count();
    writeln!(out, "{}, {wrong} over their operators' tolerance", show::count(found.values.len(), "value"))?;
    Ok(())
}
