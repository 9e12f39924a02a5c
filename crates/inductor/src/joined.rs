//! Concatenations that their parts are written into: the memory of a concatenation is laid out first, and what computes a
//! part stores it there, so that no kernel copies it. Runs after `realize`, which says what has memory.
//!
//! A concatenation is recognised by its recorded body, a chain of choices along one dimension. It becomes
//! [`DefKind::Joined`], which no kernel computes: it is complete when its parts are. A concatenation whose parts lie side by side in a
//! later one (a prefix, in networks whose layers read all earlier results) is a piece of that one's memory. This is about
//! memory alone: which values have any is decided before, but for concatenations that were to be computed where they are
//! read and whose parts all have memory.

use ir_core::{Atom, EntityId, Shape, SymExpr};
use kernel_ir::{BodyBuilder, BufId, ExternOp, Inst, InstKind, LoopBounds, ScalarOp, Val};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::affine::{self, SymBounds};
use crate::defs::{Def, DefKind, Defs, Place, template_operands};
use crate::in_place::lineage;
use crate::inline::{Inliner, no_forward};
use crate::peak::Lives;
use crate::realize::layout;

/// Parts begin at multiples of so many bytes, and so do their rows: what backends load at once stays aligned.
const ALIGNED: i64 = 16;

/// All concatenations of a program together may let its temporaries take more memory by this part of them: a block whose layers
/// read all earlier results, and images that skip layers, lie in the whole before its other parts are computed.
const GROWTH: i64 = 16;

/// A part of a concatenation as its body names it: what lies from `start` to `end` along the dimension.
struct Part {
    source: BufId,
    start: SymExpr,
    end: SymExpr,
}

/// A concatenation along `dim`.
struct Chain {
    dim: usize,
    parts: Vec<Part>,
}

/// A value that can be computed into a part, with the strides that it has there.
struct Fit {
    def: BufId,
    strides: Shape,
    place: Place,
}

/// Turns concatenations into memory that their parts are written to, the last one first, so that a concatenation which a
/// later one contains is a piece of it.
pub(crate) fn run(defs: &mut Defs) {
    let written: FxHashSet<BufId> =
        defs.written.iter().flat_map(|w| lineage(defs, *w).into_iter().chain([w.def])).collect();
    let in_place = |id: &BufId| written.contains(id);
    let candidates = defs.order.iter().rev().filter(|id| !in_place(id));
    let joins: Vec<(BufId, Chain)> = candidates.filter_map(|id| Some((*id, chain(defs, *id)?))).collect();
    if joins.is_empty() {
        return;
    }
    let mut uses = Uses::of(defs);
    for (id, chain) in joins {
        if !prefix(defs, &uses, id, &chain) {
            join(defs, &mut uses, id, &chain);
        }
    }
    uses.insert_copies(defs);
}

/// The readers of definitions, the operands of templates and routines that lie in their memory, and how long that lives.
struct Uses {
    readers: FxHashMap<BufId, Vec<BufId>>,
    operands: FxHashMap<BufId, Vec<BufId>>,
    /// Copies of parts that nothing computes in place, before the concatenation that they belong to.
    copies: FxHashMap<BufId, Vec<BufId>>,
    lives: Lives,
    /// Most bytes that temporaries may take.
    most: i64,
}

impl Uses {
    fn of(defs: &Defs) -> Uses {
        let (mut readers, mut operands) = (FxHashMap::default(), FxHashMap::default());
        for &id in &defs.order {
            let def = defs.get(id);
            for read in def.reads() {
                readers.entry(read).or_insert_with(Vec::new).push(id);
            }
            let strided = match &def.kind {
                DefKind::Template(spec) => template_operands(spec),
                DefKind::Extern { inputs, .. } => inputs.clone(),
                _ => continue,
            };
            for v in strided {
                if let Some(operand) = affine::operand(defs, v) {
                    operands.entry(operand.buf).or_insert_with(Vec::new).push(v);
                }
            }
        }
        let lives = Lives::of(defs);
        let peak = lives.peak(defs);
        let most = peak.saturating_add(peak / GROWTH);
        Uses { readers, operands, copies: FxHashMap::default(), lives, most }
    }

    fn readers(&self, id: BufId) -> &[BufId] {
        self.readers.get(&id).map_or(&[], Vec::as_slice)
    }

