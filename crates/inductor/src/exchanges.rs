//! Waits for exchanges as late as possible: a step that exchanges data between ranks only starts it, and a wait stands before
//! the first step that needs the result or overwrites the operand. What is between runs meanwhile. The order of exchanges
//! stays as it is, because all ranks must have the same.

use kernel_ir::{ArenaPlan, BufId, ExternCall, ExternOp, Footprint, Program, Step};

/// Rewrites the steps of a call, and its memory plan where they changed.
pub(crate) fn run(program: &mut Program) {
    let before = std::mem::take(&mut program.steps);
    let count = before.len();
    let steps = spread(program, before);
    let changed = steps.len() != count;
    program.steps = steps;
    if changed {
        program.plan = ArenaPlan::of(program);
    }
}

/// An exchange that was started.
struct Open {
    wait: Step,
    operand: BufId,
    result: BufId,
}

fn spread(program: &Program, steps: Vec<Step>) -> Vec<Step> {
    let mut all: Vec<Step> = Vec::with_capacity(steps.len());
    let mut open: Vec<Open> = Vec::new();
    for step in steps {
        let used = Footprint::of(program, &step);
        let needed = |o: &Open| {
            let (reads, writes) = (&used.reads, &used.writes);
            reads.contains(&o.result) || writes.contains(&o.result) || writes.contains(&o.operand)
        };
        let (due, rest): (Vec<Open>, Vec<Open>) = open.into_iter().partition(needed);
        open = rest;
        due.into_iter().for_each(|o| all.push(o.wait));
        open.extend(started(program, &step));
        all.push(step);
    }
    open.into_iter().for_each(|o| all.push(o.wait));
    at_once(all)
}

fn started(program: &Program, step: &Step) -> Option<Open> {
    let Step::Extern(call @ ExternCall { op: ExternOp::Collective(_), inputs, outputs, .. }) = step else {
        return None;
    };
    let ([input], [output]) = (&inputs[..], &outputs[..]) else { return None };
    let wait = ExternCall { name: format!("{}_wait", call.name), op: ExternOp::Wait, ..call.clone() };
    Some(Open {
        wait: Step::Extern(wait),
        operand: program.root(input.buf),
        result: program.root(output.buf),
    })
}

/// A wait directly behind its exchange is none: the step exchanges at once. Others are started.
fn at_once(steps: Vec<Step>) -> Vec<Step> {
    let is_wait_of = |wait: &Step, step: &Step| match (wait, step) {
        (Step::Extern(w), Step::Extern(s)) => w.op == ExternOp::Wait && w.outputs == s.outputs,
        _ => false,
    };
    let mut all: Vec<Step> = Vec::with_capacity(steps.len());
    for step in steps {
        match all.last_mut() {
            Some(last) if is_wait_of(&step, last) => {
                if let Step::Extern(ExternCall { op: ExternOp::Collective(c), .. }) = last {
                    c.asynchronous = false;
                }
            }
            _ => {
                let mut step = step;
                if let Step::Extern(ExternCall { op: ExternOp::Collective(c), .. }) = &mut step {
                    c.asynchronous = true;
                }
                all.push(step);
            }
        }
    }
    all
}
