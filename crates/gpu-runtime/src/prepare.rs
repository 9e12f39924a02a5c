//! A call of a program prepared for one set of sizes: the addresses of its buffers within the arena and, where no step
//! depends on data, every launch with its grid and arguments. A call then only writes addresses into the arguments.

use std::ops::Range;

use gpu_codegen::Param;
use ir_core::{DType, EntityId};
use kernel_ir::runtime::{Node, RunError, Sizes};
use kernel_ir::{BufId, LiveRange, Program, Storage};

use crate::machine::bytes_of;
use crate::memory::span;
use crate::plan::{DeviceStep, Launchable, Op, PlannedStep, Runnable};
use crate::{Arguments, Driver, GpuError, Grid, Map, Work};

/// The largest grid in x that every device supports.
const MAX_BLOCKS: i64 = i32::MAX as i64;
/// Loops with more launches than this are executed iteration by iteration, not unrolled into the list.
const MAX_CALLS: usize = 1 << 14;
/// Number of consecutive launches that are launched early: one that gains by it and those right before it. A launch begins
/// when all blocks of the one before have begun. On an H200 a call of 400 launches of which none gains takes 0.2 ms longer
/// where all are early.
const EARLY_LAUNCHES: u32 = 4;
/// The alignment of scratch buffers.
pub(crate) const SCRATCH_GRAIN: u64 = 256;

/// A call prepared for one set of sizes.
pub(crate) struct Prepared {
    pub(crate) sizes: Sizes,
    pub(crate) inputs: Vec<Layout>,
    /// Outputs of known size: the buffer's number and its bytes.
    pub(crate) outputs: Vec<(usize, u64)>,
    /// The offset of each buffer in the arena.
    pub(crate) arena: Vec<(usize, u64)>,
    /// Bytes of the arena, including scratch.
    pub(crate) arena_bytes: u64,
    /// How many of them are for scratch alone.
    pub(crate) scratch_bytes: u64,
    /// All launches, or the reason why they cannot be listed.
    pub(crate) list: Result<List, String>,
}

/// The evaluated layout of a tensor.
pub(crate) struct Layout {
    /// The number of its root buffer.
    pub(crate) root: usize,
    pub(crate) dtype: DType,
    pub(crate) extent: Vec<i64>,
    pub(crate) strides: Vec<i64>,
    /// The byte offset of its first element in the buffer.
    pub(crate) at: u64,
    pub(crate) bytes: u64,
}

/// All launches of a call.
pub(crate) struct List {
    pub(crate) calls: Vec<Call>,
    /// The arguments of all launches.
    pub(crate) words: Vec<u64>,
    /// Words with addresses that are fixed as long as arena and constants are.
    pub(crate) fixed: Vec<(u32, Place)>,
    /// Words with addresses of inputs and outputs: (word, buffer).
    pub(crate) moving: Vec<(u32, u32)>,
    /// The tensors that the call returns.
    pub(crate) results: Vec<Layout>,
    /// The values of the symbols, for library calls.
    pub(crate) values: Vec<Sizes>,
}

/// The target of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// A root buffer.
    Root(u32),
    /// A scratch buffer, by its offset in the arena.
    Scratch(u64),
    /// The block counters.
    Tickets,
    /// The fault record.
    Fault,
}

/// Memory of a program that all calls share.
#[derive(Clone, Copy)]
pub(crate) struct ProgramMemory {
    /// A dummy address for tensors without elements; kernels never access it.
    pub(crate) dummy: u64,
    /// The block counters, all 0 between launches.
    pub(crate) tickets: u64,
    /// The fault record, where there are index checks.
    pub(crate) fault: u64,
}

/// One launch.
pub(crate) struct Call {
    /// Number of the device step.
    pub(crate) step: u32,
    /// The index of the part within the step's candidate.
    pub(crate) part: u32,
    pub(crate) what: CallKind,
}

pub(crate) enum CallKind {
    Kernel {
        function: usize,
        grid: Grid,
        words: Range<u32>,
        maps: Vec<Map>,
        /// Whether it may begin before the preceding launch, also a kernel, has ended.
        early: bool,
    },
    Library {
        /// The offsets of its scratch buffers in the arena.
        scratch: Vec<u64>,
        /// The index of its symbol values.
        values: u32,
        /// Whether the next launch may begin before it has ended.
        overlaps: bool,
    },
}

