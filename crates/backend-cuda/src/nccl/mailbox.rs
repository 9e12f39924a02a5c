//! Small sums over ranks without NCCL: where all devices of a communicator reach each other's memory, ranks write their operands
//! into mailboxes of one another, which takes half as long as NCCL's exchange of few bytes and is one kernel in a device graph.
//! Ranks agree on it when they join; where one of them cannot, none does.
//!
//! Not here: all other exchanges (`communicator`).

use std::ffi::{CString, c_uint, c_void};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::{Mutex, OnceLock, PoisonError};

use cudarc::driver::{result, sys};
use gpu_runtime::{GpuError, Module};
use kernel_ir::{CollectiveOp, Combine};
use plugin_sdk::{BlockExchange, DType, PluginError};

use super::api::CudaStream;
use super::communicator::Context;
use super::driver;
use crate::cuda::EARLY;
use crate::device_properties::DeviceProperties;

/// Bytes up to which exchanges go by mailboxes, together. Lines double them, and a rank sends them to each other one.
const LARGEST: usize = 256 << 10;
/// Ranks that the kernel has places for.
const MOST_RANKS: usize = 8;
/// Bytes that a line carries, of the 16 that it has.
const CARRIED: usize = 8;
const LINE: usize = 16;
/// Lines of one side for one sender.
const ROOM: usize = LARGEST / CARRIED;
/// Bytes in front of the lines: the number of exchanges, and the blocks of one that have ended.
const STATE: usize = 256;
const THREADS: usize = 512;
/// Sums that one kernel makes: its argument has no more room.
const MOST_PARTS: usize = 120;
/// Blocks wait for lines of other ranks, so they must all have a place on the device.
const MOST_BLOCKS: usize = 32;

const ENTRIES: [&str; 3] = ["sum_f32", "sum_bf16", "sum_f16"];

/// One sum of an exchange (`Part` of `mailbox.cu`).
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Part {
    send: u64,
    receive: u64,
    first: u32,
    count: u32,
}

/// The argument of the kernels (`Exchange` of `mailbox.cu`).
#[repr(C)]
struct Argument {
    boxes: [u64; MOST_RANKS],
    state: u64,
    ended: u64,
    scale: f32,
    room: u32,
    ranks: u32,
    rank: u32,
    lines: u32,
    parts: u32,
    part: [Part; MOST_PARTS],
}

/// What a rank tells the others about its mailbox.
#[derive(Clone, Copy)]
struct Card {
    /// The machine and the process: numbers that differ where they do.
    machine: u64,
    process: u64,
    /// Its context, for ranks of the same process.
    context: u64,
    address: u64,
    /// The memory as other processes open it.
    handle: [u8; 64],
    device: i32,
    /// Whether it has a mailbox.
    ready: bool,
}

/// Bytes of a card on its way.
const CARD: usize = 104;

impl Card {
    fn bytes(&self) -> [u8; CARD] {
        let mut all = [0; CARD];
        for (n, number) in [self.machine, self.process, self.context, self.address].into_iter().enumerate() {
            all[8 * n..8 * n + 8].copy_from_slice(&number.to_le_bytes());
        }
        all[32..96].copy_from_slice(&self.handle);
        all[96..100].copy_from_slice(&self.device.to_le_bytes());
        all[100] = u8::from(self.ready);
        all
    }

    fn of(bytes: &[u8]) -> Option<Card> {
        let number = |n: usize| Some(u64::from_le_bytes(bytes.get(8 * n..8 * n + 8)?.try_into().ok()?));
        Some(Card {
            machine: number(0)?,
            process: number(1)?,
            context: number(2)?,
            address: number(3)?,
            handle: bytes.get(32..96)?.try_into().ok()?,
            device: i32::from_le_bytes(bytes.get(96..100)?.try_into().ok()?),
            ready: *bytes.get(100)? == 1,
        })
    }
}

/// A number of this machine since it was started; 0 where it is not known.
fn machine() -> u64 {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    id.bytes()
        .filter(u8::is_ascii_hexdigit)
        .take(16)
        .fold(0, |n, digit| n << 4 | u64::from((digit as char).to_digit(16).unwrap_or(0)))
}

