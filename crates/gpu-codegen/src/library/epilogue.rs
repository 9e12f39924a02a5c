//! Kernels around a library call: the epilogue of a template over a result in scratch memory, and the copy of an operand
//! into another order of dimensions.
//!
//! Not here: what a library can do of an epilogue itself (`vendor_epilogue`), and the choice of candidates (the backend).

use std::collections::BTreeMap;
use std::fmt::Write;

use ir_core::{Atom, DType, SymExpr};
use kernel_ir::collapse::merge_neighbours;
use kernel_ir::{BufId, Epilogue, Inst, InstKind, LoopBounds, Operand, Program, Step, StoreMode};

use crate::address::address;
use crate::library::blocks::Blocks;
use crate::text::body::{BodyWriter, Substitutions, Uses};
use crate::text::index::divisible;
use crate::text::template::{EpilogueEffects, assemble, blocks_of, element, volume};
use crate::text::tiles::{Tiles, unit};
use crate::text::types::{memory_type, value_type};
use crate::{ENTRY, GenError, Kernel, Launch, Param, THREADS};

/// Bytes of one vector access.
pub(crate) const WIDTH: usize = 16;

/// The epilogue of a step that is a template; `None` for other steps.
pub fn epilogue_of(step: &Step) -> Option<&Epilogue> {
    match step {
        Step::Matmul(k) => Some(&k.epilogue),
        Step::Conv(k) => Some(&k.epilogue),
        Step::Attention(k) => Some(&k.epilogue),
        _ => None,
    }
}

/// The dtype in which a template's result is stored before its epilogue: that to which every use casts it; that of its operands,
/// `narrow`, where they have 16 bits and so has all that the epilogue stores, as a library rounds its result there and PyTorch
/// does; else `acc`, the dtype of the result itself.
pub fn result_dtype(program: &Program, epilogue: &Epilogue, narrow: DType, acc: DType) -> DType {
    let is_half = |dtype: DType| matches!(dtype, DType::F16 | DType::BF16);
    let narrows = |i: &Inst| match &i.kind {
        InstKind::Store { buf, .. } => is_half(program.buffers[*buf].dtype),
        _ => true,
    };
    if is_half(narrow) && acc == DType::F32 && epilogue.insts.iter().all(narrows) {
        return narrow;
    }
    let insts = &epilogue.insts;
    let is_result = |v: kernel_ir::Val| matches!(insts[v.0 as usize].kind, InstKind::Template);
    let mut found = None;
    for inst in insts {
        let mut uses = false;
        inst.kind.for_each_val(&mut |v| uses |= is_result(v));
        if !uses {
            continue;
        }
        let narrow = matches!(inst.kind, InstKind::Cast(_)) && is_half(inst.dtype);
        if !narrow || found.is_some_and(|d| d != inst.dtype) {
            return acc;
        }
        found = Some(inst.dtype);
    }
    found.unwrap_or(acc)
}

/// The buffer in whose memory the library may leave a dense result of `dtype` with its dimensions in `order`: the epilogue
/// stores every element there in the place of the one that it read, and the step reads nothing else of it. Whether the memory is the
/// buffer's alone during the step is for the memory plan to say.
pub fn in_place(program: &Program, step: &Step, dtype: DType, order: &[usize]) -> Option<BufId> {
    let epilogue = epilogue_of(step)?;
    let mut stride = SymExpr::ONE;
    let mut dense = SymExpr::ZERO;
    for &d in order.iter().rev() {
        dense = dense + SymExpr::atom(Atom::Loop(d as u32)) * &stride;
        stride = stride * epilogue.ranges.get(d)?;
    }
    let dense = dense.simplify(&LoopBounds { extents: &epilogue.ranges, symbols: program.bounds() });
    let in_place = |inst: &Inst| match &inst.kind {
        InstKind::Store { buf, index, mask: None, mode: StoreMode::Write, .. }
            if program.buffers[*buf].dtype == dtype =>
        {
            (address(program, *buf, index, &epilogue.ranges) == dense).then_some(*buf)
        }
        _ => None,
    };
    let touches = |inst: &Inst, root: BufId| match &inst.kind {
        InstKind::Store { buf, .. } | InstKind::Load { buf, .. } => program.root(*buf) == root,
        _ => false,
    };
    let found = program.root(epilogue.insts.iter().find_map(in_place)?);
    if step.operands().iter().any(|o| program.root(o.buf) == found) {
        return None;
    }
    (epilogue.insts.iter().filter(|inst| touches(inst, found)).count() == 1).then_some(found)
}

