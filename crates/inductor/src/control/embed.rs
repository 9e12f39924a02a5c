//! Embeds the program of a subgraph into the program around it: its inputs become buffers of the outer program, its own
//! buffers and symbols get fresh numbers, its init steps join the outer ones.
//!
//! While a program is emitted, buffers have the numbers of definitions; embedded buffers are numbered from there on
//! ([`Extra`]).

use fx_ir::{Graph, SubgraphId, ValueType};
use ir_core::{DType, EntityId, Shape, SymExpr, SymId, contiguous_strides};
use kernel_ir::{
    Bind, BodyBuilder, BufId, Buffer, Inst, InstKind, LoopKernel, Operand, Program, Stage, Step, Storage,
    StoreMode, Symbol,
};
use rustc_hash::{FxHashMap, FxHashSet};

use super::prepare::{PlaceholderOperand, prepare};
use crate::defs::Defs;
use crate::{InductorError, Options, Problem};

/// Buffers beyond those of definitions.
#[derive(Default)]
pub(crate) struct Extra(pub(crate) Vec<Buffer>);

/// The operand of a subgraph's placeholder.
#[derive(Clone)]
pub(super) enum SubgraphOperand {
    /// A buffer.
    Buffer(BufId),
    /// An integer.
    Int(SymExpr),
}

/// The destination of a subgraph's result.
#[derive(Clone, Copy)]
pub(super) enum Target {
    /// New memory.
    Temp,
    /// This buffer, in its strides.
    Into(BufId),
}

/// An embedded subgraph.
pub(super) struct EmbeddedSubgraph {
    pub(super) steps: Vec<Step>,
    /// The buffers of its results.
    pub(super) outputs: Vec<BufId>,
}

/// The program under construction, for control flow.
pub(crate) struct Embedder<'a> {
    pub(crate) defs: &'a Defs,
    pub(crate) graph: &'a Graph,
    pub(crate) program: &'a mut Program,
    pub(crate) extra: &'a mut Extra,
    /// Symbols that are bound around the current step, beyond those that definitions bind.
    pub(crate) loops: Vec<SymId>,
}