/// Why a program has no list of launches.
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
        let arena = program.plan.lives.iter().zip(&offsets).map(|(l, at)| (l.buf.index(), *at)).collect();
        let inputs = program.inputs.iter().map(|i| Layout::of_buffer(program, i.buf, &sizes));
        let inputs = inputs.collect::<Result<_, GpuError>>()?;
        let fixed = |id: &BufId| program.buffers[*id].storage == Storage::Output && !program.is_dynamic(*id);
        let outputs = program.buffers.ids().filter(fixed);
        let outputs = outputs.map(|id| Ok((id.index(), bytes_of(program, id, &sizes)?)));
        let outputs = outputs.collect::<Result<_, GpuError>>()?;
        let gaps = Gaps::new(program, &offsets, &sizes)?;
        let mut lister = ListBuilder {
            program,
            device_steps,
            sizes: sizes.clone(),
            list: List::empty(),
            gaps,
            at: 0,
            end: 0,
        };
        let listed = steps.iter().enumerate().try_for_each(|(n, step)| {
            lister.at = n as u32;
            lister.add(step)
        });
        let list = match listed.and_then(|()| lister.results()) {
            Ok(()) => {
                lister.list.mark_early_launches();
                Ok(lister.list)
            }
            Err(Stop::Dynamic(why)) => Err(why),
            Err(Stop::Error(e)) => return Err(e),
        };
        let arena_bytes = if list.is_ok() { lister.end.max(bytes) } else { bytes };
        Ok(Prepared { sizes, inputs, outputs, arena, arena_bytes, scratch_bytes: arena_bytes - bytes, list })
    }
}

/// The arena's memory that no buffer has during a step: a step's scratch takes it before the arena grows.
struct Gaps<'a> {
    program: &'a Program,
    /// The bytes of each live range, from its first to behind its last.
    taken: Vec<Range<u64>>,
}

impl<'a> Gaps<'a> {
    /// For buffers at these offsets.
    fn new(program: &'a Program, offsets: &[u64], sizes: &Sizes) -> Result<Gaps<'a>, GpuError> {
        let lives = program.plan.lives.iter().zip(offsets);
        let taken = lives.map(|(live, &at)| Ok(at..at + bytes_of(program, live.buf, sizes)?));
        Ok(Gaps { program, taken: taken.collect::<Result<_, GpuError>>()? })
    }

    /// The offset of a buffer whose memory no other buffer has during a step.
    fn alone(&self, step: u32, buf: BufId) -> Option<u64> {
        let lives = self.program.plan.lives.iter().zip(&self.taken);
        let mut live = lives.filter(|(l, _)| (l.first..=l.last).contains(&step));
        let (_, own) = live.clone().find(|(l, _)| l.buf == buf)?;
        let apart = |(l, other): (&LiveRange, &Range<u64>)| {
            l.buf == buf || other.end <= own.start || own.end <= other.start
        };
        live.all(apart).then_some(own.start)
    }

    /// The lowest offset of so many bytes that are free during a step of the program.
    fn place(&self, step: u32, bytes: u64) -> u64 {
        let lives = self.program.plan.lives.iter().zip(&self.taken);
        let mut taken: Vec<&Range<u64>> =
            lives.filter(|(l, _)| (l.first..=l.last).contains(&step)).map(|(_, range)| range).collect();
        taken.sort_unstable_by_key(|range| range.start);
        let mut at = 0;
        for range in taken {
            if at + bytes <= range.start {
                break;
            }
            at = at.max(range.end.next_multiple_of(SCRATCH_GRAIN));
        }
        at
    }
}

impl Layout {
    pub(crate) fn of_buffer(program: &Program, buf: BufId, sizes: &Sizes) -> Result<Layout, GpuError> {
        let buffer = &program.buffers[buf];
        let (extent, strides) = (sizes.all(&buffer.sizes)?, sizes.all(&buffer.strides)?);
        let bytes = span(&extent, &strides) * buffer.dtype.size() as u64;
        Ok(Layout { root: program.root(buf).index(), dtype: buffer.dtype, extent, strides, at: 0, bytes })
    }

