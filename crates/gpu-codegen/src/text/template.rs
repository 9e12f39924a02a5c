//! What the kernels of templates and loops share: the head of the entry, operands, the epilogue, the index width.

use ir_core::{DType, SymExpr};
use kernel_ir::{AccId, BufId, Epilogue, Operand, Program, ReduceOp};

use crate::text::body::{BodyWriter, Effects, Uses};
use crate::text::index::Numbers;
use crate::text::types::{memory_type, value_type};
use crate::{GenError, Kernel, Launch, MAX_BLOCKS, Param};

/// The parts of a kernel's text.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct KernelText {
    /// What the body refers to.
    pub(crate) uses: Uses,
    /// The parameters' declarations.
    pub(crate) declared: String,
    /// The types of the parameters that are buffers, in their order.
    pub(crate) pointers: Vec<String>,
    /// The body of the entry, without the wait for earlier launches.
    pub(crate) body: String,
}

/// Assembles a kernel. `body` uses the buffers and symbols of `uses`.
pub(crate) fn assemble(
    program: &Program,
    entry: &str,
    uses: &Uses,
    launch: Launch,
    body: &str,
) -> Result<Kernel, GenError> {
    let mut params = Vec::new();
    let mut list = Vec::new();
    let mut pointers = Vec::new();
    for n in 0..uses.maps.len() {
        list.push(format!("TENSOR_MAP(map{n})"));
        params.push(Param::Map(n as u32));
    }
    for (place, &buf) in uses.buffers.iter().enumerate() {
        let ty = memory_type(program.buffers[buf].dtype)?;
        // What is only read may go through the read-only cache. What is read back after it was written must not be
        // `__restrict__`: the compiler could otherwise reuse a value from before a barrier that another thread has
        // overwritten. Nor must buffers that may be one memory.
        let written = uses.written.contains(&buf);
        let shares = |other: &&BufId| {
            uses.written.contains(*other) != written && program.plan.may_share(program, buf, **other)
        };
        let shared = uses.buffers.iter().any(|other| shares(&other));
        let head = if written { "" } else { "const " };
        let alone = if shared || (written && uses.loaded.contains(&buf)) { "" } else { "__restrict__ " };
        list.push(format!("{head}{ty} *{alone}b{place}"));
        pointers.push(format!("{head}{ty} *"));
        params.push(Param::Buffer(buf));
    }
    for (n, ty) in uses.scratch.iter().enumerate() {
        list.push(format!("{ty} *scratch{n}"));
        params.push(Param::Scratch(n as u32));
    }
    if uses.tickets {
        list.push("u32 *tickets".into());
        params.push(Param::Tickets);
    }
    if !uses.checks.is_empty() {
        list.extend(["Fault *faults".into(), "i64 first_check".into()]);
        params.extend([Param::Fault, Param::FirstCheck]);
    }
    for &symbol in &uses.symbols {
        list.push(format!("i64 {symbol}_"));
        params.push(Param::Symbol(symbol));
    }
    let mut slices = String::new();
    for (place, start) in uses.own_slices() {
        list.push(format!("i64 slice{place}_"));
        params.push(Param::Slice(start));
        let pointer = pointers.get(place).map_or("", String::as_str);
        slices.push_str(&format!("{pointer}slice{place} = b{place} + slice{place}_;\n"));
    }
    let mut arguments = String::new();
    for (place, number) in uses.numbers.iter().flat_map(Numbers::all).enumerate() {
        list.push(format!("i64 arg{place}_"));
        params.push(Param::Number(number));
        arguments.push_str(&format!("const idx arg{place} = (idx)arg{place}_;\n"));
    }
    let idx = index_type(program, uses);
    let symbols: String = uses.symbols.iter().map(|s| format!("const idx {s} = (idx){s}_;\n")).collect();
    let threads = launch.threads;
    let (declared, body) =
        (list.join(", "), format!("using idx = {idx};\n{symbols}{slices}{arguments}{body}"));
    let order = if uses.waits { "launch_next" } else { "launch_order" };
    let source = format!(
        "extern \"C\" __global__ void __launch_bounds__({threads}) {entry}({declared}) {{\n{order}();\n{body}}}\n"
    );
    let (maps, checks) = (uses.maps.clone(), uses.checks.clone());
    let text_parts = KernelText { uses: uses.clone(), declared, pointers, body };
    Ok(Kernel {
        entry: entry.to_owned(),
        source,
        params,
        maps,
        launch,
        checks,
        early: uses.waits,
        text_parts,
    })
}

