//! Masks of attention that positions alone decide. Models write causal masks out (`arange`, `le`, gathers of position ids, runs of
//! documents counted by `cumsum`), and masks that hide nothing: `prims.attention` takes the first as a flag, which halves its
//! work, and does without the second.
//!
//! A mask is evaluated at one element whose indices are loop variables: it is then a conjunction of inequalities between affine
//! expressions, of which those that always hold are dropped. What is not of this form stays as it is: windows, padding.

use fx_ir::{Arg, Graph, NodeId, NodeKind, ValueId};
use ir_core::{Atom, Bounds, DType, Scalar, SymExpr};
use kernel_ir::ScalarOp;
use prims::Call;
use rustc_hash::FxHashMap;

use super::matching::{def, permutation, sizes, uniform};
use super::{PassCx, Stats};

/// Most operators that are looked at for one mask.
const MAX_STEPS: u32 = 2000;
/// A number that is added to a score, or replaces it, hides it where it is at most this.
pub(super) const HIDES: f64 = -1e9;

/// Finds every such mask.
pub(super) fn run(graph: &mut Graph, _: &PassCx) -> Stats {
    let order: Vec<NodeId> = graph.order.clone();
    let mut known: FxHashMap<ValueId, Option<Shown>> = FxHashMap::default();
    let changed = order.into_iter().filter(|&id| simplify(graph, id, &mut known).is_some()).count();
    if changed > 0 {
        prims::scalars::eliminate_dead(graph);
    }
    Stats { changed }
}

/// What a mask shows: everything, or for each query the keys up to its own position.
#[derive(Clone, Copy, PartialEq)]
enum Shown {
    All,
    Causal,
}

/// Replaces the mask of one attention, or of its gradients, by the flag.
fn simplify(graph: &mut Graph, id: NodeId, known: &mut FxHashMap<ValueId, Option<Shown>>) -> Option<()> {
    let (target, args) = graph.nodes[id].as_call()?;
    let place = match target {
        "prims.attention" => 3,
        "prims.attention_backward" => 6,
        _ => return None,
    };
    let Arg::Value(mask) = args.get(place)? else { return None };
    let shown = *known.entry(*mask).or_insert_with(|| shown(graph, *mask));
    let shown = shown?;
    if let NodeKind::Call { args, .. } = &mut graph.nodes[id].kind {
        args[place] = Arg::None;
        if shown == Shown::Causal {
            args[place + 1] = true.into();
        }
    }
    Some(())
}

fn shown(graph: &Graph, mask: ValueId) -> Option<Shown> {
    let sizes = sizes(graph, mask)?.to_vec();
    let index: Vec<SymExpr> = (0..sizes.len() as u32).map(SymExpr::loop_var).collect();
    let whole = sizes.clone();
    let mut reader = Reader { graph, sizes, steps: MAX_STEPS };
    let conditions = match graph.meta(mask)?.dtype {
        DType::Bool => reader.truth(mask, &index)?,
        dtype if dtype.is_float() => reader.added(mask, &index)?,
        _ => return None,
    };
    let rank = whole.len();
    let causal = || {
        let rows_and_keys = rank == 4 && whole[2..].iter().all(|n| *n != SymExpr::ONE);
        rows_and_keys && conditions == [&index[2] - &index[3]]
    };
    match conditions.is_empty() {
        true => Some(Shown::All),
        false => causal().then_some(Shown::Causal),
    }
}

/// An element of an integer tensor or of one of truth values: true where all the expressions are at least 0.
enum Element {
    Int(SymExpr),
    Truth(Vec<SymExpr>),
    False,
}

/// Reads elements at symbolic indices.
struct Reader<'g> {
    graph: &'g Graph,
    /// Sizes of the mask, over which the loop variables run.
    sizes: Vec<SymExpr>,
    steps: u32,
}

impl Bounds for Reader<'_> {
    fn range(&self, leaf: &Atom) -> (Option<i64>, Option<i64>) {
        match leaf {
            Atom::Sym(id) => {
                let symbol = &self.graph.symbols[*id];
                (Some(symbol.min), symbol.max)
            }
            _ => (None, None),
        }
    }
    fn extent(&self, loop_var: u32) -> Option<SymExpr> {
        self.sizes.get(loop_var as usize).cloned()
    }
}

