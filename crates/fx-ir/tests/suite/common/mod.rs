//! Random graphs for property tests: every kind of node, argument, type and output, from a seed. They are graphs by
//! form only; the operators' names mean nothing.

use fx_ir::{Arg, Graph, InputKind, Output, OutputKind, SubgraphId, Symbol, ValueId, ValueType};
use ir_core::{
    DType, Device, EntityId, Layout, MemoryFormat, Origin, Precision, Precisions, Scalar, SymExpr, SymId,
    TensorMeta,
};

/// A small generator (xorshift64*), so that a seed names a case for ever.
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Rng {
        Rng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
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
    pub(crate) fn pick<T: Clone>(&mut self, items: &[T]) -> T {
        items[self.below(items.len())].clone()
    }
}

const NAMES: &[&str] = &["x", "conv2d", "add_1", "add", "a b", "", "%", "\"q\"", "layer1.0.w", "ü\n", "?3"];

pub(crate) fn graph(rng: &mut Rng, depth: usize) -> Graph {
    let mut g = Graph::new(rng.pick(NAMES));
    if depth == 0 {
        for n in 0..3 {
            let max = rng.pick(&[None, Some(64 + n)]);
            let hint = rng.pick(&[None, Some(8)]);
            let unbacked = rng.below(2) == 0;
            g.add_symbol(Symbol { name: rng.pick(NAMES).into(), min: n, max, hint, unbacked });
        }
    }
    if depth < 2 {
        for _ in 0..rng.below(3) {
            let sub = graph(rng, depth + 1);
            g.subgraphs.push(sub);
        }
    }
    for n in 0..rng.below(5) {
        let kind = rng.pick(&[
            InputKind::User,
            InputKind::Parameter,
            InputKind::Buffer { persistent: true },
            InputKind::Buffer { persistent: false },
            InputKind::Constant,
        ]);
        let (name, ty) = (rng.pick(NAMES), ty(rng));
        g.placeholder(kind, format!("in{n}"), name, ty);
    }
    for _ in 0..rng.below(12) {
        let args = (0..rng.below(5)).map(|_| arg(rng, &g, 0)).collect();
        let names: Vec<&str> = (0..rng.below(4)).map(|_| rng.pick(NAMES)).collect();
        let outputs: Vec<_> = names.into_iter().map(|n| (n, ty(rng))).collect();
        let origin = origin(rng);
        let origin = g.add_origin(origin);
        let target =
            rng.pick(&["aten.add.Tensor", "from", "symbol", "odd target(", "prims.mul", "input", "t"]);
        g.call(target, args, outputs, origin);
    }
    for n in 0..rng.below(4) {
        let kind = rng.pick(&[
            OutputKind::User,
            OutputKind::Loss,
            OutputKind::Saved,
            OutputKind::BufferMutation(format!("b{n}")),
            OutputKind::InputMutation("a \"b\"".into()),
            OutputKind::ParameterGradient("w".into()),
            OutputKind::InputGradient("x".into()),
        ]);
        let arg = arg(rng, &g, 0);
        g.outputs.push(Output { kind, arg });
    }
    // Some nodes are erased, as passes do; nothing else may read their values.
    let dead: Vec<_> =
        g.order.iter().copied().filter(|&n| !is_read(&g, n)).filter(|_| rng.below(4) == 0).collect();
    g.order.retain(|n| !dead.contains(n));
    g
}

fn is_read(g: &Graph, node: fx_ir::NodeId) -> bool {
    let uses = fx_ir::Uses::of(g);
    g.nodes[node].outputs.iter().any(|&v| !uses.is_dead(v))
}

