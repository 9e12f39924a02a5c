//! Products of a few rows with a matrix, as in decoding. They are bound by the bandwidth of reading the matrix, so every
//! thread keeps several 16-byte loads in flight and nothing is staged.
//!
//! - *rows* (`gemv_rows`): the matrix is contiguous along the inner dimension. Each warp takes a few columns of the
//!   result; its lanes (and, where there are few columns, the warps per block) split the inner dimension.
//! - *columns*: the matrix is contiguous along the columns. Eight lanes read 128 bytes of a row; warps and, where there
//!   are few columns, blocks split the inner dimension. Partial sums are reduced in a fixed order.
//!
//! Not here: products of many rows (`matmul`).

use ir_core::{DType, SymExpr};
use kernel_ir::{Groups, Matmul, Operand, Program};

use crate::product::gemv_rows::Rows;
use crate::product::groups;
use crate::text::body::{BodyWriter, Uses};
use crate::text::template::{assemble, element, epilogue, unravel, volume};
use crate::text::types::{memory_type, value_type};
use crate::{ENTRY, GenError, Launch, Target, Variant};

/// Maximum number of rows of the left operand: every thread keeps their sums in registers.
const MAX_ROWS: i64 = 8;
/// The same where each row may have a matrix of its own: more rows share matrices, which tiles read once.
const MAX_GROUPED_ROWS: i64 = 16;
/// Bytes per load.
const WIDTH: i64 = 16;
/// Warps per block in the *columns* form, and lanes that read adjacent parts of a matrix row.
const COLUMN_WARPS: i64 = 8;
const ROW_LANES: i64 = 8;

/// Returns the candidates; none where it is not a product of a few rows.
pub(crate) fn variants(program: &Program, k: &Matmul, target: &Target) -> Result<Vec<Variant>, GenError> {
    let single = groups::single_rows(k);
    let shape = match &single {
        Some(single) => Skinny::by_groups(program, single),
        None => Skinny::of(program, k),
    };
    let Some(shape) = shape else { return Ok(Vec::new()) };
    if shape.along_inner { Rows::of(shape).variants(target) } else { Ok(vec![shape.columns(target)?]) }
}

/// A product of few rows whose matrix can be read with 16-byte loads.
pub(crate) struct Skinny<'a> {
    pub(crate) program: &'a Program,
    pub(crate) k: &'a Matmul,
    /// Number of dimensions before the last two.
    pub(crate) split: usize,
    pub(crate) rows: i64,
    /// Elements per load.
    pub(crate) lanes: i64,
    /// Whether the matrix is contiguous along the inner dimension.
    pub(crate) along_inner: bool,
    /// Whether the left operand can be read as vectors too.
    pub(crate) vector_left: bool,
}

