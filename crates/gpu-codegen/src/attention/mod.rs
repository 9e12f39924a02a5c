//! Attention: the choice of kernels, what they share, and the fallback, in which a warp computes one query row with a
//! running softmax and its lanes share the keys of a tile, then the elements of the result. Scores never reach memory; for rows
//! longer than a warp's registers hold they are computed again.

pub(crate) mod backward;
pub(crate) mod backward_flash;
pub(crate) mod backward_tma;
pub(crate) mod backward_waves;
pub(crate) mod decode;
pub(crate) mod flash;
pub(crate) mod flash_waves;
mod kept;
pub(crate) mod masks;
pub(crate) mod scores;
pub(crate) mod tma;
pub(crate) mod tma_sections;

use ir_core::{DType, SymExpr};
use kernel_ir::{Attention, Operand, Program, Val};

use crate::text::body::{BodyWriter, Uses};
use crate::text::template::{EpilogueEffects, assemble, compute_type, element, epilogue, volume};
use crate::text::types::value_type;
use crate::{ENTRY, GenError, Kernel, Launch, MAX_BLOCKS, Target, Variant};

/// Maximum number of elements of a result row that a lane keeps in registers; longer rows take several iterations.
const MAX_PER_LANE: i64 = 16;
/// Warps per block.
const WARPS: i64 = 4;

/// Returns the candidate implementations, best first by rule.
pub(crate) fn variants(program: &Program, k: &Attention, target: &Target) -> Result<Vec<Variant>, GenError> {
    let drops = k.dropout.is_some();
    let mut all = if drops { Vec::new() } else { decode::variants(program, k, target)? };
    let few = all.len();
    all.extend(tma::variants(program, k, target)?);
    if !drops {
        // Blocks of these have what several warps keep twice: of long rows they take 0.2 to 0.9 of the time.
        all.extend(tma::of_sections(program, k, target)?);
    }
    all.extend(flash::variants(program, k, target)?);
    if decode::is_short(k, target) {
        all.rotate_left(few);
    }
    all.push(Variant::single("simple", generate(program, k, target)?));
    Ok(all)
}

/// The operands of an attention as text over the loop variables `i0`, `i1`, `i2` and the key `j`.
pub(crate) struct Operands<'a> {
    pub(crate) writer: BodyWriter<'a>,
    pub(crate) k: &'a Attention,
    /// Numbers of query heads, query rows and keys.
    pub(crate) heads: String,
    pub(crate) rows: String,
    pub(crate) keys: String,
    /// Number of query heads that share a key head.
    pub(crate) group: String,
    /// The scale of the scores, as a float.
    pub(crate) scale: String,
}

