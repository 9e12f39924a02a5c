//! The browser that tests of pages use, where this machine has one.

use std::process::{Command, Stdio};

/// The command of Chromium or Chrome; `None` where neither is installed.
pub fn browser() -> Option<&'static str> {
    let runs = |name: &&str| {
        let asked = Command::new(name).arg("--version").stdin(Stdio::null()).output();
        asked.is_ok_and(|answer| answer.status.success())
    };
    ["chromium", "chromium-browser", "google-chrome"].into_iter().find(runs)
}
