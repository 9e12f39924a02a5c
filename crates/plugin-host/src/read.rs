//! Copies the data that a plugin returns (texts, arrays, descriptions, errors) into owned Rust data, with every pointer
//! checked.

use std::time::Duration;

use plugin_abi::table::read;
use plugin_abi::{
    FFX_OPTION_BOOL, FFX_OPTION_CHOICE, FFX_OPTION_FLOAT, FFX_OPTION_INT, FFX_OPTION_TEXT, FfxDescription,
    FfxDeviceInfo, FfxError, FfxIrVersion, FfxListing, FfxNameValue, FfxOptionSpec, FfxRefusal, FfxStepRun,
    FfxStr, Table, text_bytes,
};

use crate::inspection::{ExchangeRun, Listing, StepRun};
use crate::{DeviceInfo, OptionInfo, OptionKind, PluginFailure, Refusal};

/// Most entries of an array in a description: a larger count is a bug, not a list.
const MAX_ENTRIES: usize = 4096;
/// Longest text of a description in bytes.
const MAX_TEXT: usize = 1 << 20;

/// What is wrong with the plugin's data.
type Malformed = String;

/// The owned form of an [`FfxDescription`].
#[derive(Clone, Debug)]
pub(crate) struct Described {
    pub(crate) name: String,
    pub(crate) version: String,
    pub(crate) summary: String,
    pub(crate) reads: Vec<FfxIrVersion>,
    pub(crate) modes: Vec<String>,
    pub(crate) options: Vec<OptionInfo>,
}

/// # Safety
/// `ptr` is null or points to a description that keeps the ABI's contract.
pub(crate) unsafe fn description(ptr: *const FfxDescription) -> Result<Described, Malformed> {
    // SAFETY: the caller promises that every pointer of the description is readable; null and counts are checked.
    unsafe {
        let d = table(ptr)?;
        let name = text(d.name)?;
        if name.is_empty() {
            return Err("its description has no name".to_owned());
        }
        let modes = array(d.modes, d.n_modes)?.iter().filter(|m| m.len > 0);
        let modes = modes.map(|&m| text(m)).collect::<Result<Vec<_>, _>>()?;
        let default = plugin_abi::Mode::Default.name();
        let modes = std::iter::once(default.to_owned()).chain(modes.into_iter().filter(|m| m != default));
        Ok(Described {
            name,
            version: text(d.version)?,
            summary: text(d.summary)?,
            reads: array(d.irs, d.n_irs)?.to_vec(),
            modes: modes.collect(),
            options: array(d.options, d.n_options)?.iter().map(|&o| option(o)).collect::<Result<_, _>>()?,
        })
    }
}

/// # Safety
/// As for [`description`].
unsafe fn option(ptr: *const FfxOptionSpec) -> Result<OptionInfo, Malformed> {
    // SAFETY: the caller promises that every pointer of the struct is readable; null and counts are checked.
    unsafe {
        let o = table(ptr)?;
        let kind = match o.kind {
            FFX_OPTION_BOOL => OptionKind::Bool,
            FFX_OPTION_INT => OptionKind::Int,
            FFX_OPTION_FLOAT => OptionKind::Float,
            FFX_OPTION_TEXT => OptionKind::Text,
            FFX_OPTION_CHOICE => {
                let choices = array(o.choices, o.n_choices)?;
                OptionKind::Choice(choices.iter().map(|&c| text(c)).collect::<Result<_, _>>()?)
            }
            other => OptionKind::Unknown(other),
        };
        Ok(OptionInfo { name: text(o.name)?, kind, default: text(o.default_value)?, help: text(o.help)? })
    }
}

