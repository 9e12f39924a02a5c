//! The run of a program's operations: control flow, symbols that steps bind, and the memory of buffers whose size they
//! tell. Knows no kernel: those run behind [`Op`].

use std::sync::Arc;

use ir_core::{Atom, DType, EntityId, SymExpr, SymId};
use kernel_ir::{BufId, Operand, Program, Step, Storage};

use super::error::Written;
use super::memory::Block;
use super::sizes::Sizes;
use super::{Buffers, Call, ExecError, Op, Packed, byte_size};
use crate::clif::{self, Code, Fault, OutOfBounds};

/// An operation and the buffers of unbacked size that it writes.
pub(super) struct Planned {
    pub(super) op: Op,
    name: String,
    dynamic: Vec<usize>,
    /// Numbers of the inputs that it stores to, where calls write them in place.
    inputs: Vec<usize>,
}

impl Planned {
    pub(super) fn new(program: &Program, step: &Step, op: Op) -> Planned {
        // Nested steps of control flow have their own.
        let writes = if matches!(op, Op::Control(_)) { Vec::new() } else { step.accesses().1 };
        let roots: Vec<BufId> = writes.into_iter().map(|b| program.root(b)).collect();
        let input = |b: &BufId| match program.buffers[*b].storage {
            Storage::Input(n) => Some(n as usize),
            _ => None,
        };
        let dynamic = roots.iter().filter(|b| program.is_dynamic(**b)).map(|b| b.index()).collect();
        let (name, inputs) = (step.name().to_owned(), roots.iter().filter_map(input).collect());
        Planned { op, name, dynamic, inputs }
    }
}

/// One number in memory.
pub(super) struct Number {
    root: usize,
    dtype: DType,
    offset: SymExpr,
}

impl Number {
    pub(super) fn new(program: &Program, o: &Operand) -> Number {
        let root = program.root(o.buf).index();
        Number { root, dtype: program.buffers[o.buf].dtype, offset: o.offset.clone() }
    }

    fn read(&self, buffers: &Buffers, sizes: &Sizes) -> Result<i64, ExecError> {
        let at = sizes.eval(&self.offset)? as isize;
        let base = buffers.0[self.root];
        // SAFETY: the verifier has seen that the operand is one element of the buffer's dtype, and the step that wrote it
        // has run.
        unsafe {
            Ok(match self.dtype {
                DType::Bool | DType::U8 => i64::from(base.offset(at).read()),
                DType::I8 => i64::from(base.cast::<i8>().offset(at).read()),
                DType::I16 => i64::from(base.cast::<i16>().offset(at).read_unaligned()),
                DType::I32 => i64::from(base.cast::<i32>().offset(at).read_unaligned()),
                DType::I64 => base.cast::<i64>().offset(at).read_unaligned(),
                other => return Err(ExecError::Malformed(format!("a symbol is bound from {other}"))),
            })
        }
    }
}

/// Control flow.
pub(super) enum Control {
    Bind { name: String, symbol: SymId, from: Number },
    Assert { name: String, message: String, pred: Number },
    Cond { pred: Number, then: Vec<Planned>, otherwise: Vec<Planned> },
    For { name: String, symbol: SymId, count: SymExpr, body: Vec<Planned> },
    While { cond: Vec<Planned>, pred: Number, body: Vec<Planned> },
}

impl Control {
    /// The lists of operations in it.
    pub(super) fn nested(&self) -> Vec<&[Planned]> {
        match self {
            Control::Bind { .. } | Control::Assert { .. } => Vec::new(),
            Control::Cond { then, otherwise, .. } => vec![then, otherwise],
            Control::For { body, .. } => vec![body],
            Control::While { cond, body, .. } => vec![cond, body],
        }
    }
    fn nested_mut(&mut self) -> Vec<&mut Vec<Planned>> {
        match self {
            Control::Bind { .. } | Control::Assert { .. } => Vec::new(),
            Control::Cond { then, otherwise, .. } => vec![then, otherwise],
            Control::For { body, .. } => vec![body],
            Control::While { cond, body, .. } => vec![cond, body],
        }
    }
}

