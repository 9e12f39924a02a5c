//! Golden cases per operator: which ones call it, in which dtypes, and how many pass. Stored as a tab-separated table, so
//! that the page can be generated without the corpus.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use anyhow::{Context, Result, bail};

use crate::corpus::{self, Case, CaseResult, Kind, Status};

/// Passed of run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) passed: usize,
    pub(crate) run: usize,
}

/// The results of the golden cases for one operator.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Row {
    /// dtypes of the cases that pass on some backend, PyTorch's names.
    pub(crate) dtypes: BTreeSet<String>,
    /// Results on `eager`.
    pub(crate) eager: Tally,
    /// Results on `cpu`.
    pub(crate) cpu: Tally,
    /// Gradients on `eager`.
    pub(crate) gradient: Tally,
}

/// Rows by the operator's target.
pub(crate) type Rows = BTreeMap<String, Row>;

const HEAD: &str = "operator\tdtypes\teager\tcpu\tgradient";

/// Runs the operator cases of `paths` on each backend.
pub(crate) fn measure(paths: &[PathBuf]) -> Result<Rows> {
    let (forward, gradient) =
        (corpus::find(paths, &[Kind::Forward])?, corpus::find(paths, &[Kind::Gradient])?);
    let mut targets = BTreeMap::new();
    let mut loader = corpus::Loader::default();
    for case in &forward {
        targets.insert(case.case.clone(), loader.targets(case).unwrap_or_default());
    }
    let mut rows = Rows::new();
    type Run<'a> = (&'static str, &'a [Case], fn(&mut Row) -> &mut Tally);
    let runs: [Run<'_>; 3] = [
        ("eager", &forward, |row| &mut row.eager),
        ("cpu", &forward, |row| &mut row.cpu),
        ("eager", &gradient, |row| &mut row.gradient),
    ];
    for (backend, cases, tally) in runs {
        for result in corpus::results(cases.to_vec(), backend)? {
            for target in targets.get(&result.case).into_iter().flatten() {
                record(rows.entry(target.clone()).or_default(), &result, tally);
            }
        }
    }
    Ok(rows)
}

fn record(row: &mut Row, result: &CaseResult, tally: fn(&mut Row) -> &mut Tally) {
    let passed = result.status == Status::Pass;
    let counts = tally(row);
    counts.run += 1;
    counts.passed += usize::from(passed);
    // A case is called `add/float32_0`.
    let dtype = result.case.rsplit('/').next().and_then(|name| name.rsplit_once('_')).map(|(dtype, _)| dtype);
    if let (true, Some(dtype)) = (passed, dtype) {
        row.dtypes.insert(dtype.to_owned());
    }
}

/// One line per operator.
pub(crate) fn to_text(rows: &Rows) -> String {
    let tally = |t: Tally| format!("{}/{}", t.passed, t.run);
    let line = |(target, row): (&String, &Row)| {
        let dtypes: Vec<&str> = row.dtypes.iter().map(String::as_str).collect();
        let columns =
            [target.clone(), dtypes.join(","), tally(row.eager), tally(row.cpu), tally(row.gradient)];
        columns.join("\t") + "\n"
    };
    format!("{HEAD}\n{}", rows.iter().map(line).collect::<String>())
}

/// The inverse of [`to_text`].
pub(crate) fn from_text(text: &str) -> Result<Rows> {
    let mut lines = text.lines();
    if lines.next() != Some(HEAD) {
        bail!("the table of cases does not begin with `{HEAD}`");
    }
    let row = |line: &str| -> Option<(String, Row)> {
        let mut columns = line.split('\t');
        let (target, dtypes) = (columns.next()?, columns.next()?);
        let mut tally = || {
            let (passed, run) = columns.next()?.split_once('/')?;
            Some(Tally { passed: passed.parse().ok()?, run: run.parse().ok()? })
        };
        let dtypes = dtypes.split(',').filter(|d| !d.is_empty()).map(str::to_owned).collect();
        Some((target.into(), Row { dtypes, eager: tally()?, cpu: tally()?, gradient: tally()? }))
    };
    lines.map(|line| row(line).with_context(|| format!("not a row of cases: `{line}`"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_survive_their_text() {
        let dtypes = ["float32", "int64"].map(str::to_owned).into();
        let tally = |passed, run| Tally { passed, run };
        let row = Row { dtypes, eager: tally(3, 4), cpu: tally(2, 4), gradient: tally(0, 0) };
        let rows =
            Rows::from([("aten.add.Tensor".into(), row), ("aten.zeros.default".into(), Row::default())]);
        assert_eq!(from_text(&to_text(&rows)).unwrap(), rows);
        assert!(from_text("something else\n").is_err());
        assert!(from_text(&format!("{HEAD}\naten.add.Tensor\tfloat32\t3\n")).is_err());
    }
}
