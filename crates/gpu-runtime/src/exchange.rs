//! Exchanges between ranks as calls on the device's streams: the groups that a program was given, and the steps that ask their
//! engine. An exchange has its place in a stream's order, and device graphs record it like any other call. One that is only
//! started goes on a stream of its own, which waits for the work before it; the step that waits for it makes the device's stream
//! do so. Exchanges run one after another in the order of the program, on whatever stream, because all ranks must have one
//! order. Devices without streams wait for an engine where the program does.
//!
//! Not here: engines (plugins), which exchanges are one and which run beside other work (`overlap`), and exchanges over memory
//! of the host (`kernel_ir::runtime`).

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ir_core::{DType, SymExpr};
use kernel_ir::runtime::{Collectives, Exchange, ExchangeError, Sizes, Ticket};
use kernel_ir::{Collective, CollectiveOp, ExternCall, ExternOp, Operand, Program, SELF_GROUP, Step};
use plugin_sdk::{Groups, Stream};
use rustc_hash::FxHashMap;

use crate::overlap::{Role, Roles};
use crate::{Candidate, Driver, Exchanged, GpuError, LibraryCall, Part, SideStream, Timed, Work};

/// The groups of a program's exchanges, given after it was compiled, and what runs beside its other work.
pub(crate) struct SharedGroups {
    attached: Mutex<Attached>,
    /// The stream of exchanges that are only started, with a mark for each of them and one more.
    side: Option<Box<dyn SideStream>>,
    marks: usize,
}

#[derive(Default)]
struct Attached {
    groups: Option<Groups>,
    /// The latest exchange of each group, by which the engine tells whether its ranks are still there.
    latest: FxHashMap<String, Started>,
    /// The marks of the side stream that the device's stream has not waited for, in their order.
    open: Vec<usize>,
    /// Of devices without streams: what was started, by its mark.
    pending: Vec<(usize, Started)>,
    /// While the side stream is watched: the marks of its work, in order.
    watched: Option<Vec<usize>>,
}

/// An exchange that was started.
#[derive(Clone)]
struct Started {
    ticket: Ticket,
    call: Arc<Description>,
}

impl Started {
    fn wait(&self, groups: Option<&Groups>) -> Result<(), GpuError> {
        groups.map_or(Ok(()), |g| g.wait(self.ticket).map_err(|message| self.call.failed(message)))
    }
}

/// What messages say of an exchange.
struct Description {
    step: String,
    what: &'static str,
    group: String,
    rank: usize,
}

impl Description {
    fn failed(&self, message: String) -> GpuError {
        let (step, group) = (self.step.clone(), self.group.clone());
        ExchangeError::Engine { step, what: self.what, group, rank: self.rank, message }.into()
    }
}

impl SharedGroups {
    /// For a program with these roles, on a device.
    ///
    /// # Errors
    /// The device is lost.
    pub(crate) fn new<D: Driver>(driver: &D, roles: &Roles) -> Result<SharedGroups, GpuError> {
        let marks = roles.marks;
        let side = if marks > 0 { driver.side_stream(marks + 1)? } else { None };
        Ok(SharedGroups { attached: Mutex::default(), side, marks })
    }

    fn lock(&self) -> MutexGuard<'_, Attached> {
        self.attached.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Replaces the groups.
    pub(crate) fn attach(&self, groups: Groups) {
        *self.lock() = Attached { groups: Some(groups), ..Attached::default() };
    }

    /// Whether the ranks of all exchanges so far are still there. Where one has gone, what the exchanges gave means nothing.
    ///
    /// # Errors
    /// The engine's, with the step.
    pub(crate) fn check(&self) -> Result<(), GpuError> {
        let attached = self.lock();
        attached.latest.values().try_for_each(|latest| latest.wait(attached.groups.as_ref()))
    }

    /// Orders all exchanges before later work of the device's stream: nothing is under way behind a call, also behind one that
    /// has failed, whose memory others get.
    ///
    /// # Errors
    /// The device is lost, or a rank is.
    pub(crate) fn settle(&self) -> Result<(), GpuError> {
        let mut attached = self.lock();
        let pending = std::mem::take(&mut attached.pending);
        // All of them are waited for, and the first error counts.
        let done: Vec<_> =
            pending.iter().map(|(_, started)| started.wait(attached.groups.as_ref())).collect();
        // What was to be watched has failed.
        if let (Some(_), Some(side)) = (attached.watched.take(), &self.side) {
            side.watch(false);
        }
        if let (false, Some(side)) = (std::mem::take(&mut attached.open).is_empty(), &self.side) {
            // Marks may be those of a recording that was given up.
            side.mark(self.marks)?;
            side.join(self.marks)?;
        }
        done.into_iter().collect()
    }

