//! Waits for exchanges as late as possible: a step that exchanges data between ranks only starts it, and a wait stands before
//! the first step that needs the result or overwrites the operand. What is between runs meanwhile. Their order, which all
//! ranks must have alike, and which stand side by side is decided before (`buckets`).

use kernel_ir::{ArenaPlan, BufId, ExternCall, ExternOp, Footprint, Program, Step, side_by_side};

use crate::buckets;

/// Rewrites the steps of a call, and its memory plan where they changed. `apart`: no exchanges are brought together.
pub(crate) fn run(program: &mut Program, apart: bool) {
    let before = std::mem::take(&mut program.steps);
    let none = !before.iter().any(|step| started(program, step, None).is_some());
    program.steps = match (none, apart) {
        (true, _) => before,
        (_, false) => spread(program, buckets::run(program, before)),
        (_, true) => spread(program, before.into_iter().map(|step| (step, None)).collect()),
    };
    if !none {
        program.plan = ArenaPlan::of(program);
    }
}

/// An exchange that was started.
struct Open {
    wait: Step,
    bucket: Option<usize>,
    operand: BufId,
    result: BufId,
}

fn spread(program: &Program, steps: Vec<(Step, Option<usize>)>) -> Vec<Step> {
    let mut all: Vec<(Step, Option<usize>)> = Vec::with_capacity(steps.len());
    let mut open: Vec<Open> = Vec::new();
    for (step, bucket) in steps {
        let used = Footprint::of(program, &step);
        let needed = |o: &Open| {
            let (reads, writes) = (&used.reads, &used.writes);
            reads.contains(&o.result) || writes.contains(&o.result) || writes.contains(&o.operand)
        };
        // What is exchanged as one is there as one: all of a bucket is waited for at once, and nothing stands between the steps
        // that read it.
        let buckets: Vec<usize> = open.iter().filter(|o| needed(o)).filter_map(|o| o.bucket).collect();
        let beside = |o: &Open| o.bucket.is_some_and(|b| buckets.contains(&b));
        let (due, rest): (Vec<Open>, Vec<Open>) = open.into_iter().partition(|o| needed(o) || beside(o));
        open = rest;
        // Later buckets that stand directly before are started behind the wait: nothing else could run meanwhile, and so what
        // is waited for is not one exchange with them.
        for o in due {
            let ahead = all.iter().rev().take_while(|(_, b)| o.bucket.is_some() && *b > o.bucket).count();
            all.insert(all.len() - ahead, (o.wait, None));
        }
        open.extend(started(program, &step, bucket));
        all.push((step, bucket));
    }
    all.extend(open.into_iter().map(|o| (o.wait, None)));
    at_once(all.into_iter().map(|(step, _)| step).collect())
}

fn started(program: &Program, step: &Step, bucket: Option<usize>) -> Option<Open> {
    let Step::Extern(call @ ExternCall { op: ExternOp::Collective(_), inputs, outputs, .. }) = step else {
        return None;
    };
    let ([input], [output]) = (&inputs[..], &outputs[..]) else { return None };
    let wait = ExternCall { name: format!("{}_wait", call.name), op: ExternOp::Wait, ..call.clone() };
    Some(Open {
        wait: Step::Extern(wait),
        bucket,
        operand: program.root(input.buf),
        result: program.root(output.buf),
    })
}

/// A wait directly behind its exchange is none: the step exchanges at once. Others are started, and so are those that others
/// stand beside.
fn at_once(mut steps: Vec<Step>) -> Vec<Step> {
    steps.iter_mut().for_each(|step| set_started(step, true));
    let is_wait_of = |wait: &Step, step: &Step| match (wait, step) {
        (Step::Extern(w), Step::Extern(s)) => w.op == ExternOp::Wait && w.outputs == s.outputs,
        _ => false,
    };
    let mut all: Vec<Step> = Vec::with_capacity(steps.len());
    for step in steps {
        match &mut all[..] {
            [before @ .., last] if is_wait_of(&step, last) => {
                let beside = before.last().is_some_and(|b| side_by_side([b, &*last]) == 2);
                if beside {
                    all.push(step);
                } else {
                    set_started(last, false);
                }
            }
            _ => all.push(step),
        }
    }
    all
}

/// Parts exchanges that stand side by side nevertheless.
pub(crate) fn keep_apart(program: &mut Program) {
    program.steps = alone(std::mem::take(&mut program.steps));
    program.plan = ArenaPlan::of(program);
}

/// Of exchanges that are started side by side all but the last one are complete at once, without a wait.
fn alone(steps: Vec<Step>) -> Vec<Step> {
    let mut all: Vec<Step> = Vec::with_capacity(steps.len());
    let mut complete = Vec::new();
    for step in steps {
        if let Step::Extern(call) = &step
            && call.op == ExternOp::Wait
            && complete.contains(&call.outputs)
        {
            continue;
        }
        if let Some(last) = all.last_mut()
            && side_by_side([&*last, &step]) == 2
        {
            set_started(last, false);
            if let Step::Extern(call) = last {
                complete.push(call.outputs.clone());
            }
        }
        all.push(step);
    }
    all
}

fn set_started(step: &mut Step, started: bool) {
    if let Step::Extern(ExternCall { op: ExternOp::Collective(c), .. }) = step {
        c.asynchronous = started;
    }
}
