//! Loop bodies as C++ statements, one declaration per value. The kernel around the body (loops, teams, templates) decides
//! what `Reduce`, `Scan` and `Template` become.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use ir_core::{Atom, DType, Scalar, SymExpr, SymId};
use kernel_ir::{
    AccDecl, AccId, BufId, Inst, InstKind, LoopBounds, Program, ReduceOp, ScalarOp, StoreMode, Val,
};

use crate::text::index::{Names, Numbers, SMALL, text};
use crate::text::ops;
use crate::text::rough::{ends_narrow, may_be_rough};
use crate::text::types::{memory_type, number, value_type};
use crate::{GenError, TensorMap};

/// What a kernel uses of its program, collected while its text is written.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Uses {
    /// Buffers with memory of their own (a view counts as its root), in the order of their first use: `b<place>` in the
    /// text, so that kernels which differ in nothing else share a text.
    pub(crate) buffers: Vec<BufId>,
    /// Where the slices begin that accesses are relative to, in elements of the buffer, by the places of the buffers that have one:
    /// `slice<place>` in the text, which is a pointer.
    pub(crate) slices: BTreeMap<usize, i64>,
    /// The buffers that are written.
    pub(crate) written: BTreeSet<BufId>,
    /// The buffers that bodies read.
    pub(crate) loaded: BTreeSet<BufId>,
    pub(crate) symbols: BTreeSet<SymId>,
    /// The numbers that are arguments; `None` where all are constants of the text.
    pub(crate) numbers: Option<Numbers>,
    /// Element types of the scratch buffers, `scratch<number>` in the text (`s0` is a size).
    pub(crate) scratch: Vec<&'static str>,
    /// Whether it uses `tickets` to count blocks.
    pub(crate) tickets: bool,
    /// The sites of the index checks, in the order of the text.
    pub(crate) checks: Vec<u32>,
    /// Tensor maps, `map<number>` in the text.
    pub(crate) maps: Vec<TensorMap>,
    /// Bytes of static shared memory, where the writer of the text counts them.
    pub(crate) shared: u32,
    /// Whether the body itself waits for earlier launches, before it uses anything that they write.
    pub(crate) waits: bool,
}

impl Uses {
    /// The name of a buffer's memory.
    pub(crate) fn memory(&mut self, root: BufId) -> String {
        let place = self.buffers.iter().position(|b| *b == root).unwrap_or_else(|| {
            self.buffers.push(root);
            self.buffers.len() - 1
        });
        format!("b{place}")
    }

    /// A pointer into a buffer's memory and what is to be added to it for an address in elements, which is in its simplest form. The
    /// pointer is that of the buffer's slice, which begins at the constant part of the first address that has asked here: what
    /// reads other slices of other steps in the same way has the same text.
    pub(crate) fn placed(&mut self, root: BufId, address: SymExpr) -> (String, SymExpr) {
        let memory = self.memory(root);
        let Some(place) = self.buffers.iter().position(|b| *b == root) else { return (memory, address) };
        let constant = address.terms().1;
        match *self.slices.entry(place).or_insert(if constant > SMALL { constant } else { 0 }) {
            0 => (memory, address),
            start => (format!("slice{place}"), address - start),
        }
    }

    /// The slices: the places of their buffers, and where they begin.
    pub(crate) fn own_slices(&self) -> impl Iterator<Item = (usize, i64)> {
        self.slices.iter().map(|(place, start)| (*place, *start)).filter(|(_, start)| *start != 0)
    }

    /// A number of a dtype: a constant, or an argument.
    pub(crate) fn number(&mut self, value: Scalar, dtype: DType) -> Result<String, GenError> {
        let argument = match (&mut self.numbers, dtype) {
            (Some(numbers), DType::F32) => numbers.float(value.as_f64() as f32),
            _ => None,
        };
        argument.map_or_else(|| number(value, dtype), Ok)
    }
}

/// Expressions that replace the elements of buffers.
pub(crate) type Substitutions = BTreeMap<BufId, String>;

/// How the effects of a body are written.
pub(crate) trait Effects {
    /// Combines `value` (and its position) into an accumulator.
    fn reduce(&self, acc: AccId, value: &str, position: Option<&str>) -> Result<String, GenError>;
    /// Reads the result of a reduction of an earlier stage.
    fn acc(&self, acc: AccId) -> String;
    /// Returns statements that assign the variable `name` the running combination of `value`.
    fn scan(&self, name: &str, dtype: DType, op: ReduceOp, value: &str) -> Result<String, GenError>;
    /// Reads the template's result.
    fn template(&self) -> Result<String, GenError>;
    /// Combines `value` into an element of memory of type `ty`.
    fn combine(&self, element: &str, op: &str, ty: &str, value: &str) -> String {
        format!("atomic<{op}, {ty}>(&{element}, {value});")
    }
}

