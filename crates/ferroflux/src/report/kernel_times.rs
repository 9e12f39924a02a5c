//! The time of each kernel of a program alone: a program of one step, on zeros, with its memory kept from call to call.

use std::time::{Duration, Instant};

use ir_core::SymExpr;
use kernel_ir::{ArenaPlan, BufId, Const, InputSpec, Program, Step, Storage as Place};
use plugin_host::{LoadedBackend, Value};
use tensor::{Storage, Tensor};

use crate::Options;
use crate::code::executable;
use crate::pipeline::Kernels;

/// Calls that are timed, of which the fastest counts.
const CALLS: usize = 5;
/// No further call after this time.
const LONG: Duration = Duration::from_millis(100);
/// No further kernel after this time.
const ALL: Duration = Duration::from_secs(20);

/// Seconds of each step of a call; `None` for steps that cannot run alone (control flow, symbolic sizes, updates in place) and
/// for those that there was no time for.
pub(super) fn alone(program: &Program, backend: &LoadedBackend, options: &Options) -> Vec<Option<f64>> {
    let start = Instant::now();
    let one = |step: &Step| match start.elapsed() < ALL {
        true => seconds(&program_of(program, step)?, backend, options),
        false => None,
    };
    program.steps.iter().map(one).collect()
}

/// A program of one step: what it reads are inputs and constants, what it writes is in the arena.
fn program_of(program: &Program, step: &Step) -> Option<Program> {
    if matches!(step, Step::Bind(_) | Step::Assert(_) | Step::Cond(_) | Step::For(_) | Step::While(_)) {
        return None;
    }
    let (reads, writes) = step.accesses();
    let roots = |list: Vec<BufId>| list.into_iter().map(|b| program.root(b)).collect::<Vec<BufId>>();
    let (reads, writes) = (roots(reads), roots(writes));
    let (mut inputs, mut constants) = (Vec::new(), Vec::new());
    let mut buffers = program.buffers.clone();
    for (id, buffer) in buffers.iter_mut() {
        let was = std::mem::replace(&mut buffer.storage, Place::Arena);
        buffer.storage = match was {
            Place::View(of) => Place::View(of),
            _ if writes.contains(&id) || !reads.contains(&id) => Place::Arena,
            Place::Constant(_) | Place::Persistent => {
                constants.push(Const { name: format!("c{}", constants.len()), buf: id, range: None });
                Place::Constant(constants.len() as u32 - 1)
            }
            _ => {
                inputs.push(InputSpec { name: format!("x{}", inputs.len()), buf: id, written: false });
                Place::Input(inputs.len() as u32 - 1)
            }
        };
    }
    let mut alone = Program {
        buffers,
        inputs,
        constants,
        outputs: Vec::new(),
        init: Vec::new(),
        steps: vec![step.clone()],
        guards: Vec::new(),
        ..program.clone()
    };
    alone.plan = ArenaPlan::of(&alone);
    kernel_ir::verify(&alone).ok()?;
    Some(alone)
}

fn seconds(program: &Program, backend: &LoadedBackend, options: &Options) -> Option<f64> {
    let kernels = Kernels { program: program.clone(), in_place: Vec::new() };
    let mut code = executable(&kernels, backend, options, None).ok()?;
    let zeros = |buf: BufId| zeros(program, buf);
    let constants = program.constants.iter().map(|c| Some((c.name.as_str(), zeros(c.buf)?)));
    let constants: Vec<(&str, Value)> = constants.collect::<Option<_>>()?;
    code.bind_values(&constants.iter().map(|(name, v)| (*name, v)).collect::<Vec<_>>()).ok()?;
    let inputs: Vec<Value> = program.inputs.iter().map(|i| zeros(i.buf)).collect::<Option<_>>()?;
    let given: Vec<&Value> = inputs.iter().collect();
    let begin = Instant::now();
    let mut best = f64::INFINITY;
    for n in 0..=CALLS {
        let start = Instant::now();
        code.execute_values(&given).ok()?;
        // The first call finds cold memory.
        if n > 0 {
            best = best.min(start.elapsed().as_secs_f64());
        }
        if n > 0 && begin.elapsed() > LONG {
            break;
        }
    }
    Some(best)
}

/// A tensor of zeros with the sizes and strides of a buffer, in memory that was written once (pages that nothing wrote are all
/// the same one, which would be in the cache). `None` where sizes are not numbers.
fn zeros(program: &Program, buf: BufId) -> Option<Value> {
    let buffer = &program.buffers[buf];
    let number = |s: &SymExpr| s.as_const().and_then(|n| usize::try_from(n).ok());
    let sizes: Vec<usize> = buffer.sizes.iter().map(number).collect::<Option<_>>()?;
    let strides: Vec<usize> = buffer.strides.iter().map(number).collect::<Option<_>>()?;
    let strides: Vec<isize> = strides.into_iter().map(|n| n as isize).collect();
    let bytes = number(&buffer.span())?.checked_mul(buffer.dtype.size())?;
    let storage = Storage::from_bytes(&vec![0; bytes]).ok()?;
    Tensor::new(storage, buffer.dtype, &sizes, &strides, 0).ok().map(Value::Host)
}