    /// Notes the times of exchanges on the side stream from now on.
    pub(crate) fn watch(&self) {
        if let Some(side) = &self.side {
            side.watch(true);
            self.lock().watched = Some(Vec::new());
        }
    }

    /// The times of the exchanges on the side stream since it is watched, by their marks: from where the device's stream had come.
    /// It is no longer watched.
    ///
    /// # Errors
    /// The device is lost.
    pub(crate) fn watched(&self) -> Result<FxHashMap<usize, Timed>, GpuError> {
        let Some(side) = &self.side else { return Ok(FxHashMap::default()) };
        let spans = side.spans();
        side.watch(false);
        let marks = self.lock().watched.take().unwrap_or_default();
        Ok(marks.into_iter().zip(spans?).collect())
    }

    /// Orders all exchanges up to a mark before later work of the device's stream.
    fn join(&self, mark: usize) -> Result<(), GpuError> {
        let mut attached = self.lock();
        let (due, rest) = std::mem::take(&mut attached.pending).into_iter().partition(|(m, _)| *m <= mark);
        attached.pending = rest;
        let due: Vec<(usize, Started)> = due;
        let done: Vec<_> = due.iter().map(|(_, started)| started.wait(attached.groups.as_ref())).collect();
        let passed = attached.open.partition_point(|open| *open <= mark);
        // Exchanges without elements have set no mark.
        if let (Some(last), Some(side)) = (attached.open.drain(..passed).next_back(), &self.side) {
            side.join(last)?;
        }
        done.into_iter().collect()
    }
}

/// Whether the step exchanges data with other ranks, or waits for that.
pub(crate) fn is_exchange(step: &Step) -> bool {
    matches!(step, Step::Extern(ExternCall { op: ExternOp::Collective(_) | ExternOp::Wait, .. }))
}

/// Whether a list of steps has an exchange, nested ones included.
pub(crate) fn any(steps: &[Step]) -> bool {
    steps.iter().any(|step| is_exchange(step) || step.nested().into_iter().any(any))
}

/// The one way to run an exchange or a wait; `None` where the step is neither.
pub(crate) fn candidate<D: Driver>(
    driver: &Arc<D>,
    groups: &Arc<SharedGroups>,
    program: &Program,
    (step, roles): (&Step, &Roles),
) -> Option<Candidate> {
    if !is_exchange(step) {
        return None;
    }
    let parts = match roles.role(step) {
        Role::Nothing => Vec::new(),
        Role::Wait(mark) => vec![Part::Library(Box::new(WaitCall { groups: Arc::clone(groups), mark }))],
        Role::Start { members, mark } => {
            let members = members.iter().map(|call| Member::of(program, call)).collect::<Option<_>>()?;
            let (driver, groups) = (Arc::clone(driver), Arc::clone(groups));
            vec![Part::Library(Box::new(ExchangeCall { driver, groups, members, mark }))]
        }
    };
    Some(Candidate { name: "exchange".into(), parts, scratch: Vec::new(), in_place: None })
}

/// The wait for exchanges that were started.
struct WaitCall {
    groups: Arc<SharedGroups>,
    mark: usize,
}

impl LibraryCall for WaitCall {
    unsafe fn run(&self, _: &Work<'_>) -> Result<(), GpuError> {
        self.groups.join(self.mark)
    }

    fn exchanged(&self, _: &Sizes) -> Option<Exchanged> {
        let (group, mark) = (String::new(), Some(self.mark));
        Some(Exchanged { what: "wait", group, bytes: 0, exchanges: 0, mark })
    }
}

/// Exchanges of a program that start as one.
struct ExchangeCall<D: Driver> {
    driver: Arc<D>,
    groups: Arc<SharedGroups>,
    members: Vec<Member>,
    /// Where they run beside the work behind them.
    mark: Option<usize>,
}

/// One of them.
struct Member {
    name: String,
    what: Collective,
    dtype: DType,
    input: Operand,
    output: Operand,
}

/// The evaluated place of an operand.
struct Place {
    address: u64,
    sizes: Vec<i64>,
}

impl Place {
    fn numel(&self) -> usize {
        self.sizes.iter().map(|s| (*s).max(0) as usize).product()
    }
}

