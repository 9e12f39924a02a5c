//! Gradients through control flow: the backward of a `cond` is a `cond` of the branches' backwards, that of a `scan` (and
//! of a `map`, which carries nothing) a `scan` from the last turn to the first. Each body's backward is its own joint
//! graph, so bodies may nest.
//!
//! A `scan` keeps what every turn was given; everything within a turn is computed anew. An `associative_scan` goes back as
//! the `scan` that it is, from its last result to its first. A `while_loop` is refused, as
//! PyTorch refuses it: nobody knows beforehand how many turns there are values to keep of. So are bodies that bind a size
//! from data, for a symbol is bound by one call alone.

use fx_ir::{
    Arg, Graph, InputKind, NodeId, NodeKind, OriginId, Output, OutputKind, SubgraphId, Value, ValueId,
    ValueType,
};
use ir_core::{Scalar, SymExpr, TensorMeta};
use prims::{Builder, OpError};

use super::{GradProblem, JointOptions, Pass, Tangents, Wrt, joint};

/// Whether a call runs subgraphs.
pub(super) fn is_control(target: &str) -> bool {
    target.starts_with("higher_order.")
}

/// The backward of a body under construction.
struct Vjp {
    graph: Graph,
    /// The body's placeholders.
    own: Vec<ValueId>,
    /// One placeholder for each result that has a cotangent.
    tangents: Vec<ValueId>,
    /// One gradient for each placeholder that was asked for.
    gradients: Vec<ValueId>,
}

impl Vjp {
    /// The finished graph: its placeholders and results in this order.
    fn finish(mut self, placeholders: &[ValueId], results: &[ValueId]) -> Graph {
        let graph = &mut self.graph;
        let calls = graph.order.iter().copied().filter(|id| graph.nodes[*id].as_call().is_some());
        let order = placeholders.iter().map(|v| graph.values[*v].def).chain(calls).collect();
        graph.order = order;
        let user = |v: &ValueId| Output { kind: OutputKind::User, arg: Arg::Value(*v) };
        graph.outputs = results.iter().map(user).collect();
        prims::scalars::eliminate_dead(graph);
        self.graph
    }
}

/// A call of control flow and what flows back into it.
struct Site<'a> {
    id: NodeId,
    origin: OriginId,
    name: String,
    outputs: &'a [ValueId],
    cotangents: &'a [Option<ValueId>],
}

impl Pass {
    /// Passes the cotangents of a control flow call's results on to its operands.
    pub(super) fn control(
        &mut self,
        forward: &Graph,
        id: NodeId,
        cotangents: &[Option<ValueId>],
    ) -> Result<(), GradProblem> {
        let node = &forward.nodes[id];
        let NodeKind::Call { target, args } = &node.kind else { return Ok(()) };
        let name = format!("{}_grad", forward.node_name(id));
        let site = Site { id, origin: node.origin, name, outputs: &node.outputs, cotangents };
        let one = std::slice::from_ref;
        match (target.trim_start_matches("higher_order."), &args[..]) {
            ("cond", [pred, Arg::Graph(yes), Arg::Graph(no), rest @ ..]) => {
                self.cond(&site, pred, [*yes, *no], &flat(rest))
            }
            ("map" | "map_impl", [Arg::Graph(body), xs, rest @ ..]) => {
                self.scan(&site, *body, [Vec::new(), flat(one(xs)), flat(rest)])
            }
            ("scan", [Arg::Graph(body), carried, xs, rest @ ..]) => {
                self.scan(&site, *body, [flat(one(carried)), flat(one(xs)), flat(rest)])
            }
            ("associative_scan", [Arg::Graph(body), xs, rest @ ..]) => {
                self.associative(&site, *body, &flat(one(xs)), &flat(rest))
            }
            ("while_loop", _) => Err(GradProblem::Control(
                "has no gradient, for only running tells how many turns it takes: use `scan` over a fixed number of them, or \
                 detach what it reads",
            )),
            _ => Err(GradProblem::Control("has no gradient: detach what it reads")),
        }
    }

