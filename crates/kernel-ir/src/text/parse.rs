//! Reads a program's declarations, one function a construct of the grammar in the module's header. Every failure is a
//! [`TextError`] with its place. Kernels are read in `steps`.

use ir_core::text::{Cursor, TextError, TextProblem};
use ir_core::{DType, Guard, Origin, Shape, SymExpr};

use super::MAX_TEXT_BYTES;
use super::steps::step;
use super::words::is_word;
use crate::{
    ArenaPlan, BufId, Buffer, Const, IR_MAJOR, IR_MINOR, InputSpec, LiveRange, Operand, OutputSpec, Program,
    Site, Step, Storage,
};

pub(super) type Result<T> = std::result::Result<T, TextError>;

/// The whole text of a file.
pub(super) fn document(text: &str) -> Result<Program> {
    let c = &mut Cursor::new(text, is_word);
    if text.len() > MAX_TEXT_BYTES {
        return Err(c.error_at(0, TextProblem::TooLong { limit: MAX_TEXT_BYTES }));
    }
    header(c)?;
    c.expect_word("program")?;
    let mut program = Program { name: c.quoted("the program's name")?, ..Program::default() };
    declarations(c, &mut program)?;
    program.init = steps(c, "init")?;
    program.steps = steps(c, "steps")?;
    program.plan = plan(c)?;
    if c.at_end() { Ok(program) } else { Err(c.expected("a life (`b0 live 0..1`) or the end of the text")) }
}

/// `kir 1.0`
fn header(c: &mut Cursor<'_>) -> Result<()> {
    if !c.eat_word("kir") {
        return Err(c.expected(&format!("the header `kir {IR_MAJOR}.{IR_MINOR}`")));
    }
    let mark = c.mark();
    let major: u16 = c.number("a version such as `1.0`")?;
    c.expect(".")?;
    let minor: u16 = c.number("a version such as `1.0`")?;
    if major == IR_MAJOR && (0..=IR_MINOR).contains(&minor) {
        return Ok(());
    }
    let newest = (u32::from(IR_MAJOR), u32::from(IR_MINOR));
    let (found, advice) = (format!("{major}.{minor}"), "print the program again");
    Err(c.error_at(mark, TextProblem::Version { form: "kir", newest, found, advice }))
}

fn declarations(c: &mut Cursor<'_>, program: &mut Program) -> Result<()> {
    while c.eat_word("symbol") {
        c.next_number("s", program.symbols.len())?;
        program.symbols.push(c.symbol()?);
    }
    while c.eat_word("guard") {
        program.guards.push(guard(c)?);
    }
    while c.eat_word("site") {
        program.sites.push(site(c)?);
    }
    program.unchecked_indices = c.eat_word("unchecked_indices");
    while c.eat_word("buffer") {
        c.next_number("b", program.buffers.len())?;
        program.buffers.push(buffer(c)?);
    }
    while c.eat_word("input") {
        let name = c.quoted("the input's name")?;
        program.inputs.push(InputSpec { name, buf: buf(c)?, written: c.eat_word("written") });
    }
    while c.eat_word("constant") {
        let name = c.quoted("the constant's name")?;
        let buf = buf(c)?;
        let range = if c.eat_word("range") { Some(range(c)?) } else { None };
        program.constants.push(Const { name, buf, range });
    }
    while c.eat_word("output") {
        let name = c.quoted("the output's name")?;
        let Operand { buf, sizes, strides, offset } = operand(c)?;
        program.outputs.push(OutputSpec { name, buf, sizes, strides, offset });
    }
    Ok(())
}

/// `[s0 - s1], zero "the sizes differ" "add"`
fn guard(c: &mut Cursor<'_>) -> Result<Guard> {
    c.expect("[")?;
    let expression = expr(c)?;
    c.expect("]")?;
    c.expect(",")?;
    let relation = c.relation()?;
    let message = c.quoted("the guard's message")?;
    let mut origin = Origin::default();
    if c.eat_word("from") {
        origin.module = c.quoted("the module")?;
        origin.function = c.quoted("the function")?;
        origin.source = if c.eat_word("source") { Some(c.quoted("the source line")?) } else { None };
        if c.eat_word("operator") {
            origin.operator = c.quoted("the operator")?;
        }
    }
    Ok(Guard { expression, relation, origin, message })
}

/// `"aten.index.Tensor" "model.py:12" dim 0 wraps constant 1`
fn site(c: &mut Cursor<'_>) -> Result<Site> {
    let operator = c.quoted("the operator")?;
    let origin = c.quoted("the origin")?;
    c.expect_word("dim")?;
    let dim = c.number("the dimension")?;
    let wraps = c.eat_word("wraps");
    let constant = if c.eat_word("constant") { Some(c.number("the number of a constant")?) } else { None };
    Ok(Site { operator, origin, dim, wraps, constant })
}

