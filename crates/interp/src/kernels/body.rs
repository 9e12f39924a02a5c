//! One body, prepared: sizes are numbers, index expressions are sums where they are affine.

use ir_core::{Atom, DType, Scalar, SymExpr};
use kernel_ir::{AccId, BufId, Inst, InstKind, Program, ReduceOp, ScalarOp, Site, StoreMode, Val};

use super::memory::{self, Memory};
use super::{KernelError, size};
use crate::Bindings;

/// An instruction ready to run.
pub(super) struct Code {
    /// Dtype of the value.
    pub(super) dtype: DType,
    pub(super) kind: Kind,
}

pub(super) enum Kind {
    Const(Scalar),
    Index(Index),
    Load { buf: BufId, index: Vec<Index>, mask: Option<Val> },
    Store { buf: BufId, index: Vec<Index>, value: Val, mask: Option<Val>, mode: StoreMode },
    Op { op: ScalarOp, operands: DType, args: Vec<Val> },
    Check { value: Val, size: Index, mask: Option<Val>, site: Box<Site> },
    Cast(Val),
    Bitcast(Val, DType),
    Reduce { acc: AccId, value: Val, position: Option<Val> },
    Acc(AccId),
    Scan { op: ReduceOp, value: Val },
    Template,
}

/// An index expression.
pub(super) enum Index {
    /// `constant + Σ coef * loop variable + Σ coef * value`.
    Affine { constant: i64, loops: Vec<(i64, usize)>, values: Vec<(i64, usize)> },
    /// With divisions or products of variables.
    General(SymExpr),
}

impl Index {
    fn new(expr: &SymExpr, bindings: &Bindings) -> Index {
        let expr = bindings.subst(expr);
        let (terms, constant) = expr.terms();
        let (mut loops, mut values) = (Vec::new(), Vec::new());
        for (coef, factors) in terms {
            match factors {
                [Atom::Loop(n)] => loops.push((coef, *n as usize)),
                [Atom::Value(n)] => values.push((coef, *n as usize)),
                _ => return Index::General(expr),
            }
        }
        Index::Affine { constant, loops, values }
    }

    fn divides_by_zero(&self) -> bool {
        matches!(self, Index::General(expr) if divides_by_zero(expr))
    }

    fn eval(&self, loops: &[i64], values: &[Scalar]) -> Option<i64> {
        match self {
            Index::Affine { constant, loops: l, values: v } => {
                let mut sum = *constant;
                for &(coef, n) in l {
                    sum = sum.checked_add(coef.checked_mul(*loops.get(n)?)?)?;
                }
                for &(coef, n) in v {
                    sum = sum.checked_add(coef.checked_mul(values.get(n)?.as_i64())?)?;
                }
                Some(sum)
            }
            Index::General(expr) => expr.eval(&|atom| match atom {
                Atom::Loop(n) => loops.get(*n as usize).copied(),
                Atom::Value(n) => values.get(*n as usize).map(|s| s.as_i64()),
                _ => None,
            }),
        }
    }
}

/// Whether there is a division by 0 in it.
fn divides_by_zero(expr: &SymExpr) -> bool {
    let within = |ab: &(SymExpr, SymExpr)| divides_by_zero(&ab.0) || divides_by_zero(&ab.1);
    expr.terms().0.iter().flat_map(|(_, factors)| *factors).any(|atom| match atom {
        Atom::FloorDiv(ab) | Atom::Mod(ab) => ab.1.as_const() == Some(0) || within(ab),
        Atom::Min(ab) | Atom::Max(ab) => within(ab),
        _ => false,
    })
}

/// Prepares a body.
pub(super) fn compile(
    kernel: &str,
    insts: &[Inst],
    program: &Program,
    bindings: &Bindings,
) -> Result<Vec<Code>, KernelError> {
    for (n, inst) in insts.iter().enumerate() {
        let mut forward = false;
        inst.kind.for_each_val(&mut |v| forward |= v.0 as usize >= n);
        if forward {
            return Err(KernelError::malformed(
                kernel,
                format!("v{n} reads a value that is not computed yet"),
            ));
        }
    }
    insts.iter().map(|inst| one(kernel, inst, insts, program, bindings)).collect()
}

