//! Exchanges between ranks as executors run them: the interface of an engine ([`Collectives`]), and the steps of a program
//! over host memory ([`ExchangeStep`], [`Exchanges`]). No transport is here, and no memory: engines and executors have them.

use ir_core::{DType, SymExpr};

use super::{RunError, Sizes};
use crate::{Collective, CollectiveOp, Combine, ExternCall, ExternOp, Operand, Program, SELF_GROUP};

/// An exchange that an engine is asked to start. Blocks are row-major without gaps.
#[derive(Clone, Copy, Debug)]
pub struct Exchange<'a> {
    /// The step, for messages.
    pub step: &'a str,
    /// Its kind.
    pub op: CollectiveOp,
    /// The name of the group.
    pub group: &'a str,
    /// Element type.
    pub dtype: DType,
    /// Elements of a block.
    pub count: usize,
    /// The operand: one block, or one for each rank.
    pub send: *const u8,
    /// The result: one block, or one for each rank.
    pub receive: *mut u8,
}

/// The number of an exchange that was started, by which it is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ticket(pub u64);

/// What performs exchanges: the ranks' engine, joined to the groups of a program. Calls come from one thread at a time, and
/// on every rank of a group in one order.
pub trait Collectives: Send + Sync {
    /// The number of ranks of a group and this rank's number in it; `None` where there is no such group.
    fn group(&self, name: &str) -> Option<(usize, usize)>;
    /// Starts an exchange.
    ///
    /// # Safety
    /// `send` and `receive` are valid for the blocks that `exchange.op` takes and gives, do not overlap, and stay so, unread
    /// and unwritten by others, until [`wait`](Collectives::wait) has returned.
    ///
    /// # Errors
    /// A message that names the cause: a rank that is gone, a dtype that the engine does not combine.
    unsafe fn start(&self, exchange: &Exchange<'_>) -> Result<Ticket, String>;
    /// Returns when the exchange is complete.
    ///
    /// # Errors
    /// As for [`start`](Collectives::start).
    fn wait(&self, ticket: Ticket) -> Result<(), String>;
}

/// What a step over host memory has exchanged, or waited for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exchanged {
    /// What the step was: the name of an exchange, or `wait`.
    pub what: &'static str,
    /// The group of ranks.
    pub group: String,
    /// Bytes of its operand or its result, whichever are more.
    pub bytes: u64,
}

/// Why an exchange did not take place.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExchangeError {
    /// There is no engine, or it has no such group.
    #[error(
        "step `{step}` exchanges data with the ranks of group `{group}`, which this call does not have: run the program on a mesh with that axis"
    )]
    NoGroup {
        /// The step.
        step: String,
        /// The group.
        group: String,
    },
    /// The group has another number of ranks than the program has blocks.
    #[error("step `{step}` was compiled for {expected} ranks of group `{group}`, which has {got}")]
    Ranks {
        /// The step.
        step: String,
        /// The group.
        group: String,
        /// Of the program.
        expected: usize,
        /// Of the engine.
        got: usize,
    },
    /// The engine failed.
    #[error("step `{step}` ({what} over group `{group}`, rank {rank}): {message}")]
    Engine {
        /// The step.
        step: String,
        /// The kind of exchange.
        what: &'static str,
        /// The group.
        group: String,
        /// This rank's number in it.
        rank: usize,
        /// The engine's message.
        message: String,
    },
    /// A size has no value.
    #[error(transparent)]
    Size(#[from] RunError),
    /// A program that breaks the rules of kernel-ir.
    #[error("{0}")]
    Malformed(String),
}

/// A strided operand of an exchange.
#[derive(Clone, Debug)]
struct Place {
    root: usize,
    width: usize,
    offset: SymExpr,
    sizes: Vec<SymExpr>,
    strides: Vec<SymExpr>,
}

/// The values of a place in a call.
struct Extent {
    /// Of the first element, in bytes from the root's address.
    offset: isize,
    sizes: Vec<i64>,
    strides: Vec<i64>,
}

impl Extent {
    fn numel(&self) -> usize {
        self.sizes.iter().map(|s| (*s).max(0) as usize).product()
    }
    fn is_contiguous(&self) -> bool {
        let mut expected = 1;
        self.sizes.iter().zip(&self.strides).rev().all(|(size, stride)| {
            let fits = *size == 1 || *stride == expected;
            expected *= size;
            fits
        }) || self.numel() == 0
    }
    /// Calls `visit` with the distance in elements of every element, in row-major order.
    fn for_each(&self, visit: &mut dyn FnMut(isize)) {
        let count = self.numel();
        let mut index = vec![0i64; self.sizes.len()];
        for _ in 0..count {
            let at: i64 = index.iter().zip(&self.strides).map(|(i, s)| i * s).sum();
            visit(at as isize);
            for d in (0..index.len()).rev() {
                index[d] += 1;
                if index[d] < self.sizes[d] {
                    break;
                }
                index[d] = 0;
            }
        }
    }
}

