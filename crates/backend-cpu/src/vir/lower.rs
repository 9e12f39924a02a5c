//! Lowers kernel-ir to vector IR: addresses from indices and strides, simplification under the loops' bounds, collapsing,
//! the axis, and the classification of every access along it.

use ir_core::{Atom, DType, Shape, SymExpr};
use kernel_ir::collapse::{collapse, drop_units};
use kernel_ir::{BufId, Epilogue, Inst, InstKind, LoopBounds, LoopKernel, Program, ReduceOp, ScalarOp, Val};

use super::exact::sixteen;
use super::tile::tile;
use super::{Access, Along, Dim, VInst, VKernel, VKind, VStage, axis};

/// Why a kernel is not compiled.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LowerError {
    /// A dtype that this backend has no arithmetic for.
    #[error("kernel `{kernel}`: {dtype} is not supported by the cpu backend; compute in f32 or f64")]
    DType {
        /// The kernel.
        kernel: String,
        /// The dtype.
        dtype: DType,
    },
}

/// An instruction and, for loads, stores, index values and checks, its simplified expression.
pub(super) struct PlacedInst {
    pub(super) inst: Inst,
    pub(super) address: Option<SymExpr>,
}

/// A stage being lowered.
pub(super) struct Body {
    pub(super) loops: Vec<Dim>,
    pub(super) insts: Vec<PlacedInst>,
    /// Assumed number of inner points, for comparing stages.
    pub(super) weight: f64,
}

/// Lowers a loop kernel.
pub fn lower_kernel(program: &Program, kernel: &LoopKernel) -> Result<VKernel, LowerError> {
    check_dtypes(&kernel.name, kernel.stages.iter().flat_map(|s| &s.insts))?;
    let bounds = program.bounds();
    let mut points = dims(0, &kernel.outer);
    let first = points.len() as u32;
    let mut bodies: Vec<Body> = Vec::new();
    for stage in &kernel.stages {
        let extents: Shape = kernel.outer.iter().chain(&stage.inner).cloned().collect();
        let known = LoopBounds { extents: &extents, symbols: &bounds };
        let insts = stage
            .insts
            .iter()
            .map(|i| PlacedInst {
                address: address_of(program, i).map(|e| e.simplify(&known)),
                inst: i.clone(),
            })
            .collect();
        let loops = dims(first, &stage.inner);
        let weight = loops.iter().map(|d| d.extent.as_const().unwrap_or(64) as f64).product::<f64>().max(1.0);
        bodies.push(Body { loops, insts, weight });
    }
    collapse_all(&mut points, &mut bodies);
    order_points(&mut points, &bodies);
    let outer_axis = choose(&mut points, &mut bodies);
    let written = written(program, &bodies);
    Ok(finish(program, kernel, points, bodies, outer_axis, &written))
}

/// Lowers an epilogue as a kernel whose rows and columns come from the template's driver: `ranges` are not looped over, the
/// axis is loop variable `column`, along which every access is classified. Returned as a kernel of one stage.
pub fn lower_epilogue(
    program: &Program,
    name: &str,
    epilogue: &Epilogue,
    column: u32,
) -> Result<VKernel, LowerError> {
    check_dtypes(name, epilogue.insts.iter())?;
    let bounds = program.bounds();
    let known = LoopBounds { extents: &epilogue.ranges, symbols: &bounds };
    let insts = epilogue.insts.iter();
    let insts: Vec<PlacedInst> = insts
        .map(|i| PlacedInst { address: address_of(program, i).map(|e| e.simplify(&known)), inst: i.clone() })
        .collect();
    let bodies = vec![Body { loops: Vec::new(), insts, weight: 1.0 }];
    let axis = Dim { var: column, extent: epilogue.ranges[column as usize].clone() };
    let written = written(program, &bodies);
    let kernel = LoopKernel {
        name: name.to_owned(),
        origins: Vec::new(),
        outer: Shape::new(),
        accs: Vec::new(),
        stages: Vec::new(),
    };
    Ok(finish(program, &kernel, Vec::new(), bodies, Some(axis), &written))
}

fn dims(first: u32, extents: &[SymExpr]) -> Vec<Dim> {
    extents.iter().enumerate().map(|(i, e)| Dim { var: first + i as u32, extent: e.clone() }).collect()
}

