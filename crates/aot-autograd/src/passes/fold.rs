//! Constant folding: what depends on no input is computed now, by the references of the prims, where the result can be
//! written down: every element one number (`prims.full`, of any size), or a small arithmetic progression of integers
//! (`prims.iota`). Graphs hold no other constants; the rest the backend computes once.

use fx_ir::{Arg, Graph, NodeKind, ValueId, ValueType};
use ir_core::{DType, EntityId, Scalar};
use kernel_ir::ScalarOp;
use prims::{Builder, Kind, OpError, RefArg, RefCall, Reference};
use rustc_hash::FxHashMap;
use tensor::Tensor;

use super::matching::uniform;
use super::rewrite::{Rule, Site, apply};
use super::{PassCx, Stats};

/// Elements of a result that is computed here.
const LARGEST: i64 = 64;

const RULES: &[Rule] = &[uniform_scalar, uniform_convert];

/// Folds what is one number everywhere, then what is small.
pub(super) fn run(graph: &mut Graph, cx: &PassCx) -> Stats {
    let uniform = apply(graph, cx, RULES);
    let small = small(graph, cx);
    Stats { changed: uniform.changed + small.changed }
}

type Given = Result<Option<ValueId>, OpError>;

/// `op(full(a), full(b)) = full(op(a, b))`.
fn uniform_scalar(b: &mut Builder<'_>, site: &Site<'_>) -> Given {
    let Some(op) = site.call.op.scalar_op() else { return Ok(None) };
    let numbers: Option<Vec<Scalar>> =
        site.call.args.iter().map(|a| uniform(b.graph(), a, &site.cx.opaque)).collect();
    let (Some(numbers), Some(dtype)) = (numbers, operand_dtype(b.graph(), op, site.call.args)) else {
        return Ok(None);
    };
    let compute = dtype.compute();
    let of = |n: Scalar| if n.class() == ir_core::Class::Bool { n } else { n.to_class_of(compute) };
    let n = op.eval(compute, &numbers.into_iter().map(of).collect::<Vec<_>>());
    b.full(&site.meta.sizes, n, site.meta.dtype).map(Some)
}

/// dtype of the operands (of the branches of a choice).
fn operand_dtype(graph: &Graph, op: ScalarOp, args: &[Arg]) -> Option<DType> {
    let first = usize::from(op == ScalarOp::Select);
    args.iter().skip(first).find_map(|a| match a {
        Arg::Value(v) => graph.meta(*v).map(|m| m.dtype),
        _ => None,
    })
}

/// `convert(full(a), t) = full(a as t)`.
fn uniform_convert(b: &mut Builder<'_>, site: &Site<'_>) -> Given {
    if site.call.op.target != "prims.convert" {
        return Ok(None);
    }
    let x = site.call.value("a")?;
    let Some(n) = uniform(b.graph(), &Arg::Value(x), &site.cx.opaque) else { return Ok(None) };
    let converted = Tensor::full(b.dtype(x)?, &[], n).and_then(|t| t.to_dtype(site.meta.dtype));
    match converted.ok().and_then(|t| t.item()) {
        Some(n) => b.full(&site.meta.sizes, n, site.meta.dtype).map(Some),
        None => Ok(None),
    }
}

/// Computes what is small and depends on nothing.
fn small(graph: &mut Graph, cx: &PassCx) -> Stats {
    let mut known: FxHashMap<ValueId, Tensor> = FxHashMap::default();
    let mut replaced: Vec<Option<ValueId>> = vec![None; graph.values.len()];
    let mut stats = Stats::default();
    for id in std::mem::take(&mut graph.order) {
        if let NodeKind::Call { args, .. } = &mut graph.nodes[id].kind {
            let new = |v: &mut ValueId| *v = replaced.get(v.index()).copied().flatten().unwrap_or(*v);
            args.iter_mut().for_each(|a| a.for_each_value_mut(&mut |v| new(v)));
        }
        graph.order.push(id);
        let &[out] = &graph.nodes[id].outputs[..] else { continue };
        if cx.opaque.contains(&out) {
            continue;
        }
        let Some(result) = evaluate(graph, out, &known) else { continue };
        match written_down(graph, out, &result) {
            Some(v) => {
                // It stands just before what replaces it.
                let last = graph.order.len() - 1;
                graph.order.swap_remove(last - 1);
                replaced[out.index()] = Some(v);
                stats.changed += 1;
                known.insert(v, result);
            }
            None => drop(known.insert(out, result)),
        }
    }
    for output in &mut graph.outputs {
        output.arg.for_each_value_mut(&mut |v| *v = replaced.get(v.index()).copied().flatten().unwrap_or(*v));
    }
    stats
}

/// The value, where it is small and all its operands are known.
fn evaluate(graph: &Graph, out: ValueId, known: &FxHashMap<ValueId, Tensor>) -> Option<Tensor> {
    let meta = graph.meta(out)?;
    let sizes: Vec<usize> = meta.static_sizes()?.into_iter().map(|s| s as usize).collect();
    if meta.numel().as_const()? > LARGEST || meta.dtype.is_complex() {
        return None;
    }
    let (target, args) = graph.nodes[graph.values[out].def].as_call()?;
    let op = prims::lookup(target)?;
    let Kind::Prim { reference, .. } = &op.def.kind else { return None };
    // Its operands may be large where its result is not; those are not known.
    let args: Vec<RefArg> = args.iter().map(|a| operand(a, known)).collect::<Option<_>>()?;
    let outs = [(meta.dtype, sizes)];
    match reference {
        Reference::Fn(f) => f(&RefCall { op, args: &args, outs: &outs }).ok()?.into_iter().next(),
        Reference::Scalar(scalar) => elementwise(*scalar, &args, &outs[0]),
    }
}

