//! Lowers prims to definitions: runs every lowering rule once and records its instructions.

use std::rc::Rc;

use fx_ir::{Arg, Graph, InputKind, NodeId, NodeKind, OutputKind, ValueId, ValueType};
use ir_core::{EntityId, Shape, SymExpr, SymId, contiguous_strides};
use kernel_ir::{BodyBuilder, BufId, ExternOp, Inst, InstKind, ReduceOp, Symbols};
use prims::{Call, Kind, LoopCx, Lower, LowerCall, OpError};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::control::embed::given_symbols;
use crate::control::steps::Binds;
use crate::control::{self, ControlKind};
use crate::defs::{Def, DefKind, Defs};
use crate::in_place::Write;
use crate::{InductorError, Options, Problem};

/// Definitions of every tensor value of `graph`.
pub(crate) fn lower(
    graph: &Graph,
    symbols: Symbols,
    known: &FxHashSet<SymId>,
    options: &Options,
) -> Result<Defs, InductorError> {
    let mut known = known.clone();
    given_symbols(graph, &mut known);
    let mut defs = Defs {
        list: graph.values.ids().map(|_| None).collect(),
        order: Vec::new(),
        symbols,
        outputs: Vec::new(),
        output_names: Vec::new(),
        written: Vec::new(),
        effects: Vec::new(),
        exchanges: Vec::new(),
        binders: FxHashMap::default(),
        known,
        sites: Vec::new(),
        checked: !options.unchecked_indices,
        contradiction: std::cell::RefCell::default(),
    };
    let mut problems = Vec::new();
    for (id, node) in graph.iter() {
        let result = match &node.kind {
            NodeKind::Placeholder { kind, name } => placeholder(graph, id, *kind, name, &mut defs),
            NodeKind::Call { target, args } => call(graph, id, target, args, &mut defs),
        };
        problems.extend(result.err());
    }
    if problems.is_empty() {
        outputs(graph, options, &mut defs, &mut problems);
    }
    if problems.is_empty() { Ok(defs) } else { Err(InductorError::Refused(problems)) }
}

fn placeholder(
    graph: &Graph,
    id: NodeId,
    kind: InputKind,
    name: &str,
    defs: &mut Defs,
) -> Result<(), Problem> {
    let Some(&v) = graph.nodes[id].outputs.first() else { return Ok(()) };
    let Some(meta) = graph.meta(v) else { return Ok(()) };
    let mutated = graph.outputs.iter().any(|o| matches!(&o.kind, OutputKind::BufferMutation(n) if n == name));
    let per_call = matches!(kind, InputKind::User | InputKind::Seed);
    let kind = if per_call || mutated { DefKind::Input } else { DefKind::Constant };
    let constant = matches!(kind, DefKind::Constant);
    define(
        defs,
        graph,
        v,
        Def { realized: true, strides: meta.strides.clone(), constant, ..undecided(graph, v, kind) },
    );
    Ok(())
}

/// A definition without decisions.
fn undecided(graph: &Graph, v: ValueId, kind: DefKind) -> Def {
    let value = &graph.values[v];
    let (dtype, sizes) =
        graph.meta(v).map_or((ir_core::DType::F32, Shape::new()), |m| (m.dtype, m.sizes.clone()));
    Def {
        name: value.name.clone(),
        origin: value.name.clone(),
        dtype,
        strides: contiguous_strides(&sizes),
        sizes,
        kind,
        realized: false,
        constant: false,
        output: false,
        users: 0,
        barrier: false,
        place: None,
    }
}

fn define(defs: &mut Defs, _: &Graph, v: ValueId, def: Def) {
    let id = BufId(v.0);
    defs.list[id] = Some(def);
    defs.order.push(id);
}