/// The dimensions of the result, outermost first, in the memory order of the epilogue's first store. The result should
/// have this order in scratch memory. Dimensions with equal strides keep their order.
pub fn store_order(program: &Program, epilogue: &Epilogue) -> Vec<usize> {
    let rank = epilogue.ranges.len();
    let stored = epilogue.insts.iter().find_map(|inst| match &inst.kind {
        InstKind::Store { buf, index, .. } => Some(address(program, *buf, index, &epilogue.ranges)),
        _ => None,
    });
    let hint = |a: &Atom| match a {
        Atom::Sym(id) => program.symbols.get(*id).map(|s| s.hint.unwrap_or(s.min)),
        _ => None,
    };
    let step = |d: usize| {
        let (step, _) = stored.as_ref()?.affine_in(&Atom::Loop(d as u32))?;
        step.eval(&hint)
    };
    let mut order: Vec<usize> = (0..rank).collect();
    let steps: Option<Vec<i64>> = (0..rank).map(step).collect();
    if let Some(steps) = steps {
        // The stride of a dimension of size 1 is meaningless; it keeps its position.
        if epilogue.ranges.iter().all(|e| *e != SymExpr::ONE) {
            order.sort_by_key(|&d| -steps[d].abs());
        } else {
            let mut moving: Vec<usize> = (0..rank).filter(|&d| epilogue.ranges[d] != SymExpr::ONE).collect();
            let places = moving.clone();
            moving.sort_by_key(|&d| -steps[d].abs());
            for (place, d) in places.into_iter().zip(moving) {
                order[place] = d;
            }
        }
    }
    order
}

