//! From steps to operations: which kernels there are, how they are launched, what control flow surrounds them.

use std::collections::VecDeque;

use gpu_codegen::{ENTRY, Kernel, Launch, PRELUDE, Param, Target, TensorMap, variants};
use host_routines::MatrixRoutine;
use ir_core::{DType, EntityId, SymExpr, SymId};
use kernel_ir::{BufId, ExternOp, Operand, Program, Step};
use rayon::prelude::*;
use rustc_hash::FxHashMap;

use crate::profile::{Traffic, traffic};
use crate::{Choice, Driver, GpuError, LibraryCall, Module, Part};

/// Kernels of one module where there are many: the prelude is not all of it then.
pub(crate) const MOST_PER_MODULE: usize = 8;
/// Modules that are compiled at once are more than any host has cores, where there are kernels for so many.
const MODULES: usize = 64;

/// One operation and the buffers of unbacked size that it writes.
pub(crate) struct Planned {
    pub(crate) op: Op,
    pub(crate) dynamic: Vec<usize>,
}

pub(crate) enum Op {
    /// A step that the device computes, by number of [`Kernels::steps`].
    Device(usize),
    /// A routine that the host runs on copies.
    Host(MatrixRoutine),
    Bind {
        name: String,
        symbol: SymId,
        from: Number,
    },
    Assert {
        name: String,
        message: String,
        pred: Number,
    },
    Cond {
        pred: Number,
        then: Vec<Planned>,
        otherwise: Vec<Planned>,
    },
    For {
        symbol: SymId,
        count: SymExpr,
        body: Vec<Planned>,
    },
    While {
        cond: Vec<Planned>,
        pred: Number,
        body: Vec<Planned>,
    },
}

/// One number in memory.
pub(crate) struct Number {
    pub(crate) root: usize,
    pub(crate) dtype: DType,
    pub(crate) offset: SymExpr,
}

/// The kernels of a program, equal ones once.
#[derive(Default)]
pub(crate) struct Kernels {
    /// The steps that the device computes.
    pub(crate) steps: Vec<DeviceStep>,
    texts: Vec<(String, String)>,
    known: FxHashMap<String, usize>,
}

/// A step that the device computes, and the ways of computing it: the best by rule first, never none.
pub(crate) struct DeviceStep {
    pub(crate) name: String,
    pub(crate) ways: Vec<Way>,
    /// The way that is taken.
    pub(crate) chosen: usize,
    /// Numbers of the buffers (no views) that it uses.
    pub(crate) roots: Vec<usize>,
    /// What it reads and writes.
    pub(crate) traffic: Vec<Traffic>,
}

impl DeviceStep {
    /// The way that is taken.
    pub(crate) fn way(&self) -> Option<&Way> {
        self.ways.get(self.chosen)
    }
}

/// A way of computing a step whose kernels have numbers.
pub(crate) struct Way {
    /// For tables and logs.
    pub(crate) name: String,
    pub(crate) parts: Vec<Runnable>,
    pub(crate) scratch: Vec<SymExpr>,
}

/// A part of a way.
pub(crate) enum Runnable {
    Kernel(Launchable),
    Library(Box<dyn LibraryCall>),
}

/// How a kernel is launched; `function` is the number of its text.
pub(crate) struct Launchable {
    pub(crate) function: usize,
    pub(crate) params: Vec<Param>,
    pub(crate) maps: Vec<TensorMap>,
    pub(crate) launch: Launch,
}

/// Turns steps into operations.
pub(crate) struct Planner<'a> {
    program: &'a Program,
    target: &'a Target,
    library: Library<'a>,
    /// Whether every way of a step is kept, not only the first.
    all: bool,
    /// The ways of steps that are not planned yet, in their order.
    ways: VecDeque<Result<Vec<Choice>, GpuError>>,
    pub(crate) kernels: Kernels,
}

/// The ways of a step that the driver's libraries offer.
pub(crate) type Library<'a> = &'a (dyn Fn(&Step) -> Vec<Choice> + Sync);

