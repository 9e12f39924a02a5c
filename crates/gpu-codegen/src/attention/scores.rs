//! What the kernels by `wgmma` do to each score between the two products: scale it, add a mask's number, hide what a mask or the
//! order of positions hides. Forward and backward kernels share it.
//!
//! A thread holds the scores of two of its own rows, eight apart, and of pairs of adjacent far rows: element `n` is of own row
//! `n >> 1 & 1` and far row `n / 4 * 8 + pair * 2 + (n & 1)`. Not here: the products and the softmax (`dialect/common/flash.cu`).

use ir_core::{DType, SymExpr};
use kernel_ir::Operand;

use crate::GenError;
use crate::attention::Operands;
use crate::attention::backward::Side;
use crate::attention::masks::WORD as KEYS;
use crate::text::body::Uses;
use crate::text::types::memory_type;

/// The factor that turns a score into an exponent of 2, and statements that transform each score of an iteration.
pub(crate) struct ScoreTransform {
    pub(crate) factor: String,
    pub(crate) text: String,
}

/// The scores of an iteration.
pub(crate) struct Scores {
    /// What the own rows are: queries, also those of the forward kernel, or keys.
    pub(crate) side: Side,
    /// Far rows that a warpgroup sees of a tile, and all of the tile.
    pub(crate) far: i64,
    pub(crate) tile: i64,
    /// Says whether the scores of a warpgroup are all visible but for the mask.
    pub(crate) whole: String,
    /// Says whether the score of `i2` and `j` is visible but for the mask.
    pub(crate) seen: String,
    /// Says whether the mask shows the scores of a warpgroup unchanged, if that is noted (`masks`).
    pub(crate) unchanged: Option<String>,
}

fn bits_of(x: f64) -> String {
    format!("as_float(0x{:08x}u)", (x as f32).to_bits())
}