    /// Whether everything that reads the memory of `id`, through views too, may read it at any strides.
    fn take_strides(&self, defs: &Defs, id: BufId) -> bool {
        self.readers(id).iter().all(|&reader| {
            let def = defs.get(reader);
            match &def.kind {
                DefKind::Control { .. } | DefKind::Extern { op: ExternOp::Collective(_), .. } => false,
                DefKind::Loop { .. } if !def.realized && def.is_view() => self.take_strides(defs, reader),
                _ => true,
            }
        })
    }

    /// Whether no loop reads the memory of `id`, through views too: what computes that is then no part of the kernel of a reader.
    fn is_apart(&self, defs: &Defs, id: BufId) -> bool {
        self.readers(id).iter().all(|&reader| {
            let def = defs.get(reader);
            match &def.kind {
                DefKind::Template(_) | DefKind::Extern { .. } | DefKind::Control { .. } => true,
                _ => !def.realized && def.is_view() && self.is_apart(defs, reader),
            }
        })
    }

    /// Whether the operands of templates and routines that lie in the memory of `id` are strided views.
    fn hold(&self, defs: &Defs, id: BufId) -> bool {
        let operands = self.operands.get(&id).map_or(&[][..], Vec::as_slice);
        operands.iter().all(|v| affine::operand(defs, *v).is_some_and(|o| o.buf == id))
    }

    fn insert_copies(mut self, defs: &mut Defs) {
        let mut order = Vec::with_capacity(defs.order.len());
        for id in std::mem::take(&mut defs.order) {
            order.extend(self.copies.remove(&id).unwrap_or_default());
            order.push(id);
        }
        defs.order = order;
    }
}

/// The values that a concatenation consists of; none where a definition is something else.
pub(crate) fn parts(defs: &Defs, id: BufId) -> Vec<BufId> {
    chain(defs, id).map_or(Vec::new(), |chain| chain.parts.into_iter().map(|part| part.source).collect())
}

/// The parts of a concatenation that may be written one by one; `None` where a definition is something else.
fn chain(defs: &Defs, id: BufId) -> Option<Chain> {
    let def = defs.get(id);
    let DefKind::Loop { insts, value } = &def.kind else { return None };
    if def.constant || def.barrier || is_dynamic(defs, def) {
        return None;
    }
    let body = Body { insts };
    let mut found: Option<Chain> = None;
    let (mut at, mut start) = (body.without_casts(*value), SymExpr::ZERO);
    while let InstKind::Op { op: ScalarOp::Select, args } = body.kind(at) {
        let (dim, end) = body.limit(args[0], ScalarOp::Lt)?;
        let chain = found.get_or_insert(Chain { dim, parts: Vec::new() });
        let source = body.part(args[1], dim, [&start, &end])?;
        if chain.dim != dim {
            return None;
        }
        chain.parts.push(Part { source, start, end: end.clone() });
        (at, start) = (body.without_casts(args[2]), end);
    }
    let mut chain = found?;
    let end = def.sizes.get(chain.dim)?.clone();
    let source = body.part(at, chain.dim, [&start, &end])?;
    chain.parts.push(Part { source, start, end });
    let fits = |part: &Part| {
        let of = defs.get(part.source);
        let same = |(d, (a, b)): (usize, (&SymExpr, &SymExpr))| {
            if d == chain.dim { *a == &part.end - &part.start } else { a == b }
        };
        of.dtype == def.dtype
            && of.sizes.len() == def.sizes.len()
            && of.sizes.iter().zip(&def.sizes).enumerate().all(same)
    };
    chain.parts.iter().all(fits).then_some(chain)
}

/// Whether steps tell how large a value is: its memory then begins to be when they do.
fn is_dynamic(defs: &Defs, def: &Def) -> bool {
    let unbacked = |a: &Atom| matches!(a, Atom::Sym(s) if defs.symbols.get(*s).is_none_or(|s| s.unbacked));
    def.sizes.iter().chain(&def.strides).any(|e| e.any_leaf(unbacked))
}

/// A recorded body, to be matched.
struct Body<'a> {
    insts: &'a [Inst],
}