/// Writes the bodies of one kernel.
pub(crate) struct BodyWriter<'a> {
    pub(crate) program: &'a Program,
    /// Extents of the loop variables that are in scope.
    pub(crate) extents: &'a [SymExpr],
    /// The prefix of the names of values.
    pub(crate) prefix: &'a str,
    /// A condition under which the body acts at all, where idle threads run it too.
    pub(crate) guard: Option<&'a str>,
    /// A condition on stores alone, where several threads run the same point.
    pub(crate) store_guard: Option<&'a str>,
}

impl BodyWriter<'_> {
    /// The name of a value.
    pub(crate) fn name(&self, v: Val) -> String {
        format!("{}{}", self.prefix, v.0)
    }

    /// A pointer into a buffer's memory and the text of what is to be added to it for an address in elements.
    pub(crate) fn place(&self, root: BufId, address: &SymExpr, uses: &mut Uses) -> (String, String) {
        let bounds = self.program.bounds();
        let known = LoopBounds { extents: self.extents, symbols: &bounds };
        let (memory, address) = uses.placed(root, address.simplify(&known));
        (memory, self.expr(&address, uses))
    }

    /// An index expression as text; records its symbols.
    pub(crate) fn expr(&self, e: &SymExpr, uses: &mut Uses) -> String {
        e.for_each_leaf(&mut |a| {
            if let Atom::Sym(id) = a {
                uses.symbols.insert(*id);
            }
        });
        let bounds = self.program.bounds();
        let known = LoopBounds { extents: self.extents, symbols: &bounds };
        let numbers = uses.numbers.take().map(RefCell::new);
        let text =
            text(&e.simplify(&known), &Names { values: self.prefix, numbers: numbers.as_ref() }, &known);
        uses.numbers = numbers.map(RefCell::into_inner);
        text
    }

    /// `b3[address]`, or its replacement.
    fn element(&self, buf: BufId, index: &[SymExpr], uses: &mut Uses, placed: &Substitutions) -> String {
        let root = self.program.root(buf);
        if let Some(place) = placed.get(&buf) {
            return place.clone();
        }
        let (memory, address) = self.place(root, &self.program.buffers[buf].address(index), uses);
        format!("{memory}[{address}]")
    }

    /// Returns all statements of a body.
    pub(crate) fn write(
        &self,
        insts: &[Inst],
        effects: &dyn Effects,
        uses: &mut Uses,
    ) -> Result<String, GenError> {
        self.write_substituted(insts, effects, uses, &Substitutions::new())
    }

    /// The same with elements of some buffers replaced, by registers for example, whatever the index.
    pub(crate) fn write_substituted(
        &self,
        insts: &[Inst],
        effects: &dyn Effects,
        uses: &mut Uses,
        placed: &Substitutions,
    ) -> Result<String, GenError> {
        let mut out = String::new();
        for n in 0..insts.len() {
            self.inst(&mut out, insts, Val(n as u32), effects, uses, placed)?;
        }
        Ok(out)
    }

    /// Writes one statement.
    pub(crate) fn inst(
        &self,
        out: &mut String,
        insts: &[Inst],
        v: Val,
        effects: &dyn Effects,
        uses: &mut Uses,
        placed: &Substitutions,
    ) -> Result<(), GenError> {
        let inst = &insts[v.0 as usize];
        let name = self.name(v);
        let ty = value_type(inst.dtype)?;
        let dtype_of = |v: Val| insts[v.0 as usize].dtype;
        if let Some(other) = sine_and_cosine(insts, v) {
            self.both(out, insts, v, other);
            return Ok(());
        }
        let value = match &inst.kind {
            InstKind::Const(s) => uses.number(*s, inst.dtype)?,
            InstKind::Index(e) => format!("(i64){}", self.expr(e, uses)),
            InstKind::Load { buf, index, mask } => {
                uses.loaded.insert(self.program.root(*buf));
                let element = self.element(*buf, index, uses, placed);
                self.load(out, &name, inst.dtype, &element, self.conditions(insts, index, *mask))?;
                return Ok(());
            }
            InstKind::Store { buf, index, value, mask, mode } => {
                uses.written.insert(self.program.root(*buf));
                let element = self.element(*buf, index, uses, placed);
                let conditions = self.conditions(insts, index, *mask);
                self.store(out, &element, &self.name(*value), inst.dtype, conditions, *mode, effects)?;
                return Ok(());
            }
            InstKind::Check { .. } => {
                self.check(out, insts, v, uses);
                return Ok(());
            }
            InstKind::Op { op, args } => {
                let operand = args.last().map_or(inst.dtype, |a| dtype_of(*a));
                let names: Vec<String> = args.iter().map(|a| self.name(*a)).collect();
                match divisor(*op, operand, insts, args) {
                    Some(c) => ops::divided_by(&names[0], c, uses)?,
                    None if is_logistic(*op, operand, insts, args) => {
                        ops::by_reciprocal(&names, is_one(insts, args[0]), ends_narrow(insts, v))
                    }
                    None => match ops::rough(*op, &names).filter(|_| may_be_rough(insts, v)) {
                        Some(rough) => rough,
                        None => ops::apply(*op, operand, &names)?,
                    },
                }
            }
            InstKind::Cast(a) => match rounded(insts, inst.dtype, *a) {
                Some(from) => format!("rounded_bf16({})", self.name(from)),
                None => format!("to<{ty}>({})", self.name(*a)),
            },
            InstKind::Bitcast(a) => format!("bits_as<{ty}>({})", self.name(*a)),
            InstKind::Reduce { acc, value, position } => {
                let position = position.map(|p| self.name(p));
                let text = effects.reduce(*acc, &self.name(*value), position.as_deref())?;
                let _ = match self.guard {
                    Some(guard) => writeln!(out, "if ({guard}) {{ {text} }}"),
                    None => writeln!(out, "{text}"),
                };
                return Ok(());
            }
            InstKind::Acc(acc) => effects.acc(*acc),
            InstKind::Scan { op, value } => {
                out.push_str(&effects.scan(&name, inst.dtype, *op, &self.name(*value))?);
                return Ok(());
            }
            InstKind::Template => effects.template()?,
        };
        let _ = writeln!(out, "{ty} {name} = {value};");
        Ok(())
    }

    /// A sine and a cosine of one argument share its range reduction; the first of the two declares both.
    fn both(&self, out: &mut String, insts: &[Inst], v: Val, other: Val) {
        let inst = &insts[v.0 as usize];
        let InstKind::Op { args, .. } = &inst.kind else { return };
        if v < other {
            let (one, two, arg) = (self.name(v), self.name(other), self.name(args[0]));
            let (sine, cosine) = if is_op(inst, ScalarOp::Sin) { (&one, &two) } else { (&two, &one) };
            let (ty, f) = if inst.dtype == DType::F32 { ("float", "f") } else { ("double", "") };
            let _ = writeln!(out, "{ty} {one}, {two}; sincos{f}({arg}, &{sine}, &{cosine});");
        }
    }

    /// The conditions of an access in addition to those of the thread.
    pub(crate) fn conditions(&self, insts: &[Inst], index: &[SymExpr], mask: Option<Val>) -> Vec<String> {
        mask.map(|m| self.name(m)).into_iter().chain(self.checked(insts, index)).collect()
    }

    fn load(
        &self,
        out: &mut String,
        name: &str,
        dtype: DType,
        element: &str,
        conditions: Vec<String>,
    ) -> Result<(), GenError> {
        let ty = value_type(dtype)?;
        let element = if dtype == DType::Bool { format!("{element} != 0") } else { element.to_owned() };
        let conditions: Vec<&str> =
            self.guard.into_iter().chain(conditions.iter().map(String::as_str)).collect();
        let _ = if conditions.is_empty() {
            writeln!(out, "{ty} {name} = {element};")
        } else {
            writeln!(out, "{ty} {name} = {{}}; if ({}) {name} = {element};", conditions.join(" && "))
        };
        Ok(())
    }

    #[allow(clippy::too_many_arguments)] // one a part of the instruction
    fn store(
        &self,
        out: &mut String,
        element: &str,
        value: &str,
        dtype: DType,
        conditions: Vec<String>,
        mode: StoreMode,
        effects: &dyn Effects,
    ) -> Result<(), GenError> {
        let memory = memory_type(dtype)?;
        let value = if dtype == DType::Bool { format!("(u8){value}") } else { value.to_owned() };
        let op = match mode {
            StoreMode::Write => None,
            StoreMode::Add => Some(if dtype == DType::Bool { "ANY" } else { "SUM" }),
            StoreMode::Reduce(ReduceOp::ArgMax | ReduceOp::ArgMin) => {
                return Err(GenError::Malformed("a store cannot combine positions".into()));
            }
            StoreMode::Reduce(op) => Some(boolean_form(op, dtype)),
        };
        let statement = match op {
            None => format!("{element} = {value};"),
            Some(op) => effects.combine(element, op, memory, &value),
        };
        let of_thread = self.guard.into_iter().chain(self.store_guard);
        let conditions: Vec<&str> = of_thread.chain(conditions.iter().map(String::as_str)).collect();
        let _ = if conditions.is_empty() {
            writeln!(out, "{statement}")
        } else {
            writeln!(out, "if ({}) {statement}", conditions.join(" && "))
        };
        Ok(())
    }
}

