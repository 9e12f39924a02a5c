//! Turns groups into a program: steps, buffers, names and the memory plan.

use fx_ir::{Graph, NodeKind};
use ir_core::{EntityId, Origin, SymExpr};
use kernel_ir::{
    ArenaPlan, Attention, BufId, Buffer, Const, Conv, Dequant, Dropout, ExternCall, ExternOp, Groups,
    InputSpec, Matmul, Operand, OutputSpec, Program, Step, Storage,
};
use prims::TemplateSpec;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::control;
use crate::control::embed::{Embedder, Extra, rename};
use crate::defs::{Def, DefKind, Defs};
use crate::in_place::{Write, lineage};
use crate::schedule::{Group, Schedule};
use crate::{InductorError, Problem, affine, kernels};

/// The program of a schedule.
pub(crate) fn emit(defs: &Defs, schedule: &Schedule, graph: &Graph) -> Result<Program, InductorError> {
    let mut places = InPlaceStores { direct: defs.written.clone() };
    loop {
        let program = attempt(defs, schedule, graph, &places)?;
        let hazards = kernel_ir::hazards(&program);
        let before = places.direct.len();
        let refused = |input: BufId| {
            let number = tensor_inputs(defs, graph).position(|id| id == input);
            hazards.iter().any(|h| Some(h.input as usize) == number)
        };
        places.direct.retain(|w| !refused(w.input));
        if hazards.is_empty() {
            return Ok(program);
        }
        // A copy at the end is always in order, so every iteration removes one hazard.
        if places.direct.len() == before {
            let kernel_ir::Hazard { place, what, .. } = &hazards[0];
            let found = format!(
                "`{place}` writes an input out of order, where only copies at the end are left: {what}"
            );
            return Err(InductorError::Internal(found));
        }
    }
}

/// The new values of inputs that are stored in the input's memory as they are computed.
struct InPlaceStores {
    direct: Vec<Write>,
}

impl InPlaceStores {
    /// The definitions that are in an input's memory, with that input.
    fn in_inputs(&self, defs: &Defs) -> FxHashMap<BufId, BufId> {
        let all = self.direct.iter().flat_map(|w| {
            lineage(defs, *w).into_iter().chain([w.def]).map(|def| (def, w.input)).collect::<Vec<_>>()
        });
        all.collect()
    }
}

/// Definitions of the placeholders that are inputs of a call, in order.
fn tensor_inputs<'a>(defs: &'a Defs, graph: &'a Graph) -> impl Iterator<Item = BufId> + 'a {
    let inputs = graph.inputs().map(|(v, _, _)| BufId(v.0));
    inputs.filter(|id| defs.list[*id].as_ref().is_some_and(|d| matches!(d.kind, DefKind::Input)))
}

fn attempt(
    defs: &Defs,
    schedule: &Schedule,
    graph: &Graph,
    places: &InPlaceStores,
) -> Result<Program, InductorError> {
    let mut program = Program {
        name: graph.name.clone(),
        symbols: defs.symbols.clone(),
        guards: graph.guards.clone(),
        // Embedded programs add more sites; those that no check names are removed at the end.
        sites: defs.sites.clone(),
        unchecked_indices: !defs.checked,
        ..Program::default()
    };
    let mut problems = Vec::new();
    let mut names = FxHashMap::default();
    let mut extra = Extra::default();
    let in_inputs = places.in_inputs(defs);
    for group in &schedule.groups {
        let mut embedder =
            Embedder { defs, graph, program: &mut program, extra: &mut extra, loops: Vec::new() };
        let made = match control_steps(&mut embedder, group) {
            Some(made) => made,
            None => {
                steps(defs, schedule, group, &in_inputs).map_err(|def| vec![internal(graph, defs.get(def))])
            }
        };
        match made {
            Ok(steps) => {
                for mut step in steps {
                    name(defs, group, &mut step, &mut names);
                    if group.constant { program.init.push(step) } else { program.steps.push(step) }
                }
            }
            Err(more) => problems.extend(more),
        }
    }
    if !problems.is_empty() {
        return Err(InductorError::Refused(problems));
    }
    let copies: Vec<&Write> = defs.written.iter().filter(|w| !places.direct.contains(w)).collect();
    for write in copies {
        let mut embedder =
            Embedder { defs, graph, program: &mut program, extra: &mut extra, loops: Vec::new() };
        let copy = copy_into_input(&mut embedder, *write);
        program.steps.push(copy);
    }
    let map = buffers(defs, graph, &mut program, extra, &in_inputs);
    for step in program.init.iter_mut().chain(&mut program.steps) {
        rename(step, &map, &FxHashMap::default());
    }
    program.outputs = outputs(defs, &map);
    program.plan = ArenaPlan::of(&program);
    Ok(program)
}

