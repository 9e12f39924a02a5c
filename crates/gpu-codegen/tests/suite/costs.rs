//! The built-in cost model and products of random sizes, layouts and dtypes: every prediction is a time, every candidate that it
//! predicts is one of the step, and steps of one class have the same candidates.

use std::sync::Arc;

use gpu_codegen::{Costs, Model, Speeds, StepWork, Target, Work, variants};
use kernel_ir::Program;

/// Numbers below others, by a linear congruence.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (self.0 >> 33) % end
    }

    /// A size between 1 and 2¹⁴, spread evenly by its logarithm, every second one whole in 8.
    fn size(&mut self) -> u64 {
        let size = (1 << self.below(14)) + self.below(4096) % (1 << self.below(14)).max(1);
        if self.below(2) == 0 { (size / 8).max(1) * 8 } else { size }
    }
}

fn product(random: &mut Random) -> Program {
    let sizes = [0; 3].map(|_| random.size());
    product_of(random, sizes)
}

fn product_of(random: &mut Random, [m, n, k]: [u64; 3]) -> Program {
    let dtype = ["bf16", "f16", "f32"][random.below(3) as usize];
    // A gap behind each row makes other strides than the sizes.
    let gap = [0, 0, 8, 3][random.below(4) as usize];
    let side = |rows: u64, cols: u64, at: u64| match at {
        0 => (format!("[{rows}, {cols}]{{{}, 1}}", cols + gap), (cols + gap) * rows),
        _ => (format!("[{rows}, {cols}]{{1, {}}}", rows + gap), (rows + gap) * cols),
    };
    let ((a, a_size), (b, b_size)) = (side(m, k, random.below(2)), side(k, n, random.below(2)));
    format!(
        r#"kir 1.3
program "product"
buffer b0 "a" {dtype}[{a_size}]{{1}}+0 input 0
buffer b1 "b" {dtype}[{b_size}]{{1}}+0 input 1
buffer b2 "r" {dtype}[{m}, {n}]{{{n}, 1}}+0 input 2
buffer b3 "y" {dtype}[{m}, {n}]{{{n}, 1}}+0 output
input "a" b0
input "b" b1
input "r" b2
output "y" b3[{m}, {n}]{{{n}, 1}}+0
init:
steps:
matmul "m" acc f32
  a b0{a}+0
  b b1{b}+0
  epilogue [{m}, {n}]
    v0: f32 = template
    v1: {dtype} = load b2[i0, i1]
    v2: f32 = cast v1
    v3: f32 = add v0, v2
    v4: {dtype} = cast v3
    v5: {dtype} = store b3[i0, i1], v4
plan bytes 0:
"#
    )
    .parse()
    .unwrap()
}

fn built_in() -> Costs {
    Costs::built_in("sm_90a", Speeds::default()).unwrap()
}

#[test]
fn predictions_are_times_of_candidates_that_a_step_has() {
    let Costs(model) = built_in();
    let mut random = Random(11);
    let mut predicted = 0;
    for n in 0..300 {
        let program = product(&mut random);
        let costs = Some(Costs(model.clone()));
        let target =
            Target { costs, tf32: (n % 2 == 0).into(), ..Target::of_architecture("sm_90a").unwrap() };
        let step = &program.steps[0];
        let Some(work) = StepWork::of(&program, step, &target) else { continue };
        // Long products' texts are what takes time here.
        let names: Vec<String> =
            variants(&program, step, &target).unwrap().into_iter().map(|v| v.name).collect();
        let works =
            work.generated().iter().inspect(|(name, _)| assert!(names.contains(name), "{name}: {names:?}"));
        for work in works.map(|(_, work)| work).chain((1..4).filter_map(|kernels| work.library(kernels))) {
            let time = model.predict(work).unwrap();
            assert!(time.seconds > 1e-6 && time.seconds < 10.0, "{time:?}: {work:?}\n{program}");
            assert!(time.error > 0.0 && time.error < 1.0, "{time:?}");
            predicted += 1;
        }
        // The order of the candidates is that of the predicted times.
        let times: Vec<f64> =
            work.generated().iter().map(|(_, work)| model.predict(work).unwrap().seconds).collect();
        assert!(times.windows(2).all(|w| w[0] <= w[1]), "{times:?}");
        assert_eq!(names[..times.len()], work.generated().iter().map(|(n, _)| n.clone()).collect::<Vec<_>>());
    }
    assert!(predicted > 1000, "{predicted}");
}

