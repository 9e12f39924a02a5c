//! Matrix products: by tiles (`tile`) where the dtype supports them, else by a simple kernel for any strides and dtypes.
//! The epilogue is fused in both.

use ir_core::{DType, SymExpr};
use kernel_ir::{Along, Groups, Matmul, Program};

use crate::product::gemv::Skinny;
use crate::product::groups;
use crate::product::tile::{Axis, Product, TileOperand, is_multiple};
use crate::product::tile_text::Unit;
use crate::text::body::{BodyWriter, Uses};
use crate::text::template::{assemble, compute_type, element, epilogue, unravel, volume};
use crate::{ENTRY, GenError, Kernel, Launch, Target, Variant};

/// Rows and columns of a block's tile, and its step along the inner dimension.
const TILE: i64 = 64;
const DEPTH: i64 = 16;
/// Threads per block; each computes 4 × 4 elements.
const THREADS: u32 = 256;
/// Elements of rows whose length matters to a library.
const LONG_ROWS: i64 = 512;

/// Returns the candidate implementations, best first by rule.
pub(crate) fn variants(program: &Program, k: &Matmul, target: &Target) -> Result<Vec<Variant>, GenError> {
    let mut candidates = match product(program, k) {
        Some(product) => crate::product::tile_rule::candidates(&product, target)?,
        None => Vec::new(),
    };
    if candidates.is_empty() {
        candidates.push(Variant::single("simple", generate(program, k, ENTRY)?));
    }
    Ok(candidates)
}

/// Whether no library need be asked: see [`tile_rule::prefers_generated`](crate::product::tile_rule::prefers_generated).
/// Where TMA cannot read the operands a library is faster.
pub(crate) fn prefers_generated(program: &Program, k: &Matmul, target: &Target) -> bool {
    product(program, k).is_some_and(|p| {
        crate::product::tile_rule::prefers_generated(&p, target)
            && !crate::product::tma_rule::forms(&p, Unit::Tensor, target).is_empty()
    })
}

/// Whether long rows of a 16-bit result, or its sums, have a length that is not whole vectors; the generated kernels then lose less
/// than a library's, even where rows are aligned: on an H200 4096×30522×768 takes 0.65 ms including the bias, cuBLASLt 0.77 and
/// another 0.30 for the bias; cuBLASLt takes 1.66 ms for 2048×50257×768 to aligned rows, `wgmma` 0.33 for 2048×768×50257, which
/// is as much work.
pub(crate) fn outruns_library(program: &Program, k: &Matmul, target: &Target) -> bool {
    let whole = |e: &SymExpr| is_multiple(e, 8);
    let uneven_sums = k.a.sizes.last().is_some_and(|n| !whole(n));
    let long = |n: &SymExpr| n.as_const().is_none_or(|n| n >= LONG_ROWS);
    let uneven_rows = k.epilogue.ranges.last().is_some_and(|n| !whole(n) && long(n));
    let narrow = program.buffers[k.a.buf].dtype.size() == 2;
    (uneven_rows || uneven_sums)
        && narrow
        && product(program, k)
            .is_some_and(|p| !crate::product::tma_rule::forms(&p, Unit::Tensor, target).is_empty())
}

/// The product in the form that tiles take; `None` where its first candidates are others.
pub(crate) fn tiled<'a>(program: &'a Program, k: &'a Matmul) -> Option<Product<'a>> {
    let single = groups::single_rows(k);
    let few = match &single {
        Some(single) => Skinny::by_groups(program, single).is_some(),
        None => Skinny::of(program, k).is_some(),
    };
    if few { None } else { product(program, k) }
}

/// The product in the form that tiles take; `None` for dtypes that they do not support.
fn product<'a>(program: &'a Program, k: &'a Matmul) -> Option<Product<'a>> {
    if let Some(groups) = &k.groups {
        return by_groups(program, k, groups);
    }
    let ranges = &k.epilogue.ranges;
    let split = ranges.len().checked_sub(2)?;
    let dtype = program.buffers[k.a.buf].dtype;
    if program.buffers[k.b.buf].dtype != dtype || k.acc != DType::F32 {
        return None;
    }
    let step = |of: &kernel_ir::Operand, d: usize| of.strides.get(d).cloned();
    let axis = |extent: &SymExpr, steps: [SymExpr; 2], result: Option<usize>| Axis {
        extent: extent.clone(),
        steps,
        space: None,
        result: result.map(|v| (v, SymExpr::ONE)),
    };
    let mut batch = Vec::new();
    for d in 0..split {
        batch.push(axis(&ranges[d], [step(&k.a, d)?, step(&k.b, d)?], Some(d)));
    }
    let (row, col) = (split, split + 1);
    let operand = |of: &kernel_ir::Operand| TileOperand { buf: of.buf, offset: of.offset.clone() };
    let mut product = Product {
        program,
        epilogue: &k.epilogue,
        dtype,
        is_convolution: false,
        operands: [operand(&k.a), operand(&k.b)],
        batch,
        rows: vec![axis(&ranges[row], [step(&k.a, row)?, SymExpr::ZERO], Some(row))],
        cols: vec![axis(&ranges[col], [SymExpr::ZERO, step(&k.b, col)?], Some(col))],
        inner: vec![axis(k.a.sizes.get(col)?, [step(&k.a, col)?, step(&k.b, row)?], None)],
        spaces: Vec::new(),
        groups: None,
    };
    product.arrange();
    Some(product)
}