impl<'a> Operands<'a> {
    pub(crate) fn of(program: &'a Program, k: &'a Attention, uses: &mut Uses) -> Operands<'a> {
        let ranges = &k.epilogue.ranges;
        let writer = BodyWriter { program, extents: ranges, prefix: "", guard: None, store_guard: None };
        let [heads, rows, keys, group] =
            [&ranges[1], &ranges[2], &k.k.sizes[2], &ranges[1].floor_div(&k.k.sizes[1])]
                .map(|e| writer.expr(e, uses));
        let scale = format!("as_float(0x{:08x}u)", (k.scale as f32).to_bits());
        Operands { writer, k, heads, rows, keys, group, scale }
    }

    pub(crate) fn text(&self, e: &SymExpr, uses: &mut Uses) -> String {
        self.writer.expr(e, uses)
    }

    pub(crate) fn element(&self, operand: &Operand, index: [&str; 4], uses: &mut Uses) -> String {
        element(&self.writer, operand, &index, uses)
    }

    /// Returns a statement that stores the logarithm of the sum of a row's exponentials, or nothing where no output wants
    /// it. `total` is the sum after subtracting the largest score `most`. The loop variables `i0` to `i2` are in scope.
    pub(crate) fn sums(&self, most: &str, total: &str, uses: &mut Uses) -> String {
        let Some(sums) = &self.k.sums else { return String::new() };
        let place = element(&self.writer, sums, &["i0", "i1", "i2"], uses);
        uses.written.insert(self.writer.program.root(sums.buf));
        let (infinity, log) = if self.k.acc == DType::F64 { ("INF64", "log") } else { ("INF32", "logf") };
        format!("{place} = {total} == 0 ? -{infinity} : {most} + {log}({total});\n")
    }

    /// Statements that compute the mask's element at `i0`, `i1`, `i2` and the key `i3`, and its name, where the mask is a function.
    pub(crate) fn function(&self, uses: &mut Uses) -> Result<Option<(String, String)>, GenError> {
        let function = match &self.k.visibility {
            Some(visibility) if !visibility.function.is_empty() => &visibility.function,
            _ => return Ok(None),
        };
        let ranges = &self.k.epilogue.ranges;
        let extents: Vec<SymExpr> = ranges[..3].iter().chain([&self.k.k.sizes[2]]).cloned().collect();
        let writer = BodyWriter { extents: &extents, prefix: "m", ..self.writer };
        let text = writer.write(function, &EpilogueEffects { result: "" }, uses)?;
        Ok(Some((text, writer.name(Val(function.len() as u32 - 1)))))
    }

    /// The dtype of the mask's elements, where it is a function.
    pub(crate) fn function_dtype(&self) -> Option<DType> {
        self.k.visibility.as_ref()?.function.last().map(|inst| inst.dtype)
    }

    /// Returns statements that apply the mask to `score`, or clear `seen` for a masked key.
    pub(crate) fn mask_of(&self, score: &str, uses: &mut Uses) -> Result<String, GenError> {
        let wide = if self.k.acc == DType::F64 { "double" } else { "float" };
        if let Some((function, value)) = self.function(uses)? {
            let apply = match self.function_dtype() {
                Some(DType::Bool) => format!("if (!{value}) seen = false;"),
                _ => format!("{score} += to<{wide}>({value});"),
            };
            return Ok(format!("{{\nconst idx i3 = j;\n(void)i3;\n{function}{apply}\n}}\n"));
        }
        let Some(mask) = &self.k.mask else { return Ok(String::new()) };
        if let Some(bits) = self.packed_mask() {
            let word = self.element(bits, ["i0", "i1", "i2", "(j / 32)"], uses);
            return Ok(format!("if (((u32){word} >> (int)(j % 32) & 1u) == 0) seen = false;\n"));
        }
        let m = self.element(mask, ["i0", "i1", "i2", "j"], uses);
        Ok(match self.writer.program.buffers[mask.buf].dtype {
            DType::Bool => format!("if ({m} == 0) seen = false;\n"),
            _ => format!("{score} += to<{wide}>({m});\n"),
        })
    }

    /// The mask, where it is packed: 32 keys a word (`masks`).
    pub(crate) fn packed_mask(&self) -> Option<&'a Operand> {
        self.k.mask.as_ref().filter(|mask| masks::is_packed(self.writer.program, mask))
    }
}

