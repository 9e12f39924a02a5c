//! A call of a program for one set of sizes, prepared: where its buffers lie, and, where no step depends on data, every
//! launch with its grid and its arguments. What is left for a call is to write addresses into the arguments.

use std::ops::Range;

use gpu_codegen::Param;
use ir_core::{DType, EntityId};
use kernel_ir::runtime::{Node, RunError, Sizes};
use kernel_ir::{BufId, Program, Storage};

use crate::machine::bytes_of;
use crate::memory::span;
use crate::plan::{DeviceStep, Launchable, Op, PlannedStep, Runnable};
use crate::{Arguments, Driver, GpuError, Grid, Map, Work};

/// The largest grid that every device takes in x.
const MAX_BLOCKS: i64 = i32::MAX as i64;
/// A loop that is longer than this is run turn by turn and not laid out.
const MAX_CALLS: usize = 1 << 14;
/// Launches that begin early: one that gains by it and those right before it. It begins when all blocks of the one before have
/// begun. On an H200 a call of 400 launches of which none gains takes 0.2 ms longer where all begin early.
const EARLY_LAUNCHES: u32 = 4;
/// What scratch buffers are aligned to.
const SCRATCH_GRAIN: u64 = 256;

/// One set of sizes.
pub(crate) struct Prepared {
    pub(crate) sizes: Sizes,
    pub(crate) inputs: Vec<Layout>,
    /// Outputs of known size: number of the buffer and bytes.
    pub(crate) outputs: Vec<(usize, u64)>,
    /// Offset of each buffer of the arena.
    pub(crate) arena: Vec<(usize, u64)>,
    /// Bytes of the arena, scratch included.
    pub(crate) arena_bytes: u64,
    /// Where scratch begins in the arena.
    pub(crate) scratch: u64,
    /// Every launch, or why there is no such list.
    pub(crate) list: Result<List, String>,
}

/// How a tensor lies in memory, in numbers.
pub(crate) struct Layout {
    /// Its buffer.
    pub(crate) root: usize,
    pub(crate) dtype: DType,
    pub(crate) extent: Vec<i64>,
    pub(crate) strides: Vec<i64>,
    /// Bytes before its first element within the buffer.
    pub(crate) at: u64,
    pub(crate) bytes: u64,
}

/// All launches of a call.
pub(crate) struct List {
    pub(crate) calls: Vec<Call>,
    /// The arguments of all launches.
    pub(crate) words: Vec<u64>,
    /// Words that hold addresses which stay while arena and constants do.
    pub(crate) fixed: Vec<(u32, Place)>,
    /// Words that hold addresses of inputs and outputs: word, buffer.
    pub(crate) moving: Vec<(u32, u32)>,
    /// Tensors that the call returns.
    pub(crate) results: Vec<Layout>,
    /// Values of the symbols, for library calls.
    pub(crate) values: Vec<Sizes>,
}

/// What an address is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// A buffer that is no view.
    Root(u32),
    /// A scratch buffer, by offset.
    Scratch(u64),
    /// The words in which blocks are counted.
    Tickets,
    /// The record of an index that fails its check.
    Fault,
}

/// Memory of a program that every call uses.
#[derive(Clone, Copy)]
pub(crate) struct ProgramMemory {
    /// Where nothing lies: an address that may be passed and is never followed.
    pub(crate) dummy: u64,
    /// The words in which blocks of a launch are counted, all 0 between launches.
    pub(crate) tickets: u64,
    /// The record of an index that fails its check, where there are checks.
    pub(crate) fault: u64,
}

/// One launch.
pub(crate) struct Call {
    /// Number of the device step.
    pub(crate) step: u32,
    /// Number of the part within the step's way.
    pub(crate) part: u32,
    pub(crate) what: CallKind,
}

pub(crate) enum CallKind {
    Kernel {
        function: usize,
        grid: Grid,
        words: Range<u32>,
        maps: Vec<Map>,
        /// Whether it may begin before the launch before it, a kernel too, has ended.
        early: bool,
    },
    /// Offsets of its scratch, number of its values.
    Library { scratch: Vec<u64>, values: u32 },
}

/// Why a program has no list.
enum Stop {
    Error(GpuError),
    Dynamic(String),
}

impl From<RunError> for Stop {
    fn from(e: RunError) -> Stop {
        Stop::Error(e.into())
    }
}

impl From<GpuError> for Stop {
    fn from(e: GpuError) -> Stop {
        Stop::Error(e)
    }
}

