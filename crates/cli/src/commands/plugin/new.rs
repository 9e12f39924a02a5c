//! `ferroflux plugin new NAME`: the template under another name. Its files are those of the folder `template` of this
//! package, in which the backend is called `acme` and `manifest.toml` is to be the project's `Cargo.toml` (a folder with a
//! `Cargo.toml` would not be packed with this package).

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
    /// A folder with the crate `plugin-sdk` to build against: otherwise that of the checkout which this command was built
    /// from, or, for a published command, the published version.
    #[arg(long, value_name = "DIR")]
    sdk: Option<PathBuf>,
}

macro_rules! files {
    ($($name:literal $(from $file:literal)?),* $(,)?) => {
        &[$(($name, files!(@ $name $($file)?))),*]
    };
    (@ $name:literal) => { include_str!(concat!("../../../template/", $name)) };
    (@ $name:literal $file:literal) => { include_str!(concat!("../../../template/", $file)) };
}

/// The files of the template.
const FILES: &[(&str, &str)] = files![
    "Cargo.toml" from "manifest.toml",
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
const SDK: &str = r#"ferroflux-plugin-sdk = { path = "../../plugin-sdk" }"#;

/// The path of the SDK when this command was built from a checkout; empty for one that was built from a package.
const CHECKOUT: &str = env!("FFX_SDK");

/// Runs the subcommand.
pub(crate) fn run(args: &Args, out: &mut dyn Write) -> Result<()> {
    check_name(&args.name)?;
    check_free(&args.name)?;
    let folder = args.path.clone().unwrap_or_else(|| PathBuf::from(format!("ferroflux-{}", args.name)));
    write_project(&folder, &args.name, &sdk(args.sdk.as_deref(), CHECKOUT)?)?;
    writeln!(out, "{}", folder.display())?;
    writeln!(out, "next: cd {} && cargo build --release; its README.md has the steps", folder.display())?;
    Ok(())
}

/// The dependency on the SDK: by path, if one is given or this command was built from a checkout, else by version. A
/// command of a checkout never names a version: what is published under that name, if anything, is not its SDK.
fn sdk(given: Option<&Path>, checkout: &str) -> Result<String> {
    let folder = match given {
        Some(path) => path.canonicalize().with_context(|| path.display().to_string())?,
        None if checkout.is_empty() => {
            return Ok(format!("ferroflux-plugin-sdk = \"{}\"", env!("CARGO_PKG_VERSION")));
        }
        None => PathBuf::from(checkout),
    };
    if !folder.join("Cargo.toml").is_file() {
        let what = match given {
            Some(_) => format!("{} holds no crate", folder.display()),
            None => format!("the checkout that this command was built from is gone: {}", folder.display()),
        };
        return Err(advised(what, "give the folder of `plugin-sdk` with `--sdk`"));
    }
    // A string of TOML takes the escapes of a string of Rust.
    Ok(format!("ferroflux-plugin-sdk = {{ path = {:?} }}", folder.display().to_string()))
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

/// A backend with an existing name would be shadowed, or shadow the other.
fn check_free(name: &str) -> Result<()> {
    let registry = Registry::new(&SearchPath::from_env());
    let Some(source) = registry.source_of(name) else { return Ok(()) };
    Err(usage(
        format!("there is a backend `{name}` already: {source}"),
        "choose another name; the first backend of a name is the one that is used",
    ))
}

/// Writes all files or none: into a folder next to the target, which then gets its name.
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
    // A folder that was created meanwhile is not replaced: renaming over one that holds files fails.
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
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("template/src");
        let sources = folder.read_dir().unwrap().count();
        assert_eq!(sources, FILES.iter().filter(|(name, _)| name.starts_with("src/")).count());
        assert_eq!(FILES.iter().map(|(_, text)| text.matches(SDK).count()).sum::<usize>(), 1);
    }

    #[test]
    fn a_version_of_the_sdk_is_named_by_a_published_command_alone() {
        assert!(sdk(None, "").unwrap().starts_with("ferroflux-plugin-sdk = \"0."));
        let own = sdk(None, CHECKOUT).unwrap();
        assert!(own.contains("path = ") && own.contains("plugin-sdk"), "{own}");
        let gone = sdk(None, "/nowhere/plugin-sdk").unwrap_err().to_string();
        assert!(gone.contains("is gone"), "{gone}");
        assert!(sdk(Some(Path::new("/")), "").unwrap_err().to_string().contains("holds no crate"));
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
