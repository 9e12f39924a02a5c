//! Whether gradients are recorded on this thread, as `torch.no_grad`.

use std::cell::Cell;

thread_local! {
    static ENABLED: Cell<bool> = const { Cell::new(true) };
}

/// Whether operators on this thread record what a gradient needs.
pub fn grad_enabled() -> bool {
    ENABLED.get()
}

/// Restores the earlier setting when it is dropped.
#[must_use = "the mode ends when this is dropped"]
pub struct GradMode {
    before: bool,
}

impl GradMode {
    /// Sets whether gradients are recorded on this thread, until the result is dropped.
    pub fn set(enabled: bool) -> GradMode {
        GradMode { before: ENABLED.replace(enabled) }
    }
}

impl Drop for GradMode {
    fn drop(&mut self) {
        ENABLED.set(self.before);
    }
}

/// Runs `f` without recording anything for gradients.
pub fn no_grad<R>(f: impl FnOnce() -> R) -> R {
    let _mode = GradMode::set(false);
    f()
}
