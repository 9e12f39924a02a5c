//! Masks as functions. A step that writes a mask computes each element from its position and from a few small tensors (the
//! documents or positions of queries and keys, which keys are padding): the kernels of attention do the same for the scores that
//! they look at, and the mask is never written.
//!
//! Bodies of the steps that write it are evaluated at the position of a score: integers stay index expressions, so that comparisons
//! whose ranges decide them disappear, and checks of indices that are proved. Not here: which masks are computed so (`masks`).

use ir_core::{Atom, DType, Scalar, SymExpr};
use kernel_ir::{
    BodyBuilder, BufId, Inst, InstKind, LoopBounds, LoopKernel, Operand, Program, ScalarOp, Step, StoreMode,
    Val,
};

use crate::loops::hint;

/// Most instructions that are evaluated for one mask.
const MAX_STEPS: u32 = 400;
/// Most instructions of a step whose results, one for a query or a key, are computed again for each score.
const FEW: usize = 12;
/// A buffer is small beside a mask of so many times its elements. Measured on an H200 with masks of 14 and 64 times the elements (12 heads of
/// 196 and 4096 queries and keys): computed they take 0.7 and 0.97 of the time of writing and reading them. Between 1 and 14 nothing was.
const SMALL_TABLE: i64 = 8;

/// A mask as a function of batch, head, query and key.
pub(super) struct Function {
    /// The last value is the mask's element.
    pub(super) insts: Vec<Inst>,
    /// The buffers that its producers would write, by their roots.
    pub(super) inlined: Vec<BufId>,
    /// The first step of the program that was inlined; the number of steps where all were of the init steps.
    first: usize,
}

impl Function {
    /// The function of a mask that step `user` reads, by the steps that write it; `None` where it is computed in another way, or
    /// an index of these steps might be out of bounds.
    pub(super) fn of_producers(program: &Program, mask: &Operand, user: usize) -> Option<Function> {
        let mut inliner = Inliner::new(program, mask, user);
        let index = inliner.position(mask)?;
        let element = inliner.produced(program.root(mask.buf), None, &index)?;
        let value = inliner.value(element, program.buffers[mask.buf].dtype);
        let Inliner { body, inlined, first, .. } = inliner;
        Some(Function { insts: ending_with(body, value), inlined, first })
    }

    /// The function that loads the mask from `view`, a buffer of the mask's sizes and strides.
    pub(super) fn of_elements(program: &Program, view: BufId) -> Function {
        let index = (0..4).map(SymExpr::loop_var).collect();
        let inst = Inst {
            dtype: program.buffers[view].dtype,
            kind: InstKind::Load { buf: view, index, mask: None },
        };
        Function { insts: vec![inst], inlined: Vec::new(), first: program.steps.len() }
    }

    pub(super) fn dtype(&self) -> Option<DType> {
        self.insts.last().map(|inst| inst.dtype)
    }

    /// The roots of the buffers that it loads.
    pub(super) fn loaded<'a>(&'a self, program: &'a Program) -> impl Iterator<Item = BufId> + 'a {
        self.insts.iter().filter_map(|inst| match &inst.kind {
            InstKind::Load { buf, .. } => Some(program.root(*buf)),
            _ => None,
        })
    }

    /// Whether everything that it loads has its final value before step `user`, and before the steps that were inlined.
    pub(super) fn is_ready(&self, program: &Program, user: usize) -> bool {
        let last = user.min(self.first);
        let mut later = program.steps.iter().skip(last).flat_map(|step| step.accesses().1);
        later.all(|written| self.loaded(program).all(|root| program.root(written) != root))
    }

    /// The dimensions along which it differs, and whether it loads what differs along queries and keys both from a buffer about as large as
    /// the mask: that would be no less to read. Biases of relative positions that are sums of one for each row and one for each column of an
    /// image are small buffers.
    pub(super) fn moves(&self, program: &Program, sizes: &[SymExpr]) -> ([bool; 4], bool) {
        let mut of: Vec<[bool; 4]> = Vec::new();
        let mut tables: Vec<i64> = Vec::new();
        for inst in &self.insts {
            let mut own = [false; 4];
            let mut add = |e: &SymExpr| {
                e.for_each_leaf(&mut |leaf| match leaf {
                    Atom::Loop(d) if sizes[*d as usize] != SymExpr::ONE => own[*d as usize] = true,
                    Atom::Value(v) => join(&mut own, of[*v as usize]),
                    _ => {}
                });
            };
            match &inst.kind {
                InstKind::Index(e) => add(e),
                InstKind::Load { buf, index, mask } => {
                    add(&program.buffers[*buf].address(index));
                    if own[2] && own[3] {
                        tables.push(elements(program, &program.buffers[*buf].sizes));
                    }
                    mask.iter().for_each(|m| join(&mut own, of[m.0 as usize]));
                }
                kind => kind.for_each_val(&mut |v| join(&mut own, of[v.0 as usize])),
            }
            of.push(own);
        }
        let moves: [bool; 4] = of.last().copied().unwrap_or_default();
        let own: Vec<SymExpr> = (0..4).filter(|&d| moves[d]).map(|d| sizes[d].clone()).collect();
        let all = elements(program, &own);
        (moves, tables.into_iter().any(|table| table.saturating_mul(SMALL_TABLE) > all))
    }
}

