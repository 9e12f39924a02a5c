//! Plans: what a user says about placements, as text. A plan file is TOML:
//!
//! ```toml
//! use = ["ddp", "tp:auto"]        # built-in plans, each over the axis of its name or `@axis`
//! batch_norm = "rank"             # statistics of batch norms in training: `whole` (usual), `rank`, `groups=N`
//!
//! [placements]                    # patterns with `*`, the first one that matches wins
//! "*.q_proj.weight" = "tp=S(0)"
//! "*.o_proj.weight" = "tp=S(1)"
//! "input_ids" = "dp=S(0)"
//! "output.0" = "dp=S(0), tp=R"
//!
//! [links]                         # the figures of an axis by which placements are chosen; those left out are usual ones
//! dp = { latency = 5e-5, bandwidth = 2.5e10 }
//! ```
//!
//! A pattern is matched with the names of parameters and buffers, of inputs, of outputs (`output.N`), and of values of the
//! graph. Tensors that an optimizer keeps for a parameter (`optimizer/NAME/PARAMETER`) are placed as the parameter is.

use std::collections::BTreeMap;

use fx_ir::{Graph, InputKind, OutputKind, ValueId};
use ir_core::SymExpr;
use serde::Deserialize;

use crate::propagate::{Constraints, Fixed};
use crate::{Axis, BatchNorm, Costs, Link, Mesh, Placement, ShardingError, tables, tensor_parallel};

/// What a user says about placements.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// Built-in plans.
    pub built_in: Vec<BuiltIn>,
    /// Patterns with placements by axis name, in order of priority.
    pub placements: Vec<(String, Vec<(String, Placement)>)>,
    /// The figures of links by axis name; axes without have [`Link::default`].
    pub links: BTreeMap<String, Link>,
    /// Whose statistics batch norms of training have.
    pub batch_norm: BatchNorm,
}

/// A built-in plan over an axis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BuiltIn {
    /// Which.
    pub kind: BuiltInKind,
    /// The axis; `None` is the axis that has the plan's name, or is the only one.
    pub axis: Option<String>,
}

/// The built-in plans.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BuiltInKind {
    /// Data parallel: every rank has a part of the batch, and all parameters.
    Ddp,
    /// Fully sharded: every rank has a part of the batch, and of every parameter.
    Fsdp,
    /// Tensor parallel: pairs of products share what is between them, found in the graph; tables are split where that costs
    /// less.
    TensorParallel,
}

impl BuiltInKind {
    fn name(self) -> &'static str {
        match self {
            BuiltInKind::Ddp => "ddp",
            BuiltInKind::Fsdp => "fsdp",
            BuiltInKind::TensorParallel => "tp:auto",
        }
    }
    /// Names of the axis that the plan is over where none is given.
    fn axes(self) -> &'static [&'static str] {
        match self {
            BuiltInKind::Ddp => &["dp", "ddp", "data"],
            BuiltInKind::Fsdp => &["fsdp", "dp", "data"],
            BuiltInKind::TensorParallel => &["tp", "model"],
        }
    }
}

impl std::str::FromStr for BuiltIn {
    type Err = ShardingError;
    fn from_str(text: &str) -> Result<BuiltIn, ShardingError> {
        let (name, axis) = match text.split_once('@') {
            Some((name, axis)) => (name, Some(axis.to_owned())),
            None => (text, None),
        };
        let all = [BuiltInKind::Ddp, BuiltInKind::Fsdp, BuiltInKind::TensorParallel];
        let kind = all.into_iter().find(|k| k.name() == name);
        let unknown =
            || ShardingError::Plan(format!("`{name}` is no built-in plan: there are ddp, fsdp and tp:auto"));
        Ok(BuiltIn { kind: kind.ok_or_else(unknown)?, axis })
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default, rename = "use")]
    built_in: Vec<String>,
    #[serde(default)]
    placements: BTreeMap<String, String>,
    #[serde(default)]
    links: BTreeMap<String, Link>,
    #[serde(default)]
    batch_norm: BatchNorm,
}

impl Plan {
    /// The plan that the names of the axes suggest: `dp`, `fsdp`, `tp`.
    pub fn usual(mesh: &Mesh) -> Plan {
        let of = |name: &str| match name {
            "dp" | "ddp" | "data" => Some(BuiltInKind::Ddp),
            "fsdp" => Some(BuiltInKind::Fsdp),
            "tp" | "model" => Some(BuiltInKind::TensorParallel),
            _ => None,
        };
        let all = mesh
            .axes()
            .iter()
            .filter_map(|a| Some(BuiltIn { kind: of(&a.name)?, axis: Some(a.name.clone()) }));
        Plan { built_in: all.collect(), ..Plan::default() }
    }

