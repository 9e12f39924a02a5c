//! What kernels of attention are told of a mask besides its elements: how to compute it (`function`), and which blocks of scores
//! it hides (`table`). A mask that positions and small tensors decide is a function within every kernel, and the steps that
//! wrote it are removed. Another mask of truth values becomes bits, words of 32 keys; masks of other numbers are read as they
//! are. Tables and bits are made by small kernels, once per call for all steps with that mask, or once for all calls where the
//! mask is a constant.
//!
//! Not here: what the kernels make of it (`scores`).

mod function;
mod table;

use ir_core::{DType, Scalar, Shape, SymExpr};
use kernel_ir::{
    ArenaPlan, BufId, Buffer, ExternCall, ExternOp, Inst, InstKind, MaskTable, Operand, Program, Step,
    Storage, Visibility,
};

use self::function::Function;
use crate::Target;
use crate::loops::hint;

pub(crate) use table::{Shown, WORD, variants};

/// Fewest queries and keys of masks whose blocks are noted: those of fewer would cost more than they save.
const FEWEST_NOTED: [i64; 2] = [128, 512];
/// Fewest queries and keys of masks that are packed to bits: packing one for few queries takes as long as reading it.
const FEWEST_PACKED: i64 = 64;
/// Most instructions of a mask that is computed for each score.
const MAX_FUNCTION: usize = 64;

/// Whether an operand is a packed mask: words `i32[b, hq, lq, lk / 32]` (rounded up), the first key in the lowest bit, 0 behind
/// the last one. A program that crosses the boundary has none: masks there are truth values or numbers to be added.
pub(crate) fn is_packed(program: &Program, mask: &Operand) -> bool {
    program.buffers[mask.buf].dtype == DType::I32
}

/// A mask, and what was made of it.
struct Prepared {
    of: Operand,
    function: Function,
    /// The dimensions along which it differs.
    moves: [bool; 4],
    /// Whether kernels compute it.
    computed: bool,
    /// Whether blocks are noted.
    noted: bool,
    storage: Storage,
    bits: Option<Operand>,
    rows: Option<Operand>,
    columns: Option<Operand>,
}

/// Adds to a program the kernels that prepare its masks, and has the steps of attention use what they make.
pub fn prepare_masks(program: &mut Program, target: &Target) {
    let mut prepared: Vec<Prepared> = Vec::new();
    let mut n = 0;
    while n < program.steps.len() {
        for (mask, by_keys) in masks_of(&program.steps[n]) {
            let place = match prepared.iter().position(|p| p.of == mask) {
                Some(place) => place,
                None => {
                    let Some(new) = prepare(program, target, mask, n) else { continue };
                    prepared.push(new);
                    prepared.len() - 1
                }
            };
            for step in prepared[place].steps(program, by_keys) {
                if prepared[place].storage == Storage::Persistent {
                    program.init.push(step);
                } else {
                    program.steps.insert(n, step);
                    n += 1;
                }
            }
        }
        use_prepared(&mut program.steps[n], &prepared);
        n += 1;
    }
    if !prepared.is_empty() {
        let computed = prepared.iter().filter(|p| p.replaced());
        let inlined: Vec<BufId> = computed.flat_map(|p| p.function.inlined.iter().copied()).collect();
        remove_unread(program, &inlined);
        program.plan = ArenaPlan::of(program);
    }
}

/// The masks of a step and of steps that run together with it, and whether it visits queries by keys too.
fn masks_of(step: &Step) -> Vec<(Operand, bool)> {
    match step {
        Step::Attention(k) => k.mask.iter().map(|mask| (mask.clone(), false)).collect(),
        Step::Extern(k) if matches!(k.op, ExternOp::AttentionBackward { .. }) => {
            k.mask_and_dropout().0.map(|mask| (mask.clone(), true)).into_iter().collect()
        }
        Step::Together(group) => group.steps.iter().flat_map(masks_of).collect(),
        _ => Vec::new(),
    }
}

