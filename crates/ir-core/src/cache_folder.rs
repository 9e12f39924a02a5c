//! The folder for data that can be recreated: compiled programs, machine code, autotuning results. There is one folder per
//! user, and each client has a subfolder of its own. This module does not know the contents.

use std::ffi::OsString;
use std::path::PathBuf;

/// The variable that names the folder.
pub const CACHE_FOLDER_VARIABLE: &str = "FERROFLUX_CACHE_DIR";

/// `$FERROFLUX_CACHE_DIR`, `$XDG_CACHE_HOME/ferroflux` or `~/.cache/ferroflux`, whichever is set first; the folder need not
/// exist yet. `None` if none of them is set.
pub fn cache_folder() -> Option<PathBuf> {
    folder_of(&|name| std::env::var_os(name))
}

/// The same lookup with other variables. A relative path is accepted only in `FERROFLUX_CACHE_DIR`, as the XDG
/// specification requires.
fn folder_of(variable: &dyn Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let path = |name| variable(name).filter(|p| !p.is_empty()).map(PathBuf::from);
    let absolute = |name| path(name).filter(|p| p.is_absolute());
    if let Some(own) = path(CACHE_FOLDER_VARIABLE) {
        return std::path::absolute(own).ok();
    }
    let base = absolute("XDG_CACHE_HOME").or_else(|| absolute("HOME").map(|home| home.join(".cache")));
    base.map(|base| base.join("ferroflux"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_variable_that_is_set_counts() {
        let folder = |set: &[(&str, &str)]| {
            let set: Vec<_> = set.iter().map(|(n, v)| ((*n).to_owned(), OsString::from(v))).collect();
            folder_of(&|name| set.iter().find(|(n, _)| n == name).map(|(_, v)| v.clone()))
        };
        assert_eq!(folder(&[]), None);
        assert_eq!(folder(&[("HOME", "/h")]), Some("/h/.cache/ferroflux".into()));
        assert_eq!(folder(&[("HOME", "/h"), ("XDG_CACHE_HOME", "/x")]), Some("/x/ferroflux".into()));
        assert_eq!(folder(&[("HOME", "/h"), ("XDG_CACHE_HOME", "x")]), Some("/h/.cache/ferroflux".into()));
        assert_eq!(folder(&[("HOME", "/h"), ("FERROFLUX_CACHE_DIR", "/c")]), Some("/c".into()));
        let relative = folder(&[("FERROFLUX_CACHE_DIR", "c")]);
        assert!(relative.is_some_and(|p| p.is_absolute() && p.ends_with("c")));
    }
}
