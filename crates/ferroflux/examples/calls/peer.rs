//! PyTorch's side: a process that answers each line (an expression of `x` and `y`, the number of elements) with nanoseconds, as
//! [`timed`](super::timed) measures them. It waits while this side runs.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use super::{BATCH, Outcome, TURN, Time};

const SCRIPT: &str = "
import sys, time, torch
def steps(h, y):
    for _ in range(8):
        h = h * 0.9 + y
    return h
for line in sys.stdin:
    text, size, turn, least = line.rstrip('\\n').split('\\t')
    x, y = torch.rand(int(size)), torch.rand(int(size))
    turn, least = float(turn), float(least)
    f = eval('lambda: ' + text, {'x': x, 'y': y, 'steps': steps})
    def batch(n):
        start = time.perf_counter_ns()
        for _ in range(n):
            f()
        return (time.perf_counter_ns() - start) / n
    with torch.no_grad():
        n = 1
        while batch(n) * n < least * 1e9:
            n *= 2
        times, start = [], time.perf_counter()
        while time.perf_counter() - start < turn or len(times) < 5:
            times.append(batch(n))
    times.sort()
    print(times[len(times) // 2], times[0], flush=True)
";

/// The process.
pub(super) struct Peer {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Peer {
    pub(super) fn start(python: &str) -> Outcome<Peer> {
        let mut child =
            Command::new(python).args(["-c", SCRIPT]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let (to, from) = (child.stdin.take(), child.stdout.take());
        let (Some(to), Some(from)) = (to, from) else { return Err("the interpreter has no pipes".into()) };
        Ok(Peer { child, to, from: BufReader::new(from) })
    }

    pub(super) fn timed(&mut self, expression: &str, size: i64) -> Outcome<Time> {
        let (turn, batch) = (TURN.as_secs_f64(), BATCH.as_secs_f64());
        writeln!(self.to, "{expression}\t{size}\t{turn}\t{batch}")?;
        let mut line = String::new();
        self.from.read_line(&mut line)?;
        let numbers: Vec<f64> = line.split_whitespace().map(str::parse).collect::<Result<_, _>>()?;
        match numbers[..] {
            [median, best] => Ok(Time { median, best }),
            _ => Err(format!("the interpreter answered `{}`", line.trim()).into()),
        }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
