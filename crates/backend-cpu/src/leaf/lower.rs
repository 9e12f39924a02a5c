//! Lowers the bodies of stages to the step of a leaf: values that do not vary along the axis and addresses become arguments,
//! which the surrounding function computes before the loop. Where the axis is an outer loop, the loops of a stage itself are
//! loops of the leaf (`loops`), or unrolled if they are short (the window of a pooling): each turn of them is a copy of the body
//! with its own numbers.

use ir_core::{Atom, DType, Scalar, SymExpr};
use kernel_ir::{AccId, ScalarOp, StoreMode, Val};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::build::Build;
use super::codes as c;
use super::emit::{Machine, emit};
use super::encode::{Code, Constant};
use super::ir::{Inst, Invariant, Place, V};
use super::loops::{Carried, Level, coalesce};
use super::target::Target;
use crate::math::{Halves, Lanes};
use crate::vir::{Access, Along, Class, VInst, VKernel, VKind, VStage, far_apart, round_16};

/// Bodies with more instructions are not lowered: their registers would be in memory most of the time.
const MOST: usize = 1000;

/// Stages with more turns of their loops are not unrolled.
const MOST_TURNS: i64 = 64;
/// Nor are those with more instructions in all their turns, if their loops can be loops of the leaf.
const MOST_UNROLLED: usize = 200;

/// The registers of one value: one, or two for lanes of 64 bits.
pub(super) type Regs = SmallVec<[V; 2]>;

/// One execution of a stage's body at a point of the axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Turn {
    pub(crate) stage: usize,
    /// Number of the turn of the stage's loops, where they are unrolled.
    pub(crate) number: usize,
}

/// What the surrounding function passes in a slot. All are those of the loop's first point.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Input {
    /// The address of an access.
    Address { turn: Turn, at: Access },
    /// The address of the template's result.
    Template,
    /// A value that does not vary; of a mask 32 equal bits.
    Value { turn: Turn, value: usize, class: Class },
    /// An index expression.
    Index { turn: Turn, expr: SymExpr },
    /// A number that loops of a stage need: it depends on none of them.
    Number { stage: usize, expr: SymExpr },
    /// Nothing: the leaf keeps a number there.
    Room,
    /// The host function that computes single lanes.
    Host,
    /// The function of a lane of an operator on `f32`.
    Function(ScalarOp),
}

impl Input {
    /// The turn whose values it depends on.
    pub(crate) fn turn(&self) -> Option<Turn> {
        match self {
            Input::Address { turn, .. } | Input::Value { turn, .. } | Input::Index { turn, .. } => {
                Some(*turn)
            }
            Input::Number { stage, .. } => Some(Turn { stage: *stage, number: 0 }),
            Input::Template | Input::Room | Input::Host | Input::Function(_) => None,
        }
    }
}

/// The loop variables of an unrolled stage at a turn.
pub(crate) fn variables(stage: &VStage, number: usize) -> Vec<(u32, i64)> {
    let mut rest = number as i64;
    let mut all: Vec<(u32, i64)> = Vec::new();
    for d in stage.loops.iter().rev() {
        let n = d.extent.as_const().unwrap_or(1).max(1);
        all.push((d.var, rest % n));
        rest /= n;
    }
    all
}

/// A leaf and how it is called.
pub(crate) struct Leaf {
    pub(crate) target: Target,
    pub(crate) machine: Machine,
    /// What each slot of the arguments holds.
    pub(crate) inputs: Vec<Input>,
    /// The stages' own loops are in it.
    pub(crate) whole: bool,
    /// For each stage whose loops are loops of the leaf, which values are made in them.
    pub(crate) moving: FxHashMap<usize, Vec<bool>>,
    /// The accumulators of the reductions, each with its class, in the order of their registers.
    pub(crate) accumulators: Vec<(AccId, Class)>,
}

/// The leaf of a loop over `axis` around the bodies of `stages`; `None` where one has an instruction without a lowering.
pub(crate) fn leaf(target: Target, kernel: &VKernel, stages: &[usize], axis: u32) -> Option<Leaf> {
    // Not every loop can be one of the leaf: addresses have to be evenly spaced along it.
    let attempt = |loops| attempt(target, kernel, stages, axis, loops);
    attempt(true).or_else(|| attempt(false))
}

