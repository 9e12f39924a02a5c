//! Random well-formed programs for property tests: every storage, kernel, instruction, number and kind of plan, from a
//! seed. They pass `verify`; their kernels mean nothing.

#![allow(dead_code)] // not every test file uses all of it

use ir_core::{DType, EntityId, Guard, Origin, Relation, Scalar, Shape, SymExpr, SymId};
use kernel_ir::{
    AccDecl, AccId, ArenaPlan, Attention, BufId, Buffer, Collective, CollectiveOp, Combine, Const, Conv,
    Dropout, Epilogue, ExternCall, ExternOp, Footprint, InputSpec, Inst, InstKind, LinalgOp, LoopKernel,
    Matmul, Operand, OutputSpec, Program, ReduceOp, ScalarOp, Site, Stage, Step, Storage, StoreMode, Symbol,
    Together, Val, takes,
};

/// A small generator (xorshift64*), so that a seed names a case for ever.
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Rng {
        Rng(seed.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }
    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
    pub(crate) fn below(&mut self, n: usize) -> usize {
        ((self.next() >> 33) as usize) % n
    }
    pub(crate) fn flip(&mut self) -> bool {
        self.below(2) == 0
    }
    pub(crate) fn pick<T: Clone>(&mut self, items: &[T]) -> T {
        items[self.below(items.len())].clone()
    }
}

const NAMES: &[&str] = &[
    "x",
    "layer1.0.w",
    "",
    "a b",
    "\"q\"",
    "back\\slash",
    "ü\n\t\r",
    "\0\u{1b}\u{85}\u{2028}",
    "# no",
    "v0:",
];

const FLOATS: &[f64] = &[
    0.0,
    -0.0,
    1.0,
    0.1,
    -1e-5,
    1e300,
    f64::MIN_POSITIVE,
    5e-324,
    f64::MAX,
    f64::EPSILON,
    f64::INFINITY,
    f64::NEG_INFINITY,
    f64::NAN,
];

fn name(rng: &mut Rng) -> String {
    rng.pick(NAMES).to_string()
}

fn float(rng: &mut Rng) -> f64 {
    match rng.below(4) {
        // Any bits, `NaN`s with a payload and a sign among them.
        0 => f64::from_bits(rng.next()),
        1 => -f64::NAN,
        _ => rng.pick(FLOATS),
    }
}

/// A number of a class that `dtype` takes.
fn scalar(rng: &mut Rng, dtype: DType) -> Scalar {
    let int = rng.pick(&[0, 1, -1, 7, i64::MAX, i64::MIN]);
    let numbers = [
        Scalar::Bool(rng.flip()),
        Scalar::Int(int),
        Scalar::Float(float(rng)),
        Scalar::Complex(float(rng), float(rng)),
    ];
    let fits: Vec<Scalar> = numbers.into_iter().filter(|n| n.class() <= dtype.class()).collect();
    rng.pick(&fits)
}

/// An expression over `leaves`; where `deep`, with divisions and extrema.
fn expr(rng: &mut Rng, leaves: &[SymExpr], deep: bool) -> SymExpr {
    let mut e = if leaves.is_empty() { SymExpr::from_i64(3) } else { rng.pick(leaves) };
    for _ in 0..rng.below(if deep { 5 } else { 2 }) {
        let other = if leaves.is_empty() || rng.flip() {
            SymExpr::from_i64(rng.pick(&[1, 2, -3, 64, 1 << 40]))
        } else {
            rng.pick(leaves)
        };
        e = match rng.below(7) {
            0 | 1 => e + &other,
            2 => e * &other,
            3 => e - &other,
            4 => e.floor_div(&other),
            5 => e.modulo(&other),
            _ if rng.flip() => e.sym_min(&other),
            _ => e.sym_max(&other),
        };
    }
    e
}

fn sizes(rng: &mut Rng, program: &Program, rank: usize) -> Shape {
    let symbols: Vec<SymExpr> = program.symbols.ids().map(SymExpr::sym).collect();
    (0..rank)
        .map(|_| if rng.flip() { (rng.below(5) as i64).into() } else { expr(rng, &symbols, true) })
        .collect()
}

