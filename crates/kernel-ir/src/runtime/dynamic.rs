//! Which buffers have memory of their own during a call, because a step tells their size. The memory itself is the executor's.

use ir_core::{Atom, EntityId, SymId};

use crate::{BufId, Program, Storage};

/// For a program's buffers whose sizes mention symbols that steps bind: when they lose their memory. They get it from the first
/// step that writes them ([`PlannedStep::dynamic`](super::PlannedStep::dynamic)).
#[derive(Clone, Debug, Default)]
pub struct Dynamic {
    /// For each symbol the buffers whose size mentions it, where a step binds it.
    by_symbol: Vec<Vec<BufId>>,
    /// For each step of the program the buffers that are not used after it.
    frees: Vec<Vec<BufId>>,
}

impl Dynamic {
    /// Of a program that [`verify`](crate::verify()) accepts.
    pub fn new(program: &Program) -> Dynamic {
        let mut by_symbol = vec![Vec::new(); program.symbols.len()];
        let owned = |s: &Storage| matches!(s, Storage::Arena | Storage::Output);
        for (id, buffer) in program.buffers.iter().filter(|(_, b)| owned(&b.storage)) {
            let mut mentioned: Vec<SymId> = Vec::new();
            for e in buffer.sizes.iter().chain(&buffer.strides) {
                e.for_each_leaf(&mut |a| match a {
                    Atom::Sym(s) if program.symbols.is_unbacked(a) => mentioned.push(*s),
                    _ => {}
                });
            }
            mentioned.sort_unstable();
            mentioned.dedup();
            mentioned.iter().for_each(|s| by_symbol[s.index()].push(id));
        }
        let mut frees = vec![Vec::new(); program.steps.len()];
        for live in &program.plan.dynamic {
            if let Some(list) = frees.get_mut(live.last as usize) {
                list.push(live.buf);
            }
        }
        Dynamic { by_symbol, frees }
    }

    /// The buffers whose sizes mention a symbol: they begin anew when it gets a value.
    pub fn of_symbol(&self, symbol: SymId) -> &[BufId] {
        self.by_symbol.get(symbol.index()).map_or(&[], Vec::as_slice)
    }
    /// The buffers that nothing uses after this step of the program.
    pub fn after(&self, step: usize) -> &[BufId] {
        self.frees.get(step).map_or(&[], Vec::as_slice)
    }
}
