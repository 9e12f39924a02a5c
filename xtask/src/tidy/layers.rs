//! The layer table of ARCHITECTURE.md, and whether the crates keep to it.
//!
//! The page is the one place where layers are written; this file parses its table. A crate may use: nothing (`–`), anything
//! (`any`), `everything above`, `NAME and below`, or names, with all that those may use recursively. `but NAMEs` after
//! `everything above` excludes the crates whose names begin with `NAME-`, except after a feature; text after a `;` is a
//! remark. Dependencies of tests are not checked: a test may compare with anything.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use super::Finding;
use crate::root::cargo;

/// The page with the table.
const PAGE: &str = "ARCHITECTURE.md";

/// What a row of the table allows.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Allowed {
    Any,
    Everything { but: Option<String> },
    Below(String),
    Names(Vec<String>),
}

/// The table: for each crate (or `folder/*`) its layer, if it has one, and what it may use.
#[derive(Debug)]
struct Table(BTreeMap<String, (Option<u32>, Allowed)>);

impl Table {
    /// Reads the table below the heading `## Layers`.
    fn parse(page: &str) -> Result<Table> {
        let section = page.split_once("\n## Layers\n").context("no heading `## Layers`")?.1;
        let section = section.split("\n## ").next().unwrap_or(section);
        let rows = section.lines().filter_map(|line| line.trim().strip_prefix('|')?.strip_suffix('|'));
        let mut table = BTreeMap::new();
        // The first two rows are the heading and the line below it.
        for row in rows.skip(2) {
            let cells: Vec<&str> = row.split('|').map(str::trim).collect();
            let [layer, crates, may] = cells[..] else { bail!("`{row}` has not three cells") };
            let layer = match layer {
                "–" => None,
                number => Some(number.parse().with_context(|| format!("layer `{number}`"))?),
            };
            for name in names(crates) {
                if table.insert(name.clone(), (layer, Allowed::parse(may)?)).is_some() {
                    bail!("`{name}` stands in two rows");
                }
            }
        }
        let table = Table(table);
        table.names_are_known()?;
        Ok(table)
    }

    fn names_are_known(&self) -> Result<()> {
        for (crate_name, (_, may)) in &self.0 {
            let named = match may {
                Allowed::Below(name) => std::slice::from_ref(name),
                Allowed::Names(names) => &names[..],
                Allowed::Any | Allowed::Everything { .. } => &[],
            };
            if let Some(unknown) = named.iter().find(|name| !self.0.contains_key(*name)) {
                bail!("what `{crate_name}` may use: `{unknown}` is in no row");
            }
        }
        Ok(())
    }

    /// The row of a crate: by its name, else by its folder.
    fn row(&self, name: &str, folder: &str) -> Option<&(Option<u32>, Allowed)> {
        let parent = folder.split_once('/').map(|(parent, _)| format!("{parent}/*"));
        self.0.get(name).or_else(|| self.0.get(&parent?))
    }

    fn layer(&self, name: &str) -> Option<u32> {
        self.0.get(name).and_then(|(layer, _)| *layer)
    }

    /// The names and all that they may use in turn.
    fn closure(&self, names: &[String]) -> BTreeSet<String> {
        let mut found = BTreeSet::new();
        let mut open = names.to_vec();
        while let Some(name) = open.pop() {
            if let Some((_, Allowed::Names(more))) = self.0.get(&name) {
                open.extend(more.iter().filter(|more| !found.contains(*more)).cloned());
            }
            found.insert(name);
        }
        found
    }

