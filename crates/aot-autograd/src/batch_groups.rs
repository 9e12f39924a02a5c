//! Batch norm in groups: a functional graph in which every batch norm in training mode normalises each of several equal groups
//! of consecutive samples by the group's own mean and variance (`ferroflux::batch_norm_in_groups`), as PyTorch's
//! `DistributedDataParallel` does where every rank has a group. It is a meaning of the program, the same on one device and on
//! any mesh, and stands before decomposition, so that gradients follow by ordinary differentiation.
//!
//! Running statistics are those of the first group: PyTorch's ranks each update their own, and those of rank 0 are broadcast
//! at the next forward and saved.
//!
//! Not here: how many groups there are (the facade knows the mesh), where they lie (`sharding`), and instance norm, whose
//! statistics are each sample's already.

use fx_ir::{Arg, Graph, Node, NodeId, OriginId, Uses, ValueId, ValueType};
use ir_core::{DType, Origin, Scalar, Shape, SymExpr, TensorMeta};
use rustc_hash::FxHashMap;
use thiserror::Error;

/// With running statistics, and without.
const TRACKED: &str = "ferroflux.batch_norm_in_groups.default";
const UNTRACKED: &str = "ferroflux.batch_norm_in_groups.no_stats";
/// Results of the form without running statistics; those of the other form follow.
const RESULTS: usize = 3;
const NAMES: [&str; 5] = ["y", "saved_mean", "saved_rstd", "running_mean", "running_var"];

/// A batch norm whose batch cannot be split into groups.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("node `{node}` ({target}{}): {problem}", place(origin))]
pub struct BatchGroupsError {
    /// Name of the node.
    pub node: String,
    /// Its operator.
    pub target: String,
    /// Where it comes from.
    pub origin: Box<Origin>,
    /// Why.
    pub problem: BatchGroupsProblem,
}

fn place(origin: &Origin) -> String {
    let text = origin.to_string();
    if text.is_empty() { text } else { format!(", from {text}") }
}

/// Why a batch cannot be split into groups.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum BatchGroupsProblem {
    /// The size of the batch is a number, and no multiple.
    #[error(
        "a batch of {batch} samples is not divisible into {groups} groups: choose another size of the batch, or `whole` statistics"
    )]
    Indivisible {
        /// Samples.
        batch: i64,
        /// Groups.
        groups: u32,
    },
    /// The size of the batch is an expression of symbols that is a multiple only for some of their values.
    #[error(
        "a batch of {batch} samples is not divisible into {groups} groups for all sizes that the model was exported for: export it with a fixed batch, or one that is a multiple (`{groups} * Dim(…)`)"
    )]
    Undecided {
        /// Samples.
        batch: String,
        /// Groups.
        groups: u32,
    },
    /// The input has no dimensions of samples and channels.
    #[error("its input is {0}: a batch in groups is `[N, C, …]`")]
    Shape(String),
    /// Something reads the reserve of cuDNN's backward, which no group has.
    #[error("its reserve is read, which batch norm in groups does not have")]
    Reserve,
}

/// The program in which batch norms of training have the statistics of each of this many groups; as it is for one group.
/// Bodies of control flow included.
///
/// # Errors
/// Every batch norm whose batch `N` is not, or not for all sizes, divisible by the number of groups.
pub fn batch_groups(graph: &Graph, groups: u32) -> Result<Graph, Vec<BatchGroupsError>> {
    let mut grouped = graph.clone();
    let mut errors = Vec::new();
    if groups > 1 {
        rewrite(&mut grouped, groups, &mut errors);
    }
    unmark(&mut grouped);
    if errors.is_empty() { Ok(grouped) } else { Err(errors) }
}

fn rewrite(graph: &mut Graph, groups: u32, errors: &mut Vec<BatchGroupsError>) {
    let mut subgraphs = std::mem::take(&mut graph.subgraphs);
    subgraphs.iter_mut().for_each(|(_, body)| rewrite(body, groups, errors));
    graph.subgraphs = subgraphs;
    let mut renamed: FxHashMap<ValueId, ValueId> = FxHashMap::default();
    let uses = Uses::of(graph);
    for id in std::mem::take(&mut graph.order) {
        let node = graph.nodes[id].clone();
        let norm = node.as_call().and_then(|(target, args)| Norm::of(target, args));
        let Some(norm) = norm.filter(|_| !is_of_instances(graph.origin(id))) else {
            graph.order.push(id);
            continue;
        };
        let lacks = |(v, new): (&ValueId, &Option<usize>)| new.is_none() && !uses.is_dead(*v);
        let made = match node.outputs.iter().zip(norm.results).any(lacks) {
            true => Err(BatchGroupsProblem::Reserve),
            false => replaced(graph, (id, &node), &norm, groups),
        };
        match made {
            Ok(values) => renamed.extend(values),
            Err(problem) => {
                let target = node.as_call().map_or("", |(target, _)| target).to_owned();
                let (node, origin) = (graph.node_name(id).to_owned(), Box::new(graph.origin(id).clone()));
                errors.push(BatchGroupsError { node, target, origin, problem });
            }
        }
    }
    graph.map_uses(&|v| renamed.get(&v).copied().unwrap_or(v));
}

/// Forgets which batch norms are of instances, so that the text of a graph for plugins needs no newer version than without.
fn unmark(graph: &mut Graph) {
    graph.origins.iter_mut().filter(|(_, o)| is_of_instances(o)).for_each(|(_, o)| o.operator.clear());
    graph.subgraphs.iter_mut().for_each(|(_, body)| unmark(body));
}

/// Whether the call is what functionalization makes of an instance norm.
fn is_of_instances(origin: &Origin) -> bool {
    origin.operator.starts_with("aten.instance_norm.")
}

