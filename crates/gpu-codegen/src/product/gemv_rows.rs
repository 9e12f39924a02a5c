//! Products of a few rows whose matrix is contiguous along the inner dimension (the *rows* form of `gemv`): one, or two
//! that share the left operand and whose epilogues are fused. A `prologue` may compute the left operand in the same
//! kernel.
//!
//! A block loads the first part of its matrix before it waits for earlier launches, where the matrix is a constant:
//! earlier launches and the reading of memory then overlap. It prefetches nothing for other blocks: on an H200 a 7B
//! decoder takes 3.74 ms instead of 3.52 where the first blocks prefetch those of the next into the second-level cache.
//!
//! Not here: which steps are fused this way (`chain`).

use std::fmt::Write;

use ir_core::SymExpr;
use kernel_ir::{InstKind, Matmul, Storage, StoreMode};

use crate::product::gemv::Skinny;
use crate::product::prologue::Prologue;
use crate::text::body::{BodyWriter, Substitutions, Uses};
use crate::text::checks;
use crate::text::template::{EpilogueEffects, assemble, unravel, volume};
use crate::text::types::{memory_type, value_type};
use crate::{ENTRY, GenError, Launch, MAX_BLOCKS, Target, Variant};

/// Minimum number of warps that split the inner dimension.
const WARPS: i64 = 4;
/// Maximum number of warps per block, and about the number where every block also computes the left operand: fewer blocks
/// then compute it.
const MAX_WARPS: i64 = 16;
/// Maximum number of loads in flight per lane and column.
const MAX_LOADS: i64 = 4;
/// The variables of the two products' results in their epilogues.
const RESULTS: [&str; 2] = ["result0", "result1"];

/// One or two products with the same left operand.
pub(crate) struct Rows<'a> {
    products: Vec<Skinny<'a>>,
    /// Expressions for elements that the first product's epilogue stores and the second one's reads.
    handed: Substitutions,
    prologue: Option<Prologue<'a>>,
}

/// The shape of a kernel.
#[derive(Clone, Copy)]
struct Config {
    /// Columns of each result per warp.
    columns: i64,
    /// Loads in flight per lane and column.
    unroll: i64,
    /// Number of warps that split the inner dimension of the same columns.
    sharing: i64,
    /// Warps per block.
    warps: i64,
    /// Lanes per warp.
    wave: i64,
}

impl<'a> Rows<'a> {
    pub(crate) fn of(product: Skinny<'a>) -> Rows<'a> {
        Rows { products: vec![product], handed: Substitutions::new(), prologue: None }
    }

    /// Two products with the same left operand, where the second epilogue may read what the first stores at the same
    /// point; `None` where one kernel cannot compute them.
    pub(crate) fn pair(first: Skinny<'a>, second: Skinny<'a>) -> Option<Rows<'a>> {
        let dtype = |s: &Skinny<'_>| s.program.buffers[s.k.b.buf].dtype;
        let alike = first.k.a == second.k.a
            && first.k.epilogue.ranges == second.k.epilogue.ranges
            && dtype(&first) == dtype(&second)
            && first.along_inner
            && second.along_inner;
        let handed = alike.then(|| handed(&first, second.k)).flatten()?;
        Some(Rows { products: vec![first, second], handed, prologue: None })
    }

    /// Adds the prologue that computes the left operand; `None` where blocks cannot compute it themselves.
    pub(crate) fn with_prologue(mut self, prologue: Option<Prologue<'a>>) -> Option<Rows<'a>> {
        let shape = &self.products[0];
        if !shape.vector_left || !shape.along_inner || volume(&shape.k.a.sizes[..shape.split]) != SymExpr::ONE
        {
            return None;
        }
        self.prologue = Some(prologue?);
        Some(self)
    }

    /// Buffers through which the first product passes values to the second.
    pub(crate) fn handed(&self) -> impl Iterator<Item = kernel_ir::BufId> + '_ {
        self.handed.keys().copied()
    }

    /// Returns the candidate implementations, best first by rule.
    pub(crate) fn variants(&self, target: &Target) -> Result<Vec<Variant>, GenError> {
        self.candidates(target).into_iter().map(|candidate| self.candidate(candidate, target)).collect()
    }

