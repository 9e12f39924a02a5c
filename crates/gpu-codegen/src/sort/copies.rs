//! Results of sorts that are only copied, such as those that a caller gets of a `topk`: the sort writes to where the copy goes, and
//! the copy, with its launch, is left out.
//!
//! Not here: copies of anything else, which the schedule avoids.

use ir_core::{Shape, SymExpr};
use kernel_ir::{BufId, ExternOp, InstKind, Operand, Program, Step, Storage, StoreMode};

use crate::library::pack::for_each_step;

/// Lets the sorts among a program's outermost steps write to where their results are copied. Returns whether there are any; the
/// memory plan is then another one.
pub(super) fn write_through(program: &mut Program) -> bool {
    let mut changed = false;
    for s in 0..program.steps.len() {
        let Step::Extern(k) = &program.steps[s] else { continue };
        let outputs = if matches!(k.op, ExternOp::Sort { .. }) { k.outputs.len() } else { 0 };
        for n in 0..outputs {
            let Step::Extern(k) = &program.steps[s] else { continue };
            let Some((to, from)) = destination(program, &k.outputs[n]).map(|to| (to, k.outputs[n].buf))
            else {
                continue;
            };
            remove_copy(&mut program.steps, from);
            if let Step::Extern(k) = &mut program.steps[s] {
                k.outputs[n] = to;
            }
            changed = true;
        }
    }
    if changed {
        let empty = |step: &Step| matches!(step, Step::Together(group) if group.steps.is_empty());
        program.steps.retain(|step| !empty(step));
    }
    changed
}

/// The memory to which a step copies this result, if nothing else reads the result and nothing else writes there.
fn destination(program: &Program, result: &Operand) -> Option<Operand> {
    let from = result.buf;
    let shown = program.outputs.iter().any(|o| program.root(o.buf) == from);
    let viewed = |of: BufId| program.buffers.iter().any(|(_, b)| b.storage == Storage::View(of));
    if shown || viewed(from) || program.buffers[from].storage != Storage::Arena {
        return None;
    }
    let members = program.steps.iter().flat_map(|step| match step {
        Step::Together(group) => &group.steps[..],
        step => std::slice::from_ref(step),
    });
    let mut copies = members.filter_map(|step| copied(step, from));
    let (extents, index, to) = copies.next()?;
    let buffer = &program.buffers[to];
    let own = matches!(buffer.storage, Storage::Output | Storage::Arena) && !program.is_dynamic(to);
    let alike = is_whole(index, extents, &result.sizes) && buffer.dtype == program.buffers[from].dtype;
    if !own || !alike || viewed(to) || uses(program, from) != (1, 1) || uses(program, to).1 != 1 {
        return None;
    }
    let (sizes, strides, offset) = (result.sizes.clone(), buffer.strides.clone(), buffer.offset.clone());
    Some(Operand { buf: to, sizes, strides, offset })
}

/// How many steps read a buffer, and how many write it.
fn uses(program: &Program, buf: BufId) -> (usize, usize) {
    let (mut reads, mut writes) = (0, 0);
    let mut look = |step: &Step| {
        if step.nested().is_empty() {
            let (read, written) = step.accesses();
            reads += usize::from(read.contains(&buf));
            writes += usize::from(written.contains(&buf));
        } else {
            reads += step.operands().iter().filter(|o| o.buf == buf).count();
        }
    };
    for_each_step(&program.init, &mut look);
    for_each_step(&program.steps, &mut look);
    (reads, writes)
}

/// The extents and the index of a loop that copies elements of `from`, and the buffer to which it does, if that is all that a step
/// does.
fn copied(step: &Step, from: BufId) -> Option<(&Shape, &Shape, BufId)> {
    let Step::Loop(k) = step else { return None };
    let ([stage], []) = (&k.stages[..], &k.accs[..]) else { return None };
    let [load, store] = &stage.insts[..] else { return None };
    let InstKind::Load { buf, index, mask: None } = &load.kind else { return None };
    let InstKind::Store { buf: to, index: at, mask: None, mode: StoreMode::Write, .. } = &store.kind else {
        return None;
    };
    let whole = *buf == from && stage.inner.is_empty() && index == at;
    whole.then_some((&k.outer, index, *to))
}