    fn cond(
        &mut self,
        site: &Site<'_>,
        pred: &Arg,
        branches: [SubgraphId; 2],
        operands: &[Arg],
    ) -> Result<(), GradProblem> {
        let wanted = self.wanted(operands);
        let outs: Vec<usize> = (0..site.outputs.len()).filter(|n| site.cotangents[*n].is_some()).collect();
        let mut graphs = Vec::new();
        for branch in branches {
            let vjp = self.vjp(branch, &outs, &wanted)?;
            let placeholders: Vec<ValueId> = vjp.own.iter().chain(&vjp.tangents).copied().collect();
            let results = vjp.gradients.clone();
            graphs.push(Arg::Graph(self.graph.subgraphs.push(vjp.finish(&placeholders, &results))));
        }
        let mut given = operands.to_vec();
        given.extend(site.cotangents.iter().flatten().map(|v| Arg::Value(*v)));
        let types = wanted.iter().filter_map(|n| self.fresh_type(&operands[*n])).collect();
        let mut args = vec![pred.clone()];
        args.extend(graphs);
        args.push(Arg::List(given));
        let made = self.append(site, "higher_order.cond", args, types);
        self.give(site, wanted.iter().map(|n| &operands[*n]), &made)
    }

    /// The operands `[carried, xs, fixed]` are each a list.
    fn scan(
        &mut self,
        site: &Site<'_>,
        body: SubgraphId,
        operands: [Vec<Arg>; 3],
    ) -> Result<(), GradProblem> {
        let [init, xs, fixed] = &operands;
        let carried = init.len();
        let length = xs.first().and_then(|x| self.meta_of(x)).and_then(|m| m.sizes.first().cloned());
        let length = length.ok_or(GradProblem::Control("goes over nothing"))?;
        let inexact = |pass: &Pass, a: &Arg| pass.meta_of(a).is_some_and(|m| m.dtype.is_inexact());
        // Every carry has a cotangent, as the body may put the one into the other.
        let carries: Vec<usize> = (0..carried).filter(|n| inexact(self, &init[*n])).collect();
        let (of_xs, of_fixed) = (self.wanted(xs), self.wanted(fixed));
        let ys = (carried..site.outputs.len()).filter(|n| site.cotangents[*n].is_some());
        let outs: Vec<usize> = carries.iter().copied().chain(ys).collect();
        let wanted = carries.iter().copied().chain(of_xs.iter().map(|n| carried + n));
        let wanted: Vec<usize> = wanted.chain(of_fixed.iter().map(|n| carried + xs.len() + n)).collect();

        let vjp = self.vjp(body, &outs, &wanted)?;
        let backward_iteration = backward_iteration(vjp, [carries.len(), of_xs.len()], [carried, xs.len()])?;
        let backward_iteration = Arg::Graph(self.graph.subgraphs.push(backward_iteration));
        let kept = self.keep_carries(site, body, init, &length)?;

        let mut first = Vec::new();
        for &n in &carries {
            first.push(self.result_cotangent(site, n, &init[n])?);
        }
        for &n in &of_fixed {
            first.push(self.zeros(site, &fixed[n])?);
        }
        let ys = outs[carries.len()..].iter().filter_map(|n| site.cotangents[*n]).map(Arg::Value);
        let mut slices: Vec<Arg> =
            kept.into_iter().map(Arg::Value).chain(xs.iter().cloned()).chain(ys).collect();
        if carried > 0 {
            for x in &mut slices {
                *x = self.flipped(site, x)?;
            }
        }
        let of = carries.iter().map(|n| &init[*n]).chain(of_fixed.iter().map(|n| &fixed[*n]));
        let of: Vec<&Arg> = of.chain(of_xs.iter().map(|n| &xs[*n])).collect();
        let types = of.iter().filter_map(|a| self.fresh_type(a)).collect();
        let args = vec![backward_iteration, Arg::List(first), Arg::List(slices), Arg::List(fixed.clone())];
        let mut made = self.append(site, "higher_order.scan", args, types);
        if carried > 0 {
            for v in made.iter_mut().skip(carries.len() + of_fixed.len()) {
                if let Arg::Value(flipped) = self.flipped(site, &Arg::Value(*v))? {
                    *v = flipped;
                }
            }
        }
        self.give(site, of.into_iter(), &made)
    }

