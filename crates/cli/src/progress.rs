//! A spinner on the standard error, if that is a terminal and an operation takes longer than a second.

use std::io::IsTerminal;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// The delay before the spinner appears.
const PATIENCE: Duration = Duration::from_secs(1);

/// Shows an activity until it is dropped.
pub(crate) struct Progress(Option<(Sender<()>, JoinHandle<()>)>);

impl Progress {
    /// Shows `what` after a second.
    pub(crate) fn start(what: impl Into<String>) -> Progress {
        if !std::io::stderr().is_terminal() {
            return Progress(None);
        }
        let what = what.into();
        let (done, wait) = mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            if wait.recv_timeout(PATIENCE) != Err(RecvTimeoutError::Timeout) {
                return;
            }
            let bar = ProgressBar::new_spinner().with_message(what).with_elapsed(PATIENCE);
            if let Ok(style) = ProgressStyle::with_template("{spinner} {msg} {elapsed}") {
                bar.set_style(style);
            }
            bar.enable_steady_tick(Duration::from_millis(100));
            // Ends when the sender is dropped.
            let _ = wait.recv();
            bar.finish_and_clear();
        });
        Progress(Some((done, thread)))
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some((done, thread)) = self.0.take() {
            drop(done);
            // A spinner that panicked is not a reason to fail.
            let _ = thread.join();
        }
    }
}
