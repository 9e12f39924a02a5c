//! Normalises kernels that do the same in different memory: buffers and check sites are numbered in order of occurrence,
//! and offsets into buffers are removed from the addresses. The caller passes such a kernel a table of base pointers and a
//! list of sites.

use ir_core::{EntityId, SymExpr};
use kernel_ir::{AccDecl, BufId};
use rustc_hash::FxHashMap;

use super::{Dim, VKernel, VKind, VStage};

/// The memory of one entry of a kernel's table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Base {
    /// The buffer.
    pub root: BufId,
    /// Bytes into it; may be negative where the kernel adds more.
    pub bytes: i64,
}

/// The key of a kernel's machine code.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Form {
    points: Vec<Dim>,
    outer_axis: Option<Dim>,
    accs: Vec<AccDecl>,
    stages: Vec<VStage>,
    tile: Option<i64>,
    unroll: u32,
}

/// Renumbers the kernel's buffers and sites, from 0 on; the bases in that order.
pub fn relocate(kernel: &mut VKernel) -> Vec<Base> {
    let mut bases: Vec<Base> = Vec::new();
    let mut places: FxHashMap<BufId, (usize, i64)> = FxHashMap::default();
    for inst in kernel.stages.iter_mut().flat_map(|s| &mut s.insts) {
        let (VKind::Load { at, .. } | VKind::Store { at, .. }) = &mut inst.kind else { continue };
        let size = at.dtype.size() as i64;
        let (number, bytes) = *places.entry(at.root).or_insert_with(|| {
            let start = at.address.terms().1.checked_mul(size).unwrap_or(0);
            bases.push(Base { root: at.root, bytes: start });
            (bases.len() - 1, start)
        });
        // Memory viewed with a dtype of another size may begin between its elements.
        if bytes % size == 0 {
            at.address = &at.address - SymExpr::from_i64(bytes / size);
            at.root = BufId::from_index(number);
        } else {
            let whole = bases.iter().position(|b| b.root == at.root && b.bytes == 0).unwrap_or(bases.len());
            if whole == bases.len() {
                bases.push(Base { root: at.root, bytes: 0 });
            }
            at.root = BufId::from_index(whole);
        }
    }
    kernel.bases = bases.len() as u32;
    let mut sites: Vec<u32> = Vec::new();
    for inst in kernel.stages.iter_mut().flat_map(|s| &mut s.insts) {
        let VKind::Check { site, .. } = &mut inst.kind else { continue };
        let number = sites.iter().position(|s| s == site).unwrap_or(sites.len());
        if number == sites.len() {
            sites.push(*site);
        }
        *site = number as u32;
    }
    kernel.sites = sites;
    bases
}

/// The form of a kernel; kernels of one form have the same machine code.
pub fn form(kernel: &VKernel) -> Form {
    Form {
        points: kernel.points.clone(),
        outer_axis: kernel.outer_axis.clone(),
        accs: kernel.accs.clone(),
        stages: kernel.stages.clone(),
        tile: kernel.tile,
        unroll: kernel.unroll,
    }
}
