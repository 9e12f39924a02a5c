//! Artifacts: saved executables in an envelope that detects foreign and damaged bytes before a backend sees them. The
//! envelope guards against accidents, not against an attacker: who can write an artifact can run code.
//!
//! Layout, integers little-endian: `FFXA`, u32 version of the envelope, u32 bytes of the compatibility string, u32 zero,
//! u64 bytes of the payload, u64 FNV-1a of all other bytes; then the string, then the payload.

use crate::{Description, DeviceId, ErrorKind, PluginError};

const MAGIC: &[u8; 4] = b"FFXA";
const VERSION: u32 = 1;
const HEADER: usize = 32;
/// Where the checksum is in the header.
const SUM: std::ops::Range<usize> = 24..32;
/// Longest compatibility string, in bytes.
const MAX_COMPAT: usize = 4096;

/// An artifact whose envelope was checked.
#[derive(Clone, Copy, Debug)]
pub struct Artifact<'a> {
    /// Device to load for.
    pub device: DeviceId,
    /// The payload that [`Executable::save_artifact`](crate::Executable::save_artifact) returned.
    pub payload: &'a [u8],
}

/// The whole compatibility string: plugin, platform, and the backend's addition.
pub(crate) fn compat(description: &Description, own: &str) -> Result<String, PluginError> {
    use std::env::consts::{ARCH, OS};
    let text = format!("{} {} {ARCH}-{OS} {own}", description.name, description.version);
    if text.len() > MAX_COMPAT {
        let reason =
            format!("a compatibility string of {} bytes; at most {MAX_COMPAT} are allowed", text.len());
        return Err(PluginError::internal(reason));
    }
    Ok(text)
}

/// Wraps a payload in an envelope.
pub(crate) fn seal(compat: &str, payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEADER + compat.len() + payload.len());
    bytes.extend_from_slice(MAGIC);
    bytes.extend_from_slice(&VERSION.to_le_bytes());
    // Bounded by `compat`, so it fits.
    bytes.extend_from_slice(&(compat.len() as u32).to_le_bytes());
    bytes.extend_from_slice(&0u32.to_le_bytes());
    bytes.extend_from_slice(&(payload.len() as u64).to_le_bytes());
    bytes.extend_from_slice(&[0; 8]);
    bytes.extend_from_slice(compat.as_bytes());
    bytes.extend_from_slice(payload);
    let sum = checksum(&bytes);
    bytes[SUM].copy_from_slice(&sum.to_le_bytes());
    bytes
}

/// Extracts the payload from its envelope.
///
/// # Errors
/// [`ErrorKind::Damaged`] for bytes that are not a complete artifact, [`ErrorKind::Incompatible`] for one that was saved under
/// another string.
pub(crate) fn open<'a>(bytes: &'a [u8], compat: &str) -> Result<&'a [u8], PluginError> {
    let damaged = |what: &str| PluginError::damaged(format!("{what}; compile the program again"));
    if !bytes.starts_with(MAGIC) {
        return Err(damaged("not an artifact: it does not begin with `FFXA`"));
    }
    let (header, rest) =
        bytes.split_at_checked(HEADER).ok_or_else(|| damaged("the artifact is cut short"))?;
    let u32_at = |at: usize| u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
    let u64_at = |at: usize| u64::from(u32_at(at)) | u64::from(u32_at(at + 4)) << 32;
    if u32_at(4) != VERSION {
        let reason = format!("the artifact's envelope has version {}, this one reads {VERSION}", u32_at(4));
        return Err(PluginError::new(
            ErrorKind::Incompatible,
            format!("{reason}; compile the program again"),
        ));
    }
    let text_bytes = u32_at(8) as usize;
    if (rest.len() as u64).checked_sub(u64::from(u32_at(8))) != Some(u64_at(16)) {
        return Err(damaged("the artifact is cut short or has bytes too many"));
    }
    if checksum(bytes) != u64_at(24) {
        return Err(damaged("the artifact's checksum is wrong"));
    }
    let (text, payload) = rest.split_at(text_bytes);
    if text != compat.as_bytes() {
        let found = String::from_utf8_lossy(text);
        let reason =
            format!("the artifact was made for `{found}`, this is `{compat}`; compile the program again");
        return Err(PluginError::new(ErrorKind::Incompatible, reason));
    }
    Ok(payload)
}

/// FNV-1a, 64 bits (draft-eastlake-fnv), of everything but the checksum's own bytes.
fn checksum(bytes: &[u8]) -> u64 {
    let others = bytes.iter().enumerate().filter(|(at, _)| !SUM.contains(at)).map(|(_, b)| b);
    others.fold(0xcbf2_9ce4_8422_2325, |hash, &b| (hash ^ u64::from(b)).wrapping_mul(0x0000_0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_comes_out_as_it_went_in() {
        for payload in [&b""[..], b"code"] {
            assert_eq!(open(&seal("cpu 1 avx2", payload), "cpu 1 avx2").unwrap(), payload);
        }
    }

    #[test]
    fn every_cut_and_every_changed_byte_is_noticed() {
        let whole = seal("cpu 1", b"some machine code");
        for end in 0..whole.len() {
            assert_eq!(open(&whole[..end], "cpu 1").unwrap_err().kind, ErrorKind::Damaged, "{end}");
        }
        for at in 0..whole.len() {
            let mut changed = whole.clone();
            changed[at] ^= 0x10;
            let kind = open(&changed, "cpu 1").unwrap_err().kind;
            // A changed version of the envelope is unknown to this reader.
            let wanted = if (4..8).contains(&at) { ErrorKind::Incompatible } else { ErrorKind::Damaged };
            assert_eq!(kind, wanted, "byte {at}");
        }
        let mut longer = whole;
        longer.push(0);
        assert_eq!(open(&longer, "cpu 1").unwrap_err().kind, ErrorKind::Damaged);
    }

    #[test]
    fn an_artifact_of_another_version_names_both() {
        let error = open(&seal("cpu 1 avx2", b"x"), "cpu 1 avx512").unwrap_err();
        assert_eq!(error.kind, ErrorKind::Incompatible);
        assert!(
            error.message.contains("`cpu 1 avx2`") && error.message.contains("`cpu 1 avx512`"),
            "{error}"
        );
    }

    #[test]
    fn the_checksum_is_fnv_1a() {
        // Test vector of the draft: the 64-bit FNV-1a of "foobar".
        assert_eq!(checksum(b"foobar"), 0x8594_4171_f739_67e8);
    }
}