    fn candidates(&self, target: &Target) -> Vec<Config> {
        let (shape, count) = (&self.products[0], self.products.len() as i64);
        let (n, inner) = (Skinny::typical(shape.columns_of()), Skinny::typical(shape.inner()));
        // Number of a warp's loads that cover a column. Where possible every thread loads once: a block then issues all
        // its loads together, before it waits for anything.
        let shares = |n: i64, each: i64| (n + each - 1) / each;
        let wave = target.lanes();
        let loads = shares(inner, wave * shape.lanes).max(1);
        let each = shares(loads, shares(loads, MAX_WARPS * MAX_LOADS));
        let sharing = shares(each, MAX_LOADS).clamp(WARPS, MAX_WARPS);
        let unroll = shares(each, sharing).clamp(1, MAX_LOADS);
        // Measured on an H200 for the products of a 7B decoder: two columns, with the inner dimension split over the warps
        // of a block, is the fastest or within 2 % of it at 1,000 to 32,000 columns. Fewer columns keep more blocks busy.
        let columns = if n >= 4 * i64::from(target.multiprocessors) { 2 / count } else { 1 };
        let warps = |sharing: i64| match self.prologue {
            Some(_) => MAX_WARPS / sharing * sharing,
            None => sharing.max(WARPS),
        };
        let candidate =
            |columns, unroll, sharing| Config { columns, unroll, sharing, warps: warps(sharing), wave };
        let mut candidates = vec![candidate(columns, unroll, sharing)];
        for (columns, sharing) in [(2, 1), (4, 1), (2, WARPS), (1, WARPS), (1, sharing)] {
            let known = candidates.iter().any(|w| (w.columns, w.sharing) == (columns, sharing));
            if !known && columns * shape.rows <= wave && columns * count <= 4 {
                candidates.push(candidate(
                    columns,
                    (2 * MAX_LOADS / columns / count).clamp(1, 2 * unroll),
                    sharing,
                ));
            }
        }
        candidates
    }

    /// Whether no launch of a call writes the matrices.
    fn constant(&self) -> bool {
        self.products.iter().all(|p| {
            let program = p.program;
            // Which matrix a row reads is known behind earlier launches alone.
            let known = p.k.groups.is_none();
            known && matches!(program.buffers[program.root(p.k.b.buf)].storage, Storage::Constant(_))
        })
    }

    /// Returns statements that read `lanes` elements of row `m` of the left operand, from position `q` on, into `x`.
    fn left(&self, uses: &mut Uses) -> Result<String, GenError> {
        let shape = &self.products[0];
        let (lanes, a) = (shape.lanes, &shape.k.a);
        let ty = memory_type(shape.program.buffers[a.buf].dtype)?;
        let vector = match &self.prologue {
            Some(prologue) => prologue.staged("m", "q"),
            None if shape.vector_left => {
                format!("*(const Vec<{ty}, {lanes}> *)&{}", shape.address(a, "m", "q", uses))
            }
            None => {
                let at = shape.address(a, "m", "(q + j)", uses);
                return Ok(format!(
                    "#pragma unroll\nfor (int j = 0; j < {lanes}; ++j) x[j] = to<float>({at});\n"
                ));
            }
        };
        Ok(format!(
            "const Vec<{ty}, {lanes}> xv = {vector};
#pragma unroll
for (int j = 0; j < {lanes}; ++j) x[j] = to<float>(xv.v[j]);
"
        ))
    }

    /// Returns statements that load the vectors `wv` of an iteration.
    fn load(&self, ty: &str, candidate: Config, inner: &str) -> String {
        let (lanes, count) = (self.products[0].lanes, self.products.len());
        format!(
            "#pragma unroll
for (int u = 0; u < {unroll}; ++u)
#pragma unroll
for (int c = 0; c < {columns}; ++c)
#pragma unroll
for (int p = 0; p < {count}; ++p) {{
const idx q = q0 + u * {step};
wv[u][p][c] = bits_as<Vec<{ty}, {lanes}>>(q < {inner} ? load_streaming(w[p][c] + q) : Quad{{0, 0, 0, 0}});
}}
",
            unroll = candidate.unroll,
            columns = candidate.columns,
            step = candidate.wave * lanes,
        )
    }