/// A number of this process, which another one, in whatever container, hardly has.
fn process() -> u64 {
    static NUMBER: OnceLock<u64> = OnceLock::new();
    *NUMBER.get_or_init(|| {
        let mut hasher = RandomState::new().build_hasher();
        hasher.write_u32(std::process::id());
        hasher.finish()
    })
}

/// Device memory of a mailbox. Other processes may still have it open when its rank leaves, so it is kept for the next one.
struct Memory {
    address: u64,
    ranks: usize,
    device: i32,
}

static KEPT: Mutex<Vec<Memory>> = Mutex::new(Vec::new());

impl Memory {
    fn bytes(ranks: usize) -> usize {
        STATE + 2 * ranks * ROOM * LINE
    }

    /// That of an empty mailbox, on the current device.
    fn empty(ranks: usize, device: i32) -> Result<Memory, PluginError> {
        let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
        let found = kept.iter().position(|m| m.ranks == ranks && m.device == device);
        let found = found.map(|at| kept.swap_remove(at));
        drop(kept);
        let bytes = Memory::bytes(ranks);
        let memory = match found {
            Some(memory) => memory,
            None => {
                // SAFETY: the context is current.
                let address = unsafe { result::malloc_sync(bytes) }.map_err(|e| driver("cuMemAlloc", e))?;
                Memory { address, ranks, device }
            }
        };
        // SAFETY: the memory has these bytes, and whoever wrote it before has left.
        unsafe { result::memset_d8_sync(memory.address, 0, bytes) }.map_err(|e| driver("cuMemsetD8", e))?;
        // Other ranks write to it on streams of their own.
        result::ctx::synchronize().map_err(|e| driver("cuCtxSynchronize", e))?;
        Ok(memory)
    }
}

/// The kernels, compiled once for a process and architecture.
fn code(architecture: &str) -> Result<&'static [u8], GpuError> {
    static CODE: OnceLock<(String, Result<Vec<u8>, GpuError>)> = OnceLock::new();
    let (of, code) = CODE.get_or_init(|| {
        let entries = ENTRIES.iter().map(|e| (*e).to_owned()).collect();
        let module = Module { prelude: String::new(), kernels: include_str!("mailbox.cu").into(), entries };
        (architecture.to_owned(), crate::compile(&module, architecture))
    });
    match code {
        Ok(code) if of == architecture => Ok(code),
        Ok(_) => Err(GpuError::Argument(format!("mailboxes are compiled for {of} in this process"))),
        Err(error) => Err(error.clone()),
    }
}

/// A word of the host that kernels look at.
struct Flag(*mut u32);

// SAFETY: the word is written and read as one, by whoever has it.
unsafe impl Send for Flag {}
// SAFETY: the word is never freed while a communicator that reads it is there, and a word is written whole.
unsafe impl Sync for Flag {}

impl Flag {
    fn new() -> Result<Flag, PluginError> {
        let flags = sys::CU_MEMHOSTALLOC_PORTABLE | sys::CU_MEMHOSTALLOC_DEVICEMAP;
        // SAFETY: the context is current.
        let word = unsafe { result::malloc_host(size_of::<u32>(), flags) };
        let word = word.map_err(|e| driver("cuMemHostAlloc", e))?.cast::<u32>();
        // SAFETY: the memory was just allocated.
        unsafe { word.write_volatile(0) };
        Ok(Flag(word))
    }

    fn set(&self) {
        // SAFETY: the memory lives as long as this value.
        unsafe { self.0.write_volatile(1) };
    }
}

impl Drop for Flag {
    fn drop(&mut self) {
        // SAFETY: the memory is this value's own.
        let _ = unsafe { result::free_host(self.0.cast()) };
    }
}

/// The mailboxes of a communicator's ranks.
pub(super) struct Mailboxes {
    /// By dtype as in [`ENTRIES`].
    functions: [sys::CUfunction; ENTRIES.len()],
    boxes: [u64; MOST_RANKS],
    /// Addresses that were opened of other processes.
    opened: Vec<u64>,
    own: Option<Memory>,
    ended: Flag,
    /// Whether the device has early launches.
    early: bool,
    ranks: usize,
    rank: usize,
}