fn attempt(target: Target, kernel: &VKernel, stages: &[usize], axis: u32, loops: bool) -> Option<Leaf> {
    let mut lower = Lower {
        b: Build::new(target),
        kernel,
        axis,
        turn: Turn { stage: 0, number: 0 },
        variables: Vec::new(),
        moving: Vec::new(),
        made: FxHashMap::default(),
        results: FxHashMap::default(),
        inputs: Vec::new(),
        accumulators: Vec::new(),
        levels: Vec::new(),
        carried: FxHashMap::default(),
        in_loops: FxHashMap::default(),
        indices: FxHashMap::default(),
    };
    let whole = kernel.outer_axis.is_some();
    for &stage in stages {
        match form(&kernel.stages[stage], whole, loops)? {
            Form::Turns(turns) => lower.stage(stage, turns)?,
            Form::Loops => lower.looped_stage(stage)?,
        }
    }
    lower.no_stale_arguments(stages)?;
    let mut body = lower.b.body;
    prune(&mut body.insts, body.values);
    coalesce(&mut body.insts, body.values);
    body.slots = lower.inputs.len() as u32;
    let fits = !body.insts.is_empty()
        && body.insts.len() <= MOST
        && body.accumulators.len() <= target.most_accumulators()
        && body.is_possible();
    fits.then(|| Leaf {
        target,
        machine: emit(&body, most_copies(kernel, target)),
        inputs: lower.inputs,
        whole,
        moving: lower.in_loops,
        accumulators: lower.accumulators,
    })
}

/// Copies of a step that have points to compute.
fn most_copies(kernel: &VKernel, target: Target) -> u32 {
    let extent = kernel.outer_axis.as_ref().and_then(|d| d.extent.as_const());
    extent.map_or(u32::MAX, |n| (n / i64::from(target.step())).clamp(1, 64) as u32)
}

/// How the loops of a stage are lowered.
enum Form {
    /// Unrolled: this many turns. The loops of a stage whose last loop is the axis are around the leaf.
    Turns(usize),
    Loops,
}

fn form(stage: &VStage, whole: bool, loops: bool) -> Option<Form> {
    if !whole || stage.loops.is_empty() {
        return Some(Form::Turns(1));
    }
    let positions = stage.insts.iter().any(|i| matches!(i.kind, VKind::Reduce { position: Some(_), .. }));
    match turns(stage) {
        Some(n) if (!loops || n * stage.insts.len() <= MOST_UNROLLED) && !positions => Some(Form::Turns(n)),
        _ => loops.then_some(Form::Loops),
    }
}

/// Turns of a stage's loops, if they are few.
pub(crate) fn turns(stage: &VStage) -> Option<usize> {
    let mut all = 1i64;
    for d in &stage.loops {
        all = all.checked_mul(d.extent.as_const()?.max(0))?;
    }
    (1..=MOST_TURNS).contains(&all).then_some(all as usize)
}

/// For each instruction whether it is made anew in each turn of the stage's loops.
fn moving(stage: &VStage) -> Vec<bool> {
    let mut out: Vec<bool> = Vec::with_capacity(stage.insts.len());
    for inst in &stage.insts {
        let on_loops = |e: &SymExpr| {
            e.any_leaf(|a| matches!(a, Atom::Loop(v) if stage.loops.iter().any(|d| d.var == *v)))
        };
        let mut moves = match &inst.kind {
            VKind::Store { .. } | VKind::Reduce { .. } => true,
            VKind::Load { at, .. } => !at.read_only,
            _ => false,
        };
        moves |= inst.kind.expr().is_some_and(on_loops);
        inst.kind.for_each_val(&mut |v| moves |= out[v.0 as usize]);
        out.push(moves);
    }
    out
}

/// Removes instructions whose result nothing uses. What a loop carries may be used before the instruction that makes it.
fn prune(insts: &mut Vec<Inst>, values: u32) {
    let mut used = vec![false; values as usize];
    let mut kept = vec![false; insts.len()];
    let mut more = true;
    while more {
        more = false;
        for (n, inst) in insts.iter().enumerate().rev() {
            if !kept[n] && inst.def().is_none_or(|d| used[d.id as usize]) {
                (kept[n], more) = (true, true);
                inst.uses().iter().for_each(|v| used[v.id as usize] = true);
            }
        }
    }
    let mut each = kept.into_iter();
    insts.retain(|_| each.next() == Some(true));
}

