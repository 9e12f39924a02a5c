//! The functions and data of this library that generated code refers to, by number instead of address, so that saved code
//! is valid in another process. Numbers are stable within one build only.

use cranelift_codegen::ir::{ExternalName, GlobalValueData, InstBuilder, Type, UserExternalName, Value};
use cranelift_frontend::FunctionBuilder;

use super::memory::ZEROS;
use super::{calls, fault};

/// Namespace of these names among those of a function; 0 and 1 are the module's own.
pub(super) const NAMESPACE: u32 = 2;
/// Namespace of the leaves of a function: their code is behind the function's own, so no module sees these names.
pub(super) const LEAVES: u32 = 3;
/// Number of the block of zeros.
pub(super) const ZEROS_NUMBER: u32 = u32::MAX;
/// Number of the function that failed checks report to.
pub(super) const REPORT_NUMBER: u32 = u32::MAX - 1;
/// Number of the function that computes single lanes of a leaf.
pub(super) const EACH_NUMBER: u32 = u32::MAX - 2;
/// Prefix of the symbols by which a module finds the addresses.
const PREFIX: &str = "ffx_host_";

/// The address of a number, as a value of a function.
pub(super) fn value(b: &mut FunctionBuilder<'_>, pointer: Type, number: u32) -> Value {
    let name = b.func.declare_imported_user_function(UserExternalName::new(NAMESPACE, number));
    let name = ExternalName::user(name);
    let data = GlobalValueData::Symbol { name, offset: 0.into(), colocated: false, tls: false };
    let symbol = b.create_global_value(data);
    b.ins().symbol_value(pointer, symbol)
}

/// The symbol of a number.
pub(super) fn symbol(number: u32) -> String {
    format!("{PREFIX}{number}")
}

/// The address of a symbol.
pub(super) fn lookup(symbol: &str) -> Option<*const u8> {
    let number: u32 = symbol.strip_prefix(PREFIX)?.parse().ok()?;
    address(number).map(|a| a as *const u8)
}

/// The address of a number; `None` for an unknown number.
pub(super) fn address(number: u32) -> Option<usize> {
    match number {
        ZEROS_NUMBER => Some(ZEROS.address()),
        EACH_NUMBER => Some(calls::each as *const () as usize),
        REPORT_NUMBER => Some(fault::report as *const () as usize),
        _ => calls::address(number),
    }
}
