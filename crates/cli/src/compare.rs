//! Compares outputs with expected ones, and class scores with labels.

use anyhow::Result;
use ferroflux::ir_core::Class;
use ferroflux::tensor::compare::{every, tolerance};
use ferroflux::tensor::safetensors::SafetensorsFile;
use ferroflux::tensor::{Mismatch, allclose};
use ferroflux::{DType, Tensor};
use serde::Serialize;

use crate::golden::{self, Sampled};
use crate::report::{advised, usage};
use crate::show;

/// Largest difference allowed in a whole model's output, relative to the output's largest value, if it computes in
/// single precision (the corpus' tolerance for models).
const MODEL_TOLERANCE: f64 = 1e-3;

/// How near outputs must be: `|got - expected| <= atol + rtol * |expected|`.
#[derive(clap::Args, Default)]
pub(crate) struct ToleranceArgs {
    /// Largest absolute difference; 1e-3 of the output's largest value where neither tolerance is given.
    #[arg(long, value_name = "X", requires = "expect")]
    atol: Option<f64>,
    /// Largest difference relative to the expected value, next to --atol.
    #[arg(long, value_name = "X", requires = "expect")]
    rtol: Option<f64>,
}

impl ToleranceArgs {
    fn of(&self, expected: &Tensor) -> (f64, f64) {
        let own = tolerance(expected.dtype());
        if self.atol.is_some() || self.rtol.is_some() {
            return (self.atol.unwrap_or(own.0), self.rtol.unwrap_or(own.1));
        }
        if !matches!(expected.dtype().class(), Class::Float | Class::Complex) {
            return (0.0, 0.0);
        }
        let sizes = expected.iter_complex().map(|z| z.norm());
        let largest = sizes.filter(|x| x.is_finite()).fold(0.0, f64::max);
        let single = matches!(expected.dtype(), DType::F32 | DType::C64);
        (if single { MODEL_TOLERANCE } else { own.1 } * largest, 0.0)
    }
}

/// An output that is as expected.
#[derive(Serialize)]
pub(crate) struct Agreement {
    pub(crate) output: String,
    pub(crate) expected: String,
    pub(crate) max_abs: f64,
    pub(crate) atol: f64,
    pub(crate) rtol: f64,
}

/// The expected output for output `n`: given by `names`, else `{prefix}out{n}`, else of the output's own name.
fn expected<'f>(
    file: &'f SafetensorsFile,
    (n, own): (usize, &str),
    names: &[String],
    prefix: &str,
) -> Option<(String, &'f Tensor)> {
    let candidates = match names.get(n) {
        Some(name) => vec![name.clone()],
        None if !names.is_empty() => return None,
        None => vec![format!("{prefix}out{n}"), format!("{prefix}{own}")],
    };
    candidates.into_iter().find_map(|name| file.tensors.get(&name).map(|t| (name, t)))
}

/// Compares every output that the file holds; all differences are in the error.
pub(crate) fn outputs(
    outputs: &[(String, Tensor)],
    file: &SafetensorsFile,
    names: &[String],
    prefix: &str,
    tolerance: &ToleranceArgs,
) -> Result<Vec<Agreement>> {
    if let Some(absent) = names.iter().find(|name| !file.tensors.contains_key(*name)) {
        let held = file.tensors.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
        let why = format!("the expected outputs have no tensor `{absent}`; there is {held}");
        return Err(usage(why, "give the tensors' names in the order of the outputs"));
    }
    let sampled = golden::sampled(file)?;
    let (mut agreements, mut problems) = (Vec::new(), Vec::new());
    for (n, (own, got)) in outputs.iter().enumerate() {
        let Some((name, expected)) = expected(file, (n, own), names, prefix) else { continue };
        let (atol, rtol) = tolerance.of(expected);
        let compared = match sampled.get(n) {
            Some(about) => sample(got, about).and_then(|got| allclose(&got, expected, atol, rtol)),
            None => allclose(got, expected, atol, rtol),
        };
        let output = format!("out{n}");
        match compared {
            Ok(s) => agreements.push(Agreement { output, expected: name, max_abs: s.max_abs, atol, rtol }),
            Err(mismatch) => problems.push(format!("{output} is not as expected (`{name}`): {mismatch}")),
        }
    }
    if !problems.is_empty() {
        return Err(advised(
            problems.join("\n"),
            "`--backend eager` runs the model operator by operator, for comparison",
        ));
    }
    if agreements.is_empty() {
        return Err(nothing_expected(outputs, file, prefix));
    }
    Ok(agreements)
}

