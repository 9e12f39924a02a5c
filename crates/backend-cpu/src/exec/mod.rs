//! The executor: a compiled program, its bound constants and memory, and the run of its steps.
//!
//! It owns memory and order, no arithmetic: steps are generated functions (`clif`) or hand-written kernels (`micro`).

mod attention_backward;
mod bind_cache;
mod chain;
mod control;
mod cores;
mod dropout;
mod error;
mod fallback;
mod finish;
mod forked;
mod fourier;
mod grouped;
mod jobs;
mod linalg;
mod listing;
mod loop_op;
mod memory;
mod narrow;
mod operand;
mod packs;
mod prepare;
mod quantized;
mod saving;
mod sizes;
mod sort;
mod staged;
mod tall;
mod template;
mod tune;

use std::collections::HashMap;
use std::path::PathBuf;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

use ir_core::EntityId;
use kernel_ir::runtime::{Binder, Collectives, Dynamic, Exchanges, Exec, Machine, Sizes};
use kernel_ir::{Buffer, Program, Storage};
use plugin_sdk::dlpack::{DL_CPU, DL_CUDA_HOST};
use plugin_sdk::{DeviceId, OwnedTensor, TensorView};

pub(crate) use cores::physical_cores;
pub use error::{ExecError, Written};
pub use forked::{after_fork, before_fork};
pub use saving::wait as wait_for_files;

use crate::clif::{self, Code, EpilogueContext, Fault};
use crate::micro::team;
use control::{PlannedStep, Running};
use cores::wanted_threads;
use memory::{Arenas, Block, Region, copy_strided};
use packs::{Packed, conv_weights, number_packs, pack};
use saving::Saving;

/// Base pointer of each buffer of a program, by number; views hold none.
struct Buffers(Vec<*mut u8>);

// SAFETY: the pointers are only dereferenced by steps, whose tasks write disjoint memory.
unsafe impl Send for Buffers {}
// SAFETY: the pointers are only dereferenced by steps, whose tasks write disjoint memory.
unsafe impl Sync for Buffers {}

/// The context of a step.
struct Call<'a> {
    buffers: &'a Buffers,
    sizes: &'a Sizes,
    code: &'a Code,
    /// Where its kernels record an index out of bounds.
    fault: &'a Fault,
}

impl Call<'_> {
    /// The arguments of an epilogue; `table` has its base pointers.
    fn context(&self, table: &[*mut u8]) -> EpilogueContext {
        EpilogueContext { buffers: table.as_ptr(), sizes: self.sizes.values().as_ptr() }
    }
}

/// The walk of a call over its steps.
type Walk<'a> = Machine<'a, Running<'a>>;

enum Op {
    Loop(loop_op::LoopOp),
    /// With its index in the list of packed weights.
    Matmul(template::MatmulOp, usize),
    /// With its index in the list of packed weights.
    Conv(Arc<template::ConvOp>, usize),
    Attention(template::AttentionOp),
    AttentionBackward(Box<attention_backward::AttentionBackwardOp>),
    /// With its index in the list of packed weights.
    Staged(Box<staged::StagedOp>, usize),
    /// With its index in the list of packed weights.
    Narrow(Box<narrow::NarrowOp>, usize),
    /// With its index in the list of packed weights.
    Quantized(Box<quantized::QuantizedOp>, usize),
    Sort(sort::SortOp),
    Fourier(Box<fourier::FourierOp>),
    Linalg(::linalg::host::MatrixRoutine),
    /// Run by the call itself, which holds the exchanges in progress.
    Exchange(kernel_ir::runtime::ExchangeStep),
    /// One step that is executed as several.
    Several(Vec<PlannedStep>),
}

/// Offsets of the arena's buffers at some sizes.
struct ArenaLayout {
    offsets: Vec<u64>,
    bytes: u64,
}

/// The result of `bind`.
struct Bound {
    base: Buffers,
    /// `None` where nothing is bound.
    made: Option<Arc<Made>>,
    /// The file that contains persistent buffers and packed weights instead.
    file: Option<bind_cache::Mapped>,
}