    /// Returns statements that multiply the vectors of an iteration and accumulate the products in `sum`.
    fn consume(&self, candidate: Config, inner: &str, uses: &mut Uses) -> Result<String, GenError> {
        let (lanes, rows, count) = (self.products[0].lanes, self.products[0].rows, self.products.len());
        Ok(format!(
            "#pragma unroll
for (int u = 0; u < {unroll}; ++u) {{
const idx q = q0 + u * {step};
if (q < {inner}) {{
#pragma unroll
for (int m = 0; m < {rows}; ++m) {{
float x[{lanes}];
{left}#pragma unroll
for (int p = 0; p < {count}; ++p)
#pragma unroll
for (int c = 0; c < {columns}; ++c)
#pragma unroll
for (int j = 0; j < {lanes}; ++j) sum[p][m][c] = fmaf(x[j], to<float>(wv[u][p][c].v[j]), sum[p][m][c]);
}}
}}
}}
",
            unroll = candidate.unroll,
            columns = candidate.columns,
            step = candidate.wave * lanes,
            left = self.left(uses)?,
        ))
    }

    /// Returns the addresses `w` of a group's columns in each matrix.
    fn pointers(&self, ty: &str, columns: i64, n: &str, uses: &mut Uses) -> String {
        let mut out = format!("const {ty} *w[{}][{columns}];\n", self.products.len());
        for (p, product) in self.products.iter().enumerate() {
            let column = product.address(&product.k.b, "0", "col", uses);
            let _ = writeln!(
                out,
                "#pragma unroll\nfor (int c = 0; c < {columns}; ++c) {{ const idx col = imin<idx>(col0 + c, {n} - 1); w[{p}][c] = &{column}; }}"
            );
        }
        out
    }

    /// Returns the epilogues of the products, one after another.
    fn tails(&self, uses: &mut Uses) -> Result<String, GenError> {
        let mut out = String::new();
        for (p, (product, name)) in self.products.iter().zip(RESULTS).enumerate() {
            let result = value_type(product.k.acc)?;
            let prefix = value_prefix(p);
            let writer = BodyWriter { prefix: &prefix, ..product.writer() };
            let effects = EpilogueEffects { result: name };
            let _ = writeln!(
                out,
                "const {result} {name} = to<{result}>({});",
                product.kept(&format!("mine[{p}]"))
            );
            let none = Substitutions::new();
            let handed = if p == 0 { &none } else { &self.handed };
            out.push_str(&writer.write_substituted(&product.k.epilogue.insts, &effects, uses, handed)?);
        }
        Ok(out)
    }

    fn candidate(&self, candidate: Config, target: &Target) -> Result<Variant, GenError> {
        let shape = &self.products[0];
        let (k, lanes, rows, count) = (shape.k, shape.lanes, shape.rows, self.products.len() as i64);
        let Config { columns, unroll, sharing, warps, wave } = candidate;
        let (ranges, split) = (&k.epilogue.ranges, shape.split);
        let mut uses = Uses { waits: self.constant(), ..Uses::default() };
        let writer = shape.writer();
        let (n, inner) = (writer.expr(shape.columns_of(), &mut uses), writer.expr(shape.inner(), &mut uses));
        let tiles = shape.columns_of().ceil_div(&SymExpr::from_i64(columns));
        let groups = volume(&ranges[..split]) * &tiles;
        let (tiles, many) = (writer.expr(&tiles, &mut uses), writer.expr(&groups, &mut uses));
        let lead = unravel(&writer, &ranges[..split], 0, "batch", &mut uses) + &shape.found(&mut uses);
        let ty = memory_type(shape.program.buffers[k.b.buf].dtype)?;
        let pointers = self.pointers(ty, columns, &n, &mut uses);
        let per_block = warps / sharing;
        let (im, in_) = (format!("i{split}"), format!("i{}", split + 1));
        let (load, consume) = (self.load(ty, candidate, &inner), self.consume(candidate, &inner, &mut uses)?);
        let tail = self.tails(&mut uses)?;
        uses.shared = if sharing == 1 { 0 } else { (4 * warps * count * rows * columns) as u32 };
        let wait = if uses.waits { "launch_wait();\n" } else { "" };
        let prologue = match &self.prologue {
            Some(p) => {
                format!(
                    "if (first == blockIdx.x * (idx){per_block}) {{\n{}}}\n",
                    p.text(warps, wave, &mut uses)?
                )
            }
            None => String::new(),
        };
        let declared = self.prologue.as_ref().map(Prologue::declared).transpose()?.unwrap_or_default();
        let together = warp_sums(candidate, count, rows) + &shared_sums(candidate, count, rows * columns);
        let body = format!(
            "{declared}const int lane = {lane}, warp = {warp};
const int share = warp % {sharing};
for (idx first = blockIdx.x * (idx){per_block}; first < {many}; first += (idx)gridDim.x * {per_block}) {{
const idx group = first + warp / {sharing};
const bool acts = group < {many};
const idx batch = acts ? group / {tiles} : 0, col0 = acts ? group % {tiles} * {columns} : 0;
{lead}float sum[{count}][{rows}][{columns}] = {{}};
{pointers}Vec<{ty}, {lanes}> wv[{unroll}][{count}][{columns}];
idx q0 = (idx)(share * {unroll} * {wave} + lane) * {lanes};
{load}{wait}{prologue}while (acts && q0 < {inner}) {{
{consume}q0 += {turn};
if (q0 < {inner}) {{
{load}}}
}}
{together}const idx {im} = lane / {columns}, {in_} = col0 + lane % {columns};
if (acts && share == 0 && lane < {outs} && {in_} < {n}) {{
{tail}}}
}}
",
            lane = target.lane(),
            warp = target.wave_of_thread(),
            turn = wave * lanes * unroll * sharing,
            outs = rows * columns,
        );
        let blocks = groups.ceil_div(&SymExpr::from_i64(per_block)).sym_min(&SymExpr::from_i64(MAX_BLOCKS));
        let launch = Launch::flat(blocks, (wave * warps) as u32);
        let kernel = assemble(shape.program, ENTRY, &uses, launch, &body)?;
        Ok(Variant::single(self.name(candidate), kernel))
    }