impl Prepared {
    pub(crate) fn new(
        program: &Program,
        device_steps: &[DeviceStep],
        steps: &[PlannedStep],
        sizes: Sizes,
    ) -> Result<Prepared, GpuError> {
        let (offsets, bytes) = program
            .plan
            .place(program, &|id| sizes.get(id))
            .map_err(|e| GpuError::Argument(e.to_string()))?;
        let arena = program.plan.lives.iter().zip(offsets).map(|(l, at)| (l.buf.index(), at)).collect();
        let inputs = program.inputs.iter().map(|i| Layout::of_buffer(program, i.buf, &sizes));
        let inputs = inputs.collect::<Result<_, GpuError>>()?;
        let fixed = |id: &BufId| program.buffers[*id].storage == Storage::Output && !program.is_dynamic(*id);
        let outputs = program.buffers.ids().filter(fixed);
        let outputs = outputs.map(|id| Ok((id.index(), bytes_of(program, id, &sizes)?)));
        let outputs = outputs.collect::<Result<_, GpuError>>()?;
        let scratch = bytes.next_multiple_of(SCRATCH_GRAIN);
        let mut lister =
            ListBuilder { program, device_steps, sizes: sizes.clone(), list: List::empty(), scratch: 0 };
        let list = match steps.iter().try_for_each(|s| lister.add(s)).and_then(|()| lister.results()) {
            Ok(()) => {
                lister.list.mark_early_launches();
                Ok(lister.list)
            }
            Err(Stop::Dynamic(why)) => Err(why),
            Err(Stop::Error(e)) => return Err(e),
        };
        let scratch_bytes = if list.is_ok() { lister.scratch } else { 0 };
        let arena_bytes = if scratch_bytes > 0 { scratch + scratch_bytes } else { bytes };
        Ok(Prepared { sizes, inputs, outputs, arena, arena_bytes, scratch, list })
    }
}

impl Layout {
    pub(crate) fn of_buffer(program: &Program, buf: BufId, sizes: &Sizes) -> Result<Layout, GpuError> {
        let buffer = &program.buffers[buf];
        let (extent, strides) = (sizes.all(&buffer.sizes)?, sizes.all(&buffer.strides)?);
        let bytes = span(&extent, &strides) * buffer.dtype.size() as u64;
        Ok(Layout { root: program.root(buf).index(), dtype: buffer.dtype, extent, strides, at: 0, bytes })
    }

    /// An output as it is returned.
    pub(crate) fn of_output(
        program: &Program,
        spec: &kernel_ir::OutputSpec,
        sizes: &Sizes,
    ) -> Result<Layout, GpuError> {
        let dtype = program.buffers[spec.buf].dtype;
        let width = dtype.size() as u64;
        let (extent, strides) = (sizes.all(&spec.sizes)?, sizes.all(&spec.strides)?);
        let at = sizes.eval(&spec.offset)? as u64 * width;
        let bytes = span(&extent, &strides) * width;
        Ok(Layout { root: program.root(spec.buf).index(), dtype, extent, strides, at, bytes })
    }
}

impl List {
    fn empty() -> List {
        List {
            calls: Vec::new(),
            words: Vec::new(),
            fixed: Vec::new(),
            moving: Vec::new(),
            results: Vec::new(),
            values: Vec::new(),
        }
    }

    /// Lets the launches before a kernel that gains by an early beginning begin early too, and none that follows no kernel.
    fn mark_early_launches(&mut self) {
        let mut lead = 0;
        let mut rest = &mut self.calls[..];
        while let [before @ .., call] = rest {
            let behind = matches!(before.last(), Some(Call { what: CallKind::Kernel { .. }, .. }));
            match &mut call.what {
                CallKind::Kernel { early, .. } => {
                    lead = if *early { EARLY_LAUNCHES } else { lead };
                    *early = behind && lead > 0;
                    lead = lead.saturating_sub(1);
                }
                CallKind::Library { .. } => lead = 0,
            }
            rest = before;
        }
    }

    /// Writes the addresses that stay into the arguments.
    pub(crate) fn fix(&mut self, addresses: &[u64], scratch: u64, own: ProgramMemory) {
        for &(word, place) in &self.fixed {
            self.words[word as usize] = match place {
                Place::Root(root) => addresses[root as usize],
                Place::Scratch(at) => scratch + at,
                Place::Tickets => own.tickets,
                Place::Fault => own.fault,
            };
        }
    }

    /// Writes the addresses of this call into the arguments.
    pub(crate) fn patch(&mut self, addresses: &[u64]) {
        for &(word, root) in &self.moving {
            self.words[word as usize] = addresses[root as usize];
        }
    }

