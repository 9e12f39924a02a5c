//! What the cost model says of a program's products and convolutions, without a GPU: the predicted time of each candidate, the
//! least first, by kind where candidates of one kind differ in little.
//!
//! Not here: the model (`gpu_codegen::Model`), and which candidates a mode times (`gpu_runtime`).

use gpu_codegen::{Costs, Speeds, StepWork, Target, Tf32};
use kernel_ir::{Program, Step};

/// How many generated candidates of a step are printed.
const SHOWN: usize = 3;

/// Prints the predictions for every product and convolution of a program; `architecture` is one that was measured.
pub(super) fn print(case: &str, program: &Program, target: &Target, architecture: &str) {
    let Some(costs) = Costs::built_in(architecture, Speeds::default()) else {
        println!("{architecture}: no coefficients");
        return;
    };
    let target = Target { tf32: Tf32::On, ..target.clone() };
    println!("// {case}, tf32 allowed; microseconds");
    let mut program = program.clone();
    gpu_runtime::adapt(&mut program, &target);
    steps(&program.steps, &mut |step| {
        let Some(work) = StepWork::of(&program, step, &target) else { return };
        let time = |work| costs.0.predict(work).map(|p| 1e6 * p.seconds);
        let mut generated: Vec<(f64, &str)> =
            work.generated().iter().filter_map(|(name, w)| Some((time(w)?, name.as_str()))).collect();
        generated.sort_by(|a, b| a.0.total_cmp(&b.0));
        let library: Vec<String> =
            (1..=3).filter_map(|kernels| Some(format!("{:.1}", time(work.library(kernels)?)?))).collect();
        let generated: Vec<String> =
            generated.iter().take(SHOWN).map(|(us, name)| format!("{name} {us:.1}")).collect();
        println!("{:<40} library {:<20} {}", step.name(), library.join(" / "), generated.join(", "));
    });
}

/// Calls `each` for every step, those within control flow too.
fn steps(list: &[Step], each: &mut impl FnMut(&Step)) {
    for step in list {
        each(step);
        step.nested().into_iter().for_each(|inner| steps(inner, each));
    }
}
