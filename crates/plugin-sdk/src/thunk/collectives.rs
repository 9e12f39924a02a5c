//! The tables of the extensions for programs on many ranks. The contract is that of [`slots`](super::slots).

use std::ffi::c_void;
use std::time::Duration;

use plugin_abi::{
    FfxAttachGroups, FfxCollectivePrograms, FfxCollectives, FfxCommunicator, FfxError, FfxExchange,
    FfxExecutable, FfxGroup, FfxWorld, Head,
};

use super::guard::{catch, guard};
use super::request;
use super::slots::{cell_mut, null_out};
use crate::collectives::{BlockExchange, Communicator, World, of_codes};
use crate::tensor::dtype_of;
use crate::{CollectiveEngine, Groups, PluginError, Stream};

/// The table of an engine, for the life of the process.
pub fn engine_table(engine: Box<dyn CollectiveEngine>) -> &'static FfxCollectives {
    let engine: &'static mut Box<dyn CollectiveEngine> = Box::leak(Box::new(engine));
    Box::leak(Box::new(FfxCollectives {
        head: Head::of::<FfxCollectives>(),
        ctx: std::ptr::from_mut(engine).cast(),
        join: Some(join),
        split: Some(split),
        start: Some(start),
        wait: Some(wait),
        abort: Some(abort),
        leave: Some(leave),
        start_several: Some(start_several),
        adopt: Some(adopt),
    }))
}

/// The table of a backend that runs programs with collectives.
pub(super) fn programs() -> &'static FfxCollectivePrograms {
    const ATTACH: FfxAttachGroups = attach;
    const { &FfxCollectivePrograms { head: Head::of::<FfxCollectivePrograms>(), attach: Some(ATTACH) } }
}

/// # Safety
/// `communicator` is one that `join` or `split` made, and was not left.
unsafe fn communicator<'a>(communicator: *mut FfxCommunicator) -> Result<&'a dyn Communicator, PluginError> {
    // SAFETY: the pointer is that of the leaked box of `export`.
    let found = unsafe { communicator.cast::<Box<dyn Communicator>>().as_ref() };
    found.map(|c| &**c).ok_or_else(|| PluginError::invalid("the communicator is null"))
}

fn export(communicator: Box<dyn Communicator>) -> *mut FfxCommunicator {
    Box::into_raw(Box::new(communicator)).cast()
}

unsafe extern "C" fn join(
    ctx: *mut c_void,
    world: *const FfxWorld,
    out: *mut *mut FfxCommunicator,
    error: *mut FfxError,
) -> i32 {
    // SAFETY: pointers keep the contract that all slots share (`slots`); the context is the engine's.
    unsafe {
        guard(error, || {
            let out = out.as_mut().ok_or_else(null_out)?;
            *out = export(engine(ctx)?.join(&given(world)?)?);
            Ok(())
        })
    }
}

unsafe extern "C" fn adopt(
    ctx: *mut c_void,
    native: *mut c_void,
    world: *const FfxWorld,
    out: *mut *mut FfxCommunicator,
    error: *mut FfxError,
) -> i32 {
    // SAFETY: pointers keep the contract that all slots share (`slots`); the context is the engine's; the caller answers for the native
    // communicator.
    unsafe {
        guard(error, || {
            let out = out.as_mut().ok_or_else(null_out)?;
            if native.is_null() {
                return Err(PluginError::invalid("there is no communicator to take over"));
            }
            *out = export(engine(ctx)?.adopt(native, &given(world)?)?);
            Ok(())
        })
    }
}

/// # Safety
/// `ctx` is null or the context of a table that [`engine_table`] made.
unsafe fn engine<'a>(ctx: *mut c_void) -> Result<&'a dyn CollectiveEngine, PluginError> {
    // SAFETY: the context is the leaked box of `engine_table`.
    let engine = unsafe { ctx.cast::<Box<dyn CollectiveEngine>>().as_ref() };
    engine.map(|e| &**e).ok_or_else(|| PluginError::invalid("the engine's context is null"))
}

/// The ranks of a call.
///
/// # Safety
/// As for [`request::table`].
unsafe fn given(world: *const FfxWorld) -> Result<World, PluginError> {
    // SAFETY: the caller's guarantee is passed on unchanged.
    let world: FfxWorld = unsafe { request::table(world)? };
    if world.rank >= world.size {
        let what = format!("rank {} of {} ranks", world.rank, world.size);
        return Err(PluginError::invalid(what));
    }
    Ok(World {
        rank: world.rank as usize,
        size: world.size as usize,
        device: world.device,
        // SAFETY: the text of a table that the caller lends.
        address: unsafe { request::text(world.address, "an address")? }.to_owned(),
        timeout: (world.timeout_ms > 0).then(|| Duration::from_millis(world.timeout_ms)),
    })
}

