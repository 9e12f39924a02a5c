//! Values that a captured function may depend on besides tensors: whether a module trains, a loop count, a rate. Closures can
//! hide such values from capture; in a [`Setting`] reading one becomes a guard.

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

use crate::frame;

/// A value that is shared, may change between calls, and is guarded where a captured function reads it. Cloning shares.
#[derive(Clone, Default)]
pub struct Setting<T>(Arc<Inner<T>>);

#[derive(Default)]
struct Inner<T> {
    name: &'static str,
    value: RwLock<T>,
}

/// A condition of a captured function on something outside of it.
pub trait Condition: Send + Sync {
    /// Whether it still holds.
    fn holds(&self) -> bool;
    /// It as text, with the value now: ``the setting `training` is false, it was true``.
    fn describe(&self) -> String;
}

impl<T: Clone + PartialEq + fmt::Debug + Send + Sync + 'static> Setting<T> {
    /// A setting; the name is for messages.
    pub fn new(name: &'static str, value: T) -> Setting<T> {
        Setting(Arc::new(Inner { name, value: RwLock::new(value) }))
    }

    /// Its value. Where a function is captured, the compiled function is valid for this value alone.
    pub fn get(&self) -> T {
        let value = self.0.value.read().unwrap_or_else(PoisonError::into_inner).clone();
        frame::with(|frame| {
            let expected = Expected { setting: Arc::clone(&self.0), value: value.clone() };
            frame.require(Arc::as_ptr(&self.0).cast(), Box::new(expected));
        });
        value
    }

    /// Changes it, for all who share it.
    pub fn set(&self, value: T) {
        // What is captured on this thread may have read it, and goes on with the new value: no guard can say that.
        let _ = frame::interrupt(|| format!("the setting `{}` is changed", self.0.name));
        *self.0.value.write().unwrap_or_else(PoisonError::into_inner) = value;
    }
}

impl<T: fmt::Debug> fmt::Debug for Setting<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.value.read().unwrap_or_else(PoisonError::into_inner).fmt(f)
    }
}

struct Expected<T> {
    setting: Arc<Inner<T>>,
    value: T,
}

impl<T: PartialEq + fmt::Debug + Send + Sync> Condition for Expected<T> {
    fn holds(&self) -> bool {
        *self.setting.value.read().unwrap_or_else(PoisonError::into_inner) == self.value
    }
    fn describe(&self) -> String {
        let now = self.setting.value.read().unwrap_or_else(PoisonError::into_inner);
        format!("the setting `{}` is {:?}, it was {:?}", self.setting.name, *now, self.value)
    }
}