/// # Safety
/// As for [`description`].
pub(crate) unsafe fn device(ptr: *const FfxDeviceInfo) -> Result<DeviceInfo, Malformed> {
    // SAFETY: the caller promises that every pointer of the struct is readable; null and counts are checked.
    unsafe {
        let d = table(ptr)?;
        let attributes = array::<FfxNameValue>(d.attributes, d.n_attributes)?;
        Ok(DeviceInfo {
            device: d.device,
            name: text(d.name)?,
            memory_bytes: d.memory_bytes,
            attributes: attributes
                .iter()
                .map(|a| Ok((text(a.name)?, text(a.value)?)))
                .collect::<Result<_, Malformed>>()?,
            unavailable_because: Some(text(d.unavailable_because)?).filter(|reason| !reason.is_empty()),
        })
    }
}

/// # Safety
/// As for [`description`].
pub(crate) unsafe fn refusal(ptr: *const FfxRefusal) -> Result<Refusal, Malformed> {
    // SAFETY: the caller promises that every pointer of the struct is readable; null and counts are checked.
    unsafe {
        let r = table(ptr)?;
        Ok(Refusal { node: text(r.node)?, reason: text(r.reason)? })
    }
}

/// # Safety
/// As for [`description`].
pub(crate) unsafe fn listing(ptr: *const FfxListing) -> Result<Listing, Malformed> {
    // SAFETY: the caller promises that every pointer of the struct is readable; null and counts are checked.
    unsafe {
        let l = table(ptr)?;
        Ok(Listing { step: text(l.step)?, language: text(l.language)?, text: text(l.text)? })
    }
}

/// # Safety
/// As for [`description`].
pub(crate) unsafe fn step_run(ptr: *const FfxStepRun) -> Result<StepRun, Malformed> {
    // SAFETY: the caller promises that every pointer of the struct is readable; null and counts are checked.
    unsafe {
        let r = table(ptr)?;
        let (ago, duration) = (Duration::from_nanos(r.ago), Duration::from_nanos(r.duration));
        let (what, group) = (text(r.exchange)?, text(r.group)?);
        let exchange = ExchangeRun { what, group, bytes: r.bytes, exchanges: r.exchanges };
        Ok(StepRun {
            program: text(r.program)?,
            step: text(r.step)?,
            device: r.device,
            ago,
            duration,
            exchange: Some(exchange).filter(|e| !e.what.is_empty()),
            stream: r.stream,
        })
    }
}

/// The contents of the error struct after a call. `status` is the return value of the call: it takes precedence where the
/// two differ.
pub(crate) fn failure(error: &FfxError, status: i32) -> PluginFailure {
    let owned = |buffer: &[u8]| String::from_utf8_lossy(text_bytes(buffer)).into_owned();
    let node = Some(owned(&error.node)).filter(|n| !n.is_empty());
    let message = match owned(&error.message) {
        message if message.is_empty() => "the plugin gave no reason".to_owned(),
        message => message,
    };
    PluginFailure { code: status, node, message }
}

/// # Safety
/// As for [`plugin_abi::table::read`].
unsafe fn table<T: Table>(ptr: *const T) -> Result<T, Malformed> {
    // SAFETY: the caller's guarantee about the pointer is passed on unchanged.
    unsafe { read(ptr) }.map_err(|e| format!("bad {}: {e}", T::NAME))
}

/// # Safety
/// `data` is null or points to `len` readable values that outlive `'a`.
unsafe fn array<'a, T>(data: *const T, len: usize) -> Result<&'a [T], Malformed> {
    if len == 0 {
        return Ok(&[]);
    }
    if data.is_null() || !data.is_aligned() || len > MAX_ENTRIES {
        return Err(format!("an array of {len} entries at address {data:p}"));
    }
    // SAFETY: the pointer is not null and aligned, and the caller promises `len` readable values.
    Ok(unsafe { std::slice::from_raw_parts(data, len) })
}

/// # Safety
/// As for [`FfxStr::bytes`].
unsafe fn text(text: FfxStr) -> Result<String, Malformed> {
    if text.len > MAX_TEXT {
        return Err(format!("a text of {} bytes", text.len));
    }
    // SAFETY: the caller's guarantee about the text is passed on unchanged.
    let bytes = unsafe { text.bytes() };
    std::str::from_utf8(bytes).map(str::to_owned).map_err(|_| "a text that is not UTF-8".to_owned())
}