// SAFETY: handles of the driver, which any thread may use whose context is the device's.
unsafe impl Send for Mailboxes {}
// SAFETY: nothing changes after they were made, but what the driver and the kernels serialize.
unsafe impl Sync for Mailboxes {}

/// What every rank gives of equal bytes, in the order of ranks.
pub(super) type Gather<'a> = &'a dyn Fn(&[u8]) -> Result<Vec<u8>, PluginError>;

impl Mailboxes {
    /// Agrees with the other ranks, all of which do the same; `None` where exchanges stay NCCL's.
    ///
    /// # Errors
    /// A rank is gone.
    pub(super) fn meet(
        context: Context,
        (rank, ranks): (usize, usize),
        gather: Gather<'_>,
    ) -> Result<Option<Mailboxes>, PluginError> {
        if !(2..=MOST_RANKS).contains(&ranks) {
            return Ok(None);
        }
        context.enter()?;
        let own = Own::new(context, ranks);
        if let Err(error) = &own {
            tracing::debug!(target: "ranks", "this rank has no mailbox: {error}");
        }
        let cards = gather(&card(context, own.as_ref().ok()).bytes())?;
        let cards: Vec<Card> = cards.chunks_exact(CARD).filter_map(Card::of).collect();
        let all_ready = cards.len() == ranks && cards.iter().all(|card| card.ready);
        let made = match (own, all_ready) {
            (Ok(own), true) => own.opened(context, rank, &cards),
            (Ok(_), false) => Err(PluginError::unsupported("another rank has no mailbox")),
            (Err(error), _) => Err(error),
        };
        if let (Err(error), true) = (&made, all_ready) {
            tracing::debug!(target: "ranks", "mailboxes of other ranks cannot be opened: {error}");
        }
        let ready = gather(&[u8::from(made.is_ok())])?;
        Ok(made.ok().filter(|_| ready.iter().all(|r| *r == 1)))
    }

    /// Ends what waits for a rank.
    pub(super) fn end(&self) {
        self.ended.set();
    }

    /// Whether an exchange goes by mailboxes: the same on all ranks.
    pub(super) fn takes(e: &BlockExchange<'_>) -> bool {
        kernel(e).is_some()
    }