pub(super) struct Lower<'k> {
    pub(super) b: Build,
    pub(super) kernel: &'k VKernel,
    pub(super) axis: u32,
    pub(super) turn: Turn,
    /// The loop variables of the present turn.
    variables: Vec<(u32, i64)>,
    /// The values of the present stage that are made anew in each turn.
    moving: Vec<bool>,
    made: FxHashMap<(Turn, usize), Regs>,
    /// Reductions over the loops of stages.
    pub(super) results: FxHashMap<AccId, Regs>,
    pub(super) inputs: Vec<Input>,
    pub(super) accumulators: Vec<(AccId, Class)>,
    /// The loops of the present stage that are open, outermost first.
    pub(super) levels: Vec<Level>,
    /// What the reductions of the present stage carry.
    pub(super) carried: FxHashMap<AccId, Carried>,
    /// For each stage whose loops are loops of the leaf, which values are made in them.
    in_loops: FxHashMap<usize, Vec<bool>>,
    /// The lanes of index expressions of the present turn.
    pub(super) indices: FxHashMap<SymExpr, Regs>,
}

impl<'k> Lower<'k> {
    pub(super) fn body(&self) -> &'k [VInst] {
        &self.kernel.stages[self.turn.stage].insts
    }

    /// All turns of a stage.
    fn stage(&mut self, stage: usize, turns: usize) -> Option<()> {
        let all = &self.kernel.stages[stage];
        self.moving = moving(all);
        for number in 0..turns {
            self.turn = Turn { stage, number };
            self.indices.clear();
            self.variables =
                if self.kernel.outer_axis.is_some() { variables(all, number) } else { Vec::new() };
            for (n, inst) in all.insts.iter().enumerate() {
                if inst.varies && self.turn_of(n) == self.turn {
                    self.inst(n, inst)?;
                }
            }
            // More than this would be refused at the end, after all the work.
            if self.b.body.insts.len() > 2 * MOST {
                return None;
            }
        }
        Some(())
    }

    /// Begins a stage whose loops are loops of the leaf.
    pub(super) fn enter(&mut self, stage: usize, moving: Vec<bool>) {
        self.turn = Turn { stage, number: 0 };
        self.variables.clear();
        self.indices.clear();
        self.moving.clone_from(&moving);
        self.in_loops.insert(stage, moving);
    }

    /// Whether the loops of the present stage are loops of the leaf.
    pub(super) fn looped(&self) -> bool {
        self.in_loops.contains_key(&self.turn.stage)
    }
    /// Whether a value of the present stage is made in its loops.
    pub(super) fn moves(&self, n: usize) -> bool {
        self.moving[n]
    }

    /// The turn that a value of the present stage is of: the first, if it is the same in all.
    fn turn_of(&self, n: usize) -> Turn {
        if self.moving[n] { self.turn } else { Turn { number: 0, ..self.turn } }
    }

    /// An expression at the present turn.
    pub(super) fn here(&self, e: &SymExpr) -> SymExpr {
        if self.variables.is_empty() {
            return e.clone();
        }
        e.subst(&|a| match a {
            Atom::Loop(v) => {
                let (_, x) = self.variables.iter().find(|(var, _)| var == v)?;
                Some(SymExpr::from_i64(*x))
            }
            _ => None,
        })
    }
    pub(super) fn dtype(&self, v: Val) -> DType {
        self.body()[v.0 as usize].dtype
    }

    /// An argument must not be an element that the loop itself writes, in whichever buffer: several may be one memory.
    fn no_stale_arguments(&self, stages: &[usize]) -> Option<()> {
        let insts = |s: &usize| self.kernel.stages[*s].insts.iter();
        let stores = stages.iter().flat_map(insts).any(|i| matches!(i.kind, VKind::Store { .. }));
        let changes = |i: &VInst| matches!(&i.kind, VKind::Load { at, .. } if !i.varies && !at.read_only);
        // In loops of the leaf they are loaded each time.
        let mut outside = stages.iter().filter(|s| !self.in_loops.contains_key(s)).flat_map(insts);
        let stale = stores && outside.any(changes);
        (!stale).then_some(())
    }

    /// The slot of an input.
    pub(super) fn slot(&mut self, input: Input) -> u32 {
        let same = |i: &Input| match (i, &input) {
            (Input::Address { turn: s, at: x }, Input::Address { turn: t, at: y }) => {
                let fixed = |e: &SymExpr| !e.any_leaf(|a| matches!(a, Atom::Value(_)));
                x.root == y.root
                    && x.address == y.address
                    && x.dtype.size() == y.dtype.size()
                    && (s == t || fixed(&x.address))
            }
            (x, y) => x == y,
        };
        let known = self.inputs.iter().position(same);
        known.unwrap_or_else(|| {
            self.inputs.push(input);
            self.inputs.len() - 1
        }) as u32
    }

    /// A value of the present stage.
    pub(super) fn get(&mut self, v: Val) -> Option<Regs> {
        let key = (self.turn_of(v.0 as usize), v.0 as usize);
        if let Some(regs) = self.made.get(&key) {
            return Some(regs.clone());
        }
        let inst = &self.body()[key.1];
        if inst.varies || self.looped() && self.moves(key.1) {
            return None;
        }
        let regs = match &inst.kind {
            VKind::Const(number) => self.constant(inst.dtype, *number),
            _ => {
                let class = Class::of(inst.dtype);
                let slot = self.slot(Input::Value { turn: key.0, value: key.1, class });
                match class {
                    Class::Mask if self.b.target().has_mask_registers() => {
                        let d = self.b.value(Class::Mask);
                        self.b.push(Inst::MaskArgument { d, slot });
                        Regs::from_elem(d, 1)
                    }
                    _ => self.copies(class, |b| b.invariant(Invariant::Argument(slot), class)),
                }
            }
        };
        self.made.insert(key, regs.clone());
        Some(regs)
    }

    fn copies(&mut self, class: Class, make: impl Fn(&mut Build) -> V) -> Regs {
        let v = make(&mut self.b);
        Regs::from_elem(v, if class.wide() { 2 } else { 1 })
    }

    /// A number in all lanes.
    pub(super) fn constant(&mut self, dtype: DType, number: Scalar) -> Regs {
        let class = Class::of(dtype);
        match class {
            Class::Mask => {
                let zero = self.b.i32(0);
                let cc = cranelift_codegen::ir::condcodes::IntCC::Equal;
                let all = self.b.icmp(cc, zero, zero);
                let none = self.b.xor(all, all);
                Regs::from_elem(if number.as_bool() { all } else { none }, 1)
            }
            _ => match bits(dtype, number) {
                Constant::Wide(bits) => self.copies(class, |b| b.wide(bits, class)),
                Constant::Narrow(bits) => self.copies(class, |b| b.narrow(bits, class)),
                Constant::Multiples(_) | Constant::Places => Regs::new(),
            },
        }
    }

    pub(super) fn inst(&mut self, n: usize, inst: &'k VInst) -> Option<()> {
        let regs = match &inst.kind {
            VKind::Load { at, mask } => self.load(at, *mask)?,
            VKind::Store { at, value, mask, mode: StoreMode::Write } => return self.store(at, *value, *mask),
            VKind::Op { op, args } => {
                let operand = args.last().map_or(inst.dtype, |v| self.dtype(*v));
                let regs = args.iter().map(|v| self.get(*v)).collect::<Option<SmallVec<[Regs; 3]>>>()?;
                match self.number_of(*op, operand, args) {
                    Some(k) => self.clamp_by(*op, &regs[k], &regs[1 - k]),
                    None => self.op(*op, operand, &regs)?,
                }
            }
            VKind::Cast(v) => {
                let (from, x) = (self.dtype(*v), self.get(*v)?);
                match self.body()[v.0 as usize].sixteen.has(inst.dtype) {
                    true => x,
                    false => match self.small_integers(inst.dtype, *v) {
                        Some(integers) => self.wrap(inst.dtype, integers),
                        None => self.cast(from, inst.dtype, &x)?,
                    },
                }
            }
            VKind::Bitcast(v) => {
                let (from, x) = (self.dtype(*v), self.get(*v)?);
                self.bitcast(from, inst.dtype, &x)?
            }
            VKind::Index(e) => self.index(e)?,
            VKind::Template => {
                let slot = self.slot(Input::Template);
                self.load_plain(
                    inst.dtype,
                    Place { slot, scale: 2, part: 0, offset: 0, uniform: false },
                    None,
                )
            }
            VKind::Reduce { acc, value, position } => {
                return match (&self.kernel.outer_axis, position) {
                    (Some(_), position) => self.reduce_turn(*acc, *value, *position),
                    (None, None) => self.reduce(*acc, *value),
                    (None, Some(_)) => None,
                };
            }
            VKind::Acc(acc) => self.results.get(acc)?.clone(),
            VKind::Check { value, size, mask, site } => self.check(*value, size, *mask, *site)?,
            VKind::Const(_) | VKind::Store { .. } | VKind::Scan { .. } => return None,
        };
        self.made.insert((self.turn, n), regs);
        Some(())
    }

    /// Which operand of a float minimum or maximum is a constant that is not NaN.
    fn number_of(&self, op: ScalarOp, dtype: DType, args: &[Val]) -> Option<usize> {
        if !matches!(op, ScalarOp::Min | ScalarOp::Max) || !dtype.is_float() {
            return None;
        }
        let body = self.body();
        let number = |v: &Val| matches!(body[v.0 as usize].kind, VKind::Const(c) if !c.as_f64().is_nan());
        args.iter().position(number)
    }

    /// Whether an expression has one value for all points.
    pub(super) fn fixed(&self, e: &SymExpr) -> Option<()> {
        let body = self.body();
        let moves = e.any_leaf(|a| match a {
            Atom::Loop(v) => *v == self.axis,
            Atom::Value(n) => body[*n as usize].varies,
            _ => false,
        });
        (!moves && !self.on_moving_value(e)).then_some(())
    }

    // Memory.

    /// Tiles of sixteen points are too short for a call, and reading their cache lines takes most of the time.
    fn far(&self) -> bool {
        far_apart(self.kernel.tile)
    }

    fn mask(&mut self, mask: Option<Val>) -> Option<Option<V>> {
        match mask {
            Some(m) => Some(Some(self.get(m)?[0])),
            None => Some(None),
        }
    }

    /// The first place of an access to neighbouring elements, or to one. Accesses that are constant
    /// distances apart share an address.
    fn access(&mut self, at: &Access) -> Option<Place> {
        if self.on_moving_value(&at.address) {
            return None;
        }
        let address = self.here(&at.address);
        let apart = address.terms().1;
        let bytes = apart.checked_mul(at.dtype.size() as i64).and_then(|b| i32::try_from(b).ok());
        // Displacements of further steps are added to it.
        let bytes = bytes.filter(|b| b.unsigned_abs() < 1 << 30);
        let (apart, offset) = bytes.map_or((0, 0), |bytes| (apart, bytes));
        let at = Access { address: address - SymExpr::from_i64(apart), ..at.clone() };
        let (address, size) = (at.address.clone(), at.dtype.size());
        let slot = self.slot(Input::Address { turn: self.turn, at });
        self.follow(slot, &address, size as i64)?;
        Some(Place { slot, scale: size.trailing_zeros() as u8, part: 0, offset, uniform: false })
    }

    fn load(&mut self, at: &Access, mask: Option<Val>) -> Option<Regs> {
        let mask = self.mask(mask)?;
        if at.along == Along::Lanes {
            return if self.far() { None } else { self.gather(at, mask) };
        }
        let place = self.access(at)?;
        match at.along {
            Along::Uniform => Some(self.load_uniform(at, place, mask)),
            _ => Some(self.load_plain(at.dtype, place, mask)),
        }
    }

    fn load_plain(&mut self, dtype: DType, first: Place, mask: Option<V>) -> Regs {
        let class = Class::of(dtype);
        let place = |part| Place { part, ..first };
        if class == Class::Mask {
            return self.load_mask(first, mask);
        }
        let code = match dtype {
            DType::F32 | DType::I32 | DType::Bool => c::VMOVUPS,
            DType::BF16 => c::VPMOVZXWD,
            DType::F16 => c::VCVTPH2PS,
            DType::I16 => c::VPMOVSXWD,
            DType::U8 => c::VPMOVZXBD,
            DType::I8 => c::VPMOVSXBD,
            // `f64` and `i64`: kernels have no others.
            _ => c::VMOVUPD,
        };
        let parts = if class.wide() { 2 } else { 1 };
        let mut regs = Regs::new();
        for part in 0..parts {
            let mask = mask.map(|m| self.b.part_of_mask(m, part, class));
            let d = self.b.value(class);
            self.b.push(Inst::Load { code, d, at: place(part), mask });
            regs.push(if dtype == DType::BF16 { self.bf16(d) } else { d });
        }
        regs
    }

    /// Numbers of 16 bits as floats.
    pub(super) fn bf16(&mut self, bits: V) -> V {
        self.b.bf16_to_f32(V { class: Class::I32, ..bits })
    }

    /// A load of truth values, each a byte: neighbours, or one for all points.
    pub(super) fn load_mask(&mut self, at: Place, mask: Option<V>) -> Regs {
        if self.b.target().has_mask_registers() {
            let d = self.b.value(Class::Mask);
            self.b.push(Inst::LoadMask { d, at, mask });
            return Regs::from_elem(d, 1);
        }
        let mut bytes = self.b.value(Class::I32);
        let code = if at.uniform { c::VPBROADCASTB } else { c::VPMOVZXBD };
        self.b.push(Inst::Load { code, d: bytes, at, mask });
        if at.uniform {
            bytes = self.b.one(c::VPMOVZXBD, Class::I32, bytes);
            bytes = self.b.zero_outside(bytes, mask);
        }
        Regs::from_elem(self.b.mask_of_bytes(bytes), 1)
    }

    /// A store of truth values as bytes 0 and 1.
    fn store_mask(&mut self, value: V, at: Place, mask: Option<V>) {
        if self.b.target().has_mask_registers() {
            return self.b.push(Inst::StoreMask { value, at, mask });
        }
        let number = self.b.and_const(V { class: Class::I32, ..value }, 1);
        let (value, code) = self.b.integers_to_store(number, 1);
        self.b.push(Inst::Store { code, value, at, mask, imm: None });
    }

    fn store(&mut self, at: &Access, value: Val, mask: Option<Val>) -> Option<()> {
        let regs = match self.body()[value.0 as usize].kind {
            // Stores take the low bits of a lane.
            VKind::Cast(v) if self.dtype(value) == at.dtype => self.small_integers(at.dtype, v),
            _ => None,
        };
        let regs = match regs {
            Some(regs) => regs,
            None => self.get(value)?,
        };
        let class = Class::of(at.dtype);
        if Class::of(self.dtype(value)) != class || at.along == Along::Uniform {
            return None;
        }
        let mask = self.mask(mask)?;
        if at.along == Along::Lanes {
            return if self.far() { None } else { self.scatter(at, &regs, mask) };
        }
        let first = self.access(at)?;
        let place = |part| Place { part, ..first };
        if class == Class::Mask {
            self.store_mask(regs[0], first, mask);
            return Some(());
        }
        let exact = self.body()[value.0 as usize].sixteen.has(at.dtype);
        for (part, &value) in regs.iter().enumerate() {
            let part = part as u8;
            let (value, code, imm) = self.stored_form(at.dtype, value, exact);
            let mask = mask.map(|m| self.b.part_of_mask(m, part, class));
            self.b.push(Inst::Store { code, value, at: place(part), mask, imm });
        }
        Some(())
    }

    /// A register as it is stored, and the instruction for it; `exact` where it holds numbers of the dtype, which need no rounding.
    fn stored_form(&mut self, dtype: DType, value: V, exact: bool) -> (V, Code, Option<u8>) {
        match dtype {
            DType::F32 | DType::I32 | DType::Bool => (value, c::VMOVUPS_STORE, None),
            DType::F16 => self.b.f16_to_store(value),
            DType::BF16 | DType::I16 | DType::U8 | DType::I8 => {
                let value = match dtype {
                    DType::BF16 if exact => self.b.upper_bits(value),
                    DType::BF16 => self.b.f32_to_bf16(value),
                    _ => value,
                };
                let (value, code) = self.b.integers_to_store(value, dtype.size());
                (value, code, None)
            }
            // `f64` and `i64`: kernels have no others.
            _ => (value, c::VMOVUPD_STORE, None),
        }
    }
}

/// A number's bits in a lane.
pub(super) fn bits(dtype: DType, number: Scalar) -> Constant {
    match Class::of(dtype) {
        Class::F32 => Constant::Narrow(round_16(dtype, number.as_f64() as f32).to_bits()),
        Class::F64 => Constant::Wide(number.as_f64().to_bits()),
        Class::I32 | Class::Mask => Constant::Narrow(dtype.wrap(number.as_i64()) as u32),
        Class::I64 => Constant::Wide(number.as_i64() as u64),
    }
}