impl Scores {
    /// Transforms the scores `score` of an iteration; hidden ones become minus infinity. With a mask of numbers, or a scale that is
    /// not positive, all scores are scaled.
    pub(crate) fn transform(&self, o: &Operands<'_>, uses: &mut Uses) -> Result<ScoreTransform, GenError> {
        let factor = o.k.scale * std::f64::consts::LOG2_E;
        let positive = (factor as f32).is_normal() && factor > 0.0;
        let (scaled_later, body) = match (&o.k.mask, o.packed_mask()) {
            _ if o.function_dtype().is_some() => self.by_function(o, positive, uses)?,
            (None, _) if positive => (true, self.hidden(&format!("const bool seen = {};\n", self.seen))),
            (_, Some(bits)) if positive => (true, self.by_words(o, bits, uses)),
            (Some(mask), None) if self.side == Side::Queries && is_paired(o, mask) => {
                (false, self.by_pairs(o, mask, uses)?)
            }
            _ => (false, self.each(o, uses)?),
        };
        let early = match (&self.unchanged, o.k.is_masked(), scaled_later) {
            (None, false, true) => format!("if ({}) return;\n", self.whole),
            (Some(unchanged), _, true) => format!("if ({} && {unchanged}) return;\n", self.whole),
            (Some(unchanged), _, false) => format!(
                "if ({} && {unchanged}) {{
#pragma unroll
for (int n = 0; n < {}; ++n) score[n] *= {};
return;
}}
",
                self.whole,
                self.far / 2,
                bits_of(factor)
            ),
            _ => String::new(),
        };
        let text = format!(
            "[&](float (&score)[{}], int turn) {{\nconst idx from = far_row(turn);\n{early}{body}}}",
            self.far / 2
        );
        Ok(ScoreTransform { factor: if scaled_later { bits_of(factor) } else { "1.0f".into() }, text })
    }

    /// Declares the position of element `n`.
    fn place(&self) -> &'static str {
        match self.side {
            Side::Queries => {
                "const idx i2 = first + (n >> 1 & 1) * 8, j = from + n / 4 * 8 + pair * 2 + (n & 1);\n"
            }
            Side::Keys => {
                "const idx i1 = far_head(turn), i2 = from + n / 4 * 8 + pair * 2 + (n & 1), j = first + (n >> 1 & 1) * 8;
(void)i1;
(void)i2;
(void)j;
"
            }
        }
    }

    /// Hides the elements for which `seen` declares a variable of this name that is false.
    fn hidden(&self, seen: &str) -> String {
        format!(
            "#pragma unroll
for (int n = 0; n < {}; ++n) {{
{}{seen}if (!seen) score[n] = -INF32;
}}
",
            self.far / 2,
            self.place(),
        )
    }

    /// Computes the mask of each score; says whether scores are scaled later. What is behind the last query or key has the mask of
    /// the last one.
    fn by_function(
        &self,
        o: &Operands<'_>,
        positive: bool,
        uses: &mut Uses,
    ) -> Result<(bool, String), GenError> {
        let Some((function, value)) = o.function(uses)? else {
            return Err(GenError::Malformed("a mask without a function".into()));
        };
        let truth = o.function_dtype() == Some(DType::Bool);
        let (element, apply) = match truth {
            true => ("bool", "if (!(seen && element)) score[n] = -INF32;\n".to_owned()),
            false => (
                "float",
                format!(
                    "score[n] = seen ? fmaf(score[n], {}, element * {}) : -INF32;\n",
                    bits_of(o.k.scale * std::f64::consts::LOG2_E),
                    bits_of(std::f64::consts::LOG2_E)
                ),
            ),
        };
        let scale = match truth && !positive {
            true => format!("score[n] *= {};\n", bits_of(o.k.scale * std::f64::consts::LOG2_E)),
            false => String::new(),
        };
        let text = format!(
            "ASSUME(from >= 0);
#pragma unroll
for (int n = 0; n < {half}; ++n) {{
{place}const bool seen = {seen};
const idx query = imin<idx>(i2, {rows} - 1), key = {key};
{element} element;
{{
const idx i2 = query, i3 = key;
(void)i2;
(void)i3;
{function}element = to<{element}>({value});
}}
{scale}{apply}}}
",
            half = self.far / 2,
            place = self.place(),
            seen = self.seen,
            rows = o.rows,
            key = self.key(o),
        );
        Ok((truth && positive, text))
    }

    /// The key of a score, or the last one where it is behind that. Where tiles are whole a compiler sees from their numbers which keys have
    /// the same quotient or remainder by a power of two, and else that two adjacent keys have the same quotient by an even number: what a mask
    /// loads by these is loaded once.
    fn key(&self, o: &Operands<'_>) -> String {
        let keys = &o.keys;
        match (self.side, o.k.k.sizes[2].as_const()) {
            (Side::Queries, Some(n)) if n % self.tile == 0 => "j".into(),
            (Side::Queries, Some(n)) if n % 2 == 0 => {
                format!("(imin<idx>(j - (n & 1), {keys} - 2) & ~(idx)1) + (n & 1)")
            }
            _ => format!("imin<idx>(j, {keys} - 1)"),
        }
    }

    /// Hides by a mask in bits. Queries of the own side read the words of their keys, keys of the own side one word of each query.
    fn by_words(&self, o: &Operands<'_>, mask: &Operand, uses: &mut Uses) -> String {
        let words = o.text(&mask.sizes[3], uses);
        let word = o.element(mask, ["i0", "i1", "i2", "word"], uses);
        let (count, seen) = (self.far / KEYS, &self.seen);
        match self.side {
            Side::Queries => {
                let shown = format!(
                    "const bool seen = ({seen}) && (shown[n >> 1 & 1][n / 16] >> (n / 4 % 4 * 8 + (n & 1)) & 1u) != 0;\n"
                );
                format!(
                    "u32 shown[2][{count}];
#pragma unroll
for (int r = 0; r < 2; ++r) {{
const idx i2 = imin<idx>(first + r * 8, {rows} - 1);
#pragma unroll
for (int w = 0; w < {count}; ++w) {{
const idx word = from / {KEYS} + w;
shown[r][w] = word < {words} ? (u32){word} >> (pair * 2) : 0u;
}}
}}
{}",
                    self.hidden(&shown),
                    rows = o.rows,
                )
            }
            Side::Keys => {
                let shown = format!(
                    "const bool seen = ({seen}) && (shown[n / 4][n & 1] >> (n >> 1 & 1) * 8 & 1u) != 0;\n"
                );
                format!(
                    "u32 shown[{groups}][2];
#pragma unroll
for (int c = 0; c < {groups}; ++c)
#pragma unroll
for (int u = 0; u < 2; ++u) {{
const idx i1 = far_head(turn), i2 = from + c * 8 + pair * 2 + u, word = imin<idx>(first / {KEYS}, {words} - 1);
(void)i1;
shown[c][u] = i2 < {rows} ? (u32){word} >> (int)(first % {KEYS}) : 0u;
}}
{}",
                    self.hidden(&shown),
                    groups = self.far / 8,
                    rows = o.rows,
                )
            }
        }
    }

    /// Adds numbers that are read in pairs.
    fn by_pairs(&self, o: &Operands<'_>, mask: &Operand, uses: &mut Uses) -> Result<String, GenError> {
        let program = o.writer.program;
        let Ok(ty) = memory_type(program.buffers[mask.buf].dtype) else { return self.each(o, uses) };
        let at = o.element(mask, ["i0", "i1", "i2", "j"], uses);
        Ok(format!(
            "#pragma unroll
for (int c = 0; c < {groups}; ++c)
#pragma unroll
for (int r = 0; r < 2; ++r) {{
Vec<{ty}, 2> added = {{}};
{{
const idx i2 = imin<idx>(first + r * 8, {rows} - 1), j = from + c * 8 + pair * 2;
if (j + 1 < {keys}) added = *(const Vec<{ty}, 2> *)&{at};
else if (j < {keys}) added.v[0] = {at};
}}
#pragma unroll
for (int u = 0; u < 2; ++u) {{
const int n = c * 4 + r * 2 + u;
{place}const bool seen = {seen};
(void)i2;
(void)j;
score[n] = seen ? fmaf(score[n], {factor}, to<float>(added.v[u]) * {log2_e}) : -INF32;
}}
}}
",
            groups = self.far / 8,
            rows = o.rows,
            keys = o.keys,
            place = self.place(),
            seen = self.seen,
            factor = bits_of(o.k.scale * std::f64::consts::LOG2_E),
            log2_e = bits_of(std::f64::consts::LOG2_E),
        ))
    }

    /// Looks at each element of the mask alone.
    fn each(&self, o: &Operands<'_>, uses: &mut Uses) -> Result<String, GenError> {
        Ok(format!(
            "#pragma unroll
for (int n = 0; n < {half}; ++n) {{
{place}bool seen = {seen};
float sc = score[n] * {scale};
if (seen && i2 < {rows} && j < {keys}) {{
{mask}}}
score[n] = seen ? sc * {log2_e} : -INF32;
}}
",
            half = self.far / 2,
            place = self.place(),
            seen = self.seen,
            scale = o.scale,
            rows = o.rows,
            keys = o.keys,
            mask = o.mask_of("sc", uses)?,
            log2_e = bits_of(std::f64::consts::LOG2_E),
        ))
    }
}

/// Whether two adjacent numbers of a mask can be read at once.
fn is_paired(o: &Operands<'_>, mask: &Operand) -> bool {
    let program = o.writer.program;
    let narrow = matches!(program.buffers[mask.buf].dtype, DType::BF16 | DType::F16 | DType::F32);
    // A view's offset counts from its root's memory, as the operand's does.
    narrow && o.k.epilogue.ranges[2] != SymExpr::ZERO && crate::product::gemv::aligned(mask, 3, 2)
}