/// Copies the new value of an input from its temporary into the input's memory.
fn copy_into_input(e: &mut Embedder<'_>, write: Write) -> Step {
    let mut view = e.buffer(write.input);
    view.name.push_str("_new");
    view.storage = Storage::View(write.input);
    let view = e.push(view);
    e.copy(write.def, view)
}

fn internal(graph: &Graph, def: &Def) -> Problem {
    let node = def.name.clone();
    let what = "an operand of a template has no strided form: this is a bug in the compiler, please report the model";
    Problem { node, target: graph.name.clone(), origin: Origin::default(), what: what.into() }
}

/// The steps of control flow; `None` where the group is something else.
fn control_steps(e: &mut Embedder<'_>, group: &Group) -> Option<Result<Vec<Step>, Vec<Problem>>> {
    let first = group.members.first()?.def;
    let defs = e.defs;
    let DefKind::Control { call, outputs, binds } = &defs.get(first).kind else { return None };
    // All results are computed together.
    let leader = outputs.iter().find(|o| defs.list[**o].is_some());
    Some(if leader == Some(&first) { control::steps::make(e, call, outputs, binds) } else { Ok(Vec::new()) })
}

/// The kernels of a group; none where nothing of it is needed. The error names a template with an invalid operand.
fn steps(
    defs: &Defs,
    schedule: &Schedule,
    group: &Group,
    in_inputs: &FxHashMap<BufId, BufId>,
) -> Result<Vec<Step>, BufId> {
    let Some(first) = group.members.first().map(|m| m.def) else { return Ok(Vec::new()) };
    let def = defs.get(first);
    match &def.kind {
        DefKind::Template(spec) => template(defs, schedule, group, first, spec).map(|s| vec![s]),
        DefKind::Scatter { .. } => {
            let kernels = kernels::scatter_kernels(defs, first, shares_base(defs, first, in_inputs));
            Ok(kernels.into_iter().map(Step::Loop).collect())
        }
        DefKind::Extern { op, inputs, outputs } => {
            if outputs.first() != Some(&first) {
                return Ok(Vec::new());
            }
            let operand = |v: &BufId| affine::operand(defs, *v).ok_or(first);
            let mut inputs = inputs.iter().map(operand).collect::<Result<Vec<_>, _>>()?;
            if let (ExternOp::AttentionBackward { dropout, .. }, [_, q, k, _, _, _, optional @ ..]) =
                (op, &mut inputs[..])
            {
                let masks = optional.len() - usize::from(dropout.is_some());
                for (n, operand) in optional.iter_mut().enumerate() {
                    let last = if n < masks { k.sizes[2].clone() } else { words_of(&k.sizes[2]) };
                    *operand = broadcast(operand.clone(), &q.sizes, last);
                }
            }
            let outputs = outputs.iter().map(operand).collect::<Result<_, _>>()?;
            let call =
                ExternCall { name: String::new(), origins: Vec::new(), op: op.clone(), inputs, outputs };
            Ok(vec![Step::Extern(call)])
        }
        // Its template writes it.
        DefKind::SecondaryOutput { .. } => Ok(Vec::new()),
        _ => {
            let kernel = kernels::loop_kernel(defs, schedule, group);
            Ok(if kernel.stages.is_empty() { Vec::new() } else { vec![Step::Loop(kernel)] })
        }
    }
}

/// Whether a scatter's result is in the memory of its base.
fn shares_base(defs: &Defs, id: BufId, in_inputs: &FxHashMap<BufId, BufId>) -> bool {
    let DefKind::Scatter { base, .. } = &defs.get(id).kind else { return false };
    in_inputs.get(&id).is_some_and(|input| base == input || in_inputs.get(base) == Some(input))
}

