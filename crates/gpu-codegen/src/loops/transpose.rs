//! Pointwise kernels that read memory along one dimension and write it along another. Operands that are contiguous along
//! the other dimension go through a tile in shared memory, so that reads and writes are both coalesced.

use std::collections::BTreeMap;
use std::fmt::Write;

use ir_core::{Atom, SymExpr};
use kernel_ir::{BufId, InstKind, LoopKernel, Program, StoreMode};

use crate::address::address;
use crate::loops::flat::NoEffects;
use crate::loops::hint;
use crate::text::body::{BodyWriter, Uses};
use crate::text::checks;
use crate::text::template::{assemble, unravel, volume};
use crate::text::types::memory_type;
use crate::{ENTRY, GenError, Kernel, Launch, MAX_BLOCKS};

/// Rows and columns of a tile.
const TILE: i64 = 32;
/// Threads per block: the rows that it moves at once, times the columns.
const THREADS: u32 = 256;
/// Dimensions shorter than this are not worth a tile.
const MIN_EXTENT: i64 = 16;
/// Maximum number of buffers that go through tiles: 8-byte elements then fit into the shared memory that every launch has.
const MAX_TILES: usize = 4;

/// The dimensions over which a kernel is tiled, and the buffers that go through tiles.
pub(crate) struct Transpose {
    /// The dimension along which the staged buffers are contiguous.
    read: usize,
    /// The dimension along which everything else is contiguous.
    written: usize,
    staged: Vec<(BufId, SymExpr)>,
}

/// The coefficient of a loop variable in an address.
fn factor(address: &SymExpr, variable: usize) -> Option<SymExpr> {
    address.affine_in(&Atom::Loop(variable as u32)).map(|(factor, _)| factor)
}

/// The last dimension with stride 1; dimensions of size 1 do not count.
fn unit(address: &SymExpr, outer: &[SymExpr]) -> Option<usize> {
    let fits = |d: &usize| outer[*d] != SymExpr::ONE && factor(address, *d) == Some(SymExpr::ONE);
    (0..outer.len()).rev().find(fits)
}

impl Transpose {
    /// Returns `None` for kernels that do not transpose.
    pub(crate) fn of(program: &Program, k: &LoopKernel) -> Option<Transpose> {
        let [stage] = &k.stages[..] else { return None };
        if !stage.inner.is_empty() || !k.accs.is_empty() {
            return None;
        }
        let long = |d: usize| hint(program, &k.outer[d]) >= MIN_EXTENT;
        let mut written = None;
        let mut stored = Vec::new();
        for inst in &stage.insts {
            let InstKind::Store { buf, index, mode, .. } = &inst.kind else { continue };
            let along = unit(&address(program, *buf, index, &k.outer), &k.outer).filter(|d| long(*d))?;
            if *mode != StoreMode::Write || written.is_some_and(|d| d != along) {
                return None;
            }
            written = Some(along);
            stored.push(program.root(*buf));
        }
        let written = written?;
        let (mut read, mut staged) = (None, BTreeMap::new());
        let mut direct = Vec::new();
        for inst in &stage.insts {
            let InstKind::Load { buf, index, mask } = &inst.kind else { continue };
            let address = address(program, *buf, index, &k.outer);
            let along = unit(&address, &k.outer).filter(|d| *d != written && long(*d));
            let across = factor(&address, written).is_some_and(|f| f != SymExpr::ZERO);
            let same = along.is_some_and(|d| read.is_none_or(|r| r == d));
            let whole = mask.is_none() && !checks::from_data(index) && !stored.contains(&program.root(*buf));
            // One buffer has one tile, so every load of it must have the same address.
            let known = staged.get(buf).is_none_or(|a| *a == address);
            if same && across && whole && known && (staged.len() < MAX_TILES || staged.contains_key(buf)) {
                read = along;
                staged.insert(*buf, address);
            } else {
                direct.push(*buf);
            }
        }
        staged.retain(|buf, _| !direct.contains(buf));
        if staged.is_empty() {
            return None;
        }
        Some(Transpose { read: read?, written, staged: staged.into_iter().collect() })
    }

    /// Generates the kernel.
    pub(crate) fn generate(&self, program: &Program, k: &LoopKernel) -> Result<Kernel, GenError> {
        let mut uses = Uses::default();
        let writer = BodyWriter { program, extents: &k.outer, prefix: "v", guard: None, store_guard: None };
        let (r, w) = (self.read, self.written);
        let (long, wide) = (writer.expr(&k.outer[r], &mut uses), writer.expr(&k.outer[w], &mut uses));
        let mut others: Vec<SymExpr> = k.outer.to_vec();
        (others[r], others[w]) = (SymExpr::ONE, SymExpr::ONE);
        let count = writer.expr(&volume(&others), &mut uses);
        let rest = unravel(&writer, &others, 0, "rest", &mut uses);
        let (mut tiles, mut fill, mut places) = (String::new(), String::new(), BTreeMap::new());
        for (n, (buf, address)) in self.staged.iter().enumerate() {
            let ty = memory_type(program.buffers[*buf].dtype)?;
            let _ = writeln!(tiles, "__shared__ {ty} tile{n}[{TILE}][{TILE} + 1];");
            let memory = uses.memory(program.root(*buf));
            let _ = writeln!(fill, "tile{n}[j][lane] = {memory}[{}];", writer.expr(address, &mut uses));
            places.insert(*buf, format!("tile{n}[lane][j]"));
        }
        let text = writer.write_substituted(&k.stages[0].insts, &NoEffects, &mut uses, &places)?;
        let rows = i64::from(THREADS) / TILE;
        let each = format!("#pragma unroll\nfor (int j = threadIdx.x / {TILE}; j < {TILE}; j += {rows})");
        let body = format!(
            "{tiles}const int lane = threadIdx.x % {TILE};
const idx high = ({long} + {TILE} - 1) / {TILE}, across = ({wide} + {TILE} - 1) / {TILE};
for (idx block = blockIdx.x; block < {count} * high * across; block += gridDim.x) {{
const idx rest = block / across / high, from_r = block / across % high * {TILE}, from_w = block % across * {TILE};
{rest}{{
{each} {{
const idx i{r} = from_r + lane, i{w} = from_w + j;
if (i{r} < {long} && i{w} < {wide}) {{
{fill}}}
}}
block_sync();
{each} {{
const idx i{r} = from_r + j, i{w} = from_w + lane;
if (i{r} < {long} && i{w} < {wide}) {{
{text}}}
}}
block_sync();
}}
}}
"
        );
        let tile = SymExpr::from_i64(TILE);
        let blocks = volume(&others) * k.outer[r].ceil_div(&tile) * k.outer[w].ceil_div(&tile);
        let launch = Launch::flat(blocks.sym_min(&SymExpr::from_i64(MAX_BLOCKS)), THREADS);
        assemble(program, ENTRY, &uses, launch, &body)
    }
}
