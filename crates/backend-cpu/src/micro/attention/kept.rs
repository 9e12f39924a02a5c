//! Which weights of attention are kept after the softmax, as bits of words. Not how they are drawn: the words are an operand.

/// Dropout of the weights: the result is the sum of the values by `weight · factor` where a weight is kept; the sums of the softmax are
/// those of all weights.
#[derive(Debug, Clone, Copy)]
pub struct Dropout {
    /// The words `[B, Hq, Lq, Lk / 32 rounded up]`: bit `j % 32` of word `j / 32` is set where the weight of key `j` is kept.
    pub words: *const i32,
    /// Strides of the words in elements; 0 broadcasts.
    pub strides: [isize; 4],
    /// Factor on the weights that are kept.
    pub factor: f64,
}

/// Keys of a word.
const KEYS: usize = 32;

/// The words of one row from some key on.
#[derive(Debug, Clone, Copy)]
pub(super) struct RowBits {
    first: *const i32,
    /// Elements from word to word.
    step: isize,
}

impl Dropout {
    /// The words of row `[b, h, i]` from `key` on, which is the first one of a word.
    pub(super) fn of_row(&self, [b, h, i]: [isize; 3], key: usize) -> RowBits {
        debug_assert!(key.is_multiple_of(KEYS), "blocks of keys are whole words");
        let s = &self.strides;
        let at = b * s[0] + h * s[1] + i * s[2] + (key / KEYS) as isize * s[3];
        RowBits { first: self.words.wrapping_offset(at), step: s[3] }
    }
}

impl RowBits {
    /// The bits from key `j` on to the end of its word; that of `j` is the lowest.
    ///
    /// # Safety
    /// The row has a word for the key.
    #[inline(always)]
    pub(super) unsafe fn at(self, j: usize) -> u32 {
        let word = self.first.wrapping_offset((j / KEYS) as isize * self.step);
        // SAFETY: the caller guarantees that the word exists.
        (unsafe { *word }).cast_unsigned() >> (j % KEYS)
    }
}