fn offset(rng: &mut Rng, program: &Program) -> SymExpr {
    let symbols: Vec<SymExpr> = program.symbols.ids().map(SymExpr::sym).collect();
    if rng.flip() { SymExpr::ZERO } else { expr(rng, &symbols, true) - 5 }
}

/// A program that passes `verify`.
pub(crate) fn program(rng: &mut Rng) -> Program {
    let mut p = Program { name: name(rng), ..Program::default() };
    for n in 0..rng.below(3) {
        let (max, hint) = (rng.pick(&[None, Some(64), Some(i64::MAX)]), rng.pick(&[None, Some(-1), Some(8)]));
        p.symbols.push(Symbol { name: name(rng), min: n as i64 - 1, max, hint, unbacked: false });
    }
    claims(rng, &mut p);
    for _ in 0..2 + rng.below(10) {
        buffer(rng, &mut p);
    }
    // At least one buffer that may be written.
    buffer_of(rng, &mut p, Storage::Output);
    for _ in 0..rng.below(3) {
        let kept: Vec<BufId> =
            p.buffers.ids().filter(|b| p.buffers[p.root(*b)].storage != Storage::Arena).collect();
        let Operand { sizes, strides, offset, .. } = operand(rng, &p, 3);
        p.outputs.push(OutputSpec { name: name(rng), buf: rng.pick(&kept), sizes, strides, offset });
    }
    p.init = (0..rng.below(2)).map(|_| step(rng, &p)).collect();
    p.steps = (0..rng.below(6)).map(|_| step(rng, &p)).collect();
    if rng.flip() {
        p.steps.extend(together(rng, &p));
    }
    // Indices from data are checked, or somebody answers for them.
    p.unchecked_indices = rng.below(3) == 0;
    kernel_ir::guard_indices(&mut p);
    p.plan = ArenaPlan::of(&p);
    if rng.below(4) == 0 {
        (p.plan.offsets, p.plan.bytes) = (None, None);
    }
    p
}

/// Guards on sizes and sites of checks.
fn claims(rng: &mut Rng, p: &mut Program) {
    let symbols: Vec<SymExpr> = p.symbols.ids().map(SymExpr::sym).collect();
    for _ in 0..rng.below(3) {
        let (expression, relation) = (expr(rng, &symbols, true), rng.pick(&Relation::ALL));
        let (module, function, operator) = (name(rng), name(rng), name(rng));
        let source = rng.flip().then(|| name(rng));
        let origin = if rng.flip() {
            Origin { module, function, source, operator, ..Origin::default() }
        } else {
            Origin::default()
        };
        p.guards.push(Guard { expression, relation, origin, message: name(rng) });
    }
    for dim in 0..rng.below(3) as u32 {
        let constant = rng.flip().then_some(dim);
        p.sites.push(Site { operator: name(rng), origin: name(rng), dim, wraps: rng.flip(), constant });
    }
}

fn buffer(rng: &mut Rng, p: &mut Program) {
    let roots: Vec<BufId> =
        p.buffers.iter().filter(|(_, b)| !matches!(b.storage, Storage::View(_))).map(|(id, _)| id).collect();
    let storage = match rng.below(7) {
        0 => Storage::Input(p.inputs.len() as u32),
        1 => Storage::Constant(p.constants.len() as u32),
        2 => Storage::Persistent,
        3 => Storage::Output,
        4 if !roots.is_empty() => Storage::View(rng.pick(&roots)),
        _ => Storage::Arena,
    };
    buffer_of(rng, p, storage);
}

