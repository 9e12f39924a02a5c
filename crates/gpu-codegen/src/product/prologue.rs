//! The prologue of a product of a few rows: a loop kernel that computes the left operand row by row (a normalisation,
//! say), fused into the product's kernel. Every block computes the whole operand in shared memory; the first block also
//! stores it in global memory for other readers.
//!
//! Not here: whether the steps may share a launch (`chain`).

use std::fmt::Write;

use ir_core::{Atom, DType, SymExpr};
use kernel_ir::{BufId, InstKind, LoopKernel, Operand, Program, Stage, StoreMode};

use crate::GenError;
use crate::loops::{LoopEffects, declare, keeps_position};
use crate::text::body::{BodyWriter, Substitutions, Uses, accumulator};
use crate::text::checks;
use crate::text::template::volume;
use crate::text::types::memory_type;

/// Maximum bytes of the operand: several blocks have to fit on a multiprocessor.
const MAX_BYTES: i64 = 32 * 1024;
/// Maximum instructions per element: every block computes all elements.
const MAX_INSTS: usize = 64;

/// A loop kernel that the blocks of a product run.
pub(crate) struct Prologue<'a> {
    program: &'a Program,
    k: &'a LoopKernel,
    /// The operand that it computes.
    a: &'a Operand,
    rows: i64,
    inner: i64,
    /// Elements per vector.
    lanes: i64,
    /// Values per row, with the stage that computes them.
    kept: Vec<Kept<'a>>,
    /// Whether the first block stores the results in global memory.
    leaves: bool,
}

/// A number that a stage without a loop stores and later stages read.
struct Kept<'a> {
    stage: usize,
    buf: BufId,
    index: &'a [SymExpr],
}