    /// Results are the carries of a scan that begins with the first elements, so nothing more has to be kept. The backward
    /// carries the whole cotangent of a result from the last one to the first, whose own it is in the end:
    /// `(d y[t - 1], d x[t]) = vjp(y[t - 1], x[t], d y[t])`, and `d x[0] = d y[0]`.
    fn associative(
        &mut self,
        site: &Site<'_>,
        body: SubgraphId,
        xs: &[Arg],
        fixed: &[Arg],
    ) -> Result<(), GradProblem> {
        let n = xs.len();
        let length = xs.first().and_then(|x| self.meta_of(x)).and_then(|m| m.sizes.first().cloned());
        let length = length.ok_or(GradProblem::Control("goes over nothing"))?;
        let inexact = |a: &Arg| self.meta_of(a).is_some_and(|m| m.dtype.is_inexact());
        let own: Vec<usize> = (0..n).filter(|k| inexact(&xs[*k])).collect();
        let of_fixed = self.wanted(fixed);
        let wanted = own.iter().copied().chain(own.iter().map(|k| n + k));
        let wanted: Vec<usize> = wanted.chain(of_fixed.iter().map(|k| 2 * n + k)).collect();
        let vjp = self.vjp(body, &own, &wanted)?;
        let backward_iteration = iteration_results(vjp, own.len(), 2 * n)?;
        let backward_iteration = Arg::Graph(self.graph.subgraphs.push(backward_iteration));

        let mut cotangents = Vec::new();
        for &k in &own {
            cotangents.push(self.result_cotangent(site, k, &xs[k])?);
        }
        // All but the last one, and all but the first.
        let others = &length - 1;
        let (before, after) = ((SymExpr::ZERO, others.clone()), (SymExpr::ONE, others.clone()));
        let mut first = Vec::new();
        for g in &cotangents {
            first.push(self.part(site, g, (others.clone(), SymExpr::ONE), true)?);
        }
        for &k in &of_fixed {
            first.push(self.zeros(site, &fixed[k])?);
        }
        let results: Vec<Arg> = site.outputs[..n].iter().map(|v| Arg::Value(*v)).collect();
        let parts = results.iter().map(|y| (y, before.clone()));
        let parts = parts.chain(xs.iter().map(|x| (x, after.clone())));
        let parts: Vec<(&Arg, (SymExpr, SymExpr))> =
            parts.chain(cotangents.iter().map(|g| (g, before.clone()))).collect();
        let mut slices = Vec::new();
        for (v, range) in parts {
            let part = self.part(site, v, range, false)?;
            slices.push(self.flipped(site, &part)?);
        }
        let carried = own.iter().map(|k| first_of(self.meta_of(&xs[*k])));
        let types = carried.chain(of_fixed.iter().map(|k| self.fresh_type(&fixed[*k])));
        let stacked: Vec<&Arg> = slices[n..].iter().collect();
        let types = types.chain(own.iter().map(|k| self.fresh_type(stacked[*k])));
        let types: Vec<ValueType> = types.flatten().collect();
        let args =
            vec![backward_iteration, Arg::List(first), Arg::List(slices.clone()), Arg::List(fixed.to_vec())];
        let made = self.append(site, "higher_order.scan", args, types);
        self.give(site, of_fixed.iter().map(|k| &fixed[*k]), &made[own.len()..])?;
        for (at, &k) in own.iter().enumerate() {
            let rest = self.flipped(site, &Arg::Value(made[own.len() + of_fixed.len() + at]))?;
            let mut b = Builder::new(&mut self.graph, site.name.clone(), site.origin);
            let head = b.unsqueeze(made[at], 0)?;
            let list = Arg::List(vec![head.into(), rest]);
            let gradient = b.call1("aten.cat.default", vec![list, 0i64.into()])?;
            self.give(site, std::iter::once(&xs[k]), &[gradient])?;
        }
        Ok(())
    }