fn buffer_of(rng: &mut Rng, p: &mut Program, storage: Storage) {
    let rank = rng.below(4);
    // Arena buffers of known size get an offset of the plan, the others none.
    let (sizes, strides, offset) = match storage {
        Storage::Arena if rng.below(8) > 0 => {
            let small = |rng: &mut Rng| (0..rank).map(|_| SymExpr::from_i64(rng.below(9) as i64)).collect();
            (small(rng), small(rng), SymExpr::ZERO)
        }
        _ => (sizes(rng, p, rank), sizes(rng, p, rank), offset(rng, p)),
    };
    let buf = p.buffers.next_id();
    match storage {
        Storage::Input(_) => p.inputs.push(InputSpec { name: name(rng), buf, written: rng.below(3) == 0 }),
        Storage::Constant(_) => {
            let range = rng.pick(&[None, Some((-4, 3)), Some((i64::MIN, 0))]);
            p.constants.push(Const { name: name(rng), buf, range });
        }
        _ => {}
    }
    let dtype = rng.pick(DType::ALL);
    p.buffers.push(Buffer { name: name(rng), dtype, sizes, strides, offset, storage });
}

fn operand(rng: &mut Rng, p: &Program, rank: usize) -> Operand {
    let buf = BufId::from_index(rng.below(p.buffers.len()));
    Operand { buf, sizes: sizes(rng, p, rank), strides: sizes(rng, p, rank), offset: offset(rng, p) }
}

/// The words of a dropout, where a buffer may be these.
fn words(rng: &mut Rng, p: &Program) -> Option<Operand> {
    let buf = p.buffers.ids().find(|b| p.buffers[*b].dtype == DType::I32)?;
    Some(Operand { buf, ..operand(rng, p, 4) })
}

fn writable(p: &Program) -> Vec<BufId> {
    let fixed = |b: BufId| matches!(p.buffers[p.root(b)].storage, Storage::Input(_) | Storage::Constant(_));
    p.buffers.ids().filter(|b| !fixed(*b)).collect()
}

fn step(rng: &mut Rng, p: &Program) -> Step {
    let kernel = name(rng);
    let origins: Vec<String> = (0..rng.below(3)).map(|_| name(rng)).collect();
    let acc = rng.pick(DType::ALL);
    match rng.below(6) {
        0 => {
            let rank = 2 + rng.below(3);
            let (a, b) = (operand(rng, p, rank), operand(rng, p, rank));
            Step::Matmul(Matmul {
                name: kernel,
                origins,
                a,
                b,
                acc,
                zero: 0,
                dequant: None,
                groups: None,
                epilogue: epilogue(rng, p, rank),
            })
        }
        1 => {
            let n = 1 + rng.below(3);
            let window = |rng: &mut Rng| (0..n).map(|_| 1 + rng.below(3) as i64).collect::<Vec<i64>>();
            let pads =
                |rng: &mut Rng| (0..n).map(|_| (rng.below(9) as i64 - 4, rng.below(3) as i64)).collect();
            Step::Conv(Conv {
                name: kernel,
                origins,
                input: operand(rng, p, n + 2),
                weight: operand(rng, p, n + 2),
                stride: window(rng),
                padding: pads(rng),
                dilation: window(rng),
                groups: 1 + rng.below(4) as i64,
                transposed: rng.flip(),
                acc,
                zero: 0,
                epilogue: epilogue(rng, p, n + 2),
            })
        }
        2 => {
            let (q, k, v) = (operand(rng, p, 4), operand(rng, p, 4), operand(rng, p, 4));
            let mask = rng.flip().then(|| operand(rng, p, 4));
            let (causal, scale, epilogue) = (rng.flip(), float(rng), epilogue(rng, p, 4));
            let sums = |rng: &mut Rng, buf: BufId| Operand { buf, ..operand(rng, p, 3) };
            let same = writable(p).into_iter().find(|b| p.buffers[*b].dtype == acc);
            let sums = same.filter(|_| rng.flip()).map(|buf| sums(rng, buf));
            let kept = words(rng, p).filter(|_| rng.flip());
            let factor = float(rng);
            let attention = Attention {
                name: kernel,
                origins,
                q,
                k,
                v,
                mask,
                sums,
                dropout: kept.map(|kept| Dropout { kept, factor }),
                visibility: None,
                causal,
                scale,
                acc,
                epilogue,
            };
            Step::Attention(attention)
        }
        3 if rng.below(3) == 0 => {
            let (causal, scale) = (rng.flip(), float(rng));
            let kept = words(rng, p).filter(|_| rng.flip());
            let dropout = kept.is_some().then(|| float(rng));
            let op = ExternOp::AttentionBackward { causal, scale, dropout, visibility: None };
            let ranks = [4, 4, 4, 4, 3, 3, 4];
            let mut inputs: Vec<Operand> =
                ranks.into_iter().take(6 + rng.below(2)).map(|n| operand(rng, p, n)).collect();
            inputs.extend(kept);
            let out = |rng: &mut Rng| Operand { buf: rng.pick(&writable(p)), ..operand(rng, p, 4) };
            let outputs = (0..3).map(|_| out(rng)).collect();
            Step::Extern(ExternCall { name: kernel, origins, op, inputs, outputs })
        }
        3 if rng.below(4) == 0 => exchange(rng, p, kernel, origins),
        3 if rng.below(4) == 0 => fourier(rng, p, kernel, origins),
        3 => {
            let rank = rng.below(4);
            let out = |rng: &mut Rng| Operand { buf: rng.pick(&writable(p)), ..operand(rng, p, rank) };
            let sort = ExternOp::Sort { dim: rng.below(4) as u32, descending: rng.flip() };
            let names = ["lu", "solve", "svd", "cholesky_solve", "pinv", "matrix_exp"];
            let routine = LinalgOp::from_name(rng.pick(&names), |_| rng.flip());
            let (op, (ins, outs)) = match routine.filter(|_| rng.flip()) {
                Some(op) => (ExternOp::Linalg { op, complex: rng.flip() }, op.arity()),
                None => (sort, (1, 2)),
            };
            let inputs = (0..ins).map(|_| operand(rng, p, rank)).collect();
            let outputs = (0..outs).map(|_| out(rng)).collect();
            Step::Extern(ExternCall { name: kernel, origins, op, inputs, outputs })
        }
        _ => Step::Loop(loop_kernel(rng, p, kernel, origins)),
    }
}