    /// Reads a plan file.
    ///
    /// # Errors
    /// A text that is no TOML of this form, or names what does not exist.
    pub fn parse(text: &str) -> Result<Plan, ShardingError> {
        let file: File = toml::from_str(text).map_err(|e| ShardingError::Plan(e.to_string()))?;
        let built_in = file.built_in.iter().map(|b| b.parse()).collect::<Result<_, _>>()?;
        let mut plan = Plan { built_in, links: file.links, batch_norm: file.batch_norm, ..Plan::default() };
        for (pattern, placements) in &file.placements {
            plan.place(pattern, placements)?;
        }
        // Longer patterns say more; a table of TOML has no order.
        plan.placements.sort_by_key(|(pattern, _)| (pattern.contains('*'), std::cmp::Reverse(pattern.len())));
        Ok(plan)
    }

    /// Adds a pattern with placements as in a file: `dp=S(0), tp=R`.
    ///
    /// # Errors
    /// A text that is no list of placements.
    pub fn place(&mut self, pattern: &str, placements: &str) -> Result<(), ShardingError> {
        let one = |part: &str| -> Result<(String, Placement), ShardingError> {
            let wrong = || {
                ShardingError::Plan(format!(
                    "`{part}` is no placement: write `axis=R`, `axis=S(dimension)`, `axis=S(dimension in size+size)` for \
                     sections, or `axis=P(sum)`"
                ))
            };
            let (axis, placement) = part.split_once('=').ok_or_else(wrong)?;
            Ok((axis.trim().to_owned(), parse_placement(placement.trim()).ok_or_else(wrong)?))
        };
        let all = placements.split(',').map(|p| one(p.trim())).collect::<Result<Vec<_>, _>>()?;
        self.placements.push((pattern.to_owned(), all));
        Ok(())
    }

    /// The costs of a mesh whose links the plan may know.
    ///
    /// # Errors
    /// Axes that the mesh lacks; a latency that is negative, a bandwidth that is not above zero, and what is no number.
    pub fn costs(&self, mesh: &Mesh) -> Result<Costs, ShardingError> {
        for (axis, link) in &self.links {
            axis_named(mesh, axis)?;
            if !(link.latency >= 0.0 && link.latency.is_finite() && link.bandwidth > 0.0) {
                let Link { latency, bandwidth } = link;
                return Err(ShardingError::Plan(format!(
                    "the link of `{axis}` has a latency of {latency} s and a bandwidth of {bandwidth} bytes a second: write a \
                     latency of 0 or more, and a bandwidth above 0"
                )));
            }
        }
        let link = |axis: &Axis| self.links.get(&axis.name).copied().unwrap_or_default();
        Ok(Costs { links: mesh.axes().iter().map(link).collect(), ..Costs::default() })
    }

    /// The axes of a mesh along which the plan splits the batch of a program, whose graph may be of any dialect.
    ///
    /// # Errors
    /// Axes that the mesh lacks.
    pub fn batch_axes(&self, graph: &Graph, mesh: &Mesh) -> Result<Vec<usize>, ShardingError> {
        let constraints = Constraints::default();
        let mut found = Resolved { mesh, by_name: BTreeMap::new(), constraints, spread: Vec::new() };
        let batched = batch_inputs(graph);
        for (pattern, placements) in &self.placements {
            for (axis, placement) in placements {
                let axis = found.axis(axis)?;
                let matching = batched.iter().filter(|name| matches(pattern, name));
                matching.for_each(|name| found.fix(name, axis, placement.clone()));
            }
        }
        for plan in self.built_in.iter().filter(|p| p.kind != BuiltInKind::TensorParallel) {
            let axis = found.axis_of(plan)?;
            batched.iter().for_each(|name| found.fix(name, axis, Placement::shard(0)));
        }
        let is_split = |fixed: &Fixed, axis: usize| fixed[axis].as_ref().is_some_and(|p| p.dim() == Some(0));
        let axes = 0..mesh.axes().len();
        Ok(axes.filter(|axis| found.by_name.values().any(|fixed| is_split(fixed, *axis))).collect())
    }