fn elements(program: &Program, sizes: &[SymExpr]) -> i64 {
    sizes.iter().fold(1, |n: i64, size| n.saturating_mul(hint(program, size)))
}

fn join(own: &mut [bool; 4], other: [bool; 4]) {
    own.iter_mut().zip(other).for_each(|(own, other)| *own |= other);
}

/// The body without what `value` does not need; `value` is its last one.
fn ending_with(body: BodyBuilder, value: Val) -> Vec<Inst> {
    let mut insts = body.finish();
    let dtype = insts[value.0 as usize].dtype;
    // A reduction is an effect, which keeps the value while the rest goes.
    insts.push(Inst { dtype, kind: InstKind::Reduce { acc: kernel_ir::AccId(0), value, position: None } });
    let mut insts = kernel_ir::pruned(insts);
    insts.pop();
    insts
}

/// The value of an instruction at the position of a score.
#[derive(Clone)]
enum Element {
    /// An integer.
    Int(SymExpr),
    Truth(bool),
    /// A value of the new body.
    Value(Val),
}

struct Inliner<'p> {
    program: &'p Program,
    /// Sizes of the scores.
    extents: Vec<SymExpr>,
    user: usize,
    body: BodyBuilder,
    inlined: Vec<BufId>,
    first: usize,
    steps: u32,
}