    /// The layout of an output as the caller gets it.
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

    /// Marks the launches before a kernel that gains from an early launch as early too, as far as each directly follows a
    /// kernel or a call that lets launches overlap.
    fn mark_early_launches(&mut self) {
        let mut lead = 0;
        let mut rest = &mut self.calls[..];
        while let [before @ .., call] = rest {
            let behind = before.last().is_some_and(|call| match call.what {
                CallKind::Kernel { .. } => true,
                CallKind::Library { overlaps, .. } => overlaps,
            });
            match &mut call.what {
                CallKind::Kernel { early, .. } => {
                    lead = if *early { EARLY_LAUNCHES } else { lead };
                    *early = behind && lead > 0;
                    lead = lead.saturating_sub(1);
                }
                CallKind::Library { overlaps: true, .. } => lead = lead.saturating_sub(1),
                CallKind::Library { .. } => lead = 0,
            }
            rest = before;
        }
    }

    /// Writes the fixed addresses into the arguments.
    pub(crate) fn fix(&mut self, addresses: &[u64], arena: u64, own: ProgramMemory) {
        for &(word, place) in &self.fixed {
            self.words[word as usize] = match place {
                Place::Root(root) => addresses[root as usize],
                Place::Scratch(at) => arena + at,
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

    /// Enqueues launch `n` on the stream.
    ///
    /// # Safety
    /// The addresses in the arguments and in `addresses` are memory as large as the buffers, and the arena as the call was
    /// prepared for.
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
                // SAFETY: the caller guarantees the addresses; the arguments are in the order of the kernel's parameters.
                unsafe {
                    match *early && !on.apart {
                        true => on.driver.launch_overlapped(function, *grid, arguments),
                        false => on.driver.launch(function, *grid, arguments),
                    }
                }
            }
            CallKind::Library { scratch, values, .. } => {
                let step = &on.steps[call.step as usize];
                let Some(Runnable::Library(library)) =
                    step.candidate().and_then(|w| w.parts.get(call.part as usize))
                else {
                    return Err(GpuError::Malformed(format!("step `{}` has no such part", step.name)));
                };
                let scratch: Vec<u64> = scratch.iter().map(|at| on.arena + at).collect();
                let sizes = &self.values[*values as usize];
                let work = Work {
                    address: &|buf| on.addresses[on.program.root(buf).index()],
                    size: &|e| Ok(sizes.eval(e)?),
                    scratch: &scratch,
                };
                // SAFETY: the caller guarantees that the addresses are memory as large as the step's buffers and scratch.
                unsafe { library.run(&work) }
            }
        }
    }
}

/// The context of the launches of a list.
pub(crate) struct LaunchContext<'a, D: Driver> {
    pub(crate) driver: &'a D,
    pub(crate) program: &'a Program,
    pub(crate) steps: &'a [DeviceStep],
    pub(crate) functions: &'a [D::Function],
    pub(crate) addresses: &'a [u64],
    /// Address of the arena.
    pub(crate) arena: u64,
    /// Whether launches must not overlap, because they are timed.
    pub(crate) apart: bool,
}