/// The fallback kernel, which takes every dtype and stride.
fn generate(program: &Program, k: &Attention, target: &Target) -> Result<Kernel, GenError> {
    let ranges = &k.epilogue.ranges;
    let (true, Some(width)) = (ranges.len() == 4, k.v.sizes.last()) else {
        return Err(GenError::Malformed("attention has operands of four dimensions".into()));
    };
    let mut uses = Uses::default();
    let writer = BodyWriter { program, extents: ranges, prefix: "", guard: None, store_guard: None };
    let wave = target.lanes();
    let whole = width.range(&program.bounds()).1.filter(|n| *n <= wave * MAX_PER_LANE);
    let per_lane = whole.map_or(MAX_PER_LANE, |n| (n.max(1) + wave - 1) / wave);
    let acc = compute_type(k.acc)?;
    let rows = volume(&ranges[..3]);
    let text = |e: &SymExpr, uses: &mut Uses| writer.expr(e, uses);
    let count = text(&rows, &mut uses);
    let (heads, length) = (text(&ranges[1], &mut uses), text(&ranges[2], &mut uses));
    let keys = text(&k.k.sizes[2], &mut uses);
    let depth = text(&k.q.sizes[3], &mut uses);
    let width = text(width, &mut uses);
    // Number of query heads that share a key head.
    let shared = text(&ranges[1].floor_div(&k.k.sizes[1]), &mut uses);
    let q = element(&writer, &k.q, &["i0", "i1", "i2", "d"], &mut uses);
    let key = element(&writer, &k.k, &["i0", "kv", "j", "d"], &mut uses);
    let value = element(&writer, &k.v, &["i0", "kv", "from", "e"], &mut uses);
    let limit = if k.causal { format!("imin<idx>({keys}, i2 + 1)") } else { keys };
    let operands = Operands::of(program, k, &mut uses);
    let mask = operands.mask_of("score", &mut uses)?;
    let (infinity, exp) = if acc == "double" { ("INF64", "exp") } else { ("INF32", "expf") };
    let scale = crate::text::types::number(ir_core::Scalar::Float(k.scale), k.acc.compute())?;
    let sums = operands.sums("most", "total", &mut uses);
    let drop = match operands.is_kept(&mut uses) {
        Some(kept) => format!("if (j < limit && !({kept})) weight = 0;\n"),
        None => String::new(),
    };
    let factor = operands.by_kept_factor()?;
    let tail = epilogue(program, &k.epilogue, "result", &mut uses)?;
    let result = value_type(k.acc)?;
    let (sections, from, end) = match whole {
        Some(_) => (String::new(), "", ""),
        None => (format!("for (idx e0 = 0; e0 < {width}; e0 += {}) {{\n", wave * per_lane), "e0 + ", "}\n"),
    };
    let body = format!(
        "const int lane = {lane};
for (idx row = blockIdx.x * (idx){WARPS} + threadIdx.x / {wave}; row < {count}; row += (idx)gridDim.x * {WARPS}) {{
const idx i2 = row % {length}, i1 = row / {length} % {heads}, i0 = row / {length} / {heads};
const idx kv = i1 / {shared};
{sections}{acc} most = -{infinity}, total = 0, out[{per_lane}] = {{}};
const idx limit = {limit};
for (idx j0 = 0; j0 < limit; j0 += {wave}) {{
const idx j = j0 + lane;
bool seen = j < limit;
{acc} score = -{infinity};
if (seen) {{
score = 0;
for (idx d = 0; d < {depth}; ++d) score += to<{acc}>({q}) * to<{acc}>({key});
score *= {scale};
{mask}if (!seen) score = -{infinity};
}}
{acc} top = team_combine<MAX, {wave}>(score, (void *)0);
// A score that is not a number makes the whole row so.
if (!(top <= most)) {{
const {acc} shrink = most == -{infinity} ? ({acc})0 : {exp}(most - top);
total *= shrink;
#pragma unroll
for (int u = 0; u < {per_lane}; ++u) out[u] *= shrink;
most = top;
}}
{acc} weight = score == -{infinity} ? ({acc})0 : {exp}(score - most);
total += team_combine<SUM, {wave}>(weight, (void *)0);
{drop}const int many = (int)imin<idx>({wave}, limit - j0);
for (int t = 0; t < many; ++t) {{
const {acc} w = shuffle(weight, t);
const idx from = j0 + t;
#pragma unroll
for (int u = 0; u < {per_lane}; ++u) {{
const idx e = {from}lane + {wave} * u;
if (e < {width} && w != 0) out[u] += w * to<{acc}>({value});
}}
}}
}}
if (lane == 0) {{
{sums}}}
#pragma unroll
for (int u = 0; u < {per_lane}; ++u) {{
const idx i3 = {from}lane + {wave} * u;
if (i3 < {width}) {{
const {result} result = to<{result}>(total == 0 ? {empty} : out[u] / total{factor});
{tail}}}
}}
{end}}}
",
        lane = target.lane(),
        empty = if acc == "double" { "0.0" } else { "0.0f" },
    );
    let blocks = rows.ceil_div(&SymExpr::from_i64(WARPS)).sym_min(&SymExpr::from_i64(MAX_BLOCKS));
    assemble(program, ENTRY, &uses, Launch::flat(blocks, target.wave * WARPS as u32), &body)
}