/// An exchange of one element, between buffers of one dtype; a sort where there are none.
fn exchange(rng: &mut Rng, p: &Program, kernel: String, origins: Vec<String>) -> Step {
    let ops = [
        CollectiveOp::AllReduce(rng.pick(&Combine::ALL)),
        CollectiveOp::Broadcast { root: rng.below(9) as u32 },
        CollectiveOp::Shift { by: rng.below(9) as i32 - 4, wraps: rng.flip() },
    ];
    let op = match rng.below(4) {
        0 => ExternOp::Wait,
        _ => ExternOp::Collective(Collective {
            op: rng.pick(&ops),
            group: name(rng),
            asynchronous: rng.flip(),
        }),
    };
    let input = operand(rng, p, 0);
    let fits =
        |b: &BufId| p.root(*b) != p.root(input.buf) && p.buffers[*b].dtype == p.buffers[input.buf].dtype;
    match writable(p).into_iter().find(fits) {
        Some(buf) => {
            let outputs = vec![Operand { buf, ..operand(rng, p, 0) }];
            Step::Extern(ExternCall { name: kernel, origins, op, inputs: vec![input], outputs })
        }
        None => Step::Loop(loop_kernel(rng, p, kernel, origins)),
    }
}

/// A Fourier transform of one element; an exchange where there are no buffers for it.
fn fourier(rng: &mut Rng, p: &Program, kernel: String, origins: Vec<String>) -> Step {
    let floats: Vec<BufId> = p.buffers.ids().filter(|b| p.buffers[*b].dtype == DType::F32).collect();
    let written: Vec<BufId> = writable(p).into_iter().filter(|b| floats.contains(b)).collect();
    if written.is_empty() {
        return exchange(rng, p, kernel, origins);
    }
    let one = |buf: BufId| {
        let (sizes, strides) = ([SymExpr::ONE].into_iter().collect(), [SymExpr::ONE].into_iter().collect());
        Operand { buf, sizes, strides, offset: SymExpr::ZERO }
    };
    let (ins, outs) = rng.pick(&[(2, 2), (1, 2), (2, 1)]);
    let op = ExternOp::Fourier { dim: 0, forward: rng.flip(), scale: float(rng) };
    let inputs = (0..ins).map(|_| one(rng.pick(&floats))).collect();
    let outputs = (0..outs).map(|_| one(rng.pick(&written))).collect();
    Step::Extern(ExternCall { name: kernel, origins, op, inputs, outputs })
}