    /// Puts launch `n` on the stream.
    ///
    /// # Safety
    /// The arguments hold addresses of memory that is as large as the buffers; so do `addresses` and `scratch`.
    pub(crate) unsafe fn launch<D: Driver>(
        &self,
        n: usize,
        on: &LaunchContext<'_, D>,
    ) -> Result<(), GpuError> {
        let call = &self.calls[n];
        match &call.what {
            CallKind::Kernel { function, grid, words, maps, early } => {
                let words = &self.words[words.start as usize..words.end as usize];
                let arguments = Arguments { words, maps };
                let function = &on.functions[*function];
                // SAFETY: the caller's promise; the arguments are in the order of the kernel's parameters.
                unsafe {
                    match *early && !on.apart {
                        true => on.driver.launch_overlapped(function, *grid, arguments),
                        false => on.driver.launch(function, *grid, arguments),
                    }
                }
            }
            CallKind::Library { scratch, values } => {
                let step = &on.steps[call.step as usize];
                let Some(Runnable::Library(library)) =
                    step.candidate().and_then(|w| w.parts.get(call.part as usize))
                else {
                    return Err(GpuError::Malformed(format!("step `{}` has no such part", step.name)));
                };
                let scratch: Vec<u64> = scratch.iter().map(|at| on.scratch + at).collect();
                let sizes = &self.values[*values as usize];
                let work = Work {
                    address: &|buf| on.addresses[on.program.root(buf).index()],
                    size: &|e| Ok(sizes.eval(e)?),
                    scratch: &scratch,
                };
                // SAFETY: the caller's promise.
                unsafe { library.run(&work) }
            }
        }
    }
}

/// What launches of a list need.
pub(crate) struct LaunchContext<'a, D: Driver> {
    pub(crate) driver: &'a D,
    pub(crate) program: &'a Program,
    pub(crate) steps: &'a [DeviceStep],
    pub(crate) functions: &'a [D::Function],
    pub(crate) addresses: &'a [u64],
    pub(crate) scratch: u64,
    /// Whether each launch begins when the one before has ended: they are timed.
    pub(crate) apart: bool,
}

/// Makes a list.
struct ListBuilder<'a> {
    program: &'a Program,
    device_steps: &'a [DeviceStep],
    sizes: Sizes,
    list: List,
    /// The most scratch that a step needs. All steps share it: they run one after another.
    scratch: u64,
}

