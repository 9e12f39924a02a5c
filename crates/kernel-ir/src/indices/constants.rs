//! Constants whose elements are used as indices: the program declares the range that their uses require, which is checked
//! once when the constant is bound, so that no call does.
//!
//! A range is declared only for a constant that every call reads completely: elements of a table that are never used may
//! hold anything, and so may a constant that only a branch reads.

use ir_core::{Atom, Bounds, SymExpr};
use serde::{Deserialize, Serialize};

use super::analysis::Analysis;
use super::{each_body, masks};
use crate::{BufId, InstKind, Program, Site, Step, Storage, Val};

/// The range that the elements of a constant must be in, and the operators that require it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConstantRange {
    /// Name of the constant.
    pub name: String,
    /// Smallest and largest number.
    pub range: (i64, i64),
    /// The operators that use its elements as indices.
    pub sites: Vec<Site>,
}

impl ConstantRange {
    /// The message for an element outside of the range.
    pub fn message(&self, value: i64) -> String {
        let (low, high) = self.range;
        let mut users: Vec<String> = self.sites.iter().map(Site::name).collect();
        users.dedup();
        let users = if users.is_empty() { "the program".into() } else { users.join(" and ") };
        format!("constant `{}` holds the index {value}, {users} takes {low} to {high} of it", self.name)
    }
}

/// The ranges that constants declare, with their users.
pub(crate) fn ranges(constants: &[crate::Const], sites: &[Site]) -> Vec<ConstantRange> {
    let one = |(n, c): (usize, &crate::Const)| {
        let sites = sites.iter().filter(|s| s.constant == Some(n as u32)).cloned().collect();
        Some(ConstantRange { name: c.name.clone(), range: c.range?, sites })
    };
    constants.iter().enumerate().filter_map(one).collect()
}

/// A check whose value is computed from one constant only.
struct Use {
    constant: usize,
    size: i64,
    site: u32,
    body: usize,
    check: usize,
}

/// Declares ranges of constants where that proves checks.
pub(super) fn declare(program: &mut Program) {
    let (init, steps) = (std::mem::take(&mut program.init), std::mem::take(&mut program.steps));
    let mut found: Vec<Option<(i64, i64)>> = vec![None; program.constants.len()];
    for step in init.iter().chain(&steps) {
        always(step, &mut |step| in_step(program, step, &mut found));
    }
    (program.init, program.steps) = (init, steps);
    for (constant, range) in program.constants.iter_mut().zip(found) {
        constant.range = constant.range.or(range);
    }
}

/// Calls `visit` for the step and for those that run with it in every call.
fn always(step: &Step, visit: &mut dyn FnMut(&Step)) {
    match step {
        Step::Together(t) => t.steps.iter().for_each(|s| always(s, visit)),
        step => visit(step),
    }
}

fn in_step(program: &mut Program, step: &Step, found: &mut [Option<(i64, i64)>]) {
    let mut uses = Vec::new();
    each_body(program, step, &mut |number, analysis| {
        for (n, inst) in analysis.insts.iter().enumerate() {
            let InstKind::Check { value, size, mask: None, site } = &inst.kind else { continue };
            let (Some(size), false) = (size.as_const(), analysis.proves(n)) else { continue };
            if let Some(constant) = source(analysis, *value).filter(|_| size > 0) {
                uses.push(Use { constant, size, site: *site, body: number, check: n });
            }
        }
    });
    for u in uses {
        // Negative numbers count from the end for some.
        let wanted = [(-u.size, u.size - 1), (0, u.size - 1)].into_iter().find(|range| {
            let before = program.constants[u.constant].range.replace(*range);
            let mut proved = false;
            each_body(program, step, &mut |number, analysis| {
                proved |= number == u.body && analysis.proves(u.check);
            });
            program.constants[u.constant].range = before;
            proved
        });
        let Some((low, high)) = wanted else { continue };
        let all = found[u.constant].get_or_insert((low, high));
        *all = (all.0.max(low), all.1.min(high));
        if let Some(site) = program.sites.get_mut(u.site as usize) {
            site.constant = Some(u.constant as u32);
        }
    }
}

/// The constant that a value is computed from, where it is from that one alone, and where all of it is read.
fn source(analysis: &Analysis<'_>, value: Val) -> Option<usize> {
    let (mut open, mut seen, mut constant) = (vec![value], vec![false; analysis.insts.len()], None);
    while let Some(v) = open.pop() {
        if std::mem::replace(&mut seen[v.0 as usize], true) {
            continue;
        }
        match &analysis.insts[v.0 as usize].kind {
            InstKind::Load { buf, index, mask: None } => {
                let n = whole(analysis, *buf, index)?;
                if constant.replace(n).is_some_and(|other| other != n) {
                    return None;
                }
            }
            InstKind::Index(e) if masks::values_in(e) => return None,
            InstKind::Const(_) | InstKind::Index(_) => {}
            InstKind::Op { args, .. } => open.extend(args.iter().copied()),
            InstKind::Cast(of) => open.push(*of),
            _ => return None,
        }
    }
    constant
}

/// The number of the constant that a load reads element by element, all of them.
fn whole(analysis: &Analysis<'_>, buf: BufId, index: &[SymExpr]) -> Option<usize> {
    let program = analysis.program();
    let buffer = program.buffers.get(buf)?;
    let Storage::Constant(n) = buffer.storage else { return None };
    let declared = program.constants.get(n as usize)?.range.is_some();
    if declared || !buffer.dtype.is_int() || index.len() != buffer.sizes.len() {
        return None;
    }
    let (extents, bounds) = (analysis.extents(), program.bounds());
    let mut used = vec![false; extents.len()];
    for (e, size) in index.iter().zip(&buffer.sizes) {
        match e.as_atom() {
            Some(Atom::Loop(v)) if extents.get(*v as usize) == Some(size) => {
                if std::mem::replace(&mut used[*v as usize], true) {
                    return None;
                }
            }
            _ if *e == SymExpr::ZERO && *size == SymExpr::ONE => {}
            _ => return None,
        }
    }
    // Where another loop may be empty nothing is read.
    let runs = |e: &SymExpr| e.range(&bounds as &dyn Bounds).0.is_some_and(|n| n > 0);
    extents.iter().zip(&used).all(|(e, used)| *used || runs(e)).then_some(n as usize)
}
