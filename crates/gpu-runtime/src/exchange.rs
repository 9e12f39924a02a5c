//! Exchanges between ranks as calls on the device's stream: the groups that a program was given, and the step that asks their
//! engine. An exchange has its place in the stream's order, so waiting for it later is nothing to do, and device graphs record it
//! like any other call.
//!
//! Not here: engines (plugins), and exchanges over memory of the host (`kernel_ir::runtime`).

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ir_core::{DType, SymExpr};
use kernel_ir::runtime::{Collectives, Exchange, ExchangeError, Ticket};
use kernel_ir::{Collective, CollectiveOp, ExternCall, ExternOp, Operand, Program, SELF_GROUP, Step};
use plugin_sdk::{Groups, Stream};
use rustc_hash::FxHashMap;

use crate::{Candidate, Driver, GpuError, LibraryCall, Part, Work};

/// The groups of a program's exchanges, given after it was compiled.
#[derive(Default)]
pub(crate) struct SharedGroups(Mutex<Attached>);

#[derive(Default)]
struct Attached {
    groups: Option<Groups>,
    /// The latest exchange of each group, by which the engine tells whether its ranks are still there.
    latest: FxHashMap<String, Latest>,
}

/// An exchange that was put on the stream.
#[derive(Clone)]
struct Latest {
    ticket: Ticket,
    call: Arc<Description>,
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
    fn lock(&self) -> MutexGuard<'_, Attached> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Replaces the groups.
    pub(crate) fn attach(&self, groups: Groups) {
        *self.lock() = Attached { groups: Some(groups), latest: FxHashMap::default() };
    }

    /// Whether the ranks of all exchanges so far are still there. Where one has gone, what the exchanges gave means nothing.
    ///
    /// # Errors
    /// The engine's, with the step.
    pub(crate) fn check(&self) -> Result<(), GpuError> {
        let attached = self.lock();
        let Some(groups) = &attached.groups else { return Ok(()) };
        attached
            .latest
            .values()
            .try_for_each(|latest| groups.wait(latest.ticket).map_err(|message| latest.call.failed(message)))
    }
}

/// Whether the step exchanges data with other ranks, or waits for that.
pub(crate) fn is_exchange(step: &Step) -> bool {
    matches!(step, Step::Extern(ExternCall { op: ExternOp::Collective(_) | ExternOp::Wait, .. }))
}

/// The one way to run an exchange or a wait; `None` where the step is neither.
pub(crate) fn candidate<D: Driver>(
    driver: &Arc<D>,
    groups: &Arc<SharedGroups>,
    program: &Program,
    step: &Step,
) -> Option<Candidate> {
    let Step::Extern(ExternCall { op, name, inputs, outputs, .. }) = step else { return None };
    let parts: Vec<Part> = match (op, &inputs[..], &outputs[..]) {
        (ExternOp::Wait, ..) => Vec::new(),
        (ExternOp::Collective(what), [input], [output]) => vec![Part::Library(Box::new(ExchangeCall {
            driver: Arc::clone(driver),
            groups: Arc::clone(groups),
            name: name.clone(),
            what: what.clone(),
            dtype: program.buffers[input.buf].dtype,
            input: input.clone(),
            output: output.clone(),
        }))],
        _ => return None,
    };
    Some(Candidate { name: "exchange".into(), parts, scratch: Vec::new(), in_place: None })
}

/// An exchange of a program.
struct ExchangeCall<D: Driver> {
    driver: Arc<D>,
    groups: Arc<SharedGroups>,
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

impl<D: Driver> ExchangeCall<D> {
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

    /// What the rank alone gets.
    ///
    /// # Safety
    /// As for [`LibraryCall::run`].
    unsafe fn alone(&self, from: &Place, to: &Place, bytes: usize) -> Result<(), GpuError> {
        if bytes == 0 {
            return Ok(());
        }
        match self.what.op {
            CollectiveOp::Shift { by, wraps: false } if by != 0 => {
                let zeros = vec![0u8; bytes];
                // SAFETY: the result has this many bytes by the caller's guarantee.
                unsafe { self.driver.upload(to.address, zeros.as_ptr(), bytes) }
            }
            // SAFETY: operand and result have this many bytes by the caller's guarantee, and are different buffers.
            _ => unsafe { self.driver.copy(to.address, from.address, bytes as u64) },
        }
    }
}

impl<D: Driver> LibraryCall for ExchangeCall<D> {
    unsafe fn run(&self, work: &Work<'_>) -> Result<(), GpuError> {
        let (from, to) = (self.place(&self.input, work)?, self.place(&self.output, work)?);
        let (takes, gives) = self.what.op.blocks();
        let blocks = match (takes, gives) {
            (true, _) => from.sizes.first(),
            (_, true) => to.sizes.first(),
            _ => None,
        };
        let mut attached = self.groups.lock();
        let (size, rank) = self.members(attached.groups.as_ref(), blocks.map(|n| *n as usize))?;
        let count = if takes { from.numel() / size.max(1) } else { from.numel() };
        if self.what.group == SELF_GROUP || count == 0 {
            // SAFETY: the caller's guarantee is passed on unchanged.
            return unsafe { self.alone(&from, &to, count * self.dtype.size()) };
        }
        let exchange = Exchange {
            step: &self.name,
            op: self.what.op,
            group: &self.what.group,
            dtype: self.dtype,
            count,
            send: from.address as *const u8,
            receive: to.address as *mut u8,
        };
        let (step, group) = (self.name.clone(), self.what.group.clone());
        let call = Arc::new(Description { step, what: self.what.op.name(), group, rank });
        let Some(groups) = &attached.groups else { return Err(call.failed("the group is gone".into())) };
        let stream = self.driver.stream();
        // SAFETY: both are device memory of the exchange's blocks, which later work of the stream alone uses.
        let ticket = unsafe { groups.start_on(&exchange, stream) }.map_err(|m| call.failed(m))?;
        if stream == Stream::DEFAULT {
            return groups.wait(ticket).map_err(|m| call.failed(m));
        }
        attached.latest.insert(call.group.clone(), Latest { ticket, call });
        Ok(())
    }
}
