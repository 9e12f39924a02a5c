//! The walk that applies rules: once over the graph in order, every node with its operands replaced already.

use fx_ir::{Graph, NodeId, NodeKind, Uses, ValueId, ValueType};
use ir_core::{EntityId, TensorMeta};
use prims::{Builder, Call, OpError};

use super::{PassCx, Stats};

/// A rule: the value that takes the place of a call's only result, or `None` where the rule does not fit. What it
/// builds stands where the call stood.
pub(super) type Rule = fn(&mut Builder<'_>, &Site<'_>) -> Result<Option<ValueId>, OpError>;

/// The call that a rule looks at.
pub(super) struct Site<'a> {
    /// The call.
    pub(super) call: Call<'a>,
    /// Its result's type.
    pub(super) meta: &'a TensorMeta,
    /// What may be assumed.
    pub(super) cx: &'a PassCx,
    /// Reads of every value; a returned value has one more than there are.
    uses: &'a [u32],
    /// Whether each value depends on weights that do not change alone.
    constant: &'a [bool],
}

impl Site<'_> {
    /// Whether this call alone reads a value (or nobody but what was built in this pass).
    pub(super) fn reads_alone(&self, v: ValueId) -> bool {
        self.uses.get(v.index()).is_none_or(|&n| n <= 1)
    }
    /// How often a value is read, a returned one more often than it is.
    pub(super) fn reads(&self, v: ValueId) -> u32 {
        self.uses.get(v.index()).copied().unwrap_or(1)
    }
    /// Whether a value is the same in every call.
    pub(super) fn is_constant(&self, v: ValueId) -> bool {
        self.constant.get(v.index()).copied().unwrap_or(false)
    }
}

/// Applies the first rule that fits to every call with one tensor result, again to what it gave.
pub(super) fn apply(graph: &mut Graph, cx: &PassCx, rules: &[Rule]) -> Stats {
    let mut walk = Walk {
        replaced: graph.values.ids().map(|_| None).collect(),
        uses: uses(graph),
        constant: constants(graph, cx),
        rules,
        cx,
        stats: Stats::default(),
    };
    for id in std::mem::take(&mut graph.order) {
        walk.node(graph, id);
    }
    let new = |v: ValueId| walk.replaced.get(v.index()).copied().flatten().unwrap_or(v);
    for output in &mut graph.outputs {
        output.arg.for_each_value_mut(&mut |v| *v = new(*v));
    }
    if walk.stats.changed > 0 {
        prims::scalars::eliminate_dead(graph);
    }
    walk.stats
}

/// How often each value is read; what is returned counts once more than it is.
fn uses(graph: &Graph) -> Vec<u32> {
    let uses = Uses::of(graph);
    let count = |v| uses.users(v).len() as u32 + 2 * u32::from(uses.is_returned(v));
    graph.values.ids().map(count).collect()
}

/// For every value whether it depends on frozen weights alone.
pub(super) fn constants(graph: &Graph, cx: &PassCx) -> Vec<bool> {
    let mut constant = vec![false; graph.values.len()];
    if !cx.frozen {
        return constant;
    }
    let written = |name: &str| {
        graph.outputs.iter().any(|o| match &o.kind {
            fx_ir::OutputKind::BufferMutation(n) | fx_ir::OutputKind::InputMutation(n) => n == name,
            _ => false,
        })
    };
    for (_, node) in graph.iter() {
        let mut all = match &node.kind {
            NodeKind::Placeholder { kind, name } => match kind {
                fx_ir::InputKind::Parameter | fx_ir::InputKind::Constant => !written(name),
                fx_ir::InputKind::Buffer { .. } => !written(name),
                _ => false,
            },
            NodeKind::Call { .. } => true,
        };
        node.for_each_use(&mut |v| all &= constant[v.index()]);
        node.outputs.iter().for_each(|v| constant[v.index()] = all);
    }
    constant
}

/// Rules in a row at one place at most: each makes the graph simpler, so this is never reached.
const MAX_STEPS: usize = 16;

struct Walk<'r> {
    replaced: Vec<Option<ValueId>>,
    uses: Vec<u32>,
    constant: Vec<bool>,
    rules: &'r [Rule],
    cx: &'r PassCx,
    stats: Stats,
}

impl Walk<'_> {
    fn node(&mut self, graph: &mut Graph, id: NodeId) {
        let replaced = &self.replaced;
        if let NodeKind::Call { args, .. } = &mut graph.nodes[id].kind {
            let new = |v: &mut ValueId| *v = replaced.get(v.index()).copied().flatten().unwrap_or(*v);
            args.iter_mut().for_each(|a| a.for_each_value_mut(&mut |v| new(v)));
        }
        let Some(out) = self.only_result(graph, id) else {
            graph.order.push(id);
            return;
        };
        let mut at = id;
        let mut given: Option<ValueId> = None;
        for _ in 0..MAX_STEPS {
            let Some(v) = self.step(graph, at) else { break };
            given = Some(v);
            let def = graph.values[v].def;
            // What was there before has been looked at already.
            if graph.order.last() != Some(&def) || self.only_result(graph, def).is_none() {
                break;
            }
            at = def;
            // Where the next step finds something simpler still, this one is dead and erased.
        }
        match given {
            Some(v) => {
                self.replaced[out.index()] = Some(v);
                let more = self.uses[out.index()];
                if let Some(n) = self.uses.get_mut(v.index()) {
                    *n += more.saturating_sub(1);
                }
                self.stats.changed += 1;
            }
            None => graph.order.push(id),
        }
    }

    /// The only result of a call, where that is a tensor that may be looked into.
    fn only_result(&self, graph: &Graph, id: NodeId) -> Option<ValueId> {
        let node = &graph.nodes[id];
        let &[out] = &node.outputs[..] else { return None };
        let tensor = matches!(graph.values[out].ty, ValueType::Tensor(_));
        (node.as_call().is_some() && tensor && !self.cx.opaque.contains(&out)).then_some(out)
    }

    /// The first rule that fits.
    fn step(&mut self, graph: &mut Graph, id: NodeId) -> Option<ValueId> {
        let node = &graph.nodes[id];
        let (target, args) = node.as_call()?;
        let op = prims::lookup(target).filter(|op| op.is_prim())?;
        let (args, origin, out) = (args.to_vec(), node.origin, node.outputs[0]);
        let meta = graph.meta(out)?.clone();
        let name = graph.values[out].name.clone();
        for rule in self.rules {
            let site = Site {
                call: Call { op, args: &args },
                meta: &meta,
                cx: self.cx,
                uses: &self.uses,
                constant: &self.constant,
            };
            let before = graph.order.len();
            match rule(&mut Builder::new(graph, name.clone(), origin), &site) {
                Ok(Some(v)) if v != out && fits(graph, v, &meta) => return Some(v),
                // What a rule built and gave up must not stay.
                _ => graph.order.truncate(before),
            }
        }
        None
    }
}

/// Whether a replacement has dtype and sizes of what it replaces.
fn fits(graph: &Graph, v: ValueId, meta: &TensorMeta) -> bool {
    let fits = graph.meta(v).is_some_and(|m| m.dtype == meta.dtype && m.sizes == meta.sizes);
    debug_assert!(fits, "a rule gave {:?} for {meta}", graph.meta(v));
    fits
}
