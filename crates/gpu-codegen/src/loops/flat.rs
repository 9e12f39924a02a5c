//! Pointwise kernels over dense memory: a thread computes several adjacent points with 16-byte accesses, which bypass the
//! cache where the data does not fit. Values that are broadcast are the same for all points.

use std::collections::BTreeMap;
use std::fmt::Write;

use ir_core::{Atom, SymExpr};
use kernel_ir::{BufId, Inst, InstKind, LoopKernel, Program, StoreMode};

use crate::address::address;
use crate::loops::hint;
use crate::text::body::{BodyWriter, Effects, Uses};
use crate::text::checks;
use crate::text::template::{assemble, blocks_of, volume};
use crate::text::types::memory_type;
use crate::{ENTRY, GenError, Kernel, Launch, THREADS, Target};

/// Bytes of one vector access.
const WIDTH: usize = 16;
/// Maximum instructions of a body, times the points that one thread computes.
const MAX_TEXT: i64 = 512;

/// The buffers that a kernel accesses contiguously, and how many points a thread takes at once.
pub(crate) struct Flat {
    lanes: usize,
    walked: Vec<BufId>,
}

impl Flat {
    /// Returns `None` for kernels that are not pointwise over dense memory.
    pub(crate) fn of(program: &Program, k: &LoopKernel) -> Option<Flat> {
        if k.stages.iter().any(|s| !s.inner.is_empty()) || k.stages.len() != 1 {
            return None;
        }
        let (mut walked, mut fixed, mut widest) = (Vec::new(), Vec::new(), 1);
        for inst in &k.stages[0].insts {
            let (buf, index) = match &inst.kind {
                InstKind::Load { buf, index, mask: None } => (*buf, index),
                InstKind::Store { buf, index, mask: None, mode: StoreMode::Write, .. } => (*buf, index),
                InstKind::Load { .. } | InstKind::Store { .. } => return None,
                InstKind::Index(e) | InstKind::Check { size: e, .. } if uses_loops(e) => return None,
                _ => continue,
            };
            if checks::from_data(index) {
                return None;
            }
            let address = address(program, buf, index, &k.outer);
            if !uses_loops(&address) && matches!(inst.kind, InstKind::Load { .. }) {
                fixed.push(buf);
                continue;
            }
            if !is_flat(&address, &k.outer) {
                return None;
            }
            widest = widest.max(program.buffers[buf].dtype.size());
            if !walked.contains(&buf) {
                walked.push(buf);
            }
        }
        if walked.iter().any(|b| fixed.contains(b)) {
            return None;
        }
        let lanes = WIDTH / widest;
        // A buffer that is read and written is the same memory at the same point: its new value is not read back.
        (lanes > 1 && !walked.is_empty() && no_reread(program, &k.stages[0].insts))
            .then_some(Flat { lanes, walked })
    }

    /// Generates the kernel.
    pub(crate) fn generate(
        &self,
        program: &Program,
        k: &LoopKernel,
        target: &Target,
    ) -> Result<Kernel, GenError> {
        let mut uses = Uses::default();
        let insts = &k.stages[0].insts;
        let points = volume(&k.outer);
        let wide = BodyWriter { program, extents: &k.outer, prefix: "v", guard: None, store_guard: None };
        let count = wide.expr(&points, &mut uses);
        let lanes = self.lanes;
        let numbers = self.numbers(program, k, target);
        let Numbers { vectors, threads, .. } = numbers;
        let Moves { declared, before, after, places } = self.moves(program, insts, &numbers, &mut uses)?;
        let text = wide.write_substituted(insts, &NoEffects, &mut uses, &places)?;
        // The remaining points are computed one by one.
        let single: BTreeMap<BufId, String> =
            self.walked.iter().map(|&buf| (buf, format!("{}[p]", uses.memory(program.root(buf))))).collect();
        let rest = wide.write_substituted(insts, &NoEffects, &mut uses, &single)?;
        let many = i64::from(threads) * vectors;
        let each = format!("#pragma unroll\nfor (int w = 0; w < {vectors}; ++w)");
        let here = format!("const idx g = g0 + w * {threads};\nif (g < all)");
        // Without a remainder every thread has a vector and nothing is checked.
        let (acts, done) =
            if checks::any(insts) { (format!("{here} {{\n"), "}\n") } else { Default::default() };
        // All loads come before all computation, so that they are in flight at once.
        let body = format!(
            "const idx all = {count} / {lanes};
for (idx g0 = blockIdx.x * (idx){many} + threadIdx.x; g0 < all; g0 += (idx)gridDim.x * {many}) {{
{declared}{each} {{
{here} {{
{before}}}
}}
{each} {{
{acts}#pragma unroll
for (int u = 0; u < {lanes}; ++u) {{
{text}}}
{done}}}
{each} {{
{here} {{
{after}}}
}}
}}
for (idx p = all * {lanes} + blockIdx.x * (idx){threads} + threadIdx.x; p < {count}; p += (idx)gridDim.x * {threads}) {{
{rest}}}
"
        );
        let blocks = blocks_of(&points, many * lanes as i64);
        assemble(program, ENTRY, &uses, Launch::flat(blocks, threads), &body)
    }