/// What to make of a mask that step `user` is the first to read; `None` where it stays as it is.
fn prepare(program: &mut Program, target: &Target, mask: Operand, user: usize) -> Option<Prepared> {
    let dtype = program.buffers[mask.buf].dtype;
    let produced = Function::of_producers(program, &mask, user).filter(|f| f.is_ready(program, user));
    let truth = dtype == DType::Bool;
    let few = |f: &Function| f.insts.len() <= MAX_FUNCTION;
    let in_kernel = |f: &Function| few(f) && !f.moves(program, &mask.sizes).1;
    let (function, computed) = match produced {
        Some(f) if in_kernel(&f) => (f, true),
        // Its bits are computed from what the steps that write it read.
        Some(f) if truth && few(&f) && is_packable(program, &mask) => (f, false),
        _ => {
            let view = as_buffer(program, &mask);
            let f = Function::of_elements(program, view);
            let computed = truth && !f.moves(program, &mask.sizes).1;
            (f, computed)
        }
    };
    if !function.is_ready(program, user) {
        return None;
    }
    let moves = function.moves(program, &mask.sizes).0;
    let large = [2, 3].iter().zip(FEWEST_NOTED).all(|(&d, least)| hint(program, &mask.sizes[d]) >= least);
    let noted = target.wgmma() && large && (moves[2] || moves[3]) && hides(&function, moves);
    let known = mask.sizes.iter().all(|size| size.as_const().is_some());
    let constant = |root| matches!(program.buffers[root].storage, Storage::Constant(_) | Storage::Persistent);
    let storage = match known && function.loaded(program).all(constant) {
        true => Storage::Persistent,
        false => Storage::Arena,
    };
    let (bits, rows, columns) = (None, None, None);
    let prepared = Prepared { of: mask, function, moves, computed, noted, storage, bits, rows, columns };
    (computed || noted || prepared.packs(program)).then_some(prepared)
}

/// Whether packing a mask is worth a kernel.
fn is_packable(program: &Program, mask: &Operand) -> bool {
    [2, 3].iter().all(|&d| hint(program, &mask.sizes[d]) >= FEWEST_PACKED)
}

/// Whether a mask may hide whole blocks. Numbers that differ from head to head are biases, as are those that are computed without
/// minus infinity.
fn hides(function: &Function, moves: [bool; 4]) -> bool {
    let infinite = |inst: &Inst| match inst.kind {
        InstKind::Load { .. } => inst.dtype.is_float(),
        InstKind::Const(Scalar::Float(x)) => x == f64::NEG_INFINITY,
        _ => false,
    };
    function.dtype() == Some(DType::Bool) || (!moves[1] && function.insts.iter().any(infinite))
}

impl Prepared {
    /// Whether the mask becomes bits.
    fn packs(&self, program: &Program) -> bool {
        let truth = self.function.dtype() == Some(DType::Bool);
        !self.computed && truth && self.moves[3] && is_packable(program, &self.of)
    }

    /// Whether no kernel reads the mask itself.
    fn replaced(&self) -> bool {
        self.computed || self.bits.is_some()
    }

    /// The steps that make what is not made yet.
    fn steps(&mut self, program: &mut Program, by_keys: bool) -> Vec<Step> {
        let mut steps = Vec::new();
        let packs = self.packs(program) && self.bits.is_none();
        if self.rows.is_none() && (self.noted || packs) {
            let (table, mut outputs) = self.table(program, false);
            self.rows = self.noted.then(|| outputs[0].clone());
            if packs {
                let mut sizes: Shape = self.of.sizes.iter().cloned().collect();
                sizes[3] = sizes[3].ceil_div(&SymExpr::from_i64(WORD));
                let bits = self.made(program, "bits", self.moves, &sizes);
                self.bits = Some(bits.clone());
                outputs.push(bits);
            }
            steps.push(self.step(program, table, outputs));
        }
        if by_keys && self.noted && self.columns.is_none() {
            let (table, outputs) = self.table(program, true);
            self.columns = Some(outputs[0].clone());
            steps.push(self.step(program, table, outputs));
        }
        steps
    }

    /// A table, and the operand that it is written to.
    fn table(&self, program: &mut Program, by_keys: bool) -> (MaskTable, Vec<Operand>) {
        let of = &self.of.sizes;
        let (own, far) = if by_keys { (3, 2) } else { (2, 3) };
        let mut moves = [self.moves[0], self.moves[1], self.moves[own], true];
        let words = table::words(&of[far]) * SymExpr::from_i64(2);
        let blocks = of[own].ceil_div(&SymExpr::from_i64(table::BLOCK));
        let sizes: Shape = [of[0].clone(), of[1].clone(), blocks, words].into_iter().collect();
        let to = self.made(program, "blocks", moves, &sizes);
        // The other side is looked at whole.
        moves = self.moves;
        moves[far] = true;
        let sizes = (0..4).map(|d| if moves[d] { of[d].clone() } else { SymExpr::ONE }).collect();
        (MaskTable { sizes, function: self.function.insts.clone(), by_keys }, vec![to])
    }