/// The layout of a template's result in scratch memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packed<'a> {
    /// Dense, with its dimensions in this order, outermost first.
    Dense(&'a [usize]),
    /// Rearranged from space to depth.
    Folded(&'a Blocks),
}

/// Returns the kernel that applies the epilogue of `step` to a result of `dtype` in scratch buffer 0. Adjacent points are
/// accessed as 16-byte vectors wherever buffers are contiguous and nothing is folded. Where the epilogue stores in another order
/// than the result's, such as a row-major gradient of a weight, the result goes through tiles in shared memory.
///
/// # Errors
/// [`GenError`] for a step without an epilogue, an order that is not a permutation, dtypes without arithmetic.
pub fn epilogue(
    program: &Program,
    step: &Step,
    dtype: DType,
    packed: Packed<'_>,
) -> Result<Kernel, GenError> {
    let Some(epilogue) = epilogue_of(step) else {
        return Err(GenError::Malformed(format!("`{}` has no epilogue", step.name())));
    };
    if let Packed::Dense(order) = packed
        && let Some(kernel) = transposed(program, epilogue, dtype, order)?
    {
        return Ok(kernel);
    }
    let acc = result_type(epilogue);
    let order = match packed {
        Packed::Dense(order) => order.to_vec(),
        Packed::Folded(blocks) => blocks.order(),
    };
    let walk = Walk::new(program, &epilogue.ranges, &order)?;
    let mut uses = Uses::default();
    uses.scratch.push(memory_type(dtype)?);
    let (places, group) = match packed {
        Packed::Dense(_) => (Places::of(&walk, &epilogue.insts, dtype.size()), "g".into()),
        Packed::Folded(blocks) => {
            blocks.check(epilogue.ranges.len(), 1)?;
            (Places { lanes: 1, wide: Vec::new() }, blocks.place())
        }
    };
    let lanes = places.lanes;
    let writer =
        BodyWriter { program, extents: &epilogue.ranges, prefix: "e", guard: None, store_guard: None };
    let (mut before, mut after) = (String::new(), String::new());
    let mut placed = Substitutions::new();
    for wide in &places.wide {
        let Some(&buf) = wide.bufs.first() else { continue };
        let memory = uses.memory(program.root(buf));
        let (ty, name) = (memory_type(program.buffers[buf].dtype)?, memory.replace('b', "x"));
        let address = writer.expr(&wide.address, &mut uses);
        let _ = match wide.read {
            true => writeln!(
                before,
                "Vec<{ty}, {lanes}> {name} = *(const Vec<{ty}, {lanes}> *)({memory} + {address});"
            ),
            false => writeln!(before, "Vec<{ty}, {lanes}> {name};"),
        };
        if wide.written {
            let _ = writeln!(after, "*(Vec<{ty}, {lanes}> *)({memory} + {address}) = {name};");
        }
        placed.extend(wide.bufs.iter().map(|&buf| (buf, format!("{name}.v[u]"))));
    }
    let effects = EpilogueEffects { result: "result" };
    let text = writer.write_substituted(&epilogue.insts, &effects, &mut uses, &placed)?;
    let ty = value_type(dtype)?;
    let result = value_type(acc.unwrap_or(dtype))?;
    let body = format!(
        "{before}const Vec<{ty}, {lanes}> part = ((const Vec<{ty}, {lanes}> *)scratch0)[{group}];
{}const {result} result = to<{result}>(part.v[u]);
{text}}}
{after}",
        walk.lanes_head(lanes),
    );
    let body = walk.text(&writer, lanes, &body, &mut uses);
    if let Packed::Dense(order) = packed
        && let Some(buf) = in_place(program, step, dtype, order)
    {
        // The result may be read from where it is stored.
        uses.loaded.insert(buf);
    }
    let launch =
        Launch::flat(blocks_of(&volume(&epilogue.ranges), i64::from(THREADS) * lanes as i64), THREADS);
    assemble(program, ENTRY, &uses, launch, &body)
}

/// The dtype of a template's result.
fn result_type(epilogue: &Epilogue) -> Option<DType> {
    epilogue.insts.iter().find(|i| matches!(i.kind, InstKind::Template)).map(|i| i.dtype)
}

/// The kernel of an epilogue whose first store is contiguous along another dimension than the result; `None` for others.
fn transposed(
    program: &Program,
    epilogue: &Epilogue,
    dtype: DType,
    order: &[usize],
) -> Result<Option<Kernel>, GenError> {
    let (mut extents, mut insts) = (epilogue.ranges.clone(), epilogue.insts.clone());
    // Dimensions may become one where they follow each other in the result too.
    let adjacent = |slow: usize, fast: usize| {
        let mut behind = order.iter().skip_while(|d| **d != slow).skip(1);
        behind.find(|d| epilogue.ranges[**d] != SymExpr::ONE) == Some(&fast)
    };
    merge_neighbours(program, &mut extents, &mut insts, &adjacent);
    let stored = insts.iter().find_map(|inst| match &inst.kind {
        InstKind::Store { buf, index, .. } => Some(address(program, *buf, index, &extents)),
        _ => None,
    });
    let inner = order.iter().rev().find(|d| extents[**d] != SymExpr::ONE);
    let (Some(stored), Some(&inner)) = (stored, inner) else { return Ok(None) };
    let tiles = unit(&stored, &extents).and_then(|along| Tiles::of(program, &extents, inner, along));
    let Some(tiles) = tiles else { return Ok(None) };
    let mut uses = Uses::default();
    let ty = memory_type(dtype)?;
    uses.scratch.push(ty);
    let writer = BodyWriter { program, extents: &extents, prefix: "e", guard: None, store_guard: None };
    let place =
        order.iter().fold(SymExpr::ZERO, |place, &d| place * &extents[d] + SymExpr::loop_var(d as u32));
    let fill = format!("{} = scratch0[{}];\n", tiles.element(0), writer.expr(&place, &mut uses));
    let result = value_type(result_type(epilogue).unwrap_or(dtype))?;
    let text = writer.write(&insts, &EpilogueEffects { result: "result" }, &mut uses)?;
    let body = format!("const {result} result = to<{result}>({});\n{text}", tiles.element(0));
    let text = tiles.text(&writer, (&tiles.declared(0, ty), &fill, &body), &mut uses);
    assemble(program, ENTRY, &uses, tiles.launch(&extents), &text).map(Some)
}

