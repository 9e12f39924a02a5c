//! Philox 4x32-10, the counter-based generator of Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as
//! 2, 3" (SC11): ten rounds of a keyed bijection on 128-bit counters. There is no state: a number is a function of its
//! position, so computing it twice, in any order, on any device gives the same result.

/// Round multipliers (paper, section 3.3 and the authors' reference code).
const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
/// What a round adds to the key: fractions of the golden ratio and of the square root of 3.
const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];
const ROUNDS: u32 = 10;

/// The four words that belong to a counter under a key.
pub fn philox4x32_10(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    let halves = |a: u32, b: u32| {
        let product = u64::from(a) * u64::from(b);
        ((product >> 32) as u32, product as u32)
    };
    for _ in 0..ROUNDS {
        let (high0, low0) = halves(MULTIPLIERS[0], counter[0]);
        let (high1, low1) = halves(MULTIPLIERS[1], counter[2]);
        counter = [high1 ^ counter[1] ^ key[0], low1, high0 ^ counter[3] ^ key[1], low0];
        key = [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])];
    }
    counter
}

/// `ScalarOp::Philox`: 64 random bits, words 0 (low half) and 1 (high half) of the block with the key `seed` and the
/// counter `index` (its low 64 bits), `stream` (its high 64 bits).
pub fn philox_bits(seed: i64, stream: i64, index: i64) -> i64 {
    let words = |x: i64| [x as u32, (x as u64 >> 32) as u32];
    let ([k0, k1], [c0, c1], [c2, c3]) = (words(seed), words(index), words(stream));
    let block = philox4x32_10([c0, c1, c2, c3], [k0, k1]);
    (u64::from(block[0]) | u64::from(block[1]) << 32) as i64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The known answers of the authors' library (Random123, `kat_vectors`): counter, key, words.
    const KNOWN: [([u32; 4], [u32; 2], [u32; 4]); 3] = [
        ([0; 4], [0; 2], [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]),
        ([!0; 4], [!0; 2], [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]),
        (
            [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
            [0xa409_3822, 0x299f_31d0],
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1],
        ),
    ];

    #[test]
    fn known_answers() {
        for (counter, key, words) in KNOWN {
            assert_eq!(philox4x32_10(counter, key), words);
        }
    }

    #[test]
    fn bits_are_the_first_words_of_the_block() {
        for (counter, key, words) in KNOWN {
            let join = |low: u32, high: u32| (u64::from(low) | u64::from(high) << 32) as i64;
            let bits =
                philox_bits(join(key[0], key[1]), join(counter[2], counter[3]), join(counter[0], counter[1]));
            assert_eq!(bits, join(words[0], words[1]));
        }
    }
}