fn operand(arg: &Arg, known: &FxHashMap<ValueId, Tensor>) -> Option<RefArg> {
    Some(match arg {
        Arg::Value(v) => RefArg::Tensor(known.get(v)?.clone()),
        Arg::Int(e) => RefArg::Scalar(Scalar::Int(e.as_const()?)),
        Arg::Scalar(s) => RefArg::Scalar(*s),
        Arg::Str(s) => RefArg::Str(s.clone()),
        Arg::DType(d) => RefArg::DType(*d),
        Arg::List(items) => RefArg::List(items.iter().map(|a| operand(a, known)).collect::<Option<_>>()?),
        Arg::None => RefArg::None,
        _ => RefArg::Other,
    })
}

/// A scalar operator on integers and truth values; floats are folded where they are one number everywhere.
fn elementwise(op: ScalarOp, args: &[RefArg], out: &(DType, Vec<usize>)) -> Option<Tensor> {
    let first = usize::from(op == ScalarOp::Select);
    let dtype = args.iter().skip(first).find_map(|a| match a {
        RefArg::Tensor(t) => Some(t.dtype()),
        _ => None,
    })?;
    if !dtype.is_integral() {
        return None;
    }
    let numel: usize = out.1.iter().product();
    let list = |arg: &RefArg| match arg {
        RefArg::Tensor(t) => {
            Some(t.iter_i64().map(|i| Scalar::Int(i).to_class_of(t.dtype())).collect::<Vec<_>>())
        }
        RefArg::Scalar(s) => Some(vec![s.to_class_of(dtype); numel]),
        _ => None,
    };
    let lists: Vec<Vec<Scalar>> = args.iter().map(list).collect::<Option<_>>()?;
    if lists.iter().any(|l| l.len() != numel) {
        return None;
    }
    let at = |i: usize| op.eval(dtype, &lists.iter().map(|l| l[i]).collect::<Vec<_>>()).as_i64();
    let values: Vec<i64> = (0..numel).map(at).collect();
    Tensor::from_vec(values, &out.1).ok()?.to_dtype(out.0).ok()
}

/// A known value as `prims.full` or `prims.iota`, where it is one and not written so already.
fn written_down(graph: &mut Graph, out: ValueId, value: &Tensor) -> Option<ValueId> {
    let node = graph.values[out].def;
    let (target, _) = graph.nodes[node].as_call()?;
    if matches!(target, "prims.full" | "prims.iota") || value.numel() == 0 {
        return None;
    }
    let ValueType::Tensor(meta) = graph.values[out].ty.clone() else { return None };
    let name = graph.values[out].name.clone();
    let origin = graph.nodes[node].origin;
    let mut b = Builder::new(graph, name, origin);
    if let Some(n) = one_number(value) {
        return b.full(&meta.sizes, n, meta.dtype).ok();
    }
    let (start, step) = progression(value)?;
    let args = vec![meta.sizes[0].clone().into(), start.into(), step.into(), meta.dtype.into()];
    b.call1("prims.iota", args).ok()
}

/// The number that all elements are, bit for bit.
fn one_number(value: &Tensor) -> Option<Scalar> {
    let first = value.iter().next()?;
    value.iter().all(|x| x == first).then_some(first)
}

/// Start and step of integers in one dimension.
fn progression(value: &Tensor) -> Option<(i64, i64)> {
    if value.rank() != 1 || !value.dtype().is_int() {
        return None;
    }
    let list: Vec<i64> = value.iter_i64().collect();
    let step = list.get(1)?.checked_sub(list[0])?;
    list.windows(2).all(|w| w[1].checked_sub(w[0]) == Some(step)).then_some((list[0], step))
}

#[cfg(test)]
mod tests {
    use super::super::testing::{assert_unchanged, changes};
    use super::*;

    #[test]
    fn one_number_everywhere() {
        changes(
            run,
            &PassCx::default(),
            "%x: f32[9, 9] = input \"x\"\n\n%a: f32[9, 9] = prims.full([9, 9], 4.0, f32)\n%b: f32[9, 9] = prims.sqrt(%a)\n%c: f64[9, 9] = prims.convert(%b, f64)\n%d: f64[9, 9] = prims.mul(%c, 3.0)\nreturn %d",
            "prims.full",
        );
    }

    #[test]
    fn small_integers() {
        changes(
            run,
            &PassCx::default(),
            "%i: i64[4] = prims.iota(4, 0, 1, i64)\n%a: i64[4] = prims.mul(%i, 3)\n%b: i64[4] = prims.add(%a, 1)\nreturn %b",
            "prims.iota",
        );
        changes(
            run,
            &PassCx::default(),
            "%i: i64[4] = prims.iota(4, 0, 1, i64)\n%s: i64[] = prims.sum(%i, [0])\nreturn %s",
            "prims.full",
        );
        changes(
            run,
            &PassCx::default(),
            "%i: i64[4] = prims.iota(4, 0, 1, i64)\n%b: bool[4] = prims.lt(%i, 9)\nreturn %b",
            "prims.full",
        );
    }

    #[test]
    fn what_no_constant_can_hold_stays() {
        assert_unchanged(
            run,
            &PassCx::default(),
            "%i: i64[4] = prims.iota(4, 0, 1, i64)\n%a: i64[4] = prims.mul(%i, %i)\nreturn %a",
        );
    }

    #[test]
    fn opaque_values_are_not_folded() {
        let body = "%x: f32[2] = input \"x\"\n\n%o: f32[2] = prims.full([2], 1.0, f32)\n%a: f32[2] = prims.mul(%o, %o)\nreturn %a";
        let seed = ValueId(1);
        assert_unchanged(run, &PassCx { opaque: vec![seed], ..PassCx::default() }, body);
    }
}
