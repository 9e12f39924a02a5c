//! Whether a backend fails on a case, and how. A backend that may end the process is run in a child ([`Probe::in_child`]).

use std::path::Path;
use std::process::{Command, Stdio};
use std::str::FromStr;
use std::time::{Duration, Instant};

use super::Case;
use crate::{Error, Options};
use tensor::Tensor;

/// A way to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// Other numbers than the interpreter gives.
    Wrong,
    /// An error.
    Refused,
    /// The backend panics, or the process ends.
    Crash,
    /// Compiling and calling take longer than a limit.
    Slow,
}

impl Failure {
    /// Its name at the command: `wrong`, `refused`, `crash`, `slow`.
    pub fn name(self) -> &'static str {
        match self {
            Failure::Wrong => "wrong",
            Failure::Refused => "refused",
            Failure::Crash => "crash",
            Failure::Slow => "slow",
        }
    }
}

impl FromStr for Failure {
    type Err = String;
    fn from_str(text: &str) -> Result<Failure, String> {
        let all = [Failure::Wrong, Failure::Refused, Failure::Crash, Failure::Slow];
        let unknown = || format!("`{text}` is no failure: wrong, refused, crash or slow");
        all.into_iter().find(|f| f.name() == text).ok_or_else(unknown)
    }
}

/// What a backend did with a case.
#[derive(Clone, Debug, PartialEq)]
pub enum Observed {
    /// It failed in this way; the message says how.
    Failed(Failure, String),
    /// It gave what the interpreter gives.
    Right,
    /// The interpreter refuses the case, so nothing can be said.
    Unjudged(String),
}

impl Observed {
    /// Whether it failed in this way.
    pub fn is(&self, failure: Failure) -> bool {
        matches!(self, Observed::Failed(own, _) if *own == failure)
    }
}

/// Runs cases on a backend.
#[derive(Clone, Debug)]
pub struct Probe {
    options: Options,
    limit: Option<Duration>,
}

impl Probe {
    /// On the backend of `options`.
    pub fn new(options: &Options) -> Probe {
        let options = options.clone().cache(crate::cache::Cache::Off).seed(options.seed.unwrap_or(0));
        Probe { options, limit: None }
    }
    /// What takes longer than this is too slow.
    pub fn limit(self, limit: Duration) -> Probe {
        Probe { limit: Some(limit), ..self }
    }

    /// Runs a case in this process.
    pub fn observe(&self, case: &Case) -> Observed {
        let start = Instant::now();
        let got = match case.run(&self.options) {
            Ok(got) => got,
            Err(error) => return Observed::Failed(kind(&error), error.to_string()),
        };
        let took = start.elapsed();
        if let Some(limit) = self.limit.filter(|limit| took > *limit) {
            let what =
                format!("it took {:.3} s, allowed are {:.3} s", took.as_secs_f64(), limit.as_secs_f64());
            return Observed::Failed(Failure::Slow, what);
        }
        match case.run(&Options::new().backend("eager").seed(self.options.seed.unwrap_or(0))) {
            Ok(expected) => compared(case, &got, &expected),
            Err(error) => Observed::Unjudged(error.to_string()),
        }
    }

    /// Runs a case in a process of its own: `command` with the path of the case's file as its last argument. It calls
    /// [`observe`](Probe::observe) and [`report`](Probe::report); one that ends in another way has crashed, and one that takes
    /// much longer than the limit is ended.
    ///
    /// # Errors
    /// The file cannot be written, or the command cannot be run.
    pub fn in_child(&self, case: &Case, file: &Path, mut command: Command) -> Result<Observed, Error> {
        case.write(file)?;
        let failed = |source| Error::Io { path: file.to_owned(), source };
        command.arg(file).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn().map_err(failed)?;
        let start = Instant::now();
        let status = loop {
            if let Some(status) = child.try_wait().map_err(failed)? {
                break status;
            }
            if self.limit.is_some_and(|limit| start.elapsed() > limit * 4 + STARTING) {
                // It may have ended meanwhile.
                let _ = child.kill();
                child.wait().map_err(failed)?;
                return Ok(Observed::Failed(Failure::Slow, "it did not end".into()));
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        let crashed = || Observed::Failed(Failure::Crash, format!("the process ended with {status}"));
        Ok(status.code().and_then(observed_of).unwrap_or_else(crashed))
    }

    /// The exit code by which a child tells what it has observed.
    pub fn report(observed: &Observed) -> u8 {
        let code = match observed {
            Observed::Right => 0,
            Observed::Failed(Failure::Wrong, _) => 1,
            Observed::Failed(Failure::Refused, _) => 2,
            Observed::Failed(Failure::Slow, _) => 3,
            Observed::Failed(Failure::Crash, _) => 4,
            Observed::Unjudged(_) => 5,
        };
        FIRST_CODE + code
    }
}

/// The first of the exit codes of children. Other programs use those below and above.
const FIRST_CODE: u8 = 80;
/// How long a process may take to start.
const STARTING: Duration = Duration::from_secs(10);

fn observed_of(code: i32) -> Option<Observed> {
    let failed =
        |failure| Some(Observed::Failed(failure, format!("{} in a child process", failure_text(failure))));
    match code - i32::from(FIRST_CODE) {
        0 => Some(Observed::Right),
        1 => failed(Failure::Wrong),
        2 => failed(Failure::Refused),
        3 => failed(Failure::Slow),
        4 => failed(Failure::Crash),
        5 => Some(Observed::Unjudged("the interpreter refuses it".into())),
        _ => None,
    }
}

fn failure_text(failure: Failure) -> &'static str {
    match failure {
        Failure::Wrong => "wrong numbers",
        Failure::Refused => "refused",
        Failure::Crash => "crashed",
        Failure::Slow => "too slow",
    }
}

/// A panic within a backend is a crash, any other error a refusal.
fn kind(error: &Error) -> Failure {
    let crashed = match error {
        Error::Backend(e) => {
            e.plugin_failure().is_some_and(|f| f.code == plugin_sdk::ErrorKind::Panic.code())
        }
        Error::Internal(_) => true,
        _ => false,
    };
    if crashed { Failure::Crash } else { Failure::Refused }
}

/// Compares with the interpreter by the tolerance of the case's operators, relative to the largest value.
fn compared(case: &Case, got: &[Tensor], expected: &[Tensor]) -> Observed {
    let tolerance = prims::Tolerance::of_graph(&case.graph);
    for (n, (g, e)) in got.iter().zip(expected).enumerate() {
        let (atol, rtol) = tolerance.of(e.dtype());
        let sizes = e.iter_complex().map(|z| z.norm());
        let scale = sizes.filter(|x| x.is_finite()).fold(1.0, f64::max);
        if let Err(wrong) = tensor::allclose(g, e, (atol + rtol) * scale, rtol) {
            return Observed::Failed(Failure::Wrong, format!("output {n}: {wrong}"));
        }
    }
    match got.len() == expected.len() {
        true => Observed::Right,
        false => Observed::Failed(Failure::Wrong, format!("{} outputs, not {}", got.len(), expected.len())),
    }
}