fn call(graph: &Graph, id: NodeId, target: &str, args: &[Arg], defs: &mut Defs) -> Result<(), Problem> {
    let refuse = |e: OpError| Problem::op(graph, id, &e);
    if control::is_control(target) {
        return flow(graph, id, target, args, defs);
    }
    let Some(op) = prims::lookup(target) else { return Err(refuse(OpError::Unknown(target.into()))) };
    let Kind::Prim { lower, .. } = &op.def.kind else {
        return Err(Problem::of(graph, id, "is not a prim: decompose the graph first"));
    };
    let outs = &graph.nodes[id].outputs;
    let cx = LowerCall { call: Call { op, args }, graph, outs };
    // A value whose operands were refused is not reported again.
    let mut missing = false;
    graph.nodes[id].for_each_use(&mut |v| {
        missing |= matches!(graph.values[v].ty, ValueType::Tensor(_)) && defs.list[BufId(v.0)].is_none();
    });
    if missing {
        return Ok(());
    }
    let kinds = record(lower, cx, defs).map_err(refuse)?;
    for (&v, kind) in outs.iter().zip(kinds) {
        let mut def = undecided(graph, v, kind);
        if let Some(problem) = refused_dtype(&def) {
            return Err(Problem::of(graph, id, problem));
        }
        def.barrier = op.is_barrier();
        // Ranks exchange in calls: when they bind constants is each one's own affair.
        let exchanges = matches!(&def.kind, DefKind::Extern { op: ExternOp::Collective(_), .. });
        def.constant =
            def.reads().iter().all(|r| defs.get(*r).constant) && !mentions_symbols(&def) && !exchanges;
        if exchanges {
            defs.exchanges.push(BufId(v.0));
        }
        define(defs, graph, v, def);
    }
    Ok(())
}

/// A call of control flow: its results share its operands.
fn flow(graph: &Graph, id: NodeId, target: &str, args: &[Arg], defs: &mut Defs) -> Result<(), Problem> {
    let call = control::read(graph, id, target, args)?;
    // A value whose operands were refused is not reported again.
    if call.reads().iter().any(|b| defs.list[*b].is_none()) {
        return Ok(());
    }
    let outs = &graph.nodes[id].outputs;
    let binds = if let ControlKind::Item { symbol, .. } = call.kind {
        Binds { ints: vec![(0, symbol)], ..Binds::default() }
    } else {
        binds(graph, outs, defs)
    };
    let asserts = matches!(call.kind, ControlKind::Assert { .. });
    let call = Rc::new(call);
    let ids: Vec<BufId> = outs.iter().map(|v| BufId(v.0)).collect();
    let first = ids.first().copied().unwrap_or_else(|| defs.anonymous());
    let own = binds.ints.iter().map(|(_, s)| *s).chain(binds.sizes.iter().map(|(_, _, s)| *s));
    for symbol in own {
        defs.binders.insert(symbol, first);
    }
    let binds = Rc::new(binds);
    let kind = |outputs: &[BufId]| DefKind::Control {
        call: call.clone(),
        outputs: outputs.to_vec(),
        binds: binds.clone(),
    };
    for &v in outs {
        let mut def = undecided(graph, v, kind(&ids));
        def.realized = true;
        match &graph.values[v].ty {
            ValueType::Tensor(_) => {}
            ValueType::Int(_) => def.dtype = ir_core::DType::I64,
            _ => return Err(Problem::of(graph, id, "gives a number that is no integer")),
        }
        if let Some(problem) = refused_dtype(&def) {
            return Err(Problem::of(graph, id, problem));
        }
        define(defs, graph, v, def);
    }
    if ids.is_empty() {
        let def = Def {
            name: "assert".into(),
            origin: graph.node_name(id).into(),
            dtype: ir_core::DType::Bool,
            sizes: Shape::new(),
            strides: Shape::new(),
            kind: kind(&[first]),
            realized: true,
            constant: false,
            output: false,
            users: 0,
            barrier: false,
            place: None,
        };
        defs.list.push(Some(def));
        defs.order.push(first);
    }
    if asserts {
        defs.effects.push(first);
    }
    Ok(())
}

