//! How well a model predicts a table, and what its choices cost, as markdown for `docs/benchmarks.md`.
//!
//! Errors and choices are those of models that were fitted without the case: the cases are dealt into five parts, and each
//! is predicted by the other four.

use std::fmt::Write as _;

use anyhow::Result;
use gpu_codegen::{
    Measured, Model, StepWork, Target, Work, fit, may_win, outruns_library, prefers_generated, variants,
};
use kernel_ir::Step;

use super::cases::{Case, step_of};
use super::table::{Table, Time};

/// Parts of the cases.
const PARTS: usize = 5;
/// Cases of the largest regret that are listed.
const WORST: usize = 12;

/// A measured case with the work of its candidates.
pub(super) struct Known {
    pub(super) name: String,
    /// The candidates that modes without a search may choose, with their work where the step has such.
    times: Vec<(Time, Option<Work>)>,
    /// The seconds of all that a search times, a library's other algorithms included, with the work of generated kernels where
    /// the step has such.
    searched: Vec<(f64, Option<Work>)>,
    /// The best of these.
    best: f64,
    /// The place in `times` of what the rule chooses.
    rule: Option<usize>,
}

/// What is known of the cases of a table, without candidates of no form.
pub(super) fn known(table: &Table, cases: &[Case]) -> Result<Vec<Known>> {
    let mut all = Vec::new();
    for timed in &table.cases {
        let Some(case) = cases.iter().find(|c| c.name == timed.case) else { continue };
        let (mut program, target) = (case.program()?, table.target(case.tf32)?);
        gpu_runtime::adapt(&mut program, &target);
        let Some(step) = step_of(&program) else { continue };
        let work = StepWork::of(&program, step, &target).filter(|work| work.library(1).is_some());
        let of = |work: &StepWork, t: &Time| match t.library {
            true => work.library(t.kernels).cloned(),
            false => work.generated().iter().find(|(name, _)| *name == t.candidate).map(|(_, w)| w.clone()),
        };
        let firsts = timed.times.iter().filter(|t| t.is_first());
        let times = firsts.filter_map(|t| match &work {
            Some(work) => Some((t.clone(), Some(of(work, t)?))),
            None => Some((t.clone(), None)),
        });
        let times: Vec<(Time, Option<Work>)> = times.collect();
        // As the runtime does, a search neither leaves out a library's algorithms nor others because of them.
        let generated = |t: &Time| if t.library { None } else { of(work.as_ref()?, t) };
        let searched = timed.times.iter().map(|t| (1e-6 * t.us, generated(t)));
        let searched: Vec<(f64, Option<Work>)> = searched.collect();
        let best = searched.iter().map(|(seconds, _)| *seconds).fold(f64::INFINITY, f64::min);
        let rule = by_rule(&program, step, &target, &times)?;
        all.push(Known { name: case.name.clone(), times, searched, best, rule });
    }
    Ok(all)
}

/// What `reduce-overhead` chooses without a model.
fn by_rule(
    program: &kernel_ir::Program,
    step: &Step,
    target: &Target,
    times: &[(Time, Option<Work>)],
) -> Result<Option<usize>> {
    let asked = !(matches!(step, Step::Conv(_)) && prefers_generated(program, step, target));
    let late = |t: &Time| outruns_library(program, step, target, t.kernels);
    if let Some(place) = times.iter().position(|(t, _)| t.library && asked && !late(t)) {
        return Ok(Some(place));
    }
    let names = variants(program, step, target)?.into_iter().map(|v| v.name);
    Ok(names.filter_map(|name| times.iter().position(|(t, _)| t.candidate == name)).next())
}

fn measured<'a>(known: impl IntoIterator<Item = &'a Known>) -> Vec<Measured> {
    let one = |(t, work): &(Time, Option<Work>)| Some(Measured { work: work.clone()?, seconds: 1e-6 * t.us });
    let of = |k: &'a Known| k.times.iter().filter_map(one);
    known.into_iter().flat_map(of).collect()
}

/// The model of all cases.
pub(super) fn fitted(table: &Table, known: &[Known]) -> Model {
    fit(&table.architecture, table.speeds(), &measured(known))
}

/// Factors between two times, of one kind of kernel or one way to choose.
#[derive(Default)]
struct Factors(Vec<f64>);

impl Factors {
    fn quantile(&mut self, q: f64) -> f64 {
        self.0.sort_by(f64::total_cmp);
        let place = (q * (self.0.len() as f64 - 1.0)).round().max(0.0) as usize;
        self.0.get(place).copied().unwrap_or(f64::NAN)
    }
    fn mean(&self) -> f64 {
        (self.0.iter().map(|f| f.ln()).sum::<f64>() / self.0.len() as f64).exp()
    }
}

