//! The text form of a program (`.kir`): symbols, buffers, kernels as loop nests with their bodies, and the plan, one
//! fact a line. `Display` of [`Program`], of [`Step`] and of [`Inst`] print it. Not the byte form (`wire`), which is what
//! crosses to a backend.
//!
//! ```text
//! program "mlp"
//! buffer b0 "x" f32[s0, 4]{4, 1}+0 input 0
//! steps:
//! loop "add_relu" outer [s0, 4] from "add", "relu"
//!   stage []
//!     v0: f32 = load b0[i0, i1]
//! ```

use std::fmt;

use ir_core::SymExpr;

use crate::{
    Attention, Buffer, Conv, Epilogue, ExternCall, ExternOp, Inst, InstKind, LoopKernel, Matmul, Operand,
    Program, ReduceOp, Step, Storage, StoreMode,
};

/// `2, s0, 4`.
fn list(items: &[SymExpr]) -> String {
    items.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

fn numbers(items: &[i64]) -> String {
    items.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// ` from "a", "b"`, nothing where there is no origin.
fn from(origins: &[String]) -> String {
    if origins.is_empty() {
        return String::new();
    }
    format!(" from {}", origins.iter().map(|o| format!("{o:?}")).collect::<Vec<_>>().join(", "))
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "program {:?}", self.name)?;
        for (id, s) in self.symbols.iter() {
            let max = s.max.map_or("inf".to_owned(), |m| m.to_string());
            let hint = s.hint.map_or(String::new(), |h| format!(" hint {h}"));
            writeln!(f, "symbol {id} {:?} {}..{max}{hint}", s.name, s.min)?;
        }
        for (id, b) in self.buffers.iter() {
            writeln!(f, "buffer {id} {b}")?;
        }
        for i in &self.inputs {
            writeln!(f, "input {:?} {}", i.name, i.buf)?;
        }
        for c in &self.constants {
            writeln!(f, "constant {:?} {}", c.name, c.buf)?;
        }
        for o in &self.outputs {
            writeln!(
                f,
                "output {:?} {}[{}]{{{}}}+{}",
                o.name,
                o.buf,
                list(&o.sizes),
                list(&o.strides),
                o.offset
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

fn plan(program: &Program, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let bytes = program.plan.bytes.map_or(String::new(), |b| format!(" bytes {b}"));
    writeln!(f, "plan{bytes}:")?;
    for (i, l) in program.plan.lives.iter().enumerate() {
        let at = program.plan.offsets.as_ref().and_then(|o| o.get(i));
        let at = at.map_or(String::new(), |o| format!(" at {o}"));
        writeln!(f, "  {} live {}..{}{at}", l.buf, l.first, l.last)?;
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
            "{:?} {}[{}]{{{}}}+{} {storage}",
            self.name,
            self.dtype,
            list(&self.sizes),
            list(&self.strides),
            self.offset
        )
    }
}

impl fmt::Display for Operand {
    /// `b0[2, 3]{3, 1}+0`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[{}]{{{}}}+{}", self.buf, list(&self.sizes), list(&self.strides), self.offset)
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
        writeln!(f, "loop {:?} outer [{}]{}", self.name, list(&self.outer), from(&self.origins))?;
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

impl fmt::Display for Matmul {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "matmul {:?} acc {}{}", self.name, self.acc, from(&self.origins))?;
        writeln!(f, "  a {}\n  b {}", self.a, self.b)?;
        epilogue(&self.epilogue, f)
    }
}

impl fmt::Display for Conv {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let transposed = if self.transposed { " transposed" } else { "" };
        writeln!(f, "conv {:?} acc {}{transposed}{}", self.name, self.acc, from(&self.origins))?;
        writeln!(f, "  input {}\n  weight {}", self.input, self.weight)?;
        let padding: Vec<String> = self.padding.iter().map(|(lo, hi)| format!("({lo}, {hi})")).collect();
        writeln!(
            f,
            "  window stride [{}] padding [{}] dilation [{}] groups {}",
            numbers(&self.stride),
            padding.join(", "),
            numbers(&self.dilation),
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
            "attention {:?} acc {} scale {:?}{causal}{}",
            self.name,
            self.acc,
            self.scale,
            from(&self.origins)
        )?;
        writeln!(f, "  q {}\n  k {}\n  v {}", self.q, self.k, self.v)?;
        if let Some(mask) = &self.mask {
            writeln!(f, "  mask {mask}")?;
        }
        epilogue(&self.epilogue, f)
    }
}

impl fmt::Display for ExternCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.op {
            ExternOp::Sort { dim, descending } => {
                let order = if *descending { "descending" } else { "ascending" };
                writeln!(f, "extern {:?} sort dim {dim} {order}{}", self.name, from(&self.origins))?;
            }
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
            InstKind::Const(c) => write!(f, "const {c}"),
            InstKind::Index(e) => write!(f, "index {e}"),
            InstKind::Load { buf, index, mask } => write!(f, "load {buf}[{}]{}", list(index), given(mask)),
            InstKind::Store { buf, index, value, mask, mode } => {
                write!(f, "{mode} {buf}[{}], {value}{}", list(index), given(mask))
            }
            InstKind::Op { op, args } => {
                let args: Vec<String> = args.iter().map(ToString::to_string).collect();
                write!(f, "{} {}", op.name(), args.join(", "))
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