/// Returns the index type: 32 bits where every address of the kernel provably fits.
fn index_type(program: &Program, uses: &Uses) -> &'static str {
    let fits = |buf: &BufId| {
        let span = program.buffers[*buf].span().range(&program.bounds()).1;
        span.is_some_and(|n| n < i64::from(i32::MAX) / 2)
    };
    if uses.buffers.iter().all(fits) && uses.symbols.is_empty() { "i32" } else { "i64" }
}

/// `ceil(points / threads)`, at most [`MAX_BLOCKS`].
pub(crate) fn blocks_of(points: &SymExpr, per_block: i64) -> SymExpr {
    points.ceil_div(&SymExpr::from_i64(per_block)).sym_min(&SymExpr::from_i64(MAX_BLOCKS))
}

/// The number of points of a domain.
pub(crate) fn volume(extents: &[SymExpr]) -> SymExpr {
    extents.iter().fold(SymExpr::ONE, |n, e| n * e)
}

/// Returns statements that compute the loop variables `i{first}…` from the flat variable `flat`, innermost fastest.
pub(crate) fn unravel(
    writer: &BodyWriter<'_>,
    extents: &[SymExpr],
    first: usize,
    flat: &str,
    uses: &mut Uses,
) -> String {
    let mut out = String::new();
    let mut rest = flat.to_owned();
    // Constants, since they divide.
    let numbers = uses.numbers.take();
    for (d, extent) in extents.iter().enumerate().rev() {
        let n = first + d;
        if *extent == SymExpr::ONE {
            out.push_str(&format!("const idx i{n} = 0;\n"));
            continue;
        }
        if d == 0 || extents[..d].iter().all(|e| *e == SymExpr::ONE) {
            out.push_str(&format!("const idx i{n} = {rest};\n"));
            rest = "0".into();
            continue;
        }
        let extent = writer.expr(extent, uses);
        out.push_str(&format!("const idx i{n} = {rest} % {extent}; const idx r{n} = {rest} / {extent};\n"));
        rest = format!("r{n}");
    }
    uses.numbers = numbers;
    out
}

/// Returns an element of an operand at an index given as C++ text, one per dimension, in the memory's own type.
pub(crate) fn element(writer: &BodyWriter<'_>, operand: &Operand, index: &[&str], uses: &mut Uses) -> String {
    let program = writer.program;
    // The operand's offset counts from the buffer's memory, which for a view begins at its root.
    let (memory, offset) = writer.place(program.root(operand.buf), &operand.offset, uses);
    let mut terms = vec![offset];
    for (i, stride) in index.iter().zip(&operand.strides) {
        if *stride != SymExpr::ZERO {
            terms.push(format!("(idx)({i}) * {}", writer.expr(stride, uses)));
        }
    }
    format!("{memory}[{}]", terms.join(" + "))
}

/// The type in which a template multiplies and adds.
pub(crate) fn compute_type(dtype: DType) -> Result<&'static str, GenError> {
    value_type(dtype.compute())
}

/// The effects of an epilogue, which reads the template's result.
pub(crate) struct EpilogueEffects {
    /// The variable that holds the result.
    pub(crate) result: &'static str,
}

impl Effects for EpilogueEffects {
    fn reduce(&self, _: AccId, _: &str, _: Option<&str>) -> Result<String, GenError> {
        Err(GenError::Malformed("an epilogue cannot reduce".into()))
    }
    fn acc(&self, _: AccId) -> String {
        "0".into()
    }
    fn scan(&self, _: &str, _: DType, _: ReduceOp, _: &str) -> Result<String, GenError> {
        Err(GenError::Malformed("an epilogue cannot scan".into()))
    }
    fn template(&self) -> Result<String, GenError> {
        Ok(self.result.to_owned())
    }
}

/// Returns an epilogue as statements; the loop variables are in scope.
pub(crate) fn epilogue(
    program: &Program,
    epilogue: &Epilogue,
    result: &'static str,
    uses: &mut Uses,
) -> Result<String, GenError> {
    let writer =
        BodyWriter { program, extents: &epilogue.ranges, prefix: "e", guard: None, store_guard: None };
    writer.write(&epilogue.insts, &EpilogueEffects { result }, uses)
}
