//! From steps to operations: which kernels there are, how they are launched, what control flow surrounds them.

use gpu_codegen::{Kernel, PRELUDE, Param, generate};
use host_routines::MatrixRoutine;
use ir_core::{DType, EntityId, SymExpr, SymId};
use kernel_ir::{BufId, ExternOp, Operand, Program, Step};
use rustc_hash::FxHashMap;

use crate::{Driver, GpuError, Module};

/// Kernels of one module: few enough that modules compile in parallel, many enough that the prelude is not all of it.
const KERNELS_PER_MODULE: usize = 8;

/// One operation and the buffers of unbacked size that it writes.
pub(crate) struct Planned {
    pub(crate) op: Op,
    pub(crate) dynamic: Vec<usize>,
}

pub(crate) enum Op {
    /// A kernel, by number.
    Kernel(usize),
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
    pub(crate) list: Vec<Launchable>,
    texts: Vec<(String, String)>,
    known: FxHashMap<String, usize>,
}

/// How a kernel is launched; `function` is the number of its text.
pub(crate) struct Launchable {
    pub(crate) name: String,
    pub(crate) function: usize,
    pub(crate) params: Vec<Param>,
    pub(crate) blocks: SymExpr,
    pub(crate) threads: u32,
}

/// The operations of a list of steps.
pub(crate) fn plan(
    program: &Program,
    steps: &[Step],
    kernels: &mut Kernels,
) -> Result<Vec<Planned>, GpuError> {
    steps.iter().map(|step| planned(program, step, kernels)).collect()
}

fn planned(program: &Program, step: &Step, kernels: &mut Kernels) -> Result<Planned, GpuError> {
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
            then: plan(program, &c.then, kernels)?,
            otherwise: plan(program, &c.otherwise, kernels)?,
        },
        Step::For(f) => {
            Op::For { symbol: f.symbol, count: f.count.clone(), body: plan(program, &f.body, kernels)? }
        }
        Step::While(w) => Op::While {
            cond: plan(program, &w.cond, kernels)?,
            pred: number(&w.pred),
            body: plan(program, &w.body, kernels)?,
        },
        Step::Extern(call) => match call.op {
            ExternOp::Linalg { op, complex } => Op::Host(
                MatrixRoutine::new(program, call, op, complex)
                    .map_err(|e| GpuError::Malformed(e.to_string()))?,
            ),
            ExternOp::Sort { .. } => Op::Kernel(kernels.add(program, step)?),
        },
        _ => Op::Kernel(kernels.add(program, step)?),
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

/// Entry points have this name until they are numbered: equal kernels then have equal texts.
const ENTRY: &str = "ENTRY_POINT";

impl Kernels {
    fn add(&mut self, program: &Program, step: &Step) -> Result<usize, GpuError> {
        let refused = |e: gpu_codegen::GenError| GpuError::Unsupported {
            kernel: step.name().into(),
            reason: e.to_string(),
        };
        let Kernel { source, params, launch, .. } = generate(program, step, ENTRY).map_err(refused)?;
        let function = match self.known.get(&source) {
            Some(&n) => n,
            None => {
                let n = self.texts.len();
                let entry = format!("k{n}_{}", identifier(step.name()));
                self.texts.push((entry.clone(), source.replace(ENTRY, &entry)));
                self.known.insert(source, n);
                n
            }
        };
        self.list.push(Launchable {
            name: step.name().to_owned(),
            function,
            params,
            blocks: launch.blocks,
            threads: launch.threads,
        });
        Ok(self.list.len() - 1)
    }

    /// All texts, some to a module.
    pub(crate) fn modules(&self) -> Vec<Module> {
        self.texts
            .chunks(KERNELS_PER_MODULE)
            .map(|part| Module {
                source: part.iter().fold(String::from(PRELUDE), |text, (_, kernel)| text + kernel),
                entries: part.iter().map(|(entry, _)| entry.clone()).collect(),
            })
            .collect()
    }

    /// Compiles all texts; the functions in the order of their numbers.
    pub(crate) fn compile<D: Driver>(&self, driver: &D) -> Result<Vec<D::Function>, GpuError> {
        Ok(driver.compile(&self.modules())?.into_iter().flatten().collect())
    }
}

fn identifier(name: &str) -> String {
    name.chars().take(40).map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect()
}