unsafe extern "C" fn split(
    _ctx: *mut c_void,
    all: *mut FfxCommunicator,
    color: u32,
    key: u32,
    out: *mut *mut FfxCommunicator,
    error: *mut FfxError,
) -> i32 {
    // SAFETY: pointers keep the contract that all slots share (`slots`).
    unsafe {
        guard(error, || {
            let out = out.as_mut().ok_or_else(null_out)?;
            *out = export(communicator(all)?.split(color as usize, key as usize)?);
            Ok(())
        })
    }
}

unsafe extern "C" fn start(
    _ctx: *mut c_void,
    of: *mut FfxCommunicator,
    exchange: *const FfxExchange,
    ticket: *mut u64,
    error: *mut FfxError,
) -> i32 {
    // SAFETY: pointers keep the contract that all slots share (`slots`); the caller answers for the exchange's memory.
    unsafe {
        guard(error, || {
            let ticket = ticket.as_mut().ok_or_else(null_out)?;
            *ticket = communicator(of)?.start(&asked(exchange)?)?;
            Ok(())
        })
    }
}

unsafe extern "C" fn start_several(
    _ctx: *mut c_void,
    of: *mut FfxCommunicator,
    exchanges: *const *const FfxExchange,
    n: usize,
    tickets: *mut u64,
    error: *mut FfxError,
) -> i32 {
    // SAFETY: pointers keep the contract that all slots share (`slots`), and both lists have `n` elements; the caller answers for
    // the exchanges' memory.
    unsafe {
        guard(error, || {
            if n == 0 {
                return Ok(());
            }
            if exchanges.is_null() || tickets.is_null() {
                return Err(null_out());
            }
            let list = std::slice::from_raw_parts(exchanges, n);
            let all = list.iter().map(|e| asked(*e)).collect::<Result<Vec<_>, PluginError>>()?;
            let numbers = communicator(of)?.start_several(&all)?;
            if numbers.len() != n {
                return Err(PluginError::internal(format!("{} numbers of {n} exchanges", numbers.len())));
            }
            std::slice::from_raw_parts_mut(tickets, n).copy_from_slice(&numbers);
            Ok(())
        })
    }
}

/// The exchange that a caller asks for.
///
/// # Safety
/// The pointer keeps the contract that all slots share (`slots`).
unsafe fn asked<'a>(exchange: *const FfxExchange) -> Result<BlockExchange<'a>, PluginError> {
    // SAFETY: the caller's guarantee is passed on unchanged.
    let e: FfxExchange = unsafe { request::table(exchange)? };
    let op = of_codes(e.kind, e.combine, e.parameter);
    let op = op.ok_or_else(|| {
        PluginError::invalid(format!("no exchange has the codes {}, {}", e.kind, e.combine))
    })?;
    Ok(BlockExchange {
        op,
        dtype: dtype_of(e.dtype)?,
        count: usize::try_from(e.count).map_err(|_| PluginError::out_of_memory(e.count))?,
        send: e.send.cast(),
        receive: e.receive.cast(),
        stream: Stream(e.stream),
        // SAFETY: the exchange is borrowed for the call, and the text with it.
        step: unsafe { request::text(e.step, "a step's name")? },
    })
}

unsafe extern "C" fn wait(
    _ctx: *mut c_void,
    of: *mut FfxCommunicator,
    ticket: u64,
    error: *mut FfxError,
) -> i32 {
    // SAFETY: pointers keep the contract that all slots share (`slots`).
    unsafe { guard(error, || communicator(of)?.wait(ticket)) }
}

unsafe extern "C" fn abort(_ctx: *mut c_void, of: *mut FfxCommunicator) {
    // There is no caller to report a failure to.
    let _ = catch(|| {
        // SAFETY: pointers keep the contract that all slots share (`slots`).
        unsafe { communicator(of)? }.abort();
        Ok(())
    });
}

unsafe extern "C" fn leave(_ctx: *mut c_void, of: *mut FfxCommunicator) {
    // There is no caller to report a failure to.
    let _ = catch(|| {
        if !of.is_null() {
            // SAFETY: the box of `export`, which nothing uses any more.
            drop(unsafe { Box::from_raw(of.cast::<Box<dyn Communicator>>()) });
        }
        Ok(())
    });
}

unsafe extern "C" fn attach(
    _ctx: *mut c_void,
    exe: *mut FfxExecutable,
    groups: *const *const FfxGroup,
    n_groups: usize,
    error: *mut FfxError,
) -> i32 {
    // SAFETY: pointers keep the contract that all slots share (`slots`); communicators stay valid by the host's guarantee.
    unsafe {
        guard(error, || {
            let list = match n_groups {
                0 => &[][..],
                n if groups.is_null() || n > 256 => return Err(PluginError::invalid("the list of groups")),
                n => std::slice::from_raw_parts(groups, n),
            };
            let mut all = Groups::empty();
            for group in list {
                let group: FfxGroup = request::table(*group)?;
                let engine: FfxCollectives = request::table(group.engine)?;
                let name = request::text(group.name, "a group's name")?;
                all.push(name, (group.rank as usize, group.size as usize), &engine, group.communicator)?;
            }
            cell_mut(exe, |executable| executable.attach_groups(all))
        })
    }
}
