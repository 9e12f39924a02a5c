//! Transposed convolutions as plain ones. An output point `t` of a transposed convolution of stride `s` depends only on the
//! taps `j` for which `s` divides `t + padding - j * dilation`. The points with one remainder, a *phase*, are a plain
//! convolution of stride 1 over those taps, without products with inserted zeros. Backends with fast plain convolutions
//! compute transposed ones this way.

use ir_core::{Atom, DType, Scalar, Shape, SymExpr};
use smallvec::SmallVec;

use crate::{Conv, Epilogue, Inst, InstKind, LoopKernel, Operand, Stage, Step};

/// Most phases that a convolution is split into: each is a step of its own.
const MAX_PHASES: i64 = 64;

/// One remainder along one spatial dimension.
#[derive(Clone)]
struct Phase {
    /// First output point, and the distance of points.
    first: i64,
    step: i64,
    /// Output points.
    count: SymExpr,
    /// What the points read; `None` where no tap reaches them.
    window: Option<Window>,
}

/// The plain convolution along one dimension.
#[derive(Clone)]
struct Window {
    /// The last tap comes first: taps are read backwards.
    last_tap: i64,
    /// Distance of taps in the weight.
    tap_step: i64,
    taps: i64,
    dilation: i64,
    padding: (i64, i64),
    /// Elements of the input that are left out before and after.
    cut: (i64, i64),
}

/// The steps that are equivalent to this transposed convolution, in any order; they write different points of
/// its outputs. The weights of the plain convolutions are views with negative strides.
///
/// `None` for a plain convolution, for sizes whose relation is not known, and for groups of several
/// channels on both sides (their weight is not one strided view).
pub fn plain_steps(conv: &Conv) -> Option<Vec<Step>> {
    if !conv.transposed {
        return None;
    }
    let spatial = conv.stride.len();
    let lists = [conv.dilation.len(), conv.padding.len()];
    let ranks = [conv.input.sizes.len(), conv.weight.sizes.len(), conv.epilogue.ranges.len()];
    if lists.iter().any(|n| *n != spatial) || ranks.iter().any(|n| *n != spatial + 2) {
        return None;
    }
    let weight = exchanged(conv)?;
    let mut all: Vec<Vec<Phase>> = vec![Vec::new()];
    for d in 0..spatial {
        let phases = phases_of(conv, d)?;
        all = all
            .iter()
            .flat_map(|done| phases.iter().map(|p| done.iter().chain([p]).cloned().collect()))
            .collect();
        if all.len() as i64 > MAX_PHASES {
            return None;
        }
    }
    Some(all.iter().enumerate().map(|(n, phases)| step(conv, n, phases, &weight)).collect())
}

/// The weight `[c, o / groups, …]` as a view `[o, c / groups, …]`.
fn exchanged(conv: &Conv) -> Option<Operand> {
    let (w, groups) = (&conv.weight, SymExpr::from_i64(conv.groups.max(1)));
    let (per_in, per_out) = (w.sizes[0].floor_div(&groups), w.sizes[1].clone());
    // Group, then channel of the group: there is a single stride only where one of them has size 1, or where they are
    // adjacent.
    let group = &w.strides[0] * &per_in;
    let one_step = groups == SymExpr::ONE || group == &w.strides[1] * &per_out;
    let out = if one_step {
        w.strides[1].clone()
    } else if per_out == SymExpr::ONE {
        group
    } else {
        return None;
    };
    let mut view = w.clone();
    view.sizes[0] = per_out * groups;
    view.sizes[1] = per_in;
    view.strides[1] = w.strides[0].clone();
    view.strides[0] = out;
    Some(view)
}

fn phases_of(conv: &Conv, d: usize) -> Option<Vec<Phase>> {
    let (stride, dilation, padding) = (conv.stride[d], conv.dilation[d], conv.padding[d].0);
    let taps = conv.weight.sizes[d + 2].as_const()?;
    let (input, out) = (&conv.input.sizes[d + 2], &conv.epilogue.ranges[d + 2]);
    if !(1..=MAX_PHASES).contains(&stride) || dilation < 1 || taps < 1 {
        return None;
    }
    let mut phases = Vec::new();
    for first in 0..stride {
        let count = (out - first + (stride - 1)).floor_div(&SymExpr::from_i64(stride));
        if count.as_const().is_some_and(|n| n < 1) {
            continue;
        }
        let reach = (first.checked_add(padding)?, dilation);
        let window = match (0..taps).find(|j| (reach.0 - j * dilation).rem_euclid(stride) == 0) {
            Some(tap) => window(stride, reach, (tap, taps), (input, &count))?,
            None => None,
        };
        phases.push(Phase { first, step: stride, count, window });
    }
    Some(phases)
}

