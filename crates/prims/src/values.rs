//! Checks the types that a captured graph states for its values against the operators' rules: every call is decomposed
//! separately, from operands of the stated types. Passes before the decomposition rely on the stated types (which views
//! share memory, how large they are), so a wrong one is found before them. The decomposition reports refused calls.

use fx_ir::{Arg, Graph, InputKind, Node, NodeKind, OriginId, ValueType};
use ir_core::TensorMeta;

use crate::decompose::{agree, is_recurrent, wrong_meta};
use crate::{Builder, DecomposeError, decompose_call, functional_of, lookup};

/// Checks every value of a graph and of its subgraphs against the rule of the operator that defines it.
///
/// # Errors
/// Every value whose stated type is wrong.
pub fn check_values(graph: &Graph) -> Result<(), Vec<DecomposeError>> {
    let mut errors = Vec::new();
    check_graph(graph, &graph.symbols, &mut errors);
    if errors.is_empty() { Ok(()) } else { Err(errors) }
}

fn check_graph(graph: &Graph, symbols: &fx_ir::Symbols, errors: &mut Vec<DecomposeError>) {
    graph.subgraphs.values().for_each(|sub| check_graph(sub, symbols, errors));
    for (id, node) in graph.iter() {
        let NodeKind::Call { target, args } = &node.kind else { continue };
        if lookup(target).or_else(|| functional_of(target)).is_none() {
            continue;
        }
        for (n, given) in results(graph, symbols, node, target, args).into_iter().enumerate() {
            let (Some(given), Some(&v)) = (given, node.outputs.get(n)) else { continue };
            let Some(stated) = graph.meta(v) else { continue };
            // Archives state wrong sizes for states of recurrent layers, and for those that nothing reads.
            if !agree(stated, &given) && !is_recurrent(target) && graph.is_read(v) {
                errors.push(DecomposeError {
                    node: graph.node_name(id).into(),
                    target: target.clone(),
                    origin: graph.origin(id).clone(),
                    error: wrong_meta(target, &given, stated),
                });
            }
        }
    }
}

/// The types by the operator's rule; `None` for those that are not tensors. Empty where it refuses the call.
fn results(
    graph: &Graph,
    symbols: &fx_ir::Symbols,
    node: &Node,
    target: &str,
    args: &[Arg],
) -> Vec<Option<TensorMeta>> {
    let mut scratch = Graph::new("scratch");
    scratch.symbols = symbols.clone();
    let mut args = args.to_vec();
    let mut first = None;
    for arg in &mut args {
        arg.for_each_value_mut(&mut |v| {
            let ty = graph.values.get(*v).map_or(ValueType::None, |value| value.ty.clone());
            first = first.take().or_else(|| ty.as_tensor().cloned());
            *v = scratch.placeholder(InputKind::User, "operand", "operand", ty);
        });
    }
    let mut b = Builder::new(&mut scratch, "value", OriginId(0));
    b.expect(node.outputs.iter().map(|v| graph.meta(*v).map(|m| m.dtype)));
    let Ok(outs) = decompose_call(&mut b, target, args) else { return Vec::new() };
    // A written value keeps its dtype, whatever promotion would give.
    let in_place = lookup(target).is_none();
    let one = |v: &fx_ir::ValueId| {
        let meta = scratch.meta(*v)?;
        Some(match &first {
            Some(written) if in_place => meta.with_dtype(written.dtype),
            _ => meta.clone(),
        })
    };
    outs.iter().map(one).collect()
}
