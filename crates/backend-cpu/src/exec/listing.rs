//! The machine code of a program's steps as text. It is generated again for that: code in use keeps no text.

use std::collections::BTreeMap;

use plugin_sdk::Listing;
use rayon::prelude::*;

use super::jobs::Jobs;
use super::{Compiled, ExecError, prepare};
use crate::clif;

impl Compiled {
    /// The text of each generated function of each step, those that run once first. Steps of hand-written kernels alone have
    /// none.
    ///
    /// # Errors
    /// Those of compiling.
    pub(crate) fn listings(&self) -> Result<Vec<Listing>, ExecError> {
        let mut program = self.program.clone();
        let steps: Vec<_> = program.init.iter().chain(&program.steps).cloned().collect();
        let (mut jobs, mut uses) = (Jobs::default(), Vec::with_capacity(steps.len()));
        for step in &steps {
            prepare::supports(&mut program, step, &mut jobs)?;
            uses.push((step.name(), jobs.take_used()));
        }
        let texts = jobs.list().par_iter().enumerate().map(|(n, job)| Ok((n, clif::listing(job)?)));
        let texts: BTreeMap<usize, (String, &str)> = texts.collect::<Result<_, clif::JitError>>()?;
        let all = uses.into_iter().flat_map(|(step, used)| used.into_iter().map(move |n| (step, n)));
        let listing = |(step, n): (&str, usize)| {
            let (text, set) = texts.get(&n)?;
            let language = format!("machine code ({set})");
            Some(Listing { step: step.to_owned(), language, text: text.clone() })
        };
        Ok(all.filter_map(listing).collect())
    }
}
