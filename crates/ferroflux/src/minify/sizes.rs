//! Smaller sizes: a number that occurs as a size becomes a smaller one wherever it occurs, and its multiples with it where
//! that alone does not fit. Whether the graph then still makes sense, its operators say: the interpreter must run it.

use fx_ir::{Arg, Graph, NodeKind, ValueType};
use interp::Bindings;
use ir_core::{SymExpr, TensorMeta};
use tensor::Tensor;

use super::{Case, Search};
use crate::Options;

/// Reduces as long as a size can be smaller. Symbolic sizes become numbers first; where it does not fail then, they stay.
pub(super) fn reduce(case: Case, search: &mut Search<'_>) -> Case {
    let numbers = concrete(&case).filter(|c| sensible(c) && search.fails(c));
    let mut best = numbers.unwrap_or(case);
    while let Some(smaller) = step(&best, search) {
        best = smaller;
        if search.is_spent() {
            break;
        }
    }
    best
}

/// The first case with a smaller size that fails.
fn step(case: &Case, search: &mut Search<'_>) -> Option<Case> {
    let mut sizes: Vec<i64> = Vec::new();
    for (_, node) in case.graph.iter() {
        for &v in &node.outputs {
            let meta = case.graph.meta(v);
            sizes.extend(meta.iter().flat_map(|m| m.sizes.iter()).filter_map(SymExpr::as_const));
        }
    }
    sizes.retain(|&n| n > 1);
    sizes.sort_unstable_by(|a, b| b.cmp(a));
    sizes.dedup();
    for &from in &sizes {
        let mut tried = Vec::new();
        for to in [1, 2, from / 2] {
            if to >= from || tried.contains(&to) {
                continue;
            }
            tried.push(to);
            for multiples in [false, true] {
                let found = resized(case, from, to, multiples).filter(|c| sensible(c) && search.fails(c));
                if found.is_some() {
                    return found;
                }
            }
        }
    }
    None
}

/// The case with the sizes of its tensors instead of symbols; `None` where it has none, or some that data determines.
fn concrete(case: &Case) -> Option<Case> {
    // Without symbols there is nothing to do.
    case.graph.symbols.iter().next()?;
    let mut known = Bindings::new();
    for (v, _, name) in case.graph.inputs() {
        let Some(tensor) = case.tensors.get(name) else { continue };
        match &case.graph.values[v].ty {
            ValueType::Tensor(meta) => {
                for (size, &n) in meta.sizes.iter().zip(tensor.sizes()) {
                    known.unify(size, i64::try_from(n).ok()?).ok()?;
                }
            }
            ValueType::Int(value) => {
                known.unify(value, tensor.item()?.as_i64()).ok()?;
            }
            _ => {}
        }
    }
    let mut new = case.clone();
    let mut all = true;
    bind_graph(&mut new.graph, &known, &mut all);
    new.graph.guards.clear();
    new.graph.symbols = fx_ir::Symbols::default();
    all.then_some(new)
}

/// Replaces symbols by their values; `all` becomes false where one has none.
fn bind_graph(graph: &mut Graph, known: &Bindings, all: &mut bool) {
    for inner in graph.subgraphs.iter_mut().map(|(_, g)| g) {
        bind_graph(inner, known, all);
    }
    let mut bind = |e: &mut SymExpr| {
        *e = known.subst(e);
        *all &= e.as_const().is_some();
    };
    for (_, value) in graph.values.iter_mut() {
        match &mut value.ty {
            ValueType::Tensor(meta) => {
                let parts = meta.sizes.iter_mut().chain(meta.strides.iter_mut());
                parts.chain(std::iter::once(&mut meta.offset)).for_each(&mut bind);
            }
            ValueType::Int(e) => bind(e),
            _ => {}
        }
    }
    for (_, node) in graph.nodes.iter_mut() {
        if let NodeKind::Call { args, .. } = &mut node.kind {
            args.iter_mut().for_each(|arg| bind_arg(arg, &mut bind));
        }
    }
}

fn bind_arg(arg: &mut Arg, bind: &mut dyn FnMut(&mut SymExpr)) {
    match arg {
        Arg::Int(e) => bind(e),
        Arg::List(items) => items.iter_mut().for_each(|item| bind_arg(item, bind)),
        _ => {}
    }
}

/// Whether the interpreter runs it.
fn sensible(case: &Case) -> bool {
    case.run(&Options::new().backend("eager").seed(0)).is_ok()
}

/// The case with the size `to` for `from`.
fn resized(case: &Case, from: i64, to: i64, multiples: bool) -> Option<Case> {
    let new = |n: i64| match n {
        n if n == from => to,
        n if multiples && n > from && n % from == 0 => n / from * to,
        n => n,
    };
    let mut small = case.clone();
    resize_graph(&mut small.graph, &new);
    for (v, _, name) in small.graph.inputs() {
        let (Some(meta), Some(tensor)) = (small.graph.meta(v), small.tensors.get_mut(name)) else { continue };
        let sizes: Option<Vec<usize>> =
            meta.sizes.iter().map(|s| usize::try_from(s.as_const()?).ok()).collect();
        // A symbolic tensor keeps its size.
        if let Some(sizes) = sizes {
            *tensor = corner(tensor, &sizes)?;
        }
    }
    Some(small)
}

/// The first elements along every dimension.
fn corner(tensor: &Tensor, sizes: &[usize]) -> Option<Tensor> {
    let mut part = tensor.clone();
    for (dim, &size) in sizes.iter().enumerate() {
        if *part.sizes().get(dim)? != size {
            part = part.narrow(dim, 0, size).ok()?;
        }
    }
    part.copied().ok()
}

fn resize_graph(graph: &mut Graph, new: &dyn Fn(i64) -> i64) {
    for inner in graph.subgraphs.iter_mut().map(|(_, g)| g) {
        resize_graph(inner, new);
    }
    let size = |s: &SymExpr| s.as_const().map_or_else(|| s.clone(), |n| SymExpr::from_i64(new(n)));
    for (_, value) in graph.values.iter_mut() {
        if let ValueType::Tensor(meta) = &mut value.ty {
            let sizes: Vec<SymExpr> = meta.sizes.iter().map(size).collect();
            if sizes.iter().ne(meta.sizes.iter()) {
                *meta = TensorMeta::contiguous(meta.dtype, sizes);
            }
        }
    }
    for (_, node) in graph.nodes.iter_mut() {
        if let NodeKind::Call { args, .. } = &mut node.kind {
            args.iter_mut().for_each(|arg| resize_arg(arg, new, true));
        }
    }
}

/// Lists of numbers are sizes more often than single numbers are; of those only large ones are taken for sizes.
fn resize_arg(arg: &mut Arg, new: &dyn Fn(i64) -> i64, alone: bool) {
    match arg {
        Arg::Int(e) => {
            if let Some(n) = e.as_const().filter(|n| !alone || *n > 8) {
                *e = SymExpr::from_i64(new(n));
            }
        }
        Arg::List(items) => items.iter_mut().for_each(|item| resize_arg(item, new, false)),
        _ => {}
    }
}
