//! Points with their operands in any order, and short loops at every point, such as windows: a thread computes several
//! adjacent points and accesses what is contiguous along them 16 bytes at a time. What is the same for all of them is computed
//! once: operands that are broadcast, the bounds of a window, which part of a concatenation the points are in. Teams of
//! threads that share a row, or all rows of a reduction, take adjacent points of its innermost loop in the same way.
//!
//! Not here: points over memory that is dense throughout (`flat`).

use std::fmt::Write;

use ir_core::{Atom, DType, Scalar, SymExpr};
use kernel_ir::{AccId, BufId, Inst, InstKind, LoopKernel, Program, ScalarOp, Stage, StoreMode, Val};

use crate::address::address;
use crate::loops::accumulate::roots;
use crate::loops::moments::{Pair, PairKind};
use crate::loops::{LoopEffects, SHORT, declare, divides, hint};
use crate::text::body::{BodyWriter, Substitutions, Uses, plain_division};
use crate::text::index::divisible;
use crate::text::template::{assemble, blocks_of, unravel, volume};
use crate::text::types::{memory_type, value_type};
use crate::{ENTRY, GenError, Kernel, Launch, THREADS};

/// Points of a thread that are tried, most first.
pub(crate) const LANES: [i64; 3] = [8, 4, 2];
/// Bytes of one vector access.
const WIDTH: usize = 16;
/// Maximum instructions of a team's turn over its points.
const MAX_TEXT: i64 = 512;
/// Number of threads that fill the device.
const ENOUGH: i64 = 32 * 1024;

/// A kernel that computes several adjacent points per thread.
pub(crate) struct Wide<'a> {
    program: &'a Program,
    k: &'a LoopKernel,
    /// The loop whose points a thread has several of.
    last: usize,
    lanes: i64,
    /// The stages that run without a barrier between them, and the memory that they store to.
    stages: &'a [Stage],
    stored: Vec<BufId>,
    /// Whether a team shares the points, so that accumulators are those of the thread, not of a point.
    team: bool,
    /// The address at point 0 of what a team accesses as vectors, but for multiples of a vector.
    phase: SymExpr,
}

/// How an instruction is executed.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    /// Computed once for all points of the thread.
    Once,
    /// As a vector access.
    Wide,
    /// For each point.
    Each,
    /// For each point, and for the first one of the thread beside what is computed once.
    First,
}