impl<'a> Prologue<'a> {
    /// Returns the prologue of a product with the left operand `a`; `None` where the kernel does not compute the operand
    /// row by row, or stores something else with more than one number per row.
    pub(crate) fn of(
        program: &'a Program,
        k: &'a LoopKernel,
        a: &'a Operand,
        leaves: bool,
    ) -> Option<Prologue<'a>> {
        let (last, rows) = (a.sizes.len().checked_sub(1)?, a.sizes.iter().rev().nth(1)?.as_const()?);
        let inner = a.sizes[last].as_const()?;
        let dtype = program.buffers[a.buf].dtype;
        let lanes = 16 / dtype.size().max(1) as i64;
        let fits =
            inner % lanes == 0 && rows.checked_mul(inner)?.checked_mul(dtype.size() as i64)? <= MAX_BYTES;
        let insts: usize = k.stages.iter().filter(|s| !s.inner.is_empty()).map(|s| s.insts.len()).sum();
        let by_rows = volume(&k.outer).as_const() == Some(rows) && wide(&k.outer) <= 1;
        let plain = k.accs.iter().all(|acc| !keeps_position(acc.op));
        if !fits || !by_rows || !plain || insts > MAX_INSTS {
            return None;
        }
        let mut made = Prologue { program, k, a, rows, inner, lanes, kept: Vec::new(), leaves };
        let mut whole = false;
        for (n, stage) in k.stages.iter().enumerate() {
            whole |= made.take(n, stage)?;
        }
        whole.then_some(made)
    }

    /// Analyses a stage and returns whether it computes the operand; `None` where blocks cannot run it redundantly.
    fn take(&mut self, n: usize, stage: &'a Stage) -> Option<bool> {
        let row = stage.inner.is_empty();
        if !row && (wide(&stage.inner) > 1 || volume(&stage.inner).as_const() != Some(self.inner)) {
            return None;
        }
        let mut whole = false;
        for inst in &stage.insts {
            match &inst.kind {
                InstKind::Scan { .. } | InstKind::Template => return None,
                InstKind::Load { buf, index, .. } => {
                    let root = self.program.root(*buf);
                    let known = |k: &Kept<'_>| k.buf == *buf && k.index == &index[..] && k.stage < n;
                    if self.stored().any(|b| b == root) && !self.kept.iter().any(known) {
                        return None;
                    }
                }
                // Every block keeps a stored value in registers, so its place must be known in advance.
                InstKind::Store { buf, index, mask: None, mode: StoreMode::Write, .. }
                    if !checks::from_data(index) =>
                {
                    if row && self.kept.iter().any(|k| k.buf == *buf) {
                        return None;
                    } else if row {
                        self.kept.push(Kept { stage: n, buf: *buf, index });
                    } else if *buf == self.a.buf && self.is_operand(stage, index) {
                        whole = true;
                    } else {
                        return None;
                    }
                }
                InstKind::Store { .. } => return None,
                _ => {}
            }
        }
        Some(whole)
    }

    /// Memory that the kernel stores to.
    fn stored(&self) -> impl Iterator<Item = BufId> + '_ {
        self.k.stages.iter().flat_map(|s| &s.insts).filter_map(|i| match &i.kind {
            InstKind::Store { buf, .. } => Some(self.program.root(*buf)),
            _ => None,
        })
    }

    /// Whether an inner point stores the operand's element at its own row and position.
    fn is_operand(&self, stage: &Stage, index: &[SymExpr]) -> bool {
        let address = self.program.buffers[self.a.buf].address(index);
        let split = self.a.sizes.len() - 2;
        let Some((step, rest)) = self.inner_of(stage).and_then(|v| address.affine_in(&Atom::Loop(v))) else {
            return false;
        };
        if step != SymExpr::ONE || self.a.strides[split + 1] != SymExpr::ONE {
            return false;
        }
        match self.row_of() {
            None => rest == self.a.offset,
            Some(row) => rest
                .affine_in(&Atom::Loop(row))
                .is_some_and(|(step, rest)| step == self.a.strides[split] && rest == self.a.offset),
        }
    }

    /// The loop variable of the rows, where there is more than one.
    fn row_of(&self) -> Option<u32> {
        self.k.outer.iter().position(|e| *e != SymExpr::ONE).map(|d| d as u32)
    }

    /// The loop variable of a stage's inner points.
    fn inner_of(&self, stage: &Stage) -> Option<u32> {
        let at = stage.inner.iter().position(|e| *e != SymExpr::ONE)?;
        Some((self.k.outer.len() + at) as u32)
    }

    /// Declares the shared memory of the operand.
    pub(crate) fn declared(&self) -> Result<String, GenError> {
        let (ty, count) = (self.ty()?, self.rows * self.inner / self.lanes);
        Ok(format!("__shared__ Vec<{ty}, {}> staged[{count}];\n", self.lanes))
    }

    /// The vector of the operand at a row and a position.
    pub(crate) fn staged(&self, row: &str, at: &str) -> String {
        format!("staged[({row} * {} + {at}) / {}]", self.inner, self.lanes)
    }

    fn ty(&self) -> Result<&'static str, GenError> {
        memory_type(self.program.buffers[self.a.buf].dtype)
    }

    /// Returns statements by which all threads of a block with `warps` warps of `wave` lanes compute the operand.
    pub(crate) fn text(&self, warps: i64, wave: i64, uses: &mut Uses) -> Result<String, GenError> {
        let width = self.program.buffers[self.a.buf].dtype.size() as i64;
        uses.shared += (self.rows * self.inner * width + 8 * warps) as u32;
        let mut out = format!(
            "__shared__ double scratch_memory[{warps}];\nvoid *scratch = scratch_memory;
const int rank = threadIdx.x;\nconst bool leaves = {} && blockIdx.x == 0;
#pragma unroll 1\nfor (idx row = 0; row < {}; ++row) {{\n",
            self.leaves, self.rows
        );
        for d in 0..self.k.outer.len() {
            let value = if self.row_of() == Some(d as u32) { "row" } else { "0" };
            let _ = writeln!(out, "const idx i{d} = {value};");
        }
        out.push_str(&declare(&self.k.accs)?);
        for (n, kept) in self.kept.iter().enumerate() {
            let ty = memory_type(self.program.buffers[kept.buf].dtype)?;
            let _ = writeln!(out, "{ty} kept{n} = {{}};");
        }
        for (n, stage) in self.k.stages.iter().enumerate() {
            let text = if stage.inner.is_empty() {
                self.of_row(n, stage, wave, uses)?
            } else {
                self.of_elements(n, stage, wave * warps, uses)?
            };
            let _ = writeln!(out, "{{\n{text}}}");
        }
        // The next row reuses the memory of this row's sums.
        out.push_str("block_sync();\n}\n");
        Ok(out)
    }

    fn placed(&self) -> Substitutions {
        self.kept.iter().enumerate().map(|(n, kept)| (kept.buf, format!("kept{n}"))).collect()
    }

    fn effects(&self, team: i64) -> LoopEffects<'_> {
        LoopEffects { accs: &self.k.accs, team: Some(team as u32), lane: "", pairs: &[] }
    }

    /// A stage without a loop: every thread computes its numbers.
    fn of_row(&self, n: usize, stage: &Stage, team: i64, uses: &mut Uses) -> Result<String, GenError> {
        let prefix = format!("p{n}_");
        let writer = BodyWriter {
            program: self.program,
            extents: &self.k.outer,
            prefix: &prefix,
            guard: None,
            store_guard: None,
        };
        let mut out = writer.write_substituted(&stage.insts, &self.effects(team), uses, &self.placed())?;
        for (number, kept) in self.kept.iter().enumerate().filter(|(_, k)| k.stage == n && self.leaves) {
            let root = self.program.root(kept.buf);
            let (memory, address) =
                writer.place(root, &self.program.buffers[kept.buf].address(kept.index), uses);
            let _ = writeln!(out, "if (leaves && rank == 0) {memory}[{address}] = kept{number};");
        }
        Ok(out)
    }

    /// A stage over the elements of a row: threads take vectors of them.
    fn of_elements(
        &self,
        n: usize,
        stage: &Stage,
        threads: i64,
        uses: &mut Uses,
    ) -> Result<String, GenError> {
        let (lanes, inner) = (self.lanes, self.inner);
        let prefix = format!("p{n}_");
        let extents: Vec<SymExpr> = self.k.outer.iter().chain(&stage.inner).cloned().collect();
        let writer = BodyWriter {
            program: self.program,
            extents: &extents,
            prefix: &prefix,
            guard: None,
            store_guard: None,
        };
        let point = self.inner_of(stage);
        let variables = |at: &str| -> String {
            let one = |d: usize| {
                let v = (self.k.outer.len() + d) as u32;
                format!("const idx i{v} = {};\n", if Some(v) == point { at } else { "0" })
            };
            (0..stage.inner.len()).map(one).collect()
        };
        let mut placed = self.placed();
        let mut vectors = String::new();
        for (number, (buf, address)) in self.vectors(stage).into_iter().enumerate() {
            let ty = memory_type(self.program.buffers[buf].dtype)?;
            let (memory, address) = writer.place(self.program.root(buf), &address, uses);
            let _ = writeln!(
                vectors,
                "const Vec<{ty}, {lanes}> from{number} = *(const Vec<{ty}, {lanes}> *)&{memory}[{address}];"
            );
            placed.insert(buf, format!("from{number}.v[e]"));
        }
        let stores = stage.insts.iter().any(|i| matches!(i.kind, InstKind::Store { .. }));
        let (mut before, mut after) = (String::new(), String::new());
        if stores {
            let ty = self.ty()?;
            before = format!("Vec<{ty}, {lanes}> made;\n");
            after = format!("{} = made;\n", self.staged("row", "q"));
            placed.insert(self.a.buf, "made.v[e]".into());
            if self.leaves {
                let root = self.program.root(self.a.buf);
                uses.written.insert(root);
                let memory = uses.memory(root);
                let step = writer.expr(&self.a.strides[self.a.sizes.len() - 2], uses);
                let offset = writer.expr(&self.a.offset, uses);
                let _ = writeln!(
                    after,
                    "if (leaves) *(Vec<{ty}, {lanes}> *)&{memory}[{offset} + row * {step} + q] = made;"
                );
            }
        }
        let body = writer.write_substituted(&stage.insts, &self.effects(threads), uses, &placed)?;
        let (at, each) = (variables("q"), variables("q + e"));
        let mut out = format!(
            "#pragma unroll 2\nfor (idx q = rank * {lanes}; q < {inner}; q += {}) {{
{at}{vectors}{before}#pragma unroll\nfor (int e = 0; e < {lanes}; ++e) {{\n{each}{body}}}\n{after}}}\n",
            threads * lanes
        );
        for inst in &stage.insts {
            if let InstKind::Reduce { acc, .. } = inst.kind {
                let decl = &self.k.accs[acc.0 as usize];
                let op = accumulator(decl);
                let _ = writeln!(out, "acc{0} = team_combine<{op}, {threads}>(acc{0}, scratch);", acc.0);
            }
        }
        Ok(out)
    }

    /// Buffers that a stage reads at one contiguous address per element, which are read as vectors, and the addresses.
    fn vectors(&self, stage: &Stage) -> Vec<(BufId, SymExpr)> {
        let mut found: Vec<(BufId, Option<SymExpr>)> = Vec::new();
        for inst in &stage.insts {
            let InstKind::Load { buf, index, mask } = &inst.kind else { continue };
            let address = self.program.buffers[*buf].address(index);
            let vector = mask.is_none() && self.is_vector(stage, *buf, &address);
            let address = vector.then_some(address);
            match found.iter_mut().find(|(b, _)| b == buf) {
                Some((_, known)) if *known != address => *known = None,
                Some(_) => {}
                None => found.push((*buf, address)),
            }
        }
        found.into_iter().filter_map(|(buf, address)| Some((buf, address?))).collect()
    }

    /// Whether elements that start at a multiple of `lanes` are contiguous and aligned to the bytes of `lanes` elements.
    fn is_vector(&self, stage: &Stage, buf: BufId, address: &SymExpr) -> bool {
        let point = self.inner_of(stage).and_then(|v| address.affine_in(&Atom::Loop(v)));
        let Some((step, rest)) = point else { return false };
        let (terms, constant) = rest.terms();
        let dtype = self.program.buffers[buf].dtype;
        step == SymExpr::ONE
            && dtype != DType::Bool
            && constant % self.lanes == 0
            && terms.iter().all(|(factor, _)| factor % self.lanes == 0)
            && !rest.any_leaf(|a| matches!(a, Atom::Value(_)))
    }
}

/// Number of dimensions whose size is not 1.
fn wide(extents: &[SymExpr]) -> usize {
    extents.iter().filter(|e| **e != SymExpr::ONE).count()
}
