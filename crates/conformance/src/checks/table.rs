//! The table, its slots, its description and its devices.

use std::collections::HashSet;

use plugin_abi::table::covers;
use plugin_abi::{ABI_MAJOR, ABI_MINOR, FfxHost, FfxPlugin, Head, Table};
use plugin_host::OptionKind;

use super::Cx;
use crate::case::Fault;
use crate::raw::{self, ErrorPlace, Raw};

/// The slots that a plugin must have.
const REQUIRED: &[&str] =
    &["describe", "enumerate_devices", "compile", "executable_info", "execute", "executable_destroy"];

pub(super) fn table(cx: &mut Cx) -> Result<(), Fault> {
    let entry = raw::entry(cx.library())?;
    let mut error = ErrorPlace::whole();
    let table = raw::enter(entry, raw::host(Head::of::<FfxHost>(), true), &mut error);
    if table.is_null() {
        return Err(Fault::wrong(format!("the entry gives no table: {}", error.message())));
    }
    let head = raw::head_of(table)?;
    cx.case("major", || {
        let found = head.major;
        if found == ABI_MAJOR {
            Ok(())
        } else {
            Err(Fault::wrong(format!("ABI major {found}, expected {ABI_MAJOR}")))
        }
    });
    cx.case("size", || size(head));
    Ok(())
}

/// A size covers whole fields, at least those that every plugin has, and does not claim fields of its own where it is of
/// this minor or an earlier one.
fn size(head: Head) -> Result<(), Fault> {
    let size = head.struct_size;
    let ends_whole = FfxPlugin::FIELDS.iter().any(|f| f.end() == size as usize);
    let last = FfxPlugin::FIELDS.iter().filter(|f| REQUIRED.contains(&f.name)).map(|f| f.end()).max();
    let least = last.unwrap_or(0);
    let known = size_of::<FfxPlugin>();
    if (size as usize) < least {
        return Err(Fault::wrong(format!("struct_size is {size}; the required slots take {least} bytes")));
    }
    if (size as usize) < known && !ends_whole {
        return Err(Fault::wrong(format!("struct_size is {size}, which ends inside of a field")));
    }
    if size as usize > known && head.minor <= ABI_MINOR {
        let minor = head.minor;
        return Err(Fault::wrong(format!(
            "struct_size is {size}; a table of minor {minor} has {known} bytes at most"
        )));
    }
    Ok(())
}

pub(super) fn slots(cx: &mut Cx) -> Result<(), Fault> {
    let table = Raw::open(cx.library(), None)?.table;
    let there = |name: &str| {
        let field = FfxPlugin::FIELDS.iter().find(|f| f.name == name);
        let covered = field.is_some_and(|f| covers(table.head.struct_size, f));
        covered
            && match name {
                "describe" => table.describe.is_some(),
                "enumerate_devices" => table.enumerate_devices.is_some(),
                "compile" => table.compile.is_some(),
                "executable_info" => table.executable_info.is_some(),
                "execute" => table.execute.is_some(),
                _ => table.executable_destroy.is_some(),
            }
    };
    for name in REQUIRED {
        cx.case(name, || {
            if there(name) {
                Ok(())
            } else {
                Err(Fault::wrong(format!("the required slot `{name}` is null")))
            }
        });
    }
    cx.case("artifacts", || {
        let [compat, save, load] = [
            table.artifact_compat_string.is_some(),
            table.artifact_save.is_some(),
            table.artifact_load.is_some(),
        ];
        if compat == save && save == load {
            return Ok(());
        }
        Err(Fault::wrong(
            "`artifact_compat_string`, `artifact_save` and `artifact_load` go together: all or none",
        ))
    });
    Ok(())
}

pub(super) fn describe(cx: &mut Cx) -> Result<(), Fault> {
    let raw = Raw::open(cx.library(), None)?;
    let (first, description) = raw.describe()?;
    cx.case("same pointer", || {
        let (again, _) = raw.describe()?;
        if again == first {
            Ok(())
        } else {
            Err(Fault::wrong("describe hands out another description each time"))
        }
    });
    cx.case("name", || {
        let name = raw::text(description.name, "the name")?;
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        if (1..=64).contains(&name.len()) && name.chars().all(plain) {
            return Ok(());
        }
        Err(Fault::wrong(format!("the name `{name}` is not 1 to 64 letters, digits, `-`, `_` or `.`")))
    });
    cx.case("version", || {
        let version = raw::text(description.version, "the version")?;
        if version.is_empty() { Err(Fault::wrong("the version is empty")) } else { Ok(()) }
    });
    let backend = cx.backend()?;
    cx.case("program forms", || {
        if backend.reads().is_empty() { Err(Fault::wrong("it reads no program form")) } else { Ok(()) }
    });
    cx.case("modes", || {
        let mut seen = HashSet::new();
        match backend.modes().iter().find(|m| !seen.insert(m.as_str())) {
            Some(twice) => Err(Fault::wrong(format!("the mode `{twice}` is there twice"))),
            None => Ok(()),
        }
    });
    let mut seen = HashSet::new();
    for option in backend.options() {
        let new = seen.insert(option.name.as_str());
        cx.case(&format!("option `{}`", option.name), || {
            if !new || option.name.is_empty() {
                return Err(Fault::wrong("the name is empty or there twice"));
            }
            if !is_of(&option.kind, &option.default) {
                let (default, kind) = (&option.default, &option.kind);
                return Err(Fault::wrong(format!("the default `{default}` is no {kind:?}")));
            }
            Ok(())
        });
    }
    Ok(())
}

fn is_of(kind: &OptionKind, value: &str) -> bool {
    match kind {
        OptionKind::Bool => value.parse::<bool>().is_ok(),
        OptionKind::Int => value.parse::<i64>().is_ok(),
        OptionKind::Float => value.parse::<f64>().is_ok(),
        OptionKind::Choice(choices) => choices.iter().any(|c| c == value),
        OptionKind::Text | OptionKind::Unknown(_) => true,
    }
}

pub(super) fn devices(cx: &mut Cx) -> Result<(), Fault> {
    let devices = cx.backend()?.devices()?;
    cx.case("at least one", || {
        if devices.is_empty() {
            return Err(Fault::wrong(
                "it lists no device; one that cannot be used is listed with the reason",
            ));
        }
        Ok(())
    });
    let mut seen = HashSet::new();
    for device in &devices {
        let new = seen.insert(device.device);
        cx.case(&device.name, || {
            if device.name.is_empty() || !new {
                return Err(Fault::wrong(format!(
                    "the device {:?} has no name or is there twice",
                    device.device
                )));
            }
            Ok(())
        });
    }
    Ok(())
}