/// Returns the kernel that copies an operand to scratch buffer `scratch`, dense, with its dimensions in `order`, outermost
/// first.
///
/// # Errors
/// [`GenError`] for an order that is not a permutation and a dtype without a C++ type.
pub fn relayout(
    program: &Program,
    operand: &Operand,
    order: &[usize],
    scratch: u32,
) -> Result<Kernel, GenError> {
    let walk = Walk::new(program, &operand.sizes, order)?;
    let mut uses = Uses::default();
    uses.scratch.push(memory_type(program.buffers[operand.buf].dtype)?);
    let writer = BodyWriter { program, extents: &operand.sizes, prefix: "e", guard: None, store_guard: None };
    let index: Vec<String> = (0..operand.sizes.len()).map(|d| format!("i{d}")).collect();
    let index: Vec<&str> = index.iter().map(String::as_str).collect();
    let from = element(&writer, operand, &index, &mut uses);
    let body = walk.text(&writer, 1, &format!("scratch0[g] = {from};\n"), &mut uses);
    let launch = Launch::flat(blocks_of(&volume(&operand.sizes), i64::from(THREADS)), THREADS);
    let mut kernel = assemble(program, ENTRY, &uses, launch, &body)?;
    for param in &mut kernel.params {
        if let Param::Scratch(n) = param {
            *n = scratch;
        }
    }
    Ok(kernel)
}

/// A loop over all points in the order of memory.
pub(crate) struct Walk<'a> {
    program: &'a Program,
    extents: &'a [SymExpr],
    order: &'a [usize],
}

impl<'a> Walk<'a> {
    pub(crate) fn new(
        program: &'a Program,
        extents: &'a [SymExpr],
        order: &'a [usize],
    ) -> Result<Walk<'a>, GenError> {
        let mut sorted = order.to_vec();
        sorted.sort_unstable();
        if !sorted.iter().copied().eq(0..extents.len()) {
            return Err(GenError::Malformed(format!(
                "{order:?} is no order of {} dimensions",
                extents.len()
            )));
        }
        Ok(Walk { program, extents, order })
    }

    /// The innermost dimension.
    fn inner(&self) -> Option<usize> {
        self.order.last().copied()
    }

    /// Returns the loop over the points of one thread; inside, the innermost variable is that of the point.
    fn lanes_head(&self, lanes: usize) -> String {
        let own = match self.inner() {
            Some(d) if lanes > 1 => format!("const idx i{d} = first{d} + u;\n"),
            _ => String::new(),
        };
        format!("#pragma unroll\nfor (int u = 0; u < {lanes}; ++u) {{\n{own}")
    }

    /// Returns the loop over groups `g` of `lanes` points around `body`, with the loop variables in scope.
    pub(crate) fn text(&self, writer: &BodyWriter<'_>, lanes: usize, body: &str, uses: &mut Uses) -> String {
        let count = writer.expr(&volume(self.extents), uses);
        let mut out = format!(
            "for (idx g = blockIdx.x * (idx)blockDim.x + threadIdx.x; g < {count} / {lanes}; g += (idx)gridDim.x * blockDim.x) {{\n"
        );
        let mut rest = if lanes == 1 { "g".to_owned() } else { format!("(g * {lanes})") };
        for (place, &d) in self.order.iter().enumerate().rev() {
            if self.extents[d] == SymExpr::ONE {
                let _ = writeln!(out, "const idx i{d} = 0;");
            } else if self.order[..place].iter().all(|&o| self.extents[o] == SymExpr::ONE) {
                let _ = writeln!(out, "const idx i{d} = {rest};");
                rest = "0".into();
            } else {
                let extent = writer.expr(&self.extents[d], uses);
                let _ =
                    writeln!(out, "const idx i{d} = {rest} % {extent}; const idx r{d} = {rest} / {extent};");
                rest = format!("r{d}");
            }
        }
        if let Some(d) = self.inner().filter(|_| lanes > 1) {
            let _ = writeln!(out, "const idx first{d} = i{d};");
        }
        out.push_str(body);
        out.push_str("}\n");
        out
    }
}