fn one(
    kernel: &str,
    inst: &Inst,
    insts: &[Inst],
    program: &Program,
    bindings: &Bindings,
) -> Result<Code, KernelError> {
    let index = |e: &SymExpr| Index::new(e, bindings);
    let dtype_of = |v: &Val| insts[v.0 as usize].dtype;
    let kind = match &inst.kind {
        InstKind::Const(s) => Kind::Const(memory::rounded(inst.dtype, *s)),
        InstKind::Index(e) => Kind::Index(index(e)),
        InstKind::Load { buf, index: at, mask } => {
            Kind::Load { buf: *buf, index: at.iter().map(index).collect(), mask: *mask }
        }
        InstKind::Store { buf, index: at, value, mask, mode } => Kind::Store {
            buf: *buf,
            index: at.iter().map(index).collect(),
            value: *value,
            mask: *mask,
            mode: *mode,
        },
        InstKind::Op { op, args } => {
            // All operands of an operator have one dtype but the first of `select`.
            let operands = args.last().map_or(inst.dtype, dtype_of);
            if args.len() != op.arity() {
                return Err(KernelError::malformed(
                    kernel,
                    format!("{} takes {} operands", op.name(), op.arity()),
                ));
            }
            Kind::Op { op: *op, operands, args: args.to_vec() }
        }
        InstKind::Check { value, size, mask, site } => {
            let known = program.sites.get(*site as usize).cloned();
            let site = known.ok_or_else(|| KernelError::malformed(kernel, "no such site"))?;
            Kind::Check { value: *value, size: index(size), mask: *mask, site: Box::new(site) }
        }
        InstKind::Cast(v) => Kind::Cast(*v),
        InstKind::Bitcast(v) => Kind::Bitcast(*v, dtype_of(v)),
        InstKind::Reduce { acc, value, position } => {
            Kind::Reduce { acc: *acc, value: *value, position: *position }
        }
        InstKind::Acc(acc) => Kind::Acc(*acc),
        InstKind::Scan { op, value } => Kind::Scan { op: *op, value: *value },
        InstKind::Template => Kind::Template,
    };
    Ok(Code { dtype: inst.dtype, kind })
}

/// Extents of a domain as numbers.
pub(super) fn extents(sizes: &[SymExpr], bindings: &Bindings) -> Result<Vec<i64>, KernelError> {
    sizes.iter().map(|e| size(e, bindings)).collect()
}

/// An accumulator's state. Float sums and products are kept in `f64`.
#[derive(Clone, Copy)]
pub(super) struct Acc {
    pub(super) op: ReduceOp,
    pub(super) dtype: DType,
    pub(super) value: Scalar,
    /// Position of `value`, for `argmax` and `argmin`; `None` before the first.
    pub(super) position: Option<i64>,
}

impl Acc {
    pub(super) fn new(op: ReduceOp, dtype: DType) -> Acc {
        Acc { op, dtype, value: op.identity(dtype), position: None }
    }

    /// Takes one more value.
    pub(super) fn combine(&mut self, value: Scalar, position: Option<i64>) {
        match self.op.combine() {
            Some(op) => {
                let dtype = if self.dtype.is_float() { DType::F64 } else { self.dtype };
                self.value = op.eval(dtype, &[self.value, value]);
            }
            None => {
                let position = position.unwrap_or(0);
                let better = match self.position {
                    None => true,
                    Some(at) => is_better(self.op, value, self.value, self.dtype, position < at),
                };
                if better {
                    (self.value, self.position) = (value, Some(position));
                }
            }
        }
    }

    /// What `InstKind::Acc` gives.
    pub(super) fn result(&self) -> Scalar {
        match self.op.combine() {
            Some(_) => memory::rounded(self.dtype, self.value),
            None => Scalar::Int(self.position.unwrap_or(0)),
        }
    }
}

/// Whether a value replaces the best one: it is larger (smaller), or a `NaN` against a number, or equal and earlier.
fn is_better(op: ReduceOp, value: Scalar, best: Scalar, dtype: DType, earlier: bool) -> bool {
    if dtype.is_float() {
        let (a, b) = (value.as_f64(), best.as_f64());
        if a.is_nan() || b.is_nan() {
            return a.is_nan() && (!b.is_nan() || earlier);
        }
        return a == b && earlier || if op == ReduceOp::ArgMax { a > b } else { a < b };
    }
    let (a, b) = (value.as_i64(), best.as_i64());
    a == b && earlier || if op == ReduceOp::ArgMax { a > b } else { a < b }
}

/// What a body's run needs besides its code.
pub(super) struct Point<'a> {
    pub(super) kernel: &'a str,
    /// Loop variables.
    pub(super) loops: &'a [i64],
    /// Whether the last loop variable is at its start: running combinations begin again.
    pub(super) restart: bool,
    /// The template's result here.
    pub(super) template: Option<Scalar>,
}

/// State of a body that outlasts a point.
pub(super) struct State<'a> {
    pub(super) memory: &'a mut Memory,
    pub(super) accs: &'a mut [Acc],
    /// Running combination of each scan, by instruction.
    pub(super) scans: Vec<Option<Acc>>,
    /// Values of the current point.
    pub(super) values: Vec<Scalar>,
}