impl<'p> Inliner<'p> {
    fn new(program: &'p Program, mask: &Operand, user: usize) -> Inliner<'p> {
        let (body, first) = (BodyBuilder::new(), program.steps.len());
        let extents = mask.sizes.to_vec();
        Inliner { program, extents, user, body, inlined: Vec::new(), first, steps: MAX_STEPS }
    }

    /// The variable of a dimension of the scores.
    fn var(&self, d: usize) -> SymExpr {
        if self.extents[d] == SymExpr::ONE { SymExpr::ZERO } else { SymExpr::loop_var(d as u32) }
    }

    /// The index of a score's mask in the buffer that is stored to; `None` where the mask is another view of its memory than by
    /// [`Inliner::same_dimensions`] and [`Inliner::divided`].
    fn position(&self, mask: &Operand) -> Option<Vec<SymExpr>> {
        let (_, _, stored) = self.writer(self.program.root(mask.buf))?;
        self.same_dimensions(mask, stored).or_else(|| self.divided(mask, stored))
    }

    /// The index where each dimension of the buffer that moves is one of the scores.
    fn same_dimensions(&self, mask: &Operand, stored: BufId) -> Option<Vec<SymExpr>> {
        let buffer = &self.program.buffers[stored];
        let moves = |d: &usize| mask.sizes[*d] != SymExpr::ONE && mask.strides[*d] != SymExpr::ZERO;
        let mut found = 0;
        let mut index = Vec::new();
        for (size, stride) in buffer.sizes.iter().zip(&buffer.strides) {
            if *size == SymExpr::ONE {
                index.push(SymExpr::ZERO);
                continue;
            }
            let d = (0..4).filter(moves).find(|&d| mask.strides[d] == *stride && mask.sizes[d] == *size)?;
            index.push(self.var(d));
            found += 1;
        }
        (found == (0..4).filter(moves).count() && buffer.offset == mask.offset).then_some(index)
    }

    /// The index where the dimensions of a dense buffer are others than those of the scores: rows and columns of images in place of queries and
    /// keys, batches together with heads. All sizes and strides must be numbers.
    fn divided(&self, mask: &Operand, stored: BufId) -> Option<Vec<SymExpr>> {
        let buffer = &self.program.buffers[stored];
        let number = SymExpr::as_const;
        let mut dims: Vec<(usize, i64, i64)> = Vec::new();
        for (n, (size, stride)) in buffer.sizes.iter().zip(&buffer.strides).enumerate() {
            dims.push((n, number(size)?, number(stride)?));
        }
        let strides: Vec<i64> = mask.strides.iter().map(number).collect::<Option<_>>()?;
        mask.sizes.iter().try_for_each(|size| number(size).map(drop))?;
        if buffer.offset != mask.offset {
            return None;
        }
        // The element's place in memory, from whose digits the index is read, the dimension of the smallest stride first.
        let mut rest = (0..4).fold(SymExpr::ZERO, |place, d| place + self.var(d) * strides[d]);
        dims.retain(|(_, size, _)| *size != 1);
        dims.sort_by_key(|(.., stride)| *stride);
        let mut index = vec![SymExpr::ZERO; buffer.sizes.len()];
        let mut dense = 1;
        for (n, size, stride) in dims {
            if stride != dense {
                return None;
            }
            index[n] = rest.modulo(&SymExpr::from_i64(size)).simplify(&self.bounds());
            rest = rest.floor_div(&SymExpr::from_i64(size)).simplify(&self.bounds());
            dense = stride.checked_mul(size)?;
        }
        Some(index)
    }

    /// The only kernel that stores to a buffer, the number of its step (`None` for an init step), and the buffer by which it does.
    fn writer(&self, root: BufId) -> Option<(&'p LoopKernel, Option<usize>, BufId)> {
        let program = self.program;
        let stores = |step: &&Step| step.accesses().1.iter().any(|b| program.root(*b) == root);
        let init = program.init.iter().filter(stores).map(|step| (step, None));
        let all = program.steps.iter().enumerate().filter(|(_, step)| stores(step));
        let mut writers = init.chain(all.map(|(n, step)| (step, Some(n))));
        let (step, at) = writers.next()?;
        if writers.next().is_some() || at.is_some_and(|n| n >= self.user) {
            return None;
        }
        let members = match step {
            Step::Together(group) => &group.steps[..],
            step => std::slice::from_ref(step),
        };
        let mut kernels = members.iter().filter(stores);
        let (Some(Step::Loop(kernel)), None) = (kernels.next(), kernels.next()) else { return None };
        let [stage] = &kernel.stages[..] else { return None };
        let mut stores = stage.insts.iter().filter_map(|inst| match inst.kind {
            InstKind::Store { buf, mask: None, mode: StoreMode::Write, .. } if program.root(buf) == root => {
                Some(buf)
            }
            InstKind::Store { buf, .. } if program.root(buf) == root => Some(BufId(u32::MAX)),
            _ => None,
        });
        let (stored, more) = (stores.next()?, stores.next());
        let pointwise = stage.inner.is_empty() && kernel.accs.is_empty() && more.is_none();
        (pointwise && stored.0 != u32::MAX).then_some((kernel, at, stored))
    }

    /// The element at an index of the buffer that a step stores to, and that is read as `buf`, where the step computes each alone.
    fn produced(&mut self, root: BufId, buf: Option<BufId>, index: &[SymExpr]) -> Option<Element> {
        let (kernel, at, stored) = self.writer(root)?;
        let same = |a: BufId| {
            let [a, b] = [a, stored].map(|b| &self.program.buffers[b]);
            (&a.sizes, &a.strides, &a.offset) == (&b.sizes, &b.strides, &b.offset)
        };
        if buf.is_some_and(|buf| !same(buf)) {
            return None;
        }
        let insts = &kernel.stages[0].insts;
        let place = insts.iter().find_map(|inst| match &inst.kind {
            InstKind::Store { buf, index, value, .. } if *buf == stored => Some((index, *value)),
            _ => None,
        });
        let (to, value) = place?;
        let mut loops: Vec<Option<SymExpr>> =
            kernel.outer.iter().map(|n| (*n == SymExpr::ONE).then_some(SymExpr::ZERO)).collect();
        for (to, at) in to.iter().zip(index) {
            match to.as_atom() {
                Some(Atom::Loop(n)) => *loops.get_mut(*n as usize)? = Some(at.clone()),
                _ => _ = to.as_const()?,
            }
        }
        let loops: Vec<SymExpr> = loops.into_iter().collect::<Option<_>>()?;
        let mut values: Vec<Option<Element>> = Vec::new();
        for n in 0..=value.0 as usize {
            let element = match insts[n].kind.has_effect() || !is_needed(insts, n, value) {
                true => None,
                false => Some(self.evaluated(insts, n, &values, &loops)?),
            };
            values.push(element);
        }
        if !self.inlined.contains(&root) {
            self.inlined.push(root);
        }
        self.first = at.map_or(self.first, |at| self.first.min(at));
        values.pop()?
    }

    /// The value of an instruction at the points `loops`, given those before it.
    fn evaluated(
        &mut self,
        insts: &[Inst],
        n: usize,
        values: &[Option<Element>],
        loops: &[SymExpr],
    ) -> Option<Element> {
        self.steps = self.steps.checked_sub(1)?;
        let Inst { dtype, kind } = &insts[n];
        let of = |v: Val| values.get(v.0 as usize).cloned().flatten();
        match kind {
            InstKind::Const(Scalar::Bool(b)) => Some(Element::Truth(*b)),
            InstKind::Const(s) if is_index(*dtype) => Some(Element::Int(SymExpr::from_i64(s.as_i64()))),
            InstKind::Const(s) => Some(Element::Value(self.body.constant(*s, *dtype))),
            InstKind::Index(e) => Some(Element::Int(self.expr(e, values, loops)?)),
            InstKind::Load { buf, index, mask } => {
                let index: Option<Vec<SymExpr>> = index.iter().map(|e| self.expr(e, values, loops)).collect();
                let mask = match mask {
                    Some(m) => Some(of(*m)?),
                    None => None,
                };
                self.loaded(*buf, index?, mask, *dtype)
            }
            InstKind::Check { value, size, .. } => {
                let (Element::Int(e), size) = (of(*value)?, self.expr(size, values, loops)?) else {
                    return None;
                };
                let known = self.bounds();
                let proved = e.is_non_negative(&known) && e.is_less_than(&size, &known);
                proved.then_some(Element::Int(e))
            }
            InstKind::Op { op, args } => {
                let given: Option<Vec<Element>> = args.iter().map(|v| of(*v)).collect();
                let given = given?;
                if let Some(known) = self.folded(*op, &given) {
                    return Some(known);
                }
                let dtypes = args.iter().map(|v| insts[v.0 as usize].dtype);
                let args: Vec<Val> =
                    given.into_iter().zip(dtypes).map(|(e, dtype)| self.value(e, dtype)).collect();
                Some(Element::Value(self.body.op(*op, &args)))
            }
            InstKind::Cast(v) => {
                let from = insts[v.0 as usize].dtype;
                Some(match of(*v)? {
                    Element::Int(e) if is_index(*dtype) => Element::Int(e),
                    Element::Truth(b) if is_index(*dtype) => Element::Int(SymExpr::from_i64(i64::from(b))),
                    other => {
                        let value = self.value(other, from);
                        Element::Value(self.body.cast(value, *dtype))
                    }
                })
            }
            InstKind::Bitcast(v) => {
                let value = self.value(of(*v)?, insts[v.0 as usize].dtype);
                Some(Element::Value(self.body.push(*dtype, InstKind::Bitcast(value))))
            }
            _ => None,
        }
    }

    fn bounds(&self) -> LoopBounds<'_> {
        LoopBounds { extents: &self.extents, symbols: &self.program.symbols }
    }

