//! Convolutions with few channels in space-to-depth layout ("folded"): blocks of adjacent input points become points of a
//! smaller input with more channels, over which a smaller window moves with stride 1. A window of 7 × 7 points of 3
//! channels with stride 2 becomes 4 × 4 points of 12 channels: tensor cores have kernels for that, and multiply fewer
//! padding zeros than with padded channels alone.
//!
//! This module is pure: it calls no library and evaluates no symbols.

use gpu_codegen::Blocks;
use ir_core::SymExpr;
use kernel_ir::Conv;

use super::layout::{Problem, Role, dims};

/// The multiple of channels that the library's tensor-core kernels require.
const UNIT: i64 = 8;
/// Maximum multiply-adds of the folded convolution per multiply-add of the original.
const MAX_PRODUCTS: i64 = 3;

/// The space-to-depth layouts of `x` and `w`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Folded {
    pub(super) x: Blocks,
    pub(super) w: Blocks,
}

impl Folded {
    /// The layouts for a convolution, or for a gradient to its weight; `None` where there are enough channels, where sizes
    /// other than the batch are symbolic, or where most of the work would be multiplications by zero.
    pub(super) fn of(k: &Conv, role: Role) -> Option<Folded> {
        let rank = k.epilogue.ranges.len();
        let ranges = &k.epilogue.ranges;
        let (x, w, y) = match role {
            Role::Forward => (&k.input.sizes, &k.weight.sizes, ranges),
            Role::Filter => (&k.input.sizes, ranges, &k.weight.sizes),
            Role::Data => return None,
        };
        let (steps, spread) = match role {
            Role::Filter => (&k.dilation, &k.stride),
            _ => (&k.stride, &k.dilation),
        };
        if rank < 4 || k.groups != 1 || spread.iter().any(|n| *n != 1) {
            return None;
        }
        let channel = *dims(role, rank).get(1)?;
        let channels = x[channel].as_const()?;
        let number = |sizes: &[SymExpr], d: usize| sizes[d + 2].as_const();
        let (mut lead, mut shift, mut of_x, mut of_w) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for (d, &step) in steps.iter().enumerate() {
            let before = k.padding[d].0;
            let (_, taps, windows) = (number(x, d)?, number(w, d)?, number(y, d)?);
            if before < 0 || taps < 1 || windows < 1 {
                return None;
            }
            // The first window starts with whole blocks of zeros; the excess before it is not part of the window.
            let zeros = (before + step - 1) / step;
            let late = step * zeros - before;
            let blocks = (taps + late + step - 1) / step;
            lead.push(step * zeros);
            shift.push(late);
            of_x.push(windows + blocks - 1);
            of_w.push(blocks);
        }
        let points: i64 = steps.iter().product();
        let filled = (channels * points + UNIT - 1) / UNIT * UNIT;
        let taps: i64 = (0..steps.len()).map(|d| number(w, d)).product::<Option<i64>>()?;
        let few = channels > 0 && channels < UNIT;
        let worth = filled * of_w.iter().product::<i64>() <= MAX_PRODUCTS * channels * taps;
        let blocks = |lead: Vec<i64>, counts: Vec<i64>| {
            let points = steps.clone();
            Blocks { channel, channels, filled, points, lead, counts }
        };
        (few && worth).then(|| Folded { x: blocks(lead, of_x), w: blocks(shift, of_w) })
    }

    /// The library's problem for the folded convolution.
    pub(super) fn problem(&self, of: Problem) -> Problem {
        let sizes = |outer: i64, blocks: &Blocks| {
            [outer, blocks.filled].into_iter().chain(blocks.counts.iter().copied()).collect::<Vec<i64>>()
        };
        let spatial = of.stride.len();
        Problem {
            x: sizes(of.x[0], &self.x),
            w: sizes(of.w[0], &self.w),
            padding: [vec![0; spatial], vec![0; spatial]],
            stride: vec![1; spatial],
            dilation: vec![1; spatial],
            ..of
        }
    }
}

#[cfg(test)]
mod tests {
    use ir_core::{DType, Shape};
    use kernel_ir::{BufId, Epilogue, Operand};

    use super::*;
    use crate::convolutions::layout::{self, Format, Tensor};

    fn shape(numbers: &[i64]) -> Shape {
        numbers.iter().map(|n| SymExpr::from_i64(*n)).collect()
    }

    fn operand(sizes: &[i64]) -> Operand {
        let strides = shape(&Format::ChannelsFirst.strides(sizes));
        Operand { buf: BufId(0), sizes: shape(sizes), strides, offset: SymExpr::ZERO }
    }

    /// A convolution of `x` with `w` to `y`, or the gradient to `w`.
    fn conv(role: Role, [x, w, y]: [[i64; 4]; 3], step: [i64; 2], before: [i64; 2]) -> Conv {
        let swap = |s: [i64; 4]| [s[1], s[0], s[2], s[3]];
        let (input, weight, ranges) = match role {
            Role::Filter => (swap(x), swap(y), swap(w)),
            _ => (x, w, y),
        };
        let (stride, dilation) = match role {
            Role::Filter => (vec![1, 1], step.to_vec()),
            _ => (step.to_vec(), vec![1, 1]),
        };
        Conv {
            name: "c".into(),
            origins: Vec::new(),
            input: operand(&input),
            weight: operand(&weight),
            stride,
            padding: before.iter().map(|b| (*b, *b)).collect(),
            dilation,
            groups: 1,
            transposed: false,
            acc: DType::F32,
            zero: 0,
            epilogue: Epilogue { ranges: shape(&ranges), insts: Vec::new() },
        }
    }

