//! Loop bodies as C++ statements: one declaration a value. The driver of a kernel (loops, teams, templates) decides what
//! `Reduce`, `Scan` and `Template` become.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use ir_core::{Atom, DType, SymExpr, SymId};
use kernel_ir::{
    AccDecl, AccId, BufId, Inst, InstKind, LoopBounds, Program, ReduceOp, ScalarOp, StoreMode, Val,
};

use crate::text::index::{Names, text};
use crate::text::ops;
use crate::text::types::{memory_type, number, value_type};
use crate::{GenError, TensorMap};

/// What a kernel uses of its program, collected while its text is written.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Uses {
    /// Buffers with memory of their own (a view counts as what it is a view of), by first use: `b<place>` in the text, so
    /// that kernels which differ in nothing else have one text.
    pub(crate) buffers: Vec<BufId>,
    /// Which of them are written.
    pub(crate) written: BTreeSet<BufId>,
    /// Which of them bodies read.
    pub(crate) loaded: BTreeSet<BufId>,
    pub(crate) symbols: BTreeSet<SymId>,
    /// Element types of the scratch buffers, `scratch<number>` in the text (`s0` is a size).
    pub(crate) scratch: Vec<&'static str>,
    /// Whether blocks are counted, in `tickets`.
    pub(crate) tickets: bool,
    /// The sites of the checks of indices, in the order of the text.
    pub(crate) checks: Vec<u32>,
    /// Tensor maps, `map<number>` in the text.
    pub(crate) maps: Vec<TensorMap>,
    /// Bytes of static shared memory, where whoever writes the text counts them.
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
}

/// What stands for an element of a buffer.
pub(crate) type Substitutions = BTreeMap<BufId, String>;

/// How the effects of a body are written.
pub(crate) trait Effects {
    /// Combines `value` (and a position) into an accumulator.
    fn reduce(&self, acc: AccId, value: &str, position: Option<&str>) -> Result<String, GenError>;
    /// The result of a reduction of an earlier stage.
    fn acc(&self, acc: AccId) -> String;
    /// Statements that give the variable `name` the running combination of `value`.
    fn scan(&self, name: &str, dtype: DType, op: ReduceOp, value: &str) -> Result<String, GenError>;
    /// The template's result.
    fn template(&self) -> Result<String, GenError>;
    /// Combines `value` into an element of memory of type `ty`.
    fn combine(&self, element: &str, op: &str, ty: &str, value: &str) -> String {
        format!("atomic<{op}, {ty}>(&{element}, {value});")
    }
}

/// Writes bodies of one kernel.
pub(crate) struct BodyWriter<'a> {
    pub(crate) program: &'a Program,
    /// Extents of the loop variables that are in scope.
    pub(crate) extents: &'a [SymExpr],
    /// What stands before the number of a value.
    pub(crate) prefix: &'a str,
    /// A condition under which the body acts at all, where it is run by idle threads too.
    pub(crate) guard: Option<&'a str>,
    /// A condition on stores alone, where several threads run the same point.
    pub(crate) store_guard: Option<&'a str>,
}

impl BodyWriter<'_> {
    /// The name of a value.
    pub(crate) fn name(&self, v: Val) -> String {
        format!("{}{}", self.prefix, v.0)
    }

    /// An index expression; its symbols are noted.
    pub(crate) fn expr(&self, e: &SymExpr, uses: &mut Uses) -> String {
        e.for_each_leaf(&mut |a| {
            if let Atom::Sym(id) = a {
                uses.symbols.insert(*id);
            }
        });
        let bounds = self.program.bounds();
        let known = LoopBounds { extents: self.extents, symbols: &bounds };
        text(&e.simplify(&known), &Names { values: self.prefix }, &known)
    }

    /// `b3[address]`, or what stands for it.
    fn element(&self, buf: BufId, index: &[SymExpr], uses: &mut Uses, placed: &Substitutions) -> String {
        let root = self.program.root(buf);
        if let Some(place) = placed.get(&buf) {
            return place.clone();
        }
        let memory = uses.memory(root);
        let address = self.expr(&self.program.buffers[buf].address(index), uses);
        format!("{memory}[{address}]")
    }

    /// All statements of a body.
    pub(crate) fn write(
        &self,
        insts: &[Inst],
        effects: &dyn Effects,
        uses: &mut Uses,
    ) -> Result<String, GenError> {
        self.write_substituted(insts, effects, uses, &Substitutions::new())
    }

    /// The same where elements of some buffers stand elsewhere, in registers say, whatever the index.
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

    /// One statement.
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
            InstKind::Const(s) => number(*s, inst.dtype)?,
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
                let args: Vec<String> = args.iter().map(|a| self.name(*a)).collect();
                ops::apply(*op, operand, &args)?
            }
            InstKind::Cast(a) => format!("to<{ty}>({})", self.name(*a)),
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

    /// A sine and a cosine of one argument share its reduction; the first of the two declares them.
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

    /// The conditions under which an access touches memory, beside those of the thread.
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

fn is_op(inst: &Inst, wanted: ScalarOp) -> bool {
    matches!(&inst.kind, InstKind::Op { op, .. } if *op == wanted)
}

/// The cosine of the same argument where this value is a sine, and the other way round; the first of each.
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

/// Truth values lie in memory as bytes 0 and 1: sums and products of them are logical.
fn boolean_form(op: ReduceOp, dtype: DType) -> &'static str {
    match (op, dtype) {
        (ReduceOp::Sum, DType::Bool) => "ANY",
        (ReduceOp::Prod, DType::Bool) => "ALL",
        _ => ops::reduction(op),
    }
}

/// The combination that an accumulator makes, logical for truth values.
pub(crate) fn accumulator(decl: &AccDecl) -> &'static str {
    boolean_form(decl.op, decl.dtype)
}
