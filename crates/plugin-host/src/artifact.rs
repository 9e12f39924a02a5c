//! Compiled code as bytes: saving, loading, and the string that states where an artifact may be loaded. The caller decides
//! where the bytes are stored; the plugin decides what they contain.

use std::ffi::c_void;
use std::sync::Arc;

use plugin_abi::{DLDevice, FFX_ERR_DAMAGED, FFX_ERR_UNSUPPORTED, FfxArtifact, FfxBytesSink, FfxError, Head};
use sha2::{Digest, Sha256};

use crate::handshake::call;
use crate::program::ProgramInterface;
use crate::{HostError, LoadedBackend, LoadedExecutable, Manifest, PluginFailure, Source};

/// Longest compatibility string, in bytes.
const MAX_COMPAT: usize = 4096;

impl LoadedBackend {
    /// SHA-256 of the plugin's library as hexadecimal digits; `None` for a plugin that is linked in. For a library found by a
    /// manifest it is the checksum that held when it was loaded.
    ///
    /// # Errors
    /// The library cannot be read any more.
    pub fn library_checksum(&self) -> Result<Option<String>, HostError> {
        if let Some(known) = self.plugin.checksum.get() {
            return Ok(Some(known.clone()));
        }
        let library = match &self.plugin.source {
            Source::BuiltIn => return Ok(None),
            Source::Manifest(path) => Manifest::read(path)?.library_path(path),
            Source::Library(path) => path.clone(),
        };
        let found = crate::manifest::sha256_of(&library)?;
        Ok(Some(self.plugin.checksum.get_or_init(|| found).clone()))
    }

    /// The string under which artifacts of a device (`None`: that of this backend) are made and loaded: a part of the key
    /// of a cache. `None` where the backend makes no artifacts.
    ///
    /// # Errors
    /// No usable device, or the plugin's own.
    pub fn artifact_compat(&self, device: Option<DLDevice>) -> Result<Option<String>, HostError> {
        let Some(slots) = self.plugin.slots.artifacts else { return Ok(None) };
        let device = self.device_or_own(device)?;
        let given = collect(self.name(), "artifact_compat_string", |sink, user, error| {
            // SAFETY: the sink and what it collects live through the call.
            unsafe { (slots.compat_string)(self.plugin.slots.ctx, device, sink, user, error) }
        })?;
        let Some(text) = given else { return Ok(None) };
        let text = String::from_utf8(text).ok().filter(|t| t.len() <= MAX_COMPAT);
        let malformed = "its artifact_compat_string is not UTF-8 of at most 4096 bytes";
        text.map(Some).ok_or_else(|| HostError::handshake(self.name(), malformed))
    }

    /// Creates an executable from the bytes of [`LoadedExecutable::save_artifact`]. Its constants must be bound.
    ///
    /// # Errors
    /// The plugin's error: `FFX_ERR_INCOMPATIBLE` for an artifact of another plugin, version or device, `FFX_ERR_DAMAGED` for
    /// changed bytes. [`HostError::is_stale_artifact`] tells both from the rest.
    pub fn load_artifact(
        &self,
        bytes: &[u8],
        device: Option<DLDevice>,
    ) -> Result<LoadedExecutable, HostError> {
        let not_offered = || HostError::NotOffered { backend: self.name().to_owned(), slot: "artifact_load" };
        let slots = self.plugin.slots.artifacts.ok_or_else(not_offered)?;
        let (program_interface, bytes) = unframed(bytes).ok_or_else(|| HostError::Plugin {
            backend: self.name().to_owned(),
            call: "artifact_load",
            failure: PluginFailure {
                code: FFX_ERR_DAMAGED,
                node: None,
                message: "what the host wrote of its inputs and constants is damaged".into(),
            },
        })?;
        let artifact = FfxArtifact {
            head: Head::of::<FfxArtifact>(),
            device: self.device_or_own(device)?,
            bytes: bytes.as_ptr(),
            n_bytes: bytes.len(),
        };
        let mut executable = std::ptr::null_mut();
        call(self.name(), "artifact_load", |error| {
            // SAFETY: the artifact, the place and the error struct live through the call.
            unsafe { (slots.load)(self.plugin.slots.ctx, &artifact, &mut executable, error) }
        })?;
        // SAFETY: a successful `artifact_load` hands over an executable of this plugin; the inputs that it writes were
        // recorded when it was saved.
        unsafe { LoadedExecutable::adopt(Arc::clone(&self.plugin), executable, program_interface) }
    }
}