impl<'a> Planner<'a> {
    pub(crate) fn new(
        program: &'a Program,
        target: &'a Target,
        library: Library<'a>,
        all: bool,
    ) -> Planner<'a> {
        Planner { program, target, library, all, ways: VecDeque::new(), kernels: Kernels::default() }
    }

    /// The operations of a list of steps. The ways of all of them are looked for at once: libraries are asked and texts
    /// are written on all cores.
    pub(crate) fn plan(&mut self, steps: &[Step]) -> Result<Vec<Planned>, GpuError> {
        let mut list = Vec::new();
        of_device(steps, &mut list);
        let ways: Vec<_> = list.into_par_iter().map(|step| self.choices(step)).collect();
        self.ways = ways.into();
        self.operations(steps)
    }

    fn operations(&mut self, steps: &[Step]) -> Result<Vec<Planned>, GpuError> {
        steps.iter().map(|step| self.planned(step)).collect()
    }

    fn planned(&mut self, step: &Step) -> Result<Planned, GpuError> {
        let program = self.program;
        let number = |o: &Operand| {
            let root = program.root(o.buf);
            Number { root: root.index(), dtype: program.buffers[o.buf].dtype, offset: o.offset.clone() }
        };
        let op = match step {
            Step::Bind(b) => Op::Bind { name: b.name.clone(), symbol: b.symbol, from: number(&b.from) },
            Step::Assert(a) => {
                Op::Assert { name: a.name.clone(), message: a.message.clone(), pred: number(&a.pred) }
            }
            Step::Cond(c) => Op::Cond {
                pred: number(&c.pred),
                then: self.operations(&c.then)?,
                otherwise: self.operations(&c.otherwise)?,
            },
            Step::For(f) => {
                Op::For { symbol: f.symbol, count: f.count.clone(), body: self.operations(&f.body)? }
            }
            Step::While(w) => Op::While {
                cond: self.operations(&w.cond)?,
                pred: number(&w.pred),
                body: self.operations(&w.body)?,
            },
            Step::Extern(call) => match call.op {
                ExternOp::Linalg { op, complex } => Op::Host(
                    MatrixRoutine::new(program, call, op, complex)
                        .map_err(|e| GpuError::Malformed(e.to_string()))?,
                ),
                ExternOp::Sort { .. } | ExternOp::AttentionBackward { .. } => {
                    Op::Device(self.device_step(step)?)
                }
            },
            _ => Op::Device(self.device_step(step)?),
        };
        // Nested steps have their own.
        let writes: Vec<BufId> = if step.nested().is_empty() { step.accesses().1 } else { Vec::new() };
        let mut dynamic: Vec<usize> = writes
            .into_iter()
            .map(|b| program.root(b))
            .filter(|b| program.is_dynamic(*b))
            .map(|b| b.index())
            .collect();
        dynamic.dedup();
        Ok(Planned { op, dynamic })
    }

    /// The ways of a step, the best by rule first.
    fn choices(&self, step: &Step) -> Result<Vec<Choice>, GpuError> {
        let refused = |e: gpu_codegen::GenError| GpuError::Unsupported {
            kernel: step.name().into(),
            reason: e.to_string(),
        };
        // A convolution of a library whose result a second kernel has to go through takes longer than a generated one with
        // the epilogue in it: measured on an H200 in bf16, 24 of 24 such shapes of ResNet-152. In tf32 it is the other way round.
        let narrow = matches!(step, Step::Conv(k) if self.program.buffers[k.input.buf].dtype.size() == 2);
        let late = |c: &Choice| narrow && c.parts.len() > 1;
        let (behind, mut choices): (Vec<Choice>, Vec<Choice>) =
            (self.library)(step).into_iter().partition(late);
        if self.all || choices.is_empty() {
            let generated = variants(self.program, step, self.target).map_err(refused)?;
            choices.extend(generated.into_iter().map(Choice::from));
        }
        choices.extend(behind);
        if !self.all {
            choices.truncate(1);
        }
        Ok(choices)
    }

    fn device_step(&mut self, step: &Step) -> Result<usize, GpuError> {
        let choices = self.ways.pop_front().unwrap_or_else(|| self.choices(step))?;
        let ways = choices.into_iter().map(|c| self.kernels.way(c, step.name())).collect();
        let (reads, writes) = step.accesses();
        let mut roots: Vec<usize> =
            reads.into_iter().chain(writes).map(|b| self.program.root(b).index()).collect();
        roots.sort_unstable();
        roots.dedup();
        self.kernels.steps.push(DeviceStep {
            name: step.name().to_owned(),
            ways,
            chosen: 0,
            roots,
            traffic: traffic(self.program, step),
        });
        Ok(self.kernels.steps.len() - 1)
    }
}

/// The steps that the device computes, nested ones too, in the order in which they are planned.
fn of_device<'s>(steps: &'s [Step], out: &mut Vec<&'s Step>) {
    for step in steps {
        match step {
            Step::Bind(_) | Step::Assert(_) => {}
            Step::Cond(_) | Step::For(_) | Step::While(_) => {
                step.nested().into_iter().for_each(|s| of_device(s, out));
            }
            Step::Extern(call) if matches!(call.op, ExternOp::Linalg { .. }) => {}
            _ => out.push(step),
        }
    }
}

impl Kernels {
    fn way(&mut self, choice: Choice, step: &str) -> Way {
        let part = |part| match part {
            Part::Kernel(kernel) => Runnable::Kernel(self.launchable(kernel, step)),
            Part::Library(call) => Runnable::Library(call),
        };
        Way {
            name: choice.name,
            parts: choice.parts.into_iter().map(part).collect(),
            scratch: choice.scratch,
        }
    }

    fn launchable(&mut self, kernel: Kernel, step: &str) -> Launchable {
        let Kernel { source, params, maps, launch, .. } = kernel;
        let function = match self.known.get(&source) {
            Some(&n) => n,
            None => {
                let n = self.texts.len();
                let entry = format!("k{n}_{}", identifier(step));
                self.texts.push((entry.clone(), source.replace(ENTRY, &entry)));
                self.known.insert(source, n);
                n
            }
        };
        Launchable { function, params, maps, launch }
    }

    /// The text of a kernel.
    pub(crate) fn text(&self, function: usize) -> &str {
        self.texts.get(function).map_or("", |(_, text)| text.as_str())
    }

    /// All texts, so many to a module.
    pub(crate) fn modules(&self, each: usize) -> Vec<Module> {
        self.texts
            .chunks(each)
            .map(|part| Module {
                source: part.iter().fold(String::from(PRELUDE), |text, (_, kernel)| text + kernel),
                entries: part.iter().map(|(entry, _)| entry.clone()).collect(),
            })
            .collect()
    }

    /// Compiles all texts; the functions in the order of their numbers.
    pub(crate) fn compile<D: Driver>(&self, driver: &D) -> Result<Vec<D::Function>, GpuError> {
        let each = self.texts.len().div_ceil(MODULES).clamp(1, MOST_PER_MODULE);
        Ok(driver.compile(&self.modules(each))?.into_iter().flatten().collect())
    }
}

fn identifier(name: &str) -> String {
    name.chars().take(40).map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect()
}