    fn name(&self, candidate: Config) -> String {
        let prologue = if self.prologue.is_some() { "staged_" } else { "" };
        let pair = if self.products.len() > 1 { "pair_" } else { "" };
        format!("{prologue}{pair}gemv_rows_{}x{}_{}", candidate.columns, candidate.unroll, candidate.sharing)
    }
}

/// The prefix of the names of an epilogue's values.
fn value_prefix(product: usize) -> String {
    format!("e{product}_")
}

/// The values of the first epilogue that replace what the second one reads; `None` where the second reads anything else
/// that the first one stores.
fn handed(first: &Skinny<'_>, second: &Matmul) -> Option<Substitutions> {
    let (program, mut handed) = (first.program, Substitutions::new());
    let address = |buf: kernel_ir::BufId, index: &[SymExpr]| program.buffers[buf].address(index);
    for inst in &second.epilogue.insts {
        let InstKind::Load { buf, index, mask } = &inst.kind else { continue };
        for stored in &first.k.epilogue.insts {
            let InstKind::Store { buf: to, index: at, value, mask: guard, mode } = &stored.kind else {
                continue;
            };
            if program.root(*to) != program.root(*buf) {
                continue;
            }
            // Values of the two bodies have the same numbers but differ, so indices from data are not comparable.
            let known = !checks::from_data(at) && !checks::from_data(index);
            let same = known && to == buf && address(*to, at) == address(*buf, index);
            if !same || mask.is_some() || guard.is_some() || *mode != StoreMode::Write {
                return None;
            }
            handed.insert(*buf, format!("{}{}", value_prefix(0), value.0));
        }
    }
    Some(handed)
}

/// Returns statements that reduce the sums over a warp's lanes; a lane keeps those of its row and column, `mine`.
fn warp_sums(candidate: Config, count: i64, rows: i64) -> String {
    let Config { columns, wave, .. } = candidate;
    format!(
        "float mine[{count}] = {{}};
#pragma unroll
for (int p = 0; p < {count}; ++p)
#pragma unroll
for (int m = 0; m < {rows}; ++m)
#pragma unroll
for (int c = 0; c < {columns}; ++c) {{
const float all = team_combine<SUM, {wave}>(sum[p][m][c], (void *)0);
if (lane == m * {columns} + c) mine[p] = all;
}}
"
    )
}

/// Returns statements that reduce the sums over the warps that split the inner dimension; the first warp has the total.
fn shared_sums(candidate: Config, count: i64, outs: i64) -> String {
    let Config { sharing, warps, .. } = candidate;
    if sharing == 1 {
        return String::new();
    }
    format!(
        "__shared__ float sums[{warps}][{count}][{outs}];
block_sync();
#pragma unroll
for (int p = 0; p < {count}; ++p) if (lane < {outs}) sums[warp][p][lane] = mine[p];
block_sync();
if (share == 0 && lane < {outs}) {{
#pragma unroll
for (int p = 0; p < {count}; ++p)
#pragma unroll
for (int s = 1; s < {sharing}; ++s) mine[p] += sums[warp + s][p][lane];
}}
"
    )
}
