//! A step of several times as many points, where the step has loops: each run of instructions between the ends of loops stands
//! once for each copy, so that a turn of a loop computes all copies. Values that are the same for all points are computed once.

use super::ir::{Body, Inst, V};

/// The body with `copies` copies of its instructions.
pub(super) fn copied(body: &Body, copies: u32) -> Body {
    if copies == 1 {
        return body.clone();
    }
    let shared = shared(body);
    let mut out = Body { insts: Vec::new(), ..body.clone() };
    // Copy `n` of a value has this many more than its number.
    let moved = |n: u32, v: &V| if shared[v.id as usize] { v.id } else { v.id + n * body.values };
    let mut at = 0;
    while at < body.insts.len() {
        let end = body.insts[at..].iter().position(marks).map_or(body.insts.len(), |n| at + n);
        for n in 0..copies {
            let common = |i: &Inst| i.def().is_some_and(|d| shared[d.id as usize]);
            for inst in body.insts[at..end].iter().filter(|i| n == 0 || !common(i)) {
                out.insts.push(copy(*inst, n, &moved));
            }
        }
        out.insts.extend(body.insts.get(end).copied());
        at = end + 1;
    }
    out.values = body.values * copies;
    out
}

fn marks(inst: &Inst) -> bool {
    matches!(inst, Inst::Begin { .. } | Inst::End { .. })
}

fn copy(mut inst: Inst, n: u32, moved: &impl Fn(u32, &V) -> u32) -> Inst {
    inst.for_each_value(&mut |v| v.id = moved(n, v));
    // Two parts are a copy.
    let parts = 2 * n as u8;
    if let Inst::Index { part, .. } = &mut inst {
        *part += parts;
    }
    // The part of a gather is that of its mask; copies are not masked by the end of the loop.
    if let Some(place) = inst.place().filter(|p| !p.uniform) {
        place.part += parts;
    }
    inst
}

/// The values that are the same for all points.
fn shared(body: &Body) -> Vec<bool> {
    let mut shared = vec![false; body.values as usize];
    body.invariants.iter().for_each(|(v, _)| shared[v.id as usize] = true);
    let mut seen = vec![false; body.values as usize];
    for inst in &body.insts {
        let Some(d) = inst.def() else { continue };
        let own = match inst {
            // What a loop carries is written several times; it is not worth looking at all of them.
            Inst::Assign { .. } => false,
            Inst::Load { at, .. } | Inst::LoadMask { at, .. } => at.uniform,
            Inst::Index { step, .. } => *step == 0,
            _ => true,
        };
        let again = std::mem::replace(&mut seen[d.id as usize], true);
        let all = inst.uses().iter().all(|v| shared[v.id as usize]);
        shared[d.id as usize] = own && all && !again;
    }
    shared
}
