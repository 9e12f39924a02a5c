//! Reads kernels and their bodies, one function per construct of the grammar in the module's header.

use ir_core::text::Cursor;
use ir_core::{DType, Scalar};

use super::control;
use super::parse::{Result, buf, dtype, expr, operand, shape};
use crate::{
    AccDecl, AccId, Along, Attention, Collective, CollectiveOp, Combine, Conv, Dequant, Dropout, Epilogue,
    ExternCall, ExternOp, Groups, Inst, InstKind, LinalgOp, LoopKernel, Matmul, ReduceOp, ScalarOp, Stage,
    Step, StoreMode, Val,
};

/// A kernel or a statement of control flow, if one is next; `depth` lists of steps are open around it.
pub(super) fn step(c: &mut Cursor<'_>, depth: usize) -> Result<Option<Step>> {
    Ok(Some(match () {
        () if c.eat_word("loop") => Step::Loop(loop_kernel(c)?),
        () if c.eat_word("matmul") => Step::Matmul(matmul(c)?),
        () if c.eat_word("conv") => Step::Conv(conv(c)?),
        () if c.eat_word("attention") => Step::Attention(attention(c)?),
        () if c.eat_word("extern") => Step::Extern(extern_call(c)?),
        () if c.next_is_word("bind") || c.next_is_word("assert") => control::single(c)?,
        () if ["cond", "for", "while", "together"].iter().any(|w| c.next_is_word(w)) => {
            control::nested(c, depth)?
        }
        () => return Ok(None),
    }))
}

pub(super) fn name(c: &mut Cursor<'_>) -> Result<String> {
    c.quoted("the kernel's name")
}

/// ` from "a", "b"`
pub(super) fn origins(c: &mut Cursor<'_>) -> Result<Vec<String>> {
    let mut origins = Vec::new();
    if c.eat_word("from") {
        loop {
            origins.push(c.quoted("the name of a graph's node")?);
            if !c.eat(",") {
                break;
            }
        }
    }
    Ok(origins)
}

fn loop_kernel(c: &mut Cursor<'_>) -> Result<LoopKernel> {
    let name = name(c)?;
    c.expect_word("outer")?;
    let outer = shape(c)?;
    let origins = origins(c)?;
    let (mut accs, mut stages) = (Vec::new(), Vec::new());
    while c.next_is("acc") {
        c.next_number("acc", accs.len())?;
        c.expect(":")?;
        let dtype = dtype(c)?;
        accs.push(AccDecl { op: reduce_op(c)?, dtype });
    }
    while c.eat_word("stage") {
        stages.push(Stage { inner: shape(c)?, insts: body(c)? });
    }
    Ok(LoopKernel { name, origins, outer, accs, stages })
}

/// ` acc f32`
fn acc_dtype(c: &mut Cursor<'_>) -> Result<DType> {
    c.expect_word("acc")?;
    dtype(c)
}

/// `epilogue [ranges]` and its body.
fn epilogue(c: &mut Cursor<'_>) -> Result<Epilogue> {
    c.expect_word("epilogue")?;
    Ok(Epilogue { ranges: shape(c)?, insts: body(c)? })
}

/// `a` and an operand.
fn titled(c: &mut Cursor<'_>, title: &str) -> Result<crate::Operand> {
    c.expect_word(title)?;
    operand(c)
}

/// ` zero 128`, where there is one.
fn zero(c: &mut Cursor<'_>) -> Result<i64> {
    if c.eat_word("zero") { c.number("the zero point") } else { Ok(0) }
}

fn matmul(c: &mut Cursor<'_>) -> Result<Matmul> {
    let (name, acc, zero, origins) = (name(c)?, acc_dtype(c)?, zero(c)?, origins(c)?);
    let (a, b) = (titled(c, "a")?, titled(c, "b")?);
    let (dequant, groups) = (dequant(c)?, groups(c)?);
    Ok(Matmul { name, origins, a, b, acc, zero, dequant, groups, epilogue: epilogue(c)? })
}

/// `groups rows` and the ends of groups, where there are any.
fn groups(c: &mut Cursor<'_>) -> Result<Option<Groups>> {
    if !c.eat_word("groups") {
        return Ok(None);
    }
    let along = Along::ALL.into_iter().find(|along| c.eat_word(along.name()));
    let Some(along) = along else { return Err(c.expected("`rows` or `depth`")) };
    Ok(Some(Groups { ends: operand(c)?, along }))
}

/// `factor` and `zero` of quantized weights, where there are any.
fn dequant(c: &mut Cursor<'_>) -> Result<Option<Dequant>> {
    if !c.eat_word("factor") {
        return Ok(None);
    }
    let factor = operand(c)?;
    let zero = if c.eat_word("zero") { Some(operand(c)?) } else { None };
    Ok(Some(Dequant { factor, zero }))
}