    /// The point of the original tensor at an index of the folded one; `None` for a padding zero.
    fn unfolded(b: &Blocks, sizes: &[i64; 4], block: [i64; 2], c: i64) -> Option<[i64; 3]> {
        let (point, channel) = (c / b.channels, c % b.channels);
        let within = [point / b.points[1], point % b.points[1]];
        let at = [0, 1].map(|d| block[d] * b.points[d] + within[d] - b.lead[d]);
        let inside = within[0] < b.points[0] && (0..2).all(|d| (0..sizes[d + 2]).contains(&at[d]));
        inside.then_some([channel, at[0], at[1]])
    }

    /// Checks that both forms combine the same input element with each element of the weight, for every output position.
    fn check(x: [i64; 4], w: [i64; 4], y: [i64; 4], step: [i64; 2], before: [i64; 2]) {
        let f = Folded::of(&conv(Role::Forward, [x, w, y], step, before), Role::Forward).unwrap();
        let of_gradient = Folded::of(&conv(Role::Filter, [x, w, y], step, before), Role::Filter).unwrap();
        assert_eq!((f.x.channel, of_gradient.x.channel), (1, 0));
        assert_eq!((&f.x.counts, &f.w.lead), (&of_gradient.x.counts, &of_gradient.w.lead));
        let mut pairs = std::collections::BTreeSet::new();
        for (oh, ow) in (0..y[2]).flat_map(|h| (0..y[3]).map(move |w| (h, w))) {
            for (c, r, q) in
                (0..w[1]).flat_map(|c| (0..w[2]).flat_map(move |r| (0..w[3]).map(move |q| (c, r, q))))
            {
                let at = [oh * step[0] + r - before[0], ow * step[1] + q - before[1]];
                if (0..x[2]).contains(&at[0]) && (0..x[3]).contains(&at[1]) {
                    pairs.insert(((oh, ow), [c, r, q], [c, at[0], at[1]]));
                }
            }
        }
        let mut found = std::collections::BTreeSet::new();
        for (oh, ow) in (0..y[2]).flat_map(|h| (0..y[3]).map(move |w| (h, w))) {
            for (r, q) in (0..f.w.counts[0]).flat_map(|r| (0..f.w.counts[1]).map(move |q| (r, q))) {
                assert!(oh + r < f.x.counts[0] && ow + q < f.x.counts[1]);
                for c in 0..f.x.filled {
                    let of_w = unfolded(&f.w, &w, [r, q], c);
                    let of_x = unfolded(&f.x, &x, [oh + r, ow + q], c);
                    if let (Some(of_w), Some(of_x)) = (of_w, of_x) {
                        assert!(found.insert(((oh, ow), of_w, of_x)));
                    }
                }
            }
        }
        assert_eq!(found, pairs);
    }

    #[test]
    fn the_same_products() {
        check([1, 3, 14, 15], [2, 3, 7, 7], [1, 2, 7, 8], [2, 2], [3, 3]);
        check([1, 3, 9, 8], [2, 3, 3, 3], [1, 2, 9, 8], [1, 1], [1, 1]);
        check([1, 2, 13, 20], [2, 2, 4, 6], [1, 2, 4, 6], [3, 4], [0, 5]);
        check([1, 3, 16, 16], [2, 3, 4, 4], [1, 2, 4, 4], [4, 4], [0, 0]);
    }

    #[test]
    fn the_librarys_problem() {
        let k = conv(Role::Filter, [[16, 3, 224, 224], [64, 3, 7, 7], [16, 64, 112, 112]], [2, 2], [3, 3]);
        let f = Folded::of(&k, Role::Filter).unwrap();
        let numbers = |o: &Operand| Tensor {
            sizes: o.sizes.iter().map(|e| e.as_const().unwrap()).collect(),
            strides: o.strides.iter().map(|e| e.as_const().unwrap()).collect(),
        };
        let seen = layout::Conv {
            input: numbers(&k.input),
            weight: numbers(&k.weight),
            output: vec![3, 64, 7, 7],
            stride: k.stride.clone(),
            padding: k.padding.clone(),
            dilation: k.dilation.clone(),
            groups: 1,
            transposed: false,
        };
        let p = f.problem(seen.problem(Role::Filter, Format::ChannelsLast).unwrap());
        assert_eq!((&p.x[..], &p.w[..]), (&[16, 16, 115, 115][..], &[64, 16, 4, 4][..]));
        assert_eq!((&p.y[..], p.result()), (&[16, 64, 112, 112][..], &[64, 16, 4, 4][..]));
        assert_eq!((&p.stride[..], &p.padding[0][..]), (&[1, 1][..], &[0, 0][..]));
    }

    #[test]
    fn convolutions_with_enough_channels_are_not_folded() {
        let sizes = |c: i64, taps: i64| [[1, c, 14, 14], [2, c, taps, taps], [1, 2, 14, 14]];
        let of = |k: &Conv| Folded::of(k, Role::Forward).is_some();
        assert!(!of(&conv(Role::Forward, sizes(8, 3), [1, 1], [1, 1])));
        assert!(!of(&conv(Role::Forward, sizes(1, 3), [1, 1], [1, 1])), "seven zeros for each element");
        assert!(of(&conv(Role::Forward, sizes(3, 3), [1, 1], [1, 1])));
        assert!(!of(&Conv { dilation: vec![2, 2], ..conv(Role::Forward, sizes(3, 3), [1, 1], [2, 2]) }));
        assert!(!of(&Conv { groups: 3, ..conv(Role::Forward, sizes(3, 3), [1, 1], [1, 1]) }));
    }
}