    /// An index expression at the points `loops`.
    fn expr(&mut self, e: &SymExpr, values: &[Option<Element>], loops: &[SymExpr]) -> Option<SymExpr> {
        // Values that stay such are numbered in the new body.
        let mut missing = false;
        let replaced = e.subst(&|leaf| match leaf {
            Atom::Loop(n) => loops.get(*n as usize).cloned(),
            Atom::Value(n) => match values.get(*n as usize) {
                Some(Some(Element::Int(e))) => Some(e.clone()),
                Some(Some(Element::Value(v))) => Some(SymExpr::value(v.0)),
                _ => None,
            },
            _ => None,
        });
        e.for_each_leaf(&mut |leaf| match leaf {
            Atom::Loop(n) => missing |= *n as usize >= loops.len(),
            Atom::Value(n) => {
                missing |=
                    !matches!(values.get(*n as usize), Some(Some(Element::Int(_) | Element::Value(_))));
            }
            _ => {}
        });
        (!missing).then(|| replaced.simplify(&self.bounds()))
    }

    /// An element of a buffer: computed again where that is as cheap as loading it, or where it differs along queries and keys.
    fn loaded(
        &mut self,
        buf: BufId,
        index: Vec<SymExpr>,
        mask: Option<Element>,
        dtype: DType,
    ) -> Option<Element> {
        let mask = match mask {
            None | Some(Element::Truth(true)) => None,
            Some(mask) => Some(self.value(mask, DType::Bool)),
        };
        let root = self.program.root(buf);
        let address = self.program.buffers[buf].address(&index);
        let varies = |d: u32| address.any_leaf(|leaf| *leaf == Atom::Loop(d));
        let simple = self.writer(root).is_some_and(|(kernel, ..)| {
            let insts = &kernel.stages[0].insts;
            insts.len() <= FEW
                && insts.iter().filter(|i| matches!(i.kind, InstKind::Load { .. })).count() <= 1
        });
        if (varies(2) && varies(3)) || simple {
            match (self.produced(root, Some(buf), &index), mask) {
                (Some(element), None) => return Some(element),
                (Some(element), Some(mask)) => {
                    let value = self.value(element, dtype);
                    let none = self.body.constant(Scalar::zero(dtype), dtype);
                    return Some(Element::Value(self.body.select(mask, value, none)));
                }
                _ => {}
            }
        }
        let index = index.into_iter().collect();
        Some(Element::Value(self.body.push(dtype, InstKind::Load { buf, index, mask })))
    }