fn step(conv: &Conv, number: usize, phases: &[Phase], weight: &Operand) -> Step {
    let mut ranges: Shape = conv.epilogue.ranges[..2].iter().cloned().collect();
    ranges.extend(phases.iter().map(|p| p.count.clone()));
    let insts: Vec<Inst> = conv.epilogue.insts.iter().map(|i| moved(i, phases)).collect();
    let name = format!("{}_phase{number}", conv.name);
    let windows: Option<SmallVec<[&Window; 3]>> = phases.iter().map(|p| p.window.as_ref()).collect();
    let Some(windows) = windows else {
        return Step::Loop(zeros(name, conv.origins.clone(), ranges, insts, conv.acc));
    };
    let (mut input, mut weight) = (conv.input.clone(), weight.clone());
    for (d, w) in windows.iter().enumerate() {
        let at = d + 2;
        input.offset = &input.offset + &input.strides[at] * w.cut.0;
        input.sizes[at] = &input.sizes[at] - (w.cut.0 + w.cut.1);
        weight.offset = &weight.offset + &weight.strides[at] * w.last_tap;
        weight.strides[at] = &weight.strides[at] * -w.tap_step;
        weight.sizes[at] = SymExpr::from_i64(w.taps);
    }
    Step::Conv(Conv {
        name,
        origins: conv.origins.clone(),
        input,
        weight,
        stride: vec![1; windows.len()],
        padding: windows.iter().map(|w| w.padding).collect(),
        dilation: windows.iter().map(|w| w.dilation).collect(),
        groups: conv.groups,
        transposed: false,
        acc: conv.acc,
        zero: conv.zero,
        epilogue: Epilogue { ranges, insts },
    })
}

/// With `u = t + padding`, tap `j` of point `t = first + q * stride` reads element `(u - j * dilation) / stride`: for
/// `j = tap + m * tap_step` that is `q + base - m * step`. `Some(None)` where nothing of the input is ever reached; `None`
/// where that is not known.
fn window(
    stride: i64,
    (reach, dilation): (i64, i64),
    (tap, taps): (i64, i64),
    (input, count): (&SymExpr, &SymExpr),
) -> Option<Option<Window>> {
    let tap_step = stride / gcd(stride, dilation);
    let (step, base) = (tap_step * dilation / stride, (reach - tap * dilation) / stride);
    let taps = (taps - 1 - tap) / tap_step + 1;
    let span = (taps - 1).checked_mul(step)?;
    let low = span - base;
    // `count` windows of `span + 1` elements are read.
    let high = (count + (span - low) - input).as_const()?;
    let cut = ((-low).max(0), (-high).max(0));
    match (input - (cut.0 + cut.1)).as_const() {
        Some(n) if n < 1 => return Some(None),
        // How much of an input of unknown size is left is unknown.
        None if cut != (0, 0) => return None,
        _ => {}
    }
    let last_tap = tap + (taps - 1) * tap_step;
    let padding = (low.max(0), high.max(0));
    Some(Some(Window { last_tap, tap_step, taps, dilation: step, padding, cut }))
}

fn gcd(a: i64, b: i64) -> i64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// An instruction with the loop variables of the spatial dimensions moved to the points of a phase.
fn moved(inst: &Inst, phases: &[Phase]) -> Inst {
    let at = |e: &SymExpr| {
        e.subst(&|a| match a {
            Atom::Loop(v) => {
                let phase = (*v as usize).checked_sub(2).and_then(|d| phases.get(d))?;
                Some(SymExpr::loop_var(*v) * phase.step + phase.first)
            }
            _ => None,
        })
    };
    let mut inst = inst.clone();
    match &mut inst.kind {
        InstKind::Index(e) => *e = at(e),
        InstKind::Load { index, .. } | InstKind::Store { index, .. } => {
            index.iter_mut().for_each(|e| *e = at(e));
        }
        _ => {}
    }
    inst
}

/// The epilogue of points that no tap reaches.
fn zeros(name: String, origins: Vec<String>, outer: Shape, insts: Vec<Inst>, acc: DType) -> LoopKernel {
    let zero = |inst: Inst| match inst.kind {
        InstKind::Template => Inst { dtype: inst.dtype, kind: InstKind::Const(Scalar::zero(acc)) },
        _ => inst,
    };
    let insts = insts.into_iter().map(zero).collect();
    LoopKernel { name, origins, outer, accs: Vec::new(), stages: vec![Stage { inner: Shape::new(), insts }] }
}

