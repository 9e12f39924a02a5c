//! Pointwise kernels that read memory along one dimension and write it along another. Operands that are contiguous along
//! the other dimension go through a tile in shared memory, so that reads and writes are both coalesced.
//!
//! Not here: the tiles (`text::tiles`).

use std::collections::BTreeMap;

use ir_core::SymExpr;
use kernel_ir::collapse::merge_neighbours;
use kernel_ir::{BufId, InstKind, LoopKernel, Program, StoreMode};

use crate::address::address;
use crate::loops::flat::NoEffects;
use crate::text::body::{BodyWriter, Uses};
use crate::text::checks;
use crate::text::template::assemble;
use crate::text::tiles::{MAX_TILES, Tiles, factor, may_tile, unit};
use crate::text::types::memory_type;
use crate::{ENTRY, GenError, Kernel};

/// A kernel with the tiles over its dimensions, and the buffers that go through them.
pub(crate) struct Transpose {
    kernel: LoopKernel,
    tiles: Tiles,
    staged: Vec<(BufId, SymExpr)>,
}

impl Transpose {
    /// Returns `None` for kernels that do not transpose.
    pub(crate) fn of(program: &Program, k: &LoopKernel) -> Option<Transpose> {
        let mut kernel = k.clone();
        let [stage] = &mut kernel.stages[..] else { return None };
        if !stage.inner.is_empty() || !kernel.accs.is_empty() {
            return None;
        }
        merge_neighbours(program, &mut kernel.outer, &mut stage.insts, &|_, _| true);
        let outer = &kernel.outer;
        let tiled = |d: &usize| may_tile(program, &outer[*d]);
        let mut written = None;
        let mut stored = Vec::new();
        for inst in &stage.insts {
            let InstKind::Store { buf, index, mode, .. } = &inst.kind else { continue };
            let along = unit(&address(program, *buf, index, outer), outer).filter(tiled)?;
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
            let address = address(program, *buf, index, outer);
            let along = unit(&address, outer).filter(|d| *d != written && tiled(d));
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
        let tiles = Tiles::of(program, outer, read?, written)?;
        Some(Transpose { tiles, staged: staged.into_iter().collect(), kernel })
    }

    /// Generates the kernel.
    pub(crate) fn generate(&self, program: &Program) -> Result<Kernel, GenError> {
        let mut uses = Uses::default();
        let k = &self.kernel;
        let writer = BodyWriter { program, extents: &k.outer, prefix: "v", guard: None, store_guard: None };
        let (mut tiles, mut fill, mut places) = (String::new(), String::new(), BTreeMap::new());
        for (n, (buf, address)) in self.staged.iter().enumerate() {
            tiles.push_str(&self.tiles.declared(n, memory_type(program.buffers[*buf].dtype)?));
            let memory = uses.memory(program.root(*buf));
            let element = self.tiles.element(n);
            fill.push_str(&format!("{element} = {memory}[{}];\n", writer.expr(address, &mut uses)));
            places.insert(*buf, element);
        }
        let body = writer.write_substituted(&k.stages[0].insts, &NoEffects, &mut uses, &places)?;
        let text = self.tiles.text(&writer, (&tiles, &fill, &body), &mut uses);
        assemble(program, ENTRY, &uses, self.tiles.launch(&k.outer), &text)
    }
}