/// The tables.
pub(super) fn report(table: &Table, known: &[Known]) -> String {
    let models: Vec<Model> = (0..PARTS)
        .map(|part| {
            let others = known.iter().enumerate().filter(|(n, _)| n % PARTS != part);
            fit(&table.architecture, table.speeds(), &measured(others.map(|(_, k)| k)))
        })
        .collect();
    let whole = fitted(table, known);
    let of = |n: usize| &models[n % PARTS];
    let mut text = errors(known, &of, &whole);
    text.push('\n');
    text.push_str(&choices(known, &of, &whole));
    text.push('\n');
    text.push_str(&search(known, &of));
    text
}

/// What a search times and finds that leaves out what cannot win.
fn search<'a>(known: &'a [Known], of: &dyn Fn(usize) -> &'a Model) -> String {
    let (mut factors, mut timed, mut all) = (Factors::default(), 0, 0);
    for (n, k) in known.iter().enumerate() {
        let predicted: Vec<_> = k.searched.iter().map(|(_, work)| of(n).predict(work.as_ref()?)).collect();
        let kept = k.searched.iter().zip(may_win(&predicted)).filter(|(_, may)| *may);
        let kept: Vec<f64> = kept.map(|((seconds, _), _)| *seconds).collect();
        all += k.searched.len();
        timed += kept.len();
        factors.0.push(kept.into_iter().fold(f64::INFINITY, f64::min) / k.best);
    }
    let [most, worst] = [0.99, 1.0].map(|q| factors.quantile(q));
    format!(
        "A search without what cannot win times {timed} of {all} candidates; time ÷ best: {:.4} in geometric mean, 99 % {most:.3}, worst {worst:.3}.\n",
        factors.mean()
    )
}

/// Predicted against measured times, by kinds.
fn errors<'a>(known: &'a [Known], of: &dyn Fn(usize) -> &'a Model, whole: &Model) -> String {
    let mut text = String::from(
        "| kind of kernel | candidates | median error, other cases | 90 % | median error, own cases | 90 % |\n|---|--:|--:|--:|--:|--:|\n",
    );
    let all = |k: &'a Known| k.times.iter().filter_map(|(t, w)| Some((t, w.as_ref()?)));
    let mut kinds: Vec<&str> = known.iter().flat_map(all).map(|(_, w)| w.kind).collect();
    kinds.sort_unstable();
    kinds.dedup();
    for kind in kinds {
        let (mut held, mut own) = (Factors::default(), Factors::default());
        let mut count = 0;
        for (n, k) in known.iter().enumerate() {
            for (t, work) in all(k).filter(|(_, w)| w.kind == kind) {
                count += 1;
                let off = |model: &Model| {
                    model.predict(work).map(|p| (p.seconds / (1e-6 * t.us)).ln().abs().exp() - 1.0)
                };
                held.0.extend(off(of(n)));
                own.0.extend(off(whole));
            }
        }
        let percent = |x: f64| if x.is_nan() { "–".to_owned() } else { format!("{:.1} %", 100.0 * x) };
        let [held, own] = [held, own].map(|mut f| [0.5, 0.9].map(|q| percent(f.quantile(q))));
        // Writing to a string cannot fail.
        let _ = writeln!(text, "| `{kind}` | {count} | {} | {} |", held.join(" | "), own.join(" | "));
    }
    text
}

/// A way to choose one of a case's candidates; the case is also known by its number.
type Way<'a> = &'a dyn Fn(usize, &Known) -> Option<usize>;

