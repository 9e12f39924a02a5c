//! Random graphs of prims, a function of a seed. A graph is grown value by value: each step takes values that are there
//! (recent ones more often) and calls an operator that fits them; what an operator refuses is left out.

use fx_ir::{Arg, Graph, InputKind, NodeKind, OriginId, Output, OutputKind, Symbol, ValueId, ValueType};
use ir_core::{DType, Shape, SymExpr, TensorMeta};
use prims::{Builder, OpError};

use super::data;
use super::rng::Rng;

/// Larger values are not made: the oracle is slow.
const MAX_NUMEL: i64 = 3000;
/// But now and then, so that work is spread over threads.
const MANY: i64 = 30_000;

/// Sizes that symbols have while a graph grows: no other size, so nothing broadcasts by chance.
const PRIMES: [i64; 3] = [11, 13, 19];

/// A graph and the symbol values to run it at.
pub struct Case {
    pub graph: Graph,
    pub symbols: Vec<Vec<i64>>,
}

/// A value that steps may take.
#[derive(Clone, Copy)]
pub struct Known {
    pub id: ValueId,
    /// The same in every precision and order of evaluation, so that comparing and rounding it is safe.
    pub exact: bool,
    /// A bound of its magnitude, roughly.
    pub size: f64,
}

/// The generator's state.
pub struct Gen {
    pub rng: Rng,
    pub graph: Graph,
    pub known: Vec<Known>,
    /// Sizes to choose from.
    dims: Vec<SymExpr>,
    symbols: Vec<i64>,
    named: usize,
    /// Element type of most values.
    pub float: DType,
    pub allow_nan: bool,
    /// Elements of the largest value that is kept.
    most: i64,
    /// Whether indices may be out of range.
    wild: bool,
    /// Whether the graph is of operators whose values share memory alone.
    pub sharing: bool,
    /// Values that must be returned: what looks up indices that may be out of range is not left out then.
    returned: Vec<ValueId>,
}

/// The case of a seed, with sizes of at most `limit`; `sharing`: of operators whose values share memory alone.
pub fn case(seed: u64, limit: usize, sharing: bool) -> Case {
    let mut g = Gen::new(seed, limit);
    g.sharing = sharing;
    // Every symbol is the size of an input.
    for n in 0..g.symbols.len() {
        let (float, size) = (g.float, g.dims[n].clone());
        g.input(float, &[size], "");
    }
    for _ in 0..1 + g.rng.below(3) {
        let rank = *g.rng.pick(&[0, 1, 2, 2, 3, 3, 4, 4]);
        g.input_of_rank(rank);
    }
    let steps = *g.rng.pick(&[2, 4, 6, 8, 12, 18, 30]);
    for _ in 0..steps {
        // A refusal is not a failure: another operator comes next.
        let _refused = super::ops::step(&mut g);
    }
    if g.known.is_empty() {
        g.input_of_rank(0);
    }
    g.finish(limit)
}

impl Gen {
    fn new(seed: u64, limit: usize) -> Gen {
        let mut rng = Rng::new(seed);
        let mut graph = Graph::new(format!("seed_{seed}"));
        let mut dims: Vec<SymExpr> = Vec::new();
        for _ in 0..4 {
            let size = *rng.pick(&[1, 2, 2, 3, 4, 5, 7, 8, 8, 16, 17, 33]);
            dims.push(SymExpr::from_i64((size as i64).min(limit.min(99) as i64)));
        }
        if rng.one_in(25) {
            dims.push(SymExpr::ZERO);
        }
        let mut symbols = Vec::new();
        let count = if rng.one_in(2) { 0 } else { 1 + rng.below(PRIMES.len()) };
        for (n, prime) in PRIMES.into_iter().take(count).enumerate() {
            let symbol =
                Symbol { name: format!("n{n}"), min: 0, max: Some(64), hint: Some(prime), unbacked: false };
            dims[n] = SymExpr::sym(graph.add_symbol(symbol));
            symbols.push(prime);
        }
        let most = if limit > 99 && rng.one_in(40) { MANY } else { MAX_NUMEL };
        if most == MANY {
            dims.extend([64.into(), 100.into(), 128.into()]);
        }
        let others = [DType::F64, DType::BF16, DType::F16];
        let float = if rng.one_in(4) { *rng.pick(&others) } else { DType::F32 };
        let allow_nan = rng.one_in(12);
        let wild = rng.one_in(8);
        let (known, returned) = (Vec::new(), Vec::new());
        let sharing = false;
        Gen { rng, graph, known, dims, symbols, named: 0, float, allow_nan, most, wild, sharing, returned }
    }