/// Memory of which a thread accesses several elements at once.
struct Wide {
    /// The buffers over it. An input that is written in place has two: its old and its new value.
    bufs: Vec<BufId>,
    address: SymExpr,
    read: bool,
    written: bool,
}

/// The vector accesses of an epilogue, and how many points a thread takes.
struct Places {
    lanes: usize,
    wide: Vec<Wide>,
}

/// A load or store of a body.
struct Access {
    buf: BufId,
    address: SymExpr,
    store: bool,
    plain: bool,
}

impl Places {
    fn of(walk: &Walk<'_>, insts: &[Inst], result_size: usize) -> Places {
        let program = walk.program;
        let mut accesses: Vec<Access> = insts.iter().filter_map(|i| access(walk, i)).collect();
        // The index of a dimension of size 1 is 0 whatever its stride.
        let single = |a: &Atom| match a {
            Atom::Loop(n) => {
                walk.extents.get(*n as usize).filter(|e| **e == SymExpr::ONE).map(|_| SymExpr::ZERO)
            }
            _ => None,
        };
        accesses.iter_mut().for_each(|a| a.address = a.address.subst(&single));
        let widest = accesses.iter().map(|a| program.buffers[a.buf].dtype.size()).chain([result_size]).max();
        let mut lanes = WIDTH / widest.unwrap_or(WIDTH).clamp(1, WIDTH);
        let Some(inner) = walk.inner() else { return Places { lanes: 1, wide: Vec::new() } };
        while lanes > 1 && !divisible(&walk.extents[inner], lanes as i64) {
            lanes /= 2;
        }
        if lanes == 1 {
            return Places { lanes, wide: Vec::new() };
        }
        let mut by_root: BTreeMap<BufId, Vec<&Access>> = BTreeMap::new();
        for a in &accesses {
            by_root.entry(program.root(a.buf)).or_default().push(a);
        }
        let wide = by_root.values().filter_map(|all| {
            let first = all[0];
            // Memory that is accessed through different addresses is accessed in the order of the body.
            let dtype = |buf: BufId| program.buffers[buf].dtype;
            let one =
                all.iter().all(|a| a.plain && dtype(a.buf) == dtype(first.buf) && a.address == first.address);
            (one && is_wide(&first.address, inner, lanes)).then(|| Wide {
                bufs: all.iter().map(|a| a.buf).collect(),
                address: first.address.clone(),
                read: all.iter().any(|a| !a.store),
                written: all.iter().any(|a| a.store),
            })
        });
        Places { lanes, wide: wide.collect() }
    }
}

fn access(walk: &Walk<'_>, inst: &Inst) -> Option<Access> {
    let (buf, index, store, plain) = match &inst.kind {
        InstKind::Load { buf, index, mask } => (*buf, index, false, mask.is_none()),
        InstKind::Store { buf, index, mask, mode, .. } => {
            (*buf, index, true, mask.is_none() && *mode == StoreMode::Write)
        }
        _ => return None,
    };
    Some(Access { buf, address: address(walk.program, buf, index, walk.extents), store, plain })
}

/// Whether `lanes` points that differ only in the innermost variable, starting at a multiple of `lanes`, are contiguous
/// and aligned to `lanes` elements.
fn is_wide(address: &SymExpr, inner: usize, lanes: usize) -> bool {
    if address.any_leaf(|a| matches!(a, Atom::Value(_))) {
        return false;
    }
    match address.affine_in(&Atom::Loop(inner as u32)) {
        Some((step, rest)) => step == SymExpr::ONE && divisible(&rest, lanes as i64),
        None => false,
    }
}