/// `-4..=3`
fn range(c: &mut Cursor<'_>) -> Result<(i64, i64)> {
    let low = c.number("the smallest value")?;
    c.expect("..=")?;
    Ok((low, c.number("the largest value")?))
}

/// `"x" f32[2, 3]{3, 1}+0 arena`
fn buffer(c: &mut Cursor<'_>) -> Result<Buffer> {
    let name = c.quoted("the buffer's name")?;
    let dtype = dtype(c)?;
    let (sizes, strides, offset) = strided(c)?;
    Ok(Buffer { name, dtype, sizes, strides, offset, storage: storage(c)? })
}

fn storage(c: &mut Cursor<'_>) -> Result<Storage> {
    let mark = c.mark();
    match c.word() {
        "input" => c.number("the input's number").map(Storage::Input),
        "constant" => c.number("the constant's number").map(Storage::Constant),
        "persistent" => Ok(Storage::Persistent),
        "arena" => Ok(Storage::Arena),
        "output" => Ok(Storage::Output),
        "view" => buf(c).map(Storage::View),
        _ => Err(
            c.expected_at(mark, "a storage: `input`, `constant`, `persistent`, `arena`, `output` or `view`")
        ),
    }
}

/// `init:` and kernels.
fn steps(c: &mut Cursor<'_>, title: &str) -> Result<Vec<Step>> {
    c.expect_word(title)?;
    c.expect(":")?;
    let mut steps = Vec::new();
    while let Some(next) = step(c, 0)? {
        steps.push(next);
    }
    Ok(steps)
}

/// `plan bytes 128:` and `b2 live 0..3 at 64`.
fn plan(c: &mut Cursor<'_>) -> Result<ArenaPlan> {
    if !c.eat_word("plan") {
        return Err(c.expected("a kernel, `steps:` or `plan:`"));
    }
    let bytes: Option<u64> = if c.eat_word("bytes") { Some(c.number("the arena's bytes")?) } else { None };
    c.expect(":")?;
    let mut plan =
        ArenaPlan { lives: Vec::new(), offsets: bytes.map(|_| Vec::new()), bytes, dynamic: Vec::new() };
    while let Some(number) = c.eat_numbered("b") {
        if c.eat_word("dynamic") {
            plan.dynamic.push(live_range(c, number)?);
            continue;
        }
        c.expect_word("live")?;
        plan.lives.push(live_range(c, number)?);
        if let Some(offsets) = &mut plan.offsets {
            c.expect_word("at")?;
            offsets.push(c.number("the offset in bytes")?);
        }
    }
    Ok(plan)
}

/// `0..3`
fn live_range(c: &mut Cursor<'_>, buf: u32) -> Result<LiveRange> {
    let first = c.number("the first step")?;
    c.expect("..")?;
    Ok(LiveRange { buf: BufId(buf), first, last: c.number("the last step")? })
}

pub(super) fn buf(c: &mut Cursor<'_>) -> Result<BufId> {
    c.numbered("b").map(BufId)
}

pub(super) fn dtype(c: &mut Cursor<'_>) -> Result<DType> {
    let mark = c.mark();
    let word = c.word();
    let known = DType::ALL.iter().copied().find(|d| d.name() == word);
    known.ok_or_else(|| c.expected_at(mark, "a dtype such as `f32`"))
}

/// `b0[2, 3]{3, 1}+0`
pub(super) fn operand(c: &mut Cursor<'_>) -> Result<Operand> {
    let buf = buf(c)?;
    let (sizes, strides, offset) = strided(c)?;
    Ok(Operand { buf, sizes, strides, offset })
}

/// `[2, 3]{3, 1}+0`
fn strided(c: &mut Cursor<'_>) -> Result<(Shape, Shape, SymExpr)> {
    let sizes = shape(c)?;
    c.expect("{")?;
    let strides = Shape::from_vec(c.items("}", expr)?);
    c.expect("+")?;
    Ok((sizes, strides, offset(c)?))
}

/// `4`, `s0` or `(s0 + 1)`.
fn offset(c: &mut Cursor<'_>) -> Result<SymExpr> {
    if c.eat("(") {
        let offset = expr(c)?;
        return c.expect(")").map(|()| offset);
    }
    let mark = c.mark();
    let word = c.word();
    word.parse().map_err(|e| c.error_at(mark, TextProblem::Malformed(e)))
}

/// `[2, s0]`
pub(super) fn shape(c: &mut Cursor<'_>) -> Result<Shape> {
    c.expect("[")?;
    c.items("]", expr).map(Shape::from_vec)
}

/// `2*s0 + 1`
pub(super) fn expr(c: &mut Cursor<'_>) -> Result<SymExpr> {
    let mark = c.mark();
    c.raw().parse().map_err(|e| c.error_at(mark, TextProblem::Malformed(e)))
}