impl Reader<'_> {
    /// The conditions under which a truth value is true; `None` where it is never, or of another form.
    fn truth(&mut self, v: ValueId, index: &[SymExpr]) -> Option<Vec<SymExpr>> {
        match self.element(v, index)? {
            Element::Truth(conditions) => Some(conditions),
            _ => None,
        }
    }

    /// The conditions under which a number added to a score is 0, where it hides the score otherwise.
    fn added(&mut self, v: ValueId, index: &[SymExpr]) -> Option<Vec<SymExpr>> {
        let graph = self.graph;
        let number = |a: &Arg| uniform(graph, a, &[]).map(Scalar::as_f64);
        if number(&Arg::Value(v)) == Some(0.0) {
            return Some(Vec::new());
        }
        self.steps = self.steps.checked_sub(1)?;
        let call = def(graph, v)?;
        if call.op.scalar_op() == Some(ScalarOp::Select) {
            let [Arg::Value(condition), shown, hidden] = call.args else { return None };
            let hides = number(shown)? == 0.0 && number(hidden)? <= HIDES;
            return if hides { self.truth(*condition, index) } else { None };
        }
        let (source, index) = self.viewed(&call, v, index)?;
        self.added(source, &index)
    }

    /// The element of `v` at an index.
    fn element(&mut self, v: ValueId, index: &[SymExpr]) -> Option<Element> {
        self.steps = self.steps.checked_sub(1)?;
        let graph = self.graph;
        let call = def(graph, v)?;
        if let Some((source, index)) = self.viewed(&call, v, index) {
            return self.element(source, &index);
        }
        if let Some(op) = call.op.scalar_op() {
            return self.computed(op, call.args, index);
        }
        match call.op.target.as_str() {
            "prims.full" => constant(call.opt_scalar("value").ok()??),
            "prims.iota" => {
                let (start, step) = (call.sym("start").ok()?, call.sym("step").ok()?);
                self.graph.meta(v)?.dtype.is_int().then(|| Element::Int(start + step * &index[0]))
            }
            "prims.convert" => {
                let element = self.element(call.value("a").ok()?, index)?;
                converted(element, self.graph.meta(v)?.dtype)
            }
            "prims.cat" => self.joined(&call, index),
            "prims.index" => self.gathered(&call, index),
            "prims.cumsum" => self.counted(&call, index),
            _ => None,
        }
    }

    /// The source of a view, and the index in it.
    fn viewed(&self, call: &Call<'_>, v: ValueId, index: &[SymExpr]) -> Option<(ValueId, Vec<SymExpr>)> {
        let target = call.op.target.as_str();
        let is_view = ["prims.expand", "prims.reshape", "prims.permute", "prims.slice"].contains(&target);
        if !is_view {
            return None;
        }
        let source = call.value("a").ok()?;
        let from = sizes(self.graph, source)?;
        let mut at = index.to_vec();
        match target {
            "prims.expand" => {
                at.drain(..index.len().checked_sub(from.len())?);
                at.iter_mut()
                    .zip(from)
                    .filter(|(_, n)| **n == SymExpr::ONE)
                    .for_each(|(i, _)| *i = SymExpr::ZERO);
            }
            "prims.reshape" => {
                let moving = |n: &&SymExpr| **n != SymExpr::ONE;
                let to = sizes(self.graph, v)?;
                if !from.iter().filter(moving).eq(to.iter().filter(moving)) {
                    return None;
                }
                let mut kept = index.iter().zip(to).filter(|(_, n)| moving(n)).map(|(i, _)| i.clone());
                at = from
                    .iter()
                    .map(|n| if moving(&n) { kept.next() } else { Some(SymExpr::ZERO) })
                    .collect::<Option<_>>()?;
            }
            "prims.permute" => {
                for (to, &d) in permutation(call)?.iter().enumerate() {
                    at[d] = index[to].clone();
                }
            }
            _ => {
                let dim = call.dim(call.int("dim").ok()?, from.len()).ok()?;
                let step = SymExpr::from_i64(call.int("step").ok()?);
                at[dim] = call.sym("start").ok()? + step * &index[dim];
            }
        }
        Some((source, at))
    }

    fn operand(&mut self, arg: &Arg, index: &[SymExpr]) -> Option<Element> {
        match arg {
            Arg::Value(v) => self.element(*v, index),
            other => constant(other.as_scalar()?),
        }
    }

    fn computed(&mut self, op: ScalarOp, args: &[Arg], index: &[SymExpr]) -> Option<Element> {
        use Element::{False, Int, Truth};
        let first = self.operand(args.first()?, index)?;
        if op == ScalarOp::Select {
            let [_, yes, no] = args else { return None };
            return match first {
                Truth(all) if all.is_empty() => self.operand(yes, index),
                False => self.operand(no, index),
                _ => None,
            };
        }
        if op == ScalarOp::Not {
            return match first {
                Truth(all) if all.is_empty() => Some(False),
                // What is not at least 0 is at most -1.
                Truth(all) if all.len() == 1 => Some(self.at_least_0(SymExpr::ZERO - &all[0] - SymExpr::ONE)),
                False => Some(Truth(Vec::new())),
                _ => None,
            };
        }
        let second = self.operand(args.get(1)?, index)?;
        match (op, first, second) {
            (ScalarOp::Add, Int(a), Int(b)) => Some(Int(a + b)),
            (ScalarOp::Sub, Int(a), Int(b)) => Some(Int(a - b)),
            (ScalarOp::Mul, Int(a), Int(b)) if a.as_const().is_some() || b.as_const().is_some() => {
                Some(Int(a * b))
            }
            (ScalarOp::Le, Int(a), Int(b)) | (ScalarOp::Ge, Int(b), Int(a)) => Some(self.at_least_0(b - a)),
            (ScalarOp::Lt, Int(a), Int(b)) | (ScalarOp::Gt, Int(b), Int(a)) => {
                Some(self.at_least_0(b - a - SymExpr::ONE))
            }
            (ScalarOp::Eq, Int(a), Int(b)) => self.equal(&(a - b)).map(truth_of),
            (ScalarOp::Ne, Int(a), Int(b)) => self.equal(&(a - b)).map(|equal| truth_of(!equal)),
            (ScalarOp::And, Truth(mut a), Truth(b)) => {
                let new: Vec<SymExpr> = b.into_iter().filter(|c| !a.contains(c)).collect();
                a.extend(new);
                Some(Truth(a))
            }
            (ScalarOp::And, False, False | Truth(_)) | (ScalarOp::And, Truth(_), False) => Some(False),
            (ScalarOp::Or, Truth(a), Truth(b)) if a.is_empty() || b.is_empty() => Some(Truth(Vec::new())),
            (ScalarOp::Or, Truth(a), False) | (ScalarOp::Or, False, Truth(a)) => Some(Truth(a)),
            _ => None,
        }
    }

    fn at_least_0(&self, e: SymExpr) -> Element {
        match e.range(self) {
            (Some(least), _) if least >= 0 => Element::Truth(Vec::new()),
            (_, Some(most)) if most < 0 => Element::False,
            _ => Element::Truth(vec![e]),
        }
    }

    /// Whether a difference is 0, where it always or never is.
    fn equal(&self, difference: &SymExpr) -> Option<bool> {
        match difference.range(self) {
            _ if *difference == SymExpr::ZERO => Some(true),
            (Some(least), _) if least > 0 => Some(false),
            (_, Some(most)) if most < 0 => Some(false),
            _ => None,
        }
    }

    /// One tensor after another, where one expression tells the elements of all: `arange` behind the number before its first.
    fn joined(&mut self, call: &Call<'_>, index: &[SymExpr]) -> Option<Element> {
        let parts = call.values("tensors").ok()?;
        let dim = call.dim(call.int("dim").ok()?, index.len()).ok()?;
        let mut begin = SymExpr::ZERO;
        let mut found: Vec<(SymExpr, SymExpr, SymExpr)> = Vec::new();
        for part in parts {
            let size = sizes(self.graph, part)?[dim].clone();
            let mut at = index.to_vec();
            at[dim] = &index[dim] - &begin;
            let Element::Int(e) = self.element(part, &at)? else { return None };
            found.push((begin.clone(), size.clone(), e));
            begin = begin + size;
        }
        // All but one have one element along the dimension, at which the expression of the other is looked at.
        let (_, _, long) = found.iter().find(|(_, size, _)| *size != SymExpr::ONE).or(found.first())?.clone();
        let var = index[dim].clone();
        let agrees = |(begin, size, e): &(SymExpr, SymExpr, SymExpr)| {
            *e == long || (*size == SymExpr::ONE && at_value(e, &var, begin) == at_value(&long, &var, begin))
        };
        found.iter().all(agrees).then_some(Element::Int(long))
    }

    /// A gather by indices that are within bounds.
    fn gathered(&mut self, call: &Call<'_>, index: &[SymExpr]) -> Option<Element> {
        let (source, indices) = (call.value("a").ok()?, call.values("indices").ok()?);
        let start = usize::try_from(call.int("start").ok()?).ok()?;
        let from = sizes(self.graph, source)?;
        let rank = sizes(self.graph, *indices.first()?)?.len();
        let inner = index.get(start..start + rank)?;
        let mut at = index[..start].to_vec();
        for (n, &of) in indices.iter().enumerate() {
            if sizes(self.graph, of)?.len() != rank {
                return None;
            }
            let Element::Int(e) = self.element(of, inner)? else { return None };
            let end = from.get(start + n)? - &e - SymExpr::ONE;
            let within = [e.range(self).0, end.range(self).0].iter().all(|n| n.is_some_and(|n| n >= 0));
            if !within {
                return None;
            }
            at.push(e);
        }
        at.extend_from_slice(&index[start + rank..]);
        self.element(source, &at)
    }

    /// A running sum of one number.
    fn counted(&mut self, call: &Call<'_>, index: &[SymExpr]) -> Option<Element> {
        let dim = call.dim(call.int("dim").ok()?, index.len()).ok()?;
        let Element::Int(each) = self.element(call.value("a").ok()?, index)? else { return None };
        let each = each.as_const()?;
        Some(Element::Int((&index[dim] + SymExpr::ONE) * SymExpr::from_i64(each)))
    }
}