/// The product in the same form where rows or the depth are those of groups, which the batch counts.
fn by_groups<'a>(program: &'a Program, k: &'a Matmul, groups: &'a Groups) -> Option<Product<'a>> {
    let dtype = program.buffers[k.a.buf].dtype;
    if k.acc != DType::F32 {
        return None;
    }
    let (a, b, ranges) = (&k.a.strides, &k.b.strides, &k.epilogue.ranges);
    let axis = |extent: &SymExpr, steps: [&SymExpr; 2], result: Option<usize>| Axis {
        extent: extent.clone(),
        steps: steps.map(SymExpr::clone),
        space: None,
        result: result.map(|v| (v, SymExpr::ONE)),
    };
    let (row, col) = (ranges.len().checked_sub(2)?, ranges.len() - 1);
    let own = if groups.along == Along::Rows { b.len().checked_sub(2)? } else { 0 };
    let batch = match groups.along {
        Along::Rows => axis(groups.ends.sizes.first()?, [&SymExpr::ZERO, b.first()?], None),
        Along::Depth => axis(groups.ends.sizes.first()?, [&SymExpr::ZERO; 2], Some(0)),
    };
    let operand = |of: &kernel_ir::Operand| TileOperand { buf: of.buf, offset: of.offset.clone() };
    let mut product = Product {
        program,
        epilogue: &k.epilogue,
        dtype,
        is_convolution: false,
        operands: [operand(&k.a), operand(&k.b)],
        batch: vec![batch],
        rows: vec![axis(&ranges[row], [a.first()?, &SymExpr::ZERO], Some(row))],
        cols: vec![axis(&ranges[col], [&SymExpr::ZERO, b.get(own + 1)?], Some(col))],
        inner: vec![axis(k.a.sizes.get(1)?, [a.get(1)?, b.get(own)?], None)],
        spaces: Vec::new(),
        groups: Some(groups),
    };
    product.arrange();
    Some(product)
}

/// Where a block of the fallback kernel is: the text that finds it, the end of its rows, and from where to where it sums.
struct Place {
    text: String,
    rows: String,
    depth: (String, String),
}

impl Place {
    /// The same where rows or the depth are those of groups.
    fn in_groups(self, groups: &Groups, ends: &str, tiles_n: &str) -> Place {
        let Place { text, rows, depth: (_, depth) } = self;
        match groups.along {
            Along::Rows => {
                let tile = format!("block / {tiles_n}");
                let found = groups::find_tile(ends, groups, &rows, &TILE.to_string(), &tile);
                let text = format!(
                    "const idx col0 = block % {tiles_n} * {TILE};\n{found}const idx row0 = own.first;\n"
                );
                Place { text, rows: "own.end".into(), depth: ("0".into(), format!("(owned ? {depth} : 0)")) }
            }
            Along::Depth => {
                let text = text + &groups::find_depth(ends, &depth, "i0");
                Place { text, rows, depth: ("own.first".into(), "own.end".into()) }
            }
        }
    }
}