    /// Why a crate in row `(layer, may)` may not use `dependency`; `None` where it may.
    fn refuses(&self, row: &(Option<u32>, Allowed), dependency: &Dependency) -> Option<String> {
        let (layer, may) = row;
        let name = short(&dependency.name);
        let Some(theirs) = self.layer(name) else {
            // What is in no layer itself, as tools are, may use a plugin.
            return layer.is_some().then(|| "which is in no layer".to_owned());
        };
        if layer.is_some_and(|own| theirs >= own) {
            return Some(format!("which is in layer {theirs}, not below"));
        }
        let allowed = match may {
            Allowed::Any | Allowed::Everything { but: None } => true,
            Allowed::Everything { but: Some(prefix) } => dependency.optional || !name.starts_with(prefix),
            Allowed::Below(highest) => self.layer(highest).is_some_and(|highest| theirs <= highest),
            Allowed::Names(names) => self.closure(names).contains(name),
        };
        (!allowed).then(|| "which its row does not name".to_owned())
    }
}

impl Allowed {
    fn parse(cell: &str) -> Result<Allowed> {
        let cell = cell.split(';').next().unwrap_or(cell).trim();
        if let Some(rest) = cell.strip_prefix("everything above") {
            let but =
                rest.trim().strip_prefix("but ").map(|plural| format!("{}-", plural.trim_end_matches('s')));
            return Ok(Allowed::Everything { but });
        }
        let listed = names(cell);
        match (cell, &listed[..]) {
            ("–", _) => Ok(Allowed::Names(Vec::new())),
            ("any", _) => Ok(Allowed::Any),
            (_, [one]) if one.ends_with(" and below") => {
                Ok(Allowed::Below(one.trim_end_matches(" and below").into()))
            }
            (_, []) => bail!("an empty cell; write `–` for nothing"),
            _ => Ok(Allowed::Names(listed)),
        }
    }
}

/// The names of a cell, which are in backticks or bare, with commas between.
fn names(cell: &str) -> Vec<String> {
    let names = cell.split(',').map(|name| name.replace('`', "").trim().to_owned());
    names.filter(|name| !name.is_empty()).collect()
}

/// The part of `cargo metadata` that is used here.
#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    manifest_path: std::path::PathBuf,
    dependencies: Vec<Dependency>,
}

#[derive(Deserialize)]
struct Dependency {
    name: String,
    /// `dev`, `build`, or nothing for an ordinary one.
    kind: Option<String>,
    optional: bool,
    /// Set where it is a folder, as the crates of the workspace are.
    path: Option<String>,
}

/// The short name of a package, as the table has it: packages are named for publication.
fn short(package: &str) -> &str {
    package.strip_prefix("ferroflux-").unwrap_or(package)
}

/// Checks the workspace against the page.
pub(crate) fn check(root: &Path) -> Result<Vec<Finding>> {
    let page = std::fs::read_to_string(root.join(PAGE)).context(PAGE)?;
    let table = Table::parse(&page).with_context(|| format!("the table of layers in {PAGE}"))?;
    let out = Command::new(cargo())
        .args(["metadata", "--no-deps", "--format-version", "1", "--offline"])
        .current_dir(root)
        .output()
        .context("cargo metadata")?;
    if !out.status.success() {
        bail!("cargo metadata: {}", String::from_utf8_lossy(&out.stderr));
    }
    let metadata: Metadata = serde_json::from_slice(&out.stdout).context("the output of cargo metadata")?;
    Ok(compare(&table, &page, root, &metadata.packages))
}