impl Bound {
    fn packed(&self) -> &[Option<Packed>] {
        self.made.as_ref().map_or(&[], |made| &made.packed)
    }
}

/// What binding has made; calls only read it.
struct Made {
    packed: Vec<Option<Packed>>,
    /// Persistent buffers and copies of constants whose layout differs from the program's.
    _memory: Vec<Block>,
}

/// Options of execution.
#[derive(Clone, Copy, Debug, Default)]
pub struct ExecOptions {
    /// Threads; 0 is one for each physical core.
    pub threads: usize,
    /// Products and convolutions by constant weights are computed in the way that takes the least time, not in the rule's.
    pub searches: bool,
}

/// A compiled program.
pub struct Compiled {
    program: Program,
    code: Code,
    init: Vec<PlannedStep>,
    steps: Vec<PlannedStep>,
    dynamic: Dynamic,
    binder: Binder,
    places: Mutex<HashMap<Sizes, Arc<ArenaLayout>>>,
    fixed: Option<Arc<ArenaLayout>>,
    arenas: Arenas,
    bound: Option<Bound>,
    /// The file of what was bound.
    saving: Saving,
    pool: Option<Arc<rayon::ThreadPool>>,
    /// Threads of a call.
    threads: usize,
    /// The number of forks when the pool was made.
    forks: usize,
    persistent_bytes: u64,
    keeping: Option<bind_cache::BindCache>,
    /// Where the ways of steps are chosen by time: the choices.
    tuned: Option<tune::Table>,
    /// What performs the program's exchanges.
    groups: Option<plugin_sdk::Groups>,
}

impl Compiled {
    /// Compiles a program.
    ///
    /// # Errors
    /// [`ExecError`] for a kernel that this backend does not support or a malformed program.
    pub fn new(program: Program, options: ExecOptions) -> Result<Compiled, ExecError> {
        Compiled::with_code(program, options, clif::compile)
    }

    /// As [`Compiled::new`], with code that was saved from the same program by this build on this machine's instruction
    /// set.
    ///
    /// # Errors
    /// As for [`Compiled::new`]; the code is that of another program.
    pub(crate) fn load(
        program: Program,
        options: ExecOptions,
        functions: Vec<clif::MachineFunction>,
    ) -> Result<Compiled, ExecError> {
        Compiled::with_code(program, options, |jobs| clif::load(functions, jobs))
    }

    fn with_code(
        mut program: Program,
        options: ExecOptions,
        make: impl FnOnce(&[clif::Job]) -> Result<Code, clif::JitError>,
    ) -> Result<Compiled, ExecError> {
        kernel_ir::verify(&program).map_err(|e| ExecError::Malformed(e.to_string()))?;
        let mut jobs = jobs::Jobs::default();
        let (init_steps, call_steps) =
            (std::mem::take(&mut program.init), std::mem::take(&mut program.steps));
        let init = prepare::steps(&mut program, &init_steps, &mut jobs)?;
        let mut steps = prepare::steps(&mut program, &call_steps, &mut jobs)?;
        number_packs(&mut steps, &mut 0);
        let threads = wanted_threads(options.threads);
        chain::form(&mut program, &call_steps, &mut steps, threads);
        (program.init, program.steps) = (init_steps, call_steps);
        let started = std::time::Instant::now();
        let code = make(jobs.list())?;
        tracing::debug!(target: "kernel", functions = jobs.list().len(), bytes = code.bytes(), time = ?started.elapsed(), "compiled");
        // Where there are symbols every set of sizes is checked once, whatever the arena is.
        let placed =
            program.symbols.is_empty().then(|| program.plan.place_over_operands(&program, &|_| None));
        let fixed =
            placed.and_then(Result::ok).map(|(offsets, bytes)| Arc::new(ArenaLayout { offsets, bytes }));
        let binder = Binder::of_inputs(&program);
        Ok(Compiled {
            binder,
            dynamic: Dynamic::new(&program),
            init,
            steps,
            code,
            places: Mutex::default(),
            fixed,
            arenas: Arenas::default(),
            bound: None,
            saving: Saving::default(),
            pool: pool(threads)?,
            threads,
            forks: forked::forks(),
            persistent_bytes: 0,
            keeping: None,
            tuned: options.searches.then(|| tune::Table::open(None)),
            groups: None,
            program,
        })
    }

