//! `xtask header`: writes `crates/plugin-abi/include/ferroflux.h`, the C header of the plugin ABI.
//!
//! Structs, functions' types, numbers and their comments come from `plugin-abi` through cbindgen, the rules of ownership,
//! threads and life from the head of its `lib.rs`; only what C needs beyond that (`frame`) is written here. The header is
//! generated: `--check`, which the tests run, fails if it is out of date.

mod frame;

use std::path::Path;

use anyhow::{Context, Result};
use cbindgen::{Builder, Config, DocumentationStyle, ItemType, Language, Style};
use regex::Regex;

use crate::root::root;

/// The generated header.
const HEADER: &str = "crates/plugin-abi/include/ferroflux.h";
/// Its source.
const SOURCE: &str = "crates/plugin-abi/src";
/// The file with DLPack's structs, which a C program may already have from elsewhere.
const DLPACK: &str = "dlpack.rs";
/// What the header is made of otherwise.
const FILES: [&str; 8] =
    ["error.rs", "host.rs", "inspection.rs", "lib.rs", "memory.rs", "plugin.rs", "streams.rs", "table.rs"];
/// Types from which all others are reached.
const ROOTS: [&str; 5] = ["FfxEntry", "FfxDeviceMemory", "FfxStreams", "FfxInspection", "FfxPlugin"];

/// Arguments of `xtask header`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Writes nothing; fails where the header is not fresh.
    #[arg(long)]
    check: bool,
}

/// Writes the header; `false` where `--check` finds it stale.
pub(crate) fn run(args: &Args) -> Result<bool> {
    let root = root()?;
    let (path, fresh) = (root.join(HEADER), header(&root)?);
    if args.check {
        let same = std::fs::read_to_string(&path).is_ok_and(|old| old == fresh);
        if !same {
            println!("{HEADER} is not what plugin-abi gives: run `cargo xtask header` and commit it");
        }
        return Ok(same);
    }
    std::fs::write(&path, &fresh).with_context(|| path.display().to_string())?;
    println!("{HEADER}: {} lines", fresh.lines().count());
    Ok(true)
}

/// The expected header.
fn header(root: &Path) -> Result<String> {
    let source = root.join(SOURCE);
    let read = |file: &str| {
        let path = source.join(file);
        std::fs::read_to_string(&path).with_context(|| path.display().to_string())
    };
    let dlpack = read(DLPACK)?;
    let all = FILES.iter().map(|file| read(file)).collect::<Result<Vec<_>>>()?;
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    let lib = read("lib.rs")?;
    let parts = frame::Parts {
        rules: links_as_names(&rules(&lib)?),
        numbers: bindings(&[&[dlpack.as_str()], &all[..]].concat(), &[ItemType::Constants], &[])?,
        dlpack: bindings(&[&dlpack], &[ItemType::Structs], &["DLManagedTensorVersioned"])?,
        tables: bindings(&all, &[ItemType::Structs, ItemType::Typedefs], &ROOTS)?,
    };
    Ok(frame::assemble(&parts))
}

/// The rules of the boundary as they are at the head of `lib.rs`, without comment signs.
fn rules(lib: &str) -> Result<String> {
    let lines = lib.lines().map_while(|l| l.strip_prefix("//!")).map(|l| l.strip_prefix(' ').unwrap_or(l));
    let rules: Vec<&str> = lines
        .skip_while(|l| *l != "# Rules of the boundary")
        .skip(1)
        .take_while(|l| !l.starts_with("# "))
        .collect();
    let rules = rules.join("\n").trim().to_owned();
    anyhow::ensure!(!rules.is_empty(), "the head of lib.rs has no section `# Rules of the boundary`");
    Ok(rules)
}

/// The output of cbindgen for these sources: items of some kinds, those that `roots` need.
fn bindings(sources: &[&str], kinds: &[ItemType], roots: &[&str]) -> Result<String> {
    let folder = tempfile::TempDir::new()?;
    let mut builder = Builder::new().with_config(config(kinds, roots));
    // In C every pointer to a function may be null; cbindgen does not look through the names of such types.
    let nullable = Regex::new(r"Option<(Ffx\w+)>")?;
    for (n, source) in sources.iter().enumerate() {
        let path = folder.path().join(format!("part{n}.rs"));
        std::fs::write(&path, nullable.replace_all(source, "$1").as_ref())?;
        builder = builder.with_src(&path);
    }
    let mut bytes = Vec::new();
    builder.generate().context("cbindgen")?.write(&mut bytes);
    Ok(links_as_names(String::from_utf8(bytes)?.trim()))
}

fn config(kinds: &[ItemType], roots: &[&str]) -> Config {
    let mut config = Config {
        language: Language::C,
        documentation: true,
        documentation_style: DocumentationStyle::C99,
        usize_is_size_t: true,
        no_includes: true,
        style: Style::Both,
        line_length: 110,
        ..Config::default()
    };
    config.export.item_types = kinds.to_vec();
    config.export.include = roots.iter().map(|&r| r.to_owned()).collect();
    // An array of no elements is not C; the frame declares the type.
    config.export.exclude = vec!["FfxExecutable".into()];
    config.export.rename.insert("Head".into(), "FfxHead".into());
    config
}

