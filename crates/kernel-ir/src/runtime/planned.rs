//! The steps of a program as an executor runs them: control flow here, everything else an operation of the executor's own.

use ir_core::{DType, EntityId, SymExpr, SymId};

use super::RunError;
use crate::{BufId, Footprint, Operand, Program, Step, Storage};

/// A step as an executor runs it; `O` are the executor's operations.
#[derive(Debug)]
pub struct PlannedStep<O> {
    /// The step's name, for messages.
    pub name: String,
    /// What is done.
    pub node: Node<O>,
    /// The buffers of unbacked size that it writes; steps within control flow have their own.
    pub dynamic: Vec<BufId>,
    /// Numbers of the inputs that it stores to, where calls write them in place.
    pub inputs: Vec<usize>,
}

/// What a step is to an executor.
#[derive(Debug)]
pub enum Node<O> {
    /// An operation of the executor.
    Op(O),
    /// Steps in order.
    Several(Vec<PlannedStep<O>>),
    /// Reads one number into a symbol.
    Bind {
        /// The symbol.
        symbol: SymId,
        /// Where its value lies.
        from: Number,
    },
    /// Ends the call where a condition does not hold.
    Assert {
        /// What to say then.
        message: String,
        /// The condition.
        pred: Number,
    },
    /// One of two lists.
    Cond {
        /// Which of them.
        pred: Number,
        /// Where the condition holds.
        then: Vec<PlannedStep<O>>,
        /// Where it does not.
        otherwise: Vec<PlannedStep<O>>,
    },
    /// A list for each value of a symbol from 0 on.
    For {
        /// The symbol.
        symbol: SymId,
        /// How often.
        count: SymExpr,
        /// What is repeated.
        body: Vec<PlannedStep<O>>,
    },
    /// A list as long as a condition holds.
    While {
        /// Computes the condition.
        cond: Vec<PlannedStep<O>>,
        /// The condition.
        pred: Number,
        /// What is repeated.
        body: Vec<PlannedStep<O>>,
    },
}

/// One number in memory.
#[derive(Clone, Debug)]
pub struct Number {
    /// The buffer (no view) whose memory it lies in.
    pub root: BufId,
    /// Its type.
    pub dtype: DType,
    /// How many elements lie before it.
    pub offset: SymExpr,
}

impl<O> PlannedStep<O> {
    /// A step; what it writes is looked up where it is an operation.
    pub fn new(program: &Program, step: &Step, node: Node<O>) -> PlannedStep<O> {
        let own: &[&Step] = if matches!(node, Node::Op(_)) { &[step] } else { &[] };
        PlannedStep::of_all(program, step.name(), own, node)
    }

    /// Several steps that are run as one.
    pub fn of_all(program: &Program, name: &str, steps: &[&Step], node: Node<O>) -> PlannedStep<O> {
        let written: Vec<BufId> = steps.iter().flat_map(|s| Footprint::of(program, s).writes).collect();
        let input = |b: &BufId| match program.buffers[*b].storage {
            Storage::Input(n) => Some(n as usize),
            _ => None,
        };
        let inputs = written.iter().filter_map(input).collect();
        let dynamic = written.into_iter().filter(|b| program.is_dynamic(*b)).collect();
        PlannedStep { name: name.to_owned(), node, dynamic, inputs }
    }

    /// The executor's operation, where it is one.
    pub fn op(&self) -> Option<&O> {
        match &self.node {
            Node::Op(op) => Some(op),
            _ => None,
        }
    }
}

impl<O> Node<O> {
    /// The lists of steps in it.
    pub fn lists(&self) -> Vec<&[PlannedStep<O>]> {
        match self {
            Node::Op(_) | Node::Bind { .. } | Node::Assert { .. } => Vec::new(),
            Node::Several(list) => vec![list],
            Node::Cond { then, otherwise, .. } => vec![then, otherwise],
            Node::For { body, .. } => vec![body],
            Node::While { cond, body, .. } => vec![cond, body],
        }
    }
    /// The same lists, to be changed.
    pub fn lists_mut(&mut self) -> Vec<&mut Vec<PlannedStep<O>>> {
        match self {
            Node::Op(_) | Node::Bind { .. } | Node::Assert { .. } => Vec::new(),
            Node::Several(list) => vec![list],
            Node::Cond { then, otherwise, .. } => vec![then, otherwise],
            Node::For { body, .. } => vec![body],
            Node::While { cond, body, .. } => vec![cond, body],
        }
    }
}

impl Number {
    /// The one element of an operand.
    pub fn new(program: &Program, operand: &Operand) -> Number {
        let dtype = program.buffers[operand.buf].dtype;
        Number { root: program.root(operand.buf), dtype, offset: operand.offset.clone() }
    }

    /// The number of the buffer that it lies in.
    pub fn root(&self) -> usize {
        self.root.index()
    }

    /// The value of its bytes, which stand at the beginning of the array.
    ///
    /// # Errors
    /// The number is neither an integer nor a truth value.
    pub fn value(&self, bytes: [u8; 8]) -> Result<i64, RunError> {
        let [a, b, c, d, ..] = bytes;
        Ok(match self.dtype {
            DType::Bool | DType::U8 => i64::from(a),
            DType::I8 => i64::from(a.cast_signed()),
            DType::I16 => i64::from(i16::from_ne_bytes([a, b])),
            DType::I32 => i64::from(i32::from_ne_bytes([a, b, c, d])),
            DType::I64 => i64::from_ne_bytes(bytes),
            other => return Err(RunError::NumberType(other)),
        })
    }
}

/// Turns steps into an executor's operations.
pub trait Plan {
    /// The executor's operations.
    type Op;
    /// Why a step cannot be run.
    type Error;
    /// The program that the steps are of.
    fn program(&self) -> &Program;
    /// The operations of a list of steps.
    ///
    /// # Errors
    /// The first step that cannot be run.
    fn list(&mut self, steps: &[Step]) -> Result<Vec<PlannedStep<Self::Op>>, Self::Error>;
}

/// A step of control flow with its lists planned; `None` where it is none.
///
/// # Errors
/// A step within it that cannot be run.
pub fn control<P: Plan>(plan: &mut P, step: &Step) -> Result<Option<Node<P::Op>>, P::Error> {
    Ok(Some(match step {
        Step::Bind(b) => Node::Bind { symbol: b.symbol, from: Number::new(plan.program(), &b.from) },
        Step::Assert(a) => {
            Node::Assert { message: a.message.clone(), pred: Number::new(plan.program(), &a.pred) }
        }
        Step::Cond(c) => Node::Cond {
            pred: Number::new(plan.program(), &c.pred),
            then: plan.list(&c.then)?,
            otherwise: plan.list(&c.otherwise)?,
        },
        Step::For(f) => Node::For { symbol: f.symbol, count: f.count.clone(), body: plan.list(&f.body)? },
        Step::While(w) => Node::While {
            cond: plan.list(&w.cond)?,
            pred: Number::new(plan.program(), &w.pred),
            body: plan.list(&w.body)?,
        },
        Step::Loop(_)
        | Step::Matmul(_)
        | Step::Conv(_)
        | Step::Attention(_)
        | Step::Extern(_)
        | Step::Together(_) => return Ok(None),
    }))
}
