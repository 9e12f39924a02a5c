//! Memory that the plugin may write, followed by guard bytes.

use plugin_abi::table::covers;
use plugin_abi::{FFX_OK, FfxError, Table, text_bytes};

use crate::case::Fault;

const STRIP: u8 = 0xc3;

/// A value followed by guard bytes.
#[repr(C)]
pub struct Guarded<T> {
    /// The value.
    pub value: T,
    strip: [u8; 512],
}

impl<T> Guarded<T> {
    /// Adds guard bytes to a value.
    pub fn new(value: T) -> Box<Guarded<T>> {
        Box::new(Guarded { value, strip: [STRIP; 512] })
    }
    /// Whether the guard bytes are intact.
    pub fn is_intact(&self) -> bool {
        self.strip.iter().all(|b| *b == STRIP)
    }
}

/// An error struct that claims to be `size` bytes large; the bytes beyond must stay unchanged.
pub struct ErrorPlace {
    place: Box<Guarded<FfxError>>,
    size: usize,
}

impl ErrorPlace {
    /// A whole struct of this build.
    pub fn whole() -> ErrorPlace {
        ErrorPlace::cut(size_of::<FfxError>())
    }
    /// A struct of which only `size` bytes may be written.
    pub fn cut(size: usize) -> ErrorPlace {
        let mut place = Guarded::new(FfxError::new());
        place.value.head.struct_size = size as u32;
        for field in FfxError::FIELDS.iter().filter(|f| !covers(size as u32, f)) {
            // SAFETY: the field lies inside of the struct, which is plain bytes and numbers.
            unsafe {
                std::ptr::from_mut(&mut place.value)
                    .cast::<u8>()
                    .add(field.offset)
                    .write_bytes(STRIP, field.size)
            };
        }
        ErrorPlace { place, size }
    }
    /// For a call.
    pub fn pointer(&mut self) -> *mut FfxError {
        &mut self.place.value
    }
    /// Whether nothing was written beyond `size`.
    pub fn is_intact(&self) -> bool {
        // SAFETY: the struct is plain bytes and numbers, all of them initialised.
        let bytes = unsafe {
            std::slice::from_raw_parts(
                std::ptr::from_ref(&self.place.value).cast::<u8>(),
                size_of::<FfxError>(),
            )
        };
        let beyond = FfxError::FIELDS.iter().filter(|f| !covers(self.size as u32, f));
        self.place.is_intact()
            && beyond.into_iter().all(|f| bytes[f.offset..f.end()].iter().all(|b| *b == STRIP))
    }
    /// The code that was written.
    pub fn code(&self) -> i32 {
        self.place.value.code
    }
    /// The message that was written.
    pub fn message(&self) -> String {
        String::from_utf8_lossy(text_bytes(&self.place.value.message)).into_owned()
    }

    /// Defects of a call that must fail: success, another code in the struct, no message, a write beyond it.
    ///
    /// # Errors
    /// The first defect.
    pub fn expect_failure(&self, status: i32) -> Result<(), Fault> {
        if status == FFX_OK {
            return Err(Fault::wrong("the call succeeded, but must fail"));
        }
        self.expect_intact()?;
        if self.code() != status {
            return Err(Fault::wrong(format!(
                "the call returns {status}, the error struct says {}",
                self.code()
            )));
        }
        if self.message().is_empty() {
            return Err(Fault::wrong(format!("the call fails with code {status} and without a message")));
        }
        Ok(())
    }
    /// # Errors
    /// A write beyond the struct.
    pub fn expect_intact(&self) -> Result<(), Fault> {
        let place = format!("a write beyond an error struct of {} bytes", self.size);
        if self.is_intact() { Ok(()) } else { Err(Fault::wrong(place)) }
    }
}