/// Whether every row along dimension `along` starts at a multiple of 16 bytes, given that the buffer's memory does.
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
    pub(crate) fn of(program: &'a Program, k: &'a Matmul) -> Option<Skinny<'a>> {
        if k.groups.is_some() { None } else { Skinny::any(program, k) }
    }

    /// Few rows by groups, in the form of [`groups::single_rows`].
    pub(crate) fn by_groups(program: &'a Program, k: &'a Matmul) -> Option<Skinny<'a>> {
        let few = k.a.sizes[0].as_const().is_some_and(|m| (1..=MAX_GROUPED_ROWS).contains(&m));
        // A row without a group reads some matrix, too.
        let any = k.groups.as_ref().and_then(Groups::count).is_some_and(|count| count > 0);
        if few && any { Skinny::any(program, k) } else { None }
    }

    fn any(program: &'a Program, k: &'a Matmul) -> Option<Skinny<'a>> {
        let ranges = &k.epilogue.ranges;
        let split = ranges.len().checked_sub(2)?;
        let rows = ranges[split].as_const().filter(|m| (1..=MAX_ROWS).contains(m))?;
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

    pub(crate) fn columns_of(&self) -> &SymExpr {
        &self.k.epilogue.ranges[self.split + 1]
    }

    pub(crate) fn inner(&self) -> &SymExpr {
        &self.k.a.sizes[self.split + 1]
    }

    /// The value of a size, or a typical value where it is symbolic.
    pub(crate) fn typical(e: &SymExpr) -> i64 {
        e.as_const().unwrap_or(4096)
    }

    pub(crate) fn writer(&self) -> BodyWriter<'a> {
        let extents = &self.k.epilogue.ranges;
        BodyWriter { program: self.program, extents, prefix: "", guard: None, store_guard: None }
    }

    /// The address of an element; `row` and `col` are text.
    pub(crate) fn address(&self, operand: &Operand, row: &str, col: &str, uses: &mut Uses) -> String {
        let mut lead: Vec<String> = (0..self.split).map(|d| format!("i{d}")).collect();
        if self.k.groups.is_some() && std::ptr::eq(operand, &raw const self.k.b) {
            lead = vec!["chosen".to_owned()];
        }
        let index: Vec<&str> = lead.iter().map(String::as_str).chain([row, col]).collect();
        element(&self.writer(), operand, &index, uses)
    }

    /// Statements that find the matrix of row `i0`, where rows are those of groups: `chosen` is one that exists, and `owned` says
    /// whether it is the row's.
    pub(crate) fn found(&self, uses: &mut Uses) -> String {
        let Some(groups) = &self.k.groups else { return String::new() };
        let (ends, count) = (groups::arguments(&self.writer(), groups, uses), groups.count().unwrap_or(0));
        format!(
            "const idx group_ = group_of<idx>({ends}, i0), chosen = imin<idx>(group_, {last});
const bool owned = group_ < {count};
",
            last = (count - 1).max(0),
        )
    }

    /// A sum, or zero for a row without a group.
    pub(crate) fn kept(&self, sum: &str) -> String {
        if self.k.groups.is_some() { format!("(owned ? {sum} : 0.0f)") } else { sum.to_owned() }
    }

    /// Number of blocks that split the inner dimension in the *columns* form.
    fn parts(&self, target: &Target) -> i64 {
        let across = Self::typical(self.columns_of()) / (8 * self.lanes).max(1);
        let turns = Self::typical(self.inner()) / (COLUMN_WARPS * (target.lanes() / ROW_LANES));
        (2 * i64::from(target.multiprocessors) / across.max(1)).clamp(1, turns.clamp(1, 64))
    }

    fn columns(&self, target: &Target) -> Result<Variant, GenError> {
        let parts = self.parts(target);
        let (k, lanes, rows) = (self.k, self.lanes, self.rows);
        // Rows of the matrix that a warp reads at once; their sums are reduced over the lanes of one column.
        let at_once = target.lanes() / ROW_LANES;
        let steps =
            std::iter::successors(Some(ROW_LANES), |n| Some(2 * n)).take_while(|n| *n < target.lanes());
        let added: String = steps.map(|n| format!("s += shuffle_xor(s, {n});\n")).collect();
        let ranges = &k.epilogue.ranges;
        let mut uses = Uses::default();
        let writer = self.writer();
        let (n, inner) = (writer.expr(self.columns_of(), &mut uses), writer.expr(self.inner(), &mut uses));
        let wide = 8 * lanes;
        let tiles = self.columns_of().ceil_div(&SymExpr::from_i64(wide));
        let batches = volume(&ranges[..self.split]);
        let groups = &batches * &tiles;
        let (tiles, count) = (writer.expr(&tiles, &mut uses), writer.expr(&groups, &mut uses));
        let lead = unravel(&writer, &ranges[..self.split], 0, "batch", &mut uses) + &self.found(&mut uses);
        let ty = memory_type(self.program.buffers[k.b.buf].dtype)?;
        let at = self.address(&k.b, "q", "col", &mut uses);
        let x = self.address(&k.a, "m", "q", &mut uses);
        let (im, in_) = (format!("i{}", self.split), format!("i{}", self.split + 1));
        let mut scratch = Vec::new();
        let out = if parts == 1 {
            let tail = epilogue(self.program, &k.epilogue, "result", &mut uses)?;
            let result = value_type(k.acc)?;
            format!("const {result} result = to<{result}>({});\n{tail}", self.kept("all"))
        } else {
            uses.scratch.push("float");
            let all = &batches * &SymExpr::from_i64(rows) * self.columns_of();
            scratch.push(&all * &SymExpr::from_i64(4 * parts));
            let all = writer.expr(&all, &mut uses);
            format!(
                "scratch0[blockIdx.y * (i64){all} + (batch * {rows} + {im}) * (i64){n} + {in_}] = {};\n",
                self.kept("all")
            )
        };
        let body = format!(
            "__shared__ float sums[{COLUMN_WARPS}][{rows}][{wide}];
const int lane = {lane}, warp = {warp}, deep = lane >> 3;
for (idx group = blockIdx.x; group < {count}; group += gridDim.x) {{
const idx batch = group / {tiles}, col = group % {tiles} * {wide} + (lane & 7) * {lanes};
{lead}float sum[{rows}][{lanes}] = {{}};
const idx whole = ({inner} + {parts} - 1) / {parts}, from = blockIdx.y * whole, to_ = imin<idx>({inner}, from + whole);
for (idx q0 = from + warp * {at_once} + deep; col < {n} && q0 < to_; q0 += {turn}) {{
Vec<{ty}, {lanes}> wv[4];
#pragma unroll
for (int u = 0; u < 4; ++u) {{
const idx q = q0 + u * {step};
wv[u] = bits_as<Vec<{ty}, {lanes}>>(q < to_ ? load_streaming(&{at}) : Quad{{0, 0, 0, 0}});
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
{added}if (deep == 0) sums[warp][m][(lane & 7) * {lanes} + j] = s;
}}
block_sync();
for (int t = threadIdx.x; t < {rows} * {wide}; t += {threads}) {{
const idx {im} = t / {wide}, {in_} = group % {tiles} * {wide} + t % {wide};
if ({in_} < {n}) {{
float all = 0;
#pragma unroll
for (int w = 0; w < {COLUMN_WARPS}; ++w) all += sums[w][{im}][t % {wide}];
{out}}}
}}
block_sync();
}}
",
            lane = target.lane(),
            warp = target.wave_of_thread(),
            turn = 4 * COLUMN_WARPS * at_once,
            step = COLUMN_WARPS * at_once,
            threads = target.lanes() * COLUMN_WARPS,
        );
        let most = SymExpr::from_i64(crate::MAX_BLOCKS);
        let mut launch = Launch::flat(groups.sym_min(&most), target.wave * COLUMN_WARPS as u32);
        launch.blocks[1] = SymExpr::from_i64(parts);
        let mut kernels = vec![assemble(self.program, ENTRY, &uses, launch, &body)?];
        if parts > 1 {
            kernels.push(self.reduce_parts(parts)?);
        }
        Ok(Variant { name: format!("gemv_columns_{parts}"), kernels, scratch })
    }

    /// The kernel that adds the partial sums in order and runs the epilogue.
    fn reduce_parts(&self, parts: i64) -> Result<crate::Kernel, GenError> {
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
        let launch = Launch::flat(crate::text::template::blocks_of(&points, 128), 128);
        assemble(self.program, ENTRY, &uses, launch, &body)
    }
}