/// Whether the indices of a loop's points name every element of this shape once, in order; loops have no variable for a size of 1.
fn is_whole(index: &[SymExpr], extents: &[SymExpr], sizes: &[SymExpr]) -> bool {
    let mut vars = 0;
    let each = index.iter().zip(sizes).all(|(at, size)| {
        let runs = extents.get(vars as usize) == Some(size) && *at == SymExpr::loop_var(vars);
        vars += u32::from(runs);
        runs || (*size == SymExpr::ONE && *at == SymExpr::ZERO)
    });
    each && vars as usize == extents.len() && index.len() == sizes.len()
}

/// Removes the step that copies this buffer, from its group if it is in one.
fn remove_copy(steps: &mut [Step], from: BufId) {
    for step in steps {
        match step {
            Step::Together(group) => group.steps.retain(|member| copied(member, from).is_none()),
            step if copied(step, from).is_some() => {
                *step = Step::Together(kernel_ir::Together { name: String::new(), steps: Vec::new() });
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    /// A sort of `b0` into `b1`, whose first two elements of a row go to the output `b3` by the loop `copy`, and further steps.
    fn sort_and_copy(copy: &str, more: &str) -> Program {
        let text = format!(
            r#"kir 1.12
program "sort"
buffer b0 "x" f32[4, 100]{{100, 1}}+0 input 0
buffer b1 "values" f32[4, 100]{{100, 1}}+0 arena
buffer b2 "positions" i64[4, 100]{{100, 1}}+0 arena
buffer b3 "first" f32[4, 2]{{2, 1}}+0 output
buffer b4 "second" f32[4]{{1}}+0 output
input "x" b0
output "first" b3[4, 2]{{2, 1}}+0
output "second" b4[4]{{1}}+0
init:
steps:
extern "sort" sort dim 1 ascending
  in b0[4, 100]{{100, 1}}+0
  out b1[4, 100]{{100, 1}}+0
  out b2[4, 100]{{100, 1}}+0
{copy}{more}plan:
"#
        );
        text.parse().unwrap_or_else(|e| panic!("{e}\n{text}"))
    }

    fn copy(from: &str, to: &str) -> String {
        format!(
            "loop \"copy\" outer [4, 2]\n  stage []\n    v0: f32 = load {from}\n    v1: f32 = store {to}, v0\n"
        )
    }

    /// The names of the steps, and the buffer and the sizes of the values, after results were narrowed.
    fn narrowed(mut program: Program) -> (Vec<String>, u32, Vec<Option<i64>>) {
        crate::narrow_sorts(&mut program);
        let names = program.steps.iter().map(|s| s.name().to_owned()).collect();
        let results = program.steps[0].results();
        (names, results[0].buf.0, results[0].sizes.iter().map(SymExpr::as_const).collect())
    }

    #[test]
    fn a_copy_is_left_out() {
        let whole = copy("b1[i0, i1]", "b3[i0, i1]");
        let done = (vec!["sort".to_owned()], 3, vec![Some(4), Some(2)]);
        assert_eq!(narrowed(sort_and_copy(&whole, "")), done);
        let group = format!("together \"group\"\ndo:\n{whole}end\n");
        assert_eq!(narrowed(sort_and_copy(&group, "")), done);
    }

    #[test]
    fn what_is_more_than_a_copy_stays() {
        let whole = copy("b1[i0, i1]", "b3[i0, i1]");
        let second = "loop \"second\" outer [4]\n  stage []\n    v0: f32 = load b1[i0, 1]\n    v1: f32 = store b4[i0], v0\n";
        let again = "loop \"again\" outer [4]\n  stage []\n    v0: f32 = const 1.0\n    v1: f32 = store b3[i0, 0], v0\n";
        let mirrored = copy("b1[i0, 1 - i1]", "b3[i0, i1]");
        let later = copy("b1[i0, i1 + 1]", "b3[i0, i1]");
        for (copy, more, length) in
            [(&whole, second, 2), (&whole, again, 2), (&mirrored, "", 2), (&later, "", 3)]
        {
            let program = sort_and_copy(copy, more);
            let names: Vec<String> = program.steps.iter().map(|s| s.name().to_owned()).collect();
            assert_eq!(narrowed(program), (names, 1, vec![Some(4), Some(length)]), "{copy}{more}");
        }
    }
}
