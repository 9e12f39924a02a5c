//! The invariants that every program must satisfy before a backend may compile it. A program that passes cannot make a
//! backend index a table out of bounds or mix dtypes, and every load and store at an index from data is proved or checked
//! to be within its buffer (guards on sizes ensure that for indices made of loop variables and sizes).
//!
//! 1. Buffers: as many strides as sizes, whose products have few terms (as those of indices and strides); shapes use declared size symbols only; a view's root exists and is not a view.
//! 2. Inputs and constants: number n of the list is the buffer of storage `Input(n)` or `Constant(n)`.
//! 3. Outputs: an existing buffer, whose memory is an output, input, constant or persistent one.
//! 4. Bodies: values are made before they are used (also inside indices, where they are integers); loop variables and
//!    symbols exist; an index has the rank of its buffer; dtypes follow the operators' rules; masks are `bool`.
//! 5. Reductions: accumulators exist, take values of their dtype, have a position exactly where they keep one, and are read by
//!    later stages only. Scans are in stages with a loop. `template` is in epilogues only, reductions and scans never are.
//! 6. Stores never go to inputs or constants, but for views of inputs that are declared written; what else these demand
//!    is listed in `written`.
//! 7. Templates: operands have the rank of the output (convolutions: and of their window).
//! 8. Control flow: conditions are one `bool`, what `bind` reads one integer; nesting has a limit. Symbols that steps bind
//!    (`unbacked`) are used only where they are bound: after the `bind` in the same list of steps or one inside of it,
//!    after a `cond` whose branches both bind them, and in the body of the `for`. Shapes of inputs, constants and persistent buffers use none of them.
//! 9. Groups of concurrent steps: at least one member, loops and templates only; what one of them writes none of the others reads or writes,
//!    views of the same memory included.
//! 10. Checks of indices: `i64`, of a site that the program has. Loads and stores at indices from data: `indices` proves them to
//!     be inside of their buffers, with the checks' help, unless the program says `unchecked_indices`. Guards use symbols of inputs alone.
//! 11. The plan: every arena buffer that is used has a place, aligned and inside of the arena; offsets come with the arena's bytes; buffers that live at once do not
//!     overlap.

use ir_core::{Arena, Atom, DType, EntityId, SymExpr};
use thiserror::Error;

use crate::{
    ALIGN, AccDecl, Along, BufId, Dequant, ExternCall, ExternOp, Fourier, Groups, Inst, InstKind, Matmul,
    Operand, Program, ScalarOp, Step, Storage, Val, is_length,
};

/// Which invariant is broken, and where.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{place}: {what}")]
pub struct VerifyError {
    /// ``kernel `add_relu`, stage 0, v3`` or ``buffer b4 `x` ``.
    pub place: String,
    /// What is wrong.
    pub what: String,
}

type Result<T = ()> = std::result::Result<T, VerifyError>;

/// Checks all invariants; the first that is broken is the error.
pub fn verify(program: &Program) -> Result {
    guards(program)?;
    buffers(program)?;
    signature(program)?;
    let mut scope = Scope::new(program);
    program.init.iter().try_for_each(|step| scope.step(step, 0))?;
    program.steps.iter().try_for_each(|step| scope.step(step, 0))?;
    for o in &program.outputs {
        let place = || format!("output `{}`", o.name);
        o.sizes.iter().chain(&o.strides).chain([&o.offset]).try_for_each(|e| scope.bound(e, &place))?;
    }
    plan(program)?;
    crate::indices::verify(program)?;
    match crate::written::hazards(program).into_iter().next() {
        Some(hazard) => fail(hazard.place, format!("{} (input {})", hazard.what, hazard.input)),
        None => Ok(()),
    }
}

fn fail<T>(place: impl Into<String>, what: impl Into<String>) -> Result<T> {
    Err(VerifyError { place: place.into(), what: what.into() })
}

fn ensure(ok: bool, place: &dyn Fn() -> String, what: &str) -> Result {
    if ok { Ok(()) } else { fail(place(), what) }
}

/// Whether an expression uses nothing but declared size symbols.
fn is_size(program: &Program, e: &SymExpr) -> bool {
    !e.any_leaf(|a| match a {
        Atom::Sym(id) => id.index() >= program.symbols.len(),
        _ => true,
    })
}

/// Most terms of a product that addressing multiplies out; real ones have fewer than ten.
const MAX_TERMS: usize = 1024;

