//! Where manifests are looked for, in order. It lists paths only; `registry` reads and ranks them.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Environment variable with folders (separated as in `PATH`) that are searched before all others.
pub const PATH_VARIABLE: &str = "FERROFLUX_PLUGIN_PATH";
/// Folder of manifests inside a configuration or data folder.
const SUBFOLDER: &str = "ferroflux/plugins.d";
/// Start of the names of manifests that stand next to the executable, among other files.
const ADJACENT_PREFIX: &str = "ferroflux-";

/// A folder to search, and which of its files count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Folder {
    /// The folder; it need not exist.
    pub path: PathBuf,
    /// Only files whose name starts so count.
    pub prefix: &'static str,
}

impl Folder {
    /// A folder in which every `*.json` is a manifest.
    pub fn of_manifests(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), prefix: "" }
    }

    /// Its manifests, sorted by name; none where the folder cannot be read.
    fn manifests(&self) -> Vec<PathBuf> {
        let Ok(entries) = self.path.read_dir() else { return Vec::new() };
        let mut found: Vec<PathBuf> =
            entries.filter_map(|e| e.ok()).map(|e| e.path()).filter(|p| self.is_manifest(p)).collect();
        found.sort();
        found
    }

    fn is_manifest(&self, path: &Path) -> bool {
        let named = path.file_name().is_some_and(|n| n.to_string_lossy().starts_with(self.prefix));
        named && path.extension().is_some_and(|e| e == "json")
    }
}

/// The folders that are searched for manifests, first name wins.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SearchPath {
    /// Folders in order.
    pub folders: Vec<Folder>,
}

impl SearchPath {
    /// The order of a normal run: `FERROFLUX_PLUGIN_PATH`, beside the executable (`plugins.d/*.json`, then
    /// `ferroflux-*.json`), then `ferroflux/plugins.d` in `$XDG_CONFIG_HOME`, `$XDG_DATA_HOME`, `$XDG_DATA_DIRS` and
    /// `/etc`.
    pub fn from_env() -> Self {
        Self::from_lookup(|name| env::var_os(name), env::current_exe().ok().as_deref())
    }

    /// As [`SearchPath::from_env`], with the environment given.
    pub fn from_lookup(var: impl Fn(&str) -> Option<OsString>, executable: Option<&Path>) -> Self {
        let mut folders = Vec::new();
        if let Some(list) = var(PATH_VARIABLE) {
            folders.extend(
                env::split_paths(&list).filter(|p| !p.as_os_str().is_empty()).map(Folder::of_manifests),
            );
        }
        if let Some(beside) = executable.and_then(Path::parent) {
            folders.push(Folder::of_manifests(beside.join("plugins.d")));
            folders.push(Folder { path: beside.to_owned(), prefix: ADJACENT_PREFIX });
        }
        let roots = xdg_roots(var).into_iter().chain([PathBuf::from("/etc")]);
        folders.extend(roots.map(|root| Folder::of_manifests(root.join(SUBFOLDER))));
        Self { folders }
    }

    /// Only this folder.
    pub fn only(path: impl Into<PathBuf>) -> Self {
        Self { folders: vec![Folder::of_manifests(path)] }
    }

    /// All manifest files in order of precedence.
    pub fn manifests(&self) -> Vec<PathBuf> {
        self.folders.iter().flat_map(Folder::manifests).collect()
    }
}

/// Roots of the XDG base directory specification with its defaults; relative paths are ignored, as it demands.
fn xdg_roots(var: impl Fn(&str) -> Option<OsString>) -> Vec<PathBuf> {
    let set = |name: &str| var(name).filter(|v| !v.is_empty());
    let home = set("HOME").map(PathBuf::from);
    let below_home = |tail: &str| home.as_ref().map(|h| h.join(tail));
    let config = set("XDG_CONFIG_HOME").map(PathBuf::from).or_else(|| below_home(".config"));
    let data = set("XDG_DATA_HOME").map(PathBuf::from).or_else(|| below_home(".local/share"));
    let dirs = set("XDG_DATA_DIRS").unwrap_or_else(|| "/usr/local/share:/usr/share".into());
    config.into_iter().chain(data).chain(env::split_paths(&dirs)).filter(|p| p.is_absolute()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_of_folders() {
        let var = |name: &str| -> Option<OsString> {
            let value = match name {
                "FERROFLUX_PLUGIN_PATH" => "/first:/second",
                "HOME" => "/home/u",
                "XDG_DATA_HOME" => "relative",
                "XDG_DATA_DIRS" => "/share/a:/share/b",
                _ => return None,
            };
            Some(value.into())
        };
        let path = SearchPath::from_lookup(var, Some(Path::new("/opt/ff/ferroflux")));
        let shown: Vec<_> =
            path.folders.iter().map(|f| format!("{}/{}*", f.path.display(), f.prefix)).collect();
        assert_eq!(
            shown,
            [
                "/first/*",
                "/second/*",
                "/opt/ff/plugins.d/*",
                "/opt/ff/ferroflux-*",
                "/home/u/.config/ferroflux/plugins.d/*",
                "/share/a/ferroflux/plugins.d/*",
                "/share/b/ferroflux/plugins.d/*",
                "/etc/ferroflux/plugins.d/*",
            ]
        );
    }
}
