//! The walk over a program's steps: branches, loops, symbols that steps bind, and when buffers get and lose their memory. Knows
//! no kernel and no memory: those are behind [`Exec`].

use ir_core::{SymId, Symbols};

use super::{Dynamic, Node, Number, PlannedStep, RunError, Sizes};
use crate::BufId;

/// What runs the operations of a call and holds its memory.
pub trait Exec {
    /// Its operations.
    type Op;
    /// What it may run into.
    type Error: From<RunError>;
    /// The values of the call's size symbols.
    fn sizes(&mut self) -> &mut Sizes;
    /// Runs an operation, whose buffers have memory.
    ///
    /// # Errors
    /// What the operation runs into.
    fn run(&mut self, step: &PlannedStep<Self::Op>, op: &Self::Op) -> Result<(), Self::Error>;
    /// Reads a number that a step before has written.
    ///
    /// # Errors
    /// The memory cannot be read, or holds no integers.
    fn read(&mut self, number: &Number) -> Result<i64, Self::Error>;
    /// Gives a buffer memory, by the sizes of now, where it has none.
    ///
    /// # Errors
    /// There is no memory.
    fn provide(&mut self, buffer: BufId) -> Result<(), Self::Error>;
    /// Takes a buffer's memory away.
    fn release(&mut self, buffer: BufId);
}

/// A call in progress.
#[derive(Debug)]
pub struct Machine<'a, E> {
    /// What runs its operations.
    pub exec: E,
    symbols: &'a Symbols,
    dynamic: &'a Dynamic,
}

impl<'a, E: Exec> Machine<'a, E> {
    /// A call of the program that has these symbols and this memory.
    pub fn new(exec: E, symbols: &'a Symbols, dynamic: &'a Dynamic) -> Machine<'a, E> {
        Machine { exec, symbols, dynamic }
    }

    /// Runs the program's own steps; memory goes after its last use.
    ///
    /// # Errors
    /// What a step runs into; what the program states and does not hold.
    pub fn run(&mut self, steps: &[PlannedStep<E::Op>]) -> Result<(), E::Error> {
        for (n, step) in steps.iter().enumerate() {
            self.step(step)?;
            self.dynamic.after(n).iter().for_each(|b| self.exec.release(*b));
        }
        Ok(())
    }

    fn list(&mut self, steps: &[PlannedStep<E::Op>]) -> Result<(), E::Error> {
        steps.iter().try_for_each(|step| self.step(step))
    }

    fn step(&mut self, step: &PlannedStep<E::Op>) -> Result<(), E::Error> {
        step.dynamic.iter().try_for_each(|b| self.exec.provide(*b))?;
        match &step.node {
            Node::Op(op) => self.exec.run(step, op),
            Node::Several(list) => self.list(list),
            Node::Bind { symbol, from } => {
                let value = self.exec.read(from)?;
                self.bind(&step.name, *symbol, value)
            }
            Node::Assert { message, pred } => match self.exec.read(pred)? {
                0 => Err(RunError::Assertion { step: step.name.clone(), message: message.clone() }.into()),
                _ => Ok(()),
            },
            Node::Cond { pred, then, otherwise } => {
                let taken = if self.exec.read(pred)? != 0 { then } else { otherwise };
                self.list(taken)
            }
            Node::For { symbol, count, body } => {
                for n in 0..self.exec.sizes().eval(count)? {
                    self.bind(&step.name, *symbol, n)?;
                    self.list(body)?;
                }
                Ok(())
            }
            Node::While { cond, pred, body } => loop {
                self.list(cond)?;
                if self.exec.read(pred)? == 0 {
                    return Ok(());
                }
                self.list(body)?;
            },
        }
    }

    /// Gives a symbol a value: buffers of sizes that mention it begin anew.
    fn bind(&mut self, step: &str, id: SymId, value: i64) -> Result<(), E::Error> {
        if let Some(symbol) = self.symbols.get(id).filter(|s| !s.contains(value)) {
            let (step, symbol, min, max) = (step.to_owned(), symbol.name.clone(), symbol.min, symbol.max);
            return Err(RunError::Range { step, value, symbol, min, max }.into());
        }
        self.exec.sizes().set(id, value);
        self.dynamic.of_symbol(id).iter().for_each(|b| self.exec.release(*b));
        Ok(())
    }
}