    fn step(&self, program: &Program, table: MaskTable, outputs: Vec<Operand>) -> Step {
        let side = if table.by_keys { "keys" } else { "queries" };
        let name = format!("blocks_of_{}_by_{side}", program.buffers[self.of.buf].name);
        let op = ExternOp::MaskTable(Box::new(table));
        Step::Extern(ExternCall { name, origins: Vec::new(), op, inputs: Vec::new(), outputs })
    }

    /// A new dense buffer of words for something of `sizes`, of size 1 along the dimensions that do not move, and the operand over
    /// it.
    fn made(&self, program: &mut Program, what: &str, moves: [bool; 4], sizes: &Shape) -> Operand {
        let own: Shape = (0..4).map(|d| if moves[d] { sizes[d].clone() } else { SymExpr::ONE }).collect();
        let dense = ir_core::contiguous_strides(&own);
        let name = format!("{what}_of_{}", program.buffers[self.of.buf].name);
        let strides = (0..4).map(|d| if moves[d] { dense[d].clone() } else { SymExpr::ZERO }).collect();
        let (dtype, storage) = (DType::I32, self.storage.clone());
        let offset = SymExpr::ZERO;
        let buf = program.buffers.push(Buffer { name, dtype, sizes: own, strides: dense, offset, storage });
        Operand { buf, sizes: sizes.clone(), strides, offset: SymExpr::ZERO }
    }

    fn visibility(&self) -> Option<Box<Visibility>> {
        let function = if self.computed { self.function.insts.clone() } else { Vec::new() };
        let made = Visibility { function, rows: self.rows.clone(), columns: self.columns.clone() };
        (self.computed || self.noted).then(|| Box::new(made))
    }
}

fn use_prepared(step: &mut Step, all: &[Prepared]) {
    let of = |mask: &Operand| all.iter().find(|p| p.of == *mask);
    match step {
        Step::Attention(k) => {
            let Some(prepared) = k.mask.as_ref().and_then(of) else { return };
            k.visibility = prepared.visibility();
            if prepared.replaced() {
                k.mask.clone_from(&prepared.bits);
            }
        }
        Step::Extern(k) => {
            let Some(prepared) = k.mask_and_dropout().0.and_then(of) else { return };
            let ExternOp::AttentionBackward { visibility, .. } = &mut k.op else { return };
            *visibility = prepared.visibility();
            if prepared.replaced() {
                k.inputs.splice(6..7, prepared.bits.clone());
            }
        }
        Step::Together(group) => group.steps.iter_mut().for_each(|s| use_prepared(s, all)),
        _ => {}
    }
}

/// Removes the steps that write nothing but `bufs`, where nothing reads these any more.
fn remove_unread(program: &mut Program, bufs: &[BufId]) {
    loop {
        let read = |p: &Program, root: BufId| {
            let steps =
                p.init.iter().chain(&p.steps).any(|s| s.accesses().0.iter().any(|b| p.root(*b) == root));
            steps || p.outputs.iter().any(|o| p.root(o.buf) == root)
        };
        let unread: Vec<BufId> = bufs.iter().copied().filter(|&b| !read(program, b)).collect();
        let roots: Vec<BufId> = program.buffers.ids().map(|b| program.root(b)).collect();
        let mut removed = false;
        let mut useless = |step: &Step| {
            let writes = step.accesses().1;
            let all = matches!(step, Step::Loop(_))
                && !writes.is_empty()
                && writes.iter().all(|b| unread.contains(&roots[ir_core::EntityId::index(*b)]));
            removed |= all;
            all
        };
        program.init.retain(|step| !useless(step));
        program.steps.retain_mut(|step| {
            let Step::Together(group) = step else { return !useless(step) };
            group.steps.retain(|step| !useless(step));
            !group.steps.is_empty()
        });
        if !removed {
            return;
        }
    }
}

/// The mask as a buffer, whose strides may be 0.
fn as_buffer(program: &mut Program, mask: &Operand) -> BufId {
    let of = &program.buffers[mask.buf];
    let (name, dtype) = (of.name.clone(), of.dtype);
    let storage = Storage::View(program.root(mask.buf));
    let (sizes, strides, offset) = (mask.sizes.clone(), mask.strides.clone(), mask.offset.clone());
    program.buffers.push(Buffer { name, dtype, sizes, strides, offset, storage })
}
