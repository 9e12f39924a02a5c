//! Parts an outer loop of a kernel in two where memory does: where an index divides the loop's counter by a constant, as
//! after a reshape of `[a, b]` to `[a * b]`, the two loops over `a` and `b` need no division, and what lies together along `b`
//! can be accessed as vectors. The opposite of `collapse`. Backends call it when they lower a kernel.
//!
//! Not here: the loops of stages, whose order is that of their sums.

use ir_core::{Atom, SymExpr};

use crate::{InstKind, LoopBounds, LoopKernel, Program, Stage};

/// The kernel with outer loops parted until no more divisions of a counter can be removed; `None` where there are none.
pub fn parted(program: &Program, k: &LoopKernel) -> Option<LoopKernel> {
    let mut best = parted_once(program, k)?;
    while let Some(next) = parted_once(program, &best) {
        best = next;
    }
    Some(best)
}

/// Parts one loop, if that leaves fewer divisions.
fn parted_once(program: &Program, k: &LoopKernel) -> Option<LoopKernel> {
    let before = divisions(program, k);
    if before.is_empty() {
        return None;
    }
    (0..k.outer.len()).find_map(|d| {
        let extent = k.outer[d].as_const()?;
        let mut lengths: Vec<i64> = before.iter().filter_map(|division| length(division, d as u32)).collect();
        lengths.retain(|c| 1 < *c && *c < extent && extent % c == 0);
        lengths.sort_unstable();
        lengths.dedup();
        let parts = |c: i64| part(program, k, d, c);
        lengths.into_iter().map(parts).find(|new| divisions(program, new).len() < before.len())
    })
}

/// A division or a remainder by a constant.
struct Division {
    of: SymExpr,
    by: i64,
}

/// Steps of loop `var` after which the division's result changes; `None` where it does not divide this loop's counter.
fn length(division: &Division, var: u32) -> Option<i64> {
    let (step, _) = division.of.affine_in(&Atom::Loop(var))?;
    let step = step.as_const().filter(|s| *s > 0)?;
    (division.by % step == 0).then_some(division.by / step)
}

/// The divisions in the addresses and index values of a kernel.
fn divisions(program: &Program, k: &LoopKernel) -> Vec<Division> {
    let symbols = program.bounds();
    let mut found = Vec::new();
    for stage in &k.stages {
        let extents = extents(k, stage);
        let bounds = LoopBounds { extents: &extents, symbols: &symbols };
        for inst in &stage.insts {
            let e = match &inst.kind {
                InstKind::Load { buf, index, .. } | InstKind::Store { buf, index, .. } => {
                    program.buffers[*buf].address(index)
                }
                InstKind::Index(e) => e.clone(),
                _ => continue,
            };
            collect(&e.simplify(&bounds), &mut found);
        }
    }
    found
}

/// The extents of all loops around a stage's body.
fn extents(k: &LoopKernel, stage: &Stage) -> Vec<SymExpr> {
    k.outer.iter().chain(&stage.inner).cloned().collect()
}

fn collect(e: &SymExpr, found: &mut Vec<Division>) {
    let (terms, _) = e.terms();
    for atom in terms.iter().flat_map(|(_, factors)| factors.iter()) {
        let (Atom::FloorDiv(ab) | Atom::Mod(ab)) = atom else { continue };
        if let Some(by) = ab.1.as_const().filter(|c| *c > 1) {
            found.push(Division { of: ab.0.clone(), by });
        }
        collect(&ab.0, found);
    }
}

/// Makes loop `d` two loops, the inner one of `length` steps.
fn part(program: &Program, k: &LoopKernel, d: usize, length: i64) -> LoopKernel {
    let mut new = k.clone();
    let inner = SymExpr::from_i64(length);
    new.outer[d] = k.outer[d].floor_div(&inner);
    new.outer.insert(d + 1, inner.clone());
    let symbols = program.bounds();
    let at = d as u32;
    let moved = |a: &Atom| match a {
        Atom::Loop(n) if *n == at => Some(SymExpr::loop_var(at) * &inner + SymExpr::loop_var(at + 1)),
        Atom::Loop(n) if *n > at => Some(SymExpr::loop_var(n + 1)),
        _ => None,
    };
    let outer = new.outer.clone();
    for stage in &mut new.stages {
        let extents: Vec<SymExpr> = outer.iter().chain(&stage.inner).cloned().collect();
        let bounds = LoopBounds { extents: &extents, symbols: &symbols };
        rewrite(stage, &|e: &mut SymExpr| *e = e.subst(&moved).simplify(&bounds));
    }
    new
}

impl LoopKernel {
    /// The kernel for points that begin `by` further along outer loop `d`, of which there are `extent`.
    pub fn shifted(&self, d: usize, by: &SymExpr, extent: SymExpr) -> LoopKernel {
        let mut new = self.clone();
        new.outer[d] = extent;
        let at = |a: &Atom| (*a == Atom::Loop(d as u32)).then(|| SymExpr::loop_var(d as u32) + by);
        new.stages.iter_mut().for_each(|stage| rewrite(stage, &|e: &mut SymExpr| *e = e.subst(&at)));
        new
    }
}