    /// `count` slices of dimension 0 from `start`; of a single one the slice itself.
    fn part(
        &mut self,
        site: &Site<'_>,
        v: &Arg,
        (start, count): (SymExpr, SymExpr),
        single: bool,
    ) -> Result<Arg, GradProblem> {
        let Arg::Value(v) = v else { return Err(GradProblem::NotPrim) };
        let mut b = Builder::new(&mut self.graph, site.name.clone(), site.origin);
        let part = b.slice(*v, 0, start, count, 1)?;
        if !single {
            return Ok(part.into());
        }
        let sizes = b.sizes(part)?;
        Ok(b.reshape(part, &sizes[1..])?.into())
    }

    /// What every turn of a scan was given, stacked: further results of the forward call.
    fn keep_carries(
        &mut self,
        site: &Site<'_>,
        body: SubgraphId,
        init: &[Arg],
        length: &SymExpr,
    ) -> Result<Vec<ValueId>, GradProblem> {
        if init.is_empty() {
            return Ok(Vec::new());
        }
        let Some(mut graph) = self.graph.subgraphs.get(body).cloned() else {
            return Err(GradProblem::NotPrim);
        };
        let places: Vec<ValueId> = graph.inputs().map(|(v, _, _)| v).take(init.len()).collect();
        let mut kept = Vec::new();
        for v in places {
            let Some(meta) = graph.meta(v).cloned() else {
                return Err(GradProblem::Control("carries a number that is no tensor: make it one"));
            };
            let copy = Builder::new(&mut graph, "kept", site.origin)
                .call1("aten.clone.default", vec![v.into(), Arg::None])?;
            graph.outputs.push(Output { kind: OutputKind::User, arg: Arg::Value(copy) });
            let sizes = std::iter::once(length.clone()).chain(meta.sizes.iter().cloned());
            let ty = ValueType::Tensor(TensorMeta::contiguous(meta.dtype, sizes));
            let value = Value { name: format!("{}_kept", site.name), ty, def: site.id };
            kept.push(self.graph.values.push(value));
        }
        let graph = self.graph.subgraphs.push(graph);
        let node = &mut self.graph.nodes[site.id];
        node.outputs.extend(kept.iter().copied());
        if let NodeKind::Call { args, .. } = &mut node.kind
            && let Some(first) = args.first_mut()
        {
            *first = Arg::Graph(graph);
        }
        // A map has no carry, so this was a scan and stays one.
        Ok(kept)
    }

    /// The joint graph of a body: cotangents come in for the results `outs`, gradients go out for the placeholders
    /// `wanted`.
    fn vjp(&mut self, body: SubgraphId, outs: &[usize], wanted: &[usize]) -> Result<Vjp, GradProblem> {
        let Some(mut of) = self.graph.subgraphs.get(body).cloned() else { return Err(GradProblem::NotPrim) };
        if binds(&of) {
            return Err(GradProblem::Control(
                "has a body in which a size follows from the data: compute it outside of it",
            ));
        }
        let user =
            |n: &usize| of.outputs.get(*n).map(|o| Output { kind: OutputKind::User, arg: o.arg.clone() });
        of.outputs = outs.iter().filter_map(user).collect();
        let own: Vec<ValueId> = of.inputs().map(|(v, _, _)| v).collect();
        let wrt: Vec<ValueId> = wanted.iter().filter_map(|n| own.get(*n).copied()).collect();
        if of.outputs.len() != outs.len() || wrt.len() != wanted.len() {
            return Err(GradProblem::Control("gives its body other operands than it takes"));
        }
        // Symbols are those of the outermost graph.
        of.share_symbols(&self.graph);
        let options = JointOptions { wrt: Wrt::Values(wrt), tangents: Tangents::Placeholders };
        let made = joint(&of, &options).map_err(|e| GradProblem::Within(Box::new(e)))?;
        let mut graph = made.graph;
        let mut tangents = Vec::new();
        for (n, tangent) in made.tangents.into_iter().enumerate() {
            // A result that depends on nothing of interest takes its cotangent all the same.
            tangents.push(match (tangent, &of.outputs[n].arg) {
                (Some(v), _) => v,
                (None, Arg::Value(v)) => {
                    let ty = graph.values[*v].ty.clone();
                    let ty = graph.meta(*v).map_or(ty, fresh);
                    graph.placeholder(InputKind::User, format!("unread_{n}"), "unread", ty)
                }
                _ => return Err(GradProblem::Control("has a body that returns a number: make it a tensor")),
            });
        }
        let mut gradients = Vec::new();
        for (v, gradient) in made.gradients {
            gradients.push(match (gradient, graph.meta(v).cloned()) {
                (Some(g), _) => g,
                (None, Some(meta)) => Builder::new(&mut graph, "none", OriginId(0)).full(
                    &meta.sizes,
                    Scalar::Float(0.0),
                    meta.dtype,
                )?,
                (None, None) => return Err(GradProblem::NotPrim),
            });
        }
        graph.move_symbols(&mut self.graph);
        Ok(Vjp { graph, own, tangents, gradients })
    }

