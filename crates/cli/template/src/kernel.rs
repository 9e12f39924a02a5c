//! An interpreter of loop kernels and epilogues: for every point of the outer domain it runs the stages in order, for every
//! point of a stage's inner domain its body. The meaning of an operator is in one place, `ScalarOp::eval`; a compiler for a
//! device would emit code instead of calling it.

use plugin_sdk::ir_core::{Atom, Scalar, SymExpr};
use plugin_sdk::kernel_ir::runtime::Sizes;
use plugin_sdk::kernel_ir::{
    AccDecl, BufId, Inst, InstKind, LoopKernel, Program, ReduceOp, Step, StoreMode, Val,
};
use plugin_sdk::{DType, PluginError};

use crate::memory::{Memory, for_each_index};
use crate::number;
use crate::products;

/// Runs steps in order.
pub(crate) fn run(
    program: &Program,
    steps: &[Step],
    sizes: &Sizes,
    memory: &mut Memory,
) -> Result<(), PluginError> {
    for step in steps {
        let ran = match step {
            Step::Together(members) => run(program, &members.steps, sizes, memory),
            Step::Loop(kernel) => run_kernel(program, kernel, sizes, memory),
            Step::Matmul(product) => products::matmul(program, product, sizes, memory),
            Step::Conv(conv) => products::conv(program, conv, sizes, memory),
            // `support` has refused everything else before.
            _ => Err(PluginError::unsupported("not a step of this backend")),
        };
        ran.map_err(|e| e.at(step.name()))?;
    }
    Ok(())
}

/// Runs a body once: the epilogue of a product at a point of its result, which it reads as `template`.
pub(crate) fn run_epilogue(
    program: &Program,
    insts: &[Inst],
    sizes: &Sizes,
    memory: &mut Memory,
    point: &[i64],
    template: Scalar,
) -> Result<(), PluginError> {
    let (loops, template) = (point.to_vec(), Some(template));
    let (accs, scans, values) = (&mut [], Vec::new(), Vec::new());
    Body { program, insts, sizes, memory, accs, scans, loops, template, values }.run()
}

fn run_kernel(
    program: &Program,
    kernel: &LoopKernel,
    sizes: &Sizes,
    memory: &mut Memory,
) -> Result<(), PluginError> {
    let outer = sizes.all(&kernel.outer)?;
    let inner: Vec<Vec<i64>> = kernel.stages.iter().map(|s| sizes.all(&s.inner)).collect::<Result<_, _>>()?;
    for_each_index(&outer, &mut |point| {
        let mut accs: Vec<Acc> = kernel.accs.iter().map(Acc::new).collect();
        for (stage, inner) in kernel.stages.iter().zip(&inner) {
            let scans = vec![None; stage.insts.len()];
            let loops = point.to_vec();
            let (insts, accs) = (&stage.insts[..], &mut accs[..]);
            let (template, values) = (None, Vec::new());
            let mut body = Body { program, insts, sizes, memory, accs, scans, loops, template, values };
            for_each_index(inner, &mut |index| {
                body.loops.truncate(point.len());
                body.loops.extend_from_slice(index);
                if index.last().is_none_or(|&i| i == 0) {
                    body.scans.fill(None);
                }
                body.run()
            })?;
        }
        Ok(())
    })
}

/// A running combination: of a reduction, or of a scan.
#[derive(Clone)]
struct Acc {
    op: ReduceOp,
    dtype: DType,
    value: Scalar,
    /// Of `value`, for `argmax` and `argmin`; `None` before the first.
    position: Option<i64>,
}

impl Acc {
    fn new(decl: &AccDecl) -> Acc {
        Acc { op: decl.op, dtype: decl.dtype, value: decl.op.identity(decl.dtype), position: None }
    }

    fn combine(&mut self, value: Scalar, position: Option<i64>) {
        if let Some(op) = self.op.combine() {
            // Long sums of floats keep their digits in double precision.
            let dtype = if self.dtype.is_float() { DType::F64 } else { self.dtype };
            self.value = op.eval(dtype, &[self.value, value]);
            return;
        }
        let position = position.unwrap_or(0);
        if self.position.is_none_or(|at| self.beaten_by(value, position < at)) {
            (self.value, self.position) = (value, Some(position));
        }
    }

    /// Whether `value` comes before the best one so far: larger (smaller), or `NaN`, or equal at an earlier position.
    fn beaten_by(&self, value: Scalar, earlier: bool) -> bool {
        if !self.dtype.is_float() {
            let (new, old) = (value.as_i64(), self.value.as_i64());
            return new == old && earlier || if self.op == ReduceOp::ArgMax { new > old } else { new < old };
        }
        let (new, old) = (value.as_f64(), self.value.as_f64());
        if new.is_nan() || old.is_nan() {
            return new.is_nan() && (!old.is_nan() || earlier);
        }
        new == old && earlier || if self.op == ReduceOp::ArgMax { new > old } else { new < old }
    }