fn template(
    defs: &Defs,
    schedule: &Schedule,
    group: &Group,
    id: BufId,
    spec: &TemplateSpec,
) -> Result<Step, BufId> {
    let operand = |v: fx_ir::ValueId| affine::operand(defs, BufId(v.0)).ok_or(id);
    let acc = defs.get(id).dtype.compute();
    let epilogue = kernels::epilogue(defs, schedule, group, id, acc);
    let (name, origins) = (String::new(), Vec::new());
    let sizes = |v: fx_ir::ValueId| defs.get(BufId(v.0)).sizes.clone();
    Ok(match spec {
        TemplateSpec::Matmul { a, b, zero, dequant, groups } => {
            let dequant = match dequant {
                Some((factor, zero)) => {
                    Some(Dequant { factor: operand(*factor)?, zero: zero.map(operand).transpose()? })
                }
                None => None,
            };
            let groups = match groups {
                Some((ends, along)) => Some(Groups { ends: operand(*ends)?, along: *along }),
                None => None,
            };
            let (a, b) = (operand(*a)?, operand(*b)?);
            Step::Matmul(Matmul { name, origins, a, b, acc, zero: *zero, dequant, groups, epilogue })
        }
        TemplateSpec::Conv { input, weight, stride, padding, dilation, groups, transposed, zero } => {
            Step::Conv(Conv {
                name,
                origins,
                input: operand(*input)?,
                weight: operand(*weight)?,
                stride: stride.clone(),
                padding: padding.clone(),
                dilation: dilation.clone(),
                groups: *groups,
                transposed: *transposed,
                acc,
                zero: *zero,
                epilogue,
            })
        }
        TemplateSpec::Attention { q, k, v, mask, sums, causal, scale, dropout } => {
            Step::Attention(Attention {
                name,
                origins,
                q: operand(*q)?,
                k: operand(*k)?,
                v: operand(*v)?,
                mask: match mask {
                    Some(m) => Some(broadcast(operand(*m)?, &sizes(*q), sizes(*k)[2].clone())),
                    None => None,
                },
                dropout: match dropout {
                    Some((kept, factor)) => {
                        let kept = broadcast(operand(*kept)?, &sizes(*q), words_of(&sizes(*k)[2]));
                        Some(Dropout { kept, factor: *factor })
                    }
                    None => None,
                },
                visibility: None,
                // Only where they are read.
                sums: match sums.filter(|v| schedule.group_of.contains_key(&BufId(v.0))) {
                    Some(sums) => Some(operand(sums)?),
                    None => None,
                },
                causal: *causal,
                scale: *scale,
                acc,
                epilogue,
            })
        }
    })
}

/// The words that have a bit for each of so many keys.
fn words_of(keys: &SymExpr) -> SymExpr {
    keys.ceil_div(&SymExpr::from_i64(Dropout::KEYS))
}

/// A mask as a `[b, h, lq, last]` view, for queries of these sizes: missing and size-1 dimensions get stride 0.
fn broadcast(mask: Operand, q: &[SymExpr], last: SymExpr) -> Operand {
    let sizes = [&q[0], &q[1], &q[2], &last];
    let missing = 4 - mask.sizes.len().min(4);
    let stride = |d: usize| match d.checked_sub(missing) {
        Some(m) if mask.sizes[m] != SymExpr::ONE => mask.strides[m].clone(),
        _ => SymExpr::ZERO,
    };
    let strides = (0..4).map(stride).collect();
    Operand { sizes: sizes.into_iter().cloned().collect(), strides, ..mask }
}

/// Names a step after the graph nodes in it.
fn name(defs: &Defs, group: &Group, step: &mut Step, taken: &mut FxHashMap<String, u32>) {
    let mut origins: Vec<String> = Vec::new();
    for member in &group.members {
        collect_origins(defs, member.def, &mut origins);
    }
    if origins.is_empty() {
        // A group of views only: the copy is named after its result.
        origins.extend(group.members.iter().map(|m| defs.get(m.def).origin.clone()));
    }
    let kind = match step {
        Step::Loop(_) if origins.len() > 1 => "fused",
        _ => "",
    };
    let parts = origins.iter().take(5).map(String::as_str);
    let base = [kind].into_iter().chain(parts).filter(|p| !p.is_empty()).collect::<Vec<_>>().join("_");
    let count = taken.entry(base.clone()).and_modify(|n| *n += 1).or_insert(0);
    let unique = if *count == 0 { base } else { format!("{base}_{count}") };
    let (name, list) = match step {
        Step::Loop(k) => (&mut k.name, &mut k.origins),
        Step::Matmul(k) => (&mut k.name, &mut k.origins),
        Step::Conv(k) => (&mut k.name, &mut k.origins),
        Step::Attention(k) => (&mut k.name, &mut k.origins),
        Step::Extern(k) => (&mut k.name, &mut k.origins),
        Step::Cond(k) => (&mut k.name, &mut k.origins),
        Step::For(k) => (&mut k.name, &mut k.origins),
        Step::While(k) => (&mut k.name, &mut k.origins),
        // These are named after what they bind or assert; they are grouped later.
        Step::Bind(_) | Step::Assert(_) | Step::Together(_) => return,
    };
    (*name, *list) = (unique, origins);
}

/// The graph nodes that a definition computes, inlined ones included, in order.
fn collect_origins(defs: &Defs, id: BufId, origins: &mut Vec<String>) {
    let def = defs.get(id);
    let template = matches!(def.kind, DefKind::Template(_) | DefKind::Extern { .. });
    for read in def.reads() {
        // A template's operands are views, not work of this kernel.
        if !template && !defs.get(read).realized {
            collect_origins(defs, read, origins);
        }
    }
    if !origins.contains(&def.origin) && !def.is_view() {
        origins.push(def.origin.clone());
    }
}

