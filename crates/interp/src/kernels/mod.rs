//! Executes kernel-ir programs: the oracle that every backend is compared with. Loop kernels are evaluated point by point;
//! templates use the typed reference loops of `tensor::linalg`.
//!
//! Every index is checked against its buffer's sizes, memory starts out filled with a pattern (`NaN` for floats), and
//! float sums are kept in `f64`. Each arena buffer has separate memory unless [`Options::planned_arena`] asks for the
//! program's memory plan, so a plan that lets two live buffers overlap shows as a difference between both runs.

mod body;
mod error;
mod linalg;
mod loops;
mod memory;
mod steps;

use ir_core::SymExpr;
use kernel_ir::{Const, Program, Storage as Place};
use tensor::{Storage, Tensor};

pub use self::error::KernelError;
use self::memory::Memory;
use crate::{Bindings, Conflict};

/// How a program is run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Lays out arena buffers by the program's memory plan, so that the plan is tested too.
    pub planned_arena: bool,
}

/// A program with its constants bound and its init steps run. Calls do not change it.
pub struct Executable {
    program: Program,
    options: Options,
    constants: Vec<Tensor>,
    /// Memory of `Persistent` buffers, by buffer number.
    persistent: Vec<Option<Storage>>,
}

/// Binds constants by name, and runs the program once.
pub fn run(
    program: &Program,
    constants: &dyn Fn(&str) -> Option<Tensor>,
    inputs: &[Tensor],
) -> Result<Vec<Tensor>, KernelError> {
    Executable::new(program.clone(), constants, Options::default())?.call(inputs)
}

impl Executable {
    /// Binds the constants and runs the init steps.
    ///
    /// # Errors
    /// A constant that is missing or does not fit, or whatever an init step runs into.
    pub fn new(
        program: Program,
        constants: &dyn Fn(&str) -> Option<Tensor>,
        options: Options,
    ) -> Result<Executable, KernelError> {
        let mut bindings = Bindings::new();
        let mut bound = Vec::new();
        for Const { name, buf, .. } in &program.constants {
            let tensor = constants(name).ok_or_else(|| KernelError::MissingConstant(name.clone()))?;
            bound.push(memory::conform(&program, (*buf, name, false), &tensor, &bindings)?);
        }
        let by_name = program.constants.iter().map(|c| &c.name).zip(&bound);
        for claim in program.constant_ranges() {
            let (low, high) = claim.range;
            let of = by_name.clone().filter(|(name, _)| **name == claim.name);
            if let Some(value) = of.filter_map(|(_, t)| t.first_outside(low, high)).next() {
                return Err(KernelError::ConstantRange { message: claim.message(value) });
            }
        }
        let persistent = program.buffers.ids().map(|_| None).collect();
        let mut executable = Executable { program, options, constants: bound, persistent };
        let mut memory = Memory::new(&executable.parts(&[]), &bindings, false)?;
        steps::all(&executable.program, &executable.program.init, &mut bindings, &mut memory)?;
        for (id, buffer) in executable.program.buffers.iter() {
            if buffer.storage == Place::Persistent {
                executable.persistent[id.0 as usize] = Some(memory.storage(id));
            }
        }
        Ok(executable)
    }

    /// The program.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// Runs the steps on tensors for the inputs in order; returns the outputs in order. The tensors stay as they are: new
    /// values of inputs that the program writes are dropped (see [`call_written`](Executable::call_written)).
    pub fn call(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>, KernelError> {
        self.call_written(&mut inputs.to_vec())
    }

    /// As [`call`](Executable::call), and leaves the new value of every input that the program writes in its place. After
    /// an error the inputs are what they were.
    pub fn call_written(&self, inputs: &mut [Tensor]) -> Result<Vec<Tensor>, KernelError> {
        let program = &self.program;
        if inputs.len() != program.inputs.len() {
            return Err(KernelError::InputCount { expected: program.inputs.len(), got: inputs.len() });
        }
        let mut bindings = bind(program, inputs)?;
        let mut memory = {
            let specs = program.inputs.iter().zip(&*inputs);
            let conform = |(spec, t): (&kernel_ir::InputSpec, &Tensor)| {
                memory::conform(program, (spec.buf, &spec.name, spec.written), t, &bindings)
            };
            let inputs = specs.map(conform).collect::<Result<Vec<_>, _>>()?;
            Memory::new(&self.parts(&inputs), &bindings, self.options.planned_arena)?
        };
        steps::all(program, &program.steps, &mut bindings, &mut memory)?;
        let outputs =
            program.outputs.iter().map(|o| memory.output(o, &bindings)).collect::<Result<_, _>>()?;
        let written = program.inputs.iter().zip(inputs).filter(|(spec, _)| spec.written);
        for (spec, input) in written {
            *input = memory.input(&spec.name, spec.buf)?;
        }
        Ok(outputs)
    }

    fn parts<'a>(&'a self, inputs: &'a [Tensor]) -> memory::Parts<'a> {
        memory::Parts {
            program: &self.program,
            inputs,
            constants: &self.constants,
            persistent: &self.persistent,
        }
    }
}

/// Values of the size symbols, from the inputs' sizes.
fn bind(program: &Program, inputs: &[Tensor]) -> Result<Bindings, KernelError> {
    let mut equations: Vec<(SymExpr, i64)> = Vec::new();
    let mut owners = Vec::new();
    for (spec, tensor) in program.inputs.iter().zip(inputs) {
        let buffer = &program.buffers[spec.buf];
        if buffer.sizes.len() != tensor.rank() || buffer.dtype != tensor.dtype() {
            return Err(memory::mismatch(buffer, &spec.name, tensor));
        }
        for (dim, (expr, &size)) in buffer.sizes.iter().zip(tensor.sizes()).enumerate() {
            equations.push((expr.clone(), size as i64));
            owners.push((&spec.name, dim));
        }
    }
    let mut bindings = Bindings::new();
    let refused = |(i, conflict): (usize, Conflict)| {
        let ((input, dim), (expr, value)) = (owners[i], &equations[i]);
        let problem = conflict.of_size(dim, expr, *value, &program.bounds());
        KernelError::Symbol { input: input.clone(), problem }
    };
    bindings.solve(&equations).map_err(refused)?;
    let symbols = program.symbols.iter().map(|(id, s)| (id, s.name.as_str(), s.min, s.max));
    match bindings.out_of_range(symbols, &equations) {
        Some(found) => Err(refused(found)),
        None => Ok(bindings),
    }
}

/// The value of a size expression.
fn size(expr: &SymExpr, bindings: &Bindings) -> Result<i64, KernelError> {
    bindings.eval(expr).ok_or_else(|| KernelError::Unbound(expr.to_string()))
}

/// The values of sizes, none negative.
fn sizes(exprs: &[SymExpr], bindings: &Bindings) -> Result<Vec<usize>, KernelError> {
    let one = |e: &SymExpr| {
        let value = size(e, bindings)?;
        usize::try_from(value).map_err(|_| KernelError::Negative { expr: e.to_string(), value })
    };
    exprs.iter().map(one).collect()
}