/// Rustdoc's links as plain names, and names of numbers with the prefix that they have in C.
fn links_as_names(text: &str) -> String {
    let rules = [
        (r"\[(`[^`\]]*`)\](\([^)]*\))?", "$1"),
        (r"\b(DLPACK_M|DL_|ABI_M|DEVICE_MEMORY|STREAMS|INSPECTION|ENTRY_SYMBOL)", "FFX_$1"),
        (r"FFX_FFX_", "FFX_"),
        (r"`(\w+)::(\w+)`", "`$1.$2`"),
    ];
    rules.iter().fold(text.to_owned(), |text, (pattern, with)| match Regex::new(pattern) {
        Ok(pattern) => pattern.replace_all(&text, *with).into_owned(),
        Err(_) => text,
    })
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn the_header_is_fresh() {
        let root = root().unwrap();
        let old = std::fs::read_to_string(root.join(HEADER)).unwrap();
        assert!(old == header(&root).unwrap(), "{HEADER} is stale: run `cargo xtask header` and commit it");
    }

    /// What the header must compile as, and what a program with DLPack's own header does.
    #[test]
    fn the_header_compiles_as_c_and_as_cpp() {
        let include = root().unwrap().join(HEADER).parent().unwrap().to_owned();
        let folder = tempfile::TempDir::new().unwrap();
        for (compiler, standard, file) in [("cc", "c99", "a.c"), ("c++", "c++17", "a.cc")] {
            let source = folder.path().join(file);
            std::fs::write(
                &source,
                "#include <ferroflux.h>\n#include <ferroflux.h>\nint main(void) { return 0; }\n",
            )
            .unwrap();
            let out = Command::new(compiler)
                .args(["-Wall", "-Wextra", "-Werror", "-pedantic", "-fsyntax-only"])
                .arg(format!("-std={standard}"))
                .arg(format!("-I{}", include.display()))
                .arg(&source)
                .output()
                .unwrap();
            assert!(out.status.success(), "{compiler}: {}", String::from_utf8_lossy(&out.stderr));
        }
    }

    /// The C compiler's layout of every table is the one of the Rust structs.
    #[test]
    fn c_lays_out_the_tables_as_rust_does() {
        use plugin_abi::*;
        fn lines<T: Table>(program: &mut String, wanted: &mut Vec<String>) {
            for field in T::FIELDS {
                let (name, c) = (
                    T::NAME,
                    match field.name {
                        head @ ("struct_size" | "major" | "minor") => format!("head.{head}"),
                        other => other.to_owned(),
                    },
                );
                program.push_str(&format!(
                    "printf(\"%s %zu %zu\\n\", \"{name}.{c}\", offsetof({name}, {c}), sizeof((({name} *)0)->{c}));\n"
                ));
                wanted.push(format!("{name}.{c} {} {}", field.offset, field.size));
            }
        }
        let (mut body, mut wanted) = (String::new(), Vec::new());
        lines::<FfxError>(&mut body, &mut wanted);
        lines::<FfxHost>(&mut body, &mut wanted);
        lines::<FfxOptionSpec>(&mut body, &mut wanted);
        lines::<FfxDescription>(&mut body, &mut wanted);
        lines::<FfxDeviceInfo>(&mut body, &mut wanted);
        lines::<FfxProgram>(&mut body, &mut wanted);
        lines::<FfxCompileRequest>(&mut body, &mut wanted);
        lines::<FfxRefusal>(&mut body, &mut wanted);
        lines::<FfxMemoryEstimate>(&mut body, &mut wanted);
        lines::<FfxExecutableInfo>(&mut body, &mut wanted);
        lines::<FfxArtifact>(&mut body, &mut wanted);
        lines::<FfxDeviceMemory>(&mut body, &mut wanted);
        lines::<FfxStreams>(&mut body, &mut wanted);
        lines::<FfxPlugin>(&mut body, &mut wanted);
        let folder = tempfile::TempDir::new().unwrap();
        let (source, binary) = (folder.path().join("layout.c"), folder.path().join("layout"));
        let program =
            format!("#include <stdio.h>\n#include <ferroflux.h>\nint main(void) {{\n{body}return 0;\n}}\n");
        std::fs::write(&source, program).unwrap();
        let include = root().unwrap().join(HEADER).parent().unwrap().to_owned();
        let built = Command::new("cc")
            .arg(format!("-I{}", include.display()))
            .args([&source, Path::new("-o"), &binary])
            .output()
            .unwrap();
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        let printed = Command::new(&binary).output().unwrap().stdout;
        let printed = String::from_utf8(printed).unwrap();
        assert_eq!(printed.lines().collect::<Vec<_>>(), wanted);
    }
}