/// Those of a few random steps that may run at once.
fn together(rng: &mut Rng, p: &Program) -> Option<Step> {
    let (mut steps, mut used) = (Vec::new(), Footprint::default());
    for _ in 0..4 {
        let step = step(rng, p);
        let own = Footprint::of(p, &step);
        if !matches!(step, Step::Extern(_)) && own.clash(&used).is_none() {
            used.extend(&own);
            steps.push(step);
        }
    }
    (!steps.is_empty()).then(|| Step::Together(Together { name: name(rng), steps }))
}

fn epilogue(rng: &mut Rng, p: &Program, rank: usize) -> Epilogue {
    let mut body =
        Body { p, loops: rank, inner: 0, accs: &[], ready: &[], epilogue: true, insts: Vec::new() };
    body.fill(rng);
    body.store(rng);
    let insts = body.insts;
    Epilogue { ranges: sizes(rng, p, rank), insts }
}

fn loop_kernel(rng: &mut Rng, p: &Program, name: String, origins: Vec<String>) -> LoopKernel {
    let accs: Vec<AccDecl> = (0..rng.below(3))
        .map(|_| AccDecl { op: rng.pick(ReduceOp::ALL), dtype: rng.pick(DType::ALL) })
        .collect();
    let rank = rng.below(3);
    let mut kernel = LoopKernel { name, origins, outer: sizes(rng, p, rank), accs, stages: Vec::new() };
    let mut ready: Vec<bool> = kernel.accs.iter().map(|_| false).collect();
    for _ in 0..rng.below(4) {
        let inner = rng.below(3);
        let accs = &kernel.accs;
        let mut body =
            Body { p, loops: rank + inner, inner, accs, ready: &ready, epilogue: false, insts: Vec::new() };
        body.fill(rng);
        let mut reduced = ready.clone();
        for (n, done) in reduced.iter_mut().enumerate() {
            if !*done && rng.flip() {
                body.reduce(rng, n);
                *done = true;
            }
        }
        let insts = body.insts;
        ready = reduced;
        kernel.stages.push(Stage { inner: sizes(rng, p, inner), insts });
    }
    kernel
}

/// A body under construction.
struct Body<'a> {
    p: &'a Program,
    loops: usize,
    inner: usize,
    accs: &'a [AccDecl],
    ready: &'a [bool],
    epilogue: bool,
    insts: Vec<Inst>,
}