/// The constant divisor of an `f32` division, if its reciprocal is far from the limits of the range.
fn divisor(op: ScalarOp, dtype: DType, insts: &[Inst], args: &[Val]) -> Option<f32> {
    let (ScalarOp::Div, DType::F32, [_, by]) = (op, dtype, args) else { return None };
    let InstKind::Const(by) = insts[by.0 as usize].kind else { return None };
    let by = by.as_f64() as f32;
    (by.abs() > 1e-18 && by.abs() < 1e18).then_some(by)
}

/// The operands of an `f32` division that takes the compiler's slow path for numbers near the limits of the range.
pub(crate) fn plain_division(insts: &[Inst], v: Val) -> Option<(Val, Val)> {
    let inst = &insts[v.0 as usize];
    let InstKind::Op { op, args } = &inst.kind else { return None };
    let other = divisor(*op, inst.dtype, insts, args).is_some() || is_logistic(*op, inst.dtype, insts, args);
    match (op, inst.dtype, &args[..]) {
        (ScalarOp::Div, DType::F32, [x, by]) if !other => Some((*x, *by)),
        _ => None,
    }
}

/// Whether a division is by `c + exp(x)` with a positive `c`: its reciprocal can neither overflow nor be that of zero, so that no
/// case needs a slow path, and the quotient is of nothing that counts whole numbers.
fn is_logistic(op: ScalarOp, dtype: DType, insts: &[Inst], args: &[Val]) -> bool {
    let (ScalarOp::Div, DType::F32, [_, by]) = (op, dtype, args) else { return false };
    let of = |v: &Val| &insts[v.0 as usize];
    let InstKind::Op { op: ScalarOp::Add, args } = &of(by).kind else { return false };
    let positive = |v: &Val| matches!(&of(v).kind, InstKind::Const(c) if c.as_f64() > 1e-18);
    args.iter().any(positive) && args.iter().any(|v| is_op(of(v), ScalarOp::Exp))
}

