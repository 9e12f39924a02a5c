//! The worker processes: one case at a time each, watched for time and memory, replaced when they end.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};

use super::{Case, CaseResult, Status};

/// Interval between checks of a running case.
const TICK: Duration = Duration::from_millis(100);

/// How cases are run.
pub(crate) struct Options {
    pub(crate) backend: String,
    pub(crate) jobs: usize,
    pub(crate) time_limit: Duration,
    /// Bytes that a worker may have resident.
    pub(crate) memory_limit: u64,
}

/// Runs all cases and reports each result as it arrives.
pub(crate) fn run(
    cases: Vec<Case>,
    options: &Options,
    done: &mut dyn FnMut(CaseResult) -> Result<()>,
) -> Result<()> {
    let jobs = options.jobs.min(cases.len().max(1));
    let queue = Mutex::new(VecDeque::from(cases));
    let (sender, results) = mpsc::channel();
    std::thread::scope(|scope| {
        for _ in 0..jobs {
            let sender = sender.clone();
            let queue = &queue;
            scope.spawn(move || serve(queue, options, &sender));
        }
        drop(sender);
        results.iter().try_for_each(|result| done(result?))
    })
}

/// Takes cases from the queue until it is empty. Ends early if the receiver of results is gone.
fn serve(queue: &Mutex<VecDeque<Case>>, options: &Options, sender: &Sender<Result<CaseResult>>) {
    let mut worker = None;
    loop {
        let case = queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
        let Some(case) = case else { break };
        let result = run_one(&case, options, &mut worker);
        let stop = result.is_err();
        if sender.send(result).is_err() || stop {
            break;
        }
    }
}

fn run_one(case: &Case, options: &Options, slot: &mut Option<Worker>) -> Result<CaseResult> {
    let mut worker = match slot.take() {
        Some(worker) => worker,
        None => Worker::start(options)?,
    };
    let start = Instant::now();
    let ended = |what: String, start: Instant| CaseResult {
        case: case.case.clone(),
        kind: case.kind,
        status: Status::Error,
        groups: vec![what.clone()],
        reason: what,
        compile_ms: 0.0,
        run_ms: start.elapsed().as_secs_f64() * 1e3,
    };
    // A worker that died between cases shows on the first write or as an end of its output.
    if worker.send(case).is_err() {
        return Ok(ended(format!("the worker ended: {}", worker.how_it_ended()), start));
    }
    loop {
        match worker.lines.recv_timeout(TICK) {
            Ok(line) => {
                let result =
                    serde_json::from_str(&line).with_context(|| format!("a worker wrote `{line}`"))?;
                *slot = Some(worker);
                return Ok(result);
            }
            Err(RecvTimeoutError::Disconnected) => {
                return Ok(ended(format!("crashed: {}", worker.how_it_ended()), start));
            }
            Err(RecvTimeoutError::Timeout) if start.elapsed() > options.time_limit => {
                return Ok(ended(format!("took longer than {} s", options.time_limit.as_secs()), start));
            }
            Err(RecvTimeoutError::Timeout) if worker.resident() > options.memory_limit => {
                return Ok(ended(format!("used more than {} MiB", options.memory_limit >> 20), start));
            }
            Err(RecvTimeoutError::Timeout) => {}
        }
    }
}

/// A process that runs cases. Killed when dropped.
struct Worker {
    child: Child,
    input: ChildStdin,
    lines: Receiver<String>,
}

impl Worker {
    fn start(options: &Options) -> Result<Worker> {
        let program = std::env::current_exe().context("where this program is")?;
        let mut child = Command::new(program)
            .args(["corpus-worker", "--backend", &options.backend])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .context("starting a worker")?;
        let (input, output) = (child.stdin.take(), child.stdout.take());
        let (input, output) = input.zip(output).ok_or_else(|| anyhow!("a worker without pipes"))?;
        let (sender, lines) = mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        Ok(Worker { child, input, lines })
    }

    fn send(&mut self, case: &Case) -> Result<()> {
        writeln!(self.input, "{}", serde_json::to_string(case)?)?;
        Ok(self.input.flush()?)
    }

    fn how_it_ended(&mut self) -> String {
        self.child.wait().map_or_else(|e| e.to_string(), |status| status.to_string())
    }

    /// Resident bytes, where the system says (Linux); else 0.
    fn resident(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap_or_default();
        let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:"));
        let kib = line.and_then(|l| l.split_whitespace().next()?.parse::<u64>().ok());
        kib.unwrap_or(0) * 1024
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // It may have ended already; either way it is waited for, so that no zombie stays.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