fn check_dtypes<'a>(kernel: &str, insts: impl Iterator<Item = &'a Inst>) -> Result<(), LowerError> {
    for inst in insts {
        if inst.dtype.is_complex() {
            return Err(LowerError::DType { kernel: kernel.to_owned(), dtype: inst.dtype });
        }
    }
    Ok(())
}

/// The expression of an instruction that has one.
fn address_of(program: &Program, inst: &Inst) -> Option<SymExpr> {
    match &inst.kind {
        InstKind::Index(e) | InstKind::Check { size: e, .. } => Some(e.clone()),
        InstKind::Load { buf, index, .. } | InstKind::Store { buf, index, .. } => {
            Some(program.buffers[*buf].address(index))
        }
        _ => None,
    }
}

/// Collapses the outer loops over all stages, then each stage's own loops.
fn collapse_all(points: &mut Vec<Dim>, bodies: &mut [Body]) {
    let mut all: Vec<SymExpr> =
        bodies.iter().flat_map(|b| b.insts.iter().filter_map(|p| p.address.clone())).collect();
    collapse(points, &mut all);
    let mut left = all.into_iter();
    for p in bodies.iter_mut().flat_map(|b| &mut b.insts).filter(|p| p.address.is_some()) {
        p.address = left.next();
    }
    for body in bodies {
        let mut own: Vec<SymExpr> = body.insts.iter().filter_map(|p| p.address.clone()).collect();
        if body.scans() {
            drop_unit_front(&mut body.loops, &mut own);
        } else {
            collapse(&mut body.loops, &mut own);
        }
        let mut left = own.into_iter();
        for p in body.insts.iter_mut().filter(|p| p.address.is_some()) {
            p.address = left.next();
        }
    }
}

/// A scan runs along the last loop, which must stay even if it has one iteration.
fn drop_unit_front(loops: &mut Vec<Dim>, exprs: &mut [SymExpr]) {
    if let Some(last) = loops.pop() {
        drop_units(loops, exprs);
        loops.push(last);
    }
}

impl Body {
    fn scans(&self) -> bool {
        self.insts.iter().any(|p| matches!(p.inst.kind, InstKind::Scan { .. }))
    }
}

/// Orders outer loops by falling stride of the stores (then loads), so that memory is accessed in order.
fn order_points(points: &mut [Dim], bodies: &[Body]) {
    let step = |var: u32| -> i64 {
        let exprs = bodies.iter().flat_map(|b| &b.insts).filter_map(|p| match p.inst.kind {
            InstKind::Store { .. } | InstKind::Load { .. } => p.address.as_ref(),
            _ => None,
        });
        let steps = exprs.filter_map(|e| axis::step(e, var)?.as_const()).map(i64::abs);
        steps.max().unwrap_or(0)
    };
    // Only where every stride is a number; symbolic ones have no order, and the given order is a good one.
    let known = points.iter().all(|d| step(d.var) > 0 && d.extent.as_const().is_some());
    if known {
        points.sort_by_key(|d| std::cmp::Reverse(step(d.var)));
    }
}

/// Picks the axis: an outer loop (taken out of `points`), or the best loop of each stage (moved to its end).
fn choose(points: &mut Vec<Dim>, bodies: &mut [Body]) -> Option<Dim> {
    let views: Vec<&Body> = bodies.iter().collect();
    let outer = axis::best(points, &views);
    let inner: f64 = bodies.iter().map(|b| b.weight * inner_cost(b)).sum();
    let pointwise = bodies.iter().all(|b| b.loops.is_empty());
    if let Some((at, cost)) = outer
        && (pointwise || cost < inner)
    {
        return Some(points.remove(at));
    }
    for body in bodies.iter_mut().filter(|b| !b.scans()) {
        if let Some((at, _)) = axis::best(&body.loops, &[&*body]) {
            let axis = body.loops.remove(at);
            body.loops.push(axis);
        }
    }
    None
}

/// Cost of four inner points of a stage that runs along its own best loop.
fn inner_cost(body: &Body) -> f64 {
    if body.scans() {
        return 4.0 * body.insts.len() as f64;
    }
    axis::best(&body.loops, &[body]).map_or(4.0 * body.insts.len() as f64, |(_, cost)| cost / body.weight)
}

