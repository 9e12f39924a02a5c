//! The faults by name, and the check that each must fail.

use std::sync::OnceLock;

/// The environment variable that selects a fault.
pub const VARIABLE: &str = "FERROFLUX_BROKEN";

macro_rules! faults {
    ($($variant:ident $name:literal $check:literal $about:literal;)*) => {
        /// What is wrong.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Fault {
            /// Nothing.
            None,
            $(#[doc = $about] $variant,)*
        }

        /// Name, the check that fails, and what the plugin does wrong.
        pub const FAULTS: &[(&str, &str, &str)] = &[$(($name, $check, $about),)*];

        impl Fault {
            fn named(name: &str) -> Fault {
                match name {
                    $($name => Fault::$variant,)*
                    _ => Fault::None,
                }
            }
        }
    };
}

faults! {
    ShortTable "short-table" "table" "states a struct_size that ends inside of a required slot";
    MissingSlot "missing-slot" "slots" "leaves the slot `execute` null";
    TableEachTime "table-each-time" "entry" "hands out another table at every entry";
    WholeError "whole-error" "older-host" "writes the whole error struct, however small the caller's is";
    EqualSizes "equal-sizes" "newer-host" "compares struct sizes for equality";
    ReadsHost "reads-host" "truncated-host" "reads the host's table without looking whether there is one";
    NullError "null-error" "errors" "reads the error struct's size without looking whether there is one";
    Panics "panics" "hostile" "panics through the boundary where a program does not verify";
    Silent "declines-silently" "support" "declines without a reason";
    Overrun "overrun" "bounds" "writes four bytes beyond each output";
    WrongResult "wrong-result" "ops.i16" "subtracts the wrong way round, for i16 alone";
    IgnoresChecks "ignores-checks" "indices" "reads rows of a buffer that an operator may not index";
    IgnoresStrides "ignores-strides" "strides" "reads every input as if it were row-major";
    Hangs "hangs" "zero-sizes" "never comes back where an output has no elements";
    FirstSizes "first-sizes" "dynamic-sizes" "computes at the sizes of the first call for ever";
    WrongGraph "wrong-graph" "graphs" "swaps the operands of each call of a subtraction";
    FirstBinding "first-binding" "constants" "keeps what the first constants were packed to";
    FreesTwice "frees-twice" "deleters" "frees outputs with their executable, and again in their deleter";
    NeverFrees "never-frees" "deleters" "has a deleter that frees nothing";
    Races "races" "threads" "shares scratch memory between calls";
    TrustsArtifacts "trusts-artifacts" "artifacts" "takes any bytes for the artifact that it made last";
    LeaksCompiling "leaks" "leaks" "leaves 64 KiB behind at every compilation";
}

/// The fault of this process.
pub(crate) fn fault() -> Fault {
    static FAULT: OnceLock<Fault> = OnceLock::new();
    *FAULT.get_or_init(|| Fault::named(&std::env::var(VARIABLE).unwrap_or_default()))
}