    /// The program.
    pub fn program(&self) -> &Program {
        &self.program
    }
    /// The machine code in its saved form.
    pub(crate) fn functions(&self) -> &[clif::MachineFunction] {
        self.code.functions()
    }
    /// Caches the results of binding large constants, and what a search has found, in files of this folder; `program` are the program's
    /// bytes.
    pub fn keep_weights_in(&mut self, folder: &str, program: &[u8]) {
        self.tuned = self.tuned.take().map(|_| tune::Table::open(Some(folder)));
        // Weights that a search has chosen the form of are another file.
        let program = bind_cache::one(program) ^ u64::from(self.tuned.is_some());
        self.keeping = Some(bind_cache::BindCache { folder: folder.into(), program });
    }
    /// Gives the groups of the program's exchanges.
    pub(crate) fn attach(&mut self, groups: plugin_sdk::Groups) {
        self.groups = Some(groups);
    }
    /// Bytes of machine code.
    pub fn code_bytes(&self) -> usize {
        self.code.bytes()
    }
    /// Bytes kept for persistent buffers and packed weights.
    pub fn constant_bytes(&self) -> u64 {
        self.persistent_bytes
    }

    /// Binds the constants by name, runs the init steps and packs weights.
    ///
    /// # Safety
    /// The tensors' memory must stay valid and unwritten until the next `bind` or until this value is dropped.
    ///
    /// # Errors
    /// A constant is missing or does not fit.
    pub unsafe fn bind(&mut self, constants: &[(&str, TensorView<'_>)]) -> Result<(), ExecError> {
        // The previous binding may be lost from here on, whether this succeeds or not.
        self.bound = None;
        self.saving = Saving::default();
        let sizes = Sizes::hints(&self.program);
        let mut base = Buffers(vec![clif::ZEROS.address() as *mut u8; self.program.buffers.len()]);
        let mut memory = Vec::new();
        let mut contents: Vec<(&str, &[u8])> = Vec::new();
        let by_name: HashMap<&str, &TensorView<'_>> =
            constants.iter().map(|(name, view)| (*name, view)).collect();
        for c in &self.program.constants {
            let view = *by_name.get(&*c.name).ok_or_else(|| ExecError::MissingConstant(c.name.clone()))?;
            let buffer = &self.program.buffers[c.buf];
            let (ptr, copy) = self.place_tensor(&c.name, buffer, view, &sizes)?;
            base.0[c.buf.index()] = ptr;
            let (span, elements) = (byte_size(buffer, &sizes)?, view.numel() * buffer.dtype.size());
            // Bytes between the elements of a tensor with gaps are arbitrary.
            if self.keeping.is_some() && span == elements {
                // SAFETY: the constant is contiguous in memory, by the caller's guarantee or as a copy.
                contents.push((&c.name, unsafe { std::slice::from_raw_parts(ptr, span) }));
            }
            memory.extend(copy);
        }
        let whole = contents.len() == self.program.constants.len();
        let kept = self.keeping.as_ref().filter(|_| whole).and_then(|k| k.path(&contents));
        let mut slots = 0;
        number_packs(&mut self.steps, &mut slots);
        let loaded = kept.as_ref().and_then(|path| bind_cache::load(path, &self.program, slots));
        if let Some(loaded) = loaded.filter(|l| self.is_whole(l, &sizes)) {
            loaded.buffers.iter().for_each(|(number, ptr, _)| base.0[*number] = *ptr);
            self.persistent_bytes = loaded.mapped.bytes() as u64;
            let (mut packed, file) = (loaded.packed, Some(loaded.mapped));
            if let Some(table) = &self.tuned {
                self.tune(table, (&base, true), &sizes, &mut packed);
            }
            let made = Some(Arc::new(Made { packed, _memory: memory }));
            self.bound = Some(Bound { base, made, file });
            return Ok(());
        }
        let mut bytes = 0;
        for (id, buffer) in self.program.buffers.iter().filter(|(_, b)| b.storage == Storage::Persistent) {
            let block = Block::new(byte_size(buffer, &sizes)?)?;
            bytes += block.len() as u64;
            base.0[id.index()] = block.ptr();
            memory.push(block);
        }
        let buffers = Buffers(base.0.clone());
        let machine = self.machine(buffers, sizes.clone(), &[], &[]);
        self.drive(machine, &self.init)?;
        let mut packed = Vec::new();
        pack(&self.steps, &base, &sizes, &mut packed)?;
        if let Some(table) = &self.tuned {
            self.tune(table, (&base, false), &sizes, &mut packed);
        }
        for p in packed.iter().flatten() {
            bytes += p.bytes() as u64;
        }
        self.persistent_bytes = bytes;
        let made = Arc::new(Made { packed, _memory: memory });
        if let Some(path) = kept {
            self.saving = self.save_bound(path, &base, &made, &sizes);
        }
        self.bound = Some(Bound { base, made: Some(made), file: None });
        Ok(())
    }

    /// Whether a file has all buffers that calls read, with their sizes.
    fn is_whole(&self, loaded: &bind_cache::Loaded, sizes: &Sizes) -> bool {
        let needed = bind_cache::needed(&self.program, &self.steps, &loaded.packed);
        let size = |number: usize| self.program.buffers.values().nth(number).map(|b| byte_size(b, sizes));
        needed.len() == loaded.buffers.len()
            && needed.iter().zip(&loaded.buffers).all(|(wanted, (number, _, bytes))| {
                wanted == number && matches!(size(*number), Some(Ok(size)) if size == *bytes)
            })
    }

    /// Keeps what was bound for later processes, while calls use it already. That it cannot be kept is no error.
    fn save_bound(&self, path: PathBuf, base: &Buffers, made: &Arc<Made>, sizes: &Sizes) -> Saving {
        let needed = bind_cache::needed(&self.program, &self.steps, &made.packed);
        let span = |number: &usize| byte_size(self.program.buffers.values().nth(*number)?, sizes).ok();
        let Some(spans) = needed.iter().map(span).collect::<Option<Vec<_>>>() else {
            return Saving::default();
        };
        let places = Buffers(needed.iter().map(|number| base.0[*number]).collect());
        let made = Arc::clone(made);
        Saving::begin(move || {
            // Whole, so that the thread is given what may be sent to it.
            let places = &places;
            let bytes = |(at, span): (&*mut u8, usize)| {
                // SAFETY: the persistent buffer's block has this many bytes, which the init steps have written. `made` owns it, and
                // nothing writes it any more.
                unsafe { std::slice::from_raw_parts(at.cast_const(), span) }
            };
            let buffers: Vec<_> = places.0.iter().zip(spans).map(bytes).collect();
            let buffers: Vec<_> = needed.into_iter().zip(buffers).collect();
            if let Err(e) = bind_cache::save(&path, &buffers, &made.packed) {
                tracing::debug!(target: "cache", file = %path.display(), "packed weights are not kept: {e}");
            }
        })
    }

    /// Runs the program.
    ///
    /// # Errors
    /// [`ExecError`] that names the input and dimension where inputs do not fit.
    pub fn execute(&self, inputs: &[TensorView<'_>]) -> Result<Vec<OwnedTensor>, ExecError> {
        let bound = match &self.bound {
            Some(b) => b,
            None if self.program.constants.is_empty() && self.init.is_empty() => &EMPTY,
            None => return Err(ExecError::NotBound),
        };
        if bound.file.as_ref().is_some_and(|file| !file.is_whole()) {
            return Err(ExecError::WeightsCut);
        }
        let sizes = self.bind_sizes(inputs)?;
        let place = self.place(&sizes)?;
        let mut buffers = Buffers(bound.base.0.clone());
        buffers.0.resize(self.program.buffers.len(), clif::ZEROS.address() as *mut u8);
        let mut copies = Vec::new();
        // Copies of written inputs, by the input's number.
        let mut back = Vec::new();
        for (n, (spec, view)) in self.program.inputs.iter().zip(inputs).enumerate() {
            let (ptr, copy) = self.place_tensor(&spec.name, &self.program.buffers[spec.buf], view, &sizes)?;
            buffers.0[spec.buf.index()] = ptr;
            if spec.written && copy.is_some() {
                back.push(n);
            }
            copies.extend(copy);
        }
        let arena = self.arenas.take(usize::try_from(place.bytes).unwrap_or(usize::MAX))?;
        let start = arena.as_ref().map_or(clif::ZEROS.address() as *mut u8, Block::ptr);
        for (live, offset) in self.program.plan.lives.iter().zip(&place.offsets) {
            buffers.0[live.buf.index()] = start.wrapping_add(*offset as usize);
        }
        let places: Vec<*mut u8> =
            back.iter().map(|n| buffers.0[self.program.inputs[*n].buf.index()]).collect();
        let results = self.run_call(self.machine(buffers, sizes.clone(), bound.packed(), &back));
        arena.into_iter().for_each(|arena| self.arenas.give(arena));
        let results = results?;
        for (&n, from) in back.iter().zip(places) {
            let buffer = &self.program.buffers[self.program.inputs[n].buf];
            let strides = sizes.extents(&buffer.strides)?;
            let (from, to) = (
                Region { ptr: from, strides: &strides },
                Region { ptr: inputs[n].as_mut_ptr(), strides: inputs[n].strides() },
            );
            // SAFETY: the copy was allocated for the buffer's span; the caller's tensor is writable, because its input is.
            unsafe { copy_strided(buffer.dtype.size(), inputs[n].sizes(), from, to) };
        }
        Ok(results)
    }

    fn run_call(&self, mut machine: Walk<'_>) -> Result<Vec<OwnedTensor>, ExecError> {
        let outputs = || self.program.buffers.iter().filter(|(_, b)| b.storage == Storage::Output);
        for (id, _) in outputs().filter(|(id, _)| !self.program.is_dynamic(*id)) {
            machine.exec.provide(id)?;
        }
        let mut machine = self.drive(machine, &self.steps)?;
        // Nothing wrote what a loop without iterations would have written.
        for (id, _) in outputs() {
            machine.exec.provide(id)?;
        }
        self.program.outputs.iter().map(|spec| self.result(spec, &machine.exec)).collect()
    }

    fn machine<'a>(
        &'a self,
        mut buffers: Buffers,
        sizes: Sizes,
        packed: &'a [Option<Packed>],
        copied: &'a [usize],
    ) -> Walk<'a> {
        let count = self.program.buffers.len();
        buffers.0.resize(count, clif::ZEROS.address() as *mut u8);
        let (program, code) = (&self.program, &self.code);
        let (blocks, fault, begun) = (vec![None; count], Fault::default(), Vec::new());
        let engine = self.groups.as_ref().map(|g| g as &dyn Collectives);
        let exchanges = Exchanges::new(engine);
        let running =
            Running { program, code, packed, buffers, sizes, blocks, fault, copied, begun, exchanges };
        Machine::new(running, &program.symbols, &self.dynamic)
    }

    /// Runs the steps on the pool and returns the machine.
    fn drive<'a>(&self, machine: Walk<'a>, steps: &[PlannedStep]) -> Result<Walk<'a>, ExecError> {
        let machine = Mutex::new(machine);
        let done = self.in_team(steps.len() > 1, &|| {
            machine.lock().unwrap_or_else(PoisonError::into_inner).run(steps)
        })?;
        done.map(|()| machine.into_inner().unwrap_or_else(PoisonError::into_inner))
    }

    /// Checks a tensor against its buffer; returns its pointer, and a copy where its strides or alignment differ.
    fn place_tensor(
        &self,
        name: &str,
        buffer: &Buffer,
        view: &TensorView<'_>,
        sizes: &Sizes,
    ) -> Result<(*mut u8, Option<Block>), ExecError> {
        if view.dtype() != buffer.dtype {
            return Err(ExecError::DType { name: name.into(), expected: buffer.dtype, got: view.dtype() });
        }
        if !matches!(view.device().device_type, DL_CPU | DL_CUDA_HOST) {
            return Err(ExecError::Device(name.into()));
        }
        if view.sizes().len() != buffer.sizes.len() {
            let (expected, got) = (buffer.sizes.len(), view.sizes().len());
            return Err(ExecError::Rank { name: name.into(), expected, got });
        }
        let mut strides_fit = true;
        for (d, &got) in view.sizes().iter().enumerate() {
            let expected = sizes.eval(&buffer.sizes[d])?;
            if got != expected {
                let expr = buffer.sizes[d].to_string();
                return Err(ExecError::Size { name: name.into(), dim: d, got, expected, expr });
            }
            strides_fit &= got <= 1 || view.strides()[d] == sizes.eval(&buffer.strides[d])?;
        }
        if view.numel() == 0 {
            return Ok((clif::ZEROS.address() as *mut u8, None));
        }
        let ptr = view.as_ptr().cast_mut();
        if strides_fit && (ptr as usize).is_multiple_of(buffer.dtype.size().min(8)) {
            return Ok((ptr, None));
        }
        let copy = Block::new(byte_size(buffer, sizes)?)?;
        let strides = sizes.extents(&buffer.strides)?;
        let from = Region { ptr, strides: view.strides() };
        let to = Region { ptr: copy.ptr(), strides: &strides };
        // SAFETY: the view was checked when it was made; the copy has room for the buffer's span.
        unsafe { copy_strided(buffer.dtype.size(), view.sizes(), from, to) };
        Ok((copy.ptr(), Some(copy)))
    }

    fn result(&self, spec: &kernel_ir::OutputSpec, machine: &Running<'_>) -> Result<OwnedTensor, ExecError> {
        let (buffers, sizes) = (&machine.buffers, &machine.sizes);
        let root = self.program.root(spec.buf).index();
        let dtype = self.program.buffers[spec.buf].dtype;
        let (extent, strides) = (sizes.extents(&spec.sizes)?, sizes.extents(&spec.strides)?);
        let at = sizes.eval(&spec.offset)? as usize * dtype.size();
        let source = buffers.0[root].wrapping_add(at);
        let (block, ptr) = match &machine.blocks[root] {
            Some(block) => (block.clone(), source),
            None => {
                let span = span(&extent, &strides);
                let block = Arc::new(Block::new(span * dtype.size())?);
                let to = Region { ptr: block.ptr(), strides: &strides };
                // SAFETY: the output is a view of its buffer, by the program's promise; the block has its span.
                unsafe { copy_strided(dtype.size(), &extent, Region { ptr: source, strides: &strides }, to) };
                let ptr = block.ptr();
                (block, ptr)
            }
        };
        let device = DeviceId { device_type: DL_CPU, device_id: 0 };
        let data = NonNull::new(ptr).ok_or(ExecError::OutOfMemory(0))?;
        // SAFETY: the block lives as long as the tensor, nothing else writes it, and the view lies inside of it.
        unsafe { OwnedTensor::from_raw_parts(data, dtype, device, &extent, &strides, Box::new(block)) }
            .map_err(|e| ExecError::Host(e.to_string()))
    }

    /// Runs `body` on the pool, with its threads kept spinning between steps where there are several.
    fn in_team<R: Send>(&self, several: bool, body: &(dyn Fn() -> R + Sync)) -> Result<R, ExecError> {
        // Another thread would have to be woken, which takes longer than a small program.
        if self.threads == 1 {
            return Ok(team::alone(body));
        }
        // Those of OpenMP may be busy polling, and its own would share the processors with them.
        if forked::forks() == 0
            && let Some(done) = team::hosted(self.threads, several, body)
        {
            return Ok(done);
        }
        let inside = || if several { team::with(body) } else { body() };
        if self.forks != forked::forks() {
            return Ok(forked::pool(self.threads)?.install(inside));
        }
        Ok(match &self.pool {
            Some(pool) => pool.install(inside),
            None => inside(),
        })
    }
}

