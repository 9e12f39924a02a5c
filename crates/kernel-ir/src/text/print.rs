//! The printer: `Display` of [`Program`], of its parts, of [`Step`] and of [`Inst`], one fact per line. Nothing is lost
//! of a program that `verify` accepts.

use std::fmt;

use ir_core::text::{self, float, list, quote, scalar};
use ir_core::{Guard, Origin};

use super::words::offset;
use crate::{
    Attention, Buffer, CollectiveOp, Conv, Dropout, Epilogue, ExternCall, ExternOp, IR_MAJOR, IR_MINOR, Inst,
    InstKind, LoopKernel, Matmul, Operand, Program, ReduceOp, Step, Storage, StoreMode,
};

/// ` from "a", "b"`, nothing where there is no origin.
pub(super) fn from(origins: &[String]) -> String {
    if origins.is_empty() {
        return String::new();
    }
    format!(" from {}", origins.iter().map(|o| quote(o)).collect::<Vec<_>>().join(", "))
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "kir {IR_MAJOR}.{IR_MINOR}")?;
        writeln!(f, "program {}", quote(&self.name))?;
        for (id, s) in self.symbols.iter() {
            writeln!(f, "symbol {id} {}", text::symbol(s))?;
        }
        self.guards.iter().try_for_each(|g| guard(g, f))?;
        for s in &self.sites {
            let wraps = if s.wraps { " wraps" } else { "" };
            let of = s.constant.map_or(String::new(), |n| format!(" constant {n}"));
            writeln!(f, "site {} {} dim {}{wraps}{of}", quote(&s.operator), quote(&s.origin), s.dim)?;
        }
        if self.unchecked_indices {
            writeln!(f, "unchecked_indices")?;
        }
        for (id, b) in self.buffers.iter() {
            writeln!(f, "buffer {id} {b}")?;
        }
        for i in &self.inputs {
            let written = if i.written { " written" } else { "" };
            writeln!(f, "input {} {}{written}", quote(&i.name), i.buf)?;
        }
        for c in &self.constants {
            let range = c.range.map_or(String::new(), |(low, high)| format!(" range {low}..={high}"));
            writeln!(f, "constant {} {}{range}", quote(&c.name), c.buf)?;
        }
        for o in &self.outputs {
            writeln!(
                f,
                "output {} {}[{}]{{{}}}+{}",
                quote(&o.name),
                o.buf,
                list(&o.sizes),
                list(&o.strides),
                offset(&o.offset)
            )?;
        }
        for (title, steps) in [("init", &self.init), ("steps", &self.steps)] {
            writeln!(f, "{title}:")?;
            for step in steps {
                write!(f, "{step}")?;
            }
        }
        plan(self, f)
    }
}

/// `guard [s0 - s1], zero "message" from "module" "function" source "line"`.
fn guard(guard: &Guard, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    write!(f, "guard [{}], {} {}", guard.expression, guard.relation.name(), quote(&guard.message))?;
    // Regions of mixed precision have their meaning before there are kernels.
    let Origin { module, function, source, operator, precisions: _ } = &guard.origin;
    if guard.origin != Origin::default() {
        write!(f, " from {} {}", quote(module), quote(function))?;
    }
    if let Some(source) = source {
        write!(f, " source {}", quote(source))?;
    }
    if !operator.is_empty() {
        write!(f, " operator {}", quote(operator))?;
    }
    writeln!(f)
}

fn plan(program: &Program, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let bytes = program.plan.bytes.map_or(String::new(), |b| format!(" bytes {b}"));
    writeln!(f, "plan{bytes}:")?;
    for (i, l) in program.plan.lives.iter().enumerate() {
        let at = program.plan.offsets.as_ref().and_then(|o| o.get(i));
        let at = at.map_or(String::new(), |o| format!(" at {o}"));
        writeln!(f, "  {} live {}..{}{at}", l.buf, l.first, l.last)?;
    }
    for l in &program.plan.dynamic {
        writeln!(f, "  {} dynamic {}..{}", l.buf, l.first, l.last)?;
    }
    Ok(())
}