/// The unbacked symbols that first occur in the results of a call.
fn binds(graph: &Graph, outs: &[ValueId], defs: &Defs) -> Binds {
    let fresh = |e: &SymExpr| {
        e.as_sym().filter(|s| {
            let unbacked = defs.symbols.get(*s).is_some_and(|s| s.unbacked);
            unbacked && !defs.known.contains(s) && !defs.binders.contains_key(s)
        })
    };
    let mut binds = Binds::default();
    let sized = |binds: &Binds, s: SymId| binds.sizes.iter().any(|(_, _, other)| *other == s);
    for (n, &v) in outs.iter().enumerate() {
        let Some(meta) = graph.meta(v) else { continue };
        for (d, e) in meta.sizes.iter().enumerate() {
            if let Some(s) = fresh(e).filter(|s| !sized(&binds, *s)) {
                binds.sizes.push((n, d, s));
            }
        }
    }
    for (n, &v) in outs.iter().enumerate() {
        if let ValueType::Int(e) = &graph.values[v].ty
            && let Some(s) = fresh(e).filter(|s| !sized(&binds, *s))
        {
            binds.ints.push((n, s));
        }
    }
    binds
}

fn refused_dtype(def: &Def) -> Option<String> {
    let complex = def.dtype.is_complex();
    complex.then(|| {
        format!("{} values are not compiled yet; run this model with the backend `eager`", def.dtype)
    })
}

/// Whether the size or the body depends on size symbols, so that it cannot be computed before a call.
fn mentions_symbols(def: &Def) -> bool {
    let symbolic = |e: &SymExpr| e.any_leaf(|a| matches!(a, ir_core::Atom::Sym(_)));
    let index_symbolic = |i: &Inst| match &i.kind {
        InstKind::Index(e) => symbolic(e),
        InstKind::Load { index, .. } => index.iter().any(symbolic),
        InstKind::Check { size, .. } => symbolic(size),
        _ => false,
    };
    def.domain().iter().any(symbolic)
        || def.sizes.iter().any(symbolic)
        || def.insts().iter().any(index_symbolic)
}

/// The body that a rule recorded, with the sites of its checks renumbered among those of the graph.
fn recorded(lc: LoopCx<'_>, defs: &mut Defs) -> Vec<Inst> {
    let first = defs.sites.len() as u32;
    defs.sites.extend(lc.sites);
    let mut insts = lc.b.finish();
    for inst in &mut insts {
        if let InstKind::Check { site, .. } = &mut inst.kind {
            *site += first;
        }
    }
    insts
}

/// Runs a lowering rule; one kind per result.
fn record(lower: &Lower, cx: LowerCall<'_>, defs: &mut Defs) -> Result<Vec<DefKind>, OpError> {
    match lower {
        Lower::Scalar(op) => {
            let mut lc = LoopCx::new(cx, cx.out(0)?.rank(), 0);
            let value = scalar(*op, &mut lc)?;
            Ok(vec![DefKind::Loop { insts: lc.b.finish(), value }])
        }
        Lower::Loop(rule) => (0..cx.outs.len())
            .map(|which| {
                let mut lc = LoopCx::new(cx, cx.out(which)?.rank(), which);
                lc.checked = defs.checked;
                let value = rule(&mut lc)?;
                let value = lc.b.cast(value, cx.out(which)?.dtype);
                Ok(DefKind::Loop { insts: recorded(lc, defs), value })
            })
            .collect(),
        Lower::Reduce(op) => reduce(*op, cx).map(|k| vec![k]),
        Lower::Scan(op) => {
            let rank = cx.out(0)?.rank();
            let dim = cx.call.dim(cx.call.int("dim")?, rank)?;
            let mut lc = LoopCx::new(cx, rank, 0);
            let index = lc.index.clone();
            let value = lc.load_arg("a", index)?;
            let value = lc.to_compute(value);
            let insts = lc.b.finish();
            // A scan of one element is the element.
            Ok(vec![if rank == 0 || cx.out(0)?.sizes[dim] == SymExpr::ONE {
                DefKind::Loop { insts, value }
            } else {
                DefKind::Scan { insts, value, op: *op, dim }
            }])
        }
        Lower::Scatter { source, rule } => {
            let mut lc = LoopCx::new(cx, cx.meta(source)?.rank(), 0);
            lc.checked = defs.checked;
            let spec = rule(&mut lc)?;
            let base = BufId(spec.base.0);
            let insts = recorded(lc, defs);
            Ok(vec![DefKind::Scatter {
                base,
                ranges: spec.ranges,
                insts,
                index: spec.index,
                value: spec.value,
                mode: spec.mode,
            }])
        }
        Lower::Template(rule) => {
            let spec = DefKind::Template(rule(&cx)?);
            let (Some(template), further) = (cx.outs.first().map(|v| BufId(v.0)), cx.outs.iter().skip(1))
            else {
                return Ok(vec![spec]);
            };
            Ok([spec].into_iter().chain(further.map(|_| DefKind::SecondaryOutput { template })).collect())
        }
        Lower::Extern(rule) => {
            let op = rule(&cx)?;
            let mut inputs = Vec::new();
            cx.call.args.iter().for_each(|a| a.for_each_value(&mut |v| inputs.push(BufId(v.0))));
            let outputs: Vec<BufId> = cx.outs.iter().map(|v| BufId(v.0)).collect();
            Ok(outputs
                .iter()
                .map(|_| DefKind::Extern { op: op.clone(), inputs: inputs.clone(), outputs: outputs.clone() })
                .collect())
        }
        Lower::Unsupported(why) => {
            Err(cx.call.unsupported(format!("compilation: {why}; run this model with the backend `eager`")))
        }
    }
}