    fn result(&self) -> Scalar {
        match self.op.combine() {
            Some(_) => number::rounded(self.dtype, self.value),
            None => Scalar::Int(self.position.unwrap_or(0)),
        }
    }
}

/// The body of a stage, or the epilogue of a product, at one point.
struct Body<'a> {
    program: &'a Program,
    insts: &'a [Inst],
    sizes: &'a Sizes,
    memory: &'a mut Memory,
    accs: &'a mut [Acc],
    scans: Vec<Option<Acc>>,
    /// Loop variables, outermost first.
    loops: Vec<i64>,
    /// The result of the product, in an epilogue.
    template: Option<Scalar>,
    /// Results of the instructions so far.
    values: Vec<Scalar>,
}

impl Body<'_> {
    fn run(&mut self) -> Result<(), PluginError> {
        self.values.clear();
        for number in 0..self.insts.len() {
            let value = self.inst(number)?;
            self.values.push(value);
        }
        Ok(())
    }

    fn value(&self, v: Val) -> Scalar {
        self.values[v.0 as usize]
    }

    fn inst(&mut self, number: usize) -> Result<Scalar, PluginError> {
        let insts = self.insts;
        let inst = &insts[number];
        Ok(match &inst.kind {
            InstKind::Const(c) => number::rounded(inst.dtype, *c),
            InstKind::Index(e) => number::rounded(inst.dtype, Scalar::Int(self.index(e)?)),
            InstKind::Load { mask: Some(mask), .. } if !self.value(*mask).as_bool() => {
                Scalar::zero(inst.dtype)
            }
            InstKind::Load { buf, index, .. } => self.memory.load(*buf, &self.indices(index)?)?,
            InstKind::Store { mask: Some(mask), .. } if !self.value(*mask).as_bool() => {
                Scalar::zero(inst.dtype)
            }
            InstKind::Store { buf, index, value, mode, .. } => {
                let (index, value) = (self.indices(index)?, self.value(*value));
                self.store(*buf, &index, value, *mode)?;
                value
            }
            InstKind::Check { value, mask: Some(mask), .. } if !self.value(*mask).as_bool() => {
                self.value(*value)
            }
            InstKind::Check { value, size, site, .. } => {
                let (index, size) = (self.value(*value), self.index(size)?);
                if !(0..size).contains(&index.as_i64()) {
                    let site = &self.program.sites[*site as usize];
                    return Err(PluginError::invalid(site.message(index.as_i64(), size)));
                }
                index
            }
            InstKind::Op { op, args } => {
                // All operands have one dtype but the first of `select`, so the last one tells it.
                let operands = args.last().map_or(inst.dtype, |v| insts[v.0 as usize].dtype);
                let args: Vec<Scalar> = args.iter().map(|v| self.value(*v)).collect();
                op.eval(operands, &args)
            }
            InstKind::Cast(v) => number::rounded(inst.dtype, self.value(*v)),
            InstKind::Bitcast(v) => number::bitcast(insts[v.0 as usize].dtype, inst.dtype, self.value(*v)),
            InstKind::Reduce { acc, value, position } => {
                let (value, position) = (self.value(*value), position.map(|p| self.value(p).as_i64()));
                self.accs[acc.0 as usize].combine(value, position);
                value
            }
            InstKind::Acc(acc) => self.accs[acc.0 as usize].result(),
            InstKind::Scan { op, value } => {
                let value = self.value(*value);
                let new = || Acc::new(&AccDecl { op: *op, dtype: inst.dtype });
                let scan = self.scans[number].get_or_insert_with(new);
                scan.combine(value, None);
                scan.result()
            }
            InstKind::Template => {
                self.template.ok_or_else(|| PluginError::invalid("a loop kernel reads a product's result"))?
            }
        })
    }

    fn store(
        &mut self,
        buf: BufId,
        index: &[i64],
        value: Scalar,
        mode: StoreMode,
    ) -> Result<(), PluginError> {
        let dtype = self.program.buffers[buf].dtype;
        let combine = match mode {
            StoreMode::Write => None,
            StoreMode::Add => ReduceOp::Sum.combine(),
            StoreMode::Reduce(op) => op.combine(),
        };
        let value = match combine {
            Some(op) => op.eval(dtype.compute(), &[self.memory.load(buf, index)?, value]),
            None => value,
        };
        self.memory.store(buf, index, number::rounded(dtype, value))
    }

    fn index(&self, expr: &SymExpr) -> Result<i64, PluginError> {
        let leaf = |atom: &Atom| match atom {
            Atom::Sym(id) => self.sizes.get(*id),
            Atom::Loop(n) => self.loops.get(*n as usize).copied(),
            Atom::Value(n) => self.values.get(*n as usize).map(|v| v.as_i64()),
            _ => None,
        };
        expr.eval(&leaf).ok_or_else(|| PluginError::invalid(format!("the index `{expr}` has no value")))
    }

    fn indices(&self, exprs: &[SymExpr]) -> Result<Vec<i64>, PluginError> {
        exprs.iter().map(|e| self.index(e)).collect()
    }
}
