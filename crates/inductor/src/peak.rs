//! An estimate of the most memory that temporaries need at once, while nothing is scheduled: a value lives from its definition to
//! the last one that reads it. Decisions that make memory live longer ask it what they cost.
//!
//! Not here: the memory plan itself, which knows steps and gaps ([`kernel_ir::ArenaPlan`]).

use kernel_ir::BufId;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::defs::{DefKind, Defs};

/// The memory that each definition uses, in order.
pub(crate) struct Lives {
    /// What a definition with memory writes and reads, values without memory passed over.
    uses: Vec<Vec<BufId>>,
    place: FxHashMap<BufId, usize>,
}

impl Lives {
    /// Those of definitions of which it is decided which have memory.
    pub(crate) fn of(defs: &Defs) -> Lives {
        let mut lives = Lives { uses: Vec::new(), place: FxHashMap::default() };
        for &id in defs.order.iter().filter(|id| defs.get(**id).realized) {
            lives.place.insert(id, lives.uses.len());
            lives.uses.push(memory(defs, id));
        }
        lives
    }

    /// The number of a definition among those with memory.
    pub(crate) fn place(&self, id: BufId) -> usize {
        self.place.get(&id).copied().unwrap_or(usize::MAX)
    }

    /// Bytes at the symbols' hints, with values where they lie now.
    pub(crate) fn peak(&self, defs: &Defs) -> i64 {
        let mut ranges: FxHashMap<BufId, (usize, usize)> = FxHashMap::default();
        for (n, used) in self.uses.iter().enumerate() {
            for id in used {
                let root = defs.get(*id).place.as_ref().map_or(*id, |place| place.of);
                ranges.entry(root).or_insert((n, n)).1 = n;
            }
        }
        let mut changes = vec![0i64; self.uses.len() + 1];
        for (root, (first, last)) in ranges {
            let bytes = bytes(defs, root);
            changes[first] = changes[first].saturating_add(bytes);
            changes[last + 1] = changes[last + 1].saturating_sub(bytes);
        }
        let mut live = 0i64;
        let now = changes.into_iter().map(|change| {
            live = live.saturating_add(change);
            live
        });
        now.max().unwrap_or(0)
    }
}

/// A definition with memory and those that it reads.
fn memory(defs: &Defs, id: BufId) -> Vec<BufId> {
    let (mut found, mut open, mut seen) = (vec![id], defs.get(id).reads(), FxHashSet::default());
    while let Some(read) = open.pop() {
        match defs.get(read).realized {
            _ if !seen.insert(read) => {}
            true => found.push(read),
            false => open.extend(defs.get(read).reads()),
        }
    }
    found
}

/// Bytes of a temporary; none of what outlives the call or was there before.
fn bytes(defs: &Defs, root: BufId) -> i64 {
    let def = defs.get(root);
    let given = matches!(def.kind, DefKind::Input | DefKind::Constant) || def.constant || def.output;
    if given { 0 } else { defs.numel_hint(&def.sizes).saturating_mul(def.dtype.size() as i64) }
}