/// Runs a body at one point.
pub(super) fn run(code: &[Code], point: &Point<'_>, state: &mut State<'_>) -> Result<(), KernelError> {
    state.values.clear();
    for (n, inst) in code.iter().enumerate() {
        let value = step(n, inst, point, state)?;
        state.values.push(value);
    }
    Ok(())
}

fn step(n: usize, inst: &Code, point: &Point<'_>, state: &mut State<'_>) -> Result<Scalar, KernelError> {
    let malformed = |what: &str| KernelError::malformed(point.kernel, what);
    let value = |v: &Val| state.values[v.0 as usize];
    let at = |index: &[Index]| -> Result<Vec<i64>, KernelError> {
        let one = |i: &Index| i.eval(point.loops, &state.values);
        index.iter().map(one).collect::<Option<_>>().ok_or_else(|| malformed("an index has no value"))
    };
    Ok(match &inst.kind {
        Kind::Const(s) => *s,
        Kind::Index(index) => {
            // Behind a condition that never holds where a size is 0, it may be divided by that size.
            let none =
                || if index.divides_by_zero() { Ok(0) } else { Err(malformed("an index has no value")) };
            let i = index.eval(point.loops, &state.values).map_or_else(none, Ok)?;
            memory::rounded(inst.dtype, Scalar::Int(i))
        }
        Kind::Load { mask: Some(mask), .. } if !value(mask).as_bool() => Scalar::zero(inst.dtype),
        Kind::Load { buf, index, .. } => state.memory.load(point.kernel, *buf, &at(index)?)?,
        Kind::Store { mask: Some(mask), .. } if !value(mask).as_bool() => Scalar::zero(inst.dtype),
        Kind::Store { buf, index, value: v, mode, .. } => {
            let (index, new) = (at(index)?, value(v));
            store(point.kernel, *buf, &index, new, *mode, state)?;
            new
        }
        Kind::Check { value: v, mask: Some(mask), .. } if !value(mask).as_bool() => value(v),
        Kind::Check { value: v, size, site, .. } => {
            let size =
                size.eval(point.loops, &state.values).ok_or_else(|| malformed("a size has no value"))?;
            let index = value(v).as_i64();
            if !(0..size).contains(&index) {
                let (kernel, site) = (point.kernel.to_string(), site.clone());
                return Err(KernelError::Index { kernel, site, index, size });
            }
            value(v)
        }
        Kind::Op { op, operands, args } => {
            let args: smallvec::SmallVec<[Scalar; 3]> = args.iter().map(value).collect();
            op.eval(*operands, &args)
        }
        Kind::Cast(v) => memory::rounded(inst.dtype, value(v)),
        Kind::Bitcast(v, from) => memory::bitcast(*from, inst.dtype, value(v))
            .ok_or_else(|| malformed("a bitcast between dtypes of different sizes"))?,
        Kind::Reduce { acc, value: v, position } => {
            let (v, position) = (value(v), position.as_ref().map(|p| value(p).as_i64()));
            let acc = state.accs.get_mut(acc.0 as usize).ok_or_else(|| malformed("no such accumulator"))?;
            acc.combine(v, position);
            v
        }
        Kind::Acc(acc) => {
            state.accs.get(acc.0 as usize).ok_or_else(|| malformed("no such accumulator"))?.result()
        }
        Kind::Scan { op, value: v } => {
            let v = value(v);
            let scan = &mut state.scans[n];
            if point.restart {
                *scan = None;
            }
            let scan = scan.get_or_insert(Acc::new(*op, inst.dtype));
            scan.combine(v, None);
            scan.result()
        }
        Kind::Template => {
            point.template.ok_or_else(|| malformed("reads a template's result outside an epilogue"))?
        }
    })
}

fn store(
    kernel: &str,
    buf: BufId,
    index: &[i64],
    value: Scalar,
    mode: StoreMode,
    state: &mut State<'_>,
) -> Result<(), KernelError> {
    let op = match mode {
        StoreMode::Write => return state.memory.store(kernel, buf, index, value),
        StoreMode::Add => ReduceOp::Sum,
        StoreMode::Reduce(op) => op,
    };
    let dtype = state.memory.dtype(buf);
    let combine =
        op.combine().ok_or_else(|| KernelError::malformed(kernel, "a store cannot keep a position"))?;
    let old = state.memory.load(kernel, buf, index)?;
    state.memory.store(kernel, buf, index, combine.eval(dtype.compute(), &[old, value]))
}