    /// What the plan fixes of a graph of prims. `forward` is the same program without its backward pass, in which `tp:auto`
    /// looks for pairs of products and for tables; by the costs it decides how these are split.
    ///
    /// # Errors
    /// Axes that the mesh lacks, patterns that match nothing.
    pub fn resolve(
        &self,
        graph: &Graph,
        forward: &Graph,
        mesh: &Mesh,
        costs: &Costs,
    ) -> Result<Constraints, ShardingError> {
        let constraints = Constraints::default();
        let mut found = Resolved { mesh, by_name: BTreeMap::new(), constraints, spread: Vec::new() };
        for (pattern, placements) in &self.placements {
            found.pattern(graph, pattern, placements)?;
        }
        let mut tensor_parallel = Vec::new();
        for plan in &self.built_in {
            let axis = found.axis_of(plan)?;
            if mesh.axes()[axis].size > 1 {
                found.built_in(graph, forward, plan.kind, axis)?;
                tensor_parallel.extend((plan.kind == BuiltInKind::TensorParallel).then_some(axis));
            }
        }
        // Behind all others: what tables cost depends on where everything else is.
        for axis in tensor_parallel {
            found.tables((graph, forward), axis, costs)?;
        }
        Ok(found.constraints(graph))
    }
}

fn axis_named(mesh: &Mesh, name: &str) -> Result<usize, ShardingError> {
    let missing = || ShardingError::Plan(format!("the mesh `{}` has no axis `{name}`", mesh));
    mesh.axis(name).ok_or_else(missing)
}

/// `R`, `S(1)`, `S(1 in 64+16+16)`, `P(sum)`.
fn parse_placement(text: &str) -> Option<Placement> {
    let inner = |prefix: char| text.strip_prefix(prefix)?.strip_prefix('(')?.strip_suffix(')');
    match text {
        "R" => Some(Placement::Replicate),
        _ => match (inner('S'), inner('P')) {
            (Some(inner), _) => match inner.split_once(" in ") {
                None => Some(Placement::shard(inner.trim().parse().ok()?)),
                Some((dim, sizes)) => {
                    let size = |s: &str| Some(SymExpr::from_i64(s.trim().parse::<u32>().ok()?.into()));
                    let sections = sizes.split('+').map(size).collect::<Option<Vec<_>>>()?;
                    Some(Placement::sectioned(dim.trim().parse().ok()?, sections))
                }
            },
            (_, Some(how)) => kernel_ir::Combine::from_name(how.trim()).map(Placement::Partial),
            _ => None,
        },
    }
}

/// Of two ways to split a table the later one has to be better by this share of a link's latency: bytes that take less time
/// than that are not what an exchange costs.
const CLEARLY: f64 = 0.1;

struct Resolved<'a> {
    mesh: &'a Mesh,
    by_name: BTreeMap<String, Fixed>,
    constraints: Constraints,
    /// Parameters that are in parts along an axis to take less memory, whichever dimension that is.
    spread: Vec<(String, usize)>,
}

