//! Packs the weights of convolutions for tiles once, when constants are bound: the channels of a window point become
//! contiguous, as in PyTorch's channels-last format. It rewrites a program into an equivalent one.
//!
//! Not here: weights that change between calls (inputs), and those of depthwise convolutions, which are not computed by
//! tiles.

use std::collections::BTreeMap;

use ir_core::{DType, Shape, SymExpr};
use kernel_ir::{
    BodyBuilder, BufId, Buffer, Conv, InstKind, LoopKernel, Operand, Program, Stage, Step, Storage, StoreMode,
};

/// Rewrites a program's convolutions to read packed weights, and adds the init steps that pack them.
pub fn pack_weights(program: &mut Program) {
    let relaid = restride(program);
    let mut steps = std::mem::take(&mut program.steps);
    let mut packed: Vec<(Operand, Operand)> = Vec::new();
    for_each_conv(&mut steps, &mut |conv| {
        let Some(strides) = preferred_strides(program, conv) else { return };
        if relaid.contains(&conv.weight.buf) {
            conv.weight.strides = strides;
            return;
        }
        let known = packed.iter().find(|(from, to)| *from == conv.weight && to.strides == strides);
        let to = match known {
            Some((_, to)) => to.clone(),
            None => {
                let to = copy(program, &conv.weight, strides);
                packed.push((conv.weight.clone(), to.clone()));
                to
            }
        };
        conv.weight = to;
    });
    program.steps = steps;
}

/// Changes the strides of weights that init steps compute and only convolutions read, in place of a copy.
fn restride(program: &mut Program) -> Vec<BufId> {
    // The strides that all readers of each such weight prefer; `None` where they differ or something else reads it.
    let mut found: BTreeMap<BufId, Option<Shape>> = BTreeMap::new();
    let views = program.buffers.iter().filter_map(|(_, b)| match b.storage {
        Storage::View(of) => Some(of),
        _ => None,
    });
    let fixed = views.chain(program.outputs.iter().map(|o| o.buf));
    found.extend(fixed.map(|buf| (buf, None)));
    for_each_step(&program.init, &mut |step| collect_layouts(program, step, false, &mut found));
    for_each_step(&program.steps, &mut |step| collect_layouts(program, step, true, &mut found));
    let mut relaid = Vec::new();
    for (buf, strides) in found {
        if let Some(strides) = strides {
            program.buffers[buf].strides = strides;
            relaid.push(buf);
        }
    }
    relaid
}

/// Records which strides a step prefers for the weights that it reads as operands; other reads forbid a change unless
/// `may` holds. Bodies index elements logically, whatever the strides.
fn collect_layouts(program: &Program, step: &Step, may: bool, found: &mut BTreeMap<BufId, Option<Shape>>) {
    let mut note = |buf: BufId, strides: Option<Shape>| {
        let known = found.entry(buf).or_insert_with(|| strides.clone());
        if *known != strides {
            *known = None;
        }
    };
    if let Step::Extern(call) = step {
        call.outputs.iter().for_each(|o| note(o.buf, None));
    }
    let weight = if let Step::Conv(conv) = step { Some(conv) } else { None };
    for operand in step.operands() {
        let buffer = &program.buffers[operand.buf];
        let whole = may
            && buffer.storage == Storage::Persistent
            && operand.sizes == buffer.sizes
            && operand.strides == buffer.strides
            && operand.offset == SymExpr::ZERO;
        let conv = weight.filter(|c| whole && std::ptr::eq(&c.weight, operand));
        note(operand.buf, conv.and_then(|c| preferred_strides(program, c)));
    }
}

pub(crate) fn for_each_step(steps: &[Step], visit: &mut dyn FnMut(&Step)) {
    for step in steps {
        visit(step);
        step.nested().into_iter().for_each(|list| for_each_step(list, visit));
    }
}

fn for_each_conv(steps: &mut [Step], visit: &mut dyn FnMut(&mut Conv)) {
    for step in steps {
        if let Step::Conv(conv) = step {
            visit(conv);
        }
        step.nested_mut().into_iter().for_each(|list| for_each_conv(list, visit));
    }
}

/// The preferred strides of a convolution's weight; `None` where it has them already or cannot be packed.
fn preferred_strides(program: &Program, conv: &Conv) -> Option<Shape> {
    let weight = &conv.weight;
    let rank = weight.sizes.len();
    let root = program.root(weight.buf);
    let constant = matches!(program.buffers[root].storage, Storage::Constant(_) | Storage::Persistent);
    let tiled = matches!(program.buffers[weight.buf].dtype, DType::F16 | DType::BF16 | DType::F32);
    let fixed =
        weight.sizes.iter().chain(&weight.strides).chain([&weight.offset]).all(|e| e.as_const().is_some());
    if !constant || !tiled || !fixed || rank < 3 {
        return None;
    }
    let in_group = if conv.transposed {
        weight.sizes[0].floor_div(&SymExpr::from_i64(conv.groups))
    } else {
        weight.sizes[1].clone()
    };
    if conv.groups > 1 && in_group == SymExpr::ONE {
        return None;
    }
    let mut strides: Shape = weight.strides.clone();
    let mut step = SymExpr::ONE;
    // Transposed convolutions use the same order, since libraries see their weight as that of the forward convolution.
    for d in [1].into_iter().chain((2..rank).rev()).chain([0]) {
        strides[d] = step.clone();
        step = step * &weight.sizes[d];
    }
    let same = (0..rank).all(|d| weight.sizes[d] == SymExpr::ONE || weight.strides[d] == strides[d]);
    (!same).then_some(strides)
}

/// Adds an init step that copies an operand to other strides, and returns the copy.
pub(super) fn copy(program: &mut Program, from: &Operand, strides: Shape) -> Operand {
    let root = program.root(from.buf);
    let (name, dtype) = (program.buffers[root].name.clone(), program.buffers[root].dtype);
    let sizes = from.sizes.clone();
    let view = program.buffers.push(Buffer {
        name: format!("{name}_as_read"),
        dtype,
        sizes: sizes.clone(),
        strides: from.strides.clone(),
        offset: from.offset.clone(),
        storage: Storage::View(root),
    });
    let to = program.buffers.push(Buffer {
        name: format!("{name}_packed"),
        dtype,
        sizes: sizes.clone(),
        strides: strides.clone(),
        offset: SymExpr::ZERO,
        storage: Storage::Persistent,
    });
    program.init.push(Step::Loop(copy_kernel(format!("pack_{name}"), view, to, dtype, &sizes)));
    Operand { buf: to, sizes, strides, offset: SymExpr::ZERO }
}

/// The loop `to[i…] = from[i…]`.
pub(super) fn copy_kernel(name: String, from: BufId, to: BufId, dtype: DType, sizes: &Shape) -> LoopKernel {
    let index: Shape = (0..sizes.len() as u32).map(SymExpr::loop_var).collect();
    let mut b = BodyBuilder::new();
    let value = b.push(dtype, InstKind::Load { buf: from, index: index.clone(), mask: None });
    b.store(to, index, value, StoreMode::Write);
    LoopKernel {
        name,
        origins: Vec::new(),
        outer: sizes.clone(),
        accs: Vec::new(),
        stages: vec![Stage { inner: Shape::new(), insts: b.finish() }],
    }
}
