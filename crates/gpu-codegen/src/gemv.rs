//! Products of a few rows with a matrix, as decoding has them: bound by the memory that the matrix is read from, so every
//! thread keeps several loads of 16 bytes in flight and nothing is staged.
//!
//! - *rows*: the matrix lies along the inner dimension. Warps take a few columns of the result each and share the inner
//!   dimension over their lanes (and, where there are few columns, over the warps of a block).
//! - *columns*: the matrix lies along the columns. Eight lanes read 128 bytes of a row; warps and, where there are few
//!   columns, blocks share the inner dimension. Parts are added up in a fixed order.
//!
//! Not here: products of many rows (`matmul`).

use ir_core::{DType, SymExpr};
use kernel_ir::{Matmul, Operand, Program};

use crate::body::{BodyWriter, Uses};
use crate::template::{assemble, element, epilogue, unravel, volume};
use crate::types::{memory_type, value_type};
use crate::{ENTRY, GenError, Launch, Target, Variant};

/// Rows of the left operand at most: their sums are registers of every thread.
const MOST_ROWS: i64 = 8;
/// Bytes of a load.
const WIDTH: i64 = 16;
/// Warps of a block that share columns out, or the inner dimension.
const WARPS: i64 = 4;
/// Warps of a block in the *columns* form, and rows of the matrix that a warp reads at once.
const COLUMN_WARPS: i64 = 8;
const ROWS_AT_ONCE: i64 = 4;

/// The ways of computing it; none where it is no product of a few rows.
pub(crate) fn variants(program: &Program, k: &Matmul, target: &Target) -> Result<Vec<Variant>, GenError> {
    let Some(shape) = Skinny::of(program, k) else { return Ok(Vec::new()) };
    if shape.along_inner {
        shape.row_ways(target).into_iter().map(|way| shape.rows(way)).collect()
    } else {
        Ok(vec![shape.columns(target)?])
    }
}

/// A product of few rows whose matrix can be read 16 bytes at once.
struct Skinny<'a> {
    program: &'a Program,
    k: &'a Matmul,
    /// Dimensions before the last two.
    split: usize,
    rows: i64,
    /// Elements of a load.
    lanes: i64,
    /// Whether the matrix lies along the inner dimension.
    along_inner: bool,
    /// Whether the left operand can be read as vectors too.
    vector_left: bool,
}

/// How the *rows* form is cut.
#[derive(Clone, Copy)]
struct RowWay {
    /// Columns of the result a warp.
    columns: i64,
    /// Loads of a lane and column that are in flight together.
    unroll: i64,
    /// Warps that share the inner dimension of the same columns.
    sharing: i64,
}

/// Whether every row that starts along dimension `along` starts at a multiple of 16 bytes, the buffers' own memory doing so.
pub(crate) fn aligned(operand: &Operand, along: usize, lanes: i64) -> bool {
    let whole = |e: &SymExpr| {
        let (terms, constant) = e.terms();
        constant % lanes == 0 && terms.iter().all(|(factor, _)| factor % lanes == 0)
    };
    operand.strides.get(along) == Some(&SymExpr::ONE)
        && whole(&operand.offset)
        && operand
            .strides
            .iter()
            .enumerate()
            .all(|(d, s)| d == along || operand.sizes[d] == SymExpr::ONE || whole(s))
}