    fn append(
        &mut self,
        site: &Site<'_>,
        target: &str,
        args: Vec<Arg>,
        types: Vec<ValueType>,
    ) -> Vec<ValueId> {
        let types = types.into_iter().map(|ty| (site.name.as_str(), ty));
        self.graph.call(target, args, types, site.origin).into_iter().collect()
    }

    /// Adds gradients to the cotangents of the operands that want one.
    fn give<'a>(
        &mut self,
        site: &Site<'_>,
        operands: impl Iterator<Item = &'a Arg>,
        gradients: &[ValueId],
    ) -> Result<(), GradProblem> {
        for (operand, &g) in operands.zip(gradients) {
            if let Arg::Value(v) = operand
                && self.wants(*v)
            {
                self.add(*v, g, &site.name, site.origin)?;
            }
        }
        Ok(())
    }

    /// Places of the operands whose gradients are wanted.
    fn wanted(&self, operands: &[Arg]) -> Vec<usize> {
        (0..operands.len()).filter(|n| self.wants_any(&operands[*n])).collect()
    }

    fn meta_of(&self, arg: &Arg) -> Option<&TensorMeta> {
        if let Arg::Value(v) = arg { self.graph.meta(*v) } else { None }
    }

    fn fresh_type(&self, arg: &Arg) -> Option<ValueType> {
        self.meta_of(arg).map(fresh)
    }

    /// The cotangent of result `n`, zeros like `like` where nothing reads it.
    fn result_cotangent(&mut self, site: &Site<'_>, n: usize, like: &Arg) -> Result<Arg, GradProblem> {
        match site.cotangents[n] {
            Some(g) => Ok(g.into()),
            None => self.zeros(site, like),
        }
    }

    fn zeros(&mut self, site: &Site<'_>, like: &Arg) -> Result<Arg, GradProblem> {
        let Some(meta) = self.meta_of(like).cloned() else { return Err(GradProblem::NotPrim) };
        let mut b = Builder::new(&mut self.graph, site.name.clone(), site.origin);
        Ok(b.full(&meta.sizes, Scalar::Float(0.0), meta.dtype)?.into())
    }

    /// A tensor with dimension 0 the other way round.
    fn flipped(&mut self, site: &Site<'_>, x: &Arg) -> Result<Arg, OpError> {
        let mut b = Builder::new(&mut self.graph, site.name.clone(), site.origin);
        Ok(b.call1("aten.flip.default", vec![x.clone(), Arg::List(vec![0i64.into()])])?.into())
    }
}