impl Place {
    fn new(program: &Program, o: &Operand) -> Place {
        Place {
            root: program.root(o.buf).0 as usize,
            width: program.buffers[o.buf].dtype.size(),
            offset: o.offset.clone(),
            sizes: o.sizes.to_vec(),
            strides: o.strides.to_vec(),
        }
    }
    fn extent(&self, sizes: &Sizes) -> Result<Extent, RunError> {
        Ok(Extent {
            offset: sizes.eval(&self.offset)? as isize * self.width as isize,
            sizes: sizes.all(&self.sizes)?,
            strides: sizes.all(&self.strides)?,
        })
    }
}

/// A step that exchanges data or waits for an exchange, over host memory.
#[derive(Clone, Debug)]
pub struct ExchangeStep {
    name: String,
    /// `None` is a wait.
    what: Option<Collective>,
    dtype: DType,
    input: Place,
    output: Place,
}

/// An exchange in progress.
struct Started {
    output: usize,
    ticket: Ticket,
    step: ExchangeStep,
    rank: usize,
    bytes: u64,
    /// The operand without gaps, where its memory has some, which lives until the exchange is complete.
    _packed: Option<Vec<u64>>,
    /// The result, where its memory has gaps, and where it goes.
    scattered: Option<(Vec<u64>, *mut u8, Extent)>,
}

// SAFETY: the pointer is to memory of the call that holds the exchange, which one thread at a time runs.
unsafe impl Send for Started {}

/// The exchanges of a call: the engine, and what was started. Dropping it waits for whatever is still in progress, because
/// the engine uses the call's memory until then.
pub struct Exchanges<'a> {
    engine: Option<&'a dyn Collectives>,
    started: Vec<Started>,
}

impl<'a> Exchanges<'a> {
    /// None so far, with the engine where there is one.
    pub fn new(engine: Option<&'a dyn Collectives>) -> Exchanges<'a> {
        Exchanges { engine, started: Vec::new() }
    }
}

impl Drop for Exchanges<'_> {
    fn drop(&mut self) {
        for started in self.started.drain(..) {
            if let Some(engine) = self.engine {
                // A failure was, or will be, reported by the step that failed.
                let _ = engine.wait(started.ticket);
            }
        }
    }
}

impl ExchangeStep {
    /// The step of a call; `None` where it is another routine.
    ///
    /// # Errors
    /// Operands of the wrong number.
    pub fn new(program: &Program, call: &ExternCall) -> Result<Option<ExchangeStep>, ExchangeError> {
        let what = match &call.op {
            ExternOp::Collective(c) => Some(c.clone()),
            ExternOp::Wait => None,
            _ => return Ok(None),
        };
        let ([input], [output]) = (&call.inputs[..], &call.outputs[..]) else {
            let found = format!("the exchange `{}` takes one tensor and gives one", call.name);
            return Err(ExchangeError::Malformed(found));
        };
        Ok(Some(ExchangeStep {
            name: call.name.clone(),
            what,
            dtype: program.buffers[input.buf].dtype,
            input: Place::new(program, input),
            output: Place::new(program, output),
        }))
    }

