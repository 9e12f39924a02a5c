//! Inputs that a call writes in place: whether all accesses of their memory are in order.
//!
//! An input's own buffer names the value before the call; a view that steps store to names a new value. Then:
//!
//! 1. The old value is read before the first store to a view, a new value after the first store to it and before a store to
//!    another view of the same input. A view that no step stores to is part of the old value.
//! 2. A step that stores to a view and reads the input's memory does both in one body, the load first, at one and the same
//!    address, and no two points of the body have that address; it overwrites (`store`) and does not combine. Templates and
//!    routines do not read what they write.
//! 3. A loop (`for`, `while`) does not both read and write the memory of one input. After a `cond` whose branches leave
//!    different values the memory is not read any more.
//! 4. Init steps write no input.
//!
//! The rules for buffers of other storage are the compiler's own concern, because no other program shares them.

use ir_core::{Atom, EntityId, SymExpr};

use crate::{BufId, Inst, InstKind, LoopBounds, Program, Step, StoreMode};

/// An access that is out of order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hazard {
    /// Number of the input.
    pub input: u32,
    /// ``kernel `add` `` or ``output `y` ``.
    pub place: String,
    /// What is wrong.
    pub what: String,
}

/// All accesses of written inputs that are out of order; none where a backend may run the steps in sequence. The program is
/// well-formed otherwise.
pub fn hazards(program: &Program) -> Vec<Hazard> {
    if !program.inputs.iter().any(|i| i.written) {
        return Vec::new();
    }
    let mut stored = vec![false; program.buffers.len()];
    for step in &program.steps {
        step.accesses().1.iter().for_each(|b| stored[b.index()] = true);
    }
    let current = vec![Contents::Old; program.inputs.len()];
    let mut order = Order { program, stored, current, found: Vec::new() };
    for step in &program.init {
        for input in step.accesses().1.iter().filter_map(|b| program.written_input(*b)) {
            order.note(input, kernel(step), "an init step writes it");
        }
    }
    order.list(&program.steps);
    for o in &program.outputs {
        order.read(o.buf, &|| format!("output `{}`", o.name));
    }
    order.found
}

/// The contents of an input's memory.
#[derive(Clone, Copy, PartialEq)]
enum Contents {
    /// The value before the call.
    Old,
    /// The value that this view names.
    New(BufId),
    /// Either of them.
    Unclear,
}

struct Order<'a> {
    program: &'a Program,
    /// Buffers that some step stores to.
    stored: Vec<bool>,
    current: Vec<Contents>,
    found: Vec<Hazard>,
}

fn kernel(step: &Step) -> String {
    format!("kernel `{}`", step.name())
}

impl Order<'_> {
    fn note(&mut self, input: u32, place: String, what: &str) {
        self.found.push(Hazard { input, place, what: what.into() });
    }

    fn list(&mut self, steps: &[Step]) {
        steps.iter().for_each(|s| self.step(s));
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Cond(c) => {
                self.read(c.pred.buf, &|| kernel(step));
                let before = self.current.clone();
                self.list(&c.then);
                let then = std::mem::replace(&mut self.current, before);
                self.list(&c.otherwise);
                for (now, other) in self.current.iter_mut().zip(then) {
                    if *now != other {
                        *now = Contents::Unclear;
                    }
                }
            }
            Step::For(_) | Step::While(_) => self.repeated(step),
            // No member uses what another one writes, so their order does not matter.
            Step::Together(t) => self.list(&t.steps),
            _ => self.single(step),
        }
    }

    /// A read through `buf`.
    fn read(&mut self, buf: BufId, place: &dyn Fn() -> String) {
        let Some(input) = self.program.written_input(buf) else { return };
        match self.current[input as usize] {
            Contents::Old if self.stored[buf.index()] => {
                self.note(input, place(), "it reads a new value of a written input before that is stored");
            }
            Contents::Old => {}
            Contents::New(view) if view == buf => {}
            _ => self.note(input, place(), "it reads a value of a written input that is overwritten before"),
        }
    }

    fn repeated(&mut self, step: &Step) {
        let (reads, writes) = step.accesses();
        for &buf in &reads {
            self.read(buf, &|| kernel(step));
        }
        for &buf in &writes {
            let Some(input) = self.program.written_input(buf) else { continue };
            if reads.iter().any(|r| self.program.written_input(*r) == Some(input)) {
                self.note(input, kernel(step), "a loop reads and writes the memory of one input");
            }
            let alone = writes.iter().all(|w| *w == buf || self.program.written_input(*w) != Some(input));
            self.current[input as usize] = if alone { Contents::New(buf) } else { Contents::Unclear };
        }
    }

    fn single(&mut self, step: &Step) {
        let (reads, writes) = step.accesses();
        for &buf in &reads {
            self.read(buf, &|| kernel(step));
        }
        for &buf in &writes {
            let Some(input) = self.program.written_input(buf) else { continue };
            if let Some(what) = self.clash(step, input) {
                self.note(input, kernel(step), what);
            }
            self.current[input as usize] = Contents::New(buf);
        }
    }

    /// Why a step may not write the memory of an input; `None` where it may.
    fn clash(&self, step: &Step, input: u32) -> Option<&'static str> {
        clash(self.program, step, &|buf| self.program.written_input(buf) == Some(input))
    }
}

