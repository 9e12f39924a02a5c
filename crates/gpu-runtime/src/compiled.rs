//! A program on a device: its kernels, its bound constants, and calls of it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ir_core::EntityId;
use kernel_ir::runtime::{Binder, Dynamic, Exec, Machine, Mismatch, SizeSource, Sizes};
use kernel_ir::{BufId, Program, Storage};
use plugin_sdk::{OwnedTensor, Stream, TensorView};

use crate::arguments::{self, Source, source};
use crate::bind::Bound;
use crate::exchange::{self, SharedGroups};
use crate::faults::Faults;
use crate::graph::{CallTensors, MAX_RECORDED, Recorded};
use crate::machine::Running;
use crate::overlap::Roles;
use crate::plan::{DeviceStep, PlannedStep, Planner, widened};
use crate::prepare::{LaunchContext, Layout, Prepared, ProgramMemory};
use crate::profile::{self, StepTime};
use crate::transfer::{owned, upload};
use crate::{Block, DeviceMemory, Driver, GpuError, Settings, Timed, autotune, found};

/// Maximum number of size sets that stay prepared; the least recently used are dropped.
const MAX_PREPARED: usize = 64;

/// A compiled program. Calls from several threads run one after another: they share one stream.
pub struct Compiled<D: Driver> {
    memory: Arc<DeviceMemory<D>>,
    pub(crate) program: Program,
    settings: Settings,
    /// Whether calls are recorded.
    records: bool,
    pub(crate) device_steps: Vec<DeviceStep>,
    /// The entry and the text of each function.
    pub(crate) texts: Vec<(String, String)>,
    functions: Vec<D::Function>,
    init: Vec<PlannedStep>,
    steps: Vec<PlannedStep>,
    dynamic: Dynamic,
    binder: Binder,
    bound: Option<Bound<D>>,
    dummy: Block<D>,
    tickets: Block<D>,
    /// The fault record, where kernels check indices.
    faults: Option<Arc<Faults<D>>>,
    groups: Arc<SharedGroups>,
    state: Mutex<State<D>>,
}

/// State that calls leave for later ones.
struct State<D: Driver> {
    /// The most recently used set of sizes comes first.
    entries: Vec<Entry<D>>,
    /// The arena, which grows with the largest call. One that the host's allocator lends goes back after each call that is not recorded.
    arena: Option<Block<D>>,
    /// The address of the last arena.
    arena_address: u64,
    /// A counter of changes of the arena's address and of the constants.
    generation: u64,
}

impl<D: Driver> State<D> {
    /// The arena is at this address now; whether it was elsewhere.
    fn move_arena(&mut self, address: u64) -> bool {
        let moved = self.arena_address != address;
        if moved {
            self.arena_address = address;
            self.generation += 1;
        }
        moved
    }
}

/// The prepared calls of one set of sizes.
pub(crate) struct Entry<D: Driver> {
    pub(crate) prepared: Prepared,
    /// Address of each buffer's memory in the last call; views have none.
    addresses: Vec<u64>,
    /// The generation in which the fixed addresses were written.
    generation: u64,
    calls: u64,
    recorded: Recorded<D>,
    /// The total time of each launch in seconds.
    times: Vec<f64>,
    timed: u32,
}

/// The immutable parts of a program, borrowed during a call.
pub(crate) struct Parts<'a, D: Driver> {
    pub(crate) memory: &'a Arc<DeviceMemory<D>>,
    pub(crate) driver: &'a D,
    pub(crate) program: &'a Program,
    pub(crate) steps: &'a [DeviceStep],
    pub(crate) functions: &'a [D::Function],
    /// A dummy address for tensors without elements; kernels never access it.
    pub(crate) dummy: u64,
}