impl Body<'_> {
    fn push(&mut self, dtype: DType, kind: InstKind) -> Val {
        self.insts.push(Inst { dtype, kind });
        Val(self.insts.len() as u32 - 1)
    }
    /// A value of this dtype: one that is there, or a new constant.
    fn value(&mut self, rng: &mut Rng, dtype: DType) -> Val {
        let there: Vec<u32> =
            (0..self.insts.len() as u32).filter(|v| self.insts[*v as usize].dtype == dtype).collect();
        if there.is_empty() || rng.below(8) == 0 {
            let number = scalar(rng, dtype);
            return self.push(dtype, InstKind::Const(number));
        }
        Val(rng.pick(&there))
    }
    fn index(&self, rng: &mut Rng, rank: usize) -> Shape {
        let mut leaves: Vec<SymExpr> = (0..self.loops as u32).map(SymExpr::loop_var).collect();
        leaves.extend(self.p.symbols.ids().map(|s: SymId| SymExpr::sym(s)));
        let ints = self.insts.iter().enumerate().filter(|(_, i)| i.dtype.is_integral());
        leaves.extend(ints.map(|(v, _)| SymExpr::value(v as u32)));
        (0..rank).map(|_| expr(rng, &leaves, true)).collect()
    }
    fn mask(&mut self, rng: &mut Rng) -> Option<Val> {
        if rng.flip() { Some(self.value(rng, DType::Bool)) } else { None }
    }
    fn store(&mut self, rng: &mut Rng) {
        let buf = rng.pick(&writable(self.p));
        let (dtype, rank) = (self.p.buffers[buf].dtype, self.p.buffers[buf].sizes.len());
        let (value, mask) = (self.value(rng, dtype), self.mask(rng));
        let index = self.index(rng, rank);
        let combines: Vec<ReduceOp> =
            ReduceOp::ALL.iter().copied().filter(|op| op.combine().is_some()).collect();
        let mode = match rng.below(3) {
            0 => StoreMode::Write,
            1 => StoreMode::Add,
            _ => StoreMode::Reduce(rng.pick(&combines)),
        };
        self.push(dtype, InstKind::Store { buf, index, value, mask, mode });
    }
    fn reduce(&mut self, rng: &mut Rng, acc: usize) {
        let AccDecl { op, dtype } = self.accs[acc];
        let value = self.value(rng, dtype);
        let position = if op.combine().is_none() { Some(self.value(rng, DType::I64)) } else { None };
        self.push(dtype, InstKind::Reduce { acc: AccId(acc as u32), value, position });
    }
    fn op(&mut self, rng: &mut Rng) {
        let op = rng.pick(ScalarOp::ALL);
        let dtypes: Vec<DType> = DType::ALL.iter().copied().filter(|d| takes(op, *d)).collect();
        let dtype = rng.pick(&dtypes);
        let mut args: Vec<Val> = (0..op.arity()).map(|_| self.value(rng, dtype)).collect();
        if op == ScalarOp::Select {
            args[0] = self.value(rng, DType::Bool);
        }
        let dtypes: Vec<DType> = args.iter().map(|v| self.insts[v.0 as usize].dtype).collect();
        if let Some(dtype) = op.result_dtype(&dtypes) {
            self.push(dtype, InstKind::Op { op, args: args.into() });
        }
    }
    /// A few instructions of every kind that may be here.
    fn fill(&mut self, rng: &mut Rng) {
        for _ in 0..rng.below(10) {
            let dtype = rng.pick(DType::ALL);
            match rng.below(10) {
                9 if !self.p.sites.is_empty() => {
                    let (value, mask) = (self.value(rng, DType::I64), self.mask(rng));
                    let size = self.index(rng, 1)[0].clone();
                    let site = rng.below(self.p.sites.len()) as u32;
                    self.push(DType::I64, InstKind::Check { value, size, mask, site });
                }
                0 => drop(self.value(rng, dtype)),
                1 => {
                    let e = self.index(rng, 1)[0].clone();
                    self.push(DType::I64, InstKind::Index(e));
                }
                2 => {
                    let buf = BufId::from_index(rng.below(self.p.buffers.len()));
                    let (dtype, rank) = (self.p.buffers[buf].dtype, self.p.buffers[buf].sizes.len());
                    let mask = self.mask(rng);
                    let index = self.index(rng, rank);
                    self.push(dtype, InstKind::Load { buf, index, mask });
                }
                3 => self.store(rng),
                4 => {
                    let from = rng.pick(DType::ALL);
                    let value = self.value(rng, from);
                    let bits = from.size() == dtype.size() && rng.flip();
                    self.push(dtype, if bits { InstKind::Bitcast(value) } else { InstKind::Cast(value) });
                }
                5 if self.inner > 0 => {
                    let (value, op) =
                        (self.value(rng, dtype), rng.pick(&[ReduceOp::Sum, ReduceOp::Max, ReduceOp::Xor]));
                    self.push(dtype, InstKind::Scan { op, value });
                }
                6 if self.epilogue => drop(self.push(dtype, InstKind::Template)),
                6 => {
                    let Some(n) = self.ready.iter().position(|r| *r) else { continue };
                    let AccDecl { op, dtype } = self.accs[n];
                    let dtype = if op.combine().is_none() { DType::I64 } else { dtype };
                    self.push(dtype, InstKind::Acc(AccId(n as u32)));
                }
                _ => self.op(rng),
            }
        }
    }
}
