//! `ferroflux plugin new NAME`: the template under another name. Its files are those of `plugins/template`, in which the
//! backend is called `acme`.

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use plugin_host::{Registry, SearchPath};

use crate::report::{advised, usage};

/// Arguments of `plugin new`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Name of the backend: a lower-case letter, then letters, digits, `-` and `_`.
    name: String,
    /// Folder to make; `ferroflux-NAME` in the current one where not given.
    #[arg(long, value_name = "DIR")]
    path: Option<PathBuf>,
    /// A folder with the crate `plugin-sdk` to build against, instead of the published version.
    #[arg(long, value_name = "DIR")]
    sdk: Option<PathBuf>,
}

macro_rules! files {
    ($($name:literal),* $(,)?) => {
        &[$(($name, include_str!(concat!("../../../../../plugins/template/", $name)))),*]
    };
}

/// The files of the template.
const FILES: &[(&str, &str)] = files![
    "Cargo.toml",
    "README.md",
    ".gitignore",
    "src/lib.rs",
    "src/backend.rs",
    "src/support.rs",
    "src/sizes.rs",
    "src/memory.rs",
    "src/number.rs",
    "src/kernel.rs",
    "src/products.rs",
    "src/tests.rs",
];

/// How the template refers to the SDK.
const SDK: &str = r#"plugin-sdk = { path = "../../crates/plugin-sdk" }"#;

/// Runs the subcommand.
pub(crate) fn run(args: &Args, out: &mut dyn Write) -> Result<()> {
    check_name(&args.name)?;
    check_free(&args.name)?;
    let folder = args.path.clone().unwrap_or_else(|| PathBuf::from(format!("ferroflux-{}", args.name)));
    let sdk = match &args.sdk {
        Some(path) => {
            let path = path.canonicalize().with_context(|| path.display().to_string())?;
            if !path.join("Cargo.toml").is_file() {
                return Err(advised(
                    format!("{} holds no crate", path.display()),
                    "give the folder of `plugin-sdk`",
                ));
            }
            // A string of TOML takes the escapes of a string of Rust.
            format!("plugin-sdk = {{ path = {:?} }}", path.display().to_string())
        }
        None => format!("plugin-sdk = \"{}\"", env!("CARGO_PKG_VERSION")),
    };
    write_project(&folder, &args.name, &sdk)?;
    writeln!(out, "{}", folder.display())?;
    writeln!(out, "next: cd {} && cargo build --release; its README.md has the steps", folder.display())?;
    Ok(())
}

fn check_name(name: &str) -> Result<()> {
    let first = name.chars().next().is_some_and(|c| c.is_ascii_lowercase());
    let rest = name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || "-_".contains(c));
    if first && rest && name.len() <= 40 {
        return Ok(());
    }
    let rule = "a name has at most 40 lower-case letters, digits, `-` and `_`, and begins with a letter";
    Err(usage(format!("`{name}` is no name for a backend"), rule))
}

/// A backend of a name that is taken would be shadowed, or shadow the other.
fn check_free(name: &str) -> Result<()> {
    let registry = Registry::new(&SearchPath::from_env());
    let Some(source) = registry.source_of(name) else { return Ok(()) };
    Err(usage(
        format!("there is a backend `{name}` already: {source}"),
        "choose another name; the first backend of a name is the one that is used",
    ))
}

/// Writes all files or none: into a folder beside the target, which then gets its name.
fn write_project(folder: &Path, name: &str, sdk: &str) -> Result<()> {
    if folder.symlink_metadata().is_ok() {
        return Err(advised(
            format!("{} is there already", folder.display()),
            "give another folder with `--path`",
        ));
    }
    let parent = folder.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let at = || folder.display().to_string();
    let draft = tempfile::Builder::new().prefix(".ferroflux-new-").tempdir_in(parent).with_context(at)?;
    for (file, text) in FILES {
        let path = draft.path().join(file);
        if let Some(inner) = path.parent() {
            std::fs::create_dir_all(inner).with_context(at)?;
        }
        std::fs::write(&path, renamed(text, name, sdk)).with_context(at)?;
    }
    set_public(draft.path()).with_context(at)?;
    // A folder that came to be meanwhile is not replaced: renaming over one that holds files fails.
    std::fs::rename(draft.path(), folder).with_context(at)?;
    // Nothing is left to clean up under the old name.
    let _ = draft.keep();
    Ok(())
}

/// Temporary folders are private to their user; a project is as readable as others.
#[cfg(unix)]
fn set_public(folder: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o755))
}

#[cfg(not(unix))]
fn set_public(_folder: &Path) -> std::io::Result<()> {
    Ok(())
}

/// A file of the template for a backend of another name.
fn renamed(text: &str, name: &str, sdk: &str) -> String {
    let identifier = name.replace('-', "_");
    text.replace(SDK, sdk)
        .replace("ferroflux_acme", &format!("ferroflux_{identifier}"))
        .replace("Acme", &camel_case(name))
        .replace("acme", name)
}

/// `fast-cpu` becomes `FastCpu`.
fn camel_case(name: &str) -> String {
    let words = name.split(['-', '_']).filter(|w| !w.is_empty());
    words.map(|w| w[..1].to_ascii_uppercase() + &w[1..]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_template_is_whole_and_refers_to_the_sdk_once() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../plugins/template/src");
        let sources = folder.read_dir().unwrap().count();
        assert_eq!(sources, FILES.iter().filter(|(name, _)| name.starts_with("src/")).count());
        assert_eq!(FILES.iter().map(|(_, text)| text.matches(SDK).count()).sum::<usize>(), 1);
    }

    #[test]
    fn no_file_keeps_the_old_name() {
        for (file, text) in FILES {
            let text = renamed(text, "fast-cpu", "plugin-sdk = \"1\"");
            assert!(!text.to_lowercase().contains("acme"), "{file}");
        }
        assert_eq!(camel_case("fast-cpu_2"), "FastCpu2");
    }

    #[test]
    fn names_that_cargo_or_a_manifest_would_refuse_are_refused_here() {
        for name in ["", "9lives", "Big", "a b", "a/b", "-x", "é"] {
            assert!(check_name(name).is_err(), "{name}");
        }
        check_name("npu-2_x").unwrap();
    }
}