fn conv(c: &mut Cursor<'_>) -> Result<Conv> {
    let (name, acc, zero) = (name(c)?, acc_dtype(c)?, zero(c)?);
    let transposed = c.eat_word("transposed");
    let origins = origins(c)?;
    let (input, weight) = (titled(c, "input")?, titled(c, "weight")?);
    c.expect_word("window")?;
    let stride = numbers(c, "stride")?;
    c.expect_word("padding")?;
    c.expect("[")?;
    let padding = c.items("]", pair)?;
    let dilation = numbers(c, "dilation")?;
    c.expect_word("groups")?;
    let groups = c.number("the groups")?;
    let epilogue = epilogue(c)?;
    Ok(Conv {
        name,
        origins,
        input,
        weight,
        stride,
        padding,
        dilation,
        groups,
        transposed,
        acc,
        zero,
        epilogue,
    })
}

/// `stride [2, 2]`
fn numbers(c: &mut Cursor<'_>, title: &str) -> Result<Vec<i64>> {
    c.expect_word(title)?;
    c.expect("[")?;
    c.items("]", |c| c.number("a number"))
}

/// `(1, 0)`
fn pair(c: &mut Cursor<'_>) -> Result<(i64, i64)> {
    c.expect("(")?;
    let before = c.number("the zeros before")?;
    c.expect(",")?;
    let after = c.number("the zeros after")?;
    c.expect(")").map(|()| (before, after))
}

fn attention(c: &mut Cursor<'_>) -> Result<Attention> {
    let (name, acc) = (name(c)?, acc_dtype(c)?);
    c.expect_word("scale")?;
    let scale = c.float()?;
    let causal = c.eat_word("causal");
    let origins = origins(c)?;
    let (q, k, v) = (titled(c, "q")?, titled(c, "k")?, titled(c, "v")?);
    let mask = if c.eat_word("mask") { Some(operand(c)?) } else { None };
    let sums = if c.eat_word("sums") { Some(operand(c)?) } else { None };
    let dropout = if c.eat_word("kept") {
        let kept = operand(c)?;
        c.expect_word("factor")?;
        Some(Dropout { kept, factor: c.float()? })
    } else {
        None
    };
    let (visibility, epilogue) = (None, epilogue(c)?);
    Ok(Attention { name, origins, q, k, v, mask, sums, dropout, visibility, causal, scale, acc, epilogue })
}

fn extern_call(c: &mut Cursor<'_>) -> Result<ExternCall> {
    let name = name(c)?;
    let mark = c.mark();
    let op = match c.word() {
        "sort" => sort(c)?,
        "attention_backward" => {
            c.expect_word("scale")?;
            let scale = c.float()?;
            let causal = c.eat_word("causal");
            let dropout = if c.eat_word("kept_factor") { Some(c.float()?) } else { None };
            ExternOp::AttentionBackward { causal, scale, dropout, visibility: None }
        }
        "fourier" => fourier(c)?,
        "wait" => ExternOp::Wait,
        "all_reduce" => collective(c, |c| Ok(CollectiveOp::AllReduce(combine(c)?)))?,
        "all_gather" => collective(c, |_| Ok(CollectiveOp::AllGather))?,
        "reduce_scatter" => collective(c, |c| Ok(CollectiveOp::ReduceScatter(combine(c)?)))?,
        "all_to_all" => collective(c, |_| Ok(CollectiveOp::AllToAll))?,
        "broadcast" => collective(c, |c| {
            c.expect_word("from_rank")?;
            Ok(CollectiveOp::Broadcast { root: c.number("the rank")? })
        })?,
        "shift" => collective(c, |c| {
            c.expect_word("by")?;
            Ok(CollectiveOp::Shift { by: c.number("the distance")?, wraps: c.eat_word("wraps") })
        })?,
        word => match LinalgOp::from_name(word, |option| c.eat_word(option)) {
            Some(op) => ExternOp::Linalg { op, complex: c.eat_word("complex") },
            None => return Err(c.expected_at(mark, "a routine such as `sort` or `solve`")),
        },
    };
    let origins = origins(c)?;
    let (mut inputs, mut outputs) = (Vec::new(), Vec::new());
    while c.eat_word("in") {
        inputs.push(operand(c)?);
    }
    while c.eat_word("out") {
        outputs.push(operand(c)?);
    }
    Ok(ExternCall { name, origins, op, inputs, outputs })
}

