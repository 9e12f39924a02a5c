//! Many summands for few places: gradients of small tables (relative positions, token types, classes), counts. Each block adds
//! its points up in a table of its own in shared memory, and a second kernel adds the tables to the result. Directly in memory
//! additions to one place wait for each other, those of 16 bits by comparing and swapping.
//!
//! Not here: sums in a fixed order (`sort::ordered`), and tables that do not fit in shared memory, whose places are many enough
//! to be added to directly.

use ir_core::{DType, SymExpr};
use kernel_ir::{AccId, BufId, InstKind, LoopKernel, Program, Stage, StoreMode};

use crate::loops::hint;
use crate::text::body::{BodyWriter, Effects, Uses};
use crate::text::template::{assemble, blocks_of, unravel, volume};
use crate::text::types::memory_type;
use crate::{ENTRY, GenError, Kernel, Launch, Target, Variant};

/// Bytes of the largest table: every block has 48 KiB of static shared memory.
const LARGEST: i64 = 32 * 1024;
/// Points for each place from which places are added to often.
const EACH: i64 = 4;
/// Fewest points: fewer are added before a second kernel has begun.
const FEWEST: i64 = 4096;
/// Points of a block, of which it has its table to write.
const WORK: i64 = 2048;
/// Blocks per multiprocessor.
const BLOCKS_EACH: i64 = 2;
/// Threads of a block that adds points.
const THREADS: u32 = 512;
/// Threads of a block that adds tables, a wave for each place.
const FINAL_THREADS: u32 = 128;

/// A kernel that adds to few places.
pub(crate) struct Tables<'a> {
    program: &'a Program,
    k: &'a LoopKernel,
    stage: &'a Stage,
    root: BufId,
    /// Elements of the result's memory.
    places: i64,
    /// Blocks that add points.
    blocks: i64,
    wave: u32,
}