/// A batch norm in training mode: its arguments, and for each result that of the norm in groups.
struct Norm {
    /// Input, weight and bias.
    operands: Vec<Arg>,
    /// Running mean and variance.
    running: Option<Vec<Arg>>,
    momentum: Arg,
    eps: Arg,
    results: &'static [Option<usize>],
}

impl Norm {
    /// Reads a call of any of the operators that a functional graph may have.
    fn of(target: &str, args: &[Arg]) -> Option<Norm> {
        const ALL: &[Option<usize>] = &[Some(0), Some(1), Some(2), Some(3), Some(4)];
        const RESERVED: &[Option<usize>] = &[Some(0), Some(1), Some(2), None, Some(3), Some(4)];
        // The places of the truth value for training, of the momentum and of eps.
        let (training, momentum, eps, results) = match target {
            "aten.batch_norm.default"
            | "aten.native_batch_norm.default"
            | "aten._native_batch_norm_legit_functional.default" => (Some(5), 6, 7, ALL),
            "aten._native_batch_norm_legit.no_stats" => (Some(3), 4, 5, ALL),
            "aten._batch_norm_with_update_functional.default" => (None, 5, 6, RESERVED),
            _ => return None,
        };
        let on = |at: usize| args.get(at).and_then(Arg::as_scalar).is_some_and(Scalar::as_bool);
        let running = args.get(3..5).filter(|r| r.iter().all(|s| matches!(s, Arg::Value(_))));
        training.is_none_or(on).then_some(Norm {
            operands: args.get(..3)?.to_vec(),
            running: running.map(<[Arg]>::to_vec),
            momentum: args.get(momentum)?.clone(),
            eps: args.get(eps)?.clone(),
            results,
        })
    }
}

/// Appends the norm in groups; returns for each result of the old call the new one.
fn replaced(
    graph: &mut Graph,
    (id, node): (NodeId, &Node),
    norm: &Norm,
    groups: u32,
) -> Result<Vec<(ValueId, ValueId)>, BatchGroupsProblem> {
    let input = graph_meta(graph, norm.operands.first()).cloned();
    let input = input.ok_or_else(|| BatchGroupsProblem::Shape("no tensor".into()))?;
    let channels = channels(graph, &input.sizes, groups)?;
    let mut args = norm.operands.clone();
    args.extend(norm.running.iter().flatten().cloned());
    args.push(i64::from(groups).into());
    args.extend(norm.running.as_ref().map(|_| norm.momentum.clone()));
    args.push(norm.eps.clone());
    let (target, count) = match norm.running {
        Some(_) => (TRACKED, NAMES.len()),
        None => (UNTRACKED, RESULTS),
    };
    // Where the old call does not state the statistics' dtype they are kept in that of the parameters, as it keeps them.
    let kept = graph_meta(graph, norm.operands.get(1)).map_or(input.dtype, |m| m.dtype);
    let mut types: Vec<ValueType> =
        (0..count).map(|n| new_type(graph, norm, (n, kept), &input, &channels)).collect();
    let mut names: Vec<String> = NAMES[..count].iter().map(|n| (*n).to_owned()).collect();
    for (&old, new) in node.outputs.iter().zip(norm.results) {
        if let Some(new) = new.filter(|n| *n < count) {
            types[new] = graph.values[old].ty.clone();
            names[new].clone_from(&graph.values[old].name);
        }
    }
    let origin = with_operator(graph, id);
    let outs = graph.call(target, args, names.iter().map(String::as_str).zip(types), origin);
    let pairs = node.outputs.iter().zip(norm.results);
    Ok(pairs.filter_map(|(&old, new)| Some((old, *outs.get((*new)?)?))).collect())
}

fn graph_meta<'g>(graph: &'g Graph, arg: Option<&Arg>) -> Option<&'g TensorMeta> {
    match arg? {
        Arg::Value(v) => graph.meta(*v),
        _ => None,
    }
}

/// The channels of `[N, C, …]` whose batch is divisible into groups.
fn channels(graph: &Graph, sizes: &Shape, groups: u32) -> Result<SymExpr, BatchGroupsProblem> {
    let [batch, channels, ..] = &sizes[..] else {
        return Err(BatchGroupsProblem::Shape(graph.sizes_text(sizes)));
    };
    let count = SymExpr::from_i64(groups.into());
    match batch.as_const() {
        Some(batch) if batch % i64::from(groups) != 0 => {
            Err(BatchGroupsProblem::Indivisible { batch, groups })
        }
        None if batch.floor_div(&count) * &count != *batch => {
            Err(BatchGroupsProblem::Undecided { batch: graph.size_text(batch), groups })
        }
        _ => Ok(channels.clone()),
    }
}

/// The type of a result that the old call does not have.
fn new_type(
    graph: &Graph,
    norm: &Norm,
    (result, kept): (usize, DType),
    input: &TensorMeta,
    channels: &SymExpr,
) -> ValueType {
    let running = result.checked_sub(RESULTS).and_then(|n| norm.running.as_ref()?.get(n));
    let meta = match (result, graph_meta(graph, running)) {
        (0, _) => input.clone(),
        (_, Some(running)) => running.clone(),
        _ => {
            let kept = TensorMeta::contiguous(kept, [channels.clone()]);
            TensorMeta { device: input.device.clone(), ..kept }
        }
    };
    ValueType::Tensor(meta)
}

/// The origin of a call that is one of the user's program in another form.
fn with_operator(graph: &mut Graph, id: NodeId) -> OriginId {
    let mut origin = graph.origin(id).clone();
    if origin.operator.is_empty() {
        origin.operator = graph.nodes[id].as_call().map_or("", |(target, _)| target).to_owned();
    }
    graph.add_origin(origin)
}