/// Whether the expanded product of both stays small: addresses and spans are such products, and a few hundred bytes of
/// hostile sums would take minutes.
fn multiplies(a: &SymExpr, b: &SymExpr) -> bool {
    let terms = |e: &SymExpr| if e.as_const().is_some() { 1 } else { e.terms().0.len() + 1 };
    terms(a).saturating_mul(terms(b)) <= MAX_TERMS
}

fn guards(program: &Program) -> Result {
    let unbacked = |a: &Atom| program.symbols.is_unbacked(a);
    program.guards.iter().enumerate().try_for_each(|(n, g)| {
        let given = is_size(program, &g.expression) && !g.expression.any_leaf(unbacked);
        let what = "its expression uses something that is not the size of an input";
        ensure(given, &|| format!("guard {n} `{}`", g.message), what)
    })
}

fn buffers(program: &Program) -> Result {
    for (id, b) in program.buffers.iter() {
        let place = || format!("buffer {id} `{}`", b.name);
        ensure(b.sizes.len() == b.strides.len(), &place, "it has not as many strides as sizes")?;
        let sized = b.sizes.iter().chain(&b.strides).chain([&b.offset]).all(|e| is_size(program, e));
        ensure(sized, &place, "its shape uses something that is not a declared size symbol")?;
        let small = b.sizes.iter().zip(&b.strides).all(|(size, stride)| multiplies(size, stride));
        ensure(small, &place, "the product of a size and its stride has too many terms")?;
        let given = matches!(b.storage, Storage::Input(_) | Storage::Constant(_) | Storage::Persistent);
        ensure(!(given && program.is_dynamic(id)), &place, "its shape uses a symbol that a step binds")?;
        if let Storage::View(of) = b.storage {
            let root = program.buffers.get(of);
            let plain = root.is_some_and(|r| !matches!(r.storage, Storage::View(_)));
            ensure(plain, &place, "it is a view of no buffer, or of a view")?;
        }
    }
    Ok(())
}

fn signature(program: &Program) -> Result {
    let numbered = |what: &str, n: usize, name: &str, buf: BufId, storage: Storage| {
        let place = || format!("{what} {n} `{name}`");
        let buffer = program.buffers.get(buf);
        ensure(
            buffer.is_some_and(|b| b.storage == storage),
            &place,
            "its buffer is not the one of this number",
        )
    };
    for (n, i) in program.inputs.iter().enumerate() {
        numbered("input", n, &i.name, i.buf, Storage::Input(n as u32))?;
    }
    for (n, c) in program.constants.iter().enumerate() {
        numbered("constant", n, &c.name, c.buf, Storage::Constant(n as u32))?;
    }
    for (id, b) in program.buffers.iter() {
        let listed = match b.storage {
            Storage::Input(n) => program.inputs.get(n as usize).map(|i| i.buf),
            Storage::Constant(n) => program.constants.get(n as usize).map(|c| c.buf),
            _ => Some(id),
        };
        ensure(
            listed == Some(id),
            &|| format!("buffer {id} `{}`", b.name),
            "no input or constant has its number",
        )?;
    }
    for o in &program.outputs {
        let place = || format!("output `{}`", o.name);
        let root = program.buffers.get(o.buf).map(|_| &program.buffers[program.root(o.buf)].storage);
        let kept = root.is_some_and(|s| !matches!(s, Storage::Arena | Storage::View(_)));
        ensure(kept, &place, "its buffer does not exist or does not outlive the call")?;
        let sized = o.sizes.iter().chain(&o.strides).chain([&o.offset]).all(|e| is_size(program, e));
        ensure(sized && o.sizes.len() == o.strides.len(), &place, "its shape is not valid")?;
    }
    Ok(())
}

/// Deepest nesting of control flow.
pub(crate) const MAX_DEPTH: usize = 32;

/// The symbols that have a value at a step.
struct Scope<'a> {
    program: &'a Program,
    known: Vec<bool>,
}