impl Body<'_> {
    fn kind(&self, v: Val) -> &InstKind {
        &self.insts[v.0 as usize].kind
    }

    /// The operand of a chain of conversions. Of a value in the body's dtype they widen it and narrow it again.
    fn without_casts(&self, mut v: Val) -> Val {
        while let InstKind::Cast(of) = self.kind(v) {
            v = *of;
        }
        v
    }

    /// The loop and the number that a mask compares it with.
    fn limit(&self, mask: Val, wanted: ScalarOp) -> Option<(usize, SymExpr)> {
        let InstKind::Op { op, args } = self.kind(mask) else { return None };
        let expr = |v: Val| match self.kind(v) {
            InstKind::Index(e) => Some(e.clone()),
            InstKind::Const(c) => Some(SymExpr::from_i64(c.as_i64())),
            _ => None,
        };
        let (place, bound) = (expr(args[0])?, expr(args[1])?);
        let Some(Atom::Loop(d)) = place.as_atom() else { return None };
        let size = !bound.any_leaf(|a| !matches!(a, Atom::Sym(_)));
        (*op == wanted && size).then_some((*d as usize, bound))
    }

    /// Whether a mask holds from `start` to `end` of a loop.
    fn holds(&self, mask: Val, dim: usize, within: [&SymExpr; 2]) -> bool {
        match self.kind(mask) {
            InstKind::Op { op: ScalarOp::And, args } => args.iter().all(|m| self.holds(*m, dim, within)),
            InstKind::Op { op: ScalarOp::Ge, .. } => {
                self.limit(mask, ScalarOp::Ge).is_some_and(|(d, e)| d == dim && e == *within[0])
            }
            InstKind::Op { op: ScalarOp::Lt, .. } => {
                self.limit(mask, ScalarOp::Lt).is_some_and(|(d, e)| d == dim && e == *within[1])
            }
            _ => false,
        }
    }

    /// The value whose elements `v` is from `start` to `end`, from its first one on.
    fn part(&self, v: Val, dim: usize, within: [&SymExpr; 2]) -> Option<BufId> {
        let InstKind::Load { buf, index, mask } = self.kind(self.without_casts(v)) else { return None };
        let own = |(d, e): (usize, &SymExpr)| {
            let here = SymExpr::loop_var(d as u32);
            *e == if d == dim { here - within[0] } else { here }
        };
        let whole = mask.is_none_or(|m| self.holds(m, dim, within));
        (whole && index.iter().enumerate().all(own)).then_some(*buf)
    }
}

/// Makes a concatenation whose parts lie side by side in the memory of a later one a piece of that.
fn prefix(defs: &mut Defs, uses: &Uses, id: BufId, chain: &Chain) -> bool {
    let def = defs.get(id);
    if def.output || def.place.is_some() || !uses.take_strides(defs, id) {
        return false;
    }
    let mut found: Option<(Place, Shape)> = None;
    for part in &chain.parts {
        let Some((source, strides)) = seen(defs, part.source) else { return false };
        let Some(place) = defs.get(source).place.clone() else { return false };
        let stride = &strides[chain.dim];
        let first = Place { of: place.of, offset: place.offset - &part.start * stride };
        // A dimension of size 1 has no stride; that of the concatenation itself has one where any part has.
        match &mut found {
            None => found = Some((first, strides)),
            Some((place, have)) if *place == first => {
                let sizes = &defs.get(part.source).sizes;
                let agree = |d: usize| have[d] == strides[d] || sizes[d] == SymExpr::ONE && d != chain.dim;
                if !(0..have.len()).all(agree) {
                    return false;
                }
            }
            Some(_) => return false,
        }
    }
    let Some((place, strides)) = found else { return false };
    let parts = chain.parts.iter().filter_map(|p| Some(seen(defs, p.source)?.0)).collect();
    let before = replace(defs, id, DefKind::Joined { parts }, strides, Some(place));
    if !uses.hold(defs, id) || uses.lives.peak(defs) > uses.most {
        before.restore(defs, id);
        return false;
    }
    true
}

/// The value whose memory a part shows as it is, but for dimensions of size 1, and the strides of the part there.
fn seen(defs: &Defs, part: BufId) -> Option<(BufId, Shape)> {
    let (source, index) = load(defs, part)?;
    let (def, sizes) = (defs.get(source), &defs.get(part).sizes);
    let mut strides: Shape = sizes.iter().map(|_| SymExpr::ZERO).collect();
    for (k, e) in index.iter().enumerate().filter(|(k, _)| def.sizes[*k] != SymExpr::ONE) {
        let Some(Atom::Loop(d)) = e.as_atom() else { return None };
        let free = strides[*d as usize] == SymExpr::ZERO && sizes[*d as usize] == def.sizes[k];
        free.then(|| strides[*d as usize] = def.strides[k].clone())?;
    }
    let whole = (0..sizes.len()).all(|d| sizes[d] == SymExpr::ONE || strides[d] != SymExpr::ZERO);
    whole.then_some((source, strides))
}

