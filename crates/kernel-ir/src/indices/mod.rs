//! Indices from data: which loads and stores have them, which of them surely lie inside of their buffer's dimension, and
//! checks where that is not sure.
//!
//! One analysis (`analysis`: ranges of integers, by interval arithmetic) serves three: whoever makes a program drops the checks
//! that it proves ([`prove_indices`]), the verifier refuses a program with an index that nothing proves, and programs that
//! nobody has checked ([`guard_indices`]) get checks against their buffers. Bodies without indices from data are not looked at.
//! Indices made of loop variables and sizes alone are not judged here: guards on sizes keep them inside.

mod analysis;
mod constants;
mod known;
mod masks;
mod rewrite;

pub use constants::ConstantRange;
pub(crate) use constants::ranges;

use ir_core::SymExpr;
use rustc_hash::FxHashMap;

use self::analysis::Analysis;
use self::known::Known;
use crate::{BufId, Inst, InstKind, Program, Site, Step, Val, VerifyError};

/// Drops every check that ranges prove, and every second one of the same value; what merely chose between numbers that
/// cannot occur (an index plus the size, where it is negative) goes too. Constants declare a range ([`Const::range`]) where
/// that proves what is checked of them. Sites that no check and no such range names any more are left out.
///
/// [`Const::range`]: crate::Const::range
pub fn prove_indices(program: &mut Program) {
    constants::declare(program);
    each_list(program, &mut |program, step| {
        change(program, step, &mut |analysis| {
            let checks = analysis.insts.iter().any(|i| matches!(i.kind, InstKind::Check { .. }));
            checks.then(|| rewrite::proved(analysis))
        });
    });
    keep_used_sites(program);
}

/// Checks every index from data that nothing proves to be inside of its buffer's dimension: for programs that come from
/// elsewhere. The checks name the step. Nothing where the program says `unchecked_indices`.
pub fn guard_indices(program: &mut Program) {
    if program.unchecked_indices {
        return;
    }
    let mut sites = std::mem::take(&mut program.sites);
    each_list(program, &mut |program, step| {
        let name = step.name().to_owned();
        let mut site = |dim: usize| {
            let site = Site { operator: name.clone(), dim: dim as u32, ..Site::default() };
            let known = sites.iter().position(|s| *s == site);
            known.unwrap_or_else(|| {
                sites.push(site);
                sites.len() - 1
            }) as u32
        };
        change(program, step, &mut |analysis| rewrite::guarded(program, analysis, &mut site));
    });
    program.sites = sites;
}

/// Takes every check away and says so: whoever calls answers for the indices.
pub fn drop_checks(program: &mut Program) {
    each_list(program, &mut |_, step| {
        for body in step.bodies_mut() {
            if body.iter().any(|i| matches!(i.kind, InstKind::Check { .. })) {
                *body = rewrite::unchecked(std::mem::take(body));
            }
        }
    });
    program.sites.clear();
    program.unchecked_indices = true;
}

/// The verifier's part: every index from data is proved or checked.
pub(crate) fn verify(program: &Program) -> Result<(), VerifyError> {
    if program.unchecked_indices {
        return Ok(());
    }
    program.init.iter().chain(&program.steps).try_for_each(|step| verify_step(program, step))
}

fn verify_step(program: &Program, step: &Step) -> Result<(), VerifyError> {
    let mut refused = None;
    each_body(program, step, &mut |number, analysis| {
        if let Some((n, d)) = unproved(program, analysis).next() {
            refused.get_or_insert_with(|| VerifyError {
                place: format!("kernel `{}`, stage {number}, v{n}", step.name()),
                what: format!(
                    "its index of dimension {d} comes from data, and neither a check nor a range keeps it inside of the buffer"
                ),
            });
        }
    });
    match refused {
        Some(error) => Err(error),
        None => step.nested().into_iter().flatten().try_for_each(|s| verify_step(program, s)),
    }
}

/// The buffer, index and mask of an access.
fn access(inst: &Inst) -> Option<(BufId, &[SymExpr], Option<Val>)> {
    match &inst.kind {
        InstKind::Load { buf, index, mask } | InstKind::Store { buf, index, mask, .. } => {
            Some((*buf, index, *mask))
        }
        _ => None,
    }
}