fn compare(table: &Table, page: &str, root: &Path, packages: &[Package]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for package in packages {
        let folder = package.manifest_path.parent().and_then(|folder| folder.strip_prefix(root).ok());
        let folder = folder.map(|folder| folder.to_string_lossy().replace('\\', "/")).unwrap_or_default();
        let Some(row) = table.row(short(&package.name), &folder) else {
            findings.push(Finding::error(&folder, format!("is in no row of the layers in {PAGE}")));
            continue;
        };
        if row.0.is_some() && !page.contains(&format!("**`{}`**", short(&package.name))) {
            findings.push(Finding::error(
                &folder,
                format!("has no entry (**`{}`**) in {PAGE}", short(&package.name)),
            ));
        }
        let held = |d: &&Dependency| d.path.is_some() && d.kind.as_deref() != Some("dev");
        for dependency in package.dependencies.iter().filter(held) {
            if let Some(why) = table.refuses(row, dependency) {
                let own = row.0.map_or_else(String::new, |layer| format!(" (layer {layer})"));
                let what = format!("{}{own} uses `{}`, {why}: {PAGE}, Layers", package.name, dependency.name);
                findings.push(Finding::error(&folder, what));
            }
        }
    }
    let there: BTreeSet<&str> = packages.iter().map(|p| short(&p.name)).collect();
    for (name, (layer, _)) in &table.0 {
        if layer.is_some() && !there.contains(name.as_str()) {
            findings.push(Finding::error(PAGE, format!("the layers name `{name}`, which is no crate")));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::{Allowed, Dependency, Package, Table, compare};

    const PAGE: &str = "# Map\n\n## Layers\n\nText.\n\n| L | crate | may use |\n|---|---|---|\n| 0 | `a` | – |\n\
        | 1 | `b`, `b2` | a |\n| 2 | `c` | `b` |\n| 3 | `d` | c and below |\n| 4 | `x-one` | a |\n\
        | 5 | `e` | everything above but xs; a remark |\n| – | `plugins/*`, `xtask` | any |\n\n## Crates\n\
        **`a`** **`b`** **`b2`** **`c`** **`d`** **`e`** **`x-one`**\n";

    fn package(name: &str, folder: &str, uses: &[&str]) -> Package {
        let dependency = |text: &&str| {
            let (name, optional) = text.strip_suffix('?').map_or((*text, false), |name| (name, true));
            Dependency { name: name.into(), kind: None, optional, path: Some(String::new()) }
        };
        let manifest_path = format!("/r/{folder}/{name}/Cargo.toml").into();
        Package { name: name.into(), manifest_path, dependencies: uses.iter().map(dependency).collect() }
    }

    fn judge(changed: Package) -> Vec<String> {
        let table = Table::parse(PAGE).unwrap();
        let all = ["a", "b", "b2", "c", "d", "e", "x-one"];
        let mut packages: Vec<Package> = all.iter().map(|n| package(n, "crates", &[])).collect();
        packages.retain(|p| p.name != changed.name);
        packages.push(changed);
        compare(&table, PAGE, "/r".as_ref(), &packages).into_iter().map(|f| f.what).collect()
    }

    #[test]
    fn what_rows_allow() {
        for (name, uses) in [("c", &["b", "a"][..]), ("d", &["c", "b2"]), ("e", &["d", "x-one?"])] {
            assert_eq!(judge(package(name, "crates", uses)), Vec::<String>::new(), "{name}");
        }
        assert_eq!(judge(package("p", "plugins", &["e", "x-one"])), Vec::<String>::new());
    }

    #[test]
    fn what_rows_refuse() {
        for (name, uses, why) in [
            ("b", "b2", "not below"),
            ("b", "c", "not below"),
            ("c", "b2", "does not name"),
            ("d", "x-one", "not below"),
            ("e", "x-one", "does not name"),
            ("e", "xtask", "in no layer"),
        ] {
            let found = judge(package(name, "crates", &[uses]));
            assert!(found.len() == 1 && found[0].contains(why), "{name} uses {uses}: {found:?}");
        }
        assert!(judge(package("new", "crates", &[]))[0].contains("no row"));
    }

    #[test]
    fn a_table_that_cannot_be_meant_is_refused() {
        assert!(Table::parse("# Map\n").is_err());
        assert!(Table::parse(&PAGE.replace("| 1 |", "| one |")).is_err());
        assert!(Table::parse(&PAGE.replace("| `b` |", "| `nobody` |")).is_err());
        assert!(Table::parse(&PAGE.replace("`b`, `b2`", "`a`, `b2`")).is_err());
        assert_eq!(Allowed::parse("–").unwrap(), Allowed::Names(vec![]));
    }
}