    /// Returns the declarations, loads and stores of a thread's vectors.
    fn moves(
        &self,
        program: &Program,
        insts: &[Inst],
        numbers: &Numbers,
        uses: &mut Uses,
    ) -> Result<Moves, GenError> {
        let (lanes, Numbers { vectors, stream, .. }) = (self.lanes, numbers);
        let (mut declared, mut before, mut after) = (String::new(), String::new(), String::new());
        let mut places = BTreeMap::new();
        // The old and the new value of an input that is written in place are two buffers over one memory.
        let mut seen = Vec::new();
        for &buf in &self.walked {
            let root = program.root(buf);
            let memory = uses.memory(root);
            let ty = format!("Vec<{}, {lanes}>", memory_type(program.buffers[buf].dtype)?);
            let name = memory.replace('b', "x");
            places.insert(buf, format!("{name}[w].v[u]"));
            if seen.contains(&root) {
                continue;
            }
            seen.push(root);
            let _ = writeln!(declared, "{ty} {name}[{vectors}];");
            let same = |b: BufId| program.root(b) == root;
            if insts.iter().any(|i| matches!(i.kind, InstKind::Load { buf: b, .. } if same(b))) {
                let _ = writeln!(before, "{name}[w] = load_vector<{stream}>((const {ty} *){memory} + g);");
            }
            if insts.iter().any(|i| matches!(i.kind, InstKind::Store { buf: b, .. } if same(b))) {
                let _ = writeln!(after, "store_vector<{stream}>(({ty} *){memory} + g, {name}[w]);");
            }
        }
        Ok(Moves { declared, before, after, places })
    }

    /// Chooses how many vectors a thread takes, whether they bypass the cache, and the threads per block.
    fn numbers(&self, program: &Program, k: &LoopKernel, target: &Target) -> Numbers {
        let insts = &k.stages[0].insts;
        let reads =
            |b: &&BufId| insts.iter().any(|i| matches!(&i.kind, InstKind::Load { buf, .. } if buf == *b));
        let read = self.walked.iter().filter(reads).count();
        let points = hint(program, &volume(&k.outer));
        let bytes: u64 =
            self.walked.iter().map(|b| program.buffers[*b].dtype.size() as u64 * points.max(0) as u64).sum();
        let stream = bytes > target.cache;
        // Measured on an H200 over 2 GiB with two vectors per thread: blocks of 128 threads move 4.22 TB/s and blocks of
        // 256 move 4.08; with four vectors 4.02.
        let (threads, most) = if stream { (THREADS / 2, 2) } else { (THREADS, 4) };
        // At least two loads are in flight, the text stays small, and every multiprocessor has blocks.
        let fits = |v: i64| {
            let blocks = points / (i64::from(threads) * v * self.lanes as i64);
            v <= most
                && v * read.max(1) as i64 <= 4
                && insts.len() as i64 * v * self.lanes as i64 <= MAX_TEXT
                && blocks >= 4 * i64::from(target.multiprocessors)
        };
        let vectors = [4, 2].into_iter().find(|v| fits(*v)).unwrap_or(1);
        Numbers { vectors, stream, threads }
    }
}

/// The text of a thread's loads and stores.
struct Moves {
    declared: String,
    before: String,
    after: String,
    /// The expression for an element of each buffer.
    places: BTreeMap<BufId, String>,
}

/// The shape of the work of one thread.
struct Numbers {
    vectors: i64,
    stream: bool,
    threads: u32,
}

/// Whether every load of a buffer comes before any store to its memory.
fn no_reread(program: &Program, insts: &[Inst]) -> bool {
    let mut written = Vec::new();
    insts.iter().all(|inst| match &inst.kind {
        InstKind::Store { buf, .. } => {
            written.push(program.root(*buf));
            true
        }
        InstKind::Load { buf, .. } => !written.contains(&program.root(*buf)),
        _ => true,
    })
}

fn uses_loops(e: &SymExpr) -> bool {
    e.any_leaf(|a| matches!(a, Atom::Loop(_)))
}

/// Whether the address is the number of the point in row-major order over `outer`.
fn is_flat(address: &SymExpr, outer: &[SymExpr]) -> bool {
    let mut flat = SymExpr::ZERO;
    for (d, extent) in outer.iter().enumerate() {
        flat =
            flat * extent + if *extent == SymExpr::ONE { SymExpr::ZERO } else { SymExpr::loop_var(d as u32) };
    }
    // The index of a dimension of size 1 is 0 whatever its stride.
    let at = address.subst(&|a| match a {
        Atom::Loop(n) => outer.get(*n as usize).filter(|e| **e == SymExpr::ONE).map(|_| SymExpr::ZERO),
        _ => None,
    });
    at == flat
}

/// The effects of a pointwise body, which cannot reduce or scan.
pub(crate) struct NoEffects;

impl Effects for NoEffects {
    fn reduce(&self, _: kernel_ir::AccId, _: &str, _: Option<&str>) -> Result<String, GenError> {
        Err(GenError::Malformed("a reduction without a loop".into()))
    }
    fn acc(&self, _: kernel_ir::AccId) -> String {
        "0".into()
    }
    fn scan(&self, _: &str, _: ir_core::DType, _: kernel_ir::ReduceOp, _: &str) -> Result<String, GenError> {
        Err(GenError::Malformed("a scan without a loop".into()))
    }
    fn template(&self) -> Result<String, GenError> {
        Err(GenError::Malformed("`template` outside of an epilogue".into()))
    }
}