/// The time of what each way chooses, over the best measured.
fn choices<'a>(known: &[Known], of: &dyn Fn(usize) -> &'a Model, whole: &Model) -> String {
    let first = |k: &Known, model: &Model| -> Option<usize> {
        let time = |(n, (_, work)): (usize, &(Time, Option<Work>))| {
            Some((model.predict(work.as_ref()?)?.seconds, n))
        };
        let times: Option<Vec<(f64, usize)>> = k.times.iter().enumerate().map(time).collect();
        // Where there is no prediction the rule chooses.
        match times {
            Some(times) => times.into_iter().min_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, n)| n),
            None => k.rule,
        }
    };
    let regret = |k: &Known, place: usize| 1e-6 * k.times[place].0.us / k.best;
    let quickest =
        |k: &Known| (0..k.times.len()).min_by(|a, b| k.times[*a].0.us.total_cmp(&k.times[*b].0.us));
    let library = |k: &Known| k.times.iter().position(|(t, _)| t.library);
    let ways: [(&str, Way<'_>); 5] = [
        ("the rule", &|_, k| k.rule),
        ("the model, fitted to other cases", &|n, k| first(k, of(n))),
        ("the model, fitted to all", &|_, k| first(k, whole)),
        ("the library's first algorithm", &|_, k| library(k)),
        ("the best that may be chosen", &|_, k| quickest(k)),
    ];
    let mut text = String::from(
        "| first choice by | cases | time ÷ best, geometric mean | median | 90 % | worst |\n|---|--:|--:|--:|--:|--:|\n",
    );
    for (name, choose) in ways {
        let chosen = known.iter().enumerate().filter_map(|(n, k)| choose(n, k).map(|place| regret(k, place)));
        let mut factors = Factors(chosen.collect());
        let (count, mean) = (factors.0.len(), factors.mean());
        let [median, most, worst] = [0.5, 0.9, 1.0].map(|q| factors.quantile(q));
        let _ = writeln!(text, "| {name} | {count} | {mean:.3} | {median:.3} | {most:.3} | {worst:.3} |");
    }
    let mut worst: Vec<(f64, String)> = Vec::new();
    for (n, k) in known.iter().enumerate() {
        let (Some(model), Some(best)) = (first(k, of(n)), quickest(k)) else { continue };
        let by = |place: usize| format!("`{}` {:.1} µs", k.times[place].0.candidate, k.times[place].0.us);
        let rule = k.rule.map_or("–".to_owned(), by);
        worst.push((regret(k, model), format!("{} | {} | {} | {rule}", k.name, by(model), by(best))));
    }
    worst.sort_by(|a, b| b.0.total_cmp(&a.0));
    text.push_str(
        "\n| worst cases of the model | ÷ best | its choice | best | the rule's |\n|---|--:|---|---|---|\n",
    );
    for (factor, row) in worst.into_iter().take(WORST) {
        let Some((name, others)) = row.split_once(" | ") else { continue };
        let _ = writeln!(text, "| {name} | {factor:.2} | {others} |");
    }
    text
}

#[cfg(test)]
mod tests {
    use gpu_codegen::StepWork;

    use super::super::cases::cases;
    use super::super::table::TimedCase;
    use super::*;

    /// A table of made-up times: launches of different cost and rates, so that small products are best by one kind and large
    /// ones by another.
    fn made_up(cases: &[Case]) -> Table {
        let mut table = Table { architecture: "sm_90".into(), multiprocessors: 132, ..Table::default() };
        for case in cases {
            let program = case.program().unwrap();
            let target = table.target(case.tf32).unwrap();
            // Convolutions of few channels have kernels of their own.
            let work = StepWork::of(&program, step_of(&program).unwrap(), &target);
            let Some(work) = work else { continue };
            let Some(library) = work.library(1) else { continue };
            let us = |work: &Work, launch: f64, rate: f64| {
                launch * work.terms[0] + work.terms[1] / rate + work.terms[3] / 3e6 + 1e-4 * work.terms[6]
            };
            let generated = work.generated().iter().map(|(name, w)| Time {
                candidate: name.clone(),
                kernels: 1,
                library: false,
                us: us(w, 3.0, if w.kind.starts_with("wgmma") { 1700.0 } else { 600.0 }),
            });
            let library = Time {
                candidate: "cublaslt_0".into(),
                kernels: 1,
                library: true,
                us: us(library, 6.0, 1900.0),
            };
            let times = generated.chain([library]).collect();
            table.cases.push(TimedCase { case: case.name.clone(), times });
        }
        table
    }

    #[test]
    fn times_that_a_model_can_have_are_chosen_well() {
        let cases = cases();
        let table = made_up(&cases);
        let known = known(&table, &cases).unwrap();
        assert!(known.len() > 100, "{} cases have work", known.len());
        let text = report(&table, &known);
        let mean = |way: &str| -> f64 {
            let row = text.lines().find(|l| l.contains(way)).unwrap();
            row.split('|').nth(3).unwrap().trim().parse().unwrap()
        };
        assert!(mean("fitted to other cases") < 1.02, "{text}");
        assert!(mean("fitted to other cases") < mean("the rule"), "{text}");
        assert!((mean("the best that may be chosen") - 1.0).abs() < 1e-9, "{text}");
        // The errors of such a model are small, so that a search leaves out most, and never what wins.
        let models = [fitted(&table, &known)];
        let said = search(&known, &|_| &models[0]);
        let numbers: Vec<f64> = said.split([' ', ',']).filter_map(|word| word.parse().ok()).collect();
        let [timed, all, mean, ..] = numbers[..] else { panic!("{said}") };
        assert!(timed < 0.6 * all && mean < 1.001, "{said}");
    }
}