impl Embedder<'_> {
    fn base(&self) -> usize {
        self.defs.list.len()
    }

    /// The buffer of a number: of a definition, or an extra one.
    pub(crate) fn buffer(&self, id: BufId) -> Buffer {
        match id.index().checked_sub(self.base()) {
            Some(n) => self.extra.0[n].clone(),
            None => {
                let def = self.defs.get(id);
                Buffer {
                    name: def.name.clone(),
                    dtype: def.dtype,
                    sizes: def.sizes.clone(),
                    strides: def.strides.clone(),
                    offset: SymExpr::ZERO,
                    storage: Storage::Arena,
                }
            }
        }
    }

    pub(crate) fn push(&mut self, buffer: Buffer) -> BufId {
        self.extra.0.push(buffer);
        BufId::from_index(self.base() + self.extra.0.len() - 1)
    }

    /// A row-major temporary.
    pub(super) fn temp(&mut self, name: &str, dtype: DType, sizes: &[SymExpr]) -> BufId {
        self.push(Buffer {
            name: name.into(),
            dtype,
            sizes: sizes.iter().cloned().collect(),
            strides: contiguous_strides(sizes),
            offset: SymExpr::ZERO,
            storage: Storage::Arena,
        })
    }

    /// Entry `at` of a buffer along dimension 0.
    pub(super) fn slice(&mut self, of: BufId, at: &SymExpr) -> BufId {
        let whole = self.buffer(of);
        self.push(Buffer {
            name: format!("{}_at", whole.name),
            dtype: whole.dtype,
            sizes: whole.sizes[1..].iter().cloned().collect(),
            strides: whole.strides[1..].iter().cloned().collect(),
            offset: at * &whole.strides[0],
            storage: Storage::View(of),
        })
    }

    /// A symbol that a step binds.
    pub(super) fn symbol(&mut self, name: &str, min: i64) -> SymId {
        let name = format!("{name}{}", self.program.symbols.len());
        self.program.symbols.push(Symbol { name, min, max: None, hint: None, unbacked: true })
    }

    /// The buffer's first element as an operand.
    pub(super) fn whole(&self, buf: BufId) -> Operand {
        let b = self.buffer(buf);
        Operand { buf, sizes: b.sizes, strides: b.strides, offset: b.offset }
    }

    pub(super) fn bind(&self, symbol: SymId, from: BufId) -> Step {
        let name = self.program.symbols[symbol].name.clone();
        Step::Bind(Bind { name, symbol, from: self.whole(from) })
    }

    /// Copies all elements of one buffer into another of the same sizes.
    pub(crate) fn copy(&self, from: BufId, to: BufId) -> Step {
        let (source, target) = (self.buffer(from), self.buffer(to));
        let at: Shape = (0..target.sizes.len() as u32).map(SymExpr::loop_var).collect();
        let mut b = BodyBuilder::new();
        let v = b.load(from, source.dtype, at.clone());
        let v = b.cast(v, target.dtype);
        b.store(to, at, v, StoreMode::Write);
        self.kernel(format!("{}_copy", target.name), target.sizes, b.finish())
    }

    /// Stores one integer into a buffer without dimensions.
    pub(super) fn fill(&self, to: BufId, value: &SymExpr) -> Step {
        let target = self.buffer(to);
        let mut b = BodyBuilder::new();
        let v = b.index(value.clone());
        let v = b.cast(v, target.dtype);
        let at = target.sizes.iter().map(|_| SymExpr::ZERO).collect();
        b.store(to, at, v, StoreMode::Write);
        self.kernel(target.name, Shape::new(), b.finish())
    }

    fn kernel(&self, name: String, outer: Shape, insts: Vec<Inst>) -> Step {
        let stages = vec![Stage { inner: Shape::new(), insts }];
        Step::Loop(LoopKernel { name, origins: Vec::new(), outer, accs: Vec::new(), stages })
    }

    /// Compiles a subgraph and embeds its program; its operands and results have one entry per placeholder and result.
    pub(super) fn embed(
        &mut self,
        id: SubgraphId,
        node: fx_ir::NodeId,
        given: &[SubgraphOperand],
        targets: &[Target],
    ) -> Result<EmbeddedSubgraph, Vec<Problem>> {
        let graph = self.graph;
        let refuse = |what: &str| vec![Problem::of(graph, node, what)];
        let subgraph = graph.subgraphs.get(id).ok_or_else(|| refuse("names no subgraph"))?;
        let (given, mut steps) = self.conform(subgraph, given);
        let shapes: Vec<PlaceholderOperand> = given.iter().map(|g| self.shape(g)).collect();
        let ready = prepare(subgraph, &shapes)
            .ok_or_else(|| refuse("gives its subgraph another number of operands than it takes"))?;
        let output_strides = targets.iter().map(|t| match t {
            Target::Temp => None,
            Target::Into(buf) => Some(self.buffer(*buf).strides),
        });
        let unchecked_indices = !self.defs.checked;
        let output_strides = output_strides.collect();
        let options = Options { output_strides, unchecked_indices, ..Options::default() };
        let mut known = self.defs.known.clone();
        known.extend(self.defs.binders.keys().copied());
        known.extend(self.loops.iter().copied());
        let symbols = std::mem::take(&mut self.program.symbols);
        let compiled = crate::compile_part(&ready, symbols.clone(), &known, &options);
        self.program.symbols = symbols;
        let mut part = compiled.map_err(|error| match error {
            InductorError::Refused(problems) => problems,
            // The error is reported when the whole program is finished, which is then discarded.
            InductorError::Internal(found) => {
                self.defs.contradict(|| found);
                Vec::new()
            }
        })?;
        if part.outputs.len() < targets.len() {
            return Err(refuse("has a subgraph that gives fewer tensors than the call"));
        }
        self.program.symbols = std::mem::take(&mut part.symbols);
        let inputs = given
            .iter()
            .filter_map(|g| if let SubgraphOperand::Buffer(b) = g { Some(*b) } else { None })
            .collect();
        let outputs = self.merge(part, inputs, targets, &mut steps);
        Ok(EmbeddedSubgraph { steps, outputs })
    }

    /// Converts operands to the form of the placeholders: an integer for a tensor placeholder is stored, a tensor for an
    /// integer placeholder binds a symbol.
    fn conform(&mut self, subgraph: &Graph, given: &[SubgraphOperand]) -> (Vec<SubgraphOperand>, Vec<Step>) {
        let mut steps = Vec::new();
        let types: Vec<ValueType> =
            subgraph.inputs().map(|(v, _, _)| subgraph.values[v].ty.clone()).collect();
        let one = |(n, g): (usize, &SubgraphOperand)| match (g, types.get(n)) {
            (SubgraphOperand::Int(e), Some(ValueType::Tensor(meta))) => {
                let buf = self.temp("number", meta.dtype, &meta.sizes);
                steps.push(self.fill(buf, e));
                SubgraphOperand::Buffer(buf)
            }
            (SubgraphOperand::Buffer(buf), Some(ValueType::Int(_))) => {
                let symbol = self.symbol("c", i64::MIN);
                steps.push(self.bind(symbol, *buf));
                self.loops.push(symbol);
                SubgraphOperand::Int(SymExpr::sym(symbol))
            }
            (other, _) => other.clone(),
        };
        (given.iter().enumerate().map(one).collect(), steps)
    }

    fn shape(&self, given: &SubgraphOperand) -> PlaceholderOperand {
        match given {
            SubgraphOperand::Buffer(b) => {
                let b = self.buffer(*b);
                PlaceholderOperand::Tensor(b.sizes, b.strides)
            }
            SubgraphOperand::Int(e) => PlaceholderOperand::Int(e.clone()),
        }
    }

    /// Adds the buffers and steps of `part`; returns the buffers of its results.
    fn merge(
        &mut self,
        mut part: Program,
        inputs: Vec<BufId>,
        targets: &[Target],
        steps: &mut Vec<Step>,
    ) -> Vec<BufId> {
        let mut map: FxHashMap<BufId, BufId> = FxHashMap::default();
        for (spec, buf) in part.inputs.iter().zip(&inputs) {
            map.insert(spec.buf, *buf);
        }
        for (spec, target) in part.outputs.iter().zip(targets) {
            if let Target::Into(buf) = target {
                map.insert(spec.buf, *buf);
            }
        }
        let mut shift: FxHashMap<BufId, SymExpr> = FxHashMap::default();
        // The root of a view comes first.
        let is_view = |b: &Buffer| matches!(b.storage, Storage::View(_));
        let ids: Vec<BufId> = part.buffers.ids().collect();
        let (views, roots): (Vec<BufId>, Vec<BufId>) =
            ids.into_iter().partition(|id| is_view(&part.buffers[*id]));
        for id in roots {
            let mut buffer = part.buffers[id].clone();
            if buffer.storage == Storage::Output {
                buffer.storage = Storage::Arena;
            }
            let new = *map.entry(id).or_insert_with(|| self.push(buffer));
            let new = self.buffer(new);
            if is_view(&new) {
                shift.insert(id, new.offset);
            }
        }
        for id in views {
            let mut buffer = part.buffers[id].clone();
            let root = part.root(id);
            if let Some(more) = shift.get(&root) {
                buffer.offset = &buffer.offset + more;
            }
            let target = map[&root];
            let of = match self.buffer(target).storage {
                Storage::View(of) => of,
                _ => target,
            };
            buffer.storage = Storage::View(of);
            let new = self.push(buffer);
            map.insert(id, new);
            if let Some(more) = shift.get(&root).cloned() {
                shift.insert(id, more);
            }
        }
        let outputs = part.outputs.iter().map(|o| map[&o.buf]).collect();
        let first = self.program.sites.len() as u32;
        self.program.sites.append(&mut part.sites);
        let mut moved = |mut step: Step| {
            rename(&mut step, &map, &shift);
            shift_sites(&mut step, first);
            step
        };
        self.program.init.extend(std::mem::take(&mut part.init).into_iter().map(&mut moved));
        steps.extend(std::mem::take(&mut part.steps).into_iter().map(&mut moved));
        outputs
    }
}