/// The value with memory that a part reads, and at which index.
fn load(defs: &Defs, part: BufId) -> Option<(BufId, Shape)> {
    let def = defs.get(part);
    let at: Shape = (0..def.sizes.len() as u32).map(SymExpr::loop_var).collect();
    if def.realized {
        return Some((part, at));
    }
    if !def.is_view() {
        return None;
    }
    let symbols = SymBounds(defs);
    let bounds = LoopBounds { extents: &def.sizes, symbols: &symbols };
    let mut b = BodyBuilder::new();
    let value = Inliner::new(defs, &bounds).element(&mut b, &mut no_forward, part, at, None);
    let InstKind::Load { buf, index, mask: None } = &b.insts()[value.0 as usize].kind else { return None };
    let index = index.iter().map(|e| e.simplify(&bounds)).collect();
    (defs.get(*buf).dtype == def.dtype).then_some((*buf, index))
}

/// Gives a concatenation memory that those of its parts are written to which can be, where less is copied then.
fn join(defs: &mut Defs, uses: &mut Uses, id: BufId, chain: &Chain) {
    let def = defs.get(id);
    let strides = match def.realized || def.place.is_some() {
        true => def.strides.clone(),
        false => layout(defs, id),
    };
    let place = def.place.clone().unwrap_or(Place { of: id, offset: SymExpr::ZERO });
    let mut taken: Vec<BufId> = Vec::new();
    let mut fits: Vec<Option<Fit>> = Vec::new();
    for part in &chain.parts {
        let fit = fit(defs, uses, id, part, (chain.dim, &strides), &place);
        fits.push(fit.filter(|f| !taken.contains(&f.def)));
        taken.extend(fits.last().and_then(Option::as_ref).map(|f| f.def));
    }
    let Some(runs) = settle(defs, uses, id, chain, &mut fits) else { return };
    let copies: Vec<BufId> =
        runs.iter().map(|run| copy(defs, id, chain, run.clone(), (&strides, &place))).collect();
    let parts = fits.iter().flatten().map(|fit| fit.def).chain(copies.iter().copied()).collect();
    uses.copies.insert(id, copies);
    let own = defs.get(id).place.clone();
    replace(defs, id, DefKind::Joined { parts }, strides, own);
}

/// Places parts where they fit, and gives the runs of others; `None` where all are as before. Parts that are computed long
/// before others make the whole live from then on: where that takes too much memory the earliest ones are copied.
fn settle(
    defs: &mut Defs,
    uses: &Uses,
    id: BufId,
    chain: &Chain,
    fits: &mut [Option<Fit>],
) -> Option<Vec<std::ops::Range<usize>>> {
    loop {
        let runs = runs(chain, fits);
        if !moves_less(defs, uses, id, chain, fits, runs.len()) {
            return None;
        }
        let mut before = Vec::new();
        for Fit { def, strides, place } in fits.iter().flatten() {
            before.push((*def, relocate(defs, *def, strides.clone(), Some(place.clone()))));
        }
        let strided = before.iter().all(|(def, _)| uses.hold(defs, *def));
        if strided && uses.lives.peak(defs) <= uses.most {
            return Some(runs);
        }
        for (def, (strides, place)) in before {
            relocate(defs, def, strides, place);
        }
        let at = |fit: &Option<Fit>| fit.as_ref().map_or(usize::MAX, |fit| uses.lives.place(fit.def));
        let earliest = fits.iter_mut().filter(|fit| strided && fit.is_some()).min_by_key(|fit| at(fit))?;
        *earliest = None;
    }
}

/// Whether fewer bytes move where the parts that fit are written in place and a kernel copies each run of others. A
/// concatenation with memory is copied by a kernel, which is that of a reader where this is a loop; one without by none.
fn moves_less(defs: &Defs, uses: &Uses, id: BufId, chain: &Chain, fits: &[Option<Fit>], runs: usize) -> bool {
    let numel = |part: &Part| defs.numel_hint(&defs.get(part.source).sizes);
    let sum = |placed: bool| -> i64 {
        let of = chain.parts.iter().zip(fits).filter(|(_, fit)| fit.is_some() == placed);
        of.map(|(part, _)| numel(part)).fold(0, i64::saturating_add)
    };
    let one = usize::from(defs.get(id).realized && uses.is_apart(defs, id));
    runs <= one && sum(true) > sum(false)
}

