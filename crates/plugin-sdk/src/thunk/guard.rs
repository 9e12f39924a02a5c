//! Runs a slot's body: no panic leaves it, and every failure is written to the caller's error struct.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use plugin_abi::{FFX_OK, FfxError, write_error};

use crate::{ErrorKind, PluginError};

/// Runs `body`; returns the ABI's status and fills `error`.
///
/// # Safety
/// `error` is null or points to an error struct of the caller whose `struct_size` bytes are writable.
pub(crate) unsafe fn guard(error: *mut FfxError, body: impl FnOnce() -> Result<(), PluginError>) -> i32 {
    let failure = match catch(body) {
        Ok(()) => return FFX_OK,
        Err(failure) => failure,
    };
    let (code, node) = (failure.kind.code(), failure.node.as_deref().unwrap_or(""));
    // SAFETY: the caller's guarantee about `error` is passed on unchanged.
    unsafe { write_error(error, code, node, &failure.message) };
    code
}

/// Runs `body` and turns a panic of any payload into an error.
pub(crate) fn catch<T>(body: impl FnOnce() -> Result<T, PluginError>) -> Result<T, PluginError> {
    // State that a panic leaves inconsistent is protected by the executable's lock, which is poisoned.
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|payload| Err(from_panic(payload)))
}

fn from_panic(payload: Box<dyn Any + Send>) -> PluginError {
    let text = match payload.downcast::<String>() {
        Ok(text) => *text,
        Err(payload) => match payload.downcast::<&'static str>() {
            Ok(text) => (*text).to_owned(),
            Err(payload) => {
                discard(payload);
                "with a payload that is not text".to_owned()
            }
        },
    };
    PluginError::new(ErrorKind::Panic, format!("the plugin panicked: {text}"))
}

/// Drops a panic's payload, whose destructor may itself panic; the second payload is leaked.
pub(crate) fn discard(payload: Box<dyn Any + Send>) {
    if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
        std::mem::forget(again);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(error: &mut FfxError, body: impl FnOnce() -> Result<(), PluginError>) -> i32 {
        // SAFETY: a live error struct.
        unsafe { guard(error, body) }
    }

    fn message(error: &FfxError) -> &str {
        std::str::from_utf8(plugin_abi::text_bytes(&error.message)).unwrap()
    }

    struct Nasty;
    impl Drop for Nasty {
        fn drop(&mut self) {
            panic!("while dropping the payload");
        }
    }

    #[test]
    fn panics_of_any_payload_become_errors() {
        let cases: [(fn(), &str); 4] = [
            (|| panic!("a literal"), "a literal"),
            (|| panic!("formatted {}", 7), "formatted 7"),
            (|| std::panic::panic_any(42u64), "not text"),
            (|| std::panic::panic_any(Nasty), "not text"),
        ];
        for (body, wanted) in cases {
            let mut error = FfxError::new();
            let code = run(&mut error, || {
                body();
                Ok(())
            });
            assert_eq!((code, error.code), (plugin_abi::FFX_ERR_PANIC, plugin_abi::FFX_ERR_PANIC));
            assert!(message(&error).contains(wanted), "{}", message(&error));
        }
    }

    #[test]
    fn a_smaller_error_struct_is_not_overrun() {
        let mut error = FfxError::new();
        error.head.struct_size = std::mem::offset_of!(FfxError, message) as u32;
        error.message = [7; plugin_abi::FFX_MESSAGE_BYTES];
        run(&mut error, || Err(PluginError::invalid("no").at("add_1")));
        assert_eq!(plugin_abi::text_bytes(&error.node), b"add_1");
        assert!(error.message.iter().all(|&b| b == 7), "beyond struct_size nothing is written");
    }

    #[test]
    fn long_messages_are_cut_at_a_character() {
        let mut error = FfxError::new();
        run(&mut error, || Err(PluginError::invalid("é".repeat(5000))));
        let text = message(&error);
        assert!(text.len() < plugin_abi::FFX_MESSAGE_BYTES && text.chars().all(|c| c == 'é'));
    }
}
