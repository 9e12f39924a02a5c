//! Dropout of weights: which of a thread's weights are kept, by the words of bits that the program gives.
//!
//! Kernels that look at each score alone read the bit of each. Those by `wgmma` read the words of a tile while its scores are computed, and
//! test bits of registers. The factor on what is kept is applied where it costs least: to the result of a row, to the gradient of values, and
//! to each cotangent of a weight. Not here: kernels for few rows and for long ones (`decode`, `tma_sections`), which are not offered.

use ir_core::Scalar;
use kernel_ir::Operand;

use crate::GenError;
use crate::attention::Operands;
use crate::attention::backward::Side;
use crate::text::body::Uses;
use crate::text::types::number;

/// Keys of a word.
const KEYS: i64 = kernel_ir::Dropout::KEYS;

impl<'a> Operands<'a> {
    fn words(&self) -> Option<&'a Operand> {
        self.k.dropout.as_ref().map(|d| &d.kept)
    }

    /// Says whether the weight of query `i2` and key `j`, which exist, is kept; nothing without dropout.
    pub(crate) fn is_kept(&self, uses: &mut Uses) -> Option<String> {
        let word = self.element(self.words()?, ["i0", "i1", "i2", &format!("(j / {KEYS})")], uses);
        Some(format!("((u32){word} >> (int)(j % {KEYS}) & 1u) != 0"))
    }

    /// ` * ` and the factor on kept weights; nothing without dropout.
    pub(crate) fn by_kept_factor(&self) -> Result<String, GenError> {
        match &self.k.dropout {
            Some(d) => Ok(format!(" * {}", number(Scalar::Float(d.factor), self.k.acc.compute())?)),
            None => Ok(String::new()),
        }
    }

    /// Declares `kept_words(turn)`, which reads what a thread of a kernel by `wgmma` needs of a tile of `far` rows, and `kept(n)`, which says
    /// whether element `n` of its weights (`scores`) is kept.
    pub(crate) fn kept_of_tile(&self, side: Side, far: i64, uses: &mut Uses) -> String {
        let Some(operand) = self.words() else {
            return "auto kept_words = [](int) {};\nauto kept = [](int) { return true; };\n".into();
        };
        let count = self.text(&operand.sizes[3], uses);
        let word = self.element(operand, ["i0", "i1", "i2", "word"], uses);
        match side {
            // The words of the thread's two queries.
            Side::Queries => format!(
                "u32 kept_bits[2][{words}];
auto kept_words = [&](int turn) {{
const idx from = far_row(turn);
#pragma unroll
for (int r = 0; r < 2; ++r) {{
const idx i2 = imin<idx>(first + r * 8, {rows} - 1);
#pragma unroll
for (int w = 0; w < {words}; ++w) {{
const idx word = from / {KEYS} + w;
kept_bits[r][w] = word < {count} ? (u32){word} >> (pair * 2) : 0u;
}}
}}
}};
auto kept = [&](int n) {{ return (kept_bits[n >> 1 & 1][n / 16] >> (n / 4 % 4 * 8 + (n & 1)) & 1u) != 0; }};
",
                words = far / KEYS,
                rows = self.rows,
            ),
            // A bit for each element, of the words that each query has for the thread's two keys.
            Side::Keys => format!(
                "u32 kept_bits[{groups} / 8];
auto kept_words = [&](int turn) {{
const idx i1 = far_head(turn), from = far_row(turn), word = imin<idx>(first / {KEYS}, {count} - 1);
(void)i1;
#pragma unroll
for (int b = 0; b < {groups} / 8; ++b) kept_bits[b] = 0;
#pragma unroll
for (int c = 0; c < {groups}; ++c)
#pragma unroll
for (int u = 0; u < 2; ++u) {{
const idx i2 = from + c * 8 + pair * 2 + u;
const u32 both = i2 < {rows} ? (u32){word} >> (int)(first % {KEYS}) : 0u;
kept_bits[c / 8] |= (both & 1u) << (c % 8 * 4 + u) | (both >> 8 & 1u) << (c % 8 * 4 + 2 + u);
}}
}};
auto kept = [&](int n) {{ return (kept_bits[n / 32] >> (n % 32) & 1u) != 0; }};
",
                groups = far / 8,
                rows = self.rows,
            ),
        }
    }
}