impl<'a, D: Driver> Parts<'a, D> {
    pub(crate) fn on<'b>(&'b self, addresses: &'b [u64], arena: u64) -> LaunchContext<'b, D> {
        LaunchContext {
            driver: self.driver,
            program: self.program,
            steps: self.steps,
            functions: self.functions,
            addresses,
            arena,
            apart: false,
        }
    }
}

/// Memory for [`gpu_codegen::Param::Tickets`], zeroed. Every kernel leaves zeros and the device's work is in order, so one
/// allocation serves all calls of a program.
pub(crate) fn tickets<D: Driver>(memory: &Arc<DeviceMemory<D>>) -> Result<Block<D>, GpuError> {
    let block = memory.block(4 * u64::from(gpu_codegen::TICKETS))?;
    // SAFETY: the block is new and has this many words.
    unsafe { memory.driver().fill(block.address(), 0, u64::from(gpu_codegen::TICKETS))? };
    Ok(block)
}

type Blocks<D> = Vec<(usize, Arc<Block<D>>)>;

impl<D: Driver> Compiled<D> {
    /// Generates and compiles every kernel of a program in default mode, for a device with a memory pool of its own.
    ///
    /// # Errors
    /// The errors of [`Compiled::with`].
    pub fn new(driver: Arc<D>, program: Program) -> Result<Compiled<D>, GpuError> {
        Compiled::with(&DeviceMemory::new(driver), program, Settings::default())
    }

    /// Generates and compiles every kernel of a program.
    ///
    /// # Errors
    /// A step has no kernel, a kernel does not compile, there is no memory, or the device is lost.
    pub fn with(
        memory: &Arc<DeviceMemory<D>>,
        mut program: Program,
        settings: Settings,
    ) -> Result<Compiled<D>, GpuError> {
        kernel_ir::verify(&program).map_err(|e| GpuError::Malformed(e.to_string()))?;
        let driver = &**memory.driver();
        let target = settings.target(driver.target());
        crate::adapt(&mut program, &target);
        let roles = Roles::of(&program);
        let groups = Arc::new(SharedGroups::new(driver, &roles)?);
        let library = |step: &kernel_ir::Step| {
            let exchange = exchange::candidate(memory.driver(), &groups, &program, (step, &roles));
            exchange.map_or_else(|| driver.library(&program, step, &target), |exchange| vec![exchange])
        };
        let found = |class: &str| found::load(driver, class, &target, settings.mode);
        let mut planner = Planner::new(&program, &target, &library, &found, settings.mode);
        // The first allocation on a device takes as long as planning many steps, so both run concurrently.
        let blocks = || Ok::<_, GpuError>((memory.block(256)?, tickets(memory)?));
        let plan = || {
            let _span = tracing::debug_span!(target: "kernel", "candidates of steps").entered();
            Ok::<_, GpuError>((planner.plan(&program.init)?, planner.plan_call(&program.steps)?))
        };
        let (blocks, planned) = rayon::join(blocks, plan);
        let ((dummy, tickets), (init, steps)) = (blocks?, planned?);
        let plan = widened(&program, &planner.chains);
        let mut kernels = planner.kernels;
        program.plan = plan;
        let started = std::time::Instant::now();
        let functions = kernels.compile(driver)?;
        // Without a search those that the cost model finds too close to tell apart are timed.
        if settings.mode.searches() || kernels.have_choices() {
            let _guard = memory.exclusive();
            autotune::choose(memory, (&program, &target, settings.mode), &mut kernels, &functions)?;
        }
        let faults = Faults::of(memory.driver(), &program, &kernels.checks)?;
        tracing::debug!(target: "kernel", steps = kernels.steps.len(), kernels = functions.len(), time = ?started.elapsed(), "compiled");
        Ok(Compiled {
            dynamic: Dynamic::new(&program),
            binder: Binder::of_inputs(&program),
            device_steps: kernels.steps,
            texts: kernels.texts,
            functions,
            init,
            steps,
            bound: None,
            dummy,
            tickets,
            faults,
            groups,
            state: Mutex::new(State { entries: Vec::new(), arena: None, arena_address: 0, generation: 1 }),
            memory: Arc::clone(memory),
            // Without a stream an exchange is not part of what is recorded.
            records: settings.mode.records()
                && (driver.stream() != Stream::DEFAULT || !exchange::any(&program.steps)),
            program,
            settings,
        })
    }