impl LoadedExecutable {
    /// The compiled code as bytes, without constants; `None` where the backend makes no artifacts.
    ///
    /// # Errors
    /// The plugin's error.
    pub fn save_artifact(&self) -> Result<Option<Vec<u8>>, HostError> {
        let Some(slots) = self.plugin().slots.artifacts else { return Ok(None) };
        let saved = collect(&self.plugin().described.name, "artifact_save", |sink, user, error| {
            // SAFETY: the executable lives; the sink and what it collects live through the call.
            unsafe { (slots.save)(self.plugin().slots.ctx, self.raw(), sink, user, error) }
        })?;
        let failed = |e: serde_json::Error| {
            let reason = format!("what the host knows of inputs and constants cannot be written: {e}");
            HostError::argument(&self.plugin().described.name, reason)
        };
        saved.map(|bytes| framed(self.program_interface(), bytes).map_err(failed)).transpose()
    }
}

/// The magic number of a host's artifact.
const MAGIC: &[u8; 4] = b"FFXH";
/// Bytes of the checksum.
const SUM: usize = 8;

/// Frames an artifact with the facts about its program that the host needs: `FFXH`, a length as little-endian u32, that
/// many bytes of JSON, the first eight bytes of the SHA-256 of all that, and the plugin's bytes, which have a checksum of
/// their own.
fn framed(program_interface: &ProgramInterface, mut bytes: Vec<u8>) -> Result<Vec<u8>, serde_json::Error> {
    // Without these facts a program would run unchecked.
    let json = serde_json::to_vec(program_interface)?;
    let mut head = MAGIC.to_vec();
    head.extend((json.len() as u32).to_le_bytes());
    head.extend(json);
    head.extend_from_slice(&Sha256::digest(&head)[..SUM]);
    bytes.splice(0..0, head);
    Ok(bytes)
}

/// The parts of what [`framed`] wrote; `None` where the frame is damaged.
fn unframed(bytes: &[u8]) -> Option<(ProgramInterface, &[u8])> {
    let start = MAGIC.len() + 4;
    let length = u32::from_le_bytes(*bytes.get(MAGIC.len()..)?.first_chunk()?) as usize;
    let end = length.checked_add(start)?;
    let (head, sum) = (bytes.get(..end)?, bytes.get(end..end.checked_add(SUM)?)?);
    if !head.starts_with(MAGIC) || Sha256::digest(head)[..SUM] != *sum {
        return None;
    }
    Some((serde_json::from_slice(&head[start..]).ok()?, &bytes[end + SUM..]))
}

/// All bytes that a call passes to its sink; `None` where the plugin does not support the call.
fn collect(
    backend: &str,
    name: &'static str,
    body: impl FnOnce(FfxBytesSink, *mut c_void, *mut FfxError) -> i32,
) -> Result<Option<Vec<u8>>, HostError> {
    unsafe extern "C" fn sink(user: *mut c_void, bytes: *const u8, n_bytes: usize) {
        if bytes.is_null() || n_bytes > isize::MAX as usize {
            return;
        }
        // SAFETY: `user` is the vector below, lent for the call; the plugin lends `n_bytes` readable bytes.
        unsafe { (*user.cast::<Vec<u8>>()).extend_from_slice(std::slice::from_raw_parts(bytes, n_bytes)) }
    }
    let mut collected = Vec::<u8>::new();
    let done = call(backend, name, |error| body(sink, (&raw mut collected).cast(), error));
    match done {
        Ok(()) => Ok(Some(collected)),
        Err(HostError::Plugin { failure, .. }) if failure.code == FFX_ERR_UNSUPPORTED => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use kernel_ir::{ConstantRange, Site};

    use super::*;

    #[test]
    fn the_claims_are_what_was_written_or_nothing() {
        let ranges =
            vec![ConstantRange { name: "w".into(), range: (i64::MIN, 3), sites: vec![Site::default()] }];
        for written in [vec![], vec![false, true], vec![true, false, false, true]] {
            let program_interface = ProgramInterface { written, ranges: ranges.clone() };
            let whole = framed(&program_interface, b"code".to_vec()).unwrap();
            let (found, rest) = unframed(&whole).unwrap();
            assert_eq!((found, rest), (program_interface, &b"code"[..]));
            let head = whole.len() - 4;
            for end in 0..head {
                assert!(unframed(&whole[..end]).is_none(), "cut at {end}");
            }
            for bit in 0..head * 8 {
                let mut changed = whole.clone();
                changed[bit / 8] ^= 1 << (bit % 8);
                assert!(unframed(&changed).is_none(), "bit {bit}");
            }
        }
    }
}
