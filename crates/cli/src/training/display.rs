//! Progress of training on the standard error: a bar on a terminal, otherwise a line every few seconds.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use crate::show;

/// Seconds between lines if there is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(5);

/// Shows the progress of training.
pub(crate) struct Display {
    /// Whether it shows anything: of the ranks of a mesh one does.
    shows: bool,
    bar: Option<ProgressBar>,
    total: u64,
    batch: usize,
    begin: Instant,
    /// Steps of earlier runs.
    first: u64,
    last_line: Instant,
}

impl Display {
    /// For steps `first..total`; nothing is printed unless it `shows`.
    pub(crate) fn new(first: u64, total: u64, batch: usize, shows: bool) -> Display {
        let bar = (shows && std::io::stderr().is_terminal()).then(|| {
            let bar = ProgressBar::new(total).with_position(first);
            if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len} {msg} {eta} left") {
                bar.set_style(style);
            }
            bar
        });
        let now = Instant::now();
        Display { shows, bar, total, batch, begin: now, first, last_line: now }
    }

    /// Samples per second since the beginning.
    pub(crate) fn rate(&self, done: u64) -> f64 {
        let seconds = self.begin.elapsed().as_secs_f64();
        (done - self.first) as f64 * self.batch as f64 / seconds.max(1e-9)
    }

    /// Reports that `done` steps are done.
    pub(crate) fn step(&mut self, done: u64, loss: f64, lr: f64) {
        let text = || {
            let rate = show::number(self.rate(done));
            format!("loss {} lr {} {rate} samples/s", show::number(loss), show::number(lr))
        };
        if let Some(bar) = &self.bar {
            bar.set_message(text());
            bar.set_position(done);
        } else if self.shows && (self.last_line.elapsed() >= LINE_EVERY || done == self.total) {
            eprintln!("step {done}/{}: {}", self.total, text());
            self.last_line = Instant::now();
        }
    }

    /// Prints a line without disturbing the bar.
    pub(crate) fn say(&self, line: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| eprintln!("{line}")),
            None => eprintln!("{line}"),
        }
    }
}

impl Drop for Display {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
