//! Short loops at every outer point, as those of a window: a thread computes several neighbouring points, and what lies side
//! by side there moves 16 bytes at once. What does not depend on which of them it is, above all where a window ends, is
//! computed once for all of them.

use std::fmt::Write;

use ir_core::{Atom, SymExpr};
use kernel_ir::{BufId, Inst, InstKind, LoopKernel, Program, Stage, StoreMode, Val};

use crate::loops::accumulate::roots;
use crate::loops::{LoopEffects, SHORT, declare, hint};
use crate::text::body::{BodyWriter, Substitutions, Uses};
use crate::text::template::{assemble, blocks_of, unravel, volume};
use crate::text::types::{memory_type, value_type};
use crate::{ENTRY, GenError, Kernel, Launch, THREADS};

/// Bytes that a thread reads or writes at once.
const WIDTH: usize = 16;
/// Threads that fill the device.
const ENOUGH: i64 = 32 * 1024;

/// A kernel that is computed so.
pub(crate) struct Wide<'a> {
    program: &'a Program,
    k: &'a LoopKernel,
    last: usize,
    lanes: i64,
    stored: Vec<BufId>,
}

/// What becomes of an instruction.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    /// Computed once for all points of the thread.
    Once,
    /// Moves at once.
    Wide,
    /// For each point.
    Each,
}