/// Whether a loop, or the epilogue of a product or convolution, may write a buffer to the memory of another one that it reads
/// for the last time: both are of the same bytes, and every point reads the one where it writes the other, by rule 2.
pub(crate) fn may_take_over(program: &Program, step: &Step, from: BufId, to: BufId) -> bool {
    let (old, new) = (&program.buffers[from], &program.buffers[to]);
    matches!(step, Step::Loop(_) | Step::Matmul(_) | Step::Conv(_))
        && old.dtype.size() == new.dtype.size()
        && old.span() == new.span()
        && clash(program, step, &|buf| [from, to].contains(&program.root(buf))).is_none()
}

/// Why a step may not write memory of its `own` buffers, which are one memory; `None` where it may.
fn clash(program: &Program, step: &Step, own: &dyn Fn(BufId) -> bool) -> Option<&'static str> {
    if step.operands().iter().any(|o| own(o.buf)) {
        return Some("it reads the memory of the input that it writes");
    }
    let mut target: Option<BufId> = None;
    let one = |buf: BufId, target: &mut Option<BufId>| *target.get_or_insert(buf) == buf;
    let (_, writes) = step.accesses();
    if !writes.into_iter().filter(|b| own(*b)).all(|b| one(b, &mut target)) {
        return Some("it writes the memory of one input through two views");
    }
    let loads = |i: &Inst| matches!(i.kind, InstKind::Load { buf, .. } if own(buf));
    let stores = |i: &Inst| matches!(i.kind, InstKind::Store { buf, .. } if own(buf));
    let bodies = step.bodies();
    if !bodies.iter().any(|(_, insts)| insts.iter().any(loads)) {
        return None;
    }
    let touching = bodies.iter().filter(|(_, insts)| insts.iter().any(|i| loads(i) || stores(i)));
    let [(extents, insts)] = touching.collect::<Vec<_>>()[..] else {
        return Some("one of its stages reads what another one writes");
    };
    own_point(program, extents, insts, own)
}

/// Whether a body reads memory that it writes only at its own point.
fn own_point(
    program: &Program,
    extents: &[SymExpr],
    insts: &[Inst],
    own: &dyn Fn(BufId) -> bool,
) -> Option<&'static str> {
    let mut at: Option<SymExpr> = None;
    let mut written = false;
    for inst in insts {
        let (buf, index) = match &inst.kind {
            InstKind::Load { buf, index, .. } if own(*buf) => {
                if written {
                    return Some("it reads the input after it has written it");
                }
                (buf, index)
            }
            InstKind::Store { buf, index, mode, .. } if own(*buf) => {
                if *mode != StoreMode::Write {
                    return Some("it reads an input that it combines values into");
                }
                written = true;
                (buf, index)
            }
            _ => continue,
        };
        let address = program.buffers[*buf].address(index);
        if *at.get_or_insert_with(|| address.clone()) != address {
            return Some("it reads the input at another place than it writes");
        }
    }
    let symbols = program.bounds();
    let bounds = LoopBounds { extents, symbols: &symbols };
    let apart = at.is_none_or(|at| one_to_one(&at.simplify(&bounds), &bounds));
    (!apart).then_some("two of its points may read and write one element")
}

/// Whether no two points of a loop nest have the same address: the address is a sum of loop variables, each with a stride
/// larger than the range of those with smaller strides.
fn one_to_one(address: &SymExpr, bounds: &LoopBounds<'_>) -> bool {
    let mut open = Vec::new();
    let mut rest = address.clone();
    for (d, extent) in bounds.extents.iter().enumerate() {
        let Some((step, left)) = rest.affine_in(&Atom::Loop(d as u32)) else { return false };
        if step.any_leaf(|a| !matches!(a, Atom::Sym(_))) {
            return false;
        }
        if *extent != SymExpr::ONE {
            open.push((step, extent));
        }
        rest = left;
    }
    if rest.any_leaf(|a| !matches!(a, Atom::Sym(_))) {
        return false;
    }
    let mut reach = SymExpr::ONE;
    while !open.is_empty() {
        let over = |(step, _): &(SymExpr, &SymExpr)| {
            (step - &reach).range(bounds.symbols).0.is_some_and(|least| least >= 0)
        };
        // Of several that step over the rest the smallest has to come first.
        let least = |n: &usize| {
            open.iter()
                .all(|(other, _)| (other - &open[*n].0).range(bounds.symbols).0.is_some_and(|l| l >= 0))
        };
        let Some(n) = (0..open.len()).filter(|n| over(&open[*n])).find(least) else { return false };
        let (step, extent) = open.swap_remove(n);
        reach = reach + step * (extent - 1);
    }
    true
}