    /// Puts exchanges that go by mailboxes on a stream, in as few kernels as they fit in.
    ///
    /// # Safety
    /// As for `Rank::put`, for each of them.
    pub(super) unsafe fn put(
        &self,
        all: &[(BlockExchange<'_>, *const c_void, *mut c_void)],
        stream: CudaStream,
    ) -> Result<(), PluginError> {
        let mut left = all;
        while let Some((first, ..)) = left.first() {
            let number = kernel(first);
            let (mut lines, mut parts) = (0, Vec::new());
            for (e, send, receive) in left {
                let own = lines_of(e);
                let together = kernel(e) == number && e.op == first.op;
                if !together || lines + own > ROOM || parts.len() == MOST_PARTS {
                    break;
                }
                let (send, receive) = (send.addr() as u64, receive.addr() as u64);
                parts.push(Part { send, receive, first: lines as u32, count: e.count as u32 });
                lines += own;
            }
            let Some(number) = number.filter(|_| !parts.is_empty()) else {
                let what = format!("step `{}` does not go by mailboxes", first.step);
                return Err(PluginError::internal(what));
            };
            let mean = matches!(first.op, CollectiveOp::AllReduce(Combine::Mean));
            // SAFETY: the caller's guarantee is passed on unchanged.
            unsafe { self.launch(self.functions[number], mean, (&parts, lines), stream)? };
            left = &left[parts.len()..];
        }
        Ok(())
    }

    /// # Safety
    /// As for [`Mailboxes::put`]; the parts have at most [`ROOM`] lines and are at most [`MOST_PARTS`].
    unsafe fn launch(
        &self,
        function: sys::CUfunction,
        mean: bool,
        (parts, lines): (&[Part], usize),
        stream: CudaStream,
    ) -> Result<(), PluginError> {
        let mut argument = Argument {
            boxes: self.boxes,
            state: self.boxes[self.rank] - STATE as u64,
            ended: self.ended.0.addr() as u64,
            scale: if mean { 1.0 / self.ranks as f32 } else { 1.0 },
            room: ROOM as u32,
            ranks: self.ranks as u32,
            rank: self.rank as u32,
            lines: lines as u32,
            parts: parts.len() as u32,
            part: [Part::default(); MOST_PARTS],
        };
        argument.part[..parts.len()].copy_from_slice(parts);
        let mut arguments = [(&raw mut argument).cast::<c_void>()];
        let blocks = lines.div_ceil(THREADS).clamp(1, MOST_BLOCKS) as c_uint;
        let mut attribute = EARLY;
        let configuration = sys::CUlaunchConfig {
            gridDimX: blocks,
            gridDimY: 1,
            gridDimZ: 1,
            blockDimX: THREADS as c_uint,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: 0,
            hStream: stream.cast(),
            attrs: &raw mut attribute,
            numAttrs: c_uint::from(self.early),
        };
        // SAFETY: operands and results have the exchanges' elements by the caller's guarantee; mailboxes have room for their
        // lines; the argument has the kernel's layout and lives through the call, which copies it, as the configuration and the
        // attribute do.
        let done = unsafe {
            sys::cuLaunchKernelEx(&configuration, function, arguments.as_mut_ptr(), std::ptr::null_mut())
        };
        done.result().map_err(|e| driver("cuLaunchKernelEx", e))
    }
}

/// The number of the kernel for an exchange, where it goes by mailboxes.
fn kernel(e: &BlockExchange<'_>) -> Option<usize> {
    let adds = matches!(e.op, CollectiveOp::AllReduce(Combine::Sum | Combine::Mean));
    let kernel = match e.dtype {
        DType::F32 => 0,
        DType::BF16 => 1,
        DType::F16 => 2,
        _ => return None,
    };
    (adds && (1..=ROOM).contains(&lines_of(e))).then_some(kernel)
}

fn lines_of(e: &BlockExchange<'_>) -> usize {
    (e.count * e.dtype.size()).div_ceil(CARRIED)
}

impl Drop for Mailboxes {
    fn drop(&mut self) {
        for address in &self.opened {
            // SAFETY: it was opened by this value, and no kernel uses it any more.
            let _ = unsafe { sys::cuIpcCloseMemHandle(*address) };
        }
        let kept = || KEPT.lock().unwrap_or_else(PoisonError::into_inner);
        self.own.take().into_iter().for_each(|memory| kept().push(memory));
    }
}

/// A rank's own part before it knows the others.
struct Own {
    memory: Memory,
    handle: [u8; 64],
    functions: [sys::CUfunction; ENTRIES.len()],
    ended: Flag,
    early: bool,
}

impl Own {
    fn new(context: Context, ranks: usize) -> Result<Own, PluginError> {
        let device = context.ordinal();
        let properties = DeviceProperties::of(device)?;
        let code = code(&properties.architecture)?;
        // SAFETY: the code is a module of this device's architecture; it stays loaded for the life of the process.
        let module = unsafe { result::module::load_data(code.as_ptr().cast()) };
        let module = module.map_err(|e| driver("cuModuleLoadData", e))?;
        let mut functions = [std::ptr::null_mut(); ENTRIES.len()];
        for (place, name) in functions.iter_mut().zip(ENTRIES) {
            let name = CString::new(name).map_err(|e| PluginError::internal(e.to_string()))?;
            // SAFETY: the module was just loaded.
            let found = unsafe { result::module::get_function(module, name) };
            *place = found.map_err(|e| driver("cuModuleGetFunction", e))?;
        }
        let memory = Memory::empty(ranks, device)?;
        let mut handle = sys::CUipcMemHandle { reserved: [0; 64] };
        // SAFETY: the place lives through the call; the memory is one allocation.
        unsafe { sys::cuIpcGetMemHandle(&mut handle, memory.address) }
            .result()
            .map_err(|e| driver("cuIpcGetMemHandle", e))?;
        let handle = handle.reserved.map(|c| c.to_ne_bytes()[0]);
        let early = properties.target.features.early_launch;
        Ok(Own { memory, handle, functions, ended: Flag::new()?, early })
    }

    /// With the mailboxes of the other ranks.
    fn opened(self, context: Context, rank: usize, cards: &[Card]) -> Result<Mailboxes, PluginError> {
        let Own { memory, functions, ended, early, .. } = self;
        let (ranks, boxes, opened) = (cards.len(), [0; MOST_RANKS], Vec::new());
        let mut all = Mailboxes { functions, boxes, opened, own: Some(memory), ended, early, ranks, rank };
        for (n, other) in cards.iter().enumerate() {
            let address = if n == rank || other.process == process() {
                reach(context, other)?;
                other.address
            } else if other.machine == machine() && other.machine != 0 {
                let opened = open(&other.handle)?;
                all.opened.push(opened);
                opened
            } else {
                return Err(PluginError::unsupported("ranks are on several machines"));
            };
            all.boxes[n] = address + STATE as u64;
        }
        Ok(all)
    }
}

fn card(context: Context, own: Option<&Own>) -> Card {
    Card {
        machine: machine(),
        process: process(),
        context: context.address(),
        address: own.map_or(0, |o| o.memory.address),
        handle: own.map_or([0; 64], |o| o.handle),
        device: context.ordinal(),
        ready: own.is_some(),
    }
}

/// Lets this device use memory of another one of the process.
fn reach(context: Context, other: &Card) -> Result<(), PluginError> {
    if other.device == context.ordinal() {
        return Ok(());
    }
    // SAFETY: the other rank's context is that of this process, kept for its life.
    let status = unsafe { sys::cuCtxEnablePeerAccess(other.context as sys::CUcontext, 0) };
    match status {
        sys::CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED => Ok(()),
        status => status.result().map_err(|e| driver("cuCtxEnablePeerAccess", e)),
    }
}

/// Opens memory of another process of this machine.
fn open(handle: &[u8; 64]) -> Result<u64, PluginError> {
    let handle = sys::CUipcMemHandle { reserved: handle.map(|b| std::ffi::c_char::from_ne_bytes([b])) };
    let mut address = 0;
    let flags = sys::CUipcMem_flags::CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS as c_uint;
    // SAFETY: the place lives through the call; the handle is one that the driver gave another process.
    unsafe { sys::cuIpcOpenMemHandle_v2(&mut address, handle, flags) }
        .result()
        .map_err(|e| driver("cuIpcOpenMemHandle", e))?;
    Ok(address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cards_arrive_as_they_were_sent() {
        let sent = Card {
            machine: 1,
            process: u64::MAX,
            context: 3,
            address: 4 << 40,
            handle: std::array::from_fn(|n| n as u8),
            device: 5,
            ready: true,
        };
        let got = Card::of(&sent.bytes()).expect("all of its bytes");
        assert_eq!(got.bytes(), sent.bytes());
        assert_eq!((got.process, got.device, got.ready, got.handle[63]), (u64::MAX, 5, true, 63));
        assert!(Card::of(&sent.bytes()[..CARD - 4]).is_none());
        assert_eq!(process(), process(), "one number for the life of the process");
    }

    #[test]
    fn small_sums_of_floats_go_by_mailboxes() {
        let exchange = |op, dtype, count| BlockExchange {
            op,
            dtype,
            count,
            send: std::ptr::null(),
            receive: std::ptr::null_mut(),
            stream: plugin_sdk::Stream::DEFAULT,
            step: "sum",
        };
        let sum = CollectiveOp::AllReduce(Combine::Sum);
        assert!(Mailboxes::takes(&exchange(sum, DType::BF16, LARGEST / 2)));
        assert!(!Mailboxes::takes(&exchange(sum, DType::BF16, LARGEST / 2 + 1)), "too many bytes");
        assert!(!Mailboxes::takes(&exchange(sum, DType::F32, 0)));
        assert!(!Mailboxes::takes(&exchange(sum, DType::I32, 4)));
        assert!(!Mailboxes::takes(&exchange(CollectiveOp::AllReduce(Combine::Max), DType::F32, 4)));
        assert!(!Mailboxes::takes(&exchange(CollectiveOp::AllGather, DType::F32, 4)));
    }
}