/// Builds a list of launches.
struct ListBuilder<'a> {
    program: &'a Program,
    device_steps: &'a [DeviceStep],
    sizes: Sizes,
    list: List,
    gaps: Gaps<'a>,
    /// The number of the program's step that is listed.
    at: u32,
    /// The end of all scratch in the arena.
    end: u64,
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
        let (mut places, mut bytes) = (Vec::with_capacity(candidate.scratch.len()), 0u64);
        let in_place = candidate.in_place.and_then(|buf| self.gaps.alone(self.at, buf));
        for (n, scratch) in candidate.scratch.iter().enumerate() {
            places.push(bytes);
            if n == 0 && in_place.is_some() {
                continue;
            }
            bytes += (self.sizes.eval(scratch)?.max(0) as u64).next_multiple_of(SCRATCH_GRAIN);
        }
        if bytes > 0 {
            // Steps run one after another, so that later ones have the same memory.
            let start = self.gaps.place(self.at, bytes);
            places.iter_mut().for_each(|place| *place += start);
            self.end = self.end.max(start + bytes);
        }
        if let (Some(start), Some(first)) = (in_place, places.first_mut()) {
            *first = start;
        }
        for (part, runnable) in candidate.parts.iter().enumerate() {
            let what = match runnable {
                Runnable::Kernel(kernel) => self.kernel(kernel, &places)?,
                Runnable::Library(call) => Some(self.library(&places, call.lets_launches_overlap())),
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
                Param::Number(n) | Param::Slice(n) => number = n as u64,
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

    /// Records that a word is the address of a buffer.
    fn buffer(&mut self, word: u32, buf: BufId) {
        let root = self.program.root(buf);
        match self.program.buffers[root].storage {
            Storage::Input(_) | Storage::Output => self.list.moving.push((word, root.index() as u32)),
            _ => self.list.fixed.push((word, Place::Root(root.index() as u32))),
        }
    }

    fn library(&mut self, scratch: &[u64], overlaps: bool) -> CallKind {
        if self.list.values.last() != Some(&self.sizes) {
            self.list.values.push(self.sizes.clone());
        }
        let values = self.list.values.len() as u32 - 1;
        CallKind::Library { scratch: scratch.to_vec(), values, overlaps }
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

/// The grid of a launch; `None` where nothing is launched.
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
    use kernel_ir::ArenaPlan;

    use super::*;

    /// Test notation: `c` is a kernel that gains from an early launch, `k` another kernel, `l` a library call, `x` one that lets
    /// launches overlap.
    fn early(kinds: &str) -> String {
        let call = |kind: char| {
            let grid = Grid { blocks: [1; 3], threads: 32, shared: 0 };
            let kernel = |early| CallKind::Kernel { function: 0, grid, words: 0..0, maps: Vec::new(), early };
            let what = match kind {
                'l' | 'x' => CallKind::Library { scratch: Vec::new(), values: 0, overlaps: kind == 'x' },
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

    /// Scratch of so many bytes in each step, with buffers of 1024 bytes at 0 in the steps 0 and 1, at 1024 in the steps 1 and 2,
    /// and at 2048 in step 1.
    #[test]
    fn scratch_lies_where_no_buffer_lives() {
        let live = |n: usize, first, last| LiveRange { buf: BufId::from_index(n), first, last };
        let lives = vec![live(0, 0, 1), live(1, 1, 2), live(2, 1, 1)];
        let program = Program { plan: ArenaPlan { lives, ..ArenaPlan::default() }, ..Program::default() };
        let gaps = Gaps { program: &program, taken: vec![0..1024, 1024..2048, 2048..3072] };
        assert_eq!([0, 1, 2, 3].map(|step| gaps.place(step, 512)), [1024, 3072, 0, 0]);
        assert_eq!([0, 1, 2, 3].map(|step| gaps.place(step, 4096)), [1024, 3072, 2048, 0]);
        let odd = Gaps { program: &program, taken: vec![0..1000, 1500..2048, 2048..3072] };
        assert_eq!(odd.place(1, 476), 1024, "at a multiple of the alignment");
        assert_eq!(odd.place(1, 477), 3072, "between 1024 and 1500 it does not fit");
        let buf = BufId::from_index;
        assert_eq!([0, 1, 2].map(|step| gaps.alone(step, buf(1))), [None, Some(1024), Some(1024)]);
        // Where the second buffer takes over the memory of the first, both are there in the step that does so.
        let taken_over = Gaps { program: &program, taken: vec![0..1024, 0..1024, 2048..3072] };
        assert_eq!([0, 1].map(|step| taken_over.alone(step, buf(0))), [Some(0), None]);
        assert_eq!([1, 2].map(|step| taken_over.alone(step, buf(1))), [None, Some(0)]);
    }

    #[test]
    fn early_launches_lead_up_to_kernels_that_gain() {
        assert_eq!(early("kkkkkk"), "......");
        assert_eq!(early("kkkkkkckk"), "...eeee..");
        assert_eq!(early("ckkclkcc"), ".eee..ee");
        assert_eq!(early("c"), ".");
        assert_eq!(early("lclkckkkkkkc"), "....e...eeee");
    }
}