impl<'a> Wide<'a> {
    pub(crate) fn of(program: &'a Program, k: &'a LoopKernel) -> Option<Wide<'a>> {
        let longest = k.stages.iter().map(|s| hint(program, &volume(&s.inner))).max()?;
        let scans = super::has_scans(&k.stages);
        let last = k.outer.iter().rposition(|e| *e != SymExpr::ONE)?;
        if longest > SHORT || scans {
            return None;
        }
        let mut wide = Wide::over(program, k, &k.stages, last);
        let extent = k.outer[last].as_const()?;
        let enough = |lanes: i64| hint(program, &volume(&k.outer)) / lanes >= ENOUGH;
        wide.lanes = LANES.into_iter().find(|n| extent % n == 0 && enough(*n) && wide.fits(*n))?;
        Some(wide)
    }

    /// The points of a stage that `parts` teams of `team` threads share: its innermost loop, if it is the only one.
    pub(crate) fn of_team(
        program: &'a Program,
        k: &'a LoopKernel,
        n: usize,
        team: u32,
        parts: i64,
    ) -> Option<Wide<'a>> {
        let stage = &k.stages[n];
        let inner = stage.inner.iter().rposition(|e| *e != SymExpr::ONE)?;
        if stage.inner[..inner].iter().any(|e| *e != SymExpr::ONE) {
            return None;
        }
        let mut wide = Wide::over(program, k, &k.stages[n..=n], k.outer.len() + inner);
        wide.team = true;
        wide.phase = wide.phase_of(stage)?;
        let extent = hint(program, &stage.inner[inner]) / parts;
        let busy = |lanes: i64| extent / lanes >= i64::from(team);
        wide.lanes = LANES.into_iter().find(|n| busy(*n) && wide.fits(*n))?;
        Some(wide)
    }

    /// The points of a stage that `parts` teams of `team` threads share, counted over all its loops: whole vectors of the innermost
    /// one, where every row of it begins at one.
    pub(crate) fn of_rows(
        program: &'a Program,
        k: &'a LoopKernel,
        n: usize,
        team: u32,
        parts: i64,
    ) -> Option<Wide<'a>> {
        let stage = &k.stages[n];
        let inner = stage.inner.iter().rposition(|e| *e != SymExpr::ONE)?;
        let extent = stage.inner[inner].as_const()?;
        let mut wide = Wide::over(program, k, &k.stages[n..=n], k.outer.len() + inner);
        wide.team = true;
        let points = hint(program, &volume(&stage.inner)) / parts;
        let busy = |lanes: i64| points / lanes >= i64::from(team);
        wide.lanes = LANES.into_iter().find(|n| extent % n == 0 && busy(*n) && wide.fits(*n))?;
        Some(wide)
    }

    /// The address at point 0 that most of a stage's contiguous accesses have in common, but for multiples of a vector. Stores
    /// decide: what is stored apart is better stored by adjacent threads.
    fn phase_of(&self, stage: &Stage) -> Option<SymExpr> {
        let mut found: Vec<(SymExpr, usize)> = Vec::new();
        for inst in &stage.insts {
            let (InstKind::Load { buf, index, .. } | InstKind::Store { buf, index, .. }) = &inst.kind else {
                continue;
            };
            let Some((step, rest)) = self.along(*buf, index) else { continue };
            let from_data = rest.any_leaf(|l| matches!(l, Atom::Value(_)));
            if step != SymExpr::ONE || from_data {
                continue;
            }
            let stores = matches!(inst.kind, InstKind::Store { .. });
            let weight = self.program.buffers[*buf].dtype.size() * if stores { 1024 } else { 1 };
            match found.iter_mut().find(|(phase, _)| divisible(&(phase.clone() - &rest), LANES[0])) {
                Some((_, all)) => *all += weight,
                None => found.push((rest, weight)),
            }
        }
        // The first of equal ones.
        let most = found.iter().map(|(_, weight)| *weight).max()?;
        found.into_iter().find(|(_, weight)| *weight == most).map(|(phase, _)| phase)
    }

    /// The step and the rest of an address along the points.
    fn along(&self, buf: BufId, index: &[SymExpr]) -> Option<(SymExpr, SymExpr)> {
        let (outer, inner) = (&self.k.outer, self.stages.first().map_or(&[][..], |s| &s.inner[..]));
        let address = address(self.program, buf, index, outer);
        // The index of an inner loop of one point is 0.
        let address = address.subst(&|l| match l {
            Atom::Loop(n) if self.team && *n as usize >= outer.len() => {
                inner.get(*n as usize - outer.len()).filter(|e| **e == SymExpr::ONE).map(|_| SymExpr::ZERO)
            }
            _ => None,
        });
        address.affine_in(&Atom::Loop(self.last as u32))
    }

    fn over(program: &'a Program, k: &'a LoopKernel, stages: &'a [Stage], last: usize) -> Wide<'a> {
        let stored = stages.iter().flat_map(|s| roots(program, s, true)).collect();
        Wide { program, k, last, lanes: 1, stages, stored, team: false, phase: SymExpr::ZERO }
    }

    /// Whether vectors of `lanes` elements are loaded by a stage with loops, or stored by a kernel without any, and nothing is
    /// wider than that allows. Points that are stored apart are better stored by adjacent threads.
    fn fits(&self, lanes: i64) -> bool {
        let points = self.stages.iter().all(|s| s.inner.is_empty());
        let mut some = false;
        for stage in self.stages {
            for (inst, kind) in stage.insts.iter().zip(self.kinds(stage, lanes)) {
                let (InstKind::Load { buf, .. } | InstKind::Store { buf, .. }) = &inst.kind else { continue };
                if kind == Kind::Wide && self.program.buffers[*buf].dtype.size() * lanes as usize > WIDTH {
                    return false;
                }
                let stores = matches!(inst.kind, InstKind::Store { .. });
                if (points || self.team) && stores && kind != Kind::Wide {
                    return false;
                }
                let counts = if points { stores } else { self.team || (!stores && !stage.inner.is_empty()) };
                some |= kind == Kind::Wide && counts;
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
                InstKind::Acc(_) if self.team => Kind::Once,
                InstKind::Index(e) | InstKind::Check { size: e, .. } if once && !moves(e) => Kind::Once,
                InstKind::Index(_) if once => Kind::First,
                InstKind::Op { op, args } if self.is_uniform(stage, *op, args, &out, lanes) => Kind::Once,
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
                InstKind::Store { buf, index, mask, mode, .. } if self.moves_at_once(*buf, *mode) => {
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

    /// Whether a store of this mode has a form for several adjacent elements: sums of floats of up to 32 bits have, those of other
    /// dtypes are atomics of single elements.
    fn moves_at_once(&self, buf: BufId, mode: StoreMode) -> bool {
        let root = self.program.root(buf);
        mode == StoreMode::Write
            || (mode == StoreMode::Add
                && matches!(self.program.buffers[root].dtype, DType::F32 | DType::F16 | DType::BF16))
    }

    /// Whether a comparison of an index with a constant has one result for all points of a thread: the result changes between
    /// two multiples of `lanes`, and the thread's indices start at one.
    fn is_uniform(&self, stage: &Stage, op: ScalarOp, args: &[Val], kinds: &[Kind], lanes: i64) -> bool {
        let &[a, b] = args else { return false };
        let of = |v: Val| &stage.insts[v.0 as usize].kind;
        let (index, bound, after) = match (of(a), of(b), op) {
            (InstKind::Index(e), InstKind::Const(c), ScalarOp::Lt | ScalarOp::Ge) => (e, c, 0),
            (InstKind::Index(e), InstKind::Const(c), ScalarOp::Le | ScalarOp::Gt) => (e, c, 1),
            (InstKind::Const(c), InstKind::Index(e), ScalarOp::Gt | ScalarOp::Le) => (e, c, 0),
            (InstKind::Const(c), InstKind::Index(e), ScalarOp::Ge | ScalarOp::Lt) => (e, c, 1),
            _ => return false,
        };
        let first = [a, b].iter().all(|v| matches!(kinds[v.0 as usize], Kind::First | Kind::Once));
        let Some((step, rest)) = index.affine_in(&Atom::Loop(self.last as u32)) else { return false };
        let Scalar::Int(bound) = bound else { return false };
        let at_multiple = bound.checked_add(after).is_some_and(|c| c % lanes == 0);
        let begins = divisible(&rest, lanes) && self.is_aligned(lanes);
        first && step == SymExpr::ONE && begins && at_multiple
    }

    /// Whether the address is contiguous along the points and aligned to `lanes` for a thread's first point, where that of `phase`
    /// is.
    fn is_contiguous(&self, buf: BufId, index: &[SymExpr], lanes: i64) -> bool {
        let root = self.program.root(buf);
        let Some((step, rest)) = self.along(buf, index) else { return false };
        self.program.buffers[buf].dtype == self.program.buffers[root].dtype
            && step == SymExpr::ONE
            && divisible(&(rest - &self.phase), lanes)
    }

    /// Whether a thread's first point is a multiple of `lanes`: vectors begin there in every row.
    fn is_aligned(&self, lanes: i64) -> bool {
        divisible(&self.phase, lanes)
    }

    /// Points of a thread.
    pub(crate) fn lanes(&self) -> i64 {
        self.lanes
    }

    /// Its name in the tables of the search.
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
            body.push_str(&self.stage(&writer, stage, (&[], ""), &mut uses)?);
            body.push_str(&"}\n".repeat(stage.inner.len() + 1));
        }
        body.push_str("}\n");
        let launch = Launch::flat(blocks_of(&points, i64::from(THREADS) * lanes), THREADS);
        assemble(self.program, ENTRY, &uses, launch, &body)
    }

    /// Whether rows have points that no vector takes: before the first one, or behind the last one.
    pub(crate) fn has_edges(&self) -> bool {
        let inner = self.last - self.k.outer.len();
        let extent = self.stages.first().and_then(|s| s.inner[inner].as_const());
        !(self.is_aligned(self.lanes) && extent.is_some_and(|n| n % self.lanes == 0))
    }

    /// Returns the loop over the vectors from point `begin` to `end` that a team shares; `rank` is a thread's place in it. Points
    /// before the first whole vector, `lead` of them, and from `whole` on are left.
    pub(crate) fn team_text(
        &self,
        writer: &BodyWriter<'_>,
        team: u32,
        (begin, end): (&str, &str),
        pairs: &[Pair],
        uses: &mut Uses,
    ) -> Result<String, GenError> {
        let ([stage], lanes) = (self.stages, self.lanes) else {
            return Err(GenError::Malformed("a team runs one stage at a time".into()));
        };
        let lead = match self.is_aligned(lanes) {
            true => "0".to_owned(),
            // The text of an address is exact modulo a power of two, whatever the sign.
            false => {
                let phase = writer.expr(&self.phase, uses);
                format!("imin<idx>({end} - {begin}, -({phase} + {begin}) & {})", lanes - 1)
            }
        };
        let mut out =
            format!("const idx lead = {lead}, whole = {end} - (({end} - {begin} - lead) & {});\n", lanes - 1);
        // Loads of several vectors are in flight at once.
        let text = stage.insts.len() as i64 * lanes;
        let stores = stage.insts.iter().any(|i| matches!(i.kind, InstKind::Store { .. }));
        let most = if stores { 2 } else { 4 };
        let unroll = [4, 2].into_iter().find(|n| *n <= most && n * text <= MAX_TEXT).unwrap_or(1);
        let _ = writeln!(
            out,
            "#pragma unroll {unroll}\nfor (idx q = {begin} + lead + rank * {lanes}; q < whole; q += {}) {{",
            i64::from(team) * lanes
        );
        for d in 0..stage.inner.len() {
            let loop_var = self.k.outer.len() + d;
            let _ =
                writeln!(out, "const idx i{loop_var} = {};", if loop_var == self.last { "q" } else { "0" });
        }
        out.push_str("const idx first = q;\n");
        out.push_str(&self.stage(writer, stage, (pairs, ""), uses)?);
        out.push_str("}\n");
        Ok(out)
    }

    /// Returns the loop over the vectors from point `begin` to `end`, both whole vectors, of all loops of a stage. `adds` stands before
    /// what is done for each point.
    pub(crate) fn rows_text(
        &self,
        writer: &BodyWriter<'_>,
        team: u32,
        (begin, end): (&str, &str),
        (pairs, adds): (&[Pair], &str),
        uses: &mut Uses,
    ) -> Result<String, GenError> {
        let ([stage], lanes) = (self.stages, self.lanes) else {
            return Err(GenError::Malformed("a team runs one stage at a time".into()));
        };
        // NVRTC 13.0 crashes where it unrolls some loops that divide their counter.
        let unroll = if divides(stage) { 1 } else { 2 };
        let mut out = format!(
            "#pragma unroll {unroll}\nfor (idx q = {begin} + rank * {lanes}; q < {end}; q += {}) {{\n",
            i64::from(team) * lanes
        );
        out.push_str(&unravel(writer, &stage.inner, self.k.outer.len(), "q", uses));
        let _ = writeln!(out, "const idx first = i{};", self.last);
        out.push_str(&self.stage(writer, stage, (pairs, adds), uses)?);
        out.push_str("}\n");
        Ok(out)
    }

    /// The head of the loop over a thread's points.
    fn each(&self) -> String {
        format!("#pragma unroll\nfor (int u = 0; u < {}; ++u) {{\n", self.lanes)
    }

    fn stage(
        &self,
        writer: &BodyWriter<'_>,
        stage: &Stage,
        (pairs, adds): (&[Pair], &str),
        uses: &mut Uses,
    ) -> Result<String, GenError> {
        let lane = if self.team { "" } else { "[u]" };
        let effects = LoopEffects { accs: &self.k.accs, team: None, lane, pairs };
        let kinds = self.kinds(stage, self.lanes);
        let (mut once, mut each, mut after) = (String::new(), String::new(), String::new());
        for (n, &kind) in kinds.iter().enumerate() {
            let v = Val(n as u32);
            if let InstKind::Reduce { acc: AccId(acc), value, .. } = stage.insts[n].kind
                && self.team
                && pairs.iter().any(|p| p.first == acc as usize && p.kind != PairKind::Moments)
            {
                // A peak takes all numbers of a vector at once.
                let ty = value_type(stage.insts[n].dtype)?;
                let _ = writeln!(once, "{ty} all{acc}[{}];", self.lanes);
                let _ = writeln!(each, "all{acc}[u] = {};", writer.name(value));
                let _ = writeln!(after, "peak{acc}.add(all{acc});");
                continue;
            }
            // A divisor of all points is prepared once.
            if let Some((x, by)) = plain_division(&stage.insts, v)
                && (kind, kinds[by.0 as usize]) == (Kind::Each, Kind::Once)
            {
                let (name, x, by) = (writer.name(v), writer.name(x), writer.name(by));
                let _ = writeln!(once, "const Divisor by{name} = divisor({by});");
                let _ = writeln!(each, "float {name} = by{name}.of({x});");
                continue;
            }
            let mut write =
                |to: &mut String| writer.inst(to, &stage.insts, v, &effects, uses, &Substitutions::new());
            match kind {
                Kind::Once => write(&mut once)?,
                Kind::Each => write(&mut each)?,
                Kind::First => {
                    write(&mut once)?;
                    write(&mut each)?;
                }
                Kind::Wide => {}
            }
            if kind != Kind::Wide {
                continue;
            }
            self.moved(writer, &stage.insts, v, (&mut once, &mut each, &mut after), uses)?;
        }
        Ok(format!("{once}{}{adds}const idx i{} = first + u;\n{each}}}\n{after}", self.each(), self.last))
    }

    /// A load or store of all points of a thread.
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
        let (memory, address) = writer.place(root, &self.program.buffers[*buf].address(index), uses);
        let name = writer.name(v);
        let ty = format!("Vec<{}, {}>", memory_type(dtype)?, self.lanes);
        let conditions = writer.conditions(insts, index, *mask);
        let condition = match conditions.is_empty() {
            true => String::new(),
            false => format!("if ({}) ", conditions.join(" && ")),
        };
        let truth = dtype == DType::Bool;
        if let InstKind::Store { value, mode, .. } = &inst.kind {
            uses.written.insert(root);
            let cast = if truth { "(u8)" } else { "" };
            let _ = writeln!(once, "{ty} y{name};");
            let _ = writeln!(each, "y{name}.v[u] = {cast}{};", writer.name(*value));
            let _ = match mode {
                StoreMode::Write => writeln!(after, "{condition}*({ty} *)({memory} + {address}) = y{name};"),
                _ => writeln!(after, "{condition}add_vector({memory} + {address}, y{name});"),
            };
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
