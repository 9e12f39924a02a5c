//! The cache folder, its size bound, and whether its files are trusted: they contain machine code, so no other user may
//! have

use std::fs;
use std::path::{Path, PathBuf};

use super::Cache;

/// The default bound of all files together, in bytes.
const USUAL_LIMIT: u64 = 4 << 30;
/// Variable that bounds the files' size.
const SIZE: &str = "FERROFLUX_CACHE_SIZE";
/// Variable that turns the cache off.
const SWITCH: &str = "FERROFLUX_CACHE";

/// A folder that may be used, and its bound.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub(super) folder: PathBuf,
    pub(super) limit: u64,
}

/// The folder of programs for a setting; not created yet.
///
/// # Errors
/// The reason why there is none.
pub(super) fn place(cache: &Cache) -> Result<Place, String> {
    let usual_limit = || match std::env::var(SIZE) {
        Ok(text) => {
            bytes(&text).ok_or_else(|| format!("{SIZE} is `{text}`, not a number of bytes such as `500M`"))
        }
        Err(_) => Ok(USUAL_LIMIT),
    };
    let (root, limit) = match cache {
        Cache::Off => return Err("it is turned off".into()),
        Cache::Usual => {
            if let Ok(text) = std::env::var(SWITCH)
                && matches!(&*text, "off" | "0" | "false" | "no")
            {
                return Err(format!("{SWITCH} is `{text}`"));
            }
            let root = ir_core::cache_folder().ok_or("there is no home folder")?;
            (root, usual_limit()?)
        }
        Cache::In { folder, limit } => (folder.clone(), limit.map_or_else(usual_limit, Ok)?),
    };
    Ok(Place { folder: root.join("programs"), limit })
}

/// A number of bytes: `1000`, `64K`, `500M`, `2G`.
pub(super) fn bytes(text: &str) -> Option<u64> {
    let text = text.trim();
    let (digits, shift) = match text.char_indices().last()? {
        (at, 'K' | 'k') => (&text[..at], 10),
        (at, 'M' | 'm') => (&text[..at], 20),
        (at, 'G' | 'g') => (&text[..at], 30),
        _ => (text, 0),
    };
    digits.trim().parse::<u64>().ok()?.checked_mul(1 << shift)
}

/// Creates the folder if it does not exist.
///
/// # Errors
/// The message of the system.
pub(super) fn make(folder: &Path) -> Result<(), String> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    {
        use std::os::unix::fs::DirBuilderExt;
        builder.mode(0o700);
    }
    builder.create(folder).map_err(|e| format!("{}: {e}", folder.display()))
}

/// Whether only the user (or the system's administrator) can have put files there.
///
/// # Errors
/// Who else can, and what to do.
pub(super) fn check(folder: &Path) -> Result<(), String> {
    plugin_host::check_permissions(folder).map_err(|e| e.to_string())?;
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        // The owner of a process's own /proc entry is its effective user; on systems without it, permissions alone decide.
        let owner = fs::metadata(folder).map_err(|e| format!("{}: {e}", folder.display()))?.uid();
        let own = fs::metadata("/proc/self").map_or(owner, |about| about.uid());
        if owner != own && owner != 0 {
            return Err(format!("{} belongs to another user", folder.display()));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_with_their_units() {
        assert_eq!(bytes("1000"), Some(1000));
        assert_eq!(bytes(" 64K"), Some(64 << 10));
        assert_eq!(bytes("2g"), Some(2 << 30));
        for wrong in ["", "M", "-1", "1T", "1.5G", "99999999999999G"] {
            assert_eq!(bytes(wrong), None, "{wrong}");
        }
    }
}