/// The `f32` that a cast to `f32` gives back rounded to `bf16`: one instruction where a cast and one back are three.
fn rounded(insts: &[Inst], dtype: DType, v: Val) -> Option<Val> {
    let of = |v: Val| &insts[v.0 as usize];
    match (dtype, of(v).dtype, &of(v).kind) {
        (DType::F32, DType::BF16, InstKind::Cast(from)) if of(*from).dtype == DType::F32 => Some(*from),
        _ => None,
    }
}

fn is_one(insts: &[Inst], v: Val) -> bool {
    matches!(&insts[v.0 as usize].kind, InstKind::Const(c) if c.as_f64() == 1.0)
}

fn is_op(inst: &Inst, wanted: ScalarOp) -> bool {
    matches!(&inst.kind, InstKind::Op { op, .. } if *op == wanted)
}

/// For a sine the cosine of the same argument, and vice versa; the first of each.
fn sine_and_cosine(insts: &[Inst], v: Val) -> Option<Val> {
    let inst = insts.get(v.0 as usize)?;
    let InstKind::Op { op: ScalarOp::Sin | ScalarOp::Cos, args } = &inst.kind else { return None };
    let first = |wanted: ScalarOp| {
        let same = |i: &Inst| matches!(&i.kind, InstKind::Op { op, args: a } if *op == wanted && a == args);
        insts.iter().position(same).map(|n| Val(n as u32))
    };
    let (sine, cosine) = (first(ScalarOp::Sin)?, first(ScalarOp::Cos)?);
    let float = matches!(inst.dtype, DType::F32 | DType::F64);
    (float && (v == sine || v == cosine)).then_some(if v == sine { cosine } else { sine })
}

/// Booleans are stored as bytes 0 and 1; their sums and products are logical.
fn boolean_form(op: ReduceOp, dtype: DType) -> &'static str {
    match (op, dtype) {
        (ReduceOp::Sum, DType::Bool) => "ANY",
        (ReduceOp::Prod, DType::Bool) => "ALL",
        _ => ops::reduction(op),
    }
}

/// The operator of an accumulator, logical for booleans.
pub(crate) fn accumulator(decl: &AccDecl) -> &'static str {
    boolean_form(decl.op, decl.dtype)
}