/// ` sum group "dp" started`: parameters, the group, whether a later step waits.
fn collective(
    c: &mut Cursor<'_>,
    op: impl FnOnce(&mut Cursor<'_>) -> Result<CollectiveOp>,
) -> Result<ExternOp> {
    let op = op(c)?;
    c.expect_word("group")?;
    let group = c.quoted("the group's name")?;
    Ok(ExternOp::Collective(Collective { op, group, asynchronous: c.eat_word("started") }))
}

fn combine(c: &mut Cursor<'_>) -> Result<Combine> {
    let mark = c.mark();
    Combine::from_name(c.word()).ok_or_else(|| c.expected_at(mark, "a combination such as `sum`"))
}

/// ` dim 0 descending`
fn sort(c: &mut Cursor<'_>) -> Result<ExternOp> {
    c.expect_word("dim")?;
    let dim = c.number("the dimension")?;
    let mark = c.mark();
    match c.word() {
        "ascending" => Ok(ExternOp::Sort { dim, descending: false }),
        "descending" => Ok(ExternOp::Sort { dim, descending: true }),
        _ => Err(c.expected_at(mark, "`ascending` or `descending`")),
    }
}

/// ` dim 0 forward scale 1.0`
fn fourier(c: &mut Cursor<'_>) -> Result<ExternOp> {
    c.expect_word("dim")?;
    let dim = c.number("the dimension")?;
    let mark = c.mark();
    let forward = match c.word() {
        "forward" => true,
        "backward" => false,
        _ => return Err(c.expected_at(mark, "`forward` or `backward`")),
    };
    c.expect_word("scale")?;
    Ok(ExternOp::Fourier { dim, forward, scale: c.float()? })
}

fn reduce_op(c: &mut Cursor<'_>) -> Result<ReduceOp> {
    let mark = c.mark();
    reduce_named(c.word()).ok_or_else(|| c.expected_at(mark, "a reduction such as `sum`"))
}

fn reduce_named(name: &str) -> Option<ReduceOp> {
    ReduceOp::ALL.iter().copied().find(|op| op.name() == name)
}

/// Instructions `v0: f32 = …` as long as they go on.
fn body(c: &mut Cursor<'_>) -> Result<Vec<Inst>> {
    let mut insts = Vec::new();
    while c.next_is("v") {
        c.next_number("v", insts.len())?;
        c.expect(":")?;
        let dtype = dtype(c)?;
        c.expect("=")?;
        insts.push(Inst { dtype, kind: inst(c)? });
    }
    Ok(insts)
}

fn inst(c: &mut Cursor<'_>) -> Result<InstKind> {
    if let Some(number) = c.eat_numbered("acc") {
        return Ok(InstKind::Acc(AccId(number)));
    }
    let mark = c.mark();
    Ok(match c.word() {
        "const" => InstKind::Const(scalar(c)?),
        "index" => InstKind::Index(expr(c)?),
        "load" => InstKind::Load { buf: buf(c)?, index: shape(c)?, mask: mask(c)? },
        "check" => check(c)?,
        "cast" => InstKind::Cast(val(c)?),
        "bitcast" => InstKind::Bitcast(val(c)?),
        "reduce" => reduce(c)?,
        "template" => InstKind::Template,
        word => match (store_mode(word), word.strip_prefix("scan_").and_then(reduce_named)) {
            (Some(mode), _) => store(c, mode)?,
            (None, Some(op)) => InstKind::Scan { op, value: val(c)? },
            (None, None) => match ScalarOp::from_name(word) {
                Some(op) => InstKind::Op { op, args: args(c)? },
                None => return Err(c.expected_at(mark, "an instruction such as `load` or `add`")),
            },
        },
    })
}

/// `v0, [s0] if v1 at 2`
fn check(c: &mut Cursor<'_>) -> Result<InstKind> {
    let value = val(c)?;
    c.expect(",")?;
    c.expect("[")?;
    let size = expr(c)?;
    c.expect("]")?;
    let mask = mask(c)?;
    c.expect_word("at")?;
    Ok(InstKind::Check { value, size, mask, site: c.number("the number of a site")? })
}

fn val(c: &mut Cursor<'_>) -> Result<Val> {
    c.numbered("v").map(Val)
}

/// `v0, v1`
fn args(c: &mut Cursor<'_>) -> Result<smallvec::SmallVec<[Val; 3]>> {
    let mut args = smallvec::SmallVec::new();
    loop {
        args.push(val(c)?);
        if !c.eat(",") {
            return Ok(args);
        }
    }
}

/// ` if v3`
fn mask(c: &mut Cursor<'_>) -> Result<Option<Val>> {
    if c.eat_word("if") { val(c).map(Some) } else { Ok(None) }
}

fn store_mode(word: &str) -> Option<StoreMode> {
    match word {
        "store" => Some(StoreMode::Write),
        "store_add" => Some(StoreMode::Add),
        _ => word.strip_prefix("store_").and_then(reduce_named).map(StoreMode::Reduce),
    }
}

fn store(c: &mut Cursor<'_>, mode: StoreMode) -> Result<InstKind> {
    let (buf, index) = (buf(c)?, shape(c)?);
    c.expect(",")?;
    Ok(InstKind::Store { buf, index, value: val(c)?, mask: mask(c)?, mode })
}

/// `acc0, v1, v2`
fn reduce(c: &mut Cursor<'_>) -> Result<InstKind> {
    let acc = AccId(c.numbered("acc")?);
    c.expect(",")?;
    let value = val(c)?;
    let position = if c.eat(",") { Some(val(c)?) } else { None };
    Ok(InstKind::Reduce { acc, value, position })
}

/// A constant: `true`, `3`, `0.5`, `complex(1.0, -0.0)`.
fn scalar(c: &mut Cursor<'_>) -> Result<Scalar> {
    if c.eat_word("true") {
        return Ok(Scalar::Bool(true));
    }
    if c.eat_word("false") {
        return Ok(Scalar::Bool(false));
    }
    if c.eat_word("complex") {
        return c.complex();
    }
    c.real()
}