/// The fallback kernel, which takes every dtype and stride.
fn generate(program: &Program, k: &Matmul, entry: &str) -> Result<Kernel, GenError> {
    let ranges = &k.epilogue.ranges;
    let (Some(split), Some(inner)) = (ranges.len().checked_sub(2), k.a.sizes.last()) else {
        return Err(GenError::Malformed("a matrix product of less than two dimensions".into()));
    };
    let mut uses = Uses::default();
    let writer = BodyWriter { program, extents: ranges, prefix: "", guard: None, store_guard: None };
    let acc = compute_type(k.acc)?;
    let (m, n) = (&ranges[split], &ranges[split + 1]);
    let tile = SymExpr::from_i64(TILE);
    let by_rows = k.groups.as_ref().filter(|g| g.along == Along::Rows);
    let tiles_m = by_rows.map_or_else(|| m.ceil_div(&tile), |g| groups::tiles(g, m, TILE));
    let tiles_n = n.ceil_div(&tile);
    let batch = volume(&ranges[..split]);
    let text = |e: &SymExpr, uses: &mut Uses| writer.expr(e, uses);
    let (m, n, depth) = (text(m, &mut uses), text(n, &mut uses), text(inner, &mut uses));
    let (tm, tn) = (text(&tiles_m, &mut uses), text(&tiles_n, &mut uses));
    let total = text(&(&batch * &tiles_m * &tiles_n), &mut uses);
    let batches = unravel(&writer, &ranges[..split], 0, "batch", &mut uses);
    let lead: Vec<String> = (0..split).map(|d| format!("i{d}")).collect();
    let with = |row: &'static str, col: &'static str| -> Vec<String> {
        lead.iter().cloned().chain([row.to_owned(), col.to_owned()]).collect()
    };
    let index = |list: &[String], operand, uses: &mut Uses| {
        let list: Vec<&str> = list.iter().map(String::as_str).collect();
        element(&writer, operand, &list, uses)
    };
    let plain = Place {
        text: format!(
            "const idx col0 = block % {tn} * {TILE}, row0 = block / {tn} % {tm} * {TILE};
const idx batch = block / {tn} / {tm};
{batches}"
        ),
        rows: m.clone(),
        depth: ("0".to_owned(), depth.clone()),
    };
    let (place, a, b) = match &k.groups {
        None => {
            let a = index(&with("row", "q"), &k.a, &mut uses);
            (plain, a, index(&with("q", "col"), &k.b, &mut uses))
        }
        Some(g) => {
            let list = |names: &[&str]| names.iter().map(|n| (*n).to_owned()).collect::<Vec<String>>();
            let ends = groups::arguments(&writer, g, &mut uses);
            let of_b = if by_rows.is_some() { list(&["chosen", "q", "col"]) } else { list(&["q", "col"]) };
            let a = index(&list(&["row", "q"]), &k.a, &mut uses);
            (plain.in_groups(g, &ends, &tn), a, index(&of_b, &k.b, &mut uses))
        }
    };
    let Place { text: place, rows, depth: (from, depth) } = place;
    let (im, in_) = (format!("i{split}"), format!("i{}", split + 1));
    let tail = epilogue(program, &k.epilogue, "result", &mut uses)?;
    let body = format!(
        "__shared__ {acc} sa[{DEPTH}][{TILE} + 1];
__shared__ {acc} sb[{DEPTH}][{TILE} + 1];
const int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
for (idx block = blockIdx.x; block < {total}; block += gridDim.x) {{
{place}{acc} sum[4][4] = {{}};
for (idx q0 = {from}; q0 < {depth}; q0 += {DEPTH}) {{
#pragma unroll
for (int t = threadIdx.x; t < {TILE} * {DEPTH}; t += {THREADS}) {{
{{ const idx row = row0 + t / {DEPTH}, q = q0 + t % {DEPTH};
sa[t % {DEPTH}][t / {DEPTH}] = row < {m} && q < {depth} ? to<{acc}>({a}) : ({acc})0; }}
{{ const idx q = q0 + t / {TILE}, col = col0 + t % {TILE};
sb[t / {TILE}][t % {TILE}] = col < {n} && q < {depth} ? to<{acc}>({b}) : ({acc})0; }}
}}
block_sync();
#pragma unroll
for (int q = 0; q < {DEPTH}; ++q) {{
{acc} x[4], y[4];
#pragma unroll
for (int u = 0; u < 4; ++u) {{ x[u] = sa[q][ty + 16 * u]; y[u] = sb[q][tx + 16 * u]; }}
#pragma unroll
for (int u = 0; u < 4; ++u)
#pragma unroll
for (int w = 0; w < 4; ++w) sum[u][w] += x[u] * y[w];
}}
block_sync();
}}
#pragma unroll
for (int u = 0; u < 4; ++u)
#pragma unroll
for (int w = 0; w < 4; ++w) {{
const idx {im} = row0 + ty + 16 * u, {in_} = col0 + tx + 16 * w;
if ({im} < {rows} && {in_} < {n}) {{
const {result} result = to<{result}>(sum[u][w]);
{tail}}}
}}
}}
",
        result = crate::text::types::value_type(k.acc)?,
    );
    let blocks = (&batch * &tiles_m * &tiles_n).sym_min(&SymExpr::from_i64(crate::MAX_BLOCKS));
    assemble(program, entry, &uses, Launch::flat(blocks, THREADS), &body)
}