/// One turn of the backward scan. It carries the carries' cotangents and the sums of the fixed operands' gradients, goes
/// over the carries that were kept, the slices and the cotangents of the results, and gives the gradients of the slices.
/// `carries` of the `carried` operands are differentiated, `of_xs` of the `xs` slices.
fn backward_iteration(
    mut vjp: Vjp,
    [carries, of_xs]: [usize; 2],
    [carried, xs]: [usize; 2],
) -> Result<Graph, GradProblem> {
    let gradients = vjp.gradients.clone();
    let (of_carries, rest) = gradients.split_at(carries);
    let (of_slices, of_fixed) = rest.split_at(of_xs);
    let (mut sums, mut totals) = (Vec::new(), Vec::new());
    for (n, &g) in of_fixed.iter().enumerate() {
        let Some(ty) = vjp.graph.meta(g).map(fresh) else { return Err(GradProblem::NotPrim) };
        let sum = vjp.graph.placeholder(InputKind::User, format!("sum_{n}"), "sum", ty);
        sums.push(sum);
        totals.push(Builder::new(&mut vjp.graph, "total", OriginId(0)).add(sum, g)?);
    }
    let (of_carry, of_ys) = vjp.tangents.split_at(carries);
    let (slices, fixed) = vjp.own.split_at(carried + xs);
    let placeholders = [of_carry, &sums, slices, of_ys, fixed].concat();
    let results = [of_carries, &totals, of_slices].concat();
    Ok(vjp.finish(&placeholders, &results))
}

/// One turn of the backward of an associative scan. It carries the cotangents of `own` results and the sums of the fixed
/// operands' gradients, goes over the `slices` operands and the own cotangents of the results before, which are added to
/// what goes on, and gives the gradients of the elements.
fn iteration_results(mut vjp: Vjp, own: usize, slices: usize) -> Result<Graph, GradProblem> {
    let gradients = vjp.gradients.clone();
    let (before, rest) = gradients.split_at(own);
    let (of_elements, of_fixed) = rest.split_at(own);
    let mut sum_with = |name: &str, g: ValueId| -> Result<(ValueId, ValueId), GradProblem> {
        let Some(ty) = vjp.graph.meta(g).map(fresh) else { return Err(GradProblem::NotPrim) };
        let other = vjp.graph.placeholder(InputKind::User, name, name, ty);
        Ok((other, Builder::new(&mut vjp.graph, "total", OriginId(0)).add(other, g)?))
    };
    let (mut sums, mut totals, mut cotangents, mut carries) =
        (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for (k, &g) in of_fixed.iter().enumerate() {
        let (sum, total) = sum_with(&format!("sum_{k}"), g)?;
        sums.push(sum);
        totals.push(total);
    }
    for (k, &g) in before.iter().enumerate() {
        let (cotangent, carry) = sum_with(&format!("cotangent_{k}"), g)?;
        cotangents.push(cotangent);
        carries.push(carry);
    }
    let (operands, fixed) = vjp.own.split_at(slices);
    let placeholders = [&vjp.tangents, &sums, operands, &cotangents, fixed].concat();
    let results = [&carries, &totals, of_elements].concat();
    Ok(vjp.finish(&placeholders, &results))
}

/// The type of one slice.
fn first_of(meta: Option<&TensorMeta>) -> Option<ValueType> {
    meta.map(|m| ValueType::Tensor(TensorMeta::contiguous(m.dtype, m.sizes[1..].iter().cloned())))
}

/// Memory of its own for a gradient.
fn fresh(meta: &TensorMeta) -> ValueType {
    ValueType::Tensor(TensorMeta::contiguous(meta.dtype, meta.sizes.iter().cloned()))
}

/// Whether a body binds a size.
fn binds(graph: &Graph) -> bool {
    graph.iter().any(|(_, node)| node.as_call().is_some_and(|(target, _)| target == prims::scalars::ITEM))
        || graph.subgraphs.values().any(binds)
}

/// All items of nested lists.
fn flat(args: &[Arg]) -> Vec<Arg> {
    let mut all = Vec::new();
    for arg in args {
        match arg {
            Arg::List(items) => all.extend(flat(items)),
            other => all.push(other.clone()),
        }
    }
    all
}