/// Numbers the operations that may hold packed weights, nested ones too; gives how many there are.
pub(super) fn number_packs(ops: &mut [Planned], next: &mut usize) {
    for planned in ops {
        match &mut planned.op {
            Op::Matmul(_, slot) | Op::Conv(_, slot) | Op::Staged(_, slot) => {
                *slot = *next;
                *next += 1;
            }
            Op::Several(list) => number_packs(list, next),
            Op::Control(c) => c.nested_mut().into_iter().for_each(|list| number_packs(list, next)),
            _ => {}
        }
    }
}

/// What a program tells of memory that only its run can lay out.
pub(super) struct Dynamic {
    /// For each symbol the buffers whose size mentions it, where it is unbacked.
    by_symbol: Vec<Vec<usize>>,
    /// For each step of the program the buffers that are not used after it.
    frees: Vec<Vec<usize>>,
}

impl Dynamic {
    pub(super) fn new(program: &Program) -> Dynamic {
        let mut by_symbol = vec![Vec::new(); program.symbols.len()];
        let owned = |s: &Storage| matches!(s, Storage::Arena | Storage::Output);
        for (id, buffer) in program.buffers.iter().filter(|(_, b)| owned(&b.storage)) {
            let mut mentioned: Vec<SymId> = Vec::new();
            for e in buffer.sizes.iter().chain(&buffer.strides) {
                e.for_each_leaf(&mut |a| {
                    if let Atom::Sym(s) = a {
                        mentioned.push(*s)
                    }
                });
            }
            mentioned.sort_unstable();
            mentioned.dedup();
            mentioned.retain(|s| program.symbols.get(*s).is_some_and(|s| s.unbacked));
            mentioned.iter().for_each(|s| by_symbol[s.index()].push(id.index()));
        }
        let mut frees = vec![Vec::new(); program.steps.len()];
        for live in &program.plan.dynamic {
            if let Some(list) = frees.get_mut(live.last as usize) {
                list.push(live.buf.index());
            }
        }
        Dynamic { by_symbol, frees }
    }
}

/// A call in progress.
pub(super) struct Machine<'a> {
    pub(super) program: &'a Program,
    pub(super) code: &'a Code,
    pub(super) dynamic: &'a Dynamic,
    pub(super) packed: &'a [Option<Packed>],
    pub(super) buffers: Buffers,
    pub(super) sizes: Sizes,
    /// Memory of outputs and of buffers of unbacked size, by buffer.
    pub(super) blocks: Vec<Option<Arc<Block>>>,
    /// Where kernels record an index out of bounds.
    pub(super) fault: Fault,
    /// Inputs, by number, whose steps write a copy that goes to the caller when the call has succeeded.
    pub(super) copied: &'a [usize],
    /// Inputs, by number, whose memory a step that has begun stores to.
    pub(super) begun: Vec<usize>,
}

