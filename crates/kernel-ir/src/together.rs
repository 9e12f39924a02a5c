//! Steps that do not depend on each other, and the memory that says so. What a backend makes of them (one launch, one
//! parallel region, one after another) is its own affair; which steps a program has together is the compiler's.

use serde::{Deserialize, Serialize};

use crate::{BufId, LiveRange, Program, Step};

/// Loops and templates of which none writes memory that another one reads or writes: a backend may run them in any order,
/// at once, or as one launch. To the memory plan they are one step. Since 1.5.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Together {
    /// Name.
    pub name: String,
    /// The members, at least one.
    pub steps: Vec<Step>,
}

/// The memory that steps use, by the buffers that views are of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Footprint {
    /// What is read, ascending.
    pub reads: Vec<BufId>,
    /// What is written, ascending.
    pub writes: Vec<BufId>,
}

impl Footprint {
    /// That of a step of a well-formed program, nested steps included.
    pub fn of(program: &Program, step: &Step) -> Footprint {
        let roots = |list: Vec<BufId>| {
            let mut roots: Vec<BufId> = list.into_iter().map(|b| program.root(b)).collect();
            roots.sort_unstable();
            roots.dedup();
            roots
        };
        let (reads, writes) = step.accesses();
        Footprint { reads: roots(reads), writes: roots(writes) }
    }

    /// A buffer that one of both writes and the other one uses: what the steps' order decides about.
    pub fn clash(&self, other: &Footprint) -> Option<BufId> {
        common(&self.writes, &other.writes)
            .or_else(|| common(&self.writes, &other.reads))
            .or_else(|| common(&self.reads, &other.writes))
    }

    /// Adds what further steps use.
    pub fn extend(&mut self, other: &Footprint) {
        for (all, more) in [(&mut self.reads, &other.reads), (&mut self.writes, &other.writes)] {
            all.extend(more);
            all.sort_unstable();
            all.dedup();
        }
    }
}

/// The first buffer of two ascending lists that both have.
fn common(mut a: &[BufId], mut b: &[BufId]) -> Option<BufId> {
    while let ([x, rest @ ..], [y, more @ ..]) = (a, b) {
        match x.cmp(y) {
            std::cmp::Ordering::Less => a = rest,
            std::cmp::Ordering::Greater => b = more,
            std::cmp::Ordering::Equal => return Some(*x),
        }
    }
    None
}

impl Together {
    /// Why these are no members of one step; `None` where they are. The program is well-formed otherwise.
    pub(crate) fn fault(&self, program: &Program) -> Option<String> {
        if self.steps.is_empty() {
            return Some("it has no members".into());
        }
        let launch =
            |s: &&Step| matches!(s, Step::Loop(_) | Step::Matmul(_) | Step::Conv(_) | Step::Attention(_));
        if let Some(other) = self.steps.iter().find(|s| !launch(s)) {
            return Some(format!("its member `{}` is no loop and no template", other.name()));
        }
        let mut before = Footprint::default();
        for step in &self.steps {
            let own = Footprint::of(program, step);
            if let Some(buf) = own.clash(&before) {
                let what = "writes what another member uses, or uses what another one writes";
                return Some(format!("its member `{}` {what}: buffer {buf}", step.name()));
            }
            before.extend(&own);
        }
        None
    }
}

impl Program {
    /// The same program with the members of each [`Together`] as steps of their own, one after another: what readers of
    /// older minors get, and backends that launch no steps at once.
    pub fn one_by_one(&self) -> Program {
        // Number of the first step that each step has become; behind them that of the step that would follow.
        let mut starts = Vec::with_capacity(self.steps.len() + 1);
        let mut steps = Vec::with_capacity(self.steps.len());
        for step in &self.steps {
            starts.push(steps.len() as u32);
            expand(step, &mut steps);
        }
        starts.push(steps.len() as u32);
        let start = |n: u32| starts.get(n as usize).copied().unwrap_or(n);
        let mut program = Program { init: expanded(&self.init), steps, ..self.clone() };
        let plan = &mut program.plan;
        for LiveRange { first, last, .. } in plan.lives.iter_mut().chain(&mut plan.dynamic) {
            *first = start(*first);
            *last = start(last.saturating_add(1)).saturating_sub(1).max(*first);
        }
        program
    }
}

fn expanded(steps: &[Step]) -> Vec<Step> {
    let mut all = Vec::with_capacity(steps.len());
    steps.iter().for_each(|s| expand(s, &mut all));
    all
}

fn expand(step: &Step, into: &mut Vec<Step>) {
    if let Step::Together(t) = step {
        t.steps.iter().for_each(|s| expand(s, into));
        return;
    }
    let mut step = step.clone();
    step.nested_mut().into_iter().for_each(|list| *list = expanded(list));
    into.push(step);
}