/// Constants of a program that has none.
static EMPTY: Bound = Bound { base: Buffers(Vec::new()), made: None, file: None };

fn run(op: &Op, call: &Call<'_>, all: &[Option<Packed>]) -> Result<(), ExecError> {
    let packed = |slot: &usize| all.get(*slot).and_then(Option::as_ref);
    match op {
        // Steps after a failed check are skipped.
        Op::Several(list) => {
            let mut open = list.iter().filter_map(PlannedStep::op).take_while(|_| !call.fault.is_set());
            open.try_for_each(|op| run(op, call, all))
        }
        Op::Loop(k) => k.run(call),
        Op::Matmul(m, slot) => {
            m.run(call, packed(slot).and_then(|p| if let Packed::Matmul(b) = p { Some(b) } else { None }))
        }
        Op::Conv(c, slot) => chain::run(c, call, conv_weights(all, *slot), all),
        Op::Attention(a) => a.run(call),
        Op::AttentionBackward(a) => a.run(call),
        Op::Staged(s, slot) => s.run(call, packed(slot)),
        Op::Narrow(n, slot) => {
            n.run(call, packed(slot).and_then(|p| if let Packed::Narrow(w) = p { Some(w) } else { None }))
        }
        Op::Quantized(q, slot) => {
            q.run(call, packed(slot).and_then(|p| if let Packed::Quantized(w) = p { Some(w) } else { None }))
        }
        Op::Sort(s) => s.run(call),
        Op::Fourier(k) => k.run(call),
        Op::Linalg(l) => linalg::run(l, call),
        // `Running::run` runs it; no operation contains another one that is an exchange.
        Op::Exchange(_) => Err(ExecError::Malformed("an exchange within another step".into())),
    }
}