    /// Any of the case's sizes.
    pub fn dim(&mut self) -> SymExpr {
        self.rng.pick(&self.dims).clone()
    }
    pub fn meta(&self, v: ValueId) -> &TensorMeta {
        self.graph.meta(v).expect("only tensors are known")
    }
    pub fn sizes(&self, v: ValueId) -> Shape {
        self.meta(v).sizes.clone()
    }
    pub fn rank(&self, v: ValueId) -> usize {
        self.meta(v).rank()
    }
    pub fn dtype(&self, v: ValueId) -> DType {
        self.meta(v).dtype
    }
    /// A size in numbers.
    pub fn number(&self, e: &SymExpr) -> i64 {
        data::at(e, &self.symbols)
    }
    pub fn numel(&self, sizes: &[SymExpr]) -> i64 {
        sizes.iter().fold(1, |n, s| n.saturating_mul(self.number(s)))
    }
    pub fn builder(&mut self, name: &str) -> Builder<'_> {
        Builder::new(&mut self.graph, name, OriginId(0))
    }

    /// A value that fits, recent ones more often.
    pub fn find(&mut self, fits: impl Fn(&Gen, &Known) -> bool) -> Option<Known> {
        let all: Vec<Known> = self.known.iter().filter(|k| fits(self, k)).copied().collect();
        if all.is_empty() {
            return None;
        }
        let recent = if self.rng.one_in(2) { all.len().min(3) } else { all.len() };
        Some(all[all.len() - 1 - self.rng.below(recent)])
    }
    /// A float value of at least this rank, small enough to compute with.
    pub fn float(&mut self, rank: usize) -> Result<Known, OpError> {
        let found = self.find(|g, k| g.dtype(k.id).is_float() && g.rank(k.id) >= rank);
        let k = match found {
            Some(k) => k,
            None => self.input_of_rank(rank.max(1)),
        };
        if k.size <= 30.0 {
            return Ok(k);
        }
        let factor = 1.0 / k.size;
        let id = self.builder("scaled").call1("aten.mul.Scalar", vec![k.id.into(), factor.into()])?;
        Ok(self.learn(id, false, 1.0))
    }
    /// Makes a result known.
    pub fn learn(&mut self, id: ValueId, exact: bool, size: f64) -> Known {
        let k = Known { id, exact, size };
        let meta = self.meta(id);
        if self.numel(&meta.sizes.clone()) <= self.most {
            self.known.push(k);
        }
        k
    }
    /// Calls an operator with one result.
    pub fn call(&mut self, target: &str, args: Vec<Arg>, exact: bool, size: f64) -> Result<Known, OpError> {
        let name = target.split('.').nth(1).unwrap_or("v").to_owned();
        let id = self.builder(&name).call1(target, args)?;
        Ok(self.learn(id, exact, size))
    }

    /// An `i64` value that is used as an index into a dimension of this size: an input, within `0..bound` or, in wild cases,
    /// now and then outside.
    pub fn index(&mut self, sizes: &[SymExpr], bound: i64) -> Known {
        let kind = if self.wild { "wild" } else { "lt" };
        self.input(DType::I64, sizes, &format!("_{kind}{bound}"))
    }
    /// What a lookup gave: in wild cases it is returned.
    pub fn looked_up(&mut self, result: Known) -> Known {
        if self.wild {
            self.returned.push(result.id);
        }
        result
    }

    fn input_of_rank(&mut self, rank: usize) -> Known {
        let mut sizes = Shape::new();
        for _ in 0..rank {
            let d = self.dim();
            let fits = self.numel(&sizes).saturating_mul(self.number(&d)) <= self.most / 2;
            sizes.push(if fits { d } else { 2.into() });
        }
        let float = self.float;
        self.input(float, &sizes, "")
    }
    /// An input or weight; `suffix` says what its data is.
    pub fn input(&mut self, dtype: DType, sizes: &[SymExpr], suffix: &str) -> Known {
        let fixed = sizes.iter().all(|s| s.as_const().is_some());
        let weight = fixed && self.rng.one_in(3);
        let nan = self.allow_nan && dtype.is_float() && self.rng.one_in(2);
        let prefix = if nan { "nan" } else { "x" };
        let name = format!("{prefix}{}{suffix}", self.named);
        self.named += 1;
        let mut meta = TensorMeta::contiguous(dtype, sizes.iter().cloned());
        if self.rng.one_in(6) {
            meta.strides = self.shuffled_strides(sizes);
        }
        let kind = match weight {
            true if self.rng.one_in(3) => InputKind::Buffer { persistent: true },
            true => InputKind::Parameter,
            false => InputKind::User,
        };
        let id = self.graph.placeholder(kind, name.clone(), &name, ValueType::Tensor(meta));
        self.learn(id, true, if dtype.is_float() { 1.5 } else { 8.0 })
    }
    fn shuffled_strides(&mut self, sizes: &[SymExpr]) -> Shape {
        let order = self.rng.permutation(sizes.len());
        let permuted: Shape = order.iter().map(|d| sizes[*d].clone()).collect();
        let mut strides: Shape = sizes.to_vec().into();
        for (stride, d) in ir_core::contiguous_strides(&permuted).into_iter().zip(order) {
            strides[d] = stride;
        }
        strides
    }

    fn finish(mut self, limit: usize) -> Case {
        let count = 1 + self.rng.below(4);
        for n in 0..count {
            // The last value is always returned: most of the graph hangs on it.
            let at = if n == 0 { self.known.len() - 1 } else { self.rng.below(self.known.len()) };
            let v = self.known[at].id;
            let plain = matches!(self.graph.nodes[self.graph.values[v].def].kind, NodeKind::Call { .. });
            if plain && self.rng.one_in(5) {
                let strides = self.shuffled_strides(&self.sizes(v));
                if let ValueType::Tensor(meta) = &mut self.graph.values[v].ty {
                    meta.strides = strides;
                }
            }
            self.graph.outputs.push(Output { kind: OutputKind::User, arg: Arg::Value(v) });
        }
        for v in std::mem::take(&mut self.returned) {
            self.graph.outputs.push(Output { kind: OutputKind::User, arg: Arg::Value(v) });
        }
        self.write_buffer();
        let nodes = &self.graph.nodes;
        self.graph.order.sort_by_key(|id| !matches!(nodes[*id].kind, NodeKind::Placeholder { .. }));
        prims::scalars::eliminate_dead(&mut self.graph);
        let symbols = self.assignments(limit);
        Case { graph: fx_ir::text::canonical(&self.graph), symbols }
    }
    /// Values of the symbols: those of the graph's growth, some that are 0, 1 or equal, and large ones.
    fn assignments(&mut self, limit: usize) -> Vec<Vec<i64>> {
        if self.symbols.is_empty() {
            return vec![vec![]];
        }
        let mut list = vec![self.symbols.clone()];
        let most = limit.min(64) as i64;
        for _ in 0..4 {
            let all = *self.rng.pick(&[0, 1, 2, 3, 5, 16, 17]);
            let same = self.rng.one_in(2);
            let mut value = |_: &i64| {
                let own = *self.rng.pick(&[0, 1, 2, 5, 16, 17]);
                (if same { all } else { own }).min(most)
            };
            list.push(self.symbols.iter().map(&mut value).collect());
        }
        list
    }
    /// Sometimes a buffer gets a new value.
    fn write_buffer(&mut self) {
        let buffers: Vec<(ValueId, String)> = self
            .graph
            .inputs()
            .filter(|(_, kind, _)| matches!(kind, InputKind::Buffer { .. }))
            .map(|(v, _, name)| (v, name.to_owned()))
            .collect();
        let Some((buffer, name)) = buffers.first().cloned() else { return };
        let same = |g: &Gen, k: &Known| {
            let (a, b) = (g.meta(k.id), g.meta(buffer));
            k.id != buffer && a.dtype == b.dtype && a.sizes == b.sizes
        };
        if let Some(k) = self.find(same) {
            self.graph.outputs.push(Output { kind: OutputKind::BufferMutation(name), arg: Arg::Value(k.id) });
        }
    }
}