/// Operands in their compute dtype, the operator, the result in the output's dtype.
fn scalar(op: kernel_ir::ScalarOp, lc: &mut LoopCx<'_>) -> Result<kernel_ir::Val, OpError> {
    let args = lc.call.call.args;
    let first_tensor = |skip: usize| {
        args.iter().skip(skip).find_map(|a| if let Arg::Value(v) = a { Some(*v) } else { None })
    };
    let select = op.dtype_rule() == kernel_ir::DTypeRule::Select;
    let operand = match first_tensor(usize::from(select)) {
        Some(v) => lc.call.meta_of(v)?.dtype,
        None => lc.call.out(0)?.dtype,
    };
    let mut vals = Vec::with_capacity(args.len());
    for (n, arg) in args.iter().enumerate() {
        let dtype = if select && n == 0 { ir_core::DType::Bool } else { operand.compute() };
        let v = lc.operand(arg, dtype)?;
        vals.push(lc.b.cast(v, dtype));
    }
    let v = lc.b.op(op, &vals);
    let out = lc.call.out(0)?.dtype;
    Ok(lc.b.cast(v, out))
}

fn reduce(op: ReduceOp, cx: LowerCall<'_>) -> Result<DefKind, OpError> {
    let a = cx.meta("a")?;
    let mut dims: Vec<usize> =
        cx.call.ints("dims")?.into_iter().map(|d| cx.call.dim(d, a.rank())).collect::<Result<_, _>>()?;
    dims.sort_unstable();
    dims.dedup();
    dims.retain(|d| *d < a.rank());
    let kept = a.rank() - dims.len();
    let (mut next_kept, mut next_inner) = (0u32, kept as u32);
    let mut index = Shape::new();
    // Over one element there is nothing to combine: the loop variable is 0.
    let single = dims.iter().all(|&d| a.sizes[d] == SymExpr::ONE);
    for d in 0..a.rank() {
        if single && dims.contains(&d) {
            index.push(SymExpr::ZERO);
            continue;
        }
        let counter = if dims.contains(&d) { &mut next_inner } else { &mut next_kept };
        index.push(SymExpr::loop_var(*counter));
        *counter += 1;
    }
    let mut lc = LoopCx::new(cx, a.rank(), 0);
    if single && op.combine().is_none() {
        let value = lc.b.constant(0, ir_core::DType::I64);
        return Ok(DefKind::Loop { insts: lc.b.finish(), value });
    }
    let value = lc.load_arg("a", index)?;
    let value = lc.to_compute(value);
    let inner: Shape = dims.iter().map(|&d| a.sizes[d].clone()).collect();
    let insts = lc.b.finish();
    if single {
        return Ok(DefKind::Loop { insts, value });
    }
    Ok(DefKind::Reduce { insts, value, op, inner })
}