impl<'a> Skinny<'a> {
    fn of(program: &'a Program, k: &'a Matmul) -> Option<Skinny<'a>> {
        let ranges = &k.epilogue.ranges;
        let split = ranges.len().checked_sub(2)?;
        let rows = ranges[split].as_const().filter(|m| (1..=MOST_ROWS).contains(m))?;
        let dtype = |o: &Operand| program.buffers[o.buf].dtype;
        let narrow = |d: DType| matches!(d, DType::F32 | DType::BF16 | DType::F16);
        if !narrow(dtype(&k.b)) || !narrow(dtype(&k.a)) || k.acc.compute() != DType::F32 {
            return None;
        }
        let lanes = WIDTH / dtype(&k.b).size() as i64;
        let inner = k.a.sizes.last()?;
        let whole = |e: &SymExpr| e.as_const().is_some_and(|n| n % lanes == 0 && n > 0);
        let along_inner = aligned(&k.b, split, lanes) && whole(inner);
        let along_columns = aligned(&k.b, split + 1, lanes) && whole(&ranges[split + 1]);
        if !(along_inner || along_columns) {
            return None;
        }
        let vector_left = dtype(&k.a) == dtype(&k.b) && aligned(&k.a, split + 1, lanes);
        Some(Skinny { program, k, split, rows, lanes, along_inner, vector_left })
    }

    fn columns_of(&self) -> &SymExpr {
        &self.k.epilogue.ranges[self.split + 1]
    }

    fn inner(&self) -> &SymExpr {
        &self.k.a.sizes[self.split + 1]
    }

    /// The value of a size, or a usual one where it is not known.
    fn about(e: &SymExpr) -> i64 {
        e.as_const().unwrap_or(4096)
    }

    fn row_ways(&self, target: &Target) -> Vec<RowWay> {
        let (n, inner) = (Self::about(self.columns_of()), Self::about(self.inner()));
        let turns = inner / (32 * self.lanes);
        let unroll = if turns >= 4 { 4 } else { turns.clamp(1, 2) };
        // Measured on an H200 for the products of a 7B decoder: two columns and the inner dimension shared by the warps of a
        // block is the fastest or within 2 % of it, at 1,000 to 32,000 columns. Fewer columns keep more blocks busy.
        let columns = if n >= 4 * i64::from(target.multiprocessors) { 2 } else { 1 };
        let mut ways = vec![RowWay { columns, unroll, sharing: WARPS }];
        for (columns, sharing) in [(2, 1), (4, 1), (2, WARPS), (1, WARPS)] {
            if ways.iter().all(|w| (w.columns, w.sharing) != (columns, sharing)) && columns * self.rows <= 32
            {
                ways.push(RowWay { columns, unroll: (unroll * 2 / columns).max(1), sharing });
            }
        }
        ways
    }

    fn writer(&self) -> BodyWriter<'a> {
        let extents = &self.k.epilogue.ranges;
        BodyWriter { program: self.program, extents, prefix: "", guard: None, store_guard: None }
    }

    /// The address of an element; `row` and `col` are texts.
    fn address(&self, operand: &Operand, row: &str, col: &str, uses: &mut Uses) -> String {
        let lead: Vec<String> = (0..self.split).map(|d| format!("i{d}")).collect();
        let index: Vec<&str> = lead.iter().map(String::as_str).chain([row, col]).collect();
        element(&self.writer(), operand, &index, uses)
    }

    /// Statements that read `lanes` elements of row `m` of the left operand from position `q` on into `x`.
    fn left(&self, uses: &mut Uses) -> Result<String, GenError> {
        let lanes = self.lanes;
        if self.vector_left {
            let ty = memory_type(self.program.buffers[self.k.a.buf].dtype)?;
            let at = self.address(&self.k.a, "m", "q", uses);
            return Ok(format!(
                "const Vec<{ty}, {lanes}> xv = *(const Vec<{ty}, {lanes}> *)&{at};
#pragma unroll
for (int j = 0; j < {lanes}; ++j) x[j] = to<float>(xv.v[j]);
"
            ));
        }
        let at = self.address(&self.k.a, "m", "(q + j)", uses);
        Ok(format!("#pragma unroll\nfor (int j = 0; j < {lanes}; ++j) x[j] = to<float>({at});\n"))
    }

    fn rows(&self, way: RowWay) -> Result<Variant, GenError> {
        let (k, lanes, rows) = (self.k, self.lanes, self.rows);
        let RowWay { columns, unroll, sharing } = way;
        let ranges = &k.epilogue.ranges;
        let mut uses = Uses::default();
        let writer = self.writer();
        let (n, inner) = (writer.expr(self.columns_of(), &mut uses), writer.expr(self.inner(), &mut uses));
        let tiles = self.columns_of().ceil_div(&SymExpr::from_i64(columns));
        let groups = volume(&ranges[..self.split]) * &tiles;
        let (tiles, count) = (writer.expr(&tiles, &mut uses), writer.expr(&groups, &mut uses));
        let lead = unravel(&writer, &ranges[..self.split], 0, "batch", &mut uses);
        let ty = memory_type(self.program.buffers[k.b.buf].dtype)?;
        let column = self.address(&k.b, "0", "col", &mut uses);
        let left = self.left(&mut uses)?;
        let per_block = WARPS / sharing;
        let (im, in_) = (format!("i{}", self.split), format!("i{}", self.split + 1));
        let tail = epilogue(self.program, &k.epilogue, "result", &mut uses)?;
        let result = value_type(k.acc)?;
        uses.shared = if sharing == 1 { 0 } else { (4 * WARPS * rows * columns) as u32 };
        let together = shared_sums(rows * columns, sharing);
        let body = format!(
            "const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
const int share = warp % {sharing};
for (idx first = blockIdx.x * (idx){per_block}; first < {count}; first += (idx)gridDim.x * {per_block}) {{
const idx group = first + warp / {sharing};
const bool acts = group < {count};
const idx batch = acts ? group / {tiles} : 0, col0 = acts ? group % {tiles} * {columns} : 0;
{lead}float sum[{rows}][{columns}] = {{}};
const {ty} *w[{columns}];
#pragma unroll
for (int c = 0; c < {columns}; ++c) {{ const idx col = imin<idx>(col0 + c, {n} - 1); w[c] = &{column}; }}
for (idx q0 = (idx)(share * {unroll} * 32 + lane) * {lanes}; acts && q0 < {inner}; q0 += {turn}) {{
Vec<{ty}, {lanes}> wv[{unroll}][{columns}];
#pragma unroll
for (int u = 0; u < {unroll}; ++u)
#pragma unroll
for (int c = 0; c < {columns}; ++c) {{
const idx q = q0 + u * {step};
wv[u][c] = bits_as<Vec<{ty}, {lanes}>>(q < {inner} ? load_streaming(w[c] + q) : uint4{{0, 0, 0, 0}});
}}
#pragma unroll
for (int u = 0; u < {unroll}; ++u) {{
const idx q = q0 + u * {step};
if (q < {inner}) {{
#pragma unroll
for (int m = 0; m < {rows}; ++m) {{
float x[{lanes}];
{left}#pragma unroll
for (int c = 0; c < {columns}; ++c)
#pragma unroll
for (int j = 0; j < {lanes}; ++j) sum[m][c] = fmaf(x[j], to<float>(wv[u][c].v[j]), sum[m][c]);
}}
}}
}}
}}
float mine = 0;
#pragma unroll
for (int m = 0; m < {rows}; ++m)
#pragma unroll
for (int c = 0; c < {columns}; ++c) {{
const float all = team_combine<SUM, 32>(sum[m][c], (void *)0);
if (lane == m * {columns} + c) mine = all;
}}
{together}const idx {im} = lane / {columns}, {in_} = col0 + lane % {columns};
if (acts && share == 0 && lane < {outs} && {in_} < {n}) {{
const {result} result = to<{result}>(mine);
{tail}}}
}}
",
            turn = 32 * lanes * unroll * sharing,
            step = 32 * lanes,
            outs = rows * columns,
        );
        let blocks =
            groups.ceil_div(&SymExpr::from_i64(per_block)).sym_min(&SymExpr::from_i64(crate::MOST_BLOCKS));
        let launch = Launch::flat(blocks, 32 * WARPS as u32);
        let kernel = assemble(self.program, ENTRY, &uses, launch, &body)?;
        Ok(Variant::single(format!("gemv_rows_{columns}x{unroll}_{sharing}"), kernel))
    }

    /// Blocks that share the inner dimension in the *columns* form.
    fn parts(&self, target: &Target) -> i64 {
        let across = Self::about(self.columns_of()) / (8 * self.lanes).max(1);
        let turns = Self::about(self.inner()) / (COLUMN_WARPS * ROWS_AT_ONCE);
        (2 * i64::from(target.multiprocessors) / across.max(1)).clamp(1, turns.clamp(1, 64))
    }

    fn columns(&self, target: &Target) -> Result<Variant, GenError> {
        let parts = self.parts(target);
        let (k, lanes, rows) = (self.k, self.lanes, self.rows);
        let ranges = &k.epilogue.ranges;
        let mut uses = Uses::default();
        let writer = self.writer();
        let (n, inner) = (writer.expr(self.columns_of(), &mut uses), writer.expr(self.inner(), &mut uses));
        let wide = 8 * lanes;
        let tiles = self.columns_of().ceil_div(&SymExpr::from_i64(wide));
        let batches = volume(&ranges[..self.split]);
        let groups = &batches * &tiles;
        let (tiles, count) = (writer.expr(&tiles, &mut uses), writer.expr(&groups, &mut uses));
        let lead = unravel(&writer, &ranges[..self.split], 0, "batch", &mut uses);
        let ty = memory_type(self.program.buffers[k.b.buf].dtype)?;
        let at = self.address(&k.b, "q", "col", &mut uses);
        let x = self.address(&k.a, "m", "q", &mut uses);
        let (im, in_) = (format!("i{}", self.split), format!("i{}", self.split + 1));
        let mut scratch = Vec::new();
        let out = if parts == 1 {
            let tail = epilogue(self.program, &k.epilogue, "result", &mut uses)?;
            let result = value_type(k.acc)?;
            format!("const {result} result = to<{result}>(all);\n{tail}")
        } else {
            uses.scratch.push("float");
            let all = &batches * &SymExpr::from_i64(rows) * self.columns_of();
            scratch.push(&all * &SymExpr::from_i64(4 * parts));
            let all = writer.expr(&all, &mut uses);
            format!("scratch0[blockIdx.y * (i64){all} + (batch * {rows} + {im}) * (i64){n} + {in_}] = all;\n")
        };
        let body = format!(
            "__shared__ float sums[{COLUMN_WARPS}][{rows}][{wide}];
const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, deep = lane >> 3;
for (idx group = blockIdx.x; group < {count}; group += gridDim.x) {{
const idx batch = group / {tiles}, col = group % {tiles} * {wide} + (lane & 7) * {lanes};
{lead}float sum[{rows}][{lanes}] = {{}};
const idx whole = ({inner} + {parts} - 1) / {parts}, from = blockIdx.y * whole, to_ = imin<idx>({inner}, from + whole);
for (idx q0 = from + warp * {ROWS_AT_ONCE} + deep; col < {n} && q0 < to_; q0 += {turn}) {{
Vec<{ty}, {lanes}> wv[4];
#pragma unroll
for (int u = 0; u < 4; ++u) {{
const idx q = q0 + u * {step};
wv[u] = bits_as<Vec<{ty}, {lanes}>>(q < to_ ? load_streaming(&{at}) : uint4{{0, 0, 0, 0}});
}}
#pragma unroll
for (int u = 0; u < 4; ++u) {{
const idx q = q0 + u * {step};
#pragma unroll
for (int m = 0; m < {rows}; ++m) {{
const float x = q < to_ ? to<float>({x}) : 0.0f;
#pragma unroll
for (int j = 0; j < {lanes}; ++j) sum[m][j] = fmaf(x, to<float>(wv[u].v[j]), sum[m][j]);
}}
}}
}}
#pragma unroll
for (int m = 0; m < {rows}; ++m)
#pragma unroll
for (int j = 0; j < {lanes}; ++j) {{
float s = sum[m][j];
s += __shfl_xor_sync(0xffffffffu, s, 8);
s += __shfl_xor_sync(0xffffffffu, s, 16);
if (deep == 0) sums[warp][m][(lane & 7) * {lanes} + j] = s;
}}
__syncthreads();
for (int t = threadIdx.x; t < {rows} * {wide}; t += {threads}) {{
const idx {im} = t / {wide}, {in_} = group % {tiles} * {wide} + t % {wide};
if ({in_} < {n}) {{
float all = 0;
#pragma unroll
for (int w = 0; w < {COLUMN_WARPS}; ++w) all += sums[w][{im}][t % {wide}];
{out}}}
}}
__syncthreads();
}}
",
            turn = 4 * COLUMN_WARPS * ROWS_AT_ONCE,
            step = COLUMN_WARPS * ROWS_AT_ONCE,
            threads = 32 * COLUMN_WARPS,
        );
        let most = SymExpr::from_i64(crate::MOST_BLOCKS);
        let mut launch = Launch::flat(groups.sym_min(&most), 32 * COLUMN_WARPS as u32);
        launch.blocks[1] = SymExpr::from_i64(parts);
        let mut kernels = vec![assemble(self.program, ENTRY, &uses, launch, &body)?];
        if parts > 1 {
            kernels.push(self.added_up(parts)?);
        }
        Ok(Variant { name: format!("gemv_columns_{parts}"), kernels, scratch })
    }

    /// Adds the parts of the inner dimension up, in their order, and runs the epilogue.
    fn added_up(&self, parts: i64) -> Result<crate::Kernel, GenError> {
        let ranges = &self.k.epilogue.ranges;
        let mut uses = Uses::default();
        uses.scratch.push("float");
        let writer = self.writer();
        let points = volume(ranges);
        let count = writer.expr(&points, &mut uses);
        let index = unravel(&writer, ranges, 0, "p", &mut uses);
        let tail = epilogue(self.program, &self.k.epilogue, "result", &mut uses)?;
        let result = value_type(self.k.acc)?;
        let body = format!(
            "for (idx p = blockIdx.x * (idx)blockDim.x + threadIdx.x; p < {count}; p += (idx)gridDim.x * blockDim.x) {{
float all = 0;
#pragma unroll 8
for (int part = 0; part < {parts}; ++part) all += scratch0[part * (i64){count} + p];
const {result} result = to<{result}>(all);
{index}{tail}}}
"
        );
        let launch = Launch::flat(crate::template::blocks_of(&points, 128), 128);
        assemble(self.program, ENTRY, &uses, launch, &body)
    }
}

/// Statements that add up the sums of the warps which share the inner dimension; the first has them.
fn shared_sums(outs: i64, sharing: i64) -> String {
    if sharing == 1 {
        return String::new();
    }
    format!(
        "__shared__ float sums[{WARPS}][{outs}];
__syncthreads();
if (lane < {outs}) sums[warp][lane] = mine;
__syncthreads();
if (share == 0 && lane < {outs}) {{
#pragma unroll
for (int s = 1; s < {sharing}; ++s) mine += sums[warp + s][lane];
}}
"
    )
}