impl Machine<'_> {
    /// Runs the program's own steps; memory goes after its last use.
    pub(super) fn run(&mut self, steps: &[Planned]) -> Result<(), ExecError> {
        for (n, planned) in steps.iter().enumerate() {
            self.step(planned)?;
            for &buffer in self.dynamic.frees.get(n).into_iter().flatten() {
                self.forget(buffer);
            }
        }
        Ok(())
    }

    fn list(&mut self, steps: &[Planned]) -> Result<(), ExecError> {
        steps.iter().try_for_each(|p| self.step(p))
    }

    fn step(&mut self, planned: &Planned) -> Result<(), ExecError> {
        for &buffer in &planned.dynamic {
            self.provide(buffer)?;
        }
        if let Op::Control(c) = &planned.op {
            return self.control(c);
        }
        for &input in planned.inputs.iter().filter(|n| !self.copied.contains(n)) {
            if !self.begun.contains(&input) {
                self.begun.push(input);
            }
        }
        self.operation(planned)?;
        self.fault.get().map_or(Ok(()), |found| Err(self.out_of_bounds(&planned.name, found)))
    }

    fn operation(&self, planned: &Planned) -> Result<(), ExecError> {
        let Machine { buffers, sizes, code, fault, .. } = self;
        let call = Call { buffers, sizes, code, fault };
        if !tracing::enabled!(target: "step", tracing::Level::TRACE) {
            return super::run(&planned.op, &call, self.packed);
        }
        let start = std::time::Instant::now();
        let done = super::run(&planned.op, &call, self.packed);
        let ns = start.elapsed().as_nanos() as u64;
        tracing::trace!(target: "step", program = self.program.name, step = planned.name, ns);
        done
    }

    /// The error of an index that a kernel of a step found to be outside.
    fn out_of_bounds(&self, step: &str, OutOfBounds { site, index, size }: OutOfBounds) -> ExecError {
        // PROOF: the verifier saw that checks name sites that the program has.
        let message = self.program.sites[site as usize].message(index, size);
        let inputs = &self.program.inputs;
        let written = if self.begun.is_empty() {
            Written { any: inputs.iter().any(|i| i.written), begun: Vec::new() }
        } else {
            Written { any: true, begun: self.begun.iter().map(|n| inputs[*n].name.clone()).collect() }
        };
        ExecError::Index { step: step.to_owned(), message, index, size, written }
    }

    fn control(&mut self, control: &Control) -> Result<(), ExecError> {
        match control {
            Control::Bind { name, symbol, from } => {
                let value = from.read(&self.buffers, &self.sizes)?;
                self.check(name, *symbol, value)?;
                self.bind(*symbol, value);
            }
            Control::Assert { name, message, pred } => {
                if !self.truth(pred)? {
                    return Err(ExecError::Assertion { name: name.clone(), message: message.clone() });
                }
            }
            Control::Cond { pred, then, otherwise } => {
                let taken = if self.truth(pred)? { then } else { otherwise };
                self.list(taken)?;
            }
            Control::For { name, symbol, count, body } => {
                for n in 0..self.sizes.eval(count)? {
                    self.check(name, *symbol, n)?;
                    self.bind(*symbol, n);
                    self.list(body)?;
                }
            }
            Control::While { cond, pred, body } => loop {
                self.list(cond)?;
                if !self.truth(pred)? {
                    break;
                }
                self.list(body)?;
            },
        }
        Ok(())
    }

    fn truth(&self, number: &Number) -> Result<bool, ExecError> {
        number.read(&self.buffers, &self.sizes).map(|n| n != 0)
    }

    fn check(&self, step: &str, symbol: SymId, value: i64) -> Result<(), ExecError> {
        let decl = &self.program.symbols[symbol];
        if value >= decl.min && decl.max.is_none_or(|max| value <= max) {
            return Ok(());
        }
        let max = decl.max.map_or(String::new(), |m| format!("={m}"));
        let range = format!("{}..{max}", decl.min);
        Err(ExecError::Bound { step: step.into(), value, range, symbol: decl.name.clone() })
    }

    /// A new value: buffers of sizes that mention the symbol begin anew.
    fn bind(&mut self, symbol: SymId, value: i64) {
        self.sizes.0[symbol.index()] = value;
        let dynamic = self.dynamic;
        for &buffer in dynamic.by_symbol.get(symbol.index()).into_iter().flatten() {
            self.forget(buffer);
        }
    }

    fn forget(&mut self, buffer: usize) {
        self.blocks[buffer] = None;
        self.buffers.0[buffer] = clif::ZEROS.address() as *mut u8;
    }

    /// Memory for a buffer that has none.
    pub(super) fn provide(&mut self, buffer: usize) -> Result<(), ExecError> {
        if self.blocks[buffer].is_none() {
            let decl = &self.program.buffers[BufId::from_index(buffer)];
            let block = Arc::new(Block::new(byte_size(decl, &self.sizes)?)?);
            self.buffers.0[buffer] = block.ptr();
            self.blocks[buffer] = Some(block);
        }
        Ok(())
    }
}