impl<'a> Wide<'a> {
    pub(crate) fn of(program: &'a Program, k: &'a LoopKernel) -> Option<Wide<'a>> {
        let longest = k.stages.iter().map(|s| hint(program, &volume(&s.inner))).max()?;
        let scans = k.stages.iter().flat_map(|s| &s.insts).any(|i| matches!(i.kind, InstKind::Scan { .. }));
        let last = k.outer.iter().rposition(|e| *e != SymExpr::ONE)?;
        if longest > SHORT || scans || k.stages.iter().all(|s| s.inner.is_empty()) {
            return None;
        }
        let stored = k.stages.iter().flat_map(|s| roots(program, s, true)).collect();
        let mut wide = Wide { program, k, last, lanes: 1, stored };
        let extent = k.outer[last].as_const()?;
        let enough = |lanes: i64| hint(program, &volume(&k.outer)) / lanes >= ENOUGH;
        wide.lanes = [8, 4, 2].into_iter().find(|n| extent % n == 0 && enough(*n) && wide.fits(*n))?;
        Some(wide)
    }

    /// Whether a looped stage reads something so many elements at once, and nothing is wider than that allows.
    fn fits(&self, lanes: i64) -> bool {
        let mut some = false;
        for stage in &self.k.stages {
            for (inst, kind) in stage.insts.iter().zip(self.kinds(stage, lanes)) {
                let (InstKind::Load { buf, .. } | InstKind::Store { buf, .. }) = &inst.kind else { continue };
                if kind == Kind::Wide && self.program.buffers[*buf].dtype.size() * lanes as usize > WIDTH {
                    return false;
                }
                let loads = matches!(inst.kind, InstKind::Load { .. });
                some |= kind == Kind::Wide && loads && !stage.inner.is_empty();
            }
        }
        some
    }

    fn kinds(&self, stage: &Stage, lanes: i64) -> Vec<Kind> {
        let mut out: Vec<Kind> = Vec::with_capacity(stage.insts.len());
        let moves = |e: &SymExpr| e.any_leaf(|l| *l == Atom::Loop(self.last as u32));
        for inst in &stage.insts {
            let mut once = true;
            inst.kind.for_each_val(&mut |v| once &= out[v.0 as usize] == Kind::Once);
            let kind = match &inst.kind {
                InstKind::Const(_) => Kind::Once,
                InstKind::Index(e) | InstKind::Check { size: e, .. } if once && !moves(e) => Kind::Once,
                InstKind::Op { .. } | InstKind::Cast(_) | InstKind::Bitcast(_) if once => Kind::Once,
                InstKind::Load { buf, index, .. }
                    if once && !self.stored.contains(&self.program.root(*buf)) =>
                {
                    match index.iter().any(moves) {
                        false => Kind::Once,
                        true if self.is_contiguous(*buf, index, lanes) => Kind::Wide,
                        true => Kind::Each,
                    }
                }
                InstKind::Store { buf, index, mask, mode: StoreMode::Write, .. } => {
                    let uniform = mask.is_none_or(|m| out[m.0 as usize] == Kind::Once);
                    let mut fixed = true;
                    index.iter().for_each(|e| {
                        e.for_each_leaf(&mut |l| {
                            if let Atom::Value(n) = l {
                                fixed &= out[*n as usize] == Kind::Once;
                            }
                        });
                    });
                    let single = self.stored.iter().filter(|r| **r == self.program.root(*buf)).count() == 1
                        && !self
                            .k
                            .stages
                            .iter()
                            .any(|s| roots(self.program, s, false).contains(&self.program.root(*buf)));
                    match uniform && fixed && single && self.is_contiguous(*buf, index, lanes) {
                        true => Kind::Wide,
                        false => Kind::Each,
                    }
                }
                _ => Kind::Each,
            };
            out.push(kind);
        }
        out
    }

    /// Whether the address grows by one from point to point, and that of a thread's first one is a multiple of `lanes`.
    fn is_contiguous(&self, buf: BufId, index: &[SymExpr], lanes: i64) -> bool {
        let root = self.program.root(buf);
        let address = self.program.buffers[buf].address(index);
        let Some((step, rest)) = address.affine_in(&Atom::Loop(self.last as u32)) else { return false };
        let (terms, constant) = rest.terms();
        self.program.buffers[buf].dtype == self.program.buffers[root].dtype
            && step == SymExpr::ONE
            && constant % lanes == 0
            && terms.iter().all(|(coef, _)| coef % lanes == 0)
    }

    /// What the tables of the search call it.
    pub(crate) fn name(&self) -> String {
        format!("wide_{}", self.lanes)
    }

    pub(crate) fn generate(&self) -> Result<Kernel, GenError> {
        let (k, lanes, last) = (self.k, self.lanes, self.last);
        let mut uses = Uses::default();
        let points = volume(&k.outer);
        let head = BodyWriter {
            program: self.program,
            extents: &k.outer,
            prefix: "",
            guard: None,
            store_guard: None,
        };
        let count = head.expr(&points, &mut uses);
        let mut body = format!(
            "for (idx g = blockIdx.x * (idx)blockDim.x + threadIdx.x; g < {count} / {lanes}; g += (idx)gridDim.x * blockDim.x) {{\n\
             const idx p = g * {lanes};\n"
        );
        body.push_str(&unravel(&head, &k.outer, 0, "p", &mut uses));
        let _ = writeln!(body, "const idx first = i{last};");
        for line in declare(&k.accs)?.lines() {
            let Some((left, start)) = line.split_once(" = ") else { continue };
            let Some((ty, name)) = left.rsplit_once(' ') else { continue };
            let _ = writeln!(body, "{ty} {name}[{lanes}];\n{}{name}[u] = {start}\n}}", self.each());
        }
        for (n, stage) in k.stages.iter().enumerate() {
            let prefix = format!("v{n}_");
            let extents: Vec<SymExpr> = k.outer.iter().chain(&stage.inner).cloned().collect();
            let writer = BodyWriter { extents: &extents, prefix: &prefix, ..head };
            body.push_str("{\n");
            for (d, extent) in stage.inner.iter().enumerate() {
                let (i, extent) = (k.outer.len() + d, writer.expr(extent, &mut uses));
                let _ = writeln!(body, "for (idx i{i} = 0; i{i} < {extent}; ++i{i}) {{");
            }
            body.push_str(&self.stage(&writer, stage, &mut uses)?);
            body.push_str(&"}\n".repeat(stage.inner.len() + 1));
        }
        body.push_str("}\n");
        let launch = Launch::flat(blocks_of(&points, i64::from(THREADS) * lanes), THREADS);
        assemble(self.program, ENTRY, &uses, launch, &body)
    }

    /// The head of a loop over a thread's points.
    fn each(&self) -> String {
        format!("#pragma unroll\nfor (int u = 0; u < {}; ++u) {{\n", self.lanes)
    }

    fn stage(&self, writer: &BodyWriter<'_>, stage: &Stage, uses: &mut Uses) -> Result<String, GenError> {
        let effects = LoopEffects { accs: &self.k.accs, team: None, lane: "[u]", pairs: &[] };
        let kinds = self.kinds(stage, self.lanes);
        let (mut once, mut each, mut after) = (String::new(), String::new(), String::new());
        for (n, kind) in kinds.into_iter().enumerate() {
            let v = Val(n as u32);
            let to = if kind == Kind::Once { &mut once } else { &mut each };
            if kind != Kind::Wide {
                writer.inst(to, &stage.insts, v, &effects, uses, &Substitutions::new())?;
                continue;
            }
            self.moved(writer, &stage.insts, v, (&mut once, &mut each, &mut after), uses)?;
        }
        Ok(format!("{once}{}const idx i{} = first + u;\n{each}}}\n{after}", self.each(), self.last))
    }

    /// A load or a store of all points of a thread.
    fn moved(
        &self,
        writer: &BodyWriter<'_>,
        insts: &[Inst],
        v: Val,
        (once, each, after): (&mut String, &mut String, &mut String),
        uses: &mut Uses,
    ) -> Result<(), GenError> {
        let inst = &insts[v.0 as usize];
        let (InstKind::Load { buf, index, mask } | InstKind::Store { buf, index, mask, .. }) = &inst.kind
        else {
            return Err(GenError::Malformed("only loads and stores move at once".into()));
        };
        let root = self.program.root(*buf);
        let dtype = self.program.buffers[root].dtype;
        let memory = uses.memory(root);
        let address = writer.expr(&self.program.buffers[*buf].address(index), uses);
        let name = writer.name(v);
        let ty = format!("Vec<{}, {}>", memory_type(dtype)?, self.lanes);
        let conditions = writer.conditions(insts, index, *mask);
        let condition = match conditions.is_empty() {
            true => String::new(),
            false => format!("if ({}) ", conditions.join(" && ")),
        };
        let truth = dtype == ir_core::DType::Bool;
        if let InstKind::Store { value, .. } = &inst.kind {
            uses.written.insert(root);
            let cast = if truth { "(u8)" } else { "" };
            let _ = writeln!(once, "{ty} y{name};");
            let _ = writeln!(each, "y{name}.v[u] = {cast}{};", writer.name(*value));
            let _ = writeln!(after, "{condition}*({ty} *)({memory} + {address}) = y{name};");
            return Ok(());
        }
        uses.loaded.insert(root);
        let _ = writeln!(
            once,
            "{ty} x{name} = {{}};\n{condition}x{name} = *(const {ty} *)({memory} + {address});"
        );
        let test = if truth { " != 0" } else { "" };
        let _ = writeln!(each, "{} {name} = x{name}.v[u]{test};", value_type(inst.dtype)?);
        Ok(())
    }
}