impl<'a> Tables<'a> {
    /// `None` where the kernel does anything but add floats to one buffer, or its places are too many.
    pub(crate) fn of(program: &'a Program, k: &'a LoopKernel, target: &Target) -> Option<Tables<'a>> {
        let [stage] = &k.stages[..] else { return None };
        if !stage.inner.is_empty() || !k.accs.is_empty() {
            return None;
        }
        let mut stores = stage.insts.iter().filter_map(|inst| match &inst.kind {
            InstKind::Store { buf, mode, .. } => Some((program.root(*buf), *mode, inst.dtype)),
            _ => None,
        });
        let (Some((root, StoreMode::Add, dtype)), None) = (stores.next(), stores.next()) else { return None };
        let sum = sum_type(dtype)?;
        let places = program.buffers[root].span().as_const()?;
        let points = hint(program, &volume(&k.outer));
        let read = stage.insts.iter().any(|inst| match &inst.kind {
            InstKind::Load { buf, .. } => program.root(*buf) == root,
            _ => false,
        });
        if read || places == 0 || places * sum.size() as i64 > LARGEST || points < FEWEST.max(EACH * places) {
            return None;
        }
        let most = BLOCKS_EACH * i64::from(target.multiprocessors);
        let blocks = (points / places.max(WORK)).clamp(1, most);
        Some(Tables { program, k, stage, root, places, blocks, wave: target.wave })
    }

    pub(crate) fn generate(&self) -> Result<Variant, GenError> {
        let sum = self.sum()?;
        let bytes = self.blocks * self.places * sum.size() as i64;
        let kernels = vec![self.points(sum)?, self.total(sum)?];
        Ok(Variant { name: "tables".into(), kernels, scratch: vec![SymExpr::from_i64(bytes)] })
    }

    fn sum(&self) -> Result<DType, GenError> {
        let dtype = self.program.buffers[self.root].dtype;
        sum_type(dtype).ok_or_else(|| GenError::Malformed(format!("{dtype} has no sums in shared memory")))
    }

    fn uses(&self, sum: DType) -> Result<Uses, GenError> {
        Ok(Uses { scratch: vec![memory_type(sum)?], ..Uses::default() })
    }

    /// Each block adds points up in its table, which it then writes to scratch memory.
    fn points(&self, sum: DType) -> Result<Kernel, GenError> {
        let (ty, places) = (memory_type(sum)?, self.places);
        let mut uses = self.uses(sum)?;
        let writer = BodyWriter {
            program: self.program,
            extents: &self.k.outer,
            prefix: "v",
            guard: Some("active"),
            store_guard: None,
        };
        let count = writer.expr(&volume(&self.k.outer), &mut uses);
        let mut turn = unravel(&writer, &self.k.outer, 0, "p", &mut uses);
        turn.push_str(&writer.write(&self.stage.insts, &IntoTable { ty }, &mut uses)?);
        let body = format!(
            "__shared__ {ty} table[{places}];
for (int t = threadIdx.x; t < {places}; t += {THREADS}) table[t] = 0;
block_sync();
for (idx base = blockIdx.x * (idx){THREADS}; base < {count}; base += gridDim.x * (idx){THREADS}) {{
const bool active = base + threadIdx.x < {count};
const idx p = active ? base + threadIdx.x : 0;
int place = -1;
{ty} summand = 0;
{turn}table_add(table, place, summand);
}}
block_sync();
for (int t = threadIdx.x; t < {places}; t += {THREADS}) scratch0[blockIdx.x * {places} + t] = table[t];
"
        );
        let launch = Launch::flat(SymExpr::from_i64(self.blocks), THREADS);
        assemble(self.program, ENTRY, &uses, launch, &body)
    }

    /// A wave adds the numbers that the tables have for a place to the result.
    fn total(&self, sum: DType) -> Result<Kernel, GenError> {
        let (ty, places, blocks, wave) = (memory_type(sum)?, self.places, self.blocks, self.wave);
        let stored = memory_type(self.program.buffers[self.root].dtype)?;
        let mut uses = self.uses(sum)?;
        let memory = uses.memory(self.root);
        uses.written.insert(self.root);
        uses.loaded.insert(self.root);
        let waves = FINAL_THREADS / wave;
        let body = format!(
            "const int lane = threadIdx.x % {wave};
for (idx t = blockIdx.x * (idx){waves} + threadIdx.x / {wave}; t < {places}; t += gridDim.x * (idx){waves}) {{
{ty} sum = 0;
for (int b = lane; b < {blocks}; b += {wave}) sum += scratch0[b * {places} + t];
sum = team_combine<SUM, {wave}>(sum, (void *)0);
if (lane == 0) {memory}[t] = to<{stored}>(to<{ty}>({memory}[t]) + sum);
}}
"
        );
        let launch = Launch::flat(blocks_of(&SymExpr::from_i64(places), i64::from(waves)), FINAL_THREADS);
        assemble(self.program, ENTRY, &uses, launch, &body)
    }
}

/// The dtype of a table's sums; `None` where shared memory has no additions of it.
fn sum_type(dtype: DType) -> Option<DType> {
    match dtype {
        DType::F16 | DType::BF16 | DType::F32 => Some(DType::F32),
        DType::F64 => Some(DType::F64),
        _ => None,
    }
}

/// The effects of a body whose addition goes to the block's table.
struct IntoTable {
    /// The C++ type of sums.
    ty: &'static str,
}

impl Effects for IntoTable {
    fn reduce(&self, _: AccId, _: &str, _: Option<&str>) -> Result<String, GenError> {
        Err(GenError::Malformed("a reduction without a loop".into()))
    }
    fn acc(&self, _: AccId) -> String {
        "0".into()
    }
    fn scan(&self, _: &str, _: DType, _: kernel_ir::ReduceOp, _: &str) -> Result<String, GenError> {
        Err(GenError::Malformed("a scan without a loop".into()))
    }
    fn template(&self) -> Result<String, GenError> {
        Err(GenError::Malformed("`template` outside of an epilogue".into()))
    }
    fn combine(&self, element: &str, _: &str, _: &str, value: &str) -> String {
        let memory = element.split('[').next().unwrap_or(element);
        let ty = self.ty;
        format!("{{ place = (int)(&{element} - {memory}); summand = to<{ty}>({value}); }}")
    }
}