impl Resolved<'_> {
    fn open(&self) -> Fixed {
        vec![None; self.mesh.axes().len()]
    }

    fn axis(&self, name: &str) -> Result<usize, ShardingError> {
        axis_named(self.mesh, name)
    }

    fn axis_of(&self, plan: &BuiltIn) -> Result<usize, ShardingError> {
        if let Some(name) = &plan.axis {
            return self.axis(name);
        }
        let usual = plan.kind.axes().iter().find_map(|name| self.mesh.axis(name));
        let only = (self.mesh.axes().len() == 1).then_some(0);
        let missing = || {
            let name = plan.kind.name();
            ShardingError::Plan(format!(
                "which axis of `{}` is `{name}` over? Write `{name}@axis`",
                self.mesh
            ))
        };
        usual.or(only).ok_or_else(missing)
    }

    /// Fixes a placement where none is yet.
    fn fix(&mut self, name: &str, axis: usize, placement: Placement) {
        let open = self.open();
        let fixed = self.by_name.entry(name.to_owned()).or_insert(open);
        fixed[axis].get_or_insert(placement);
    }

    fn pattern(
        &mut self,
        graph: &Graph,
        pattern: &str,
        placements: &[(String, Placement)],
    ) -> Result<(), ShardingError> {
        let axes = placements
            .iter()
            .map(|(axis, p)| Ok((self.axis(axis)?, p.clone())))
            .collect::<Result<Vec<_>, ShardingError>>()?;
        let mut matched = false;
        for (_, _, name) in graph.inputs().filter(|(_, _, name)| matches(pattern, name)) {
            matched = true;
            axes.iter().for_each(|(axis, p)| self.fix(name, *axis, p.clone()));
        }
        let returned = graph
            .outputs
            .iter()
            .enumerate()
            .filter(|(_, o)| matches!(o.kind, OutputKind::User | OutputKind::Loss));
        for (place, (n, _)) in returned.enumerate() {
            if matches(pattern, &format!("output.{place}")) {
                matched = true;
                let open = self.open();
                let fixed = self.constraints.outputs.entry(n).or_insert(open);
                fix_open(fixed, &axes);
            }
        }
        let calls = graph.iter().filter(|(_, node)| node.as_call().is_some());
        let values: Vec<ValueId> = calls.flat_map(|(_, node)| node.outputs.to_vec()).collect();
        for v in values.into_iter().filter(|v| matches(pattern, &graph.values[*v].name)) {
            matched = true;
            let open = self.open();
            let fixed = self.constraints.values.entry(v).or_insert(open);
            fix_open(fixed, &axes);
        }
        if matched { Ok(()) } else { Err(ShardingError::Unmatched(pattern.to_owned())) }
    }

    fn built_in(
        &mut self,
        graph: &Graph,
        forward: &Graph,
        kind: BuiltInKind,
        axis: usize,
    ) -> Result<(), ShardingError> {
        if kind == BuiltInKind::TensorParallel {
            for (name, placement) in tensor_parallel::find(forward, self.mesh, axis)? {
                self.fix(&name, axis, placement);
            }
            return Ok(());
        }
        let batched: Vec<String> = batch_inputs(graph);
        batched.iter().for_each(|name| self.fix(name, axis, Placement::shard(0)));
        if kind == BuiltInKind::Fsdp {
            let parameters = graph.inputs().filter(|(v, kind, _)| {
                let whole = graph.meta(*v).and_then(|m| m.static_sizes());
                *kind == InputKind::Parameter && whole.is_some_and(|s| s.first().is_some_and(|n| *n > 1))
            });
            for (v, _, name) in parameters {
                if self.by_name.get(name).is_none_or(|fixed| fixed[axis].is_none()) {
                    self.spread.push((name.to_owned(), axis));
                }
                self.fix(name, axis, Placement::shard(0));
                self.constraints.stored.insert((v, axis));
            }
        }
        Ok(())
    }

    /// Fixes tables one after another, each as it makes the layout cheapest.
    fn tables(
        &mut self,
        (graph, forward): (&Graph, &Graph),
        axis: usize,
        costs: &Costs,
    ) -> Result<(), ShardingError> {
        let is_open = |name: &str| self.by_name.get(name).is_none_or(|fixed| fixed[axis].is_none());
        let tables = tables::find(forward, self.mesh, axis, is_open)?;
        if tables.is_empty() {
            return Ok(());
        }
        let clear = costs.link(axis).latency * CLEARLY;
        let mut least = tables::seconds(graph, self.mesh, &self.constraints(graph), costs);
        for (name, placements) in tables {
            let before = self.by_name.clone();
            let mut best: Option<(f64, BTreeMap<String, Fixed>)> = None;
            for placement in placements {
                self.fix(&name, axis, placement);
                let seconds = tables::seconds(graph, self.mesh, &self.constraints(graph), costs);
                let split = std::mem::replace(&mut self.by_name, before.clone());
                if seconds < least && best.as_ref().is_none_or(|(first, _)| seconds + clear < *first) {
                    best = Some((seconds, split));
                }
            }
            if let Some((seconds, split)) = best {
                (least, self.by_name) = (seconds, split);
            }
        }
        Ok(())
    }

    /// By value, with the optimizer's tensors as their parameters are.
    fn constraints(&self, graph: &Graph) -> Constraints {
        let mut by_name = self.by_name.clone();
        let mut constraints = self.constraints.clone();
        let named: BTreeMap<&str, ValueId> = graph.inputs().map(|(v, _, name)| (name, v)).collect();
        for (name, axis) in &self.spread {
            let (Some(fixed), Some(&v), axis) = (by_name.get_mut(name), named.get(name.as_str()), *axis)
            else {
                continue;
            };
            let sizes = graph.meta(v).and_then(|m| m.static_sizes()).unwrap_or_default();
            let dim = free_dim(fixed, axis, &sizes, self.mesh.axes()[axis].size as i64);
            fixed[axis] = Some(dim.map_or(Placement::Replicate, Placement::shard));
            if dim.is_none() {
                constraints.stored.remove(&(v, axis));
            }
        }
        by_name.values_mut().for_each(share_sections);
        for (&name, &v) in &named {
            let own = by_name.get(name);
            let of_parameter = || {
                let parameter = name.strip_prefix("optimizer/")?.split_once('/')?.1;
                let same = graph.meta(v)?.sizes == graph.meta(*named.get(parameter)?)?.sizes;
                by_name.get(parameter).filter(|_| same)
            };
            if let Some(fixed) = own.or_else(of_parameter) {
                constraints.values.insert(v, fixed.clone());
            }
        }
        constraints
    }
}