/// The runs of neighbouring parts that nothing computes in place.
fn runs(chain: &Chain, fits: &[Option<Fit>]) -> Vec<std::ops::Range<usize>> {
    let mut runs: Vec<std::ops::Range<usize>> = Vec::new();
    for n in (0..chain.parts.len()).filter(|n| fits[*n].is_none()) {
        match runs.last_mut() {
            Some(run) if run.end == n => run.end += 1,
            _ => runs.push(n..n + 1),
        }
    }
    runs
}

/// What computes a part, if it can store it in the concatenation `id`, which has these strides.
fn fit(
    defs: &Defs,
    uses: &Uses,
    id: BufId,
    part: &Part,
    (dim, strides): (usize, &[SymExpr]),
    place: &Place,
) -> Option<Fit> {
    let (source, index) = load(defs, part.source)?;
    let def = defs.get(source);
    let computed = matches!(
        def.kind,
        DefKind::Template(_) | DefKind::Loop { .. } | DefKind::Reduce { .. } | DefKind::Scan { .. }
    ) || transforms(def);
    // The caller receives memory that nothing but the parts is stored to and that nothing reads.
    let is_alone = |v: BufId| uses.readers(v).len() == usize::from(v != id);
    let apart = !defs.get(place.of).output || [id, part.source, source].into_iter().all(is_alone);
    let free = !def.output && !def.constant && !def.barrier && def.place.is_none() && apart;
    if !computed || !free || def.sizes.is_empty() || is_dynamic(defs, def) || !uses.take_strides(defs, source)
    {
        return None;
    }
    let own = in_part(defs, part.source, source, &index, strides)?;
    let offset = &place.offset + &part.start * &strides[dim];
    let place = Place { of: place.of, offset };
    (transforms(def) || suits(defs, def, &own, &place)).then_some(Fit { def: source, strides: own, place })
}

/// Whether a value is a part of a Fourier transform's results, which are written one by one: the real and the imaginary parts of
/// complex numbers in memory are as good as any place.
fn transforms(def: &Def) -> bool {
    matches!(def.kind, DefKind::Extern { op: ExternOp::Fourier { .. }, .. })
}

/// The strides of a value in memory where the part that shows it has `strides`.
fn in_part(defs: &Defs, part: BufId, source: BufId, index: &[SymExpr], strides: &[SymExpr]) -> Option<Shape> {
    let (def, sizes) = (defs.get(source), &defs.get(part).sizes);
    let mut own = def.strides.clone();
    let mut left: Vec<usize> = (0..sizes.len()).filter(|d| sizes[*d] != SymExpr::ONE).collect();
    let mut direct = true;
    for (k, e) in index.iter().enumerate().filter(|(k, _)| def.sizes[*k] != SymExpr::ONE) {
        let found = match e.as_atom() {
            Some(Atom::Loop(d)) => left.iter().position(|l| *l == *d as usize),
            _ => None,
        };
        match found.map(|n| left.swap_remove(n)).filter(|d| sizes[*d] == def.sizes[k]) {
            Some(d) => own[k] = strides[d].clone(),
            None => direct = false,
        }
    }
    if direct && left.is_empty() {
        return Some(own);
    }
    // A reshaped value keeps its strides where the part's are those that it has as it lies.
    let view = affine::operand(defs, part)?;
    let same = |d: usize| sizes[d] == SymExpr::ONE || view.strides[d] == strides[d];
    let whole = ir_core::numel(sizes) == ir_core::numel(&def.sizes) && view.offset == SymExpr::ZERO;
    (whole && (0..sizes.len()).all(same)).then(|| def.strides.clone())
}

