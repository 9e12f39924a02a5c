//! Memory that compilations leave behind.

use plugin_host::CompileArgs;
use plugin_host::KERNEL_IR;

use super::ownership::grows_less_than;
use super::{Cx, constants, reduce, support};
use crate::case::Fault;

/// Growth that is allowed over a thousand compilations: heap fragmentation, not a leaked kernel each.
const ALLOWED: u64 = 8 << 20;

pub(super) fn leaks(cx: &mut Cx) -> Result<(), Fault> {
    let (backend, device) = cx.device()?;
    for case in [support::simple()?, reduce::softmax([2, 5])?, constants::affine()?] {
        let bytes = case.program.to_bytes();
        let args = CompileArgs::new(KERNEL_IR, &bytes).device(device.device);
        let name = format!("1000 compilations of `{}`", case.name);
        cx.case(&name, || {
            case.compile(&backend, &device)?;
            let compile = |n: usize| (0..n).try_for_each(|_| Ok(backend.compile(&args).map(drop)?));
            grows_less_than(ALLOWED, || compile(100), || compile(1000))
        });
    }
    let damaged = [0u8; 64];
    cx.case("1000 refused compilations", || {
        let args = CompileArgs::new(KERNEL_IR, &damaged).device(device.device);
        let refuse = |n: usize| {
            let all = (0..n).all(|_| backend.compile(&args).is_err());
            if all { Ok(()) } else { Err(Fault::wrong("a program of zeros is taken")) }
        };
        grows_less_than(ALLOWED, || refuse(100), || refuse(1000))
    });
    Ok(())
}
