//! Linear scan over the straight line of one step: each value gets a register from its definition to its last use; where there
//! are not enough, the value that is used last stays in memory. Invariant values get the registers that are left over, those
//! used most first; the others are read from memory where they are used. A value from before a loop that is used in it lives to
//! the loop's end.

use super::ir::{Body, Inst, V};
use crate::vir::Class;

/// Where a value is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Location {
    /// A vector or mask register.
    Register(u8),
    /// The spill slot of this number, as long as the value lives.
    Spilled(u32),
    /// An invariant value in its place in memory.
    Memory,
}

/// The registers that a step may use.
pub(super) struct Supply {
    /// Vector registers `0..vectors`.
    pub(super) vectors: u8,
    /// Mask registers; where there are none, masks are in vector registers.
    pub(super) masks: &'static [u8],
}

/// The places of all values.
pub(super) struct Places {
    pub(super) of: Vec<Location>,
    /// Number of spill slots.
    pub(super) spills: u32,
}

/// Free registers of one file as bits, and the values that are in the others.
struct File {
    free: u32,
    active: Vec<V>,
}

impl File {
    fn take(&mut self) -> Option<u8> {
        let register = self.free.trailing_zeros();
        (register < 32).then(|| {
            self.free &= !(1 << register);
            register as u8
        })
    }
}

/// Assigns places to the values of a body.
pub(super) fn allocate(body: &Body, supply: &Supply) -> Places {
    let mut places = Places { of: vec![Location::Memory; body.values as usize], spills: 0 };
    let mut last = vec![0usize; body.values as usize];
    let mut count = vec![0usize; body.values as usize];
    for (n, inst) in body.insts.iter().enumerate() {
        inst.def().into_iter().for_each(|d| last[d.id as usize] = n);
        for v in inst.uses() {
            last[v.id as usize] = n;
            count[v.id as usize] += 1;
        }
    }
    outlive_loops(body, &mut last);
    let masks = supply.masks.iter().fold(0, |bits, k| bits | 1 << k);
    let mut vectors = File { free: ((1u64 << supply.vectors) - 1) as u32, active: Vec::new() };
    let mut masks = File { free: masks, active: Vec::new() };
    let mut unused = vectors.free;
    let mut defined = vec![false; body.values as usize];
    for (n, inst) in body.insts.iter().enumerate() {
        // Operands are read before the result is written, so it may have the register of one that ends here.
        for file in [&mut vectors, &mut masks] {
            release(file, &places, |v| last[v.id as usize] <= n);
        }
        let Some(d) = inst.def() else { continue };
        if std::mem::replace(&mut defined[d.id as usize], true) {
            continue;
        }
        let file = if d.class == Class::Mask && !supply.masks.is_empty() { &mut masks } else { &mut vectors };
        place(file, &mut places, &last, d);
        unused &= vectors.free;
    }
    pin(body, &mut places, &count, unused);
    places
}

/// Extends the lives of values that are defined before a loop and used in it to its end.
fn outlive_loops(body: &Body, last: &mut [usize]) {
    let mut begun: Vec<usize> = Vec::new();
    let mut first = vec![usize::MAX; body.values as usize];
    for (n, inst) in body.insts.iter().enumerate() {
        match inst {
            Inst::Begin { .. } => begun.push(n),
            Inst::End { .. } => {
                let Some(begin) = begun.pop() else { continue };
                for inside in &body.insts[begin..n] {
                    for v in inside.uses().into_iter().chain(inside.def()) {
                        if first[v.id as usize] < begin {
                            last[v.id as usize] = last[v.id as usize].max(n);
                        }
                    }
                }
            }
            _ => {
                if let Some(d) = inst.def() {
                    first[d.id as usize] = first[d.id as usize].min(n);
                }
            }
        }
    }
}

/// Frees the registers of the values that end.
fn release(file: &mut File, places: &Places, ends: impl Fn(&V) -> bool) {
    let mut free = file.free;
    file.active.retain(|v| {
        let over = ends(v);
        if let (true, Location::Register(r)) = (over, places.of[v.id as usize]) {
            free |= 1 << r;
        }
        !over
    });
    file.free = free;
}

/// Places a value that begins: in a free register, or in that of the value with the most distant end, or in memory.
fn place(file: &mut File, places: &mut Places, last: &[usize], d: V) {
    if let Some(register) = file.take() {
        places.of[d.id as usize] = Location::Register(register);
        file.active.push(d);
        return;
    }
    let slot = Location::Spilled(places.spills);
    places.spills += 1;
    let end = |v: &V| last[v.id as usize];
    let furthest = (0..file.active.len()).max_by_key(|n| end(&file.active[*n]));
    match furthest.filter(|n| end(&file.active[*n]) > end(&d)) {
        Some(n) => {
            let victim = std::mem::replace(&mut file.active[n], d);
            places.of[d.id as usize] = places.of[victim.id as usize];
            places.of[victim.id as usize] = slot;
        }
        None => places.of[d.id as usize] = slot,
    }
}

/// Gives registers that no step uses to the invariant values that are used most.
fn pin(body: &Body, places: &mut Places, count: &[usize], mut unused: u32) {
    let mut order: Vec<V> = body.invariants.iter().map(|(v, _)| *v).collect();
    order.sort_by_key(|v| std::cmp::Reverse(count[v.id as usize]));
    for v in order {
        if unused == 0 || count[v.id as usize] == 0 {
            break;
        }
        let register = unused.trailing_zeros();
        unused &= !(1 << register);
        places.of[v.id as usize] = Location::Register(register as u8);
    }
}