fn origin(rng: &mut Rng) -> Origin {
    let source = rng.pick(&[None, Some("net.py:12 in forward, x = \"y\"".to_string())]);
    let operator = rng.pick(&["", "aten.index.Tensor"]).to_string();
    let cuda = rng.pick(&[None, None, Some(Precision::Full), Some(Precision::Lower(DType::BF16))]);
    let cpu = rng.pick(&[None, None, Some(Precision::Lower(DType::F16))]);
    let precisions = Precisions { cpu, cuda };
    Origin { module: rng.pick(NAMES).into(), function: rng.pick(NAMES).into(), source, operator, precisions }
}

pub(crate) fn expr(rng: &mut Rng) -> SymExpr {
    let s = SymExpr::sym(SymId(rng.below(3) as u32));
    let t = SymExpr::sym(SymId(rng.below(3) as u32));
    let c = rng.below(7) as i64 - 2;
    match rng.below(8) {
        0 | 1 => SymExpr::from_i64(c),
        2 => s,
        3 => s * 2 + t * c - 1,
        4 => (s + 3).floor_div(&SymExpr::from_i64(2)) * t,
        5 => -((s - 1).modulo(&(t + 2))),
        6 => s.sym_min(&(t * 3)) + 1,
        _ => s.clone() * s.sym_max(&t),
    }
}

pub(crate) fn meta(rng: &mut Rng) -> TensorMeta {
    let mut meta = TensorMeta::contiguous(
        rng.pick(DType::ALL),
        (0..rng.below(4)).map(|_| expr(rng)).collect::<Vec<_>>(),
    );
    if rng.below(3) == 0 {
        meta.strides.reverse();
    }
    if rng.below(4) == 0 {
        meta.offset = expr(rng);
    }
    if rng.below(4) == 0 {
        meta.device = device(rng);
    }
    meta
}

fn device(rng: &mut Rng) -> Device {
    rng.pick(&["cpu", "cuda:1", "meta", "cuda", "my-npu:3"]).parse().expect("a device")
}

fn ty(rng: &mut Rng) -> ValueType {
    match rng.below(8) {
        0 => ValueType::Int(expr(rng)),
        1 => ValueType::Float,
        2 => ValueType::Bool,
        3 => ValueType::None,
        _ => ValueType::Tensor(meta(rng)),
    }
}

fn arg(rng: &mut Rng, g: &Graph, depth: usize) -> Arg {
    let floats = [0.5, -0.0, 1e300, 1e-7, 3.0, f64::INFINITY, f64::NEG_INFINITY, f64::NAN, -f64::NAN];
    match rng.below(14) {
        0 => Arg::None,
        1 | 2 if !g.values.is_empty() => Arg::Value(ValueId::from_index(rng.below(g.values.len()))),
        3 => Arg::Int(expr(rng)),
        4 => Arg::int(rng.pick(&[0, -1, i64::MIN, i64::MAX])),
        5 => Arg::Scalar(Scalar::Float(rng.pick(&floats))),
        6 => Arg::Scalar(Scalar::Complex(rng.pick(&floats), rng.pick(&floats))),
        7 => Arg::Scalar(Scalar::Bool(rng.below(2) == 0)),
        8 => Arg::Str(rng.pick(NAMES).into()),
        9 => Arg::DType(rng.pick(DType::ALL)),
        10 => Arg::Device(device(rng)),
        11 => rng.pick(&[
            Arg::Layout(Layout::Strided),
            Arg::Layout(Layout::Sparse),
            Arg::Layout(Layout::Other),
            Arg::MemoryFormat(MemoryFormat::Contiguous),
            Arg::MemoryFormat(MemoryFormat::Preserve),
            Arg::MemoryFormat(MemoryFormat::ChannelsLast),
            Arg::MemoryFormat(MemoryFormat::ChannelsLast3d),
        ]),
        12 if !g.subgraphs.is_empty() => Arg::Graph(SubgraphId::from_index(rng.below(g.subgraphs.len()))),
        _ if depth < 3 => Arg::List((0..rng.below(4)).map(|_| arg(rng, g, depth + 1)).collect()),
        _ => Arg::Scalar(Scalar::Int(7)),
    }
}
