//! A description laid out as C structs that point into memory owned here.

use plugin_abi::{FfxDescription, FfxIrVersion, FfxOptionSpec, FfxStr, Head};

use crate::{Description, OptionKind, OptionSpec};

/// The C form of a [`Description`]; its pointers stay valid while this value lives (all of them point into boxed slices and
/// strings, so that it may be moved).
pub(crate) struct CDescription {
    pub(crate) safe: Description,
    pub(crate) table: FfxDescription,
    _irs: Box<[FfxIrVersion]>,
    _modes: Box<[FfxStr]>,
    _choices: Vec<Box<[FfxStr]>>,
    _specs: Box<[FfxOptionSpec]>,
    _spec_pointers: Box<[*const FfxOptionSpec]>,
}

// SAFETY: the value is immutable after construction; all pointers point into memory that it owns.
unsafe impl Send for CDescription {}
// SAFETY: the value is immutable after construction, so threads may share it.
unsafe impl Sync for CDescription {}

impl CDescription {
    pub(crate) fn new(safe: Description) -> Self {
        let irs: Box<[FfxIrVersion]> = safe.irs.as_slice().into();
        let modes = texts(&safe.modes);
        let choices: Vec<_> = safe.options.iter().map(choices_of).collect();
        let specs: Box<[_]> = safe.options.iter().zip(&choices).map(|(o, c)| c_option(o, c)).collect();
        let pointers: Box<[*const FfxOptionSpec]> = specs.iter().map(|s| s as *const _).collect();
        let table = FfxDescription {
            head: Head::of::<FfxDescription>(),
            name: FfxStr::new(&safe.name),
            version: FfxStr::new(&safe.version),
            summary: FfxStr::new(&safe.summary),
            irs: irs.as_ptr(),
            n_irs: irs.len(),
            modes: modes.as_ptr(),
            n_modes: modes.len(),
            options: pointers.as_ptr(),
            n_options: pointers.len(),
        };
        Self {
            safe,
            table,
            _irs: irs,
            _modes: modes,
            _choices: choices,
            _specs: specs,
            _spec_pointers: pointers,
        }
    }
}

fn texts(all: &[String]) -> Box<[FfxStr]> {
    all.iter().map(|t| FfxStr::new(t)).collect()
}

fn choices_of(option: &OptionSpec) -> Box<[FfxStr]> {
    match &option.kind {
        OptionKind::Choice(all) => texts(all),
        _ => Box::default(),
    }
}

fn c_option(option: &OptionSpec, choices: &[FfxStr]) -> FfxOptionSpec {
    FfxOptionSpec {
        head: Head::of::<FfxOptionSpec>(),
        kind: option.kind.code(),
        reserved: 0,
        name: FfxStr::new(&option.name),
        help: FfxStr::new(&option.help),
        default_value: FfxStr::new(&option.default),
        choices: choices.as_ptr(),
        n_choices: choices.len(),
    }
}