#[cfg(test)]
// A helper of tests may fail as a test does.
#[allow(clippy::unwrap_used)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::{BodyBuilder, BufId, StoreMode};

    /// Sizes of a transposed convolution in one dimension.
    #[derive(Clone, Copy, Debug)]
    struct Sizes {
        input: i64,
        taps: i64,
        stride: i64,
        dilation: i64,
        padding: i64,
        extra: i64,
    }

    impl Sizes {
        fn out(self) -> i64 {
            (self.input - 1) * self.stride + self.dilation * (self.taps - 1) + 1 - 2 * self.padding
                + self.extra
        }
        /// One channel; the input is buffer 0, the weight 1, the result 2.
        fn conv(self, input: SymExpr, out: SymExpr) -> Conv {
            let one = SymExpr::ONE;
            let operand = |buf, sizes: [SymExpr; 3]| Operand {
                buf: BufId(buf),
                strides: sizes[1..].iter().chain([&one]).cloned().collect(),
                sizes: sizes.into_iter().collect(),
                offset: SymExpr::ZERO,
            };
            let mut b = BodyBuilder::new();
            let v = b.push(DType::F32, InstKind::Template);
            b.store(BufId(2), (0..3).map(SymExpr::loop_var).collect(), v, StoreMode::Write);
            Conv {
                name: "conv".into(),
                origins: Vec::new(),
                input: operand(0, [one.clone(), one.clone(), input]),
                weight: operand(1, [one.clone(), one.clone(), self.taps.into()]),
                stride: vec![self.stride],
                padding: vec![(self.padding, self.padding)],
                dilation: vec![self.dilation],
                groups: 1,
                transposed: true,
                acc: DType::F32,
                zero: 0,
                epilogue: Epilogue {
                    ranges: [one.clone(), one, out].into_iter().collect(),
                    insts: b.finish(),
                },
            }
        }
    }

    /// For each point that is stored the pairs of input element and tap that are multiplied.
    type Terms = BTreeMap<i64, Vec<(i64, i64)>>;

    fn expected(s: Sizes) -> Terms {
        let terms = |t: i64| {
            let reach = |j: i64| t + s.padding - j * s.dilation;
            let hit = |j: &i64| reach(*j).rem_euclid(s.stride) == 0;
            let pairs = (0..s.taps).filter(hit).map(|j| (reach(j) / s.stride, j));
            let mut pairs: Vec<(i64, i64)> = pairs.filter(|(i, _)| (0..s.input).contains(i)).collect();
            pairs.sort_unstable();
            pairs
        };
        (0..s.out()).map(|t| (t, terms(t))).collect()
    }

    fn stored_at(insts: &[Inst], q: i64) -> i64 {
        let store = insts
            .iter()
            .find_map(|i| if let InstKind::Store { index, .. } = &i.kind { Some(index) } else { None });
        let at = |a: &Atom| if *a == Atom::Loop(2) { Some(SymExpr::from_i64(q)) } else { None };
        store.unwrap()[2].subst(&at).as_const().unwrap()
    }

    fn found(steps: &[Step]) -> Terms {
        let mut all = Terms::new();
        for step in steps {
            let (points, insts) = match step {
                Step::Conv(c) => (&c.epilogue.ranges, &c.epilogue.insts),
                Step::Loop(k) => (&k.outer, &k.stages[0].insts),
                other => panic!("{}", other.name()),
            };
            for q in 0..points[2].as_const().unwrap() {
                let mut terms = Vec::new();
                if let Step::Conv(c) = step {
                    let number = |e: &SymExpr| e.as_const().unwrap();
                    for m in 0..number(&c.weight.sizes[2]) {
                        let i = q + m * c.dilation[0] - c.padding[0].0;
                        if (0..number(&c.input.sizes[2])).contains(&i) {
                            let tap = number(&c.weight.offset) + m * number(&c.weight.strides[2]);
                            terms.push((number(&c.input.offset) + i, tap));
                        }
                    }
                    let reach = (number(&c.weight.sizes[2]) - 1) * c.dilation[0] + 1;
                    let padded = number(&c.input.sizes[2]) + c.padding[0].0 + c.padding[0].1;
                    assert_eq!(padded - reach + 1, number(&points[2]), "{c:?}");
                }
                terms.sort_unstable();
                assert_eq!(all.insert(stored_at(insts, q), terms), None);
            }
        }
        all
    }

    #[test]
    fn phases_multiply_what_the_whole_does() {
        let mut seen = 0;
        for n in 0..5 * 5 * 4 * 3 * 4 * 2 {
            let (input, n) = (1 + n % 5, n / 5);
            let (taps, n) = (1 + n % 5, n / 5);
            let (stride, n) = (1 + n % 4, n / 4);
            let (dilation, n) = (1 + n % 3, n / 3);
            let (padding, extra) = (n % 4, n / 4);
            let s = Sizes { input, taps, stride, dilation, padding, extra };
            if s.out() < 1 || extra >= stride {
                continue;
            }
            let steps = plain_steps(&s.conv(input.into(), s.out().into())).unwrap();
            assert_eq!(found(&steps), expected(s), "{s:?}");
            seen += 1;
        }
        assert!(seen > 1000, "{seen}");
    }

    #[test]
    fn sizes_may_be_unknown() {
        let n = SymExpr::sym(ir_core::SymId(0));
        for (taps, padding) in [(2, 0), (3, 1), (4, 1)] {
            let s = Sizes { input: 0, taps, stride: 2, dilation: 1, padding, extra: 0 };
            let out = (&n - 1) * 2 + (taps - 2 * padding);
            assert_eq!(plain_steps(&s.conv(n.clone(), out)).map(|steps| steps.len()), Some(2), "{s:?}");
        }
        // Nothing relates these.
        let s = Sizes { input: 0, taps: 3, stride: 2, dilation: 1, padding: 1, extra: 0 };
        let other = SymExpr::sym(ir_core::SymId(1));
        assert_eq!(plain_steps(&s.conv(n, other)), None);
    }
}