impl ListBuilder<'_> {
    fn add(&mut self, planned: &PlannedStep) -> Result<(), Stop> {
        if let Some(&buffer) = planned.dynamic.first() {
            let name = &self.program.buffers[buffer].name;
            return Err(Stop::Dynamic(format!("the size of `{name}` depends on data")));
        }
        let stop = |what: String| Err(Stop::Dynamic(what));
        let name = &planned.name;
        match &planned.node {
            Node::Op(Op::Device(n)) => self.device(*n),
            Node::Several(list) => list.iter().try_for_each(|p| self.add(p)),
            Node::For { symbol, count, body } => {
                for iteration in 0..self.sizes.eval(count)? {
                    self.sizes.set(*symbol, iteration);
                    body.iter().try_for_each(|p| self.add(p))?;
                }
                Ok(())
            }
            Node::Op(Op::Host(_)) => stop("a matrix routine runs on the host".into()),
            Node::Bind { .. } => stop(format!("step `{name}` reads a size from memory")),
            Node::Assert { .. } => stop(format!("step `{name}` checks a condition on data")),
            Node::Cond { .. } => stop("a branch depends on data".into()),
            Node::While { .. } => stop("the turns of a loop depend on data".into()),
        }
    }

    fn device(&mut self, n: usize) -> Result<(), Stop> {
        let step = &self.device_steps[n];
        let candidate =
            step.candidate().ok_or_else(|| GpuError::Malformed("a step without a candidate".into()))?;
        let (mut places, mut end) = (Vec::with_capacity(candidate.scratch.len()), 0u64);
        for bytes in &candidate.scratch {
            places.push(end);
            end += (self.sizes.eval(bytes)?.max(0) as u64).next_multiple_of(SCRATCH_GRAIN);
        }
        self.scratch = self.scratch.max(end);
        for (part, runnable) in candidate.parts.iter().enumerate() {
            let what = match runnable {
                Runnable::Kernel(kernel) => self.kernel(kernel, &places)?,
                Runnable::Library(_) => Some(self.library(&places)),
            };
            if let Some(what) = what {
                self.list.calls.push(Call { step: n as u32, part: part as u32, what });
            }
        }
        if self.list.calls.len() > MAX_CALLS {
            return Err(Stop::Dynamic(format!("a call has more than {MAX_CALLS} launches")));
        }
        Ok(())
    }

    fn kernel(&mut self, kernel: &Launchable, scratch: &[u64]) -> Result<Option<CallKind>, Stop> {
        let Some(grid) = grid(kernel, &self.sizes)? else { return Ok(None) };
        let start = self.list.words.len() as u32;
        for param in &kernel.params {
            let word = self.list.words.len() as u32;
            let mut number = 0;
            match *param {
                Param::Symbol(s) => number = self.sizes.get(s).unwrap_or_default() as u64,
                Param::Scratch(n) => {
                    let at = scratch.get(n as usize).copied();
                    let at = at.ok_or_else(|| GpuError::Malformed("a kernel without its scratch".into()))?;
                    self.list.fixed.push((word, Place::Scratch(at)));
                }
                Param::Tickets => self.list.fixed.push((word, Place::Tickets)),
                Param::Fault => self.list.fixed.push((word, Place::Fault)),
                Param::FirstCheck => number = u64::from(kernel.first_check),
                Param::Buffer(buf) => self.buffer(word, buf),
                Param::Map(n) => {
                    let map = kernel.maps.get(n as usize);
                    let map = map.ok_or_else(|| GpuError::Malformed("a kernel without its map".into()))?;
                    self.buffer(word, map.buf);
                }
            }
            self.list.words.push(number);
        }
        let words = start..self.list.words.len() as u32;
        let maps = Map::of(&kernel.params, &kernel.maps, &|e| Ok(self.sizes.eval(e)?))?;
        Ok(Some(CallKind::Kernel { function: kernel.function, grid, words, maps, early: kernel.early }))
    }

    /// Notes that a word is the address of a buffer.
    fn buffer(&mut self, word: u32, buf: BufId) {
        let root = self.program.root(buf);
        match self.program.buffers[root].storage {
            Storage::Input(_) | Storage::Output => self.list.moving.push((word, root.index() as u32)),
            _ => self.list.fixed.push((word, Place::Root(root.index() as u32))),
        }
    }

    fn library(&mut self, scratch: &[u64]) -> CallKind {
        if self.list.values.last() != Some(&self.sizes) {
            self.list.values.push(self.sizes.clone());
        }
        CallKind::Library { scratch: scratch.to_vec(), values: self.list.values.len() as u32 - 1 }
    }

    fn results(&mut self) -> Result<(), Stop> {
        for spec in &self.program.outputs {
            let layout = Layout::of_output(self.program, spec, &self.sizes)?;
            if self.program.is_dynamic(BufId::from_index(layout.root)) {
                return Err(Stop::Dynamic(format!("the size of `{}` depends on data", spec.name)));
            }
            self.list.results.push(layout);
        }
        Ok(())
    }
}

/// The grid of a launch; `None` where nothing is to be launched.
pub(crate) fn grid(kernel: &Launchable, sizes: &Sizes) -> Result<Option<Grid>, GpuError> {
    let mut blocks = [0u32; 3];
    for (n, e) in blocks.iter_mut().zip(&kernel.launch.blocks) {
        *n = sizes.eval(e)?.clamp(0, MAX_BLOCKS) as u32;
    }
    let grid = Grid { blocks, threads: kernel.launch.threads, shared: kernel.launch.shared };
    Ok((!blocks.contains(&0)).then_some(grid))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `c`: a kernel that asks for constants early, `k`: another one, `l`: a library's call.
    fn early(kinds: &str) -> String {
        let call = |kind: char| {
            let grid = Grid { blocks: [1; 3], threads: 32, shared: 0 };
            let kernel = |early| CallKind::Kernel { function: 0, grid, words: 0..0, maps: Vec::new(), early };
            let what = match kind {
                'l' => CallKind::Library { scratch: Vec::new(), values: 0 },
                kind => kernel(kind == 'c'),
            };
            Call { step: 0, part: 0, what }
        };
        let mut list = List { calls: kinds.chars().map(call).collect(), ..List::empty() };
        list.mark_early_launches();
        let shown = |c: &Call| match c.what {
            CallKind::Kernel { early: true, .. } => 'e',
            _ => '.',
        };
        list.calls.iter().map(shown).collect()
    }

    #[test]
    fn kernels_begin_early_where_one_gains_by_it_and_never_behind_something_else() {
        assert_eq!(early("kkkkkk"), "......");
        assert_eq!(early("kkkkkkckk"), "...eeee..");
        assert_eq!(early("ckkclkcc"), ".eee..ee");
        assert_eq!(early("c"), ".");
        assert_eq!(early("lclkckkkkkkc"), "....e...eeee");
    }
}
