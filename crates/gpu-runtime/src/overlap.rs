//! Which exchanges of a program start as one, and which run beside its other work: a decision over the program's steps, the same
//! on all ranks of a group.
//!
//! Not here: how they run (`exchange`).

use kernel_ir::{BufId, ExternCall, ExternOp, Program, Step, side_by_side};
use rustc_hash::FxHashMap;

use crate::exchange::is_exchange;

/// Steps between an exchange and its wait from which on it runs beside them: changing streams costs about what a step does.
const WORTH_A_STREAM: usize = 2;

/// What an exchange, or a wait for one, does when its step is reached.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Role {
    /// Starts these exchanges as one, itself the first. Those with a mark run beside the work behind them until that mark is
    /// waited for; others are complete before it.
    Start { members: Vec<ExternCall>, mark: Option<usize> },
    /// Waits for a mark, and thereby for all smaller ones.
    Wait(usize),
    /// An exchange before has done it.
    Nothing,
}

/// The roles of the exchanges and waits of a program.
#[derive(Debug, Default)]
pub(crate) struct Roles {
    /// Those of the program's own steps, by their addresses.
    of: FxHashMap<usize, Role>,
    /// The number of marks, which are counted from 0 in the order of their exchanges.
    pub(crate) marks: usize,
}

fn address(step: &Step) -> usize {
    std::ptr::from_ref(step).addr()
}

/// The buffer that an exchange or a wait gives.
fn result(program: &Program, call: &ExternCall) -> Option<BufId> {
    call.outputs.first().map(|o| program.root(o.buf))
}

impl Roles {
    /// The roles of a program, which stays where it is in memory as long as they are asked for.
    pub(crate) fn of(program: &Program) -> Roles {
        let mut roles = Roles::default();
        // For each result that is not there yet the mark that stands behind it.
        let mut open: FxHashMap<BufId, usize> = FxHashMap::default();
        let mut waited = None;
        let mut at = 0;
        while let Some(step) = program.steps.get(at) {
            let count = side_by_side(&program.steps[at..]).max(1);
            let steps = &program.steps[at..at + count];
            at += count;
            match step {
                Step::Extern(call) if call.op == ExternOp::Wait => {
                    let mark = result(program, call).and_then(|buf| open.remove(&buf));
                    let role = match mark {
                        // Marks are passed in their order.
                        Some(mark) if waited.is_none_or(|w| w < mark) => {
                            waited = Some(mark);
                            Role::Wait(mark)
                        }
                        _ => Role::Nothing,
                    };
                    roles.of.insert(address(step), role);
                }
                Step::Extern(ExternCall { op: ExternOp::Collective(c), .. }) => {
                    let members: Vec<ExternCall> = steps.iter().filter_map(exchange).collect();
                    let beside = c.asynchronous && worth_a_stream(program, &members, at);
                    let mark = beside.then_some(roles.marks);
                    roles.marks += usize::from(beside);
                    for buf in members.iter().filter_map(|m| result(program, m)) {
                        mark.map(|mark| open.insert(buf, mark));
                    }
                    roles.of.insert(address(step), Role::Start { members, mark });
                    steps[1..].iter().for_each(|s| drop(roles.of.insert(address(s), Role::Nothing)));
                }
                _ => {}
            }
        }
        roles
    }

    /// That of an exchange or a wait. One within control flow is complete at once.
    pub(crate) fn role(&self, step: &Step) -> Role {
        let at_once = || match exchange(step) {
            Some(call) => Role::Start { members: vec![call], mark: None },
            None => Role::Nothing,
        };
        self.of.get(&address(step)).cloned().unwrap_or_else(at_once)
    }
}

fn exchange(step: &Step) -> Option<ExternCall> {
    match step {
        Step::Extern(call @ ExternCall { op: ExternOp::Collective(_), .. }) => Some(call.clone()),
        _ => None,
    }
}

/// Whether enough steps from `at` on come before the first wait for one of these exchanges, and all of them are waited for.
fn worth_a_stream(program: &Program, members: &[ExternCall], at: usize) -> bool {
    let wait = |member: &ExternCall| {
        let waits = |step: &Step| match step {
            Step::Extern(w) => w.op == ExternOp::Wait && result(program, w) == result(program, member),
            _ => false,
        };
        program.steps[at..].iter().position(waits)
    };
    let Some(waits) = members.iter().map(wait).collect::<Option<Vec<usize>>>() else { return false };
    let first = waits.into_iter().min().unwrap_or(0);
    program.steps[at..at + first].iter().filter(|s| !is_exchange(s)).count() >= WORTH_A_STREAM
}