fn nothing_expected(outputs: &[(String, Tensor)], file: &SafetensorsFile, prefix: &str) -> anyhow::Error {
    let own: Vec<String> = outputs
        .iter()
        .enumerate()
        .map(|(n, (own, _))| format!("`{prefix}out{n}` or `{prefix}{own}`"))
        .collect();
    let held = file.tensors.iter().map(|(n, t)| format!("{n}: {}", show::type_of(t))).collect::<Vec<_>>();
    advised(
        format!(
            "the expected file has no output of this model: {}; it holds {}",
            own.join(", "),
            held.join(", ")
        ),
        "name its tensors in the order of the outputs: `--expect-names NAME,…`",
    )
}

/// The values that the goldens keep of an output.
fn sample(tensor: &Tensor, about: &Sampled) -> Result<Tensor, Mismatch> {
    let other = || Mismatch::Sizes { got: tensor.sizes().to_vec(), expected: about.shape.clone() };
    if tensor.sizes() != about.shape {
        return Err(other());
    }
    every(tensor, about.step).map_err(|_| other())
}

/// How many rows of `[N, C]` scores are largest at their label.
#[derive(Serialize)]
pub(crate) struct Accuracy {
    pub(crate) correct: usize,
    pub(crate) total: usize,
    pub(crate) accuracy: f64,
}

/// The accuracy of class scores against the file's labels of that name.
pub(crate) fn accuracy(
    outputs: &[(String, Tensor)],
    file: &SafetensorsFile,
    label: &str,
) -> Result<Accuracy> {
    let Some(labels) = file.tensors.get(label) else {
        let held = file.tensors.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
        return Err(usage(format!("the inputs file has no labels `{label}`; it holds {held}"), ""));
    };
    let [(_, scores)] = outputs else {
        let why = format!("the model has {} outputs; an accuracy needs one, of class scores", outputs.len());
        return Err(usage(why, ""));
    };
    let fits = scores.rank() == 2
        && scores.sizes()[1] > 0
        && labels.sizes() == &scores.sizes()[..1]
        && labels.dtype().is_int();
    if !fits {
        let (scores, labels) = (show::type_of(scores), show::type_of(labels));
        let why = format!("labels {labels} do not fit scores {scores}");
        return Err(usage(why, "an accuracy needs scores [N, C] and integer labels [N]"));
    }
    let classes = scores.sizes()[1];
    let values: Vec<f64> = scores.iter_f64().collect();
    // The first of equal scores wins, as in `torch.argmax`.
    let best = |row: &[f64]| (1..row.len()).fold(0, |best, c| if row[c] > row[best] { c } else { best });
    let rows = values.chunks(classes).zip(labels.iter_i64());
    let correct = rows.filter(|(row, label)| i64::try_from(best(row)) == Ok(*label)).count();
    let total = labels.numel();
    Ok(Accuracy { correct, total, accuracy: correct as f64 / total.max(1) as f64 })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(name: &str, tensor: Tensor) -> SafetensorsFile {
        SafetensorsFile { tensors: [(name.to_owned(), tensor)].into(), ..SafetensorsFile::default() }
    }

    #[test]
    fn accuracy_counts_the_first_largest() {
        let scores = Tensor::from_vec(vec![1.0f32, 3.0, 2.0, 5.0, 5.0, 0.0], &[2, 3]).unwrap();
        let labels = file("label", Tensor::from_vec(vec![1i64, 1], &[2]).unwrap());
        let found = accuracy(&[("y".into(), scores)], &labels, "label").unwrap();
        assert_eq!((found.correct, found.total), (1, 2));
    }

    #[test]
    fn the_tolerance_is_of_the_largest_value() {
        let expected = file("out0", Tensor::from_vec(vec![100.0f32, 0.0], &[2]).unwrap());
        let near = Tensor::from_vec(vec![100.05f32, 0.05], &[2]).unwrap();
        let far = Tensor::from_vec(vec![100.0f32, 0.2], &[2]).unwrap();
        let check = |t: Tensor, args| outputs(&[("y".into(), t)], &expected, &[], "", &args);
        assert!(check(near.clone(), ToleranceArgs::default()).is_ok());
        assert!(check(far, ToleranceArgs::default()).is_err());
        let strict = ToleranceArgs { atol: Some(1e-3), rtol: None };
        let error = check(near, strict).err().unwrap().to_string();
        assert!(error.contains("the worst at [1]"), "{error}");
    }

    #[test]
    fn samples_are_every_step() {
        let tensor = Tensor::from_vec((0..7).map(|i| i as f32).collect(), &[7]).unwrap();
        assert_eq!(every(&tensor, 3).unwrap().to_vec::<f32>().unwrap(), [0.0, 3.0, 6.0]);
    }
}
