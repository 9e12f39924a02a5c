//! `ferroflux minify`: a model that fails on a backend as a graph of a few nodes with its inputs.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context, Result};
use ferroflux::minify::{Case, Failure, Minified, Observed, Probe, minify};
use serde_json::json;

use crate::model::Model;
use crate::options::{BackendArgs, Global};
use crate::prepared::GivenArgs;
use crate::progress::Progress;
use crate::report::{advised, usage};
use crate::training::step::TrainedArgs;
use crate::{files, show};

/// Arguments of `minify`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The model: a `.pt2` archive, a `.zip` of one with its inputs, or a graph as text.
    model: PathBuf,
    /// How it fails: wrong, refused, crash or slow; found out where not given.
    #[arg(long, value_name = "HOW", value_parser = Failure::from_str)]
    fails: Option<Failure>,
    /// Compiling and calling are slow from so many seconds on; a child process that takes much longer is ended.
    #[arg(long, value_name = "S", default_value_t = 60.0)]
    limit: f64,
    /// Where the graph goes, as text; its inputs go to the safetensors file of the same name beside it.
    #[arg(long, value_name = "OUT.fx", required_unless_present = "probe")]
    out: Option<PathBuf>,
    #[command(flatten)]
    given: GivenArgs,
    #[command(flatten)]
    backend: BackendArgs,
    #[command(flatten)]
    trained: TrainedArgs,
    /// Prints one JSON object instead of text.
    #[arg(long)]
    json: bool,
    /// Runs the case and tells by the exit code how it went: what the command starts as a child.
    #[arg(long, hide = true)]
    pub(crate) probe: bool,
}

impl Args {
    fn probing(&self, global: &Global) -> Result<Probe> {
        if !(self.limit > 0.0 && self.limit < 1e6) {
            return Err(usage("`--limit` is no time", "give a number of seconds"));
        }
        Ok(Probe::new(&self.backend.options(global)).limit(Duration::from_secs_f64(self.limit)))
    }
}

/// The child: one case.
pub(crate) fn probe(args: &Args, global: &Global) -> ExitCode {
    let observed = args.probing(global).and_then(|probe| Ok(probe.observe(&Case::read(&args.model)?)));
    ExitCode::from(Probe::report(&observed.unwrap_or_else(|e| Observed::Unjudged(e.to_string()))))
}

/// Runs the subcommand.
pub(crate) fn run(args: &Args, global: &Global, out: &mut dyn Write) -> Result<()> {
    let Some(path) = &args.out else { return Err(usage("no output is named", "give `--out OUT.fx`")) };
    if path.extension().is_none_or(|e| e != "fx") {
        return Err(usage(
            format!("{} is not named *.fx", path.display()),
            "a graph's text is an `.fx` file",
        ));
    }
    files::check_writable(path)?;
    let mut model = Model::open(&args.model)?;
    let inputs = args.given.all(&mut model)?;
    let taken = args.trained.program(&model.program, inputs, &args.backend.options(global));
    let case = taken.and_then(|(program, inputs)| Ok(program.case(&inputs)?));
    let case = case.with_context(|| format!("cannot take `{}` apart", model.name))?;
    let runner = Runner::new(args, global)?;
    let (failure, message) = runner.first(&case, args.fails)?;
    let _progress = Progress::start(format!("{}: {} calls, {}", model.name, case.calls(), failure.name()));
    let alone = failure == Failure::Crash || failure == Failure::Slow;
    let found = minify(&case, &mut |case| match alone {
        true => runner.in_child(case).is_ok_and(|o| o.is(failure)),
        false => runner.probe.observe(case).is(failure),
    });
    let Some(found) = found else {
        return Err(advised("it did not fail a second time", "give a longer or shorter `--limit`"));
    };
    found.case.write(path).with_context(|| format!("cannot write {}", path.display()))?;
    print(args, (failure, &message), &found, path, out)
}

/// Runs cases here or in children.
struct Runner {
    probe: Probe,
    folder: tempfile::TempDir,
    arguments: Vec<String>,
}

impl Runner {
    fn new(args: &Args, global: &Global) -> Result<Runner> {
        let mut arguments = vec!["minify".to_owned(), "--probe".into(), "--cache".into(), "off".into()];
        let mut add = |name: &str, value: String| arguments.extend([name.to_owned(), value]);
        add("--backend", args.backend.backend.clone());
        add("--mode", args.backend.mode.name().to_owned());
        add("--limit", args.limit.to_string());
        args.backend.options.iter().for_each(|(name, value)| add("--option", format!("{name}={value}")));
        global.threads.iter().for_each(|n| add("--threads", n.to_string()));
        if args.backend.unchecked_indices {
            arguments.push("--unchecked-indices".into());
        }
        Ok(Runner { probe: args.probing(global)?, folder: tempfile::tempdir()?, arguments })
    }

    fn in_child(&self, case: &Case) -> Result<Observed> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(&self.arguments);
        Ok(self.probe.in_child(case, &self.folder.path().join("case.fx"), command)?)
    }

    /// How the whole model fails, in a child, as it may end the process.
    fn first(&self, case: &Case, wanted: Option<Failure>) -> Result<(Failure, String)> {
        let observed = self.in_child(case)?;
        if let (Some(wanted), Observed::Failed(other, message)) = (wanted, &observed)
            && wanted != *other
        {
            let what =
                format!("it does not fail as `{}` but as `{}`: {message}", wanted.name(), other.name());
            return Err(advised(what, "leave `--fails` out, or name what happens first"));
        }
        match observed {
            Observed::Failed(failure @ (Failure::Wrong | Failure::Refused), message) => {
                // Here the message can be read.
                match self.probe.observe(case) {
                    Observed::Failed(again, message) if again == failure => Ok((failure, message)),
                    _ => Ok((failure, message)),
                }
            }
            Observed::Failed(failure, message) => Ok((failure, message)),
            Observed::Right => Err(advised(
                "the model gives what the interpreter gives, in time",
                "name the backend and the options with which it fails; `ferroflux verify` looks at inner values too",
            )),
            Observed::Unjudged(why) => Err(advised(
                format!("the interpreter refuses the model: {why}"),
                "nothing can be compared with it; a refusal or a crash of the backend would have been seen",
            )),
        }
    }
}

fn print(
    args: &Args,
    (failure, message): (Failure, &str),
    found: &Minified,
    path: &Path,
    out: &mut dyn Write,
) -> Result<()> {
    let Minified { before, after, tests, .. } = *found;
    let beside = Case::tensors_path(path);
    if args.json {
        let object = json!({
            "fails": failure.name(), "message": message, "before": before, "after": after, "runs": tests,
            "graph": path, "tensors": beside,
        });
        writeln!(out, "{object}")?;
        return Ok(());
    }
    writeln!(out, "{}: {message}", failure.name())?;
    writeln!(out, "{} of {before} left after {}", show::count(after, "call"), show::count(tests, "run"))?;
    writeln!(out, "{} and {}", path.display(), beside.display())?;
    write!(out, "{}", found.case.graph.print_readable())?;
    Ok(())
}