/// An exchange with the places of a call.
struct Placed<'a> {
    member: &'a Member,
    from: Place,
    to: Place,
    count: usize,
    rank: usize,
}

impl Placed<'_> {
    /// As an engine gets it; `None` where the rank has it alone.
    fn exchange(&self) -> Option<Exchange<'_>> {
        let what = &self.member.what;
        (what.group != SELF_GROUP && self.count > 0).then(|| Exchange {
            step: &self.member.name,
            op: what.op,
            group: &what.group,
            dtype: self.member.dtype,
            count: self.count,
            send: self.from.address as *const u8,
            receive: self.to.address as *mut u8,
        })
    }

    fn description(&self) -> Description {
        let Member { name, what, .. } = self.member;
        Description { step: name.clone(), what: what.op.name(), group: what.group.clone(), rank: self.rank }
    }

    /// What the rank alone gets.
    ///
    /// # Safety
    /// As for [`LibraryCall::run`].
    unsafe fn alone<D: Driver>(&self, driver: &D) -> Result<(), GpuError> {
        let bytes = self.count * self.member.dtype.size();
        if bytes == 0 {
            return Ok(());
        }
        match self.member.what.op {
            CollectiveOp::Shift { by, wraps: false } if by != 0 => {
                let zeros = vec![0u8; bytes];
                // SAFETY: the result has this many bytes by the caller's guarantee.
                unsafe { driver.upload(self.to.address, zeros.as_ptr(), bytes) }
            }
            // SAFETY: operand and result have this many bytes by the caller's guarantee, and are different buffers.
            _ => unsafe { driver.copy(self.to.address, self.from.address, bytes as u64) },
        }
    }
}

impl Member {
    fn of(program: &Program, call: &ExternCall) -> Option<Member> {
        let (ExternOp::Collective(what), [input], [output]) = (&call.op, &call.inputs[..], &call.outputs[..])
        else {
            return None;
        };
        Some(Member {
            name: call.name.clone(),
            what: what.clone(),
            dtype: program.buffers[input.buf].dtype,
            input: input.clone(),
            output: output.clone(),
        })
    }

    /// Bytes of the operand or the result, whichever are more.
    fn bytes(&self, sizes: &Sizes) -> u64 {
        let elements = |o: &Operand| {
            let size = |e: &SymExpr| sizes.eval(e).unwrap_or(0).max(0) as u64;
            o.sizes.iter().map(size).product::<u64>()
        };
        elements(&self.input).max(elements(&self.output)) * self.dtype.size() as u64
    }

    fn place(&self, operand: &Operand, work: &Work<'_>) -> Result<Place, GpuError> {
        let all = |list: &[SymExpr]| list.iter().map(work.size).collect::<Result<Vec<i64>, GpuError>>();
        let (sizes, strides) = (all(&operand.sizes)?, all(&operand.strides)?);
        let mut expected = 1;
        let dense = sizes.iter().zip(&strides).rev().all(|(size, stride)| {
            let fits = *size == 1 || *stride == expected;
            expected *= size;
            fits
        });
        if !dense && !sizes.contains(&0) {
            return Err(GpuError::Unsupported {
                kernel: self.name.clone(),
                reason: format!(
                    "exchanges memory with gaps or in another order, strides {strides:?} of sizes {sizes:?}; make the tensor contiguous before"
                ),
            });
        }
        let at = (work.size)(&operand.offset)?.max(0) as u64 * self.dtype.size() as u64;
        Ok(Place { address: (work.address)(operand.buf) + at, sizes })
    }

    /// Number of ranks and own number of the group, which has as many as the program has blocks for.
    fn members(&self, groups: Option<&Groups>, blocks: Option<usize>) -> Result<(usize, usize), GpuError> {
        let (step, group) = (self.name.clone(), self.what.group.clone());
        let found = match &self.what.group {
            own if own == SELF_GROUP => Some((1, 0)),
            name => groups.and_then(|g| g.group(name)),
        };
        let Some((size, rank)) = found else { return Err(ExchangeError::NoGroup { step, group }.into()) };
        match blocks {
            Some(expected) if expected != size => {
                Err(ExchangeError::Ranks { step, group, expected, got: size }.into())
            }
            _ => Ok((size, rank)),
        }
    }

