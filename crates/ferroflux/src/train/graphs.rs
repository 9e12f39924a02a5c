//! The pipeline of training as a list: captured → functional → prims → joint → two halves.

use aot_autograd::{JointGraph, JointOptions, Partition, Tangents, Wrt};
use fx_ir::{Arg, Graph, InputKind, NodeKind, OutputKind, ValueId};
use tracing::info_span;

use crate::{Error, Program};

/// What to differentiate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiffOptions {
    pub(crate) wrt: Wrt,
    pub(crate) tangents: Tangents,
    pub(crate) loss: Option<usize>,
}

impl Default for DiffOptions {
    fn default() -> DiffOptions {
        DiffOptions::new()
    }
}

impl DiffOptions {
    /// The gradients of the loss with respect to the parameters.
    pub fn new() -> DiffOptions {
        DiffOptions { wrt: Wrt::Parameters, tangents: Tangents::Loss, loss: None }
    }
    /// With respect to what.
    pub fn wrt(mut self, wrt: Wrt) -> DiffOptions {
        self.wrt = wrt;
        self
    }
    /// The caller gives a cotangent for every differentiable output, as the argument of `Saved::backward`.
    pub fn tangents(mut self) -> DiffOptions {
        self.tangents = Tangents::Placeholders;
        self
    }
    /// Which of the returned tensors is the loss; not needed where the program marks one or returns one alone.
    pub fn loss(mut self, output: usize) -> DiffOptions {
        self.loss = Some(output);
        self
    }
}

impl Program {
    /// Forward and backward in one graph of prims, unoptimized, as `ferroflux graph --stage joint` shows it.
    ///
    /// # Errors
    /// All calls that have no gradient where one is needed; a program without a loss.
    pub fn joint(&self, options: &DiffOptions) -> Result<JointGraph, Error> {
        joint(marked(self.prims()?, options.loss)?, options)
    }

    /// The forward graph, which also returns what it saves, and the backward graph.
    pub fn partition(&self, options: &DiffOptions) -> Result<Partition, Error> {
        Ok(split(&self.joint(options)?))
    }
}

/// The graph with this output for the user as its loss.
pub(crate) fn marked(mut prims: Graph, loss: Option<usize>) -> Result<Graph, Error> {
    let Some(loss) = loss else { return Ok(prims) };
    let visible = |o: &fx_ir::Output| {
        matches!(o.kind, OutputKind::User | OutputKind::Loss) && matches!(o.arg, Arg::Value(_))
    };
    let count = prims.outputs.iter().filter(|o| visible(o)).count();
    for (n, output) in prims.outputs.iter_mut().filter(|o| visible(o)).enumerate() {
        output.kind = if n == loss { OutputKind::Loss } else { OutputKind::User };
    }
    if loss >= count {
        return Err(Error::NoSuchLoss { output: loss, count });
    }
    Ok(prims)
}

/// Prims to joint.
pub(crate) fn joint(prims: Graph, options: &DiffOptions) -> Result<JointGraph, Error> {
    let _span = info_span!("joint graph").entered();
    let options = JointOptions { wrt: options.wrt.clone(), tangents: options.tangents };
    aot_autograd::joint(&prims, &options).map_err(Error::Joint)
}

/// Joint to two halves.
pub(crate) fn split(joint: &JointGraph) -> Partition {
    let _span = info_span!("partition").entered();
    aot_autograd::partition(joint)
}

/// Makes placeholders inputs of every call, which the compiler would otherwise take for constants.
pub(crate) fn per_call(graph: &mut Graph, wanted: &dyn Fn(ValueId, InputKind, &str) -> bool) {
    for id in graph.order.clone() {
        let node = &mut graph.nodes[id];
        if let (NodeKind::Placeholder { kind, name }, Some(&v)) = (&mut node.kind, node.outputs.first())
            && wanted(v, *kind, name)
        {
            *kind = InputKind::User;
        }
    }
}

/// Names of the buffers and parameters that a graph gives new values.
pub(crate) fn written(graph: &Graph) -> Vec<&str> {
    let names = graph.outputs.iter().map(|o| match &o.kind {
        OutputKind::BufferMutation(name) => Some(name.as_str()),
        _ => None,
    });
    names.flatten().collect()
}

/// The joint graph of a loss; with a placeholder for the loss's cotangent where it is scaled.
pub(crate) fn joint_for_loss(mut prims: Graph, options: &DiffOptions, scaled: bool) -> Result<JointGraph, Error> {
    if !scaled {
        return joint(prims, options);
    }
    let users = |o: &fx_ir::Output| o.kind == OutputKind::User;
    let has_loss = prims.outputs.iter().any(|o| o.kind == OutputKind::Loss);
    if !has_loss && prims.outputs.iter().filter(|o| users(o)).count() != 1 {
        return Err(Error::Joint(aot_autograd::JointError::NoLoss));
    }
    // What the caller does not see has no cotangent: the loss alone is seen meanwhile.
    let kinds: Vec<OutputKind> = prims.outputs.iter().map(|o| o.kind.clone()).collect();
    if has_loss {
        prims.outputs.iter_mut().filter(|o| o.kind == OutputKind::User).for_each(|o| o.kind = OutputKind::Saved);
    }
    let mut made = joint(prims, &DiffOptions { tangents: Tangents::Placeholders, ..options.clone() })?;
    made.graph.outputs.iter_mut().zip(kinds).for_each(|(o, kind)| o.kind = kind);
    Ok(made)
}

/// The placeholder of the only cotangent, where there is one.
pub(crate) fn loss_tangent(joint: &JointGraph) -> Option<ValueId> {
    joint.tangents.iter().flatten().next().copied()
}