    /// An element as a value of the new body.
    fn value(&mut self, element: Element, dtype: DType) -> Val {
        match element {
            Element::Int(e) => {
                let value = self.body.index(e);
                self.body.cast(value, dtype)
            }
            Element::Truth(b) => self.body.constant(Scalar::Bool(b), DType::Bool),
            Element::Value(v) => v,
        }
    }

    /// The result of an operator on integers that are expressions, or on truth values that are known.
    fn folded(&mut self, op: ScalarOp, args: &[Element]) -> Option<Element> {
        use Element::{Int, Truth};
        Some(match (op, args) {
            (ScalarOp::Add, [Int(a), Int(b)]) => Int(a + b),
            (ScalarOp::Sub, [Int(a), Int(b)]) => Int(a - b),
            (ScalarOp::Mul, [Int(a), Int(b)]) if a.as_const().is_some() || b.as_const().is_some() => {
                Int(a * b)
            }
            (ScalarOp::Le, [Int(a), Int(b)]) | (ScalarOp::Ge, [Int(b), Int(a)]) => self.at_least_0(b - a),
            (ScalarOp::Lt, [Int(a), Int(b)]) | (ScalarOp::Gt, [Int(b), Int(a)]) => {
                self.at_least_0(b - a - SymExpr::ONE)
            }
            (ScalarOp::Eq, [Int(a), Int(b)]) if a == b => Truth(true),
            (ScalarOp::Ne, [Int(a), Int(b)]) if a == b => Truth(false),
            (ScalarOp::Not, [Truth(a)]) => Truth(!a),
            (ScalarOp::And, [Truth(true), other] | [other, Truth(true)]) => other.clone(),
            (ScalarOp::And, [Truth(false), _] | [_, Truth(false)]) => Truth(false),
            (ScalarOp::Or, [Truth(false), other] | [other, Truth(false)]) => other.clone(),
            (ScalarOp::Or, [Truth(true), _] | [_, Truth(true)]) => Truth(true),
            (ScalarOp::Select, [Truth(true), yes, _]) => yes.clone(),
            (ScalarOp::Select, [Truth(false), _, no]) => no.clone(),
            _ => return None,
        })
    }

    fn at_least_0(&mut self, e: SymExpr) -> Element {
        let e = e.simplify(&self.bounds());
        match e.range(&self.bounds()) {
            (Some(least), _) if least >= 0 => Element::Truth(true),
            (_, Some(most)) if most < 0 => Element::Truth(false),
            _ => {
                let (value, zero) = (self.body.index(e), self.body.constant(0, DType::I64));
                Element::Value(self.body.op(ScalarOp::Ge, &[value, zero]))
            }
        }
    }
}

/// Integers that are kept as expressions: those of positions, which are far from the limits of both.
fn is_index(dtype: DType) -> bool {
    matches!(dtype, DType::I32 | DType::I64)
}

/// Whether value `v` depends on instruction `n`.
fn is_needed(insts: &[Inst], n: usize, v: Val) -> bool {
    let mut live = vec![false; insts.len()];
    live[v.0 as usize] = true;
    for at in (n..=v.0 as usize).rev() {
        if live[at] {
            insts[at].kind.for_each_val(&mut |v| live[v.0 as usize] = true);
        }
    }
    live[n]
}