/// Creates the buffers of everything that a step reads or writes, and of inputs and constants.
fn buffers(
    defs: &Defs,
    graph: &Graph,
    program: &mut Program,
    extra: Extra,
    in_inputs: &FxHashMap<BufId, BufId>,
) -> FxHashMap<BufId, BufId> {
    let mut used: FxHashSet<BufId> = FxHashSet::default();
    for step in program.init.iter().chain(&program.steps) {
        let (reads, writes) = step.accesses();
        used.extend(reads.into_iter().chain(writes));
    }
    used.extend(
        extra.0.iter().filter_map(|b| if let Storage::View(of) = b.storage { Some(of) } else { None }),
    );
    let mut map = FxHashMap::default();
    for node in graph.order.iter().map(|id| &graph.nodes[*id]) {
        let (NodeKind::Placeholder { name, .. }, Some(v)) = (&node.kind, node.outputs.first()) else {
            continue;
        };
        let Some(def) = defs.list[BufId(v.0)].as_ref() else { continue };
        let constant = matches!(def.kind, DefKind::Constant);
        // A constant that nothing reads need not be bound; inputs keep their places.
        if constant && !used.contains(&BufId(v.0)) {
            continue;
        }
        let storage = if constant {
            Storage::Constant(program.constants.len() as u32)
        } else {
            Storage::Input(program.inputs.len() as u32)
        };
        let buf = program.buffers.push(buffer(def, storage));
        map.insert(BufId(v.0), buf);
        let name = name.clone();
        if constant {
            program.constants.push(Const { name, buf, range: None })
        } else {
            let written = defs.written.iter().any(|w| w.input == BufId(v.0));
            program.inputs.push(InputSpec { name, buf, written })
        }
    }
    // What holds others comes before them.
    let of = |id: &BufId| defs.get(*id).place.as_ref().map(|place| place.of);
    let wanted = |id: &BufId| used.contains(id);
    let holders: Vec<BufId> = defs.order.iter().filter(|id| wanted(id)).filter_map(of).collect();
    for id in holders.into_iter().chain(defs.order.iter().copied().filter(wanted)) {
        let def = defs.get(id);
        if map.contains_key(&id) {
            continue;
        }
        if let Some(place) = &def.place {
            let mut part = buffer(def, Storage::View(map[&place.of]));
            part.offset = place.offset.clone();
            map.insert(id, program.buffers.push(part));
            continue;
        }
        let written = defs.written.iter().any(|w| w.def == id);
        let storage = match def {
            _ if in_inputs.contains_key(&id) => Storage::View(map[&in_inputs[&id]]),
            _ if written => Storage::Arena,
            d if d.output => Storage::Output,
            d if d.constant => Storage::Persistent,
            _ => Storage::Arena,
        };
        map.insert(id, program.buffers.push(buffer(def, storage)));
    }
    let first = program.buffers.len();
    for (n, buffer) in extra.0.into_iter().enumerate() {
        let id = program.buffers.push(buffer);
        map.insert(BufId::from_index(defs.list.len() + n), id);
    }
    for (id, buffer) in program.buffers.iter_mut().filter(|(id, _)| id.index() >= first) {
        if let Storage::View(of) = &mut buffer.storage {
            // The root of a view was counted as used.
            *of = map.get(of).copied().unwrap_or(id);
        }
    }
    // A definition in an input's memory is a view itself.
    let views: Vec<(BufId, BufId)> = program
        .buffers
        .iter()
        .filter_map(|(id, b)| if let Storage::View(of) = b.storage { Some((id, of)) } else { None })
        .collect();
    for (id, of) in views {
        program.buffers[id].storage = Storage::View(program.root(of));
    }
    map
}

fn buffer(def: &Def, storage: Storage) -> Buffer {
    Buffer {
        name: def.name.clone(),
        dtype: def.dtype,
        sizes: def.sizes.clone(),
        strides: def.strides.clone(),
        offset: SymExpr::ZERO,
        storage,
    }
}

fn outputs(defs: &Defs, map: &FxHashMap<BufId, BufId>) -> Vec<OutputSpec> {
    let spec = |(id, name): (&BufId, &String)| {
        let def = defs.get(*id);
        // Every output is stored by some step, so it has a buffer.
        let buf = map.get(id).copied().unwrap_or_else(|| BufId::from_index(usize::MAX));
        OutputSpec {
            name: name.clone(),
            buf,
            sizes: def.sizes.clone(),
            strides: def.strides.clone(),
            offset: SymExpr::ZERO,
        }
    };
    defs.outputs.iter().zip(&defs.output_names).map(spec).collect()
}