    /// Runs the step in a call's memory; `address` gives that of a buffer by the number of its root. Tells what it has exchanged
    /// or waited for; `None` where nothing concerns another rank.
    ///
    /// # Safety
    /// `address` gives host memory in which all elements of the operand and the result lie, at these sizes, and which stays
    /// until `exchanges` is dropped.
    ///
    /// # Errors
    /// A group that does not exist or has other ranks, and what the engine reports.
    pub unsafe fn run(
        &self,
        address: &dyn Fn(usize) -> *mut u8,
        sizes: &Sizes,
        exchanges: &mut Exchanges<'_>,
    ) -> Result<Option<Exchanged>, ExchangeError> {
        let Some(what) = &self.what else {
            let done = self.complete(exchanges)?;
            return Ok(done.map(|(group, bytes)| Exchanged { what: "wait", group, bytes }));
        };
        let (input, output) = (self.input.extent(sizes)?, self.output.extent(sizes)?);
        let from = address(self.input.root).wrapping_offset(input.offset);
        let to = address(self.output.root).wrapping_offset(output.offset);
        let (takes, gives) = what.op.blocks();
        let ranks = if takes {
            input.sizes.first()
        } else if gives {
            output.sizes.first()
        } else {
            None
        };
        let (size, rank) = self.group(what, exchanges, ranks.map(|n| *n as usize))?;
        let width = self.input.width;
        // SAFETY: the caller answers for the memory of every element.
        let packed = (!input.is_contiguous()).then(|| unsafe { gather(from, &input, width) });
        let send = packed.as_ref().map_or(from.cast_const(), |p| p.as_ptr().cast());
        let words = (output.numel() * width).div_ceil(size_of::<u64>());
        let mut scattered = (!output.is_contiguous()).then(|| vec![0u64; words]);
        let receive = scattered.as_mut().map_or(to, |s| s.as_mut_ptr().cast());
        let count = if takes { input.numel() / size.max(1) } else { input.numel() };
        let bytes = (input.numel().max(output.numel()) * width) as u64;
        let started = |ticket, step| Started {
            output: self.output.root,
            ticket,
            step,
            rank,
            bytes,
            _packed: packed,
            scattered: scattered.map(|s| (s, to, output)),
        };
        if what.group == SELF_GROUP || count == 0 {
            // SAFETY: operand and result have `count` elements each in this group, and are different buffers.
            unsafe {
                match what.op {
                    CollectiveOp::Shift { by, wraps: false } if by != 0 => {
                        receive.write_bytes(0, count * width)
                    }
                    _ => std::ptr::copy_nonoverlapping(send, receive, count * width),
                }
            }
            started(Ticket(0), self.clone()).finish(width);
            return Ok(None);
        }
        let exchange = Exchange {
            step: &self.name,
            op: what.op,
            group: &what.group,
            dtype: self.dtype,
            count,
            send,
            receive,
        };
        let engine = exchanges.engine.ok_or_else(|| self.no_group(what))?;
        // SAFETY: operand and result are valid by the caller's guarantee or the copies above, which live until the wait, and
        // programs do not use them in between.
        let ticket = unsafe { engine.start(&exchange) }.map_err(|m| self.failed(what, rank, m))?;
        exchanges.started.push(started(ticket, self.clone()));
        if !what.asynchronous {
            self.complete(exchanges)?;
        }
        Ok(Some(Exchanged { what: what.op.name(), group: what.group.clone(), bytes }))
    }

    /// Waits for the exchange into this step's result, and tells its group and bytes; none where the group is that of the rank
    /// alone.
    fn complete(&self, exchanges: &mut Exchanges<'_>) -> Result<Option<(String, u64)>, ExchangeError> {
        let mine = |s: &Started| s.output == self.output.root;
        let Some(at) = exchanges.started.iter().position(mine) else { return Ok(None) };
        let started = exchanges.started.remove(at);
        let (Some(engine), Some(what)) = (exchanges.engine, &started.step.what) else { return Ok(None) };
        engine.wait(started.ticket).map_err(|message| started.step.failed(what, started.rank, message))?;
        let about = (what.group.clone(), started.bytes);
        started.finish(self.input.width);
        Ok(Some(about))
    }

    /// Number of ranks and own number of the group.
    fn group(
        &self,
        what: &Collective,
        exchanges: &Exchanges<'_>,
        expected: Option<usize>,
    ) -> Result<(usize, usize), ExchangeError> {
        let found = match &what.group {
            own if own == SELF_GROUP => Some((1, 0)),
            name => exchanges.engine.and_then(|e| e.group(name)),
        };
        let (got, rank) = found.ok_or_else(|| self.no_group(what))?;
        if let Some(expected) = expected.filter(|n| *n != got) {
            let (step, group) = (self.name.clone(), what.group.clone());
            return Err(ExchangeError::Ranks { step, group, expected, got });
        }
        Ok((got, rank))
    }

    fn no_group(&self, what: &Collective) -> ExchangeError {
        ExchangeError::NoGroup { step: self.name.clone(), group: what.group.clone() }
    }

    fn failed(&self, what: &Collective, rank: usize, message: String) -> ExchangeError {
        let (step, group) = (self.name.clone(), what.group.clone());
        ExchangeError::Engine { step, what: what.op.name(), group, rank, message }
    }
}

impl Started {
    /// Copies a result without gaps to where it belongs.
    fn finish(self, width: usize) {
        let Some((packed, to, extent)) = self.scattered else { return };
        let mut from = packed.as_ptr().cast::<u8>();
        extent.for_each(&mut |at| {
            // SAFETY: the result's elements are valid by the guarantee of the caller of `run`; `packed` has as many.
            unsafe {
                std::ptr::copy_nonoverlapping(from, to.wrapping_offset(at * width as isize), width);
                from = from.add(width);
            }
        });
    }
}