/// Buffers whose memory the kernel writes: those it stores to, and those that it reads where the plan may put one of these.
fn written(program: &Program, bodies: &[Body]) -> Vec<BufId> {
    let insts = || bodies.iter().flat_map(|b| &b.insts);
    let stored = insts().filter_map(|p| match p.inst.kind {
        InstKind::Store { buf, .. } => Some(program.root(buf)),
        _ => None,
    });
    let mut written: Vec<BufId> = stored.collect();
    let mut loaded: Vec<BufId> = insts()
        .filter_map(|p| match p.inst.kind {
            InstKind::Load { buf, .. } => Some(program.root(buf)),
            _ => None,
        })
        .collect();
    loaded.retain(|buf| written.iter().any(|to| program.plan.may_share(program, *buf, *to)));
    written.extend(loaded);
    written
}

fn finish(
    program: &Program,
    kernel: &LoopKernel,
    points: Vec<Dim>,
    bodies: Vec<Body>,
    outer_axis: Option<Dim>,
    written: &[BufId],
) -> VKernel {
    let mut stages = Vec::new();
    let mut costs = Vec::new();
    let mut serial = false;
    let mut weight = 0.0f64;
    for body in bodies {
        let axis = match &outer_axis {
            Some(d) => Some(d.var),
            None => body.loops.last().map(|d| d.var).filter(|_| !body.scans()),
        };
        serial |= body.insts.iter().any(|p| combines(&p.inst.kind));
        let ns = body.insts.iter().map(|p| inst_cost(&p.inst)).sum::<f64>();
        weight = weight.max(ns);
        costs.push((ir_core::numel(&body.loops.iter().map(|d| d.extent.clone()).collect::<Vec<_>>()), ns));
        let vector = axis.is_some() && outer_axis.is_none();
        stages.push(VStage {
            vector,
            insts: classify(program, &body, axis, outer_axis.is_some(), written),
            loops: body.loops,
        });
    }
    let tile = outer_axis.as_ref().and_then(|d| tile(d.var, &stages));
    let unroll = if weight < 1.6 { 4 } else { 2 };
    VKernel {
        name: kernel.name.clone(),
        points,
        outer_axis,
        accs: kernel.accs.clone(),
        stages,
        tile,
        serial,
        costs,
        unroll,
        bases: 0,
        sites: Vec::new(),
    }
}

fn combines(kind: &InstKind) -> bool {
    matches!(kind, InstKind::Store { mode, .. } if *mode != kernel_ir::StoreMode::Write)
}

/// Estimated nanoseconds of an instruction for one lane of four.
fn inst_cost(inst: &Inst) -> f64 {
    match &inst.kind {
        InstKind::Op { op, .. } => match op {
            ScalarOp::Exp | ScalarOp::Log | ScalarOp::Tanh | ScalarOp::Erf | ScalarOp::Exp2 => 1.0,
            ScalarOp::Add | ScalarOp::Sub | ScalarOp::Mul | ScalarOp::Max | ScalarOp::Min => 0.08,
            ScalarOp::Select | ScalarOp::Neg | ScalarOp::Abs | ScalarOp::And | ScalarOp::Or => 0.08,
            ScalarOp::Eq | ScalarOp::Ne | ScalarOp::Lt | ScalarOp::Le | ScalarOp::Gt | ScalarOp::Ge => 0.08,
            ScalarOp::Div | ScalarOp::Sqrt | ScalarOp::Rsqrt => 0.4,
            _ => 4.0,
        },
        InstKind::Load { .. } | InstKind::Store { .. } => 0.12,
        InstKind::Scan { .. } => 1.0,
        _ => 0.08,
    }
}

