//! Which exchanges of a program start as one, and which run beside its other work: a decision over the program's steps, the same
//! on all ranks of a group.
//!
//! Not here: how they run (`exchange`).

use kernel_ir::{BufId, ExternCall, ExternOp, Program, SELF_GROUP, Step, side_by_side};
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
                    let alone = !c.asynchronous || c.group == SELF_GROUP;
                    let beside = !alone && worth_a_stream(program, &members, at);
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Steps by letters: `a`, `b` and `c` start exchanges of the group `g`, `A` one of `h`; the number of a wait is that of the
    /// exchange; `.` is another step.
    fn program(kinds: &str) -> Program {
        let mut text = "kir 1.9\nprogram \"p\"\n".to_owned();
        for n in 0..20 {
            text +=
                &format!("buffer b{n} \"b{n}\" f32[4]{{1}}+0 {}\n", if n == 0 { "input 0" } else { "arena" });
        }
        text += "input \"b0\" b0\ninit:\nsteps:\n";
        let letters: Vec<char> = kinds.chars().filter(|c| c.is_alphabetic()).collect();
        for (n, kind) in kinds.chars().enumerate() {
            let place = |c: char| letters.iter().position(|l| *l == c).map_or(19, |n| n + 1);
            let ends = |to: usize| format!("  in b0[4]{{1}}+0\n  out b{to}[4]{{1}}+0\n");
            text += &match kind {
                '.' => format!(
                    "loop \"l{n}\" outer [4]\n  stage []\n    v0: f32 = load b0[i0]\n    v1: f32 = store b19[i0], v0\n"
                ),
                c if c.is_ascii_digit() => {
                    let to = c.to_digit(10).map_or(0, |d| d as usize);
                    format!("extern \"w{n}\" wait\n{}", ends(to))
                }
                c => {
                    let group = if c.is_uppercase() { "h" } else { "g" };
                    format!("extern \"{c}\" all_reduce sum group \"{group}\" started\n{}", ends(place(c)))
                }
            };
        }
        text += "plan:\n";
        text.parse().unwrap_or_else(|e| panic!("{e}\n{text}"))
    }

    fn roles(kinds: &str) -> String {
        let program = program(kinds);
        let roles = Roles::of(&program);
        let one = |step: &Step| match (is_exchange(step), roles.role(step)) {
            (false, _) => ".".to_owned(),
            (_, Role::Start { members, mark: Some(mark) }) => format!("{}>{mark}", members.len()),
            (_, Role::Start { members, mark: None }) => format!("{}!", members.len()),
            (_, Role::Wait(mark)) => format!("w{mark}"),
            (_, Role::Nothing) => "-".to_owned(),
        };
        program.steps.iter().map(one).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn neighbours_are_one_and_run_beside_the_steps_behind_them() {
        assert_eq!(roles("ab..12"), "2>0 - . . w0 -", "one wait is enough");
        assert_eq!(roles("aA..12"), "1>0 1>1 . . w0 w1", "groups are apart");
        assert_eq!(roles("ab..2.1"), "2>0 - . . w0 . -");
        assert_eq!(roles("a.1"), "1! . -", "one step is not worth another stream");
        assert_eq!(roles("a..b..1.2"), "1>0 . . 1>1 . . w0 . w1", "a later exchange goes on");
        assert_eq!(roles("a..b..21"), "1>0 . . 1>1 . . w1 -", "a later wait is one for both");
        assert_eq!(roles("ab...1"), "2! - . . . -", "what nobody waits for is complete at once");
    }
}