/// The elements of a strided operand in row-major order.
///
/// # Safety
/// All elements are readable.
unsafe fn gather(from: *const u8, extent: &Extent, width: usize) -> Vec<u64> {
    let mut packed = vec![0u64; (extent.numel() * width).div_ceil(size_of::<u64>())];
    let mut to = packed.as_mut_ptr().cast::<u8>();
    extent.for_each(&mut |at| {
        // SAFETY: the caller answers for the source; `packed` has room for every element.
        unsafe {
            std::ptr::copy_nonoverlapping(from.wrapping_offset(at * width as isize), to, width);
            to = to.add(width);
        }
    });
    packed
}

/// Combines `b` into `a`, both of `count` elements: the reference by which engines on a host may reduce. Truth values are
/// combined as numbers, so that the largest is true where any is. A mean is a sum here: the engine divides at the end by
/// [`divide`].
///
/// # Safety
/// Both are valid for `count` elements of `dtype`, aligned, and do not overlap.
///
/// # Errors
/// A complex dtype, which no combination but the sum is defined on and no program combines.
#[allow(clippy::eq_op)] // what differs from itself is not a number
pub unsafe fn combine_into(
    how: Combine,
    dtype: DType,
    a: *mut u8,
    b: *const u8,
    count: usize,
) -> Result<(), String> {
    macro_rules! each {
        ($t:ty, $sum:expr, $prod:expr, $less:expr) => {{
            // SAFETY: the caller answers for both arrays.
            let (a, b) = unsafe {
                (
                    std::slice::from_raw_parts_mut(a.cast::<$t>(), count),
                    std::slice::from_raw_parts(b.cast::<$t>(), count),
                )
            };
            let (sum, prod, less): (fn($t, $t) -> $t, fn($t, $t) -> $t, fn($t, $t) -> bool) =
                ($sum, $prod, $less);
            let nan = |v: $t| v != v;
            for (x, y) in a.iter_mut().zip(b) {
                *x = match how {
                    Combine::Sum | Combine::Mean => sum(*x, *y),
                    Combine::Prod => prod(*x, *y),
                    // `NaN` wins.
                    Combine::Max => {
                        if !nan(*x) && (nan(*y) || less(*x, *y)) {
                            *y
                        } else {
                            *x
                        }
                    }
                    Combine::Min => {
                        if !nan(*x) && (nan(*y) || less(*y, *x)) {
                            *y
                        } else {
                            *x
                        }
                    }
                };
            }
        }};
    }
    macro_rules! integers {
        ($t:ty) => {
            each!($t, |a, b| a.wrapping_add(b), |a, b| a.wrapping_mul(b), |a, b| a < b)
        };
    }
    macro_rules! halves {
        ($t:ty) => {
            each!(
                $t,
                |a, b| <$t>::from_f32(a.to_f32() + b.to_f32()),
                |a, b| <$t>::from_f32(a.to_f32() * b.to_f32()),
                |a, b| a < b
            )
        };
    }
    match dtype {
        DType::Bool => each!(u8, |a, b| a | b, |a, b| a & b, |a, b| a < b),
        DType::U8 => integers!(u8),
        DType::I8 => integers!(i8),
        DType::I16 => integers!(i16),
        DType::I32 => integers!(i32),
        DType::I64 => integers!(i64),
        DType::F16 => halves!(half::f16),
        DType::BF16 => halves!(half::bf16),
        DType::F32 => each!(f32, |a, b| a + b, |a, b| a * b, |a, b| a < b),
        DType::F64 => each!(f64, |a, b| a + b, |a, b| a * b, |a, b| a < b),
        other => return Err(format!("values of {other} are not combined between ranks")),
    }
    Ok(())
}

/// Divides all elements by a number of ranks: the last step of a mean.
///
/// # Safety
/// `a` is valid for `count` elements of `dtype`, aligned.
pub unsafe fn divide(dtype: DType, a: *mut u8, count: usize, ranks: usize) {
    macro_rules! each {
        ($t:ty, $divide:expr) => {{
            // SAFETY: the caller answers for the array.
            let a = unsafe { std::slice::from_raw_parts_mut(a.cast::<$t>(), count) };
            let divide: fn($t, usize) -> $t = $divide;
            a.iter_mut().for_each(|x| *x = divide(*x, ranks));
        }};
    }
    match dtype {
        DType::F16 => each!(half::f16, |x, n| half::f16::from_f32(x.to_f32() / n as f32)),
        DType::BF16 => each!(half::bf16, |x, n| half::bf16::from_f32(x.to_f32() / n as f32)),
        DType::F32 => each!(f32, |x, n| x / n as f32),
        DType::F64 => each!(f64, |x, n| x / n as f64),
        DType::I64 => each!(i64, |x, n| x / n as i64),
        DType::I32 => each!(i32, |x, n| x / n as i32),
        // A mean of narrow integers has no use.
        _ => {}
    }
}