/// Marks outputs and sets their strides; values that cannot be outputs are copied.
fn outputs(graph: &Graph, options: &Options, defs: &mut Defs, problems: &mut Vec<Problem>) {
    for (n, output) in graph.outputs.iter().enumerate() {
        let Arg::Value(v) = output.arg else { continue };
        if let ValueType::Int(e) = &graph.values[v].ty {
            let id = number(defs, &graph.values[v].name, e);
            defs.outputs.push(id);
            defs.output_names.push(graph.values[v].name.clone());
            continue;
        }
        if graph.meta(v).is_none() {
            problems.push(Problem::of(
                graph,
                graph.values[v].def,
                "returns a number that the program computes; only tensors are compiled",
            ));
            continue;
        }
        let source = BufId(v.0);
        if let Some(input) = options.written.get(n).copied().flatten() {
            problems.extend(written(graph, defs, v, input).err());
            continue;
        }
        let def = defs.get(source);
        let fixed = matches!(def.kind, DefKind::Input | DefKind::Constant | DefKind::Extern { .. })
            || def.output
            || def.constant;
        let id = if fixed { copy_of(defs, source) } else { source };
        let strides = options.output_strides.get(n).cloned().flatten();
        let def = defs.get_mut(id);
        def.output = true;
        def.realized = true;
        if let Some(strides) = strides.filter(|s| s.len() == def.sizes.len()) {
            def.strides = strides;
        }
        defs.outputs.push(id);
        defs.output_names.push(graph.values[v].name.clone());
    }
}

/// Marks `new` as the value that the call stores in the memory of the placeholder `old`.
fn written(graph: &Graph, defs: &mut Defs, new: ValueId, old: ValueId) -> Result<(), Problem> {
    let (source, input) = (BufId(new.0), BufId(old.0));
    let is_input = defs.list[input].as_ref().is_some_and(|d| matches!(d.kind, DefKind::Input));
    let (from, to) = (graph.meta(new), graph.meta(old));
    let same = from.zip(to).is_some_and(|(a, b)| a.dtype == b.dtype && a.sizes == b.sizes);
    if !is_input || !same || defs.written.iter().any(|w| w.input == input) {
        let what =
            "is to be written into an input of another type, or into one that is written already or is none";
        return Err(Problem::of(graph, graph.values[new].def, what));
    }
    if source == input {
        return Ok(());
    }
    let def = defs.get(source);
    // Steps of routines and control flow write their outputs directly; kernels are distinguished.
    let fixed = matches!(
        def.kind,
        DefKind::Input
            | DefKind::Constant
            | DefKind::SecondaryOutput { .. }
            | DefKind::Extern { .. }
            | DefKind::Control { .. }
    ) || def.output
        || def.constant;
    let id = if fixed { copy_of(defs, source) } else { source };
    let strides = defs.get(input).strides.clone();
    let def = defs.get_mut(id);
    (def.output, def.realized, def.strides) = (true, true, strides);
    defs.written.push(Write { def: id, input });
    Ok(())
}

/// An integer that the program returns, as a tensor without dimensions.
fn number(defs: &mut Defs, name: &str, value: &SymExpr) -> BufId {
    let mut b = BodyBuilder::new();
    let v = b.index(value.clone());
    let def = Def {
        name: name.into(),
        origin: name.into(),
        dtype: ir_core::DType::I64,
        sizes: Shape::new(),
        strides: Shape::new(),
        kind: DefKind::Loop { insts: b.finish(), value: v },
        realized: true,
        constant: false,
        output: true,
        users: 0,
        barrier: false,
        place: None,
    };
    let id = BufId::from_index(defs.list.len());
    defs.list.push(Some(def));
    defs.order.push(id);
    id
}

/// A new definition with the same elements.
fn copy_of(defs: &mut Defs, source: BufId) -> BufId {
    let from = defs.get(source);
    let mut b = BodyBuilder::new();
    let index = (0..from.sizes.len() as u32).map(SymExpr::loop_var).collect();
    let value = b.load(source, from.dtype, index);
    let def = Def {
        name: format!("{}_copy", from.name),
        origin: from.origin.clone(),
        dtype: from.dtype,
        sizes: from.sizes.clone(),
        strides: contiguous_strides(&from.sizes),
        kind: DefKind::Loop { insts: b.finish(), value },
        realized: true,
        constant: false,
        output: false,
        users: 0,
        barrier: false,
        place: None,
    };
    let id = BufId::from_index(defs.list.len());
    defs.list.push(Some(def));
    defs.order.push(id);
    id
}