    /// The program that was compiled.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// The device's memory.
    pub fn memory(&self) -> &Arc<DeviceMemory<D>> {
        &self.memory
    }

    /// The program's fault record.
    pub(crate) fn faults(&self) -> Option<&Arc<Faults<D>>> {
        self.faults.as_ref()
    }

    /// Gives the groups of the program's exchanges; no call runs meanwhile.
    pub(crate) fn attach(&self, groups: plugin_sdk::Groups) {
        self.groups.attach(groups);
    }

    /// Whether the ranks of the exchanges so far are still there.
    pub(crate) fn check_ranks(&self) -> Result<(), GpuError> {
        self.groups.check()
    }

    fn own(&self) -> ProgramMemory {
        let fault = self.faults.as_ref().map_or(0, |f| f.address());
        ProgramMemory { dummy: self.dummy.address(), tickets: self.tickets.address(), fault }
    }

    pub(crate) fn driver(&self) -> &D {
        self.memory.driver()
    }

    fn parts(&self) -> Parts<'_, D> {
        Parts {
            memory: &self.memory,
            driver: self.memory.driver(),
            program: &self.program,
            steps: &self.device_steps,
            functions: &self.functions,
            dummy: self.dummy.address(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State<D>> {
        // A panicking call may leave addresses of freed blocks; the next call overwrites them with its own.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The address for buffers without memory.
    pub(crate) fn dummy(&self) -> u64 {
        self.dummy.address()
    }

    pub(crate) fn init(&self) -> &[PlannedStep] {
        &self.init
    }

    /// Forgets what is bound.
    pub(crate) fn unbind(&mut self) {
        self.bound = None;
    }

    /// Calls use what is bound from now on.
    pub(crate) fn put(&mut self, bound: Bound<D>) {
        self.bound = Some(bound);
        let mut state = self.state();
        state.generation += 1;
        state.entries.clear();
    }

    /// Waits for the init steps where they check indices, or where the caller may free what they read (`frees`).
    pub(crate) fn finish_init(&self, frees: bool) -> Result<(), GpuError> {
        if frees || self.faults.is_some() {
            self.driver().synchronize()?;
        }
        match &self.faults {
            Some(faults) => faults.report(true, faults.unread()),
            None => Ok(()),
        }
    }

    /// Whether calls read the memory of a bound constant, in the order of the binding.
    pub fn reads_constant(&self, index: usize) -> bool {
        self.bound.as_ref().is_none_or(|bound| bound.reads.get(index).is_none_or(|reads| *reads))
    }

    /// Runs the program. The outputs are ready when the present work of the device's stream is done. An out-of-bounds
    /// index of this call is reported by the next wait: [`DeviceMemory::synchronize`], a copy to the host, or
    /// [`call`](Self::call). If that wait fails, the outputs are invalid.
    ///
    /// # Errors
    /// Inputs do not fit, constants were not bound, a condition of the program does not hold, there is no memory, or the
    /// device is lost.
    pub fn execute(&self, inputs: &[TensorView<'_>]) -> Result<Vec<OwnedTensor>, GpuError> {
        self.execute_on(self.driver().stream(), inputs)
    }

    /// As [`execute`](Self::execute), in the order of a stream of the driver: after its present work, and before its later work.
    ///
    /// # Errors
    /// Those of [`execute`](Self::execute); the stream belongs to another device.
    pub fn execute_on(
        &self,
        stream: Stream,
        inputs: &[TensorView<'_>],
    ) -> Result<Vec<OwnedTensor>, GpuError> {
        let Some(faults) = &self.faults else { return self.run(stream, inputs) };
        // A fault that is found while the lock is held belongs to this call.
        let _own = faults.call();
        self.memory.unread.note(faults);
        self.run(stream, inputs)
    }

    /// Enqueues a call in the order of a stream.
    pub(crate) fn run(
        &self,
        stream: Stream,
        inputs: &[TensorView<'_>],
    ) -> Result<Vec<OwnedTensor>, GpuError> {
        self.check_ranks()?;
        let _guard = self.memory.exclusive();
        let mut state = self.state();
        let _span = tracing::trace_span!(target: "kernel", "call").entered();
        let is_foreign = stream != self.driver().stream();
        if is_foreign {
            self.memory.note_reader(stream);
        }
        let outputs = self.attempt_twice(&mut state, stream, inputs);
        // Also after a call that failed: what it has enqueued may use memory of the stream's order.
        let joined = if is_foreign { self.driver().before(stream) } else { Ok(()) };
        if !self.records && state.arena.as_ref().is_some_and(Block::is_lent) {
            state.arena = None;
        }
        joined.and(outputs)
    }

    /// Whether a call that failed may be made again: it has not overwritten an input, and not exchanged what the other ranks exchange once.
    fn may_be_repeated(&self) -> bool {
        !self.program.inputs.iter().any(|i| i.written) && !exchange::any(&self.program.steps)
    }

    fn attempt_twice(
        &self,
        state: &mut State<D>,
        stream: Stream,
        inputs: &[TensorView<'_>],
    ) -> Result<Vec<OwnedTensor>, GpuError> {
        match self.attempt(state, stream, inputs) {
            Err(e) if e.is_out_of_memory() && self.may_be_repeated() => {
                state.entries.iter_mut().for_each(|e| e.recorded.release());
                state.arena = None;
                state.generation += 1;
                self.memory.trim();
                self.attempt(state, stream, inputs)
            }
            other => other,
        }
    }

    fn attempt(
        &self,
        state: &mut State<D>,
        stream: Stream,
        inputs: &[TensorView<'_>],
    ) -> Result<Vec<OwnedTensor>, GpuError> {
        self.find(state, inputs)?;
        let recorded = state.entries.iter().filter(|e| e.recorded.exists()).count();
        if recorded >= MAX_RECORDED
            && !state.entries.first().is_some_and(|e| e.recorded.exists())
            && let Some(last) = state.entries.iter_mut().rev().find(|e| e.recorded.exists())
        {
            last.recorded.release();
        }
        self.arrange(state, stream)?;
        if stream != self.driver().stream() {
            // Behind the allocation: until then the stream may have been given work that uses the arena's memory.
            self.driver().after(stream)?;
        }
        let (arena, generation) = (state.arena_address, state.generation);
        let Some(entry) = state.entries.first_mut() else {
            return Err(GpuError::Malformed("a call without sizes".into()));
        };
        let device = self.driver().device();
        let sources = (self.program.inputs.iter().zip(inputs).zip(&entry.prepared.inputs))
            .map(|((spec, view), layout)| source(&spec.name, layout, view, device))
            .collect::<Result<Vec<Source>, GpuError>>()?;
        let given = CallTensors { views: inputs, sources: &sources, arena, generation, stream };
        entry.calls += 1;
        if entry.prepared.list.is_ok() { self.run_list(entry, &given) } else { self.run_steps(entry, &given) }
    }

    /// Binds the size symbols from the shapes of a call's inputs and checks all other sizes.
    fn sizes(&self, inputs: &[TensorView<'_>]) -> Result<Sizes, GpuError> {
        let program = &self.program;
        if program.inputs.len() != inputs.len() {
            let (wants, got) = (program.inputs.len(), inputs.len());
            return Err(GpuError::Argument(format!("the program takes {wants} inputs, {got} were given")));
        }
        for (input, given) in program.inputs.iter().zip(inputs) {
            let (name, wants, got) =
                (&input.name, program.buffers[input.buf].sizes.len(), given.sizes().len());
            if wants != got {
                return Err(GpuError::Argument(format!("input `{name}` has {wants} dimensions, not {got}")));
            }
        }
        let size = |input: usize, dim: usize| inputs.get(input)?.sizes().get(dim).copied();
        self.binder.sizes(program, size).map_err(|(mismatch, sizes)| {
            let (Mismatch::Equation(n) | Mismatch::Range(n, _) | Mismatch::Missing(n)) = mismatch else {
                return GpuError::Malformed("a guard is no affair of the executor".into());
            };
            let SizeSource::Dim(input, dim) = self.binder.equation(n).place else {
                return GpuError::Malformed("an input is not known by its value".into());
            };
            let given = size(input, dim).unwrap_or_default();
            let problem = self.binder.problem(mismatch, given, sizes.values());
            GpuError::Argument(format!("input `{}`: {problem}", program.inputs[input].name))
        })
    }

    /// Moves the entry of these inputs' sizes to the front, preparing it if necessary.
    fn find(&self, state: &mut State<D>, inputs: &[TensorView<'_>]) -> Result<(), GpuError> {
        let found = state.entries.iter().position(|e| arguments::sizes_fit(&e.prepared.inputs, inputs));
        if let Some(n) = found {
            state.entries[..=n].rotate_right(1);
            return Ok(());
        }
        let sizes = self.sizes(inputs)?;
        let span = tracing::debug_span!(target: "kernel", "prepare the call").entered();
        let prepared = Prepared::new(&self.program, &self.device_steps, &self.steps, sizes)?;
        drop(span);
        if self.records
            && let Err(why) = &prepared.list
        {
            tracing::info!(target: "graph", program = self.program.name, "no device graph: {why}");
        }
        state.entries.truncate(MAX_PREPARED - 1);
        state.entries.insert(
            0,
            Entry {
                prepared,
                addresses: Vec::new(),
                generation: 0,
                calls: 0,
                recorded: Recorded::default(),
                times: Vec::new(),
                timed: 0,
            },
        );
        Ok(())
    }

    /// Makes the arena as large as the first entry wants it.
    fn provide_arena(&self, state: &mut State<D>, stream: Stream) -> Result<(), GpuError> {
        let Some(Entry { prepared, .. }) = state.entries.first() else { return Ok(()) };
        let (wanted, scratch) = (prepared.arena_bytes, prepared.scratch_bytes);
        // A recording uses its arena in calls on any stream.
        let order = if self.records { self.driver().stream() } else { stream };
        if state.arena.as_ref().is_some_and(|a| a.bytes() >= wanted && a.serves(order)) {
            return Ok(());
        }
        if wanted == 0 {
            // No kernel reads or writes it.
            state.move_arena(self.dummy.address());
            return Ok(());
        }
        // The old arena is freed first, so that the new one may reuse its memory.
        state.arena = None;
        let arena = self.memory.block_for(wanted, order)?;
        if state.move_arena(arena.address()) {
            let usage = self.memory.usage();
            tracing::debug!(
                target: "kernel", program = self.program.name, arena = wanted, scratch,
                used = usage.used, peak = usage.peak, "memory of calls"
            );
        }
        state.arena = Some(arena);
        Ok(())
    }

    /// Provides the arena for the first entry, and writes the fixed addresses.
    fn arrange(&self, state: &mut State<D>, stream: Stream) -> Result<(), GpuError> {
        let own = self.own();
        self.provide_arena(state, stream)?;
        let arena = state.arena_address;
        let Some(entry) = state.entries.first_mut() else { return Ok(()) };
        if entry.generation == state.generation {
            return Ok(());
        }
        entry.addresses = match &self.bound {
            Some(bound) => bound.addresses.clone(),
            None if self.program.constants.is_empty() && self.program.init.is_empty() => {
                vec![self.dummy.address(); self.program.buffers.len()]
            }
            None => return Err(GpuError::Argument("the constants were not bound".into())),
        };
        for &(root, at) in &entry.prepared.arena {
            entry.addresses[root] = arena + at;
        }
        if let Ok(list) = &mut entry.prepared.list {
            list.fix(&entry.addresses, arena, own);
        }
        entry.generation = state.generation;
        Ok(())
    }

    /// Returns the address at which kernels can read a tensor: its own memory where possible, else a copy.
    pub(crate) fn placed(
        &self,
        from: Source,
        layout: &Layout,
        view: &TensorView<'_>,
    ) -> Result<(u64, Option<Block<D>>), GpuError> {
        match from {
            Source::Empty => return Ok((self.dummy.address(), None)),
            Source::Device(address) => return Ok((address, None)),
            _ => {}
        }
        let block = self.memory.block(layout.bytes)?;
        match from {
            // SAFETY: the view's memory is on the device and has this length; the block is new.
            Source::Unaligned(address) => unsafe {
                self.driver().copy(block.address(), address, layout.bytes)?;
            },
            _ => upload(self.driver(), view, &layout.strides, block.address())?,
        }
        Ok((block.address(), Some(block)))
    }

    /// Places all inputs. The returned blocks own the copies.
    fn place_inputs(&self, entry: &mut Entry<D>, given: &CallTensors<'_>) -> Result<Vec<Block<D>>, GpuError> {
        let mut copies = Vec::new();
        for ((layout, from), view) in entry.prepared.inputs.iter().zip(given.sources).zip(given.views) {
            let (address, block) = self.placed(*from, layout, view)?;
            entry.addresses[layout.root] = address;
            copies.extend(block);
        }
        Ok(copies)
    }

    /// Runs a call whose launches are all known in advance.
    fn run_list(&self, entry: &mut Entry<D>, given: &CallTensors<'_>) -> Result<Vec<OwnedTensor>, GpuError> {
        let parts = self.parts();
        let (wanted, observed) = (entry.timed < self.settings.profile, plugin_sdk::steps_wanted());
        let profiled = entry.calls > 1 && (wanted || observed);
        // The first call is launched one by one: libraries then choose their algorithms.
        if self.records && entry.calls > 1 && !profiled && entry.recorded.wanted() {
            let Entry { prepared, addresses, recorded, .. } = &mut *entry;
            // SAFETY: `arrange` wrote the addresses of arena and constants; all other addresses belong to the recording.
            if let Some(outputs) = unsafe { recorded.run(prepared, &parts, given, addresses)? } {
                self.write_back(entry, given)?;
                return self.listed_results(entry, &outputs, given.stream);
            }
            // A recording that was given up may have begun exchanges, whose marks are its own.
            self.groups.settle()?;
        }
        let _copies = self.place_inputs(entry, given)?;
        let mut blocks: Blocks<D> = Vec::with_capacity(entry.prepared.outputs.len());
        for &(root, bytes) in &entry.prepared.outputs {
            let block = self.memory.block_of_caller(bytes, given.stream)?;
            entry.addresses[root] = block.address();
            blocks.push((root, Arc::new(block)));
        }
        let Ok(list) = &mut entry.prepared.list else {
            return Err(GpuError::Malformed("a call without launches".into()));
        };
        list.patch(&entry.addresses);
        let on = LaunchContext { apart: profiled, ..parts.on(&entry.addresses, given.arena) };
        // SAFETY: every address is memory of this call, as large as its buffer, by the memory plan, the blocks above and
        // the checks of the inputs.
        let mut one = |n: usize| unsafe { list.launch(n, &on) };
        let told = profiled && observed;
        if told {
            self.groups.watch();
        }
        let launched = match profiled {
            true => self.driver().timed(list.calls.len(), &mut one),
            false => (0..list.calls.len()).try_for_each(one).map(|()| Vec::new()),
        };
        let times = self.ended(launched)?;
        if told {
            self.report_steps(entry, &times, &self.groups.watched()?);
        }
        if profiled && wanted {
            self.note_times(entry, &times);
        }
        self.write_back(entry, given)?;
        self.listed_results(entry, &blocks, given.stream)
    }

    /// The outcome of a call's steps. Where they failed, exchanges that use the call's memory are waited for before it is freed.
    fn ended<T>(&self, outcome: Result<T, GpuError>) -> Result<T, GpuError> {
        if outcome.is_err() {
            // The first error is the one to report.
            let _ = self.groups.settle();
        }
        outcome
    }

    /// Copies inputs that the call modified in a copy back to the caller's memory: those on the host once all indices are
    /// known to be in bounds.
    fn write_back(&self, entry: &Entry<D>, given: &CallTensors<'_>) -> Result<(), GpuError> {
        if let Some(faults) = self.faults.as_ref().filter(|_| self.written(given, |s| s == Source::Host)) {
            self.driver().synchronize()?;
            faults.report(self.as_before(given), faults.unread())?;
        }
        for (n, (spec, layout)) in self.program.inputs.iter().zip(&entry.prepared.inputs).enumerate() {
            if !spec.written {
                continue;
            }
            let from = entry.addresses[layout.root];
            match given.sources[n] {
                // SAFETY: the input is declared as written, so the caller's tensor is writable; it and the copy have this
                // span.
                Source::Unaligned(to) => unsafe { self.driver().copy(to, from, layout.bytes)? },
                Source::Host => {
                    let view = &given.views[n];
                    if !crate::transfer::same_layout(&layout.extent, view.strides(), &layout.strides) {
                        let what = format!("`{}` is written: it must have the strides", spec.name);
                        return Err(GpuError::Argument(format!("{what} {:?}", layout.strides)));
                    }
                    // SAFETY: the caller's tensor is declared as written and has the span of the layout, and so has the
                    // copy.
                    unsafe {
                        self.driver().download(view.as_ptr().cast_mut(), from, layout.bytes as usize)?;
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Whether an input that is written in place is located where `is` says.
    fn written(&self, given: &CallTensors<'_>, is: impl Fn(Source) -> bool) -> bool {
        self.program.inputs.iter().zip(given.sources).any(|(spec, source)| spec.written && is(*source))
    }

    /// Whether inputs that are written in place are unchanged until [`write_back`](Self::write_back).
    fn as_before(&self, given: &CallTensors<'_>) -> bool {
        !self.written(given, |s| matches!(s, Source::Device(_)))
    }

    fn listed_results(
        &self,
        entry: &Entry<D>,
        blocks: &[(usize, Arc<Block<D>>)],
        stream: Stream,
    ) -> Result<Vec<OwnedTensor>, GpuError> {
        let Ok(list) = &entry.prepared.list else { return Ok(Vec::new()) };
        let block = |layout: &Layout| blocks.iter().find(|(root, _)| *root == layout.root).map(|(_, b)| b);
        let result = |l: &Layout| self.result(l, block(l), entry.addresses[l.root], stream);
        list.results.iter().map(result).collect()
    }

    /// Runs a call step by step.
    fn run_steps(&self, entry: &mut Entry<D>, given: &CallTensors<'_>) -> Result<Vec<OwnedTensor>, GpuError> {
        let _copies = self.place_inputs(entry, given)?;
        let (addresses, sizes) = (entry.addresses.clone(), entry.prepared.sizes.clone());
        let mut machine = self.machine(addresses, sizes, self.as_before(given));
        machine.exec.stream = given.stream;
        for (root, _) in &entry.prepared.outputs {
            machine.exec.provide(BufId::from_index(*root))?;
        }
        self.ended(machine.run(&self.steps))?;
        let outputs = self.program.buffers.iter().filter(|(_, b)| b.storage == Storage::Output);
        for (id, _) in outputs {
            machine.exec.provide(id)?;
        }
        self.write_back(entry, given)?;
        let result = |spec| {
            let call = &machine.exec;
            let layout = Layout::of_output(&self.program, spec, &call.sizes)?;
            let (block, address) = (call.blocks[layout.root].as_ref(), call.addresses[layout.root]);
            self.result(&layout, block, address, given.stream)
        };
        self.program.outputs.iter().map(result).collect()
    }

    pub(crate) fn machine(
        &self,
        addresses: Vec<u64>,
        sizes: Sizes,
        as_before: bool,
    ) -> Machine<'_, Running<'_, D>> {
        let running = Running {
            memory: &self.memory,
            driver: self.memory.driver(),
            program: &self.program,
            steps: &self.device_steps,
            functions: &self.functions,
            blocks: vec![None; addresses.len()],
            addresses,
            sizes,
            own: self.own(),
            faults: self.faults.as_deref(),
            as_before,
            stream: self.driver().stream(),
        };
        Machine::new(running, &self.program.symbols, &self.dynamic)
    }

    /// Returns an output on the device. Blocks that the call made for the caller are handed over; everything else is
    /// copied.
    fn result(
        &self,
        layout: &Layout,
        block: Option<&Arc<Block<D>>>,
        address: u64,
        stream: Stream,
    ) -> Result<OwnedTensor, GpuError> {
        let (block, address) = match block {
            Some(block) => (Arc::clone(block), block.address() + layout.at),
            None => {
                let block = Arc::new(self.memory.block_of_caller(layout.bytes, stream)?);
                if layout.bytes > 0 {
                    // SAFETY: the verifier guarantees that the output is a view of its buffer; the block has its span.
                    unsafe { self.driver().copy(block.address(), address + layout.at, layout.bytes)? };
                }
                let address = block.address();
                (block, address)
            }
        };
        owned(self.driver(), block, address, layout.dtype, &layout.extent, &layout.strides)
    }

    /// Accumulates the times of a call's launches, and logs their means when enough calls were timed.
    fn note_times(&self, entry: &mut Entry<D>, times: &[Timed]) {
        entry.times.resize(times.len(), 0.0);
        entry.times.iter_mut().zip(times).for_each(|(sum, t)| *sum += t.seconds);
        entry.timed += 1;
        if entry.timed == self.settings.profile {
            let table = profile::table(self.means(entry));
            tracing::info!(target: "profile", program = self.program.name, "{table}");
        }
    }

    fn means(&self, entry: &Entry<D>) -> Vec<StepTime> {
        let Ok(list) = &entry.prepared.list else { return Vec::new() };
        let calls = f64::from(entry.timed.max(1));
        let one = |(call, sum): (&crate::prepare::Call, &f64)| {
            let step = &self.device_steps[call.step as usize];
            let candidate = step.candidate().map_or("", |w| w.name.as_str());
            let several = step.candidate().is_some_and(|w| w.parts.len() > 1);
            StepTime {
                name: step.name.clone(),
                implementation: if several {
                    format!("{candidate} part {}", call.part)
                } else {
                    candidate.to_owned()
                },
                seconds: sum / calls,
                bytes: profile::bytes(step, &entry.prepared.sizes),
            }
        };
        list.calls.iter().zip(&entry.times).map(one).collect()
    }

    /// The mean time of each launch over the timed calls: as many as the settings say, after the first call of each set of
    /// sizes. It is empty before that, and for programs whose steps depend on data.
    pub fn profile(&self) -> Vec<StepTime> {
        self.state().entries.first().filter(|e| e.timed > 0).map_or(Vec::new(), |e| self.means(e))
    }

    /// Whether the sizes of the last call have a recording.
    pub fn is_recorded(&self) -> bool {
        self.state().entries.first().is_some_and(|e| e.recorded.exists())
    }
}