/// Loads and stores of a body, with the dimension whose index from data is not proved.
fn unproved<'a>(
    program: &'a Program,
    analysis: &'a Analysis<'a>,
) -> impl Iterator<Item = (usize, usize)> + 'a {
    let accesses = analysis.insts.iter().enumerate().filter_map(|(n, inst)| Some((n, access(inst)?)));
    accesses.flat_map(move |(n, (buf, index, mask))| {
        let sizes = program.buffers.get(buf).map_or(&[][..], |b| &b.sizes[..]);
        let open = index.iter().zip(sizes).enumerate().filter(move |(_, (e, size))| {
            masks::values_in(e) && !analysis.is_in_bounds(e, size, mask.as_slice())
        });
        open.map(move |(d, _)| (n, d)).collect::<Vec<_>>()
    })
}

/// Whether a body has anything to look at.
fn concerns(insts: &[Inst]) -> bool {
    insts.iter().any(|inst| {
        matches!(inst.kind, InstKind::Check { .. })
            || access(inst).is_some_and(|(_, index, _)| index.iter().any(masks::values_in))
    })
}

/// Values are made before they are used; what else may be wrong does no harm here.
fn is_ordered(insts: &[Inst]) -> bool {
    insts.iter().enumerate().all(|(n, inst)| {
        let mut before = true;
        inst.kind.for_each_val(&mut |v| before &= (v.0 as usize) < n);
        before
    })
}

/// Calls `visit` with number and analysis of every body of the step itself, if one of them has indices from data.
fn each_body(program: &Program, step: &Step, visit: &mut dyn FnMut(usize, &Analysis<'_>)) {
    let bodies = step.bodies();
    let sound = |insts: &[Inst]| is_ordered(insts);
    if !bodies.iter().any(|(_, insts)| concerns(insts)) || !bodies.iter().all(|(_, insts)| sound(insts)) {
        return;
    }
    let decls = if let Step::Loop(k) = step { &k.accs[..] } else { &[] };
    let mut accs = vec![Known::default(); decls.len()];
    for (number, (extents, insts)) in bodies.iter().enumerate() {
        let analysis = Analysis::of(program, extents, insts, &accs);
        visit(number, &analysis);
        for inst in *insts {
            if let InstKind::Reduce { acc, value, position } = &inst.kind
                && let (Some(slot), Some(decl)) = (accs.get_mut(acc.0 as usize), decls.get(acc.0 as usize))
            {
                *slot = analysis.accumulated(decl.op, *value, *position);
            }
        }
    }
}

/// Puts what `new` gives for a body in its place.
fn change(program: &Program, step: &mut Step, new: &mut dyn FnMut(&Analysis<'_>) -> Option<Vec<Inst>>) {
    let mut changed = Vec::new();
    each_body(program, step, &mut |number, analysis| {
        changed.extend(new(analysis).map(|insts| (number, insts)));
    });
    let mut bodies = step.bodies_mut();
    for (number, insts) in changed {
        if let Some(body) = bodies.get_mut(number) {
            **body = insts;
        }
    }
}

/// Calls `visit` for every step, nested ones included, with the program without its steps.
fn each_list(program: &mut Program, visit: &mut dyn FnMut(&Program, &mut Step)) {
    fn walk(program: &Program, steps: &mut [Step], visit: &mut dyn FnMut(&Program, &mut Step)) {
        for step in steps {
            visit(program, step);
            step.nested_mut().into_iter().for_each(|list| walk(program, list, visit));
        }
    }
    let (mut init, mut steps) = (std::mem::take(&mut program.init), std::mem::take(&mut program.steps));
    walk(program, &mut init, visit);
    walk(program, &mut steps, visit);
    (program.init, program.steps) = (init, steps);
}

/// Leaves out the sites that no check and no range of a constant names, and numbers the others anew.
fn keep_used_sites(program: &mut Program) {
    let mut number: FxHashMap<u32, u32> = FxHashMap::default();
    let old = std::mem::take(&mut program.sites);
    let mut kept = Vec::new();
    each_list(program, &mut |_, step| {
        for inst in step.bodies_mut().into_iter().flatten() {
            let InstKind::Check { site, .. } = &mut inst.kind else { continue };
            *site = *number.entry(*site).or_insert_with(|| {
                kept.extend(old.get(*site as usize).cloned());
                kept.len().saturating_sub(1) as u32
            });
        }
    });
    kept.extend(old.into_iter().enumerate().filter_map(|(n, site)| {
        (site.constant.is_some() && !number.contains_key(&(n as u32))).then_some(site)
    }));
    program.sites = kept;
}