/// Renumbers sites after those of the outer program.
fn shift_sites(step: &mut Step, by: u32) {
    for inst in step.bodies_mut().into_iter().flatten() {
        if let InstKind::Check { site, .. } = &mut inst.kind {
            *site += by;
        }
    }
    step.nested_mut().into_iter().flatten().for_each(|s| shift_sites(s, by));
}

/// Renumbers buffers in a step and its nested steps; operands of buffers in `shift` begin that much later.
pub(crate) fn rename(step: &mut Step, map: &FxHashMap<BufId, BufId>, shift: &FxHashMap<BufId, SymExpr>) {
    let new = |buf: &mut BufId| *buf = map.get(buf).copied().unwrap_or(*buf);
    let operand = |o: &mut Operand| {
        if let Some(more) = shift.get(&o.buf) {
            o.offset = &o.offset + more;
        }
        new(&mut o.buf);
    };
    let insts = |list: &mut Vec<Inst>| {
        for inst in list {
            if let InstKind::Load { buf, .. } | InstKind::Store { buf, .. } = &mut inst.kind {
                new(buf);
            }
        }
    };
    let nested = |list: &mut Vec<Step>| list.iter_mut().for_each(|s| rename(s, map, shift));
    match step {
        Step::Loop(k) => k.stages.iter_mut().for_each(|s| insts(&mut s.insts)),
        Step::Matmul(k) => {
            let quantized = k.dequant.iter_mut().flat_map(|d| [&mut d.factor].into_iter().chain(&mut d.zero));
            let ends = k.groups.iter_mut().map(|g| &mut g.ends);
            [&mut k.a, &mut k.b].into_iter().chain(quantized).chain(ends).for_each(operand);
            insts(&mut k.epilogue.insts);
        }
        Step::Conv(k) => {
            [&mut k.input, &mut k.weight].into_iter().for_each(operand);
            insts(&mut k.epilogue.insts);
        }
        Step::Attention(k) => {
            [&mut k.q, &mut k.k, &mut k.v]
                .into_iter()
                .chain(&mut k.mask)
                .chain(&mut k.sums)
                .chain(k.dropout.iter_mut().map(|d| &mut d.kept))
                .for_each(operand);
            insts(&mut k.epilogue.insts);
        }
        Step::Extern(k) => k.inputs.iter_mut().chain(&mut k.outputs).for_each(operand),
        Step::Bind(k) => operand(&mut k.from),
        Step::Assert(k) => operand(&mut k.pred),
        Step::Cond(k) => {
            operand(&mut k.pred);
            nested(&mut k.then);
            nested(&mut k.otherwise);
        }
        Step::For(k) => nested(&mut k.body),
        Step::While(k) => {
            nested(&mut k.cond);
            operand(&mut k.pred);
            nested(&mut k.body);
        }
        Step::Together(k) => nested(&mut k.steps),
    }
}

/// The symbols of a graph's placeholders.
pub(crate) fn given_symbols(graph: &Graph, into: &mut FxHashSet<SymId>) {
    for (v, _, _) in graph.inputs() {
        match &graph.values[v].ty {
            ValueType::Tensor(meta) => {
                meta.sizes.iter().chain(&meta.strides).for_each(|e| {
                    super::symbols_of(e, &mut |id| {
                        into.insert(id);
                    });
                });
            }
            ValueType::Int(e) => super::symbols_of(e, &mut |id| {
                into.insert(id);
            }),
            _ => {}
        }
    }
}