/// Whether a value is as good to write and to read at these strides as at its own: in the same order, its innermost elements
/// side by side, rows where vectors begin.
fn suits(defs: &Defs, def: &Def, strides: &[SymExpr], place: &Place) -> bool {
    let mut dims: Vec<usize> = (0..strides.len()).filter(|d| def.sizes[*d] != SymExpr::ONE).collect();
    dims.sort_by_key(|&d| std::cmp::Reverse(defs.hint(&def.strides[d])));
    let in_order = dims.windows(2).all(|w| defs.hint(&strides[w[0]]) >= defs.hint(&strides[w[1]]));
    let innermost = dims.last().is_some_and(|&d| strides[d] == SymExpr::ONE);
    let multiple = (ALIGNED / def.dtype.size() as i64).max(1);
    let aligned = |e: &SymExpr| e.as_const().is_some_and(|n| n % multiple == 0);
    let rows = dims.iter().rev().skip(1).all(|&d| aligned(&strides[d]));
    in_order && innermost && rows && aligned(&place.offset)
}

/// A definition of what a run of parts has, in its place.
fn copy(
    defs: &mut Defs,
    id: BufId,
    chain: &Chain,
    run: std::ops::Range<usize>,
    (strides, place): (&Shape, &Place),
) -> BufId {
    let parts = &chain.parts[run];
    let (Some(first), Some(last)) = (parts.first(), parts.last()) else { return id };
    let def = defs.get(id);
    let mut sizes = def.sizes.clone();
    sizes[chain.dim] = &last.end - &first.start;
    let kind = one_behind_the_other(def, parts, chain.dim);
    let copied = Def {
        name: format!("{}_part", def.name),
        origin: def.origin.clone(),
        dtype: def.dtype,
        sizes,
        strides: strides.clone(),
        kind,
        realized: true,
        constant: false,
        output: false,
        users: 1,
        barrier: false,
        place: Some(Place { of: place.of, offset: &place.offset + &first.start * &strides[chain.dim] }),
    };
    let new = BufId::from_index(defs.list.len());
    defs.list.push(Some(copied));
    new
}

/// The elements of neighbouring parts, from the first part's on.
fn one_behind_the_other(def: &Def, parts: &[Part], dim: usize) -> DefKind {
    let mut b = BodyBuilder::new();
    let first = parts.first().map_or(&SymExpr::ZERO, |part| &part.start);
    let place = SymExpr::loop_var(dim as u32);
    let mut value = None;
    for (n, part) in parts.iter().enumerate().rev() {
        let (start, end) = (&part.start - first, &part.end - first);
        let mut at: Shape = (0..def.sizes.len() as u32).map(SymExpr::loop_var).collect();
        at[dim] = &place - &start;
        let mut compared = |op, limit: SymExpr| {
            let (place, limit) = (b.index(place.clone()), b.index(limit));
            b.op(op, &[place, limit])
        };
        let behind = (n > 0).then(|| compared(ScalarOp::Ge, start));
        let before = (n + 1 < parts.len()).then(|| compared(ScalarOp::Lt, end));
        let mask = match (behind, before) {
            (Some(x), Some(y)) => Some(b.op(ScalarOp::And, &[x, y])),
            (x, y) => x.or(y),
        };
        let v = b.push(def.dtype, InstKind::Load { buf: part.source, index: at, mask });
        let v = b.cast(v, def.dtype.compute());
        value = Some(match (value, before) {
            (Some(rest), Some(before)) => b.select(before, v, rest),
            _ => v,
        });
    }
    let value = value.map_or(Val(0), |v| b.cast(v, def.dtype));
    DefKind::Loop { insts: b.finish(), value }
}

/// What a definition was before.
struct Before {
    kind: DefKind,
    realized: bool,
    strides: Shape,
    place: Option<Place>,
}

impl Before {
    fn restore(self, defs: &mut Defs, id: BufId) {
        let def = defs.get_mut(id);
        (def.kind, def.realized, def.strides, def.place) =
            (self.kind, self.realized, self.strides, self.place);
    }
}

fn replace(defs: &mut Defs, id: BufId, kind: DefKind, strides: Shape, place: Option<Place>) -> Before {
    let def = defs.get_mut(id);
    Before {
        kind: std::mem::replace(&mut def.kind, kind),
        realized: std::mem::replace(&mut def.realized, true),
        strides: std::mem::replace(&mut def.strides, strides),
        place: std::mem::replace(&mut def.place, place),
    }
}

fn relocate(defs: &mut Defs, id: BufId, strides: Shape, place: Option<Place>) -> (Shape, Option<Place>) {
    let def = defs.get_mut(id);
    (std::mem::replace(&mut def.strides, strides), std::mem::replace(&mut def.place, place))
}