/// An affine expression where `var`, a loop variable with a number added, has a value.
fn at_value(e: &SymExpr, var: &SymExpr, value: &SymExpr) -> Option<SymExpr> {
    let mut of = None;
    var.for_each_leaf(&mut |leaf| of = Some(leaf.clone()));
    let leaf = of?;
    let (one, before) = var.affine_in(&leaf)?;
    let (step, rest) = e.affine_in(&leaf)?;
    (one == SymExpr::ONE).then(|| rest + step * (value - before))
}

fn truth_of(b: bool) -> Element {
    if b { Element::Truth(Vec::new()) } else { Element::False }
}

fn constant(n: Scalar) -> Option<Element> {
    match n {
        Scalar::Int(n) => Some(Element::Int(SymExpr::from_i64(n))),
        Scalar::Bool(b) => Some(truth_of(b)),
        _ => None,
    }
}

/// An element in another dtype, where its value is the same there.
fn converted(element: Element, dtype: DType) -> Option<Element> {
    match element {
        Element::Int(e) if matches!(dtype, DType::I32 | DType::I64) => Some(Element::Int(e)),
        Element::Int(e) if dtype == DType::Bool => e.as_const().map(|n| truth_of(n != 0)),
        Element::Truth(all) if dtype == DType::Bool => Some(Element::Truth(all)),
        Element::Truth(all) if dtype.is_int() && all.is_empty() => Some(Element::Int(SymExpr::ONE)),
        Element::False if dtype == DType::Bool => Some(Element::False),
        Element::False if dtype.is_int() => Some(Element::Int(SymExpr::ZERO)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{assert_unchanged, changes, graph};
    use super::*;

    /// Attention of 6 queries and 6 keys with a mask made by `mask`, which is `%m`.
    fn body(mask: &str) -> String {
        format!(
            "%q: f32[2, 3, 6, 4] = input \"q\"
%k: f32[2, 3, 6, 4] = input \"k\"
%v: f32[2, 3, 6, 4] = input \"v\"

%n: i64[6] = prims.iota(6, 0, 1, i64)
%i: i64[1, 1, 6, 1] = prims.reshape(%n, [1, 1, 6, 1])
%j: i64[1, 1, 1, 6] = prims.reshape(%n, [1, 1, 1, 6])
%ie: i64[1, 1, 6, 6] = prims.expand(%i, [1, 1, 6, 6])
%je: i64[1, 1, 6, 6] = prims.expand(%j, [1, 1, 6, 6])
{mask}
%y: f32[2, 3, 6, 4], %s: f32[2, 3, 6] = prims.attention(%q, %k, %v, %m, false, 0.5, none, 1.0)
return %y"
        )
    }

    fn becomes(mask: &str, flag: &str) {
        changes(run, &PassCx::default(), &body(mask), "prims.attention");
        let mut after = graph(&body(mask));
        run(&mut after, &PassCx::default());
        let text = after.to_string();
        assert!(text.contains(&format!("none, {flag}")), "{text}");
    }

    #[test]
    fn a_triangle_is_a_flag() {
        becomes("%m: bool[1, 1, 6, 6] = prims.le(%je, %ie)", "true");
        becomes("%m: bool[1, 1, 6, 6] = prims.ge(%ie, %je)", "true");
        becomes("%d: i64[1, 1, 6, 6] = prims.sub(%je, %ie)\n%m: bool[1, 1, 6, 6] = prims.lt(%d, 1)", "true");
        becomes(
            "%c: bool[1, 1, 6, 6] = prims.le(%je, %ie)\n%m: f32[1, 1, 6, 6] = prims.select(%c, 0.0, -inf)",
            "true",
        );
    }

    #[test]
    fn a_mask_that_shows_all_is_none() {
        becomes(
            "%g: bool[1, 1, 6, 1] = prims.ge(%i, 0)\n%m: bool[2, 1, 6, 6] = prims.expand(%g, [2, 1, 6, 6])",
            "false",
        );
        becomes("%m: f32[1, 1, 1, 6] = prims.full([1, 1, 1, 6], 0.0, f32)", "false");
    }

    /// Documents, counted by where positions do not go on, of which there is one.
    #[test]
    fn runs_of_positions() {
        becomes(
            "%p: i64[2, 6] = prims.expand(%n, [2, 6])
%f: i64[2, 1] = prims.slice(%p, 1, 0, 1, 1)
%b: i64[2, 1] = prims.sub(%f, 1)
%pb: i64[2, 7] = prims.cat([%b, %p], 1)
%l: i64[2, 6] = prims.slice(%pb, 1, 0, 6, 1)
%d: i64[2, 6] = prims.sub(%p, %l)
%x: bool[2, 6] = prims.ne(%d, 1)
%xi: i64[2, 6] = prims.convert(%x, i64)
%c: i64[2, 6] = prims.cumsum(%xi, 1)
%b0: i64[2] = prims.iota(2, 0, 1, i64)
%b1: i64[2, 1, 1, 1] = prims.reshape(%b0, [2, 1, 1, 1])
%b2: i64[2, 1, 6, 1] = prims.expand(%b1, [2, 1, 6, 1])
%ii: i64[2, 1, 6, 1] = prims.expand(%i, [2, 1, 6, 1])
%di: i64[2, 1, 6, 1] = prims.index(%c, [%b2, %ii], 0)
%b3: i64[2, 1, 1, 6] = prims.expand(%b1, [2, 1, 1, 6])
%ji: i64[2, 1, 1, 6] = prims.expand(%j, [2, 1, 1, 6])
%dj: i64[2, 1, 1, 6] = prims.index(%c, [%b3, %ji], 0)
%di2: i64[2, 1, 6, 6] = prims.expand(%di, [2, 1, 6, 6])
%dj2: i64[2, 1, 6, 6] = prims.expand(%dj, [2, 1, 6, 6])
%e: bool[2, 1, 6, 6] = prims.eq(%di2, %dj2)
%i2: i64[2, 1, 6, 6] = prims.expand(%i, [2, 1, 6, 6])
%j2: i64[2, 1, 6, 6] = prims.expand(%j, [2, 1, 6, 6])
%o: bool[2, 1, 6, 6] = prims.le(%j2, %i2)
%m: bool[2, 1, 6, 6] = prims.and(%e, %o)",
            "true",
        );
    }

    #[test]
    fn other_masks_stay() {
        let unchanged = |mask: &str| assert_unchanged(run, &PassCx::default(), &body(mask));
        unchanged("%m: bool[1, 1, 6, 6] = prims.lt(%je, %ie)");
        unchanged("%m: bool[1, 1, 6, 6] = prims.ge(%je, %ie)");
        unchanged(
            "%l: i64[1, 1, 6, 6] = prims.sub(%ie, 3)
%a: bool[1, 1, 6, 6] = prims.gt(%je, %l)
%b: bool[1, 1, 6, 6] = prims.le(%je, %ie)
%m: bool[1, 1, 6, 6] = prims.and(%a, %b)",
        );
        unchanged("%m: bool[1, 1, 6, 1] = prims.lt(%i, 5)");
        unchanged("%m: f32[1, 1, 1, 6] = prims.full([1, 1, 1, 6], 1.0, f32)");
    }
}
