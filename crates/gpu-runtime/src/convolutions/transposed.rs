//! Rewrites gradients to the input of a convolution, which graphs express as plain convolutions with transposed and
//! reversed weights, as transposed convolutions: the library then reads the weight in place.
//!
//! This module is pure: it calls no library and evaluates no symbols.

use kernel_ir::Conv;

/// Returns an equivalent transposed convolution, whose weight has input and output channels exchanged and windows
/// reversed. `None` where there is none: for strided windows, groups, windows of symbolic size, or more padding than a
/// window covers.
pub(super) fn as_transposed(k: &Conv) -> Option<Conv> {
    if k.transposed || k.groups != 1 || k.stride.iter().any(|s| *s != 1) {
        return None;
    }
    let mut out = Conv { transposed: true, ..k.clone() };
    let weight = &mut out.weight;
    weight.sizes.swap(0, 1);
    weight.strides.swap(0, 1);
    for (d, (&dilation, &(before, after))) in k.dilation.iter().zip(&k.padding).enumerate() {
        let last = weight.sizes.get(d + 2)?.as_const()? - 1;
        let reach = last * dilation;
        if [before, after].into_iter().any(|p| p < 0 || p > reach) {
            return None;
        }
        // Point `t` of a window at `o + t * dilation - before` is point `last - t` of the transposed window that reaches
        // `o`.
        out.padding[d] = (reach - before, reach - after);
        weight.offset = &weight.offset + &weight.strides[d + 2] * last;
        weight.strides[d + 2] = &weight.strides[d + 2] * -1;
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use ir_core::{DType, Shape, SymExpr};
    use kernel_ir::{BufId, Epilogue, Operand};

    use super::*;

    fn shape(numbers: &[i64]) -> Shape {
        numbers.iter().map(|n| SymExpr::from_i64(*n)).collect()
    }

    fn operand(buf: u32, sizes: &[i64], strides: &[i64], offset: i64) -> Operand {
        let offset = SymExpr::from_i64(offset);
        Operand { buf: BufId(buf), sizes: shape(sizes), strides: shape(strides), offset }
    }

    /// The gradient to the input [2, 3, 8, 9] of a convolution with weights [5, 3, 3, 4], channels-last, padding 1 and 2.
    fn gradient() -> Conv {
        Conv {
            name: "c".into(),
            origins: Vec::new(),
            input: operand(0, &[2, 5, 8, 10], &[400, 1, 50, 5], 0),
            // Elements [c, o, …] of a [5, 3, 3, 4] with strides 36, 1, 12, 3, with reversed windows.
            weight: operand(1, &[3, 5, 3, 4], &[1, 36, -12, -3], 2 * 12 + 3 * 3),
            stride: vec![1, 1],
            padding: vec![(1, 1), (1, 1)],
            dilation: vec![1, 1],
            groups: 1,
            transposed: false,
            acc: DType::F32,
            zero: 0,
            epilogue: Epilogue { ranges: shape(&[2, 3, 8, 9]), insts: Vec::new() },
        }
    }

    #[test]
    fn the_weight_has_the_forward_layout() {
        let t = as_transposed(&gradient()).unwrap();
        assert_eq!(t.weight, operand(1, &[5, 3, 3, 4], &[36, 1, 12, 3], 0));
        assert_eq!((t.transposed, &t.padding[..]), (true, &[(1, 1), (2, 2)][..]));
    }

    #[test]
    fn every_product_is_the_same() {
        let k = Conv { dilation: vec![2, 1], padding: vec![(3, 4), (0, 3)], ..gradient() };
        let t = as_transposed(&k).unwrap();
        // The element of the weight that combines input `x` with output `o`, along one spatial dimension.
        let meets = |c: &Conv, d: usize, o: i64, x: i64| -> Vec<i64> {
            let at = |w: i64| match c.transposed {
                true => o == x - c.padding[d].0 + w * c.dilation[d],
                false => x == o - c.padding[d].0 + w * c.dilation[d],
            };
            let taps = c.weight.sizes[d + 2].as_const().unwrap();
            let stride = c.weight.strides[d + 2].as_const().unwrap();
            // Both windows start at the ends of the same elements.
            let first = if c.transposed { 0 } else { -stride * (taps - 1) };
            (0..taps).filter(|w| at(*w)).map(|w| first + w * stride).collect()
        };
        for d in 0..2 {
            for (o, x) in (0..12).flat_map(|o| (0..12).map(move |x| (o, x))) {
                assert_eq!(meets(&k, d, o, x), meets(&t, d, o, x), "{d}: {o} {x}");
            }
        }
    }

    #[test]
    fn other_convolutions_are_not_rewritten() {
        assert!(as_transposed(&Conv { stride: vec![1, 2], ..gradient() }).is_none());
        assert!(as_transposed(&Conv { groups: 5, ..gradient() }).is_none());
        assert!(as_transposed(&Conv { transposed: true, ..gradient() }).is_none());
        assert!(as_transposed(&Conv { padding: vec![(3, 1), (1, 1)], ..gradient() }).is_none());
        assert!(as_transposed(&Conv { padding: vec![(0, -1), (1, 1)], ..gradient() }).is_none());
    }
}