impl fmt::Display for Buffer {
    /// `"x" f32[2, 3]{3, 1}+0 arena`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let storage = match &self.storage {
            Storage::Input(n) => format!("input {n}"),
            Storage::Constant(n) => format!("constant {n}"),
            Storage::Persistent => "persistent".into(),
            Storage::Arena => "arena".into(),
            Storage::Output => "output".into(),
            Storage::View(of) => format!("view {of}"),
        };
        write!(
            f,
            "{} {}[{}]{{{}}}+{} {storage}",
            quote(&self.name),
            self.dtype,
            list(&self.sizes),
            list(&self.strides),
            offset(&self.offset)
        )
    }
}

impl fmt::Display for Operand {
    /// `b0[2, 3]{3, 1}+0`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[{}]{{{}}}+{}", self.buf, list(&self.sizes), list(&self.strides), offset(&self.offset))
    }
}

impl fmt::Display for Step {
    /// The kernel with its bodies, several lines.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Step::Loop(k) => k.fmt(f),
            Step::Matmul(k) => k.fmt(f),
            Step::Conv(k) => k.fmt(f),
            Step::Attention(k) => k.fmt(f),
            Step::Extern(k) => k.fmt(f),
            Step::Bind(k) => k.fmt(f),
            Step::Assert(k) => k.fmt(f),
            Step::Cond(k) => k.fmt(f),
            Step::For(k) => k.fmt(f),
            Step::While(k) => k.fmt(f),
            Step::Together(k) => k.fmt(f),
        }
    }
}

fn body(insts: &[Inst], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    for (n, inst) in insts.iter().enumerate() {
        writeln!(f, "    v{n}: {inst}")?;
    }
    Ok(())
}

impl fmt::Display for LoopKernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "loop {} outer [{}]{}", quote(&self.name), list(&self.outer), from(&self.origins))?;
        for (n, acc) in self.accs.iter().enumerate() {
            writeln!(f, "  acc{n}: {} {}", acc.dtype, acc.op.name())?;
        }
        for stage in &self.stages {
            writeln!(f, "  stage [{}]", list(&stage.inner))?;
            body(&stage.insts, f)?;
        }
        Ok(())
    }
}

fn epilogue(e: &Epilogue, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    writeln!(f, "  epilogue [{}]", list(&e.ranges))?;
    body(&e.insts, f)
}

/// ` zero 128`; nothing for 0.
fn zero(number: i64) -> String {
    if number == 0 { String::new() } else { format!(" zero {number}") }
}

impl fmt::Display for Matmul {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "matmul {} acc {}{}{}",
            quote(&self.name),
            self.acc,
            zero(self.zero),
            from(&self.origins)
        )?;
        writeln!(f, "  a {}\n  b {}", self.a, self.b)?;
        if let Some(d) = &self.dequant {
            writeln!(f, "  factor {}", d.factor)?;
            d.zero.iter().try_for_each(|zero| writeln!(f, "  zero {zero}"))?;
        }
        if let Some(g) = &self.groups {
            writeln!(f, "  groups {} {}", g.along.name(), g.ends)?;
        }
        epilogue(&self.epilogue, f)
    }
}

impl fmt::Display for Conv {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let transposed = if self.transposed { " transposed" } else { "" };
        let (acc, zero) = (self.acc, zero(self.zero));
        writeln!(f, "conv {} acc {acc}{zero}{transposed}{}", quote(&self.name), from(&self.origins))?;
        writeln!(f, "  input {}\n  weight {}", self.input, self.weight)?;
        let padding: Vec<String> = self.padding.iter().map(|(lo, hi)| format!("({lo}, {hi})")).collect();
        writeln!(
            f,
            "  window stride [{}] padding [{}] dilation [{}] groups {}",
            list(&self.stride),
            padding.join(", "),
            list(&self.dilation),
            self.groups
        )?;
        epilogue(&self.epilogue, f)
    }
}

impl fmt::Display for Attention {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let causal = if self.causal { " causal" } else { "" };
        writeln!(
            f,
            "attention {} acc {} scale {}{causal}{}",
            quote(&self.name),
            self.acc,
            float(self.scale),
            from(&self.origins)
        )?;
        writeln!(f, "  q {}\n  k {}\n  v {}", self.q, self.k, self.v)?;
        if let Some(mask) = &self.mask {
            writeln!(f, "  mask {mask}")?;
        }
        if let Some(sums) = &self.sums {
            writeln!(f, "  sums {sums}")?;
        }
        if let Some(Dropout { kept, factor }) = &self.dropout {
            writeln!(f, "  kept {kept} factor {}", float(*factor))?;
        }
        epilogue(&self.epilogue, f)
    }
}