/// The first dimension that an axis may split so that an exchange over this axis alone makes it whole again: an axis behind it, and
/// sections, would split the parts of that dimension once more. Others than the first are split in equal parts alone.
fn free_dim(fixed: &Fixed, axis: usize, sizes: &[i64], ranks: i64) -> Option<usize> {
    let is_free = |dim: usize| {
        let others = fixed.iter().enumerate().filter(|(other, _)| *other != axis);
        let mut same =
            others.filter_map(|(n, p)| Some((n, p.as_ref()?))).filter(|(_, p)| p.dim() == Some(dim));
        same.all(|(other, p)| other < axis && p.sections().is_empty())
    };
    let splits = |(dim, size): &(usize, &i64)| *dim == 0 || (**size > 1 && **size % ranks == 0);
    sizes.iter().enumerate().filter(splits).map(|(dim, _)| dim).find(|dim| is_free(*dim))
}

/// Axes that split the same dimension split the same sections of it.
fn share_sections(fixed: &mut Fixed) {
    let in_sections = |p: &&Placement| !p.sections().is_empty();
    let Some(found) = fixed.iter().flatten().find(in_sections).cloned() else { return };
    let alike = fixed.iter_mut().flatten().filter(|p| p.dim() == found.dim());
    alike.for_each(|p| *p = found.clone());
}

/// Fixes placements on axes that are open.
fn fix_open(fixed: &mut Fixed, axes: &[(usize, Placement)]) {
    for (axis, placement) in axes {
        fixed[*axis].get_or_insert(placement.clone());
    }
}

/// Inputs with a batch along their first dimension: those of the caller that agree with the first one about its size.
fn batch_inputs(graph: &Graph) -> Vec<String> {
    let first = |v: ValueId| graph.meta(v).and_then(|m| m.sizes.first().cloned());
    let users = || graph.inputs().filter(|(_, kind, _)| *kind == InputKind::User);
    let Some(batch) = users().find_map(|(v, _, _)| first(v)).filter(|n| n.as_const() != Some(1)) else {
        return Vec::new();
    };
    users()
        .filter(|(v, _, _)| first(*v).as_ref() == Some(&batch))
        .map(|(_, _, name)| name.to_owned())
        .collect()
}

/// Whether a name fits a pattern, in which `*` stands for any text.
pub(crate) fn matches(pattern: &str, name: &str) -> bool {
    let Some((head, rest)) = pattern.split_once('*') else { return pattern == name };
    let Some(mut tail) = name.strip_prefix(head) else { return false };
    loop {
        if matches(rest, tail) {
            return true;
        }
        let mut chars = tail.chars();
        if chars.next().is_none() {
            return false;
        }
        tail = chars.as_str();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_whole_names() {
        assert!(matches("*.weight", "a.b.weight") && matches("a.*.b", "a.x.y.b") && matches("a", "a"));
        assert!(!matches("*.weight", "a.weight_g") && !matches("a", "ab") && !matches("a*b", "a"));
    }

    #[test]
    fn a_file_is_read() {
        let plan =
            Plan::parse("use = [\"ddp\", \"tp:auto@model\"]\n[placements]\n\"*.w\" = \"tp=S(1), dp=R\"\n")
                .expect("a plan");
        assert_eq!(plan.built_in.len(), 2);
        assert_eq!(plan.built_in[1].axis.as_deref(), Some("model"));
        assert_eq!(plan.placements[0].1[0], ("tp".to_owned(), Placement::shard(1)));
        assert_eq!(plan.batch_norm, BatchNorm::Whole);
        let plan = Plan::parse("use = [\"ddp\"]\nbatch_norm = \"rank\"\n").expect("a plan");
        assert_eq!(plan.batch_norm, BatchNorm::Rank);
        for wrong in [
            "use = [\"zero\"]",
            "[placements]\na = \"tp\"",
            "[placements]\na = \"tp=S(x)\"",
            "other = 1",
            "batch_norm = \"ranks\"",
            "use =",
        ] {
            assert!(Plan::parse(wrong).is_err(), "{wrong}");
        }
    }
}