/// Runs a step as if it were alone: one that the next step would compute, or that computes the one before it.
fn run_alone(op: &Op, call: &Call<'_>, all: &[Option<Packed>]) -> Result<(), ExecError> {
    match op {
        Op::Conv(c, slot) => c.run(call, conv_weights(all, *slot)),
        other => run(other, call, all),
    }
}

/// Whether a step can be compiled, without compiling it. Preparing the step may add buffers to the program.
///
/// # Errors
/// The reason.
pub(crate) fn supports(program: &mut Program, step: &kernel_ir::Step) -> Result<(), ExecError> {
    prepare::supports(program, step, &mut jobs::Jobs::default())
}

/// Elements that sizes and strides span.
fn span(sizes: &[i64], strides: &[i64]) -> usize {
    if sizes.contains(&0) {
        return 0;
    }
    let last: i64 = sizes.iter().zip(strides).map(|(n, s)| (n - 1) * s).sum();
    last.max(0) as usize + 1
}

fn byte_size(buffer: &Buffer, sizes: &Sizes) -> Result<usize, ExecError> {
    let elements = sizes.eval(&buffer.span())?.max(0) as usize;
    let bytes = elements.checked_mul(buffer.dtype.size()).filter(|b| *b <= isize::MAX as usize);
    bytes.ok_or(ExecError::OutOfMemory(usize::MAX))
}

/// The pool for a number of threads; the global one if it has that number.
fn pool(threads: usize) -> Result<Option<Arc<rayon::ThreadPool>>, ExecError> {
    match threads == rayon::current_num_threads() {
        true => Ok(None),
        false => forked::pool(threads).map(Some),
    }
}