/// Marks the values that vary along the axis and classifies each access.
fn classify(program: &Program, body: &Body, axis: Option<u32>, outer: bool, written: &[BufId]) -> Vec<VInst> {
    let mut out: Vec<VInst> = Vec::with_capacity(body.insts.len());
    let checked = checked(program, &body.insts);
    for (n, p) in body.insts.iter().enumerate() {
        let on_axis = |e: &SymExpr| axis.is_some_and(|v| e.any_leaf(|a| *a == Atom::Loop(v)));
        let varying = |v: &Val| out[v.0 as usize].varies;
        let mut varies = p.address.as_ref().is_some_and(on_axis);
        if p.address.is_some() {
            // Values inside the expression; the simplified one may have lost some.
            let e = p.address.clone().unwrap_or_default();
            e.for_each_leaf(&mut |a| {
                if let Atom::Value(n) = a {
                    varies |= out[*n as usize].varies;
                }
            });
        }
        let along = |e: &SymExpr| along(e, axis, &out);
        let at = |buf: BufId, e: &SymExpr| Access {
            root: program.root(buf),
            dtype: program.buffers[buf].dtype,
            along: along(e),
            address: e.clone(),
            read_only: !written.contains(&program.root(buf)),
            checked: checked[n],
        };
        let address = p.address.clone().unwrap_or_default();
        let kind = match &p.inst.kind {
            InstKind::Const(c) => VKind::Const(*c),
            InstKind::Index(_) => VKind::Index(address),
            InstKind::Load { buf, mask, .. } => {
                varies |= mask.as_ref().is_some_and(varying);
                let at = at(*buf, &address);
                // Memory that the kernel writes may change between lanes of other stages: reload at each point.
                VKind::Load { at, mask: *mask }
            }
            InstKind::Store { buf, value, mask, mode, .. } => {
                varies = true;
                VKind::Store { at: at(*buf, &address), value: *value, mask: *mask, mode: *mode }
            }
            InstKind::Op { op, args } => {
                varies = args.iter().any(varying);
                VKind::Op { op: *op, args: args.clone() }
            }
            InstKind::Check { value, mask, site, .. } if !program.unchecked_indices => {
                varies |= varying(value) || mask.as_ref().is_some_and(varying);
                VKind::Check { value: *value, size: address, mask: *mask, site: *site }
            }
            InstKind::Cast(v) | InstKind::Check { value: v, .. } => {
                varies = varying(v);
                VKind::Cast(*v)
            }
            InstKind::Bitcast(v) => {
                varies = varying(v);
                VKind::Bitcast(*v)
            }
            InstKind::Reduce { acc, value, position } => {
                varies = true;
                VKind::Reduce { acc: *acc, value: *value, position: *position }
            }
            InstKind::Acc(acc) => {
                varies = outer;
                VKind::Acc(*acc)
            }
            InstKind::Scan { op, value } => {
                varies = outer;
                VKind::Scan { op: *op, value: *value }
            }
            InstKind::Template => {
                varies = true;
                VKind::Template
            }
        };
        let sixteen = sixteen(p.inst.dtype, &kind, &out);
        out.push(VInst { dtype: p.inst.dtype, varies, sixteen, kind });
    }
    out
}

/// For each instruction whether it depends on a checked index.
fn checked(program: &Program, insts: &[PlacedInst]) -> Vec<bool> {
    let mut from: Vec<bool> = Vec::with_capacity(insts.len());
    for p in insts {
        let mut found = matches!(p.inst.kind, InstKind::Check { .. }) && !program.unchecked_indices;
        p.inst.kind.for_each_val(&mut |v| found |= from[v.0 as usize]);
        from.push(found);
    }
    from
}

fn along(e: &SymExpr, axis: Option<u32>, insts: &[VInst]) -> Along {
    let mut indirect = false;
    e.for_each_leaf(&mut |a| {
        if let Atom::Value(n) = a {
            indirect |= insts[*n as usize].varies;
        }
    });
    let Some(var) = axis else { return Along::Uniform };
    if indirect {
        return Along::Lanes;
    }
    match axis::step(e, var).and_then(|s| s.as_const()) {
        Some(0) => Along::Uniform,
        Some(1) => Along::Unit,
        _ => Along::Lanes,
    }
}

/// Additions into a partial sum of a lane. Opening and closing a block costs about ten operations for each register, a sixth
/// of the additions in it; a random walk of 64 roundings of half a unit ends at one or two units of the block's own sum.
const BLOCK: i64 = 64;

/// Of a stage's loops the innermost that, with those inside it, adds more than two blocks' terms to a lane, and its turns in a
/// block; unknown sizes count as long. `lanes`: those of the last loop. `None` where no sum is that long.
pub(crate) fn sum_blocks(loops: &[Dim], lanes: i64) -> Option<(usize, i64)> {
    let mut inside = 1i64;
    for (level, dim) in loops.iter().enumerate().rev() {
        let lanes = if level + 1 == loops.len() { lanes } else { 1 };
        let turns = dim.extent.as_const().map(|n| (n.max(1) + lanes - 1) / lanes);
        let terms = turns.map(|n| inside.saturating_mul(n)).filter(|n| *n <= 2 * BLOCK);
        let Some(terms) = terms else {
            return Some((level, (BLOCK / inside).max(1)));
        };
        inside = terms;
    }
    None
}

/// Whether a reduction's sum should be taken in two levels, for accuracy.
pub(crate) fn wants_blocks(op: ReduceOp, dtype: DType) -> bool {
    op == ReduceOp::Sum && dtype.is_float()
}