#[test]
fn amounts_beyond_any_device_are_predicted_as_times() {
    let Costs(model) = built_in();
    let is_time = |work: &Work| {
        let time = model.predict(work).unwrap();
        assert!(time.seconds.is_finite() && time.seconds > 0.0, "{time:?}: {work:?}");
    };
    let mut random = Random(17);
    for sizes in [[1 << 30, 1 << 29, 9], [40, 1 << 31, 1 << 30], [1 << 21; 3], [9, 9, 1 << 40], [17, 17, 1]] {
        let program = product_of(&mut random, sizes);
        let Some(work) = StepWork::of(&program, &program.steps[0], &Target::HOPPER) else { continue };
        work.generated().iter().map(|(_, work)| work).chain(work.library(1)).for_each(is_time);
    }
}

#[test]
fn the_order_of_candidates_is_the_same_each_time() {
    let target = |costs| Target { costs: Some(costs), ..Target::of_architecture("sm_90a").unwrap() };
    let read_again = Costs(Arc::new(Model::parse(&built_in().0.to_string()).unwrap()));
    assert_eq!(built_in(), read_again);
    let targets = [target(built_in()), target(built_in()), target(read_again)];
    let mut random = Random(23);
    for _ in 0..40 {
        let program = product(&mut random);
        let [first, others @ ..] =
            targets.each_ref().map(|target| StepWork::of(&program, &program.steps[0], target));
        assert!(others.iter().all(|other| *other == first), "{program}");
    }
}

#[test]
fn an_architecture_that_was_not_measured_keeps_the_order_of_the_rule() {
    let target = Target::of_architecture("sm_80").unwrap();
    assert_eq!(target.costs, None);
    let with = Target { costs: Some(built_in()), ..target.clone() };
    let mut random = Random(29);
    let mut differ = 0;
    for _ in 0..60 {
        let program = product(&mut random);
        let names = |target| -> Vec<String> {
            variants(&program, &program.steps[0], target).unwrap().into_iter().map(|v| v.name).collect()
        };
        let (mut rule, mut model) = (names(&target), names(&with));
        differ += usize::from(rule != model);
        // The model orders what the rule tries; it adds and removes nothing.
        rule.sort();
        model.sort();
        assert_eq!(rule, model);
    }
    assert!(differ > 10, "{differ}");
}

#[test]
fn steps_of_a_class_have_the_same_candidates_and_other_steps_are_of_other_classes() {
    let target = Target { costs: Some(built_in()), ..Target::HOPPER };
    let all = |seed| {
        let mut random = Random(seed);
        let works = (0..60).filter_map(move |_| {
            let program = product(&mut random);
            StepWork::of(&program, &program.steps[0], &target)
        });
        works.collect::<Vec<_>>()
    };
    let works = all(5);
    for (a, n) in works.iter().zip(0..) {
        for b in &works[n + 1..] {
            assert!(a.class() != b.class() || a == b, "{}", a.class());
        }
    }
}

#[test]
fn a_device_with_slower_memory_takes_longer_where_memory_decides() {
    let Costs(model) = built_in();
    let measured: Model = (*model).clone();
    let slower = measured.scaled(Speeds { clock: 0, bandwidth: 3352 });
    let mut random = Random(3);
    for _ in 0..40 {
        let program = product(&mut random);
        let Some(work) = StepWork::of(&program, &program.steps[0], &Target::HOPPER) else { continue };
        for (_, work) in work.generated() {
            let (fast, slow) = (model.predict(work).unwrap().seconds, slower.predict(work).unwrap().seconds);
            assert!(slow >= fast && slow <= 4917.0 / 3352.0 * fast, "{fast:e} {slow:e}");
        }
    }
}