impl<'a> Scope<'a> {
    fn new(program: &'a Program) -> Scope<'a> {
        Scope { program, known: program.symbols.values().map(|s| !s.unbacked).collect() }
    }

    fn bound(&self, e: &SymExpr, place: &dyn Fn() -> String) -> Result {
        let unknown = |a: &Atom| matches!(a, Atom::Sym(id) if self.known.get(id.index()) == Some(&false));
        ensure(!e.any_leaf(unknown), place, &format!("`{e}` uses a symbol that no step has bound"))
    }

    /// Checks a step and its nested steps; afterwards the symbol of a `bind` is known.
    fn step(&mut self, step: &Step, depth: usize) -> Result {
        let place = || format!("step `{}`", step.name());
        ensure(depth < MAX_DEPTH, &place, &format!("control flow is nested more than {MAX_DEPTH} deep"))?;
        self::step(self.program, step)?;
        self.shapes(step, &place)?;
        match step {
            Step::Bind(b) => {
                self.single(&b.from, |d| d.is_integral(), &place)?;
                self.steps_symbol(b.symbol, &place)?;
                self.known[b.symbol.index()] = true;
            }
            Step::Assert(a) => self.truth(&a.pred, &place)?,
            Step::Cond(c) => {
                self.truth(&c.pred, &place)?;
                let then = self.list(&c.then, depth)?;
                let otherwise = self.list(&c.otherwise, depth)?;
                let both = then.iter().zip(&otherwise).map(|(a, b)| *a && *b);
                self.known = both.collect();
            }
            Step::For(f) => {
                self.steps_symbol(f.symbol, &place)?;
                ensure(
                    is_size(self.program, &f.count),
                    &place,
                    "its count is not made of declared size symbols",
                )?;
                self.bound(&f.count, &place)?;
                let before = std::mem::replace(&mut self.known[f.symbol.index()], true);
                self.list(&f.body, depth)?;
                self.known[f.symbol.index()] = before;
            }
            Step::While(w) => {
                self.truth(&w.pred, &place)?;
                self.list(&w.cond, depth)?;
                self.list(&w.body, depth)?;
            }
            Step::Together(t) => {
                self.list(&t.steps, depth)?;
                if let Some(what) = t.fault(self.program) {
                    return fail(place(), what);
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Checks steps whose symbols are not visible outside; returns those that are known at their end.
    fn list(&mut self, steps: &[Step], depth: usize) -> Result<Vec<bool>> {
        let before = self.known.clone();
        steps.iter().try_for_each(|s| self.step(s, depth + 1))?;
        Ok(std::mem::replace(&mut self.known, before))
    }

    fn truth(&self, o: &Operand, place: &dyn Fn() -> String) -> Result {
        self.single(o, |d| d == DType::Bool, place)
    }

    fn single(&self, o: &Operand, fits: impl Fn(DType) -> bool, place: &dyn Fn() -> String) -> Result {
        let one = o.sizes.iter().all(|s| *s == SymExpr::ONE);
        // `operands` has looked at the buffer.
        ensure(one && fits(self.program.buffers[o.buf].dtype), place, "it reads no single number of its kind")
    }

    fn steps_symbol(&self, id: ir_core::SymId, place: &dyn Fn() -> String) -> Result {
        let unbacked = self.program.symbols.get(id).is_some_and(|s| s.unbacked);
        ensure(unbacked, place, "its symbol is not declared, or not as unbacked")
    }

    /// The step's own shapes, indices and buffers use known symbols.
    fn shapes(&self, step: &Step, place: &dyn Fn() -> String) -> Result {
        for o in step.operands().into_iter().chain(step.results()) {
            self.buffer(o.buf, place)?;
            o.sizes.iter().chain(&o.strides).chain([&o.offset]).try_for_each(|e| self.bound(e, place))?;
        }
        for (extents, insts) in step.bodies() {
            extents.iter().try_for_each(|e| self.bound(e, place))?;
            for inst in insts {
                match &inst.kind {
                    InstKind::Index(e) | InstKind::Check { size: e, .. } => self.bound(e, place)?,
                    InstKind::Load { buf, index, .. } | InstKind::Store { buf, index, .. } => {
                        self.buffer(*buf, place)?;
                        index.iter().try_for_each(|e| self.bound(e, place))?;
                    }
                    _ => {}
                }
            }
        }
        Ok(())
    }

    fn buffer(&self, buf: BufId, place: &dyn Fn() -> String) -> Result {
        let b = &self.program.buffers[buf];
        b.sizes.iter().chain(&b.strides).chain([&b.offset]).try_for_each(|e| self.bound(e, place))
    }
}

/// A body and what it may refer to.
struct Body<'a> {
    program: &'a Program,
    kernel: &'a str,
    number: usize,
    loops: usize,
    inner: usize,
    insts: &'a [Inst],
    accs: &'a [AccDecl],
    /// Accumulators of earlier stages.
    ready: &'a [bool],
    epilogue: bool,
}

fn step(program: &Program, step: &Step) -> Result {
    let name = step.name();
    let place = || format!("kernel `{name}`");
    for (number, (extents, insts)) in step.bodies().into_iter().enumerate() {
        let sized = extents.iter().all(|e| is_size(program, e));
        ensure(sized, &place, "a loop's extent uses something that is not a declared size symbol")?;
        let (mut accs, mut ready, mut inner): (&[AccDecl], Vec<bool>, usize) = (&[], Vec::new(), 0);
        if let Step::Loop(k) = step {
            accs = &k.accs;
            ready = ready_before(k.accs.len(), &k.stages[..number]);
            inner = k.stages[number].inner.len();
        }
        let epilogue = !matches!(step, Step::Loop(_));
        let loops = extents.len();
        let body = Body { program, kernel: name, number, loops, inner, insts, accs, ready: &ready, epilogue };
        body.check()?;
        let stores = insts.iter().any(|i| matches!(i.kind, InstKind::Store { .. }));
        ensure(!epilogue || stores, &place, "its epilogue stores nothing")?;
    }
    operands(program, step)
}

/// Which accumulators the given stages reduce into.
fn ready_before(accs: usize, stages: &[crate::Stage]) -> Vec<bool> {
    let mut ready = vec![false; accs];
    for inst in stages.iter().flat_map(|s| &s.insts) {
        if let InstKind::Reduce { acc, .. } = inst.kind
            && let Some(slot) = ready.get_mut(acc.0 as usize)
        {
            *slot = true;
        }
    }
    ready
}

fn operands(program: &Program, step: &Step) -> Result {
    let place = || format!("kernel `{}`", step.name());
    let valid = |o: &Operand| {
        program.buffers.get(o.buf).is_some()
            && o.sizes.len() == o.strides.len()
            && o.sizes.iter().chain(&o.strides).chain([&o.offset]).all(|e| is_size(program, e))
    };
    for o in step.results() {
        ensure(valid(o) && is_writable(program, o.buf), &place, "it writes an input or constant")?;
    }
    ensure(step.operands().into_iter().all(valid), &place, "an operand's buffer or shape is not valid")?;
    let rank = |o: &Operand, n: usize| ensure(o.sizes.len() == n, &place, "an operand has the wrong rank");
    match step {
        Step::Loop(_) => Ok(()),
        Step::Matmul(m) => {
            let n = m.epilogue.ranges.len();
            ensure(n >= 2, &place, "a product has at least two dimensions")?;
            zero_point(program, step, &m.a, m.zero, &place)?;
            if let Some(g) = &m.groups {
                return groups(program, m, g, &place);
            }
            rank(&m.a, n)?;
            rank(&m.b, n)?;
            m.dequant.iter().try_for_each(|d| quantized_weights(program, m, d, &place))
        }
        Step::Conv(c) => {
            let n = c.epilogue.ranges.len();
            let spatial = [c.stride.len(), c.padding.len(), c.dilation.len()];
            ensure((3..=5).contains(&n), &place, "a convolution has one to three spatial dimensions")?;
            ensure(
                spatial.iter().all(|s| s + 2 == n),
                &place,
                "its window has another rank than its output",
            )?;
            let positive = c.groups > 0 && c.stride.iter().chain(&c.dilation).all(|s| *s > 0);
            ensure(positive, &place, "groups, steps and dilations are at least 1")?;
            zero_point(program, step, &c.input, c.zero, &place)?;
            rank(&c.input, n)?;
            rank(&c.weight, n)
        }
        Step::Attention(a) => {
            ensure(a.epilogue.ranges.len() == 4, &place, "attention has four dimensions")?;
            [&a.q, &a.k, &a.v].into_iter().chain(&a.mask).try_for_each(|o| rank(o, 4))?;
            a.dropout.iter().try_for_each(|d| kept(program, &d.kept, &place))?;
            a.sums.iter().try_for_each(|o| {
                ensure(program.buffers[o.buf].dtype == a.acc, &place, "its sums have another dtype")?;
                rank(o, 3)
            })
        }
        Step::Extern(
            call @ ExternCall { op: ExternOp::AttentionBackward { dropout, .. }, inputs, outputs, .. },
        ) => {
            let most = 7 + usize::from(dropout.is_some());
            let count = (most - 1..=most).contains(&inputs.len()) && outputs.len() == 3;
            ensure(
                count,
                &place,
                "an attention's backward takes six tensors, one more with a mask, one more with dropout, and gives three",
            )?;
            call.mask_and_dropout().1.iter().try_for_each(|d| kept(program, &d.kept, &place))?;
            let ranks = [4, 4, 4, 4, 3, 3, 4, 4].into_iter();
            inputs.iter().zip(ranks).chain(outputs.iter().zip([4; 3])).try_for_each(|(o, n)| rank(o, n))
        }
        Step::Extern(ExternCall { op: ExternOp::Linalg { op, .. }, inputs, outputs, .. }) => ensure(
            (inputs.len(), outputs.len()) == op.arity(),
            &place,
            "a matrix routine has another number of operands",
        ),
        Step::Extern(k @ ExternCall { op: ExternOp::Fourier { .. }, .. }) => fourier(program, k, &place),
        Step::Extern(ExternCall { op: ExternOp::MaskTable(_), .. }) => {
            ensure(false, &place, "a table of a mask is added by a backend")
        }
        Step::Extern(k @ ExternCall { op: ExternOp::Collective(_) | ExternOp::Wait, .. }) => {
            exchange(program, k, &place)
        }
        Step::Extern(k) => {
            let one = |o: &Operand| o.sizes.len() == k.inputs.first().map_or(0, |i| i.sizes.len());
            ensure(
                k.inputs.len() == 1 && k.outputs.len() == 2,
                &place,
                "sort takes one tensor and gives two",
            )?;
            ensure(k.outputs.iter().all(one), &place, "an operand has the wrong rank")
        }
        Step::Bind(_)
        | Step::Assert(_)
        | Step::Cond(_)
        | Step::For(_)
        | Step::While(_)
        | Step::Together(_) => Ok(()),
    }
}

/// The words of a dropout are `i32`, one for 32 keys.
fn kept(program: &Program, words: &Operand, place: &dyn Fn() -> String) -> Result {
    ensure(program.buffers[words.buf].dtype == DType::I32, place, "the kept weights are bits of `i32`")?;
    ensure(words.sizes.len() == 4, place, "an operand has the wrong rank")
}

/// A zero point belongs to an integer product and is a number of its first operand's dtype.
fn zero_point(program: &Program, step: &Step, of: &Operand, zero: i64, place: &dyn Fn() -> String) -> Result {
    let range = if program.buffers[of.buf].dtype == DType::U8 { 0..=255 } else { -128..=127 };
    let fits = zero == 0 || crate::is_integer_product(program, step) && range.contains(&zero);
    ensure(fits, place, "its zero point is no number of its first operand's dtype")
}

/// Quantized weights are one matrix of 8-bit integers, whose factors and zero points are those of groups of rows of equal length.
fn quantized_weights(program: &Program, m: &Matmul, d: &Dequant, place: &dyn Fn() -> String) -> Result {
    let dtype = |o: &Operand| program.buffers[o.buf].dtype;
    let numbers = matches!(dtype(&m.b), DType::I8 | DType::U8)
        && dtype(&m.a).is_float()
        && dtype(&m.a).compute() == DType::F32;
    ensure(
        numbers && m.acc == DType::F32,
        place,
        "quantized weights are 8-bit integers, and their sums `f32`",
    )?;
    let lead = m.b.sizes.len() - 2;
    let one = (0..lead).all(|i| m.b.strides[i] == SymExpr::ZERO || m.b.sizes[i] == SymExpr::ONE);
    ensure(one, place, "quantized weights are one matrix for all batch entries")?;
    let [k, n] = [&m.b.sizes[lead], &m.b.sizes[lead + 1]];
    for o in d.operands() {
        let groups = o.sizes.first().and_then(SymExpr::as_const).filter(|g| *g > 0);
        let divides = groups.zip(k.as_const()).is_some_and(|(g, k)| k % g == 0);
        let fits = o.sizes.len() == 2 && o.sizes[1] == *n && o.sizes == d.factor.sizes && divides;
        ensure(fits, place, "its factors are not those of whole groups of rows")?;
        ensure(dtype(o) == DType::F32, place, "its factors and zero points are `f32`")?;
    }
    Ok(())
}

/// Groups divide the rows or the depth of a product of floats without a batch; their number is that of the matrices.
fn groups(program: &Program, m: &Matmul, g: &Groups, place: &dyn Fn() -> String) -> Result {
    let dtype = |o: &Operand| program.buffers[o.buf].dtype;
    let float = dtype(&m.a).is_float() && m.acc == dtype(&m.a).compute();
    let float = float && dtype(&m.a) == dtype(&m.b) && m.dequant.is_none();
    ensure(float, place, "groups are those of a product of floats of one dtype")?;
    let ends = matches!(dtype(&g.ends), DType::I32 | DType::I64) && g.ends.sizes.len() == 1;
    ensure(
        ends && g.count().is_some(),
        place,
        "its groups' ends are not a list of `i32` or `i64` of known length",
    )?;
    let ranges = &m.epilogue.ranges[..];
    let fits = match (g.along, &m.a.sizes[..], &m.b.sizes[..]) {
        (Along::Rows, [_, _], [matrices, _, _]) => ranges.len() == 2 && *matrices == g.ends.sizes[0],
        (Along::Depth, [_, _], [_, _]) => ranges.len() == 3 && ranges[0] == g.ends.sizes[0],
        _ => false,
    };
    ensure(fits, place, "its operands are not those of a product by groups")
}

/// A Fourier transform is of lines of a permitted length, between tensors that fit each other, in `f32` or `f64`.
fn fourier(program: &Program, k: &ExternCall, place: &dyn Fn() -> String) -> Result {
    let Some(lines) = Fourier::of(k) else {
        return ensure(false, place, "its operands are not those of a Fourier transform");
    };
    ensure(is_length(lines.length), place, "a Fourier transform has another length than steps may have")?;
    let dtype = |o: &Operand| program.buffers[o.buf].dtype;
    let own = dtype(lines.from.0);
    let one = k.inputs.iter().chain(&k.outputs).all(|o| dtype(o) == own);
    ensure(one && matches!(own, DType::F32 | DType::F64), place, "a Fourier transform is in `f32` or `f64`")
}

/// An exchange, or the wait for one: one operand and one result of a dtype, whose ranks differ by the dimension of blocks.
fn exchange(program: &Program, k: &ExternCall, place: &dyn Fn() -> String) -> Result {
    let ([input], [output]) = (&k.inputs[..], &k.outputs[..]) else {
        return ensure(false, place, "an exchange takes one tensor and gives one");
    };
    let dtype = |o: &Operand| program.buffers[o.buf].dtype;
    ensure(dtype(input) == dtype(output), place, "an exchange does not change the dtype")?;
    ensure(program.root(input.buf) != program.root(output.buf), place, "an exchange is not in place")?;
    let ExternOp::Collective(c) = &k.op else { return Ok(()) };
    let (takes, gives) = c.op.blocks();
    let blocks = |o: &Operand, many: bool| o.sizes.len().checked_sub(usize::from(many));
    let (from, to) = (blocks(input, takes), blocks(output, gives));
    ensure(from.is_some() && from == to, place, "an exchange takes and gives blocks of one shape")?;
    let (from, to) = (&input.sizes[usize::from(takes)..], &output.sizes[usize::from(gives)..]);
    ensure(from == to, place, "an exchange takes and gives blocks of one shape")
}

fn is_writable(program: &Program, buf: BufId) -> bool {
    match program.buffers[program.root(buf)].storage {
        // The input's own buffer holds its old value.
        Storage::Input(_) => program.root(buf) != buf && program.written_input(buf).is_some(),
        Storage::Constant(_) => false,
        _ => true,
    }
}

impl Body<'_> {
    fn check(&self) -> Result {
        for (n, inst) in self.insts.iter().enumerate() {
            let place = || format!("kernel `{}`, stage {}, v{n}", self.kernel, self.number);
            let mut before = true;
            inst.kind.for_each_val(&mut |v| before &= (v.0 as usize) < n);
            ensure(before, &place, "it uses a value that is not made before it")?;
            self.inst(inst, &place)?;
        }
        Ok(())
    }

    fn dtype(&self, v: Val) -> DType {
        self.insts[v.0 as usize].dtype
    }

    /// Atoms of an index or index value.
    fn expr(&self, e: &SymExpr, place: &dyn Fn() -> String) -> Result {
        let mut ok = true;
        e.for_each_leaf(&mut |a| {
            ok &= match a {
                Atom::Sym(id) => id.index() < self.program.symbols.len(),
                Atom::Loop(v) => (*v as usize) < self.loops,
                Atom::Value(v) => self.insts.get(*v as usize).is_some_and(|i| i.dtype.is_integral()),
                _ => true,
            }
        });
        ensure(ok, place, "an index uses an unknown loop variable or symbol, or a value that is no integer")
    }

    fn access(
        &self,
        inst: &Inst,
        buf: BufId,
        index: &[SymExpr],
        mask: Option<Val>,
        place: &dyn Fn() -> String,
    ) -> Result {
        let Some(buffer) = self.program.buffers.get(buf) else { return fail(place(), "it uses no buffer") };
        ensure(index.len() == buffer.sizes.len(), place, "the index has another rank than the buffer")?;
        ensure(inst.dtype == buffer.dtype, place, "the buffer has another dtype")?;
        ensure(mask.is_none_or(|m| self.dtype(m) == DType::Bool), place, "the mask is not bool")?;
        let small = index.iter().zip(&buffer.strides).all(|(i, stride)| multiplies(i, stride));
        ensure(small, place, "the product of an index and its stride has too many terms")?;
        index.iter().try_for_each(|e| self.expr(e, place))
    }

    fn inst(&self, inst: &Inst, place: &dyn Fn() -> String) -> Result {
        match &inst.kind {
            InstKind::Const(c) => ensure(
                c.class() <= inst.dtype.class(),
                place,
                "the constant is of a higher class than its dtype",
            ),
            InstKind::Index(e) => {
                ensure(inst.dtype == DType::I64, place, "an index value is i64")?;
                self.expr(e, place)
            }
            InstKind::Load { buf, index, mask } => self.access(inst, *buf, index, *mask, place),
            InstKind::Store { buf, index, value, mask, mode } => {
                self.access(inst, *buf, index, *mask, place)?;
                ensure(is_writable(self.program, *buf), place, "it writes an input or constant")?;
                ensure(self.dtype(*value) == inst.dtype, place, "the value has another dtype")?;
                let combines = !matches!(mode, crate::StoreMode::Reduce(op) if op.combine().is_none());
                ensure(combines, place, "a store cannot combine by position")
            }
            InstKind::Op { op, args } => {
                let dtypes: Vec<DType> = args.iter().map(|v| self.dtype(*v)).collect();
                let fits = op.result_dtype(&dtypes) == Some(inst.dtype);
                let operand = dtypes.last().copied().unwrap_or(inst.dtype);
                ensure(
                    fits && takes(*op, operand),
                    place,
                    &format!("`{}` does not take {dtypes:?}", op.name()),
                )
            }
            InstKind::Check { value, size, mask, site } => {
                let fits = inst.dtype == DType::I64 && self.dtype(*value) == DType::I64;
                ensure(fits, place, "a checked index is i64")?;
                ensure(mask.is_none_or(|m| self.dtype(m) == DType::Bool), place, "the mask is not bool")?;
                let known = (*site as usize) < self.program.sites.len();
                ensure(known, place, "the check names a site that the program does not have")?;
                self.expr(size, place)
            }
            InstKind::Cast(_) => Ok(()),
            InstKind::Bitcast(v) => {
                ensure(self.dtype(*v).size() == inst.dtype.size(), place, "the dtypes differ in size")
            }
            InstKind::Reduce { acc, value, position } => self.reduce(acc.0, *value, *position, place),
            InstKind::Acc(acc) => {
                let decl = self.accs.get(acc.0 as usize);
                let dtype = decl.map(|d| if d.op.combine().is_none() { DType::I64 } else { d.dtype });
                ensure(
                    dtype == Some(inst.dtype),
                    place,
                    "the accumulator does not exist or has another dtype",
                )?;
                ensure(self.ready[acc.0 as usize], place, "no earlier stage reduces into the accumulator")
            }
            InstKind::Scan { op, value } => {
                ensure(op.combine().is_some(), place, "a scan cannot keep positions")?;
                ensure(self.inner > 0, place, "a scan stands in a stage without a loop")?;
                ensure(self.dtype(*value) == inst.dtype, place, "the value has another dtype")
            }
            InstKind::Template => ensure(self.epilogue, place, "`template` stands outside of an epilogue"),
        }
    }

    fn reduce(&self, acc: u32, value: Val, position: Option<Val>, place: &dyn Fn() -> String) -> Result {
        let Some(decl) = self.accs.get(acc as usize) else {
            return fail(place(), "the accumulator does not exist");
        };
        ensure(!self.ready[acc as usize], place, "two stages reduce into one accumulator")?;
        ensure(self.dtype(value) == decl.dtype, place, "the value has another dtype than the accumulator")?;
        let keeps = decl.op.combine().is_none();
        ensure(
            position.is_some() == keeps,
            place,
            "a position belongs to argmax and argmin, and only there",
        )?;
        ensure(position.is_none_or(|p| self.dtype(p) == DType::I64), place, "the position is not i64")
    }
}

/// Whether an operator is defined for operands of this dtype (of the branches for `select`).
pub fn takes(op: ScalarOp, dtype: DType) -> bool {
    use ScalarOp as O;
    match op {
        O::And | O::Or | O::Xor | O::Not => dtype.is_integral(),
        O::Shl | O::Shr => dtype.is_int(),
        O::Philox => dtype == DType::I64,
        O::Atan2
        | O::CopySign
        | O::NextAfter
        | O::Rsqrt
        | O::Exp2
        | O::Expm1
        | O::Log2
        | O::Log10
        | O::Log1p => dtype.is_inexact(),
        O::Sqrt | O::Exp | O::Log | O::Sin | O::Cos | O::Tan | O::Asin | O::Acos | O::Atan => {
            dtype.is_inexact()
        }
        O::Sinh | O::Cosh | O::Tanh | O::Asinh | O::Acosh | O::Atanh => dtype.is_inexact(),
        O::Erf | O::Erfc | O::Erfinv | O::Lgamma | O::Digamma => dtype.is_float(),
        O::ChebyshevT
        | O::ChebyshevU
        | O::ChebyshevV
        | O::ChebyshevW
        | O::HermiteH
        | O::HermiteHe
        | O::LaguerreL
        | O::LegendreP
        | O::Igamma
        | O::Igammac => dtype.is_float(),
        _ => true,
    }
}

fn plan(program: &Program) -> Result {
    let plan = &program.plan;
    let place = || "the plan".to_owned();
    let mut live: Arena<BufId, Option<(u32, u32)>> = program.buffers.ids().map(|_| None).collect();
    for l in &plan.lives {
        let arena = program.buffers.get(l.buf).is_some_and(|b| b.storage == Storage::Arena);
        ensure(!(arena && program.is_dynamic(l.buf)), &place, "it places a buffer whose size a step tells")?;
        ensure(arena && l.first <= l.last, &place, "it places something that is no arena buffer")?;
        live[l.buf] = Some((l.first, l.last));
    }
    for l in &plan.dynamic {
        let arena = program.buffers.get(l.buf).is_some_and(|b| b.storage == Storage::Arena);
        ensure(
            arena && l.first <= l.last && program.is_dynamic(l.buf),
            &place,
            "it lists a buffer as dynamic that is none",
        )?;
        live[l.buf] = Some((l.first, l.last));
    }
    for (n, step) in program.steps.iter().enumerate() {
        let (reads, writes) = step.accesses();
        for root in reads.into_iter().chain(writes).map(|b| program.root(b)) {
            if program.buffers[root].storage == Storage::Arena {
                let covered = live[root].is_some_and(|(first, last)| (first..=last).contains(&(n as u32)));
                ensure(
                    covered,
                    &place,
                    &format!("buffer {root} is used by step {n}, where it does not live"),
                )?;
            }
        }
    }
    let (offsets, bytes) = match (&plan.offsets, plan.bytes) {
        (Some(offsets), Some(bytes)) => (offsets, bytes),
        (None, None) => return Ok(()),
        _ => return fail(place(), "it has offsets without a size, or a size without offsets"),
    };
    ensure(offsets.len() == plan.lives.len(), &place, "it has not one offset for each buffer")?;
    placed(program, offsets, bytes)
}

/// Static offsets: within the arena, aligned, and disjoint from buffers that live at the same time.
fn placed(program: &Program, offsets: &[u64], bytes: u64) -> Result {
    let place = || "the plan".to_owned();
    let lives = &program.plan.lives;
    let mut ends = Vec::new();
    for (l, &at) in lives.iter().zip(offsets) {
        let b = &program.buffers[l.buf];
        let Some(span) = b.span().as_const() else { return fail(place(), "offsets without known sizes") };
        let end = u64::try_from(span.max(0))
            .ok()
            .and_then(|n| n.checked_mul(b.dtype.size() as u64))
            .and_then(|n| n.checked_add(at));
        let inside = at.is_multiple_of(ALIGN) && end.is_some_and(|e| e <= bytes);
        ensure(inside, &place, &format!("buffer {} lies outside of the arena or is not aligned", l.buf))?;
        ends.push(end.unwrap_or(at));
    }
    // By offset, so that only neighbours in memory are compared.
    let mut order: Vec<usize> = (0..lives.len()).filter(|i| ends[*i] > offsets[*i]).collect();
    order.sort_by_key(|i| offsets[*i]);
    for (k, &i) in order.iter().enumerate() {
        for &j in order[k + 1..].iter().take_while(|j| offsets[**j] < ends[i]) {
            let apart = lives[i].last < lives[j].first || lives[j].last < lives[i].first;
            ensure(apart, &place, &format!("buffers {} and {} overlap", lives[i].buf, lives[j].buf))?;
        }
    }
    Ok(())
}
