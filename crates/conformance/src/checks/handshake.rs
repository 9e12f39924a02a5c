//! Handshakes with hosts of other minors, and with broken ones.

use std::ptr::null;

use plugin_abi::{ABI_MINOR, FfxEntry, FfxError, FfxExecutableInfo, FfxHost, FfxPlugin, Head, Table};

use super::{Cx, support};
use crate::case::Fault;
use crate::raw::{self, ErrorPlace, Raw, Request};

pub(super) fn entry(cx: &mut Cx) -> Result<(), Fault> {
    let entry = raw::entry(cx.library())?;
    let host = raw::host(Head::of::<FfxHost>(), true);
    let enter = move || raw::enter(entry, host, &mut ErrorPlace::whole()) as usize;
    cx.case("8 threads", || {
        let tables: Vec<usize> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(enter)).collect();
            threads.into_iter().map(|t| t.join().unwrap_or(0)).collect()
        });
        if tables[0] != 0 && tables.iter().all(|t| *t == tables[0]) {
            return Ok(());
        }
        Err(Fault::wrong(format!("the entry hands out different tables: {tables:x?}")))
    });
    cx.case("again", || {
        if enter() == enter() {
            Ok(())
        } else {
            Err(Fault::wrong("the entry hands out another table each time"))
        }
    });
    Ok(())
}

/// A host of minor 0 knows neither the last slots of the plugin's table nor the last fields of any struct.
pub(super) fn older(cx: &mut Cx) -> Result<(), Fault> {
    let last = FfxHost::FIELDS.iter().find(|f| f.name == "log").map_or(size_of::<FfxHost>(), |f| f.offset);
    let head = Head { struct_size: last as u32, minor: 0, ..Head::of::<FfxHost>() };
    // The slot beyond the size is set: a plugin that calls it has ignored the size.
    let raw = Raw::open(cx.library(), Some(raw::host(head, true)))?;
    let of = |name: &str| FfxError::FIELDS.iter().find(|f| f.name == name).map_or(0, |f| f.offset);
    for (what, size) in [("code alone", of("node")), ("no message", of("message")), ("head alone", 8)] {
        cx.case(&format!("error struct: {what}"), || {
            let mut error = ErrorPlace::cut(size);
            let (status, _) = raw.compile(null(), error.pointer())?;
            error.expect_intact()?;
            if status == plugin_abi::FFX_OK {
                return Err(Fault::wrong("compile without a request succeeds"));
            }
            if size >= of("node") && error.code() != status {
                return Err(Fault::wrong(format!(
                    "the call returns {status}, the struct says {}",
                    error.code()
                )));
            }
            Ok(())
        });
    }
    served(cx, &raw, "a program", |request| request)?;
    cx.case("info without constants", || {
        let constants = size_of::<FfxExecutableInfo>() - size_of::<usize>();
        let form = raw.form(&support::simple()?.program)?;
        let counts = raw.compiled(&form.request(raw.usable()?))?.info(constants)?;
        if counts[..2] == [1, 1] { Ok(()) } else { Err(Fault::wrong(format!("counts {counts:?}"))) }
    });
    Ok(())
}

pub(super) fn newer(cx: &mut Cx) -> Result<(), Fault> {
    let head = Head::of::<FfxHost>();
    // The bytes after the table are unknown to the host of an older minor; here they are heap memory.
    let head = Head { struct_size: head.struct_size, minor: ABI_MINOR + 9, ..head };
    let raw = Raw::open(cx.library(), Some(raw::host(head, true)))?;
    served(cx, &raw, "a program in larger structs", |request| request.newer(256))?;
    cx.case("a larger error struct", || {
        let mut error = ErrorPlace::whole();
        // SAFETY: the pointer is to a whole struct; the guard bytes after it are as long as what is claimed here.
        unsafe { (*error.pointer()).head.struct_size += 128 };
        let (status, _) = raw.compile(null(), error.pointer())?;
        error.expect_failure(status)
    });
    Ok(())
}

pub(super) fn truncated(cx: &mut Cx) -> Result<(), Fault> {
    let entry = raw::entry(cx.library())?;
    let whole = Head::of::<FfxHost>();
    cx.case("another major", || {
        let head = Head { major: whole.major + 1, ..whole };
        let mut error = ErrorPlace::whole();
        let table = raw::enter(entry, raw::host(head, false), &mut error);
        error.expect_intact()?;
        if table.is_null() { error.expect_failure(error.code()) } else { usable(table) }
    });
    for size in [0, 4, 8, 12, 16, 24, 31] {
        cx.case(&format!("{size} bytes"), || {
            let head = Head { struct_size: size, ..whole };
            entered(entry, raw::host(head, true))
        });
    }
    cx.case("null", || entered(entry, null()));
    cx.case("null error", || {
        // SAFETY: a null error struct is allowed by the contract.
        let table = unsafe { entry(raw::host(whole, true), std::ptr::null_mut()) };
        usable(table)
    });
    Ok(())
}

/// A table, or an error with a reason.
fn entered(entry: FfxEntry, host: *const FfxHost) -> Result<(), Fault> {
    let mut error = ErrorPlace::whole();
    let table = raw::enter(entry, host, &mut error);
    error.expect_intact()?;
    if table.is_null() { error.expect_failure(error.code()) } else { usable(table) }
}

fn usable(table: *const FfxPlugin) -> Result<(), Fault> {
    Raw::of(table)?.describe().map(|_| ())
}

/// Compiles and runs a small program through the raw table.
fn served(
    cx: &mut Cx,
    raw: &Raw,
    name: &str,
    shape: impl for<'a> FnOnce(Request<'a>) -> Request<'a>,
) -> Result<(), Fault> {
    let device = raw.usable()?;
    cx.case(name, || {
        let case = support::simple()?;
        let form = raw.form(&case.program)?;
        let request = shape(form.request(device));
        let executable = raw.compiled(&request)?;
        let inputs: Vec<_> = case.calls[0].iter().collect();
        let mut error = ErrorPlace::whole();
        let (status, outputs) = executable.execute(&inputs, 1, error.pointer())?;
        if status != plugin_abi::FFX_OK || outputs.len() != 1 {
            return Err(Fault::wrong(format!("execute fails with code {status}: {}", error.message())));
        }
        Ok(())
    });
    Ok(())
}