impl fmt::Display for ExternCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.op {
            ExternOp::Sort { dim, descending } => {
                let order = if *descending { "descending" } else { "ascending" };
                writeln!(f, "extern {} sort dim {dim} {order}{}", quote(&self.name), from(&self.origins))?;
            }
            ExternOp::AttentionBackward { causal, scale, dropout, .. } => {
                let causal = if *causal { " causal" } else { "" };
                let kept = dropout.map_or(String::new(), |factor| format!(" kept_factor {}", float(factor)));
                let (name, scale, from) = (quote(&self.name), float(*scale), from(&self.origins));
                writeln!(f, "extern {name} attention_backward scale {scale}{causal}{kept}{from}")?;
            }
            ExternOp::Linalg { op, complex } => {
                let complex = if *complex { " complex" } else { "" };
                let words = op.words().join(" ");
                writeln!(f, "extern {} {words}{complex}{}", quote(&self.name), from(&self.origins))?;
            }
            ExternOp::Fourier { dim, forward, scale } => {
                let sign = if *forward { "forward" } else { "backward" };
                let (name, scale, from) = (quote(&self.name), float(*scale), from(&self.origins));
                writeln!(f, "extern {name} fourier dim {dim} {sign} scale {scale}{from}")?;
            }
            ExternOp::Collective(c) => {
                let (group, started) = (quote(&c.group), if c.asynchronous { " started" } else { "" });
                let words = match c.op {
                    CollectiveOp::AllReduce(how) | CollectiveOp::ReduceScatter(how) => {
                        format!(" {}", how.name())
                    }
                    CollectiveOp::AllGather | CollectiveOp::AllToAll => String::new(),
                    CollectiveOp::Broadcast { root } => format!(" from_rank {root}"),
                    CollectiveOp::Shift { by, wraps } => {
                        format!(" by {by}{}", if wraps { " wraps" } else { "" })
                    }
                };
                let (name, op) = (quote(&self.name), c.op.name());
                writeln!(f, "extern {name} {op}{words} group {group}{started}{}", from(&self.origins))?;
            }
            ExternOp::MaskTable(table) => {
                let side = if table.by_keys { "keys" } else { "queries" };
                writeln!(f, "extern {} mask_table by {side}{}", quote(&self.name), from(&self.origins))?;
            }
            ExternOp::Wait => writeln!(f, "extern {} wait{}", quote(&self.name), from(&self.origins))?,
        }
        self.inputs.iter().try_for_each(|o| writeln!(f, "  in {o}"))?;
        self.outputs.iter().try_for_each(|o| writeln!(f, "  out {o}"))
    }
}

impl fmt::Display for StoreMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StoreMode::Write => f.write_str("store"),
            StoreMode::Add => f.write_str("store_add"),
            StoreMode::Reduce(op) => write!(f, "store_{}", op.name()),
        }
    }
}

impl fmt::Display for ReduceOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Display for Inst {
    /// `f32 = add v0, v1`; the value's number is the reader's.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} = ", self.dtype)?;
        let given = |m: &Option<crate::Val>| m.map_or(String::new(), |m| format!(" if {m}"));
        match &self.kind {
            InstKind::Const(c) => write!(f, "const {}", scalar(*c)),
            InstKind::Index(e) => write!(f, "index {e}"),
            InstKind::Load { buf, index, mask } => write!(f, "load {buf}[{}]{}", list(index), given(mask)),
            InstKind::Store { buf, index, value, mask, mode } => {
                write!(f, "{mode} {buf}[{}], {value}{}", list(index), given(mask))
            }
            InstKind::Check { value, size, mask, site } => {
                write!(f, "check {value}, [{size}]{} at {site}", given(mask))
            }
            InstKind::Op { op, args } => {
                write!(f, "{} {}", op.name(), list(args))
            }
            InstKind::Cast(v) => write!(f, "cast {v}"),
            InstKind::Bitcast(v) => write!(f, "bitcast {v}"),
            InstKind::Reduce { acc, value, position: Some(p) } => write!(f, "reduce {acc}, {value}, {p}"),
            InstKind::Reduce { acc, value, position: None } => write!(f, "reduce {acc}, {value}"),
            InstKind::Acc(acc) => write!(f, "{acc}"),
            InstKind::Scan { op, value } => write!(f, "scan_{op} {value}"),
            InstKind::Template => f.write_str("template"),
        }
    }
}