    fn placed(&self, work: &Work<'_>, groups: Option<&Groups>) -> Result<Placed<'_>, GpuError> {
        let (from, to) = (self.place(&self.input, work)?, self.place(&self.output, work)?);
        let (takes, gives) = self.what.op.blocks();
        let blocks = match (takes, gives) {
            (true, _) => from.sizes.first(),
            (_, true) => to.sizes.first(),
            _ => None,
        };
        let (size, rank) = self.members(groups, blocks.map(|n| *n as usize))?;
        let count = if takes { from.numel() / size.max(1) } else { from.numel() };
        Ok(Placed { member: self, from, to, count, rank })
    }
}

impl<D: Driver> ExchangeCall<D> {
    /// Starts exchanges on a stream; the tickets are in their order.
    ///
    /// # Safety
    /// As for [`LibraryCall::run`].
    unsafe fn start(
        &self,
        groups: &Groups,
        all: &[&Placed<'_>],
        stream: Stream,
    ) -> Result<Vec<Started>, GpuError> {
        let exchanges: Vec<Exchange<'_>> = all.iter().filter_map(|p| p.exchange()).collect();
        let failed = |(n, message): (usize, String)| match all.get(n) {
            Some(placed) => placed.description().failed(message),
            None => GpuError::Malformed(message),
        };
        // SAFETY: all are device memory of the exchanges' blocks, which other work uses in the streams' order alone.
        let tickets = unsafe { groups.start_several_on(&exchanges, stream) }.map_err(failed)?;
        let started = |(placed, ticket): (&&Placed<'_>, Ticket)| {
            let call = Arc::new(placed.description());
            Started { ticket, call }
        };
        Ok(all.iter().zip(tickets).map(started).collect())
    }
}

impl<D: Driver> LibraryCall for ExchangeCall<D> {
    unsafe fn run(&self, work: &Work<'_>) -> Result<(), GpuError> {
        let mut attached = self.groups.lock();
        let attached = &mut *attached;
        let groups = attached.groups.as_ref();
        let placed = self.members.iter().map(|m| m.placed(work, groups));
        let placed = placed.collect::<Result<Vec<Placed<'_>>, GpuError>>()?;
        let (with, alone): (Vec<&Placed<'_>>, Vec<&Placed<'_>>) =
            placed.iter().partition(|p| p.exchange().is_some());
        // SAFETY: the caller's guarantee is passed on unchanged.
        alone.into_iter().try_for_each(|p| unsafe { p.alone(&*self.driver) })?;
        let (Some(groups), Some(last)) = (groups, with.last()) else { return Ok(()) };
        let group = last.member.what.group.clone();
        let own = self.driver.stream();
        let started = match (self.mark, &self.groups.side) {
            (Some(mark), Some(side)) => {
                // From here on the stream has work that is waited for behind a failure too.
                attached.open.push(mark);
                side.follow()?;
                // SAFETY: the caller's guarantee; until the mark is waited for, no other work uses the results or writes the
                // operands, by the program's waits and the memory plan.
                let started = unsafe { self.start(groups, &with, side.stream()) }?;
                side.mark(mark)?;
                attached.watched.iter_mut().for_each(|marks| marks.push(mark));
                started
            }
            _ => {
                if let (Some(last), Some(side)) = (attached.open.drain(..).next_back(), &self.groups.side) {
                    side.join(last)?;
                }
                // SAFETY: the caller's guarantee is passed on unchanged.
                unsafe { self.start(groups, &with, own) }?
            }
        };
        match (self.mark, own == Stream::DEFAULT) {
            (Some(mark), true) => attached.pending.extend(started.into_iter().map(|s| (mark, s))),
            (None, true) => started.iter().try_for_each(|s| s.wait(Some(groups)))?,
            (_, false) => drop(started.into_iter().last().map(|s| attached.latest.insert(group, s))),
        }
        Ok(())
    }

    fn exchanged(&self, sizes: &Sizes) -> Option<Exchanged> {
        let first = self.members.first().filter(|m| m.what.group != SELF_GROUP)?;
        let (what, group) = (first.what.op.name(), first.what.group.clone());
        let bytes = self.members.iter().map(|m| m.bytes(sizes)).sum();
        Some(Exchanged { what, group, bytes, exchanges: self.members.len() as u64, mark: self.mark })
    }

    /// An engine's work on a stream is in the stream's order. That on the side stream is not followed by the program's kernels, and
    /// what a rank has alone is a copy.
    fn lets_launches_overlap(&self) -> bool {
        self.mark.is_none() && self.members.iter().all(|m| m.what.group != SELF_GROUP)
    }
}
