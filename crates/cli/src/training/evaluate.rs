//! Accuracy of an inference program with the trained weights on held-out data.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use ferroflux::tensor::safetensors::SafetensorsFile;
use ferroflux::{Input, Options, Program, Tensor, Value};

use super::data::gather;
use crate::compare::{self, Accuracy};
use crate::inputs::{self, Set};
use crate::report::advised;

/// The program's weights, taken from the trained model: the same name, or one that ends with the other after a dot.
pub(crate) fn with_weights(mut program: Program, trained: &BTreeMap<String, Tensor>) -> Result<Program> {
    let names: Vec<String> = program.exported().weights.iter().map(|w| w.name.clone()).collect();
    let mut unknown = Vec::new();
    for name in &names {
        match counterpart(name, trained) {
            Some(tensor) => program.set_weight(name, tensor.clone())?,
            None if program.weight(name).is_none() => unknown.push(name.as_str()),
            None => {}
        }
    }
    let taken = names.iter().filter(|n| counterpart(n, trained).is_some()).count();
    if taken == 0 || !unknown.is_empty() {
        let first = unknown.first().copied().or(names.first().map(String::as_str)).unwrap_or_default();
        return Err(advised(
            format!("the trained model has no weight for `{first}`"),
            "the model to evaluate must name its weights as the trained one does, but for what they begin with",
        ));
    }
    Ok(program)
}

fn counterpart<'t>(name: &str, trained: &'t BTreeMap<String, Tensor>) -> Option<&'t Tensor> {
    let ends = |long: &str, short: &str| long.strip_suffix(short).is_some_and(|rest| rest.ends_with('.'));
    let alike = || trained.iter().filter(|(t, _)| ends(t, name) || ends(name, t)).map(|(_, tensor)| tensor);
    trained.get(name).or_else(|| alike().next().filter(|_| alike().count() == 1))
}

/// Fraction of the samples whose largest score is at their label.
pub(crate) fn accuracy(
    program: &Program,
    options: &Options,
    data: &SafetensorsFile,
    (prefix, set): (&str, &Set<'_>),
    label: &str,
) -> Result<Accuracy> {
    let compiled = program.compile(options).context("cannot compile the model to evaluate")?;
    let infos = program.inputs();
    let inputs = inputs::from_file(&infos, data, prefix, set)?;
    let sample = infos.iter().position(|i| i.meta().is_some());
    let first = sample.and_then(|n| Some((infos[n].meta()?, inputs.get(n)?)));
    let fixed = first.and_then(|(meta, _)| meta.sizes.first().and_then(|s| s.as_const()));
    let len = match first {
        Some((_, Input::Tensor(value))) => value.sizes().first().copied().unwrap_or(0),
        _ => 0,
    };
    let batch = fixed.and_then(|n| usize::try_from(n).ok()).unwrap_or(len).max(1);
    let mut scores: Vec<f64> = Vec::new();
    for first in (0..len).step_by(batch) {
        // The last batch is filled up with its first sample, whose scores are ignored.
        let real = batch.min(len - first);
        let rows: Vec<usize> = (0..batch).map(|n| if n < real { first + n } else { first }).collect();
        let rows_of = |input: &Input| match input {
            Input::Tensor(Value::Host(t)) => gather(t, &rows).map(Input::from),
            other => Ok(other.clone()),
        };
        let given = inputs.iter().map(rows_of).collect::<Result<Vec<_>>>()?;
        let outputs = compiled.call_with(&given)?;
        let whole = outputs.first().ok_or_else(|| advised("the model to evaluate returns nothing", ""))?;
        if whole.rank() != 2 || whole.sizes()[0] != batch {
            let what = format!("the model to evaluate returns {}", crate::show::type_of(whole));
            return Err(advised(what, "an accuracy needs scores [N, C] of the N samples"));
        }
        scores.extend(whole.narrow(0, 0, real)?.iter_f64());
    }
    let classes = scores.len() / len.max(1);
    let scores = Tensor::from_vec(scores, &[len, classes])?;
    compare::accuracy(&[("scores".into(), scores)], data, &format!("{prefix}{label}"))
}