impl LoopKernel {
    /// The kernel with its outer loops in another order: loop `n` is the one that was `order[n]`. Its stages have no loops.
    pub fn reordered(&self, order: &[usize]) -> LoopKernel {
        let mut new = self.clone();
        new.outer = order.iter().map(|d| self.outer[*d].clone()).collect();
        let place = |n: u32| order.iter().position(|d| *d == n as usize);
        let at = |a: &Atom| match a {
            Atom::Loop(n) => place(*n).map(|to| SymExpr::loop_var(to as u32)),
            _ => None,
        };
        new.stages.iter_mut().for_each(|stage| rewrite(stage, &|e: &mut SymExpr| *e = e.subst(&at)));
        new
    }
}

fn rewrite(stage: &mut Stage, replace: &dyn Fn(&mut SymExpr)) {
    for inst in &mut stage.insts {
        match &mut inst.kind {
            InstKind::Load { index, .. } | InstKind::Store { index, .. } => {
                index.iter_mut().for_each(replace)
            }
            InstKind::Index(e) | InstKind::Check { size: e, .. } => replace(e),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Step;

    /// The loops and the body of a kernel that copies `from` to a dense `[32, 768]`.
    fn copied(sizes: &str, strides: &str, from: &str) -> Option<(String, String)> {
        let text = format!(
            "kir 1.0
program \"copy\"
buffer b0 \"x\" f32[{sizes}]{{{strides}}}+0 input 0
buffer b1 \"y\" f32[32, 768]{{768, 1}}+0 output
input \"x\" b0
output \"y\" b1[32, 768]{{768, 1}}+0
init:
steps:
loop \"copy\" outer [32, 768] from \"copy\"
  stage []
    v0: f32 = load b0[{from}]
    v1: f32 = store b1[i0, i1], v0
plan:
"
        );
        let program: Program = text.parse().unwrap();
        let Step::Loop(k) = &program.steps[0] else { panic!("no loop") };
        let new = parted(&program, k)?;
        let outer: Vec<String> = new.outer.iter().map(ToString::to_string).collect();
        let InstKind::Load { index, .. } = &new.stages[0].insts[0].kind else { panic!("no load") };
        let InstKind::Store { buf, index: to, .. } = &new.stages[0].insts[1].kind else { panic!("no store") };
        let index: Vec<String> = index.iter().map(ToString::to_string).collect();
        Some((
            format!("[{}] {}", outer.join(", "), index.join(", ")),
            program.buffers[*buf].address(to).to_string(),
        ))
    }

    #[test]
    fn heads_are_a_loop_of_their_own() {
        let (index, to) =
            copied("8, 12, 4, 64", "3072, 256, 64, 1", "i0 // 4, i1 // 64, i0 % 4, i1 % 64").unwrap();
        assert_eq!(index, "[8, 4, 12, 64] i0, i2, i1, i3");
        assert_eq!(to, "3072*i0 + 768*i1 + 64*i2 + i3");
    }

    #[test]
    fn a_loop_that_is_divided_twice_becomes_three() {
        let sizes = ("32, 4, 12, 16", "768, 192, 16, 1");
        let (index, _) = copied(sizes.0, sizes.1, "i0, i1 // 16 % 4, i1 // 64, i1 % 16").unwrap();
        assert_eq!(index, "[32, 12, 4, 16] i0, i2, i1, i3");
    }

    #[test]
    fn loops_of_stages_are_numbered_after_both_parts() {
        let text = "kir 1.0
program \"sums\"
buffer b0 \"x\" f32[3, 32, 256]{8192, 256, 1}+0 input 0
buffer b1 \"y\" f32[768]{1}+0 output
input \"x\" b0
output \"y\" b1[768]{1}+0
init:
steps:
loop \"sums\" outer [768]
  acc0: f32 sum
  stage [32]
    v0: f32 = load b0[i0 // 256, i1, i0 % 256]
    v1: f32 = reduce acc0, v0
  stage []
    v0: f32 = acc0
    v1: f32 = store b1[i0], v0
plan:
";
        let program: Program = text.parse().unwrap();
        let Step::Loop(k) = &program.steps[0] else { panic!("no loop") };
        let new = parted(&program, k).unwrap();
        assert_eq!(new.outer.len(), 2);
        let InstKind::Load { index, .. } = &new.stages[0].insts[0].kind else { panic!("no load") };
        assert_eq!(index.iter().map(ToString::to_string).collect::<Vec<_>>(), ["i0", "i2", "i1"]);
        let InstKind::Store { index, .. } = &new.stages[1].insts[1].kind else { panic!("no store") };
        assert_eq!(index[0].to_string(), "256*i0 + i1");
    }

    #[test]
    fn loops_that_nothing_divides_stay() {
        assert_eq!(copied("32, 768", "1, 32", "i0, i1"), None);
        // The reshape of dense memory divides nothing.
        assert_eq!(copied("32, 12, 64", "768, 64, 1", "i0, i1 // 64, i1 % 64"), None);
        // 500 does not divide 768.
        assert_eq!(copied("32, 2, 500", "1000, 500, 1", "i0, i1 // 500, i1 % 500"), None);
    }
}
